//! Frames on the links between clients and nodes: a header of 64 bytes, a body, and padding up to
//! the size that the load asks for. Bodies are in [`crate::message`] and [`crate::control`].
//!
//! The checksum (CRC-32C) covers header and body. It leaves out the padding, which has no meaning,
//! and the hop timestamps, which each node adds in the last bytes of the padding (see [`stamp`]).

use nm_codec::{DecodeError, Put, codes};

/// The fields of a header, in their order.
mod field {
    use nm_codec::Field;

    /// Bytes of the whole frame, padding included.
    pub const LENGTH: Field<u32> = Field::first("length");
    pub const VERSION: Field<u8> = Field::after("version", &LENGTH);
    pub const KIND: Field<u8> = Field::after("kind", &VERSION);
    pub const FLAGS: Field<u16> = Field::after("flags", &KIND);
    pub const INSTRUMENT: Field<u32> = Field::after("instrument", &FLAGS);
    pub const GATEWAY: Field<u16> = Field::after("gateway", &INSTRUMENT);
    pub const CELL: Field<u16> = Field::after("cell", &GATEWAY);
    pub const MAP_VERSION: Field<u32> = Field::after("map_version", &CELL);
    pub const SESSION: Field<u32> = Field::after("session", &MAP_VERSION);
    pub const CLIENT_SEQ: Field<u64> = Field::after("client_seq", &SESSION);
    pub const PREVIOUS_SEQ: Field<u64> = Field::after("previous_seq", &CLIENT_SEQ);
    pub const INTENDED_NS: Field<u64> = Field::after("intended_ns", &PREVIOUS_SEQ);
    pub const OUTPUT_SEQ: Field<u64> = Field::after("output_seq", &INTENDED_NS);
    pub const BODY_BYTES: Field<u32> = Field::after("body_bytes", &OUTPUT_SEQ);
    /// Counts as zero when it is computed.
    pub const CHECKSUM: Field<u32> = Field::after("checksum", &BODY_BYTES);
}

/// Bytes of a header.
pub const HEADER_BYTES: usize = field::CHECKSUM.end();

const _: () = assert!(HEADER_BYTES == 64);

/// Longest frame.
pub const FRAME_BYTES_MAX: usize = 1 << 20;

/// Version of the frames, their bodies and what a book makes of commands; another one is refused.
/// It rises with each change: see the test `a_change_of_frames_is_a_change_of_their_version`.
pub const VERSION: u8 = 5;

/// Flag: the events of the request are broadcast.
pub const PUBLIC: u16 = 1;

/// Flag: the content was sent before, as the outcome of the same request or as the same events.
pub const RESENT: u16 = 2;

/// Flag: the frame ends with [`STAMPS`] timestamps.
pub const STAMPED: u16 = 4;

/// Flag of a [`FrameKind::Reply`]: the outcome is no longer kept. Of a [`FrameKind::Private`]:
/// events before these are no longer kept, and cannot be resent.
pub const EXPIRED: u16 = 8;

/// Flag of a [`FrameKind::Request`]: the session's request before it on the instrument was
/// answered.
pub const PREVIOUS_ANSWERED: u16 = 16;

/// Flag of a [`FrameKind::ResendRequest`] from a processor: only events may be lost, no replies.
pub const EVENTS_ONLY: u16 = 32;

/// Flag of a [`FrameKind::Reply`]: the request is not executed, and never will be. The event in it
/// says why, and is none of the session's numbered ones. Of a [`FrameKind::ResendRequest`] on its
/// way back to the gateway: the instrument is in another cell. Of a [`FrameKind::Private`]: the
/// session is not at the gateway of its last request.
pub const REFUSED: u16 = 64;

