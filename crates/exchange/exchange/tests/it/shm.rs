//! Links in shared memory: complete frames in order despite pauses, nothing lost when the peer
//! dies, no descriptors or mappings leaked.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nm_exchange::link::{Address, Link, LinkError, LinkPoller, Listener, SHM_RING_BYTES, Stream};
use nm_stats::random::Random;
use nm_sys::clock::Deadline;
use nm_wire::{FrameMut, Kind, Shape};

/// Nothing sleeps so long unless a wake-up was lost.
const LIMIT: Duration = Duration::from_secs(30);

/// Longest message of the published study, bytes.
const LONGEST: usize = 80_000;

/// An endpoint that sends and receives numbered frames as a node does: it sleeps until its poller
/// wakes it, and polls for writing only while it has a backlog.
struct Endpoint {
    link: Link,
    poller: LinkPoller,
    ready: Vec<nm_sys::poll::Readiness>,
    has_backlog: bool,
    sent: u64,
    received: u64,
}

/// Appends a frame whose message repeats a number.
fn write(number: u64, words: usize, size_bytes: usize, out: &mut Vec<u8>) {
    let shape = Shape { is_stamped: false, size_bytes };
    let message = number.to_le_bytes().repeat(words);
    nm_wire::write_with(Kind::CatchUp.code(), shape, out, |out| out.extend(message));
}

fn number_of(frame: &FrameMut<'_>) -> u64 {
    u64::from_le_bytes(*frame.shared().message.first_chunk().unwrap())
}

impl Endpoint {
    fn new(stream: Stream) -> Endpoint {
        let link = Link::new(stream).unwrap();
        let mut poller = LinkPoller::new().unwrap();
        poller.add_link(&link, 7).unwrap();
        Endpoint { link, poller, ready: vec![], has_backlog: false, sent: 0, received: 0 }
    }

    fn send(&mut self, size_bytes: usize) {
        let words = 1 + size_bytes / 16;
        write(self.sent, words, size_bytes, &mut self.link.output);
        self.sent += 1;
    }

    fn flush(&mut self) {
        let has_backlog = !self.link.flush().unwrap();
        if has_backlog != self.has_backlog {
            self.has_backlog = has_backlog;
            self.poller.want_write(&self.link, 7, has_backlog).unwrap();
        }
    }

    /// Sleeps until something is there, for at most `limit`, and handles it.
    fn turn(&mut self, limit: Duration) {
        self.poller.wait(&mut self.ready, Some(limit)).unwrap();
        for ready in std::mem::take(&mut self.ready) {
            assert_eq!(ready.token, 7);
            if ready.writable {
                self.flush();
            }
            if ready.readable {
                self.link.receive().unwrap();
                self.take();
            }
        }
    }

    /// The complete frames.
    fn take(&mut self) {
        while let Some(frame) = self.link.input.next_frame().unwrap() {
            assert_eq!(number_of(&frame), self.received);
            let expected = self.received.to_le_bytes();
            assert!(frame.shared().message.chunks(8).all(|word| word == expected), "a torn frame");
            self.received += 1;
        }
    }

    fn receive_until(&mut self, count: u64) {
        let deadline = Deadline::after(LIMIT);
        while self.received < count {
            assert!(!deadline.passed(), "{} of {count} came: a wake-up was lost", self.received);
            self.turn(deadline.remaining());
        }
    }
}

/// Two streams through one memory.
fn pair(folder: &Path) -> (Stream, Stream) {
    let address: Address = format!("shm:{}", folder.join("socket").display()).parse().unwrap();
    let listener = Listener::bind(&address).unwrap();
    let connecting = std::thread::spawn(move || Stream::connect(&address, LIMIT).unwrap());
    let accepted = accept(&listener);
    (accepted, connecting.join().unwrap())
}

fn accept(listener: &Listener) -> Stream {
    let mut poller = LinkPoller::new().unwrap();
    poller.add(listener, 0).unwrap();
    let deadline = Deadline::after(LIMIT);
    loop {
        if let Some(stream) = listener.accept().unwrap() {
            return stream;
        }
        assert!(!deadline.passed(), "nobody connects");
        poller.wait(&mut vec![], Some(deadline.remaining())).unwrap();
    }
}

