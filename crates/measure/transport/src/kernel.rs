//! Kernel sockets as a transport, with the way of waiting as a type.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use nm_model::agent::Token;
use nm_model::setting::{SettingKind, SettingValue, Settings};
use nm_model::stack::{Mode, Protocol, Stack};
use nm_sys::poll::{EpollOne, SelectOne};
use nm_sys::socket;

use crate::error::SystemError;
use crate::handshake::{self, HandshakeMessage};
use crate::sockets::SocketError;
use crate::transport::{CALL_TIMEOUT, Transport, TransportError, Visitor};
use crate::wait::{Blocking, Multiplexed, Poll, Spin, SpinLimit, Wait};

/// µs that a sleeping receive polls the device in mode `busy-poll`; the value that the kernel's
/// documentation recommends.
pub(crate) const BUSY_POLL_US: u32 = 50;

/// How often a close message is sent over datagrams, because each may be lost.
const CLOSE_COPIES: u32 = 3;

/// The sockets of one end, not yet bound to a way of waiting.
#[derive(Debug)]
pub(crate) struct KernelSockets {
    stack: Stack,
    ipv4: bool,
    sender: OwnedFd,
    /// A second socket, where multicast is received by another than it is sent by.
    receiver: Option<OwnedFd>,
    /// The secret of both ends, for handshake messages.
    token: Token,
}

/// Sets the options that the stack's protocol and mode stand for.
pub(crate) fn configure(fd: &OwnedFd, stack: Stack) -> Result<(), SocketError> {
    let failed = SystemError::during(format!("setting up {stack}"));
    socket::set_timeouts(fd.as_fd(), CALL_TIMEOUT).map_err(&failed)?;
    if stack.mode == Mode::BusyPoll {
        socket::set_busy_poll(fd.as_fd(), BUSY_POLL_US).map_err(SocketError::BusyPoll)?;
    }
    if stack.protocol == Protocol::Tcp {
        socket::set_no_delay(fd.as_fd()).map_err(&failed)?;
    }
    Ok(())
}

impl KernelSockets {
    /// Takes connected sockets and sets their options.
    pub fn new(
        stack: Stack,
        (sender, receiver): (OwnedFd, Option<OwnedFd>),
        ipv4: bool,
        token: Token,
    ) -> Result<KernelSockets, SocketError> {
        configure(&sender, stack)?;
        if let Some(receiver) = &receiver {
            configure(receiver, stack)?;
        }
        Ok(KernelSockets { stack, ipv4, sender, receiver, token })
    }

    /// The secret of both ends.
    pub fn token(&self) -> Token {
        self.token
    }

    /// The descriptors to send on and to receive from.
    pub fn descriptors(&self) -> (RawFd, RawFd) {
        (self.sender.as_raw_fd(), self.receiver().as_raw_fd())
    }

    fn receiver(&self) -> &OwnedFd {
        self.receiver.as_ref().unwrap_or(&self.sender)
    }

    /// Largest datagram that is sent without fragmentation, bytes, where the route's MTU is known.
    pub fn datagram_bytes_max(&self) -> Option<u32> {
        let header_bytes = if self.ipv4 { 28 } else { 48 };
        self.mtu().ok()?.checked_sub(header_bytes)
    }

    fn mtu(&self) -> io::Result<u32> {
        if self.stack.protocol == Protocol::Unix {
            return Err(io::ErrorKind::Unsupported.into());
        }
        socket::route_mtu(self.sender.as_fd(), self.ipv4)
    }

