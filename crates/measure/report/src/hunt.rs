//! A hunt for a terminal: who is kept, and a sentence for each candidate.

use nm_fleet::hunt::{HuntFate, HuntResult};
use nm_model::result::RunState;

use crate::comparison_brief::{SENTENCE_LINES_MAX, sentence};
use crate::style::Style;
use crate::units;

/// Most candidates that a terminal is shown.
const SHOWN_MAX: usize = 40;

/// The hunt in sentences.
pub fn text(found: &HuntResult, style: &Style) -> String {
    let word = found.outcome.name().to_uppercase();
    let mut text = style.bold(&style.tone(found.outcome.into(), &word));
    let kept = found.candidates.iter().filter(|one| one.fate == HuntFate::Kept);
    let names: Vec<&str> = kept.map(|one| one.host.name.as_str()).collect();
    let hosts = units::plural(found.candidates.len(), "candidate", "candidates");
    let trials = units::plural(found.n_trials, "trial", "trials");
    let kept = match names.is_empty() {
        true => "nobody is kept".to_string(),
        false => format!("kept {}", names.join(", ")),
    };
    let early = match found.state {
        RunState::Complete => "",
        _ => "; it was ended early",
    };
    let head = format!(
        ": {kept} of {hosts} by {}, with {trials} instead of {}{early}",
        found.figure, found.n_trials_alike
    );
    text += &sentence(&head, 0, SENTENCE_LINES_MAX, style);
    let shown = found.candidates.iter().take(SHOWN_MAX);
    text.extend(shown.map(|one| sentence(&one.sentence, 2, SENTENCE_LINES_MAX, style)));
    match found.candidates.len().saturating_sub(SHOWN_MAX) {
        0 => text,
        n => text + &format!("  and {n} more in hunt.json\n"),
    }
}
