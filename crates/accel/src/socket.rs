//! A TCP socket that the library manages: one open file description as this process sees it. Which
//! way its bytes go, its shared memory, and the counts by which the two ends agree on the way.
//!
//! **The kernel carries bytes to a receiver that sleeps, memory carries bytes to a receiver that is
//! awake.** A sender may use memory only while nobody at the other end relies on the kernel
//! ([`Socket::rely_on_kernel`]). All bytes that went through the kernel must have been received as
//! well. So the bytes in memory always come before those in the kernel. The kernel's readiness is
//! true for everybody who relies on it: see [`outgoing`] and [`incoming`].

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use nm_ring::EndpointRole;
use nm_ring::conduit::{Conduit, ConduitEnd, ConduitMapping};
use nm_ring::ledger::{EndState, INHERITED, Record, SocketPhase, SocketRole};
use nm_ring::pipe::Pipe;

use crate::attempts::{FailedAttempts, SendsToPeerBehind, first_budget};
use crate::coalescing::Coalescing;
use crate::worth::Judged;
use crate::{kernel, process};

pub mod holds;
pub mod incoming;
pub mod outgoing;

/// Which way a socket's calls go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// To the kernel, permanently.
    Kernel,
    /// To the kernel, until the two ends share memory.
    Candidate,
    /// To memory or to the kernel, as the counts say.
    Joined,
}

const KERNEL: u32 = 0;
const CANDIDATE: u32 = 1;
const JOINED: u32 = 2;

/// Bits of `Socket::phase_and_reliances` that hold the phase.
const PHASE_MASK: u32 = 3;

/// One more reliance in `Socket::phase_and_reliances`.
const ONE_RELIANCE: u32 = 4;

/// Bit in `forbids_memory`: the peer was found dead.
const PEER_IS_DEAD: u32 = 1;

/// Bit in `forbids_memory`: somebody was found to send without this library.
const SENT_PAST: u32 = 2;

/// Flag in `active_calls`: the last descriptor is closed; the last active call releases the memory.
const CLOSING: u32 = 1 << 31;

/// Flag in `active_calls`: the closing thread has not finished yet.
const CLOSE_IN_PROGRESS: u32 = 1 << 30;

/// Flag in `active_calls`: the memory has been released.
const RELEASED: u32 = 1 << 29;

/// Regions that this process has mapped for its sockets.
static MAPPED_REGIONS: AtomicUsize = AtomicUsize::new(0);

/// Regions that this process has mapped for its sockets, offered ones included.
pub fn mapped_regions() -> usize {
    MAPPED_REGIONS.load(Ordering::Relaxed)
}

/// Adds to a word that no other thread changes meanwhile, and returns what it was. A change by a
/// signal handler of this thread is not overwritten: on x86-64 one instruction adds in memory, and
/// costs less than one that locks other CPUs out.
#[inline(always)]
fn add_uncontended(word: &AtomicU32, number: u32) -> u32 {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: the word is live; only this thread writes it, by single instructions.
        unsafe {
            std::arch::asm!("add dword ptr [{word}], {number:e}", word = in(reg) word.as_ptr(),
                number = in(reg) number, options(nostack));
        }
        word.load(Ordering::Acquire).wrapping_sub(number)
    }
    #[cfg(not(target_arch = "x86_64"))]
    word.fetch_add(number, Ordering::AcqRel)
}

/// A full fence right after an atomic change with sequentially consistent order. On x86-64 the
/// change itself, a locked instruction, is one: only the compiler must keep the order.
#[inline(always)]
fn fence_after_change() {
    #[cfg(target_arch = "x86_64")]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(not(target_arch = "x86_64"))]
    std::sync::atomic::fence(Ordering::SeqCst);
}

