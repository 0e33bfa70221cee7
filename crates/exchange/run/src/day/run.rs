//! A day from start to end: one network, one load generator, the faults of the script, and an
//! operator.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use nm_exchange::network::{Network, Role};
use nm_load::generator::ProfileEnd;
use nm_load::seconds::RecordedSecond;
use nm_load::{Gateways, Generator, Pace, Settings};
use nm_model::{Failure, FailureKind};
use nm_sys::clock::monotonic_ns;

use super::collect::{Collected, Collector};
use super::event::{DayEvent, EventKind};
use super::judge;
use super::operator::{Operator, OperatorView};
use super::result::{DayResult, PhaseFigures, VERSION};
use super::script::Script;
use super::script_file::ScriptError;
use super::second::SecondFigures;
use super::seconds_file::SecondsFile;
use crate::round::{self, CLIENT_LOG, DRAIN_AFTER_KILLS_S, Setup};
use crate::supervise::{Restart, RestartReason, Supervisor};

/// Interval at which the operator is called.
pub const OPERATOR_INTERVAL: Duration = Duration::from_millis(100);

/// How long the load generator may take to connect.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// How long a load that was stopped waits for what is not delivered yet: an overloaded network has
/// some seconds of it.
const DRAIN_AFTER_STOP_S: f64 = 10.0;

/// Setup of a day.
#[derive(Debug, Clone)]
pub struct DaySetup {
    /// The network, the warm-up, the mix, the seed and the limit; its rate, length, kills and flows
    /// are not used.
    pub base: Setup,
    /// The script.
    pub script: Script,
    /// Seconds that may be outside the limit in phases that do not say it themselves.
    pub outside_max_s: u32,
    /// Name of the network, with its options.
    pub network: String,
    /// File for the seconds, which must not exist.
    pub seconds_file: PathBuf,
}

/// What the thread that collects seconds passes to the one that supervises.
#[derive(Debug, Default)]
struct Live {
    last_second: Option<SecondFigures>,
    ended_phases: Vec<PhaseFigures>,
}

/// Runs a day in the folder of `setup.base`. `progress` is called with each phase at its end.
///
/// No process outlives it, even on an error. If `cancel` is set, the result has what was run so
/// far, and no verdict.
///
/// # Errors
/// If the script does not fit the network, the network cannot be started or kept running, the load
/// generator or the operator fails, or the file of seconds cannot be written.
pub fn run(
    setup: &DaySetup,
    operator: &mut dyn Operator,
    progress: &mut dyn FnMut(&PhaseFigures),
    cancel: &AtomicBool,
) -> Result<DayResult, Failure> {
    let DaySetup { base, script, .. } = setup;
    base.check()?;
    let misfit = |error: ScriptError| Failure::new(FailureKind::BadRequest, error.to_string());
    script.check_values().map_err(misfit)?;
    script.check_network(base.spec.nodes).map_err(misfit)?;
    let file = SecondsFile::create(&setup.seconds_file)
        .map_err(|error| write_failure(&setup.seconds_file, &error))?;
    let mut started = round::start(base)?;
    let collector = Collector::new(script, base.sla, Some(file));
    let mut day = Day {
        setup,
        network: &started.network,
        operator,
        progress,
        events: vec![],
        events_left_out: 0,
        acted_ns: 0,
    };
    let ended = day.drive(&mut started.supervisor, collector, cancel);
    let (operator_events, events_left_out) = (day.events, day.events_left_out);
    let unfinished = operator.unfinished();
    let restarts = started.supervisor.restarts().to_vec();
    let stopped = started.supervisor.stop();
    let is_cancelled = cancel.load(Ordering::Relaxed);
    let (start_ns, collected, end) = ended?;
    let end = match end {
        Ok(end) => Some(end),
        Err(failure) if is_cancelled && failure.kind == FailureKind::Cancelled => None,
        Err(failure) => return Err(failure),
    };
    round::close_folder(base, &stopped)?;
    let mut events = script.events(start_ns);
    events.extend(operator_events);
    events.extend(restarts.iter().map(restart_event));
    let lost = |why: &String| DayEvent::at(monotonic_ns(), EventKind::Restart, why.clone());
    events.extend(stopped.incidents.iter().map(lost));
    // What a day that was ended early did not come to did not happen.
    let end_ns = start_ns + collected.seconds.len() as u64 * 1_000_000_000;
    events.retain(|event| end.is_some() || event.at_ns < end_ns);
    let mut result = result(setup, (events, unfinished), collected, start_ns, end);
    result.events_left_out += events_left_out;
    Ok(result)
}

