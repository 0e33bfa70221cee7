//! Environments side by side. Charts are size sweep and percentiles of one stack with a line for
//! each environment, and throughput of all environments. The cost of virtualization is a waterfall.

use nm_model::RunResult;
use nm_model::result::Series;

use crate::guests::{self, Found, Step};
use crate::reference;
use crate::svg::{Axis, Chart, Look, Mark};
use crate::units;

use super::family::{Family, Panel, Subject, families};
use super::figure::Figure;
use super::{percentiles, sweep};
use crate::probes::stream;

/// Most stacks that are drawn; the tables have them all.
const STACKS_MAX: usize = 6;

/// The run of a study with flows between guests.
const PUBLISHED_FLOWS: &str = "xenserver5-netperf-stream";

/// The waterfall of the steps; none without a figure of guests.
pub fn steps(result: &RunResult) -> Option<Figure> {
    let steps = guests::steps(result);
    if steps.is_empty() {
        return None;
    }
    let size = guests::SIZE_BYTES;
    let title = format!("Cost of virtualization: half round trip at {size} B, step by step");
    let mut names = vec![];
    let mut marks = vec![];
    let mut high = 0.0f64;
    let mut before_ns = 0.0;
    for step in &steps {
        let y = -(names.len() as f64);
        names.push(step.name.to_string());
        match &step.found {
            Found::Measured { ns, .. } => {
                marks.extend(step_marks(step, y, before_ns, *ns));
                (before_ns, high) = (*ns, high.max(*ns));
            }
            Found::Emulated { .. } | Found::Missing { .. } => {
                marks.push(Mark::Note(y, step.text()));
            }
        }
        for one in &step.published {
            let y = -(names.len() as f64);
            names.push(one.name.clone());
            marks.push(Mark::Bar { look: Look::faint(0), y: (y, 0.3), x: (0.0, one.ns) });
            marks.push(Mark::Label((one.ns, y), units::latency(one.ns)));
            high = high.max(one.ns);
        }
    }
    let sentence = |step: &Step| format!("{}: {}.", step.name, step.text());
    let sentences: Vec<String> = steps.iter().map(sentence).collect();
    Some(Figure {
        table: guests::steps_table(&steps),
        chart: Chart {
            id: "guests-steps".to_string(),
            description: sentences.join(" "),
            x: Axis::linear("half round trip, median", 0.0, high, 8, units::latency_tick),
            y: Axis::rows("", &names),
            plot_height: 24.0 * names.len() as f64 + 14.0,
            marks,
            legend: vec![],
            key: "bar: from the step before to this one, the first from zero · point: the figure \
                  · no bar: not measured, or EMULATED · faint: published"
                .to_string(),
            title,
        },
    })
}

fn step_marks(step: &Step, y: f64, before_ns: f64, ns: f64) -> Vec<Mark> {
    let look = Look::of_stack(step.stack.as_deref().unwrap_or_default());
    let (from, to) = (before_ns.min(ns), before_ns.max(ns));
    vec![
        Mark::Bar { look, y: (y, 0.6), x: (from, to) },
        Mark::Points(look, vec![(ns, y)]),
        Mark::Label((to, y), step.text()),
    ]
}

/// Sweep and percentiles of each stack that several environments have, one of them of guests, and
/// the throughput of all environments; each with its heading.
pub fn figures(result: &RunResult, references: &[RunResult]) -> Vec<(String, Figure)> {
    let mut figures = vec![];
    for family in families(result, references) {
        for stack in stacks(&family) {
            figures.extend(of_stack(&family, &stack));
        }
    }
    let is_of_guests = |series: &Series| series.comparability.execution.is_some();
    if result.series.iter().any(is_of_guests) {
        let mut runs: Vec<RunResult> = reference::load(PUBLISHED_FLOWS).into_iter().collect();
        runs.extend(references.iter().filter(|run| run.name != PUBLISHED_FLOWS).cloned());
        let figure = stream::chart::beside(result, &runs);
        figures.extend(figure.map(|figure| ("Throughput".to_string(), figure)));
    }
    for ((_, figure), number) in figures.iter_mut().zip(1..) {
        figure.chart.id = format!("guests-{number}");
    }
    figures
}

/// The stack of a subject with its rate, which tells the lines of one environment apart.
fn stack_of(subject: &Subject<'_>) -> String {
    subject.label.split_once('/').map_or(subject.label.as_str(), |(_, rest)| rest).to_string()
}

/// Without the mark, which differs from environment to environment.
fn plain(stack: &str) -> String {
    stack.trim_end_matches(crate::view::EMULATED).trim_end().to_string()
}

/// The stacks that several environments have, one of them of guests.
fn stacks(family: &Family<'_>) -> Vec<String> {
    let mut stacks: Vec<String> = vec![];
    for subject in &family.subjects {
        let stack = plain(&stack_of(subject));
        let same = || family.subjects.iter().filter(|other| plain(&stack_of(other)) == stack);
        let has_guests = |one: &Subject<'_>| one.series[0].comparability.execution.is_some();
        if !stacks.contains(&stack) && same().count() > 1 && same().any(has_guests) {
            stacks.push(stack);
        }
    }
    stacks.truncate(STACKS_MAX);
    stacks
}

/// The charts of one stack.
fn of_stack(family: &Family<'_>, stack: &str) -> Vec<(String, Figure)> {
    let subjects: Vec<Subject<'_>> = family
        .subjects
        .iter()
        .filter(|subject| plain(&stack_of(subject)) == stack)
        .enumerate()
        .map(|(at, subject)| Subject { look: Look::of(at), ..subject.clone() })
        .collect();
    let beside = Family {
        probe: family.probe,
        measure: family.measure,
        subjects,
        references: family.references.clone(),
        verdicts: family.verdicts,
    };
    let panel = Panel {
        environment: "",
        name: format!(" · {stack} in each environment"),
        subjects: beside.subjects.iter().collect(),
        references: beside.references.iter().collect(),
    };
    let sweep = sweep::figure(&beside, &panel);
    let percentiles = percentiles::of_panel(&beside, &panel);
    sweep.into_iter().chain(percentiles).map(|figure| (stack.to_string(), figure)).collect()
}
