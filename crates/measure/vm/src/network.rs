//! What lies between two guests: what each kind of environment needs of QEMU and of the host.

use nm_model::GuestId;
use nm_model::plan::EnvironmentKind;
use nm_sys::hostfiles::HostFiles;
use nm_sys::tap;

use crate::features::Features;

/// Device file of packet threads in the kernel.
pub const VHOST_DEVICE: &str = "/dev/vhost-net";

/// Name of the tap device of one guest, in a namespace without a name.
pub fn tap_name(guest: impl Into<GuestId>) -> String {
    format!("nm-port{}", guest.into().index())
}

/// Hardware address of a guest's virtual network device.
pub fn hardware_address(guest: impl Into<GuestId>) -> [u8; 6] {
    // GuestSpec::PAIRS_MAX keeps it within a byte.
    [0x52, 0x54, 0x00, 0x6e, 0x6d, guest.into().index() as u8 + 1]
}

/// Why guests cannot be connected in a way.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NetworkUnavailable {
    /// QEMU is too old.
    #[error("this QEMU has no network device `{0}`; install version 7.2 or later")]
    Netdev(&'static str),
    /// QEMU does not have a device.
    #[error("this QEMU has no device `{0}`; install a complete qemu-system-x86")]
    Device(&'static str),
    /// There are no tap devices.
    #[error("{} is missing; load it with `modprobe tun`", tap::DEVICE)]
    NoTap,
    /// Tap devices are not for this user.
    #[error("no permission for {}; run as root", tap::DEVICE)]
    TapForbidden,
    /// There is no vhost-net.
    #[error("{VHOST_DEVICE} is missing; load it with `modprobe vhost_net`")]
    NoVhost,
    /// vhost-net is not for this user.
    #[error("no permission for {VHOST_DEVICE}; run as root")]
    VhostForbidden,
}

/// Why the guests of an environment cannot be connected; none if they can.
pub fn unavailable_reason(
    kind: EnvironmentKind,
    features: &Features,
) -> Option<NetworkUnavailable> {
    if kind == EnvironmentKind::VmSriov {
        let has = features.has_device("vfio-pci");
        return (!has).then_some(NetworkUnavailable::Device("vfio-pci"));
    }
    if !features.has_device("virtio-net-pci") {
        return Some(NetworkUnavailable::Device("virtio-net-pci"));
    }
    match kind {
        EnvironmentKind::VmWire => {
            (!features.has_netdev("dgram")).then_some(NetworkUnavailable::Netdev("dgram"))
        }
        EnvironmentKind::VmSwitch => tap_unavailable_reason(features, &HostFiles::default()),
        EnvironmentKind::VmVhost => tap_unavailable_reason(features, &HostFiles::default())
            .or_else(|| vhost_unavailable_reason(&HostFiles::default())),
        _ => None,
    }
}

fn tap_unavailable_reason(features: &Features, files: &HostFiles) -> Option<NetworkUnavailable> {
    if !features.has_netdev("tap") {
        return Some(NetworkUnavailable::Netdev("tap"));
    }
    match access(files, tap::DEVICE) {
        Access::Allowed => None,
        Access::Missing => Some(NetworkUnavailable::NoTap),
        Access::Forbidden => Some(NetworkUnavailable::TapForbidden),
    }
}

/// QEMU 7.2 ends by a failed assertion without the device, so it is looked for first.
fn vhost_unavailable_reason(files: &HostFiles) -> Option<NetworkUnavailable> {
    match access(files, VHOST_DEVICE) {
        Access::Allowed => None,
        Access::Missing => Some(NetworkUnavailable::NoVhost),
        Access::Forbidden => Some(NetworkUnavailable::VhostForbidden),
    }
}

enum Access {
    Allowed,
    Missing,
    Forbidden,
}

/// Whether a device file may be opened for reading and writing.
fn access(files: &HostFiles, path: &str) -> Access {
    let opened = std::fs::File::options().read(true).write(true).open(files.path(path));
    match opened {
        Ok(_) => Access::Allowed,
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Access::Forbidden,
        Err(_) => Access::Missing,
    }
}

/// Threads of the host that keep a core busy with the packets of `guests` guests.
pub fn packet_threads(kind: EnvironmentKind, guests: u32) -> u32 {
    match kind {
        // One of vhost for each guest.
        EnvironmentKind::VmVhost => guests,
        _ => 0,
    }
}

/// What lies between the guests, as the layer of a series names it.
pub fn layer(kind: EnvironmentKind) -> &'static str {
    match kind {
        EnvironmentKind::VmSwitch => "guests over a virtual switch",
        EnvironmentKind::VmVhost => "guests over vhost and a virtual switch",
        EnvironmentKind::VmSriov => "guests with a NIC passed through",
        _ => "guests over a datagram link",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nm_model::{GuestSpec, Side};
    use std::collections::BTreeSet;

    fn features(netdevs: &str) -> Features {
        Features::parse(netdevs, "name \"virtio-net-pci\"\n", "tcg\n")
    }

    #[test]
    fn old_qemu_has_no_datagram_link() {
        let reason = |netdevs| unavailable_reason(EnvironmentKind::VmWire, &features(netdevs));
        assert_eq!(reason("dgram\n"), None);
        let text = reason("socket\n").unwrap().to_string();
        assert!(text.contains("`dgram`") && text.contains("7.2"), "{text}");
        let sriov = unavailable_reason(EnvironmentKind::VmSriov, &features(""));
        assert_eq!(sriov, Some(NetworkUnavailable::Device("vfio-pci")));
    }

    #[test]
    fn missing_device_files_have_their_module() {
        let none = HostFiles::new("/nothing/of/this/name");
        let text = |reason: Option<NetworkUnavailable>| reason.unwrap().to_string();
        assert!(text(tap_unavailable_reason(&features("tap\n"), &none)).contains("modprobe tun"));
        assert!(text(tap_unavailable_reason(&features(""), &none)).contains("`tap`"));
        let reason = text(vhost_unavailable_reason(&none));
        assert_eq!(reason, "/dev/vhost-net is missing; load it with `modprobe vhost_net`");
    }

    #[test]
    fn guests_have_different_addresses() {
        let guests = GuestId::all(GuestSpec::PAIRS_MAX);
        let addresses: BTreeSet<[u8; 6]> = guests.iter().map(|&id| hardware_address(id)).collect();
        let taps: BTreeSet<String> = guests.iter().map(|&id| tap_name(id)).collect();
        assert_eq!((addresses.len(), taps.len()), (guests.len(), guests.len()));
        let client = hardware_address(Side::Client);
        assert_eq!(nm_sys::hardware_address::text(client), "52:54:00:6e:6d:01");
        assert_eq!(tap_name(Side::Server), "nm-port1");
        // Bit 1 of the first byte: administered locally; bit 0: a group.
        assert_eq!(client[0] & 3, 2);
    }
}
