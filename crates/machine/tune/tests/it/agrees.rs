//! What `tune` writes is what `audit` accepts: both read the same entry of the catalogue.

use std::collections::BTreeMap;
use std::path::Path;

use nm_audit::{audit, checks};
use nm_host::snapshot;
use nm_model::FindingStatus;
use nm_model::snapshot::{Channels, Coalescing, Cpuid, LinkCalls, Pause, Rings, Workload};
use nm_settings::setting::{Action, NumberGoal};
use nm_settings::target::{LinkSetting, Target};
use nm_settings::value::Value;
use nm_settings::{SettingId, catalogue, setting};
use nm_tune::machine::{HostMachine, Machine};
use nm_tune::plan::{Choice, Planned, Selection, Wanted, plan};

use crate::simulated::{folder, link, put};

const HOT: [u32; 2] = [2, 3];

/// Judged by what the kernel made of it, which no file of a tree follows.
const BY_EFFECT: [SettingId; 2] = [SettingId::KernMitigations, SettingId::IommuMode];

/// A machine on which no setting is as it should be.
fn worst(root: &Path) {
    let cpus = "/sys/devices/system/cpu";
    put(root, &format!("{cpus}/online"), "0-3\n");
    put(root, &format!("{cpus}/intel_pstate/no_turbo"), "1\n");
    put(root, &format!("{cpus}/nohz_full"), "\n");
    for cpu in 0..4 {
        for (file, text) in [
            ("power/pm_qos_resume_latency_us", "0\n"),
            ("cpufreq/scaling_governor", "powersave\n"),
            ("cpufreq/energy_performance_preference", "balance_power\n"),
            ("cpufreq/base_frequency", "2000000\n"),
            ("cpufreq/scaling_min_freq", "800000\n"),
            ("cpufreq/scaling_max_freq", "4000000\n"),
            ("cpuidle/state0/latency", "2\n"),
            ("cpuidle/state1/latency", "133\n"),
        ] {
            put(root, &format!("{cpus}/cpu{cpu}/{file}"), text);
        }
    }
    for (name, text) in [
        ("kernel/timer_migration", "1\n"),
        ("kernel/nmi_watchdog", "1\n"),
        ("kernel/sched_rt_runtime_us", "950000\n"),
        ("kernel/numa_balancing", "1\n"),
        ("vm/stat_interval", "1\n"),
        ("vm/compaction_proactiveness", "20\n"),
        ("vm/dirty_background_bytes", "0\n"),
        ("vm/dirty_background_ratio", "10\n"),
        ("net/core/busy_read", "20\n"),
        ("net/core/busy_poll", "0\n"),
        ("net/ipv4/tcp_slow_start_after_idle", "1\n"),
        ("net/ipv4/tcp_autocorking", "1\n"),
    ] {
        put(root, &format!("/proc/sys/{name}"), text);
    }
    for (path, text) in [
        ("/sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n"),
        ("/sys/kernel/mm/transparent_hugepage/defrag", "[always] madvise never\n"),
        ("/sys/kernel/mm/ksm/run", "1\n"),
        ("/sys/devices/virtual/workqueue/cpumask", "f\n"),
        ("/sys/module/kvm/parameters/halt_poll_ns", "10000\n"),
        ("/sys/module/haltpoll/parameters/guest_halt_poll_ns", "0\n"),
        ("/sys/class/net/nic0/address", "02:00:00:00:00:01\n"),
        ("/sys/class/net/nic0/napi_defer_hard_irqs", "2\n"),
        ("/sys/class/net/nic0/gro_flush_timeout", "200000\n"),
        ("/sys/class/net/nic0/threaded", "1\n"),
        ("/sys/class/net/nic0/queues/rx-0/rps_cpus", "f\n"),
        ("/sys/class/net/nic0/queues/tx-0/xps_cpus", "0\n"),
        ("/sys/class/net/nic0/queues/tx-1/xps_cpus", "0\n"),
        ("/proc/irq/40/smp_affinity_list", "0-3\n"),
        ("/proc/interrupts", " CPU0 CPU1 CPU2 CPU3\n 40: 1 1 1 1 PCI-MSI nic0-rx-0\n"),
        ("/proc/cmdline", "quiet\n"),
        ("/proc/2/comm", "kthreadd\n"),
        ("/proc/80/comm", "qemu-system-x86\n"),
        ("/proc/81/comm", "stalld\n"),
        ("/proc/82/comm", "auditd\n"),
        ("/etc/audit/audit.rules", "-a always,exit -S all\n"),
    ] {
        put(root, path, text);
    }
    let stat = format!("77 (spinner) R {}1 0\n", "0 ".repeat(37));
    put(root, "/proc/77/task/77/stat", &stat);
}

