//! What a pod of Kubernetes can measure, and what its manifest must give for the rest.

use std::collections::BTreeSet;

use nm_sys::cpu_list;
use nm_sys::hostfiles::HostFiles;

use super::check::{Check, check};

/// Capabilities by the bits of `/proc/self/status`, and what each is for.
const CAPABILITIES: [(&str, u32, &str); 7] = [
    ("IPC_LOCK", 14, "locked memory"),
    ("NET_ADMIN", 12, "netns and bridge"),
    ("SYS_ADMIN", 21, "netns and bridge"),
    ("SYS_NICE", 23, "real-time priority"),
    ("NET_RAW", 13, "AF_XDP"),
    ("BPF", 39, "AF_XDP"),
    ("PERFMON", 38, "traces of the kernel"),
];

/// The checks of a pod; the one that costs most latency comes first.
pub(super) fn checks(files: &HostFiles) -> Vec<Check> {
    vec![
        own_cpus(files),
        class(files),
        network(files),
        capabilities(files),
        writable_settings(files),
        interrupts(files),
    ]
}

/// What gives a pod what one of the other checks misses.
pub(super) fn remedy(name: &str) -> Option<&'static str> {
    Some(match name {
        "network namespaces" => {
            "give the capabilities SYS_ADMIN and NET_ADMIN to the container (`generate kubernetes \
             --capability`); a plan of loopback needs none"
        }
        "two cores" => "give 2 or more whole CPUs as request and limit (`--pod-cpus`)",
        "locked memory" => "give the capability IPC_LOCK to the container",
        "no CPU quota" => {
            "on a node with the CPU manager `static`, let the kubelet leave out the quota: feature \
             DisableCPUQuotaWithExclusiveCPUs, in force by default since Kubernetes 1.33"
        }
        "real-time priority" => "give the capability SYS_NICE to the container",
        "AF_XDP" => "give the capabilities BPF, NET_ADMIN and NET_RAW to the container",
        "ssh client" => "measure between two pods by `generate kubernetes --pair`",
        _ => return None,
    })
}

/// CPUs are a pod's alone where they are as many as its limit, and not all of the node.
fn own_cpus(files: &HostFiles) -> Check {
    let allowed = files.text("/proc/self/status").and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        nm_sys::hostfiles::parse_list(line.trim())
    });
    let online = files.list("/sys/devices/system/cpu/online");
    let limit = nm_host::cpu_quota(files).and_then(|text| {
        let (quota, period) = text.split_once(' ')?;
        Some((quota.parse::<u64>().ok()?, period.parse::<u64>().ok()?))
    });
    let of_limit =
        |n: usize| limit.is_none_or(|(quota, period)| quota == period.saturating_mul(n as u64));
    let (is_own, found) = match (allowed, online) {
        (Some(cpus), Some(online)) => {
            let list = cpu_list::list(&cpus);
            let is_part = cpus.len() < online.len();
            match (is_part, of_limit(cpus.len())) {
                (true, true) => (true, format!("CPUs {list} of {}", online.len())),
                (true, false) => {
                    (false, format!("CPUs {list} are more than its limit: other pods share them"))
                }
                (false, _) => (false, format!("all {} CPUs, with all other pods", online.len())),
            }
        }
        _ => (false, "/proc or /sys does not show its CPUs".to_string()),
    };
    check(
        "CPUs of the pod",
        is_own,
        found,
        "tails: in a shared pool other pods interrupt each trial",
        "give whole CPUs as request and limit of all containers (`--pod-cpus`), on a node whose \
         kubelet has cpuManagerPolicy `static`",
    )
}

/// The class by the names of control groups, else by the adjustment of the OOM killer: the kubelet
/// gives -997 to Guaranteed and 1000 to BestEffort.
fn class(files: &HostFiles) -> Check {
    let groups = files.text("/proc/self/cgroup").unwrap_or_default();
    let score = files.value::<i32>("/proc/self/oom_score_adj");
    let is_named = groups.contains("kubepods");
    let class = match score {
        _ if groups.contains("besteffort") => Some("BestEffort"),
        _ if groups.contains("burstable") => Some("Burstable"),
        _ if is_named => Some("Guaranteed"),
        Some(..=-997) => Some("Guaranteed"),
        Some(1000) => Some("BestEffort"),
        Some(1..) => Some("Burstable"),
        _ => None,
    };
    check(
        "class of the pod",
        class == Some("Guaranteed"),
        class.unwrap_or("neither its control group nor its OOM score shows it"),
        "CPUs of its own: only the class Guaranteed gets them",
        "give all containers of the pod limits of CPU and memory that equal their requests",
    )
}

