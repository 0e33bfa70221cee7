//! Figures of emulated guests: never judged, never compared, and never without a word about it.

use nm_judge::{
    CompareOptions, GateOptions, Selector, TrendError, TrendOptions, compare, judge, trend,
};
use nm_model::campaign::NotAvailable;
use nm_model::plan::EnvironmentKind;
use nm_model::probe::ProbeKind;
use nm_model::result::{RunResult, Series};
use nm_model::{
    Factor, FactorKind, FactorResult, GuestExecution, GuestRecord, Metric, NotJudgedReason, Outcome,
};

use crate::make::{failure, pingpong, result, steady};

/// A plan with a row on the host, and rows in guests that may be optional.
fn plan(is_optional: bool, rest: &str) -> String {
    let block = |environment: &str, stacks: &str, optional: bool| {
        format!(
            "[[trials]]\nenvironments = ['{environment}']\nstacks = [{stacks}]\n\
             probe = 'pingpong'\nsizes = [64]\noptional = {optional}\n"
        )
    };
    format!(
        "name = 'p'\n{}{}{rest}",
        block("netns", "'tcp-spin'", false),
        block("vm-vswitch", "'tcp-spin', 'shm-spin'", is_optional)
    )
}

fn target(on: &str, rest: &str) -> String {
    format!("[[targets]]\nrequire = 'median < 2us'\non = '{on}'\n{rest}\n")
}

fn in_guests(stack: &str, median_ns: f64, execution: GuestExecution) -> Series {
    let mut series = pingpong("vm-vswitch", stack, 64, &steady(median_ns, 5));
    series.comparability.execution = Some(execution);
    series
}

/// A run on the host and in guests, each stack far below the limit of the targets.
fn run(plan: &str, execution: GuestExecution) -> RunResult {
    let mut run = result(Some(plan));
    run.series.push(pingpong("netns", "tcp-spin", 64, &steady(1500.0, 5)));
    run.series.push(in_guests("tcp-spin", 1000.0, execution));
    run.series.push(in_guests("shm-spin", 300.0, execution));
    run
}

fn judged(mut run: RunResult) -> RunResult {
    judge(&mut run, &|_| None);
    run
}

fn record(execution: GuestExecution) -> GuestRecord {
    GuestRecord {
        environment: EnvironmentKind::VmSwitch,
        execution,
        evidence: "made by hand".into(),
        qemu_version: "7.2.22".into(),
        machine: "q35".into(),
        cpu_model: "max".into(),
        pairs: 1,
        cpus: 1,
        memory_mib: 512,
        page_kib: 4,
        is_memory_locked: false,
        kernel: "6.1.0".into(),
        program_sha256: String::new(),
        boot_ms: 2460,
        first_result_ms: None,
        placement: vec![],
        notes: vec![],
        findings: vec![],
    }
}

const EMULATED: [GuestExecution; 3] =
    [GuestExecution::NestedKvm, GuestExecution::InterpretedKvm, GuestExecution::Tcg];

#[test]
fn a_target_of_emulated_rows_only_is_not_judged_and_nothing_passes_by_it() {
    for execution in EMULATED {
        let plan = plan(true, &target("vm-vswitch/*", ""));
        let run = judged(run(&plan, execution));
        assert_eq!((run.outcome, run.verdicts.len()), (Outcome::Inconclusive, 0));
        let [one] = &run.not_judged[..] else { panic!("{:?}", run.not_judged) };
        assert!(matches!(one.reason, NotJudgedReason::Emulated { .. }) && !one.is_left_out());
        assert_eq!(
            one.to_string(),
            format!(
                "target `median < 2us on vm-vswitch/*` is not judged: optional, and figures of \
                 emulated guests do not count: vm-vswitch/tcp-spin, vm-vswitch/shm-spin \
                 (EMULATED by {execution})"
            )
        );
    }
}

#[test]
fn guests_of_real_kvm_are_judged_as_any_row() {
    let run = judged(run(&plan(true, &target("vm-vswitch/*", "")), GuestExecution::RealKvm));
    assert_eq!((run.outcome, run.not_judged.len()), (Outcome::Pass, 0));
    assert_eq!(run.verdicts[0].evidence.len(), 2);
}

