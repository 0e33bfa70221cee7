//! The journal: what is read back after cuts, crashes and damage, and what a full disk does.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use nm_model::agent::Failure;
use nm_replica::journal::{Journal, JournalError, Reader, Record, RecordKind, Recorder, Settings};
use proptest::prelude::*;
use tempfile::TempDir;

const SMALL: Settings = Settings { file_bytes: 512 };

fn record(index: u64, size: usize) -> Record {
    let bytes = (0..size).map(|at| (at as u64 * 7 + index) as u8).collect();
    Record { index, term: index / 4 + 1, kind: RecordKind::Batch, bytes }
}

fn append(journal: &mut Journal, record: &Record) {
    journal.append(record.index, record.term, record.kind, &record.bytes).unwrap();
}

fn opened(folder: &Path) -> (Journal, Vec<Record>) {
    let (journal, found) = Journal::open(folder, SMALL, 0).unwrap();
    (journal, found.records)
}

fn read(folder: &Path) -> Vec<Record> {
    let mut reader = Reader::open(folder).unwrap();
    std::iter::from_fn(|| reader.next_record().unwrap()).collect()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        all.filter(|path| path.extension().is_some_and(|end| end == "journal")).collect();
    files.sort();
    files
}

#[test]
fn records_are_read_back_after_purge_truncate_and_restart() {
    let folder = TempDir::new().unwrap();
    let all: Vec<Record> = (1..=40).map(|index| record(index, index as usize * 3)).collect();
    let (mut journal, found) = opened(folder.path());
    assert_eq!((found, journal.span()), (vec![], None));
    for record in &all {
        append(&mut journal, record);
    }
    journal.sync().unwrap();
    assert!(files(folder.path()).len() > 5, "many files");
    assert_eq!(read(folder.path()), all);
    drop(journal);
    let (mut journal, found) = opened(folder.path());
    assert_eq!(found, all);
    journal.purge(20).unwrap();
    let (first, last) = journal.span().unwrap();
    assert!(first <= 21 && first > 15 && last == 40);
    journal.truncate(30).unwrap();
    assert_eq!(journal.span(), Some((first, 29)));
    let other = Record { term: 99, ..record(30, 100) };
    append(&mut journal, &other);
    journal.sync().unwrap();
    let wanted: Vec<Record> = all[first as usize - 1..29].iter().chain([&other]).cloned().collect();
    assert_eq!(read(folder.path()), wanted);
    drop(journal);
    let (mut journal, found) = opened(folder.path());
    assert_eq!(found, wanted);
    let wrong = journal.append(32, 1, RecordKind::Batch, &[]).unwrap_err();
    let message = wrong.to_string();
    assert!(message.contains("32") && message.contains("31"), "{message}");
    assert!(journal.append(31, 1, RecordKind::Batch, &[0; 500]).is_err(), "larger than a file");
    journal.truncate(1).unwrap();
    assert_eq!(journal.next(), Some(first));
    journal.restart(100).unwrap();
    append(&mut journal, &record(101, 5));
    journal.sync().unwrap();
    drop(journal);
    assert_eq!(opened(folder.path()).1, [record(101, 5)]);
}

#[test]
fn damage_before_the_end_is_refused_with_a_message() {
    let folder = TempDir::new().unwrap();
    let (mut journal, _) = opened(folder.path());
    for index in 1..=12 {
        append(&mut journal, &record(index, 60));
        journal.sync().unwrap();
    }
    drop(journal);
    let paths = files(folder.path());
    for path in &paths[..paths.len() - 1] {
        let intact = fs::read(path).unwrap();
        for at in (0..intact.len() - 100).step_by(13) {
            let mut bytes = intact.clone();
            bytes[at] ^= 0x40;
            fs::write(path, &bytes).unwrap();
            let refused = Journal::open(folder.path(), SMALL, 0);
            // Zeros behind a record's content are not covered by its checksum.
            if let Err(error) = refused {
                let failure = Failure::from(error);
                assert!(failure.message.contains("damaged"), "{failure}");
                assert!(failure.hint.is_some());
            } else {
                assert_eq!(read(folder.path()).len(), 12, "byte {at} of {path:?}");
            }
        }
        fs::write(path, &intact).unwrap();
    }
    fs::remove_file(&paths[1]).unwrap();
    let message = Journal::open(folder.path(), SMALL, 0).unwrap_err().to_string();
    assert!(message.contains("missing"), "{message}");
}

