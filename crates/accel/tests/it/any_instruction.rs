//! Signals at any instruction. A tracer interrupts a session by a handler that itself sends and
//! receives, at every system call, and at every instruction of a stride. The outcome is that of the
//! same session without the library and without a signal.
//!
//! A run steps through a part of the session only, which its seed chooses; `NEARMETAL_SIGNAL_RUNS`
//! and `NEARMETAL_SIGNAL_STEPS` make more and longer ones.

use std::hash::{DefaultHasher, Hasher as _};
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use libc::{SIGSTOP, SIGTRAP, SIGUSR1, c_int, c_void};
use nm_sys::clock::Deadline;

use crate::calls::*;
use crate::harness::{Body, Side, another};
use crate::support::*;

/// The session.
pub(crate) const PEERS: &[Body] = &[(concat!(module_path!(), "::session"), session)];

/// Rounds of a session.
const ROUNDS: u64 = 12;

/// Descriptors of the connection that the handler uses.
static OWN: [AtomicI32; 2] = [AtomicI32::new(-1), AtomicI32::new(-1)];

/// Descriptors of the session's connection, whose bytes the handler looks at.
static INTERRUPTED: [AtomicI32; 2] = [AtomicI32::new(-1), AtomicI32::new(-1)];

/// Handlers that have run.
static HANDLED: AtomicU64 = AtomicU64::new(0);

/// Sends and receives, and tells the tracer that it has done so.
extern "C" fn handler(_signal: c_int) {
    let number = HANDLED.fetch_add(1, Relaxed);
    for fd in INTERRUPTED.each_ref().map(|fd| fd.load(Relaxed)) {
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        // SAFETY: the bytes are live.
        unsafe { libc::recv(fd, [0_u8; 8].as_mut_ptr().cast(), 8, flags) };
    }
    let [client, server] = OWN.each_ref().map(|fd| fd.load(Relaxed));
    for (from, to) in [(client, server), (server, client)] {
        let (bytes, mut got) = (number.to_le_bytes(), [0_u8; 8]);
        // SAFETY: the bytes are live; the calls are those that the library replaces.
        let moved = unsafe {
            libc::send(from, bytes.as_ptr().cast(), 8, 0) == 8
                && libc::recv(to, got.as_mut_ptr().cast(), 8, libc::MSG_WAITALL) == 8
        };
        if !moved || got != bytes {
            // SAFETY: ends this process.
            unsafe { libc::_exit(55) };
        }
    }
    // SAFETY: the tracer continues behind it.
    unsafe { std::arch::asm!("int3") };
}

/// Uses connections in many ways, and prints what has arrived.
fn session() {
    let own = joined_pair();
    OWN[0].store(own.client, Relaxed);
    OWN[1].store(own.server, Relaxed);
    // SAFETY: all zero is a valid action; it is live for the call.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(libc::sigaction(SIGUSR1, &raw const action, std::ptr::null_mut()), 0);
    }
    let pair = joined_pair();
    INTERRUPTED[0].store(pair.client, Relaxed);
    INTERRUPTED[1].store(pair.server, Relaxed);
    // SAFETY: stops this process until the tracer continues it.
    unsafe { libc::raise(SIGSTOP) };
    let mut hasher = DefaultHasher::new();
    for round in 0..ROUNDS {
        one_round(pair, round, &mut hasher);
    }
    // A connection that meets its peer while signals come.
    let new = unused_pair();
    for round in 0..3 {
        one_round(new, round, &mut hasher);
    }
    shutdown(pair.client, libc::SHUT_WR).unwrap();
    hasher.write(&recv_to_end(pair.server).0);
    let text = format!("{:016x}", hasher.finish());
    assert_eq!(write(1, text.as_bytes()), Ok(text.len()));
}

/// One round of the session on a connection.
fn one_round(pair: Pair, round: u64, hasher: &mut DefaultHasher) {
    for (from, to) in [(pair.client, pair.server), (pair.server, pair.client)] {
        for bytes in [1, 56, 300, 5_000] {
            send_all(from, &pattern(round, bytes));
            if bytes == 56 {
                wait_for(to, libc::POLLIN);
                hasher.write_u32(u32::from(ready(to, libc::POLLIN, 0) != 0));
            }
            hasher.write(&recv_exact(to, bytes));
        }
        let sent = writev(from, &[b"one ", b"two"]).unwrap();
        hasher.write_usize(sent);
        hasher.write(&recv_exact(to, sent));
        assert_eq!(recv(to, &mut [0], libc::MSG_DONTWAIT), Err(AGAIN));
    }
    let set = epoll_create();
    epoll_ctl(set, libc::EPOLL_CTL_ADD, pair.server, libc::EPOLLIN as u32, 7).unwrap();
    send_all(pair.client, b"waited for");
    let copy = dup(pair.server).unwrap();
    wait_for(set, libc::POLLIN);
    hasher.write(&recv_exact(copy, 10));
    close(copy).unwrap();
    close(set).unwrap();
}

/// A session under a tracer, stopped at its beginning.
struct Traced {
    child: Child,
    deadline: Deadline,
}

