//! Much data: full buffers that overflow from memory into the kernel, both directions at once,
//! every mixture of calls, readers that sleep or read little.

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_MOD, MSG_DONTWAIT, MSG_NOSIGNAL, POLLIN, POLLOUT, pollfd};

use crate::calls::*;
use crate::support::joined_without_delay as joined_pair;
use crate::support::*;
use crate::ways::*;

behaviours![
    both_directions_at_once_by_poll,
    both_directions_at_once_by_select,
    both_directions_at_once_by_level_triggered_epoll,
    both_directions_at_once_by_edge_triggered_epoll,
    both_ends_in_one_event_loop,
    filled_and_emptied_again_and_again,
    filled_and_emptied_in_parts,
    full_in_both_directions_and_emptied_in_turn,
    receiver_that_sleeps_gets_everything_in_order,
    receiver_that_sleeps_and_wakes_again_and_again,
    receiver_that_reads_one_byte_at_a_time,
    sender_that_writes_one_byte_at_a_time,
    stream_of_small_messages_with_pauses_now_and_then,
    every_mixture_of_calls,
    every_mixture_of_calls_between_two_processes,
    every_mixture_of_waits_between_two_processes,
    partial_sends_of_every_call_on_a_full_socket,
    sendmmsg_stops_where_the_buffer_is_full,
    proxy_by_buffers,
    proxy_by_splice,
    proxy_of_connections_by_epoll,
    sendfile_while_joining,
    splice_while_joining,
    sendfile_between_other_calls,
    sendfile_never_ends_before_the_file,
    space_is_announced_for_large_sends_only_when_enough,
    vector_across_a_full_buffer,
    stopped_receiver_and_a_sender_that_waits,
    many_connections_share_the_cpus,
    bursts_with_pauses,
    ten_thousand_pings_of_two_processes,
];

/// Numbers without a pattern, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as usize % limit
    }
}

/// One end of an exchange in both directions: sends one pattern and expects another.
struct End {
    fd: Fd,
    sends: u64,
    expects: u64,
    total: usize,
    sent: usize,
    got: usize,
}

impl End {
    fn new(fd: Fd, sends: u64, expects: u64, total: usize) -> End {
        End { fd, sends, expects, total, sent: 0, got: 0 }
    }

    /// Sends until nothing more fits; whether something is left.
    fn send(&mut self) -> bool {
        while self.sent < self.total {
            let piece = pattern_at(self.sends, self.sent, (self.total - self.sent).min(7000));
            match send(self.fd, &piece, MSG_DONTWAIT | MSG_NOSIGNAL) {
                Ok(count) => self.sent += count,
                Err(error) => {
                    assert_eq!(error, AGAIN);
                    return true;
                }
            }
        }
        false
    }

    /// Receives what is there.
    fn receive(&mut self) {
        let mut buffer = [0; 9000];
        while self.got < self.total {
            match recv(self.fd, &mut buffer, MSG_DONTWAIT) {
                Ok(0) => panic!("the end after {} bytes", self.got),
                Ok(count) => {
                    assert_bytes(&buffer[..count], &pattern_at(self.expects, self.got, count));
                    self.got += count;
                }
                Err(error) => return assert_eq!(error, AGAIN),
            }
        }
    }

    fn is_over(&self) -> bool {
        self.sent == self.total && self.got == self.total
    }
}

const MUCH: usize = 3 << 20;

/// Both processes send and receive at the same time, with `wait` between the calls. `wait` gets
/// whether space is needed, and returns whether data and space are there.
#[track_caller]
fn check_at_the_same_time(wait: impl Fn(&End, bool) -> [bool; 2]) {
    let run = |fd: Fd, sends: u64, expects: u64| {
        let mut end = End::new(fd, sends, expects, MUCH);
        let mut needs_space = end.send();
        while !end.is_over() {
            let [data, space] = wait(&end, needs_space);
            if data {
                end.receive();
            }
            if space {
                needs_space = end.send();
            }
        }
    };
    let (fd, child) = joined_with_child(|fd| {
        run(fd, 1, 2);
        // The other end may have bytes of this one unread; closing must wait for them.
        assert_eq!(recv(fd, &mut [0], 0), Ok(0));
    });
    run(fd, 2, 1);
    close(fd).unwrap();
    child.join();
}

