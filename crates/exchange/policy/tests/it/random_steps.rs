//! A million random steps: loads walk and burst, moves and activations fail or take time, cells
//! die. The [network](crate::network) checks each decision; these tests check where it ends.

use std::time::Duration;

use nm_policy::{
    BalancerSettings, CellId, OriginRate, Policies, ResizerSettings, Settings, SiteId, SiteLatency,
};

use crate::network::{Faults, Network, Queue, Rng};

const RUNS: u64 = 500;
const STEPS: usize = 2_000;

/// A network with faults, drawn from a seed.
fn draw(seed: u64) -> (Network, Policies) {
    let mut rng = Rng(seed);
    let (active, spare) = (1 + rng.below(4), rng.below(5));
    let mut network = Network::new(active, spare);
    let sites = 1 + rng.below(3) as SiteId;
    for cell in &mut network.cells {
        cell.site = rng.below(usize::from(sites)) as SiteId;
    }
    for from in 0..sites {
        for to in 0..from {
            let latency_us = 50.0 + 5_000.0 * rng.share();
            network.latencies.push(SiteLatency { from, to, latency_us });
        }
    }
    for _ in 0..1 + rng.below(24) {
        let id = network.add(rng.below(active) as CellId, 50.0 * rng.share());
        let instrument = network.instruments.get_mut(&id).unwrap();
        instrument.cpu_us_per_s = rng.has(0.5).then_some(0.0);
        let origin = |site| OriginRate { site, requests_per_s: 0.0 };
        instrument.origins = (0..sites).map(origin).collect();
    }
    network.faults = Faults {
        lost_move: 0.3 * rng.share(),
        lost_resize: 0.3 * rng.share(),
        move_delay_ms: rng.below(1_900),
        move_ms: rng.below(3_000),
        activation_ms: rng.below(4_000),
    };
    network.queue = rng.has(0.5).then(|| Queue {
        capacity_per_s: 100.0 + 100.0 * rng.share(),
        idle_es10_us: 200.0 + 3_000.0 * rng.share(),
    });
    let resizer = ResizerSettings {
        lower_per_s: 30.0,
        upper_per_s: 80.0 + 40.0 * rng.share(),
        active_min: 1 + rng.below(2),
        ..ResizerSettings::default()
    };
    network.rng = rng;
    (network, Policies::new(Settings { resizer, ..Settings::default() }).unwrap())
}

/// Changes loads and cells at random.
fn disturb(network: &mut Network) {
    let Network { rng, instruments, cells, .. } = network;
    // Now and then the market as a whole is busier or quieter.
    let market = if rng.has(0.01) { 0.1 + 3.0 * rng.share() } else { 1.0 };
    for instrument in instruments.values_mut() {
        let burst = if rng.has(0.002) { 8.0 } else { 1.0 };
        let factor = (0.9 + 0.2 * rng.share()) * burst * market;
        instrument.requests_per_s = (instrument.requests_per_s * factor).clamp(0.1, 60.0);
        if rng.has(0.002) {
            instrument.requests_per_s = 60.0 * rng.share();
        }
        if let Some(cpu_us_per_s) = &mut instrument.cpu_us_per_s {
            *cpu_us_per_s = instrument.requests_per_s * (5.0 + 10.0 * rng.share());
        }
        if rng.has(0.01) {
            let sites = instrument.origins.len();
            let most = rng.below(sites);
            for (site, origin) in instrument.origins.iter_mut().enumerate() {
                let share = if site == most { 0.9 } else { 0.1 / sites as f64 };
                origin.requests_per_s = instrument.requests_per_s * share;
            }
        }
    }
    for cell in cells {
        let probability = if cell.is_up { 0.001 } else { 0.05 };
        if rng.has(probability) {
            cell.is_up = !cell.is_up;
        }
    }
}

