//! What every endpoint over AF_XDP stands on: a socket on the link that has the address, opened by
//! the best path, with what it has to tell of itself.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;

use nm_model::stack::{Mode, Stack};
use nm_model::{Doubt, DoubtKind, Failure, FailureKind};
use nm_sys::ethtool::Links;
use nm_sys::xdp::{
    BusyPoll, FRAME_BYTES, FRAME_COUNT, FlowFilter, XdpPath, XdpSocket, XdpStatistics,
};

use crate::failure;
use crate::frame::HardwareAddress;
use crate::link::BUSY_POLL_US;

/// The queue that the endpoint takes; a link with one queue has no other.
pub(super) const QUEUE: u32 = 0;

/// How mode `busy-poll` has the kernel poll the device.
const BUSY_POLL: BusyPoll = BusyPoll { microseconds: BUSY_POLL_US, budget: 64 };

/// Drivers of links that pass packets on within a machine, where the sending kernel leaves the
/// checksum to hardware that never comes: what arrives over them is not verified.
const PARTIAL_CHECKSUMS: &[&str] = &["veth", "virtio_net", "tun", "bridge"];

/// An endpoint that knows no peer yet.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub socket: XdpSocket,
    /// Its own address and port.
    pub local: SocketAddr,
    /// Name of the link.
    pub link: String,
    /// Index of the link.
    pub index: u32,
    driver: String,
    /// Hardware address of the link.
    pub hardware: HardwareAddress,
    /// Bytes of the largest packet of the link.
    pub mtu: usize,
    /// Whether checksums of received datagrams mean anything.
    pub verify: bool,
    busy_poll: Option<BusyPoll>,
}

impl Endpoint {
    /// Takes the packets of `flow`, which go to `local`, off the link that has this address.
    ///
    /// # Errors
    /// A sentence, such as that it takes root or that the link has another program.
    pub fn open(local: SocketAddr, flow: &FlowFilter, mode: Mode) -> Result<Endpoint, Failure> {
        let not_available = |what: String, hint: &str| {
            Failure::new(FailureKind::NotAvailable, what).hint(hint.to_string())
        };
        let ip = local.ip();
        if ip.is_loopback() {
            let what = format!("AF_XDP on {ip}: loopback has no device to take frames from");
            return Err(not_available(what, "use the address of a network link, or udp"));
        }
        if ip.is_unspecified() {
            let what = format!("AF_XDP takes the address of one link, not {ip}");
            return Err(Failure::new(FailureKind::BadRequest, what)
                .hint("`ip address` lists the addresses of this host"));
        }
        let links = Links::new().map_err(|error| failure::of(&error, "looking at the links"))?;
        let link = links.find_by_address(local.ip()).ok_or_else(|| {
            let error = io::ErrorKind::AddrNotAvailable.into();
            failure::of(&error, format!("AF_XDP on {}", local.ip()))
        })?;
        let (Some(index), Some(hardware)) = (links.index(&link), links.hardware_address(&link))
        else {
            let what = format!("AF_XDP on {link}: it is no Ethernet link");
            return Err(not_available(what, "use the address of an Ethernet link"));
        };
        let driver = links.driver(&link).map(|driver| driver.name).unwrap_or_default();
        let mtu = links.mtu(&link).unwrap_or(1500) as usize;
        let busy_poll = (mode == Mode::BusyPoll).then_some(BUSY_POLL);
        let socket = open_best(index, &link, &driver, flow, busy_poll)?;
        // The generic path comes after the kernel's own merging of segments, which leaves a
        // checksum that fits none of them.
        let merged = flow.is_tcp() && socket.path() == XdpPath::Generic;
        let verify = !(merged || PARTIAL_CHECKSUMS.contains(&driver.as_str()));
        Ok(Endpoint { socket, local, link, index, driver, hardware, mtu, verify, busy_poll })
    }

    /// What it has to tell of itself.
    pub fn report(&self) -> Report {
        let checksums =
            if self.verify { "verified" } else { "not verified on this driver and path" };
        let mut settings: BTreeMap<String, String> = [
            ("AF_XDP path", self.socket.path().name().to_string()),
            ("driver", self.driver.clone()),
            ("packet memory", format!("{FRAME_COUNT} frames of {FRAME_BYTES} B")),
            ("queue", QUEUE.to_string()),
            ("received checksums", checksums.to_string()),
            ("MTU", format!("{} B", self.mtu)),
        ]
        .map(|(name, value)| (name.to_string(), value))
        .into();
        if let Some(BusyPoll { microseconds, budget }) = self.busy_poll {
            let text = format!("{microseconds} µs, {budget} frames at once, preferred");
            settings.insert("busy poll".to_string(), text);
        }
        Report { local: self.local, settings }
    }
}

/// What an endpoint has to tell of itself.
#[derive(Debug, Clone)]
pub(crate) struct Report {
    /// Its own address and port.
    pub local: SocketAddr,
    /// What explains a figure that was measured over it.
    pub settings: BTreeMap<String, String>,
}

