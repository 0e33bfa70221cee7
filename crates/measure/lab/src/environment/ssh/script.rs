//! What a host's shell executes: it greets, takes the program if it is copied, and becomes the
//! agent.
//!
//! A copied program is in no folder while it is received and executed. Its file is opened, removed,
//! written and executed by its descriptor, so that nothing is left whatever is killed.
//!
//! The login shell of a user may be any, so the script is one word of `/bin/sh` on one line.

use std::net::IpAddr;
use std::time::Duration;

use nm_model::hosts::Destination;
use nm_model::{Failure, FailureKind, Launcher};
use nm_ssh::quoted;
use thiserror::Error;

/// How the line begins by which the shell says that it is there, and from where it was reached.
pub const GREETING: &str = "nearmetal-host";

/// How long a host waits for the program's bytes, s.
const COPY_LIMIT_S: u32 = 300;

/// Exit codes of the script.
mod code {
    pub const ARCHITECTURE: i32 = 91;
    pub const FOLDER: i32 = 92;
    pub const COPY: i32 = 93;
    pub const LAUNCHER: i32 = 94;
}

/// Why the script has ended before the agent was started.
#[derive(Debug, Error)]
pub enum ScriptError {
    /// The host executes other programs.
    #[error(
        "host {host} is a machine of another architecture, {output}, and this program is for \
         {here}; install nearmetal there and name its path in `program` of the plan",
        here = std::env::consts::ARCH
    )]
    Architecture {
        /// Destination of ssh.
        host: String,
        /// That of the host.
        output: String,
    },
    /// There is no place for the copy.
    #[error(
        "host {host} has no temporary folder for a copy of this program: {output}; install \
         nearmetal there and name its path in `program` of the plan"
    )]
    Folder {
        /// Destination of ssh.
        host: String,
        /// Why.
        output: String,
    },
    /// The copy has not arrived.
    #[error(
        "the copy of this program on host {host} is not complete: {output}; make room in its \
         temporary folder, or install nearmetal there and name its path in `program` of the plan"
    )]
    Copy {
        /// Destination of ssh.
        host: String,
        /// Why.
        output: String,
    },
    /// The launcher is not there.
    #[error("host {host} has no program {output}; install it there, or choose another stack")]
    Launcher {
        /// Destination of ssh.
        host: String,
        /// Its name.
        output: String,
    },
}

/// The program of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program<'a> {
    /// It is there.
    Installed(&'a str),
    /// Its bytes follow, this many.
    Copied(usize),
}

/// The script of one agent.
#[derive(Debug, Clone, Copy)]
pub struct Script<'a> {
    program: Program<'a>,
    launcher: Option<Launcher>,
    silence_limit: Duration,
}

impl<'a> Script<'a> {
    /// The script that starts `program` as an agent.
    pub fn new(
        program: Program<'a>,
        launcher: Option<Launcher>,
        silence_limit: Duration,
    ) -> Script<'a> {
        Script { program, launcher, silence_limit }
    }

    /// The text for ssh.
    ///
    /// # Errors
    /// If the launcher is not one that other hosts can have.
    pub fn text(&self) -> Result<String, Failure> {
        let mut steps = vec![format!("echo \"{GREETING} $SSH_CONNECTION\"")];
        let launcher = self.launcher.map(launcher_words).transpose()?;
        if let Some(program) = launcher.and_then(|words| words.first()) {
            let missing = code::LAUNCHER;
            steps.push(format!(
                "command -v {program} >/dev/null || {{ echo {program} >&2; exit {missing}; }}"
            ));
        }
        let program = match self.program {
            Program::Installed(path) => quoted(path),
            Program::Copied(bytes) => {
                steps.extend(copy_steps(bytes));
                "/proc/self/fd/4".to_string()
            }
        };
        let launcher = launcher.map_or(String::new(), |words| words.join(" ") + " ");
        let silence_s = self.silence_limit.as_secs();
        steps.push(format!("exec {launcher}{program} agent --silence-limit {silence_s}"));
        Ok(format!("exec /bin/sh -c {}", quoted(&steps.join("; "))))
    }
}