/// One open file description.
#[repr(C, align(128))]
pub struct Socket {
    /// The phase, and while it is not `Joined` the number of reliances on the kernel: the join
    /// moves them into shared memory, where the peer sees them.
    phase_and_reliances: AtomicU32,
    active_calls: AtomicU32,
    is_mapped: AtomicU32,
    record: AtomicPtr<Record>,
    conduit: UnsafeCell<MaybeUninit<ConduitMapping>>,
    /// The parts of the region as this end sees it; null while there is none.
    outgoing: AtomicPtr<Pipe>,
    incoming: AtomicPtr<Pipe>,
    own: AtomicPtr<ConduitEnd>,
    peer: AtomicPtr<ConduitEnd>,
    /// Count of this process's descriptors of it.
    pub descriptors: AtomicU32,
    generation: AtomicU32,
    /// Index in the pool.
    pub index: AtomicU32,
    /// Index of the next free socket in the pool, plus one.
    pub next_free: AtomicU32,
    receive_timeout_ns: AtomicU64,
    /// Hash of the connection's addresses: two sockets of one process with the same value are the
    /// two ends of one connection.
    pub connection_token: AtomicU64,
    /// Count of data calls so far, which decides when to look for the peer.
    pub calls: AtomicU32,
    /// Count of data calls at which to look for the peer next.
    pub next_attempt: AtomicU32,
    /// Socket on which the server's end listens for its peer, or by which the two ends talk; −1 if
    /// there is none.
    pub rendezvous_listener: AtomicI32,
    /// This end's statement for its peer (`possession`), and the descriptor that it is about; −1 if
    /// there is none.
    pub statement: AtomicI32,
    pub statement_of: AtomicI32,
    /// The file of the region, for programs that inherit the socket; −1 if it is not kept.
    pub memory_file: AtomicI32,
    /// Duplicate of the last descriptor, made when that was closed while threads were in a call:
    /// for them the connection stays open, as it does in the kernel. −1 if there is none.
    duplicate: AtomicI32,
    /// The descriptor that was added last.
    pub last_descriptor: AtomicI32,
    /// Spin budget, ns: see `wait`.
    pub spin_budget_ns: AtomicU64,
    /// Spins that found nothing in memory.
    pub failed_spins: FailedAttempts,
    /// Pauses of a receiver of many small messages.
    pub coalescing: Coalescing,
    /// Waits for the peer to receive what is in the kernel, after which it had not.
    pub failed_drains: FailedAttempts,
    /// Sends through the kernel to a peer that had not received earlier ones.
    pub sends_to_peer_behind: SendsToPeerBehind,
    /// Large sends to memory whose bytes went through the kernel in the end.
    pub failed_sends: FailedAttempts,
    /// Not zero if so did those of the last large one.
    was_taken_back: AtomicU32,
    /// Time when a receiving call last asked the kernel, ns, or `incoming::ASK_AGAIN`.
    kernel_asked_at_ns: AtomicU64,
    /// Waits that have returned events of the kernel for this socket.
    kernel_events: AtomicU64,
    /// [`Socket::kernel_events`] when a receiving call last asked the kernel.
    kernel_events_seen: AtomicU64,
    /// Time when a sending call last looked whether the peer is dead, ns.
    peer_checked_at_ns: AtomicU64,
    /// How much the peer had received from memory then.
    peer_checked_position: AtomicU64,
    /// Bytes that this end had received from memory when it sent last.
    consumed_at_last_send: AtomicU64,
    /// Time when this end offered memory or its proof, which was not answered yet, ns.
    pub offered_at_ns: AtomicU64,
    /// Error that the kernel reported to a call which had bytes to return: for the next call.
    pending_error: AtomicI32,
    /// Not zero once the peer's reset was reported to the program.
    reset_reported: AtomicU32,
    /// Why nothing more is sent to memory, as bits: [`PEER_IS_DEAD`], [`SENT_PAST`].
    forbids_memory: AtomicU32,
    /// Times that the peer's take-back was not ended in time.
    late_take_backs: AtomicU32,
    /// Not zero if the next send to memory compares counts with the kernel.
    must_check: AtomicU32,
    /// What went through memory and through the kernel when that was compared last.
    pub judged: Judged,
    /// Unread bytes that memory may hold: not more than the kernel takes when they are taken back.
    memory_limit: AtomicUsize,
}

// SAFETY: the only field that is no atomic, `conduit`, is written before the phase becomes `Joined`
// (with release ordering) and dropped after the last active call has ended.
unsafe impl Sync for Socket {}

