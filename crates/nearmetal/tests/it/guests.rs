//! Pairs of virtual machines. The tests have every probe between them and the label of their
//! figures. They show what is left of them in six cases: success, a failed probe, a panic of the
//! guest. The others are a killed QEMU, a killed run, and Ctrl-C.
//!
//! They need QEMU and a kernel for guests (`cargo xtask setup`). Without them the tests fail on CI,
//! and say elsewhere that they did not run.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::Duration;

use nm_sys::clock::Deadline;
use nm_test_support::skip::can_run;
use serde_json::Value;

use crate::support::{
    Run, Running, command, json, processes, root, run, signal, so_far, wait_gone,
};

const QEMU: &str = "qemu-system-x86_64";

/// The kernel of guests, for the binary and for these tests.
const KERNEL_VARIABLE: &str = "NEARMETAL_GUEST_KERNEL";

/// An emulated guest boots for half a minute on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// Two guests at a time: more would take each other's time, and each test looks for what others
/// would have left.
fn alone() -> MutexGuard<'static, ()> {
    static RUNNING: Mutex<()> = Mutex::new(());
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a run is given: the kernel of its guests, and a folder for everything temporary.
struct Lab {
    folder: tempfile::TempDir,
    kernel: PathBuf,
    _alone: MutexGuard<'static, ()>,
}

impl Lab {
    /// None if this machine cannot run guests.
    fn new() -> Option<Lab> {
        let alone = alone();
        let fetched = root().join("target/guest-kernel");
        let kernel = match std::env::var_os(KERNEL_VARIABLE) {
            Some(path) => PathBuf::from(path),
            None => fetched,
        };
        let has_qemu = Command::new(QEMU).arg("--version").output().is_ok();
        if !has_qemu || !kernel.exists() {
            can_run(false, &format!("needs {QEMU} and {} (cargo xtask setup)", kernel.display()));
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("tmp")).unwrap();
        Some(Lab { folder, kernel, _alone: alone })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `qualify` with a plan of these trials; the result is in `out`.
    fn qualify(&self, trials: &str) -> Command {
        let plan = self.path("guests.toml");
        let guests = "[guests]\nexecution = \"tcg\"\nmemory_mib = 384\n";
        fs::write(&plan, format!("name = \"guests\"\nrounds = 1\n{trials}\n{guests}")).unwrap();
        let (plan, out) = (plan.display().to_string(), self.path("out").display().to_string());
        let mut command = command(&["qualify", "--plan", &plan, "--out", &out]);
        command.env(KERNEL_VARIABLE, &self.kernel).env("TMPDIR", self.path("tmp"));
        command
    }

    fn result(&self) -> Value {
        json(&self.path("out/result.json"))
    }

    /// That nothing is left of a run and of its guests.
    fn assert_nothing_left(&self, guests: &[u32]) {
        wait_gone(guests);
        let left: Vec<_> = fs::read_dir(self.path("tmp")).unwrap().flatten().collect();
        assert!(left.is_empty(), "{left:?}");
        let shared = fs::read_dir("/dev/shm").unwrap().flatten().map(|one| one.file_name());
        let ours: Vec<_> =
            shared.filter(|name| name.to_string_lossy().contains("nearmetal-guest")).collect();
        assert!(ours.is_empty(), "{ours:?}");
        let links = fs::read_to_string("/proc/net/dev").unwrap();
        assert!(!links.contains("nm-port") && !links.contains("nm-bridge"), "{links}");
        wait_long("the end of the guests' memory", || holders_of_memory().is_empty().then_some(()));
    }
}

/// As `support::wait_for`, for what guests do.
fn wait_long<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let limit = Deadline::after(PATIENCE);
    while !limit.passed() {
        if let Some(found) = found() {
            return found;
        }
        sleep(Duration::from_millis(50));
    }
    panic!("waited in vain for {what}");
}

/// Processes of QEMU that a run has started.
fn guests_of(pid: u32) -> Vec<u32> {
    let is_guest = |words: &[String]| words.iter().any(|word| word.contains("debug-threads=on"));
    let all = processes().into_iter();
    all.filter(|one| one.parent == pid && is_guest(&one.words)).map(|one| one.pid).collect()
}

