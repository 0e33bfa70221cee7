//! Targets: three values, each with its reason.

use nm_judge::judge;
use nm_model::campaign::NotAvailable;
use nm_model::doubt::{Doubt, DoubtKind};
use nm_model::plan::EnvironmentKind;
use nm_model::probe::ProbeKind;
use nm_model::result::{RoundData, RunResult, RunState, Series, Source, Statistic, TrialFailure};
use nm_model::verdict::{Outcome, Verdict};
use nm_model::{Campaign, NotJudgedReason, PlanItem, PlanPart, RowFilter, RowId, Selector};
use proptest::prelude::*;

use crate::make::{failure, pingpong, result, steady, stream};

/// A plan over two environments and two stacks with these targets.
fn plan(targets: &str) -> String {
    format!(
        "name = 'p'\n[[trials]]\nenvironments = ['netns']\nstacks = ['tcp-spin', 'tcp-blocking']\n\
         probe = 'pingpong'\nsizes = [64]\n{targets}"
    )
}

fn target(require: &str, rest: &str) -> String {
    format!("[[targets]]\nrequire = '{require}'\n{rest}\n")
}

fn judged(mut run: RunResult) -> RunResult {
    judge(&mut run, &|_| None);
    run
}

/// The only verdict on netns/tcp-spin with these medians.
fn verdict(require: &str, medians: &[f64], change: impl FnOnce(&mut Series)) -> Verdict {
    let mut run = result(Some(&plan(&target(require, "on = 'netns/tcp-spin'"))));
    let mut series = pingpong("netns", "tcp-spin", 64, medians);
    change(&mut series);
    run.series.push(series);
    judged(run).verdicts.remove(0)
}

fn keep(_: &mut Series) {}

#[test]
fn the_interval_must_lie_completely_on_one_side() {
    let pass = verdict("median < 2us", &steady(1500.0, 5), keep);
    assert_eq!(pass.outcome, Outcome::Pass, "{}", pass.reason);
    let fail = verdict("median < 2us", &steady(4050.0, 5), keep);
    assert_eq!(fail.outcome, Outcome::Fail);
    assert!(
        fail.reason.starts_with(
            "median half round trip over netns/tcp-spin at 64 B is 4.05 us (95 % interval "
        ) && fail.reason.ends_with(" over 5 rounds), limit 2 us"),
        "{}",
        fail.reason
    );
    let between = verdict("median < 2us", &[1900.0, 1950.0, 2000.0, 2050.0, 2100.0], keep);
    assert_eq!(between.outcome, Outcome::Inconclusive);
    assert!(between.reason.contains("the limit lies inside the interval"), "{}", between.reason);
}

#[test]
fn missing_evidence_is_never_a_pass() {
    let few = verdict("median < 2us", &steady(1500.0, 4), keep);
    assert_eq!(few.outcome, Outcome::Inconclusive);
    assert!(few.reason.contains("fewer than 5 rounds"), "{}", few.reason);
    let absent = verdict("p99.999 < 2us", &steady(1500.0, 5), keep);
    assert_eq!(absent.outcome, Outcome::Inconclusive);
    assert!(absent.reason.contains("p99.999 is n/a"), "{}", absent.reason);
    assert_eq!(judged(result(None)).outcome, Outcome::Inconclusive);
}

#[test]
fn a_verdict_names_the_series_that_decides() {
    let mut run = result(Some(&plan(&target("median < 2us", "scope = 'any'"))));
    run.series.push(pingpong("netns", "tcp-spin", 64, &steady(500.0, 5)));
    run.series.push(pingpong("netns", "tcp-blocking", 64, &steady(1500.0, 5)));
    let any = judged(run.clone()).verdicts.remove(0);
    // The one that the reason names, not the fastest.
    assert_eq!(any.decisive.as_deref(), Some("netns/tcp-blocking pingpong 64 B"), "{}", any.reason);
    run.plan = result(Some(&plan(&target("median < 400ns", "")))).plan;
    let every = judged(run).verdicts.remove(0);
    assert_eq!(every.outcome, Outcome::Fail);
    assert_eq!(every.decisive.as_deref(), Some("netns/tcp-blocking pingpong 64 B"));
}