#[test]
fn the_longest_messages_reach_a_slow_reader_complete_and_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = pair(folder.path());
    let count = 40 * (SHM_RING_BYTES / LONGEST) as u64;
    let sender = std::thread::spawn(move || {
        let mut from = Endpoint::new(a);
        for _ in 0..count {
            from.send(LONGEST);
        }
        from.flush();
        assert!(from.has_backlog, "more than there is space for");
        let deadline = Deadline::after(LIMIT);
        while from.has_backlog {
            assert!(!deadline.passed(), "the writer was not woken");
            from.turn(deadline.remaining());
        }
        from
    });
    let mut to = Endpoint::new(b);
    while to.received < count {
        to.turn(LIMIT);
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(sender.join().unwrap());
    assert!(to.link.receive().is_err(), "the end");
}

#[test]
fn both_directions_may_be_full_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = pair(folder.path());
    let run = |stream| {
        let mut end = Endpoint::new(stream);
        for size in 0..600 {
            end.send(100 + size * 120);
        }
        // Both write more than there is space for before either reads.
        end.flush();
        assert!(end.has_backlog);
        end.receive_until(600);
        let deadline = Deadline::after(LIMIT);
        while end.has_backlog {
            assert!(!deadline.passed(), "the writer was not woken");
            end.turn(deadline.remaining());
        }
        end
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| run(b));
        // Held open until both are done.
        let own = run(a);
        let other = other.join().unwrap();
        assert_eq!((own.received, other.received), (600, 600));
    });
}

#[test]
fn no_wake_up_is_lost_despite_random_pauses() {
    for seed in 0..4 {
        let folder = tempfile::tempdir().unwrap();
        let (a, b) = pair(folder.path());
        // Each end answers each frame with one, after a pause that ends sometimes before, sometimes
        // after the other one has gone to sleep.
        let run = move |stream, begins: bool| {
            let mut random = Random::new(seed * 2 + u64::from(begins));
            let mut end = Endpoint::new(stream);
            for _ in 0..3_000 {
                if begins {
                    end.send(random.below(2_000));
                    end.flush();
                }
                end.receive_until(end.received + 1);
                for _ in 0..random.below(300) {
                    std::hint::spin_loop();
                }
                if !begins {
                    end.send(random.below(2_000));
                    end.flush();
                }
            }
            end
        };
        std::thread::scope(|scope| {
            let other = scope.spawn(|| run(b, false));
            let own = run(a, true);
            let other = other.join().unwrap();
            assert_eq!((own.received, other.received), (3_000, 3_000));
        });
    }
}

#[test]
fn one_poller_serves_many_links_beside_other_descriptors() {
    let (folder, links, frames) = (tempfile::tempdir().unwrap(), 60, 200);
    let mut poller = LinkPoller::new().unwrap();
    let (mut ends, mut others) = (vec![], vec![]);
    for token in 0..links {
        let (a, b) = pair(folder.path());
        let link = Link::new(a).unwrap();
        poller.add_link(&link, token).unwrap();
        ends.push(Some(link));
        others.push(Endpoint::new(b));
    }
    let waker = nm_sys::poll::Waker::new().unwrap();
    poller.add(&waker, 1_000).unwrap();
    let senders = std::thread::spawn(move || {
        let mut random = Random::new(5);
        for _ in 0..frames {
            for end in &mut others {
                end.send(random.below(3_000));
                end.flush();
            }
            waker.wake();
            if random.below(4) == 0 {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    });
    let (mut came, mut ready, mut woken) = (vec![0u64; links as usize], vec![], 0);
    let deadline = Deadline::after(LIMIT);
    // Each link ends when its sender has: only then is its last frame behind it.
    while ends.iter().any(Option::is_some) {
        assert!(!deadline.passed(), "a wake-up was lost: {came:?}");
        poller.wait(&mut ready, Some(deadline.remaining())).unwrap();
        for found in &ready {
            if found.token == 1_000 {
                woken += 1;
                continue;
            }
            let at = found.token as usize;
            let Some(link) = &mut ends[at] else { continue };
            let received = link.receive();
            while let Some(frame) = link.input.next_frame().unwrap() {
                assert_eq!(number_of(&frame), came[at]);
                came[at] += 1;
            }
            if received.is_err() {
                poller.remove(link);
                ends[at] = None;
            }
        }
    }
    senders.join().unwrap();
    assert!(woken > 0 && came.iter().all(|count| *count == frames), "{came:?}");
}

/// Environment variable with the socket at which the other end of [`child`] listens.
const SOCKET: &str = "NEARMETAL_TEST_SOCKET";

/// Runs one test of this binary as a process of its own.
fn child(test: &str, socket: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("shm::{test}"), "--nocapture"]).env(SOCKET, socket);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().unwrap()
}

