//! What users meet before and after they accelerate a program: `accel explain`, profiles and
//! variables, and reasons in words.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::programs::need;
use crate::support::{
    BINARY, Run, Running, accelerator, command, copy_program, finish, json, root, run, wait_for,
};

/// `nearmetal accel` with `words`, once its library is built.
fn accel(words: &[&str]) -> Command {
    accelerator();
    command(&[&["accel"], words].concat())
}

/// Exit code and JSON of `accel explain` of these words.
fn explain(words: &[&str]) -> (i32, Value) {
    let run = finish(&mut accel(&[&["explain", "--format", "json", "--"], words].concat()));
    let value = serde_json::from_str(&run.stdout);
    (run.code, value.unwrap_or_else(|error| panic!("{error}: {}{}", run.stdout, run.stderr)))
}

/// What `explain` says of what keeps a program on the kernel.
fn reason_of(words: &[&str]) -> String {
    let (code, explanation) = explain(words);
    assert_eq!(code, 4, "{explanation}");
    assert_eq!(explanation["verdict"], "would stay on the kernel");
    let checks = explanation["checks"].as_array().unwrap();
    let found = checks.iter().find(|check| check["bearing"] == "kernel").expect("a reason");
    assert!(found["remedy"].is_string(), "{found}");
    found["found"].as_str().unwrap().to_string()
}

/// A program of C in a folder, compiled with `flags`.
fn compile(folder: &Path, name: &str, flags: &[&str]) -> PathBuf {
    let source = folder.join("program.c");
    fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let program = folder.join(name);
    let mut compiler = Command::new(need("cc", "gcc"));
    let status = compiler.args(flags).arg("-o").arg(&program).arg(&source).status().unwrap();
    assert!(status.success(), "cc {flags:?}");
    program
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn explanation_of_a_dynamic_program_passes_and_fits_the_schema() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), "dynamic", &[]);
    let (code, explanation) = explain(&[text(&program), "--port", "1"]);
    assert_eq!((code, &explanation["verdict"]), (0, &"would be accelerated".into()));
    let schema = json(&root().join("schema/accel-explanation.json"));
    let validator = jsonschema::validator_for(&schema).unwrap();
    assert!(validator.is_valid(&explanation), "{explanation}");
    let limits = explanation["limits"].as_array().unwrap();
    assert!(limits.iter().any(|limit| limit.as_str().unwrap().starts_with("UDP,")), "{limits:?}");
    let shown = finish(&mut accel(&["explain", "--", text(&program)]));
    assert!(shown.stdout.starts_with(&format!("{} would be acc", program.display())));
    // It was not run: nothing but the explanation is in the output.
    let script = folder.path().join("script");
    fs::write(&script, format!("#!/bin/sh\ntouch {}/ran\n", folder.path().display())).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let (code, explanation) = explain(&[text(&script)]);
    assert_eq!(code, 0, "{explanation}");
    let first = &explanation["checks"][0];
    assert_eq!(first["name"], "script", "{first}");
    assert!(first["found"].as_str().unwrap().ends_with("is run by /bin/sh"), "{first}");
    assert!(!folder.path().join("ran").exists());
}

#[test]
fn programs_that_stay_on_the_kernel_are_named_as_such() {
    let folder = tempfile::tempdir().unwrap();
    let name = |name: &str| folder.path().join(name);
    let is_static = compile(folder.path(), "static", &["-static"]);
    assert!(reason_of(&[text(&is_static)]).contains("is linked statically"));

    let dynamic = compile(folder.path(), "dynamic", &[]);
    let bytes = fs::read(&dynamic).unwrap();
    let write = |to: &str, bytes: &[u8]| {
        fs::write(name(to), bytes).unwrap();
        fs::set_permissions(name(to), fs::Permissions::from_mode(0o755)).unwrap();
        name(to)
    };
    // A section of the name that Go's linker gives.
    let mut of_go = bytes.clone();
    let at = bytes.windows(15).rposition(|it| it == b".gnu.version_r\0").unwrap();
    of_go[at..at + 15].copy_from_slice(b".go.buildinfo\0\0");
    assert!(reason_of(&[text(&write("go", &of_go))]).contains("is a Go program"));

    let mut small = bytes.clone();
    small[4] = 1;
    assert!(reason_of(&[text(&write("small", &small))]).contains("is a 32-bit program"));

    copy_program(&dynamic, &name("setuid"));
    chown(name("setuid"), Some(65534), None).unwrap();
    fs::set_permissions(name("setuid"), fs::Permissions::from_mode(0o4755)).unwrap();
    assert!(reason_of(&[text(&name("setuid"))]).contains("(setuid or capabilities)"));

    let lost = write("lost", b"#!/no/such/interpreter\n");
    assert!(reason_of(&[text(&lost)]).contains("/no/such/interpreter, which is not there"));

    assert!(reason_of(&["env", "-i", text(&dynamic)]).contains("without LD_PRELOAD"));
    let off = finish(accel(&["explain", "--", "sh"]).env("NEARMETAL_ACCEL_OFF", "1"));
    assert_eq!(off.code, 4, "{}", off.stdout);
    assert!(off.stdout.contains("NEARMETAL_ACCEL_OFF is 1"), "{}", off.stdout);
}