fn both_directions_at_once_by_poll() {
    check_at_the_same_time(|end, needs_space| {
        let events = if needs_space { POLLIN | POLLOUT } else { POLLIN };
        let shown = ready(end.fd, events, SOON_MS);
        assert_ne!(shown, 0);
        [shown & POLLIN != 0, shown & POLLOUT != 0]
    });
}

fn both_directions_at_once_by_select() {
    check_at_the_same_time(|end, needs_space| {
        let (mut reads, mut writes) = (Set::of(&[end.fd]), Set::of(&[end.fd]));
        let writes = needs_space.then_some(&mut writes);
        let mut copy = Set::of(&[]);
        let mut time_us = i64::from(SOON_MS) * 1000;
        match writes {
            Some(writes) => {
                select(Some(&mut reads), Some(writes), None, Some(&mut time_us)).unwrap();
                copy = *writes;
            }
            None => drop(select(Some(&mut reads), None, None, Some(&mut time_us)).unwrap()),
        }
        [reads.has(end.fd), copy.has(end.fd)]
    });
}

/// Waits for a set that is made at the first call of each process.
fn wait_in_set(set: &std::cell::Cell<Fd>, end: &End, events: u32) -> [bool; 2] {
    if set.get() < 0 {
        set.set(epoll_create());
        epoll_ctl(set.get(), EPOLL_CTL_ADD, end.fd, events, 0).unwrap();
    } else if events & EDGE == 0 {
        epoll_ctl(set.get(), EPOLL_CTL_MOD, end.fd, events, 0).unwrap();
    }
    let found = epoll_wait(set.get(), 4, SOON_MS).unwrap();
    assert_eq!(found.len(), 1, "nothing for {SOON_MS} ms");
    [found[0].0 & IN != 0, found[0].0 & OUT != 0]
}

fn both_directions_at_once_by_level_triggered_epoll() {
    let set = std::cell::Cell::new(-1);
    check_at_the_same_time(|end, needs_space| {
        wait_in_set(&set, end, if needs_space { IN | OUT } else { IN })
    });
}

fn both_directions_at_once_by_edge_triggered_epoll() {
    let set = std::cell::Cell::new(-1);
    check_at_the_same_time(|end, _| wait_in_set(&set, end, IN | OUT | EDGE));
}

/// One thread holds both ends, which send to each other.
fn both_ends_in_one_event_loop() {
    for kind in [0, EDGE] {
        let pair = joined_pair();
        let mut ends =
            [End::new(pair.client, 1, 2, MUCH / 2), End::new(pair.server, 2, 1, MUCH / 2)];
        let set = epoll_create();
        for (index, end) in ends.iter().enumerate() {
            epoll_ctl(set, EPOLL_CTL_ADD, end.fd, IN | OUT | kind, index as u64).unwrap();
        }
        while !ends.iter().all(End::is_over) {
            let found = epoll_wait(set, 4, SOON_MS).unwrap();
            assert!(!found.is_empty(), "nothing for {SOON_MS} ms");
            for (events, index) in found {
                let end = &mut ends[index as usize];
                if events & IN != 0 {
                    end.receive();
                }
                if events & OUT != 0 && !end.send() && kind == 0 {
                    epoll_ctl(set, EPOLL_CTL_MOD, end.fd, IN, index).unwrap();
                }
            }
        }
        join_both_ends(pair);
    }
}

/// Sends bytes of a pattern until a call finds no space; returns how many.
#[track_caller]
fn send_until_full(fd: Fd, seed: u64) -> usize {
    let mut sent = 0;
    loop {
        match send(fd, &pattern_at(seed, sent, 9_000), MSG_DONTWAIT | MSG_NOSIGNAL) {
            Ok(count) => sent += count,
            Err(error) => {
                assert_eq!(error, AGAIN);
                return sent;
            }
        }
    }
}

fn filled_and_emptied_again_and_again() {
    let pair = small_pair();
    for _ in 0..10 {
        let sent = send_until_full(pair.client, 3);
        assert_bytes(&recv_exact(pair.server, sent), &pattern(3, sent));
        assert_eq!(recv(pair.server, &mut [0], MSG_DONTWAIT), Err(AGAIN));
        join_both_ends(pair);
    }
}

