//! The figures of one round of an exchange, ours or another one.

use std::fs;
use std::path::Path;

use serde_json::Value;

/// What one round of one system gave.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    pub p50_ns: f64,
    pub p99_ns: f64,
    pub es10_ns: f64,
    /// CPU time of all server processes for one request.
    pub cpu_ns: f64,
    /// Share of the requests that were answered.
    pub answered: f64,
}

impl Measured {
    /// Whether the system does not keep up: requests remain without an answer, or the typical one
    /// waits for a second.
    pub fn is_collapsed(&self) -> bool {
        self.answered < 0.99 || self.p50_ns > 1e9
    }
}

/// The figures of a result with one round: of the round trips, and of the nodes' CPU time.
pub fn measured(folder: &Path) -> Option<Measured> {
    let text = fs::read_to_string(folder.join("result.json")).ok()?;
    let result: Value = serde_json::from_str(&text).ok()?;
    let data = &result["series"][0]["rounds"][0]["data"];
    let percentiles = data["percentiles"].as_array()?;
    let percentile = |wanted: f64| {
        let found = percentiles.iter().find(|one| one["percentile"].as_f64() == Some(wanted))?;
        found["value_ns"].as_f64()
    };
    let (count, lost) = (data["count"].as_f64()?, data["lost"].as_f64().unwrap_or(0.0));
    Some(Measured {
        p50_ns: percentile(50.0)?,
        p99_ns: percentile(99.0)?,
        es10_ns: data["es10_ns"].as_f64()?,
        cpu_ns: nodes_cpu_us(data)? * 1e3,
        answered: count / (count + lost),
    })
}

/// CPU time of all nodes for one transaction in one round, µs.
pub fn nodes_cpu_us(data: &Value) -> Option<f64> {
    let classes = data["exchange"]["cpu"].as_array()?;
    let nodes = classes.iter().filter(|class| class["class"] != "load");
    Some(nodes.filter_map(|class| class["cpu_us_per_txn"].as_f64()).sum())
}

/// The 99th percentile of one round, ms.
pub fn p99_ms(data: &Value) -> Option<f64> {
    let all = data["percentiles"].as_array()?;
    let found = all.iter().find(|one| one["percentile"].as_f64() == Some(99.0))?;
    Some(found["value_ns"].as_f64()? / 1e6)
}
