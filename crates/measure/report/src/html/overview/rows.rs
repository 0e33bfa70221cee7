//! What the overview picture shows: of each environment and stack the figures of one case.

use std::collections::BTreeMap;

use nm_model::metric::{Metric, Quantity};
use nm_model::probe::ProbeKind;
use nm_model::result::Statistic;
use nm_model::{Outcome, RunResult, Series, SeriesKey};

use crate::decisive::requirement_text;
use crate::probes::{self, case_words};
use crate::svg::Look;
use crate::view::{self, Notes};

/// Most lines of the picture, headings included: more do not fit the first screen.
const LINES_MAX: usize = 46;

/// Fewest rows of a group that is shortened.
const ROWS_MIN: usize = 3;

/// The message size that is shown where there are several, bytes.
const SIZE_BYTES: f64 = 64.0;

/// Rows that share a heading.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// Environment, statistic and case.
    pub title: String,
    /// Rows, the lowest median first.
    pub rows: Vec<Row>,
    /// Rows that did not fit.
    pub n_left_out: usize,
}

/// One stack in one environment.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Stack, or name of a published run.
    pub label: String,
    /// Median, ns; of published runs without one the mean.
    pub median_ns: f64,
    /// 99th percentile, ns.
    pub p99_ns: Option<f64>,
    /// Where it comes from.
    pub kind: Kind,
    /// The look of its stack in all charts.
    pub look: Look,
    /// Limits of targets that judged this series.
    pub limits: Vec<Limit>,
    /// Numbers of its doubts, as tables show them; empty without doubts.
    pub doubts: String,
    /// Whether a target fails because of this stack here, with this case or another.
    pub is_failing: bool,
}

/// Where the figures of a row come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Measured here.
    Measured,
    /// A published run.
    Published,
}

/// The limit of a target.
#[derive(Debug, Clone, PartialEq)]
pub struct Limit {
    /// Where, ns.
    pub ns: f64,
    /// The target: `p99 < 100 µs`.
    pub text: String,
}

/// A family of rows: one probe, half or full round trips.
type Family = (ProbeKind, &'static str);

/// The rows of `result` and of `references`, by probe, then by environment.
pub fn groups(result: &RunResult, references: &[RunResult], notes: &Notes) -> Vec<Group> {
    let judged = Judged::of(result);
    let mut families: Vec<Family> = vec![];
    for family in result.series.iter().filter_map(|series| family(&series.key)) {
        if !families.contains(&family) {
            families.push(family);
        }
    }
    let mut groups = vec![];
    for family in families {
        let chosen = chosen(result, family);
        let mut environments: Vec<&str> = vec![];
        for series in &chosen {
            if !environments.contains(&series.key.environment.as_str()) {
                environments.push(&series.key.environment);
            }
        }
        for environment in environments {
            let of_environment: Vec<&Series> = chosen
                .iter()
                .copied()
                .filter(|series| series.key.environment == environment)
                .collect();
            let rows = of_environment.iter().filter_map(|series| measured(series, &judged, notes));
            groups.push(group(environment, family, &of_environment, rows.collect()));
        }
        let rows = published(references, family, &chosen);
        if !rows.is_empty() {
            groups.push(Group {
                title: format!("published runs · {}", family.1),
                rows: sorted(rows),
                n_left_out: 0,
            });
        }
    }
    groups.retain(|group| !group.rows.is_empty());
    shorten(&mut groups);
    groups
}

fn family(key: &SeriesKey) -> Option<Family> {
    match key.statistic {
        Statistic::HalfRoundTrip => Some((key.probe, "half round trip")),
        Statistic::RoundTrip | Statistic::RoundTripFromIntended => Some((key.probe, "round trip")),
        Statistic::Throughput | Statistic::Interruption | Statistic::JobTime => None,
    }
}

/// One series for each environment and stack: from the intended send where there is such a one, of
/// the size nearest to 64 B, the first rate.
fn chosen(result: &RunResult, wanted: Family) -> Vec<&Series> {
    let mut chosen: Vec<&Series> = vec![];
    for series in result.series.iter().filter(|series| family(&series.key) == Some(wanted)) {
        let path = series.key.path();
        match chosen.iter_mut().find(|known| known.key.path() == path) {
            Some(known) if rank(series) < rank(known) => *known = series,
            Some(_) => {}
            None => chosen.push(series),
        }
    }
    chosen
}

/// Lower is shown before higher.
fn rank(series: &Series) -> (bool, f64) {
    let distance = series
        .key
        .case
        .size_bytes()
        .map_or(0.0, |size| (f64::from(size).max(0.5) / SIZE_BYTES).ln().abs());
    (series.key.statistic == Statistic::RoundTrip, distance)
}

/// What the targets found, by series.
struct Judged<'a> {
    /// Limits on latencies by the name of the series that they judged.
    limits: BTreeMap<&'a str, Vec<Limit>>,
    /// Series because of which a target fails.
    failing: Vec<&'a SeriesKey>,
}