/// The boundary between memory and the kernel moves through the stream.
fn filled_and_emptied_in_parts() {
    let pair = small_pair();
    let (mut sent, mut got, mut numbers) = (0, 0, Numbers(7));
    for _ in 0..60 {
        loop {
            let size = numbers.below(9000) + 1;
            match send(pair.client, &pattern_at(3, sent, size), MSG_DONTWAIT | MSG_NOSIGNAL) {
                Ok(count) => sent += count,
                Err(error) => break assert_eq!(error, AGAIN),
            }
        }
        let part = numbers.below(sent - got + 1);
        assert_bytes(&recv_exact(pair.server, part), &pattern_at(3, got, part));
        got += part;
    }
    assert_bytes(&recv_exact(pair.server, sent - got), &pattern_at(3, got, sent - got));
    join_both_ends(pair);
}

fn full_in_both_directions_and_emptied_in_turn() {
    let pair = small_pair();
    let there = send_until_full(pair.client, 1);
    let back = send_until_full(pair.server, 2);
    assert_bytes(&recv_exact(pair.server, there / 2), &pattern(1, there / 2));
    assert_bytes(&recv_exact(pair.client, back), &pattern(2, back));
    let rest = there - there / 2;
    assert_bytes(&recv_exact(pair.server, rest), &pattern_at(1, there / 2, rest));
    join_both_ends(pair);
}

fn receiver_that_sleeps_gets_everything_in_order() {
    let (fd, child) = joined_with_child(|fd| {
        pause_ms(40);
        assert_bytes(&recv_to_end(fd).0, &pattern(1, MUCH));
    });
    send_all(fd, &pattern(1, MUCH));
    close(fd).unwrap();
    child.join();
}

fn receiver_that_sleeps_and_wakes_again_and_again() {
    let (fd, child) = joined_with_child(|fd| {
        let mut numbers = Numbers(3);
        let (mut at, mut buffer) = (0, vec![0; 200_000]);
        loop {
            let size = numbers.below(buffer.len()) + 1;
            match recv(fd, &mut buffer[..size], 0).unwrap() {
                0 => break,
                count => {
                    assert_bytes(&buffer[..count], &pattern_at(1, at, count));
                    at += count;
                }
            }
            if numbers.below(4) == 0 {
                pause_ms(1);
            }
        }
        assert_eq!(at, MUCH);
    });
    let (mut numbers, mut at) = (Numbers(4), 0);
    while at < MUCH {
        let size = (numbers.below(90_000) + 1).min(MUCH - at);
        send_all(fd, &pattern_at(1, at, size));
        at += size;
    }
    close(fd).unwrap();
    child.join();
}

fn receiver_that_reads_one_byte_at_a_time() {
    let (fd, child) = joined_with_child(|fd| {
        let bytes = pattern(1, 20_000);
        for byte in bytes {
            assert_eq!(recv_exact(fd, 1), [byte]);
        }
    });
    send_all(fd, &pattern(1, 20_000));
    assert_eq!(recv(fd, &mut [0], 0), Ok(0));
    child.join();
}

fn sender_that_writes_one_byte_at_a_time() {
    let (fd, child) = joined_with_child(|fd| {
        for byte in pattern(1, 20_000) {
            assert_eq!(write(fd, &[byte]), Ok(1));
        }
    });
    assert_eq!(recv_to_end(fd), (pattern(1, 20_000), Ok(())));
    child.join();
}

/// The receiver blocks in each call, and at first it is asleep: the stream begins in the kernel.
/// No byte may be lost, doubled or out of order when it goes over to memory.
fn stream_of_small_messages_with_pauses_now_and_then() {
    const TOTAL: usize = 6 << 20;
    let (fd, child) = joined_with_child(|fd| {
        assert_bytes(&recv_exact(fd, TOTAL), &pattern(1, TOTAL));
        send_all(fd, b"k");
    });
    let bytes = pattern(1, TOTAL);
    let (mut numbers, mut sent) = (Numbers(1), 0);
    pause_ms(5);
    while sent < TOTAL {
        let end = TOTAL.min(sent + 1 + numbers.below(100));
        send_all(fd, &bytes[sent..end]);
        sent = end;
        if numbers.below(10_000) == 0 {
            pause_ms(3);
        }
    }
    assert_eq!(recv_exact(fd, 1), b"k");
    child.join();
}

