//! Which of the process's descriptors are TCP sockets that this library manages, and which belong
//! to the library itself. A look-up takes one load and no lock. Entries are pointers into a pool
//! whose memory is never freed, so that an outdated pointer is still valid.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use crate::kernel;
use crate::socket::Socket;

/// Descriptors beyond this number are left to the kernel.
pub const DESCRIPTORS: usize = 1 << 20;

/// The library's own descriptors begin here at the latest: higher ones would enlarge the kernel's
/// table of descriptors, which each fork copies.
const LIBRARY_FDS_FROM_MAX: usize = 8192;

static TABLE: [AtomicPtr<Socket>; DESCRIPTORS] =
    [const { AtomicPtr::new(ptr::null_mut()) }; DESCRIPTORS];

/// Marks a descriptor as the library's own.
static LIBRARY_OWNED: Socket = Socket::new();

static OWNER_PID: AtomicI32 = AtomicI32::new(0);
static HIGHEST_LIBRARY_FD: AtomicUsize = AtomicUsize::new(0);

/// The socket of a descriptor, if the library manages it.
#[inline(always)]
pub fn get(fd: c_int) -> Option<&'static Socket> {
    let entry = TABLE.get(fd as usize)?.load(Ordering::Acquire);
    if entry.is_null() || ptr::eq(entry, &raw const LIBRARY_OWNED) {
        return None;
    }
    // SAFETY: entries point into the pool, whose memory is never freed.
    Some(unsafe { &*entry })
}

/// Adds a descriptor of `socket`. A former entry is dropped: its descriptor must have been closed
/// without this library, because the kernel has just assigned its number again.
pub fn bind(fd: c_int, socket: &'static Socket) {
    let Some(entry) = TABLE.get(fd as usize) else { return };
    socket.descriptors.fetch_add(1, Ordering::AcqRel);
    let old = entry.swap(ptr::from_ref(socket).cast_mut(), Ordering::AcqRel);
    if !old.is_null() && !ptr::eq(old, &raw const LIBRARY_OWNED) {
        // SAFETY: entries point into the pool, whose memory is never freed.
        let old = unsafe { &*old };
        if let Some(pending) = drop_descriptor(old) {
            if pending.last {
                old.begin_close(-1);
            }
            pending.finish();
        }
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
        if self.last {
            self.socket.finish_close();
        }
    }
}

fn drop_descriptor(socket: &'static Socket) -> Option<PendingClose> {
    let before = socket.descriptors.fetch_sub(1, Ordering::AcqRel);
    Some(PendingClose { socket, last: before == 1 })
}

/// Removes a descriptor from the table, before the kernel closes it. With the last one, the end is
/// published in shared memory before the kernel sends its FIN or RST.
pub fn unbind(fd: c_int) -> Option<PendingClose> {
    let socket = get(fd)?;
    let entry = TABLE.get(fd as usize)?;
    let taken = ptr::from_ref(socket).cast_mut();
    let null = ptr::null_mut();
    entry.compare_exchange(taken, null, Ordering::AcqRel, Ordering::Relaxed).ok()?;
    let pending = drop_descriptor(socket)?;
    if pending.last {
        socket.begin_close(fd);
    }
    Some(pending)
}

/// Calls `visit` for each descriptor in the table.
pub fn for_each_descriptor(mut visit: impl FnMut(c_int, &'static Socket)) {
    for fd in 0..limit() {
        if let Some(socket) = get(fd as c_int) {
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
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let soft = limit.current.unwrap_or(DESCRIPTORS as u64);
    (soft as usize).clamp(64, DESCRIPTORS).max(HIGHEST_LIBRARY_FD.load(Ordering::Relaxed) + 1)
}

/// Whether this descriptor is the library's own, which the program must not use.
#[inline(always)]
pub fn is_library_descriptor(fd: c_int) -> bool {
    TABLE
        .get(fd as usize)
        .is_some_and(|entry| ptr::eq(entry.load(Ordering::Relaxed), &raw const LIBRARY_OWNED))
}

/// Moves one of the library's descriptors to high numbers, makes exec close it, and protects it
/// from the program. Returns the new number; if none is free there, the descriptor keeps its
/// number.
pub fn protect(fd: c_int) -> c_int {
    if fd < 0 {
        return fd;
    }
    let from = (limit() / 2).min(LIBRARY_FDS_FROM_MAX);
    // SAFETY: duplicates a descriptor that this library made.
    let high = unsafe { kernel::fcntl(fd, libc::F_DUPFD_CLOEXEC, from) };
    let kept = if high >= 0 && (high as usize) < DESCRIPTORS {
        // SAFETY: closes a descriptor that this library made; its duplicate is used instead.
        unsafe { kernel::close(fd) };
        high
    } else {
        fd
    };
    if let Some(entry) = TABLE.get(kept as usize) {
        entry.store((&raw const LIBRARY_OWNED).cast_mut(), Ordering::Release);
        HIGHEST_LIBRARY_FD.fetch_max(kept as usize, Ordering::Relaxed);
    }
    kept
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

/// The process that the table belongs to (0 before the constructor ran).
#[inline(always)]
pub fn owner_pid() -> i32 {
    OWNER_PID.load(Ordering::Relaxed)
}

/// Makes this process the owner of the table.
pub fn take_ownership() {
    OWNER_PID.store(kernel::getpid(), Ordering::Relaxed);
}

/// In the child after a fork: the child owns its copy of the table, and has no other threads.
pub fn forked_child() {
    take_ownership();
    for_each_socket(Socket::reset_threads_after_fork);
    crate::rendezvous::forked_child();
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
            return Some(socket);
        }
    }
}

/// Returns a socket to the pool.
pub fn free(socket: &'static Socket) {
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
            free(socket);
        }
    }
    Some(())
}
