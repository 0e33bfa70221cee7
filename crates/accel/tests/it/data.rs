//! Every call that moves bytes, with every size: nothing is lost, duplicated or reordered.

use libc::{MSG_DONTWAIT, MSG_NOSIGNAL, MSG_PEEK, MSG_TRUNC, MSG_WAITALL, POLLIN};

use crate::calls::*;
use crate::support::*;

behaviours![
    one_byte_each_way,
    sizes_around_the_inline_limit,
    sizes_to_a_mebibyte,
    eight_mebibytes_through_a_thread,
    eight_mebibytes_both_ways_at_once,
    two_processes_exchange_a_mebibyte,
    two_processes_child_serves,
    many_small_messages_are_one_stream,
    small_buffer_receives_a_part,
    receive_does_not_wait_for_all,
    peek_leaves_the_bytes,
    peek_twice_then_receive_a_part,
    peek_returns_later_data_too,
    peek_and_wait_for_all,
    peek_without_waiting_finds_nothing,
    wait_for_all_gathers,
    wait_for_all_ends_with_the_stream,
    wait_for_all_across_a_full_buffer,
    dontwait_on_an_empty_blocking_socket,
    dontwait_on_a_full_blocking_socket,
    trunc_discards_bytes,
    trunc_with_a_buffer_counts,
    receive_of_zero_bytes_with_data,
    read_of_zero_bytes,
    send_of_zero_bytes,
    write_of_zero_bytes_sends_nothing,
    writev_gathers_readv_scatters,
    vectors_with_empty_parts,
    vector_of_1024_parts,
    vector_of_1025_parts_is_rejected,
    vector_larger_than_the_buffer,
    empty_vector,
    sendmsg_and_recvmsg,
    recvmsg_peeks,
    recvmsg_gives_no_name_and_no_control,
    recvmsg_waits_for_all,
    sendmmsg_sends_in_order,
    recvmmsg_receives_available_data,
    recvmmsg_without_data,
    sendto_without_an_address,
    sendto_ignores_an_address,
    recvfrom_gives_no_address,
    preadv2_family_on_a_socket,
    pread_is_rejected,
    lseek_is_rejected,
    read_and_write_like_recv_and_send,
    full_socket_returns_eagain,
    space_after_a_full_buffer,
    large_nonblocking_send_is_partial,
    one_thread_may_use_both_ends,
    blocked_writer_continues_when_space_is_free,
    blocked_reader_receives_new_data,
    odd_chunks_wrap_around,
    ping_pong_of_every_size,
    ipv6,
    mapped_ipv4,
    more_flag_delays_but_loses_nothing,
    both_ends_on_one_cpu,
    data_before_joining_comes_first,
    data_unread_while_joining,
    empty_socket_returns_eagain,
];

/// Sends `count` bytes of a pattern and receives them, with never more in flight than fits.
#[track_caller]
fn carry(from: Fd, to: Fd, seed: u64, count: usize) {
    let bytes = pattern(seed, count);
    if count <= 65_536 {
        send_all(from, &bytes);
        assert_bytes(&recv_exact(to, count), &bytes);
        return;
    }
    std::thread::scope(|scope| {
        scope.spawn(|| send_all(from, &bytes));
        assert_bytes(&recv_exact(to, count), &bytes);
    });
}

#[track_caller]
fn check_nothing_left(pair: Pair) {
    assert_eq!(recv(pair.server, &mut [0; 8], MSG_DONTWAIT), Err(AGAIN));
    assert_eq!(recv(pair.client, &mut [0; 8], MSG_DONTWAIT), Err(AGAIN));
    assert_state(pair.client, JOINED);
    assert_state(pair.server, JOINED);
}

fn one_byte_each_way() {
    let pair = joined_pair();
    carry(pair.client, pair.server, 1, 1);
    carry(pair.server, pair.client, 2, 1);
    check_nothing_left(pair);
}

fn sizes_around_the_inline_limit() {
    let pair = joined_pair();
    for count in (1..=130).chain([255, 256, 257, 511, 512, 513, 4095, 4096, 4097]) {
        carry(pair.client, pair.server, count as u64, count);
        carry(pair.server, pair.client, !(count as u64), count);
    }
    check_nothing_left(pair);
}

fn sizes_to_a_mebibyte() {
    let pair = joined_pair();
    for power in 10..=20 {
        for count in [(1 << power) - 1, 1 << power, (1 << power) + 1] {
            carry(pair.client, pair.server, power, count);
        }
    }
    check_nothing_left(pair);
}