#[test]
fn a_pattern_without_a_match_lists_the_measured_paths() {
    let mut run = result(Some(&plan(&target("median < 2us", "on = 'netns/*'"))));
    // A plan that is read has no such target; that of an old result may have.
    run.plan.as_mut().unwrap().targets[0].on = Selector::new("netnss/*");
    run.series.push(pingpong("netns", "tcp-spin", 64, &steady(1500.0, 5)));
    let verdict = judged(run).verdicts.remove(0);
    assert_eq!(verdict.outcome, Outcome::Inconclusive);
    assert_eq!(verdict.reason, "nothing measured matches `netnss/*`; measured were netns/tcp-spin");
}

#[test]
fn figures_of_other_tools_and_studies_never_pass() {
    let sources = [
        (Source::Imported { tool: "sockperf".into() }, "by sockperf"),
        (Source::Reference { study: "s".into(), tool: "t".into() }, "single published run"),
    ];
    for (source, words) in sources {
        let mut run = result(Some(&plan(&target("median < 2us", "on = 'netns/tcp-spin'"))));
        run.source = source;
        run.series.push(pingpong("netns", "tcp-spin", 64, &steady(1500.0, 9)));
        let verdict = judged(run).verdicts.remove(0);
        assert_eq!(verdict.outcome, Outcome::Inconclusive);
        assert!(verdict.reason.contains(words), "{}", verdict.reason);
    }
}

#[test]
fn doubts_invalidate_a_pass_only_if_they_could_change_it() {
    let doubt = |kind| move |series: &mut Series| series.doubts.push(Doubt::new(kind, "x"));
    let fast = steady(1500.0, 5);
    let outcome = |kind| verdict("median < 2us", &fast, doubt(kind)).outcome;
    assert_eq!(outcome(DoubtKind::SharedCpu), Outcome::Inconclusive);
    assert_eq!(outcome(DoubtKind::Steal), Outcome::Pass);
    // Variance counts only if a round lies beyond the limit.
    assert_eq!(outcome(DoubtKind::Bimodal), Outcome::Pass);
    let one_out = [1500.0, 1501.0, 1502.0, 1503.0, 1499.0, 1500.0, 1498.0, 1501.0, 2600.0];
    let scattered = verdict("median < 2us", &one_out, doubt(DoubtKind::Outliers));
    assert_eq!(scattered.outcome, Outcome::Inconclusive, "{}", scattered.reason);
    assert!(scattered.reason.contains("1 of 9 rounds lies on the wrong side"));
    // A failure names what may have made it worse.
    let slow = verdict("median < 2us", &steady(4000.0, 5), doubt(DoubtKind::Steal));
    assert!(slow.reason.ends_with("; doubts: stolen time"), "{}", slow.reason);
}

#[test]
fn loss_invalidates_the_tail_before_the_median() {
    let lose = |lost: u64| {
        move |series: &mut Series| {
            for round in &mut series.rounds {
                let RoundData::Latency(data) = &mut round.data else { panic!("latency") };
                data.lost = lost;
            }
        }
    };
    let fast = steady(1500.0, 5);
    assert_eq!(verdict("median < 2us", &fast, lose(500)).outcome, Outcome::Pass);
    assert_eq!(verdict("p99 < 20us", &fast, lose(500)).outcome, Outcome::Inconclusive);
    assert_eq!(verdict("p99 < 20us", &fast, lose(10)).outcome, Outcome::Pass);
    assert_eq!(verdict("max < 20ms", &fast, lose(1)).outcome, Outcome::Inconclusive);
}

#[test]
fn a_round_in_which_a_node_ended_by_itself_supports_no_pass() {
    let end = |series: &mut Series| {
        series.rounds[1].doubts.push(Doubt::new(DoubtKind::NodeEnded, "mediator 1".to_string()));
    };
    let verdict = verdict("median < 2us", &steady(1500.0, 5), end);
    assert_eq!(verdict.outcome, Outcome::Inconclusive);
    assert!(verdict.reason.contains("a node ended by itself"), "{}", verdict.reason);
}

#[test]
fn an_unavailable_row_affects_scope_every_but_not_any() {
    let run = |scope: &str| {
        let rest = format!("on = 'netns/*'\nscope = '{scope}'");
        let mut run = result(Some(&plan(&target("median < 2us", &rest))));
        run.series.push(pingpong("netns", "tcp-spin", 64, &steady(1500.0, 5)));
        run.not_available.push(NotAvailable {
            environment: EnvironmentKind::Netns,
            stack: "tcp-blocking".parse().unwrap(),
            probe: ProbeKind::Pingpong,
            reason: "no such thing here".to_string(),
            has_failed: false,
        });
        judged(run).verdicts.remove(0)
    };
    let every = run("every");
    assert_eq!(every.outcome, Outcome::Inconclusive);
    assert!(every.reason.contains("no such thing here"), "{}", every.reason);
    assert_eq!(every.evidence.len(), 2);
    assert_eq!(run("any").outcome, Outcome::Pass);
}

