//! What of the virtual-machine lab a host can run, why not the rest, and what to do about it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::finding::{Evidence, Fix};
use crate::guest_execution::GuestExecution;
use crate::named_enum::named_enum;

named_enum!(
    /// An environment of the lab.
    LabKind, "environment of the lab", {
        /// Two network namespaces, without virtual machines: what all others are compared with.
        Bare = "bare",
        /// Two guests on a datagram link between their QEMUs.
        Wire = "wire",
        /// Two guests on a bridge, packets copied by QEMU.
        Vswitch = "vswitch",
        /// Two guests on a bridge, packets copied by the kernel.
        Vhost = "vhost",
        /// A virtual function for each guest.
        SriovVf = "sriov-vf",
        /// A network device for each guest.
        SriovPf = "sriov-pf",
        /// A user-space stack (AF_XDP, or the user's Onload) in the guests.
        Bypass = "bypass",
        /// Two guests with a region of memory in common.
        SharedMemory = "shared-memory",
    }
);

named_enum!(
    /// What a check of the host found.
    LabStatus, "status", {
        /// As it should be.
        Good = "good",
        /// Something cannot run without it.
        Missing = "missing",
        /// Everything runs, with figures that are worse than they need to be.
        Worse = "worse",
        /// It could not be read.
        Unknown = "unknown",
    }
);

/// What a host can run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LabPlan {
    /// Version of this format.
    pub format: u32,
    /// What would execute guests.
    pub execution: ExpectedExecution,
    /// The environments.
    pub environments: Vec<LabEnvironment>,
    /// The checks, in the order in which a host is prepared.
    pub checks: Vec<LabCheck>,
    /// Time that reading and deciding took, µs.
    pub took_us: u64,
}

impl LabPlan {
    /// Version of the format.
    pub const FORMAT: u32 = 1;

    /// The check of this name.
    pub fn check(&self, id: &str) -> Option<&LabCheck> {
        self.checks.iter().find(|check| check.id == id)
    }
}

/// What would execute guests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExpectedExecution {
    /// What it is.
    pub execution: GuestExecution,
    /// Whether KVM was timed; else it follows from what the processor and the kernel say.
    pub is_timed: bool,
    /// What shows it.
    pub evidence: String,
}

/// An environment, and whether the host can run it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LabEnvironment {
    /// Which one.
    pub kind: LabKind,
    /// The network devices that it would use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nics: Vec<String>,
    /// Whether its figures would be of an emulation, which is never judged or compared.
    pub is_emulated: bool,
    /// How to run it; absent if it cannot run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Why it cannot run; empty if it can.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unavailable_reasons: Vec<UnavailableReason>,
    /// What is not known of the host and would stand in the way, as clauses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<String>,
}

impl LabEnvironment {
    /// Whether the host can run it.
    pub fn can_run(&self) -> bool {
        self.unavailable_reasons.is_empty()
    }
}

/// What stands in the way, and what removes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UnavailableReason {
    /// The check that found it.
    pub check: String,
    /// What was found.
    pub reason: String,
    /// What removes it.
    pub fix: Fix,
}

/// One check of the host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LabCheck {
    /// Its name, such as `iommu.present`, or `ens1f0.group` for a network device.
    pub id: String,
    /// What it found.
    pub status: LabStatus,
    /// The same in words.
    pub summary: String,
    /// What was read.
    pub evidence: Vec<Evidence>,
    /// What to do, if there is something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<Fix>,
}
