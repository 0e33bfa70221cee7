//! What a certificate says of a run, and whether it holds.

use std::collections::{BTreeMap, BTreeSet};

use nm_fleet::facts::flat;
use nm_model::Facts;
use nm_model::baseline::Baseline;
use nm_model::certificate::{
    Certificate, CertificateCheck, CertifiedFacts, CertifiedHost, Drift, Equivalence,
};
use nm_model::environment::{Distance, EnvironmentKind};
use nm_model::result::{RunResult, RunState, Source};
use nm_model::verdict::Outcome;
use sha2::{Digest, Sha256};

use crate::baseline::{baseline, machines};
use crate::options::CompareOptions;
use crate::select::Selector;
use crate::wording::list;

/// Drifted facts that a sentence names.
const DRIFTS_SHOWN: usize = 5;

/// Most characters of a fact in a sentence.
const VALUE_CHARS_MAX: usize = 60;

/// Why a run cannot be certified.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CertifyError {
    /// Figures of others.
    #[error("nearmetal has not measured it")]
    NotMeasured,
    /// It was ended.
    #[error("it did not come to its end; repeat the run")]
    NotComplete,
    /// It has no time.
    #[error("its start is not known")]
    NoStart,
    /// Another version has measured it.
    #[error("nearmetal {0} measured it, and this is {1}; certify it by that version")]
    OtherVersion(String, String),
    /// Nothing could be tested again.
    #[error("it has no primary figure that could be tested again")]
    NoFigure,
    /// No facts.
    #[error("it has no facts of its hosts")]
    NoFacts,
}

/// The run of a certificate and its hosts.
///
/// # Errors
/// Why it cannot be certified by nearmetal of this `version`.
pub fn certified(
    run: &RunResult,
    version: &str,
) -> Result<(Baseline, Vec<CertifiedHost>), CertifyError> {
    let Source::Measured { version: measured } = &run.source else {
        return Err(CertifyError::NotMeasured);
    };
    if measured != version {
        return Err(CertifyError::OtherVersion(measured.clone(), version.to_string()));
    }
    if run.state != RunState::Complete {
        return Err(CertifyError::NotComplete);
    }
    if run.started.is_none() {
        return Err(CertifyError::NoStart);
    }
    let figures = figures_of(run);
    let hosts = hosts(run);
    match () {
        () if figures.figures.is_empty() => Err(CertifyError::NoFigure),
        () if hosts.is_empty() => Err(CertifyError::NoFacts),
        () => Ok((figures, hosts)),
    }
}

fn figures_of(run: &RunResult) -> Baseline {
    baseline(run, &CompareOptions::default().fail_on, &Selector::any())
}

/// The hosts of a run, by name. Sysctls of network namespaces that a run has made are not those of
/// the host, and are left out.
pub fn hosts(run: &RunResult) -> Vec<CertifiedHost> {
    let known = machines(run);
    let is_known = |facts: &Facts| known.iter().any(|one| std::ptr::eq(*one, facts));
    let ends = run.facts.iter().filter(|(_, facts)| is_known(facts));
    let is_own = |name: &str| {
        let kind: Option<EnvironmentKind> = name.parse().ok();
        kind.is_some_and(|kind| kind.distance() == Distance::Namespaces)
    };
    by_name(ends.map(|(end, facts)| (is_own(&end.environment), facts)))
}

/// A host by facts of one process in it.
pub fn hosts_of(facts: &Facts) -> Vec<CertifiedHost> {
    by_name([(false, facts)].into_iter())
}

fn by_name<'f>(ends: impl Iterator<Item = (bool, &'f Facts)>) -> Vec<CertifiedHost> {
    let mut hosts: BTreeMap<&str, (Sha256, CertifiedFacts)> = BTreeMap::new();
    for (has_own_network, facts) in ends {
        let (hash, all) = hosts.entry(&facts.host.name).or_default();
        hash.update(serde_json::to_vec(facts).unwrap_or_default());
        for (fact, value) in flat(facts) {
            if !(has_own_network && fact.starts_with("net.")) {
                all.entry(fact).or_default().insert(value);
            }
        }
    }
    let host = |(name, (hash, facts)): (&str, (Sha256, CertifiedFacts))| CertifiedHost {
        name: name.to_string(),
        sha256: hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect(),
        facts,
    };
    hosts.into_iter().map(host).collect()
}

