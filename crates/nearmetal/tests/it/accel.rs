//! `nearmetal accel` as its users meet it: programs started under it, their exit, the report, the
//! status, and the rows of `qualify`.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::programs::need;
use crate::support::{
    BINARY, Run, Running, accelerator, command, copy_program, descends, facts, finish, free_port,
    json, listens, plan_of, run, setting, signal, so_far, wait_for, wait_gone,
};

/// `nearmetal accel` with `words`, once its library is built.
fn accel(words: &[&str]) -> Command {
    accelerator();
    command(&[&["accel"], words].concat())
}

/// The exit report among what was written to stderr: the last JSON object.
fn report(run: &Run) -> Value {
    let start = run.stderr.rfind("\n{").map_or(0, |at| at + 1);
    serde_json::from_str(&run.stderr[start..]).unwrap_or_else(|e| panic!("{e}: {}", run.stderr))
}

/// Words of a stand-alone server that ends after one client.
fn server(port: &str) -> [&str; 8] {
    [BINARY, "pingpong", "server", "--bind", "127.0.0.1", "--once", "--port", port]
}

/// Words of its client; `ms` of one message size.
fn client<'a>(port: &'a str, ms: &'a str) -> [&'a str; 14] {
    let sizes = ["--sizes", "64", "--maxms", ms, "--miniter", "20", "--timeout", "10000"];
    let [a, b, c, d, e, f, g, h] = sizes;
    [BINARY, "pingpong", "tcp", "127.0.0.1", "--port", port, a, b, c, d, e, f, g, h]
}

fn start(words: &[&str]) -> Running {
    Running(accel(words).spawn().expect("the binary starts"))
}

/// A server under the accelerator that listens.
fn accelerated_server(port: u16, options: &[&str]) -> Running {
    let text = port.to_string();
    let running = start(&[options, &server(&text)].concat());
    wait_for("the server", || listens(port).then_some(()));
    running
}

/// A program that makes two system calls: it exits with code 5. No loader, no library.
fn static_program(folder: &Path) -> PathBuf {
    let (machine, code): (u8, &[u8]) = match std::env::consts::ARCH {
        // mov edi, 5; mov eax, 60; syscall
        "x86_64" => (62, &[0xbf, 5, 0, 0, 0, 0xb8, 60, 0, 0, 0, 0x0f, 0x05]),
        // mov x0, #5; mov x8, #93; svc #0
        "aarch64" => (183, &[0xa0, 0, 0x80, 0xd2, 0xa8, 0x0b, 0x80, 0xd2, 1, 0, 0, 0xd4]),
        other => panic!("this test has no program for {other}"),
    };
    let mut file = vec![0_u8; 120];
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"\x7fELF\x02\x01\x01");
    put(16, &[2, 0, machine, 0, 1]);
    put(24, &0x40_0078_u64.to_le_bytes());
    put(32, &64_u64.to_le_bytes());
    put(52, &[64, 0, 56, 0, 1]);
    put(64, &[1, 0, 0, 0, 5]);
    put(80, &0x40_0000_u64.to_le_bytes());
    put(88, &0x40_0000_u64.to_le_bytes());
    put(96, &132_u64.to_le_bytes());
    put(104, &132_u64.to_le_bytes());
    put(112, &0x1000_u64.to_le_bytes());
    file.extend(code);
    program(folder, "static", &file)
}

fn program(folder: &Path, name: &str, content: &[u8]) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, content).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn exit_status_is_that_of_the_program() {
    for options in [&[][..], &["--stats"]] {
        let code = |words: &[&str]| finish(&mut accel(&[options, words].concat())).code;
        assert_eq!(code(&["true"]), 0);
        assert_eq!(code(&["sh", "-c", "exit 7"]), 7);
        assert_eq!(code(&["--", "sh", "-c", "exit 8"]), 8);
        assert_eq!(code(&["no-program-of-this-name"]), 127);
        assert_eq!(code(&["/etc/passwd"]), 126);
        assert_eq!(code(&["--", "status"]), 127, "a program, not the subcommand");
    }
    let killed = finish(&mut accel(&["--stats", "sh", "-c", "kill -TERM $$"]));
    assert_eq!(killed.code, 128 + 15);
    let status = accel(&["sh", "-c", "kill -TERM $$"]).status().unwrap();
    assert_eq!(status.signal(), Some(15), "without --stats the program takes this one's place");
    assert_eq!(finish(&mut accel(&[])).code, 2);
}

