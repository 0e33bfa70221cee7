//! Which environments follow from the checks.

use nm_model::class::Bypass;
use nm_model::environment::Distance;
use nm_model::finding::{Fix, FixKind};
use nm_model::lab_plan::{
    ExpectedExecution, LabCheck, LabEnvironment, LabKind, LabStatus, UnavailableReason,
};
use nm_model::stack::{Protocol, Stack};

use super::view::View;
use crate::nic::Nic;
use crate::preconditions;

const GUESTS: [&str; 2] = ["software.qemu", "software.kernel"];
const BRIDGED: [&str; 3] = ["rights.namespaces", "net.tap", "net.bridge"];
const PASSED: [&str; 4] = ["rights.root", "iommu.present", "iommu.remapping", "vfio.driver"];

/// The environments, each with what stands in its way.
pub fn environments(
    view: &View<'_>,
    checks: &[LabCheck],
    nics: &[Nic],
    execution: &ExpectedExecution,
) -> Vec<LabEnvironment> {
    let is_emulated = execution.execution.is_emulated();
    let plain = |kind: LabKind, needs: &[&[&str]], command: &str| {
        let unknown = unknown(checks, &needs.concat());
        let unavailable_reasons = unavailable_reasons(checks, &needs.concat());
        let command = unavailable_reasons.is_empty().then(|| command.to_string());
        let is_emulated = is_emulated && kind != LabKind::Bare;
        LabEnvironment { kind, nics: vec![], is_emulated, command, unavailable_reasons, unknown }
    };
    let mut all = vec![
        plain(LabKind::Bare, &[&BRIDGED[..1]], "nearmetal qualify --only netns"),
        plain(LabKind::Vswitch, &[&GUESTS, &BRIDGED], "nearmetal lab run --env vswitch"),
        plain(
            LabKind::Vhost,
            &[&GUESTS, &BRIDGED, &["net.vhost"]],
            "nearmetal lab run --env vhost",
        ),
    ];
    all.extend(passed(view, checks, nics, execution));
    if let Some(stack) = stack_of_guests(Bypass::AfXdp) {
        let command =
            format!("nearmetal qualify --plan FILE   # a row of stack {stack} in vm-vswitch");
        let needs = [&GUESTS[..], &BRIDGED, &["guest.af_xdp"]];
        all.push(plain(LabKind::Bypass, &needs, &command));
    }
    let wire = "nearmetal lab run --env wire";
    if stack_of_guests(Bypass::SharedMemory).is_some() {
        all.push(plain(LabKind::SharedMemory, &[&GUESTS], wire));
    }
    all.push(plain(LabKind::Wire, &[&GUESTS], wire));
    all
}

/// The first stack of the table by which two guests bypass their kernels in this way.
fn stack_of_guests(bypass: Bypass) -> Option<Stack> {
    let of_protocol = |protocol: &Protocol| {
        let mode = protocol.modes(Distance::Guests).first()?;
        (protocol.row().bypass == bypass).then(|| Stack::new(*protocol, *mode))
    };
    Protocol::ALL.iter().find_map(of_protocol)
}

fn unavailable_reasons(checks: &[LabCheck], ids: &[&str]) -> Vec<UnavailableReason> {
    let is_missing = |id: &&str| {
        let found = checks.iter().find(|check| check.id == **id)?;
        (found.status == LabStatus::Missing).then(|| unavailable_reason(found))
    };
    ids.iter().filter_map(is_missing).collect()
}

/// What of these checks could not be read, as clauses.
fn unknown(checks: &[LabCheck], ids: &[&str]) -> Vec<String> {
    let is_unknown = |id: &&str| {
        let found = checks.iter().find(|check| check.id == **id)?;
        (found.status == LabStatus::Unknown).then(|| found.summary.clone())
    };
    ids.iter().filter_map(is_unknown).collect()
}

fn unavailable_reason(check: &LabCheck) -> UnavailableReason {
    let nothing = || Fix { kind: FixKind::Record, text: "nothing is known".to_string() };
    UnavailableReason {
        check: check.id.clone(),
        reason: check.summary.clone(),
        fix: check.fix.clone().unwrap_or_else(nothing),
    }
}

/// What stands in the way of any pass-through: programs, rights, the IOMMU, and KVM.
fn common(checks: &[LabCheck], execution: &ExpectedExecution) -> Vec<UnavailableReason> {
    let mut reasons = unavailable_reasons(checks, &[GUESTS.as_slice(), &PASSED].concat());
    let usable = checks.iter().find(|check| check.id == "kvm.usable");
    let is_known = usable.is_none_or(|check| check.status != LabStatus::Unknown);
    if is_known && !preconditions::can_pass_through(execution.execution) {
        let fix = usable.and_then(|check| check.fix.clone());
        let nothing = || Fix { kind: FixKind::Record, text: "nothing is known".to_string() };
        reasons.push(UnavailableReason {
            check: "kvm.usable".to_string(),
            reason: format!("{} ({})", preconditions::NEEDS_KVM, execution.evidence),
            fix: fix.unwrap_or_else(nothing),
        });
    }
    reasons
}

