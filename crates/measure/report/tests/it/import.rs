//! Other tools' output: what is imported, and what is refused with which message.
//!
//! The samples in `tests/data/import` are real output over the loopback interface of a busy two-CPU
//! machine. The tools are sockperf 3.7, nuttcp 6.1.2 and iperf3 3.12 of Debian 12, netperf 2.7.0 of
//! Debian 12 non-free. `sfnt-pingpong.txt` is put together from a published run's recorded header
//! and figures (reference/deftech-e5-bm-ull) in the form that the tool prints them.

use nm_model::doubt::DoubtKind;
use nm_model::metric::Metric;
use nm_model::probe::{Case, ProbeKind, Side};
use nm_model::result::{RoundData, RunResult, Series, Source, Statistic, ThroughputRound};
use nm_report::import::{ImportError, read};
use nm_report::probes::pingpong::sfnt;
use nm_report::{csv, units, view};
use proptest::prelude::*;

use crate::fixture::{self, SMALL};
use crate::golden;

const FIXTURES: &[&str] = &[
    "sfnt-pingpong.txt",
    "sockperf-ping-pong-tcp.txt",
    "sockperf-ping-pong-udp.txt",
    "sockperf-full-rtt.txt",
    "sockperf-under-load.txt",
    "nuttcp.txt",
    "nuttcp-r.txt",
    "nuttcp-parse.txt",
    "nuttcp-interval.txt",
    "nuttcp-udp.txt",
    "nuttcp-udp-parse.txt",
    "iperf3.json",
    "iperf3-p2.json",
    "iperf3-bidir.json",
    "iperf3-r.json",
    "iperf3-udp.json",
    "netperf-tcp-stream.txt",
    "netperf-tcp-stream-cpu.txt",
    "netperf-tcp-maerts.txt",
    "netperf-udp-stream.txt",
    "netperf-tcp-rr.txt",
    "netperf-tcp-rr-cpu.txt",
    "netperf-udp-rr.txt",
    "netperf-omni-rr.csv",
    "netperf-omni-rr.keyval",
    "netperf-omni-rr-default.csv",
    "netperf-omni-send.csv",
    "netperf-omni-send.keyval",
];

