//! The parent process of a program with an exit report: forwards signals, passes the exit status
//! on, and reports how the program's connections were carried.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};

use anyhow::{Context, Result};
use nm_lab::accelerator::Settings;
use nm_sys::hostfiles::HostFiles;
use nm_sys::process::die_with_parent;
use nm_sys::signal::{Signals, send};
use signal_hook::consts::SIGCHLD;

use super::collector::Collector;
use super::{program, view};
use crate::cli::format::Format;
use crate::document::Versioned;
use crate::exit::Exit;
use crate::output;

/// Runs a program to its end and reports. `library` is preloaded; `cause` is why the program does
/// not get it nevertheless.
pub fn run(
    mut command: Command,
    settings: Settings,
    library: Option<&Path>,
    cause: Option<String>,
    format: Format,
) -> Result<Exit> {
    // Before any thread is started: threads inherit the blocked signals.
    let mut numbers = Signals::forwardable();
    numbers.push(SIGCHLD);
    let signals = Signals::block(&numbers).context("cannot receive signals")?;
    let collector = Collector::start().context("cannot receive the program's ledgers")?;
    if let Some(library) = library {
        let report = Some(collector.path());
        Settings { report, ..settings }.apply(&mut command, library);
    }
    signals.restore_mask_in(&mut command);
    die_with_parent(&mut command);
    let name = command.get_program().to_os_string();
    let mut child = command.spawn().map_err(|error| program::not_started(&name, &error))?;
    let (status, privileges) = wait(&mut child, &signals)?;
    let own = Privileges::of(&HostFiles::default(), std::process::id());
    let has_fewer = own.zip(privileges).is_some_and(|(own, ended)| ended.has_fewer_than(&own));
    let cause = cause.or_else(|| has_fewer.then(|| FEWER_PRIVILEGES.to_string()));
    let report = view::Report::new(&collector.finish(), library.is_some(), cause);
    match format {
        Format::Text => output::message(report.to_text(&output::style()).trim_end()),
        Format::Json => {
            output::message(&serde_json::to_string_pretty(&Versioned::new(&report))?);
        }
    }
    Ok(Exit::Program(code(status)))
}

/// Waits for the end of the program and forwards signals that other processes send. Signals of the
/// terminal are not forwarded: they go to the whole process group, so the program receives them
/// itself.
/// Returns also the privileges with which it ended.
fn wait(child: &mut Child, signals: &Signals) -> Result<(ExitStatus, Option<Privileges>)> {
    loop {
        let arrived = signals.wait().context("cannot receive signals")?;
        // The process is not waited for yet, so its entry is still there.
        let privileges = Privileges::of(&HostFiles::default(), child.id());
        if let Some(status) = child.try_wait().context("cannot wait for the program")? {
            return Ok((status, privileges));
        }
        // The child has not been waited for, so its id cannot be reused yet.
        if arrived.number != SIGCHLD && !arrived.by_kernel {
            send(child.id(), arrived.number);
        }
    }
}

/// Why no counts arrived of a program with fewer privileges: the kernel then refuses its access to
/// this process through `/proc`.
const FEWER_PRIVILEGES: &str = "it gave up its user or capabilities, so the kernel kept its counts \
    from this command; its connections may be in shared memory, see `nearmetal accel status`, or \
    start `nearmetal accel` with its privileges";

/// What decides whether a process may reach this one through `/proc`.
#[derive(Debug, PartialEq, Eq)]
struct Privileges {
    user: u32,
    capabilities: u64,
}

impl Privileges {
    fn of(files: &HostFiles, pid: u32) -> Option<Privileges> {
        let status = files.text(&format!("/proc/{pid}/status"))?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        let user = field("Uid:")?.split_whitespace().nth(1)?.parse().ok()?;
        let capabilities = u64::from_str_radix(field("CapPrm:")?.trim(), 16).ok()?;
        Some(Privileges { user, capabilities })
    }

    fn has_fewer_than(&self, other: &Privileges) -> bool {
        self.user != other.user || other.capabilities & !self.capabilities != 0
    }
}

/// The exit code that a shell would give.
fn code(status: ExitStatus) -> u8 {
    let code = match (status.code(), status.signal()) {
        (Some(code), _) => code,
        (None, Some(signal)) => 128 + signal,
        (None, None) => 1,
    };
    u8::try_from(code & 0xff).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_privileges_are_those_of_another_user_or_less() {
        let of = |user, capabilities| Privileges { user, capabilities };
        assert!(!of(0, 7).has_fewer_than(&of(0, 7)) && !of(0, 7).has_fewer_than(&of(0, 3)));
        assert!(of(0, 3).has_fewer_than(&of(0, 7)) && of(1, 7).has_fewer_than(&of(0, 7)));
        let own = Privileges::of(&HostFiles::default(), std::process::id()).unwrap();
        assert_eq!(own.user, rustix::process::geteuid().as_raw());
    }

    #[test]
    fn exit_codes_match_those_of_a_shell() {
        for (raw, expected) in [(0, 0), (3 << 8, 3), (9, 137), (15, 143), (0x8b, 139)] {
            assert_eq!(code(ExitStatus::from_raw(raw)), expected, "{raw:#x}");
        }
    }
}
