//! What every report shows first, as lines: verdict, counts, the best stack, the cost of each step,
//! the tail. Then come trust, what to do next, the machine.
//!
//! `FAIL: p99 12.7 ms on netns/tcp-spin (limit 10 ms); 42.0 % of the time was lost (limit 5 %)`

use nm_model::doubt::DoubtKind;
use nm_model::environment::{Distance, EnvironmentKind};
use nm_model::machine::{MachineLimits, MachineUse};
use nm_model::metric::{Metric, Quantity};
use nm_model::result::{RunState, Source};
use nm_model::undecided::Undecided;
use nm_model::{Gate, Outcome, Plan, RunResult, Verdict};

use crate::decisive::{self, Decisive};
use crate::headline::{Headline, headline};
use crate::identity;
use crate::probes::case_words;
use crate::sentences::sentences;
use crate::style::{Tone, clean};
use crate::units::{self, LatencyUnit};
use crate::view::Notes;
use crate::weight;

/// Most targets that the verdict names.
const NAMED_MAX: usize = 3;

/// Most programs that a line names.
const PROGRAMS_MAX: usize = 2;

/// What a line of the first screen is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topic {
    /// The verdict with the targets that decide it.
    Verdict,
    /// How many targets are met, and what was left out.
    Count,
    /// What the gate against accepted runs found.
    Gate,
    /// The best stack with its figures.
    Best,
    /// What each step costs.
    Cost,
    /// The slowest messages of the best stack.
    Tail,
    /// Whether the result can be trusted.
    Trust,
    /// What to do next.
    Next,
    /// The machine and its site.
    Machine,
}

impl Topic {
    /// The word before the line; none where the line speaks for itself.
    pub fn label(self) -> Option<&'static str> {
        match self {
            Topic::Verdict | Topic::Count => None,
            Topic::Gate => Some("gate"),
            Topic::Best => Some("best"),
            Topic::Cost => Some("cost"),
            Topic::Tail => Some("tail"),
            Topic::Trust => Some("trust"),
            Topic::Next => Some("next"),
            Topic::Machine => Some("machine"),
        }
    }
}

impl Topic {
    /// Whether it is one of the three sentences about the stacks.
    pub fn is_of_stacks(self) -> bool {
        matches!(self, Topic::Best | Topic::Cost | Topic::Tail)
    }
}

/// A line of the first screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// What it is about.
    pub topic: Topic,
    /// One or more sentences.
    pub text: String,
}

/// The first screen of a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirstScreen {
    /// `PASS`, `PASS FOR A PART`, `FAIL`, `INCONCLUSIVE` or `NOT JUDGED`.
    pub word: &'static str,
    /// Its colour.
    pub tone: Tone,
    /// The lines, the verdict first.
    pub lines: Vec<Line>,
}

/// The first screen of `result`.
pub fn first_screen(result: &RunResult) -> FirstScreen {
    let headline = headline(result);
    let verdict = verdict(result, &headline);
    // What is left open by a lost row is counted in the verdict already.
    let is_counted = result.undecided.as_ref().is_some_and(|undecided| !undecided.is_disturbed());
    let count = match verdict.is_some() && result.outcome != Outcome::Pass && !is_counted {
        true => Some(headline.sentence.clone()),
        false => Some(headline.remarks.join(" ")),
    };
    let sentences = sentences(result, &disturbances(result));
    let lines = [
        (Topic::Verdict, Some(verdict.unwrap_or_else(|| headline.counted.clone()))),
        (Topic::Count, count.filter(|text| !text.is_empty())),
        (Topic::Gate, result.gate.as_deref().map(gate)),
        (Topic::Trust, trust(result)),
        (Topic::Next, next(result)),
        (Topic::Best, sentences.best),
        (Topic::Cost, sentences.cost),
        (Topic::Tail, sentences.tail),
        (Topic::Machine, identity::sentence(result)),
    ];
    let line = |(topic, text): (Topic, Option<String>)| Some(Line { topic, text: text? });
    FirstScreen {
        word: headline.word,
        tone: headline.tone,
        lines: lines.into_iter().filter_map(line).collect(),
    }
}

