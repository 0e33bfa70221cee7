//! The steps that are built in. Order matters: changes that restart a link's queues come before
//! the other settings of the link, and an energy preference before the governor that makes it
//! read-only.

use crate::step::Action::{
    AllCpus, ApplicationCpus, CommandLine, DirtyBackgroundBytes, Driver, FixedFrequency,
    Interrupts, LinkFiles, Machine, QueueCount, Queues, RingEntries, Sysctl, WorkqueueMask,
};
use crate::step::Goal::{AtLeast, Is, OneOf};
use crate::step::NumberGoal::AtMost;
use crate::step::{Action, Risk, Scope, Step, StepId};
use crate::target::{CpuSetting, LinkFile, LinkSetting, MachineSetting, QueueSetting};

const TUNED: &str = "TuneD latency-performance";
const TUNED_NETWORK: &str = "TuneD network-latency";
const TUNED_PARTITIONING: &str = "TuneD cpu-partitioning";
const KERNEL_IDLE: &str = "kernel documentation, cpuidle and sysfs-devices-power";
const RIGTORP: &str = "rigtorp.se, low latency tuning guide";
const ENA: &str = "AWS, ENA driver best practices";
const JUDGEMENT: &str = "judgement; no figure found, measure it with `tune ab`";

/// Settings of the whole machine.
const fn machine(id: StepId, action: Action, why: &'static str, source: &'static str) -> Step {
    let (scope, risk) = (Scope::Machine, Risk::None);
    Step { id, scope, risk, why, source, disputed: None, conflicts: &[], action }
}

/// Settings of a link or of a network namespace.
const fn network(id: StepId, action: Action, why: &'static str, source: &'static str) -> Step {
    Step { scope: Scope::Namespace, ..machine(id, action, why, source) }
}

const fn disputed(step: Step, text: &'static str) -> Step {
    Step { disputed: Some(text), ..step }
}

const fn outage(step: Step, conflicts: &'static [StepId]) -> Step {
    Step { risk: Risk::BriefOutage, conflicts, ..step }
}

const fn security(step: Step) -> Step {
    Step { risk: Risk::Security, ..step }
}

