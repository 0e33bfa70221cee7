//! Stalls of either end must be in the latencies of the open loop; the closed loop hides them.

use std::thread;
use std::time::Duration;

use nm_model::doubt::DoubtKind;
use nm_model::metric::Metric;
use nm_model::probe::{RrWork, Side};
use nm_model::result::Statistic;
use nm_model::stack::Mode;
use nm_probe::latency::{self as probe, LatencyPlan};
use nm_probe::pinned_thread::PinnedThread;
use nm_probe::{Control, serve};
use nm_sys::clock::Moment;
use nm_transport::{Connection, Transport, TransportError, Visitor};

use crate::pair::{alone, latency};

const STALL: Duration = Duration::from_millis(20);
const STALLS: u32 = 5;
const RUN: Duration = Duration::from_millis(1_500);

/// Stops the thread for [`STALL`] five times in [`RUN`], at any point, as a stopped process does.
struct Stalling<T> {
    inner: T,
    begin: Option<Moment>,
    stalls: u32,
    enabled: bool,
}

impl<T> Stalling<T> {
    fn new(inner: T, enabled: bool) -> Stalling<T> {
        Stalling { inner, begin: None, stalls: 0, enabled }
    }

    fn maybe_stall(&mut self) {
        let begin = *self.begin.get_or_insert_with(Moment::now);
        let due = RUN / (STALLS + 1) * (self.stalls + 1);
        if self.enabled && self.stalls < STALLS && begin.elapsed() >= due {
            self.stalls += 1;
            thread::sleep(STALL);
        }
    }
}

impl<T: Transport> Transport for Stalling<T> {
    const DATAGRAM: bool = T::DATAGRAM;

    fn send(&mut self, message: &[u8]) -> Result<(), TransportError> {
        self.inner.send(message)
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Result<usize, TransportError> {
        self.maybe_stall();
        self.inner.receive(buffer)
    }

    fn receive_some(&mut self, buffer: &mut [u8]) -> Result<usize, TransportError> {
        self.inner.receive_some(buffer)
    }

    fn try_send(&mut self, bytes: &[u8]) -> Result<Option<usize>, TransportError> {
        self.inner.try_send(bytes)
    }

    fn try_receive(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, TransportError> {
        self.maybe_stall();
        self.inner.try_receive(buffer)
    }

    fn wait(&mut self, limit: Duration) -> Result<bool, TransportError> {
        self.inner.wait(limit)
    }

    fn end_sending(&mut self, message_lengths: &[usize]) {
        self.inner.end_sending(message_lengths);
    }
}

struct StallingEnd<'a> {
    side: Side,
    stalls: bool,
    plan: &'a LatencyPlan,
    control: &'a Control,
}

impl Visitor for StallingEnd<'_> {
    type Output = Option<nm_model::agent::TaskReport>;

    fn visit<T: Transport>(self, transport: T) -> Self::Output {
        let mut transport = Stalling::new(transport, self.stalls);
        let [request, response] = self.plan.message_lengths();
        match self.side {
            Side::Server => {
                serve::serve(&mut transport, request, response, self.control).unwrap();
                None
            }
            Side::Client => {
                let thread =
                    PinnedThread { side: Side::Client, name: "pinger".to_string(), cpu: None };
                let report = probe::client(&mut transport, self.plan, &thread, false, self.control);
                assert!(!self.stalls || transport.stalls == STALLS, "{}", transport.stalls);
                Some(report.unwrap())
            }
        }
    }
}

/// Five stalls of one end at `rate_per_s`; the client's report.
fn stalled(side: Side, rate_per_s: Option<f64>) -> nm_model::agent::TaskReport {
    let _alone = alone();
    let seconds = RUN.as_secs_f64();
    let size = "64".parse().unwrap();
    let work = RrWork { size, rate_per_s, seconds, warmup_ms: 0, deadline_ms: 1_000 };
    let plan = LatencyPlan::request_response(&work);
    let (a, b) = Connection::unix_pair(Mode::Blocking).unwrap();
    let control = Control::new();
    let end = |end| StallingEnd { side: end, stalls: end == side, plan: &plan, control: &control };
    thread::scope(|scope| {
        let server = end(Side::Server);
        let serving = scope.spawn(move || b.with(server).map(drop));
        let report = a.with(end(Side::Client)).unwrap().unwrap();
        serving.join().unwrap().unwrap();
        report
    })
}

fn p99_ns(report: &nm_model::agent::TaskReport, statistic: Statistic) -> f64 {
    latency(report, statistic).value(Metric::Percentile(99.0)).unwrap()
}

#[test]
fn open_loop_shows_stalls_of_either_end() {
    let half_stall_ns = STALL.as_nanos() as f64 / 2.0;
    for side in [Side::Server, Side::Client] {
        let report = stalled(side, Some(1_000.0));
        let round = latency(&report, Statistic::RoundTripFromIntended);
        assert_eq!((round.count, round.lost), (Some(1_500), 0), "{side}");
        let p99 = p99_ns(&report, Statistic::RoundTripFromIntended);
        assert!(p99 > half_stall_ns, "{side}: p99 {p99} ns");
        let behind = report.doubts.iter().any(|doubt| doubt.kind == DoubtKind::Behind);
        if side == Side::Client {
            assert!(behind, "a stalled client fell behind its schedule: {:?}", report.doubts);
            // The service time does not contain the lateness of the send, so both are reported.
            let service = p99_ns(&report, Statistic::RoundTrip);
            assert!(service < p99, "{service} {p99}");
        }
    }
}

#[test]
fn closed_loop_hides_stalls() {
    let half_stall_ns = STALL.as_nanos() as f64 / 2.0;
    for side in [Side::Server, Side::Client] {
        let report = stalled(side, None);
        let count = latency(&report, Statistic::RoundTrip).count.unwrap();
        // Half a per cent of the round trips, which p99 does not show.
        assert!(count > u64::from(200 * STALLS), "{count}");
        let p99 = p99_ns(&report, Statistic::RoundTrip);
        assert!(p99 < half_stall_ns, "{side}: p99 {p99} ns");
        assert!(report.doubts.iter().any(|doubt| doubt.kind == DoubtKind::ClosedLoop));
    }
}
