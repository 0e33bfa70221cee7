//! `tune` on recorded trees and in network namespaces of the tests' own: nothing of this machine is
//! changed.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use nm_test_support::skip::can_run;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{BINARY, Run, command, finish, processes, run, wait_for};

/// A recorded tree, and a folder for journals.
struct Tree {
    folder: TempDir,
}

const FILES: [(&str, &str); 14] = [
    ("proc/sys/kernel/random/boot_id", "boot-1\n"),
    ("proc/sys/kernel/numa_balancing", "1\n"),
    ("proc/sys/kernel/timer_migration", "1\n"),
    ("proc/sys/kernel/sched_rt_runtime_us", "950000\n"),
    ("proc/sys/vm/stat_interval", "1"),
    ("proc/sys/net/ipv4/tcp_autocorking", "1\n"),
    ("sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n"),
    ("sys/kernel/mm/transparent_hugepage/defrag", "[always] defer madvise never\n"),
    ("sys/kernel/mm/ksm/run", "1\n"),
    ("sys/devices/system/cpu/online", "0-3\n"),
    ("sys/devices/virtual/workqueue/cpumask", "f\n"),
    ("sys/devices/system/cpu/cpu2/power/pm_qos_resume_latency_us", "0\n"),
    ("sys/devices/system/cpu/cpu3/power/pm_qos_resume_latency_us", "n/a\n"),
    ("proc/irq/7/smp_affinity_list", "0-3\n"),
];

impl Tree {
    fn new() -> Tree {
        let tree = Tree { folder: tempfile::tempdir().unwrap() };
        for (path, text) in FILES {
            tree.write(path, text);
        }
        tree
    }

    fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.root().join(path)).unwrap()
    }

    fn files(&self) -> BTreeMap<&'static str, String> {
        FILES.iter().map(|(path, _)| (*path, self.read(path))).collect()
    }

    /// A command of `tune` on this tree.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = command(&["tune"]);
        command.args(args).arg("--root").arg(self.root()).arg("--state").arg(self.state());
        command
    }

    fn tune(&self, args: &[&str]) -> Run {
        finish(&mut self.command(args))
    }

    fn status(&self) -> Vec<Value> {
        let state = self.state();
        let run = run(&["tune", "status", "--format", "json", "--state", state.to_str().unwrap()]);
        let runs: Value =
            serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:?}"));
        runs["runs"].as_array().unwrap().clone()
    }

    fn last_status(&self) -> String {
        self.status().last().unwrap()["status"].as_str().unwrap().to_string()
    }
}

const THP: &str = "sys/kernel/mm/transparent_hugepage/enabled";

#[test]
fn plan_lists_every_step_and_writes_nothing() {
    let tree = Tree::new();
    let before = tree.files();
    let root = tree.root();
    let args = ["tune", "plan", "--cpus", "2-3", "--root", root.to_str().unwrap()];
    let text = run(&args);
    assert_eq!(text.code, 0, "{}", text.stderr);
    for part in [
        "mem.thp  (the machine, no risk known)",
        "[always] madvise never -> always [madvise] never",
        "why: huge pages for everybody",
        "iso.rt_throttle      not available: it weakens the machine",
        "cpu.governor         not available: /sys/devices/system/cpu/cpu0/cpufreq/",
    ] {
        assert!(text.stdout.contains(part), "{part}: {text:?}");
    }
    let json = run(&[&args[..], &["--format", "json"]].concat());
    let plan: Value = serde_json::from_str(&json.stdout).unwrap();
    let steps = plan["steps"].as_array().unwrap();
    assert!(steps.len() > 30);
    for step in steps {
        for field in ["step", "scope", "risk", "undo", "why", "source", "status"] {
            assert!(step[field].is_string(), "{field} of {step}");
        }
        let has_reason = step["status"] != "not_available" || step["reason"].is_string();
        assert!(has_reason, "{step}");
    }
    assert_eq!(tree.files(), before);
    assert!(!tree.state().exists());
}

