//! A TCP socket that the library knows: one open file description as this process sees it. Where
//! its bytes go, what of it lies in shared memory, and how it goes back to the kernel.
//!
//! Each direction is in one of three stages, and moves forwards only: `BEFORE` (through the kernel,
//! until the sender publishes where the pipe begins), `PIPE`, and `AFTER` (through the kernel for
//! good). The truth of it lies in the marks of the pipe, shared with the peer; the stage kept here
//! is a private memory of it that saves looking.

use std::cell::{Cell, UnsafeCell};
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

use libc::pollfd;
use nm_ring::Which;
use nm_ring::conduit::{CLOSED, End, LISTENING, Mapped};
use nm_ring::ledger::{Phase as Shown, Reason, Record};
use nm_ring::pipe::{Pipe, QUARTER};

use crate::{kernel, ready, signals, table};

/// Where a socket's calls go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// To the kernel, for ever.
    Kernel,
    /// To the kernel, until the two ends have met.
    Candidate,
    /// To shared memory, or to the kernel, by the stage of each direction.
    Joined,
}

const KERNEL: u32 = 0;
const CANDIDATE: u32 = 1;
const JOINED: u32 = 2;

/// Stages of a direction.
pub const BEFORE: u32 = 0;
/// The direction is in shared memory.
pub const PIPE: u32 = 1;
/// The direction has gone back to the kernel.
pub const AFTER: u32 = 2;

/// Flag in `inside`: the last descriptor is closed; who leaves last lets go of the memory.
const CLOSING: u32 = 1 << 31;

/// Flag in `inside`: the closing thread is not done yet.
const HOLD: u32 = 1 << 30;

/// Flag in `inside`: the memory has been let go of.
const GONE: u32 = 1 << 29;

/// Free bytes from which a full pipe counts as writable again: below it writers sleep.
pub const WRITABLE_BYTES: usize = QUARTER;

std::thread_local! {
    /// The socket and the ring that this thread has counted last.
    static LAST_SEEN: Cell<(usize, u32)> = const { Cell::new((0, 0)) };
}

/// One open file description.
#[repr(C, align(128))]
pub struct Socket {
    phase: AtomicU32,
    /// Stage of the direction towards us.
    pub stage_in: AtomicU32,
    /// Stage of the direction away from us.
    pub stage_out: AtomicU32,
    inside: AtomicU32,
    which: AtomicU32,
    bell: AtomicI32,
    peer_bell: AtomicI32,
    record: AtomicPtr<Record>,
    conduit: UnsafeCell<MaybeUninit<Mapped>>,
    /// Descriptors of this process that lead here.
    pub descriptors: AtomicU32,
    generation: AtomicU32,
    /// Place in the pool, and the next free one + 1.
    pub index: AtomicU32,
    /// Next free socket of the pool + 1.
    pub next_free: AtomicU32,
    receive_timeout_ns: AtomicU64,
    send_timeout_ns: AtomicU64,
    /// What the kernel socket was last seen to be ready for, as `EPOLL*` bits.
    known: AtomicU32,
    /// Grows with each new bit in `known`.
    news: AtomicU64,
    /// Twice the number of times that the outgoing pipe was found full, plus one while it is.
    fulls: AtomicU64,
    kernel_waiters: AtomicU32,
    kernel_senders: AtomicU32,
    /// Set while the outgoing direction is being moved to the pipe.
    switching: AtomicU32,
    readers: AtomicU32,
    writers: AtomicU32,
    /// Threads that sleep on the bell themselves, those of them that have seen the last ring, and
    /// the number of rings that have been seen by all.
    sleepers: AtomicU32,
    seen: AtomicU32,
    rings: AtomicU32,
    /// The meeting's name: two sockets of one process with the same are the ends of a connection.
    pub token: AtomicU64,
    /// Data calls so far: when to look for the peer.
    pub calls: AtomicU32,
    /// Socket that the server's end listens on for its peer, or −1.
    pub meeting: AtomicI32,
    /// Held by the thread that is looking for the peer.
    pub meeting_lock: AtomicU32,
    /// Copy of the last descriptor, made when it was closed under threads that are still inside:
    /// for them the connection lives on, as it does in the kernel. −1 if there is none.
    ghost: AtomicI32,
    /// The descriptor last bound.
    descriptor: AtomicI32,
    /// Registrations in epoll sets; written by `ready` only.
    pub sets: AtomicU32,
    /// Spin budget of readers and of writers, in ns: see `wait`.
    pub budgets: [AtomicU64; 2],
    /// Spins in vain, of readers and of writers, since the last that was not.
    pub failed_spins: [AtomicU32; 2],
    /// Time of the last look at the kernel socket, ns.
    pub looked_at: AtomicU64,
    /// The peer's reset has been told to the program.
    pub reset_told: AtomicU32,
}

