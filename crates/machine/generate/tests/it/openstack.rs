//! Configuration of OpenStack: sections and options by name, values, and names that are gone.

use std::collections::BTreeMap;

use nm_generate::openstack::{Part, extra_specs, text};
use nm_generate::{Placement, Request, place, read};

use crate::host::{Host, request, server};

/// Options of Nova 26 to 32, by section, from its own documentation.
const OPTIONS: [(&str, &[&str]); 4] = [
    ("compute", &["cpu_dedicated_set", "cpu_shared_set"]),
    ("libvirt", &["cpu_mode"]),
    ("pci", &["device_spec", "alias"]),
    ("filter_scheduler", &["enabled_filters"]),
];

/// Extra specs of Nova 26 to 32.
const EXTRA_SPECS: [&str; 11] = [
    "hw:cpu_policy",
    "hw:cpu_realtime",
    "hw:cpu_realtime_mask",
    "hw:cpu_thread_policy",
    "hw:emulator_threads_policy",
    "hw:locked_memory",
    "hw:mem_page_size",
    "hw:numa_nodes",
    "hw:pci_numa_affinity_policy",
    "hw:pmu",
    "pci_passthrough:alias",
];

/// Names that Nova no longer knows, or no longer wants.
const REMOVED: [&str; 4] =
    ["RetryFilter", "RamFilter", "AvailabilityZoneFilter", "passthrough_whitelist"];

fn placement(host: &Host, request: &Request) -> Placement {
    place(&read(host.record().path()), request).unwrap()
}

/// Reads a part of nova.conf as oslo.config does: sections, `name = value`, comments.
fn parse(text: &str) -> BTreeMap<(String, String), String> {
    let (mut section, mut options) = (String::new(), BTreeMap::new());
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = name.to_string();
            continue;
        }
        let (name, value) = line.split_once('=').expect("an option");
        let key = (section.clone(), name.trim().to_string());
        assert!(options.insert(key, value.trim().to_string()).is_none(), "twice: {line}");
    }
    options
}

#[test]
fn options_are_those_that_nova_knows() {
    let placement = placement(&server(), &request());
    for part in [Part::Compute, Part::Controller] {
        for (section, name) in parse(&text(&placement, &request(), &[part])).keys() {
            let known = OPTIONS.iter().find(|(known, _)| known == section);
            let known = known.unwrap_or_else(|| panic!("section {section}")).1;
            assert!(known.contains(&name.as_str()), "[{section}] {name}");
        }
    }
    let realtime = Request { realtime: true, ..request() };
    let names: Vec<&str> =
        extra_specs(&placement, &realtime).iter().map(|(name, _)| *name).collect();
    assert_eq!(names, EXTRA_SPECS);
    let all_parts = text(&placement, &realtime, &Part::ALL);
    for name in REMOVED {
        assert!(!all_parts.contains(name), "{name}");
    }
}

#[test]
fn a_parent_of_virtual_functions_is_named_so_on_both_sides() {
    let placement = placement(&server(), &request());
    let compute = parse(&text(&placement, &request(), &[Part::Compute]));
    let controller = parse(&text(&placement, &request(), &[Part::Controller]));
    let get = |options: &BTreeMap<(String, String), String>, section: &str, name: &str| {
        options[&(section.to_string(), name.to_string())].clone()
    };
    assert_eq!(get(&compute, "compute", "cpu_dedicated_set"), "9-15");
    assert_eq!(get(&compute, "compute", "cpu_shared_set"), "8,24");
    assert_eq!(get(&compute, "libvirt", "cpu_mode"), "host-passthrough");
    assert_eq!(get(&compute, "pci", "device_spec"), r#"{"address":"0000:af:00.0"}"#);
    let alias: serde_json::Value =
        serde_json::from_str(&get(&compute, "pci", "alias")).expect("JSON");
    assert_eq!(alias["device_type"], "type-PF");
    assert_eq!((&alias["vendor_id"], &alias["product_id"]), (&"1924".into(), &"0b03".into()));
    assert_eq!(alias["numa_policy"], "required");
    assert_eq!(get(&controller, "pci", "alias"), get(&compute, "pci", "alias"));
    let filters = get(&controller, "filter_scheduler", "enabled_filters");
    assert!(filters.contains("NUMATopologyFilter,PciPassthroughFilter"), "{filters}");

    for (nic, expected) in [("eno1", "type-PCI"), ("ens1f0v0", "type-VF")] {
        let request = Request { nic: nic.into(), ..request() };
        let placement = place(&read(server().record().path()), &request).unwrap();
        let compute = text(&placement, &request, &[Part::Compute]);
        assert!(compute.contains(&format!(r#""device_type":"{expected}""#)), "{compute}");
    }
}

#[test]
fn hosts_with_several_threads_on_a_core_are_not_excluded() {
    let policy = |host: &Host| {
        let specs = extra_specs(&placement(host, &request()), &request());
        specs.into_iter().find(|(name, _)| *name == "hw:cpu_thread_policy").unwrap().1
    };
    assert_eq!(policy(&server()), "prefer");
    let single = Host { threads: 1, ..server() };
    assert_eq!(policy(&single), "isolate");
    let compute = text(&placement(&single, &request()), &request(), &[Part::Compute]);
    assert!(!compute.contains("chcpu"), "no other threads: {compute}");
}

#[test]
fn text_is_as_reviewed_and_the_same_each_time() {
    let request = Request { realtime: true, ..request() };
    let write = || text(&placement(&server(), &request), &request, &Part::ALL);
    let text = write();
    assert_eq!(text, write());
    crate::golden("openstack.txt", &text);
}
