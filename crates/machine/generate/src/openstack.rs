//! Configuration of OpenStack Nova, of version 26 (Zed) or later: parts of `nova.conf`, and the
//! commands that make a flavor.

use serde_json::json;

use crate::layout::NicFunction;
use crate::place::Placement;
use crate::request::Request;
use nm_sys::cpu_list::list as cpu_list;

/// A part of the configuration, each for another place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// `nova.conf` of the compute node.
    Compute,
    /// `nova.conf` of the nodes that run the API and the scheduler.
    Controller,
    /// Commands for the flavor.
    Flavor,
}

impl Part {
    /// All parts, in the order of work.
    pub const ALL: [Part; 3] = [Part::Compute, Part::Controller, Part::Flavor];

    fn title(self) -> &'static str {
        match self {
            Part::Compute => "nova.conf of the compute node (restart nova-compute)",
            Part::Controller => {
                "nova.conf of the nodes with nova-api and nova-scheduler (restart both)"
            }
            Part::Flavor => "commands for the flavor, once, as an administrator",
        }
    }
}

/// The text of some parts, each under a line that says where it belongs.
pub fn text(placement: &Placement, request: &Request, parts: &[Part]) -> String {
    let part = |part: &Part| {
        let body = match part {
            Part::Compute => compute(placement, request),
            Part::Controller => controller(placement, request),
            Part::Flavor => flavor(placement, request),
        };
        format!("# {}\n{body}", part.title())
    };
    parts.iter().map(part).collect::<Vec<_>>().join("\n")
}

fn compute(placement: &Placement, request: &Request) -> String {
    let Placement { node, nic, .. } = placement;
    let siblings = match placement.idle_siblings.as_slice() {
        [] => String::new(),
        cpus => {
            let list = cpu_list(cpus);
            format!(
                "# The other threads of these cores ({list}) are in neither set, so that Nova \
                 leaves them\n# idle. Keep everything else from them too: `chcpu -d {list}`.\n"
            )
        }
    };
    format!(
        "[compute]\n\
         # Node {node}, where {address} is: one thread of each core.\n\
         {siblings}\
         cpu_dedicated_set = {dedicated}\n\
         # Threads of the emulator. CPUs of other nodes may be added for ordinary guests.\n\
         cpu_shared_set = {shared}\n\n\
         [libvirt]\n\
         cpu_mode = host-passthrough\n\n\
         [pci]\n\
         device_spec = {spec}\n\
         alias = {alias}\n",
        address = nic.address,
        dedicated = cpu_list(&placement.dedicated),
        shared = cpu_list(&placement.shared),
        spec = json!({"address": nic.address.to_string()}),
        alias = alias(placement, request),
    )
}

/// The device's alias, which compute nodes and the API must both know.
fn alias(placement: &Placement, request: &Request) -> String {
    let nic = &placement.nic;
    let device_type = match nic.function {
        NicFunction::Plain => "type-PCI",
        // Without it Nova takes plain devices only, and never finds this one.
        NicFunction::Parent { .. } => "type-PF",
        NicFunction::Virtual => "type-VF",
    };
    json!({
        "name": request.name,
        "vendor_id": format!("{:04x}", nic.vendor),
        "product_id": format!("{:04x}", nic.product),
        "device_type": device_type,
        "numa_policy": "required",
    })
    .to_string()
}

/// The scheduler's filters: Nova's own default, and the two that such guests need.
const FILTERS: [&str; 7] = [
    "ComputeFilter",
    "ComputeCapabilitiesFilter",
    "ImagePropertiesFilter",
    "ServerGroupAntiAffinityFilter",
    "ServerGroupAffinityFilter",
    "NUMATopologyFilter",
    "PciPassthroughFilter",
];

fn controller(placement: &Placement, request: &Request) -> String {
    format!(
        "[filter_scheduler]\n\
         enabled_filters = {filters}\n\n\
         [pci]\n\
         alias = {alias}\n",
        filters = FILTERS.join(","),
        alias = alias(placement, request),
    )
}

fn flavor(placement: &Placement, request: &Request) -> String {
    let Request { name, vcpus, memory_bytes, .. } = request;
    let ram_mib = memory_bytes >> 20;
    let mut text = format!(
        "openstack flavor create {name} --vcpus {vcpus} --ram {ram_mib} --disk 20\n\
         openstack flavor set {name}"
    );
    for (spec, value) in extra_specs(placement, request) {
        text += &format!(" \\\n  --property {spec}={value}");
    }
    text + "\n"
}

/// The flavor's extra specs, by name.
pub fn extra_specs(placement: &Placement, request: &Request) -> Vec<(&'static str, String)> {
    // Since version 20 `isolate` forbids hosts whose cores have several threads. On such a host
    // the dedicated set has one thread of each core, which makes the cores distinct as well.
    let thread_policy = if placement.has_siblings { "prefer" } else { "isolate" };
    let mut specs = vec![
        ("hw:cpu_policy", "dedicated".to_string()),
        ("hw:cpu_thread_policy", thread_policy.into()),
        ("hw:emulator_threads_policy", "share".into()),
        ("hw:numa_nodes", "1".into()),
        ("hw:mem_page_size", format!("{}KiB", request.page_size.kib())),
        ("hw:locked_memory", "true".into()),
        ("hw:pci_numa_affinity_policy", "required".into()),
        ("hw:pmu", "false".into()),
        ("pci_passthrough:alias", format!("{}:1", request.name)),
    ];
    if request.realtime {
        specs.push(("hw:cpu_realtime", "yes".into()));
        // vCPU 0 stays an ordinary thread.
        specs.push(("hw:cpu_realtime_mask", "^0".into()));
    }
    specs.sort_unstable();
    specs
}
