//! What can be changed: an enumeration, so that a journal cannot name any other file.

use std::fmt;

use nm_model::pci_address::PciAddress;
use serde::{Deserialize, Serialize};

pub use crate::names::{LinkName, NameError, SysctlName};

/// One setting of the machine.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Target {
    /// A file below `/proc/sys`.
    Sysctl {
        /// Its name.
        name: SysctlName,
    },
    /// A pair of sysctls, `vm.dirty_bytes` and `vm.dirty_ratio` or those of the background: one of
    /// them is zero, and only the other one can be written.
    DirtyLimit {
        /// Which pair.
        limit: DirtyLimit,
    },
    /// A file of one CPU.
    Cpu {
        /// Its number.
        cpu: u32,
        /// Which file.
        setting: CpuSetting,
    },
    /// A file of the machine.
    Machine {
        /// Which file.
        setting: MachineSetting,
    },
    /// The CPUs that may handle an interrupt.
    Irq {
        /// Number of the interrupt.
        irq: u32,
    },
    /// A file of a link's queue.
    Queue {
        /// The link.
        link: LinkName,
        /// Number of the queue.
        queue: u32,
        /// Which file.
        setting: QueueSetting,
    },
    /// A file of a link.
    LinkFile {
        /// The link.
        link: LinkName,
        /// Which file.
        setting: LinkFile,
    },
    /// A setting of a link's driver.
    Link {
        /// The link.
        link: LinkName,
        /// Which setting.
        setting: LinkSetting,
    },
    /// A setting of a device on PCI.
    Pci {
        /// The device.
        address: PciAddress,
        /// Which setting.
        setting: PciSetting,
    },
}

/// A setting of a device on PCI.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PciSetting {
    /// Whether the device's link is up.
    Link,
    /// Whether drivers look at new virtual functions.
    FunctionsAutoprobe,
    /// How many virtual functions there are.
    Functions,
    /// The only driver that may have the device.
    DriverOverride,
    /// The driver that has the device.
    Driver,
}

/// A limit of unwritten file data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DirtyLimit {
    /// Above it, writers wait.
    Foreground,
    /// Above it, the kernel starts to write.
    Background,
}

/// A setting of one CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CpuSetting {
    /// Longest accepted time to wake up from idle, µs. `0` is no limit, `n/a` accepts none at all.
    PmQosResumeLatency,
    /// Frequency governor.
    Governor,
    /// Energy preference of the hardware's own frequency control.
    EnergyPreference,
    /// Lowest frequency, kHz.
    MinFrequency,
}

impl CpuSetting {
    /// Its file in the CPU's folder.
    pub fn file(self) -> &'static str {
        match self {
            CpuSetting::PmQosResumeLatency => "power/pm_qos_resume_latency_us",
            CpuSetting::Governor => "cpufreq/scaling_governor",
            CpuSetting::EnergyPreference => "cpufreq/energy_performance_preference",
            CpuSetting::MinFrequency => "cpufreq/scaling_min_freq",
        }
    }
}

/// A setting of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MachineSetting {
    /// Frequencies above the nominal one (acpi-cpufreq and amd-pstate).
    Boost,
    /// The same for intel_pstate, inverted.
    NoTurbo,
    /// Transparent huge pages.
    ThpEnabled,
    /// Whether an allocation waits for a huge page.
    ThpDefrag,
    /// Merging of equal pages.
    Ksm,
    /// CPUs of work queues that are bound to none.
    WorkqueueMask,
    /// How long KVM polls for a halted guest, ns.
    HostHaltPoll,
    /// How long a guest polls before it halts, ns.
    GuestHaltPoll,
}

/// A setting of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueSetting {
    /// CPUs to which received packets are passed on.
    Rps,
    /// CPUs that send through the queue.
    Xps,
}

/// A file of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkFile {
    /// Polls without a packet before the interrupt is enabled again.
    NapiDeferHardIrqs,
    /// Longest time that packets wait to be merged, ns.
    GroFlushTimeout,
    /// Whether packets are received in threads of the kernel.
    Threaded,
}

