//! Signals: which calls are interrupted, which continue, and handlers that use sockets themselves.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::SeqCst};
use std::time::Duration;

use libc::{MSG_NOSIGNAL, MSG_WAITALL, POLLIN, SA_RESTART, SIGALRM, pollfd};
use nm_sys::clock::Moment;

use crate::calls::*;
use crate::support::*;

behaviours![
    receive_is_interrupted,
    read_is_interrupted,
    recvmsg_is_interrupted,
    send_is_interrupted,
    partial_send_is_interrupted,
    partial_send_to_a_steady_reader_is_interrupted,
    receive_continues_with_restart,
    send_continues_with_restart,
    receive_with_a_limit_is_interrupted_despite_restart,
    wait_for_all_returns_its_part,
    wait_for_all_returns_its_part_despite_restart,
    poll_is_interrupted_despite_restart,
    select_is_interrupted_despite_restart,
    accept_is_interrupted,
    accept_continues_with_restart,
    ignored_signals_interrupt_no_call,
    blocked_signals_interrupt_no_call,
    handler_by_signal_restarts,
    siginterrupt_turns_restart_off,
    handler_that_writes,
    handler_that_reads_another_connection,
    handler_that_closes_the_connection,
    program_sees_its_own_handler,
    reset_after_one,
    handler_gets_its_information,
    data_arrives_despite_many_signals,
    jump_out_of_a_receive,
    signal_for_another_thread,
];

fn on_alarm(flags: c_int) {
    handle(SIGALRM, counted, flags);
    alarm_every(20);
}

fn receive_is_interrupted() {
    let pair = joined_pair();
    on_alarm(0);
    assert_eq!(recv(pair.server, &mut [0; 4], 0), Err(INTR));
    assert_eq!(recv(pair.server, &mut [0; 4], libc::MSG_PEEK), Err(INTR));
    alarm_every(0);
    send_all(pair.client, b"x");
    assert_eq!(recv(pair.server, &mut [0; 4], 0), Ok(1));
    assert_state(pair.server, JOINED);
}

fn read_is_interrupted() {
    let pair = joined_pair();
    on_alarm(0);
    assert_eq!(read(pair.server, &mut [0; 4]), Err(INTR));
    assert_eq!(readv(pair.server, &mut [&mut [0; 4][..]]), Err(INTR));
}

fn recvmsg_is_interrupted() {
    let pair = joined_pair();
    on_alarm(0);
    assert_eq!(recvmsg(pair.server, &mut [&mut [0; 4][..]], 0), Err(INTR));
}

fn send_is_interrupted() {
    let pair = joined_pair();
    let mut sent = fill(pair.client, 1);
    on_alarm(0);
    let send = |byte: &[u8]| send(pair.client, byte, 0);
    assert_eq!(refused_byte(1, &mut sent, send), Err(INTR));
    assert_eq!(refused_byte(1, &mut sent, |byte| write(pair.client, byte)), Err(INTR));
    alarm_every(0);
    assert_bytes(&recv_exact(pair.server, sent), &pattern(1, sent));
    assert_eq!(recv(pair.server, &mut [0], libc::MSG_DONTWAIT), Err(AGAIN));
}

fn partial_send_is_interrupted() {
    let pair = joined_pair();
    on_alarm(0);
    let bytes = pattern(2, 24 << 20);
    let sent = send(pair.client, &bytes, 0).unwrap();
    alarm_every(0);
    assert!(0 < sent && sent < bytes.len());
    assert_bytes(&recv_exact(pair.server, sent), &bytes[..sent]);
}

