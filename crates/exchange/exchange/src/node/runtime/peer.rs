//! Who is at the other end of a link, and why a link is closed.

use std::fmt;
use std::time::Duration;

use nm_auth::{RandomError, Right};
use nm_book::order::UserId;
use nm_codec::DecodeError;
use nm_wire::{Difference, Kind, Owner, PROGRAM, RefusalReason, SILENCE, VERSION};
use thiserror::Error;

use crate::cell::DESK;
use crate::client::Meant;
use crate::link::LinkError;
use crate::network::{NodeId, Role};

/// What a quota of bytes is of.
pub const QUOTA_BYTES: &str = "bytes of this node";

/// Who is at the other end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// Its hello has not come yet.
    Unknown,
    /// A client.
    Client,
    /// A peer that asks for the state of the network.
    Observer,
    /// A peer that also changes it.
    Operator,
    /// A node.
    Node(NodeId),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Unknown => f.write_str("an unknown peer"),
            Peer::Client => f.write_str("a client"),
            Peer::Observer => f.write_str("an observer"),
            Peer::Operator => f.write_str("an operator"),
            Peer::Node(node) => node.fmt(f),
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
        kind: Kind,
        /// Class of this node.
        role: Role,
    },
    /// The peer sent a frame whose content cannot be decoded.
    #[error("{peer} sent a {kind:?} that cannot be read: {source}")]
    Decode {
        /// Who.
        peer: Peer,
        /// What.
        kind: Kind,
        /// Why.
        source: DecodeError,
    },
    /// The peer has another format of messages, although its version is the same.
    #[error(
        "its format of messages is {found:016x} and that of this node {own:016x}, both of version \
         {VERSION}: both ends must be of the same version of nearmetal"
    )]
    OtherFormat {
        /// Digest of the peer's format.
        found: u64,
        /// Digest of this node's.
        own: u64,
    },
    /// The peer's format and this node's cannot be used together.
    #[error(
        "nearmetal {program} (format {found:016x}) and nearmetal {PROGRAM} (format {own:016x}) \
         cannot run in one network: {difference}"
    )]
    Incompatible {
        /// The peer's program.
        program: String,
        /// Digest of its format.
        found: u64,
        /// Digest of this node's.
        own: u64,
        /// Why.
        difference: Difference,
    },
    /// The network has no link between the two.
    #[error("it is not to be linked to {0}")]
    NotLinked(NodeId),
    /// The peer is a node that was removed.
    #[error("{0} was removed from the network")]
    Removed(NodeId),
    /// The handshake was over.
    #[error("it sent a second handshake")]
    RepeatedHandshake,
    /// The node made another link.
    #[error("the peer has made a new link")]
    Replaced,
    /// The handshake took too long.
    #[error("the handshake was not complete after {} ms", .0.as_millis())]
    HandshakeTimeout(Duration),
    /// It takes nothing of its backlog.
    #[error("it has read nothing for {} s, although data wait for it", .0.as_secs_f64())]
    Slow(Duration),
    /// All peers that are no nodes hold too many bytes, and this one the most.
    #[error(
        "more than {0} bytes wait for clients and observers together, and most of them for this one"
    )]
    TooManyForeignBytes(usize),
    /// Its owner has as many of something as its quota allows.
    #[error("your quota of {what} is full: {owner} has {own}, and may have as many as are free")]
    QuotaFull {
        /// Of what.
        what: &'static str,
        /// Whose.
        owner: Owner,
        /// How much that is.
        own: usize,
    },
    /// It is not the node that is meant, or the peer is none of this network.
    #[error("{meant} was meant, and this is {found}")]
    Mistaken {
        /// Which.
        meant: Meant,
        /// Which it is.
        found: Meant,
    },
    /// The node has as many clients as it may.
    #[error("the gateway has {0} clients, the most that it accepts")]
    TooManyClients(usize),
    /// The node has as many observers as it may.
    #[error("the node has {0} observers, the most that it accepts")]
    TooManyObservers(usize),
    /// The network has a secret, and the peer proves nothing.
    #[error(
        "the network has a secret, and the end that connects has not proved that it has the {0} \
         key: give it the secret's file, or one with its keys"
    )]
    NoProof(Right),
    /// The peer has another secret.
    #[error("the {0} key of the end that connects is not the network's: both need the same secret")]
    WrongProof(Right),
    /// The peer requires a proof, and this node has no secret.
    #[error(
        "the peer's network has a secret and this node's has none: add `secret = \"FILE\"` to \
         its network file"
    )]
    SecretNeeded,
    /// The peer, to which this node connected, does not prove that it has the secret.
    #[error("the peer does not prove that it has the network's secret")]
    Unproven,
    /// There are no random numbers for a handshake.
    #[error(transparent)]
    Random(#[from] RandomError),
    /// A client sent a request of a session that is not its own.
    #[error(
        "session {0} does not belong to this link: a client says hello for each of its sessions"
    )]
    ForeignSession(UserId),
    /// The network has firms, and none of them has the session.
    #[error(
        "session {0} belongs to no firm of this network: `nearmetal exchange firms list` shows the \
         sessions that may connect"
    )]
    NoFirm(UserId),
    /// No client may have the session of the exchange itself.
    #[error("session {DESK} is the exchange's own, which no client may have")]
    OwnSession,
    /// A session exceeds a limit of the link that has said hello for it.
    #[error("session {session} cannot be added to this link: {reason}")]
    SessionNotAdded {
        /// Which one.
        session: UserId,
        /// The limit.
        reason: RefusalReason,
    },
    /// A client asks for the events of more sessions and instruments than its link may hold.
    #[error("it sent too many resend requests: {0}")]
    TooManyResendRequests(RefusalReason),
    /// A client comes to a gateway that is to carry nothing.
    #[error("gateway {0} is drained and takes no more sessions: connect to another gateway")]
    Drained(u16),
    /// A session logs on with wishes that cannot be met.
    #[error("session {session} cannot log on like this: {fault}")]
    Logon {
        /// Which one.
        session: UserId,
        /// Why, and what would be right.
        fault: String,
    },
    /// Its heartbeats have ended.
    #[error("{SILENCE} came for {} s: one is due each {} s", .0.as_secs_f64(), .1.as_secs_f64())]
    Silent(Duration, Duration),
    /// The peer closes the link; why, in its words.
    #[error("it refuses this node: {0}")]
    Refused(String),
}

