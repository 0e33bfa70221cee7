//! Slow disks. What is delivered has been synced by a quorum, and nobody waits for one disk. What a
//! crash takes from a disk that had not synced it is restored by the others.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nm_sys::clock::{Deadline, Moment};
use nm_sys::poll::Waker;
use tempfile::TempDir;

use crate::address::Address;
use crate::channel::RaftLog;
use crate::env::{Environment, Machine};
use crate::group::{Group, Member, Settings};
use crate::journal;
use crate::log::{Log, LogEvent};
use crate::replicas::Replicas;
use crate::storage::File;

const LIMIT: Duration = Duration::from_secs(60);

/// How a disk syncs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Behaviour {
    /// With this much more time.
    Slow(Duration),
    /// Not before it behaves differently.
    Hangs,
    /// Never: each sync fails, also one that hangs.
    Crashed,
}

/// A machine whose disk is slow, hangs or crashes; it knows the last entry that the disk has.
#[derive(Debug, Clone)]
struct SlowMachine(Arc<(Mutex<(Behaviour, u64)>, Condvar)>);

/// A file of it.
#[derive(Debug)]
struct SlowFile {
    machine: SlowMachine,
    file: Box<dyn File>,
    folder: PathBuf,
    inode: u64,
}

impl SlowMachine {
    fn new() -> SlowMachine {
        SlowMachine(Arc::new((Mutex::new((QUICK, 0)), Condvar::new())))
    }

    fn state(&self) -> MutexGuard<'_, (Behaviour, u64)> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on it behaves like this, also in a sync that hangs.
    fn set(&self, behaviour: Behaviour) {
        self.state().0 = behaviour;
        self.0.1.notify_all();
    }

    /// Index of the last entry that the disk has.
    fn synced(&self) -> u64 {
        self.state().1
    }

    fn file(&self, path: &Path, file: Box<dyn File>) -> io::Result<Box<dyn File>> {
        let (folder, inode) = (path.parent().unwrap().into(), std::fs::metadata(path)?.ino());
        Ok(Box::new(SlowFile { machine: self.clone(), file, folder, inode }))
    }

    /// What the disk does before a sync.
    fn wait(&self) -> io::Result<()> {
        let mut state = self.state();
        loop {
            match state.0 {
                Behaviour::Hangs => {
                    state = self.0.1.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                Behaviour::Crashed => return Err(io::Error::other("the machine has crashed")),
                Behaviour::Slow(pause) => {
                    drop(state);
                    std::thread::sleep(pause);
                    return Ok(());
                }
            }
        }
    }
}

impl Environment for SlowMachine {
    fn create(&self, path: &Path) -> io::Result<Box<dyn File>> {
        self.file(path, Machine.create(path)?)
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn File>> {
        self.file(path, Machine.open(path)?)
    }
}

impl File for SlowFile {
    fn write_all_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, at)
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }

    fn sync_data(&self) -> io::Result<()> {
        // A file of the journal is made under another name.
        let mut journal = journal::testing::paths(&Machine::env(), &self.folder).into_iter();
        let is_this =
            |path: &PathBuf| std::fs::metadata(path).is_ok_and(|it| it.ino() == self.inode);
        let Some(path) = journal.find(is_this) else { return self.file.sync_data() };
        self.machine.wait()?;
        self.file.sync_data()?;
        // Nobody writes to it while it is synced.
        let last = journal::testing::last_in_file(&path);
        let mut state = self.machine.state();
        state.1 = state.1.max(last);
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        self.file.sync_all()
    }
}

/// A disk as it is without a test.
const QUICK: Behaviour = Behaviour::Slow(Duration::ZERO);

/// A sync that takes longer is reported: more than the longest election timeout.
const SLOW: Duration = Duration::from_millis(250);

/// Three replicas on disks; the last may not lead.
struct TestGroup {
    folder: TempDir,
    machines: [SlowMachine; 3],
    replicas: Vec<Option<Replica>>,
    proposed: u64,
    /// What any replica reported as committed.
    committed: Vec<u64>,
}

