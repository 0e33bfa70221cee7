//! `compare`, `trend` and the import of our own output, as a user runs them.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::support::{free_port, json, run, run_in, server};

const BARE: &str = "reference:deftech-e5-bm-ull";
const GUEST: &str = "reference:deftech-e5-vm-pf";

/// A result of one single run, made by an import into `folder`/`name`; values in ns.
fn single_run(folder: &Path, name: &str, median: u32) {
    let text = format!(
        "# size mean min median max %ile stddev iter\n 64 {median} {} {median} {} {} 41 996000\n",
        median - 10,
        median * 9,
        median + 100
    );
    let path = folder.join(format!("{name}.txt"));
    fs::write(&path, text).unwrap();
    let made = run_in(folder, &["import", path.to_str().unwrap(), "--out", name]);
    assert_eq!(made.code, 0, "{}", made.stderr);
}

#[test]
fn sides_have_the_names_of_their_folders_and_a_huge_difference_is_called_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    single_run(folder.path(), "before", 1200);
    single_run(folder.path(), "after", 360_000);
    let run = run_in(folder.path(), &["compare", "before/", "after/result.json"]);
    assert_eq!(run.code, 1, "far beyond what single runs differ by: {}", run.stdout);
    assert!(run.stdout.lines().count() <= 30, "{}", run.stdout);
    let text = run.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.starts_with("FAIL: after against before"), "{text}");
    assert!(text.contains("before (A)") && text.contains("after (B)"), "{text}");
    assert!(text.contains("median for 64 B is 300 times slower: 360.0 µs against 1.200 µs"));
    assert!(text.contains("this pair finds") && text.contains("fewer than five rounds"), "{text}");
    assert_eq!(run.stdout.matches("64 B               median ").count(), 1, "{}", run.stdout);
    let all = run_in(folder.path(), &["compare", "before/", "after/result.json", "--all"]);
    assert_eq!(all.code, 1, "{}", all.stdout);
    let text = all.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("300 times slower (x300) for 64 B"), "{text}");
    assert_eq!(all.stdout.matches("64 B  median ").count(), 1, "each row once: {}", all.stdout);
}

#[test]
fn equal_runs_say_so() {
    let run = run(&["compare", GUEST, GUEST]);
    assert!(run.stdout.contains("the two sides are equal"), "{}", run.stdout);
    assert_eq!(run.code, 0, "{}", run.stdout);
}

#[test]
fn rows_over_sizes_say_so_and_have_one_probability_with_its_test() {
    let text = run(&["compare", BARE, GUEST, "--format", "markdown"]).stdout;
    assert!(text.starts_with("# INCONCLUSIVE: deftech-e5-vm-pf against deftech-e5-bm-ull"));
    let row = text.lines().find(|line| line.starts_with("| over 1..1024 B | p99 |")).unwrap();
    assert!(row.contains("2.5 times slower") && row.contains("sign test"), "{row}");
    assert!(!text.contains("p ="), "{text}");
}

#[test]
fn a_comparison_is_written_once_and_never_over_another_result() {
    let folder = tempfile::tempdir().unwrap();
    let compare = |out: &str| run_in(folder.path(), &["compare", BARE, GUEST, "--out", out]);
    let first = compare("out");
    assert_eq!(first.code, 3, "{}", first.stderr);
    for name in ["comparison.html", "comparison.md", "comparison.json"] {
        assert!(folder.path().join("out").join(name).exists(), "{name}");
    }
    let written = json(&folder.path().join("out/comparison.json"));
    let printed = run(&["compare", BARE, GUEST, "--format", "json"]).stdout;
    assert_eq!(written, serde_json::from_str::<Value>(&printed).unwrap());
    let again = compare("out");
    assert_eq!((again.code, again.stderr.lines().count()), (5, 1), "{}", again.stderr);
    assert!(again.stderr.contains("already holds comparison.json"), "{}", again.stderr);
    single_run(folder.path(), "run", 1200);
    let over_run = compare("run");
    assert_eq!(over_run.code, 5, "{}", over_run.stderr);
    assert!(!folder.path().join("run/comparison.json").exists());
}

