//! An entry of the catalogue: where a setting is, what it should be, what a change costs, and why.

use std::fmt;
use std::str::FromStr;

use nm_model::finding::UndoClass;
use nm_model::words::UnknownWord;
use serde::{Deserialize, Serialize};

pub use crate::goal::{Goal, NumberGoal};
use crate::source::Source;
use crate::target::{CpuSetting, LinkFile, LinkSetting, MachineSetting, QueueSetting};

macro_rules! setting_ids {
    ($($variant:ident $name:literal,)* ; $($lab:ident $lab_name:literal,)*) => {
        /// The name of a setting.
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        pub enum SettingId {
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

        impl SettingId {
            /// Those that tune the machine.
            pub const ALL: &'static [SettingId] = &[$(SettingId::$variant,)*];

            /// Those that hand devices to virtual machines.
            pub const LAB: &'static [SettingId] = &[$(SettingId::$lab,)*];

            /// Its name.
            pub fn name(self) -> &'static str {
                match self {
                    $(SettingId::$variant => $name,)*
                    $(SettingId::$lab => $lab_name,)*
                }
            }
        }
    };
}

setting_ids! {
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
    NicThreaded "nic.threaded",
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

impl fmt::Display for SettingId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl SettingId {
    /// The step of `nearmetal lab` with this name.
    ///
    /// # Errors
    /// If there is none.
    pub fn of_lab(text: &str) -> Result<SettingId, UnknownWord> {
        let names: Vec<&str> = SettingId::LAB.iter().map(|id| id.name()).collect();
        let found = SettingId::LAB.iter().copied().find(|id| id.name() == text);
        found.ok_or_else(|| UnknownWord::new("step", text, &names))
    }
}

impl FromStr for SettingId {
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<SettingId, UnknownWord> {
        let names: Vec<&str> = SettingId::ALL.iter().map(|id| id.name()).collect();
        let found = SettingId::ALL.iter().copied().find(|id| id.name() == text);
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

/// An entry of the catalogue.
#[derive(Debug, Clone)]
pub struct Setting {
    /// Its name.
    pub id: SettingId,
    /// What it affects.
    pub scope: Scope,
    /// What it can cost.
    pub risk: Risk,
    /// Why it may help.
    pub why: &'static str,
    /// Who says so.
    pub sources: &'static [Source],
    /// What sources disagree about, and what was decided.
    pub disputed: Option<&'static str>,
    /// Settings that must not be changed in the same run.
    pub conflicts: &'static [SettingId],
    /// Machines with fewer CPUs do not need it.
    pub cpus_min: usize,
    /// Where it is, and what it should be.
    pub action: Action,
}

impl Setting {
    /// How it is undone.
    pub fn undo(&self) -> UndoClass {
        match self.action {
            Action::CommandLine(_) => UndoClass::Boot,
            _ => UndoClass::Live,
        }
    }

    /// The titles of its sources.
    pub fn source_titles(&self) -> String {
        let titles: Vec<&str> = self.sources.iter().map(Source::title).collect();
        titles.join("; ")
    }

    /// The files that it may be in, where these follow from no CPU and no link: the first one that
    /// exists counts.
    pub fn files(&self) -> Vec<(String, Goal)> {
        match &self.action {
            Action::Sysctl(name, goal) => {
                vec![(format!("/proc/sys/{}", name.replace('.', "/")), *goal)]
            }
            Action::Machine(files) => {
                files.iter().map(|(file, goal)| (file.path(), *goal)).collect()
            }
            _ => vec![],
        }
    }
}

/// Where a setting is, and what it should be.
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