// SAFETY: the one field that is no atomic, `conduit`, is written before the phase says `Joined`
// (with release) and dropped after the last thread has left.
unsafe impl Sync for Socket {}

/// While it lives, the socket's memory stays mapped.
pub struct Inside(&'static Socket);

impl Drop for Inside {
    #[inline(always)]
    fn drop(&mut self) {
        let before = self.0.inside.fetch_sub(1, Ordering::AcqRel);
        if before == CLOSING + 1 {
            self.0.reclaim();
        }
    }
}

impl Socket {
    /// A socket that nobody uses.
    pub const fn new() -> Socket {
        Socket {
            phase: AtomicU32::new(KERNEL),
            stage_in: AtomicU32::new(BEFORE),
            stage_out: AtomicU32::new(BEFORE),
            inside: AtomicU32::new(0),
            which: AtomicU32::new(0),
            bell: AtomicI32::new(-1),
            peer_bell: AtomicI32::new(-1),
            record: AtomicPtr::new(ptr::null_mut()),
            conduit: UnsafeCell::new(MaybeUninit::uninit()),
            descriptors: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            index: AtomicU32::new(0),
            next_free: AtomicU32::new(0),
            receive_timeout_ns: AtomicU64::new(0),
            send_timeout_ns: AtomicU64::new(0),
            known: AtomicU32::new(0),
            news: AtomicU64::new(0),
            fulls: AtomicU64::new(0),
            kernel_waiters: AtomicU32::new(0),
            kernel_senders: AtomicU32::new(0),
            switching: AtomicU32::new(0),
            readers: AtomicU32::new(0),
            writers: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
            seen: AtomicU32::new(0),
            rings: AtomicU32::new(0),
            token: AtomicU64::new(0),
            calls: AtomicU32::new(0),
            meeting: AtomicI32::new(-1),
            meeting_lock: AtomicU32::new(0),
            ghost: AtomicI32::new(-1),
            descriptor: AtomicI32::new(-1),
            sets: AtomicU32::new(0),
            budgets: [const { AtomicU64::new(u64::MAX) }; 2],
            failed_spins: [const { AtomicU32::new(0) }; 2],
            looked_at: AtomicU64::new(0),
            reset_told: AtomicU32::new(0),
        }
    }

    /// Makes a fresh socket of one from the pool.
    pub fn open(&self, fd: c_int, record: &'static Record, phase: Phase) {
        self.record.store(ptr::from_ref(record).cast_mut(), Ordering::Relaxed);
        self.stage_in.store(BEFORE, Ordering::Relaxed);
        self.stage_out.store(BEFORE, Ordering::Relaxed);
        for word in [&self.known, &self.kernel_waiters, &self.kernel_senders, &self.switching] {
            word.store(0, Ordering::Relaxed);
        }
        for word in [&self.readers, &self.writers, &self.calls, &self.reset_told, &self.sets] {
            word.store(0, Ordering::Relaxed);
        }
        for word in &self.budgets {
            word.store(u64::MAX, Ordering::Relaxed);
        }
        for word in [&self.news, &self.fulls, &self.receive_timeout_ns, &self.send_timeout_ns] {
            word.store(0, Ordering::Relaxed);
        }
        self.sleepers.store(0, Ordering::Relaxed);
        self.seen.store(0, Ordering::Relaxed);
        self.token.store(0, Ordering::Relaxed);
        self.meeting_lock.store(0, Ordering::Relaxed);
        self.ghost.store(-1, Ordering::Relaxed);
        self.descriptor.store(fd, Ordering::Relaxed);
        let phase = match phase {
            Phase::Candidate => CANDIDATE,
            _ => KERNEL,
        };
        self.inside.store(0, Ordering::Release);
        self.phase.store(phase, Ordering::Release);
    }

    /// Where the socket's calls go.
    #[inline(always)]
    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            JOINED => Phase::Joined,
            CANDIDATE => Phase::Candidate,
            _ => Phase::Kernel,
        }
    }

    /// Whether the socket is, or may be, in shared memory.
    #[inline(always)]
    pub fn joined(&self) -> bool {
        self.phase.load(Ordering::Acquire) == JOINED
    }

    /// Enters the socket found under `fd`: its memory stays while the result lives. `None` if it
    /// has been closed meanwhile.
    #[inline(always)]
    pub fn enter(&'static self, fd: c_int) -> Option<Inside> {
        let before = self.inside.fetch_add(1, Ordering::AcqRel);
        let inside = Inside(self);
        let here =
            before & (CLOSING | GONE) == 0 && table::get(fd).is_some_and(|it| ptr::eq(it, self));
        here.then_some(inside)
    }

    /// Whether the last descriptor has been closed while a thread is still inside.
    #[inline(always)]
    pub fn closing(&self) -> bool {
        self.inside.load(Ordering::Acquire) & CLOSING != 0
    }

    /// Changes when the object is used for another socket.
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// What others see of the socket; there is one from [`Socket::open`] on.
    #[inline(always)]
    pub fn record(&self) -> &'static Record {
        // SAFETY: set in `open`, before the socket came into the table; records live for ever.
        unsafe { &*self.record.load(Ordering::Relaxed) }
    }

    /// A descriptor of this process that leads here, if one is left.
    pub fn descriptor(&self) -> Option<c_int> {
        if self.closing() {
            return Some(self.ghost.load(Ordering::SeqCst)).filter(|&fd| fd >= 0);
        }
        let fd = self.descriptor.load(Ordering::Relaxed);
        if table::get(fd).is_some_and(|socket| ptr::eq(socket, self)) {
            return Some(fd);
        }
        let mut found = None;
        table::each(|fd, socket| {
            if ptr::eq(socket, self) {
                found = Some(fd);
            }
        });
        if let Some(fd) = found {
            self.descriptor.store(fd, Ordering::Relaxed);
        }
        found
    }

    /// The shared region.
    ///
    /// Only for a joined socket that the caller is inside of.
    #[inline(always)]
    pub fn conduit(&self) -> &Mapped {
        debug_assert!(self.joined() || self.closing() || self.generation() > 0);
        // SAFETY: written before the phase became `Joined`, and callers look at the phase first.
        unsafe { (*self.conduit.get()).assume_init_ref() }
    }

    /// Which end this is.
    #[inline(always)]
    pub fn which(&self) -> Which {
        if self.which.load(Ordering::Relaxed) == 0 { Which::First } else { Which::Second }
    }

    /// The pipe away from this end.
    #[inline(always)]
    pub fn out(&self) -> &Pipe {
        self.conduit().out(self.which())
    }

    /// The pipe towards this end.
    #[inline(always)]
    pub fn back(&self) -> &Pipe {
        self.conduit().back(self.which())
    }

    /// This end's shared words.
    #[inline(always)]
    pub fn own(&self) -> &End {
        self.conduit().own(self.which())
    }

    /// The other end's shared words: claims.
    #[inline(always)]
    pub fn peer(&self) -> &End {
        self.conduit().peer(self.which())
    }

    /// Whether the description is non-blocking.
    #[inline(always)]
    pub fn nonblocking(&self) -> bool {
        self.record().nonblocking.load(Ordering::Relaxed) != 0
    }

    /// Remembers that the description is, or is not, non-blocking.
    pub fn set_nonblocking(&self, on: bool) {
        self.record().nonblocking.store(u32::from(on), Ordering::Relaxed);
    }

    /// `SO_RCVTIMEO` in ns.
    pub fn receive_timeout_ns(&self) -> Option<u64> {
        Some(self.receive_timeout_ns.load(Ordering::Relaxed)).filter(|&ns| ns > 0)
    }

    /// `SO_SNDTIMEO` in ns.
    pub fn send_timeout_ns(&self) -> Option<u64> {
        Some(self.send_timeout_ns.load(Ordering::Relaxed)).filter(|&ns| ns > 0)
    }

    /// Remembers both time limits as the kernel has them now.
    pub fn learn_timeouts(&self, fd: c_int) {
        for (name, word) in [
            (libc::SO_RCVTIMEO, &self.receive_timeout_ns),
            (libc::SO_SNDTIMEO, &self.send_timeout_ns),
        ] {
            let mut time = libc::timeval { tv_sec: 0, tv_usec: 0 };
            let mut length = size_of::<libc::timeval>() as libc::socklen_t;
            let value = (&raw mut time).cast();
            // SAFETY: both point to live values of the stated size.
            unsafe { kernel::getsockopt(fd, libc::SOL_SOCKET, name, value, &raw mut length) };
            let ns = (time.tv_sec as u64)
                .saturating_mul(1_000_000_000)
                .saturating_add(time.tv_usec as u64 * 1000);
            word.store(ns, Ordering::Relaxed);
        }
    }
}

