//! The catalogue of firmware settings. It says what makers of servers call each one, what the words
//! of its values mean, and what a latency-critical workload wants.
//!
//! Names and words are those of published settings of Dell's iDRAC, HPE's iLO, Lenovo's XCC and
//! Supermicro's controllers. A name that is not here is unknown, and so is a word: makers rename
//! both between generations of processors.

use std::collections::BTreeMap;

use crate::source::{self, Source};

/// A setting of the firmware.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FirmwareId {
    /// The profile that decides most of the others.
    PowerProfile,
    /// Idle states of the cores.
    IdleStates,
    /// Those of the whole package.
    PackageIdle,
    /// The idle state that lowers clock and voltage.
    C1e,
    /// Clock of the mesh or fabric.
    Uncore,
    /// Two threads on a core.
    Threads,
    /// NUMA nodes of a socket.
    Domains,
    /// Clocks above the nominal one.
    Turbo,
    /// Translation of device addresses.
    Iommu,
    /// Virtual functions of devices.
    VirtualFunctions,
    /// Sleeping PCI links.
    LinkSleep,
}

/// What a value means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meaning {
    /// It is on.
    On,
    /// It is off.
    Off,
    /// The firmware decides.
    Automatic,
    /// As fast as possible, whatever it costs.
    Fastest,
    /// It saves energy.
    Saving,
    /// Other settings decide.
    Custom,
    /// A number: NUMA nodes of a socket.
    Count(u32),
}

/// An entry of the catalogue.
#[derive(Debug)]
pub struct FirmwareSetting {
    /// Which.
    pub id: FirmwareId,
    /// What it is about.
    pub title: &'static str,
    /// Its names, without what a maker appends for each board.
    names: &'static [&'static str],
    /// Words of its values beside those for on, off and automatic.
    words: &'static [(&'static str, Meaning)],
    /// Words that mean that it decides nothing.
    unset: &'static [&'static str],
    /// The meaning that is wanted; absent if it depends on the workload.
    pub wanted: Option<Meaning>,
    /// Why.
    pub why: &'static str,
    /// Who says so.
    pub sources: &'static [Source],
}

/// A value of a setting on a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading<'a> {
    /// The maker's name.
    pub name: &'a str,
    /// The maker's word.
    pub value: &'a str,
    /// What it means; absent if the word is not known.
    pub meaning: Option<Meaning>,
}

/// Words that have one meaning everywhere, without case and signs.
const WORDS: &[(&str, Meaning)] = &[
    ("enabled", Meaning::On),
    ("enable", Meaning::On),
    ("on", Meaning::On),
    ("yes", Meaning::On),
    ("true", Meaning::On),
    ("disabled", Meaning::Off),
    ("disable", Meaning::Off),
    ("off", Meaning::Off),
    ("no", Meaning::Off),
    ("none", Meaning::Off),
    ("false", Meaning::Off),
    ("auto", Meaning::Automatic),
    ("automatic", Meaning::Automatic),
];

const GUIDES: &[Source] = &[source::LENOVO_INTEL, source::LENOVO_AMD, source::AMD_LATENCY];

/// An entry that wants nothing, with the words of all.
const fn entry(
    id: FirmwareId,
    title: &'static str,
    names: &'static [&'static str],
    why: &'static str,
) -> FirmwareSetting {
    let (words, unset) = (&[], &[]);
    FirmwareSetting { id, title, names, words, unset, wanted: None, why, sources: GUIDES }
}

/// The profile.
pub const POWER_PROFILE: FirmwareSetting = FirmwareSetting {
    words: &[
        ("perfoptimized", Meaning::Fastest),
        ("highperformancemode", Meaning::Fastest),
        ("virtualizationmaxperformance", Meaning::Fastest),
        ("lowlatency", Meaning::Fastest),
        ("statichighperf", Meaning::Fastest),
        ("maxperf", Meaning::Fastest),
        ("maximumperformance", Meaning::Fastest),
        // Supermicro's POWER TECHNOLOGY: no management of power at all.
        ("disable", Meaning::Fastest),
        ("custom", Meaning::Custom),
        ("custommode", Meaning::Custom),
        ("oscontrol", Meaning::Custom),
        ("perfperwattoptimizeddapc", Meaning::Saving),
        ("perfperwattoptimizedos", Meaning::Saving),
        ("generalpowerefficientcompute", Meaning::Saving),
        ("efficiencyfavorperformance", Meaning::Saving),
        ("efficiencyfavorpower", Meaning::Saving),
        ("minimalpower", Meaning::Saving),
        ("dynamicpowersavings", Meaning::Saving),
        ("staticlowpower", Meaning::Saving),
        ("balancedpowerperf", Meaning::Saving),
        ("minpower", Meaning::Saving),
        ("energyefficient", Meaning::Saving),
        ("maximumdeterminismpower", Meaning::Saving),
    ],
    unset: &["notconfigured", "notavailable"],
    wanted: Some(Meaning::Fastest),
    ..entry(
        FirmwareId::PowerProfile,
        "power profile of the firmware",
        &[
            "SysProfile",
            "WorkloadProfile",
            "PowerProfileSelect",
            "PowerRegulator",
            "PowerProfile",
            "OperatingModes_ChooseOperatingMode",
            "PowerTechnology",
        ],
        "a profile that saves energy lets clocks fall and lets cores, links and the mesh sleep, \
         whatever the kernel asks for",
    )
};

