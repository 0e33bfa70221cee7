//! Limits of the machine: a disturbed or limited machine does not pass, and the cause stands first.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use serde_json::Value;

use crate::support::{BINARY, Run, command, copy_program, finish, json, plan_of};

/// A plan that passes on any machine within `limits`.
fn plan_with(folder: &Path, limits: &str) -> PathBuf {
    let path = plan_of(folder, r#"["loopback"]"#, r#"["tcp-blocking"]"#, 5, 60);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, format!("{text}[machine]\n{limits}\n")).unwrap();
    path
}

/// Limits that only the quota of a control group breaks.
const NOTHING_BUT_QUOTA: &str = "steal_percent_max = 100\nother_work_percent_max = 100000\n\
     throttled_percent_max = 100\ncpus_min = 1\nslow_clock_allowed = true";

fn qualify(plan: &Path, out: &Path) -> Run {
    let words = ["qualify", "--plan", plan.to_str().unwrap(), "--out", out.to_str().unwrap()];
    finish(&mut command(&words))
}

/// The program `program` as a busy loop, ended when dropped. It goes before all others: only the
/// busiest programs are listed, and other tests may have some.
struct Hog(Child);

impl Hog {
    fn start(program: &Path) -> Hog {
        let mut hog = Command::new("nice");
        hog.args(["-n", "-10"]).arg(program).args(["-c", "while :; do :; done"]);
        Hog(hog.spawn().unwrap())
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn verdict_of<'a>(result: &'a Value, words: &str) -> &'a Value {
    let verdicts = result["verdicts"].as_array().unwrap();
    let found = verdicts.iter().find(|one| one["target"].as_str().unwrap().contains(words));
    found.unwrap_or_else(|| panic!("no `{words}` in {verdicts:?}"))
}

#[test]
fn a_program_that_takes_a_cpu_is_named_and_nothing_passes() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("a-busy-hog");
    copy_program("/bin/sh", &program);
    let hog = Hog::start(&program);
    let limits = NOTHING_BUT_QUOTA.replace("100000", "10") + "\nquota_allowed = true";
    let out = folder.path().join("out");
    let run = qualify(&plan_with(folder.path(), &limits), &out);
    drop(hog);
    assert_eq!(run.code, 3, "{}{}", run.stdout, run.stderr);
    let result = json(&out.join("result.json"));
    let verdict = verdict_of(&result, "used by other programs");
    assert_eq!(verdict["outcome"], "inconclusive", "{verdict}");
    let programs = result["machine"]["programs"].to_string();
    assert!(programs.contains("a-busy-hog"), "{programs}");
    let last = run.stdout.rsplit("\n\n").next().unwrap().replace("\n  ", " ");
    let start = "INCONCLUSIVE: programs outside the run used";
    assert!(last.starts_with(start), "{last}");
}

#[test]
fn limits_that_are_relaxed_let_a_busy_machine_pass() {
    let folder = tempfile::tempdir().unwrap();
    let limits = format!("{NOTHING_BUT_QUOTA}\nquota_allowed = true");
    let out = folder.path().join("out");
    let run = qualify(&plan_with(folder.path(), &limits), &out);
    assert_eq!(run.code, 0, "{}{}", run.stdout, run.stderr);
    let machine = &json(&out.join("result.json"))["machine"];
    assert!(machine["window_s"].as_f64().unwrap() > 0.0, "{machine}");
    assert!(machine["steal_s"].is_number() && machine["other_work_s"].is_number(), "{machine}");
}

/// A control group with half a CPU, removed when dropped.
struct LimitedGroup {
    folder: PathBuf,
    members: &'static str,
}

impl LimitedGroup {
    /// In version 1 of control groups if the machine has it, else in version 2. Takes root.
    fn make() -> LimitedGroup {
        let name = format!("nearmetal-test-{}", std::process::id());
        let v1 = Path::new("/sys/fs/cgroup/cpu");
        let (root, members, limits) = match v1.join("cpu.cfs_quota_us").exists() || v1.is_dir() {
            true => (v1, "tasks", vec![("cpu.cfs_quota_us", "50000")]),
            false => {
                let root = Path::new("/sys/fs/cgroup");
                fs::write(root.join("cgroup.subtree_control"), "+cpu").unwrap();
                (root, "cgroup.procs", vec![("cpu.max", "50000 100000")])
            }
        };
        let group = LimitedGroup { folder: root.join(name), members };
        fs::create_dir(&group.folder).expect("root can make a control group");
        for (file, value) in limits {
            fs::write(group.folder.join(file), value).unwrap();
        }
        group
    }
}

impl Drop for LimitedGroup {
    fn drop(&mut self) {
        // Its processes have ended; the kernel may still be removing the last of them.
        for _ in 0..100 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}

#[test]
fn a_quota_of_the_control_group_fails_and_is_named_first() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan_with(folder.path(), NOTHING_BUT_QUOTA);
    let out = folder.path().join("out");
    let group = LimitedGroup::make();
    let line = format!(
        "echo $$ > {}/{} && exec {BINARY} qualify --plan {} --out {}",
        group.folder.display(),
        group.members,
        plan.display(),
        out.display()
    );
    let run = finish(Command::new("sh").args(["-c", &line]));
    drop(group);
    assert_eq!(run.code, 1, "{}{}", run.stdout, run.stderr);
    let result = json(&out.join("result.json"));
    let verdict = verdict_of(&result, "no limit of CPU time");
    assert_eq!(verdict["outcome"], "fail", "{verdict}");
    assert_eq!(result["machine"]["quota"], "50000 100000");
    let last = run.stdout.rsplit("\n\n").next().unwrap().replace("\n  ", " ");
    let start = "FAIL: the control group's limit of CPU time (`50000 100000`";
    assert!(last.starts_with(start), "{last}");
}
