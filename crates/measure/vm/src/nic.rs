//! A network device of the host: where it is, and who uses it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nm_model::limits;
use nm_model::pci_address::PciAddress;
use nm_sys::hostfiles::HostFiles;

use crate::refusal::Refusal;

const DEVICES: &str = "/sys/bus/pci/devices";
const LINKS: &str = "/sys/class/net";
const NETWORK_CLASS: u32 = 0x02;
const BRIDGE_CLASS: u32 = 0x06;

/// Drivers that hand devices to other programs.
const HANDED_OUT: [&str; 6] =
    ["vfio-pci", "uio_pci_generic", "igb_uio", "pci-stub", "pciback", "xen-pciback"];

/// A network device on PCI, and who uses it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nic {
    /// Name of its link; its address if it has none.
    pub name: String,
    /// Where it is.
    pub address: PciAddress,
    /// The driver that has it.
    pub driver: Option<String>,
    /// Whether it has a link.
    pub has_link: bool,
    /// Whether the link is up.
    pub is_up: bool,
    /// Whether there is something at the other end; absent if the link is down.
    pub has_carrier: Option<bool>,
    /// Links above: kind and name.
    pub owners: Vec<(&'static str, String)>,
    /// IP addresses, those of the link scope excepted.
    pub addresses: Vec<IpAddr>,
    /// IPv6 addresses of the link scope, which every link has.
    pub link_addresses: Vec<Ipv6Addr>,
    /// Gateways of default routes.
    pub gateways: Vec<String>,
    /// Destinations of other routes.
    pub routes: Vec<String>,
    /// Most virtual functions; absent if it knows nothing of SR-IOV.
    pub functions_max: Option<u32>,
    /// How many there are.
    pub functions: u32,
    /// Its IOMMU group.
    pub group: Option<u32>,
    /// Other devices of the group, bridges excepted.
    pub group_mates: Vec<PciAddress>,
    /// NUMA node, where the firmware tells.
    pub numa_node: Option<u32>,
    /// Speed of the link, Mb/s, where it has one.
    pub speed_mbps: Option<u32>,
    /// Connections over addresses of the link scope: both ends.
    pub link_connections: Vec<String>,
}

/// All network devices on PCI, by address.
pub fn addresses(files: &HostFiles) -> Vec<PciAddress> {
    let names = files.names(DEVICES);
    let all = names.iter().filter_map(|name| name.parse().ok()).take(limits::PCI_DEVICES_MAX);
    all.filter(|address| class(files, *address) == Some(NETWORK_CLASS)).collect()
}

/// The device that a user calls `name`: a link, or a PCI address. `known` are the addresses of its
/// link that system calls tell; those in files are read in any case.
///
/// # Errors
/// If there is none, or it is not on PCI.
pub fn find(
    files: &HostFiles,
    name: &str,
    known: &dyn Fn(&str) -> Vec<IpAddr>,
) -> Result<Nic, Refusal> {
    let shown: String = name.chars().take(80).collect();
    if let Ok(address) = name.parse::<PciAddress>() {
        return match class(files, address) {
            Some(NETWORK_CLASS) => Ok(read(files, address, known)),
            _ => Err(Refusal::Unknown { name: shown, known: known_names(files) }),
        };
    }
    let is_name = !name.is_empty() && !name.contains('/') && name != "." && name != "..";
    if !is_name || !files.exists(&format!("{LINKS}/{name}")) {
        return Err(Refusal::Unknown { name: shown, known: known_names(files) });
    }
    let device = files.link_name(&format!("{LINKS}/{name}/device"));
    match device.as_deref().map(str::parse::<PciAddress>) {
        Some(Ok(address)) => Ok(read(files, address, known)),
        Some(Err(_)) => {
            let kind = device.unwrap_or_default();
            Err(Refusal::NotPci { name: shown, kind: format!("its device is {kind}") })
        }
        None => Err(Refusal::NotPci { name: shown, kind: "a virtual link".to_string() }),
    }
}

fn known_names(files: &HostFiles) -> String {
    let name = |address: &PciAddress| match link_name(files, *address) {
        Some(name) => format!("{name} ({address})"),
        None => address.to_string(),
    };
    let all: Vec<String> = addresses(files).iter().map(name).collect();
    match all.is_empty() {
        true => "none".to_string(),
        false => all.join(", "),
    }
}

/// The device at `address`.
pub fn read(files: &HostFiles, address: PciAddress, known: &dyn Fn(&str) -> Vec<IpAddr>) -> Nic {
    let folder = format!("{DEVICES}/{address}");
    let link = link_name(files, address);
    let name = link.clone().unwrap_or_else(|| address.to_string());
    let (group, group_mates) = group(files, address);
    let mut nic = Nic {
        address,
        driver: files.link_name(&format!("{folder}/driver")),
        has_link: link.is_some(),
        is_up: false,
        has_carrier: None,
        owners: vec![],
        addresses: vec![],
        link_addresses: vec![],
        gateways: vec![],
        routes: vec![],
        functions_max: files.value(&format!("{folder}/sriov_totalvfs")),
        functions: files.value(&format!("{folder}/sriov_numvfs")).unwrap_or(0),
        group,
        group_mates,
        numa_node: files
            .value::<i32>(&format!("{folder}/numa_node"))
            .and_then(|node| u32::try_from(node).ok()),
        speed_mbps: None,
        link_connections: vec![],
        name,
    };
    if let Some(link) = link {
        read_link(files, &link, &mut nic);
        add_addresses(files, &link, known(&link), &mut nic);
        add_routes(files, &link, &mut nic);
        nic.link_connections = connections(files, &nic.link_addresses);
    }
    nic
}

