//! The measurements, each with the programs that a user would run.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use nm_model::result::{RoundData, RunResult};
use nm_model::{SettingKind, SettingValue};
use nm_ring::cache_line;
use serde_json::Value;

use crate::bench::{self, Build, CLIENT_CPU, Network, SERVER_CPU, Server, client, require_tool};
use crate::bench_bypass::figures::{Case, Figure};
use crate::leftovers;

/// Message sizes of nearmetal's own probe, bytes.
pub const SIZES: [u32; 4] = [1, 64, 256, 1024];

/// Message sizes of sockperf, bytes: 14 is its smallest.
const SOCKPERF_SIZES: [u32; 4] = [14, 64, 256, 1024];

/// sockperf's own greatest rate of ping-pongs ends its run with an error where they are faster.
const PINGPONG_RATE: &str = "--mps=4000000";

/// Write size of a stream of nearmetal's own probe, bytes.
const STREAM_BYTES: u32 = 128 << 10;

/// Connections of one measurement.
const CONNECTIONS: u32 = 3000;

/// Sockets of the programs that wait for several.
const SOCKETS: u16 = 4;

/// One run of programs: the cases that it measures, and the function that returns their figures.
pub struct Measurement {
    pub cases: Vec<Case>,
    pub run: Box<dyn Fn() -> Result<Vec<Figure>>>,
}

/// A measurement of one case.
pub fn measurement(
    name: impl Into<String>,
    size_bytes: u32,
    run: impl Fn() -> Result<Figure> + 'static,
) -> Measurement {
    let cases = vec![Case::new(name, size_bytes)];
    Measurement { cases, run: Box::new(move || Ok(vec![run()?])) }
}

/// How the programs are started: with which build's accelerator, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchMode {
    Plain,
    Accel(Build),
    /// Accelerated, but never spinning.
    Sleeping(Build),
}

impl LaunchMode {
    fn suffix(self) -> &'static str {
        match self {
            LaunchMode::Plain => "",
            LaunchMode::Accel(_) => " under accel",
            LaunchMode::Sleeping(_) => " under accel --spin-us 0",
        }
    }

    /// The start of a command line; a client's prints an exit report on its sockets.
    fn prefix(self, is_client: bool) -> String {
        let (build, spin) = match self {
            LaunchMode::Plain => return String::new(),
            LaunchMode::Accel(build) => (build, ""),
            LaunchMode::Sleeping(build) => (build, " --spin-us 0"),
        };
        let stats = if is_client { " --stats --format json" } else { "" };
        format!("{} accel{stats}{spin} -- ", build.binary)
    }

    /// Runs a client; fails if it should have been accelerated and was not.
    fn client(self, line: &str) -> Result<String> {
        let output = client(Network::Loopback, &format!("{}{line}", self.prefix(true)))?;
        if self != LaunchMode::Plain {
            require_shared_memory(&output.stderr)?;
        }
        Ok(output.stdout)
    }

    fn server(self, line: &str) -> Result<Server> {
        Server::start(Network::Loopback, &format!("{}{line}", self.prefix(false)))
    }
}

/// Fails unless the exit report at the end of `stderr` has a socket that used shared memory.
fn require_shared_memory(stderr: &str) -> Result<()> {
    let text = stderr.rfind("\n{\n").map_or(stderr, |at| &stderr[at..]);
    let report: Value = serde_json::from_str(text.trim()).context("there is no exit report")?;
    if report["moved"].as_u64().is_some_and(|moved| moved > 0) {
        return Ok(());
    }
    let sockets = report["sockets"].as_array().map_or(&[][..], Vec::as_slice);
    let reasons: Vec<&str> = sockets.iter().filter_map(|socket| socket["why"].as_str()).collect();
    bail!("no connection was in shared memory: {}", reasons.join(", "))
}

/// Start of the folder's name, before the number of the process.
const FOLDER: &str = "nearmetal-bench-";

/// The temporary folder of the run, removed at its end.
pub struct Folder(PathBuf);

