//! One TCP connection by smoltcp over an AF_XDP endpoint: the frames, the clock and the one socket
//! that it needs.
//!
//! smoltcp sees IP packets only; the Ethernet header is added and removed here. The kernel keeps
//! answering ARP and neighbour discovery for the address.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use nm_sys::clock::{Clock, Deadline};
use nm_sys::xdp::{PACKET_BYTES_MAX, XdpSocket};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{self, Checksum, DeviceCapabilities, Medium};
use smoltcp::socket::tcp::{self, CongestionControl, State};
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress as NoAddress, IpAddress, IpCidr};

use super::endpoint::XdpEndpoint;
use crate::address::random;
use crate::frame::{FRAME_BYTES_MIN, HardwareAddress, LINK_BYTES};

/// Bytes of each buffer by default. A full window of full segments fits into the receive ring, so a
/// receiver that is late loses nothing.
pub(super) const BUFFER_BYTES: u32 = 256 * 1024;

/// How long an acknowledgement waits for data that can carry it: a frame of its own costs a system
/// call. Every second full segment is still acknowledged at once.
pub(super) const ACK_DELAY: Duration = Duration::from_millis(10);

/// Silence after which a keep-alive is sent; the kernel of a peer that has died resets it.
const KEEP_ALIVE: Duration = Duration::from_millis(500);

/// Silence after which the peer counts as gone.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Small writes that are sent at once, until what is in flight is acknowledged; after them only
/// full segments are sent. So many fit into the peer's receive ring, where 256 KiB in small
/// segments would not, and each loss would cost a second.
const SMALL_WRITES_MAX: u32 = 64;

/// Checks of the ring between two checks of the timers.
const RING_CHECKS_MAX: u32 = 256;

/// Name of the only congestion control.
pub(crate) const CONGESTION: &str = "reno";

/// The link as smoltcp sees it.
#[derive(Debug)]
struct Device {
    socket: XdpSocket,
    /// Ethernet header of the frames that are sent.
    header: [u8; LINK_BYTES],
    /// Whether the next hop is still learned from the frames that are received.
    learns_next_hop: bool,
    /// The packet that is being read.
    packet: Vec<u8>,
    /// The last error of the system, which smoltcp cannot return.
    error: io::Result<()>,
    packet_bytes_max: usize,
    verify: bool,
}

struct Received<'a>(&'a [u8]);

impl phy::RxToken for Received<'_> {
    #[inline(always)]
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(self.0)
    }
}

struct Sending<'a> {
    socket: &'a mut XdpSocket,
    header: &'a [u8; LINK_BYTES],
    error: &'a mut io::Result<()>,
}

impl phy::TxToken for Sending<'_> {
    #[inline(always)]
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, write: F) -> R {
        let Sending { socket, header, error } = self;
        let end = LINK_BYTES + length;
        // Written once: into the frame, or discarded if there is none, and TCP sends it again.
        let (mut write, mut written) = (Some(write), None);
        let pushed = socket.push(end.max(FRAME_BYTES_MIN), |frame| {
            frame[..LINK_BYTES].copy_from_slice(header);
            frame[end..].fill(0);
            written = write.take().map(|write| write(&mut frame[LINK_BYTES..end]));
        });
        if let Err(found) = pushed {
            *error = Err(found);
        }
        match (written, write) {
            (Some(written), _) => written,
            (None, Some(write)) => write(&mut vec![0; length]),
            (None, None) => unreachable!("what was not written can still be written"),
        }
    }
}

impl phy::Device for Device {
    type RxToken<'a> = Received<'a>;
    type TxToken<'a> = Sending<'a>;

    #[inline(always)]
    fn receive(&mut self, _: Instant) -> Option<(Received<'_>, Sending<'_>)> {
        let Device { socket, header, learns_next_hop, packet, error, .. } = self;
        let received = socket.receive(|frame| {
            packet.clear();
            let Some((ethernet, ip)) = frame.split_at_checked(LINK_BYTES) else { return };
            packet.extend_from_slice(ip);
            if *learns_next_hop {
                header[..6].copy_from_slice(&ethernet[6..12]);
            }
        });
        match received {
            Ok(Some(())) => Some((Received(packet), Sending { socket, header, error })),
            Ok(None) => None,
            Err(found) => {
                *error = Err(found);
                None
            }
        }
    }

