//! A device that somebody uses is never touched: each reason, with what was found.

use nm_vm::refusal::Refusal;
use nm_vm::sriov;

use crate::tree::{Fuse, Tree};

const PORT: &str = "sys/bus/pci/devices/0000:3b:00.0";
const LINK: &str = "sys/class/net/ens1f0";
const ROUTES: &str = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n";

/// The refusal of `nics` on the tree that `change` makes; nothing else is changed in it.
fn refusal_of(nics: &[&str], change: impl FnOnce(&Tree)) -> Refusal {
    let tree = Tree::new();
    change(&tree);
    let before = tree.contents();
    let fuse = Fuse::default();
    let nics: Vec<String> = nics.iter().map(ToString::to_string).collect();
    let refusal =
        sriov::prepare_on(tree.host(fuse.clone()), &tree.state(), &nics, 1).err().unwrap();
    assert_eq!(tree.contents(), before, "{refusal}");
    assert_eq!(fuse.writes.get(), 0, "{refusal}");
    assert!(!tree.state().exists(), "not even a journal: {refusal}");
    refusal
}

/// The text of the refusal of the first port, which must be a conflict.
fn conflict(change: impl FnOnce(&Tree)) -> String {
    let refusal = refusal_of(&["ens1f0"], change);
    assert!(refusal.is_conflict() && !refusal.is_usage(), "{refusal}");
    refusal.to_string()
}

#[test]
fn a_device_in_use_is_refused_with_what_was_found() {
    let text = conflict(|tree| {
        let line = "ens1f0 00000000 0102000A 0003 0 0 100 00000000 0 0 0\n";
        tree.write("proc/net/route", &format!("{ROUTES}{line}"));
    });
    assert_eq!(text, "ens1f0 carries the default route (via 10.0.2.1)");
    let text = conflict(|tree| {
        let zeros = "0".repeat(32);
        let line = format!("{zeros} 00 {zeros} 00 fe80{}1 400 1 0 3 ens1f0\n", "0".repeat(27));
        tree.write("proc/net/ipv6_route", &line);
    });
    assert_eq!(text, "ens1f0 carries the default route (via fe80::1)");
    let text = conflict(|tree| {
        let line = "ens1f0 0000A8C0 00000000 0001 0 0 0 00FFFFFF 0 0 0\n";
        tree.write("proc/net/route", &format!("{ROUTES}{line}"));
    });
    assert!(text.contains("192.168.0.0/24"), "{text}");
    let text = conflict(|tree| {
        let line = format!("fd77{}5 02 40 00 80 ens1f0\n", "0".repeat(27));
        tree.write("proc/net/if_inet6", &line);
    });
    assert!(text.contains("has the address fd77::5"), "{text}");
    let text = conflict(|tree| {
        tree.link("../../br0", &format!("{LINK}/master"));
        tree.write("sys/class/net/br0/bridge/bridge_id", "8000\n");
    });
    assert_eq!(text, "ens1f0 belongs to the bridge br0");
    let text = conflict(|tree| {
        tree.write("sys/class/net/bond0/bonding/mode", "802.3ad 4\n");
        tree.link("../bond0", &format!("{LINK}/upper_bond0"));
    });
    assert_eq!(text, "ens1f0 belongs to the bond bond0");
    let text = conflict(|tree| {
        tree.write("sys/class/net/ens1f0.7/uevent", "DEVTYPE=vlan\nINTERFACE=ens1f0.7\n");
        tree.link("../ens1f0.7", &format!("{LINK}/upper_ens1f0.7"));
    });
    assert_eq!(text, "ens1f0 belongs to the VLAN ens1f0.7");
    let text = conflict(|tree| tree.write(&format!("{PORT}/sriov_numvfs"), "4\n"));
    assert!(text.contains("4 virtual functions already"), "{text}");
    let text = conflict(|tree| tree.group("0000:3b:00.1", 20));
    assert!(text.contains("IOMMU group 20 with 0000:3b:00.1"), "{text}");
    let tree = |tree: &Tree| tree.link("../drivers/vfio-pci", &format!("{PORT}/driver"));
    let text = conflict(tree);
    assert_eq!(text, "ens1f0 (0000:3b:00.0) is bound to vfio-pci, so another owner uses it");
}

