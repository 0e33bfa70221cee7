//! Frames on the links between clients and nodes: a header of 64 bytes, a body, and padding up to
//! the size that the load asks for.
//!
//! ```text
//!  0 length u32      whole frame, padding included      24 client_seq u64
//!  4 version u8      5 kind u8      6 flags u16         32 previous_seq u64
//!  8 instrument u32                                        40 intended_ns u64
//! 12 gateway u16    14 cell u16                         48 output_seq u64
//! 16 map_version u32                                          56 body_bytes u32
//! 20 session u32                                        60 checksum u32 (CRC-32C of both)
//! ```
//!
//! The checksum leaves the padding out, which says nothing, and the hop stamps, which each node
//! adds in the last bytes of the padding (see [`stamp`]).

use nm_codec::Meaningless;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 64;

/// Longest frame.
pub const FRAME_BYTES_MAX: usize = 1 << 20;

/// Version of the frames; another one is refused.
pub const VERSION: u8 = 1;

/// Flag: everybody is told what happens.
pub const PUBLIC: u16 = 1;

/// Flag: the request was handled before, and this is its outcome once more.
pub const RESENT: u16 = 2;

/// Flag: the frame ends with [`STAMPS`] stamps.
pub const STAMPED: u16 = 4;

/// Flag of a [`FrameKind::Reply`]: the outcome is not kept any more; of a [`FrameKind::Private`]:
/// the events before these are not, and what they were is not known.
pub const EXPIRED: u16 = 8;

/// Flag of a [`FrameKind::Request`]: the one before it on the instrument was answered.
pub const PREVIOUS_ANSWERED: u16 = 16;

/// Flag of a [`FrameKind::Released`]: the instrument is given away.
pub const GRANTED: u16 = 32;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// Who speaks, the first frame of a link. The body is UTF-8: `client`, with a session in the
    /// header (one such frame for each of its sessions), `observer`, or `ROLE INDEX`.
    Hello = 1,
    /// A session's request, with the number of the last event on the instrument that it has in
    /// `output_seq`. Body: a command.
    Request = 2,
    /// The outcome of a request, to its session. Body: hash of all of its events (8 bytes), then
    /// those that the session is told, with the number of its last event before them on the
    /// instrument in `previous_seq`.
    Reply = 3,
    /// What happened to a session's order by somebody else's request, or is told again
    /// ([`RESENT`]). Body: events, numbered as those of a reply.
    Private = 4,
    /// What happened, to everybody. Body: events, with the number of the instrument's last public
    /// event before them in `previous_seq`.
    Public = 5,
    /// A mediator leads a cell from this map_version on; or what was sent to it may be lost.
    Leader = 6,
    /// A request came whose predecessor did not: the gateway sends again what has no reply.
    Nak = 7,
    /// A node of the network answers a hello: so it is known to be up. Number of the start of the
    /// one who answers in `client_seq`. An observer is answered the same.
    Welcome = 8,
    /// What a node sees of others, for control. Body: [`crate::control::MembershipReport`].
    MembershipReport = 9,
    /// The map of instruments and the leaders, as control has them. Body:
    /// [`crate::control::RoutingTable`].
    RoutingTable = 10,
    /// Control asks a cell to give an instrument away, in the map's `map_version`. Goes through the
    /// cell's log.
    Release = 11,
    /// The cell's answer: [`GRANTED`], or it has traded the instrument and keeps it.
    Released = 12,
    /// An observer asks a node. Body: [`crate::control::Ask`].
    AdminRequest = 13,
    /// The node's answer. Body: [`crate::control::Answer`].
    AdminResponse = 14,
    /// From a session: it may miss events after the number in `output_seq` on an instrument; it is
    /// told them, or that there are none. To a client: events of this cell may have been lost on
    /// the way, so it shall ask for them.
    ResendRequest = 15,
}

impl FrameKind {
    fn of(code: u8) -> Result<FrameKind, Meaningless> {
        const ALL: [FrameKind; 15] = [
            FrameKind::Hello,
            FrameKind::Request,
            FrameKind::Reply,
            FrameKind::Private,
            FrameKind::Public,
            FrameKind::Leader,
            FrameKind::Nak,
            FrameKind::Welcome,
            FrameKind::ResendRequest,
            FrameKind::MembershipReport,
            FrameKind::RoutingTable,
            FrameKind::Release,
            FrameKind::Released,
            FrameKind::AdminRequest,
            FrameKind::AdminResponse,
        ];
        ALL.into_iter().find(|kind| *kind as u8 == code).ok_or(Meaningless)
    }
}

