//! Trials of our own TCP over AF_XDP, with itself and with the kernel's TCP as the peer.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::time::Duration;

use nm_lab::environment::Environment;
use nm_lab::trial;
use nm_model::probe::{RrSpec, StreamSpec};
use nm_model::result::RoundData;
use nm_model::{Case, Doubt, DoubtKind, FailureKind, Metric, ProbeSpec};
use nm_model::{SettingKind, Settings};
use nm_sys::clock::Deadline;
use nm_sys::namespace::Namespace;
use nm_transport::{Options, Transport, TransportError, Visitor, connect, failure};
use rustix::process::{Pid, Signal, kill_process};

use crate::agents::kill;
use crate::harness::Test;
use crate::machine;
use crate::trials::{never, run, short, stacks};
use crate::xdp::{LONG, inside, is_taken, start, with_meanwhile};

pub const TESTS: &[Test] = &[
    ("xdp_tcp::ping_pong_over_netns_with_itself_and_kernel", || everywhere("netns")),
    ("xdp_tcp::ping_pong_over_bridge_with_itself_and_kernel", || everywhere("bridge")),
    ("xdp_tcp::requests_with_itself_and_kernel", requests),
    ("xdp_tcp::streams_with_itself_and_kernel", streams),
    ("xdp_tcp::several_flows_are_skipped_with_a_reason", flows),
    ("xdp_tcp::bytes_and_end_arrive_in_order", all_bytes),
    ("xdp_tcp::missing_listener_is_reported", refused),
    ("xdp_tcp::killed_end_is_noticed_and_cleaned_up", killed),
    ("xdp_tcp::busy_poll_is_recorded", busy_poll),
    ("xdp_tcp::dropped_frames_raise_a_doubt", dropped_frames),
];

fn shown(settings: &Settings, kind: &SettingKind) -> String {
    settings.get(kind).map(ToString::to_string).unwrap_or_default()
}

fn everywhere(kind: &str) {
    let before = machine::now();
    let Some(mut environment) = start(kind) else { return };
    for (text, bypass, protocol) in [
        ("xdp-tcp-spin", "xdp", "xdp-tcp"),
        ("xdp-tcp-blocking", "xdp", "xdp-tcp"),
        ("xdp-tcp-spin:tcp-spin", "xdp:none", "xdp-tcp:tcp"),
        ("tcp-blocking:xdp-tcp-blocking", "none:xdp", "tcp:xdp-tcp"),
        ("xdp-spin:udp-spin", "xdp:none", "xdp:udp"),
        ("udp-blocking:xdp-spin", "none:xdp", "udp:xdp"),
    ] {
        let sizes: &[u32] =
            if protocol.contains("tcp") { &[1, 64, 1448, 16_384] } else { &[1, 1472] };
        let measured = run(&mut environment.pair, text, &short(sizes));
        assert_eq!(measured.len(), sizes.len());
        for one in &measured {
            let RoundData::Latency(data) = &one.round.data else { panic!("{one:?}") };
            assert!(data.count.unwrap() >= 50 && data.lost == 0, "{text}: {data:?}");
            assert!(one.round.value(Metric::Median).unwrap() > 0.0);
            assert_eq!(one.comparability.bypass.as_deref(), Some(bypass));
            assert_eq!(one.comparability.protocol.as_deref(), Some(protocol));
            assert_eq!(
                shown(&one.settings, &SettingKind::XdpPath),
                "generic, copied",
                "the faster one on veth"
            );
            let doubts = &one.round.doubts;
            assert!(doubts.iter().all(|it| it.kind != DoubtKind::FramesDropped), "{doubts:?}");
        }
    }
    if environment.use_ipv6(true).is_ok() {
        for text in ["xdp-tcp-spin", "tcp-spin:xdp-tcp-spin", "xdp-tcp-blocking:tcp-blocking"] {
            assert_eq!(run(&mut environment.pair, text, &short(&[1, 4096])).len(), 2, "{text}");
        }
    }
    let during = machine::now();
    drop(environment);
    machine::assert_removed(&before, &during);
}

fn requests() {
    let Some(mut environment) = start("netns") else { return };
    let probe = |rate_per_s| {
        ProbeSpec::Rr(RrSpec { rate_per_s, seconds: 0.3, warmup_ms: 20, ..RrSpec::default() })
    };
    for text in ["xdp-tcp-spin", "xdp-tcp-blocking", "tcp-spin:xdp-tcp-spin"] {
        for one in run(&mut environment.pair, text, &probe(Some(500.0))) {
            let RoundData::Latency(data) = &one.round.data else { panic!("{one:?}") };
            assert!(data.count.unwrap() > 0 && data.lost == 0, "{text}: {data:?}");
        }
        assert!(!run(&mut environment.pair, text, &probe(None)).is_empty());
    }
}

