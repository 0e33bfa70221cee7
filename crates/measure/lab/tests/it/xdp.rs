//! Trials over AF_XDP: other traffic of the link while it runs, and cleanup after it was killed.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nm_lab::environment::Environment;
use nm_lab::{resolve, trial};
use nm_model::agent::Token;
use nm_model::plan::EnvironmentKind;
use nm_model::probe::{PingpongSpec, RrSpec};
use nm_model::result::RoundData;
use nm_model::{Doubt, DoubtKind, FailureKind, Metric, ProbeKind, ProbeSpec};
use nm_model::{SettingKind, Settings};
use nm_sys::clock::Deadline;
use nm_sys::ethtool::Links;
use nm_sys::namespace::Namespace;
use nm_sys::xdp::{FlowFilter, XdpPath, XdpSocket};
use nm_transport::handshake::{self, HandshakeMessage};
use nm_transport::{Transport, TransportError, Visitor};

use crate::agents::kill;
use crate::harness::Test;
use crate::trials::{never, run, short, stacks};
use crate::{environments, machine};

pub const TESTS: &[Test] = &[
    ("xdp::ping_pong_over_netns_and_again", || everywhere("netns")),
    ("xdp::ping_pong_over_bridge_and_again", || everywhere("bridge")),
    ("xdp::requests_and_their_service_time", requests),
    ("xdp::other_traffic_stays_with_the_kernel", other_traffic),
    ("xdp::killed_agent_releases_program_and_port", killed),
    ("xdp::killed_server_is_noticed", server_killed),
    ("xdp::link_has_the_paths_of_its_driver", paths),
    ("xdp::frames_are_exchanged_with_the_kernel", with_the_kernel),
    ("xdp::loopback_is_refused_with_a_reason", loopback),
];

pub const LONG: Duration = Duration::from_secs(30);

/// An environment with AF_XDP; none if it is not available on this machine.
pub fn start(kind: &str) -> Option<Environment> {
    let kind_of: EnvironmentKind = kind.parse().unwrap();
    match resolve::unavailable_reason(kind_of, &stacks("xdp-spin"), ProbeKind::Pingpong) {
        None => environments::start(kind),
        Some(reason) => {
            assert!(reason.to_string().contains("; "), "no remedy: {reason}");
            None
        }
    }
}

fn shown(settings: &Settings, kind: &SettingKind) -> String {
    settings.get(kind).map(ToString::to_string).unwrap_or_default()
}

fn dropped(doubts: &[Doubt]) -> bool {
    doubts.iter().any(|doubt| doubt.kind == DoubtKind::FramesDropped)
}

