//! Instruments that move to other cells while load is driven: figures, proof, and kills meanwhile.

use serde_json::Value;

use crate::exchange::{round, short};
use crate::support::{json, run};

#[test]
fn instruments_move_under_load_and_the_recording_proves_that_nothing_was_lost() {
    let folder = tempfile::tempdir().unwrap();
    for durability in ["none", "memory-quorum", "disk-quorum"] {
        let out = folder.path().join(durability);
        let more = ["--nodes", "1-2-3-1", "--durability", durability, "--seconds", "2"];
        let moving = ["--record", "--moves-per-minute", "900"];
        let recorded = run(&short(&out, &[&more[..], &moving[..]].concat()));
        assert_eq!(recorded.code, 3, "{}{}", recorded.stdout, recorded.stderr);
        assert!(recorded.stdout.contains("instruments that moved"), "{}", recorded.stdout);
        let moves = &round(&out)["exchange"]["moves"];
        let count = |name: &str| moves[name].as_u64().unwrap();
        assert_eq!(count("due"), 30, "{moves}");
        assert!(count("done") > 0 && count("asked") >= count("done"), "{moves}");
        assert_eq!(moves["took"]["count"], moves["done"], "{moves}");
        assert!(moves["pauses"]["p99_ns"].as_f64() > Some(0.0), "{moves}");
        let verify =
            run(&["exchange", "verify", out.to_str().unwrap(), "--cuts", "9", "--format", "json"]);
        assert_eq!(verify.code, 0, "{}{}", verify.stdout, verify.stderr);
        let found: Value = serde_json::from_str(&verify.stdout).unwrap();
        let found = &found["rounds"];
        assert!(found[0]["moves"].as_u64() >= Some(count("done")), "{found}");
        assert_eq!(found[0]["moves"], found[0]["moved_states"], "{found}");
        assert_eq!(found[0]["verdict"], "proven", "{found}");
    }
}

#[test]
fn rounds_with_and_without_moves_alternate_and_are_compared() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    // Ten samples beyond p99 are needed.
    let more = ["--nodes", "1-1-2-1", "--rounds", "2", "--seconds", "2.5"];
    let moving = ["--moves-per-minute", "600", "--moves-compare"];
    let compared = run(&short(&out, &[&more[..], &moving[..]].concat()));
    assert_eq!(compared.code, 3, "{}{}", compared.stdout, compared.stderr);
    let result = json(&out.join("result.json"));
    let series = result["series"].as_array().unwrap();
    let named: Vec<(&str, usize)> = series
        .iter()
        .map(|it| (it["key"]["stack"].as_str().unwrap(), it["rounds"].as_array().unwrap().len()))
        .collect();
    assert_eq!(named, [("1-1-2-1", 2), ("1-1-2-1 600 moves", 2)]);
    // The first round without moves first, the second one with them.
    let started = |series: usize, round: usize| {
        result["series"][series]["rounds"][round]["started_s"].as_f64().unwrap()
    };
    assert!(started(0, 0) < started(1, 0) && started(1, 1) < started(0, 1), "{result}");
    let comparison = &result["comparisons"][0];
    assert_eq!(comparison["a"], "loopback/1-1-2-1");
    let mut rows = comparison["overall"].as_array().unwrap().iter();
    let ratio_of_p99 = rows.find(|row| row["metric"] == "p99").map(|row| &row["ratio"]);
    assert!(ratio_of_p99.is_some_and(Value::is_f64), "{comparison}");
}

#[test]
fn moves_that_are_not_possible_are_refused_in_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    for (more, sentence) in [
        (
            &["--nodes", "1-1-1-1", "--moves-per-minute", "60"][..],
            "moves_per_minute is 60, must be 0 with one mediator: a move needs another cell",
        ),
        (&["--nodes", "1-1-2-1", "--moves-per-minute", "60001"], "must be 0 to 60000"),
        (
            &["--nodes", "1-1-2-1", "--moves-per-minute", "0", "--moves-compare"],
            "--moves-compare without moves",
        ),
    ] {
        let refused = run(&short(&out, more));
        assert_eq!(refused.code, 2, "{}{}", refused.stdout, refused.stderr);
        assert!(refused.stderr.contains(sentence), "{}", refused.stderr);
        assert!(!out.exists());
    }
}

#[test]
fn nodes_that_carry_out_moves_are_killed_and_nothing_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("torture");
    let args = ["exchange", "torture", "--moves", "--trials", "4", "--seed", "1", "--rate", "300"];
    let more = ["--seconds", "2", "--out", out.to_str().unwrap(), "--format", "json"];
    let run = run(&[&args[..], &more[..]].concat());
    assert_eq!(run.code, 0, "{}{}", run.stdout, run.stderr);
    let all: Value = serde_json::from_str(&run.stdout).unwrap();
    let all = all["trials"].as_array().unwrap();
    assert_eq!(all.len(), 4);
    for trial in all {
        assert!(trial["moves"].as_u64().unwrap() > 0, "{trial}");
        assert!(trial["answered"].as_u64().unwrap() > 100, "{trial}");
    }
    let killed = |text: &str| all.iter().any(|trial| trial["killed"][0] == text);
    assert!(killed("leader of the source") && killed("leader of the destination"), "{all:?}");
    assert!(!out.exists(), "trials that found nothing leave nothing");
}
