//! The exchange at its goals. First comes the result of `nearmetal exchange run` for each network
//! and rate, with the published figure of its size beside it. Then come the highest rates by
//! `exchange search`, moves of instruments, and a day on which the load rises. With ten rounds all
//! of it takes about half an hour.
//!
//! Writes Markdown to stdout and to `docs/results/exchange.md` or the file of `--out`. A run that
//! fails keeps its row, with the reason.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::bench::{self, failure, first_line};
use crate::exchange_round::{nodes_cpu_us, p99_ms};
use crate::{exchange_moves, exchange_peers, shell};

const USAGE: &str = "\
usage: cargo xtask bench-exchange [--rounds N] [--seconds S] [--out FILE] [--peers]

--peers measures the replicated exchange beside Aeron Cluster and Redis Streams instead, and writes
docs/results/exchange-peers.md; that needs a JDK, Maven, the network and redis-server.";

/// One row: the words of the run, its goals, and the published p99 in ms where there is one.
struct Run {
    words: &'static str,
    goals: &'static [Goal],
    published_ms: Option<f64>,
}

/// The highest value that the median of the rounds may have.
#[derive(Clone, Copy)]
enum Goal {
    P99Ms(f64),
    CpuUs(f64),
}

const fn run_of(words: &'static str, goals: &'static [Goal], published_ms: Option<f64>) -> Run {
    Run { words, goals, published_ms }
}

const RUNS: &[Run] = &[
    run_of("--nodes 2-2-2-2 --rate 5000", &[], Some(3.04)),
    run_of("--nodes 2-2-2-2 --rate 10000", &[Goal::P99Ms(1.0), Goal::CpuUs(50.0)], Some(7.17)),
    run_of("--nodes 2-2-2-2 --rate 10000 --transport unix", &[], Some(7.17)),
    run_of("--nodes 2-2-2-2 --rate 10000 --transport shm", &[], Some(7.17)),
    run_of("--nodes 2-2-2-2 --rate 10000 --transport accel", &[], Some(7.17)),
    run_of("--nodes 1-1-1-1 --rate 100000", &[Goal::P99Ms(10.0)], None),
    run_of("--nodes 1-1-1-1 --rate 100000 --transport shm", &[], None),
    run_of("--nodes 4-4-4-4 --rate 10000", &[], Some(3.12)),
    run_of("--nodes 8-8-8-8 --rate 10000", &[], None),
    run_of("--nodes 16-16-16-16 --rate 10000", &[], None),
    run_of("--nodes 2-2-2-2 --rate 10000 --durability memory-quorum", &[], None),
    run_of(
        "--nodes 2-2-2-2 --rate 10000 --durability disk-quorum",
        &[Goal::P99Ms(3.0), Goal::CpuUs(80.0)],
        None,
    ),
];

/// Networks whose highest rate is searched, in short rounds: it takes some twenty of them.
const SEARCHES: &[&str] =
    &["--nodes 1-1-1-1", "--nodes 1-1-1-1 --transport shm", "--nodes 2-2-2-2"];

/// What all searches have in common.
const SEARCH: &str = "--seconds 1.5 --rounds 3 --within 15 --format json";

pub fn run(args: &[String]) -> Result<()> {
    let (mut rounds, mut seconds) = (5u32, 4.0f64);
    let with_peers = args.iter().any(|word| word == "--peers");
    let page = if with_peers { "exchange-peers" } else { "exchange" };
    let mut out = format!("docs/results/{page}.md");
    let mut words = args.iter().filter(|word| *word != "--peers");
    while let Some(word) = words.next() {
        let value = words.next().with_context(|| USAGE.to_string())?;
        match word.as_str() {
            "--rounds" => rounds = value.parse()?,
            "--seconds" => seconds = value.parse()?,
            "--out" => out.clone_from(value),
            _ => bail!("{USAGE}"),
        }
    }
    shell::run("cargo build --release --locked -p nearmetal")?;
    let text = match with_peers {
        true => exchange_peers::compare(rounds, seconds)?,
        false => networks(rounds, seconds)?,
    };
    bench::write_table(&text, Some(&out))
}

/// All networks and searches; the page.
fn networks(rounds: u32, seconds: f64) -> Result<String> {
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".to_string());
    let target = shell::root().join(target);
    let binary = target.join("release/nearmetal");
    let mut rows = String::new();
    for (index, Run { words: what, goals, published_ms }) in RUNS.iter().enumerate() {
        let folder = target.join(format!("bench-exchange/{}-{index}", std::process::id()));
        let line = format!(
            "{} exchange run {what} --rounds {rounds} --seconds {seconds} --out {}",
            binary.display(),
            folder.display()
        );
        eprintln!("$ nearmetal exchange run {what}");
        let (text, _) = shell::output(&line)?;
        let figures = figures(&folder, goals).unwrap_or_else(|| failure(&text, 10));
        let published = published_ms.map_or("—".to_string(), |ms| format!("{ms:.2}"));
        rows += &format!("| `{what}` | {figures} | {published} |\n");
        let _ = fs::remove_dir_all(&folder);
    }
    let mut found = String::new();
    for (index, what) in SEARCHES.iter().enumerate() {
        let folder = target.join(format!("bench-exchange/{}-search-{index}", std::process::id()));
        let line = format!(
            "{} exchange search {what} {SEARCH} --out {}",
            binary.display(),
            folder.display()
        );
        eprintln!("$ nearmetal exchange search {what}");
        let (text, _) = shell::output(&line)?;
        found += &format!("| `{what}` | {} |\n", bracket(&text));
        let _ = fs::remove_dir_all(&folder);
    }
    let folder = target.join(format!("bench-exchange/{}-moves", std::process::id()));
    let moves = exchange_moves::tables(&binary, &folder, rounds)?;
    Ok(page(&rows, &found, rounds, seconds) + &moves)
}