#[test]
fn apply_and_undo_restore_every_byte() {
    let tree = Tree::new();
    let before = tree.files();
    let applied = tree.tune(&["apply", "--cpus", "2-3"]);
    assert_eq!(applied.code, 0, "{applied:?}");
    assert_eq!(tree.read(THP), "always [madvise] never\n");
    assert_eq!(tree.read("proc/irq/7/smp_affinity_list"), "0-1\n");
    assert_eq!(tree.read("sys/devices/virtual/workqueue/cpumask"), "3\n");
    assert_eq!(tree.read("proc/sys/vm/stat_interval"), "10");
    assert_eq!(tree.read("proc/sys/kernel/sched_rt_runtime_us"), "950000\n", "not allowed");
    assert_eq!(tree.last_status(), "in force");
    let again = tree.tune(&["apply", "--cpus", "2-3"]);
    assert_eq!(again.code, 0);
    assert!(again.stderr.contains("nothing to change"), "{again:?}");
    let undone = tree.tune(&["undo"]);
    assert_eq!(undone.code, 0, "{undone:?}");
    assert_eq!(tree.files(), before);
    assert_eq!(tree.last_status(), "closed");
    let nothing = tree.tune(&["undo"]);
    assert!(nothing.code == 0 && nothing.stderr.contains("nothing to undo"), "{nothing:?}");
}

/// What `apply` says is run as it is, in a shell: the folders of the run are part of it.
#[test]
fn the_command_that_is_named_undoes_the_run() {
    let tree = Tree::new();
    let before = tree.files();
    let applied = tree.tune(&["apply", "--only", "mem.thp", "--confirm-within", "3600"]);
    assert_eq!(applied.code, 0, "{applied:?}");
    assert_ne!(tree.files(), before);
    let named = |text: &str, begin: &str| {
        let at = text.find(begin).unwrap_or_else(|| panic!("{begin}: {text}")) + begin.len();
        text[at..].split(['\n', '`']).next().unwrap().to_string()
    };
    let refused = tree.tune(&["apply", "--only", "mem.thp"]);
    let program = BINARY.to_string();
    for command in [
        named(&applied.stderr, "unless you keep it with: nearmetal"),
        named(&refused.stderr, "put back what was there with `nearmetal"),
    ] {
        let mut shell = Command::new("sh");
        let run = finish(shell.args(["-c", &format!("'{program}'{command}")]));
        assert_eq!(run.code, 0, "{command}: {run:?}");
    }
    assert_eq!(tree.files(), before);
    assert_eq!(tree.last_status(), "closed");
    // It looks at the journal, which goes with the tree.
    wait_for("the end of the watcher", || watchers(&tree).is_empty().then_some(()));
}

#[test]
fn a_folder_of_journals_that_is_not_there_is_refused_and_not_made() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let state_text = state.to_str().unwrap();
    for words in [
        &["tune", "undo"][..],
        &["tune", "confirm"],
        &["tune", "status"],
        &["tune", "status", "--format", "json"],
        &["tune", "undo", "20260101T000000-000000-00000000"],
        &["lab", "undo"],
    ] {
        let refused = run(&[words, &["--state", state_text]].concat());
        assert_eq!(refused.code, 2, "{words:?}: {}{}", refused.stdout, refused.stderr);
        let why = format!("--state: there is no folder {state_text}");
        assert!(refused.stderr.contains(&why), "{words:?}: {}", refused.stderr);
        assert!(!state.exists(), "{words:?}");
    }
}

#[test]
fn a_security_relevant_step_is_applied_only_if_it_is_allowed() {
    let tree = Tree::new();
    let refused = tree.tune(&["apply", "--only", "iso.rt_throttle"]);
    assert!(refused.code == 4 && refused.stderr.contains("weakens the machine"), "{refused:?}");
    let args = ["apply", "--only", "iso.rt_throttle", "--allow", "iso.rt_throttle"];
    assert_eq!(tree.tune(&args).code, 0);
    assert_eq!(tree.read("proc/sys/kernel/sched_rt_runtime_us"), "-1\n");
    tree.tune(&["undo"]);
    assert_eq!(tree.read("proc/sys/kernel/sched_rt_runtime_us"), "950000\n");
}

/// A named step that is skipped without a word would be taken for one that is in force.
#[test]
fn a_named_step_that_cannot_be_made_is_refused_before_anything_is_written() {
    let tree = Tree::new();
    let before = tree.files();
    let named = "mem.thp,cpu.governor";
    let refused = tree.tune(&["apply", "--only", named]);
    assert_eq!(refused.code, 4, "{refused:?}");
    let why = "--only cpu.governor: not available: /sys/devices/system/cpu/cpu0/cpufreq/";
    assert!(refused.stderr.contains(why), "{refused:?}");
    assert_eq!(tree.files(), before);
    let out = tempfile::tempdir().unwrap();
    let (emitted, files) = emitted(&tree, &["sysctl", "--only", named], &out.path().join("out"));
    assert!(emitted.code == 4 && emitted.stderr.contains(why), "{emitted:?}");
    assert!(files.is_empty(), "{files:?}");
    // Of a whole profile, steps that cannot be made are counted.
    let applied = tree.tune(&["apply"]);
    assert_eq!(applied.code, 0, "{applied:?}");
    let counted = "steps are not available here and left out; `nearmetal tune plan` says why";
    assert!(applied.stderr.contains(counted), "{applied:?}");
}