    #[inline(always)]
    fn transmit(&mut self, _: Instant) -> Option<Sending<'_>> {
        let Device { socket, header, error, .. } = self;
        match socket.has_room() {
            Ok(true) => Some(Sending { socket, header, error }),
            Ok(false) => None,
            Err(found) => {
                *error = Err(found);
                None
            }
        }
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut all = DeviceCapabilities::default();
        all.medium = Medium::Ip;
        all.max_transmission_unit = self.packet_bytes_max;
        let checksum = if self.verify { Checksum::Both } else { Checksum::Tx };
        (all.checksum.ipv4, all.checksum.tcp) = (checksum, checksum);
        all
    }
}

/// A TCP connection, from its first segment to its last.
pub(super) struct TcpEngine {
    device: Device,
    interface: Interface,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    clock: Clock,
    start: u64,
    /// Checks of the ring since the timers were checked.
    ring_checks: u32,
    /// Writes since everything in flight had been acknowledged.
    writes: u32,
}

impl std::fmt::Debug for TcpEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TcpEngine").field("device", &self.device).finish_non_exhaustive()
    }
}

impl TcpEngine {
    /// Takes the socket of `endpoint`. Frames are sent to `next_hop`, or to the sender of the last
    /// received frame.
    pub fn new(
        endpoint: XdpEndpoint,
        next_hop: Option<HardwareAddress>,
        buffer_bytes: u32,
    ) -> TcpEngine {
        let XdpEndpoint { socket, local, hardware, mtu, verify, .. } = endpoint;
        let mut header = [0; LINK_BYTES];
        header[..6].copy_from_slice(&next_hop.unwrap_or_default());
        header[6..12].copy_from_slice(&hardware);
        header[12..].copy_from_slice(if local.is_ipv4() { &[0x08, 0x00] } else { &[0x86, 0xdd] });
        let mut device = Device {
            socket,
            header,
            learns_next_hop: next_hop.is_none(),
            packet: Vec::with_capacity(1 << 16),
            error: Ok(()),
            packet_bytes_max: mtu.min(PACKET_BYTES_MAX - LINK_BYTES),
            verify,
        };
        let clock = Clock::system();
        let mut config = Config::new(NoAddress::Ip);
        config.random_seed = random();
        let mut interface = Interface::new(config, &mut device, Instant::ZERO);
        interface.update_ip_addrs(|addresses| {
            // A prefix of 0 bits: every peer is reached by the one next hop. There is room for one.
            let _ = addresses.push(IpCidr::new(IpAddress::from(local.ip()), 0));
        });
        let buffer = || tcp::SocketBuffer::new(vec![0; buffer_bytes as usize]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(Some(ACK_DELAY.into()));
        socket.set_keep_alive(Some(KEEP_ALIVE.into()));
        socket.set_timeout(Some(SILENCE_MAX.into()));
        socket.set_congestion_control(CongestionControl::Reno);
        let mut sockets = SocketSet::new(vec![]);
        let handle = sockets.add(socket);
        TcpEngine {
            device,
            interface,
            sockets,
            handle,
            clock,
            start: clock.now(),
            ring_checks: 0,
            writes: 0,
        }
    }

    #[inline(always)]
    fn tcp(&mut self) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    fn now(&self) -> Instant {
        let ns = self.clock.ns(self.clock.now().saturating_sub(self.start));
        Instant::from_micros((ns / 1000).cast_signed())
    }

    /// Waits for a connection to `local`.
    pub fn listen(&mut self, local: SocketAddr) -> io::Result<()> {
        self.tcp().listen(local).map_err(io::Error::other)
    }

    /// Sends the first segment of a connection to `peer`.
    pub fn connect(&mut self, local: SocketAddr, peer: SocketAddr) -> io::Result<()> {
        let TcpEngine { interface, sockets, handle, .. } = self;
        let socket = sockets.get_mut::<tcp::Socket>(*handle);
        socket.connect(interface.context(), peer, local).map_err(io::Error::other)
    }

    /// Processes the received frames, and sends what is due.
    #[inline(always)]
    pub fn poll(&mut self) -> io::Result<()> {
        self.ring_checks = 0;
        let now = self.now();
        let TcpEngine { device, interface, sockets, .. } = self;
        interface.poll(now, device, sockets);
        device.socket.flush()?;
        std::mem::replace(&mut device.error, Ok(()))
    }

    /// Sleeps until a frame arrives, a timer is due or `limit` has passed, and then polls.
    pub fn sleep(&mut self, limit: Duration) -> io::Result<()> {
        self.poll()?;
        let now = self.now();
        let timer = self.interface.poll_delay(now, &self.sockets).map(Duration::from);
        self.device.socket.wait(timer.map_or(limit, |timer| timer.min(limit)))?;
        self.poll()
    }

    /// The state of the connection.
    pub fn state(&mut self) -> State {
        self.tcp().state()
    }

    /// The peer, once there is one. Its next hop is no longer learned from frames.
    pub fn fix_peer(&mut self) -> Option<SocketAddr> {
        self.device.learns_next_hop = false;
        let end = self.tcp().remote_endpoint()?;
        Some(SocketAddr::new(end.addr.into(), end.port))
    }

    /// Sends as much as there is room for: bytes, or none if the connection no longer sends.
    #[inline(always)]
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        let socket = self.sockets.get_mut::<tcp::Socket>(self.handle);
        self.writes = if socket.send_queue() == 0 { 0 } else { self.writes + 1 };
        socket.set_nagle_enabled(self.writes > SMALL_WRITES_MAX);
        let Ok(length) = socket.send_slice(bytes) else { return Ok(None) };
        self.poll()?;
        Ok(Some(length))
    }

