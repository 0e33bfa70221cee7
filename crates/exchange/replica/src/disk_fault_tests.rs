//! Journal, hard state and snapshot of one replica on a disk with faults. Whatever the disk does,
//! what was acknowledged is read back or its loss is detected. No vote is forgotten, and nothing is
//! read that was never written. In each life of a process the disk does one thing wrong that it
//! does not report. Each trial depends on its seed only.

use std::collections::BTreeMap;
use std::path::Path;

use nm_codec::Random;
use openraft::{CommittedLeaderId, LogId, SnapshotMeta, StoredMembership, Vote};

use crate::encode::Encode;
use crate::env::{Env, Machine};
use crate::error::ReplicaError;
use crate::files::write_atomically;
use crate::hard_state::{HARD_STATE, HardState, MARKS};
use crate::journal::{self, Journal, JournalError, RecordKind, Settings};
use crate::log_store::read_hard_state;
use crate::recovery::Opened;
use crate::simulated_disk::{Disk, Faults, Lie};
use crate::simulated_machine::SimulatedMachine;
use crate::simulated_network::Network;
use crate::slot_file::SlotFile;
use crate::state_machine::SNAPSHOT;
use crate::types::{NodeId, leader_of};

const FOLDER: &str = "/replica";
const SMALL: Settings = Settings { file_bytes: 2048 };

/// What may happen to a disk besides losing its power.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    PowerLoss,
    Errors,
    BitRot,
    /// A write that was confirmed is wrong.
    Lying(Lie),
    /// A file or a part of it is as it was before.
    Stale,
    /// Both copies of the hard state are damaged at one place.
    BothCopies,
}

impl Mode {
    /// Whether something is wrong that the disk does not report.
    fn is_silent(self) -> bool {
        !matches!(self, Mode::PowerLoss | Mode::Errors)
    }
}

/// An entry: its term, and a number from which its content follows.
type Entry = (u64, u64);

/// What a replica wrote.
#[derive(Debug, Clone, Default)]
struct Model {
    /// The log from index 1 on, including what was purged.
    log: Vec<Entry>,
    /// The log when something was last acknowledged, and the logs since.
    acknowledged: Vec<Entry>,
    since: Vec<Vec<Entry>>,
    /// Index up to which damage is not taken for a torn write.
    covered: u64,
    /// Index up to which the disk has everything, and what the last record says of that.
    durable: u64,
    carried: u64,
    /// Votes that were saved, and that were tried to save.
    vote: (u64, u64),
    written: u64,
}

/// A replica that runs.
struct Process {
    journal: Journal,
    file: SlotFile,
    state: HardState,
}

struct Trial {
    env: Env,
    seed: u64,
    mode: Mode,
    /// Whether the watermark is advanced before each acknowledgement.
    is_sure: bool,
    random: Random,
    disk: Disk,
    model: Model,
    process: Option<Process>,
    /// Times that damage was repaired, and that the replica refused to start.
    repaired: u32,
    refused: u32,
}

fn log_id((term, _): Entry, index: u64) -> LogId<NodeId> {
    LogId::new(leader_of(term), index - 1)
}

fn content(number: u64) -> Vec<u8> {
    let size = number * 37 % 300;
    (0..size).map(|at| (number.wrapping_mul(31) + at) as u8).collect()
}

impl Trial {
    fn new(seed: u64) -> Trial {
        let lies = [Lie::Lost, Lie::Torn, Lie::Misdirected].map(Mode::Lying);
        let others = [Mode::PowerLoss, Mode::Errors, Mode::BitRot, Mode::Stale, Mode::BothCopies];
        let modes = [&lies[..], &others].concat();
        let disk = Disk::new(seed ^ 0x5eed, Faults::default());
        let env: Env = SimulatedMachine::new(seed, disk.clone(), (Network::new(0), 0));
        let mut trial = Trial {
            env: env.clone(),
            seed,
            mode: modes[(seed % 8) as usize],
            is_sure: (seed / 8).is_multiple_of(2),
            random: Random::new(seed),
            disk,
            model: Model::default(),
            process: None,
            repaired: 0,
            refused: 0,
        };
        let folder = Path::new(FOLDER);
        let state = HardState { bootstrap_ids: vec![1, 2, 3], ..HardState::default() };
        let (journal, _) = Journal::open_in(&env, folder, SMALL, 1).unwrap();
        let path = folder.join(HARD_STATE);
        let file = SlotFile::create(&env, &path, MARKS.now, &state.to_bytes()).unwrap();
        trial.process = Some(Process { journal, file, state });
        trial.disk.set_faults(match trial.mode {
            Mode::Errors => Faults { write: 10, sync: 40, ..Faults::default() },
            _ => Faults::default(),
        });
        trial
    }

