//! An outcome as a small label with sign, word and colour.

use maud::{Markup, html};
use nm_model::Outcome;

use super::region::class;

/// The label of `outcome`.
pub fn badge(outcome: Outcome) -> Markup {
    let sign = match outcome {
        Outcome::Pass => "✓",
        Outcome::Fail => "✗",
        Outcome::Inconclusive => "?",
    };
    html! {
        span class=(format!("badge {}", class(outcome.into()).unwrap_or_default())) {
            span aria-hidden="true" { (sign) } " " (outcome)
        }
    }
}