struct Replica {
    _thread: Replicas,
    log: RaftLog,
    applied: Vec<u64>,
    degraded: Vec<String>,
}

impl TestGroup {
    fn new() -> TestGroup {
        let folder = TempDir::new().unwrap();
        let replicas = vec![None, None, None];
        let machines = [(); 3].map(|()| SlowMachine::new());
        let mut group = TestGroup { folder, machines, replicas, proposed: 0, committed: vec![] };
        (0..3).for_each(|own| group.start(own));
        group
    }

    fn disk(&self, own: usize) -> PathBuf {
        self.folder.path().join(format!("disk-{own}"))
    }

    fn start(&mut self, own: usize) {
        let at = |own: usize| Address::Unix(self.folder.path().join(format!("replica-{own}")));
        let members = (0..3).map(|own| Member { address: at(own), may_lead: own < 2 }).collect();
        let group = Group {
            id: 1,
            name: "group-1".to_string(),
            members,
            voters: 3,
            own,
            folder: Some(self.disk(own)),
            settings: Settings {
                journal: journal::Settings { file_bytes: 16 << 10 },
                watermark_ms: 500,
                ..Settings::default()
            },
        };
        let env = Arc::new(self.machines[own].clone());
        let (thread, mut logs) =
            Replicas::start_in(env, &at(own), (vec![group], vec![]), Waker::new().unwrap())
                .unwrap();
        let (log, applied, degraded) = (logs.pop().unwrap(), vec![], vec![]);
        self.replicas[own] = Some(Replica { _thread: thread, log, applied, degraded });
    }

    fn leader(&self) -> Option<usize> {
        let leads = |own: &usize| self.replicas[*own].as_ref()?.log.leading_term();
        (0..3).filter(|own| leads(own).is_some()).max_by_key(leads)
    }

    fn turn(&mut self, load: bool) {
        std::thread::sleep(Duration::from_millis(1));
        for replica in self.replicas.iter_mut().flatten() {
            while let Some(event) = replica.log.next_event() {
                match event {
                    LogEvent::Committed { index, batch, .. } => {
                        let have = self.machines.iter().filter(|it| it.synced() >= index);
                        assert!(have.count() >= 2, "entry {index} was delivered too early");
                        replica.applied.push(u64::from_le_bytes(batch[..].try_into().unwrap()));
                        let place = replica.applied.len() - 1;
                        if place == self.committed.len() {
                            self.committed.push(replica.applied[place]);
                        }
                        assert_eq!(self.committed[place], replica.applied[place]);
                    }
                    LogEvent::Degraded(why) => replica.degraded.push(why),
                    LogEvent::Stopped(error) => panic!("{error}"),
                    _ => {}
                }
            }
            while load && replica.log.can_propose() {
                self.proposed += 1;
                replica.log.propose(self.proposed.to_le_bytes().to_vec()).unwrap();
            }
        }
    }

    fn until(&mut self, load: bool, what: &str, mut is_done: impl FnMut(&TestGroup) -> bool) {
        let deadline = Deadline::after(LIMIT);
        while !is_done(self) {
            assert!(!deadline.passed(), "not within {LIMIT:?}: {what}");
            self.turn(load);
        }
    }

    fn commit_more(&mut self, count: usize) {
        let goal = self.committed.len() + count;
        self.until(true, "more batches", |group| group.committed.len() >= goal);
    }

    fn wait_for_leader(&mut self) -> usize {
        self.until(false, "there is a leader", |group| group.leader().is_some());
        self.leader().unwrap()
    }

    fn settle(&mut self) {
        self.until(false, "all replicas have the same", |group| {
            group.replicas.iter().flatten().all(|replica| replica.applied == group.committed)
        });
    }
}

