//! The bytes of a journal file.
//!
//! ```text
//! file    0 "nmjournl"   8 index of the first record u64   16 crc32c of 0..16 u32   20 salt u32
//!         24 records, each padded with zeros to a multiple of 8 bytes, then zeros to the end, or
//!         what the file contained before, if the salt is not zero
//! record  0 length u32   4 crc32c of everything behind it u32   8 index u64   16 term u64
//!         24 durable u64   32 kind u8   33 zeros   40 content
//! ```
//!
//! `durable` is the index up to which the disk had everything when the record was written. That
//! tells damage from a torn end. Pages of one sync reach the disk in any order, so that a bad
//! record may be followed by good ones after a crash. But if one of those says that the disk had
//! the bad record already, the record was good once and has been damaged since. For the end of the
//! journal, behind which there is no record to say so, see the module `watermark`.
//!
//! A file that is not needed any more is used again as it is, with a **salt** that was drawn for
//! it. All of its checksums begin with the salt. So no record from before is ever taken for one of
//! now, wherever it is: with another beginning, the checksum of the same bytes differs.

use nm_codec::{Field, Put, crc32c_append};

const MARK: &[u8; 8] = b"nmjournl";

/// The header of a file.
mod file {
    use super::{Field, MARK};

    pub const FIRST: Field<u64> = Field::at("first index", MARK.len());
    pub const CHECKSUM: Field<u32> = Field::after("checksum", &FIRST);
    pub const SALT: Field<u32> = Field::after("salt", &CHECKSUM);
}

/// The header of a record.
mod record {
    use super::Field;

    pub const LENGTH: Field<u32> = Field::first("length");
    pub const CHECKSUM: Field<u32> = Field::after("checksum", &LENGTH);
    pub const INDEX: Field<u64> = Field::after("index", &CHECKSUM);
    pub const TERM: Field<u64> = Field::after("term", &INDEX);
    pub const DURABLE: Field<u64> = Field::after("durable", &TERM);
    /// The kind and zeros.
    pub const KIND: Field<u64> = Field::after("kind", &DURABLE);
}

/// Bytes before the first record.
pub const HEADER_BYTES: usize = file::SALT.end();

/// Bytes of a record before its content.
pub const RECORD_BYTES: usize = record::KIND.end();

const _: () = assert!(HEADER_BYTES == 24 && RECORD_BYTES == 40);

/// Where a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// First byte of the record in its file.
    pub start: usize,
    /// Bytes of content.
    pub length: usize,
    /// Its index.
    pub index: u64,
    /// Its term.
    pub term: u64,
    /// Index up to which the disk had everything when it was written.
    pub durable: u64,
    /// Code of its kind; one of another version is found as well.
    pub kind: u8,
}

/// What a file contains.
#[derive(Debug, PartialEq, Eq)]
pub struct Scan {
    /// Whether its header is intact.
    pub has_header: bool,
    /// Its records up to the first that is not intact.
    pub places: Vec<Place>,
    /// Where the first record that is not intact begins.
    pub end: usize,
    /// What its checksums begin with.
    pub salt: u32,
    /// Bytes behind the end, up to the last that is not zero; in a file that was used before, up to
    /// the end of the last intact record there.
    pub torn_bytes: u64,
    /// Highest index that an intact record behind the end says the disk had; zero for none.
    pub durable: u64,
    /// Term and index of the last intact record behind the end.
    pub behind: Option<(u64, u64)>,
}

/// Bytes that a record with this content takes.
pub fn size_of(content_bytes: usize) -> u64 {
    (RECORD_BYTES + content_bytes).next_multiple_of(8) as u64
}

/// The header of a file: its first index, and the salt, which is zero for a file of zeros.
pub fn header(first: u64, salt: u32) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..MARK.len()].copy_from_slice(MARK);
    file::FIRST.set(&mut bytes, first);
    let checksum = crc32c_append(salt, &bytes[..file::FIRST.end()]);
    file::CHECKSUM.set(&mut bytes, checksum);
    file::SALT.set(&mut bytes, salt);
    bytes
}

/// Appends a record; its `start` and `length` are not used.
pub fn write(out: &mut Vec<u8>, salt: u32, place: &Place, content: &[u8]) {
    let Place { index, term, durable, kind, .. } = *place;
    debug_assert!(durable < index, "a record is not durable before it is written");
    let start = out.len();
    out.put(&[0; RECORD_BYTES]);
    out.put(content);
    let bytes = &mut out[start..];
    record::LENGTH.set(bytes, content.len() as u32);
    record::INDEX.set(bytes, index);
    record::TERM.set(bytes, term);
    record::DURABLE.set(bytes, durable);
    record::KIND.set(bytes, kind.into());
    let checksum = crc32c_append(salt, &bytes[record::CHECKSUM.end()..]);
    record::CHECKSUM.set(bytes, checksum);
    out.resize(start + size_of(content.len()) as usize, 0);
}