/// `FAIL: p99 of … is 30 % slower: … against … of 8 accepted runs.`
fn gate(gate: &Gate) -> String {
    let reason = gate.reasons.first().map_or("", String::as_str);
    format!("{}: {}.", gate.outcome.name().to_uppercase(), clean(reason))
}

/// The verdict with what decides it; none if nothing does.
fn verdict(result: &RunResult, headline: &Headline) -> Option<String> {
    if !result.undecided.as_ref().is_none_or(Undecided::is_disturbed) {
        return result.undecided.as_ref().map(|undecided| format!("{undecided}."));
    }
    let text = match (&result.undecided, result.outcome) {
        (Some(disturbance), _) => format!("{}, while {disturbance}", failed(result)?),
        (None, Outcome::Fail) => failed(result)?,
        (None, Outcome::Inconclusive) => open(result)?,
        (None, Outcome::Pass) => {
            let nearest = decisive::of_result(result)?;
            let counted = headline.counted.trim_end_matches('.');
            format!("{counted}; nearest to its limit: {}", clause(&nearest))
        }
    };
    Some(format!("{}.", text.trim_end_matches('.')))
}

/// Targets with this outcome, those furthest beyond their limit first.
fn ranked(result: &RunResult, outcome: Outcome) -> Vec<Decisive<'_>> {
    let verdicts = result.verdicts.iter();
    let of_figures = verdicts.filter(|v| v.outcome == outcome && !v.is_of_machine);
    let mut found: Vec<Decisive<'_>> =
        of_figures.filter_map(|verdict| decisive::of_verdict(result, verdict)).collect();
    let rank = |one: &Decisive<'_>| one.use_of_limit().unwrap_or(f64::NEG_INFINITY);
    found.sort_by(|a, b| rank(b).total_cmp(&rank(a)));
    found
}

/// Limits of the machine with this outcome.
fn of_machine(result: &RunResult, outcome: Outcome) -> impl Iterator<Item = &Verdict> {
    result.verdicts.iter().filter(move |v| v.is_of_machine && v.outcome == outcome)
}

/// The targets that fail, and `and 4 more`. A limit of the machine keeps its place among them.
fn failed(result: &RunResult) -> Option<String> {
    let machine: Vec<String> = of_machine(result, Outcome::Fail).map(machine_clause).collect();
    let figures: Vec<String> = ranked(result, Outcome::Fail).iter().map(clause).collect();
    let n_all = result.verdicts.iter().filter(|v| v.outcome == Outcome::Fail).count();
    let n_figures = NAMED_MAX - machine.len().min(1);
    let mut named: Vec<String> = figures.into_iter().take(n_figures).collect();
    let n_machine = NAMED_MAX - named.len();
    named.extend(machine.into_iter().take(n_machine));
    joined(&named, n_all)
}

fn joined(named: &[String], n_all: usize) -> Option<String> {
    let more = match n_all.saturating_sub(named.len()) {
        0 => String::new(),
        n => format!("; and {n} more"),
    };
    (!named.is_empty()).then(|| named.join("; ") + &more)
}

/// The first target that is open, and why; figures before limits of the machine.
fn open(result: &RunResult) -> Option<String> {
    let n_open = result.verdicts.iter().filter(|v| v.outcome == Outcome::Inconclusive).count();
    let of_figure = ranked(result, Outcome::Inconclusive).first().map(|decisive| {
        let what = match (&decisive.verdict.require, decisive.series) {
            (Some(target), Some(series)) => {
                format!("{} on {}", target.metric, series.key.path())
            }
            (Some(target), None) => format!("{} of {}", target.metric, decisive.evidence.series),
            (None, _) => decisive.evidence.series.clone(),
        };
        format!("{what}: {}", decisive.evidence.reason.trim_end_matches('.'))
    });
    let of_limit = || of_machine(result, Outcome::Inconclusive).map(machine_clause).next();
    let first = of_figure.or_else(of_limit)?;
    joined(&[first], n_open)
}

