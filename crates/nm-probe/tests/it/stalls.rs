//! Stalls of either end must show in the open loop, and must be hidden by the closed one.

use std::thread;
use std::time::Duration;

use nm_model::doubt::DoubtKind;
use nm_model::metric::Metric;
use nm_model::probe::Side;
use nm_model::result::Statistic;
use nm_model::stack::Mode;
use nm_probe::hot::Seat;
use nm_probe::latency::{self as course, Course};
use nm_probe::{Control, serve};
use nm_sys::clock::Moment;
use nm_transport::{Connection, Fault, Transport, Visitor};

use crate::pair::{alone, latency};

const STALL: Duration = Duration::from_millis(20);
const STALLS: u32 = 10;
const RUN: Duration = Duration::from_secs(4);

/// Stops the thread for [`STALL`] ten times in [`RUN`], wherever it is: what a stopped process
/// does.
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

    fn send(&mut self, message: &[u8]) -> Result<(), Fault> {
        self.inner.send(message)
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Result<usize, Fault> {
        self.maybe_stall();
        self.inner.receive(buffer)
    }

    fn receive_some(&mut self, buffer: &mut [u8]) -> Result<usize, Fault> {
        self.inner.receive_some(buffer)
    }

    fn try_send(&mut self, bytes: &[u8]) -> Result<Option<usize>, Fault> {
        self.inner.try_send(bytes)
    }

    fn try_receive(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, Fault> {
        self.maybe_stall();
        self.inner.try_receive(buffer)
    }

    fn wait(&mut self, limit: Duration) -> Result<bool, Fault> {
        self.inner.wait(limit)
    }

    fn end_sending(&mut self, lengths: &[usize]) {
        self.inner.end_sending(lengths);
    }
}

struct End<'a> {
    side: Side,
    stalls: bool,
    course: &'a Course,
    control: &'a Control,
}

impl Visitor for End<'_> {
    type Output = Option<nm_model::agent::TaskReport>;

    fn visit<T: Transport>(self, transport: T) -> Self::Output {
        let mut transport = Stalling::new(transport, self.stalls);
        let [request, response] = self.course.lengths();
        match self.side {
            Side::Server => {
                serve::serve(&mut transport, request, response, self.control).unwrap();
                None
            }
            Side::Client => {
                let seat = Seat { side: Side::Client, name: "pinger".to_string(), cpu: None };
                let report =
                    course::client(&mut transport, self.course, &seat, false, self.control);
                assert!(!self.stalls || transport.stalls == STALLS, "{}", transport.stalls);
                Some(report.unwrap())
            }
        }
    }
}

/// Ten stalls of one end in four seconds at `rate_per_s`; the client's report.
fn stalled(side: Side, rate_per_s: Option<f64>) -> nm_model::agent::TaskReport {
    let _alone = alone();
    let seconds = RUN.as_secs_f64();
    let course = Course::request_response("64".parse().unwrap(), rate_per_s, seconds, 0, 1_000);
    let (a, b) = Connection::unix_pair(Mode::Blocking).unwrap();
    let control = Control::new();
    let end = |end| End { side: end, stalls: end == side, course: &course, control: &control };
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
fn the_open_loop_shows_stalls_of_either_end() {
    let half_stall_ns = STALL.as_nanos() as f64 / 2.0;
    for side in [Side::Server, Side::Client] {
        let report = stalled(side, Some(1_000.0));
        let round = latency(&report, Statistic::RoundTripFromIntended);
        assert_eq!((round.count, round.lost), (Some(4_000), 0), "{side}");
        let p99 = p99_ns(&report, Statistic::RoundTripFromIntended);
        assert!(p99 > half_stall_ns, "{side}: p99 {p99} ns");
        let behind = report.doubts.iter().any(|doubt| doubt.kind == DoubtKind::Behind);
        if side == Side::Client {
            assert!(behind, "a stalled client says that it fell behind: {:?}", report.doubts);
            // What was sent late is not in the service time: that is why both are kept.
            let service = p99_ns(&report, Statistic::RoundTrip);
            assert!(service < p99, "{service} {p99}");
        }
    }
}

#[test]
fn the_closed_loop_hides_them() {
    let half_stall_ns = STALL.as_nanos() as f64 / 2.0;
    for side in [Side::Server, Side::Client] {
        let report = stalled(side, None);
        let count = latency(&report, Statistic::RoundTrip).count.unwrap();
        assert!(count > 2_000, "{count}");
        let p99 = p99_ns(&report, Statistic::RoundTrip);
        assert!(p99 < half_stall_ns, "{side}: p99 {p99} ns");
        assert!(report.doubts.iter().any(|doubt| doubt.kind == DoubtKind::ClosedLoop));
    }
}
