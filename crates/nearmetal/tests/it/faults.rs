//! Faults: what a user sees, what is kept, and that nothing is left behind.

use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use crate::support::{
    BINARY, Running, agents_of, finish, json, plan_of, run, signal, small_plan, so_far, wait_for,
    wait_gone,
};

/// A run in two namespaces that takes minutes if nobody ends it.
fn long_run(folder: &Path) -> Running {
    let plan = small_plan(folder, r#"["netns"]"#, 1000, 80);
    let out = folder.join("out");
    Running::start(&["qualify", "--plan", plan.to_str().unwrap(), "--out", out.to_str().unwrap()])
}

fn rounds_kept(out: &Path) -> usize {
    let Some(result) = so_far(out) else { return 0 };
    let series = result["series"].as_array().unwrap().clone();
    series.iter().map(|s| s["rounds"].as_array().unwrap().len()).sum()
}

/// Links named as ours in this namespace; the others vanish with their namespaces.
fn links() -> String {
    fs::read_to_string("/proc/net/dev").unwrap_or_default()
}

/// The tests run as root, so that a folder can belong to somebody else.
#[test]
fn a_node_refuses_a_data_folder_of_another_user() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let mut network = format!("data = \"{}\"\nrecord = true\n", data.display());
    for role in ["gateway", "router", "mediator", "processor"] {
        let address = format!("unix:{}/{role}", folder.path().display());
        network += &format!("[[{role}]]\naddress = \"{address}\"\n");
        if ["mediator", "processor"].contains(&role) {
            network += &format!("replication = \"{address}-replication\"\n");
        }
    }
    let file = folder.path().join("network.toml");
    fs::write(&file, network).unwrap();
    let start = || {
        let file = file.to_str().unwrap();
        run(&["exchange", "node", "--role", "gateway", "--index", "0", "--network", file])
    };
    let elsewhere = folder.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    symlink(&elsewhere, &data).unwrap();
    let of_link = start();
    fs::remove_file(&data).unwrap();
    fs::create_dir(&data).unwrap();
    chown(&data, Some(65534), Some(65534)).unwrap();
    let of_other = start();
    for (run, why) in [
        (of_link, "data is a file or a symbolic link; name a folder itself"),
        (of_other, "data belongs to another user (uid 65534); name another folder"),
    ] {
        assert_eq!(run.code, 2, "{run:?}");
        assert!(run.stderr.trim_end().ends_with(why), "{}", run.stderr);
    }
    for untouched in [elsewhere, data] {
        assert_eq!(fs::read_dir(untouched).unwrap().count(), 0);
    }
}

#[test]
fn the_cleanup_process_deletes_nothing_that_a_link_leads_to() {
    let folder = tempfile::tempdir().unwrap();
    let outside = folder.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "kept").unwrap();
    let planted = folder.path().join("nearmetal-share-1-0");
    symlink(&outside, &planted).unwrap();
    let run = run(&["lab-hold", planted.to_str().unwrap()]);
    assert_eq!(run.code, 2, "{run:?}");
    assert!(run.stderr.contains("is a file or a symbolic link"), "{}", run.stderr);
    assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "kept");
}

#[test]
fn ctrl_c_keeps_results_and_ends_agents() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let running = long_run(folder.path());
    wait_for("the first rounds", || (rounds_kept(&out) >= 3).then_some(()));
    let agents = agents_of(running.pid());
    assert_eq!(agents.len(), 2);
    signal("INT", running.pid());
    let run = running.finish();
    assert_eq!(run.code, 130, "{}{}", run.stdout, run.stderr);
    wait_gone(&agents);
    let result = json(&out.join("result.json"));
    assert_eq!(result["state"], "interrupted");
    assert_ne!(result["outcome"], "pass", "an interrupted run is no pass");
    assert!(rounds_kept(&out) >= 3);
    assert!(out.join("report.html").is_file());
}

