//! The measuring loops allocate nothing and make no system call but the transport's own.

use std::thread;
use std::time::Duration;

use nm_model::result::Statistic;
use nm_model::stack::{Mode, Protocol, Stack};
use nm_probe::closed::{ClosedLoopClient, ClosedLoopPlan, ClosedLoopSamples, Pause};
use nm_probe::open::{self, OpenLoopPlan};
use nm_probe::{Control, serve};
use nm_sys::clock::{Clock, Moment};
use nm_test_support::{Calls, allocations, system_calls};
use nm_transport::wrap::{Event, Traced};
use nm_transport::{Connection, Listener, Options, Transport, Visitor, connect};

use crate::pair::{alone, connected, latency, pingpong, request_response};

const MODES: [Mode; 8] = [
    Mode::Blocking,
    Mode::Spin,
    Mode::Select,
    Mode::SelectSpin,
    Mode::Poll,
    Mode::PollSpin,
    Mode::Epoll,
    Mode::EpollSpin,
];

const SIZE: usize = 64;

struct Server<'a>(&'a Control);

impl Visitor for Server<'_> {
    type Output = u64;

    fn visit<T: Transport>(self, mut transport: T) -> u64 {
        let before = allocations();
        serve::serve(&mut transport, SIZE, SIZE, self.0).unwrap();
        allocations() - before
    }
}

struct ClosedClient<'a>(&'a Control);

impl Visitor for ClosedClient<'_> {
    type Output = u64;

    fn visit<T: Transport>(self, mut transport: T) -> u64 {
        let plan = ClosedLoopPlan {
            request_bytes: SIZE,
            response_bytes: SIZE,
            warmup_ms: 1,
            samples_min: 3_000,
            samples_max: 3_000,
            time_ms: 10_000,
            timeout_ms: 1_000,
            pause: Pause::None,
            statistic: Statistic::HalfRoundTrip,
        };
        let mut samples = ClosedLoopSamples::new(&plan).unwrap();
        let clock = Clock::system();
        let mut client = ClosedLoopClient::new(&mut transport, clock, plan, self.0);
        client.warm_up().unwrap();
        let before = allocations();
        client.measure(&mut samples).unwrap();
        let counted = allocations() - before;
        assert_eq!(samples.round_trips.len(), 3_000);
        counted
    }
}

struct OpenClient<'a>(&'a Control);

impl Visitor for OpenClient<'_> {
    type Output = u64;

    fn visit<T: Transport>(self, transport: T) -> u64 {
        let plan = OpenLoopPlan {
            request_bytes: SIZE,
            response_bytes: SIZE,
            rate_per_s: 5_000.0,
            seconds: 0.3,
            warmup_ms: 0,
            deadline_ms: 1_000,
        };
        // From the first call of the transport to the last one.
        let (mut first, mut last) = (None, 0);
        let mut transport = Traced::new(transport, |event: Event| {
            first.get_or_insert(allocations());
            if event == Event::Received {
                last = allocations();
            }
        });
        let samples = open::run(&mut transport, Clock::system(), &plan, self.0).unwrap();
        assert_eq!((samples.latencies().count(), samples.lost()), (1_500, 0));
        drop(transport);
        last - first.unwrap()
    }
}

/// Two ends in this process, over sockets or over shared memory.
fn ends(protocol: Protocol, mode: Mode) -> (Connection, Connection) {
    if protocol == Protocol::Unix {
        return Connection::unix_pair(mode).unwrap();
    }
    let (stack, options) = (Stack::new(protocol, mode), Options::default());
    let listener = Listener::bind(stack, "127.0.0.1", &options).unwrap();
    let limit = Duration::from_secs(5);
    let client = connect(stack, &listener.address(), "127.0.0.1", &options, limit).unwrap();
    (client, listener.accept(&[], limit, &|| false).unwrap())
}

/// Allocations of a client and of its server.
fn counted<V: Visitor<Output = u64>>(
    (a, b): (Connection, Connection),
    control: &Control,
    client: V,
) -> (u64, u64) {
    thread::scope(|scope| {
        let serving = scope.spawn(|| b.with(Server(control)).unwrap());
        let counted = a.with(client).unwrap();
        (counted, serving.join().unwrap())
    })
}

#[test]
fn allocations_and_releases_are_counted() {
    let before = allocations();
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(allocations() - before, 2);
}

#[test]
fn measuring_loops_allocate_nothing() {
    let _alone = alone();
    let memory = [(Protocol::Shm, Mode::Blocking), (Protocol::Shm, Mode::Spin)];
    for (protocol, mode) in MODES.map(|mode| (Protocol::Unix, mode)).into_iter().chain(memory) {
        let (ends, control) = (|| ends(protocol, mode), Control::new());
        let (client, server) = counted(ends(), &control, ClosedClient(&control));
        // The server allocates and releases one buffer, however many requests there are.
        assert_eq!((client, server), (0, 2), "{protocol}-{mode}, closed loop");
        let (client, server) = counted(ends(), &control, OpenClient(&control));
        assert_eq!((client, server), (0, 2), "{protocol}-{mode}, open loop");
    }
}

