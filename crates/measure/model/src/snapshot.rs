//! A snapshot: all that the checks of a machine need, read once, as JSON. It can be taken on one
//! machine and audited on another.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::firmware::Firmware;
use crate::limits;

/// Version of the snapshot format. Readers refuse a newer one.
pub const SNAPSHOT_VERSION: u32 = 1;

/// What was read of a machine at one time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Snapshot {
    /// [`SNAPSHOT_VERSION`].
    pub version: u32,
    /// Version of nearmetal that took it.
    pub nearmetal_version: String,
    /// What the machine is to carry, as the user named it.
    pub workload: Workload,
    /// Content of files by absolute path, without surrounding white space.
    pub files: BTreeMap<String, String>,
    /// Names in folders by absolute path, sorted.
    pub folders: BTreeMap<String, Vec<String>>,
    /// Targets of symbolic links by absolute path: their last component.
    pub symlinks: BTreeMap<String, String>,
    /// Paths that exist, where nothing but that is of interest.
    pub present: Vec<String>,
    /// Files that exist and could not be read, with the reason.
    pub unreadable: BTreeMap<String, String>,
    /// Answers of calls that files cannot give.
    pub calls: Calls,
    /// The files that count, read again after an interval.
    pub second: Option<SecondSample>,
    /// What the limits left out, a sentence each.
    pub left_out: Vec<String>,
}

/// Files read a second time, so that rates are known beside totals since boot.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SecondSample {
    /// Time between the two readings, s.
    pub interval_s: f64,
    /// Content by absolute path.
    pub files: BTreeMap<String, String>,
    /// Statistics of links by link and name.
    pub statistics: BTreeMap<String, BTreeMap<String, u64>>,
}

/// What the machine is to carry.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Workload {
    /// CPUs of its hot threads; empty if unknown.
    pub cpus: Vec<u32>,
    /// Network links that it uses; empty if unknown.
    pub links: Vec<String>,
    /// Its process.
    pub pid: Option<u32>,
}

/// Answers of calls.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Calls {
    /// Network links by name; absent if the calls were not made.
    pub links: Option<BTreeMap<String, LinkCalls>>,
    /// `CPUID`, on x86.
    pub cpuid: Option<Cpuid>,
    /// `adjtimex(2)`.
    pub kernel_clock: Option<KernelClock>,
    /// What was measured for `audit --active`.
    pub active: Option<Active>,
    /// What the host's management controller says, for `audit --bmc`: the settings that a check
    /// knows.
    pub firmware: Option<Firmware>,
}

/// One network link, by `SIOCETHTOOL` and its relatives. What a driver does not answer is absent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct LinkCalls {
    /// Driver.
    pub driver: Option<String>,
    /// Driver version.
    pub driver_version: Option<String>,
    /// Firmware version.
    pub firmware: Option<String>,
    /// Bus address.
    pub bus: Option<String>,
    /// Hardware address, `aa:bb:cc:dd:ee:ff`.
    pub mac: Option<String>,
    /// Whether the link is up and has a carrier.
    pub up: bool,
    /// MTU, bytes.
    pub mtu: Option<u32>,
    /// Speed, Mb/s.
    pub speed_mbps: Option<u32>,
    /// Interrupt coalescing.
    pub coalescing: Option<Coalescing>,
    /// Ring sizes.
    pub rings: Option<Rings>,
    /// Queues.
    pub channels: Option<Channels>,
    /// Features by the kernel's name (`rx-gro`, `rx-lro`, …) and whether they are on.
    pub features: BTreeMap<String, bool>,
    /// Pause frames.
    pub pause: Option<Pause>,
    /// Energy-efficient Ethernet is on.
    pub eee: Option<bool>,
    /// Forward error correction in force, as the kernel's bits.
    pub fec: Option<u32>,
    /// Time stamping.
    pub timestamps: Option<Timestamps>,
    /// Statistics that count losses, pauses and throttling, by the driver's name.
    pub statistics: BTreeMap<String, u64>,
}

/// Interrupt coalescing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Coalescing {
    /// Time after a received packet, µs.
    pub rx_usecs: u32,
    /// Received packets before an interrupt.
    pub rx_frames: u32,
    /// Time after a sent packet, µs.
    pub tx_usecs: u32,
    /// Sent packets before an interrupt.
    pub tx_frames: u32,
    /// Whether the driver adapts the receive values to the load.
    pub adaptive_rx: bool,
    /// Whether the driver adapts the transmit values to the load.
    pub adaptive_tx: bool,
}

/// Ring sizes, entries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Rings {
    /// Receive.
    pub rx: u32,
    /// Largest for receive.
    pub rx_max: u32,
    /// Transmit.
    pub tx: u32,
    /// Largest for transmit.
    pub tx_max: u32,
}

/// Queues.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Channels {
    /// Receive only.
    pub rx: u32,
    /// Transmit only.
    pub tx: u32,
    /// Both.
    pub combined: u32,
    /// Most for both.
    pub combined_max: u32,
}

/// Pause frames.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Pause {
    /// Negotiated with the other end.
    pub autoneg: bool,
    /// Pauses on request.
    pub rx: bool,
    /// Requests pauses.
    pub tx: bool,
}

/// Time stamping of packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Timestamps {
    /// Number of the hardware clock (`/dev/ptpN`); absent if there is none.
    pub hardware_clock: Option<u32>,
    /// Bits of `SOF_TIMESTAMPING_*`.
    pub capabilities: u32,
    /// Bits of the receive filters.
    pub rx_filters: u32,
}

