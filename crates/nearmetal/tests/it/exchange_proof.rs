//! What is proved of real runs. Journals are replayed from the middle, a stall shows in full, and a
//! flow that was recorded is asked again.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::exchange::{round, short};
use crate::support::run;

/// What `exchange verify` finds in the only round of a recorded run.
fn verified(out: &Path, more: &[&str]) -> Value {
    let folder = out.join("round-1");
    let args = [&["exchange", "verify", folder.to_str().unwrap(), "--format", "json"], more];
    let run = run(&args.concat());
    assert_eq!(run.code, 0, "{}{}", run.stdout, run.stderr);
    let all: Value = serde_json::from_str(&run.stdout).unwrap();
    all["rounds"][0].clone()
}

#[test]
fn replay_from_a_thousand_snapshots_gives_the_same_state() {
    let folder = tempfile::tempdir().unwrap();
    for (durability, replicas) in [("none", 1), ("memory-quorum", 3), ("disk-quorum", 3)] {
        let out = folder.path().join(durability);
        let args = ["--record", "--durability", durability, "--nodes", "1-1-2-1"];
        let recorded = run(&short(&out, &args));
        assert_eq!(recorded.code, 3, "{}{}", recorded.stdout, recorded.stderr);
        let found = verified(&out, &["--cuts", "1000", "--seed", "5"]);
        assert_eq!(found["cuts"], 2 * 1000, "{found}");
        assert!(found["executed"].as_u64().unwrap() > 100, "{found}");
        // Of two cells at least the state at the end, and the one that each replica had at its end.
        assert!(found["hashes"].as_u64() >= Some(2 * (1 + replicas)), "{found}");
    }
}

#[test]
fn replica_with_a_different_state_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    run(&short(&out, &["--record", "--durability", "memory-quorum", "--nodes", "1-1-2-1"]));
    let hashes = out.join("round-1/data/processor-0/cell-1/hashes.jsonl");
    let text = fs::read_to_string(&hashes).unwrap();
    let at = text.rfind("\"hash\":\"").unwrap() + 8;
    let other = if &text[at..=at] == "0" { "1" } else { "0" };
    fs::write(&hashes, format!("{}{other}{}", &text[..at], &text[at + 1..])).unwrap();
    let verify = || run(&["exchange", "verify", out.to_str().unwrap()]);
    // The manifest has another digest of the file; without it, the replay has another state.
    let changed = verify();
    assert_eq!(changed.code, 2, "{}{}", changed.stdout, changed.stderr);
    let sentence = "data/processor-0/cell-1/hashes.jsonl was changed after the run had ended";
    assert!(changed.stdout.contains(sentence), "{}", changed.stdout);
    fs::remove_file(out.join("round-1/manifest.json")).unwrap();
    let differs = verify();
    assert_eq!(differs.code, 1, "{}{}", differs.stdout, differs.stderr);
    assert!(differs.stdout.contains("and processor 0 had"), "{}", differs.stdout);
}

/// A recording is verified wherever it is, and by its own files.
#[test]
fn a_moved_recording_is_verified_by_its_own_files() {
    let folder = tempfile::tempdir().unwrap();
    let (out, moved) = (folder.path().join("out"), folder.path().join("moved"));
    run(&short(&out, &["--record", "--durability", "disk-quorum"]));
    fs::rename(out.join("round-1"), &moved).unwrap();
    let verify = || run(&["exchange", "verify", moved.to_str().unwrap()]);
    let intact = verify();
    assert_eq!(intact.code, 0, "{}{}", intact.stdout, intact.stderr);
    assert!(intact.stdout.contains("nothing lost, doubled or reordered"), "{}", intact.stdout);
    for path in [
        "network.toml",
        "client-0.log",
        "data/mediator-0/cell-0/00000000000000000001.journal",
        "data/mediator-0/cell-0/hashes.jsonl",
        "data/mediator-0/cell-0/hard-state-1",
        "data/mediator-0/control/00000000000000000001.journal",
    ] {
        fs::rename(moved.join(path), folder.path().join("aside")).unwrap();
        let missing = verify();
        assert_eq!(missing.code, 2, "{path}: {}{}", missing.stdout, missing.stderr);
        fs::rename(folder.path().join("aside"), moved.join(path)).unwrap();
    }
    fs::remove_dir_all(moved.join("data")).unwrap();
    let removed = verify();
    assert_eq!(removed.code, 2, "{}{}", removed.stdout, removed.stderr);
    assert!(removed.stdout.contains("1.journal is missing"), "{}", removed.stdout);
}

