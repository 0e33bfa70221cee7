//! One agent: handshake, failures, end of the session.

use std::process::Command;

use nm_lab::agent::Handle;
use nm_model::FailureKind;
use nm_model::agent::PROTOCOL_VERSION;
use nm_sys::process::ChildProcess;

use crate::harness::Test;

pub const TESTS: &[Test] = &[
    ("agents::agent_describes_itself_and_ends", describes),
    ("agents::agent_in_a_thread_answers_as_well", local),
    ("agents::killed_agent_is_reported", killed),
    ("agents::last_error_output_is_quoted_and_logged", last_error_output),
    ("agents::other_program_is_reported", no_agent),
    ("agents::other_version_is_reported", other_version),
    ("agents::missing_program_is_named", missing),
];

/// A command for an agent.
pub fn agent() -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg("agent");
    command
}

/// An agent that is a shell script.
fn script(text: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", text]);
    command
}

fn describes() {
    let mut handle = Handle::start("agent `client` of test", agent(), None).unwrap();
    assert_eq!(handle.version(), env!("CARGO_PKG_VERSION"));
    let facts = handle.describe().unwrap();
    assert!(facts.cpu.online >= 1);
    let folder = format!("/proc/{}", handle.pid());
    assert!(std::path::Path::new(&folder).exists());
    handle.close();
    assert!(!std::path::Path::new(&folder).exists());
    handle.close();
}

fn local() {
    let mut handle = Handle::local("client").unwrap();
    assert_eq!(handle.pid(), std::process::id());
    assert!(handle.describe().unwrap().cpu.online >= 1);
}

fn killed() {
    let mut handle = Handle::start("agent `client` of test", agent(), None).unwrap();
    kill(handle.pid());
    let failure = handle.describe().unwrap_err();
    assert_eq!(failure.kind, FailureKind::Peer);
    assert_eq!(failure.message, "agent `client` of test ended by signal 9");
}

/// Kills a process, as `kill -9` does.
pub fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

fn last_error_output() {
    let log = std::env::temp_dir().join(format!("nm-lab-test-{}.log", std::process::id()));
    let failure =
        Handle::start("agent `server` of test", script("echo no luck >&2; exit 7"), Some(&log))
            .err()
            .unwrap();
    assert_eq!(failure.message, "agent `server` of test ended with exit code 7");
    assert_eq!(failure.hint.as_deref(), Some("the last line of its error output: no luck"));
    assert_eq!(std::fs::read_to_string(&log).unwrap(), "no luck\n");
    std::fs::remove_file(log).unwrap();
}

fn no_agent() {
    let failure =
        Handle::start("agent `client` of test", script("echo hello; cat"), None).err().unwrap();
    assert_eq!(failure.message, "agent `client` of test does not use the agent protocol: `hello`");
}

fn other_version() {
    let hello = r#"echo '{"answer":"hello","protocol":99,"version":"9.8.7","pid":1}'; cat"#;
    let failure = Handle::start("agent `client` of test", script(hello), None).err().unwrap();
    let own = env!("CARGO_PKG_VERSION");
    assert_eq!(
        failure.message,
        format!(
            "agent `client` of test is nearmetal 9.8.7 with protocol 99, this is nearmetal {own} \
             with protocol {PROTOCOL_VERSION}"
        )
    );
    assert_eq!(failure.hint.as_deref(), Some("install the same version at both ends"));
}

fn missing() {
    let command = Command::new("/nothing/of/this/name");
    let failure = Handle::start("agent `client` of test", command, None).err().unwrap();
    assert_eq!(failure.kind, FailureKind::NotAvailable);
    assert!(failure.message.contains("/nothing/of/this/name"), "{failure}");
    // `ChildProcess` reports it as well.
    assert!(ChildProcess::spawn(Command::new("/nothing/of/this/name")).is_err());
}