#[test]
fn somebody_elses_change_is_a_conflict_until_the_step_is_named() {
    for (option, left) in [("--keep-theirs", "always madvise [never]\n"), ("--force", FILES[6].1)] {
        let tree = Tree::new();
        assert_eq!(tree.tune(&["apply", "--only", "mem.thp,mem.ksm"]).code, 0);
        tree.write(THP, "always madvise [never]\n");
        let conflict = tree.tune(&["undo"]);
        assert_eq!(conflict.code, 5, "{conflict:?}");
        let [error] = conflict.errors()[..] else { panic!("{conflict:?}") };
        assert!(error.contains("--keep-theirs mem.thp"), "{error}");
        assert_eq!(tree.read(THP), "always madvise [never]\n");
        assert_eq!(tree.last_status(), "partly undone");
        let blocked = tree.tune(&["apply", "--only", "iso.workqueue", "--cpus", "2"]);
        assert_eq!(blocked.code, 5, "{blocked:?}");
        assert!(blocked.stderr.contains("nearmetal tune undo"), "{blocked:?}");
        let undone = tree.tune(&["undo", option, "mem.thp"]);
        assert_eq!(undone.code, 0, "{undone:?}");
        assert_eq!(tree.read(THP), left);
        assert_eq!(tree.last_status(), "closed");
    }
}

#[test]
fn kill_at_any_time_leaves_a_journal_that_undo_completes() {
    let tree = Tree::new();
    let before = tree.files();
    for delay_ms in 0..30 {
        let mut child = tree.command(&["apply", "--cpus", "2-3"]).spawn().unwrap();
        sleep(Duration::from_millis(delay_ms));
        child.kill().unwrap();
        child.wait().unwrap();
        if !tree.state().exists() {
            continue;
        }
        let undone = tree.tune(&["undo"]);
        assert_eq!(undone.code, 0, "after {delay_ms} ms: {undone:?}");
        assert_eq!(tree.files(), before, "after {delay_ms} ms");
    }
    assert!(tree.status().iter().all(|run| run["status"] == "closed"));
}

#[test]
fn an_unfinished_run_blocks_the_next_one_and_a_restart_resets_its_settings() {
    let tree = Tree::new();
    assert_eq!(tree.tune(&["apply", "--only", "mem.thp"]).code, 0);
    let id = tree.status()[0]["run"].as_str().unwrap().to_string();
    // As after a kill: the journal ends before the run was complete.
    let path = tree.state().join(format!("{id}.jsonl"));
    let text = fs::read_to_string(&path).unwrap();
    let end = text.trim_end().rfind('\n').unwrap() + 20;
    fs::write(&path, &text[..end]).unwrap();
    assert_eq!(tree.last_status(), "interrupted");
    assert_eq!(tree.tune(&["apply", "--only", "mem.ksm"]).code, 5);
    tree.write("proc/sys/kernel/random/boot_id", "boot-2\n");
    tree.write(THP, "[always] madvise never\n");
    let copy = fs::read(&path).unwrap();
    let undone = tree.tune(&["undo"]);
    assert!(undone.code == 0 && undone.stdout.contains("reset by a restart"), "{undone:?}");
    assert_eq!(tree.read(THP), "[always] madvise never\n");
    // The next run does the same by itself, if it is one of the same tree.
    fs::write(&path, copy).unwrap();
    let other = Tree::new();
    other.write("proc/sys/kernel/random/boot_id", "boot-3\n");
    let mut elsewhere = command(&["tune", "apply", "--only", "mem.ksm", "--root"]);
    let elsewhere = finish(elsewhere.arg(other.root()).arg("--state").arg(tree.state()));
    assert_eq!(elsewhere.code, 5, "{elsewhere:?}");
    assert_eq!(tree.last_status(), "interrupted");
    assert_eq!(tree.tune(&["apply", "--only", "mem.ksm"]).code, 0);
    assert_eq!(tree.status()[0]["status"], "closed");
}

