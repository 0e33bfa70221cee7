//! How the number of active cells follows the load.

use std::time::Duration;

use nm_policy::{Action, Decision, DecisionReason, Policies, ResizerSettings, Settings};

use crate::network::{Faults, Network, Queue};

const STEP: Duration = Duration::from_secs(1);

/// Cells of one site with instruments of equal rate, evenly on the active ones.
fn network(active: usize, spare: usize, instruments: u16, total_per_s: f64) -> Network {
    let mut network = Network::new(active, spare);
    for index in 0..instruments {
        network.add(index % active as u16, total_per_s / f64::from(instruments));
    }
    network
}

fn set_total(network: &mut Network, total_per_s: f64) {
    let each = total_per_s / network.instruments.len() as f64;
    network.instruments.values_mut().for_each(|instrument| instrument.requests_per_s = each);
}

fn policies(resizer: ResizerSettings) -> Policies {
    Policies::new(Settings { resizer, ..Settings::default() }).unwrap()
}

fn activated(decisions: &[Decision]) -> usize {
    decisions.iter().filter(|d| matches!(d.action, Action::Activate { .. })).count()
}

fn emptied(decisions: &[Decision]) -> bool {
    decisions.iter().any(|d| matches!(d.reason, DecisionReason::CellEmptied { .. }))
}

/// With the defaults, a step from 5000 to 25000 requests/s has its cells within three seconds, and
/// each its share if reports come twice a second; after the step down the spares are back within
/// thirty.
#[test]
fn a_step_of_the_load_has_its_cells_within_3_s_and_returns_them_within_30_s() {
    for step_ms in [100, 500, 1_000] {
        let step = Duration::from_millis(step_ms);
        let mut network = network(1, 7, 100, 5_000.0);
        network.faults = Faults { move_ms: 5, activation_ms: 100, ..Faults::default() };
        let mut policies = policies(ResizerSettings::default());
        for _ in 0..30 {
            assert!(network.step(&mut policies, step).is_empty());
        }
        set_total(&mut network, 25_000.0);
        let begin = network.now;
        while network.now - begin < Duration::from_secs(3) {
            network.step(&mut policies, step);
        }
        network.step(&mut policies, step);
        assert_eq!(network.active(), 5, "reports of {step_ms} ms");
        // At most 20 instruments leave a cell in one step.
        let is_balanced = network.imbalance() <= 1.1;
        assert!(is_balanced || step_ms == 1_000, "{} with {step_ms} ms", network.imbalance());
        for _ in 0..100 {
            network.step(&mut policies, step);
        }
        assert_eq!(network.active(), 5);
        assert!(network.imbalance() <= 1.1);
        set_total(&mut network, 5_000.0);
        let begin = network.now;
        while network.now - begin < Duration::from_secs(30) {
            network.step(&mut policies, step);
        }
        assert_eq!(network.active(), 2, "reports of {step_ms} ms");
        assert_eq!(network.reversals.len(), 1);
    }
}

#[test]
fn a_size_changes_after_its_delay_only() {
    let settings =
        ResizerSettings { up_delay_ms: 3_000, down_delay_ms: 5_000, ..ResizerSettings::default() };
    let mut policies = policies(settings);
    let mut network = network(2, 2, 20, 12_100.0);
    assert!(network.step(&mut policies, STEP).is_empty());
    assert!(network.step(&mut policies, STEP).is_empty());
    // A moment within the bounds, and the delay begins anew.
    set_total(&mut network, 11_900.0);
    assert!(network.step(&mut policies, STEP).is_empty());
    set_total(&mut network, 12_100.0);
    assert!(network.step(&mut policies, STEP).is_empty());
    assert!(network.step(&mut policies, STEP).is_empty());
    assert_eq!(activated(&network.step(&mut policies, STEP)), 1);
    set_total(&mut network, 4_000.0);
    for _ in 0..4 {
        assert!(!emptied(&network.step(&mut policies, STEP)));
    }
    assert!(emptied(&network.step(&mut policies, STEP)));
}

/// While the resizer waits to shrink, the largest size that was needed counts.
#[test]
fn a_network_shrinks_to_the_most_that_was_needed_during_the_delay() {
    let mut policies = policies(ResizerSettings::default());
    let mut network = network(6, 0, 60, 5_000.0);
    for second in 0..10 {
        set_total(&mut network, if second == 4 { 10_100.0 } else { 5_000.0 });
        network.step(&mut policies, STEP);
    }
    for _ in 0..2 {
        network.step(&mut policies, STEP);
    }
    assert_eq!(network.active(), 4);
}

#[test]
fn sizes_stay_within_their_limits_and_the_pool() {
    let settings = ResizerSettings { active_min: 2, active_max: 4, ..ResizerSettings::default() };
    let mut network = network(2, 6, 40, 100_000.0);
    let mut of_four = policies(settings.clone());
    network.settle(&mut of_four, 300);
    assert_eq!(network.active(), 4);
    set_total(&mut network, 10.0);
    network.settle(&mut of_four, 300);
    assert_eq!(network.active(), 2);
    // All spares are used, and nothing is ordered that cannot be.
    let mut network = self::network(1, 1, 40, 100_000.0);
    network.settle(&mut policies(settings), 300);
    assert_eq!((network.active(), network.resizes), (2, 1));
}

