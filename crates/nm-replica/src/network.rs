//! What replicas send each other: a frame with a question, a frame with the answer, one at a time
//! on a connection. A frame is written at once and read from a buffer; both buffers stay.
//!
//! ```text
//! 0 length of the rest u64   8 kind u8   9 sender's number u8   10 cell u16   12 body
//! ```

use std::future::Future;
use std::io;
use std::ops::Range;
use std::time::Duration;

use openraft::error::{Fatal, RPCError, RaftError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{Backoff, RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::{EmptyNode, LogId, OptionalSend, Snapshot, Vote};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use super::Shared;
use super::address::{Address, Socket};
use super::bytes::Coded;
use super::raft::{NodeId, Types};
use super::store::Store;

/// Most bytes of a frame that is no snapshot, and of one that is.
const FRAME_BYTES_MAX: u64 = 256 << 20;
const SNAPSHOT_BYTES_MAX: u64 = 64 << 30;

const HEAD_BYTES: usize = 12;

/// Room for what comes; a buffer that grew much larger, for a snapshot, is given back.
const ROOM_BYTES: usize = 64 << 10;
const KEPT_BYTES_MAX: usize = 4 << 20;

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
    /// An [`AppendEntriesRequest`] that only says what is committed: nobody waits for an answer,
    /// and there is none.
    Commit = 8,
}

impl Kind {
    fn of(code: u8) -> Option<Kind> {
        use Kind::{Answer, Append, Ask, Commit, Install, Stand, Unable, Vote};
        [Append, Vote, Install, Ask, Stand, Answer, Unable, Commit]
            .into_iter()
            .find(|kind| *kind as u8 == code)
    }
}

/// A frame that came.
#[derive(Debug)]
pub struct Frame<'a> {
    /// What it is.
    pub kind: Kind,
    /// Number of the replica that sent it.
    pub from: u8,
    /// The cell.
    pub cell: u16,
    /// The rest.
    pub body: &'a [u8],
}

trait Both: AsyncRead + AsyncWrite + Send + Sync + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Sync + Unpin> Both for T {}

/// A connection to another replica.
pub struct Connection {
    stream: Box<dyn Both>,
    /// What came, and how much of it was taken.
    input: Vec<u8>,
    taken: usize,
    output: Vec<u8>,
}

impl Connection {
    fn of(stream: impl Both + 'static) -> Connection {
        Connection { stream: Box::new(stream), input: vec![], taken: 0, output: vec![] }
    }

    async fn to(address: &Address) -> io::Result<Connection> {
        Ok(match address {
            Address::Tcp(address) => {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                Connection::of(stream)
            }
            Address::Unix(path) => Connection::of(UnixStream::connect(path).await?),
        })
    }

    /// Sends a frame whose body is what `put` appends, and the rest.
    ///
    /// # Errors
    /// What the system says.
    pub async fn send(
        &mut self,
        (kind, from, cell): (Kind, u8, u16),
        put: impl FnOnce(&mut Vec<u8>),
        rest: &[u8],
    ) -> io::Result<()> {
        self.output.clear();
        self.output.extend_from_slice(&[0; 8]);
        self.output.extend_from_slice(&[kind as u8, from]);
        self.output.extend_from_slice(&cell.to_le_bytes());
        put(&mut self.output);
        let length = (self.output.len() - 8 + rest.len()) as u64;
        self.output[..8].copy_from_slice(&length.to_le_bytes());
        self.stream.write_all(&self.output).await?;
        if !rest.is_empty() {
            self.stream.write_all(rest).await?;
        }
        if self.output.capacity() > KEPT_BYTES_MAX {
            self.output = vec![];
        }
        Ok(())
    }

    /// The next frame.
    ///
    /// # Errors
    /// What the system says, or if it is none.
    pub async fn receive(&mut self) -> io::Result<Frame<'_>> {
        if self.taken == self.input.len() {
            self.input.clear();
            self.taken = 0;
            if self.input.capacity() > KEPT_BYTES_MAX {
                self.input = vec![];
            }
        }
        let body = loop {
            if let Some(body) = self.whole()? {
                break body;
            }
            if self.taken > 0 {
                self.input.drain(..self.taken);
                self.taken = 0;
            }
            // Grows as bytes come: a length alone takes no memory.
            self.input.reserve(ROOM_BYTES);
            if self.stream.read_buf(&mut self.input).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        };
        let head = &self.input[body.start - HEAD_BYTES..body.start];
        let kind = Kind::of(head[8]).ok_or_else(wrong)?;
        self.taken = body.end;
        let cell = u16::from_le_bytes([head[10], head[11]]);
        Ok(Frame { kind, from: head[9], cell, body: &self.input[body] })
    }

    /// Where the body of the next frame lies, if all of it has come.
    fn whole(&self) -> io::Result<Option<Range<usize>>> {
        let input = &self.input[self.taken..];
        let (Some(length), Some(kind)) = (input.first_chunk(), input.get(8)) else {
            return Ok(None);
        };
        let kind = Kind::of(*kind).ok_or_else(wrong)?;
        let max = if kind == Kind::Install { SNAPSHOT_BYTES_MAX } else { FRAME_BYTES_MAX };
        let length = u64::from_le_bytes(*length)
            .checked_sub(HEAD_BYTES as u64 - 8)
            .filter(|length| *length <= max)
            .ok_or_else(wrong)?;
        let start = self.taken + HEAD_BYTES;
        let end = start + length as usize;
        Ok((self.input.len() >= end).then_some(start..end))
    }
}