#[test]
fn an_optional_emulated_row_is_left_out_and_spoils_no_pass() {
    let targets = target("*", "");
    let mut emulated = run(&plan(true, &targets), GuestExecution::Tcg);
    // Far above the limit: it does not fail either.
    emulated.series[1] = in_guests("tcp-spin", 90_000.0, GuestExecution::Tcg);
    let emulated = judged(emulated);
    let [verdict] = &emulated.verdicts[..] else { panic!("{:?}", emulated.verdicts) };
    assert_eq!((emulated.outcome, verdict.outcome), (Outcome::Pass, Outcome::Pass));
    assert_eq!(verdict.evidence.len(), 1, "{:?}", verdict.evidence);
    assert!(
        verdict
            .reason
            .ends_with("; left out: vm-vswitch/tcp-spin, vm-vswitch/shm-spin (EMULATED by tcg)"),
        "{}",
        verdict.reason
    );
}

#[test]
fn an_optional_row_that_failed_under_emulation_spoils_no_pass() {
    let mut run = run(&plan(true, &target("*", "")), GuestExecution::Tcg);
    run.series.truncate(1);
    let failed = failure("vm-vswitch", "tcp-spin", ProbeKind::Pingpong, "time limit");
    run.failures.push(failed);
    assert_eq!(judged(run.clone()).outcome, Outcome::Inconclusive, "nothing says emulated");
    run.guests.push(record(GuestExecution::Tcg));
    let run = judged(run);
    assert_eq!(run.outcome, Outcome::Pass, "{}", run.verdicts[0].reason);
}

#[test]
fn an_emulated_row_that_is_not_optional_makes_its_target_inconclusive() {
    let run = |on: &str| {
        let run = judged(run(&plan(false, &target(on, "")), GuestExecution::Tcg));
        assert!(run.not_judged.is_empty());
        (run.outcome, run.verdicts[0].reason.clone())
    };
    for on in ["*", "vm-vswitch/*"] {
        let (outcome, reason) = run(on);
        assert_eq!(outcome, Outcome::Inconclusive, "{on}");
        assert!(
            reason.contains("EMULATED by tcg: figures of emulated guests are not judged"),
            "{reason}"
        );
    }
    assert_eq!(run("netns/*").0, Outcome::Pass, "targets of other rows are judged");
}

#[test]
fn limits_of_the_machine_alone_are_no_pass_for_emulated_rows() {
    let rest = format!("{}[machine]\nsteal_percent_max = 1\n", target("vm-vswitch/*", ""));
    let run = judged(run(&plan(true, &rest), GuestExecution::Tcg));
    assert!(run.verdicts.iter().all(|verdict| verdict.is_of_machine));
    assert_ne!(run.outcome, Outcome::Pass);
}

#[test]
fn one_real_series_is_enough_where_one_is_and_an_emulated_one_is_not() {
    let any = "scope = 'any'";
    let run_any = run(&plan(true, &target("*", any)), GuestExecution::Tcg);
    let mut only = run_any.clone();
    let real = judged(run_any);
    assert_eq!(real.outcome, Outcome::Pass);
    assert!(real.verdicts[0].reason.contains("netns/tcp-spin"), "{}", real.verdicts[0].reason);
    only.series[0] = pingpong("netns", "tcp-spin", 64, &steady(9000.0, 5));
    assert_eq!(judged(only).outcome, Outcome::Fail, "the emulated ones do not save it");
}

#[test]
fn rows_that_are_missing_and_rows_that_are_emulated_are_named_together() {
    let mut run = run(&plan(true, &target("vm-vswitch/*", "")), GuestExecution::Tcg);
    run.series.pop();
    run.not_available.push(NotAvailable {
        environment: EnvironmentKind::VmSwitch,
        stack: "shm-spin".parse().unwrap(),
        probe: ProbeKind::Pingpong,
        reason: "no shared memory".into(),
        has_failed: false,
    });
    let sentence = judged(run).not_judged[0].to_string();
    assert!(
        sentence.ends_with(
            "vm-vswitch/tcp-spin (EMULATED by tcg); vm-vswitch/shm-spin (no shared memory)"
        ),
        "{sentence}"
    );
}

