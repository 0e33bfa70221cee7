//! Why a network device of the host is not handed to guests. Each names what was found.

use nm_model::pci_address::PciAddress;
use nm_settings::SettingId;
use nm_tune::apply::ApplyError;
use nm_tune::journal::JournalError;
use nm_tune::machine::AccessError;
use nm_tune::record::RunId;
use nm_tune::undo::UndoError;

/// Why a network device is not handed to guests.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// Neither one nor two.
    #[error(
        "{0} network devices: name one whose virtual functions are passed through, or two that are \
         passed through themselves"
    )]
    Count(usize),
    /// One device twice.
    #[error("{0} is named twice: each guest needs a device of its own")]
    Twice(String),
    /// There is none of this name.
    #[error("there is no network device {name} on PCI; there are: {known}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// The devices that there are.
        known: String,
    },
    /// A link without a PCI device.
    #[error("{name} is no PCI device ({kind}); only those can be passed through")]
    NotPci {
        /// The link.
        name: String,
        /// What it is.
        kind: String,
    },
    /// Another owner has the device.
    #[error("{name} ({address}) is bound to {driver}, so another owner uses it")]
    OtherOwner {
        /// The device.
        name: String,
        /// Its address.
        address: PciAddress,
        /// The driver.
        driver: String,
    },
    /// No driver has the device, so nothing tells who uses it.
    #[error(
        "{address} has no network link (driver: {driver}), so nothing tells whether its cable is \
         plugged in; bind its network driver first"
    )]
    NoLink {
        /// The device.
        address: PciAddress,
        /// Its driver, or `none`.
        driver: String,
    },
    /// It carries the connection that this process was started over.
    #[error("{name} carries this session's own SSH connection ({connection})")]
    OwnConnection {
        /// The device.
        name: String,
        /// Both ends.
        connection: String,
    },
    /// It carries the default route.
    #[error("{name} carries the default route (via {gateway})")]
    DefaultRoute {
        /// The device.
        name: String,
        /// The gateway.
        gateway: String,
    },
    /// It has addresses.
    #[error("{name} has the address {addresses}; take a device that nobody uses")]
    Address {
        /// The device.
        name: String,
        /// Its addresses.
        addresses: String,
    },
    /// Routes lead over it.
    #[error("routes lead over {name} ({routes}); take a device that nobody uses")]
    Routes {
        /// The device.
        name: String,
        /// Their destinations.
        routes: String,
    },
    /// Another link uses it.
    #[error("{name} belongs to the {kind} {owner}")]
    Member {
        /// The device.
        name: String,
        /// Bridge, bond, team or another link.
        kind: &'static str,
        /// The link above.
        owner: String,
    },
    /// It is switched off.
    #[error(
        "{name} is down, so nothing tells whether its cable is plugged in: ip link set {name} up"
    )]
    Down {
        /// The device.
        name: String,
    },
    /// No cable, or nothing at its other end.
    #[error("{name} has no carrier: plug its cable in, or start what is at the other end")]
    NoCarrier {
        /// The device.
        name: String,
    },
    /// Somebody else has made virtual functions.
    #[error(
        "{name} has {count} virtual functions already, so another owner uses them; if not: \
         echo 0 > /sys/bus/pci/devices/{address}/sriov_numvfs"
    )]
    HasFunctions {
        /// The device.
        name: String,
        /// Its address.
        address: PciAddress,
        /// How many.
        count: u32,
    },
    /// Two devices are for two guests.
    #[error(
        "two devices that are passed through themselves serve one pair of guests, not {0}: name \
         one device with virtual functions"
    )]
    Pairs(u32),
    /// It cannot have enough virtual functions.
    #[error(
        "{name} can have {count_max} virtual functions and {needed} are needed: switch SR-IOV on \
         in the firmware of the machine and of the card, or name two devices that are passed \
         through themselves"
    )]
    TooFewFunctions {
        /// The device.
        name: String,
        /// How many the guests need.
        needed: u32,
        /// How many it can have.
        count_max: u32,
    },
    /// The IOMMU is off.
    #[error(
        "the host has no IOMMU in use (/sys/kernel/iommu_groups is empty): switch VT-d or AMD-Vi \
         on in the firmware, and add intel_iommu=on iommu=pt (Intel) or iommu=pt (AMD) to the \
         kernel command line"
    )]
    NoIommu,
    /// Interrupts of the device could be forged.
    #[error(
        "interrupts are not remapped (no `IR-` controller in /proc/interrupts), so VFIO refuses \
         the device: switch on interrupt remapping (x2APIC) in the firmware, and remove \
         intremap=off from the kernel command line"
    )]
    NoInterruptRemapping,
    /// Devices that cannot be separated.
    #[error(
        "{address} is in IOMMU group {group} with {mates}: they can only be passed to a guest \
         together; use a slot or a card with access control (ACS)"
    )]
    SharedGroup {
        /// The device.
        address: PciAddress,
        /// The group.
        group: u32,
        /// The others.
        mates: String,
    },
    /// The driver is not loaded.
    #[error("the driver vfio-pci is not loaded: modprobe vfio-pci")]
    NoVfio,
    /// An earlier run was not undone.
    #[error("run {0} has changed devices and was not undone: nearmetal lab undo")]
    Unfinished(RunId),
    /// The kernel refused a change.
    #[error("{step}: {target}: {reason}")]
    Kernel {
        /// The step.
        step: SettingId,
        /// What was to be changed.
        target: String,
        /// Why not.
        reason: String,
    },
    /// A virtual function did not get its hardware address.
    #[error("cannot set the hardware address of virtual function {index} of {name}: {source}")]
    HardwareAddress {
        /// The device.
        name: String,
        /// Number of the function.
        index: u32,
        /// Why.
        source: std::io::Error,
    },
    /// The journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The machine cannot be read.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// A change.
    #[error("{0}; put back what was there with `nearmetal lab undo`")]
    Apply(#[from] ApplyError),
    /// What was changed could not be put back.
    #[error(transparent)]
    Undo(#[from] UndoError),
    /// The system.
    #[error("cannot {action}: {source}")]
    System {
        /// What was attempted.
        action: &'static str,
        /// Why.
        source: std::io::Error,
    },
}

impl Refusal {
    /// Whether somebody else's use of the device is in the way, which is a conflict and no fault
    /// of the machine.
    pub fn is_conflict(&self) -> bool {
        match self {
            Refusal::OtherOwner { .. }
            | Refusal::OwnConnection { .. }
            | Refusal::DefaultRoute { .. }
            | Refusal::Address { .. }
            | Refusal::Routes { .. }
            | Refusal::Member { .. }
            | Refusal::HasFunctions { .. }
            | Refusal::SharedGroup { .. }
            | Refusal::Unfinished(_)
            | Refusal::Journal(JournalError::Busy(_)) => true,
            Refusal::Undo(error) => error.is_conflict(),
            _ => false,
        }
    }

    /// Whether what the user asked for makes no sense on any machine, or names nothing.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Refusal::Count(_)
                | Refusal::Twice(_)
                | Refusal::Unknown { .. }
                | Refusal::NotPci { .. }
        )
    }
}