/// Words of idle states beside those for on, off and automatic.
const IDLE_WORDS: &[(&str, Meaning)] = &[
    ("nocstates", Meaning::Off),
    ("nostate", Meaning::Off),
    ("nopackagestate", Meaning::Off),
    ("c0c1state", Meaning::Off),
    ("c6", Meaning::On),
    ("c3", Meaning::On),
    ("c2state", Meaning::On),
    ("c6nonretention", Meaning::On),
    ("c6retention", Meaning::On),
    ("c6nonretentionstate", Meaning::On),
    ("c6retentionstate", Meaning::On),
    ("autonomous", Meaning::On),
    ("legacy", Meaning::On),
];

/// Idle states of cores, which the kernel sees.
pub const IDLE_STATES: FirmwareSetting = FirmwareSetting {
    words: IDLE_WORDS,
    wanted: Some(Meaning::Off),
    ..entry(
        FirmwareId::IdleStates,
        "idle states in the firmware",
        &[
            "ProcCStates",
            "MinProcIdlePower",
            "Processors_CStates",
            "Processors_GlobalC_stateControl",
            "CPUC6Report",
            "GlobalCstateControl",
        ],
        "a core that sleeps deeply takes 10 to 200 µs to wake up, whatever the figures of its \
         states say",
    )
};

/// Idle states of the package and of the fabric, which no core shows.
pub const PACKAGE_IDLE: FirmwareSetting = FirmwareSetting {
    words: IDLE_WORDS,
    wanted: Some(Meaning::Off),
    ..entry(
        FirmwareId::PackageIdle,
        "idle states of the package in the firmware",
        &["MinProcIdlePkgState", "PackageCState", "DataFabricCStateEnable"],
        "when all cores sleep, the last-level cache, the fabric and the links sleep as well, and \
         the first message pays for all of them",
    )
};

/// C1E.
pub const C1E: FirmwareSetting = FirmwareSetting {
    wanted: Some(Meaning::Off),
    ..entry(
        FirmwareId::C1e,
        "C1E in the firmware",
        &["ProcC1E", "Processors_C1EnhancedMode", "EnhancedHaltState_C1E_"],
        "with C1E a core that halts shortly lowers clock and voltage, and is slow when it wakes",
    )
};

/// Clock of the mesh.
pub const UNCORE: FirmwareSetting = FirmwareSetting {
    words: &[
        ("maxufs", Meaning::Fastest),
        ("maximum", Meaning::Fastest),
        ("disabled", Meaning::Fastest),
        ("disable", Meaning::Fastest),
        ("dynamicufs", Meaning::Saving),
        ("minufs", Meaning::Saving),
        ("minimum", Meaning::Saving),
        ("enabled", Meaning::Saving),
        ("enable", Meaning::Saving),
        ("auto", Meaning::Saving),
    ],
    wanted: Some(Meaning::Fastest),
    ..entry(
        FirmwareId::Uncore,
        "clock of the mesh in the firmware",
        &["UncoreFrequency", "UncoreFreqScaling", "Processors_UncoreFrequencyScaling"],
        "the clock of caches and memory controllers falls while the processor is idle, and every \
         miss of a cache takes longer until it has risen",
    )
};

/// Threads of a core.
pub const THREADS: FirmwareSetting = entry(
    FirmwareId::Threads,
    "threads of a core",
    &[
        "LogicalProc",
        "ProcHyperthreading",
        "ProcSMT",
        "Processors_HyperThreading",
        "Processors_SMTMode",
        "Hyper_Threading_ALL_",
        "HyperThreading",
        "SMTControl",
    ],
    "two threads of a core share its units and nearest caches",
);

