//! `nearmetal watch`: small trials for weeks, changes of level, alerts.

mod alert;
mod keep;
mod trial;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;
use nm_judge::Watched;
use nm_model::watch::{WatchChange, WatchCost, WatchTrial};
use nm_report::{html, units, watch};
use nm_sys::clock::Moment;
use nm_sys::complete_file::{self, Origin};
use nm_sys::counters::{children_cpu_ns, process_cpu_ns};

use self::keep::Keep;
use self::trial::Runner;
use crate::campaign::interrupt;
use crate::cli::format::Format;
use crate::cli::watch::{WatchArgs, WatchCommand, WatchRunArgs};
use crate::exit::{Exit, Stop};
use crate::output;

/// How often a pause looks for Ctrl-C.
const NAP: Duration = Duration::from_millis(250);

pub fn run(args: &WatchArgs) -> Result<Exit> {
    match (&args.command, &args.run) {
        (Some(WatchCommand::Status { folder, format }), _) => {
            let found = keep::load(folder)?.report();
            match format.format {
                Format::Json => output::json(&found)?,
                Format::Text => output::text(&watch::text(&found, &output::style()))?,
            }
            Ok(Exit::Pass)
        }
        (Some(WatchCommand::Report { folder, out }), _) => report(folder, out),
        (None, Some(args)) => watch(args),
        (None, None) => Err(Stop::usage("name a plan, such as quick:latency, and --keep DIR")),
    }
}

fn report(folder: &Path, page: &Path) -> Result<Exit> {
    let text = html::watch(&keep::load(folder)?.report());
    complete_file::replace(page, text.as_bytes(), Origin::Derived)
        .map_err(|error| output::file_error(page, &error))?;
    output::message(&format!("report: {}", page.display()));
    Ok(Exit::Pass)
}

/// What a watch has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    is_worse: bool,
    has_failed: bool,
}

fn watch(args: &WatchRunArgs) -> Result<Exit> {
    let runner = Runner::new(&args.plan, &args.keep)?;
    let every_s = args.every.as_secs();
    if runner.promised_s() >= every_s as f64 {
        let message = format!(
            "a trial of {} takes about {}, and --every is {}: take a part of the plan, or a longer \
             time",
            args.plan,
            units::duration(runner.promised_s().ceil()),
            units::duration(every_s as f64)
        );
        return Err(Stop::usage(message));
    }
    let (mut keep, mut watched) = Keep::open(args, every_s)?;
    let interrupted = interrupt::flag()?;
    output::message(&format!(
        "plan {} each {}, about {} a trial, kept in {}",
        args.plan,
        units::duration(every_s as f64),
        units::duration(runner.promised_s().ceil()),
        args.keep.display()
    ));
    let mut clock = Costs::new();
    let started = Moment::now();
    let mut seen = Seen { is_worse: false, has_failed: false };
    for n in 1_u32.. {
        let Some(trial) = one_trial(&runner, &mut keep, &watched, &mut clock, &interrupted) else {
            return Ok(Exit::Interrupted);
        };
        let changes = keep.take(&trial, &mut watched);
        seen.has_failed = trial.failure.is_some();
        for change in changes.iter().filter(|change| change.is_worse()) {
            seen.is_worse = true;
            alert(args, change);
        }
        let is_over = |at: Duration| args.duration.is_some_and(|whole| at >= whole);
        let next = args.every.saturating_mul(n).max(started.elapsed());
        if args.once || is_over(next) {
            break;
        }
        while started.elapsed() < next {
            if interrupted.load(Ordering::Relaxed) {
                return Ok(Exit::Interrupted);
            }
            sleep(NAP.min(next.saturating_sub(started.elapsed())));
        }
    }
    if args.once {
        output::text(&watch::text(&watched.report(), &output::style()))?;
    }
    Ok(match seen {
        Seen { is_worse: true, .. } => Exit::Fail,
        Seen { has_failed: true, .. } => Exit::Inconclusive,
        Seen { .. } => Exit::Pass,
    })
}

/// The next trial; nothing after Ctrl-C.
fn one_trial(
    runner: &Runner,
    keep: &mut Keep,
    watched: &Watched,
    clock: &mut Costs,
    interrupted: &AtomicBool,
) -> Option<WatchTrial> {
    let at_s = Timestamp::now().as_second();
    let measured = runner.measure(interrupted);
    let cost = clock.since_last();
    if interrupted.load(Ordering::Relaxed) {
        return None;
    }
    let trial = match measured {
        Ok(measured) => {
            let facts = Some(measured.facts).filter(|facts| facts != watched.facts());
            let (plan, figures) = (measured.plan, measured.figures);
            WatchTrial { at_s, cost, plan, figures, failure: None, facts }
        }
        Err(reason) => {
            let (plan, figures, facts) = (None, vec![], None);
            WatchTrial { at_s, cost, plan, figures, failure: Some(reason), facts }
        }
    };
    keep.retain(at_s);
    Some(trial)
}

fn alert(args: &WatchRunArgs, change: &WatchChange) {
    let sentence = watch::sentence(change);
    output::message(&format!("nearmetal: {sentence}"));
    if let Some(command) = &args.on_alert
        && let Err(reason) = alert::call(command, &sentence)
    {
        output::message(&output::warning(&reason));
    }
}

/// CPU time of this process and of its trials, since the last call.
struct Costs {
    own_ns: u64,
    trials_ns: u64,
    at: Option<Moment>,
}

impl Costs {
    fn new() -> Costs {
        Costs { own_ns: process_cpu_ns(), trials_ns: children_cpu_ns(), at: None }
    }

    fn since_last(&mut self) -> WatchCost {
        let now = Costs {
            own_ns: process_cpu_ns(),
            trials_ns: children_cpu_ns(),
            at: Some(Moment::now()),
        };
        let between_ns = self.at.map_or(0, |at| at.elapsed().as_nanos() as u64);
        // Before the first trial there is no time between trials.
        let own_cpu_ns = if between_ns > 0 { now.own_ns - self.own_ns } else { 0 };
        let trial_cpu_ns = now.trials_ns - self.trials_ns;
        *self = now;
        WatchCost { own_cpu_ns, between_ns, trial_cpu_ns }
    }
}
