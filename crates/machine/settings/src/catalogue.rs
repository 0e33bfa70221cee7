//! The entries. Their order is the one in which `tune` applies them. Changes that restart a link's
//! queues come before the other settings of the link, and an energy preference before the governor
//! that makes it read-only. There is one profile, `latency`.

use crate::setting::Action::{
    AllCpus, ApplicationCpus, CommandLine, DirtyBackgroundBytes, Driver, FixedFrequency,
    Interrupts, LinkFiles, Machine, QueueCount, Queues, RingEntries, Sysctl, WorkqueueMask,
};
use crate::setting::Goal::{AtLeast, Is, Limit, OneOf};
use crate::setting::NumberGoal::AtMost;
use crate::setting::{Action, Risk, Scope, Setting, SettingId};
use crate::source::{self, Source};
use crate::target::{CpuSetting, LinkFile, LinkSetting, MachineSetting, QueueSetting};

/// The longest time that a CPU may take to wake up, µs. C1 of Intel's server processors takes 1 or
/// 2 µs (`intel_idle`), the state after it 10 µs or more.
pub const IDLE_EXIT_US_MAX: u64 = 2;

/// A setting of the whole machine.
const fn machine(
    id: SettingId,
    action: Action,
    why: &'static str,
    sources: &'static [Source],
) -> Setting {
    let (scope, risk) = (Scope::Machine, Risk::None);
    Setting { id, scope, risk, why, sources, disputed: None, conflicts: &[], cpus_min: 1, action }
}

/// A setting of a link or of a network namespace.
const fn network(
    id: SettingId,
    action: Action,
    why: &'static str,
    sources: &'static [Source],
) -> Setting {
    Setting { scope: Scope::Namespace, ..machine(id, action, why, sources) }
}

const fn disputed(setting: Setting, text: &'static str) -> Setting {
    Setting { disputed: Some(text), ..setting }
}

const fn outage(setting: Setting, conflicts: &'static [SettingId]) -> Setting {
    Setting { risk: Risk::BriefOutage, conflicts, ..setting }
}

const fn security(setting: Setting) -> Setting {
    Setting { risk: Risk::Security, ..setting }
}

