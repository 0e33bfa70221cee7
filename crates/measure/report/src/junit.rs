//! Verdicts as JUnit XML. One suite has a test case for each target, each comparison, the gate
//! against accepted runs, and each trial that failed or could not run. What is inconclusive, not
//! judged or not available is skipped, with the reason; it never counts as passed.
//!
//! The root is a `testsuite`: so the document is valid by the schemas of Jenkins (which also knows
//! `testsuites`) and of Surefire (which does not).

use std::collections::BTreeMap;

use nm_model::verdict::{Evidence, Verdict};
use nm_model::{Outcome, RunResult, Undecided};
use quick_xml::escape::escape;

use crate::{measured_time, view};

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
    /// What it is one of, by which CI systems group: `target`, `trial`, ….
    pub(crate) class: String,
    /// Its name.
    pub(crate) name: String,
    /// How long it was measured, s.
    pub(crate) seconds: f64,
    /// Its outcome.
    pub(crate) outcome: CaseOutcome,
    /// What the outcome rests on, a line each.
    pub(crate) evidence: Vec<String>,
}

impl TestCase {
    /// A case for which nothing was measured.
    pub(crate) fn new(class: &str, name: impl Into<String>, outcome: CaseOutcome) -> TestCase {
        let (class, name) = (class.to_string(), name.into());
        TestCase { class, name, seconds: 0.0, outcome, evidence: vec![] }
    }
}

/// The XML document.
pub fn report(result: &RunResult) -> String {
    let mut cases: Vec<TestCase> =
        result.verdicts.iter().map(|verdict| target(verdict, result)).collect();
    // A disturbance stands beside each miss already.
    let cause = result.undecided.as_ref().filter(|undecided| !undecided.is_disturbed());
    cases.extend(cause.map(|undecided| {
        let outcome = match undecided {
            Undecided::Lost { .. } => CaseOutcome::Error(undecided.to_string()),
            _ => CaseOutcome::Skipped(undecided.to_string()),
        };
        TestCase::new("run", "outcome", outcome)
    }));
    cases.extend(
        result.not_judged.iter().map(|one| {
            TestCase::new("not judged", &one.text, CaseOutcome::Skipped(one.to_string()))
        }),
    );
    cases.extend(result.comparisons.iter().map(|c| {
        let outcome = case_outcome(c.outcome, c.reasons.join("; "));
        TestCase::new("comparison", format!("{} against {}", c.b, c.a), outcome)
    }));
    cases.extend(result.gate.iter().map(|gate| {
        let outcome = case_outcome(gate.outcome, gate.reasons.join("; "));
        TestCase::new("gate", "gate against accepted runs", outcome)
    }));
    cases.extend(result.failures.iter().enumerate().map(|(index, failure)| {
        let outcome = CaseOutcome::Error(failure.to_string());
        TestCase::new("trial", format!("failed trial {}", index + 1), outcome)
    }));
    cases.extend(result.not_available.iter().map(|row| {
        let name = format!("{}/{} {}", row.environment, row.stack, row.probe);
        let reason = format!("not available: {}", row.reason);
        TestCase::new("trial", name, CaseOutcome::Skipped(reason))
    }));
    let mut properties = vec![("source", view::source_text(&result.source))];
    properties.extend(result.started.iter().map(|started| ("started", started.clone())));
    properties.extend(result.label.iter().map(|label| ("label", label.clone())));
    document(&result.name, &properties, result.duration_s, cases)
}

/// The document of some cases. `seconds` is the time of all of them; the sum of theirs if absent.
pub(crate) fn document(
    name: &str,
    properties: &[(&str, String)],
    seconds: Option<f64>,
    mut cases: Vec<TestCase>,
) -> String {
    number_equal_names(&mut cases);
    let seconds = seconds.unwrap_or_else(|| cases.iter().map(|case| case.seconds).sum());
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"{}\" {} time=\"{}\">\n",
        xml(name),
        counts(&cases),
        time(seconds)
    );
    if !properties.is_empty() {
        text += "  <properties>\n";
        for (name, value) in properties {
            text += &format!("    <property name=\"{name}\" value=\"{}\"/>\n", xml(value));
        }
        text += "  </properties>\n";
    }
    cases.iter().for_each(|case| text += &case_text(case));
    text + "</testsuite>\n"
}

