//! How connections end: in order, one direction, with a reset, by a killed peer; and which calls
//! report it.

use libc::{MSG_DONTWAIT, MSG_NOSIGNAL, POLLHUP, POLLIN, POLLOUT, SHUT_RD, SHUT_RDWR, SHUT_WR};

use crate::calls::*;
use crate::support::*;

behaviours![
    end_after_close,
    end_after_data,
    unread_bytes_are_counted_once_after_the_end,
    unread_bytes_are_discarded_once_after_the_end,
    half_close_with_unread_data_before_the_peer_is_killed,
    end_is_reported_repeatedly,
    end_after_much_data,
    half_closed_still_receives,
    half_close_with_data_in_flight,
    both_ends_shut_write_at_once,
    send_after_own_half_close,
    send_after_own_half_close_raises_sigpipe,
    shutdown_for_reading_ends_reading,
    shutdown_for_reading_keeps_unread_data,
    shutdown_for_reading_wakes_a_reader,
    shutdown_both,
    shutdown_both_wakes_a_reader,
    shutdown_for_writing_wakes_a_blocked_writer,
    shutdown_twice,
    shutdown_with_an_invalid_argument,
    shutdown_before_joining,
    peer_closed_then_send_gets_a_pipe_error,
    peer_closed_then_write_raises_sigpipe,
    close_with_unread_data_resets_the_peer,
    close_with_unread_data_resets_a_blocked_reader,
    close_with_unread_data_resets_a_blocked_writer,
    reset_by_linger,
    reset_wakes_a_reader,
    reset_error_is_reported_once,
    reset_after_data_in_flight,
    reset_is_visible_in_so_error,
    recv_after_reset_and_send_after_reset,
    killed_peer_idle_is_an_end,
    killed_peer_while_reading,
    killed_peer_while_writing,
    killed_peer_with_our_data_unread_is_a_reset,
    killed_peer_with_our_data_unread_receives_no_more,
    reset_behind_bytes_is_left_to_the_next_call,
    killed_peer_after_its_data,
    killed_peer_at_random_moments_while_it_sends,
    killed_peer_at_random_moments_while_it_receives,
    exit_of_the_peer_is_an_end,
    end_for_every_waiter,
    end_for_a_peeker,
    shutdown_returns_not_connected_afterwards,
    closed_descriptor_is_bad,
    linger_with_time_delivers,
    close_delivers_what_was_sent,
    peer_closes_while_we_fill_the_buffer,
];

fn end_after_close() {
    let pair = joined_pair();
    close(pair.client).unwrap();
    assert_eq!(recv(pair.server, &mut [0; 4], 0), Ok(0));
    assert_eq!(read(pair.server, &mut [0; 4]), Ok(0));
}

fn end_after_data() {
    let pair = joined_pair();
    send_all(pair.client, b"last words");
    close(pair.client).unwrap();
    assert_eq!(recv_to_end(pair.server), (b"last words".to_vec(), Ok(())));
}

fn unread_bytes_are_counted_once_after_the_end() {
    let pair = joined_pair();
    send_all(pair.client, &pattern(1, 5_000));
    assert_eq!(unread(pair.server), 5_000);
    close(pair.client).unwrap();
    assert_eq!(unread(pair.server), 5_000);
    assert_bytes(&recv_exact(pair.server, 2_000), &pattern(1, 2_000));
    assert_eq!(unread(pair.server), 3_000);
    assert_bytes(&recv_to_end(pair.server).0, &pattern_at(1, 2_000, 3_000));
}

fn unread_bytes_are_discarded_once_after_the_end() {
    let pair = joined_pair();
    send_all(pair.client, &pattern(1, 5_000));
    shutdown(pair.client, SHUT_WR).unwrap();
    let mut some = [0; 100];
    assert_eq!(recv(pair.server, &mut some, libc::MSG_PEEK), Ok(100));
    assert_bytes(&some, &pattern(1, 100));
    assert_eq!(recv(pair.server, &mut [0; 4_000], libc::MSG_TRUNC), Ok(4_000));
    assert_bytes(&recv_to_end(pair.server).0, &pattern_at(1, 4_000, 1_000));
}

