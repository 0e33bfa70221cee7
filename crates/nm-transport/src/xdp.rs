//! A UDP endpoint of our own over AF_XDP: datagrams leave and arrive as whole frames, past the
//! kernel's network stack. `tcp` is the same for TCP, and `endpoint` what both stand on.
//!
//! A kernel socket is bound to the same address and port. It reserves the port, says the first
//! hello, so that the kernel finds the way to the peer (routes, ARP, neighbour discovery), and
//! hears when the peer's port is closed. The peer's hardware address is that of the first frame
//! that comes from it.

pub(crate) mod endpoint;
mod engine;
mod neighbour;
pub(crate) mod tcp;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nm_model::stack::{Mode, Stack};
use nm_model::{Doubt, Failure, FailureKind};
use nm_sys::clock::Deadline;
use nm_sys::xdp::{FlowFilter, PACKET_BYTES_MAX};
use nm_sys::{poll, socket};

use crate::frame::{self, Route, Writer};
use crate::greeting::{self, Word};
use crate::link::{Connection, Visitor};
use crate::wait::Patience;
use crate::{Fault, SLICE, Transport, failure};
use endpoint::{Endpoint, QUEUE};

/// Pause between two hellos.
const PAUSE: Duration = Duration::from_millis(20);

impl Endpoint {
    /// The next greeting that is there, and the way that it came.
    fn hear(&mut self) -> io::Result<Option<(Word, Route)>> {
        let verify = self.verify;
        let heard = self.socket.receive(|bytes| {
            let datagram = frame::read(bytes, verify)?;
            Some((greeting::read(datagram.payload)?, datagram.route))
        })?;
        Ok(heard.flatten())
    }

    /// Waits for `word` for at most `limit`.
    fn hear_within(&mut self, word: Word, limit: Duration) -> io::Result<Option<Route>> {
        let deadline = Deadline::after(limit);
        loop {
            while let Some((heard, route)) = self.hear()? {
                if heard == word {
                    return Ok(Some(route));
                }
            }
            if deadline.passed() {
                return Ok(None);
            }
            self.socket.wait(deadline.remaining())?;
        }
    }

    /// The way back from where `route` came.
    fn back(&self, route: &Route) -> Route {
        Route {
            from_link: self.hardware,
            to_link: route.from_link,
            from: self.local,
            to: route.from,
        }
    }

    /// What to look at where nothing was heard: a frame that the kernel got came by another queue.
    fn hint(&self, kernel: RawFd) -> String {
        match poll::readable(kernel, Duration::ZERO) {
            Ok(true) => format!(
                "datagrams came by another queue than {QUEUE} of {link}; give it one queue: \
                 ethtool -L {link} combined 1",
                link = self.link
            ),
            _ => "check that the peer runs and that no firewall drops the datagrams".to_string(),
        }
    }
}

/// What a listener keeps until its peer comes.
#[derive(Debug)]
pub(crate) struct Door(Mutex<Option<Endpoint>>);

impl Door {
    /// Opens an endpoint on the address of a bound kernel socket.
    pub fn open(local: SocketAddr, mode: Mode) -> Result<Door, Failure> {
        let endpoint = Endpoint::open(local, &FlowFilter::udp(local), mode)?;
        Ok(Door(Mutex::new(Some(endpoint))))
    }

    /// Waits for the peer's hello and welcomes it. `kernel` is the socket that has the port.
    pub fn accept(
        &self,
        stack: Stack,
        kernel: &OwnedFd,
        lengths: &[usize],
        limit: Duration,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Connection, Failure> {
        let endpoint = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut endpoint) = endpoint else {
            return Err(Failure::new(FailureKind::BadRequest, "the listener has had its peer"));
        };
        let failed = |error: io::Error| failure::of(&error, "waiting for the peer by AF_XDP");
        let deadline = Deadline::after(limit);
        while !deadline.passed() {
            if cancelled() {
                return Err(failure::cancelled());
            }
            let Some(route) = endpoint.hear_within(Word::Hello, SLICE).map_err(failed)? else {
                continue;
            };
            let kernel = kernel.try_clone().map_err(failed)?;
            socket::connect(&kernel, &route.from, SLICE).map_err(failed)?;
            let mut end = End::new(endpoint, &route)?;
            end.say(Word::Welcome, lengths).map_err(failed)?;
            return Connection::over_xdp(stack, kernel, route.from, Half::Met(Box::new(end)));
        }
        let what = format!("xdp:{}: nobody connected in {limit:?}", endpoint.local);
        Err(Failure::new(FailureKind::Peer, what).hint(endpoint.hint(kernel.as_raw_fd())))
    }
}

/// How far a connection is.
#[derive(Debug)]
pub(crate) enum Half {
    /// The peer has not been heard of.
    Alone(Box<Endpoint>),
    /// The peer is known.
    Met(Box<End>),
}

