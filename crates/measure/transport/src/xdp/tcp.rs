//! TCP over AF_XDP: segments are sent and received as complete frames, and smoltcp makes a stream
//! of them. The peer may be the same, or the kernel's TCP.
//!
//! A kernel socket is bound to the same address and port and does nothing but reserve them. The
//! kernel never sees our segments, so it does not reset the connection either.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nm_model::Doubt;
use nm_model::setting::{SettingKind, SettingValue, Settings};
use nm_model::stack::Mode;
use nm_sys::clock::Deadline;
use nm_sys::xdp::FlowFilter;
use smoltcp::socket::tcp::State;

use super::endpoint::{self, EndpointReport, XdpEndpoint};
use super::engine::{ACK_DELAY, BUFFER_BYTES, CONGESTION, TcpEngine};
use super::error::{XdpError, XdpSetupError};
use super::neighbour;
use crate::error::SystemError;
use crate::sockets::Options;
use crate::transport::{CALL_TIMEOUT, Transport, TransportError};
use crate::wait::SpinLimit;

/// How long one sleep lasts while a connection is being made.
const CONNECT_SLEEP: Duration = Duration::from_millis(20);

/// How long the last bytes of a connection may take to reach the peer.
const LINGER: Duration = Duration::from_millis(500);

/// A connection that is established.
#[derive(Debug)]
pub(crate) struct EstablishedTcp {
    engine: TcpEngine,
    report: EndpointReport,
    /// Holds the port.
    _kernel: OwnedFd,
}

/// Buffers as requested; any congestion control but our own is refused.
fn buffer_bytes(options: &Options) -> Result<u32, XdpSetupError> {
    if let Some(name) = options.congestion.as_deref().filter(|name| *name != CONGESTION) {
        return Err(XdpSetupError::CongestionControl(name.to_string()));
    }
    Ok(options.buffer_bytes.unwrap_or(BUFFER_BYTES).clamp(1 << 12, 1 << 26))
}

impl EstablishedTcp {
    /// Connects from `own`, which `kernel` holds, to `peer`.
    pub fn connect(
        mode: Mode,
        kernel: OwnedFd,
        (own, peer): (SocketAddr, SocketAddr),
        options: &Options,
        limit: Duration,
    ) -> Result<EstablishedTcp, XdpError> {
        let failed = SystemError::during(format!("connecting to {peer} by xdp-tcp"));
        let deadline = Deadline::after(limit);
        if own.is_ipv4() != peer.is_ipv4() {
            return Err(XdpError::AddressFamilies { local: own, peer });
        }
        let buffer_bytes = buffer_bytes(options)?;
        let endpoint = XdpEndpoint::open(own, &FlowFilter::tcp(own, Some(peer)), mode)?;
        let next_hop = neighbour::next_hop(&endpoint, peer.ip(), limit)?;
        let report = endpoint.report();
        let mut engine = TcpEngine::new(endpoint, Some(next_hop), buffer_bytes);
        engine.connect(own, peer).map_err(&failed)?;
        while engine.state() != State::Established {
            engine.sleep(CONNECT_SLEEP).map_err(&failed)?;
            match engine.state() {
                State::Closed => return Err(failed(io::ErrorKind::ConnectionRefused.into()).into()),
                _ if deadline.passed() => return Err(failed(io::ErrorKind::TimedOut.into()).into()),
                _ => {}
            }
        }
        Ok(EstablishedTcp { engine, report, _kernel: kernel })
    }
}

/// A listening endpoint, until its peer connects. A thread of its own answers the peer's first
/// segments, as the kernel does for a kernel socket: a peer may connect before `accept` is called.
#[derive(Debug)]
pub(crate) struct XdpTcpListener {
    local: SocketAddr,
    report: EndpointReport,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    established: Mutex<Receiver<io::Result<TcpEngine>>>,
}

