//! Instruments follow their flow between sites.

use std::time::Duration;

use nm_policy::{
    Action, Decision, DecisionReason, OriginRate, PlacementSettings, Policies, ResizerSettings,
    Settings, SiteId, SiteLatency,
};

use crate::network::Network;

const STEP: Duration = Duration::from_secs(1);

/// Three sites with two active cells each, 5 ms between 0 and 1, 40 ms to 2.
fn network() -> Network {
    let mut network = Network::new(6, 0);
    for (index, cell) in network.cells.iter_mut().enumerate() {
        cell.site = (index / 2) as SiteId;
    }
    for (from, to, latency_us) in [(0, 1, 5_000.0), (0, 2, 40_000.0), (1, 2, 40_000.0)] {
        network.latencies.push(SiteLatency { from, to, latency_us });
    }
    network
}

fn policies(placement: PlacementSettings) -> Policies {
    let resizer = ResizerSettings { lower_per_s: 0.0, ..ResizerSettings::default() };
    Policies::new(Settings { placement, resizer, ..Settings::default() }).unwrap()
}

/// Adds an instrument with requests from sites 0, 1 and 2.
fn add(network: &mut Network, cell: u16, rates: [f64; 3]) -> u32 {
    let id = network.add(cell, rates.iter().sum());
    set_origins(network, id, rates);
    id
}

fn set_origins(network: &mut Network, id: u32, rates: [f64; 3]) {
    let instrument = network.instruments.get_mut(&id).unwrap();
    instrument.requests_per_s = rates.iter().sum();
    let origin =
        |(site, rate): (usize, &f64)| OriginRate { site: site as SiteId, requests_per_s: *rate };
    instrument.origins = rates.iter().enumerate().map(origin).collect();
}

/// Where one instrument in cell 0 is moved to.
fn placed(rates: [f64; 3], settings: PlacementSettings) -> Option<u16> {
    let mut network = network();
    add(&mut network, 0, rates);
    let decisions = network.step(&mut policies(settings), STEP);
    assert!(decisions.len() <= 1, "{decisions:?}");
    decisions.first().map(|decision| match decision.action {
        Action::Move { to, .. } => to,
        _ => panic!("{decision:?}"),
    })
}

#[test]
fn an_instrument_moves_to_the_site_that_sends_most() {
    let settings = PlacementSettings::default;
    assert_eq!(placed([10.0, 20.0, 5.0], settings()), Some(2));
    assert_eq!(placed([10.0, 5.0, 30.0], settings()), Some(4));
    assert_eq!(placed([30.0, 10.0, 5.0], settings()), None);
    // Too small a share, rate or lead over the present site.
    assert_eq!(placed([0.0, 1.9, 0.0], settings()), None);
    assert_eq!(placed([3.0, 6.9, 0.0], settings()), None);
    assert_eq!(placed([3.0, 7.1, 0.0], settings()), Some(2));
    assert_eq!(placed([40.0, 61.2, 0.0], settings()), None);
    assert_eq!(placed([40.0, 61.3, 0.0], settings()), Some(2));
    let strict = PlacementSettings { share_min: 0.7, ..settings() };
    assert_eq!(placed([40.0, 70.0, 0.0], strict), None);
    // The share counts, too: 0.29 of all, and far more than from the present site.
    let lenient = PlacementSettings { share_min: 0.29, ..settings() };
    let (site_1, site_2) = (29.0, 28.0);
    let many = |share_min| {
        let mut network = network();
        let id = add(&mut network, 0, [0.0, site_1, site_2]);
        let instrument = network.instruments.get_mut(&id).unwrap();
        for site in 3..6 {
            instrument.origins.push(OriginRate { site, requests_per_s: 14.3 });
            for to in 0..3 {
                network.latencies.push(SiteLatency { from: site, to, latency_us: 100.0 });
            }
        }
        let settings = PlacementSettings { share_min, ..PlacementSettings::default() };
        network.step(&mut policies(settings), STEP).len()
    };
    assert_eq!((many(0.3), many(lenient.share_min)), (0, 1));
}

#[test]
fn excluded_sites_get_nothing() {
    let excluded = PlacementSettings { excluded_sites: vec![1], ..PlacementSettings::default() };
    assert_eq!(placed([10.0, 50.0, 1.0], excluded.clone()), None);
    // The next one in line is not excluded, and close to where most requests come from.
    let mut network = network();
    network.latencies[2].latency_us = 100.0;
    add(&mut network, 0, [10.0, 50.0, 40.0]);
    let decisions = network.step(&mut policies(excluded), STEP);
    assert_eq!(decisions[0].action, Action::Move { instrument: 0, to: 4 });
}

