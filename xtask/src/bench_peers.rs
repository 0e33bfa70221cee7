//! nearmetal beside sockperf, iperf3, nuttcp and, where it is installed, netperf. One veth pair
//! lies between two namespaces that this task makes and removes. Both ends are pinned, rounds
//! interleaved, ratios within the run.
//!
//! Writes a Markdown table to stdout and, with `--out FILE`, to a file.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::bench::{
    self, Build, CLIENT_CPU, Network, SERVER_CPU, Server, VethPair, median, require_tool,
};

const USAGE: &str = "\
usage: cargo xtask bench-peers [--rounds N] [--sizes LIST] [--seconds S] [--out FILE]
                               [--only latency|transactions|throughput]";

struct Options {
    rounds: usize,
    sizes: Vec<u32>,
    seconds: f64,
    out: Option<String>,
    latency: bool,
    transactions: bool,
    throughput: bool,
}

pub fn run(args: &[String]) -> Result<()> {
    let options = parse(args)?;
    for (tool, package) in [
        ("sockperf", "sockperf"),
        ("iperf3", "iperf3"),
        ("nuttcp", "nuttcp"),
        ("ip", "iproute2"),
        ("taskset", "util-linux"),
    ] {
        require_tool(tool, package)?;
    }
    // It is not free software to all distributions, so few machines have it.
    let has_netperf = require_tool("netperf", "netperf").is_ok();
    bench::build()?;
    let _veth_pair = VethPair::create()?;
    let mut figures = Figures::default();
    for round in 0..options.rounds {
        eprintln!("round {} of {}", round + 1, options.rounds);
        if options.latency {
            latency(&options, round, &mut figures)?;
        }
        if options.transactions && has_netperf {
            transactions(&options, round, &mut figures)?;
        }
        if options.throughput {
            throughput(&options, round, &mut figures)?;
        }
    }
    let table = figures.table(&options);
    bench::write_table(&table, options.out.as_deref())
}

fn parse(args: &[String]) -> Result<Options> {
    let mut options = Options {
        rounds: 10,
        sizes: vec![14, 64, 256, 1024],
        seconds: 1.0,
        out: None,
        latency: true,
        transactions: true,
        throughput: true,
    };
    let mut words = args.iter();
    while let Some(word) = words.next() {
        let value = words.next().with_context(|| USAGE.to_string())?;
        match word.as_str() {
            "--rounds" => options.rounds = value.parse()?,
            "--sizes" => {
                options.sizes = value.split(',').map(str::parse).collect::<Result<_, _>>()?;
            }
            "--seconds" => options.seconds = value.parse()?,
            "--out" => options.out = Some(value.clone()),
            "--only" => {
                options.latency = value == "latency";
                options.transactions = value == "transactions";
                options.throughput = value == "throughput";
            }
            _ => bail!("{USAGE}"),
        }
    }
    Ok(options)
}

const NETWORK: Network = Network::Veth;

fn client(line: &str) -> Result<String> {
    Ok(bench::client(NETWORK, line)?.stdout)
}

#[derive(Default)]
struct Figures {
    /// Case → tool → one value a round.
    latency_ns: BTreeMap<(String, u32), BTreeMap<&'static str, Vec<f64>>>,
    transactions_per_s: BTreeMap<String, BTreeMap<&'static str, Vec<f64>>>,
    gbps: BTreeMap<String, BTreeMap<&'static str, Vec<f64>>>,
}

