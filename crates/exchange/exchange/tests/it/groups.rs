//! The groups of replicas of a network.

use std::time::Duration;

use nm_exchange::link;
use nm_exchange::network::{CONTROL, Durability, Network, Node, NodeId, Role};
use nm_exchange::node::groups;
use nm_replica::{Log, LogEvent, Settings, journal};
use nm_sys::clock::Deadline;
use nm_sys::poll::Waker;
use tempfile::TempDir;

/// Nothing takes so long unless it hangs.
const LIMIT: Duration = Duration::from_secs(60);

fn settings() -> Settings {
    let journal = journal::Settings { file_bytes: 64 << 10 };
    Settings { journal, ..Settings::default() }
}

/// Two cells of a network share a thread and an address at each of their nodes.
#[test]
fn cells_of_a_network_share_their_nodes() {
    let folder = TempDir::new().unwrap();
    let at = |what: String| folder.path().join(what);
    let mut network = Network::new("1-1-2-1".parse().unwrap(), |NodeId { class, index }| Node {
        address: link::Address::Unix(at(format!("{class}-{index}"))),
        replication: Some(nm_replica::Address::Unix(at(format!("{class}-{index}-r")))),
    });
    network.durability = Durability::DiskQuorum;
    network.data = Some(folder.path().join("data"));
    let waker = Waker::new().unwrap();
    let start = |node: NodeId| groups::start(&network, node, settings(), waker.clone()).unwrap();
    let mut nodes = [
        start(Role::Mediator.node(0)),
        start(Role::Mediator.node(1)),
        start(Role::Processor.node(0)),
    ];
    let mut committed = [[0; 2]; 3];
    let deadline = Deadline::after(LIMIT);
    while committed.iter().flatten().any(|count| *count < 20) {
        assert!(!deadline.passed(), "{committed:?}");
        for ((_, logs), committed) in nodes.iter_mut().zip(&mut committed) {
            for log in logs {
                // Control begins at the same time; nothing is proposed there.
                let cell = log.group_id();
                if cell == CONTROL {
                    while log.next_event().is_some() {}
                    continue;
                }
                while let Some(event) = log.next_event() {
                    if let LogEvent::Committed { batch, .. } = event {
                        assert_eq!(batch[..], cell.to_le_bytes(), "a batch of another cell");
                        committed[usize::from(cell)] += 1;
                    }
                }
                while log.can_propose() {
                    log.propose(cell.to_le_bytes().to_vec()).unwrap();
                }
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(nodes);
    let mut reader = journal::Reader::open(&folder.path().join("data/processor-0/cell-1")).unwrap();
    let mut batches = 0;
    while let Some(record) = reader.next_record().unwrap() {
        batches += usize::from(record.kind == journal::RecordKind::Batch);
    }
    assert!(batches >= 20, "{batches} batches in the processor's journal");
    let mut wrong = network.clone();
    wrong.classes[Role::Processor].nodes[0].replication = None;
    let refused =
        groups::start(&wrong, Role::Mediator.node(0), settings(), waker.clone()).unwrap_err();
    assert!(refused.message.contains("processor 0"), "{refused}");
}
