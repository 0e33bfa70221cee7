//! What a check observed, with its evidence.

use nm_model::finding::Evidence;
use nm_model::{FindingStatus, Severity};
use nm_settings::SettingId;

/// What a check observed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    /// Pass, fail, unknown or not applicable.
    pub status: FindingStatus,
    /// What was found, as one sentence.
    pub summary: String,
    /// What was read, or could not be.
    pub evidence: Vec<Evidence>,
    /// Instead of the declared severity.
    pub severity: Option<Severity>,
    /// Words of the declared fix and what stands in their place.
    pub replacements: Vec<(&'static str, String)>,
    /// Of a check of several settings, those that are not as they should be.
    pub at_fault: Vec<SettingId>,
}

/// Longest text of one piece of evidence, characters.
const RAW_CHARS_MAX: usize = 160;

/// Most pieces of evidence of one finding; the first ones are kept.
const EVIDENCE_MAX: usize = 8;

impl Observed {
    fn new(status: FindingStatus, summary: impl Into<String>) -> Observed {
        let summary = summary.into();
        Observed {
            status,
            summary,
            evidence: vec![],
            severity: None,
            replacements: vec![],
            at_fault: vec![],
        }
    }

    /// The machine is as it should be.
    pub fn pass(summary: impl Into<String>) -> Observed {
        Observed::new(FindingStatus::Pass, summary)
    }

    /// The machine is not as it should be.
    pub fn fail(summary: impl Into<String>) -> Observed {
        Observed::new(FindingStatus::Fail, summary)
    }

    /// The evidence is missing.
    pub fn unknown(summary: impl Into<String>) -> Observed {
        Observed::new(FindingStatus::Unknown, summary)
    }

    /// The check does not concern this machine.
    pub fn not_applicable(summary: impl Into<String>) -> Observed {
        Observed::new(FindingStatus::NotApplicable, summary)
    }

    /// Fails with one sentence if `is_bad`, else passes with the other.
    pub fn bad_if(is_bad: bool, bad: impl Into<String>, good: impl Into<String>) -> Observed {
        if is_bad { Observed::fail(bad) } else { Observed::pass(good) }
    }

    /// Adds evidence.
    pub fn with(mut self, evidence: impl IntoIterator<Item = Evidence>) -> Observed {
        self.evidence.extend(evidence);
        self.evidence.truncate(EVIDENCE_MAX);
        self
    }

    /// The severity if it fails, instead of the declared one.
    pub fn severity(mut self, severity: Severity) -> Observed {
        self.severity = Some(severity);
        self
    }

    /// Names the settings at fault.
    pub fn at_fault(mut self, settings: Vec<SettingId>) -> Observed {
        self.at_fault = settings;
        self
    }

    /// Replaces a word of the declared fix.
    pub fn replace(mut self, word: &'static str, text: impl Into<String>) -> Observed {
        self.replacements.push((word, text.into()));
        self
    }
}

/// A piece of evidence; `raw` is shortened and put into one line.
pub fn evidence(path: impl Into<String>, raw: &str, parsed: impl Into<String>) -> Evidence {
    let mut line = raw.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() > RAW_CHARS_MAX {
        line = line.chars().take(RAW_CHARS_MAX).collect::<String>() + " …";
    }
    Evidence { path: path.into(), raw: Some(line), parsed: parsed.into() }
}

/// The evidence of a file that could not be read.
pub fn missing(path: impl Into<String>, reason: impl Into<String>) -> Evidence {
    Evidence { path: path.into(), raw: None, parsed: reason.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evidence_is_one_short_line_and_there_is_not_too_much() {
        let one = evidence("/a", &"x\n".repeat(500), "long");
        assert!(one.raw.as_ref().unwrap().chars().count() <= RAW_CHARS_MAX + 2);
        let observed = Observed::pass("many").with((0..100).map(|_| one.clone()));
        assert_eq!(observed.evidence.len(), EVIDENCE_MAX);
    }
}
