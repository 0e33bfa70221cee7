//! Which of the process's descriptors are TCP sockets that this library manages. Also which belong
//! to the library itself, and which are inherited sockets that were not used yet. A look-up takes
//! one load and no lock. Entries are pointers into a pool, or odd numbers, which are no pointers.
//! The memory of the pool is never freed, so that an outdated pointer is still valid.

use std::ffi::c_int;
use std::os::fd::{IntoRawFd as _, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use nm_ring::conduit::CLOSED;
use nm_ring::ledger::{INHERITED, KernelReason};

use crate::ledgers::{self, LockedByte};
use crate::process::{MemoryOwnership, memory_ownership};
use crate::settings::Settings;
use crate::socket::{Phase, Remains, Socket};
use crate::{kernel, possession, short_lived};

/// Descriptors beyond this number are left to the kernel.
pub const DESCRIPTORS: usize = 1 << 20;

/// The library's own descriptors begin here at the latest: higher ones would enlarge the kernel's
/// table of descriptors, which each fork copies.
const LIBRARY_FDS_FROM_MAX: usize = 8192;

static TABLE: [AtomicPtr<Socket>; DESCRIPTORS] =
    [const { AtomicPtr::new(ptr::null_mut()) }; DESCRIPTORS];

/// In place of a pointer: marks a TCP socket that is left to the kernel, as one of too many. The
/// lowest entry but none, so that one comparison finds both.
const LEFT_OUT: usize = 1;

/// In place of a pointer: marks a descriptor as the library's own.
const LIBRARY_OWNED: usize = 3;

/// Bit of all entries that are no pointers.
const NO_POINTER: usize = 1;

/// In place of a pointer, from here on in steps of two: an inherited socket that was not used yet.
const FIRST_INHERITED: usize = 5;

/// What the first use of an inherited socket calls, as a `fn(c_int, usize)`; 0 while there is none.
static FIRST_USE: AtomicUsize = AtomicUsize::new(0);

fn number_entry(number: usize) -> *mut Socket {
    debug_assert!(number & NO_POINTER != 0, "an entry that is no pointer is odd");
    ptr::without_provenance_mut(number)
}

static HIGHEST_LIBRARY_FD: AtomicUsize = AtomicUsize::new(0);
/// The highest descriptor that was ever a socket of the table.
static HIGHEST_SOCKET_FD: AtomicUsize = AtomicUsize::new(0);

/// The socket of a descriptor, if the library manages it.
#[inline(always)]
pub fn get(fd: c_int) -> Option<&'static Socket> {
    let entry = TABLE.get(fd as usize)?.load(Ordering::Acquire);
    if entry.addr() <= LEFT_OUT {
        return None;
    }
    if entry.addr() & NO_POINTER != 0 {
        use_number_entry(fd, entry.addr());
        return None;
    }
    // SAFETY: entries point into the pool, whose memory is never freed.
    Some(unsafe { &*entry })
}

/// Whether the library manages the socket of `fd`. As [`get`], but uses no inherited socket.
pub fn is_managed(fd: c_int) -> bool {
    let entry = TABLE.get(fd as usize).map_or(0, |entry| entry.load(Ordering::Acquire).addr());
    entry != 0 && entry & NO_POINTER == 0
}

/// Descriptors that are left out. One that was closed without this library counts until its number
/// is used again.
static LEFT_OUT_SOCKETS: AtomicUsize = AtomicUsize::new(0);

/// Whether the socket of `fd` is left to the kernel, as one of too many.
pub fn is_left_out(fd: c_int) -> bool {
    TABLE.get(fd as usize).is_some_and(|entry| entry.load(Ordering::Relaxed).addr() == LEFT_OUT)
}

/// Leaves the new socket of `fd` to the kernel. False if it was left out before.
pub fn leave_out(fd: c_int) -> bool {
    let is_new = !is_left_out(fd);
    if is_new {
        replace(fd, number_entry(LEFT_OUT));
        LEFT_OUT_SOCKETS.fetch_add(1, Ordering::Relaxed);
    }
    is_new
}