/// A day while it runs.
struct Day<'a> {
    setup: &'a DaySetup,
    network: &'a Network,
    operator: &'a mut dyn Operator,
    progress: &'a mut dyn FnMut(&PhaseFigures),
    /// Of the operator.
    events: Vec<DayEvent>,
    /// Events of the operator that were not kept.
    events_left_out: u64,
    /// When the operator was last called, ns on the monotonic clock.
    acted_ns: u64,
}

/// Start of the day on the monotonic clock, ns; its seconds; and the end of the load.
type Ended = (u64, Collected, Result<ProfileEnd, Failure>);

impl Day<'_> {
    /// Drives load, faults and operator to their end.
    fn drive(
        &mut self,
        supervisor: &mut Supervisor,
        collector: Collector<'_>,
        cancel: &AtomicBool,
    ) -> Result<Ended, Failure> {
        let setup = self.setup;
        let credentials = self.network.credentials().map_err(|error| round::system(&error))?;
        let addresses: Vec<_> =
            self.network.nodes(Role::Gateway).iter().map(|node| node.address.clone()).collect();
        let (network, known) = (self.network.cluster, Arc::default());
        let gateways = Gateways { network, addresses: &addresses, credentials, known };
        let (started, stop, live) = (AtomicU64::new(0), AtomicBool::new(false), Mutex::default());
        let (sink, seconds) = channel();
        thread::scope(|scope| {
            let load = scope.spawn(|| drive_load(setup, &gateways, sink, &started, &stop));
            let collected = scope.spawn(|| {
                let collected = collect(collector, seconds, &live);
                // Without its file the day is no use.
                stop.fetch_or(collected.is_err(), Ordering::Relaxed);
                collected
            });
            let kills = setup.script.kills();
            let is_done = || load.is_finished();
            let each = |supervisor: &mut Supervisor, start_ns| {
                gateways.known.update(supervisor.network());
                self.step(supervisor, start_ns, &live)
            };
            let supervised = round::supervise(&kills, supervisor, &started, cancel, is_done, each);
            stop.fetch_or(supervised.is_err(), Ordering::Relaxed);
            let end = load.join().unwrap_or_else(|_| Err(panicked("the load generator")));
            let collected =
                collected.join().unwrap_or_else(|_| Err(panicked("collecting seconds")))?;
            self.report(&live);
            // A stopped load fails as well: the error that stopped it takes precedence.
            Ok((started.load(Ordering::Acquire), collected, supervised.and(end)))
        })
    }

    /// Reports phases that have ended, and calls the operator if it is time.
    fn step(
        &mut self,
        supervisor: &mut Supervisor,
        start_ns: u64,
        live: &Mutex<Live>,
    ) -> Result<(), Failure> {
        self.report(live);
        let now_ns = monotonic_ns();
        let is_time = now_ns >= self.acted_ns + OPERATOR_INTERVAL.as_nanos() as u64;
        if start_ns == 0 || now_ns < start_ns || !is_time {
            return Ok(());
        }
        self.acted_ns = now_ns;
        let last_second = lock(live).last_second.clone();
        let (network, last_second) = (self.network, last_second.as_ref());
        let view = OperatorView { supervisor, network, start_ns, now_ns, last_second };
        for event in self.operator.act(view)? {
            if self.events.len() < judge::EVENTS_MAX {
                self.events.push(event);
            } else {
                self.events_left_out += 1;
            }
        }
        Ok(())
    }

    fn report(&mut self, live: &Mutex<Live>) {
        let ended = std::mem::take(&mut lock(live).ended_phases);
        ended.iter().for_each(|phase| (self.progress)(phase));
    }
}

fn panicked(what: &str) -> Failure {
    Failure::new(FailureKind::System, format!("{what} panicked"))
}

fn lock(live: &Mutex<Live>) -> std::sync::MutexGuard<'_, Live> {
    // A thread that panicked left complete values: each is replaced as a whole.
    live.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Collects seconds until the load has ended.
