//! Every protocol with every way of waiting.

use std::sync::PoisonError;

use nm_model::agent::{TaskReport, Work};
use nm_model::doubt::DoubtKind;
use nm_model::environment::Distance;
use nm_model::protocol::Payload;
use nm_model::result::Statistic;
use nm_model::setting::{SettingKind, SettingValue};
use nm_model::stack::{Mode, Protocol};
use nm_model::{FailureKind, Side, Stack};
use nm_probe::Endpoint;
use nm_sys::{cpu, socket};

use crate::PROCESS_STARTS;
use crate::pair::{FinishedPair, latency, pingpong, request_response, run, task};

/// `SO_BUSY_POLL` needs a privilege that the user of the tests may not have.
fn may_busy_poll() -> bool {
    let (a, _b) = socket::unix_pair().unwrap();
    socket::set_busy_poll(std::os::fd::AsFd::as_fd(&a), 50).is_ok()
}

/// Each stack that the table has for loopback, and this user may use.
fn stacks() -> Vec<String> {
    let with_bytes = Protocol::ALL.iter().filter(|one| one.row().payload != Payload::Nothing);
    let of_protocol = |&protocol: &Protocol| {
        let modes = protocol.modes(Distance::Loopback).iter();
        modes.map(move |&mode| Stack::new(protocol, mode))
    };
    let may_busy_poll = may_busy_poll();
    let is_allowed = |stack: &Stack| stack.mode != Mode::BusyPoll || may_busy_poll;
    with_bytes.flat_map(of_protocol).filter(is_allowed).map(|stack| stack.to_string()).collect()
}

fn check_placement(report: &TaskReport, side: Side, stack: &str) {
    let [placement] = &report.placements[..] else { panic!("{stack}: {report:?}") };
    assert_eq!(placement.side, side, "{stack}");
    assert!(cpu::allowed().contains(&placement.pinned_cpu.unwrap()), "{stack}");
    assert_eq!(placement.last_cpu, placement.pinned_cpu, "{stack}");
}

fn check_pingpong(stack: &str, samples: u64, ended: &FinishedPair) {
    let round = latency(&ended.client, Statistic::HalfRoundTrip);
    assert_eq!((round.count, round.lost), (Some(samples), 0), "{stack}");
    assert!(round.min_ns.unwrap() > 0.0 && round.rate_per_s.unwrap() > 0.0, "{stack}");
    let (statistic, raw) = &ended.samples[0];
    assert_eq!((*statistic, raw.len() as u64), (Statistic::HalfRoundTrip, samples), "{stack}");
    check_placement(&ended.client, Side::Client, stack);
    check_placement(&ended.server, Side::Server, stack);
}

#[test]
fn pingpong_works_over_every_stack() {
    for stack in stacks() {
        let ended = run(&stack, &pingpong(64, 200), "127.0.0.1").unwrap();
        check_pingpong(&stack, 200, &ended);
    }
}

#[test]
fn a_paced_pingpong_pauses_before_each_message_and_measures_no_pause() {
    const SAMPLES: u64 = 40;
    for stack in ["tcp-blocking", "tcp-spin"] {
        let Work::Pingpong(mut work) = pingpong(64, SAMPLES) else { unreachable!() };
        work.think_time_us = 5_000;
        let ended = run(stack, &Work::Pingpong(work), "127.0.0.1").unwrap();
        check_pingpong(stack, SAMPLES, &ended);
        let round = latency(&ended.client, Statistic::HalfRoundTrip);
        assert!(round.rate_per_s.unwrap() <= 201.0, "{stack}: {round:?}");
        assert!(round.min_ns.unwrap() < 2_500_000.0, "{stack}: {round:?}");
    }
}

