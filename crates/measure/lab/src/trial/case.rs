//! One case of a trial: prepares both agents, runs the task, and reads both reports.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nm_model::agent::{Task, TaskReport, Token};
use nm_model::limits::SAMPLES_MAX;
use nm_model::result::Statistic;
use nm_model::setting::{NanosecondRange, SettingKind, SettingValue};
use nm_model::{Case, Failure, FailureKind, Pattern, ProbeSpec, Side, Stack, StackPair};
use nm_ring::cache_line::half_round_trip_ns;
use nm_sys::clock::Deadline;

use crate::affinity::Affinity;
use crate::agent::{Event, Handle};
use crate::pair::Pair;
use crate::trial::accelerated::AccelerationCheck;
use crate::trial::merge;
use crate::trial::types::{Conditions, EndReport, Measured, Options};

/// How long one wait for an agent lasts, so that the cancel flag is noticed soon.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Time in which any machine does one job of the compute probe, s; most need a second or two.
const JOB_S_MAX: f64 = 60.0;

/// How long the server may take to end after the client has ended.
const SERVER_END_TIMEOUT: Duration = Duration::from_secs(5);

/// What to measure in a case.
pub struct CaseRun<'a> {
    /// Those of the row.
    pub stacks: &'a StackPair,
    /// Those that the ends use for it.
    pub in_use: &'a StackPair,
    pub probe: &'a ProbeSpec,
    pub case: Case,
    pub round: u32,
    pub options: &'a Options,
    pub cancel: &'a AtomicBool,
}

/// Measures one case: flows between the pair and all those beside it, everything else between the
/// pair.
///
/// # Errors
/// The first failure of any end. All agents are then ready for the next task, if they still run.
pub fn run(
    pair: &mut Pair,
    run: &CaseRun<'_>,
    show: &mut dyn FnMut(Statistic, f64),
) -> Result<Vec<Measured>, Failure> {
    let mut beside = match pair.count_for(&run.case) {
        1 => vec![],
        _ => pair.take_beside(),
    };
    let check = AccelerationCheck::begin(pair, run.stacks);
    let started_s = run.options.started.elapsed().as_secs_f64();
    let mut all: Vec<&mut Pair> = std::iter::once(&mut *pair).chain(&mut beside).collect();
    let reports = run_all(&mut all, run, show);
    let pairs = all.len() as u32;
    if !beside.is_empty() {
        *pair.beside() = beside;
    }
    let (mut client, server) = merge::joined(reports?);
    if let Some(check) = check {
        let found = check.end(pair)?;
        client.report.settings.extend(found.settings);
        client.report.doubts.extend(found.doubts);
        if !matches!(run.case, Case::Flows { .. }) {
            let limit = cache_line_limit(&client.report, &server.report);
            client.report.settings.extend(limit);
        }
    }
    let CaseRun { stacks, in_use, probe, case, round, .. } = *run;
    let probe = probe.kind();
    let conditions = Conditions { pair, pairs, stacks, in_use, probe, case, round, started_s };
    Ok(merge::rounds(&conditions, client, server))
}

/// The part of a case for one of `pairs` pairs.
///
/// # Errors
/// Why it cannot be divided, as a clause.
pub fn share(case: &Case, pairs: u32) -> Result<Case, String> {
    let Case::Flows { pattern, write_bytes } = *case else { return Ok(*case) };
    let flows = pattern.flows / pairs;
    let unit = if pattern.bidirectional { 2 * pairs } else { pairs };
    if !pattern.flows.is_multiple_of(unit) {
        let kind = if pattern.bidirectional { "pairs of flows" } else { "flows" };
        return Err(format!("its {kind} cannot be divided evenly among {pairs} pairs of guests"));
    }
    Ok(Case::Flows { pattern: Pattern { flows, ..pattern }, write_bytes })
}

