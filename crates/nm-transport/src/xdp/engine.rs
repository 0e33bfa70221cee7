//! One TCP connection by smoltcp over an AF_XDP endpoint: the frames, the clock and the one socket
//! that it needs.
//!
//! smoltcp sees IP packets only; the Ethernet header is put on and taken off here. The kernel keeps
//! answering ARP and neighbour discovery for the address, so there is nothing of that to do twice.

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

use super::endpoint::Endpoint;
use crate::address::random;
use crate::frame::{FRAME_BYTES_MIN, HardwareAddress, LINK_BYTES};

/// Bytes of each buffer where none are asked for. A full window of whole segments fits into the
/// receive ring, so a receiver that is late loses nothing.
pub(super) const BUFFER_BYTES: u32 = 256 * 1024;

/// How long an acknowledgement waits for an answer to travel with: a frame of its own is a system
/// call of its own. Every second full segment is acknowledged at once all the same.
pub(super) const ACK_DELAY: Duration = Duration::from_millis(10);

/// Silence after which the peer is asked whether it is there; a kernel answers for a dead one.
const KEEP_ALIVE: Duration = Duration::from_millis(500);

/// Silence after which the peer counts as gone.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Writes that leave at once however small, before what is on its way is acknowledged; then only
/// full segments do. Together they fit into the peer's receive ring, where 256 KiB in small
/// segments would not, and each loss would cost a second.
const SMALL_MAX: u32 = 64;

/// Looks at the ring between two looks at the timers.
const LOOKS: u32 = 256;

/// Name of the congestion control, the one that there is.
pub(super) const CONGESTION: &str = "reno";

/// The link as smoltcp sees it.
#[derive(Debug)]
struct Device {
    socket: XdpSocket,
    /// Ethernet header of the frames that are sent.
    header: [u8; LINK_BYTES],
    /// Whether the peer's hardware address is still that of whoever sends.
    learns: bool,
    /// The packet that is being read.
    packet: Vec<u8>,
    /// The first error of the system, which smoltcp has no way to hand on.
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
        // Written once: into the frame, or aside where there is none, and TCP sends it again.
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
        let Device { socket, header, learns, packet, error, .. } = self;
        let received = socket.receive(|frame| {
            packet.clear();
            let Some((ethernet, ip)) = frame.split_at_checked(LINK_BYTES) else { return };
            packet.extend_from_slice(ip);
            if *learns {
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
pub(super) struct Engine {
    device: Device,
    interface: Interface,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    clock: Clock,
    began: u64,
    /// Looks at the ring since the timers were looked at.
    looks: u32,
    /// Writes since all that was sent had been acknowledged.
    writes: u32,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("device", &self.device).finish_non_exhaustive()
    }
}

impl Engine {
    /// Takes the socket of `endpoint`. Frames go to `next_hop`, or where those that come are from.
    pub fn new(endpoint: Endpoint, next_hop: Option<HardwareAddress>, buffer_bytes: u32) -> Engine {
        let Endpoint { socket, local, hardware, mtu, verify, .. } = endpoint;
        let mut header = [0; LINK_BYTES];
        header[..6].copy_from_slice(&next_hop.unwrap_or_default());
        header[6..12].copy_from_slice(&hardware);
        header[12..].copy_from_slice(if local.is_ipv4() { &[0x08, 0x00] } else { &[0x86, 0xdd] });
        let mut device = Device {
            socket,
            header,
            learns: next_hop.is_none(),
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
            // Whoever it is, the way to the peer is the one next hop. There is room for one.
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
        Engine {
            device,
            interface,
            sockets,
            handle,
            clock,
            began: clock.now(),
            looks: 0,
            writes: 0,
        }
    }

    #[inline(always)]
    fn tcp(&mut self) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    fn now(&self) -> Instant {
        let ns = self.clock.ns(self.clock.now().saturating_sub(self.began));
        Instant::from_micros((ns / 1000).cast_signed())
    }

    /// Waits for a connection to `local`.
    pub fn listen(&mut self, local: SocketAddr) -> io::Result<()> {
        self.tcp().listen(local).map_err(io::Error::other)
    }

    /// Begins to connect.
    pub fn connect(&mut self, local: SocketAddr, peer: SocketAddr) -> io::Result<()> {
        let Engine { interface, sockets, handle, .. } = self;
        let socket = sockets.get_mut::<tcp::Socket>(*handle);
        socket.connect(interface.context(), peer, local).map_err(io::Error::other)
    }

    /// Takes in what came, and sends what is due.
    #[inline(always)]
    pub fn poll(&mut self) -> io::Result<()> {
        self.looks = 0;
        let now = self.now();
        let Engine { device, interface, sockets, .. } = self;
        interface.poll(now, device, sockets);
        device.socket.flush()?;
        std::mem::replace(&mut device.error, Ok(()))
    }

    /// Sleeps until a frame comes, a timer is due or `limit` has passed, and then polls.
    pub fn sleep(&mut self, limit: Duration) -> io::Result<()> {
        self.poll()?;
        let now = self.now();
        let timer = self.interface.poll_delay(now, &self.sockets).map(Duration::from);
        self.device.socket.wait(timer.map_or(limit, |timer| timer.min(limit)))?;
        self.poll()
    }

    /// Where the connection stands.
    pub fn state(&mut self) -> State {
        self.tcp().state()
    }

    /// The peer, once there is one. Frames go to it alone from now on.
    pub fn settle(&mut self) -> Option<SocketAddr> {
        self.device.learns = false;
        let end = self.tcp().remote_endpoint()?;
        Some(SocketAddr::new(end.addr.into(), end.port))
    }

    /// Sends what there is room for: bytes, or none if the connection is closed to that.
    #[inline(always)]
    pub fn give(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        let socket = self.sockets.get_mut::<tcp::Socket>(self.handle);
        self.writes = if socket.send_queue() == 0 { 0 } else { self.writes + 1 };
        socket.set_nagle_enabled(self.writes > SMALL_MAX);
        let Ok(length) = socket.send_slice(bytes) else { return Ok(None) };
        self.poll()?;
        Ok(Some(length))
    }

    /// Takes what is there, perhaps nothing: bytes, or none if nothing more will come. It looks at
    /// the ring first, and at the timers now and then or, with `fully`, every time.
    #[inline(always)]
    pub fn take(&mut self, buffer: &mut [u8], fully: bool) -> io::Result<Option<usize>> {
        if !self.tcp().can_recv() {
            self.looks += 1;
            if !(fully || self.device.socket.is_ready() || self.looks >= LOOKS) {
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

    /// Whether a receive has something to tell.
    pub fn has_news(&mut self) -> bool {
        let socket = self.tcp();
        socket.can_recv() || !socket.may_recv()
    }

    /// Says that nothing more will be sent.
    pub fn end_sending(&mut self) {
        self.tcp().close();
        // An error shows with the next call, if there is one.
        let _ = self.poll();
    }

    /// Sees the last bytes and the end of sending to the peer, for at most `limit`.
    pub fn finish(&mut self, limit: Duration) {
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

    /// The AF_XDP socket, for what it counted.
    pub fn socket(&self) -> &XdpSocket {
        &self.device.socket
    }

    /// Bytes of the send and the receive buffer.
    pub fn buffers(&self) -> (usize, usize) {
        let socket = self.sockets.get::<tcp::Socket>(self.handle);
        (socket.send_capacity(), socket.recv_capacity())
    }
}
