//! `nearmetal tune ab`: a step is kept only if an experiment shows that it helps.

use std::sync::atomic::AtomicBool;

use anyhow::Result;
use nm_model::probe::PingpongSpec;
use nm_model::verdict::Relation;
use nm_model::{Metric, ProbeSpec};
use nm_settings::setting::{Scope, SettingId};
use nm_stats::experiment::{Decision, Effect, decide};
use nm_tune::apply::{apply_some, record};
use nm_tune::journal::{FileLog, Log};
use nm_tune::machine::HostMachine;
use nm_tune::plan::{Choice, Planned, Selection, StepChange, changes};
use nm_tune::record::{self as records, Figure, Record};
use nm_tune::run::Run;
use nm_tune::undo::{Choices, undo_from};

use super::experiment::{
    Ends, LENGTHENED_MS_MAX, Rounds, TAIL_GUARD, needed_ms, pilot, probe, trial,
};
use super::session;
use schemars::JsonSchema;
use serde::Serialize;

use crate::campaign::interrupt;
use crate::cli::format::Format;
use crate::cli::tune::{AbArgs, AbEnvironment};
use crate::document::Document;
use crate::exit::{Exit, Stop};
use crate::output;

/// Rounds with the step in each block of four.
const OF_BLOCK: u64 = 2;

pub fn run(args: &AbArgs) -> Result<Exit> {
    let spec = probe(args)?;
    let mut machine = session::machine(args.place.root.root.as_deref())?;
    let (folder, lock) = session::open(&args.place)?;
    session::check_finished(&folder, &lock, &mut machine, &args.place)?;
    let changes = wanted(args, &machine)?;
    let interrupted = interrupt::flag()?;
    let mut ends = Ends::start(args.environment, args.server.as_ref(), &args.stack)?;
    let Some(spec) = long_enough(args, spec, &mut ends, &interrupted)? else {
        return Err(Stop::with(Exit::Interrupted, "interrupted; nothing was changed"));
    };
    let probe = ProbeSpec::Pingpong(spec.clone());
    let begin = session::begin(&args.place, &machine, None)?;
    let log = folder.begin(&begin, &lock).map_err(session::journal_error)?;
    let undo = args.place.command("undo", &begin.run);
    let mut switch = Switch { machine, log, run: Run::begun(begin), changes, undo };
    let mut rounds = Rounds::new(args.percentile);
    let blocks = args.rounds.div_ceil(OF_BLOCK);
    announce(args, spec.max_ms, blocks);
    let mut goes_on = Ok(true);
    'blocks: for block in 0..blocks {
        rounds.begin_block();
        // The order is turned in each block, so that no place within it has one side only.
        let order = [false, true, true, false].map(|is_with| is_with ^ (block % 2 == 1));
        for (place, is_with) in order.into_iter().enumerate() {
            let number = u32::try_from(block * 4).unwrap_or_default() + place as u32;
            goes_on = switch.set(is_with, &interrupted).and_then(|()| {
                let what = (&args.stack, &probe);
                trial(&mut ends, what, &mut rounds, (number, is_with), &interrupted)
            });
            if !matches!(goes_on, Ok(true)) {
                break 'blocks;
            }
        }
    }
    drop(ends);
    if !matches!(goes_on, Ok(true)) {
        switch.end(false)?;
        goes_on?;
        let message = "interrupted; the step is undone, and nothing is decided";
        return Err(Stop::with(Exit::Interrupted, message));
    }
    rounds.leave_out_beyond_samples();
    finish(args, switch, &rounds)
}

/// Rounds that are long enough for the guard p99.9, by one that is not counted. Absent after
/// Ctrl-C.
fn long_enough(
    args: &AbArgs,
    spec: PingpongSpec,
    ends: &mut Ends,
    interrupted: &AtomicBool,
) -> Result<Option<PingpongSpec>> {
    let probe = ProbeSpec::Pingpong(spec.clone());
    let Some(samples) = pilot(ends, (&args.stack, &probe), interrupted)? else { return Ok(None) };
    let needed = needed_ms(args.ms, samples, args.percentile);
    let most = LENGTHENED_MS_MAX.max(args.ms);
    if needed > args.ms {
        let end = match needed <= most {
            true => String::new(),
            false => format!(", and take {most} ms at most: nothing will be kept"),
        };
        output::message(&format!(
            "rounds of {} ms have {samples} samples, too few for p{TAIL_GUARD}: they need {needed} \
             ms{end}",
            args.ms
        ));
    }
    let max_ms = needed.min(most);
    Ok(Some(PingpongSpec { max_ms, warmup_ms: max_ms / 10, ..spec }))
}