/// Meeting and parting.
impl Socket {
    /// Takes the region and the bells that two ends have agreed on. Everything goes on through the
    /// kernel until [`Socket::ready_to_listen`] has told the peer that this end looks at its pipe.
    pub fn join(&'static self, mapped: Mapped, which: Which, bell: c_int, peer_bell: c_int) {
        // SAFETY: the phase is not `Joined` yet, so nobody reads it; one thread meets at a time.
        unsafe { (*self.conduit.get()).write(mapped) };
        self.which.store(u32::from(which == Which::Second), Ordering::Relaxed);
        self.bell.store(bell, Ordering::Relaxed);
        self.peer_bell.store(peer_bell, Ordering::Relaxed);
        self.phase.store(JOINED, Ordering::SeqCst);
        self.record().set_phase(Shown::Joined);
        ready::joined(self);
        self.ready_to_listen();
    }

    /// Tells the peer that this end looks at its pipe, once no thread waits in the kernel alone.
    fn ready_to_listen(&self) {
        fence(Ordering::SeqCst);
        if self.joined() && self.kernel_waiters.load(Ordering::SeqCst) == 0 {
            self.own().state.fetch_or(LISTENING, Ordering::Release);
        }
    }

    /// To be called before a wait in the kernel that does not look at the bell. False if the socket
    /// has just been joined: then wait otherwise.
    pub fn kernel_wait_begin(&self) -> bool {
        self.kernel_waiters.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.phase.load(Ordering::SeqCst) == JOINED {
            self.kernel_wait_end();
            return false;
        }
        true
    }

