//! Functions for two guests, and everything as before when they are given back.

use nm_model::Side;
use nm_vm::network::hardware_address;
use nm_vm::refusal::Refusal;
use nm_vm::sriov::{self, Prepared};

use crate::tree::{Fuse, Tree};

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

fn texts(prepared: &Prepared) -> Vec<String> {
    prepared.addresses.iter().map(ToString::to_string).collect()
}

fn driver(tree: &Tree, address: &str) -> Option<String> {
    let path = tree.path().join(format!("sys/bus/pci/devices/{address}/driver"));
    let target = std::fs::read_link(path).ok()?;
    Some(target.file_name()?.to_string_lossy().into_owned())
}

#[test]
fn virtual_functions_are_made_bound_and_removed() {
    let tree = Tree::new();
    let before = tree.contents();
    let host = tree.host(Fuse::default());
    let prepared = sriov::prepare_on(host, &tree.state(), &names(&["ens1f0"]), 1).unwrap();
    let addresses = texts(&prepared);
    assert_eq!(addresses, ["0000:3b:01.0", "0000:3b:01.1"]);
    assert_eq!(
        prepared.macs,
        [Side::Client, Side::Server].map(|side| Some(hardware_address(side)))
    );
    for address in &addresses {
        assert_eq!(driver(&tree, address).as_deref(), Some("vfio-pci"));
    }
    assert_eq!(driver(&tree, "0000:3b:00.0").as_deref(), Some("ice"), "the port stays");
    assert_eq!(prepared.finish().unwrap(), Vec::<String>::new());
    assert_eq!(tree.contents(), before);
}

#[test]
fn devices_are_handed_over_themselves_and_come_back_with_their_links_up() {
    let tree = Tree::new();
    let before = tree.contents();
    let host = tree.host(Fuse::default());
    let nics = names(&["ens1f1", "0000:3b:00.0"]);
    let prepared = sriov::prepare_on(host, &tree.state(), &nics, 1).unwrap();
    let addresses = texts(&prepared);
    assert_eq!(addresses, ["0000:3b:00.1", "0000:3b:00.0"], "in the order of the names");
    assert_eq!(prepared.macs, [Some([0x52, 0x54, 0, 0, 0, 0xaa]); 2]);
    assert_eq!(driver(&tree, "0000:3b:00.0").as_deref(), Some("vfio-pci"));
    assert!(!tree.path().join("sys/class/net/ens1f0").exists());
    drop(prepared);
    assert_eq!(tree.contents(), before, "dropping undoes it");
}

#[test]
fn functions_in_one_group_are_refused_and_removed_again() {
    let tree = Tree::new();
    // A device that sits where the second function's group will be.
    tree.write("sys/bus/pci/devices/0000:3c:00.0/class", "0x010000\n");
    tree.group("0000:3c:00.0", 31);
    let before = tree.contents();
    let host = tree.host(Fuse::default());
    let error = sriov::prepare_on(host, &tree.state(), &names(&["ens1f0"]), 1).err().unwrap();
    let Refusal::SharedGroup { address, group: 31, mates } = &error else { panic!("{error}") };
    assert_eq!((address.to_string().as_str(), mates.as_str()), ("0000:3b:01.1", "0000:3c:00.0"));
    let mut after = tree.contents();
    // The kernel of the test removes the whole group.
    tree.group("0000:3c:00.0", 31);
    after.extend(tree.contents());
    assert_eq!(after, before);
}

#[test]
fn a_second_run_waits_for_the_first_and_a_restart_closes_it() {
    let tree = Tree::new();
    let nics = names(&["ens1f0"]);
    let first = sriov::prepare_on(tree.host(Fuse::default()), &tree.state(), &nics, 1).unwrap();
    let other = names(&["ens1f1"]);
    let error =
        sriov::prepare_on(tree.host(Fuse::default()), &tree.state(), &other, 1).err().unwrap();
    assert!(error.is_conflict() && error.to_string().contains("another nearmetal"), "{error}");
    let id = first.run_id().clone();
    // A kill: nothing is undone, and the lock goes with the process.
    drop(first);
    let killed = Fuse::at(3, true);
    let error = sriov::prepare_on(tree.host(killed), &tree.state(), &other, 1).err().unwrap();
    assert!(matches!(error, Refusal::Apply(_)), "{error}");
    let error =
        sriov::prepare_on(tree.host(Fuse::default()), &tree.state(), &other, 1).err().unwrap();
    let Refusal::Unfinished(run) = &error else { panic!("{error}") };
    assert!(*run > id && error.to_string().contains("nearmetal lab undo"), "{error}");
    // After a restart the devices are as the firmware left them.
    tree.write("proc/sys/kernel/random/boot_id", "boot-2\n");
    tree.write("sys/bus/pci/devices/0000:3b:00.1/sriov_numvfs", "0\n");
    tree.write("sys/bus/pci/devices/0000:3b:00.1/sriov_drivers_autoprobe", "1\n");
    let _ = std::fs::remove_file(tree.path().join("sys/bus/pci/devices/0000:3b:00.1/virtfn0"));
    let _ = std::fs::remove_file(tree.path().join("sys/bus/pci/devices/0000:3b:00.1/virtfn1"));
    sriov::prepare_on(tree.host(Fuse::default()), &tree.state(), &other, 1).unwrap();
}
