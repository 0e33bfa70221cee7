//! Three sentences of the first screen: the best stack, what each step costs, and the tail.
//!
//! A result without round trips has none of them, unless its plan wanted some. Where there are
//! round trips, a sentence that has no data says why.

use nm_judge::{Step, StepCost};
use nm_model::RunResult;
use nm_model::class::Bypass;
use nm_model::doubt::DoubtKind;
use nm_model::environment::EnvironmentKind;
use nm_model::metric::Metric;
use nm_model::result::{Series, Source, Statistic};
use nm_model::stack::{Launcher, StackPair};
use nm_model::verdict::Interval;

use crate::best;
use crate::probes::case_words;
use crate::probes::jitter::{self, culprits};
use crate::units::{self, LatencyUnit};
use crate::view;

/// Most causes that the sentence about the tail names.
const CAUSES_MAX: usize = 3;

/// An interruption that was this share of the maximum, or more, may explain it.
const INTERRUPTION_SHARE: f64 = 0.5;

/// Doubts that lengthen a tail, what the cause is called, and the most likely first.
const TAIL_CAUSES: [(DoubtKind, &str); 9] = [
    (DoubtKind::Steal, "stolen time"),
    (DoubtKind::Throttled, "a CPU quota"),
    (DoubtKind::Preempted, "other threads on its CPUs"),
    (DoubtKind::SharedCpu, "both ends on one CPU"),
    (DoubtKind::BelowSystem, "time lost below the system"),
    (DoubtKind::Migrated, "moves between CPUs"),
    (DoubtKind::SmtSiblings, "both ends on one core"),
    (DoubtKind::ConcurrentRun, "another measurement at the same time"),
    (DoubtKind::BusyHost, "a busy machine"),
];

/// The three sentences; each is absent where a result is not about round trips.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sentences {
    /// The best stack.
    pub best: Option<String>,
    /// What each step costs.
    pub cost: Option<String>,
    /// The slowest messages of the best stack.
    pub tail: Option<String>,
}

