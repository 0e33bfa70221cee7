//! `compare --against`: two sides measured in turn.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::hosts::Hosts;
use crate::support::{BINARY, Running, finish, json, run, signal, wait_for};

/// A plan of one row, and the words that compare it for this many rounds.
fn plan(folder: &Path, ms: u32) -> PathBuf {
    let path = folder.join("short.toml");
    let text = format!(
        "name = \"short\"\n[[trials]]\nenvironments = [\"loopback\"]\n\
         stacks = [\"tcp-blocking\"]\nprobe = \"pingpong\"\nsizes = [64]\nmax_ms = {ms}\n\
         warmup_ms = 2\nmin_iterations = 20\n[[targets]]\nrequire = \"median < 10s\"\n"
    );
    fs::write(&path, text).unwrap();
    path
}

fn file(path: &Path, mode: u32, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_program_is_measured_in_turn_with_this_one_and_every_round_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan(folder.path(), 30);
    // The order of the runs is seen by a program that notes each of its starts.
    let other = folder.path().join("other");
    let starts = folder.path().join("starts");
    let script =
        format!("#!/bin/sh\necho \"$@\" >>'{}'\nexec '{BINARY}' \"$@\"\n", starts.display());
    file(&other, 0o755, &script);
    let out = folder.path().join("out");
    let words = ["compare", "--against", other.to_str().unwrap(), "--rounds", "3", "--plan"];
    let words = [&words[..], &[plan.to_str().unwrap(), "--out", out.to_str().unwrap()]].concat();
    let run = run(&words);
    assert!(matches!(run.code, 0 | 1 | 3), "{}{}", run.stdout, run.stderr);
    assert!(run.stdout.contains("interleaved"), "{}", run.stdout);
    let order: Vec<&str> = run.stderr.lines().filter(|line| line.starts_with("round ")).collect();
    let of_b = |line: &&str| line.ends_with(other.to_str().unwrap());
    assert_eq!(order.iter().map(of_b).collect::<Vec<_>>(), [false, true, true, false, false, true]);
    assert_eq!(fs::read_to_string(starts).unwrap().lines().count(), 3);
    for side in ["a", "b"] {
        let result = json(&out.join(side).join("result.json"));
        let rounds = result["series"][0]["rounds"].as_array().unwrap();
        let numbers: Vec<_> = rounds.iter().map(|round| round["round"].as_u64().unwrap()).collect();
        assert_eq!(numbers, [0, 1, 2], "{side}");
        assert_eq!(result["plan"]["rounds"], 3);
    }
    let compared = json(&out.join("comparison.json"));
    assert_eq!(compared["overall"][0]["is_primary"], true, "{compared}");
    assert!(!run.stdout.contains("not interleaved"), "{}", run.stdout);
}

#[test]
fn a_slower_program_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan(folder.path(), 30);
    // Its figures are those of this program, ten times as long.
    let other = folder.path().join("slow");
    let script = format!(
        "#!/bin/sh\nfor word; do last=$word; done\n'{BINARY}' \"$@\"; code=$?\n\
         python3 - \"$last/result.json\" <<'EOF'\nimport json, sys\n\
         result = json.load(open(sys.argv[1]))\nfor series in result['series']:\n\
         \x20   series['estimates'] = []\n    for one in series['rounds']:\n\
         \x20       data = one['data']\n        data['histogram'] = None\n\
         \x20       for key in ['mean_ns', 'min_ns', 'max_ns']: data[key] *= 1000\n\
         \x20       for p in data['percentiles']:\n\
         \x20           for key in ['value_ns', 'low_ns', 'high_ns']:\n\
         \x20               if p.get(key): p[key] *= 1000\njson.dump(result, \
         open(sys.argv[1], 'w'))\nEOF\n\
         exit $code\n"
    );
    file(&other, 0o755, &script);
    let words = ["compare", "--against", other.to_str().unwrap(), "--fail-on", "median", "--plan"];
    let run = run(&[&words[..], &[plan.to_str().unwrap()]].concat());
    assert_eq!(run.code, 1, "{}{}", run.stdout, run.stderr);
    assert!(run.stdout.starts_with("FAIL"), "{}", run.stdout);
}

