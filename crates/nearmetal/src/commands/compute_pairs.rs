//! `nearmetal compute pairs`: which CPUs share a core, and whether the kernel says so.

use std::sync::atomic::Ordering;

use anyhow::Result;
use nm_model::Failure;
use nm_model::verdict::Interval;
use nm_probe::compute::error::ComputeError;
use nm_probe::compute::layout_cpus::cores;
use nm_probe::compute::pairs::{self, Finding, PAIRS_MAX, Pair, SHARED_RATIO};
use nm_report::style::Tone;
use nm_report::table::{Column, Table};
use nm_report::units;
use nm_sys::cpu;
use schemars::JsonSchema;
use serde::Serialize;

use super::cpus::not_usable;
use crate::campaign::interrupt;
use crate::cli::compute::PairsArgs;
use crate::cli::format::Format;
use crate::document::Document;
use crate::exit::{Exit, Stop};
use crate::output;

/// Which CPUs share a core.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Pairs {
    pairs: Vec<PairDocument>,
}

/// Two CPUs.
#[derive(Debug, Serialize, JsonSchema)]
struct PairDocument {
    cpus: [u32; 2],
    /// CPU time together divided by CPU time alone: the median of `ratios`.
    ratio: Option<f64>,
    /// Its interval.
    interval: Option<Interval>,
    /// One ratio for each undisturbed repeat.
    ratios: Vec<f64>,
    /// `one core`, `two cores` or `unclear`.
    finding: String,
    /// Whether the kernel says that they share a core.
    kernel_shows_siblings: bool,
    /// Whether the kernel is right; absent if unclear.
    kernel_agrees: Option<bool>,
}

impl Document for Pairs {
    const NAME: &'static str = "cpu-pairs";
}

pub fn run(args: &PairsArgs) -> Result<Exit> {
    let (allowed, siblings) = (cpu::allowed(), cpu::siblings());
    let cpus = args.cpus.cpus.as_ref().map_or(allowed.clone(), |list| list.0.clone());
    not_usable(&cpus)?;
    cores(&allowed, &siblings, &cpus).map_err(|e| Failure::from(ComputeError::from(e)))?;
    let count = pairs::pairs(&cpus).len();
    if count == 0 {
        return Err(Stop::usage("a pair needs two CPUs; name more of them in --cpus"));
    }
    if count > PAIRS_MAX {
        let message = format!(
            "{} CPUs have {count} pairs, and at most {PAIRS_MAX} are tried; choose fewer by --cpus",
            cpus.len()
        );
        return Err(Stop::usage(message));
    }
    let interrupted = interrupt::flag()?;
    let what = units::plural(count, "pair", "pairs");
    output::message(&format!("{what}, {} rounds; Ctrl-C ends it", args.repeats));
    let cancelled = || interrupted.load(Ordering::Relaxed);
    let found = pairs::measure(&cpus, &siblings, args.repeats, &cancelled, &mut |round| {
        output::message(&format!("  round {} of {}", round + 1, args.repeats));
    });
    let found = found.map_err(Failure::from)?;
    match args.format.format {
        Format::Text => output::text(&text(&found, args.repeats))?,
        Format::Json => output::json(&Pairs { pairs: found.iter().map(as_document).collect() })?,
    }
    Ok(Exit::Pass)
}

fn text(found: &[Pair], repeats: u32) -> String {
    let columns = [
        Column::text("CPUs"),
        Column::figure("together / alone"),
        Column::text("95 % interval"),
        Column::figure("rounds"),
        Column::text("finding"),
        Column::text("kernel"),
    ];
    let mut table = Table::new("", columns);
    for pair in found {
        let ratio = |value: f64| units::significant(value, 3);
        let interval = pair.interval.map_or_else(String::new, |ends| {
            format!("{} to {}", ratio(ends.low), ratio(ends.high))
        });
        let kernel = match (pair.shown_as_siblings, pair.agrees()) {
            (true, Some(false)) => "WRONG: shows one core",
            (false, Some(false)) => "WRONG: shows two cores",
            (true, _) => "shows one core",
            (false, _) => "shows two cores",
        };
        let tone = if pair.agrees() == Some(false) { Tone::Bad } else { Tone::Plain };
        let (a, b) = pair.cpus;
        let cells = [
            format!("{a}, {b}"),
            units::or_not_available(pair.ratio, ratio),
            interval,
            pair.ratios.len().to_string(),
            finding(pair.finding).to_string(),
            kernel.to_string(),
        ];
        table.push(tone, cells.to_vec());
    }
    format!("{}\n{}\n", table.to_text(&output::style()), conclusion(found, repeats))
}

/// What follows from all pairs, in one sentence.
fn conclusion(found: &[Pair], repeats: u32) -> String {
    let count = |agrees| found.iter().filter(|pair| pair.agrees() == agrees).count();
    let (wrong, unclear) = (count(Some(false)), count(None));
    let of = units::plural(found.len(), "pair", "pairs");
    match (wrong, unclear) {
        (0, 0) => format!("The topology that the kernel shows is right for all of {of}."),
        (0, unclear) => {
            let counted = found.iter().map(|pair| pair.ratios.len()).min().unwrap_or(0);
            let hint = match counted < repeats as usize / 2 {
                true => format!(
                    "only {counted} of {repeats} repeats were undisturbed, as other programs used \
                     the CPUs; repeat on a quiet machine"
                ),
                false => "repeat on a quiet machine, or with more --repeats".to_string(),
            };
            format!("{unclear} of {of} unclear: {hint}.")
        }
        (wrong, _) => format!(
            "The topology that the kernel shows is wrong for {wrong} of {of}: CPU time together \
             above {SHARED_RATIO} times that alone means one core. Pin hot threads by this table."
        ),
    }
}

fn finding(finding: Finding) -> &'static str {
    match finding {
        Finding::Shared => "one core",
        Finding::Separate => "two cores",
        Finding::Unclear => "unclear",
    }
}

fn as_document(pair: &Pair) -> PairDocument {
    PairDocument {
        cpus: [pair.cpus.0, pair.cpus.1],
        ratio: pair.ratio,
        interval: pair.interval.map(|ends| Interval {
            low: ends.low,
            high: ends.high,
            level: ends.level,
        }),
        ratios: pair.ratios.clone(),
        finding: finding(pair.finding).to_string(),
        kernel_shows_siblings: pair.shown_as_siblings,
        kernel_agrees: pair.agrees(),
    }
}
