//! `nearmetal exchange torture`: nodes killed at random under load, and verification after each
//! trial.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use nm_model::{ExchangeSpec, Failure, FailureKind, Mode, Protocol, Stack, StackPair};
use nm_report::style::Tone;
use nm_report::table::{Column, Table};
use nm_run::round::{self, Setup};
use nm_run::torture::{self, Trial, TrialFilter};
use nm_verify::Cuts;
use schemars::JsonSchema;
use serde::Serialize;

use crate::campaign::interrupt;
use crate::cli::exchange::TortureArgs;
use crate::cli::format::Format;
use crate::commands::exchange::setup;
use crate::document::Document;
use crate::exit::{Exit, Stop};
use crate::output;

/// Load before the measurement, ms.
const WARMUP_MS: u64 = 200;

/// Places in each cell's journal from which it is replayed.
const CUTS: u32 = 5;

/// Result of a trial.
#[derive(Debug, Serialize, JsonSchema)]
pub struct TrialReport {
    trial: u32,
    nodes: String,
    durability: String,
    killed: Vec<String>,
    /// Moves of instruments that the journals show.
    moves: u64,
    answered: u64,
    unanswered: u64,
    back_ms: Vec<f64>,
    /// Violations as sentences.
    violations: Vec<String>,
}

/// The trials.
#[derive(Debug, Serialize, JsonSchema)]
pub struct TortureDocument<'a> {
    trials: &'a [TrialReport],
}

impl Document for TortureDocument<'_> {
    const NAME: &'static str = "exchange-torture";
}

pub fn run(args: &TortureArgs) -> Result<Exit> {
    let wanted = TrialFilter { durability: args.durability, role: args.role };
    let has_pairs = match args.moves {
        true => !torture::guaranteed_while_moving(wanted).is_empty(),
        false => !torture::guaranteed_pairs(wanted).is_empty(),
    };
    if !has_pairs {
        return Err(Stop::usage(
            "without durability nothing is guaranteed about a mediator that dies; choose another \
             --durability or --role",
        ));
    }
    let mut hosts = nm_lab::exchange::setup(&ExchangeSpec::default(), &stacks(), 0, &args.out)?;
    setup::place(&mut hosts, &args.hosts)?;
    let interrupted = interrupt::flag()?;
    let mut all = vec![];
    for number in 0..args.trials {
        if interrupted.load(Ordering::Relaxed) {
            break;
        }
        let draw = if args.moves { torture::draw_with_moves } else { torture::draw };
        let Some(trial) = draw(args.seed, number, wanted, args.seconds) else { break };
        let ended = match run_trial(args, &trial, &hosts, &interrupted) {
            Ok(ended) => ended,
            Err(failure) if failure.kind == FailureKind::Cancelled => break,
            // A network that does not recover is a violation as well.
            Err(failure) if failure.kind == FailureKind::Peer => failed(&trial, &failure),
            Err(failure) => return Err(failure.into()),
        };
        output::message(&line(&ended, args.trials));
        all.push(ended);
    }
    // Removed only if it is empty: trials without violations leave no files.
    let _ = fs::remove_dir(&args.out);
    let violated = all.iter().filter(|ended| !ended.violations.is_empty()).count();
    match args.format.format {
        Format::Json => output::json(&TortureDocument { trials: &all })?,
        Format::Text => output::text(&summary(&all, violated, args))?,
    }
    if all.len() < args.trials as usize {
        return Ok(Exit::Interrupted);
    }
    Ok(if violated == 0 { Exit::Pass } else { Exit::Fail })
}

