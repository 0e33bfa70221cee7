//! A gate in at most 30 lines for a terminal: what decided, what it finds, the primary figures, and
//! what else to know.

use nm_model::baseline::Baseline;
use nm_model::comparison::change_text;
use nm_model::doubt::DoubtKind;
use nm_model::gate::{Gate, GateFigure};
use nm_model::verdict::Relation;

use crate::comparison::relation_tone;
use crate::comparison_brief::{SENTENCE_LINES_MAX, sentence};
use crate::style::{Style, Tone};
use crate::table::{Column, Table};
use crate::units::{self, NOT_AVAILABLE};

/// Most lines of all.
const LINES_MAX: usize = 30;

/// Sentences behind the table, two lines each.
const REMARKS_MAX: usize = 3;

/// Sentences before the table: the deciding one and what the gate finds.
const LEADING: usize = 3;

/// `gate of run-7 against 8 accepted runs of rack 7`.
pub fn title(gate: &Gate) -> String {
    let runs = units::plural(gate.baselines.len(), "accepted run", "accepted runs");
    format!("gate of {} against {runs} of {}", gate.run.name, gate.machine)
}

/// The gate for a terminal.
pub fn text(gate: &Gate, style: &Style) -> String {
    let word = gate.outcome.name().to_uppercase();
    let mut text = style.bold(&style.tone(gate.outcome.into(), &word));
    text += &sentence(&format!(": {}", title(gate)), 0, 1, style);
    let (leading, rest) = gate.reasons.split_at(LEADING.min(gate.reasons.len()));
    text.extend(leading.iter().map(|one| sentence(one, 2, SENTENCE_LINES_MAX, style)));
    let remarks = remarks(gate, rest, style);
    let n_used = text.lines().count() + remarks.lines().count();
    // A blank line before the table, and one that counts what is left out.
    text += &figures(gate, LINES_MAX.saturating_sub(n_used + 2), style);
    text + &remarks
}

/// What else to know, behind a blank line.
fn remarks(gate: &Gate, rest: &[String], style: &Style) -> String {
    let mut remarks = rest.to_vec();
    remarks.extend(doubts(&gate.doubts));
    let n_more = remarks.len().saturating_sub(REMARKS_MAX);
    remarks.truncate(REMARKS_MAX);
    let mut text = String::new();
    if !remarks.is_empty() {
        text.push('\n');
    }
    text.extend(remarks.iter().map(|one| sentence(one, 2, 2, style)));
    if n_more > 0 {
        text += &format!("  and {n_more} more in --format json\n");
    }
    text
}

/// The doubts about a run as a sentence.
pub(crate) fn doubts(kinds: &[DoubtKind]) -> Option<String> {
    let titles: Vec<&str> = kinds.iter().map(|kind| kind.title()).collect();
    (!titles.is_empty()).then(|| format!("doubts about the run: {}", titles.join(", ")))
}

/// The primary figures, those that are worse first, in a table of at most so many lines.
fn figures(gate: &Gate, lines_max: usize, style: &Style) -> String {
    if gate.figures.is_empty() {
        return String::new();
    }
    let titles = [
        Column::text("primary figure of"),
        Column::text("figure"),
        Column::figure("accepted"),
        Column::figure("run"),
        Column::text("change"),
        Column::figure("finds within two"),
        Column::text("is"),
    ];
    let table_of = |shown: &[&GateFigure]| {
        let mut table = Table::new(String::new(), titles.clone());
        for row in shown {
            table.push(relation_tone(row.relation), cells(row));
        }
        table.to_text(style)
    };
    let mut sorted: Vec<&GateFigure> = gate.figures.iter().collect();
    sorted.sort_by_key(|row| row.relation != Relation::Worse);
    let mut n_shown = sorted.len();
    let mut text = table_of(&sorted);
    while text.lines().count() > lines_max && n_shown > 1 {
        n_shown -= 1;
        text = table_of(&sorted[..n_shown]);
    }
    if n_shown < sorted.len() {
        text += &format!("  and {} more in --format json\n", sorted.len() - n_shown);
    }
    format!("\n{text}")
}