/// Prepares and runs the case between all `pairs` at the same time; the reports of each.
fn run_all(
    pairs: &mut [&mut Pair],
    run: &CaseRun<'_>,
    show: &mut dyn FnMut(Statistic, f64),
) -> Result<Vec<(EndReport, EndReport)>, Failure> {
    let part = share(&run.case, pairs.len() as u32);
    let part = part.map_err(|reason| Failure::new(FailureKind::NotAvailable, reason))?;
    let tasks = pairs.iter().map(|pair| tasks(pair, run, part)).collect::<Result<Vec<_>, _>>()?;
    let measured = pairs
        .iter_mut()
        .zip(&tasks)
        .try_for_each(|(pair, (client, server))| prepare(pair, client, server))
        .and_then(|()| run_tasks(pairs, run, show));
    measured
        .map_err(|failure| pairs.iter_mut().fold(failure, |failure, pair| recover(pair, failure)))
}

/// How long a case may take. The threads that share a core take turns, so the jobs of a core's
/// threads add up; a layout may have as many of them as there are cores.
fn time_limit(run: &CaseRun<'_>, cpus: u32) -> Duration {
    let jobs_s = match (run.probe, run.case) {
        (ProbeSpec::Compute(spec), Case::Layout { layout, .. }) => {
            let in_turn = layout.threads_per_core.on(cpus);
            f64::from(in_turn) * f64::from(spec.repeats) * JOB_S_MAX
        }
        _ => 0.0,
    };
    Duration::from_secs_f64(run.probe.duration_s() * 2.0 + 60.0 + jobs_s)
}

/// The tasks of client and server for their part of the case.
fn tasks(pair: &Pair, run: &CaseRun<'_>, part: Case) -> Result<(Task, Task), Failure> {
    let work = run.probe.work(part).ok_or_else(|| {
        let what = format!("the probe {} has no case `{part}` in this version", run.probe.kind());
        Failure::new(FailureKind::NotAvailable, what)
    })?;
    let threads = match part {
        Case::Flows { pattern, .. } => pattern.flows.min(Pattern::MAX_FLOWS) as usize,
        _ => 1,
    };
    let affinity = match &run.options.affinity {
        Some(affinity) => affinity.clone(),
        None => Affinity::choose(&pair.client_facts, &pair.server_facts, threads),
    };
    affinity.check(&pair.client_facts, &pair.server_facts)?;
    let token = nm_sys::random::bytes().map(Token).map_err(|error| {
        Failure::new(FailureKind::System, format!("the system gives no random bytes: {error}"))
    })?;
    let task = |stack: Stack, cpus: &[u32]| Task {
        stack,
        cpus: cpus.to_vec(),
        work: work.clone(),
        // Each round has its own random numbers, which are the same when the run is repeated.
        seed: run.options.seed.wrapping_add(u64::from(run.round)),
        raw_samples: run.options.raw_samples,
        token,
    };
    let client = task(run.in_use.client, &affinity.client);
    Ok((client, task(run.in_use.server, &affinity.server)))
}

/// The limit of shared memory, if the threads of both ends were pinned: half of a round trip of one
/// cache line between their CPUs. Both CPUs are idle now, because the agents have ended their
/// tasks.
fn cache_line_limit(
    client: &TaskReport,
    server: &TaskReport,
) -> Option<(SettingKind, SettingValue)> {
    let cpu = |report: &TaskReport| report.placements.first()?.pinned_cpu;
    let limit_ns = half_round_trip_ns((cpu(client)?, cpu(server)?)).ok()?;
    let limit = NanosecondRange::of(limit_ns);
    Some((SettingKind::CacheLineLimit, SettingValue::Nanoseconds(limit)))
}

/// Makes both ends listen and connect. Both start connecting before this waits for either, because
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