/// The sentences of `result`. `disturbances` are what disturbed the machine during the run.
pub fn sentences(result: &RunResult, disturbances: &[&'static str]) -> Sentences {
    if !result.series.iter().any(best::is_round_trip) {
        return without_round_trips(result);
    }
    let Some(best) = best::stack(result) else {
        let emulated = "not known: every round trip was measured in EMULATED guests.".to_string();
        return Sentences { best: Some(emulated), ..Sentences::default() };
    };
    Sentences {
        best: Some(best_text(result, best)),
        cost: cost_text(result),
        tail: Some(tail_text(result, best, disturbances)),
    }
}

fn without_round_trips(result: &RunResult) -> Sentences {
    let rows = result.planned_rows();
    let is_wanted = rows.iter().any(|row| row.probe().kind().uses_network());
    let reason = "not known: no round trip was measured.".to_string();
    Sentences { best: is_wanted.then_some(reason), ..Sentences::default() }
}

/// A latency with three digits: `2.23 µs`.
fn short(ns: f64) -> String {
    let unit = LatencyUnit::of(ns);
    format!("{} {}", units::significant(ns / unit.ns(), 3), unit.name())
}

/// `2.23 µs (2.1 to 2.4)`, in words where there is no interval; none without the figure.
fn with_interval(series: &Series, metric: Metric, no_interval: &str) -> Option<String> {
    let value = view::value(series, metric)?;
    let unit = LatencyUnit::of(value);
    let number = |ns: f64| units::significant(ns / unit.ns(), 3);
    let interval = series.estimate(metric).and_then(|estimate| estimate.interval);
    let interval = match interval {
        Some(ends) => format!(" ({} to {})", number(ends.low), number(ends.high)),
        None => no_interval.to_string(),
    };
    Some(format!("{} {}{interval}", number(value), unit.name()))
}

fn has_interval(series: &Series) -> bool {
    series.estimate(Metric::Median).is_some_and(|estimate| estimate.interval.is_some())
}

/// `half round trip at 64 B`.
fn subject(series: &Series) -> String {
    let statistic = match series.key.statistic {
        Statistic::HalfRoundTrip => "half round trip",
        Statistic::RoundTripFromIntended => "round trip from intended send",
        _ => "round trip",
    };
    format!("{statistic} at {}", case_words::brief(&series.key.case))
}

/// `netns/tcp-spin: median 2.23 µs (2.1 to 2.4), p99 3.65 µs (3.4 to 4.0), half round trip at 64 B,
/// 95 % intervals over 5 rounds.`
fn best_text(result: &RunResult, best: &Series) -> String {
    let no_interval = "";
    let median = with_interval(best, Metric::Median, no_interval).unwrap_or_default();
    let p99 = with_interval(best, Metric::Percentile(99.0), no_interval)
        .map_or("p99 not known".to_string(), |text| format!("p99 {text}"));
    let rounds = units::plural(best.rounds.len(), "round", "rounds");
    let basis = match has_interval(best) {
        true => format!("95 % intervals over {rounds}"),
        false => format!("{rounds}, too few for an interval"),
    };
    let path = best.key.path();
    let mut text = format!("{path}: median {median}, {p99}; {}, {basis}", subject(best));
    if best::is_same_host(best) {
        text += ", on one host only";
    }
    text.push('.');
    if let Some(faster) = best::faster_on_one_host(result, best)
        && let Some(ns) = view::value(faster, Metric::Median)
    {
        text += &format!(" Within one host: {} {}.", faster.key.path(), short(ns));
    }
    text
}

/// `blocking instead of spinning +58.4 µs, 9.1 times (8.6 to 9.6); …`.
fn cost_text(result: &RunResult) -> Option<String> {
    let steps = nm_judge::steps(result);
    let emulated: Vec<&str> = steps.emulated.iter().map(|kind| kind.name()).collect();
    let not_compared = match emulated.is_empty() {
        true => String::new(),
        false => format!(" {} was EMULATED and is in no ratio.", emulated.join(" and ")),
    };
    let Some(first) = steps.costs.first() else {
        let is_ours = matches!(result.source, Source::Measured { .. });
        let reason = "not known: no two stacks or environments differ in one step only.";
        return is_ours.then(|| format!("{reason}{not_compared}"));
    };
    let clauses: Vec<String> = steps.costs.iter().map(clause).collect();
    let case = case_words::text(&first.with.case);
    Some(format!("{}; median at {case}.{not_compared}", clauses.join("; ")))
}

fn clause(cost: &StepCost) -> String {
    let [with, without] = names(cost);
    let number = |factor: f64| units::significant(factor, if factor < 10.0 { 3 } else { 2 });
    let sign = if cost.cost_ns < 0.0 { "-" } else { "+" };
    let interval = match cost.interval {
        Some(Interval { low, high, .. }) => format!(" ({} to {})", number(low), number(high)),
        None => ", too few rounds for an interval".to_string(),
    };
    let open = match cost.interval {
        Some(ends) if ends.low <= 1.0 && 1.0 <= ends.high => ", no difference shown",
        _ => "",
    };
    format!(
        "{with} instead of {without} {sign}{}, {} times{interval}{open}",
        short(cost.cost_ns.abs()),
        number(cost.factor)
    )
}

/// What the step is called, and what it is compared with.
fn names(cost: &StepCost) -> [String; 2] {
    let place = match cost.with.environment.parse() {
        Ok(EnvironmentKind::Netns) => String::new(),
        _ => format!(" ({})", cost.with.environment),
    };
    match cost.step {
        Step::Blocking => ["blocking".to_string(), format!("spinning{place}")],
        Step::Kernel(protocol) => {
            let name = protocol.name().to_uppercase();
            [format!("the kernel's {name}"), format!("{}{place}", bypass(&cost.without.stack))]
        }
        Step::KernelOverSharedMemory => ["the kernel".to_string(), format!("shared memory{place}")],
        Step::Environment(EnvironmentKind::Bridge) => {
            ["a bridge".to_string(), "two namespaces".to_string()]
        }
        Step::Environment(kind) => [format!("guests ({kind})"), "two namespaces".to_string()],
    }
}

fn bypass(stack: &str) -> &'static str {
    let Ok(stacks) = stack.parse::<StackPair>() else { return "bypass" };
    match (stacks.client.launcher, stacks.client.protocol) {
        (Some(Launcher::Onload), _) => "Onload",
        (Some(Launcher::Vma), _) => "VMA",
        (Some(Launcher::Smc), _) => "SMC",
        (None, protocol) if protocol.row().bypass == Bypass::AfXdp => "AF_XDP",
        _ => "bypass",
    }
}

