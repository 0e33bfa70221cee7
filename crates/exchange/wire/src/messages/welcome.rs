//! The answer to a hello.

use nm_auth::Proof;
use nm_codec::Put;

use super::hello::Who;
use crate::node_id::NodeId;

crate::message! {
    /// Answer to a `Hello`: the node is up. A client has none where the network has no secret.
    #[derive(Debug, Clone, Copy)]
    pub struct Welcome;
    head {
        /// Digest of the format that the node has.
        digest: u64,
        /// Number of the node's network (`cluster` in its file); 0 if the file has none.
        network: u64,
        /// Number that identifies the start of the node's process.
        start: u64,
        /// The session of a client; 0 for others.
        session: u32,
    }
    tail {
        /// The node.
        node: NodeId,
        /// Where the network has a secret: that the node has it.
        proof: Option<Proof>,
    }
}

impl Welcome {
    /// What the proof of the end that accepted the link covers.
    pub fn claim(&self, who: &Who) -> Vec<u8> {
        let mut claim = who.claim();
        claim.put_u64s(&[self.start, self.network]);
        self.node.write(&mut claim);
        claim
    }
}
