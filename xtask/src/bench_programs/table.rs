//! The report of all programs as Markdown.

use std::fmt::Write as _;

use crate::bench::{self, CLIENT_CPU, SERVER_CPU, median, median_interval, range};
use crate::bench_programs::case::Row;
use crate::bench_programs::launch::Bytes;

/// The least ratio to the kernel that a program must keep.
const RATIO_MIN: f64 = 0.97;

/// Packages of the programs.
const PACKAGES: [&str; 19] = [
    "apache2-bin",
    "apache2-utils",
    "erlang-base",
    "h2o",
    "iperf3",
    "libnginx-mod-stream",
    "lighttpd",
    "mariadb-server-core",
    "memcached",
    "nginx-light",
    "nodejs",
    "php8.2-fpm",
    "python3-grpcio",
    "python3-uvicorn",
    "python3-zmq",
    "redis-server",
    "rsync",
    "ruby",
    "socat",
];

pub fn report(rows: &[Row], rounds: usize) -> String {
    let mut text = String::from("# Unmodified programs under the accelerator\n\n");
    let _ = writeln!(
        text,
        "Made by `cargo xtask bench-programs --rounds {rounds}`. Clients on CPU {CLIENT_CPU}, \
         servers on CPU {SERVER_CPU}; each round runs every program plain and accelerated, one \
         right after the other, every second round backwards. Rates are medians over the rounds \
         and more is better; a ratio is accelerated ÷ plain of one round, shown are the median \
         and the range. Bytes are those of both directions that the clients' exit reports \
         counted, of all rounds together. A program misses the goal if the 95 % interval of its \
         median ratio, which stands behind the ratio, is below it.\n"
    );
    text += &bench::environment_lines(&PACKAGES);
    text.push_str(
        "\n| program | unit | rounds | plain | accelerated | ratio | 95 % interval | range | \
         bytes in shared memory | what stayed on the kernel |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
    );
    for row in rows.iter().filter(|row| !row.pairs.is_empty()) {
        line(row, &mut text);
    }
    goal(rows, &mut text);
    failures(rows, &mut text);
    missing(rows, &mut text);
    text
}

fn ratios(row: &Row) -> Vec<f64> {
    row.pairs.iter().map(|pair| pair.accelerated.rate / pair.plain.rate).collect()
}

fn line(row: &Row, text: &mut String) {
    let plain: Vec<f64> = row.pairs.iter().map(|pair| pair.plain.rate).collect();
    let accelerated: Vec<f64> = row.pairs.iter().map(|pair| pair.accelerated.rate).collect();
    let ratios = ratios(row);
    let (low, high) = range(&ratios);
    let mut bytes = Bytes::default();
    let reports = row.pairs.iter().flat_map(|pair| &pair.accelerated.reports);
    reports.for_each(|report| bytes.add(report));
    let digits = if median(&plain) < 100.0 { 2 } else { 0 };
    let _ = writeln!(
        text,
        "| {} | {} | {} | {:.digits$} | {:.digits$} | {:.2} | {} | {low:.2} to \
         {high:.2} | {} | {} |",
        row.case.name,
        row.case.unit,
        row.pairs.len(),
        median(&plain),
        median(&accelerated),
        median(&ratios),
        interval(row).map_or("–".to_string(), |(low, high)| format!("{low:.2} to {high:.2}")),
        percent(bytes.in_memory, bytes.total()),
        reasons(&bytes)
    );
}

fn percent(part: u64, total: u64) -> String {
    if total == 0 {
        return "no bytes".to_string();
    }
    format!("{:.2} %", part as f64 * 100.0 / total as f64)
}

/// The reasons of bytes on the kernel, the most first.
fn reasons(bytes: &Bytes) -> String {
    let total = bytes.total();
    let mut list: Vec<(&String, u64)> =
        bytes.on_kernel.iter().map(|(reason, count)| (reason, *count)).collect();
    list.retain(|(_, count)| *count > 0);
    list.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let shown: Vec<String> = list
        .iter()
        .map(|(reason, count)| format!("{}: {}", percent(*count, total), reason.replace('|', "/")))
        .collect();
    shown.join(". ")
}

/// The 95 % interval of the median of a row's ratios, whatever their distribution; none of too few
/// rounds.
fn interval(row: &Row) -> Option<(f64, f64)> {
    median_interval(&ratios(row))
}

fn with_interval(row: &Row) -> String {
    match interval(row) {
        Some((low, high)) => {
            format!("{} ({low:.2} to {high:.2} with 95 % confidence)", row.case.name)
        }
        None => format!("{} (too few rounds for an interval)", row.case.name),
    }
}