#[test]
fn pingpong_works_over_ipv6() {
    if std::fs::read_to_string("/proc/net/if_inet6").is_ok_and(|text| text.contains(" lo")) {
        for stack in ["tcp-blocking", "tcp-spin", "udp-blocking", "udp-spin"] {
            let ended = run(stack, &pingpong(64, 100), "::1").unwrap();
            check_pingpong(stack, 100, &ended);
        }
    } else {
        // Without IPv6 the address is refused with a message.
        let task = task("tcp-spin", Side::Server, &pingpong(64, 1));
        let failure = Endpoint::listen(Side::Server, &task, "::1").unwrap_err();
        assert!(!failure.message.is_empty());
    }
}

/// Gives the current thread, and those that it starts, a network namespace of its own with a veth
/// pair, because loopback does not carry IPv6 multicast. False without the privilege.
fn enter_network_with_multicast() -> bool {
    // SAFETY: changes the calling thread's own network namespace and nothing else.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return false;
    }
    let _starts = PROCESS_STARTS.lock().unwrap_or_else(PoisonError::into_inner);
    for arguments in [
        "link set lo up",
        "link add left type veth peer name right",
        "address add fd00::1/64 dev left nodad",
        "link set left up",
        "link set right up",
    ] {
        let status = std::process::Command::new("ip").args(arguments.split(' ')).status();
        assert!(status.expect("this test needs iproute2 (`ip`)").success(), "ip {arguments}");
    }
    true
}

#[test]
fn multicast_works_over_ipv6_where_a_link_carries_it() {
    std::thread::spawn(|| {
        if enter_network_with_multicast() {
            for stack in ["mcast-blocking", "mcast-spin", "mcast-epoll"] {
                let ended = run(stack, &pingpong(64, 100), "fd00::1").unwrap();
                check_pingpong(stack, 100, &ended);
            }
        } else if let Err(failure) = run("mcast-spin", &pingpong(64, 100), "::1") {
            // Loopback has no route for it, which the message must name.
            assert!(failure.message.contains("has no route"), "{failure}");
        }
    })
    .join()
    .unwrap();
}

#[test]
fn pingpong_carries_every_size() {
    for size in [1, 2, 7, 8, 1024, 65_536, 1_000_000] {
        for stack in
            ["tcp-blocking", "tcp-spin", "unix-epoll", "tcp-poll-spin", "shm-spin", "shm-blocking"]
        {
            check_pingpong(stack, 30, &run(stack, &pingpong(size, 30), "127.0.0.1").unwrap());
        }
    }
    for size in [0, 1, 3, 8, 24, 25, 32, 1472, 32_768] {
        for stack in ["udp-blocking", "udp-spin", "mcast-select"] {
            check_pingpong(stack, 30, &run(stack, &pingpong(size, 30), "127.0.0.1").unwrap());
        }
    }
}

#[test]
fn ends_may_use_different_modes() {
    let _alone = crate::pair::alone();
    let work = pingpong(64, 100);
    let listen = |stack, side| Endpoint::listen(side, &task(stack, side, &work), "127.0.0.1");
    for (spin, blocking) in [("tcp-spin", "tcp-blocking"), ("shm-spin", "shm-blocking")] {
        let mut client = listen(spin, Side::Client).unwrap();
        let server = listen(blocking, Side::Server).unwrap();
        client.connect(server.addresses()).unwrap();
        let (control, other) = (nm_probe::Control::new(), nm_probe::Control::new());
        std::thread::scope(|scope| {
            scope.spawn(|| server.run(&other).unwrap());
            let report = client.run(&control).unwrap();
            assert_eq!(latency(&report, Statistic::HalfRoundTrip).count, Some(100));
        });
    }
}

#[test]
fn shared_memory_reports_the_cache_line_limit_of_its_cpus() {
    for stack in ["shm-spin", "shm-blocking"] {
        let ended = run(stack, &pingpong(8, 100), "127.0.0.1").unwrap();
        let limit = ended.client.settings.get(&SettingKind::CacheLineLimit);
        if cpu::default_pair().len() == 2 {
            let Some(SettingValue::Nanoseconds(limit)) = limit else {
                panic!("{stack}: {limit:?}")
            };
            assert!(limit.low > 0 && limit.low == limit.high, "{stack}: {limit:?}");
        } else {
            assert_eq!(limit, None, "one CPU has no cache line to transfer");
        }
    }
    let ended = run("tcp-spin", &pingpong(8, 100), "127.0.0.1").unwrap();
    assert_eq!(ended.client.settings.get(&SettingKind::CacheLineLimit), None);
}

