//! Trials from end to end, over every environment and between two hosts' agents.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nm_lab::agent::{Handle, IDLE_MAX, listen};
use nm_lab::pair::Pair;
use nm_lab::trial::{self, Measured, Options};
use nm_model::SettingKind;
use nm_model::probe::{PingpongSpec, RrSpec, StreamSpec};
use nm_model::result::{RoundData, Statistic};
use nm_model::{Case, DoubtKind, FailureKind, Metric, ProbeSpec, StackPair};

use crate::agents::kill;
use crate::environments::start;
use crate::harness::Test;
use crate::machine;

pub const TESTS: &[Test] = &[
    ("trials::ping_pong_over_loopback", || everywhere("loopback")),
    ("trials::ping_pong_over_netns", || everywhere("netns")),
    ("trials::ping_pong_over_bridge", || everywhere("bridge")),
    ("trials::unix_sockets_on_loopback", unix),
    ("trials::shared_memory_in_every_environment_of_one_host", memory),
    ("trials::stacks_of_both_ends_may_differ", differing),
    ("trials::throughput_counts_both_directions", stream),
    ("trials::requests_have_latency_and_service_time", requests),
    ("trials::raw_samples_are_returned_on_request", raw_samples),
    ("trials::impossible_size_is_skipped_with_a_reason", skipped),
    ("trials::one_cpu_for_both_is_a_doubt", shared_cpu),
    ("trials::missing_cpu_is_reported", wrong_cpu),
    ("trials::cancellation_ends_both_agents_and_next_trial_runs", cancelled),
    ("trials::agent_killed_while_measuring_is_reported", killed),
    ("trials::stopped_server_is_reported_by_the_client", stopped_server),
    ("trials::remote_server_and_local_client", remote),
];

pub fn short(sizes: &[u32]) -> ProbeSpec {
    ProbeSpec::Pingpong(PingpongSpec {
        sizes: sizes.to_vec(),
        max_iterations: 2_000,
        min_iterations: 50,
        max_ms: 200,
        warmup_ms: 10,
        // On a busy machine an end may stand still for seconds.
        timeout_ms: 10_000,
        ..PingpongSpec::default()
    })
}

pub fn stacks(text: &str) -> StackPair {
    text.parse().unwrap()
}

pub fn never() -> AtomicBool {
    AtomicBool::new(false)
}

pub fn run(pair: &mut Pair, text: &str, probe: &ProbeSpec) -> Vec<Measured> {
    let outcome =
        trial::run(pair, &stacks(text), probe, 3, &Options::new(1), &mut |_| {}, &never());
    let outcome = outcome.unwrap_or_else(|interrupted| panic!("{text}: {}", interrupted.failure));
    assert_eq!(outcome.skipped, []);
    outcome.measured
}

fn check_pingpong(measured: &Measured) {
    let RoundData::Latency(data) = &measured.round.data else { panic!("{measured:?}") };
    assert!(data.count.unwrap() >= 50, "{data:?}");
    assert!(measured.round.value(Metric::Median).unwrap() > 0.0);
    assert!(data.histogram.is_some());
    assert_eq!(measured.round.round, 3);
    assert_eq!(measured.key.statistic, Statistic::HalfRoundTrip);
    assert_eq!(measured.round.placements.len(), 2, "one hot thread at each end");
    assert_eq!(measured.comparability.statistic.as_deref(), Some("half-round-trip"));
    assert_eq!(measured.comparability.bypass.as_deref(), Some("none"));
    assert_eq!(measured.comparability.link.as_deref(), Some("virtual"));
    assert_eq!(measured.comparability.firmware.as_deref(), Some("none"));
    assert_eq!(measured.comparability.write_bytes, None);
}

