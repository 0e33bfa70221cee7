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

/// Bits of a term that count the elections of one generation: a million.
const ELECTION_BITS: u32 = 20;

/// The generation of a term (openraft's): how often its group was made anew from copies of its
/// files. A replica of an earlier generation may have what the copies lack, and would mix both.
pub fn generation_of(term: u64) -> u64 {
    term >> ELECTION_BITS
}

/// The term before the first one of a generation.
pub fn first_term(generation: u8) -> u64 {
    u64::from(generation) << ELECTION_BITS
}

// The node ids of all members must fit.
const _: () = assert!(crate::group::MEMBERS_MAX < 1 << NODE_BITS);
