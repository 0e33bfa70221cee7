//! The exchange over each transport of one host: networks, killed nodes, the proof after them,
//! and what says which transport wins.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::exchange::{round, short};
use crate::support::{BINARY, accelerator, command, copy_program, finish, json, run, setting};

/// Entries of a folder that this program may have made.
fn left_in(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.contains("nearmetal")).collect()
}

#[test]
fn killed_nodes_over_shared_memory_recover_and_are_cleaned_up() {
    let folder = tempfile::tempdir().unwrap();
    let (out, temporary) = (folder.path().join("out"), folder.path().join("tmp"));
    fs::create_dir(&temporary).unwrap();
    let kills = ["--kill", "gateway:0@0.3", "--kill", "mediator:0@0.6", "--kill", "router:0@0.9"];
    let more = ["--transport", "shm", "--record", "--durability", "memory-quorum"];
    let sizes = ["--nodes", "1-1-2-1", "--seconds", "1.5", "--rate", "300"];
    let args = short(&out, &[&kills[..], &more, &sizes].concat());
    let run_once = finish(command(&args).env("TMPDIR", &temporary));
    assert_eq!(run_once.code, 3, "{}{}", run_once.stdout, run_once.stderr);
    assert_eq!(
        json(&out.join("result.json"))["series"][0]["key"]["stack"],
        "1-1-2-1 shm memory-quorum"
    );
    assert_eq!(round(&out)["exchange"]["faults"].as_array().unwrap().len(), 3);
    let verified = run(&["exchange", "verify", out.join("round-1").to_str().unwrap()]);
    assert_eq!(verified.code, 0, "{}{}", verified.stdout, verified.stderr);
    assert_eq!(left_in(&temporary), Vec::<String>::new());
    assert_eq!(left_in("/dev/shm".as_ref()), Vec::<String>::new());
}

#[test]
fn accelerated_nodes_use_shared_memory_and_recover() {
    accelerator();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let kill = ["--nodes", "1-1-2-1", "--kill", "mediator:0@0.5", "--seconds", "1.5"];
    let more = ["--transport", "accel", "--record", "--durability", "memory-quorum"];
    let args = short(&out, &[&kill[..], &more].concat());
    let run_once = run(&args);
    assert_eq!(run_once.code, 3, "{}{}", run_once.stdout, run_once.stderr);
    let series = &json(&out.join("result.json"))["series"][0];
    assert_eq!(series["key"]["stack"], "1-1-2-1 accel memory-quorum");
    assert_eq!(series["comparability"]["bypass"], "accel");
    let accelerator = setting(series, "accelerator").unwrap()["value"].as_str().unwrap();
    assert!(accelerator.contains("load is on the kernel"));
    let verified = run(&["exchange", "verify", out.join("round-1").to_str().unwrap()]);
    assert_eq!(verified.code, 0, "{}{}", verified.stdout, verified.stderr);
}

#[test]
fn without_its_library_the_accelerator_is_not_available() {
    let folder = tempfile::tempdir().unwrap();
    let alone = folder.path().join("nearmetal");
    copy_program(BINARY, &alone);
    let out = folder.path().join("out");
    let refused = finish(Command::new(&alone).args(short(&out, &["--transport", "accel"])));
    assert_eq!(refused.code, 4, "{}", refused.stderr);
    assert!(
        refused.stderr.contains("libnm_accel.so is in none of the folders"),
        "{}",
        refused.stderr
    );
    assert!(!out.exists());
}

#[test]
fn plan_compares_transports_and_explains_missing_ones() {
    let folder = tempfile::tempdir().unwrap();
    let (alone, plan) = (folder.path().join("nearmetal"), folder.path().join("small.toml"));
    // Alone, it has no accelerator.
    copy_program(BINARY, &alone);
    let text = "name = \"small\"\nrounds = 1\n[[trials]]\nenvironments = [\"loopback\"]\n\
                stacks = [\"tcp-epoll\", \"shm-epoll\", \"accel+tcp-epoll\", \"shm-spin\"]\n\
                probe = \"exchange\"\nnodes = \"1-1-1-1\"\nrate_per_s = 300\nseconds = 0.3\n\
                warmup_ms = 50\n";
    fs::write(&plan, text).unwrap();
    let out = folder.path().join("out");
    let (plan, out_text) = (plan.to_str().unwrap(), out.to_str().unwrap());
    let args = ["qualify", "--plan", plan, "--out", out_text];
    let run = finish(Command::new(&alone).args(args));
    assert!(run.stdout.contains("which transport wins"), "{}{}", run.stdout, run.stderr);
    // There nothing is wrapped.
    let report = fs::read_to_string(out.join("report.md")).unwrap();
    for words in [
        "which transport wins on this host",
        "no claim below 5 rounds",
        "accel+tcp-epoll | n/a |  | n/a |  | n/a | not available: the accelerator",
        "libnm\\_accel.so is in none of the folders",
        "use tcp-epoll, unix-epoll, shm-epoll or accel+tcp-epoll",
    ] {
        assert!(report.contains(words), "{words}: {report}");
    }
    let report = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(report.contains("which transport wins"), "in the report");
}
