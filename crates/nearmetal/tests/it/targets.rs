//! Stand-alone runs that are judged: `--target` gives verdict, exit code and report.

use serde_json::Value;

use crate::support::{Run, free_port, json, run, server};

const SHORT: &[&str] = &[
    "--sizes",
    "1,64",
    "--maxms",
    "10",
    "--miniter",
    "40",
    "--warmupms",
    "1",
    // On a busy machine the other end may stand still for seconds.
    "--timeout",
    "10000",
];

fn client(words: &[&str], port: u16, more: &[&str]) -> Run {
    let port = port.to_string();
    run(&[words, &["--port", &port], more].concat())
}

#[test]
fn pingpong_is_judged_by_its_targets() {
    let port = free_port();
    let _server = server("pingpong", port);
    let folder = tempfile::tempdir().unwrap();
    let pingpong = [&["pingpong", "tcp", "127.0.0.1"], SHORT].concat();
    let out = folder.path().join("out");
    let both = ["--target", "median < 1s", "--target", "p40 < 1s at size=64"];
    let met = client(&pingpong, port, &[&both[..], &["--out", out.to_str().unwrap()]].concat());
    assert_eq!(met.code, 0, "{}{}", met.stdout, met.stderr);
    assert!(met.stdout.contains("\nPASS: All 2 targets are met; nearest "), "{}", met.stdout);
    let result = json(&out.join("result.json"));
    assert_eq!(result["verdicts"].as_array().unwrap().len(), 2);
    assert_eq!(result["series"][0]["rounds"].as_array().unwrap().len(), 5, "enough for a verdict");
    let report = std::fs::read_to_string(out.join("report.html")).unwrap();
    assert!(report.contains("median &lt; 1s"), "the targets are in the report");

    let missed = client(&pingpong, port, &["--target", "median < 1ns", "--quiet"]);
    assert_eq!(missed.code, 1, "{}{}", missed.stdout, missed.stderr);
    assert!(missed.stdout.starts_with("FAIL: "), "{}", missed.stdout);
    let once = client(&pingpong, port, &["--target", "median < 1s", "--rounds", "1"]);
    assert_eq!(once.code, 3, "one round supports no verdict: {}{}", once.stdout, once.stderr);
    let sfnt = client(&pingpong, port, &["--target", "median < 1ns", "--sfnt"]);
    assert_eq!(sfnt.code, 1, "{}{}", sfnt.stdout, sfnt.stderr);
    assert!(!sfnt.stdout.contains("FAIL") && sfnt.stderr.contains("FAIL: "), "{}", sfnt.stderr);
    let without = client(&pingpong, port, &[]);
    assert_eq!(without.code, 0, "{}", without.stderr);
    assert!(without.stdout.contains("NOT JUDGED: "), "{}", without.stdout);
}

#[test]
fn stream_and_rr_are_judged_by_their_targets() {
    let port = free_port();
    let _server = server("rr", port);
    let stream = ["stream", "127.0.0.1", "--seconds", "0.1", "--omit", "10", "--format", "json"];
    for (target, code) in [("throughput > 1 kb/s", 0), ("throughput > 100000 Gb/s", 1)] {
        // On a busy machine a round may have no byte, which decides nothing.
        let measure = || client(&stream, port, &["--target", target]);
        let mut run = measure();
        for _ in 0..5 {
            if run.code == 3 {
                run = measure();
            }
        }
        assert_eq!(run.code, code, "{target}: {}{}", run.stdout, run.stderr);
        let result: Value = serde_json::from_str(&run.stdout).unwrap();
        assert_eq!(result["verdicts"][0]["require"], target);
    }
    let rr = ["rr", "127.0.0.1", "--rate", "200", "--seconds", "0.2", "--summary"];
    for (target, code) in [("median < 1s", 0), ("median < 1ns", 1)] {
        let run = client(&rr, port, &["--target", target]);
        assert_eq!(run.code, code, "{target}: {}{}", run.stdout, run.stderr);
    }
}

#[test]
fn targets_that_cannot_apply_are_refused_before_anything_is_measured() {
    let port = free_port();
    // No server listens there: a client that measured would end with another code.
    for (words, target, why) in [
        (&["pingpong", "tcp", "127.0.0.1"][..], "throughput > 1", "gives no throughput"),
        (&["stream", "127.0.0.1"], "p99 < 1ms", "gives no p99, but throughput"),
        (&["rr", "127.0.0.1"], "p98 < 1ms", "records the percentiles p50, p90, p99"),
        (&["rr", "127.0.0.1"], "p99 < 1ms at size=65", "none of the cases"),
        (&["pingpong", "udp", "127.0.0.1", "--sizes", "40000"], "max < 1s", "at most 32768"),
    ] {
        let refused = client(words, port, &["--target", target]);
        assert_eq!((refused.code, refused.errors().len()), (2, 1), "{}", refused.stderr);
        assert!(refused.stderr.contains(why), "{}", refused.stderr);
    }
    let unknown = client(&["rr", "127.0.0.1"], port, &["--target", "medain < 1ms"]);
    assert_eq!(unknown.code, 2);
    assert!(unknown.stderr.contains("did you mean `median`?"), "{}", unknown.stderr);
}