/// Bits of the flags of a request, and of a [`FrameKind::Nak`] to it, that tell apart how often the
/// gateway has sent it.
pub const ATTEMPT: u16 = 0xff00;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// First frame of a link: who connects. Body: [`crate::message::Hello`].
    Hello,
    /// A session's request. Body: a command, see [`crate::cell::Request`].
    Request,
    /// The outcome of a request, to its session. Body: [`crate::message::Reply`].
    Reply,
    /// Events of a session that another session's request caused, or that are resent
    /// ([`RESENT`]). Body: [`crate::message::Events`].
    Private,
    /// Broadcast events. Body: [`crate::message::Events`].
    Public,
    /// A mediator leads a cell; requests sent before may be lost. Body: [`crate::message::Leader`].
    Leader,
    /// Negative acknowledgement: a request came whose predecessor did not. The gateway resends what
    /// was not executed, or refuses what never can be.
    Nak,
    /// Answer to a hello: the node is up. See [`crate::message::Welcome`].
    Welcome,
    /// Which nodes a node is connected to, for control. Body: [`crate::control::MembershipReport`].
    MembershipReport,
    /// Instrument map and cell leaders. Body: [`crate::control::RoutingTable`].
    RoutingTable,
    /// Entry of a cell's log, see [`crate::moves::Release`].
    Release,
    /// A move of an instrument has ended, see [`crate::moves::MoveEnded`].
    MoveEnded,
    /// An observer's request. Body: [`crate::control::AdminRequest`].
    AdminRequest,
    /// The node's answer. Body: [`crate::control::AdminResponse`].
    AdminResponse,
    /// From a session: it asks for events again, see [`crate::message::ResendRequest`]. From
    /// a processor, and on to clients: replies and events of this cell may be lost, so gateways
    /// shall send requests without a reply again, and sessions resend requests.
    ResendRequest,
    /// The link is closed by this end, and why. Body: [`crate::message::Close`].
    Close,
    /// First frame of the end that accepted the link, where the network has a secret. Body:
    /// [`crate::message::Challenge`].
    Challenge,
    /// Control asks a cell to move an instrument, see [`crate::moves::MoveOrder`].
    MoveOrder,
    /// Parts of an instrument for its new cell, see [`crate::moves::MoveParts`]. Go through the
    /// cell's log.
    MoveParts,
    /// How much of an instrument has arrived, see [`crate::moves::MoveProgress`].
    MoveProgress,
    /// Entry of a cell's log, see [`crate::moves::Forget`].
    Forget,
    /// Entry of a cell's log, see [`crate::moves::Claim`].
    Claim,
    /// The gateway is about to leave, see [`crate::message::GoAway`].
    GoAway,
    /// How far a processor is to be, or is, see [`crate::message::CatchUp`].
    CatchUp,
}

codes!(FrameKind {
    Hello = 1,
    Request = 2,
    Reply = 3,
    Private = 4,
    Public = 5,
    Leader = 6,
    Nak = 7,
    Welcome = 8,
    MembershipReport = 9,
    RoutingTable = 10,
    Release = 11,
    MoveEnded = 12,
    AdminRequest = 13,
    AdminResponse = 14,
    ResendRequest = 15,
    Close = 16,
    Challenge = 17,
    MoveOrder = 18,
    MoveParts = 19,
    MoveProgress = 20,
    Forget = 21,
    Claim = 22,
    GoAway = 23,
    CatchUp = 24,
});

/// A header's fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// What the frame is.
    pub kind: FrameKind,
    /// [`PUBLIC`], [`RESENT`], [`STAMPED`], [`EXPIRED`], [`PREVIOUS_ANSWERED`],
    /// [`EVENTS_ONLY`], [`REFUSED`], [`ATTEMPT`].
    pub flags: u16,
    /// Instrument.
    pub instrument: u32,
    /// Gateway of the session; of parts of a move, the cell that sends them.
    pub gateway: u16,
    /// Cell of the instrument.
    pub cell: u16,
    /// Version of the instrument map by which the cell was chosen; of a frame of a move, its epoch.
    pub map_version: u32,
    /// User's session.
    pub session: u32,
    /// Sequence number of the request within its session; of a frame of a move, the transfer.
    pub client_seq: u64,
    /// Of a request: sequence number of the session's request before it on this instrument. Of
    /// events: sequence number of the event before the first of them. Of a nak: sequence number of
    /// the session's last request that was executed on this instrument.
    pub previous_seq: u64,
    /// When the request was meant to be sent, ns on the client's clock.
    pub intended_ns: u64,
    /// Of an outcome: sequence number of the request among all that were executed on the
    /// instrument. Of a request or resend request: the last event that the session acknowledges.
    pub output_seq: u64,
}

