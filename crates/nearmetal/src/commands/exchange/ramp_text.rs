//! The result of a scripted day as text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use nm_model::Outcome;
use nm_report::style::{Style, Tone};
use nm_report::table::{Column, Table};
use nm_report::terminal::Extent;
use nm_run::day::EventKind;
use nm_run::day::result::{DayResult, EventFigures, PhaseFigures, Span};

/// Most events of one kind that have a line each.
const EVENT_LINES_MAX: usize = 20;

/// A phase that has ended, in a line.
pub fn phase_line(phase: &PhaseFigures) -> String {
    format!(
        "{}: {:.0} of {:.0} requests/s, ES10 {} ms, p99 {} ms, {} of {} s outside the limit",
        phase.name,
        phase.replies_per_s(),
        phase.offered_per_s(),
        ms(phase.es10_ns),
        ms(phase.p99_ns),
        phase.outside_s,
        phase.judged_s,
    )
}

/// The result, with as much as `extent` says; `folder` is where it is kept.
pub fn text(result: &DayResult, extent: Extent, style: &Style, folder: &str) -> String {
    let mut text = String::new();
    if extent == Extent::Everything {
        let (network, name) = (&result.network, &result.script.name);
        let _ = writeln!(text, "Exchange {network}, `{name}`: round trips, ms");
        text += &phases(result).to_text(style);
        if !result.events.is_empty() {
            text += "\nEvents: seconds outside the limit of those before, during and after each\n";
            text += &events(result).to_text(style);
        }
        if result.phases.iter().any(|phase| phase.undecided_s > 0) {
            text += "\n+n?: n more seconds, in which the load generator itself was late\n";
        }
        text.push('\n');
    }
    let _ = writeln!(text, "{}", verdict(result, style));
    if extent != Extent::Verdict {
        for reason in &result.reasons {
            let _ = writeln!(text, "  {reason}");
        }
        if let Some(refusal) = &result.first_refusal {
            let _ = writeln!(text, "  the first request that was refused: {refusal}");
        }
    }
    let _ = writeln!(text, "day: {folder}");
    text
}

fn verdict(result: &DayResult, style: &Style) -> String {
    let seconds: u32 = result.phases.iter().map(|phase| phase.judged_s).sum();
    let outside: u32 = result.phases.iter().map(|phase| phase.outside_s).sum();
    let what = format!(
        "{outside} of {seconds} s outside the limit of {} ms for ES10 and p99",
        result.limit_ms
    );
    let (tone, word) = match result.outcome {
        Some(Outcome::Pass) => (Tone::Good, "PASS"),
        Some(Outcome::Fail) => (Tone::Bad, "FAIL"),
        Some(Outcome::Inconclusive) => (Tone::Unsure, "INCONCLUSIVE"),
        None => (Tone::Unsure, "INTERRUPTED"),
    };
    format!("{}: {what}", style.tone(tone, word))
}

fn phases(result: &DayResult) -> Table {
    let titles = [
        Column::text("phase"),
        Column::figure("s"),
        Column::figure("offered/s"),
        Column::figure("replies/s"),
        Column::figure("mean").leaves(2),
        Column::figure("p90").leaves(1),
        Column::figure("ES10"),
        Column::figure("p99"),
        Column::figure("max").leaves(3),
        Column::figure("lost"),
        Column::figure("s outside"),
        Column::text("worst second"),
    ];
    let mut table = Table::new("", titles);
    for phase in &result.phases {
        let outside = match phase.undecided_s {
            0 => phase.outside_s.to_string(),
            undecided => format!("{}+{undecided}?", phase.outside_s),
        };
        let worst = phase.worst_second.as_ref().map_or(String::new(), |worst| {
            let figures = match worst.lost {
                0 if worst.es10_ns > worst.p99_ns => ms(worst.es10_ns),
                0 => ms(worst.p99_ns),
                lost => format!("{lost} lost"),
            };
            format!("at {} s: {figures}", worst.at_s)
        });
        let tone = if phase.outside_s > 0 || phase.lost > 0 { Tone::Bad } else { Tone::Plain };
        table.push(
            tone,
            vec![
                phase.name.clone(),
                phase.judged_s.to_string(),
                format!("{:.0}", phase.offered_per_s()),
                format!("{:.0}", phase.replies_per_s()),
                ms(phase.mean_ns),
                ms(phase.p90_ns),
                ms(phase.es10_ns),
                ms(phase.p99_ns),
                ms(phase.max_ns),
                phase.lost.to_string(),
                outside,
                worst,
            ],
        );
    }
    table
}

