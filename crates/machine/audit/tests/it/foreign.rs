//! Machines that nobody here has: trees of files are made from a few facts about each.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::sync::OnceLock;

use nm_audit::audit;
use nm_model::finding::Audit;
use nm_model::{FindingStatus, Snapshot};
use nm_place::{Refusal, Wish, choose};
use serde::Deserialize;

use crate::tree::Tree;

/// The facts. What is absent is not in the tree.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// A name for messages.
    pub name: String,
    /// What it is, and why it is here.
    #[allow(dead_code, reason = "for those who read the table")]
    about: String,
    /// An x86 processor of this model.
    model: Option<String>,
    /// Features of it, beside the usual ones.
    #[serde(default)]
    flags: String,
    /// Another processor, as /proc/cpuinfo shows it.
    cpuinfo: Option<String>,
    /// Who made it, by the firmware's tables.
    vendor: Option<String>,
    product: Option<String>,
    #[serde(default = "one")]
    sockets: u32,
    #[serde(default = "one")]
    nodes_per_socket: u32,
    /// Cores of a socket.
    cores: u32,
    #[serde(default = "one")]
    threads: u32,
    /// `blocks`: all first threads, then the second ones; `adjacent`: the threads of a core in
    /// turn; `interleaved`: as blocks, and neighbours are on different sockets.
    #[serde(default = "blocks")]
    order: String,
    /// Cores of one last-level cache; all of a node if absent.
    cores_per_cache: Option<u32>,
    /// The level of that cache.
    #[serde(default = "three")]
    level: u32,
    /// Cores of a slower type behind the others, or before them.
    #[serde(default)]
    small: u32,
    #[serde(default)]
    small_first: bool,
    #[serde(default = "one")]
    small_threads: u32,
    /// Whether the slower cores have a cache of their own.
    #[serde(default)]
    small_cache: bool,
    /// How the kernel shows types: `pmu`, `capacity` or `frequency`.
    #[serde(default)]
    types: String,
    max_khz: Option<u64>,
    small_khz: Option<u64>,
    isolated: Option<String>,
    cmdline: Option<String>,
    /// The first process.
    #[serde(default = "systemd")]
    first: String,
    /// Idle states: name, exit latency in µs, and `off`.
    #[serde(default)]
    idle: Vec<String>,
    #[serde(default)]
    files: BTreeMap<String, String>,
    #[serde(default)]
    present: Vec<String>,
    /// Policy and priority of threads.
    #[serde(default)]
    threads_of: BTreeMap<String, String>,
    #[serde(default)]
    nics: Vec<Nic>,
    workload: Option<toml::Table>,
    expect: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Nic {
    name: String,
    driver: String,
    /// Vendor and device.
    id: Option<String>,
    node: Option<i32>,
    /// PCI link: now and at most, GT/s and lanes.
    speed: Option<String>,
    width: Option<String>,
    /// The RDMA device of the same card.
    rdma: Option<String>,
    /// `ARPHRD_*`: 1 is Ethernet, 32 InfiniBand.
    #[serde(default = "one")]
    kind: u32,
}

fn one() -> u32 {
    1
}

fn three() -> u32 {
    3
}

fn blocks() -> String {
    "blocks".to_string()
}

fn systemd() -> String {
    "systemd".to_string()
}

/// A core: its CPUs, socket, node, the number of its cache, and whether it is of the slower type.
struct Core {
    cpus: Vec<u32>,
    socket: u32,
    node: u32,
    cache: u32,
    is_small: bool,
}

/// The snapshots of all machines, taken once for all tests.
pub fn snapshots() -> &'static [(Machine, Snapshot)] {
    static TAKEN: OnceLock<Vec<(Machine, Snapshot)>> = OnceLock::new();
    TAKEN.get_or_init(|| {
        let taken = machines().into_iter().map(|machine| {
            let snapshot = machine.snapshot();
            (machine, snapshot)
        });
        taken.collect()
    })
}