#[test]
fn wrong_input_is_refused_in_one_sentence() {
    let tree = Tree::new();
    for (args, part) in [
        (vec!["apply", "--only", "mem.tph"], "did you mean `mem.thp`?"),
        (vec!["apply", "--cpus", "3-1"], "list of CPUs"),
        (vec!["apply", "--cpus", "0-1024"], "list of CPUs"),
        (vec!["apply", "--cpus", "2-7"], "CPU 4 is not online; the machine has CPUs 0-3"),
        (vec!["apply", "--cpus", "7"], "CPU 7 is not online"),
        (vec!["apply", "--link", "a/b"], "is not the name of a network link"),
        (vec!["apply", "--link", "nosuch0"], "there is no network link `nosuch0`, but "),
        (vec!["apply", "--confirm-within", "0"], "from 1 to 86400"),
        (vec!["apply", "--confirm-within", "86401"], "from 1 to 86400"),
        (vec!["undo", "../x"], "is not the id of a run"),
        (vec!["undo", "none"], "there is no run none"),
        (vec!["undo", "--force", "mem.thp", "--keep-theirs", "mem.thp"], "choose one"),
    ] {
        let run = tree.tune(&args);
        assert_eq!(run.code, 2, "{args:?}: {run:?}");
        assert!(run.stderr.contains(part), "{args:?}: {run:?}");
    }
    tree.tune(&["apply", "--only", "mem.thp"]);
    let state = tree.state();
    let other = run(&["tune", "undo", "--state", state.to_str().unwrap()]);
    assert!(other.code == 2 && other.stderr.contains("--root"), "{other:?}");
}

/// The processes that watch over runs of this tree.
fn watchers(tree: &Tree) -> Vec<u32> {
    let state = tree.state().to_string_lossy().into_owned();
    processes()
        .into_iter()
        .filter(|process| process.words.contains(&"undo-at-deadline".to_string()))
        .filter(|process| process.state != 'Z' && process.words.contains(&state))
        .map(|process| process.pid)
        .collect()
}

#[test]
fn an_unconfirmed_run_is_undone_although_its_shell_was_killed() {
    let tree = Tree::new();
    let before = tree.files();
    // Long enough that a busy machine gets to all that happens here before it.
    let apply = format!(
        "'{BINARY}' tune apply --only mem.thp,mem.ksm --confirm-within 15 --root '{}' \
         --state '{}'; sleep 1000",
        tree.root().display(),
        tree.state().display()
    );
    // A session of its own, as that of a remote login; its end takes all its processes along.
    let mut shell = Command::new("setsid")
        .args(["sh", "-c", &apply])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_for("the run", || {
        tree.state().exists().then(|| tree.status()).filter(|runs| !runs.is_empty())?;
        (tree.last_status() == "awaits confirmation").then_some(())
    });
    assert_eq!(tree.tune(&["apply", "--only", "mem.ksm"]).code, 5, "it awaits confirmation");
    let group = format!("-{}", shell.id());
    Command::new("kill").args(["-KILL", "--", &group]).status().unwrap();
    shell.wait().unwrap();
    assert_eq!(watchers(&tree).len(), 1);
    wait_for("the undo", || (tree.last_status() == "closed").then_some(()));
    assert_eq!(tree.files(), before);
    wait_for("the end of the watching process", || watchers(&tree).is_empty().then_some(()));
    let late = tree.tune(&["confirm"]);
    assert_eq!(late.code, 5, "{late:?}");
}

/// Runs `apply --confirm-within` where systemd seems to run, with this `systemd-run`.
fn with_systemd_run(tree: &Tree, systemd_run: &str) -> Run {
    let bin = tree.folder.path().join("bin");
    fs::create_dir_all(&bin).unwrap();
    fs::write(bin.join("systemd-run"), systemd_run).unwrap();
    fs::set_permissions(bin.join("systemd-run"), fs::Permissions::from_mode(0o755)).unwrap();
    let apply = format!(
        "mount -t tmpfs none /run && mkdir -p /run/systemd/system && \
         PATH='{}':$PATH '{BINARY}' tune apply --only mem.thp --confirm-within 600 \
         --root '{}' --state '{}'",
        bin.display(),
        tree.root().display(),
        tree.state().display()
    );
    let mut unshare = Command::new("unshare");
    finish(unshare.args(["--mount", "sh", "-c", &apply]).stdin(Stdio::null()))
}