fn everywhere(kind: &str) {
    let before = machine::now();
    let Some(mut environment) = start(kind) else { return };
    for text in ["tcp-spin", "udp-spin", "tcp-blocking", "udp-epoll", "mcast-blocking"] {
        let measured = run(&mut environment.pair, text, &short(&[1, 1024]));
        assert_eq!(measured.len(), 2);
        for one in &measured {
            check_pingpong(one);
            assert_eq!(one.key.environment, kind);
            assert_eq!(one.key.stack, text);
            let layer = if kind == "netns" { "veth" } else { kind };
            assert_eq!(one.comparability.layer.as_deref(), Some(layer));
        }
        assert_eq!(measured[1].key.case, Case::Message { size_bytes: 1024 });
    }
    if environment.use_ipv6(true).is_ok() {
        // The loopback link has no route for IPv6 groups.
        let stacks = match kind {
            "loopback" => vec!["tcp-spin", "udp-blocking"],
            _ => vec!["tcp-spin", "udp-blocking", "mcast-blocking"],
        };
        for text in stacks {
            check_pingpong(&run(&mut environment.pair, text, &short(&[64]))[0]);
        }
    }
    let during = machine::now();
    drop(environment);
    machine::assert_removed(&before, &during);
}

fn unix() {
    let mut environment = start("loopback").unwrap();
    check_pingpong(&run(&mut environment.pair, "unix-blocking", &short(&[64]))[0]);
}

/// Agents of one host share its memory in all environments.
fn memory() {
    for kind in ["loopback", "netns", "bridge"] {
        let before = machine::now();
        let Some(mut environment) = start(kind) else { continue };
        let (mut apart, mut limits) = (0, 0);
        for text in ["shm-spin", "shm-blocking", "shm-spin:shm-blocking"] {
            for one in run(&mut environment.pair, text, &short(&[1, 1024])) {
                let RoundData::Latency(data) = &one.round.data else { panic!("{one:?}") };
                assert!(data.count.unwrap() >= 50 && data.lost == 0, "{kind} {text}: {data:?}");
                assert_eq!(one.comparability.bypass.as_deref(), Some("shm"));
                let cpus: Vec<_> = one.round.placements.iter().map(|p| p.pinned_cpu).collect();
                let limit = one.settings.get(&SettingKind::CacheLineLimit);
                assert!(limit.is_none() || cpus[0] != cpus[1], "{kind} {text}: {cpus:?}");
                apart += u32::from(cpus[0] != cpus[1]);
                limits += u32::from(limit.is_some());
            }
        }
        // On busy CPUs the measurement of the limit may time out for one row, but hardly for all
        // rows.
        assert!(apart == 0 || limits > 0, "{kind}: a limit for none of {apart} rows");
        let during = machine::now();
        drop(environment);
        machine::assert_removed(&before, &during);
    }
}

fn differing() {
    let mut environment = start("loopback").unwrap();
    let measured = run(&mut environment.pair, "tcp-spin:tcp-blocking", &short(&[64]));
    assert_eq!(measured[0].comparability.mode.as_deref(), Some("spin:blocking"));
    assert_eq!(measured[0].key.stack, "tcp-spin:tcp-blocking");
}

fn stream() {
    let Some(mut environment) = start("netns") else { return };
    let probe = ProbeSpec::Stream(StreamSpec {
        patterns: vec!["1-uni-1".parse().unwrap(), "2-bi-2".parse().unwrap()],
        seconds: 0.3,
        omit_ms: 50,
        write_bytes: 65536,
        ..StreamSpec::default()
    });
    let measured = run(&mut environment.pair, "tcp-blocking", &probe);
    assert_eq!(measured.len(), 2);
    for (one, flows) in measured.iter().zip([1, 2]) {
        let RoundData::Throughput(data) = &one.round.data else { panic!("{one:?}") };
        assert_eq!(data.flows.len(), flows);
        assert!(data.flows.iter().all(|flow| flow.bytes > 0 && flow.retransmits.is_some()));
        assert!(data.total_gbps > 0.0);
        assert!(data.client_cpu.is_some() && data.server_cpu.is_some());
        assert_eq!(one.key.statistic, Statistic::Throughput);
        assert_eq!(one.comparability.write_bytes.as_deref(), Some("65536"));
        assert!(one.comparability.congestion.is_some(), "{:?}", one.settings);
        assert!(one.settings.contains(&SettingKind::Mtu), "{:?}", one.settings);
    }
}

