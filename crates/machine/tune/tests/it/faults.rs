//! The process ends at every operation, in every way: undo restores what was there.

use nm_settings::setting::NumberGoal;
use nm_settings::target::{CpuSetting, DirtyLimit, LinkSetting, MachineSetting, Target};
use nm_tune::plan::{StepChange, Wanted};
use nm_tune::run::{ChangeState, Status};
use nm_tune::undo::{Choices, UndoError};

use crate::simulated::{Bench, End, Fuse, link, step_change};

/// One change of each kind. The driver resets the coalescing when rings or queues change.
fn changes() -> Vec<StepChange> {
    let word = |target, word: &str| step_change(target, Wanted::Word(word.to_string()));
    let of_link = |setting, goals| {
        let target = Target::Link { link: link("nic0"), setting };
        step_change(target, Wanted::Numbers(goals))
    };
    let is = NumberGoal::Is;
    vec![
        word(Target::Sysctl { name: "kernel.numa_balancing".parse().unwrap() }, "0"),
        word(Target::Machine { setting: MachineSetting::ThpEnabled }, "never"),
        word(Target::Cpu { cpu: 2, setting: CpuSetting::PmQosResumeLatency }, "n/a"),
        word(Target::Cpu { cpu: 3, setting: CpuSetting::PmQosResumeLatency }, "0"),
        step_change(
            Target::DirtyLimit { limit: DirtyLimit::Background },
            Wanted::DirtyBytes(1 << 20),
        ),
        of_link(LinkSetting::Channels, vec![(3, is(2))]),
        of_link(LinkSetting::Rings, vec![(0, is(1024)), (3, is(1024))]),
        of_link(LinkSetting::Coalescing, vec![(0, is(0)), (1, is(1))]),
        of_link(LinkSetting::Gro, vec![(0, is(0))]),
        word(Target::Irq { irq: 7 }, "0-1"),
    ]
}

const ENDS: [End; 3] = [End::Before, End::Torn, End::After];

/// Operations of an undisturbed run, and of its undo.
fn operations() -> (u64, u64) {
    let mut bench = Bench::new();
    bench.apply(&changes()).unwrap();
    let applied = bench.machine.fuse.count.get();
    bench.undo(&Choices::default()).unwrap();
    (applied, bench.machine.fuse.count.get() - applied)
}

#[test]
fn undo_restores_after_an_end_at_any_operation_of_apply() {
    let (operations, _) = operations();
    assert!(operations > 40, "{operations}");
    for operation in 0..operations {
        for end in ENDS {
            let mut bench = Bench::new();
            let before = bench.machine.state();
            bench.machine.fuse = Fuse::at(operation, end);
            bench.apply(&changes()).unwrap_err();
            bench.machine.fuse = Fuse::default();
            let at = format!("operation {operation}, {end:?}");
            let status = bench.run().status();
            assert!(
                matches!(status, Status::Interrupted | Status::Closed | Status::InForce),
                "{at}"
            );
            bench.undo(&Choices::default()).unwrap_or_else(|error| panic!("{at}: {error}"));
            assert_eq!(bench.machine.state(), before, "{at}");
            assert_eq!(bench.run().status(), Status::Closed, "{at}");
        }
    }
}

#[test]
fn undo_completes_after_an_end_at_any_operation_of_undo() {
    let (_, operations) = operations();
    assert!(operations > 20, "{operations}");
    for operation in 0..operations {
        for end in ENDS {
            let mut bench = Bench::new();
            let before = bench.machine.state();
            bench.apply(&changes()).unwrap();
            bench.machine.fuse = Fuse::at(operation, end);
            bench.undo(&Choices::default()).unwrap_err();
            bench.machine.fuse = Fuse::default();
            let at = format!("operation {operation}, {end:?}");
            bench.undo(&Choices::default()).unwrap_or_else(|error| panic!("{at}: {error}"));
            assert_eq!(bench.machine.state(), before, "{at}");
            assert_eq!(bench.run().status(), Status::Closed, "{at}");
        }
    }
}

#[test]
fn every_state_of_a_change_was_met() {
    // The loops above are worth something only if the ends fall into each state.
    let (operations, _) = operations();
    let mut seen = [false; 4];
    for operation in 0..operations {
        let mut bench = Bench::new();
        bench.machine.fuse = Fuse::at(operation, End::After);
        bench.apply(&changes()).unwrap_err();
        for change in bench.run().changes {
            match change.state {
                ChangeState::Intent => seen[0] = true,
                ChangeState::Applied(_) => seen[1] = true,
                ChangeState::Verified(_) => seen[2] = true,
                _ => seen[3] = true,
            }
        }
    }
    assert_eq!(seen, [true, true, true, false]);
}

#[test]
fn a_rounded_value_that_was_not_read_back_is_taken_for_somebody_elses() {
    let target = Target::Link { link: link("nic0"), setting: LinkSetting::Coalescing };
    let change = step_change(target, Wanted::Numbers(vec![(1, NumberGoal::Is(100))]));
    let mut bench = Bench::new();
    let before = bench.machine.state();
    // Begin is written before the fuse counts: 0 is the intent, 1 the write.
    bench.machine.fuse = Fuse::at(1, End::After);
    bench.apply(std::slice::from_ref(&change)).unwrap_err();
    bench.machine.fuse = Fuse::default();
    let error = bench.undo(&Choices::default()).unwrap_err();
    assert!(matches!(error, UndoError::Conflict { .. }), "{error}");
    let force = Choices { force: vec![change.step], ..Choices::default() };
    bench.undo(&force).unwrap();
    assert_eq!(bench.machine.state(), before);
}
