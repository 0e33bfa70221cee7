//! Settings of the firmware, as the host's management controller tells them, and whether the kernel
//! sees what they say.

use nm_model::Severity;
use nm_model::finding::Confidence::Documented;
use nm_model::finding::FixKind::{Firmware, Record};
use nm_model::finding::{Evidence, Threat, UndoClass};
use nm_model::firmware::Firmware as Told;
use nm_settings::firmware::{self as catalogue, FirmwareSetting, Meaning, Reading};
use nm_settings::source;
use nm_settings::target::MachineSetting;

use super::common::plural;
use crate::check::Check;
use crate::machine::{Layer, Machine};
use crate::observed::{Observed, evidence};

/// A check of one setting: what it is about and why stands in the catalogue.
const fn of_setting(
    id: &'static str,
    setting: &'static FirmwareSetting,
    severity: Severity,
    fix: &'static str,
    run: fn(&Machine<'_>) -> Observed,
) -> Check {
    Check {
        id,
        title: setting.title,
        severity,
        why: setting.why,
        sources: setting.sources,
        fix: (Firmware, fix),
        undo: UndoClass::Firmware,
        confidence: Documented,
        threatens: &[Threat::Median, Threat::Wakeup, Threat::Tail],
        run,
        ..Check::UNDECLARED
    }
}

/// The checks.
pub const CHECKS: &[Check] = &[
    of_setting(
        "firmware.profile",
        &catalogue::POWER_PROFILE,
        Severity::High,
        "choose the maker's profile for maximum performance or low latency",
        |m| judge(m, &catalogue::POWER_PROFILE),
    ),
    Check {
        conflict: Some(
            "where the kernel keeps the workload's CPUs awake (cpu.cstate), the others may sleep, \
             and their turbo is higher",
        ),
        ..of_setting(
            "firmware.idle",
            &catalogue::IDLE_STATES,
            Severity::Medium,
            "switch idle states of cores off, or limit them in the kernel",
            |m| judge(m, &catalogue::IDLE_STATES),
        )
    },
    of_setting(
        "firmware.package_idle",
        &catalogue::PACKAGE_IDLE,
        Severity::Medium,
        "switch idle states of the package and the fabric off",
        |m| judge(m, &catalogue::PACKAGE_IDLE),
    ),
    of_setting("firmware.c1e", &catalogue::C1E, Severity::Medium, "switch C1E off", |m| {
        judge(m, &catalogue::C1E)
    }),
    of_setting(
        "firmware.uncore",
        &catalogue::UNCORE,
        Severity::Medium,
        "set the clock of the mesh to its maximum",
        |m| judge(m, &catalogue::UNCORE),
    ),
    of_setting("firmware.aspm", &catalogue::LINK_SLEEP, Severity::Low, "switch ASPM off", |m| {
        judge(m, &catalogue::LINK_SLEEP)
    }),
    Check {
        id: "firmware.waiting",
        title: "settings of the firmware that wait for a restart",
        severity: Severity::High,
        why: "what was set and is not in force explains no figure, and changes them at the next \
              restart",
        sources: &[source::REDFISH],
        fix: (
            Firmware,
            "restart the host, or take the settings back with `nearmetal firmware undo`",
        ),
        undo: UndoClass::Firmware,
        threatens: &[Threat::Median, Threat::Tail],
        run: waiting,
        ..Check::UNDECLARED
    },
    Check {
        id: "firmware.in_force",
        title: "settings of the firmware and what the kernel sees",
        severity: Severity::High,
        why: "a setting that the controller shows and the kernel does not see is not in force: \
              after a change without a restart, or because the kernel overrides it",
        sources: &[source::REDFISH, source::K_INTEL_IDLE, source::K_CPUFREQ],
        fix: (Record, "restart the host; if they still differ, believe the kernel"),
        threatens: &[Threat::Median, Threat::Tail],
        run: in_force,
        ..Check::UNDECLARED
    },
];

/// What the controller says, or that nobody has asked it.
fn told<'a>(m: &Machine<'a>) -> Result<&'a Told, Observed> {
    let told = m.snapshot.calls.firmware.as_ref();
    told.ok_or_else(|| {
        Observed::not_applicable("no management controller was asked; `--bmc` names it")
    })
}

fn shown(reading: &Reading<'_>) -> String {
    format!("{} = {}", reading.name, reading.value)
}