/// Sends some bytes of a pattern by a call that `number` chooses; returns how many.
fn send_somehow(fd: Fd, number: usize, bytes: &[u8]) -> Outcome {
    let half = bytes.len() / 2;
    match number % 7 {
        0 => send(fd, bytes, MSG_NOSIGNAL),
        1 => write(fd, bytes),
        2 => writev(fd, &[&bytes[..half], &[], &bytes[half..]]),
        3 => sendmsg(fd, &[&bytes[..half], &bytes[half..]], MSG_NOSIGNAL),
        4 => sendto(fd, bytes, MSG_NOSIGNAL, None),
        5 => sendmmsg(fd, &[&[&bytes[..half]], &[&bytes[half..]]], MSG_NOSIGNAL)
            .map(|sent| sent.iter().sum()),
        _ => send(fd, bytes, MSG_NOSIGNAL | libc::MSG_MORE),
    }
}

/// Receives at most `size` bytes by a call that `number` chooses.
fn receive_somehow(fd: Fd, number: usize, size: usize) -> Outcome<Vec<u8>> {
    let mut bytes = vec![0; size];
    let half = size / 2;
    let count = match number % 8 {
        0 => recv(fd, &mut bytes, 0)?,
        1 => read(fd, &mut bytes)?,
        2 => {
            let (one, two) = bytes.split_at_mut(half);
            readv(fd, &mut [one, two])?
        }
        3 => {
            let (one, two) = bytes.split_at_mut(half);
            recvmsg(fd, &mut [one, two], 0)?.0
        }
        4 => recvfrom(fd, &mut bytes, 0)?.0,
        5 => recvmmsg(fd, &mut [&mut bytes[..]], 0)?[0],
        6 => {
            let peeked = recv(fd, &mut bytes, libc::MSG_PEEK)?;
            let seen = bytes[..peeked].to_vec();
            let count = recv(fd, &mut bytes[..peeked], 0)?;
            assert_bytes(&bytes[..count], &seen[..count]);
            count
        }
        _ => {
            let wanted = size.min(unread(fd) as usize).max(1);
            recv(fd, &mut bytes[..wanted], libc::MSG_WAITALL)?
        }
    };
    bytes.truncate(count);
    Ok(bytes)
}

fn send_mixture(fd: Fd, total: usize) {
    let (mut numbers, mut at) = (Numbers(11), 0);
    while at < total {
        let limit = [10, 300, 5_000, 60_000][numbers.below(4)];
        let size = (numbers.below(limit) + 2).min(total - at);
        at += send_somehow(fd, numbers.below(7), &pattern_at(1, at, size)).unwrap();
    }
    shutdown(fd, libc::SHUT_WR).unwrap();
}

fn receive_mixture(fd: Fd, total: usize) {
    let (mut numbers, mut at) = (Numbers(12), 0);
    loop {
        let limit = [10, 300, 5_000, 60_000][numbers.below(4)];
        let got = receive_somehow(fd, numbers.below(8), numbers.below(limit) + 2).unwrap();
        if got.is_empty() {
            return assert_eq!(at, total);
        }
        assert_bytes(&got, &pattern_at(1, at, got.len()));
        at += got.len();
    }
}

fn every_mixture_of_calls() {
    let pair = joined_pair();
    std::thread::scope(|scope| {
        scope.spawn(|| send_mixture(pair.client, MUCH));
        receive_mixture(pair.server, MUCH);
    });
}

fn every_mixture_of_calls_between_two_processes() {
    let (fd, child) = joined_with_child(|fd| send_mixture(fd, MUCH));
    receive_mixture(fd, MUCH);
    close(fd).unwrap();
    child.join();
}

fn every_mixture_of_waits_between_two_processes() {
    let run = |fd: Fd, leads: bool| {
        let ways = WAYS.map(|way| Waiter::for_data(way, fd));
        let mut numbers = Numbers(5 + u64::from(leads));
        for round in 0..400 {
            let size = |round: u64| (round as usize * 31) % 80 + 1;
            if leads {
                send_all(fd, &pattern(round, size(round)));
            }
            ways[numbers.below(WAYS.len())].wait();
            assert_bytes(&recv_exact(fd, size(round)), &pattern(round, size(round)));
            // The edge-triggered set still holds the event of a message that another way reported.
            ways[6].shows(0);
            if numbers.below(50) == 0 {
                pause_ms(1);
            }
            if !leads {
                send_all(fd, &pattern(round, size(round)));
            }
        }
    };
    let (fd, child) = joined_with_child(|fd| run(fd, true));
    run(fd, false);
    child.join();
}