impl XdpTcpListener {
    /// Takes the segments to the address of a bound kernel socket.
    pub fn open(
        local: SocketAddr,
        mode: Mode,
        options: &Options,
    ) -> Result<XdpTcpListener, XdpError> {
        let failed = SystemError::during(format!("listening on {local}"));
        let buffer_bytes = buffer_bytes(options)?;
        let endpoint = XdpEndpoint::open(local, &FlowFilter::tcp(local, None), mode)?;
        let report = endpoint.report();
        let mut engine = TcpEngine::new(endpoint, None, buffer_bytes);
        engine.listen(local).map_err(&failed)?;
        let (sender, established) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let answer = move || {
            while !stopped.load(Ordering::Relaxed) {
                if let Err(error) = engine.sleep(CONNECT_SLEEP) {
                    // This fails only if the listener was dropped, which no longer needs it.
                    let _ = sender.send(Err(error));
                    return;
                }
                if engine.state() == State::Established || engine.state() == State::CloseWait {
                    let _ = sender.send(Ok(engine));
                    return;
                }
            }
        };
        let builder = thread::Builder::new().name("xdp-tcp listener".to_string());
        let thread = Some(builder.spawn(answer).map_err(&failed)?);
        let established = Mutex::new(established);
        Ok(XdpTcpListener { local, report, stop, thread, established })
    }