#[test]
fn a_trend_has_a_line_for_each_figure_and_its_exit_code_on_request() {
    let full = "reference:deftech-e5-bm-full";
    let trend = run(&["trend", BARE, full, GUEST, "--metric", "p99"]);
    assert_eq!(trend.code, 0, "{}", trend.stderr);
    assert!(trend.stdout.contains("deftech-e5-bm-full"), "{}", trend.stdout);
    assert!(trend.stdout.contains("slower"), "{}", trend.stdout);
    let judged = run(&["trend", BARE, GUEST, "--fail-on", "p99", "--margin", "10%"]);
    assert_eq!(judged.code, 3, "{}", judged.stdout);
    assert!(judged.stdout.contains("gate of deftech-e5-vm-pf against 1 accepted run of"));
    let json = run(&["trend", BARE, GUEST, "--format", "json"]).stdout;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["results"].as_array().unwrap().len(), 2);
    assert!(json["lines"][0]["points"][1]["ratio_to_first"].is_number(), "{}", json["lines"][0]);
}

#[test]
fn a_trend_refuses_what_it_cannot_show() {
    let one = run(&["trend", BARE]);
    assert_eq!((one.code, one.stderr.lines().count()), (2, 1), "{}", one.stderr);
    assert!(one.stderr.contains("a trend has 2 to 100 results, 1 were given"), "{}", one.stderr);
    let many = vec![BARE; 101];
    assert_eq!(run(&[&["trend"], &many[..]].concat()).code, 2);
    let nothing = run(&["trend", BARE, GUEST, "--on", "moon/*"]);
    assert_eq!(nothing.code, 2);
    assert!(nothing.stderr.contains("nothing in the results matches `moon/*`"));
    let margin = run(&["trend", BARE, GUEST, "--margin", "10%"]);
    assert_eq!(margin.code, 2, "a margin without figures that decide has no meaning");
}

#[test]
fn a_trend_is_written_once() {
    let folder = tempfile::tempdir().unwrap();
    let trend = || run_in(folder.path(), &["trend", BARE, GUEST, "--out", "out"]);
    assert_eq!(trend().code, 0);
    for name in ["trend.html", "trend.md", "trend.json"] {
        assert!(folder.path().join("out").join(name).exists(), "{name}");
    }
    assert_eq!(trend().code, 5);
}

/// Figures of a sweep: size, then mean, min, median, max, p99 of the first round, rounded to ns.
fn figures(result: &Value) -> Vec<(u64, Vec<Option<i64>>)> {
    let rounded = |value: &Value| value.as_f64().map(|ns| format!("{ns:.0}").parse().unwrap());
    let series = result["series"].as_array().unwrap();
    series
        .iter()
        .map(|series| {
            let data = &series["rounds"][0]["data"];
            let percentile = |wanted: f64| {
                let all = data["percentiles"].as_array().unwrap();
                let found = all.iter().find(|p| p["percentile"] == wanted);
                found.and_then(|p| rounded(&p["value_ns"]))
            };
            let of = |field: &str| rounded(&data[field]);
            let values =
                vec![of("mean_ns"), of("min_ns"), percentile(50.0), of("max_ns"), percentile(99.0)];
            (series["key"]["case"]["size_bytes"].as_u64().unwrap(), values)
        })
        .collect()
}