fn run_trial(
    args: &TortureArgs,
    trial: &Trial,
    hosts: &Setup,
    cancel: &AtomicBool,
) -> Result<TrialReport, Failure> {
    let spec = ExchangeSpec {
        nodes: trial.nodes,
        rate_per_s: args.rate,
        seconds: args.seconds,
        warmup_ms: WARMUP_MS,
        durability: trial.durability,
        moves_per_minute: trial.moves_per_minute,
        ..ExchangeSpec::default()
    };
    let folder = args.out.join(format!("trial-{}", trial.number));
    let mut setup = nm_lab::exchange::setup(&spec, &stacks(), trial.seed, &folder)?;
    setup.record = true;
    (setup.hosts, setup.host_data) = (hosts.hosts.clone(), hosts.host_data.clone());
    setup.kills = trial.kills.clone();
    setup.aimed_kills = trial.aimed.into_iter().collect();
    let outcome = round::run(&setup, cancel)?;
    let cuts = Cuts { count: CUTS, seed: trial.seed };
    let findings = nm_verify::folder_cut(&folder, cuts)?;
    let exchange = outcome.latency.exchange.unwrap_or_default();
    let mut violations: Vec<String> = findings.sentences.clone();
    violations.extend(findings.damage.iter().chain(&findings.doubts).cloned());
    if violations.is_empty() && !findings.is_clean() {
        violations.push("violations without a description".to_string());
    }
    if outcome.latency.lost > 0 {
        violations.push(format!("{} requests were never answered", outcome.latency.lost));
    }
    violations.extend(outcome.unexpected_restarts);
    if trial.moves_per_minute > 0.0 && findings.moves == 0 {
        violations.push("no instrument moved".to_string());
    }
    if let Some(aimed) = trial.aimed.filter(|_| exchange.faults.len() <= trial.kills.len()) {
        violations.push(format!("the {} was not found", aimed.aim.name()));
    }
    let ended = TrialReport {
        moves: findings.moves,
        answered: findings.answered,
        unanswered: outcome.latency.lost,
        back_ms: exchange.faults.iter().filter_map(|fault| fault.back_ms).collect(),
        violations,
        ..empty_report(trial)
    };
    if ended.violations.is_empty() {
        remove(&folder)?;
    }
    Ok(ended)
}

fn stacks() -> StackPair {
    StackPair::same(Stack::new(Protocol::Tcp, Mode::Epoll))
}

fn remove(folder: &Path) -> Result<(), Failure> {
    fs::remove_dir_all(folder).map_err(|error| {
        let message = format!("cannot remove {}: {error}", folder.display());
        Failure::new(FailureKind::System, message)
    })
}

fn empty_report(trial: &Trial) -> TrialReport {
    TrialReport {
        trial: trial.number,
        nodes: trial.nodes.to_string(),
        durability: trial.durability.to_string(),
        killed: trial.killed(),
        moves: 0,
        answered: 0,
        unanswered: 0,
        back_ms: vec![],
        violations: vec![],
    }
}

fn failed(trial: &Trial, failure: &Failure) -> TrialReport {
    TrialReport { violations: vec![failure.to_string()], ..empty_report(trial) }
}

fn line(ended: &TrialReport, trials: u32) -> String {
    let back: Vec<String> = ended.back_ms.iter().map(|ms| format!("{ms:.0} ms")).collect();
    let found = match ended.violations.first() {
        None => "no violation".to_string(),
        Some(first) => format!("{} violations, such as {first}", ended.violations.len()),
    };
    let moves = if ended.moves > 0 { format!("{} moves  ", ended.moves) } else { String::new() };
    format!(
        "{}/{trials}  {} {}  {moves}kill {}  back after {}  {found}",
        ended.trial + 1,
        ended.nodes,
        ended.durability,
        ended.killed.join(", "),
        back.join(", ")
    )
}

/// Trials by durability and classes of the killed nodes, with their recovery times.
fn summary(all: &[TrialReport], violated: usize, args: &TortureArgs) -> String {
    let mut groups: BTreeMap<(&str, String), Vec<&TrialReport>> = BTreeMap::new();
    for ended in all {
        groups.entry((&ended.durability, ended.killed.join(" + "))).or_default().push(ended);
    }
    let mut table = Table::new(
        "",
        [
            Column::text("durability"),
            Column::text("killed"),
            Column::figure("trials"),
            Column::figure("moves").optional(),
            Column::figure("answered"),
            Column::figure("wrong"),
            Column::figure("back, ms (median)"),
            Column::figure("worst"),
        ],
    );
    for ((durability, class), trials) in groups {
        let mut back: Vec<f64> =
            trials.iter().flat_map(|ended| ended.back_ms.iter().copied()).collect();
        back.sort_by(f64::total_cmp);
        let ms = |ms: Option<&f64>| ms.map_or("n/a".to_string(), |ms| format!("{ms:.0}"));
        let wrong = trials.iter().filter(|ended| !ended.violations.is_empty()).count();
        let answered: u64 = trials.iter().map(|ended| ended.answered).sum();
        let moves: u64 = trials.iter().map(|ended| ended.moves).sum();
        let tone = if wrong == 0 { Tone::Plain } else { Tone::Bad };
        table.push(
            tone,
            vec![
                durability.to_string(),
                class,
                trials.len().to_string(),
                moves.to_string(),
                answered.to_string(),
                wrong.to_string(),
                ms(back.get(back.len() / 2)),
                ms(back.last()),
            ],
        );
    }
    table.drop_empty();
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