#[test]
fn what_a_killed_process_wrote_arrives_before_its_end() {
    if let Some(socket) = std::env::var_os(SOCKET) {
        let address = format!("shm:{}", Path::new(&socket).display()).parse().unwrap();
        let mut end = Endpoint::new(Stream::connect(&address, LIMIT).unwrap());
        for size in 0..500 {
            end.send(size);
        }
        end.flush();
        loop {
            std::thread::sleep(LIMIT);
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let listener = Listener::bind(&Address::Shm(socket.clone())).unwrap();
    let mut process = child("what_a_killed_process_wrote_arrives_before_its_end", &socket);
    let mut end = Endpoint::new(accept(&listener));
    // Of all that it wrote nothing is read before its death.
    while end.link.receive().is_ok() && !end.link.input.next_frame().is_ok_and(|f| f.is_some()) {
        std::thread::yield_now();
    }
    end.received = 1;
    std::thread::sleep(Duration::from_millis(100));
    process.kill().unwrap();
    process.wait().unwrap();
    let deadline = Deadline::after(LIMIT);
    let why = loop {
        end.poller.wait(&mut end.ready, Some(deadline.remaining())).unwrap();
        assert!(!deadline.passed(), "a death was not seen");
        let received = end.link.receive();
        end.take();
        if let Err(why) = received {
            break why;
        }
    };
    assert_eq!(end.received, 500);
    assert!(matches!(why, LinkError::Closed), "{why}");
}

/// Descriptors of this process, and mappings of memory that is shared.
fn held() -> (usize, usize) {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    (descriptors, maps.lines().filter(|line| line.contains("nearmetal-conduit")).count())
}

#[test]
fn links_that_are_made_repeatedly_leak_nothing() {
    let test = "links_that_are_made_repeatedly_leak_nothing";
    let Some(socket) = std::env::var_os(SOCKET) else {
        // Alone in a process, where nothing else opens files meanwhile.
        let folder = tempfile::tempdir().unwrap();
        assert!(child(test, &folder.path().join("socket")).wait().unwrap().success());
        return;
    };
    let folder = Path::new(&socket).parent().unwrap();
    let mut poller = LinkPoller::new().unwrap();
    let before = held();
    for turn in 0..50 {
        let (a, b) = pair(folder);
        let (a, mut b) = (Link::new(a).unwrap(), Link::new(b).unwrap());
        poller.add_link(&a, turn).unwrap();
        write(1, 13, 0, &mut b.output);
        assert!(b.flush().unwrap());
        assert_eq!(held().1, 2);
        // Closed with its doorbell rung, which the other end still has.
        poller.remove(&a);
        drop(a);
        assert!(b.receive().is_err(), "the end");
        let mut ready = vec![];
        b.flush().unwrap();
        poller.wait(&mut ready, Some(Duration::ZERO)).unwrap();
        assert!(ready.is_empty(), "{ready:?}");
    }
    assert_eq!(held(), before);
}

#[test]
fn a_peer_that_is_not_a_node_is_refused_and_a_silent_one_times_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let address = Address::Shm(path.clone());
    let silent = Stream::connect(&address, Duration::from_millis(20)).unwrap_err();
    assert_eq!(silent.kind(), std::io::ErrorKind::TimedOut);
    let speaks = std::thread::spawn(move || {
        // The silent one's connection waits as well.
        let _first = listener.accept().unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        std::io::Write::write_all(&mut stream, b"HTTP/1.1 400 Bad").unwrap();
        let _ = stream.read(&mut [0]);
    });
    let refused = Stream::connect(&address, LIMIT).unwrap_err();
    assert!(refused.to_string().contains("no shared memory"), "{refused}");
    speaks.join().unwrap();
    // A link whose peer sends data over the socket is closed.
    let (a, b) = UnixStream::pair().unwrap();
    let ring = nm_exchange::link::ShmStream::accept(a).unwrap();
    std::io::Write::write_all(&mut &b, b"x").unwrap();
    let broken = Link::new(Stream::Shm(ring)).unwrap().receive().unwrap_err();
    assert!(broken.to_string().contains("beside"), "{broken}");
}