impl Folder {
    pub fn make() -> Result<Folder> {
        let within = std::env::temp_dir();
        leftovers::remove_folders(&within, FOLDER);
        let path = within.join(leftovers::own_name(FOLDER));
        std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Folder(path))
    }

    /// sockperf's list of the sockets that it waits for.
    fn feed(&self) -> PathBuf {
        let path = self.0.join("feed");
        let lines: Vec<String> =
            (0..SOCKETS).map(|n| format!("T:127.0.0.1:{}\n", 11200 + n)).collect();
        // Where it cannot be written, sockperf fails and names it.
        let _ = std::fs::write(&path, lines.concat());
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// All measurements with a build; those that are compared are next to each other.
pub fn all(folder: &Folder, build: Build) -> Vec<Measurement> {
    let accel = LaunchMode::Accel(build);
    let mut list = vec![measurement("cache-line limit", 0, || Ok(Figure::of(limit_ns()?)))];
    for stack in ["shm-spin", "shm", "tcp-spin", "tcp-blocking", "udp-spin", "udp-blocking"] {
        list.push(pingpong(build, Network::Loopback, stack));
    }
    for stack in [
        "udp-spin",
        "xdp-spin",
        "tcp-spin",
        "xdp-tcp-spin",
        "xdp-tcp-spin:tcp-spin",
        "udp-blocking",
        "tcp-blocking",
    ] {
        list.push(pingpong(build, Network::Veth, stack));
    }
    for size in SOCKPERF_SIZES {
        for (mode, waiting) in [
            (LaunchMode::Plain, "blocking"),
            (accel, "blocking"),
            (LaunchMode::Plain, "spinning"),
            (accel, "spinning"),
        ] {
            let name = format!("sockperf {waiting}{}", mode.suffix());
            list.push(measurement(name, size, move || sockperf_one(mode, waiting, size)));
        }
    }
    list.push(measurement("sockperf blocking under accel --spin-us 0", 64, move || {
        sockperf_one(LaunchMode::Sleeping(build), "blocking", 64)
    }));
    list.extend(muxers(folder, accel));
    for mode in [LaunchMode::Plain, accel] {
        let name = format!("sockperf blocking, both ends on one CPU{}", mode.suffix());
        list.push(measurement(name, 64, move || one_cpu(mode)));
    }
    list.extend(not_accelerated(accel));
    for protocol in ["tcp", "xdp-tcp"] {
        let name = format!("nearmetal stream, {protocol}-spin, veth, Gb/s");
        list.push(measurement(name, STREAM_BYTES, move || stream(build, protocol)));
    }
    list.extend(rates(accel));
    list
}

fn limit_ns() -> Result<f64> {
    Ok(cache_line::half_round_trip_ns((CLIENT_CPU, SERVER_CPU))?)
}

/// nearmetal's own probe over a stack, at each size.
fn pingpong(build: Build, network: Network, stack: &'static str) -> Measurement {
    let network_name = if network == Network::Veth { "veth" } else { "loopback" };
    let name = if stack.starts_with("shm") {
        format!("nearmetal {stack}")
    } else {
        format!("nearmetal {stack}, {network_name}")
    };
    let cases = SIZES.map(|size| Case::new(name.clone(), size)).to_vec();
    Measurement { cases, run: Box::new(move || pingpong_run(build, network, stack)) }
}

fn pingpong_run(build: Build, network: Network, stack: &str) -> Result<Vec<Figure>> {
    let sizes = SIZES.map(|size| size.to_string()).join(",");
    let result = bench::nearmetal(
        build,
        network,
        &format!(
            "pingpong {stack} {} --sizes {sizes} --maxms 300 --maxiter 1000000 \
             --warmupms 100",
            network.address()
        ),
    )?;
    let result = nm_report::folder::parse(&result.to_string(), "nearmetal")?;
    (0..SIZES.len()).map(|at| latency(&result, at)).collect()
}

/// Median, p99 and samples of a series of a result.
fn latency(result: &RunResult, at: usize) -> Result<Figure> {
    let series = result.series.get(at).context("a size is missing from the result")?;
    let Some(RoundData::Latency(round)) = series.rounds.first().map(|round| &round.data) else {
        bail!("the result has no latencies");
    };
    let percentile = |wanted: f64| {
        round.percentiles.iter().find(|p| p.percentile == wanted).and_then(|p| p.value_ns)
    };
    let limit = series.settings.get(&SettingKind::CacheLineLimit);
    Ok(Figure {
        value: percentile(50.0).context("the result has no median")?,
        p99: percentile(99.0),
        samples: round.count,
        limit_ns: limit.and_then(|limit| match limit {
            SettingValue::Nanoseconds(range) if range.low == range.high => Some(range.low as f64),
            _ => None,
        }),
    })
}

/// One flow of nearmetal's own probe, spinning.
fn stream(build: Build, protocol: &str) -> Result<Figure> {
    let address = Network::Veth.address();
    let write = format!("--write {STREAM_BYTES} --seconds 1 --omit 0");
    let words = format!("stream {address} --protocol {protocol} --spin {write}");
    let result = bench::nearmetal(build, Network::Veth, &words)?;
    throughput(&nm_report::folder::parse(&result.to_string(), "nearmetal")?)
}

/// A sockperf ping-pong between two commands; options are both ends'.
fn sockperf(
    server: &str,
    client_run: impl Fn(&str) -> Result<String>,
    words: &str,
) -> Result<Figure> {
    require_tool("sockperf", "sockperf")?;
    let _server = Server::start(Network::Loopback, &format!("{server}sockperf server {words}"))?;
    let text = client_run(&format!("sockperf ping-pong {words} -t 1 {PINGPONG_RATE}"))?;
    let result = nm_report::import::read(&text, "sockperf")?;
    let mut figure = latency(&result, 0)?;
    figure.limit_ns = limit_ns().ok();
    Ok(figure)
}

fn sockperf_one(mode: LaunchMode, waiting: &str, size_bytes: u32) -> Result<Figure> {
    let spin = if waiting == "spinning" { " --nonblocked" } else { "" };
    let words = format!("--tcp -i 127.0.0.1 -p 11111 -m {size_bytes}{spin}");
    sockperf(&mode.prefix(false), |line| mode.client(line), &words)
}

/// Programs that wait for several sockets at once.
fn muxers(folder: &Folder, accel: LaunchMode) -> Vec<Measurement> {
    let mut list = vec![];
    for muxer in ["epoll", "poll", "select"] {
        for mode in [LaunchMode::Plain, accel] {
            let name = format!("sockperf {muxer} of {SOCKETS} sockets{}", mode.suffix());
            let feed = folder.feed();
            list.push(measurement(name, 64, move || {
                let words = format!("-f {} -F {muxer} -m 64", feed.display());
                sockperf(&mode.prefix(false), |line| mode.client(line), &words)
            }));
        }
    }
    list
}

fn one_cpu(mode: LaunchMode) -> Result<Figure> {
    require_tool("sockperf", "sockperf")?;
    let words = "--tcp -i 127.0.0.1 -p 11111 -m 64";
    let server = format!("{}sockperf server {words}", mode.prefix(false));
    let _server = Server::start_on(Network::Loopback, CLIENT_CPU, &server)?;
    let text = mode.client(&format!("sockperf ping-pong {words} -t 1 {PINGPONG_RATE}"))?;
    latency(&nm_report::import::read(&text, "sockperf")?, 0)
}

/// Connections that the accelerator leaves to the kernel: a peer without it, and UDP.
fn not_accelerated(accel: LaunchMode) -> Vec<Measurement> {
    let mut list = vec![];
    for (protocol, option) in [("TCP", " --tcp"), ("UDP", "")] {
        for mode in [LaunchMode::Plain, accel] {
            let preload = if mode == accel { ", client preloaded" } else { "" };
            let name = format!("sockperf spinning {protocol}, plain server{preload}");
            list.push(measurement(name, 64, move || {
                let words = format!("{option} -i 127.0.0.1 -p 11111 -m 64 --nonblocked");
                let run = |line: &str| {
                    Ok(client(Network::Loopback, &format!("{}{line}", mode.prefix(true)))?.stdout)
                };
                sockperf("", run, &words)
            }));
        }
    }
    list
}

/// Messages, bits and connections a second.
fn rates(accel: LaunchMode) -> Vec<Measurement> {
    let mut list = vec![];
    for mode in [LaunchMode::Plain, accel] {
        let name = |what: &str| format!("{what}{}", mode.suffix());
        list.push(measurement(name("sockperf throughput, messages/s"), 64, move || {
            small_messages(mode)
        }));
        list.push(measurement(name("iperf3, Gb/s"), 128 << 10, move || iperf3(mode)));
        list.push(measurement(name("nuttcp, Gb/s"), 64 << 10, move || nuttcp(mode)));
        list.push(measurement(name("connect + accept, ns"), 0, move || connect(mode)));
    }
    // Each plain figure beside its accelerated one.
    list.sort_by_key(|measurement| measurement.cases[0].name.replace(" under accel", ""));
    list
}

fn small_messages(mode: LaunchMode) -> Result<Figure> {
    require_tool("sockperf", "sockperf")?;
    let words = "--tcp -i 127.0.0.1 -p 11111";
    let _server = mode.server(&format!("sockperf server {words}"))?;
    let text = mode.client(&format!("sockperf throughput {words} -m 64 -t 1"))?;
    let rate = text
        .split_once("Message Rate is ")
        .and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok());
    Ok(Figure::of(rate.with_context(|| format!("sockperf gave no rate: {text}"))?))
}

