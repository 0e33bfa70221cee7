//! The findings of an audit in every format: terminal, Markdown, SARIF, JUnit, HTML.

pub mod html;
pub mod junit;
pub mod markdown;
pub mod sarif;
pub mod terminal;
pub mod threatened;

use nm_model::finding::{Audit, Finding, UndoClass};
use nm_model::{FindingStatus, Severity};

use crate::units;

/// Failed findings by severity, the most severe first; only those that there are.
pub fn by_severity(audit: &Audit) -> Vec<(Severity, Vec<&Finding>)> {
    let of = |severity: Severity| {
        let fails = audit.of(FindingStatus::Fail);
        (severity, fails.filter(|finding| finding.severity == severity).collect::<Vec<_>>())
    };
    let all = Severity::ALL.iter().rev().map(|severity| of(*severity));
    all.filter(|(_, findings)| !findings.is_empty()).collect()
}

/// What a severity stands for.
pub fn meaning(severity: Severity) -> &'static str {
    match severity {
        Severity::Critical => "invalidates figures, or stalls for 100 µs or longer",
        Severity::High => "10 µs or more, or a fifth of the p99",
        Severity::Medium => "1 to 10 µs, or only in the tail",
        Severity::Low => "less than 1 µs, or rare",
        Severity::Info => "explains figures",
    }
}

/// How a fix is undone, as a clause.
pub fn undo_text(undo: UndoClass) -> &'static str {
    match undo {
        UndoClass::Live => "undone at run time",
        UndoClass::Boot => "undone by a reboot without it",
        UndoClass::Host => "undone in the hypervisor's settings, with a restart of the machine",
        UndoClass::Firmware => "undone in the firmware, with a power cycle",
        UndoClass::Application => "undone in the application",
        UndoClass::Nothing => "nothing to undo",
    }
}

/// The machine in one line.
pub fn machine_line(audit: &Audit) -> String {
    let machine = &audit.machine;
    let name = if machine.name.is_empty() { "unnamed machine" } else { &machine.name };
    let kernel = if machine.kernel.is_empty() { "unknown" } else { &machine.kernel };
    let links = match machine.workload_links.as_slice() {
        [] => "no network device".to_string(),
        links => links.join(", "),
    };
    let cpus = units::plural(machine.cpus as usize, "CPU", "CPUs");
    format!(
        "{name} · {} · Linux {kernel} · {cpus} · workload: CPUs {}, {links}",
        machine.layer, machine.workload_cpus
    )
}

/// A piece of evidence in one line: `path: raw (parsed)`.
pub fn evidence_line(one: &nm_model::finding::Evidence) -> String {
    let raw = one.raw.as_ref().map_or(String::new(), |raw| format!(": {raw}"));
    let parsed = if one.parsed.is_empty() { String::new() } else { format!(" ({})", one.parsed) };
    format!("{}{raw}{parsed}", one.path)
}

/// Where guides disagree, what was measured, who says so: label and text of what there is.
pub fn remarks(finding: &Finding) -> Vec<(&'static str, String)> {
    let sources: Vec<&str> = finding.sources.iter().map(|one| one.title.as_str()).collect();
    let threats: Vec<&str> = finding.threatens.iter().map(|threat| threat.title()).collect();
    let mut all = vec![
        ("why", finding.why.clone()),
        ("threatens", threats.join(", ")),
        ("fix", format!("{} ({})", finding.fix, undo_text(finding.undo))),
    ];
    all.extend(finding.effect.iter().map(|text| ("measured", text.clone())));
    all.extend(finding.conflict.iter().map(|text| ("guides disagree", text.clone())));
    all.push(("source", format!("{} ({})", sources.join("; "), finding.confidence)));
    all
}