fn eight_mebibytes_through_a_thread() {
    let pair = joined_pair();
    carry(pair.client, pair.server, 7, 8 << 20);
    check_nothing_left(pair);
}

fn eight_mebibytes_both_ways_at_once() {
    let pair = joined_pair();
    let (there, back) = (pattern(1, 8 << 20), pattern(2, 8 << 20));
    std::thread::scope(|scope| {
        scope.spawn(|| send_all(pair.client, &there));
        scope.spawn(|| send_all(pair.server, &back));
        scope.spawn(|| assert_bytes(&recv_exact(pair.server, there.len()), &there));
        assert_bytes(&recv_exact(pair.client, back.len()), &back);
    });
    check_nothing_left(pair);
}

pub(crate) fn echo_child(fd: Fd) {
    let mut buffer = vec![0; 100_000];
    loop {
        let count = recv(fd, &mut buffer, 0).unwrap();
        if count == 0 {
            return;
        }
        send_all(fd, &buffer[..count]);
    }
}

#[track_caller]
fn exchange(fd: Fd, child: Process) {
    for count in [1, 56, 57, 1000, 65_536] {
        let bytes = pattern(count as u64, count);
        send_all(fd, &bytes);
        assert_bytes(&recv_exact(fd, count), &bytes);
    }
    let bytes = pattern(3, 1 << 20);
    std::thread::scope(|scope| {
        scope.spawn(|| send_all(fd, &bytes));
        assert_bytes(&recv_exact(fd, bytes.len()), &bytes);
    });
    assert_state(fd, JOINED);
    shutdown(fd, libc::SHUT_WR).unwrap();
    assert_eq!(recv(fd, &mut [0; 8], 0), Ok(0));
    child.join();
}

fn two_processes_exchange_a_mebibyte() {
    let (fd, child) = joined_with_child(echo_child);
    exchange(fd, child);
}

fn two_processes_child_serves() {
    let (fd, child) = joined_with_serving_child(echo_child);
    exchange(fd, child);
}

fn many_small_messages_are_one_stream() {
    let pair = joined_pair();
    for index in 0..2000u16 {
        send_all(pair.client, &index.to_be_bytes());
    }
    let bytes = recv_exact(pair.server, 4000);
    for (index, two) in bytes.chunks(2).enumerate() {
        assert_eq!(two, (index as u16).to_be_bytes());
    }
    check_nothing_left(pair);
}

fn small_buffer_receives_a_part() {
    let pair = joined_pair();
    send_all(pair.client, b"hello world");
    wait_for(pair.server, POLLIN);
    let mut buffer = [0; 5];
    assert_eq!(recv(pair.server, &mut buffer, 0), Ok(5));
    assert_eq!(&buffer, b"hello");
    assert_eq!(recv_exact(pair.server, 6), b" world");
    check_nothing_left(pair);
}

fn receive_does_not_wait_for_all() {
    let pair = joined_pair();
    send_all(pair.client, b"abc");
    let mut buffer = [0; 100];
    assert_eq!(recv(pair.server, &mut buffer, 0), Ok(3));
    assert_eq!(&buffer[..3], b"abc");
}

fn peek_leaves_the_bytes() {
    let pair = joined_pair();
    send_all(pair.client, b"abcdef");
    let mut buffer = [0; 4];
    assert_eq!(recv(pair.server, &mut buffer, MSG_PEEK), Ok(4));
    assert_eq!(&buffer, b"abcd");
    assert_eq!(unread(pair.server), 6);
    assert_eq!(recv_exact(pair.server, 6), b"abcdef");
    check_nothing_left(pair);
}

fn peek_twice_then_receive_a_part() {
    let pair = joined_pair();
    send_all(pair.client, &pattern(1, 300));
    wait_for(pair.server, POLLIN);
    for _ in 0..2 {
        let mut buffer = [0; 300];
        assert_eq!(recv(pair.server, &mut buffer, MSG_PEEK), Ok(300));
        assert_bytes(&buffer, &pattern(1, 300));
    }
    recv_exact(pair.server, 100);
    let mut buffer = [0; 300];
    assert_eq!(recv(pair.server, &mut buffer, MSG_PEEK), Ok(200));
    assert_bytes(&buffer[..200], &pattern_at(1, 100, 200));
}

