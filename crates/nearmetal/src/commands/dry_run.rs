//! `nearmetal qualify --dry-run`: the rows that would run, and those that are not available.

use anyhow::Result;
use nm_model::plan::EnvironmentKind;
use nm_model::result::Source;
use nm_model::{Campaign, Case, NotAvailable, NotJudged, ProbeKind, RunResult, Trial};
use nm_report::units;
use serde::Serialize;

use crate::cli::format::Format;
use crate::output;

/// What a dry run shows.
#[derive(Debug, Serialize)]
struct Listing<'a> {
    /// Name of the plan.
    plan: &'a str,
    rounds: u32,
    /// Longest time of measuring, s.
    longest_s: f64,
    /// Rows that would run.
    rows: Vec<Row>,
    /// Rows that cannot run here, with the reason.
    not_available: &'a [NotAvailable],
    /// Targets and comparisons that would not be judged, or not on all of their rows.
    not_judged: Vec<NotJudged>,
}

/// One row of the plan.
#[derive(Debug, Serialize)]
struct Row {
    environment: EnvironmentKind,
    stack: String,
    probe: ProbeKind,
    cases: Vec<Case>,
    /// The factor that it would be measured with.
    #[serde(skip_serializing_if = "Option::is_none")]
    factor: Option<String>,
}

/// Writes the rows of `campaign` to stdout.
pub fn show(campaign: &Campaign, format: Format) -> Result<()> {
    let listing = Listing::of(campaign);
    match format {
        Format::Json => output::json(&listing),
        Format::Text => output::data(&listing.to_text()),
    }
}

/// The longest time that the trials of a campaign take, s.
pub fn longest_s(campaign: &Campaign) -> f64 {
    campaign.trials.iter().map(|trial| trial.probe.duration_s()).sum()
}

impl<'a> Listing<'a> {
    fn of(campaign: &'a Campaign) -> Listing<'a> {
        let row = |trial: &Trial| Row {
            environment: trial.environment,
            stack: trial.stack.to_string(),
            probe: trial.probe.kind(),
            cases: trial.probe.cases(),
            factor: trial.factor.as_ref().map(|factor| factor.name.clone()),
        };
        let first_round = campaign.trials.iter().filter(|trial| trial.round == 0);
        Listing {
            plan: &campaign.plan.name,
            rounds: campaign.plan.rounds,
            longest_s: longest_s(campaign),
            rows: first_round.map(row).collect(),
            not_available: &campaign.not_available,
            not_judged: not_judged(campaign),
        }
    }

    fn to_text(&self) -> String {
        let Listing { plan, rounds, longest_s, rows, not_available, not_judged } = self;
        let longest = units::duration(*longest_s);
        let mut text = format!("{plan}: {rounds} rounds, at most {longest} of measuring\n");
        for Row { environment, stack, probe, cases, factor } in rows {
            let cases: Vec<String> = cases.iter().map(ToString::to_string).collect();
            let with = factor.as_ref().map_or(String::new(), |name| format!("  with {name}"));
            text += &format!("  {environment}/{stack} {probe}  {}{with}\n", cases.join(", "));
        }
        for NotAvailable { environment, stack, probe, reason, .. } in *not_available {
            text += &format!("  {environment}/{stack} {probe}  not available: {reason}\n");
        }
        for one in not_judged {
            text += &format!("  {one}\n");
        }
        text
    }
}

/// What a campaign cannot judge, by judging a result without figures.
fn not_judged(campaign: &Campaign) -> Vec<NotJudged> {
    let source = Source::Measured { version: env!("CARGO_PKG_VERSION").to_string() };
    let mut result = RunResult {
        plan: Some(campaign.plan.clone()),
        part: campaign.part.clone(),
        not_available: campaign.not_available.clone(),
        ..RunResult::new("dry run", source)
    };
    nm_judge::judge(&mut result, &|_| None);
    result.not_judged
}
