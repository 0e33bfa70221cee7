//! The logs of a node's replicas, and what gives it more of them while it runs.

use std::fmt::Debug;

use nm_model::agent::Failure;

use crate::network::{Network, NodeId};

/// The logs that a node begins with.
#[derive(Debug)]
pub struct Logs<L> {
    /// With the numbers of their groups.
    pub of_groups: Vec<(u16, L)>,
    /// What gives it more; none if it is in no group and never will be.
    pub source: Option<Box<dyn LogSource<L>>>,
}

/// What gives a node logs while it runs.
pub trait LogSource<L>: Debug {
    /// The next log that the leader of a group has given the node, with the number of the group.
    fn next_joined(&mut self) -> Option<(u16, L)>;

    /// A cell was added to the network: the log of the node's replica, if it begins with one.
    ///
    /// # Errors
    /// If the log cannot be opened.
    fn open(&mut self, network: &Network, node: NodeId, cell: u16) -> Result<Option<L>, Failure>;

    /// A cell was removed from the network.
    fn close(&mut self, cell: u16);
}
