//! Connections between replicas: a frame with a request, a frame with its answer, one request at a
//! time. A frame is written at once and read from a buffer; both buffers are kept.

use std::io;
use std::ops::Range;

use nm_auth::Key;
use nm_codec::{DecodeError, Field, Put};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::address::Address;
use crate::encode::Encode;
use crate::env::Env;
use crate::handshake;
use crate::message::{FrameKind, Request};
use crate::sockets::ByteStream;

/// The header of a frame; the body follows.
mod header {
    use super::Field;

    /// Bytes behind this field.
    pub const LENGTH: Field<u64> = Field::first("length");
    /// [`super::VERSION`].
    pub const VERSION: Field<u8> = Field::after("version", &LENGTH);
    /// A [`super::FrameKind`].
    pub const KIND: Field<u8> = Field::after("kind", &VERSION);
    /// Number of the replica that sends a request.
    pub const FROM: Field<u8> = Field::after("from", &KIND);
    /// The group's number.
    pub const GROUP: Field<u16> = Field::after("group", &FROM);

    pub const BYTES: usize = GROUP.end();
    const _: () = assert!(BYTES == 13);
}

/// Version of the frames; another one is refused. It rises with each change of them: see the test
/// `a_change_of_frames_is_a_change_of_their_version`. The first versions had no number, and a kind
/// of frame in its place, which is always less than 128.
pub(crate) const VERSION: u8 = 128;

/// Maximum size of a frame without a snapshot, and of one with it.
const FRAME_BYTES_MAX: u64 = 256 << 20;
const SNAPSHOT_BYTES_MAX: u64 = 64 << 30;

/// Minimum free space for a read; a buffer that grew much larger, for a snapshot, is freed.
const ROOM_BYTES: usize = 64 << 10;
const KEPT_BYTES_MAX: usize = 4 << 20;

/// A frame that arrived.
#[derive(Debug)]
pub struct Frame<'a> {
    /// What it is.
    pub kind: FrameKind,
    /// Number of the replica that sent it.
    pub from: u8,
    /// The group.
    pub group: u16,
    /// The body.
    pub body: &'a [u8],
}

/// A connection to another replica.
pub struct Connection {
    stream: Box<dyn ByteStream>,
    /// Bytes that arrived, and how many of them were consumed.
    input: Vec<u8>,
    consumed: usize,
    output: Vec<u8>,
}

impl Connection {
    /// A connection over a stream.
    pub fn new(stream: Box<dyn ByteStream>) -> Connection {
        Connection { stream, input: vec![], consumed: 0, output: vec![] }
    }

    /// Connects; with a key, both ends prove that they have it.
    async fn open(env: &Env, address: &Address, key: Option<&Key>) -> io::Result<Connection> {
        let mut connection = Connection::new(env.connect(address).await?);
        if let Some(key) = key {
            handshake::connect(&mut connection.stream, key).await?;
        }
        Ok(connection)
    }

    /// The handshake of a connection that was accepted. Without a key there is none, but a frame
    /// must begin in the same time.
    ///
    /// # Errors
    /// The system's error, or if the other end does not have the key or sends nothing.
    pub async fn authenticate(&mut self, key: Option<&Key>) -> io::Result<()> {
        match key {
            Some(key) => handshake::accept(&mut self.stream, key).await,
            None => {
                let begun = tokio::time::timeout(handshake::LIMIT, self.begin()).await;
                begun.unwrap_or_else(|_| Err(handshake::late()))
            }
        }
    }