#[test]
fn a_planned_comparison_with_an_emulated_side_is_refused() {
    let compared = "[[comparisons]]\na = 'netns/tcp-spin'\nb = 'vm-vswitch/tcp-spin'\n";
    let run_of = |is_optional| judged(run(&plan(is_optional, compared), GuestExecution::Tcg));
    let optional = run_of(true);
    assert!(optional.comparisons.is_empty());
    assert!(matches!(optional.not_judged[0].reason, NotJudgedReason::Emulated { .. }));
    let required = run_of(false);
    let [comparison] = &required.comparisons[..] else { panic!("{:?}", required.comparisons) };
    assert_eq!(comparison.outcome, Outcome::Inconclusive);
    assert!(comparison.rows.is_empty() && comparison.overall.is_empty());
    assert_eq!(
        comparison.reasons,
        ["nothing is compared: guests were emulated, so the figures say nothing about \
             virtualization here"]
    );
    assert_eq!(
        comparison.refused,
        ["vm-vswitch/tcp-spin pingpong 64 B is not compared: vm-vswitch/tcp-spin is \
             EMULATED by tcg"]
    );
    let real = judged(run(&plan(true, compared), GuestExecution::RealKvm));
    assert!(real.comparisons[0].refused.is_empty() && real.comparisons[0].differences.is_empty());
    assert!(real.comparisons[0].overall[0].ratio.is_some());
}

#[test]
fn results_of_which_one_is_emulated_are_compared_but_for_these_series() {
    let real = run(&plan(true, ""), GuestExecution::RealKvm);
    let emulated = run(&plan(true, ""), GuestExecution::Tcg);
    let named = CompareOptions {
        name_a: Some("before".into()),
        name_b: Some("after".into()),
        ..CompareOptions::default()
    };
    let found = compare(&real, &emulated, &named);
    assert_eq!(
        found.refused,
        ["tcp-spin", "shm-spin"].map(|stack| format!(
            "vm-vswitch/{stack} pingpong 64 B is not compared: after is EMULATED by tcg"
        ))
    );
    assert!(found.reasons.iter().any(|reason| reason.starts_with("2 series are not compared: ")));
    let is_of_guests = |case: &str| case.contains("vm-vswitch");
    assert!(found.rows.iter().chain(&found.overall).all(|row| !is_of_guests(&row.case)));
    assert_eq!(found.outcome, Outcome::Pass, "{:?}", found.reasons);
    let both = compare(&emulated, &emulated, &named);
    assert!(both.refused[0].ends_with("before is EMULATED by tcg, after is EMULATED by tcg"));
    assert!(!both.reasons.iter().any(|reason| reason.contains("sides are equal")));
}

#[test]
fn a_factor_on_emulated_rows_has_no_effect_and_a_note() {
    let kind = FactorKind::IdleStatesHeld;
    let factor = Factor { name: "held".into(), kind, on: Selector::any(), probe: None, step: None };
    let mut run = run(&plan(true, ""), GuestExecution::Tcg);
    let mut on = FactorResult::new(factor);
    on.series = run.series.clone();
    run.factors = vec![on];
    let run = judged(judged(run));
    let [factor] = &run.factors[..] else { panic!("one factor") };
    let stacks: Vec<String> = factor.effects.iter().map(|effect| effect.key.path()).collect();
    assert_eq!(stacks, ["netns/tcp-spin"]);
    assert_eq!(factor.notes.len(), 2, "once each, however often it is judged");
    assert_eq!(
        factor.notes[0],
        "vm-vswitch/tcp-spin pingpong 64 B with the factor is not compared with that without it: \
         EMULATED by tcg"
    );
}

#[test]
fn a_trend_leaves_emulated_series_out_with_a_sentence() {
    let options = |on: &str| TrendOptions {
        metrics: vec![Metric::Median],
        on: Selector::new(on),
        tested: vec![Metric::Median, Metric::Percentile(99.0), Metric::Throughput],
        gate: GateOptions::default(),
    };
    let runs = || {
        let real = run(&plan(true, ""), GuestExecution::RealKvm);
        let emulated = run(&plan(true, ""), GuestExecution::Tcg);
        vec![("first".to_string(), real), ("second".to_string(), emulated)]
    };
    let found = trend(runs(), &options("*")).unwrap();
    let of_guests = found.lines.iter().find(|line| line.series.stack == "shm-spin").unwrap();
    assert!(of_guests.points[0].value.is_some());
    assert!(of_guests.points[1].value.is_none() && of_guests.points[1].ratio_to_first.is_none());
    assert_eq!(
        found.refused[0],
        "vm-vswitch/tcp-spin pingpong 64 B of second is left out: EMULATED by tcg"
    );
    let emulated: Vec<_> =
        runs().into_iter().map(|(name, _)| (name, runs()[1].1.clone())).collect();
    let error = trend(emulated, &options("vm-vswitch/*")).unwrap_err();
    assert!(matches!(&error, TrendError::Emulated(text) if text.contains("EMULATED by tcg")));
}
