//! A network over shared memory, under load.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use nm_exchange::network::{Network, NodeId, Role};
use nm_exchange::node::{self, EventQueue, NodeEvent};
use nm_load::{Generator, Pace, Settings};
use nm_model::link_transport::LinkTransport;
use nm_run::hosts::Placement;
use nm_run::place;
use nm_sys::clock::Deadline;

const LIMIT: Duration = Duration::from_secs(30);

#[test]
fn a_network_over_shared_memory_answers_every_request() {
    let folder = tempfile::tempdir().unwrap();
    let counts = "2-2-2-2".parse().unwrap();
    let here = Placement::default();
    let network: Network =
        place::network(counts, LinkTransport::Shm, folder.path(), &here).unwrap();
    let ready = Arc::new(AtomicUsize::new(0));
    let stops: BTreeMap<NodeId, (UnixStream, UnixStream)> =
        network.all().map(|(id, _)| (id, UnixStream::pair().unwrap())).collect();
    std::thread::scope(|scope| {
        for (node, (_, stop)) in &stops {
            let (network, ready) = (&network, Arc::clone(&ready));
            scope.spawn(move || {
                let on_event = move |event: &NodeEvent| {
                    if matches!(event, NodeEvent::Ready { .. }) {
                        ready.fetch_add(1, Ordering::Relaxed);
                    }
                };
                let events = EventQueue::start(*node, on_event).unwrap();
                node::run(network, *node, stop.as_fd(), &events).unwrap()
            });
        }
        let deadline = Deadline::after(LIMIT);
        while ready.load(Ordering::Relaxed) < 8 && !deadline.passed() {
            std::thread::sleep(Duration::from_millis(2));
        }
        let gateways: Vec<_> =
            network.classes[Role::Gateway].nodes.iter().map(|node| node.address.clone()).collect();
        let generator = Generator::connect(&Settings::default(), None, &gateways, None, LIMIT);
        let pace = Pace { rate_per_s: 2_000.0, seconds: 0.5, drain_s: 20.0, ..Pace::default() };
        let round = generator.unwrap().round(&pace, &AtomicBool::new(false)).unwrap();
        for (stop, _) in stops.values() {
            stop.shutdown(std::net::Shutdown::Both).unwrap();
        }
        assert_eq!((round.lost, round.repeats), (0, 0));
        assert!(round.answered > 500, "{}", round.answered);
    });
}
