//! Judges a day: the phases by their seconds outside the limit, the events by the seconds around
//! them.

use std::ops::Range;

use nm_model::Outcome;
use nm_stats::quantile::samples_needed;

use super::collect::Collected;
use super::event::{DayEvent, EventKind};
use super::result::{EventFigures, PhaseFigures, Span};
use super::second::{SecondFigures, SecondState};
use crate::round::CALM_NS;
use crate::sla::Sla;

/// How many seconds before and after an event are looked at.
pub const AROUND_S: u32 = 10;

/// Most events of a day that are judged.
pub const EVENTS_MAX: usize = 10_000;

/// The events in the order of their starts, with the seconds around them, and the number of those
/// beyond [`EVENTS_MAX`]. The day started at `start_ns`.
pub fn events(
    mut events: Vec<DayEvent>,
    collected: &Collected,
    start_ns: u64,
    sla: Sla,
) -> (Vec<EventFigures>, u64) {
    events.sort_by_key(|event| (event.at_ns, event.kind));
    let left_out = events.len().saturating_sub(EVENTS_MAX);
    events.truncate(EVENTS_MAX);
    let judge = |event: DayEvent| figures(event, collected, start_ns, sla);
    (events.into_iter().map(judge).collect(), left_out as u64)
}

fn figures(event: DayEvent, collected: &Collected, start_ns: u64, sla: Sla) -> EventFigures {
    let at_ns = event.at_ns.saturating_sub(start_ns);
    let until_ns = event.until_ns.saturating_sub(start_ns).max(at_ns);
    let first = (at_ns / 1_000_000_000) as u32;
    // An event that ends with a second does not touch the next one.
    let end = (until_ns.div_ceil(1_000_000_000) as u32).max(first + 1);
    let span = |range: Range<u32>| span(&collected.seconds, range);
    let recovery =
        (collected.slow_left_out == 0).then(|| sla.recovery_after(&collected.slow, at_ns, CALM_NS));
    EventFigures {
        at_s: at_ns as f64 / 1e9,
        until_s: until_ns as f64 / 1e9,
        kind: event.kind,
        detail: event.detail,
        before: span(first.saturating_sub(AROUND_S)..first),
        during: span(first..end),
        after: span(end..end.saturating_add(AROUND_S)),
        back_ms: recovery.map(|(back_ns, _)| back_ns as f64 / 1e6),
        worst_ms: recovery.map(|(_, worst_ns)| worst_ns as f64 / 1e6),
    }
}

/// The sums of the seconds of a range, as far as they were run.
fn span(seconds: &[SecondFigures], range: Range<u32>) -> Span {
    let end = (range.end as usize).min(seconds.len());
    let seconds = seconds.get(range.start as usize..end).unwrap_or_default();
    let mut span = Span::default();
    let larger = |most: Option<f64>, value: Option<f64>| match (most, value) {
        (Some(most), Some(value)) => Some(most.max(value)),
        (most, value) => most.or(value),
    };
    for second in seconds {
        span.seconds += 1;
        span.outside_s += u32::from(second.state == SecondState::Outside);
        span.undecided_s += u32::from(second.state == SecondState::Undecided);
        span.offered += second.offered;
        span.replies += second.replies;
        span.lost += second.lost;
        span.es10_max_ns = larger(span.es10_max_ns, second.es10_ns);
        span.p99_max_ns = larger(span.p99_max_ns, second.p99_ns);
    }
    span
}

