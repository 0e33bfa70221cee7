//! The tests of Monterey's own policies.

use std::collections::BTreeSet;

use nm_policy::{Policies, ResizerSettings, Settings};

use crate::network::Network;

/// Ten equal segments with a total load, and the bounds 7 and 15: how many mediators are active in
/// the end, whichever number it began with.
fn mediators(total_per_s: f64, active: usize) -> usize {
    let resizer =
        ResizerSettings { lower_per_s: 7.0, upper_per_s: 15.0, ..ResizerSettings::default() };
    let mut policies = Policies::new(Settings { resizer, ..Settings::default() }).unwrap();
    let mut network = Network::new(active, 5 - active);
    for segment in 0..10 {
        network.add(segment % active as u16, total_per_s / 10.0);
    }
    network.settle(&mut policies, 500);
    network.active()
}

#[test]
fn ten_segments_have_as_many_mediators_as_their_load_needs() {
    assert_eq!(mediators(20.0, 1), 2);
    assert_eq!(mediators(40.0, 1), 3);
    assert_eq!(mediators(10.0, 1), 1);
    assert_eq!(mediators(10.0, 3), 1);
}

#[test]
fn a_network_follows_a_load_of_20_then_40_then_10() {
    let resizer =
        ResizerSettings { lower_per_s: 7.0, upper_per_s: 15.0, ..ResizerSettings::default() };
    let mut policies = Policies::new(Settings { resizer, ..Settings::default() }).unwrap();
    let mut network = Network::new(1, 4);
    for _ in 0..10 {
        network.add(0, 0.0);
    }
    for (total_per_s, mediators) in [(20.0, 2), (40.0, 3), (10.0, 1)] {
        for instrument in network.instruments.values_mut() {
            instrument.requests_per_s = total_per_s / 10.0;
        }
        network.settle(&mut policies, 500);
        assert_eq!(network.active(), mediators, "with a load of {total_per_s}");
    }
}

/// Six segments on three mediators end in the only even distribution, from each of the 729
/// distributions that they can begin in.
#[test]
fn six_segments_are_balanced_from_every_distribution() {
    let even: BTreeSet<Vec<u64>> = [vec![4, 20], vec![8, 16], vec![12, 12]].into();
    let mut most = 0;
    for start in 0..3u16.pow(6) {
        let resizer = ResizerSettings { enabled: false, ..ResizerSettings::default() };
        let mut policies = Policies::new(Settings { resizer, ..Settings::default() }).unwrap();
        let mut network = Network::new(3, 0);
        for (segment, load) in [20.0, 4.0, 16.0, 8.0, 12.0, 12.0].into_iter().enumerate() {
            network.add(start / 3u16.pow(segment as u32) % 3, load);
        }
        network.settle(&mut policies, 500);
        assert_eq!(network.rates(), even, "from distribution {start}");
        most = most.max(network.moves);
    }
    // No distribution needs more than each segment moved once, and a second time after its pause.
    assert!(most <= 12, "{most} moves");
}