fn requests() {
    let mut environment = start("loopback").unwrap();
    let probe = ProbeSpec::Rr(RrSpec {
        rate_per_s: Some(500.0),
        seconds: 0.3,
        warmup_ms: 20,
        ..RrSpec::default()
    });
    let measured = run(&mut environment.pair, "tcp-blocking", &probe);
    let statistics: Vec<Statistic> = measured.iter().map(|one| one.key.statistic).collect();
    assert!(statistics.contains(&Statistic::RoundTrip), "{statistics:?}");
    assert!(statistics.contains(&Statistic::RoundTripFromIntended), "{statistics:?}");
}

fn raw_samples() {
    let mut environment = start("loopback").unwrap();
    let options = Options { raw_samples: true, ..Options::new(1) };
    let outcome = trial::run(
        &mut environment.pair,
        &stacks("tcp-spin"),
        &short(&[64]),
        0,
        &options,
        &mut |_| {},
        &never(),
    )
    .unwrap();
    let one = &outcome.measured[0];
    let RoundData::Latency(data) = &one.round.data else { panic!("{one:?}") };
    let samples = one.samples.as_ref().unwrap();
    assert_eq!(Some(samples.len() as u64), data.count);
    let largest = f64::from(*samples.iter().max().unwrap());
    assert!((largest - data.max_ns.unwrap()).abs() <= 1.0);
}

fn skipped() {
    let mut environment = start("loopback").unwrap();
    let probe = short(&[64, 65536]);
    let pair = &mut environment.pair;
    let stacks = stacks("udp-blocking");
    let outcome =
        trial::run(pair, &stacks, &probe, 0, &Options::new(1), &mut |_| {}, &never()).unwrap();
    assert_eq!(outcome.measured.len(), 1);
    let (case, reason) = &outcome.skipped[0];
    assert_eq!(*case, Case::Message { size_bytes: 65536 });
    assert_eq!(reason, "messages over udp have at most 32768 bytes");
}

fn shared_cpu() {
    let mut environment = start("loopback").unwrap();
    let cpu = environment.pair.client_facts.cpu.allowed[0];
    let options =
        Options { affinity: Some(format!("{cpu};{cpu}").parse().unwrap()), ..Options::new(1) };
    let outcome = trial::run(
        &mut environment.pair,
        &stacks("tcp-blocking"),
        &short(&[64]),
        0,
        &options,
        &mut |_| {},
        &never(),
    )
    .unwrap();
    let round = &outcome.measured[0].round;
    assert!(round.doubts.iter().any(|doubt| doubt.kind == DoubtKind::SharedCpu), "{round:?}");
    assert!(round.placements.iter().all(|placement| placement.pinned_cpu == Some(cpu)));
}

fn wrong_cpu() {
    let mut environment = start("loopback").unwrap();
    let options = Options { affinity: Some("0;60000".parse().unwrap()), ..Options::new(1) };
    let (stacks, probe) = (stacks("tcp-spin"), short(&[64]));
    let pair = &mut environment.pair;
    let interrupted =
        trial::run(pair, &stacks, &probe, 0, &options, &mut |_| {}, &never()).unwrap_err();
    assert_eq!(interrupted.failure.message, "the server may not use CPU 60000");
}

/// A ping-pong that lasts until it is cancelled.
fn long() -> ProbeSpec {
    ProbeSpec::Pingpong(PingpongSpec {
        sizes: vec![64],
        max_ms: 600_000,
        // At least 20 s in blocking mode. Memory for all samples is allocated before.
        max_iterations: 2_000_000,
        ..PingpongSpec::default()
    })
}

