//! Replicas of one cell: what was acknowledged survives kills, restarts, partitions and disks.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nm_replica::journal;
use nm_replica::{Address, Group, Log, LogEvent, Member, RaftLog, Replicas, Settings};
use nm_sys::clock::{Deadline, Moment};
use nm_sys::poll::{Interest, Poller, Waker};
use tempfile::TempDir;

/// Longest that anything may take; it only keeps a broken test from standing still.
const LIMIT: Duration = Duration::from_secs(60);

fn settings() -> Settings {
    let journal = journal::Settings { file_bytes: 64 << 10 };
    Settings { journal, ..Settings::default() }
}

/// A replica with a state that is simply the batches it was told, by their numbers.
struct Replica {
    _thread: Replicas,
    log: RaftLog,
    applied: Vec<u64>,
    loads: usize,
    waits: Vec<String>,
    stopped: Option<String>,
}

/// The replicas of a cell, and what they acknowledged.
struct Cell {
    folder: TempDir,
    settings: Settings,
    on_disk: bool,
    addresses: Vec<Address>,
    gates: Vec<Vec<Option<Gate>>>,
    replicas: Vec<Option<Replica>>,
    waker: Waker,
    poller: Poller,
    batches: u64,
    /// What any replica was told as committed, in that order.
    acknowledged: Vec<u64>,
    leads: Vec<u32>,
}

impl Cell {
    /// `count` replicas, all up; the last may not lead if there are more than one.
    fn new(count: usize, on_disk: bool, settings: Settings) -> Cell {
        Cell::gated(count, on_disk, settings, false)
    }

    fn gated(count: usize, on_disk: bool, settings: Settings, is_gated: bool) -> Cell {
        let folder = TempDir::new().unwrap();
        let gate = |from: usize, to: usize| {
            let path = folder.path().join(format!("gate-{from}-{to}"));
            is_gated.then(|| Gate::new(path, folder.path().join(format!("replica-{to}"))))
        };
        let gates = (0..count).map(|from| (0..count).map(|to| gate(from, to)).collect()).collect();
        let own = |own: usize| Address::Unix(folder.path().join(format!("replica-{own}")));
        let addresses = (0..count).map(own).collect();
        let (waker, poller) = (Waker::new().unwrap(), Poller::new().unwrap());
        poller.add(&waker, 0, Interest::Readable).unwrap();
        let mut cell = Cell {
            folder,
            settings,
            on_disk,
            addresses,
            gates,
            replicas: (0..count).map(|_| None).collect(),
            waker,
            poller,
            batches: 0,
            acknowledged: vec![],
            leads: vec![],
        };
        (0..count).for_each(|own| cell.start(own));
        cell
    }

    fn disk(&self, own: usize) -> PathBuf {
        self.folder.path().join(format!("disk-{own}"))
    }

    fn start(&mut self, own: usize) {
        let count = self.replicas.len();
        let listen = self.addresses[own].clone();
        let members = (0..count).map(|to| Member {
            address: match &self.gates[own][to] {
                Some(gate) => Address::Unix(gate.path.clone()),
                None => self.addresses[to].clone(),
            },
            may_lead: count == 1 || to + 1 < count,
        });
        let folder = self.on_disk.then(|| self.disk(own));
        let group = Group {
            id: 7,
            name: "cell-7".to_string(),
            members: members.collect(),
            own,
            folder,
            settings: self.settings,
        };
        let (thread, mut logs) = Replicas::start(&listen, vec![group], self.waker.clone()).unwrap();
        self.replicas[own] = Some(Replica {
            _thread: thread,
            log: logs.pop().unwrap(),
            applied: vec![],
            loads: 0,
            waits: vec![],
            stopped: None,
        });
    }

    fn kill(&mut self, own: usize) {
        self.replicas[own] = None;
    }

    fn leader(&self) -> Option<usize> {
        let leads =
            |own: &usize| -> Option<u32> { self.replicas[*own].as_ref()?.log.leading_term() };
        (0..self.replicas.len()).filter(|own| leads(own).is_some()).max_by_key(leads)
    }

    /// Who leads, as soon as somebody does.
    fn led(&mut self) -> usize {
        self.until(false, "somebody leads", |cell| cell.leader().is_some());
        self.leader().unwrap()
    }