/// What `CPUID` says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Cpuid {
    /// Leaf 1 reports a hypervisor.
    pub has_hypervisor: bool,
    /// The hypervisor's signature, as its usual name.
    pub hypervisor: Option<String>,
    /// The timestamp counter runs at one rate in all power states.
    pub invariant_tsc: bool,
    /// Features of KVM: `EAX` of leaf 0x40000001.
    pub kvm_features: Option<u32>,
    /// Hints of KVM: `EDX` of leaf 0x40000001.
    pub kvm_hints: Option<u32>,
    /// Nominal frequency of the timestamp counter by leaves 0x15 and 0x16, kHz.
    pub nominal_khz: Option<u64>,
}

/// State of the kernel's clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct KernelClock {
    /// Something keeps the clock synchronised.
    pub is_synchronized: bool,
    /// Offset that is being corrected, ns.
    pub offset_ns: i64,
    /// Estimated error, µs.
    pub estimated_error_us: u64,
    /// Largest error, µs.
    pub max_error_us: u64,
}

/// What was measured actively.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Active {
    /// Median cost of `CPUID`, which a hypervisor has to intercept, ns.
    pub exit_cost_ns: Option<f64>,
    /// Cost of reading the kernel's clock, ns.
    pub kernel_clock_ns: f64,
    /// Cost of reading the measuring clock, ns.
    pub clock_ns: f64,
    /// Ticks of the measuring clock a second.
    pub clock_hz: Option<f64>,
    /// Pairs of CPUs with the slow-down of the same work at the same time.
    pub pairs: Vec<CpuPair>,
}

/// Two CPUs that worked at the same time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CpuPair {
    /// The first.
    pub a: u32,
    /// The second.
    pub b: u32,
    /// CPU time of the work beside the other, divided by that of the work alone.
    pub ratio: f64,
}

/// Why a snapshot cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// Written by a newer nearmetal.
    #[error("the snapshot has version {0}, this nearmetal reads up to {SNAPSHOT_VERSION}; update")]
    Version(u32),
    /// More than any machine has.
    #[error("the snapshot has {count} {what}, at most {max} are read")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// How much there is.
        count: usize,
        /// How much there may be.
        max: usize,
    },
    /// A path that is not absolute.
    #[error("the snapshot has the path `{0}`, paths must begin with `/`")]
    Path(String),
}

impl Snapshot {
    /// Checks what a stranger may have written.
    ///
    /// # Errors
    /// The first limit that is broken.
    pub fn check(&self) -> Result<(), SnapshotError> {
        if self.version > SNAPSHOT_VERSION {
            return Err(SnapshotError::Version(self.version));
        }
        let second = self.second.iter().flat_map(|second| &second.files);
        let n_bytes = self.files.iter().chain(second).map(|(path, text)| path.len() + text.len());
        let n_names = self.folders.values().map(Vec::len).sum::<usize>()
            + self.symlinks.len()
            + self.present.len()
            + self.unreadable.len();
        let n_attributes = self.calls.firmware.as_ref().map_or(0, |it| it.attributes.len());
        for (what, count, max) in [
            ("files", self.files.len(), limits::SNAPSHOT_FILES_MAX),
            ("names", n_names, limits::SNAPSHOT_NAMES_MAX),
            ("bytes", n_bytes.sum(), limits::SNAPSHOT_BYTES_MAX),
            ("CPUs of the workload", self.workload.cpus.len(), limits::CPUS_MAX),
            ("links of the workload", self.workload.links.len(), limits::SNAPSHOT_LINKS_MAX),
            ("links", self.calls.links.as_ref().map_or(0, BTreeMap::len), {
                limits::SNAPSHOT_LINKS_MAX
            }),
            ("settings of firmware", n_attributes, limits::FIRMWARE_ATTRIBUTES_MAX),
        ] {
            if count > max {
                return Err(SnapshotError::TooMany { what, count, max });
            }
        }
        match self.files.keys().chain(self.folders.keys()).find(|path| !path.starts_with('/')) {
            Some(path) => Err(SnapshotError::Path(path.clone())),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_and_versions_are_checked() {
        let mut snapshot = Snapshot { version: SNAPSHOT_VERSION, ..Snapshot::default() };
        assert_eq!(snapshot.check(), Ok(()));
        snapshot.files.insert("proc/stat".to_string(), String::new());
        assert_eq!(snapshot.check(), Err(SnapshotError::Path("proc/stat".to_string())));
        snapshot.files.clear();
        snapshot.workload.cpus = vec![0; limits::CPUS_MAX + 1];
        let text = snapshot.check().unwrap_err().to_string();
        assert_eq!(text, "the snapshot has 1025 CPUs of the workload, at most 1024 are read");
        snapshot.version = 2;
        assert_eq!(snapshot.check(), Err(SnapshotError::Version(2)));
    }

    #[test]
    fn snapshot_survives_json_and_absent_fields_are_empty() {
        let mut snapshot = Snapshot { version: 1, ..Snapshot::default() };
        snapshot.files.insert("/proc/stat".to_string(), "cpu 1".to_string());
        snapshot.calls.links = Some(BTreeMap::from([("lo".to_string(), LinkCalls::default())]));
        let text = serde_json::to_string(&snapshot).unwrap();
        assert_eq!(serde_json::from_str::<Snapshot>(&text).unwrap(), snapshot);
        let empty: Snapshot = serde_json::from_str("{\"version\": 1}").unwrap();
        assert!(empty.files.is_empty() && empty.calls.links.is_none());
    }
}
