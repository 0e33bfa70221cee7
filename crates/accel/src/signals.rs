//! Counts deliveries of the program's signal handlers, by a trampoline that calls them.
//!
//! A call that spins in user space must return EINTR as the kernel's would, so it must learn that a
//! handler ran in its thread. Three things are stored per thread:
//!
//! - how many handlers ran ([`interrupt_count`], [`delivery_count`]);
//! - the time-out of a sleep that is about to begin ([`sleep_timeout`]);
//! - the signals that were deferred while locks were held ([`defer_handlers`]).

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::{MaybeUninit, transmute};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering, compiler_fence};

use libc::{SA_RESETHAND, SA_RESTART, SA_SIGINFO, siginfo_t, timespec};

use crate::kernel;
use crate::process::{MemoryOwnership, memory_ownership};

/// Signal numbers are 1..=64.
const SIGNALS: usize = 65;
/// Signals that can be deferred at once; further ones are handled immediately.
const DEFERRED_MAX: usize = 8;
/// Attempts to acquire the lock of [`ACTIONS`]; it is held for one system call.
const LOCK_ATTEMPTS_MAX: u32 = 1 << 20;

/// What the program requested for one signal.
struct Action {
    /// The program's handler; the kernel calls the trampoline.
    handler: AtomicUsize,
    /// SA_* flags as the kernel has them.
    flags: AtomicU32,
}

static ACTIONS: [Action; SIGNALS] =
    [const { Action { handler: AtomicUsize::new(0), flags: AtomicU32::new(0) } }; SIGNALS];
/// Lock of [`ACTIONS`]: 1 while a thread changes an entry.
static ACTIONS_LOCK: AtomicU32 = AtomicU32::new(0);

/// A deferred signal, to be queued again.
#[derive(Clone, Copy)]
struct DeferredSignal {
    signal: c_int,
    /// Whether `info` was filled in by the kernel.
    has_info: bool,
    info: MaybeUninit<siginfo_t>,
}

impl DeferredSignal {
    const NONE: DeferredSignal =
        DeferredSignal { signal: 0, has_info: false, info: MaybeUninit::uninit() };
}

/// State shared by a thread's handlers and calls. Only its thread accesses it; the fields are
/// atomic because a handler may run between any two instructions.
struct ThreadSignals {
    interrupts: AtomicU32,
    deliveries: AtomicU32,
    /// Depth of [`Deferral`]s.
    deferrals: AtomicU32,
    deferred_count: AtomicU32,
    deferred: UnsafeCell<[DeferredSignal; DEFERRED_MAX]>,
    timeout: UnsafeCell<timespec>,
}

thread_local! {
    // Constant and without a destructor, so it lies in the static block that the loader allocates
    // for each thread: a handler's access allocates nothing.
    static THREAD_SIGNALS: ThreadSignals = const {
        ThreadSignals {
            interrupts: AtomicU32::new(0),
            deliveries: AtomicU32::new(0),
            deferrals: AtomicU32::new(0),
            deferred_count: AtomicU32::new(0),
            deferred: UnsafeCell::new(
                [DeferredSignal::NONE; DEFERRED_MAX],
            ),
            timeout: UnsafeCell::new(timespec { tv_sec: 0, tv_nsec: 0 }),
        }
    };
}

/// Count of handlers without SA_RESTART that ran in this thread: a change during a call means
/// EINTR.
pub fn interrupt_count() -> u32 {
    THREAD_SIGNALS.with(|thread| thread.interrupts.load(Ordering::Relaxed))
}

/// Count of all handlers that ran in this thread: a change means EINTR for poll, select,
/// epoll_wait, and for recv and send with a time-out, which SA_RESTART does not restart.
pub fn delivery_count() -> u32 {
    THREAD_SIGNALS.with(|thread| thread.deliveries.load(Ordering::Relaxed))
}