#[test]
fn the_watch_has_a_scope_of_its_own_where_systemd_runs() {
    if !can_run(nm_sys::namespace::privileged(), "it takes root to make namespaces") {
        return;
    }
    let tree = Tree::new();
    let words = tree.folder.path().join("words");
    let script = format!(
        "#!/bin/sh\necho \"$@\" > '{}'\n\
         while [ \"$1\" != -- ]; do shift; done; shift\nexec \"$@\"\n",
        words.display()
    );
    let run = with_systemd_run(&tree, &script);
    assert_eq!(run.code, 0, "{run:?}");
    let words = fs::read_to_string(&words).unwrap();
    assert!(words.starts_with("--scope --quiet --collect --unit=nearmetal-undo-"), "{words}");
    assert!(!run.stderr.contains("warning"), "{run:?}");
    assert_eq!(watchers(&tree).len(), 1);
    assert_eq!(tree.tune(&["undo"]).code, 0);
    wait_for("the end of the watching process", || watchers(&tree).is_empty().then_some(()));

    let run = with_systemd_run(&tree, "#!/bin/sh\nexit 1\n");
    assert_eq!(run.code, 0, "{run:?}");
    assert!(run.stderr.contains("makes no scope"), "{run:?}");
    assert_eq!(watchers(&tree).len(), 1, "it watches all the same");
    assert_eq!(tree.tune(&["undo"]).code, 0);
    wait_for("the end of the watching process", || watchers(&tree).is_empty().then_some(()));
}

#[test]
fn a_confirmed_run_stays() {
    let tree = Tree::new();
    let applied = tree.tune(&["apply", "--only", "mem.thp", "--confirm-within", "600"]);
    assert_eq!(applied.code, 0, "{applied:?}");
    assert_eq!(watchers(&tree).len(), 1);
    let confirmed = tree.tune(&["confirm"]);
    assert_eq!(confirmed.code, 0, "{confirmed:?}");
    wait_for("the end of the watching process", || watchers(&tree).is_empty().then_some(()));
    assert_eq!(
        (tree.read(THP).as_str(), tree.last_status().as_str()),
        ("always [madvise] never\n", "in force")
    );
    assert_eq!(tree.tune(&["undo"]).code, 0);
    assert_eq!(tree.read(THP), FILES[6].1);
}

/// The text of `tune status`.
fn status_text(tree: &Tree) -> Run {
    let state = tree.state();
    run(&["tune", "status", "--state", state.to_str().unwrap()])
}

#[test]
fn status_says_what_is_in_force_after_a_restart() {
    let tree = Tree::new();
    assert_eq!(tree.tune(&["apply", "--only", "mem.thp,numa.balance"]).code, 0);
    let run = &tree.status()[0];
    assert_eq!((run["open_changes"].as_u64(), run["in_force"].as_u64()), (Some(2), Some(2)));
    // Somebody else changes one of them.
    tree.write(THP, "always madvise [never]\n");
    let text = status_text(&tree).stdout;
    assert!(text.contains("1 change in force") && text.contains("somebody else"), "{text}");
    // The machine restarts: nothing of the run is left, whatever the files hold.
    tree.write("proc/sys/kernel/random/boot_id", "boot-2\n");
    let run = &tree.status()[0];
    assert_eq!((run["open_changes"].as_u64(), run["in_force"].as_u64()), (Some(2), Some(0)));
    let text = status_text(&tree).stdout;
    assert!(text.contains("2 changes no longer in force: a restart"), "{text}");
}

/// The journal of the only run.
fn journal(tree: &Tree) -> PathBuf {
    let mut entries = fs::read_dir(tree.state()).unwrap().map(|entry| entry.unwrap().path());
    entries.find(|path| path.extension().is_some_and(|end| end == "jsonl")).unwrap()
}

#[test]
fn status_notices_a_run_that_nobody_has_undone_in_time() {
    let tree = Tree::new();
    assert_eq!(tree.tune(&["apply", "--only", "mem.thp"]).code, 0);
    assert!(!status_text(&tree).stdout.contains("is gone"));
    // As if its watching process had been killed a minute ago.
    let path = journal(&tree);
    let text = fs::read_to_string(&path).unwrap();
    let first: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    let started = first["started"].as_str().unwrap();
    let begun = text.replacen(started, "2020-01-01T00:00:00Z", 1).replacen(
        "\"confirm_within_s\":null",
        "\"confirm_within_s\":60",
        1,
    );
    assert_ne!(begun, text);
    fs::write(&path, begun).unwrap();
    let text = status_text(&tree).stdout;
    assert!(text.contains("nothing has undone it") && text.contains("tune undo 2"), "{text}");
    assert_eq!(tree.tune(&["undo"]).code, 0);
    assert!(!status_text(&tree).stdout.contains("nothing has undone it"));
}