    /// Waits for the beginning of a first frame.
    async fn begin(&mut self) -> io::Result<()> {
        while self.input.len() < header::KIND.end() {
            self.input.reserve(ROOM_BYTES);
            if self.stream.read_buf(&mut self.input).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        self.complete_body().map(drop)
    }

    /// Sends a frame whose body is what `encode` appends, followed by the attachment.
    ///
    /// # Errors
    /// The system's error.
    pub async fn send(
        &mut self,
        (kind, from, group): (FrameKind, u8, u16),
        encode: impl FnOnce(&mut Vec<u8>),
        attachment: &[u8],
    ) -> io::Result<()> {
        self.output.clear();
        self.output.put(&[0; header::BYTES]);
        encode(&mut self.output);
        let length = self.output.len() - header::LENGTH.end() + attachment.len();
        header::LENGTH.set(&mut self.output, length as u64);
        header::VERSION.set(&mut self.output, VERSION);
        header::KIND.set(&mut self.output, kind.code());
        header::FROM.set(&mut self.output, from);
        header::GROUP.set(&mut self.output, group);
        self.stream.write_all(&self.output).await?;
        if !attachment.is_empty() {
            self.stream.write_all(attachment).await?;
        }
        if self.output.capacity() > KEPT_BYTES_MAX {
            self.output = vec![];
        }
        Ok(())
    }

    /// The next frame.
    ///
    /// # Errors
    /// The system's error, or if the bytes are no frame.
    pub async fn receive(&mut self) -> io::Result<Frame<'_>> {
        if self.consumed == self.input.len() {
            self.input.clear();
            self.consumed = 0;
            if self.input.capacity() > KEPT_BYTES_MAX {
                self.input = vec![];
            }
        }
        let body = loop {
            if let Some(body) = self.complete_body()? {
                break body;
            }
            if self.consumed > 0 {
                self.input.drain(..self.consumed);
                self.consumed = 0;
            }
            // Grows as bytes arrive: a length alone takes no memory.
            self.input.reserve(ROOM_BYTES);
            if self.stream.read_buf(&mut self.input).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        };
        let head = &self.input[body.start - header::BYTES..body.start];
        let kind = kind_of(header::KIND.get(head))?;
        let (from, group) = (header::FROM.get(head), header::GROUP.get(head));
        self.consumed = body.end;
        debug_assert!(self.consumed <= self.input.len());
        Ok(Frame { kind, from, group, body: &self.input[body] })
    }

    /// Where the body of the next frame is, if all of it has arrived.
    fn complete_body(&self) -> io::Result<Option<Range<usize>>> {
        let input = &self.input[self.consumed..];
        if input.len() < header::KIND.end() {
            return Ok(None);
        }
        let version = header::VERSION.get(input);
        if version != VERSION {
            let error = DecodeError::other_version(header::VERSION.name, version, VERSION);
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
        let kind = kind_of(header::KIND.get(input))?;
        let max = match kind {
            FrameKind::InstallSnapshot => SNAPSHOT_BYTES_MAX,
            FrameKind::Append
            | FrameKind::Vote
            | FrameKind::Status
            | FrameKind::Campaign
            | FrameKind::Answer
            | FrameKind::Unavailable
            | FrameKind::Commit
            | FrameKind::Join
            | FrameKind::CheckMembership => FRAME_BYTES_MAX,
        };
        let in_header = (header::BYTES - header::LENGTH.end()) as u64;
        let length = header::LENGTH
            .get(input)
            .checked_sub(in_header)
            .filter(|length| *length <= max)
            .ok_or_else(|| invalid("its length is not possible"))?;
        let start = self.consumed + header::BYTES;
        let end = start + length as usize;
        Ok((self.input.len() >= end).then_some(start..end))
    }
}

fn kind_of(code: u8) -> io::Result<FrameKind> {
    FrameKind::from_code(header::KIND.name, code)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("no frame of a replica: {why}"))
}

/// Another replica, over a connection that is made when it is needed.
pub struct Peer {
    env: Env,
    address: Address,
    from: u8,
    group: u16,
    key: Option<Key>,
    connection: Option<Connection>,
}

impl Peer {
    /// The replica at `address`, for replica `from` of a group whose replicas have this key.
    pub fn new(env: Env, address: Address, (from, group): (u8, u16), key: Option<Key>) -> Peer {
        Peer { env, address, from, group, key, connection: None }
    }

    /// Whether there is a connection.
    pub fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// Sends a request and waits for its answer. A request that is cancelled takes its connection
    /// with it, so that no answer is taken for that of another request.
    ///
    /// # Errors
    /// If the other replica cannot be reached, cannot answer now, or sends no valid answer.
    pub async fn request<R: Request>(&mut self, request: &R) -> io::Result<R::Answer> {
        let mut connection = self.send(request).await?;
        let answer = connection.receive().await?;
        let answer = match answer.kind {
            FrameKind::Answer => {
                R::Answer::from_bytes(answer.body, "answer").map_err(io::Error::other)
            }
            _ => Err(io::Error::other("the other replica cannot answer now")),
        };
        self.connection = Some(connection);
        answer
    }

    /// Sends a request that has no answer.
    ///
    /// # Errors
    /// If the other replica cannot be reached.
    pub async fn notify<R: Request<Answer = ()>>(&mut self, request: &R) -> io::Result<()> {
        self.connection = Some(self.send(request).await?);
        Ok(())
    }

    async fn send<R: Request>(&mut self, request: &R) -> io::Result<Connection> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::open(&self.env, &self.address, self.key.as_ref()).await?,
        };
        let head = (R::KIND, self.from, self.group);
        connection.send(head, |out| request.encode(out), request.attachment()).await?;
        Ok(connection)
    }
}