/// The time-out for a ppoll or pselect6 of this thread, in memory that a handler sets to zero.
///
/// Otherwise a handler that runs after the last check of [`interrupt_count`] but before the system
/// call would not end the sleep. So: call this, check the count once more, then sleep with the
/// result. The sleep may end early; its result 0 does not mean that the time has passed. None means
/// about 68 years.
pub fn sleep_timeout(timeout_ns: Option<u64>) -> *mut timespec {
    const SECOND_NS: u64 = 1_000_000_000;
    const LONG_S: u64 = i32::MAX as u64;
    let timeout_ns = timeout_ns.unwrap_or(LONG_S * SECOND_NS);
    THREAD_SIGNALS.with(|thread| {
        let timeout = thread.timeout.get();
        let value = timespec {
            tv_sec: (timeout_ns / SECOND_NS).min(LONG_S).cast_signed(),
            tv_nsec: (timeout_ns % SECOND_NS).cast_signed(),
        };
        // SAFETY: the memory is this thread's own and lives as long as the thread; volatile,
        // because a handler may change it without the compiler's knowledge.
        unsafe { timeout.write_volatile(value) };
        compiler_fence(Ordering::SeqCst);
        timeout
    })
}

/// Defers the handlers of this thread while it exists; they run when the last one is dropped.
///
/// Needed while a lock of a pipe or of this process is held: a handler may send on the same socket,
/// or leave by siglongjmp and never return to unlock. Signals that an instruction caused (such as
/// SIGSEGV) and one-shot handlers are not deferred.
pub struct Deferral {
    /// The thread that it belongs to, so that it is not `Send`.
    thread: *const ThreadSignals,
}

/// Begins a [`Deferral`].
#[inline(always)]
pub fn defer_handlers() -> Deferral {
    THREAD_SIGNALS.with(|thread| {
        let depth = thread.deferrals.load(Ordering::Relaxed);
        thread.deferrals.store(depth + 1, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        Deferral { thread }
    })
}

impl Drop for Deferral {
    #[inline(always)]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        // SAFETY: the state of the calling thread, which lives as long as that: a deferral does not
        // leave its thread, and is dropped before that ends.
        let thread = unsafe { &*self.thread };
        let depth = thread.deferrals.load(Ordering::Relaxed);
        if depth != 1 || thread.deferred_count.load(Ordering::Relaxed) == 0 {
            thread.deferrals.store(depth - 1, Ordering::Relaxed);
            compiler_fence(Ordering::SeqCst);
            // A signal may have arrived between the check and the store.
            if depth != 1 || thread.deferred_count.load(Ordering::Relaxed) == 0 {
                return;
            }
            thread.deferrals.store(1, Ordering::Relaxed);
        }
        requeue_deferred(thread);
    }
}