/// What the end of a call, or of a close, leaves to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remains {
    /// Nothing.
    Nothing,
    /// The socket's memory is to be released, by the caller alone.
    Release,
}

impl Socket {
    /// An unused socket.
    pub const fn new() -> Socket {
        Socket {
            phase_and_reliances: AtomicU32::new(KERNEL),
            active_calls: AtomicU32::new(0),
            is_mapped: AtomicU32::new(0),
            record: AtomicPtr::new(ptr::null_mut()),
            conduit: UnsafeCell::new(MaybeUninit::uninit()),
            outgoing: AtomicPtr::new(ptr::null_mut()),
            incoming: AtomicPtr::new(ptr::null_mut()),
            own: AtomicPtr::new(ptr::null_mut()),
            peer: AtomicPtr::new(ptr::null_mut()),
            descriptors: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            index: AtomicU32::new(0),
            next_free: AtomicU32::new(0),
            receive_timeout_ns: AtomicU64::new(0),
            connection_token: AtomicU64::new(0),
            calls: AtomicU32::new(0),
            next_attempt: AtomicU32::new(0),
            rendezvous_listener: AtomicI32::new(-1),
            statement: AtomicI32::new(-1),
            statement_of: AtomicI32::new(-1),
            memory_file: AtomicI32::new(-1),
            duplicate: AtomicI32::new(-1),
            last_descriptor: AtomicI32::new(-1),
            spin_budget_ns: AtomicU64::new(u64::MAX),
            failed_spins: FailedAttempts::new(),
            coalescing: Coalescing::new(),
            failed_drains: FailedAttempts::new(),
            sends_to_peer_behind: SendsToPeerBehind::new(),
            failed_sends: FailedAttempts::new(),
            was_taken_back: AtomicU32::new(0),
            kernel_asked_at_ns: AtomicU64::new(0),
            kernel_events: AtomicU64::new(0),
            kernel_events_seen: AtomicU64::new(0),
            peer_checked_at_ns: AtomicU64::new(0),
            peer_checked_position: AtomicU64::new(0),
            consumed_at_last_send: AtomicU64::new(0),
            offered_at_ns: AtomicU64::new(0),
            pending_error: AtomicI32::new(0),
            reset_reported: AtomicU32::new(0),
            forbids_memory: AtomicU32::new(0),
            late_take_backs: AtomicU32::new(0),
            must_check: AtomicU32::new(1),
            judged: Judged::new(),
            memory_limit: AtomicUsize::new(0),
        }
    }

    /// Initialises a socket from the pool.
    pub fn open(&self, fd: c_int, record: &'static Record, phase: Phase) {
        assert_ne!(phase, Phase::Joined, "only `join` makes a socket joined");
        debug_assert_eq!(self.is_mapped.load(Ordering::Relaxed), 0, "a free socket has no memory");
        self.record.store(ptr::from_ref(record).cast_mut(), Ordering::Relaxed);
        for word in [
            &self.calls,
            &self.next_attempt,
            &self.was_taken_back,
            &self.reset_reported,
            &self.forbids_memory,
            &self.late_take_backs,
        ] {
            word.store(0, Ordering::Relaxed);
        }
        for word in [
            &self.receive_timeout_ns,
            &self.connection_token,
            &self.kernel_asked_at_ns,
            &self.kernel_events_seen,
            &self.peer_checked_at_ns,
            &self.peer_checked_position,
            &self.consumed_at_last_send,
            &self.offered_at_ns,
        ] {
            word.store(0, Ordering::Relaxed);
        }
        self.must_check.store(1, Ordering::Relaxed);
        self.failed_spins.reset();
        self.coalescing.end_stream();
        self.failed_drains.reset();
        self.sends_to_peer_behind.reset();
        self.failed_sends.reset();
        self.pending_error.store(0, Ordering::Relaxed);
        self.spin_budget_ns.store(u64::MAX, Ordering::Relaxed);
        self.duplicate.store(-1, Ordering::Relaxed);
        self.last_descriptor.store(fd, Ordering::Relaxed);
        self.active_calls.store(0, Ordering::Release);
        let phase = if phase == Phase::Candidate { CANDIDATE } else { KERNEL };
        self.phase_and_reliances.store(phase, Ordering::Release);
    }