/// `p99 12.7 ms on netns/tcp-spin (limit 10 ms)`.
fn clause(decisive: &Decisive<'_>) -> String {
    let Decisive { verdict, evidence, series } = decisive;
    let Some(target) = &verdict.require else { return verdict.target.clone() };
    let limit = decisive::limit_text(target);
    let limit = match target.op.is_upper_bound() {
        true => format!("(limit {limit})"),
        false => format!("(at least {limit} required)"),
    };
    let value = figure(target.metric, evidence.value);
    if target.metric == Metric::TimeLost {
        return format!("{value} of the time was lost {limit}");
    }
    let place = match series.map(|series| &series.key) {
        Some(key) => format!("{}{}", key.path(), case_words::of_message(&key.case)),
        None => evidence.series.clone(),
    };
    format!("{} {value} on {place} {limit}", target.metric)
}

/// A figure with three digits.
fn figure(metric: Metric, value: Option<f64>) -> String {
    match (metric.quantity(), value) {
        (Quantity::Latency, Some(ns)) if ns.is_finite() => {
            let unit = LatencyUnit::of(ns);
            format!("{} {}", units::significant(ns / unit.ns(), 3), unit.name())
        }
        (Quantity::Throughput, Some(gbps)) => format!("{} Gb/s", units::significant(gbps, 3)),
        _ => units::figure(metric, value),
    }
}

/// `the hypervisor gave 27.0 % … to others (required: at most 1 % of the CPU time stolen)`.
fn machine_clause(verdict: &Verdict) -> String {
    let limit = verdict.target.trim_start_matches("machine: ");
    format!("{} (required: {limit})", verdict.reason.trim_end_matches('.'))
}

/// The limits by which the machine counts as disturbed: those of the plan, else the usual ones.
fn limits(result: &RunResult) -> MachineLimits {
    result.plan.as_ref().and_then(|plan| plan.machine.clone()).unwrap_or_default()
}

fn takes_steal(result: &RunResult) -> bool {
    let percent = result.machine.as_ref().and_then(MachineUse::steal_percent);
    percent.is_some_and(|percent| percent > limits(result).steal_percent_max)
}

fn has_other_work(result: &RunResult) -> bool {
    let percent = result.machine.as_ref().and_then(MachineUse::other_work_percent);
    percent.is_some_and(|percent| percent > limits(result).other_work_percent_max)
}

/// What disturbed the machine beyond its limits, in words.
fn disturbances(result: &RunResult) -> Vec<&'static str> {
    let found = [(takes_steal(result), "stolen time"), (has_other_work(result), "other programs")];
    found.into_iter().filter(|(is_there, _)| *is_there).map(|(_, name)| name).collect()
}

/// Whether the result can be trusted, and why. None for figures that others measured.
fn trust(result: &RunResult) -> Option<String> {
    if !matches!(result.source, Source::Measured { .. }) || result.series.is_empty() {
        return None;
    }
    let Some(machine) = &result.machine else {
        return Some("It is not known what else the machine did meanwhile.".to_string());
    };
    let (steal, other) = (machine.steal_percent(), machine.other_work_percent());
    let by_hypervisor = match steal {
        Some(percent) => format!("the hypervisor took {percent:.1} % of the CPU time"),
        None => "what the hypervisor took cannot be read".to_string(),
    };
    let by_programs = match other {
        Some(percent) => format!("other programs took {percent:.0} % of a CPU"),
        None => "what other programs took cannot be read".to_string(),
    };
    let notes = Notes::collect(result);
    let weighed = weight::weighed(result, &notes);
    let is_disturbed = takes_steal(result) || has_other_work(result);
    let start = match weighed.first() {
        _ if is_disturbed => "Disturbed".to_string(),
        _ if steal.is_none() || other.is_none() => "Not fully known".to_string(),
        Some(doubt) => {
            format!("With doubts ({}, {})", doubt.note.kind.title(), doubt.extent())
        }
        None => "Nothing disturbed the run".to_string(),
    };
    let is_elsewhere = result.series.iter().any(|series| {
        let kind = series.key.environment.parse::<EnvironmentKind>();
        kind.is_ok_and(|kind| kind.distance() == Distance::Hosts)
    });
    let other_hosts = if is_elsewhere { " Other hosts were not watched." } else { "" };
    Some(format!("{start}: {by_hypervisor} and {by_programs} meanwhile.{other_hosts}"))
}