impl Traced {
    fn start(side: Side) -> Traced {
        let mut command: Command = another(concat!(module_path!(), "::session"), side);
        command.stdout(Stdio::piped());
        // SAFETY: a plain system call, which may be made between fork and exec.
        unsafe {
            command.pre_exec(|| {
                let none = std::ptr::null_mut::<c_void>();
                match libc::ptrace(libc::PTRACE_TRACEME, 0, none, none) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            });
        }
        let child = command.spawn().unwrap();
        let mut traced = Traced { child, deadline: Deadline::after(Duration::from_secs(100)) };
        assert_eq!(traced.wait(), Some(SIGTRAP), "the beginning of the program");
        traced.ask(libc::PTRACE_SETOPTIONS, (libc::PTRACE_O_TRACESYSGOOD) as usize);
        while traced.go(libc::PTRACE_CONT, 0) != Some(SIGSTOP) {}
        traced
    }

    fn ask(&self, request: libc::c_uint, data: usize) {
        let id = self.child.id().cast_signed();
        let none = std::ptr::null_mut::<c_void>();
        let data = std::ptr::without_provenance_mut::<c_void>(data);
        // SAFETY: the requests here take numbers.
        let result = unsafe { libc::ptrace(request, id, none, data) };
        assert_eq!(result, 0, "{:?}", errno());
    }

    /// Continues by a request, with a signal or none; returns the signal of the next stop, or none
    /// at the end.
    fn go(&mut self, request: libc::c_uint, signal: c_int) -> Option<c_int> {
        self.ask(request, signal as usize);
        self.wait()
    }

    fn wait(&mut self) -> Option<c_int> {
        let id = self.child.id().cast_signed();
        let mut status = 0;
        loop {
            // SAFETY: the status is live; the child is this thread's own.
            match unsafe { libc::waitpid(id, &raw mut status, libc::WNOHANG | libc::__WALL) } {
                0 if self.deadline.passed() => panic!("the session hangs"),
                0 => std::thread::yield_now(),
                _ if libc::WIFSTOPPED(status) => return Some(libc::WSTOPSIG(status)),
                _ => {
                    assert_eq!(status, 0, "wait status of the session");
                    return None;
                }
            }
        }
    }

    /// Number of the system call at which it stands.
    fn system_call(&self) -> libc::c_long {
        let id = self.child.id().cast_signed();
        let place = std::ptr::without_provenance_mut::<c_void>(8 * libc::ORIG_RAX as usize);
        // SAFETY: reads one register of the stopped process.
        unsafe { libc::ptrace(libc::PTRACE_PEEKUSER, id, place, std::ptr::null_mut::<c_void>()) }
    }

    /// Delivers the signal here, and waits until its handler has ended; false at the end of the
    /// session, if the library delivers it that late.
    fn interrupt(&mut self) -> bool {
        let mut stop = self.go(libc::PTRACE_CONT, SIGUSR1);
        while stop.is_some_and(|stop| stop != SIGTRAP) {
            // The library sends the signal again when its lock is free.
            let signal = stop.filter(|stop| *stop == SIGUSR1).unwrap_or(0);
            stop = self.go(libc::PTRACE_CONT, signal);
        }
        stop.is_some()
    }

    /// Runs to the end; returns what the session has printed.
    fn finish(mut self) -> String {
        let mut stop = self.go(libc::PTRACE_CONT, 0);
        while let Some(signal) = stop {
            let signal = if signal == SIGUSR1 { SIGUSR1 } else { 0 };
            stop = self.go(libc::PTRACE_CONT, signal);
        }
        self.text()
    }

    fn text(&mut self) -> String {
        let mut text = String::new();
        self.child.stdout.as_mut().expect("piped").read_to_string(&mut text).unwrap();
        text
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        let _ = self.child.kill();
    }
}

/// What the session prints without the library and without a signal.
fn wanted() -> String {
    Traced::start(Side::Kernel).finish()
}

/// Stop of a tracer at a system call.
const AT_CALL: c_int = SIGTRAP | 0x80;

#[test]
fn signal_at_every_system_call_changes_nothing() {
    for side in [Side::Kernel, Side::Accelerated] {
        let mut traced = Traced::start(side);
        let mut interruptions = 0;
        // A stop at the beginning of each call, and one at its end.
        while traced.go(libc::PTRACE_SYSCALL, 0) == Some(AT_CALL) {
            // The end of a handler would be interrupted for ever. Behind it no call has a number.
            if matches!(traced.system_call(), libc::SYS_rt_sigreturn | -1) {
                continue;
            }
            interruptions += 1;
            if !traced.interrupt() {
                break;
            }
        }
        assert!(interruptions > 100, "{interruptions} on {side:?}");
        assert_eq!(traced.text(), wanted(), "{side:?}");
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("a number"))
}

#[test]
fn signal_at_instructions_of_a_stride_changes_nothing() {
    let wanted = wanted();
    let steps = number("NEARMETAL_SIGNAL_STEPS", 60_000);
    let mut interruptions = 0;
    for seed in 1..=number("NEARMETAL_SIGNAL_RUNS", 4) {
        let mut traced = Traced::start(Side::Accelerated);
        // The part of the session that this run steps through.
        let skipped = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        for _ in 0..skipped % 300 {
            traced.go(libc::PTRACE_SYSCALL, 0);
        }
        let mut ended = false;
        for step in 1..=steps {
            if traced.go(libc::PTRACE_SINGLESTEP, 0).is_none() {
                ended = true;
                break;
            }
            if step % (991 + seed) == 0 {
                interruptions += 1;
                ended = !traced.interrupt();
            }
            if ended {
                break;
            }
        }
        let text = if ended { traced.text() } else { traced.finish() };
        assert_eq!(text, wanted, "seed {seed}");
    }
    assert!(interruptions > 50, "{interruptions}");
}