fn partial_sends_of_every_call_on_a_full_socket() {
    for call in 0..7 {
        let pair = small_pair();
        nonblocking(pair.client, true);
        let mut sent = send_until_full(pair.client, 1);
        while let Ok(count) = send_somehow(pair.client, call, &pattern_at(1, sent, 100_000)) {
            sent += count;
        }
        let mut part = 0;
        while ready(pair.client, POLLOUT, 0) == 0 {
            let size = 1000.min(sent - part);
            assert_ne!(size, 0, "no space after everything was read");
            assert_bytes(&recv_exact(pair.server, size), &pattern_at(1, part, size));
            part += size;
        }
        let count = send_somehow(pair.client, call, &pattern_at(1, sent, 1 << 20)).unwrap();
        assert!(0 < count && count < 1 << 20, "{count} bytes by call {call}");
        sent += count;
        assert_bytes(&recv_exact(pair.server, sent - part), &pattern_at(1, part, sent - part));
    }
}

fn sendmmsg_stops_where_the_buffer_is_full() {
    let pair = small_pair();
    nonblocking(pair.client, true);
    let message = pattern(1, 60_000);
    let parts = [&message[..]];
    let messages = [&parts[..]; 100];
    let sent = sendmmsg(pair.client, &messages, MSG_NOSIGNAL).unwrap();
    assert!(sent.len() < 100, "all messages were sent");
    let complete = &sent[..sent.len() - 1];
    assert!(complete.iter().all(|count| *count == 60_000), "{sent:?}");
    for count in sent {
        assert_bytes(&recv_exact(pair.server, count), &message[..count]);
    }
    assert_eq!(recv(pair.server, &mut [0], MSG_DONTWAIT), Err(AGAIN));
}

/// What a program sends to a connection comes out of another one, through `forward`.
#[track_caller]
fn check_proxy(forward: impl FnOnce(Fd, Fd)) {
    let (near, far) = (joined_pair(), joined_pair());
    let proxy = spawn(|| {
        [near.client, far.server].into_iter().for_each(|fd| close(fd).unwrap());
        forward(near.server, far.client);
        shutdown(far.client, libc::SHUT_WR).unwrap();
    });
    [near.server, far.client].into_iter().for_each(|fd| close(fd).unwrap());
    let bytes = pattern(1, MUCH);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            send_all(near.client, &bytes);
            shutdown(near.client, libc::SHUT_WR).unwrap();
        });
        assert_bytes(&recv_to_end(far.server).0, &bytes);
    });
    proxy.join();
}

fn proxy_by_buffers() {
    check_proxy(|from, to| {
        let mut buffer = vec![0; 30_000];
        loop {
            match recv(from, &mut buffer, 0).unwrap() {
                0 => return,
                count => send_all(to, &buffer[..count]),
            }
        }
    });
}

fn proxy_by_splice() {
    check_proxy(|from, to| {
        let [out, into] = pipe();
        loop {
            let count = splice(from, into, 60_000, 0).unwrap();
            if count == 0 {
                return;
            }
            let mut left = count;
            while left > 0 {
                left -= splice(out, to, left, 0).unwrap();
            }
        }
    });
}

