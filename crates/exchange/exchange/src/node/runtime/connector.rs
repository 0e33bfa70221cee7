//! Connects a node to those downstream. A thread of its own makes all connections at the same time,
//! each with its own limit and pauses. So one that nobody answers delays no other.

use std::io;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::Duration;

use nm_sys::clock;
use nm_sys::poll::{Interest, Poller, Waker};

use crate::link::{Connecting, Stream};
use crate::network::NodeId;

use super::links::{ConnectOrder, ConnectRequest};

/// How long an attempt to connect may take, ns.
const ATTEMPT_NS: u64 = 1_000_000_000;

/// Pauses between the attempts to connect to a node: the first one, and the longest, ns. Each is
/// twice as long as the one before.
const PAUSES_NS: [u64; 2] = [2_000_000, 20_000_000];

/// The node's end of it.
#[derive(Debug)]
pub struct Connector {
    /// Absent once the thread is to end.
    orders: Option<Sender<ConnectOrder>>,
    is_ordered: Waker,
    connected: Receiver<(NodeId, Stream)>,
    is_connected: Waker,
}

impl Connector {
    /// Starts the thread, which ends with this.
    ///
    /// # Errors
    /// The system's error.
    pub fn start() -> io::Result<Connector> {
        let (orders, ordered) = channel();
        let (done, connected) = channel();
        let (is_ordered, is_connected) = (Waker::new()?, Waker::new()?);
        let poller = Poller::new()?;
        poller.add(&is_ordered, ORDERS, Interest::Readable)?;
        let (awake, waker) = (is_ordered.clone(), is_connected.clone());
        let work = move || work(poller, (&ordered, &awake), (&done, &waker));
        thread::Builder::new().name("connector".to_string()).spawn(work)?;
        Ok(Connector { orders: Some(orders), is_ordered, connected, is_connected })
    }

    /// Has an order carried out.
    pub fn order(&self, order: ConnectOrder) {
        if let Some(orders) = &self.orders {
            // The thread lives as long as this does.
            let _ = orders.send(order);
            self.is_ordered.wake();
        }
    }

    /// What wakes the node when there is something to take.
    pub fn waker(&self) -> &Waker {
        &self.is_connected
    }

    /// The next stream that was connected.
    pub fn next_connected(&self) -> Option<(NodeId, Stream)> {
        self.connected.try_recv().ok()
    }
}

impl Drop for Connector {
    fn drop(&mut self) {
        self.orders = None;
        self.is_ordered.wake();
    }
}

/// Tokens of the thread's poller: only that something is ready counts.
const ORDERS: u64 = 0;
const ATTEMPT: u64 = 1;

/// A node that is to be connected.
#[derive(Debug)]
struct Attempt {
    request: ConnectRequest,
    /// When the next attempt begins, or the present one is given up, ns.
    due_ns: u64,
    pause_ns: u64,
    connecting: Option<Connecting>,
}

impl Attempt {
    fn new(request: ConnectRequest) -> Attempt {
        let due_ns = request.at_ns;
        Attempt { request, due_ns, pause_ns: PAUSES_NS[0], connecting: None }
    }

    /// Goes on as far as possible without waiting; the stream if there is one.
    fn advance(&mut self, now_ns: u64, poller: &Poller) -> Option<Stream> {
        let is_new = self.connecting.is_none();
        if is_new && now_ns < self.due_ns {
            return None;
        }
        let begun =
            self.connecting.take().map_or_else(|| Connecting::begin(&self.request.address), Ok);
        let advanced = begun.and_then(|connecting| {
            // It is the stream's descriptor as well, for which this thread does not wait.
            let was_waited_for = (!is_new).then(|| poller.remove(&connecting));
            was_waited_for.transpose()?;
            let advanced = connecting.advance()?;
            if let Err(connecting) = &advanced {
                poller.add(connecting, ATTEMPT, Interest::ReadableOrWritable)?;
            }
            Ok(advanced)
        });
        match advanced {
            Ok(Ok(stream)) => return Some(stream),
            Ok(Err(connecting)) if is_new || now_ns < self.due_ns => {
                self.connecting = Some(connecting);
                if is_new {
                    self.due_ns = now_ns + ATTEMPT_NS;
                }
                return None;
            }
            Ok(Err(_)) | Err(_) => {}
        }
        self.due_ns = now_ns + self.pause_ns;
        self.pause_ns = (2 * self.pause_ns).min(PAUSES_NS[1]);
        None
    }
}