#[test]
fn a_million_random_steps_keep_owners_and_do_not_flap() {
    let (mut moves, mut resizes, mut reversals) = (0, 0, 0);
    for seed in 0..RUNS {
        let (mut network, mut policies) = draw(seed);
        for _ in 0..STEPS {
            disturb(&mut network);
            let dt = Duration::from_millis(100 + network.rng.below(1_400) as u64);
            network.step(&mut policies, dt);
        }
        (moves, resizes) = (moves + network.moves, resizes + network.resizes);
        reversals += network.reversals.len();
        // When the load is constant and nothing fails, there is a last decision.
        network.faults = Faults::default();
        for cell in &mut network.cells {
            cell.is_up = true;
        }
        network.settle(&mut policies, 1_000);
    }
    println!("{moves} moves, {resizes} changes of size, {reversals} reversals");
    // The steps were not idle ones.
    assert!(moves > 100_000, "{moves} moves");
    assert!(resizes > 2_500, "{resizes} changes of size");
    assert!(reversals > 800, "{reversals} reversals");
}

/// Instruments of at most a twentieth of the mean load of a cell: no cell ends more than a tenth
/// above the mean, whatever the beginning.
#[test]
fn small_instruments_end_in_balance() {
    for seed in 0..200 {
        let mut rng = Rng(seed);
        let cells = 2 + rng.below(6);
        let mut network = Network::new(cells, 0);
        let crowded = 1 + rng.below(cells);
        for _ in 0..60 * cells {
            network.add(rng.below(crowded) as CellId, 10.0 + 10.0 * rng.share());
        }
        let resizer = ResizerSettings { enabled: false, ..ResizerSettings::default() };
        let mut policies = Policies::new(Settings { resizer, ..Settings::default() }).unwrap();
        network.settle(&mut policies, 500);
        let imbalance = network.imbalance();
        assert!(imbalance <= 1.1, "seed {seed}: {imbalance}");
    }
}

/// Few instruments of very different sizes. If any distribution has no cell more than a tenth above
/// the mean, most networks end in one; the others end at most a fifth above the best possible.
#[test]
fn large_instruments_end_near_the_best_distribution() {
    let (mut possible, mut reached) = (0, 0);
    for seed in 0..300 {
        let mut rng = Rng(seed);
        let cells = 2 + rng.below(2);
        let rates: Vec<f64> = (0..4 + rng.below(5)).map(|_| 1.0 + 99.0 * rng.share()).collect();
        let mut network = Network::new(cells, 0);
        for rate in &rates {
            network.add(rng.below(cells) as CellId, *rate);
        }
        let balancer = BalancerSettings { excess_min_per_s: 0.0, ..BalancerSettings::default() };
        let resizer = ResizerSettings { enabled: false, ..ResizerSettings::default() };
        let settings = Settings { balancer, resizer, ..Settings::default() };
        network.settle(&mut Policies::new(settings).unwrap(), 500);
        let best = best_imbalance(&rates, cells);
        if best <= 1.1 {
            possible += 1;
            reached += usize::from(network.imbalance() <= 1.1);
        }
        let imbalance = network.imbalance();
        assert!(imbalance <= 1.2 * best.max(1.1), "seed {seed}: {imbalance}, best {best}");
    }
    println!("{reached} of {possible} networks are in balance");
    assert!(possible > 100 && reached * 100 >= possible * 95, "{reached} of {possible}");
}

/// The smallest possible imbalance, by trying all distributions.
fn best_imbalance(rates: &[f64], cells: usize) -> f64 {
    let mut best = f64::MAX;
    for distribution in 0..cells.pow(rates.len() as u32) {
        let mut loads = vec![0.0; cells];
        for (index, rate) in rates.iter().enumerate() {
            loads[distribution / cells.pow(index as u32) % cells] += rate;
        }
        best = best.min(loads.iter().copied().fold(0.0, f64::max));
    }
    best / (rates.iter().sum::<f64>() / cells as f64)
}