#[test]
fn a_damaged_line_has_a_way_out_and_hides_no_other_run() {
    let tree = Tree::new();
    assert_eq!(tree.tune(&["apply", "--only", "mem.thp"]).code, 0);
    let path = journal(&tree);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replacen("{\"state\":\"intent\"", "{\"sta", 1)).unwrap();
    let other = tree.state().join("20200101T000000-000000-00000000.jsonl");
    fs::write(&other, "").unwrap();
    fs::set_permissions(&other, fs::Permissions::from_mode(0o600)).unwrap();
    let status = status_text(&tree);
    assert_eq!(status.code, 2, "{status:?}");
    let begin = format!("line 2 of {} is damaged", path.display());
    assert!(status.stdout.contains(&begin), "{status:?}");
    assert!(status.stdout.contains(".damaged` lets other runs begin"), "{status:?}");
    // The way out is one.
    let refused = tree.tune(&["apply", "--only", "numa.balance"]);
    assert!(refused.code == 2 && refused.stderr.contains("mv "), "{refused:?}");
    fs::rename(&path, format!("{}.damaged", path.display())).unwrap();
    assert_eq!(tree.tune(&["apply", "--only", "numa.balance"]).code, 0);
    assert_eq!(status_text(&tree).code, 0);
}

/// An experiment with a step that cannot have an effect: it changes a recorded tree.
const AB: [&str; 7] = ["ab", "--step", "mem.thp", "--percentile", "median", "--ms", "20"];

#[test]
fn an_experiment_leaves_what_it_decided_and_records_why() {
    let tree = Tree::new();
    let run = tree.tune(&[&AB[..], &["--rounds", "7", "--format", "json"]].concat());
    let decision: Value =
        serde_json::from_str(&run.stdout).unwrap_or_else(|e| panic!("{e} {run:?}"));
    assert_eq!(decision["rounds"], serde_json::json!([8, 8]), "blocks of two and two");
    assert_eq!(decision["figures"][0]["metric"], "median");
    assert!(decision["figures"][0]["interval"].is_array(), "{decision}");
    let kept = decision["kept"].as_bool().unwrap();
    // Nothing is expected, but chance finds a difference in one of twenty experiments.
    let codes: &[i32] = if kept { &[0] } else { &[1, 3] };
    assert!(codes.contains(&run.code), "{run:?}");
    let (thp, status) = match kept {
        true => ("always [madvise] never\n", "in force"),
        false => (FILES[6].1, "closed"),
    };
    assert_eq!((tree.read(THP).as_str(), tree.last_status().as_str()), (thp, status));
    let run = &tree.status()[0];
    assert_eq!(run["decisions"][0]["kept"], kept, "{run}");
    assert!(run["changes"].as_u64().unwrap() >= 4, "one for each time it was applied: {run}");
}

#[test]
fn an_interrupted_or_killed_experiment_can_be_undone() {
    for (signal, code) in [("INT", Some(130)), ("KILL", None)] {
        let tree = Tree::new();
        let before = tree.files();
        let mut child = tree.command(&[&AB[..], &["--rounds", "500"]].concat()).spawn().unwrap();
        let applied = || tree.read(THP).contains("[madvise]").then_some(());
        wait_for("the first trial with the step", applied);
        crate::support::signal(signal, child.id());
        assert_eq!(child.wait().unwrap().code(), code);
        assert_eq!(tree.tune(&["undo"]).code, 0);
        assert_eq!(tree.files(), before, "{signal}");
        assert_eq!(tree.last_status(), "closed");
    }
}

#[test]
fn an_experiment_that_could_show_nothing_is_refused() {
    let tree = Tree::new();
    for (args, part) in [
        (vec!["ab", "--step", "cpu.governor"], "not available"),
        (vec!["ab", "--step", "iso.rt_throttle"], "--allow iso.rt_throttle"),
        (vec!["ab", "--step", "net.autocork", "--environment", "netns"], "measures in others"),
        (vec!["ab", "--step", "mem.thp", "--percentile", "max"], "choose a percentile"),
        (vec!["ab", "--step", "mem.thp", "--rounds", "5"], "from 6 to 500"),
        (vec!["ab", "--step", "mem.thp", "--rounds", "501"], "from 6 to 500"),
        (vec!["ab", "--step", "mem.thp", "--ms", "0"], "from 1 to 86400000"),
    ] {
        let run = tree.tune(&args);
        assert_eq!(run.code, 2, "{args:?}: {run:?}");
        assert!(run.stderr.contains(part), "{args:?}: {run:?}");
    }
    assert_eq!(tree.tune(&["undo"]).code, 0);
}

