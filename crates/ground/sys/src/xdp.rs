//! AF_XDP: a socket that shares packet memory and four rings with the kernel, and so moves complete
//! frames without the network stack.
//!
//! [`XdpSocket::open`] uses one queue of a network link. A program on the link ([`crate::bpf`])
//! redirects the packets of one [`FlowFilter`] to the socket and leaves all others to the kernel.
//! When the socket is closed, also by a kill, the kernel removes the program. The kernel's
//! documentation is Documentation/networking/af_xdp.rst.

mod fill;
mod ring;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use libc::{c_int, c_void, socklen_t};

pub use crate::bpf::FlowFilter;
use crate::bpf::{XdpAttachment, XdpMode, XdpProgram, XskMap, redirect_program};
use crate::clock::Deadline;
use fill::FillRing;
use ring::{Consumer, MappedMemory, Producer};

/// `AF_XDP` of <linux/socket.h>.
const FAMILY: c_int = 44;

/// `SOL_XDP`.
const LEVEL: c_int = 283;

/// `SO_PREFER_BUSY_POLL` and `SO_BUSY_POLL_BUDGET` of <asm-generic/socket.h>.
const PREFER_BUSY_POLL: c_int = 69;
const BUSY_POLL_BUDGET: c_int = 70;

/// Size of a frame in the packet memory: enough for an MTU of 1500 after the 256 bytes of headroom
/// that the kernel reserves in front of a packet.
pub const FRAME_BYTES: usize = 2048;

/// Largest packet, link header included, that fits into a frame.
pub const PACKET_BYTES_MAX: usize = FRAME_BYTES - 256;

/// Entries of each ring.
const RING_ENTRIES: u32 = 256;

/// Number of frames; one half is for receiving, the other for sending.
pub const FRAME_COUNT: u32 = 2 * RING_ENTRIES;

/// Retries of a bind: the kernel releases the queue's previous user with a delay.
const BIND_STEPS: u32 = 50;
const BIND_STEP: Duration = Duration::from_millis(20);

/// How frames are moved between the link and the packet memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XdpPath {
    /// The device reads and writes the packet memory directly.
    ZeroCopy,
    /// Frames are copied in the driver, before the kernel allocates packet buffers.
    Native,
    /// Frames are copied from and to the kernel's packet buffers; works on any link.
    Generic,
}

impl XdpPath {
    /// The paths to try on links of this driver, the best first.
    ///
    /// A veth pair has the native and the generic path, and the generic one is faster: packets that
    /// AF_XDP sends have no headroom for the native mode, which therefore copies each once more.
    /// Busy polling needs a driver that can be polled, which the generic path does not use.
    pub fn preferred(driver: &str, busy_poll: bool) -> &'static [XdpPath] {
        match driver {
            "veth" if !busy_poll => &[XdpPath::Generic, XdpPath::Native],
            _ => &[XdpPath::ZeroCopy, XdpPath::Native, XdpPath::Generic],
        }
    }

    /// The name in settings.
    pub fn name(self) -> &'static str {
        match self {
            XdpPath::ZeroCopy => "zero copy",
            XdpPath::Native => "native, copied",
            XdpPath::Generic => "generic, copied",
        }
    }

    fn mode(self) -> XdpMode {
        match self {
            XdpPath::ZeroCopy | XdpPath::Native => XdpMode::Native,
            XdpPath::Generic => XdpMode::Generic,
        }
    }

    fn bind_flags(self) -> u16 {
        match self {
            XdpPath::ZeroCopy => libc::XDP_ZEROCOPY,
            XdpPath::Native => libc::XDP_COPY,
            // The kernel's packets may be larger than a frame, because senders on this host leave
            // segmentation to the device.
            XdpPath::Generic => libc::XDP_COPY | libc::XDP_USE_SG,
        }
    }
}

