//! Which process this memory belongs to. A child of vfork runs on its parent's memory and must not
//! change what describes the parent's descriptors. A child of fork has a copy of its own.

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, Ordering,
};

use nm_ring::process_lock::OTHER_NAMESPACE;

use crate::kernel;

/// Whether the calling process may change what describes descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryOwnership {
    /// The memory is its own.
    Owner,
    /// It runs on the memory of another process (vfork and similar), or has released its sockets
    /// because it is ending or restricts its system calls.
    Borrower,
}

/// The process that the memory belongs to; 0 before the constructor ran.
static OWNER_PID: AtomicI32 = AtomicI32::new(0);

/// A word that is 1 in this process and 0 in a new copy of it that a fork made.
static FORK_MARK: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

/// Set when the process is ending and has released its sockets.
static HAS_EXITED: AtomicBool = AtomicBool::new(false);

/// Set when the program is about to restrict its system calls: see `system_call_filter`. A fork
/// inherits the restriction.
static IS_RESTRICTED: AtomicBool = AtomicBool::new(false);

/// What a copy of the process must do first, as a `fn()`; 0 until it is known.
static ADOPT_COPY: AtomicUsize = AtomicUsize::new(0);

/// Whether a child that is no copy may run on this memory: [`NO_BORROWER`], or how it was made.
static BORROWERS: AtomicU32 = AtomicU32::new(NO_BORROWER);

/// The program has made no such child.
const NO_BORROWER: u32 = 0;
/// By vfork only: such a child runs as the thread that has called it.
const BY_VFORK: u32 = 1;
/// By clone: nobody knows which threads are the child's.
const BY_CLONE: u32 = 2;

/// The C library's `__libc_single_threaded` (glibc 2.32): not zero while the process certainly has
/// one thread only. Null where the library does not have it.
static SINGLE_THREADED: AtomicPtr<AtomicU8> = AtomicPtr::new(ptr::null_mut());

/// Set when the program makes a thread without the part of the C library that counts them, or a
/// process that runs on this memory beside it.
static SHARES_MEMORY: AtomicBool = AtomicBool::new(false);

std::thread_local! {
    /// Whether this thread has called vfork, and may be its child.
    static HAS_VFORKED: Cell<bool> = const { Cell::new(false) };
}

/// The process that the memory belongs to (0 before the constructor ran).
#[inline(always)]
pub fn owner_pid() -> i32 {
    OWNER_PID.load(Ordering::Relaxed)
}

/// What identifies this process in locks that forks share.
static LOCK_OWNER: AtomicU32 = AtomicU32::new(0);

/// What identifies this process in locks that forks share.
#[inline(always)]
pub fn lock_owner() -> u32 {
    LOCK_OWNER.load(Ordering::Relaxed)
}

/// Makes the calling process the owner.
pub fn take_ownership() {
    let (pid, before) = (kernel::getpid(), owner_pid());
    OWNER_PID.store(pid, Ordering::Relaxed);
    // The first process of a pid namespace has the number 1; its parent is in another one.
    let is_elsewhere = before != 0 && (pid == 1 || lock_owner() & OTHER_NAMESPACE != 0);
    let mark = if is_elsewhere { OTHER_NAMESPACE } else { 0 };
    LOCK_OWNER.store(pid as u32 | mark, Ordering::Relaxed);
}

/// Maps the word by which a copy of the process is detected. `adopt_copy` is called in a copy that
/// was made without fork handlers (a raw clone), at its first use.
pub fn prepare(adopt_copy: fn()) {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
    const PAGE: usize = 4096;
    ADOPT_COPY.store(adopt_copy as usize, Ordering::Relaxed);
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice overlaps no memory in use.
    let page = unsafe { mmap_anonymous(ptr::null_mut(), PAGE, access, MapFlags::PRIVATE) };
    if let Ok(page) = page
        // SAFETY: the advice is for the page just mapped.
        && unsafe { madvise(page, PAGE, Advice::LinuxWipeOnFork) }.is_ok()
    {
        let mark = page.cast::<AtomicU32>();
        // SAFETY: at the beginning of a page of zeros that stays mapped.
        unsafe { &*mark }.store(1, Ordering::Relaxed);
        FORK_MARK.store(mark, Ordering::Relaxed);
    }
}

/// Looks up [`SINGLE_THREADED`].
pub fn prepare_thread_count() {
    // SAFETY: the name ends in NUL. The symbol is a variable, which stays where it is.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) };
    SINGLE_THREADED.store(found.cast(), Ordering::Relaxed);
}