fn peek_returns_later_data_too() {
    let pair = joined_pair();
    let mut buffer = [0; 16];
    send_all(pair.client, b"ab");
    assert_eq!(recv(pair.server, &mut buffer, MSG_PEEK), Ok(2));
    send_all(pair.client, b"cd");
    eventually("both are there", || unread(pair.server) == 4);
    assert_eq!(recv(pair.server, &mut buffer, MSG_PEEK), Ok(4));
    assert_eq!(&buffer[..4], b"abcd");
}

fn peek_and_wait_for_all() {
    let pair = joined_pair();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for byte in pattern(5, 10) {
                send_all(pair.client, &[byte]);
                pause_ms(1);
            }
        });
        let mut buffer = [0; 10];
        assert_eq!(recv(pair.server, &mut buffer, MSG_PEEK | MSG_WAITALL), Ok(10));
        assert_bytes(&buffer, &pattern(5, 10));
    });
    assert_bytes(&recv_exact(pair.server, 10), &pattern(5, 10));
}

fn peek_without_waiting_finds_nothing() {
    let pair = joined_pair();
    assert_eq!(recv(pair.server, &mut [0], MSG_PEEK | MSG_DONTWAIT), Err(AGAIN));
}

fn wait_for_all_gathers() {
    let pair = joined_pair();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for chunk in pattern(9, 1000).chunks(77) {
                send_all(pair.client, chunk);
                pause_ms(1);
            }
        });
        let mut buffer = [0; 1000];
        assert_eq!(recv(pair.server, &mut buffer, MSG_WAITALL), Ok(1000));
        assert_bytes(&buffer, &pattern(9, 1000));
    });
}

fn wait_for_all_ends_with_the_stream() {
    let pair = joined_pair();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            send_all(pair.client, b"only this");
            pause_ms(5);
            shutdown(pair.client, libc::SHUT_WR).unwrap();
        });
        let mut buffer = [0; 100];
        assert_eq!(recv(pair.server, &mut buffer, MSG_WAITALL), Ok(9));
        assert_eq!(&buffer[..9], b"only this");
        assert_eq!(recv(pair.server, &mut buffer, MSG_WAITALL), Ok(0));
    });
}

fn wait_for_all_across_a_full_buffer() {
    let pair = joined_pair();
    let bytes = pattern(4, 3 << 20);
    std::thread::scope(|scope| {
        scope.spawn(|| send_all(pair.client, &bytes));
        let mut buffer = vec![0; 3 << 20];
        assert_eq!(recv(pair.server, &mut buffer, MSG_WAITALL), Ok(3 << 20));
        assert_bytes(&buffer, &bytes);
    });
}

fn dontwait_on_an_empty_blocking_socket() {
    let pair = joined_pair();
    assert_eq!(recv(pair.server, &mut [0; 10], MSG_DONTWAIT), Err(AGAIN));
    send_all(pair.client, b"x");
    assert_eq!(recv_exact(pair.server, 1), b"x");
}

fn dontwait_on_a_full_blocking_socket() {
    let pair = joined_pair();
    let sent = fill(pair.client, 3);
    assert_eq!(send(pair.client, b"x", MSG_DONTWAIT), Err(AGAIN));
    assert_bytes(&recv_exact(pair.server, sent), &pattern(3, sent));
    check_nothing_left(pair);
}

fn trunc_discards_bytes() {
    let pair = joined_pair();
    send_all(pair.client, b"throw away, keep");
    eventually("all is there", || unread(pair.server) == 16);
    assert_eq!(recv_discarding(pair.server, 12, 0), Ok(12));
    assert_eq!(recv_exact(pair.server, 4), b"keep");
    check_nothing_left(pair);
}

fn trunc_with_a_buffer_counts() {
    let pair = joined_pair();
    send_all(pair.client, b"abcdef");
    eventually("all is there", || unread(pair.server) == 6);
    assert_eq!(recv(pair.server, &mut [0; 4], MSG_TRUNC), Ok(4));
    assert_eq!(recv_exact(pair.server, 2), b"ef");
}

fn receive_of_zero_bytes_with_data() {
    let pair = joined_pair();
    send_all(pair.client, b"abc");
    wait_for(pair.server, POLLIN);
    assert_eq!(recv(pair.server, &mut [], 0), Ok(0));
    assert_eq!(recv_exact(pair.server, 3), b"abc");
}

