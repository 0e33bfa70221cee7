//! Flows in both directions.

use std::thread;
use std::time::Duration;

use nm_model::agent::{TaskReport, Work};
use nm_model::doubt::DoubtKind;
use nm_model::probe::StreamSpec;
use nm_model::result::Statistic;
use nm_model::setting::SettingKind;
use nm_model::{FailureKind, Side};
use nm_probe::{Control, Endpoint};
use nm_sys::clock::Moment;

use crate::pair::{NOTICE_MAX, alone, connected, run, task};

fn stream(pattern: &str, seconds: f64) -> Work {
    let spec = StreamSpec { seconds, omit_ms: 50, ..StreamSpec::default() };
    Work::Stream(spec.of_pattern(pattern.parse().unwrap()))
}

fn shown(report: &TaskReport, name: &str) -> String {
    report.settings.get(&name.into()).map(ToString::to_string).unwrap_or_default()
}

#[test]
fn every_flow_is_counted_at_its_receiver() {
    for (stack, pattern, to_server, to_client) in [
        ("tcp-blocking", "1-uni-1", vec![0], vec![]),
        ("tcp-spin", "1-uni-1", vec![0], vec![]),
        ("tcp-epoll", "2-uni-2", vec![0, 1], vec![]),
        ("tcp-blocking", "4-bi-4", vec![0, 2], vec![1, 3]),
        ("unix-blocking", "2-bi-2", vec![0], vec![1]),
    ] {
        let ended = run(stack, &stream(pattern, 0.3), "127.0.0.1").unwrap();
        for (report, indices, sender) in
            [(&ended.server, to_server, Side::Client), (&ended.client, to_client, Side::Server)]
        {
            let found: Vec<u32> = report.received.iter().map(|flow| flow.index).collect();
            assert_eq!(found, indices, "{stack} {pattern}");
            for flow in &report.received {
                assert_eq!(flow.sender, sender);
                assert!(flow.bytes > 0 && flow.seconds >= 0.3, "{stack} {flow:?}");
                let gbps = flow.bytes as f64 * 8.0 / flow.seconds / 1e9;
                assert!((flow.gbps / gbps - 1.0).abs() < 1e-9);
            }
            assert!(report.cpu.unwrap() > 0.0, "{stack}");
            assert_eq!(shown(report, "write size"), "131072 B");
            assert!(report.settings.contains(&SettingKind::SendBuffer), "{stack}");
            if stack.starts_with("tcp") {
                for name in ["congestion control", "MSS", "MTU", "receive buffer"] {
                    assert!(report.settings.contains(&name.into()), "{stack} {name}");
                }
            }
        }
        let flows = ended.client.placements.len();
        assert_eq!(flows, ended.server.placements.len());
        let sent = ended.client.retransmits.len() + ended.server.retransmits.len();
        assert_eq!(sent, if stack.starts_with("tcp") { flows } else { 0 }, "{stack}");
    }
}

#[test]
fn shared_memory_carries_streams_in_both_directions() {
    for stack in ["shm-blocking", "shm-spin"] {
        for (pattern, to_server, to_client) in [("1-uni-1", 1, 0), ("2-bi-2", 1, 1)] {
            let ended = run(stack, &stream(pattern, 0.2), "127.0.0.1").unwrap();
            for (report, flows) in [(&ended.server, to_server), (&ended.client, to_client)] {
                assert_eq!(report.received.len(), flows, "{stack} {pattern}");
                assert!(report.received.iter().all(|flow| flow.bytes > 0), "{stack} {pattern}");
                assert_eq!(shown(report, "ring"), "262144 B");
                assert_eq!(report.retransmits, []);
            }
        }
    }
}