/// Whatever the flags of the handler: a part was sent.
fn partial_send_to_a_steady_reader_is_interrupted() {
    let pair = joined_pair();
    handle(libc::SIGUSR1, counted, SA_RESTART);
    let bytes = vec![3; 64 << 20];
    // SAFETY: no precondition.
    let sender = unsafe { libc::pthread_self() };
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut buffer, mut received, mut is_sent) = (vec![0; 16 << 10], 0, false);
            while !has_ended.load(SeqCst) {
                received += recv(pair.server, &mut buffer, libc::MSG_DONTWAIT).unwrap_or(0);
                if received >= 8 << 20 && !is_sent {
                    is_sent = true;
                    // SAFETY: the thread waits for this one before it ends.
                    unsafe { libc::pthread_kill(sender, libc::SIGUSR1) };
                }
                let start = Moment::now();
                while start.elapsed() < Duration::from_micros(8) {}
            }
        });
        let sent = send(pair.client, &bytes, 0).unwrap();
        has_ended.store(true, SeqCst);
        assert!((8 << 20..bytes.len()).contains(&sent), "{sent}");
    });
}

/// Waits for some signals and then sends the bytes.
fn after_signals(give: impl FnOnce()) {
    let before = HANDLED.load(SeqCst);
    eventually("signals come", || HANDLED.load(SeqCst) > before + 3);
    give();
}

fn receive_continues_with_restart() {
    let pair = joined_pair();
    on_alarm(SA_RESTART);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            block(SIGALRM, true);
            after_signals(|| send_all(pair.client, b"late"));
        });
        assert_eq!(recv(pair.server, &mut [0; 9], 0), Ok(4));
    });
}

fn send_continues_with_restart() {
    let pair = joined_pair();
    fill(pair.client, 1);
    on_alarm(SA_RESTART);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            block(SIGALRM, true);
            after_signals(|| drop(recv_exact(pair.server, 60_000)));
            while recv(pair.server, &mut [0; 60_000], libc::MSG_DONTWAIT).is_ok() {}
        });
        assert_eq!(send(pair.client, b"late", 0), Ok(4));
    });
}

fn receive_with_a_limit_is_interrupted_despite_restart() {
    let pair = joined_pair();
    set_limit(pair.server, libc::SO_RCVTIMEO, 20_000);
    on_alarm(SA_RESTART);
    assert_eq!(recv(pair.server, &mut [0; 4], 0), Err(INTR));
}

fn wait_for_all_returns_its_part() {
    let pair = joined_pair();
    send_all(pair.client, b"part");
    on_alarm(0);
    assert_eq!(recv(pair.server, &mut [0; 9], MSG_WAITALL), Ok(4));
}

fn wait_for_all_returns_its_part_despite_restart() {
    let pair = joined_pair();
    send_all(pair.client, b"part");
    on_alarm(SA_RESTART);
    assert_eq!(recv(pair.server, &mut [0; 9], MSG_WAITALL), Ok(4));
}

fn poll_is_interrupted_despite_restart() {
    let pair = joined_pair();
    on_alarm(SA_RESTART);
    let mut list = [pollfd { fd: pair.server, events: POLLIN, revents: 0 }];
    assert_eq!(poll(&mut list, -1), Err(INTR));
    assert_eq!(poll(&mut list, 20_000), Err(INTR));
    assert_eq!(ppoll(&mut list, None, None), Err(INTR));
}

fn select_is_interrupted_despite_restart() {
    let pair = joined_pair();
    on_alarm(SA_RESTART);
    let mut reads = Set::of(&[pair.server]);
    assert_eq!(select(Some(&mut reads), None, None, None), Err(INTR));
    let mut reads = Set::of(&[pair.server]);
    assert_eq!(pselect(&mut reads, None, None), Err(INTR));
}

fn accept_is_interrupted() {
    let (listening, _) = listener(Family::V4);
    on_alarm(0);
    assert_eq!(accept(listening), Err(INTR));
}

fn accept_continues_with_restart() {
    let (listening, address) = listener(Family::V4);
    on_alarm(SA_RESTART);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            block(SIGALRM, true);
            after_signals(|| assert!(connected(&address) > 0));
        });
        accept(listening).unwrap();
    });
}

/// The byte is sent after a while; nothing else may end the receive.
#[track_caller]
fn check_undisturbed(pair: Pair) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            block(SIGALRM, true);
            pause_ms(100);
            send_all(pair.client, b"x");
        });
        assert_eq!(recv(pair.server, &mut [0; 4], 0), Ok(1));
    });
}

