//! A machine as the checks see it: the files and calls of its snapshot, and what follows from them.

use std::collections::BTreeSet;

use nm_model::finding::Evidence;
use nm_model::snapshot::LinkCalls;
use nm_model::{Facts, Snapshot};
use nm_place::Topology;
use nm_sys::hostfiles::{HostFiles, parse_list};

use crate::observed::{evidence, missing};
use nm_sys::cpu_list;

/// What the kernel runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layer {
    /// The hardware.
    Metal,
    /// A hypervisor.
    Guest,
    /// Nothing in the snapshot says.
    Unknown,
}

/// A machine with its snapshot.
#[derive(Debug)]
pub struct Machine<'a> {
    /// The snapshot.
    pub snapshot: &'a Snapshot,
    /// Facts, from the same files.
    pub facts: Facts,
    /// What the kernel runs on.
    pub layer: Layer,
    /// The cores.
    pub topology: Topology,
    /// CPUs that are online.
    pub online: Vec<u32>,
    /// CPUs of the workload's hot threads.
    pub hot: Vec<u32>,
    /// Why these.
    hot_reason: &'static str,
    /// Links of the workload.
    pub links: Vec<&'a str>,
    /// Paths of which only the existence is known.
    present: BTreeSet<&'a str>,
}

impl<'a> Machine<'a> {
    /// The machine of a snapshot.
    pub fn new(snapshot: &'a Snapshot) -> Machine<'a> {
        let files = nm_host::snapshot::files(snapshot);
        let mut machine = Machine {
            snapshot,
            layer: layer(snapshot, &files),
            facts: nm_host::read_from(&files),
            topology: nm_host::topology::read(&files),
            online: vec![],
            hot: vec![],
            hot_reason: "",
            links: vec![],
            present: snapshot.present.iter().map(String::as_str).collect(),
        };
        machine.online = machine.list("/sys/devices/system/cpu/online").unwrap_or_else(|| {
            let text = machine.text("/proc/cpuinfo").unwrap_or_default();
            let lines = text.lines().filter(|line| line.starts_with("processor"));
            lines.filter_map(|line| line.rsplit(':').next()?.trim().parse().ok()).collect()
        });
        (machine.hot, machine.hot_reason) = machine.hot_cpus();
        machine.links = machine.workload_links();
        machine
    }

    /// CPUs of the workload that can be kept free of everything else: where it has all that there
    /// are, all but the first, as the kernel needs one. Where it has not chosen its CPUs, those of
    /// the fastest type.
    pub fn separable(&self) -> Vec<u32> {
        let is_all = self.online.iter().all(|cpu| self.hot.contains(cpu));
        let first = self.online.first().filter(|_| is_all);
        let all: Vec<u32> = self.hot.iter().copied().filter(|cpu| Some(cpu) != first).collect();
        let fastest = self.topology.fastest();
        let fast: Vec<u32> = all.iter().copied().filter(|cpu| fastest.contains(cpu)).collect();
        if self.knows_hot() || fast.is_empty() { all } else { fast }
    }

    fn hot_cpus(&self) -> (Vec<u32>, &'static str) {
        let workload = &self.snapshot.workload;
        if !workload.cpus.is_empty() {
            return (workload.cpus.clone(), "those of the workload");
        }
        let isolated = self.isolated();
        if !isolated.is_empty() {
            return (isolated, "isolated from the scheduler");
        }
        match self.facts.cpu.allowed.is_empty() {
            false => (self.facts.cpu.allowed.clone(), "all that this process may use"),
            true => (self.online.clone(), "all that are online"),
        }
    }

    /// Whether the CPUs of the workload are known, and not only all that there are.
    pub fn knows_hot(&self) -> bool {
        !self.snapshot.workload.cpus.is_empty() || !self.isolated().is_empty()
    }

    /// The CPUs of the workload and why these.
    pub fn hot_text(&self) -> String {
        match self.hot.is_empty() {
            true => "none are known".to_string(),
            false => format!("{} ({})", cpu_list::list(&self.hot), self.hot_reason),
        }
    }

    /// CPUs that are isolated by the command line or a control group.
    pub fn isolated(&self) -> Vec<u32> {
        self.list("/sys/devices/system/cpu/isolated").unwrap_or_default()
    }

    /// Links that the user named, else all devices that are up.
    fn workload_links(&self) -> Vec<&'a str> {
        let named = &self.snapshot.workload.links;
        if !named.is_empty() {
            return named.iter().map(String::as_str).collect();
        }
        let by_calls = self.snapshot.calls.links.iter().flatten();
        let by_calls: Vec<&str> = by_calls
            .filter(|(name, link)| {
                let is_device = link.bus.is_some()
                    || self.text(&format!("/sys/class/net/{name}/device/driver")).is_some();
                let is_device = is_device || self.symlink(&net(name, "device")).is_some();
                link.up && is_device && name.as_str() != "lo"
            })
            .map(|(name, _)| name.as_str())
            .collect();
        if self.snapshot.calls.links.is_some() {
            return by_calls;
        }
        let names = self.names("/sys/class/net").iter().map(String::as_str);
        names
            .filter(|name| self.symlink(&net(name, "device")).is_some())
            .filter(|name| self.text(&net(name, "operstate")) != Some("down"))
            .collect()
    }

