//! The data loop of a node without durability. After a warm-up, a request costs no allocation, and
//! no system calls but those that wait, read and write.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use nm_book::order::{Command, Side};
use nm_book::testing::limit;
use nm_exchange::client::say_hello;
use nm_exchange::network::{Durability, Network, Node, NodeId, Role};
use nm_exchange::node::{self, EventQueue, NodeEvent};
use nm_exchange::testing;
use nm_test_support::{Calls, report_system_calls, supervise, watch};
use nm_wire::{Kind, Reply, Request, Shape, Who};

const INSTRUMENTS: u32 = 4;

/// A client of one session that sends so many requests at once and waits for their replies.
struct Client {
    stream: UnixStream,
    input: Vec<u8>,
    last_seqs: [u64; INSTRUMENTS as usize],
    acknowledged: [u64; INSTRUMENTS as usize],
    requested: u64,
}

impl Client {
    fn new(network: &Network) -> Client {
        let path = network.classes[Role::Gateway].nodes[0].address.to_string();
        let mut stream = UnixStream::connect(path.strip_prefix("unix:").unwrap()).unwrap();
        let mut hello = vec![];
        say_hello(Who::Client { session: 1 }, None, &mut hello);
        stream.write_all(&hello).unwrap();
        let zeros = [0; INSTRUMENTS as usize];
        Client { stream, input: vec![], last_seqs: zeros, acknowledged: zeros, requested: 0 }
    }

    /// Orders that rest, trade and are cancelled, on each instrument in turn: the books do not
    /// grow.
    fn request(&mut self, out: &mut Vec<u8>) {
        let at = (self.requested % u64::from(INSTRUMENTS)) as usize;
        let step = self.requested / u64::from(INSTRUMENTS);
        self.requested += 1;
        let side = if step.is_multiple_of(2) { Side::Buy } else { Side::Sell };
        let command = match step % 4 {
            3 => Command::Cancel { id: step - 1, user: 1 },
            _ => Command::New(limit(step, 1, side, 100, 5)),
        };
        let request = Request {
            client_seq: self.requested,
            previous_seq: self.last_seqs[at],
            acknowledged: self.acknowledged[at],
            ..testing::request(1, at as u32, command)
        };
        self.last_seqs[at] = self.requested;
        let shape = Shape { is_stamped: false, size_bytes: 300 };
        nm_wire::write_shaped(&request, shape, out);
    }

    fn request_and_wait(&mut self, count: u64) {
        let mut out = vec![];
        (0..count).for_each(|_| self.request(&mut out));
        self.stream.write_all(&out).unwrap();
        let mut left = count;
        while left > 0 {
            let mut bytes = [0; 65_536];
            let read = self.stream.read(&mut bytes).unwrap();
            assert!(read > 0, "the gateway ended the link");
            self.input.extend_from_slice(&bytes[..read]);
            let mut used = 0;
            while let Some(frame) = nm_wire::read(&self.input[used..]).unwrap() {
                used += frame.bytes.len();
                if frame.kind() == Kind::Reply {
                    left -= 1;
                    let Reply { instrument, previous_event, events, .. } = frame.read().unwrap();
                    let last = previous_event + events.count() as u64;
                    self.acknowledged[instrument as usize] = last;
                }
            }
            self.input.drain(..used);
        }
    }
}

/// Runs a ring of four nodes, each of which calls `begin` first, while `work` runs.
fn ring<R>(begin: impl Fn(Role) + Sync, work: impl FnOnce(&Network) -> R) -> R {
    let folder = tempfile::tempdir().unwrap();
    let mut network = Network::new("1-1-1-1".parse().unwrap(), |NodeId { class, .. }| {
        let address = format!("unix:{}/{class}", folder.path().display());
        Node { address: address.parse().unwrap(), replication: None }
    });
    network.durability = Durability::None;
    let ready = Arc::new(Barrier::new(5));
    thread::scope(|scope| {
        let stops: Vec<UnixStream> = Role::ALL
            .iter()
            .map(|role| {
                let (stop, stopped) = UnixStream::pair().unwrap();
                let (network, begin, ready) = (&network, &begin, Arc::clone(&ready));
                scope.spawn(move || {
                    begin(*role);
                    let report = move |event: &NodeEvent| {
                        if matches!(event, NodeEvent::Ready { .. }) {
                            ready.wait();
                        }
                    };
                    let events = EventQueue::start(role.node(0), report).unwrap();
                    node::run(network, role.node(0), stopped.as_fd(), &events).unwrap()
                });
                stop
            })
            .collect();
        ready.wait();
        let done = work(&network);
        drop(stops);
        done
    })
}

