//! The log of trials: what each of them costs, and what a crash or damage leaves of it.

use std::fs;
use std::path::Path;

use nm_model::result::{RunState, Series};
use nm_model::{FailureKind, RunResult};
use nm_report::folder::{self, ResultFolder, TRIALS};
use nm_report::trial_log::{self, Addition};
use nm_test_support::{held_bytes, system_calls};

use crate::fixture::{self, SMALL};

/// A folder in memory where there is one: ten thousand records are synced one by one.
fn scratch() -> tempfile::TempDir {
    match Path::new("/dev/shm").is_dir() {
        true => tempfile::tempdir_in("/dev/shm").unwrap(),
        false => tempfile::tempdir().unwrap(),
    }
}

/// A run as it begins, and each of its rounds, in the order of the rounds.
fn parts() -> (RunResult, Vec<Series>) {
    let mut run = fixture::result(SMALL);
    run.state = RunState::Running;
    run.factors.clear();
    let mut rounds = vec![];
    for series in std::mem::take(&mut run.series) {
        for round in &series.rounds {
            let one = Series { rounds: vec![round.clone()], doubts: vec![], ..series.clone() };
            rounds.push(Series { estimates: vec![], ..one });
        }
    }
    rounds.sort_by_key(|series| series.rounds[0].round);
    (run, rounds)
}

fn rounds_of(series: &Series) -> Addition {
    Addition::Rounds { factor: None, series: Box::new(series.clone()) }
}

#[test]
fn ten_thousand_rounds_cost_the_same_one_by_one() {
    const TRIALS_MAX: u32 = 10_000;
    let place = scratch();
    let folder = ResultFolder::at(place.path()).unwrap();
    let (begun, rounds) = parts();
    let mut log = folder.trial_log().unwrap();
    log.append(&[Addition::Begun(Box::new(begun))]).unwrap();
    let length = || fs::metadata(place.path().join(TRIALS)).unwrap().len();
    let mut series = rounds[0].clone();
    let (mut first, mut held) = (None, 0);
    for number in 0..TRIALS_MAX {
        // All numbers have as many digits.
        series.rounds[0].round = 10_000 + number;
        let before = length();
        let addition = [rounds_of(&series)];
        if [0, TRIALS_MAX - 1].contains(&number) {
            let (appended, calls) = system_calls(|| log.append(&addition));
            appended.unwrap();
            let written = [libc::SYS_write, libc::SYS_fsync, libc::SYS_fdatasync];
            let calls: Vec<i64> =
                calls.into_values().flatten().filter(|call| written.contains(call)).collect();
            assert_eq!(calls, [libc::SYS_write, libc::SYS_fdatasync], "trial {number}");
        } else {
            log.append(&addition).unwrap();
        }
        drop(addition);
        let bytes = length() - before;
        assert_eq!(bytes, *first.get_or_insert(bytes), "bytes of trial {number}");
        match number {
            100 => held = held_bytes(),
            _ => {}
        }
    }
    assert!((held_bytes() - held).abs() < 4096, "{} bytes more", held_bytes() - held);
    let result = folder::load(place.path()).unwrap();
    assert_eq!(result.series[0].rounds.len(), TRIALS_MAX as usize);
    assert_eq!(result.state, RunState::Running);
}

/// A log of a run with three records of rounds, and the results after each.
fn log_of_three(place: &Path) -> Vec<(u64, RunResult)> {
    let folder = ResultFolder::at(place).unwrap();
    let (begun, rounds) = parts();
    let mut log = folder.trial_log().unwrap();
    log.append(&[Addition::Begun(Box::new(begun.clone()))]).unwrap();
    let mut result = begun;
    let mut states = vec![(fs::metadata(place.join(TRIALS)).unwrap().len(), result.clone())];
    for chunk in rounds.chunks(rounds.len().div_ceil(3)) {
        let additions: Vec<Addition> = chunk.iter().map(rounds_of).collect();
        log.append(&additions).unwrap();
        for addition in additions {
            trial_log::add(&mut result, addition);
        }
        trial_log::estimate(&mut result);
        states.push((fs::metadata(place.join(TRIALS)).unwrap().len(), result.clone()));
    }
    assert_eq!(log.result().unwrap().as_ref(), states.last().map(|(_, result)| result));
    states
}

#[test]
fn a_torn_end_is_dropped_wherever_it_was_torn() {
    let place = scratch();
    let states = log_of_three(place.path());
    let file = place.path().join(TRIALS);
    let intact = fs::read(&file).unwrap();
    for window in states.windows(2) {
        let [(from, result), (to, _)] = window else { unreachable!("windows of two") };
        for length in [*from, from + 1, from + 9, (from + to) / 2, to - 1] {
            fs::write(&file, &intact[..usize::try_from(length).unwrap()]).unwrap();
            assert_eq!(&folder::load(place.path()).unwrap(), result, "{length} bytes");
        }
    }
    // Bytes that never reached the disk.
    let mut zeroed = intact.clone();
    let end = zeroed.len();
    zeroed[end - 100..].fill(0);
    fs::write(&file, &zeroed).unwrap();
    assert_eq!(folder::load(place.path()).unwrap(), states[2].1);
    fs::write(&file, "").unwrap();
    let empty = folder::load(place.path()).unwrap_err();
    assert!(empty.message.ends_with("trials.log ends before its first trial"), "{empty}");
    assert!(ResultFolder::at(place.path()).is_ok(), "a log without a trial gives its place up");
}

#[test]
fn damage_before_the_end_is_an_error() {
    let place = scratch();
    let states = log_of_three(place.path());
    let file = place.path().join(TRIALS);
    let mut bytes = fs::read(&file).unwrap();
    bytes[usize::try_from(states[1].0).unwrap() + 20] ^= 1;
    fs::write(&file, &bytes).unwrap();
    let refused = folder::load(place.path()).unwrap_err();
    assert_eq!(refused.kind, FailureKind::BadRequest);
    assert!(refused.message.ends_with("is not a log of trials: record 3 is damaged"), "{refused}");
}

#[test]
fn a_killed_run_keeps_its_folder_and_is_reported_from_its_log() {
    let place = scratch();
    let states = log_of_three(place.path());
    let refused = ResultFolder::at(place.path()).unwrap_err();
    assert_eq!(refused.kind, FailureKind::Conflict, "{refused}");
    let (result, report) = folder::rebuild(place.path(), |_| ()).unwrap();
    assert_eq!(result, states[3].1);
    assert!(report.is_file());
    assert!(!place.path().join(TRIALS).exists(), "the result has taken its place");
    assert_eq!(folder::load(place.path()).unwrap(), result);
}

#[test]
fn a_report_on_a_run_that_goes_on_leaves_its_log() {
    let place = scratch();
    let running = ResultFolder::at(place.path()).unwrap();
    let (begun, rounds) = parts();
    let mut log = running.trial_log().unwrap();
    log.append(&[Addition::Begun(Box::new(begun)), rounds_of(&rounds[0])]).unwrap();
    let (so_far, _) = folder::rebuild(place.path(), |_| ()).unwrap();
    assert_eq!(so_far.series.len(), 1);
    log.append(&[rounds_of(&rounds[1])]).unwrap();
    assert_eq!(folder::load(place.path()).unwrap().series.len(), 2);
    fs::remove_file(place.path().join(TRIALS)).unwrap();
    assert_eq!(log.result().unwrap().unwrap().series.len(), 2, "the run has it still");
}
