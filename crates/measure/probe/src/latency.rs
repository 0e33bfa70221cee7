//! Ping-pong and request-response: the samples of a loop become the report of an end.

use nm_model::Mode;
use nm_model::agent::TaskReport;
use nm_model::doubt::{Doubt, DoubtKind};
use nm_model::metric::Metric;
use nm_model::probe::{PingpongWork, RrWork};
use nm_model::result::{LatencyRound, Statistic};
use nm_model::setting::{NanosecondRange, SettingKind, SettingValue};
use nm_ring::cache_line;
use nm_stats::summary::{Sample, summarise};
use nm_sys::clock::{Clock, ClockInfo};
use nm_sys::cpu;
use nm_transport::Transport;

use crate::closed::{ClosedLoopClient, ClosedLoopPlan, ClosedLoopSamples, Pause};
use crate::control::Control;
use crate::error::ProbeError;
use crate::open::{self, OpenLoopPlan, OpenLoopSamples, RequestLatency};
use crate::pinned_thread::PinnedThread;
use crate::serve;

/// Difference of the clock's two calibrations above which it is doubted, ppm.
const CALIBRATION_PPM_MAX: f64 = 10.0;

/// Share of the median that a pair of timestamps may cost before it is doubted.
const PAIR_COST_SHARE_MAX: f64 = 0.05;

/// Parameters of a latency probe.
#[derive(Debug, Clone, PartialEq)]
pub enum LatencyPlan {
    /// One request in flight at a time.
    Closed {
        /// Parameters of the loop.
        plan: ClosedLoopPlan,
        /// Percentiles to report besides the usual ones.
        percentiles: Vec<f64>,
    },
    /// Requests on a schedule.
    Open(OpenLoopPlan),
}

impl LatencyPlan {
    /// Ping-pong of one size. A client that does not sleep for an answer does not sleep in the
    /// pauses either.
    pub fn pingpong(work: &PingpongWork, mode: Mode) -> LatencyPlan {
        let pause = match work.think_time_us {
            0 => Pause::None,
            us if mode.spins() => Pause::Spin(us),
            us => Pause::Sleep(us),
        };
        let plan = ClosedLoopPlan {
            request_bytes: work.size_bytes as usize,
            response_bytes: work.size_bytes as usize,
            warmup_ms: work.warmup_ms,
            samples_min: work.min_iterations,
            samples_max: work.max_iterations,
            time_ms: work.max_ms,
            timeout_ms: work.timeout_ms,
            pause,
            statistic: Statistic::HalfRoundTrip,
        };
        LatencyPlan::Closed { plan, percentiles: work.percentiles.clone() }
    }

    /// Request-response: open loop at a rate, or closed loop.
    pub fn request_response(work: &RrWork) -> LatencyPlan {
        let RrWork { size, rate_per_s, seconds, warmup_ms, deadline_ms } = *work;
        let (request_bytes, response_bytes) =
            (size.request_bytes as usize, size.response_bytes as usize);
        match rate_per_s {
            Some(rate_per_s) => LatencyPlan::Open(OpenLoopPlan {
                request_bytes,
                response_bytes,
                rate_per_s,
                seconds,
                warmup_ms,
                deadline_ms,
            }),
            None => {
                let plan = ClosedLoopPlan {
                    request_bytes,
                    response_bytes,
                    warmup_ms,
                    samples_min: 0,
                    samples_max: u64::MAX,
                    time_ms: (seconds * 1e3).ceil() as u64,
                    timeout_ms: deadline_ms,
                    pause: Pause::None,
                    statistic: Statistic::RoundTrip,
                };
                LatencyPlan::Closed { plan, percentiles: vec![] }
            }
        }
    }

    /// Bytes of a request and of a response.
    pub fn message_lengths(&self) -> [usize; 2] {
        match self {
            LatencyPlan::Closed { plan, .. } => [plan.request_bytes, plan.response_bytes],
            LatencyPlan::Open(plan) => [plan.request_bytes, plan.response_bytes],
        }
    }
}

