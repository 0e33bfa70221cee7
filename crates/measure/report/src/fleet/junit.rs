//! A fleet as JUnit XML: a case for each host, and one for each trial. What has no result is
//! skipped with its reason, or an error where the host was set aside; it never counts as passed.

use nm_fleet::result::{FleetResult, HostResult, PairResult, Ratio};
use nm_model::Outcome;

use super::{ratio_text, title};
use crate::junit::{CaseOutcome, TestCase, document as xml_document};
use crate::units;

/// The XML document.
pub fn document(found: &FleetResult) -> String {
    let hosts = found.hosts.iter().map(|host| host_case(found, host));
    let cases = hosts.chain(found.pairs.iter().map(pair_case)).collect();
    let properties = [("plan", found.plan.clone()), ("pairs", found.pairs_chosen.clone())];
    xml_document(&title(found), &properties, None, cases)
}

fn host_case(found: &FleetResult, host: &HostResult) -> TestCase {
    let name = host.host.name.as_str();
    let of_host = |pair: &&PairResult| pair.client == name || pair.server == name;
    let n_failed = found.pairs.iter().filter(of_host);
    let n_failed = n_failed.filter(|pair| pair.outcome == Some(Outcome::Fail)).count();
    let missed = format!(
        "{n_failed} of {} missed a target",
        units::plural(host.n_measured, "measured pair", "measured pairs")
    );
    let outcome = match (&host.set_aside, host.outcome) {
        (Some(reason), _) => CaseOutcome::Error(format!("set aside: {reason}")),
        (None, Outcome::Pass) => CaseOutcome::Passed,
        (None, Outcome::Fail) => CaseOutcome::Failed(missed),
        (None, Outcome::Inconclusive) if host.n_measured == 0 => {
            CaseOutcome::Skipped("no pair of it has a result".to_string())
        }
        (None, Outcome::Inconclusive) => CaseOutcome::Skipped(format!("not decided: {missed}")),
    };
    let outliers = found.figures.iter().flat_map(|figure| &figure.hosts);
    let stands_out = outliers.filter(|one| one.names == [name]);
    let ratio = |one: &Ratio| format!("{} to the fleet's: {}", one.metric, ratio_text(one));
    let mut evidence: Vec<String> = host.ratios.iter().map(ratio).collect();
    evidence.extend(stands_out.map(|one| one.sentence.clone()));
    TestCase { evidence, ..TestCase::new("host", name, outcome) }
}

fn pair_case(pair: &PairResult) -> TestCase {
    let name = format!("{} to {}", pair.client, pair.server);
    let reason = || pair.reason.clone().unwrap_or_default();
    let outcome = match pair.outcome {
        Some(Outcome::Pass) => CaseOutcome::Passed,
        Some(Outcome::Fail) => CaseOutcome::Failed("it missed a target of its plan".to_string()),
        Some(Outcome::Inconclusive) => CaseOutcome::Skipped("its plan is not decided".to_string()),
        None => CaseOutcome::Skipped(reason()),
    };
    let figure = |(name, ns): (&str, Option<f64>)| Some(format!("{name} {}", units::latency(ns?)));
    let figures = [("median", pair.median_ns), ("p99", pair.p99_ns)];
    let evidence = figures.into_iter().filter_map(figure).collect();
    TestCase { evidence, ..TestCase::new("pair", name, outcome) }
}
