//! The order of findings, and the audit made of them.

use std::cmp::Reverse;

use nm_model::finding::{Audit, AuditedMachine, Finding};
use nm_model::{FindingStatus, Severity};

use crate::machine::Machine;

/// The audit of a machine: failed findings first, the most severe first.
pub fn finish(machine: &Machine<'_>, mut findings: Vec<Finding>) -> Audit {
    findings.sort_by_key(rank);
    Audit {
        machine: AuditedMachine {
            name: machine.facts.host.name.clone(),
            kernel: machine.facts.host.kernel.clone(),
            layer: machine.layer_text(),
            boot_id: machine.facts.host.boot_id.clone(),
            cpus: machine.facts.cpu.online,
            workload_cpus: machine.hot_text(),
            workload_links: machine.links.iter().map(|name| (*name).to_string()).collect(),
        },
        findings,
        left_out: machine.snapshot.left_out.clone(),
    }
}

/// Failed, unknown, passed, not applicable; among failed and unknown ones the most severe first.
fn rank(finding: &Finding) -> (FindingStatus, Reverse<Severity>) {
    (finding.status, Reverse(finding.severity))
}