    /// Which way the socket's calls go.
    #[inline(always)]
    pub fn phase(&self) -> Phase {
        match self.phase_and_reliances.load(Ordering::Acquire) & PHASE_MASK {
            JOINED => Phase::Joined,
            CANDIDATE => Phase::Candidate,
            _ => Phase::Kernel,
        }
    }

    /// Whether the socket shares memory with its peer.
    #[inline(always)]
    pub fn is_joined(&self) -> bool {
        self.phase_and_reliances.load(Ordering::Acquire) & PHASE_MASK == JOINED
    }

    /// Changes when the object is reused for another socket.
    #[inline]
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// The socket's record in the ledger; there is one from [`Socket::open`] on.
    #[inline(always)]
    pub fn record(&self) -> &'static Record {
        // SAFETY: set in `open`, before the socket was added to the table; records are never freed.
        unsafe { &*self.record.load(Ordering::Relaxed) }
    }

    /// Data calls so far, through the kernel and through memory.
    pub fn data_calls(&self) -> u32 {
        let record = self.record();
        let memory = record.incoming.memory_calls.get() + record.outgoing.memory_calls.get();
        self.calls.load(Ordering::Relaxed).saturating_add(u32::try_from(memory).unwrap_or(u32::MAX))
    }

    /// What the processes of the program share about this end.
    #[inline(always)]
    pub fn end(&self) -> &'static EndState {
        &self.record().end
    }

    /// Whether nobody else can send or receive at this end now: no other thread, and no other
    /// process.
    #[inline(always)]
    pub(super) fn has_one_user(&self) -> bool {
        process::has_one_thread()
            && self.record().holders.load(Ordering::Acquire) == 1
            // A program that has inherited the socket locks as well, when it uses that first.
            && self.end().inheritors.load(Ordering::Acquire) & INHERITED == 0
    }

    /// Whether this end made the connection.
    pub fn is_client(&self) -> bool {
        self.record().role() == SocketRole::Client
    }

    /// The shared region.
    ///
    /// Only for a joined socket, during a call (`table::enter`).
    #[inline(always)]
    pub fn conduit(&self) -> &ConduitMapping {
        debug_assert!(self.is_mapped.load(Ordering::Relaxed) != 0, "a joined socket has memory");
        // SAFETY: written before the phase became `Joined`, and callers check the phase first.
        unsafe { (*self.conduit.get()).assume_init_ref() }
    }

    /// The part of the region that `pointer` leads to.
    ///
    /// Only for a joined socket, during a call (`table::enter`).
    #[inline(always)]
    fn part<'a, T>(&'a self, pointer: &AtomicPtr<T>) -> &'a T {
        debug_assert!(self.is_mapped.load(Ordering::Relaxed) != 0, "a joined socket has memory");
        // SAFETY: written with the region, before the phase became `Joined`, and callers check the
        // phase first; the region consists of atomics and of bytes behind `UnsafeCell`.
        unsafe { &*pointer.load(Ordering::Relaxed) }
    }

    /// The pipe that this end sends by.
    #[inline(always)]
    pub fn outgoing(&self) -> &Pipe {
        self.part(&self.outgoing)
    }

    /// The pipe that this end receives from.
    #[inline(always)]
    pub fn incoming(&self) -> &Pipe {
        self.part(&self.incoming)
    }

    /// This end's shared state.
    #[inline(always)]
    pub fn own(&self) -> &ConduitEnd {
        self.part(&self.own)
    }

    /// Which end of the region this is. Only for a joined socket, during a call.
    pub fn endpoint_role(&self) -> EndpointRole {
        let is_creator = ptr::eq(self.own(), self.conduit().own(EndpointRole::Creator));
        if is_creator { EndpointRole::Creator } else { EndpointRole::Opener }
    }

    /// The other end's shared state, which must not be trusted.
    #[inline(always)]
    pub fn peer(&self) -> &ConduitEnd {
        self.part(&self.peer)
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

    /// Reads the time limit of receiving calls from the kernel socket.
    pub fn read_timeouts(&self, fd: c_int) {
        let ns = kernel::time_option(fd, libc::SO_RCVTIMEO).unwrap_or(0);
        self.receive_timeout_ns.store(ns, Ordering::Relaxed);
    }
}

