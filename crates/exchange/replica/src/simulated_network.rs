//! A network in memory for tests. Bytes arrive later, by a seed, and in order on each connection;
//! connections end, links are cut, and machines vanish without a word. Time is that of the test.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::random::testing::Random;

/// A machine.
pub type Node = usize;

/// One direction of a connection.
#[derive(Debug, Default)]
struct Pipe {
    from: Node,
    to: Node,
    /// Bytes on their way, with the time at which they arrive.
    sent: VecDeque<(u64, Vec<u8>)>,
    arrived: VecDeque<u8>,
    /// When the end arrives, if the sender closed it.
    closed: Option<u64>,
    is_ended: bool,
    /// Whether the connection was reset.
    is_reset: bool,
    reader: Option<Waker>,
}

type SharedPipe = Arc<Mutex<Pipe>>;

fn lock(pipe: &SharedPipe) -> MutexGuard<'_, Pipe> {
    pipe.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug, Default)]
struct Queue {
    node: Node,
    streams: VecDeque<Stream>,
    acceptor: Option<Waker>,
}

type SharedQueue = Arc<Mutex<Queue>>;

#[derive(Debug)]
struct Network {
    now_ms: u64,
    random: Random,
    /// The machine whose code runs.
    current: Node,
    listeners: BTreeMap<String, SharedQueue>,
    pipes: Vec<SharedPipe>,
    /// Links that are cut: from one machine to another.
    cut: BTreeSet<(Node, Node)>,
    /// Machines that vanish without a word when their connections are dropped.
    silent: BTreeSet<Node>,
    delay_ms: u64,
}

thread_local! {
    static NETWORK: RefCell<Option<Network>> = const { RefCell::new(None) };
}

fn with<T>(use_it: impl FnOnce(&mut Network) -> T) -> Option<T> {
    NETWORK.with_borrow_mut(|network| network.as_mut().map(use_it))
}

/// From now on the connections of this thread are simulated.
pub fn begin(seed: u64) {
    end();
    NETWORK.set(Some(Network {
        now_ms: 0,
        random: Random::new(seed),
        current: 0,
        listeners: BTreeMap::new(),
        pipes: vec![],
        cut: BTreeSet::new(),
        silent: BTreeSet::new(),
        delay_ms: 1,
    }));
}

/// From now on the connections of this thread are the system's.
pub fn end() {
    // What is dropped now must not find the network in use.
    drop(NETWORK.take());
}

/// The code of this machine runs from now on.
pub fn set_current(node: Node) {
    with(|network| network.current = node);
}

/// Cuts or heals the link from one machine to another. What is on its way waits.
pub fn set_cut(from: Node, to: Node, is_cut: bool) {
    with(|network| match is_cut {
        true => network.cut.insert((from, to)),
        false => network.cut.remove(&(from, to)),
    });
}

/// Heals all links.
pub fn heal() {
    with(|network| network.cut.clear());
}

/// Longest delay of a link, ms.
pub fn set_delay(delay_ms: u64) {
    with(|network| network.delay_ms = delay_ms);
}

/// Whether a machine vanishes without a word.
pub fn set_silent(node: Node, is_silent: bool) {
    with(|network| match is_silent {
        true => network.silent.insert(node),
        false => network.silent.remove(&node),
    });
}

/// Resets all connections of a machine.
pub fn reset(node: Node) {
    let pipes = with(|network| network.pipes.clone()).unwrap_or_default();
    let wakers: Vec<Waker> = pipes
        .iter()
        .filter_map(|pipe| {
            let mut pipe = lock(pipe);
            if pipe.from != node && pipe.to != node {
                return None;
            }
            pipe.is_reset = true;
            pipe.reader.take()
        })
        .collect();
    wakers.into_iter().for_each(Waker::wake);
}