/// All machines of the table.
fn machines() -> Vec<Machine> {
    #[derive(Deserialize)]
    struct Table {
        machine: Vec<Machine>,
    }
    let text = include_str!("../foreign/machines.toml");
    let table: Table = toml::from_str(text).unwrap();
    table.machine
}

impl Machine {
    fn cpus_of(&self, index: u32) -> Vec<u32> {
        let all = self.sockets * self.cores;
        let thread = |number: u32| match self.order.as_str() {
            "adjacent" => index * self.threads + number,
            "interleaved" => {
                let (socket, core) = (index / self.cores, index % self.cores);
                number * all + core * self.sockets + socket
            }
            "blocks" => number * all + index,
            other => panic!("{}: order {other}", self.name),
        };
        let first = if self.small_first { self.small * self.small_threads } else { 0 };
        (0..self.threads).map(|number| first + thread(number)).collect()
    }

    fn topology(&self) -> Vec<Core> {
        let per_node = self.cores / self.nodes_per_socket;
        let per_cache = self.cores_per_cache.unwrap_or(per_node);
        let large = (0..self.sockets * self.cores).map(|index| {
            let (socket, core) = (index / self.cores, index % self.cores);
            let in_socket = (core / per_node).min(self.nodes_per_socket - 1);
            let node = socket * self.nodes_per_socket + in_socket;
            // A cache lies within a node.
            let cache = node * 1_000 + core.saturating_sub(in_socket * per_node) / per_cache;
            Core { cpus: self.cpus_of(index), socket, node, cache, is_small: false }
        });
        let first = if self.small_first { 0 } else { self.sockets * self.cores * self.threads };
        let small = (0..self.small).map(|index| {
            let threads = 0..self.small_threads;
            let cpus = threads.map(|thread| first + index * self.small_threads + thread).collect();
            let cache = if self.small_cache { 999 } else { 0 };
            Core { cpus, socket: 0, node: 0, cache, is_small: true }
        });
        large.chain(small).collect()
    }

    /// The tree, in the words of tests/trees/README.md.
    fn text(&self) -> String {
        let cores = self.topology();
        let mut text = String::from("include common\n");
        let mut add = |path: &str, content: &str| match content.contains('\n') {
            false => writeln!(text, "{path}: {content}").unwrap(),
            true => {
                writeln!(text, "{path}:").unwrap();
                content.lines().for_each(|line| writeln!(text, "| {line}").unwrap());
            }
        };
        let n_cpus: usize = cores.iter().map(|core| core.cpus.len()).sum();
        add("/sys/devices/system/cpu/online", &format!("0-{}", n_cpus - 1));
        add("/proc/1/comm", &self.first);
        add("/proc/cpuinfo", &self.processor());
        self.add_cores(&cores, &mut add);
        let vendor = self.vendor.iter().map(|text| ("sys_vendor", text));
        for (name, content) in vendor.chain(self.product.iter().map(|text| ("product_name", text)))
        {
            add(&format!("/sys/class/dmi/id/{name}"), content);
        }
        if let Some(isolated) = &self.isolated {
            add("/sys/devices/system/cpu/isolated", isolated);
        }
        if let Some(words) = &self.cmdline {
            add("/proc/cmdline", words);
        }
        self.files.iter().for_each(|(path, content)| add(path, content));
        for (thread, both) in &self.threads_of {
            let (policy, priority) = both.split_once(' ').unwrap();
            let zeros = "0 ".repeat(36);
            add(&format!("/proc/{thread}/stat"), &format!("1 (x) S {zeros}{priority} {policy} 0"));
        }
        for (number, nic) in self.nics.iter().enumerate() {
            nic.add(number, &mut text);
        }
        self.present.iter().for_each(|path| writeln!(text, "+ {path}").unwrap());
        if let Some(workload) = &self.workload {
            writeln!(text, "workload: {}", serde_json::to_string(workload).unwrap()).unwrap();
        }
        text
    }