/// Frames that were lost, as counted by the kernel since the socket was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct XdpStatistics {
    /// Received packets that were dropped because no frame was free, or the frame was too small.
    pub dropped: u64,
    /// Received packets that were dropped because the ring was full: the program did not keep up.
    pub ring_full: u64,
    /// Times that the driver found no free frame to receive into.
    pub fill_empty: u64,
    /// Frames of the send ring that the kernel rejected.
    pub refused: u64,
}

/// How long the kernel polls the device before a wait sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BusyPoll {
    /// Time of polling before sleeping, µs (`SO_BUSY_POLL`).
    pub microseconds: u32,
    /// Most frames of one poll (`SO_BUSY_POLL_BUDGET`).
    pub budget: u16,
}

/// An AF_XDP socket that receives the packets of one flow from one queue.
#[derive(Debug)]
pub struct XdpSocket {
    // Fields are dropped in this order: first the program that redirects packets, then the rings,
    // whose mappings keep the socket open, and the packet memory last.
    _attachment: XdpAttachment,
    receive: Consumer<libc::xdp_desc>,
    send: Producer<libc::xdp_desc>,
    fill: FillRing,
    completion: Consumer<u64>,
    fd: OwnedFd,
    memory: MappedMemory,
    /// Free frames for sending; the last used one is on top, because it is still in the cache.
    free: Vec<u64>,
    path: XdpPath,
    /// The send ring has entries that the kernel was not woken for.
    unflushed: bool,
    /// The kernel could not send everything, and must be woken again.
    needs_retry: bool,
    /// Consecutive polls that found nothing.
    idle_polls: u32,
    busy_poll: Option<BusyPoll>,
    /// The received part of a packet of several frames.
    multi_frame: Vec<u8>,
}

/// Polls without a frame after which a spinning receiver checks whether the kernel needs a wake-up.
const IDLE_POLLS_MAX: u32 = 1024;

/// Most wake-ups that a full send ring needs: the kernel sends 32 frames in each.
const WAKEUPS_MAX: u32 = RING_ENTRIES / 32;

impl XdpSocket {
    /// Receives the packets of `flow` from `queue` of the link with index `link`.
    ///
    /// # Errors
    /// `EPERM` without the capabilities `CAP_NET_RAW`, `CAP_NET_ADMIN` and `CAP_BPF`, `EBUSY` if
    /// the link or the queue has another user, `EOPNOTSUPP` if the driver does not know `path`.
    pub fn open(
        link: u32,
        queue: u32,
        flow: &FlowFilter,
        path: XdpPath,
        busy_poll: Option<BusyPoll>,
    ) -> io::Result<XdpSocket> {
        let fd = socket()?;
        if let Some(busy_poll) = busy_poll {
            set_busy_poll(&fd, busy_poll)?;
        }
        let memory = MappedMemory::anonymous(FRAME_COUNT as usize * FRAME_BYTES)?;
        register(&fd, &memory)?;
        let (receive, send, fill, completion) = map_rings(&fd)?;
        let frame = |number: u32| u64::from(number) * FRAME_BYTES as u64;
        let fill = FillRing::new(fill, (0..RING_ENTRIES).map(frame));
        // The program must be attached before the socket is bound to the path.
        let sockets = XskMap::new(queue + 1)?;
        let program = XdpProgram::load(&redirect_program(&sockets, flow))?;
        let attachment = XdpAttachment::new(&program, link, path.mode())?;
        bind(&fd, link, queue, path.bind_flags() | libc::XDP_USE_NEED_WAKEUP)?;
        sockets.set(queue, &fd)?;
        Ok(XdpSocket {
            _attachment: attachment,
            receive,
            send,
            fill,
            completion,
            fd,
            memory,
            free: (RING_ENTRIES..FRAME_COUNT).map(frame).collect(),
            path,
            unflushed: false,
            needs_retry: false,
            idle_polls: 0,
            busy_poll,
            multi_frame: vec![],
        })
    }