fn events(result: &DayResult) -> Table {
    let titles = [
        Column::figure("at, s"),
        Column::text("event"),
        Column::text("what"),
        Column::text("before"),
        Column::text("during"),
        Column::text("after"),
        Column::figure("back, ms"),
        Column::figure("longest, ms"),
    ];
    let mut table = Table::new("", titles);
    let mut counts: BTreeMap<EventKind, usize> = BTreeMap::new();
    for event in &result.events {
        *counts.entry(event.kind).or_default() += 1;
    }
    let is_listed = |event: &&EventFigures| counts[&event.kind] <= EVENT_LINES_MAX;
    for event in result.events.iter().filter(is_listed) {
        table.push(
            tone(event),
            vec![
                format!("{:.1}", event.at_s),
                event.kind.to_string(),
                event.detail.clone(),
                span(&event.before),
                span(&event.during),
                span(&event.after),
                rounded_ms(event.back_ms),
                rounded_ms(event.worst_ms),
            ],
        );
    }
    for (kind, count) in counts.iter().filter(|(_, count)| **count > EVENT_LINES_MAX) {
        let of_kind = || result.events.iter().filter(|event| event.kind == *kind);
        let with_outside = |span: fn(&EventFigures) -> &Span| {
            let found = of_kind().filter(|event| span(event).outside_s > 0).count();
            format!("{found} of {count}")
        };
        let most = |value: fn(&EventFigures) -> Option<f64>| {
            rounded_ms(of_kind().filter_map(value).max_by(f64::total_cmp))
        };
        table.push(
            if of_kind().any(|event| tone(event) == Tone::Bad) { Tone::Bad } else { Tone::Plain },
            vec![
                of_kind().next().map_or(String::new(), |event| format!("{:.1}", event.at_s)),
                kind.to_string(),
                format!("{count} of them; those with a second outside, and the longest times"),
                with_outside(|event| &event.before),
                with_outside(|event| &event.during),
                with_outside(|event| &event.after),
                most(|event| event.back_ms),
                most(|event| event.worst_ms),
            ],
        );
    }
    table
}

fn tone(event: &EventFigures) -> Tone {
    let is_outside = event.during.outside_s > 0 || event.after.outside_s > 0;
    if is_outside { Tone::Bad } else { Tone::Plain }
}

fn span(span: &Span) -> String {
    match span.undecided_s {
        0 => format!("{}/{}", span.outside_s, span.seconds),
        undecided => format!("{}+{undecided}?/{}", span.outside_s, span.seconds),
    }
}

fn ms(ns: Option<f64>) -> String {
    ns.map_or("n/a".to_string(), |ns| format!("{:.3}", ns / 1e6))
}

fn rounded_ms(ms: Option<f64>) -> String {
    ms.map_or("n/a".to_string(), |ms| format!("{ms:.0}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nm_run::day::Script;
    use nm_run::day::result::{VERSION, WorstSecond};

    fn event(kind: EventKind, at_s: f64, outside_s: u32) -> EventFigures {
        let span = Span { seconds: 10, outside_s, ..Span::default() };
        EventFigures {
            at_s,
            until_s: at_s,
            kind,
            detail: "x".to_string(),
            before: Span::default(),
            during: Span { undecided_s: 3, ..span.clone() },
            after: span,
            back_ms: Some(at_s),
            worst_ms: None,
        }
    }

    fn result(outcome: Option<Outcome>, events: Vec<EventFigures>) -> DayResult {
        let worst_second =
            Some(WorstSecond { at_s: 7, es10_ns: Some(2e6), p99_ns: Some(12.5e6), lost: 0 });
        DayResult {
            version: VERSION,
            script: Script::step(10.0, 20.0, 10),
            network: "2-2-2-2".to_string(),
            seed: 1,
            stream_hash: None,
            limit_ms: 10.0,
            is_complete: outcome.is_some(),
            outcome,
            reasons: vec!["phase `before`: why".to_string()],
            phases: vec![PhaseFigures {
                name: "before".to_string(),
                seconds: 10,
                judged_s: 4,
                offered: 40.0,
                replies: 38,
                p99_ns: Some(1.5e6),
                outside_s: 1,
                undecided_s: 2,
                worst_second,
                ..PhaseFigures::default()
            }],
            events,
            events_left_out: 0,
            resent: 0,
            reconnects: 0,
            first_refusal: Some("TooManyPendingBytes".to_string()),
        }
    }

    const STYLE: Style = Style { colour: false, width: 140 };

    #[test]
    fn phases_events_and_verdict_are_shown_as_far_as_asked_for() {
        let result = result(Some(Outcome::Fail), vec![event(EventKind::Fault, 3.0, 2)]);
        let everything = text(&result, Extent::Everything, &STYLE, "out");
        for part in ["at 7 s: 12.500", "1+2?", "2+3?/10", "2/10", "FAIL: 1 of 4 s", "day: out"] {
            assert!(everything.contains(part), "{part}: {everything}");
        }
        assert!(everything.contains("refused: TooManyPendingBytes"), "{everything}");
        let targets = text(&result, Extent::Targets, &STYLE, "out");
        assert!(targets.contains("why") && !targets.contains("12.500"), "{targets}");
        let verdict = text(&result, Extent::Verdict, &STYLE, "out");
        assert_eq!(
            verdict,
            "FAIL: 1 of 4 s outside the limit of 10 ms for ES10 and p99\nday: out\n"
        );
        let line = phase_line(&result.phases[0]);
        assert!(line.starts_with("before: 10 of 10 requests/s, ES10 n/a ms"), "{line}");
    }

    #[test]
    fn many_events_of_a_kind_are_one_line() {
        let mut events: Vec<EventFigures> =
            (0..30).map(|at| event(EventKind::Move, f64::from(at), u32::from(at == 4))).collect();
        events.push(event(EventKind::Rate, 5.0, 0));
        let shown = text(&result(None, events), Extent::Everything, &STYLE, "out");
        assert!(shown.contains("30 of them") && shown.contains("1 of 30"), "{shown}");
        assert_eq!(shown.lines().filter(|line| line.contains(" move ")).count(), 1, "{shown}");
        assert_eq!(shown.lines().filter(|line| line.contains(" rate ")).count(), 1, "{shown}");
        assert!(shown.contains("INTERRUPTED: "), "{shown}");
    }
}