/// The IOMMU group of a device, and who else is in it.
pub fn group(files: &HostFiles, address: PciAddress) -> (Option<u32>, Vec<PciAddress>) {
    let group = files.link_name(&format!("{DEVICES}/{address}/iommu_group"));
    let Some(group) = group.and_then(|name| name.parse::<u32>().ok()) else {
        return (None, vec![]);
    };
    let names = files.names(&format!("/sys/kernel/iommu_groups/{group}/devices"));
    let all = names.iter().filter_map(|name| name.parse::<PciAddress>().ok());
    let is_mate = |one: &PciAddress| *one != address && class(files, *one) != Some(BRIDGE_CLASS);
    (Some(group), all.filter(is_mate).collect())
}

fn link_name(files: &HostFiles, address: PciAddress) -> Option<String> {
    files.names(&format!("{DEVICES}/{address}/net")).into_iter().next()
}

/// The kind of a device: network, bridge, …
fn class(files: &HostFiles, address: PciAddress) -> Option<u32> {
    let text = files.text(&format!("{DEVICES}/{address}/class"))?;
    Some(u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()? >> 16)
}

fn read_link(files: &HostFiles, link: &str, nic: &mut Nic) {
    let folder = format!("{LINKS}/{link}");
    let flags = files.text(&format!("{folder}/flags"));
    let flags = flags.and_then(|text| u32::from_str_radix(text.strip_prefix("0x")?, 16).ok());
    nic.is_up = flags.is_some_and(|flags| flags & 1 != 0);
    nic.speed_mbps = files.value(&format!("{folder}/speed"));
    nic.has_carrier = files.value::<u8>(&format!("{folder}/carrier")).map(|carrier| carrier == 1);
    let master = files.link_name(&format!("{folder}/master"));
    let above = files.names(&folder).into_iter();
    let above = above.filter_map(|name| name.strip_prefix("upper_").map(str::to_string));
    let mut owners: Vec<String> = master.into_iter().chain(above).collect();
    owners.sort();
    owners.dedup();
    let kind = |name: String| (kind_of(files, &name), name);
    nic.owners = owners.into_iter().map(kind).collect();
}

/// What a link above others is.
fn kind_of(files: &HostFiles, link: &str) -> &'static str {
    let has = |file: &str| files.exists(&format!("{LINKS}/{link}/{file}"));
    let uevent = files.text(&format!("{LINKS}/{link}/uevent")).unwrap_or_default();
    match () {
        () if has("bridge") => "bridge",
        () if has("bonding") => "bond",
        () if uevent.contains("DEVTYPE=vlan") => "VLAN",
        () => "link",
    }
}

fn add_addresses(files: &HostFiles, link: &str, known: Vec<IpAddr>, nic: &mut Nic) {
    const SCOPE_LINK: &str = "20";
    for line in files.text("/proc/net/if_inet6").unwrap_or_default().lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [address, _, _, scope, _, name] = words.as_slice() else { continue };
        let Ok(bits) = u128::from_str_radix(address, 16) else { continue };
        if *name != link {
            continue;
        }
        match *scope == SCOPE_LINK {
            true => nic.link_addresses.push(Ipv6Addr::from_bits(bits)),
            false => nic.addresses.push(Ipv6Addr::from_bits(bits).into()),
        }
    }
    for address in known {
        match address {
            IpAddr::V6(v6) if v6.is_unicast_link_local() => nic.link_addresses.push(v6),
            other => nic.addresses.push(other),
        }
    }
    nic.addresses.sort();
    nic.addresses.dedup();
    nic.link_addresses.sort();
    nic.link_addresses.dedup();
}

fn add_routes(files: &HostFiles, link: &str, nic: &mut Nic) {
    for line in files.text("/proc/net/route").unwrap_or_default().lines().skip(1) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, destination, gateway, _, _, _, _, mask, ..] = words.as_slice() else { continue };
        let v4 = |text: &str| {
            let bits = u32::from_str_radix(text, 16).ok()?;
            Some(Ipv4Addr::from(bits.to_le_bytes()))
        };
        let (Some(to), Some(via), Some(mask)) = (v4(destination), v4(gateway), v4(mask)) else {
            continue;
        };
        if *name != link {
            continue;
        }
        match mask.is_unspecified() {
            true => nic.gateways.push(via.to_string()),
            false => nic.routes.push(format!("{to}/{}", mask.to_bits().count_ones())),
        }
    }
    for line in files.text("/proc/net/ipv6_route").unwrap_or_default().lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (Some(prefix), Some(via), Some(name)) = (words.get(1), words.get(4), words.last())
        else {
            continue;
        };
        if *name == link && *prefix == "00" {
            let via = u128::from_str_radix(via, 16).unwrap_or(0);
            nic.gateways.push(Ipv6Addr::from_bits(via).to_string());
        }
    }
}