/// Ends the deferral and queues the deferred signals again; the kernel then delivers them with the
/// mask, stack and context that the program requested.
#[cold]
fn requeue_deferred(thread: &ThreadSignals) {
    loop {
        let count = thread.deferred_count.load(Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        // SAFETY: only this thread's handlers write it, and only beyond `count`, which the exchange
        // below checks again; any bytes are a valid copy (`info` is MaybeUninit).
        let list = unsafe { thread.deferred.get().read_volatile() };
        let unchanged =
            thread.deferred_count.compare_exchange(count, 0, Ordering::Relaxed, Ordering::Relaxed);
        if unchanged.is_err() {
            continue;
        }
        thread.deferrals.store(0, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        for signal in list.iter().take(count as usize) {
            requeue(signal);
        }
        if thread.deferred_count.load(Ordering::Relaxed) == 0 {
            return;
        }
        thread.deferrals.store(1, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
    }
}

fn requeue(deferred: &DeferredSignal) {
    let process = kernel::getpid() as usize;
    let signal = deferred.signal as usize;
    // SAFETY: no arguments; cannot fail.
    let thread = unsafe { kernel::raw(libc::SYS_gettid, 0, 0, 0, 0, 0, 0) } as usize;
    let mut queued = -1;
    if deferred.has_info {
        // SAFETY: the kernel filled in the information; a process may send itself any.
        queued = unsafe {
            let info = deferred.info.as_ptr().addr();
            kernel::raw(libc::SYS_rt_tgsigqueueinfo, process, thread, signal, info, 0, 0)
        };
    }
    if queued != 0 {
        // SAFETY: a signal to this thread; plain numbers.
        unsafe { kernel::raw(libc::SYS_tgkill, process, thread, signal, 0, 0, 0) };
    }
}

/// The function that the kernel calls for every handler of the program.
///
/// "C-unwind": a handler may throw or be left by a cancellation. No value here needs to be dropped.
unsafe extern "C-unwind" fn trampoline(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let Some(action) = ACTIONS.get(signal as usize) else { return };
    let flags = action.flags.load(Ordering::Relaxed);
    let handler = action.handler.load(Ordering::Relaxed);
    if !is_function(handler) {
        return;
    }
    // SAFETY: `info` is what the kernel passed for a delivery with these flags.
    if unsafe { defer_signal(signal, flags, info) } {
        return;
    }
    THREAD_SIGNALS.with(|thread| {
        let deliveries = thread.deliveries.load(Ordering::Relaxed);
        thread.deliveries.store(deliveries.wrapping_add(1), Ordering::Relaxed);
        if flags & SA_RESTART as u32 == 0 {
            let interrupts = thread.interrupts.load(Ordering::Relaxed);
            thread.interrupts.store(interrupts.wrapping_add(1), Ordering::Relaxed);
        }
        cancel_sleep(thread);
    });
    // SAFETY: the program set this function for this signal; a handler with one argument ignores
    // the two others, which the C calling conventions of Linux allow.
    let handler: unsafe extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void) =
        unsafe { transmute::<usize, _>(handler) };
    // SAFETY: the arguments are those of the kernel.
    unsafe { handler(signal, info, context) };
    // The handler may have slept itself; the interrupted call must not sleep after it.
    THREAD_SIGNALS.with(cancel_sleep);
}

fn cancel_sleep(thread: &ThreadSignals) {
    // SAFETY: this thread's own memory, see `sleep_timeout`.
    unsafe { thread.timeout.get().write_volatile(timespec { tv_sec: 0, tv_nsec: 0 }) };
    compiler_fence(Ordering::SeqCst);
}

/// Defers the signal; false if it must be handled now.
///
/// # Safety
/// `info` is the kernel's pointer, readable if `flags` say so.
unsafe fn defer_signal(signal: c_int, flags: u32, info: *const siginfo_t) -> bool {
    let synchronous = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];
    THREAD_SIGNALS.with(|thread| {
        let place = thread.deferred_count.load(Ordering::Relaxed);
        if thread.deferrals.load(Ordering::Relaxed) == 0
            || place as usize >= DEFERRED_MAX
            || synchronous.contains(&signal)
            || signal == libc::SIGSYS
            || flags & SA_RESETHAND as u32 != 0
        {
            return false;
        }
        let has_info = flags & SA_SIGINFO as u32 != 0 || cfg!(target_arch = "x86_64");
        let mut kept = DeferredSignal { signal, has_info, info: MaybeUninit::uninit() };
        if has_info {
            // SAFETY: the kernel writes the information to the stack (on x86-64 always).
            kept.info = MaybeUninit::new(unsafe { *info });
        }
        // Reserved before it is written, so that a handler that interrupts this one takes the next.
        thread.deferred_count.store(place + 1, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        // SAFETY: index < DEFERRED_MAX; this thread's own memory.
        unsafe {
            thread.deferred.get().cast::<DeferredSignal>().add(place as usize).write_volatile(kept)
        };
        compiler_fence(Ordering::SeqCst);
        true
    })
}

/// Whether it is neither SIG_DFL, SIG_IGN, SIG_HOLD nor SIG_ERR.
fn is_function(handler: usize) -> bool {
    handler > 2 && handler != libc::SIG_ERR
}

/// The handler that the kernel has for every handler of the program.
fn trampoline_address() -> usize {
    trampoline as *const () as usize
}

/// What is shown to the program where the kernel has `handler`.
fn visible_handler(handler: usize, known: usize) -> usize {
    if handler == trampoline_address() { known } else { handler }
}

/// Runs `apply`, which sets the kernel's handler of `signal`, with the trampoline instead of the
/// program's function. `read` returns what the kernel had before, or None if `apply` failed.
///
/// `handler` is None if only flags may change. Returns the result of `apply`, and the former
/// handler as the program knows it.
pub fn exchange_handler<T>(
    signal: c_int,
    handler: Option<usize>,
    apply: impl FnOnce(usize) -> T,
    read: impl FnOnce(&T) -> Option<usize>,
) -> (T, usize) {
    let wanted = handler.unwrap_or(0);
    let known = usize::try_from(signal).ok().filter(|number| *number > 0);
    let Some(action) = known.and_then(|number| ACTIONS.get(number)) else {
        let result = apply(wanted);
        let before = read(&result).unwrap_or(0);
        return (result, before);
    };
    if memory_ownership() == MemoryOwnership::Borrower {
        // A vfork child has handlers of its own, but its parent's memory: nothing is stored.
        let result = apply(wanted);
        let before = read(&result).unwrap_or(0);
        return (result, visible_handler(before, action.handler.load(Ordering::Relaxed)));
    }
    let deferral = defer_handlers();
    let locked = lock();
    let previous = action.handler.load(Ordering::Relaxed);
    let given = if is_function(wanted) {
        // Stored first: the signal may arrive as soon as the kernel has the trampoline.
        action.handler.store(wanted, Ordering::Relaxed);
        trampoline_address()
    } else {
        wanted
    };
    let result = apply(given);
    let before = read(&result);
    if before.is_none() {
        action.handler.store(previous, Ordering::Relaxed);
    }
    refresh_flags(signal, action);
    if locked {
        ACTIONS_LOCK.store(0, Ordering::Release);
    }
    drop(deferral);
    (result, visible_handler(before.unwrap_or(0), previous))
}

/// Stores in advance the flags that `sigaction` is about to set.
pub fn expect_flags(signal: c_int, flags: c_int) {
    if let Some(action) = usize::try_from(signal).ok().and_then(|number| ACTIONS.get(number))
        && memory_ownership() == MemoryOwnership::Owner
    {
        action.flags.store(flags.cast_unsigned(), Ordering::Relaxed);
    }
}

/// The kernel's own form of a signal action, the same on all supported processors.
#[repr(C)]
#[derive(Default)]
struct KernelAction {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

/// `rt_sigaction(2)`, past the C library; 0 or `-errno`.
///
/// # Safety
/// `new` is null or an action that the program may have, `old` null or writable.
unsafe fn kernel_action(signal: c_int, new: *const KernelAction, old: *mut KernelAction) -> isize {
    let (number, mask_bytes) = (libc::SYS_rt_sigaction, size_of::<u64>());
    // SAFETY: the caller guarantees the pointers; the structure is the kernel's.
    unsafe { kernel::raw(number, signal as usize, new.addr(), old.addr(), mask_bytes, 0, 0) }
}

fn refresh_flags(signal: c_int, action: &Action) {
    let mut now = KernelAction::default();
    // SAFETY: a query into memory of the right layout.
    let asked = unsafe { kernel_action(signal, std::ptr::null(), &raw mut now) };
    if asked == 0 {
        action.flags.store(now.flags as u32, Ordering::Relaxed);
    }
}

/// Acquires the lock of [`ACTIONS`]. If it is not free in time, returns false and the caller
/// continues without it: its holder is a thread that was interrupted by a signal which cannot be
/// deferred.
fn lock() -> bool {
    for _ in 0..LOCK_ATTEMPTS_MAX {
        if ACTIONS_LOCK.swap(1, Ordering::Acquire) == 0 {
            return true;
        }
        std::hint::spin_loop();
    }
    false
}

/// In the child of a fork, where the thread that held the lock does not exist.
pub fn forked_child() {
    ACTIONS_LOCK.store(0, Ordering::Relaxed);
}

/// Installs the trampoline for handlers that were set before this library was loaded.
pub fn wrap_existing_handlers() {
    for (number, action) in ACTIONS.iter().enumerate().skip(1) {
        let Ok(signal) = c_int::try_from(number) else { continue };
        let mut now = KernelAction::default();
        // SAFETY: a query into memory of the right layout.
        let asked = unsafe { kernel_action(signal, std::ptr::null(), &raw mut now) };
        if asked != 0 || !is_function(now.handler) || now.handler == trampoline_address() {
            continue;
        }
        // glibc's own two (cancellation, setuid in all threads) are not changed.
        if signal == 32 || signal == 33 {
            continue;
        }
        action.handler.store(now.handler, Ordering::Relaxed);
        action.flags.store(now.flags as u32, Ordering::Relaxed);
        now.handler = trampoline_address();
        // SAFETY: the same action as before except for the function.
        unsafe { kernel_action(signal, &raw const now, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::signals::{sigaction, signal};

    static RUNS: AtomicU32 = AtomicU32::new(0);
    static VALUE: AtomicUsize = AtomicUsize::new(0);

    extern "C" fn count_run(_: c_int) {
        RUNS.fetch_add(1, Ordering::Relaxed);
    }

    extern "C" fn keep_value(_: c_int, info: *mut siginfo_t, _: *mut c_void) {
        // SAFETY: the kernel's information of a queued signal.
        VALUE.store(unsafe { (*info).si_value().sival_ptr.addr() }, Ordering::Relaxed);
    }

    fn install(number: c_int, handler: usize, flags: c_int) -> libc::sigaction {
        // SAFETY: all bits of the structures are plain values; both live on this stack.
        unsafe {
            let mut new: libc::sigaction = std::mem::zeroed();
            let mut old: libc::sigaction = std::mem::zeroed();
            new.sa_sigaction = handler;
            new.sa_flags = flags;
            assert_eq!(sigaction(number, &raw const new, &raw mut old), 0);
            old
        }
    }

    fn raise(number: c_int) {
        // SAFETY: the test has a handler for it; raise means this thread.
        assert_eq!(unsafe { libc::raise(number) }, 0);
    }

    #[test]
    fn handlers_are_counted_by_thread_and_by_their_restart_flag() {
        let number = libc::SIGRTMIN() + 3;
        let handler = count_run as *const () as usize;
        assert_eq!(install(number, handler, 0).sa_sigaction, libc::SIG_DFL);
        let (before, all_before) = (interrupt_count(), delivery_count());
        raise(number);
        assert_eq!((interrupt_count() - before, delivery_count() - all_before), (1, 1));
        let old = install(number, handler, SA_RESTART);
        assert_eq!(old.sa_sigaction, handler, "the program sees its own handler");
        raise(number);
        assert_eq!((interrupt_count() - before, delivery_count() - all_before), (1, 2));
        let other = std::thread::spawn(|| (interrupt_count(), delivery_count())).join();
        assert_eq!(other.ok(), Some((0, 0)));
        // SAFETY: the former handler is ours and may be called.
        assert_eq!(unsafe { signal(number, libc::SIG_IGN) }, handler);
    }

    #[test]
    fn deferred_signal_runs_once_after_the_last_deferral_with_its_info() {
        let number = libc::SIGRTMIN() + 4;
        install(number, keep_value as *const () as usize, SA_SIGINFO);
        let outer = defer_handlers();
        let inner = defer_handlers();
        let value = libc::sigval { sival_ptr: std::ptr::without_provenance_mut(77) };
        // SAFETY: this thread is the only one that the signal is sent to.
        assert_eq!(unsafe { libc::pthread_sigqueue(libc::pthread_self(), number, value) }, 0);
        drop(inner);
        assert_eq!(VALUE.load(Ordering::Relaxed), 0);
        let before = interrupt_count();
        drop(outer);
        assert_eq!(VALUE.load(Ordering::Relaxed), 77);
        assert_eq!(interrupt_count() - before, 1);
    }

    #[test]
    fn handler_cancels_a_sleep_that_is_about_to_begin() {
        let number = libc::SIGRTMIN() + 5;
        install(number, count_run as *const () as usize, 0);
        let timeout = sleep_timeout(Some(1_500_000_000));
        // SAFETY: this thread's own memory.
        assert_eq!(unsafe { ((*timeout).tv_sec, (*timeout).tv_nsec) }, (1, 500_000_000));
        raise(number);
        // SAFETY: this thread's own memory.
        assert_eq!(unsafe { ((*timeout).tv_sec, (*timeout).tv_nsec) }, (0, 0));
    }

    #[test]
    fn rejected_signals_change_nothing() {
        let handler = count_run as *const () as usize;
        for number in [0, -1, 65, 1000, libc::SIGKILL] {
            // SAFETY: the handler may be called.
            assert_eq!(unsafe { signal(number, handler) }, libc::SIG_ERR, "signal {number}");
            assert_eq!(kernel::errno(), libc::EINVAL);
        }
    }
}
