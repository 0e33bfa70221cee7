//! Replicas of one group: what was acknowledged survives kills, restarts, partitions and disks.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nm_auth::{Right, Secret};
use nm_model::agent::Failure;
use nm_replica::{
    Address, ContentFormat, ContentKind, Group, Log, LogEvent, Member, RaftLog, ReplicaError,
    Replicas, Settings,
};
use nm_replica::{journal, saved};
use nm_sys::clock::{Deadline, Moment};
use nm_sys::poll::{Interest, Poller, Waker};
use tempfile::TempDir;

/// Longest that anything may take; it only keeps a broken test from standing still.
const LIMIT: Duration = Duration::from_secs(60);

fn settings() -> Settings {
    let journal = journal::Settings { file_bytes: 64 << 10 };
    Settings { journal, ..Settings::default() }
}

/// A replica whose state is the list of the batches that were delivered, by their numbers.
struct Replica {
    thread: Replicas,
    log: RaftLog,
    applied: Vec<u64>,
    loads: usize,
    degraded: Vec<String>,
    stopped: Option<String>,
    /// The voters, as it knows them, and whether it is none any more.
    voters: Vec<usize>,
    is_removed: bool,
}

impl Replica {
    fn new(thread: Replicas, log: RaftLog) -> Replica {
        Replica {
            thread,
            log,
            applied: vec![],
            loads: 0,
            degraded: vec![],
            stopped: None,
            voters: vec![],
            is_removed: false,
        }
    }
}

/// The replicas of a group, and what they acknowledged.
struct TestGroup {
    folder: TempDir,
    settings: Settings,
    on_disk: bool,
    addresses: Vec<Address>,
    gates: Vec<Vec<Option<Gate>>>,
    replicas: Vec<Option<Replica>>,
    /// Nodes without a replica.
    outside: Vec<Option<Replicas>>,
    /// How many nodes have one at first.
    first_voters: usize,
    waker: Waker,
    poller: Poller,
    batches: u64,
    /// What any replica reported as committed, in order.
    acknowledged: Vec<u64>,
    /// Terms of the leaders, in order.
    terms: Vec<u32>,
}

impl TestGroup {
    /// `count` replicas, all running; the last may not lead if there are more than one.
    fn new(count: usize, on_disk: bool, settings: Settings) -> TestGroup {
        TestGroup::gated((count, 0), on_disk, settings, false)
    }

    /// Three replicas, and a fourth node without one.
    fn with_spare(on_disk: bool) -> TestGroup {
        TestGroup::gated((3, 1), on_disk, settings(), false)
    }

    fn gated(
        (first_voters, spares): (usize, usize),
        on_disk: bool,
        settings: Settings,
        is_gated: bool,
    ) -> TestGroup {
        let count = first_voters + spares;
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
        let mut group = TestGroup {
            folder,
            settings,
            on_disk,
            addresses,
            gates,
            replicas: (0..count).map(|_| None).collect(),
            outside: (0..count).map(|_| None).collect(),
            first_voters,
            waker,
            poller,
            batches: 0,
            acknowledged: vec![],
            terms: vec![],
        };
        (0..count).for_each(|own| group.start(own));
        group
    }

    fn disk(&self, own: usize) -> PathBuf {
        self.folder.path().join(format!("disk-{own}"))
    }

    fn start(&mut self, own: usize) {
        self.try_start(own).unwrap();
    }

    fn try_start(&mut self, own: usize) -> Result<(), ReplicaError> {
        self.kill(own);
        let count = self.replicas.len();
        let listen = self.addresses[own].clone();
        let members = (0..count).map(|to| Member {
            address: match &self.gates[own][to] {
                Some(gate) => Address::Unix(gate.path.clone()),
                None => self.addresses[to].clone(),
            },
            may_lead: count == 1 || to + 1 != self.first_voters,
        });
        let folder = self.on_disk.then(|| self.disk(own));
        let config = Group {
            id: 7,
            name: "group-7".to_string(),
            members: members.collect(),
            voters: self.first_voters,
            own,
            folder,
            settings: self.settings,
        };
        let has_files = self.on_disk && self.disk(own).exists();
        let (hosted, others) = match own < self.first_voters || has_files {
            true => (vec![config], vec![]),
            false => (vec![], vec![config]),
        };
        let (thread, mut logs) = Replicas::start(&listen, hosted, others, self.waker.clone())?;
        match logs.pop() {
            Some(log) => self.replicas[own] = Some(Replica::new(thread, log)),
            None => self.outside[own] = Some(thread),
        }
        Ok(())
    }

