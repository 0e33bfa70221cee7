//! Backups of replicas' files, and what is made from them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use nm_backup::{To, backup, check, recover, restore, survivors};
use nm_book::book::Book;
use nm_book::order::{Command, Side};
use nm_codec::{Put, Random, crc32c};
use nm_exchange::batch;
use nm_exchange::cell::{Cell, Handled, Request};
use nm_exchange::network::{Durability, Network, Node, ReplicaAddress, Role};
use nm_exchange::testing::{order, request};
use nm_replica::journal::{Journal, RecordKind, Settings};
use nm_replica::saved;
use tempfile::TempDir;

/// Records of each cell: the first has no batch.
const LAST: u64 = 12;

/// Of these, so many are known to be committed.
const COMMITTED: u64 = 10;

/// Term of the records: the leader is the first replica, in openraft's term 3.
const TERM: u64 = 3 << 4 | 1;

const FIRST_NS: u64 = 1_700_000_000_000_000_000;

fn time_ns(position: u64) -> u64 {
    FIRST_NS + position * 1_000_000
}

fn network(data: &Path) -> Network {
    let mut network = Network::new("1-1-2-1".parse().unwrap(), |node| Node {
        address: format!("unix:/run/{}", node.file_name()).parse().unwrap(),
        replication: Some(ReplicaAddress::Unix(format!("/run/{}-r", node.file_name()).into())),
    });
    network.durability = Durability::DiskQuorum;
    network.data = Some(data.to_path_buf());
    network
}

fn sent(cell: u16, seq: u64) -> Request {
    let command: Command = order(4, seq, Side::Buy, 100 + seq as i64);
    let previous_seq = seq - 1;
    Request { client_seq: seq, previous_seq, ..request(4, u32::from(cell), command) }
}

/// A data folder in which mediator 0 has a replica of each group.
fn written() -> (TempDir, Network, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let network = network(&data);
    let own = data.join(Role::Mediator.node(0).file_name());
    fs::create_dir_all(own.join("control")).unwrap();
    for cell in 0..2 {
        let folder = own.join(format!("cell-{cell}"));
        let (mut journal, _) = Journal::open(&folder, Settings { file_bytes: 2048 }, 1).unwrap();
        journal.append(1, TERM, RecordKind::Blank, &[]).unwrap();
        for index in 2..=LAST {
            let mut bytes = vec![];
            batch::begin(time_ns(index), &mut bytes);
            nm_wire::write(&sent(cell, index - 1), &mut bytes);
            journal.append(index, TERM, RecordKind::Batch, &bytes).unwrap();
        }
        journal.sync().unwrap();
        let mut committed = b"nmcomm01".to_vec();
        committed.put_u64(COMMITTED);
        let checksum = crc32c(&committed);
        committed.put_u32(checksum);
        fs::write(folder.join("committed"), committed).unwrap();
    }
    (folder, network, data)
}

/// The cell that a restored replica begins with, and the position of that.
fn begun(data: &Path, node: &str, cell: u16) -> (Cell<Book>, u64) {
    let folder = data.join(node).join(format!("cell-{cell}"));
    let snapshot = saved::snapshot(&folder).unwrap().unwrap();
    assert_eq!(saved::generation(snapshot.term), 1);
    assert_eq!(saved::generation(saved::vote(&folder).unwrap()), 1);
    (Cell::load(&snapshot.state).unwrap(), snapshot.index)
}

