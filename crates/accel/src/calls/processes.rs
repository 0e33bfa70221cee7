//! fork, exec, spawn and exit. Which process owns the table, and which processes hold a socket?
//! What must return to the kernel before a program without this library gets the descriptor?
//!
//! The child of vfork runs on our memory, so every function that would change state of this process
//! calls [`memory_ownership`] first. A wrapper of vfork cannot return twice, so it only notes the
//! call and jumps to libc's function; so does that of clone. A child of clone with a copy of the
//! memory is detected by [`memory_ownership`], one that shares it is a borrower.

use std::ffi::{c_char, c_int};
use std::ptr;
use std::sync::atomic::Ordering;

use libc::{FILE, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};

use crate::children::{self, Start, StartKind};
use crate::environment::Strings;
use crate::exec_substitutes::Substitutes;
use crate::next::next_functions;
use crate::process::{MemoryOwnership, memory_ownership};
use crate::{
    blocking, contention, environment, inherited, inheritors, kernel, multiplex, process,
    rendezvous, system_call_filter, table,
};

/// Prepares everything that is needed before the program's first call: fork handlers, the fork
/// mark, and functions of the C library that a signal handler or the child of a fork may need.
pub fn prepare() {
    process::prepare(adopt_copy);
    // The C library runs the handlers for fork, daemon and forkpty alike. Fails only without
    // memory. SAFETY: three functions without arguments and results, valid as long as the process.
    unsafe {
        libc::pthread_atfork(Some(before_handler), Some(parent_handler), Some(child_handler))
    };
    prepare_functions();
    blocking::prepare();
    crate::signals::wrap_existing_handlers();
}

extern "C" fn before_handler() {
    before_fork();
}

extern "C" fn parent_handler() {
    after_fork_in_parent();
}

/// Called in the parent once the memory is copied.
fn after_fork_in_parent() {
    if process::is_restricted() {
        return;
    }
    multiplex::after_fork_in_parent();
    rendezvous::after_fork_in_parent();
}

/// Called before the memory is copied: prevents a rendezvous meanwhile, and counts one more process
/// that holds each socket.
pub fn before_fork() {
    if process::is_restricted() {
        return;
    }
    rendezvous::before_fork();
    multiplex::before_fork();
    hold_sockets();
}

extern "C" fn child_handler() {
    after_fork_in_child();
}

/// Counts one more process that holds each socket. Before the fork: the parent may try a rendezvous
/// right after it.
pub fn hold_sockets() {
    table::for_each_socket(|socket| socket.record().hold());
}

/// Counts one process less that holds each socket. The records stay open, because an exec or a fork
/// may fail.
pub fn release_sockets() {
    if process::is_restricted() {
        return;
    }
    table::for_each_socket(|socket| {
        socket.record().holders.fetch_sub(1, Ordering::Relaxed);
    });
}

/// In the child of a fork: makes it the owner of table, sets and locks.
pub fn after_fork_in_child() {
    if process::is_restricted() {
        return;
    }
    process::adopt();
    table::forked_child();
    rendezvous::forked_child();
    multiplex::forked_child();
    crate::signals::forked_child();
    contention::forked_child();
    children::forked_child();
    inherited::forked_child();
}

/// In a copy of the process that was made without fork handlers.
fn adopt_copy() {
    hold_sockets();
    after_fork_in_child();
}

/// After a fork that ran no handlers, in both processes: the child becomes the owner, and a failed
/// fork is no longer counted.
pub fn after_bare_fork(pid: i64) {
    if pid == 0 {
        after_fork_in_child();
        return;
    }
    if pid < 0 {
        release_sockets();
    }
    after_fork_in_parent();
}

