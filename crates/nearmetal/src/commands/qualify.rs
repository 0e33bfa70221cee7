//! `nearmetal qualify`: plan, campaign, verdict, report.

use std::path::PathBuf;

use anyhow::Result;
use jiff::Timestamp;
use nm_lab::affinity::Affinity;
use nm_lab::resolve;
use nm_lab::trial::Options;
use nm_model::plan::EnvironmentKind;
use nm_model::result::RunState;
use nm_model::words::UnknownWord;
use nm_model::{Campaign, Failure, Launcher, Mode, Plan, ProbeKind, Protocol, StackPair};
use nm_report::folder::{ResultFolder, file_name};
use nm_report::terminal;

use super::campaign;
use crate::cli::QualifyArgs;
use crate::cli::format::Format;
use crate::exit::{Exit, Stop};
use crate::recorder::Recorder;
use crate::{interrupt, output, plans};

/// Where results go unless `--out` says otherwise.
const OUT: &str = "nearmetal-out";

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
    let interrupted = interrupt::flag()?;
    let started = Timestamp::now();
    let (name, folder) = make_folder(args.out.as_ref(), started)?;
    let mut recorder = Recorder::new(&name, &seconds(started), Some(folder.clone()));
    recorder.plan(&campaign);
    let seed = campaign.plan.seed;
    let options = Options { affinity, raw_samples: args.raw, ..Options::new(seed) };
    let is_whole = campaign::run(&campaign, &options, args.ipv6, &mut recorder, &interrupted)?;
    let state = if is_whole { RunState::Complete } else { RunState::Interrupted };
    let result = recorder.finish(state, options.started.elapsed().as_secs_f64())?;
    match args.format.format {
        Format::Json => output::json(&result)?,
        Format::Text => {
            let report = folder.report().display().to_string();
            output::data(&terminal::summary(&result, &output::style(), Some(&report)))?;
        }
    }
    if !is_whole {
        return Ok(Exit::Interrupted);
    }
    if result.series.is_empty() {
        return Err(Stop::with(
            Exit::Environment,
            format!("nothing could be measured; {} says why", folder.report().display()),
        ));
    }
    Ok(result.outcome.into())
}

fn seconds(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The result folder: the one asked for, or one named by time and host.
fn make_folder(out: Option<&PathBuf>, at: Timestamp) -> Result<(String, ResultFolder)> {
    let host = nm_host::facts().host.name;
    let name = file_name(&format!("{}-{host}", at.strftime("%Y%m%dT%H%M%SZ")));
    let folder = match out {
        Some(path) => ResultFolder::at(path)?,
        None => ResultFolder::create(OUT.as_ref(), &name)?,
    };
    Ok((name, folder))
}

/// The rows of a campaign as they would run, and those that would not.
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

/// Words of `--only`: of each kind that is named, a row must have one.
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
        let is_meant = |word: &String| {
            let ends = [stack.client, stack.server];
            *word == stack.to_string()
                || ends.iter().any(|end| {
                    let launcher = end.launcher.is_some_and(|launcher| launcher.name() == word);
                    launcher || end.protocol.name() == word || end.mode.name() == word
                })
        };
        self.stacks.is_empty() || self.stacks.iter().any(is_meant)
    }

    /// Takes the other rows out of the plan, and targets and comparisons that speak of them only.
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
        let places: Vec<String> = plan
            .trials
            .iter()
            .flat_map(|b| b.environments.iter().map(move |e| (e, b)))
            .flat_map(|(e, b)| {
                b.stacks.iter().map(move |stack| format!("{e}/{}", b.probe.stack_name(stack)))
            })
            .collect();
        let speaks = |on: &str| {
            let selector = nm_judge::Selector::new(on);
            places.iter().any(|place| {
                let (environment, stack) = place.split_once('/').unwrap_or((place, ""));
                selector.takes(environment, stack)
            })
        };
        let probes: Vec<ProbeKind> = plan.trials.iter().map(|b| b.probe.kind()).collect();
        plan.targets.retain(|target| {
            speaks(&target.on) && target.probe.is_none_or(|probe| probes.contains(&probe))
        });
        plan.comparisons.retain(|both| {
            [&both.a, &both.b].iter().all(|side| side.starts_with("reference:") || speaks(side))
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
    fn words_of_one_kind_add_up_and_kinds_narrow_down() {
        assert_eq!(rows(&["netns", "tcp-spin", "pingpong"]), ["netns/tcp-spin pingpong"]);
        let udp = rows(&["udp", "netns", "bridge"]);
        assert!(udp.len() >= 2 && udp.iter().all(|row| row.contains("/udp-")), "{udp:?}");
        assert!(rows(&[]).len() > udp.len());
        let accel = rows(&["accel", "loopback"]);
        assert!(!accel.is_empty() && accel.iter().all(|row| row.contains("/accel+")), "{accel:?}");
    }

    #[test]
    fn a_choice_that_leaves_nothing_says_so() {
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
