//! Peers that are absent, die or stay silent; loss; cancelling.

use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nm_model::doubt::DoubtKind;
use nm_model::probe::{PingpongWork, RrWork};
use nm_model::result::Statistic;
use nm_model::stack::Mode;
use nm_model::{Failure, FailureKind, Side};
use nm_probe::latency::{self as probe, LatencyPlan};
use nm_probe::pinned_thread::PinnedThread;
use nm_probe::{Control, Endpoint, ProbeError, serve};
use nm_sys::clock::Moment;
use nm_transport::Transport;
use nm_transport::sim::{self, FaultConfig};
use nm_transport::wrap::{Delayed, Lossy};

use crate::PROCESS_STARTS;
use crate::pair::{NOTICE_MAX, alone, connected, latency, pingpong, request_response, task};

/// So many samples that a run ends only by a cancel or a failure.
const ENDLESS: u64 = 100_000_000;

fn unpinned(side: Side) -> PinnedThread {
    PinnedThread { side, name: "thread".to_string(), cpu: None }
}

/// Ping-pong that counts a loss after 20 ms.
fn short_timeout(samples: u64) -> LatencyPlan {
    let nm_model::agent::Work::Pingpong(work) = pingpong(16, samples) else { unreachable!() };
    let work = PingpongWork { timeout_ms: 20, warmup_ms: 0, ..work };
    LatencyPlan::pingpong(&work, Mode::Blocking)
}

/// Runs `plan` over a pair of transports; returns the client's report.
fn over<A: Transport, B: Transport>(
    mut client: A,
    mut server: B,
    plan: &LatencyPlan,
) -> Result<nm_model::agent::TaskReport, ProbeError> {
    let control = Control::new();
    let [request, response] = plan.message_lengths();
    thread::scope(|scope| {
        let serving = scope.spawn(|| serve::serve(&mut server, request, response, &control));
        let report = probe::client(&mut client, plan, &unpinned(Side::Client), false, &control);
        control.cancel();
        serving.join().unwrap()?;
        report
    })
}

#[test]
fn lost_datagrams_are_lost_samples() {
    let (a, b) = sim::pair(FaultConfig::default(), 0);
    let report = over(Lossy::new(a, 0.1, 3), b, &short_timeout(200)).unwrap();
    let round = latency(&report, Statistic::HalfRoundTrip);
    assert_eq!(round.count, Some(200));
    assert!((5..60).contains(&round.lost), "{}", round.lost);
    assert!(report.doubts.iter().any(|doubt| doubt.kind == DoubtKind::Loss));
}

#[test]
fn duplicated_and_reordered_responses_count_once() {
    let faults = FaultConfig { duplicate: 0.3, reorder: 0.3, loss: 0.02, ..FaultConfig::default() };
    let (a, b) = sim::pair(faults, 5);
    let report = over(a, b, &short_timeout(300)).unwrap();
    assert_eq!(latency(&report, Statistic::HalfRoundTrip).count, Some(300));

    let (a, b) = sim::pair(faults, 6);
    let size = "16".parse().unwrap();
    let open = LatencyPlan::request_response(&RrWork {
        size,
        rate_per_s: Some(2_000.0),
        seconds: 0.25,
        warmup_ms: 0,
        deadline_ms: 200,
    });
    let report = over(a, b, &open).unwrap();
    let round = latency(&report, Statistic::RoundTripFromIntended);
    assert_eq!(round.count.unwrap() + round.lost, 500);
    assert!(round.count.unwrap() > 300 && round.lost > 0, "{round:?}");
}

#[test]
fn injected_delay_is_in_every_sample() {
    let delay = Duration::from_micros(300);
    let (a, b) = sim::pair(FaultConfig::default(), 0);
    let report = over(a, Delayed::new(b, delay), &short_timeout(50)).unwrap();
    let round = latency(&report, Statistic::HalfRoundTrip);
    assert!(round.min_ns.unwrap() >= delay.as_nanos() as f64 / 2.0, "{round:?}");
}

#[test]
fn peer_that_never_responds_is_a_failure() {
    let (a, _b) = sim::pair(FaultConfig { loss: 1.0, ..FaultConfig::default() }, 0);
    let mut a = a;
    let failure =
        probe::client(&mut a, &short_timeout(10), &unpinned(Side::Client), false, &Control::new());
    let failure = Failure::from(failure.unwrap_err());
    assert_eq!(failure.kind, FailureKind::Peer);
    assert!(failure.message.contains("no response at all"), "{failure}");
}

/// What a client says of an address whose listener has just been dropped, and the address.
fn failure_without_a_peer(stack: &str) -> (Failure, String) {
    let work = pingpong(64, 10);
    let listener = Endpoint::listen(Side::Server, &task(stack, Side::Server, &work), "127.0.0.1");
    let addresses = listener.unwrap().addresses().to_vec();
    let mut client =
        Endpoint::listen(Side::Client, &task(stack, Side::Client, &work), "127.0.0.1").unwrap();
    let failed = client.connect(&addresses).and_then(|()| client.run(&Control::new()).map(|_| ()));
    (failed.unwrap_err(), addresses[0].clone())
}

#[test]
fn absent_peer_is_reported_with_its_address() {
    let _starts = PROCESS_STARTS.lock().unwrap_or_else(PoisonError::into_inner);
    for stack in ["tcp-spin", "udp-spin", "unix-blocking", "shm-spin"] {
        // A program that another thread is just starting has the listener until it is executed.
        let mut failures = (0..10).map(|_| failure_without_a_peer(stack));
        let is_meant = |failure: &Failure| !failure.message.contains("the peer has gone");
        let (failure, address) = failures.find(|(failure, _)| is_meant(failure)).unwrap();
        assert_eq!(failure.kind, FailureKind::Peer, "{stack}: {failure}");
        assert!(failure.message.contains("nobody listens there"), "{stack}: {failure}");
        assert!(failure.message.contains(&address), "{stack}: {failure}");
    }
}

