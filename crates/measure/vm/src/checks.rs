//! `lab plan`: what this host can run, why not the rest, and what to do about it. Files of `/proc`
//! and `/sys` are read, nothing is written, and nothing is opened for writing.

mod devices;
mod environments;
mod execution;
mod machine;
mod report;
mod software;
mod view;

use nm_model::lab_plan::{LabCheck, LabPlan, LabStatus};
use nm_sys::clock::Moment;

pub use view::View;

/// What the host of `view` can run.
pub fn lab_plan(view: &View<'_>) -> LabPlan {
    let start = Moment::now();
    let nics = devices::nics(view);
    let mut checks = execution::checks(view);
    checks.extend(devices::checks(view, &nics));
    checks.extend(machine::checks(view));
    checks.extend(software::checks(view));
    checks.iter_mut().for_each(|check| unless_shown(view, check));
    let execution = execution::expected(view);
    let environments = environments::environments(view, &checks, &nics, &execution);
    let took_us = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
    LabPlan { format: LabPlan::FORMAT, execution, environments, checks, took_us }
}

/// Folders of which one must be in a tree of files before something that is not there is missing:
/// a recording need not have all that its host has.
const SHOWN_BY: [(&str, &[&str]); 8] = [
    ("kvm.usable", &["/dev"]),
    (
        "iommu.present",
        &["/sys/class/iommu", "/sys/kernel/iommu_groups", "/sys/firmware", "/sys/class"],
    ),
    ("vfio.driver", &["/sys/bus/pci/drivers", "/lib/modules", "/usr/lib/modules"]),
    ("software.qemu", &["/usr/bin", "/usr/local/bin", "/bin"]),
    ("software.kernel", &["/boot", "/lib/modules", "/usr/lib/modules"]),
    ("net.tap", &["/dev/net", "/lib/modules", "/usr/lib/modules"]),
    ("net.vhost", &["/dev/net", "/lib/modules", "/usr/lib/modules"]),
    ("net.bridge", &["/sys/module", "/lib/modules", "/usr/lib/modules"]),
];

/// Makes a check unknown whose finding rests on the absence of files that the tree does not show.
fn unless_shown(view: &View<'_>, check: &mut LabCheck) {
    let is_bad = matches!(check.status, LabStatus::Missing | LabStatus::Worse);
    let by = SHOWN_BY.iter().find(|(id, _)| *id == check.id);
    let Some((_, folders)) = by.filter(|_| is_bad) else { return };
    if !view.shows(folders) {
        check.status = LabStatus::Unknown;
        check.summary = format!("{}, or the tree does not show it", check.summary);
        check.fix = None;
    }
}