#[test]
fn a_network_with_too_few_or_too_many_cells_is_corrected() {
    let settings = ResizerSettings { active_min: 3, active_max: 4, ..ResizerSettings::default() };
    let mut network = network(1, 4, 10, 10.0);
    let decisions = network.step(&mut policies(settings.clone()), STEP);
    assert_eq!(activated(&decisions), 2);
    assert_eq!(decisions[0].reason, DecisionReason::TooFewActive { active: 1, min: 3 });
    let mut network = self::network(6, 0, 30, 20_000.0);
    let decisions = network.settle(&mut policies(settings), 300);
    assert_eq!(network.active(), 4);
    let too_many = DecisionReason::TooManyActive { active: 6, max: 4 };
    assert!(decisions.iter().any(|decision| decision.reason == too_many), "{decisions:?}");
}

/// One large instrument leaves no room for the others: no cell is emptied, as it would have to stop
/// half way.
#[test]
fn a_cell_is_not_emptied_if_the_others_have_no_room() {
    let settings = ResizerSettings { lower_per_s: 7.0, upper_per_s: 10.0, ..Default::default() };
    let mut network = Network::new(3, 0);
    for cell in 0..3 {
        network.add(cell, 6.0);
    }
    let mut policies = policies(settings);
    for _ in 0..100 {
        assert!(network.step(&mut policies, STEP).is_empty());
    }
}

/// The load rises while a cell is emptied: what has no room elsewhere stays, although the network
/// must not change its direction yet.
#[test]
fn a_cell_is_emptied_only_as_far_as_the_others_have_room() {
    let mut network = network(2, 0, 40, 4_000.0);
    let mut settings = Settings::default();
    settings.moves.in_transit_max = 5;
    settings.resizer.up_delay_ms = 60_000;
    let mut policies = Policies::new(settings).unwrap();
    let begun = (0..20).any(|_| emptied(&network.step(&mut policies, STEP)));
    assert!(begun);
    for instrument in network.instruments.values_mut() {
        instrument.requests_per_s = 200.0;
    }
    for _ in 0..30 {
        network.step(&mut policies, STEP);
    }
    assert_eq!((network.requests_per_s(0), network.requests_per_s(1)), (6_000.0, 2_000.0));
    assert_eq!(network.active(), 2);
}

/// A cell that is being emptied is the first to be used again.
#[test]
fn a_cell_that_is_being_emptied_is_kept_if_the_load_rises() {
    let mut network = network(2, 1, 40, 4_000.0);
    // A move takes so long that the cell is not empty when the load rises.
    network.faults = Faults { move_ms: 20_000, ..Faults::default() };
    let settings = ResizerSettings { reversal_interval_ms: 10_000, ..ResizerSettings::default() };
    let mut policies = policies(settings);
    let begun = (0..20).any(|_| emptied(&network.step(&mut policies, STEP)));
    assert!(begun);
    for instrument in network.instruments.values_mut() {
        instrument.requests_per_s = 250.0;
    }
    let mut kept = vec![];
    for _ in 0..5 {
        kept.extend(network.step(&mut policies, STEP));
    }
    let keeps = kept.iter().filter(|d| matches!(d.action, Action::Keep { .. })).count();
    assert_eq!(keeps, 1, "{kept:?}");
    assert_eq!(activated(&kept), 0, "{kept:?}");
    network.settle(&mut policies, 300);
    assert_eq!(network.active(), 2);
}

/// A spare that cannot be activated is given up after a time, and another one is tried.
#[test]
fn another_spare_is_tried_if_one_cannot_be_activated() {
    let mut policies = policies(ResizerSettings::default());
    let mut network = network(1, 2, 20, 9_000.0);
    network.faults.lost_resize = 1.0;
    let mut ordered = vec![];
    for second in 0..20 {
        for decision in network.step(&mut policies, STEP) {
            if let Action::Activate { cell } = decision.action {
                ordered.push((second, cell));
            }
        }
    }
    assert_eq!(ordered, [(0, 1), (5, 2), (10, 1), (15, 2)]);
}

#[test]
fn a_predicted_es10_above_its_limit_activates_cells() {
    // Few requests, but each costs so much that one cell is nearly full: 1 ms without load, 8 ms
    // at a utilisation of 7/8.
    let mut network = network(1, 7, 40, 700.0);
    network.queue = Some(Queue { capacity_per_s: 800.0, idle_es10_us: 1_000.0 });
    let settings = ResizerSettings { lower_per_s: 100.0, ..ResizerSettings::default() };
    let mut policies = policies(settings);
    let decisions = network.step(&mut policies, STEP);
    assert_eq!(activated(&decisions), 1);
    let DecisionReason::Es10AboveLimit { predicted_us, utilisation, needed, .. } =
        decisions[0].reason
    else {
        panic!("{decisions:?}");
    };
    assert!((predicted_us - 8_000.0).abs() < 1.0, "{predicted_us}");
    assert!((utilisation - 0.875).abs() < 1e-9, "{utilisation}");
    // A utilisation of 0.8 is within 5 ms, so one and a bit are enough.
    assert_eq!(needed, 2);
    network.settle(&mut policies, 300);
    assert_eq!(network.active(), 2);
}