#[test]
fn a_request_costs_a_node_no_allocation() {
    static COUNTS: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];
    let counts = || COUNTS.each_ref().map(|count| count.load(Ordering::Relaxed));
    let begin = |role| watch(&COUNTS[role as usize]);
    let (before, after) = ring(begin, |network| {
        let mut client = Client::new(network);
        // The largest burst comes first, and then enough requests that no buffer grows any more.
        client.request_and_wait(512);
        (0..500).for_each(|_| client.request_and_wait(16));
        let before = counts();
        (0..1_000).for_each(|_| client.request_and_wait(16));
        (before, counts())
    });
    assert!(before.iter().all(|count| *count > 10), "{before:?} are counted");
    assert_eq!(
        before, after,
        "16000 requests: allocations of gateway, router, mediator, processor"
    );
}

#[test]
fn a_node_only_waits_reads_and_writes() {
    /// Requests that are counted; as many come before, so that no buffer grows any more.
    const REQUESTS: usize = 300;
    let reports = [const { AtomicI32::new(i32::MIN) }; 4];
    let calls: BTreeMap<usize, Calls> = thread::scope(|scope| {
        let supervisors: Vec<_> = reports
            .iter()
            .map(|report| {
                scope.spawn(move || {
                    // A watched thread waits in each call until its report is taken.
                    loop {
                        match report.load(Ordering::Acquire) {
                            i32::MIN => thread::sleep(std::time::Duration::from_millis(1)),
                            listener => return supervise(listener),
                        }
                    }
                })
            })
            .collect();
        let begin = |role| {
            let listener = report_system_calls();
            reports[role as usize].store(listener, Ordering::Release);
            assert!(listener >= 0, "seccomp user notification is not available on this kernel");
        };
        ring(begin, |network| {
            let mut client = Client::new(network);
            (0..2 * REQUESTS).for_each(|_| client.request_and_wait(1));
        });
        supervisors.into_iter().map(|it| it.join().unwrap()).enumerate().collect()
    });
    for (role, threads) in calls {
        let sends =
            |calls: &&Vec<i64>| calls.iter().filter(|&&call| call == libc::SYS_sendto).count();
        let calls = threads.values().max_by_key(sends).unwrap();
        let of_requests = if role == 0 { 2 * REQUESTS } else { REQUESTS };
        let begin = (0..calls.len())
            .rev()
            .filter(|idx| calls[*idx] == libc::SYS_sendto)
            .nth(of_requests - 2)
            .unwrap();
        let end = calls.iter().rposition(|&call| call == libc::SYS_sendto).unwrap();
        let looped = &calls[begin..end];
        let mut expected = vec![libc::SYS_sendto, libc::SYS_recvfrom, libc::SYS_epoll_pwait2];
        #[cfg(target_arch = "x86_64")]
        expected.push(libc::SYS_epoll_wait);
        expected.push(libc::SYS_epoll_pwait);
        let foreign: Vec<_> = looped.iter().filter(|call| !expected.contains(call)).collect();
        let role = Role::ALL[role];
        assert!(foreign.is_empty(), "{role}: system calls {foreign:?}");
        // A gateway has each request twice: the request and its reply; and it checks for time-outs
        // now and then.
        let most = 3 * of_requests + of_requests / 10;
        assert!(looped.len() <= most, "{role}: {} calls for {REQUESTS} requests", looped.len());
    }
}
