//! What somebody else has changed is never overwritten unless the user names the step.

use nm_settings::setting::{NumberGoal, SettingId};
use nm_settings::target::{LinkSetting, MachineSetting, Target};
use nm_settings::value::Value;
use nm_tune::apply::Outcome;
use nm_tune::plan::Wanted;
use nm_tune::record::Record;
use nm_tune::run::Status;
use nm_tune::undo::{self, Choices, UndoError};

use crate::simulated::{Bench, FRAMES_MAX, State, link, step_change};

fn thp() -> Target {
    Target::Machine { setting: MachineSetting::ThpEnabled }
}

fn ksm() -> Target {
    Target::Machine { setting: MachineSetting::Ksm }
}

fn word(target: Target, word: &str) -> nm_tune::plan::StepChange {
    step_change(target, Wanted::Word(word.to_string()))
}

fn text(text: &str) -> Value {
    Value::Text(text.to_string())
}

/// THP by somebody else, after a run that changed an interrupt, THP and a link.
fn in_conflict() -> Bench {
    let mut bench = Bench::new();
    let gro = Target::Link { link: link("nic0"), setting: LinkSetting::Gro };
    let changes = [
        word(Target::Irq { irq: 7 }, "0"),
        word(thp(), "never"),
        step_change(gro, Wanted::Numbers(vec![(0, NumberGoal::Is(0))])),
    ];
    bench.apply(&changes).unwrap();
    bench.machine.overwrite(&thp(), text("always [madvise] never\n"));
    bench
}

#[test]
fn undo_stops_at_a_conflict_with_three_values_and_writes_nothing_there() {
    let mut bench = in_conflict();
    let error = bench.undo(&Choices::default()).unwrap_err();
    assert!(error.is_conflict());
    let message = error.to_string();
    for value in ["[always] madvise never", "always [madvise] never", "always madvise [never]"] {
        assert!(message.contains(value), "{message}");
    }
    let state = bench.machine.state();
    // The link, which came later, is restored; the interrupt, which came earlier, is not.
    assert_eq!(bench.machine.links[&(link("nic0"), LinkSetting::Gro)], [1]);
    assert!(state.0.values().any(|bytes| bytes == b"always [madvise] never\n"));
    assert_eq!(bench.run().status(), Status::PartlyUndone);
    bench.undo(&Choices::default()).unwrap_err();
    assert_eq!(bench.machine.state(), state);
}

#[test]
fn a_named_step_is_kept_or_overwritten() {
    let mut bench = in_conflict();
    let keep = Choices { keep_theirs: vec![SettingId::MemThp], ..Choices::default() };
    let undone = bench.undo(&keep).unwrap();
    assert_eq!(undone.outcomes[1].2, undo::Outcome::KeptTheirs);
    let state = bench.machine.state();
    assert!(state.0.values().any(|bytes| bytes == b"always [madvise] never\n"));
    assert_eq!(bench.run().status(), Status::Closed);

    let mut bench = in_conflict();
    let before = Bench::new().machine.state();
    let force = Choices { force: vec![SettingId::MemThp], ..Choices::default() };
    bench.undo(&force).unwrap();
    let values = |state: &State| -> Vec<Vec<u8>> { state.0.values().cloned().collect() };
    assert_eq!(values(&bench.machine.state()), values(&before));
    let journal = std::fs::read_to_string(bench.folder.path().join("run-1.jsonl")).unwrap();
    assert!(journal.contains("always [madvise] never"), "what was overwritten is kept: {journal}");
}

#[test]
fn without_anybody_to_decide_the_others_are_restored_and_the_conflict_stays_open() {
    let mut bench = in_conflict();
    let undone = bench.undo(&Choices { goes_on: true, ..Choices::default() }).unwrap();
    assert_eq!((undone.outcomes.len(), undone.left_open.len()), (2, 1));
    assert!(undone.left_open[0].contains("mem.thp"), "{undone:?}");
    assert_eq!(bench.run().status(), Status::PartlyUndone);
    let state = bench.machine.state();
    assert!(state.0.values().any(|bytes| bytes == b"always [madvise] never\n"));
}