#[test]
fn ctrl_c_before_the_first_trial_ends_at_once() {
    let folder = tempfile::tempdir().unwrap();
    for delay_ms in [1, 30, 120] {
        let inner = folder.path().join(delay_ms.to_string());
        fs::create_dir(&inner).unwrap();
        let running = long_run(&inner);
        sleep(Duration::from_millis(delay_ms));
        let agents = agents_of(running.pid());
        signal("INT", running.pid());
        let run = running.finish();
        // A signal before the handler stands ends the process by the signal itself.
        assert!(matches!(run.code, 130 | -1), "{delay_ms} ms: {} {}", run.code, run.stderr);
        wait_gone(&agents);
    }
}

#[test]
fn a_killed_parent_leaves_no_agent_and_no_link() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let before = links().lines().count();
    let running = long_run(folder.path());
    wait_for("the first round", || (rounds_kept(&out) >= 1).then_some(()));
    let agents = agents_of(running.pid());
    assert_eq!(agents.len(), 2);
    signal("KILL", running.pid());
    drop(running);
    wait_gone(&agents);
    assert_eq!(links().lines().count(), before);
    let result = so_far(&out).unwrap();
    assert_eq!(result["state"], "running", "the log of the completed trials");
    let report = run(&["report", out.to_str().unwrap()]);
    assert_eq!(report.code, 0, "{}", report.stderr);
}

#[test]
fn killed_agent_fails_its_trial_only() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    // Trials as long as they may be: most of the run is still to come when the agent is killed.
    let plan = small_plan(folder.path(), r#"["netns"]"#, 5, 300);
    let text = fs::read_to_string(&plan).unwrap();
    fs::write(&plan, text.replace("max_iterations = 2000", "max_iterations = 1000000")).unwrap();
    let running = Running::start(&[
        "qualify",
        "--plan",
        plan.to_str().unwrap(),
        "--out",
        out.to_str().unwrap(),
    ]);
    wait_for("the first round", || (rounds_kept(&out) >= 1).then_some(()));
    let agents = agents_of(running.pid());
    signal("KILL", agents[0]);
    let run = running.finish();
    let result = json(&out.join("result.json"));
    let failures = result["failures"].as_array().unwrap();
    assert_eq!(failures.len(), 1, "{failures:?} {}", run.stderr);
    assert!(failures[0]["reason"].as_str().unwrap().contains("signal 9"), "{failures:?}");
    assert_eq!(failures[0]["row"]["probe"], "pingpong", "{failures:?}");
    assert_eq!(result["state"], "complete", "the other trials go on");
    let lost = 5 * 2 * 2 - rounds_kept(&out);
    assert!((1..=2).contains(&lost), "one trial of two sizes, {lost} are lost");
    assert_eq!(run.code, 3, "four rounds support no verdict: {}", run.stdout);
}

#[test]
fn an_agent_killed_over_shared_memory_is_named_and_leaves_none() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let stacks = r#"["shm-spin", "shm-blocking"]"#;
    let plan = plan_of(folder.path(), r#"["netns"]"#, stacks, 1000, 60);
    let words = ["qualify", "--plan", plan.to_str().unwrap(), "--out", out.to_str().unwrap()];
    let running = Running::start(&words);
    wait_for("the first round", || (rounds_kept(&out) >= 1).then_some(()));
    let agents = agents_of(running.pid());
    signal("KILL", agents[1]);
    wait_for("the sentence in the result", || {
        let failures = json(&out.join("result.json"))["failures"].clone();
        failures[0]["reason"].as_str().is_some_and(|text| text.contains("signal 9")).then_some(())
    });
    signal("INT", running.pid());
    let run = running.finish();
    assert_eq!(run.code, 130, "{}{}", run.stdout, run.stderr);
    wait_gone(&agents);
    // The memory has no name and is mapped by agents only, so it has gone with them.
    let left = || fs::read_dir(std::env::temp_dir()).unwrap().flatten();
    let ours: Vec<_> = agents.iter().map(|pid| format!("nearmetal-{pid}-")).collect();
    for entry in left() {
        let name = entry.file_name().to_string_lossy().into_owned();
        assert!(!ours.iter().any(|prefix| name.starts_with(prefix)), "{name} was left");
    }
}

#[test]
fn a_plan_with_a_typo_gets_line_and_word() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("typo.toml");
    fs::write(
        &path,
        "name = 'x'\n[[trials]]\nenvironments = ['netsn']\nstacks = ['tcp-spin']\n\
                probe = 'pingpong'\n",
    )
    .unwrap();
    let run = run(&["qualify", "--plan", path.to_str().unwrap()]);
    assert_eq!(run.code, 2);
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
    assert!(run.stderr.contains("line 3"), "{}", run.stderr);
    assert!(run.stderr.contains("`netsn`, did you mean `netns`?"), "{}", run.stderr);
}