fn announce(args: &AbArgs, ms: u64, blocks: u64) {
    let trials = blocks * 2 * OF_BLOCK;
    let seconds = trials as f64 * ms as f64 * 1.1 / 1e3;
    output::message(&format!(
        "{}: {trials} trials with and without it, about {}; Ctrl-C undoes it",
        args.step,
        nm_report::units::duration(seconds)
    ));
}

/// The changes of the step, if the ping-pong can show their effect.
fn wanted(args: &AbArgs, machine: &HostMachine) -> Result<Vec<StepChange>> {
    let step = nm_settings::setting(args.step);
    let selection = Selection {
        only: vec![args.step],
        allow: args.allow.into_iter().collect(),
        choice: Choice { cpus: args.cpus.list(), link: args.link.clone() },
    };
    let steps = session::steps(&selection, machine)?;
    let not_available =
        |reason: &str| Stop::usage(format!("{}: not available: {reason}", args.step));
    match steps.first().map(|step| &step.planned) {
        Some(Planned::Changes(_)) => {}
        Some(Planned::NotAvailable(reason)) => return Err(not_available(reason)),
        Some(Planned::NothingToDo(_)) | None => {
            return Err(not_available("everything is as the step wants it"));
        }
    }
    let changes = changes(&steps);
    if step.scope == Scope::Namespace && args.environment == AbEnvironment::Netns {
        let reason = "it changes this network namespace, and `netns` measures in others; use \
                      loopback, or --server";
        return Err(not_available(reason));
    }
    let link = changes.iter().find_map(|one| one.change.target.link());
    match link {
        Some(link) if args.server.is_none() && link.as_str() != "lo" => {
            let reason = format!("messages over loopback do not pass {link}; name a --server");
            Err(not_available(&reason))
        }
        _ => Ok(changes),
    }
}

/// The step, switched on and off through the journal.
struct Switch {
    machine: HostMachine,
    log: FileLog,
    run: Run,
    changes: Vec<StepChange>,
    /// The command that puts back what was there.
    undo: String,
}

impl Switch {
    fn is_on(&self) -> bool {
        self.run.changes.iter().any(|change| change.state.is_open())
    }

    fn set(&mut self, on: bool, interrupted: &AtomicBool) -> Result<()> {
        match (self.is_on(), on) {
            (false, true) => self.apply(interrupted),
            (true, false) => self.undo(),
            _ => Ok(()),
        }
    }

    fn apply(&mut self, interrupted: &AtomicBool) -> Result<()> {
        let (machine, log, run) = (&mut self.machine, &mut self.log, &mut self.run);
        let applied = apply_some(machine, log, run, &self.changes, interrupted);
        let applied = applied.map_err(|error| session::apply_error(error, &self.undo))?;
        let is_in_force = self.run.changes.iter().any(|change| change.state.is_open());
        match is_in_force || applied.is_interrupted {
            true => Ok(()),
            false => Err(Stop::with(Exit::Environment, "the kernel refuses the step")),
        }
    }

    fn undo(&mut self) -> Result<()> {
        let never = AtomicBool::new(false);
        let (machine, log, run) = (&mut self.machine, &mut self.log, &mut self.run);
        let undone = undo_from(machine, log, run, &Choices::default(), &never, 1);
        undone.map(drop).map_err(session::undo_error)
    }

    /// Leaves the step on or off, and ends the run.
    fn end(&mut self, on: bool) -> Result<()> {
        self.set(on, &AtomicBool::new(false))?;
        self.record(&Record::Complete)
    }