fn read_of_zero_bytes() {
    let pair = joined_pair();
    assert_eq!(read(pair.server, &mut []), Ok(0));
    send_all(pair.client, b"abc");
    wait_for(pair.server, POLLIN);
    assert_eq!(read(pair.server, &mut []), Ok(0));
    assert_eq!(recv_exact(pair.server, 3), b"abc");
}

fn send_of_zero_bytes() {
    let pair = joined_pair();
    assert_eq!(send(pair.client, &[], MSG_NOSIGNAL), Ok(0));
    check_nothing_left(pair);
}

fn write_of_zero_bytes_sends_nothing() {
    let pair = joined_pair();
    assert_eq!(write(pair.client, &[]), Ok(0));
    assert_eq!(writev(pair.client, &[&[], &[]]), Ok(0));
    check_nothing_left(pair);
}

fn writev_gathers_readv_scatters() {
    let pair = joined_pair();
    assert_eq!(writev(pair.client, &[b"one", b"two", b"three"]), Ok(11));
    eventually("all is there", || unread(pair.server) == 11);
    let (mut first, mut second) = ([0; 4], [0; 20]);
    assert_eq!(readv(pair.server, &mut [&mut first[..], &mut second[..]]), Ok(11));
    assert_eq!((&first, &second[..7]), (b"onet", &b"wothree"[..]));
    check_nothing_left(pair);
}

fn vectors_with_empty_parts() {
    let pair = joined_pair();
    assert_eq!(writev(pair.client, &[b"", b"a", b"", b"", b"bc", b""]), Ok(3));
    eventually("all is there", || unread(pair.server) == 3);
    let (mut first, mut second) = ([0; 1], [0; 2]);
    let rooms = &mut [&mut [][..], &mut first[..], &mut [][..], &mut second[..], &mut [][..]];
    assert_eq!(readv(pair.server, rooms), Ok(3));
    assert_eq!((&first, &second), (b"a", b"bc"));
}

fn vector_of_1024_parts() {
    let pair = joined_pair();
    let bytes = pattern(8, 1024 * 3);
    let parts: Vec<&[u8]> = bytes.chunks(3).collect();
    assert_eq!(writev(pair.client, &parts), Ok(3072));
    eventually("all is there", || unread(pair.server) == 3072);
    let mut rooms = vec![0; 3072];
    let mut vector: Vec<&mut [u8]> = rooms.chunks_mut(3).collect();
    assert_eq!(readv(pair.server, &mut vector), Ok(3072));
    assert_bytes(&rooms, &bytes);
}

fn vector_of_1025_parts_is_rejected() {
    let pair = joined_pair();
    let parts = [&b"x"[..]; 1025];
    assert_eq!(writev(pair.client, &parts), Err(INVAL));
    let mut rooms = [0; 1025];
    let mut vector: Vec<&mut [u8]> = rooms.chunks_mut(1).collect();
    assert_eq!(readv(pair.server, &mut vector), Err(INVAL));
    assert_eq!(sendmsg(pair.client, &parts, MSG_NOSIGNAL), Err(Errno(libc::EMSGSIZE)));
    check_nothing_left(pair);
}

fn vector_larger_than_the_buffer() {
    let pair = joined_pair();
    let bytes = pattern(6, 5 << 20);
    let parts: Vec<&[u8]> = bytes.chunks(1 << 20).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(writev(pair.client, &parts), Ok(5 << 20)));
        assert_bytes(&recv_exact(pair.server, 5 << 20), &bytes);
    });
}

fn empty_vector() {
    let pair = joined_pair();
    assert_eq!(writev(pair.client, &[]), Ok(0));
    assert_eq!(readv(pair.server, &mut []), Ok(0));
    check_nothing_left(pair);
}

fn sendmsg_and_recvmsg() {
    let pair = joined_pair();
    assert_eq!(sendmsg(pair.client, &[b"head", b"body"], MSG_NOSIGNAL), Ok(8));
    eventually("all is there", || unread(pair.server) == 8);
    let (mut first, mut second) = ([0; 4], [0; 10]);
    let got = recvmsg(pair.server, &mut [&mut first[..], &mut second[..]], 0);
    assert_eq!(got.map(|(count, _)| count), Ok(8));
    assert_eq!((&first, &second[..4]), (b"head", &b"body"[..]));
}