/// The rate of a result, Gb/s.
fn throughput(result: &RunResult) -> Result<Figure> {
    let round = result.series.first().and_then(|series| series.rounds.first());
    match round.map(|round| &round.data) {
        Some(RoundData::Throughput(round)) => Ok(Figure::of(round.total_gbps)),
        _ => bail!("the result has no throughput"),
    }
}

fn iperf3(mode: LaunchMode) -> Result<Figure> {
    require_tool("iperf3", "iperf3")?;
    let _server = mode.server("iperf3 -s -1 -B 127.0.0.1 -p 5301")?;
    throughput(&nm_report::import::read(
        &mode.client("iperf3 -c 127.0.0.1 -p 5301 -t 1 -l 131072 -J")?,
        "iperf3",
    )?)
}

fn nuttcp(mode: LaunchMode) -> Result<Figure> {
    require_tool("nuttcp", "nuttcp")?;
    let _server = mode.server("nuttcp -S --nofork -P 5400 -p 5401")?;
    throughput(&nm_report::import::read(
        &mode.client("nuttcp -P 5400 -p 5401 -t -T1 -l64k -fparse 127.0.0.1")?,
        "nuttcp",
    )?)
}

/// Time to connect, accept and close. No byte is sent, so none is in shared memory.
fn connect(mode: LaunchMode) -> Result<Figure> {
    let own = std::env::current_exe()?.display().to_string();
    let line = format!("{}{own} connect {CONNECTIONS}", mode.prefix(true));
    let text = client(Network::Loopback, &line)?.stdout;
    let ns = text.trim().parse().with_context(|| format!("no time of a connection: {text}"))?;
    Ok(Figure { samples: Some(u64::from(CONNECTIONS)), ..Figure::of(ns) })
}
