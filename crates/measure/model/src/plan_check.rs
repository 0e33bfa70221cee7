//! What types cannot check of a plan: ranges and combinations, and that each target, comparison
//! and published run that it names exists in it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::attached::AttachedFault;
use crate::class::StackClass;
use crate::factor::{Factor, FactorKind};
use crate::hosts::HostsFault;
use crate::limits::{self, SpecError};
use crate::metric::{Metric, PERCENTILES};
use crate::plan::{Plan, PlanComparison, PlanRow, PlanTarget, SubPlan, TrialBlock, published_run};
use crate::probe::{Case, ProbeKind, ProbeSpec};
use crate::selector::{Selector, glob};
use crate::target::LimitError;
use crate::words::{UnknownWord, known, nearest};

/// A published run that plans may name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedRun {
    /// Its name, without `reference:`.
    pub name: String,
    /// The stacks of its series.
    pub stacks: Vec<String>,
}

/// A place in the file of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// The value of a key of the plan itself.
    Plan {
        /// The key.
        key: &'static str,
    },
    /// The value of a key of one element of a list, such as the third of `[[targets]]`; the
    /// element itself if it is a value without keys.
    Element {
        /// The list.
        list: &'static str,
        /// Which element, counted from 0.
        index: usize,
        /// The key.
        key: &'static str,
    },
}

/// Something wrong, and where.
#[derive(Debug)]
pub(crate) struct Fault {
    pub place: Place,
    pub error: CheckError,
}

impl Fault {
    fn of_plan(key: &'static str, error: CheckError) -> Fault {
        Fault { place: Place::Plan { key }, error }
    }

    fn of_element(list: &'static str, index: usize, key: &'static str, error: CheckError) -> Fault {
        Fault { place: Place::Element { list, index, key }, error }
    }
}

/// A plan that is valid TOML of the right types, but cannot be meant.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CheckError {
    #[error("plan name `{0}` may hold letters, digits, - _ .")]
    Name(String),
    #[error("rounds is {0}, must be 1 to 1000")]
    Rounds(u32),
    #[error("the plan has no [[trials]]")]
    NoTrials,
    #[error("[[trials]] needs an environment and a stack")]
    EmptyTrials,
    #[error(transparent)]
    Spec(#[from] SpecError),
    #[error(
        "{path} measures {case} twice: each row and case has one series, whose rounds `rounds` sets"
    )]
    CaseTwice { path: String, case: String },
    #[error(transparent)]
    Hosts(#[from] HostsFault),
    #[error(transparent)]
    Attached(#[from] AttachedFault),
    #[error(transparent)]
    Limit(#[from] LimitError),
    #[error("target on `{on}` matches no row of the plan{hint}")]
    TargetOn { on: Selector, hint: Box<Hint> },
    #[error("target for probe `{probe}` matches no row of the plan: {run}")]
    TargetProbe { probe: ProbeKind, run: String },
    #[error(
        "target on `{on}` matches rows of probe {probe} only, which a target must name: \
         add `probe = \"{probe}\"`"
    )]
    TargetNeedsProbe { on: Selector, probe: ProbeKind },
    #[error("target on `{on}` matches no row of class {classes}; the rows there are {known}")]
    TargetClass { on: Selector, classes: String, known: String },
    #[error("target `{text}`: no row that it matches records {metric}{hint}{help}")]
    TargetMetric { text: String, metric: Metric, hint: Box<Hint>, help: String },
    #[error("target `{text}`: no row that it matches has a case with {conditions}; {known}")]
    TargetCase { text: String, conditions: String, known: String },
    #[error("comparison with `{side}` matches no row of the plan{hint}")]
    ComparisonSide { side: String, hint: Box<Hint> },
    #[error("{0}")]
    PublishedRun(Box<UnknownWord>),
    #[error("published run `{run}` has no stack `{stack}`{hint}")]
    PublishedStack { run: String, stack: String, hint: Box<Hint> },
    #[error("name of a factor `{0}` may hold letters, digits, - _ .")]
    FactorName(String),
    #[error("two factors have the name `{0}`")]
    FactorTwice(String),
    #[error("factor `{0}` is a tune-step and needs `step`; `nearmetal tune plan` lists them")]
    FactorWithoutStep(String),
    #[error("factor `{0}` has a `step`, which only kind tune-step has")]
    FactorWithStep(String),
    #[error("factor `{name}` ({kind}) covers no row of the plan{why}")]
    FactorRows { name: String, kind: FactorKind, why: String },
    #[error("name of a sub-plan `{0}` may hold letters, digits, - _ .")]
    SubPlanName(String),
    #[error("two sub-plans have the name `{0}`")]
    SubPlanTwice(String),
    #[error("sub-plan `{0}` takes no row of the plan")]
    SubPlanEmpty(String),
    #[error("`only` of sub-plan `{0}` has no word, so it would take every row of the plan")]
    SubPlanWithoutWords(String),
}

