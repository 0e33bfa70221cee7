//! The exchange at its goals: each network and rate by `nearmetal exchange run`, and what each came
//! to, with the published figure of its size beside.
//!
//! Writes Markdown to stdout and to `docs/results/exchange.md` or the file of `--out`. A run that
//! fails stands in the table with the reason.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::shell;

const USAGE: &str = "\
usage: cargo xtask bench-exchange [--rounds N] [--seconds S] [--out FILE]";

/// Arguments of each run, the goal and the published p99 in ms where there is one.
const RUNS: &[(&str, &str, &str)] = &[
    ("--nodes 2-2-2-2 --rate 5000", "", "3.04"),
    ("--nodes 2-2-2-2 --rate 10000", "p99 at most 1 ms", "7.17"),
    ("--nodes 2-2-2-2 --rate 10000 --transport unix", "", "7.17"),
    ("--nodes 1-1-1-1 --rate 100000", "under 10 ms", ""),
    ("--nodes 4-4-4-4 --rate 10000", "", "3.12"),
    ("--nodes 8-8-8-8 --rate 10000", "", ""),
    ("--nodes 16-16-16-16 --rate 10000", "runs", ""),
    ("--nodes 2-2-2-2 --rate 10000 --durability memory-quorum", "", ""),
    ("--nodes 2-2-2-2 --rate 10000 --durability disk-quorum", "p99 at most 3 ms", ""),
];

pub fn run(args: &[String]) -> Result<()> {
    let (mut rounds, mut seconds) = (5u32, 5.0f64);
    let mut out = "docs/results/exchange.md".to_string();
    let mut words = args.iter();
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
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".to_string());
    let target = shell::root().join(target);
    let binary = target.join("release/nearmetal");
    let mut rows = String::new();
    for (index, (what, goal, published)) in RUNS.iter().enumerate() {
        let folder = target.join(format!("bench-exchange/{}-{index}", std::process::id()));
        let line = format!(
            "{} exchange run {what} --rounds {rounds} --seconds {seconds} --out {}",
            binary.display(),
            folder.display()
        );
        eprintln!("$ nearmetal exchange run {what}");
        let (text, _) = shell::output(&line)?;
        let figures = figures(&folder).unwrap_or_else(|| failure(&text));
        let or_none =
            |text: &str| if text.is_empty() { "—".to_string() } else { text.to_string() };
        let (goal, published) = (or_none(goal), or_none(published));
        rows += &format!("| `{what}` | {figures} | {goal} | {published} |\n");
        let _ = fs::remove_dir_all(&folder);
    }
    let text = page(&rows, rounds, seconds)?;
    print!("{text}");
    fs::write(shell::root().join(&out), &text).with_context(|| format!("cannot write {out}"))
}

/// Mean, p90, ES10 and p99 in ms (median of rounds), requests lost, CPU time and verdict.
fn figures(folder: &Path) -> Option<String> {
    let text = fs::read_to_string(folder.join("result.json")).ok()?;
    let result: Value = serde_json::from_str(&text).ok()?;
    let series = &result["series"][0];
    let ms = |metric: &str| {
        let all = series["estimates"].as_array()?;
        let found = all.iter().find(|estimate| estimate["metric"] == metric)?;
        Some(format!("{:.2}", found["value"].as_f64()? / 1e6))
    };
    let rounds = series["rounds"].as_array()?;
    let lost: u64 = rounds.iter().filter_map(|round| round["data"]["lost"].as_u64()).sum();
    let mut cpu: Vec<f64> = rounds
        .iter()
        .filter_map(|round| round["data"]["exchange"]["cpu"].as_array())
        .map(|all| all.iter().filter_map(|class| class["cpu_us_per_txn"].as_f64()).sum())
        .collect();
    cpu.sort_by(f64::total_cmp);
    let cpu = cpu.get(cpu.len() / 2).map_or("n/a".to_string(), |us| format!("{us:.1}"));
    let metrics = ["mean", "p90", "es10", "p99"];
    let cells: Vec<String> =
        metrics.map(|metric| ms(metric).unwrap_or_else(|| "n/a".to_string())).to_vec();
    let verdict = result["outcome"].as_str().unwrap_or("n/a");
    Some(format!("{} | {lost} | {cpu} | {verdict}", cells.join(" | ")))
}

fn failure(text: &str) -> String {
    let why = text.lines().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
    format!("n/a | n/a | n/a | n/a | n/a | n/a | failed: {}", why.replace('|', "/"))
}

fn page(rows: &str, rounds: u32, seconds: f64) -> Result<String> {
    let (kernel, _) = shell::output("uname -srm")?;
    let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = processor.lines().find_map(|line| line.strip_prefix("model name"));
    let cpus = processor.lines().filter(|line| line.starts_with("processor")).count();
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    Ok(format!(
        "# The exchange\n\n\
         Made by `cargo xtask bench-exchange --rounds {rounds} --seconds {seconds}`: each row is \
         `nearmetal exchange run` with these words, {rounds} rounds of {seconds} s, each with a \
         network of its own; all nodes and the load on this machine. Times in ms are the median of \
         rounds, from the intended send to the reply; CPU time is that of all nodes for one \
         transaction. The published p99 is that of twelve hosts without durability.\n\n\
         - Machine: {}, {cpus} CPUs, {}\n- load at the end: {}\n\n\
         | run | mean | p90 | ES10 | p99 | lost | CPU µs | limit of 10 ms | goal | \
         published p99 |\n\
         | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- | --- | ---: |\n{rows}",
        model.unwrap_or_default().trim_start_matches(['\t', ':', ' ']),
        kernel.trim(),
        load.trim(),
    ))
}
