//! Automation of the workspace: `cargo xtask ci | tidy | dist | docs | bench-book | bench-bypass |
//! bench-exchange | bench-peers`.

mod bench;
mod bench_book;
mod bench_bypass;
mod bench_exchange;
mod bench_peers;
mod ci;
mod connect;
mod dist;
mod shell;
mod tidy;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask TASK

  ci            everything that must hold: format, lints, docs, tidy, tests, the README's main job
  tidy          the rules that no compiler checks: import cycles, function length, words, … (--help)
  dist          static build, completions and man page in target/dist
  bench-book    ns, allocations and tails per command of the order book, fast and plain
  bench-exchange  the exchange's networks and rates, each with the published figure beside
  bench-peers   half round trip and throughput against sockperf, iperf3 and nuttcp (root; --help)
  bench-bypass  shared memory, AF_XDP and unmodified programs under `nearmetal accel` against the
                kernel and the limit of the hardware (root; --help)";

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let result = match args.next().as_deref() {
        Some("ci") => ci::run(),
        Some("tidy") => tidy::run(&args.collect::<Vec<_>>()),
        Some("dist") => dist::run(),
        Some("bench-book") => bench_book::run(&args.collect::<Vec<_>>()),
        Some("bench-exchange") => bench_exchange::run(&args.collect::<Vec<_>>()),
        Some("bench-peers") => bench_peers::run(&args.collect::<Vec<_>>()),
        Some("bench-bypass") => bench_bypass::run(&args.collect::<Vec<_>>()),
        // A program that bench-bypass measures.
        Some("connect") => connect::run(&args.collect::<Vec<_>>()),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
