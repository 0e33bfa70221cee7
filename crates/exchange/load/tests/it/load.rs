//! The load generator: on a simulated clock with a simulated network, and over Unix sockets with a
//! gateway that executes requests itself.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use nm_book::reference::ReferenceBook;
use nm_exchange::batch;
use nm_exchange::cell::{Cell, Handled};
use nm_exchange::link::{Address, Link, Listener};
use nm_load::clients::Clients;
use nm_load::demand::Demand;
use nm_load::flow::Flow;
use nm_load::generator::ProfileEnd;
use nm_load::log::{self, Record};
use nm_load::mix::OrderGenerator;
use nm_load::profile::Segment;
use nm_load::recorder::LoadRecorder;
use nm_load::round::{Round, RoundRecorder, stall_figures};
use nm_load::schedule::{Bursts, Schedule};
use nm_load::seconds::RecordedSecond;
use nm_load::{Arrivals, Generator, Pace, Settings, Sizes, Stall};
use nm_model::exchange::OrderMix;
use nm_model::{FailureKind, Metric};
use nm_stats::random::Random;
use nm_sys::poll;
use nm_wire::{Kind, Message, Reply, Request, ResendRequest, Resent, Series, Shape};

/// A stall: start and end, ns.
#[derive(Clone, Copy)]
struct Pause(u64, u64);

impl Pause {
    const NEVER: Pause = Pause(u64::MAX, u64::MAX);

    /// When an event due at a time happens.
    fn after(self, at_ns: u64) -> u64 {
        if (self.0..self.1).contains(&at_ns) { self.1 } else { at_ns }
    }
}

/// The reply to a request, without events.
fn reply_to(request: &Request) -> Reply<'static> {
    Reply {
        instrument: request.instrument,
        session: request.session,
        client_seq: request.client_seq,
        output_seq: request.acknowledged,
        previous_event: 0,
        events_hash: 0,
        intended_ns: request.intended_ns,
        map_version: 0,
        gateway: 0,
        cell: 0,
        is_repeated: false,
        is_expired: false,
        events: Series::of(&[]),
    }
}

