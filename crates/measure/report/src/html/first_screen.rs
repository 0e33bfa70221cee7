//! The first screen: the outcome, the figure that decides it, and the doubts that weigh most. One
//! picture of the best stacks, and three sentences about them.

use maud::{Markup, html};
use nm_model::RunResult;
use nm_model::result::RunState;

use super::curves;
use super::region::class;
use super::trust;
use super::words::{self, explained};
use crate::factors;
use crate::first_screen::{self, Line};
use crate::title::hosts;
use crate::units;
use crate::view::{self, Notes};

/// Anchor of the section.
pub const ANCHOR: &str = "verdict";

/// The section.
pub fn first_screen(result: &RunResult, references: &[RunResult], notes: &Notes) -> Markup {
    let screen = first_screen::first_screen(result);
    let class = format!("verdict {}", class(screen.tone).unwrap_or_default());
    html! {
        section id=(ANCHOR) class=(class) aria-labelledby="verdict-h" tabindex="-1" {
            div.answer {
                h2 id="verdict-h" { (screen.word) }
                @for (index, line) in screen.lines.iter().filter(is_of_answer).enumerate() {
                    p.sentence[index == 0] { (labelled(line)) }
                }
                @if let Some(sentence) = factors::strongest(result) {
                    p { (sentence) " " a href="#factors" { "All factors" } "." }
                }
                (trust::heaviest(result, notes))
            }
            (curves::picture(result, references))
            @if screen.lines.iter().any(|line| line.topic.is_of_stacks()) {
                div.three {
                    @for line in screen.lines.iter().filter(|line| line.topic.is_of_stacks()) {
                        p { (labelled(line)) }
                    }
                }
            }
            div.run {
                (facts(result))
                (words::list(screen.lines.iter().map(|line| line.text.as_str())))
            }
        }
    }
}

fn is_of_answer(line: &&Line) -> bool {
    !line.topic.is_of_stacks()
}

fn labelled(line: &Line) -> Markup {
    html! {
        @if let Some(label) = line.topic.label() { b { (label) ": " } }
        (explained(&line.text))
    }
}

/// What was run, where and when.
fn facts(result: &RunResult) -> Markup {
    let samples = result.series.iter().filter_map(view::samples).fold(0, u64::saturating_add);
    let hosts = hosts(result);
    let facts = [
        ("plan", result.plan.as_ref().map(|plan| plan.name.clone())),
        ("machine", (!hosts.is_empty()).then(|| hosts.join(", "))),
        ("started (UTC)", result.started.clone()),
        ("took", result.duration_s.map(units::duration)),
        ("rounds", result.plan.as_ref().map(|plan| plan.rounds.to_string())),
        ("series", Some(result.series.len().to_string())),
        ("samples", (samples > 0).then(|| units::count(samples))),
        ("state", (result.state != RunState::Complete).then(|| result.state.to_string())),
    ];
    let summary = result.plan.as_ref().map(|plan| plan.summary.as_str()).unwrap_or_default();
    html! {
        dl.strip {
            @for (name, value) in facts {
                @if let Some(value) = value { div { dt { (name) } dd { (value) } } }
            }
        }
        @if !summary.is_empty() { p.reading { "The plan: " (summary.trim_end_matches('.')) "." } }
    }
}
