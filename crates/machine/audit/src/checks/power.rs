//! The processor's power management, hyper-threading, firmware.

use nm_model::Severity;
use nm_model::finding::Confidence::{Documented, Judgement, Measured};
use nm_model::finding::FixKind::{Command, Firmware, Hardware, Record};
use nm_model::finding::{Threat, UndoClass};

use super::common::{Judged, by_content, group_evidence, judge, no_cpu, plural, unread};
use crate::check::Check;
use crate::machine::{Layer, Machine, cpu};
use crate::observed::{Observed, evidence, missing};
use nm_settings::catalogue::IDLE_EXIT_US_MAX;
use nm_settings::setting::Action;
use nm_settings::target::{CpuSetting, MachineSetting};
use nm_settings::wanted::Wanted;
use nm_settings::{SettingId, setting, source};
use nm_sys::cpu_list;

/// The checks.
pub const CHECKS: &[Check] = &[
    Check {
        id: "cpu.cstate",
        title: "idle states that take long to leave",
        severity: Severity::High,
        settings: &[SettingId::CpuIdle],
        confidence: Measured,
        effect: Some(
            "+40 % round trip with idle states and frequency scaling (monterey-2010); wake-ups of \
             10 to 200 µs (AWS)",
        ),
        threatens: &[Threat::Wakeup, Threat::Tail],
        run: cstate,
        ..Check::UNDECLARED
    },
    Check {
        id: "cpu.governor",
        title: "frequency governor and energy preference",
        severity: Severity::High,
        settings: &[SettingId::CpuGovernor, SettingId::CpuEnergy],
        effect: Some("changes of frequency take 10 to 50 µs (AWS)"),
        threatens: &[Threat::Median, Threat::Wakeup, Threat::Tail],
        run: governor,
        ..Check::UNDECLARED
    },
    Check {
        id: "cpu.boost",
        title: "turbo frequencies",
        severity: Severity::Medium,
        settings: &[SettingId::CpuBoost],
        confidence: Judgement,
        threatens: &[Threat::Median],
        run: boost,
        ..Check::UNDECLARED
    },
    Check {
        id: "cpu.min_max",
        title: "range of frequencies",
        severity: Severity::Medium,
        settings: &[SettingId::CpuMinFrequency],
        confidence: Documented,
        threatens: &[Threat::Median, Threat::Tail],
        run: min_max,
        ..Check::UNDECLARED
    },
    Check {
        id: "cpu.smt",
        title: "hyper-threading",
        severity: Severity::High,
        why: "the other thread of a core uses the same caches and execution units",
        sources: &[source::RIGTORP, source::VMWARE, source::MONTEREY],
        fix: (Command, "for c in CPULIST; do echo 0 > /sys/devices/system/cpu/cpu$c/online; done"),
        undo: UndoClass::Live,
        confidence: Measured,
        effect: Some(
            "beside another, a thread has 60 to 69 % of the core's speed; both together x1.21 to \
             x1.31 (monterey-2010)",
        ),
        conflict: Some(
            "switching all siblings off costs throughput; it is enough that those of the \
             workload's CPUs are offline or idle",
        ),
        threatens: &[Threat::Median, Threat::Tail],
        run: smt,
        ..Check::UNDECLARED
    },
    Check {
        id: "cpu.throttle",
        title: "throttling by heat",
        severity: Severity::Critical,
        why: "the clock falls in the middle of a run",
        sources: &[source::JUDGEMENT],
        fix: (Hardware, "improve the cooling, or raise the power limit"),
        confidence: Judgement,
        threatens: &[Threat::Median, Threat::Tail, Threat::Throughput],
        run: throttle,
        ..Check::UNDECLARED
    },
    Check {
        id: "cpu.smi",
        title: "interrupts of the firmware (SMI)",
        severity: Severity::Critical,
        why: "the firmware takes all CPUs, and the operating system cannot see it",
        sources: &[source::K_HWLAT],
        fix: (Firmware, "power capping, legacy USB and patrol scrubbing off"),
        undo: UndoClass::Firmware,
        effect: Some("sometimes milliseconds (Linux kernel, hwlat)"),
        threatens: &[Threat::Tail, Threat::Maximum],
        run: smi,
        ..Check::UNDECLARED
    },
    Check {
        id: "cpu.overclock",
        title: "clock above or below the nominal one",
        severity: Severity::Info,
        why: "explains why a machine is faster than another of the same model",
        sources: &[source::DEFTECH],
        fix: (Record, "name the frequency beside the figures"),
        confidence: Measured,
        effect: Some("the faster machines of deftech-2019 ran 2 % above their nominal clock"),
        threatens: &[Threat::Median],
        run: overclock,
        ..Check::UNDECLARED
    },
    Check {
        id: "cpu.bios",
        title: "firmware of the machine",
        severity: Severity::Medium,
        why: "idle states, frequency control, sub-NUMA clusters and link power saving are decided \
              by the firmware's profile, which software cannot read",
        sources: &[source::MONTEREY, source::RIGTORP, source::NOVA],
        fix: (Firmware, "choose the vendor's profile for maximum performance or low latency"),
        undo: UndoClass::Firmware,
        threatens: &[Threat::Median, Threat::Wakeup, Threat::Tail],
        run: bios,
        ..Check::UNDECLARED
    },
];