/// Leaves a socket that is open, and shares no memory, to the kernel for the rest of its life: the
/// calls on `fd`, its only descriptor, find nothing in the table any more. A thread that is in a
/// call ends it as after a close. False if `fd` was closed meanwhile.
pub fn leave_open_socket(fd: c_int, socket: &'static Socket) -> bool {
    debug_assert_eq!(socket.phase(), Phase::Kernel, "it cannot join any more");
    let Some(entry) = TABLE.get(fd as usize) else { return false };
    let (known, mark) = (ptr::from_ref(socket).cast_mut(), number_entry(LEFT_OUT));
    if entry.compare_exchange(known, mark, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        return false;
    }
    LEFT_OUT_SOCKETS.fetch_add(1, Ordering::Relaxed);
    socket.descriptors.fetch_sub(1, Ordering::AcqRel);
    socket.begin_close(-1);
    socket.record().release();
    close_listener(socket);
    PendingClose { socket, last: true }.finish();
    true
}

/// `fd` is closed or opened, or is about to be: whatever it was, it is not left out any more.
#[inline]
pub fn forget_left_out(fd: c_int) {
    if is_left_out(fd) && memory_ownership() == MemoryOwnership::Owner {
        replace(fd, ptr::null_mut());
    }
}

/// Replaces an entry. A former one is dropped: its descriptor must have been closed without this
/// library, because the kernel has just assigned its number again.
fn replace(fd: c_int, by: *mut Socket) {
    let Some(entry) = TABLE.get(fd as usize) else { return };
    let former = entry.swap(by, Ordering::AcqRel);
    if former.addr() == LEFT_OUT {
        LEFT_OUT_SOCKETS.fetch_sub(1, Ordering::Relaxed);
    } else if !former.is_null() && former.addr() & NO_POINTER == 0 {
        // SAFETY: entries point into the pool, whose memory is never freed.
        drop_descriptor(unsafe { &*former }, -1).finish();
    }
}

/// A look-up has found no pointer: an inherited socket is used for the first time.
#[cold]
fn use_number_entry(fd: c_int, number: usize) {
    let Some(index) = index_of_number(number) else { return };
    let first_use = FIRST_USE.load(Ordering::Relaxed);
    if first_use != 0 {
        // SAFETY: only `prepare_first_use` stores it, from a function pointer of this type.
        let first_use = unsafe { std::mem::transmute::<usize, fn(c_int, usize)>(first_use) };
        first_use(fd, index);
    }
}

fn index_of_number(number: usize) -> Option<usize> {
    let is_inherited = number & NO_POINTER != 0 && number >= FIRST_INHERITED;
    is_inherited.then(|| (number - FIRST_INHERITED) / 2)
}

/// Stores what the first use of an inherited socket calls: with the descriptor and its index. It
/// removes the entry.
pub fn prepare_first_use(first_use: fn(c_int, usize)) {
    FIRST_USE.store(first_use as usize, Ordering::Relaxed);
}

/// Adds a descriptor of the inherited socket `index`.
pub fn bind_inherited(fd: c_int, index: usize) {
    if (fd as usize) < DESCRIPTORS {
        HIGHEST_SOCKET_FD.fetch_max(fd as usize, Ordering::AcqRel);
        replace(fd, number_entry(FIRST_INHERITED + 2 * index));
    }
}

/// The index of an inherited socket that was not used yet.
#[inline]
pub fn inherited_index(fd: c_int) -> Option<usize> {
    index_of_number(TABLE.get(fd as usize)?.load(Ordering::Acquire).addr())
}

/// `fd` is closed, or is about to be: it may be one of an inherited socket that was not used.
#[inline]
pub fn forget_inherited(fd: c_int) {
    if inherited_index(fd).is_some() && memory_ownership() == MemoryOwnership::Owner {
        remove_inherited(fd);
    }
}

/// Removes a descriptor of an inherited socket.
pub fn remove_inherited(fd: c_int) {
    if inherited_index(fd).is_some() {
        TABLE[fd as usize].store(ptr::null_mut(), Ordering::Release);
    }
}

/// Calls `visit` for each descriptor of an inherited socket that was not used yet, with its index.
pub fn for_each_inherited(mut visit: impl FnMut(c_int, usize)) {
    if FIRST_USE.load(Ordering::Relaxed) == 0 {
        return;
    }
    for fd in 0..=HIGHEST_SOCKET_FD.load(Ordering::Relaxed) {
        if let Some(index) = inherited_index(fd as c_int) {
            visit(fd as c_int, index);
        }
    }
}

