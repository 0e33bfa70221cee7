//! An audit as SARIF 2.1.0, which code-scanning services and editors show.

use nm_model::finding::{Audit, Evidence, Finding};
use nm_model::{FindingStatus, Severity};
use serde_json::{Value, json};

use super::{evidence_line, remarks};
use crate::sarif::{Document, fingerprints, logical_location};

/// The document. Failed findings are results; every check that ran is a rule.
pub fn document(audit: &Audit, version: &str) -> Value {
    let mut rules: Vec<&Finding> = audit.findings.iter().collect();
    rules.sort_by(|a, b| a.id.cmp(&b.id));
    let index = |id: &str| rules.iter().position(|rule| rule.id == id).unwrap_or(0);
    let failed = audit.of(FindingStatus::Fail);
    let results: Vec<Value> = failed.map(|finding| result(finding, index(&finding.id))).collect();
    let unknown = audit.of(FindingStatus::Unknown).map(notification);
    Document {
        command: "audit",
        version: version.to_string(),
        subject: audit.machine.name.clone(),
        rules: rules.iter().map(|finding| rule(finding)).collect(),
        results,
        notifications: unknown.collect(),
    }
    .to_json()
}

fn level(severity: Severity) -> &'static str {
    match severity {
        Severity::Critical | Severity::High => "error",
        Severity::Medium => "warning",
        Severity::Low | Severity::Info => "note",
    }
}

/// The address of the first source that has one; the kernel's documents where none has.
fn help_uri(finding: &Finding) -> &str {
    let first = finding.sources.iter().find_map(|source| source.url.as_deref());
    first.unwrap_or("https://docs.kernel.org/admin-guide/index.html")
}

fn rule(finding: &Finding) -> Value {
    let help: Vec<String> =
        remarks(finding).iter().map(|(label, text)| format!("{label}: {text}")).collect();
    json!({
        "id": finding.id,
        "shortDescription": {"text": finding.title},
        "fullDescription": {"text": finding.why},
        "help": {"text": help.join("\n")},
        "helpUri": help_uri(finding),
        "defaultConfiguration": {"level": level(finding.severity)},
        "properties": {
            "tags": finding.threatens.iter().map(|threat| threat.name()).collect::<Vec<_>>(),
            "severity": finding.severity,
        },
    })
}

fn result(finding: &Finding, index: usize) -> Value {
    let subject = finding.evidence.first().map_or("", |evidence| &evidence.path);
    json!({
        "ruleId": finding.id,
        "ruleIndex": index,
        "level": level(finding.severity),
        "message": {"text": format!("{}. Fix: {}", finding.summary, finding.fix)},
        "locations": [location(finding.evidence.first(), &finding.id)],
        "relatedLocations": finding.evidence.iter().skip(1).enumerate()
            .map(|(id, evidence)| related(id, evidence)).collect::<Vec<_>>(),
        "partialFingerprints": fingerprints(&finding.id, subject),
    })
}

/// The path as a file's address: a call or a register becomes a name without blanks.
fn uri(path: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-#@:,".contains(c);
    let text: String = path.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
    // `#` begins a fragment.
    text.trim_start_matches('/').replace('#', "%23").replace(':', "%3A")
}

fn location(evidence: Option<&Evidence>, id: &str) -> Value {
    let path = evidence.map_or(id, |evidence| evidence.path.as_str());
    json!({
        "physicalLocation": {
            "artifactLocation": {"uri": uri(path)},
            "region": {"startLine": 1},
        },
        "logicalLocations": [logical_location(path)],
    })
}

fn related(id: usize, evidence: &Evidence) -> Value {
    let mut value = location(Some(evidence), "");
    value["id"] = json!(id + 1);
    value["message"] = json!({"text": evidence_line(evidence)});
    value
}

/// A check whose evidence is missing: no result, and not silence either.
fn notification(finding: &Finding) -> Value {
    json!({
        "level": "note",
        "message": {"text": format!("{}: {}", finding.id, finding.summary)},
        "associatedRule": {"id": finding.id},
    })
}