    fn record(&mut self, what: &Record) -> Result<()> {
        let log: &mut dyn Log = &mut self.log;
        record(log, &mut self.run, what).map_err(|error| session::apply_error(error, &self.undo))
    }
}

fn finish(args: &AbArgs, mut switch: Switch, rounds: &Rounds) -> Result<Exit> {
    let figures: Vec<_> =
        rounds.figures.iter().map(|one| (one.metric, one.blocks.clone())).collect();
    let Some(((metric, blocks), guards)) = figures.split_first() else {
        return Err(Stop::with(Exit::Environment, "no round was measured"));
    };
    let decision = decide((*metric, blocks), guards);
    let count = |of: fn(&nm_stats::experiment::Block) -> usize| blocks.iter().map(of).sum();
    let rounds = [count(|block| block.without.len()), count(|block| block.with.len())];
    let record = as_record(args.step, &decision, rounds);
    switch.record(&Record::Decision(record.clone()))?;
    switch.end(decision.keeps)?;
    match args.format.format {
        Format::Json => output::json(&DecisionDocument { decision: record.clone() })?,
        Format::Text => output::text(&text(&record))?,
    }
    match (decision.keeps, decision.chosen.relation) {
        (true, _) => {
            output::message(&format!("undo it with: {}", switch.undo));
            Ok(Exit::Pass)
        }
        (false, Some(Relation::Better | Relation::Worse)) => Ok(Exit::Fail),
        (false, _) => Ok(Exit::Inconclusive),
    }
}

/// What an experiment has decided.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DecisionDocument {
    #[serde(flatten)]
    decision: records::Decision,
}

impl Document for DecisionDocument {
    const NAME: &'static str = "tune-decision";
}

fn as_record(step: SettingId, decision: &Decision, rounds: [usize; 2]) -> records::Decision {
    let all = || std::iter::once(&decision.chosen).chain(&decision.guards);
    let names = |relation| -> Vec<String> {
        let guards = decision.guards.iter().filter(|guard| guard.relation == relation);
        guards.map(|guard| guard.metric.to_string()).collect()
    };
    let chosen = decision.chosen.metric;
    let worse = names(Some(Relation::Worse)).join(", ");
    let unmeasured = names(None).join(", ");
    let mut reason = match (decision.keeps, decision.chosen.relation) {
        (true, _) => format!("{chosen} is better, and nothing else is worse"),
        (false, Some(Relation::Better)) if worse.is_empty() => {
            format!("{chosen} is better, but not everything else is measured")
        }
        (false, Some(Relation::Better)) => format!("{chosen} is better, but {worse} is worse"),
        (false, Some(Relation::Worse)) => format!("{chosen} is worse"),
        (false, Some(_)) => format!("no difference of {chosen} is shown"),
        (false, None) => format!("{chosen} has too few samples or rounds"),
    };
    if !unmeasured.is_empty() {
        reason += &format!("; too few samples for {unmeasured}: longer rounds (--ms) have more");
    }
    let figures = all().map(figure).collect();
    records::Decision { step, kept: decision.keeps, reason, rounds, figures }
}

fn figure(effect: &Effect) -> Figure {
    let relation = effect.relation.map_or("not measured", Relation::name);
    Figure {
        metric: match effect.metric {
            Metric::Median => "median".to_string(),
            other => other.to_string(),
        },
        ratio: effect.ratio,
        interval: effect.interval.map(|interval| [interval.low, interval.high]),
        relation: relation.to_string(),
    }
}

fn text(decision: &records::Decision) -> String {
    let [without, with] = decision.rounds;
    let mut text =
        format!("with {} divided by without, {with} and {without} rounds\n", decision.step);
    for figure in &decision.figures {
        let ratio = figure.ratio.map_or("-".to_string(), |ratio| format!("{ratio:.3}"));
        let interval =
            figure.interval.map_or("-".to_string(), |[low, high]| format!("{low:.3} to {high:.3}"));
        text += &format!("  {:<8} {ratio:>7}  {interval:<16} {}\n", figure.metric, figure.relation);
    }
    let what = if decision.kept { "kept" } else { "not kept" };
    text + &format!("{what}: {}\n", decision.reason)
}
