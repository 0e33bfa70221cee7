//! A domain of libvirt: the same guest, for a host without OpenStack.

use crate::layout::PciAddress;
use crate::place::Placement;
use crate::request::Request;
use crate::xml::{Element, element};
use nm_sys::cpu_list::list as cpu_list;

/// The domain's XML.
pub fn domain(placement: &Placement, request: &Request) -> String {
    let memory_kib = request.memory_bytes >> 10;
    let kib = |name| element(name).with("unit", "KiB").holding(memory_kib);
    let domain = element("domain").with("type", "kvm").of([
        element("name").holding(&request.name),
        kib("memory"),
        kib("currentMemory"),
        memory_backing(request),
        element("vcpu").with("placement", "static").holding(request.vcpus),
        element("iothreads").holding(1),
        cpu_tune(placement, request),
        element("numatune")
            .of([element("memory").with("mode", "strict").with("nodeset", placement.node)]),
        element("os").of([
            element("type").with("arch", "x86_64").with("machine", "q35").holding("hvm"),
            element("boot").with("dev", "hd"),
        ]),
        features(),
        cpu(placement, request),
        clock(),
        element("pm").of([
            element("suspend-to-mem").with("enabled", "no"),
            element("suspend-to-disk").with("enabled", "no"),
        ]),
        devices(placement, request),
    ]);
    format!("{}{}", comment(placement), domain.to_text())
}

/// What the reader must do on the host, as a comment: numbers only, so it needs no escaping.
fn comment(placement: &Placement) -> String {
    let (node, nic) = (placement.node, placement.nic.address);
    let mut lines = vec![
        format!("Every vCPU has a core of its own on node {node}, where {nic} is."),
        "Keep the host's own work from these CPUs: a cpuset of its own, or isolcpus.".into(),
    ];
    if !placement.vcpu_siblings.is_empty() {
        let list = cpu_list(&placement.vcpu_siblings);
        lines.push(format!("The other threads of these cores must stay idle: chcpu -d {list}"));
    }
    format!("<!--\n  {}\n-->\n", lines.join("\n  "))
}

fn memory_backing(request: &Request) -> Element {
    let page = element("page").with("size", request.page_size.kib()).with("unit", "KiB");
    element("memoryBacking").of([
        element("hugepages").of([page]),
        element("nosharepages"),
        element("locked"),
    ])
}

fn cpu_tune(placement: &Placement, request: &Request) -> Element {
    let pin =
        |(vcpu, cpu): (usize, &u32)| element("vcpupin").with("vcpu", vcpu).with("cpuset", cpu);
    let shared = cpu_list(&placement.shared);
    let realtime = request.realtime.then(|| {
        // vCPU 0 stays an ordinary thread.
        let vcpus: Vec<u32> = (1..request.vcpus).collect();
        element("vcpusched")
            .with("vcpus", cpu_list(&vcpus))
            .with("scheduler", "fifo")
            .with("priority", 1)
    });
    element("cputune")
        .of(placement.vcpus.iter().enumerate().map(pin))
        .of([
            element("emulatorpin").with("cpuset", &shared),
            element("iothreadpin").with("iothread", 1).with("cpuset", &shared),
        ])
        .of(realtime)
}

pub(crate) fn features() -> Element {
    element("features").of([
        element("acpi"),
        element("apic"),
        element("kvm").of([element("hint-dedicated").with("state", "on")]),
        element("pmu").with("state", "off"),
    ])
}

fn cpu(placement: &Placement, request: &Request) -> Element {
    let topology = element("topology")
        .with("sockets", 1)
        .with("dies", 1)
        .with("cores", request.vcpus)
        .with("threads", 1);
    let vcpus: Vec<u32> = (0..request.vcpus).collect();
    let cell = element("cell")
        .with("id", 0)
        .with("cpus", cpu_list(&vcpus))
        .with("memory", request.memory_bytes >> 10)
        .with("unit", "KiB");
    let invariant_tsc = placement
        .has_invariant_tsc
        .then(|| element("feature").with("policy", "require").with("name", "invtsc"));
    element("cpu")
        .with("mode", "host-passthrough")
        .with("check", "none")
        .with("migratable", "off")
        .of([topology, element("cache").with("mode", "passthrough")])
        .of(invariant_tsc)
        .of([element("numa").of([cell])])
}

pub(crate) fn clock() -> Element {
    let timer = |name: &str| element("timer").with("name", name);
    element("clock").with("offset", "utc").of([
        timer("tsc").with("present", "yes").with("mode", "native"),
        timer("kvmclock").with("present", "yes"),
        timer("hpet").with("present", "no"),
        timer("pit").with("tickpolicy", "delay"),
        timer("rtc").with("tickpolicy", "catchup"),
    ])
}

fn devices(placement: &Placement, request: &Request) -> Element {
    element("devices").of(request.disk.as_deref().map(disk)).of([
        element("controller").with("type", "usb").with("model", "none"),
        hostdev(placement.nic.address),
        element("serial").with("type", "pty"),
        element("console").with("type", "pty"),
        element("memballoon").with("model", "none"),
    ])
}

fn disk(path: &str) -> Element {
    let format = if path.ends_with(".qcow2") { "qcow2" } else { "raw" };
    element("disk").with("type", "file").with("device", "disk").of([
        element("driver")
            .with("name", "qemu")
            .with("type", format)
            .with("cache", "none")
            .with("io", "native")
            .with("iothread", 1),
        element("source").with("file", path),
        element("target").with("dev", "vda").with("bus", "virtio"),
    ])
}

pub(crate) fn hostdev(address: PciAddress) -> Element {
    let PciAddress { domain, bus, slot, function } = address;
    let address = element("address")
        .with("domain", format!("0x{domain:04x}"))
        .with("bus", format!("0x{bus:02x}"))
        .with("slot", format!("0x{slot:02x}"))
        .with("function", format!("0x{function}"));
    element("hostdev")
        .with("mode", "subsystem")
        .with("type", "pci")
        .with("managed", "yes")
        .of([element("source").of([address])])
}