/// Measures: the client's end.
///
/// # Errors
/// Those of [`ClosedLoopClient::measure`] and [`open::run`].
pub fn client<T: Transport>(
    transport: &mut T,
    plan: &LatencyPlan,
    thread: &PinnedThread,
    raw_samples: bool,
    control: &Control,
) -> Result<TaskReport, ProbeError> {
    let clock = Clock::system();
    let mut report = match plan {
        LatencyPlan::Closed { plan, percentiles } => {
            if let Pause::Sleep(_) = plan.pause {
                cpu::minimize_timer_slack();
            }
            let mut samples = ClosedLoopSamples::new(plan)?;
            let mut client = ClosedLoopClient::new(transport, clock, *plan, control);
            client.warm_up()?;
            let watch = thread.watch();
            client.measure(&mut samples)?;
            let (placement, doubts) = watch.finish();
            let mut report = closed_report(&samples, plan.statistic, percentiles, clock);
            report.placements.push(placement);
            report.doubts.extend(doubts);
            let latencies_ns = closed_latencies_ns(&samples, plan.statistic, clock);
            store_samples(control, raw_samples, plan.statistic, latencies_ns);
            report
        }
        LatencyPlan::Open(plan) => {
            cpu::minimize_timer_slack();
            let watch = thread.watch();
            let samples = open::run(transport, clock, plan, control)?;
            let (placement, doubts) = watch.finish();
            let mut report = open_report(&samples);
            report.placements.push(placement);
            report.doubts.extend(doubts);
            let latencies = || samples.latencies();
            let from_due = latencies().map(|latency| latency.from_due_ns).collect();
            store_samples(control, raw_samples, Statistic::RoundTripFromIntended, from_due);
            let service = latencies().map(|latency| latency.service_ns).collect();
            store_samples(control, raw_samples, Statistic::RoundTrip, service);
            report
        }
    };
    transport.end_sending(&plan.message_lengths());
    report.settings = transport.settings();
    report.doubts.extend(transport.doubts());
    if let Some(ns) = cache_line_limit_ns(transport) {
        let limit = SettingValue::Nanoseconds(NanosecondRange::of(ns));
        report.settings.set(SettingKind::CacheLineLimit, limit);
    }
    let rounds: Vec<&LatencyRound> = report.latencies.iter().map(|(_, round)| round).collect();
    let mut doubts: Vec<Doubt> = rounds.first().and_then(|round| loss(round)).into_iter().collect();
    doubts.extend(clock_doubts(Clock::info(), rounds.last().copied()));
    report.doubts.extend(doubts);
    Ok(report)
}

/// Half of a round trip of one cache line between this thread's CPU and the peer's, where the
/// transport uses memory that both share. Measured right after the samples and before the
/// connection is closed, because on a virtual machine it changes within minutes; the peer has
/// already received the end, so its CPU is free. None if both run on one CPU or it is too busy.
fn cache_line_limit_ns<T: Transport>(transport: &T) -> Option<f64> {
    let peer = transport.peer_cpu()?;
    cache_line::half_round_trip_ns((cpu::current(), peer)).ok()
}

/// Responds: the server's end.
///
/// # Errors
/// Those of [`serve::serve`].
pub fn server<T: Transport>(
    transport: &mut T,
    plan: &LatencyPlan,
    thread: &PinnedThread,
    control: &Control,
) -> Result<TaskReport, ProbeError> {
    let [request_bytes, response_bytes] = plan.message_lengths();
    let watch = thread.watch();
    serve::serve(transport, request_bytes, response_bytes, control)?;
    let (placement, mut doubts) = watch.finish();
    doubts.extend(transport.doubts());
    let settings = transport.settings();
    Ok(TaskReport { placements: vec![placement], doubts, settings, ..TaskReport::default() })
}