#[test]
fn what_pingpong_prints_and_keeps_is_read_back_with_the_same_figures() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let _server = server("pingpong", port);
    let port = port.to_string();
    let measured = run_in(
        folder.path(),
        &[
            "pingpong",
            "tcp",
            "127.0.0.1",
            "--port",
            &port,
            "--sizes",
            "1,64",
            "--maxms",
            "50",
            "--timeout",
            "10000",
            "--sfnt",
            "--out",
            "run",
        ],
    );
    assert!([0, 3].contains(&measured.code), "{}", measured.stderr);
    fs::write(folder.path().join("run.txt"), &measured.stdout).unwrap();
    let kept = json(&folder.path().join("run/result.json"));
    let sweep = fs::read_dir(folder.path().join("run/sfnt")).unwrap().next().unwrap().unwrap();
    let sweep = sweep.path().display().to_string();
    for file in ["run.txt", sweep.as_str(), "run/series.csv"] {
        let read = run_in(folder.path(), &["import", file, "--format", "json"]);
        assert_eq!(read.code, 0, "{file}: {}", read.stderr);
        let read: Value = serde_json::from_str(&read.stdout).unwrap();
        assert_eq!(figures(&read), figures(&kept), "{file}");
        for field in ["environment", "stack"] {
            assert_eq!(read["series"][0]["key"][field], kept["series"][0]["key"][field], "{file}");
        }
    }
    let both = run_in(folder.path(), &["import", "run.txt", &sweep, "--format", "json"]);
    let both: Value = serde_json::from_str(&both.stdout).unwrap();
    assert_eq!(both["series"][0]["rounds"].as_array().unwrap().len(), 2);
    fs::copy(folder.path().join("run.txt"), folder.path().join("copy.txt")).unwrap();
    for (second, found) in [("run.txt", "is named twice"), ("copy.txt", "the same text as run.txt")]
    {
        let twice = run_in(folder.path(), &["import", "run.txt", second]);
        assert_eq!(twice.code, 2, "{}", twice.stdout);
        assert!(twice.stderr.contains(found), "{}", twice.stderr);
    }
    let result = run_in(folder.path(), &["import", "run/result.json"]);
    assert_eq!(result.code, 2);
    assert!(result.stderr.contains("name it to `compare`"), "{}", result.stderr);
}

/// One row of each probe. Their tables have figures that only these probes have.
const EVERY_PROBE: &str = "name = 'probes'\nrounds = 1\n\
    [[trials]]\nenvironments = ['loopback']\nstacks = ['udp-blocking']\nprobe = 'pingpong'\n\
    sizes = [64]\nmax_ms = 20\nmax_iterations = 500\n\
    [[trials]]\nenvironments = ['loopback']\nstacks = ['tcp-blocking']\nprobe = 'stream'\n\
    patterns = ['2-bi-2']\nseconds = 0.1\nomit_ms = 20\n\
    [[trials]]\nenvironments = ['loopback']\nstacks = ['tcp-blocking']\nprobe = 'rr'\n\
    sizes = ['64']\nrate_per_s = 500\nseconds = 0.2\nwarmup_ms = 20\n\
    [[trials]]\nenvironments = ['loopback']\nprobe = 'jitter'\nseconds = 0.1\n\
    [[trials]]\nenvironments = ['loopback']\nprobe = 'compute'\nworkloads = ['alu']\n\
    layouts = ['1x1']\nrepeats = 1\n\
    [[trials]]\nenvironments = ['loopback']\nstacks = ['unix-epoll']\nprobe = 'exchange'\n\
    nodes = '1-1-1-1'\nrate_per_s = 500\nseconds = 0.5\nwarmup_ms = 50\n";

/// Before, a table with figures of lost time or of threads was refused.
#[test]
fn the_table_of_a_run_with_every_probe_is_imported() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("plan.toml"), EVERY_PROBE).unwrap();
    let measured = run_in(folder.path(), &["qualify", "--plan", "plan.toml", "--out", "run"]);
    assert!([0, 3].contains(&measured.code), "{}{}", measured.stdout, measured.stderr);
    let kept = json(&folder.path().join("run/result.json"));
    let names = |result: &Value| -> Vec<String> {
        let series = result["series"].as_array().unwrap().iter();
        series.map(|one| one["key"].to_string()).collect()
    };
    for probe in ["pingpong", "stream", "rr", "jitter", "compute", "exchange"] {
        let is_there = |one: &Value| one["key"]["probe"] == probe;
        assert!(kept["series"].as_array().unwrap().iter().any(is_there), "{probe}: {measured:?}");
    }
    let read = run_in(folder.path(), &["import", "run/series.csv", "--format", "json"]);
    assert_eq!(read.code, 0, "{}", read.stderr);
    assert_eq!(names(&serde_json::from_str(&read.stdout).unwrap()), names(&kept));
}
