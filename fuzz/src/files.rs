//! The folder of a replica, as a damaged disk may return it.

use std::cell::RefCell;
use std::fs;
use std::path::Path;

use nm_replica::journal::format::{self, Place};
use nm_replica::journal::{Journal, Reader, Record, RecordKind, Settings};
use tempfile::TempDir;

/// Bytes of a journal's file here.
const FILE_BYTES: u64 = 4096;

/// Index of the last record after which files are no longer appended to.
const INDEX_MAX: u64 = 1 << 40;

thread_local! {
    /// In memory: a sync costs nothing there.
    static FOLDER: RefCell<Option<TempDir>> = const { RefCell::new(None) };
}

/// Files of a journal, a snapshot and a file of state hashes. What a reader accepts, a writer
/// accepts as well, continues, and reads back.
pub fn journal(bytes: &[u8]) {
    FOLDER.with_borrow_mut(|folder| {
        let folder = folder.get_or_insert_with(|| {
            let memory = Path::new("/dev/shm");
            let place = if memory.is_dir() { memory } else { &std::env::temp_dir() };
            tempfile::tempdir_in(place).expect("a folder in memory")
        });
        let own = folder.path().join("cell-0");
        let _ = fs::remove_dir_all(&own);
        fs::create_dir(&own).expect("a folder");
        check(&own, bytes);
    });
}

fn check(folder: &Path, bytes: &[u8]) {
    write_files(folder, bytes);
    let _ = nm_replica::saved_snapshot(folder);
    let read = read_all(folder);
    let settings = Settings { file_bytes: FILE_BYTES };
    let opened = Journal::open(folder, settings.clone(), 0);
    let (Some(read), Ok((mut journal, found))) = (&read, opened) else { return };
    assert_eq!(&found.records, read, "a writer finds what a reader finds");
    let next = read.last().map_or(1, |last| last.index + 1);
    if next > INDEX_MAX || journal.next().is_some_and(|own| own != next) {
        return;
    }
    if journal.append(next, u64::MAX, RecordKind::Batch, b"one more").is_ok() {
        journal.sync().expect("the folder is writable");
        drop(journal);
        let again = read_all(folder).expect("what was written can be read");
        assert_eq!(again.len(), read.len() + 1);
        assert_eq!(&again[..read.len()], &read[..]);
    }
}

/// The records of a journal; none if it is damaged.
fn read_all(folder: &Path) -> Option<Vec<Record>> {
    let (mut reader, mut all) = (Reader::open(folder).ok()?, Vec::<Record>::new());
    while let Some(record) = reader.next_record().ok()? {
        assert!(all.last().is_none_or(|last| last.index + 1 == record.index));
        all.push(record);
    }
    Some(all)
}

/// Takes the bytes as they are for a file, or as the description of several with right checksums
/// and some damage.
fn write_files(folder: &Path, bytes: &[u8]) {
    let [mode, rest @ ..] = bytes else { return };
    if mode & 1 == 0 {
        write(folder, 1, rest);
        let mut snapshot = nm_codec::crc32c(rest).to_le_bytes().to_vec();
        snapshot.extend_from_slice(rest);
        let content = if mode & 2 == 0 { rest } else { &snapshot };
        fs::write(folder.join("snapshot"), content).expect("the folder is writable");
        return;
    }
    let (mut index, mut term) = (u64::from(mode >> 1) + 1, 0);
    let mut words = rest.chunks(4);
    let salt = words.next().map_or(0, |word| u32::from(word[0] % 2) * 77);
    let (mut first, mut file) = (index, format::header(index, salt).to_vec());
    for word in words {
        let [code, a, b, c] = word else { break };
        match code % 8 {
            // A record, whose content repeats a byte.
            0..=4 => {
                let content = vec![*b; usize::from(*a)];
                let durable = index.saturating_sub(u64::from(code / 8)).min(index - 1);
                term += u64::from(c / 128);
                let (start, length) = (file.len(), content.len());
                let place = Place { start, length, index, term, durable, kind: c % 5 };
                format::write(&mut file, salt, &place, &content);
                index += 1;
            }
            // The next file, sometimes with a gap before it.
            5 => {
                file.resize(file.len().max(usize::from(*b) * 16), 0);
                write(folder, first, &file);
                index += u64::from(a / 250);
                (first, file) = (index, format::header(index, salt).to_vec());
            }
            // A damaged byte.
            6 => {
                let at = (usize::from(*a) << 8 | usize::from(*b)) % file.len();
                file[at] ^= c;
            }
            _ => file.truncate(usize::from(*a) << 4 | usize::from(*b)),
        }
        if file.is_empty() {
            break;
        }
    }
    write(folder, first, &file);
}

fn write(folder: &Path, first: u64, bytes: &[u8]) {
    let path = folder.join(format!("{first:020}.journal"));
    fs::write(path, bytes).expect("the folder is writable");
}

pub fn seeds() -> Vec<Vec<u8>> {
    let mut all = crate::random();
    for seed in &mut all {
        seed[0] |= 1;
    }
    let records = [[1, 0, 0, 0, 0], [0; 5], [9, 20, 7, 1, 0]].concat();
    let mut file = format::header(1, 0).to_vec();
    let place = Place { start: 0, length: 4, index: 1, term: 1, durable: 0, kind: 1 };
    format::write(&mut file, 0, &place, b"abcd");
    all.push(records);
    all.push([&[0], &file[..]].concat());
    all.push([&[2], &file[..]].concat());
    all
}
