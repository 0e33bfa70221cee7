//! Which environments follow from the checks.

use nm_model::class::Bypass;
use nm_model::environment::Distance;
use nm_model::finding::{Fix, FixKind};
use nm_model::lab_plan::{
    ExpectedExecution, LabCheck, LabEnvironment, LabKind, LabStatus, UnavailableReason,
};
use nm_model::stack::{Protocol, Stack};

use crate::nic::Nic;

const GUESTS: [&str; 2] = ["software.qemu", "software.kernel"];
const BRIDGED: [&str; 3] = ["rights.namespaces", "net.tap", "net.bridge"];
const PASSED: [&str; 4] = ["rights.root", "iommu.present", "iommu.remapping", "vfio.driver"];

/// The environments, each with what stands in its way.
pub fn environments(
    checks: &[LabCheck],
    nics: &[Nic],
    execution: &ExpectedExecution,
) -> Vec<LabEnvironment> {
    let is_emulated = execution.execution.is_emulated();
    let plain = |kind: LabKind, needs: &[&[&str]], command: &str| {
        let unavailable_reasons = unavailable_reasons(checks, &needs.concat());
        let command = unavailable_reasons.is_empty().then(|| command.to_string());
        let is_emulated = is_emulated && kind != LabKind::Bare;
        LabEnvironment { kind, nics: vec![], is_emulated, command, unavailable_reasons }
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
    all.extend(passed(checks, nics, is_emulated));
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

fn unavailable_reason(check: &LabCheck) -> UnavailableReason {
    let nothing = || Fix { kind: FixKind::Record, text: "nothing is known".to_string() };
    UnavailableReason {
        check: check.id.clone(),
        reason: check.summary.clone(),
        fix: check.fix.clone().unwrap_or_else(nothing),
    }
}

/// Pass-through of each device: of its virtual functions, and of itself with a second one.
fn passed(checks: &[LabCheck], nics: &[Nic], is_emulated: bool) -> Vec<LabEnvironment> {
    let of = |kind: LabKind, names: Vec<String>, unavailable_reasons: Vec<UnavailableReason>| {
        let nics: Vec<String> = names.iter().map(|name| format!(" --nic {name}")).collect();
        let command = format!("nearmetal lab run --env sriov{}", nics.concat());
        let command = unavailable_reasons.is_empty().then_some(command);
        LabEnvironment { kind, nics: names, is_emulated, command, unavailable_reasons }
    };
    let common = unavailable_reasons(checks, &[GUESTS.as_slice(), &PASSED].concat());
    if nics.is_empty() {
        let none = UnavailableReason {
            check: "pci.nics".to_string(),
            reason: "the host has no network device on PCI that could be passed through"
                .to_string(),
            fix: Fix { kind: FixKind::Hardware, text: "a network card with SR-IOV".to_string() },
        };
        let with_none = [common, vec![none]].concat();
        return [LabKind::SriovVf, LabKind::SriovPf]
            .map(|kind| of(kind, vec![], with_none.clone()))
            .into();
    }
    let own = |nic: &Nic, whats: &[&str]| {
        let ids: Vec<String> = whats.iter().map(|what| format!("{}.{what}", nic.name)).collect();
        unavailable_reasons(checks, &ids.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let is_ready = |nic: &Nic| own(nic, &["group", "unused"]).is_empty();
    let functions = nics.iter().map(|nic| {
        let unavailable_reasons =
            [common.clone(), own(nic, &["functions", "group", "unused"])].concat();
        of(LabKind::SriovVf, vec![nic.name.clone()], unavailable_reasons)
    });
    let themselves = nics.iter().map(|nic| {
        let second = nics.iter().find(|other| other.address != nic.address && is_ready(other));
        let mut unavailable_reasons = [common.clone(), own(nic, &["group", "unused"])].concat();
        if second.is_none() {
            unavailable_reasons.push(UnavailableReason {
                check: "pci.nics".to_string(),
                reason: format!("there is no second device beside {} that can be passed", nic.name),
                fix: Fix {
                    kind: FixKind::Hardware,
                    text: "a second port that nobody uses, cabled to the first".to_string(),
                },
            });
        }
        let names = [Some(nic), second].into_iter().flatten().map(|nic| nic.name.clone());
        of(LabKind::SriovPf, names.collect(), unavailable_reasons)
    });
    functions.chain(themselves).collect()
}