/// Even arrivals at R a second for S seconds, of which the load stands still for T from the middle
/// on. The n = R * T requests that were meant to be sent meanwhile wait T, T - 1/R, … 1/R: evenly
/// spread between nothing and T. With S = 2 s and T = 100 ms they are 5 % of all, so
///
/// - ES10, the mean of the slowest 10 %, is half of their mean: T / 4, and half of the round trip
///   without a stall;
/// - p99 lies where a fifth of them waits longer: 0.8 T.
///
/// This machine adds to that: it wakes the load late, which makes T longer, and needs time D for
/// the n requests that are then due at once, so that they wait from T down to D instead of nothing.
/// Both are read from the samples of the run, as are the round trips of all others.
#[test]
fn stall_raises_es10_and_p99_to_computed_values() {
    let (rate, seconds, stall_ms) = (if cfg!(debug_assertions) { 1_000 } else { 10_000 }, 2, 100);
    let folder = tempfile::tempdir().unwrap();
    // A stop of the whole machine in these seconds makes another line of the waits than a straight
    // one: that is no fault of the figures, so there are ten attempts.
    let mut attempts = vec![];
    for attempt in 0..10 {
        let out = folder.path().join(attempt.to_string());
        let (rate, stall) = (rate.to_string(), stall_ms.to_string());
        let pace = ["--rate", &rate, "--seconds", "2", "--stall", &stall, "--arrivals", "even"];
        run(&short(&out, &[&pace[..], &["--raw"]].concat()));
        let figures = round(&out);
        let figure = |name: &str| figures[name].as_f64().unwrap();
        let p99 = figures["percentiles"]
            .as_array()
            .unwrap()
            .iter()
            .find(|one| one["percentile"] == 99.0)
            .unwrap_or_else(|| panic!("{figures}"))["value_ns"]
            .as_f64()
            .unwrap();
        let samples = samples(&out.join("samples"));
        assert_eq!(samples.len() as f64, f64::from(seconds) * rate.parse::<f64>().unwrap());
        // Never less than what nothing but the stall makes, whatever the machine does.
        let stall_ns = f64::from(stall_ms) * 1e6;
        let es10 = figure("es10_ns");
        assert!(es10 > 0.95 * stall_ns / 4.0 && p99 > 0.95 * 0.8 * stall_ns, "{es10} {p99}");
        let (es10_must, p99_must) = expected(&samples, stall_ms as usize);
        let is_near = |found: f64, must: f64| (found / must - 1.0).abs() < 0.05;
        attempts.push(format!("ES10 {es10} must be {es10_must}, p99 {p99} must be {p99_must}"));
        if is_near(es10, es10_must) && is_near(p99, p99_must) {
            return;
        }
    }
    panic!("{attempts:#?}");
}

/// ES10 and p99 of the samples, ns, with those that the stall caught on a straight line from the
/// longest wait to that of the last.
fn expected(samples: &[f64], stall_ms: usize) -> (f64, f64) {
    // Samples are of 2 s, in the order in which they were meant to be sent.
    let (first, caught) = (samples.len() / 2, samples.len() * stall_ms / 2_000);
    let (longest, last) = (samples[first], samples[first + caught - 1]);
    let line = (0..caught).map(|at| longest + (last - longest) * at as f64 / (caught - 1) as f64);
    let others = samples[..first].iter().chain(&samples[first + caught..]).copied();
    let mut all: Vec<f64> = others.chain(line).collect();
    all.sort_by(|a, b| b.total_cmp(a));
    let tenth = all.len() / 10;
    (all[..tenth].iter().sum::<f64>() / tenth as f64, all[all.len() / 100])
}

/// The raw samples of the only series, ns.
fn samples(folder: &Path) -> Vec<f64> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let path = paths.into_iter().find(|path| path.extension().is_some_and(|e| e == "dat")).unwrap();
    let text = fs::read_to_string(path).unwrap();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

#[test]
fn recorded_flow_is_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let flow = folder.path().join("day.flow");
    let hash = |name: &str, more: &[&str]| {
        let out = folder.path().join(name);
        let run = run(&short(&out, more));
        assert_eq!(run.code, 3, "{}{}", run.stdout, run.stderr);
        let round = round(&out);
        assert!(round["count"].as_u64().unwrap() > 100, "{round}");
        round["exchange"]["stream_hash"].as_str().unwrap().to_string()
    };
    let flow = flow.to_str().unwrap();
    let recorded = hash("a", &["--seed", "7", "--record-flow", flow]);
    // Other options and another network do not matter.
    let short = |name: &str| folder.path().join(name);
    let again = short("b");
    let args = ["exchange", "run", "--replay-flow", flow, "--seed", "9", "--nodes", "1-1-2-1"];
    let pace = ["--seconds", "0.5", "--warmup", "100", "--rounds", "1", "--out"];
    let replayed = run(&[&args[..], &pace[..], &[again.to_str().unwrap()]].concat());
    assert_eq!(replayed.code, 3, "{}{}", replayed.stdout, replayed.stderr);
    assert_eq!(round(&again)["exchange"]["stream_hash"], recorded.as_str());
    assert_ne!(hash("c", &["--seed", "8"]), recorded);
}

#[test]
fn unusable_flow_is_reported_in_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    fs::write(path("text"), "what is this").unwrap();
    fs::write(path("empty"), "nmflow01").unwrap();
    for (args, why) in [
        (["--replay-flow", &path("missing")], "cannot be read"),
        (["--replay-flow", &path("text")], "is no recorded flow"),
        (["--replay-flow", &path("empty")], "it has no request"),
        (["--record-flow", &path("no/such/folder")], "cannot be written"),
    ] {
        let out = path("out");
        let run = run(&[&["exchange", "run", "--out", &out][..], &args].concat());
        assert_eq!(run.code, 2, "{args:?}: {}{}", run.stdout, run.stderr);
        assert!(run.stderr.contains(why), "{args:?}: {}", run.stderr);
        assert!(!Path::new(&out).exists(), "{args:?}");
    }
}
