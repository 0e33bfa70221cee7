//! `nearmetal qualify`: plan, campaign, verdict, report.

use anyhow::Result;
use nm_lab::affinity::Affinity;
use nm_lab::resolve;
use nm_lab::trial::Options;
use nm_model::plan::EnvironmentKind;
use nm_model::words::UnknownWord;
use nm_model::{
    Campaign, Failure, Launcher, Mode, Plan, ProbeKind, Protocol, RowId, StackPair, Trial,
};

use crate::campaign::environments::EnvironmentPool;
use crate::campaign::{Destination, Name, OnFailure, Runner};
use crate::cli::QualifyArgs;
use crate::exit::{Exit, Stop};
use crate::{output, plans};

pub fn run(args: &QualifyArgs) -> Result<Exit> {
    let mut plan = plans::load(&args.plan)?;
    if let Some(rounds) = args.rounds {
        plan.rounds = rounds;
    }
    let affinity: Option<Affinity> =
        args.affinity.as_deref().map(str::parse).transpose().map_err(Failure::from)?;
    let only = Only::parse(&args.only)?;
    only.apply(&mut plan)?;
    let campaign = Campaign::resolve(plan, |environment, stacks, probe| {
        resolve::unavailable_reason(environment, stacks, probe).map(|reason| reason.to_string())
    });
    if args.dry_run {
        output::data(&listing(&campaign))?;
        return Ok(Exit::Pass);
    }
    let name = Name::WithTime(nm_host::facts().host.name);
    let destination = Destination::folder_or_new(args.out.as_deref());
    let options = Options { affinity, raw_samples: args.raw, ..Options::new(campaign.plan.seed) };
    let mut runner = Runner::begin(name, destination, options, OnFailure::Continue)?;
    runner.recorder.plan(&campaign);
    run_trials(&mut runner, &campaign, args.ipv6)?;
    let run = runner.finish()?;
    run.show(args.format.format)?;
    if run.is_complete() && run.result.series.is_empty() {
        let report = run.report.unwrap_or_default();
        let message = format!("nothing could be measured; the reasons are in {}", report.display());
        return Err(Stop::with(Exit::Environment, message));
    }
    Ok(run.verdict_exit())
}

/// Runs every trial, unless the user ends the run.
fn run_trials(runner: &mut Runner, campaign: &Campaign, use_ipv6: bool) -> Result<()> {
    runner.show_progress(campaign.trials.iter().map(|trial| trial.probe.duration_s()).sum());
    let mut environments = EnvironmentPool::new(use_ipv6);
    for trial in &campaign.trials {
        let Trial { environment, stack, probe, round } = trial;
        let (round, rounds) = (round + 1, campaign.plan.rounds);
        let label = format!("round {round}/{rounds}  {environment}/{stack} {}", probe.kind());
        let mut row = RowId::of_trial(trial);
        if probe.kind() == ProbeKind::Exchange {
            row = row.with_case(probe.cases().first().copied());
        }
        let goes_on = runner
            .trial(&label, &row, probe.duration_s(), |context| environments.run(trial, context))?;
        if !goes_on {
            break;
        }
    }
    Ok(())
}

/// The rows of a campaign, and those that are not available.
fn listing(campaign: &Campaign) -> String {
    let plan = &campaign.plan;
    let mut text = format!(
        "{}: {} rounds, at most {} of measuring\n",
        plan.name,
        plan.rounds,
        nm_report::units::duration(campaign.trials.iter().map(|t| t.probe.duration_s()).sum())
    );
    for trial in campaign.trials.iter().filter(|trial| trial.round == 0) {
        let cases: Vec<String> = trial.probe.cases().iter().map(|c| c.to_string()).collect();
        let (environment, probe) = (trial.environment, trial.probe.kind());
        text += &format!("  {environment}/{} {probe}  {}\n", trial.stack, cases.join(", "));
    }
    for row in &campaign.not_available {
        let (environment, stack, probe) = (row.environment, row.stack, row.probe);
        text += &format!("  {environment}/{stack} {probe}  not available: {}\n", row.reason);
    }
    text
}

/// The filters of `--only`. A row must match one filter of each kind that is given.
#[derive(Debug, Default)]
struct Only {
    environments: Vec<EnvironmentKind>,
    stacks: Vec<String>,
    probes: Vec<ProbeKind>,
}

