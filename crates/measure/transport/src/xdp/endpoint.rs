//! What every endpoint over AF_XDP is built on. It is a socket on the link that has the address,
//! opened by the best path, with its settings and losses.

use std::io;
use std::net::SocketAddr;

use nm_model::setting::{SettingKind, SettingValue, Settings};
use nm_model::stack::Mode;
use nm_model::{Doubt, DoubtKind};
use nm_sys::ethtool::Links;
use nm_sys::xdp::{
    BusyPoll, FRAME_BYTES, FRAME_COUNT, FlowFilter, XdpPath, XdpSocket, XdpStatistics,
};

use super::error::{XdpError, XdpSetupError};
use crate::error::SystemError;
use crate::frame::HardwareAddress;
use crate::kernel::BUSY_POLL_US;

/// The queue that the endpoint uses; a link with one queue has no other.
pub(crate) const QUEUE: u32 = 0;

/// How mode `busy-poll` makes the kernel poll the device.
const BUSY_POLL: BusyPoll = BusyPoll { microseconds: BUSY_POLL_US, budget: 64 };

/// Drivers of links within one machine, where the sending kernel leaves the checksum to hardware
/// that does not exist: what is received over them is not verified.
const PARTIAL_CHECKSUMS: &[&str] = &["veth", "virtio_net", "tun", "bridge"];

/// An endpoint without a peer yet.
#[derive(Debug)]
pub(crate) struct XdpEndpoint {
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
    /// Whether checksums of received packets are complete, so that they can be verified.
    pub verify: bool,
    busy_poll: Option<BusyPoll>,
}

impl XdpEndpoint {
    /// Takes the packets of `flow`, which go to `local`, off the link that has this address.
    ///
    /// # Errors
    /// See [`XdpSetupError`], such as that a privilege is missing or the link is in use.
    pub fn open(local: SocketAddr, flow: &FlowFilter, mode: Mode) -> Result<XdpEndpoint, XdpError> {
        let ip = local.ip();
        if ip.is_loopback() {
            return Err(XdpSetupError::Loopback(ip).into());
        }
        if ip.is_unspecified() {
            return Err(XdpSetupError::Unspecified(ip).into());
        }
        let links = Links::new().map_err(SystemError::during("listing the links"))?;
        let link = links.find_by_address(ip).ok_or_else(|| {
            let error = io::ErrorKind::AddrNotAvailable.into();
            SystemError::new(format!("AF_XDP on {ip}"), error)
        })?;
        let (Some(index), Some(hardware)) = (links.index(&link), links.hardware_address(&link))
        else {
            return Err(XdpSetupError::NotEthernet(link).into());
        };
        let driver = links.driver(&link).map(|driver| driver.name).unwrap_or_default();
        let mtu = links.mtu(&link).unwrap_or(1500) as usize;
        let busy_poll = (mode == Mode::BusyPoll).then_some(BUSY_POLL);
        let socket = open_best(index, &link, &driver, flow, busy_poll)?;
        // On the generic path the kernel has already merged TCP segments, and the checksum that
        // remains fits none of them.
        let merged = flow.is_tcp() && socket.path() == XdpPath::Generic;
        let verify = !(merged || PARTIAL_CHECKSUMS.contains(&driver.as_str()));
        Ok(XdpEndpoint { socket, local, link, index, driver, hardware, mtu, verify, busy_poll })
    }

    /// Its address, and the settings that explain a figure.
    pub fn report(&self) -> EndpointReport {
        let checksums =
            if self.verify { "verified" } else { "not verified on this driver and path" };
        let mut settings: Settings = [
            (SettingKind::XdpPath, SettingValue::text(self.socket.path().name())),
            (SettingKind::Driver, SettingValue::text(&self.driver)),
            (
                SettingKind::PacketMemory,
                SettingValue::text(format!("{FRAME_COUNT} frames of {FRAME_BYTES} B")),
            ),
            (SettingKind::Queue, SettingValue::Number(u64::from(QUEUE))),
            (SettingKind::ReceivedChecksums, SettingValue::text(checksums)),
            (SettingKind::Mtu, SettingValue::Bytes(self.mtu as u64)),
        ]
        .into_iter()
        .collect();
        if let Some(BusyPoll { microseconds, budget }) = self.busy_poll {
            let text = format!("{microseconds} µs, {budget} frames at once, preferred");
            settings.set(SettingKind::BusyPoll, SettingValue::text(text));
        }
        EndpointReport { local: self.local, settings }
    }
}