/// vfork and clone, which must run on their caller's own stack frame: each notes the call, then
/// jumps to libc's function.
macro_rules! jumps {
    ($($(#[$doc:meta])* $name:ident -> $note:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As libc's function of this name, whose arguments are in registers.
        #[cfg(target_arch = "x86_64")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            // The flags of clone are its third argument.
            core::arch::naked_asm!(
                "push rdi",
                "push rsi",
                "push rdx",
                "push rcx",
                "push r8",
                "push r9",
                "sub rsp, 8",
                "mov rdi, rdx",
                "call {note}",
                "add rsp, 8",
                "pop r9",
                "pop r8",
                "pop rcx",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "jmp rax",
                note = sym $note,
            )
        }

        $(#[$doc])*
        ///
        /// # Safety
        /// As libc's function of this name, whose arguments are in registers.
        #[cfg(target_arch = "aarch64")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            // The flags of clone are its third argument.
            core::arch::naked_asm!(
                "stp x29, x30, [sp, #-80]!",
                "stp x0, x1, [sp, #16]",
                "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]",
                "str x6, [sp, #64]",
                "mov x0, x2",
                "bl {note}",
                "mov x16, x0",
                "ldp x0, x1, [sp, #16]",
                "ldp x2, x3, [sp, #32]",
                "ldp x4, x5, [sp, #48]",
                "ldr x6, [sp, #64]",
                "ldp x29, x30, [sp], #80",
                "br x16",
                note = sym $note,
            )
        }
    )*};
}

jumps! {
    /// `pid_t vfork(void)`
    vfork -> before_vfork;
    /// glibc's second name of [`vfork`].
    __vfork -> before_vfork;
    /// `int clone(int (*run)(void *), void *stack, int flags, void *argument, ...)`
    clone -> before_clone;
    /// glibc's second name of [`clone`].
    __clone -> before_clone;
}

/// Notes a vfork; returns the function to jump to.
extern "C" fn before_vfork() -> usize {
    process::before_vfork();
    VFORK.get().map_or(not_supported as *const () as usize, |real| real as usize)
}

/// Notes a clone with these flags; returns the function to jump to.
extern "C" fn before_clone(flags: c_int) -> usize {
    note_clone(flags as usize);
    CLONE.get().map_or(not_supported as *const () as usize, |real| real as usize)
}

/// Before a clone with these flags: notes a thread, and a process that runs on the memory of this
/// one. Not for vfork, whose child runs instead of its parent.
pub fn note_clone(flags: usize) {
    let [memory, thread] = [libc::CLONE_VM, libc::CLONE_THREAD].map(|flag| flag as usize);
    if flags & memory != 0 && flags & libc::CLONE_VFORK as usize == 0 {
        process::before_memory_is_shared();
    }
    if flags & memory != 0 && flags & thread == 0 {
        process::before_sharing_clone();
    }
}

type ForkFn = unsafe extern "C" fn() -> pid_t;
type ExecEnvFn = unsafe extern "C" fn(*const c_char, Strings, Strings) -> c_int;
type FexecveFn = unsafe extern "C" fn(c_int, Strings, Strings) -> c_int;
type SpawnFn = unsafe extern "C" fn(
    *mut pid_t,
    *const c_char,
    *const posix_spawn_file_actions_t,
    *const posix_spawnattr_t,
    Strings,
    Strings,
) -> c_int;
type PrctlFn = unsafe extern "C" fn(c_int, usize, usize, usize, usize) -> c_int;
type PopenFn = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut FILE;

next_functions! {
    FORK: ForkFn = c"fork";
    FORK_BARE: ForkFn = c"_Fork";
    VFORK: ForkFn = c"vfork";
    CLONE: ForkFn = c"clone";
    EXECVPE: ExecEnvFn = c"execvpe";
    FEXECVE: FexecveFn = c"fexecve";
    POSIX_SPAWN: SpawnFn = c"posix_spawn";
    POSIX_SPAWNP: SpawnFn = c"posix_spawnp";
    POPEN: PopenFn = c"popen";
    PRCTL: PrctlFn = c"prctl";
}

/// The result of a function that the C library does not have.
extern "C" fn not_supported() -> c_int {
    kernel::fail(libc::ENOSYS) as c_int
}

