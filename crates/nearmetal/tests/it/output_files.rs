//! Output that cannot be written. A full disk has one exit code in every command and leaves no file
//! that is empty or cut off. A full stdout has another code, and a closed pipe is no error.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::{BINARY, Run, command, finish, finish_started, root, run_in};

/// Two published runs.
const RUNS: [&str; 2] = ["reference:deftech-hft-vm-pf", "reference:deftech-hft-bm-sfc9250"];

/// A machine's files for commands that look at one.
fn tree(folder: &Path) -> String {
    let root = folder.join("machine");
    for (path, text) in [
        ("proc/sys/kernel/random/boot_id", "boot-1\n"),
        ("proc/sys/vm/stat_interval", "1\n"),
        ("proc/sys/net/ipv4/tcp_autocorking", "1\n"),
        ("sys/devices/system/cpu/online", "0-3\n"),
    ] {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    root.to_str().unwrap().to_string()
}

#[test]
fn a_full_stdout_has_one_exit_code_in_every_command() {
    let folder = tempfile::tempdir().unwrap();
    let (machine, state) = (tree(folder.path()), folder.path().join("state"));
    fs::create_dir(&state).unwrap();
    let state = state.to_str().unwrap();
    let made = run_in(folder.path(), &["exchange", "secret", "new", "secret"]);
    assert_eq!(made.code, 0, "{}", made.stderr);
    let text = "#\tsize\tmean\tmin\tmedian\tmax\t%ile\tstddev\titer\n\
                \t1\t9\t8\t9\t20\t10\t1\t1000\n";
    fs::write(folder.path().join("pingpong.txt"), text).unwrap();
    for words in [
        &["--help"][..],
        &["--version"],
        &["help", "qualify"],
        &["exchange", "run", "--help"],
        &["plans"],
        &["plans", "quick"],
        &["plans", "--format", "json"],
        &["schema", "result"],
        &["completions", "bash"],
        &["man", "qualify"],
        &["doctor"],
        &["reference", "list"],
        &["reference", "show", "deftech-hft-vm-pf", "--format", "json"],
        &["compare", RUNS[0], RUNS[0]],
        &["trend", RUNS[0], RUNS[1], "--format", "json"],
        &["audit", "--root", &machine],
        &["audit", "--root", &machine, "--format", "json"],
        &["qualify", "--dry-run"],
        &["tune", "plan", "--root", &machine],
        &["tune", "status", "--state", state],
        &["tune", "emit", "sysctl", "--out", "emitted", "--root", &machine],
        &["exchange", "secret", "new", "other"],
        &["exchange", "secret", "derive", "--secret", "secret", "--operator", "--out", "keys"],
        &["accel", "status"],
        &["jitter", "--seconds", "0.05", "--cpus", "0"],
        &["import", "pingpong.txt"],
    ] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut command = command(words);
        let run = finish_started(command.current_dir(folder.path()).stdout(full).spawn().unwrap());
        assert_eq!(run.code, 2, "{words:?}: {}", run.stderr);
        let why = "the output cannot be written to stdout: No space left on device";
        assert!(run.stderr.contains(why), "{words:?}: {}", run.stderr);
        assert_eq!(run.errors().len(), 1, "{words:?}: {}", run.stderr);
    }
}

#[test]
fn a_closed_pipe_is_no_error() {
    for words in ["--help", "plans", "man qualify", "schema result"] {
        let line = format!("{{ sleep 0.3; \"$0\" {words}; echo code $? >&2; }} | true");
        let mut shell = Command::new("sh");
        let run = finish(shell.args(["-c", &line, BINARY]).stderr(Stdio::piped()));
        assert_eq!(run.stderr, "code 0\n", "{words}");
    }
}

/// Runs the binary where no file can have a byte, as on a full disk.
fn on_full_disk(folder: &Path, words: &[&str]) -> Run {
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -f 0; exec \"$0\" \"$@\"", BINARY]).args(words);
    shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    finish(shell.current_dir(folder))
}

/// All files below a folder; absent folders have none.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let below = |path: PathBuf| match path.is_dir() {
        true => files(&path),
        false => vec![path],
    };
    entries.map(|entry| entry.path()).flat_map(below).collect()
}

#[test]
fn a_file_that_exists_is_a_conflict_and_stays() {
    let folder = tempfile::tempdir().unwrap();
    let made = run_in(folder.path(), &["exchange", "secret", "new", "secret"]);
    assert_eq!(made.code, 0, "{}", made.stderr);
    fs::write(folder.path().join("mine"), "mine").unwrap();
    for words in [
        &["exchange", "secret", "new", "mine"][..],
        &["exchange", "secret", "derive", "--secret", "secret", "--operator", "--out", "mine"],
    ] {
        let run = run_in(folder.path(), words);
        assert_eq!(run.code, 5, "{words:?}: {}", run.stderr);
        assert!(run.stderr.contains("mine exists already"), "{words:?}: {}", run.stderr);
        assert_eq!(fs::read_to_string(folder.path().join("mine")).unwrap(), "mine");
    }
}

