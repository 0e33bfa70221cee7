//! A TCP socket that the library manages: one open file description as this process sees it. Which
//! way its bytes go, its shared memory, and how it returns to the kernel.
//!
//! Each direction is in one of three stages, and only moves forward: [`BEFORE_PIPE`] (through the
//! kernel, until the sender publishes where the pipe begins), [`IN_PIPE`], and [`AFTER_PIPE`]
//! (through the kernel for good). The authoritative state is in the switch points of the pipe,
//! shared with the peer; the stage stored here is a private copy that saves reading them.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use nm_ring::EndpointRole;
use nm_ring::conduit::{ConduitEnd, ConduitMapping};
use nm_ring::ledger::Record;
use nm_ring::pipe::{Pipe, QUARTER_BYTES};

use crate::{kernel, table};

mod phases;
mod readiness;
mod sharing;

/// Which way a socket's calls go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// To the kernel, permanently.
    Kernel,
    /// To the kernel, until the two ends share memory.
    Candidate,
    /// To shared memory or to the kernel, depending on the stage of each direction.
    Joined,
}

const KERNEL: u32 = 0;
const CANDIDATE: u32 = 1;
const JOINED: u32 = 2;

/// Stage of a direction that goes through the kernel and may still move to the pipe.
pub const BEFORE_PIPE: u32 = 0;
/// Stage of a direction that goes through shared memory.
pub const IN_PIPE: u32 = 1;
/// Stage of a direction that has returned to the kernel.
pub const AFTER_PIPE: u32 = 2;

const _: () = assert!(BEFORE_PIPE < IN_PIPE && IN_PIPE < AFTER_PIPE);

/// Flag in `active_calls`: the last descriptor is closed; the last active call releases the memory.
const CLOSING: u32 = 1 << 31;

/// Flag in `active_calls`: the closing thread has not finished yet.
const CLOSE_IN_PROGRESS: u32 = 1 << 30;

/// Flag in `active_calls`: the memory has been released.
const RELEASED: u32 = 1 << 29;

/// Free bytes at which a full pipe becomes writable again: below that writers sleep.
pub const WRITABLE_BYTES: usize = QUARTER_BYTES;

/// One open file description.
#[repr(C, align(128))]
pub struct Socket {
    phase: AtomicU32,
    /// Stage of the incoming direction.
    pub incoming_stage: AtomicU32,
    /// Stage of the outgoing direction.
    pub outgoing_stage: AtomicU32,
    active_calls: AtomicU32,
    role: AtomicU32,
    doorbell: AtomicI32,
    peer_doorbell: AtomicI32,
    record: AtomicPtr<Record>,
    conduit: UnsafeCell<MaybeUninit<ConduitMapping>>,
    /// Count of this process's descriptors of it.
    pub descriptors: AtomicU32,
    generation: AtomicU32,
    /// Index in the pool.
    pub index: AtomicU32,
    /// Index of the next free socket in the pool, plus one.
    pub next_free: AtomicU32,
    receive_timeout_ns: AtomicU64,
    send_timeout_ns: AtomicU64,
    /// Events of the kernel socket when it was last polled, as `EPOLL*` bits.
    kernel_events: AtomicU32,
    /// Incremented with each new bit in `kernel_events`.
    kernel_event_count: AtomicU64,
    /// Twice the number of times that the outgoing pipe was found full, plus one while it is full.
    full_transitions: AtomicU64,
    kernel_waiters: AtomicU32,
    kernel_senders: AtomicU32,
    /// Not zero while the outgoing direction is being moved to the pipe.
    switching: AtomicU32,
    readers: AtomicU32,
    writers: AtomicU32,
    /// Count of threads that sleep on the doorbell itself, count of those that have seen the last
    /// ring, and count of the rings that all have seen.
    sleepers: AtomicU32,
    sleepers_notified: AtomicU32,
    doorbell_drains: AtomicU32,
    /// Hash of the connection's addresses: two sockets of one process with the same value are the
    /// two ends of one connection.
    pub connection_token: AtomicU64,
    /// Count of data calls so far, which decides when to look for the peer.
    pub calls: AtomicU32,
    /// Socket on which the server's end listens for its peer, or −1.
    pub rendezvous_listener: AtomicI32,
    /// Duplicate of the last descriptor, made when that was closed while threads were in a call:
    /// for them the connection stays open, as it does in the kernel. −1 if there is none.
    duplicate: AtomicI32,
    /// The descriptor that was added last.
    descriptor: AtomicI32,
    /// Count of registrations in epoll sets; written by `multiplex` only.
    pub epoll_registrations: AtomicU32,
    /// Spin budget of readers and of writers, ns: see `wait`.
    pub spin_budgets_ns: [AtomicU64; 2],
    /// Spins without success since the last successful one, of readers and of writers.
    pub failed_spins: [AtomicU32; 2],
    /// Time when the kernel socket was last polled, ns.
    pub kernel_checked_at_ns: AtomicU64,
    /// Time of the first call after this end offered memory that was not accepted yet, ns.
    offered_at_ns: AtomicU64,
    /// Not zero once the peer's reset was reported to the program.
    pub reset_reported: AtomicU32,
}