/// Joining, and returning for good.
impl Socket {
    /// Stores the region that the two ends share once both have agreed. The rendezvous lock admits
    /// one thread at a time.
    pub fn map(&self, mapped: ConduitMapping, role: EndpointRole) {
        assert_eq!(self.phase(), Phase::Candidate, "only a candidate gets memory");
        assert_eq!(self.is_mapped.load(Ordering::Relaxed), 0, "a socket gets memory once");
        // SAFETY: the phase is not `Joined` yet, so no thread reads it; the rendezvous lock admits
        // one thread at a time.
        let region: &Conduit = unsafe { (*self.conduit.get()).write(mapped) };
        let (pipes, ends) = (&region.pipes, &region.ends);
        let (own, peer) = (role as usize, 1 - role as usize);
        self.outgoing.store(ptr::from_ref(&pipes[own]).cast_mut(), Ordering::Relaxed);
        self.incoming.store(ptr::from_ref(&pipes[peer]).cast_mut(), Ordering::Relaxed);
        self.own.store(ptr::from_ref(&ends[own]).cast_mut(), Ordering::Relaxed);
        self.peer.store(ptr::from_ref(&ends[peer]).cast_mut(), Ordering::Relaxed);
        self.is_mapped.store(1, Ordering::Release);
        MAPPED_REGIONS.fetch_add(1, Ordering::Relaxed);
    }

    /// Initialises a socket, of no descriptor in the table, that another program has joined.
    pub fn open_shared(
        &self,
        fd: c_int,
        record: &'static Record,
        mapped: ConduitMapping,
        role: EndpointRole,
    ) {
        self.open(fd, record, Phase::Candidate);
        self.map(mapped, role);
        self.read_memory_limit(fd);
        self.phase_and_reliances.store(JOINED, Ordering::Release);
    }

    /// Whether there is a region, which may be offered only.
    pub fn is_mapped(&self) -> bool {
        self.is_mapped.load(Ordering::Acquire) != 0
    }

    /// Returns the memory of the outgoing bytes to the system, for a socket that is held for good.
    pub fn release_outgoing_area(&self) {
        let _deferral = crate::signals::defer_handlers();
        if self.lock_send() {
            self.outgoing().release_area();
            self.unlock_send();
        }
    }

    /// Drops a region that the peer has not accepted.
    pub fn unmap_offer(&self) {
        assert_eq!(self.phase(), Phase::Candidate, "a joined socket keeps its memory");
        if self.is_mapped.swap(0, Ordering::AcqRel) != 0 {
            MAPPED_REGIONS.fetch_sub(1, Ordering::Relaxed);
            // SAFETY: a candidate's memory is used under the rendezvous lock only.
            unsafe { (*self.conduit.get()).assume_init_drop() };
        }
    }

    /// Both ends have agreed on the region. The peer sends to memory once this end has published
    /// what it received through the kernel ([`Socket::publish_received`]).
    pub fn join(&self) {
        assert_eq!(self.phase(), Phase::Candidate, "a socket joins once");
        assert!(self.is_mapped(), "a joined socket has memory");
        self.spin_budget_ns.store(first_budget::ns(), Ordering::Relaxed);
        let users = &self.incoming().kernel_use.users;
        let mut before = self.phase_and_reliances.load(Ordering::SeqCst);
        loop {
            users.store(before / ONE_RELIANCE, Ordering::SeqCst);
            let word = &self.phase_and_reliances;
            match word.compare_exchange(before, JOINED, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => break,
                Err(now) => before = now,
            }
        }
        // The peer learns what was sent so far; another thread may just have counted more.
        let sent = self.end().kernel_sent.load(Ordering::SeqCst);
        self.outgoing().kernel_sent.sent.fetch_max(sent, Ordering::SeqCst);
        self.record().set_phase(SocketPhase::SharedMemory);
        self.record().note_join();
    }

