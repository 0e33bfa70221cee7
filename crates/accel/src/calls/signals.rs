//! sigaction, signal and their variants: the kernel gets the trampoline of [`crate::signals`], the
//! program always sees its own handlers.

use std::ffi::c_int;

use libc::{SIG_ERR, sighandler_t};

use crate::kernel;
use crate::next::{Next, next_functions};
use crate::signals::{exchange_handler, expect_flags};

type SigactionFn =
    unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
type SignalFn = unsafe extern "C" fn(c_int, sighandler_t) -> sighandler_t;
type SiginterruptFn = unsafe extern "C" fn(c_int, c_int) -> c_int;

next_functions! {
    SIGACTION: SigactionFn = c"sigaction";
    SIGNAL: SignalFn = c"signal";
    SYSV_SIGNAL: SignalFn = c"__sysv_signal";
    SIGSET: SignalFn = c"sigset";
    SIGINTERRUPT: SiginterruptFn = c"siginterrupt";
}

/// Looks up the C library's functions.
pub fn prepare() {
    prepare_functions();
}

/// `int sigaction(int signal, const struct sigaction *new, struct sigaction *old)`
///
/// # Safety
/// As sigaction(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    let Some(real) = SIGACTION.get() else { return kernel::fail(libc::ENOSYS) as c_int };
    // SAFETY: the caller's pointers are null or valid; all bits of the structure are plain values.
    let (mut given, mut before) = unsafe {
        (
            if new.is_null() { std::mem::zeroed() } else { *new },
            std::mem::zeroed::<libc::sigaction>(),
        )
    };
    let handler = (!new.is_null()).then_some(given.sa_sigaction);
    if handler.is_some() {
        expect_flags(signal, given.sa_flags);
    }
    let before_address = &raw mut before;
    let (result, shown) = exchange_handler(
        signal,
        handler,
        |address| {
            given.sa_sigaction = address;
            let given = if new.is_null() { std::ptr::null() } else { &raw const given };
            // SAFETY: both point to structures on this stack, or null for a query.
            unsafe { real(signal, given, before_address) }
        },
        // SAFETY: filled in by the call if it succeeded.
        |result| (*result == 0).then(|| unsafe { (*before_address).sa_sigaction }),
    );
    if result == 0 && !old.is_null() {
        before.sa_sigaction = shown;
        // SAFETY: the program's own pointer.
        unsafe { *old = before };
    }
    result
}

/// One of the functions that take a handler and return the former one.
fn install(real: &Next<SignalFn>, signal: c_int, handler: sighandler_t) -> sighandler_t {
    let Some(real) = real.get() else {
        kernel::set_errno(libc::ENOSYS);
        return SIG_ERR;
    };
    let (result, shown) = exchange_handler(
        signal,
        Some(handler),
        // SAFETY: the trampoline, or a value that the caller may pass.
        |address| unsafe { real(signal, address) },
        |before| (*before != SIG_ERR).then_some(*before),
    );
    if result == SIG_ERR { SIG_ERR } else { shown }
}

/// `sighandler_t signal(int signal, sighandler_t handler)`, with BSD's semantics
///
/// # Safety
/// `handler` must be fit to be called.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    install(&SIGNAL, signal, handler)
}

/// `sighandler_t bsd_signal(int signal, sighandler_t handler)`
///
/// # Safety
/// `handler` must be fit to be called.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn bsd_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    install(&SIGNAL, signal, handler)
}

/// `sighandler_t ssignal(int signal, sighandler_t handler)`
///
/// # Safety
/// `handler` must be fit to be called.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn ssignal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    install(&SIGNAL, signal, handler)
}

/// `sighandler_t sysv_signal(int signal, sighandler_t handler)`: one delivery, no restart
///
/// # Safety
/// `handler` must be fit to be called.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    install(&SYSV_SIGNAL, signal, handler)
}

/// The name of `signal` in programs built for System V.
///
/// # Safety
/// `handler` must be fit to be called.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    install(&SYSV_SIGNAL, signal, handler)
}

/// `sighandler_t sigset(int signal, sighandler_t handler)`; SIG_HOLD changes the mask only
///
/// # Safety
/// `handler` must be fit to be called.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sigset(signal: c_int, handler: sighandler_t) -> sighandler_t {
    install(&SIGSET, signal, handler)
}

/// `int siginterrupt(int signal, int flag)`: switches SA_RESTART
///
/// # Safety
/// None beyond the C call's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn siginterrupt(signal: c_int, flag: c_int) -> c_int {
    let Some(real) = SIGINTERRUPT.get() else { return kernel::fail(libc::ENOSYS) as c_int };
    let (result, _) = exchange_handler(
        signal,
        None,
        // SAFETY: two numbers.
        |_| unsafe { real(signal, flag) },
        |result| (*result == 0).then_some(0),
    );
    result
}
