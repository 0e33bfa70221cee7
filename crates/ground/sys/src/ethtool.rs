//! Properties of network links by ioctl: driver, firmware, coalescing, rings, queues, offloads,
//! speed, MTU, flags. A socket queries its own network namespace, whereas `/sys/class/net` may show
//! the links of another.

use std::ffi::CStr;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

// Commands of <linux/ethtool.h>.
const GSET: u32 = 0x01;
const GDRVINFO: u32 = 0x03;
const GCOALESCE: u32 = 0x0e;
const SCOALESCE: u32 = 0x0f;
const GRINGPARAM: u32 = 0x10;
const SRINGPARAM: u32 = 0x11;
const GPAUSEPARAM: u32 = 0x12;
const SPAUSEPARAM: u32 = 0x13;
const GSTRINGS: u32 = 0x1b;
const GSTATS: u32 = 0x1d;
const GTSO: u32 = 0x1e;
const STSO: u32 = 0x1f;
const GGSO: u32 = 0x23;
const SGSO: u32 = 0x24;
const GFLAGS: u32 = 0x25;
const SFLAGS: u32 = 0x26;
const GGRO: u32 = 0x2b;
const SGRO: u32 = 0x2c;
const GCHANNELS: u32 = 0x3c;
const SCHANNELS: u32 = 0x3d;
const GSSET_INFO: u32 = 0x37;
const GFEATURES: u32 = 0x3a;
const GET_TS_INFO: u32 = 0x41;
const GEEE: u32 = 0x44;
const GFECPARAM: u32 = 0x50;

/// Sets of names, for [`GSTRINGS`].
const STATISTICS: u32 = 1;
const FEATURES: u32 = 4;

/// Bytes of a name, `ETH_GSTRING_LEN`.
const NAME_BYTES: usize = 32;

/// Most names that are read of a driver. One with 256 queues has some 5,000 statistics.
const NAMES_MAX: u32 = 16_384;

/// `ETH_FLAG_LRO` in the result of [`GFLAGS`].
const FLAG_LRO: u32 = 1 << 15;

/// Words of the largest result that is requested: `struct ethtool_drvinfo`, 196 bytes.
const RESULT_WORDS: usize = 49;

/// Queries the network links of one network namespace.
#[derive(Debug)]
pub struct Links {
    socket: OwnedFd,
}

/// Driver of a link. A text is empty where the driver leaves it empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LinkDriver {
    /// Name, such as `virtio_net`.
    pub name: String,
    /// Version; that of the kernel for drivers of its source tree.
    pub version: String,
    /// Firmware version.
    pub firmware: String,
    /// Bus address, such as `0000:01:00.0`.
    pub bus: String,
}

/// Interrupt coalescing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Coalescing {
    /// Time after a received packet, µs.
    pub rx_usecs: u32,
    /// Received packets before an interrupt.
    pub rx_frames: u32,
    /// Time after a sent packet, µs.
    pub tx_usecs: u32,
    /// Sent packets before an interrupt.
    pub tx_frames: u32,
    /// Whether the driver adapts the receive values to the load.
    pub adaptive_rx: bool,
    /// Whether the driver adapts the transmit values to the load.
    pub adaptive_tx: bool,
}

/// Ring sizes, entries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RingSizes {
    /// Receive, in use.
    pub rx: u32,
    /// Transmit, in use.
    pub tx: u32,
    /// Receive, at most.
    pub rx_max: u32,
    /// Transmit, at most.
    pub tx_max: u32,
}

/// Queues in use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Channels {
    /// Receive only.
    pub rx: u32,
    /// Transmit only.
    pub tx: u32,
    /// Both.
    pub combined: u32,
    /// Most for both.
    pub combined_max: u32,
}

/// Pause frames.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pause {
    /// Negotiated with the other end.
    pub autoneg: bool,
    /// Pauses on request.
    pub rx: bool,
    /// Requests pauses.
    pub tx: bool,
}

/// Time stamping of packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TimestampInfo {
    /// Number of the hardware clock; absent if there is none.
    pub hardware_clock: Option<u32>,
    /// Bits of `SOF_TIMESTAMPING_*`.
    pub capabilities: u32,
    /// Bits of the receive filters.
    pub rx_filters: u32,
}

