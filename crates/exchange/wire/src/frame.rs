//! Frames: a prefix of 16 bytes that all messages share, the message, and padding up to the size
//! that the sender asks for.
//!
//! The checksum (CRC-32C) covers the prefix before it and the message. It leaves out the padding,
//! which has no meaning. It also leaves out the timestamps of the hops, which each node adds in the
//! last bytes of the frame (see [`stamp`]).

use nm_codec::{DecodeError, Field, Put};

use crate::value::Value;

/// The fields of the prefix, in their order.
mod prefix {
    use nm_codec::Field;

    pub const LENGTH: Field<u32> = Field::first("length");
    pub const VERSION: Field<u8> = Field::after("version", &LENGTH);
    pub const KIND: Field<u8> = Field::after("kind", &VERSION);
    pub const STAMPS: Field<u8> = Field::after("stamps", &KIND);
    pub const RESERVED: Field<u8> = Field::after("reserved", &STAMPS);
    pub const MESSAGE_BYTES: Field<u32> = Field::after("message_bytes", &RESERVED);
    pub const CHECKSUM: Field<u32> = Field::after("checksum", &MESSAGE_BYTES);
}

/// Bytes of the prefix.
pub const PREFIX_BYTES: usize = prefix::CHECKSUM.end();

const _: () = assert!(PREFIX_BYTES == 16);

/// The fields of the prefix: name, offset, size, and what they mean.
pub const PREFIX: [(&str, usize, usize, &str); 7] = [
    row(&prefix::LENGTH, "Bytes of the whole frame, padding and timestamps included."),
    row(&prefix::VERSION, "Version of the format. A frame of another one is refused."),
    row(&prefix::KIND, "Which message it is: the code in the table of messages."),
    row(&prefix::STAMPS, "How many timestamps end the frame: 0 or 4."),
    row(&prefix::RESERVED, "0."),
    row(&prefix::MESSAGE_BYTES, "Bytes of the message, which begins behind the prefix."),
    row(&prefix::CHECKSUM, "CRC-32C of the 12 bytes before it, followed by the message."),
];

const fn row<T>(
    field: &Field<T>,
    meaning: &'static str,
) -> (&'static str, usize, usize, &'static str) {
    (field.name, field.start(), field.end() - field.start(), meaning)
}

/// Longest frame.
pub const FRAME_BYTES_MAX: usize = 1 << 20;

/// Version of the frames, of the messages and of what a book makes of commands; another one is
/// refused. It rises with each change that a peer of the version before cannot read; the
/// [digest](crate::digest) tells other changes apart.
pub const VERSION: u8 = 10;

/// Timestamps at the end of a stamped frame: when gateway, router, mediator and processor had it.
pub const STAMPS: usize = 4;

const STAMPS_BYTES: usize = STAMPS * 8;

/// Bytes of a frame beside its message and its padding.
pub const fn overhead_bytes(is_stamped: bool) -> usize {
    if is_stamped { PREFIX_BYTES + STAMPS_BYTES } else { PREFIX_BYTES }
}

/// How a frame is to be beside its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shape {
    /// Whether it ends with timestamps.
    pub is_stamped: bool,
    /// Least size; it is padded with zeros.
    pub size_bytes: usize,
}

/// Appends a frame around a message that `put` appends.
///
/// # Panics
/// If the message does not fit a frame; messages are ours.
#[inline]
pub fn write_with(code: u8, shape: Shape, out: &mut Vec<u8>, put: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.put(&[0; PREFIX_BYTES]);
    put(out);
    let message_bytes = out.len() - start - PREFIX_BYTES;
    let least_bytes = message_bytes + overhead_bytes(shape.is_stamped);
    let length = least_bytes.max(shape.size_bytes.min(FRAME_BYTES_MAX));
    assert!(length <= FRAME_BYTES_MAX, "a message of {message_bytes} bytes fits no frame");
    out.resize(start + length, 0);
    let frame = &mut out[start..];
    prefix::LENGTH.set(frame, length as u32);
    prefix::VERSION.set(frame, VERSION);
    prefix::KIND.set(frame, code);
    prefix::STAMPS.set(frame, if shape.is_stamped { STAMPS as u8 } else { 0 });
    prefix::MESSAGE_BYTES.set(frame, message_bytes as u32);
    seal(frame);
}

