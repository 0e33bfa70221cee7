//! What the connections of all accelerated programs did, second by second: the differences of the
//! counts that their ledgers have anyway.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use nm_lab::ledger::{Connection, Key, Ledger};
use nm_report::units;
use nm_sys::hostfiles::HostFiles;
use schemars::JsonSchema;
use serde::Serialize;

use super::row::Row;
use crate::cli::format::Format;
use crate::document::Document;
use crate::exit::Exit;
use crate::output;

/// Counts of one connection, or sums over several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
struct Counts {
    memory_bytes: u64,
    kernel_bytes: u64,
    failed_spins: u64,
    sleeps: u64,
    fallbacks: u64,
    rejoins: u64,
}

impl Counts {
    fn of(connection: &Connection) -> Counts {
        let row = Row::new("", connection);
        Counts {
            memory_bytes: row.sent.memory_bytes.saturating_add(row.received.memory_bytes),
            kernel_bytes: row.sent.kernel_bytes.saturating_add(row.received.kernel_bytes),
            failed_spins: row.failed_spins,
            sleeps: row.sleeps,
            fallbacks: row.fallbacks,
            rejoins: row.rejoins,
        }
    }

    fn values(&mut self) -> [&mut u64; 6] {
        [
            &mut self.memory_bytes,
            &mut self.kernel_bytes,
            &mut self.failed_spins,
            &mut self.sleeps,
            &mut self.fallbacks,
            &mut self.rejoins,
        ]
    }

    fn add(&mut self, mut other: Counts) {
        for (sum, more) in self.values().into_iter().zip(other.values()) {
            *sum = sum.saturating_add(*more);
        }
    }

    /// What was added since `before`.
    fn since(mut self, mut before: Counts) -> Counts {
        for (now, before) in self.values().into_iter().zip(before.values()) {
            *now = now.saturating_sub(*before);
        }
        self
    }
}

/// What all connections did.
#[derive(Debug, Serialize, JsonSchema)]
pub struct History {
    /// One element for each second.
    seconds: Vec<Counts>,
}

impl Document for History {
    const NAME: &'static str = "accel-history";
}

/// The counts of each connection.
type Snapshot = BTreeMap<Key, Counts>;

pub fn run(seconds: u32, format: Format) -> Result<Exit> {
    let mut before = snapshot();
    let mut all = vec![];
    if format == Format::Text {
        output::text(&line([
            "second",
            "in memory",
            "in kernel",
            "in vain",
            "sleeps",
            "fallbacks",
        ]))?;
    }
    for second in 1..=seconds {
        sleep(Duration::from_secs(1));
        let now = snapshot();
        let counts = difference(&before, &now);
        before = now;
        match format {
            Format::Json => all.push(counts),
            Format::Text => output::text(&line([
                &second.to_string(),
                &units::count(counts.memory_bytes),
                &units::count(counts.kernel_bytes),
                &units::count(counts.failed_spins),
                &units::count(counts.sleeps),
                &format!("{}, {} returns", counts.fallbacks, counts.rejoins),
            ]))?,
        }
    }
    if format == Format::Json {
        output::json(&History { seconds: all })?;
    }
    Ok(Exit::Pass)
}

fn line([second, memory, kernel, spins, sleeps, fallbacks]: [&str; 6]) -> String {
    format!("{second:>6}  {memory:>15}  {kernel:>15}  {spins:>10}  {sleeps:>9}  {fallbacks}\n")
}

/// What happened between two snapshots. A connection that was not in the first one began since.
fn difference(before: &Snapshot, now: &Snapshot) -> Counts {
    let mut sum = Counts::default();
    for (key, counts) in now {
        sum.add(counts.since(before.get(key).copied().unwrap_or_default()));
    }
    sum
}

/// The counts of all connections that the ledgers of running programs have, closed ones included.
fn snapshot() -> Snapshot {
    let pids = HostFiles::default().names("/proc").into_iter().filter_map(|name| name.parse().ok());
    let ledgers = pids.flat_map(Ledger::of_process);
    let connections = ledgers.flat_map(|ledger| ledger.connections());
    connections.map(|connection| (connection.key(), Counts::of(&connection))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_added_counts() {
        let counts = |memory_bytes, sleeps| Counts { memory_bytes, sleeps, ..Counts::default() };
        let key = |idx| ((1, 2), idx, 1);
        let before = Snapshot::from([(key(0), counts(10, 1)), (key(1), counts(99, 9))]);
        let now = Snapshot::from([(key(0), counts(15, 1)), (key(2), counts(3, 4))]);
        assert_eq!(difference(&before, &now), counts(8, 4));
        assert_eq!(difference(&now, &now), Counts::default());
    }
}
