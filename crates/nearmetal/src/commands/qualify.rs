//! `nearmetal qualify`: plan, campaign, verdict, report.

use anyhow::Result;
use nm_lab::affinity::Affinity;
use nm_lab::resolve;
use nm_lab::trial::Options;
use nm_model::plan::EnvironmentKind;
use nm_model::words::{UnknownWord, nearest};
use nm_model::{
    Campaign, Failure, Launcher, Mode, Plan, ProbeKind, Protocol, RowId, Stack, StackPair, Trial,
};
use nm_report::units;

use crate::campaign::environments::EnvironmentPool;
use crate::campaign::show::Show;
use crate::campaign::{Destination, Name, OnFailure, Runner};
use crate::cli::QualifyArgs;
use crate::commands::dry_run;
use crate::exit::{Exit, Stop};
use crate::plans;

pub fn run(args: &QualifyArgs) -> Result<Exit> {
    let show = Show::of(&args.show)?;
    let mut plan = plans::load(&args.plan)?;
    if let Some(rounds) = args.rounds {
        plan.rounds = rounds;
    }
    let affinity: Option<Affinity> =
        args.affinity.as_deref().map(str::parse).transpose().map_err(Failure::from)?;
    if let Some(affinity) = &affinity {
        // Both ends run on this machine.
        let allowed = nm_sys::cpu::allowed();
        affinity.check_allowed(&allowed, Some(&allowed)).map_err(Failure::from)?;
    }
    let only = Only::parse(&args.only)?;
    only.apply(&mut plan)?;
    let campaign = Campaign::resolve(plan, |environment, stacks, probe| {
        resolve::unavailable_reason(environment, stacks, probe).map(|reason| reason.to_string())
    });
    if args.dry_run {
        dry_run::show(&campaign, show.format)?;
        return Ok(Exit::Pass);
    }
    let name = Name::WithTime(nm_host::facts().host.name);
    let destination = Destination::folder_or_new(args.out.as_deref());
    let options = Options { affinity, raw_samples: args.raw, ..Options::new(campaign.plan.seed) };
    let mut runner = Runner::begin(name, destination, options, show, OnFailure::Continue)?;
    runner.recorder.plan(&campaign);
    run_trials(&mut runner, &campaign, args.ipv6)?;
    let run = runner.finish()?;
    run.show()?;
    if run.is_complete() && run.result.series.is_empty() {
        let report = run.report.unwrap_or_default();
        let message = format!("nothing could be measured; the reasons are in {}", report.display());
        return Err(Stop::with(Exit::Environment, message));
    }
    Ok(run.exit())
}

/// Runs every trial, unless the user ends the run.
fn run_trials(runner: &mut Runner, campaign: &Campaign, use_ipv6: bool) -> Result<()> {
    let trials = units::plural(campaign.trials.len(), "trial", "trials");
    let what = format!("plan {}, {trials}", campaign.plan.name);
    runner.show_progress(&what, dry_run::longest_s(campaign));
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
                return Err(Stop::usage(unknown_word(word).to_string()));
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

/// A word of `--only` that names nothing; the nearest word may also be a mode or a whole stack.
fn unknown_word(word: &str) -> UnknownWord {
    let environments = EnvironmentKind::ALL.iter().map(|kind| kind.name());
    let probes = ProbeKind::ALL.iter().map(|kind| kind.name());
    let protocols = Protocol::ALL.iter().map(|kind| kind.name());
    let launchers = Launcher::ALL.iter().map(|kind| kind.name());
    let known: Vec<&str> = environments.chain(probes).chain(protocols).chain(launchers).collect();
    let unknown = UnknownWord::new("word in --only", word, &known);
    let modes = Mode::ALL.iter().map(|mode| mode.name().to_string());
    let stacks = Protocol::ALL.iter().flat_map(|&protocol| {
        Mode::ALL.iter().map(move |&mode| Stack::new(protocol, mode).to_string())
    });
    let all: Vec<String> =
        known.iter().map(ToString::to_string).chain(modes).chain(stacks).collect();
    UnknownWord { nearest: nearest(word, &all), ..unknown }
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
        let wrong = |word: &str| Only::parse(&[word.to_string()]).unwrap_err().to_string();
        assert!(wrong("tcp-spn").contains("`tcp-spn`, did you mean `tcp-spin`?"));
        assert!(wrong("nets").contains("did you mean `netns`?"));
        assert!(wrong("epol").contains("did you mean `epoll`?"));
    }

    #[test]
    fn built_in_plans_parse() {
        for (name, _) in plans::built_in() {
            plans::load(name).unwrap();
        }
    }
}
