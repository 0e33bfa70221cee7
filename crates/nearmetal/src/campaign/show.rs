//! How a result is shown: the options that are common to all commands that measure or show a run.

use anyhow::Result;
use nm_report::terminal::Extent;

use crate::cli::format::{ExtentArgs, Format, ShowArgs};
use crate::exit::Stop;

/// How a result is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Show {
    /// Text or JSON.
    pub format: Format,
    /// How much of the text.
    pub extent: Extent,
    /// No progress, and no messages but warnings and errors.
    pub is_quiet: bool,
}

impl Show {
    /// What the options select.
    ///
    /// # Errors
    /// Usage, if they contradict each other.
    pub fn of(args: &ShowArgs) -> Result<Show> {
        Show::new(args.format.format, &args.extent)
    }

    /// The same of the single options.
    ///
    /// # Errors
    /// Usage, if they contradict each other.
    pub fn new(format: Format, args: &ExtentArgs) -> Result<Show> {
        let extent = match (args.summary, args.quiet) {
            (true, _) if format == Format::Json => {
                let message = "--summary shortens the text; leave it out with --format json, \
                               which always holds everything";
                return Err(Stop::usage(message));
            }
            (true, _) => Extent::Targets,
            (_, true) => Extent::Verdict,
            (false, false) => Extent::Everything,
        };
        Ok(Show { format, extent, is_quiet: args.quiet })
    }
}