    /// Keeps a candidate on the kernel for the rest of its life; false if it is none.
    pub fn leave_candidacy(&self) -> bool {
        let change =
            |word: u32| (word & PHASE_MASK == CANDIDATE).then_some(word & !PHASE_MASK | KERNEL);
        let order = Ordering::SeqCst;
        let left = self.phase_and_reliances.fetch_update(order, order, change).is_ok();
        if left {
            self.record().set_phase(SocketPhase::Kernel);
        }
        left
    }
}

/// Calls and closing. The table (`table`) decides when; the words are here.
impl Socket {
    /// Counts an active call; false if the socket has been closed. Each needs its
    /// [`Socket::end_call`], whatever the result.
    #[inline(always)]
    pub fn begin_call(&self) -> bool {
        let before = match process::has_one_thread() {
            true => add_uncontended(&self.active_calls, 1),
            false => self.active_calls.fetch_add(1, Ordering::AcqRel),
        };
        before & (CLOSING | RELEASED) == 0
    }

    /// Ends a call.
    #[inline(always)]
    pub fn end_call(&self) -> Remains {
        let before = match process::has_one_thread() {
            true => add_uncontended(&self.active_calls, 1_u32.wrapping_neg()),
            false => self.active_calls.fetch_sub(1, Ordering::AcqRel),
        };
        if before == CLOSING + 1 { self.claim_release() } else { Remains::Nothing }
    }

    /// Whether a call is active.
    pub fn has_active_calls(&self) -> bool {
        self.active_calls.load(Ordering::SeqCst) & !(CLOSING | CLOSE_IN_PROGRESS | RELEASED) > 0
    }

    /// Whether the last descriptor has been closed while a call is still active.
    #[inline(always)]
    pub fn is_closing(&self) -> bool {
        self.active_calls.load(Ordering::Acquire) & CLOSING != 0
    }

    /// The last descriptor is about to be closed; `duplicate` is kept for active calls, or −1.
    pub fn begin_close(&self, duplicate: c_int) {
        self.duplicate.store(duplicate, Ordering::SeqCst);
        self.active_calls.fetch_or(CLOSING | CLOSE_IN_PROGRESS, Ordering::AcqRel);
    }

    /// The kernel has closed the last descriptor.
    pub fn finish_close(&self) -> Remains {
        let before = self.active_calls.fetch_and(!CLOSE_IN_PROGRESS, Ordering::AcqRel);
        if before == CLOSING | CLOSE_IN_PROGRESS { self.claim_release() } else { Remains::Nothing }
    }

    fn claim_release(&self) -> Remains {
        let order = (Ordering::AcqRel, Ordering::Relaxed);
        let released = CLOSING | RELEASED;
        let claimed = self.active_calls.compare_exchange(CLOSING, released, order.0, order.1);
        if claimed.is_ok() { Remains::Release } else { Remains::Nothing }
    }

    /// The duplicate that active calls use after the close, or −1.
    #[inline(always)]
    pub fn duplicate(&self) -> c_int {
        self.duplicate.load(Ordering::SeqCst)
    }

    /// Takes the duplicate, which is then the caller's.
    pub fn take_duplicate(&self) -> c_int {
        self.duplicate.swap(-1, Ordering::AcqRel)
    }

    /// The descriptor to use during a call, after `fd` may have been closed by another thread.
    #[inline(always)]
    pub fn current_descriptor(&self, fd: c_int) -> c_int {
        if self.is_closing() { self.duplicate() } else { fd }
    }

    /// Unmaps the memory, for the caller of [`Remains::Release`].
    pub fn release_memory(&self) {
        self.phase_and_reliances.store(KERNEL, Ordering::Release);
        if self.is_mapped.swap(0, Ordering::AcqRel) != 0 {
            MAPPED_REGIONS.fetch_sub(1, Ordering::Relaxed);
            // SAFETY: a mapped socket has been joined, and no call is active any more.
            unsafe { (*self.conduit.get()).assume_init_drop() };
        }
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// In the child of a fork: no other thread is in a call or waits. What the parent counts in
    /// shared memory stays the parent's.
    pub fn reset_threads_after_fork(&self) {
        self.active_calls.store(0, Ordering::Relaxed);
        self.phase_and_reliances.fetch_and(PHASE_MASK, Ordering::Relaxed);
    }
}
