//! Nodes die together and links break under the load generator: every request is answered once, and
//! every session is told all that happens to its orders, once and in order. The proof is that of
//! `exchange verify`.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use nm_exchange::link::Address;
use nm_exchange::network::{Durability, Role};
use nm_exchange::testing::{TestRing, start_with_cutters};
use nm_exchange_lab::load::{Arrivals, Generator, Pace, Round, Settings, Sizes};
use nm_exchange_lab::verify::{self, Findings};

/// Longest wait for replies, s.
const DRAIN_S: f64 = 60.0;

/// The load on a ring.
struct Load {
    generator: Generator,
    folder: PathBuf,
}

impl Load {
    fn new(ring: &TestRing, gateways: &[Address]) -> Load {
        let folder = ring.folder.path().to_path_buf();
        std::fs::write(folder.join("network.toml"), ring.network.to_toml().unwrap()).unwrap();
        let sizes = Sizes::new(300, 300, 300).unwrap();
        let public_share = 0.1;
        let settings =
            Settings { sessions: 12, instruments: 6, sizes, public_share, ..Settings::default() };
        let (log, limit) = (folder.join("client-0.log"), Duration::from_secs(30));
        let generator = Generator::connect(&settings, None, gateways, Some(&log), limit).unwrap();
        Load { generator, folder }
    }

    /// On the gateways of a ring.
    fn on(ring: &TestRing) -> Load {
        let gateways: Vec<_> = ring.network.gateway.iter().map(|n| n.address.clone()).collect();
        Load::new(ring, &gateways)
    }

    /// Sends so many requests evenly, and waits for replies for so long.
    fn send(&mut self, count: u32, drain_s: f64) -> Round {
        let rate_per_s = 400.0;
        let seconds = f64::from(count) / rate_per_s;
        let pace = Pace { rate_per_s, seconds, drain_s, arrivals: Arrivals::Even, stall: None };
        self.generator.round(&pace, &AtomicBool::new(false)).unwrap()
    }

    fn all_answered(&mut self, count: u32) -> Round {
        let round = self.send(count, DRAIN_S);
        assert_eq!((round.sent, round.lost), (u64::from(count), 0));
        round
    }

    /// Ends everything: all was answered, and nothing is wrong.
    fn prove(self, mut ring: TestRing) -> Findings {
        assert_eq!(self.generator.end(Duration::from_secs_f64(DRAIN_S)).unwrap(), 0);
        ring.stop_all();
        let findings = verify::folder(Path::new(&self.folder)).unwrap();
        assert!(findings.is_clean(), "{findings:?}");
        assert!(findings.executed >= findings.answered && findings.answered > 0, "{findings:?}");
        findings
    }
}

fn recorded(counts: &str, durability: Durability) -> TestRing {
    let mut ring = TestRing::new(counts, durability);
    ring.network.record = true;
    ring
}

/// These nodes die at once while requests are under way, and come back.
fn die_together(ring: &mut TestRing, load: &mut Load, nodes: &[(Role, usize)]) {
    load.all_answered(200);
    // Some of these are on their way when the nodes end, some come while there is nobody.
    load.send(40, 0.0);
    for (role, index) in nodes {
        ring.stop_one(*role, *index);
    }
    load.send(80, 0.0);
    for (role, index) in nodes {
        ring.start_one(*role, *index, &ring.network.clone(), &Default::default());
    }
    load.all_answered(200);
}

/// Nothing is kept, and whoever could know that there was something dies with it: sessions are
/// taken up where they are all the same.
#[test]
fn a_mediator_that_keeps_nothing_may_die_with_any_other_node() {
    use Role::{Gateway, Mediator, Processor, Router};
    let mut ring = recorded("2-2-2-2", Durability::None);
    ring.start();
    let mut load = Load::on(&ring);
    for other in [(Processor, 0), (Router, 0), (Gateway, 0)] {
        die_together(&mut ring, &mut load, &[(Mediator, 0), other]);
    }
    let whole = [(Mediator, 0), (Mediator, 1), (Processor, 0), (Processor, 1), (Gateway, 1)];
    die_together(&mut ring, &mut load, &whole);
    let findings = load.prove(ring);
    assert_eq!(findings.notes.len(), 2, "both cells lost their books: {findings:?}");
}

/// More than a majority is gone with its memory: what was acknowledged is lost, which is beyond
/// what was promised. The cell begins anew, and clients are told of it.
#[test]
fn replicas_that_all_lose_their_memory_begin_anew() {
    use Role::{Mediator, Processor};
    let mut ring = TestRing::new("1-1-2-1", Durability::MemoryQuorum);
    ring.start();
    let mut load = Load::on(&ring);
    load.all_answered(200);
    let all = [(Mediator, 0), (Mediator, 1), (Processor, 0)];
    for (role, index) in all {
        ring.stop_one(role, index);
    }
    for (role, index) in all {
        ring.start_one(role, index, &ring.network.clone(), &Default::default());
    }
    let round = load.all_answered(200);
    assert!(round.unknown > 0, "clients are told of a gap");
    ring.stop_all();
}

#[test]
fn nobody_misses_a_fill_when_links_break_again_and_again() {
    let mut ring = recorded("2-2-2-2", Durability::None);
    let cutters = start_with_cutters(&mut ring);
    let gateways: Vec<Address> = (0..2)
        .map(|index| {
            let path = ring.folder.path().join(format!("gateway-{index}-cut"));
            format!("unix:{}", path.display()).parse().unwrap()
        })
        .collect();
    let mut load = Load::new(&ring, &gateways);
    let round = load.all_answered(2_000);
    // Broadcasts are not told again, but what is missing of them is seen.
    assert!(round.public > 100 && round.public_gaps > 0 && round.unknown == 0, "{round:?}");
    let cuts: u64 = cutters.iter().map(|cutter| cutter.cuts()).sum();
    assert!(cuts > 20, "{cuts} cuts");
    let findings = load.prove(ring);
    assert!(findings.not_guaranteed.is_empty(), "{findings:?}");
}

#[test]
fn nobody_misses_a_fill_when_those_who_tell_it_die() {
    use Role::{Gateway, Processor};
    for durability in [Durability::None, Durability::MemoryQuorum, Durability::DiskQuorum] {
        let mut ring = recorded("2-2-2-2", durability);
        ring.start();
        let mut load = Load::on(&ring);
        for node in [(Processor, 0), (Gateway, 0), (Processor, 1)] {
            die_together(&mut ring, &mut load, &[node]);
        }
        let findings = load.prove(ring);
        assert!(findings.not_guaranteed.is_empty(), "{findings:?}");
    }
}