impl Header {
    /// A header of this kind, everything else zero.
    pub fn new(kind: FrameKind) -> Header {
        Header {
            kind,
            flags: 0,
            instrument: 0,
            gateway: 0,
            cell: 0,
            map_version: 0,
            session: 0,
            client_seq: 0,
            previous_seq: 0,
            intended_ns: 0,
            output_seq: 0,
        }
    }

    /// Its bytes, without checksum.
    fn encode(&self, length: usize, body_bytes: usize) -> [u8; HEADER_BYTES] {
        debug_assert!(length <= FRAME_BYTES_MAX && HEADER_BYTES + body_bytes <= length);
        let mut bytes = [0; HEADER_BYTES];
        field::LENGTH.set(&mut bytes, length as u32);
        field::VERSION.set(&mut bytes, VERSION);
        field::KIND.set(&mut bytes, self.kind.code());
        field::FLAGS.set(&mut bytes, self.flags);
        field::INSTRUMENT.set(&mut bytes, self.instrument);
        field::GATEWAY.set(&mut bytes, self.gateway);
        field::CELL.set(&mut bytes, self.cell);
        field::MAP_VERSION.set(&mut bytes, self.map_version);
        field::SESSION.set(&mut bytes, self.session);
        field::CLIENT_SEQ.set(&mut bytes, self.client_seq);
        field::PREVIOUS_SEQ.set(&mut bytes, self.previous_seq);
        field::INTENDED_NS.set(&mut bytes, self.intended_ns);
        field::OUTPUT_SEQ.set(&mut bytes, self.output_seq);
        field::BODY_BYTES.set(&mut bytes, body_bytes as u32);
        bytes
    }

    fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, DecodeError> {
        Ok(Header {
            kind: FrameKind::from_code(field::KIND.name, field::KIND.get(bytes))?,
            flags: field::FLAGS.get(bytes),
            instrument: field::INSTRUMENT.get(bytes),
            gateway: field::GATEWAY.get(bytes),
            cell: field::CELL.get(bytes),
            map_version: field::MAP_VERSION.get(bytes),
            session: field::SESSION.get(bytes),
            client_seq: field::CLIENT_SEQ.get(bytes),
            previous_seq: field::PREVIOUS_SEQ.get(bytes),
            intended_ns: field::INTENDED_NS.get(bytes),
            output_seq: field::OUTPUT_SEQ.get(bytes),
        })
    }
}

/// A frame in a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Its header.
    pub header: Header,
    /// Its body, without padding.
    pub body: &'a [u8],
    /// All of it, to be forwarded as it is.
    pub bytes: &'a [u8],
}

/// Appends a frame of at least `size_bytes`, padded with zeros.
///
/// # Panics
/// If the body does not fit a frame; bodies are ours.
pub fn write(header: &Header, body: &[u8], size_bytes: usize, out: &mut Vec<u8>) {
    let length = least_bytes(header, body).max(size_bytes.min(FRAME_BYTES_MAX));
    assert!(length <= FRAME_BYTES_MAX, "a body of {} bytes fits no frame", body.len());
    let start = out.len();
    let mut head = header.encode(length, body.len());
    let checksum = checksum(&head, body);
    field::CHECKSUM.set(&mut head, checksum);
    out.put(&head);
    out.put(body);
    out.resize(start + length, 0);
}

/// Bytes of a frame without padding; its timestamps count.
pub fn least_bytes(header: &Header, body: &[u8]) -> usize {
    HEADER_BYTES + body.len() + stamps_bytes(header.flags)
}

/// The checksum of a frame.
fn checksum(header: &[u8; HEADER_BYTES], body: &[u8]) -> u32 {
    let mut header = *header;
    field::CHECKSUM.set(&mut header, 0);
    nm_codec::crc32c_append(nm_codec::crc32c(&header), body)
}

