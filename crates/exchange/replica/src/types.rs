//! The types that openraft is used with.

use openraft::{CommittedLeaderId, EmptyNode};

use crate::group::Shared;
use crate::runtime::Runtime;

/// A replica's number: its position in the group, from 1 on.
pub type NodeId = u64;

openraft::declare_raft_types!(
    /// The types.
    pub Types:
        D = Shared,
        R = (),
        NodeId = NodeId,
        Node = EmptyNode,
        Entry = openraft::Entry<Types>,
        SnapshotData = Shared,
        AsyncRuntime = Runtime,
);

/// The Raft engine.
pub type Raft = openraft::Raft<Types>;

/// Bits of a leader's node id in a term as it is seen outside of openraft.
const NODE_BITS: u32 = 4;

/// The term as it is seen outside of openraft: openraft's term and the leader's node id in one
/// number, which rises with each change of leader.
pub fn term_of(leader: &CommittedLeaderId<NodeId>) -> u64 {
    debug_assert!(leader.node_id < 1 << NODE_BITS);
    leader.term << NODE_BITS | leader.node_id
}

/// The leader of a term, the inverse of [`term_of`].
pub fn leader_of(term: u64) -> CommittedLeaderId<NodeId> {
    CommittedLeaderId::new(term >> NODE_BITS, term & ((1 << NODE_BITS) - 1))
}

// The node ids of all members must fit.
const _: () = assert!(crate::group::MEMBERS_MAX < 1 << NODE_BITS);