/// All entries, in the order in which they are applied.
pub static SETTINGS: &[Setting] = &[
    disputed(
        machine(
            SettingId::CpuIdle,
            ApplicationCpus(CpuSetting::PmQosResumeLatency, Limit(IDLE_EXIT_US_MAX)),
            "a CPU that sleeps deeply when a message arrives wakes up first, for 10 to 200 µs; \
             this delays receivers that block, and not those that spin",
            &[source::K_CPUIDLE, source::K_INTEL_IDLE, source::MONTEREY, source::AWS],
        ),
        "guides switch all idle states off on all CPUs, which takes turbo frequency from the \
         others; 2 µs keeps C1, on the application's CPUs alone",
    ),
    machine(
        SettingId::CpuEnergy,
        AllCpus(CpuSetting::EnergyPreference, OneOf(&["performance", "0"])),
        "the hardware's own frequency control ramps up late after idle",
        &[source::TUNED, source::K_CPUFREQ],
    ),
    disputed(
        machine(
            SettingId::CpuGovernor,
            AllCpus(CpuSetting::Governor, Is("performance")),
            "a governor that saves energy lets the clock fall while a CPU is idle; the clock rises \
             late, and each change takes 10 to 50 µs",
            &[source::TUNED, source::RIGTORP, source::K_CPUFREQ, source::AWS],
        ),
        "TuneD's profiles also set intel_pstate=disable; the kernel's documents prefer the \
         hardware's own control with the preference `performance`",
    ),
    machine(
        SettingId::CpuMinFrequency,
        FixedFrequency,
        "a change of the frequency halts the core for microseconds",
        &[source::AWS],
    ),
    disputed(
        machine(
            SettingId::CpuBoost,
            Machine(&[(MachineSetting::NoTurbo, Is("0")), (MachineSetting::Boost, Is("1"))]),
            "a higher clock shortens every path",
            &[source::RIGTORP],
        ),
        "some prefer it off, for a clock that never changes",
    ),
    machine(
        SettingId::IsoWorkqueue,
        WorkqueueMask,
        "work queues, writeback and ksmd are bound to no CPU, so they run on application CPUs",
        &[source::TUNED, source::K_PER_CPU],
    ),
    machine(
        SettingId::IsoTimerMigration,
        Sysctl("kernel.timer_migration", Is("0")),
        "timers of other CPUs move to this one",
        &[source::TUNED],
    ),
    machine(
        SettingId::IsoStatInterval,
        Sysctl("vm.stat_interval", AtLeast(10)),
        "memory statistics are folded every second on each CPU",
        &[source::TUNED, source::K_VM],
    ),
    machine(
        SettingId::IsoNmiWatchdog,
        Sysctl("kernel.nmi_watchdog", Is("0")),
        "a performance counter interrupts each CPU every few seconds",
        &[source::TUNED, source::K_PER_CPU],
    ),
    disputed(
        security(machine(
            SettingId::IsoRtThrottle,
            Sysctl("kernel.sched_rt_runtime_us", Is("-1")),
            "a real-time thread that spins is stopped for 50 ms of each second; without the limit \
             the kernel's threads on its CPU starve",
            &[source::TUNED, source::STALLD],
        )),
        "TuneD's profile realtime sets -1; without stalld that can hang the machine, so a spinning \
         thread is better SCHED_OTHER on an isolated CPU",
    ),
    machine(
        SettingId::IsoTick,
        CommandLine("nohz_full={app}"),
        "the timer tick interrupts a busy CPU every 1 to 4 ms",
        &[source::RIGTORP, source::K_PARAMETERS],
    ),
    machine(
        SettingId::IsoRcu,
        CommandLine("rcu_nocbs={app}"),
        "callbacks of read-copy-update run in soft interrupts of the CPU that made them",
        &[source::RIGTORP, source::TUNED, source::K_PER_CPU],
    ),
    machine(
        SettingId::NumaBalance,
        Sysctl("kernel.numa_balancing", Is("0")),
        "the kernel unmaps pages to see who uses them, moves them, and interrupts other CPUs",
        &[source::RIGTORP, source::RIGTORP_MEMORY, source::TUNED],
    ),
    disputed(
        machine(
            SettingId::MemThp,
            Machine(&[(MachineSetting::ThpEnabled, OneOf(&["madvise", "never"]))]),
            "huge pages for everybody mean compaction: stalls of 100 µs to 1 ms",
            &[source::K_THP, source::RIGTORP, source::RIGTORP_MEMORY, source::TUNED, source::AWS],
        ),
        "rigtorp.se and TuneD set never, AWS found madvise better on Graviton; with madvise only \
         memory that asks for huge pages has them, so both are accepted",
    ),
    machine(
        SettingId::MemThpDefrag,
        Machine(&[(
            MachineSetting::ThpDefrag,
            OneOf(&["defer", "never", "madvise", "defer+madvise"]),
        )]),
        "an allocation waits until memory is compacted",
        &[source::K_THP],
    ),
    machine(
        SettingId::MemCompaction,
        Sysctl("vm.compaction_proactiveness", Is("0")),
        "background compaction moves pages, and CPUs wait for it",
        &[source::K_VM],
    ),
    machine(
        SettingId::MemKsm,
        Machine(&[(MachineSetting::Ksm, OneOf(&["2", "0"]))]),
        "a thread scans memory for equal pages, and the next write to a merged page faults",
        &[source::RIGTORP, source::TUNED],
    ),
    machine(
        SettingId::MemDirty,
        DirtyBackgroundBytes(64 << 20),
        "a share of a large memory is much data: who writes to a mapped file or a log stalls while \
         the kernel writes it back",
        &[source::JUDGEMENT],
    ),
    outage(
        network(
            SettingId::NicChannels,
            QueueCount,
            "flows spread over more queues than there are CPUs for interrupts",
            &[source::TUNED, source::ENA],
        ),
        &[SettingId::IrqNic, SettingId::IrqXps],
    ),
    outage(
        network(
            SettingId::NicRings,
            RingEntries(1024),
            "short rings lose packets of a burst",
            &[source::ENA],
        ),
        &[],
    ),
    network(
        SettingId::NicAdaptive,
        Driver(LinkSetting::Coalescing, &[(9, AtMost(0)), (10, AtMost(0))]),
        "the driver lets packets wait longer under load",
        &[source::AWS, source::VMWARE],
    ),
    disputed(
        network(
            SettingId::NicCoalesce,
            Driver(
                LinkSetting::Coalescing,
                &[(0, AtMost(0)), (1, AtMost(1)), (4, AtMost(0)), (5, AtMost(1))],
            ),
            "packets wait for an interrupt, by default up to 125 µs",
            &[source::VMWARE, source::SOLARFLARE, source::ENA, source::AWS],
        ),
        "AWS advises 1 to 2 µs in place of 0, as a compromise with throughput",
    ),
    network(
        SettingId::NicLro,
        Driver(LinkSetting::Lro, &[(0, AtMost(0))]),
        "the device merges packets, and small ones wait",
        &[source::SOLARFLARE],
    ),
    disputed(
        network(
            SettingId::NicGro,
            Driver(LinkSetting::Gro, &[(0, AtMost(0))]),
            "the kernel merges packets, which small messages do not need",
            &[source::AWS],
        ),
        "GRO raises throughput; change it by experiment",
    ),
    network(
        SettingId::NicPause,
        Driver(LinkSetting::Pause, &[(1, AtMost(0)), (2, AtMost(0))]),
        "a slow receiver stops the transmitter, whatever it sends",
        &[source::JUDGEMENT],
    ),
    disputed(
        network(
            SettingId::NicDefer,
            LinkFiles(&[
                (LinkFile::NapiDeferHardIrqs, Is("0")),
                (LinkFile::GroFlushTimeout, Is("0")),
            ]),
            "packets wait for a timer unless the application polls",
            &[source::K_NAPI],
        ),
        "an application that sets SO_PREFER_BUSY_POLL wants interrupts deferred; busy polling \
         without it does not",
    ),
    network(
        SettingId::NicThreaded,
        LinkFiles(&[(LinkFile::Threaded, Is("0"))]),
        "packets wait until the scheduler runs the thread that receives them",
        &[source::K_NAPI],
    ),
    disputed(
        machine(
            SettingId::NicBusyRead,
            Sysctl("net.core.busy_read", AtLeast(50)),
            "a blocking receiver that polls the device first saves the interrupt and the wake-up: \
             42 to 32 µs round trip",
            &[source::K_NET, source::TUNED, source::ENA, source::AWS],
        ),
        "the kernel's documents advise 50 µs for several sockets, 100 µs for hundreds",
    ),
    machine(
        SettingId::NicBusyPoll,
        Sysctl("net.core.busy_poll", AtLeast(50)),
        "the same for poll and select",
        &[source::K_NET, source::TUNED],
    ),
    Setting {
        conflicts: &[SettingId::NicChannels],
        ..disputed(
            machine(
                SettingId::IrqNic,
                Interrupts,
                "on a CPU of a spinning workload interrupts preempt it, on another socket each \
                 packet crosses, on one CPU all queues wait for each other",
                &[source::ENA, source::RIGTORP, source::PERFTUNE],
            ),
            "irqbalance: stop it (AWS sample), or keep it and ban CPUs (ENA guide)",
        )
    },
    network(
        SettingId::IrqRps,
        Queues(QueueSetting::Rps),
        "packets are passed to application CPUs by an interrupt each",
        &[source::PERFTUNE],
    ),
    Setting {
        conflicts: &[SettingId::NicChannels],
        ..network(
            SettingId::IrqXps,
            Queues(QueueSetting::Xps),
            "CPUs that share a queue to send wait for its lock",
            &[source::PERFTUNE],
        )
    },
    network(
        SettingId::NetIdleCwnd,
        Sysctl("net.ipv4.tcp_slow_start_after_idle", Is("0")),
        "a connection that paused sends slowly at first",
        &[source::TUNED, source::K_IP],
    ),
    network(
        SettingId::NetAutocork,
        Sysctl("net.ipv4.tcp_autocorking", Is("0")),
        "small writes wait until the one before has left the device; without TCP_NODELAY Nagle's \
         algorithm and delayed acknowledgements add 40 ms",
        &[source::K_IP],
    ),
    disputed(
        machine(
            SettingId::VirtHaltHost,
            Machine(&[(MachineSetting::HostHaltPoll, AtLeast(200_000))]),
            "a guest that blocks is woken through the host's scheduler: 34 to 27 µs",
            &[source::K_HALT_POLL],
        ),
        "vmware-2014 found that the same setting of ESXi made it worse and uneven",
    ),
    disputed(
        machine(
            SettingId::GuestHaltPoll,
            Machine(&[(MachineSetting::GuestHaltPoll, AtLeast(200_000))]),
            "each halt exits to the hypervisor, and each wake-up comes back from there",
            &[source::K_GUEST_HALT_POLL],
        ),
        "polling helps under KVM; vmware-2014 found the same setting harmful on ESXi",
    ),
    Setting {
        cpus_min: 9,
        ..machine(
            SettingId::KernSkewTick,
            CommandLine("skew_tick=1"),
            "the ticks of all CPUs contend for the same locks",
            &[source::TUNED, source::K_PARAMETERS],
        )
    },
    security(machine(
        SettingId::KernAudit,
        CommandLine("audit=0"),
        "with audit rules every system call takes the slow path",
        &[source::JUDGEMENT],
    )),
    security(machine(
        SettingId::KernMitigations,
        CommandLine("mitigations=off"),
        "they make each entry into the kernel slower; switching them off is a decision about \
         security, for machines with one tenant",
        &[source::K_VULNERABILITIES],
    )),
    security(machine(
        SettingId::IommuMode,
        CommandLine("iommu=pt"),
        "in strict mode each buffer is mapped and unmapped, and the translation cache flushed",
        &[source::K_PARAMETERS, source::INTEL_NIC],
    )),
];

