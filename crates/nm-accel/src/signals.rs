//! Handlers of the program, called through a trampoline of ours that counts them.
//!
//! A call that spins in user space must come back with EINTR as the kernel's would, so it has to
//! learn that a handler ran in its thread. Three things are kept per thread: how many handlers
//! ran ([`count`], [`count_all`]), the time-out of a sleep that is about to begin
//! ([`sleep_timeout`]), and the signals that were put off while locks were held ([`defer`]).

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::{MaybeUninit, transmute};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering, compiler_fence};

use libc::{SA_RESETHAND, SA_RESTART, SA_SIGINFO, siginfo_t, timespec};

use crate::calls::processes::{MemoryOwnership, memory_ownership};
use crate::kernel;

/// Signal numbers are 1..=64.
const SIGNALS: usize = 65;
/// Signals that one stretch under locks can put off; further ones run at once.
const DEFERRED_MAX: usize = 8;
/// Turns of the wait for the lock of [`ACTIONS`]; it is held for one system call.
const LOCK_ATTEMPTS_MAX: u32 = 1 << 20;

/// What the program asked for, for one signal.
struct Action {
    /// The program's handler while the kernel calls the trampoline.
    handler: AtomicUsize,
    /// SA_* as the kernel has them.
    flags: AtomicU32,
}

static ACTIONS: [Action; SIGNALS] =
    [const { Action { handler: AtomicUsize::new(0), flags: AtomicU32::new(0) } }; SIGNALS];
/// 1 while a thread changes an entry of [`ACTIONS`].
static ACTIONS_LOCK: AtomicU32 = AtomicU32::new(0);

/// A signal put off, to be queued again.
#[derive(Clone, Copy)]
struct DeferredSignal {
    signal: c_int,
    /// 1 if `info` was filled in by the kernel.
    has_info: bool,
    info: MaybeUninit<siginfo_t>,
}

/// What a thread's own handlers and calls tell each other. Only its thread touches it; the atomics
/// are there because a handler may run between any two instructions.
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
    // Nothing in it needs a destructor and all is constant, so it lies in the static block that
    // the loader gives to each thread: touching it in a handler allocates nothing.
    static THREAD_SIGNALS: ThreadSignals = const {
        ThreadSignals {
            interrupts: AtomicU32::new(0),
            deliveries: AtomicU32::new(0),
            deferrals: AtomicU32::new(0),
            deferred_count: AtomicU32::new(0),
            deferred: UnsafeCell::new(
                [DeferredSignal { signal: 0, has_info: false, info: MaybeUninit::uninit() }; DEFERRED_MAX],
            ),
            timeout: UnsafeCell::new(timespec { tv_sec: 0, tv_nsec: 0 }),
        }
    };
}

/// Handlers without SA_RESTART that ran in this thread: a change during a call means EINTR.
pub fn interrupt_count() -> u32 {
    THREAD_SIGNALS.with(|thread| thread.interrupts.load(Ordering::Relaxed))
}

/// All handlers that ran in this thread: a change means EINTR for poll, select, epoll_wait, and for
/// recv and send with a time-out, which SA_RESTART does not restart.
pub fn delivery_count() -> u32 {
    THREAD_SIGNALS.with(|thread| thread.deliveries.load(Ordering::Relaxed))
}

/// The time-out for a ppoll or pselect6 of this thread, in memory that a handler sets to zero.
///
/// A handler that runs after the last look at [`count`] but before the system call would otherwise
/// be slept over. So: take this, look at the count once more, then sleep with it. The sleep may end
/// early; its result 0 says nothing about the clock. None means about 68 years.
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
        // because a handler may change it behind the compiler's back.
        unsafe { timeout.write_volatile(value) };
        compiler_fence(Ordering::SeqCst);
        timeout
    })
}