    /// To be called after such a wait.
    pub fn kernel_wait_end(&self) {
        if self.kernel_waiters.fetch_sub(1, Ordering::SeqCst) == 1
            && self.phase.load(Ordering::SeqCst) == JOINED
        {
            self.ready_to_listen();
        }
    }

    /// To be called before bytes are sent through the kernel while the outgoing direction is still
    /// before its pipe. False if it is just being moved: then look again.
    pub fn kernel_send_begin(&self) -> bool {
        self.kernel_senders.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.switching.load(Ordering::SeqCst) != 0 {
            self.kernel_send_end();
            return false;
        }
        true
    }

    /// To be called after such a send.
    pub fn kernel_send_end(&self) {
        self.kernel_senders.fetch_sub(1, Ordering::SeqCst);
    }

    /// Moves the outgoing direction into the pipe if that can be done now.
    pub fn start_out(&self, fd: c_int) {
        let wanted = self.peer().state.load(Ordering::Acquire);
        if wanted & LISTENING == 0 || wanted & CLOSED != 0 {
            return;
        }
        if self.switching.swap(1, Ordering::SeqCst) != 0 {
            return;
        }
        fence(Ordering::SeqCst);
        let out = self.out();
        let _deferral = signals::defer();
        if self.kernel_senders.load(Ordering::SeqCst) == 0 && out.lock_send(pid()) {
            if out.starts_at().is_none() && out.ends_at().is_none() {
                if let Some(sent) = crate::meet::sent_through_kernel(self, fd) {
                    out.set_starts_at(sent);
                    self.stage_out.store(PIPE, Ordering::Release);
                }
            } else {
                let stage = if out.ends_at().is_some() { AFTER } else { PIPE };
                self.stage_out.store(stage, Ordering::Release);
            }
            out.unlock_send();
        }
        self.switching.store(0, Ordering::SeqCst);
    }

    /// Ends the outgoing pipe: what is sent from now on goes through the kernel.
    pub fn end_out(&self) {
        if self.stage_out.load(Ordering::Acquire) == AFTER {
            return;
        }
        let out = self.out();
        {
            let _deferral = signals::defer();
            if out.lock_send(pid()) {
                if out.ends_at().is_none() {
                    out.set_ends_at(out.written());
                }
                self.stage_out.store(AFTER, Ordering::Release);
                out.unlock_send();
            }
        }
        self.ring_reader();
    }

