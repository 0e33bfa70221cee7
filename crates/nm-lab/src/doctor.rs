//! What works on this machine, what is missing, what that means and how to get it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

use nm_model::{Facts, Launcher};
use nm_sys::hostfiles::HostFiles;
use nm_sys::namespace::privileged;

use crate::environment::try_isolation;
use crate::launcher;

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// Short name.
    pub name: &'static str,
    /// Whether it is there.
    pub ok: bool,
    /// What was found, as a clause.
    pub found: String,
    /// What it is good for.
    pub meaning: &'static str,
    /// How to get it; absent where it is there, or cannot be had here.
    pub remedy: Option<String>,
}

/// A check whose remedy is said only where it is needed.
fn check(
    name: &'static str,
    ok: bool,
    found: impl Into<String>,
    meaning: &'static str,
    remedy: impl Into<String>,
) -> Check {
    let remedy = (!ok).then(|| remedy.into());
    Check { name, ok, found: found.into(), meaning, remedy }
}

/// Looks at this machine, most important first.
pub fn checks() -> Vec<Check> {
    let facts = nm_host::facts();
    let mut checks = vec![namespaces(), two_cpus(&facts), clock(&facts), locked_memory(&facts)];
    checks.extend(quiet(&facts));
    checks.extend(network(&facts));
    checks.push(af_xdp());
    checks.push(real_time());
    checks.extend(launchers());
    checks
}

fn namespaces() -> Check {
    let meaning = "the environments netns and bridge";
    match (privileged(), try_isolation(!privileged())) {
        (true, Ok(())) => check("network namespaces", true, "made as root", meaning, ""),
        (false, Ok(())) => check(
            "network namespaces",
            true,
            "made by an ordinary user within a user namespace",
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
            // The first allowed CPU of each core stands for it.
            let group = facts.cpu.siblings.iter().find(|group| group.contains(cpu));
            group.is_none_or(|group| group.iter().find(|c| allowed.contains(c)) == Some(*cpu))
        })
        .count();
    check(
        "two cores",
        cores >= 2,
        format!("{} CPUs on {cores} cores may be used", allowed.len()),
        "each end on a core of its own; with one core the ends take turns and no transfer between \
         cores is measured",
        "give this machine or container more CPUs, or look at its cpuset and at taskset",
    )
}

fn clock(facts: &Facts) -> Check {
    let clock = &facts.clock;
    let why = clock.fallback_reason.as_deref().map_or(String::new(), |why| format!(", {why}"));
    check(
        "clock",
        clock.fallback_reason.is_none(),
        format!("{}, {:.0} ns for a pair of time stamps{why}", clock.source, clock.pair_cost_ns),
        "time stamps without a call into the kernel",
        "use a machine with an invariant TSC and clocksource tsc; a guest needs the CPU model \
         host-passthrough",
    )
}

fn locked_memory(facts: &Facts) -> Check {
    // A million samples of 16 bytes at each end, and as much again for the rest.
    const WANTED_BYTES: u64 = 64 << 20;
    let limit = facts.memory.lock_limit_bytes;
    let capable = capable(rustix::thread::CapabilitySet::IPC_LOCK);
    check(
        "locked memory",
        capable || limit.is_none_or(|bytes| bytes >= WANTED_BYTES),
        match limit {
            _ if capable => "allowed without limit".to_string(),
            Some(bytes) => format!("{} KiB", bytes / 1024),
            None => "unlimited".to_string(),
        },
        "samples are kept in memory that cannot fault while measuring",
        "raise `ulimit -l` to 65536 or more (limits.conf: memlock), or run as root",
    )
}

fn capable(capability: rustix::thread::CapabilitySet) -> bool {
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(capability))
}

