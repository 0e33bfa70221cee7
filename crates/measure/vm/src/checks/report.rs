//! Puts a check's result together.

use nm_model::finding::{Evidence, Fix, FixKind};
use nm_model::lab_plan::{LabCheck, LabStatus};

use super::view::View;

const RAW_CHARS_MAX: usize = 120;

fn check(id: &str, status: LabStatus, summary: impl Into<String>) -> LabCheck {
    let (id, summary) = (id.to_string(), summary.into());
    LabCheck { id, status, summary, evidence: vec![], fix: None }
}

/// As it should be.
pub fn good(id: &str, summary: impl Into<String>) -> LabCheck {
    check(id, LabStatus::Good, summary)
}

/// Something cannot run.
pub fn missing(id: &str, summary: impl Into<String>, fix: Fix) -> LabCheck {
    LabCheck { fix: Some(fix), ..check(id, LabStatus::Missing, summary) }
}

/// Figures are worse than they need to be.
pub fn worse(id: &str, summary: impl Into<String>, fix: Fix) -> LabCheck {
    LabCheck { fix: Some(fix), ..check(id, LabStatus::Worse, summary) }
}

/// It could not be read.
pub fn unknown(id: &str, summary: impl Into<String>) -> LabCheck {
    check(id, LabStatus::Unknown, summary)
}

/// Adds what stands in `paths`, or that it could not be read.
pub fn with(mut check: LabCheck, view: &View<'_>, paths: &[&str]) -> LabCheck {
    for path in paths {
        // Opening a device may do something.
        let text = if path.starts_with("/dev/") { None } else { view.files.text(path) };
        let raw = text.map(|text| {
            let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
            match line.chars().count() > RAW_CHARS_MAX {
                true => line.chars().take(RAW_CHARS_MAX).collect::<String>() + " …",
                false => line,
            }
        });
        let is_there = raw.is_some() || view.files.exists(path);
        let parsed = if is_there { "" } else { "not there" };
        check.evidence.push(Evidence { path: path.to_string(), raw, parsed: parsed.to_string() });
    }
    check
}

/// A fix by a command.
pub fn command(text: impl Into<String>) -> Fix {
    Fix { kind: FixKind::Command, text: text.into() }
}

/// A fix by words of the kernel's command line.
pub fn boot(text: impl Into<String>) -> Fix {
    Fix { kind: FixKind::KernelCommandLine, text: text.into() }
}

/// A fix in the firmware.
pub fn firmware(text: impl Into<String>) -> Fix {
    Fix { kind: FixKind::Firmware, text: text.into() }
}

/// A fix at the hardware.
pub fn hardware(text: impl Into<String>) -> Fix {
    Fix { kind: FixKind::Hardware, text: text.into() }
}

/// A fix in the settings of whoever runs this machine.
pub fn hypervisor(text: impl Into<String>) -> Fix {
    Fix { kind: FixKind::Hypervisor, text: text.into() }
}