/// An active call: while it exists, the socket's memory stays mapped.
pub struct CallGuard(&'static Socket);

impl Drop for CallGuard {
    #[inline(always)]
    fn drop(&mut self) {
        if self.0.end_call() == Remains::Release {
            release(self.0);
        }
    }
}

/// Starts a call on the socket of `fd`: its memory stays mapped while the result exists. `None` if
/// it has been closed meanwhile.
#[inline(always)]
pub fn enter(socket: &'static Socket, fd: c_int) -> Option<CallGuard> {
    let is_open = socket.begin_call();
    let guard = CallGuard(socket);
    let here = is_open && get(fd).is_some_and(|it| ptr::eq(it, socket));
    here.then_some(guard)
}

/// Starts a call on a socket by any of its descriptors, which is returned too.
pub fn enter_any(socket: &'static Socket) -> Option<(CallGuard, c_int)> {
    let fd = descriptor_of(socket)?;
    Some((enter(socket, fd)?, fd))
}

/// A descriptor of the socket in this process, if one is left.
pub fn descriptor_of(socket: &'static Socket) -> Option<c_int> {
    if socket.is_closing() {
        return Some(socket.duplicate()).filter(|&fd| fd >= 0);
    }
    let is_ours = |fd: c_int| get(fd).is_some_and(|it| ptr::eq(it, socket));
    let last = socket.last_descriptor.load(Ordering::Relaxed);
    if is_ours(last) {
        return Some(last);
    }
    let highest = HIGHEST_SOCKET_FD.load(Ordering::Relaxed);
    let found = (0..=highest).filter_map(|fd| c_int::try_from(fd).ok()).find(|&fd| is_ours(fd))?;
    socket.last_descriptor.store(found, Ordering::Relaxed);
    Some(found)
}

/// The other end of the socket's connection, if it is in this process, with its descriptor.
pub fn local_peer_of(socket: &'static Socket) -> Option<(CallGuard, &'static Socket, c_int)> {
    let token = socket.connection_token.load(Ordering::Relaxed);
    let mut found = None;
    for_each_socket(|other| {
        let is_same = other.connection_token.load(Ordering::Relaxed) == token && token != 0;
        if is_same && !ptr::eq(other, socket) && found.is_none() {
            found = enter_any(other)
                .filter(|_| other.is_joined())
                .map(|(guard, fd)| (guard, other, fd));
        }
    });
    found
}

/// Adds a descriptor of `socket`.
pub fn bind(fd: c_int, socket: &'static Socket) {
    if (fd as usize) < DESCRIPTORS {
        HIGHEST_SOCKET_FD.fetch_max(fd as usize, Ordering::AcqRel);
        socket.descriptors.fetch_add(1, Ordering::AcqRel);
        replace(fd, ptr::from_ref(socket).cast_mut());
    }
}

/// What remains to be done once the kernel has closed a descriptor of the table.
#[must_use = "call finish() after the kernel's close"]
pub struct PendingClose {
    socket: &'static Socket,
    last: bool,
}

impl PendingClose {
    /// Releases the socket's memory if that was its last descriptor in this process.
    pub fn finish(self) {
        if self.last && self.socket.finish_close() == Remains::Release {
            release(self.socket);
        }
    }
}

/// One descriptor less. Before the kernel closes the last one, `fd`, the end is published; threads
/// with an active call keep a duplicate of it.
fn drop_descriptor(socket: &'static Socket, fd: c_int) -> PendingClose {
    let last = socket.descriptors.fetch_sub(1, Ordering::AcqRel) == 1;
    if last {
        short_lived::connection_ended(socket.data_calls());
        let mut duplicate = -1;
        if fd >= 0 && socket.is_joined() && socket.has_active_calls() {
            // SAFETY: duplicates a descriptor; the duplicate is ours.
            duplicate = protect(unsafe { kernel::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) });
        }
        socket.begin_close(duplicate);
        if duplicate < 0 {
            publish_end(socket, fd);
        }
    }
    PendingClose { socket, last }
}

/// Removes a descriptor from the table, before the kernel closes it. With the last one, the end is
/// published in shared memory before the kernel sends its FIN or RST.
pub fn unbind(fd: c_int) -> Option<PendingClose> {
    let socket = get(fd)?;
    let entry = TABLE.get(fd as usize)?;
    let taken = ptr::from_ref(socket).cast_mut();
    let null = ptr::null_mut();
    entry.compare_exchange(taken, null, Ordering::AcqRel, Ordering::Relaxed).ok()?;
    Some(drop_descriptor(socket, fd))
}