/// A device of the node, or one above it, has hardware or a lower device in this namespace. The
/// other end of a pod's virtual device is outside.
fn network(files: &HostFiles) -> Check {
    let routes = files.text("/proc/net/route").unwrap_or_default();
    let device = routes.lines().skip(1).find_map(|line| {
        let mut fields = line.split_whitespace();
        let (name, target) = (fields.next()?, fields.next()?);
        (target == "00000000").then(|| name.to_string())
    });
    let (is_direct, found) = match &device {
        None => (false, "no route leads out of the pod".to_string()),
        Some(name) => {
            let folder = format!("/sys/class/net/{name}");
            let is_direct = files.exists(&format!("{folder}/device"))
                || files.names(&folder).iter().any(|entry| entry.starts_with("lower_"));
            match is_direct {
                true => (true, format!("{name} is a device of the node")),
                false => (false, format!("{name} is virtual, and its other end is on the node")),
            }
        }
    };
    check(
        "network of the pod",
        is_direct,
        found,
        "figures of the network itself: a virtual device, its bridge and its filters cost each \
         packet some µs",
        "set hostNetwork (`--host-network`), or give a virtual function as a device (`--device` \
         and `--network`)",
    )
}

fn capabilities(files: &HostFiles) -> Check {
    let status = files.text("/proc/self/status").unwrap_or_default();
    let bits = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|text| u64::from_str_radix(text.trim(), 16).ok())
        .unwrap_or(0);
    let missing = || CAPABILITIES.iter().filter(|(_, bit, _)| bits & (1 << bit) == 0);
    let names: Vec<&str> = missing().map(|(name, ..)| *name).collect();
    let uses: BTreeSet<&str> = missing().map(|(.., meaning)| *meaning).collect();
    let found = match names.is_empty() {
        true => "all that a probe uses".to_string(),
        false => {
            let uses: Vec<&str> = uses.into_iter().collect();
            format!("without {}, there is no {}", names.join(", "), uses.join("; no "))
        }
    };
    check(
        "capabilities",
        names.is_empty(),
        found,
        "what an ordinary process may not do; ping-pong, stream, compute and jitter need none",
        "give those that a plan needs to the container, whose user is then root (`--capability`)",
    )
}

fn writable_settings(files: &HostFiles) -> Check {
    let mounts = files.text("/proc/self/mountinfo").unwrap_or_default();
    let is_writable = mounts.lines().any(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        fields.get(4) == Some(&"/sys")
            && fields.get(5).is_some_and(|options| options.split(',').any(|word| word == "rw"))
    });
    check(
        "writable /sys",
        is_writable,
        if is_writable { "mounted for writing" } else { "/sys is read-only" },
        "`tune`, and factors that change settings of the node",
        "change settings on the node; only a container with `privileged` could",
    )
}

fn interrupts(files: &HostFiles) -> Check {
    let lists = files.text("/proc/interrupts").is_some();
    let places = !files.names("/proc/irq").is_empty();
    let found = match (lists, places) {
        (true, true) => "/proc/interrupts and /proc/irq are readable",
        (true, false) => "/proc/irq is hidden: CPUs of interrupts are not known",
        (false, _) => "/proc/interrupts is hidden: nothing says which interrupt took a CPU",
    };
    check(
        "interrupts",
        lists && places,
        found,
        "causes of `jitter`, and what `audit` says of interrupts",
        "audit the node itself, or set procMount `Unmasked` with hostUsers `false`",
    )
}

#[cfg(test)]
mod tests {
    use nm_sys::hostfiles::RecordedFiles;

    use super::*;