#[test]
fn preloaded_libraries_are_kept() {
    let mut command = accel(&["sh", "-c", "echo $LD_PRELOAD $NEARMETAL_ACCEL_SPIN_US"]);
    let run = finish(command.env("LD_PRELOAD", "libc.so.6"));
    assert!(run.stdout.trim().ends_with("/libnm_accel.so:libc.so.6"), "{}", run.stdout);
    let run = finish(&mut accel(&["--spin-us", "0", "sh", "-c", "echo $NEARMETAL_ACCEL_SPIN_US"]));
    assert_eq!(run.stdout, "0\n");
}

#[test]
fn a_missing_library_is_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let alone = folder.path().join("nearmetal");
    copy_program(BINARY, &alone);
    let run = finish(Command::new(&alone).args(["accel", "true"]));
    assert_eq!(run.code, 4, "{}", run.stderr);
    let place = folder.path().canonicalize().unwrap();
    let first = format!("libnm_accel.so is in none of the folders {}, ", place.display());
    for part in [
        first.as_str(),
        ", /usr/lib/nearmetal, /usr/local/lib/nearmetal; ",
        "install nearmetal's package",
        "`cargo build --release -p nm-accel`",
    ] {
        assert!(run.stderr.contains(part), "{part}: {}", run.stderr);
    }
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
}

#[test]
fn program_that_cannot_be_accelerated_runs_with_a_message() {
    let folder = tempfile::tempdir().unwrap();
    let path = static_program(folder.path());
    let script = program(folder.path(), "script", format!("#!{}\n", path.display()).as_bytes());
    for path in [&path, &script] {
        let run = finish(&mut accel(&[path.to_str().unwrap()]));
        assert_eq!(run.code, 5);
        assert!(run.stderr.contains("linked statically"), "{}", run.stderr);
        assert!(run.stderr.trim_end().ends_with("it runs on the kernel"), "{}", run.stderr);
    }
    let script = program(folder.path(), "shell", b"#!/bin/sh\nexit 9\n");
    let run = finish(&mut accel(&[script.to_str().unwrap()]));
    assert_eq!((run.code, run.stderr.as_str()), (9, ""));
}

#[test]
fn signals_are_forwarded() {
    let text = "trap 'exit 33' USR1; echo ready; while :; do sleep 0.02; done";
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("output");
    let mut command = accel(&["--stats", "sh", "-c", text]);
    command.stdout(fs::File::create(&output).unwrap());
    let running = Running(command.spawn().unwrap());
    wait_for("the trap", || (fs::read_to_string(&output).ok()? == "ready\n").then_some(()));
    signal("USR1", running.pid());
    assert_eq!(running.finish().code, 33);
}

/// Two of our programs with a connection, until the status shows both of its ends in shared memory:
/// what server, client and a table of the status left. None if they ended before that.
fn pair_with_status() -> Option<[Run; 3]> {
    let port = free_port();
    let text = port.to_string();
    let server = accelerated_server(port, &["--stats", "--format", "json"]);
    let mut client = start(&[&["--stats"], &client(&text, "3000")[..]].concat());
    let ours = [server.pid(), client.pid()];
    let is_shown = || {
        let status = run(&["accel", "status", "--format", "json"]);
        assert_eq!(status.code, 0, "{}", status.stderr);
        let status: Value = serde_json::from_str(&status.stdout).unwrap();
        let rows = status["connections"].as_array().unwrap().clone();
        let of_ours = |row: &&Value| {
            let busy = row["sent"]["memory_calls"].as_u64() > Some(100);
            // Other tests have connections of their own.
            let own = descends(row["pid"].as_u64().unwrap_or(0) as u32, &ours);
            busy && own && row["place"] == "shared memory" && row["program"] == "nearmetal"
        };
        let found: Vec<Value> = rows.iter().filter(of_ours).cloned().collect();
        // On a busy machine an end may be on the kernel for a moment.
        let is_pair =
            |a: &Value| found.iter().any(|b| a["local"] == b["peer"] && a["why"].is_null());
        found.iter().any(is_pair)
    };
    let is_seen = wait_for("a connection in shared memory, or its end", || {
        let has_ended = client.0.try_wait().unwrap().is_some();
        let is_seen = is_shown();
        (is_seen || has_ended).then_some(is_seen)
    });
    is_seen.then(|| {
        let table = run(&["accel", "status"]);
        [server.finish(), client.finish(), table]
    })
}

