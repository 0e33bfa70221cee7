//! Which vCPU runs where, and why a host cannot carry a guest.

use std::collections::BTreeSet;

use nm_generate::{HostLayout, NicFunction, PageSize, PlaceError, Placement, Request, place, read};
use proptest::prelude::*;

use crate::host::{Host, request, server};

fn placed(host: &Host, request: &Request) -> Result<Placement, PlaceError> {
    place(&read(host.record().path()), request)
}

fn reason(host: &Host, request: &Request) -> String {
    placed(host, request).expect_err("the host cannot carry it").to_string()
}

#[test]
fn a_layout_is_read_from_a_recorded_tree() {
    let layout = read(server().record().path());
    assert_eq!((layout.cores.len(), layout.nodes()), (16, vec![0, 1]));
    assert_eq!((layout.cores[8].cpus.as_slice(), layout.cores[8].node), ([8, 24].as_slice(), 1));
    assert!(layout.has_siblings() && layout.has_invariant_tsc && layout.has_iommu);
    assert_eq!(layout.nics.len(), 5, "a bridge is no network device");
    let parent = &layout.nics[0];
    assert_eq!((parent.vendor, parent.product, parent.node), (0x8086, 0x1592, Some(0)));
    let NicFunction::Parent { virtual_functions, .. } = &parent.function else {
        panic!("{parent:?}")
    };
    assert_eq!(virtual_functions[0].to_string(), "0000:3b:01.0");
    assert_eq!(layout.nics[1].function, NicFunction::Virtual);
    assert!(layout.nics[2].group_mates.is_empty(), "a bridge shares any group");
    assert_eq!(read(tempfile::tempdir().unwrap().path()), HostLayout::default());
}

#[test]
fn vcpus_run_on_cores_of_the_node_of_the_device() {
    let placement = placed(&server(), &request()).unwrap();
    assert_eq!((placement.node, placement.pages), (1, 8));
    assert_eq!(placement.vcpus, [9, 10, 11, 12]);
    assert_eq!(placement.dedicated, [9, 10, 11, 12, 13, 14, 15]);
    assert_eq!(placement.idle_siblings, [25, 26, 27, 28, 29, 30, 31]);
    assert_eq!(placement.vcpu_siblings, [25, 26, 27, 28], "the other cores are not this guest's");
    assert_eq!(placement.shared, [8, 24], "the host keeps a core of the node");

    let fewer = Request { dedicated_cores: Some(5), ..request() };
    let placement = placed(&server(), &fewer).unwrap();
    assert_eq!(placement.dedicated, [11, 12, 13, 14, 15]);
    assert_eq!(placement.shared, [8, 9, 10, 24, 25, 26]);
    let by_address = Request { nic: "af:00.1".into(), ..request() };
    assert_eq!(placed(&server(), &by_address).unwrap().nic.names, ["ens4f1"]);
}

/// A socket of two caches of eight cores, such as a Ryzen or an EPYC has.
#[test]
fn eight_vcpus_are_in_the_cache_that_the_host_does_not_use() {
    let host = Host { nodes: 1, cores: 16, ..server() };
    let mut layout = read(host.record().path());
    layout.nics.iter_mut().for_each(|nic| nic.node = Some(0));
    for core in &mut layout.cores {
        core.cache = Some(core.first() / 8 * 8);
    }
    let asked = Request { vcpus: 8, ..request() };
    let placement = place(&layout, &asked).unwrap();
    assert_eq!(placement.vcpus, [8, 9, 10, 11, 12, 13, 14, 15]);
    assert_eq!(placement.shared, [0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23]);
    assert!(placement.reasons.iter().any(|why| why.contains("which the system does not use")));
    let more = place(&layout, &Request { vcpus: 9, ..request() }).unwrap();
    assert!(more.reasons.iter().any(|why| why.contains("shared with the system")), "{more:?}");
}