fn latency(options: &Options, round: usize, figures: &mut Figures) -> Result<()> {
    for protocol in ["tcp", "udp"] {
        for mode in ["spin", "blocking"] {
            for &size in &options.sizes {
                let mut tools: [(&'static str, Tool); 2] =
                    [("nearmetal", pingpong_nearmetal), ("sockperf", pingpong_sockperf)];
                if round % 2 == 1 {
                    tools.reverse();
                }
                for (name, tool) in tools {
                    let value = tool(protocol, mode, size, options.seconds)?;
                    let case = (format!("{protocol} {mode}"), size);
                    figures
                        .latency_ns
                        .entry(case)
                        .or_default()
                        .entry(name)
                        .or_default()
                        .push(value);
                }
            }
        }
    }
    Ok(())
}

type Tool = fn(&str, &str, u32, f64) -> Result<f64>;
type Stream = fn(u32, f64) -> Result<f64>;

/// One round of nearmetal's ping-pong.
fn pingpong(protocol: &str, mode: &str, size: u32, seconds: f64) -> Result<Value> {
    let address = NETWORK.address();
    let milliseconds = (seconds * 1e3) as u64;
    let mut result = bench::nearmetal(
        Build::current(),
        NETWORK,
        &format!(
            "pingpong {protocol}-{mode} {address} --sizes {size} --maxms {milliseconds} \
         --maxiter 10000000 --warmupms 400"
        ),
    )?;
    Ok(result["series"][0]["rounds"][0]["data"].take())
}

fn pingpong_nearmetal(protocol: &str, mode: &str, size: u32, seconds: f64) -> Result<f64> {
    let data = pingpong(protocol, mode, size, seconds)?;
    let percentiles = &data["percentiles"];
    let median = percentiles.as_array().and_then(|list| {
        list.iter().find(|p| p["percentile"] == 50.0).and_then(|p| p["value_ns"].as_f64())
    });
    median.context("nearmetal gave no median")
}

fn pingpong_sockperf(protocol: &str, mode: &str, size: u32, seconds: f64) -> Result<f64> {
    let address = NETWORK.address();
    let tcp = if protocol == "tcp" { "--tcp" } else { "" };
    let spin = if mode == "spin" { "--nonblocked" } else { "" };
    let common = format!("-i {address} -p 11111 {tcp} {spin}");
    let _server = Server::start(NETWORK, &format!("sockperf server {common}"))?;
    // sockperf leaves the first 400 ms and the last 50 ms of its time out of its figures.
    let time = (seconds + 0.45).ceil() as u64;
    let text = client(&format!("sockperf ping-pong {common} -m {size} -t {time}"))?;
    let line = text.lines().find(|line| line.contains("percentile 50.000"));
    let value = line.and_then(|line| line.rsplit('=').next()?.trim().parse::<f64>().ok());
    Ok(value.with_context(|| format!("sockperf gave no median: {text}"))? * 1e3)
}

/// netperf's TCP_RR and UDP_RR: one transaction at a time, by calls that block.
fn transactions(options: &Options, round: usize, figures: &mut Figures) -> Result<()> {
    for protocol in ["tcp", "udp"] {
        for &size in &options.sizes {
            let mut tools: [(&'static str, Tool); 2] =
                [("nearmetal", transactions_nearmetal), ("netperf", transactions_netperf)];
            if round % 2 == 1 {
                tools.reverse();
            }
            let case = format!("{protocol} blocking, {size} B");
            for (name, tool) in tools {
                let value = tool(protocol, "blocking", size, options.seconds)?;
                let of_case = figures.transactions_per_s.entry(case.clone()).or_default();
                of_case.entry(name).or_default().push(value);
            }
        }
    }
    Ok(())
}

fn transactions_nearmetal(protocol: &str, mode: &str, size: u32, seconds: f64) -> Result<f64> {
    let data = pingpong(protocol, mode, size, seconds)?;
    data["rate_per_s"].as_f64().context("nearmetal gave no rate")
}

fn transactions_netperf(protocol: &str, _mode: &str, size: u32, seconds: f64) -> Result<f64> {
    let address = NETWORK.address();
    let _server = Server::start(NETWORK, &format!("netserver -D -4 -L {address} -p 5500"))?;
    let test = protocol.to_uppercase();
    let seconds = seconds.ceil() as u64;
    let text = client(&format!(
        "netperf -4 -H {address} -p 5500 -t {test}_RR -l {seconds} -P 0 -- -r {size},{size} \
         -o TRANSACTION_RATE"
    ))?;
    let rate = text.lines().rev().find_map(|line| line.trim().parse::<f64>().ok());
    rate.with_context(|| format!("netperf gave no rate: {text}"))
}

fn throughput(options: &Options, round: usize, figures: &mut Figures) -> Result<()> {
    let cases: [(&str, u32, &'static str, Stream); 2] = [
        ("1-uni-1, 128 KiB writes", 128 * 1024, "iperf3", stream_iperf3),
        ("1-uni-1, 64 KiB writes", 64 * 1024, "nuttcp", stream_nuttcp),
    ];
    for (case, write_bytes, peer, peer_run) in cases {
        let mut tools: [(&'static str, Stream); 2] =
            [("nearmetal", stream_nearmetal), (peer, peer_run)];
        if round % 2 == 1 {
            tools.reverse();
        }
        for (name, tool) in tools {
            let value = tool(write_bytes, options.seconds * 2.0)?;
            figures.gbps.entry(case.to_string()).or_default().entry(name).or_default().push(value);
        }
    }
    Ok(())
}

fn stream_nearmetal(write_bytes: u32, seconds: f64) -> Result<f64> {
    let address = NETWORK.address();
    let result = bench::nearmetal(
        Build::current(),
        NETWORK,
        &format!("stream {address} --write {write_bytes} --seconds {seconds} --omit 0"),
    )?;
    let total = &result["series"][0]["rounds"][0]["data"]["total_gbps"];
    total.as_f64().context("nearmetal gave no total")
}

fn stream_iperf3(write_bytes: u32, seconds: f64) -> Result<f64> {
    let address = NETWORK.address();
    let _server = Server::start(NETWORK, &format!("iperf3 -s -1 -B {address} -p 5301"))?;
    let text = client(&format!("iperf3 -c {address} -p 5301 -t {seconds} -l {write_bytes} -J"))?;
    let json: Value = serde_json::from_str(&text)?;
    let bits = json["end"]["sum_received"]["bits_per_second"].as_f64();
    Ok(bits.context("iperf3 gave no total")? / 1e9)
}

fn stream_nuttcp(write_bytes: u32, seconds: f64) -> Result<f64> {
    let address = NETWORK.address();
    let _server = Server::start(NETWORK, "nuttcp -S --nofork -P 5400 -p 5401")?;
    let kibibytes = write_bytes / 1024;
    let text = client(&format!(
        "nuttcp -P 5400 -p 5401 -t -T{} -l{kibibytes}k -fparse {address}",
        seconds.round() as u64
    ))?;
    let rate = text
        .split_whitespace()
        .find_map(|word| word.strip_prefix("rate_Mbps=")?.parse::<f64>().ok());
    Ok(rate.with_context(|| format!("nuttcp gave no rate: {text}"))? / 1e3)
}

/// Median and range of the rounds' ratios.
fn ratio_cells(own: &[f64], peer: &[f64]) -> String {
    let ratios: Vec<f64> = own.iter().zip(peer).map(|(own, peer)| own / peer).collect();
    let (low, high) = bench::range(&ratios);
    format!("{:.3} | {low:.3} to {high:.3}", median(&ratios))
}

impl Figures {
    fn table(&self, options: &Options) -> String {
        let mut text = String::from("# nearmetal beside its peers\n\n");
        let _ = writeln!(
            text,
            "Made by `cargo xtask bench-peers --rounds {}`. One veth pair between two namespaces, \
             client on CPU {CLIENT_CPU}, server on CPU {SERVER_CPU}, tools interleaved (A B B A), \
             {} s a measurement.",
            options.rounds, options.seconds
        );
        text += &bench::environment_lines(&["sockperf", "iperf3", "nuttcp", "netperf"]);
        if !self.latency_ns.is_empty() {
            text.push_str(
                "\n## Half round trip, ns: median of the rounds' medians, best round, ratio to \
                 sockperf in one round\n\n\
                 | case | size | rounds | nearmetal median | sockperf median | ratio | range | \
                 nearmetal best | sockperf best | ratio of best |\n\
                 |---|---|---|---|---|---|---|---|---|---|\n",
            );
        }
        for ((case, size), tools) in &self.latency_ns {
            let (own, peer) = (&tools["nearmetal"], &tools["sockperf"]);
            let best = |values: &[f64]| values.iter().copied().fold(f64::INFINITY, f64::min);
            let _ = writeln!(
                text,
                "| {case} | {size} | {} | {:.0} | {:.0} | {} | {:.0} | {:.0} | {:.3} |",
                own.len(),
                median(own),
                median(peer),
                ratio_cells(own, peer),
                best(own),
                best(peer),
                best(own) / best(peer)
            );
        }
        text += &table_of_rates(
            "Throughput, transactions a second: median of rounds, ratio to netperf's TCP_RR and \
             UDP_RR in one round",
            &self.transactions_per_s,
            0,
        );
        text += &table_of_rates(
            "Throughput, Gb/s: median of rounds, ratio to the peer at equal write size in one \
             round",
            &self.gbps,
            2,
        );
        text
    }
}

/// A table of figures of which more is better; empty if there are none.
fn table_of_rates(
    heading: &str,
    figures: &BTreeMap<String, BTreeMap<&'static str, Vec<f64>>>,
    digits: usize,
) -> String {
    if figures.is_empty() {
        return String::new();
    }
    let mut text = format!(
        "\n## {heading}\n\n| case | peer | rounds | nearmetal | peer | ratio | range |\n\
         |---|---|---|---|---|---|---|\n"
    );
    for (case, tools) in figures {
        let own = &tools["nearmetal"];
        for (peer, values) in tools.iter().filter(|(name, _)| **name != "nearmetal") {
            let _ = writeln!(
                text,
                "| {case} | {peer} | {} | {:.digits$} | {:.digits$} | {} |",
                own.len(),
                median(own),
                median(values),
                ratio_cells(own, values)
            );
        }
    }
    text
}
