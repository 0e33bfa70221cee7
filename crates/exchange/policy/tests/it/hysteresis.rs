//! What keeps the policies from acting too often, and dry runs.

use std::collections::BTreeMap;
use std::time::Duration;

use nm_policy::{Action, MoveSettings, Policies, ResizerSettings, Settings};

use crate::network::{Faults, Network};

const STEP: Duration = Duration::from_secs(1);

fn network(rates: &[(u16, f64)], cells: usize) -> Network {
    let mut network = Network::new(cells, 0);
    for (cell, rate) in rates {
        network.add(*cell, *rate);
    }
    network
}

fn without_resizer() -> Settings {
    let resizer = ResizerSettings { enabled: false, ..ResizerSettings::default() };
    Settings { resizer, ..Settings::default() }
}

/// All instruments follow the one that moved, so without a cool-down it would go back at once.
#[test]
fn an_instrument_moves_again_only_after_its_cooldown() {
    for cooldown_ms in [4_000, 10_000] {
        let moves = MoveSettings { cooldown_ms, ..MoveSettings::default() };
        let mut policies = Policies::new(Settings { moves, ..without_resizer() }).unwrap();
        let mut network = network(&[(0, 10.0), (0, 11.0), (0, 9.0)], 2);
        let mut times_ms: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for _ in 0..120 {
            for decision in network.step(&mut policies, Duration::from_millis(500)) {
                let Action::Move { instrument, to } = decision.action else { continue };
                let now_ms = network.now.as_millis() as u64;
                times_ms.entry(instrument).or_default().push(now_ms);
                network.instruments.values_mut().for_each(|other| other.cell = to);
                network.instruments.get_mut(&instrument).unwrap().transit = None;
            }
        }
        let pauses_ms = times_ms.values().flat_map(|times| times.windows(2).map(|p| p[1] - p[0]));
        let shortest_ms = pauses_ms.min().unwrap();
        // It is the cool-down that they wait for.
        assert!((cooldown_ms..cooldown_ms + 1_000).contains(&shortest_ms), "{times_ms:?}");
    }
}

/// A cool-down begins when the move is done.
#[test]
fn the_cooldown_counts_from_when_a_move_was_last_seen() {
    let mut policies = Policies::new(without_resizer()).unwrap();
    let mut network = network(&[(0, 10.0), (0, 10.0)], 2);
    network.faults = Faults { move_ms: 0, ..Faults::default() };
    let mut reports = network.reports();
    reports.instruments[0].moving_to = Some(1);
    policies.step(&reports, STEP).unwrap();
    // It arrives in cell 1, and now both are there.
    reports.instruments[0] =
        nm_policy::InstrumentReport { cell: 1, moving_to: None, ..reports.instruments[0].clone() };
    reports.instruments[1].cell = 1;
    let mut second = None;
    for step in 1..20 {
        for decision in policies.step(&reports, STEP).unwrap() {
            if matches!(decision.action, Action::Move { instrument: 0, .. }) {
                second.get_or_insert(step);
            }
        }
        // The other one stays.
        reports.instruments[1].moving_to = None;
        reports.instruments[1].requests_per_s = 10.0 + f64::from(step) / 10.0;
    }
    assert!(second.is_none_or(|step| step >= 10), "{second:?}");
}

/// An ordered move that does not happen is ordered again, after its cool-down.
#[test]
fn a_move_that_failed_is_ordered_again() {
    let mut policies = Policies::new(without_resizer()).unwrap();
    let mut network = network(&[(0, 10.0), (0, 10.0)], 2);
    network.faults = Faults { lost_move: 1.0, ..Faults::default() };
    let mut times_s = vec![];
    for _ in 0..35 {
        for _ in network.step(&mut policies, STEP) {
            times_s.push(network.now.as_secs());
        }
    }
    // Two instruments take turns: each has a cool-down of its own, and an order counts for 2 s.
    assert_eq!(times_s, [1, 3, 11, 13, 21, 23, 31, 33]);
}

/// A cell that retires is emptied of what has just moved there.
#[test]
fn an_emptied_cell_has_no_cooldown() {
    let settings = Settings {
        resizer: ResizerSettings { down_delay_ms: 3_000, ..ResizerSettings::default() },
        ..Settings::default()
    };
    let mut policies = Policies::new(settings).unwrap();
    let mut network = network(&[(0, 1_500.0), (0, 1_500.0)], 2);
    let mut seconds = vec![];
    for _ in 0..6 {
        for decision in network.step(&mut policies, STEP) {
            if let Action::Move { instrument: 0, to } = decision.action {
                seconds.push((network.now.as_secs(), to));
            }
        }
    }
    assert_eq!(seconds, [(1, 1), (3, 0)]);
}

/// A load that doubles and halves every twenty seconds: the number of cells changes its direction
/// at most once a minute.
#[test]
fn a_size_changes_direction_at_most_once_a_minute() {
    let mut policies = Policies::new(Settings::default()).unwrap();
    let mut network = network(&[(0, 500.0); 20], 2);
    network.cells[1].is_active = false;
    for second in 0..600 {
        let rate = if second / 20 % 2 == 0 { 500.0 } else { 200.0 };
        network.instruments.values_mut().for_each(|i| i.requests_per_s = rate);
        network.step(&mut policies, STEP);
    }
    // The network itself asserts the minute between them.
    assert!((8..=10).contains(&network.reversals.len()), "{:?}", network.reversals);
}

/// After a change there is a pause, also before another one in the same direction.
#[test]
fn a_size_changes_again_only_after_its_cooldown() {
    let mut policies = Policies::new(Settings::default()).unwrap();
    let mut network = network(&[(0, 400.0); 20], 6);
    network.cells.iter_mut().skip(1).for_each(|cell| cell.is_active = false);
    let mut times_s = vec![];
    for _ in 0..12 {
        for decision in network.step(&mut policies, STEP) {
            if matches!(decision.action, Action::Activate { .. }) {
                times_s.push(network.now.as_secs());
            }
        }
        // Each change is followed by more load.
        network.instruments.values_mut().for_each(|i| i.requests_per_s += 150.0);
    }
    times_s.dedup();
    assert_eq!(times_s, [1, 4, 7, 10]);
}

/// A dry run decides as a real one does with the same reports, and changes nothing: what it decided
/// is decided again when the order has expired.
#[test]
fn a_dry_run_decides_as_a_real_one_and_applies_nothing() {
    let build = || {
        let mut network = network(&[(0, 900.0); 20], 5);
        network.cells.iter_mut().skip(2).for_each(|cell| cell.is_active = false);
        network
    };
    let mut real = build();
    let mut real_policies = Policies::new(Settings::default()).unwrap();
    let applied = real.step(&mut real_policies, STEP);
    let dry = build();
    let reports = dry.reports();
    let mut dry_policies = Policies::new(Settings::default()).unwrap();
    let decided = dry_policies.step(&reports, STEP).unwrap();
    assert_eq!(decided, applied);
    assert!(decided.len() > 5, "{decided:?}");
    assert_eq!(dry.reports(), reports);
    // Equal memory and equal reports: equal decisions, also later.
    assert_eq!(dry_policies, real_policies);
    let next = real.reports();
    assert_eq!(dry_policies.step(&next, STEP).unwrap(), real_policies.step(&next, STEP).unwrap());
    let mut again = vec![];
    for _ in 0..15 {
        again.extend(dry_policies.step(&reports, STEP).unwrap());
    }
    let actions: Vec<Action> = again.iter().map(|decision| decision.action).collect();
    assert!(decided.iter().all(|decision| actions.contains(&decision.action)), "{again:?}");
}
