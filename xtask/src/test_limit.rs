//! The time limit of every test. The runner names a test that has run for a minute. One that then
//! goes on for a quarter of an hour is ended with all that it started, and named.

use std::collections::BTreeMap;
use std::time::Duration;

use nm_sys::clock::Moment;

use crate::shell;

/// How long a test may go on after the runner has named it. The longest takes a few minutes on a
/// busy machine.
pub const LIMIT: Duration = Duration::from_secs(15 * 60);

/// What the runner says of a test after a minute.
const LONG: &str = " has been running for over 60 seconds";

/// Tests that the runner has named, and since when.
#[derive(Debug, Default)]
pub struct LongTests(BTreeMap<String, Moment>);

impl LongTests {
    /// Reads a line of the runner.
    pub fn line(&mut self, line: &str) {
        let Some(rest) = line.strip_prefix("test ") else { return };
        if let Some(name) = rest.strip_suffix(LONG) {
            self.0.insert(name.to_string(), Moment::now());
        } else if let Some((name, _)) = rest.split_once(" ... ") {
            self.0.remove(name);
        }
    }

    /// A test that the runner named longer ago than `limit`.
    pub fn overdue(&self, limit: Duration) -> Option<&str> {
        let (name, _) = self.0.iter().find(|(_, since)| since.elapsed() > limit)?;
        Some(name)
    }
}

/// Kills a process and all that descend from it.
pub fn kill_with_descendants(pid: u32) {
    let mut found = vec![pid];
    let parents = parents();
    let mut at = 0;
    while let Some(parent) = found.get(at).copied() {
        let children = parents.iter().filter(|(_, of)| *of == parent).map(|(child, _)| *child);
        found.extend(children);
        at += 1;
    }
    let pids: Vec<String> = found.iter().map(u32::to_string).collect();
    let _ = shell::output(&format!("kill -KILL {}", pids.join(" ")));
}

/// Every process with its parent.
fn parents() -> Vec<(u32, u32)> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let of = |entry: std::fs::DirEntry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        // The name in brackets may hold anything, so fields count from the last bracket.
        let parent = stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()?;
        Some((pid, parent))
    };
    processes.filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_is_overdue_until_the_runner_says_that_it_ended() {
        let mut long = LongTests::default();
        for line in [
            "running 2 tests",
            "test a::slow has been running for over 60 seconds",
            "test b::quick ... ok",
            "test a::other has been running for over 60 seconds",
            "test a::slow ... ok",
        ] {
            long.line(line);
        }
        assert_eq!(long.overdue(Duration::ZERO), Some("a::other"));
        assert_eq!(long.overdue(LIMIT), None);
        long.line("test a::other ... FAILED");
        assert_eq!(long.overdue(Duration::ZERO), None);
    }
}