/// A round on a simulated clock, with the sessions and samples of the generator. The network has a
/// round-trip time of `trip_ns`; generator and network stall as given.
fn simulated(pace: &Pace, trip_ns: u64, generator: Pause, network: Pause) -> Round {
    let sizes = Sizes::new(200, 200, 200).unwrap();
    let settings = Settings { sizes, ..Settings::default() };
    let mut orders = OrderGenerator::new(&settings);
    let mut clients = Clients::new(settings.sessions, settings.instruments, 1, false);
    let mut recorder = RoundRecorder::new(0, 0, 0);
    let mut replies: VecDeque<(u64, Message<'static>)> = VecDeque::new();
    let end_ns = (pace.seconds * 1e9) as u64;
    let times = Schedule::new(pace.arrivals, pace.rate_per_s, Random::new(9));
    let mut wire_bytes = vec![];
    for at_ns in times.take_while(|at_ns| *at_ns < end_ns) {
        let now_ns = generator.after(at_ns);
        while replies.front().is_some_and(|(arrived_ns, _)| *arrived_ns <= now_ns) {
            let (arrived_ns, message) = replies.pop_front().unwrap();
            let seen_ns = generator.after(arrived_ns);
            let (reply, _) = clients.receive(0, &message, seen_ns, &mut wire_bytes);
            let reply = reply.unwrap();
            recorder.answered(reply.number, reply.intended_ns, seen_ns);
        }
        clients.submit(&orders.next_request(), at_ns, &mut wire_bytes).unwrap();
        recorder.sent(at_ns, now_ns);
        let mut rest = &wire_bytes[..];
        while let Some(frame) = nm_wire::read(rest).unwrap() {
            let arrived_ns = network.after(now_ns + trip_ns / 2) + trip_ns / 2;
            let reply = reply_to(&frame.read().unwrap());
            replies.push_back((arrived_ns, Message::Reply(reply)));
            rest = &rest[frame.bytes.len()..];
        }
        wire_bytes.clear();
    }
    for (arrived_ns, message) in replies {
        let seen_ns = generator.after(arrived_ns);
        if let (Some(reply), _) = clients.receive(0, &message, seen_ns, &mut wire_bytes) {
            recorder.answered(reply.number, reply.intended_ns, seen_ns);
        }
    }
    recorder.finish(pace.rate_per_s)
}

#[test]
fn a_stall_raises_the_figures_by_the_expected_amount() {
    let ms = 1_000_000;
    // The number of requests in a stall varies with Poisson arrivals: at 40 000 per second by 1.6
    // %.
    for (seconds, stall_ms, arrivals, rate_per_s) in [
        (5.0, 100, Arrivals::Even, 10_000.0),
        (2.0, 100, Arrivals::Poisson, 40_000.0),
        (2.0, 300, Arrivals::Even, 10_000.0),
    ] {
        let pace = Pace { rate_per_s, seconds, arrivals, ..Pace::default() };
        let quiet = simulated(&pace, 200_000, Pause::NEVER, Pause::NEVER);
        assert_eq!(quiet.latency.es10_ns, Some(200_000.0));
        let pause = Pause(700 * ms, (700 + stall_ms) * ms);
        let (es10_ns, p99_ns) = stall_figures(seconds, stall_ms as f64 / 1e3, 200e3);
        // A stall of either has the same figures; only the lateness shows which of them it was.
        for (generator, network) in [(pause, Pause::NEVER), (Pause::NEVER, pause)] {
            let round = simulated(&pace, 200_000, generator, network);
            let found = |metric| round.latency.value(metric).unwrap();
            let near = |found: f64, expected: f64| (found / expected - 1.0).abs() < 0.05;
            let (es10, p99) = (found(Metric::Es10), found(Metric::Percentile(99.0)));
            assert!(near(es10, es10_ns), "ES10 {es10} ns, must be {es10_ns} ns");
            assert!(near(p99, p99_ns), "p99 {p99} ns, must be {p99_ns} ns");
            assert_eq!((round.lost, round.latency.count), (0, Some(round.sent)));
            let late = round.lateness.max_ns.unwrap();
            assert_eq!(late > 0.9 * (stall_ms * ms) as f64, generator.0 < u64::MAX);
        }
    }
}

/// A gateway that executes requests itself. After each number of requests in `until` it closes the
/// connection without answering the last one, and accepts the next connection. Returns a batch of
/// all requests.
fn gateway(listener: Listener, until: Vec<usize>) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let (mut cell, mut journal) = (Cell::<ReferenceBook>::default(), vec![]);
        batch::begin(1, &mut journal);
        cell.begin(1, 1);
        for limit in until {
            let mut link = loop {
                match listener.accept().unwrap() {
                    Some(stream) => break Link::new(stream).unwrap(),
                    None => thread::sleep(Duration::from_millis(1)),
                }
            };
            let mut handled = 0;
            'link: while handled < limit {
                let fd = link.as_fd().as_raw_fd();
                poll::readable(fd, Duration::from_millis(50)).unwrap();
                if link.receive().is_err() {
                    return journal;
                }
                while let Some(frame) = link.input.next_frame().unwrap() {
                    if matches!(frame.kind(), Kind::Format | Kind::Hello) {
                        continue;
                    }
                    if frame.kind() == Kind::ResendRequest {
                        // There are no events to resend.
                        let ResendRequest { instrument, session, gateway, cell, .. } =
                            frame.read().unwrap();
                        let resent = Resent {
                            instrument,
                            session,
                            previous_event: 0,
                            executed_seq: 0,
                            live_orders: 0,
                            gateway,
                            cell,
                            has_gap: false,
                            events: Series::of(&[]),
                        };
                        nm_wire::write(&resent, &mut link.output);
                        continue;
                    }
                    let request: Request = frame.read().unwrap();
                    let (is_stamped, size_bytes) = (frame.shared().is_stamped(), frame.bytes.len());
                    journal.extend_from_slice(frame.bytes);
                    let outcome = match cell.handle(&request, |_| {}) {
                        Handled::Executed(outcome) | Handled::Duplicate(Some(outcome)) => outcome,
                        other => panic!("{other:?} of {request:?}"),
                    };
                    handled += 1;
                    if handled >= limit {
                        break 'link; // executed, but not answered
                    }
                    let reply = Reply {
                        output_seq: outcome.output_seq,
                        events_hash: outcome.events_hash,
                        ..reply_to(&request)
                    };
                    let shape = Shape { is_stamped, size_bytes };
                    nm_wire::write_shaped(&reply, shape, &mut link.output);
                }
                link.flush().unwrap();
            }
        }
        journal
    })
}

fn listen(folder: &Path, name: &str) -> (Listener, Address) {
    let address = Address::Unix(folder.join(name));
    (Listener::bind(&address).unwrap(), address)
}