/// What was lost since the socket was opened.
pub(super) fn doubts(socket: &XdpSocket, local: SocketAddr) -> Vec<Doubt> {
    lost(&socket.statistics().unwrap_or_default(), local).into_iter().collect()
}

/// What the socket's counts give reason to doubt.
fn lost(counts: &XdpStatistics, local: SocketAddr) -> Option<Doubt> {
    let told: Vec<String> = [
        (counts.dropped, "frames without a place to receive into"),
        (counts.ring_full, "frames that found the ring full"),
        (counts.fill_empty, "times that the driver found no frame to receive into"),
        (counts.refused, "frames that the kernel refused"),
    ]
    .into_iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, what)| format!("{count} {what}"))
    .collect();
    let detail = format!("AF_XDP on {local}: {}", told.join(", "));
    (!told.is_empty()).then(|| Doubt::new(DoubtKind::FramesDropped, detail))
}

/// Opens the socket by the best path that the link has.
fn open_best(
    index: u32,
    link: &str,
    driver: &str,
    flow: &FlowFilter,
    busy_poll: Option<BusyPoll>,
) -> Result<XdpSocket, Failure> {
    let mut tried = vec![];
    for &path in XdpPath::preferred(driver, busy_poll.is_some()) {
        let error = match XdpSocket::open(index, QUEUE, flow, path, busy_poll) {
            Ok(socket) => return Ok(socket),
            Err(error) => error,
        };
        let doing = format!("AF_XDP on {link}");
        match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                return Err(failure::of(&error, doing).hint(
                    "run as root: it takes CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF outside of any \
                     user namespace",
                ));
            }
            Some(libc::EAFNOSUPPORT) => {
                let what = format!("{doing}: the kernel has no AF_XDP");
                return Err(Failure::new(FailureKind::NotAvailable, what)
                    .hint("use a kernel with CONFIG_XDP_SOCKETS"));
            }
            Some(libc::EBUSY | libc::EEXIST) => {
                let what = format!("{doing}: another XDP program or socket has the link");
                return Err(Failure::new(FailureKind::AddressInUse, what)
                    .hint(format!("`ip link show {link}` names the program; end what uses it")));
            }
            Some(libc::ENOBUFS) => {
                let what = format!("{doing}: too little locked memory is allowed");
                return Err(Failure::new(FailureKind::Permission, what)
                    .hint("raise `ulimit -l` (limits.conf: memlock) by 1024 KiB"));
            }
            _ => tried.push(format!("{}: {error}", path.name())),
        }
    }
    let what = format!("AF_XDP on {link} (driver {driver}) works in no way: {}", tried.join("; "));
    Err(Failure::new(FailureKind::NotAvailable, what)
        .hint("an MTU of 1500 or less and fewer queues than the device has help some drivers"))
}

/// Refuses the ways of waiting that an AF_XDP endpoint does not have.
pub(crate) fn check(stack: Stack) -> Result<(), Failure> {
    match stack.mode {
        Mode::Spin | Mode::Blocking | Mode::BusyPoll => Ok(()),
        mode => {
            let protocol = stack.protocol;
            let what = format!("{protocol} does not wait by {mode}: it looks at a ring or sleeps");
            Err(Failure::new(FailureKind::NotAvailable, what)
                .hint(format!("use {protocol}-spin, {protocol}-blocking or {protocol}-busy-poll")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_device_is_refused_with_a_sentence() {
        for (local, kind) in [
            ("127.0.0.1:4000", FailureKind::NotAvailable),
            ("[::1]:4000", FailureKind::NotAvailable),
            ("0.0.0.0:4000", FailureKind::BadRequest),
            ("192.0.2.77:4000", FailureKind::BadRequest),
        ] {
            let failure = {
                let local = local.parse().unwrap();
                Endpoint::open(local, &FlowFilter::udp(local), Mode::Spin).unwrap_err()
            };
            assert_eq!(failure.kind, kind, "{failure}");
            assert!(failure.hint.is_some(), "{failure}");
        }
    }

    #[test]
    fn other_ways_of_waiting_are_refused() {
        for mode in Mode::ALL {
            let allowed = matches!(mode, Mode::Spin | Mode::Blocking | Mode::BusyPoll);
            let checked = check(Stack::new(nm_model::Protocol::Xdp, *mode));
            assert_eq!(checked.is_ok(), allowed, "{mode}");
        }
    }

    #[test]
    fn what_was_lost_is_a_doubt_with_its_figures() {
        let local = "192.0.2.77:4000".parse().unwrap();
        assert_eq!(lost(&XdpStatistics::default(), local), None);
        let counts = XdpStatistics { dropped: 3, ring_full: 2, ..XdpStatistics::default() };
        let doubt = lost(&counts, local).unwrap();
        assert_eq!(doubt.kind, DoubtKind::FramesDropped);
        let expected = "AF_XDP on 192.0.2.77:4000: 3 frames without a place to receive into, 2 \
                        frames that found the ring full";
        assert_eq!(doubt.detail, expected);
    }
}
