//! Ping-pong and request-response: a loop's samples become the report of an end.

use nm_model::Failure;
use nm_model::agent::TaskReport;
use nm_model::doubt::{Doubt, DoubtKind};
use nm_model::metric::Metric;
use nm_model::probe::{PingpongSpec, RrSize};
use nm_model::result::{CACHE_LINE_LIMIT, LatencyRound, Statistic};
use nm_ring::cache_line;
use nm_stats::summary::{Sample, summarise};
use nm_sys::clock::{Clock, ClockInfo};
use nm_sys::cpu;
use nm_transport::Transport;

use crate::closed;
use crate::control::Control;
use crate::hot::Seat;
use crate::open;
use crate::serve;

/// Difference of the clock's two calibrations above which it is doubted, ppm.
const CALIBRATION_PPM_MAX: f64 = 10.0;

/// Share of the median that a pair of time stamps may cost before it is doubted.
const PAIR_COST_SHARE_MAX: f64 = 0.05;

/// What a client does.
#[derive(Debug, Clone, PartialEq)]
pub enum Course {
    /// One request on its way at a time.
    Closed(closed::Plan, Vec<f64>),
    /// Requests on a schedule.
    Open(open::Plan),
}

impl Course {
    /// Ping-pong of one size.
    pub fn pingpong(size_bytes: u32, spec: &PingpongSpec) -> Course {
        let plan = closed::Plan {
            request_bytes: size_bytes as usize,
            response_bytes: size_bytes as usize,
            warmup_ms: spec.warmup_ms,
            samples_min: spec.min_iterations,
            samples_max: spec.max_iterations,
            time_ms: spec.max_ms,
            timeout_ms: spec.timeout_ms,
            shown: Statistic::HalfRoundTrip,
        };
        Course::Closed(plan, spec.percentiles.clone())
    }

    /// Request-response: open loop at a rate, or closed loop.
    pub fn request_response(
        size: RrSize,
        rate_per_s: Option<f64>,
        seconds: f64,
        warmup_ms: u64,
        deadline_ms: u64,
    ) -> Course {
        let (request_bytes, response_bytes) =
            (size.request_bytes as usize, size.response_bytes as usize);
        match rate_per_s {
            Some(rate_per_s) => Course::Open(open::Plan {
                request_bytes,
                response_bytes,
                rate_per_s,
                seconds,
                warmup_ms,
                deadline_ms,
            }),
            None => {
                let plan = closed::Plan {
                    request_bytes,
                    response_bytes,
                    warmup_ms,
                    samples_min: 0,
                    samples_max: u64::MAX,
                    time_ms: (seconds * 1e3).ceil() as u64,
                    timeout_ms: deadline_ms,
                    shown: Statistic::RoundTrip,
                };
                Course::Closed(plan, vec![])
            }
        }
    }

    /// Bytes of a request and of a response.
    pub fn lengths(&self) -> [usize; 2] {
        match self {
            Course::Closed(plan, _) => [plan.request_bytes, plan.response_bytes],
            Course::Open(plan) => [plan.request_bytes, plan.response_bytes],
        }
    }
}

