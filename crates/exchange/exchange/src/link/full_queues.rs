//! Listeners at which nobody is accepted and whose queues are full, for tests.

use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

use nm_sys::poll;
use socket2::{Domain, SockAddr, Socket, Type};

use super::address::Address;

/// `EINPROGRESS`.
const IN_PROGRESS: i32 = 115;

/// A connection over loopback that is not made after so long will not be made.
const ANSWER: Duration = Duration::from_millis(300);

/// A listener whose queue is full, and those that wait there.
fn full(domain: Domain, address: &SockAddr) -> (Socket, Vec<Socket>) {
    let listener = Socket::new(domain, Type::STREAM, None).unwrap();
    listener.bind(address).unwrap();
    listener.listen(0).unwrap();
    let address = listener.local_addr().unwrap();
    let waiting = (0..).map_while(|_| {
        let socket = Socket::new(domain, Type::STREAM, None).unwrap();
        socket.set_nonblocking(true).unwrap();
        let is_in_queue = match socket.connect(&address) {
            Err(error) if error.raw_os_error() == Some(IN_PROGRESS) => {
                poll::writable(socket.as_raw_fd(), ANSWER).unwrap()
            }
            connected => connected.is_ok(),
        };
        is_in_queue.then_some(socket)
    });
    let waiting = waiting.collect();
    (listener, waiting)
}

/// That of a Unix socket.
pub fn full_listener(path: &Path) -> (Socket, Vec<Socket>) {
    full(Domain::UNIX, &SockAddr::unix(path).unwrap())
}

/// That of TCP, which answers nothing.
pub fn full_tcp_listener() -> (Address, Socket, Vec<Socket>) {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let (listener, waiting) = full(Domain::IPV4, &any.into());
    let address = listener.local_addr().unwrap().as_socket().unwrap();
    (Address::Tcp(address), listener, waiting)
}