/// The worst numbers of a link's driver, by setting.
fn worst_numbers() -> BTreeMap<LinkSetting, Vec<u32>> {
    let mut coalescing = vec![0; 23];
    for (index, number) in [(0, 50), (1, 8), (4, 50), (5, 8), (9, 1), (10, 1)] {
        coalescing[index] = number;
    }
    BTreeMap::from([
        (LinkSetting::Coalescing, coalescing),
        (LinkSetting::Rings, vec![64, 0, 0, 64]),
        (LinkSetting::Channels, vec![0, 0, 1, 4]),
        (LinkSetting::Pause, vec![0, 1, 1]),
        (LinkSetting::Gro, vec![1]),
        (LinkSetting::Lro, vec![1]),
    ])
}

fn calls(numbers: &BTreeMap<LinkSetting, Vec<u32>>) -> LinkCalls {
    let of = |setting, index: usize| numbers[&setting][index];
    let c = |index| of(LinkSetting::Coalescing, index);
    LinkCalls {
        up: true,
        coalescing: Some(Coalescing {
            rx_usecs: c(0),
            rx_frames: c(1),
            tx_usecs: c(4),
            tx_frames: c(5),
            adaptive_rx: c(9) > 0,
            adaptive_tx: c(10) > 0,
        }),
        rings: Some(Rings {
            rx: of(LinkSetting::Rings, 0),
            tx: of(LinkSetting::Rings, 3),
            rx_max: 4096,
            tx_max: 4096,
        }),
        channels: Some(Channels {
            combined: of(LinkSetting::Channels, 3),
            combined_max: 8,
            ..Channels::default()
        }),
        pause: Some(Pause {
            rx: of(LinkSetting::Pause, 1) > 0,
            tx: of(LinkSetting::Pause, 2) > 0,
            ..Pause::default()
        }),
        features: [("rx-gro", LinkSetting::Gro), ("rx-lro", LinkSetting::Lro)]
            .map(|(name, setting)| (name.to_string(), of(setting, 0) > 0))
            .into(),
        ..LinkCalls::default()
    }
}

/// What a step makes of a link's numbers, as far as a recorded tree cannot.
fn goals(id: SettingId) -> Option<(LinkSetting, Vec<(usize, NumberGoal)>)> {
    Some(match &setting(id).action {
        Action::Driver(of, goals) => (*of, goals.to_vec()),
        Action::RingEntries(entries) => {
            (LinkSetting::Rings, [0, 3].map(|at| (at, NumberGoal::AtLeast(*entries))).to_vec())
        }
        Action::QueueCount => (LinkSetting::Channels, vec![(3, NumberGoal::AtMost(2))]),
        _ => return None,
    })
}

/// The status of the check of each setting.
fn statuses(
    root: &Path,
    numbers: &BTreeMap<LinkSetting, Vec<u32>>,
) -> BTreeMap<SettingId, (FindingStatus, String)> {
    let workload = Workload { cpus: HOT.to_vec(), links: vec!["nic0".to_string()], pid: Some(77) };
    let mut taken = snapshot::of_root(root, &workload);
    taken.calls.links = Some(BTreeMap::from([("nic0".to_string(), calls(numbers))]));
    let findings = audit(&taken).findings;
    // What only guests have is judged in a guest.
    taken.calls.cpuid = Some(Cpuid { has_hypervisor: true, ..Cpuid::default() });
    let in_guest = audit(&taken).findings;
    let of = |id: &str| {
        let all = if id.starts_with("guest.") { &in_guest } else { &findings };
        all.iter().find(|one| one.id == id).expect("each check has one")
    };
    let mut found = BTreeMap::new();
    for check in checks::all() {
        let finding = of(check.id);
        for id in check.settings.iter().filter(|id| !BY_EFFECT.contains(id)) {
            let text = format!("{}: {} [{}]", check.id, finding.summary, finding.fix);
            found.insert(*id, (finding.status, text));
        }
    }
    found
}

