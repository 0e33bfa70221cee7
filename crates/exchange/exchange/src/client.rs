//! The handshake of peers that are no nodes: clients, observers and operators.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use nm_auth::{Credentials, End, Key, Nonce, Nonces, RandomError, Right};
use nm_codec::DecodeError;
use nm_sys::clock::Deadline;
use nm_wire::{Challenge, Close, Evidence, Format, Hello, Kind, Welcome, Who};
use thiserror::Error;

use crate::link::{Address, Link, LinkError, Stream};
use crate::network::{Network, NodeId};

/// Longest wait for one frame before the time limit is checked.
const WAIT: Duration = Duration::from_millis(50);

/// Why a node cannot be connected to, or does not answer.
#[derive(Debug, Error)]
pub enum ClientError {
    /// It cannot be connected to, or waited for.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The link failed.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// What it answered cannot be decoded.
    #[error("its answer cannot be read: {0}")]
    Decode(#[from] DecodeError),
    /// It answered something else.
    #[error("it answered something else")]
    Unexpected,
    /// It takes no more sessions.
    #[error("the gateway is drained: connect to another one")]
    GoingAway,
    /// It closes the link; why, in its words.
    #[error("it refuses: {0}")]
    Refused(String),
    /// It did not answer in time.
    #[error("no answer within {} ms", .0.as_millis())]
    Timeout(Duration),
    /// It asks for no proof, although this end has credentials.
    #[error("it asks for no proof within {} ms: its network has no secret", .0.as_millis())]
    NoChallenge(Duration),
    /// The credentials lack a key.
    #[error("the credentials have no {0} key")]
    NoKey(Right),
    /// It has another secret.
    #[error("it does not prove that it has the network's secret")]
    Unproven,
    /// Another node answered than is meant.
    #[error("{meant} was meant, and {found} answered")]
    Mistaken {
        /// Which.
        meant: Meant,
        /// Which answered.
        found: Meant,
    },
    /// There are no random numbers for the handshake.
    #[error(transparent)]
    Random(#[from] RandomError),
}

impl ClientError {
    /// Whether the same would happen again.
    pub fn is_lasting(&self) -> bool {
        use ClientError::{Link, Mistaken, NoChallenge, NoKey, Refused, Unproven};
        match self {
            Link(error) => error.is_other_version(),
            Refused(_) | Mistaken { .. } | NoChallenge(_) | NoKey(_) | Unproven => true,
            _ => false,
        }
    }
}

/// The node that a link is meant for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Meant {
    /// Number of its network; 0 for any.
    pub network: u64,
    /// Which node; none for any.
    pub node: Option<NodeId>,
}

impl Meant {
    /// A node of a network.
    pub fn of(network: &Network, node: NodeId) -> Meant {
        Meant { network: network.cluster, node: Some(node) }
    }

    /// Whether this one is meant.
    pub fn is_met_by(self, found: Meant) -> bool {
        (self.network == 0 || self.network == found.network)
            && (self.node.is_none() || self.node == found.node)
    }
}

impl fmt::Display for Meant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.node, self.network) {
            (Some(node), 0) => write!(f, "{node} of a network without a number"),
            (Some(node), network) => write!(f, "{node} of network {network}"),
            (None, 0) => f.write_str("any node"),
            (None, network) => write!(f, "a node of network {network}"),
        }
    }
}

/// Connects to a node and says these hellos. With credentials both ends have proved who they are
/// afterwards; frames that came during the handshake, such as broadcasts, are dropped. Without
/// them the hellos are the first frames in the link's output.
///
/// # Errors
/// If the handshake is not complete within `limit`.
pub fn connect(
    address: &Address,
    hellos: &[Who],
    credentials: Option<&Credentials>,
    limit: Duration,
) -> Result<Link, ClientError> {
    connect_to((address, Meant::default()), hellos, credentials, limit)
}

