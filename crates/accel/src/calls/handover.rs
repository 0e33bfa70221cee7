//! Where a descriptor is handed to code that does not know shared memory: another process
//! (SCM_RIGHTS), the C library's own streams, io_uring, splice.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr;

use libc::{FILE, cmsghdr, msghdr};
use nm_ring::ledger::KernelReason;

use crate::next::{Next, next_functions};
use crate::{blocking, exec_substitutes, fallback, io_uring, kernel, multiplex, table};

/// Returns the socket of `fd`, if the library manages it, to the kernel.
fn return_to_kernel(fd: c_int, reason: KernelReason) {
    if let Some(socket) = table::get(fd) {
        fallback::move_to_kernel(socket, reason);
    }
}

/// Returns to the kernel the sockets whose descriptors a message carries to another process. False
/// if bytes would be lost: then the call fails with `ECONNRESET`.
///
/// `message` is null or what the program passes to sendmsg; the caller guarantees it.
pub fn before_sendmsg(message: *const msghdr) -> bool {
    // SAFETY: the program's own header, if any.
    let Some(message) = (unsafe { message.as_ref() }) else { return true };
    let (start, bytes) = (message.msg_control.cast::<u8>(), message.msg_controllen);
    if start.is_null() {
        return true;
    }
    let mut is_complete = true;
    let header_bytes = size_of::<cmsghdr>();
    let mut at = 0;
    while bytes.saturating_sub(at) >= header_bytes {
        // SAFETY: the header lies within the control bytes; it need not be aligned.
        let header = unsafe { start.add(at).cast::<cmsghdr>().read_unaligned() };
        let length = header.cmsg_len;
        if length < header_bytes || length > bytes - at {
            return is_complete;
        }
        if header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_RIGHTS {
            for place in (at + header_bytes..at + length).step_by(size_of::<c_int>()) {
                if place + size_of::<c_int>() <= at + length {
                    // SAFETY: within the control bytes.
                    let fd = unsafe { start.add(place).cast::<c_int>().read_unaligned() };
                    return_to_kernel(fd, KernelReason::Passed);
                    multiplex::descriptor_passed(fd);
                    is_complete &= !exec_substitutes::must_not_be_passed(fd);
                }
            }
        }
        at += length.next_multiple_of(size_of::<usize>());
    }
    is_complete
}

type FdopenFn = unsafe extern "C" fn(c_int, *const c_char) -> *mut FILE;
type AnyFn = unsafe extern "C" fn();
type AddDup2Fn = unsafe extern "C" fn(*mut libc::posix_spawn_file_actions_t, c_int, c_int) -> c_int;

next_functions! {
    FDOPEN: FdopenFn = c"fdopen";
    ADD_DUP2: AddDup2Fn = c"posix_spawn_file_actions_adddup2";
    DPRINTF: AnyFn = c"dprintf";
    VDPRINTF: AnyFn = c"vdprintf";
    DPRINTF_CHECKED: AnyFn = c"__dprintf_chk";
    VDPRINTF_CHECKED: AnyFn = c"__vdprintf_chk";
}

/// Looks up the C library's functions.
pub fn prepare() {
    prepare_functions();
}

/// `FILE *fdopen(int fd, const char *mode)`: the C library reads and writes it past us
///
/// # Safety
/// As fdopen(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    return_to_kernel(fd, KernelReason::Stdio);
    let Some(real) = FDOPEN.get() else {
        kernel::set_errno(libc::ENOSYS);
        return ptr::null_mut();
    };
    // SAFETY: the mode is a string, which the caller guarantees.
    unsafe { real(fd, mode) }
}

/// Returns `fd` to the kernel, and gives the address of the C library's function.
fn before_print(fd: c_int, real: &Next<AnyFn>) -> *const c_void {
    return_to_kernel(fd, KernelReason::Stdio);
    real.get().map_or(ptr::null(), |function| function as *const c_void)
}

extern "C" fn before_dprintf(fd: c_int) -> *const c_void {
    before_print(fd, &DPRINTF)
}

extern "C" fn before_vdprintf(fd: c_int) -> *const c_void {
    before_print(fd, &VDPRINTF)
}

extern "C" fn before_dprintf_checked(fd: c_int) -> *const c_void {
    before_print(fd, &DPRINTF_CHECKED)
}

extern "C" fn before_vdprintf_checked(fd: c_int) -> *const c_void {
    before_print(fd, &VDPRINTF_CHECKED)
}

