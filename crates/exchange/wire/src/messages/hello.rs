//! The first frame of the end that connects.

use nm_auth::{Nonce, Proof, Right};

use crate::node_id::NodeId;
use crate::value::encode;
use crate::{choice, message, record};

choice! {
    /// Who connects.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Who {
        /// A client, for one of its sessions. It says hello for each of them.
        Client = 0 {
            /// The session.
            session: u32,
        },
        /// A peer that asks for the state of the network.
        Observer = 1,
        /// A peer that also changes it.
        Operator = 2,
        /// A node.
        Node = 3 {
            /// Which.
            node: NodeId,
            /// Number that identifies the start of its process.
            start: u64,
        },
    }
}

impl Who {
    /// What it needs a key for.
    pub fn right(&self) -> Right {
        match self {
            Who::Client { session } => Right::of_session(*session),
            Who::Observer => Right::Observer,
            Who::Operator => Right::Operator,
            Who::Node { .. } => Right::Node,
        }
    }

    /// What the proofs of both ends cover.
    pub fn claim(&self) -> Vec<u8> {
        [b"link ".to_vec(), encode(self)].concat()
    }
}

record! {
    /// Answer to a `Challenge`.
    #[derive(Debug, Clone, Copy)]
    pub struct Evidence {
        /// Random number of the end that connects.
        nonce: Nonce,
        /// That it has the key of the right that it claims.
        proof: Proof,
    }
}

message! {
    /// First frame of a link: who connects.
    #[derive(Debug, Clone, Copy)]
    pub struct Hello;
    head {
        /// Digest of the format that this end has. Another one is refused.
        digest: u64,
        /// Number of the network that this end means (`cluster` in the network's file). Another
        /// one is refused, unless this is 0: a client may not know it.
        network: u64,
    }
    tail {
        /// Who connects.
        who: Who,
        /// The node that it means. Another one refuses.
        to: Option<NodeId>,
        /// Where the network has a secret: that this end has the key.
        evidence: Option<Evidence>,
    }
}
