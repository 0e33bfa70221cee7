//! Series put together as the lines of charts.

use nm_model::RunResult;
use nm_model::probe::ProbeKind;
use nm_model::result::{Series, Statistic};
use nm_model::verdict::Verdict;

use crate::probes::{self, case_words};
use crate::svg::{LegendEntry, Look, Swatch};
use crate::view;

/// Most entries in one chart; more are spread over several.
const ENTRIES_MAX: usize = 6;

/// One line of a chart: all cases of one stack and statistic.
#[derive(Clone)]
pub struct Subject<'a> {
    pub label: String,
    pub environment: &'a str,
    pub look: Look,
    /// By rising size.
    pub series: Vec<&'a Series>,
}

/// Subjects that share axes: one probe, half or full round trips.
pub struct Family<'a> {
    pub probe: ProbeKind,
    /// `half round trip` or `round trip`.
    pub measure: &'static str,
    pub subjects: Vec<Subject<'a>>,
    /// The same of other runs, drawn faintly.
    pub references: Vec<Subject<'a>>,
    /// What the targets of the run came to, for their limits.
    pub verdicts: &'a [Verdict],
}

/// The subjects of one chart.
pub struct Panel<'f, 'a> {
    pub environment: &'a str,
    /// ` · netns`, with a number where the environment has several charts.
    pub name: String,
    pub subjects: Vec<&'f Subject<'a>>,
    /// Subjects of other runs that belong beside them.
    pub references: Vec<&'f Subject<'a>>,
}

impl<'f, 'a> Panel<'f, 'a> {
    /// The subjects of this run, then the others.
    pub fn all(&self) -> impl Iterator<Item = &'f Subject<'a>> + use<'_, 'f, 'a> {
        self.subjects.iter().chain(&self.references).copied()
    }
}

fn measure(statistic: Statistic) -> Option<&'static str> {
    match statistic {
        Statistic::HalfRoundTrip => Some("half round trip"),
        Statistic::RoundTrip | Statistic::RoundTripFromIntended => Some("round trip"),
        Statistic::Throughput | Statistic::Interruption | Statistic::JobTime => None,
    }
}

pub fn families<'a>(result: &'a RunResult, references: &'a [RunResult]) -> Vec<Family<'a>> {
    let mut families: Vec<Family<'a>> = vec![];
    for series in &result.series {
        let Some(measure) = measure(series.key.statistic) else { continue };
        let probe = series.key.probe;
        let found = families.iter().position(|f| f.probe == probe && f.measure == measure);
        let index = found.unwrap_or_else(|| {
            let verdicts = &result.verdicts;
            let (subjects, references) = (vec![], vec![]);
            families.push(Family { probe, measure, subjects, references, verdicts });
            families.len() - 1
        });
        add(&mut families[index].subjects, series, 0);
    }
    for family in &mut families {
        for run in references {
            let first = family.references.len();
            let is_same = |s: &&Series| {
                s.key.probe == family.probe && measure(s.key.statistic) == Some(family.measure)
            };
            run.series.iter().filter(is_same).for_each(|s| add(&mut family.references, s, first));
            for subject in &mut family.references[first..] {
                subject.label = reference_label(run, &subject.series[0].key.stack);
            }
        }
        finish(family);
    }
    families
}

/// `reference NAME STACK`.
pub fn reference_label(run: &RunResult, stack: &str) -> String {
    format!("reference {} {stack}", run.name)
}

/// Adds `series` to the subject of its stack among those from `first` on.
fn add<'a>(subjects: &mut Vec<Subject<'a>>, series: &'a Series, first: usize) {
    let key = &series.key;
    let is_same = |subject: &Subject<'_>| {
        let other = &subject.series[0].key;
        (&other.environment, &other.stack, other.statistic)
            == (&key.environment, &key.stack, key.statistic)
            && other.case.rate_per_s() == key.case.rate_per_s()
    };
    match subjects[first..].iter_mut().find(|s| is_same(s)) {
        Some(subject) => subject.series.push(series),
        None => subjects.push(Subject {
            label: String::new(),
            environment: &key.environment,
            look: Look::of_stack(&key.stack),
            series: vec![series],
        }),
    }
}