/// A setting of a link that can be read and written as a whole: a list of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EthtoolSetting {
    /// The 22 numbers of `struct ethtool_coalesce` after the command.
    Coalescing,
    /// Ring sizes in use: rx, rx-mini, rx-jumbo, tx.
    Rings,
    /// Queues in use: rx, tx, other, combined.
    Channels,
    /// Pause frames: autoneg, rx, tx; each 0 or 1.
    Pause,
    /// Generic receive offload, 0 or 1.
    Gro,
    /// Generic segmentation offload, 0 or 1.
    Gso,
    /// TCP segmentation offload, 0 or 1.
    Tso,
    /// Large receive offload, 0 or 1.
    Lro,
}

/// Where the numbers of a setting are in the structure of its commands.
struct Layout {
    get: u32,
    set: u32,
    /// Word of the first number.
    first: usize,
    count: usize,
}

impl EthtoolSetting {
    fn layout(self) -> Layout {
        let (get, set, first, count) = match self {
            EthtoolSetting::Coalescing => (GCOALESCE, SCOALESCE, 1, 22),
            EthtoolSetting::Rings => (GRINGPARAM, SRINGPARAM, 5, 4),
            EthtoolSetting::Channels => (GCHANNELS, SCHANNELS, 5, 4),
            EthtoolSetting::Pause => (GPAUSEPARAM, SPAUSEPARAM, 1, 3),
            EthtoolSetting::Gro => (GGRO, SGRO, 1, 1),
            EthtoolSetting::Gso => (GGSO, SGSO, 1, 1),
            EthtoolSetting::Tso => (GTSO, STSO, 1, 1),
            EthtoolSetting::Lro => (GFLAGS, SFLAGS, 1, 1),
        };
        Layout { get, set, first, count }
    }
}

