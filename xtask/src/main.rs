//! Automation of the workspace; `cargo xtask` lists its tasks.

mod bench;
mod bench_all;
mod bench_book;
mod bench_builds;
mod bench_bypass;
mod bench_exchange;
mod bench_peers;
mod bench_programs;
mod book_peer;
mod check;
mod ci;
mod connect;
mod dist;
mod exchange_moves;
mod exchange_peers;
mod exchange_round;
mod fix_initiators;
mod fuzz;
mod lab_t3;
mod leftovers;
mod mutations;
mod peer;
mod pictures;
mod python;
mod redis_load;
mod rolling_upgrade;
mod schedule;
mod setup;
mod shell;
mod soak_accel;
mod soak_conformance;
mod suite;
mod test_limit;
mod thread_sanitizer;
mod tidy;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask TASK

  setup         installs what the tests need beside Rust (Debian, as root)
  test          setup, then all tests; arguments go to `cargo test --workspace`
  ci            everything that must hold: setup, tidy, format, lints, docs, tests, a release build
                and a qualification with it
  check         two minutes without root: format, tidy, clippy and unit tests of what changed
                against main and of what depends on it (--help)
  tidy          the rules that no compiler checks: import cycles, function length, unused
                dependencies, layers, licences (--help)
  fuzz          every fuzz target for some seconds, with coverage where a nightly toolchain is
                (--help)
  thread-sanitizer  the unit tests of what threads share, under ThreadSanitizer (needs a nightly
                toolchain; --help)
  mutations     deliberate faults, each of which a test that SPECIFICATION.md names must notice
                (--help)
  pictures      the pictures of the first screen in docs/images, of constructed results (needs
                Chromium)
  dist          static programs, packages and images for x86-64 and AArch64 in target/dist-files;
                `dist check` installs and runs them (--help)
  bench         the benchmarks beside peers in one go, with one page and a picture of all ratios
                (root; --help)
  bench-book    ns, allocations and tails per command of the order book, fast and reference
                (--peers: beside exchange-core)
  bench-exchange  the exchange's networks and rates, each with the published figure beside
                (--peers: beside Aeron Cluster and Redis Streams)
  bench-peers   half round trip and throughput against sockperf, iperf3 and nuttcp (root; --help)
  bench-bypass  shared memory, AF_XDP and unmodified programs under `nearmetal accel` against the
                kernel and the limit of the hardware (root; --help)
  bench-programs  servers, databases and run-time systems under `nearmetal accel` beside the kernel,
                with the bytes in shared memory and the reasons of the others (--help)
  lab-t3        an emulated host with virtualization, IOMMU and SR-IOV NICs, in which
                `nearmetal lab` runs guests on KVM (Debian; downloads packages, installs none)
  soak-conformance  the accelerator's conformance suite again and again while programs compete
                for the CPUs; counts what fails (--help)
  soak-accel    10 000 connections of accelerated programs of every kind, each byte checked (--help)
  rolling-upgrade  a network under load is restarted node by node with a version whose format has
                one message more
  fix-initiators  FIX engines that others wrote against `exchange fix`: QuickFIX/J and asyncfix
                (needs a JDK, Maven and Python; downloads both)
  bench-builds  the figures of this build against those of another one, in turn (root; --help)";

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let result = match args.next().as_deref() {
        Some("setup") => setup::run(),
        Some("test") => suite::run(&args.collect::<Vec<_>>()),
        Some("check") => check::run(&args.collect::<Vec<_>>()),
        Some("ci") => ci::run(),
        Some("tidy") => tidy::run(&args.collect::<Vec<_>>()),
        Some("fuzz") => fuzz::run(&args.collect::<Vec<_>>()),
        Some("fix-initiators") => fix_initiators::run(&args.collect::<Vec<_>>()),
        Some("thread-sanitizer") => thread_sanitizer::run(&args.collect::<Vec<_>>()),
        Some("mutations") => mutations::run(&args.collect::<Vec<_>>()),
        Some("pictures") => pictures::run(),
        Some("dist") => dist::run(&args.collect::<Vec<_>>()),
        Some("bench") => bench_all::run(&args.collect::<Vec<_>>()),
        Some("bench-book") => bench_book::run(&args.collect::<Vec<_>>()),
        Some("bench-exchange") => bench_exchange::run(&args.collect::<Vec<_>>()),
        Some("bench-peers") => bench_peers::run(&args.collect::<Vec<_>>()),
        Some("bench-bypass") => bench_bypass::run(&args.collect::<Vec<_>>()),
        Some("bench-programs") => bench_programs::run(&args.collect::<Vec<_>>()),
        Some("bench-builds") => bench_builds::run(&args.collect::<Vec<_>>()),
        Some("rolling-upgrade") => rolling_upgrade::run(),
        Some("lab-t3") => lab_t3::run(),
        Some("soak-accel") => soak_accel::run(&args.collect::<Vec<_>>()),
        Some("soak-conformance") => soak_conformance::run(&args.collect::<Vec<_>>()),
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