/// The checksum of a frame.
#[inline]
fn checksum(prefix: &[u8; PREFIX_BYTES], message: &[u8]) -> u32 {
    nm_codec::crc32c_append(nm_codec::crc32c(&prefix[..prefix::CHECKSUM.start()]), message)
}

/// Computes the checksum of a complete frame again after a change of its message.
fn seal(frame: &mut [u8]) {
    let Some((head, rest)) = frame.split_first_chunk_mut::<PREFIX_BYTES>() else {
        unreachable!("a complete frame has a prefix");
    };
    let message = &rest[..prefix::MESSAGE_BYTES.get(head) as usize];
    let checksum = checksum(head, message);
    prefix::CHECKSUM.set(head, checksum);
}

/// A frame in a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The code of its message.
    pub code: u8,
    /// Its message, without padding.
    pub message: &'a [u8],
    /// All of it, to be forwarded as it is.
    pub bytes: &'a [u8],
}

/// A frame in a buffer, to be changed and forwarded.
#[derive(Debug)]
pub struct FrameMut<'a> {
    /// The code of its message.
    pub code: u8,
    message_bytes: usize,
    /// All of it.
    pub bytes: &'a mut [u8],
}

/// A message of the table of messages, by which it has its code.
pub trait Listed {
    /// Its code.
    const CODE: u8;
}

impl<'a> Frame<'a> {
    /// The message, decoded.
    ///
    /// # Errors
    /// If it is another message, or none.
    #[inline]
    pub fn read<M: Listed + Value<'a>>(&self) -> Result<M, DecodeError> {
        self.expect(M::CODE)?;
        crate::value::decode(self.message)
    }

    /// Checks that it is a message with this code.
    ///
    /// # Errors
    /// If it is another one.
    #[inline]
    pub fn expect(&self, code: u8) -> Result<(), DecodeError> {
        expect(self.code, code)
    }

    /// Whether it ends with timestamps.
    pub fn is_stamped(&self) -> bool {
        prefix::STAMPS.get(self.bytes) != 0
    }

    /// Its timestamps, ns, if it has any; zero where no node put one.
    pub fn stamps(&self) -> Option<[u64; STAMPS]> {
        let bytes = self.bytes.last_chunk::<STAMPS_BYTES>().filter(|_| self.is_stamped())?;
        Some(std::array::from_fn(|hop| {
            bytes[hop * 8..][..8].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
        }))
    }
}

fn expect(code: u8, expected: u8) -> Result<(), DecodeError> {
    let is_it = code == expected;
    if is_it { Ok(()) } else { Err(DecodeError::invalid("kind", "is that of another message")) }
}

impl<'a> FrameMut<'a> {
    /// A complete frame that was read before, or written here.
    ///
    /// # Errors
    /// If the bytes are not as long as a frame says.
    #[inline]
    pub fn of(bytes: &'a mut [u8]) -> Result<FrameMut<'a>, DecodeError> {
        let head = bytes.first_chunk().ok_or(DecodeError::truncated("prefix"))?;
        let (length, message_bytes) = lengths(head)?;
        if length != bytes.len() {
            return Err(DecodeError::invalid("length", "is not that of the bytes"));
        }
        Ok(FrameMut { code: prefix::KIND.get(head), message_bytes, bytes })
    }

    /// The same frame, not to be changed.
    #[inline]
    pub fn shared(&self) -> Frame<'_> {
        let message = &self.bytes[PREFIX_BYTES..PREFIX_BYTES + self.message_bytes];
        Frame { code: self.code, message, bytes: self.bytes }
    }

    /// The message, decoded.
    ///
    /// # Errors
    /// As [`Frame::read`].
    #[inline]
    pub fn read<'f, M: Listed + Value<'f>>(&'f self) -> Result<M, DecodeError> {
        self.shared().read()
    }