/// All steps, in the order in which they are applied.
pub static STEPS: &[Step] = &[
    disputed(
        machine(
            StepId::CpuIdle,
            ApplicationCpus(CpuSetting::PmQosResumeLatency, Is("2")),
            "deep idle states take 10 to 200 µs to leave; only states of at most 2 µs stay",
            KERNEL_IDLE,
        ),
        "cores that never idle deeply leave less power for the clock of the others",
    ),
    machine(
        StepId::CpuEnergy,
        AllCpus(CpuSetting::EnergyPreference, Is("performance")),
        "the hardware's own frequency control ramps up late after idle",
        TUNED,
    ),
    machine(
        StepId::CpuGovernor,
        AllCpus(CpuSetting::Governor, Is("performance")),
        "the clock ramps up late after idle; a change of it takes 10 to 50 µs",
        TUNED,
    ),
    machine(
        StepId::CpuMinFrequency,
        FixedFrequency,
        "a change of the frequency halts the core for microseconds",
        "AWS, trading latency benchmark",
    ),
    disputed(
        machine(
            StepId::CpuBoost,
            Machine(&[(MachineSetting::NoTurbo, Is("0")), (MachineSetting::Boost, Is("1"))]),
            "a higher clock shortens every path",
            RIGTORP,
        ),
        "some prefer it off, for a clock that never changes",
    ),
    machine(
        StepId::IsoWorkqueue,
        WorkqueueMask,
        "kernel work that is bound to no CPU runs on application CPUs",
        TUNED_PARTITIONING,
    ),
    machine(
        StepId::IsoTimerMigration,
        Sysctl("kernel.timer_migration", Is("0")),
        "timers of other CPUs move to this one",
        TUNED_PARTITIONING,
    ),
    machine(
        StepId::IsoStatInterval,
        Sysctl("vm.stat_interval", AtLeast(10)),
        "memory statistics are folded every second on each CPU",
        TUNED_NETWORK,
    ),
    machine(
        StepId::IsoNmiWatchdog,
        Sysctl("kernel.nmi_watchdog", Is("0")),
        "a performance counter interrupts each CPU every few seconds",
        TUNED_NETWORK,
    ),
    disputed(
        security(machine(
            StepId::IsoRtThrottle,
            Sysctl("kernel.sched_rt_runtime_us", Is("-1")),
            "a real-time thread that spins is stopped for 50 ms of each second",
            "TuneD realtime",
        )),
        "without the limit a real-time thread can starve the kernel's own; run stalld",
    ),
    machine(
        StepId::IsoTick,
        CommandLine("nohz_full={app}"),
        "the timer tick interrupts each CPU every 1 to 4 ms",
        RIGTORP,
    ),
    machine(
        StepId::IsoRcu,
        CommandLine("rcu_nocbs={app}"),
        "callbacks of read-copy-update run on the CPU that made them",
        RIGTORP,
    ),
    machine(
        StepId::NumaBalance,
        Sysctl("kernel.numa_balancing", Is("0")),
        "pages are unmapped to see who uses them, and moved",
        RIGTORP,
    ),
    disputed(
        machine(
            StepId::MemThp,
            Machine(&[(MachineSetting::ThpEnabled, OneOf(&["madvise", "never"]))]),
            "huge pages for everybody mean compaction: stalls of 100 µs to 1 ms",
            "kernel documentation, vm; AWS, trading latency benchmark",
        ),
        "never (x86) or madvise (Graviton): both are accepted",
    ),
    machine(
        StepId::MemThpDefrag,
        Machine(&[(
            MachineSetting::ThpDefrag,
            OneOf(&["defer", "never", "madvise", "defer+madvise"]),
        )]),
        "an allocation waits until memory is compacted",
        "kernel documentation, transhuge",
    ),
    machine(
        StepId::MemCompaction,
        Sysctl("vm.compaction_proactiveness", Is("0")),
        "background compaction moves pages, and CPUs wait for it",
        "kernel documentation, vm",
    ),
    machine(
        StepId::MemKsm,
        Machine(&[(MachineSetting::Ksm, OneOf(&["2", "0"]))]),
        "merged pages are copied at the next write to them",
        "TuneD realtime-virtual-host",
    ),
    machine(
        StepId::MemDirty,
        DirtyBackgroundBytes(64 << 20),
        "a share of a large memory is much data, and writing it stalls those who map files",
        JUDGEMENT,
    ),
    outage(
        network(
            StepId::NicChannels,
            QueueCount,
            "flows spread over more queues than there are CPUs for interrupts",
            "TuneD realtime",
        ),
        &[StepId::IrqNic, StepId::IrqXps],
    ),
    outage(
        network(StepId::NicRings, RingEntries(1024), "small rings drop packets of a burst", ENA),
        &[],
    ),
    network(
        StepId::NicAdaptive,
        Driver(LinkSetting::Coalescing, &[(9, AtMost(0)), (10, AtMost(0))]),
        "the driver lets packets wait longer under load",
        "AWS, trading latency benchmark",
    ),
    disputed(
        network(
            StepId::NicCoalesce,
            Driver(
                LinkSetting::Coalescing,
                &[(0, AtMost(0)), (1, AtMost(1)), (4, AtMost(0)), (5, AtMost(1))],
            ),
            "packets wait for an interrupt, by default up to 125 µs",
            ENA,
        ),
        "AWS advises 1 to 2 µs as a compromise with throughput",
    ),
    network(
        StepId::NicLro,
        Driver(LinkSetting::Lro, &[(0, AtMost(0))]),
        "the device merges packets, and small ones wait",
        "Solarflare adapter user guide",
    ),
    network(
        StepId::NicGro,
        Driver(LinkSetting::Gro, &[(0, AtMost(0))]),
        "the kernel merges packets, which small messages do not need",
        "AWS, trading latency benchmark",
    ),
    network(
        StepId::NicPause,
        Driver(LinkSetting::Pause, &[(1, AtMost(0)), (2, AtMost(0))]),
        "a slow receiver stops the transmitter",
        JUDGEMENT,
    ),
    network(
        StepId::NicDefer,
        LinkFiles(&[(LinkFile::NapiDeferHardIrqs, Is("0")), (LinkFile::GroFlushTimeout, Is("0"))]),
        "packets wait for a timer unless the application polls",
        "kernel documentation, napi",
    ),
    machine(
        StepId::NicBusyRead,
        Sysctl("net.core.busy_read", AtLeast(50)),
        "polling the device saves the interrupt and the wake-up: 42 to 32 µs round trip",
        TUNED_NETWORK,
    ),
    machine(
        StepId::NicBusyPoll,
        Sysctl("net.core.busy_poll", AtLeast(50)),
        "the same for poll and select",
        TUNED_NETWORK,
    ),
    Step {
        conflicts: &[StepId::NicChannels],
        ..disputed(
            machine(
                StepId::IrqNic,
                Interrupts,
                "interrupts preempt the application, or cross sockets",
                ENA,
            ),
            "irqbalance: stop it (AWS sample), or keep it and ban CPUs (ENA guide)",
        )
    },
    network(
        StepId::IrqRps,
        Queues(QueueSetting::Rps),
        "packets are passed to application CPUs by an interrupt each",
        "Seastar perftune",
    ),
    Step {
        conflicts: &[StepId::NicChannels],
        ..network(
            StepId::IrqXps,
            Queues(QueueSetting::Xps),
            "CPUs that share a queue to send wait for its lock",
            "Seastar perftune",
        )
    },
    network(
        StepId::NetIdleCwnd,
        Sysctl("net.ipv4.tcp_slow_start_after_idle", Is("0")),
        "a connection that paused sends slowly at first",
        "TuneD network-throughput",
    ),
    network(
        StepId::NetAutocork,
        Sysctl("net.ipv4.tcp_autocorking", Is("0")),
        "small writes wait until the one before has left the device",
        "kernel documentation, ip-sysctl",
    ),
    disputed(
        machine(
            StepId::VirtHaltHost,
            Machine(&[(MachineSetting::HostHaltPoll, AtLeast(200_000))]),
            "a guest that blocks is woken through the host's scheduler: 34 to 27 µs",
            "kernel documentation, KVM halt polling",
        ),
        "VMware measured its like as harmful",
    ),
    machine(
        StepId::GuestHaltPoll,
        Machine(&[(MachineSetting::GuestHaltPoll, AtLeast(200_000))]),
        "each wait halts the virtual CPU, which costs an exit",
        "kernel documentation, guest halt polling",
    ),
    machine(
        StepId::KernSkewTick,
        CommandLine("skew_tick=1"),
        "the ticks of all CPUs contend for the same locks",
        TUNED,
    ),
    security(machine(
        StepId::KernAudit,
        CommandLine("audit=0"),
        "with audit rules every system call takes the slow path",
        JUDGEMENT,
    )),
    security(machine(
        StepId::KernMitigations,
        CommandLine("mitigations=off"),
        "entering the kernel costs several times as much",
        "OTC, getpid on Xeon E5-2667 v4, 2018",
    )),
    security(machine(
        StepId::IommuMode,
        CommandLine("iommu=pt"),
        "each buffer of a device is mapped and unmapped",
        "kernel documentation; Intel 700 and 800 series guides",
    )),
];

