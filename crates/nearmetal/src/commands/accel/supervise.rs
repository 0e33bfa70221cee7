//! The parent process of a program with an exit report: forwards signals, passes the exit status
//! on, and reports how the program's connections were carried.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};

use anyhow::{Context, Result};
use nm_lab::accelerator::Settings;
use nm_sys::process::die_with_parent;
use nm_sys::signal::{Signals, send};
use signal_hook::consts::SIGCHLD;

use super::collector::Collector;
use super::{program, view};
use crate::cli::format::Format;
use crate::document::Versioned;
use crate::exit::Exit;
use crate::output;

/// Runs a program to its end and reports.
pub fn run(
    mut command: Command,
    settings: Settings,
    library: &Path,
    is_preloaded: bool,
    format: Format,
) -> Result<Exit> {
    // Before any thread is started: threads inherit the blocked signals.
    let mut numbers = Signals::forwardable();
    numbers.push(SIGCHLD);
    let signals = Signals::block(&numbers).context("cannot receive signals")?;
    let collector = Collector::start().context("cannot receive the program's ledgers")?;
    if is_preloaded {
        let report = Some(collector.path());
        Settings { report, ..settings }.apply(&mut command, library);
    }
    signals.restore_mask_in(&mut command);
    die_with_parent(&mut command);
    let name = command.get_program().to_os_string();
    let mut child = command.spawn().map_err(|error| program::not_started(&name, &error))?;
    let status = wait(&mut child, &signals)?;
    let report = view::Report::new(&collector.finish(), is_preloaded);
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
fn wait(child: &mut Child, signals: &Signals) -> Result<ExitStatus> {
    loop {
        let arrived = signals.wait().context("cannot receive signals")?;
        if let Some(status) = child.try_wait().context("cannot wait for the program")? {
            return Ok(status);
        }
        // The child has not been waited for, so its id cannot be reused yet.
        if arrived.number != SIGCHLD && !arrived.by_kernel {
            send(child.id(), arrived.number);
        }
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
    fn exit_codes_match_those_of_a_shell() {
        for (raw, expected) in [(0, 0), (3 << 8, 3), (9, 137), (15, 143), (0x8b, 139)] {
            assert_eq!(code(ExitStatus::from_raw(raw)), expected, "{raw:#x}");
        }
    }
}