/// Before the kernel closes `fd`, the last descriptor: publishes the end in shared memory.
fn publish_end(socket: &'static Socket, fd: c_int) {
    let record = socket.record();
    let is_left = leave_to_inheritor(socket, fd);
    let last = record.release() == 0;
    close_listener(socket);
    if !socket.is_joined() || !last || is_left {
        return;
    }
    // What the peer has not received stays in memory, which the peer keeps; but a process without
    // this library may be the one that receives it.
    socket.flush_to_kernel(fd);
    // Nobody receives any more: the peer's bytes go to the kernel, which answers with a reset.
    socket.rely_on_kernel();
    let unread = record.reason() == KernelReason::None && socket.has_memory_bytes();
    socket.own().set_flags(CLOSED);
    if unread && fd >= 0 {
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        let length = size_of::<libc::linger>() as libc::socklen_t;
        let value = (&raw const linger).cast();
        let (level, name) = (libc::SOL_SOCKET, libc::SO_LINGER);
        // SAFETY: the value is live and of the stated size.
        unsafe { kernel::setsockopt(fd, level, name, value, length) };
    }
}

/// If this process is the last of the program that holds the socket, but a program that was started
/// has inherited it: returns all bytes to the kernel, where that program finds them.
fn leave_to_inheritor(socket: &'static Socket, fd: c_int) -> bool {
    let record = socket.record();
    let may_be_inherited = record.end.inheritors.load(Ordering::SeqCst) & INHERITED != 0;
    let is_left = may_be_inherited
        && fd >= 0
        && socket.is_joined()
        && record.holders.load(Ordering::Acquire) <= 1
        && ledgers::place_of(record)
            .is_some_and(|place| ledgers::is_locked(place, LockedByte::Inherited));
    if is_left {
        socket.flush_to_kernel(fd);
        socket.begin_hold(fd, KernelReason::Exec);
        let local = local_peer_of(socket);
        let local = local.as_ref().map(|(_guard, peer, descriptor)| (*peer, *descriptor));
        socket.wait_for_return(fd, local);
    }
    is_left
}

/// Closes the file of the socket's memory, if it was kept.
pub fn close_memory_file(socket: &Socket) {
    close_library_descriptor(socket.memory_file.swap(-1, Ordering::AcqRel));
}

/// Releases the memory of a socket that is closed and that no call uses.
fn release(socket: &'static Socket) {
    let duplicate = socket.take_duplicate();
    if duplicate >= 0 {
        publish_end(socket, duplicate);
        close_library_descriptor(duplicate);
    }
    let is_closed_candidate =
        socket.phase() == Phase::Candidate && socket.record().holders.load(Ordering::Acquire) == 0;
    socket.release_memory();
    close_memory_file(socket);
    if is_closed_candidate {
        short_lived::record_closed(socket.record(), socket.calls.load(Ordering::Relaxed));
    }
    free(socket);
}

/// Closes the socket on which the server's end listens for its peer, or by which the two ends talk,
/// if there is one.
pub fn close_listener(socket: &Socket) {
    // In this order: nobody else can have the channel's name while the statement is valid.
    let statement = socket.statement.swap(-1, Ordering::AcqRel);
    if statement >= 0 {
        possession::withdraw(statement, socket.statement_of.load(Ordering::Relaxed));
        close_library_descriptor(statement);
    }
    let listener = socket.rendezvous_listener.swap(-1, Ordering::AcqRel);
    if listener < 0 {
        return;
    }
    RENDEZVOUS_SOCKETS.fetch_sub(1, Ordering::Relaxed);
    if Settings::get().share.is_some() {
        remove_path_of(listener);
    }
    close_library_descriptor(listener);
}

/// Removes the file of a Unix socket that is bound to a path.
fn remove_path_of(listener: c_int) {
    // SAFETY: all zero is a valid unix address.
    let mut storage: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    let target = (&raw mut storage).cast();
    // SAFETY: both are live and of the stated size.
    let named = unsafe { kernel::getsockname(listener, target, &raw mut length) } == 0;
    if named && storage.sun_path[0] != 0 {
        // SAFETY: the path ends with a zero, because it is shorter than the field.
        unsafe { kernel::unlinkat(libc::AT_FDCWD, storage.sun_path.as_ptr(), 0) };
    }
}