#[test]
fn a_full_disk_has_one_exit_code_and_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let machine = tree(folder.path());
    let (secret, quick) = (folder.path().join("secret"), folder.path().join("quick.json"));
    let secret_text = secret.to_str().unwrap();
    let made = run_in(folder.path(), &["exchange", "secret", "new", secret_text]);
    assert_eq!(made.code, 0, "{}", made.stderr);
    fs::copy(root().join("crates/measure/report/tests/data/quick.json"), &quick).unwrap();
    let quick = quick.to_str().unwrap();
    let out = folder.path().join("out");
    for words in [
        &["compare", quick, quick, "--out", "new"][..],
        &["trend", RUNS[0], RUNS[1], "--out", "new"],
        &["audit", "--root", &machine, "--save", "saved.json"],
        &["audit", "--record", "recorded"],
        &["exchange", "secret", "new", "made"],
        &["exchange", "secret", "derive", "--secret", secret_text, "--operator", "--out", "keys"],
        &["tune", "emit", "sysctl", "--out", "emitted", "--root", &machine],
        &["man", "--out", "pages"],
        &["jitter", "--seconds", "0.05", "--cpus", "0", "--out", "result"],
    ] {
        fs::create_dir(&out).unwrap();
        let run = on_full_disk(&out, words);
        assert_eq!(run.code, 4, "{words:?}: {}{}", run.stdout, run.stderr);
        assert!(run.stderr.contains("File too large"), "{words:?}: {}", run.stderr);
        assert_eq!(run.stderr.matches("File too large").count(), 1, "{words:?}: {}", run.stderr);
        assert_eq!(files(&out), Vec::<PathBuf>::new(), "{words:?}");
        fs::remove_dir_all(&out).unwrap();
    }
}

#[test]
fn a_snapshot_replaces_an_earlier_one_only_when_it_is_complete() {
    let folder = tempfile::tempdir().unwrap();
    let machine = tree(folder.path());
    let (out, saved) = (folder.path().join("out"), folder.path().join("out/saved.json"));
    fs::create_dir(&out).unwrap();
    fs::write(&saved, "earlier").unwrap();
    let words = ["audit", "--root", &machine, "--save", "saved.json"];
    assert_eq!(on_full_disk(&out, &words).code, 4);
    assert_eq!(fs::read_to_string(&saved).unwrap(), "earlier");
    assert_eq!(run_in(&out, &words).code, 0);
    assert!(fs::read_to_string(&saved).unwrap().starts_with('{'));
    assert_eq!(files(&out), [saved]);
    let device = run_in(&out, &["audit", "--root", &machine, "--save", "/dev/full"]);
    assert_eq!(device.code, 4, "{}", device.stderr);
    assert!(Path::new("/dev/full").metadata().is_ok_and(|known| !known.is_file()));
}

#[test]
fn a_card_is_written_once_and_every_refusal_is_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let text = "#\tsize\tmean\tmin\tmedian\tmax\t%ile\tstddev\titer\n\
                \t64\t900\t800\t900\t2000\t1000\t100\t1000\n";
    fs::write(folder.path().join("pingpong.txt"), text).unwrap();
    let imported = run_in(folder.path(), &["import", "pingpong.txt", "--out", "result"]);
    assert_eq!(imported.code, 0, "{}", imported.stderr);
    let card = |file: &str| run_in(folder.path(), &["report", "result", "--card", file]);
    for (file, start) in [("out.svg", &b"<?xml"[..]), ("out.PNG", &b"\x89PNG"[..])] {
        let run = card(file);
        assert_eq!(run.code, 0, "{}", run.stderr);
        assert!(fs::read(folder.path().join(file)).unwrap().starts_with(start), "{file}");
    }
    for (file, code, part) in [
        ("out.jpg", 2, "out.jpg is neither SVG nor PNG; end its name in .svg or .png"),
        ("out", 2, "out is neither SVG nor PNG"),
        ("out.svg", 5, "out.svg"),
        ("missing/out.svg", 4, "missing/out.svg"),
    ] {
        let run = card(file);
        assert_eq!(run.code, code, "{file}: {}", run.stderr);
        assert!(run.stderr.contains(part), "{file}: {}", run.stderr);
        assert_eq!(run.stderr.trim_end().lines().count(), 1, "{file}: {}", run.stderr);
    }
}
