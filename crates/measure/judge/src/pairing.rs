//! Pairs of series of two results that are compared.

use std::collections::BTreeSet;

use nm_model::probe::{Case, ProbeKind};
use nm_model::result::{Series, SeriesKey, Statistic};

/// Most sentences about series that only one side has.
const UNMATCHED_MAX: usize = 20;

/// Two series of one probe, case and statistic.
pub(crate) struct SeriesPair<'a> {
    pub a: &'a Series,
    pub b: &'a Series,
    /// Environment, stack, probe and statistic as text, as far as the comparison has several.
    pub path: String,
}

impl SeriesPair<'_> {
    /// Whether their figures may be compared with a verdict.
    pub fn is_like_for_like(&self) -> bool {
        self.a.comparability.differences(&self.b.comparability).is_empty()
    }
}

/// Series by series, and those that have no counterpart.
pub(crate) struct Pairing<'a> {
    pub pairs: Vec<SeriesPair<'a>>,
    pub only_a: Vec<&'a Series>,
    pub only_b: Vec<&'a Series>,
}

impl Pairing<'_> {
    /// How many series of A have no counterpart. Those of emulated guests do not count, as they
    /// would not be compared.
    pub fn n_missing_in_b(&self) -> usize {
        self.only_a.iter().filter(|series| !series.is_emulated()).count()
    }

    /// Sentences about the series that have no counterpart.
    pub fn unmatched(&self, [name_a, name_b]: [&str; 2]) -> Vec<String> {
        let mut all = sentences(name_a, &self.only_a);
        all.extend(sentences(name_b, &self.only_b));
        all
    }
}

/// What need not agree by name, because there is only one on each side.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Any {
    environment: bool,
    stack: bool,
}

impl Any {
    /// By the series of each side. A side without series has no say.
    pub fn of(sides: &[&[&Series]]) -> Any {
        let is_one = |name: fn(&SeriesKey) -> &str| {
            let names = |side: &&[&Series]| {
                side.iter().map(|series| name(&series.key).to_string()).collect::<BTreeSet<_>>()
            };
            sides.iter().map(names).all(|names| names.len() <= 1)
        };
        Any { environment: is_one(|key| &key.environment), stack: is_one(|key| &key.stack) }
    }
}

/// Whether two series are of one probe, case and statistic, and of one place.
pub(crate) fn fits(a: &Series, b: &Series, any: Any) -> bool {
    (any.environment || a.key.environment == b.key.environment)
        && (any.stack || a.key.stack == b.key.stack)
        && a.key.probe == b.key.probe
        && a.key.statistic == b.key.statistic
        && same_case(&a.key.case, &b.key.case)
}

/// Pairs the series of two sides. Probe, statistic and case must agree, flows by their pattern (the
/// write size is part of comparability). Environments must agree by name unless each side has
/// only one; the same holds for stacks.
pub(crate) fn pair<'a>(a: &[&'a Series], b: &[&'a Series]) -> Pairing<'a> {
    let any = Any::of(&[a, b]);
    let fits = |a: &Series, b: &Series| fits(a, b, any);
    let mut free: Vec<&'a Series> = b.to_vec();
    let mut pairs = vec![];
    let mut only_a = vec![];
    for &one in a {
        let exact =
            free.iter().position(|other| fits(one, other) && one.key.case == other.key.case);
        match exact.or_else(|| free.iter().position(|other| fits(one, other))) {
            Some(at) => {
                pairs.push(SeriesPair { a: one, b: free.remove(at), path: String::new() });
            }
            None => only_a.push(one),
        }
    }
    let kinds: BTreeSet<(ProbeKind, Statistic)> = pairs
        .iter()
        .map(|pair: &SeriesPair<'_>| (pair.a.key.probe, pair.a.key.statistic))
        .collect();
    for pair in &mut pairs {
        pair.path = path(&pair.a.key, &kinds, any);
    }
    Pairing { pairs, only_a, only_b: free }
}

/// What tells the series of `key` from the others of a comparison, apart from its case.
fn path(key: &SeriesKey, kinds: &BTreeSet<(ProbeKind, Statistic)>, any: Any) -> String {
    let mut parts = vec![];
    match (any.environment, any.stack) {
        (true, true) => {}
        (true, false) => parts.push(key.stack.clone()),
        (false, true) => parts.push(key.environment.clone()),
        (false, false) => parts.push(key.path()),
    }
    if kinds.iter().any(|(probe, _)| *probe != key.probe) {
        parts.push(key.probe.to_string());
    }
    if kinds.iter().any(|(probe, other)| *probe == key.probe && *other != key.statistic) {
        parts.push(statistic_text(key).to_string());
    }
    parts.join(" ")
}

fn statistic_text(key: &SeriesKey) -> &'static str {
    match (key.probe, key.statistic) {
        (ProbeKind::Rr, Statistic::RoundTrip) => "service time",
        (ProbeKind::Rr, Statistic::RoundTripFromIntended) => "from intended send",
        (_, Statistic::RoundTrip) => "round trip",
        (_, statistic) => statistic.label(),
    }
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