/// A header's fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// What the frame is.
    pub kind: FrameKind,
    /// [`PUBLIC`], [`RESENT`], [`STAMPED`], [`EXPIRED`], [`PREVIOUS_ANSWERED`].
    pub flags: u16,
    /// Instrument.
    pub instrument: u32,
    /// Gateway of the session.
    pub gateway: u16,
    /// Cell of the instrument.
    pub cell: u16,
    /// Of a request: of the map by which its cell was chosen. Of a lead: in which the cell's leader
    /// leads.
    pub map_version: u32,
    /// User's session.
    pub session: u32,
    /// Number of the request within its session.
    pub client_seq: u64,
    /// Of a request, the number of the session's request before it on this instrument; of what is
    /// told, the number of the event before the first of it.
    pub previous_seq: u64,
    /// When the request was meant to be sent, ns on the client's clock.
    pub intended_ns: u64,
    /// Number of the request among all that were handled on the instrument; of a request or a
    /// recall, the number of the last event that the session has.
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
}

/// A frame in a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Its header.
    pub header: Header,
    /// Its body, without padding.
    pub body: &'a [u8],
    /// All of it, to be sent on as it is.
    pub bytes: &'a [u8],
}

/// Appends a frame of at least `size_bytes`, padded with zeros.
///
/// # Panics
/// If the body does not fit a frame; bodies are ours.
pub fn write(header: &Header, body: &[u8], size_bytes: usize, out: &mut Vec<u8>) {
    let stamps = if header.flags & STAMPED == 0 { 0 } else { STAMPS_BYTES };
    let length = (HEADER_BYTES + body.len() + stamps).max(size_bytes.min(FRAME_BYTES_MAX));
    assert!(length <= FRAME_BYTES_MAX, "a body of {} bytes fits no frame", body.len());
    let start = out.len();
    out.extend_from_slice(&(length as u32).to_le_bytes());
    out.extend_from_slice(&[VERSION, header.kind as u8]);
    out.extend_from_slice(&header.flags.to_le_bytes());
    out.extend_from_slice(&header.instrument.to_le_bytes());
    out.extend_from_slice(&header.gateway.to_le_bytes());
    out.extend_from_slice(&header.cell.to_le_bytes());
    out.extend_from_slice(&header.map_version.to_le_bytes());
    out.extend_from_slice(&header.session.to_le_bytes());
    for number in [header.client_seq, header.previous_seq, header.intended_ns, header.output_seq] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.extend_from_slice(&(body.len() as u32).to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(body);
    let checksum = nm_codec::crc32c(&out[start..]);
    out[start + 60..start + 64].copy_from_slice(&checksum.to_le_bytes());
    out.resize(start + length, 0);
}

/// Writes gateway, cell and map_version of the map into a whole frame, and its checksum anew.
pub fn route(frame: &mut [u8], gateway: u16, cell: u16, map_version: u32) {
    frame[12..14].copy_from_slice(&gateway.to_le_bytes());
    frame[14..16].copy_from_slice(&cell.to_le_bytes());
    frame[16..20].copy_from_slice(&map_version.to_le_bytes());
    let body_bytes = u32::from_le_bytes([frame[56], frame[57], frame[58], frame[59]]) as usize;
    frame[60..64].fill(0);
    let checksum = nm_codec::crc32c(&frame[..HEADER_BYTES + body_bytes]);
    frame[60..64].copy_from_slice(&checksum.to_le_bytes());
}

/// Says in a whole request that the one before it was answered, and writes its checksum anew.
pub fn mark_previous_answered(frame: &mut [u8]) {
    frame[6] |= PREVIOUS_ANSWERED as u8;
    frame[60..64].fill(0);
    let body_bytes = u32::from_le_bytes([frame[56], frame[57], frame[58], frame[59]]) as usize;
    let checksum = nm_codec::crc32c(&frame[..HEADER_BYTES + body_bytes]);
    frame[60..64].copy_from_slice(&checksum.to_le_bytes());
}

/// The frame at the front of `bytes`: none yet if it has not come whole.
///
/// # Errors
/// If these bytes begin no frame; the link is then of no use any more.
pub fn read(bytes: &[u8]) -> Result<Option<Frame<'_>>, Meaningless> {
    let Some(head) = bytes.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    let u16_at = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
    let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
    let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
    let (length, body_bytes) = (u32_at(0) as usize, u32_at(56) as usize);
    let flags = u16_at(6);
    let stamps = if flags & STAMPED == 0 { 0 } else { STAMPS_BYTES };
    if head[4] != VERSION
        || length > FRAME_BYTES_MAX
        || body_bytes > FRAME_BYTES_MAX
        || HEADER_BYTES + body_bytes + stamps > length
    {
        return Err(Meaningless);
    }
    let header = Header {
        kind: FrameKind::of(head[5])?,
        flags,
        instrument: u32_at(8),
        gateway: u16_at(12),
        cell: u16_at(14),
        map_version: u32_at(16),
        session: u32_at(20),
        client_seq: u64_at(24),
        previous_seq: u64_at(32),
        intended_ns: u64_at(40),
        output_seq: u64_at(48),
    };
    let Some(whole) = bytes.get(..length) else { return Ok(None) };
    let body = &whole[HEADER_BYTES..HEADER_BYTES + body_bytes];
    let checksum = nm_codec::crc32c(&head[..60]);
    let checksum = nm_codec::crc32c_append(checksum, &[0; 4]);
    if nm_codec::crc32c_append(checksum, body) != u32_at(60) {
        return Err(Meaningless);
    }
    Ok(Some(Frame { header, body, bytes: whole }))
}

