//! The program is killed at any write, of preparing and of undoing: undo restores every byte.

use std::sync::atomic::AtomicBool;

use nm_tune::undo::Choices;
use nm_vm::sriov;
use proptest::prelude::*;

use crate::tree::{Fuse, Tree};

fn nics(is_parent: bool) -> Vec<String> {
    let all: &[&str] = if is_parent { &["ens1f0"] } else { &["ens1f0", "ens1f1"] };
    all.iter().map(ToString::to_string).collect()
}

fn undo(tree: &Tree, fuse: Fuse) -> Result<usize, String> {
    let (choices, never) = (Choices::default(), AtomicBool::new(false));
    let undone = sriov::undo(&mut tree.host(fuse), &tree.state(), &choices, &never);
    undone.map(|runs| runs.len()).map_err(|error| error.to_string())
}

/// Writes of an undisturbed run: until it is ready, and with its end.
fn writes(is_parent: bool) -> (u32, u32) {
    let (tree, fuse) = (Tree::new(), Fuse::default());
    let host = tree.host(fuse.clone());
    let prepared = sriov::prepare_on(host, &tree.state(), &nics(is_parent), 1).unwrap();
    let ready = fuse.writes.get();
    prepared.finish().unwrap();
    (ready, fuse.writes.get())
}

#[test]
fn undo_restores_every_byte_after_a_kill_at_any_write() {
    for is_parent in [true, false] {
        let (ready, all) = writes(is_parent);
        assert!(ready >= 6 && all >= 2 * ready, "{ready} and {all} writes");
        for write in 0..all {
            for is_after in [false, true] {
                let at = format!("parent {is_parent}, write {write}, after {is_after}");
                let tree = Tree::new();
                let before = tree.contents();
                let host = tree.host(Fuse::at(write, is_after));
                let prepared = sriov::prepare_on(host, &tree.state(), &nics(is_parent), 1);
                assert_eq!(prepared.is_ok(), write >= ready, "{at}");
                // Ends the run: the kill is in its undoing if it was ready.
                drop(prepared);
                undo(&tree, Fuse::default()).unwrap_or_else(|error| panic!("{at}: {error}"));
                assert_eq!(tree.contents(), before, "{at}");
                assert_eq!(undo(&tree, Fuse::default()), Ok(0), "{at}: nothing is open");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn undo_restores_every_byte_after_kills_in_a_row(
        is_parent: bool,
        kills in prop::collection::vec((0u32..12, any::<bool>()), 1..5),
    ) {
        let tree = Tree::new();
        let before = tree.contents();
        let mut kills = kills.into_iter().map(|(write, is_after)| Fuse::at(write, is_after));
        let host = tree.host(kills.next().unwrap_or_default());
        drop(sriov::prepare_on(host, &tree.state(), &nics(is_parent), 1));
        for kill in kills {
            let _ = undo(&tree, kill);
        }
        prop_assert!(undo(&tree, Fuse::default()).is_ok());
        prop_assert_eq!(tree.contents(), before);
    }
}

#[test]
fn what_somebody_else_has_changed_is_left_and_named() {
    let tree = Tree::new();
    let host = tree.host(Fuse::at(3, true));
    drop(sriov::prepare_on(host, &tree.state(), &nics(true), 1));
    tree.write("sys/bus/pci/devices/0000:3b:00.0/sriov_numvfs", "4\n");
    let (choices, never) = (Choices::default(), AtomicBool::new(false));
    let error =
        sriov::undo(&mut tree.host(Fuse::default()), &tree.state(), &choices, &never).unwrap_err();
    assert!(error.is_conflict(), "{error}");
    for part in ["pci.functions", "sriov_numvfs is 4", "--keep-theirs"] {
        assert!(error.to_string().contains(part), "{error}");
    }
}