#[test]
fn a_failed_exchange_is_missing_evidence_with_its_reason() {
    let plan = "name = 'p'\n[[trials]]\nenvironments = ['loopback']\nstacks = ['tcp-epoll']\n\
         probe = 'exchange'\nnodes = '1-1-1-1'\n[[targets]]\nrequire = 'p99 < 10ms'\n";
    let mut run = result(Some(plan));
    let campaign = Campaign::resolve(run.plan.clone().unwrap(), |_, _, _| None);
    run.failures.push(TrialFailure {
        row: Some(RowId::of_trial(&campaign.trials[0])),
        reason: "router 0 has gone".to_string(),
    });
    let evidence = &judged(run).verdicts[0].evidence[0];
    assert_eq!(
        evidence.reason,
        "not measured: round 1 of loopback/1-1-1-1 exchange: router 0 has gone"
    );
}

/// Its row has the stack of the links, while the target names the layout.
#[test]
fn an_unavailable_exchange_is_found_by_its_layout() {
    let plan = "name = 'p'\n[[trials]]\nenvironments = ['loopback']\nstacks = ['tcp-epoll']\n\
         probe = 'exchange'\nnodes = '1-1-1-1'\n[[targets]]\nrequire = 'p99 < 10ms'\n\
         on = 'loopback/1-1-1-1'\nscope = 'any'\n";
    let mut run = result(Some(plan));
    run.not_available.push(NotAvailable {
        environment: EnvironmentKind::Loopback,
        stack: "tcp-epoll".parse().unwrap(),
        probe: ProbeKind::Exchange,
        reason: "too few CPUs".to_string(),
        has_failed: false,
    });
    let verdict = judged(run).verdicts.remove(0);
    assert_eq!(verdict.reason, "loopback/1-1-1-1 is not available: too few CPUs");
}

#[test]
fn a_failure_belongs_to_its_own_stack_only() {
    let mut run = result(Some(&plan(&target("median < 2us", ""))));
    run.failures.push(failure("netns", "tcp-spin:tcp-blocking", ProbeKind::Pingpong, "gone"));
    let verdict = judged(run).verdicts.remove(0);
    let reasons: Vec<&str> =
        verdict.evidence.iter().map(|evidence| evidence.reason.as_str()).collect();
    assert_eq!(reasons, ["not measured", "not measured"]);
}

#[test]
fn a_row_that_failed_is_missing_evidence_for_both_scopes() {
    for scope in ["every", "any"] {
        let rest = format!("on = 'netns/*'\nscope = '{scope}'");
        let mut run = result(Some(&plan(&target("median < 2us", &rest))));
        run.series.push(pingpong("netns", "tcp-spin", 64, &steady(4000.0, 5)));
        run.failures.push(failure(
            "netns",
            "tcp-blocking",
            ProbeKind::Pingpong,
            "the peer has gone",
        ));
        let verdict = judged(run).verdicts.remove(0);
        let expected = if scope == "every" { Outcome::Fail } else { Outcome::Inconclusive };
        assert_eq!(verdict.outcome, expected, "{}", verdict.reason);
        assert!(verdict.evidence[1].reason.contains("the peer has gone"));
    }
}

/// The target of the published runs with the rows of plan `quick`: what the kernel misses the
/// accelerator meets, and programs keep their way of waiting.
#[test]
fn the_accelerator_is_the_cheapest_where_the_kernel_misses_the_target() {
    let rest = "on='netns/*'\nscope='any'";
    let mut run = result(Some(&plan(&target("median < 2us at size<=1024", rest))));
    for (stack, ns) in [
        ("tcp-spin", 4000.0),
        ("tcp-blocking", 20_000.0),
        ("xdp-spin", 2800.0),
        ("shm-spin", 200.0),
        ("accel+tcp-spin", 300.0),
        ("accel+tcp-blocking", 350.0),
    ] {
        for size_bytes in [64, 1024] {
            run.series.push(pingpong("netns", stack, size_bytes, &steady(ns, 5)));
        }
    }
    let verdict = judged(run.clone()).verdicts.remove(0);
    assert_eq!(verdict.outcome, Outcome::Pass);
    let start = "met only by stacks that need both ends on one host: netns/accel+tcp-blocking \
                 meets it and needs least of the machine (shared memory of one host, no \
                 spinning): median";
    assert!(verdict.reason.starts_with(start), "{}", verdict.reason);
    // A kernel row that meets it is cheaper.
    run.series.push(pingpong("netns", "udp-spin", 64, &steady(1900.0, 5)));
    run.series.push(pingpong("netns", "udp-spin", 1024, &steady(1900.0, 5)));
    let verdict = judged(run).verdicts.remove(0);
    let start = "netns/udp-spin meets it and needs least of the machine (no bypass, a CPU that \
                 spins): median";
    assert!(verdict.reason.starts_with(start), "{}", verdict.reason);
    assert!(!verdict.is_same_host_only);
}

