//! What a missed target means beside a disturbance, and what a lost trial leaves.

use nm_judge::judge;
use nm_model::machine::MachineUse;
use nm_model::probe::ProbeKind;
use nm_model::result::{RunResult, RunState};
use nm_model::undecided::Undecided;
use nm_model::verdict::Outcome;

use crate::make::{failure, pingpong, result, steady};

const PLAN: &str = "name = 'p'\n[[trials]]\nenvironments = ['netns']\nstacks = ['tcp-spin']\n\
                    probe = 'pingpong'\nsizes = [64]\n[[targets]]\nrequire = 'median < 2us'\n\
                    [machine]\n";

/// A judged run with this median, on a machine that did this.
fn judged(median_ns: f64, machine: MachineUse) -> RunResult {
    let mut run = result(Some(PLAN));
    run.series.push(pingpong("netns", "tcp-spin", 64, &steady(median_ns, 5)));
    run.machine = Some(machine);
    judge(&mut run, &|_| None);
    run
}

fn quiet() -> MachineUse {
    MachineUse {
        window_s: 100.0,
        cpus: 4,
        cpus_allowed: 4,
        steal_s: Some(1.0),
        other_work_s: Some(2.0),
        ..Default::default()
    }
}

fn busy() -> MachineUse {
    MachineUse { other_work_s: Some(47.0), ..quiet() }
}

#[test]
fn a_missed_target_beside_other_programs_decides_nothing_and_keeps_its_verdict() {
    let run = judged(4000.0, busy());
    assert_eq!(run.outcome, Outcome::Inconclusive);
    let missed = run.verdicts.iter().find(|verdict| !verdict.is_of_machine).unwrap();
    assert_eq!(missed.outcome, Outcome::Fail, "its own verdict stays");
    let expected = Undecided::OtherPrograms { n_missed: 1, percent: 47.0, limit_percent: 10.0 };
    assert_eq!(run.undecided, Some(expected));
    // Judging again gives the same.
    let mut again = run.clone();
    judge(&mut again, &|_| None);
    assert_eq!(again, run);
}

#[test]
fn a_missed_target_on_a_quiet_or_limited_machine_fails() {
    for (what, machine) in [
        ("quiet", quiet()),
        ("stolen", MachineUse { steal_s: Some(20.0), ..quiet() }),
        ("stolen beside programs", MachineUse { steal_s: Some(20.0), ..busy() }),
        ("quota beside programs", MachineUse { quota: Some("5 10".into()), ..busy() }),
        ("unknown", MachineUse { steal_s: None, other_work_s: None, ..quiet() }),
    ] {
        let run = judged(4000.0, machine);
        assert_eq!((run.outcome, run.undecided), (Outcome::Fail, None), "{what}");
    }
}

#[test]
fn met_targets_fail_by_the_machine_and_stay_open_by_programs_or_ignorance() {
    for (machine, expected) in [
        (quiet(), Outcome::Pass),
        (MachineUse { steal_s: Some(20.0), ..quiet() }, Outcome::Fail),
        (busy(), Outcome::Inconclusive),
        (MachineUse { steal_s: None, ..quiet() }, Outcome::Inconclusive),
    ] {
        let run = judged(1000.0, machine.clone());
        assert_eq!((run.outcome, run.undecided), (expected, None), "{machine:?}");
    }
}

#[test]
fn a_lost_trial_is_named_once_with_its_round() {
    let mut run = result(Some(PLAN));
    run.machine = Some(quiet());
    // Two rounds are too few, as the third was lost.
    run.series.push(pingpong("netns", "tcp-spin", 64, &steady(1000.0, 2)));
    let lost = failure("netns", "tcp-spin", ProbeKind::Pingpong, "host bob was lost");
    run.failures = vec![lost.clone(), lost];
    judge(&mut run, &|_| None);
    let cause = run.undecided.unwrap().to_string();
    assert_eq!(cause, "Nothing decided: host bob was lost in round 1 of 5");
}

#[test]
fn a_failure_elsewhere_explains_no_open_target_and_an_interruption_does() {
    let mut run = result(Some(PLAN));
    run.machine = Some(quiet());
    run.series.push(pingpong("netns", "tcp-spin", 64, &steady(1000.0, 2)));
    run.failures = vec![failure("netns", "udp-spin", ProbeKind::Pingpong, "host bob was lost")];
    judge(&mut run, &|_| None);
    assert_eq!(run.undecided, None);
    run.state = RunState::Interrupted;
    judge(&mut run, &|_| None);
    let cause = run.undecided.unwrap().to_string();
    assert_eq!(cause, "Nothing decided: the run was interrupted");
}