/// Writes what the step of `id` wants, and returns what was there.
fn apply(
    id: SettingId,
    root: &Path,
    numbers: &mut BTreeMap<LinkSetting, Vec<u32>>,
) -> Vec<(Target, Value)> {
    if let Some((of, goals)) = goals(id) {
        let old = Value::Numbers(numbers[&of].clone());
        let Some(Value::Numbers(new)) = Wanted::Numbers(goals).resolve(&old) else {
            panic!("{id}")
        };
        numbers.insert(of, new);
        return vec![];
    }
    if let Action::CommandLine(word) = setting(id).action {
        let line = std::fs::read_to_string(root.join("proc/cmdline")).unwrap();
        let word = word.replace("{app}", "2-3");
        put(root, "/proc/cmdline", &format!("{} {word}\n", line.trim()));
        if id == SettingId::IsoTick {
            put(root, "/sys/devices/system/cpu/nohz_full", "2-3\n");
        }
        return vec![];
    }
    let mut machine = HostMachine::recorded(root);
    let choice = Choice { cpus: HOT.to_vec(), link: Some(link("nic0")) };
    let selection = Selection { only: vec![id], allow: vec![id], choice };
    let steps = plan(&selection, &machine).unwrap();
    let Planned::Changes(changes) = &steps[0].planned else { panic!("{id}: {:?}", steps[0]) };
    for change in changes {
        machine.write(&change.target, &change.new).unwrap();
    }
    let old =
        |change: &nm_tune::plan::PlannedChange| (change.target.clone(), change.current.clone());
    changes.iter().map(old).collect()
}

#[test]
fn what_tune_writes_is_what_audit_accepts() {
    let temporary = folder();
    let root = temporary.path();
    worst(root);
    let mut numbers = worst_numbers();
    // Four CPUs tick too seldom together to need the step.
    let is_needed = |id: &SettingId| setting(*id).cpus_min <= 4;
    for (id, (status, text)) in statuses(root, &numbers).iter().filter(|(id, _)| is_needed(id)) {
        assert_eq!(*status, FindingStatus::Fail, "{id} as it should not be: {text}");
    }
    let mut before = BTreeMap::new();
    for id in SettingId::ALL.iter().filter(|id| !BY_EFFECT.contains(id)) {
        before.insert(*id, apply(*id, root, &mut numbers));
    }
    for (id, (status, text)) in statuses(root, &numbers) {
        assert_eq!(status, FindingStatus::Pass, "{id} after its step: {text}");
    }
    // Each one alone is missed: no check passes because of another setting.
    for (id, old) in before.iter().filter(|(_, old)| !old.is_empty()) {
        let mut machine = HostMachine::recorded(root);
        let new: Vec<Value> = old.iter().map(|(target, _)| machine.read(target).unwrap()).collect();
        for (target, value) in old {
            machine.write(target, value).unwrap();
        }
        let (status, text) = &statuses(root, &numbers)[id];
        assert_eq!(*status, FindingStatus::Fail, "{id} was put back: {text}");
        for ((target, _), value) in old.iter().zip(&new) {
            machine.write(target, value).unwrap();
        }
    }
    for (setting, worst) in worst_numbers() {
        let good = numbers.insert(setting, worst).unwrap();
        let ids = catalogue::SETTINGS.iter().map(|entry| entry.id);
        for id in ids.filter(|id| goals(*id).is_some_and(|(of, _)| of == setting)) {
            let (status, text) = &statuses(root, &numbers)[&id];
            assert_eq!(*status, FindingStatus::Fail, "{id} was put back: {text}");
        }
        numbers.insert(setting, good);
    }
}
