//! Connects a node to others, in a thread of its own.

use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use nm_sys::clock;
use nm_sys::poll::Waker;

use crate::link::Stream;
use crate::network::NodeId;

use super::links::{ConnectOrder, ConnectRequest};

/// How long an attempt to connect may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);

/// Pauses between attempts to connect: the first one, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(20)];

/// Takes what is to be connected, and gives what was.
#[derive(Debug)]
pub struct Connector {
    requests: Sender<ConnectOrder>,
    connected: Receiver<(NodeId, Stream)>,
    waker: Waker,
}

impl Connector {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system's error.
    pub fn start() -> io::Result<Connector> {
        let (requests, requested) = mpsc::channel();
        let (done, connected) = mpsc::channel();
        let waker = Waker::new()?;
        let of_thread = waker.clone();
        std::thread::Builder::new()
            .name("connector".to_string())
            .spawn(move || connect(&requested, &done, &of_thread))?;
        Ok(Connector { requests, connected, waker })
    }

    /// What wakes the node when a link is connected.
    pub fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Has an order carried out.
    pub fn order(&self, order: ConnectOrder) {
        // The thread lives as long as this does.
        let _ = self.requests.send(order);
    }

    /// The next link that was connected.
    pub fn next_connected(&self) -> Option<(NodeId, Stream)> {
        self.connected.try_recv().ok()
    }
}

/// The thread: tries to connect to what is requested until it succeeds; ends with the node.
fn connect(requested: &Receiver<ConnectOrder>, done: &Sender<(NodeId, Stream)>, waker: &Waker) {
    let mut open: Vec<ConnectRequest> = vec![];
    let mut pause = PAUSES[0];
    loop {
        let limit = if open.is_empty() { Duration::from_secs(3600) } else { pause };
        match requested.recv_timeout(limit) {
            Ok(ConnectOrder::Connect(request)) => {
                open.push(request);
                pause = PAUSES[0];
            }
            Ok(ConnectOrder::Forget(node)) => open.retain(|request| request.node != node),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let before = open.len();
        open.retain(|ConnectRequest { node, address, at_ns }| {
            if clock::monotonic_ns() < *at_ns {
                return true;
            }
            match Stream::connect(address, CONNECT_LIMIT) {
                Ok(stream) => done.send((*node, stream)).is_err(),
                Err(_) => true,
            }
        });
        if open.len() < before {
            waker.wake();
        }
        pause = (pause * 2).min(PAUSES[1]);
    }
}