    fn processor(&self) -> String {
        match (&self.model, &self.cpuinfo) {
            (Some(model), None) => {
                let flags = format!("fpu tsc constant_tsc nonstop_tsc {}", self.flags);
                format!("processor : 0\nmodel name : {model}\nflags : {flags}")
            }
            (None, Some(text)) => text.clone(),
            _ => panic!("{}: model or cpuinfo", self.name),
        }
    }

    fn add_cores(&self, cores: &[Core], add: &mut impl FnMut(&str, &str)) {
        let list = |cpus: Vec<u32>| nm_sys::cpu_list::list(&cpus);
        let those = |is_meant: &dyn Fn(&Core) -> bool| {
            let meant = cores.iter().filter(|core| is_meant(core));
            list(meant.flat_map(|core| core.cpus.clone()).collect())
        };
        if self.types == "pmu" {
            add("/sys/devices/cpu_core/cpus", &those(&|core| !core.is_small));
            add("/sys/devices/cpu_atom/cpus", &those(&|core| core.is_small));
        }
        let last = cores.iter().map(|core| core.node).max().unwrap_or_default();
        for node in 0..=last {
            let path = format!("/sys/devices/system/node/node{node}/cpulist");
            add(&path, &those(&|core| core.node == node));
        }
        for core in cores {
            for cpu in &core.cpus {
                let folder = format!("/sys/devices/system/cpu/cpu{cpu}");
                let mut file =
                    |name: &str, content: &str| add(&format!("{folder}/{name}"), content);
                file("topology/thread_siblings_list", &list(core.cpus.clone()));
                file("topology/physical_package_id", &core.socket.to_string());
                let shared = those(&|other| other.cache == core.cache);
                file(&format!("cache/index{}/shared_cpu_list", self.level), &shared);
                if self.types == "capacity" {
                    file("cpu_capacity", if core.is_small { "446" } else { "1024" });
                }
                let khz = if core.is_small { self.small_khz } else { self.max_khz };
                if let Some(khz) = khz {
                    file("cpufreq/cpuinfo_max_freq", &khz.to_string());
                }
                for (number, state) in self.idle.iter().enumerate() {
                    let words: Vec<&str> = state.split(' ').collect();
                    let off = if words.get(2).is_some() { "1" } else { "0" };
                    for (name, content) in
                        [("name", words[0]), ("latency", words[1]), ("disable", off)]
                    {
                        file(&format!("cpuidle/state{number}/{name}"), content);
                    }
                }
            }
        }
    }

    /// The snapshot of its tree.
    fn snapshot(&self) -> Snapshot {
        // Many small files: in memory where there is such a place.
        let memory = Path::new("/dev/shm");
        let in_memory = memory.is_dir().then(|| tempfile::tempdir_in(memory).ok()).flatten();
        let root = in_memory.unwrap_or_else(|| tempfile::tempdir().unwrap());
        let mut tree = Tree::default();
        tree.add_text(&self.text());
        // The common tree has a thread of the kernel, which a container does not see.
        if self.first != "systemd" {
            tree.files.retain(|path, _| !path.starts_with("/proc/2/"));
        }
        tree.snapshot(root.path())
    }
}