/// A millisecond passes: what arrives is delivered.
pub fn advance() {
    let wakers = with(|network| {
        network.now_ms += 1;
        let (now_ms, cut) = (network.now_ms, &network.cut);
        let mut wakers = vec![];
        network.pipes.retain(|pipe| {
            let is_used = Arc::strong_count(pipe) > 1;
            let mut pipe = lock(pipe);
            if cut.contains(&(pipe.from, pipe.to)) {
                return is_used;
            }
            let before = pipe.arrived.len();
            while let Some((_, bytes)) = pipe.sent.pop_front_if(|(at, _)| *at <= now_ms) {
                pipe.arrived.extend(bytes);
            }
            let ends = pipe.sent.is_empty() && pipe.closed.is_some_and(|at| at <= now_ms);
            if pipe.arrived.len() > before || ends && !pipe.is_ended {
                pipe.is_ended |= ends;
                wakers.extend(pipe.reader.take());
            }
            is_used
        });
        wakers
    });
    wakers.unwrap_or_default().into_iter().for_each(Waker::wake);
}

/// Accepts simulated connections.
#[derive(Debug)]
pub struct Listener(SharedQueue);

impl Listener {
    /// Listens on the machine whose code runs.
    pub fn bind(address: &str) -> Option<Listener> {
        with(|network| {
            let queue = Queue { node: network.current, ..Queue::default() };
            let queue = Arc::new(Mutex::new(queue));
            let before = network.listeners.insert(address.to_string(), Arc::clone(&queue));
            // Connections that nobody accepted end when the network is not in use.
            (Listener(queue), before)
        })
        .map(|(listener, _)| listener)
    }

    /// The next connection.
    pub async fn accept(&self) -> Stream {
        std::future::poll_fn(|context| {
            let mut queue = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            match queue.streams.pop_front() {
                Some(stream) => Poll::Ready(stream),
                None => {
                    queue.acceptor = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

/// An end of a connection.
#[derive(Debug)]
pub struct Stream {
    input: SharedPipe,
    output: SharedPipe,
}

/// Connects to an address, if connections are simulated.
pub fn connect(address: &str) -> Option<io::Result<Stream>> {
    let (made, waker) = with(|network| {
        let refused = || (Err(io::ErrorKind::ConnectionRefused.into()), None);
        let Some(queue) = network.listeners.get(address) else { return refused() };
        // A listener that is gone is only known by its queue.
        if Arc::strong_count(queue) == 1 {
            return refused();
        }
        let mut listening = queue.lock().unwrap_or_else(PoisonError::into_inner);
        let (from, to) = (network.current, listening.node);
        if network.cut.contains(&(from, to)) || network.cut.contains(&(to, from)) {
            return refused();
        }
        let pipe = |from, to| Arc::new(Mutex::new(Pipe { from, to, ..Pipe::default() }));
        let (there, back) = (pipe(from, to), pipe(to, from));
        network.pipes.extend([Arc::clone(&there), Arc::clone(&back)]);
        listening
            .streams
            .push_back(Stream { input: Arc::clone(&there), output: Arc::clone(&back) });
        (Ok(Stream { input: back, output: there }), listening.acceptor.take())
    })?;
    waker.into_iter().for_each(|waker: Waker| waker.wake());
    Some(made)
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut pipe = lock(&self.input);
        if pipe.is_reset {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if pipe.arrived.is_empty() && !pipe.is_ended {
            pipe.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        let count = pipe.arrived.len().min(out.remaining());
        let bytes: Vec<u8> = pipe.arrived.drain(..count).collect();
        out.put_slice(&bytes);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if lock(&self.output).is_reset {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        with(|network| {
            let mut pipe = lock(&self.output);
            let delay_ms = network.random.below(network.delay_ms + 1);
            let before = pipe.sent.back().map_or(0, |(at, _)| *at);
            pipe.sent.push_back((before.max(network.now_ms + delay_ms), bytes.to_vec()));
        });
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let waker = with(|network| {
            let mut output = lock(&self.output);
            if network.silent.contains(&output.from) {
                return None;
            }
            output.closed = Some(network.now_ms + 1);
            drop(output);
            // Whoever writes to it learns that it is gone.
            lock(&self.input).is_reset = true;
            None::<Waker>
        });
        drop(waker);
    }
}
