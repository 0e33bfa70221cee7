//! IOMMU, VFIO and the network devices.

use nm_model::lab_plan::LabCheck;

use super::report::{boot, command, firmware, good, hardware, missing, unknown, with, worse};
use super::software::guest_release;
use super::view::View;
use crate::nic::{self, Nic};
use crate::preconditions;
use crate::refusal::Refusal;
use crate::vfio;

/// Most devices that are looked at.
const NICS_MAX: usize = 64;

/// The network devices on PCI that could be passed through. Virtual functions belong to their
/// parents, and virtio devices are those of a guest.
pub fn nics(view: &View<'_>) -> Vec<Nic> {
    let all = nic::addresses(view.files).into_iter();
    let is_own = |address: &nm_model::pci_address::PciAddress| {
        !view.files.exists(&format!("/sys/bus/pci/devices/{address}/physfn"))
    };
    let known = |link: &str| view.addresses(link);
    let devices = all.filter(is_own).map(|one| nic::read(view.files, one, &known));
    let is_virtio = |nic: &Nic| nic.driver.as_deref() == Some("virtio-pci");
    devices.filter(|nic| !is_virtio(nic)).take(NICS_MAX).collect()
}

/// The checks.
pub fn checks(view: &View<'_>, nics: &[Nic]) -> Vec<LabCheck> {
    let mut checks = vec![iommu(view), remapping(view), pass_through(view), driver(view)];
    for nic in nics {
        let id = |what: &str| format!("{}.{what}", nic.name);
        checks.push(group(view, nic, &id("group")));
        checks.push(functions(nic, &id("functions")));
        checks.push(unused(view, nic, &id("unused")));
        checks.push(guest_driver(view, nic, &id("guest_driver"), false));
        checks.push(guest_driver(view, nic, &id("function_driver"), true));
        checks.push(node(nic, &id("node")));
        checks.push(moderation(view, nic, &id("moderation")));
    }
    checks
}

fn iommu(view: &View<'_>) -> LabCheck {
    const ID: &str = "iommu.present";
    let name = if view.is_amd() { "AMD-Vi (IOMMU)" } else { "VT-d" };
    let has_unit = !view.files.names("/sys/class/iommu").is_empty();
    let check = match (vfio::has_iommu(view.files), has_unit, view.is_amd()) {
        (true, ..) => good(ID, "an IOMMU is in use"),
        (false, false, _) if view.files.exists("/sys/firmware/acpi/tables/DMAR") => missing(
            ID,
            "the firmware has an IOMMU, and the kernel does not use it",
            boot("intel_iommu=on iommu=pt"),
        ),
        (false, false, _) if view.files.exists("/sys/firmware/acpi/tables/IVRS") => missing(
            ID,
            "the firmware has an IOMMU, and the kernel does not use it",
            boot("iommu=pt"),
        ),
        (false, _, true) => missing(ID, "there is no IOMMU", firmware(format!("switch on {name}"))),
        (false, _, false) => missing(
            ID,
            "there is no IOMMU",
            firmware(format!("switch on {name}; then boot with intel_iommu=on iommu=pt")),
        ),
    };
    with(check, view, &["/sys/kernel/iommu_groups", "/sys/class/iommu"])
}

fn remapping(view: &View<'_>) -> LabCheck {
    const ID: &str = "iommu.remapping";
    let check = match vfio::remaps_interrupts(view.files) {
        Some(true) => good(ID, "interrupts are remapped"),
        Some(false) => match view.parameter("intremap").as_deref() {
            Some("off") => missing(
                ID,
                "interrupts are not remapped, so VFIO refuses devices",
                boot("remove intremap=off"),
            ),
            _ => missing(
                ID,
                "interrupts are not remapped, so VFIO refuses devices",
                firmware("switch on interrupt remapping (often called x2APIC)"),
            ),
        },
        None => unknown(ID, "whether interrupts are remapped: /proc/interrupts does not tell"),
    };
    with(check, view, &["/proc/interrupts"])
}

fn pass_through(view: &View<'_>) -> LabCheck {
    const ID: &str = "iommu.pass_through";
    let is_set = view.parameter("iommu").as_deref() == Some("pt")
        || view.parameter("iommu.passthrough").as_deref() == Some("1");
    let check = match (vfio::has_iommu(view.files), is_set) {
        (false, _) => unknown(ID, "devices of the host: there is no IOMMU in use"),
        (true, true) => good(ID, "devices of the host bypass the IOMMU's translation"),
        (true, false) => worse(
            ID,
            "each buffer of the host's own devices is mapped and unmapped in the IOMMU",
            boot("iommu=pt"),
        ),
    };
    with(check, view, &["/proc/cmdline"])
}

