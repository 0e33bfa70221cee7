//! What the factors of a plan did, and what shows that they were in force. It makes tables for
//! every format, and the sentence of the strongest effect.

use nm_model::comparison::change_text;
use nm_model::result::{FactorEffect, FactorResult};
use nm_model::verdict::{ComparisonRow, Interval, Relation};
use nm_model::{FactorCheck, RowId, RunResult};

use crate::probes::case_words;
use crate::style::Tone;
use crate::table::{Column, Table};
use crate::units::{self, or_not_available, significant};

/// How to read the chart and the table.
pub const READING: &str = "Each round measures a row without and with the factor. The ratio is the \
     figure with it divided by the figure without it; its interval is over rounds, and p is \
     corrected for all effects (Holm). Below 1 the factor makes a latency smaller. Guards are the \
     other figures, which must not become worse.";

/// An effect with its factor.
#[derive(Debug, Clone, Copy)]
pub struct Effect<'a> {
    /// The factor and all that was measured with it.
    pub of: &'a FactorResult,
    /// The effect.
    pub effect: &'a FactorEffect,
}

/// All effects, factor by factor.
pub fn effects(result: &RunResult) -> Vec<Effect<'_>> {
    let all = result.factors.iter();
    all.flat_map(|of| of.effects.iter().map(move |effect| Effect { of, effect })).collect()
}

impl Effect<'_> {
    /// `netns/tcp-blocking 64 B`, with the probe if it is no ping-pong.
    pub fn row(&self) -> String {
        let key = &self.effect.key;
        format!("{} {}", key.path(), case_words::text(&key.case))
    }

    /// `held: netns/tcp-blocking 64 B`.
    pub fn label(&self) -> String {
        format!("{}: {}", self.of.factor.name, self.row())
    }

    /// Whether it was in force, in rounds: `10 of 10 rounds`.
    pub fn shown(&self) -> String {
        let (shown, all) = self.of.shown(&self.effect.key);
        format!("{shown} of {}", units::plural(all, "round", "rounds"))
    }
}

fn tone(relation: Relation) -> Tone {
    match relation {
        Relation::Better => Tone::Good,
        Relation::Worse => Tone::Bad,
        _ => Tone::Plain,
    }
}

/// A ratio with its interval: `0.512 (0.48 to 0.55)`.
fn ratio_text(row: &ComparisonRow) -> String {
    or_not_available(row.ratio, |ratio| significant(ratio, 3))
}

fn interval_text(interval: Option<Interval>) -> String {
    or_not_available(interval.map(|ends| ends.low), |_| {
        let ends = interval.map(|ends| [ends.low, ends.high]).unwrap_or_default();
        format!("{} to {}", significant(ends[0], 3), significant(ends[1], 3))
    })
}

/// `p99 1.20 worse, max 0.90 unclear`.
fn guards_text(guards: &[ComparisonRow]) -> String {
    let guard =
        |row: &ComparisonRow| format!("{} {} {}", row.metric, ratio_text(row), row.finding());
    guards.iter().map(guard).collect::<Vec<_>>().join(", ")
}

/// The effects of all factors.
pub fn table(result: &RunResult) -> Table {
    let titles = [
        Column::text("factor"),
        Column::text("row"),
        Column::text("figure").leaves(4),
        Column::figure("off").leaves(5),
        Column::figure("on").leaves(6),
        Column::figure("on ÷ off"),
        Column::figure("95 % interval"),
        Column::figure("p").leaves(3),
        Column::text("on is"),
        Column::text("change").leaves(2),
        Column::text("in force"),
        Column::text("guards").leaves(1),
    ];
    let mut table = Table::new("Factors: with the factor (on) against without it (off)", titles);
    for one in effects(result) {
        let row = &one.effect.figure;
        let change = row.ratio.and_then(|ratio| change_text(row.metric, ratio));
        let cells = vec![
            one.of.factor.name.clone(),
            one.row(),
            row.metric.to_string(),
            units::figure(row.metric, row.a),
            units::figure(row.metric, row.b),
            ratio_text(row),
            interval_text(row.interval),
            or_not_available(row.p_value, |p| significant(p, 2)),
            row.finding().to_string(),
            change.unwrap_or_default(),
            one.shown(),
            guards_text(&one.effect.guards),
        ];
        table.push(tone(row.relation), cells);
    }
    table
}