/// Computes the checksum of a complete frame again after a change of its header.
fn update_checksum(frame: &mut [u8]) {
    let Some((header, rest)) = frame.split_first_chunk_mut::<HEADER_BYTES>() else {
        unreachable!("a complete frame has a header");
    };
    let body = &rest[..field::BODY_BYTES.get(header) as usize];
    let checksum = checksum(header, body);
    field::CHECKSUM.set(header, checksum);
}

/// Writes gateway, cell and map version into a complete frame, and its checksum again.
pub fn route(frame: &mut [u8], gateway: u16, cell: u16, map_version: u32) {
    field::GATEWAY.set(frame, gateway);
    field::CELL.set(frame, cell);
    field::MAP_VERSION.set(frame, map_version);
    update_checksum(frame);
}

/// Sets the flags of `mask` in a complete frame, and its checksum again.
pub fn set_flags(frame: &mut [u8], mask: u16, flags: u16) {
    let others = field::FLAGS.get(frame) & !mask;
    field::FLAGS.set(frame, others | flags & mask);
    update_checksum(frame);
}

/// The frame at the front of `bytes`: none yet if it has not arrived completely.
///
/// # Errors
/// If these bytes do not begin a frame; the link cannot be used any more then.
#[inline]
pub fn read(bytes: &[u8]) -> Result<Option<Frame<'_>>, DecodeError> {
    let Some(head) = bytes.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    let version = field::VERSION.get(head);
    if version != VERSION {
        return Err(DecodeError::other_version(field::VERSION.name, version, VERSION));
    }
    let length = field::LENGTH.get(head) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(DecodeError::invalid(field::LENGTH.name, "is more than a frame may have"));
    }
    let body_bytes = field::BODY_BYTES.get(head) as usize;
    if body_bytes > FRAME_BYTES_MAX
        || HEADER_BYTES + body_bytes + stamps_bytes(field::FLAGS.get(head)) > length
    {
        return Err(DecodeError::invalid(field::BODY_BYTES.name, "is more than the frame has"));
    }
    let header = Header::decode(head)?;
    let Some(frame) = bytes.get(..length) else { return Ok(None) };
    let body = &frame[HEADER_BYTES..HEADER_BYTES + body_bytes];
    if checksum(head, body) != field::CHECKSUM.get(head) {
        return Err(DecodeError::checksum(field::CHECKSUM.name));
    }
    Ok(Some(Frame { header, body, bytes: frame }))
}

/// Timestamps at the end of a stamped frame: when gateway, router, mediator and processor had it.
pub const STAMPS: usize = 4;

const STAMPS_BYTES: usize = STAMPS * 8;

/// Bytes of the timestamps of a frame with these flags.
fn stamps_bytes(flags: u16) -> usize {
    if flags & STAMPED == 0 { 0 } else { STAMPS_BYTES }
}

/// Puts a node's time, ns on the machine's clock, into a stamped frame; does nothing to others.
pub fn stamp(frame: &mut [u8], hop: usize, at_ns: u64) {
    let has_room = frame.len() >= HEADER_BYTES + STAMPS_BYTES;
    if has_room && field::FLAGS.get(frame) & STAMPED != 0 && hop < STAMPS {
        let at = frame.len() - STAMPS_BYTES + hop * 8;
        frame[at..at + 8].copy_from_slice(&at_ns.to_le_bytes());
    }
}