impl LinkFile {
    /// Its file in the link's folder.
    pub fn file(self) -> &'static str {
        match self {
            LinkFile::NapiDeferHardIrqs => "napi_defer_hard_irqs",
            LinkFile::GroFlushTimeout => "gro_flush_timeout",
            LinkFile::Threaded => "threaded",
        }
    }
}

/// A setting of a link's driver, by ethtool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkSetting {
    /// Interrupt coalescing.
    Coalescing,
    /// Ring sizes.
    Rings,
    /// Numbers of queues.
    Channels,
    /// Pause frames.
    Pause,
    /// Generic receive offload.
    Gro,
    /// Generic segmentation offload.
    Gso,
    /// TCP segmentation offload.
    Tso,
    /// Large receive offload.
    Lro,
}

impl LinkSetting {
    /// All of them.
    pub const ALL: [LinkSetting; 8] = [
        LinkSetting::Rings,
        LinkSetting::Channels,
        LinkSetting::Coalescing,
        LinkSetting::Pause,
        LinkSetting::Gro,
        LinkSetting::Gso,
        LinkSetting::Tso,
        LinkSetting::Lro,
    ];

    /// Whether writing it restarts the link's queues, so that the driver may put other settings
    /// back to its defaults.
    pub fn resets_others(self) -> bool {
        matches!(self, LinkSetting::Rings | LinkSetting::Channels)
    }

    /// The option of ethtool(8) that writes it.
    pub fn option(self) -> &'static str {
        match self {
            LinkSetting::Coalescing => "-C",
            LinkSetting::Rings => "-G",
            LinkSetting::Channels => "-L",
            LinkSetting::Pause => "-A",
            LinkSetting::Gro | LinkSetting::Gso | LinkSetting::Tso | LinkSetting::Lro => "-K",
        }
    }

    /// The words of ethtool(8) for the numbers that `number` knows by their index.
    pub fn words(self, number: impl Fn(usize) -> Option<u32>) -> String {
        let of = |(index, word, is_switch): &(usize, &str, bool)| {
            let number = number(*index)?;
            Some(match (is_switch, number) {
                (true, 0) => format!("{word} off"),
                (true, _) => format!("{word} on"),
                (false, number) => format!("{word} {number}"),
            })
        };
        self.numbers().iter().filter_map(of).collect::<Vec<_>>().join(" ")
    }

    /// Numbers that steps set: index, the word of ethtool(8), and whether it is `on` or `off`.
    fn numbers(self) -> &'static [(usize, &'static str, bool)] {
        match self {
            LinkSetting::Coalescing => &[
                (9, "adaptive-rx", true),
                (10, "adaptive-tx", true),
                (0, "rx-usecs", false),
                (1, "rx-frames", false),
                (4, "tx-usecs", false),
                (5, "tx-frames", false),
            ],
            LinkSetting::Rings => &[(0, "rx", false), (3, "tx", false)],
            LinkSetting::Channels => &[(3, "combined", false)],
            LinkSetting::Pause => &[(1, "rx", true), (2, "tx", true)],
            LinkSetting::Gro => &[(0, "gro", true)],
            LinkSetting::Gso => &[(0, "gso", true)],
            LinkSetting::Tso => &[(0, "tso", true)],
            LinkSetting::Lro => &[(0, "lro", true)],
        }
    }

    /// The setting in terms of the system call.
    pub fn for_ethtool(self) -> nm_sys::ethtool::EthtoolSetting {
        use nm_sys::ethtool::EthtoolSetting as Ethtool;
        match self {
            LinkSetting::Coalescing => Ethtool::Coalescing,
            LinkSetting::Rings => Ethtool::Rings,
            LinkSetting::Channels => Ethtool::Channels,
            LinkSetting::Pause => Ethtool::Pause,
            LinkSetting::Gro => Ethtool::Gro,
            LinkSetting::Gso => Ethtool::Gso,
            LinkSetting::Tso => Ethtool::Tso,
            LinkSetting::Lro => Ethtool::Lro,
        }
    }
}