/// Names the subjects, tells those of one stack apart and sorts their cases.
fn finish(family: &mut Family<'_>) {
    for subject in &mut family.subjects {
        let key = &subject.series[0].key;
        let origin = (probes::of(key.probe).origin)(key.statistic);
        let label = format!("{}{}{origin}", key.path(), case_words::pace(&key.case));
        subject.label = view::marked(subject.series[0], label);
    }
    for index in 0..family.subjects.len() {
        let (before, [subject, ..]) = family.subjects.split_at_mut(index) else { break };
        let is_taken = |look: Look| {
            before.iter().any(|s| s.environment == subject.environment && s.look == look)
        };
        let looks = std::iter::successors(Some(subject.look), |l| Some(l.with_next_pattern()));
        // More of one stack than there are patterns look the same again.
        let free = looks.take(ENTRIES_MAX).find(|look| !is_taken(*look));
        subject.look = free.unwrap_or(subject.look);
    }
    for (index, subject) in family.references.iter_mut().enumerate() {
        subject.label += &case_words::pace(&subject.series[0].key.case);
        subject.look = Look::faint(index);
    }
    for subject in family.subjects.iter_mut().chain(&mut family.references) {
        subject.series.sort_by_key(|s| s.key.case.size_bytes());
    }
}

/// One line of the legend for each subject.
pub fn legend<'s>(subjects: impl IntoIterator<Item = &'s Subject<'s>>) -> Vec<LegendEntry> {
    subjects
        .into_iter()
        .map(|s| LegendEntry { swatch: Swatch::Line, look: s.look, label: s.label.clone() })
        .collect()
}

/// Environments in order of first appearance, each once.
pub fn environments<'a>(all: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let mut environments = vec![];
    for environment in all {
        if !environments.contains(&environment) {
            environments.push(environment);
        }
    }
    environments
}

/// The subjects of a family in charts of a readable number, each of one environment.
pub fn panels<'f, 'a>(family: &'f Family<'a>) -> Vec<Panel<'f, 'a>> {
    let environments = environments(family.subjects.iter().map(|s| s.environment));
    let mut panels = vec![];
    for environment in environments {
        let all: Vec<_> = family.subjects.iter().filter(|s| s.environment == environment).collect();
        let n_charts = all.len().div_ceil(ENTRIES_MAX);
        let n_each = all.len().div_ceil(n_charts.max(1));
        for (index, part) in all.chunks(n_each.max(1)).enumerate() {
            let name = match n_charts {
                1 => format!(" · {environment}"),
                _ => format!(" · {environment} ({} of {n_charts})", index + 1),
            };
            let subjects = part.to_vec();
            let references = references_beside(family, &subjects);
            panels.push(Panel { environment, name, subjects, references });
        }
    }
    panels
}

/// The references that belong beside `subjects`: of an exchange only those of the same size.
pub fn references_beside<'f, 'a>(
    family: &'f Family<'a>,
    subjects: &[&Subject<'a>],
) -> Vec<&'f Subject<'a>> {
    let is_beside = probes::of(family.probe).is_beside;
    let belongs = |reference: &&Subject<'a>| {
        subjects.iter().any(|subject| is_beside(reference.series[0], subject.series[0]))
    };
    family.references.iter().filter(belongs).collect()
}

/// The sizes that charts of one size show: those nearest to 64 B and 1 KiB.
pub fn sizes_of_interest(family: &Family<'_>) -> Vec<Option<u32>> {
    let mut sizes: Vec<Option<u32>> =
        family.subjects.iter().flat_map(|s| &s.series).map(|s| s.key.case.size_bytes()).collect();
    sizes.sort();
    sizes.dedup();
    if sizes.len() <= 2 {
        return sizes;
    }
    let nearest = |wanted: f64| {
        let distance =
            |size: &&Option<u32>| (f64::from(size.unwrap_or(0)).max(0.5) / wanted).ln().abs();
        sizes.iter().min_by(|a, b| distance(a).total_cmp(&distance(b))).copied().flatten()
    };
    let mut chosen = vec![nearest(64.0), nearest(1024.0)];
    chosen.dedup();
    chosen
}

pub fn of_size<'a>(subject: &Subject<'a>, size: Option<u32>) -> Option<&'a Series> {
    subject.series.iter().find(|s| s.key.case.size_bytes() == size).copied()
}
