//! Steps: what can be tuned, how far it reaches, what it risks, and why it may help.

use std::fmt;
use std::str::FromStr;

use nm_model::words::UnknownWord;
use serde::{Deserialize, Serialize};

use crate::target::{CpuSetting, LinkFile, LinkSetting, MachineSetting, QueueSetting};

macro_rules! step_ids {
    ($($variant:ident $name:literal,)* ; $($lab:ident $lab_name:literal,)*) => {
        /// The name of a step.
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        pub enum StepId {
            $(
                #[doc = concat!("`", $name, "`")]
                #[serde(rename = $name)]
                $variant,
            )*
            $(
                #[doc = concat!("`", $lab_name, "`, a step of `nearmetal lab`")]
                #[serde(rename = $lab_name)]
                $lab,
            )*
        }

        impl StepId {
            /// Those that tune the machine.
            pub const ALL: &'static [StepId] = &[$(StepId::$variant,)*];

            /// Those that hand devices to virtual machines.
            pub const LAB: &'static [StepId] = &[$(StepId::$lab,)*];

            /// Its name.
            pub fn name(self) -> &'static str {
                match self {
                    $(StepId::$variant => $name,)*
                    $(StepId::$lab => $lab_name,)*
                }
            }
        }
    };
}

step_ids! {
    CpuIdle "cpu.cstate",
    CpuEnergy "cpu.energy",
    CpuGovernor "cpu.governor",
    CpuMinFrequency "cpu.min_frequency",
    CpuBoost "cpu.boost",
    IsoWorkqueue "iso.workqueue",
    IsoTimerMigration "iso.timer_migration",
    IsoStatInterval "iso.stat_interval",
    IsoNmiWatchdog "iso.nmi_watchdog",
    IsoRtThrottle "iso.rt_throttle",
    IsoTick "iso.nohz",
    IsoRcu "iso.rcu",
    NumaBalance "numa.balance",
    MemThp "mem.thp",
    MemThpDefrag "mem.thp_defrag",
    MemCompaction "mem.compaction",
    MemKsm "mem.ksm",
    MemDirty "mem.dirty",
    NicChannels "nic.channels",
    NicRings "nic.rings",
    NicAdaptive "nic.adaptive",
    NicCoalesce "nic.coalesce",
    NicLro "nic.lro",
    NicGro "nic.gro",
    NicPause "nic.pause",
    NicDefer "nic.defer",
    NicBusyRead "nic.busy_read",
    NicBusyPoll "nic.busy_poll",
    IrqNic "irq.nic",
    IrqRps "irq.rps",
    IrqXps "irq.xps",
    NetIdleCwnd "net.idle_cwnd",
    NetAutocork "net.autocork",
    VirtHaltHost "virt.halt_host",
    GuestHaltPoll "guest.haltpoll",
    KernSkewTick "kern.skew_tick",
    KernAudit "kern.audit",
    KernMitigations "kern.mitigations",
    IommuMode "iommu.mode",
    ;
    PciLink "pci.link",
    PciFunctions "pci.functions",
    PciDriver "pci.driver",
}

impl fmt::Display for StepId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl StepId {
    /// The step of `nearmetal lab` with this name.
    ///
    /// # Errors
    /// If there is none.
    pub fn of_lab(text: &str) -> Result<StepId, UnknownWord> {
        let names: Vec<&str> = StepId::LAB.iter().map(|id| id.name()).collect();
        let found = StepId::LAB.iter().copied().find(|id| id.name() == text);
        found.ok_or_else(|| UnknownWord::new("step", text, &names))
    }
}

impl FromStr for StepId {
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<StepId, UnknownWord> {
        let names: Vec<&str> = StepId::ALL.iter().map(|id| id.name()).collect();
        let found = StepId::ALL.iter().copied().find(|id| id.name() == text);
        found.ok_or_else(|| UnknownWord::new("step", text, &names))
    }
}

/// What a change affects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// The processes of one network namespace.
    Namespace,
    /// The whole machine.
    Machine,
}

/// What a change can cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Risk {
    /// Nothing beyond its purpose.
    None,
    /// The link stops for a moment.
    BriefOutage,
    /// Less protection: only if it is allowed by name.
    Security,
}

/// How a change can be undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum UndoClass {
    /// At once, by writing the old value.
    Live,
    /// By a restart of the machine with another kernel command line.
    Boot,
}

/// A step.
#[derive(Debug, Clone)]
pub struct Step {
    /// Its name.
    pub id: StepId,
    /// What it affects.
    pub scope: Scope,
    /// What it can cost.
    pub risk: Risk,
    /// Why it may help.
    pub why: &'static str,
    /// Where that is from.
    pub source: &'static str,
    /// What sources disagree about.
    pub disputed: Option<&'static str>,
    /// Steps that must not be in the same run.
    pub conflicts: &'static [StepId],
    /// What it does.
    pub action: Action,
}

impl Step {
    /// How it is undone.
    pub fn undo(&self) -> UndoClass {
        match self.action {
            Action::CommandLine(_) => UndoClass::Boot,
            _ => UndoClass::Live,
        }
    }
}

/// What a step writes.
#[derive(Debug, Clone)]
pub enum Action {
    /// A sysctl.
    Sysctl(&'static str, Goal),
    /// The background limit of unwritten file data, bytes.
    DirtyBackgroundBytes(u64),
    /// A file of each application CPU.
    ApplicationCpus(CpuSetting, Goal),
    /// A file of each CPU.
    AllCpus(CpuSetting, Goal),
    /// The lowest frequency of each application CPU is its highest.
    FixedFrequency,
    /// The first of these files that exists.
    Machine(&'static [(MachineSetting, Goal)]),
    /// No unbound work on application CPUs.
    WorkqueueMask,
    /// No interrupts on application CPUs.
    Interrupts,
    /// CPUs of the link's queues.
    Queues(QueueSetting),
    /// A file of the link.
    LinkFiles(&'static [(LinkFile, Goal)]),
    /// A setting of the link's driver, number by number; those beyond the list stay.
    Driver(LinkSetting, &'static [(usize, NumberGoal)]),
    /// At most as many queues as there are CPUs left for the system.
    QueueCount,
    /// Rings of at least so many entries, as far as the device has them.
    RingEntries(u32),
    /// A word of the kernel's command line, which only a restart can change.
    CommandLine(&'static str),
}

/// What a text should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// This word.
    Is(&'static str),
    /// The first of these, unless it is another one of them already.
    OneOf(&'static [&'static str]),
    /// A number of at least this.
    AtLeast(u64),
}

/// What a number of a driver's setting should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumberGoal {
    /// Exactly this.
    Is(u32),
    /// At most this.
    AtMost(u32),
    /// At least this.
    AtLeast(u32),
}

impl NumberGoal {
    /// The number that meets the goal and is nearest to `old`.
    pub fn resolve(self, old: u32) -> u32 {
        match self {
            NumberGoal::Is(number) => number,
            NumberGoal::AtMost(number) => old.min(number),
            NumberGoal::AtLeast(number) => old.max(number),
        }
    }
}