/// What is known about a step.
pub fn step(id: StepId) -> &'static Step {
    // A test checks that every id has exactly one entry.
    STEPS.iter().find(|step| step.id == id).unwrap_or(&STEPS[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_has_one_entry_with_a_reason_and_a_source() {
        assert_eq!(STEPS.len(), StepId::ALL.len());
        for id in StepId::ALL {
            let entry = step(*id);
            assert_eq!(entry.id, *id);
            assert!(!entry.why.is_empty() && !entry.source.is_empty(), "{id}");
            assert!(!entry.conflicts.contains(id), "{id}");
            assert_eq!(id.name().parse::<StepId>().unwrap(), *id);
            let json = serde_json::to_string(id).unwrap();
            assert_eq!(json, format!("\"{id}\""));
        }
        let error = "mem.tph".parse::<StepId>().unwrap_err().to_string();
        assert!(error.contains("did you mean `mem.thp`?"), "{error}");
    }

    #[test]
    fn a_change_of_queues_comes_before_the_other_settings_of_a_link() {
        let place = |id| STEPS.iter().position(|step| step.id == id).unwrap();
        for later in [StepId::NicCoalesce, StepId::NicAdaptive, StepId::NicGro, StepId::NicPause] {
            assert!(place(StepId::NicChannels) < place(later), "{later}");
            assert!(place(StepId::NicRings) < place(later), "{later}");
        }
        assert!(place(StepId::CpuEnergy) < place(StepId::CpuGovernor));
    }
}
