//! `nearmetal report`: the reports of a result folder, written again, and a card to share.

use std::path::Path;

use anyhow::Result;
use nm_model::result::Series;
use nm_model::{Outcome, RunResult};
use nm_report::{card, folder, reference, sarif, summary, units};
use nm_sys::complete_file;

use crate::campaign::finished::FinishedRun;
use crate::campaign::show::Show;
use crate::cli::format::Format;
use crate::cli::{ReportArgs, ReportFormat};
use crate::exit::{Exit, Stop};
use crate::output;

/// Name of the note about a recorded outcome that the figures do not give.
const NOTE: &str = "recorded outcome";

pub fn run(args: &ReportArgs) -> Result<Exit> {
    let format = if args.format == ReportFormat::Text { Format::Text } else { Format::Json };
    let show = Show::new(format, &args.extent)?;
    let card = args.card.as_deref().map(wanted_card).transpose()?;
    let (result, report) = folder::rebuild(&args.folder, judge_again)?;
    if let Some((file, format)) = card {
        let references = report.parent().map(folder::load_references).transpose()?;
        let bytes = card::card(&result, &references.unwrap_or_default(), format);
        complete_file::create(file, &bytes, complete_file::MODE_PUBLIC)
            .map_err(|error| output::file_error(file, &error))?;
    }
    match args.format {
        ReportFormat::Markdown => output::text(&summary::report(&result))?,
        ReportFormat::Sarif => output::sarif(&sarif::report(&result, env!("CARGO_PKG_VERSION")))?,
        ReportFormat::Text | ReportFormat::Json => {
            FinishedRun { result, report: Some(report), show, aborted_by: None }.show()?;
        }
    }
    Ok(Exit::Pass)
}

/// The file of a card and the format that its name asks for.
fn wanted_card(file: &Path) -> Result<(&Path, card::Format)> {
    let format = card::Format::of(file).ok_or_else(|| {
        let name = file.display();
        Stop::usage(format!("--card: {name} is neither SVG nor PNG; end its name in .svg or .png"))
    })?;
    Ok((file, format))
}

/// Judges a judged result once more. The recorded verdicts stay if the figures give the same
/// outcomes; else those of the figures take their place, with a note and a warning.
fn judge_again(result: &mut RunResult) {
    if result.verdicts.is_empty() {
        return;
    }
    let mut again = result.clone();
    let forget = |series: &mut Series| series.estimates.clear();
    again.series.iter_mut().for_each(forget);
    nm_judge::judge(&mut again, &|name| reference::load(name).ok());
    if outcomes(&again) == outcomes(result) {
        return;
    }
    let note = format!(
        "the recorded outcome is {}, its figures and targets give {}: the file was changed, or \
         another version of nearmetal judged it",
        recorded(result),
        recorded(&again)
    );
    output::message(&output::warning(&note));
    again.notes.insert(NOTE.to_string(), note);
    *result = again;
}

/// The outcome of the result and of each target.
fn outcomes(result: &RunResult) -> (Outcome, Vec<Outcome>) {
    (result.outcome, result.verdicts.iter().map(|verdict| verdict.outcome).collect())
}

/// `pass (18 of 18 targets)`.
fn recorded(result: &RunResult) -> String {
    let n_passed = result.verdicts.iter().filter(|v| v.outcome == Outcome::Pass).count();
    let targets = units::plural(result.verdicts.len(), "target", "targets");
    format!("{} ({n_passed} of {targets} met)", result.outcome.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A result that missed targets, as today's rules judge it.
    fn failed() -> RunResult {
        let json = include_str!("../../../measure/report/tests/data/quick.json");
        let mut result = folder::parse(json, "quick.json").unwrap();
        nm_judge::judge(&mut result, &|name| reference::load(name).ok());
        result
    }

    #[test]
    fn verdicts_that_the_figures_give_stay_as_they_are() {
        let mut result = failed();
        judge_again(&mut result);
        assert_eq!(result, failed());
    }

    #[test]
    fn an_outcome_that_the_figures_do_not_give_is_not_believed() {
        let mut edited = failed();
        edited.outcome = Outcome::Pass;
        edited.verdicts.iter_mut().for_each(|verdict| verdict.outcome = Outcome::Pass);
        judge_again(&mut edited);
        assert_eq!(outcomes(&edited), outcomes(&failed()));
        let n_targets = edited.verdicts.len();
        let start =
            format!("the recorded outcome is pass ({n_targets} of {n_targets} targets met)");
        assert!(edited.notes[NOTE].starts_with(&start), "{}", edited.notes[NOTE]);
    }

    #[test]
    fn figures_that_were_changed_are_judged_and_not_their_old_estimates() {
        let mut edited = failed();
        for round in edited.series.iter_mut().flat_map(|series| &mut series.rounds) {
            if let nm_model::result::RoundData::Latency(data) = &mut round.data {
                let scale = |value: &mut Option<f64>| *value = value.map(|ns| ns * 1e-3);
                data.percentiles.iter_mut().for_each(|one| scale(&mut one.value_ns));
            }
        }
        judge_again(&mut edited);
        assert_ne!(outcomes(&edited), outcomes(&failed()));
    }
}
