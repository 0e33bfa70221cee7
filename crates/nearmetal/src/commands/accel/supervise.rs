//! The parent that stays in front of a program for its exit report: hands signals on, passes the
//! exit status, and writes what became of the program's connections.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};

use anyhow::{Context, Result};
use nm_lab::accelerator::Settings;
use nm_sys::process::die_with_parent;
use nm_sys::signal::{Signals, send};
use signal_hook::consts::SIGCHLD;

use super::collector::Collector;
use super::{not_started, view};
use crate::cli::Format;
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
    // Before any thread is started, so that all of them have the signals blocked.
    let mut numbers = Signals::forwardable();
    numbers.push(SIGCHLD);
    let signals = Signals::block(&numbers).context("cannot take signals")?;
    let collector = Collector::start().context("cannot listen for the program's ledgers")?;
    if is_preloaded {
        let report = Some(collector.path());
        Settings { report, ..settings }.apply(&mut command, library);
    }
    signals.restore_mask_in(&mut command);
    die_with_parent(&mut command);
    let name = command.get_program().to_os_string();
    let mut child = command.spawn().map_err(|error| not_started(&name, &error))?;
    let status = wait(&mut child, &signals)?;
    let report = view::Report::new(&collector.finish(), is_preloaded);
    match format {
        Format::Text => output::say(report.to_text(&output::style()).trim_end()),
        Format::Json => output::say(&serde_json::to_string_pretty(&report)?),
    }
    Ok(Exit::Program(code(status)))
}

/// Waits for the end of the program, handing on what other processes send. What the terminal sends
/// goes to the whole group, so the program has it already.
fn wait(child: &mut Child, signals: &Signals) -> Result<ExitStatus> {
    loop {
        let arrived = signals.wait().context("cannot take signals")?;
        if let Some(status) = child.try_wait().context("cannot wait for the program")? {
            return Ok(status);
        }
        // Not waited for yet, so the id is still the program's.
        if arrived.number != SIGCHLD && !arrived.by_kernel {
            send(child.id(), arrived.number);
        }
    }
}

/// As a shell has it.
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
    fn codes_are_as_a_shell_has_them() {
        for (raw, expected) in [(0, 0), (3 << 8, 3), (9, 137), (15, 143), (0x8b, 139)] {
            assert_eq!(code(ExitStatus::from_raw(raw)), expected, "{raw:#x}");
        }
    }
}
