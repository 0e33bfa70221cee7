//! Which charts a result gets, and the table that goes with each.

mod drift;
mod percentiles;
mod rounds;
mod sweep;
mod throughput;

use maud::{Markup, html};
use nm_model::RunResult;
use nm_model::probe::{Case, ProbeKind};
use nm_model::result::{Series, Statistic};

use crate::html::region;
use crate::svg::{Axis, Chart, Entry, Look, Swatch};
use crate::table::{Table, Tone};
use crate::units::{self, NOT_AVAILABLE};
use crate::view;

/// Most entries in one chart; more are spread over several.
const ENTRIES_MAX: usize = 6;

/// Most rows in one chart of rows.
const ROWS_MAX: usize = 28;

/// A chart with its table.
pub struct Figure {
    chart: Chart,
    table: Table,
}

/// Charts of one kind under one heading.
pub struct Section {
    /// Heading.
    pub title: &'static str,
    /// How to read the charts, one or two sentences.
    pub reading: &'static str,
    /// The charts.
    pub figures: Vec<Figure>,
}

/// One line of a chart: all cases of one place and statistic.
#[derive(Clone)]
struct Subject<'a> {
    label: String,
    environment: &'a str,
    look: Look,
    /// By rising size.
    series: Vec<&'a Series>,
}

/// Subjects that share axes: one probe, half or full round trips.
struct Family<'a> {
    probe: ProbeKind,
    /// `half round trip` or `round trip`.
    measure: &'static str,
    subjects: Vec<Subject<'a>>,
    /// The same of other runs, drawn faintly.
    references: Vec<Subject<'a>>,
}

/// All sections of charts that have something to show.
pub fn sections(result: &RunResult, references: &[RunResult]) -> Vec<Section> {
    let families = families(result, references);
    let mut sections = vec![
        Section {
            title: "Distribution",
            reading: "How slow the slowest are: each step to the right leaves a tenth of the \
                      samples. Lines end where fewer than ten samples lie beyond; the dotted rest \
                      leads to the maximum.",
            figures: percentiles::figures(&families),
        },
        Section {
            title: "Size sweep",
            reading: "Median by message size, with a band from the minimum to the 99th percentile \
                      and a stroke at the maximum.",
            figures: families.iter().flat_map(sweep::figures).collect(),
        },
        Section {
            title: "Throughput",
            reading: "Bars are the median over rounds, divided by flow, with ± the standard \
                      deviation over rounds; circles are the rounds.",
            figures: throughput::figures(result, references),
        },
        Section {
            title: "Rounds",
            reading: "Every round as a dot: groups of dots are modes, lone dots are outlying \
                      rounds.",
            figures: families.iter().flat_map(rounds::figures).collect(),
        },
        Section {
            title: "Drift over time",
            reading: "Median and 99th percentile of short slices of every round, by the time since \
                      the start of the run. Slopes are warm-up, frequency, heat or a neighbour.",
            figures: families.iter().flat_map(drift::figures).collect(),
        },
    ];
    sections.retain(|section| !section.figures.is_empty());
    for (section, index) in sections.iter_mut().zip(1..) {
        for (figure, number) in section.figures.iter_mut().zip(1..) {
            figure.chart.id = format!("chart-{index}-{number}");
        }
    }
    sections
}

impl Section {
    /// Anchor of the section.
    pub fn anchor(&self) -> String {
        self.title.to_lowercase().replace(' ', "-")
    }
}

impl Figure {
    /// The chart, followed by its table.
    pub fn draw(&self) -> Markup {
        html! {
            figure {
                figcaption { (self.chart.title) }
                div.scroll.plot tabindex="0" role="region"
                    aria-label=(format!("Chart: {}", self.chart.title)) {
                    (self.chart.draw())
                }
                details {
                    summary { "Table: " (self.chart.title) }
                    (region(&self.table))
                }
            }
        }
    }
}

fn measure(statistic: Statistic) -> Option<&'static str> {
    match statistic {
        Statistic::HalfRoundTrip => Some("half round trip"),
        Statistic::RoundTrip | Statistic::RoundTripFromIntended => Some("round trip"),
        Statistic::Throughput => None,
    }
}

fn rate(case: &Case) -> Option<Option<f64>> {
    match case {
        Case::Request { rate_per_s, .. } => Some(*rate_per_s),
        _ => None,
    }
}

fn families<'a>(result: &'a RunResult, references: &'a [RunResult]) -> Vec<Family<'a>> {
    let mut families: Vec<Family<'a>> = vec![];
    for series in &result.series {
        let Some(measure) = measure(series.key.statistic) else { continue };
        let probe = series.key.probe;
        let found = families.iter().position(|f| f.probe == probe && f.measure == measure);
        let index = found.unwrap_or_else(|| {
            families.push(Family { probe, measure, subjects: vec![], references: vec![] });
            families.len() - 1
        });
        add(&mut families[index].subjects, series);
    }
    for family in &mut families {
        for run in references {
            let first = family.references.len();
            let is_same = |s: &&Series| {
                s.key.probe == family.probe && measure(s.key.statistic) == Some(family.measure)
            };
            run.series
                .iter()
                .filter(is_same)
                .for_each(|s| add_of(&mut family.references, s, first));
            for subject in &mut family.references[first..] {
                subject.label = format!("reference {}", run.name);
            }
        }
        finish(family);
    }
    families
}

