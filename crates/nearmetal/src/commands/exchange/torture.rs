//! `nearmetal exchange torture`: nodes killed at random under load, and the proof after each.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use nm_exchange_lab::run;
use nm_exchange_lab::torture::{self, Trial, Wanted};
use nm_exchange_lab::verify::{self, Cuts};
use nm_model::{ExchangeSpec, Failure, FailureKind, Mode, Protocol, Stack, StackPair};
use nm_report::table::{Table, Tone};
use serde::Serialize;

use crate::cli::exchange::TortureArgs;
use crate::cli::format::Format;
use crate::exit::{Exit, Stop};
use crate::{interrupt, output};

/// Load before the measurement, ms.
const WARMUP_MS: u64 = 200;

/// Places in each cell's journal from which it is replayed.
const CUTS: u32 = 5;

/// What a trial came to.
#[derive(Debug, Serialize)]
struct Ended {
    trial: u32,
    nodes: String,
    durability: String,
    killed: Vec<String>,
    answered: u64,
    unanswered: u64,
    back_ms: Vec<f64>,
    /// What is wrong, as sentences.
    violations: Vec<String>,
}

pub fn run(args: &TortureArgs) -> Result<Exit> {
    let wanted = Wanted { durability: args.durability, role: args.role };
    if torture::promises(wanted).is_empty() {
        return Err(Stop::usage(
            "without durability nothing is promised about a mediator that dies; choose another \
             --durability or --role",
        ));
    }
    let interrupted = interrupt::flag()?;
    let mut all = vec![];
    for number in 0..args.trials {
        if interrupted.load(Ordering::Relaxed) {
            break;
        }
        let Some(trial) = torture::draw(args.seed, number, wanted, args.seconds) else { break };
        let ended = match one(args, &trial, &interrupted) {
            Ok(ended) => ended,
            Err(failure) if failure.kind == FailureKind::Cancelled => break,
            // A network that does not come back is a finding, too.
            Err(failure) if failure.kind == FailureKind::Peer => failed(&trial, &failure),
            Err(failure) => return Err(failure.into()),
        };
        output::message(&line(&ended, args.trials));
        all.push(ended);
    }
    // Goes only if it is empty: trials that found nothing have left nothing.
    let _ = fs::remove_dir(&args.out);
    let violated = all.iter().filter(|ended| !ended.violations.is_empty()).count();
    match args.format.format {
        Format::Json => output::json(&all)?,
        Format::Text => output::data(&summary(&all, violated, args))?,
    }
    if all.len() < args.trials as usize {
        return Ok(Exit::Interrupted);
    }
    Ok(if violated == 0 { Exit::Pass } else { Exit::Fail })
}

fn one(args: &TortureArgs, trial: &Trial, cancel: &AtomicBool) -> Result<Ended, Failure> {
    let spec = ExchangeSpec {
        nodes: trial.nodes,
        rate_per_s: args.rate,
        seconds: args.seconds,
        warmup_ms: WARMUP_MS,
        durability: trial.durability,
        ..ExchangeSpec::default()
    };
    let stack = Stack::new(Protocol::Tcp, Mode::Epoll);
    let stacks = StackPair { client: stack, server: stack };
    let folder = args.out.join(format!("trial-{}", trial.number));
    let mut setup = nm_lab::exchange::setup(&spec, &stacks, trial.seed, &folder)?;
    setup.record = true;
    setup.kills = trial.kills.clone();
    let outcome = run::round(&setup, cancel)?;
    let cuts = Cuts { count: CUTS, seed: trial.seed };
    let findings = verify::folder_cut(&folder, cuts)?;
    let told = outcome.latency.exchange.unwrap_or_default();
    let mut violations: Vec<String> = findings.sentences.clone();
    if violations.is_empty() && !findings.is_clean() {
        violations.push("there are violations without words".to_string());
    }
    if outcome.latency.lost > 0 {
        violations.push(format!("{} requests were never answered", outcome.latency.lost));
    }
    violations.extend(outcome.trouble);
    let ended = Ended {
        answered: findings.answered,
        unanswered: outcome.latency.lost,
        back_ms: told.faults.iter().filter_map(|fault| fault.back_ms).collect(),
        violations,
        ..named(trial)
    };
    if ended.violations.is_empty() {
        remove(&folder)?;
    }
    Ok(ended)
}

fn remove(folder: &Path) -> Result<(), Failure> {
    fs::remove_dir_all(folder).map_err(|error| {
        let message = format!("cannot remove {}: {error}", folder.display());
        Failure::new(FailureKind::System, message)
    })
}

fn named(trial: &Trial) -> Ended {
    Ended {
        trial: trial.number,
        nodes: trial.nodes.to_string(),
        durability: trial.durability.to_string(),
        killed: trial.kills.iter().map(|kill| kill.role.to_string()).collect(),
        answered: 0,
        unanswered: 0,
        back_ms: vec![],
        violations: vec![],
    }
}

fn failed(trial: &Trial, failure: &Failure) -> Ended {
    Ended { violations: vec![failure.to_string()], ..named(trial) }
}

fn line(ended: &Ended, trials: u32) -> String {
    let back: Vec<String> = ended.back_ms.iter().map(|ms| format!("{ms:.0} ms")).collect();
    let found = match ended.violations.first() {
        None => "nothing wrong".to_string(),
        Some(first) => format!("{} wrong, such as {first}", ended.violations.len()),
    };
    format!(
        "{}/{trials}  {} {} kill {}  back after {}  {found}",
        ended.trial + 1,
        ended.nodes,
        ended.durability,
        ended.killed.join(", "),
        back.join(", ")
    )
}

/// Trials by durability and classes of the nodes that were killed, with the time back of each node.
fn summary(all: &[Ended], violated: usize, args: &TortureArgs) -> String {
    let mut groups: BTreeMap<(&str, String), Vec<&Ended>> = BTreeMap::new();
    for ended in all {
        groups.entry((&ended.durability, ended.killed.join(" + "))).or_default().push(ended);
    }
    let mut table = Table::new(
        "",
        &["durability", "killed", "#trials", "#answered", "#wrong", "#back, ms (median)", "#worst"],
    );
    for ((durability, class), of_it) in groups {
        let mut back: Vec<f64> =
            of_it.iter().flat_map(|ended| ended.back_ms.iter().copied()).collect();
        back.sort_by(f64::total_cmp);
        let ms = |ms: Option<&f64>| ms.map_or("n/a".to_string(), |ms| format!("{ms:.0}"));
        let wrong = of_it.iter().filter(|ended| !ended.violations.is_empty()).count();
        let answered: u64 = of_it.iter().map(|ended| ended.answered).sum();
        let tone = if wrong == 0 { Tone::Plain } else { Tone::Bad };
        table.push(
            tone,
            vec![
                durability.to_string(),
                class,
                of_it.len().to_string(),
                answered.to_string(),
                wrong.to_string(),
                ms(back.get(back.len() / 2)),
                ms(back.last()),
            ],
        );
    }
    let verdict = match violated {
        0 => {
            format!("{} trials, seed {}: nothing lost, doubled or reordered", all.len(), args.seed)
        }
        n => format!(
            "{n} of {} trials, seed {}, found something wrong; see {}",
            all.len(),
            args.seed,
            args.out.display()
        ),
    };
    format!("{verdict}\n\n{}", table.to_text(&output::style()))
}
