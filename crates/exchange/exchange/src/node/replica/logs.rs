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
    /// The next log that was opened, or that the leader of a group has given the node, with the
    /// number of the group; or why a log could not be opened.
    fn next_joined(&mut self) -> Option<Result<(u16, L), Failure>>;

    /// A cell was added to the network: begins to open the log of the node's replica, if it has
    /// one. It does not wait for that.
    ///
    /// # Errors
    /// If the network lacks something that the replica needs.
    fn open(&mut self, network: &Network, node: NodeId, cell: u16) -> Result<(), Failure>;

    /// A cell was removed from the network.
    fn close(&mut self, cell: u16);
}