/// The words that start a program under a launcher that is a program itself.
fn launcher_words(launcher: Launcher) -> Result<&'static [&'static str], Failure> {
    match launcher {
        Launcher::Onload => Ok(&["onload", "--profile=latency"]),
        Launcher::Smc => Ok(&["smc_run"]),
        Launcher::Vma | Launcher::Accel => {
            let message = format!("{launcher} is no program that other hosts can have");
            Err(Failure::new(FailureKind::NotAvailable, message))
        }
    }
}

/// Takes `bytes` bytes of the input into a file without a name, open as descriptor 4.
fn copy_steps(bytes: usize) -> [String; 9] {
    let (arch, other) = (std::env::consts::ARCH, code::ARCHITECTURE);
    let (no_folder, incomplete) = (code::FOLDER, code::COPY);
    [
        format!("a=$(uname -m); [ \"$a\" = {arch} ] || {{ echo $a >&2; exit {other}; }}"),
        "umask 077; gone() { rm -rf \"$d\"; }".to_string(),
        format!("d=$(mktemp -d \"${{TMPDIR:-/tmp}}/nearmetal-XXXXXXXXXX\") || exit {no_folder}"),
        "trap gone EXIT".to_string(),
        format!(": >\"$d/program\" && chmod 700 \"$d/program\" || exit {no_folder}"),
        "exec 3>\"$d/program\" 4<\"$d/program\"; gone".to_string(),
        format!(
            "timeout {COPY_LIMIT_S} head -c {bytes} >&3 || {{ \
             [ $? -eq 124 ] && echo \"it took more than {COPY_LIMIT_S} s\" >&2; \
             exit {incomplete}; }}; exec 3>&-"
        ),
        "n=$(wc -c </proc/self/fd/4)".to_string(),
        format!(
            "[ $n -eq {bytes} ] || {{ echo \"$n of {bytes} bytes arrived\" >&2; \
             exit {incomplete}; }}"
        ),
    ]
}

/// The address at which ssh reached the host, from its `SSH_CONNECTION`: the addresses and ports of
/// both ends.
pub fn address_in(connection: &str) -> Option<IpAddr> {
    connection.split_whitespace().nth(2)?.parse().ok()
}