/// The thread: connects what is ordered, until the node ends.
fn work(
    mut poller: Poller,
    (ordered, awake): (&Receiver<ConnectOrder>, &Waker),
    (done, waker): (&Sender<(NodeId, Stream)>, &Waker),
) {
    let (mut attempts, mut ready) = (Vec::<Attempt>::new(), vec![]);
    loop {
        awake.drain();
        loop {
            match ordered.try_recv() {
                Ok(ConnectOrder::Connect(request)) => attempts.push(Attempt::new(request)),
                Ok(ConnectOrder::Forget(node)) => {
                    attempts.retain(|attempt| attempt.request.node != node);
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return,
            }
        }
        let now_ns = clock::monotonic_ns();
        let before = attempts.len();
        attempts.retain_mut(|attempt| match attempt.advance(now_ns, &poller) {
            Some(stream) => done.send((attempt.request.node, stream)).is_err(),
            None => true,
        });
        if attempts.len() < before {
            waker.wake();
        }
        let due_ns = attempts.iter().map(|attempt| attempt.due_ns).min();
        let limit =
            due_ns.map(|due_ns| Duration::from_nanos(due_ns.saturating_sub(clock::monotonic_ns())));
        if poller.wait(&mut ready, limit).is_err() {
            // Not of one connection. Nothing is ready, and attempts go on after a pause.
            #[expect(clippy::disallowed_methods, reason = "a thread of its own")]
            thread::sleep(Duration::from_nanos(PAUSES_NS[1]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Address;
    use crate::link::full_queues::{full_listener, full_tcp_listener};
    use crate::network::Role;
    use nm_sys::clock::Deadline;
    use nm_sys::poll;
    use std::os::fd::{AsFd, AsRawFd};
    use std::os::unix::net::UnixListener;

    const LIMIT: Duration = Duration::from_secs(60);

    fn connect(connector: &Connector, node: NodeId, address: Address, at_ns: u64) {
        connector.order(ConnectOrder::Connect(ConnectRequest { node, address, at_ns }));
    }

    fn next(connector: &Connector) -> NodeId {
        let deadline = Deadline::after(LIMIT);
        loop {
            connector.waker().drain();
            if let Some((node, _)) = connector.next_connected() {
                return node;
            }
            let fd = connector.waker().as_fd().as_raw_fd();
            assert!(poll::readable(fd, deadline.remaining()).unwrap(), "nothing is connected");
        }
    }

    /// Twenty connections are made meanwhile. If the others were waited for, each would take
    /// seconds.
    #[test]
    fn nodes_that_nobody_can_reach_delay_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let connector = Connector::start().unwrap();
        let address = |name: &str| format!("unix:{}", folder.path().join(name).display());
        let (full, _waiting) = full_listener(&folder.path().join("full"));
        let _silent = UnixListener::bind(folder.path().join("silent")).unwrap();
        let (tcp, _silent_tcp, _waiting_tcp) = full_tcp_listener();
        // Queues without room, memory that is not handed over, and nobody.
        let silent = format!("shm:{}", folder.path().join("silent").display());
        for (index, unreachable) in
            [address("full"), silent, address("nobody"), tcp.to_string()].into_iter().enumerate()
        {
            let node = Role::Mediator.node(index as u16);
            connect(&connector, node, unreachable.parse().unwrap(), 0);
        }
        let well = UnixListener::bind(folder.path().join("well")).unwrap();
        let healthy = Role::Mediator.node(9);
        let begun_ns = clock::monotonic_ns();
        for _ in 0..20 {
            connect(&connector, healthy, address("well").parse().unwrap(), 0);
            assert_eq!(next(&connector), healthy);
            well.accept().unwrap();
        }
        // An attempt at each of two others takes a second.
        assert!(clock::monotonic_ns() - begun_ns < 20_000_000_000);
        full.accept().unwrap();
        assert_eq!(next(&connector), Role::Mediator.node(0), "there is room again");
    }

    #[test]
    fn a_node_is_connected_when_it_is_there_and_not_before_its_time_nor_if_it_is_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let connector = Connector::start().unwrap();
        let path = folder.path().join("late");
        let address = || Address::Unix(path.clone());
        let [late, later, gone] = [0, 1, 2].map(|index| Role::Router.node(index));
        let at_ns = clock::monotonic_ns() + 200_000_000;
        connect(&connector, later, address(), at_ns);
        connect(&connector, gone, address(), 0);
        connector.order(ConnectOrder::Forget(gone));
        connect(&connector, late, address(), 0);
        let _listener = UnixListener::bind(&path).unwrap();
        assert_eq!(next(&connector), late);
        assert_eq!(next(&connector), later);
        assert!(clock::monotonic_ns() >= at_ns);
    }
}