#[test]
fn request_response_works_over_every_stack() {
    for stack in stacks() {
        let work = request_response("64,200", Some(2_000.0), 0.1);
        let ended = run(&stack, &work, "127.0.0.1").unwrap();
        let from_due = latency(&ended.client, Statistic::RoundTripFromIntended);
        let service = latency(&ended.client, Statistic::RoundTrip);
        assert_eq!((from_due.count, from_due.lost), (Some(200), 0), "{stack}");
        assert_eq!(service.count, from_due.count, "{stack}");
        assert!(service.min_ns.unwrap() > 0.0, "{stack}");
        assert!(from_due.mean_ns.unwrap() >= service.mean_ns.unwrap(), "{stack}");
        check_placement(&ended.client, Side::Client, &stack);
        check_placement(&ended.server, Side::Server, &stack);
    }
}

#[test]
fn request_response_carries_every_size() {
    for size in ["1", "1,5000", "100000,1", "100000"] {
        for stack in ["tcp-blocking", "tcp-spin", "unix-poll", "shm-spin", "shm-blocking"] {
            let work = request_response(size, Some(500.0), 0.1);
            let ended = run(stack, &work, "127.0.0.1").unwrap();
            let round = latency(&ended.client, Statistic::RoundTrip);
            assert_eq!((round.count, round.lost), (Some(50), 0), "{stack} {size}");
        }
    }
}

#[test]
fn closed_loop_is_a_doubt() {
    for stack in ["tcp-blocking", "udp-spin", "unix-epoll-spin"] {
        let work = request_response("64,100", None, 0.05);
        let ended = run(stack, &work, "127.0.0.1").unwrap();
        let [(statistic, round)] = &ended.client.latencies[..] else { panic!("{stack}") };
        assert_eq!(*statistic, Statistic::RoundTrip);
        assert!(round.count.unwrap() > 0 && round.rate_per_s.unwrap() > 0.0, "{stack}");
        let doubts = &ended.client.doubts;
        assert!(doubts.iter().any(|doubt| doubt.kind == DoubtKind::ClosedLoop), "{stack}");
    }
}

#[test]
fn impossible_tasks_are_refused() {
    let refused = |stack: &str, work: &Work| {
        let task = task(stack, Side::Server, work);
        Endpoint::listen(Side::Server, &task, "127.0.0.1").unwrap_err()
    };
    for (stack, work) in [
        ("udp-spin", pingpong(32_769, 1)),
        ("xdp-spin", pingpong(1_473, 1)),
        ("tcp-spin", pingpong(0, 1)),
        ("tcp-spin", pingpong(17_000_000, 1)),
        ("tcp-spin", request_response("64", Some(f64::NAN), 1.0)),
        ("tcp-spin", request_response("64", Some(0.0), 1.0)),
        ("tcp-spin", request_response("64", Some(10.0), f64::INFINITY)),
        ("tcp-spin", request_response("64", None, -1.0)),
    ] {
        let failure = refused(stack, &work);
        assert_eq!(failure.kind, FailureKind::BadRequest, "{stack} {work:?}");
        let has_limit = ["must be", "at most"].iter().any(|word| failure.message.contains(word));
        assert!(has_limit, "{failure}");
    }
    // On loopback, and with modes that these protocols do not have.
    for stack in ["shm-epoll", "shm-busy-poll", "xdp-spin", "xdp-epoll"] {
        assert_eq!(refused(stack, &pingpong(64, 1)).kind, FailureKind::NotAvailable);
    }
}
