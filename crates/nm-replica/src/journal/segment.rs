//! The bytes of a journal file.
//!
//! ```text
//! file    0 "nmjournl"   8 index of the first record u64   16 crc32c of 0..16 u32   20 salt u32
//!         24 records, each padded with zeros to a multiple of 8 bytes, then zeros to the end, or
//!         what the file held before, if the salt is not zero
//! record  0 length u32   4 crc32c of everything behind it u32   8 index u64   16 term u64
//!         24 durable u64   32 kind u8   33 zeros   40 content
//! ```
//!
//! `durable` is the index up to which the disk had everything when the record was written. That
//! tells damage from a torn end: pages of one sync reach the disk in any order, so that a bad
//! record may be followed by good ones after a crash; but if one of those says that the disk had
//! the bad record already, the record was good once and has been damaged since.
//!
//! A file that is not needed any more is used again as it is, with a **salt** that was drawn for
//! it. All of its checksums begin with the salt. So no record from before is ever taken for one of
//! now, wherever it lies: with another beginning, the checksum of the same bytes differs.

use nm_codec::Fields;

use super::RecordKind;

/// Bytes before the first record.
pub const HEADER_BYTES: usize = 24;

/// Bytes of a record before its content.
pub const RECORD_BYTES: usize = 40;

const MARK: &[u8; 8] = b"nmjournl";

/// Where a record lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// First byte of the record in its file.
    pub start: usize,
    /// Bytes of content.
    pub length: usize,
    /// Its number.
    pub index: u64,
    /// Its term.
    pub term: u64,
    /// Index up to which the disk had everything when it was written.
    pub durable: u64,
    /// What it holds.
    pub kind: RecordKind,
}

/// What a file holds.
#[derive(Debug, PartialEq, Eq)]
pub struct Scan {
    /// Whether its header is right.
    pub has_header: bool,
    /// Its records up to the first that is not good.
    pub places: Vec<Place>,
    /// Where the first that is not good begins.
    pub end: usize,
    /// What its checksums begin with.
    pub salt: u32,
    /// Bytes behind the end, up to the last that is not zero; in a file that was used before, up to
    /// the end of the last good record there.
    pub torn_bytes: u64,
    /// Highest index that a good record behind the end says the disk had; zero for none.
    pub promised: u64,
}

/// Bytes that a record with this content takes.
pub fn size_of(content_bytes: usize) -> u64 {
    (RECORD_BYTES + content_bytes).next_multiple_of(8) as u64
}

/// The header of a file: its first index, and the salt, which is zero for one of zeros.
pub fn header(first: u64, salt: u32) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..8].copy_from_slice(MARK);
    bytes[8..16].copy_from_slice(&first.to_le_bytes());
    let checksum = nm_codec::crc32c_append(salt, &bytes[..16]);
    bytes[16..20].copy_from_slice(&checksum.to_le_bytes());
    bytes[20..24].copy_from_slice(&salt.to_le_bytes());
    bytes
}

/// Appends a record; its `start` and `length` do not matter.
pub fn write(out: &mut Vec<u8>, salt: u32, record: &Place, content: &[u8]) {
    let Place { index, term, durable, kind, .. } = *record;
    let start = out.len();
    out.extend_from_slice(&(content.len() as u32).to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    for number in [index, term, durable, u64::from(kind.code())] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.extend_from_slice(content);
    let checksum = nm_codec::crc32c_append(salt, &out[start + 8..]);
    out[start + 4..start + 8].copy_from_slice(&checksum.to_le_bytes());
    out.resize(start + size_of(content.len()) as usize, 0);
}

/// The record at a place, if a good one is there.
fn read(bytes: &[u8], start: usize, salt: u32) -> Option<Place> {
    let mut fields = Fields(bytes.get(start..)?);
    let length = fields.u32().ok()? as usize;
    let checksum = fields.u32().ok()?;
    let covered = bytes.get(start + 8..start.checked_add(RECORD_BYTES + length)?)?;
    let (index, term) = (fields.u64().ok()?, fields.u64().ok()?);
    let (durable, kind) = (fields.u64().ok()?, fields.u64().ok()?);
    let kind = RecordKind::from_code("kind", u8::try_from(kind).ok()?).ok()?;
    if index == 0 || durable >= index || nm_codec::crc32c_append(salt, covered) != checksum {
        return None;
    }
    Some(Place { start, length, index, term, durable, kind })
}

/// Reads a file whose first record is to be `first`.
pub fn scan(bytes: &[u8], first: u64) -> Scan {
    let salt = bytes.get(20..HEADER_BYTES).and_then(|bytes| bytes.first_chunk());
    let salt = salt.map_or(0, |salt| u32::from_le_bytes(*salt));
    let has_header = bytes.starts_with(&header(first, salt));
    let (places, end) = (vec![], HEADER_BYTES);
    let mut scan = Scan { has_header, places, end, salt, torn_bytes: 0, promised: 0 };
    let mut next = first;
    while let Some(place) = read(bytes, scan.end, salt).filter(|place| place.index == next) {
        scan.places.push(place);
        scan.end += size_of(place.length) as usize;
        next += 1;
    }
    let rest = bytes.get(scan.end..).unwrap_or_default();
    let used = rest.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    scan.torn_bytes = if salt == 0 { used as u64 } else { 0 };
    let most = (rest.len() / RECORD_BYTES) as u64;
    // Records begin at multiples of 8. The cheap test first: most of what is there is content.
    for at in (0..used).step_by(8) {
        let is_likely = rest.get(at + 8..at + 16).is_some_and(|index| {
            let index = index.iter().rev().fold(0, |index, byte| index << 8 | u64::from(*byte));
            (next..=next.saturating_add(most)).contains(&index)
        });
        if is_likely && let Some(place) = read(bytes, scan.end + at, salt) {
            scan.promised = scan.promised.max(place.durable);
            scan.torn_bytes = scan.torn_bytes.max(at as u64 + size_of(place.length));
        }
    }
    scan
}
