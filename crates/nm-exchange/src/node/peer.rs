//! Who is at the other end of a link, and why a link is closed.

use std::fmt;

use nm_codec::DecodeError;
use thiserror::Error;

use crate::link::LinkError;
use crate::network::Role;
use crate::wire::FrameKind;

/// Who is at the other end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// Its hello has not come yet.
    Unknown,
    /// A client.
    Client,
    /// A peer that asks for the state of the network.
    Observer,
    /// A node.
    Node(Role, usize),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Unknown => f.write_str("an unknown peer"),
            Peer::Client => f.write_str("a client"),
            Peer::Observer => f.write_str("an observer"),
            Peer::Node(role, index) => write!(f, "{role} {index}"),
        }
    }
}

/// Why a link is closed.
#[derive(Debug, Error)]
pub enum PeerError {
    /// The link failed.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The link cannot be waited for.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The peer sent a kind of frame that it must not send to this class of nodes.
    #[error("{peer} sent a {kind:?} to a {role}")]
    UnexpectedFrame {
        /// Who.
        peer: Peer,
        /// What.
        kind: FrameKind,
        /// Class of this node.
        role: Role,
    },
    /// The peer sent a frame whose content cannot be decoded.
    #[error("{peer} sent a {kind:?} that cannot be read: {source}")]
    Decode {
        /// Who.
        peer: Peer,
        /// What.
        kind: FrameKind,
        /// Why.
        source: DecodeError,
    },
    /// The network has no link between the two.
    #[error("it is not to be linked to {role} {index}")]
    NotLinked {
        /// Class of this node.
        role: Role,
        /// Index of this node.
        index: usize,
    },
    /// The handshake was over.
    #[error("it sent a second handshake")]
    RepeatedHandshake,
    /// The node made another link.
    #[error("the peer has made a new link")]
    Replaced,
    /// Too many requests have no reply.
    #[error("too many requests have no reply yet")]
    TooManyPending,
}

impl PeerError {
    /// An error about what a peer sent.
    pub fn decode(peer: Peer, kind: FrameKind) -> impl Fn(DecodeError) -> PeerError {
        move |source| PeerError::Decode { peer, kind, source }
    }
}