    fn last_index(&self) -> u64 {
        self.model.log.len() as u64
    }

    fn remember(&mut self) {
        self.model.since.push(self.model.log.clone());
    }

    fn acknowledge(&mut self) {
        // A write to the wrong place may destroy the record that says so as well.
        if self.mode != Mode::Lying(Lie::Misdirected) {
            self.model.covered = self.model.covered.max(self.model.carried);
        }
        self.model.durable = self.last_index();
        self.model.acknowledged.clone_from(&self.model.log);
        self.model.since.clear();
    }

    fn append(&mut self, process: &mut Process) -> Result<(), ReplicaError> {
        for _ in 0..=self.random.below(3) {
            if self.model.vote.0 == 0 || self.random.chance(100) {
                self.save_vote(process)?;
            }
            // That of the leader that was voted for.
            let term = self.model.vote.0 << 4 | 1;
            self.model.written += 1;
            let number = self.model.written;
            self.model.log.push((term, number));
            self.model.carried = self.model.durable;
            self.remember();
            let index = self.last_index();
            process.journal.append(index, term, RecordKind::Batch, &content(number))?;
        }
        Ok(())
    }

    fn sync(&mut self, process: &mut Process) -> Result<(), ReplicaError> {
        process.journal.sync()?;
        if self.is_sure {
            process.journal.advance_watermark()?;
            self.model.covered = self.last_index();
        }
        self.acknowledge();
        Ok(())
    }

    fn truncate(&mut self, process: &mut Process) -> Result<(), ReplicaError> {
        let purged = process.state.purged.map_or(0, |purged| purged.index + 1);
        let Some(count) = self.last_index().checked_sub(purged).filter(|count| *count > 0) else {
            return Ok(());
        };
        let from = purged + 1 + self.random.below(count);
        // Files are removed before the one in front of them is cut.
        while self.last_index() >= from {
            self.model.log.pop();
            self.remember();
        }
        self.model.covered = self.model.covered.min(from - 1);
        self.model.carried = self.model.carried.min(from - 1);
        self.model.durable = self.model.durable.min(from - 1);
        Ok(process.journal.truncate(from)?)
    }

    fn save(process: &mut Process) -> Result<(), ReplicaError> {
        let written = process.file.write(&process.state.to_bytes());
        written.map_err(|error| ReplicaError::file(Path::new(FOLDER), "cannot be written", error))
    }

    fn save_vote(&mut self, process: &mut Process) -> Result<(), ReplicaError> {
        self.model.vote.1 += 1;
        process.state.vote = Some(Vote::new(self.model.vote.1, 1));
        self.sync(process)?;
        Trial::save(process)?;
        self.model.vote.0 = self.model.vote.1;
        Ok(())
    }

    /// A snapshot up to an index; then the journal is purged, or restarted behind it.
    fn snapshot(&mut self, process: &mut Process, upto: u64) -> Result<(), ReplicaError> {
        let last = log_id(self.model.log[upto as usize - 1], upto);
        let meta = SnapshotMeta {
            last_log_id: Some(last),
            last_membership: StoredMembership::default(),
            snapshot_id: String::new(),
        };
        write_atomically(&self.env, &Path::new(FOLDER).join(SNAPSHOT), &meta.to_bytes())?;
        process.state.purged = Some(last).max(process.state.purged);
        Trial::save(process)?;
        if process.journal.next().is_some_and(|next| next <= upto) {
            process.journal.restart(upto)?;
        } else {
            process.journal.purge(upto)?;
        }
        Ok(())
    }

    fn install(&mut self, process: &mut Process) -> Result<(), ReplicaError> {
        self.sync(process)?;
        let term = self.model.log.last().map_or(0, |last| last.0);
        self.model.log.extend((0..=self.random.below(20)).map(|_| (term, 0)));
        (self.model.covered, self.model.carried) = (0, 0);
        self.remember();
        let upto = self.last_index();
        self.snapshot(process, upto)?;
        self.acknowledge();
        self.model.covered = 0;
        Ok(())
    }