fn stream(pattern: &str, write_bytes: u32) -> ProbeSpec {
    ProbeSpec::Stream(StreamSpec {
        patterns: vec![pattern.parse().unwrap()],
        write_bytes,
        seconds: 0.3,
        omit_ms: 50,
        ..StreamSpec::default()
    })
}

fn streams() {
    let Some(mut environment) = start("netns") else { return };
    // The kernel relies on segmentation offload of the device, so its segments arrive large.
    for text in
        ["xdp-tcp-spin", "xdp-tcp-blocking", "tcp-spin:xdp-tcp-spin", "xdp-tcp-spin:tcp-blocking"]
    {
        for write_bytes in [100, 128 * 1024] {
            for one in run(&mut environment.pair, text, &stream("1-uni-1", write_bytes)) {
                let RoundData::Throughput(data) = &one.round.data else { panic!("{one:?}") };
                assert!(data.flows[0].bytes > 0, "{text} {write_bytes}: {data:?}");
                if text == "xdp-tcp-spin" {
                    let doubts = &one.round.doubts;
                    assert!(
                        doubts.iter().all(|it| it.kind != DoubtKind::FramesDropped),
                        "{doubts:?}"
                    );
                }
                assert!(shown(&one.settings, &SettingKind::TcpImplementation).contains("smoltcp"));
            }
        }
    }
}

fn flows() {
    let Some(mut environment) = start("netns") else { return };
    let outcome = trial::run(
        &mut environment.pair,
        &stacks("tcp-spin:xdp-tcp-spin"),
        &stream("2-bi-2", 1000),
        0,
        &trial::Options::new(1),
        &mut |_| {},
        &never(),
    )
    .unwrap();
    let [(Case::Flows { .. }, reason)] = &outcome.skipped[..] else { panic!("{outcome:?}") };
    assert!(reason.contains("one flow"), "{reason}");
}

/// Sends this many numbered bytes and returns all bytes received until the end of the stream.
struct Exchange(usize);

impl Visitor for Exchange {
    type Output = Vec<u8>;