impl Half {
    /// Says hello through the kernel until the listener's welcome comes as a frame.
    pub fn knock(
        self,
        kernel: RawFd,
        peer: &str,
        lengths: &[usize],
        limit: Duration,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Half, Failure> {
        let Half::Alone(mut endpoint) = self else { return Ok(self) };
        let failed = |error: io::Error| failure::of(&error, format!("connecting to {peer}"));
        let deadline = Deadline::after(limit);
        while !deadline.passed() {
            if cancelled() {
                return Err(failure::cancelled());
            }
            greeting::say(kernel, Word::Hello, lengths).map_err(failed)?;
            if let Some(route) = endpoint.hear_within(Word::Welcome, PAUSE).map_err(failed)? {
                return Ok(Half::Met(Box::new(End::new(*endpoint, &route)?)));
            }
        }
        let what = format!("connecting to {peer}: no answer in {limit:?}");
        Err(Failure::new(FailureKind::Peer, what).hint(endpoint.hint(kernel)))
    }

    /// Does `visitor` over the connection.
    pub fn with<V: Visitor>(
        self,
        mode: Mode,
        kernel: OwnedFd,
        visitor: V,
    ) -> Result<V::Output, Failure> {
        let Half::Met(end) = self else {
            let what = "the connection was used before it was greeted";
            return Err(Failure::new(FailureKind::BadRequest, what));
        };
        Ok(match mode {
            Mode::Spin => visitor.visit(Xdp::<true> { end: *end, kernel }),
            _ => visitor.visit(Xdp::<false> { end: *end, kernel }),
        })
    }
}

/// An endpoint with its peer.
#[derive(Debug)]
pub(crate) struct End {
    endpoint: Endpoint,
    peer: SocketAddr,
    writer: Writer,
    /// Largest frame that the link takes.
    frame_bytes_max: usize,
}

impl End {
    /// With the peer that `route` came from.
    fn new(endpoint: Endpoint, route: &Route) -> Result<End, Failure> {
        let writer = Writer::new(&endpoint.back(route)).ok_or_else(|| {
            Failure::new(FailureKind::BadRequest, "both ends must have addresses of one family")
        })?;
        let frame_bytes_max = PACKET_BYTES_MAX.min(endpoint.mtu + frame::LINK_BYTES);
        Ok(End { endpoint, peer: route.from, writer, frame_bytes_max })
    }

    fn say(&mut self, word: Word, lengths: &[usize]) -> io::Result<()> {
        let mut buffer = [0; greeting::BYTES_MAX];
        self.send(greeting::write(word, lengths, &mut buffer)).map(|_| ())
    }

    /// Sends a datagram; false if there is no room.
    #[inline(always)]
    fn send(&mut self, payload: &[u8]) -> io::Result<bool> {
        let length = self.writer.frame_bytes(payload.len());
        if length > self.frame_bytes_max {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        let writer = &self.writer;
        self.endpoint.socket.send(length, |frame| writer.write(payload, frame))
    }

    /// Takes the next frame, if one is there and it is a datagram of the peer's.
    #[inline(always)]
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let (peer, verify) = (self.peer, self.endpoint.verify);
        let received = self.endpoint.socket.receive(|bytes| {
            let datagram = frame::read(bytes, verify).filter(|it| it.route.from == peer)?;
            let length = datagram.payload.len().min(buffer.len());
            buffer[..length].copy_from_slice(&datagram.payload[..length]);
            Some(length)
        })?;
        Ok(received.flatten())
    }
}

/// A connection over AF_XDP that looks at its ring, or sleeps in `poll`.
#[derive(Debug)]
pub struct Xdp<const SPINS: bool> {
    end: End,
    kernel: OwnedFd,
}

impl<const SPINS: bool> Xdp<SPINS> {
    /// What silence means: the peer has gone if its host said that the port is closed.
    #[cold]
    fn silence(&self) -> Fault {
        let mut stray = [0; 1];
        match socket::receive(self.kernel.as_raw_fd(), &mut stray, socket::DONT_WAIT) {
            Err(error) if Fault::of(&error) == Fault::Closed => Fault::Closed,
            _ => Fault::TimedOut,
        }
    }
}

impl<const SPINS: bool> Transport for Xdp<SPINS> {
    const DATAGRAM: bool = true;

    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> Result<(), Fault> {
        let mut patience = Patience::default();
        while !self.end.send(message).map_err(|error| Fault::of(&error))? {
            if patience.spent() {
                return Err(self.silence());
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn receive(&mut self, buffer: &mut [u8]) -> Result<usize, Fault> {
        let mut patience = Patience::default();
        loop {
            if let Some(length) = self.try_receive(buffer)? {
                return Ok(length);
            }
            let on = SPINS || self.end.endpoint.socket.wait(SLICE).map_err(|e| Fault::of(&e))?;
            if !on || patience.spent() {
                return Err(self.silence());
            }
        }
    }

    #[inline(always)]
    fn receive_some(&mut self, buffer: &mut [u8]) -> Result<usize, Fault> {
        self.receive(buffer)
    }

    #[inline(always)]
    fn try_send(&mut self, bytes: &[u8]) -> Result<Option<usize>, Fault> {
        let sent = self.end.send(bytes).map_err(|error| Fault::of(&error))?;
        Ok(sent.then_some(bytes.len()))
    }

    #[inline(always)]
    fn try_receive(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, Fault> {
        self.end.receive(buffer).map_err(|error| Fault::of(&error))
    }

    #[inline(always)]
    fn wait(&mut self, limit: Duration) -> Result<bool, Fault> {
        if SPINS {
            return Ok(true);
        }
        self.end.endpoint.socket.wait(limit).map_err(|error| Fault::of(&error))
    }

    fn end_sending(&mut self, lengths: &[usize]) {
        // By the kernel, which still sends it when the endpoint is gone a moment later. Whether
        // the peer is there to hear it does not matter.
        for _ in 0..3 {
            let _ = greeting::say(self.kernel.as_raw_fd(), Word::Bye, lengths);
        }
    }

    fn poke(&mut self, lengths: &[usize]) -> Result<(), Fault> {
        // Again by the kernel, to which a closed port is reported.
        match greeting::say(self.kernel.as_raw_fd(), Word::Welcome, lengths) {
            Err(error) if Fault::of(&error) == Fault::Closed => Err(Fault::Closed),
            _ => Ok(()),
        }
    }

    fn settings(&self) -> BTreeMap<String, String> {
        self.end.endpoint.report().settings
    }

    fn doubts(&self) -> Vec<Doubt> {
        endpoint::doubts(&self.end.endpoint.socket, self.end.endpoint.local)
    }
}
