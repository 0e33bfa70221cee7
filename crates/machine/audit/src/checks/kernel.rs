//! The kernel: mitigations, command line, auditing, tracing and debugging.

use nm_model::Severity;
use nm_model::finding::Confidence::{Judgement, Measured};
use nm_model::finding::FixKind::Command;
use nm_model::finding::{Threat, UndoClass};

use super::common::{plural, unread};
use crate::check::Check;
use crate::machine::Machine;
use crate::observed::{Observed, evidence};
use nm_settings::{SettingId, setting, source};

/// The checks.
pub const CHECKS: &[Check] = &[
    Check {
        id: "kern.mitigations",
        title: "mitigations of processor vulnerabilities",
        severity: Severity::Medium,
        settings: &[SettingId::KernMitigations],
        confidence: Measured,
        effect: Some(
            "getppid x4.1 with page-table isolation, x17 to x20 with IBRS (E5-2667 v4, 2018)",
        ),
        threatens: &[Threat::Median, Threat::Wakeup],
        run: mitigations,
        ..Check::UNDECLARED
    },
    Check {
        id: "kern.cmdline",
        title: "command line of the kernel",
        severity: Severity::Low,
        settings: &[SettingId::KernSkewTick],
        threatens: &[Threat::Tail],
        run: command_line,
        ..Check::UNDECLARED
    },
    Check {
        id: "kern.audit",
        title: "auditing of system calls",
        severity: Severity::Medium,
        settings: &[SettingId::KernAudit],
        confidence: Judgement,
        threatens: &[Threat::Median],
        run: audit,
        ..Check::UNDECLARED
    },
    Check {
        id: "kern.trace",
        title: "tracing and debugging in the kernel",
        severity: Severity::Medium,
        why: "a tracer, probes or a kernel built for debugging slow every path down",
        sources: &[source::JUDGEMENT],
        fix: (Command, "echo nop > /sys/kernel/tracing/current_tracer   # or another kernel"),
        undo: UndoClass::Live,
        confidence: Judgement,
        threatens: &[Threat::Median, Threat::Tail],
        run: trace,
        ..Check::UNDECLARED
    },
];

fn mitigations(m: &Machine<'_>) -> Observed {
    const FOLDER: &str = "/sys/devices/system/cpu/vulnerabilities";
    let names = m.names(FOLDER);
    if names.is_empty() {
        return unread(m, "the mitigations", &[FOLDER]);
    }
    // Those that cost at each entry into the kernel, or at each switch.
    let costly =
        ["PTI", "IBRS", "Retpoline", "Clear CPU buffers", "STIBP", "Safe RET", "untrained"];
    let mut found = vec![];
    for name in names {
        let path = format!("{FOLDER}/{name}");
        let Some(text) = m.text(&path) else { continue };
        // `Enhanced IBRS` costs nothing at entries.
        let plain = text.replace("Enhanced / Automatic IBRS", "").replace("Enhanced IBRS", "");
        let is_costly = costly.iter().any(|word| plain.contains(word));
        if text.starts_with("Mitigation") && is_costly {
            found.push((path, name));
        }
    }
    let list: Vec<&str> = found.iter().map(|(_, name)| name.as_str()).collect();
    let seen = found.iter().map(|(path, _)| m.evidence(path, "in force"));
    let first = format!("{FOLDER}/{}", names[0]);
    let observed = Observed::bad_if(
        !found.is_empty(),
        format!("in force at each entry into the kernel: {}", list.join(", ")),
        "no mitigation that costs at each entry into the kernel is in force",
    )
    .with(seen.collect::<Vec<_>>());
    if found.is_empty() { observed.with([m.evidence(&first, "")]) } else { observed }
}