/// How a setting is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A file: it is written as it is read.
    File(String),
    /// A file that lists its choices, with the chosen one in brackets.
    Choice(String),
    /// Two files of which only the one that is not zero can be written: bytes, then ratio.
    Twins([String; 2]),
    /// The driver of a link.
    Driver(LinkName, LinkSetting),
    /// A file of a PCI device, whose write may block.
    Slow(String),
    /// The same for a name, which reads `(null)` where there is none.
    Override(String),
    /// The driver of the PCI device in this folder; empty if none has it.
    Bound(String),
    /// Whether the link of the PCI device in this folder is up.
    Up(String),
}

impl Target {
    /// Where the setting is.
    pub fn place(&self) -> Place {
        Place::File(match self {
            Target::Sysctl { name } => format!("/proc/sys/{}", name.as_str().replace('.', "/")),
            Target::DirtyLimit { limit } => {
                let infix = if *limit == DirtyLimit::Background { "background_" } else { "" };
                return Place::Twins(
                    ["bytes", "ratio"].map(|end| format!("/proc/sys/vm/dirty_{infix}{end}")),
                );
            }
            Target::Cpu { cpu, setting } => {
                format!("/sys/devices/system/cpu/cpu{cpu}/{}", setting.file())
            }
            Target::Machine { setting } => return setting.place(),
            Target::Irq { irq } => format!("/proc/irq/{irq}/smp_affinity_list"),
            Target::Queue { link, queue, setting } => {
                let file = match setting {
                    QueueSetting::Rps => format!("rx-{queue}/rps_cpus"),
                    QueueSetting::Xps => format!("tx-{queue}/xps_cpus"),
                };
                format!("/sys/class/net/{link}/queues/{file}")
            }
            Target::LinkFile { link, setting } => {
                format!("/sys/class/net/{link}/{}", setting.file())
            }
            Target::Link { link, setting } => return Place::Driver(link.clone(), *setting),
            Target::Pci { address, setting } => return pci_place(*address, *setting),
        })
    }

    /// The link that the setting belongs to.
    pub fn link(&self) -> Option<&LinkName> {
        match self {
            Target::Queue { link, .. }
            | Target::LinkFile { link, .. }
            | Target::Link { link, .. } => Some(link),
            _ => None,
        }
    }

    /// The same setting of a link that has another name now.
    pub fn on_link(&self, name: &LinkName) -> Target {
        let mut target = self.clone();
        match &mut target {
            Target::Queue { link, .. }
            | Target::LinkFile { link, .. }
            | Target::Link { link, .. } => *link = name.clone(),
            _ => {}
        }
        target
    }

    /// Whether the same name means another setting in another network namespace.
    pub fn is_of_namespace(&self) -> bool {
        match self {
            Target::Sysctl { name } => name.as_str().starts_with("net."),
            other => other.link().is_some(),
        }
    }

    /// Whether the setting is reached through a sysfs of the link's namespace.
    pub fn is_in_class_net(&self) -> bool {
        matches!(self, Target::Queue { .. } | Target::LinkFile { .. })
    }

    /// Settings of the same link that writing this one may change.
    pub fn companions(&self) -> Vec<Target> {
        let Target::Link { link, setting } = self else { return vec![] };
        if !setting.resets_others() {
            return vec![];
        }
        LinkSetting::ALL
            .into_iter()
            .filter(|other| other != setting)
            .map(|setting| Target::Link { link: link.clone(), setting })
            .collect()
    }
}