#[test]
fn any_names_the_cheapest_stack_that_meets_it() {
    let mut run = result(Some(&plan(&target("median < 2us", "on='netns/*'\nscope='any'"))));
    for stack in ["tcp-spin", "tcp-blocking"] {
        run.series.push(pingpong("netns", stack, 64, &steady(1500.0, 5)));
    }
    let verdict = judged(run).verdicts.remove(0);
    assert_eq!(verdict.outcome, Outcome::Pass);
    let start = "netns/tcp-blocking meets it and needs least of the machine (no bypass, no \
                 spinning): median";
    assert!(verdict.reason.starts_with(start), "{}", verdict.reason);
}

/// What the target of plan `quick` was met by when the kernel stood at 9 us: shared memory.
#[test]
fn a_target_met_on_one_host_only_names_the_best_between_hosts() {
    let run = |class: &str, tcp_ns: f64| {
        let rest = format!("on='netns/*'\nscope='any'\n{class}");
        let mut run = result(Some(&class_plan(&target("median < 2us", &rest))));
        run.series.push(pingpong("netns", "tcp-spin", 64, &steady(tcp_ns, 5)));
        run.series.push(pingpong("netns", "shm-spin", 64, &steady(200.0, 5)));
        judged(run).verdicts.remove(0)
    };
    let verdict = run("", 9000.0);
    assert_eq!((verdict.outcome, verdict.is_same_host_only), (Outcome::Pass, true));
    assert!(
        verdict.reason.starts_with("met only by stacks that need both ends on one host: ")
            && verdict.reason.contains(
                "; between hosts the best is: median half round trip over netns/tcp-spin at 64 B \
                 is 9 us"
            ),
        "{}",
        verdict.reason
    );
    let verdict = run("class='same-host'", 9000.0);
    assert_eq!((verdict.outcome, verdict.is_same_host_only), (Outcome::Pass, true));
    assert!(verdict.reason.ends_with("; on this host only"), "{}", verdict.reason);
    assert_eq!(verdict.target, "median < 2us on netns/*, any same-host stack");
    assert_eq!(verdict.evidence.len(), 1);
    let verdict = run("class=['kernel', 'bypass']", 9000.0);
    assert_eq!(verdict.outcome, Outcome::Fail);
    assert!(
        verdict.reason.starts_with("no kernel or bypass stack of `netns/*` meets it at 64 B"),
        "{}",
        verdict.reason
    );
    let verdict = run("class=['kernel', 'same-host']", 1000.0);
    assert_eq!((verdict.outcome, verdict.is_same_host_only), (Outcome::Pass, false));
}

#[test]
fn every_stack_of_a_same_host_target_passes_on_this_host_only() {
    let rest = "on='netns/*'\nclass='same-host'";
    let mut run = result(Some(&class_plan(&target("median < 2us", rest))));
    run.series.push(pingpong("netns", "shm-spin", 64, &steady(200.0, 5)));
    let verdict = judged(run).verdicts.remove(0);
    assert_eq!((verdict.outcome, verdict.is_same_host_only), (Outcome::Pass, true));
    assert!(verdict.reason.ends_with("; on this host only"), "{}", verdict.reason);
}

/// A plan with a kernel stack and one of shared memory.
fn class_plan(targets: &str) -> String {
    plan(targets).replace("'tcp-blocking'", "'shm-spin'")
}

/// A run of plan with optional AF_XDP rows, which cannot run here or have failed.
fn with_optional_rows(targets: &str, has_failed: bool) -> RunResult {
    let optional = "[[trials]]\nenvironments = ['netns']\nstacks = ['xdp-spin']\n\
                    probe = 'pingpong'\nsizes = [64]\noptional = true\n";
    let mut run = result(Some(&plan(&format!("{optional}{targets}"))));
    run.series.push(pingpong("netns", "tcp-spin", 64, &steady(1500.0, 5)));
    run.series.push(pingpong("netns", "tcp-blocking", 64, &steady(1500.0, 5)));
    run.not_available.push(NotAvailable {
        environment: EnvironmentKind::Netns,
        stack: "xdp-spin".parse().unwrap(),
        probe: ProbeKind::Pingpong,
        reason: "it takes root".to_string(),
        has_failed,
    });
    run
}