/// Before the process ends without closing: its last bytes must not need this process any more.
pub fn release_before_exit() {
    for_each_socket(|socket| {
        if let Some((_guard, fd)) = enter_any(socket) {
            leave_to_inheritor(socket, fd);
        }
        if socket.record().release() == 0 {
            close_listener(socket);
            if let Some((_guard, fd)) = enter_any(socket)
                && socket.is_joined()
            {
                socket.flush_to_kernel(fd);
                socket.rely_on_kernel();
            }
        }
    });
}

/// Gives all descriptors to the kernel for good, before the program restricts its system calls. One
/// with bytes that are in memory only stays: its peer did not send them again.
pub fn leave_to_kernel() {
    for_each_descriptor(|fd, socket| {
        let Some(guard) = enter(socket, fd) else { return };
        let is_needed = socket.is_joined() && socket.has_memory_bytes();
        if !is_needed && let Some(entry) = TABLE.get(fd as usize) {
            let (known, null) = (ptr::from_ref(socket).cast_mut(), ptr::null_mut());
            let _ = entry.compare_exchange(known, null, Ordering::AcqRel, Ordering::Relaxed);
        }
        drop(guard);
    });
}

/// Calls `visit` for each descriptor in the table.
pub fn for_each_descriptor(mut visit: impl FnMut(c_int, &'static Socket)) {
    for fd in 0..=HIGHEST_SOCKET_FD.load(Ordering::Relaxed) {
        if inherited_index(fd as c_int).is_none()
            && let Some(socket) = get(fd as c_int)
        {
            visit(fd as c_int, socket);
        }
    }
}

/// Calls `visit` once for each live socket, however many descriptors it has.
pub fn for_each_socket(mut visit: impl FnMut(&'static Socket)) {
    for chunk in &POOL {
        let chunk = chunk.load(Ordering::Acquire);
        if chunk.is_null() {
            break;
        }
        // SAFETY: a chunk in the pool stays mapped and initialised forever.
        for socket in unsafe { &(*chunk).0 } {
            if socket.descriptors.load(Ordering::Acquire) > 0 {
                visit(socket);
            }
        }
    }
}

/// Limit of descriptor numbers at the moment, within the table.
fn limit() -> usize {
    soft_limit().clamp(64, DESCRIPTORS).max(HIGHEST_LIBRARY_FD.load(Ordering::Relaxed) + 1)
}

/// How many descriptors the process may open at the moment; none if that is not known.
fn soft_limit() -> usize {
    let [soft, _] = kernel::descriptor_limit();
    usize::try_from(soft).unwrap_or(DESCRIPTORS)
}

/// Whether this descriptor is the library's own, which the program must not use.
#[inline(always)]
pub fn is_library_descriptor(fd: c_int) -> bool {
    TABLE
        .get(fd as usize)
        .is_some_and(|entry| entry.load(Ordering::Relaxed).addr() == LIBRARY_OWNED)
}

/// Moves one of the library's descriptors to high numbers, makes exec close it, and protects it
/// from the program. Above the program's own limit if the system allows it: then it takes none of
/// the program's numbers. Returns the new number; if none is free there, the descriptor keeps its
/// number.
pub fn protect(fd: c_int) -> c_int {
    if fd < 0 {
        return fd;
    }
    let high = move_above_limit(fd).unwrap_or_else(|| move_to(fd, limit() / 2));
    let kept = if high >= 0 && (high as usize) < DESCRIPTORS {
        // SAFETY: closes a descriptor that this library made; its duplicate is used instead.
        unsafe { kernel::close(fd) };
        high
    } else {
        fd
    };
    own_descriptor(kept);
    kept
}

/// Protects one of the library's descriptors from the program, at its number.
pub fn own_descriptor(fd: c_int) {
    if let Some(entry) = TABLE.get(fd as usize) {
        forget_left_out(fd);
        entry.store(number_entry(LIBRARY_OWNED), Ordering::Release);
        HIGHEST_LIBRARY_FD.fetch_max(fd as usize, Ordering::Relaxed);
    }
}

/// As [`protect`] for a descriptor that is worth one above the program's limit only; otherwise it
/// is closed, and −1 is returned.
pub fn protect_above_limit(fd: OwnedFd) -> c_int {
    let kept = protect(fd.into_raw_fd());
    let soft = soft_limit();
    if (kept as usize) < soft && soft <= LIBRARY_FDS_FROM_MAX {
        close_library_descriptor(kept);
        return -1;
    }
    kept
}

/// Duplicates a descriptor as the first free number from `from` on, at most
/// [`LIBRARY_FDS_FROM_MAX`]; −1 if that fails.
fn move_to(fd: c_int, from: usize) -> c_int {
    // SAFETY: duplicates a descriptor that this library made.
    unsafe { kernel::fcntl(fd, libc::F_DUPFD_CLOEXEC, from.min(LIBRARY_FDS_FROM_MAX)) }
}

/// Numbers above the program's limit that are for this library.
const ABOVE_LIMIT: u64 = 4096;

/// Duplicates a descriptor above the program's limit. None if the limit is so high that the program
/// does not reach it, or must not be raised.
fn move_above_limit(fd: c_int) -> Option<c_int> {
    with_raised_limit(|soft| move_to(fd, soft as usize)).filter(|high| *high >= 0)
}

/// Does `work` while the program's limit, which it gets, is raised.
fn with_raised_limit<T>(work: impl FnOnce(u64) -> T) -> Option<T> {
    let [soft, hard] = kernel::descriptor_limit();
    let raised = [hard.min(soft.saturating_add(ABOVE_LIMIT)), hard];
    if soft > LIBRARY_FDS_FROM_MAX as u64 || raised[0] <= soft {
        return None;
    }
    let before = kernel::swap_descriptor_limit(raised)?;
    let done = work(soft);
    // Lowering a limit needs no permission. If the program has set another one meanwhile, that
    // stays.
    let found = kernel::swap_descriptor_limit(before);
    if let Some(of_program) = found.filter(|found| *found != raised) {
        kernel::swap_descriptor_limit(of_program);
    }
    Some(done)
}

/// Sockets of a rendezvous that are open now; each belongs to one socket, until it has joined.
static RENDEZVOUS_SOCKETS: AtomicUsize = AtomicUsize::new(0);

/// Whether one more socket for a rendezvous, just opened as `fd`, leaves the program enough of its
/// descriptors: it must not be one of its last, and there are at most an eighth as many as it may
/// open.
pub fn is_affordable(fd: c_int) -> bool {
    let soft = soft_limit();
    fd as usize + LAST_FDS < soft && RENDEZVOUS_SOCKETS.load(Ordering::Relaxed) < soft / 8
}

/// The program's last descriptors, which this library does not use for a moment either.
const LAST_FDS: usize = 16;

/// The program has opened `fd`: whether it may need the descriptors that are open for rendezvous.
pub fn is_short_of_descriptors(fd: c_int) -> bool {
    RENDEZVOUS_SOCKETS.load(Ordering::Relaxed) > 0 && fd as usize >= soft_limit() / 4 * 3
}

/// Keeps a statement about the descriptor `fd` of a socket until its rendezvous ends.
pub fn set_statement(socket: &Socket, statement: c_int, fd: c_int) {
    socket.statement_of.store(fd, Ordering::Relaxed);
    socket.statement.store(statement, Ordering::Release);
}

/// Keeps a socket of a rendezvous with the socket that it is for.
pub fn set_rendezvous_socket(socket: &Socket, fd: c_int) {
    RENDEZVOUS_SOCKETS.fetch_add(1, Ordering::Relaxed);
    socket.rendezvous_listener.store(fd, Ordering::Relaxed);
}

/// Closes one of the library's descriptors.
pub fn close_library_descriptor(fd: c_int) {
    if fd < 0 {
        return;
    }
    if let Some(entry) = TABLE.get(fd as usize) {
        entry.store(ptr::null_mut(), Ordering::Release);
    }
    // SAFETY: the descriptor is the library's, and nothing uses it any more.
    unsafe { kernel::close(fd) };
}

/// The library's first descriptor from `from` on.
pub fn next_library_descriptor(from: c_int) -> Option<c_int> {
    let highest = HIGHEST_LIBRARY_FD.load(Ordering::Relaxed);
    (from.max(0) as usize..=highest)
        .find(|&fd| is_library_descriptor(fd as c_int))
        .map(|fd| fd as c_int)
}

/// In the child after a fork: the child owns its copy of the table, and has no other threads.
pub fn forked_child() {
    for_each_socket(Socket::reset_threads_after_fork);
}

const CHUNK: usize = 64;

/// Sockets are allocated in chunks.
struct Chunk([Socket; CHUNK]);

static POOL: [AtomicPtr<Chunk>; DESCRIPTORS / CHUNK] =
    [const { AtomicPtr::new(ptr::null_mut()) }; DESCRIPTORS / CHUNK];

/// Count of allocated chunks.
static CHUNKS: AtomicUsize = AtomicUsize::new(0);

/// The stack of free sockets: the low half is the index + 1 of the top, the high half a count of
/// changes, so that a pop detects a stack that changed and changed back (ABA problem).
static FREE_LIST: AtomicU64 = AtomicU64::new(0);

const INDEX_MASK: u64 = u32::MAX as u64;

fn socket_at(index: u32) -> Option<&'static Socket> {
    let chunk = POOL.get(index as usize / CHUNK)?.load(Ordering::Acquire);
    // SAFETY: a chunk in the pool stays mapped and initialised forever.
    (!chunk.is_null()).then(|| unsafe { &(&(*chunk).0)[index as usize % CHUNK] })
}

/// Sockets that are taken from the pool.
static IN_USE: AtomicUsize = AtomicUsize::new(0);

/// Count of sockets that the library manages or has left out.
pub fn connections() -> usize {
    IN_USE.load(Ordering::Relaxed) + LEFT_OUT_SOCKETS.load(Ordering::Relaxed)
}

/// Takes an unused socket from the pool; `None` when memory is exhausted.
pub fn claim() -> Option<&'static Socket> {
    loop {
        let head = FREE_LIST.load(Ordering::Acquire);
        let Some(index) = ((head & INDEX_MASK) as u32).checked_sub(1) else {
            grow()?;
            continue;
        };
        let socket = socket_at(index)?;
        let below = u64::from(socket.next_free.load(Ordering::Relaxed));
        let next = ((head >> 32).wrapping_add(1) << 32) | below;
        if FREE_LIST.compare_exchange(head, next, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            IN_USE.fetch_add(1, Ordering::Relaxed);
            return Some(socket);
        }
    }
}