impl Drop for TestGroup {
    fn drop(&mut self) {
        // A replica ends when its disk has done what was queued.
        self.machines.iter().for_each(|it| it.set(QUICK));
        self.replicas.clear();
    }
}

#[test]
fn nothing_is_delivered_before_the_disks_of_a_quorum_have_it() {
    let mut group = TestGroup::new();
    group.commit_more(10);
    for pauses_ms in [[10, 0, 0], [0, 10, 10], [10, 10, 0], [3, 10, 20], [8, 8, 8]] {
        for (own, pause_ms) in pauses_ms.into_iter().enumerate() {
            let slow = Behaviour::Slow(Duration::from_millis(pause_ms));
            group.machines[own].set(slow);
        }
        group.commit_more(30);
    }
    group.settle();
}

#[test]
fn a_slow_disk_is_reported_once_and_nobody_waits_for_it() {
    let mut group = TestGroup::new();
    group.commit_more(10);
    let leader = group.wait_for_leader();
    for own in [leader, 2] {
        group.settle();
        group.machines[own].set(Behaviour::Hangs);
        // Whoever waited for that disk would wait forever.
        group.commit_more(100);
        let since = Moment::now();
        group.until(true, "its sync takes long", |_| since.elapsed() > SLOW);
        group.machines[own].set(QUICK);
        let has_reported =
            |group: &TestGroup| group.replicas[own].as_ref().unwrap().degraded.len() == 1;
        group.until(true, "it reports once", has_reported);
        let message = &group.replicas[own].as_ref().unwrap().degraded[0];
        assert!(message.contains("ms for a sync") && message.contains("disk-"), "{message}");
    }
    group.settle();
}

/// Whatever part of the journal is damaged after an orderly end, also the last record, is not taken
/// for a torn write.
#[test]
fn the_watermark_has_all_that_was_synced_before_an_orderly_end() {
    let mut group = TestGroup::new();
    group.commit_more(50);
    group.settle();
    group.replicas.clear();
    for own in 0..3 {
        assert!(journal::testing::is_covered(&Machine::env(), &group.disk(own)), "replica {own}");
    }
}

/// Load that never pauses must not keep the watermark where the file began.
#[test]
fn the_watermark_is_advanced_under_load_as_well() {
    let mut group = TestGroup::new();
    group.commit_more(1);
    let disks: Vec<PathBuf> = (0..3).map(|own| group.disk(own)).collect();
    let env = Machine::env();
    let watermarks = || disks.iter().map(|disk| journal::testing::watermark_index(&env, disk));
    let before: Vec<u64> = watermarks().collect();
    group.until(true, "all watermarks are advanced twice", |_| {
        watermarks().zip(&before).all(|(now, before)| now > before + 100)
    });
}

/// The leader's machine crashes before its disk had what the two others had: it comes back without
/// it, and with one of the two alone.
#[test]
fn what_a_leader_loses_in_a_crash_is_restored_by_those_who_acknowledged_it() {
    let mut group = TestGroup::new();
    group.commit_more(10);
    group.settle();
    let leader = group.wait_for_leader();
    let (disk, before) = (group.disk(leader), group.folder.path().join("before"));
    let copied = Command::new("cp").arg("-r").args([&disk, &before]).status().unwrap();
    assert!(copied.success());
    let synced = group.machines[leader].synced();
    group.machines[leader].set(Behaviour::Hangs);
    group.commit_more(20);
    assert!(group.machines[leader].synced() <= synced + 2, "its disk has hardly started");
    group.machines[leader].set(Behaviour::Crashed);
    group.replicas[leader] = None;
    group.replicas[1 - leader] = None;
    std::fs::remove_dir_all(&disk).unwrap();
    std::fs::rename(&before, &disk).unwrap();
    group.machines[leader] = SlowMachine::new();
    group.machines[leader].state().1 = synced;
    group.start(leader);
    group.commit_more(10);
    group.start(1 - leader);
    group.settle();
}