    fn kill(&mut self, own: usize) {
        self.replicas[own] = None;
        self.outside[own] = None;
    }

    /// Nodes get replicas, and lose them.
    fn take_joined(&mut self) {
        for (replica, outside) in self.replicas.iter_mut().zip(&mut self.outside) {
            if let Some(removed) = replica.take_if(|it| it.is_removed) {
                *outside = Some(removed.thread);
            }
            if let Some(log) = outside.as_ref().and_then(Replicas::next_joined).map(Result::unwrap)
                && let Some(thread) = outside.take()
            {
                *replica = Some(Replica::new(thread, log));
            }
        }
    }

    fn leader(&self) -> Option<usize> {
        let leads =
            |own: &usize| -> Option<u32> { self.replicas[*own].as_ref()?.log.leading_term() };
        (0..self.replicas.len()).filter(|own| leads(own).is_some()).max_by_key(leads)
    }

    /// The leader, as soon as there is one.
    fn wait_for_leader(&mut self) -> usize {
        self.until(false, "there is a leader", |group| group.leader().is_some());
        self.leader().unwrap()
    }

    /// Waits a moment, takes all events, and proposes batches if there is `load`.
    fn turn(&mut self, load: bool) {
        self.poller.wait(&mut vec![], Some(Duration::from_millis(2))).unwrap();
        self.waker.drain();
        self.take_joined();
        for replica in self.replicas.iter_mut().flatten() {
            while let Some(event) = replica.log.next_event() {
                match event {
                    LogEvent::Committed { batch, .. } => {
                        let id = u64::from_le_bytes(batch[..8].try_into().unwrap());
                        assert!(!replica.applied.contains(&id), "batch {id} came twice");
                        replica.applied.push(id);
                        let place = replica.applied.len();
                        if place > self.acknowledged.len() {
                            self.acknowledged.push(id);
                        }
                        assert_eq!(self.acknowledged[place - 1], id, "another order of batches");
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
                    LogEvent::LeadershipGained { term } => self.terms.push(term),
                    LogEvent::LeadershipLost => {}
                    LogEvent::Degraded(why)
                    | LogEvent::HandOverFailed(why)
                    | LogEvent::ReplaceFailed(why)
                    | LogEvent::Warning(why) => replica.degraded.push(why),
                    LogEvent::Voters(voters) => replica.voters = voters,
                    LogEvent::Removed => replica.is_removed = true,
                    LogEvent::CaughtUp => {}
                    LogEvent::Stopped(error) => {
                        replica.stopped = Some(Failure::from(error).to_string());
                    }
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

    fn until(&mut self, load: bool, what: &str, mut is_done: impl FnMut(&TestGroup) -> bool) {
        let deadline = Deadline::after(LIMIT);
        while !is_done(self) {
            assert!(!deadline.passed(), "not within {LIMIT:?}: {what}; {}", self.describe());
            self.turn(load);
        }
    }

    fn describe(&self) -> String {
        let of = |replica: &Option<Replica>| match replica {
            Some(replica) => format!(
                "{} applied, leads in {:?}, degraded {:?}, stopped {:?}",
                replica.applied.len(),
                replica.log.leading_term(),
                replica.degraded,
                replica.stopped
            ),
            None => "down".to_string(),
        };
        format!("{:?}", self.replicas.iter().map(of).collect::<Vec<_>>())
    }

    /// Waits until so many more batches are acknowledged.
    fn commit_more(&mut self, count: usize) {
        let goal = self.acknowledged.len() + count;
        self.until(true, "more batches", |group| group.acknowledged.len() >= goal);
    }

    /// Replaces a replica, under load.
    fn replace(&mut self, from: usize, to: usize) {
        let voters = |group: &TestGroup| {
            let leader = group.leader().and_then(|leader| group.replicas[leader].as_ref());
            leader.map(|leader| leader.voters.clone()).unwrap_or_default()
        };
        let mut asked = 0;
        let deadline = Deadline::after(LIMIT);
        while !voters(self).contains(&to) || voters(self).contains(&from) {
            assert!(!deadline.passed(), "{from} is not replaced by {to}: {}", self.describe());
            // Another replica may lead meanwhile, who knows nothing of it.
            if asked % 100 == 0
                && let Some(leader) = self.leader()
                && let Some(leader) = &mut self.replicas[leader]
            {
                leader.log.replace(from, to);
            }
            asked += 1;
            self.turn(true);
        }
    }

    /// Waits until every running replica has exactly what was acknowledged.
    fn settle(&mut self) {
        self.until(false, "all replicas have the same", |group| {
            let all = &group.acknowledged;
            group.replicas.iter().flatten().all(|replica| replica.applied == *all)
        });
    }
}

/// A proxy that can be closed: connections made to its path are forwarded to a replica.
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

/// Kills the leader four times; how long it took until more batches were acknowledged.
fn kill_leaders(on_disk: bool) -> Vec<Duration> {
    let mut pauses = vec![];
    let mut group = TestGroup::new(3, on_disk, settings());
    group.commit_more(50);
    if !on_disk {
        // Once more over TCP, from the beginning.
        (0..3).for_each(|own| group.kill(own));
        let free: Vec<TcpListener> =
            (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let address = |free: &TcpListener| Address::Tcp(free.local_addr().unwrap());
        group.addresses = free.iter().map(address).collect();
        drop(free);
        (group.acknowledged, group.terms) = (vec![], vec![]);
        (0..3).for_each(|own| group.start(own));
        group.commit_more(50);
    }
    for _ in 0..4 {
        let leader = group.wait_for_leader();
        assert!(leader < 2, "the last may not lead");
        group.kill(leader);
        let since = Moment::now();
        group.commit_more(50);
        pauses.push(since.elapsed());
        group.start(leader);
        group.commit_more(50);
        group.settle();
    }
    assert!(group.terms.len() >= 5);
    assert!(group.terms.is_sorted_by(|a, b| a < b), "terms rise: {:?}", group.terms);
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

/// Replicas are replaced one by one under load, dead ones and live ones, the leader as well; then
/// the group is as safe as it was.
#[test]
fn replicas_are_replaced_and_nothing_is_lost() {
    for on_disk in [false, true] {
        let mut group = TestGroup::with_spare(on_disk);
        group.commit_more(50);
        // The last one, which may not lead, is dead for good.
        group.kill(2);
        group.replace(2, 3);
        group.settle();
        // It was brought up to date: one of the others can be spared, and led by.
        let leader = group.wait_for_leader();
        group.kill(leader);
        group.commit_more(50);
        group.start(leader);
        group.commit_more(50);
        // The leader is replaced by the one that was replaced, which has been started again.
        group.start(2);
        let leader = group.wait_for_leader();
        group.replace(leader, 2);
        group.commit_more(50);
        group.until(true, "the old leader has ended", |group| group.replicas[leader].is_none());
        group.settle();
        let applied = group.replicas[2].as_ref().unwrap().applied.len();
        assert_eq!(applied, group.acknowledged.len());
        println!("terms of the leaders: {:?}", group.terms);
        assert!(group.terms.is_sorted_by(|a, b| a < b), "terms rise: {:?}", group.terms);
    }
}

/// A replica that was replaced while it was down finds that out, and disturbs nobody.
#[test]
fn a_replaced_replica_that_comes_back_is_removed() {
    for on_disk in [false, true] {
        let mut group = TestGroup::with_spare(on_disk);
        group.commit_more(50);
        group.wait_for_leader();
        group.kill(2);
        group.replace(2, 3);
        group.start(2);
        group.until(true, "it has ended", |group| group.replicas[2].is_none());
        let terms = group.terms.len();
        group.commit_more(200);
        group.settle();
        assert_eq!(group.terms.len(), terms, "the same leader");
        // A new replica that lost its memory recovers from the voters there are now.
        group.kill(3);
        group.commit_more(50);
        group.start(3);
        group.commit_more(50);
        group.settle();
    }
}

/// What cannot be replaced is refused with the reason.
#[test]
fn impossible_replacements_are_refused() {
    let mut group = TestGroup::with_spare(false);
    group.commit_more(50);
    let leader = group.wait_for_leader();
    let other = 1 - leader;
    for (from, to, why) in [
        (3, 2, "the one to be replaced is no replica"),
        (2, other, "the new one is a replica of the group already"),
        (2, 9, "no node at this position"),
    ] {
        group.replicas[leader].as_mut().unwrap().log.replace(from, to);
        group.until(false, why, |group| {
            let replica = group.replicas[leader].as_ref().unwrap();
            replica.degraded.iter().any(|reason| reason.contains(why))
        });
    }
    group.replicas[other].as_mut().unwrap().log.replace(2, 3);
    group.until(false, "a follower refuses", |group| {
        let replica = group.replicas[other].as_ref().unwrap();
        replica.degraded.iter().any(|reason| reason.contains("does not lead"))
    });
    group.commit_more(50);
    group.settle();
}

/// Leadership goes to and fro under load; a leader that nobody can replace goes on.
#[test]
fn leadership_is_handed_over_and_nothing_is_lost() {
    for on_disk in [false, true] {
        let mut group = TestGroup::new(3, on_disk, settings());
        group.commit_more(50);
        for _ in 0..4 {
            let leader = group.wait_for_leader();
            let term = group.replicas[leader].as_ref().unwrap().log.leading_term();
            let is_other = |group: &TestGroup| {
                let next = group.leader().filter(|next| *next != leader);
                next.is_some_and(|next| {
                    group.replicas[next].as_ref().unwrap().log.leading_term() > term
                })
            };
            let deadline = Deadline::after(LIMIT);
            while !is_other(&group) {
                assert!(!deadline.passed(), "{}", group.describe());
                let begun = Moment::now();
                group.replicas[leader].as_mut().unwrap().log.hand_over();
                group.until(true, "it is handed over, or not", |group| {
                    is_other(group) || begun.elapsed() > Duration::from_secs(2)
                });
            }
            group.commit_more(50);
        }
        let leader = group.wait_for_leader();
        group.kill(1 - leader);
        group.commit_more(20);
        group.replicas[leader].as_mut().unwrap().log.hand_over();
        group.until(false, "a warning", |group| {
            let warnings = &group.replicas[leader].as_ref().unwrap().degraded;
            warnings.iter().any(|warning| warning.contains("goes on leading"))
        });
        assert_eq!(group.leader(), Some(leader));
        group.commit_more(20);
    }
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
        let notifies_at_once = seed % 2 == 0;
        let settings = Settings { notifies_at_once, snapshot_bytes: 100 << 10, ..settings() };
        let mut group = TestGroup::new(3, on_disk, settings);
        group.commit_more(20);
        for _ in 0..6 {
            let own = below(3);
            (0..below(40)).for_each(|_| group.turn(true));
            group.kill(own);
            (0..below(100)).for_each(|_| group.turn(true));
            if on_disk && below(2) == 0 {
                group.kill((own + 1) % 3);
                group.start((own + 1) % 3);
            }
            group.start(own);
            if !on_disk {
                group.settle();
            }
        }
        group.commit_more(20);
        group.settle();
        assert!(group.terms.is_sorted_by(|a, b| a < b), "terms rise: {:?}", group.terms);
    }
}

#[test]
fn replicas_with_a_key_accept_none_without_it() {
    let [key, other] = [(); 2].map(|()| Secret::random().unwrap().key(Right::Node));
    let mut group = TestGroup::new(3, false, Settings { key: Some(key), ..settings() });
    group.commit_more(20);
    group.kill(1);
    for wrong in [None, Some(other)] {
        group.settings.key = wrong;
        for replica in group.replicas.iter_mut().flatten() {
            replica.degraded.clear();
        }
        group.start(1);
        let is_reported = |group: &TestGroup| {
            let others = [0, 2].map(|own| group.replicas[own].as_ref().unwrap());
            others.iter().any(|replica| {
                replica.degraded.iter().any(|line| line.contains("to replicas were refused"))
            })
        };
        group.until(true, "it is refused", is_reported);
        group.commit_more(20);
        assert!(group.replicas[1].as_ref().unwrap().applied.is_empty(), "it learns nothing");
        group.kill(1);
    }
    group.settings.key = Some(key);
    group.start(1);
    group.commit_more(20);
    group.settle();
}

/// Another network uses the same addresses.
#[test]
fn replicas_of_another_cluster_are_refused_by_both_names() {
    let settings = Settings { cluster: 0xaaa, ..settings() };
    let mut group = TestGroup::new(3, false, settings);
    group.commit_more(20);
    group.kill(1);
    for replica in group.replicas.iter_mut().flatten() {
        replica.degraded.clear();
    }
    group.settings.cluster = 0xbbb;
    group.start(1);
    group.until(true, "it is refused", |group| {
        let others = [0, 2].map(|own| group.replicas[own].as_ref().unwrap());
        let mut lines = others.iter().flat_map(|replica| &replica.degraded);
        lines.any(|line| line.contains("of cluster bbb was meant") && line.contains("cluster aaa"))
    });
    group.commit_more(20);
    assert!(group.replicas[1].as_ref().unwrap().applied.is_empty(), "it learns nothing");
    group.kill(1);
    group.settings.cluster = 0xaaa;
    group.start(1);
    group.commit_more(20);
    group.settle();
}

const OLD_KINDS: &[ContentKind] = &[ContentKind { code: 2, name: "Request", digest: 5 }];
const OLD: ContentFormat = ContentFormat { program: "1.0", version: 9, kinds: OLD_KINDS };
const NEW: ContentFormat = ContentFormat {
    program: "2.0",
    kinds: &[OLD_KINDS[0], ContentKind { code: 30, name: "Retire", digest: 6 }],
    ..OLD
};

/// A newer program reads what an older one wrote; the older one then refuses it.
#[test]
fn a_replica_does_not_read_the_folder_of_a_newer_version() {
    let mut group = TestGroup::new(1, true, Settings { content: OLD, ..settings() });
    group.commit_more(20);
    group.settings.content = NEW;
    group.start(0);
    group.commit_more(20);
    group.kill(0);
    group.settings.content = OLD;
    let refused = group.try_start(0).unwrap_err();
    assert_eq!(refused.hint(), Some("start it with the version that wrote it, or a newer one"));
    let message = Failure::from(refused).message;
    assert!(message.contains("nearmetal 2.0, and this is nearmetal 1.0"), "{message}");
    group.settings.content = NEW;
    group.start(0);
    group.commit_more(20);
    group.settle();
}

#[test]
fn replicas_that_do_not_know_the_same_messages_refuse_each_other() {
    let mut group = TestGroup::new(3, false, Settings { content: OLD, ..settings() });
    group.commit_more(20);
    group.kill(1);
    for replica in group.replicas.iter_mut().flatten() {
        replica.degraded.clear();
    }
    group.settings.content = NEW;
    group.start(1);
    group.until(true, "it is refused", |group| {
        let others = [0, 2].map(|own| group.replicas[own].as_ref().unwrap());
        let mut lines = others.iter().flat_map(|replica| &replica.degraded);
        let formats = [OLD, NEW].map(|it| format!("{:016x}", it.digest()));
        lines.any(|line| formats.iter().all(|format| line.contains(format)))
    });
    group.commit_more(20);
    assert!(group.replicas[1].as_ref().unwrap().applied.is_empty(), "it learns nothing");
}

#[test]
fn without_a_key_connections_that_send_nothing_are_limited_and_ended_as_well() {
    let mut group = TestGroup::new(3, false, settings());
    group.commit_more(20);
    let Address::Unix(path) = &group.addresses[0] else { panic!("replicas use Unix sockets") };
    let strangers: Vec<UnixStream> = (0..300).map(|_| UnixStream::connect(path).unwrap()).collect();
    for stranger in &strangers {
        stranger.set_nonblocking(true).unwrap();
    }
    let closed = |strangers: &[UnixStream]| {
        strangers.iter().filter(|stranger| matches!((&**stranger).read(&mut [0]), Ok(0))).count()
    };
    group.until(true, "those beyond 256 are closed", |_| closed(&strangers) >= 300 - 256);
    group.until(true, "all are closed", |_| closed(&strangers) == 300);
    let degraded = &group.replicas[0].as_ref().unwrap().degraded;
    assert!(degraded.iter().any(|line| line.contains("to replicas were refused")), "{degraded:?}");
    group.commit_more(20);
    group.settle();
}

#[test]
fn a_request_in_another_version_is_refused_and_reported() {
    let mut group = TestGroup::new(3, false, settings());
    group.commit_more(20);
    let Address::Unix(path) = &group.addresses[0] else { panic!("replicas use Unix sockets") };
    let mut stranger = UnixStream::connect(path).unwrap();
    // A length, and the number of a kind of frame, as the first versions began.
    stranger.write_all(&[&4u64.to_le_bytes()[..], &[2, 0, 7, 0]].concat()).unwrap();
    group.until(true, "it is reported", |group| {
        let degraded = &group.replicas[0].as_ref().unwrap().degraded;
        degraded.iter().any(|line| line.contains("does not begin with the hello of this version"))
    });
    stranger.set_nonblocking(false).unwrap();
    // Reset, because nobody reads the rest.
    assert_eq!(stranger.read(&mut [0]).unwrap_or(0), 0, "the connection is closed");
    group.commit_more(20);
}

#[test]
fn killed_followers_catch_up_from_entries_or_a_snapshot() {
    for on_disk in [false, true] {
        let mut group =
            TestGroup::new(3, on_disk, Settings { snapshot_bytes: 64 << 10, ..settings() });
        group.commit_more(300);
        for _ in 0..2 {
            let leader = group.wait_for_leader();
            let follower = (0..2).find(|own| *own != leader).unwrap();
            for own in [follower, 2] {
                group.kill(own);
                group.commit_more(300);
                group.start(own);
                group.commit_more(20);
                group.settle();
                assert!(group.replicas[own].as_ref().unwrap().loads > 0, "by a snapshot");
            }
        }
    }
}

/// The replica that a node opens.
fn opened(node: &Replicas) -> RaftLog {
    let deadline = Deadline::after(LIMIT);
    loop {
        if let Some(log) = node.next_joined() {
            return log.unwrap();
        }
        assert!(!deadline.passed(), "nothing is opened");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Opens a group at all nodes, and waits until it has agreed on one batch.
fn open_everywhere(nodes: &[Replicas], group: impl Fn(usize) -> Group) -> Vec<RaftLog> {
    nodes.iter().enumerate().for_each(|(own, node)| node.open(group(own), true));
    let mut logs: Vec<RaftLog> = nodes.iter().map(opened).collect();
    let (mut committed, mut is_proposed) = (vec![0; logs.len()], false);
    let deadline = Deadline::after(LIMIT);
    while committed.contains(&0) {
        assert!(!deadline.passed(), "committed {committed:?}");
        for (log, committed) in logs.iter_mut().zip(&mut committed) {
            while let Some(event) = log.next_event() {
                *committed += usize::from(matches!(event, LogEvent::Committed { .. }));
            }
            if !is_proposed && log.can_propose() {
                is_proposed = log.propose(vec![1; 100]).is_ok();
            }
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    logs
}

#[test]
fn a_group_begins_and_ends_while_its_nodes_run() {
    let folder = TempDir::new().unwrap();
    let at = |own: usize| Address::Unix(folder.path().join(format!("replica-{own}")));
    let group = |own: usize| Group {
        id: 9,
        name: "group-9".to_string(),
        members: (0..3).map(|to| Member { address: at(to), may_lead: true }).collect(),
        voters: 3,
        own,
        folder: None,
        settings: settings(),
    };
    let start = |own| Replicas::start(&at(own), vec![], vec![], Waker::new().unwrap()).unwrap().0;
    let nodes: Vec<Replicas> = (0..3).map(start).collect();
    // Its number can be used again, because nothing is left of it.
    for _ in 0..2 {
        let logs = open_everywhere(&nodes, group);
        nodes.iter().for_each(|node| node.close(9));
        let deadline = Deadline::after(LIMIT);
        for mut log in logs {
            while !matches!(log.next_event(), Some(LogEvent::Removed)) {
                assert!(!deadline.passed(), "a replica goes on");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
    // One that waits for the others ends as well, and one that nobody has asked to join.
    nodes[0].open(group(0), true);
    let mut alone = opened(&nodes[0]);
    nodes[1].open(group(1), false);
    nodes[..2].iter().for_each(|node| node.close(9));
    let deadline = Deadline::after(LIMIT);
    while !matches!(alone.next_event(), Some(LogEvent::Removed)) {
        assert!(!deadline.passed(), "the replica goes on");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_group_restarts_from_its_disks() {
    let mut group = TestGroup::new(3, true, Settings { snapshot_bytes: 64 << 10, ..settings() });
    for _ in 0..3 {
        group.commit_more(200);
        (0..3).for_each(|own| group.kill(own));
        (0..3).for_each(|own| group.start(own));
        group.commit_more(10);
        group.settle();
    }
}

#[test]
fn two_replicas_of_three_that_lose_their_state_report_it_and_wait() {
    let mut group = TestGroup::new(3, false, settings());
    group.commit_more(20);
    group.kill(0);
    group.kill(1);
    group.start(0);
    group.start(1);
    let reports = |group: &TestGroup, own: usize| {
        let degraded = &group.replicas[own].as_ref().unwrap().degraded;
        degraded.iter().filter(|why| why.contains("more than one")).count()
    };
    group.until(true, "both report it", |group| reports(group, 0) > 0 && reports(group, 1) > 0);
    let before = group.acknowledged.len();
    let (first, second) = (reports(&group, 0), reports(&group, 1));
    group.until(true, "both report it again", |group| {
        reports(group, 0) > first && reports(group, 1) > second
    });
    assert_eq!(group.acknowledged.len(), before);
    assert_eq!(group.leader(), None);
}

/// If two of three could begin alone and both lost their state, the third would begin the group
/// once more with them, and nobody would know what they had acknowledged.
#[test]
fn a_group_begins_when_all_its_replicas_know_that_it_has() {
    let mut group = TestGroup::gated((3, 0), false, settings(), true);
    (0..3).for_each(|own| group.kill(own));
    let set = |group: &TestGroup, is_open: bool| {
        for to in [0, 1] {
            group.gates[2][to].as_ref().unwrap().is_open.store(is_open, Ordering::Relaxed);
        }
    };
    set(&group, false);
    (0..3).for_each(|own| group.start(own));
    group.until(true, "the first reports that it waits", |group| {
        let degraded = &group.replicas[0].as_ref().unwrap().degraded;
        degraded.iter().any(|why| why.contains("when all its replicas answer"))
    });
    assert_eq!((group.acknowledged.len(), group.leader()), (0, None));
    set(&group, true);
    group.commit_more(20);
    group.settle();
}

#[test]
fn groups_of_one_and_of_two_work() {
    for on_disk in [false, true] {
        let mut alone = TestGroup::new(1, on_disk, settings());
        alone.commit_more(30);
        if on_disk {
            alone.settle();
            alone.kill(0);
            alone.start(0);
            alone.commit_more(30);
        }
        alone.settle();
        let mut pair = TestGroup::new(2, on_disk, settings());
        pair.commit_more(30);
        for own in [0, 1, 0] {
            pair.kill(own);
            pair.start(own);
            pair.commit_more(30);
            pair.settle();
        }
    }
}

/// Without notices, heartbeats are what followers learn of the last commits by.
#[test]
fn followers_learn_of_commits_by_heartbeats() {
    let settings = Settings { notifies_at_once: false, ..settings() };
    let mut group = TestGroup::new(3, false, settings);
    for _ in 0..10 {
        group.commit_more(1);
        group.settle();
    }
}

/// The leader dies while only the replica that may not lead has all entries: it is elected, brings
/// the other one up to date and hands over.
#[test]
fn a_replica_behind_catches_up_from_the_one_that_may_not_lead() {
    for on_disk in [false, true] {
        let mut group = TestGroup::gated((3, 0), on_disk, settings(), true);
        group.commit_more(20);
        group.settle();
        let leader = group.wait_for_leader();
        let behind = 1 - leader;
        group.gates[leader][behind].as_ref().unwrap().is_open.store(false, Ordering::Relaxed);
        group.commit_more(30);
        let lacks = |group: &TestGroup| {
            group.replicas[behind].as_ref().unwrap().applied.len() < group.acknowledged.len()
        };
        assert!(lacks(&group));
        group.kill(leader);
        let since = Moment::now();
        group.until(true, "the replica behind leads", |group| group.leader() == Some(behind));
        println!(
            "on disk {on_disk}: the replica behind leads {:?} after the kill",
            since.elapsed()
        );
        group.commit_more(30);
        group.settle();
        group.gates[leader][behind].as_ref().unwrap().is_open.store(true, Ordering::Relaxed);
        group.start(leader);
        group.commit_more(30);
        group.settle();
    }
}

#[test]
fn a_partitioned_leader_acknowledges_nothing_and_follows_when_it_is_back() {
    let mut group = TestGroup::gated((3, 0), false, settings(), true);
    group.commit_more(30);
    for _ in 0..2 {
        let leader = group.wait_for_leader();
        let set = |group: &TestGroup, is_open: bool| {
            for other in 0..3 {
                for (from, to) in [(leader, other), (other, leader)] {
                    let gate = group.gates[from][to].as_ref().unwrap();
                    gate.is_open.store(is_open, Ordering::Relaxed);
                }
            }
        };
        set(&group, false);
        group.until(true, "another one leads", |group| {
            group.leader().is_some_and(|now| now != leader)
        });
        group.commit_more(50);
        let partitioned = group.replicas[leader].as_ref().unwrap();
        assert!(partitioned.applied.len() < group.acknowledged.len());
        set(&group, true);
        group.commit_more(50);
        group.settle();
        let is_one =
            group.replicas.iter().flatten().filter(|replica| replica.log.leading_term().is_some());
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
fn a_replica_with_a_full_disk_stops_with_a_message_and_the_others_go_on() {
    let mut group = TestGroup::new(3, true, settings());
    group.commit_more(20);
    group.settle();
    let leader = group.wait_for_leader();
    group.kill(leader);
    fill(&group.disk(leader));
    group.start(leader);
    group.until(true, "it stops", |group| {
        group.replicas[leader].as_ref().unwrap().stopped.is_some()
    });
    let message = group.replicas[leader].as_ref().unwrap().stopped.clone().unwrap();
    assert!(message.contains("cannot grow") && message.contains("make room"), "{message}");
    group.commit_more(100);
    group.kill(leader);
    let _ = std::fs::remove_file(group.disk(leader).join("spare.tmp"));
    group.start(leader);
    group.commit_more(20);
    group.settle();
}

#[test]
fn throughput_is_reported() {
    for (count, on_disk) in [(1, false), (3, false), (1, true), (3, true)] {
        let mut group = TestGroup::new(count, on_disk, Settings::default());
        group.commit_more(50);
        let (since, before) = (Moment::now(), group.acknowledged.len());
        group.commit_more(1_000);
        let rate = (group.acknowledged.len() - before) as f64 / since.elapsed().as_secs_f64();
        println!("{count} replicas, on disk {on_disk}: {rate:.0} batches/s, two in flight");
        group.settle();
    }
}

/// A snapshot that cannot be read until somebody writes it, as on a disk that stops.
#[test]
fn a_replica_is_opened_without_waiting_for_its_disk() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| Address::Unix(folder.path().join(name));
    let group = |id: u16, folder: Option<PathBuf>| Group {
        id,
        name: format!("group-{id}"),
        members: vec![Member { address: at("replica"), may_lead: true }],
        voters: 1,
        own: 0,
        folder,
        settings: settings(),
    };
    let (node, _) = Replicas::start(&at("replica"), vec![], vec![], Waker::new().unwrap()).unwrap();
    let stopped = folder.path().join("stopped");
    std::fs::create_dir(&stopped).unwrap();
    let snapshot = stopped.join("snapshot");
    let made = std::process::Command::new("mkfifo").arg(&snapshot).status().unwrap();
    assert!(made.success());
    node.open(group(1, Some(stopped)), true);
    // Another group of the node is opened and elects its leader meanwhile.
    node.open(group(2, None), true);
    let mut log = opened(&node);
    let deadline = Deadline::after(LIMIT);
    while !log.can_propose() {
        assert!(!deadline.passed(), "it does not lead");
        log.next_event();
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(log.group_id(), 2);
    assert!(node.next_joined().is_none(), "the disk stands still");
    drop(std::fs::File::options().write(true).open(&snapshot).unwrap());
    while node.next_joined().is_none() {
        assert!(!deadline.passed(), "the disk goes on");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Two of three replicas begin again from a copy, and the third has its files of before.
#[test]
fn a_replica_of_an_earlier_generation_stops_and_one_without_files_is_filled() {
    let mut group = TestGroup::new(3, true, settings());
    group.commit_more(20);
    group.settle();
    (0..3).for_each(|own| group.kill(own));
    let state: Vec<u8> = group.acknowledged.iter().flat_map(|id| id.to_le_bytes()).collect();
    for own in 0..2 {
        let folder = group.disk(own);
        std::fs::remove_dir_all(&folder).unwrap();
        let state = (state.clone(), 1_000);
        saved::begin(&folder, state, 1, &[7, 8, 9], &ContentFormat::default()).unwrap();
        assert_eq!(saved::generation(saved::vote(&folder).unwrap()), 1);
    }
    (0..3).for_each(|own| group.start(own));
    group.until(false, "the third one stops", |group| {
        group.replicas[2].as_ref().is_some_and(|replica| replica.stopped.is_some())
    });
    let stopped = group.replicas[2].as_ref().unwrap().stopped.clone().unwrap();
    let folder = group.disk(2);
    for part in ["was restored or recovered without", folder.to_str().unwrap(), "move its folder"] {
        assert!(stopped.contains(part), "{stopped}");
    }
    group.kill(2);
    group.commit_more(20);
    std::fs::remove_dir_all(&folder).unwrap();
    group.start(2);
    group.commit_more(20);
    group.settle();
}