fn half_close_with_unread_data_before_the_peer_is_killed() {
    let (fd, child) = joined_with_child(|fd| {
        wait_for(fd, libc::POLLRDHUP);
        assert_eq!(recv_to_end(fd).0.len(), 5_000);
        kill(std::process::id().cast_signed(), libc::SIGKILL);
    });
    send_all(fd, &pattern(1, 5_000));
    shutdown(fd, SHUT_WR).unwrap();
    assert_eq!(recv(fd, &mut [0], 0), Ok(0));
    waitpid(child.0).unwrap();
}

fn end_is_reported_repeatedly() {
    let pair = joined_nonblocking();
    shutdown(pair.client, SHUT_WR).unwrap();
    wait_for(pair.server, POLLIN);
    for _ in 0..3 {
        assert_eq!(recv(pair.server, &mut [0; 4], 0), Ok(0));
        assert_eq!(recv(pair.server, &mut [0; 4], libc::MSG_PEEK), Ok(0));
    }
}

fn end_after_much_data() {
    let pair = joined_pair();
    let bytes = pattern(3, 6 << 20);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            send_all(pair.client, &bytes);
            close(pair.client).unwrap();
        });
        let (got, how) = recv_to_end(pair.server);
        assert_bytes(&got, &bytes);
        assert_eq!(how, Ok(()));
    });
}

fn half_closed_still_receives() {
    let pair = joined_pair();
    shutdown(pair.client, SHUT_WR).unwrap();
    assert_eq!(recv(pair.server, &mut [0], 0), Ok(0));
    for _ in 0..10 {
        send_all(pair.server, &pattern(1, 5000));
        assert_bytes(&recv_exact(pair.client, 5000), &pattern(1, 5000));
    }
    close(pair.server).unwrap();
    assert_eq!(recv(pair.client, &mut [0], 0), Ok(0));
}

fn half_close_with_data_in_flight() {
    let pair = joined_pair();
    let sent = fill(pair.client, 4);
    shutdown(pair.client, SHUT_WR).unwrap();
    let (got, how) = recv_to_end(pair.server);
    assert_bytes(&got, &pattern(4, sent));
    assert_eq!(how, Ok(()));
    send_all(pair.server, b"thanks");
    assert_eq!(recv_exact(pair.client, 6), b"thanks");
}

fn both_ends_shut_write_at_once() {
    let pair = joined_pair();
    send_all(pair.client, b"a");
    send_all(pair.server, b"b");
    shutdown(pair.client, SHUT_WR).unwrap();
    shutdown(pair.server, SHUT_WR).unwrap();
    assert_eq!(recv_to_end(pair.client), (b"b".to_vec(), Ok(())));
    assert_eq!(recv_to_end(pair.server), (b"a".to_vec(), Ok(())));
}

fn send_after_own_half_close() {
    let pair = joined_pair();
    shutdown(pair.client, SHUT_WR).unwrap();
    assert_eq!(send(pair.client, b"x", MSG_NOSIGNAL), Err(PIPE));
    assert_eq!(sendmsg(pair.client, &[b"x"], MSG_NOSIGNAL), Err(PIPE));
    assert_eq!(recv(pair.server, &mut [0; 4], 0), Ok(0));
}

fn send_after_own_half_close_raises_sigpipe() {
    let pair = joined_pair();
    handle(libc::SIGPIPE, counted, 0);
    shutdown(pair.client, SHUT_WR).unwrap();
    assert_eq!(write(pair.client, b"x"), Err(PIPE));
    assert_eq!(writev(pair.client, &[b"x"]), Err(PIPE));
    assert_eq!(send(pair.client, b"x", 0), Err(PIPE));
    assert_eq!(HANDLED.load(std::sync::atomic::Ordering::SeqCst), 3);
}

fn shutdown_for_reading_ends_reading() {
    let pair = joined_pair();
    shutdown(pair.server, SHUT_RD).unwrap();
    assert_eq!(recv(pair.server, &mut [0; 4], 0), Ok(0));
    send_all(pair.server, b"still sends");
    assert_eq!(recv_exact(pair.client, 11), b"still sends");
}