impl PeerError {
    /// Whether a link ends like this in ordinary use.
    pub fn is_ordinary(&self) -> bool {
        matches!(self, PeerError::Link(LinkError::Closed | LinkError::Io(_)) | PeerError::Io(_))
    }

    /// Whether the peer can be notified why its link is closed.
    pub fn is_for_peer(&self) -> bool {
        match self {
            PeerError::Link(error) => error.is_other_version(),
            // A frame may have been cut off.
            PeerError::TooManyForeignBytes(_) => false,
            PeerError::QuotaFull { what, .. } => *what != QUOTA_BYTES,
            PeerError::Io(_) | PeerError::Refused(_) => false,
            _ => true,
        }
    }

    /// Whether the same would happen again at once.
    pub fn is_lasting(&self) -> bool {
        match self {
            PeerError::Link(error) => error.is_other_version(),
            PeerError::Refused(_)
            | PeerError::SecretNeeded
            | PeerError::Unproven
            | PeerError::Mistaken { .. }
            | PeerError::OtherFormat { .. }
            | PeerError::Incompatible { .. } => true,
            _ => false,
        }
    }

    /// The reason under which warnings are limited.
    pub fn reason(&self) -> &'static str {
        match self {
            PeerError::Link(LinkError::Closed) => "closed",
            PeerError::Link(LinkError::Io(_)) | PeerError::Io(_) => "failed",
            PeerError::Link(LinkError::PeerSilent) => "silent",
            PeerError::Link(LinkError::Decode(_)) => "not a frame",
            PeerError::Link(LinkError::BacklogFull { .. }) => "backlog",
            PeerError::UnexpectedFrame { .. } => "unexpected frame",
            PeerError::Decode { .. } => "content",
            PeerError::OtherFormat { .. } | PeerError::Incompatible { .. } => "other format",
            PeerError::NotLinked(_) => "not linked",
            PeerError::Removed(_) => "removed",
            PeerError::RepeatedHandshake => "second handshake",
            PeerError::Replaced => "replaced",
            PeerError::HandshakeTimeout(_) => "handshake timeout",
            PeerError::Slow(_) => "slow",
            PeerError::TooManyForeignBytes(_) => "bytes of all",
            PeerError::QuotaFull { what, .. } => what,
            PeerError::Mistaken { .. } => "mistaken",
            PeerError::TooManyClients(_) => "clients",
            PeerError::NoFirm(_) => "no firm",
            PeerError::OwnSession => "own session",
            PeerError::TooManyObservers(_) => "observers",
            PeerError::NoProof(_) => "no proof",
            PeerError::WrongProof(_) => "wrong proof",
            PeerError::SecretNeeded => "secret needed",
            PeerError::Unproven => "unproven",
            PeerError::Random(_) => "random numbers",
            PeerError::ForeignSession(_) => "foreign session",
            PeerError::SessionNotAdded { .. } => "session not added",
            PeerError::TooManyResendRequests(_) => "resend requests",
            PeerError::Drained(_) => "drained",
            PeerError::Logon { .. } => "logon",
            PeerError::Silent(..) => "heartbeats",
            PeerError::Refused(_) => "refused by peer",
        }
    }

    /// An error about what a peer sent.
    pub fn decode(peer: Peer, kind: Kind) -> impl Fn(DecodeError) -> PeerError {
        move |source| PeerError::Decode { peer, kind, source }
    }
}
