//! What replicas send each other: a frame with a question, a frame with the answer, one at a time
//! on a connection.
//!
//! ```text
//! 0 length of the rest u64   8 kind u8   9 sender's number u8   10 cell u16   12 body
//! ```

use std::future::Future;
use std::io;
use std::time::Duration;

use openraft::error::{Fatal, RPCError, RaftError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{Backoff, RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::{EmptyNode, OptionalSend, Snapshot, Vote};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use super::Shared;
use super::bytes::Coded;
use super::raft::{NodeId, Types};
use crate::link::Address;

/// Most bytes of a frame that is no snapshot, and of one that is.
const FRAME_BYTES_MAX: u64 = 256 << 20;
const SNAPSHOT_BYTES_MAX: u64 = 64 << 30;

const HEAD_BYTES: usize = 12;

/// How long the whole of a snapshot may take, and how long to wait before trying again.
const SNAPSHOT_LIMIT: Duration = Duration::from_secs(60);
const AGAIN: Duration = Duration::from_millis(20);

/// What is asked, or that it is an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// An [`AppendEntriesRequest`].
    Append = 1,
    /// A [`VoteRequest`].
    Vote = 2,
    /// A snapshot to be installed.
    Install = 3,
    /// How the replica stands: see [`super::birth`].
    Ask = 4,
    /// That it stands for election now, unless it hears from a leader.
    Stand = 5,
    /// The answer.
    Answer = 6,
    /// The replica cannot answer now.
    Unable = 7,
}

impl Kind {
    fn of(code: u8) -> Option<Kind> {
        use Kind::{Answer, Append, Ask, Install, Stand, Unable, Vote};
        [Append, Vote, Install, Ask, Stand, Answer, Unable]
            .into_iter()
            .find(|kind| *kind as u8 == code)
    }
}

/// A frame.
#[derive(Debug)]
pub struct Frame {
    /// What it is.
    pub kind: Kind,
    /// Number of the replica that sent it.
    pub from: u8,
    /// The cell.
    pub cell: u16,
    /// The rest.
    pub body: Vec<u8>,
}

trait Both: AsyncRead + AsyncWrite + Send + Sync + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Sync + Unpin> Both for T {}

/// A connection to another replica.
pub struct Connection(Box<dyn Both>);

impl Connection {
    async fn to(address: &Address) -> io::Result<Connection> {
        Ok(match address {
            Address::Tcp(address) => {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                Connection(Box::new(stream))
            }
            Address::Unix(path) => Connection(Box::new(UnixStream::connect(path).await?)),
            Address::Shm(_) => return Err(io::ErrorKind::Unsupported.into()),
        })
    }

    /// Sends a frame whose body is in two parts.
    pub async fn send(&mut self, frame: &Frame, rest: &[u8]) -> io::Result<()> {
        let length = (HEAD_BYTES - 8 + frame.body.len() + rest.len()) as u64;
        let mut bytes = Vec::with_capacity(HEAD_BYTES + frame.body.len());
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&[frame.kind as u8, frame.from]);
        bytes.extend_from_slice(&frame.cell.to_le_bytes());
        bytes.extend_from_slice(&frame.body);
        self.0.write_all(&bytes).await?;
        self.0.write_all(rest).await
    }

    /// The next frame.
    pub async fn receive(&mut self) -> io::Result<Frame> {
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, "this is no frame of a replica");
        let mut head = [0; HEAD_BYTES];
        self.0.read_exact(&mut head).await?;
        let (length, rest) = head.split_first_chunk().ok_or_else(wrong)?;
        let kind = Kind::of(rest[0]).ok_or_else(wrong)?;
        let max = if kind == Kind::Install { SNAPSHOT_BYTES_MAX } else { FRAME_BYTES_MAX };
        let length = u64::from_le_bytes(*length)
            .checked_sub(HEAD_BYTES as u64 - 8)
            .filter(|length| *length <= max)
            .ok_or_else(wrong)?;
        let mut body = vec![];
        // Grows as bytes come: a length alone takes no memory.
        let read = (&mut self.0).take(length).read_to_end(&mut body).await?;
        if read as u64 != length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Frame { kind, from: rest[1], cell: u16::from_le_bytes([rest[2], rest[3]]), body })
    }
}

/// Where the other replicas come in.
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// A Unix socket.
    Unix(UnixListener),
}