impl Links {
    /// Opens a socket in the namespace of the calling thread.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn new() -> io::Result<Links> {
        // Any address family works; Unix sockets exist even without IPv4.
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        Ok(Links { socket })
    }

    /// Names of all links of the namespace in the kernel's order, loopback included.
    pub fn names(&self) -> Vec<String> {
        // SAFETY: if_nameindex(3) returns null or an array that ends with a null name.
        let list = unsafe { libc::if_nameindex() };
        let mut names = vec![];
        if list.is_null() {
            return names;
        }
        let mut entry = list;
        // SAFETY: `entry` stays within the array, which ends with a null name; names are C strings.
        unsafe {
            while !(*entry).if_name.is_null() {
                names.push(CStr::from_ptr((*entry).if_name).to_string_lossy().into_owned());
                entry = entry.add(1);
            }
            libc::if_freenameindex(list);
        }
        names
    }

    /// Driver, firmware and bus.
    pub fn driver(&self, link: &str) -> Option<LinkDriver> {
        let words = self.ethtool(link, GDRVINFO)?;
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let text = |at: usize| text_of(&bytes[at..at + 32]).to_string();
        Some(LinkDriver { name: text(4), version: text(36), firmware: text(68), bus: text(100) })
    }

    /// Interrupt coalescing, if the driver supports it.
    pub fn coalescing(&self, link: &str) -> Option<Coalescing> {
        let words = self.ethtool(link, GCOALESCE)?;
        Some(Coalescing {
            rx_usecs: words[1],
            rx_frames: words[2],
            tx_usecs: words[5],
            tx_frames: words[6],
            adaptive_rx: words[10] != 0,
            adaptive_tx: words[11] != 0,
        })
    }

    /// Ring sizes, if the driver has rings.
    pub fn rings(&self, link: &str) -> Option<RingSizes> {
        let words = self.ethtool(link, GRINGPARAM)?;
        Some(RingSizes { rx: words[5], tx: words[8], rx_max: words[1], tx_max: words[4] })
    }

    /// Queues, receive, transmit and combined ones.
    pub fn channels(&self, link: &str) -> Option<Channels> {
        let words = self.ethtool(link, GCHANNELS)?;
        Some(Channels { rx: words[5], tx: words[6], combined: words[8], combined_max: words[4] })
    }

    /// Pause frames, if the device has them.
    pub fn pause(&self, link: &str) -> Option<Pause> {
        let words = self.ethtool(link, GPAUSEPARAM)?;
        Some(Pause { autoneg: words[1] != 0, rx: words[2] != 0, tx: words[3] != 0 })
    }

    /// Time stamping.
    pub fn timestamps(&self, link: &str) -> Option<TimestampInfo> {
        // struct ethtool_ts_info: so_timestamping, phc_index, tx_types, 3 reserved, rx_filters.
        let words = self.ethtool(link, GET_TS_INFO)?;
        let index = i32::from_ne_bytes(words[2].to_ne_bytes());
        Some(TimestampInfo {
            hardware_clock: u32::try_from(index).ok(),
            capabilities: words[1],
            rx_filters: words[7],
        })
    }

    /// Whether energy-efficient Ethernet is on, if the device has it.
    pub fn eee(&self, link: &str) -> Option<bool> {
        // struct ethtool_eee: supported, advertised, lp_advertised, eee_active, eee_enabled.
        Some(self.ethtool(link, GEEE)?[5] != 0)
    }

    /// The forward error correction in force (`ETHTOOL_FEC_*`), if the device has it.
    pub fn fec(&self, link: &str) -> Option<u32> {
        Some(self.ethtool(link, GFECPARAM)?[1])
    }

    /// All features by name, and whether they are on.
    pub fn features(&self, link: &str) -> Vec<(String, bool)> {
        let names = self.strings(link, FEATURES);
        let blocks = names.len().div_ceil(32);
        // struct ethtool_gfeatures: cmd, size, then available, requested, active, never_changed.
        let mut words = vec![0u32; 2 + 4 * blocks];
        words[0] = GFEATURES;
        words[1] = blocks as u32;
        if blocks == 0 || self.ethtool_with(link, &mut words).is_none() {
            return vec![];
        }
        let is_on = |at: usize| words[2 + 4 * (at / 32) + 2] & (1 << (at % 32)) != 0;
        names.into_iter().enumerate().map(|(at, name)| (name, is_on(at))).collect()
    }

    /// The driver's own statistics by name.
    pub fn statistics(&self, link: &str) -> Vec<(String, u64)> {
        let names = self.strings(link, STATISTICS);
        // struct ethtool_stats: cmd, n_stats, then 64 bits for each.
        // Twice the room, as in `strings`.
        let mut words = vec![0u32; 2 + 4 * names.len()];
        words[0] = GSTATS;
        words[1] = names.len() as u32;
        if names.is_empty()
            || self.ethtool_with(link, &mut words).is_none()
            || words[1] as usize != names.len()
        {
            return vec![];
        }
        let value = |at: usize| {
            let (low, high) = (words[2 + 2 * at].to_ne_bytes(), words[3 + 2 * at].to_ne_bytes());
            let mut bytes = [0; 8];
            bytes[..4].copy_from_slice(&low);
            bytes[4..].copy_from_slice(&high);
            u64::from_ne_bytes(bytes)
        };
        names.into_iter().enumerate().map(|(at, name)| (name, value(at))).collect()
    }

    /// The names of a set; empty if the driver has none, or more than any driver should have.
    fn strings(&self, link: &str, set: u32) -> Vec<String> {
        // struct ethtool_sset_info: cmd, reserved, 64 bits of mask, then a length for each set.
        let mut info = [0u32; RESULT_WORDS];
        info[0] = GSSET_INFO;
        let mask = (1u64 << set).to_ne_bytes();
        info[2] = u32::from_ne_bytes([mask[0], mask[1], mask[2], mask[3]]);
        info[3] = u32::from_ne_bytes([mask[4], mask[5], mask[6], mask[7]]);
        let count = self.ethtool_with(link, &mut info).map_or(0, |()| info[4]);
        if count == 0 || count > NAMES_MAX {
            return vec![];
        }
        // The kernel's strings may have become more since: it writes as many as it has then.
        // Twice the room holds a driver that doubled its queues in between.
        let n_words = 3 + 2 * count as usize * NAME_BYTES / 4;
        let mut words = vec![0u32; n_words];
        (words[0], words[1], words[2]) = (GSTRINGS, set, count);
        if self.ethtool_with(link, &mut words).is_none() || words[2] != count {
            return vec![];
        }
        let bytes: Vec<u8> = words[3..].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let names = bytes.chunks(NAME_BYTES).take(count as usize);
        names.map(|name| text_of(name).to_string()).collect()
    }

    /// Queues in use: the larger of receive and transmit, combined ones counted once.
    pub fn queues(&self, link: &str) -> Option<u32> {
        let words = self.ethtool(link, GCHANNELS)?;
        let [rx, tx, combined] = [words[5], words[6], words[8]];
        Some(rx.max(tx).saturating_add(combined))
    }

    /// Speed, Mb/s, if the link has one.
    pub fn speed_mbps(&self, link: &str) -> Option<u32> {
        let words = self.ethtool(link, GSET)?;
        // struct ethtool_cmd: `speed` is the low half of bytes 12..14, `speed_hi` bytes 28..30.
        let half = |word: u32, at: usize| {
            let bytes = word.to_ne_bytes();
            u32::from(u16::from_ne_bytes([bytes[at], bytes[at + 1]]))
        };
        let speed = (half(words[7], 0) << 16) | half(words[3], 0);
        (speed != 0 && speed != 0xffff && speed != u32::MAX).then_some(speed)
    }

    /// Offloads in use, of `gro`, `gso`, `tso` and `lro`.
    pub fn offloads(&self, link: &str) -> Vec<String> {
        let value = |command| self.ethtool(link, command).map_or(0, |words| words[1]);
        [
            ("gro", value(GGRO)),
            ("gso", value(GGSO)),
            ("tso", value(GTSO)),
            ("lro", value(GFLAGS) & FLAG_LRO),
        ]
        .into_iter()
        .filter(|(_, on)| *on != 0)
        .map(|(name, _)| name.to_string())
        .collect()
    }

    /// The numbers of a setting.
    ///
    /// # Errors
    /// If there is no such link, or its driver does not have the setting (`EOPNOTSUPP`).
    pub fn setting(&self, link: &str, setting: EthtoolSetting) -> io::Result<Vec<u32>> {
        let layout = setting.layout();
        let words = self.get(link, layout.get)?;
        let mut numbers = words[layout.first..layout.first + layout.count].to_vec();
        if setting == EthtoolSetting::Lro {
            numbers[0] = u32::from(numbers[0] & FLAG_LRO != 0);
        }
        Ok(numbers)
    }

    /// Largest numbers of a setting, in the order of [`Links::setting`]; absent if the setting has
    /// no such limits.
    pub fn setting_max(&self, link: &str, setting: EthtoolSetting) -> Option<Vec<u32>> {
        matches!(setting, EthtoolSetting::Rings | EthtoolSetting::Channels)
            .then(|| self.ethtool(link, setting.layout().get))?
            .map(|words| words[1..5].to_vec())
    }

    /// Writes the numbers of a setting. The driver may round them: read them back. It may also
    /// change other settings: changing rings or queues restarts the link's queues.
    ///
    /// # Errors
    /// Those of the driver; `EINVAL` if there are not as many numbers as the setting has.
    pub fn set(&self, link: &str, setting: EthtoolSetting, numbers: &[u32]) -> io::Result<()> {
        let layout = setting.layout();
        if numbers.len() != layout.count {
            return Err(rustix::io::Errno::INVAL.into());
        }
        // The numbers that are not part of the setting go back as they were read.
        let mut words = self.get(link, layout.get)?;
        words[0] = layout.set;
        if setting == EthtoolSetting::Lro {
            words[1] = if numbers[0] == 0 { words[1] & !FLAG_LRO } else { words[1] | FLAG_LRO };
        } else {
            words[layout.first..layout.first + layout.count].copy_from_slice(numbers);
        }
        self.command(link, &mut words)
    }

    /// MTU, bytes.
    pub fn mtu(&self, link: &str) -> Option<u32> {
        let mut request = request_for(link)?;
        self.ioctl(libc::SIOCGIFMTU, &mut request)?;
        // SAFETY: the kernel has filled this member.
        u32::try_from(unsafe { request.ifr_ifru.ifru_mtu }).ok()
    }

    /// Index of a link, by which other kernel interfaces identify it.
    pub fn index(&self, link: &str) -> Option<u32> {
        let mut request = request_for(link)?;
        self.ioctl(libc::SIOCGIFINDEX, &mut request)?;
        // SAFETY: the kernel has filled this member.
        u32::try_from(unsafe { request.ifr_ifru.ifru_ifindex }).ok()
    }

    /// Hardware address of an Ethernet link.
    pub fn hardware_address(&self, link: &str) -> Option<[u8; 6]> {
        let mut request = request_for(link)?;
        self.ioctl(libc::SIOCGIFHWADDR, &mut request)?;
        // SAFETY: the kernel has filled this member.
        let address = unsafe { request.ifr_ifru.ifru_hwaddr };
        (address.sa_family == libc::ARPHRD_ETHER)
            .then(|| std::array::from_fn(|at| address.sa_data[at] as u8))
    }

    /// The link that has an IP address.
    pub fn find_by_address(&self, wanted: IpAddr) -> Option<String> {
        let found = self.all_addresses().into_iter().find(|(_, address)| *address == wanted);
        found.map(|(name, _)| name)
    }

    /// The IP addresses of a link.
    pub fn addresses(&self, link: &str) -> Vec<IpAddr> {
        let all = self.all_addresses().into_iter();
        all.filter(|(name, _)| name == link).map(|(_, address)| address).collect()
    }

    /// All IP addresses of the namespace with their links.
    fn all_addresses(&self) -> Vec<(String, IpAddr)> {
        let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
        // SAFETY: getifaddrs(3) writes a pointer to a list, or fails.
        if unsafe { libc::getifaddrs(&mut list) } != 0 {
            return vec![];
        }
        let mut found = vec![];
        let mut entry = list;
        while !entry.is_null() {
            // SAFETY: `entry` is an element of the list of getifaddrs; its name is a C string, and
            // its address is null or complete.
            unsafe {
                let one = &*entry;
                if let Some(address) = crate::socket::ip_of(one.ifa_addr) {
                    let name = CStr::from_ptr(one.ifa_name).to_string_lossy().into_owned();
                    found.push((name, address));
                }
                entry = one.ifa_next;
            }
        }
        // SAFETY: the list is freed once, and nothing refers to it any more.
        unsafe { libc::freeifaddrs(list) };
        found
    }

    /// Whether the link is up and has a carrier (`IFF_UP`, `IFF_RUNNING`).
    pub fn is_up(&self, link: &str) -> bool {
        self.flags(link).is_some_and(|flags| {
            let wanted = libc::IFF_UP | libc::IFF_RUNNING;
            flags & wanted == wanted
        })
    }

    /// Brings a link up or down (`IFF_UP`).
    ///
    /// # Errors
    /// If there is no such link, or the process may not.
    pub fn set_up(&self, link: &str, is_up: bool) -> io::Result<()> {
        const UP: libc::c_short = libc::IFF_UP as libc::c_short;
        let mut request = request_for(link).ok_or(rustix::io::Errno::NODEV)?;
        let flags = self.flags(link).ok_or(rustix::io::Errno::NODEV)? as libc::c_short;
        request.ifr_ifru.ifru_flags = if is_up { flags | UP } else { flags & !UP };
        match self.ioctl(libc::SIOCSIFFLAGS, &mut request) {
            Some(()) => Ok(()),
            None => Err(io::Error::last_os_error()),
        }
    }

    fn flags(&self, link: &str) -> Option<libc::c_int> {
        let mut request = request_for(link)?;
        self.ioctl(libc::SIOCGIFFLAGS, &mut request)?;
        // SAFETY: the kernel has filled this member.
        Some(unsafe { request.ifr_ifru.ifru_flags }.into())
    }

    /// One `SIOCETHTOOL` command; absent if the driver does not support it.
    fn ethtool(&self, link: &str, command: u32) -> Option<[u32; RESULT_WORDS]> {
        self.get(link, command).ok()
    }

    fn get(&self, link: &str, command: u32) -> io::Result<[u32; RESULT_WORDS]> {
        let mut words = [0u32; RESULT_WORDS];
        words[0] = command;
        self.command(link, &mut words)?;
        Ok(words)
    }

    /// One `SIOCETHTOOL` command, in the first of `words`; its result replaces them.
    fn command(&self, link: &str, words: &mut [u32; RESULT_WORDS]) -> io::Result<()> {
        let mut request = request_for(link).ok_or(rustix::io::Errno::NODEV)?;
        request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
        self.ioctl(libc::SIOCETHTOOL, &mut request).ok_or_else(io::Error::last_os_error)
    }

    /// One `SIOCETHTOOL` command of variable size, in the first of `words`.
    fn ethtool_with(&self, link: &str, words: &mut [u32]) -> Option<()> {
        let mut request = request_for(link)?;
        request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
        self.ioctl(libc::SIOCETHTOOL, &mut request)
    }

    /// One call, whose results go to `request` and to where it points.
    fn ioctl(&self, code: libc::c_ulong, request: &mut libc::ifreq) -> Option<()> {
        // SAFETY: `request` is a complete ifreq; where it points to a result buffer, that has room
        // for the largest structure among the commands of fixed size of this file, and twice the
        // room that the kernel asked for before where the driver decides the size.
        let result = unsafe { libc::ioctl(self.socket.as_raw_fd(), code as _, request) };
        (result == 0).then_some(())
    }
}

