//! The folder of journals: privacy, lock, torn and damaged lines, limits.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use nm_settings::target::{MachineSetting, Target};
use nm_tune::journal::{Folder, JOURNAL_BYTES_MAX, JOURNALS_MAX, JournalError};
use nm_tune::plan::Wanted;
use nm_tune::undo::Choices;

use crate::simulated::{Bench, folder, step_change};

fn applied() -> Bench {
    let mut bench = Bench::new();
    let target = Target::Machine { setting: MachineSetting::Ksm };
    bench.apply(&[step_change(target, Wanted::Word("0".into()))]).unwrap();
    bench
}

#[test]
fn a_second_process_does_not_get_the_lock() {
    let bench = Bench::new();
    let lock = bench.lock();
    assert!(matches!(bench.folder.lock(), Err(JournalError::Busy(_))));
    drop(lock);
    bench.lock();
}

#[test]
fn a_folder_that_others_can_write_to_is_refused() {
    let temporary = folder();
    let path = temporary.path().join("journal");
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
    let error = Folder::open(&path).unwrap_err();
    assert!(matches!(error, JournalError::NotPrivate { .. }), "{error}");
    let link = temporary.path().join("link");
    std::os::unix::fs::symlink("/", &link).unwrap();
    assert!(matches!(Folder::open(&link), Err(JournalError::NotPrivate { .. })));
    assert!(Folder::existing(&temporary.path().join("none")).unwrap().is_none());
}

#[test]
fn a_torn_last_line_is_cut_off_and_a_damaged_one_is_an_error() {
    let mut bench = applied();
    let path = bench.folder.path().join("run-1.jsonl");
    let good = fs::read(&path).unwrap();
    for tail in ["{\"state\":\"und", "\u{fffd}\n", "{\"state\":\"complete\"}"] {
        fs::write(&path, [good.as_slice(), tail.as_bytes()].concat()).unwrap();
        assert_eq!(bench.run().changes.len(), 1, "{tail:?}");
        let lock = bench.lock();
        bench.folder.resume(&bench.id, &lock).unwrap();
        assert_eq!(fs::read(&path).unwrap(), good, "{tail:?}");
    }
    let first_end = good.iter().position(|byte| *byte == b'\n').unwrap();
    let damaged = [&good[..=first_end], b"x\n", &good[first_end + 1..]].concat();
    fs::write(&path, damaged).unwrap();
    let error = bench.folder.run(&bench.id).unwrap_err();
    assert!(matches!(error, JournalError::Damaged { line: 2, .. }), "{error}");
    fs::write(&path, good).unwrap();
    bench.undo(&Choices::default()).unwrap();
}

#[test]
fn a_journal_without_a_first_line_changed_nothing() {
    let bench = applied();
    let path = bench.folder.path().join("run-1.jsonl");
    fs::write(&path, "{\"state\":\"beg").unwrap();
    assert!(bench.folder.run(&bench.id).unwrap().is_none());
    assert!(bench.folder.runs().unwrap().is_empty());
    let unknown = "run-2".parse().unwrap();
    assert!(matches!(bench.folder.run(&unknown), Err(JournalError::Unknown(_))));
    fs::write(&path, "{\"state\":\"complete\"}\n").unwrap();
    assert!(matches!(bench.folder.run(&bench.id), Err(JournalError::Foreign(_))));
}

#[test]
fn journals_have_limits() {
    let bench = applied();
    let path = bench.folder.path().join("run-1.jsonl");
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(JOURNAL_BYTES_MAX + 1).unwrap();
    assert!(matches!(bench.folder.run(&bench.id), Err(JournalError::TooLarge { .. })));
    fs::remove_file(&path).unwrap();
    for number in 0..=JOURNALS_MAX {
        fs::write(bench.folder.path().join(format!("r{number}.jsonl")), "").unwrap();
    }
    assert!(matches!(bench.folder.ids(), Err(JournalError::TooLarge { .. })));
}
