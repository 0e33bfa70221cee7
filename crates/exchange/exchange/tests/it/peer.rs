//! The other end of a link of a node, played by a test.

use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixListener;
use std::time::Duration;

use nm_exchange::link::{Address, Link, Stream};
use nm_exchange::message::Hello;
use nm_exchange::testing::LIMIT;
use nm_exchange::wire::{self, FrameKind, Header};
use nm_sys::clock::Deadline;

/// Where a node that a test plays is connected to.
pub fn listener(address: &Address) -> UnixListener {
    match address {
        Address::Unix(path) => UnixListener::bind(path).unwrap(),
        other => panic!("{other}"),
    }
}

/// A node that a test plays.
pub struct Peer {
    pub link: Link,
}

impl Peer {
    /// One to which a node connects, started for the `start`th time.
    pub fn accepted(listener: &UnixListener, start: u64) -> Peer {
        let (stream, _) = listener.accept().unwrap();
        let mut peer = Peer { link: Link::new(Stream::Unix(stream)).unwrap() };
        assert_eq!(peer.next().0.kind, FrameKind::Hello);
        peer.send(&Header { client_seq: start, ..Header::new(FrameKind::Welcome) });
        peer
    }

    /// One that connects to a node.
    pub fn connected(address: &Address, hello: &Hello) -> Peer {
        let mut peer = Peer { link: Link::new(Stream::connect(address, LIMIT).unwrap()).unwrap() };
        hello.write(None, &mut peer.link.output);
        assert!(peer.link.flush().unwrap());
        assert_eq!(peer.next().0.kind, FrameKind::Welcome);
        peer
    }

    /// Sends a frame without a body.
    pub fn send(&mut self, header: &Header) {
        self.send_with(header, &[]);
    }

    /// Sends a frame.
    pub fn send_with(&mut self, header: &Header, body: &[u8]) {
        wire::write(header, body, 0, &mut self.link.output);
        assert!(self.link.flush().unwrap());
    }

    /// The next frame, which must come.
    pub fn next(&mut self) -> (Header, Vec<u8>) {
        let deadline = Deadline::after(LIMIT);
        loop {
            if let Some(frame) = self.next_within(Duration::from_millis(50)) {
                return frame;
            }
            assert!(!deadline.passed(), "nothing came");
        }
    }

    /// The next frame, if one comes in this time.
    pub fn next_within(&mut self, limit: Duration) -> Option<(Header, Vec<u8>)> {
        if let Some(frame) = self.link.input.next_frame().unwrap() {
            return Some((frame.header, frame.body().to_vec()));
        }
        let fd = self.link.as_fd().as_raw_fd();
        if nm_sys::poll::readable(fd, limit).unwrap() {
            self.link.receive().unwrap();
        }
        let frame = self.link.input.next_frame().unwrap()?;
        Some((frame.header, frame.body().to_vec()))
    }
}