/// The facts of `now` that are others than certified; a fact that the certificate lacks is none.
fn drift(certified: &[CertifiedHost], now: &[CertifiedHost]) -> Vec<Drift> {
    let joined = |values: &BTreeSet<String>| values.iter().cloned().collect::<Vec<_>>().join(" | ");
    let mut found = vec![];
    for host in certified {
        let Some(other) = now.iter().find(|one| one.name == host.name) else { continue };
        for (fact, values) in &host.facts {
            let value = other.facts.get(fact);
            if value.is_none_or(|value| !value.is_subset(values)) {
                found.push(Drift {
                    host: host.name.clone(),
                    fact: fact.clone(),
                    certified: joined(values),
                    now: value.map(joined),
                });
            }
        }
    }
    found
}

/// A signature that holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signed<'a> {
    /// Id of the key.
    pub key: &'a str,
    /// Whether the user has named the key; else only the certificate itself has.
    pub is_named: bool,
}

/// What a certificate is checked against.
#[derive(Debug, Clone)]
pub struct Checked<'a> {
    /// Its signature.
    pub signed: Signed<'a>,
    /// Whether its time is over.
    pub is_expired: bool,
    /// The facts of hosts as they are now, and how a sentence calls the place where they were read.
    pub now: (&'a str, &'a [CertifiedHost]),
    /// The result that it should be of.
    pub of: Option<&'a RunResult>,
    /// Its figures against those of another run.
    pub equivalence: Option<Equivalence>,
}

/// Whether a certificate holds: its signature does already.
pub fn check(certificate: &Certificate, checked: Checked<'_>) -> CertificateCheck {
    let Checked { signed, is_expired, now: (place, now), of, equivalence } = checked;
    let run = &certificate.run;
    let drift = drift(&certificate.hosts, now);
    let is_here = now.iter().any(|one| certificate.hosts.iter().any(|host| host.name == one.name));
    let mut all = vec![signature(signed)];
    all.push(match is_expired {
        true => (Outcome::Fail, format!("it expired on {}", certificate.expires)),
        false => (Outcome::Pass, format!("it is valid until {}", certificate.expires)),
    });
    all.push((run.outcome, format!("the verdict of its run was {}", run.outcome.name())));
    all.extend(of.map(|of| is_of(certificate, of)));
    // A run that was measured again tells what drift alone leaves open.
    let by_drift = match (&equivalence, drift.is_empty()) {
        (None, false) => Outcome::Inconclusive,
        _ => Outcome::Pass,
    };
    all.push((by_drift, drifted(&drift, is_here, place)));
    all.extend(equivalence.iter().map(|one| (one.outcome, one.reasons.join("; "))));
    let outcome = all.iter().map(|(outcome, _)| *outcome).max_by_key(|one| severity(*one));
    let outcome = outcome.unwrap_or(Outcome::Inconclusive);
    let deciding = all.iter().filter(|(one, _)| *one == outcome && outcome != Outcome::Pass);
    let why: Vec<&str> = deciding.map(|(_, reason)| reason.as_str()).collect();
    let what = match outcome {
        Outcome::Pass => "holds".to_string(),
        Outcome::Fail => format!("does not hold: {}", why.join("; ")),
        Outcome::Inconclusive => format!("is undecided: {}", why.join("; ")),
    };
    let when = run.started.as_deref().unwrap_or("unknown");
    let plan = run.plan.as_ref().map_or("none", |plan| plan.name.as_str());
    let first =
        format!("the certificate of {}, plan {plan}, measured on {when}, {what}", run.machine);
    let is_told = |outcome_of: Outcome| outcome_of != outcome || outcome == Outcome::Pass;
    let rest = all.iter().filter(|(one, _)| is_told(*one)).map(|(_, reason)| reason.clone());
    CertificateCheck {
        outcome,
        reasons: [first].into_iter().chain(rest).collect(),
        expires: Some(certificate.expires.clone()),
        drift,
        equivalence,
    }
}

fn severity(outcome: Outcome) -> u8 {
    match outcome {
        Outcome::Pass => 0,
        Outcome::Inconclusive => 1,
        Outcome::Fail => 2,
    }
}

fn signature(signed: Signed<'_>) -> (Outcome, String) {
    let Signed { key, is_named } = signed;
    match is_named {
        true => (Outcome::Pass, format!("key {key} has signed it")),
        false => (
            Outcome::Inconclusive,
            format!(
                "key {key} has signed it, which the certificate alone names; name the signer's by \
                 --public-key"
            ),
        ),
    }
}

fn is_of(certificate: &Certificate, of: &RunResult) -> (Outcome, String) {
    let mut run = figures_of(of);
    // The name is that of the folder, which may have another one by now.
    run.name.clone_from(&certificate.run.name);
    match run == certificate.run && hosts(of) == certificate.hosts {
        true => (Outcome::Pass, "it is of the result that --result names".to_string()),
        false => (Outcome::Fail, "it is of another result than --result names".to_string()),
    }
}