    fn visit<T: Transport>(self, mut transport: T) -> Vec<u8> {
        let sent: Vec<u8> = (0..self.0).map(|number| (number / 7) as u8).collect();
        let limit = Deadline::after(LONG);
        let (mut at, mut all, mut buffer) = (0, vec![], vec![0; 70_000]);
        let mut ended = false;
        loop {
            assert!(!limit.passed(), "after {at} bytes out and {} in", all.len());
            if at < sent.len() {
                at += transport.try_send(&sent[at..]).unwrap().unwrap_or(0);
            } else if !ended {
                transport.end_sending(&[]);
                ended = true;
            }
            match transport.try_receive(&mut buffer) {
                Ok(Some(length)) => all.extend_from_slice(&buffer[..length]),
                Ok(None) if ended => {
                    transport.wait(Duration::from_millis(5)).unwrap();
                }
                Ok(None) => {}
                Err(TransportError::Closed) => return all,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// A kernel socket echoes a few megabytes, and each end sees the end of the other's stream.
fn all_bytes() {
    use std::io::{Read, Write};
    let Some(environment) = start("netns") else { return };
    let client = Namespace::network_of(environment.pair.client.pid()).unwrap();
    let server = Namespace::network_of(environment.pair.server.pid()).unwrap();
    let (client_ip, server_ip) = (environment.pair.client_address, environment.pair.server_address);
    for (text, bytes) in [("xdp-tcp-spin", 3_000_001), ("xdp-tcp-blocking", 700_001)] {
        let listener = inside(&server, || TcpListener::bind((server_ip, 0)).unwrap());
        let address = listener.local_addr().unwrap().to_string();
        std::thread::scope(|scope| {
            let echoing = scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                stream.set_read_timeout(Some(LONG)).unwrap();
                let (mut buffer, mut total) = (vec![0; 100_000], 0);
                loop {
                    match stream.read(&mut buffer).unwrap() {
                        0 => return total,
                        length => {
                            stream.write_all(&buffer[..length]).unwrap();
                            total += length;
                        }
                    }
                }
            });
            let back = inside(&client, || {
                let (stack, local) = (text.parse().unwrap(), client_ip.to_string());
                let connection =
                    connect(stack, &address, &local, &Options::default(), LONG).unwrap();
                connection.with(Exchange(bytes)).unwrap()
            });
            assert_eq!(back.len(), bytes, "{text}");
            assert!(back.iter().enumerate().all(|(at, byte)| *byte == (at / 7) as u8), "{text}");
            assert_eq!(echoing.join().unwrap(), bytes);
        });
    }
}

fn refused() {
    let Some(environment) = start("netns") else { return };
    let client = Namespace::network_of(environment.pair.client.pid()).unwrap();
    let (client_ip, server_ip) = (environment.pair.client_address, environment.pair.server_address);
    let failure = |address: SocketAddr, limit| {
        inside(&client, || {
            let stack = "xdp-tcp-spin".parse().unwrap();
            let (address, local) = (address.to_string(), client_ip.to_string());
            let connected = connect(stack, &address, &local, &Options::default(), limit);
            failure::from_connection(connected.unwrap_err())
        })
    };
    let closed = failure(SocketAddr::new(server_ip, 9), LONG);
    assert_eq!(closed.kind, FailureKind::Peer);
    assert!(closed.message.contains("nobody listens there"), "{closed}");
    // An unused address of the same network.
    let IpAddr::V4(ip) = server_ip else { panic!("{server_ip}") };
    let [a, b, c, _] = ip.octets();
    let unused = SocketAddr::new(Ipv4Addr::new(a, b, c, 2).into(), 9);
    if ![client_ip, server_ip].contains(&unused.ip()) {
        let absent = failure(unused, Duration::from_millis(100));
        assert_eq!(absent.kind, FailureKind::Peer, "{absent}");
        assert!(absent.hint.is_some(), "{absent}");
    }
    assert!(!is_taken(&client, client_ip), "a failed connection releases the link");
}

fn killed() {
    for (text, client_dies) in [
        ("xdp-tcp-spin", true),
        ("xdp-tcp-spin", false),
        ("tcp-spin:xdp-tcp-spin", true),
        ("xdp-tcp-blocking:tcp-spin", false),
    ] {
        let Some(mut environment) = start("netns") else { return };
        let pair = &environment.pair;
        let (pid, ip) = match client_dies {
            true => (pair.client.pid(), pair.client_address),
            false => (pair.server.pid(), pair.server_address),
        };
        // The open descriptor keeps the namespace and its link when the agent ends.
        let space = Namespace::network_of(pid).unwrap();
        let ended = with_meanwhile(&mut environment, text, 20_000, || kill(pid));
        let failure = ended.err().unwrap().failure;
        assert_eq!(failure.kind, FailureKind::Peer, "{text}: {failure}");
        let limit = Deadline::after(LONG);
        while is_taken(&space, ip) {
            assert!(!limit.passed(), "{text}: the program is still attached");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn busy_poll() {
    let Some(mut environment) = start("netns") else { return };
    for text in ["xdp-busy-poll", "xdp-tcp-busy-poll"] {
        for one in run(&mut environment.pair, text, &short(&[64])) {
            assert!(
                shown(&one.settings, &SettingKind::BusyPoll).contains("preferred"),
                "{:?}",
                one.settings
            );
            assert_eq!(
                shown(&one.settings, &SettingKind::XdpPath),
                "native, copied",
                "the one that is polled"
            );
        }
    }
}

/// Sends more datagrams than the ring has entries while the receiving process is stopped.
fn dropped_frames() {
    let Some(mut environment) = start("netns") else { return };
    // On a busy machine a measurement may end before its server stands still.
    let doubt = (0..5).find_map(|_| doubt_of_a_flood(&mut environment));
    let detail = doubt.expect("a doubt about dropped frames").detail;
    assert!(detail.contains(&environment.pair.server_address.to_string()), "{detail}");
}

/// The doubt of a measurement whose server gets more than its memory takes while it stands still.
fn doubt_of_a_flood(environment: &mut Environment) -> Option<Doubt> {
    let pid = environment.pair.server.pid();
    let client = Namespace::network_of(environment.pair.client.pid()).unwrap();
    let server = Namespace::network_of(pid).unwrap();
    let (client_ip, server_ip) = (environment.pair.client_address, environment.pair.server_address);
    let outcome = with_meanwhile(environment, "xdp-spin", 1_500, || {
        let table =
            inside(&server, || std::fs::read_to_string("/proc/thread-self/net/udp").unwrap());
        // None: the measurement has ended.
        let own = table.lines().nth(1).and_then(|line| line.split_whitespace().nth(1));
        let Some((_, port)) = own.and_then(|own| own.split_once(':')) else { return };
        let port = u16::from_str_radix(port, 16).unwrap();
        signal(pid, Signal::STOP);
        inside(&client, || {
            let flood = UdpSocket::bind((client_ip, 0)).unwrap();
            for _ in 0..1000 {
                flood.send_to(&[7; 100], (server_ip, port)).unwrap();
            }
        });
        signal(pid, Signal::CONT);
    });
    let outcome = outcome.unwrap_or_else(|interrupted| panic!("{}", interrupted.failure));
    let doubts = &outcome.measured[0].round.doubts;
    doubts.iter().find(|doubt| doubt.kind == DoubtKind::FramesDropped).cloned()
}

fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.cast_signed()).unwrap();
    kill_process(pid, signal).unwrap();
}