fn command_line(m: &Machine<'_>) -> Observed {
    const PATH: &str = "/proc/cmdline";
    if m.text(PATH).is_none() {
        return unread(m, "the command line", &[PATH]);
    }
    let mut bad = vec![];
    let cpus_min = setting(SettingId::KernSkewTick).cpus_min;
    if m.online.len() >= cpus_min && m.parameter("skew_tick") != Some("1") {
        bad.push(format!("skew_tick=1 is not set, and {} CPUs tick together", m.online.len()));
    }
    for (name, value, meaning) in [
        ("idle", "halt", "idle=halt forbids the idle driver"),
        ("nosmp", "", "nosmp leaves one CPU"),
    ] {
        if m.parameter(name) == Some(value) {
            bad.push(meaning.to_string());
        }
    }
    if m.parameter("notsc").is_some() {
        bad.push("notsc forbids the timestamp counter".to_string());
    }
    Observed::bad_if(
        !bad.is_empty(),
        bad.join("; "),
        "nothing on the command line is known to cost",
    )
    .with([m.evidence(PATH, "")])
}

fn audit(m: &Machine<'_>) -> Observed {
    const RULES: &str = "/etc/audit/audit.rules";
    if m.parameter("audit") == Some("0") {
        return Observed::pass("auditing is off").with([m.evidence("/proc/cmdline", "audit=0")]);
    }
    if !m.sees_processes() {
        return unread(m, "the processes", &["/proc/2/comm"]);
    }
    let daemon = m.process("auditd");
    let rules = m.text(RULES).map(|text| {
        text.lines().filter(|line| line.starts_with("-a") || line.starts_with("-w")).count()
    });
    let seen = [
        evidence("/proc", daemon.map_or("no auditd", |_| "auditd"), "names of all processes"),
        m.evidence(RULES, "rules"),
    ];
    match (daemon, rules) {
        (None, _) => Observed::pass("the audit daemon does not run"),
        (Some(_), Some(0)) => Observed::pass("the audit daemon runs without rules"),
        (Some(_), Some(n)) => {
            Observed::fail(format!("the audit daemon runs with {}", { plural(n, "rule", "rules") }))
        }
        (Some(_), None) => {
            Observed::unknown("the audit daemon runs, and its rules could not be read")
        }
    }
    .with(seen)
}

fn trace(m: &Machine<'_>) -> Observed {
    let tracers =
        ["/sys/kernel/tracing/current_tracer", "/sys/kernel/debug/tracing/current_tracer"];
    let probes = ["/sys/kernel/tracing/kprobe_events", "/sys/kernel/debug/tracing/kprobe_events"];
    let mut bad = vec![];
    let mut seen = vec![];
    if let Some(path) = tracers.iter().find(|path| m.text(path).is_some()) {
        let tracer = m.text(path).unwrap_or_default();
        seen.push(m.evidence(path, "tracer"));
        if tracer != "nop" {
            bad.push(format!("the tracer {tracer} runs"));
        }
    }
    if let Some(path) = probes.iter().find(|path| m.text(path).is_some()) {
        let n = m.text(path).map_or(0, |text| text.lines().count());
        seen.push(m.evidence(path, "probes"));
        bad.push(plural(n, "kernel probe is set", "kernel probes are set"));
    }
    let release = &m.facts.host.kernel;
    let configs = [format!("/boot/config-{release}"), format!("/lib/modules/{release}/config")];
    let config = configs.iter().find_map(|path| Some((path, m.text(path)?)));
    if let Some((path, text)) = config {
        let names = ["PROVE_LOCKING", "LOCKDEP", "KASAN", "KCSAN", "SLUB_DEBUG_ON"];
        let on: Vec<&str> = names
            .into_iter()
            .filter(|name| text.lines().any(|line| line == format!("CONFIG_{name}=y")))
            .collect();
        seen.push(m.evidence(path, "debugging options"));
        if !on.is_empty() {
            bad.push(format!("the kernel is built with {}", on.join(", ")));
        }
    }
    let words: Vec<&str> = m
        .command_line()
        .filter(|word| {
            word.starts_with("slub_debug") || *word == "init_on_alloc=1" || *word == "page_poison=1"
        })
        .collect();
    if !words.is_empty() {
        bad.push(format!("the command line has {}", words.join(" ")));
        seen.push(m.evidence("/proc/cmdline", words.join(" ")));
    }
    if !bad.is_empty() {
        return Observed::fail(bad.join("; ")).with(seen);
    }
    // The tracer is readable for root only.
    match tracers.iter().any(|path| m.text(path).is_some()) {
        true => Observed::pass("no tracer runs").with(seen),
        false => unread(m, "the kernel's tracer", &tracers).with(seen),
    }
}
