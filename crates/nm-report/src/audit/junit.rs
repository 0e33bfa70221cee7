//! An audit as JUnit XML: a suite for each group of checks, a case for each check. What is unknown
//! or not applicable is skipped, with the reason; failures below the limit are skipped as well, so
//! that the document fails where the command does.

use nm_model::finding::{Audit, Finding};
use nm_model::{FindingStatus, Severity};

use super::evidence_line;
use crate::junit::{CaseOutcome, Suite, TestCase, document as xml_document};

/// The XML document; failures of at least `fail_on` fail.
pub fn document(audit: &Audit, fail_on: Severity) -> String {
    let mut suites: Vec<Suite> = vec![];
    for finding in &audit.findings {
        let group = finding.id.split('.').next().unwrap_or_default();
        let case = TestCase { name: finding.id.clone(), outcome: outcome(finding, fail_on) };
        match suites.iter_mut().find(|suite| suite.name == group) {
            Some(suite) => suite.cases.push(case),
            None => suites.push(Suite { name: group.to_string(), cases: vec![case] }),
        }
    }
    suites.sort_by(|a, b| a.name.cmp(&b.name));
    suites.iter_mut().for_each(|suite| suite.cases.sort_by(|a, b| a.name.cmp(&b.name)));
    xml_document(&format!("audit of {}", audit.machine.name), None, &suites)
}

fn outcome(finding: &Finding, fail_on: Severity) -> CaseOutcome {
    match finding.status {
        FindingStatus::Pass => CaseOutcome::Passed,
        FindingStatus::Unknown => CaseOutcome::Skipped(format!("unknown: {}", finding.summary)),
        FindingStatus::NotApplicable => {
            CaseOutcome::Skipped(format!("not applicable: {}", finding.summary))
        }
        FindingStatus::Fail => {
            let evidence: Vec<String> = finding.evidence.iter().map(evidence_line).collect();
            let text = format!(
                "{}: {}; evidence: {}; fix: {}",
                finding.severity,
                finding.summary,
                evidence.join(" | "),
                finding.fix
            );
            match finding.severity >= fail_on {
                true => CaseOutcome::Failed(text),
                false => CaseOutcome::Skipped(format!("below --fail-on {fail_on}: {text}")),
            }
        }
    }
}