/// `pid_t fork(void)`
///
/// # Safety
/// As fork(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fork() -> pid_t {
    let Some(real) = FORK.get() else { return not_supported() };
    // SAFETY: as fork(2); the handlers of `prepare` count the sockets' holders.
    let pid = unsafe { real() };
    if pid < 0 && process::is_prepared() {
        release_sockets();
    }
    pid
}

/// `pid_t _Fork(void)`: a fork that runs no handlers
///
/// # Safety
/// As fork(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
#[allow(non_snake_case)]
pub unsafe extern "C" fn _Fork() -> pid_t {
    let Some(real) = FORK_BARE.get() else { return not_supported() };
    before_fork();
    // SAFETY: the child adopts its copy of the memory below, before anything else runs in it.
    let pid = unsafe { real() };
    after_bare_fork(i64::from(pid));
    pid
}

/// Runs an exec, which returns only if it failed. The process releases its sockets first: those
/// that it shares with its parent may then rendezvous.
pub fn run_exec(exec: impl FnOnce() -> c_int) -> c_int {
    let mut substitutes = Substitutes::new();
    let start = Start::begin(StartKind::Exec, |fd, socket| substitutes.replace(fd, socket));
    let owner = memory_ownership() == MemoryOwnership::Owner;
    if owner {
        multiplex::before_exec();
        release_sockets();
    }
    let result = exec();
    let errno = kernel::errno();
    drop(start);
    substitutes.undo();
    kernel::set_errno(errno);
    if owner {
        hold_sockets();
        multiplex::exec_failed();
    }
    result
}

/// Becomes the program, with this environment.
///
/// # Safety
/// As execve(2).
unsafe fn exec(path: *const c_char, arguments: Strings, environment: Strings) -> c_int {
    let (path, arguments, environment) = (path.addr(), arguments.addr(), environment.addr());
    run_exec(|| {
        // SAFETY: path and lists are those of execve(2), which the caller guarantees.
        unsafe { kernel::call(libc::SYS_execve, path, arguments, environment, 0, 0, 0) as c_int }
    })
}

/// `int execve(const char *path, char *const arguments[], char *const environment[])`
///
/// # Safety
/// As execve(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn execve(
    path: *const c_char,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    // SAFETY: path and lists are those of execve(2), which the caller guarantees.
    unsafe {
        environment::with((libc::AT_FDCWD, path, 0), environment, |it| exec(path, arguments, it))
    }
}

/// `int execveat(int folder, const char *path, char *const[], char *const[], int flags)`
///
/// # Safety
/// As execveat(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn execveat(
    folder: c_int,
    path: *const c_char,
    arguments: Strings,
    environment: Strings,
    flags: c_int,
) -> c_int {
    // SAFETY: path and lists are those of execveat(2), which the caller guarantees.
    unsafe {
        environment::with((folder, path, flags), environment, |environment| {
            let (path, arguments, environment) =
                (path.addr(), arguments.addr(), environment.addr());
            let (folder, flags, number) = (folder as usize, flags as usize, libc::SYS_execveat);
            run_exec(|| {
                kernel::call(number, folder, path, arguments, environment, flags, 0) as c_int
            })
        })
    }
}

/// `int execv(const char *path, char *const arguments[])`
///
/// # Safety
/// As execv(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn execv(path: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: `path` and the list are those of execv(3), which the caller guarantees.
    unsafe { execve(path, arguments, environment::of_process()) }
}

/// `int execvp(const char *file, char *const arguments[])`
///
/// # Safety
/// As execvp(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn execvp(file: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: `file` and the list are those of execvp(3), which the caller guarantees.
    unsafe { execvpe(file, arguments, environment::of_process()) }
}

/// `int execvpe(const char *file, char *const arguments[], char *const environment[])`
///
/// # Safety
/// As execvpe(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn execvpe(
    file: *const c_char,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    let Some(real) = EXECVPE.get() else { return not_supported() };
    // SAFETY: `file` and both lists are those of execvpe(3), which the caller guarantees.
    unsafe {
        environment::with_searched(file, environment, |it| run_exec(|| real(file, arguments, it)))
    }
}