#[test]
fn datagrams_are_counted_and_losses_are_a_doubt() {
    for (stack, write_bytes) in
        [("udp-blocking", 1_400), ("udp-spin", 1_400), ("mcast-poll", 1_400)]
    {
        let spec = StreamSpec { seconds: 0.3, omit_ms: 50, write_bytes, ..StreamSpec::default() };
        let work = Work::Stream(spec.of_pattern("2-bi-2".parse().unwrap()));
        let ended = run(stack, &work, "127.0.0.1").unwrap();
        for report in [&ended.client, &ended.server] {
            let [flow] = &report.received[..] else { panic!("{stack}: {report:?}") };
            assert!(flow.bytes > 0, "{stack}");
            assert_eq!(flow.bytes % u64::from(write_bytes), 0, "{stack}");
            for doubt in report.doubts.iter().filter(|doubt| doubt.kind == DoubtKind::Loss) {
                assert!(doubt.detail.contains("datagrams lost"), "{doubt:?}");
            }
        }
    }
}

#[test]
fn write_larger_than_a_datagram_is_reduced_and_reported() {
    let ended = run("udp-blocking", &stream("1-uni-1", 0.2), "127.0.0.1").unwrap();
    assert_eq!(shown(&ended.server, "write size asked for"), "131072 B");
    let mtu = ended.server.settings.get(&SettingKind::Mtu).unwrap().as_bytes().unwrap();
    assert_eq!(shown(&ended.server, "write size"), format!("{} B", mtu - 28));
    assert!(ended.server.received[0].bytes > 0);
}

#[test]
fn settings_are_applied_and_reported() {
    let spec = StreamSpec {
        seconds: 0.2,
        omit_ms: 20,
        write_bytes: 16_384,
        buffer_bytes: Some(65_536),
        congestion: Some("reno".to_string()),
        ..StreamSpec::default()
    };
    let work = |spec: &StreamSpec| Work::Stream(spec.of_pattern("1-uni-1".parse().unwrap()));
    let ended = run("tcp-blocking", &work(&spec), "127.0.0.1").unwrap();
    for report in [&ended.client, &ended.server] {
        assert_eq!(shown(report, "congestion control"), "reno");
        assert_eq!(shown(report, "write size"), "16384 B");
        // The kernel doubles the requested size.
        assert_eq!(shown(report, "send buffer"), "131072 B");
    }
    let unknown = StreamSpec { congestion: Some("no-such".to_string()), ..spec };
    let task = task("tcp-blocking", Side::Server, &work(&unknown));
    let failure = Endpoint::listen(Side::Server, &task, "127.0.0.1").unwrap_err();
    assert_eq!(failure.kind, FailureKind::NotAvailable);
    assert!(failure.message.contains("`no-such`"), "{failure}");
}

#[test]
fn lost_peer_or_cancel_ends_all_flows() {
    let _alone = alone();
    for (stack, lost) in [
        ("tcp-blocking", Side::Client),
        ("tcp-blocking", Side::Server),
        ("udp-blocking", Side::Server),
        ("unix-epoll", Side::Server),
    ] {
        let work = stream("2-uni-2", 60.0);
        let (client, server) = connected(stack, &work, "127.0.0.1").unwrap();
        let (control, server_control) = (Control::new(), Control::new());
        thread::scope(|scope| {
            let serving = scope.spawn(|| server.run(&server_control));
            let sending = scope.spawn(|| client.run(&control));
            let begin = Moment::now();
            while server_control.progress().is_none() && begin.elapsed() < NOTICE_MAX {
                thread::sleep(Duration::from_millis(5));
            }
            let (statistic, gbps) = server_control.progress().expect("no progress was published");
            assert!(statistic == Statistic::Throughput && gbps > 0.0);
            let ended = Moment::now();
            let (first, second) = if lost == Side::Client {
                control.cancel();
                (sending.join().unwrap(), serving.join().unwrap())
            } else {
                server_control.cancel();
                (serving.join().unwrap(), sending.join().unwrap())
            };
            assert_eq!(first.unwrap_err().kind, FailureKind::Cancelled, "{stack}");
            let failure = second.unwrap_err();
            assert_eq!(failure.kind, FailureKind::Peer, "{stack}: {failure}");
            assert!(failure.message.starts_with("flow "), "{stack}: {failure}");
            assert!(ended.elapsed() < NOTICE_MAX, "{stack}");
        });
    }
}
