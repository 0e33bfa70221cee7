//! Several threads or processes send on one end of a connection. The bytes of a call stay together,
//! as far as the kernel keeps them together.

use std::sync::Barrier;

use crate::calls::*;
use crate::support::joined_without_delay as joined_pair;
use crate::support::*;

behaviours![
    small_messages_of_four_threads,
    small_messages_of_two_processes,
    small_messages_of_threads_of_two_processes,
    vectors_of_four_threads,
    vectors_of_two_processes,
    messages_of_parts_of_four_threads,
    large_messages_of_three_threads,
    large_messages_of_two_processes,
    messages_for_which_the_pipe_has_no_space,
    messages_of_threads_that_do_not_block,
];

/// How a sender sends a message, whose bytes are all the same.
type Send = fn(Fd, &[u8]);

fn by_send(fd: Fd, message: &[u8]) {
    assert_eq!(send(fd, message, 0), Ok(message.len()));
}

/// In 27 parts.
fn by_vector(fd: Fd, message: &[u8]) {
    let parts: Vec<&[u8]> = message.chunks(message.len().div_ceil(27)).collect();
    assert_eq!(writev(fd, &parts), Ok(message.len()));
}

/// In parts of which the first is small, as a header before a body.
fn by_message(fd: Fd, message: &[u8]) {
    let (header, body) = message.split_at(8);
    assert_eq!(sendmsg(fd, &[header, body], 0), Ok(message.len()));
}

/// Sends `count` messages of `bytes` from each of `threads` threads, whose letters begin with
/// `letter`.
fn send_from_threads(fd: Fd, send: Send, letter: u8, threads: u8, count: usize, bytes: usize) {
    let begin = Barrier::new(threads.into());
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let begin = &begin;
            scope.spawn(move || {
                begin.wait();
                let message = vec![letter + thread; bytes];
                for idx in 0..count {
                    send(fd, &message);
                    if idx % 50 == 0 {
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
}

/// Receives `count` messages of `bytes`, in pieces of varying sizes and by several ways of waiting,
/// and checks that each is whole.
#[track_caller]
fn check_messages(fd: Fd, count: usize, bytes: usize) {
    let (mut received, mut buffer) = (vec![], vec![0; 4 * bytes]);
    for round in 0_usize.. {
        let size = match round % 7 {
            0 => 1 + round % bytes,
            1 => bytes / 2,
            2 => 3 * bytes + 5,
            _ => 4 * bytes,
        };
        match round % 5 {
            0 => wait_for(fd, libc::POLLIN),
            1 if round % 3 == 0 => pause_ms(1),
            _ => {}
        }
        let left = count * bytes - received.len();
        let got = recv(fd, &mut buffer[..size.min(left)], 0).unwrap();
        assert_ne!(got, 0, "end of stream");
        received.extend_from_slice(&buffer[..got]);
        if received.len() == count * bytes {
            break;
        }
    }
    let torn = received.chunks(bytes).filter(|it| it.iter().any(|byte| *byte != it[0])).count();
    assert_eq!(torn, 0, "of {count} messages of {bytes} bytes are torn");
}

/// Messages from so many threads of one process.
#[track_caller]
fn check_threads(send: Send, threads: u8, count: usize, bytes: usize) {
    let pair = joined_pair();
    for _ in 0..4 {
        std::thread::scope(|scope| {
            scope.spawn(|| send_from_threads(pair.client, send, b'a', threads, count, bytes));
            check_messages(pair.server, usize::from(threads) * count, bytes);
        });
    }
}

/// Messages from so many threads in each of two processes.
#[track_caller]
fn check_processes(send: Send, threads: u8, count: usize, bytes: usize) {
    let pair = joined_pair();
    let senders = [b'a', b'm'].map(|letter| {
        spawn(|| {
            close(pair.server).unwrap();
            send_from_threads(pair.client, send, letter, threads, count, bytes);
        })
    });
    check_messages(pair.server, 2 * usize::from(threads) * count, bytes);
    senders.into_iter().for_each(Process::join);
}

fn small_messages_of_four_threads() {
    check_threads(by_send, 4, 2000, 64);
}

fn small_messages_of_two_processes() {
    check_processes(by_send, 1, 8000, 64);
}

fn small_messages_of_threads_of_two_processes() {
    check_processes(by_send, 2, 3000, 64);
}

fn vectors_of_four_threads() {
    check_threads(by_vector, 4, 1500, 216);
}

fn vectors_of_two_processes() {
    check_processes(by_vector, 1, 5000, 216);
}

fn messages_of_parts_of_four_threads() {
    check_threads(by_message, 4, 1500, 500);
}

fn large_messages_of_three_threads() {
    check_threads(by_message, 3, 20, 16_000);
}

fn large_messages_of_two_processes() {
    check_processes(by_vector, 1, 30, 16_000);
}

/// Together they are longer than the space of a pipe, and shorter than the kernel's.
fn messages_for_which_the_pipe_has_no_space() {
    check_threads(by_send, 4, 6, 40_000);
}

/// A call that would block is made again: it has sent nothing.
fn messages_of_threads_that_do_not_block() {
    let pair = joined_pair();
    nonblocking(pair.client, true);
    let send: Send = |fd, message| {
        while send(fd, message, 0) == Err(AGAIN) {
            wait_for(fd, libc::POLLOUT);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| send_from_threads(pair.client, send, b'a', 4, 4000, 64));
        check_messages(pair.server, 16_000, 64);
    });
}