#[test]
fn status_and_report_show_a_connection_in_shared_memory() {
    // On a busy machine the programs may have ended before both ends are in shared memory.
    let ended = (0..5).find_map(|_| pair_with_status());
    let [server, client, table] = ended.expect("a connection in shared memory");
    // Connections of other programs may make the table so wide that it breaks "shared memory".
    let has_both = ["shared", "memory"].iter().all(|word| table.stdout.contains(word));
    assert!(has_both, "{}", table.stdout);
    assert_eq!(client.code, 0, "{}{}", client.stdout, client.stderr);
    assert!(client.stderr.contains(" in shared memory ("), "{}", client.stderr);
    assert_eq!(server.code, 0, "{}", server.stderr);
    let report = report(&server);
    let sockets = report["sockets"].as_array().unwrap();
    let busiest = sockets.iter().max_by_key(|row| row["sent"]["memory_calls"].as_u64()).unwrap();
    assert_eq!(busiest["place"], "shared memory", "{busiest}");
    let calls = |kind: &str| busiest["sent"][kind].as_u64().unwrap();
    // How many go through the kernel depends on how often the peer was kept waiting.
    assert!(calls("memory_calls") > 100, "{busiest}");
    assert!(report["share_in_memory"].as_f64().unwrap() > 0.1, "{report}");
}

#[test]
fn a_policy_keeps_programs_on_the_kernel() {
    let folder = tempfile::tempdir().unwrap();
    let policy = folder.path().join("policy.toml");
    fs::write(&policy, "[[rules]]\naction = \"deny\"\nprograms = [\"near*\"]\n").unwrap();
    let port = free_port();
    let text = port.to_string();
    let server = accelerated_server(port, &[]);
    let options = ["--stats", "--format", "json", "--policy", policy.to_str().unwrap()];
    let client = finish(&mut accel(&[&options, &client(&text, "50")[..]].concat()));
    assert_eq!(client.code, 0, "{}", client.stderr);
    assert_eq!(server.finish().code, 0);
    let report = report(&client);
    let sockets = report["sockets"].as_array().unwrap();
    assert!(!sockets.is_empty());
    for socket in sockets {
        assert_eq!(socket["place"], "kernel", "{socket}");
        assert_eq!(socket["why"], "excluded by the policy", "{socket}");
    }
    assert_eq!(report["moved"], 0);

    fs::write(&policy, "[[rules]]\naction = \"deny\"\nports = [\"9-8\"]\n").unwrap();
    let bad = finish(&mut accel(&["--policy", policy.to_str().unwrap(), "true"]));
    assert_eq!(bad.code, 2);
    assert!(bad.stderr.contains("policy.toml, line 3: `9-8` is not a range"), "{}", bad.stderr);
}

/// The sockets of a report that have carried data.
fn used_sockets(report: &Value) -> Vec<Value> {
    let sockets = report["sockets"].as_array().unwrap();
    sockets.iter().filter(|it| it["sent"]["kernel_calls"] != 0).cloned().collect()
}

#[test]
fn a_refusal_is_named_at_the_other_end() {
    let folder = tempfile::tempdir().unwrap();
    let policy = folder.path().join("policy.toml");
    fs::write(&policy, "[[rules]]\naction = \"deny\"\nprograms = [\"near*\"]\n").unwrap();
    let refusing = ["--policy", policy.to_str().unwrap()];
    let with_report = ["--stats", "--format", "json"];
    let reasons = |refused_by_server: bool| {
        let port = free_port();
        let text = port.to_string();
        let (of_server, of_client) = match refused_by_server {
            true => (&refusing[..], &with_report[..]),
            false => (&with_report[..], &refusing[..]),
        };
        let server = accelerated_server(port, of_server);
        let client = finish(&mut accel(&[of_client, &client(&text, "200")[..]].concat()));
        let server = server.finish();
        assert_eq!((client.code, server.code), (0, 0), "{}{}", client.stderr, server.stderr);
        let report = report(if refused_by_server { &client } else { &server });
        let used = used_sockets(&report);
        assert!(!used.is_empty(), "{report}");
        let reasons = used.iter().filter_map(|it| it["why"].as_str());
        reasons.map(str::to_string).collect::<Vec<_>>()
    };
    for refused_by_server in [true, false] {
        // On a busy machine the programs may have ended before the ends know of each other.
        let expected = "at the peer: excluded by the policy".to_string();
        let mut tried = vec![];
        for _ in 0..5 {
            if !tried.contains(&expected) {
                tried.extend(reasons(refused_by_server));
            }
        }
        assert!(tried.contains(&expected), "{tried:?}");
    }
}

