//! One program with many connections: `fan_out.rs` of the tests, which waits in several ways.

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::bench_programs::case::Case;
use crate::bench_programs::launch::{Launcher, Outcome, Service, free_port, source};

/// Connections, ways to wait for them, and rounds over all of them.
const SIZES: [(&str, &[&str], &str); 3] = [
    ("200", &["threads", "select", "poll", "epoll"], "150"),
    ("2000", &["threads", "poll", "epoll"], "20"),
    ("9000", &["poll", "epoll"], "5"),
];

/// Rounds after an idle time, for a program that has few messages at all.
const BURST_ROUNDS: &str = "50";

/// That idle time, ms.
const IDLE_MS: &str = "500";

pub fn cases() -> Vec<Case> {
    let mut list = vec![];
    let mut add = |connections: &'static str, way: &'static str, rounds, idle_ms, what: &str| {
        let name = format!("fan-out, {connections} connections, {way}{what}");
        list.push(Case::new(name, "round trips/s", move |launcher| {
            measure(launcher, way, [connections, rounds, idle_ms])
        }));
    };
    for (connections, ways, rounds) in SIZES {
        ways.iter().for_each(|way| add(connections, way, rounds, "0", ""));
    }
    add("2000", "epoll", BURST_ROUNDS, IDLE_MS, ", idle before");
    list
}

fn measure(launcher: &Launcher<'_>, way: &str, last: [&str; 3]) -> Result<Outcome> {
    let program = launcher.folder.join("fan_out");
    if !program.exists() {
        let mut command = Command::new("rustc");
        command.args(["--edition", "2024", "-O", "-o"]).arg(&program).arg(source("fan_out.rs"));
        let status = command.status().context("cannot start rustc")?;
        if !status.success() {
            bail!("rustc ended with {status}");
        }
    }
    let (program, port) = (program.display().to_string(), free_port()?);
    let at = port.to_string();
    let words = [&program, "server", &at, way];
    let _service = Service::start(&mut launcher.server(&words), port, "TERM")?;
    let mut command = launcher.client(&[&program, "client", &at, way]);
    launcher.measure(command.args(last), |text| text.trim().parse().ok())
}
