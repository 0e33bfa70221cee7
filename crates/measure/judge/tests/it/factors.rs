//! Rows with a factor against the same rows without it.

use nm_judge::judge;
use nm_model::verdict::Relation;
use nm_model::{
    Case, DoubtKind, Factor, FactorCheck, FactorEffect, FactorKind, FactorResult, Metric, Outcome,
    ProbeKind, RowId, RunResult, Selector,
};

use crate::make::{failure, pingpong, result, steady};

fn check(stack: &str, round: u32, is_in_force: Option<bool>) -> FactorCheck {
    let row = RowId {
        environment: "netns".into(),
        stack: stack.into(),
        probe: ProbeKind::Pingpong,
        case: None,
        round: Some(round),
        factor: Some("held".into()),
    };
    FactorCheck { row, is_in_force, evidence: vec![] }
}

/// A result with a factor on two stacks: it halves one median and does nothing to the other.
fn with_factor(rounds: usize, is_in_force: Option<bool>) -> RunResult {
    let kind = FactorKind::IdleStatesHeld;
    let factor = Factor { name: "held".into(), kind, on: Selector::any(), probe: None, step: None };
    let mut on = FactorResult::new(factor);
    on.series = vec![
        pingpong("netns", "tcp-blocking", 64, &steady(10_000.0, rounds)),
        pingpong("netns", "tcp-spin", 64, &steady(4_001.0, rounds)),
        pingpong("netns", "udp-spin", 64, &steady(4_000.0, rounds)),
    ];
    for stack in ["tcp-blocking", "tcp-spin"] {
        on.checks.extend((0..rounds).map(|round| check(stack, round as u32, is_in_force)));
    }
    let mut result = result(None);
    result.series = vec![
        pingpong("netns", "tcp-blocking", 64, &steady(20_000.0, rounds)),
        pingpong("netns", "tcp-spin", 64, &steady(4_000.0, rounds)),
    ];
    result.factors = vec![on];
    judge(&mut result, &|_| None);
    result
}

fn effects(result: &RunResult) -> [&FactorEffect; 2] {
    let [factor] = &result.factors[..] else { panic!("one factor") };
    let [a, b] = &factor.effects[..] else { panic!("{:?}", factor.effects) };
    [a, b]
}

#[test]
fn a_factor_is_compared_with_the_same_row_without_it() {
    let result = with_factor(10, Some(true));
    let [blocking, spin] = effects(&result);
    assert_eq!(blocking.key.stack, "tcp-blocking");
    assert_eq!(blocking.figure.metric, Metric::Median);
    assert!((blocking.figure.ratio.unwrap() - 0.5).abs() < 0.01);
    assert_eq!(blocking.figure.relation, Relation::Better);
    assert!(blocking.figure.interval.unwrap().high < 0.6 && blocking.figure.p_value.is_some());
    assert_eq!(spin.figure.relation, Relation::Equivalent);
    let guards: Vec<Metric> = blocking.guards.iter().map(|row| row.metric).collect();
    assert_eq!(guards, [Metric::Percentile(99.0), Metric::Max], "those that both sides have");
    assert!(blocking.doubts.is_empty() && spin.doubts.is_empty());
}

#[test]
fn a_factor_without_proof_is_doubted() {
    for unknown in [None, Some(false)] {
        let result = with_factor(5, unknown);
        let [blocking, _] = effects(&result);
        assert_eq!(blocking.doubts[0].kind, DoubtKind::FactorNotShown);
        assert!(blocking.doubts[0].detail.contains("in 0 of 5 rounds of netns/tcp-blocking"));
    }
}

#[test]
fn too_few_rounds_claim_nothing() {
    let result = with_factor(3, Some(true));
    let [blocking, _] = effects(&result);
    assert_eq!(blocking.figure.relation, Relation::Unclear);
    assert_eq!(blocking.figure.interval, None);
}

#[test]
fn judging_again_gives_the_same_effects() {
    let once = with_factor(10, Some(true));
    let mut twice = once.clone();
    judge(&mut twice, &|_| None);
    assert_eq!(once, twice);
}

#[test]
fn a_target_takes_no_series_with_a_factor_and_no_failure_of_one() {
    let plan = "name='x'\n[[trials]]\nenvironments=['netns']\nstacks=['tcp-spin']\n\
                probe='pingpong'\nsizes=[64]\n[[targets]]\nrequire='median < 5us'\n\
                [[factors]]\nname='held'\nkind='idle-states-held'\n";
    let mut result = result(Some(plan));
    let factor = result.plan.as_ref().unwrap().factors[0].clone();
    let mut on = FactorResult::new(factor);
    on.series = vec![pingpong("netns", "tcp-spin", 64, &steady(4_000.0, 5))];
    result.factors = vec![on];
    let mut failed = failure("netns", "tcp-spin", ProbeKind::Pingpong, "the peer has gone");
    failed.row.as_mut().unwrap().factor = Some("held".into());
    result.failures = vec![failed];
    judge(&mut result, &|_| None);
    assert_eq!(result.outcome, Outcome::Inconclusive, "only the row without the factor counts");
    assert_eq!(result.verdicts[0].evidence[0].reason, "not measured");
    assert_eq!(result.factors[0].series[0].key.case, Case::Message { size_bytes: 64 });
    assert!(result.factors[0].effects.is_empty());
}
