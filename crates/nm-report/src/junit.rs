//! Verdicts as JUnit XML: a suite for each target with a case for each series judged, a suite for
//! what was not judged, one for the comparisons, one for trials. What is inconclusive, not judged
//! or not available is skipped, with the reason; it never counts as passed.

use nm_model::verdict::Verdict;
use nm_model::{Outcome, RunResult, Undecided};
use quick_xml::escape::escape;

/// Outcome of one test case.
pub(crate) enum CaseOutcome {
    /// As it should be.
    Passed,
    /// With the reason.
    Failed(String),
    /// With the reason.
    Skipped(String),
    /// With the reason.
    Error(String),
}

/// A test case.
pub(crate) struct TestCase {
    /// Its name.
    pub(crate) name: String,
    /// Its outcome.
    pub(crate) outcome: CaseOutcome,
}

/// Test cases under one name.
pub(crate) struct Suite {
    /// The name.
    pub(crate) name: String,
    /// The test cases.
    pub(crate) cases: Vec<TestCase>,
}

/// The XML document.
pub fn report(result: &RunResult) -> String {
    let mut suites: Vec<Suite> =
        result.verdicts.iter().map(|verdict| target(verdict, result.undecided.as_ref())).collect();
    // A disturbance stands beside each miss already.
    let cause = result.undecided.as_ref().filter(|undecided| !undecided.is_disturbed());
    let cause = cause.map(|undecided| TestCase {
        name: "outcome".to_string(),
        outcome: match undecided {
            Undecided::Lost { .. } => CaseOutcome::Error(undecided.to_string()),
            _ => CaseOutcome::Skipped(undecided.to_string()),
        },
    });
    suites.push(Suite { name: "run".to_string(), cases: cause.into_iter().collect() });
    let not_judged = result.not_judged.iter().map(|one| TestCase {
        name: one.text.clone(),
        outcome: CaseOutcome::Skipped(one.to_string()),
    });
    suites.push(Suite { name: "not judged".to_string(), cases: not_judged.collect() });
    let comparisons = result.comparisons.iter().map(|c| TestCase {
        name: format!("{} against {}", c.b, c.a),
        outcome: case_outcome(c.outcome, c.reasons.join("; ")),
    });
    suites.push(Suite { name: "comparisons".to_string(), cases: comparisons.collect() });
    let failures = result.failures.iter().enumerate().map(|(index, failure)| TestCase {
        name: format!("failed trial {}", index + 1),
        outcome: CaseOutcome::Error(failure.to_string()),
    });
    let missing = result.not_available.iter().map(|row| TestCase {
        name: format!("{}/{} {}", row.environment, row.stack, row.probe),
        outcome: CaseOutcome::Skipped(format!("not available: {}", row.reason)),
    });
    suites.push(Suite { name: "trials".to_string(), cases: failures.chain(missing).collect() });
    suites.retain(|suite| !suite.cases.is_empty());
    document(&result.name, result.started.as_deref(), &suites)
}

/// The document of some suites.
pub(crate) fn document(name: &str, started: Option<&str>, suites: &[Suite]) -> String {
    let all = || suites.iter().flat_map(|suite| &suite.cases);
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    text += &format!("<testsuites name=\"{}\" {}>\n", xml(name), counts(all()));
    suites.iter().for_each(|suite| text += &suite_text(suite, started));
    text += "</testsuites>\n";
    text
}

fn case_outcome(outcome: Outcome, reason: String) -> CaseOutcome {
    match outcome {
        Outcome::Pass => CaseOutcome::Passed,
        Outcome::Fail => CaseOutcome::Failed(reason),
        Outcome::Inconclusive => CaseOutcome::Skipped(reason),
    }
}

/// The suite of one target. Where the target is met although a series missed it (one was enough),
/// that series is skipped, so that the document fails only where the verdict does. A miss that does
/// not count, as other programs disturbed the run, is skipped too: the document fails with the run.
fn target(verdict: &Verdict, undecided: Option<&Undecided>) -> Suite {
    let disturbance = undecided.filter(|undecided| undecided.is_disturbed());
    let counted = |outcome: Outcome, reason: &str| match disturbance {
        Some(disturbance) if outcome == Outcome::Fail => {
            CaseOutcome::Skipped(format!("missed, but {disturbance}: {reason}"))
        }
        _ => case_outcome(outcome, reason.to_string()),
    };
    let case = |evidence: &nm_model::verdict::Evidence| {
        let outcome = match (evidence.outcome, verdict.outcome) {
            (Outcome::Fail, Outcome::Fail) | (Outcome::Pass | Outcome::Inconclusive, _) => {
                counted(evidence.outcome, &evidence.reason)
            }
            (Outcome::Fail, _) => CaseOutcome::Skipped(format!(
                "this series missed the target, but it does not decide it: {}",
                evidence.reason
            )),
        };
        TestCase { name: evidence.series.clone(), outcome }
    };
    let mut cases = vec![TestCase {
        name: "verdict".to_string(),
        outcome: counted(verdict.outcome, &verdict.reason),
    }];
    cases.extend(verdict.evidence.iter().map(case));
    Suite { name: verdict.target.clone(), cases }
}

fn counts<'a>(cases: impl Iterator<Item = &'a TestCase>) -> String {
    let (mut n_tests, mut n_failed, mut n_errors, mut n_skipped) = (0, 0, 0, 0);
    for case in cases {
        n_tests += 1;
        match case.outcome {
            CaseOutcome::Passed => {}
            CaseOutcome::Failed(_) => n_failed += 1,
            CaseOutcome::Error(_) => n_errors += 1,
            CaseOutcome::Skipped(_) => n_skipped += 1,
        }
    }
    format!(
        "tests=\"{n_tests}\" failures=\"{n_failed}\" errors=\"{n_errors}\" skipped=\"{n_skipped}\""
    )
}

fn suite_text(suite: &Suite, started: Option<&str>) -> String {
    let started = started.map_or(String::new(), |s| format!(" timestamp=\"{}\"", xml(s)));
    let name = xml(&suite.name);
    let mut text =
        format!("  <testsuite name=\"{name}\" {}{started}>\n", counts(suite.cases.iter()));
    for case in &suite.cases {
        let head = format!("    <testcase classname=\"{name}\" name=\"{}\"", xml(&case.name));
        text += &match &case.outcome {
            CaseOutcome::Passed => format!("{head}/>\n"),
            CaseOutcome::Failed(reason) => {
                format!("{head}>{}</testcase>\n", child("failure", reason))
            }
            CaseOutcome::Error(reason) => format!("{head}>{}</testcase>\n", child("error", reason)),
            CaseOutcome::Skipped(reason) => {
                format!("{head}>{}</testcase>\n", child("skipped", reason))
            }
        };
    }
    text + "  </testsuite>\n"
}

fn child(element: &str, reason: &str) -> String {
    format!("<{element} message=\"{}\"/>", xml(reason))
}

/// `text` for an attribute: escaped, characters that XML 1.0 does not allow replaced.
fn xml(text: &str) -> String {
    let is_allowed = |c: char| c >= '\u{20}' && !matches!(c, '\u{fffe}' | '\u{ffff}');
    let clean: String = text
        .chars()
        .map(|c| if matches!(c, '\n' | '\r' | '\t') { ' ' } else { c })
        .map(|c| if is_allowed(c) { c } else { '\u{fffd}' })
        .collect();
    escape(clean.as_str()).into_owned()
}