    /// Whether it is known which links there are: each machine has at least `lo`.
    pub fn knows_links(&self) -> bool {
        self.snapshot.calls.links.is_some() || !self.names("/sys/class/net").is_empty()
    }

    /// Whether anything below a folder was read. If not, the absence of a file in it means nothing.
    pub fn covers(&self, folder: &str) -> bool {
        let begins = |path: &str| path.starts_with(folder);
        self.snapshot.files.keys().any(|path| begins(path))
            || self.snapshot.folders.keys().any(|path| begins(path))
            || self.snapshot.symlinks.keys().any(|path| begins(path))
            || self.present.iter().any(|path| begins(path))
    }

    /// `KVM guest`, `bare metal`, with the container if there is one.
    pub fn layer_text(&self) -> String {
        let hypervisor = self.hypervisor();
        let layer = match self.layer {
            Layer::Metal => "bare metal".to_string(),
            Layer::Guest => match hypervisor {
                None | Some("unknown") => "unknown hypervisor's guest".to_string(),
                Some(name) => format!("{name} guest"),
            },
            Layer::Unknown => "unknown layer".to_string(),
        };
        match &self.facts.virtualization.container {
            Some(container) => format!("{layer}, in a container ({container})"),
            None => layer,
        }
    }

    /// The hypervisor below.
    pub fn hypervisor(&self) -> Option<&str> {
        let by_cpuid = self.snapshot.calls.cpuid.as_ref().and_then(|c| c.hypervisor.as_deref());
        by_cpuid.or(self.facts.virtualization.hypervisor.as_deref())
    }

    /// Whether this is a guest.
    pub fn is_guest(&self) -> bool {
        self.layer == Layer::Guest
    }

