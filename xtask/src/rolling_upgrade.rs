//! `cargo xtask rolling-upgrade`: a network under load is restarted node by node with the version
//! that comes next, whose format has one message more. Nothing may be lost, and that message must
//! reach the nodes that know it and no others.
//!
//! The version that comes next is this one with the feature `next-format`: another program, with
//! another table of messages, and the same code that decides.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::shell;

/// A network that has more than one node of most classes, and logs on disks.
const RAMP: &str = "exchange ramp --rolling-restart 100 --phase-seconds 25 --nodes 2-2-2-1 \
     --warmup 100 --durability disk-quorum --record";

/// Its nodes: the load generator is none.
const NODES: usize = 7;

/// Builds both programs, and has one replace the other.
pub fn run() -> Result<()> {
    build_next()?;
    shell::run("cargo build --locked -p nearmetal")?;
    check()
}

fn folder() -> PathBuf {
    shell::root().join("target/rolling-upgrade")
}

fn next() -> PathBuf {
    folder().join("nearmetal-next")
}

/// The folder of what cargo builds for tests.
fn built() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    target.unwrap_or_else(|| shell::root().join("target")).join("debug")
}

/// Builds the version that comes next, and keeps it. It shares its libraries with this version,
/// and is in its place until that is built.
pub fn build_next() -> Result<()> {
    shell::run("cargo build --locked -p nearmetal --features next-format")?;
    fs::create_dir_all(folder())?;
    fs::copy(built().join("nearmetal"), next())?;
    Ok(())
}

/// Has the version that comes next replace this one, both of which are built.
pub fn check() -> Result<()> {
    let day = folder().join("day");
    let _ = fs::remove_dir_all(&day);
    let (old, out) = (built().join("nearmetal"), day.display().to_string());
    let program = next().display().to_string();
    let line = format!("nice {} {RAMP} --program {program} --out {out}", old.display());
    eprintln!("$ {line}");
    let status = shell::command(&line).status()?;
    // A busy machine is slow; that is not looked at.
    ensure!(matches!(status.code(), Some(0 | 1 | 3)), "`{line}` ended with {status}");
    check_day(&day)?;
    check_greetings(&day)?;
    for program in [old.display().to_string(), program] {
        shell::run(&format!("{program} exchange verify {out}"))?;
    }
    fs::remove_dir_all(&day).context("the day cannot be removed")
}

/// Each node was restarted once, and nothing was lost.
fn check_day(day: &Path) -> Result<()> {
    let result: Value = serde_json::from_str(&fs::read_to_string(day.join("day.json"))?)?;
    let list = |name: &str| result[name].as_array().cloned().unwrap_or_default();
    let details = list("events");
    let details = details.iter().filter_map(|event| event["detail"].as_str());
    let mut restarted: Vec<&str> = details.filter(|it| it.ends_with(" was restarted")).collect();
    restarted.sort_unstable();
    let count = restarted.len();
    restarted.dedup();
    ensure!(count == NODES && restarted.len() == NODES, "restarted: {restarted:?}, {result}");
    let lost: u64 = list("phases").iter().filter_map(|phase| phase["lost"].as_u64()).sum();
    ensure!(lost == 0, "{lost} requests were lost: {result}");
    Ok(())
}

/// Nodes of the new version have greeted each other, and have not greeted older ones.
fn check_greetings(day: &Path) -> Result<()> {
    let mut lines = vec![];
    for entry in fs::read_dir(day.join("round-1/nodes"))? {
        let text = fs::read_to_string(entry?.path())?;
        lines.extend(text.lines().map(str::to_string));
    }
    let count = |words: &str| lines.iter().filter(|line| line.contains(words)).count();
    let (greeted, spared) = (count("sends a greeting"), count("a Greeting was not sent to"));
    println!("greetings of nodes that know them: {greeted}; not sent to others: {spared}");
    let refused = count("cannot run in one network") + count("its format of messages is");
    if greeted == 0 || spared == 0 || refused > 0 {
        bail!("{greeted} greetings, {spared} not sent, {refused} refused: {}", lines.join("\n"));
    }
    Ok(())
}
