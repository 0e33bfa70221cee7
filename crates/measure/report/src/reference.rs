//! The published runs, built in: each is loaded by name as a result like any other.
//!
//! The data are in `reference/` at the root, one CSV a table and a JSON beside it. A figure that
//! fits a series becomes one; every other line of a table becomes a note, so that nothing published
//! is lost. Published runs have one round, so no verdict can rest on them.

mod compute;
mod error;
mod exchange;
mod pingpong;
mod prose;
mod series;
mod table;
mod throughput;

use std::collections::{BTreeMap, BTreeSet};

use nm_model::PublishedRun;
use nm_model::doubt::{Doubt, DoubtKind};
use nm_model::result::{RunResult, Source};
use nm_model::words::UnknownWord;
use serde_json::Value;

use error::ReferenceError;
use table::Table;

/// A published run in the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listed {
    /// Name by which it is loaded.
    pub name: &'static str,
    /// Short name of the study.
    pub study: &'static str,
    /// What it is, one line.
    pub summary: &'static str,
}

struct Entry {
    listed: Listed,
    csv: &'static str,
    json: &'static str,
    fill: fn(&Table, &mut RunResult) -> Result<(), ReferenceError>,
}

macro_rules! entries {
    ($($name:literal, $study:literal, $fill:path, $summary:literal;)+) => {
        &[$(Entry {
            listed: Listed { name: $name, study: $study, summary: $summary },
            csv: include_str!(concat!("../../../../reference/", $name, ".csv")),
            json: include_str!(concat!("../../../../reference/", $name, ".json")),
            fill: $fill,
        }),+]
    };
}

const ENTRIES: &[Entry] = entries![
    "deftech-e5-bm-ull", "deftech-2019", pingpong::fill,
        "TCP half round trips under Onload, E5-2620 v4 bare metal, ultra-low-latency firmware";
    "deftech-e5-bm-full", "deftech-2019", pingpong::fill,
        "the same hosts with full-feature firmware";
    "deftech-e5-vm-pf", "deftech-2019", pingpong::fill,
        "the same hosts, KVM guests with a physical function passed through";
    "deftech-hft-bm-sfc9220", "deftech-2019", pingpong::fill,
        "TCP half round trips under Onload, Gold 6246 bare metal, SFC9220";
    "deftech-hft-bm-sfc9250", "deftech-2019", pingpong::fill,
        "the same hosts with SFC9250";
    "deftech-hft-vm-pf", "deftech-2019", pingpong::fill,
        "the same hosts, KVM guests with a physical function passed through";
    "xenserver5-netperf-stream", "xenserver-2009", throughput::fill_xenserver,
        "netperf TCP_STREAM of 4+4 guests both ways, with and without acceleration";
    "monterey-throughput", "monterey-2010", throughput::fill_patterns,
        "nuttcp and netperf between guests on two hosts, 1-uni-1 to 4-bi-4, with expected ranges";
    "monterey-intrahost-throughput", "monterey-2010", throughput::fill_intrahost,
        "nuttcp between guests of one host";
    "monterey-compute-bc-pi", "monterey-2010", compute::fill,
        "pi by bc in 1 to 32 instances over 8 guests of one core each";
    "monterey-ezbrokerage-latency", "monterey-2010", exchange::fill_latency,
        "round trips through a distributed exchange of 8 to 64 nodes";
    "monterey-ezbrokerage-scaling", "monterey-2010", exchange::fill_scaling,
        "the largest rate that exchange carried, by number of nodes";
    "prose-figures", "several", prose::fill_figures,
        "figures that the studies give in sentences";
];

/// Names of all published runs.
pub fn names() -> Vec<&'static str> {
    list().map(|listed| listed.name).collect()
}

/// All published runs with what they are.
pub fn list() -> impl Iterator<Item = Listed> {
    ENTRIES.iter().map(|entry| entry.listed)
}

/// All published runs as plans may name them.
pub fn for_plans() -> Vec<PublishedRun> {
    let stacks = |entry: &Entry| -> Vec<String> {
        let run = loaded(entry);
        let stacks: BTreeSet<String> = run.series.into_iter().map(|one| one.key.stack).collect();
        stacks.into_iter().collect()
    };
    let runs = ENTRIES.iter();
    runs.map(|entry| PublishedRun { name: entry.listed.name.to_string(), stacks: stacks(entry) })
        .collect()
}

/// A published run as a result.
///
/// # Errors
/// The name is none of [`names`]; the nearest is suggested.
pub fn load(name: &str) -> Result<RunResult, UnknownWord> {
    let entry = ENTRIES
        .iter()
        .find(|entry| entry.listed.name == name)
        .ok_or_else(|| UnknownWord::new("reference run", name, &names()))?;
    Ok(loaded(entry))
}

/// The run of an entry. A test loads every entry, so the built-in data are valid.
fn loaded(entry: &Entry) -> RunResult {
    read(entry).unwrap_or_else(|fault| panic!("built-in run {}: {fault}", entry.listed.name))
}

fn read(entry: &Entry) -> Result<RunResult, ReferenceError> {
    let table = Table::parse(entry.csv)?;
    let json: Value = serde_json::from_str(entry.json)?;
    let Value::Object(fields) = json else { return Err(ReferenceError::NotAnObject) };
    let mut notes = BTreeMap::new();
    for (key, value) in &fields {
        if !matches!(key.as_str(), "name" | "columns") {
            note(&mut notes, key, value);
        }
    }
    let text = |key: &str| fields.get(key).and_then(Value::as_str).map(str::to_string);
    notes.insert("summary".to_string(), entry.listed.summary.to_string());
    let source = Source::Reference {
        study: text("source").unwrap_or_else(|| entry.listed.study.to_string()),
        tool: text("tool").unwrap_or_else(|| "see notes".to_string()),
    };
    let mut result = RunResult { notes, ..RunResult::new(entry.listed.name, source) };
    if let Some(Value::Array(inferred)) = fields.get("inferred") {
        let inferred = inferred.iter().filter_map(Value::as_str);
        result.doubts.extend(inferred.map(|field| Doubt::new(DoubtKind::Inferred, field)));
    }
    (entry.fill)(&table, &mut result)?;
    for series in &mut result.series {
        nm_stats::rounds::estimate(series);
    }
    Ok(result)
}

/// Writes a JSON value as notes: objects field by field, lists joined.
fn note(notes: &mut BTreeMap<String, String>, name: &str, value: &Value) {
    match value {
        Value::Null => {}
        Value::Object(fields) => {
            for (field, value) in fields {
                note(notes, &format!("{name}.{field}"), value);
            }
        }
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(plain).collect();
            if !items.is_empty() {
                notes.insert(name.to_string(), items.join("; "));
            }
        }
        other => {
            notes.insert(name.to_string(), plain(other));
        }
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_string)
}