/// The calls of the thread that sends most: the measuring one.
fn of_the_measuring_thread(calls: Calls) -> Vec<i64> {
    let sends = |calls: &Vec<i64>| calls.iter().filter(|&&call| call == libc::SYS_sendto).count();
    calls.into_values().max_by_key(sends).expect("no system call was reported")
}

fn transport_calls(mode: Mode) -> Vec<i64> {
    let mut calls = vec![libc::SYS_sendto, libc::SYS_recvfrom];
    match mode {
        Mode::Poll | Mode::PollSpin => calls.push(libc::SYS_ppoll),
        Mode::Select | Mode::SelectSpin => {
            calls.push(libc::SYS_pselect6);
            #[cfg(target_arch = "x86_64")]
            calls.push(libc::SYS_select);
        }
        Mode::Epoll | Mode::EpollSpin => {
            calls.push(libc::SYS_epoll_pwait);
            #[cfg(target_arch = "x86_64")]
            calls.push(libc::SYS_epoll_wait);
        }
        Mode::Blocking | Mode::Spin | Mode::BusyPoll => {}
    }
    calls
}

const SAMPLES: u64 = 300;

#[test]
fn closed_loop_calls_only_its_transport() {
    let _alone = alone();
    for protocol in ["tcp", "udp"] {
        for mode in MODES {
            let stack = format!("{protocol}-{mode}");
            let work = pingpong(64, SAMPLES);
            let (client, server) = connected(&stack, &work, "127.0.0.1").unwrap();
            let (control, begun) = (Control::new(), Moment::now());
            let (report, calls) = thread::scope(|scope| {
                scope.spawn(|| server.run(&Control::new()).unwrap());
                system_calls(|| client.run(&control).unwrap())
            });
            assert_eq!(latency(&report, Statistic::HalfRoundTrip).count, Some(SAMPLES));
            let calls = of_the_measuring_thread(calls);
            // The loop ends with the last receive and begins with the send of the first sample.
            let end = calls.iter().rposition(|&call| call == libc::SYS_recvfrom).unwrap() + 1;
            let begin = (0..end)
                .rev()
                .filter(|&idx| calls[idx] == libc::SYS_sendto)
                .nth(SAMPLES as usize - 1)
                .unwrap();
            let looped = &calls[begin..end];
            let expected = transport_calls(mode);
            let foreign: Vec<_> = looped.iter().filter(|call| !expected.contains(call)).collect();
            assert!(foreign.is_empty(), "{stack}: system calls {foreign:?}");
            if mode == Mode::Blocking {
                // One send and one receive per message; a receive is repeated only after a timeout.
                let receives = looped.iter().filter(|&&call| call == libc::SYS_recvfrom).count();
                let repeated_max =
                    begun.elapsed().as_millis() / nm_transport::CALL_TIMEOUT.as_millis();
                let repeated = receives as u128 - u128::from(SAMPLES);
                assert!(
                    repeated <= repeated_max,
                    "{stack}: {repeated} receives more than messages"
                );
            }
        }
    }
}

#[test]
fn shared_memory_makes_no_system_call_per_message() {
    let _alone = alone();
    const MANY: u64 = 50_000;
    let (client, server) = connected("shm-spin", &pingpong(64, MANY), "127.0.0.1").unwrap();
    let control = Control::new();
    let (report, calls) = thread::scope(|scope| {
        scope.spawn(|| server.run(&Control::new()).unwrap());
        system_calls(|| client.run(&control).unwrap())
    });
    let count = latency(&report, Statistic::HalfRoundTrip).count.unwrap();
    assert!(count > 1_000, "{count}");
    // Making the memory and the threads, and a check of the other process every 10 ms.
    let all: usize = calls.values().map(Vec::len).sum();
    assert!((all as u64) < count / 4, "{all} system calls for {count} messages: {calls:?}");
}

#[test]
fn open_loop_calls_only_its_transport() {
    let _alone = alone();
    for mode in MODES {
        let stack = format!("tcp-{mode}");
        let work = request_response("64", Some(500.0), 0.2);
        let (client, server) = connected(&stack, &work, "127.0.0.1").unwrap();
        let control = Control::new();
        let (report, calls) = thread::scope(|scope| {
            scope.spawn(|| server.run(&Control::new()).unwrap());
            system_calls(|| client.run(&control).unwrap())
        });
        assert_eq!(latency(&report, Statistic::RoundTrip).count, Some(100), "{stack}");
        let calls = of_the_measuring_thread(calls);
        let begin = calls.iter().position(|&call| call == libc::SYS_sendto).unwrap();
        let end = calls.iter().rposition(|&call| call == libc::SYS_recvfrom).unwrap();
        let mut expected = transport_calls(mode);
        if mode == Mode::Blocking {
            expected.push(libc::SYS_ppoll); // a blocking receive cannot wait for the next send, too
        }
        let foreign: Vec<_> =
            calls[begin..end].iter().filter(|call| !expected.contains(call)).collect();
        assert!(foreign.is_empty(), "{stack}: system calls {foreign:?}");
    }
}
