//! Handing a PCI device to user space by the driver vfio-pci: what it needs, and the changes.

use nm_model::pci_address::PciAddress;
use nm_settings::SettingId;
use nm_settings::target::{PciSetting, Target};
use nm_sys::hostfiles::HostFiles;
use nm_tune::plan::{StepChange, Wanted, WantedChange};

use crate::refusal::Refusal;

/// The driver.
pub const DRIVER: &str = "vfio-pci";

/// Whether an IOMMU is in use.
pub fn has_iommu(files: &HostFiles) -> bool {
    !files.names("/sys/kernel/iommu_groups").is_empty()
}

/// Whether interrupts are remapped; absent if it cannot be seen. The kernel prefixes the names of
/// interrupt controllers behind a remapping unit with `IR-`; other processors than those of x86
/// remap interrupts in other ways.
pub fn remaps_interrupts(files: &HostFiles) -> Option<bool> {
    let text = files.text("/proc/interrupts")?;
    let has = |sign: &str| text.split_whitespace().any(|word| word.starts_with(sign));
    match (has("IR-") || has("DMAR-IR"), has("PCI-MSI") || has("IO-APIC")) {
        (true, _) => Some(true),
        (false, true) => Some(false),
        (false, false) => None,
    }
}

/// Whether the driver is there.
pub fn has_driver(files: &HostFiles) -> bool {
    files.exists(&format!("/sys/bus/pci/drivers/{DRIVER}"))
}

/// What is missing on this host for passing any device through.
///
/// # Errors
/// The first thing that is missing.
pub fn check(files: &HostFiles) -> Result<(), Refusal> {
    if !has_iommu(files) {
        return Err(Refusal::NoIommu);
    }
    if remaps_interrupts(files) == Some(false) {
        return Err(Refusal::NoInterruptRemapping);
    }
    match has_driver(files) {
        true => Ok(()),
        false => Err(Refusal::NoVfio),
    }
}

/// One change of a device.
pub fn change(step: SettingId, address: PciAddress, setting: PciSetting, word: &str) -> StepChange {
    let target = Target::Pci { address, setting };
    StepChange { step, change: WantedChange { target, wanted: Wanted::Word(word.to_string()) } }
}

/// Hands a device over. Each change can be undone in the opposite order: the device has no driver
/// while its override changes, and its link is down before it goes.
pub fn hand_over(address: PciAddress, has_link: bool) -> Vec<StepChange> {
    let down = has_link.then(|| change(SettingId::PciLink, address, PciSetting::Link, "down"));
    let driver = |word| change(SettingId::PciDriver, address, PciSetting::Driver, word);
    let mut changes: Vec<StepChange> = down.into_iter().collect();
    changes.push(driver(""));
    changes.push(change(SettingId::PciDriver, address, PciSetting::DriverOverride, DRIVER));
    changes.push(driver(DRIVER));
    changes
}