fn recvmsg_peeks() {
    let pair = joined_pair();
    send_all(pair.client, b"peeked");
    eventually("all is there", || unread(pair.server) == 6);
    for flags in [MSG_PEEK, 0] {
        let mut buffer = [0; 6];
        let got = recvmsg(pair.server, &mut [&mut buffer[..]], flags);
        assert_eq!((got.map(|(count, _)| count), &buffer), (Ok(6), b"peeked"));
    }
    check_nothing_left(pair);
}

fn recvmsg_gives_no_name_and_no_control() {
    let pair = joined_pair();
    send_all(pair.client, b"x");
    let (mut byte, mut name, mut control) = ([0], [0u8; 128], [0u8; 64]);
    let mut vector = receive_parts(&mut [&mut byte[..]]);
    let mut header = header(&mut vector);
    header.msg_name = name.as_mut_ptr().cast();
    header.msg_namelen = 128;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = 64;
    header.msg_flags = -1;
    // SAFETY: everything that the header points to is live.
    assert_eq!(unsafe { libc::recvmsg(pair.server, &raw mut header, 0) }, 1);
    assert_eq!((header.msg_namelen, header.msg_controllen), (0, 0));
    assert_eq!(header.msg_flags & !libc::MSG_CMSG_CLOEXEC, 0);
}

fn recvmsg_waits_for_all() {
    let pair = joined_pair();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for chunk in pattern(2, 300).chunks(50) {
                send_all(pair.client, chunk);
                pause_ms(1);
            }
        });
        let (mut first, mut second) = ([0; 100], [0; 200]);
        let got = recvmsg(pair.server, &mut [&mut first[..], &mut second[..]], MSG_WAITALL);
        assert_eq!(got.map(|(count, _)| count), Ok(300));
        assert_bytes(&[&first[..], &second[..]].concat(), &pattern(2, 300));
    });
}

fn sendmmsg_sends_in_order() {
    let pair = joined_pair();
    let sent = sendmmsg(pair.client, &[&[b"a", b"bc"], &[b"def"], &[b""], &[b"g"]], MSG_NOSIGNAL);
    assert_eq!(sent, Ok(vec![3, 3, 0, 1]));
    assert_eq!(recv_exact(pair.server, 7), b"abcdefg");
    check_nothing_left(pair);
}

fn recvmmsg_receives_available_data() {
    let pair = joined_pair();
    send_all(pair.client, b"abcdefgh");
    eventually("all is there", || unread(pair.server) == 8);
    let (mut first, mut second, mut third) = ([0; 3], [0; 3], [0; 3]);
    let rooms = &mut [&mut first[..], &mut second[..], &mut third[..]];
    assert_eq!(recvmmsg(pair.server, rooms, MSG_DONTWAIT), Ok(vec![3, 3, 2]));
    assert_eq!((&first, &second, &third[..2]), (b"abc", b"def", &b"gh"[..]));
}

fn recvmmsg_without_data() {
    let pair = joined_pair();
    let mut buffer = [0; 3];
    assert_eq!(recvmmsg(pair.server, &mut [&mut buffer[..]], MSG_DONTWAIT), Err(AGAIN));
}

fn sendto_without_an_address() {
    let pair = joined_pair();
    assert_eq!(sendto(pair.client, b"abc", MSG_NOSIGNAL, None), Ok(3));
    assert_eq!(recv_exact(pair.server, 3), b"abc");
    check_nothing_left(pair);
}

fn sendto_ignores_an_address() {
    let pair = joined_pair();
    let elsewhere = Address::v4([127, 0, 0, 1], 9);
    assert_eq!(sendto(pair.client, b"abc", MSG_NOSIGNAL, Some(&elsewhere)), Ok(3));
    assert_eq!(recv_exact(pair.server, 3), b"abc");
}

fn recvfrom_gives_no_address() {
    let pair = joined_pair();
    send_all(pair.client, b"abc");
    let mut buffer = [0; 3];
    let (count, from) = recvfrom(pair.server, &mut buffer, 0).unwrap();
    assert_eq!((count, &buffer), (3, b"abc"));
    assert_eq!(from.length, 0);
}