/// Functions whose arguments (variadic, floating-point) are passed on unchanged: all registers that
/// may hold some are saved over the call of `$before`, which returns the address to jump to.
macro_rules! pass_through {
    ($($(#[$doc:meta])* $name:ident after $before:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As dprintf(3).
        #[cfg(target_arch = "x86_64")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(fd: c_int) -> c_int {
            core::arch::naked_asm!(
                "push rdi",
                "push rsi",
                "push rdx",
                "push rcx",
                "push r8",
                "push r9",
                "push rax",
                "sub rsp, 128",
                "movaps [rsp], xmm0",
                "movaps [rsp + 16], xmm1",
                "movaps [rsp + 32], xmm2",
                "movaps [rsp + 48], xmm3",
                "movaps [rsp + 64], xmm4",
                "movaps [rsp + 80], xmm5",
                "movaps [rsp + 96], xmm6",
                "movaps [rsp + 112], xmm7",
                "call {before}",
                "mov r11, rax",
                "movaps xmm0, [rsp]",
                "movaps xmm1, [rsp + 16]",
                "movaps xmm2, [rsp + 32]",
                "movaps xmm3, [rsp + 48]",
                "movaps xmm4, [rsp + 64]",
                "movaps xmm5, [rsp + 80]",
                "movaps xmm6, [rsp + 96]",
                "movaps xmm7, [rsp + 112]",
                "add rsp, 128",
                "pop rax",
                "pop r9",
                "pop r8",
                "pop rcx",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "jmp r11",
                before = sym $before,
            )
        }

        $(#[$doc])*
        ///
        /// # Safety
        /// As dprintf(3).
        #[cfg(target_arch = "aarch64")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(fd: c_int) -> c_int {
            core::arch::naked_asm!(
                "sub sp, sp, #208",
                "stp x0, x1, [sp]",
                "stp x2, x3, [sp, #16]",
                "stp x4, x5, [sp, #32]",
                "stp x6, x7, [sp, #48]",
                "str x30, [sp, #64]",
                "stp q0, q1, [sp, #80]",
                "stp q2, q3, [sp, #112]",
                "stp q4, q5, [sp, #144]",
                "stp q6, q7, [sp, #176]",
                "bl {before}",
                "mov x16, x0",
                "ldp x0, x1, [sp]",
                "ldp x2, x3, [sp, #16]",
                "ldp x4, x5, [sp, #32]",
                "ldp x6, x7, [sp, #48]",
                "ldr x30, [sp, #64]",
                "ldp q0, q1, [sp, #80]",
                "ldp q2, q3, [sp, #112]",
                "ldp q4, q5, [sp, #144]",
                "ldp q6, q7, [sp, #176]",
                "add sp, sp, #208",
                "br x16",
                before = sym $before,
            )
        }
    )*};
}

pass_through! {
    /// `int dprintf(int fd, const char *format, ...)`
    dprintf after before_dprintf;
    /// `int vdprintf(int fd, const char *format, va_list)`
    vdprintf after before_vdprintf;
    /// `int __dprintf_chk(int fd, int flag, const char *format, ...)`
    __dprintf_chk after before_dprintf_checked;
    /// `int __vdprintf_chk(int fd, int flag, const char *format, va_list)`
    __vdprintf_chk after before_vdprintf_checked;
}

/// `ssize_t splice(int in, off64_t *, int out, off64_t *, size_t bytes, unsigned flags)`: pages
/// move inside the kernel, so the bytes must be there. (tee and vmsplice take pipes only.)
///
/// # Safety
/// As splice(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn splice(
    source: c_int,
    source_offset: *mut i64,
    target: c_int,
    target_offset: *mut i64,
    bytes: usize,
    flags: c_uint,
) -> isize {
    return_to_kernel(source, KernelReason::Splice);
    return_to_kernel(target, KernelReason::Splice);
    // SAFETY: the offsets are null or live, which the caller guarantees.
    unsafe { blocking::splice(source, source_offset, target, target_offset, bytes, flags) }
}

/// `int posix_spawn_file_actions_adddup2(posix_spawn_file_actions_t *, int fd, int copy)`: the copy
/// is made for the program that is started
///
/// # Safety
/// As posix_spawn_file_actions_adddup2(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn posix_spawn_file_actions_adddup2(
    actions: *mut libc::posix_spawn_file_actions_t,
    fd: c_int,
    copy: c_int,
) -> c_int {
    return_to_kernel(fd, KernelReason::Exec);
    let Some(real) = ADD_DUP2.get() else { return libc::ENOSYS };
    // SAFETY: the actions were initialised, which the caller guarantees.
    unsafe { real(actions, fd, copy) }
}

/// liburing's own functions, which make the system call by an inlined instruction. Where liburing
/// is not loaded nothing calls these.
macro_rules! io_uring_makers {
    ($($name:ident = $text:literal ($($argument:ident),*);)*) => {$(
        /// liburing's function of this name.
        ///
        /// # Safety
        /// As liburing's.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($($argument: usize),*) -> c_int {
            type Function = unsafe extern "C" fn($(io_uring_makers!(@word $argument)),*) -> c_int;
            // SAFETY: all arguments are words or smaller, passed on unchanged.
            static REAL: Next<Function> = unsafe { Next::new($text) };
            if !io_uring::before_ring() {
                return -libc::EPERM;
            }
            let Some(real) = REAL.get() else { return -libc::ENOSYS };
            // SAFETY: the words are the arguments that liburing declares, which the caller
            // guarantees.
            unsafe { real($($argument),*) }
        }
    )*};
    (@word $argument:ident) => { usize };
}

io_uring_makers! {
    io_uring_queue_init = c"io_uring_queue_init" (entries, ring, flags);
    io_uring_queue_init_params = c"io_uring_queue_init_params" (entries, ring, parameters);
    io_uring_queue_init_mem = c"io_uring_queue_init_mem" (entries, ring, parameters, memory, bytes);
    io_uring_queue_init_try_nosqarr = c"io_uring_queue_init_try_nosqarr" (entries, ring, flags);
    io_uring_setup = c"io_uring_setup" (entries, parameters);
}
