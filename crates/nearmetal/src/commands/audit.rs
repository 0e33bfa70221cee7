//! `nearmetal audit`: what in the settings of this machine costs latency.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use nm_firmware::redfish;
use nm_host::active;
use nm_host::record::{self, RecordError};
use nm_host::snapshot::{self, SnapshotOptions};
use nm_model::finding::Audit;
use nm_model::snapshot::Workload;
use nm_model::{FindingStatus, Severity, Snapshot, limits};
use nm_report::audit as faces;
use nm_sys::complete_file::{self, Origin};
use nm_sys::hostfiles::parse_list;
use nm_sys::text_file;

use crate::cli::audit::{AuditArgs, AuditFormat};
use crate::commands::bmc::Bmc;
use crate::commands::cpus::not_online;
use crate::exit::{Exit, Stop};
use crate::output;

pub fn run(args: &AuditArgs) -> Result<Exit> {
    let workload = workload(args)?;
    let mut snapshot = match (&args.snapshot, &args.root) {
        (Some(file), _) => read(file)?,
        (None, Some(root)) => of_root(root, &workload)?,
        (None, None) => snapshot::take(&SnapshotOptions {
            workload: workload.clone(),
            interval: interval(args.interval)?,
        }),
    };
    check_named(&snapshot, &workload)?;
    name_workload(&mut snapshot, workload);
    if args.active {
        let cpus = active::pair_cpus(&snapshot.workload.cpus);
        output::message(&active::announcement(&cpus));
        snapshot.calls.active = Some(active::measure(&cpus));
    }
    if let Some(host) = &args.bmc.bmc {
        let told = Bmc::new(host, &args.bmc.access)?.read()?;
        snapshot.calls.firmware = Some(redfish::known(&told.firmware));
    }
    if let Some(path) = &args.save {
        let text = serde_json::to_string(&snapshot)?;
        // A link of the user's leads to the file that is meant.
        let path = path.canonicalize().unwrap_or_else(|_| path.clone());
        complete_file::replace(&path, (text + "\n").as_bytes(), Origin::Measured)
            .map_err(|error| output::file_error(&path, &error))?;
    }
    if let Some(folder) = &args.record {
        record::write(&snapshot, folder).map_err(|error| match error {
            RecordError::NotEmpty(_) => Stop::with(Exit::Conflict, error.to_string()),
            RecordError::Write { path, source } => output::file_error(&path, &source),
        })?;
    }
    let audit = match &args.guest {
        Some(guest) => nm_audit::join(&snapshot, &read(guest)?),
        None => nm_audit::audit(&snapshot),
    };
    show(&audit, args)?;
    Ok(args.fail_at.map_or(Exit::Pass, |severity| judged(&audit, severity)))
}

/// The exit code of `--fail-at`. A few checks are undecided on every machine; where most of those
/// that count are, what was read is too little to say that nothing is wrong.
fn judged(audit: &Audit, severity: Severity) -> Exit {
    if audit.failed(severity).next().is_some() {
        return Exit::Fail;
    }
    let count = |status| audit.of(status).filter(|one| one.severity >= severity).count();
    let (decided, undecided) = (count(FindingStatus::Pass), count(FindingStatus::Unknown));
    if undecided <= decided {
        return Exit::Pass;
    }
    output::message(&format!(
        "--fail-at {severity}: inconclusive, because the evidence of {undecided} such checks of {} \
         is missing; run it as root on the machine, or audit a complete snapshot",
        decided + undecided
    ));
    Exit::Inconclusive
}

fn show(audit: &Audit, args: &AuditArgs) -> Result<()> {
    match args.format {
        AuditFormat::Text => output::text(&faces::terminal::text(audit, output::style())),
        AuditFormat::Json => output::json(audit),
        AuditFormat::Markdown => output::text(&faces::markdown::document(audit)),
        AuditFormat::Sarif => {
            output::sarif(&faces::sarif::document(audit, env!("CARGO_PKG_VERSION")))
        }
        AuditFormat::Junit => {
            let fail_at = args.fail_at.unwrap_or(Severity::Info);
            output::data(&faces::junit::document(audit, fail_at))
        }
        AuditFormat::Html => output::data(&nm_report::html::audit(audit)),
    }
}

