//! Clocks: the kernel's source, its cost, the timestamp counter, synchronisation.

use nm_model::Severity;
use nm_model::finding::Confidence::{Documented, Measured};
use nm_model::finding::FixKind::{Command, Hypervisor, KernelCommandLine};
use nm_model::finding::{Threat, UndoClass};

use super::common::unread;
use crate::check::Check;
use crate::machine::Machine;
use crate::observed::{Observed, evidence, missing};
use nm_settings::source;

/// The checks.
pub const CHECKS: &[Check] = &[
    Check {
        id: "clk.source",
        title: "clock source of the kernel",
        severity: Severity::High,
        why: "sources other than the timestamp counter make each reading of the time a system call \
              or an access to a slow device",
        sources: &[source::PERFTUNE, source::AWS],
        fix: (
            Command,
            "echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource",
        ),
        undo: UndoClass::Live,
        confidence: Measured,
        effect: Some("a reading took 73 to 138 ns with tsc, 1.5 to 3 µs with another (field case)"),
        threatens: &[Threat::Median, Threat::Tail],
        run: clock_source,
        ..Check::UNDECLARED
    },
    Check {
        id: "clk.cost",
        title: "cost of reading the clock",
        severity: Severity::Medium,
        why: "it is part of every sample, and limits what can be distinguished",
        sources: &[source::PERFTUNE],
        fix: (KernelCommandLine, "clocksource=tsc tsc=reliable"),
        undo: UndoClass::Boot,
        confidence: Measured,
        effect: Some("24 ns by vDSO, 10 ns for the counter itself, 165 ns by a system call"),
        threatens: &[Threat::Median],
        run: cost,
        ..Check::UNDECLARED
    },
    Check {
        id: "clk.invariant",
        title: "timestamp counter of constant rate",
        severity: Severity::Critical,
        why: "a counter that changes its rate or stops gives wrong times to everything that uses \
              it, nearmetal included",
        sources: &[source::K_PARAMETERS, source::LIBVIRT],
        fix: (Hypervisor, "<feature policy='require' name='invtsc'/>"),
        undo: UndoClass::Host,
        confidence: Documented,
        threatens: &[Threat::Clock],
        run: invariant,
        ..Check::UNDECLARED
    },
    Check {
        id: "clk.sync",
        title: "synchronisation with other machines",
        severity: Severity::High,
        why: "one-way times between machines need clocks that agree; half of a round trip does not",
        sources: &[source::AWS],
        fix: (
            Command,
            "systemctl enable --now chronyd   # or ptp4l and phc2sys with a device's clock",
        ),
        undo: UndoClass::Live,
        threatens: &[Threat::OneWay],
        run: sync,
        ..Check::UNDECLARED
    },
];

const CURRENT: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
const AVAILABLE: &str = "/sys/devices/system/clocksource/clocksource0/available_clocksource";

fn clock_source(m: &Machine<'_>) -> Observed {
    let Some(current) = m.text(CURRENT) else {
        return unread(m, "the clock source", &[CURRENT]);
    };
    let seen = [m.evidence(CURRENT, "in use"), m.evidence(AVAILABLE, "available")];
    let is_good = matches!(current, "tsc" | "arch_sys_counter");
    let severity = match current {
        "kvm-clock" | "hyperv_clocksource_tsc_page" => Severity::Medium,
        _ => Severity::High,
    };
    let has_tsc = m.text(AVAILABLE).is_some_and(|all| all.split_whitespace().any(|w| w == "tsc"));
    let note = if has_tsc { ", and tsc is available" } else { ", and tsc is not available" };
    Observed::bad_if(
        !is_good,
        format!("the clock source is {current}{note}"),
        format!("the clock source is {current}"),
    )
    .severity(severity)
    .with(seen)
}

fn cost(m: &Machine<'_>) -> Observed {
    const NS_MAX: f64 = 60.0;
    let Some(active) = &m.snapshot.calls.active else {
        return Observed::unknown("measured only with --active")
            .with([missing("clock_gettime", "not measured")]);
    };
    let text = format!(
        "the kernel's clock takes {:.1} ns to read, the measuring clock {:.1} ns",
        active.kernel_clock_ns, active.clock_ns
    );
    Observed::bad_if(active.kernel_clock_ns > NS_MAX, text.clone(), text).with([
        evidence("clock_gettime", &format!("{:.1} ns", active.kernel_clock_ns), "mean"),
        evidence("measuring clock", &format!("{:.1} ns", active.clock_ns), "mean"),
    ])
}

fn invariant(m: &Machine<'_>) -> Observed {
    const CPUINFO: &str = "/proc/cpuinfo";
    let flags = m
        .text(CPUINFO)
        .and_then(|text| text.lines().find(|line| line.starts_with("flags"))?.split_once(':'));
    let has = |flag: &str| flags.is_some_and(|(_, all)| all.split_whitespace().any(|f| f == flag));
    let by_flags = flags.map(|_| has("constant_tsc") && has("nonstop_tsc"));
    let by_cpuid = m.snapshot.calls.cpuid.as_ref().map(|cpuid| cpuid.invariant_tsc);
    let is_arm = m.text(CPUINFO).is_some_and(|text| text.contains("CPU implementer"));
    if is_arm {
        return Observed::pass("the counter of this architecture has a constant rate")
            .with([evidence(CPUINFO, "CPU implementer", "AArch64")]);
    }
    let Some(is_invariant) = by_cpuid.or(by_flags) else {
        return unread(m, "whether the timestamp counter is constant", &[CPUINFO]);
    };
    let raw = format!("constant_tsc={} nonstop_tsc={}", has("constant_tsc"), has("nonstop_tsc"));
    Observed::bad_if(
        !is_invariant,
        "the timestamp counter is not known to run at a constant rate",
        "the timestamp counter runs at a constant rate",
    )
    .with(by_cpuid.map(|on| evidence("CPUID 0x80000007 EDX", &on.to_string(), "invariant TSC")))
    .with(flags.map(|_| evidence(CPUINFO, &raw, "flags")))
}

fn sync(m: &Machine<'_>) -> Observed {
    const CALL: &str = "adjtimex";
    /// Half of the shortest one-way times that are worth measuring.
    const ERROR_US_MAX: u64 = 1;
    let daemons = ["chronyd", "ptp4l", "phc2sys", "ntpd", "systemd-timesyn", "ntpd-rs"];
    let running: Vec<&str> = daemons.into_iter().filter(|name| m.process(name).is_some()).collect();
    let names = if running.is_empty() { "none".to_string() } else { running.join(" ") };
    let daemon = evidence("/proc", &names, "programs that synchronise the clock");
    let Some(clock) = m.snapshot.calls.kernel_clock else {
        return Observed::unknown("the state of the kernel's clock could not be read")
            .with([missing(CALL, "the snapshot has no calls"), daemon]);
    };
    let raw = format!(
        "synchronized={} offset={} ns esterror={} µs maxerror={} µs",
        clock.is_synchronized, clock.offset_ns, clock.estimated_error_us, clock.max_error_us
    );
    let seen = [evidence(CALL, &raw, "state of the clock"), daemon];
    if !clock.is_synchronized {
        return Observed::fail("nothing synchronises the clock").with(seen);
    }
    Observed::bad_if(
        clock.max_error_us > ERROR_US_MAX,
        format!("the clock may be wrong by {} µs", clock.max_error_us),
        "the clock is right to a microsecond",
    )
    .with(seen)
}