/// `int fexecve(int fd, char *const arguments[], char *const environment[])`
///
/// # Safety
/// As fexecve(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fexecve(fd: c_int, arguments: Strings, environment: Strings) -> c_int {
    let Some(real) = FEXECVE.get() else { return not_supported() };
    // SAFETY: both lists are those of fexecve(3), which the caller guarantees.
    unsafe {
        environment::with((fd, c"".as_ptr(), libc::AT_EMPTY_PATH), environment, |it| {
            run_exec(|| real(fd, arguments, it))
        })
    }
}

/// The argument list of execl and execlp, as one array.
unsafe extern "C" fn execl_listed(path: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: the list that the caller of execl made.
    unsafe { execv(path, arguments) }
}

unsafe extern "C" fn execlp_listed(file: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: the list that the caller of execlp made.
    unsafe { execvp(file, arguments) }
}

/// execle: the environment follows the null that ends the arguments.
unsafe extern "C" fn execle_listed(path: *const c_char, arguments: Strings) -> c_int {
    let mut end = arguments;
    // SAFETY: execle's list ends in a null pointer, and the environment is the word after it.
    let environment = unsafe {
        while !(*end).is_null() {
            end = end.add(1);
        }
        (*end.add(1)).cast::<*const c_char>()
    };
    // SAFETY: what the caller of execle made.
    unsafe { execve(path, arguments, environment) }
}

/// Stable Rust cannot define a variadic function. These take the arguments where the calling
/// convention puts them: the registers are stored right below those on the stack, so that all are
/// in one array, which the non-variadic exec takes.
macro_rules! variadic_exec {
    ($($(#[$doc:meta])* $name:ident -> $listed:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As execl(3): strings, closed by a null pointer.
        #[cfg(target_arch = "x86_64")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(path: *const c_char) -> c_int {
            // On entry: [rsp] the return address, above it the arguments from the 7th on. The
            // address makes room for the 6th and is put back before the return.
            core::arch::naked_asm!(
                "pop rax",
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                "push rax",
                "call {listed}",
                "pop rcx",
                "add rsp, 40",
                "push rcx",
                "ret",
                listed = sym $listed,
            )
        }

        $(#[$doc])*
        ///
        /// # Safety
        /// As execl(3): strings, closed by a null pointer.
        #[cfg(target_arch = "aarch64")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(path: *const c_char) -> c_int {
            // On entry: [sp] the arguments from the 9th on; x1 to x7 go right below them.
            core::arch::naked_asm!(
                "sub sp, sp, #80",
                "str x30, [sp]",
                "str x1, [sp, #24]",
                "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]",
                "stp x6, x7, [sp, #64]",
                "add x1, sp, #24",
                "bl {listed}",
                "ldr x30, [sp]",
                "add sp, sp, #80",
                "ret",
                listed = sym $listed,
            )
        }
    )*};
}

variadic_exec! {
    /// `int execl(const char *path, const char *argument, ..., NULL)`
    execl -> execl_listed;
    /// `int execlp(const char *file, const char *argument, ..., NULL)`
    execlp -> execlp_listed;
    /// `int execle(const char *path, const char *argument, ..., NULL, char *const environment[])`
    execle -> execle_listed;
}

/// `int posix_spawn(pid_t *, const char *path, file actions, attributes, arguments, environment)`
///
/// # Safety
/// As posix_spawn(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn posix_spawn(
    pid: *mut pid_t,
    path: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    let Some(real) = POSIX_SPAWN.get() else { return libc::ENOSYS };
    let _start = Start::begin(StartKind::Child, |_, _| ());
    let given = if environment.is_null() { environment::of_process() } else { environment };
    // SAFETY: actions, attributes and lists are those of posix_spawn(3), which the caller
    // guarantees.
    unsafe {
        environment::with((libc::AT_FDCWD, path, 0), given, |it| {
            let environment = if ptr::eq(it, given) { environment } else { it };
            real(pid, path, actions, attributes, arguments, environment)
        })
    }
}

