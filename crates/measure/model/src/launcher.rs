//! The table of launchers: programs and preloaded libraries that replace the sockets of an agent.

use crate::class::{Bypass, StackClass};
use crate::environment::Distance;
use crate::named_enum::named_enum;

named_enum!(
    /// A program that starts the agent and replaces its sockets.
    Launcher, "launcher", {
        /// nearmetal's own socket accelerator.
        Accel = "accel",
        /// Onload with its latency profile.
        Onload = "onload",
        /// libvma or XLIO by preloading.
        Vma = "vma",
        /// Shared memory communications by `smc_run`.
        Smc = "smc",
    }
);

/// What a launcher can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LauncherRow {
    /// What it is good for.
    pub purpose: &'static str,
    /// The class of stacks under it.
    pub class: StackClass,
    /// What it uses instead of the kernel's network sockets.
    pub bypass: Bypass,
    /// Whether it has an effect only on TCP with both ends under it.
    pub joins_both_ends: bool,
    /// Under it in guests.
    pub guests: LauncherReach,
    /// Under it on other hosts.
    pub hosts: LauncherReach,
}

/// Whether a launcher can start agents that do not run on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LauncherReach {
    /// It can, if it is installed there.
    IfInstalledThere,
    /// It cannot.
    No(NoLauncher),
}

/// Why a launcher cannot start agents somewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoLauncher {
    /// It needs a driver and an adapter that guests do not have.
    GuestDriver,
    /// Guests have a kernel each.
    KernelOfEachGuest,
    /// Hosts have a kernel each.
    KernelOfEachHost,
    /// It is looked for on this machine only.
    ThisMachineOnly,
}

/// A vendor's stack, whose program the hosts may have.
const VENDOR: LauncherRow = LauncherRow {
    purpose: "",
    class: StackClass::Bypass,
    bypass: Bypass::Launcher,
    joins_both_ends: false,
    guests: LauncherReach::No(NoLauncher::GuestDriver),
    hosts: LauncherReach::IfInstalledThere,
};

static ACCEL: LauncherRow = LauncherRow {
    purpose: "the stacks accel+*, and `nearmetal accel` for any program",
    class: StackClass::SameHost,
    bypass: Bypass::SharedMemory,
    joins_both_ends: true,
    guests: LauncherReach::No(NoLauncher::KernelOfEachGuest),
    hosts: LauncherReach::No(NoLauncher::KernelOfEachHost),
};
static ONLOAD: LauncherRow =
    LauncherRow { purpose: "the stacks onload+*: bypass on AMD Solarflare adapters", ..VENDOR };
static VMA: LauncherRow = LauncherRow {
    purpose: "the stacks vma+*: bypass on NVIDIA adapters",
    hosts: LauncherReach::No(NoLauncher::ThisMachineOnly),
    ..VENDOR
};
static SMC: LauncherRow =
    LauncherRow { purpose: "the stacks smc+*: shared memory communications", ..VENDOR };

impl Launcher {
    /// What it can do.
    pub fn row(self) -> &'static LauncherRow {
        match self {
            Launcher::Accel => &ACCEL,
            Launcher::Onload => &ONLOAD,
            Launcher::Vma => &VMA,
            Launcher::Smc => &SMC,
        }
    }

    /// Whether it can start agents at this distance; none if they run on this machine.
    pub fn reach(self, distance: Distance) -> Option<LauncherReach> {
        match distance {
            Distance::Loopback | Distance::Namespaces => None,
            Distance::Guests => Some(self.row().guests),
            Distance::Hosts => Some(self.row().hosts),
        }
    }
}