#[test]
fn ends_of_two_users_stay_on_the_kernel_and_both_reports_say_why() {
    accelerator();
    // The other user may not read what root's process has open, and gets copies of the programs.
    let folder = tempfile::tempdir().unwrap();
    let library = Path::new(BINARY).with_file_name("libnm_accel.so");
    let (binary, preloaded) =
        (folder.path().join("nearmetal"), folder.path().join("libnm_accel.so"));
    copy_program(BINARY, &binary);
    fs::copy(&library, &preloaded).unwrap();
    for path in [folder.path(), &binary, &preloaded] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let with_report = ["--stats", "--format", "json"];
    let reasons = |run: &Run| {
        let used = used_sockets(&report(run));
        let moved = report(run)["moved"].clone();
        assert_eq!(moved, 0, "{}", run.stderr);
        used.iter().filter_map(|it| it["why"].as_str().map(str::to_string)).collect::<Vec<_>>()
    };
    let expected = "the peer belongs to another user".to_string();
    let mut tried = vec![];
    for _ in 0..5 {
        let port = free_port();
        let text = port.to_string();
        let server = accelerated_server(port, &with_report);
        let words = client(&text, "200");
        let mut other = Command::new("setpriv");
        other.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        other.arg(&binary).arg("accel").args(with_report).arg(&binary).args(&words[1..]);
        let client = finish(other.current_dir(folder.path()).env("TMPDIR", "/tmp"));
        let server = server.finish();
        assert_eq!((client.code, server.code), (0, 0), "{}{}", client.stderr, server.stderr);
        tried = vec![reasons(&client), reasons(&server)];
        // On a busy machine the programs may have ended before the ends know of each other.
        if tried.iter().all(|reasons| reasons.contains(&expected)) {
            return;
        }
    }
    panic!("{tried:?}");
}

#[test]
fn ends_of_one_user_share_memory_also_if_only_one_names_a_group() {
    let moved = || {
        let port = free_port();
        let text = port.to_string();
        let server = accelerated_server(port, &["--group", "daemon"]);
        let with_report = ["--stats", "--format", "json"];
        let client = finish(&mut accel(&[&with_report[..], &client(&text, "200")].concat()));
        let server = server.finish();
        assert_eq!((client.code, server.code), (0, 0), "{}{}", client.stderr, server.stderr);
        report(&client)["moved"].as_u64().unwrap()
    };
    // On a busy machine the programs may have ended before the ends know of each other.
    assert!((0..5).any(|_| moved() > 0));
}

#[test]
fn connections_beyond_the_limit_stay_on_the_kernel_with_the_reason() {
    let port = free_port();
    let text = port.to_string();
    let server = accelerated_server(port, &[]);
    let options = ["--stats", "--format", "json", "--connections-max", "0"];
    let client = finish(&mut accel(&[&options, &client(&text, "200")[..]].concat()));
    assert_eq!((client.code, server.finish().code), (0, 0), "{}", client.stderr);
    let report = report(&client);
    assert_eq!(report["moved"], 0, "{report}");
    let why = "as many connections are in shared memory as the limit allows";
    assert!(used_sockets(&report).iter().any(|it| it["why"] == why), "{report}");
}

/// Both ends of as many connections, which carry three bytes each.
const SHORT_CONNECTIONS: &str = "
import socket
listener = socket.create_server(('127.0.0.1', 0))
for _ in range(600):
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
    client.sendall(b'abc')
    assert server.recv(9) == b'abc'
    server.close()
    client.close()
";