    /// Ends the incoming pipe; what lies in it unread comes again through the kernel.
    fn end_in(&self) {
        let back = self.back();
        {
            let _deferral = signals::defer();
            if !back.lock_receive(pid()) {
                return;
            }
            if back.lock_send(pid()) {
                if back.ends_at().is_none() {
                    let unread = back.readable() > 0;
                    back.set_ends_at(back.written());
                    if unread {
                        back.set_returned(back.taken());
                    }
                    self.stage_in.store(AFTER, Ordering::Release);
                } else if back.readable() == 0 {
                    self.stage_in.store(AFTER, Ordering::Release);
                }
                back.unlock_send();
            }
            back.unlock_receive();
        }
        self.ring_peer();
        self.await_returned();
    }

    /// Gives the peer a while to send again what was left in the pipe.
    fn await_returned(&self) {
        if self.back().returned().is_some() {
            self.let_sibling_pay();
        }
        for _ in 0..200 {
            match self.back().returned() {
                Some(from) if from != self.back().written() => {}
                _ => return,
            }
            if self.refresh() & (libc::EPOLLHUP | libc::EPOLLERR) as u32 != 0 {
                return;
            }
            let _ = kernel::poll(&mut [], Some(5_000_000));
        }
    }

    /// Where both ends are in this process, nobody else can be waited for.
    fn let_sibling_pay(&self) {
        let token = self.token.load(Ordering::Relaxed);
        table::each_socket(|other| {
            let same = other.token.load(Ordering::Relaxed) == token && token != 0;
            if same
                && !ptr::eq(other, self)
                && let Some(fd) = other.descriptor()
                && let Some(_inside) = other.enter(fd)
                && other.joined()
            {
                other.pay(fd);
            }
        });
    }

    /// Whether bytes of the outgoing pipe have to be sent again through the kernel.
    #[inline]
    pub fn owing(&self) -> bool {
        let out = self.out();
        out.returned().is_some_and(|from| from != out.written())
    }

    /// Sends through the kernel what the peer has given back of the outgoing pipe, as far as the
    /// kernel takes it at once.
    pub fn pay(&self, fd: c_int) {
        let out = self.out();
        let _deferral = signals::defer();
        if !out.lock_send(pid()) {
            return;
        }
        self.stage_out.store(AFTER, Ordering::Release);
        let mut buffer = [0_u8; 4096];
        while let Some(from) = out.returned() {
            let offset = from.wrapping_sub(out.taken());
            let bytes = out.peek(offset as usize, &mut buffer);
            if bytes == 0 {
                break;
            }
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            let start = buffer.as_ptr().cast();
            // SAFETY: the buffer is live and `bytes` long at least.
            let sent = unsafe { kernel::sendto(fd, start, bytes, flags, ptr::null(), 0) };
            if sent <= 0 {
                // In a vfork child the descriptor may be closed: the parent pays.
                let later = [libc::EAGAIN, libc::EINTR, libc::EBADF, libc::ENOBUFS];
                if sent < 0 && !later.contains(&kernel::errno()) {
                    out.set_returned(out.written());
                }
                break;
            }
            out.set_returned(from.wrapping_add(sent as u64));
        }
        out.unlock_send();
    }

    /// Does what the peer may have asked for since the last look.
    pub fn attend(&self) {
        if self.out().ends_at().is_some()
            && self.owing()
            && let Some(fd) = self.descriptor()
        {
            self.pay(fd);
        }
    }

    /// Both directions go back to the kernel, and nothing is lost.
    pub fn demote(&'static self, reason: Reason) {
        self.record().set_reason(reason, 0);
        if !self.joined() {
            return;
        }
        let errno = kernel::errno();
        self.end_out();
        self.end_in();
        self.settle();
        self.wake_own();
        kernel::set_errno(errno);
    }

    /// The socket is the kernel's from now on, whatever it was.
    pub fn to_kernel(&'static self, reason: Reason) {
        match self.phase() {
            Phase::Joined => {
                let fd = self.descriptor();
                if let Some(_inside) = fd.and_then(|fd| self.enter(fd)) {
                    self.demote(reason);
                }
            }
            Phase::Candidate => {
                let old = (CANDIDATE, KERNEL);
                let order = Ordering::SeqCst;
                if self.phase.compare_exchange(old.0, old.1, order, order).is_ok() {
                    self.record().set_reason(reason, 0);
                    self.record().set_phase(Shown::Kernel);
                    crate::meet::stop(self);
                } else if self.joined() {
                    self.to_kernel(reason);
                }
            }
            Phase::Kernel => {}
        }
    }