/// The nearest right word, or the known ones.
#[derive(Debug)]
pub(crate) struct Hint {
    near: Option<String>,
    known: Vec<String>,
}

/// Most words that a hint lists.
const LISTED_MAX: usize = 8;

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.near {
            Some(near) => write!(f, ", did you mean `{near}`?"),
            None => write!(f, "; {}", known(&list(&self.known))),
        }
    }
}

/// The words without duplicates, in their order, at most [`LISTED_MAX`] of them.
fn list(words: &[String]) -> String {
    let mut seen = BTreeSet::new();
    let all: Vec<&str> =
        words.iter().map(String::as_str).filter(|word| seen.insert(*word)).collect();
    let shown = all[..all.len().min(LISTED_MAX)].join(", ");
    match all.len().saturating_sub(LISTED_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Checks a plan. Names of published runs are checked only if `published` is given.
pub(crate) fn check(plan: &Plan, published: Option<&[PublishedRun]>) -> Result<(), Fault> {
    if !is_name(&plan.name) {
        return Err(Fault::of_plan("name", CheckError::Name(plan.name.clone())));
    }
    if !(1..=1000).contains(&plan.rounds) {
        return Err(Fault::of_plan("rounds", CheckError::Rounds(plan.rounds)));
    }
    if plan.trials.is_empty() {
        return Err(Fault::of_plan("trials", CheckError::NoTrials));
    }
    for (index, block) in plan.trials.iter().enumerate() {
        check_block(block).map_err(|error| {
            let key = match &error {
                CheckError::Spec(error) => error.field(),
                _ => "probe",
            };
            Fault::of_element("trials", index, key, error)
        })?;
    }
    if let Some(machine) = &plan.machine {
        machine.check().map_err(|error| Fault::of_plan(error.field(), error.into()))?;
    }
    if let Some(guests) = &plan.guests {
        guests.check().map_err(|error| Fault::of_plan(error.field(), error.into()))?;
    }
    if let Some(hosts) = &plan.hosts {
        hosts.check().map_err(|error| Fault::of_plan("[hosts", error.into()))?;
    }
    if let Some(attached) = &plan.attached {
        attached.check().map_err(|error| Fault::of_plan("[attached", error.into()))?;
    }
    check_each_case_once(plan)?;
    let rows = plan.rows();
    for (index, target) in plan.targets.iter().enumerate() {
        check_target(target, &rows)
            .map_err(|(key, error)| Fault::of_element("targets", index, key, error))?;
    }
    for (index, comparison) in plan.comparisons.iter().enumerate() {
        let (key, range) = ("margin_percent", 0.0..=limits::MARGIN_PERCENT_MAX);
        limits::check(key, comparison.margin_percent, range)
            .map_err(|error| Fault::of_element("comparisons", index, key, error.into()))?;
        for (key, side) in ["a", "b"].into_iter().zip(comparison.sides()) {
            check_side(side, &rows, published)
                .map_err(|error| Fault::of_element("comparisons", index, key, error))?;
        }
    }
    check_factors(&plan.factors, &rows)?;
    for (index, name) in plan.references.iter().enumerate() {
        find_run(name, published)
            .map_err(|error| Fault::of_element("references", index, "", error))?;
    }
    check_subplans(&plan.subplans, &rows)
}

/// Checks that no two trials of a round make the same series: they would count as two rounds.
fn check_each_case_once(plan: &Plan) -> Result<(), Fault> {
    let mut seen: BTreeMap<String, Vec<Case>> = BTreeMap::new();
    for (index, block) in plan.trials.iter().enumerate() {
        for &environment in &block.environments {
            for &stacks in &block.stacks {
                let path = PlanRow { environment, stacks, block }.path();
                // Networks of the exchange with different waiting ends have one name.
                let series = format!("{path} {stacks} {}", block.probe.kind());
                let cases = seen.entry(series).or_default();
                for case in block.probe.cases() {
                    if cases.contains(&case) {
                        let error = CheckError::CaseTwice { path, case: case.to_string() };
                        return Err(Fault::of_element("trials", index, "probe", error));
                    }
                    cases.push(case);
                }
            }
        }
    }
    Ok(())
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || "-_.".contains(c))
}

fn check_block(block: &TrialBlock) -> Result<(), CheckError> {
    if block.environments.is_empty() || block.stacks.is_empty() {
        return Err(CheckError::EmptyTrials);
    }
    for pair in &block.stacks {
        block.probe.check(pair.wire_protocol())?;
    }
    Ok(())
}

/// A key of a target, and what is wrong with its value.
type TargetFault = (&'static str, CheckError);

/// Checks that a target is for at least one row: each of its conditions leaves one.
fn check_target(target: &PlanTarget, all: &[PlanRow<'_>]) -> Result<(), TargetFault> {
    target.require.check_limit().map_err(|error| ("require", error.into()))?;
    let mut rows: Vec<PlanRow<'_>> =
        all.iter().copied().filter(|row| is_on(&target.on, row)).collect();
    if rows.is_empty() {
        let hint = hint_for_path(target.on.text(), all);
        return Err(("on", CheckError::TargetOn { on: target.on.clone(), hint }));
    }
    let first = rows.first().map(|row| row.probe().kind());
    rows.retain(|row| target.covers_probe(row.probe().kind()));
    match (rows.is_empty(), target.probe, first) {
        (true, Some(probe), _) => {
            return Err(("probe", CheckError::TargetProbe { probe, run: run_of(probe, all) }));
        }
        (true, None, Some(probe)) => {
            return Err(("on", CheckError::TargetNeedsProbe { on: target.on.clone(), probe }));
        }
        _ => {}
    }
    let known: BTreeSet<StackClass> = rows.iter().map(|row| row.stacks.class()).collect();
    rows.retain(|row| target.covers_class(row.stacks.class()));
    if rows.is_empty() {
        let names = |classes: Vec<StackClass>| {
            let names: Vec<&str> = classes.into_iter().map(StackClass::name).collect();
            names.join(", ")
        };
        let (classes, known) = (names(target.classes.clone()), names(known.into_iter().collect()));
        return Err(("class", CheckError::TargetClass { on: target.on.clone(), classes, known }));
    }
    let metric = target.require.metric;
    let text = target.require.text.clone();
    let probes: Vec<&ProbeSpec> = rows.iter().map(PlanRow::probe).collect();
    rows.retain(|row| row.probe().records(metric));
    if rows.is_empty() {
        let (hint, help) = hint_for_metric(metric, &probes);
        return Err(("require", CheckError::TargetMetric { text, metric, hint, help }));
    }
    let cases: Vec<Case> = rows.iter().flat_map(|row| row.probe().cases()).collect();
    if !cases.is_empty() && !cases.iter().any(|case| target.require.covers(case)) {
        let conditions = target.require.conditions().unwrap_or_default().to_string();
        let known = known_cases(&cases);
        return Err(("require", CheckError::TargetCase { text, conditions, known }));
    }
    Ok(())
}

fn is_on(on: &Selector, row: &PlanRow<'_>) -> bool {
    on.matches(row.environment.name(), &row.stack_name())
}

/// Where the plan runs a probe, or which probes it runs.
fn run_of(probe: ProbeKind, rows: &[PlanRow<'_>]) -> String {
    let of_probe = rows.iter().filter(|row| row.probe().kind() == probe);
    let paths: Vec<String> = of_probe.map(PlanRow::path).collect();
    if paths.is_empty() {
        let run: Vec<String> = rows.iter().map(|row| row.probe().kind().to_string()).collect();
        return format!("its probes are {}", list(&run));
    }
    format!("it runs {probe} on {}", list(&paths))
}

/// The sizes or patterns of cases.
fn known_cases(cases: &[Case]) -> String {
    let sizes: BTreeSet<u32> = cases.iter().filter_map(Case::size_bytes).collect();
    let sizes: Vec<String> = sizes.into_iter().map(|size| size.to_string()).collect();
    let pattern = |case: &Case| match case {
        Case::Flows { pattern, .. } => Some(pattern.to_string()),
        _ => None,
    };
    let patterns: Vec<String> = cases.iter().filter_map(pattern).collect();
    match (sizes.is_empty(), patterns.is_empty()) {
        (false, true) => format!("their sizes are {} B", list(&sizes)),
        (true, false) => format!("their patterns are {}", list(&patterns)),
        _ => {
            format!("their sizes are {} B, their patterns {}", list(&sizes), list(&patterns))
        }
    }
}

/// The nearest figure that probes record, and how to get the one that is wanted.
fn hint_for_metric(metric: Metric, probes: &[&ProbeSpec]) -> (Box<Hint>, String) {
    let percentiles = PERCENTILES.map(|p| format!("p{p}"));
    let names = Metric::NAMES.iter().map(|name| (*name).to_string()).chain(percentiles);
    let mut known: Vec<String> = vec![];
    for name in names {
        let is_recorded = name
            .parse()
            .is_ok_and(|metric: Metric| probes.iter().any(|probe| probe.records(metric)));
        if is_recorded && !known.contains(&name) {
            known.push(name);
        }
    }
    let is_pingpong = |probe: &&ProbeSpec| matches!(probe, ProbeSpec::Pingpong(_));
    let help = match metric {
        Metric::Percentile(p) if probes.iter().any(is_pingpong) => {
            format!("; or ask for it in their [[trials]]: `percentiles = [{p}]`")
        }
        Metric::Throughput => "; throughput is the figure of probe stream".to_string(),
        _ => String::new(),
    };
    let near = match metric {
        Metric::Throughput => None,
        _ => nearest(&metric.to_string(), &known),
    };
    (Box::new(Hint { near, known }), help)
}

fn check_side(
    side: &str,
    rows: &[PlanRow<'_>],
    published: Option<&[PublishedRun]>,
) -> Result<(), CheckError> {
    if let Some((name, stack)) = published_run(side) {
        let (Some(run), Some(stack)) = (find_run(name, published)?, stack) else { return Ok(()) };
        if run.stacks.iter().any(|known| glob(stack, known)) {
            return Ok(());
        }
        let near = nearest_pattern(stack, &run.stacks);
        let hint = Box::new(Hint { near, known: run.stacks.clone() });
        let (run, stack) = (name.to_string(), stack.to_string());
        return Err(CheckError::PublishedStack { run, stack, hint });
    }
    if rows.iter().any(|row| PlanComparison::side_covers_row(side, row)) {
        return Ok(());
    }
    Err(CheckError::ComparisonSide { side: side.to_string(), hint: hint_for_path(side, rows) })
}

/// The published run of that name; none if names are not checked.
fn find_run<'a>(
    name: &str,
    published: Option<&'a [PublishedRun]>,
) -> Result<Option<&'a PublishedRun>, CheckError> {
    let Some(published) = published else { return Ok(None) };
    let found = published.iter().find(|run| run.name == name);
    found.map(Some).ok_or_else(|| {
        let names: Vec<&str> = published.iter().map(|run| run.name.as_str()).collect();
        CheckError::PublishedRun(Box::new(UnknownWord::new("published run", name, &names)))
    })
}

fn check_subplans(parts: &[SubPlan], rows: &[PlanRow<'_>]) -> Result<(), Fault> {
    for (index, part) in parts.iter().enumerate() {
        let name = &part.name;
        let fault = |key, error: fn(String) -> CheckError| {
            Err(Fault::of_element("subplans", index, key, error(name.clone())))
        };
        if !is_name(name) {
            return fault("name", CheckError::SubPlanName);
        }
        if parts[..index].iter().any(|other| other.name == *name) {
            return fault("name", CheckError::SubPlanTwice);
        }
        if part.only.is_empty() {
            return fault("only", CheckError::SubPlanWithoutWords);
        }
        if !rows.iter().any(|row| row.is_taken_by(&part.only)) {
            return fault("only", CheckError::SubPlanEmpty);
        }
    }
    Ok(())
}

fn check_factors(factors: &[Factor], rows: &[PlanRow<'_>]) -> Result<(), Fault> {
    limits::check_count("factors", factors.len(), limits::FACTORS_MAX)
        .map_err(|error| Fault::of_plan("[[factors]]", error.into()))?;
    for (index, factor) in factors.iter().enumerate() {
        let fault = |key, error| Err(Fault::of_element("factors", index, key, error));
        if !is_name(&factor.name) {
            return fault("name", CheckError::FactorName(factor.name.clone()));
        }
        if factors[..index].iter().any(|other| other.name == factor.name) {
            return fault("name", CheckError::FactorTwice(factor.name.clone()));
        }
        match (factor.kind == FactorKind::TuneStep, &factor.step) {
            (true, None) => {
                return fault("kind", CheckError::FactorWithoutStep(factor.name.clone()));
            }
            (false, Some(_)) => {
                return fault("step", CheckError::FactorWithStep(factor.name.clone()));
            }
            _ => {}
        }
        if !rows.iter().any(|row| factor.covers_row(row)) {
            let (name, kind) = (factor.name.clone(), factor.kind);
            let on = rows.iter().filter(|row| is_on(&factor.on, row));
            let paths: Vec<String> = on.map(PlanRow::path).collect();
            let why = match paths.is_empty() {
                true => hint_for_path(factor.on.text(), rows).to_string(),
                false => format!(": it has no meaning for {}", list(&paths)),
            };
            return fault("on", CheckError::FactorRows { name, kind, why });
        }
    }
    Ok(())
}

/// The nearest selector that matches a row, or the paths of all rows.
fn hint_for_path(text: &str, rows: &[PlanRow<'_>]) -> Box<Hint> {
    let near = nearest_selector(text, rows).filter(|near| {
        let selector = Selector::new(near);
        rows.iter().any(|row| is_on(&selector, row))
    });
    Box::new(Hint { near, known: rows.iter().map(PlanRow::path).collect() })
}

fn nearest_selector(text: &str, rows: &[PlanRow<'_>]) -> Option<String> {
    let environments: Vec<String> = rows.iter().map(|row| row.environment.to_string()).collect();
    let stacks: Vec<String> = rows.iter().map(PlanRow::stack_name).collect();
    let selector = Selector::new(text);
    let Some((environment, stack)) = selector.parts() else {
        let all: Vec<String> = environments.into_iter().chain(stacks).collect();
        return nearest_pattern(selector.text(), &all);
    };
    let is_known = |pattern: &str, names: &[String]| names.iter().any(|name| glob(pattern, name));
    let near_environment = match is_known(environment, &environments) {
        true => Some(environment.to_string()),
        false => nearest_pattern(environment, &environments),
    };
    if is_known(stack, &stacks) {
        // The environment has a typing error, or the stack runs in another one.
        let elsewhere = || {
            let row = rows.iter().find(|row| glob(stack, &row.stack_name()))?;
            Some(format!("{}/{stack}", row.environment))
        };
        return match near_environment? {
            near if near != environment => Some(format!("{near}/{stack}")),
            _ => elsewhere(),
        };
    }
    let near_environment = near_environment?;
    let of_environment = rows.iter().filter(|row| glob(&near_environment, row.environment.name()));
    let names: Vec<String> = of_environment.map(PlanRow::stack_name).collect();
    Some(format!("{near_environment}/{}", nearest_pattern(stack, &names)?))
}

/// The pattern nearest to `pattern` that matches one of `names`: the word beside the stars is
/// compared with the beginnings and ends of the names.
fn nearest_pattern(pattern: &str, names: &[String]) -> Option<String> {
    let core = pattern.trim_matches('*');
    if core.is_empty() || core.contains('*') {
        return None;
    }
    let (is_open_before, is_open_after) = (pattern.starts_with('*'), pattern.ends_with('*'));
    let is_boundary = |c: char| "-+: ".contains(c);
    let mut words: Vec<&str> = vec![];
    for name in names {
        let cuts: Vec<usize> = name
            .char_indices()
            .filter(|(_, c)| is_boundary(*c))
            .flat_map(|(at, c)| [at + c.len_utf8(), at])
            .collect();
        let starts = if is_open_before { cuts.as_slice() } else { &[] };
        let ends = if is_open_after { cuts.as_slice() } else { &[] };
        for start in [0].iter().chain(starts) {
            for end in [name.len()].iter().chain(ends).filter(|end| start < *end) {
                words.push(&name[*start..*end]);
            }
        }
    }
    let near = nearest(core, &words)?;
    let star = |is_open| if is_open { "*" } else { "" };
    Some(format!("{}{near}{}", star(is_open_before), star(is_open_after)))
}