fn shutdown_for_reading_keeps_unread_data() {
    let pair = joined_pair();
    send_all(pair.client, b"unread");
    wait_for(pair.server, POLLIN);
    shutdown(pair.server, SHUT_RD).unwrap();
    assert_eq!(recv_to_end(pair.server), (b"unread".to_vec(), Ok(())));
}

fn shutdown_for_reading_wakes_a_reader() {
    let pair = joined_pair();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| assert_eq!(recv(pair.server, &mut [0; 4], 0), Ok(0)));
        pause_ms(30);
        assert!(!reader.is_finished());
        shutdown(pair.server, SHUT_RD).unwrap();
    });
}

fn shutdown_both() {
    let pair = joined_pair();
    send_all(pair.client, b"data");
    shutdown(pair.client, SHUT_RDWR).unwrap();
    assert_eq!(recv_to_end(pair.server), (b"data".to_vec(), Ok(())));
    assert_eq!(recv(pair.client, &mut [0; 4], 0), Ok(0));
    assert_eq!(send(pair.client, b"x", MSG_NOSIGNAL), Err(PIPE));
}

fn shutdown_both_wakes_a_reader() {
    let pair = joined_pair();
    std::thread::scope(|scope| {
        let own = scope.spawn(|| assert_eq!(recv(pair.client, &mut [0; 4], 0), Ok(0)));
        let other = scope.spawn(|| assert_eq!(recv(pair.server, &mut [0; 4], 0), Ok(0)));
        pause_ms(30);
        assert!(!own.is_finished() && !other.is_finished());
        shutdown(pair.client, SHUT_RDWR).unwrap();
    });
}

fn shutdown_for_writing_wakes_a_blocked_writer() {
    let pair = joined_pair();
    fill(pair.client, 1);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| send(pair.client, b"x", MSG_NOSIGNAL));
        pause_ms(30);
        assert!(!writer.is_finished());
        shutdown(pair.client, SHUT_WR).unwrap();
        assert_eq!(writer.join().unwrap(), Err(PIPE));
    });
}

fn shutdown_twice() {
    let pair = joined_pair();
    shutdown(pair.client, SHUT_WR).unwrap();
    shutdown(pair.client, SHUT_WR).unwrap();
    shutdown(pair.client, SHUT_RD).unwrap();
    assert_eq!(recv(pair.server, &mut [0; 4], 0), Ok(0));
}

fn shutdown_with_an_invalid_argument() {
    let pair = joined_pair();
    assert_eq!(shutdown(pair.client, 17), Err(INVAL));
    one_byte(pair.client, pair.server);
    assert_state(pair.client, JOINED);
}

fn shutdown_before_joining() {
    let pair = unused_pair();
    shutdown(pair.client, SHUT_WR).unwrap();
    assert_eq!(recv(pair.server, &mut [0; 4], 0), Ok(0));
    for round in 0..200 {
        send_all(pair.server, &pattern(round, 1000));
        assert_bytes(&recv_exact(pair.client, 1000), &pattern(round, 1000));
    }
    close(pair.server).unwrap();
    assert_eq!(recv(pair.client, &mut [0; 4], 0), Ok(0));
}

/// Sends until the error arrives; the first sends after a close may still succeed.
#[track_caller]
fn send_until_error(fd: Fd) -> Errno {
    let mut refused = None;
    eventually("a send is refused", || {
        refused = send(fd, b"x", MSG_NOSIGNAL).err();
        refused.is_some()
    });
    refused.unwrap()
}

fn peer_closed_then_send_gets_a_pipe_error() {
    let pair = joined_pair();
    close(pair.client).unwrap();
    assert_eq!(recv(pair.server, &mut [0; 4], 0), Ok(0));
    assert_eq!(send(pair.server, b"first", MSG_NOSIGNAL), Ok(5));
    let refused = send_until_error(pair.server);
    assert_eq!(refused, PIPE);
}

fn peer_closed_then_write_raises_sigpipe() {
    let pair = joined_pair();
    handle(libc::SIGPIPE, counted, 0);
    close(pair.client).unwrap();
    eventually("a write is refused", || write(pair.server, b"x").is_err());
    assert_eq!(write(pair.server, b"x"), Err(PIPE));
    assert!(HANDLED.load(std::sync::atomic::Ordering::SeqCst) > 0);
}

