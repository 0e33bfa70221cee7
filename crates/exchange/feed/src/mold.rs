//! Packets of MoldUDP64: messages with consecutive numbers in one datagram, and requests for them.

use thiserror::Error;

/// Bytes before the messages of a packet, and of a request.
pub const HEADER_BYTES: usize = 20;

/// Bytes of a packet that is sent, at most: it fits an Ethernet frame with all headers.
pub const PACKET_BYTES_MAX: usize = 1_400;

/// Number of messages that says that the session has ended.
pub const END_OF_SESSION: u16 = u16::MAX;

/// Bytes before each message: its length.
const LENGTH_BYTES: usize = 2;

/// Name of a session of a feed.
pub type Session = [u8; 10];

/// Why a datagram is no packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Fault {
    /// It is shorter than a header.
    #[error("a packet of {0} bytes has no header")]
    Header(usize),
    /// A message in it is cut, or bytes follow behind the last one.
    #[error("message {0} of a packet does not end with the packet's bytes")]
    Message(u16),
}

/// The header of a packet, and all of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The session.
    pub session: Session,
    /// Number of the first message; of the next one, if there is none.
    pub sequence: u64,
    /// Number of messages; none says that the feed lives, [`END_OF_SESSION`] that it has ended.
    pub count: u16,
}

impl Header {
    /// Reads a request, or the header of a packet.
    ///
    /// # Errors
    /// If it is shorter.
    pub fn read(bytes: &[u8]) -> Result<Header, Fault> {
        let cut = || Fault::Header(bytes.len());
        let (session, rest) = bytes.split_first_chunk::<10>().ok_or_else(cut)?;
        let (sequence, rest) = rest.split_first_chunk::<8>().ok_or_else(cut)?;
        let (count, _) = rest.split_first_chunk::<2>().ok_or_else(cut)?;
        Ok(Header {
            session: *session,
            sequence: u64::from_be_bytes(*sequence),
            count: u16::from_be_bytes(*count),
        })
    }

    /// Its bytes.
    pub fn bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..10].copy_from_slice(&self.session);
        bytes[10..18].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[18..].copy_from_slice(&self.count.to_be_bytes());
        bytes
    }

    /// Number of the message behind those of the packet.
    pub fn next(&self) -> u64 {
        match self.count {
            END_OF_SESSION => self.sequence,
            count => self.sequence.saturating_add(u64::from(count)),
        }
    }
}

/// A packet that was received: every message in it is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Its header.
    pub header: Header,
    blocks: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Reads a datagram.
    ///
    /// # Errors
    /// If it is no packet.
    pub fn read(bytes: &'a [u8]) -> Result<Packet<'a>, Fault> {
        let header = Header::read(bytes)?;
        let blocks = &bytes[HEADER_BYTES..];
        let count = if header.count == END_OF_SESSION { 0 } else { header.count };
        let packet = Packet { header, blocks };
        let mut rest = blocks;
        for number in 0..count {
            (_, rest) = split_block(rest).ok_or(Fault::Message(number))?;
        }
        if rest.is_empty() { Ok(packet) } else { Err(Fault::Message(count)) }
    }

    /// The messages in it, with their numbers.
    pub fn messages(&self) -> impl Iterator<Item = (u64, &'a [u8])> + use<'a> {
        let (mut rest, first) = (self.blocks, self.header.sequence);
        let all = std::iter::from_fn(move || {
            let (message, behind) = split_block(rest)?;
            rest = behind;
            Some(message)
        });
        (0..).zip(all).map(move |(at, message)| (first.saturating_add(at), message))
    }
}

/// The first message, and what is behind it.
fn split_block(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<LENGTH_BYTES>()?;
    rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))
}

/// A packet that is filled. Its memory is used again for the next one.
#[derive(Debug)]
pub struct Draft {
    header: Header,
    bytes: Vec<u8>,
}

impl Draft {
    /// A packet without messages.
    pub fn new(session: Session, sequence: u64) -> Draft {
        let header = Header { session, sequence, count: 0 };
        let mut bytes = Vec::with_capacity(PACKET_BYTES_MAX);
        bytes.extend_from_slice(&header.bytes());
        Draft { header, bytes }
    }

    /// Adds a message; false if the packet is full.
    #[inline]
    pub fn push(&mut self, message: &[u8]) -> bool {
        let fits = self.bytes.len() + LENGTH_BYTES + message.len() <= PACKET_BYTES_MAX;
        if !fits || self.header.count == END_OF_SESSION - 1 {
            return false;
        }
        self.bytes.extend_from_slice(&(message.len() as u16).to_be_bytes());
        self.bytes.extend_from_slice(message);
        self.header.count += 1;
        true
    }

    /// Whether it has no messages.
    pub fn is_empty(&self) -> bool {
        self.header.count == 0
    }

    /// Its bytes, with the number of messages in the header.
    pub fn bytes(&mut self) -> &[u8] {
        self.bytes[..HEADER_BYTES].copy_from_slice(&self.header.bytes());
        &self.bytes
    }

    /// Begins the packet behind this one.
    pub fn begin_next(&mut self) {
        self.header.sequence = self.header.next();
        self.header.count = 0;
        self.bytes.truncate(HEADER_BYTES);
    }
}