#[test]
fn a_plan_that_is_not_there_is_named() {
    let file = run(&["qualify", "--plan", "nothing/here.toml"]);
    assert_eq!((file.code, file.stderr.lines().count()), (2, 1), "{}", file.stderr);
    let name = run(&["qualify", "--plan", "quik"]);
    assert_eq!(name.code, 2);
    assert!(name.stderr.contains("did you mean `quick`?"), "{}", name.stderr);
}

#[test]
fn a_plan_that_is_too_long_or_a_device_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("long.toml");
    let text = format!("name = \"long\"\n#{}", "x".repeat(4 << 20));
    fs::write(&path, text).unwrap();
    for (plan, why) in [
        (path.to_str().unwrap(), "it has more than 4194304 bytes"),
        ("/dev/zero", "it is a device, not a file"),
    ] {
        let refused = run(&["qualify", "--plan", plan, "--dry-run"]);
        assert_eq!((refused.code, refused.stderr.lines().count()), (2, 1), "{}", refused.stderr);
        assert!(refused.stderr.trim_end().ends_with(why), "{}", refused.stderr);
    }
}

#[test]
fn full_disk_is_reported_and_keeps_the_last_complete_file() {
    let folder = tempfile::tempdir().unwrap();
    let plan = small_plan(folder.path(), r#"["loopback"]"#, 40, 10);
    let disk = folder.path().join("disk");
    fs::create_dir(&disk).unwrap();
    // A file system of 512 KiB in a mount namespace of its own, gone with the process.
    let script = "mount -t tmpfs -o size=512k none \"$1\" && shift && \
                  \"$@\"; code=$?; cat \"$0/out/trials.log\" 2>/dev/null | tail -c 2; exit $code";
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", script])
        .arg(&disk)
        .arg(&disk)
        .args([crate::support::BINARY, "qualify", "--plan", plan.to_str().unwrap(), "--out"])
        .arg(disk.join("out"))
        .stdin(Stdio::null());
    let run = finish(&mut command);
    assert_eq!(run.code, 4, "needs root for a file system of its own: {}", run.stderr);
    assert_eq!(run.errors().len(), 1, "{}", run.stderr);
    assert!(run.stderr.contains("No space left") || run.stderr.contains("full"), "{}", run.stderr);
    assert!(run.stdout.ends_with("]\n"), "the last record is complete: {:?}", run.stdout);
}

#[test]
fn a_result_folder_that_cannot_be_made_fails_before_anything_runs() {
    let run = run(&["qualify", "--out", "/proc/nearmetal"]);
    assert_eq!((run.code, run.stderr.lines().count()), (2, 1), "{}", run.stderr);
    assert!(run.stderr.contains("/proc/nearmetal"), "{}", run.stderr);
}

#[test]
fn another_runs_folder_is_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let plan = small_plan(folder.path(), r#"["loopback"]"#, 1, 2);
    let out = folder.path().join("out");
    let words = ["qualify", "--plan", plan.to_str().unwrap(), "--out", out.to_str().unwrap()];
    assert_eq!(run(&words).code, 3, "one round supports no verdict");
    let again = run(&words);
    assert_eq!((again.code, again.errors().len()), (5, 1), "{}", again.stderr);
    assert!(again.stderr.contains("name another folder with --out"), "{}", again.stderr);
}

#[test]
fn of_two_runs_with_one_folder_one_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let plan = small_plan(folder.path(), r#"["loopback"]"#, 2, 100);
    let out = folder.path().join("out");
    let words = ["qualify", "--plan", plan.to_str().unwrap(), "--out", out.to_str().unwrap()];
    for _ in 0..3 {
        let both = [Running::start(&words), Running::start(&words)].map(Running::finish);
        let mut codes = both.each_ref().map(|run| run.code);
        codes.sort_unstable();
        assert_eq!(codes, [3, 5], "one measures, one is refused: {both:?}");
        let refused = both.iter().find(|run| run.code == 5).unwrap();
        assert_eq!(refused.errors().len(), 1, "{}", refused.stderr);
        assert!(refused.stderr.contains("--out"), "{}", refused.stderr);
        let result = json(&out.join("result.json"));
        assert_eq!(result["state"], "complete", "the other run was not disturbed");
        fs::remove_dir_all(&out).unwrap();
    }
}

#[test]
fn an_ordinary_user_gets_rows_or_reasons() {
    let folder = tempfile::tempdir().unwrap();
    let plan = small_plan(folder.path(), r#"["loopback", "netns", "bridge"]"#, 5, 5);
    // The binary may lie where only root can read, so the user gets a copy.
    let binary = folder.path().join("nearmetal");
    crate::support::copy_program(crate::support::BINARY, &binary);
    let chmod = Command::new("chmod").args(["-R", "a+rwX"]).arg(folder.path()).status().unwrap();
    assert!(chmod.success());
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&binary)
        .args(["qualify", "--plan", plan.to_str().unwrap(), "--out"])
        .arg(folder.path().join("out"))
        .stdin(Stdio::null());
    let run = finish(&mut command);
    assert!(matches!(run.code, 0 | 3), "{} {}{}", run.code, run.stdout, run.stderr);
    let result = json(&folder.path().join("out/result.json"));
    let measured = result["series"].as_array().unwrap().len();
    let missing = result["not_available"].as_array().unwrap().len();
    assert!(measured >= 4, "loopback always works");
    assert_eq!(measured / 2 + missing, 3 * 2, "every row is there or has its reason");
}

#[test]
fn a_kernel_that_forbids_namespaces_is_named_and_the_other_rows_run() {
    let folder = tempfile::tempdir().unwrap();
    let plan = small_plan(folder.path(), r#"["loopback", "netns"]"#, 5, 5);
    let out = folder.path().join("out");
    // The limit counts inside a user namespace of its own, and ends with it.
    let script = "echo 0 > /proc/sys/user/max_net_namespaces && exec \"$@\"";
    let mut command = Command::new("unshare");
    command
        .args(["--user", "--map-root-user", "sh", "-c", script, "sh"])
        .args([crate::support::BINARY, "qualify", "--plan", plan.to_str().unwrap(), "--out"])
        .arg(&out)
        .stdin(Stdio::null());
    let run = finish(&mut command);
    assert_eq!(run.code, 3, "a missing row is no pass: {}{}", run.stdout, run.stderr);
    let result = json(&out.join("result.json"));
    let missing = result["not_available"].as_array().unwrap();
    assert_eq!(missing.len(), 2, "{missing:?}");
    for row in missing {
        let reason = row["reason"].as_str().unwrap();
        assert!(reason.contains("namespace"), "{reason}");
    }
    assert_eq!(result["series"].as_array().unwrap().len(), 4, "loopback runs");
}

/// In a mount namespace of its own, so that the file system ends with the run.
#[test]
fn a_full_disk_is_one_sentence_and_the_folder_can_be_used_again() {
    let folder = tempfile::tempdir().unwrap();
    let plan = small_plan(folder.path(), r#"["loopback"]"#, 2, 20);
    let disk = folder.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let script = format!(
        "mount -t tmpfs -o size=16k none '{at}'; '{program}' qualify --plan '{plan}' --out \
         '{at}/out'; echo \"code $?\"; ls '{at}/out'; mount -o remount,size=64m '{at}'; \
         '{program}' qualify --plan '{plan}' --quiet --out '{at}/out'; echo \"code $?\"",
        at = disk.display(),
        program = BINARY,
        plan = plan.display()
    );
    let run = finish(Command::new("unshare").args(["--mount", "sh", "-c", &script]));
    let full = format!("cannot write {}/out/trials.log: No space left on device", disk.display());
    assert_eq!(run.stderr.matches(&full).count(), 1, "{}", run.stderr);
    let codes: Vec<&str> = run.stdout.lines().filter(|line| line.starts_with("code ")).collect();
    assert!(matches!(codes[..], ["code 4", "code 0" | "code 1" | "code 3"]), "{}", run.stdout);
    assert!(!run.stdout.contains(".log"), "an empty log was left: {}", run.stdout);
}