impl Only {
    fn parse(words: &[String]) -> Result<Only> {
        let mut only = Only::default();
        for word in words {
            if let Ok(environment) = word.parse() {
                only.environments.push(environment);
            } else if let Ok(probe) = word.parse() {
                only.probes.push(probe);
            } else if word.parse::<StackPair>().is_ok()
                || word.parse::<Protocol>().is_ok()
                || word.parse::<Mode>().is_ok()
                || word.parse::<Launcher>().is_ok()
            {
                only.stacks.push(word.clone());
            } else {
                let environments = EnvironmentKind::ALL.iter().map(|kind| kind.name());
                let probes = ProbeKind::ALL.iter().map(|kind| kind.name());
                let protocols = Protocol::ALL.iter().map(|kind| kind.name());
                let launchers = Launcher::ALL.iter().map(|kind| kind.name());
                let known: Vec<&str> =
                    environments.chain(probes).chain(protocols).chain(launchers).collect();
                let unknown = UnknownWord::new("word in --only", word, &known);
                return Err(Stop::usage(unknown.to_string()));
            }
        }
        Ok(only)
    }

    fn takes(&self, stack: &StackPair) -> bool {
        let is_match = |word: &String| {
            let ends = [stack.client, stack.server];
            *word == stack.to_string()
                || ends.iter().any(|end| {
                    let launcher = end.launcher.is_some_and(|launcher| launcher.name() == word);
                    launcher || end.protocol.name() == word || end.mode.name() == word
                })
        };
        self.stacks.is_empty() || self.stacks.iter().any(is_match)
    }

    /// Removes the other rows from the plan, and targets and comparisons of these rows only.
    fn apply(&self, plan: &mut Plan) -> Result<()> {
        for block in &mut plan.trials {
            let environments = &self.environments;
            block
                .environments
                .retain(|kind| environments.is_empty() || environments.contains(kind));
            block.stacks.retain(|stack| self.takes(stack));
        }
        plan.trials.retain(|block| {
            let is_probe = self.probes.is_empty() || self.probes.contains(&block.probe.kind());
            is_probe && !block.environments.is_empty() && !block.stacks.is_empty()
        });
        if plan.trials.is_empty() {
            return Err(Stop::usage(format!(
                "--only leaves no row of plan {}; `--dry-run` without it lists them",
                plan.name
            )));
        }
        let rows: Vec<String> = plan
            .trials
            .iter()
            .flat_map(|b| b.environments.iter().map(move |e| (e, b)))
            .flat_map(|(e, b)| {
                b.stacks.iter().map(move |stack| format!("{e}/{}", b.probe.stack_name(stack)))
            })
            .collect();
        let has_row = |on: &str| {
            let selector = nm_judge::Selector::new(on);
            rows.iter().any(|row| {
                let (environment, stack) = row.split_once('/').unwrap_or((row, ""));
                selector.matches(environment, stack)
            })
        };
        let probes: Vec<ProbeKind> = plan.trials.iter().map(|b| b.probe.kind()).collect();
        plan.targets.retain(|target| {
            has_row(&target.on) && target.probe.is_none_or(|probe| probes.contains(&probe))
        });
        plan.comparisons.retain(|comparison| {
            [&comparison.a, &comparison.b]
                .iter()
                .all(|side| side.starts_with("reference:") || has_row(side))
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(words: &[&str]) -> Vec<String> {
        let mut plan = plans::load("quick").unwrap();
        let words: Vec<String> = words.iter().map(|w| w.to_string()).collect();
        Only::parse(&words).unwrap().apply(&mut plan).unwrap();
        let campaign = Campaign::resolve(plan, |_, _, _| None);
        let first = campaign.trials.iter().filter(|trial| trial.round == 0);
        first.map(|t| format!("{}/{} {}", t.environment, t.stack, t.probe.kind())).collect()
    }

    #[test]
    fn filters_of_one_kind_add_up_and_kinds_intersect() {
        assert_eq!(rows(&["netns", "tcp-spin", "pingpong"]), ["netns/tcp-spin pingpong"]);
        let udp = rows(&["udp", "netns", "bridge"]);
        assert!(udp.len() >= 2 && udp.iter().all(|row| row.contains("/udp-")), "{udp:?}");
        assert!(rows(&[]).len() > udp.len());
        let accel = rows(&["accel", "loopback"]);
        assert!(!accel.is_empty() && accel.iter().all(|row| row.contains("/accel+")), "{accel:?}");
    }

    #[test]
    fn filter_without_rows_is_refused() {
        let mut plan = plans::load("quick").unwrap();
        let only = Only::parse(&["vm".to_string()]).unwrap();
        assert!(only.apply(&mut plan).unwrap_err().to_string().contains("leaves no row"));
        assert!(Only::parse(&["tcp-spn".to_string()]).is_err());
    }

    #[test]
    fn built_in_plans_parse() {
        for (name, _) in plans::built_in() {
            plans::load(name).unwrap();
        }
    }
}
