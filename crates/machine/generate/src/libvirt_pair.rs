//! A pair of guests as domains of libvirt, their network, and the commands.

use nm_model::Side;
use nm_sys::cpu_list::list as cpu_list;

use crate::libvirt::{clock, features, hostdev};
use crate::pair::{PairNetwork, PairPlacement, PairRequest, SIDES, mac, place_of};
use crate::xml::{Element, element};

/// Name of the network.
const NETWORK: &str = "nearmetal-lab";

/// Ports of the wire on loopback: of the client's guest, of the server's.
const WIRE_PORTS: [u16; 2] = [47_811, 47_812];

/// Size of the memory in common, MiB.
const SHARED_MIB: u32 = 4;

/// The files of a pair: name and text.
pub fn files(placement: &PairPlacement, request: &PairRequest) -> Vec<(String, String)> {
    let mut files: Vec<(String, String)> = SIDES
        .iter()
        .map(|side| (format!("{}.xml", side), domain(*side, placement, request)))
        .collect();
    if let Some(network) = network(request) {
        files.push(("network.xml".to_string(), network));
    }
    files.push(("commands.txt".to_string(), commands(placement, request)));
    files
}

/// The domain of one guest.
fn domain(side: Side, placement: &PairPlacement, request: &PairRequest) -> String {
    let kib = |name| element(name).with("unit", "KiB").holding(u64::from(request.memory_mib) << 10);
    let node = placement.node.map(|node| {
        element("numatune").of([element("memory").with("mode", "strict").with("nodeset", node)])
    });
    let os = element("os").of([
        element("type").with("arch", "x86_64").with("machine", "q35").holding("hvm"),
        element("kernel").holding(&request.kernel),
        element("initrd").holding(&request.initrd),
        element("cmdline").holding(&request.command_lines[place_of(side)]),
    ]);
    element("domain")
        .with("type", "kvm")
        .of([
            element("name").holding(format!("{NETWORK}-{}", side)),
            kib("memory"),
            kib("currentMemory"),
            memory(placement),
            element("vcpu").with("placement", "static").holding(request.cpus),
        ])
        .of(cpu_tune(side, placement))
        .of(node)
        .of([os, features(), cpu(placement, request), clock()])
        .of([
            element("on_poweroff").holding("destroy"),
            element("on_reboot").holding("destroy"),
            element("on_crash").holding("destroy"),
            devices(side, request),
        ])
        .to_text()
}

fn memory(placement: &PairPlacement) -> Element {
    let pages = placement.has_huge_pages.then(|| {
        element("hugepages").of([element("page").with("size", 2 << 10).with("unit", "KiB")])
    });
    element("memoryBacking").of(pages).of([element("nosharepages"), element("locked")])
}

fn cpu_tune(side: Side, placement: &PairPlacement) -> Option<Element> {
    let cpus = &placement.virtual_cpus[place_of(side)];
    let pin =
        |(vcpu, cpu): (usize, &u32)| element("vcpupin").with("vcpu", vcpu).with("cpuset", cpu);
    (!cpus.is_empty()).then(|| {
        element("cputune")
            .of(cpus.iter().enumerate().map(pin))
            .of([element("emulatorpin").with("cpuset", cpu_list(&placement.others))])
    })
}

fn cpu(placement: &PairPlacement, request: &PairRequest) -> Element {
    let topology = element("topology")
        .with("sockets", 1)
        .with("dies", 1)
        .with("cores", request.cpus)
        .with("threads", 1);
    let invariant_tsc = placement
        .has_invariant_tsc
        .then(|| element("feature").with("policy", "require").with("name", "invtsc"));
    element("cpu")
        .with("mode", "host-passthrough")
        .with("check", "none")
        .with("migratable", "off")
        .of([topology])
        .of(invariant_tsc)
}

fn devices(side: Side, request: &PairRequest) -> Element {
    let control = element("channel").with("type", "unix").of([
        element("source")
            .with("mode", "bind")
            .with("path", format!("{}/{}.ctl", request.folder, side)),
        element("target").with("type", "virtio").with("name", "nm.ctl"),
    ]);
    let shared = (request.network == PairNetwork::SharedMemory).then(|| {
        element("shmem").with("name", NETWORK).of([
            element("model").with("type", "ivshmem-plain"),
            element("size").with("unit", "M").holding(SHARED_MIB),
        ])
    });
    element("devices")
        .of([
            element("controller").with("type", "usb").with("model", "none"),
            nic(side, request),
            element("serial").with("type", "pty"),
            element("console").with("type", "pty"),
            control,
            element("memballoon").with("model", "none"),
        ])
        .of(shared)
}

fn nic(side: Side, request: &PairRequest) -> Element {
    let address = || element("mac").with("address", mac(side));
    let on_bridge = |driver: &str| {
        element("interface").with("type", "network").of([
            address(),
            element("source").with("network", NETWORK),
            element("model").with("type", "virtio"),
            element("driver").with("name", driver),
        ])
    };
    match &request.network {
        PairNetwork::Vswitch => on_bridge("qemu"),
        PairNetwork::Vhost => on_bridge("vhost"),
        PairNetwork::Functions { .. } => element("interface")
            .with("type", "network")
            .of([address(), element("source").with("network", NETWORK)]),
        PairNetwork::Devices { addresses, .. } => hostdev(addresses[place_of(side)]),
        PairNetwork::Wire | PairNetwork::SharedMemory => {
            let end = |name, port| element(name).with("address", "127.0.0.1").with("port", port);
            let [local, remote] = [WIRE_PORTS[place_of(side)], WIRE_PORTS[place_of(side.other())]];
            let source = end("source", remote).of([end("local", local)]);
            element("interface").with("type", "udp").of([
                address(),
                source,
                element("model").with("type", "virtio"),
            ])
        }
    }
}

/// The network of libvirt: a bridge without addresses, or the virtual functions of a link.
fn network(request: &PairRequest) -> Option<String> {
    let network = element("network").of([element("name").holding(NETWORK)]);
    let network = match &request.network {
        PairNetwork::Vswitch | PairNetwork::Vhost => network
            .of([element("bridge").with("name", "nm-lab0").with("stp", "off").with("delay", 0)]),
        PairNetwork::Functions { link, .. } => network.of([element("forward")
            .with("mode", "hostdev")
            .with("managed", "yes")
            .of([element("pf").with("dev", link)])]),
        _ => return None,
    };
    Some(network.to_text())
}

/// What the user runs.
fn commands(placement: &PairPlacement, request: &PairRequest) -> String {
    let folder = &request.folder;
    let mut lines: Vec<String> = placement.notes.iter().map(|note| format!("# {note}")).collect();
    if let PairNetwork::Functions { link, .. } = &request.network {
        lines.push("# Two virtual functions; the same file with 0 removes them.".to_string());
        lines.push(format!("echo 2 > /sys/class/net/{link}/device/sriov_numvfs"));
    }
    let has_network = network(request).is_some();
    if has_network {
        lines.push(format!("virsh net-create '{folder}/network.xml'"));
    }
    for side in SIDES {
        lines.push(format!("virsh create '{folder}/{}.xml'", side));
    }
    lines.push(format!(
        "# The agents of the guests answer on {folder}/client.ctl and {folder}/server.ctl."
    ));
    lines.push("# The end:".to_string());
    for side in SIDES {
        lines.push(format!("virsh destroy {NETWORK}-{}", side));
    }
    if has_network {
        lines.push(format!("virsh net-destroy {NETWORK}"));
    }
    lines.join("\n") + "\n"
}
