//! Slow disks: what is told has been synced by a quorum, nobody waits for one disk, and what a
//! crash takes from a disk that had not synced it was promised by others.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use nm_sys::clock::{Deadline, Moment};
use nm_sys::poll::Waker;
use tempfile::TempDir;

use super::disk::testing;
use super::{Address, Group, Log, LogEvent, Member, RaftLog, Replicas, Settings};

const LIMIT: Duration = Duration::from_secs(60);

/// Three replicas on disks; the last may not lead.
struct Cell {
    folder: TempDir,
    replicas: Vec<Option<Replica>>,
    proposed: u64,
    /// What was told as committed.
    committed: Vec<u64>,
}

struct Replica {
    _thread: Replicas,
    log: RaftLog,
    applied: Vec<u64>,
    waits: Vec<String>,
}

impl Cell {
    fn new() -> Cell {
        let folder = TempDir::new().unwrap();
        let replicas = vec![None, None, None];
        let mut cell = Cell { folder, replicas, proposed: 0, committed: vec![] };
        (0..3).for_each(|own| cell.start(own));
        cell
    }

    fn disk(&self, own: usize) -> PathBuf {
        self.folder.path().join(format!("disk-{own}"))
    }

    fn start(&mut self, own: usize) {
        let at = |own: usize| Address::Unix(self.folder.path().join(format!("replica-{own}")));
        let members = (0..3).map(|own| Member { address: at(own), may_lead: own < 2 }).collect();
        let group = Group {
            id: 1,
            name: "cell-1".to_string(),
            members,
            own,
            folder: Some(self.disk(own)),
            settings: Settings::default(),
        };
        let (thread, mut logs) =
            Replicas::start(&at(own), vec![group], Waker::new().unwrap()).unwrap();
        let (log, applied, waits) = (logs.pop().unwrap(), vec![], vec![]);
        self.replicas[own] = Some(Replica { _thread: thread, log, applied, waits });
    }

    fn leader(&self) -> Option<usize> {
        let leads = |own: &usize| self.replicas[*own].as_ref()?.log.leading_term();
        (0..3).filter(|own| leads(own).is_some()).max_by_key(leads)
    }

    fn turn(&mut self, load: bool) {
        std::thread::sleep(Duration::from_millis(1));
        let disks: Vec<PathBuf> = (0..3).map(|own| self.disk(own)).collect();
        for replica in self.replicas.iter_mut().flatten() {
            while let Some(told) = replica.log.next_event() {
                match told {
                    LogEvent::Committed { index, batch, .. } => {
                        let have = disks.iter().filter(|disk| testing::synced(disk) >= index);
                        assert!(have.count() >= 2, "entry {index} was told too early");
                        replica.applied.push(u64::from_le_bytes(batch[..].try_into().unwrap()));
                        let place = replica.applied.len() - 1;
                        if place == self.committed.len() {
                            self.committed.push(replica.applied[place]);
                        }
                        assert_eq!(self.committed[place], replica.applied[place]);
                    }
                    LogEvent::Degraded(why) => replica.waits.push(why),
                    LogEvent::Stopped(failure) => panic!("{failure}"),
                    _ => {}
                }
            }
            while load && replica.log.can_propose() {
                self.proposed += 1;
                replica.log.propose(self.proposed.to_le_bytes().to_vec()).unwrap();
            }
        }
    }

    fn until(&mut self, load: bool, what: &str, mut is_done: impl FnMut(&Cell) -> bool) {
        let deadline = Deadline::after(LIMIT);
        while !is_done(self) {
            assert!(!deadline.passed(), "not within {LIMIT:?}: {what}");
            self.turn(load);
        }
    }

    fn more(&mut self, count: usize) {
        let goal = self.committed.len() + count;
        self.until(true, "more batches", |cell| cell.committed.len() >= goal);
    }

    fn led(&mut self) -> usize {
        self.until(false, "somebody leads", |cell| cell.leader().is_some());
        self.leader().unwrap()
    }

    fn settle(&mut self) {
        self.until(false, "all have the same", |cell| {
            cell.replicas.iter().flatten().all(|replica| replica.applied == cell.committed)
        });
    }
}

#[test]
fn nothing_is_told_before_the_disks_of_a_quorum_have_it() {
    let mut cell = Cell::new();
    cell.more(10);
    for pauses_ms in [[30, 0, 0], [0, 30, 30], [30, 30, 0], [10, 30, 60], [25, 25, 25]] {
        for (own, pause_ms) in pauses_ms.into_iter().enumerate() {
            testing::slow(&cell.disk(own), Duration::from_millis(pause_ms));
        }
        cell.more(30);
    }
    cell.settle();
}

#[test]
fn a_slow_disk_is_one_sentence_and_nobody_waits_for_it() {
    let mut cell = Cell::new();
    cell.more(10);
    let leader = cell.led();
    for own in [leader, 2] {
        cell.settle();
        testing::slow(&cell.disk(own), Duration::from_millis(500));
        let since = Moment::now();
        cell.more(100);
        // Waiting for that disk would take 50 s.
        assert!(since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
        let says = |cell: &Cell| cell.replicas[own].as_ref().unwrap().waits.len() == 1;
        cell.until(true, "it says so once", says);
        let sentence = &cell.replicas[own].as_ref().unwrap().waits[0];
        assert!(sentence.contains("ms for a sync") && sentence.contains("disk-"), "{sentence}");
        testing::slow(&cell.disk(own), Duration::ZERO);
    }
    cell.settle();
}

/// The leader's machine crashes before its disk had what the two others had: it comes back without
/// it, and with one of the two alone.
#[test]
fn what_a_leader_lost_with_its_memory_is_brought_back_by_who_promised_it() {
    let mut cell = Cell::new();
    cell.more(10);
    cell.settle();
    let leader = cell.led();
    let (disk, before) = (cell.disk(leader), cell.folder.path().join("before"));
    let copied = Command::new("cp").arg("-r").args([&disk, &before]).status().unwrap();
    assert!(copied.success());
    let synced = testing::synced(&disk);
    testing::slow(&disk, Duration::from_secs(3));
    cell.more(20);
    assert!(testing::synced(&disk) <= synced + 2, "its disk has hardly begun");
    cell.replicas[leader] = None;
    cell.replicas[1 - leader] = None;
    std::fs::remove_dir_all(&disk).unwrap();
    std::fs::rename(&before, &disk).unwrap();
    testing::slow(&disk, Duration::ZERO);
    testing::has(&disk, synced);
    cell.start(leader);
    cell.more(10);
    cell.start(1 - leader);
    cell.settle();
}
