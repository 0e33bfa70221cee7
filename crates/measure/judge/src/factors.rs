//! What the factors of a plan did: each row with a factor against the same row without it.

use nm_model::metric::Metric;
use nm_model::result::{FactorResult, RunResult, Series, SeriesKey, Statistic};
use nm_model::{Doubt, DoubtKind, FactorEffect};

use crate::options::{CompareOptions, Setup};
use crate::pairing::SeriesPair;
use crate::rows::{Draft, decide, single};

/// The figure that a factor is judged by.
fn main_metric(statistic: Statistic) -> Metric {
    match statistic {
        Statistic::Throughput => Metric::Throughput,
        _ => Metric::Median,
    }
}

/// Figures that must not become worse.
fn guard_metrics(statistic: Statistic) -> &'static [Metric] {
    match statistic {
        Statistic::Throughput => &[],
        _ => &[Metric::Percentile(99.0), Metric::Percentile(99.9), Metric::Max],
    }
}

/// The comparison of one pair before it is decided.
struct Found {
    /// Which factor.
    factor: usize,
    key: SeriesKey,
    figure: Draft,
    guards: Vec<Draft>,
}

/// Fills in the effects of all factors, and doubts those that were not shown to be in force.
/// Probabilities are corrected over all effects, and over all guards.
pub(crate) fn judge(result: &mut RunResult) {
    if result.factors.is_empty() {
        return;
    }
    let options = CompareOptions {
        name_a: Some("off".into()),
        name_b: Some("on".into()),
        seed: result.plan.as_ref().map_or(1, |plan| plan.seed),
        ..CompareOptions::default()
    };
    let setup = Setup::new(result, result, &options);
    let mut found: Vec<Found> = vec![];
    let mut refused: Vec<Vec<String>> = vec![];
    for (factor, of_factor) in result.factors.iter().enumerate() {
        let with_off = of_factor.series.iter().filter_map(|on| {
            let off = result.series.iter().find(|off| off.key == on.key)?;
            Some((off, on))
        });
        let (emulated, real): (Vec<_>, Vec<_>) =
            with_off.partition(|(off, on)| off.is_emulated() || on.is_emulated());
        found.extend(real.into_iter().filter_map(|(off, on)| compare(factor, off, on, &setup)));
        refused.push(emulated.into_iter().map(|(off, on)| refusal(off, on)).collect());
    }
    decide(found.iter_mut().map(|one| &mut one.figure), &options);
    decide(found.iter_mut().flat_map(|one| &mut one.guards), &options);
    for (of_factor, refused) in result.factors.iter_mut().zip(refused) {
        of_factor.effects.clear();
        for sentence in refused {
            if !of_factor.notes.contains(&sentence) {
                of_factor.notes.push(sentence);
            }
        }
    }
    for Found { factor, key, figure, guards } in found {
        let of_factor = &mut result.factors[factor];
        let doubts = doubts(of_factor, &key);
        let guards = guards.into_iter().map(|draft| draft.row).collect();
        of_factor.effects.push(FactorEffect { key, figure: figure.row, guards, doubts });
    }
}

/// Why a pair is not compared: one of its sides was measured in emulated guests.
fn refusal(off: &Series, on: &Series) -> String {
    let mark = off.emulated_mark().or_else(|| on.emulated_mark()).unwrap_or_default();
    format!("{} with the factor is not compared with that without it: {mark}", off.key)
}

fn compare(factor: usize, off: &Series, on: &Series, setup: &Setup<'_>) -> Option<Found> {
    let pair = SeriesPair { a: off, b: on, path: String::new() };
    let key = off.key.clone();
    let figure = single(&pair, main_metric(key.statistic), setup)?;
    let guards = guard_metrics(key.statistic).iter();
    let guards = guards.filter_map(|metric| single(&pair, *metric, setup)).collect();
    Some(Found { factor, key, figure, guards })
}

/// A factor without proof may have done nothing.
fn doubts(of_factor: &FactorResult, key: &SeriesKey) -> Vec<Doubt> {
    let (shown, all) = of_factor.shown(key);
    if shown == all && all > 0 {
        return vec![];
    }
    let name = &of_factor.factor.name;
    let detail = format!("{name} was shown to be in force in {shown} of {all} rounds of {key}");
    vec![Doubt::new(DoubtKind::FactorNotShown, detail)]
}