/// The timestamps of a frame, if it has any; zero where no node put one.
pub fn stamps(frame: &Frame<'_>) -> Option<[u64; STAMPS]> {
    if frame.header.flags & STAMPED == 0 {
        return None;
    }
    let bytes = frame.bytes.last_chunk::<STAMPS_BYTES>()?;
    Some(std::array::from_fn(|hop| {
        bytes[hop * 8..][..8].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nm_codec::DecodeFault;
    use proptest::prelude::*;

    fn header() -> Header {
        Header {
            flags: PUBLIC | STAMPED,
            instrument: 1,
            gateway: 2,
            cell: 3,
            map_version: 4,
            session: 5,
            client_seq: 6,
            previous_seq: 7,
            intended_ns: 8,
            output_seq: 9,
            ..Header::new(FrameKind::Request)
        }
    }

    #[test]
    fn a_routed_and_stamped_frame_is_read_back() {
        let mut bytes = vec![];
        write(&header(), b"the body", 800, &mut bytes);
        assert_eq!(bytes.len(), 800);
        stamp(&mut bytes, 2, 1 << 60 | 7);
        route(&mut bytes, 700, 800, 900);
        let routed = read(&bytes).unwrap().unwrap();
        let routed_header = Header { gateway: 700, cell: 800, map_version: 900, ..header() };
        assert_eq!((routed.header, routed.body), (routed_header, &b"the body"[..]));
        set_flags(&mut bytes, PREVIOUS_ANSWERED | ATTEMPT, PREVIOUS_ANSWERED | 0x1200);
        let flags = header().flags | PREVIOUS_ANSWERED | 0x1200;
        let answered = Header { flags, ..routed_header };
        assert_eq!(read(&bytes).unwrap().unwrap().header, answered);
        field::FLAGS.set(&mut bytes, header().flags);
        route(&mut bytes, 2, 3, 4);
        bytes.extend_from_slice(b"the next frame");
        let frame = read(&bytes).unwrap().unwrap();
        assert_eq!((frame.header, frame.body), (header(), &b"the body"[..]));
        assert_eq!(stamps(&frame), Some([0, 0, 1 << 60 | 7, 0]));
        for cut in 0..800 {
            assert_eq!(read(&bytes[..cut]), Ok(None), "cut at {cut}");
        }
        bytes[70] ^= 1;
        assert_eq!(read(&bytes), Err(DecodeError::checksum("checksum")));
    }

    #[test]
    fn decode_errors_name_the_field() {
        let mut frame = vec![];
        write(&header(), b"the body", 0, &mut frame);
        let error = |change: &dyn Fn(&mut [u8])| {
            let mut frame = frame.clone();
            change(&mut frame);
            read(&frame).unwrap_err()
        };
        let other = DecodeError::other_version("version", 1, VERSION);
        assert_eq!(error(&|frame| field::VERSION.set(frame, 1)), other);
        assert_eq!(error(&|frame| field::LENGTH.set(frame, u32::MAX)).field, "length");
        assert_eq!(error(&|frame| field::BODY_BYTES.set(frame, 900)).field, "body_bytes");
        let kind = error(&|frame| field::KIND.set(frame, 99));
        assert_eq!((kind.field, kind.fault), ("kind", DecodeFault::UnknownCode(99)));
    }

    fn any_header() -> impl Strategy<Value = Header> {
        let kind = prop::sample::select(FrameKind::ALL);
        let small = any::<(u16, u32, u16, u16, u32, u32)>();
        (kind, small, any::<[u64; 4]>()).prop_map(|(kind, small, numbers)| {
            let (flags, instrument, gateway, cell, map_version, session) = small;
            let [client_seq, previous_seq, intended_ns, output_seq] = numbers;
            Header {
                kind,
                flags,
                instrument,
                gateway,
                cell,
                map_version,
                session,
                client_seq,
                previous_seq,
                intended_ns,
                output_seq,
            }
        })
    }

    proptest! {
        #[test]
        fn each_kind_of_frame_is_read_back(header in any_header(),
                                           body in prop::collection::vec(any::<u8>(), 0..300),
                                           size_bytes in 0usize..600) {
            let mut bytes = vec![];
            write(&header, &body, size_bytes, &mut bytes);
            let frame = read(&bytes).unwrap().unwrap();
            prop_assert_eq!((frame.header, frame.body), (header, &body[..]));
            prop_assert_eq!(frame.bytes.len(), bytes.len());
            prop_assert!(bytes.len() >= size_bytes);
        }

        #[test]
        fn any_bytes_are_a_frame_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300),
                                            length in 0u32..400) {
            let mut bytes = bytes;
            if bytes.len() > 8 {
                field::LENGTH.set(&mut bytes, length);
                field::VERSION.set(&mut bytes, VERSION);
            }
            let _ = read(&bytes);
            stamp(&mut bytes, 3, 1);
        }
    }
}