fn preadv2_family_on_a_socket() {
    let pair = joined_pair();
    let parts = parts_of(&[b"abc", b"def"]);
    // SAFETY: the parts are live for the call.
    let sent = unsafe { libc::pwritev2(pair.client, parts.as_ptr(), 2, -1, 0) };
    assert_eq!(sent, 6, "{:?}", errno());
    eventually("all is there", || unread(pair.server) == 6);
    let mut buffer = [0; 6];
    let rooms = receive_parts(&mut [&mut buffer[..]]);
    // SAFETY: the buffer is live for the call.
    let got = unsafe { libc::preadv2(pair.server, rooms.as_ptr(), 1, -1, 0) };
    assert_eq!((got, &buffer), (6, b"abcdef"), "{:?}", errno());
}

fn pread_is_rejected() {
    let pair = joined_pair();
    let mut buffer = [0; 3];
    // SAFETY: the buffer is live for the calls.
    unsafe {
        assert_eq!(libc::pread(pair.server, buffer.as_mut_ptr().cast(), 3, 0), -1);
        assert_eq!(errno(), Errno(libc::ESPIPE));
        assert_eq!(libc::pwrite(pair.server, buffer.as_ptr().cast(), 3, 0), -1);
        assert_eq!(errno(), Errno(libc::ESPIPE));
    }
    check_nothing_left(pair);
}

fn lseek_is_rejected() {
    let pair = joined_pair();
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::lseek(pair.server, 0, libc::SEEK_CUR) }, -1);
    assert_eq!(errno(), Errno(libc::ESPIPE));
}

fn read_and_write_like_recv_and_send() {
    let pair = joined_pair();
    assert_eq!(write(pair.client, b"written"), Ok(7));
    let mut buffer = [0; 10];
    assert_eq!(read(pair.server, &mut buffer), Ok(7));
    assert_eq!(&buffer[..7], b"written");
    assert_eq!(write(pair.server, b"back"), Ok(4));
    assert_eq!(read(pair.client, &mut buffer), Ok(4));
    check_nothing_left(pair);
}

fn full_socket_returns_eagain() {
    let pair = joined_nonblocking();
    let sent = fill(pair.client, 1);
    assert!(sent >= 65_536, "only {sent} bytes fit");
    assert_eq!(write(pair.client, b"x"), Err(AGAIN));
    assert_eq!(writev(pair.client, &[b"x", b"y"]), Err(AGAIN));
    assert_eq!(send(pair.client, b"x", MSG_NOSIGNAL), Err(AGAIN));
    assert_bytes(&recv_exact(pair.server, sent), &pattern(1, sent));
    check_nothing_left(pair);
}

fn space_after_a_full_buffer() {
    let pair = joined_nonblocking();
    let sent = fill(pair.client, 1);
    assert_bytes(&recv_exact(pair.server, sent), &pattern(1, sent));
    wait_for(pair.client, libc::POLLOUT);
    assert_eq!(send(pair.client, b"more", MSG_NOSIGNAL), Ok(4));
    assert_eq!(recv_exact(pair.server, 4), b"more");
    check_nothing_left(pair);
}

fn large_nonblocking_send_is_partial() {
    let pair = joined_nonblocking();
    let bytes = pattern(5, 24 << 20);
    let sent = send(pair.client, &bytes, MSG_NOSIGNAL).unwrap();
    assert!(0 < sent && sent < bytes.len(), "{sent} bytes went");
    assert_bytes(&recv_exact(pair.server, sent), &bytes[..sent]);
}

/// One thread that writes much before it reads: it would block forever if less fitted than into the
/// kernel's smallest buffers.
fn one_thread_may_use_both_ends() {
    let pair = joined_pair();
    let bytes = pattern(1, 60_000);
    for _ in 0..20 {
        assert_eq!(send(pair.client, &bytes, MSG_NOSIGNAL), Ok(60_000));
        assert_bytes(&recv_exact(pair.server, 60_000), &bytes);
    }
    check_nothing_left(pair);
}

fn blocked_writer_continues_when_space_is_free() {
    let pair = joined_pair();
    let bytes = pattern(2, 16 << 20);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| assert_eq!(send(pair.client, &bytes, 0), Ok(16 << 20)));
        pause_ms(30);
        assert!(!writer.is_finished(), "16 MiB fitted without a reader");
        assert_bytes(&recv_exact(pair.server, 16 << 20), &bytes);
    });
}

fn blocked_reader_receives_new_data() {
    let pair = joined_pair();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut buffer = [0; 10];
            assert_eq!(recv(pair.server, &mut buffer, 0), Ok(4));
            assert_eq!(&buffer[..4], b"late");
        });
        pause_ms(30);
        assert!(!reader.is_finished());
        send_all(pair.client, b"late");
    });
}

