//! What files cannot tell: ioctls of network links, CPUID, the state of the kernel's clock.

use std::collections::BTreeMap;

use nm_model::limits;
use nm_model::snapshot::{
    Channels, Coalescing, Cpuid, KernelClock, LinkCalls, Pause, Rings, Timestamps,
};
use nm_sys::ethtool::Links;

/// All network links of this process's namespace; absent without a socket.
pub fn links() -> Option<BTreeMap<String, LinkCalls>> {
    let links = Links::new().ok()?;
    let names = links.names().into_iter().take(limits::SNAPSHOT_LINKS_MAX);
    Some(names.map(|name| (name.clone(), link(&links, &name))).collect())
}

fn link(links: &Links, name: &str) -> LinkCalls {
    let driver = links.driver(name).unwrap_or_default();
    let known = |text: String| {
        let is_unknown = matches!(text.as_str(), "" | "N/A" | "n/a");
        (!is_unknown).then_some(text)
    };
    let statistics = links.statistics(name).into_iter().filter(|(name, _)| is_kept(name));
    LinkCalls {
        driver: known(driver.name),
        driver_version: known(driver.version),
        firmware: known(driver.firmware),
        bus: known(driver.bus),
        mac: links
            .hardware_address(name)
            .map(|address| address.map(|byte| format!("{byte:02x}")).join(":")),
        up: links.is_up(name),
        mtu: links.mtu(name),
        speed_mbps: links.speed_mbps(name),
        coalescing: links.coalescing(name).map(|c| Coalescing {
            rx_usecs: c.rx_usecs,
            rx_frames: c.rx_frames,
            tx_usecs: c.tx_usecs,
            tx_frames: c.tx_frames,
            adaptive_rx: c.adaptive_rx,
            adaptive_tx: c.adaptive_tx,
        }),
        rings: links.rings(name).map(|r| Rings {
            rx: r.rx,
            rx_max: r.rx_max,
            tx: r.tx,
            tx_max: r.tx_max,
        }),
        channels: links.channels(name).map(|c| Channels {
            rx: c.rx,
            tx: c.tx,
            combined: c.combined,
            combined_max: c.combined_max,
        }),
        features: links.features(name).into_iter().filter(|(name, _)| is_offload(name)).collect(),
        pause: links.pause(name).map(|p| Pause { autoneg: p.autoneg, rx: p.rx, tx: p.tx }),
        eee: links.eee(name),
        fec: links.fec(name),
        timestamps: links.timestamps(name).map(|t| Timestamps {
            hardware_clock: t.hardware_clock,
            capabilities: t.capabilities,
            rx_filters: t.rx_filters,
        }),
        statistics: statistics.take(STATISTICS_MAX).collect(),
    }
}

/// Most statistics of one link.
const STATISTICS_MAX: usize = 512;

/// Whether a statistic counts losses, pauses, or throttling by a cloud.
fn is_kept(name: &str) -> bool {
    const WORDS: [&str; 9] = [
        "drop",
        "err",
        "discard",
        "miss",
        "allowance_exceeded",
        "pause",
        "no_buf",
        "nobuf",
        "overflow",
    ];
    // Counters for each queue repeat the sums, and there are thousands of them.
    let is_of_queue = name.split(['_', '-', '.', '[']).any(|word| {
        let word = word.trim_end_matches(']');
        word.starts_with("queue")
            || (!word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit()))
    });
    let name = name.to_ascii_lowercase();
    !is_of_queue && WORDS.iter().any(|word| name.contains(word))
}

/// Whether a feature changes latency.
fn is_offload(name: &str) -> bool {
    ["rx-gro", "rx-lro", "tx-generic-seg", "tx-tcp-segmentation", "rx-ntuple", "rx-hashing"]
        .iter()
        .any(|start| name.starts_with(start))
}

/// The state of the kernel's clock.
pub fn kernel_clock() -> Option<KernelClock> {
    let state = nm_sys::kernel_clock::read()?;
    Some(KernelClock {
        is_synchronized: state.is_synchronized,
        offset_ns: state.offset_ns,
        estimated_error_us: state.estimated_error_us,
        max_error_us: state.max_error_us,
    })
}

/// What `CPUID` says.
#[cfg(target_arch = "x86_64")]
pub fn cpuid() -> Option<Cpuid> {
    use std::arch::x86_64::__cpuid;

    let leaf_max = __cpuid(0).eax;
    let has_hypervisor = __cpuid(1).ecx & (1 << 31) != 0;
    let is_invariant =
        __cpuid(0x8000_0000).eax >= 0x8000_0007 && __cpuid(0x8000_0007).edx & (1 << 8) != 0;
    let hypervisor = crate::virtualization::signature();
    let kvm = (hypervisor.as_deref() == Some("KVM")).then(|| __cpuid(0x4000_0001));
    let crystal = (leaf_max >= 0x15).then(|| __cpuid(0x15));
    let by_crystal = crystal
        .filter(|leaf| leaf.eax > 0 && leaf.ebx > 0 && leaf.ecx > 0)
        .map(|leaf| u64::from(leaf.ecx) * u64::from(leaf.ebx) / u64::from(leaf.eax) / 1_000);
    let by_base = || {
        let megahertz = (leaf_max >= 0x16).then(|| __cpuid(0x16).eax & 0xffff)?;
        (megahertz > 0).then_some(u64::from(megahertz) * 1_000)
    };
    Some(Cpuid {
        has_hypervisor,
        hypervisor,
        invariant_tsc: is_invariant,
        kvm_features: kvm.map(|leaf| leaf.eax),
        kvm_hints: kvm.map(|leaf| leaf.edx),
        nominal_khz: by_crystal.or_else(by_base),
    })
}

/// Other processors have no `CPUID`.
#[cfg(not(target_arch = "x86_64"))]
pub fn cpuid() -> Option<Cpuid> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_of_queues_and_of_plain_traffic_are_left_out() {
        for name in ["rx_dropped", "bw_in_allowance_exceeded", "port.rx_dropped", "rx_pause_ctrl"] {
            assert!(is_kept(name), "{name}");
        }
        for name in ["rx_packets", "rx_queue_0_drops", "rx3_errors_12", "queue_1_rx_drops"] {
            assert!(!is_kept(name), "{name}");
        }
    }

    #[test]
    fn loopback_is_among_the_links() {
        let links = links().unwrap();
        assert!(links["lo"].up && links["lo"].features.contains_key("rx-lro"));
    }
}
