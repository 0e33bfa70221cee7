//! Results of format version 1, converted on reading.
//!
//! Version 1 had failures as sentences, settings as text by name, and facts under the text
//! `ENVIRONMENT SIDE`. All else is as in version 2.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::campaign::NotAvailable;
use crate::doubt::Doubt;
use crate::facts::Facts;
use crate::plan::Plan;
use crate::probe::{ProbeKind, ProbeSpec, Side};
use crate::result::{
    Estimate, Round, RunResult, RunState, SCHEMA_VERSION, Series, SeriesKey, Source, TrialFailure,
};
use crate::row::{EndpointId, RowId};
use crate::setting::{NanosecondRange, Setting, SettingKind, SettingValue, Settings};
use crate::stack::{Comparability, StackPair};
use crate::verdict::{Comparison, Outcome, Verdict};

/// A result as version 1 wrote it.
#[derive(Debug, Deserialize)]
pub struct RunResultV1 {
    name: String,
    source: Source,
    #[serde(default)]
    started: Option<String>,
    #[serde(default)]
    duration_s: Option<f64>,
    state: RunState,
    #[serde(default)]
    plan: Option<Plan>,
    #[serde(default)]
    facts: BTreeMap<String, Facts>,
    #[serde(default)]
    notes: BTreeMap<String, String>,
    series: Vec<SeriesV1>,
    #[serde(default)]
    not_available: Vec<NotAvailable>,
    #[serde(default)]
    failures: Vec<String>,
    #[serde(default)]
    verdicts: Vec<Verdict>,
    #[serde(default)]
    comparisons: Vec<Comparison>,
    outcome: Outcome,
    #[serde(default)]
    doubts: Vec<Doubt>,
}

#[derive(Debug, Deserialize)]
struct SeriesV1 {
    key: SeriesKey,
    comparability: Comparability,
    #[serde(default)]
    settings: BTreeMap<String, String>,
    rounds: Vec<Round>,
    #[serde(default)]
    estimates: Vec<Estimate>,
    #[serde(default)]
    doubts: Vec<Doubt>,
}

impl From<RunResultV1> for RunResult {
    fn from(old: RunResultV1) -> RunResult {
        let failures = old.failures.iter().map(|text| failure(text, old.plan.as_ref())).collect();
        let verdicts = verdicts(old.verdicts, old.plan.as_ref());
        RunResult {
            schema: SCHEMA_VERSION,
            name: old.name,
            source: old.source,
            label: None,
            started: old.started,
            duration_s: old.duration_s,
            state: old.state,
            plan: old.plan,
            part: None,
            machine: None,
            facts: old.facts.into_iter().map(|(name, facts)| (endpoint(&name), facts)).collect(),
            audits: vec![],
            guests: vec![],
            notes: old.notes,
            series: old.series.into_iter().map(series).collect(),
            not_available: old.not_available,
            failures,
            verdicts,
            comparisons: old.comparisons,
            gate: None,
            factors: vec![],
            not_judged: vec![],
            outcome: old.outcome,
            undecided: None,
            doubts: old.doubts,
        }
    }
}

/// Version 1 lists verdicts in the order of the plan's targets.
fn verdicts(verdicts: Vec<Verdict>, plan: Option<&Plan>) -> Vec<Verdict> {
    let targets = plan.map_or(&[][..], |plan| &plan.targets);
    let mut targets = targets.iter().map(|target| &target.require);
    let typed = |verdict| Verdict { require: targets.next().cloned(), ..verdict };
    verdicts.into_iter().map(typed).collect()
}

fn series(old: SeriesV1) -> Series {
    let settings: Vec<Setting> =
        old.settings.iter().map(|(name, text)| setting(name, text)).collect();
    Series {
        key: old.key,
        comparability: old.comparability,
        settings: Settings::from(settings),
        rounds: old.rounds,
        estimates: old.estimates,
        doubts: old.doubts,
    }
}

/// `netns client`. Other text becomes the client of an environment of that name.
fn endpoint(name: &str) -> EndpointId {
    let parts = name.rsplit_once(' ').and_then(|(environment, side)| {
        Some(EndpointId::new(environment, side.parse::<Side>().ok()?))
    });
    parts.unwrap_or_else(|| EndpointId::new(name, Side::Client))
}

/// `client MTU`, `1500 B`.
fn setting(name: &str, text: &str) -> Setting {
    let sided = name.split_once(' ').and_then(|(side, rest)| {
        let side = side.parse::<Side>().ok()?;
        Some((Some(side), rest))
    });
    let (side, name) = sided.unwrap_or((None, name));
    let kind = SettingKind::from(name);
    let value = value(&kind, text).unwrap_or_else(|| SettingValue::text(text));
    Setting { kind, side, value }
}