fn close_with_unread_data_resets_the_peer() {
    let pair = joined_pair();
    send_all(pair.client, b"never read");
    wait_for(pair.server, POLLIN);
    close(pair.server).unwrap();
    assert_eq!(recv(pair.client, &mut [0; 4], 0), Err(RESET));
    assert_eq!(recv(pair.client, &mut [0; 4], 0), Ok(0));
    assert_eq!(send(pair.client, b"x", MSG_NOSIGNAL), Err(PIPE));
}

fn close_with_unread_data_resets_a_blocked_reader() {
    let pair = joined_pair();
    send_all(pair.client, b"never read");
    wait_for(pair.server, POLLIN);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| assert_eq!(recv(pair.client, &mut [0; 4], 0), Err(RESET)));
        pause_ms(20);
        assert!(!reader.is_finished());
        close(pair.server).unwrap();
    });
}

fn close_with_unread_data_resets_a_blocked_writer() {
    let pair = joined_pair();
    fill(pair.client, 1);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| send(pair.client, b"x", MSG_NOSIGNAL));
        pause_ms(20);
        assert!(!writer.is_finished());
        close(pair.server).unwrap();
        let outcome = writer.join().unwrap();
        assert!([Err(RESET), Err(PIPE)].contains(&outcome), "{outcome:?}");
    });
}

fn reset_by_linger() {
    let pair = joined_pair();
    close_with_reset(pair.client);
    assert_eq!(recv(pair.server, &mut [0; 4], 0), Err(RESET));
}

fn reset_wakes_a_reader() {
    let pair = joined_pair();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| assert_eq!(recv(pair.server, &mut [0; 4], 0), Err(RESET)));
        pause_ms(30);
        assert!(!reader.is_finished());
        close_with_reset(pair.client);
    });
}

fn reset_error_is_reported_once() {
    let pair = joined_pair();
    close_with_reset(pair.client);
    assert_eq!(recv(pair.server, &mut [0; 4], 0), Err(RESET));
    assert_eq!(recv(pair.server, &mut [0; 4], 0), Ok(0));
    assert_eq!(recv(pair.server, &mut [0; 4], 0), Ok(0));
}

/// Data that arrived before the reset is still returned, then the reset is reported.
fn reset_after_data_in_flight() {
    let pair = joined_pair();
    send_all(pair.client, b"before");
    wait_for(pair.server, POLLIN);
    close_with_reset(pair.client);
    wait_for(pair.server, POLLHUP);
    let (got, how) = recv_to_end(pair.server);
    assert_eq!((&got[..], how), (&b"before"[..], Err(RESET)));
}

fn reset_is_visible_in_so_error() {
    let pair = joined_pair();
    close_with_reset(pair.client);
    wait_for(pair.server, POLLHUP);
    let error = || option(pair.server, libc::SOL_SOCKET, libc::SO_ERROR);
    assert_eq!(error(), Ok(libc::ECONNRESET));
    assert_eq!(error(), Ok(0));
    assert_eq!(recv(pair.server, &mut [0; 4], 0), Ok(0));
}

fn recv_after_reset_and_send_after_reset() {
    let pair = joined_pair();
    close_with_reset(pair.client);
    wait_for(pair.server, POLLHUP);
    assert_eq!(send(pair.server, b"x", MSG_NOSIGNAL), Err(RESET));
    assert_eq!(send(pair.server, b"x", MSG_NOSIGNAL), Err(PIPE));
    assert_eq!(recv(pair.server, &mut [0; 4], 0), Ok(0));
}

fn sleep_forever(_: Fd) {
    loop {
        pause_ms(1000);
    }
}

fn killed_peer_idle_is_an_end() {
    let (fd, child) = joined_with_child(sleep_forever);
    child.kill();
    assert_eq!(recv(fd, &mut [0; 4], 0), Ok(0));
}

fn killed_peer_while_reading() {
    let (fd, child) = joined_with_child(|fd| {
        let _ = recv(fd, &mut [0; 4], 0);
    });
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| assert_eq!(recv(fd, &mut [0; 4], 0), Ok(0)));
        pause_ms(20);
        assert!(!reader.is_finished());
        child.kill();
    });
}

