//! Pairs of series of two results that are compared.

use std::collections::BTreeSet;

use nm_model::probe::Case;
use nm_model::result::Series;

/// Most sentences about series that only one side has.
const UNMATCHED_MAX: usize = 20;

/// Two series of one probe, case and statistic.
pub(crate) struct SeriesPair<'a> {
    pub a: &'a Series,
    pub b: &'a Series,
    /// Environment and stack as text, as far as the comparison has several.
    pub path: String,
}

/// Series by series, and sentences about those that have no counterpart.
pub(crate) struct Pairing<'a> {
    pub pairs: Vec<SeriesPair<'a>>,
    pub unmatched: Vec<String>,
}

/// Pairs the series of two sides. Probe, statistic and case must agree, flows by their pattern (the
/// write size is part of comparability). Environments must agree by name unless each side has
/// only one; the same holds for stacks.
pub(crate) fn pair<'a>(a: &[&'a Series], b: &[&'a Series]) -> Pairing<'a> {
    let environments = |side: &[&'a Series]| {
        side.iter().map(|s| s.key.environment.as_str()).collect::<BTreeSet<_>>()
    };
    let stacks =
        |side: &[&'a Series]| side.iter().map(|s| s.key.stack.as_str()).collect::<BTreeSet<_>>();
    let any_environment = environments(a).len() == 1 && environments(b).len() == 1;
    let any_stack = stacks(a).len() == 1 && stacks(b).len() == 1;
    let fits = |a: &Series, b: &Series| {
        (any_environment || a.key.environment == b.key.environment)
            && (any_stack || a.key.stack == b.key.stack)
            && a.key.probe == b.key.probe
            && a.key.statistic == b.key.statistic
            && same_case(&a.key.case, &b.key.case)
    };
    let mut free: Vec<&'a Series> = b.to_vec();
    let mut pairs = vec![];
    let mut only_a = vec![];
    for &one in a {
        let exact =
            free.iter().position(|other| fits(one, other) && one.key.case == other.key.case);
        match exact.or_else(|| free.iter().position(|other| fits(one, other))) {
            Some(at) => {
                let path = match (any_environment, any_stack) {
                    (true, true) => String::new(),
                    (true, false) => one.key.stack.clone(),
                    (false, true) => one.key.environment.clone(),
                    (false, false) => one.key.path(),
                };
                pairs.push(SeriesPair { a: one, b: free.remove(at), path });
            }
            None => only_a.push(one),
        }
    }
    let mut unmatched = sentences("A", &only_a);
    unmatched.extend(sentences("B", &free));
    Pairing { pairs, unmatched }
}

fn same_case(a: &Case, b: &Case) -> bool {
    match (a, b) {
        (Case::Flows { pattern: a, .. }, Case::Flows { pattern: b, .. }) => a == b,
        _ => a == b,
    }
}

fn sentences(side: &str, series: &[&Series]) -> Vec<String> {
    let mut sentences: Vec<String> = series
        .iter()
        .take(UNMATCHED_MAX)
        .map(|series| format!("only {side} has {}", series.key))
        .collect();
    if series.len() > UNMATCHED_MAX {
        sentences.push(format!("only {side} has {} more", series.len() - UNMATCHED_MAX));
    }
    sentences
}