#[test]
fn optional_rows_that_cannot_run_are_left_out_and_named() {
    for scope in ["every", "any"] {
        let target = target("median < 2us", &format!("scope = '{scope}'"));
        let run = judged(with_optional_rows(&target, false));
        assert_eq!(run.outcome, Outcome::Pass, "{}", run.verdicts[0].reason);
        let reason = &run.verdicts[0].reason;
        assert!(reason.ends_with("; left out: netns/xdp-spin (it takes root)"), "{reason}");
        assert!(run.not_judged.is_empty());
        assert_eq!(run.left_out_rows().len(), 1);
    }
}

#[test]
fn an_optional_row_that_failed_is_not_left_out() {
    for scope in ["every", "any"] {
        let rest = format!("on = '*/xdp-*'\nscope = '{scope}'");
        let mut run = with_optional_rows(&target("median < 2us", &rest), true);
        run.not_available[0].reason = "failed 3 times in a row".to_string();
        let run = judged(run);
        assert_eq!(run.outcome, Outcome::Inconclusive);
        let reason = &run.verdicts[0].reason;
        assert!(reason.contains("not available: failed 3 times in a row"), "{reason}");
    }
    // Nor one of which a trial failed.
    let mut run = with_optional_rows(&target("median < 2us", ""), false);
    run.not_available.clear();
    run.failures.push(failure("netns", "xdp-spin", ProbeKind::Pingpong, "gone"));
    assert_eq!(judged(run).outcome, Outcome::Inconclusive);
}

#[test]
fn a_target_whose_optional_rows_are_all_missing_is_not_judged() {
    let missing = target("median < 2us", "on = '*/xdp-*'");
    let run = judged(with_optional_rows(
        &format!("{missing}{}", target("median < 2us", "on = '*/tcp-*'")),
        false,
    ));
    assert_eq!((run.outcome, run.verdicts.len()), (Outcome::Pass, 1));
    assert_eq!(
        run.not_judged[0].to_string(),
        "target `median < 2us on */xdp-*` is not judged: optional and not available: \
         netns/xdp-spin (it takes root)"
    );
    // Without a judged target nothing passes.
    let run = judged(with_optional_rows(&missing, false));
    assert_eq!((run.outcome, run.verdicts.len()), (Outcome::Inconclusive, 0));
}

#[test]
fn a_part_of_a_plan_does_not_pass_for_the_plan() {
    let targets = format!(
        "{}{}{}[[comparisons]]\na = 'netns/tcp-spin'\nb = 'netns/tcp-blocking'\n",
        target("median < 2us", "on = 'netns/tcp-spin'"),
        target("median < 2us", "on = 'netns/tcp-blocking'"),
        target("median < 2us", ""),
    );
    let part = |only: &[&str], is_judged_alone| {
        let mut run = result(Some(&plan(&targets)));
        run.series.push(pingpong("netns", "tcp-spin", 64, &steady(1500.0, 5)));
        let only = RowFilter::parse(only).unwrap();
        run.part = Some(PlanPart { only, is_judged_alone });
        judged(run)
    };
    let run = part(&["tcp-spin"], false);
    assert_eq!(run.outcome, Outcome::Inconclusive);
    assert_eq!(run.verdicts.len(), 2);
    assert!(run.verdicts.iter().all(|verdict| verdict.outcome == Outcome::Pass));
    let without: Vec<(PlanItem, &str, &NotJudgedReason)> =
        run.not_judged.iter().map(|one| (one.item, one.text.as_str(), &one.reason)).collect();
    assert_eq!(
        without,
        [
            (PlanItem::Target, "median < 2us on netns/tcp-blocking", &NotJudgedReason::RowsLeftOut),
            (
                PlanItem::Target,
                "median < 2us",
                &NotJudgedReason::SomeRowsLeftOut { n_judged: 1, n_planned: 2 }
            ),
            (
                PlanItem::Comparison,
                "netns/tcp-blocking against netns/tcp-spin",
                &NotJudgedReason::RowsLeftOut
            ),
        ]
    );
    assert!(run.verdicts[1].reason.starts_with("on 1 of its 2 rows: "));
    assert!(run.comparisons.is_empty());
    assert_eq!(part(&["tcp-spin"], true).outcome, Outcome::Pass);
    // A part can fail.
    let mut run = part(&["tcp-spin"], false);
    run.series[0] = pingpong("netns", "tcp-spin", 64, &steady(9000.0, 5));
    assert_eq!(judged(run).outcome, Outcome::Fail);
}