#[test]
fn the_connection_of_the_session_is_found_before_its_address() {
    let tree = Tree::new();
    let line = format!("fd77{}5 02 40 00 80 ens1f0\n", "0".repeat(27));
    tree.write("proc/net/if_inet6", &line);
    let mut host = tree.host(Fuse::default());
    host.own_connection = Some("fd77::9 40000 fd77::5 22".to_string());
    let error = sriov::check(&host, &["ens1f0".to_string()], 1).err().unwrap();
    assert_eq!(
        error.to_string(),
        "ens1f0 carries this session's own SSH connection (fd77::9 port 40000 to fd77::5 port 22)"
    );
    // Over an address of the link scope, which every link has, and without the variable.
    tree.write("proc/net/if_inet6", &format!("fe80{}5 02 40 20 80 ens1f0\n", "0".repeat(27)));
    assert!(sriov::check(&tree.host(Fuse::default()), &["ens1f0".to_string()], 1).is_ok());
    let word = |text: &str| {
        let value = u32::from_str_radix(text, 16).unwrap();
        u32::from_be_bytes(value.to_ne_bytes())
    };
    let end = format!("{:08X}{:016X}{:08X}", word("fe800000"), 0, word("00000005"));
    tree.write("proc/net/tcp6", &format!("sl local remote st\n 0: {end}:0016 {end}:9C40 01 x\n"));
    let error =
        sriov::check(&tree.host(Fuse::default()), &["ens1f0".to_string()], 1).err().unwrap();
    assert!(matches!(error, Refusal::Routes { .. }), "{error}");
    assert!(error.to_string().contains("[fe80::5]:22"), "{error}");
}

#[test]
fn what_the_host_lacks_is_named_with_its_remedy() {
    let text = |change: &dyn Fn(&Tree)| {
        let refusal = refusal_of(&["ens1f0"], |tree| change(tree));
        assert!(!refusal.is_conflict() && !refusal.is_usage(), "{refusal}");
        refusal.to_string()
    };
    let down = text(&|tree| tree.write(&format!("{LINK}/flags"), "0x1002\n"));
    assert!(down.contains("ip link set ens1f0 up"), "{down}");
    let carrier = text(&|tree| tree.write(&format!("{LINK}/carrier"), "0\n"));
    assert!(carrier.contains("no carrier"), "{carrier}");
    let iommu = text(&|tree| {
        tree.remove("sys/kernel/iommu_groups");
        for port in ["0000:3b:00.0", "0000:3b:00.1"] {
            tree.remove(&format!("sys/bus/pci/devices/{port}/iommu_group"));
        }
    });
    assert!(iommu.contains("intel_iommu=on"), "{iommu}");
    let remapping = text(&|tree| tree.write("proc/interrupts", " 24: 0 PCI-MSIX-0000:3b:00.0\n"));
    assert!(remapping.contains("intremap=off"), "{remapping}");
    let driver = text(&|tree| tree.remove("sys/bus/pci/drivers/vfio-pci"));
    assert!(driver.contains("modprobe vfio-pci"), "{driver}");
    let functions = text(&|tree| tree.write(&format!("{PORT}/sriov_totalvfs"), "1\n"));
    assert!(functions.contains("can have 1 virtual functions"), "{functions}");
    let no_link = refusal_of(&["0000:3b:00.0"], |tree| {
        tree.remove(&format!("{PORT}/net"));
        tree.remove(LINK);
        tree.remove(&format!("{PORT}/driver"));
    });
    assert!(matches!(no_link, Refusal::NoLink { .. }), "{no_link}");
}

#[test]
fn names_that_are_no_device_are_errors_of_usage() {
    let text = |nics: &[&str]| {
        let refusal = refusal_of(nics, |tree| {
            tree.link("../../../virtio0", "sys/class/net/eth0/device");
            tree.write("sys/class/net/veth1/ifindex", "9\n");
        });
        assert!(refusal.is_usage(), "{refusal}");
        refusal.to_string()
    };
    assert!(text(&[]).starts_with("0 network devices"));
    assert!(text(&["ens1f0", "ens1f1", "ens1f0"]).starts_with("3 network devices"));
    assert!(text(&["ens1f0", "0000:3b:00.0"]).contains("named twice"));
    assert!(text(&["ens9"]).contains("there are: ens1f0 (0000:3b:00.0), ens1f1 (0000:3b:00.1)"));
    assert!(text(&["../lo"]).contains("there is no network device"));
    assert!(text(&["0000:3c:00.0"]).contains("there is no network device"));
    assert!(text(&["eth0"]).contains("its device is virtio0"));
    assert!(text(&["veth1"]).contains("a virtual link"));
}