/// `int posix_spawnp(pid_t *, const char *file, file actions, attributes, arguments, environment)`
///
/// # Safety
/// As posix_spawnp(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn posix_spawnp(
    pid: *mut pid_t,
    file: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    let Some(real) = POSIX_SPAWNP.get() else { return libc::ENOSYS };
    let _start = Start::begin(StartKind::Child, |_, _| ());
    let given = if environment.is_null() { environment::of_process() } else { environment };
    // SAFETY: actions, attributes and lists are those of posix_spawnp(3), which the caller
    // guarantees.
    unsafe {
        environment::with_searched(file, given, |it| {
            let environment = if ptr::eq(it, given) { environment } else { it };
            real(pid, file, actions, attributes, arguments, environment)
        })
    }
}

/// `int system(const char *command)`
///
/// # Safety
/// As system(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn system(command: *const c_char) -> c_int {
    if command.is_null() {
        // SAFETY: asks whether there is a shell.
        return unsafe { blocking::system(command) };
    }
    let start = Start::begin(StartKind::Child, |_, _| ());
    // SAFETY: the command is a string, which the caller guarantees.
    let status = unsafe { blocking::system(command) };
    drop(start);
    inheritors::check_all();
    status
}

/// `FILE *popen(const char *command, const char *mode)`
///
/// # Safety
/// As popen(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE {
    let Some(real) = POPEN.get() else {
        not_supported();
        return ptr::null_mut();
    };
    let _start = Start::begin(StartKind::Child, |_, _| ());
    // SAFETY: command and mode are strings, which the caller guarantees.
    unsafe { real(command, mode) }
}

/// `int prctl(int operation, ...)`; each argument is one word
///
/// # Safety
/// As prctl(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn prctl(operation: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    const STRICT: usize = libc::SECCOMP_MODE_STRICT as usize;
    let Some(real) = PRCTL.get() else { return not_supported() };
    // Without a filter the call only asks whether the kernel knows filters.
    if operation == libc::PR_SET_SECCOMP && (a == STRICT || b != 0) {
        system_call_filter::before_filter();
    }
    // SAFETY: the arguments are what this operation takes, which the caller guarantees.
    unsafe { real(operation, a, b, c, d) }
}

/// The process is about to end without closing anything: releases its sockets.
///
/// Exit handlers of other libraries may still run. The kernel closes their descriptors, and they
/// change nothing here, because a socket must not be released twice.
pub fn before_exit() {
    if process::owner_pid() != 0 && memory_ownership() == MemoryOwnership::Owner {
        multiplex::before_exec();
        process::set_exited();
        table::release_before_exit();
    }
}

/// At the end of exit(3), after the program's own exit handlers.
extern "C" fn end() {
    before_exit();
}

#[used]
#[cfg_attr(not(test), unsafe(link_section = ".fini_array"))]
static END: extern "C" fn() = end;

/// `void _exit(int status)`: the end that runs no exit handlers, as forked children like it
///
/// # Safety
/// As _exit(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn _exit(status: c_int) -> ! {
    before_exit();
    loop {
        // SAFETY: ends the process.
        unsafe { kernel::raw(libc::SYS_exit_group, status as usize, 0, 0, 0, 0, 0) };
    }
}

/// C99's name of [`_exit`].
///
/// # Safety
/// As _exit(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
#[allow(non_snake_case)]
pub unsafe extern "C" fn _Exit(status: c_int) -> ! {
    // SAFETY: ends the process, as the other name does.
    unsafe { _exit(status) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_is_made_by_clone_is_noted_and_the_child_of_a_vfork_is_not() {
        let [memory, vfork] = [libc::CLONE_VM, libc::CLONE_VFORK].map(|flag| flag as usize);
        note_clone(0);
        note_clone(memory | vfork);
        assert!(!process::shares_memory());
        note_clone(memory | libc::CLONE_THREAD as usize);
        assert!(process::shares_memory() && !process::has_one_thread());
    }
}