#[test]
fn port_in_use_is_reported_with_its_address() {
    for stack in ["tcp-spin", "udp-spin"] {
        let task = task(stack, Side::Server, &pingpong(64, 10));
        let first = Endpoint::listen(Side::Server, &task, "127.0.0.1").unwrap();
        let failure = Endpoint::listen(Side::Server, &task, &first.addresses()[0]).unwrap_err();
        assert_eq!(failure.kind, FailureKind::AddressInUse, "{stack}");
        assert!(failure.message.contains(&first.addresses()[0]), "{failure}");
    }
}

#[test]
fn foreign_address_and_wrong_count_are_bad_requests() {
    let work = pingpong(64, 10);
    let listen = |address| {
        Endpoint::listen(Side::Client, &task("tcp-spin", Side::Server, &work), address).map(drop)
    };
    assert!(listen("127.0.0.1").is_ok());
    let server = task("tcp-spin", Side::Server, &work);
    for address in ["192.0.2.1", "localhost"] {
        let failure = Endpoint::listen(Side::Server, &server, address).unwrap_err();
        assert_eq!(failure.kind, FailureKind::BadRequest, "{failure}");
    }
    let mut client =
        Endpoint::listen(Side::Client, &task("tcp-spin", Side::Client, &work), "127.0.0.1")
            .unwrap();
    assert_eq!(client.connect(&[]).unwrap_err().kind, FailureKind::BadRequest);
    assert_eq!(client.run(&Control::new()).unwrap_err().kind, FailureKind::BadRequest);
}

#[test]
fn cancel_ends_both_ends_in_every_mode() {
    let _alone = alone();
    for protocol in ["tcp", "udp", "unix", "mcast"] {
        for mode in Mode::ALL.iter().filter(|mode| **mode != Mode::BusyPoll) {
            let stack = format!("{protocol}-{mode}");
            let (client, server) = connected(&stack, &pingpong(64, ENDLESS), "127.0.0.1").unwrap();
            let (control, server_control) = (Control::new(), Control::new());
            thread::scope(|scope| {
                let serving = scope.spawn(|| server.run(&server_control));
                let pinging = scope.spawn(|| client.run(&control));
                thread::sleep(Duration::from_millis(20));
                let cancelled = Moment::now();
                // The server first: its client must not hang on the silence that follows.
                server_control.cancel();
                // On a busy machine that may be before its peer has connected.
                if let Err(failure) = serving.join().unwrap() {
                    assert_eq!(failure.kind, FailureKind::Cancelled, "{stack}: {failure}");
                }
                control.cancel();
                let failure = pinging.join().unwrap().unwrap_err();
                assert!(cancelled.elapsed() < NOTICE_MAX, "{stack}");
                // It may have noticed that the server had gone before it was cancelled.
                let kinds = [FailureKind::Cancelled, FailureKind::Peer];
                assert!(kinds.contains(&failure.kind), "{stack}: {failure}");
            });
        }
    }
}

#[test]
fn cancel_before_the_peer_connects_ends_the_wait() {
    for stack in ["tcp-spin", "udp-blocking", "mcast-spin", "unix-epoll", "shm-spin"] {
        let task = task(stack, Side::Server, &pingpong(64, 10));
        let server = Endpoint::listen(Side::Server, &task, "127.0.0.1").unwrap();
        let control = Control::new();
        control.cancel();
        assert_eq!(server.run(&control).unwrap_err().kind, FailureKind::Cancelled, "{stack}");
    }
}

/// Ends one side in the middle, as if its process had been killed: its sockets close without a
/// close message. A panic of its thread would do more than a killed process does.
fn kill_one(stack: &str, kill: Side, work: &nm_model::agent::Work) {
    let (client, server) = connected(stack, work, "127.0.0.1").unwrap();
    let (control, server_control) = (Control::new(), Control::new());
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let serving = scope.spawn(|| server.run(&server_control));
        let pinging = scope.spawn(|| {
            let result = client.run(&control);
            ended.store(true, Ordering::Relaxed);
            result
        });
        thread::sleep(Duration::from_millis(100));
        let killed = Moment::now();
        if kill == Side::Server {
            server_control.cancel();
            let _ = serving.join().unwrap();
            let failure = pinging.join().unwrap().unwrap_err();
            assert_eq!(failure.kind, FailureKind::Peer, "{stack}: {failure}");
        } else {
            control.cancel();
            assert!(pinging.join().unwrap().is_err(), "{stack}");
            assert!(serving.join().unwrap().is_ok(), "{stack}");
        }
        assert!(killed.elapsed() < NOTICE_MAX, "{stack}");
    });
}

#[test]
fn lost_peer_is_noticed_by_the_other_end() {
    let _alone = alone();
    for stack in [
        "tcp-blocking",
        "tcp-spin",
        "tcp-epoll",
        "udp-blocking",
        "udp-spin",
        "unix-spin",
        "shm-spin",
        "shm-blocking",
    ] {
        for kill in [Side::Client, Side::Server] {
            kill_one(stack, kill, &pingpong(64, ENDLESS));
            kill_one(stack, kill, &request_response("64", Some(500.0), 60.0));
        }
    }
}