/// While it lives, handlers of this thread are put off; they run when the last one is dropped.
///
/// Held over every stretch that holds a lock of a pipe or of this process: a handler may send on
/// the same socket, or leave by siglongjmp and never come back to unlock. Signals that an
/// instruction caused (SIGSEGV and the like) and one-shot handlers are not put off.
pub struct Deferral {
    // A deferral belongs to its thread.
    thread: std::marker::PhantomData<*const ()>,
}

/// Begins a [`Deferral`].
pub fn defer_handlers() -> Deferral {
    THREAD_SIGNALS.with(|thread| {
        let depth = thread.deferrals.load(Ordering::Relaxed);
        thread.deferrals.store(depth + 1, Ordering::Relaxed);
    });
    compiler_fence(Ordering::SeqCst);
    Deferral { thread: std::marker::PhantomData }
}

impl Drop for Deferral {
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        THREAD_SIGNALS.with(|thread| {
            let depth = thread.deferrals.load(Ordering::Relaxed);
            if depth == 1 && thread.deferred_count.load(Ordering::Relaxed) != 0 {
                requeue_deferred(thread);
            } else {
                thread.deferrals.store(depth - 1, Ordering::Relaxed);
                compiler_fence(Ordering::SeqCst);
                // One that came between the look and the store.
                if depth == 1 && thread.deferred_count.load(Ordering::Relaxed) != 0 {
                    thread.deferrals.store(1, Ordering::Relaxed);
                    requeue_deferred(thread);
                }
            }
        });
    }
}

/// Ends the deferral and queues again what was put off; the kernel then delivers it properly, with
/// the mask, stack and context that the program asked for.
#[cold]
fn requeue_deferred(thread: &ThreadSignals) {
    loop {
        let count = thread.deferred_count.load(Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        // SAFETY: only this thread's handlers write it, and only beyond `count`, which the exchange
        // below checks again; the copy has no invalid values (`info` is MaybeUninit).
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
    // SAFETY: takes nothing, cannot fail.
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

/// What the kernel calls for every handler of the program.
///
/// "C-unwind": a handler may throw or be left by a cancellation. There is nothing here to drop.
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
    // SAFETY: the program gave this function for this signal; a handler of one argument leaves the
    // two others alone, which the C calling conventions of Linux allow.
    let handler: unsafe extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void) =
        unsafe { transmute::<usize, _>(handler) };
    // SAFETY: the arguments are those of the kernel.
    unsafe { handler(signal, info, context) };
    // The handler may have slept itself; the call that it interrupted must not now.
    THREAD_SIGNALS.with(cancel_sleep);
}

fn cancel_sleep(thread: &ThreadSignals) {
    // SAFETY: this thread's own memory, see `sleep_timeout`.
    unsafe { thread.timeout.get().write_volatile(timespec { tv_sec: 0, tv_nsec: 0 }) };
    compiler_fence(Ordering::SeqCst);
}

/// Keeps the signal for the end of the deferral; false if it is to be handled now.
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
            // SAFETY: the kernel lays the information on the stack (on x86-64 always).
            kept.info = MaybeUninit::new(unsafe { *info });
        }
        // Taken before it is filled, so that a handler that interrupts this one takes the next.
        thread.deferred_count.store(place + 1, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        // SAFETY: place < PUT_OFF_MAX; this thread's own memory.
        unsafe {
            thread.deferred.get().cast::<DeferredSignal>().add(place as usize).write_volatile(kept)
        };
        compiler_fence(Ordering::SeqCst);
        true
    })
}

/// Neither SIG_DFL, SIG_IGN, SIG_HOLD nor SIG_ERR.
fn is_function(handler: usize) -> bool {
    handler > 2 && handler != libc::SIG_ERR
}

/// The address that the kernel has for every handler of the program.
fn trampoline_address() -> usize {
    trampoline as *const () as usize
}

/// What the program sees where the kernel would show `handler`.
fn visible_handler(handler: usize, known: usize) -> usize {
    if handler == trampoline_address() { known } else { handler }
}