    /// Gives the socket to the kernel alone once both directions are back there.
    pub fn settle(&'static self) {
        let back = self.stage_in.load(Ordering::Acquire) == AFTER
            && self.stage_out.load(Ordering::Acquire) == AFTER;
        if back && !self.owing() {
            let order = Ordering::SeqCst;
            if self.phase.compare_exchange(JOINED, KERNEL, order, order).is_ok() {
                self.record().set_phase(Shown::Kernel);
                ready::left(self);
            }
        }
    }

    /// Before a fork: a direction that is not yet in memory could be counted by two processes, so
    /// such a socket goes back to the kernel.
    pub fn before_fork(&'static self) {
        if self.joined() {
            let fd = self.descriptor();
            let Some(_inside) = fd.and_then(|fd| self.enter(fd)) else { return };
            let listening = self.own().state.load(Ordering::Acquire) & LISTENING != 0;
            if self.stage_out.load(Ordering::Acquire) == BEFORE || !listening {
                self.demote(Reason::SharedByFork);
            }
        }
    }

    /// In the child of a fork: no other thread is inside, sending or waiting.
    pub fn forget_threads(&self) {
        for word in [&self.inside, &self.kernel_waiters, &self.kernel_senders, &self.switching] {
            word.store(0, Ordering::Relaxed);
        }
        for word in [&self.readers, &self.writers, &self.sleepers, &self.seen] {
            word.store(0, Ordering::Relaxed);
        }
        self.meeting_lock.store(0, Ordering::Relaxed);
    }

    /// Before the kernel closes what leads here last, `fd`: the peer is told in shared memory.
    fn part(&'static self, fd: c_int) {
        let record = self.record();
        let last = record.release() == 0;
        crate::meet::stop(self);
        if self.joined() && last {
            if self.owing() {
                self.pay(fd);
            }
            // One that has gone back to the kernel, or to others, is the kernel's to reset.
            let unread = self.stage_in.load(Ordering::Acquire) != AFTER
                && self.back().returned().is_none()
                && record.reason() == Reason::None
                && self.back().readable() > 0;
            self.own().state.fetch_or(CLOSED, Ordering::Release);
            self.end_out();
            if unread {
                let linger = libc::linger { l_onoff: 1, l_linger: 0 };
                let length = size_of::<libc::linger>() as libc::socklen_t;
                let value = (&raw const linger).cast();
                let (level, name) = (libc::SOL_SOCKET, libc::SO_LINGER);
                // SAFETY: the value is live and of the stated size.
                unsafe { kernel::setsockopt(fd, level, name, value, length) };
            }
        }
    }

    /// Before the kernel closes the last descriptor, which is out of the table already. Threads
    /// that are still inside keep a copy of it.
    pub fn leave(&'static self, fd: c_int) {
        if self.joined() && self.inside.load(Ordering::SeqCst) > 0 {
            // SAFETY: duplicates a descriptor; the copy is ours.
            let ghost = unsafe { kernel::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
            self.ghost.store(table::keep(ghost), Ordering::SeqCst);
        }
        self.inside.fetch_or(CLOSING | HOLD, Ordering::AcqRel);
        if self.ghost.load(Ordering::SeqCst) < 0 {
            self.part(fd);
        }
    }

    /// After the kernel has closed the last descriptor: the memory goes with the last thread.
    pub fn close(&'static self) {
        let before = self.inside.fetch_and(!HOLD, Ordering::AcqRel);
        if before == CLOSING | HOLD {
            self.reclaim();
        }
    }

    /// What a thread inside calls the socket by, once `fd` may have been closed under it.
    #[inline(always)]
    pub fn name_inside(&self, fd: c_int) -> c_int {
        if self.closing() { self.ghost.load(Ordering::SeqCst) } else { fd }
    }

    fn reclaim(&'static self) {
        let order = (Ordering::AcqRel, Ordering::Relaxed);
        if self.inside.compare_exchange(CLOSING, CLOSING | GONE, order.0, order.1).is_err() {
            return;
        }
        let ghost = self.ghost.swap(-1, Ordering::AcqRel);
        if ghost >= 0 {
            self.part(ghost);
            table::release_own(ghost);
        }
        let bell = self.bell.swap(-1, Ordering::AcqRel);
        if bell >= 0 {
            ready::gone(self);
            self.phase.store(KERNEL, Ordering::Release);
            // SAFETY: a socket with a bell has been joined, and nobody is inside any more.
            unsafe { (*self.conduit.get()).assume_init_drop() };
            table::release_own(bell);
            table::release_own(self.peer_bell.swap(-1, Ordering::AcqRel));
        }
        self.phase.store(KERNEL, Ordering::Release);
        self.generation.fetch_add(1, Ordering::AcqRel);
        table::free(self);
    }
}

/// Sleeping and waking.
impl Socket {
    /// The eventfd that the peer writes to when this end has said that it sleeps.
    #[inline(always)]
    pub fn bell(&self) -> c_int {
        self.bell.load(Ordering::Relaxed)
    }