/// One event loop carries both directions of three connections to three others.
fn proxy_of_connections_by_epoll() {
    let nears = [0; 3].map(|_| joined_pair());
    let fars = [0; 3].map(|_| joined_pair());
    let proxy = spawn(|| {
        let set = epoll_create();
        let mut other = std::collections::BTreeMap::new();
        for (near, far) in nears.iter().zip(&fars) {
            for (from, to) in [(near.server, far.client), (far.client, near.server)] {
                other.insert(from as u64, to);
                epoll_ctl(set, EPOLL_CTL_ADD, from, IN, from as u64).unwrap();
            }
        }
        while !other.is_empty() {
            for (_, from) in epoll_wait(set, 8, SOON_MS).unwrap() {
                let mut buffer = [0; 3000];
                let count = recv(from as Fd, &mut buffer, MSG_DONTWAIT).unwrap();
                if count > 0 {
                    send_all(other[&from], &buffer[..count]);
                } else {
                    epoll_ctl(set, libc::EPOLL_CTL_DEL, from as Fd, 0, 0).unwrap();
                    shutdown(other[&from], libc::SHUT_WR).unwrap();
                    other.remove(&from);
                }
            }
        }
    });
    for round in 0..80 {
        for (near, far) in nears.iter().zip(&fars) {
            send_all(near.client, &pattern(round, 500));
            assert_bytes(&recv_exact(far.server, 500), &pattern(round, 500));
            send_all(far.server, &pattern(!round, 900));
            assert_bytes(&recv_exact(near.client, 900), &pattern(!round, 900));
        }
    }
    for (near, far) in nears.iter().zip(&fars) {
        shutdown(near.client, libc::SHUT_WR).unwrap();
        shutdown(far.server, libc::SHUT_WR).unwrap();
    }
    proxy.join();
}

/// An unnamed file that contains `bytes`, with its position at the beginning.
fn file_of(bytes: &[u8]) -> Fd {
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(c"file".as_ptr(), 0) };
    let mut written = 0;
    while written < bytes.len() {
        written += write(fd, &bytes[written..]).unwrap();
    }
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::lseek(fd, 0, libc::SEEK_SET) }, 0);
    fd
}

fn sendfile_while_joining() {
    let pair = without_delay(unused_pair());
    let file = file_of(&pattern(1, 40_000));
    for part in 0..80 {
        assert_eq!(sendfile(pair.client, file, None, 500), Ok(500));
        assert_bytes(&recv_exact(pair.server, 500), &pattern_at(1, part * 500, 500));
        one_byte(pair.server, pair.client);
    }
    assert_eq!(sendfile(pair.client, file, None, 500), Ok(0));
}

fn splice_while_joining() {
    let pair = without_delay(unused_pair());
    let ([out, into], [back_out, back_into]) = (pipe(), pipe());
    for part in 0..80 {
        let bytes = pattern_at(1, part * 500, 500);
        assert_eq!(write(into, &bytes), Ok(500));
        assert_eq!(splice(out, pair.client, 500, 0), Ok(500));
        wait_for(pair.server, POLLIN);
        assert_eq!(splice(pair.server, back_into, 500, 0), Ok(500));
        let mut got = [0; 500];
        assert_eq!(read(back_out, &mut got), Ok(500));
        assert_bytes(&got, &bytes);
        one_byte(pair.server, pair.client);
    }
}

fn sendfile_between_other_calls() {
    let pair = joined_pair();
    let file = file_of(&pattern(1, 90_000));
    for part in 0..90 {
        send_all(pair.client, b"head");
        let mut offset = part * 1000;
        assert_eq!(sendfile(pair.client, file, Some(&mut offset), 1000), Ok(1000));
        send_all(pair.client, b"tail");
        assert_eq!(recv_exact(pair.server, 4), b"head");
        assert_bytes(&recv_exact(pair.server, 1000), &pattern_at(1, part as usize * 1000, 1000));
        assert_eq!(recv_exact(pair.server, 4), b"tail");
    }
}

/// A result of 0 means the end of the file, whatever happens to the connection meanwhile.
fn sendfile_never_ends_before_the_file() {
    for before in 0..12 {
        let pair = without_delay(unused_pair());
        for _ in 0..before {
            one_byte(pair.client, pair.server);
            one_byte(pair.server, pair.client);
        }
        let file = file_of(&pattern(1, 300_000));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut sent = 0;
                while sent < 300_000 {
                    let count = sendfile(pair.client, file, None, 8_000).unwrap();
                    assert_ne!(count, 0, "the end of the file after {sent} bytes");
                    sent += count;
                }
            });
            assert_bytes(&recv_exact(pair.server, 300_000), &pattern(1, 300_000));
        });
        close(file).unwrap();
    }
}

