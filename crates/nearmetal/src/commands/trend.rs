//! `nearmetal trend`: the figures of several results in the order of their start.

use anyhow::Result;
use nm_judge::{GateOptions, Selector, TrendOptions, check_count};
use nm_model::RunResult;
use nm_report::output_folder::trend_files;
use nm_report::trend;

use super::{fail_on, result_source};
use crate::cli::compare::{DocumentFormat, TrendArgs};
use crate::exit::{Exit, Stop};
use crate::output;

pub fn run(args: &TrendArgs) -> Result<Exit> {
    check_count(args.results.len()).map_err(|error| Stop::usage(error.to_string()))?;
    let texts: Vec<&str> = args.results.iter().map(String::as_str).collect();
    let mut results = vec![];
    for (text, name) in texts.iter().zip(result_source::names(&texts)) {
        results.push((name, result_source::load(text)?));
    }
    let runs: Vec<&RunResult> = results.iter().map(|(_, run)| run).collect();
    fail_on::check(&args.fail_on, &runs).map_err(|error| Stop::usage(error.to_string()))?;
    let options = TrendOptions {
        metrics: args.metric.clone(),
        on: args.on.as_deref().map_or(Selector::any(), Selector::new),
        tested: if args.fail_on.is_empty() { args.metric.clone() } else { args.fail_on.clone() },
        gate: GateOptions { margin_percent: args.margin, ..GateOptions::default() },
    };
    let found = nm_judge::trend(results, &options).map_err(|e| Stop::usage(e.to_string()))?;
    if let Some(out) = &args.document.out.out {
        result_source::write_reports(out, &trend_files(&found))?;
    }
    match args.document.format {
        DocumentFormat::Json => output::json(&found)?,
        DocumentFormat::Text => output::text(&trend::text(&found, &output::style()))?,
        DocumentFormat::Markdown => output::text(&trend::markdown(&found))?,
    }
    Ok(if args.fail_on.is_empty() { Exit::Pass } else { found.outcome().into() })
}