/// What to do next, by rule; the first that applies.
fn next(result: &RunResult) -> Option<String> {
    if !matches!(result.source, Source::Measured { .. }) || result.verdicts.is_empty() {
        return None;
    }
    let n_rounds = result.plan.as_ref().map_or(0, |plan| plan.rounds);
    Some(match (&result.undecided, result.outcome) {
        (Some(Undecided::OtherPrograms { .. }), _) => idle(result),
        (Some(Undecided::Lost { reason, .. }), _) => match reason.split_once("; ") {
            Some((_, hint)) => format!("{}; then repeat.", capital(hint.trim_end_matches('.'))),
            None => "Remove the cause and repeat.".to_string(),
        },
        (Some(Undecided::Interrupted { .. }), _) => "Repeat and let the run end.".to_string(),
        (None, Outcome::Pass) => {
            "Keep this result; `nearmetal compare` tests later runs against it.".to_string()
        }
        (None, Outcome::Fail) => after_failure(result),
        (None, Outcome::Inconclusive) if has_other_work(result) => idle(result),
        (None, Outcome::Inconclusive) if result.state != RunState::Complete => {
            "Repeat and let the run end.".to_string()
        }
        (None, Outcome::Inconclusive) => match () {
            () if ranked(result, Outcome::Inconclusive).is_empty() => {
                of_machine(result, Outcome::Inconclusive).next()?;
                "Repeat where `/proc` and `/sys` can be read.".to_string()
            }
            () if n_rounds < Plan::ROUNDS_MIN => {
                format!("Repeat with at least {0} rounds (`--rounds {0}`).", Plan::ROUNDS_MIN)
            }
            () => "Repeat with more rounds or longer trials; the reason is beside the target."
                .to_string(),
        },
    })
}

/// `Repeat on an idle machine; these took most: …`.
fn idle(result: &RunResult) -> String {
    let programs = result.machine.iter().flat_map(|machine| &machine.programs);
    let names: Vec<String> =
        programs.take(PROGRAMS_MAX).map(|p| format!("{} ({})", p.command, p.pid)).collect();
    let is_beside_run = result.doubts.iter().any(|one| one.kind == DoubtKind::ConcurrentRun);
    let other_run = if is_beside_run { " and without another run beside it" } else { "" };
    match names.is_empty() {
        true => format!("Repeat on an idle machine{other_run}."),
        false => {
            let names = names.join(" and ");
            format!("Repeat on an idle machine{other_run}; {names} took most.")
        }
    }
}

/// What helps after a failure: first what the machine lacks, then what was seen at the figure.
fn after_failure(result: &RunResult) -> String {
    let limits = limits(result);
    let machine = result.machine.clone().unwrap_or_default();
    let is_of_machine = of_machine(result, Outcome::Fail).next().is_some();
    match () {
        () if takes_steal(result) => "Ask the host's owner for dedicated CPUs.".to_string(),
        () if !is_of_machine => {
            let figure = ranked(result, Outcome::Fail).first().and_then(|one| one.series);
            let advice = decisive::advice(result, figure)
                .map_or(String::new(), |advice| format!(" Also {advice}."));
            format!("`nearmetal audit` shows which settings of the machine cost time.{advice}")
        }
        () if machine.quota.is_some() => {
            "Run it in a control group without a limit of CPU time.".to_string()
        }
        () if machine.cpus_allowed < limits.cpus_min => {
            format!("Give the run at least {} CPUs.", limits.cpus_min)
        }
        () => "`nearmetal doctor` shows what the machine lacks.".to_string(),
    }
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string());
    first.unwrap_or_default() + letters.as_str()
}