impl Listener {
    /// Takes over a socket that listens already.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(listener: crate::link::Listener) -> io::Result<Listener> {
        Ok(match listener {
            crate::link::Listener::Tcp(listener) => Listener::Tcp(TcpListener::from_std(listener)?),
            crate::link::Listener::Unix(listener) => {
                Listener::Unix(UnixListener::from_std(listener)?)
            }
            crate::link::Listener::Shm(_) => return Err(io::ErrorKind::Unsupported.into()),
        })
    }

    /// The next connection.
    ///
    /// # Errors
    /// What the system says.
    pub async fn accept(&self) -> io::Result<Connection> {
        Ok(match self {
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Connection(Box::new(stream))
            }
            Listener::Unix(listener) => Connection(Box::new(listener.accept().await?.0)),
        })
    }
}

/// Asks one other replica, over a connection that is made when it is needed.
pub struct Peer {
    address: Address,
    from: u8,
    cell: u16,
    connection: Option<Connection>,
}

impl Peer {
    /// Asks the replica at `address`, as replica `from` of a cell.
    pub fn new(address: Address, from: u8, cell: u16) -> Peer {
        Peer { address, from, cell, connection: None }
    }

    /// The answer. A question that is given up half way takes its connection with it, so that no
    /// answer is taken for that of another question.
    ///
    /// # Errors
    /// If the other replica cannot be reached or cannot answer now.
    pub async fn ask(&mut self, kind: Kind, body: Vec<u8>, rest: &[u8]) -> io::Result<Vec<u8>> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::to(&self.address).await?,
        };
        let frame = Frame { kind, from: self.from, cell: self.cell, body };
        connection.send(&frame, rest).await?;
        let answer = connection.receive().await?;
        self.connection = Some(connection);
        match answer.kind {
            Kind::Answer => Ok(answer.body),
            _ => Err(io::Error::other("the other replica cannot answer now")),
        }
    }

    async fn call<T: Coded>(&mut self, kind: Kind, body: Vec<u8>) -> Result<T, Unreachable> {
        let answer = self.ask(kind, body, &[]).await.map_err(|error| Unreachable::new(&error))?;
        T::whole(&answer).map_err(|error| Unreachable::new(&error))
    }
}

/// Makes [`Peer`]s for openraft.
pub struct Peers {
    /// Addresses of the members, in order.
    pub addresses: Vec<Address>,
    /// This replica's number.
    pub from: u8,
    /// The cell.
    pub cell: u16,
}

impl RaftNetworkFactory<Types> for Peers {
    type Network = Peer;

    async fn new_client(&mut self, target: NodeId, _: &EmptyNode) -> Peer {
        let position = usize::try_from(target).unwrap_or(0).saturating_sub(1);
        let nobody = || Address::Unix("/nobody".into());
        let address = self.addresses.get(position).cloned().unwrap_or_else(nobody);
        Peer::new(address, self.from, self.cell)
    }
}

type Failed = RPCError<NodeId, EmptyNode, RaftError<NodeId>>;

impl RaftNetwork<Types> for Peer {
    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<NodeId>, Failed> {
        Ok(self.call(Kind::Append, request.bytes()).await?)
    }

    async fn vote(
        &mut self,
        request: VoteRequest<NodeId>,
        _: RPCOption,
    ) -> Result<VoteResponse<NodeId>, Failed> {
        Ok(self.call(Kind::Vote, request.bytes()).await?)
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote<NodeId>,
        snapshot: Snapshot<Types>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _: RPCOption,
    ) -> Result<SnapshotResponse<NodeId>, StreamingError<Types, Fatal<NodeId>>> {
        let mut head = vote.bytes();
        snapshot.meta.put(&mut head);
        let state: Shared = *snapshot.snapshot;
        let asked = self.ask(Kind::Install, head, &state);
        tokio::select! {
            closed = cancel => Err(closed.into()),
            answer = tokio::time::timeout(SNAPSHOT_LIMIT, asked) => {
                let late = |_| io::Error::from(io::ErrorKind::TimedOut);
                let answer = answer.map_err(late).and_then(|answer| answer);
                let vote = answer.and_then(|answer| Vote::whole(&answer).map_err(io::Error::other));
                match vote {
                    Ok(vote) => Ok(SnapshotResponse::new(vote)),
                    Err(error) => Err(Unreachable::new(&error).into()),
                }
            }
        }
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(AGAIN))
    }
}
