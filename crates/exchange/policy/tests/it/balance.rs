//! How loads are balanced.

use std::time::Duration;

use nm_policy::{
    Action, BalancerSettings, Decision, DecisionReason, Policies, ResizerSettings, Settings,
};

use crate::network::{Faults, Network};

const STEP: Duration = Duration::from_secs(1);

fn policies(balancer: BalancerSettings) -> Policies {
    let resizer = ResizerSettings { enabled: false, ..ResizerSettings::default() };
    Policies::new(Settings { balancer, resizer, ..Settings::default() }).unwrap()
}

/// A network of active cells with instruments of these rates.
fn network(cells: &[&[f64]]) -> Network {
    let mut network = Network::new(cells.len(), 0);
    for (cell, rates) in cells.iter().enumerate() {
        for rate in *rates {
            network.add(cell as u16, *rate);
        }
    }
    network
}

fn moves(decisions: &[Decision]) -> Vec<(u32, u16)> {
    let moved = |decision: &Decision| match decision.action {
        Action::Move { instrument, to } => Some((instrument, to)),
        _ => None,
    };
    decisions.iter().filter_map(moved).collect()
}

#[test]
fn the_instrument_closest_to_half_the_difference_moves() {
    let balancer = BalancerSettings { delay_ms: 0, ..BalancerSettings::default() };
    // Half of the difference is 15. Half of the hot cell's load is 35.
    let mut network = network(&[&[40.0, 17.0, 8.0, 5.0], &[40.0]]);
    let decisions = network.step(&mut policies(balancer), STEP);
    assert_eq!(moves(&decisions), [(1, 1)]);
}

#[test]
fn cpu_time_counts_as_well_as_requests() {
    let mut network = network(&[&[50.0, 50.0], &[50.0, 50.0]]);
    for (id, cpu_us_per_s) in [(0, 3_000.0), (1, 3_000.0), (2, 500.0), (3, 500.0)] {
        network.instruments.get_mut(&id).unwrap().cpu_us_per_s = Some(cpu_us_per_s);
    }
    let by_requests = BalancerSettings { cpu_weight: 0.0, ..BalancerSettings::default() };
    let mut quiet = policies(by_requests);
    for _ in 0..10 {
        assert!(network.step(&mut quiet, STEP).is_empty());
    }
    network.settle(&mut policies(BalancerSettings::default()), 100);
    let cell = |id: u32| network.instruments[&id].cell;
    assert_ne!(cell(0), cell(1));
    assert_ne!(cell(2), cell(3));
}

#[test]
fn a_cell_must_be_hot_for_a_time_unless_it_is_an_emergency() {
    let balancer = || BalancerSettings { delay_ms: 3_000, ..BalancerSettings::default() };
    let mut hot = network(&[&[60.0, 20.0, 10.0], &[70.0]]);
    let mut waiting = policies(balancer());
    assert!(hot.step(&mut waiting, STEP).is_empty());
    assert!(hot.step(&mut waiting, STEP).is_empty());
    assert_eq!(moves(&hot.step(&mut waiting, STEP)), [(2, 1)]);
    let mut empty = network(&[&[30.0, 30.0, 30.0], &[]]);
    let decisions = empty.step(&mut policies(balancer()), STEP);
    assert_eq!(decisions.len(), 1);
    assert!(matches!(decisions[0].reason, DecisionReason::CellHot { is_emergency: true, .. }));
}

/// 57 is more than half of the hot cell's load, most of which has not arrived yet and cannot move.
/// What would only change which cell is hot stays.
#[test]
fn in_an_emergency_the_smallest_instrument_moves_if_that_helps() {
    let decide = |cold_per_s: f64| {
        let mut reports = network(&[&[50.0, 57.0], &[cold_per_s]]).reports();
        reports.instruments[0].cell = 1;
        reports.instruments[0].moving_to = Some(0);
        reports.instruments[2].cell = 0;
        reports.instruments[2].moving_to = Some(1);
        let balancer = BalancerSettings { delay_ms: 60_000, ..BalancerSettings::default() };
        moves(&policies(balancer).step(&reports, STEP).unwrap())
    };
    assert_eq!(decide(5.0), [(1, 1)]);
    assert_eq!(decide(49.0), [(1, 1)]);
    // It is an emergency, but 57 is more than the difference.
    assert_eq!(decide(51.0), []);
    let mut only = network(&[&[100.0], &[5.0]]);
    let mut policies = policies(BalancerSettings::default());
    for _ in 0..20 {
        assert!(only.step(&mut policies, STEP).is_empty());
    }
}

#[test]
fn moves_of_a_step_have_a_limit() {
    let rates = [1.0; 100];
    let mut network = network(&[&rates, &[]]);
    let mut of_twenty = policies(BalancerSettings::default());
    assert_eq!(network.step(&mut of_twenty, STEP).len(), 20);
    let mut settings = Settings::default();
    settings.resizer.enabled = false;
    settings.moves.in_transit_max = 7;
    let mut network = self::network(&[&rates, &[]]);
    network.faults = Faults { move_ms: 60_000, ..Faults::default() };
    assert_eq!(network.step(&mut Policies::new(settings).unwrap(), STEP).len(), 7);
}

/// Moves that are on their way, or ordered and not yet seen, count as if they had arrived.
#[test]
fn nothing_moves_for_a_load_that_is_already_leaving() {
    let mut network = network(&[&[30.0, 30.0, 30.0, 30.0], &[]]);
    network.faults = Faults { move_delay_ms: 1_900, move_ms: 30_000, ..Faults::default() };
    let mut policies = policies(BalancerSettings::default());
    assert_eq!(network.step(&mut policies, Duration::from_millis(100)).len(), 2);
    for _ in 0..250 {
        assert!(network.step(&mut policies, Duration::from_millis(100)).is_empty());
    }
}

#[test]
fn a_cell_that_is_down_neither_gives_nor_gets() {
    let mut network = network(&[&[50.0, 50.0], &[10.0], &[10.0]]);
    network.cells[1].is_up = false;
    let decisions = network.step(&mut policies(BalancerSettings::default()), STEP);
    assert_eq!(moves(&decisions), [(0, 2)]);
    network.cells[0].is_up = false;
    network.cells[2].is_up = false;
    for _ in 0..20 {
        assert!(network.step(&mut policies(BalancerSettings::default()), STEP).is_empty());
    }
}

/// {28}, {20}, {24} with no single move that helps: several together end even, and say so.
#[test]
fn several_moves_help_where_none_alone_does() {
    let balancer = BalancerSettings { delay_ms: 0, ..BalancerSettings::default() };
    let mut network = network(&[&[20.0, 8.0], &[16.0, 4.0], &[12.0, 12.0]]);
    let decisions = network.step(&mut policies(balancer), STEP);
    assert_eq!(moves(&decisions), [(1, 1), (3, 0)]);
    for decision in decisions {
        assert!(matches!(
            decision.reason,
            DecisionReason::Exchange { hot: 0, cells: 2, moves: 2, after_per_s: 24.0, .. }
        ));
    }
}