/// Runs a script as root in a network namespace of its own, with a sysfs of that namespace.
fn in_namespace(script: &str, state: &Path) -> Run {
    let script = format!("mount -t sysfs sysfs /sys; {script}");
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "sh", "-ec", &script]).env("STATE", state);
    finish(command.env("NEARMETAL", BINARY).stdin(Stdio::null()))
}

#[test]
fn a_real_sysctl_and_a_real_link_of_a_namespace_are_changed_and_restored() {
    if !can_run(nm_sys::namespace::privileged(), "it takes root to make namespaces") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let script = r#"
        ip tuntap add dev tap0 mode tap
        show() { cat /proc/sys/net/ipv4/tcp_slow_start_after_idle; "$NEARMETAL" tune plan \
            --only nic.gro,net.idle_cwnd --link tap0 | grep -e '->' || echo as wanted; }
        show
        "$NEARMETAL" tune apply --only nic.gro,net.idle_cwnd --link tap0 --state "$STATE"
        show
        code=0; unshare --net "$NEARMETAL" tune undo --state "$STATE" || code=$?
        echo "elsewhere $code"
        ip link set tap0 name lan0
        "$NEARMETAL" tune undo --state "$STATE"
        ip link set lan0 name tap0
        show
    "#;
    let run = in_namespace(script, &state);
    assert_eq!(run.code, 0, "{run:?}");
    let parts: Vec<&str> = run.stdout.lines().map(str::trim).collect();
    let text = parts.join("\n");
    let first = "1\ngro of tap0: 1 -> 0\nnet.ipv4.tcp_slow_start_after_idle: 1 -> 0\n";
    assert!(text.starts_with(first), "{text}");
    assert!(text.contains("\n0\nas wanted\n"), "{text}");
    assert!(text.contains("elsewhere 5"), "{text}");
    assert!(text.trim_end().ends_with(first.trim_end()), "{text}");
}

/// Emits files of one kind for the recorded tree; their texts by name.
fn emitted(tree: &Tree, args: &[&str], out: &Path) -> (Run, BTreeMap<String, String>) {
    let mut emit = command(&["tune", "emit"]);
    emit.args(args).arg("--root").arg(tree.root()).arg("--out").arg(out);
    let run = finish(&mut emit);
    let name = |path: &str| path.rsplit('/').next().unwrap().to_string();
    let texts = run.stdout.lines().map(|path| (name(path), fs::read_to_string(path).unwrap()));
    let texts = texts.collect();
    (run, texts)
}

#[test]
fn emitted_files_have_the_steps_and_how_to_remove_them() {
    let tree = Tree::new();
    let before = tree.files();
    let folder = tempfile::tempdir().unwrap();
    for (kind, file, lines) in [
        (
            "sysctl",
            "90-nearmetal.conf",
            &["kernel.numa_balancing = 0", "vm.stat_interval = 10"][..],
        ),
        ("grub", "90-nearmetal.cfg", &["nohz_full=2-3 rcu_nocbs=2-3\""]),
        ("cpuset", "nearmetal.slice", &["AllowedCPUs=2-3"]),
        (
            "tuned",
            "tuned.conf",
            &[
                "include=network-latency",
                "kernel.numa_balancing=0",
                "transparent_hugepages=madvise",
                "/sys/kernel/mm/transparent_hugepage/defrag=defer",
                "/sys/kernel/mm/ksm/run=2",
            ],
        ),
        ("systemd", "nearmetal-tune.service", &["RemainAfterExit=yes"]),
    ] {
        let out = folder.path().join(kind);
        let (run, texts) = emitted(&tree, &[kind, "--cpus", "2-3"], &out);
        assert_eq!(run.code, 0, "{run:?}");
        let text = &texts[file];
        assert!(text.starts_with("# Made by nearmetal ") && text.contains("# Remove:  "), "{text}");
        for line in lines {
            assert!(text.contains(line), "{line}: {text}");
        }
        // The head names the steps of this file, not of the others.
        let steps = text.lines().find_map(|line| line.strip_prefix("# Steps: ")).unwrap_or("");
        let has = |step| steps.split(", ").any(|one| one == step);
        let is_of = |kinds: &[&str]| kinds.contains(&kind);
        assert_eq!(has("numa.balance"), is_of(&["sysctl", "tuned", "systemd"]), "{kind}: {steps}");
        assert_eq!(has("mem.ksm"), is_of(&["tuned", "systemd"]), "{kind}: {steps}");
        assert_eq!(has("iso.nohz"), is_of(&["grub", "tuned"]), "{kind}: {steps}");
        assert!(!has("kern.skew_tick"), "four CPUs tick too seldom together: {steps}");
        assert!(!text.contains("mitigations"), "not allowed: {text}");
        let again = emitted(&tree, &[kind, "--cpus", "2-3"], &out).0;
        assert_eq!(again.code, 5, "{again:?}");
        assert!(again.stderr.contains("exists"), "{again:?}");
        assert_eq!(fs::read_to_string(out.join(file)).unwrap_or(text.clone()), *text);
    }
    let allow = ["grub", "--allow", "kern.mitigations"];
    let (_, texts) = emitted(&tree, &allow, &folder.path().join("allowed"));
    let text = &texts["90-nearmetal.cfg"];
    assert!(text.contains("mitigations=off") && !text.contains("nohz_full"), "{text}");
    let (none, _) = emitted(&tree, &["cpuset"], &folder.path().join("none"));
    assert!(none.code == 2 && none.stderr.contains("--cpus"), "{none:?}");
    assert_eq!(tree.files(), before);
}