    fn settings(&self) -> Settings {
        let fd = self.sender.as_fd();
        let mut settings = Settings::new();
        let mut add = |kind: SettingKind, value: io::Result<SettingValue>| {
            if let Ok(value) = value {
                settings.set(kind, value);
            }
        };
        let bytes =
            |value: io::Result<u32>| value.map(|bytes| SettingValue::Bytes(u64::from(bytes)));
        add(SettingKind::SendBuffer, bytes(socket::send_buffer(fd)));
        add(SettingKind::ReceiveBuffer, bytes(socket::receive_buffer(self.receiver().as_fd())));
        if self.stack.protocol == Protocol::Tcp {
            let congestion = socket::congestion(fd).map(SettingValue::text);
            add(SettingKind::CongestionControl, congestion);
            add(SettingKind::Mss, bytes(socket::max_segment(fd)));
        }
        add(SettingKind::Mtu, bytes(self.mtu()));
        settings
    }

    /// Does `visitor` over a transport of fixed protocol and way of waiting.
    pub fn with<V: Visitor>(self, visitor: V) -> Result<V::Output, SystemError> {
        match self.stack.protocol {
            Protocol::Udp | Protocol::Multicast => self.with_mode::<V, true>(visitor),
            _ => self.with_mode::<V, false>(visitor),
        }
    }

    fn with_mode<V: Visitor, const DATAGRAM: bool>(
        self,
        visitor: V,
    ) -> Result<V::Output, SystemError> {
        match self.stack.mode {
            Mode::Blocking | Mode::BusyPoll => self.run::<V, Blocking, DATAGRAM>(visitor),
            Mode::Spin => self.run::<V, Spin, DATAGRAM>(visitor),
            Mode::Select => self.run::<V, Multiplexed<SelectOne, false>, DATAGRAM>(visitor),
            Mode::SelectSpin => self.run::<V, Multiplexed<SelectOne, true>, DATAGRAM>(visitor),
            Mode::Poll => self.run::<V, Multiplexed<Poll, false>, DATAGRAM>(visitor),
            Mode::PollSpin => self.run::<V, Multiplexed<Poll, true>, DATAGRAM>(visitor),
            Mode::Epoll => self.run::<V, Multiplexed<EpollOne, false>, DATAGRAM>(visitor),
            Mode::EpollSpin => self.run::<V, Multiplexed<EpollOne, true>, DATAGRAM>(visitor),
        }
    }

    fn run<V: Visitor, W: Wait, const DATAGRAM: bool>(
        self,
        visitor: V,
    ) -> Result<V::Output, SystemError> {
        let (sender, receiver) = self.descriptors();
        let wait =
            W::new(receiver).map_err(SystemError::during(format!("setting up {}", self.stack)))?;
        Ok(visitor.visit(KernelTransport::<W, DATAGRAM> {
            sender,
            receiver,
            sent_bytes: 0,
            received_bytes: 0,
            wait,
            sockets: self,
        }))
    }
}

/// Kernel sockets with a fixed way of waiting.
#[derive(Debug)]
pub struct KernelTransport<W, const DATAGRAM: bool> {
    sender: RawFd,
    receiver: RawFd,
    /// Bytes of the current message that were sent before a call timed out.
    sent_bytes: usize,
    /// Bytes of the current message that were received before a call timed out.
    received_bytes: usize,
    /// Before the sockets: what watches a descriptor is dropped before the descriptor.
    wait: W,
    sockets: KernelSockets,
}

impl<W: Wait, const DATAGRAM: bool> KernelTransport<W, DATAGRAM> {
    #[inline(always)]
    fn receive_with(&mut self, buffer: &mut [u8], flags: i32) -> Result<usize, TransportError> {
        let mut spin_limit = SpinLimit::default();
        loop {
            if self.wait.before_receive(self.receiver)? {
                match socket::receive(self.receiver, buffer, flags) {
                    Ok(0) if !DATAGRAM => return Err(TransportError::Closed),
                    Ok(length) => return Ok(length),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => match TransportError::from(error) {
                        TransportError::TimedOut => {}
                        error => return Err(error),
                    },
                }
            }
            if !W::SPINS || spin_limit.count_spin() {
                return Err(TransportError::TimedOut);
            }
        }
    }
}