fn drifted(drift: &[Drift], is_here: bool, place: &str) -> String {
    if !is_here {
        return format!("its hosts' facts were not compared: {place} is none of its hosts");
    }
    if drift.is_empty() {
        return format!("no fact of its hosts has drifted on {place}");
    }
    let value = |text: &str| match text.char_indices().nth(VALUE_CHARS_MAX) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_string(),
    };
    let one = |one: &Drift| {
        let now = one.now.as_deref().map_or("unknown".to_string(), value);
        format!("{} is {now}, was {}", one.fact, value(&one.certified))
    };
    let each: Vec<String> = drift.iter().map(one).collect();
    format!("facts have drifted on {place}: {}", list(&each, DRIFTS_SHOWN))
}

#[cfg(test)]
mod tests {
    use nm_model::certificate::{CertifiedProgram, SCHEMA_VERSION};

    use super::*;
    use crate::equivalence::tests::run;
    use crate::{EquivalenceOptions, equivalence};

    fn host(name: &str, facts: &[(&str, &str)]) -> CertifiedHost {
        let fact =
            |(fact, value): &(&str, &str)| (fact.to_string(), BTreeSet::from([value.to_string()]));
        CertifiedHost {
            name: name.to_string(),
            sha256: String::new(),
            facts: facts.iter().map(fact).collect(),
        }
    }

    fn certificate() -> Certificate {
        let program = CertifiedProgram { version: String::new(), sha256: String::new() };
        Certificate {
            schema: SCHEMA_VERSION,
            key: String::new(),
            expires: "2026-02-01T00:00:00Z".to_string(),
            margin_percent: 30.0,
            program,
            hosts: vec![host("h", &[("kernel", "6.1"), ("governor", "performance")])],
            run: run(&[vec![100.0, 100.1, 100.2, 100.3, 100.4]]),
        }
    }

    /// The outcome of a check, and its sentences.
    fn found<'a>(
        certificate: &'a Certificate,
        how: impl FnOnce(&mut Checked<'a>),
    ) -> (Outcome, String) {
        let mut checked = Checked {
            signed: Signed { key: "0123", is_named: true },
            is_expired: false,
            now: ("this host", &certificate.hosts),
            of: None,
            equivalence: None,
        };
        how(&mut checked);
        let found = check(certificate, checked);
        (found.outcome, found.reasons.join(". "))
    }

    #[test]
    fn a_certificate_passes_only_if_nothing_is_open() {
        let known = certificate();
        let (outcome, text) = found(&known, |_| {});
        assert_eq!(outcome, Outcome::Pass, "{text}");
        assert!(text.starts_with("the certificate of host, plan plan, measured on "), "{text}");
        let (outcome, text) = found(&known, |it| it.is_expired = true);
        assert_eq!(outcome, Outcome::Fail, "{text}");
        assert!(text.contains("does not hold: it expired on 2026-02-01T00:00:00Z"), "{text}");
        let (outcome, text) = found(&known, |it| it.signed.is_named = false);
        assert_eq!(outcome, Outcome::Inconclusive, "{text}");
        assert!(text.contains("is undecided: key 0123 has signed it, which"), "{text}");
        for verdict in [Outcome::Fail, Outcome::Inconclusive] {
            let mut other = certificate();
            other.run.outcome = verdict;
            assert_eq!(found(&other, |_| {}).0, verdict);
        }
    }

    #[test]
    fn drift_leaves_a_certificate_open_until_a_new_run_decides() {
        let known = certificate();
        let moved = [host("h", &[("kernel", "6.2"), ("new", "x")])];
        let (outcome, text) = found(&known, |it| it.now = ("this host", &moved));
        assert_eq!(outcome, Outcome::Inconclusive, "{text}");
        let expected = "facts have drifted on this host: governor is unknown, was performance, \
                        kernel is 6.2, was 6.1";
        assert!(text.contains(expected), "{text}");
        let options = EquivalenceOptions { margin_percent: 30.0, run_deviation_percent: None };
        let again = run(&[vec![101.0, 100.1, 100.2, 100.3, 100.4]]);
        let (outcome, text) = found(&known, |it| {
            it.now = ("again", &moved);
            it.equivalence = Some(equivalence(&known.run, &again, &options));
        });
        assert_eq!(outcome, Outcome::Pass, "{text}");
        assert!(text.contains(&expected.replace("this host", "again")), "{text}");
        let other = [host("other", &[("kernel", "6.2")])];
        let (outcome, text) = found(&known, |it| it.now = ("this host", &other));
        assert_eq!(outcome, Outcome::Pass, "{text}");
        assert!(text.contains("this host is none of its hosts"), "{text}");
    }
}