#[test]
fn a_backup_has_what_is_committed_and_is_restored_at_any_position_or_time() {
    let (folder, network, data) = written();
    let out = folder.path().join("backup");
    let made = backup(&network, &data, &out).unwrap();
    assert_eq!(check(&out).unwrap(), made);
    let cells: Vec<_> = made.groups.iter().take(2).map(|it| (it.position, it.time_ns)).collect();
    assert_eq!(cells, [(COMMITTED, time_ns(COMMITTED)); 2], "what is not committed is not copied");
    for position in 1..=COMMITTED {
        let places = match position {
            1 => vec![To::Position { cell: 1, position }],
            _ => vec![To::Position { cell: 1, position }, To::Time(time_ns(position) + 7)],
        };
        for place in places {
            let new = folder.path().join("new");
            let restored = restore(&out, place, &new).unwrap();
            let lost = restored.groups[1].lost.map(|lost| lost.positions);
            let expected = (position < COMMITTED).then_some((position + 1, COMMITTED));
            assert_eq!((restored.groups[1].position, lost), (position, expected), "{place:?}");
            let replicas = ["mediator-0", "mediator-1", "processor-0"].map(|node| {
                let (cell, index) = begun(&new, node, 1);
                assert_eq!((index, cell.last_request_seq(1, 4)), (position, position - 1));
                cell.hash()
            });
            assert!(replicas.iter().all(|hash| *hash == replicas[0]), "replicas begin alike");
            fs::remove_dir_all(new).unwrap();
        }
    }
    let new = folder.path().join("new");
    for (place, why) in [
        (To::Position { cell: 1, position: COMMITTED + 1 }, "ends at position 10"),
        (To::Position { cell: 7, position: 1 }, "no cell 7"),
    ] {
        let refused = restore(&out, place, &new).unwrap_err().to_string();
        assert!(refused.contains(why) && !new.exists(), "{refused}");
    }
    assert!(restore(&out, To::End, &data).unwrap_err().to_string().contains("is there already"));
    assert!(backup(&network, &data, &out).unwrap_err().to_string().contains("is there already"));
}

#[test]
fn a_session_goes_on_in_a_restored_cell() {
    let (folder, network, data) = written();
    let (out, new) = (folder.path().join("backup"), folder.path().join("new"));
    backup(&network, &data, &out).unwrap();
    restore(&out, To::Position { cell: 0, position: 5 }, &new).unwrap();
    let (mut cell, _) = begun(&new, "mediator-0", 0);
    cell.begin(6, time_ns(20));
    // The copy has its requests up to 4, and it has had the reply to 9.
    let again = cell.handle(&sent(0, 4), |_| panic!("executed twice"));
    assert_eq!(again, Handled::Duplicate(None));
    let next = Request { is_previous_answered: true, ..sent(0, 10) };
    assert!(matches!(cell.handle(&next, |_| {}), Handled::Executed(_)));
}

#[test]
fn all_that_a_survivor_has_counts_and_what_may_be_lost_is_stated() {
    let (folder, network, data) = written();
    let found = survivors(&network, &data).unwrap();
    assert_eq!(found.len(), 3);
    assert_eq!((found[0].committed, found[0].last()), (COMMITTED, LAST));
    assert_eq!((found[0].replicas, found[0].is_complete()), ((1, 3), false));
    let new = folder.path().join("new");
    let recovered = recover(&network, found, &new).unwrap();
    assert_eq!(recovered.groups[0].position, LAST);
    assert_eq!(begun(&new, "processor-0", 0).0.last_request_seq(0, 4), LAST - 1);
    fs::remove_dir_all(data.join("mediator-0/cell-1")).unwrap();
    let none = survivors(&network, &data).unwrap_err().to_string();
    assert!(none.contains("no replica of cell-1"), "{none}");
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let of = |path: PathBuf| if path.is_dir() { files(&path) } else { vec![path] };
    entries.flat_map(of).collect()
}

#[test]
fn no_bit_of_a_backup_changes_unnoticed_and_the_file_is_named() {
    let (folder, network, data) = written();
    let out = folder.path().join("backup");
    backup(&network, &data, &out).unwrap();
    let (mut all, mut random) = (files(&out), Random::new(1));
    all.sort();
    let mut named = BTreeMap::<String, u32>::new();
    for trial in 0..300 {
        let path = &all[trial % all.len()];
        let good = fs::read(path).unwrap();
        if good.is_empty() {
            continue;
        }
        let bit = random.below(good.len() as u64 * 8) as usize;
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        fs::write(path, bytes).unwrap();
        let (what, new) = (format!("bit {bit} of {}", path.display()), folder.path().join("new"));
        let refused = restore(&out, To::End, &new).expect_err(&what).to_string();
        let name = path.file_name().unwrap().to_str().unwrap();
        // The manifest names a file that it lacks, or has otherwise.
        assert!(name == "manifest.json" || refused.contains(name), "{what}: {refused}");
        assert!(!refused.contains('\n') && !new.exists(), "{what}: {refused}");
        *named.entry(name.to_string()).or_default() += 1;
        fs::write(path, good).unwrap();
    }
    assert!(named.len() >= 5 && check(&out).is_ok(), "{named:?}");
    fs::remove_file(out.join("manifest.json")).unwrap();
    assert!(check(&out).unwrap_err().to_string().contains("interrupted"));
}