#[test]
fn short_connections_beyond_those_listed_are_summed_up() {
    let python = need("python3", "python3").display().to_string();
    let words = ["--stats", "--format", "json", &python, "-c", SHORT_CONNECTIONS];
    let ended = finish(&mut accel(&words));
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let report = report(&ended);
    let listed = report["sockets"].as_array().unwrap();
    let others = &report["not_listed"];
    let count = others["connections"].as_u64().unwrap();
    assert!(listed.len() >= 256 && count > 256, "{} listed, {count} not", listed.len());
    assert_eq!(listed.len() as u64 + count, 1200);
    let sum = |way: &str, kind: &str| {
        let of_listed = listed.iter().map(|row| row[way][kind].as_u64().unwrap());
        of_listed.sum::<u64>() + others[way][kind].as_u64().unwrap()
    };
    for way in ["sent", "received"] {
        assert_eq!((sum(way, "kernel_bytes"), sum(way, "memory_bytes")), (1800, 0), "{way}");
        assert_eq!(sum(way, "kernel_calls"), 600, "{way}");
    }
    assert_eq!(report["share_in_memory"], 0.0);
    let text = finish(&mut accel(&["--stats", &python, "-c", SHORT_CONNECTIONS])).stderr;
    assert!(text.contains("more short connections of"), "{text}");
}

#[test]
fn a_killed_program_is_reported_and_nothing_is_left() {
    let temporary = tempfile::tempdir().unwrap();
    let port = free_port();
    let text = port.to_string();
    let mut command = accel(&[&["--stats", "--format", "json"], &server(&text)[..]].concat());
    command.env("TMPDIR", temporary.path());
    let server = Running(command.spawn().unwrap());
    wait_for("the server", || listens(port).then_some(()));
    let client = start(&client(&text, "20000"));
    let program = wait_for("the server's connection in shared memory", || {
        let status = run(&["accel", "status", "--format", "json"]);
        let status: Value = serde_json::from_str(&status.stdout).unwrap();
        let rows = status["connections"].as_array().unwrap().clone();
        let child = crate::support::processes().into_iter().find(|p| p.parent == server.pid())?;
        let is_busy = |row: &&Value| {
            row["pid"] == child.pid && row["received"]["memory_calls"].as_u64() > Some(100)
        };
        rows.iter().find(is_busy).map(|_| child.pid)
    });
    signal("KILL", program);
    let server = server.finish();
    assert_eq!(server.code, 128 + 9);
    let report = report(&server);
    let busy = |row: &Value| row["received"]["memory_calls"].as_u64() > Some(100);
    assert!(report["sockets"].as_array().unwrap().iter().any(busy), "{report}");
    assert_ne!(client.finish().code, 0, "its peer has gone");
    assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 0);
}

#[test]
fn a_killed_parent_takes_the_program_with_it() {
    let temporary = tempfile::tempdir().unwrap();
    let mut command = accel(&["--stats", "sleep", "1000"]);
    let parent = Running(command.env("TMPDIR", temporary.path()).spawn().unwrap());
    let program = wait_for("the program", || {
        let mut all = crate::support::processes().into_iter();
        all.find(|p| p.parent == parent.pid() && p.words[0] == "sleep").map(|p| p.pid)
    });
    signal("KILL", parent.pid());
    wait_gone(&[program]);
    assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 0);
}

/// Agents under the accelerator, on one loopback link and between namespaces.
#[test]
fn accelerated_rows_record_the_bypass() {
    accelerator();
    let folder = tempfile::tempdir().unwrap();
    let stacks = r#"["accel+tcp-blocking", "accel+tcp-spin", "tcp-blocking"]"#;
    let plan = plan_of(folder.path(), r#"["loopback", "netns"]"#, stacks, 1, 200);
    let out = folder.path().join("out");
    let words = ["qualify", "--only", "accel", "--plan", plan.to_str().unwrap(), "--out"].to_vec();
    let mut qualify = command(&[&words[..], &[out.to_str().unwrap()]].concat());
    let temporary = tempfile::tempdir().unwrap();
    let run = finish(qualify.env("TMPDIR", temporary.path()));
    assert_eq!(run.code, 3, "one round supports no verdict: {}{}", run.stdout, run.stderr);
    let result = json(&out.join("result.json"));
    let series = result["series"].as_array().unwrap();
    let is_excused = |failure: &&Value| is_of_a_busy_machine(failure["reason"].as_str().unwrap());
    let excused = result["failures"].as_array().unwrap().iter().filter(is_excused).count();
    assert_eq!(series.len() + excused, 2 * 2 * 2, "{}", run.stderr);
    assert!(excused <= 2 * 2, "spinning ends are awake: {}", run.stderr);
    let cpus = nm_sys::cpu::allowed().len();
    for series in series {
        assert_eq!(series["comparability"]["bypass"], "accel");
        let accelerator = setting(series, "accelerator").unwrap()["value"].as_str().unwrap();
        assert!(accelerator.starts_with("nearmetal "), "{accelerator}");
    }
    // CPUs that others keep busy give no limit, which single rows may meet.
    let has_limit = |series: &Value| setting(series, "cache-line limit").is_some();
    assert!(series.iter().any(has_limit) || cpus < 2, "{series:?}");
    let variables = &facts(&result, "netns", "client")["variables"];
    assert!(variables["NEARMETAL_ACCEL_SHARE"].is_string(), "{variables}");
    assert!(variables["LD_PRELOAD"].as_str().unwrap().contains("libnm_accel.so"), "{variables}");
    assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 0, "the shared folder");
}

