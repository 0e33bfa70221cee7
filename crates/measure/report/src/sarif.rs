//! SARIF 2.1.0, which code-scanning services and editors show: the frame of every document, and a
//! result as such a document.

use nm_model::verdict::Verdict;
use nm_model::{Outcome, RunResult};
use serde_json::{Value, json};

use crate::file_names::RESULT;
use crate::title::title;

/// What the documents of all commands have around their rules and results.
pub(crate) struct Document {
    /// `audit` or `qualify`.
    pub(crate) command: &'static str,
    /// Version of nearmetal.
    pub(crate) version: String,
    /// What is examined, such as the machine: services keep the results of each apart.
    pub(crate) subject: String,
    /// Everything that was checked.
    pub(crate) rules: Vec<Value>,
    /// What was found.
    pub(crate) results: Vec<Value>,
    /// What could not be checked.
    pub(crate) notifications: Vec<Value>,
}

impl Document {
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
            "version": "2.1.0",
            "runs": [{
                "tool": {"driver": {
                    "name": format!("nearmetal {}", self.command),
                    "version": self.version,
                    "rules": self.rules,
                }},
                "automationDetails": {
                    "id": format!("nearmetal-{}/{}/", self.command, self.subject),
                },
                "invocations": [{
                    "executionSuccessful": true,
                    "toolExecutionNotifications": self.notifications,
                }],
                "results": self.results,
            }],
        })
    }
}

/// By what a service knows a result again in a later run: what it is about, and no value.
pub(crate) fn fingerprints(rule: &str, subject: &str) -> Value {
    json!({"nearmetalSubject/v1": format!("{rule} {subject}")})
}

/// A place that is no file: a setting of the machine, or a series.
pub(crate) fn logical_location(name: &str) -> Value {
    json!({"fullyQualifiedName": name, "kind": "resource"})
}

/// The document of a result: each target is a rule, each that is missed or open a result.
pub fn report(result: &RunResult, version: &str) -> Value {
    let failures = result.failures.iter().map(|failure| notification("error", failure));
    let not_judged = result.not_judged.iter().map(|one| notification("warning", one));
    let subject = result.label.clone().or_else(|| Some(result.plan.as_ref()?.name.clone()));
    let verdicts = || result.verdicts.iter().enumerate();
    Document {
        command: "qualify",
        version: version.to_string(),
        subject: subject.unwrap_or_else(|| title(result)),
        rules: verdicts().map(|(index, verdict)| rule(index, verdict)).collect(),
        results: verdicts().filter_map(|(index, verdict)| missed(index, verdict)).collect(),
        notifications: failures.chain(not_judged).collect(),
    }
    .to_json()
}

/// Two targets of a plan may have the same words.
fn rule_id(index: usize) -> String {
    format!("target-{}", index + 1)
}

fn rule(index: usize, verdict: &Verdict) -> Value {
    let why = if verdict.why.is_empty() { &verdict.target } else { &verdict.why };
    json!({
        "id": rule_id(index),
        "shortDescription": {"text": verdict.target},
        "fullDescription": {"text": why},
        "defaultConfiguration": {"level": "error"},
    })
}

/// The result of a target that is not met.
fn missed(index: usize, verdict: &Verdict) -> Option<Value> {
    // By the standard only what fails has a level.
    let (kind, level) = match verdict.outcome {
        Outcome::Pass => return None,
        Outcome::Fail => ("fail", "error"),
        Outcome::Inconclusive => ("open", "none"),
    };
    let is_counted = |outcome| outcome == verdict.outcome;
    let series = verdict.evidence.iter().filter(|one| is_counted(one.outcome));
    let names: Vec<Value> = series.map(|one| logical_location(&one.series)).collect();
    let mut location = json!({"physicalLocation": {
        "artifactLocation": {"uri": RESULT},
        "region": {"startLine": 1},
    }});
    if !names.is_empty() {
        location["logicalLocations"] = Value::Array(names);
    }
    Some(json!({
        "ruleId": rule_id(index),
        "ruleIndex": index,
        "kind": kind,
        "level": level,
        "message": {"text": format!("{}: {}", verdict.target, verdict.reason)},
        "locations": [location],
        "partialFingerprints": fingerprints("target", &verdict.target),
    }))
}

fn notification(level: &str, what: &impl ToString) -> Value {
    json!({"level": level, "message": {"text": what.to_string()}})
}