fn driver(view: &View<'_>) -> LabCheck {
    const ID: &str = "vfio.driver";
    const PATH: &str = "/sys/bus/pci/drivers/vfio-pci";
    let check = match (vfio::has_driver(view.files), view.has_module("vfio_pci")) {
        (true, _) => good(ID, "the driver vfio-pci is loaded"),
        (false, true) => {
            missing(ID, "the driver vfio-pci is not loaded", command("modprobe vfio-pci"))
        }
        (false, false) => missing(
            ID,
            "this kernel has no driver vfio-pci",
            command("install a kernel with CONFIG_VFIO_PCI (Debian: linux-image-amd64)"),
        ),
    };
    with(check, view, &[PATH])
}

fn group(view: &View<'_>, nic: &Nic, id: &str) -> LabCheck {
    let path = format!("/sys/bus/pci/devices/{}/iommu_group", nic.address);
    let check = match (nic.group, nic.group_mates.as_slice()) {
        (None, _) => unknown(id, format!("{} is in no IOMMU group", nic.name)),
        (Some(group), []) => good(id, format!("{} is alone in IOMMU group {group}", nic.name)),
        (group, mates) => missing(
            id,
            nic::shared(nic.address, group, mates).to_string(),
            hardware("another slot, or a card or board with access control services (ACS)"),
        ),
    };
    with(check, view, &[&path])
}

fn functions(nic: &Nic, id: &str) -> LabCheck {
    match nic.functions_max {
        Some(max) if max >= 2 => good(id, format!("{} can have {max} virtual functions", nic.name)),
        other => missing(
            id,
            format!("{} can have {} virtual functions", nic.name, other.unwrap_or(0)),
            firmware("switch on SR-IOV in the machine's firmware and in the card's own"),
        ),
    }
}

fn unused(view: &View<'_>, nic: &Nic, id: &str) -> LabCheck {
    let fix = |refusal: &Refusal| match refusal {
        Refusal::Down { name } => command(format!("ip link set {name} up")),
        Refusal::NoCarrier { .. } => hardware("plug the cable in"),
        Refusal::HasFunctions { address, .. } => {
            command(format!("echo 0 > /sys/bus/pci/devices/{address}/sriov_numvfs"))
        }
        Refusal::OtherOwner { .. } | Refusal::NoLink { .. } => {
            let (devices, address) = ("/sys/bus/pci/devices", nic.address);
            command(format!(
                "echo > {devices}/{address}/driver_override; echo {address} > \
                 {devices}/{address}/driver/unbind; echo {address} > /sys/bus/pci/drivers_probe"
            ))
        }
        _ => hardware("a network device that nobody uses"),
    };
    let flags = format!("/sys/class/net/{}/flags", nic.name);
    if view.is_tree() && nic.has_link && !view.files.exists(&flags) {
        return unknown(id, format!("whether {} is up and unused: {flags} is not there", nic.name));
    }
    match nic.refusal(view.own_connection) {
        // The group has a check of its own.
        None | Some(Refusal::SharedGroup { .. }) => {
            good(id, format!("nobody uses {}, and it has a carrier", nic.name))
        }
        Some(refusal) => missing(id, refusal.to_string(), fix(&refusal)),
    }
}

/// The driver of the device, or of its virtual functions, in the kernel of the guests.
fn guest_driver(view: &View<'_>, nic: &Nic, id: &str, is_function: bool) -> LabCheck {
    let what = if is_function { "a virtual function of " } else { "" };
    let Some(driver) = preconditions::guest_driver(nic, is_function) else {
        return unknown(id, format!("which driver guests need for {what}{}", nic.name));
    };
    let release = match view.named_kernel {
        None => guest_release(view),
        Some(_) => None,
    };
    let has = |name: &str| release.as_ref().and_then(|release| view.release_has(release, name));
    let shown = release.as_deref().unwrap_or("that is named");
    match (preconditions::driver_shortage(driver, shown, has), has(driver)) {
        (Some(reason), _) => missing(
            id,
            reason,
            command(format!(
                "--kernel IMAGE|FOLDER|DEB of a kernel with {driver} (Debian: linux-image-amd64)"
            )),
        ),
        (None, Some(true)) => {
            good(id, format!("the guests' kernel {shown} drives {what}{} by {driver}", nic.name))
        }
        (None, _) => unknown(id, format!("whether the guests' kernel has the driver {driver}")),
    }
}

fn node(nic: &Nic, id: &str) -> LabCheck {
    match nic.numa_node {
        Some(node) => good(id, format!("{} is on NUMA node {node}", nic.name)),
        None => unknown(id, format!("the firmware does not tell the NUMA node of {}", nic.name)),
    }
}

fn moderation(view: &View<'_>, nic: &Nic, id: &str) -> LabCheck {
    let Some(now) = view.links.and_then(|links| links.coalescing(&nic.name)) else {
        return unknown(id, format!("interrupt moderation of {}: ethtool -c tells", nic.name));
    };
    let fix = format!("ethtool -C {} rx-usecs 0 adaptive-rx off", nic.name);
    match now.rx_usecs > 0 || now.adaptive_rx {
        true => worse(id, format!("{} gathers interrupts", nic.name), command(fix)),
        false => good(id, format!("{} does not gather interrupts", nic.name)),
    }
}