#[test]
fn after_a_full_disk_the_journal_accepts_nothing() {
    let folder = TempDir::new().unwrap();
    std::os::unix::fs::symlink("/dev/full", folder.path().join("spare.tmp")).unwrap();
    let (mut journal, _) = opened(folder.path());
    let failure = |result: Result<(), JournalError>| Failure::from(result.unwrap_err());
    let first = failure(journal.append(1, 1, RecordKind::Batch, b"lost"));
    let message = first.to_string();
    assert!(message.contains("cannot grow") && message.contains("make room"), "{message}");
    assert_eq!(failure(journal.append(1, 1, RecordKind::Batch, b"lost")), first);
    assert_eq!(failure(journal.sync()), first);
    assert_eq!(failure(journal.truncate(1)), first);
}

#[test]
fn a_recorder_fills_gaps_and_records_nothing_twice() {
    let folder = TempDir::new().unwrap();
    let mut recorder = Recorder::open(folder.path(), SMALL).unwrap();
    recorder.batch(2, 5, b"two").unwrap();
    recorder.batch(2, 5, b"two").unwrap();
    recorder.batch(4, 6, b"four").unwrap();
    recorder.flush().unwrap();
    drop(recorder);
    let mut recorder = Recorder::open(folder.path(), SMALL).unwrap();
    recorder.missed(3).unwrap();
    recorder.batch(4, 6, b"four").unwrap();
    recorder.missed(5).unwrap();
    recorder.batch(6, 7, b"six").unwrap();
    recorder.flush().unwrap();
    let records = read(folder.path());
    let batches: Vec<(u64, &[u8])> = records
        .iter()
        .filter(|record| record.kind == RecordKind::Batch)
        .map(|record| (record.index, &record.bytes[..]))
        .collect();
    assert_eq!(batches, [(2, &b"two"[..]), (4, b"four"), (6, b"six")]);
    assert_eq!(records.len(), 6);
    assert_eq!(records[4].kind, RecordKind::Missed);
}

/// A journal whose last file was used before, and is full of records that look like new ones; and
/// the first index to go on with.
fn used(folder: &Path) -> (Journal, u64) {
    let (mut journal, _) = opened(folder);
    for index in 1..=40 {
        append(&mut journal, &record(index, 60));
        journal.sync().unwrap();
        journal.purge(index - 1).unwrap();
    }
    assert_eq!(files(folder).len(), 1, "purged files are removed");
    let bytes = fs::read(files(folder).pop().unwrap()).unwrap();
    assert_ne!(bytes[20..24], [0; 4], "the file was used before");
    assert_ne!(bytes[bytes.len() - 100..], [0; 100], "and was not filled with zeros");
    (journal, 41)
}

#[test]
fn a_file_that_was_purged_is_used_again() {
    let folder = TempDir::new().unwrap();
    let (mut journal, next) = used(folder.path());
    let inode = |path: &Path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap());
    let before = inode(&files(folder.path())[0]);
    let mut is_reused = false;
    for index in next..next + 20 {
        append(&mut journal, &record(index, 60));
        journal.sync().unwrap();
        journal.purge(index - 1).unwrap();
        let now = files(folder.path());
        assert_eq!(now.len(), 1);
        is_reused |= index > next + 12 && inode(&now[0]) == before;
    }
    assert!(is_reused, "one of two files is used again");
    let kept = read(folder.path());
    drop(journal);
    assert!(!folder.path().join("spare.tmp").exists());
    // It goes on in the same file, and truncates it.
    let (mut journal, found) = opened(folder.path());
    assert_eq!(found, kept);
    append(&mut journal, &record(next + 20, 30));
    journal.sync().unwrap();
    journal.truncate(next + 20).unwrap();
    drop(journal);
    assert_eq!(opened(folder.path()).1, kept);
}

