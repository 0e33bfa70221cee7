//! Checks of this machine: what is available, what is missing, what it is needed for and how to get
//! it.

mod check;
mod pod;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

use nm_model::{Facts, GuestExecution, GuestSpec, Launcher};
use nm_sys::hostfiles::HostFiles;
use nm_sys::namespace::privileged;
use nm_vm::execution;
use nm_vm::qemu::Qemu;

use crate::environment::{self, try_isolation};
use crate::launcher;
pub use check::Check;
use check::check;

/// Checks this machine; the most important checks come first.
pub fn checks() -> Vec<Check> {
    let facts = nm_host::facts();
    let namespaces = Check { needed: true, ..namespaces() };
    let mut checks = vec![namespaces, two_cpus(&facts), clock(&facts), locked_memory(&facts)];
    checks.extend(disturbances(&facts));
    checks.extend(network(&facts));
    checks.extend(guests());
    checks.push(ssh());
    checks.push(af_xdp());
    checks.push(real_time());
    checks.extend(launchers());
    let files = HostFiles::default();
    match nm_host::is_pod(&files) {
        true => of_pod(&files, checks),
        false => checks,
    }
}

/// The checks of a pod before those of every machine, whose remedies are what its manifest gives.
/// A plan for pods needs none of them.
fn of_pod(files: &HostFiles, checks: Vec<Check>) -> Vec<Check> {
    let within = checks.into_iter().map(|check| {
        let of_manifest = pod::remedy(check.name).map(str::to_string);
        let remedy = check.remedy.map(|usual| of_manifest.unwrap_or(usual));
        Check { remedy, needed: false, ..check }
    });
    pod::checks(files).into_iter().chain(within).collect()
}

fn namespaces() -> Check {
    let meaning = "the environments netns and bridge";
    match (privileged(), try_isolation(!privileged())) {
        (true, Ok(())) => check("network namespaces", true, "created as root", meaning, ""),
        (false, Ok(())) => check(
            "network namespaces",
            true,
            "created by an ordinary user within a user namespace",
            meaning,
            "",
        ),
        (_, Err(failure)) => check(
            "network namespaces",
            false,
            failure.message,
            meaning,
            failure.hint.unwrap_or_else(|| "run as root".to_string()),
        ),
    }
}

fn two_cpus(facts: &Facts) -> Check {
    let allowed = &facts.cpu.allowed;
    let cores = allowed
        .iter()
        .filter(|cpu| {
            // Each core is counted by its first allowed CPU.
            let group = facts.cpu.siblings.iter().find(|group| group.contains(cpu));
            group.is_none_or(|group| group.iter().find(|c| allowed.contains(c)) == Some(*cpu))
        })
        .count();
    check(
        "two cores",
        cores >= 2,
        format!("{} CPUs on {cores} cores are allowed", allowed.len()),
        "a core for each end; on a single core the ends take turns, and no transfer between cores \
         is measured",
        "give this machine or container more CPUs, or check its cpuset and taskset",
    )
}

fn clock(facts: &Facts) -> Check {
    let clock = &facts.clock;
    let why = clock.fallback_reason.as_deref().map_or(String::new(), |why| format!(", {why}"));
    check(
        "clock",
        clock.fallback_reason.is_none(),
        format!("{}, {:.0} ns for a pair of timestamps{why}", clock.source, clock.pair_cost_ns),
        "timestamps without a system call",
        "use a machine with an invariant TSC and clocksource tsc; a guest needs the CPU model \
         host-passthrough",
    )
}

fn locked_memory(facts: &Facts) -> Check {
    // A million samples of 16 bytes at each end, and the same again for other memory.
    const WANTED_BYTES: u64 = 64 << 20;
    let limit = facts.memory.lock_limit_bytes;
    let is_capable = capable(rustix::thread::CapabilitySet::IPC_LOCK);
    check(
        "locked memory",
        is_capable || limit.is_none_or(|bytes| bytes >= WANTED_BYTES),
        match limit {
            _ if is_capable => "allowed without limit".to_string(),
            Some(bytes) => format!("{} KiB", bytes / 1024),
            None => "unlimited".to_string(),
        },
        "keeps samples in memory without page faults while measuring",
        "raise `ulimit -l` to 65536 or more (limits.conf: memlock), or run as root",
    )
}

