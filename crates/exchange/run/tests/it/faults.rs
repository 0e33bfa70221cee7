//! Several nodes die and links break under load. Every request is answered once, and every event is
//! delivered to its session once and in order, as `exchange verify` checks.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use nm_exchange::link::Address;
use nm_exchange::network::{Durability, NodeId, Role};
use nm_exchange::testing::{TestRing, start_with_cutters};
use nm_load::{Arrivals, Gateways, Generator, Pace, Round, Settings, Sizes};
use nm_verify::Findings;

/// Longest wait for replies, s.
const DRAIN_S: f64 = 60.0;

/// The load on a ring.
pub struct Load {
    generator: Generator,
    folder: PathBuf,
}

impl Load {
    fn new(ring: &TestRing, gateways: &[Address]) -> Load {
        let folder = ring.folder.path().to_path_buf();
        std::fs::write(folder.join("network.toml"), ring.network.to_toml().unwrap()).unwrap();
        let sizes = Sizes::new(300, 300, 300).unwrap();
        let settings = Settings { sessions: 12, instruments: 6, sizes, ..Settings::default() };
        let (log, limit) = (folder.join("client-0.log"), Duration::from_secs(30));
        let credentials = ring.network.credentials().unwrap();
        let (network, known) = (ring.network.cluster, Arc::default());
        let gateways = Gateways { network, addresses: gateways, credentials, known };
        let generator = Generator::connect_to(&settings, None, &gateways, Some(&log), limit);
        let generator = generator.unwrap();
        Load { generator, folder }
    }

    /// Connects to the gateways of a ring.
    pub fn on(ring: &TestRing) -> Load {
        let gateways: Vec<_> =
            ring.network.classes[Role::Gateway].nodes.iter().map(|n| n.address.clone()).collect();
        Load::new(ring, &gateways)
    }

    /// Sends `count` requests at equal intervals, and waits at most `drain_s` for replies.
    fn send(&mut self, count: u32, drain_s: f64) -> Round {
        let rate_per_s = 400.0;
        let seconds = f64::from(count) / rate_per_s;
        let pace = Pace { rate_per_s, seconds, drain_s, arrivals: Arrivals::Even, stall: None };
        self.generator.round(&pace, &AtomicBool::new(false)).unwrap()
    }

    pub fn send_and_await_all(&mut self, count: u32) -> Round {
        let round = self.send(count, DRAIN_S);
        assert_eq!((round.sent, round.lost), (u64::from(count), 0));
        round
    }

    /// Stops everything, and checks that all requests were answered and nothing is wrong.
    pub fn verify(self, mut ring: TestRing) -> Findings {
        assert_eq!(self.generator.end(Duration::from_secs_f64(DRAIN_S)).unwrap(), 0);
        ring.stop_all();
        let findings = nm_verify::folder(Path::new(&self.folder)).unwrap();
        assert!(findings.is_clean(), "{findings:?}");
        assert!(findings.executed >= findings.answered && findings.answered > 0, "{findings:?}");
        findings
    }
}

/// A ring that is recorded.
pub fn recorded(counts: &str, durability: Durability) -> TestRing {
    let mut ring = TestRing::new(counts, durability);
    ring.network.record = true;
    ring
}

/// These nodes die at the same time while requests are in flight, and are restarted.
fn kill_together(ring: &mut TestRing, load: &mut Load, nodes: &[NodeId]) {
    load.send_and_await_all(200);
    // Some of these are in flight when the nodes end, some are sent while the nodes are down.
    load.send(40, 0.0);
    for node in nodes {
        ring.stop_one(*node);
    }
    load.send(80, 0.0);
    for node in nodes {
        ring.start_one(*node, &ring.network.clone(), &Default::default());
    }
    load.send_and_await_all(200);
}

/// The mediator stores nothing, and the other nodes that know the state die with it: sessions
/// continue all the same.
#[test]
fn a_mediator_without_durability_may_die_together_with_other_nodes() {
    use Role::{Gateway, Mediator, Processor, Router};
    let mut ring = recorded("2-2-2-2", Durability::None);
    ring.start();
    let mut load = Load::on(&ring);
    for other in [Processor.node(0), Router.node(0), Gateway.node(0)] {
        kill_together(&mut ring, &mut load, &[Mediator.node(0), other]);
    }
    let all =
        [Mediator.node(0), Mediator.node(1), Processor.node(0), Processor.node(1), Gateway.node(1)];
    kill_together(&mut ring, &mut load, &all);
    let findings = load.verify(ring);
    let lost = findings.notes.iter().filter(|note| note.contains("restarted with empty books"));
    assert_eq!(lost.count(), 2, "both cells lost their books: {findings:?}");
}

/// All replicas lose their memory: acknowledged requests are lost, which the durability permits.
/// The cell starts empty, and the loss is reported to clients.
#[test]
fn a_cell_starts_empty_after_all_its_replicas_lost_their_memory() {
    use Role::{Mediator, Processor};
    let mut ring = TestRing::new("1-1-2-1", Durability::MemoryQuorum);
    ring.start();
    let mut load = Load::on(&ring);
    load.send_and_await_all(200);
    let all = [Mediator.node(0), Mediator.node(1), Processor.node(0)];
    for node in all {
        ring.stop_one(node);
    }
    for node in all {
        ring.start_one(node, &ring.network.clone(), &Default::default());
    }
    let round = load.send_and_await_all(200);
    assert!(round.unknown > 0, "the gap is reported to clients");
    ring.stop_all();
}

#[test]
fn no_fill_is_missed_when_links_break_repeatedly() {
    let mut ring = recorded("2-2-2-2", Durability::None);
    let cutters = start_with_cutters(&mut ring);
    let gateways: Vec<Address> = (0..2)
        .map(|index| {
            let path = ring.folder.path().join(format!("gateway-{index}-cut"));
            format!("unix:{}", path.display()).parse().unwrap()
        })
        .collect();
    let mut load = Load::new(&ring, &gateways);
    let round = load.send_and_await_all(2_000);
    // Broadcasts are not repeated, but gaps in them are counted.
    assert!(round.public > 100 && round.public_gaps > 0 && round.unknown == 0, "{round:?}");
    let cuts: u64 = cutters.iter().map(|cutter| cutter.cuts()).sum();
    assert!(cuts > 20, "{cuts} cuts");
    let findings = load.verify(ring);
    assert!(findings.not_guaranteed.is_empty(), "{findings:?}");
}

#[test]
fn no_fill_is_missed_when_gateways_and_processors_die() {
    use Role::{Gateway, Processor};
    for durability in [Durability::None, Durability::MemoryQuorum, Durability::DiskQuorum] {
        let mut ring = recorded("2-2-2-2", durability);
        ring.start();
        let mut load = Load::on(&ring);
        for node in [Processor.node(0), Gateway.node(0), Processor.node(1)] {
            kill_together(&mut ring, &mut load, &[node]);
        }
        let findings = load.verify(ring);
        assert!(findings.not_guaranteed.is_empty(), "{findings:?}");
    }
}