/// The change of a figure in words.
fn change(row: &GateFigure) -> String {
    let change = row.ratio.and_then(|ratio| change_text(row.key.metric, ratio));
    change.unwrap_or_else(|| NOT_AVAILABLE.to_string())
}

/// How a figure stands to its baselines.
fn relation(relation: Relation) -> &'static str {
    match relation {
        Relation::Worse => "worse",
        Relation::Better => "better",
        Relation::Equivalent => "not worse",
        Relation::Differs | Relation::Unclear => "undecided",
    }
}

fn cells(row: &GateFigure) -> Vec<String> {
    vec![
        row.key.place(),
        row.key.metric.to_string(),
        units::figure(row.key.metric, row.baseline),
        units::figure(row.key.metric, row.value),
        change(row),
        match row.finds_by_two_percent {
            percent if percent < 1000.0 => format!("{percent:.0} %"),
            percent => format!("x{:.0}", percent / 100.0 + 1.0),
        },
        relation(row.relation).to_string(),
    ]
}

/// Accepted runs as a table, oldest first.
pub fn list(baselines: &[Baseline], n_not_read: usize, style: &Style) -> String {
    let titles = [
        Column::text("started (UTC)"),
        Column::text("machine"),
        Column::text("plan").optional(),
        Column::text("outcome"),
        Column::figure("figures"),
        Column::text("doubts").optional(),
        Column::text("run"),
    ];
    let mut table = Table::new(String::new(), titles);
    for one in baselines {
        table.push(
            Tone::Plain,
            vec![
                one.started.clone().unwrap_or_else(|| "not known".to_string()),
                one.machine.to_string(),
                one.plan.as_ref().map_or(String::new(), |plan| plan.name.clone()),
                one.outcome.name().to_string(),
                one.figures.len().to_string(),
                one.doubts.iter().map(|kind| kind.title()).collect::<Vec<_>>().join(", "),
                one.name.clone(),
            ],
        );
    }
    table.drop_empty();
    let runs = units::plural(baselines.len(), "accepted run", "accepted runs");
    let older = match n_not_read {
        0 => String::new(),
        n => format!("; {n} older ones are not read"),
    };
    match baselines.is_empty() {
        true => format!("no accepted run{older}\n"),
        false => format!("{runs}{older}\n\n{}", table.to_text(style)),
    }
}

#[cfg(test)]
mod tests {
    use nm_model::baseline::{FigureKey, MachineIdentity};
    use nm_model::gate::AcceptedRun;
    use nm_model::metric::Metric;
    use nm_model::probe::ProbeKind;
    use nm_model::result::Statistic;
    use nm_model::verdict::Outcome;

    use super::*;

    fn figure(at: usize) -> GateFigure {
        GateFigure {
            key: FigureKey {
                environment: "netns".to_string(),
                stack: format!("tcp-spin-{at}"),
                probe: ProbeKind::Pingpong,
                statistic: Statistic::HalfRoundTrip,
                cases: "over 1..1024 B".to_string(),
                metric: Metric::Percentile(99.0),
            },
            n_baselines: 8,
            baseline: Some(20_000.0),
            value: Some(30_000.0),
            ratio: Some(1.5),
            bounds: None,
            run_deviation_percent: 4.0,
            finds_percent: 40.0,
            finds_by_two_percent: 30.0,
            has_few_rounds: false,
            relation: Relation::Worse,
        }
    }

    #[test]
    fn the_largest_gate_has_at_most_30_lines() {
        let run = AcceptedRun { name: "run".to_string(), started: None };
        let gate = Gate {
            run: run.clone(),
            machine: MachineIdentity::default(),
            baselines: vec![run; 10],
            margin_percent: 5.0,
            run_deviation_percent: 5.0,
            is_stated: false,
            figures: (0..50).map(figure).collect(),
            doubts: DoubtKind::ALL.to_vec(),
            outcome: Outcome::Fail,
            reasons: vec!["one reason after the other, and so on. ".repeat(40); 30],
        };
        for width in [20, 60, 80, 100, 200] {
            let text = text(&gate, &Style { colour: false, width });
            assert!(text.lines().count() <= 30, "{width}: {text}");
            assert!(text.starts_with("FAIL: gate of run"), "{text}");
        }
    }
}
