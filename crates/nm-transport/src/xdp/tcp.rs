//! TCP of our own over AF_XDP: segments leave and arrive as whole frames, and smoltcp makes a
//! stream of them. The peer may be the same, or the kernel's TCP.
//!
//! A kernel socket is bound to the same address and port and does nothing but to hold them: the
//! kernel never sees our segments, so it does not refuse them either.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nm_model::stack::{Mode, Stack};
use nm_model::{Doubt, Failure, FailureKind};
use nm_sys::clock::Deadline;
use nm_sys::xdp::FlowFilter;
use smoltcp::socket::tcp::State;

use super::endpoint::{self, Endpoint, Report};
use super::engine::{ACK_DELAY, BUFFER_BYTES, CONGESTION, Engine};
use super::neighbour;
use crate::link::Connection;
use crate::wait::Patience;
use crate::{Fault, Options, SLICE, Transport, failure};

/// How long one look of a connection that is being made waits.
const LOOK: Duration = Duration::from_millis(20);

/// How long the last bytes of a connection may take to reach the peer.
const LINGER: Duration = Duration::from_millis(500);

/// A connection that has been made.
#[derive(Debug)]
pub(crate) struct Joined {
    engine: Engine,
    report: Report,
    /// Holds the port.
    _kernel: OwnedFd,
}

/// Buffers as asked for; congestion control other than our own is refused.
fn buffer_bytes(options: &Options) -> Result<u32, Failure> {
    if let Some(name) = options.congestion.as_deref().filter(|name| *name != CONGESTION) {
        let what = format!("choosing congestion control `{name}`: xdp-tcp has only {CONGESTION}");
        return Err(Failure::new(FailureKind::NotAvailable, what)
            .hint("leave it out, or use the kernel's tcp"));
    }
    Ok(options.buffer_bytes.unwrap_or(BUFFER_BYTES).clamp(1 << 12, 1 << 26))
}

/// Connects from `own`, which `kernel` holds, to `peer`.
pub(crate) fn connect(
    stack: Stack,
    kernel: OwnedFd,
    (own, peer): (SocketAddr, SocketAddr),
    options: &Options,
    limit: Duration,
) -> Result<Connection, Failure> {
    let doing = format!("connecting to {peer} by xdp-tcp");
    let failed = |error: io::Error| failure::of(&error, &doing);
    let deadline = Deadline::after(limit);
    if own.is_ipv4() != peer.is_ipv4() {
        let what = format!("{doing}: both ends must have addresses of one family");
        return Err(Failure::new(FailureKind::BadRequest, what));
    }
    let buffer_bytes = buffer_bytes(options)?;
    let endpoint = Endpoint::open(own, &FlowFilter::tcp(own, Some(peer)), stack.mode)?;
    let next_hop = neighbour::next_hop(&endpoint, peer.ip(), limit)?;
    let report = endpoint.report();
    let mut engine = Engine::new(endpoint, Some(next_hop), buffer_bytes);
    engine.connect(own, peer).map_err(failed)?;
    while engine.state() != State::Established {
        engine.sleep(LOOK).map_err(failed)?;
        match engine.state() {
            State::Closed => return Err(failed(io::ErrorKind::ConnectionRefused.into())),
            _ if deadline.passed() => return Err(failed(io::ErrorKind::TimedOut.into())),
            _ => {}
        }
    }
    Ok(Connection::over_segments(stack, Joined { engine, report, _kernel: kernel }, peer))
}

/// What a listener keeps until its peer comes. A thread of its own answers the peer's first
/// segments, as the kernel does for a kernel socket: a peer may connect before anybody accepts.
#[derive(Debug)]
pub(crate) struct Door {
    local: SocketAddr,
    report: Report,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    joined: Mutex<Receiver<io::Result<Engine>>>,
}

impl Door {
    /// Takes the segments to the address of a bound kernel socket.
    pub fn open(local: SocketAddr, mode: Mode, options: &Options) -> Result<Door, Failure> {
        let failed = |error: io::Error| failure::of(&error, format!("listening on {local}"));
        let buffer_bytes = buffer_bytes(options)?;
        let endpoint = Endpoint::open(local, &FlowFilter::tcp(local, None), mode)?;
        let report = endpoint.report();
        let mut engine = Engine::new(endpoint, None, buffer_bytes);
        engine.listen(local).map_err(failed)?;
        let (sender, joined) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let answer = move || {
            while !stopped.load(Ordering::Relaxed) {
                if let Err(error) = engine.sleep(LOOK) {
                    // Nobody hears it only if the listener has gone.
                    let _ = sender.send(Err(error));
                    return;
                }
                if engine.state() == State::Established || engine.state() == State::CloseWait {
                    let _ = sender.send(Ok(engine));
                    return;
                }
            }
        };
        let named = thread::Builder::new().name("xdp-tcp listener".to_string());
        let thread = Some(named.spawn(answer).map_err(failed)?);
        Ok(Door { local, report, stop, thread, joined: Mutex::new(joined) })
    }

