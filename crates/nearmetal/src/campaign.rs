//! A run of nm-campaign as the program shows it: progress on stderr, Ctrl-C, result and exit code.

pub mod finished;
pub mod interrupt;
mod progress;
mod progress_lines;
pub mod show;

use anyhow::Result;
use nm_campaign::{Destination, OnFailure, RunName, Runner};
use nm_lab::trial::Options;

use crate::campaign::progress::Progress;
use crate::campaign::show::Show;

/// Begins a run. From here on Ctrl-C ends it in order.
///
/// # Errors
/// If its folder cannot be created or signals cannot be handled.
pub fn begin(
    name: RunName,
    destination: &Destination<'_>,
    options: Options,
    on_failure: OnFailure,
    show: Show,
) -> Result<Runner> {
    let interrupted = interrupt::flag()?;
    let display = Box::new(Progress::new(show.is_quiet));
    Ok(Runner::begin(name, destination, options, on_failure, display, interrupted)?)
}
