//! A network in memory for tests. Bytes arrive later, by a seed, and in order on each connection;
//! connections end, links are cut, and machines vanish without a word. Time is that of the test.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use nm_codec::Random;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::sockets::{self, ByteStream, Pending};

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
struct State {
    now_ms: u64,
    random: Random,
    listeners: BTreeMap<String, SharedQueue>,
    pipes: Vec<SharedPipe>,
    /// Links that are cut: from one machine to another.
    cut: BTreeSet<(Node, Node)>,
    /// Machines that vanish without a word when their connections are dropped.
    silent: BTreeSet<Node>,
    delay_ms: u64,
}

/// The network.
#[derive(Debug, Clone)]
pub struct Network(Arc<Mutex<State>>);

impl Network {
    /// A network without connections.
    pub fn new(seed: u64) -> Network {
        Network(Arc::new(Mutex::new(State {
            now_ms: 0,
            random: Random::new(seed),
            listeners: BTreeMap::new(),
            pipes: vec![],
            cut: BTreeSet::new(),
            silent: BTreeSet::new(),
            delay_ms: 1,
        })))
    }

    fn with<T>(&self, use_it: impl FnOnce(&mut State) -> T) -> T {
        use_it(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Time since the beginning, ms.
    pub fn now_ms(&self) -> u64 {
        self.with(|network| network.now_ms)
    }

    /// Forgets all connections.
    pub fn end(&self) {
        let listeners = self.with(|network| std::mem::take(&mut network.listeners));
        // What is dropped now must not find the network in use.
        drop(listeners);
    }

    /// Cuts or heals the link from one machine to another. What is on its way waits.
    pub fn set_cut(&self, from: Node, to: Node, is_cut: bool) {
        self.with(|network| match is_cut {
            true => network.cut.insert((from, to)),
            false => network.cut.remove(&(from, to)),
        });
    }

    /// Heals all links.
    pub fn heal(&self) {
        self.with(|network| network.cut.clear());
    }

    /// Longest delay of a link, ms.
    pub fn set_delay(&self, delay_ms: u64) {
        self.with(|network| network.delay_ms = delay_ms);
    }

    /// Whether a machine vanishes without a word.
    pub fn set_silent(&self, node: Node, is_silent: bool) {
        self.with(|network| match is_silent {
            true => network.silent.insert(node),
            false => network.silent.remove(&node),
        });
    }

    /// Resets all connections of a machine.
    pub fn reset(&self, node: Node) {
        let pipes = self.with(|network| network.pipes.clone());
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
    pub fn advance(&self) {
        let wakers = self.with(|network| {
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
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Listens on a machine.
    pub fn listen(&self, node: Node, address: &str) -> Listener {
        let queue = Arc::new(Mutex::new(Queue { node, ..Queue::default() }));
        let before =
            self.with(|network| network.listeners.insert(address.to_string(), Arc::clone(&queue)));
        // Connections that nobody accepted end when the network is not in use.
        drop(before);
        Listener(queue)
    }

    /// Connects a machine to an address.
    ///
    /// # Errors
    /// If nobody listens there, or the link is cut.
    pub fn connect(&self, from: Node, address: &str) -> io::Result<Stream> {
        let (made, waker) = self.with(|network| {
            let refused = || (Err(io::ErrorKind::ConnectionRefused.into()), None);
            let Some(queue) = network.listeners.get(address) else { return refused() };
            // A listener that is gone is only known by its queue.
            if Arc::strong_count(queue) == 1 {
                return refused();
            }
            let mut listening = queue.lock().unwrap_or_else(PoisonError::into_inner);
            let to = listening.node;
            if network.cut.contains(&(from, to)) || network.cut.contains(&(to, from)) {
                return refused();
            }
            let pipe = |from, to| Arc::new(Mutex::new(Pipe { from, to, ..Pipe::default() }));
            let (there, back) = (pipe(from, to), pipe(to, from));
            network.pipes.extend([Arc::clone(&there), Arc::clone(&back)]);
            let stream = |input: &SharedPipe, output: &SharedPipe| Stream {
                network: self.clone(),
                input: Arc::clone(input),
                output: Arc::clone(output),
            };
            listening.streams.push_back(stream(&there, &back));
            (Ok(stream(&back, &there)), listening.acceptor.take())
        });
        waker.into_iter().for_each(|waker: Waker| waker.wake());
        made
    }
}

/// Accepts simulated connections.
#[derive(Debug)]
pub struct Listener(SharedQueue);

impl sockets::Listener for Listener {
    fn accept(&self) -> Pending<'_, Box<dyn ByteStream>> {
        Box::pin(std::future::poll_fn(|context| {
            let mut queue = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            match queue.streams.pop_front() {
                Some(stream) => Poll::Ready(Ok(Box::new(stream) as Box<dyn ByteStream>)),
                None => {
                    queue.acceptor = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        }))
    }
}

/// An end of a connection.
#[derive(Debug)]
pub struct Stream {
    network: Network,
    input: SharedPipe,
    output: SharedPipe,
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
        self.network.with(|network| {
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
        self.network.with(|network| {
            let mut output = lock(&self.output);
            if network.silent.contains(&output.from) {
                return;
            }
            output.closed = Some(network.now_ms + 1);
            drop(output);
            // Whoever writes to it learns that it is gone.
            lock(&self.input).is_reset = true;
        });
    }
}