    /// Receives what is available, perhaps nothing: bytes, or none if the peer has ended sending.
    /// It checks the ring every time, and the timers sometimes or, with `check_timers`, every time.
    #[inline(always)]
    pub fn receive(&mut self, buffer: &mut [u8], check_timers: bool) -> io::Result<Option<usize>> {
        if !self.tcp().can_recv() {
            self.ring_checks += 1;
            if !(check_timers
                || self.device.socket.is_ready()
                || self.ring_checks >= RING_CHECKS_MAX)
            {
                return Ok(Some(0));
            }
            self.poll()?;
            let socket = self.tcp();
            if !socket.can_recv() {
                return Ok(socket.may_recv().then_some(0));
            }
        }
        Ok(self.tcp().recv_slice(buffer).ok())
    }

    /// Whether a receive returns bytes or the end.
    pub fn is_receivable(&mut self) -> bool {
        let socket = self.tcp();
        socket.can_recv() || !socket.may_recv()
    }

    /// Ends this direction.
    pub fn end_sending(&mut self) {
        self.tcp().close();
        // The next call, if there is one, returns the error again.
        let _ = self.poll();
    }

    /// Ends this direction and waits until the peer has everything, for at most `limit`.
    pub fn close(&mut self, limit: Duration) {
        let deadline = Deadline::after(limit);
        self.end_sending();
        let done = |state| {
            matches!(state, State::Closed | State::Listen | State::FinWait2 | State::TimeWait)
        };
        while !done(self.state()) {
            if deadline.passed() || self.sleep(deadline.remaining()).is_err() {
                self.tcp().abort();
                let _ = self.poll();
                return;
            }
        }
    }

    /// The AF_XDP socket, for its counters.
    pub fn socket(&self) -> &XdpSocket {
        &self.device.socket
    }

    /// Bytes of the send and the receive buffer.
    pub fn buffers(&self) -> (usize, usize) {
        let socket = self.sockets.get::<tcp::Socket>(self.handle);
        (socket.send_capacity(), socket.recv_capacity())
    }
}
