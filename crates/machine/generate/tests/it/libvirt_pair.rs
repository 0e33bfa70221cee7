//! Pairs of guests as domains of libvirt: checked against its schemas, and mutations of them are
//! found.

use std::process::Command;

use nm_generate::{PairError, PairNetwork, PairRequest, libvirt_pair, place_pair, read};
use nm_test_support::skip::can_run;

use crate::host::{Host, server};
use crate::schema::{has_schemas, validate_all};

pub fn request(network: PairNetwork) -> PairRequest {
    PairRequest {
        network,
        cpus: 2,
        memory_mib: 512,
        kernel: "/boot/vmlinuz-6.1.0-56-amd64".into(),
        initrd: "/srv/pair/initrd".into(),
        command_lines: ["client", "server"].map(|side| format!("panic=-1 nm.side={side}")),
        folder: "/srv/pair".into(),
    }
}

pub fn networks() -> Vec<PairNetwork> {
    vec![
        PairNetwork::Wire,
        PairNetwork::Vswitch,
        PairNetwork::Vhost,
        PairNetwork::SharedMemory,
        PairNetwork::Functions { link: "ens1f0".into(), node: Some(0) },
        PairNetwork::Devices {
            addresses: ["0000:af:00.0", "0000:af:00.1"].map(|text| text.parse().unwrap()),
            node: Some(1),
        },
    ]
}

fn files(host: &Host, request: &PairRequest) -> Vec<(String, String)> {
    request.check().unwrap();
    libvirt_pair::files(&place_pair(&read(host.record().path()), request), request)
}

fn client(network: PairNetwork) -> String {
    let host = Host { pages: (512, 512), ..server() };
    files(&host, &request(network)).swap_remove(0).1
}

#[test]
fn pairs_are_valid_by_the_schemas_of_libvirt() {
    if !has_schemas() {
        return;
    }
    let (mut domains, mut others) = (vec![], vec![]);
    for network in networks() {
        for host in [Host { pages: (512, 512), ..server() }, Host { cores: 2, ..server() }] {
            let files = files(&host, &request(network.clone()));
            let has_network = files.iter().any(|(name, _)| name == "network.xml");
            let is_bridged = matches!(
                network,
                PairNetwork::Vswitch | PairNetwork::Vhost | PairNetwork::Functions { .. }
            );
            assert_eq!(has_network, is_bridged, "{network:?}");
            for (name, text) in files.into_iter().filter(|(name, _)| name.ends_with(".xml")) {
                if name == "network.xml" { others.push(text) } else { domains.push(text) }
            }
        }
    }
    for (documents, schema) in [(domains, "domain"), (others, "network")] {
        for (xml, result) in documents.iter().zip(validate_all(&documents, schema)) {
            assert_eq!(result, Ok(()), "{xml}");
        }
    }
}

#[test]
fn a_mutation_of_any_part_is_not_valid() {
    let vhost = client(PairNetwork::Vhost);
    let shared = client(PairNetwork::SharedMemory);
    let devices = client(networks().swap_remove(5));
    let mutations = [
        (&vhost, "<locked/>", "<lokced/>"),
        (&vhost, "type='kvm'", "type='kvn'"),
        (&vhost, "unit='KiB'>524288", "unit='KiB'>much"),
        (&vhost, "<vcpupin vcpu='0'", "<vcpupin vcpu='x'"),
        (&vhost, "mode='host-passthrough'", "mode='host-pass-through'"),
        (&vhost, "<driver name='vhost'/>", "<driver name='vhosts'/>"),
        (&vhost, "address='52:54:00:6e:6d:01'", "address='52:54:00:6e:6d'"),
        (&vhost, "<memballoon model='none'/>", "<memballoon model='no'/>"),
        (&shared, "type='ivshmem-plain'", "type='ivshmem-simple'"),
        (&shared, "<target type='virtio' name='nm.ctl'/>", "<target type='virtio' nm='nm.ctl'/>"),
        (&devices, "managed='yes'", "managed='always'"),
        (&devices, "bus='0xaf'", "bus='af00'"),
    ];
    if !has_schemas() {
        return;
    }
    let mutated: Vec<String> =
        mutations.iter().map(|(text, from, to)| text.replacen(from, to, 1)).collect();
    for (((text, from, to), mutated), result) in
        mutations.iter().zip(&mutated).zip(validate_all(&mutated, "domain"))
    {
        assert_ne!(*text, mutated, "{from} is not there");
        assert!(result.is_err(), "{to} is accepted");
    }
}

#[test]
fn the_script_of_libvirt_agrees_where_it_is_installed() {
    let is_there = Command::new("virt-xml-validate").arg("--version").output().is_ok();
    if !can_run(is_there, "virt-xml-validate is not installed (package libvirt-clients)") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("client.xml");
    for network in networks() {
        std::fs::write(&path, client(network)).unwrap();
        let output = Command::new("virt-xml-validate").arg(&path).arg("domain").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn every_virtual_cpu_has_a_core_and_the_host_keeps_one() {
    let host = server();
    let layout = read(host.record().path());
    let devices = request(networks().swap_remove(5));
    let placement = place_pair(&layout, &devices);
    assert_eq!(placement.node, Some(1), "the node of the device");
    assert_eq!(placement.virtual_cpus, [vec![12, 13], vec![14, 15]]);
    assert_eq!(placement.others, [8, 9, 10, 11, 24, 25, 26, 27]);
    assert!(!placement.has_huge_pages, "16 pages are not enough");
    let small = read(Host { cores: 4, ..server() }.record().path());
    let placement = place_pair(&small, &devices);
    assert_eq!(placement.virtual_cpus, [Vec::<u32>::new(), vec![]]);
    assert!(placement.notes[0].contains("4 cores and one for the host"), "{:?}", placement.notes);
}

#[test]
fn numbers_and_paths_out_of_range_are_refused() {
    let wire = || request(PairNetwork::Wire);
    let text = |request: PairRequest| request.check().unwrap_err().to_string();
    assert_eq!(text(PairRequest { cpus: 0, ..wire() }), "--cpus is 0, must be 1 to 64");
    assert_eq!(text(PairRequest { cpus: 65, ..wire() }), "--cpus is 65, must be 1 to 64");
    let memory = text(PairRequest { memory_mib: 191, ..wire() });
    assert_eq!(memory, "--memory-mib is 191, must be 192 to 65536");
    let path = PairRequest { kernel: "vmlinuz".into(), ..wire() }.check().unwrap_err();
    assert!(matches!(path, PairError::Path(_)));
    assert!(PairRequest { initrd: "/a\n".into(), ..wire() }.check().is_err());
    assert!(PairRequest { folder: "/it's".into(), ..wire() }.check().is_err());
}

#[test]
fn texts_are_as_reviewed() {
    let host = Host { pages: (512, 512), ..server() };
    for (network, name) in [(1, "vswitch"), (3, "shared-memory"), (4, "functions")] {
        let files = files(&host, &request(networks().swap_remove(network)));
        let text: Vec<String> =
            files.iter().map(|(name, text)| format!("<!-- {name} -->\n{text}")).collect();
        crate::golden(&format!("pair-{name}.txt"), &text.concat());
    }
}