#[test]
fn a_program_for_a_sanitizer_runs_without_the_library() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), "sanitized", &["-fsanitize=address"]);
    assert!(reason_of(&[text(&program)]).contains("is built with AddressSanitizer"));
    let run = finish(&mut accel(&[text(&program)]));
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(run.stderr.contains("it runs on the kernel"), "{}", run.stderr);
}

#[test]
fn missing_programs_and_libraries_have_their_exit_codes() {
    accelerator();
    let code = |words: &[&str]| run(&[&["accel", "explain", "--"], words].concat()).code;
    assert_eq!(code(&["no-program-of-this-name"]), 127);
    assert_eq!(code(&["/etc/passwd"]), 126);
    assert_eq!(run(&["accel", "explain"]).code, 2);
    let folder = tempfile::tempdir().unwrap();
    let alone = folder.path().join("nearmetal");
    copy_program(BINARY, &alone);
    let run = finish(Command::new(&alone).args(["accel", "explain", "--", "sh"]));
    assert_eq!(run.code, 4, "{}", run.stdout);
    assert!(run.stdout.contains("libnm_accel.so is in none of the folders"), "{}", run.stdout);
}

#[test]
fn variables_win_over_profiles_and_options_over_both() {
    let values = |words: &[&str], variables: &[(&str, &str)]| {
        let script = "env | sort | grep NEARMETAL_ACCEL_ || true";
        let mut command = accel(&[words, &["sh", "-c", script]].concat());
        let run = finish(command.envs(variables.iter().copied()));
        assert_eq!(run.code, 0, "{}", run.stderr);
        run.stdout.replace("NEARMETAL_ACCEL_", "").replace('\n', " ")
    };
    let latency = ["--profile", "latency"];
    assert_eq!(values(&[], &[]), "");
    assert_eq!(values(&latency, &[]), "AFTER=4 SPIN_US=5000 ");
    assert_eq!(values(&["--profile", "throughput"], &[]), "SPIN_US=50 ");
    assert_eq!(values(&["--profile", "shared-cpus"], &[]), "SPIN_US=0 ");
    let set = [("NEARMETAL_ACCEL_SPIN_US", "7"), ("NEARMETAL_ACCEL_MAX", "9")];
    assert_eq!(values(&latency, &set), "AFTER=4 MAX=9 SPIN_US=7 ");
    let both = [&latency[..], &["--spin-us", "8"]].concat();
    assert_eq!(values(&both, &set), "AFTER=4 MAX=9 SPIN_US=8 ");
}