fn ignored_signals_interrupt_no_call() {
    let pair = joined_pair();
    // SAFETY: ignoring needs no handler.
    unsafe { libc::signal(SIGALRM, libc::SIG_IGN) };
    alarm_every(10);
    check_undisturbed(pair);
}

fn blocked_signals_interrupt_no_call() {
    let pair = joined_pair();
    handle(SIGALRM, counted, 0);
    block(SIGALRM, true);
    alarm_every(10);
    check_undisturbed(pair);
    assert_eq!(HANDLED.load(SeqCst), 0);
}

fn handler_by_signal_restarts() {
    let pair = joined_pair();
    // SAFETY: the handler is a function of the right type.
    unsafe { libc::signal(SIGALRM, counted as *const () as libc::sighandler_t) };
    alarm_every(10);
    check_undisturbed(pair);
    assert!(HANDLED.load(SeqCst) > 0);
}

unsafe extern "C" {
    fn siginterrupt(signal: c_int, flag: c_int) -> c_int;
}

fn siginterrupt_turns_restart_off() {
    let pair = joined_pair();
    // SAFETY: the handler is a function of the right type; the rest are numbers.
    unsafe {
        libc::signal(SIGALRM, counted as *const () as libc::sighandler_t);
        assert_eq!(siginterrupt(SIGALRM, 1), 0);
    }
    alarm_every(20);
    assert_eq!(recv(pair.server, &mut [0; 4], 0), Err(INTR));
}

/// The socket that handlers use.
static WAY: AtomicI32 = AtomicI32::new(-1);

extern "C" fn write_to_direction(_: c_int) {
    let _ = send(WAY.load(SeqCst), b"s", MSG_NOSIGNAL | libc::MSG_DONTWAIT);
}

extern "C" fn read_from_direction(_: c_int) {
    let _ = recv(WAY.load(SeqCst), &mut [0; 16], libc::MSG_DONTWAIT);
    counted(0);
}

/// The reader's own handler sends what the reader waits for.
fn handler_that_writes() {
    let pair = joined_pair();
    WAY.store(pair.client, SeqCst);
    handle(SIGALRM, write_to_direction, SA_RESTART);
    alarm_every(20);
    for _ in 0..3 {
        assert_eq!(recv(pair.server, &mut [0], 0), Ok(1));
    }
}

fn handler_that_reads_another_connection() {
    let (pair, other) = (joined_pair(), joined_pair());
    WAY.store(other.server, SeqCst);
    send_all(other.client, b"for the handler");
    handle(SIGALRM, read_from_direction, SA_RESTART);
    alarm_every(20);
    check_undisturbed(pair);
    eventually("it was called", || HANDLED.load(SeqCst) > 0);
    assert_eq!(recv(other.server, &mut [0], libc::MSG_DONTWAIT), Err(AGAIN));
}

extern "C" fn close_direction(_: c_int) {
    alarm_every(0);
    close(WAY.load(SeqCst)).unwrap();
}

/// Of a program with one thread: the call that is interrupted still uses the connection.
fn handler_that_closes_the_connection() {
    for _ in 0..3 {
        let pair = joined_pair();
        WAY.store(pair.server, SeqCst);
        handle(SIGALRM, close_direction, 0);
        alarm_every(20);
        let first = recv(pair.server, &mut [0; 4], 0);
        // The signal may come before the call on a busy machine.
        assert!(first == Err(INTR) || first == Err(BADF), "{first:?}");
        assert_eq!(recv(pair.server, &mut [0; 4], 0), Err(BADF));
        assert_eq!(recv(pair.client, &mut [0; 4], 0), Ok(0));
        close(pair.client).unwrap();
    }
    check_undisturbed(joined_pair());
}

fn program_sees_its_own_handler() {
    let own = counted as *const () as libc::sighandler_t;
    // SAFETY: all zero is an action; handlers are functions of the right type.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        assert_eq!(libc::signal(libc::SIGUSR2, own), libc::SIG_DFL);
        assert_eq!(libc::signal(libc::SIGUSR2, libc::SIG_IGN), own);
        assert_eq!(libc::signal(libc::SIGUSR2, libc::SIG_DFL), libc::SIG_IGN);
        handle(libc::SIGUSR2, counted, libc::SA_NODEFER);
        let null = std::ptr::null();
        assert_eq!(libc::sigaction(libc::SIGUSR2, null, &raw mut action), 0);
        assert_eq!(action.sa_sigaction, own);
        assert_eq!(action.sa_flags & libc::SA_NODEFER, libc::SA_NODEFER);
        assert_eq!(libc::signal(libc::SIGKILL, own), libc::SIG_ERR);
        assert_eq!(libc::signal(1000, own), libc::SIG_ERR);
    }
}