/// Processes with a descriptor of the memory that guests are made of.
fn holders_of_memory() -> Vec<String> {
    let holds = |pid: u32| {
        let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
        files.flatten().any(|file| {
            fs::read_link(file.path()).is_ok_and(|to| {
                let to = to.to_string_lossy().into_owned();
                to.contains("nearmetal-image") || to.contains("nearmetal-guests")
            })
        })
    };
    let all = processes().into_iter().filter(|one| holds(one.pid));
    all.map(|one| format!("{}: {}", one.pid, one.words.join(" "))).collect()
}

/// Both guests of a run, once it has a result of theirs.
fn measuring(lab: &Lab, run: &Running) -> Vec<u32> {
    let out = lab.path("out");
    let has_rounds = || {
        let result = so_far(&out)?;
        (!result["series"].as_array()?.is_empty()).then_some(())
    };
    wait_long("the first result", has_rounds);
    let guests = guests_of(run.pid());
    assert_eq!(guests.len(), 2);
    guests
}

fn finished(run: &mut Command) -> Run {
    crate::support::finish(run)
}

fn trials(environment: &str, stacks: &str, probe: &str) -> String {
    format!("[[trials]]\nenvironments = [\"{environment}\"]\nstacks = {stacks}\nprobe = {probe}\n")
}

const SHORT_PINGPONG: &str = "\"pingpong\"\nsizes = [64]\nmax_ms = 100\nmin_iterations = 10\n\
     warmup_ms = 5\ntimeout_ms = 10000";