fn collect(
    mut collector: Collector<'_>,
    seconds: Receiver<RecordedSecond>,
    live: &Mutex<Live>,
) -> Result<Collected, Failure> {
    for recorded in seconds {
        let added = collector.add(&recorded);
        let (second, ended) = added.map_err(|error| {
            let message = format!("the seconds of the day cannot be written: {error}");
            Failure::new(FailureKind::System, message)
        })?;
        let mut live = lock(live);
        live.last_second = Some(second);
        live.ended_phases.extend(ended);
    }
    Ok(collector.finish())
}

/// Drives the load: a warm-up that does not count, then the profile of the script.
fn drive_load(
    setup: &DaySetup,
    gateways: &Gateways<'_>,
    sink: Sender<RecordedSecond>,
    started: &AtomicU64,
    stop: &AtomicBool,
) -> Result<ProfileEnd, Failure> {
    let DaySetup { base, script, .. } = setup;
    let first = &script.phases[0];
    let settings = Settings {
        seed: base.seed,
        sessions: script.sessions,
        instruments: script.instruments,
        zipf: first.zipf,
        mix: base.spec.mix,
        is_stamped: false,
        ..Settings::default()
    };
    let log = base.record.then(|| base.folder.join(CLIENT_LOG));
    let log: Option<&Path> = log.as_deref();
    let mut generator = Generator::connect_to(&settings, None, gateways, log, CONNECT_LIMIT)?;
    let warmup_s = base.spec.warmup_ms as f64 / 1e3;
    if warmup_s > 0.0 {
        let pace = Pace {
            rate_per_s: first.rate_per_s,
            arrivals: first.arrivals,
            seconds: warmup_s,
            drain_s: DRAIN_AFTER_KILLS_S,
            stall: None,
        };
        generator.round(&pace, stop)?;
    }
    let end = generator.profile(script.segments(), DRAIN_AFTER_KILLS_S, sink, started, stop);
    // Of a load that was stopped, what is delivered is logged all the same: `verify` takes what is
    // not in the log for lost.
    let limit_s = if end.is_ok() { DRAIN_AFTER_KILLS_S } else { DRAIN_AFTER_STOP_S };
    generator.end(Duration::from_secs_f64(limit_s))?;
    end
}

fn restart_event(restart: &Restart) -> DayEvent {
    let Restart { node, at_ns, ready_ns, reason } = *restart;
    let (kind, what) = match reason {
        RestartReason::Killed => (EventKind::Fault, "was killed"),
        RestartReason::Maintenance => (EventKind::Maintenance, "was restarted"),
        RestartReason::Unknown => (EventKind::Restart, "ended by itself"),
    };
    let detail = format!("{node} {what}");
    DayEvent::at(at_ns, kind, detail).until(ready_ns.unwrap_or(at_ns))
}

fn write_failure(path: &Path, error: &io::Error) -> Failure {
    let kind = match error.kind() {
        io::ErrorKind::AlreadyExists => FailureKind::Conflict,
        _ => FailureKind::System,
    };
    Failure::new(kind, format!("{} cannot be written: {error}", path.display()))
        .hint("name another folder with --out")
}

fn result(
    setup: &DaySetup,
    (events, unfinished): (Vec<DayEvent>, Option<String>),
    collected: Collected,
    start_ns: u64,
    end: Option<ProfileEnd>,
) -> DayResult {
    let sla = setup.base.sla;
    let (events, events_left_out) = judge::events(events, &collected, start_ns, sla);
    let outside_max_s = setup.outside_max_s;
    let (outcome, reasons) = judge::verdict(&collected.phases, &events, unfinished, outside_max_s);
    let is_complete = end.is_some();
    DayResult {
        version: VERSION,
        script: setup.script.clone(),
        network: setup.network.clone(),
        seed: setup.base.seed,
        stream_hash: end.map(|end| format!("{:016x}", end.stream_hash)),
        limit_ms: sla.limit_ns as f64 / 1e6,
        is_complete,
        outcome: is_complete.then_some(outcome),
        reasons,
        phases: collected.phases,
        events,
        events_left_out,
        resent: end.map_or(0, |end| end.resent),
        reconnects: end.map_or(0, |end| end.reconnects),
        first_refusal: collected.first_refusal.map(|reason| reason.to_string()),
    }
}
