//! What the kernel knows of a TCP connection: its state, and how many bytes each direction has
//! carried.

use std::ffi::c_int;

use libc::socklen_t;

use crate::kernel;

/// `TCP_ESTABLISHED` of the kernel.
pub const ESTABLISHED: u8 = 1;

/// States after the peer's FIN, which the kernel counts as a received byte.
const FIN_RECEIVED: [u8; 4] = [6, 8, 9, 11];

/// Attempts to read two numbers that belong together.
const ATTEMPTS: u32 = 16;

/// Words of the kernel's `struct tcp_info` that every supported kernel has.
const WORDS_MIN: usize = 17;

/// Words of it with what kernels count since Linux 4.19.
const WORDS: usize = 27;

/// The first words of the kernel's `struct tcp_info`.
pub struct TcpInfo {
    /// State of the connection.
    pub state: u8,
    bytes_acked: u64,
    bytes_received: u64,
    /// Bytes that the program has written, sent or not; none if the kernel does not count them.
    written: Option<u64>,
}

impl TcpInfo {
    /// Queries the kernel; none if `fd` is not a TCP socket, or the kernel does not count bytes.
    pub fn read(fd: c_int) -> Option<TcpInfo> {
        let mut words = [0_u64; WORDS];
        let mut length = size_of_val(&words) as socklen_t;
        let target = words.as_mut_ptr().cast();
        let (level, name) = (libc::IPPROTO_TCP, libc::TCP_INFO);
        // SAFETY: both are live and of the stated size.
        let result = unsafe { kernel::getsockopt(fd, level, name, target, &raw mut length) };
        let is_complete = result == 0 && length as usize >= WORDS_MIN * size_of::<u64>();
        let is_new = length as usize == size_of_val(&words);
        let [not_sent @ .., _, _, _, _] = words[18].to_ne_bytes();
        let written = (words[25].wrapping_sub(words[26]))
            .wrapping_add(u64::from(u32::from_ne_bytes(not_sent)));
        is_complete.then(|| TcpInfo {
            state: words[0].to_ne_bytes()[0],
            bytes_acked: words[15],
            bytes_received: words[16],
            written: is_new.then_some(written),
        })
    }
}

/// What this end has sent through the kernel.
pub struct SentBytes {
    /// All bytes since the beginning.
    pub count: u64,
    /// Those of them that the kernel still has.
    pub queued: c_int,
}

/// What this end has sent through the kernel, by the kernel's own count, so that calls which bypass
/// this library are included. None if the count kept changing.
pub fn sent_through_kernel(fd: c_int, is_client: bool) -> Option<SentBytes> {
    // The connecting end's SYN counts as an acknowledged byte.
    let syn = u64::from(is_client);
    for _ in 0..ATTEMPTS {
        let before = TcpInfo::read(fd)?;
        let queued = kernel::ioctl_int(fd, libc::TIOCOUTQ as usize)?;
        let after = TcpInfo::read(fd)?;
        if before.bytes_acked == after.bytes_acked {
            let count = (after.bytes_acked + queued as u64).checked_sub(syn)?;
            return Some(SentBytes { count, queued });
        }
    }
    None
}

/// Whether the kernel has sent exactly `count` bytes of this end, as far as one look shows: false
/// also means that it cannot be said.
pub fn has_sent(fd: c_int, count: u64) -> bool {
    TcpInfo::read(fd).is_some_and(|info| info.written == Some(count))
}

/// Bytes that this end has received from the kernel since the beginning, without those that are
/// unread there.
pub fn received_through_kernel(fd: c_int) -> Option<u64> {
    for _ in 0..ATTEMPTS {
        let before = TcpInfo::read(fd)?;
        let unread = kernel::ioctl_int(fd, libc::FIONREAD as usize)?;
        let after = TcpInfo::read(fd)?;
        if before.bytes_received == after.bytes_received && before.state == after.state {
            let fin = u64::from(FIN_RECEIVED.contains(&after.state));
            let received = after.bytes_received.saturating_sub(fin);
            return Some(received.saturating_sub(unread as u64));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd as _;

    #[test]
    fn kernel_counts_match_the_programs() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(&[1; 1000]).unwrap();
        server.read_exact(&mut [0; 300]).unwrap();
        assert_eq!(received_through_kernel(server.as_raw_fd()), Some(300));
        assert_eq!(received_through_kernel(client.as_raw_fd()), Some(0));
        let sent = |fd, is_client| sent_through_kernel(fd, is_client).map(|sent| sent.count);
        assert_eq!(sent(client.as_raw_fd(), true), Some(1000));
        assert_eq!(sent(server.as_raw_fd(), false), Some(0));
        assert!(has_sent(client.as_raw_fd(), 1000) && !has_sent(client.as_raw_fd(), 999));
        assert!(has_sent(server.as_raw_fd(), 0) && !has_sent(server.as_raw_fd(), 1));
        client.shutdown(std::net::Shutdown::Write).unwrap();
        // The peer's FIN must not count as a byte.
        server.read_exact(&mut [0; 700]).unwrap();
        assert_eq!(server.read(&mut [0]).unwrap(), 0);
        assert_eq!(received_through_kernel(server.as_raw_fd()), Some(1000));
    }
}