/// Established TCP connections from these addresses.
fn connections(files: &HostFiles, from: &[Ipv6Addr]) -> Vec<String> {
    const ESTABLISHED: &str = "01";
    let mut found = vec![];
    for line in files.text("/proc/net/tcp6").unwrap_or_default().lines().skip(1) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, local, remote, ESTABLISHED, ..] = words.as_slice() else { continue };
        let (Some(local), Some(remote)) = (end_of(local), end_of(remote)) else { continue };
        if from.contains(&local.0) {
            found.push(format!("[{}]:{} to [{}]:{}", local.0, local.1, remote.0, remote.1));
        }
    }
    found
}

/// An end as `/proc/net/tcp6` has it: four words of the machine's byte order, and the port.
fn end_of(text: &str) -> Option<(Ipv6Addr, u16)> {
    let (address, port) = text.split_once(':')?;
    let mut bytes = [0; 16];
    for (at, chunk) in bytes.chunks_exact_mut(4).enumerate() {
        let word = u32::from_str_radix(address.get(at * 8..at * 8 + 8)?, 16).ok()?;
        chunk.copy_from_slice(&word.to_ne_bytes());
    }
    Some((Ipv6Addr::from(bytes), u16::from_str_radix(port, 16).ok()?))
}

impl Nic {
    /// Why the device must not be touched, if there is a reason: the most specific one.
    /// `own_connection` is the content of `SSH_CONNECTION`.
    pub fn refusal(&self, own_connection: Option<&str>) -> Option<Refusal> {
        let name = || self.name.clone();
        if let Some(driver) = self.driver.as_deref().filter(|one| HANDED_OUT.contains(one)) {
            let (address, driver) = (self.address, driver.to_string());
            return Some(Refusal::OtherOwner { name: name(), address, driver });
        }
        if !self.has_link {
            let driver = self.driver.clone().unwrap_or_else(|| "none".to_string());
            return Some(Refusal::NoLink { address: self.address, driver });
        }
        if let Some(connection) = own_connection.and_then(|text| self.carries(text)) {
            return Some(Refusal::OwnConnection { name: name(), connection });
        }
        if let Some(gateway) = self.gateways.first().cloned() {
            return Some(Refusal::DefaultRoute { name: name(), gateway });
        }
        if let Some((kind, owner)) = self.owners.first().cloned() {
            return Some(Refusal::Member { name: name(), kind, owner });
        }
        if !self.addresses.is_empty() {
            let all: Vec<String> = self.addresses.iter().map(IpAddr::to_string).collect();
            return Some(Refusal::Address { name: name(), addresses: all.join(", ") });
        }
        if !self.routes.is_empty() || !self.link_connections.is_empty() {
            let all = [self.routes.as_slice(), self.link_connections.as_slice()].concat();
            return Some(Refusal::Routes { name: name(), routes: all.join(", ") });
        }
        if !self.group_mates.is_empty() {
            return Some(shared(self.address, self.group, &self.group_mates));
        }
        if self.functions > 0 {
            let (address, count) = (self.address, self.functions);
            return Some(Refusal::HasFunctions { name: name(), address, count });
        }
        match (self.is_up, self.has_carrier) {
            (false, _) => Some(Refusal::Down { name: name() }),
            (true, Some(false) | None) => Some(Refusal::NoCarrier { name: name() }),
            (true, Some(true)) => None,
        }
    }

    /// The connection, if its end on this machine is an address of the device. Its form is that of
    /// `SSH_CONNECTION`: address and port of the client, address and port of the server.
    fn carries(&self, connection: &str) -> Option<String> {
        let words: Vec<&str> = connection.split_whitespace().collect();
        let [client, client_port, server, server_port] = words.as_slice() else { return None };
        let (bare, zone) = server.split_once('%').unwrap_or((server, ""));
        let address: IpAddr = bare.parse().ok()?;
        let is_own = match address {
            IpAddr::V6(v6) if v6.is_unicast_link_local() => {
                self.link_addresses.contains(&v6) || zone == self.name
            }
            other => self.addresses.contains(&other),
        };
        is_own.then(|| format!("{client} port {client_port} to {server} port {server_port}"))
    }
}

/// The refusal of a device that is not alone in its group.
pub fn shared(address: PciAddress, group: Option<u32>, mates: &[PciAddress]) -> Refusal {
    let mates: Vec<String> = mates.iter().map(PciAddress::to_string).collect();
    Refusal::SharedGroup { address, group: group.unwrap_or(0), mates: mates.join(", ") }
}