/// Most requests come from site 1, but all others from site 2, which is far from there.
#[test]
fn an_instrument_moves_only_if_its_mean_latency_falls() {
    let mut network = network();
    network.latencies = vec![
        SiteLatency { from: 0, to: 1, latency_us: 10_000.0 },
        SiteLatency { from: 0, to: 2, latency_us: 1_000.0 },
        SiteLatency { from: 1, to: 2, latency_us: 60_000.0 },
    ];
    add(&mut network, 0, [5.0, 60.0, 40.0]);
    assert!(network.step(&mut policies(PlacementSettings::default()), STEP).is_empty());
    // With the measured latencies of the other test it does.
    network.latencies = self::network().latencies;
    assert_eq!(network.step(&mut policies(PlacementSettings::default()), STEP).len(), 1);
    // Not if the gain is small, or a latency was not measured.
    let settings = PlacementSettings { gain_min_us: 50_000.0, ..PlacementSettings::default() };
    let mut network = self::network();
    add(&mut network, 0, [5.0, 60.0, 40.0]);
    assert!(network.step(&mut policies(settings), STEP).is_empty());
    network.latencies.pop();
    assert!(network.step(&mut policies(PlacementSettings::default()), STEP).is_empty());
}

#[test]
fn the_target_is_the_coldest_cell_with_room() {
    let mut network = network();
    add(&mut network, 0, [10.0, 2_000.0, 0.0]);
    for _ in 0..5 {
        add(&mut network, 2, [0.0, 1_000.0, 0.0]);
    }
    add(&mut network, 3, [0.0, 2_000.0, 0.0]);
    let to = |decisions: &[Decision]| decisions.first().map(|decision| decision.action);
    let decisions = network.clone_reports_and_decide();
    assert_eq!(to(&decisions), Some(Action::Move { instrument: 0, to: 3 }));
    // 4500 of 6000 are no room for 2010.
    set_origins(&mut network, 6, [0.0, 4_500.0, 0.0]);
    let is_placed =
        |decision: &Decision| matches!(decision.reason, DecisionReason::CloserToFlow { .. });
    assert!(!network.clone_reports_and_decide().iter().any(is_placed));
    // Cells that are down are no targets.
    set_origins(&mut network, 6, [0.0, 2_000.0, 0.0]);
    network.cells[3].is_up = false;
    assert!(!network.clone_reports_and_decide().iter().any(is_placed));
}

impl Network {
    /// What policies without memory decide, which is not carried out.
    fn clone_reports_and_decide(&self) -> Vec<Decision> {
        policies(PlacementSettings::default()).step(&self.reports(), STEP).unwrap()
    }
}

/// After the flow has moved to another site, nearly all of it is local within ten seconds, and
/// stays there although the cells of the other sites are idle.
#[test]
fn a_shift_of_the_flow_is_followed_within_10_s_and_not_undone() {
    let mut network = network();
    for index in 0..40 {
        add(&mut network, index % 2, [50.0, 2.0, 1.0]);
    }
    let mut policies = policies(PlacementSettings::default());
    network.settle(&mut policies, 200);
    assert!(network.instruments.values().all(|instrument| instrument.cell < 2));
    for site in [1, 2, 0] {
        for id in 0..40 {
            let mut rates = [1.0; 3];
            rates[site] = 50.0;
            set_origins(&mut network, id, rates);
        }
        for _ in 0..10 {
            network.step(&mut policies, STEP);
        }
        let is_local = |cell: u16| network.cells[usize::from(cell)].site == site as SiteId;
        let local = network.instruments.values().filter(|i| is_local(i.cell)).count();
        assert!(local >= 38, "{local} of 40 are at site {site}");
        network.settle(&mut policies, 200);
        let is_local = |cell: u16| network.cells[usize::from(cell)].site == site as SiteId;
        assert!(network.instruments.values().all(|instrument| is_local(instrument.cell)));
    }
}

/// Without flow to follow, the balancer uses the cells of all sites; a site's own instruments stay.
#[test]
fn the_balancer_moves_to_other_sites_only_what_has_no_site() {
    let mut network = network();
    for _ in 0..20 {
        add(&mut network, 0, [60.0, 1.0, 1.0]);
        add(&mut network, 0, [5.0, 5.0, 5.0]);
    }
    network.settle(&mut policies(PlacementSettings::default()), 300);
    for (id, instrument) in &network.instruments {
        let site = network.cells[usize::from(instrument.cell)].site;
        assert!(id % 2 == 1 || site == 0, "instrument {id} is at site {site}");
    }
    let elsewhere = network.instruments.values().filter(|i| i.cell >= 2).count();
    assert!(elsewhere >= 15, "{elsewhere}");
    // Without the placement nothing binds them.
    let free = PlacementSettings { enabled: false, ..PlacementSettings::default() };
    network.settle(&mut policies(free), 300);
    assert!(network.imbalance() <= 1.1, "{}", network.imbalance());
}
