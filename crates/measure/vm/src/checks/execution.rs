//! What would execute guests: KVM by its static signs, or by a timed test.

use nm_model::GuestExecution;
use nm_model::lab_plan::{ExpectedExecution, LabCheck};
use nm_settings::target::MachineSetting;
use nm_settings::{SettingId, setting};

use super::report::{command, firmware, good, hypervisor, unknown, with, worse};
use super::view::{View, accepts};

const DEVICE: &str = "/dev/kvm";

/// What is seen of KVM without opening it.
enum Signs {
    NoDevice,
    NoVirtualization,
    Nested,
    Native,
}

fn signs(view: &View<'_>) -> Signs {
    let has_feature = view.has_flag("vmx") || view.has_flag("svm");
    match (view.files.exists(DEVICE), has_feature, view.has_flag("hypervisor")) {
        (false, ..) => Signs::NoDevice,
        (true, false, _) => Signs::NoVirtualization,
        (true, true, true) => Signs::Nested,
        (true, true, false) => Signs::Native,
    }
}

/// What would execute guests.
pub fn expected(view: &View<'_>) -> ExpectedExecution {
    if let Some((execution, evidence)) = &view.timed {
        return ExpectedExecution {
            execution: *execution,
            is_timed: true,
            evidence: evidence.clone(),
        };
    }
    let (execution, evidence) = match signs(view) {
        Signs::NoDevice => (GuestExecution::Tcg, "there is no /dev/kvm"),
        Signs::NoVirtualization => (
            GuestExecution::InterpretedKvm,
            "/dev/kvm exists, and the processor offers neither vmx nor svm",
        ),
        Signs::Nested => {
            (GuestExecution::NestedKvm, "the processor's flag `hypervisor`: this is a guest itself")
        }
        Signs::Native => (GuestExecution::RealKvm, "/dev/kvm, and vmx or svm without a hypervisor"),
    };
    ExpectedExecution { execution, is_timed: false, evidence: evidence.to_string() }
}

/// The checks of KVM.
pub fn checks(view: &View<'_>) -> Vec<LabCheck> {
    vec![usable(view), interrupts(view), halt_poll(view)]
}

fn usable(view: &View<'_>) -> LabCheck {
    const ID: &str = "kvm.usable";
    let in_guest = view.has_flag("hypervisor");
    let enable = match in_guest {
        true => hypervisor("nested virtualization for this machine (cpu host-passthrough)"),
        false => firmware("switch on VT-x or SVM"),
    };
    let module = if view.is_amd() { "kvm_amd" } else { "kvm_intel" };
    let has_feature = view.has_flag("vmx") || view.has_flag("svm");
    let is_container = ["/.dockerenv", "/run/.containerenv"].iter().any(|p| view.files.exists(p));
    let text = "guests are emulated (TCG): figures are labelled so and never compared";
    let check = match (&view.timed, signs(view)) {
        (Some((execution, evidence)), _) if !execution.is_emulated() => {
            good(ID, format!("KVM runs code natively: {evidence}"))
        }
        (Some((execution, evidence)), _) => {
            worse(ID, format!("{execution}: {evidence}; {text}"), enable)
        }
        (None, Signs::NoDevice) if has_feature && is_container => worse(
            ID,
            format!("the container has no /dev/kvm; {text}"),
            command("start the container with --device /dev/kvm"),
        ),
        (None, Signs::NoDevice) if has_feature => worse(
            ID,
            format!("there is no /dev/kvm; {text}"),
            command(format!("modprobe {module}")),
        ),
        (None, Signs::NoDevice) => {
            worse(ID, format!("neither /dev/kvm nor vmx or svm; {text}"), enable)
        }
        (None, Signs::NoVirtualization) => worse(
            ID,
            format!(
                "/dev/kvm exists without vmx or svm, so it may interpret the guests' code; {text}; \
                 run with --probe to time it"
            ),
            enable,
        ),
        (None, Signs::Nested) => worse(
            ID,
            "KVM within a virtual machine: figures are labelled so and never compared; run with \
             --probe to time it",
            hypervisor("run the lab on the host of this machine"),
        ),
        (None, Signs::Native) => {
            good(ID, "KVM, on a processor without a hypervisor; run with --probe to time it")
        }
    };
    with(check, view, &[DEVICE, "/sys/hypervisor/type"])
}

fn interrupts(view: &View<'_>) -> LabCheck {
    const ID: &str = "kvm.interrupts";
    let (path, option) = match view.is_amd() {
        true => ("/sys/module/kvm_amd/parameters/avic", "kvm_amd avic=1"),
        false => ("/sys/module/kvm_intel/parameters/enable_apicv", "kvm_intel enable_apicv=1"),
    };
    let file = "/etc/modprobe.d/nearmetal-kvm.conf";
    let fix = command(format!("echo 'options {option}' > {file}; reload the module"));
    let check = match view.text(path).as_str() {
        "Y" | "1" => good(ID, "interrupts reach guests without an exit"),
        "" => unknown(ID, "whether interrupts reach guests without an exit: KVM is not loaded"),
        _ => worse(ID, "each interrupt of a guest is an exit to the host", fix),
    };
    with(check, view, &[path])
}

fn halt_poll(view: &View<'_>) -> LabCheck {
    const ID: &str = "kvm.halt_poll";
    let path = MachineSetting::HostHaltPoll.path();
    let polls = match view.text(&path).as_str() {
        "0" => "the host does not poll before a virtual CPU sleeps".to_string(),
        ns => format!("the host polls up to {ns} ns before a virtual CPU sleeps"),
    };
    let check = match accepts(view, SettingId::VirtHaltHost) {
        None => unknown(ID, "halt polling: KVM is not loaded"),
        Some(true) => good(ID, polls),
        Some(false) => worse(
            ID,
            format!("{polls}: modes that sleep pay a wake-up of the host's scheduler"),
            command(setting(SettingId::VirtHaltHost).fix().1),
        ),
    };
    with(check, view, &[&path])
}
