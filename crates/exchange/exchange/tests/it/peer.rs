//! The other end of a link of a node, played by a test.

use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixListener;
use std::time::Duration;

use nm_exchange::client::say_hello;
use nm_exchange::link::{Address, Link, Stream};
use nm_exchange::testing::LIMIT;
use nm_sys::clock::Deadline;
use nm_wire::{Hello, Kind, Listed, Value, Welcome, Who};

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
        let (kind, hello) = peer.next();
        assert_eq!(kind, Kind::Hello);
        let Hello { digest, network, to, .. } = nm_wire::decode(&hello).unwrap();
        let node = to.expect("a node names the other one");
        peer.send(&Welcome { digest, network, start, session: 0, node, proof: None });
        peer
    }

    /// One that connects to a node.
    pub fn connected(address: &Address, hello: &Who) -> Peer {
        let mut peer = Peer { link: Link::new(Stream::connect(address, LIMIT).unwrap()).unwrap() };
        say_hello(*hello, None, &mut peer.link.output);
        assert!(peer.link.flush().unwrap());
        assert_eq!(peer.next().0, Kind::Welcome);
        peer
    }

    /// Sends a message.
    pub fn send<'m, M: Listed + Value<'m>>(&mut self, message: &M) {
        nm_wire::write(message, &mut self.link.output);
        assert!(self.link.flush().unwrap());
    }

    /// The next message, which must come: its kind and its bytes.
    pub fn next(&mut self) -> (Kind, Vec<u8>) {
        let deadline = Deadline::after(LIMIT);
        loop {
            if let Some(frame) = self.next_within(Duration::from_millis(50)) {
                return frame;
            }
            assert!(!deadline.passed(), "nothing came");
        }
    }

    /// The next message, if one comes in this time. What the node says of its format is skipped.
    pub fn next_within(&mut self, limit: Duration) -> Option<(Kind, Vec<u8>)> {
        if let Some(frame) = self.take() {
            return Some(frame);
        }
        let fd = self.link.as_fd().as_raw_fd();
        if nm_sys::poll::readable(fd, limit).unwrap() {
            self.link.receive().unwrap();
        }
        self.take()
    }

    fn take(&mut self) -> Option<(Kind, Vec<u8>)> {
        loop {
            let frame = self.link.input.next_frame().unwrap()?;
            if frame.kind() != Kind::Format {
                return Some((frame.kind(), frame.shared().message.to_vec()));
            }
        }
    }
}