impl<'a> Judged<'a> {
    fn of(result: &'a RunResult) -> Judged<'a> {
        let mut judged = Judged { limits: BTreeMap::new(), failing: vec![] };
        let mut failing: Vec<&str> = vec![];
        for verdict in &result.verdicts {
            let Some(target) = &verdict.require else { continue };
            for evidence in &verdict.evidence {
                if verdict.outcome == Outcome::Fail && evidence.outcome == Outcome::Fail {
                    failing.push(&evidence.series);
                }
                if target.metric.quantity() == Quantity::Latency && target.limit > 0.0 {
                    let limit = Limit { ns: target.limit, text: requirement_text(target) };
                    judged.limits.entry(&evidence.series).or_default().push(limit);
                }
            }
        }
        let keys = result.series.iter().map(|series| &series.key);
        judged.failing = keys.filter(|key| failing.contains(&key.to_string().as_str())).collect();
        judged
    }

    fn is_failing(&self, key: &SeriesKey) -> bool {
        self.failing.iter().any(|other| other.probe == key.probe && other.path() == key.path())
    }
}

fn measured(series: &Series, judged: &Judged<'_>, notes: &Notes) -> Option<Row> {
    let is_usable = |ns: &f64| ns.is_finite() && *ns > 0.0;
    Some(Row {
        label: label(series),
        median_ns: view::value(series, Metric::Median).filter(is_usable)?,
        p99_ns: view::value(series, Metric::Percentile(99.0)).filter(is_usable),
        kind: Kind::Measured,
        look: Look::of_stack(&series.key.stack),
        limits: judged.limits.get(series.key.to_string().as_str()).cloned().unwrap_or_default(),
        doubts: notes.marks(&series.doubts),
        is_failing: judged.is_failing(&series.key),
    })
}

/// The stack. The mark of emulated guests is in front, because a long label loses its end.
fn label(series: &Series) -> String {
    match series.is_emulated() {
        true => format!("{} {}", view::EMULATED, series.key.stack),
        false => series.key.stack.clone(),
    }
}

/// The heading names the case if all rows share it; else each label does.
fn group(environment: &str, family: Family, series: &[&Series], mut rows: Vec<Row>) -> Group {
    let cases: Vec<String> =
        series.iter().map(|series| case_words::brief(&series.key.case)).collect();
    let is_shared = cases.iter().all(|case| *case == cases[0]);
    let case = if is_shared { cases.first().cloned().unwrap_or_default() } else { String::new() };
    if !is_shared {
        for row in &mut rows {
            let own = series.iter().find(|series| row.label == label(series));
            row.label +=
                &own.map_or_else(String::new, |s| format!(" {}", case_words::brief(&s.key.case)));
        }
    }
    let probe = match probes::of(family.0).is_named {
        true => format!(" {}", family.0),
        false => String::new(),
    };
    let case = if case.is_empty() { case } else { format!(", {case}") };
    let title = format!("{environment}{probe} · {}{case}", family.1);
    Group { title, rows: sorted(rows), n_left_out: 0 }
}

/// Published rows of the same family: of each run and stack the case nearest to those shown; of an
/// exchange only layouts that were measured too.
fn published(references: &[RunResult], wanted: Family, own: &[&Series]) -> Vec<Row> {
    let is_beside = probes::of(wanted.0).is_beside;
    let is_wanted = |series: &&Series| {
        family(&series.key) == Some(wanted) && own.iter().any(|own| is_beside(series, own))
    };
    let own_rate = own.iter().find_map(|series| series.key.case.rate_per_s());
    let mut rows = vec![];
    for run in references {
        let distance = |series: &&Series| {
            let rates = series.key.case.rate_per_s().zip(own_rate);
            rates.map_or_else(|| rank(series).1, |(a, b)| (a / b).ln().abs())
        };
        let nearest =
            run.series.iter().filter(is_wanted).min_by(|a, b| distance(a).total_cmp(&distance(b)));
        let Some(series) = nearest else { continue };
        let median = view::value(series, Metric::Median);
        let Some(median_ns) = median.or_else(|| view::value(series, Metric::Mean)) else {
            continue;
        };
        let mean = if median.is_some() { "" } else { " (mean)" };
        rows.push(Row {
            label: format!("{} {}{mean}", run.name, case_words::brief(&series.key.case)),
            median_ns,
            p99_ns: view::value(series, Metric::Percentile(99.0)),
            kind: Kind::Published,
            look: Look::faint(0),
            limits: vec![],
            doubts: String::new(),
            is_failing: false,
        });
    }
    rows.retain(|row| row.median_ns.is_finite() && row.median_ns > 0.0);
    rows
}

fn sorted(mut rows: Vec<Row>) -> Vec<Row> {
    rows.sort_by(|a, b| a.median_ns.total_cmp(&b.median_ns));
    rows
}

/// Takes rows from the largest groups until the picture fits: those that fail no target, the
/// slowest first.
fn shorten(groups: &mut Vec<Group>) {
    let is_long = |group: &Group| group.rows.len() > ROWS_MIN;
    let n_lines = |groups: &[Group]| groups.iter().map(|group| group.rows.len() + 1).sum::<usize>();
    while n_lines(groups) > LINES_MAX {
        let Some(group) =
            groups.iter_mut().filter(|group| is_long(group)).max_by_key(|group| group.rows.len())
        else {
            break;
        };
        let last = group.rows.iter().rposition(|row| !row.is_failing);
        group.rows.remove(last.unwrap_or(group.rows.len() - 1));
        group.n_left_out += 1;
    }
    let fitting = LINES_MAX / (ROWS_MIN + 1);
    groups.truncate(fitting.max(1));
}