    /// How frames are moved.
    pub fn path(&self) -> XdpPath {
        self.path
    }

    /// Passes the next received frame to `read`, if there is one. Never waits; wakes the kernel if
    /// it needs that.
    ///
    /// # Errors
    /// Those of the system calls, such as `ENETDOWN`.
    #[inline(always)]
    pub fn receive<R>(&mut self, read: impl FnOnce(&[u8]) -> R) -> io::Result<Option<R>> {
        let Some(frame) = self.receive.peek() else {
            self.idle_polls += 1;
            if self.needs_retry || self.idle_polls >= IDLE_POLLS_MAX {
                self.wake_kernel()?;
            }
            return Ok(None);
        };
        self.idle_polls = 0;
        if frame.options & libc::XDP_PKT_CONTD != 0 || !self.multi_frame.is_empty() {
            return Ok(self.receive_multi_frame(frame, read));
        }
        let result = read(self.memory.bytes(frame.addr as usize, frame.len as usize));
        self.receive.advance();
        self.give_back(frame.addr);
        Ok(Some(result))
    }

    /// Gives the frame that contains `addr` back to the kernel, to receive into.
    #[inline(always)]
    fn give_back(&mut self, addr: u64) {
        self.fill.give_back(addr & !(FRAME_BYTES as u64 - 1));
    }

    /// Collects `frame` and the following ones of the same packet; passes the packet to `read` when
    /// it is complete.
    #[cold]
    fn receive_multi_frame<R>(
        &mut self,
        mut frame: libc::xdp_desc,
        read: impl FnOnce(&[u8]) -> R,
    ) -> Option<R> {
        loop {
            let bytes = self.memory.bytes(frame.addr as usize, frame.len as usize);
            self.multi_frame.extend_from_slice(bytes);
            self.receive.advance();
            self.give_back(frame.addr);
            if frame.options & libc::XDP_PKT_CONTD == 0 {
                let result = read(&self.multi_frame);
                self.multi_frame.clear();
                return Some(result);
            }
            frame = self.receive.peek()?;
        }
    }

    /// Whether [`XdpSocket::receive`] has something to do: read a frame, or wake the kernel.
    #[inline(always)]
    pub fn is_ready(&mut self) -> bool {
        if self.receive.peek().is_some() {
            return true;
        }
        self.idle_polls += 1;
        self.needs_retry || self.idle_polls >= IDLE_POLLS_MAX
    }

    /// Whether a frame for sending is free.
    ///
    /// # Errors
    /// Those of the system calls.
    #[inline(always)]
    pub fn has_room(&mut self) -> io::Result<bool> {
        while let Some(addr) = self.completion.peek() {
            self.completion.advance();
            self.free.push(addr);
        }
        if self.free.is_empty() {
            self.wake_kernel()?;
        }
        Ok(!self.free.is_empty())
    }