/// `1 2 3`, for a loop of the shell.
fn words(cpus: &[u32]) -> String {
    cpus.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")
}

/// What the absence of power management means here.
fn no_driver(m: &Machine<'_>, what: &str, path: &str) -> Observed {
    match m.is_guest() {
        true => Observed::not_applicable(format!("the guest has no {what}; the host decides"))
            .with([m.evidence(path, "")]),
        false => unread(m, what, &[path]),
    }
}

/// Idle states of a CPU: number, name, exit latency in µs, disabled, entries during the snapshot.
fn idle_states(m: &Machine<'_>, of: u32) -> Vec<(usize, String, i64, bool, Option<i64>)> {
    const STATES_MAX: usize = 16;
    let file = |state: usize, name: &str| cpu(of, &format!("cpuidle/state{state}/{name}"));
    let states = (0..STATES_MAX).map_while(|state| {
        let latency = m.number(&file(state, "latency"))?;
        let name = m.text(&file(state, "name")).unwrap_or("?").to_string();
        let usage = file(state, "usage");
        let entries = m
            .second(&usage)
            .and_then(|text| Some(text.trim().parse::<i64>().ok()? - m.number(&usage)?));
        Some((state, name, latency, m.number(&file(state, "disable")) == Some(1), entries))
    });
    states.collect()
}

fn cstate(m: &Machine<'_>) -> Observed {
    let mut slow = vec![];
    let mut seen = vec![];
    let mut n_known = 0;
    for &one in &m.hot {
        let states = idle_states(m, one);
        n_known += usize::from(!states.is_empty());
        // -1 stands for `n/a`: no idle state at all.
        let limit = match m.text(&cpu(one, CpuSetting::PmQosResumeLatency.file())) {
            Some("n/a") => 0,
            Some(text) => text.parse().ok().filter(|us| *us > 0).unwrap_or(i64::MAX),
            None => i64::MAX,
        };
        let deepest = states
            .iter()
            .filter(|(_, _, latency, is_disabled, _)| {
                !is_disabled && *latency > IDLE_EXIT_US_MAX as i64 && *latency <= limit
            })
            .max_by_key(|(_, _, latency, ..)| *latency);
        if let Some((state, name, latency, _, entries)) = deepest {
            slow.push(one);
            if seen.len() < 4 {
                let path = cpu(one, &format!("cpuidle/state{state}/latency"));
                let used = entries
                    .map_or(String::new(), |n| format!(", entered {n} times during the snapshot"));
                seen.push(m.evidence(&path, format!("{name}: {latency} µs{used}")));
            }
        }
    }
    if n_known == 0 {
        return no_driver(m, "idle driver with states", &cpu(0, "cpuidle/state1/latency"));
    }
    if seen.is_empty() {
        let first = m.hot.first().copied().unwrap_or(0);
        seen.push(m.evidence(&cpu(first, "cpuidle/state1/disable"), "state 1 is not used"));
    }
    Observed::bad_if(
        !slow.is_empty(),
        format!(
            "CPUs {} may enter idle states of more than {IDLE_EXIT_US_MAX} µs",
            cpu_list::list(&slow)
        ),
        format!(
            "CPUs {} enter no idle state of more than {IDLE_EXIT_US_MAX} µs",
            cpu_list::list(&m.hot)
        ),
    )
    .replace("CPULIST", words(&slow))
    .with(seen)
}

