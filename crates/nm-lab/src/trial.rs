//! One trial: every case of a probe between two agents, and what both ends tell of a case put
//! together to rounds of series.

mod accelerated;
mod merge;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nm_model::agent::{Task, TaskReport, Work};
use nm_model::probe::{SIZE_BYTES_MAX, UDP_SIZE_BYTES_MAX, XDP_SIZE_BYTES_MAX};
use nm_model::result::{Round, Statistic};
use nm_model::setting::{NanosecondRange, SettingKind, SettingValue, Settings};
use nm_model::stack::{Comparability, Protocol};
use nm_model::{
    Case, Failure, FailureKind, Pattern, ProbeKind, ProbeSpec, SeriesKey, Side, Stack, StackPair,
};
use nm_ring::cache_line::half_round_trip_ns;
use nm_sys::clock::{Deadline, Moment};

pub(crate) use accelerated::KERNEL_SHARE_MAX;
use accelerated::Watch;
pub(crate) use merge::bypass;

use crate::affinity::{Affinity, one_kernel};
use crate::agent::{Event, Handle};
use crate::pair::Pair;
use crate::resolve::distance_unavailable_reason;

/// How long one look at an agent waits, so that the cancel flag is seen soon.
const LOOK: Duration = Duration::from_millis(100);

/// How long the server may take to end after the client has.
const SERVER_PATIENCE: Duration = Duration::from_secs(5);

/// What all trials of a run have in common.
#[derive(Debug, Clone)]
pub struct Options {
    /// CPUs of the hot threads; chosen if absent.
    pub affinity: Option<Affinity>,
    /// Seed of everything random.
    pub seed: u64,
    /// Whether all samples are wanted beside the histogram.
    pub raw_samples: bool,
    /// When the run began.
    pub started: Moment,
}

impl Options {
    /// The defaults, for a run that begins now.
    pub fn new(seed: u64) -> Options {
        Options { affinity: None, seed, raw_samples: false, started: Moment::now() }
    }
}

/// A current estimate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// The case that runs.
    pub case: Case,
    /// Its number, counted from 0.
    pub index: usize,
    /// How many cases the trial has.
    pub cases: usize,
    /// What the value is.
    pub statistic: Statistic,
    /// ns, or Gb/s for throughput.
    pub value: f64,
}

/// One round of one series.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// What it is of.
    pub key: SeriesKey,
    /// What must agree for a like-for-like comparison.
    pub comparability: Comparability,
    /// Settings that explain the figure.
    pub settings: Settings,
    /// The figures.
    pub round: Round,
    /// All samples in ns (saturated), where they were asked for.
    pub samples: Option<Vec<u32>>,
}

/// What came of a trial.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The rounds, case by case.
    pub measured: Vec<Measured>,
    /// Cases that cannot be, with the reason as a clause.
    pub skipped: Vec<(Case, String)>,
}

/// A trial that did not come to its end, with what was measured before.
#[derive(Debug)]
pub struct Interrupted {
    /// Cases that were completed.
    pub completed: Outcome,
    /// The case that did not come to its end; absent if none was begun.
    pub case: Option<Case>,
    /// Why it ended.
    pub failure: Failure,
}

/// Runs every case of `probe` over `stacks` between the agents of `pair`.
///
/// Between two looks of at most 100 ms `cancel` is heeded: both ends are told, and the failure is
/// of kind cancelled. After any failure the agents that still live are ready for the next trial.
///
/// # Errors
/// The first failure, with the cases completed before it.
pub fn run(
    pair: &mut Pair,
    stacks: &StackPair,
    probe: &ProbeSpec,
    round: u32,
    options: &Options,
    progress: &mut dyn FnMut(Progress),
    cancel: &AtomicBool,
) -> Result<Outcome, Box<Interrupted>> {
    let mut outcome = Outcome::default();
    let one_kernel = one_kernel(&pair.client_facts, &pair.server_facts);
    if let Some(reason) = distance_unavailable_reason(stacks, one_kernel) {
        let failure = Failure::new(FailureKind::NotAvailable, reason.to_string());
        return Err(Box::new(Interrupted { completed: outcome, case: None, failure }));
    }
    let cases = probe.cases();
    for (index, &case) in cases.iter().enumerate() {
        if let Some(reason) =
            stacks.protocols().into_iter().find_map(|protocol| case_obstacle(protocol, &case))
        {
            outcome.skipped.push((case, reason));
            continue;
        }
        let mut show = |statistic, value| {
            progress(Progress { case, index, cases: cases.len(), statistic, value });
        };
        match run_case(pair, stacks, probe, case, round, options, &mut show, cancel) {
            Ok(measured) => outcome.measured.extend(measured),
            Err(failure) => {
                let case = Some(case);
                return Err(Box::new(Interrupted { completed: outcome, case, failure }));
            }
        }
    }
    Ok(outcome)
}