#[test]
fn what_the_host_cannot_do_is_named() {
    let asks = |change: fn(&mut Request)| {
        let mut request = request();
        change(&mut request);
        reason(&server(), &request)
    };
    assert_eq!(
        asks(|r| r.vcpus = 8),
        "node 1, where 0000:af:00.0 is, has 8 physical cores, of which 1 stays with the host: too \
         few for 8 vCPUs on a core each"
    );
    assert!(asks(|r| r.dedicated_cores = Some(8)).contains("allows 4 (one for each vCPU) to 7"));
    assert!(asks(|r| r.dedicated_cores = Some(3)).contains("3 dedicated cores"));
    let pages = asks(|r| r.memory_bytes = 17 << 30);
    assert!(pages.contains("node 1 has 16 free of 32 pages of 1 GiB, and the guest needs 17"));
    assert!(pages.contains("reserve 33 at boot, or `echo 33 > "), "16 are in use: {pages}");
    let unknown = asks(|r| r.nic = "eth9".into());
    assert!(
        unknown.contains("no network device on PCI is called eth9; there are: ens1f0 (0000:3b")
    );
    let parent = asks(|r| r.nic = "ens1f0".into());
    assert!(parent.contains("has virtual functions (0000:3b:01.0): pass one of them"), "{parent}");
    assert!(asks(|r| r.vcpus = 0).contains("0 vCPUs"));
}

#[test]
fn what_the_host_lacks_is_named() {
    let lacks = |change: fn(&mut Host)| {
        let mut host = server();
        change(&mut host);
        reason(&host, &request())
    };
    assert!(lacks(|h| h.iommu = false).contains("no IOMMU in use"));
    assert!(lacks(|h| h.flags = "fpu").contains("neither vmx nor svm"));
    assert!(lacks(|h| h.flags = "").contains("no x86-64 machine"));
    assert!(lacks(|h| h.pages = (0, 0)).contains("0 free of 0 pages"));
    assert!(lacks(|h| h.devices.clear()).contains("there are: none"));
    assert!(lacks(|h| h.devices[4].node = -1).contains("NUMA node of 0000:af:00.0 is unknown"));
    let shared = lacks(|h| h.devices[5].group = 4);
    assert!(shared.contains("one IOMMU group with 0000:af:00.1"), "{shared}");
    // A recording that lacks the devices of virtual functions.
    let counted = lacks(|h| h.devices[4].vfs_enabled = 2);
    assert!(
        counted
            .starts_with("0000:af:00.0 has 2 virtual functions by `sriov_numvfs`, whose devices"),
        "{counted}"
    );
    let nothing = place(&HostLayout::default(), &request()).unwrap_err();
    assert_eq!(nothing, PlaceError::NoCpus);
}

#[test]
fn a_device_without_a_node_is_on_the_only_one() {
    let mut host = Host { nodes: 1, ..server() };
    host.devices.iter_mut().for_each(|device| device.node = -1);
    assert_eq!(placed(&host, &request()).unwrap().node, 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_core_has_two_vcpus_and_all_are_on_the_node_of_the_device(
        nodes in 1u32..4, cores in 1u32..10, threads in 1u32..5, vcpus in 0u32..12,
        dedicated in proptest::option::of(0u32..12), node in -1i32..4, gib in 0u64..20,
        realtime: bool,
    ) {
        let mut host = Host { nodes, cores, threads, ..server() };
        host.devices[4].node = node;
        let layout = read(host.record().path());
        let request = Request {
            vcpus, realtime, dedicated_cores: dedicated, memory_bytes: gib << 30,
            page_size: PageSize::Gib1, ..request()
        };
        let Ok(placement) = place(&layout, &request) else { return Ok(()) };
        prop_assert_eq!(placement.vcpus.len() as u32, vcpus);
        let core_of = |cpu: &u32| layout.cores.iter().position(|core| core.cpus.contains(cpu));
        let distinct: BTreeSet<_> = placement.vcpus.iter().map(core_of).collect();
        prop_assert_eq!(distinct.len() as u32, vcpus);
        for cpu in placement.dedicated.iter().chain(&placement.shared) {
            prop_assert_eq!(layout.cores[core_of(cpu).unwrap()].node, placement.node);
        }
        prop_assert!(!placement.shared.is_empty());
        let sets = [&placement.dedicated, &placement.idle_siblings, &placement.shared];
        let all: BTreeSet<u32> = sets.into_iter().flatten().copied().collect();
        prop_assert_eq!(all.len() as u32, cores * threads, "the sets are disjoint and complete");
        prop_assert!(node < 0 || placement.node == node as u32);
    }
}