    fn step(&mut self, process: &mut Process) -> Result<(), ReplicaError> {
        let purged = process.state.purged.map_or(0, |purged| purged.index + 1);
        match self.random.below(100) {
            0..50 => {
                self.append(process)?;
                if self.random.chance(700) { self.sync(process) } else { Ok(()) }
            }
            50..65 => self.sync(process),
            65..72 => self.truncate(process),
            72..82 => self.save_vote(process),
            82..90 => {
                self.sync(process)?;
                let count = self.last_index() - purged;
                if count == 0 {
                    return Ok(());
                }
                let upto = purged + 1 + self.random.below(count);
                self.snapshot(process, upto)
            }
            90..92 => self.install(process),
            _ => {
                self.sync(process)?;
                process.journal.advance_watermark()?;
                self.model.covered = self.last_index();
                Ok(())
            }
        }
    }

    /// What happens in the trial that `NM_TRIAL` names.
    fn trace(&self, what: &dyn std::fmt::Debug) {
        if std::env::var("NM_TRIAL").is_ok_and(|trial| trial == self.seed.to_string()) {
            let Model { log, acknowledged, covered, .. } = &self.model;
            println!("{what:?}: {} {} {covered}", log.len(), acknowledged.len());
        }
    }

    /// A life of the process, and its end.
    fn live(&mut self) {
        let Some(mut process) = self.process.take() else { return };
        if self.random.chance(400) {
            let left = self.random.below(60);
            self.disk.fail_after(left);
        }
        if let Mode::Lying(lie) = self.mode {
            let writes = self.random.below(60);
            self.disk.lie_after(lie, writes);
        }
        for _ in 0..1 + self.random.below(30) {
            let done = self.step(&mut process);
            self.trace(&done.as_ref().map_err(ToString::to_string));
            if done.is_err() {
                break;
            }
        }
        drop(process);
        if self.disk.is_off() || self.random.chance(500) {
            self.trace(&"power lost");
            self.disk.lose_power();
            self.damage();
        }
    }

    /// What becomes wrong while no process runs.
    fn damage(&mut self) {
        if self.random.chance(500) {
            return;
        }
        match self.mode {
            Mode::BitRot => drop(self.disk.rot(|_| true)),
            Mode::Stale => self.disk.grow_stale(),
            Mode::BothCopies => self
                .disk
                .damage_all(|path| path.to_str().is_some_and(|path| path.contains(HARD_STATE))),
            Mode::PowerLoss | Mode::Errors | Mode::Lying(_) => return,
        }
        self.trace(&"damaged");
    }

    fn open(&self) -> Result<(Process, Vec<Entry>, Option<ReplicaError>), ReplicaError> {
        let folder = Path::new(FOLDER);
        let (hard_state, file) = read_hard_state(&self.env, folder)?;
        assert!(file.is_some(), "seed {}: the hard state is there", self.seed);
        let mut opened = Opened {
            env: &self.env,
            folder,
            journal: SMALL,
            is_single: false,
            hard_state,
            file,
            damage: None,
        };
        let (journal, found) = opened.open()?;
        let (file, state) = (opened.file.unwrap(), opened.hard_state);
        let purged = state.purged.map_or(0, |purged| purged.index + 1);
        let entries = found.records.iter().zip(purged + 1..).map(|(record, index)| {
            assert_eq!(record.index, index, "seed {}: no gaps", self.seed);
            let is_written = |of: &&Vec<Entry>| {
                let entry = of.get(index as usize - 1);
                entry.is_some_and(|(term, number)| {
                    *term == record.term && content(*number) == record.bytes
                })
            };
            let all = std::iter::once(&self.model.acknowledged).chain(&self.model.since);
            let of = all.rev().find(is_written);
            of.unwrap_or_else(|| panic!("seed {}: record {index} was not written", self.seed))
                [index as usize - 1]
        });
        let entries = entries.collect();
        Ok((Process { journal, file, state }, entries, opened.damage))
    }