/// What an endpoint reports of itself.
#[derive(Debug, Clone)]
pub(crate) struct EndpointReport {
    /// Its own address and port.
    pub local: SocketAddr,
    /// Settings that explain a figure that was measured over it.
    pub settings: Settings,
}

/// The doubts of frames that were dropped since the socket was opened.
pub(super) fn doubts(socket: &XdpSocket, local: SocketAddr) -> Vec<Doubt> {
    drop_doubt(&socket.statistics().unwrap_or_default(), local).into_iter().collect()
}

fn drop_doubt(counts: &XdpStatistics, local: SocketAddr) -> Option<Doubt> {
    let counts: Vec<String> = [
        (counts.dropped, "frames without a buffer to receive into"),
        (counts.ring_full, "frames that found the ring full"),
        (counts.fill_empty, "times that the driver found no buffer to receive into"),
        (counts.refused, "frames that the kernel rejected"),
    ]
    .into_iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, what)| format!("{count} {what}"))
    .collect();
    let detail = format!("AF_XDP on {local}: {}", counts.join(", "));
    (!counts.is_empty()).then(|| Doubt::new(DoubtKind::FramesDropped, detail))
}

/// Opens the socket by the best path that the link has.
fn open_best(
    index: u32,
    link: &str,
    driver: &str,
    flow: &FlowFilter,
    busy_poll: Option<BusyPoll>,
) -> Result<XdpSocket, XdpSetupError> {
    let mut tried = vec![];
    for &path in XdpPath::preferred(driver, busy_poll.is_some()) {
        let error = match XdpSocket::open(index, QUEUE, flow, path, busy_poll) {
            Ok(socket) => return Ok(socket),
            Err(error) => error,
        };
        let link = link.to_string();
        match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                return Err(XdpSetupError::Permission { link, source: error });
            }
            Some(libc::EAFNOSUPPORT) => return Err(XdpSetupError::NoKernelSupport { link }),
            Some(libc::EBUSY | libc::EEXIST) => return Err(XdpSetupError::LinkInUse { link }),
            Some(libc::ENOBUFS) => return Err(XdpSetupError::LockedMemory { link }),
            _ => tried.push((path.name(), error)),
        }
    }
    Err(XdpSetupError::NoPath { link: link.to_string(), driver: driver.to_string(), tried })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure;
    use nm_model::FailureKind;

    #[test]
    fn address_without_a_device_is_refused() {
        for (local, kind) in [
            ("127.0.0.1:4000", FailureKind::NotAvailable),
            ("[::1]:4000", FailureKind::NotAvailable),
            ("0.0.0.0:4000", FailureKind::BadRequest),
            ("192.0.2.77:4000", FailureKind::BadRequest),
        ] {
            let failure = {
                let local = local.parse().unwrap();
                let opened = XdpEndpoint::open(local, &FlowFilter::udp(local), Mode::Spin);
                failure::from_connection(opened.unwrap_err().into())
            };
            assert_eq!(failure.kind, kind, "{failure}");
            assert!(failure.hint.is_some(), "{failure}");
        }
    }

    #[test]
    fn dropped_frames_are_a_doubt_with_their_counts() {
        let local = "192.0.2.77:4000".parse().unwrap();
        assert_eq!(drop_doubt(&XdpStatistics::default(), local), None);
        let counts = XdpStatistics { dropped: 3, ring_full: 2, ..XdpStatistics::default() };
        let doubt = drop_doubt(&counts, local).unwrap();
        assert_eq!(doubt.kind, DoubtKind::FramesDropped);
        let expected = "AF_XDP on 192.0.2.77:4000: 3 frames without a buffer to receive into, 2 \
                        frames that found the ring full";
        assert_eq!(doubt.detail, expected);
    }
}