#[test]
fn a_side_that_cannot_run_is_named_with_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan(folder.path(), 10);
    let plan = plan.to_str().unwrap();
    let other = folder.path().join("broken");
    file(&other, 0o755, "#!/bin/sh\necho the disk is on fire >&2\nexit 7\n");
    let other = other.to_str().unwrap();
    let broken = run(&["compare", "--against", other, "--rounds", "2", "--plan", plan]);
    assert_eq!(broken.code, 4, "{}", broken.stderr);
    let wanted = format!("{other} ended with exit status: 7: the disk is on fire");
    assert!(broken.stderr.contains(&wanted), "{}", broken.stderr);
    for (words, code, reason) in [
        (&["compare", "--against", "./none"][..], 2, "there is no such file"),
        (&["compare", "--against", "quick", "--plan", "qick"], 2, "did you mean `quick`"),
        (&["compare", "a", "b", "--rounds", "3"], 2, "cannot be used with"),
        (&["compare", "--against", "b", "--run-deviation", "3%"], 2, "cannot be used with"),
        (&["compare", "a", "--against", "quick"], 2, "cannot be used with"),
        (&["compare", "--against", "quick", "--rounds", "1"], 2, "2"),
        (&["compare", "only-one"], 2, "required"),
    ] {
        let refused = run(words);
        assert_eq!(refused.code, code, "{words:?}: {}", refused.stderr);
        assert!(refused.stderr.contains(reason), "{words:?}: {}", refused.stderr);
    }
}

#[test]
fn ctrl_c_ends_both_sides_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan(folder.path(), 60_000);
    let temporary = folder.path().join("tmp");
    fs::create_dir(&temporary).unwrap();
    let mut command = std::process::Command::new(BINARY);
    command.args(["compare", "--against", BINARY, "--plan"]).arg(&plan);
    command.env("TMPDIR", &temporary).stdout(Stdio::piped()).stderr(Stdio::piped());
    let running = Running(command.spawn().unwrap());
    let started = || {
        let rounds = fs::read_dir(&temporary).ok()?.next()?.ok()?.path().join("0-0/result");
        rounds.exists().then_some(())
    };
    wait_for("the first round", started);
    signal("INT", running.pid());
    let ended = running.finish();
    assert_eq!(ended.code, 130, "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stderr.contains("was interrupted; nothing is compared"), "{}", ended.stderr);
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0, "a folder was left");
}

/// Waits until nothing of a comparison is left on the host.
fn wait_until_clean(hosts: &Hosts) {
    wait_for("an empty folder", || {
        (fs::read_dir(hosts.path("tmp1")).unwrap().count() == 0).then_some(())
    });
    wait_for("the end of what ran there", || {
        let left = hosts.host(1).processes();
        left.iter().all(|it| !it.words.iter().any(|word| word == "qualify")).then_some(())
    });
}

#[test]
fn a_host_is_measured_over_ssh_and_keeps_nothing() {
    let hosts = Hosts::new(1);
    hosts.install();
    let plan = plan(&hosts.path(""), 30);
    let words = ["compare", "--against", "h1", "--rounds", "2", "--plan", plan.to_str().unwrap()];
    let run = finish(&mut hosts.nearmetal(&words));
    assert!(matches!(run.code, 0 | 1 | 3), "{}{}", run.stdout, run.stderr);
    assert!(run.stdout.contains("h1 against this host"), "{}{}", run.stdout, run.stderr);
    wait_until_clean(&hosts);
}

#[test]
fn a_comparison_that_is_interrupted_or_killed_leaves_nothing_on_its_host() {
    let hosts = Hosts::new(1);
    hosts.install();
    let plan = plan(&hosts.path(""), 8_000);
    let words = ["compare", "--against", "h1", "--rounds", "2", "--plan", plan.to_str().unwrap()];
    let temporary = hosts.path("tmp-here");
    fs::create_dir(&temporary).unwrap();
    for name in ["INT", "KILL"] {
        let mut command = hosts.nearmetal(&words);
        command.env("TMPDIR", &temporary).stdout(Stdio::piped()).stderr(Stdio::piped());
        let running = Running(command.spawn().unwrap());
        wait_for("the host's round", || {
            let there = hosts.host(1).processes();
            there
                .iter()
                .any(|it| it.words.get(1).is_some_and(|word| word == "qualify"))
                .then_some(())
        });
        signal(name, running.pid());
        let ended = running.finish();
        assert_eq!(ended.code, if name == "INT" { 130 } else { -1 }, "{name}: {}", ended.stderr);
        wait_until_clean(&hosts);
        let left = fs::read_dir(&temporary).unwrap().count();
        assert_eq!(left, usize::from(name == "KILL"), "{name}");
    }
    // The next comparison removes what a killed one could not.
    let folders = || -> Vec<_> {
        fs::read_dir(&temporary).unwrap().flatten().map(|it| it.file_name()).collect()
    };
    let killed = folders();
    let broken = ["compare", "--against", "none.invalid", "--plan", plan.to_str().unwrap()];
    let mut command = hosts.nearmetal(&broken);
    command.env("TMPDIR", &temporary).stdout(Stdio::piped()).stderr(Stdio::piped());
    let running = Running(command.spawn().unwrap());
    wait_for("its own folder alone", || {
        let now = folders();
        (now.len() == 1 && now != killed).then_some(())
    });
    signal("INT", running.pid());
    running.finish();
    assert_eq!(folders().len(), 0);
}