fn seen(told: &Told, readings: &[Reading<'_>]) -> Vec<Evidence> {
    let host = format!("{} {}", told.manufacturer, told.model);
    readings.iter().map(|one| evidence(one.name, one.value, host.trim())).collect()
}

/// Judges a setting by what the catalogue wants.
fn judge(m: &Machine<'_>, setting: &FirmwareSetting) -> Observed {
    let told = match told(m) {
        Ok(told) => told,
        Err(observed) => return observed,
    };
    let readings = setting.readings(&told.attributes);
    let list =
        |list: &[&Reading<'_>]| list.iter().map(|one| shown(one)).collect::<Vec<_>>().join(", ");
    if readings.is_empty() {
        let text = format!("the controller tells no setting that is known: {}", setting.title);
        return Observed::unknown(text);
    }
    // Automatic is what the maker chose, and another profile decides what is custom.
    let is_open = |one: &&Reading<'_>| {
        matches!(one.meaning, None | Some(Meaning::Automatic | Meaning::Custom))
    };
    let is_bad = |one: &&Reading<'_>| !is_open(one) && one.meaning != setting.wanted;
    let bad: Vec<&Reading<'_>> = readings.iter().filter(is_bad).collect();
    let open: Vec<&Reading<'_>> = readings.iter().filter(is_open).collect();
    let observed = match (&bad[..], &open[..]) {
        ([], []) => Observed::pass(list(&readings.iter().collect::<Vec<_>>())),
        ([], open) => Observed::unknown(format!("{}, which does not decide", list(open))),
        (bad, _) => Observed::fail(list(bad)),
    };
    observed.with(seen(told, &readings))
}

fn waiting(m: &Machine<'_>) -> Observed {
    let told = match told(m) {
        Ok(told) => told,
        Err(observed) => return observed,
    };
    let Some(waiting) = &told.waiting else {
        return Observed::unknown("the controller has no list of settings that wait");
    };
    if waiting.is_empty() {
        return Observed::pass("no setting that a check knows waits for a restart");
    }
    let evidence = waiting.iter().map(|(name, value)| {
        let now = told.attributes.get(name).map_or("nothing", String::as_str);
        evidence(name, value, format!("{now} until the restart"))
    });
    let count = plural(waiting.len(), "setting waits", "settings wait");
    let names: Vec<&str> = waiting.keys().map(String::as_str).collect();
    Observed::fail(format!("{count} for a restart: {}", names.join(", "))).with(evidence)
}

/// What the kernel finds of a setting, as a meaning of it; nothing if it cannot tell.
type Look = fn(&Machine<'_>) -> Option<Meaning>;

/// Settings that the kernel sees as well.
const SEEN: &[(&FirmwareSetting, Look)] = &[
    (&catalogue::THREADS, threads),
    (&catalogue::TURBO, turbo),
    (&catalogue::IOMMU, iommu),
    (&catalogue::IDLE_STATES, idle),
    (&catalogue::DOMAINS, domains),
];

fn in_force(m: &Machine<'_>) -> Observed {
    let told = match told(m) {
        Ok(told) => told,
        Err(observed) => return observed,
    };
    if m.layer == Layer::Guest {
        return Observed::not_applicable("a guest does not see the settings of its host");
    }
    match told.is_this_machine {
        Some(true) => {}
        Some(false) => return Observed::not_applicable("the controller is another machine's"),
        None => {
            return Observed::unknown(
                "nothing shows that the controller is this machine's; run the audit as root",
            );
        }
    }
    let (mut compared, mut differing) = (vec![], vec![]);
    for (setting, look) in SEEN {
        let Some(kernel) = look(m) else { continue };
        for reading in setting.readings(&told.attributes) {
            let Some(differs) = reading.meaning.and_then(|told| differs(told, kernel)) else {
                continue;
            };
            let text = format!("the kernel finds {}", word(kernel));
            compared.push(evidence(reading.name, reading.value, text.clone()));
            if differs {
                differing.push(format!("{}, but {text}", shown(&reading)));
            }
        }
    }
    match (&differing[..], &compared[..]) {
        ([], []) => Observed::unknown("no setting of the firmware can be compared"),
        ([], all) => {
            let n = plural(all.len(), "setting is", "settings are each");
            Observed::pass(format!("{n} as the kernel finds it")).with(compared)
        }
        (texts, _) => Observed::fail(texts.join("; ")).with(compared),
    }
}

/// Whether firmware and kernel contradict each other; absent if that cannot be told. The kernel may
/// switch off what the firmware has on.
fn differs(told: Meaning, kernel: Meaning) -> Option<bool> {
    match (told, kernel) {
        (Meaning::On, Meaning::Off) => None,
        (Meaning::On | Meaning::Off, Meaning::On | Meaning::Off) => Some(told != kernel),
        (Meaning::Count(told), Meaning::Count(kernel)) => Some(told != kernel),
        _ => None,
    }
}

fn word(meaning: Meaning) -> String {
    match meaning {
        Meaning::On => "it on".to_string(),
        Meaning::Off => "it off".to_string(),
        Meaning::Count(n) => n.to_string(),
        other => format!("{other:?}").to_lowercase(),
    }
}

fn switch(is_on: bool) -> Meaning {
    if is_on { Meaning::On } else { Meaning::Off }
}

/// Whether cores have several threads.
fn threads(m: &Machine<'_>) -> Option<Meaning> {
    match m.text("/sys/devices/system/cpu/smt/active")? {
        "0" => Some(Meaning::Off),
        "1" => Some(Meaning::On),
        _ => None,
    }
}

/// Whether clocks above the nominal one are in use.
fn turbo(m: &Machine<'_>) -> Option<Meaning> {
    if let Some(text) = m.text(&MachineSetting::NoTurbo.path()) {
        return Some(switch(text == "0"));
    }
    m.text(&MachineSetting::Boost.path()).map(|text| switch(text == "1"))
}

/// Whether devices have groups, which an IOMMU makes.
fn iommu(m: &Machine<'_>) -> Option<Meaning> {
    let groups = m.snapshot.folders.get("/sys/kernel/iommu_groups")?;
    Some(switch(!groups.is_empty()))
}

/// Whether a CPU has an idle state that takes longer than C1.
fn idle(m: &Machine<'_>) -> Option<Meaning> {
    let first = m.online.first()?;
    let folder = format!("/sys/devices/system/cpu/cpu{first}/cpuidle");
    let latency_us = |state: usize| -> Option<u64> {
        m.text(&format!("{folder}/state{state}/latency"))?.parse().ok()
    };
    latency_us(0)?;
    let deepest = (0..16).map_while(latency_us).max()?;
    Some(switch(deepest > nm_settings::catalogue::IDLE_EXIT_US_MAX))
}

/// NUMA nodes of a socket.
fn domains(m: &Machine<'_>) -> Option<Meaning> {
    let nodes = nm_sys::hostfiles::parse_list(m.text("/sys/devices/system/node/has_cpu")?)?.len();
    let mut sockets: Vec<&str> = vec![];
    for cpu in &m.online {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id");
        let socket = m.text(&path)?;
        if !sockets.contains(&socket) {
            sockets.push(socket);
        }
    }
    let each = nodes.checked_div(sockets.len())?;
    (each > 0 && each * sockets.len() == nodes).then_some(Meaning::Count(each as u32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nm_model::snapshot::Calls;
    use nm_model::{FindingStatus, Snapshot};
    use std::collections::BTreeMap;

    fn map(list: &[(&str, &str)]) -> BTreeMap<String, String> {
        list.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    fn snapshot(attributes: &[(&str, &str)], files: &[(&str, &str)]) -> Snapshot {
        let firmware = Told {
            attributes: map(attributes),
            waiting: Some(BTreeMap::new()),
            is_this_machine: Some(true),
            ..Told::default()
        };
        let mut files = map(files);
        files.insert("/sys/devices/system/cpu/online".to_string(), "0-3".to_string());
        files.insert("/proc/cpuinfo".to_string(), "flags : fpu".to_string());
        Snapshot {
            files,
            calls: Calls { firmware: Some(firmware), ..Calls::default() },
            ..Snapshot::default()
        }
    }

    #[track_caller]
    fn check(
        run: fn(&Machine<'_>) -> Observed,
        snapshot: &Snapshot,
        status: FindingStatus,
        words: &str,
    ) {
        let observed = run(&Machine::new(snapshot));
        assert_eq!((observed.status, observed.summary.as_str()), (status, words));
    }

    #[test]
    fn a_setting_is_judged_by_the_meaning_of_its_words() {
        use FindingStatus::{Fail, NotApplicable, Pass, Unknown};
        let profile = |m: &Machine<'_>| judge(m, &catalogue::POWER_PROFILE);
        let judged = |list: &[(&str, &str)], status, words| {
            check(profile, &snapshot(list, &[]), status, words)
        };
        judged(&[("SysProfile", "PerfOptimized")], Pass, "SysProfile = PerfOptimized");
        judged(
            &[("SysProfile", "PerfPerWattOptimizedOs"), ("WorkloadProfile", "NotConfigured")],
            Fail,
            "SysProfile = PerfPerWattOptimizedOs",
        );
        let open = "SysProfile = Custom, which does not decide";
        judged(&[("SysProfile", "Custom")], Unknown, open);
        judged(
            &[("SysProfile", "Custom"), ("PowerRegulator", "DynamicPowerSavings")],
            Fail,
            "PowerRegulator = DynamicPowerSavings",
        );
        let none = "the controller tells no setting that is known: power profile of the firmware";
        judged(&[("Other", "x")], Unknown, none);
        let nobody = "no management controller was asked; `--bmc` names it";
        check(profile, &Snapshot::default(), NotApplicable, nobody);
    }

    #[test]
    fn what_waits_for_a_restart_is_a_finding() {
        let mut one = snapshot(&[("ProcCStates", "Enabled")], &[]);
        let passed = "no setting that a check knows waits for a restart";
        check(waiting, &one, FindingStatus::Pass, passed);
        let firmware = one.calls.firmware.as_mut().unwrap();
        firmware.waiting = Some(map(&[("ProcCStates", "Disabled")]));
        let failed = "1 setting waits for a restart: ProcCStates";
        check(waiting, &one, FindingStatus::Fail, failed);
        one.calls.firmware.as_mut().unwrap().waiting = None;
        let unknown = "the controller has no list of settings that wait";
        check(waiting, &one, FindingStatus::Unknown, unknown);
    }

    #[test]
    fn the_kernel_contradicts_a_setting_that_is_not_in_force() {
        use FindingStatus::{Fail, NotApplicable, Pass, Unknown};
        let active = "/sys/devices/system/cpu/smt/active";
        let turbo = MachineSetting::NoTurbo.path();
        let turbo = turbo.as_str();
        let seen = |attributes: &[(&str, &str)], files: &[(&str, &str)], status, words| {
            check(in_force, &snapshot(attributes, files), status, words)
        };
        let off = [("LogicalProc", "Disabled")];
        seen(&off, &[(active, "0")], Pass, "1 setting is as the kernel finds it");
        let contradicted = "LogicalProc = Disabled, but the kernel finds it on";
        seen(&off, &[(active, "1")], Fail, contradicted);
        let none = "no setting of the firmware can be compared";
        // The kernel may switch siblings and turbo off by itself.
        seen(&[("LogicalProc", "Enabled")], &[(active, "0")], Unknown, none);
        seen(&[("ProcTurboMode", "Enabled")], &[(turbo, "1")], Unknown, none);
        let turbo_on = "ProcTurboMode = Disabled, but the kernel finds it on";
        seen(&[("ProcTurboMode", "Disabled")], &[(turbo, "0")], Fail, turbo_on);
        // `intel_idle` knows its states without asking the firmware.
        let idle =
            |n: u32, us| (format!("/sys/devices/system/cpu/cpu0/cpuidle/state{n}/latency"), us);
        let states = [idle(0, "0"), idle(1, "2"), idle(2, "133")];
        let states: Vec<(&str, &str)> =
            states.iter().map(|(path, us)| (path.as_str(), *us)).collect();
        let sleeps = "ProcCStates = Disabled, but the kernel finds it on";
        seen(&[("ProcCStates", "Disabled")], &states, Fail, sleeps);
        // What the package may do, no core shows.
        seen(&[("PackageCState", "Disabled")], &states, Unknown, none);
        let c1 = "1 setting is as the kernel finds it";
        seen(&[("ProcCStates", "Disabled")], &states[..2], Pass, c1);
        let mut other = snapshot(&off, &[(active, "1")]);
        other.calls.firmware.as_mut().unwrap().is_this_machine = Some(false);
        check(in_force, &other, NotApplicable, "the controller is another machine's");
        other.calls.firmware.as_mut().unwrap().is_this_machine = None;
        let root = "nothing shows that the controller is this machine's; run the audit as root";
        check(in_force, &other, Unknown, root);
    }

    #[test]
    fn nodes_of_a_socket_are_counted() {
        let socket =
            |cpu: u32| format!("/sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id");
        let sockets: Vec<String> = (0..4).map(socket).collect();
        let mut files = vec![("/sys/devices/system/node/has_cpu", "0-3")];
        files
            .extend(sockets.iter().zip(["0", "0", "1", "1"]).map(|(path, id)| (path.as_str(), id)));
        let one = snapshot(&[("NumaNodesPerSocket", "4")], &files);
        let words = "NumaNodesPerSocket = 4, but the kernel finds 2";
        check(in_force, &one, FindingStatus::Fail, words);
    }
}