/// The entry of a setting.
pub fn setting(id: SettingId) -> &'static Setting {
    // A test checks that every id has exactly one entry.
    SETTINGS.iter().find(|setting| setting.id == id).unwrap_or(&SETTINGS[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_has_one_entry_with_a_reason_and_a_source() {
        assert_eq!(SETTINGS.len(), SettingId::ALL.len());
        for id in SettingId::ALL {
            let entry = setting(*id);
            assert_eq!(entry.id, *id);
            assert!(!entry.why.is_empty() && !entry.sources.is_empty(), "{id}");
            assert!(!entry.conflicts.contains(id), "{id}");
            assert_eq!(id.name().parse::<SettingId>().unwrap(), *id);
            let json = serde_json::to_string(id).unwrap();
            assert_eq!(json, format!("\"{id}\""));
        }
        let error = "mem.tph".parse::<SettingId>().unwrap_err().to_string();
        assert!(error.contains("did you mean `mem.thp`?"), "{error}");
    }

    #[test]
    fn a_change_of_queues_comes_before_the_other_settings_of_a_link() {
        let place = |id| SETTINGS.iter().position(|one| one.id == id).unwrap();
        for later in
            [SettingId::NicCoalesce, SettingId::NicAdaptive, SettingId::NicGro, SettingId::NicPause]
        {
            assert!(place(SettingId::NicChannels) < place(later), "{later}");
            assert!(place(SettingId::NicRings) < place(later), "{later}");
        }
        assert!(place(SettingId::CpuEnergy) < place(SettingId::CpuGovernor));
    }
}