fn workload(args: &AuditArgs) -> Result<Workload> {
    if args.link.len() > limits::SNAPSHOT_LINKS_MAX {
        return Err(Stop::usage(format!("--link names more than {}", limits::SNAPSHOT_LINKS_MAX)));
    }
    Ok(Workload { cpus: args.cpus.list(), links: args.link.clone(), pid: args.pid })
}

/// Refuses a workload of CPUs, links and a process that the machine does not have: nothing speaks
/// against what is not there, so checks would pass.
fn check_named(snapshot: &Snapshot, workload: &Workload) -> Result<()> {
    let online = snapshot.files.get("/sys/devices/system/cpu/online");
    not_online(&workload.cpus, online.and_then(|text| parse_list(text)).as_deref())?;
    if let Some(links) = snapshot.folders.get("/sys/class/net")
        && let Some(link) = workload.links.iter().find(|link| !links.contains(link))
    {
        let known = links.join(", ");
        return Err(Stop::usage(format!("--link: there is no network link `{link}`, but {known}")));
    }
    if let Some(pid) = workload.pid {
        let folder = format!("/proc/{pid}/");
        if !snapshot.files.keys().any(|path| path.starts_with(&folder)) {
            return Err(Stop::usage(format!("--pid: there is no process {pid} to be seen")));
        }
    }
    Ok(())
}

/// What the options name, in place of what the snapshot has.
fn name_workload(snapshot: &mut Snapshot, workload: Workload) {
    if !workload.cpus.is_empty() {
        snapshot.workload.cpus = workload.cpus;
    }
    if !workload.links.is_empty() {
        snapshot.workload.links = workload.links;
    }
    snapshot.workload.pid = workload.pid.or(snapshot.workload.pid);
}

fn interval(seconds: f64) -> Result<Option<Duration>> {
    let max = limits::SNAPSHOT_INTERVAL_S_MAX;
    if !(0.0..=max).contains(&seconds) {
        return Err(Stop::usage(format!("--interval is {seconds:?}, must be 0 to {max} s")));
    }
    Ok((seconds > 0.0).then(|| Duration::from_secs_f64(seconds)))
}

fn of_root(root: &Path, workload: &Workload) -> Result<Snapshot> {
    if !root.is_dir() {
        return Err(Stop::usage(format!("--root {}: there is no such folder", root.display())));
    }
    let snapshot = snapshot::of_root(root, workload);
    if snapshot.files.is_empty() {
        let message = format!("--root {}: it has no files of /proc, /sys or /etc", root.display());
        return Err(Stop::usage(message));
    }
    Ok(snapshot)
}

fn read(path: &Path) -> Result<Snapshot> {
    let unreadable = || format!("the snapshot {} cannot be read", path.display());
    let text = text_file::read(path, limits::SNAPSHOT_JSON_BYTES_MAX).with_context(unreadable)?;
    let snapshot: Snapshot = serde_json::from_str(&text)
        .with_context(|| format!("{} is no snapshot of `audit --save`", path.display()))?;
    snapshot.check().with_context(unreadable)?;
    if snapshot.files.is_empty() {
        return Err(Stop::usage(format!("{} is no snapshot of `audit --save`", path.display())));
    }
    Ok(snapshot)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is decided about lesser checks says nothing about those that count.
    #[test]
    fn undecided_checks_of_the_severity_are_no_pass() {
        let mut audit = nm_audit::audit(&Snapshot::default());
        for finding in &mut audit.findings {
            if finding.severity < Severity::Critical {
                finding.status = FindingStatus::Pass;
            }
        }
        assert_eq!(judged(&audit, Severity::Critical), Exit::Inconclusive);
        assert_eq!(judged(&audit, Severity::Info), Exit::Pass);
        audit.findings.iter_mut().for_each(|finding| finding.status = FindingStatus::Pass);
        assert_eq!(judged(&audit, Severity::Critical), Exit::Pass);
    }
}