    /// Hears what there is, proposes where there is room if there is `load`, and waits a moment.
    fn turn(&mut self, load: bool) {
        self.poller.wait(&mut vec![], Some(Duration::from_millis(2))).unwrap();
        self.waker.drain();
        for replica in self.replicas.iter_mut().flatten() {
            while let Some(told) = replica.log.next_event() {
                match told {
                    LogEvent::Committed { batch, .. } => {
                        let id = u64::from_le_bytes(batch[..8].try_into().unwrap());
                        assert!(!replica.applied.contains(&id), "batch {id} came twice");
                        replica.applied.push(id);
                        let place = replica.applied.len();
                        if place > self.acknowledged.len() {
                            self.acknowledged.push(id);
                        }
                        assert_eq!(self.acknowledged[place - 1], id, "another order");
                    }
                    LogEvent::TakeSnapshot { number } => {
                        let ids = replica.applied.iter().flat_map(|id| id.to_le_bytes());
                        replica.log.finish_snapshot(number, ids.collect());
                    }
                    LogEvent::LoadSnapshot { state, .. } => {
                        let ids =
                            state.chunks(8).map(|id| u64::from_le_bytes(id.try_into().unwrap()));
                        replica.applied = ids.collect();
                        replica.loads += 1;
                        let known = self.acknowledged.len().min(replica.applied.len());
                        assert_eq!(self.acknowledged[..known], replica.applied[..known]);
                    }
                    LogEvent::LeadershipGained { term: epoch } => self.leads.push(epoch),
                    LogEvent::LeadershipLost => {}
                    LogEvent::Degraded(why) => replica.waits.push(why),
                    LogEvent::CaughtUp => {}
                    LogEvent::Stopped(failure) => replica.stopped = Some(failure.to_string()),
                }
            }
            while load && replica.log.can_propose() {
                let mut batch = self.batches.to_le_bytes().to_vec();
                batch.resize(800, 0);
                self.batches += 1;
                replica.log.propose(batch).unwrap();
            }
        }
    }

    fn until(&mut self, load: bool, what: &str, mut is_done: impl FnMut(&Cell) -> bool) {
        let deadline = Deadline::after(LIMIT);
        while !is_done(self) {
            assert!(!deadline.passed(), "not within {LIMIT:?}: {what}; {}", self.describe());
            self.turn(load);
        }
    }

    fn describe(&self) -> String {
        let of = |replica: &Option<Replica>| match replica {
            Some(replica) => format!(
                "{} applied, lead {:?}, waits {:?}, stopped {:?}",
                replica.applied.len(),
                replica.log.leading_term(),
                replica.waits,
                replica.stopped
            ),
            None => "down".to_string(),
        };
        format!("{:?}", self.replicas.iter().map(of).collect::<Vec<_>>())
    }

    /// So many more batches are acknowledged.
    fn more(&mut self, count: usize) {
        let goal = self.acknowledged.len() + count;
        self.until(true, "more batches", |cell| cell.acknowledged.len() >= goal);
    }

    /// Everybody who is up has everything that was acknowledged, and nothing more.
    fn settle(&mut self) {
        self.until(false, "all have the same", |cell| {
            let all = &cell.acknowledged;
            cell.replicas.iter().flatten().all(|replica| replica.applied == *all)
        });
    }
}

/// A link that can be cut: connections made to its path go on to the replica behind it.
struct Gate {
    path: PathBuf,
    is_open: Arc<AtomicBool>,
    is_over: Arc<AtomicBool>,
}

impl Gate {
    fn new(path: PathBuf, to: PathBuf) -> Gate {
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (is_open, is_over) =
            (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
        let gate = Gate { path, is_open: Arc::clone(&is_open), is_over: Arc::clone(&is_over) };
        std::thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((from, _)) if is_open.load(Ordering::Relaxed) => {
                        if let Ok(to) = UnixStream::connect(&to) {
                            for (a, b) in [(&from, &to), (&to, &from)] {
                                let (a, b) = (a.try_clone().unwrap(), b.try_clone().unwrap());
                                let (open, over) = (Arc::clone(&is_open), Arc::clone(&is_over));
                                std::thread::spawn(move || pass(a, b, &open, &over));
                            }
                        }
                    }
                    _ => std::thread::sleep(Duration::from_millis(1)),
                }
            }
        });
        gate
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

fn pass(mut from: UnixStream, mut to: UnixStream, is_open: &AtomicBool, is_over: &AtomicBool) {
    from.set_nonblocking(false).unwrap();
    from.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    let mut bytes = vec![0; 64 << 10];
    while is_open.load(Ordering::Relaxed) && !is_over.load(Ordering::Relaxed) {
        match from.read(&mut bytes) {
            Ok(0) => break,
            Ok(count) if to.write_all(&bytes[..count]).is_err() => break,
            Err(error) if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                break;
            }
            _ => {}
        }
    }
    let _ = (from.shutdown(std::net::Shutdown::Both), to.shutdown(std::net::Shutdown::Both));
}

