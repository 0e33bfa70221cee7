//! Programs that measure streams or copy: sockperf, iperf3, nuttcp, curl, rsync and socat.

use std::process::Stdio;

use anyhow::{Context, Result, bail};
use nm_sys::clock::Moment;
use serde_json::Value;

use crate::bench_programs::case::Case;
use crate::bench_programs::launch::{
    Launcher, Outcome, Service, User, free_port, is_root, number_after, require,
};

/// Bytes of the file that is copied.
const COPIED: usize = 200_000_000;

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("sockperf ping-pong, 64 B", "round trips/s", sockperf),
        Case::new("iperf3", "Gb/s", iperf3),
        Case::new("nuttcp", "Gb/s", nuttcp),
        Case::new("rsync from its daemon", "MB/s", rsync),
        Case::new("socat, EXEC:cat", "MB/s", |launcher| socat(launcher, false)),
        Case::new("socat as a proxy of that", "MB/s", |launcher| socat(launcher, true)),
    ]
}

fn sockperf(launcher: &Launcher<'_>) -> Result<Outcome> {
    require(&[("sockperf", "sockperf")])?;
    let port = free_port()?;
    let at = port.to_string();
    let words = ["--tcp", "-i", "127.0.0.1", "-p", &at];
    let _service =
        Service::start(launcher.server(&["sockperf", "server"]).args(words), port, "TERM")?;
    let mut command = launcher.client(&["sockperf", "ping-pong", "-m", "64", "-t", "1"]);
    // Its own greatest rate ends its run with an error where messages are faster.
    launcher.measure(command.args(words).arg("--mps=4000000"), |text| {
        let line = text.lines().find(|line| line.contains("percentile 50.000"))?;
        let microseconds: f64 = line.rsplit('=').next()?.trim().parse().ok()?;
        Some(1e6 / (2.0 * microseconds))
    })
}

fn iperf3(launcher: &Launcher<'_>) -> Result<Outcome> {
    require(&[("iperf3", "iperf3")])?;
    let port = free_port()?;
    let at = port.to_string();
    let words = ["iperf3", "-s", "-1", "-B", "127.0.0.1", "-p", &at];
    let _service = Service::start(&mut launcher.server(&words), port, "TERM")?;
    let words = ["iperf3", "-c", "127.0.0.1", "-p", &at, "-t", "1", "-J"];
    launcher.measure(&mut launcher.client(&words), |text| {
        let json: Value = serde_json::from_str(text).ok()?;
        Some(json["end"]["sum_received"]["bits_per_second"].as_f64()? / 1e9)
    })
}

fn nuttcp(launcher: &Launcher<'_>) -> Result<Outcome> {
    require(&[("nuttcp", "nuttcp")])?;
    let (control, data) = (free_port()?, free_port()?);
    let ports = [format!("-P{control}"), format!("-p{data}")];
    let mut command = launcher.server(&["nuttcp", "-S", "--nofork"]);
    let _service = Service::start(command.args(&ports), control, "TERM")?;
    let mut command = launcher.client(&["nuttcp", "-t", "-T1", "-l64k", "-fparse"]);
    launcher.measure(command.args(&ports).arg("127.0.0.1"), |text| {
        Some(number_after(text, "rate_Mbps=")? / 1e3)
    })
}

/// The rate of a copy that began then, MB/s.
fn rate_since(begin: Moment) -> f64 {
    COPIED as f64 / 1e6 / begin.elapsed().as_secs_f64()
}

fn rsync(launcher: &Launcher<'_>) -> Result<Outcome> {
    require(&[("rsync", "rsync")])?;
    let (folder, is_new) = launcher.folder.subfolder("rsync", User::OWN)?;
    let at = folder.display();
    if is_new {
        std::fs::create_dir(folder.join("kept"))?;
        std::fs::write(folder.join("kept/file"), vec![b'x'; COPIED])?;
        let user = if is_root() { "uid = root\ngid = root\n" } else { "" };
        let text =
            format!("use chroot = no\nreverse lookup = no\n{user}[kept]\npath = {at}/kept\n");
        std::fs::write(folder.join("rsyncd.conf"), text)?;
    }
    let _ = std::fs::remove_file(folder.join("copy"));
    let port = free_port()?;
    let mut command = launcher.server(&["rsync", "--daemon", "--no-detach"]);
    command.args(["--address=127.0.0.1", &format!("--port={port}")]);
    command.arg(format!("--config={at}/rsyncd.conf")).arg(format!("--log-file={at}/log"));
    let _service = Service::start(&mut command, port, "TERM")?;
    let from = format!("rsync://127.0.0.1:{port}/kept/file");
    let begin = Moment::now();
    let (_, reports) =
        launcher.finish(launcher.client(&["rsync", &from]).arg(folder.join("copy")))?;
    let rate = rate_since(begin);
    let copied = std::fs::metadata(folder.join("copy"))?.len();
    if copied != COPIED as u64 {
        bail!("{copied} of {COPIED} bytes were copied");
    }
    Ok(Outcome { rate, reports })
}

/// A file sent to a program at the other end and back, with another socat between or not.
fn socat(launcher: &Launcher<'_>, has_proxy: bool) -> Result<Outcome> {
    require(&[("socat", "socat")])?;
    let (folder, is_new) = launcher.folder.subfolder("socat", User::OWN)?;
    if is_new {
        std::fs::write(folder.join("file"), vec![b'x'; COPIED])?;
    }
    let listening = |port: u16| format!("TCP-LISTEN:{port},bind=127.0.0.1,reuseaddr,fork");
    let start = |port: u16, action: &str| {
        let words = ["socat", "-t", "60", "-b", "65536", &listening(port), action];
        Service::start(&mut launcher.server(&words), port, "TERM")
    };
    let mut port = free_port()?;
    let _echo = start(port, "EXEC:cat")?;
    let mut proxy = None;
    if has_proxy {
        let behind = format!("TCP:127.0.0.1:{port}");
        port = free_port()?;
        proxy = Some(start(port, &behind)?);
    }
    // The file is opened by socat itself, as the client's standard input is empty.
    let file = format!("OPEN:{},rdonly!!OPEN:/dev/null,wronly", folder.join("file").display());
    let words = ["socat", "-t", "60", "-b", "65536", &file, &format!("TCP:127.0.0.1:{port}")];
    let begin = Moment::now();
    let mut command = launcher.client(&words);
    let (_, reports) = launcher.finish(command.stdout(Stdio::null())).context("socat")?;
    let rate = rate_since(begin);
    drop(proxy);
    Ok(Outcome { rate, reports })
}