/// NUMA nodes of a socket.
pub const DOMAINS: FirmwareSetting = FirmwareSetting {
    words: &[
        ("1", Meaning::Count(1)),
        ("2", Meaning::Count(2)),
        ("4", Meaning::Count(4)),
        ("nps1", Meaning::Count(1)),
        ("nps2", Meaning::Count(2)),
        ("nps4", Meaning::Count(4)),
        ("onememorydomainpersocket", Meaning::Count(1)),
        ("twomemorydomainspersocket", Meaning::Count(2)),
        ("fourmemorydomainspersocket", Meaning::Count(4)),
        ("2way", Meaning::Count(2)),
        ("4way", Meaning::Count(4)),
        ("enablesnc2", Meaning::Count(2)),
        ("enablesnc4", Meaning::Count(4)),
        ("enablesnc22clusters", Meaning::Count(2)),
        ("enablesnc44clusters", Meaning::Count(4)),
        ("snc2", Meaning::Count(2)),
        ("snc4", Meaning::Count(4)),
        ("disabled", Meaning::Count(1)),
        ("disable", Meaning::Count(1)),
    ],
    ..entry(
        FirmwareId::Domains,
        "NUMA nodes of a socket",
        &[
            "SubNumaCluster",
            "NumaNodesPerSocket",
            "SubNumaClustering",
            "NumaMemoryDomainsPerSocket",
            "Processors_SNC",
            "Memory_NUMANodesperSocket",
            "SNC",
            "NUMANodesPerSocket",
        ],
        "more nodes of a socket are smaller, and each is nearer to its memory",
    )
};

/// Turbo.
pub const TURBO: FirmwareSetting = entry(
    FirmwareId::Turbo,
    "clocks above the nominal one",
    &[
        "ProcTurboMode",
        "ProcTurbo",
        "ProcAMDBoost",
        "Processors_TurboMode",
        "Processors_CorePerformanceBoost",
        "TurboMode",
        "CorePerformanceBoost",
    ],
    "clocks above the nominal one are faster, and change with the load of the other cores",
);

/// IOMMU.
pub const IOMMU: FirmwareSetting = entry(
    FirmwareId::Iommu,
    "translation of device addresses in the firmware",
    &[
        "ProcVirtualization",
        "ProcVtd",
        "IommuSupport",
        "IntelProcVtd",
        "ProcAmdIoVt",
        "DevicesandIOPorts_IntelVTforDirectedIOVTd",
        "DevicesandIOPorts_IOMMU",
        "IntelVTforDirectedI_O_VT_d_",
        "IOMMU",
    ],
    "without it no guest and no program can have a device of its own",
);

/// SR-IOV.
pub const VIRTUAL_FUNCTIONS: FirmwareSetting = entry(
    FirmwareId::VirtualFunctions,
    "virtual functions of devices in the firmware",
    &["SriovGlobalEnable", "Sriov", "DevicesandIOPorts_SRIOV", "SR_IOVSupport"],
    "without it a network card has no part to give to each guest",
);

/// ASPM.
pub const LINK_SLEEP: FirmwareSetting = FirmwareSetting {
    wanted: Some(Meaning::Off),
    ..entry(
        FirmwareId::LinkSleep,
        "sleeping PCI links in the firmware",
        &["PcieAspmL1", "PcieGlobalAspm", "Power_ASPM", "PCIeASPMSupport_Global_"],
        "a PCI link that sleeps wakes up first when a packet comes, for some microseconds",
    )
};

/// All entries, in the order in which they are shown.
pub static FIRMWARE: &[FirmwareSetting] = &[
    POWER_PROFILE,
    IDLE_STATES,
    PACKAGE_IDLE,
    C1E,
    UNCORE,
    LINK_SLEEP,
    THREADS,
    DOMAINS,
    TURBO,
    IOMMU,
    VIRTUAL_FUNCTIONS,
];