    /// Adds a frame of `length` bytes, which `write` fills, to the send ring, where the kernel
    /// reads it after [`XdpSocket::flush`] at the latest; returns false if there is no room.
    ///
    /// # Errors
    /// `EMSGSIZE` for more than [`PACKET_BYTES_MAX`], and those of the system calls.
    #[inline(always)]
    pub fn push(&mut self, length: usize, write: impl FnOnce(&mut [u8])) -> io::Result<bool> {
        if length > PACKET_BYTES_MAX {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        if !self.has_room()? {
            return Ok(false);
        }
        let Some(addr) = self.free.pop() else { return Ok(false) };
        write(self.memory.bytes_mut(addr as usize, length));
        let is_queued = self.send.push(libc::xdp_desc { addr, len: length as u32, options: 0 });
        if !is_queued {
            // A driver on another CPU may return a frame before it publishes that it took it.
            self.free.push(addr);
            return Ok(false);
        }
        self.unflushed = true;
        Ok(true)
    }

    /// Has the kernel send what was pushed.
    ///
    /// # Errors
    /// Those of the system calls.
    #[inline(always)]
    pub fn flush(&mut self) -> io::Result<()> {
        // On copying paths the kernel always needs a system call, which is most of the cost of a
        // frame.
        if !std::mem::take(&mut self.unflushed) {
            return Ok(());
        }
        for _ in 0..WAKEUPS_MAX {
            if !self.send.needs_wakeup() {
                return Ok(());
            }
            self.wake_sender()?;
            if !self.needs_retry {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Sends a frame of `length` bytes, which `write` fills; returns false if there is no room.
    ///
    /// # Errors
    /// Those of [`XdpSocket::push`].
    #[inline(always)]
    pub fn send(&mut self, length: usize, write: impl FnOnce(&mut [u8])) -> io::Result<bool> {
        let pushed = self.push(length, write)?;
        self.flush()?;
        Ok(pushed)
    }

    /// Waits for a frame for at most `limit`; whether there is one.
    ///
    /// # Errors
    /// Those of the system calls.
    #[inline]
    pub fn wait(&mut self, limit: Duration) -> io::Result<bool> {
        if self.receive.peek().is_some() {
            return Ok(true);
        }
        self.fill.offer_waiting();
        if let Some(busy_poll) = self.busy_poll {
            let deadline =
                Deadline::after(limit.min(Duration::from_micros(busy_poll.microseconds.into())));
            while !deadline.passed() {
                self.wake_receiver()?;
                if self.receive.peek().is_some() {
                    return Ok(true);
                }
            }
        }
        crate::poll::readable(self.fd.as_raw_fd(), limit)
    }

    /// The counters of the kernel.
    ///
    /// # Errors
    /// Those of the system calls.
    pub fn statistics(&self) -> io::Result<XdpStatistics> {
        let all: libc::xdp_statistics = get(&self.fd, libc::XDP_STATISTICS)?;
        Ok(XdpStatistics {
            dropped: all.rx_dropped,
            ring_full: all.rx_ring_full,
            fill_empty: all.rx_fill_ring_empty_descs,
            refused: all.tx_invalid_descs + all.rx_invalid_descs,
        })
    }

    /// Wakes the kernel where it needs that or has not finished.
    #[cold]
    fn wake_kernel(&mut self) -> io::Result<()> {
        self.idle_polls = 0;
        self.fill.offer_waiting();
        if self.needs_retry || (self.send.outstanding() > 0 && self.send.needs_wakeup()) {
            self.wake_sender()?;
        }
        if self.fill.needs_wakeup() || self.busy_poll.is_some() {
            self.wake_receiver()?;
        }
        Ok(())
    }

    /// Has the driver look for received frames: soon by itself, or at once with busy polling.
    fn wake_receiver(&mut self) -> io::Result<()> {
        let (none, flags) = (std::ptr::null_mut::<c_void>(), libc::MSG_DONTWAIT);
        // SAFETY: the buffer is empty; the call only wakes the driver.
        let result = unsafe { libc::recv(self.fd.as_raw_fd(), none, 0, flags) };
        self.check_wakeup(result)
    }

    /// Has the kernel send the entries of the send ring.
    #[inline(always)]
    fn wake_sender(&mut self) -> io::Result<()> {
        self.needs_retry = false;
        let (none, flags) = (std::ptr::null::<c_void>(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
        // SAFETY: the buffer is empty; the call only starts the transmission.
        let result = unsafe { libc::send(self.fd.as_raw_fd(), none, 0, flags) };
        self.check_wakeup(result)
    }

    /// A wake-up that must be repeated, because the kernel is busy or has not sent everything, is
    /// not an error.
    #[inline(always)]
    fn check_wakeup(&mut self, result: isize) -> io::Result<()> {
        if result >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR) => {
                self.needs_retry = true;
                Ok(())
            }
            _ => Err(error),
        }
    }
}

impl AsFd for XdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Why this process cannot use AF_XDP on any link, as a clause; absent if it can.
pub fn unavailable_reason() -> Option<String> {
    let attempt = socket().map(drop).and_then(|()| XskMap::new(1)).and_then(|map| {
        XdpProgram::load(&redirect_program(&map, &FlowFilter::udp(discard_port())))
    });
    let error = attempt.err()?;
    Some(match error.raw_os_error() {
        Some(libc::EAFNOSUPPORT) => {
            "the kernel has no AF_XDP; use one with CONFIG_XDP_SOCKETS".to_string()
        }
        Some(libc::EPERM | libc::EACCES) => {
            "AF_XDP requires CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF outside of any user \
             namespace; run as root"
                .to_string()
        }
        _ => format!("AF_XDP cannot be used: {error}; look at the kernel's log"),
    })
}

/// The discard port of this host.
fn discard_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 9))
}

/// `SO_PREFER_BUSY_POLL`, `SO_BUSY_POLL` and `SO_BUSY_POLL_BUDGET`.
fn set_busy_poll(fd: &OwnedFd, busy_poll: BusyPoll) -> io::Result<()> {
    let microseconds = busy_poll.microseconds as c_int;
    for (name, value) in [
        (PREFER_BUSY_POLL, 1),
        (libc::SO_BUSY_POLL, microseconds),
        (BUSY_POLL_BUDGET, busy_poll.budget.into()),
    ] {
        set_at(fd, libc::SOL_SOCKET, name, value)?;
    }
    Ok(())
}

/// `socket(AF_XDP, SOCK_RAW, 0)`.
fn socket() -> io::Result<OwnedFd> {
    // SAFETY: the arguments are numbers; the result is checked before it is owned.
    let fd: RawFd = unsafe { libc::socket(FAMILY, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Registers the packet memory with the socket. The kernel pins it, so that no page of it can be
/// swapped out.
fn register(fd: &OwnedFd, memory: &MappedMemory) -> io::Result<()> {
    let umem = libc::xdp_umem_reg {
        addr: memory.pointer().as_ptr().expose_provenance() as u64,
        len: memory.length() as u64,
        chunk_size: FRAME_BYTES as u32,
        headroom: 0,
        flags: 0,
        tx_metadata_len: 0,
    };
    set(fd, libc::XDP_UMEM_REG, umem)
}

/// The rings for receiving, sending, filling and completion.
type Rings = (Consumer<libc::xdp_desc>, Producer<libc::xdp_desc>, Producer<u64>, Consumer<u64>);

/// Creates and maps the four rings of a socket. To be called once for each socket.
fn map_rings(fd: &OwnedFd) -> io::Result<Rings> {
    for ring in [
        libc::XDP_UMEM_FILL_RING,
        libc::XDP_UMEM_COMPLETION_RING,
        libc::XDP_RX_RING,
        libc::XDP_TX_RING,
    ] {
        set(fd, ring, RING_ENTRIES)?;
    }
    let at = offsets(fd)?;
    let map = |offsets, page, entry_bytes| {
        MappedMemory::ring(fd.as_fd(), offsets, page, RING_ENTRIES as usize * entry_bytes)
    };
    let frames = |offsets, page| map(offsets, page, size_of::<libc::xdp_desc>());
    let addresses = |offsets, page| map(offsets, page, size_of::<u64>());
    // SAFETY: each mapping is that of the ring to which the offsets and the entry type belong, and
    // nothing else in this process uses it.
    Ok(unsafe {
        (
            Consumer::new(frames(&at.rx, libc::XDP_PGOFF_RX_RING)?, &at.rx, RING_ENTRIES),
            Producer::new(frames(&at.tx, libc::XDP_PGOFF_TX_RING)?, &at.tx, RING_ENTRIES),
            Producer::new(addresses(&at.fr, FILL_OFFSET)?, &at.fr, RING_ENTRIES),
            Consumer::new(addresses(&at.cr, COMPLETION_OFFSET)?, &at.cr, RING_ENTRIES),
        )
    })
}

const FILL_OFFSET: libc::off_t = libc::XDP_UMEM_PGOFF_FILL_RING as libc::off_t;
const COMPLETION_OFFSET: libc::off_t = libc::XDP_UMEM_PGOFF_COMPLETION_RING as libc::off_t;

fn bind(fd: &OwnedFd, link: u32, queue: u32, flags: u16) -> io::Result<()> {
    let address = libc::sockaddr_xdp {
        sxdp_family: FAMILY as u16,
        sxdp_flags: flags,
        sxdp_ifindex: link,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: 0,
    };
    let length = size_of_val(&address) as socklen_t;
    let mut steps = 0;
    loop {
        // SAFETY: pointer and length describe a live socket address.
        let bound = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) };
        if bound == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        steps += 1;
        if error.raw_os_error() != Some(libc::EBUSY) || steps == BIND_STEPS {
            return Err(error);
        }
        std::thread::sleep(BIND_STEP);
    }
}

/// Sets an option of level `SOL_XDP`.
fn set<T: Copy>(fd: &OwnedFd, name: c_int, value: T) -> io::Result<()> {
    set_at(fd, LEVEL, name, value)
}

/// `setsockopt`.
fn set_at<T: Copy>(fd: &OwnedFd, level: c_int, name: c_int, value: T) -> io::Result<()> {
    let (pointer, length) = ((&raw const value).cast::<c_void>(), size_of::<T>() as socklen_t);
    // SAFETY: pointer and length are those of a live value, which the kernel only reads.
    let result = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, pointer, length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Structures of which any bytes are a valid value.
trait AnyBytes: Copy {}
impl AnyBytes for libc::xdp_mmap_offsets {}
impl AnyBytes for libc::xdp_statistics {}

fn get<T: AnyBytes>(fd: &OwnedFd, name: c_int) -> io::Result<T> {
    // SAFETY: all zeros are a valid value of every `AnyBytes` type.
    let mut value: T = unsafe { std::mem::zeroed() };
    let mut length = size_of::<T>() as socklen_t;
    let pointer = (&raw mut value).cast::<c_void>();
    // SAFETY: the value is live and writable, the length is its own, and any bytes are valid.
    let result = unsafe { libc::getsockopt(fd.as_raw_fd(), LEVEL, name, pointer, &raw mut length) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    if (length as usize) < size_of::<T>() {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "the kernel's AF_XDP is too old; Linux 5.9 or later is required",
        ));
    }
    Ok(value)
}

fn offsets(fd: &OwnedFd) -> io::Result<libc::xdp_mmap_offsets> {
    get(fd, libc::XDP_MMAP_OFFSETS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn veth_pair_prefers_the_generic_path_and_a_card_zero_copy() {
        assert_eq!(XdpPath::preferred("veth", false)[0], XdpPath::Generic);
        assert_eq!(XdpPath::preferred("veth", true)[0], XdpPath::ZeroCopy);
        assert_eq!(XdpPath::preferred("ice", false)[0], XdpPath::ZeroCopy);
        assert_eq!(*XdpPath::preferred("", false).last().unwrap(), XdpPath::Generic);
    }

    fn open(link: u32) -> io::Result<XdpSocket> {
        XdpSocket::open(link, 0, &FlowFilter::udp(discard_port()), XdpPath::Generic, None)
    }

    #[test]
    fn unavailable_reason_names_the_remedy() {
        if let Some(text) = unavailable_reason() {
            assert!(text.contains("; "), "{text}");
            assert!(open(1).is_err());
        }
    }

    #[test]
    fn missing_link_is_an_error() {
        assert!(open(u32::MAX >> 1).is_err());
    }
}