fn capable(capability: rustix::thread::CapabilitySet) -> bool {
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(capability))
}

/// What may disturb a measurement.
fn disturbances(facts: &Facts) -> Vec<Check> {
    let load = facts.host.load_1m.unwrap_or(0.0);
    let mut checks = vec![
        check(
            "idle machine",
            load < 0.5 * f64::from(facts.cpu.online.max(1)),
            format!("load {load:.2} on {} CPUs", facts.cpu.online),
            "other load changes medians slightly and tails strongly",
            "stop other programs, or measure later",
        ),
        check(
            "no CPU quota",
            facts.cpu.quota.is_none(),
            facts.cpu.quota.clone().map_or("none".to_string(), |quota| format!("{quota} µs")),
            "with a quota the kernel stops a busy thread in each period",
            "start the container without --cpus, or set cpu.max to max",
        ),
    ];
    if let Some(governor) = &facts.cpu.governor {
        checks.push(check(
            "frequency governor",
            governor == "performance",
            governor.clone(),
            "other governors lower the clock frequency between messages",
            "cpupower frequency-set -g performance",
        ));
    }
    checks
}

fn network(facts: &Facts) -> Vec<Check> {
    let can_bind = |address: IpAddr| UdpSocket::bind((address, 0)).is_ok();
    let setting = |name: &str| facts.settings.get(name).cloned();
    let busy = |name: &str| setting(name).unwrap_or_else(|| "unknown".to_string());
    vec![
        check(
            "IPv6",
            can_bind(Ipv6Addr::LOCALHOST.into()),
            if can_bind(Ipv6Addr::LOCALHOST.into()) { "on loopback" } else { "no ::1" },
            "addresses such as [::1]; nothing else needs it",
            "boot without ipv6.disable=1, and sysctl -w net.ipv6.conf.all.disable_ipv6=0",
        ),
        multicast(),
        check(
            "busy polling",
            facts.settings.contains_key("net.core.busy_poll"),
            format!(
                "net.core.busy_read={} busy_poll={}",
                busy("net.core.busy_read"),
                busy("net.core.busy_poll")
            ),
            "the stacks *-busy-poll, which set it on their sockets; these settings need no change",
            "use a kernel with CONFIG_NET_RX_BUSY_POLL",
        ),
        check(
            "congestion control",
            facts.settings.contains_key("net.ipv4.tcp_congestion_control"),
            setting("net.ipv4.tcp_available_congestion_control")
                .unwrap_or_else(|| "unknown".to_string()),
            "algorithms that `stream --congestion` can use; they affect throughput",
            "mount /proc",
        ),
        check(
            "IP forwarding",
            true,
            setting("net.ipv4.ip_forward").unwrap_or_else(|| "unknown".to_string()),
            "not needed: the bridge environment forwards frames in its own namespace",
            "",
        ),
    ]
}

fn multicast() -> Check {
    let joined = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).and_then(|socket| {
        socket.join_multicast_v4(&Ipv4Addr::new(239, 255, 77, 77), &Ipv4Addr::LOCALHOST)
    });
    check(
        "multicast",
        joined.is_ok(),
        joined.map_or_else(|error| error.to_string(), |()| "a group on loopback".to_string()),
        "the stacks mcast-*",
        "use a kernel with CONFIG_IP_MULTICAST",
    )
}

fn af_xdp() -> Check {
    let meaning = "the stacks xdp-*: frames bypass the kernel's network stack";
    match nm_sys::xdp::unavailable_reason() {
        None => check("AF_XDP", true, "sockets and programs are allowed", meaning, ""),
        Some(reason) => {
            let (found, remedy) = reason.split_once("; ").unwrap_or((&reason, "run as root"));
            check("AF_XDP", false, found, meaning, remedy)
        }
    }
}

/// What reaches other hosts.
fn ssh() -> Check {
    let is_installed = launcher::in_path(nm_ssh::SSH).is_some();
    check(
        "ssh client",
        is_installed,
        if is_installed { "in PATH" } else { "not in PATH" },
        "the environment ssh, and `exchange run --hosts`: ends on other hosts",
        "install the package openssh-client",
    )
}