/// Why a case cannot be, if so.
fn case_obstacle(protocol: Protocol, case: &Case) -> Option<String> {
    if let (Protocol::XdpTcp, Case::Flows { pattern, .. }) = (protocol, case)
        && pattern.flows > 1
    {
        return Some("xdp-tcp carries one flow: a link's queue has one endpoint".to_string());
    }
    let largest = match protocol {
        Protocol::Udp | Protocol::Multicast => UDP_SIZE_BYTES_MAX,
        Protocol::Xdp => XDP_SIZE_BYTES_MAX,
        _ => SIZE_BYTES_MAX,
    };
    let size = match case {
        Case::Message { size_bytes } => *size_bytes,
        Case::Request { size, .. } => size.request_bytes.max(size.response_bytes),
        Case::Flows { .. } | Case::Whole => return None,
    };
    (size > largest).then(|| format!("messages over {protocol} have at most {largest} bytes"))
}

/// The work of one case.
fn work(probe: &ProbeSpec, case: Case) -> Result<Work, Failure> {
    match (probe, case) {
        (ProbeSpec::Pingpong(spec), Case::Message { size_bytes }) => {
            Ok(Work::Pingpong { size_bytes, spec: spec.clone() })
        }
        (ProbeSpec::Stream(spec), Case::Flows { pattern, .. }) => {
            Ok(Work::Stream { pattern, spec: spec.clone() })
        }
        (ProbeSpec::Rr(spec), Case::Request { size, rate_per_s }) => Ok(Work::Rr {
            size,
            rate_per_s,
            seconds: spec.seconds,
            warmup_ms: spec.warmup_ms,
            deadline_ms: spec.deadline_ms,
        }),
        _ => Err(Failure::new(
            FailureKind::NotAvailable,
            format!("the probe {} has no case `{case}` in this version", probe.kind()),
        )),
    }
}

/// What one case was measured with.
struct Conditions<'a> {
    pair: &'a Pair,
    stacks: &'a StackPair,
    probe: ProbeKind,
    case: Case,
    round: u32,
    started_s: f64,
}

/// What one end told: its report and its samples.
#[derive(Default)]
struct Told {
    report: TaskReport,
    samples: Vec<(Statistic, Vec<u32>)>,
}

#[expect(clippy::too_many_arguments, reason = "one private call that hands all of `run`'s on")]
fn run_case(
    pair: &mut Pair,
    stacks: &StackPair,
    probe: &ProbeSpec,
    case: Case,
    round: u32,
    options: &Options,
    show: &mut dyn FnMut(Statistic, f64),
    cancel: &AtomicBool,
) -> Result<Vec<Measured>, Failure> {
    let work = work(probe, case)?;
    let threads = match case {
        Case::Flows { pattern, .. } => pattern.flows.min(Pattern::MAX_FLOWS) as usize,
        _ => 1,
    };
    let affinity = match &options.affinity {
        Some(affinity) => affinity.clone(),
        None => Affinity::choose(&pair.client_facts, &pair.server_facts, threads),
    };
    affinity.check(&pair.client_facts, &pair.server_facts)?;
    let task = |stack: Stack, cpus: &[u32]| Task {
        stack,
        cpus: cpus.to_vec(),
        work: work.clone(),
        // Each round has random numbers of its own, the same whenever the run is repeated.
        seed: options.seed.wrapping_add(u64::from(round)),
        raw_samples: options.raw_samples,
    };
    let client = task(stacks.client, &affinity.client);
    let server = task(stacks.server, &affinity.server);

    let watch = Watch::begin(pair, stacks);
    let started_s = options.started.elapsed().as_secs_f64();
    let told = prepare(pair, &client, &server).and_then(|()| {
        let limit = Duration::from_secs_f64(probe.duration_s() * 2.0 + 60.0);
        drive(pair, limit, show, cancel)
    });
    let (mut client_told, server_told) = match told {
        Ok(told) => told,
        Err(failure) => return Err(after_failure(pair, failure)),
    };
    if let Some(watch) = watch {
        let found = watch.end(pair)?;
        client_told.report.settings.extend(found.settings);
        client_told.report.doubts.extend(found.doubts);
        if !matches!(case, Case::Flows { .. }) {
            let limit = cache_line_limit(&client_told.report, &server_told.report);
            client_told.report.settings.extend(limit);
        }
    }
    let conditions = Conditions { pair, stacks, probe: probe.kind(), case, round, started_s };
    Ok(merge::rounds(&conditions, client_told, server_told))
}

/// The setting that shared memory has beside its figures, where both ends' threads were pinned:
/// half of a round trip of one cache line between their CPUs, which both agents have just left.
fn cache_line_limit(
    client: &TaskReport,
    server: &TaskReport,
) -> Option<(SettingKind, SettingValue)> {
    let cpu = |report: &TaskReport| report.placements.first()?.pinned_cpu;
    let limit_ns = half_round_trip_ns((cpu(client)?, cpu(server)?)).ok()?;
    let limit = NanosecondRange::of(limit_ns);
    Some((SettingKind::CacheLineLimit, SettingValue::Nanoseconds(limit)))
}