    /// Drains the own bell for an epoll set, and does what the peer asked for. While a thread
    /// sleeps on the bell itself, the draining is left to it.
    pub fn hush(&'static self) {
        if self.sleepers.load(Ordering::SeqCst) == 0 {
            self.drain();
        }
        self.attend();
    }

    /// A thread is about to sleep on the bell itself.
    pub fn lie_down(&self) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
    }

    /// It sleeps no more.
    pub fn get_up(&self) {
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// As [`Socket::hush`], for a thread between [`Socket::lie_down`] and [`Socket::get_up`]. A
    /// bell drained by the first would not wake the others, so the last who has seen it ring
    /// drains it.
    pub fn hush_asleep(&'static self) {
        let sleepers = self.sleepers.load(Ordering::SeqCst);
        if sleepers <= 1 {
            self.seen.store(0, Ordering::SeqCst);
            self.drain();
        } else {
            let ring = (ptr::from_ref(self).addr(), self.rings.load(Ordering::SeqCst));
            if LAST_SEEN.replace(ring) != ring {
                self.seen.fetch_add(1, Ordering::SeqCst);
            }
            if self.seen.load(Ordering::SeqCst) >= sleepers {
                self.seen.store(0, Ordering::SeqCst);
                self.rings.fetch_add(1, Ordering::SeqCst);
                self.drain();
            } else {
                rustix::thread::sched_yield();
            }
        }
        self.attend();
    }

    fn drain(&'static self) {
        let mut count = 0_u64;
        // SAFETY: the bell is an eventfd, which gives 8 bytes.
        unsafe { kernel::read(self.bell(), (&raw mut count).cast(), 8) };
        if self.sets.load(Ordering::Relaxed) != 0 {
            ready::heard(self);
        }
    }

    /// Says that threads of this process are about to sleep until the socket is readable, or
    /// writable. Counted: each call wants its [`Socket::disarm`]. Look again after it.
    pub fn arm(&self, readable: bool, writable: bool) {
        if readable {
            self.readers.fetch_add(1, Ordering::AcqRel);
            self.back().arm_reader();
        }
        if writable {
            self.writers.fetch_add(1, Ordering::AcqRel);
            self.out().arm_writer();
        }
        fence(Ordering::SeqCst);
    }

    /// Takes an [`Socket::arm`] with the same arguments back.
    pub fn disarm(&self, readable: bool, writable: bool) {
        if readable {
            if self.readers.fetch_sub(1, Ordering::AcqRel) == 1 {
                self.back().disarm_reader();
            } else {
                self.back().arm_reader();
            }
        }
        if writable {
            if self.writers.fetch_sub(1, Ordering::AcqRel) == 1 {
                self.out().disarm_writer();
            } else {
                self.out().arm_writer();
            }
        }
    }

    /// Wakes the peer if it sleeps until this end has sent something.
    #[inline(always)]
    pub fn ring_reader(&self) {
        if self.out().take_reader_waits() {
            self.ring_peer();
        }
    }

    /// Wakes the peer if it sleeps until this end has taken something.
    #[inline(always)]
    pub fn ring_writer(&self) {
        if self.back().take_writer_waits() {
            self.ring_peer();
        }
    }

    #[cold]
    fn ring_peer(&self) {
        ring(self.peer_bell.load(Ordering::Relaxed));
        self.record().out.bells.add(1);
    }

    /// Wakes this process's own sleepers, so that they look again.
    pub fn wake_own(&self) {
        ring(self.bell());
    }
}

/// Readiness, for poll, select and epoll.
impl Socket {
    /// What the socket is ready for, as `EPOLL*` bits, from memory alone: the kernel's part is as
    /// of the last [`Socket::refresh`].
    pub fn readiness(&self) -> u32 {
        let mut bits = self.known.load(Ordering::Acquire);
        if self.back().readable() > 0 && self.pipe_is_next() {
            bits |= (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
        }
        let peer = self.peer().state.load(Ordering::Acquire);
        if self.stage_out.load(Ordering::Acquire) == PIPE && peer & CLOSED == 0 {
            let writable = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;
            let over = bits & (libc::EPOLLHUP | libc::EPOLLERR) as u32 != 0;
            if self.out().room() >= WRITABLE_BYTES || over {
                bits |= writable;
                self.note_room();
            } else {
                bits &= !writable;
                self.note_full();
            }
        }
        bits
    }

    /// Whether the next byte to receive is one of the pipe's: not while bytes before it are still
    /// on their way through the kernel.
    #[inline(always)]
    pub fn pipe_is_next(&self) -> bool {
        match self.stage_in.load(Ordering::Acquire) {
            PIPE => true,
            BEFORE => self.pipe_begins(),
            _ => false,
        }
    }

    #[cold]
    fn pipe_begins(&self) -> bool {
        let Some(begin) = self.back().starts_at() else { return false };
        let taken = self.descriptor().and_then(crate::meet::taken_from_kernel);
        taken.is_some_and(|(taken, _)| begin <= taken)
    }

    /// Whether both directions are in shared memory now.
    pub fn whole(&self) -> bool {
        self.stage_in.load(Ordering::Acquire) == PIPE
            && self.stage_out.load(Ordering::Acquire) == PIPE
            && self.back().ends_at().is_none()
            && self.out().ends_at().is_none()
    }

    /// Looks at the kernel socket, remembers what it says, and gives that as `EPOLL*` bits.
    pub fn refresh(&self) -> u32 {
        let Some(fd) = self.descriptor() else { return 0 };
        self.look(fd)
    }

    /// As [`Socket::refresh`], of a known descriptor.
    pub fn look(&self, fd: c_int) -> u32 {
        let events = libc::POLLIN
            | libc::POLLOUT
            | libc::POLLRDHUP
            | libc::POLLPRI
            | libc::POLLRDNORM
            | libc::POLLWRNORM;
        let mut one = [pollfd { fd, events, revents: 0 }];
        let errno = kernel::errno();
        kernel::poll(&mut one, Some(0));
        kernel::set_errno(errno);
        let bits = one[0].revents as u16 as u32 & !(libc::POLLNVAL as u32);
        self.remember(bits);
        bits
    }

    /// Remembers what the kernel socket was just seen to be ready for.
    pub fn remember(&self, bits: u32) {
        let old = self.known.swap(bits, Ordering::AcqRel);
        if bits & !old != 0 {
            self.news.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// What the kernel socket was last seen to be ready for.
    pub fn known(&self) -> u32 {
        self.known.load(Ordering::Acquire)
    }

    /// Forgets that the kernel socket had something to read, or room.
    pub fn forget(&self, bits: c_int) {
        self.known.fetch_and(!(bits as u32), Ordering::AcqRel);
    }

    /// Two counters that grow with each arrival of bytes or of an end, and with each gain of room
    /// after there was none: what edge-triggered waiting goes by.
    pub fn edge(&self) -> (u64, u64) {
        let news = self.news.load(Ordering::Acquire);
        (
            self.back().written().wrapping_add(news),
            self.fulls.load(Ordering::Acquire).wrapping_add(news),
        )
    }

    /// Remembers that the outgoing pipe was found full.
    pub fn note_full(&self) {
        self.fulls.fetch_or(1, Ordering::AcqRel);
    }

    /// Remembers that the outgoing pipe has room again.
    fn note_room(&self) {
        if self.fulls.load(Ordering::Relaxed) & 1 != 0 {
            self.fulls.fetch_add(1, Ordering::AcqRel);
        }
    }
}

/// Wakes whoever waits for an eventfd.
fn ring(bell: c_int) {
    let errno = kernel::errno();
    let one = 1_u64;
    // SAFETY: the value is live and 8 bytes long.
    unsafe { kernel::write(bell, (&raw const one).cast(), 8) };
    kernel::set_errno(errno);
}

/// This process's id, as locks in shared memory are held by it.
#[inline(always)]
pub fn pid() -> u32 {
    table::owner_pid() as u32
}