#[test]
fn a_value_that_somebody_has_restored_already_is_left() {
    let mut bench = Bench::new();
    let before = bench.machine.state();
    bench.apply(&[word(ksm(), "0")]).unwrap();
    bench.machine.overwrite(&ksm(), text("1\n"));
    let undone = bench.undo(&Choices::default()).unwrap();
    assert!(matches!(undone.outcomes[0].2, undo::Outcome::AlreadySo(_)));
    assert_eq!(bench.machine.state(), before);
}

#[test]
fn after_a_restart_nothing_is_written() {
    let mut bench = Bench::new();
    bench.apply(&[word(ksm(), "0"), word(thp(), "never")]).unwrap();
    bench.machine.origin.boot_id = "boot-2".into();
    let state = bench.machine.state();
    let undone = bench.undo(&Choices::default()).unwrap();
    assert!(undone.outcomes.iter().all(|(.., outcome)| *outcome == undo::Outcome::Gone));
    assert_eq!(bench.machine.state(), state);
    assert_eq!(bench.run().status(), Status::Closed);
}

#[test]
fn settings_of_a_namespace_are_undone_there_only() {
    let sysctl = Target::Sysctl { name: "net.ipv4.tcp_autocorking".parse().unwrap() };
    let mut bench = Bench::new();
    let before = bench.machine.state();
    bench.apply(&[word(ksm(), "0"), word(sysctl, "0")]).unwrap();
    bench.machine.origin.network_namespace = "net:[2]".into();
    let error = bench.undo(&Choices::default()).unwrap_err();
    assert!(matches!(error, UndoError::OtherNamespace { .. }), "{error}");
    bench.machine.origin.network_namespace = "net:[1]".into();
    bench.undo(&Choices::default()).unwrap();
    assert_eq!(bench.machine.state(), before);
}

#[test]
fn a_renamed_link_is_found_and_another_one_of_its_name_is_not_touched() {
    let gro = |name| Target::Link { link: link(name), setting: LinkSetting::Gro };
    let mut bench = Bench::new();
    bench
        .apply(&[step_change(gro("nic0"), Wanted::Numbers(vec![(0, NumberGoal::Is(0))]))])
        .unwrap();
    let device = bench.machine.devices.remove(&link("nic0")).unwrap();
    let mut other = device.clone();
    other.mac = "02:00:00:00:00:99".into();
    bench.machine.devices.insert(link("nic0"), other);
    let error = bench.undo(&Choices::default()).unwrap_err();
    assert!(matches!(error, UndoError::OtherDevice { .. }), "{error}");
    assert_eq!(bench.machine.links[&(link("nic0"), LinkSetting::Gro)], [0]);

    bench.machine.devices.insert(link("lan7"), device);
    bench.machine.links.insert((link("lan7"), LinkSetting::Gro), vec![0]);
    bench.undo(&Choices::default()).unwrap();
    assert_eq!(bench.machine.links[&(link("lan7"), LinkSetting::Gro)], [1]);
    assert_eq!(bench.machine.links[&(link("nic0"), LinkSetting::Gro)], [0]);
}

#[test]
fn a_rounded_value_is_what_undo_expects() {
    let target = Target::Link { link: link("nic0"), setting: LinkSetting::Coalescing };
    let mut bench = Bench::new();
    let before = bench.machine.state();
    let change = step_change(target, Wanted::Numbers(vec![(1, NumberGoal::Is(100))]));
    let applied = bench.apply(&[change]).unwrap();
    let Outcome::Rounded { read: Value::Numbers(read), .. } = &applied.outcomes[0].2 else {
        panic!("{applied:?}");
    };
    assert_eq!(read[1], FRAMES_MAX);
    bench.undo(&Choices::default()).unwrap();
    assert_eq!(bench.machine.state(), before);
}