/// Runs the prepared tasks of all pairs until all have ended.
fn run_tasks(
    pairs: &mut [&mut Pair],
    run: &CaseRun<'_>,
    show: &mut dyn FnMut(Statistic, f64),
) -> Result<Vec<(EndReport, EndReport)>, Failure> {
    for pair in &mut *pairs {
        pair.server.run()?;
    }
    for pair in &mut *pairs {
        pair.client.run()?;
    }
    let limit = time_limit(run, pairs[0].client_facts.cpu.online);
    let mut running: Vec<RunningTask> =
        pairs.iter().map(|pair| RunningTask::new(pair.client.limit(limit))).collect();
    // The estimate of one pair would say nothing about the sum.
    let shows_estimate = pairs.len() == 1;
    let mut show = |statistic, value| {
        if shows_estimate {
            show(statistic, value);
        }
    };
    let wait = POLL_INTERVAL / pairs.len() as u32;
    while running.iter().any(|task| !task.has_ended()) {
        if run.cancel.load(Ordering::Relaxed) {
            return Err(Failure::new(FailureKind::Cancelled, "cancelled"));
        }
        for (task, pair) in running.iter_mut().zip(&mut *pairs).filter(|one| !one.0.has_ended()) {
            task.step(pair, wait, &mut show)?;
        }
    }
    Ok(running.into_iter().map(|task| (task.client, task.server)).collect())
}

/// The task of a pair while it runs.
struct RunningTask {
    client: EndReport,
    server: EndReport,
    client_done: bool,
    server_done: bool,
    deadline: Deadline,
    /// The request to end was sent to the server.
    is_cancelled: bool,
}

impl RunningTask {
    fn new(limit: Duration) -> RunningTask {
        RunningTask {
            client: EndReport::default(),
            server: EndReport::default(),
            client_done: false,
            server_done: false,
            deadline: Deadline::after(limit),
            is_cancelled: false,
        }
    }

    fn has_ended(&self) -> bool {
        self.client_done && self.server_done
    }

    /// Reads what the agents have sent; waits for at most `wait` at each.
    fn step(
        &mut self,
        pair: &mut Pair,
        wait: Duration,
        show: &mut dyn FnMut(Statistic, f64),
    ) -> Result<(), Failure> {
        if !self.client_done {
            self.client_done = read_events(&mut pair.client, wait, &mut self.client, show)?;
            if self.client_done {
                self.deadline = Deadline::after(pair.server.limit(SERVER_END_TIMEOUT));
            }
        }
        if !self.server_done {
            let wait = if self.client_done { wait } else { Duration::ZERO };
            let ignored = &mut |_, _| {};
            self.server_done = read_events(&mut pair.server, wait, &mut self.server, ignored)?;
        }
        if !self.deadline.passed() || self.has_ended() {
            return Ok(());
        }
        if !self.client_done || self.is_cancelled {
            let late = if self.client_done { &pair.server } else { &pair.client };
            let message = format!("{} did not end its task", late.name());
            return Err(Failure::new(FailureKind::Peer, message));
        }
        // The server has not noticed that its peer has ended.
        pair.server.cancel()?;
        self.is_cancelled = true;
        self.deadline = Deadline::after(pair.server.limit(SERVER_END_TIMEOUT));
        Ok(())
    }
}