/// The verdict on a day that came to its end, and why it is not a pass. `outside_max_s`: seconds
/// that may be outside the limit in phases that do not say it themselves.
pub fn verdict(
    phases: &[PhaseFigures],
    events: &[EventFigures],
    unfinished: Option<String>,
    outside_max_s: u32,
) -> (Outcome, Vec<String>) {
    let (mut failures, mut doubts) = (vec![], vec![]);
    for phase in phases {
        let allowed = phase.outside_max_s.unwrap_or(outside_max_s);
        let name = &phase.name;
        if phase.lost > 0 {
            let (lost, sent) = (phase.lost, phase.sent);
            let refused = match phase.refused {
                0 => String::new(),
                refused => format!(", {refused} of them because they were refused"),
            };
            failures.push(format!(
                "phase `{name}`: {lost} of {sent} requests were not answered{refused}"
            ));
        }
        let outside = phase.outside_s;
        if outside > allowed {
            let worst = phase.worst_second.as_ref();
            let at = worst.map_or(String::new(), |it| format!(", the worst at {} s", it.at_s));
            let seconds = phase.judged_s;
            failures.push(format!(
                "phase `{name}`: {outside} of {seconds} s outside the limit{at}, {allowed} allowed"
            ));
        } else if outside + phase.undecided_s > allowed {
            let undecided = phase.undecided_s;
            doubts.push(format!(
                "phase `{name}`: in {undecided} s the load generator itself was late, so whether \
                 they are outside the limit is not known"
            ));
        }
    }
    for event in events.iter().filter(|event| event.kind == EventKind::Restart) {
        doubts.push(format!("at {:.1} s {}", event.at_s, event.detail));
    }
    doubts.extend(unfinished);
    let sent: u64 = phases.iter().map(|phase| phase.sent).sum();
    if sent < samples_needed(99.0) {
        let needed = samples_needed(99.0);
        doubts.push(format!(
            "{sent} requests were sent in all, p99 needs {needed}: raise the rate or the seconds"
        ));
    }
    let outcome = match (failures.is_empty(), doubts.is_empty()) {
        (false, _) => Outcome::Fail,
        (true, false) => Outcome::Inconclusive,
        (true, true) => Outcome::Pass,
    };
    failures.append(&mut doubts);
    (outcome, failures)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nm_stats::summary::Sample;

    const SECOND_NS: u64 = 1_000_000_000;
    const START_NS: u64 = 77 * SECOND_NS;

    fn second(number: u32, state: SecondState) -> SecondFigures {
        SecondFigures {
            second: number,
            phase: 0,
            offered: 100.0,
            sent: 100,
            replies: 90,
            lost: 0,
            refused: 0,
            mean_ns: Some(1e6),
            es10_ns: Some(1e6 * f64::from(number)),
            p99_ns: None,
            max_ns: Some(1),
            lateness_p99_ns: Some(1),
            state,
        }
    }

    /// Forty seconds, of which some are outside the limit.
    fn collected(outside: &[u32]) -> Collected {
        let state = |at| match outside.contains(&at) {
            true => SecondState::Outside,
            false => SecondState::Within,
        };
        let seconds = (0..40).map(|at| second(at, state(at))).collect();
        Collected { seconds, ..Collected::default() }
    }

    fn event(at_s: f64, until_s: f64) -> DayEvent {
        let at = |at_s: f64| START_NS + (at_s * 1e9) as u64;
        DayEvent::at(at(at_s), EventKind::Fault, "x").until(at(until_s))
    }

    #[test]
    fn the_seconds_around_an_event_are_before_during_or_after_it() {
        let collected = collected(&[3, 14, 20, 21, 22, 35]);
        let judge = |at_s, until_s| {
            let found = figures(event(at_s, until_s), &collected, START_NS, Sla::default());
            [found.before, found.during, found.after].map(|span| (span.seconds, span.outside_s))
        };
        assert_eq!(judge(20.5, 22.1), [(10, 1), (3, 3), (10, 0)]);
        assert_eq!(judge(20.0, 20.0), [(10, 1), (1, 1), (10, 2)]);
        assert_eq!(judge(20.0, 22.0), [(10, 1), (2, 2), (10, 1)]);
        assert_eq!(judge(2.9, 2.9), [(2, 0), (1, 0), (10, 1)]);
        assert_eq!(judge(36.0, 99.0), [(10, 1), (4, 0), (0, 0)]);
        assert_eq!(judge(60.0, 61.0), [(0, 0); 3]);
        let found = figures(event(20.0, 23.0), &collected, START_NS, Sla::default());
        assert_eq!((found.during.offered, found.during.replies), (300.0, 270));
        assert_eq!((found.during.es10_max_ns, found.during.p99_max_ns), (Some(22e6), None));
        // What began before the day counts from its start.
        let early = DayEvent { at_ns: 0, until_ns: 0, ..event(0.0, 0.0) };
        assert_eq!(figures(early, &collected, START_NS, Sla::default()).at_s, 0.0);
    }

    #[test]
    fn time_outside_the_limit_after_an_event_is_that_of_its_slow_requests() {
        let mut collected = collected(&[]);
        let slow = |at_ms: u64| Sample { start_ns: at_ms * 1_000_000, latency_ns: 50_000_000 };
        collected.slow = vec![slow(20_010), slow(20_100), slow(20_300), slow(21_000)];
        let found = figures(event(20.0, 20.0), &collected, START_NS, Sla::default());
        assert_eq!((found.back_ms, found.worst_ms), (Some(300.0), Some(50.0)));
        collected.slow_left_out = 1;
        let found = figures(event(20.0, 20.0), &collected, START_NS, Sla::default());
        assert_eq!((found.back_ms, found.worst_ms), (None, None));
    }

    #[test]
    fn events_are_sorted_and_limited() {
        let many = (0..EVENTS_MAX + 5).rev().map(|at| event(at as f64 / 1e3, 0.0)).collect();
        let (found, left_out) = events(many, &collected(&[]), START_NS, Sla::default());
        assert_eq!((found.len(), left_out), (EVENTS_MAX, 5));
        assert!(found.is_sorted_by(|a, b| a.at_s <= b.at_s));
    }

    #[test]
    fn the_verdict_follows_from_seconds_outside_losses_and_doubts() {
        let phase = |outside_s, undecided_s, lost, outside_max_s| PhaseFigures {
            name: "open".to_string(),
            judged_s: 20,
            sent: 1_000,
            outside_s,
            undecided_s,
            lost,
            outside_max_s,
            ..PhaseFigures::default()
        };
        let judge = |phase: PhaseFigures| {
            let (outcome, reasons) = verdict(&[phase], &[], None, 0);
            (outcome, reasons.join("; "))
        };
        assert_eq!(judge(phase(0, 0, 0, None)), (Outcome::Pass, String::new()));
        assert_eq!(judge(phase(2, 0, 0, Some(2))).0, Outcome::Pass);
        assert_eq!(judge(phase(0, 1, 0, Some(1))).0, Outcome::Pass);
        let (outcome, why) = judge(phase(3, 9, 0, Some(2)));
        assert_eq!(outcome, Outcome::Fail);
        assert_eq!(why, "phase `open`: 3 of 20 s outside the limit, 2 allowed");
        let (outcome, why) = judge(phase(1, 2, 0, Some(2)));
        assert_eq!(outcome, Outcome::Inconclusive);
        assert!(why.contains("in 2 s the load generator itself was late"), "{why}");
        let (outcome, why) = judge(PhaseFigures { sent: 0, ..phase(0, 0, 0, None) });
        assert_eq!(outcome, Outcome::Inconclusive, "nothing was measured");
        let few = "0 requests were sent in all, p99 needs 1000: raise the rate or the seconds";
        assert_eq!(why, few);
        let (outcome, _) = judge(PhaseFigures { sent: 999, ..phase(0, 0, 0, None) });
        assert_eq!(outcome, Outcome::Inconclusive, "too little was measured");
        // A lost request is never allowed.
        let (outcome, why) = judge(phase(1, 0, 7, Some(5)));
        assert_eq!(outcome, Outcome::Fail);
        assert_eq!(why, "phase `open`: 7 of 1000 requests were not answered");
        let restart = EventFigures {
            kind: EventKind::Restart,
            ..figures(event(3.0, 3.0), &collected(&[]), START_NS, Sla::default())
        };
        let (outcome, reasons) = verdict(&[phase(1, 0, 0, None)], &[restart], None, 1);
        assert_eq!((outcome, &reasons[..]), (Outcome::Inconclusive, &["at 3.0 s x".into()][..]));
    }
}