/// The port that stands for the other end of a cable: one that is ready and like the first, of the
/// same card if there is one. Else why there is none.
fn second<'a>(
    nic: &Nic,
    nics: &'a [Nic],
    is_ready: impl Fn(&Nic) -> bool,
) -> Result<&'a Nic, UnavailableReason> {
    let others = nics.iter().filter(|other| other.address != nic.address && is_ready(other));
    let others: Vec<&Nic> = others.collect();
    let alike = others.iter().filter(|other| preconditions::are_alike(nic, other));
    let best = alike.min_by_key(|other| !preconditions::are_of_one_card(nic, other));
    best.copied().ok_or_else(|| {
        let name = |nic: &Nic| {
            let speed = nic.speed_mbps.map_or(String::new(), |mbps| format!(", {mbps} Mb/s"));
            format!("{} ({}{speed})", nic.name, nic.driver.as_deref().unwrap_or("driver unknown"))
        };
        let reason = match others.first() {
            None => format!("there is no second device beside {} that can be passed", nic.name),
            Some(other) => format!(
                "{} is not of the same kind as {}, so no cable joins them",
                name(other),
                name(nic)
            ),
        };
        UnavailableReason {
            check: "pci.nics".to_string(),
            reason,
            fix: Fix {
                kind: FixKind::Hardware,
                text: "a second port that nobody uses, cabled to the first".to_string(),
            },
        }
    })
}

/// Pass-through of each device: of its virtual functions, and of itself with a second one.
fn passed(
    view: &View<'_>,
    checks: &[LabCheck],
    nics: &[Nic],
    execution: &ExpectedExecution,
) -> Vec<LabEnvironment> {
    let is_emulated = execution.execution.is_emulated();
    let common_unknown = unknown(checks, &[GUESTS.as_slice(), &PASSED, &["kvm.usable"]].concat());
    let own_ids = |nic: &Nic, whats: &[&str]| -> Vec<String> {
        whats.iter().map(|what| format!("{}.{what}", nic.name)).collect()
    };
    let of = |kind: LabKind, names: Vec<String>, ids: &[String], mut reasons: Vec<_>| {
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        reasons.extend(unavailable_reasons(checks, &ids));
        let unknown = [common_unknown.clone(), unknown(checks, &ids)].concat();
        let nics: Vec<String> = names.iter().map(|name| format!(" --nic {name}")).collect();
        let command = format!("nearmetal lab run --env sriov{}", nics.concat());
        let command = reasons.is_empty().then_some(command);
        let unavailable_reasons = reasons;
        LabEnvironment { kind, nics: names, is_emulated, command, unavailable_reasons, unknown }
    };
    let common = common(checks, execution);
    if nics.is_empty() {
        return without_devices(view, &common, of);
    }
    let is_ready = |nic: &Nic| {
        let ids = own_ids(nic, &["group", "unused", "guest_driver"]);
        unavailable_reasons(checks, &ids.iter().map(String::as_str).collect::<Vec<_>>()).is_empty()
    };
    let functions = nics.iter().map(|nic| {
        let ids = own_ids(nic, &["functions", "group", "unused", "function_driver"]);
        of(LabKind::SriovVf, vec![nic.name.clone()], &ids, common.clone())
    });
    let themselves = nics.iter().map(|nic| {
        let ids = own_ids(nic, &["group", "unused", "guest_driver"]);
        let (mut names, mut reasons) = (vec![nic.name.clone()], common.clone());
        match second(nic, nics, is_ready) {
            Ok(other) => names.push(other.name.clone()),
            Err(reason) => reasons.push(reason),
        }
        of(LabKind::SriovPf, names, &ids, reasons)
    });
    functions.chain(themselves).collect()
}

/// Both kinds of pass-through of a host that shows no device.
fn without_devices(
    view: &View<'_>,
    common: &[UnavailableReason],
    of: impl Fn(LabKind, Vec<String>, &[String], Vec<UnavailableReason>) -> LabEnvironment,
) -> Vec<LabEnvironment> {
    let is_known = view.shows(&["/sys/bus/pci/devices", "/sys/bus/pci"]);
    let none = UnavailableReason {
        check: "pci.nics".to_string(),
        reason: match is_known {
            true => "the host has no network device on PCI that could be passed through",
            false => "the tree shows no device on PCI",
        }
        .to_string(),
        fix: Fix { kind: FixKind::Hardware, text: "a network card with SR-IOV".to_string() },
    };
    let with_none = [common.to_vec(), vec![none]].concat();
    [LabKind::SriovVf, LabKind::SriovPf].map(|kind| of(kind, vec![], &[], with_none.clone())).into()
}