#[test]
fn any_that_fails_names_the_best() {
    let mut run = result(Some(&plan(&target("median < 2us", "on='netns/*'\nscope='any'"))));
    run.series.push(pingpong("netns", "tcp-spin", 64, &steady(4000.0, 5)));
    run.series.push(pingpong("netns", "tcp-blocking", 64, &steady(24_000.0, 5)));
    let verdict = judged(run).verdicts.remove(0);
    assert_eq!(verdict.outcome, Outcome::Fail);
    assert!(
        verdict.reason.starts_with(
            "no stack of `netns/*` meets it at 64 B; the best: median half round trip over \
             netns/tcp-spin at 64 B is 4 us"
        ),
        "{}",
        verdict.reason
    );
}

#[test]
fn an_interrupted_run_passes_nothing() {
    let mut run = result(Some(&plan(&target("median < 2us", "on = 'netns/tcp-spin'"))));
    run.series.push(pingpong("netns", "tcp-spin", 64, &steady(1500.0, 5)));
    run.state = RunState::Interrupted;
    let run = judged(run);
    assert_eq!(run.outcome, Outcome::Inconclusive);
    assert!(run.verdicts[0].reason.contains("did not come to its end"));
}

#[test]
fn throughput_targets_look_at_streams_only() {
    let streams = "[[trials]]\nenvironments = ['netns']\nstacks = ['tcp-blocking']\n\
                   probe = 'stream'\n";
    let mut run = result(Some(&plan(&format!("{streams}{}", target("throughput >= 9 Gb/s", "")))));
    run.series.push(pingpong("netns", "tcp-spin", 64, &steady(1500.0, 5)));
    run.series.push(stream("netns", "tcp-blocking", &steady(18.0, 5)));
    let run = judged(run);
    assert_eq!(run.outcome, Outcome::Pass, "{}", run.verdicts[0].reason);
    assert_eq!(run.verdicts[0].evidence.len(), 1);
}

#[test]
fn judging_is_idempotent() {
    let mut run = result(Some(&plan(&target("median < 2us", "on = 'netns/*'"))));
    run.series.push(pingpong("netns", "tcp-spin", 64, &steady(1500.0, 5)));
    let once = judged(run);
    assert_eq!(judged(once.clone()), once);
}

proptest! {
    #[test]
    fn a_pass_has_every_round_of_a_steady_series_on_the_right_side(
        middle in 500.0..4000.0f64, n in 0usize..12,
    ) {
        let medians = steady(middle, n);
        let verdict = verdict("median < 2us", &medians, keep);
        let all = |right: bool| medians.iter().all(|median| (*median < 2000.0) == right);
        match verdict.outcome {
            Outcome::Pass => prop_assert!(n >= 5 && medians.iter().any(|m| *m < 2000.0)),
            Outcome::Fail => prop_assert!(n >= 5 && medians.iter().any(|m| *m >= 2000.0)),
            Outcome::Inconclusive => {
                prop_assert!(n < 5 || !(all(true) || all(false)), "{}", verdict.reason);
            }
        }
    }
}

#[test]
fn an_open_loop_is_judged_from_the_intended_send() {
    let mut run = result(Some(&plan(&target("median < 2us", "on = 'netns/tcp-spin'"))));
    let at = |statistic, medians: &[f64]| {
        let mut series = pingpong("netns", "tcp-spin", 64, medians);
        series.key.probe = ProbeKind::Rr;
        series.key.statistic = statistic;
        series
    };
    // The service time alone is judged; beside the time from the intended send it is not.
    run.series.push(at(Statistic::RoundTrip, &steady(1500.0, 5)));
    assert_eq!(judged(run.clone()).verdicts[0].evidence.len(), 2, "with the row of the plan");
    run.series.push(at(Statistic::RoundTripFromIntended, &steady(4050.0, 5)));
    let verdict = judged(run).verdicts.remove(0);
    assert_eq!(verdict.outcome, Outcome::Fail, "{}", verdict.reason);
    let judged: Vec<f64> = verdict.evidence.iter().filter_map(|evidence| evidence.value).collect();
    assert_eq!(judged, [4050.0]);
}
