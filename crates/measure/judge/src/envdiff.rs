//! The facts in which two results differ. They are shown with a comparison and do not affect its
//! outcome.

use std::collections::{BTreeMap, BTreeSet};

use nm_model::probe::Side;
use nm_model::result::RunResult;
use nm_model::stack::Difference;
use serde_json::Value;

/// Facts by name, each with its values.
type Values = BTreeMap<String, BTreeSet<String>>;

/// Most differences that are listed.
const LISTED_MAX: usize = 200;

/// Facts that change from run to run and explain nothing.
const VOLATILE: &[&str] =
    &["host.load_1m", "host.boot_id", "clock.calibration_error_ppm", "clock.pair_cost_ns"];

/// Notes about a run instead of its machine.
const RUN_NOTES: &[&str] = &["summary", "source", "tool", "statistic", "unit", "inferred"];

/// The facts in which the endpoints of two results differ, and the notes, for published and
/// imported runs, which have no facts. A fact of both ends of the same name and values is listed
/// once.
pub fn envdiff(a: &RunResult, b: &RunResult) -> Vec<Difference> {
    let environments = |result: &RunResult| -> BTreeSet<String> {
        result.facts.keys().map(|endpoint| endpoint.environment.clone()).collect()
    };
    envdiff_of(a, &environments(a), b, &environments(b))
}

/// As [`envdiff`], of some environments only.
pub(crate) fn envdiff_of(
    a: &RunResult,
    environments_a: &BTreeSet<String>,
    b: &RunResult,
    environments_b: &BTreeSet<String>,
) -> Vec<Difference> {
    let (facts_a, facts_b) = (by_fact(a, environments_a), by_fact(b, environments_b));
    let mut found: BTreeMap<(String, String, String), Vec<Option<Side>>> = BTreeMap::new();
    for side in [Some(Side::Client), Some(Side::Server), None] {
        let (of_a, of_b) = (facts_a.get(&side), facts_b.get(&side));
        let (Some(of_a), Some(of_b)) = (of_a, of_b) else { continue };
        let names: BTreeSet<&String> = of_a.keys().chain(of_b.keys()).collect();
        for name in names {
            let value = |of: &Values| match of.get(name) {
                Some(values) => values.iter().cloned().collect::<Vec<_>>().join(" | "),
                None => "unknown".to_string(),
            };
            let (value_a, value_b) = (value(of_a), value(of_b));
            if value_a != value_b {
                found.entry((name.clone(), value_a, value_b)).or_default().push(side);
            }
        }
    }
    found
        .into_iter()
        .take(LISTED_MAX)
        .map(|((name, a, b), sides)| {
            let field = match sides[..] {
                [Some(side)] => format!("{side} {name}"),
                _ => name,
            };
            Difference { field, a, b }
        })
        .collect()
}

/// Every fact by side and name with its values over all environments. Notes have no side.
fn by_fact(result: &RunResult, environments: &BTreeSet<String>) -> BTreeMap<Option<Side>, Values> {
    let mut sides: BTreeMap<Option<Side>, Values> = BTreeMap::new();
    let facts = result.facts.iter();
    for (endpoint, facts) in facts.filter(|(e, _)| environments.contains(&e.environment)) {
        let into = sides.entry(Some(endpoint.side)).or_default();
        flatten(&serde_json::to_value(facts).unwrap_or_default(), String::new(), into);
    }
    let notes = sides.entry(None).or_default();
    for (name, text) in &result.notes {
        if !RUN_NOTES.contains(&name.as_str()) && !name.contains('.') {
            notes.insert(name.clone(), BTreeSet::from([text.clone()]));
        }
    }
    sides
}

fn flatten(value: &Value, name: String, into: &mut Values) {
    if VOLATILE.contains(&name.as_str()) {
        return;
    }
    match value {
        Value::Object(fields) => {
            for (field, value) in fields {
                let dot = if name.is_empty() { "" } else { "." };
                flatten(value, format!("{name}{dot}{field}"), into);
            }
        }
        // Links are matched by name, so that one more link is not a difference in all of them.
        Value::Array(items) if name == "links" => {
            for item in items {
                let link = item.get("name").and_then(Value::as_str).unwrap_or("?");
                flatten(item, format!("links.{link}"), into);
            }
        }
        Value::Null => {}
        // It is measured anew for each run, and differs by some parts per million.
        Value::Number(hz) if name == "clock.tsc_hz" => {
            let mhz = hz.as_f64().unwrap_or_default() / 1e6;
            into.entry(name).or_default().insert(format!("{mhz:.0} MHz"));
        }
        Value::String(text) => {
            into.entry(name).or_default().insert(text.clone());
        }
        other => {
            into.entry(name).or_default().insert(other.to_string());
        }
    }
}