/// Whether a text has a reason why a blocking connection stays on the kernel while others use the
/// CPUs: its ends sleep whenever the other one sends, or too little was sent for a handshake.
fn is_of_a_busy_machine(text: &str) -> bool {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    ["waited in the kernel whenever bytes were sent", "closed before the handshake of both ends"]
        .iter()
        .any(|reason| text.contains(reason))
}

#[test]
fn the_verdict_names_the_accelerator_where_it_needs_least_of_the_machine() {
    accelerator();
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("any.toml");
    let text = "name = 'any'\nrounds = 5\n[[trials]]\nenvironments = ['loopback']\n\
                stacks = ['shm-spin', 'accel+tcp-blocking']\nprobe = 'pingpong'\nsizes = [64]\n\
                max_ms = 200\nmin_iterations = 20\nwarmup_ms = 200\ntimeout_ms = 10000\n\
                [[targets]]\n\
                require = 'median < 1s'\non = 'loopback/*'\nscope = 'any'\n";
    fs::write(&plan, text).unwrap();
    // One that has a failed trial is repeated.
    let (out, run) = (0..5)
        .map(|number| {
            let out = folder.path().join(number.to_string());
            let words = ["qualify", "--plan", plan.to_str().unwrap(), "--out"];
            let run = run(&[&words[..], &[out.to_str().unwrap()]].concat());
            (out, run)
        })
        .find(|(_, run)| !is_of_a_busy_machine(&run.stdout))
        .expect("a run in which both ends met in every round");
    assert_eq!(run.code, 0, "{}{}", run.stdout, run.stderr);
    let sentence = "loopback/accel+tcp-blocking meets it and needs least of the machine";
    let shown = run.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(shown.contains(sentence), "{}", run.stdout);
    let report = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(report.contains(sentence));
}

#[test]
fn a_killed_run_leaves_no_shared_folder() {
    accelerator();
    let folder = tempfile::tempdir().unwrap();
    let stacks = r#"["accel+tcp-blocking"]"#;
    let plan = plan_of(folder.path(), r#"["netns"]"#, stacks, 1000, 1000);
    let out = folder.path().join("out");
    let temporary = tempfile::tempdir().unwrap();
    let words = ["qualify", "--plan", plan.to_str().unwrap(), "--out", out.to_str().unwrap()];
    let qualify = Running(command(&words).env("TMPDIR", temporary.path()).spawn().unwrap());
    let folders = || fs::read_dir(temporary.path()).unwrap().count();
    wait_for("the first round", || so_far(&out).filter(|_| folders() > 0));
    signal("KILL", qualify.pid());
    wait_for("the folder's end", || (folders() == 0).then_some(()));
}

#[test]
fn a_row_that_stays_on_the_kernel_is_refused_with_the_reason() {
    accelerator();
    let folder = tempfile::tempdir().unwrap();
    let plan = plan_of(folder.path(), r#"["loopback"]"#, r#"["accel+tcp-blocking"]"#, 1, 5);
    let out = folder.path().join("out");
    let words = ["qualify", "--plan", plan.to_str().unwrap(), "--out", out.to_str().unwrap()];
    let run = finish(command(&words).env("NEARMETAL_ACCEL_OFF", "1"));
    assert_eq!(run.code, 4, "{}{}", run.stdout, run.stderr);
    let result = json(&out.join("result.json"));
    assert_eq!(result["series"].as_array().unwrap().len(), 0);
    let failure = result["failures"][0]["reason"].as_str().unwrap();
    assert!(failure.contains("stayed on the kernel: acceleration is switched off"), "{failure}");
}

#[test]
fn a_link_to_the_binary_finds_the_library_too() {
    accelerator();
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("nearmetal");
    symlink(BINARY, &link).unwrap();
    assert_eq!(finish(Command::new(&link).args(["accel", "sh", "-c", "exit 3"])).code, 3);
}