/// Mean, p90, ES10 and p99 in ms (median of rounds), the range of the p99, requests lost, CPU time
/// and its range, verdict, and which goals are met.
fn figures(folder: &Path, goals: &[Goal]) -> Option<String> {
    let text = fs::read_to_string(folder.join("result.json")).ok()?;
    let result: Value = serde_json::from_str(&text).ok()?;
    let series = &result["series"][0];
    let ms = |metric: &str| {
        let all = series["estimates"].as_array()?;
        let found = all.iter().find(|estimate| estimate["metric"] == metric)?;
        Some(found["value"].as_f64()? / 1e6)
    };
    let rounds = series["rounds"].as_array()?;
    let lost: u64 = rounds.iter().filter_map(|round| round["data"]["lost"].as_u64()).sum();
    let sorted = |of: fn(&Value) -> Option<f64>| {
        let mut all: Vec<f64> = rounds.iter().filter_map(|round| of(&round["data"])).collect();
        all.sort_by(f64::total_cmp);
        all
    };
    let (p99, cpu) = (sorted(p99_ms), sorted(nodes_cpu_us));
    let middle = cpu.get(cpu.len() / 2).zip(cpu.get(cpu.len().saturating_sub(1) / 2));
    let cpu_us = middle.map(|(a, b)| (a + b) / 2.0);
    let median_cpu = cpu_us.map_or("n/a".to_string(), |us| format!("{us:.1}"));
    let cells = ["mean", "p90", "es10", "p99"]
        .map(|metric| ms(metric).map_or("n/a".to_string(), |ms| format!("{ms:.2}")));
    let verdict = result["outcome"].as_str().unwrap_or("n/a");
    let goals: Vec<String> = goals.iter().map(|goal| goal.result(ms("p99"), cpu_us)).collect();
    let goal = if goals.is_empty() { "—".to_string() } else { goals.join("; ") };
    Some(format!(
        "{} | {} | {lost} | {median_cpu} | {} | {verdict} | {goal}",
        cells.join(" | "),
        range(&p99, 2),
        range(&cpu, 1),
    ))
}

impl Goal {
    /// The goal, and whether it is met.
    fn result(self, p99_ms: Option<f64>, cpu_us: Option<f64>) -> String {
        let (what, limit, unit, measured) = match self {
            Goal::P99Ms(limit) => ("p99", limit, "ms", p99_ms),
            Goal::CpuUs(limit) => ("CPU", limit, "µs", cpu_us),
        };
        let met = measured.is_some_and(|measured| measured <= limit);
        format!("{what} ≤ {limit} {unit}: {}", if met { "met" } else { "**missed**" })
    }
}

/// The lowest and the highest of sorted values.
fn range(sorted: &[f64], digits: usize) -> String {
    match sorted {
        [low, .., high] => format!("{low:.digits$} to {high:.digits$}"),
        _ => "n/a".to_string(),
    }
}

/// The highest rate that was carried, the lowest that was not, and the confidence in the first.
fn bracket(text: &str) -> String {
    let Ok(result) = serde_json::from_str::<Value>(text) else {
        return format!("n/a | n/a | failed: {}", first_line(text));
    };
    let rate = |name: &str| result[name].as_f64().map_or("none".to_string(), |n| format!("{n:.0}"));
    let share =
        result["sure"].as_f64().map_or("n/a".to_string(), |share| format!("{:.0} %", share * 1e2));
    format!("{} | {} | {share}", rate("carried_per_s"), rate("not_carried_per_s"))
}

fn page(rows: &str, found: &str, rounds: u32, seconds: f64) -> String {
    format!(
        "# The exchange\n\n\
         Made by `cargo xtask bench-exchange --rounds {rounds} --seconds {seconds}`. Each row is \
         `nearmetal exchange run` with these words, {rounds} rounds of {seconds} s, each with a \
         network of its own. All nodes and the load are on this machine. Times in ms are the \
         median of rounds, from the intended send to the reply; CPU time is that of all nodes for \
         one transaction. The published p99 is that of twelve hosts without durability.\n\n\
         {}\n\
         | run | mean | p90 | ES10 | p99 | p99, lowest to highest | lost | CPU µs | \
         CPU, lowest to highest | limit of 10 ms | goal | published p99 |\n\
         | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- | --- | ---: |\n\
         {rows}\n\
         Highest rates with ES10 and p99 under 10 ms are found by `nearmetal exchange search` with \
         these words and `{SEARCH}`. The last column is the share of rounds that keep the rate, \
         with 95 % confidence.\n\n\
         | search | carried /s | not carried /s | at least |\n\
         | --- | ---: | ---: | ---: |\n{found}",
        bench::environment_lines(&[]),
    )
}
