//! A check: its declaration, and the function that looks at a machine.

use nm_model::finding::{Confidence, Finding, Fix, FixKind, Threat, UndoClass};
use nm_model::{FindingStatus, Severity};

use crate::machine::Machine;
use crate::observed::Observed;
use nm_settings::catalogue::SETTINGS;
use nm_settings::source::Source;
use nm_settings::{Setting, SettingId};

/// One check.
#[derive(Debug, Clone, Copy)]
pub struct Check {
    /// Name, `group.name`.
    pub id: &'static str,
    /// What it is about.
    pub title: &'static str,
    /// What it can cost if it fails, unless the function says otherwise.
    pub severity: Severity,
    /// The settings of the catalogue that it judges. Why, sources, fix, undo and disputes are
    /// theirs: such a check declares none of its own.
    pub settings: &'static [SettingId],
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
        settings: &[],
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

    /// Why it matters, who says so, how it is fixed, how that is undone, and where guides disagree.
    /// Of a check of settings: what the catalogue says about those at fault, or about all.
    pub fn reasons(&self, at_fault: &[SettingId]) -> Reasons {
        if self.settings.is_empty() {
            return Reasons {
                why: self.why.to_string(),
                sources: self.sources.to_vec(),
                fix: Fix { kind: self.fix.0, text: self.fix.1.to_string() },
                undo: self.undo,
                conflict: self.conflict.map(str::to_string),
            };
        }
        let is_meant = |entry: &&Setting| {
            let id = &entry.id;
            self.settings.contains(id) && (at_fault.is_empty() || at_fault.contains(id))
        };
        // In the order in which they are applied.
        let entries: Vec<&Setting> = SETTINGS.iter().filter(is_meant).collect();
        let disputes: Vec<&str> = entries.iter().filter_map(|entry| entry.disputed).collect();
        let whys: Vec<&str> = entries.iter().map(|entry| entry.why).collect();
        let mut sources: Vec<Source> = vec![];
        for source in entries.iter().flat_map(|entry| entry.sources) {
            if !sources.contains(source) {
                sources.push(*source);
            }
        }
        Reasons {
            why: whys.join("; "),
            sources,
            fix: Fix {
                kind: entries.first().map_or(FixKind::Command, |entry| entry.fix().0),
                text: commands(&entries),
            },
            undo: entries.first().map_or(UndoClass::Nothing, |entry| entry.undo()),
            conflict: (!disputes.is_empty()).then(|| disputes.join("; ")),
        }
    }

    /// The finding for what was observed.
    pub fn with(&self, observed: Observed) -> Finding {
        let mut reasons = self.reasons(&observed.at_fault);
        // Where nothing was found, the word stays: `for c in ; do` is no command.
        for (word, text) in observed.replacements.iter().filter(|(_, text)| !text.is_empty()) {
            reasons.fix.text = reasons.fix.text.replace(word, text);
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
            why: reasons.why,
            sources: reasons.sources.iter().map(Source::citation).collect(),
            fix: reasons.fix,
            undo: reasons.undo,
            confidence: self.confidence,
            effect: self.effect.map(str::to_string),
            conflict: reasons.conflict,
            threatens: self.threatens.to_vec(),
        }
    }
}

/// The commands that set all of these, and what to know before.
fn commands(entries: &[&Setting]) -> String {
    let commands: Vec<String> = entries.iter().map(|entry| entry.fix().1).collect();
    let mut cautions: Vec<&str> = entries.iter().filter_map(|entry| entry.caution()).collect();
    cautions.dedup();
    let note = match cautions.is_empty() {
        true => String::new(),
        false => format!("   # {}", cautions.join(", ")),
    };
    commands.join("; ") + &note
}

/// What a finding says beside what was observed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reasons {
    /// Why it matters.
    pub why: String,
    /// Who says so.
    pub sources: Vec<Source>,
    /// How to remove the cause.
    pub fix: Fix,
    /// How the fix is undone.
    pub undo: UndoClass,
    /// Where guides disagree.
    pub conflict: Option<String>,
}