    /// Waits for the peer. `kernel` is the socket that has the port.
    pub fn accept(
        &self,
        kernel: &OwnedFd,
        limit: Duration,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<(EstablishedTcp, SocketAddr), XdpError> {
        let failed = SystemError::during(format!("listening on {}", self.local));
        let established = self.established.lock().unwrap_or_else(PoisonError::into_inner);
        let deadline = Deadline::after(limit);
        loop {
            if cancelled() {
                return Err(XdpError::Cancelled);
            }
            match established.recv_timeout(CALL_TIMEOUT) {
                Ok(engine) => {
                    let mut engine = engine.map_err(&failed)?;
                    let Some(peer) = engine.fix_peer() else {
                        return Err(failed(io::ErrorKind::ConnectionReset.into()).into());
                    };
                    let _kernel = kernel.try_clone().map_err(&failed)?;
                    let report = self.report.clone();
                    return Ok((EstablishedTcp { engine, report, _kernel }, peer));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(XdpError::AlreadyAccepted),
                Err(RecvTimeoutError::Timeout) if deadline.passed() => {
                    let address = self.local.to_string();
                    return Err(XdpError::NoPeer { address, limit, other_queue: None });
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

impl Drop for XdpTcpListener {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Its end frees the queue; the panic hook has already reported a panic in it.
            let _ = thread.join();
        }
    }
}

/// TCP over AF_XDP that spins on its ring, or sleeps in `poll`.
#[derive(Debug)]
pub struct XdpTcpTransport<const SPINS: bool> {
    established: EstablishedTcp,
    /// Bytes of the current message that were sent before a call timed out.
    sent_bytes: usize,
    /// Bytes of the current message that were received before a call timed out.
    received_bytes: usize,
}

/// The bytes that the engine moved; [`TransportError::Closed`] if the connection is closed.
#[inline(always)]
fn bytes_or_closed(moved: io::Result<Option<usize>>) -> Result<usize, TransportError> {
    moved?.ok_or(TransportError::Closed)
}

impl<const SPINS: bool> XdpTcpTransport<SPINS> {
    pub(crate) fn new(established: EstablishedTcp) -> XdpTcpTransport<SPINS> {
        XdpTcpTransport { established, sent_bytes: 0, received_bytes: 0 }
    }

    /// Receives at least a byte.
    #[inline(always)]
    fn receive_bytes(&mut self, buffer: &mut [u8]) -> Result<usize, TransportError> {
        let mut spin_limit = SpinLimit::default();
        let deadline = (!SPINS).then(|| Deadline::after(CALL_TIMEOUT));
        loop {
            match bytes_or_closed(self.established.engine.receive(buffer, !SPINS))? {
                0 if self.has_timed_out(&mut spin_limit, deadline)? => {
                    return Err(TransportError::TimedOut);
                }
                0 => {}
                length => return Ok(length),
            }
        }
    }

    /// After an attempt that moved nothing: waits in the way of the mode; returns whether the call
    /// has timed out.
    #[inline(always)]
    fn has_timed_out(
        &mut self,
        spin_limit: &mut SpinLimit,
        deadline: Option<Deadline>,
    ) -> Result<bool, TransportError> {
        let Some(deadline) = deadline else { return Ok(spin_limit.count_spin()) };
        if !deadline.passed() {
            self.established.engine.sleep(deadline.remaining())?;
            return Ok(false);
        }
        Ok(true)
    }
}

impl<const SPINS: bool> Drop for XdpTcpTransport<SPINS> {
    fn drop(&mut self) {
        self.established.engine.close(LINGER);
    }
}

impl<const SPINS: bool> Transport for XdpTcpTransport<SPINS> {
    const DATAGRAM: bool = false;

    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> Result<(), TransportError> {
        let mut spin_limit = SpinLimit::default();
        let deadline = (!SPINS).then(|| Deadline::after(CALL_TIMEOUT));
        loop {
            debug_assert!(
                self.sent_bytes <= message.len(),
                "a send was repeated with another message"
            );
            let rest = &message[self.sent_bytes.min(message.len())..];
            let length = bytes_or_closed(self.established.engine.send(rest))?;
            self.sent_bytes += length;
            if length == rest.len() {
                self.sent_bytes = 0;
                return Ok(());
            }
            if length == 0 && self.has_timed_out(&mut spin_limit, deadline)? {
                return Err(TransportError::TimedOut);
            }
        }
    }

    #[inline(always)]
    fn receive(&mut self, buffer: &mut [u8]) -> Result<usize, TransportError> {
        loop {
            debug_assert!(
                self.received_bytes < buffer.len(),
                "an empty buffer, or a receive was repeated with another one"
            );
            let received_bytes = self.received_bytes.min(buffer.len());
            let length = self.receive_bytes(&mut buffer[received_bytes..])?;
            if received_bytes + length == buffer.len() {
                self.received_bytes = 0;
                return Ok(buffer.len());
            }
            self.received_bytes = received_bytes + length;
        }
    }

    #[inline(always)]
    fn receive_some(&mut self, buffer: &mut [u8]) -> Result<usize, TransportError> {
        self.receive_bytes(buffer)
    }

    #[inline(always)]
    fn try_send(&mut self, bytes: &[u8]) -> Result<Option<usize>, TransportError> {
        let length = bytes_or_closed(self.established.engine.send(bytes))?;
        Ok((length > 0 || bytes.is_empty()).then_some(length))
    }

    #[inline(always)]
    fn try_receive(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, TransportError> {
        let length = bytes_or_closed(self.established.engine.receive(buffer, !SPINS))?;
        Ok((length > 0).then_some(length))
    }

    #[inline(always)]
    fn wait(&mut self, limit: Duration) -> Result<bool, TransportError> {
        if SPINS || self.established.engine.is_receivable() {
            return Ok(true);
        }
        self.established.engine.sleep(limit)?;
        Ok(self.established.engine.is_receivable())
    }

    fn end_sending(&mut self, _message_lengths: &[usize]) {
        self.established.engine.end_sending();
    }

    fn settings(&self) -> Settings {
        let EstablishedTcp { engine, report, .. } = &self.established;
        let (send, receive) = engine.buffers();
        let mut settings = report.settings.clone();
        settings.extend([
            (SettingKind::TcpImplementation, SettingValue::text("smoltcp, in this program")),
            (SettingKind::SendBuffer, SettingValue::Bytes(send as u64)),
            (SettingKind::ReceiveBuffer, SettingValue::Bytes(receive as u64)),
            (SettingKind::CongestionControl, SettingValue::text(CONGESTION)),
            (SettingKind::AckDelay, SettingValue::Milliseconds(ACK_DELAY.as_millis() as f64)),
        ]);
        settings
    }

    fn doubts(&self) -> Vec<Doubt> {
        endpoint::doubts(self.established.engine.socket(), self.established.report.local)
    }
}