    /// The content of a file; absent if it was not read or is empty.
    pub fn text(&self, path: &str) -> Option<&'a str> {
        self.snapshot.files.get(path).map(String::as_str).filter(|text| !text.is_empty())
    }

    /// The content of a file in the second sample.
    pub fn second(&self, path: &str) -> Option<&'a str> {
        self.snapshot.second.as_ref()?.files.get(path).map(String::as_str)
    }

    /// The number in a file.
    pub fn number(&self, path: &str) -> Option<i64> {
        self.text(path)?.trim().parse().ok()
    }

    /// The list of CPUs in a file. A file that is there and empty is an empty list.
    pub fn list(&self, path: &str) -> Option<Vec<u32>> {
        parse_list(self.snapshot.files.get(path)?)
    }

    /// Names in a folder that matched a pattern.
    pub fn names(&self, path: &str) -> &'a [String] {
        self.snapshot.folders.get(path).map_or(&[], Vec::as_slice)
    }

    /// The last component of a symbolic link's target.
    pub fn symlink(&self, path: &str) -> Option<&'a str> {
        self.snapshot.symlinks.get(path).map(String::as_str)
    }

    /// Whether a path is there.
    pub fn has(&self, path: &str) -> bool {
        self.snapshot.files.contains_key(path)
            || self.snapshot.symlinks.contains_key(path)
            || self.present.contains(path)
    }

    /// Paths that are there and begin so.
    pub fn present_below(&self, prefix: &str) -> Vec<&'a str> {
        let all = self.snapshot.present.iter().map(String::as_str);
        all.filter(|path| path.starts_with(prefix)).collect()
    }

    /// What ioctls say of a link.
    pub fn link(&self, name: &str) -> Option<&'a LinkCalls> {
        self.snapshot.calls.links.as_ref()?.get(name)
    }

    /// The driver of a link.
    pub fn driver(&self, name: &str) -> Option<&'a str> {
        let by_call = self.link(name).and_then(|link| link.driver.as_deref());
        by_call.or_else(|| self.symlink(&net(name, "device/driver")))
    }

    /// Words of the kernel's command line.
    pub fn command_line(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.text("/proc/cmdline").unwrap_or_default().split_whitespace()
    }

    /// The value of a parameter of the kernel's command line; the last one counts.
    pub fn parameter(&self, name: &str) -> Option<&'a str> {
        let values = self.command_line().filter_map(|word| {
            let (one, value) = word.split_once('=').unwrap_or((word, ""));
            (one == name).then_some(value)
        });
        values.last()
    }

    /// Evidence of a file, whether or not it could be read.
    pub fn evidence(&self, path: &str, parsed: impl Into<String>) -> Evidence {
        match self.snapshot.files.get(path) {
            Some(text) => evidence(path, text, parsed),
            None => missing(path, self.why_missing(path)),
        }
    }

    /// Why a file is not in the snapshot.
    pub fn why_missing(&self, path: &str) -> String {
        match self.snapshot.unreadable.get(path) {
            Some(reason) => format!("could not be read: {reason}"),
            None => "not there".to_string(),
        }
    }

    /// Process ids with the names of the processes; empty if none is visible.
    pub fn processes(&self) -> impl Iterator<Item = (u32, &'a str)> + use<'a> {
        let files = self.snapshot.files.range("/proc/0".to_string().."/proc/:".to_string());
        files.filter_map(|(path, text)| {
            let pid = path.strip_prefix("/proc/")?.strip_suffix("/comm")?.parse().ok()?;
            Some((pid, text.as_str()))
        })
    }

    /// Whether processes of others are visible: process 1 and more than a handful.
    pub fn sees_processes(&self) -> bool {
        self.processes().any(|(_, name)| name == "kthreadd")
    }

    /// The process of a name.
    pub fn process(&self, name: &str) -> Option<u32> {
        self.processes().find(|(_, one)| *one == name).map(|(pid, _)| pid)
    }

    /// A line of `/proc/PID/status` or a thread's, without its label.
    pub fn status_line(&self, path: &str, label: &str) -> Option<&'a str> {
        let lines = self.text(path)?.lines();
        lines.filter_map(|line| line.strip_prefix(label)).map(str::trim).next()
    }

    /// The NUMA node of a link's device: by sysfs, by its bus address, absent if there is no file.
    pub fn numa_node(&self, link: &str) -> Option<(String, i64)> {
        let direct = net(link, "device/numa_node");
        let by_bus = self
            .link(link)
            .and_then(|link| link.bus.as_ref())
            .map(|bus| format!("/sys/bus/pci/devices/{bus}/numa_node"));
        let paths = std::iter::once(direct).chain(by_bus);
        paths.into_iter().find_map(|path| Some((path.clone(), self.number(&path)?)))
    }

    /// The seconds between the two samples.
    pub fn interval_s(&self) -> Option<f64> {
        let interval = self.snapshot.second.as_ref()?.interval_s;
        (interval > 0.0).then_some(interval)
    }
}

/// The path of a link's file.
pub fn net(link: &str, file: &str) -> String {
    format!("/sys/class/net/{link}/{file}")
}

/// The path of a CPU's file.
pub fn cpu(cpu: u32, file: &str) -> String {
    format!("/sys/devices/system/cpu/cpu{cpu}/{file}")
}

fn layer(snapshot: &Snapshot, files: &HostFiles) -> Layer {
    let is_metal = match &snapshot.calls.cpuid {
        Some(cpuid) => Some(!cpuid.has_hypervisor),
        None => nm_host::is_metal(files),
    };
    match is_metal {
        Some(true) => Layer::Metal,
        Some(false) => Layer::Guest,
        None => Layer::Unknown,
    }
}