    /// All of it, to change fields of a message with this code.
    ///
    /// # Errors
    /// If it is another message, or shorter than these fields.
    #[inline]
    pub fn sealed(&mut self, code: u8, end: usize) -> Result<Sealed<'_>, DecodeError> {
        expect(self.code, code)?;
        if PREFIX_BYTES + self.message_bytes < end {
            return Err(DecodeError::truncated("message"));
        }
        Ok(Sealed(self.bytes))
    }
}

/// A frame whose fields are changed; the checksum is computed again when this is dropped.
#[derive(Debug)]
pub struct Sealed<'f>(&'f mut [u8]);

impl Sealed<'_> {
    /// All of the frame.
    #[inline]
    pub fn bytes(&mut self) -> &mut [u8] {
        self.0
    }
}

impl Drop for Sealed<'_> {
    fn drop(&mut self) {
        seal(self.0);
    }
}

/// Length of a frame and of its message.
#[inline]
fn lengths(head: &[u8; PREFIX_BYTES]) -> Result<(usize, usize), DecodeError> {
    let length = prefix::LENGTH.get(head) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(DecodeError::invalid(prefix::LENGTH.name, "is more than a frame may have"));
    }
    let is_stamped = match usize::from(prefix::STAMPS.get(head)) {
        0 => false,
        STAMPS => true,
        _ => return Err(DecodeError::invalid(prefix::STAMPS.name, "is neither 0 nor 4")),
    };
    if prefix::RESERVED.get(head) != 0 {
        return Err(DecodeError::invalid(prefix::RESERVED.name, "is not 0"));
    }
    let message_bytes = prefix::MESSAGE_BYTES.get(head) as usize;
    if message_bytes > FRAME_BYTES_MAX || message_bytes + overhead_bytes(is_stamped) > length {
        return Err(DecodeError::invalid(prefix::MESSAGE_BYTES.name, "is more than the frame has"));
    }
    Ok((length, message_bytes))
}

/// The frame at the front of `bytes`: none yet if it has not arrived completely. `is_known` says
/// whether there is a message with a code.
///
/// # Errors
/// If these bytes do not begin a frame; the link cannot be used any more then.
#[inline]
pub fn read_with(
    bytes: &[u8],
    is_known: impl FnOnce(u8) -> bool,
) -> Result<Option<Frame<'_>>, DecodeError> {
    let Some(head) = bytes.first_chunk::<PREFIX_BYTES>() else { return Ok(None) };
    let version = prefix::VERSION.get(head);
    if version != VERSION {
        return Err(DecodeError::other_version(prefix::VERSION.name, version, VERSION));
    }
    let (length, message_bytes) = lengths(head)?;
    let code = prefix::KIND.get(head);
    if !is_known(code) {
        return Err(DecodeError::unknown_code(prefix::KIND.name, code.into()));
    }
    let Some(bytes) = bytes.get(..length) else { return Ok(None) };
    let message = &bytes[PREFIX_BYTES..PREFIX_BYTES + message_bytes];
    if checksum(head, message) != prefix::CHECKSUM.get(head) {
        return Err(DecodeError::checksum(prefix::CHECKSUM.name));
    }
    Ok(Some(Frame { code, message, bytes }))
}

/// As [`read_with`], to change the frame.
///
/// # Errors
/// As [`read_with`].
#[inline]
pub fn read_mut_with(
    bytes: &mut [u8],
    is_known: impl FnOnce(u8) -> bool,
) -> Result<Option<FrameMut<'_>>, DecodeError> {
    let Some(Frame { code, message, bytes: all }) = read_with(bytes, is_known)? else {
        return Ok(None);
    };
    let (message_bytes, length) = (message.len(), all.len());
    Ok(Some(FrameMut { code, message_bytes, bytes: &mut bytes[..length] }))
}

/// Puts a node's time, ns on the machine's clock, into a stamped frame; does nothing to others.
#[inline]
pub fn stamp(frame: &mut [u8], hop: usize, at_ns: u64) {
    let has_room = frame.len() >= PREFIX_BYTES + STAMPS_BYTES;
    if has_room && prefix::STAMPS.get(frame) != 0 && hop < STAMPS {
        let at = frame.len() - STAMPS_BYTES + hop * 8;
        frame[at..at + 8].copy_from_slice(&at_ns.to_le_bytes());
    }
}