fn add<'a>(subjects: &mut Vec<Subject<'a>>, series: &'a Series) {
    add_of(subjects, series, 0);
}

/// Adds `series` to the subject of its place among those from `first` on.
fn add_of<'a>(subjects: &mut Vec<Subject<'a>>, series: &'a Series, first: usize) {
    let key = &series.key;
    let is_same = |subject: &Subject<'_>| {
        let other = &subject.series[0].key;
        (&other.environment, &other.stack, other.statistic)
            == (&key.environment, &key.stack, key.statistic)
            && rate(&other.case) == rate(&key.case)
    };
    match subjects[first..].iter_mut().find(|s| is_same(s)) {
        Some(subject) => subject.series.push(series),
        None => subjects.push(Subject {
            label: String::new(),
            environment: &key.environment,
            look: Look::of(0),
            series: vec![series],
        }),
    }
}

/// Names the subjects, gives them their looks and sorts their cases.
fn finish(family: &mut Family<'_>) {
    let mut places: Vec<String> = vec![];
    for subject in &mut family.subjects {
        let key = &subject.series[0].key;
        let pace = match rate(&key.case) {
            Some(Some(rate)) => format!(" at {}/s", units::plain(rate)),
            Some(None) => " closed loop".to_string(),
            None => String::new(),
        };
        let sort = match (key.probe, key.statistic) {
            (ProbeKind::Rr, Statistic::RoundTripFromIntended) => " from intended send",
            (ProbeKind::Rr, Statistic::RoundTrip) => " service time",
            _ => "",
        };
        subject.label = format!("{}{pace}{sort}", key.path());
        places.push(subject.label.clone());
    }
    // Charts of one environment use the first looks again, so that neighbours differ.
    let is_split = family.subjects.len() > ENTRIES_MAX;
    for index in 0..family.subjects.len() {
        let environment = family.subjects[index].environment;
        let before = &family.subjects[..index];
        let n_before = before.iter().filter(|s| !is_split || s.environment == environment).count();
        family.subjects[index].look = Look::of(n_before);
    }
    for (index, subject) in family.references.iter_mut().enumerate() {
        subject.look = Look::faint(index);
    }
    for subject in family.subjects.iter_mut().chain(&mut family.references) {
        subject.series.sort_by_key(|s| s.key.case.size_bytes());
    }
}

/// The subjects of a family in charts of a readable number, each chart with its name.
fn panels<'f, 'a>(family: &'f Family<'a>) -> Vec<(String, Vec<&'f Subject<'a>>)> {
    if family.subjects.len() <= ENTRIES_MAX {
        return vec![(String::new(), family.subjects.iter().collect())];
    }
    let mut environments: Vec<&str> = vec![];
    for subject in &family.subjects {
        if !environments.contains(&subject.environment) {
            environments.push(subject.environment);
        }
    }
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
            panels.push((name, part.to_vec()));
        }
    }
    panels
}

/// The sizes that charts of one size show: those nearest to 64 B and 1 KiB.
fn sizes_of_interest(family: &Family<'_>) -> Vec<Option<u32>> {
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

fn size_text(size: Option<u32>) -> String {
    size.map_or(String::new(), |size| format!(" {}", units::bytes(u64::from(size))))
}

fn of_size<'a>(subject: &Subject<'a>, size: Option<u32>) -> Option<&'a Series> {
    subject.series.iter().find(|s| s.key.case.size_bytes() == size).copied()
}

fn legend(subjects: &[&Subject<'_>]) -> Vec<Entry> {
    subjects
        .iter()
        .map(|s| Entry { swatch: Swatch::Line, look: s.look, label: s.label.clone() })
        .collect()
}

fn time_axis(measure: &str, values: &[f64]) -> Axis {
    Axis::log(&format!("{measure}, logarithmic"), values, units::latency_tick)
}

fn tone(look: Look) -> Tone {
    if look.is_faint { Tone::Faint } else { Tone::Plain }
}

fn count_text(series: &Series) -> String {
    view::samples(series).map_or_else(|| NOT_AVAILABLE.to_string(), units::count)
}

/// ` (1 of 3)` behind a title, nothing where there is one chart only.
fn number(index: usize, n_charts: usize) -> String {
    if n_charts > 1 { format!(" ({} of {n_charts})", index + 1) } else { String::new() }
}

/// Height of dot `index` of `n` above the middle of its row, so that equal values stay apart.
fn spread(index: usize, n: usize) -> f64 {
    if n < 2 { 0.0 } else { 0.2 - 0.4 * index as f64 / (n - 1) as f64 }
}