/// As [`connect`], to the node that is meant: another one refuses, or is not believed.
///
/// # Errors
/// As [`connect`].
pub fn connect_to(
    (address, meant): (&Address, Meant),
    hellos: &[Who],
    credentials: Option<&Credentials>,
    limit: Duration,
) -> Result<Link, ClientError> {
    let deadline = Deadline::after(limit);
    let mut link = Link::new(Stream::connect(address, limit)?)?;
    introduce(&mut link.output);
    let Some(credentials) = credentials else {
        hellos.iter().for_each(|who| say_hello_to(meant, *who, None, &mut link.output));
        return Ok(link);
    };
    let keys: Vec<Key> = hellos
        .iter()
        .map(|hello| credentials.key(hello.right()).ok_or(ClientError::NoKey(hello.right())))
        .collect::<Result<_, _>>()?;
    let challenge = receive(&mut link, Kind::Challenge, deadline).map_err(|error| {
        if let ClientError::Timeout(_) = error { ClientError::NoChallenge(limit) } else { error }
    })?;
    let Challenge { nonce: acceptor } = nm_wire::decode(&challenge)?;
    let connector = Nonce::random()?;
    let nonces = Nonces { acceptor, connector };
    for (hello, key) in hellos.iter().zip(&keys) {
        let proof = key.prove(End::Connector, &nonces, &hello.claim());
        let evidence = Some(Evidence { nonce: connector, proof });
        say_hello_to(meant, *hello, evidence, &mut link.output);
    }
    for (hello, key) in hellos.iter().zip(&keys) {
        let welcome: Welcome = nm_wire::decode(&receive(&mut link, Kind::Welcome, deadline)?)?;
        let proof = welcome.proof.ok_or(ClientError::Unproven)?;
        if !key.verify(End::Acceptor, &nonces, &welcome.claim(hello), &proof) {
            return Err(ClientError::Unproven);
        }
        let found = Meant { network: welcome.network, node: Some(welcome.node) };
        if !meant.is_met_by(found) {
            return Err(ClientError::Mistaken { meant, found });
        }
    }
    Ok(link)
}

/// Appends what this end of a link knows, before its first hello: the other end may be of another
/// version.
pub fn introduce(out: &mut Vec<u8>) {
    nm_wire::write(Format::own(), out);
}

/// Appends the hello of a link to any node of any network.
pub fn say_hello(who: Who, evidence: Option<Evidence>, out: &mut Vec<u8>) {
    say_hello_to(Meant::default(), who, evidence, out);
}

/// Appends the hello of a link to a node.
pub fn say_hello_to(to: Meant, who: Who, evidence: Option<Evidence>, out: &mut Vec<u8>) {
    let (digest, Meant { network, node }) = (nm_wire::digest(), to);
    nm_wire::write(&Hello { digest, network, who, to: node, evidence }, out);
}

/// Writes the link's backlog and waits for a message of a kind, whose bytes it returns; drops
/// others.
///
/// # Errors
/// If it does not come in time, the node refuses, or it is a gateway that leaves.
pub fn receive(link: &mut Link, kind: Kind, deadline: Deadline) -> Result<Vec<u8>, ClientError> {
    let limit = deadline.remaining();
    loop {
        // What was sent before an end of the link is read all the same: it may say why.
        let flushed = link.flush();
        while let Some(frame) = link.input.next_frame().map_err(LinkError::from)? {
            match frame.kind() {
                known if known == kind => return Ok(frame.shared().message.to_vec()),
                Kind::GoAway => return Err(ClientError::GoingAway),
                Kind::Close => {
                    return Err(ClientError::Refused(frame.read::<Close>()?.printable()));
                }
                _ => {}
            }
        }
        if deadline.passed() {
            return Err(ClientError::Timeout(limit));
        }
        let fd = link.as_fd().as_raw_fd();
        nm_sys::poll::readable(fd, deadline.remaining().min(WAIT))?;
        link.receive()?;
        flushed?;
    }
}