    /// A pod as containerd makes it.
    fn tree(changes: &[(&str, &str)]) -> HostFiles {
        let route = "Iface\tDestination\tGateway\neth0\t00000000\t0101A8C0\n";
        let mut recorded = RecordedFiles::default();
        let usual = [
            ("/proc/self/status", "CapEff:\t0000000000000000\nCpus_allowed_list:\t0-15"),
            ("/sys/devices/system/cpu/online", "0-15"),
            ("/proc/self/cgroup", "0::/"),
            ("/proc/self/oom_score_adj", "1000"),
            ("/proc/net/route", route),
            ("/proc/self/mountinfo", "9 8 0:21 / /sys ro,nosuid - sysfs sysfs ro"),
        ];
        for (path, text) in usual.iter().chain(changes) {
            recorded.files.insert((*path).to_string(), (*text).to_string());
        }
        recorded.folders.insert("/sys/class/net/eth0".into(), vec!["mtu".into()]);
        HostFiles::recorded(recorded)
    }

    #[track_caller]
    fn found(files: &HostFiles, name: &str, is_ok: bool, text: &str) {
        let all = checks(files);
        let one = all.iter().find(|check| check.name == name).unwrap();
        assert_eq!((one.ok, one.remedy.is_none()), (is_ok, is_ok), "{one:?}");
        assert!(one.found.contains(text), "{one:?}");
    }

    #[test]
    fn a_pod_of_the_pool_can_measure_nothing_for_itself_and_says_what_to_give() {
        let files = tree(&[]);
        assert!(checks(&files).iter().all(|check| !check.ok), "{:?}", checks(&files));
        found(&files, "CPUs of the pod", false, "all 16 CPUs, with all other pods");
        found(&files, "class of the pod", false, "BestEffort");
        found(&files, "network of the pod", false, "eth0 is virtual");
        found(&files, "capabilities", false, "without IPC_LOCK, NET_ADMIN, SYS_ADMIN");
        found(&files, "writable /sys", false, "read-only");
        found(&files, "interrupts", false, "/proc/interrupts is hidden");
    }

    #[test]
    fn a_pod_with_cpus_and_a_network_of_its_own_lacks_nothing() {
        let files = tree(&[
            ("/proc/self/status", "CapEff:\t000001ffffffffff\nCpus_allowed_list:\t2-3,10-11"),
            ("/proc/self/cgroup", "0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-2.scope"),
            ("/sys/fs/cgroup/cpu.max", "400000 100000"),
            ("/sys/class/net/eth0/device", "x"),
            ("/proc/self/mountinfo", "9 8 0:21 / /sys rw,nosuid - sysfs sysfs rw"),
            ("/proc/interrupts", "CPU0"),
        ]);
        found(&files, "CPUs of the pod", true, "CPUs 2-3,10-11 of 16");
        found(&files, "class of the pod", true, "Guaranteed");
        found(&files, "network of the pod", true, "a device of the node");
        found(&files, "capabilities", true, "all that a probe uses");
        found(&files, "writable /sys", true, "for writing");
        found(&files, "interrupts", false, "/proc/irq is hidden");
    }

    /// Seven CPUs that are left for all others, by a limit of 2.
    #[test]
    fn the_rest_of_the_cpus_is_not_the_pods_own() {
        let files = tree(&[
            ("/proc/self/status", "CapEff:\t0\nCpus_allowed_list:\t0-6"),
            ("/sys/fs/cgroup/cpu.max", "200000 100000"),
        ]);
        found(&files, "CPUs of the pod", false, "more than its limit");
    }

    #[test]
    fn the_class_is_that_of_the_control_group_or_of_the_oom_score() {
        for (group, score, class) in [
            ("0::/", "-997", "Guaranteed"),
            ("0::/", "3", "Burstable"),
            ("0::/", "1000", "BestEffort"),
            ("0::/", "0", "neither"),
            ("1:cpu:/kubepods/burstable/pod7/a", "0", "Burstable"),
            ("1:cpu:/kubepods.slice/kubepods-besteffort.slice/x", "0", "BestEffort"),
            ("1:cpu:/kubepods/pod7/a", "0", "Guaranteed"),
        ] {
            let files = tree(&[("/proc/self/cgroup", group), ("/proc/self/oom_score_adj", score)]);
            found(&files, "class of the pod", class == "Guaranteed", class);
        }
    }
}