/// Whether no other thread can be in a call at the same time: the program has started none. A child
/// of vfork runs instead of its parent.
#[inline(always)]
pub fn has_one_thread() -> bool {
    // SAFETY: null, or the C library's variable of one byte, which is only written before a thread
    // starts and in the child of a fork.
    let is_single = unsafe { SINGLE_THREADED.load(Ordering::Relaxed).as_ref() };
    is_single.is_some_and(|is_single| is_single.load(Ordering::Relaxed) != 0) && !shares_memory()
}

/// Whether copies of the process can be detected.
pub fn is_prepared() -> bool {
    !FORK_MARK.load(Ordering::Relaxed).is_null()
}

/// In a copy of the process: makes it the owner of its copy.
pub fn adopt() {
    // SAFETY: null, or the page that `prepare` mapped and that is never unmapped.
    if let Some(mark) = unsafe { FORK_MARK.load(Ordering::Relaxed).as_ref() } {
        mark.store(1, Ordering::Relaxed);
    }
    HAS_EXITED.store(false, Ordering::Relaxed);
    take_ownership();
}

/// The process is ending and has released its sockets.
pub fn set_exited() {
    HAS_EXITED.store(true, Ordering::Relaxed);
}

/// The program is about to restrict its system calls.
pub fn set_restricted() {
    IS_RESTRICTED.store(true, Ordering::Release);
}

/// Whether the program may have restricted its system calls: then this library makes none of its
/// own.
#[inline(always)]
pub fn is_restricted() -> bool {
    IS_RESTRICTED.load(Ordering::Acquire)
}

/// The calling thread is about to call vfork.
pub fn before_vfork() {
    HAS_VFORKED.set(true);
    BORROWERS.fetch_max(BY_VFORK, Ordering::Relaxed);
}

/// The calling thread is about to make a thread or a process that runs on this memory beside it.
pub fn before_memory_is_shared() {
    SHARES_MEMORY.store(true, Ordering::SeqCst);
}

/// Whether [`before_memory_is_shared`] was ever called.
#[inline(always)]
pub fn shares_memory() -> bool {
    SHARES_MEMORY.load(Ordering::Relaxed)
}

/// The calling thread is about to make a process that runs on this memory beside it.
pub fn before_sharing_clone() {
    BORROWERS.store(BY_CLONE, Ordering::Relaxed);
}

/// Whether the calling thread is certainly one of the owner: this memory is no new copy, and no
/// other process can run on it.
#[inline]
fn is_certainly_owner() -> bool {
    // SAFETY: null, or the page that `prepare` mapped and that is never unmapped.
    let mark = unsafe { FORK_MARK.load(Ordering::Relaxed).as_ref() };
    mark.is_some_and(|mark| mark.load(Ordering::Relaxed) != 0)
        && match BORROWERS.load(Ordering::Relaxed) {
            NO_BORROWER => true,
            BY_VFORK => !HAS_VFORKED.get(),
            _ => false,
        }
}

/// Who owns this memory. Asks the kernel only if another process could be the one that asks. A copy
/// that was made without fork handlers is detected here and becomes the owner of its copy.
pub fn memory_ownership() -> MemoryOwnership {
    if is_restricted() {
        return MemoryOwnership::Borrower;
    }
    if !is_certainly_owner() && !is_owner_by_pid() {
        return ownership_of_other_process();
    }
    if HAS_EXITED.load(Ordering::Relaxed) {
        MemoryOwnership::Borrower
    } else {
        MemoryOwnership::Owner
    }
}

/// Whether the calling process is the owner, as the kernel says.
#[cold]
fn is_owner_by_pid() -> bool {
    let owner = owner_pid();
    let is_owner = owner == 0 || kernel::getpid() == owner;
    if is_owner {
        // A thread whose vfork has returned here: its child has ended, or runs another program.
        HAS_VFORKED.set(false);
    }
    is_owner
}

/// A process that is not the owner asks.
#[cold]
fn ownership_of_other_process() -> MemoryOwnership {
    let mark = FORK_MARK.load(Ordering::Relaxed);
    // SAFETY: null, or the page that `prepare` mapped and that is never unmapped.
    let is_copy = unsafe { mark.as_ref() }.is_some_and(|mark| mark.load(Ordering::Relaxed) == 0);
    let adopt_copy = ADOPT_COPY.load(Ordering::Relaxed);
    if !is_copy || adopt_copy == 0 {
        return MemoryOwnership::Borrower;
    }
    // SAFETY: only `prepare` stores it, from a function pointer of this type.
    let adopt_copy = unsafe { std::mem::transmute::<usize, fn()>(adopt_copy) };
    adopt_copy();
    MemoryOwnership::Owner
}

/// Whether this is a child that borrows its parent's memory.
pub fn is_borrower() -> bool {
    memory_ownership() == MemoryOwnership::Borrower
}