/// The record at a place, if an intact one is there.
fn read(bytes: &[u8], start: usize, salt: u32) -> Option<Place> {
    let header = bytes.get(start..)?.first_chunk::<RECORD_BYTES>()?;
    let length = record::LENGTH.get(header) as usize;
    let end = start.checked_add(RECORD_BYTES + length)?;
    let covered = bytes.get(start + record::CHECKSUM.end()..end)?;
    let (index, term) = (record::INDEX.get(header), record::TERM.get(header));
    let durable = record::DURABLE.get(header);
    let kind = u8::try_from(record::KIND.get(header)).ok()?;
    let checksum = record::CHECKSUM.get(header);
    if index == 0 || durable >= index || crc32c_append(salt, covered) != checksum {
        return None;
    }
    Some(Place { start, length, index, term, durable, kind })
}

/// Reads a file whose first record is to be `first`; `salt` is what is known of its salt if its
/// header is damaged.
pub fn scan(bytes: &[u8], first: u64, salt: Option<u32>) -> Scan {
    let own = bytes.first_chunk::<HEADER_BYTES>().map_or(0, |header| file::SALT.get(header));
    let has_header = bytes.starts_with(&header(first, own));
    let salt = if has_header { own } else { salt.unwrap_or(own) };
    let (places, end) = (vec![], HEADER_BYTES);
    let mut scan = Scan { has_header, places, end, salt, torn_bytes: 0, durable: 0, behind: None };
    let mut next = first;
    while let Some(place) = read(bytes, scan.end, salt).filter(|place| place.index == next) {
        scan.places.push(place);
        scan.end += size_of(place.length) as usize;
        next += 1;
    }
    scan_behind_end(&mut scan, bytes, next);
    scan
}

/// Looks for intact records behind the end, where `next` is the index that is missing.
fn scan_behind_end(scan: &mut Scan, bytes: &[u8], next: u64) {
    let rest = bytes.get(scan.end..).unwrap_or_default();
    let used = used_bytes(rest);
    scan.torn_bytes = if scan.salt == 0 { used as u64 } else { 0 };
    let most = (rest.len() / RECORD_BYTES) as u64;
    // Records begin at multiples of 8. The cheap test first: most of the bytes are content.
    for at in (0..used).step_by(8) {
        let is_likely = rest[at..].get(record::INDEX.range()).is_some_and(|_| {
            let index = record::INDEX.get(&rest[at..]);
            (next..=next.saturating_add(most)).contains(&index)
        });
        if is_likely && let Some(place) = read(bytes, scan.end + at, scan.salt) {
            scan.durable = scan.durable.max(place.durable);
            scan.behind = scan.behind.max(Some((place.term, place.index)));
            scan.torn_bytes = scan.torn_bytes.max(at as u64 + size_of(place.length));
        }
    }
}

/// The number of bytes up to the last one that is not zero. It compares blocks, because a file that
/// was made in advance ends with megabytes of zeros.
fn used_bytes(bytes: &[u8]) -> usize {
    const ZEROS: [u8; 4096] = [0; 4096];
    let mut end = bytes.len();
    for block in bytes.rchunks(ZEROS.len()) {
        if block != &ZEROS[..block.len()] {
            let zeros = block.iter().rev().take_while(|byte| **byte == 0).count();
            return end - zeros;
        }
        end -= block.len();
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn used_bytes_end_with_the_last_that_is_not_zero(
            size in 0usize..20_000,
            places in prop::collection::vec(any::<prop::sample::Index>(), 0..3),
        ) {
            let mut bytes = vec![0; size];
            let places = places.iter().filter(|_| size > 0).map(|place| place.index(size));
            let last = places.inspect(|place| bytes[*place] = 1).max();
            prop_assert_eq!(used_bytes(&bytes), last.map_or(0, |last| last + 1));
        }
    }

    proptest! {
        #[test]
        fn records_round_trip(
            contents in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 1..8),
            (first, salt, term, kind) in (1u64..1 << 40, any::<u32>(), any::<u64>(), any::<u8>()),
        ) {
            let mut bytes = header(first, salt).to_vec();
            let mut places = vec![];
            for (content, index) in contents.iter().zip(first..) {
                let (start, length, durable) = (bytes.len(), content.len(), index - 1);
                let place = Place { start, length, index, term, durable, kind };
                write(&mut bytes, salt, &place, content);
                places.push(place);
            }
            let scan = scan(&bytes, first, None);
            prop_assert!(scan.has_header);
            prop_assert_eq!((&scan.places, scan.end), (&places, bytes.len()));
            prop_assert_eq!((scan.salt, scan.torn_bytes, scan.durable), (salt, 0, 0));
            for (place, content) in places.iter().zip(&contents) {
                let at = place.start + RECORD_BYTES;
                prop_assert_eq!(&bytes[at..at + place.length], &content[..]);
            }
        }

        #[test]
        fn any_bytes_are_scanned(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let found = scan(&bytes, 1, None);
            prop_assert!(found.end <= bytes.len().max(HEADER_BYTES));
        }
    }
}