/// What was read in the last round of each row, as proof.
pub fn evidence_table(result: &RunResult) -> Table {
    let titles = ["factor", "row", "round", "in force", "what was read", "value"].map(Column::text);
    let mut table = Table::new("What shows that the factors were in force (last round)", titles);
    for of in &result.factors {
        for check in last_checks(of) {
            let row = &check.row;
            let case =
                row.case.map_or(String::new(), |case| format!(" {}", case_words::text(&case)));
            let path = format!("{}/{} {}{case}", row.environment, row.stack, row.probe);
            let round = row.round.map_or(String::new(), |round| (round + 1).to_string());
            let in_force = match check.is_in_force {
                Some(true) => "yes",
                Some(false) => "no",
                None => "not known",
            };
            for evidence in &check.evidence {
                let cells = [
                    of.factor.name.as_str(),
                    &path,
                    &round,
                    in_force,
                    &evidence.source,
                    &evidence.value,
                ];
                table.push(Tone::Plain, cells.map(str::to_string).to_vec());
            }
        }
    }
    table
}

/// The last check of each row.
fn last_checks(of: &FactorResult) -> Vec<&FactorCheck> {
    let mut last: Vec<&FactorCheck> = vec![];
    for check in &of.checks {
        let id = |one: &FactorCheck| RowId { round: None, ..one.row.clone() };
        match last.iter().position(|known| id(known) == id(check)) {
            Some(at) => last[at] = check,
            None => last.push(check),
        }
    }
    last
}

/// What limits the findings, as sentences: notes of the trials, rows that could not be measured
/// with a factor, doubts.
pub fn limits(result: &RunResult) -> Vec<String> {
    let mut sentences = vec![];
    let mut add = |sentence: String| {
        if !sentences.contains(&sentence) {
            sentences.push(sentence);
        }
    };
    for of in &result.factors {
        let name = &of.factor.name;
        of.notes.iter().for_each(|note| add(format!("{name}: {note}")));
        for missing in &of.not_available {
            let (environment, stack, probe) = (missing.environment, missing.stack, missing.probe);
            add(format!(
                "{name} on {environment}/{stack} {probe}: not available: {}",
                missing.reason
            ));
        }
        let doubts = of.effects.iter().flat_map(|effect| &effect.doubts);
        doubts.for_each(|doubt| add(format!("{}: {}", doubt.kind.title(), doubt.detail)));
    }
    sentences
}

/// The strongest effect that is shown, with its factor in force, in words.
pub fn strongest(result: &RunResult) -> Option<String> {
    let is_shown = |one: &Effect<'_>| {
        matches!(one.effect.figure.relation, Relation::Better | Relation::Worse)
            && one.effect.doubts.is_empty()
    };
    let size = |one: &Effect<'_>| one.effect.figure.ratio.map_or(0.0, |ratio| ratio.ln().abs());
    let all = effects(result).into_iter().filter(is_shown);
    let one = all.max_by(|a, b| size(a).total_cmp(&size(b)))?;
    let row = &one.effect.figure;
    let change = change_text(row.metric, row.ratio?)?;
    let interval = interval_text(row.interval);
    let ratio = ratio_text(row);
    let (metric, place, title) = (row.metric, one.row(), one.of.factor.kind.title());
    Some(format!(
        "With {title} ({}) {metric} of {place} is {change}: {ratio} of the figure without, 95 % \
         interval {interval}.",
        one.of.factor.name
    ))
}