/// Reads the queued events of an agent, waiting for the first one only; returns whether its task
/// has ended.
fn read_events(
    agent: &mut Handle,
    wait: Duration,
    report: &mut EndReport,
    show: &mut dyn FnMut(Statistic, f64),
) -> Result<bool, Failure> {
    let mut wait = wait;
    while let Some(event) = agent.event(wait)? {
        wait = Duration::ZERO;
        match event {
            Event::Progress(statistic, value) => show(statistic, value),
            Event::Samples(statistic, more) => keep_samples(agent, statistic, more, report)?,
            Event::Done(done) => {
                report.report = *done;
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Adds a block of samples, unless the agent sends more than a round can have.
fn keep_samples(
    agent: &Handle,
    statistic: Statistic,
    more: Vec<u32>,
    report: &mut EndReport,
) -> Result<(), Failure> {
    let known = report.samples.iter().position(|(known, _)| *known == statistic);
    let at = known.unwrap_or_else(|| {
        report.samples.push((statistic, vec![]));
        report.samples.len() - 1
    });
    let samples = &mut report.samples[at].1;
    if (samples.len() + more.len()) as u64 > SAMPLES_MAX {
        let message = format!("{} sent more than {SAMPLES_MAX} samples of a round", agent.name());
        return Err(Failure::new(FailureKind::Peer, message));
    }
    samples.extend(more);
    Ok(())
}

/// Makes both agents ready for the next task, and returns the failure with the most information.
fn recover(pair: &mut Pair, failure: Failure) -> Failure {
    let mut death = None;
    for agent in [&mut pair.server, &mut pair.client] {
        // A task that is only prepared is dropped without an answer.
        let is_ready = agent.cancel_and_wait().and_then(|()| agent.cancel());
        if let Err(other) = is_ready
            && agent.is_disconnected()
        {
            death = Some(other);
        }
    }
    cause(failure, death)
}

/// Why a task has failed: if one end has died, the other one only reports what follows from that.
/// Its peer has disconnected, or its address is gone with the peer's namespace and the link.
fn cause(failure: Failure, death: Option<Failure>) -> Failure {
    match (failure.kind, death) {
        (FailureKind::Cancelled, _) | (_, None) => failure,
        (_, Some(death)) => death,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nm_model::{ComputeSpec, Workload};

    #[test]
    fn death_of_an_agent_is_the_cause_of_what_the_other_one_reports() {
        let death = || Failure::new(FailureKind::Peer, "the client agent ended by signal 9");
        for kind in [FailureKind::Peer, FailureKind::BadRequest, FailureKind::System] {
            let reported = || Failure::new(kind, "listening on 10.77.0.2:0");
            assert_eq!(cause(reported(), Some(death())).message, death().message);
            assert_eq!(cause(reported(), None).message, reported().message);
        }
        let cancelled = Failure::new(FailureKind::Cancelled, "cancelled");
        assert_eq!(cause(cancelled, Some(death())).message, "cancelled");
    }

    #[test]
    fn threads_that_share_a_core_have_time_for_all_their_jobs() {
        let probe = ProbeSpec::Compute(ComputeSpec { repeats: 2, ..Default::default() });
        let stacks = StackPair::same(Stack::CPU);
        let limit = |layout: &str| {
            let layout = layout.parse().unwrap();
            let case = Case::Layout { workload: Workload::Pi, layout };
            let (options, cancel) = (Options::new(1), AtomicBool::new(false));
            let (probe, stacks) = (&probe, &stacks);
            let in_use = stacks;
            let run = CaseRun {
                stacks,
                in_use,
                probe,
                case,
                round: 0,
                options: &options,
                cancel: &cancel,
            };
            time_limit(&run, 64)
        };
        assert!(limit("Nx1") >= Duration::from_secs(64 * 2 * 60));
        assert!(limit("1xN") < limit("2xN") && limit("2xN") < limit("Nx1"));
    }

    #[test]
    fn flows_are_divided_evenly_or_not_at_all() {
        let flows =
            |pattern: &str| Case::Flows { pattern: pattern.parse().unwrap(), write_bytes: 1 };
        assert_eq!(share(&flows("8-bi-8"), 4), Ok(flows("2-bi-2")));
        assert_eq!(share(&flows("4-uni-4"), 4), Ok(flows("1-uni-1")));
        assert_eq!(share(&flows("1-uni-1"), 1), Ok(flows("1-uni-1")));
        assert!(share(&flows("4-bi-4"), 4).unwrap_err().contains("among 4 pairs"));
        assert!(share(&flows("1-uni-1"), 2).unwrap_err().contains("evenly"));
        let message = Case::Message { size_bytes: 1 };
        assert_eq!(share(&message, 4), Ok(message));
    }
}