fn wrong() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "this is no frame of a replica")
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
    pub fn new(listener: Socket) -> io::Result<Listener> {
        Ok(match listener {
            Socket::Tcp(listener) => Listener::Tcp(TcpListener::from_std(listener)?),
            Socket::Unix(listener) => Listener::Unix(UnixListener::from_std(listener)?),
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
                Connection::of(stream)
            }
            Listener::Unix(listener) => Connection::of(listener.accept().await?.0),
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

    /// What `read` makes of the answer. A question that is given up half way takes its connection
    /// with it, so that no answer is taken for that of another question.
    ///
    /// # Errors
    /// If the other replica cannot be reached, cannot answer now, or answers nonsense.
    pub async fn ask<T: Coded>(
        &mut self,
        kind: Kind,
        put: impl FnOnce(&mut Vec<u8>),
        rest: &[u8],
    ) -> io::Result<T> {
        let mut connection = self.connected().await?;
        connection.send((kind, self.from, self.cell), put, rest).await?;
        let answer = connection.receive().await?;
        let answer = match answer.kind {
            Kind::Answer => T::whole(answer.body).map_err(io::Error::other),
            _ => Err(io::Error::other("the other replica cannot answer now")),
        };
        self.connection = Some(connection);
        answer
    }

    /// Says something that has no answer.
    ///
    /// # Errors
    /// If the other replica cannot be reached.
    async fn say(&mut self, kind: Kind, put: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        let mut connection = self.connected().await?;
        connection.send((kind, self.from, self.cell), put, &[]).await?;
        self.connection = Some(connection);
        Ok(())
    }

    async fn connected(&mut self) -> io::Result<Connection> {
        match self.connection.take() {
            Some(connection) => Ok(connection),
            None => Connection::to(&self.address).await,
        }
    }
}

/// Makes [`Replicator`]s for openraft.
pub struct Peers {
    /// Addresses of the members, in order.
    pub addresses: Vec<Address>,
    /// This replica's number.
    pub from: u8,
    /// The cell.
    pub cell: u16,
    /// This replica's log.
    pub store: Store,
}

impl RaftNetworkFactory<Types> for Peers {
    type Network = Replicator;

    async fn new_client(&mut self, target: NodeId, _: &EmptyNode) -> Replicator {
        let position = usize::try_from(target).unwrap_or(0).saturating_sub(1);
        let nobody = || Address::Unix("/nobody".into());
        let address = self.addresses.get(position).cloned().unwrap_or_else(nobody);
        let peer = Peer::new(address, self.from, self.cell);
        Replicator { peer, target, store: self.store.clone(), committed: None }
    }
}

/// Brings another replica what openraft has for it.
pub struct Replicator {
    peer: Peer,
    target: NodeId,
    store: Store,
    /// What the other one knows to be committed.
    committed: Option<LogId<NodeId>>,
}

impl Replicator {
    async fn append(
        &mut self,
        request: &AppendEntriesRequest<Types>,
    ) -> io::Result<AppendEntriesResponse<NodeId>> {
        if self.peer.connection.is_none() {
            // It may have been started again, without what it had.
            self.committed = None;
            self.store.acks().forget(self.target);
        }
        let is_news = request.leader_commit > self.committed;
        if is_news && request.entries.is_empty() {
            // Whether it arrives shows with the next question; openraft learns nothing from the
            // answer.
            self.peer.say(Kind::Commit, |out| request.put(out)).await?;
            self.committed = request.leader_commit;
            return Ok(AppendEntriesResponse::Success);
        }
        // The entries were written before openraft had them sent.
        let write = self.store.write();
        let answer = self.peer.ask(Kind::Append, |out| request.put(out), &[]).await?;
        self.committed = self.committed.max(request.leader_commit);
        let last = match &answer {
            AppendEntriesResponse::Success => request.entries.last().map(|entry| entry.log_id),
            AppendEntriesResponse::PartialSuccess(last) => *last,
            _ => None,
        };
        if let Some(last) = last {
            let acks = self.store.acks();
            acks.note(request.vote, self.target, last);
            let counted = acks.counted(write, request.vote, last).await;
            counted.map_err(|_| io::Error::other("the own disk is not used any more"))?;
        }
        Ok(answer)
    }
}

type Failed = RPCError<NodeId, EmptyNode, RaftError<NodeId>>;

impl RaftNetwork<Types> for Replicator {
    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<NodeId>, Failed> {
        Ok(self.append(&request).await.map_err(|error| Unreachable::new(&error))?)
    }

    async fn vote(
        &mut self,
        request: VoteRequest<NodeId>,
        _: RPCOption,
    ) -> Result<VoteResponse<NodeId>, Failed> {
        let answer = self.peer.ask(Kind::Vote, |out| request.put(out), &[]).await;
        Ok(answer.map_err(|error| Unreachable::new(&error))?)
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote<NodeId>,
        snapshot: Snapshot<Types>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _: RPCOption,
    ) -> Result<SnapshotResponse<NodeId>, StreamingError<Types, Fatal<NodeId>>> {
        let state: Shared = *snapshot.snapshot;
        let put = |out: &mut Vec<u8>| {
            vote.put(out);
            snapshot.meta.put(out);
        };
        let asked = self.peer.ask::<Vote<NodeId>>(Kind::Install, put, &state);
        tokio::select! {
            closed = cancel => Err(closed.into()),
            answer = tokio::time::timeout(SNAPSHOT_LIMIT, asked) => {
                let late = |_| io::Error::from(io::ErrorKind::TimedOut);
                match answer.map_err(late).and_then(|answer| answer) {
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