/// Has both ends listen and connect. Both are asked to connect before either is waited for, because
/// one may wait for the other.
fn prepare(pair: &mut Pair, client: &Task, server: &Task) -> Result<(), Failure> {
    let at = [pair.client_address.to_string(), pair.server_address.to_string()];
    let for_client = pair.server.listen(Side::Server, server, &at[1])?;
    let for_server = pair.client.listen(Side::Client, client, &at[0])?;
    pair.server.start_connecting(Side::Server, server, &for_server)?;
    pair.client.start_connecting(Side::Client, client, &for_client)?;
    pair.client.wait_connected()?;
    pair.server.wait_connected()
}

/// Runs the prepared task at both ends until both are done.
fn drive(
    pair: &mut Pair,
    limit: Duration,
    show: &mut dyn FnMut(Statistic, f64),
    cancel: &AtomicBool,
) -> Result<(Told, Told), Failure> {
    pair.server.run()?;
    pair.client.run()?;
    let mut deadline = Deadline::after(limit);
    let (mut client, mut server) = (Told::default(), Told::default());
    let (mut client_done, mut server_done) = (false, false);
    let mut told_to_end = false;
    while !(client_done && server_done) {
        if cancel.load(Ordering::Relaxed) {
            return Err(Failure::new(FailureKind::Cancelled, "cancelled"));
        }
        if !client_done {
            client_done = look(&mut pair.client, LOOK, &mut client, show)?;
            if client_done {
                deadline = Deadline::after(SERVER_PATIENCE);
            }
        }
        if !server_done {
            let wait = if client_done { LOOK } else { Duration::ZERO };
            server_done = look(&mut pair.server, wait, &mut server, &mut |_, _| {})?;
        }
        if deadline.passed() && !(client_done && server_done) {
            if !client_done || told_to_end {
                let late = if client_done { &pair.server } else { &pair.client };
                let message = format!("{} did not come to the end of its task", late.name());
                return Err(Failure::new(FailureKind::Peer, message));
            }
            // The server has not noticed that its peer has gone.
            pair.server.cancel()?;
            told_to_end = true;
            deadline = Deadline::after(SERVER_PATIENCE);
        }
    }
    Ok((client, server))
}

/// Takes in what an agent has to tell, waiting for the first of it at most. Whether it is done.
fn look(
    agent: &mut Handle,
    wait: Duration,
    told: &mut Told,
    show: &mut dyn FnMut(Statistic, f64),
) -> Result<bool, Failure> {
    let mut wait = wait;
    while let Some(event) = agent.event(wait)? {
        wait = Duration::ZERO;
        match event {
            Event::Progress(statistic, value) => show(statistic, value),
            Event::Samples(statistic, more) => {
                match told.samples.iter_mut().find(|(known, _)| *known == statistic) {
                    Some((_, samples)) => samples.extend(more),
                    None => told.samples.push((statistic, more)),
                }
            }
            Event::Done(report) => {
                told.report = *report;
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Makes both agents ready for the next task, and finds the failure that tells most: where one end
/// has died, the other only says that its peer has gone.
fn after_failure(pair: &mut Pair, failure: Failure) -> Failure {
    let mut of_death = None;
    for agent in [&mut pair.server, &mut pair.client] {
        // What is prepared but not running is let go without an answer.
        let settled = agent.cancel_and_wait().and_then(|()| agent.cancel());
        if let Err(other) = settled
            && agent.is_disconnected()
        {
            of_death = Some(other);
        }
    }
    match (failure.kind, of_death) {
        (FailureKind::Peer, Some(of_death)) => of_death,
        _ => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nm_model::probe::{PingpongSpec, RrSize};

    #[test]
    fn a_case_that_cannot_be_has_a_reason() {
        let large = Case::Message { size_bytes: 65536 };
        assert_eq!(case_obstacle(Protocol::Tcp, &large), None);
        assert_eq!(
            case_obstacle(Protocol::Udp, &large).as_deref(),
            Some("messages over udp have at most 32768 bytes")
        );
        assert_eq!(
            case_obstacle(Protocol::Xdp, &Case::Message { size_bytes: 2048 }).as_deref(),
            Some("messages over xdp have at most 1472 bytes")
        );
        let flows =
            |pattern: &str| Case::Flows { pattern: pattern.parse().unwrap(), write_bytes: 1 << 17 };
        assert_eq!(case_obstacle(Protocol::XdpTcp, &flows("1-uni-1")), None);
        assert!(case_obstacle(Protocol::XdpTcp, &flows("2-bi-2")).is_some());
        assert_eq!(case_obstacle(Protocol::XdpTcp, &large), None);
        let size = RrSize { request_bytes: 1, response_bytes: 40_000 };
        let request = Case::Request { size, rate_per_s: None };
        assert!(case_obstacle(Protocol::Multicast, &request).is_some());
    }

    #[test]
    fn a_case_of_another_probe_is_refused() {
        let probe = ProbeSpec::Pingpong(PingpongSpec::default());
        assert!(work(&probe, Case::Message { size_bytes: 1 }).is_ok());
        assert_eq!(work(&probe, Case::Whole).unwrap_err().kind, FailureKind::NotAvailable);
        assert!(work(&ProbeSpec::Jitter, Case::Whole).is_err());
    }
}