/// What may disturb a measurement.
fn quiet(facts: &Facts) -> Vec<Check> {
    let load = facts.host.load_1m.unwrap_or(0.0);
    let mut checks = vec![
        check(
            "idle machine",
            load < 0.5 * f64::from(facts.cpu.online.max(1)),
            format!("load {load:.2} on {} CPUs", facts.cpu.online),
            "other work moves medians little and tails much",
            "stop other work, or measure later",
        ),
        check(
            "no CPU quota",
            facts.cpu.quota.is_none(),
            facts.cpu.quota.clone().map_or("none".to_string(), |quota| format!("{quota} µs")),
            "a quota stops a busy thread in each period",
            "start the container without --cpus, or set cpu.max to max",
        ),
    ];
    if let Some(governor) = &facts.cpu.governor {
        checks.push(check(
            "frequency governor",
            governor == "performance",
            governor.clone(),
            "other governors let the clock fall between messages",
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
            "the stacks *-busy-poll ask for it on their own sockets; these settings may stay",
            "use a kernel with CONFIG_NET_RX_BUSY_POLL",
        ),
        check(
            "congestion control",
            facts.settings.contains_key("net.ipv4.tcp_congestion_control"),
            setting("net.ipv4.tcp_available_congestion_control")
                .unwrap_or_else(|| "unknown".to_string()),
            "what a stream may name; the default moves throughput as much as the write size does",
            "mount /proc",
        ),
        check(
            "IP forwarding",
            true,
            setting("net.ipv4.ip_forward").unwrap_or_else(|| "unknown".to_string()),
            "not needed: the bridge environment forwards frames in a namespace of its own",
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
    let meaning = "the stacks xdp-*: frames past the kernel's network stack";
    match nm_sys::xdp::unavailable_reason() {
        None => check("AF_XDP", true, "sockets and programs are allowed", meaning, ""),
        Some(reason) => {
            let (found, remedy) = reason.split_once("; ").unwrap_or((&reason, "run as root"));
            check("AF_XDP", false, found, meaning, remedy)
        }
    }
}

fn real_time() -> Check {
    let limit = HostFiles::default().text("/proc/self/limits").and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("Max realtime priority"))?;
        line.split_whitespace().next()?.parse::<u32>().ok()
    });
    let capable = capable(rustix::thread::CapabilitySet::SYS_NICE);
    check(
        "real-time priority",
        capable || limit.is_some_and(|limit| limit > 0),
        if capable { "allowed".to_string() } else { format!("up to {}", limit.unwrap_or(0)) },
        "`chrt -f 50 nearmetal …` by hand; nearmetal does not need it and never sets it itself",
        "raise `ulimit -r` (limits.conf: rtprio), or run as root",
    )
}

fn launchers() -> Vec<Check> {
    [
        (Launcher::Accel, "accel", "the stacks accel+*, and `nearmetal accel` for any program"),
        (Launcher::Onload, "onload", "the stacks onload+*: bypass on AMD Solarflare adapters"),
        (Launcher::Vma, "vma", "the stacks vma+*: bypass on NVIDIA adapters"),
        (Launcher::Smc, "smc", "the stacks smc+*: shared memory communications"),
    ]
    .into_iter()
    .map(|(launcher, name, meaning)| match launcher::obstacle(launcher) {
        None => check(name, true, "installed", meaning, ""),
        Some(reason) => match reason.split_once("; ") {
            Some((found, remedy)) => check(name, false, found, meaning, remedy),
            None => check(name, false, reason, meaning, "see its own guide"),
        },
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_has_a_remedy_and_what_is_there_has_none() {
        let checks = [multicast(), af_xdp(), real_time(), locked_memory(&nm_host::facts())];
        for check in checks.iter().chain(&launchers()).chain(&network(&nm_host::facts())) {
            assert_eq!(check.ok, check.remedy.is_none(), "{check:?}");
            assert!(!check.found.is_empty() && !check.meaning.is_empty(), "{check:?}");
        }
    }

    #[test]
    fn cores_are_counted_not_threads() {
        let mut facts = Facts::default();
        facts.cpu.allowed = vec![0, 1];
        assert!(two_cpus(&facts).ok);
        facts.cpu.siblings = vec![vec![0, 1]];
        assert!(!two_cpus(&facts).ok);
        facts.cpu.allowed = vec![1, 2];
        assert!(two_cpus(&facts).ok);
    }
}
