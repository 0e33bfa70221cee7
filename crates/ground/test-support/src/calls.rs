//! The system calls of a thread, as the kernel reports them. A seccomp filter on the thread, which
//! its children inherit, reports every call to a supervisor (seccomp user notification, Linux 5.5).
//! The supervisor writes its number down and lets it go on. No privilege and no other program is
//! needed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::Duration;

/// System calls by thread, in order.
pub type Calls = BTreeMap<u32, Vec<i64>>;

/// A filter that reports every system call of the current thread and its children, and the
/// descriptor on which the reports come.
pub fn report_system_calls() -> i32 {
    let mut instruction = libc::sock_filter {
        code: (libc::BPF_RET | libc::BPF_K) as u16,
        jt: 0,
        jf: 0,
        k: libc::SECCOMP_RET_USER_NOTIF,
    };
    let program = libc::sock_fprog { len: 1, filter: &mut instruction };
    // SAFETY: plain numbers; and a live program of the length that it tells.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        install(&raw const program) as i32
    }
}

/// `seccomp(SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, program)` past the C
/// library: an accelerated program is observed, and the accelerator must not take the filter for
/// one that the program restricts itself by.
///
/// # Safety
/// The program is live.
#[cfg(target_arch = "x86_64")]
unsafe fn install(program: *const libc::sock_fprog) -> isize {
    let result;
    // SAFETY: the call reads the program and writes no memory of this process.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") libc::SYS_seccomp as isize => result,
            in("rdi") libc::SECCOMP_SET_MODE_FILTER as usize,
            in("rsi") libc::SECCOMP_FILTER_FLAG_NEW_LISTENER as usize,
            in("rdx") program,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack)
        );
    }
    result
}

/// As on x86-64.
///
/// # Safety
/// The program is live.
#[cfg(target_arch = "aarch64")]
unsafe fn install(program: *const libc::sock_fprog) -> isize {
    let result;
    // SAFETY: the call reads the program and writes no memory of this process.
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") libc::SYS_seccomp as usize,
            inlateout("x0") libc::SECCOMP_SET_MODE_FILTER as isize => result,
            in("x1") libc::SECCOMP_FILTER_FLAG_NEW_LISTENER as usize,
            in("x2") program,
            options(nostack)
        );
    }
    result
}

/// Takes reports until the last filtered thread has ended, and lets each call go on.
pub fn supervise(reports: i32) -> Calls {
    const RECEIVE: libc::c_ulong = 0xc050_2100; // SECCOMP_IOCTL_NOTIF_RECV
    const SEND: libc::c_ulong = 0xc018_2101; // SECCOMP_IOCTL_NOTIF_SEND
    let mut calls = Calls::new();
    loop {
        let mut entry = libc::pollfd { fd: reports, events: libc::POLLIN, revents: 0 };
        // SAFETY: one live entry, and the count is 1.
        let found = unsafe { libc::poll(&mut entry, 1, 10_000) };
        if found <= 0 || entry.revents & libc::POLLHUP != 0 {
            break;
        }
        // SAFETY: all-zero structures are valid and what the kernel asks for; both requests fill or
        // read a live structure of the size that is part of their number.
        unsafe {
            let mut report: libc::seccomp_notif = std::mem::zeroed();
            if libc::ioctl(reports, RECEIVE as _, &mut report) != 0 {
                continue; // the thread ended in between
            }
            calls.entry(report.pid).or_default().push(i64::from(report.data.nr));
            let mut answer: libc::seccomp_notif_resp = std::mem::zeroed();
            answer.id = report.id;
            answer.flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
            libc::ioctl(reports, SEND as _, &mut answer);
        }
    }
    // SAFETY: the descriptor is ours and used no more.
    unsafe { libc::close(reports) };
    calls
}

/// All system calls made while `work` runs on a thread of its own.
pub fn system_calls<R: Send>(work: impl FnOnce() -> R + Send) -> (R, Calls) {
    const PENDING: i32 = i32::MIN;
    let reports = AtomicI32::new(PENDING);
    thread::scope(|scope| {
        let working = scope.spawn(|| {
            let listener = report_system_calls();
            // From here on every call waits for the supervisor, so memory passes the descriptor.
            reports.store(listener, Ordering::Release);
            assert!(listener >= 0, "seccomp user notification is not available on this kernel");
            work()
        });
        let listener = loop {
            match reports.load(Ordering::Acquire) {
                PENDING => thread::sleep(Duration::from_millis(1)),
                listener => break listener,
            }
        };
        let calls = if listener < 0 { Calls::new() } else { supervise(listener) };
        (working.join().unwrap(), calls)
    })
}
