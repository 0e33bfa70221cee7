//! Connections between replicas: a frame with a request, a frame with its answer, one request at a
//! time. A frame is written at once and read from a buffer; both buffers are kept.

use std::io;
use std::ops::Range;

use nm_auth::Key;
use nm_codec::{DecodeError, Field, Put, crc32c_append};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::address::Address;
use crate::encode::Encode;
use crate::env::Env;
use crate::group::{Group, Settings};
use crate::handshake;
use crate::hello::{self, Identity};
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
    /// Of everything before and behind it; it begins with the hellos of the connection.
    pub const CHECKSUM: Field<u32> = Field::after("checksum", &GROUP);

    pub const BYTES: usize = CHECKSUM.end();
    const _: () = assert!(BYTES == 17);
}

/// Version of the frames; another one is refused. It rises with each change of them: see the test
/// `a_change_of_frames_is_a_change_of_their_version`. The first versions had no number, and a kind
/// of frame in its place, which is always less than 128.
pub(crate) const VERSION: u8 = 129;

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
    /// What checksums begin with.
    pub seed: u32,
}

impl Connection {
    /// A connection over a stream.
    pub fn new(stream: Box<dyn ByteStream>) -> Connection {
        Connection { stream, input: vec![], consumed: 0, output: vec![], seed: 0 }
    }

    /// The hello and handshake of a connection that was accepted, by who `own` says.
    ///
    /// # Errors
    /// The system's error, or if the other end means somebody else, does not have the key or sends
    /// nothing.
    pub async fn authenticate(
        &mut self,
        key: Option<&Key>,
        own: impl FnOnce(&Identity) -> Identity,
    ) -> io::Result<()> {
        let introduced = timeout(handshake::LIMIT, hello::accept(&mut self.stream, own)).await;
        self.seed = introduced.unwrap_or_else(|_| Err(handshake::late()))?;
        match key {
            Some(key) => handshake::accept(&mut self.stream, key, self.seed).await,
            None => Ok(()),
        }
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
        let checksum = checksum(self.seed, &self.output);
        header::CHECKSUM.set(&mut self.output, crc32c_append(checksum, attachment));
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
        let frame = &self.input[body.start - header::BYTES..body.end];
        if checksum(self.seed, frame) != header::CHECKSUM.get(frame) {
            return Err(invalid("its checksum is wrong"));
        }
        let head = &frame[..header::BYTES];
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

/// The checksum of a frame.
fn checksum(seed: u32, frame: &[u8]) -> u32 {
    let head = crc32c_append(seed, &frame[..header::GROUP.end()]);
    crc32c_append(head, &frame[header::BYTES..])
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
    /// Number of the replica that asks.
    from: u8,
    /// The other one. Its incarnation is that of the last connection, or zero.
    meant: Identity,
    key: Option<Key>,
    connection: Option<Connection>,
}

impl Peer {
    /// The member of a group at a position, for the one at the group's own position.
    pub fn new(env: Env, group: &Group, position: usize) -> Peer {
        let nowhere = || Address::Unix("/nowhere".into());
        let member = group.members.get(position);
        let Settings { cluster, key, content, .. } = group.settings;
        Peer {
            env,
            address: member.map_or_else(nowhere, |member| member.address.clone()),
            from: group.own as u8 + 1,
            meant: Identity {
                cluster,
                incarnation: 0,
                group: group.id,
                member: position as u8 + 1,
                content: content.digest(),
            },
            key,
            connection: None,
        }
    }

    /// Connects: both ends say who they are, and with a key, prove that they have it.
    async fn open(&mut self) -> io::Result<Connection> {
        let mut connection = Connection::new(self.env.connect(&self.address).await?);
        let introduced = hello::connect(&mut connection.stream, &self.meant);
        let introduced = timeout(handshake::LIMIT, introduced).await;
        let (is, seed) = introduced.unwrap_or_else(|_| Err(handshake::late()))?;
        let meant = self.meant;
        // If it was restarted, the next connection is to the new incarnation.
        self.meant.incarnation = 0;
        is.check(&meant)?;
        (self.meant, connection.seed) = (is, seed);
        if let Some(key) = &self.key {
            handshake::connect(&mut connection.stream, key, seed).await?;
        }
        Ok(connection)
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
            None => {
                let before = self.meant.incarnation;
                match self.open().await {
                    // Nothing of the connection before is continued.
                    Err(_) if before > 0 && self.meant.incarnation == 0 => self.open().await?,
                    opened => opened?,
                }
            }
        };
        let head = (R::KIND, self.from, self.meant.group);
        connection.send(head, |out| request.encode(out), request.attachment()).await?;
        Ok(connection)
    }
}
