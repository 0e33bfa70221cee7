//! Why a host cannot be used, from how the ssh that reached it ended.

use std::io;

use nm_model::hosts::Destination;
use nm_model::{Failure, FailureKind};
use thiserror::Error;

/// Version of this program: the other end must have the same.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Exit code of ssh for its own errors.
const SSH_ERROR: i32 = 255;

/// Exit codes of a shell that finds no program, or cannot execute it.
const NO_PROGRAM: [i32; 2] = [127, 126];

/// Why a host cannot be used.
#[derive(Debug, Error)]
pub enum HostError {
    /// ssh itself cannot be started.
    #[error("cannot start ssh, which reaches host {host}: {source}; install an ssh client")]
    NoSsh {
        /// Destination of ssh.
        host: String,
        /// Why.
        source: io::Error,
    },
    /// ssh gave up.
    #[error("host {host} cannot be reached: ssh says: {output}; {remedy}")]
    Unreachable {
        /// Destination of ssh.
        host: String,
        /// Last line of ssh.
        output: String,
        /// What to do, as a clause.
        remedy: String,
    },
    /// The program is not there.
    #[error(
        "host {host} has no nearmetal at {program}: install version {VERSION} there, or name its \
         path in {named_in}"
    )]
    NoProgram {
        /// Destination of ssh.
        host: String,
        /// Where it was looked for.
        program: String,
        /// Where its path is named.
        named_in: &'static str,
    },
    /// The program is another one.
    #[error(
        "host {host} has another version of nearmetal at {program}{found}: install version \
         {VERSION} there"
    )]
    OtherVersion {
        /// Destination of ssh.
        host: String,
        /// Where.
        program: String,
        /// The version, in brackets, if it is known.
        found: String,
    },
    /// The agent ended.
    #[error("the agent on host {host} ended: {output}")]
    Ended {
        /// Destination of ssh.
        host: String,
        /// Its last line.
        output: String,
    },
    /// Nothing was received.
    #[error("host {host} did not answer for {seconds} s")]
    Silent {
        /// Destination of ssh.
        host: String,
        /// How long.
        seconds: u64,
    },
}

impl From<HostError> for Failure {
    fn from(error: HostError) -> Failure {
        let kind = match &error {
            HostError::NoSsh { .. }
            | HostError::NoProgram { .. }
            | HostError::OtherVersion { .. } => FailureKind::NotAvailable,
            HostError::Unreachable { .. } | HostError::Ended { .. } | HostError::Silent { .. } => {
                FailureKind::Peer
            }
        };
        Failure::new(kind, error.to_string())
    }
}

/// The program that ssh was to start on a host.
#[derive(Debug, Clone)]
pub struct Started {
    /// The host.
    pub host: Destination,
    /// Path of the program there.
    pub program: String,
    /// Where its path is named, such as `the hosts file`.
    pub named_in: &'static str,
}

impl Started {
    /// Why it has ended: from the exit code of ssh, if it has one, and the lines of its error
    /// output.
    pub fn ended<'a>(
        &self,
        code: Option<i32>,
        lines: impl DoubleEndedIterator<Item = &'a str> + Clone,
    ) -> HostError {
        let (host, program) = (self.host.to_string(), self.program.clone());
        let mut lines = lines.map(str::trim).filter(|line| !line.is_empty());
        let has_output = lines.clone().next().is_some();
        let output = lines.clone().next_back().unwrap_or("nothing").to_string();
        match code {
            // ssh has this code also for a program that a signal has ended, and says nothing then.
            Some(SSH_ERROR) if !has_output => {
                HostError::Ended { host, output: "a signal, as it seems: ssh says nothing".into() }
            }
            Some(SSH_ERROR) => {
                let remedy = remedy(&host, &output);
                HostError::Unreachable { host, output, remedy }
            }
            Some(code) if NO_PROGRAM.contains(&code) => {
                HostError::NoProgram { host, program, named_in: self.named_in }
            }
            // A version without agents, or without their options, says so.
            _ if lines.any(is_unknown_word) => {
                HostError::OtherVersion { host, program, found: String::new() }
            }
            _ => HostError::Ended { host, output },
        }
    }

    /// That the program there has the version `found`.
    pub fn other_version(&self, found: &str) -> HostError {
        let (host, program) = (self.host.to_string(), self.program.clone());
        HostError::OtherVersion { host, program, found: format!(" ({found})") }
    }
}

/// Whether a line says that a program knows no such subcommand or option.
fn is_unknown_word(line: &str) -> bool {
    line.contains("unrecognized subcommand") || line.contains("unexpected argument")
}

/// What to do about what ssh says.
fn remedy(host: &str, output: &str) -> String {
    if output.contains("Host key verification failed") {
        format!("its key is not known here, or has changed: check it once by `ssh {host}`")
    } else if output.contains("Permission denied") {
        format!("have it accept your key, for example by `ssh-copy-id {host}`")
    } else {
        format!("`ssh -o BatchMode=yes {host} true` must work")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_ssh_names_the_reason() {
        let started = Started {
            host: "h1".parse().unwrap(),
            program: "/opt/nearmetal".into(),
            named_in: "the hosts file",
        };
        let ended = |code, output: &str| started.ended(Some(code), output.lines()).to_string();
        for (code, output, expected) in [
            (
                255,
                "Warning: x\nssh: connect to host h1 port 22: No route to host\n",
                "host h1 cannot be reached: ssh says: ssh: connect to host h1 port 22: No route \
                 to host; `ssh -o BatchMode=yes h1 true` must work",
            ),
            (
                255,
                "u@h1: Permission denied (publickey).",
                "host h1 cannot be reached: ssh says: u@h1: Permission denied (publickey).; have \
                 it accept your key, for example by `ssh-copy-id h1`",
            ),
            (
                255,
                "No key is known for h1.\nHost key verification failed.",
                "host h1 cannot be reached: ssh says: Host key verification failed.; its key is \
                 not known here, or has changed: check it once by `ssh h1`",
            ),
            (
                127,
                "sh: 1: /opt/nearmetal: not found",
                "host h1 has no nearmetal at /opt/nearmetal: install version 0.1.0 there, or \
                 name its path in the hosts file",
            ),
            (
                2,
                "error: unrecognized subcommand 'agent'\n\nUsage: nearmetal <COMMAND>",
                "host h1 has another version of nearmetal at /opt/nearmetal: install version \
                 0.1.0 there",
            ),
            (4, "a\nno memory\n", "the agent on host h1 ended: no memory"),
            (0, "", "the agent on host h1 ended: nothing"),
            (255, "\n", "the agent on host h1 ended: a signal, as it seems: ssh says nothing"),
        ] {
            assert_eq!(ended(code, output), expected);
        }
        let other = started.other_version("0.0.9").to_string();
        assert!(other.contains("at /opt/nearmetal (0.0.9): install"), "{other}");
    }
}