#[test]
fn every_probe_runs_between_two_guests_on_a_wire() {
    let Some(lab) = Lab::new() else { return };
    let of = |stacks: &str, probe: &str| trials("vm-wire", stacks, probe);
    let plan = [
        of(
            r#"["tcp-spin", "udp-blocking", "shm-spin", "xdp-spin", "xdp-tcp-spin"]"#,
            SHORT_PINGPONG,
        ),
        of(r#"["tcp-blocking"]"#, "\"stream\"\nseconds = 0.3\nomit_ms = 10\nmax_cv_percent = 99"),
        of(
            r#"["tcp-blocking"]"#,
            "\"rr\"\nrate_per_s = 50.0\nseconds = 0.3\nwarmup_ms = 10\ndeadline_ms = 10000",
        ),
        of(r#"["cpu-spin"]"#, "\"compute\"\nlayouts = [\"1x1\"]\nrepeats = 1"),
        of(r#"["cpu-spin"]"#, "\"jitter\"\nseconds = 0.3"),
        "[[targets]]\nrequire = \"median < 1000s\"\n".to_string(),
    ];
    let run = finished(&mut lab.qualify(&plan.concat()));
    assert_eq!(run.code, 3, "emulated guests pass nothing: {}{}", run.stdout, run.stderr);
    let result = lab.result();
    let series = result["series"].as_array().unwrap();
    let probes: Vec<&str> =
        series.iter().map(|one| one["key"]["probe"].as_str().unwrap()).collect();
    for probe in ["pingpong", "stream", "rr", "compute", "jitter"] {
        assert!(probes.contains(&probe), "{probe}: {} {}", result["failures"], run.stderr);
    }
    assert_eq!(result["failures"].as_array().unwrap().len(), 0, "{}", result["failures"]);
    for stack in ["xdp-spin", "xdp-tcp-spin"] {
        let found = series.iter().find(|one| one["key"]["stack"] == stack).expect(stack);
        assert_eq!(found["comparability"]["bypass"], "xdp", "{found}");
    }
    let cores = std::thread::available_parallelism().unwrap().get();
    for one in series {
        assert_eq!(one["comparability"]["execution"], "tcg", "{}", one["key"]);
        let doubts = one["rounds"][0]["doubts"].to_string();
        assert!(doubts.contains("emulated"), "{doubts}");
        if one["key"]["stack"] == "tcp-spin" && cores < 3 {
            assert_eq!(one["comparability"]["mode"], "blocking");
            assert!(doubts.contains("core-budget"), "{doubts}");
        }
    }
    let guests = &result["guests"][0];
    assert_eq!((&guests["environment"], &guests["execution"]), (&"vm-wire".into(), &"tcg".into()));
    assert_eq!((&guests["machine"], &guests["memory_mib"]), (&"q35".into(), &384.into()));
    assert_eq!(guests["program_sha256"].as_str().unwrap().len(), 64);
    let findings = guests["findings"].as_array().unwrap();
    let pinned = findings.iter().find(|finding| finding["id"] == "guests.pin").unwrap();
    assert!(pinned["status"] == "fail" || pinned["status"] == "pass", "{pinned}");
    let (ready, first) = (&guests["boot_ms"], &guests["first_result_ms"]);
    println!("ready after {ready} ms, first result after {first} ms");
    assert!(ready.as_u64().unwrap() < first.as_u64().unwrap(), "{guests}");
    let client = crate::support::facts(&result, "vm-wire", "client");
    let server = crate::support::facts(&result, "vm-wire", "server");
    assert_ne!(client["host"]["boot_id"], server["host"]["boot_id"], "two kernels");
    lab.assert_nothing_left(&[]);
}

#[test]
fn plan_can_leave_out_rows_of_emulated_guests() {
    let Some(lab) = Lab::new() else { return };
    let block = trials("vm-wire", r#"["udp-blocking"]"#, SHORT_PINGPONG);
    let plan = lab.path("guests.toml");
    for (allowed, is_left_out) in [(true, false), (false, true)] {
        let guests = format!("[guests]\nexecution = \"tcg\"\nemulation_allowed = {allowed}\n");
        fs::write(&plan, format!("name = \"guests\"\n{block}{guests}")).unwrap();
        let mut command = command(&["qualify", "--dry-run", "--plan", plan.to_str().unwrap()]);
        let run = finished(command.env(KERNEL_VARIABLE, &lab.kernel));
        assert_eq!(run.code, 0, "{}", run.stderr);
        let reason = "not available: guests would be emulated here";
        assert_eq!(run.stdout.contains(reason), is_left_out, "{}", run.stdout);
    }
}

#[test]
fn failed_probe_over_a_virtual_switch_leaves_nothing() {
    let Some(lab) = Lab::new() else { return };
    let plan = [trials("vm-vswitch", r#"["udp-blocking"]"#, SHORT_PINGPONG), failing("vm-vswitch")];
    let run = finished(&mut lab.qualify(&plan.concat()));
    let result = lab.result();
    let failures = result["failures"].as_array().unwrap();
    assert_eq!(failures.len(), 1, "{failures:?} {}", run.stderr);
    assert_eq!(failures[0]["row"]["probe"], "stream");
    assert_eq!(result["series"][0]["key"]["environment"], "vm-vswitch");
    assert_eq!(result["series"][0]["comparability"]["execution"], "tcg");
    lab.assert_nothing_left(&[]);
}

#[test]
fn two_pairs_on_a_switch_have_a_figure_each_and_a_sum() {
    let Some(lab) = Lab::new() else { return };
    let stream = "\"stream\"\npatterns = [\"1-uni-1\", \"4-bi-4\"]\nseconds = 0.5\nomit_ms = 50\n\
                  max_cv_percent = 99";
    let plan = [
        trials("vm-vswitch", r#"["udp-blocking"]"#, SHORT_PINGPONG),
        trials("vm-vswitch", r#"["tcp-blocking"]"#, stream),
    ];
    let mut qualify = lab.qualify(&plan.concat());
    let file = lab.path("guests.toml");
    let text = fs::read_to_string(&file).unwrap().replace("384", "320\npairs = 2");
    fs::write(&file, text).unwrap();
    let run = finished(&mut qualify);
    let result = lab.result();
    assert_eq!(
        result["failures"].as_array().unwrap().len(),
        0,
        "{} {}",
        result["failures"],
        run.stderr
    );
    let series = result["series"].as_array().unwrap();
    let of = |probe: &str| series.iter().find(|one| one["key"]["probe"] == probe).unwrap();
    let layer = |probe: &str| of(probe)["comparability"]["layer"].as_str().unwrap();
    assert_eq!(layer("pingpong"), "guests over a virtual switch");
    assert_eq!(layer("stream"), "2 pairs of guests over a virtual switch");
    let round = &of("stream")["rounds"][0]["data"];
    let flows = round["flows"].as_array().unwrap();
    let ends: Vec<_> = flows.iter().map(|flow| (&flow["pair"], &flow["sender"])).collect();
    let end = |pair: u32, side: &str| (Value::from(pair), Value::from(side));
    let expected = [end(1, "client"), end(1, "server"), end(2, "client"), end(2, "server")];
    assert_eq!(ends, expected.iter().map(|(pair, side)| (pair, side)).collect::<Vec<_>>());
    let gbps: Vec<f64> = flows.iter().map(|flow| flow["gbps"].as_f64().unwrap()).collect();
    assert!(gbps.iter().all(|gbps| *gbps > 0.0), "{gbps:?}");
    let total = round["total_gbps"].as_f64().unwrap();
    assert!((total - gbps.iter().sum::<f64>()).abs() < 1e-9 * total, "{total}: {gbps:?}");
    let case = "not available: vm-vswitch/tcp-blocking stream 1-uni-1, 131072 B writes";
    let undivided = &result["notes"][case];
    assert!(undivided.as_str().is_some_and(|why| why.contains("2 pairs")), "{}", result["notes"]);
    let guests = &result["guests"][0];
    assert_eq!((&guests["pairs"], &guests["memory_mib"]), (&2.into(), &320.into()));
    let logs = fs::read_dir(lab.path("out")).unwrap().flatten().map(|one| one.file_name());
    assert_eq!(logs.filter(|name| name.to_string_lossy().ends_with(".log")).count(), 4);
    lab.assert_nothing_left(&[]);
}

#[test]
fn panic_of_a_guest_is_reported_and_leaves_nothing() {
    let Some(lab) = Lab::new() else { return };
    // The real QEMU, with a kernel that finds neither a program nor a disk.
    let folder = lab.path("programs");
    fs::create_dir(&folder).unwrap();
    let path = std::env::var("PATH").unwrap();
    let real = std::env::split_paths(&path).map(|one| one.join(QEMU)).find(|one| one.is_file());
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in\n*-append*) set -- \"$@\" -append \
         'console=ttyS0 quiet panic=-1 rdinit=/none-such' ;;\nesac\nexec {} \"$@\"\n",
        real.unwrap().display()
    );
    let program = folder.join(QEMU);
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let mut qualify = lab.qualify(&trials("vm-wire", r#"["udp-blocking"]"#, SHORT_PINGPONG));
    qualify.env("PATH", format!("{}:{path}", folder.display()));
    let run = finished(&mut qualify);
    assert_eq!(run.code, 4, "{}{}", run.stdout, run.stderr);
    let reason = lab.result()["not_available"][0]["reason"].to_string();
    assert!(reason.contains("of vm-wire ended with exit code 0"), "{reason}");
    let logs = ["client", "server"].map(|side| {
        fs::read_to_string(lab.path(&format!("out/agent-vm-wire-{side}.log"))).unwrap_or_default()
    });
    assert!(logs.iter().any(|log| log.contains("Kernel panic")), "{logs:?}");
    lab.assert_nothing_left(&[]);
}

/// A run that goes on until somebody ends it.
fn endless(lab: &Lab, environment: &str) -> Running {
    let short = trials(environment, r#"["udp-blocking"]"#, SHORT_PINGPONG);
    let long = trials(environment, r#"["cpu-spin"]"#, "\"jitter\"\nseconds = 3000");
    Running(lab.qualify(&(short + &long)).spawn().unwrap())
}

/// A trial that fails at once: no guest has that algorithm.
fn failing(environment: &str) -> String {
    let probe = "\"stream\"\nseconds = 0.3\ncongestion = \"none-such\"";
    trials(environment, r#"["tcp-blocking"]"#, probe)
}

#[test]
fn guests_without_any_result_are_recorded() {
    let Some(lab) = Lab::new() else { return };
    let run = finished(&mut lab.qualify(&failing("vm-wire")));
    let result = lab.result();
    assert_eq!(result["series"].as_array().unwrap().len(), 0, "{}", run.stderr);
    assert_eq!(result["failures"][0]["row"]["probe"], "stream");
    let guests = &result["guests"][0];
    assert_eq!((&guests["environment"], &guests["execution"]), (&"vm-wire".into(), &"tcg".into()));
    assert!(guests["boot_ms"].as_u64().unwrap() > 0, "{guests}");
    assert!(guests.get("first_result_ms").is_none(), "{guests}");
    let client = crate::support::facts(&result, "vm-wire", "client");
    assert!(client["host"]["kernel"].is_string(), "{client}");
    lab.assert_nothing_left(&[]);
}

#[test]
fn killed_qemu_fails_its_trial_and_leaves_nothing() {
    let Some(lab) = Lab::new() else { return };
    let running = endless(&lab, "vm-wire");
    let guests = measuring(&lab, &running);
    signal("KILL", guests[0]);
    let run = running.finish();
    let result = lab.result();
    let failures = &result["failures"];
    assert_eq!(failures[0]["row"]["probe"], "jitter", "{failures} {}", run.stderr);
    assert!(failures[0]["reason"].as_str().unwrap().contains("signal 9"), "{failures}");
    lab.assert_nothing_left(&guests);
}

#[test]
fn ctrl_c_ends_guests() {
    let Some(lab) = Lab::new() else { return };
    let running = endless(&lab, "vm-vswitch");
    let guests = measuring(&lab, &running);
    signal("INT", running.pid());
    let run = running.finish();
    assert_eq!(run.code, 130, "{}{}", run.stdout, run.stderr);
    assert_eq!(lab.result()["state"], "interrupted");
    lab.assert_nothing_left(&guests);
}

#[test]
fn ctrl_c_ends_guests_that_still_boot() {
    let Some(lab) = Lab::new() else { return };
    let running = endless(&lab, "vm-vswitch");
    let guests = wait_long("two guests", || {
        let guests = guests_of(running.pid());
        (guests.len() == 2).then_some(guests)
    });
    // They never come up, so the run ends by the signal or not at all.
    for guest in &guests {
        signal("STOP", *guest);
    }
    signal("INT", running.pid());
    let run = running.finish();
    assert_eq!(run.code, 130, "{}{}", run.stdout, run.stderr);
    assert_eq!(lab.result()["state"], "interrupted");
    lab.assert_nothing_left(&guests);
}

#[test]
fn killed_run_leaves_no_guest() {
    let Some(lab) = Lab::new() else { return };
    let running = endless(&lab, "vm-vswitch");
    let guests = wait_long("two guests", || {
        let guests = guests_of(running.pid());
        (guests.len() == 2).then_some(guests)
    });
    signal("KILL", running.pid());
    drop(running);
    // A process of its own removes its files.
    wait_long("the end of its files", || {
        (fs::read_dir(lab.path("tmp")).unwrap().count() == 0).then_some(())
    });
    lab.assert_nothing_left(&guests);
}

#[test]
fn image_is_listed_and_is_the_same_each_time() {
    let Some(lab) = Lab::new() else { return };
    let list = || {
        let kernel = lab.kernel.display().to_string();
        let run = run(&["lab", "image", "--list", "--kernel", &kernel, "--format", "json"]);
        assert_eq!(run.code, 0, "{}", run.stderr);
        run.stdout
    };
    let (first, second) = (list(), list());
    assert_eq!(first, second);
    let listed: Value = serde_json::from_str(&first).unwrap();
    let files = listed["files"].as_array().unwrap();
    assert!(files.iter().any(|file| file["path"] == "/init"), "{first}");
}

#[test]
fn numbers_beyond_their_limits_and_missing_kernels_are_one_sentence() {
    for (words, part) in [
        (&["--memory-mib", "1"][..], "--memory-mib"),
        (&["--guest-cpus", "65"], "cpus"),
        (&["--pairs", "0"], "pairs"),
        (&["--pairs", "9"], "pairs"),
        (&["--seconds", "0"], "seconds"),
        (&["--execution", "fast"], "execution of guests"),
    ] {
        let run = run(&[&["lab", "run", "--env", "bare"], words].concat());
        assert_eq!(run.code, 2, "{words:?}: {}{}", run.stdout, run.stderr);
        assert!(run.stderr.contains(part), "{words:?}: {}", run.stderr);
    }
    let missing = Path::new("/nothing/of/this/name").display().to_string();
    let run = run(&["lab", "run", "--env", "wire", "--kernel", &missing]);
    assert_eq!((run.code, run.errors().len()), (4, 1), "{}", run.stderr);
    assert!(run.stderr.contains("QEMU is not installed") || run.stderr.contains(&missing));
}