/// Sizes of records, and whether a sync follows each.
fn plan() -> impl Strategy<Value = Vec<(usize, bool)>> {
    prop::collection::vec((0usize..120, any::<bool>()), 1..30)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// The last file ends at any byte, as when the rest never reached the disk.
    #[test]
    fn any_cut_replays_a_prefix(
        plan in plan(),
        is_used: bool,
        at in any::<prop::sample::Index>(),
    ) {
        let folder = TempDir::new().unwrap();
        let (mut journal, first) =
            if is_used { used(folder.path()) } else { (opened(folder.path()).0, 1) };
        let mut all = read(folder.path());
        let start = all.len();
        all.extend(plan.iter().zip(first..).map(|((size, _), index)| record(index, *size)));
        let first = all[0].index;
        for (record, (_, is_synced)) in all[start..].iter().zip(&plan) {
            append(&mut journal, record);
            if *is_synced {
                journal.sync().unwrap();
            }
        }
        journal.sync().unwrap();
        drop(journal);
        let last = files(folder.path()).pop().unwrap();
        // The header of a file is on the disk before the file has its name.
        let cut = 24 + at.index(512 - 24) as u64;
        let file = OpenOptions::new().write(true).open(&last).unwrap();
        file.set_len(cut).unwrap();
        let (mut journal, found) = opened(folder.path());
        prop_assert!(all.starts_with(&found));
        let next = first + found.len() as u64;
        append(&mut journal, &record(next, 10));
        journal.sync().unwrap();
        prop_assert_eq!(read(folder.path()).len(), found.len() + 1);
    }

    /// The machine stops: of what was written since the last sync, any blocks reached the disk.
    #[test]
    fn any_crash_keeps_what_was_synced(
        plan in plan(),
        is_used: bool,
        blocks in any::<[u64; 8]>(),
    ) {
        let folder = TempDir::new().unwrap();
        let (mut journal, first) =
            if is_used { used(folder.path()) } else { (opened(folder.path()).0, 1) };
        let mut all = read(folder.path());
        let mut synced = all.len();
        let last = files(folder.path()).pop();
        let mut before = last.map(|path| fs::read(path).unwrap()).unwrap_or_default();
        for ((size, is_synced), index) in plan.iter().zip(first..) {
            all.push(record(index, *size));
            let count = files(folder.path()).len();
            append(&mut journal, &all[all.len() - 1]);
            if files(folder.path()).len() != count {
                synced = all.len() - 1;
                before = fs::read(files(folder.path()).pop().unwrap()).unwrap();
            }
            if *is_synced {
                journal.sync().unwrap();
                synced = all.len();
                before = fs::read(files(folder.path()).pop().unwrap()).unwrap();
            }
        }
        journal.flush().unwrap();
        drop(journal);
        let last = files(folder.path()).pop().unwrap();
        let mut bytes = fs::read(&last).unwrap();
        for (number, block) in bytes.chunks_mut(8).enumerate() {
            if blocks[number / 8 % 8] >> (number % 64) & 1 == 0 {
                block.copy_from_slice(&before[number * 8..][..8]);
            }
        }
        fs::write(&last, &bytes).unwrap();
        let (_, found) = opened(folder.path());
        prop_assert!(all.starts_with(&found), "{} of {}", found.len(), all.len());
        prop_assert!(found.len() >= synced, "{} of {synced}", found.len());
    }
}