fn governor(m: &Machine<'_>) -> Observed {
    let mut slow: Vec<u32> = vec![];
    let mut at_fault = vec![];
    let mut seen = vec![];
    for id in [SettingId::CpuGovernor, SettingId::CpuEnergy] {
        let Action::AllCpus(file, goal) = setting(id).action else { continue };
        let groups = by_content(m, &m.online, |one| cpu(one, file.file()));
        if id == SettingId::CpuGovernor && groups.is_empty() {
            return no_driver(m, "frequency driver", &cpu(0, file.file()));
        }
        let wrong = groups.iter().filter(|(text, ..)| goal.accepts(text) == Some(false));
        let cpus: Vec<u32> = wrong.flat_map(|(_, _, cpus)| cpus.clone()).collect();
        if !cpus.is_empty() {
            at_fault.push(id);
            slow.extend(cpus);
        }
        seen.extend(group_evidence(&groups));
    }
    slow.sort_unstable();
    slow.dedup();
    Observed::bad_if(
        !slow.is_empty(),
        format!("CPUs {} save energy", cpu_list::list(&slow)),
        format!("CPUs {} prefer performance", cpu_list::list(&m.online)),
    )
    .replace("CPULIST", words(&slow))
    .at_fault(at_fault)
    .with(seen)
}

fn boost(m: &Machine<'_>) -> Observed {
    let Some(Judged { path, is_good, goal, .. }) = judge(m, SettingId::CpuBoost) else {
        let path = MachineSetting::Boost.path();
        return no_driver(m, "switch for turbo frequencies", &path);
    };
    Observed::bad_if(!is_good, "turbo frequencies are off", "turbo frequencies are on")
        .replace("VALUE", goal.word())
        .replace("PATH", path.as_str())
        .with([m.evidence(&path, if is_good { "on" } else { "off" })])
}

fn min_max(m: &Machine<'_>) -> Observed {
    let khz = |one, name: &str| m.number(&cpu(one, &format!("cpufreq/{name}")));
    let known: Vec<(u32, i64, i64)> = m
        .hot
        .iter()
        .filter_map(|&one| {
            Some((one, khz(one, "scaling_min_freq")?, khz(one, "scaling_max_freq")?))
        })
        .collect();
    let Some(first) = known.first().copied() else {
        return no_driver(m, "frequency driver", &cpu(0, "cpufreq/scaling_min_freq"));
    };
    let number = |khz: i64| u64::try_from(khz).unwrap_or_default();
    let is_wide = |(one, min, max): &(u32, i64, i64)| {
        let base = khz(*one, "base_frequency").map(number);
        Wanted::frequency(base, number(*max)).accepts(&min.to_string()) == Some(false)
    };
    let wide: Vec<(u32, i64, i64)> = known.iter().copied().filter(is_wide).collect();
    let cpus: Vec<u32> = wide.iter().map(|(one, ..)| *one).collect();
    let (shown, min, max) = wide.first().copied().unwrap_or(first);
    let range = format!("{} to {} MHz", min / 1_000, max / 1_000);
    Observed::bad_if(
        !cpus.is_empty(),
        format!(
            "the frequency of CPUs {} may vary, on CPU {shown} from {range}",
            cpu_list::list(&cpus)
        ),
        format!("the frequency does not fall below the base: {range}"),
    )
    .replace("CPULIST", words(&cpus))
    .with([
        m.evidence(&cpu(shown, "cpufreq/scaling_min_freq"), "kHz, lowest"),
        m.evidence(&cpu(shown, "cpufreq/scaling_max_freq"), "kHz, highest"),
    ])
}