fn pace() -> Pace {
    Pace { rate_per_s: 4_000.0, seconds: 0.3, drain_s: 20.0, ..Pace::default() }
}

/// Numbers of sent and answered requests in a client log.
fn counts(path: &Path) -> (usize, usize) {
    let records = log::parse(&std::fs::read(path).unwrap()).unwrap();
    let sent = records.iter().filter(|record| matches!(record, Record::Sent(_))).count();
    let answered = records.iter().filter(|record| matches!(record, Record::Answered(_))).count();
    (sent, answered)
}

#[test]
fn broken_connections_lose_no_request() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (listen(folder.path(), "a"), listen(folder.path(), "b"));
    let addresses = [first.1, second.1];
    let gateways =
        [gateway(first.0, vec![usize::MAX]), gateway(second.0, vec![50, 1, 200, usize::MAX])];
    let path = folder.path().join("client-0.log");
    let limit = Duration::from_secs(20);
    let settings = Settings::default();
    let mut generator =
        Generator::connect(&settings, None, &addresses, Some(&path), limit).unwrap();
    let cancel = AtomicBool::new(false);
    let rounds = [(); 2].map(|()| generator.round(&pace(), &cancel).unwrap());
    let sent: u64 = rounds.iter().map(|round| round.sent).sum();
    assert!(sent > 1_000, "{sent}");
    for round in &rounds {
        assert_eq!((round.lost, round.answered), (0, round.sent));
        assert_eq!(round.samples.len() as u64, round.sent);
        assert!(round.samples.windows(2).all(|pair| pair[0].start_ns <= pair[1].start_ns));
    }
    assert_eq!(rounds.iter().map(|round| round.reconnects).sum::<u64>(), 3);
    assert!(rounds[0].resent > 0);
    assert_eq!(generator.end(limit), Ok(0));
    gateways.into_iter().for_each(|gateway| drop(gateway.join().unwrap()));
    assert_eq!(counts(&path), (sent as usize, sent as usize));
}

#[test]
fn a_recorded_flow_is_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let (limit, cancel) = (Duration::from_secs(20), AtomicBool::new(false));
    let settings = Settings { mix: OrderMix::ExchangeCore, ..Settings::default() };
    let recorded = folder.path().join("recorded.flow");
    let run = |name: &str, flow: Option<Flow>, seed: u64, rate_per_s: f64| {
        let (listener, address) = listen(folder.path(), name);
        let gateway = gateway(listener, vec![usize::MAX]);
        let settings = Settings { seed, ..settings };
        let is_first = name == "a";
        let mut generator = Generator::connect(&settings, flow, &[address], None, limit).unwrap();
        if is_first {
            generator.record(&recorded).unwrap();
        }
        let round = generator.round(&Pace { rate_per_s, ..pace() }, &cancel).unwrap();
        generator.end(limit).unwrap();
        gateway.join().unwrap();
        round
    };
    let first = run("a", None, 5, 4_000.0);
    let flow = Flow::read(&recorded).unwrap();
    assert_eq!(flow.requests.len() as u64, first.sent);
    let again = run("b", Some(flow), 77, 1.0);
    assert_eq!((again.sent, again.stream_hash), (first.sent, first.stream_hash));
    // The requests depend on the seed only.
    assert_ne!(run("c", None, 6, 4_000.0).stream_hash, first.stream_hash);
    assert_eq!(run("d", None, 5, 4_000.0).stream_hash, first.stream_hash);
}

#[test]
fn requests_without_reply_are_lost_and_a_stall_shows_as_lateness() {
    let folder = tempfile::tempdir().unwrap();
    let (silent, address) = listen(folder.path(), "silent");
    let (limit, cancel) = (Duration::from_secs(20), AtomicBool::new(false));
    let mut generator =
        Generator::connect(&Settings::default(), None, &[address], None, limit).unwrap();
    let stall = Some(Stall { at_s: 0.1, for_ms: 50.0 });
    let pace = Pace { seconds: 0.2, drain_s: 0.1, stall, ..pace() };
    let round = generator.round(&pace, &cancel).unwrap();
    assert!(round.sent > 100 && round.lost == round.sent, "{} {}", round.sent, round.lost);
    assert_eq!((round.latency.count, round.latency.lost), (Some(0), round.sent));
    assert!(round.lateness.max_ns.unwrap() >= 40e6, "{:?}", round.lateness.max_ns);
    assert_eq!(generator.end(Duration::from_millis(20)), Ok(round.sent));
    drop(silent);
    let nobody = Address::Unix(folder.path().join("nobody"));
    let short = Duration::from_millis(20);
    let refused = Generator::connect(&Settings::default(), None, &[nobody], None, short);
    let message = refused.err().unwrap().to_string();
    assert!(message.contains("gateway 0 at unix:") && message.contains("start"), "{message}");
}