impl Nic {
    fn add(&self, number: usize, text: &mut String) {
        let folder = format!("/sys/class/net/{}", self.name);
        let bus = format!("0000:{:02x}:00.0", number + 1);
        let mut line = |line: String| writeln!(text, "{line}").unwrap();
        // A device that is no piece of hardware has none.
        if self.id.is_some() || self.driver == "virtio_net" {
            line(format!("@ {folder}/device -> {bus}"));
        }
        line(format!("@ {folder}/device/driver -> {}", self.driver));
        line(format!("{folder}/operstate: up"));
        line(format!("{folder}/type: {}", self.kind));
        if let Some((vendor, device)) = self.id.as_ref().and_then(|id| id.split_once(':')) {
            line(format!("{folder}/device/vendor: 0x{vendor}"));
            line(format!("{folder}/device/device: 0x{device}"));
        }
        if let Some(node) = self.node {
            line(format!("{folder}/device/numa_node: {node}"));
        }
        for (both, name, unit) in
            [(&self.speed, "link_speed", " GT/s PCIe"), (&self.width, "link_width", "")]
        {
            if let Some((now, most)) = both.as_ref().and_then(|both| both.split_once(' ')) {
                line(format!("{folder}/device/current_{name}: {now}{unit}"));
                line(format!("{folder}/device/max_{name}: {most}{unit}"));
            }
        }
        if let Some(rdma) = &self.rdma {
            line(format!("@ /sys/class/infiniband/{rdma}/device -> {bus}"));
        }
    }
}

/// `fail high`, `pass`.
fn said(found: &Audit, id: &str) -> String {
    let finding = found.findings.iter().find(|finding| finding.id == id);
    let finding = finding.unwrap_or_else(|| panic!("there is no check {id}"));
    match finding.status {
        FindingStatus::Fail => format!("{} {}", finding.status, finding.severity),
        status => status.to_string(),
    }
}

#[test]
fn machines_of_others_have_the_findings_that_they_must_have() {
    let all = snapshots();
    assert!(all.len() >= 40, "{} machines", all.len());
    let mut wrong = vec![];
    for (machine, snapshot) in all {
        let found = audit(snapshot);
        assert!(machine.expect.contains_key("layer"), "{}", machine.name);
        for (id, expected) in &machine.expect {
            let is = if id == "layer" { found.machine.layer.clone() } else { said(&found, id) };
            if is != *expected {
                wrong.push(format!("{}: {id} is `{is}`, not `{expected}`", machine.name));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

/// Where nothing tells whether there is a hypervisor, no check claims that there is or is none.
#[test]
fn no_check_of_guests_decides_where_the_layer_is_unknown() {
    let mut n_unknown = 0;
    let is_unknown = |one: &&(Machine, Snapshot)| one.0.expect["layer"] == "unknown layer";
    for (machine, snapshot) in snapshots().iter().filter(is_unknown) {
        n_unknown += 1;
        for finding in audit(snapshot).findings {
            let is_of_guests = finding.id.starts_with("guest.");
            let decides = matches!(finding.status, FindingStatus::Pass | FindingStatus::Fail);
            assert!(!(is_of_guests && decides), "{}: {}", machine.name, finding.id);
        }
    }
    assert!(n_unknown >= 2);
}

/// The engine's choice on each machine: siblings apart, the system's cache apart where it can be.
#[test]
fn each_machine_of_others_has_a_place_or_a_reason() {
    for (machine, snapshot) in snapshots() {
        let topology = nm_host::topology::read(&nm_host::snapshot::files(snapshot));
        for cores in [1, 2, 4, 8] {
            let wish = Wish { cores, ..Wish::default() };
            let chosen = match choose(&topology, &wish) {
                Ok(chosen) => chosen,
                Err(Refusal::TooFewCores { cores: has, wanted, .. }) => {
                    assert!(has <= wanted, "{}", machine.name);
                    continue;
                }
                Err(error) => panic!("{}: {error}", machine.name),
            };
            assert_eq!(chosen.hot.len(), cores, "{}", machine.name);
            assert!(!chosen.housekeeping.is_empty() && !chosen.reasons.is_empty());
            let fast = topology.fastest();
            let is_slow = chosen.hot.iter().any(|cpu| !fast.contains(cpu));
            let n_fast = topology.cores.iter().filter(|core| core.class == Some(0)).count();
            assert!(!is_slow || n_fast <= cores, "{}: {chosen:?}", machine.name);
        }
    }
}