/// Stamps at the end of a stamped frame: when gateway, router, mediator and processor had it.
pub const STAMPS: usize = 4;

const STAMPS_BYTES: usize = STAMPS * 8;

/// Puts a node's time, ns on the machine's clock, into a stamped frame; nothing if it has none.
pub fn stamp(frame: &mut [u8], hop: usize, at_ns: u64) {
    let is_stamped = frame.len() >= HEADER_BYTES + STAMPS_BYTES && frame[6] & STAMPED as u8 != 0;
    if is_stamped && hop < STAMPS {
        let at = frame.len() - STAMPS_BYTES + hop * 8;
        frame[at..at + 8].copy_from_slice(&at_ns.to_le_bytes());
    }
}

/// The stamps of a frame, if it has any; zero where no node put one.
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
    fn a_frame_comes_back_with_its_stamps() {
        let mut bytes = vec![];
        write(&header(), b"what is asked", 800, &mut bytes);
        assert_eq!(bytes.len(), 800);
        stamp(&mut bytes, 2, 1 << 60 | 7);
        route(&mut bytes, 700, 800, 900);
        let routed = read(&bytes).unwrap().unwrap();
        let routed_header = Header { gateway: 700, cell: 800, map_version: 900, ..header() };
        assert_eq!((routed.header, routed.body), (routed_header, &b"what is asked"[..]));
        mark_previous_answered(&mut bytes);
        let flags = header().flags | PREVIOUS_ANSWERED;
        let settled = Header { flags, ..routed_header };
        assert_eq!(read(&bytes).unwrap().unwrap().header, settled);
        bytes[6] = header().flags as u8;
        route(&mut bytes, 2, 3, 4);
        bytes.extend_from_slice(b"the next frame");
        let frame = read(&bytes).unwrap().unwrap();
        assert_eq!((frame.header, frame.body), (header(), &b"what is asked"[..]));
        assert_eq!(stamps(&frame), Some([0, 0, 1 << 60 | 7, 0]));
        for cut in 0..800 {
            assert_eq!(read(&bytes[..cut]), Ok(None), "cut at {cut}");
        }
        bytes[70] ^= 1;
        assert_eq!(read(&bytes), Err(Meaningless));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_frame_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300),
                                            length in 0u32..400) {
            let mut bytes = bytes;
            if bytes.len() > 8 {
                bytes[..4].copy_from_slice(&length.to_le_bytes());
                bytes[4] = VERSION;
            }
            let _ = read(&bytes);
            stamp(&mut bytes, 3, 1);
        }
    }
}