impl FirmwareSetting {
    /// The values of this setting among all of a machine. Makers split some settings in several.
    pub fn readings<'a>(&self, attributes: &'a BTreeMap<String, String>) -> Vec<Reading<'a>> {
        let is_named = |name: &str| self.is_named(name);
        let known = attributes.iter().filter(|(name, _)| is_named(name));
        let decided = known.filter(|(_, value)| !self.unset.contains(&plain(value).as_str()));
        decided.map(|(name, value)| Reading { name, value, meaning: self.meaning(value) }).collect()
    }

    /// Whether a maker calls this setting so.
    pub fn is_named(&self, name: &str) -> bool {
        let (whole, short) = (plain(name), plain(without_board(name)));
        self.names.iter().map(|one| plain(one)).any(|one| one == whole || one == short)
    }

    /// What a word of this setting means.
    pub fn meaning(&self, value: &str) -> Option<Meaning> {
        let word = plain(value);
        let mut words = self.words.iter().chain(WORDS);
        words.find(|(one, _)| *one == word).map(|(_, meaning)| *meaning)
    }
}

/// Letters and digits in lower case: makers differ in the other signs.
fn plain(text: &str) -> String {
    text.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

/// A name without the four digits that Supermicro appends, which differ from board to board.
fn without_board(name: &str) -> &str {
    match name.rsplit_once('_') {
        Some((short, digits)) if digits.len() == 4 && digits.bytes().all(is_upper_hex) => short,
        _ => name,
    }
}

fn is_upper_hex(byte: u8) -> bool {
    byte.is_ascii_digit() || (b'A'..=b'F').contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(setting: &FirmwareSetting, name: &str, value: &str, wanted: Option<Meaning>) {
        let attributes = BTreeMap::from([(name.to_string(), value.to_string())]);
        let found = setting.readings(&attributes);
        assert_eq!(found, [Reading { name, value, meaning: wanted }]);
    }

    #[test]
    fn names_and_words_of_four_makers_have_their_meaning() {
        use Meaning::{Automatic, Count, Custom, Fastest, Off, On, Saving};
        check(&POWER_PROFILE, "SysProfile", "PerfPerWattOptimizedDapc", Some(Saving));
        check(&POWER_PROFILE, "SysProfile", "PerfOptimized", Some(Fastest));
        check(&POWER_PROFILE, "WorkloadProfile", "Virtualization-MaxPerformance", Some(Fastest));
        check(&POWER_PROFILE, "PowerTechnology_FF77", "Energy Efficient", Some(Saving));
        check(&POWER_PROFILE, "OperatingModes_ChooseOperatingMode", "CustomMode", Some(Custom));
        check(&POWER_PROFILE, "WorkloadProfile", "I/O Throughput", None);
        check(&IDLE_STATES, "MinProcIdlePower", "NoCStates", Some(Off));
        check(&IDLE_STATES, "Processors_CStates", "Autonomous", Some(On));
        check(&PACKAGE_IDLE, "PackageCState_3D25", "Auto", Some(Automatic));
        check(&C1E, "EnhancedHaltState_C1E__3D23", "Enable", Some(On));
        check(&THREADS, "Hyper-Threading[ALL]", "Disable", Some(Off));
        check(&THREADS, "Hyper_Threading_ALL__F27F", "Enable", Some(On));
        check(&DOMAINS, "NUMANodesPerSocket", "NPS4", Some(Count(4)));
        check(&DOMAINS, "NumaNodesPerSocket", "2", Some(Count(2)));
        check(&DOMAINS, "SNC_F300", "Auto", Some(Automatic));
        check(&IOMMU, "IntelVTforDirectedI_O_VT_d__1E32", "Enable", Some(On));
        check(&LINK_SLEEP, "PCIeASPMSupport_Global__00A6", "Disabled", Some(Off));
    }

    #[test]
    fn what_decides_nothing_and_what_is_not_known_is_no_reading() {
        let attributes = BTreeMap::from([
            ("WorkloadProfile".to_string(), "NotConfigured".to_string()),
            ("SysProfileNext".to_string(), "Custom".to_string()),
            ("TurboMode_zzzz".to_string(), "Enable".to_string()),
        ]);
        for setting in FIRMWARE {
            assert_eq!(setting.readings(&attributes), [], "{}", setting.title);
        }
    }

    /// A name that two settings have would be judged by both.
    #[test]
    fn each_name_belongs_to_one_setting_and_each_word_has_one_meaning() {
        for (index, setting) in FIRMWARE.iter().enumerate() {
            for name in setting.names {
                let others = FIRMWARE[index + 1..].iter().filter(|other| other.is_named(name));
                assert_eq!(others.count(), 0, "{name}");
            }
            for (word, meaning) in setting.words {
                assert_eq!(plain(word), *word);
                assert_eq!(setting.meaning(word), Some(*meaning), "{word} is there twice");
            }
            assert!(!setting.sources.is_empty() && !setting.why.ends_with('.'));
        }
    }
}