/// CI systems follow a case by its class and name: of equal ones, each but the first is numbered.
fn number_equal_names(cases: &mut [TestCase]) {
    let mut seen: BTreeMap<(String, String), u32> = BTreeMap::new();
    for case in cases {
        let count = seen.entry((case.class.clone(), case.name.clone())).or_insert(0);
        *count += 1;
        if *count > 1 {
            case.name = format!("{} ({count})", case.name);
        }
    }
}

fn case_outcome(outcome: Outcome, reason: String) -> CaseOutcome {
    match outcome {
        Outcome::Pass => CaseOutcome::Passed,
        Outcome::Fail => CaseOutcome::Failed(reason),
        Outcome::Inconclusive => CaseOutcome::Skipped(reason),
    }
}

/// The case of one target. A miss that does not count, as other programs disturbed the run, is
/// skipped: the document fails with the run.
fn target(verdict: &Verdict, result: &RunResult) -> TestCase {
    let disturbance = result.undecided.as_ref().filter(|undecided| undecided.is_disturbed());
    let outcome = match disturbance {
        Some(disturbance) if verdict.outcome == Outcome::Fail => {
            CaseOutcome::Skipped(format!("missed, but {disturbance}: {}", verdict.reason))
        }
        _ => case_outcome(verdict.outcome, verdict.reason.clone()),
    };
    let line = |one: &Evidence| format!("{}: {}: {}", one.outcome, one.series, one.reason);
    TestCase {
        seconds: measured_time::of_evidence(verdict, result),
        evidence: verdict.evidence.iter().map(line).collect(),
        ..TestCase::new("target", &verdict.target, outcome)
    }
}

fn counts(cases: &[TestCase]) -> String {
    let (mut n_failed, mut n_errors, mut n_skipped) = (0, 0, 0);
    for case in cases {
        match case.outcome {
            CaseOutcome::Passed => {}
            CaseOutcome::Failed(_) => n_failed += 1,
            CaseOutcome::Error(_) => n_errors += 1,
            CaseOutcome::Skipped(_) => n_skipped += 1,
        }
    }
    let n_tests = cases.len();
    format!(
        "tests=\"{n_tests}\" failures=\"{n_failed}\" errors=\"{n_errors}\" skipped=\"{n_skipped}\""
    )
}

/// A time in s, as both schemas want it: three digits after the point.
fn time(seconds: f64) -> String {
    let seconds = if seconds.is_finite() { seconds.max(0.0) } else { 0.0 };
    format!("{seconds:.3}")
}

fn case_text(case: &TestCase) -> String {
    let mut text = format!(
        "  <testcase classname=\"{}\" name=\"{}\" time=\"{}\"",
        xml(&case.class),
        xml(&case.name),
        time(case.seconds)
    );
    let child = match &case.outcome {
        CaseOutcome::Passed => None,
        CaseOutcome::Failed(reason) => {
            Some(format!("<failure type=\"missed\" message=\"{}\"/>", xml(reason)))
        }
        CaseOutcome::Error(reason) => {
            Some(format!("<error type=\"failed\" message=\"{}\"/>", xml(reason)))
        }
        CaseOutcome::Skipped(reason) => Some(format!("<skipped message=\"{}\"/>", xml(reason))),
    };
    let lines: Vec<String> = case.evidence.iter().map(|line| xml(line)).collect();
    let output =
        (!lines.is_empty()).then(|| format!("<system-out>{}</system-out>", lines.join("\n")));
    let children: Vec<String> =
        child.into_iter().chain(output).map(|child| format!("    {child}\n")).collect();
    text += &match children.is_empty() {
        true => "/>\n".to_string(),
        false => format!(">\n{}  </testcase>\n", children.concat()),
    };
    text
}

/// `text` for an attribute or an element: escaped, characters that XML 1.0 does not allow replaced.
fn xml(text: &str) -> String {
    let is_allowed = |c: char| c >= '\u{20}' && !matches!(c, '\u{fffe}' | '\u{ffff}');
    let clean: String = text
        .chars()
        .map(|c| if matches!(c, '\n' | '\r' | '\t') { ' ' } else { c })
        .map(|c| if is_allowed(c) { c } else { '\u{fffd}' })
        .collect();
    escape(clean.as_str()).into_owned()
}