/// A text that ends at the first zero.
fn text_of(field: &[u8]) -> std::borrow::Cow<'_, str> {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    String::from_utf8_lossy(field[..end].trim_ascii())
}

/// An `ifreq` for a link; absent if the name is too long.
fn request_for(link: &str) -> Option<libc::ifreq> {
    // SAFETY: all zeros is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if link.len() >= request.ifr_name.len() {
        return None;
    }
    for (to, from) in request.ifr_name.iter_mut().zip(link.bytes()) {
        *to = from as libc::c_char;
    }
    Some(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_link_is_found() {
        let links = Links::new().unwrap();
        assert!(links.names().contains(&"lo".to_string()));
        assert!(links.mtu("lo").unwrap() >= 1500);
        assert!(links.is_up("lo"));
        assert!(links.offloads("lo").contains(&"gso".to_string()));
        assert_eq!(links.speed_mbps("lo"), None);
        assert_eq!(links.coalescing("lo"), None);
        assert_eq!(links.index("lo"), Some(1));
        assert_eq!(links.hardware_address("lo"), None, "loopback is not Ethernet");
        assert_eq!(links.find_by_address([127, 0, 0, 1].into()).as_deref(), Some("lo"));
        assert_eq!(links.find_by_address([192, 0, 2, 77].into()), None);
        let features = links.features("lo");
        let is_on = |name: &str| features.iter().find(|(one, _)| one == name).map(|(_, on)| *on);
        assert_eq!(is_on("loopback"), Some(true), "{features:?}");
        assert_eq!(is_on("rx-lro"), Some(false));
        assert_eq!(links.statistics("lo"), vec![], "loopback counts nothing of its own");
        assert_eq!((links.pause("lo"), links.eee("lo"), links.channels("lo")), (None, None, None));
    }

    #[test]
    fn missing_link_has_no_properties() {
        let links = Links::new().unwrap();
        for name in ["nothing0", "a-name-that-is-longer-than-any-link", ""] {
            assert_eq!(links.mtu(name), None, "{name}");
            assert_eq!(links.driver(name), None, "{name}");
            assert!(!links.is_up(name), "{name}");
            assert!(links.setting(name, EthtoolSetting::Gro).is_err(), "{name}");
            assert!(links.set(name, EthtoolSetting::Gro, &[1]).is_err(), "{name}");
        }
    }

    #[test]
    fn settings_of_loopback_are_read_and_a_wrong_count_is_refused_before_the_kernel() {
        let links = Links::new().unwrap();
        assert!(matches!(links.setting("lo", EthtoolSetting::Gro).unwrap()[..], [0 | 1]));
        let error = links.setting("lo", EthtoolSetting::Coalescing).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP), "{error}");
        assert_eq!(links.setting_max("lo", EthtoolSetting::Gro), None);
        let error = links.set("lo", EthtoolSetting::Gro, &[]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "{error}");
    }
}