fn killed_peer_while_writing() {
    let (fd, child) = joined_with_child(|fd| {
        let bytes = pattern(6, 24 << 20);
        let _ = send(fd, &bytes, 0);
    });
    assert_bytes(&recv_exact(fd, 1 << 20), &pattern(6, 1 << 20));
    child.kill();
    let (got, how) = recv_to_end(fd);
    assert_bytes(&got, &pattern_at(6, 1 << 20, got.len()));
    assert_eq!(how, Ok(()));
}

fn killed_peer_with_our_data_unread_is_a_reset() {
    let fd = joined_with_a_peer_killed_before_it_read();
    assert_eq!(recv(fd, &mut [0; 4], 0), Err(RESET));
}

#[track_caller]
fn joined_with_a_peer_killed_before_it_read() -> Fd {
    let (fd, child) = joined_with_child(sleep_forever);
    send_all(fd, b"never read");
    // Linux sends the reset only once it has acknowledged the data, which it may delay by 40 ms.
    pause_ms(120);
    child.kill();
    fd
}

fn killed_peer_with_our_data_unread_receives_no_more() {
    let fd = joined_with_a_peer_killed_before_it_read();
    assert_eq!(recv(fd, &mut [0; 4], 0), Err(RESET));
    assert_eq!(recv(fd, &mut [0; 4], 0), Ok(0));
    for _ in 0..2 {
        assert_eq!(send(fd, b"x", MSG_NOSIGNAL), Err(PIPE));
    }
}

/// The peer sends, then dissolves the connection, which resets it. Calls that ask for more than
/// that get the bytes; the next one gets the error.
fn reset_behind_bytes_is_left_to_the_next_call() {
    for flags in [0, MSG_DONTWAIT, libc::MSG_WAITALL] {
        let pair = joined_pair();
        send_all(pair.client, b"hello");
        // SAFETY: all zero is a valid address; its family says that there is none.
        let none: libc::sockaddr = unsafe { std::mem::zeroed() };
        let length = size_of_val(&none) as libc::socklen_t;
        // SAFETY: the address is live for the call.
        assert_eq!(unsafe { libc::connect(pair.client, &raw const none, length) }, 0);
        eventually("the reset has come", || ready(pair.server, POLLIN, 0) & POLLHUP != 0);
        assert_eq!(recv(pair.server, &mut [0; 100], flags), Ok(5), "{flags:#x}");
        assert_eq!(recv(pair.server, &mut [0; 100], flags), Err(RESET), "{flags:#x}");
        assert_eq!(recv(pair.server, &mut [0; 100], flags), Ok(0), "{flags:#x}");
        assert_eq!(send(pair.server, b"x", MSG_NOSIGNAL), Err(PIPE), "{flags:#x}");
    }
}

fn killed_peer_after_its_data() {
    let (fd, child) = joined_with_child(|fd| {
        send_all(fd, &pattern(7, 50_000));
        sleep_forever(fd);
    });
    eventually("all has come", || unread(fd) == 50_000);
    child.kill();
    let (got, how) = recv_to_end(fd);
    assert_bytes(&got, &pattern(7, 50_000));
    assert_eq!(how, Ok(()));
}

/// The peer is killed `round` times 0.3 ms after it began.
fn killed_peer_at_random_moments_while_it_sends() {
    for round in 0..20u64 {
        let (fd, child) = joined_with_child(|fd| {
            let mut at = 0;
            loop {
                let count = at * 31 % 3000 + 1;
                send_all(fd, &pattern_at(round, at, count));
                at += count;
            }
        });
        let killer = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_micros(round * 300));
            child.kill();
        });
        let (got, how) = recv_to_end(fd);
        assert_bytes(&got, &pattern(round, got.len()));
        assert!([Ok(()), Err(RESET)].contains(&how), "{how:?}");
        killer.join().unwrap();
        close(fd).unwrap();
    }
}