/// A cell that was just activated has no requests yet, and reports no round trips: what it will
/// carry is expected of it already.
#[test]
fn cells_that_were_activated_for_es10_count_before_they_have_load() {
    let mut network = network(1, 7, 40, 700.0);
    network.queue = Some(Queue { capacity_per_s: 800.0, idle_es10_us: 1_000.0 });
    let mut settings = Settings::default();
    settings.resizer.lower_per_s = 100.0;
    settings.balancer.enabled = false;
    network.settle(&mut Policies::new(settings).unwrap(), 300);
    assert_eq!(network.active(), 2);
}

/// Fewer cells would be enough by their rate, but ES10 would come near its limit.
#[test]
fn a_predicted_es10_near_its_limit_keeps_cells_active() {
    let settled = |queue: Option<Queue>| {
        let mut network = network(6, 0, 60, 6_000.0);
        network.queue = queue;
        network.settle(&mut policies(ResizerSettings::default()), 300);
        network.active()
    };
    assert_eq!(settled(None), 2);
    // 1 ms without load; 70 % of the limit of 5 ms allow a utilisation of 5/7, 1429 of 2000.
    assert_eq!(settled(Some(Queue { capacity_per_s: 2_000.0, idle_es10_us: 1_000.0 })), 5);
}

/// An ES10 that is not caused by load does not make a network grow.
#[test]
fn an_es10_that_cells_cannot_lower_does_not_activate_them() {
    let mut network = network(2, 4, 20, 6_000.0);
    network.queue = Some(Queue { capacity_per_s: 100_000.0, idle_es10_us: 9_000.0 });
    let mut policies = policies(ResizerSettings::default());
    for _ in 0..100 {
        assert!(network.step(&mut policies, STEP).is_empty());
    }
}

/// On a disturbed machine ES10 is near its limit at any load; more cells would hardly lower it.
#[test]
fn cells_that_are_not_half_full_are_enough_whatever_es10_is() {
    let mut network = network(1, 4, 20, 5_000.0);
    network.queue = Some(Queue { capacity_per_s: 30_000.0, idle_es10_us: 4_700.0 });
    let mut policies = policies(ResizerSettings::default());
    for _ in 0..100 {
        assert!(network.step(&mut policies, STEP).is_empty());
    }
}

/// A cell that is full from the beginning has no report that fits the model.
#[test]
fn a_full_cell_gets_help_although_its_rate_is_within_the_bounds() {
    let mut network = network(1, 7, 40, 2_500.0);
    network.queue = Some(Queue { capacity_per_s: 2_000.0, idle_es10_us: 500.0 });
    let mut policies = policies(ResizerSettings::default());
    assert!(activated(&network.step(&mut policies, STEP)) >= 1);
    for _ in 0..60 {
        network.step(&mut policies, STEP);
    }
    assert!(network.active() >= 2);
    assert!(network.imbalance() <= 1.1);
}

/// A load that rises steadily is met before the limit is reached.
#[test]
fn a_rising_load_is_extrapolated() {
    let mut network = network(1, 3, 40, 1_000.0);
    network.queue = Some(Queue { capacity_per_s: 4_000.0, idle_es10_us: 1_000.0 });
    let mut policies = policies(ResizerSettings::default());
    let mut total_per_s = 1_000.0;
    let decisions = loop {
        let decisions = network.step(&mut policies, STEP);
        if !decisions.is_empty() {
            break decisions;
        }
        total_per_s += 100.0;
        set_total(&mut network, total_per_s);
    };
    assert_eq!(activated(&decisions), 1);
    // The limit of 5 ms is reached at a utilisation of 0.8, 3200 requests/s.
    assert!((2_900.0..3_200.0).contains(&total_per_s), "{total_per_s}");
}

#[test]
fn spares_of_the_busiest_site_come_first_and_the_coldest_cells_go() {
    let mut network = Network::new(2, 2);
    network.cells[1].site = 1;
    network.cells[3].site = 1;
    for _ in 0..10 {
        network.add(0, 500.0);
        network.add(1, 900.0);
    }
    let mut policies = policies(ResizerSettings::default());
    let decisions = network.step(&mut policies, STEP);
    assert_eq!(decisions[0].action, Action::Activate { cell: 3 });
    let mut network = Network::new(3, 0);
    for (cell, rate) in [(0, 600.0), (1, 550.0), (2, 600.0)] {
        for _ in 0..4 {
            network.add(cell, rate);
        }
    }
    let mut policies = Policies::new(Settings::default()).unwrap();
    let decisions = network.settle(&mut policies, 100);
    assert_eq!(decisions[0].action, Action::Empty { cell: 1 });
    assert_eq!(decisions.last().map(|decision| decision.action), Some(Action::Retire { cell: 1 }));
    assert_eq!((network.active(), decisions.len()), (2, 6));
}