#[test]
fn a_change_of_rings_leaves_the_other_settings_of_the_link() {
    let target = |setting| Target::Link { link: link("nic0"), setting };
    let mut bench = Bench::new();
    let rings = Wanted::Numbers(vec![(0, NumberGoal::Is(512))]);
    bench.apply(&[step_change(target(LinkSetting::Rings), rings)]).unwrap();
    let coalescing = (link("nic0"), LinkSetting::Coalescing);
    assert_eq!(bench.machine.links[&coalescing], [125, 32, 125, 32], "the driver had reset it");
    // Somebody else's coalescing survives the undo of the rings, which resets it again.
    let theirs = vec![3, 32, 3, 32];
    bench.machine.overwrite(&target(LinkSetting::Coalescing), Value::Numbers(theirs.clone()));
    bench.undo(&Choices::default()).unwrap();
    assert_eq!(bench.machine.links[&(link("nic0"), LinkSetting::Rings)], [256, 0, 0, 256]);
    assert_eq!(bench.machine.links[&coalescing], theirs);
}

#[test]
fn a_refused_value_is_recorded_and_the_others_are_applied() {
    let mut bench = Bench::new();
    let changes = [word(thp(), "not a choice"), word(ksm(), "0")];
    let applied = bench.apply(&changes).unwrap();
    assert!(matches!(applied.outcomes[0].2, Outcome::Refused(_)));
    assert!(matches!(applied.outcomes[1].2, Outcome::Applied { .. }));
    let journal = std::fs::read_to_string(bench.folder.path().join("run-1.jsonl")).unwrap();
    let last: Record = serde_json::from_str(journal.lines().last().unwrap()).unwrap();
    assert_eq!(last, Record::Complete);
}

/// A run whose write to `thp` the kernel has not finished.
fn unfinished() -> (Bench, State) {
    let mut bench = Bench::new();
    let before = bench.machine.state();
    bench.machine.slow = Some((thp(), None));
    let error = bench.apply(&[word(ksm(), "0"), word(thp(), "never")]).unwrap_err();
    assert!(error.to_string().contains("may become always madvise [never]"), "{error}");
    assert_eq!(bench.run().status(), Status::Interrupted);
    (bench, before)
}

#[test]
fn a_write_that_the_kernel_has_not_finished_is_no_refusal_and_is_undone_when_it_ends() {
    for is_done in [false, true] {
        let (mut bench, before) = unfinished();
        let error = bench.undo(&Choices::default()).unwrap_err();
        assert!(error.is_conflict() && error.to_string().contains("process 77"), "{error}");
        bench.machine.finish(is_done);
        bench.undo(&Choices::default()).unwrap();
        assert_eq!(bench.machine.state(), before, "done: {is_done}");
        assert_eq!(bench.run().status(), Status::Closed);
    }
}

#[test]
fn undoing_that_the_kernel_has_not_finished_goes_on_when_it_ends() {
    for is_done in [false, true] {
        let mut bench = Bench::new();
        let before = bench.machine.state();
        bench.apply(&[word(thp(), "never")]).unwrap();
        bench.machine.slow = Some((thp(), None));
        bench.undo(&Choices::default()).unwrap_err();
        let error = bench.undo(&Choices::default()).unwrap_err();
        assert!(matches!(error, UndoError::StillWriting { pid: 77, .. }), "{error}");
        bench.machine.finish(is_done);
        bench.undo(&Choices::default()).unwrap();
        assert_eq!(bench.machine.state(), before, "done: {is_done}");
    }
}

#[test]
fn a_step_that_is_still_being_written_can_be_left() {
    let (mut bench, _) = unfinished();
    let keep = Choices { keep_theirs: vec![SettingId::MemThp], ..Choices::default() };
    let undone = bench.undo(&keep).unwrap();
    assert_eq!(undone.outcomes[0].2, undo::Outcome::KeptTheirs);
    assert_eq!(undone.outcomes.len(), 2, "the step before it is restored");
}