impl<W: Wait, const DATAGRAM: bool> Transport for KernelTransport<W, DATAGRAM> {
    const DATAGRAM: bool = DATAGRAM;

    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> Result<(), TransportError> {
        loop {
            debug_assert!(
                self.sent_bytes <= message.len(),
                "a send was repeated with another message"
            );
            let rest = &message[self.sent_bytes.min(message.len())..];
            match socket::send(self.sender, rest, 0) {
                Ok(length) if DATAGRAM || length == rest.len() => {
                    self.sent_bytes = 0;
                    return Ok(());
                }
                Ok(length) => self.sent_bytes += length,
                Err(error) => return Err(send_error(error)),
            }
        }
    }

    #[inline(always)]
    fn receive(&mut self, buffer: &mut [u8]) -> Result<usize, TransportError> {
        if DATAGRAM {
            return self.receive_with(buffer, W::FLAGS);
        }
        let wait_all = if W::FLAGS == 0 { socket::WAIT_ALL } else { 0 };
        loop {
            debug_assert!(
                self.received_bytes < buffer.len(),
                "an empty buffer, or a receive was repeated with another one"
            );
            let received_bytes = self.received_bytes.min(buffer.len());
            let length = self.receive_with(&mut buffer[received_bytes..], W::FLAGS | wait_all)?;
            if received_bytes + length == buffer.len() {
                self.received_bytes = 0;
                return Ok(buffer.len());
            }
            self.received_bytes = received_bytes + length;
        }
    }

    #[inline(always)]
    fn receive_some(&mut self, buffer: &mut [u8]) -> Result<usize, TransportError> {
        self.receive_with(buffer, W::FLAGS)
    }

    #[inline(always)]
    fn try_send(&mut self, bytes: &[u8]) -> Result<Option<usize>, TransportError> {
        match socket::send(self.sender, bytes, socket::DONT_WAIT) {
            Ok(length) => Ok(Some(length)),
            Err(error) => none_if_timed_out(send_error(error)),
        }
    }

    #[inline(always)]
    fn try_receive(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, TransportError> {
        match socket::receive(self.receiver, buffer, socket::DONT_WAIT) {
            Ok(0) if !DATAGRAM => Err(TransportError::Closed),
            Ok(length) => Ok(Some(length)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => none_if_timed_out(error.into()),
        }
    }

    #[inline(always)]
    fn wait(&mut self, limit: Duration) -> Result<bool, TransportError> {
        Ok(self.wait.readable(self.receiver, limit)?)
    }

    fn end_sending(&mut self, message_lengths: &[usize]) {
        // A peer that has already gone needs no close message, so errors do not matter.
        if DATAGRAM {
            for _ in 0..CLOSE_COPIES {
                let _ = handshake::send(self.sender, HandshakeMessage::Close, message_lengths);
            }
        } else {
            let _ = socket::shutdown_write(self.sender);
        }
    }

    fn send_keepalive(&mut self, message_lengths: &[usize]) -> Result<(), TransportError> {
        if !DATAGRAM {
            return Ok(());
        }
        let ack = HandshakeMessage::HelloAck(self.sockets.token);
        match handshake::send(self.sender, ack, message_lengths).map_err(send_error) {
            Err(TransportError::TimedOut) => Ok(()),
            sent => sent,
        }
    }

    fn settings(&self) -> Settings {
        self.sockets.settings()
    }

    fn retransmits(&self) -> Option<u64> {
        if DATAGRAM { None } else { socket::retransmits(self.sockets.sender.as_fd()).ok() }
    }
}

/// The error of a send call; no buffers in the kernel or the device's queue is the same as no room.
#[cold]
fn send_error(error: io::Error) -> TransportError {
    match error.raw_os_error() {
        Some(libc::ENOBUFS) => TransportError::TimedOut,
        _ => error.into(),
    }
}

#[cold]
fn none_if_timed_out(error: TransportError) -> Result<Option<usize>, TransportError> {
    match error {
        TransportError::TimedOut => Ok(None),
        error => Err(error),
    }
}