fn cancelled() {
    let mut environment = start("loopback").unwrap();
    let cancel = Arc::new(AtomicBool::new(false));
    let mut estimates = 0;
    let interrupted = trial::run(
        &mut environment.pair,
        &stacks("tcp-blocking"),
        &long(),
        0,
        &Options::new(1),
        &mut |progress| {
            assert_eq!((progress.index, progress.cases), (0, 1));
            assert!(progress.value > 0.0);
            estimates += 1;
            cancel.store(true, Ordering::Relaxed);
        },
        &cancel,
    )
    .unwrap_err();
    assert_eq!(interrupted.failure.kind, FailureKind::Cancelled);
    assert!(interrupted.completed.measured.is_empty());
    assert!(estimates >= 1, "cancelled before the first estimate");
    check_pingpong(&run(&mut environment.pair, "tcp-blocking", &short(&[64]))[0]);
}

/// A flow that lasts until it is cancelled.
fn flood() -> ProbeSpec {
    ProbeSpec::Stream(StreamSpec {
        patterns: vec!["1-uni-1".parse().unwrap()],
        seconds: 600.0,
        ..StreamSpec::default()
    })
}

fn killed() {
    for (client, text) in [
        (true, "tcp-blocking"),
        (false, "tcp-blocking"),
        (true, "shm-blocking"),
        (false, "shm-spin"),
    ] {
        let Some(mut environment) = start("netns") else { return };
        let pid =
            if client { environment.pair.client.pid() } else { environment.pair.server.pid() };
        let killer = thread::spawn(move || {
            thread::sleep(Duration::from_millis(400));
            kill(pid);
        });
        let interrupted = trial::run(
            &mut environment.pair,
            &stacks(text),
            &flood(),
            0,
            &Options::new(1),
            &mut |_| {},
            &never(),
        )
        .unwrap_err();
        killer.join().unwrap();
        let end = if client { "client" } else { "server" };
        assert_eq!(
            interrupted.failure.to_string(),
            format!("agent `{end}` of netns ended by signal 9")
        );
    }
}

fn stopped_server() {
    use rustix::process::{Pid, Signal, kill_process};
    let mut environment = start("loopback").unwrap();
    let pid = Pid::from_raw(environment.pair.server.pid().cast_signed()).unwrap();
    let stopper = thread::spawn(move || {
        thread::sleep(Duration::from_millis(300));
        kill_process(pid, Signal::STOP).unwrap();
    });
    // The client notices it by its own time-out of one second.
    let interrupted = trial::run(
        &mut environment.pair,
        &stacks("tcp-blocking"),
        &long(),
        0,
        &Options::new(1),
        &mut |_| {},
        &never(),
    )
    .unwrap_err();
    stopper.join().unwrap();
    assert_eq!(interrupted.failure.kind, FailureKind::Peer, "{}", interrupted.failure);
    kill_process(pid, Signal::CONT).unwrap();
}

fn remote() {
    let (sender, notices) = std::sync::mpsc::channel();
    let sender = std::sync::Mutex::new(sender);
    thread::spawn(move || {
        listen("127.0.0.1:0".parse().unwrap(), true, IDLE_MAX, move |notice| {
            let _ = sender.lock().unwrap().send(notice);
        })
    });
    let nm_lab::agent::Notice::Listening(address) = notices.recv().unwrap() else { panic!() };
    let server = Handle::connect("server", address).unwrap();
    let (own, theirs) = server.connection().unwrap();
    let client = Handle::local("client").unwrap();
    let mut pair = Pair::over_network("pair", (client, server), (own.ip(), theirs.ip())).unwrap();
    for stack in ["tcp-spin", "udp-blocking", "mcast-blocking"] {
        let measured = run(&mut pair, stack, &short(&[64]));
        check_pingpong(&measured[0]);
        assert_eq!(measured[0].comparability.layer.as_deref(), Some("loopback"));
    }
    pair.close();
}