/// Why the script has ended, from its exit code and its last line; none if it was not the script.
pub fn error(host: &Destination, code: Option<i32>, last: &str) -> Option<ScriptError> {
    let (host, output) = (host.to_string(), last.to_string());
    Some(match code? {
        code::ARCHITECTURE => ScriptError::Architecture { host, output },
        code::FOLDER => ScriptError::Folder { host, output },
        code::COPY => ScriptError::Copy { host, output },
        code::LAUNCHER => ScriptError::Launcher { host, output },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::path::Path;
    use std::process::{Command, Output, Stdio};

    use super::*;

    fn text(program: Program<'_>, launcher: Option<Launcher>) -> String {
        Script::new(program, launcher, Duration::from_secs(30)).text().unwrap()
    }

    /// Runs a script as a login shell would, with `input` and its temporary folder in `folder`.
    fn run(script: &str, input: &[u8], folder: &Path) -> Output {
        let mut command = Command::new("sh");
        command.args(["-c", script]).env("TMPDIR", folder);
        command.env("SSH_CONNECTION", "192.0.2.1 4711 192.0.2.2 22");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // The shell may have ended before it has read anything.
        let _ = child.stdin.take().unwrap().write_all(input);
        child.wait_with_output().unwrap()
    }

    fn entries(folder: &Path) -> usize {
        std::fs::read_dir(folder).unwrap().count()
    }

    fn last_line(output: &Output) -> String {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        text.lines().next_back().unwrap_or_default().to_string()
    }

    #[test]
    fn an_installed_program_is_executed_whatever_its_path_is() {
        let folder = tempfile::tempdir().unwrap();
        let script = text(Program::Installed("/bin/it's here; true"), None);
        let output = run(&script, b"", folder.path());
        assert_eq!(output.status.code(), Some(127), "{output:?}");
        let stdout = String::from_utf8_lossy(&output.stdout);
        let greeting = stdout.strip_prefix(GREETING).unwrap();
        assert_eq!(address_in(greeting), Some([192, 0, 2, 2].into()), "{greeting}");
        let script = text(Program::Installed("echo"), None);
        let output = run(&script, b"", folder.path());
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(stdout.ends_with("agent --silence-limit 30\n"), "{stdout}");
    }

    #[test]
    fn a_copied_program_is_executed_and_in_no_folder() {
        let folder = tempfile::tempdir().unwrap();
        let program = std::fs::read("/bin/echo").unwrap();
        let output = run(&text(Program::Copied(program.len()), None), &program, folder.path());
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && stdout.ends_with("agent --silence-limit 30\n"));
        assert_eq!(entries(folder.path()), 0);
    }

    #[test]
    fn a_program_that_does_not_arrive_is_not_executed_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let host: Destination = "h1".parse().unwrap();
        let script = text(Program::Copied(1_000), None);
        let output = run(&script, b"#!/bin/sh\n", folder.path());
        let error = error(&host, output.status.code(), &last_line(&output)).unwrap().to_string();
        assert!(error.contains("h1 is not complete: 10 of 1000 bytes arrived; make"), "{error}");
        assert_eq!(entries(folder.path()), 0);
        let none = folder.path().join("none");
        let output = run(&script, b"", &none);
        let error = super::error(&host, output.status.code(), &last_line(&output)).unwrap();
        assert!(error.to_string().contains("h1 has no temporary folder"), "{error}");
    }

    #[test]
    fn another_architecture_is_noticed_before_anything_is_sent() {
        let folder = tempfile::tempdir().unwrap();
        let script = text(Program::Copied(5), None);
        let script = script.replace(&format!("= {} ]", std::env::consts::ARCH), "= sparc64 ]");
        let output = run(&script, b"", folder.path());
        let host: Destination = "h1".parse().unwrap();
        let error = error(&host, output.status.code(), &last_line(&output)).unwrap().to_string();
        assert!(error.contains("a machine of another architecture, "), "{error}");
        assert_eq!(entries(folder.path()), 0);
    }

    #[test]
    fn a_launcher_must_be_on_the_host() {
        let folder = tempfile::tempdir().unwrap();
        let script = text(Program::Installed("echo"), Some(Launcher::Onload));
        assert!(script.contains("exec onload --profile=latency"), "{script}");
        let script = script.replace("onload", "no-such-launcher");
        let output = run(&script, b"", folder.path());
        let host: Destination = "h1".parse().unwrap();
        let error = error(&host, output.status.code(), &last_line(&output)).unwrap().to_string();
        assert!(error.contains("h1 has no program no-such-launcher; install"), "{error}");
        let accel = Script::new(Program::Copied(1), Some(Launcher::Accel), SILENCE);
        assert!(accel.text().is_err());
    }

    const SILENCE: Duration = Duration::from_secs(30);

    /// csh, fish and others read one word in single quotes as sh does, if it is one line without
    /// exclamation marks and backslashes.
    #[test]
    fn the_script_is_one_plain_word_for_any_shell() {
        let script = text(Program::Copied(5), Some(Launcher::Onload));
        let word = script.strip_prefix("exec /bin/sh -c '").unwrap().strip_suffix('\'').unwrap();
        assert!(word.contains("timeout 300 head -c 5 ") && word.ends_with("--silence-limit 30"));
        let is_special = |c: char| c.is_control() || "'!\\".contains(c);
        assert!(!word.contains(is_special), "{word}");
    }
}