fn everywhere(kind: &str) {
    let before = machine::now();
    let Some(mut environment) = start(kind) else { return };
    let check = |environment: &mut Environment, text: &str| {
        let measured = run(&mut environment.pair, text, &short(&[1, 64, 1024, 1472]));
        assert_eq!(measured.len(), 4);
        for one in &measured {
            let RoundData::Latency(data) = &one.round.data else { panic!("{one:?}") };
            assert!(data.count.unwrap() >= 50 && data.lost == 0, "{text}: {data:?}");
            assert!(one.round.value(Metric::Median).unwrap() > 0.0);
            assert_eq!(one.comparability.bypass.as_deref(), Some("xdp"));
            assert_eq!(one.comparability.protocol.as_deref(), Some("xdp"));
            assert_eq!(
                shown(&one.settings, &SettingKind::XdpPath),
                "generic, copied",
                "the faster one on veth"
            );
            assert_eq!(shown(&one.settings, &SettingKind::Driver), "veth");
            assert!(!dropped(&one.round.doubts), "{:?}", one.round.doubts);
        }
    };
    // Each task binds the queue again, so the previous one must have released it.
    for text in ["xdp-spin", "xdp-blocking", "xdp-spin:xdp-blocking", "udp-spin"] {
        if text == "udp-spin" {
            assert_eq!(run(&mut environment.pair, text, &short(&[64])).len(), 1);
        } else {
            check(&mut environment, text);
        }
    }
    if environment.use_ipv6(true).is_ok() {
        let measured = run(&mut environment.pair, "xdp-blocking", &short(&[1, 1452]));
        assert_eq!(measured.len(), 2);
        assert!(
            measured
                .iter()
                .all(|one| shown(&one.settings, &SettingKind::XdpPath) == "generic, copied")
        );
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
    for text in ["xdp-spin", "xdp-blocking"] {
        for one in run(&mut environment.pair, text, &probe(Some(500.0))) {
            let RoundData::Latency(data) = &one.round.data else { panic!("{one:?}") };
            assert!(data.count.unwrap() > 0 && data.lost == 0, "{text}: {data:?}");
        }
        assert!(!run(&mut environment.pair, text, &probe(None)).is_empty());
    }
}

/// Runs `work` on a thread in the network namespace.
pub fn inside<R: Send>(space: &Namespace, work: impl FnOnce() -> R + Send) -> R {
    thread::scope(|scope| {
        let working = scope.spawn(|| {
            space.enter().unwrap();
            work()
        });
        working.join().unwrap()
    })
}

/// Whether an XDP program is attached to the link with this address, so that a second is refused.
pub fn is_taken(space: &Namespace, ip: IpAddr) -> bool {
    inside(space, || {
        let links = Links::new().unwrap();
        let index = links.index(&links.find_by_address(ip).unwrap()).unwrap();
        match XdpSocket::open(
            index,
            0,
            &FlowFilter::udp(SocketAddr::new(ip, 9)),
            XdpPath::Generic,
            None,
        ) {
            Ok(_) => false,
            Err(error) => {
                let busy = error.raw_os_error() == Some(BUSY);
                assert!(busy, "{error}");
                true
            }
        }
    })
}

/// `EBUSY`.
const BUSY: i32 = 16;

/// Runs a long ping-pong over a stack and does `meanwhile` once it measures.
pub fn with_meanwhile(
    environment: &mut Environment,
    text: &str,
    max_ms: u64,
    meanwhile: impl FnOnce() + Send,
) -> Result<trial::Outcome, Box<trial::Interrupted>> {
    let probe = ProbeSpec::Pingpong(PingpongSpec {
        sizes: vec![64],
        max_iterations: u64::MAX >> 40,
        min_iterations: 50,
        max_ms,
        warmup_ms: 10,
        timeout_ms: 200,
        ..PingpongSpec::default()
    });
    let (measuring, cancel) = (AtomicBool::new(false), never());
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let limit = Deadline::after(LONG);
            while !measuring.load(Ordering::Acquire) {
                assert!(!limit.passed(), "nothing was measured");
                thread::sleep(Duration::from_millis(5));
            }
            meanwhile();
        });
        let outcome = trial::run(
            &mut environment.pair,
            &stacks(text),
            &probe,
            0,
            &trial::Options::new(1),
            &mut |_| measuring.store(true, Ordering::Release),
            &cancel,
        );
        waiting.join().unwrap();
        outcome
    })
}

fn other_traffic() {
    let Some(mut environment) = start("netns") else { return };
    let client = Namespace::network_of(environment.pair.client.pid()).unwrap();
    let server = Namespace::network_of(environment.pair.server.pid()).unwrap();
    let (client_ip, server_ip) = (environment.pair.client_address, environment.pair.server_address);
    let outcome = with_meanwhile(&mut environment, "xdp-spin", 3_000, || {
        assert!(is_taken(&client, client_ip) && is_taken(&server, server_ip));
        let listener = inside(&server, || TcpListener::bind((server_ip, 0)).unwrap());
        let address = listener.local_addr().unwrap();
        let mut there = inside(&client, || TcpStream::connect_timeout(&address, LONG).unwrap());
        let (mut here, _) = listener.accept().unwrap();
        for stream in [&there, &here] {
            stream.set_read_timeout(Some(LONG)).unwrap();
        }
        let sent: Vec<u8> = (0..100_000u32).map(|number| number as u8).collect();
        let mut received = vec![0; sent.len()];
        thread::scope(|scope| {
            scope.spawn(|| there.write_all(&sent).unwrap());
            here.read_exact(&mut received).unwrap();
        });
        assert!(received == sent, "all bytes of TCP over the same link arrive");
        assert!(is_taken(&client, client_ip), "the program was attached all the time");
    });
    let outcome = outcome.unwrap_or_else(|interrupted| panic!("{}", interrupted.failure));
    let RoundData::Latency(data) = &outcome.measured[0].round.data else { panic!() };
    assert_eq!(data.lost, 0);
    assert!(!is_taken(&client, client_ip) && !is_taken(&server, server_ip), "after its end");
}

/// Waits until the XDP program is detached and no UDP port is open in the namespace.
fn wait_released(space: &Namespace, ip: IpAddr) {
    let limit = Deadline::after(LONG);
    let ports = || inside(space, || std::fs::read_to_string("/proc/thread-self/net/udp").unwrap());
    while is_taken(space, ip) || ports().lines().count() > 1 {
        assert!(!limit.passed(), "still open: {}", ports());
        thread::sleep(Duration::from_millis(10));
    }
}

fn killed() {
    let Some(mut environment) = start("netns") else { return };
    // The open descriptor keeps the namespace and its link when the agent ends.
    let pid = environment.pair.client.pid();
    let client = Namespace::network_of(pid).unwrap();
    let ip = environment.pair.client_address;
    let ended = with_meanwhile(&mut environment, "xdp-spin", 20_000, || {
        assert!(is_taken(&client, ip));
        kill(pid);
    });
    let failure = ended.err().unwrap().failure;
    assert_eq!(failure.message, "agent `client` of netns ended by signal 9");
    wait_released(&client, ip);
}