// SAFETY: the only field that is no atomic, `conduit`, is written before the phase becomes `Joined`
// (with release ordering) and dropped after the last active call has ended.
unsafe impl Sync for Socket {}

/// An active call: while it exists, the socket's memory stays mapped.
pub struct CallGuard(&'static Socket);

impl Drop for CallGuard {
    #[inline(always)]
    fn drop(&mut self) {
        let before = self.0.active_calls.fetch_sub(1, Ordering::AcqRel);
        if before == CLOSING + 1 {
            self.0.release_memory();
        }
    }
}

impl Socket {
    /// An unused socket.
    pub const fn new() -> Socket {
        Socket {
            phase: AtomicU32::new(KERNEL),
            incoming_stage: AtomicU32::new(BEFORE_PIPE),
            outgoing_stage: AtomicU32::new(BEFORE_PIPE),
            active_calls: AtomicU32::new(0),
            role: AtomicU32::new(0),
            doorbell: AtomicI32::new(-1),
            peer_doorbell: AtomicI32::new(-1),
            record: AtomicPtr::new(ptr::null_mut()),
            conduit: UnsafeCell::new(MaybeUninit::uninit()),
            descriptors: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            index: AtomicU32::new(0),
            next_free: AtomicU32::new(0),
            receive_timeout_ns: AtomicU64::new(0),
            send_timeout_ns: AtomicU64::new(0),
            kernel_events: AtomicU32::new(0),
            kernel_event_count: AtomicU64::new(0),
            full_transitions: AtomicU64::new(0),
            kernel_waiters: AtomicU32::new(0),
            kernel_senders: AtomicU32::new(0),
            switching: AtomicU32::new(0),
            readers: AtomicU32::new(0),
            writers: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
            sleepers_notified: AtomicU32::new(0),
            doorbell_drains: AtomicU32::new(0),
            connection_token: AtomicU64::new(0),
            calls: AtomicU32::new(0),
            rendezvous_listener: AtomicI32::new(-1),
            duplicate: AtomicI32::new(-1),
            descriptor: AtomicI32::new(-1),
            epoll_registrations: AtomicU32::new(0),
            spin_budgets_ns: [const { AtomicU64::new(u64::MAX) }; 2],
            failed_spins: [const { AtomicU32::new(0) }; 2],
            kernel_checked_at_ns: AtomicU64::new(0),
            offered_at_ns: AtomicU64::new(0),
            reset_reported: AtomicU32::new(0),
        }
    }

    /// Initialises a socket from the pool.
    pub fn open(&self, fd: c_int, record: &'static Record, phase: Phase) {
        assert_ne!(phase, Phase::Joined, "only `join` makes a socket joined");
        debug_assert!(self.doorbell() < 0, "a socket of the pool has no memory");
        self.record.store(ptr::from_ref(record).cast_mut(), Ordering::Relaxed);
        self.incoming_stage.store(BEFORE_PIPE, Ordering::Relaxed);
        self.outgoing_stage.store(BEFORE_PIPE, Ordering::Relaxed);
        for word in
            [&self.kernel_events, &self.kernel_waiters, &self.kernel_senders, &self.switching]
        {
            word.store(0, Ordering::Relaxed);
        }
        for word in [
            &self.readers,
            &self.writers,
            &self.calls,
            &self.reset_reported,
            &self.epoll_registrations,
        ] {
            word.store(0, Ordering::Relaxed);
        }
        for word in &self.spin_budgets_ns {
            word.store(u64::MAX, Ordering::Relaxed);
        }
        for word in [
            &self.kernel_event_count,
            &self.full_transitions,
            &self.receive_timeout_ns,
            &self.send_timeout_ns,
        ] {
            word.store(0, Ordering::Relaxed);
        }
        self.offered_at_ns.store(0, Ordering::Relaxed);
        self.sleepers.store(0, Ordering::Relaxed);
        self.sleepers_notified.store(0, Ordering::Relaxed);
        self.connection_token.store(0, Ordering::Relaxed);
        self.duplicate.store(-1, Ordering::Relaxed);
        self.descriptor.store(fd, Ordering::Relaxed);
        let phase = match phase {
            Phase::Candidate => CANDIDATE,
            _ => KERNEL,
        };
        self.active_calls.store(0, Ordering::Release);
        self.phase.store(phase, Ordering::Release);
    }

    /// Which way the socket's calls go.
    #[inline(always)]
    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            JOINED => Phase::Joined,
            CANDIDATE => Phase::Candidate,
            _ => Phase::Kernel,
        }
    }

    /// Whether the socket shares memory with its peer.
    #[inline(always)]
    pub fn is_joined(&self) -> bool {
        self.phase.load(Ordering::Acquire) == JOINED
    }

    /// Starts a call on the socket of `fd`: its memory stays mapped while the result exists. `None`
    /// if it has been closed meanwhile.
    #[inline(always)]
    pub fn enter(&'static self, fd: c_int) -> Option<CallGuard> {
        let before = self.active_calls.fetch_add(1, Ordering::AcqRel);
        let inside = CallGuard(self);
        let here = before & (CLOSING | RELEASED) == 0
            && table::get(fd).is_some_and(|it| ptr::eq(it, self));
        here.then_some(inside)
    }

    /// Whether the last descriptor has been closed while a call is still active.
    #[inline(always)]
    pub fn is_closing(&self) -> bool {
        self.active_calls.load(Ordering::Acquire) & CLOSING != 0
    }

    /// Changes when the object is reused for another socket.
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// The socket's record in the ledger; there is one from [`Socket::open`] on.
    #[inline(always)]
    pub fn record(&self) -> &'static Record {
        // SAFETY: set in `open`, before the socket was added to the table; records are never freed.
        unsafe { &*self.record.load(Ordering::Relaxed) }
    }

    /// A descriptor of the socket in this process, if one is left.
    pub fn descriptor(&self) -> Option<c_int> {
        if self.is_closing() {
            return Some(self.duplicate.load(Ordering::SeqCst)).filter(|&fd| fd >= 0);
        }
        let fd = self.descriptor.load(Ordering::Relaxed);
        if table::get(fd).is_some_and(|socket| ptr::eq(socket, self)) {
            return Some(fd);
        }
        let mut found = None;
        table::for_each_descriptor(|fd, socket| {
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
    /// Only for a joined socket, during a call ([`Socket::enter`]): it stays mapped when both
    /// directions have returned to the kernel.
    #[inline(always)]
    pub fn conduit(&self) -> &ConduitMapping {
        debug_assert!(self.doorbell() >= 0 || self.is_closing() || self.generation() > 0);
        // SAFETY: written before the phase became `Joined`, and callers check the phase first.
        unsafe { (*self.conduit.get()).assume_init_ref() }
    }

    /// Which end this is.
    #[inline(always)]
    pub fn role(&self) -> EndpointRole {
        if self.role.load(Ordering::Relaxed) == 0 {
            EndpointRole::Creator
        } else {
            EndpointRole::Opener
        }
    }

    /// The pipe that this end sends by.
    #[inline(always)]
    pub fn outgoing(&self) -> &Pipe {
        self.conduit().outgoing(self.role())
    }

    /// The pipe that this end receives from.
    #[inline(always)]
    pub fn incoming(&self) -> &Pipe {
        self.conduit().incoming(self.role())
    }

    /// This end's shared state.
    #[inline(always)]
    pub fn own(&self) -> &ConduitEnd {
        self.conduit().own(self.role())
    }

    /// The other end's shared state, which must not be trusted.
    #[inline(always)]
    pub fn peer(&self) -> &ConduitEnd {
        self.conduit().peer(self.role())
    }

    /// Whether the description is non-blocking.
    #[inline(always)]
    pub fn nonblocking(&self) -> bool {
        self.record().nonblocking.load(Ordering::Relaxed) != 0
    }

    /// Stores whether the description is non-blocking.
    pub fn set_nonblocking(&self, on: bool) {
        self.record().nonblocking.store(u32::from(on), Ordering::Relaxed);
    }

    /// `SO_RCVTIMEO`, ns; none if it is not set.
    pub fn receive_timeout_ns(&self) -> Option<u64> {
        Some(self.receive_timeout_ns.load(Ordering::Relaxed)).filter(|&ns| ns > 0)
    }

    /// `SO_SNDTIMEO`, ns; none if it is not set.
    pub fn send_timeout_ns(&self) -> Option<u64> {
        Some(self.send_timeout_ns.load(Ordering::Relaxed)).filter(|&ns| ns > 0)
    }

    /// Reads both time limits from the kernel socket.
    pub fn read_timeouts(&self, fd: c_int) {
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

/// This process's id, which owns the locks in shared memory.
#[inline(always)]
pub fn pid() -> u32 {
    table::owner_pid() as u32
}
