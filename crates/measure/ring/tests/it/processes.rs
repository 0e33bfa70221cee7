//! The peer in a process of its own, alive and killed.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nm_ring::window::DeviceMemory;
use nm_ring::{Endpoint, EndpointParts, Lifeline, TransferError};

use crate::endpoint_parts;

const LIMIT: Duration = Duration::from_secs(100);

/// Held during a fork: a child inherits every descriptor, and would keep another child's lifeline
/// open.
pub static FORK_LOCK: Mutex<()> = Mutex::new(());

/// An endpoint here, and a child that sends back what it receives; its process id.
fn echo<const SLEEPS: bool>() -> (Endpoint<SLEEPS>, libc::pid_t) {
    echo_between(endpoint_parts())
}

/// The same between these two ends.
fn echo_between<const SLEEPS: bool>(
    (ours, theirs): (EndpointParts, EndpointParts),
) -> (Endpoint<SLEEPS>, libc::pid_t) {
    // Calibrated before the fork, because the child must not start threads or allocate.
    nm_sys::clock::Clock::system();
    let lifeline = match &ours.lifeline {
        Lifeline::Socket(socket) => socket.as_raw_fd(),
        // Only the socket shows by being closed that its owner is gone.
        Lifeline::Window(_) => -1,
    };
    // SAFETY: the child closes a descriptor, uses only memory that it has, and makes only plain
    // system calls; it ends without running anything of the test harness.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        // SAFETY: the parent's end of the lifeline, which nothing in the child uses.
        unsafe { libc::close(lifeline) };
        let mut end = Endpoint::<SLEEPS>::new(theirs);
        let mut buffer = [0; 40_000];
        let code = loop {
            match end.receive(&mut buffer, LIMIT) {
                Ok(length) => {
                    let mut sent = 0;
                    while sent < length {
                        match end.send(&buffer[sent..length], LIMIT) {
                            Ok(count) => sent += count,
                            Err(_) => break,
                        }
                    }
                }
                Err(TransferError::Closed) => break 0,
                Err(TransferError::TimedOut) => break 1,
            }
        };
        drop(end);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(code) };
    }
    drop(theirs);
    (Endpoint::new(ours), pid)
}

pub fn wait_for(pid: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: our own child, and a live place for its status.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    status
}

fn echo_messages<const SLEEPS: bool>(ends: (EndpointParts, EndpointParts)) {
    let (mut end, pid) = echo_between::<SLEEPS>(ends);
    let all: Vec<u8> = (0..30_000).map(|idx| (idx % 253) as u8).collect();
    for length in [1, 8, 56, 57, 64, 376, 377, 1024, 30_000].repeat(20) {
        assert_eq!(end.send(&all[..length], LIMIT), Ok(length));
        let mut back = vec![0; length];
        let mut filled = 0;
        while filled < length {
            filled += end.receive(&mut back[filled..], LIMIT).unwrap();
        }
        assert!(back == all[..length], "{length}");
    }
    drop(end);
    assert_eq!(wait_for(pid), 0, "the child saw the end");
}

#[test]
fn two_processes_exchange_messages() {
    let _fork_lock = FORK_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    echo_messages::<true>(endpoint_parts());
    echo_messages::<false>(endpoint_parts());
}

/// Both ends of a window of a file, which takes the place of the memory that two machines share.
fn window_parts() -> (EndpointParts, EndpointParts) {
    let path = std::env::temp_dir().join(format!("nm-ring-device-{}", std::process::id()));
    File::create(&path).unwrap().set_len(1 << 20).unwrap();
    let (one, other) = (DeviceMemory::open(&path).unwrap(), DeviceMemory::open(&path).unwrap());
    std::fs::remove_file(&path).unwrap();
    let listener = one.listen(1).unwrap().unwrap();
    let (window, token) = listener.address();
    let theirs = other.connect(window, token).unwrap().unwrap();
    (listener.accept().unwrap().unwrap().into(), theirs.into())
}

#[test]
fn two_processes_exchange_messages_through_a_window() {
    let _fork_lock = FORK_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    echo_messages::<false>(window_parts());
}

#[test]
fn killed_process_at_the_other_end_of_a_window_costs_the_time_limit() {
    let _fork_lock = FORK_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut end, pid) = echo_between::<false>(window_parts());
    let mut byte = [0];
    end.send(&[1], LIMIT).unwrap();
    end.receive(&mut byte, LIMIT).unwrap();
    // SAFETY: our own child, not yet waited for.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
    wait_for(pid);
    let limit = Duration::from_millis(10);
    assert_eq!(end.receive(&mut byte, limit), Err(TransferError::TimedOut));
    while end.try_send(&[0; 1000]) > 0 {}
    assert_eq!(end.send(&[0; 1000], limit), Err(TransferError::TimedOut));
}

fn receive_after_kill<const SLEEPS: bool>() {
    let (mut end, pid) = echo::<SLEEPS>();
    let mut byte = [0];
    end.send(&[1], LIMIT).unwrap();
    end.receive(&mut byte, LIMIT).unwrap();
    // SAFETY: our own child, not yet waited for.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
    wait_for(pid);
    // SPECIFICATION guarantees 100 ms from the death on: a time-out of that length must not come
    // first.
    let limit = Duration::from_millis(100);
    assert_eq!(end.receive(&mut byte, limit), Err(TransferError::Closed));
    assert_eq!(
        end.try_receive(&mut byte).or(end.receive(&mut byte, limit).map(Some)),
        Err(TransferError::Closed)
    );
    while end.try_send(&[0; 1000]) > 0 {}
    assert_eq!(end.send(&[0; 1000], limit), Err(TransferError::Closed));
}

#[test]
fn killed_process_is_detected_within_100_ms() {
    let _fork_lock = FORK_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    receive_after_kill::<true>();
    receive_after_kill::<false>();
}