    /// The next process: what it finds is what was written.
    fn restart(&mut self) {
        let (process, entries, damage) = match self.open() {
            Ok(opened) => opened,
            Err(_) if self.disk.is_off() => return self.disk.lose_power(),
            Err(ReplicaError::Journal(JournalError::File { .. }) | ReplicaError::File { .. })
                if self.mode == Mode::Errors =>
            {
                return;
            }
            Err(error) => {
                assert!(self.mode.is_silent(), "seed {}: {error}", self.seed);
                self.trace(&error.to_string());
                self.refused += 1;
                return;
            }
        };
        self.trace(&("found", process.state.purged, entries.len(), &damage));
        let vote = process.state.vote.map_or(0, |vote| vote.leader_id.term);
        let (saved, tried) = self.model.vote;
        assert!((saved..=tried).contains(&vote), "seed {}: vote {vote}", self.seed);
        self.model.vote = (vote, tried);
        let has_damage = damage.is_some();
        assert!(!has_damage || self.mode.is_silent(), "seed {}: {damage:?}", self.seed);
        self.repaired += u32::from(has_damage);
        self.check_log(&process.state, &entries);
        let purged = process.state.purged.map_or(0, |purged| purged.index as usize + 1);
        let known = self.model.since.last().unwrap_or(&self.model.acknowledged).clone();
        self.model.log = known.into_iter().take(purged).chain(entries).collect();
        self.model.acknowledged.clone_from(&self.model.log);
        self.model.since.clear();
        self.model.covered = self.model.covered.min(self.last_index());
        (self.model.carried, self.model.durable) = (0, self.last_index());
        self.process = Some(process);
    }

    fn check_log(&self, state: &HardState, entries: &[Entry]) {
        let purged = state.purged.map_or(0, |purged| purged.index as usize + 1);
        let found = purged + entries.len();
        let acknowledged = &self.model.acknowledged;
        let is_possible = |written: &Vec<Entry>| {
            let is_prefix =
                written.get(purged..).is_some_and(|written| written.starts_with(entries));
            let both = written.iter().zip(acknowledged).take_while(|(a, b)| a == b).count();
            // The last sync may be taken for a torn write: see `journal::watermark`.
            let sure =
                if self.mode.is_silent() { both.min(self.model.covered as usize) } else { both };
            let is_required = state.required_log_id.is_some_and(|required| {
                sure == 0 || required >= log_id(acknowledged[sure - 1], sure as u64)
            });
            is_prefix && (found >= sure || is_required)
        };
        let all = std::iter::once(acknowledged).chain(&self.model.since);
        assert!(
            all.into_iter().any(is_possible),
            "seed {}, {:?}: {found} entries after {purged} purged, {} acknowledged, {} covered",
            self.seed,
            self.mode,
            acknowledged.len(),
            self.model.covered
        );
    }
}

/// Trials of which each has a seed; `NM_TRIALS` changes their number, `NM_TRIAL` repeats one.
fn trials(few: u64) -> u64 {
    std::env::var("NM_TRIALS").ok().and_then(|trials| trials.parse().ok()).unwrap_or(few)
}