fn text(name: &str) -> String {
    let path = format!("{}/tests/data/import/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[track_caller]
fn imported(name: &str) -> RunResult {
    read(&text(name), name).unwrap_or_else(|error| panic!("{error}"))
}

/// The only series of a sample.
#[track_caller]
fn only(name: &str) -> Series {
    let mut result = imported(name);
    assert_eq!(result.series.len(), 1, "{name}");
    result.series.remove(0)
}

fn value(series: &Series, metric: Metric) -> Option<f64> {
    series.rounds[0].value(metric)
}

fn flows(series: &Series) -> &ThroughputRound {
    match &series.rounds[0].data {
        RoundData::Throughput(data) => data,
        RoundData::Latency(_) => panic!("throughput"),
    }
}

/// Whether the throughput of the first round is `gbps`, apart from rounding errors of binary
/// fractions.
#[track_caller]
fn carries(series: &Series, gbps: f64) {
    let found = value(series, Metric::Throughput).unwrap();
    assert!((found - gbps).abs() <= gbps * 1e-12, "{found}");
}

fn error(text: &str) -> ImportError {
    read(text, "x.txt").unwrap_err()
}

#[test]
fn every_sample_is_read_marked_and_survives_json() {
    for name in FIXTURES {
        let result = imported(name);
        assert!(matches!(result.source, Source::Imported { .. }));
        assert!(result.doubts.iter().any(|doubt| doubt.kind == DoubtKind::Imported), "{name}");
        for series in &result.series {
            assert!(series.doubts.iter().any(|doubt| doubt.kind == DoubtKind::Imported), "{name}");
            assert!(!series.estimates.is_empty(), "{name}");
        }
        let json = serde_json::to_string(&result).unwrap();
        assert_eq!(serde_json::from_str::<RunResult>(&json).unwrap(), result, "{name}");
    }
}

#[test]
fn sfnt_rows_and_header_are_read() {
    let result = imported("sfnt-pingpong.txt");
    assert_eq!(result.series.len(), 17);
    let series = &result.series[6];
    assert_eq!(series.key.case, Case::Message { size_bytes: 64 });
    assert_eq!(series.key.stack, "onload+tcp-spin");
    assert_eq!(series.key.statistic, Statistic::HalfRoundTrip);
    assert_eq!(value(series, Metric::Median), Some(1791.0));
    assert_eq!(value(series, Metric::Percentile(99.0)), Some(1931.0));
    assert_eq!(series.comparability.bypass.as_deref(), Some("onload"));
    assert_eq!(result.source, Source::Imported { tool: "sfnt-pingpong 1.5.0".to_string() });
    assert_eq!(result.notes["tsc_hz"], "2099969430");
    assert_eq!(result.notes["enp139s0f0.driver"], "sfc");
    // The published run that it was made from has the same figures.
    let published = nm_report::reference::load("deftech-e5-bm-ull").unwrap();
    for (a, b) in result.series.iter().zip(&published.series) {
        for metric in [Metric::Mean, Metric::Min, Metric::Median, Metric::Max, Metric::Stddev] {
            assert_eq!(value(a, metric), value(b, metric));
        }
    }
}

#[test]
fn sfnt_statistic_and_percentile_come_from_the_header() {
    let output = text("sfnt-pingpong.txt");
    let full =
        read(&output.replace("# percentile=99\n", "# percentile=99.9\n# reporting: RTT\n"), "x");
    let full = full.unwrap();
    assert_eq!(full.series[0].key.statistic, Statistic::RoundTrip);
    assert_eq!(value(&full.series[0], Metric::Percentile(99.9)), Some(2166.0));
    assert_eq!(value(&full.series[0], Metric::Percentile(99.0)), None);
    // Copied from a terminal the tabs are spaces; without any header it is half, and p99.
    let bare = "#  size  mean  min  median  max  %ile  stddev  iter\n\
                \x20 1 1768 1676 1719 50581 2166 158 842000\n";
    let bare = read(bare, "x").unwrap();
    assert_eq!(bare.series[0].key.statistic, Statistic::HalfRoundTrip);
    assert_eq!(value(&bare.series[0], Metric::Percentile(99.0)), Some(2166.0));
}

/// A value stands behind `=` or is the next word; `;` separates those of client and server.
#[test]
fn sfnt_options_are_read_in_every_form() {
    for (options, stack, statistic) in [
        ("--spin --muxer epoll tcp", "tcp-epoll-spin", Statistic::HalfRoundTrip),
        ("--muxer=poll udp 192.0.2.1", "udp-poll", Statistic::HalfRoundTrip),
        ("--affinity 1;1 --rtt=1 tcp 192.0.2.1", "tcp-blocking", Statistic::RoundTrip),
        ("--rtt --spin=0 TCP 192.0.2.1", "tcp-blocking", Statistic::RoundTrip),
        ("--rtt=0 --spin=1;0 tcp host", "tcp-spin:tcp-blocking", Statistic::HalfRoundTrip),
        ("--muxer epoll;none tcp host", "tcp-epoll:tcp-blocking", Statistic::HalfRoundTrip),
        // The value of another option names no protocol.
        ("--raw tcp --sizes 64 udp host", "udp-blocking", Statistic::HalfRoundTrip),
    ] {
        let text = format!(
            "# cmdline: ./sfnt-pingpong {options}\n# percentile=99\n\
             #\tsize\tmean\tmin\tmedian\tmax\t%ile\tstddev\titer\n\
             \t64\t5000\t4000\t4900\t90000\t7000\t300\t100000\n"
        );
        let found = only_of(&text);
        assert_eq!((&*found.key.stack, found.key.statistic), (stack, statistic), "{options}");
        let mode = found.comparability.mode.unwrap();
        let modes = stack.replace("tcp-", "").replace("udp-", "");
        assert_eq!(mode, modes, "{options}");
    }
}

/// What one value of a sweep is worth after it was printed without a fraction.
#[track_caller]
fn assert_printed(found: &Series, measured: &Series, percentile: f64) {
    let printed = |metric| view::value(measured, metric).map(|v| format!("{v:.0}"));
    let metrics = [Metric::Mean, Metric::Min, Metric::Median, Metric::Max, Metric::Stddev];
    for metric in metrics.into_iter().chain([Metric::Percentile(percentile)]) {
        let read = value(found, metric).map(|v| v.to_string());
        assert_eq!(read, printed(metric), "{} {metric}", found.key);
    }
    assert_eq!(view::samples(found), view::samples(measured));
}

#[test]
fn our_own_sfnt_text_is_read_back() {
    let run = fixture::result(SMALL);
    let found = read(&sfnt::text(&run, 99.0), "own.txt").unwrap();
    assert_eq!(found.source, Source::Imported { tool: "nearmetal 0.0.0-made-up".to_string() });
    assert_eq!(found.started, run.started);
    assert_eq!(found.notes["client cpu"], "Made-up CPU @ 1 GHz");
    let half = |s: &&Series| s.key.statistic == Statistic::HalfRoundTrip;
    let measured: Vec<&Series> = run.series.iter().filter(half).collect();
    assert!(measured.len() > 4);
    assert_eq!(found.series.len(), measured.len());
    for measured in measured {
        let found = found.series.iter().find(|s| s.key == measured.key).unwrap();
        assert_printed(found, measured, 99.0);
        for field in ["protocol", "way of waiting"] {
            let of = |s: &Series| {
                let fields = s.comparability.fields();
                fields.into_iter().find(|(name, _)| *name == field).unwrap().1.map(String::from)
            };
            assert!(of(found).is_some(), "{field}");
        }
    }
}

#[test]
fn our_own_sfnt_text_has_any_percentile_and_may_lack_figures() {
    let run = fixture::result(SMALL);
    // Three samples a round lie beyond p99.9, which is too few: the column is n/a.
    let found = read(&sfnt::text(&run, 99.9), "own.txt").unwrap();
    assert_eq!(value(&found.series[0], Metric::Percentile(99.9)), None);
    assert!(value(&found.series[0], Metric::Median).is_some());
    // Only we write n/a; in another tool's output it is damage.
    let foreign = "# size mean min median max %ile stddev iter\n 1 1 1 1 9 n/a 1 100\n";
    assert!(read(foreign, "x").unwrap_err().to_string().contains("%ile is `n/a`"));
}

#[test]
fn own_and_foreign_texts_in_one_file_keep_their_places() {
    let run = fixture::result(SMALL);
    let both = format!("{}\n{}", sfnt::text(&run, 99.0), text("sfnt-pingpong.txt"));
    let found = read(&both, "both.txt").unwrap();
    assert_eq!(found.series.first().unwrap().key.environment, "loopback");
    assert_eq!(found.series.last().unwrap().key.path(), "both.txt/onload+tcp-spin");
}

#[test]
fn sweeps_of_a_result_folder_are_read_back() {
    let run = fixture::result(SMALL);
    let files = nm_report::folder::report_files(&run, &[]);
    let mut joined: Option<RunResult> = None;
    for (name, text) in files.iter().filter(|(name, _)| name.starts_with("sfnt/")) {
        let one = read(text, &format!("out/{name}")).unwrap();
        match &mut joined {
            Some(joined) => nm_report::import::join(joined, [one]),
            None => joined = Some(one),
        }
    }
    let found = joined.unwrap();
    assert_eq!(found.doubts.iter().filter(|d| d.kind == DoubtKind::Inferred).count(), 1);
    for measured in run.series.iter().filter(|s| s.key.statistic == Statistic::HalfRoundTrip) {
        let found = found.series.iter().find(|s| s.key == measured.key).unwrap();
        assert_printed(found, measured, 99.0);
    }
    // A published table in the same columns has no place in its name.
    let path = golden::path("../../../reference/deftech-hft-vm-pf.csv");
    let published = std::fs::read_to_string(path).unwrap();
    let found = read(&published, "reference/deftech-hft-vm-pf.csv").unwrap();
    assert_eq!(found.series[0].key.path(), "deftech-hft-vm-pf.csv/sfnt");
}

#[test]
fn every_figure_of_every_round_is_read_back_from_the_long_table() {
    let run = fixture::result(SMALL);
    let found = read(&csv::long(&run), "series.csv").unwrap();
    assert_eq!(found.series.len(), run.series.len());
    let metrics: Vec<Metric> = Metric::NAMES.iter().map(|name| name.parse().unwrap()).collect();
    for (found, measured) in found.series.iter().zip(&run.series) {
        assert_eq!(found.key.path(), measured.key.path());
        assert_eq!(
            (found.key.probe, found.key.statistic),
            (measured.key.probe, measured.key.statistic)
        );
        assert_eq!(found.key.case, measured.key.case);
        assert_eq!(found.rounds.len(), measured.rounds.len());
        for (a, b) in found.rounds.iter().zip(&measured.rounds) {
            for &metric in &metrics {
                let printed = |v: Option<f64>| v.map(units::plain);
                assert_eq!(printed(a.value(metric)), printed(b.value(metric)), "{metric}");
            }
        }
        for estimate in &measured.estimates {
            let again = found.estimate(estimate.metric).map(|e| e.value);
            let again = again.unwrap_or_else(|| panic!("{}", estimate.metric));
            assert!((again / estimate.value - 1.0).abs() < 1e-6 || estimate.value == 0.0);
        }
    }
}

#[test]
fn names_that_look_like_formulas_read_back_from_the_long_table() {
    let mut run = fixture::result(SMALL);
    for environment in ["=cmd|' /C calc'!A0", "-1", "@x", "\t=1", "'+1", "it's"] {
        run.series[0].key.environment = environment.to_string();
        let table = csv::long(&run);
        let is_executed = |line: &str| line.starts_with(['=', '+', '-', '@', '\t', '\r']);
        assert!(!table.lines().any(is_executed), "{table}");
        let found = read(&table, "series.csv").unwrap();
        assert_eq!(found.series[0].key.environment, environment);
    }
}

#[test]
fn damaged_tables_are_refused_with_their_line() {
    let head = "environment,stack,probe,case,statistic,round,figure,value,unit\n";
    for (line, message) in [
        ("a,tcp-spin,pingpong,64 B,half-round-trip,0,median,-1,ns", "not a valid figure"),
        ("a,tcp-spin,pingpong,64 B,half-round-trip,0,medain,1,ns", "did you mean `median`?"),
        ("a,tcp-spin,pingpong,64,half-round-trip,0,median,1,ns", "unknown case"),
        ("a,tcp-spin,pingpong,64 B,half-round-trip,0,median,1", "8 cells instead of 9"),
        ("a,tcp-spin,pingpong,64 B,throughput,0,median,1,ns", "no figure of a stream"),
    ] {
        let error = error(&format!("{head}{line}\n"));
        assert_eq!(error.fault.line(), Some(2), "{error}");
        assert!(error.to_string().contains(message), "{error}");
    }
    let head = format!("{}\n", csv::LONG_HEADING);
    for (line, message) in [
        ("a,tcp-spin,pingpong,64 B,half-round-trip,0,median,1,ns", "9 cells instead of 10"),
        ("a,tcp-spin,pingpong,64 B,half-round-trip,0,median,1,ns,tgc", "did you mean `tcg`?"),
    ] {
        assert!(error(&format!("{head}{line}\n")).to_string().contains(message));
    }
    let sweep = "size,mean,min,median,max,p99,stddev,iter\n1,2,3\n";
    assert!(error(sweep).to_string().contains("3 cells instead of 8"));
    assert!(error("size,mean,min,median,max,p99,stddev,iter\n").to_string().contains("no figures"));
}

#[test]
fn a_result_is_not_imported_but_named() {
    let run = fixture::result(SMALL);
    for text in [serde_json::to_string(&run).unwrap(), nm_report::html::report(&run, &[])] {
        let message = error(&text).to_string();
        assert!(message.contains("name it to `compare`, `trend` or `report`"), "{message}");
    }
}

#[test]
fn joined_imports_keep_doubts_notes_and_tools_of_all() {
    let mut result = imported("sockperf-ping-pong-tcp.txt");
    let more = imported("iperf3.json");
    let n_series = result.series.len() + more.series.len();
    nm_report::import::join(&mut result, [more, imported("iperf3.json")]);
    assert_eq!(result.series.len(), n_series);
    assert_eq!(result.series.last().unwrap().rounds.len(), 2);
    let Source::Imported { tool } = &result.source else { panic!("imported") };
    assert_eq!(tool.matches(" and ").count(), 1, "{tool}");
    assert!(tool.contains("sockperf") && tool.contains("iperf"), "{tool}");
    let imported = result.doubts.iter().filter(|d| d.kind == DoubtKind::Imported).count();
    assert_eq!(imported, 2, "each tool has its doubt, once: {:?}", result.doubts);
}

#[test]
fn runs_one_after_the_other_become_rounds() {
    let five = text("sockperf-ping-pong-tcp.txt").repeat(5);
    let result = read(&five, "x").unwrap();
    assert_eq!((result.series.len(), result.series[0].rounds.len()), (1, 5));
    let three = format!("{0}{0}{0}", text("iperf3.json"));
    assert_eq!(read(&three, "x").unwrap().series[0].rounds.len(), 3);
    let two = format!("{}{}", text("netperf-tcp-rr.txt"), text("netperf-tcp-stream.txt"));
    assert_eq!(read(&two, "x").unwrap().series.len(), 2);
}

#[test]
fn sockperf_statistic_follows_its_output() {
    let half = only("sockperf-ping-pong-tcp.txt");
    assert_eq!(half.key.statistic, Statistic::HalfRoundTrip);
    assert_eq!(half.key.probe, ProbeKind::Pingpong);
    assert_eq!(half.key.stack, "sockperf-tcp");
    assert_eq!(value(&half, Metric::Mean), Some(33_324.0));
    assert_eq!(value(&half, Metric::Stddev), Some(10_677.0));
    assert_eq!(value(&half, Metric::Median), Some(33_034.0));
    assert_eq!(value(&half, Metric::Percentile(99.0)), Some(48_697.0));
    assert_eq!(value(&half, Metric::Max), Some(792_557.0));
    assert_eq!(value(&half, Metric::Min), Some(10_901.0));
    // 8239 samples have 8.2 beyond p99.9: the printed figure is no percentile.
    assert_eq!(value(&half, Metric::Percentile(99.9)), None);
    assert!(half.doubts.iter().any(|doubt| doubt.kind == DoubtKind::TooFewSamples));
    let full = only("sockperf-full-rtt.txt");
    assert_eq!(full.key.statistic, Statistic::RoundTrip);
    assert_eq!(value(&full, Metric::Mean), Some(69_003.0));
    assert_eq!(only("sockperf-ping-pong-udp.txt").key.stack, "sockperf-udp");
}

#[test]
fn sockperfs_size_and_mode_come_from_its_command_line() {
    let output = text("sockperf-under-load.txt");
    let bare = read(&output, "x").unwrap();
    assert_eq!(
        (bare.series[0].key.probe, bare.series[0].key.case),
        (ProbeKind::Pingpong, Case::Total)
    );
    assert!(bare.doubts.iter().any(|doubt| doubt.kind == DoubtKind::Inferred));
    let command = "$ sockperf under-load -i 127.0.0.1 --mps 1000 --reply-every 1 -m 64 -t 1\n";
    let with_command = read(&format!("{command}{output}"), "x").unwrap();
    let key = &with_command.series[0].key;
    assert_eq!(key.probe, ProbeKind::Rr);
    assert_eq!(key.case.size_bytes(), Some(64));
    assert!(matches!(key.case, Case::Request { rate_per_s: Some(1000.0), .. }));
}

#[test]
fn sockperfs_short_names_of_modes_and_joined_values_are_read() {
    let output = text("sockperf-under-load.txt");
    let key = |command: &str| {
        let result = read(&format!("$ sockperf {command}\n{output}"), "x").unwrap();
        (result.series[0].key.probe, result.series[0].key.case)
    };
    for command in ["ul -i 127.0.0.1 --mps 1000 -m64", "ul --mps=1000 --msg-size=64"] {
        let (probe, case) = key(command);
        assert_eq!((probe, case.size_bytes()), (ProbeKind::Rr, Some(64)), "{command}");
        assert!(matches!(case, Case::Request { rate_per_s: Some(1000.0), .. }), "{command}");
    }
    assert_eq!(key("pb --data-file x"), (ProbeKind::Rr, Case::Total));
    let message = Case::Message { size_bytes: 64 };
    assert_eq!(key("pp -i 127.0.0.1 -m64"), (ProbeKind::Pingpong, message));
}

#[test]
fn older_sockperf_output_is_read() {
    let older = text("sockperf-ping-pong-tcp.txt").replace("avg-latency=", "avg-lat= ");
    assert_eq!(value(&only_of(&older), Metric::Mean), Some(33_324.0));
}

/// The mean was that of the last server, the percentiles those of the first.
#[test]
fn figures_of_several_sockperf_servers_are_refused() {
    let one = text("sockperf-ping-pong-udp.txt");
    let (_, figures) = one.split_once("Server No: 0").unwrap();
    let both = format!("{one}sockperf: ========= Printing statistics for Server No: 1{figures}");
    let line = one.lines().count() + 1;
    assert!(
        error(&both).to_string().starts_with(&format!("x.txt:{line}: figures of several servers"))
    );
}

#[test]
fn newer_sockperf_output_is_read() {
    let newer = text("sockperf-ping-pong-tcp.txt").replace(
        "(std-dev=10.677)",
        "(std-dev=10.677, mean-ad=2.1, median-ad=1.2, siqr=0.8, cv=0.3, std-error=0.1, \
         99.0% ci=[33.0, 33.6])",
    );
    let newer = read(&newer, "x").unwrap();
    assert_eq!(value(&newer.series[0], Metric::Stddev), Some(10_677.0));
}

#[test]
fn nuttcp_lines_are_read_in_both_forms() {
    let line = only("nuttcp.txt");
    assert_eq!(line.key.stack, "nuttcp-tcp");
    assert_eq!(line.key.case.to_string(), "1-uni-1, 65536 B writes");
    carries(&line, 20.953_774);
    assert_eq!(flows(&line).flows[0].retransmits, Some(0));
    assert_eq!(flows(&line).client_cpu, Some(0.52));
    assert_eq!(line.settings.get(&"connect_rtt_ms".into()).unwrap().to_string(), "0.19");
    let parsed = only("nuttcp-parse.txt");
    carries(&parsed, 19.260_538_7);
    // The lines of single seconds are not runs.
    let interval = only("nuttcp-interval.txt");
    assert_eq!(interval.rounds.len(), 1);
    carries(&interval, 14.761_605_6);
    let udp = only("nuttcp-udp-parse.txt");
    assert_eq!(udp.key.stack, "nuttcp-udp");
    assert!(udp.doubts.iter().any(|doubt| doubt.kind == DoubtKind::Loss));
    assert!(only("nuttcp-udp.txt").doubts.iter().all(|doubt| doubt.kind != DoubtKind::Loss));
}

#[test]
fn iperf3_counts_at_the_receivers() {
    let one = only("iperf3.json");
    assert_eq!(one.key.case.to_string(), "1-uni-1, 131072 B writes");
    assert_eq!(one.comparability.congestion.as_deref(), Some("bbr"));
    let gbps = value(&one, Metric::Throughput).unwrap();
    assert!((gbps - 19.712_734_567).abs() < 1e-6, "{gbps}");
    assert_eq!(flows(&one).flows[0].retransmits, Some(8));
    let two = only("iperf3-p2.json");
    assert_eq!(two.key.case.to_string(), "2-uni-2, 65536 B writes");
    let both = only("iperf3-bidir.json");
    assert_eq!(both.key.case.to_string(), "2-bi-2, 131072 B writes");
    let senders: Vec<Side> = flows(&both).flows.iter().map(|flow| flow.sender).collect();
    assert_eq!(senders, [Side::Client, Side::Server]);
    assert_eq!(flows(&only("iperf3-r.json")).flows[0].sender, Side::Server);
    let udp = only("iperf3-udp.json");
    assert_eq!(udp.key.stack, "iperf3-udp");
    assert!((value(&udp, Metric::Throughput).unwrap() - 0.050_065).abs() < 1e-5);
}

/// The server does not know what arrived at the client, and leaves zeros.
#[test]
fn the_output_of_iperf3s_server_is_refused() {
    let client = text("iperf3-r.json");
    let server = client.replacen("\"connecting_to\"", "\"accepted_connection\"", 1);
    assert_ne!(server, client);
    assert_eq!(
        error(&server).to_string(),
        "x.txt: the output of iperf3's server, which lacks what the client counted; read the \
         client's"
    );
}

#[test]
fn netperf_tables_and_lists_are_read() {
    let stream = only("netperf-tcp-stream.txt");
    assert_eq!(stream.key.case.to_string(), "1-uni-1, 16384 B writes");
    carries(&stream, 35.514_55);
    carries(&only("netperf-tcp-stream-cpu.txt"), 25.565_86);
    let back = only("netperf-tcp-maerts.txt");
    assert_eq!(flows(&back).flows[0].sender, Side::Server);
    // Of the two lines of UDP_STREAM the second is the receiver's.
    carries(&only("netperf-udp-stream.txt"), 70.687_95);
    let rr = only("netperf-tcp-rr.txt");
    assert_eq!((rr.key.probe, rr.key.statistic), (ProbeKind::Rr, Statistic::RoundTrip));
    assert_eq!(value(&rr, Metric::Rate), Some(17_721.71));
    assert!((value(&rr, Metric::Mean).unwrap() - 1e9 / 17_721.71).abs() < 1e-6);
    assert!(rr.doubts.iter().any(|doubt| doubt.kind == DoubtKind::ClosedLoop));
    for name in ["netperf-omni-rr.csv", "netperf-omni-rr.keyval"] {
        let rr = only(name);
        assert_eq!(rr.key.case.size_bytes(), Some(64), "{name}");
        assert_eq!(value(&rr, Metric::Median), Some(57_000.0), "{name}");
    }
    assert_eq!(value(&only("netperf-omni-rr.csv"), Metric::Percentile(99.0)), Some(77_000.0));
    carries(&only("netperf-omni-send.csv"), 35.916_8);
    carries(&only("netperf-omni-send.keyval"), 43.537_69);
    assert_eq!(value(&only("netperf-omni-rr-default.csv"), Metric::Rate), Some(16_607.35));
}

/// What netperf prints above its figures.
fn netperf_title(test: &str) -> String {
    format!("{test} TEST from 0.0.0.0 (0.0.0.0) port 0 AF_INET to 127.0.0.1 () port 0 AF_INET\n")
}

/// The only series of a text.
#[track_caller]
fn only_of(text: &str) -> Series {
    let result = read(text, "x.csv").unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(result.series.len(), 1, "{text}");
    result.series.into_iter().next().unwrap()
}

/// `-o` prints the columns that the user names, in that order, and nothing else.
#[test]
fn netperf_csv_is_read_whatever_its_columns_are() {
    let stream = netperf_title("MIGRATED TCP STREAM");
    // One column: the unit is the default's.
    carries(&only_of(&format!("{stream}Throughput\n35514.55\n")), 35.514_55);
    let without_units = format!("{stream}Elapsed Time (sec),Throughput\n1.00,35514.55\n");
    carries(&only_of(&without_units), 35.514_55);
    let found = read(&without_units, "x.csv").unwrap();
    let inferred = |doubt: &nm_model::Doubt| doubt.kind == DoubtKind::Inferred;
    assert!(found.doubts.iter().any(inferred), "{:?}", found.doubts);
    // A text that may hold commas is in quotes.
    let quoted = format!(
        "{stream}Command Line,Throughput,Throughput Units\n\
         \"netperf -t TCP_STREAM -- -o command_line,throughput,throughput_units\",4.00,GBytes/s\n"
    );
    carries(&only_of(&quoted), 4.0 * 8.0 * 1.073_741_824);
    // Interim results of -D come first, and warnings of -i between.
    let interim = format!(
        "{stream}Interim result: 35000.10 10^6bits/s over 1.000 seconds ending at 1763.120\n\
         !!! WARNING\n!!! Desired confidence was not achieved within the specified iterations.\n\
         Throughput,Throughput Units\n35514.55,10^6bits/s\n"
    );
    carries(&only_of(&interim), 35.514_55);
    let keyval = interim.replace(
        "Throughput,Throughput Units\n35514.55,10^6bits/s\n",
        "THROUGHPUT=35514.55\nTHROUGHPUT_UNITS=10^6bits/s\n",
    );
    carries(&only_of(&keyval), 35.514_55);
    // Received from the server.
    let back = format!(
        "{}Remote Send Size,Throughput,Throughput Units\n16384,9000.00,10^6bits/s\n",
        netperf_title("MIGRATED TCP MAERTS")
    );
    let back = only_of(&back);
    assert_eq!(back.key.case.to_string(), "1-uni-1, 16384 B writes");
    assert_eq!(flows(&back).flows[0].sender, Side::Server);
}

/// `-k all` and `-o all` name figures that the test did not take.
#[test]
fn netperf_figures_that_were_not_taken_are_absent() {
    let throughput = "THROUGHPUT=9413.55\nTHROUGHPUT_UNITS=10^6bits/s\nELAPSED_TIME=10.00\n";
    let absent = "TRANSACTION_RATE=-1.000\nRT_LATENCY=-1.000\nP50_LATENCY=-1\nMEAN_LATENCY=-1.00\n";
    let title = netperf_title("MIGRATED TCP STREAM");
    carries(&only_of(&format!("{title}{throughput}{absent}")), 9.413_55);
    let negative = read(&format!("{title}{throughput}RT_LATENCY=-2.000\n"), "x").unwrap_err();
    assert!(negative.to_string().contains("RT_LATENCY is `-2.000`"), "{negative}");
}

#[test]
fn netperf_latencies_are_read_without_a_rate() {
    let title = netperf_title("OMNI Send|Recv");
    let head = "Mean Latency Microseconds,99th Percentile Latency Microseconds";
    let rr = only_of(&format!("{title}{head}\n57.54,77\n"));
    assert_eq!((rr.key.probe, rr.key.statistic), (ProbeKind::Rr, Statistic::RoundTrip));
    assert_eq!(value(&rr, Metric::Mean), Some(57_540.0));
    assert_eq!(value(&rr, Metric::Percentile(99.0)), Some(77_000.0));
    assert_eq!(value(&rr, Metric::Rate), None);
    // Without the title, as of a script that keeps the last two lines of each run.
    let rr = only_of(&format!("{head}\n57.54,77\n"));
    assert_eq!(value(&rr, Metric::Mean), Some(57_540.0));
    let rr = only_of(&format!("{title}Round Trip Latency usec/tran,Throughput\n60.21,16607.35\n"));
    assert_eq!(
        (value(&rr, Metric::Mean), value(&rr, Metric::Rate)),
        (Some(60_210.0), Some(16_607.35))
    );
    // Several runs, each with its heading, are rounds.
    let two = format!("{head}\n57.54,77\n").repeat(2);
    assert_eq!(only_of(&two).rounds.len(), 2);
}

#[test]
fn netperf_without_figures_is_refused_with_what_is_missing() {
    let title = netperf_title("MIGRATED TCP STREAM");
    let of = |text: &str| read(text, "x.csv").unwrap_err().to_string();
    let sizes = format!("{title}Local Send Size,Elapsed Time (sec)\n16384,1.00\n");
    assert!(of(&sizes).starts_with("x.csv:3: no throughput among the figures"), "{}", of(&sizes));
    let short = format!("{title}Throughput,Throughput Units\n1.00,2,3\n");
    assert_eq!(of(&short), "x.csv:3: 3 fields instead of 2");
    let open = format!("{title}Throughput,Command Line\n1.00,\"netperf\n");
    assert_eq!(of(&open), "x.csv:3: a quote is not closed");
    // Without headings nobody knows the columns.
    assert!(of("4194304,131072,1,1,1.00,16607.35,Trans/s\n").contains("without -P 0"));
}

/// When each series was compared with all before it, the work grew with the square of their number.
#[test]
fn a_text_of_many_series_is_read_and_joined() {
    const SERIES: usize = 20_000;
    let row = |at: usize| {
        let size = at % 1_000;
        format!("e{at},tcp-spin,pingpong,{size} B,half-round-trip,0,median,{at},ns,\n")
    };
    let text: String =
        std::iter::once(format!("{}\n", csv::LONG_HEADING)).chain((1..=SERIES).map(row)).collect();
    let mut result = read(&text, "series.csv").unwrap();
    assert_eq!(result.series.len(), SERIES);
    let more = result.clone();
    nm_report::import::join(&mut result, [more]);
    assert!(result.series.len() == SERIES && result.series[7].rounds.len() == 2);
}

#[test]
fn a_text_of_more_runs_than_the_limit_is_refused() {
    let head = "Throughput,Throughput Units\n";
    let beyond = format!("{head}{}", "9000.00,10^6bits/s\n".repeat(100_001));
    assert_eq!(read(&beyond, "x").unwrap_err().to_string(), "x: more than 100000 runs in one text");
}

#[test]
fn a_run_of_very_many_percentiles_is_refused() {
    let mut text = text("sockperf-ping-pong-tcp.txt");
    for at in 0..200 {
        text += &format!("sockperf: ---> percentile {}.{at:03} = 30.000\n", at % 100);
    }
    let error = read(&text, "x").unwrap_err().to_string();
    assert_eq!(error, "x: more than 100 percentiles in one run");
}

#[test]
fn a_command_line_belongs_to_the_run_below_it() {
    let run = text("sockperf-ping-pong-tcp.txt");
    let both = format!("$ sockperf ping-pong -m 64 --tcp\n{run}{run}");
    let found = read(&both, "x").unwrap();
    let cases: Vec<String> =
        found.series.iter().map(|series| series.key.case.to_string()).collect();
    assert_eq!(cases, ["64 B", "whole"]);
}

#[test]
fn refused_output_has_a_message_of_one_sentence() {
    let of = |name: &str| read(&text(name), name).unwrap_err().to_string();
    assert_eq!(
        of("iperf3-refused.json"),
        "iperf3-refused.json: iperf3 says: unable to connect to server: Connection refused"
    );
    assert_eq!(
        of("sockperf-refused.txt"),
        "sockperf-refused.txt:2: sockperf says: Can`t connect socket (errno=111 Connection refused)"
    );
    assert!(of("netperf-refused.txt").starts_with("netperf-refused.txt:1: netperf says: "));
    assert_eq!(
        of("iperf3.txt"),
        "iperf3.txt:1: iperf3's text is rounded; run it with -J and read the JSON"
    );
    assert!(of("sockperf-throughput.txt").contains("counts what was sent"));
    assert_eq!(
        of("netperf-noheader.txt"),
        "netperf-noheader.txt:1: numbers without a heading; run netperf without -P 0"
    );
    assert_eq!(
        error("hello").to_string(),
        "x.txt:1: not the output of a known tool; supported are sfnt-pingpong, \
         sockperf, netperf, nuttcp, iperf3 -J, and nearmetal's own pingpong --sfnt, sfnt/*.csv \
         and series.csv"
    );
    assert!(error("  \n").to_string().starts_with("x.txt: the text is empty"));
    assert!(error("{\"a\":").to_string().starts_with("x.txt:1: not the JSON of iperf3 -J: "));
}

#[test]
fn invalid_numbers_are_refused_with_their_line() {
    let header = "#\tsize\tmean\tmin\tmedian\tmax\t%ile\tstddev\titer\n";
    for bad in ["1e400", "-5", "nan", "inf", "1e16", "x"] {
        let error = error(&format!("{header}\t64\t{bad}\t1466\t1492\t17158\t1603\t41\t1000\n"));
        assert_eq!(error.fault.line(), Some(2), "{bad}");
        assert!(error.fault.to_string().contains(bad), "{error}");
    }
    let few = error(&format!("{header}\t64\t1\t1\n"));
    assert!(few.fault.to_string().starts_with("3 fields instead of 8"), "{few}");
    let upside_down = error(&format!("{header}\t64\t5\t9\t5\t3\t5\t1\t1000\n"));
    assert_eq!(upside_down.fault.to_string(), "min 9 is above max 3");
    let sockperf = text("sockperf-ping-pong-tcp.txt").replace("33.034", "-33.034");
    assert!(read(&sockperf, "x").unwrap_err().to_string().contains("-33.034"));
    let iperf3 = text("iperf3.json").replace("\"end\":\t1.000557", "\"end\":\t-1");
    assert!(read(&iperf3, "x").unwrap_err().to_string().contains("`end` is -1"));
    let nuttcp = text("nuttcp.txt").replace("20953.7740", "1e400");
    assert!(read(&nuttcp, "x").unwrap_err().to_string().contains("1e400"));
    let netperf = text("netperf-tcp-rr.txt").replace("17721.71", "-17721.71");
    assert!(read(&netperf, "x").unwrap_err().to_string().contains("-17721.71"));
}

#[test]
fn the_environment_is_the_last_part_of_a_path() {
    let result = read(&text("nuttcp.txt"), "some/where/nuttcp.txt").unwrap();
    assert_eq!(result.series[0].key.path(), "nuttcp.txt/nuttcp-tcp");
}

/// Finite and not negative, wherever a number stands.
fn sane(result: &RunResult) -> bool {
    result
        .series
        .iter()
        .flat_map(|series| &series.estimates)
        .all(|e| e.value.is_finite() && e.value >= 0.0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_text_is_read_or_refused_without_a_panic(text in "\\PC{0,200}") {
        let _ = read(&text, "x");
    }

    #[test]
    fn text_of_a_tools_words_is_read_or_refused_without_a_panic(
        words in prop::collection::vec(prop::sample::select(vec![
            "sockperf: ", "====> avg-latency=", "---> percentile ", "= ", "Total ", "observations",
            "TCP STREAM TEST from ", "THROUGHPUT=", "megabytes=", " MB / ", "sec", "Mbps", "%TX",
            "first burst ", "REQUEST/RESPONSE", "10^6bits/s", "#", "\t", "\n", " ", "1", "1e999",
            "-1", ",", "Throughput Units", "tx_cpu=", "sfnt-pingpong", "percentile=", "é", "{", "}",
        ]), 0..60),
    ) {
        let _ = read(&words.concat(), "x");
    }

    #[test]
    fn a_damaged_sample_is_read_sanely_or_refused_without_a_panic(
        which in 0..FIXTURES.len(), at in 0.0..1.0f64, cut in 0usize..30,
        insert in "[-0-9.e:={}\"a-z \t\n]{0,6}",
    ) {
        let output = text(FIXTURES[which]);
        let characters: Vec<char> = output.chars().collect();
        let start = (characters.len() as f64 * at) as usize;
        let end = (start + cut).min(characters.len());
        let damaged: String = characters[..start]
            .iter()
            .copied()
            .chain(insert.chars())
            .chain(characters[end..].iter().copied())
            .collect();
        match read(&damaged, "x") {
            Ok(result) => prop_assert!(sane(&result)),
            Err(error) => {
                let message = error.fault.to_string();
                prop_assert!(!message.is_empty() && !message.contains('\n'));
            }
        }
    }
}