/// Kills the leader four times; how long it took until more was acknowledged.
fn kill_leaders(on_disk: bool) -> Vec<Duration> {
    let mut pauses = vec![];
    let mut cell = Cell::new(3, on_disk, settings());
    cell.more(50);
    if !on_disk {
        // Once more over TCP, from the beginning.
        (0..3).for_each(|own| cell.kill(own));
        let free: Vec<TcpListener> =
            (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let address = |free: &TcpListener| Address::Tcp(free.local_addr().unwrap());
        cell.addresses = free.iter().map(address).collect();
        drop(free);
        (cell.acknowledged, cell.leads) = (vec![], vec![]);
        (0..3).for_each(|own| cell.start(own));
        cell.more(50);
    }
    for _ in 0..4 {
        let leader = cell.led();
        assert!(leader < 2, "the last may not lead");
        cell.kill(leader);
        let since = Moment::now();
        cell.more(50);
        pauses.push(since.elapsed());
        cell.start(leader);
        cell.more(50);
        cell.settle();
    }
    assert!(cell.leads.len() >= 5);
    assert!(cell.leads.is_sorted_by(|a, b| a < b), "epochs rise: {:?}", cell.leads);
    pauses
}

#[test]
fn killed_leaders_lose_nothing_in_memory() {
    println!("50 batches after a kill, in memory: {:?}", kill_leaders(false));
}

#[test]
fn killed_leaders_lose_nothing_on_disk() {
    println!("50 batches after a kill, on disk: {:?}", kill_leaders(true));
}

/// Any replicas are killed at any time: in memory one at a time, on disk any number at once.
#[test]
fn random_kills_lose_nothing() {
    for (seed, on_disk) in [(1, false), (2, false), (3, true), (4, true)] {
        let mut random: u64 = 0x9e37_79b9_7f4a_7c15 >> seed;
        let mut below = |bound: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random % bound) as usize
        };
        let mut cell = Cell::new(3, on_disk, Settings { snapshot_bytes: 100 << 10, ..settings() });
        cell.more(20);
        for _ in 0..6 {
            let own = below(3);
            (0..below(40)).for_each(|_| cell.turn(true));
            cell.kill(own);
            (0..below(100)).for_each(|_| cell.turn(true));
            if on_disk && below(2) == 0 {
                cell.kill((own + 1) % 3);
                cell.start((own + 1) % 3);
            }
            cell.start(own);
            if !on_disk {
                cell.settle();
            }
        }
        cell.more(20);
        cell.settle();
        assert!(cell.leads.is_sorted_by(|a, b| a < b), "epochs rise: {:?}", cell.leads);
    }
}

#[test]
fn killed_followers_come_back_from_entries_or_a_snapshot() {
    for on_disk in [false, true] {
        let mut cell = Cell::new(3, on_disk, Settings { snapshot_bytes: 64 << 10, ..settings() });
        cell.more(300);
        for _ in 0..2 {
            let leader = cell.led();
            let follower = (0..2).find(|own| *own != leader).unwrap();
            for own in [follower, 2] {
                cell.kill(own);
                cell.more(300);
                cell.start(own);
                cell.more(20);
                cell.settle();
                assert!(cell.replicas[own].as_ref().unwrap().loads > 0, "by a snapshot");
            }
        }
    }
}

#[test]
fn a_whole_group_comes_back_from_its_disks() {
    let mut cell = Cell::new(3, true, Settings { snapshot_bytes: 64 << 10, ..settings() });
    for _ in 0..3 {
        cell.more(200);
        (0..3).for_each(|own| cell.kill(own));
        (0..3).for_each(|own| cell.start(own));
        cell.more(10);
        cell.settle();
    }
}

#[test]
fn two_replicas_of_three_that_lose_their_memory_say_so_and_wait() {
    let mut cell = Cell::new(3, false, settings());
    cell.more(20);
    cell.kill(0);
    cell.kill(1);
    cell.start(0);
    cell.start(1);
    let say = |cell: &Cell, own: usize| {
        let waits = &cell.replicas[own].as_ref().unwrap().waits;
        waits.iter().filter(|why| why.contains("more than one")).count()
    };
    cell.until(true, "both say so", |cell| say(cell, 0) > 0 && say(cell, 1) > 0);
    let before = cell.acknowledged.len();
    let (first, second) = (say(&cell, 0), say(&cell, 1));
    cell.until(true, "again", |cell| say(cell, 0) > first && say(cell, 1) > second);
    assert_eq!(cell.acknowledged.len(), before);
    assert_eq!(cell.leader(), None);
}