fn pci_place(address: PciAddress, setting: PciSetting) -> Place {
    let folder = format!("/sys/bus/pci/devices/{address}");
    match setting {
        PciSetting::Link => Place::Up(folder),
        PciSetting::FunctionsAutoprobe => Place::Slow(folder + "/sriov_drivers_autoprobe"),
        PciSetting::Functions => Place::Slow(folder + "/sriov_numvfs"),
        PciSetting::DriverOverride => Place::Override(folder + "/driver_override"),
        PciSetting::Driver => Place::Bound(folder),
    }
}

impl MachineSetting {
    /// The path of its file.
    pub fn path(self) -> String {
        match self.place() {
            Place::File(path) | Place::Choice(path) => path,
            place => unreachable!("{place:?} is no file of the machine"),
        }
    }

    /// Where it is.
    pub fn place(self) -> Place {
        const THP: &str = "/sys/kernel/mm/transparent_hugepage";
        let file = match self {
            MachineSetting::ThpEnabled => return Place::Choice(format!("{THP}/enabled")),
            MachineSetting::ThpDefrag => return Place::Choice(format!("{THP}/defrag")),
            MachineSetting::Boost => "/sys/devices/system/cpu/cpufreq/boost",
            MachineSetting::NoTurbo => "/sys/devices/system/cpu/intel_pstate/no_turbo",
            MachineSetting::Ksm => "/sys/kernel/mm/ksm/run",
            MachineSetting::WorkqueueMask => "/sys/devices/virtual/workqueue/cpumask",
            MachineSetting::HostHaltPoll => "/sys/module/kvm/parameters/halt_poll_ns",
            MachineSetting::GuestHaltPoll => "/sys/module/haltpoll/parameters/guest_halt_poll_ns",
        };
        Place::File(file.to_string())
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Target::Sysctl { name } = self {
            return write!(f, "{name}");
        }
        match self.place() {
            Place::File(path) | Place::Choice(path) | Place::Slow(path) | Place::Override(path) => {
                f.write_str(&path)
            }
            Place::Bound(folder) => write!(f, "{folder}/driver"),
            Place::Up(folder) => write!(f, "{folder}/net (state of its link)"),
            Place::Twins([bytes, ratio]) => {
                let short = |path: &str| path.rsplit('/').next().unwrap_or_default().to_string();
                write!(f, "vm.{} and vm.{}", short(&bytes), short(&ratio))
            }
            Place::Driver(link, setting) => write!(f, "{setting} of {link}"),
        }
    }
}

impl fmt::Display for LinkSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LinkSetting::Coalescing => "coalescing",
            LinkSetting::Rings => "ring sizes",
            LinkSetting::Channels => "queues",
            LinkSetting::Pause => "pause frames",
            LinkSetting::Gro => "gro",
            LinkSetting::Gso => "gso",
            LinkSetting::Tso => "tso",
            LinkSetting::Lro => "lro",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_those_of_the_kernel() {
        let sysctl = Target::Sysctl { name: "net.ipv4.tcp_autocorking".parse().unwrap() };
        assert_eq!(sysctl.place(), Place::File("/proc/sys/net/ipv4/tcp_autocorking".into()));
        assert!(sysctl.is_of_namespace());
        let dirty = Target::DirtyLimit { limit: DirtyLimit::Background };
        assert_eq!(dirty.to_string(), "vm.dirty_background_bytes and vm.dirty_background_ratio");
        let link: LinkName = "eth0".parse().unwrap();
        let rings = Target::Link { link: link.clone(), setting: LinkSetting::Rings };
        assert_eq!(rings.companions().len(), 7);
        let gro = Target::Link { link, setting: LinkSetting::Gro };
        assert_eq!((gro.companions().len(), gro.to_string().as_str()), (0, "gro of eth0"));
    }

    #[test]
    fn a_target_in_a_journal_cannot_name_another_file() {
        let text = r#"{"kind":"sysctl","name":"../../etc/passwd"}"#;
        assert!(serde_json::from_str::<Target>(text).is_err());
        let text = r#"{"kind":"link_file","link":"../x","setting":"gro_flush_timeout"}"#;
        assert!(serde_json::from_str::<Target>(text).is_err());
    }
}
