//! Findings: what the checks of an audit say of a machine, each with its evidence.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::named_enum::named_enum;

named_enum!(
    /// What a finding can cost.
    Severity, "severity", {
        /// Explains figures; costs nothing by itself.
        Info = "info",
        /// Less than 1 µs, or rare.
        Low = "low",
        /// 1 to 10 µs, or only in the tail.
        Medium = "medium",
        /// At least 10 µs, or a fifth of the p99.
        High = "high",
        /// Invalidates the result, or stalls for 100 µs or longer.
        Critical = "critical",
    }
);

named_enum!(
    /// Whether a check found what it looks for.
    FindingStatus, "status", {
        /// The machine is not as it should be.
        Fail = "fail",
        /// The evidence is missing. Never a pass.
        Unknown = "unknown",
        /// The machine is as it should be.
        Pass = "pass",
        /// The check does not concern this machine.
        NotApplicable = "not-applicable",
    }
);

named_enum!(
    /// How the fix of a finding is undone.
    UndoClass, "undo class", {
        /// At run time, exactly.
        Live = "live",
        /// By the kernel's command line or a module's options, with a reboot.
        Boot = "boot",
        /// By the hypervisor's settings, with a restart of the virtual machine.
        Host = "host",
        /// By firmware settings, with a power cycle.
        Firmware = "firmware",
        /// In the application.
        Application = "application",
        /// There is nothing to undo.
        Nothing = "nothing",
    }
);

named_enum!(
    /// What a claim rests on.
    Confidence, "confidence", {
        /// Somebody measured it, and the effect is given.
        Measured = "measured",
        /// The kernel's or a vendor's documents say so.
        Documented = "documented",
        /// Engineering judgement; no figure was found.
        Judgement = "judgement",
    }
);

named_enum!(
    /// Figures that a finding threatens.
    Threat, "threat", {
        /// Medians of all latencies.
        Median = "median",
        /// Medians of modes that sleep.
        Wakeup = "wake-up",
        /// High percentiles.
        Tail = "tail",
        /// The longest samples.
        Maximum = "maximum",
        /// Throughput.
        Throughput = "throughput",
        /// Lost messages.
        Loss = "loss",
        /// Latencies between machines, which travel by a network device.
        Network = "network",
        /// Comparisons of the clocks of two machines.
        OneWay = "one-way",
        /// Every figure, because the clock that measures it is wrong.
        Clock = "clock",
    }
);

impl Threat {
    /// For people.
    pub fn title(self) -> &'static str {
        match self {
            Threat::Median => "median latency",
            Threat::Wakeup => "median latency of modes that sleep",
            Threat::Tail => "p99 and above",
            Threat::Maximum => "longest latencies",
            Threat::Throughput => "throughput",
            Threat::Loss => "loss",
            Threat::Network => "latency between machines",
            Threat::OneWay => "one-way latency",
            Threat::Clock => "every figure",
        }
    }
}

/// Where a fix is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FixKind {
    /// By a command on the machine.
    Command,
    /// On the kernel's command line.
    KernelCommandLine,
    /// In the firmware of the machine or a device.
    Firmware,
    /// In the settings of the hypervisor or cloud.
    Hypervisor,
    /// In the application or its container.
    Application,
    /// At the hardware.
    Hardware,
    /// Nothing is to be fixed: the fact is recorded.
    Record,
}

impl FixKind {
    /// What stands before the text of a fix; nothing before a command.
    pub fn prefix(self) -> &'static str {
        match self {
            FixKind::Command => "",
            FixKind::KernelCommandLine => "kernel command line: ",
            FixKind::Firmware => "firmware: ",
            FixKind::Hypervisor => "hypervisor: ",
            FixKind::Application => "application: ",
            FixKind::Hardware => "hardware: ",
            FixKind::Record => "record: ",
        }
    }
}

/// How the cause of a finding is removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Fix {
    /// Where.
    pub kind: FixKind,
    /// A command, or a setting and its value.
    pub text: String,
}

/// A command as it is, else `firmware: …`.
impl fmt::Display for Fix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.kind.prefix(), self.text)
    }
}

/// Who says why a finding matters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Citation {
    /// Name of the document.
    pub title: String,
    /// Its address, if it has one.
    #[serde(default)]
    pub url: Option<String>,
}

/// Something that was read, or that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Evidence {
    /// Absolute path, or the name of a call such as `SIOCETHTOOL eth0`.
    pub path: String,
    /// What stands there, shortened; absent if it could not be read.
    pub raw: Option<String>,
    /// What it means; the reason, if it could not be read.
    pub parsed: String,
}

/// What one check says of one machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// Name of the check, `group.name`.
    pub id: String,
    /// What the check is about.
    pub title: String,
    /// What it can cost if it fails.
    pub severity: Severity,
    /// Pass, fail, unknown or not applicable.
    pub status: FindingStatus,
    /// What was found, as one sentence.
    pub summary: String,
    /// What the summary rests on.
    pub evidence: Vec<Evidence>,
    /// Why it matters.
    pub why: String,
    /// Who says so.
    pub sources: Vec<Citation>,
    /// How to remove the cause.
    pub fix: Fix,
    /// How the fix is undone.
    pub undo: UndoClass,
    /// What the claim rests on.
    pub confidence: Confidence,
    /// Measured effect with its machine and source, where known.
    #[serde(default)]
    pub effect: Option<String>,
    /// Where guides disagree.
    #[serde(default)]
    pub conflict: Option<String>,
    /// Figures that suffer.
    pub threatens: Vec<Threat>,
}

/// The findings about one machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Audit {
    /// Which machine.
    pub machine: AuditedMachine,
    /// One finding for each check, failed ones first, the most severe first.
    pub findings: Vec<Finding>,
    /// What the limits of the snapshot left out.
    #[serde(default)]
    pub left_out: Vec<String>,
}

/// Which machine was audited.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct AuditedMachine {
    /// Host name.
    pub name: String,
    /// Kernel release.
    pub kernel: String,
    /// What it runs on: `bare metal`, `KVM guest`, ….
    pub layer: String,
    /// Boot id, by which endpoints on one kernel are known.
    pub boot_id: Option<String>,
    /// CPUs that are online.
    pub cpus: u32,
    /// CPUs that were taken for those of the workload, and why these.
    pub workload_cpus: String,
    /// Links that were taken for those of the workload.
    pub workload_links: Vec<String>,
}

impl Audit {
    /// Findings of one status.
    pub fn of(&self, status: FindingStatus) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(move |finding| finding.status == status)
    }

    /// Failed findings of at least this severity.
    pub fn failed(&self, at_least: Severity) -> impl Iterator<Item = &Finding> {
        self.of(FindingStatus::Fail).filter(move |finding| finding.severity >= at_least)
    }

    /// `2 critical, 5 high, 12 unknown, 30 passed`: what there is of each.
    pub fn counts(&self) -> String {
        let severities = Severity::ALL.iter().rev().filter_map(|severity| {
            let fails = self.of(FindingStatus::Fail);
            let n = fails.filter(|finding| finding.severity == *severity).count();
            (n > 0).then(|| format!("{n} {severity}"))
        });
        let statuses = [
            (FindingStatus::Unknown, "unknown"),
            (FindingStatus::Pass, "passed"),
            (FindingStatus::NotApplicable, "not applicable"),
        ];
        let others = statuses.into_iter().filter_map(|(status, word)| {
            let n = self.of(status).count();
            (n > 0).then(|| format!("{n} {word}"))
        });
        severities.chain(others).collect::<Vec<_>>().join(", ")
    }
}