fn reset_after_one() {
    let pair = joined_pair();
    handle(libc::SIGURG, counted, libc::SA_RESETHAND);
    // SIGURG is ignored by default, so that the second one has no effect. SAFETY: a signal to this
    // thread.
    unsafe {
        libc::raise(libc::SIGURG);
        libc::raise(libc::SIGURG);
    }
    assert_eq!(HANDLED.load(SeqCst), 1);
    send_all(pair.client, b"x");
    assert_eq!(recv(pair.server, &mut [0], 0), Ok(1));
}

extern "C" fn handler_with_info(signal: c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes its information to a handler with SA_SIGINFO.
    let sender = unsafe { (*info).si_pid() };
    WAY.store(if signal == libc::SIGUSR1 { sender } else { -2 }, SeqCst);
}

fn handler_gets_its_information() {
    // SAFETY: all zero is an action; the handler fits SA_SIGINFO.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler_with_info as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO;
        let null = std::ptr::null_mut();
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, null), 0);
    }
    let own = std::process::id().cast_signed();
    kill(own, libc::SIGUSR1);
    assert_eq!(WAY.load(SeqCst), own);
}

fn data_arrives_despite_many_signals() {
    let pair = joined_pair();
    handle(SIGALRM, counted, SA_RESTART);
    alarm_every(1);
    let bytes = pattern(1, 4 << 20);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for chunk in bytes.chunks(10_000) {
                send_all(pair.client, chunk);
            }
        });
        assert_bytes(&recv_exact(pair.server, bytes.len()), &bytes);
    });
}

unsafe extern "C" {
    #[link_name = "__sigsetjmp"]
    fn sigsetjmp(place: *mut u64, save_mask: c_int) -> c_int;
    fn siglongjmp(place: *mut u64, value: c_int) -> !;
}

/// Large enough for `sigjmp_buf` on every machine that glibc supports.
static mut PLACE: [u64; 64] = [0; 64];

extern "C" fn jump(_: c_int) {
    // SAFETY: the buffer was filled by the function that the signal interrupted.
    unsafe { siglongjmp((&raw mut PLACE).cast(), 1) }
}

/// A program that leaves a blocked receive by a jump can still use its sockets.
fn jump_out_of_a_receive() {
    let pair = joined_pair();
    handle(SIGALRM, jump, 0);
    for _ in 0..3 {
        // SAFETY: nothing between this point and the jump owns memory or needs a destructor.
        if unsafe { sigsetjmp((&raw mut PLACE).cast(), 1) } == 0 {
            alarm_every(15);
            let mut buffer = [0; 4];
            // SAFETY: the buffer is live for the call.
            unsafe { libc::recv(pair.server, buffer.as_mut_ptr().cast(), 4, 0) };
            panic!("the receive came back");
        }
        alarm_every(0);
    }
    for _ in 0..50 {
        send_all(pair.client, b"after");
        assert_eq!(recv_exact(pair.server, 5), b"after");
        send_all(pair.server, b"back");
        assert_eq!(recv_exact(pair.client, 4), b"back");
    }
}

fn signal_for_another_thread() {
    let pair = joined_pair();
    handle(libc::SIGUSR1, counted, SA_RESTART);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| recv(pair.server, &mut [0; 4], 0));
        pause_ms(20);
        for _ in 0..5 {
            // SAFETY: a signal to this thread, which is not the reader.
            unsafe { libc::raise(libc::SIGUSR1) };
        }
        pause_ms(20);
        assert!(!reader.is_finished());
        send_all(pair.client, b"x");
        assert_eq!(reader.join().unwrap(), Ok(1));
    });
}