/// Runs `apply`, which gives the kernel a handler for `signal`, with the trampoline in the place of
/// the program's function; `read` says what the kernel had before, or None if `apply` failed.
///
/// `handler` is None if only flags may change. Answers what `apply` did, and the handler that was
/// there before as the program knows it.
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
        // A vfork child has handlers of its own, but its parent's memory: nothing is noted.
        let result = apply(wanted);
        let before = read(&result).unwrap_or(0);
        return (result, visible_handler(before, action.handler.load(Ordering::Relaxed)));
    }
    let deferral = defer_handlers();
    let locked = lock();
    let previous = action.handler.load(Ordering::Relaxed);
    let given = if is_function(wanted) {
        // Noted first: the signal may come as soon as the kernel has the trampoline.
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

/// Says beforehand which flags `sigaction` is about to give.
pub fn expect_flags(signal: c_int, flags: c_int) {
    if let Some(action) = usize::try_from(signal).ok().and_then(|number| ACTIONS.get(number))
        && memory_ownership() == MemoryOwnership::Owner
    {
        action.flags.store(flags.cast_unsigned(), Ordering::Relaxed);
    }
}

/// The kernel's own form of a signal action, the same on the processors we know.
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
    // SAFETY: the caller's promise; the structure is the kernel's.
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

/// True if the lock was free in time; else the caller goes on without it: whoever holds it is a
/// thread that a signal which cannot be put off took away from it.
fn lock() -> bool {
    for _ in 0..LOCK_ATTEMPTS_MAX {
        if ACTIONS_LOCK.swap(1, Ordering::Acquire) == 0 {
            return true;
        }
        std::hint::spin_loop();
    }
    false
}

/// In a forked child: the thread that held the lock is not there.
pub fn forked_child() {
    ACTIONS_LOCK.store(0, Ordering::Relaxed);
}

/// Puts the trampoline in front of handlers that were installed behind our back before.
pub fn wrap_existing_handlers() {
    for (number, action) in ACTIONS.iter().enumerate().skip(1) {
        let Ok(signal) = c_int::try_from(number) else { continue };
        let mut now = KernelAction::default();
        // SAFETY: a query into memory of the right layout.
        let asked = unsafe { kernel_action(signal, std::ptr::null(), &raw mut now) };
        if asked != 0 || !is_function(now.handler) || now.handler == trampoline_address() {
            continue;
        }
        // glibc's own two (cancellation, setuid in all threads) stay as they are.
        if signal == 32 || signal == 33 {
            continue;
        }
        action.handler.store(now.handler, Ordering::Relaxed);
        action.flags.store(now.flags as u32, Ordering::Relaxed);
        now.handler = trampoline_address();
        // SAFETY: the same action as before but for the function.
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
        // SAFETY: the handler before is ours and fit to be called.
        assert_eq!(unsafe { signal(number, libc::SIG_IGN) }, handler);
    }

    #[test]
    fn a_signal_put_off_runs_once_after_the_last_deferral_with_its_information() {
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
    fn a_handler_ends_the_sleep_that_is_about_to_begin() {
        let number = libc::SIGRTMIN() + 5;
        install(number, count_run as *const () as usize, 0);
        let timeout = sleep_timeout(Some(1_500_000_000));
        // SAFETY: this thread's own memory.
        assert_eq!(unsafe { ((*timeout).tv_sec, (*timeout).tv_nsec) }, (1, 500_000_000));
        raise(number);
        // SAFETY: as above.
        assert_eq!(unsafe { ((*timeout).tv_sec, (*timeout).tv_nsec) }, (0, 0));
    }

    #[test]
    fn what_the_kernel_refuses_changes_nothing() {
        let handler = count_run as *const () as usize;
        for number in [0, -1, 65, 1000, libc::SIGKILL] {
            // SAFETY: the handler is fit to be called.
            assert_eq!(unsafe { signal(number, handler) }, libc::SIG_ERR, "signal {number}");
            assert_eq!(kernel::errno(), libc::EINVAL);
        }
    }
}
