//! The latencies between the sites of a network, measured by its links.

use std::time::Duration;

use nm_exchange::network::{Durability, Network, NodeId, Role};
use nm_exchange::testing::{Client, LIMIT, TestRing, trade};
use nm_model::FailureKind;
use nm_operate::addresses::free_ports;
use nm_operate::admin;
use nm_operate::policy_runner::{PolicyRunner, Settings};
use nm_operate::sites::{LatencyInUse, LatencyOrigin, Sites};
use nm_policy::SiteLatency;
use nm_sys::clock;

/// A ring over TCP on this machine.
fn tcp_ring(counts: &str, durability: Durability) -> TestRing {
    let mut ring = TestRing::new(counts, durability);
    let classes = ring.network.classes.iter_mut();
    let nodes: Vec<_> = classes.flat_map(|(_, class)| &mut class.nodes).collect();
    for (port, node) in free_ports(nodes.len()).unwrap().into_iter().zip(nodes) {
        node.address = format!("127.0.0.1:{port}").parse().unwrap();
    }
    ring.start();
    ring
}

/// Two sites with a gateway and a mediator each, minutes apart by the settings.
fn two_sites() -> Settings {
    let latencies = [(0, 1), (1, 0)].map(|(from, to)| SiteLatency { from, to, latency_us: 3.6e8 });
    let (gateways, mediators) = (vec![0, 1], vec![0, 1]);
    let latencies = latencies.to_vec();
    let sites = Sites { gateways, mediators, latencies, ..Sites::default() };
    Settings { sites, ..Settings::default() }
}

/// Pairs of sites, their latencies in µs, and where those come from, after one step.
fn after_a_step(network: &Network, settings: &Settings) -> Vec<((u16, u16), f64, LatencyOrigin)> {
    let mut runner = PolicyRunner::new(network, settings, true).unwrap();
    // Control learns which nodes are up after they have begun.
    let deadline = clock::Deadline::after(LIMIT);
    while !admin::status(network, LIMIT).unwrap().is_healthy() {
        assert!(!deadline.passed(), "not all nodes are up");
        std::thread::sleep(Duration::from_millis(5));
    }
    runner.step(clock::monotonic_ns(), Duration::from_millis(1), None).unwrap();
    let of =
        |it: &LatencyInUse| ((it.latency.from, it.latency.to), it.latency.latency_us, it.origin);
    runner.latencies().iter().map(of).collect()
}

#[test]
fn latencies_measured_by_tcp_links_replace_those_of_the_settings() {
    for durability in [Durability::None, Durability::MemoryQuorum] {
        let mut ring = tcp_ring("2-2-2-2", durability);
        let mut clients = [Client::new(&ring, 0, &[1]), Client::new(&ring, 1, &[2])];
        trade(&mut clients, 20, |_| {});
        let asked: [NodeId; 3] =
            [Role::Gateway.node(0), Role::Router.node(1), Role::Mediator.node(1)];
        let reports = admin::work_of(&ring.network, &asked, LIMIT).unwrap();
        // Two routers and two processors; two gateways and two mediators; two routers and two
        // processors. A way on this machine takes some time, and less than a tenth of a second.
        let counts: Vec<usize> = reports.iter().map(|(_, work)| work.links.len()).collect();
        assert_eq!(counts, [4, 4, 4], "{reports:?}");
        let mut links = reports.iter().flat_map(|(_, work)| &work.links);
        assert!(links.all(|link| (1..100_000_000).contains(&link.latency_ns)), "{reports:?}");

        let found = after_a_step(&ring.network, &two_sites());
        let pairs: Vec<_> = found.iter().map(|(pair, ..)| *pair).collect();
        assert_eq!(pairs, [(0, 0), (0, 1), (1, 0), (1, 1)]);
        for (_, latency_us, origin) in &found {
            assert_eq!(*origin, LatencyOrigin::Measured, "{found:?}");
            assert!(*latency_us > 0.0 && *latency_us < 200_000.0, "{found:?}");
        }
        ring.stop_all();
    }
}

#[test]
fn settings_hold_if_they_say_so_and_between_nodes_of_one_host() {
    let by_settings = [(0, 1), (1, 0)].map(|pair| (pair, 3.6e8, LatencyOrigin::Settings)).to_vec();
    let mut ring = tcp_ring("2-2-2-2", Durability::None);
    let mut settings = two_sites();
    settings.sites.measure = false;
    assert_eq!(after_a_step(&ring.network, &settings), by_settings);
    ring.stop_all();
    // Over Unix sockets nothing is measured.
    let mut ring = TestRing::new("2-2-2-2", Durability::None);
    ring.start();
    assert_eq!(after_a_step(&ring.network, &two_sites()), by_settings);
    settings.sites.latencies[0].latency_us = -1.0;
    let refused = PolicyRunner::new(&ring.network, &settings, true).map(drop).unwrap_err();
    assert_eq!(refused.kind, FailureKind::BadRequest);
    assert!(refused.message.contains("latency_us of the way from site 0 to site 1"), "{refused:?}");
    ring.stop_all();
}