/// Takes the times: the client's end.
///
/// # Errors
/// Those of [`closed::Client::measure`] and [`open::run`].
pub fn client<T: Transport>(
    transport: &mut T,
    course: &Course,
    seat: &Seat,
    raw_samples: bool,
    control: &Control,
) -> Result<TaskReport, Failure> {
    let clock = Clock::system();
    let mut report = match course {
        Course::Closed(plan, percentiles) => {
            let mut course = closed::Course::new(plan)?;
            let mut client = closed::Client::new(transport, clock, *plan, control);
            client.warm_up()?;
            let watch = seat.watch();
            client.measure(&mut course)?;
            let account = watch.finish();
            let mut report = closed_report(&course, plan.shown, percentiles, clock);
            report.placements.push(account.0);
            report.doubts.extend(account.1);
            keep(control, raw_samples, plan.shown, course_samples(&course, plan.shown, clock));
            report
        }
        Course::Open(plan) => {
            cpu::minimize_timer_slack();
            let watch = seat.watch();
            let course = open::run(transport, clock, plan, control)?;
            let account = watch.finish();
            let mut report = open_report(&course);
            report.placements.push(account.0);
            report.doubts.extend(account.1);
            let answered = || course.answered();
            let from_due = answered().map(|a| a.from_due_ns).collect();
            keep(control, raw_samples, Statistic::RoundTripFromIntended, from_due);
            let service = answered().map(|a| a.service_ns).collect();
            keep(control, raw_samples, Statistic::RoundTrip, service);
            report
        }
    };
    transport.end_sending(&course.lengths());
    report.settings = transport.settings();
    report.doubts.extend(transport.doubts());
    if let Some(ns) = cache_line_limit_ns(transport) {
        report.settings.insert(CACHE_LINE_LIMIT.to_string(), format!("{ns:.0} ns"));
    }
    let rounds: Vec<&LatencyRound> = report.latencies.iter().map(|(_, round)| round).collect();
    let mut doubts = rounds.first().and_then(|round| loss(round)).into_iter().collect::<Vec<_>>();
    doubts.extend(clock_doubts(Clock::info(), rounds.last().copied()));
    report.doubts.extend(doubts);
    Ok(report)
}

/// Half of a round trip of one cache line between this thread's CPU and the peer's, where the
/// transport goes through memory that both share. Measured right after the samples and before the
/// connection is given up, because on a virtual machine it changes within minutes; by then the peer
/// has been told to end, so its CPU is free. None where both sit on one CPU or it is too busy.
fn cache_line_limit_ns<T: Transport>(transport: &T) -> Option<f64> {
    let peer = transport.peer_cpu()?;
    cache_line::half_round_trip_ns((cpu::current(), peer)).ok()
}

/// Answers: the server's end.
///
/// # Errors
/// Those of [`serve::serve`].
pub fn server<T: Transport>(
    transport: &mut T,
    course: &Course,
    seat: &Seat,
    control: &Control,
) -> Result<TaskReport, Failure> {
    let [request_bytes, response_bytes] = course.lengths();
    let watch = seat.watch();
    serve::serve(transport, request_bytes, response_bytes, control)?;
    let (placement, mut doubts) = watch.finish();
    doubts.extend(transport.doubts());
    let settings = transport.settings();
    Ok(TaskReport { placements: vec![placement], doubts, settings, ..TaskReport::default() })
}

fn closed_report(
    course: &closed::Course,
    statistic: Statistic,
    percentiles: &[f64],
    clock: Clock,
) -> TaskReport {
    let samples = course_samples(course, statistic, clock);
    let first = course.taken.as_slice().first().map_or(0, |taken| taken.start);
    let starts = course.taken.as_slice().iter().map(|taken| clock.ns(taken.start - first));
    let samples: Vec<Sample> =
        starts.zip(samples).map(|(start_ns, latency_ns)| Sample { start_ns, latency_ns }).collect();
    let mut round = summarise(&samples, course.lost, percentiles);
    let seconds = clock.ns(course.length) as f64 / 1e9;
    round.rate_per_s = (seconds > 0.0).then(|| samples.len() as f64 / seconds);
    let mut doubts = vec![];
    if statistic != Statistic::HalfRoundTrip {
        let detail = "a stall counts once, not once for each request that was due";
        doubts.push(Doubt::new(DoubtKind::ClosedLoop, detail));
    }
    doubts.extend(memory_doubt(course.taken.is_locked()));
    TaskReport { latencies: vec![(statistic, round)], doubts, ..TaskReport::default() }
}

fn course_samples(course: &closed::Course, statistic: Statistic, clock: Clock) -> Vec<u64> {
    let parts = if statistic == Statistic::HalfRoundTrip { 2 } else { 1 };
    course.taken.as_slice().iter().map(|taken| clock.ns(taken.round_trip) / parts).collect()
}