fn odd_chunks_wrap_around() {
    let pair = joined_nonblocking();
    let bytes = pattern(11, 3_000_000);
    let (mut sent, mut got, mut turn) = (0, 0, 0usize);
    let mut buffer = vec![0; 70_000];
    while got < bytes.len() {
        turn += 1;
        let most = (turn * 7919 % 60_013 + 1).min(bytes.len() - sent);
        match send(pair.client, &bytes[sent..sent + most], MSG_NOSIGNAL) {
            Ok(count) => sent += count,
            Err(error) => assert_eq!(error, AGAIN),
        }
        let most = turn * 6271 % 61_001 + 1;
        match recv(pair.server, &mut buffer[..most], 0) {
            Ok(count) => {
                assert_bytes(&buffer[..count], &bytes[got..got + count]);
                got += count;
            }
            Err(error) => assert_eq!(error, AGAIN),
        }
    }
    check_nothing_left(pair);
}

fn ping_pong_of_every_size() {
    let (fd, child) = joined_with_child(echo_child);
    for count in 1..400 {
        let bytes = pattern(count as u64, count * 3);
        send_all(fd, &bytes);
        assert_bytes(&recv_exact(fd, bytes.len()), &bytes);
    }
    close(fd).unwrap();
    child.join();
}

fn ipv6() {
    let pair = joined_pair_of(Family::V6);
    carry(pair.client, pair.server, 1, 100_000);
    carry(pair.server, pair.client, 2, 100_000);
    check_nothing_left(pair);
}

fn mapped_ipv4() {
    let pair = joined_pair_of(Family::ConduitMapping);
    carry(pair.client, pair.server, 1, 100_000);
    carry(pair.server, pair.client, 2, 100_000);
    check_nothing_left(pair);
}

fn more_flag_delays_but_loses_nothing() {
    let pair = joined_pair();
    assert_eq!(send(pair.client, b"head", libc::MSG_MORE | MSG_NOSIGNAL), Ok(4));
    assert_eq!(send(pair.client, b"tail", MSG_NOSIGNAL), Ok(4));
    assert_eq!(recv_exact(pair.server, 8), b"headtail");
}

fn both_ends_on_one_cpu() {
    on_one_cpu();
    let (fd, child) = joined_with_child(echo_child);
    for round in 0..2000u32 {
        send_all(fd, &round.to_be_bytes());
        assert_eq!(recv_exact(fd, 4), round.to_be_bytes());
    }
    close(fd).unwrap();
    child.join();
}

fn data_before_joining_comes_first() {
    let pair = unused_pair();
    let bytes = pattern(1, 50_000);
    for chunk in bytes.chunks(500) {
        send_all(pair.client, chunk);
        one_byte(pair.server, pair.client);
    }
    assert_bytes(&recv_exact(pair.server, bytes.len()), &bytes);
}

/// Both directions transfer while the connection joins, with data unread at each moment.
fn data_unread_while_joining() {
    let pair = unused_pair();
    let mut taken = [0; 2];
    let ends = [(pair.client, pair.server), (pair.server, pair.client)];
    for turn in 0..300 {
        for (index, (from, to)) in ends.into_iter().enumerate() {
            send_all(from, &pattern_at(index as u64, turn * 100, 100));
            if turn > 10 {
                let wanted = pattern_at(index as u64, taken[index], 90);
                assert_bytes(&recv_exact(to, 90), &wanted);
                taken[index] += 90;
            }
        }
    }
    for (index, (_, to)) in ends.into_iter().enumerate() {
        let rest = 30_000 - taken[index];
        assert_bytes(&recv_exact(to, rest), &pattern_at(index as u64, taken[index], rest));
    }
    check_nothing_left(pair);
}

fn empty_socket_returns_eagain() {
    let pair = joined_nonblocking();
    let mut buffer = [0; 4];
    assert_eq!(recv(pair.client, &mut buffer, 0), Err(AGAIN));
    assert_eq!(read(pair.client, &mut buffer), Err(AGAIN));
    assert_eq!(readv(pair.client, &mut [&mut buffer[..]]), Err(AGAIN));
    assert_eq!(recvmsg(pair.client, &mut [&mut buffer[..]], 0), Err(AGAIN));
    assert_eq!(recv(pair.client, &mut buffer, MSG_WAITALL), Err(AGAIN));
}
