//! Facts of a machine that explain a latency. A fact that could not be read is absent, never
//! guessed.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

/// Facts of the machine that one endpoint runs on, as seen from that endpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Facts {
    /// Host name, kernel and operating system.
    pub host: HostFacts,
    /// Processor.
    pub cpu: CpuFacts,
    /// Clock of the measurement.
    pub clock: ClockFacts,
    /// Memory.
    pub memory: MemoryFacts,
    /// Hypervisor and container.
    pub virtualization: VirtualizationFacts,
    /// Kernel settings by name (`net.core.busy_read`, `transparent_hugepage`, …), raw text.
    pub settings: BTreeMap<String, String>,
    /// Network links visible to the endpoint, loopback included.
    pub links: Vec<LinkFacts>,
    /// Environment variables that change sockets or linking: `LD_PRELOAD`, `EF_*`, `VMA_*`,
    /// `XLIO_*`.
    pub variables: BTreeMap<String, String>,
    /// Version of nearmetal.
    pub nearmetal_version: String,
}

/// Host name, kernel and operating system.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct HostFacts {
    /// Host name.
    pub name: String,
    /// Kernel release, as `uname -r`.
    pub kernel: String,
    /// Machine, as `uname -m`.
    pub machine: String,
    /// `PRETTY_NAME` of os-release.
    pub os: Option<String>,
    /// Kernel command line.
    pub cmdline: Option<String>,
    /// Load average over one minute.
    pub load_1m: Option<f64>,
    /// Boot id; equal if two endpoints run on one kernel.
    pub boot_id: Option<String>,
}

/// Processor.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CpuFacts {
    /// Model name.
    pub model: Option<String>,
    /// CPUs online.
    pub online: u32,
    /// CPUs this process may use.
    pub allowed: Vec<u32>,
    /// Groups of CPUs that share one core, only those of two or more.
    pub siblings: Vec<Vec<u32>>,
    /// NUMA node of each online CPU, where known.
    #[serde(deserialize_with = "numbered")]
    pub numa_nodes: BTreeMap<u32, u32>,
    /// Frequency governor of CPU 0, if there is one.
    pub governor: Option<String>,
    /// Idle driver (`intel_idle`, `haltpoll`, `none`).
    pub idle_driver: Option<String>,
    /// Idle states of CPU 0 with exit latency in µs.
    pub idle_states: Vec<String>,
    /// CPUs isolated from the scheduler.
    pub isolated: Option<String>,
    /// Vulnerability mitigations that are active, as `name: text`.
    pub mitigations: Vec<String>,
    /// CPU bandwidth limit of the control group, as in `cpu.max`, if limited.
    pub quota: Option<String>,
}

/// Clock of the measurement.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ClockFacts {
    /// `tsc` or `CLOCK_MONOTONIC_RAW`.
    pub source: String,
    /// Ticks a second, if the source is the TSC.
    pub tsc_hz: Option<f64>,
    /// Difference of the two calibrations, parts per million.
    pub calibration_error_ppm: Option<f64>,
    /// Cost of one pair of timestamps, ns: part of every sample, never subtracted.
    pub pair_cost_ns: f64,
    /// The kernel's own clock source.
    pub kernel_source: Option<String>,
    /// Why the TSC was not used.
    pub fallback_reason: Option<String>,
}

/// Memory.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct MemoryFacts {
    /// All memory, bytes.
    pub total_bytes: u64,
    /// Locked memory allowed, bytes; absent if unlimited.
    pub lock_limit_bytes: Option<u64>,
}

/// Hypervisor and container.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct VirtualizationFacts {
    /// Hypervisor by its signature (`KVM`, `VMware`, `Xen`, `Hyper-V`), if the CPU reports one.
    pub hypervisor: Option<String>,
    /// Product name of the firmware tables.
    pub product: Option<String>,
    /// Container engine, if signs of one were found.
    pub container: Option<String>,
}

/// One network link.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct LinkFacts {
    /// Name, such as `eth0`.
    pub name: String,
    /// Driver.
    pub driver: Option<String>,
    /// Driver version.
    pub driver_version: Option<String>,
    /// Firmware version.
    pub firmware: Option<String>,
    /// Bus address.
    pub bus: Option<String>,
    /// MTU, bytes.
    pub mtu: Option<u32>,
    /// Speed, Mb/s.
    pub speed_mbps: Option<u32>,
    /// NUMA node of the device.
    pub numa_node: Option<i32>,
    /// Whether the link is up.
    pub up: bool,
    /// Interrupt coalescing, as `rx-usecs=… adaptive-rx=…`.
    pub coalescing: Option<String>,
    /// Receive and transmit ring entries, as `rx=… tx=…`.
    pub rings: Option<String>,
    /// Queues in use.
    pub queues: Option<u32>,
    /// Offloads in use: `gro`, `gso`, `tso`, `lro`, …
    pub offloads: Vec<String>,
}

/// Reads a map with numbers for keys. JSON has them as text, which serde does not turn back into
/// numbers inside a tagged enum such as an agent's answer.
fn numbered<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<u32, u32>, D::Error> {
    let texts = BTreeMap::<String, u32>::deserialize(from)?;
    let number = |text: String| text.parse().map_err(serde::de::Error::custom);
    texts.into_iter().map(|(key, value)| Ok((number(key)?, value))).collect()
}