#[test]
fn an_emitted_service_applies_and_undoes_the_steps() {
    let tree = Tree::new();
    let before = tree.files();
    let out = tree.folder.path().join("out");
    let only = ["systemd", "--only", "mem.thp,iso.workqueue", "--cpus", "2-3"];
    let (_, texts) = emitted(&tree, &only, &out);
    let command_of = |key: &str| -> Vec<String> {
        let line = texts["nearmetal-tune.service"].lines().find(|line| line.starts_with(key));
        let line = line.unwrap().trim_start_matches(key);
        line.split_whitespace().map(str::to_string).collect()
    };
    // A later run of somebody else's is not the service's to undo.
    for (key, is_on) in [("ExecStart=", true), ("ExecStop=", false)] {
        let words = command_of(key);
        let words: Vec<String> =
            words.iter().map(|word| word.replace("${INVOCATION_ID}", "c0ffee")).collect();
        let mut service = Command::new(&words[0]);
        service.args(&words[1..]).arg("--root").arg(tree.root()).arg("--state").arg(tree.state());
        let run = finish(service.stdin(Stdio::null()));
        assert_eq!(run.code, 0, "{words:?}: {run:?}");
        assert_eq!(tree.read(THP).contains("[madvise]"), is_on);
        if is_on {
            assert_eq!(tree.tune(&["apply", "--only", "mem.ksm"]).code, 0);
        }
    }
    assert_eq!(tree.last_status(), "in force");
    assert_eq!(tree.tune(&["undo"]).code, 0);
    assert_eq!(tree.files(), before);
    let none = tree.tune(&["undo", "--run-name", "unit-c0ffee"]);
    assert!(none.code == 0 && none.stderr.contains("name unit-c0ffee is open"), "{none:?}");
}

#[test]
fn emitted_files_of_a_link_have_its_driver_settings() {
    if !can_run(nm_sys::namespace::privileged(), "it takes root to make namespaces") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let script = r#"
        ip tuntap add dev tap0 mode tap
        "$NEARMETAL" tune emit systemd --only nic.gro --link tap0 --out "$STATE"
        "$NEARMETAL" tune emit tuned --only nic.gro,nic.coalesce --link tap0 --out "$STATE"
        cat /sys/class/net/tap0/address
    "#;
    let run = in_namespace(script, folder.path());
    assert_eq!(run.code, 0, "{run:?}");
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    let link = read("10-nearmetal-tap0.link");
    let mac = run.stdout.lines().last().unwrap();
    assert!(link.contains(&format!("PermanentMACAddress={mac}\n")), "{link}");
    assert!(link.contains("\nGenericReceiveOffload=no\n"), "{link}");
    assert!(!link.contains("Coalesce"), "not chosen: {link}");
    let tuned = read("nearmetal-latency/tuned.conf");
    assert!(tuned.contains("devices=tap0\n") && tuned.contains("\nfeatures=gro off\n"), "{tuned}");
    assert!(tuned.contains("coalesce=adaptive-rx off"), "{tuned}");
}
