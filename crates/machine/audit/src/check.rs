//! A check: its declaration, and the function that looks at a machine.

use nm_model::finding::{Confidence, Finding, Fix, FixKind, Threat, UndoClass};
use nm_model::{FindingStatus, Severity};

use crate::machine::Machine;
use crate::observed::Observed;
use crate::sources::Source;

/// One check.
#[derive(Debug, Clone, Copy)]
pub struct Check {
    /// Name, `group.name`.
    pub id: &'static str,
    /// What it is about.
    pub title: &'static str,
    /// What it can cost if it fails, unless the function says otherwise.
    pub severity: Severity,
    /// Why it matters.
    pub why: &'static str,
    /// Who says so.
    pub sources: &'static [Source],
    /// How to remove the cause. Words in capitals (`CPUS`, `LINK`, …) are replaced by what was
    /// found.
    pub fix: (FixKind, &'static str),
    /// How the fix is undone.
    pub undo: UndoClass,
    /// What the claim rests on.
    pub confidence: Confidence,
    /// Measured effect with its machine and source, where known.
    pub effect: Option<&'static str>,
    /// Where guides disagree.
    pub conflict: Option<&'static str>,
    /// Figures that suffer.
    pub threatens: &'static [Threat],
    /// Looks at a machine.
    pub run: fn(&Machine<'_>) -> Observed,
}

impl Check {
    /// What is not declared otherwise. Neither this nor a check that leaves it so passes the tests.
    pub(crate) const UNDECLARED: Check = Check {
        id: "",
        title: "",
        severity: Severity::Info,
        why: "",
        sources: &[],
        fix: (FixKind::Record, ""),
        undo: UndoClass::Nothing,
        confidence: Confidence::Documented,
        effect: None,
        conflict: None,
        threatens: &[],
        run: |_| Observed::unknown("the check has no function"),
    };

    /// The part of the name before the dot.
    pub fn group(&self) -> &'static str {
        self.id.split('.').next().unwrap_or_default()
    }

    /// What the check says of `machine`.
    pub fn finding(&self, machine: &Machine<'_>) -> Finding {
        self.with((self.run)(machine))
    }

    /// The finding for what was observed.
    pub fn with(&self, observed: Observed) -> Finding {
        let mut fix = self.fix.1.to_string();
        for (word, text) in &observed.replacements {
            fix = fix.replace(word, text);
        }
        Finding {
            id: self.id.to_string(),
            title: self.title.to_string(),
            severity: match observed.status {
                FindingStatus::Fail => observed.severity.unwrap_or(self.severity),
                _ => self.severity,
            },
            status: observed.status,
            summary: observed.summary,
            evidence: observed.evidence,
            why: self.why.to_string(),
            sources: self.sources.iter().map(Source::citation).collect(),
            fix: Fix { kind: self.fix.0, text: fix },
            undo: self.undo,
            confidence: self.confidence,
            effect: self.effect.map(str::to_string),
            conflict: self.conflict.map(str::to_string),
            threatens: self.threatens.to_vec(),
        }
    }
}