/// After one byte of a full buffer is read, a socket need not be writable; if it is reported so, a
/// byte fits.
fn space_is_announced_for_large_sends_only_when_enough() {
    let pair = small_pair();
    let mut sent = fill(pair.client, 1);
    let mut got = 0;
    while ready(pair.client, POLLOUT, 0) == 0 && got < sent {
        assert_bytes(&recv_exact(pair.server, 1000.min(sent - got)), &{
            pattern_at(1, got, 1000.min(sent - got))
        });
        got += 1000.min(sent - got);
    }
    let byte = pattern_at(1, sent, 1);
    assert_eq!(send(pair.client, &byte, MSG_DONTWAIT), Ok(1));
    sent += 1;
    assert_bytes(&recv_exact(pair.server, sent - got), &pattern_at(1, got, sent - got));
}

fn vector_across_a_full_buffer() {
    let pair = small_pair();
    let mut numbers = Numbers(9);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut at = 0;
            while at < 1 << 20 {
                let bytes = pattern_at(1, at, 50_000);
                let (one, rest) = bytes.split_at(numbers.below(40_000));
                let (two, three) = rest.split_at(rest.len() / 3);
                at += writev(pair.client, &[one, two, three]).unwrap();
            }
            shutdown(pair.client, libc::SHUT_WR).unwrap();
        });
        let (mut at, mut one, mut two) = (0, vec![0; 777], vec![0; 30_000]);
        loop {
            let count = readv(pair.server, &mut [&mut one[..], &mut [], &mut two[..]]).unwrap();
            if count == 0 {
                break;
            }
            let got = [&one[..], &two[..]].concat();
            assert_bytes(&got[..count], &pattern_at(1, at, count));
            at += count;
        }
        assert!(at >= 1 << 20);
    });
}

fn stopped_receiver_and_a_sender_that_waits() {
    let (fd, child) = joined_with_child(|fd| {
        assert_bytes(&recv_to_end(fd).0, &pattern(1, MUCH));
    });
    kill(child.0, libc::SIGSTOP);
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| send_all(fd, &pattern(1, MUCH)));
        for _ in 0..3 {
            pause_ms(5);
            kill(child.0, libc::SIGCONT);
            pause_ms(1);
            kill(child.0, libc::SIGSTOP);
        }
        kill(child.0, libc::SIGCONT);
        sender.join().unwrap();
    });
    close(fd).unwrap();
    child.join();
}

fn many_connections_share_the_cpus() {
    let (listening, address) = listener(Family::V4);
    let child = spawn(|| {
        let fds: Vec<Fd> = (0..40).map(|_| connected(&address)).collect();
        std::thread::scope(|scope| {
            for (index, fd) in fds.iter().enumerate() {
                scope.spawn(move || {
                    for round in 0..40 {
                        send_all(*fd, &pattern(index as u64 * 1000 + round, 300));
                        let wanted = pattern(index as u64 * 1000 + round, 300);
                        assert_bytes(&recv_exact(*fd, 300), &wanted);
                    }
                    close(*fd).unwrap();
                });
            }
        });
    });
    std::thread::scope(|scope| {
        for _ in 0..40 {
            let fd = accept(listening).unwrap();
            scope.spawn(move || {
                let mut buffer = [0; 400];
                while let Ok(count @ 1..) = recv(fd, &mut buffer, 0) {
                    send_all(fd, &buffer[..count]);
                }
            });
        }
    });
    child.join();
}

fn bursts_with_pauses() {
    let pair = joined_pair();
    for burst in 0..15 {
        (0..20).for_each(|number| send_all(pair.client, &pattern(number, 100)));
        if burst % 3 == 0 {
            pause_ms(2);
        }
        for number in 0..20 {
            assert_bytes(&recv_exact(pair.server, 100), &pattern(number, 100));
        }
        assert_eq!(poll(&mut [pollfd { fd: pair.server, events: POLLIN, revents: 0 }], 1), Ok(0));
    }
    join_both_ends(pair);
}

fn ten_thousand_pings_of_two_processes() {
    let (fd, child) = joined_with_child(|fd| {
        for round in 0..10_000u32 {
            assert_eq!(recv_exact(fd, 4), round.to_be_bytes());
            send_all(fd, &round.to_le_bytes());
        }
    });
    for round in 0..10_000u32 {
        send_all(fd, &round.to_be_bytes());
        assert_eq!(recv_exact(fd, 4), round.to_le_bytes());
    }
    child.join();
}