/// The typed value of a text, if it has the form that version 1 gave this kind.
fn value(kind: &SettingKind, text: &str) -> Option<SettingValue> {
    let number = |text: &str| text.trim().parse::<f64>().ok().filter(|n| n.is_finite());
    match kind {
        SettingKind::WriteSize
        | SettingKind::RequestedWriteSize
        | SettingKind::SendBuffer
        | SettingKind::ReceiveBuffer
        | SettingKind::Mss
        | SettingKind::Mtu
        | SettingKind::Ring => {
            Some(SettingValue::Bytes(text.strip_suffix(" B")?.trim().parse().ok()?))
        }
        SettingKind::CacheLineLimit => {
            let text = text.strip_suffix(" ns")?;
            let (low, high) = text.split_once(" to ").unwrap_or((text, text));
            let low = NanosecondRange::of(number(low)?);
            Some(SettingValue::Nanoseconds(low.widened(NanosecondRange::of(number(high)?))))
        }
        SettingKind::AckDelay | SettingKind::WarmUp => {
            Some(SettingValue::Milliseconds(number(text.strip_suffix(" ms")?)?))
        }
        SettingKind::MaxCv => {
            Some(SettingValue::Percent(number(text.trim().trim_end_matches('%'))?))
        }
        SettingKind::ExpectedMin | SettingKind::ExpectedMax => {
            Some(SettingValue::GigabitsPerSecond(number(text)?))
        }
        SettingKind::ClientToServer | SettingKind::ServerToClient => {
            Some(SettingValue::MegabitsPerSecond(number(text)?))
        }
        SettingKind::Nodes | SettingKind::Queue => {
            Some(SettingValue::Number(text.trim().parse().ok()?))
        }
        _ => None,
    }
}

/// `round 2 of netns/tcp-spin pingpong: the peer has gone`, or `round 2: …` of a run of one row.
fn failure(text: &str, plan: Option<&Plan>) -> TrialFailure {
    let parts = text.split_once(": ").and_then(|(row, reason)| Some((row_of(row, plan)?, reason)));
    match parts {
        Some((row, reason)) => TrialFailure { row: Some(row), reason: reason.to_string() },
        None => TrialFailure { row: None, reason: text.to_string() },
    }
}

fn row_of(text: &str, plan: Option<&Plan>) -> Option<RowId> {
    let text = text.strip_prefix("round ")?;
    let (round, row) = match text.split_once(" of ") {
        Some((round, row)) => (round, Some(row)),
        None => (text, None),
    };
    let round = Some(round.parse::<u32>().ok()?.checked_sub(1)?);
    let Some(row) = row else { return Some(RowId { round, ..only_row(plan?)? }) };
    let (path, probe) = row.rsplit_once(' ')?;
    let (environment, stack) = path.split_once('/')?;
    let probe = probe.parse::<ProbeKind>().ok()?;
    let stack = match probe {
        ProbeKind::Exchange => exchange_layout(plan, stack).unwrap_or_else(|| stack.to_string()),
        _ => stack.to_string(),
    };
    Some(RowId {
        environment: environment.to_string(),
        stack,
        probe,
        case: None,
        round,
        factor: None,
    })
}

/// The row of a plan that has only one.
fn only_row(plan: &Plan) -> Option<RowId> {
    let [block] = &plan.trials[..] else { return None };
    let ([environment], [stack]) = (&block.environments[..], &block.stacks[..]) else {
        return None;
    };
    Some(RowId {
        environment: environment.to_string(),
        stack: block.probe.stack_name(stack),
        probe: block.probe.kind(),
        case: None,
        round: None,
        factor: None,
    })
}

/// Version 1 recorded failures of the exchange with the stack of its links; its series have the
/// layout. The plan gives the layout, unless it has several over that stack.
fn exchange_layout(plan: Option<&Plan>, stack: &str) -> Option<String> {
    let stack = stack.parse::<StackPair>().ok()?;
    let mut layouts = plan?
        .trials
        .iter()
        .filter(|block| matches!(block.probe, ProbeSpec::Exchange(_)))
        .filter(|block| block.stacks.contains(&stack))
        .map(|block| block.probe.stack_name(&stack));
    let first = layouts.next()?;
    layouts.all(|other| other == first).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_version_1_become_typed_values() {
        let shown = |name: &str, text: &str| {
            let Setting { kind, side, value } = setting(name, text);
            (kind, side, value)
        };
        use SettingKind::{CacheLineLimit, Mtu, WriteSize};
        let bytes = SettingValue::Bytes;
        assert_eq!(shown("write size", "131072 B"), (WriteSize, None, bytes(131_072)));
        assert_eq!(shown("client MTU", "1500 B"), (Mtu, Some(Side::Client), bytes(1500)));
        let range = SettingValue::Nanoseconds(NanosecondRange { low: 45, high: 220 });
        assert_eq!(shown("cache-line limit", "45 to 220 ns"), (CacheLineLimit, None, range));
        let odd = SettingValue::text("unknown");
        assert_eq!(shown("MTU", "unknown"), (Mtu, None, odd));
    }

    #[test]
    fn failures_of_version_1_become_typed_rows() {
        let found =
            failure("round 2 of netns/tcp-spin:tcp-blocking pingpong: gone: for good", None);
        let row = found.row.unwrap();
        assert_eq!((row.stack.as_str(), row.round), ("tcp-spin:tcp-blocking", Some(1)));
        assert_eq!(found.reason, "gone: for good");
        let odd = failure("node 3 ended: signal 9", None);
        assert_eq!((odd.row, odd.reason.as_str()), (None, "node 3 ended: signal 9"));
    }

    #[test]
    fn an_exchange_failure_gets_the_row_of_its_series() {
        let plan = Plan::parse(
            "name='x'\nrounds=1\n[[trials]]\nenvironments=['loopback']\nstacks=['tcp-epoll']\n\
             probe='exchange'\nnodes='1-1-1-1'",
        )
        .unwrap();
        for text in ["round 1 of loopback/tcp-epoll exchange: gone", "round 1: gone"] {
            let row = failure(text, Some(&plan)).row.unwrap();
            assert_eq!(row.to_string(), "round 1 of loopback/1-1-1-1 exchange", "{text}");
        }
    }
}