fn open_report(course: &open::Course) -> TaskReport {
    let lost = course.lost();
    let seconds = course.seconds();
    let round = |latency_ns: fn(&open::Answered) -> u64| {
        let samples: Vec<Sample> = course
            .answered()
            .map(|answered| Sample { start_ns: answered.due_ns, latency_ns: latency_ns(&answered) })
            .collect();
        let mut round = summarise(&samples, lost, &[]);
        round.rate_per_s = (seconds > 0.0).then(|| samples.len() as f64 / seconds);
        round
    };
    let latencies = vec![
        (Statistic::RoundTripFromIntended, round(|answered| answered.from_due_ns)),
        (Statistic::RoundTrip, round(|answered| answered.service_ns)),
    ];
    let mut doubts: Vec<Doubt> = course.behind().into_iter().collect();
    doubts.extend(memory_doubt(course.requests.is_locked()));
    TaskReport { latencies, doubts, ..TaskReport::default() }
}

fn keep(control: &Control, wanted: bool, statistic: Statistic, samples: Vec<u64>) {
    if wanted {
        let saturated = samples.into_iter().map(|ns| u32::try_from(ns).unwrap_or(u32::MAX));
        control.keep_samples(statistic, saturated.collect());
    }
}

fn memory_doubt(locked: bool) -> Option<Doubt> {
    let detail = "the sample memory is in place but not locked";
    (!locked).then(|| Doubt::new(DoubtKind::MemoryNotLocked, detail))
}

fn loss(round: &LatencyRound) -> Option<Doubt> {
    let sent = round.count.unwrap_or(0) + round.lost;
    (round.lost > 0).then(|| {
        let detail = format!("{} of {sent} messages had no answer in time", round.lost);
        Doubt::new(DoubtKind::Loss, detail)
    })
}

/// What the clock gives reason to doubt, the cost of its stamps set against the medians of `round`.
fn clock_doubts(clock: &ClockInfo, round: Option<&LatencyRound>) -> Vec<Doubt> {
    let mut doubts = vec![];
    if let Some(error) = &clock.counter_error {
        doubts.push(Doubt::new(DoubtKind::ClockFallback, error.to_string()));
    }
    if let Some(ppm) = clock.calibration_error_ppm.filter(|ppm| *ppm > CALIBRATION_PPM_MAX) {
        let detail = format!("two calibrations differ by {ppm:.0} ppm");
        doubts.push(Doubt::new(DoubtKind::ClockDrift, detail));
    }
    let median_ns = round.and_then(|round| round.value(Metric::Median));
    if let Some(median_ns) = median_ns
        && clock.pair_cost_ns > PAIR_COST_SHARE_MAX * median_ns
    {
        let cost_ns = clock.pair_cost_ns;
        let detail = format!("a pair costs {cost_ns:.0} ns of a median of {median_ns:.0} ns");
        doubts.push(Doubt::new(DoubtKind::ClockCost, detail));
    }
    doubts
}

#[cfg(test)]
mod tests {
    use super::*;
    use nm_model::result::PercentileValue;
    use nm_sys::clock::CounterError;

    #[test]
    fn clock_is_doubted_by_its_measured_quality() {
        let p50 = PercentileValue {
            percentile: 50.0,
            value_ns: Some(400.0),
            low_ns: None,
            high_ns: None,
        };
        let round = LatencyRound { percentiles: vec![p50], ..LatencyRound::default() };
        let clock = ClockInfo {
            source: "tsc",
            counter_hz: Some(2e9),
            pair_cost_ns: 25.0,
            calibration_error_ppm: Some(11.0),
            kernel_source: Some("hpet".into()),
            counter_error: Some(CounterError::OtherKernelSource("hpet".into())),
        };
        let kinds: Vec<DoubtKind> =
            clock_doubts(&clock, Some(&round)).into_iter().map(|doubt| doubt.kind).collect();
        assert_eq!(kinds, [DoubtKind::ClockFallback, DoubtKind::ClockDrift, DoubtKind::ClockCost]);
        let good = ClockInfo {
            pair_cost_ns: 19.0,
            calibration_error_ppm: None,
            counter_error: None,
            ..clock
        };
        assert_eq!(clock_doubts(&good, Some(&round)), []);
    }
}