/// Returns a socket to the pool.
fn free(socket: &'static Socket) {
    IN_USE.fetch_sub(1, Ordering::Relaxed);
    add_to_pool(socket);
}

fn add_to_pool(socket: &'static Socket) {
    loop {
        let head = FREE_LIST.load(Ordering::Acquire);
        socket.next_free.store(head as u32, Ordering::Relaxed);
        let index = u64::from(socket.index.load(Ordering::Relaxed) + 1);
        let next = ((head >> 32).wrapping_add(1) << 32) | index;
        if FREE_LIST.compare_exchange(head, next, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return;
        }
    }
}

/// Maps a chunk of new sockets and adds it to the pool.
#[cold]
fn grow() -> Option<()> {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    let bytes = size_of::<Chunk>();
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let number = CHUNKS.fetch_add(1, Ordering::AcqRel);
    let place = POOL.get(number)?;
    // SAFETY: a new mapping at an address of the kernel's choice overlaps no memory in use.
    let fresh =
        unsafe { mmap_anonymous(ptr::null_mut(), bytes, access, MapFlags::PRIVATE) }.ok()?;
    let chunk = fresh.cast::<Chunk>();
    for index in 0..CHUNK {
        // SAFETY: within the new mapping, which is page-aligned.
        unsafe { (&raw mut (*chunk).0[index]).write(Socket::new()) };
    }
    place.store(chunk, Ordering::Release);
    for index in 0..CHUNK {
        let number = (number * CHUNK + index) as u32;
        if let Some(socket) = socket_at(number) {
            socket.index.store(number, Ordering::Relaxed);
            add_to_pool(socket);
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_the_program_sets_meanwhile_stays() {
        let [soft, hard] = kernel::descriptor_limit();
        let low = [1_000, hard];
        kernel::swap_descriptor_limit(low).unwrap();
        let raised = with_raised_limit(|_| kernel::descriptor_limit()).unwrap();
        assert!(raised[0] > low[0] && raised[1] == hard);
        assert_eq!(kernel::descriptor_limit(), low);
        let of_program = [999, hard];
        with_raised_limit(|_| kernel::swap_descriptor_limit(of_program)).unwrap();
        assert_eq!(kernel::descriptor_limit(), of_program);
        kernel::swap_descriptor_limit([soft, hard]).unwrap();
    }
}
