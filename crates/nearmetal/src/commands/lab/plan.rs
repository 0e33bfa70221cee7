//! `nearmetal lab plan`: what this host can run, why not the rest, and what to do about it.

use anyhow::Result;
use nm_lab::environment::named_kernel;
use nm_model::GuestExecution;
use nm_model::lab_plan::{LabCheck, LabEnvironment, LabPlan, LabStatus};
use nm_sys::ethtool::Links;
use nm_sys::hostfiles::HostFiles;
use nm_vm::checks::{View, lab_plan};

use crate::cli::format::Format;
use crate::cli::lab::plan::LabPlanArgs;
use crate::exit::{Exit, Stop};
use crate::output;

pub fn run(args: &LabPlanArgs) -> Result<Exit> {
    let plan = read(args)?;
    match args.format.format {
        Format::Json => output::json(&plan)?,
        Format::Text => output::text(&text(&plan))?,
    }
    Ok(Exit::Pass)
}

fn read(args: &LabPlanArgs) -> Result<LabPlan> {
    if let Some(root) = args.root.as_ref().filter(|root| !root.is_dir()) {
        return Err(Stop::usage(format!("--root: there is no folder {}", root.display())));
    }
    let files = args.root.as_ref().map_or_else(HostFiles::default, HostFiles::new);
    let links = if args.root.is_none() { Links::new().ok() } else { None };
    let connection = std::env::var("SSH_CONNECTION").ok().filter(|_| links.is_some());
    let kernel = args.root.is_none().then(|| named_kernel(args.kernel.as_deref())).flatten();
    Ok(lab_plan(&View {
        files: &files,
        links: links.as_ref(),
        own_connection: connection.as_deref(),
        named_kernel: kernel.as_deref(),
        timed: args.probe.then(timed),
    }))
}

/// What a timed test of KVM shows.
fn timed() -> (GuestExecution, String) {
    let kvm = nm_vm::execution::kvm();
    (kvm.class.unwrap_or(GuestExecution::Tcg), kvm.evidence)
}

fn text(plan: &LabPlan) -> String {
    let execution = &plan.execution;
    let how = if execution.is_timed { "timed" } else { "not timed" };
    let mut text = format!("guests: {} ({how}): {}\n\n", execution.execution, execution.evidence);
    for environment in &plan.environments {
        text += &environment_text(environment);
    }
    for (status, title) in [
        (LabStatus::Worse, "\nfigures would be better with\n"),
        (LabStatus::Unknown, "\nnot known\n"),
    ] {
        let checks: Vec<&LabCheck> =
            plan.checks.iter().filter(|check| check.status == status).collect();
        if !checks.is_empty() {
            text += title;
        }
        for check in checks {
            text += &format!("  {:<22}  {}\n", check.id, check.summary);
            if let Some(fix) = &check.fix {
                text += &format!("  {:<22}  → {fix}\n", "");
            }
        }
    }
    text + &format!("\nread in {:.1} ms; nothing was written\n", plan.took_us as f64 / 1e3)
}

fn environment_text(environment: &LabEnvironment) -> String {
    let name = match environment.nics.as_slice() {
        [] => environment.kind.to_string(),
        nics => format!("{} {}", environment.kind, nics.join(" ")),
    };
    let label = if environment.is_emulated { "  EMULATED" } else { "" };
    match &environment.command {
        Some(command) if environment.unknown.is_empty() => {
            format!("yes  {name:<28} {command}{label}\n")
        }
        Some(command) => {
            let mut text = format!("?    {name:<28} {command}{label}\n");
            for unknown in &environment.unknown {
                text += &format!("     {:<28} not known: {unknown}\n", "");
            }
            text
        }
        None => {
            let mut text = String::new();
            for (at, unavailable_reason) in environment.unavailable_reasons.iter().enumerate() {
                let (mark, name) = if at == 0 { ("no ", name.as_str()) } else { ("   ", "") };
                text += &format!("{mark}  {name:<28} {}\n", unavailable_reason.reason);
                text += &format!("     {:<28} → {}\n", "", unavailable_reason.fix);
            }
            text
        }
    }
}