fn smt(m: &Machine<'_>) -> Observed {
    const ACTIVE: &str = "/sys/devices/system/cpu/smt/active";
    let topology = by_content(m, &m.online, |one| cpu(one, "topology/thread_siblings_list"));
    if topology.is_empty() {
        return unread(
            m,
            "which CPUs share a core",
            &[ACTIVE, &cpu(0, "topology/thread_siblings_list")],
        );
    }
    if m.hot.is_empty() {
        return no_cpu(m);
    }
    let mut shared: Vec<u32> = vec![];
    let mut seen = vec![m.evidence(ACTIVE, "hyper-threading in use")];
    seen.extend(group_evidence(&topology[..1]));
    for group in &m.facts.cpu.siblings {
        if group.iter().any(|one| m.hot.contains(one)) {
            // All but the first of a core can go.
            let keep = group.iter().find(|one| m.hot.contains(one)).copied();
            shared.extend(group.iter().filter(|one| Some(**one) != keep));
            let first = keep.unwrap_or_default();
            let path = cpu(first, "topology/thread_siblings_list");
            seen.push(m.evidence(&path, format!("CPUs {} share a core", cpu_list::list(group))));
        }
    }
    let text = format!(
        "CPUs {} of the workload share cores with {}",
        cpu_list::list(&m.hot),
        plural(shared.len(), "other CPU", "other CPUs") + " that are online"
    );
    let note = if m.is_guest() { "; what the hypervisor shows may not be true" } else { "" };
    Observed::bad_if(!shared.is_empty(), text, format!("no CPU shares a core{note}"))
        .replace("CPULIST", words(&shared))
        .with(seen)
}

fn throttle(m: &Machine<'_>) -> Observed {
    let path = |one| cpu(one, "thermal_throttle/core_throttle_count");
    let mut risen = vec![];
    let mut total = 0;
    let mut n_known = 0;
    for &one in &m.online {
        let Some(first) = m.number(&path(one)) else { continue };
        n_known += 1;
        total += first;
        let later = m.second(&path(one)).and_then(|text| text.trim().parse::<i64>().ok());
        if later.is_some_and(|later| later > first) {
            risen.push(one);
        }
    }
    if n_known == 0 {
        return no_driver(m, "count of thermal throttling", &path(0));
    }
    let shown = risen.first().or(m.online.first()).copied().unwrap_or(0);
    let seen = [m.evidence(&path(shown), format!("{total} on all CPUs since boot"))];
    if m.snapshot.second.is_none() && total > 0 {
        return Observed::unknown(format!(
            "CPUs were throttled {total} times since boot; whether they still are needs two samples"
        ))
        .with(seen);
    }
    Observed::bad_if(
        !risen.is_empty(),
        format!("CPUs {} were throttled during the snapshot", cpu_list::list(&risen)),
        format!("no CPU was throttled during the snapshot, {total} times since boot"),
    )
    .with(seen)
}

fn smi(m: &Machine<'_>) -> Observed {
    if m.is_guest() {
        return Observed::not_applicable("the host's firmware is out of a guest's reach");
    }
    Observed::unknown(
        "the count of the firmware's interrupts is in a register that is not read; compare two \
         readings of `rdmsr 0x34`, or run `rtla hwnoise`",
    )
    .with([missing("MSR 0x34", "not read, because no device is opened")])
}

fn overclock(m: &Machine<'_>) -> Observed {
    let measured = m.snapshot.calls.active.as_ref().and_then(|active| active.clock_hz);
    let nominal = m.snapshot.calls.cpuid.as_ref().and_then(|cpuid| cpuid.nominal_khz);
    let (Some(hz), Some(khz)) = (measured, nominal) else {
        return Observed::unknown("measured only with --active, where CPUID names a frequency")
            .with([missing("CPUID 0x15, 0x16", "no nominal frequency, or not measured")]);
    };
    let ratio = hz / (khz as f64 * 1e3);
    let text = format!("the timestamp counter runs at {ratio:.4} of its nominal frequency");
    Observed::bad_if(ratio > 1.005, text.clone(), text.clone()).with([evidence(
        "CPUID 0x15, 0x16",
        &format!("{khz} kHz"),
        format!("{hz:.0} Hz measured"),
    )])
}

fn bios(m: &Machine<'_>) -> Observed {
    if m.layer == Layer::Guest {
        return Observed::not_applicable("the host's firmware is out of a guest's reach");
    }
    let date = "/sys/class/dmi/id/bios_date";
    let version = "/sys/class/dmi/id/bios_version";
    Observed::unknown(
        "the profile of the firmware, its prefetchers and whether C1 becomes C1E cannot be read \
         without opening a device (MSR 0x1a4, 0x1fc)",
    )
    .with([m.evidence(version, "version"), m.evidence(date, "date")])
}
