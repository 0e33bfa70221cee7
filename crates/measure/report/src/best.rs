//! The best stacks of a result: what the first screen names, and what the shared picture draws.
//!
//! Best is the lowest median of the messages nearest to 64 B. Stacks that work between hosts come
//! before those that need both ends on one host. The loopback interface, which is no network,
//! counts only where nothing else was measured. Figures of emulated guests never count.

use nm_model::RunResult;
use nm_model::class::StackClass;
use nm_model::environment::EnvironmentKind;
use nm_model::metric::Metric;
use nm_model::probe::ProbeKind;
use nm_model::result::Series;

use crate::probes;
use crate::view;

/// Most stacks in one picture.
pub const STACKS_MAX: usize = 5;

/// The message size that is shown where there are several, bytes.
const SIZE_BYTES: f64 = 64.0;

/// Whether a series has round trips over something that carries messages.
pub fn is_round_trip(series: &Series) -> bool {
    probe_rank(series).is_some()
}

/// By the order of the probes, then by what names a stack first.
fn probe_rank(series: &Series) -> Option<(ProbeKind, usize)> {
    let (probe, statistic) = (series.key.probe, series.key.statistic);
    let at = probes::of(probe).round_trips.iter().position(|known| *known == statistic)?;
    Some((probe, at))
}

fn distance(series: &Series) -> f64 {
    let size = series.key.case.size_bytes().map_or(SIZE_BYTES, |size| f64::from(size).max(0.5));
    (size / SIZE_BYTES).ln().abs()
}

fn is_loopback(series: &Series) -> bool {
    series.key.environment.parse() == Ok(EnvironmentKind::Loopback)
}

/// Whether a series needs both ends on one host.
pub fn is_same_host(series: &Series) -> bool {
    series.key.class() == Some(StackClass::SameHost)
}

/// The median of a series that counts, ns.
fn median_ns(series: &Series) -> Option<f64> {
    let ns = view::value(series, Metric::Median).filter(|ns| ns.is_finite() && *ns > 0.0)?;
    (!series.is_emulated()).then_some(ns)
}

/// The series of one probe and case, the best first.
pub fn ranked(result: &RunResult) -> Vec<&Series> {
    let mut found: Vec<(&Series, (ProbeKind, usize), f64)> = result
        .series
        .iter()
        .filter_map(|series| Some((series, probe_rank(series)?, median_ns(series)?)))
        .collect();
    found.sort_by(|(a, a_probe, a_ns), (b, b_probe, b_ns)| {
        let place = |one: &Series| (is_same_host(one), is_loopback(one));
        a_probe
            .cmp(b_probe)
            .then(distance(a).total_cmp(&distance(b)))
            .then(place(a).cmp(&place(b)))
            .then(a_ns.total_cmp(b_ns))
    });
    let first = found.first().map(|(series, ..)| &series.key);
    let is_like_first = |series: &Series| {
        first.is_some_and(|first| {
            first.probe == series.key.probe
                && first.statistic == series.key.statistic
                && first.case == series.key.case
        })
    };
    found.iter().map(|(series, ..)| *series).filter(|series| is_like_first(series)).collect()
}

/// The best stack.
pub fn stack(result: &RunResult) -> Option<&Series> {
    ranked(result).first().copied()
}

/// The best stacks in the environment of the best one, at most [`STACKS_MAX`], the best first.
pub fn stacks(result: &RunResult) -> Vec<&Series> {
    let mut all = ranked(result);
    let environment = all.first().map(|series| series.key.environment.clone());
    all.retain(|series| Some(&series.key.environment) == environment.as_ref());
    all.truncate(STACKS_MAX);
    all
}

/// A stack of one host that is faster than the best stack.
pub fn faster_on_one_host<'a>(result: &'a RunResult, best: &Series) -> Option<&'a Series> {
    let same_host = ranked(result).into_iter().filter(|series| is_same_host(series));
    let fastest = same_host.min_by(|a, b| {
        let ns = |one: &Series| median_ns(one).unwrap_or(f64::INFINITY);
        ns(a).total_cmp(&ns(b))
    })?;
    (median_ns(fastest)? < median_ns(best)?).then_some(fastest)
}