fn closed_report(
    measured: &ClosedLoopSamples,
    statistic: Statistic,
    percentiles: &[f64],
    clock: Clock,
) -> TaskReport {
    let latencies_ns = closed_latencies_ns(measured, statistic, clock);
    let round_trips = measured.round_trips.as_slice();
    let first = round_trips.first().map_or(0, |sample| sample.start);
    let starts_ns = round_trips.iter().map(|sample| clock.ns(sample.start - first));
    let samples: Vec<Sample> = starts_ns
        .zip(latencies_ns)
        .map(|(start_ns, latency_ns)| Sample { start_ns, latency_ns })
        .collect();
    let mut round = summarise(&samples, measured.lost, percentiles);
    let seconds = clock.ns(measured.duration) as f64 / 1e9;
    round.rate_per_s = (seconds > 0.0).then(|| samples.len() as f64 / seconds);
    let mut doubts = vec![];
    if statistic != Statistic::HalfRoundTrip {
        let detail = "a stall counts once, not once for each request that was due";
        doubts.push(Doubt::new(DoubtKind::ClosedLoop, detail));
    }
    doubts.extend(memory_doubt(measured.round_trips.is_locked()));
    TaskReport { latencies: vec![(statistic, round)], doubts, ..TaskReport::default() }
}

fn closed_latencies_ns(
    measured: &ClosedLoopSamples,
    statistic: Statistic,
    clock: Clock,
) -> Vec<u64> {
    let divisor = if statistic == Statistic::HalfRoundTrip { 2 } else { 1 };
    let round_trips = measured.round_trips.as_slice().iter();
    round_trips.map(|sample| clock.ns(sample.duration) / divisor).collect()
}

fn open_report(measured: &OpenLoopSamples) -> TaskReport {
    let lost = measured.lost();
    let seconds = measured.seconds();
    let round = |latency_ns: fn(&RequestLatency) -> u64| {
        let samples: Vec<Sample> = measured
            .latencies()
            .map(|latency| Sample { start_ns: latency.due_ns, latency_ns: latency_ns(&latency) })
            .collect();
        let mut round = summarise(&samples, lost, &[]);
        round.rate_per_s = (seconds > 0.0).then(|| samples.len() as f64 / seconds);
        round
    };
    let latencies = vec![
        (Statistic::RoundTripFromIntended, round(|latency| latency.from_due_ns)),
        (Statistic::RoundTrip, round(|latency| latency.service_ns)),
    ];
    let mut doubts: Vec<Doubt> = measured.lateness_doubt().into_iter().collect();
    doubts.extend(memory_doubt(measured.requests.is_locked()));
    TaskReport { latencies, doubts, ..TaskReport::default() }
}

pub(crate) fn store_samples(
    control: &Control,
    wanted: bool,
    statistic: Statistic,
    latencies_ns: Vec<u64>,
) {
    if wanted {
        let saturated = latencies_ns.into_iter().map(|ns| u32::try_from(ns).unwrap_or(u32::MAX));
        control.store_samples(statistic, saturated.collect());
    }
}

pub(crate) fn memory_doubt(locked: bool) -> Option<Doubt> {
    let detail = "the sample memory is allocated but not locked";
    (!locked).then(|| Doubt::new(DoubtKind::MemoryNotLocked, detail))
}

fn loss(round: &LatencyRound) -> Option<Doubt> {
    let sent = round.count.unwrap_or(0) + round.lost;
    (round.lost > 0).then(|| {
        let detail = format!("{} of {sent} messages had no response in time", round.lost);
        Doubt::new(DoubtKind::Loss, detail)
    })
}

/// Doubts of the clock, with the cost of its timestamps compared to the median of `round`.
pub(crate) fn clock_doubts(clock: &ClockInfo, round: Option<&LatencyRound>) -> Vec<Doubt> {
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
        let detail =
            format!("a pair of timestamps costs {cost_ns:.0} ns of a median of {median_ns:.0} ns");
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