    /// Waits for the peer. `kernel` is the socket that has the port.
    pub fn accept(
        &self,
        stack: Stack,
        kernel: &OwnedFd,
        limit: Duration,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Connection, Failure> {
        let failed = |error: io::Error| failure::of(&error, format!("listening on {}", self.local));
        let joined = self.joined.lock().unwrap_or_else(PoisonError::into_inner);
        let deadline = Deadline::after(limit);
        loop {
            if cancelled() {
                return Err(failure::cancelled());
            }
            match joined.recv_timeout(SLICE) {
                Ok(engine) => {
                    let mut engine = engine.map_err(failed)?;
                    let Some(peer) = engine.settle() else {
                        return Err(failed(io::ErrorKind::ConnectionReset.into()));
                    };
                    let _kernel = kernel.try_clone().map_err(failed)?;
                    let joined = Joined { engine, report: self.report.clone(), _kernel };
                    return Ok(Connection::over_segments(stack, joined, peer));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let what = "the listener has had its peer";
                    return Err(Failure::new(FailureKind::BadRequest, what));
                }
                Err(RecvTimeoutError::Timeout) if deadline.passed() => {
                    let what = format!("nobody connected to {} in {limit:?}", self.local);
                    return Err(Failure::new(FailureKind::Peer, what).hint(
                        "check that the peer was started and reaches this address by queue 0",
                    ));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Its end frees the queue; a panic in it has been told already.
            let _ = thread.join();
        }
    }
}

/// A connection over AF_XDP that looks at its ring, or sleeps in `poll`.
#[derive(Debug)]
pub struct XdpTcp<const SPINS: bool> {
    joined: Joined,
    /// Bytes of the current message that have gone, after a call that timed out.
    sent: usize,
    /// Bytes of the current message that are there, after a call that timed out.
    filled: usize,
}

/// What the engine answered, with its error as a fault and its end as [`Fault::Closed`].
#[inline(always)]
fn told(answer: io::Result<Option<usize>>) -> Result<usize, Fault> {
    answer.map_err(|error| Fault::of(&error))?.ok_or(Fault::Closed)
}

impl<const SPINS: bool> XdpTcp<SPINS> {
    pub(crate) fn new(joined: Joined) -> XdpTcp<SPINS> {
        XdpTcp { joined, sent: 0, filled: 0 }
    }

    /// Takes at least a byte.
    #[inline(always)]
    fn take(&mut self, buffer: &mut [u8]) -> Result<usize, Fault> {
        let mut patience = Patience::default();
        let deadline = (!SPINS).then(|| Deadline::after(SLICE));
        loop {
            match told(self.joined.engine.take(buffer, !SPINS))? {
                0 if self.is_late(&mut patience, deadline)? => return Err(Fault::TimedOut),
                0 => {}
                length => return Ok(length),
            }
        }
    }

    /// After a turn without success: waits in the way of the mode; answers whether to give up.
    #[inline(always)]
    fn is_late(
        &mut self,
        patience: &mut Patience,
        deadline: Option<Deadline>,
    ) -> Result<bool, Fault> {
        let Some(deadline) = deadline else { return Ok(patience.spent()) };
        if !deadline.passed() {
            let slept = self.joined.engine.sleep(deadline.remaining());
            slept.map_err(|error| Fault::of(&error))?;
            return Ok(false);
        }
        Ok(true)
    }
}

impl<const SPINS: bool> Drop for XdpTcp<SPINS> {
    fn drop(&mut self) {
        self.joined.engine.finish(LINGER);
    }
}

impl<const SPINS: bool> Transport for XdpTcp<SPINS> {
    const DATAGRAM: bool = false;

    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> Result<(), Fault> {
        let mut patience = Patience::default();
        let deadline = (!SPINS).then(|| Deadline::after(SLICE));
        loop {
            let rest = &message[self.sent.min(message.len())..];
            let length = told(self.joined.engine.give(rest))?;
            self.sent += length;
            if length == rest.len() {
                self.sent = 0;
                return Ok(());
            }
            if length == 0 && self.is_late(&mut patience, deadline)? {
                return Err(Fault::TimedOut);
            }
        }
    }

    #[inline(always)]
    fn receive(&mut self, buffer: &mut [u8]) -> Result<usize, Fault> {
        loop {
            let filled = self.filled.min(buffer.len());
            let length = self.take(&mut buffer[filled..])?;
            if filled + length == buffer.len() {
                self.filled = 0;
                return Ok(buffer.len());
            }
            self.filled = filled + length;
        }
    }

    #[inline(always)]
    fn receive_some(&mut self, buffer: &mut [u8]) -> Result<usize, Fault> {
        self.take(buffer)
    }

    #[inline(always)]
    fn try_send(&mut self, bytes: &[u8]) -> Result<Option<usize>, Fault> {
        let length = told(self.joined.engine.give(bytes))?;
        Ok((length > 0 || bytes.is_empty()).then_some(length))
    }

    #[inline(always)]
    fn try_receive(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, Fault> {
        let length = told(self.joined.engine.take(buffer, !SPINS))?;
        Ok((length > 0).then_some(length))
    }

    #[inline(always)]
    fn wait(&mut self, limit: Duration) -> Result<bool, Fault> {
        if SPINS || self.joined.engine.has_news() {
            return Ok(true);
        }
        self.joined.engine.sleep(limit).map_err(|error| Fault::of(&error))?;
        Ok(self.joined.engine.has_news())
    }

    fn end_sending(&mut self, _lengths: &[usize]) {
        self.joined.engine.end_sending();
    }

    fn settings(&self) -> BTreeMap<String, String> {
        let Joined { engine, report, .. } = &self.joined;
        let (send, receive) = engine.buffers();
        let mut settings = report.settings.clone();
        for (name, value) in [
            ("TCP", "smoltcp, in this program".to_string()),
            ("send buffer", format!("{send} B")),
            ("receive buffer", format!("{receive} B")),
            ("congestion control", CONGESTION.to_string()),
            ("acknowledgement delay", format!("{} ms", ACK_DELAY.as_millis())),
        ] {
            settings.insert(name.to_string(), value);
        }
        settings
    }

    fn doubts(&self) -> Vec<Doubt> {
        endpoint::doubts(self.joined.engine.socket(), self.joined.report.local)
    }
}
