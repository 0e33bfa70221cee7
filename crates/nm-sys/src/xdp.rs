//! AF_XDP: a socket that shares packet memory and four rings with the kernel, and so moves whole
//! frames past the network stack.
//!
//! [`XdpSocket::open`] takes one queue of a network link. A program on the link ([`crate::bpf`])
//! redirects the packets of one [`FlowFilter`] to it and leaves the rest to the kernel. When the
//! socket goes, so does the program, also after a kill. AF_XDP in the kernel's documentation:
//! Documentation/networking/af_xdp.rst.

mod ring;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use libc::{c_int, c_void, socklen_t};

pub use crate::bpf::FlowFilter;
use crate::bpf::{XdpAttachment, XdpMode, XdpProgram, XskMap, redirect_program};
use crate::clock::Deadline;
use ring::{Consumer, Memory, Producer};

/// `AF_XDP` of <linux/socket.h>.
const FAMILY: c_int = 44;

/// `SOL_XDP`.
const LEVEL: c_int = 283;

/// `SO_PREFER_BUSY_POLL` and `SO_BUSY_POLL_BUDGET` of <asm-generic/socket.h>.
const PREFER_BUSY_POLL: c_int = 69;
const BUSY_POLL_BUDGET: c_int = 70;

/// Bytes of a frame in the packet memory: enough for an MTU of 1500 behind the 256 bytes that the
/// kernel keeps in front of a packet.
pub const FRAME_BYTES: usize = 2048;

/// Largest packet, link header included, that a frame holds.
pub const PACKET_BYTES_MAX: usize = FRAME_BYTES - 256;

/// Entries of each ring.
const RING_ENTRIES: u32 = 256;

/// Frames: as many to receive into as to send from.
pub const FRAME_COUNT: u32 = 2 * RING_ENTRIES;

/// How long the kernel may take to let go of the queue's last user, which it does in its own time.
const BIND_STEPS: u32 = 50;
const BIND_STEP: Duration = Duration::from_millis(20);

/// How frames get between the link and the packet memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XdpPath {
    /// The device itself reads and writes the packet memory.
    ZeroCopy,
    /// The driver hands frames over before the kernel makes packets of them, and they are copied.
    Native,
    /// The kernel copies out of and into its own packets; works on any link.
    Generic,
}

impl XdpPath {
    /// The ways to try on links of this driver, the best first.
    ///
    /// On a veth pair the generic path is the faster of the two that it has: what AF_XDP sends has
    /// no room in front for the native hook, which therefore copies each packet once more.
    /// To busy-poll takes a driver that is polled, which the generic path is not.
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

    fn hook(self) -> XdpMode {
        match self {
            XdpPath::ZeroCopy | XdpPath::Native => XdpMode::Native,
            XdpPath::Generic => XdpMode::Generic,
        }
    }

    fn bind_flags(self) -> u16 {
        match self {
            XdpPath::ZeroCopy => libc::XDP_ZEROCOPY,
            XdpPath::Native => libc::XDP_COPY,
            // The kernel's own packets may be longer than a frame, because senders on this host
            // leave it to the device to cut them.
            XdpPath::Generic => libc::XDP_COPY | libc::XDP_USE_SG,
        }
    }
}

/// Frames that did not come through, as the kernel counts them since the socket was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct XdpStatistics {
    /// Received frames that were dropped because there was no frame to put them into, or one that
    /// is too small.
    pub dropped: u64,
    /// Received frames that were dropped because the ring was full: the program did not keep up.
    pub ring_full: u64,
    /// Times that a driver found no frame to receive into.
    pub fill_empty: u64,
    /// Frames of the send ring that the kernel refused.
    pub refused: u64,
}

/// How a sleeping wait has the kernel poll the device first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BusyPoll {
    /// µs that it polls before it sleeps (`SO_BUSY_POLL`).
    pub microseconds: u32,
    /// Frames of one poll at most (`SO_BUSY_POLL_BUDGET`).
    pub budget: u16,
}