/// `netns/tcp-spin: p99.9 12.1 µs (11.2 to 13.5), maximum 4.20 ms; likely cause: stolen time.`
fn tail_text(result: &RunResult, best: &Series, disturbances: &[&'static str]) -> String {
    let path = best.key.path();
    let p999 = with_interval(best, Metric::Percentile(99.9), "")
        .map_or("p99.9 not known (too few samples)".to_string(), |text| format!("p99.9 {text}"));
    let max_ns = view::value(best, Metric::Max).filter(|ns| ns.is_finite());
    let Some(max_ns) = max_ns else { return format!("{path}: {p999}; maximum not known.") };
    let causes = causes(result, best, max_ns, disturbances);
    let cause = match causes.is_empty() {
        true => "cause not known".to_string(),
        false => format!("likely cause: {}", causes.join(", ")),
    };
    format!("{path}: {p999}, maximum {}; {cause}.", short(max_ns))
}

/// What can have made the slowest messages slow: doubts of the series and of the run, disturbances
/// of the machine, and interruptions that the jitter probe saw.
fn causes(
    result: &RunResult,
    best: &Series,
    max_ns: f64,
    disturbances: &[&'static str],
) -> Vec<String> {
    let doubts = best.doubts.iter().chain(&result.doubts);
    let kinds: Vec<DoubtKind> = doubts.map(|doubt| doubt.kind).collect();
    let of_doubts = TAIL_CAUSES.iter().filter(|(kind, _)| kinds.contains(kind));
    let mut causes: Vec<String> = of_doubts.map(|(_, name)| name.to_string()).collect();
    for name in disturbances {
        if !causes.iter().any(|known| known == name) {
            causes.push(name.to_string());
        }
    }
    causes.truncate(CAUSES_MAX);
    causes.extend(interruption(result, best, max_ns));
    causes
}

/// The longest interruption that the jitter probe saw on the machine of `best`, if it is long
/// enough for the maximum.
fn interruption(result: &RunResult, best: &Series, max_ns: f64) -> Option<String> {
    let is_local = |environment: &str| {
        let kind: Result<EnvironmentKind, _> = environment.parse();
        kind.is_ok_and(|kind| kind != EnvironmentKind::Ssh && !kind.has_guests())
    };
    let is_same_machine = |series: &&Series| {
        let (own, other) = (&best.key.environment, &series.key.environment);
        own == other || (is_local(own) && is_local(other))
    };
    let jitter = || jitter::series(result).filter(is_same_machine);
    let longest = jitter().filter_map(|series| view::value(series, Metric::Max));
    let ns = longest.fold(0.0, f64::max);
    let is_enough = |ns: f64| ns >= max_ns * INTERRUPTION_SHARE;
    let culprits = jitter().filter_map(culprits::of_longest);
    let culprit = culprits.max_by_key(|one| one.1).filter(|one| is_enough(one.1 as f64));
    let name = culprit.map_or(String::new(), |(name, _)| format!(": {name}"));
    is_enough(ns).then(|| format!("interruptions of up to {} (jitter{name})", short(ns)))
}