/// What the environments vm-* take.
fn guests() -> [Check; 3] {
    let meaning = "the environments vm-*: two virtual machines";
    let qemu = match Qemu::find() {
        Ok(qemu) => check("QEMU", true, format!("version {}", qemu.version), meaning, ""),
        Err(error) => parted("QEMU", &error.to_string(), meaning),
    };
    let kernel = match environment::guest_kernel(&GuestSpec::default()) {
        Ok(kernel) => check("guest kernel", true, kernel.release.clone(), meaning, ""),
        Err(reason) => parted("guest kernel", &reason.to_string(), meaning),
    };
    let kvm = execution::kvm();
    let is_real = kvm.class == Some(GuestExecution::RealKvm);
    let class = kvm.class.map_or("not usable".to_string(), |class| class.to_string());
    let kvm = check(
        "KVM",
        is_real,
        format!("{class}: {}", kvm.evidence),
        "guests whose figures count; without it they are emulated, shown as such and never judged",
        "use a machine with virtualization of its own, switched on in its firmware, and access to \
         /dev/kvm (group kvm)",
    );
    [qemu, kvm, kernel]
}

/// A check that failed for a reason of the form `what was found; what to do`.
fn parted(name: &'static str, reason: &str, meaning: &'static str) -> Check {
    let (found, remedy) = reason.split_once("; ").unwrap_or((reason, "see its guide"));
    check(name, false, found, meaning, remedy)
}

fn real_time() -> Check {
    let limit = HostFiles::default().text("/proc/self/limits").and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("Max realtime priority"))?;
        line.split_whitespace().next()?.parse::<u32>().ok()
    });
    let is_capable = capable(rustix::thread::CapabilitySet::SYS_NICE);
    check(
        "real-time priority",
        is_capable || limit.is_some_and(|limit| limit > 0),
        if is_capable { "allowed".to_string() } else { format!("up to {}", limit.unwrap_or(0)) },
        "`chrt -f 50 nearmetal …` by hand; nearmetal neither needs nor sets it",
        "raise `ulimit -r` (limits.conf: rtprio), or run as root",
    )
}

fn launchers() -> Vec<Check> {
    let of_launcher = |&launcher: &Launcher| {
        let (name, meaning) = (launcher.name(), launcher.row().purpose);
        match launcher::unavailable_reason(launcher).map(|reason| reason.to_string()) {
            None => check(name, true, "installed", meaning, ""),
            Some(reason) => parted(name, &reason, meaning),
        }
    };
    Launcher::ALL.iter().map(of_launcher).collect()
}

#[cfg(test)]
mod tests {
    use nm_sys::hostfiles::RecordedFiles;

    use super::*;

    #[test]
    fn only_failed_checks_have_a_remedy() {
        let checks = [multicast(), af_xdp(), real_time(), locked_memory(&nm_host::facts())];
        let network = network(&nm_host::facts());
        for check in
            checks.iter().chain(&[ssh()]).chain(&launchers()).chain(&network).chain(&guests())
        {
            assert_eq!(check.ok, check.remedy.is_none(), "{check:?}");
            assert!(!check.found.is_empty() && !check.meaning.is_empty(), "{check:?}");
        }
    }

    #[test]
    fn a_pod_gets_what_it_lacks_by_its_manifest() {
        let lacks = |name| check(name, false, "x", "y", "run as root");
        let usual = vec![lacks("locked memory"), lacks("KVM"), check("IPv6", true, "x", "y", "")];
        let of_pod = of_pod(&HostFiles::recorded(RecordedFiles::default()), usual);
        let remedy = |name| {
            of_pod.iter().find(|check| check.name == name).and_then(|check| check.remedy.clone())
        };
        assert!(remedy("locked memory").unwrap().contains("IPC_LOCK"));
        assert_eq!(remedy("KVM").as_deref(), Some("run as root"));
        assert_eq!(remedy("IPv6"), None);
        assert!(of_pod.iter().all(|check| !check.needed));
    }

    #[test]
    fn cores_are_counted_instead_of_threads() {
        let mut facts = Facts::default();
        facts.cpu.allowed = vec![0, 1];
        assert!(two_cpus(&facts).ok);
        facts.cpu.siblings = vec![vec![0, 1]];
        assert!(!two_cpus(&facts).ok);
        facts.cpu.allowed = vec![1, 2];
        assert!(two_cpus(&facts).ok);
    }
}