#[test]
fn a_wrong_variable_or_profile_is_one_sentence() {
    for (name, value, message) in [
        (
            "NEARMETAL_ACCEL_SPIN_US",
            "much",
            "NEARMETAL_ACCEL_SPIN_US is `much`; write 0 to 10000000",
        ),
        (
            "NEARMETAL_ACCEL_SPIN",
            "1",
            "there is no variable NEARMETAL_ACCEL_SPIN; `nearmetal accel",
        ),
    ] {
        let run = finish(accel(&["true"]).env(name, value));
        assert_eq!(run.code, 2, "{}", run.stderr);
        assert!(run.stderr.contains(message), "{}", run.stderr);
        assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
    }
    let run = finish(&mut accel(&["--profile", "fast", "true"]));
    assert_eq!(run.code, 2);
    assert!(run.stderr.contains("latency, throughput, shared-cpus"), "{}", run.stderr);
    let listed = finish(&mut accel(&["profiles", "--format", "json"]));
    let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
    assert_eq!(listed["profiles"][0]["values"]["NEARMETAL_ACCEL_SPIN_US"], 5000);
    assert_eq!(listed["variables"].as_array().unwrap().len(), 8);
    let text = finish(&mut accel(&["profiles"])).stdout;
    for word in ["shared-cpus", "NEARMETAL_ACCEL_SHARE", "An option wins"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

/// Python: 300 messages each way between two sockets, after `setup` on the client's.
fn exchange(options: &[&str], before: &[&str], setup: &str) -> Run {
    let python = need("python3", "python3");
    let script = format!(
        "import socket\n\
         s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()\n\
         c = socket.create_connection(s.getsockname()); a, _ = s.accept()\n\
         {setup}\n\
         for _ in range(300):\n  \
         c.sendall(b'x' * 64); a.recv(64); a.sendall(b'y' * 64); c.recv(64)\n"
    );
    let words = [options, before, &[text(&python), "-c", &script]].concat();
    let run = finish(&mut accel(&words));
    assert_eq!(run.code, 0, "{}", run.stderr);
    run
}

#[test]
fn report_leads_with_the_share_and_names_the_option() {
    let run = exchange(&["--stats"], &[], "");
    assert!(run.stderr.contains(" % of the bytes in shared memory (2 TCP sockets: 2 gain)"));
    assert!(run.stderr.contains("connections by their bytes in memory: "), "{}", run.stderr);
    let set = "c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 5)";
    let run = exchange(&["--stats", "--format", "json"], &[], set);
    let report: Value = serde_json::from_str(&run.stderr).unwrap();
    let option = "the socket option SO_RCVLOWAT, which only the kernel supports";
    let mut reasons: Vec<&str> = report["sockets"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["why"].as_str().unwrap())
        .collect();
    reasons.sort_unstable();
    assert_eq!(reasons, [format!("at the peer: {option}").as_str(), option]);
    assert_eq!(report["sockets"][0]["verdict"].as_str().unwrap()[..13], *"on the kernel");
    assert_eq!(report["summary"]["on_kernel"], 2, "{report}");
    assert_eq!(report["summary"]["by_share"], serde_json::json!([2, 0, 0, 0, 0]));
}

#[test]
fn a_program_that_loses_the_library_or_its_rights_ends_with_the_cause() {
    let cleared = exchange(&["--stats"], &["env", "-i"], "").stderr;
    assert!(
        cleared.contains("accelerator: env starts its program without LD_PRELOAD"),
        "{cleared}"
    );
    let dropped = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all"];
    let dropped = exchange(&["--stats"], &dropped, "").stderr;
    assert!(dropped.contains("it gave up its user or capabilities"), "{dropped}");
    let folder = tempfile::tempdir().unwrap();
    let run = finish(&mut accel(&["chroot", text(folder.path()), "/none"]));
    assert!(run.stderr.contains("chroot changes the root to /"), "{}", run.stderr);
    assert!(run.stderr.contains("; copy the library to /"), "{}", run.stderr);
}

#[test]
fn history_shows_the_bytes_of_each_second() {
    let python = need("python3", "python3");
    let script = "import socket, time\n\
                  s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()\n\
                  c = socket.create_connection(s.getsockname()); a, _ = s.accept()\n\
                  while True:\n  c.sendall(b'x' * 64); a.recv(64); time.sleep(0.001)\n";
    let program = Running(accel(&[text(&python), "-c", script]).spawn().unwrap());
    // Other tests have connections of their own, so there is no upper limit.
    let history = finish(&mut accel(&["status", "--seconds", "2", "--format", "json"]));
    assert_eq!(history.code, 0, "{}", history.stderr);
    let history: Value = serde_json::from_str(&history.stdout).unwrap();
    let seconds = history["seconds"].as_array().unwrap();
    let bytes = |name: &str| seconds.iter().filter_map(|it| it[name].as_u64()).sum::<u64>();
    assert_eq!(seconds.len(), 2, "{history}");
    assert!(bytes("memory_bytes") + bytes("kernel_bytes") > 0, "{history}");
    drop(program);
    assert_eq!(finish(&mut accel(&["status", "--seconds", "0"])).code, 2);
}

/// A network namespace with a link to this one, removed at the end.
struct Namespace(String);

impl Namespace {
    fn new(name: &str) -> Namespace {
        let ours = Namespace(name.to_string());
        let script = format!(
            "ip netns add {name} && ip link add {name} type veth peer name inside netns {name} && \
             ip addr add 10.93.7.1/24 dev {name} && ip link set {name} up && \
             ip -n {name} addr add 10.93.7.2/24 dev inside && ip -n {name} link set inside up"
        );
        let made = Command::new("sh").args(["-ec", &script]).status().unwrap();
        assert!(made.success(), "root can make a network namespace");
        ours
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        for words in [["link", "del", &self.0], ["netns", "del", &self.0]] {
            let _ = Command::new("ip").args(words).status();
        }
    }
}

#[test]
fn a_peer_in_another_namespace_of_this_host_suggests_the_shared_folder() {
    accelerator();
    let namespace = Namespace::new(&format!("nma{}", std::process::id() % 100_000));
    let port = crate::support::free_port();
    let listener = format!(":{port:04X} 00000000:0000 0A");
    let port = port.to_string();
    let words = [BINARY, "accel", BINARY, "pingpong", "server", "--bind", "10.93.7.2"];
    let mut server = Command::new("ip");
    server.args(["netns", "exec", &namespace.0]).args(words).args(["--port", &port]);
    let server = Running(server.stdout(std::process::Stdio::null()).spawn().unwrap());
    wait_for("the server", || {
        // The program has taken the place of `ip`, and sees its own namespace.
        let sockets = fs::read_to_string(format!("/proc/{}/net/tcp", server.pid())).ok()?;
        sockets.contains(&listener).then_some(())
    });
    let client = [
        BINARY,
        "pingpong",
        "tcp",
        "10.93.7.2",
        "--port",
        &port,
        "--sizes",
        "64",
        "--maxms",
        "3000",
        "--timeout",
        "10000",
    ];
    let mut run = Running(accel(&client).spawn().unwrap());
    let wanted = "its other end is in another network namespace of this host: give both programs \
                  --share DIR";
    let seen = wait_for("the suggestion, or the end", || {
        let status = finish(&mut accel(&["status", "--format", "json"]));
        let has_ended = run.0.try_wait().unwrap().is_some();
        let is_seen = status.stdout.contains(wanted);
        (is_seen || has_ended).then_some(is_seen)
    });
    assert!(seen, "the client has ended: is it connected? {}", run.finish().stderr);
    drop((run, server));
}
