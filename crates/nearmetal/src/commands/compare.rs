//! `nearmetal compare`: two results side by side, and an exit code by what counts.

use std::path::Path;

use anyhow::Result;
use nm_judge::{CompareOptions, Selector};
use nm_model::RunResult;
use nm_report::{comparison, folder, reference};

use crate::cli::CompareArgs;
use crate::cli::format::Format;
use crate::commands::fail_on;
use crate::exit::{Exit, Stop};
use crate::output;

pub fn run(args: &CompareArgs) -> Result<Exit> {
    let (a, b) = (load(&args.a)?, load(&args.b)?);
    fail_on::check(&args.fail_on, &[&a, &b]).map_err(|error| Stop::usage(error.to_string()))?;
    let selector = |on: &Option<String>| on.as_deref().map_or(Selector::any(), Selector::new);
    let options = CompareOptions {
        margin_percent: args.margin,
        fail_on: args.fail_on.clone(),
        a: selector(&args.a_on),
        b: selector(&args.b_on),
        ..CompareOptions::default()
    };
    let compared = nm_judge::compare(&a, &b, &options);
    match args.format.format {
        Format::Json => output::json(&compared)?,
        Format::Text => output::data(&comparison::text(&compared, &output::style()))?,
    }
    Ok(compared.outcome.into())
}

/// A result folder, a result file, or `reference:NAME`.
fn load(text: &str) -> Result<RunResult> {
    match text.strip_prefix("reference:") {
        Some(name) => reference::load(name).map_err(|error| Stop::usage(error.to_string())),
        None => Ok(folder::load(Path::new(text))?),
    }
}
