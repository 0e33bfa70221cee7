//! `nearmetal baseline`: accepted runs as small files, and a gate against them.

use std::path::{Path, PathBuf};

use anyhow::Result;
use nm_judge::{CompareOptions, GateOptions, Selector};
use nm_model::RunResult;
use nm_model::baseline::Baseline;
use nm_model::gate::Gate;
use nm_report::baseline_folder::{self, Accepted, BaselineError};
use nm_report::document::Document;
use nm_report::gate;
use schemars::JsonSchema;
use serde::Serialize;

use super::result_source;
use crate::cli::baseline::{BaselineCommand, GateArgs};
use crate::cli::format::Format;
use crate::exit::{Exit, Stop};
use crate::output;

pub fn run(command: &BaselineCommand) -> Result<Exit> {
    match command {
        BaselineCommand::Save { result, to } => save(result, to),
        BaselineCommand::List { baselines, format } => list(baselines, format.format),
        BaselineCommand::Gate { result, baseline, options, format } => {
            let run = of_run(&result_source::load(result)?);
            let found = accepted(baseline)?.gate(&run, &gate_options(options));
            match format.format {
                Format::Json => output::json(&found)?,
                Format::Text => output::text(&gate::text(&found, &output::style()))?,
            }
            Ok(found.outcome.into())
        }
    }
}

/// The primary figures that decide by default.
pub fn of_run(run: &RunResult) -> Baseline {
    nm_judge::baseline(run, &CompareOptions::default().fail_on, &Selector::any())
}

pub fn gate_options(args: &GateArgs) -> GateOptions {
    GateOptions {
        last: args.last,
        margin_percent: args.margin,
        run_deviation_percent: args.run_deviation,
    }
}

/// Accepted runs to test against.
#[derive(Debug)]
pub struct AcceptedRuns(Vec<Baseline>);

impl AcceptedRuns {
    /// Tests a run against them.
    pub fn gate(&self, run: &Baseline, options: &GateOptions) -> Gate {
        nm_judge::gate(run, &self.0.iter().collect::<Vec<_>>(), options)
    }
}

/// Reads accepted runs.
///
/// # Errors
/// If there is nothing of that name, or one of the files is no baseline.
pub fn accepted(from: &Path) -> Result<AcceptedRuns> {
    let Accepted { baselines, .. } = baseline_folder::load(from).map_err(stop)?;
    Ok(AcceptedRuns(baselines.into_iter().map(|(_, baseline)| baseline).collect()))
}

fn stop(error: BaselineError) -> anyhow::Error {
    let exit = match &error {
        error if error.is_conflict() => Exit::Conflict,
        BaselineError::Write { .. } => Exit::Environment,
        _ => Exit::Usage,
    };
    Stop::with(exit, error.to_string())
}

fn save(result: &str, to: &Path) -> Result<Exit> {
    let run = of_run(&result_source::load(result)?);
    if !run.is_complete {
        return Err(Stop::usage(format!("{result} did not come to its end; repeat the run")));
    }
    let path = baseline_folder::save(to, &run).map_err(stop)?;
    output::text(&format!("{}\n", path.display()))?;
    Ok(Exit::Pass)
}

/// The accepted runs of a folder, or of one file.
#[derive(Debug, Serialize, JsonSchema)]
pub struct BaselinesDocument {
    /// Oldest first.
    baselines: Vec<ListedBaseline>,
    /// Files of the folder that were too many to read.
    n_not_read: u64,
}

impl Document for BaselinesDocument {
    const NAME: &'static str = "baselines";
}

/// One accepted run and where it is.
#[derive(Debug, Serialize, JsonSchema)]
struct ListedBaseline {
    file: PathBuf,
    baseline: Baseline,
}

fn list(from: &Path, format: Format) -> Result<Exit> {
    let Accepted { baselines, n_not_read } = baseline_folder::load(from).map_err(stop)?;
    match format {
        Format::Json => {
            let listed = |(file, baseline)| ListedBaseline { file, baseline };
            let baselines = baselines.into_iter().map(listed).collect();
            output::json(&BaselinesDocument { baselines, n_not_read: n_not_read as u64 })?;
        }
        Format::Text => {
            let baselines: Vec<Baseline> = baselines.into_iter().map(|(_, one)| one).collect();
            output::text(&gate::list(&baselines, n_not_read, &output::style()))?;
        }
    }
    Ok(Exit::Pass)
}