/// A program misses the goal if its median ratio is below with 95 % confidence. Where the median is
/// below and the interval reaches the goal, more rounds are needed.
fn goal(rows: &[Row], text: &mut String) {
    let is_below = |row: &&Row| !row.pairs.is_empty() && median(&ratios(row)) < RATIO_MIN;
    let reaches_goal = |row: &&Row| interval(row).is_none_or(|(_, high)| high >= RATIO_MIN);
    let (open, slower): (Vec<&Row>, Vec<&Row>) =
        rows.iter().filter(is_below).partition(reaches_goal);
    let goal = format!("\nGoal: no program below {RATIO_MIN} of the kernel's speed");
    if slower.is_empty() && open.is_empty() {
        let _ = writeln!(text, "{goal}: met.");
        return;
    }
    let _ = writeln!(text, "{goal}.\n");
    for row in slower {
        let _ = writeln!(text, "- **Missed** by {}.", row.case.name);
    }
    for row in open {
        let _ = writeln!(text, "- Inconclusive for {}.", with_interval(row));
    }
}

fn failures(rows: &[Row], text: &mut String) {
    let failed: Vec<&Row> = rows.iter().filter(|row| row.failures > 0).collect();
    if failed.is_empty() {
        return;
    }
    text.push_str("\n## Runs that failed\n\n| program | rounds | why |\n|---|---|---|\n");
    for row in failed {
        let why = row.failure.as_deref().unwrap_or_default();
        let _ = writeln!(text, "| {} | {} | {why} |", row.case.name, row.failures);
    }
}

fn missing(rows: &[Row], text: &mut String) {
    let mut missing = rows.iter().filter_map(|row| Some((row, row.missing.as_ref()?))).peekable();
    if missing.peek().is_some() {
        text.push_str("\n## Not run\n\n| program | why |\n|---|---|\n");
    }
    for (row, why) in missing {
        let _ = writeln!(text, "| {} | {why} |", row.case.name);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::bench_programs::case::{Case, Pair};
    use crate::bench_programs::launch::Outcome;

    fn row(name: &str, rates: &[(f64, f64)]) -> Row {
        let report = json!({ "sockets": [
            { "why": null, "sent": { "memory_bytes": 600, "kernel_bytes": 50 },
              "received": { "memory_bytes": 300, "kernel_bytes": 0 } },
            { "why": "a | b", "sent": { "kernel_bytes": 50 }, "received": {} },
        ] });
        let pair = |&(plain, rate): &(f64, f64)| Pair {
            plain: Outcome { rate: plain, reports: vec![] },
            accelerated: Outcome { rate, reports: vec![report.clone()] },
        };
        Row {
            case: Case::new(name, "requests/s", |_| unreachable!("never measured here")),
            pairs: rates.iter().map(pair).collect(),
            failure: None,
            failures: 0,
            missing: None,
        }
    }

    #[test]
    fn ratio_is_of_one_round_and_bytes_are_of_all() {
        let text = report(&[row("fast", &[(1000.0, 3000.0), (2000.0, 4000.0)])], 2);
        let line = "| fast | requests/s | 2 | 1500 | 3500 | 2.50 | – | 2.00 to 3.00 | 90.00 % | \
                    5.00 %: a / b. 5.00 %: before both ends had met, or to an end that slept |";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("kernel's speed: met."), "{text}");
    }

    #[test]
    fn slower_and_failed_programs_are_named() {
        let failed = Row {
            pairs: vec![],
            failure: Some("plain: no figure".to_string()),
            failures: 3,
            ..row("broken", &[])
        };
        let slow: Vec<_> = (0..10).map(|round| (1000.0, 900.0 + f64::from(round))).collect();
        let absent = Row {
            pairs: vec![],
            missing: Some("h2o is not installed; apt-get install h2o".to_string()),
            ..row("absent", &[])
        };
        let text = report(&[row("slow", &slow), failed, absent], 3);
        assert!(text.contains("kernel's speed.\n\n- **Missed** by slow.\n"), "{text}");
        assert!(text.contains("| broken | 3 | plain: no figure |"), "{text}");
        let line = "## Not run\n\n| program | why |\n|---|---|\n| absent | h2o is not installed;";
        assert!(text.contains(line), "{text}");
    }

    /// The ranks 2 and 9 of ten rounds bound the median.
    #[test]
    fn median_below_the_goal_is_no_proof_if_its_interval_reaches_it() {
        let noisy = [0.80, 0.85, 0.90, 0.92, 0.93, 0.94, 0.96, 0.97, 0.98, 1.10];
        let noisy: Vec<_> = noisy.iter().map(|ratio| (1000.0, 1000.0 * ratio)).collect();
        let text = report(&[row("noisy", &noisy), row("short", &[(1000.0, 900.0)])], 10);
        let verdict = "kernel's speed.\n\n- Inconclusive for noisy (0.85 to 0.98 with 95 % \
                       confidence).\n- Inconclusive for short (too few rounds for an interval).";
        assert!(text.contains(verdict), "{text}");
    }
}