/// How often damage was repaired, and the replica refused to start, and the faults.
type Outcome = (u32, u32, BTreeMap<&'static str, u64>);

/// A trial of some lives.
fn run(seed: u64) -> Outcome {
    let mut trial = Trial::new(seed);
    for _ in 0..5 {
        trial.live();
        // A disk with errors may need several attempts.
        for _ in 0..50 {
            if trial.process.is_some() || trial.refused > 0 {
                break;
            }
            trial.restart();
        }
    }
    (trial.repaired, trial.refused, trial.disk.injected())
}

#[test]
fn what_was_acknowledged_is_read_back_or_its_loss_is_detected() {
    let one = std::env::var("NM_TRIAL").ok().and_then(|trial| trial.parse::<u64>().ok());
    if let Some(seed) = one {
        return drop(run(seed));
    }
    let (trials, threads) = (trials(10_000), std::thread::available_parallelism().unwrap().get());
    let share = |thread| -> Vec<Outcome> { (thread..trials).step_by(threads).map(run).collect() };
    let done: Vec<Outcome> = std::thread::scope(|scope| {
        let running: Vec<_> =
            (0..threads as u64).map(|thread| scope.spawn(move || share(thread))).collect();
        running.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let mut injected_in_all = BTreeMap::new();
    for (kind, count) in done.iter().flat_map(|(_, _, injected)| injected) {
        *injected_in_all.entry(*kind).or_insert(0) += count;
    }
    let repaired: u32 = done.iter().map(|(repaired, ..)| repaired).sum();
    let refused: u32 = done.iter().map(|(_, refused, _)| refused).sum();
    println!("{trials} trials, faults {injected_in_all:?}; repaired {repaired}, refused {refused}");
    assert!(repaired > 0 && refused > 0);
}

/// The process before failed to sync a record; the system shows it to the next process, which must
/// not count it as durable unless it is.
#[test]
fn what_a_failed_sync_left_in_the_page_cache_is_written_again() {
    for seed in 0..200 {
        let disk = Disk::new(seed, Faults::default());
        let env: Env = SimulatedMachine::with_disk(disk.clone());
        let folder = Path::new(FOLDER);
        let (mut journal, _) = Journal::open_in(&env, folder, SMALL, 1).unwrap();
        journal.append(1, 17, RecordKind::Batch, &[1; 900]).unwrap();
        journal.sync().unwrap();
        journal.append(2, 17, RecordKind::Batch, &[2; 900]).unwrap();
        disk.set_faults(Faults { sync: 1000, ..Faults::default() });
        assert!(journal.sync().is_err());
        assert!(journal.append(3, 17, RecordKind::Batch, &[]).is_err(), "it accepts nothing more");
        drop(journal);
        disk.set_faults(Faults::default());
        let (journal, found) = Journal::open_in(&env, folder, SMALL, 1).unwrap();
        drop(journal);
        disk.lose_power();
        let (_, after) = Journal::open_in(&env, folder, SMALL, 1).unwrap();
        assert_eq!(found.records, after.records, "seed {seed}");
    }
}

/// The last record of a journal that is idle is damaged: no record behind it says that the disk had
/// it, but the watermark does.
#[test]
fn damage_below_the_watermark_is_not_taken_for_a_torn_write() {
    let folder = tempfile::tempdir().unwrap();
    let (mut journal, _) = Journal::open(folder.path(), SMALL, 1).unwrap();
    for index in 1..=3 {
        journal.append(index, 17, RecordKind::Batch, &[7; 100]).unwrap();
        journal.sync().unwrap();
    }
    assert!(journal.is_watermark_due());
    let path = folder.path().join(format!("{:020}.journal", 1));
    let bytes = std::fs::read(&path).unwrap();
    let mut damaged = bytes.clone();
    let end = bytes.iter().rposition(|byte| *byte == 7).unwrap();
    damaged[end] ^= 1;
    std::fs::write(&path, &damaged).unwrap();
    let (_, found) = Journal::open(folder.path(), SMALL, 1).unwrap();
    assert_eq!(found.records.len(), 2, "without a watermark it is a torn write");
    std::fs::write(&path, &bytes).unwrap();
    let (mut journal, _) = Journal::open(folder.path(), SMALL, 1).unwrap();
    journal.advance_watermark().unwrap();
    assert!(!journal.is_watermark_due());
    std::fs::write(&path, &damaged).unwrap();
    let refused = Journal::open(folder.path(), SMALL, 1).unwrap_err();
    let JournalError::Damaged { index: 3, offset, .. } = &refused else { panic!("{refused}") };
    assert_eq!(bytes[*offset as usize..][..4], 100u32.to_le_bytes(), "it is where record 3 begins");
    let message = refused.to_string();
    assert!(message.contains("record 3") && message.contains(&offset.to_string()), "{message}");
    assert!(message.contains(&path.display().to_string()), "{message}");
    // A reader says the same.
    let mut reader = crate::journal::Reader::open(folder.path()).unwrap();
    assert!((0..3).any(|_| reader.next_record().is_err()));
    std::fs::remove_file(&path).unwrap();
    let missing = Journal::open(folder.path(), SMALL, 1).unwrap_err().to_string();
    assert!(missing.contains("missing"), "{missing}");
}

fn opened(folder: &Path, is_single: bool) -> Result<(HardState, usize, bool), ReplicaError> {
    let env = &Machine::env();
    let (file, bytes) = SlotFile::open(env, &folder.join(HARD_STATE), &MARKS).unwrap().unwrap();
    let hard_state = HardState::from_bytes(&bytes, "hard state").unwrap();
    let (journal, file, damage) = (SMALL, Some(file), None);
    let mut opened = Opened { env, folder, journal, is_single, hard_state, file, damage };
    let (_, found) = opened.open()?;
    Ok((opened.hard_state, found.records.len(), opened.damage.is_some()))
}

/// Twenty entries in several files.
fn written(folder: &Path, state: &HardState) -> Vec<std::path::PathBuf> {
    let vote = Some(Vote::new(2, 1));
    let state = HardState { vote, ..state.clone() };
    SlotFile::create(&Machine::env(), &folder.join(HARD_STATE), MARKS.now, &state.to_bytes())
        .unwrap();
    let (mut journal, _) = Journal::open(folder, SMALL, 1).unwrap();
    for index in 1..=20 {
        journal.append(index, 2 << 4 | 1, RecordKind::Batch, &[7; 400]).unwrap();
        journal.sync().unwrap();
    }
    journal.advance_watermark().unwrap();
    drop(journal);
    journal::testing::paths(&Machine::env(), folder)
}

#[test]
fn a_damaged_journal_is_cut_and_its_last_entry_is_required_unless_there_are_no_peers() {
    let last = Some(LogId::new(CommittedLeaderId::new(2, 1), 19));
    // The header, a record in the middle, the last record, of any file; or a file is missing.
    for (file, at) in [(0, 0), (0, 500), (1, 3), (2, 900), (4, 8), (4, 1500), (1, usize::MAX)] {
        let folder = tempfile::tempdir().unwrap();
        let paths = written(folder.path(), &HardState::default());
        assert_eq!(paths.len(), 5);
        let mut bytes = std::fs::read(&paths[file]).unwrap();
        if at == usize::MAX {
            std::fs::remove_file(&paths[file]).unwrap();
        } else {
            bytes[at] ^= 0x10;
            std::fs::write(&paths[file], &bytes).unwrap();
        }
        let refused = opened(folder.path(), true).unwrap_err();
        assert!(refused.to_string().contains("damaged"), "{refused}");
        assert!(refused.hint().is_some());
        let (state, count, is_damaged) = opened(folder.path(), false).unwrap();
        assert!(is_damaged && count < 20, "file {file} at {at}: {count}");
        assert_eq!(state.required_log_id, last, "file {file} at {at}");
        // It is repaired: another start finds the same, and no damage.
        let again = opened(folder.path(), false).unwrap();
        assert_eq!(again, (state, count, false));
    }
    // If the newest file is missing, nobody knows what it had.
    let folder = tempfile::tempdir().unwrap();
    let paths = written(folder.path(), &HardState::default());
    std::fs::remove_file(&paths[4]).unwrap();
    let refused = opened(folder.path(), false).unwrap_err();
    assert!(refused.to_string().contains("missing"), "{refused}");
}

#[test]
fn without_its_snapshot_a_replica_requires_what_it_had_and_begins_again() {
    let purged = Some(LogId::new(CommittedLeaderId::new(2, 1), 9));
    let folder = tempfile::tempdir().unwrap();
    let state = HardState { purged, ..HardState::default() };
    written(folder.path(), &state);
    std::fs::write(folder.path().join(SNAPSHOT), b"damaged").unwrap();
    assert!(matches!(opened(folder.path(), true), Err(ReplicaError::Checksum(_))));
    std::fs::remove_file(folder.path().join(SNAPSHOT)).unwrap();
    let (state, count, is_damaged) = opened(folder.path(), false).unwrap();
    assert!(is_damaged);
    assert_eq!((state.purged, count), (None, 0));
    assert_eq!(state.required_log_id.unwrap().index, 19);
    assert_eq!(opened(folder.path(), false).unwrap(), (state, 0, false));
}

#[test]
fn a_hard_state_that_is_older_than_its_journal_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path(), &HardState::default());
    assert!(opened(folder.path(), false).is_ok());
    let older = HardState { vote: Some(Vote::new(1, 1)), ..HardState::default() };
    let path = folder.path().join(HARD_STATE);
    SlotFile::create(&Machine::env(), &path, MARKS.now, &older.to_bytes()).unwrap();
    let refused = opened(folder.path(), false).unwrap_err();
    let message = refused.to_string();
    assert!(message.contains("does not vote, and has to be replaced"), "{message}");
    assert!(message.contains("entries of a later term") && refused.hint().is_some(), "{message}");
}