fn server_killed() {
    let Some(mut environment) = start("netns") else { return };
    let pid = environment.pair.server.pid();
    let server = Namespace::network_of(pid).unwrap();
    let ip = environment.pair.server_address;
    let ended = with_meanwhile(&mut environment, "xdp-spin", 20_000, || kill(pid));
    assert_eq!(ended.err().unwrap().failure.kind, FailureKind::Peer);
    wait_released(&server, ip);
}

fn paths() {
    let Some(environment) = start("netns") else { return };
    let client = Namespace::network_of(environment.pair.client.pid()).unwrap();
    let ip = environment.pair.client_address;
    inside(&client, || {
        let links = Links::new().unwrap();
        let index = links.index(&links.find_by_address(ip).unwrap()).unwrap();
        let open =
            |path| XdpSocket::open(index, 0, &FlowFilter::udp(SocketAddr::new(ip, 9)), path, None);
        for path in [XdpPath::Native, XdpPath::Generic, XdpPath::Native] {
            assert_eq!(open(path).unwrap().path(), path);
        }
        assert!(open(XdpPath::ZeroCopy).is_err(), "a veth pair does not support zero copy");
        let flow = FlowFilter::udp(SocketAddr::new(ip, 9));
        assert!(XdpSocket::open(index, 7, &flow, XdpPath::Generic, None).is_err(), "queue");
    });
}

/// Sends a message and returns the reply.
struct Echo<'a>(&'a [u8]);

impl Visitor for Echo<'_> {
    type Output = Vec<u8>;

    fn visit<T: Transport>(self, mut transport: T) -> Vec<u8> {
        let mut buffer = vec![0; self.0.len() + 1];
        let limit = Deadline::after(LONG);
        loop {
            transport.send(self.0).unwrap();
            match transport.receive(&mut buffer) {
                Ok(length) if handshake::decode(&buffer[..length]).is_err() => {
                    buffer.truncate(length);
                    return buffer;
                }
                Ok(_) | Err(TransportError::TimedOut) => assert!(!limit.passed(), "no echo"),
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// The listener is a kernel socket, which drops frames with a wrong checksum.
fn with_the_kernel() {
    let Some(mut environment) = start("netns") else { return };
    for ipv6 in [false, true] {
        if environment.use_ipv6(ipv6).is_err() {
            continue;
        }
        let client = Namespace::network_of(environment.pair.client.pid()).unwrap();
        let server = Namespace::network_of(environment.pair.server.pid()).unwrap();
        let (client_ip, server_ip) =
            (environment.pair.client_address, environment.pair.server_address);
        let kernel = inside(&server, || UdpSocket::bind((server_ip, 0)).unwrap());
        kernel.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let address = format!("xdp:{}", kernel.local_addr().unwrap());
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let (mut buffer, mut ack) = ([0; 2048], [0; handshake::BYTES_MAX]);
                let limit = Deadline::after(2 * LONG);
                while !done.load(Ordering::Acquire) && !limit.passed() {
                    let Ok((length, peer)) = kernel.recv_from(&mut buffer) else { continue };
                    let response = match handshake::decode(&buffer[..length]) {
                        Ok(_) => {
                            let message = HandshakeMessage::HelloAck(Token::default());
                            handshake::encode(message, &[], &mut ack)
                        }
                        Err(_) => &buffer[..length],
                    };
                    kernel.send_to(response, peer).unwrap();
                }
            });
            for (stack, length) in [("xdp-spin", 1), ("xdp-blocking", 999), ("xdp-spin", 1452)] {
                let sent: Vec<u8> = (0..length).map(|number| number as u8).collect();
                let echo = inside(&client, || {
                    let (stack, local) = (stack.parse().unwrap(), client_ip.to_string());
                    let options = nm_transport::Options::default();
                    let connection =
                        nm_transport::connect(stack, &address, &local, &options, LONG).unwrap();
                    let connection = connection.handshake(&[length], LONG, &|| false).unwrap();
                    connection.with(Echo(&sent)).unwrap()
                });
                assert!(echo == sent, "{stack} {length} over {address}");
            }
            done.store(true, Ordering::Release);
        });
    }
}

fn loopback() {
    let mut environment = environments::start("loopback").unwrap();
    let failure = trial::run(
        &mut environment.pair,
        &stacks("xdp-spin"),
        &short(&[64]),
        0,
        &trial::Options::new(1),
        &mut |_| {},
        &never(),
    )
    .unwrap_err()
    .failure;
    assert_eq!(failure.kind, FailureKind::NotAvailable);
    assert!(failure.message.contains("loopback"), "{failure}");
}
