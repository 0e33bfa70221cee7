//! `nearmetal qualify --dry-run`: the rows that would run, and those that are not available.

use std::fmt::Display;

use anyhow::Result;
use nm_campaign::schedule::{self, Schedule};
use nm_model::factor::{Factor, FactorKind};
use nm_model::plan::EnvironmentKind;
use nm_model::result::Source;
use nm_model::{
    AttachedSpec, Campaign, Case, HostsSpec, NotAvailable, NotJudged, ProbeKind, RunResult, Trial,
};
use nm_report::units;
use schemars::JsonSchema;
use serde::Serialize;

use crate::cli::format::Format;
use crate::document::Document;
use crate::output;

/// What a dry run shows.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Listing<'a> {
    /// Name of the plan.
    plan: &'a str,
    rounds: u32,
    /// Those of the environment `ssh`.
    #[serde(skip_serializing_if = "Option::is_none")]
    hosts: Option<&'a HostsSpec>,
    /// The guests of the environment `vm-attached`.
    #[serde(skip_serializing_if = "Option::is_none")]
    attached: Option<&'a AttachedSpec>,
    /// What the run takes, s.
    about_s: f64,
    /// The part of it that rows with a factor take, s.
    about_with_factors_s: f64,
    /// Rows that would run.
    rows: Vec<Row>,
    /// What each factor adds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    factors: Vec<Added>,
    /// Rows that cannot run here, with the reason.
    not_available: &'a [NotAvailable],
    /// Targets and comparisons that would not be judged, or not on all of their rows.
    not_judged: Vec<NotJudged>,
}

impl Document for Listing<'_> {
    const NAME: &'static str = "dry-run";
}

/// One row of the plan.
#[derive(Debug, Serialize, JsonSchema)]
struct Row {
    environment: EnvironmentKind,
    stack: String,
    probe: ProbeKind,
    cases: Vec<Case>,
    /// The factor that it would be measured with.
    #[serde(skip_serializing_if = "Option::is_none")]
    factor: Option<String>,
}

/// What a factor adds to the campaign: its rows run once more in each round.
#[derive(Debug, Serialize, JsonSchema)]
struct Added {
    name: String,
    kind: FactorKind,
    /// Rows that run with it as well as without.
    rows: usize,
    /// Trials with it, in all rounds.
    trials: usize,
    /// What they take, s.
    about_s: f64,
}

impl Added {
    fn of(campaign: &Campaign) -> Vec<Added> {
        let of_factor = |factor: &Factor| {
            let is_its =
                |trial: &&Trial| trial.factor.as_ref().is_some_and(|one| one.name == factor.name);
            let trials: Vec<&Trial> = campaign.trials.iter().filter(is_its).collect();
            Added {
                name: factor.name.clone(),
                kind: factor.kind,
                rows: trials.iter().filter(|trial| trial.round == 0).count(),
                trials: trials.len(),
                about_s: trials.iter().map(|trial| schedule::trial_s(trial)).sum(),
            }
        };
        campaign.plan.factors.iter().map(of_factor).collect()
    }

    /// `factor held (idle states held): 10 rows twice in each round, 20 trials more, 30 s more`.
    fn to_text(&self) -> String {
        let Added { name, kind, rows, trials, about_s } = self;
        let title = kind.title();
        match rows {
            0 => format!("factor {name} ({title}): none of its rows can run here"),
            rows => format!(
                "factor {name} ({title}): {} twice in each round, {} and about {} more",
                units::plural(*rows, "row", "rows"),
                units::plural(*trials, "trial", "trials"),
                units::duration(about_s.round())
            ),
        }
    }
}

/// Writes the rows of `campaign` to stdout.
pub fn show(campaign: &Campaign, format: Format) -> Result<()> {
    let listing = Listing::of(campaign);
    match format {
        Format::Json => output::json(&listing),
        Format::Text => output::text(&listing.to_text()),
    }
}

impl<'a> Listing<'a> {
    fn of(campaign: &'a Campaign) -> Listing<'a> {
        let row = |trial: &Trial| Row {
            environment: trial.environment,
            stack: trial.probe.stack_name(&trial.stack),
            probe: trial.probe.kind(),
            cases: trial.probe.cases(),
            factor: trial.factor.as_ref().map(|factor| factor.name.clone()),
        };
        let factors = Added::of(campaign);
        let first_round = campaign.trials.iter().filter(|trial| trial.round == 0);
        Listing {
            plan: &campaign.plan.name,
            rounds: campaign.plan.rounds,
            hosts: campaign.plan.hosts.as_ref(),
            attached: campaign.plan.attached.as_ref(),
            about_s: Schedule::of_campaign(campaign).promised_s(),
            about_with_factors_s: factors.iter().map(|factor| factor.about_s).sum(),
            rows: first_round.map(row).collect(),
            factors,
            not_available: &campaign.not_available,
            not_judged: not_judged(campaign),
        }
    }

    fn to_text(&self) -> String {
        let Listing { plan, rounds, rows, factors, not_available, not_judged, .. } = self;
        let about = units::duration(self.about_s.round());
        let with_factors = match self.about_with_factors_s {
            s if s > 0.0 => format!(", {} of it with factors", units::duration(s.round())),
            _ => String::new(),
        };
        let mut text = format!("{plan}: {rounds} rounds, about {about}{with_factors}\n");
        let has = |kind| rows.iter().any(|row: &Row| row.environment == kind);
        if has(EnvironmentKind::Ssh) {
            text += &ends_line("hosts of ssh", self.hosts, "--server, or [hosts]");
        }
        if has(EnvironmentKind::VmAttached) {
            text += &ends_line("guests of vm-attached", self.attached, "--guest, or [attached]");
        }
        for Row { environment, stack, probe, cases, factor } in rows {
            let cases: Vec<String> = cases.iter().map(ToString::to_string).collect();
            let with = factor.as_ref().map_or(String::new(), |name| format!("  with {name}"));
            text += &format!("  {environment}/{stack} {probe}  {}{with}\n", cases.join(", "));
        }
        for factor in factors {
            text += &format!("  {}\n", factor.to_text());
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

/// `  hosts of ssh: this machine to h2`.
fn ends_line<T: Display>(of: &str, ends: Option<&T>, wanted: &str) -> String {
    match ends {
        Some(ends) => format!("  {of}: {ends}\n"),
        None => format!("  {of}: not named; a run needs {wanted} in the plan\n"),
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