/// An AF_XDP socket that takes the packets of one flow from one queue.
#[derive(Debug)]
pub struct XdpSocket {
    // Fields go in this order: first nothing more is steered here, then the rings are unmapped,
    // which hold the socket open, and the packet memory goes last.
    _attachment: XdpAttachment,
    receive: Consumer<libc::xdp_desc>,
    send: Producer<libc::xdp_desc>,
    fill: Producer<u64>,
    completion: Consumer<u64>,
    fd: OwnedFd,
    memory: Memory,
    /// Frames to send from; the one used last is on top, because it is still in the cache.
    free: Vec<u64>,
    path: XdpPath,
    /// There is more in the send ring than the kernel was told of.
    unflushed: bool,
    /// The kernel could not take all that was sent, and must be told again.
    kick_again: bool,
    /// Looks in a row that found nothing.
    idle: u32,
    busy_poll: Option<BusyPoll>,
    /// What is there of a packet that came in several frames.
    long: Vec<u8>,
}

/// Looks without a frame after which a spinning receiver sees whether the kernel needs a call.
const IDLE_LOOKS: u32 = 1024;

/// Calls that a full send ring takes at most: the kernel sends 32 frames in one.
const KICKS_MAX: u32 = RING_ENTRIES / 32;

impl XdpSocket {
    /// Takes the packets of `flow` from `queue` of the link with index `link`.
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
        let memory = Memory::anonymous(FRAME_COUNT as usize * FRAME_BYTES)?;
        // The kernel pins the memory when it is registered: no page of it can be taken away.
        let umem = libc::xdp_umem_reg {
            addr: memory.pointer().as_ptr().expose_provenance() as u64,
            len: memory.length() as u64,
            chunk_size: FRAME_BYTES as u32,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        };
        set(&fd, libc::XDP_UMEM_REG, umem)?;
        for ring in [
            libc::XDP_UMEM_FILL_RING,
            libc::XDP_UMEM_COMPLETION_RING,
            libc::XDP_RX_RING,
            libc::XDP_TX_RING,
        ] {
            set(&fd, ring, RING_ENTRIES)?;
        }
        let at = offsets(&fd)?;
        let map = |offsets, page, entry_bytes| {
            Memory::ring(fd.as_fd(), offsets, page, RING_ENTRIES as usize * entry_bytes)
        };
        let frames = |offsets, page| map(offsets, page, size_of::<libc::xdp_desc>());
        let addresses = |offsets, page| map(offsets, page, size_of::<u64>());
        // SAFETY: each mapping is of the ring whose offsets and kind of entry go with it, and
        // nobody else in this process uses it.
        let (receive, send, mut fill, completion) = unsafe {
            (
                Consumer::new(frames(&at.rx, libc::XDP_PGOFF_RX_RING)?, &at.rx, RING_ENTRIES),
                Producer::new(frames(&at.tx, libc::XDP_PGOFF_TX_RING)?, &at.tx, RING_ENTRIES),
                Producer::new(addresses(&at.fr, FILL_OFFSET)?, &at.fr, RING_ENTRIES),
                Consumer::new(addresses(&at.cr, COMPLETION_OFFSET)?, &at.cr, RING_ENTRIES),
            )
        };
        let frame = |number: u32| u64::from(number) * FRAME_BYTES as u64;
        for number in 0..RING_ENTRIES {
            fill.push(frame(number));
        }
        // The program first, as the path that the socket is bound by must be there.
        let sockets = XskMap::new(queue + 1)?;
        let program = XdpProgram::load(&redirect_program(&sockets, flow))?;
        let attachment = XdpAttachment::new(&program, link, path.hook())?;
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
            kick_again: false,
            idle: 0,
            busy_poll,
            long: vec![],
        })
    }

    /// How frames move.
    pub fn path(&self) -> XdpPath {
        self.path
    }

    /// Hands the next received frame to `read`, if there is one. Never waits; what the kernel has
    /// yet to be told is told on the way.
    ///
    /// # Errors
    /// What the system says, such as `ENETDOWN`.
    #[inline(always)]
    pub fn receive<R>(&mut self, read: impl FnOnce(&[u8]) -> R) -> io::Result<Option<R>> {
        let Some(frame) = self.receive.peek() else {
            self.idle += 1;
            if self.kick_again || self.idle >= IDLE_LOOKS {
                self.tell()?;
            }
            return Ok(None);
        };
        self.idle = 0;
        if frame.options & libc::XDP_PKT_CONTD != 0 || !self.long.is_empty() {
            return Ok(self.receive_long(frame, read));
        }
        let result = read(self.memory.bytes(frame.addr as usize, frame.len as usize));
        self.receive.advance();
        // As many frames are on their way to here as the ring has room for, so it fits.
        self.fill.push(frame.addr & !(FRAME_BYTES as u64 - 1));
        Ok(Some(result))
    }

    /// Takes `frame` and those after it that carry the same packet; hands the whole to `read`.
    #[cold]
    fn receive_long<R>(
        &mut self,
        mut frame: libc::xdp_desc,
        read: impl FnOnce(&[u8]) -> R,
    ) -> Option<R> {
        loop {
            let bytes = self.memory.bytes(frame.addr as usize, frame.len as usize);
            self.long.extend_from_slice(bytes);
            self.receive.advance();
            self.fill.push(frame.addr & !(FRAME_BYTES as u64 - 1));
            if frame.options & libc::XDP_PKT_CONTD == 0 {
                let result = read(&self.long);
                self.long.clear();
                return Some(result);
            }
            frame = self.receive.peek()?;
        }
    }

    /// Whether [`XdpSocket::receive`] has something to do: a frame, or a call that the kernel needs.
    #[inline(always)]
    pub fn is_ready(&mut self) -> bool {
        if self.receive.peek().is_some() {
            return true;
        }
        self.idle += 1;
        self.kick_again || self.idle >= IDLE_LOOKS
    }

    /// Whether there is room for a frame to send.
    ///
    /// # Errors
    /// What the system says.
    #[inline(always)]
    pub fn has_room(&mut self) -> io::Result<bool> {
        while let Some(addr) = self.completion.peek() {
            self.completion.advance();
            self.free.push(addr);
        }
        if self.free.is_empty() {
            self.tell()?;
        }
        Ok(!self.free.is_empty())
    }

    /// Puts a frame of `length` bytes that `write` fills into the send ring, where the kernel sees
    /// it after [`XdpSocket::flush`] at the latest; answers false if there is no room.
    ///
    /// # Errors
    /// `EMSGSIZE` for more than [`PACKET_BYTES_MAX`], and what the system says.
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
        // There are as many frames to send from as the ring has entries, so it fits.
        self.send.push(libc::xdp_desc { addr, len: length as u32, options: 0 });
        self.unflushed = true;
        Ok(true)
    }

    /// Has the kernel send what was pushed.
    ///
    /// # Errors
    /// What the system says.
    #[inline(always)]
    pub fn flush(&mut self) -> io::Result<()> {
        // In copying paths the kernel always waits for a call, which is most of what a frame costs.
        if !std::mem::take(&mut self.unflushed) {
            return Ok(());
        }
        for _ in 0..KICKS_MAX {
            if !self.send.needs_wakeup() {
                return Ok(());
            }
            self.kick()?;
            if !self.kick_again {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Sends a frame of `length` bytes that `write` fills; answers false if there is no room.
    ///
    /// # Errors
    /// Those of [`XdpSocket::push`].
    #[inline(always)]
    pub fn send(&mut self, length: usize, write: impl FnOnce(&mut [u8])) -> io::Result<bool> {
        let pushed = self.push(length, write)?;
        self.flush()?;
        Ok(pushed)
    }

    /// Whether a frame is there within `limit`; sleeps for it.
    ///
    /// # Errors
    /// What the system says.
    #[inline]
    pub fn wait(&mut self, limit: Duration) -> io::Result<bool> {
        if self.receive.peek().is_some() {
            return Ok(true);
        }
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

    /// What the kernel counted.
    ///
    /// # Errors
    /// What the system says.
    pub fn statistics(&self) -> io::Result<XdpStatistics> {
        let all: libc::xdp_statistics = get(&self.fd, libc::XDP_STATISTICS)?;
        Ok(XdpStatistics {
            dropped: all.rx_dropped,
            ring_full: all.rx_ring_full,
            fill_empty: all.rx_fill_ring_empty_descs,
            refused: all.tx_invalid_descs + all.rx_invalid_descs,
        })
    }

    /// Has the kernel look at the rings, where it asked for that or did not get to the end.
    #[cold]
    fn tell(&mut self) -> io::Result<()> {
        self.idle = 0;
        if self.kick_again || (self.send.outstanding() > 0 && self.send.needs_wakeup()) {
            self.kick()?;
        }
        if self.fill.needs_wakeup() || self.busy_poll.is_some() {
            self.wake_receiver()?;
        }
        Ok(())
    }

    /// Has the driver look for frames: by itself soon, or, where it is to be busy-polled, at once.
    fn wake_receiver(&mut self) -> io::Result<()> {
        let (none, flags) = (std::ptr::null_mut::<c_void>(), libc::MSG_DONTWAIT);
        // SAFETY: nothing is received into nothing; the call only drives the device.
        let told = unsafe { libc::recv(self.fd.as_raw_fd(), none, 0, flags) };
        self.told(told)
    }

    /// Has the kernel take what the send ring holds.
    #[inline(always)]
    fn kick(&mut self) -> io::Result<()> {
        self.kick_again = false;
        let (none, flags) = (std::ptr::null::<c_void>(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
        // SAFETY: nothing is sent from nothing; the call only starts the transmission.
        let told = unsafe { libc::send(self.fd.as_raw_fd(), none, 0, flags) };
        self.told(told)
    }

    /// "Later" and "not all" are no errors of a call that only tells.
    #[inline(always)]
    fn told(&mut self, result: isize) -> io::Result<()> {
        if result >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR) => {
                self.kick_again = true;
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

/// Why this process cannot use AF_XDP on any link, as a clause; none if it can.
pub fn unavailable_reason() -> Option<String> {
    let tried = socket()
        .map(drop)
        .and_then(|()| XskMap::new(1))
        .and_then(|map| XdpProgram::load(&redirect_program(&map, &FlowFilter::udp(nowhere()))));
    let error = tried.err()?;
    Some(match error.raw_os_error() {
        Some(libc::EAFNOSUPPORT) => {
            "the kernel has no AF_XDP; use one with CONFIG_XDP_SOCKETS".to_string()
        }
        Some(libc::EPERM | libc::EACCES) => {
            "AF_XDP takes CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF outside of any user namespace; \
             run as root"
                .to_string()
        }
        _ => format!("AF_XDP cannot be used: {error}; look at the kernel's log"),
    })
}

/// The discard port of this host.
fn nowhere() -> SocketAddr {
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
    // SAFETY: plain numbers; the result is checked before it is owned.
    let fd: RawFd = unsafe { libc::socket(FAMILY, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: fresh from the kernel and owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
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

/// An option of AF_XDP itself.
fn set<T: Copy>(fd: &OwnedFd, name: c_int, value: T) -> io::Result<()> {
    set_at(fd, LEVEL, name, value)
}

/// `setsockopt` with a plain value.
fn set_at<T: Copy>(fd: &OwnedFd, level: c_int, name: c_int, value: T) -> io::Result<()> {
    let (pointer, length) = ((&raw const value).cast::<c_void>(), size_of::<T>() as socklen_t);
    // SAFETY: pointer and length are those of a live value, which the kernel only reads.
    let result = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, pointer, length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Structures of numbers, of which any bytes make a valid value.
trait Numbers: Copy {}
impl Numbers for libc::xdp_mmap_offsets {}
impl Numbers for libc::xdp_statistics {}

fn get<T: Numbers>(fd: &OwnedFd, name: c_int) -> io::Result<T> {
    // SAFETY: all zeros are a valid value of every `Numbers` type.
    let mut value: T = unsafe { std::mem::zeroed() };
    let mut length = size_of::<T>() as socklen_t;
    let pointer = (&raw mut value).cast::<c_void>();
    // SAFETY: the value is live and writable, its length is told, and any bytes are valid.
    let result = unsafe { libc::getsockopt(fd.as_raw_fd(), LEVEL, name, pointer, &raw mut length) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    if (length as usize) < size_of::<T>() {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "the kernel's AF_XDP is too old; it takes Linux 5.9",
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
    fn a_veth_pair_gets_the_generic_path_first_and_a_card_the_best() {
        assert_eq!(XdpPath::preferred("veth", false)[0], XdpPath::Generic);
        assert_eq!(XdpPath::preferred("veth", true)[0], XdpPath::ZeroCopy);
        assert_eq!(XdpPath::preferred("ice", false)[0], XdpPath::ZeroCopy);
        assert_eq!(*XdpPath::preferred("", false).last().unwrap(), XdpPath::Generic);
    }

    fn open(link: u32) -> io::Result<XdpSocket> {
        XdpSocket::open(link, 0, &FlowFilter::udp(nowhere()), XdpPath::Generic, None)
    }

    #[test]
    fn an_obstacle_is_a_clause_with_what_to_do() {
        if let Some(text) = unavailable_reason() {
            assert!(text.contains("; "), "{text}");
            assert!(open(1).is_err());
        }
    }

    #[test]
    fn a_link_that_is_not_there_is_an_error() {
        assert!(open(u32::MAX >> 1).is_err());
    }
}