fn killed_peer_at_random_moments_while_it_receives() {
    for round in 0..20u64 {
        let (fd, child) = joined_with_child(|fd| {
            let mut buffer = vec![0; 5000];
            let mut at = 0;
            loop {
                let count = recv(fd, &mut buffer, 0).unwrap();
                assert_bytes(&buffer[..count], &pattern_at(round, at, count));
                at += count;
            }
        });
        let killer = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_micros(round * 300));
            child.kill();
        });
        let mut at = 0;
        let error = loop {
            match send(fd, &pattern_at(round, at, 1777), MSG_NOSIGNAL) {
                Ok(count) => at += count,
                Err(error) => break error,
            }
        };
        assert!([RESET, PIPE].contains(&error), "{error:?}");
        killer.join().unwrap();
        close(fd).unwrap();
    }
}

fn exit_of_the_peer_is_an_end() {
    let (fd, child) = joined_with_child(|fd| send_all(fd, b"bye"));
    assert_eq!(recv_to_end(fd), (b"bye".to_vec(), Ok(())));
    child.join();
}

fn end_for_every_waiter() {
    let pair = joined_pair();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| assert_eq!(recv(pair.server, &mut [0; 4], 0), Ok(0)));
        }
        pause_ms(30);
        shutdown(pair.client, SHUT_WR).unwrap();
    });
}

fn end_for_a_peeker() {
    let pair = joined_pair();
    send_all(pair.client, b"ab");
    close(pair.client).unwrap();
    let mut buffer = [0; 4];
    let flags = libc::MSG_PEEK | libc::MSG_WAITALL;
    assert_eq!(recv(pair.server, &mut buffer, flags), Ok(2));
    assert_eq!(recv(pair.server, &mut buffer, 0), Ok(2));
    assert_eq!(recv(pair.server, &mut buffer, libc::MSG_PEEK), Ok(0));
}

fn shutdown_returns_not_connected_afterwards() {
    let pair = joined_pair();
    close(pair.client).unwrap();
    assert_eq!(recv(pair.server, &mut [0], 0), Ok(0));
    shutdown(pair.server, SHUT_WR).unwrap();
    eventually("the connection is over", || getpeername(pair.server).is_err());
    assert_eq!(getpeername(pair.server).map(drop), Err(NOTCONN));
    assert_eq!(shutdown(pair.server, SHUT_WR), Err(NOTCONN));
}

fn closed_descriptor_is_bad() {
    let pair = joined_pair();
    close(pair.client).unwrap();
    assert_eq!(close(pair.client), Err(BADF));
    assert_eq!(send(pair.client, b"x", MSG_NOSIGNAL), Err(BADF));
    assert_eq!(recv(pair.client, &mut [0], 0), Err(BADF));
    assert_eq!(shutdown(pair.client, SHUT_WR), Err(BADF));
    assert_eq!(read(-1, &mut [0]), Err(BADF));
}

fn linger_with_time_delivers() {
    let pair = joined_pair();
    let linger = libc::linger { l_onoff: 1, l_linger: 5 };
    set_option(pair.client, libc::SOL_SOCKET, libc::SO_LINGER, linger).unwrap();
    let bytes = pattern(1, 50_000);
    send_all(pair.client, &bytes);
    close(pair.client).unwrap();
    let (got, how) = recv_to_end(pair.server);
    assert_bytes(&got, &bytes);
    assert_eq!(how, Ok(()));
}

fn close_delivers_what_was_sent() {
    let pair = joined_pair();
    let sent = fill(pair.client, 8);
    close(pair.client).unwrap();
    let (got, how) = recv_to_end(pair.server);
    assert_bytes(&got, &pattern(8, sent));
    assert_eq!(how, Ok(()));
}

fn peer_closes_while_we_fill_the_buffer() {
    let pair = joined_nonblocking();
    fill(pair.client, 8);
    assert_eq!(ready(pair.client, POLLOUT, 0), 0);
    close(pair.server).unwrap();
    let shown = ready(pair.client, POLLOUT, SOON_MS);
    assert_ne!(shown & POLLHUP, 0, "{shown:#x}");
    let outcome = send(pair.client, b"x", MSG_NOSIGNAL | MSG_DONTWAIT);
    assert!([Err(RESET), Err(PIPE)].contains(&outcome), "{outcome:?}");
}