#[test]
fn groups_of_one_and_of_two_work() {
    for on_disk in [false, true] {
        let mut alone = Cell::new(1, on_disk, settings());
        alone.more(30);
        if on_disk {
            alone.settle();
            alone.kill(0);
            alone.start(0);
            alone.more(30);
        }
        alone.settle();
        let mut pair = Cell::new(2, on_disk, settings());
        pair.more(30);
        for own in [0, 1, 0] {
            pair.kill(own);
            pair.start(own);
            pair.more(30);
            pair.settle();
        }
    }
}

/// The leader dies while only the replica that may not lead has everything: it stands, brings the
/// other one up to date and hands over.
#[test]
fn who_is_behind_gets_the_rest_from_the_one_that_may_not_lead() {
    for on_disk in [false, true] {
        let mut cell = Cell::gated(3, on_disk, settings(), true);
        cell.more(20);
        cell.settle();
        let leader = cell.led();
        let behind = 1 - leader;
        cell.gates[leader][behind].as_ref().unwrap().is_open.store(false, Ordering::Relaxed);
        cell.more(30);
        let lacks = |cell: &Cell| {
            cell.replicas[behind].as_ref().unwrap().applied.len() < cell.acknowledged.len()
        };
        assert!(lacks(&cell));
        cell.kill(leader);
        let since = Moment::now();
        cell.until(true, "it leads", |cell| cell.leader() == Some(behind));
        println!("on disk {on_disk}: the one behind leads {:?} after the kill", since.elapsed());
        cell.more(30);
        cell.settle();
        cell.gates[leader][behind].as_ref().unwrap().is_open.store(true, Ordering::Relaxed);
        cell.start(leader);
        cell.more(30);
        cell.settle();
    }
}

#[test]
fn a_leader_that_is_cut_off_acknowledges_nothing_and_follows_when_it_is_back() {
    let mut cell = Cell::gated(3, false, settings(), true);
    cell.more(30);
    for _ in 0..2 {
        let leader = cell.led();
        let set = |cell: &Cell, is_open: bool| {
            for other in 0..3 {
                for (from, to) in [(leader, other), (other, leader)] {
                    let gate = cell.gates[from][to].as_ref().unwrap();
                    gate.is_open.store(is_open, Ordering::Relaxed);
                }
            }
        };
        set(&cell, false);
        cell.until(true, "another leads", |cell| cell.leader().is_some_and(|now| now != leader));
        cell.more(50);
        let cut_off = cell.replicas[leader].as_ref().unwrap();
        assert!(cut_off.applied.len() < cell.acknowledged.len());
        set(&cell, true);
        cell.more(50);
        cell.settle();
        let is_one =
            cell.replicas.iter().flatten().filter(|replica| replica.log.leading_term().is_some());
        assert_eq!(is_one.count(), 1);
    }
}

/// Makes the journal's next file impossible, as a full disk does.
fn fill(disk: &Path) {
    let spare = disk.join("spare.tmp");
    let _ = std::fs::remove_file(&spare);
    std::os::unix::fs::symlink("/dev/full", spare).unwrap();
}

#[test]
fn a_replica_whose_disk_is_full_stops_with_a_sentence_and_the_others_go_on() {
    let mut cell = Cell::new(3, true, settings());
    cell.more(20);
    cell.settle();
    let leader = cell.led();
    cell.kill(leader);
    fill(&cell.disk(leader));
    cell.start(leader);
    cell.until(true, "it stops", |cell| cell.replicas[leader].as_ref().unwrap().stopped.is_some());
    let sentence = cell.replicas[leader].as_ref().unwrap().stopped.clone().unwrap();
    assert!(sentence.contains("cannot grow") && sentence.contains("make room"), "{sentence}");
    cell.more(100);
    cell.kill(leader);
    let _ = std::fs::remove_file(cell.disk(leader).join("spare.tmp"));
    cell.start(leader);
    cell.more(20);
    cell.settle();
}

#[test]
fn throughput_is_reported() {
    for (count, on_disk) in [(1, false), (3, false), (1, true), (3, true)] {
        let mut cell = Cell::new(count, on_disk, Settings::default());
        cell.more(50);
        let (since, before) = (Moment::now(), cell.acknowledged.len());
        cell.more(1_000);
        let rate = (cell.acknowledged.len() - before) as f64 / since.elapsed().as_secs_f64();
        println!("{count} replicas, on disk {on_disk}: {rate:.0} batches/s, two in flight");
        cell.settle();
    }
}
