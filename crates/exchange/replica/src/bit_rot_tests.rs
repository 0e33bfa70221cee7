//! One bit of any file of a replica changes while the replica is down. It starts with all that it
//! had, or notices what it lacks and requires it from the others, or refuses to start in a
//! sentence. `NM_TRIALS` changes the number of bits, each of which follows from its number.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use nm_codec::Random;
use openraft::{CommittedLeaderId, LogId, SnapshotMeta, StoredMembership, Vote};

use crate::committed::{CommittedFile, CommittedIndex};
use crate::content_format::{self, ContentFormat, ContentKind};
use crate::encode::Encode;
use crate::env::Machine;
use crate::error::ReplicaError;
use crate::files::write_atomically;
use crate::hard_state::{HARD_STATE, HardState, MARKS};
use crate::journal::{Journal, Record, RecordKind, Settings};
use crate::log_store::read_hard_state;
use crate::recovery::Opened;
use crate::saved;
use crate::slot_file::SlotFile;
use crate::state_machine::{SNAPSHOT, last_in_snapshot};
use crate::types::{NodeId, term_of};

const SMALL: Settings = Settings { file_bytes: 2048 };
const KIND: ContentKind = ContentKind { code: 2, name: "Request", digest: 5 };
const FORMAT: ContentFormat = ContentFormat { program: "1.0", version: 9, kinds: &[KIND] };
const PURGED: u64 = 10;
const LAST: u64 = 40;

fn leader() -> CommittedLeaderId<NodeId> {
    CommittedLeaderId::new(2, 1)
}

fn entry(index: u64) -> Option<LogId<NodeId>> {
    Some(LogId::new(leader(), index - 1))
}

/// The files of a replica that has a snapshot of the first records, and acknowledged the others.
fn write(folder: &Path) {
    let env = Machine::env();
    content_format::admit(&env, folder, &FORMAT).unwrap();
    let (vote, purged) = (Some(Vote::new(2, 1)), entry(PURGED));
    let state = HardState { bootstrap_ids: vec![7, 8, 9], vote, purged, ..HardState::default() };
    let path = folder.join(HARD_STATE);
    SlotFile::create(&env, &path, MARKS.now, &state.to_bytes()).unwrap();
    let (last_log_id, last_membership) = (entry(PURGED), StoredMembership::default());
    let meta = SnapshotMeta { last_log_id, last_membership, snapshot_id: "first".to_string() };
    let snapshot = [meta.to_bytes(), vec![3; 900]].concat();
    write_atomically(&env, &folder.join(SNAPSHOT), &snapshot).unwrap();
    let (mut journal, _) = Journal::open(folder, SMALL, 1).unwrap();
    for index in 1..=LAST {
        let content = vec![index as u8; 100 + index as usize];
        journal.append(index, term_of(&leader()), RecordKind::Batch, &content).unwrap();
        journal.sync().unwrap();
    }
    journal.purge(PURGED).unwrap();
    journal.advance_watermark().unwrap();
    let known = CommittedIndex::default();
    known.set(LAST);
    CommittedFile::new(known).write(&env, folder);
}

/// What a replica has when it starts.
struct Started {
    state: HardState,
    records: Vec<Record>,
    is_damaged: bool,
    snapshot: Option<LogId<NodeId>>,
}

/// As [`crate::log_store::LogStore::open`].
fn start(folder: &Path) -> Result<Started, ReplicaError> {
    let env = &Machine::env();
    content_format::admit(env, folder, &FORMAT)?;
    let (hard_state, file) = read_hard_state(env, folder)?;
    let (journal, is_single, damage) = (SMALL, false, None);
    let mut opened = Opened { env, folder, journal, is_single, hard_state, file, damage };
    let (_, found) = opened.open()?;
    let snapshot = last_in_snapshot(env, &folder.join(SNAPSHOT))?;
    let (state, is_damaged) = (opened.hard_state, opened.damage.is_some());
    Ok(Started { state, records: found.records, is_damaged, snapshot })
}

/// Checks a replica with a changed bit; how it started.
fn outcome(folder: &Path, intact: &Started, what: &str) -> &'static str {
    let committed = saved::committed(folder);
    assert!(committed == 0 || committed == LAST, "{what}: committed up to {committed}");
    let started = match start(folder) {
        Ok(started) => started,
        Err(refused) => {
            let sentence = refused.to_string();
            let names_it = sentence.contains(folder.to_str().unwrap());
            assert!(names_it && !sentence.contains('\n'), "{what}: {sentence}");
            return "refused";
        }
    };
    assert_eq!(started.state.vote, intact.state.vote, "{what}: a vote is forgotten");
    assert_eq!(started.state.bootstrap_ids, intact.state.bootstrap_ids, "{what}");
    let first = started.state.purged.map_or(1, |purged| purged.index + 2);
    for (record, index) in started.records.iter().zip(first..) {
        let known = intact.records.iter().find(|known| known.index == record.index);
        assert!(record.index == index && known.is_none_or(|known| known == record), "{what}");
    }
    if started.is_damaged {
        assert_eq!(started.state.required_log_id, entry(LAST), "{what}: a loss is not noticed");
        return "to be filled by others";
    }
    assert_eq!(started.records, intact.records, "{what}: records are lost without notice");
    assert_eq!(started.snapshot, intact.snapshot, "{what}: the snapshot is lost without notice");
    "complete"
}

fn copy(from: &Path) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    for path in paths(from) {
        fs::copy(&path, to.path().join(path.file_name().unwrap())).unwrap();
    }
    to
}

fn paths(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|it| it.unwrap().path()).collect();
    paths.sort();
    paths
}

/// What a file is, whatever its number.
fn kind(path: &Path) -> String {
    match path.extension() {
        Some(_) => "journal".to_string(),
        None => {
            path.file_name().unwrap().to_str().unwrap().trim_end_matches(['-', '1', '2']).into()
        }
    }
}

#[test]
fn no_bit_that_changes_in_any_file_of_a_replica_loses_anything_without_notice() {
    let trials = std::env::var("NM_TRIALS").ok().and_then(|it| it.parse().ok()).unwrap_or(240);
    let template = tempfile::tempdir().unwrap();
    write(template.path());
    let intact = start(copy(template.path()).path()).unwrap();
    assert_eq!((intact.records.len() as u64, intact.is_damaged), (LAST - PURGED, false));
    let mut of_kind: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for path in paths(template.path()) {
        of_kind.entry(kind(&path)).or_default().push(path);
    }
    let mut counts: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for trial in 0..trials {
        let mut random = Random::new(trial);
        let (kind, files) = of_kind.iter().nth(trial as usize % of_kind.len()).unwrap();
        let path = &files[random.below(files.len() as u64) as usize];
        let folder = copy(template.path());
        let path = folder.path().join(path.file_name().unwrap());
        let mut bytes = fs::read(&path).unwrap();
        let bit = random.below(bytes.len() as u64 * 8) as usize;
        bytes[bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, bytes).unwrap();
        let how = outcome(folder.path(), &intact, &format!("bit {bit} of {}", path.display()));
        *counts.entry((kind, how)).or_default() += 1;
    }
    println!("{counts:?}");
    let kinds: Vec<&String> = of_kind.keys().collect();
    let all = ["committed", "content-format", "hard-state", "journal", "snapshot", "watermark"];
    assert_eq!(kinds, all);
    // The test would not notice if nothing ever happened.
    let is_noticed = |kind| counts.contains_key(&(kind, "to be filled by others"));
    assert!(is_noticed("journal") && is_noticed("snapshot"), "{counts:?}");
}