#[test]
fn a_round_can_be_cancelled() {
    let folder = tempfile::tempdir().unwrap();
    let (_silent, address) = listen(folder.path(), "silent");
    let limit = Duration::from_secs(20);
    let mut generator =
        Generator::connect(&Settings::default(), None, &[address], None, limit).unwrap();
    let error = generator.round(&pace(), &AtomicBool::new(true)).unwrap_err();
    assert_eq!(error.kind, FailureKind::Cancelled);
}

/// Runs a warm-up round and a profile of two seconds over two gateways, of which the second gets
/// `share` of the requests of the second segment.
fn run_profile(folder: &Path, share: f64) -> (Vec<RecordedSecond>, ProfileEnd) {
    let (first, second) = (listen(folder, "a"), listen(folder, "b"));
    let addresses = [first.1, second.1];
    let gateways = [first.0, second.0].map(|listener| gateway(listener, vec![usize::MAX]));
    let (limit, cancel) = (Duration::from_secs(20), AtomicBool::new(false));
    let settings = Settings::default();
    let mut generator = Generator::connect(&settings, None, &addresses, None, limit).unwrap();
    let warmup = generator.round(&Pace { seconds: 0.1, ..pace() }, &cancel).unwrap();
    let segment = |per_s: f64, shares: [f64; 2]| Segment {
        seconds: 1,
        from_per_s: per_s,
        to_per_s: per_s,
        arrivals: Arrivals::Poisson,
        bursts: Bursts::default(),
        demand: Arc::new(Demand::new(settings.instruments, 1.0, &[], Some(&shares))),
        auction_s: None,
    };
    let segments = vec![segment(1_000.0, [1.0, 0.0]), segment(3_000.0, [1.0 - share, share])];
    let (sink, passed) = channel();
    let started = AtomicU64::new(0);
    let end = generator.profile(segments, 20.0, sink, &started, &cancel).unwrap();
    assert_eq!(started.load(Ordering::Relaxed), generator.round_start().load(Ordering::Relaxed));
    assert_eq!(generator.end(limit), Ok(0));
    let requests = gateways.map(|gateway| {
        let journal = gateway.join().unwrap();
        let (_, frames) = batch::decode(&journal).unwrap();
        frames.map(Result::unwrap).filter(|frame| frame.kind() == Kind::Request).count()
    });
    let seconds: Vec<RecordedSecond> = passed.iter().collect();
    let sent: u64 = seconds.iter().map(|second| second.sent).sum();
    assert_eq!((requests[0] + requests[1]) as u64, warmup.sent + sent);
    // Half of the warm-up, and the share of the second segment.
    let expected = warmup.sent as f64 / 2.0 + seconds[1].sent as f64 * share;
    let off = (requests[1] as f64 - expected).abs();
    assert!(off < 4.0 * f64::sqrt((warmup.sent + sent) as f64), "{off}");
    (seconds, end)
}

#[test]
fn a_profile_follows_its_segments_and_passes_on_each_second() {
    let folder = tempfile::tempdir().unwrap();
    let run = |name: &str, share| {
        let folder = folder.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        run_profile(&folder, share)
    };
    let (seconds, end) = run("first", 0.8);
    assert_eq!(seconds.iter().map(|second| second.second).collect::<Vec<_>>(), [0, 1]);
    for (second, expected) in seconds.iter().zip([1_000.0, 3_000.0]) {
        assert!(
            (second.sent as f64 - expected).abs() < 4.0 * f64::sqrt(expected),
            "{}",
            second.sent
        );
        assert_eq!((second.lost(), second.lateness_ns.len() as u64), (0, second.sent));
        let start_ns = u64::from(second.second) * 1_000_000_000;
        let within = start_ns..start_ns + 1_000_000_000;
        assert!(second.samples.iter().all(|sample| within.contains(&sample.start_ns)));
    }
    assert_eq!(run("again", 0.8).1.stream_hash, end.stream_hash);
    assert_ne!(run("other", 0.2).1.stream_hash, end.stream_hash);
}
