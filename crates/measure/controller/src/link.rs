//! One connection: lines with a deadline, and then a session that is relayed to a local stream.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use nm_sys::clock::Deadline;
use nm_sys::socket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};
use thiserror::Error;

use crate::hello::LINE_BYTES_MAX;

/// Bytes on their way in each direction of a session.
const BUFFER_BYTES: usize = 64 << 10;

/// How long one direction of a session may go on after the other one has ended.
const LINGER: Duration = Duration::from_secs(10);

/// Why a connection is of no more use.
#[derive(Debug, Error)]
pub enum LinkError {
    /// The other end has closed it.
    #[error("the other end has closed the connection")]
    Closed,
    /// Nothing came in time.
    #[error("the other end did not answer in time")]
    Late,
    /// A line is too long, or not text.
    #[error("the other end does not speak the protocol of agents")]
    Protocol,
    /// Of TLS.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// Of the kernel.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// A connection.
pub struct Link {
    tls: Connection,
    tcp: TcpStream,
    /// Received after the last line.
    received: Vec<u8>,
    /// The socket has ended.
    has_ended: bool,
}

impl Link {
    /// The agent's end. The handshake is made with the first line.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn client(
        tcp: TcpStream,
        config: &Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> Result<Link, LinkError> {
        let tls = ClientConnection::new(Arc::clone(config), name)?;
        Link::new(tcp, tls.into())
    }

    /// The controller's end.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn server(tcp: TcpStream, config: &Arc<ServerConfig>) -> Result<Link, LinkError> {
        Link::new(tcp, ServerConnection::new(Arc::clone(config))?.into())
    }

    fn new(tcp: TcpStream, mut tls: Connection) -> Result<Link, LinkError> {
        socket::set_for_agents(tcp.as_fd())?;
        tcp.set_nonblocking(true)?;
        tls.set_buffer_limit(Some(BUFFER_BYTES));
        Ok(Link { tls, tcp, received: vec![], has_ended: false })
    }

    /// The address of this end.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn own_address(&self) -> io::Result<IpAddr> {
        Ok(self.tcp.local_addr()?.ip().to_canonical())
    }

    /// Sends a line, within `deadline`.
    ///
    /// # Errors
    /// If the other end does not take it.
    pub fn send(&mut self, line: &str, deadline: Deadline) -> Result<(), LinkError> {
        self.tls.writer().write_all(line.as_bytes())?;
        self.tls.writer().write_all(b"\n")?;
        while self.tls.is_handshaking() || self.tls.wants_write() {
            self.step(Some(deadline))?;
        }
        Ok(())
    }

    /// The next line, within `deadline` if there is one.
    ///
    /// # Errors
    /// If none comes.
    pub fn line(&mut self, deadline: Option<Deadline>) -> Result<String, LinkError> {
        loop {
            // A line may be the last word of an end that has closed.
            let has_received = self.receive(LINE_BYTES_MAX);
            if let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                let rest = self.received.split_off(end + 1);
                let mut line = std::mem::replace(&mut self.received, rest);
                line.pop();
                return String::from_utf8(line).map_err(|_| LinkError::Protocol);
            }
            has_received?;
            if self.received.len() >= LINE_BYTES_MAX {
                return Err(LinkError::Protocol);
            }
            self.step(deadline)?;
        }
    }

    /// Whether a connection of which nothing is expected is of no more use.
    pub fn is_gone(&mut self) -> bool {
        let moved = self.exchange(true, true);
        moved.is_err() || self.receive(1).is_err() || !self.received.is_empty() || self.has_ended
    }

    /// Moves plain bytes from TLS to `received`, which holds at most `limit` then.
    fn receive(&mut self, limit: usize) -> Result<(), LinkError> {
        let mut bytes = [0; 4096];
        while self.received.len() < limit {
            let room = (limit - self.received.len()).min(bytes.len());
            match self.tls.reader().read(&mut bytes[..room]) {
                Ok(0) => return Err(LinkError::Closed),
                Ok(count) => self.received.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Err(LinkError::Closed);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Waits for the socket, and moves what it takes and gives.
    fn step(&mut self, deadline: Option<Deadline>) -> Result<(), LinkError> {
        if self.has_ended {
            return Err(LinkError::Closed);
        }
        let mut flags = PollFlags::IN;
        if self.tls.wants_write() {
            flags |= PollFlags::OUT;
        }
        let mut all = [PollFd::new(&self.tcp, flags)];
        let ready = wait(&mut all, deadline.map(Deadline::remaining))?;
        let found = all[0].revents();
        if !ready && deadline.is_some_and(Deadline::passed) {
            return Err(LinkError::Late);
        }
        self.exchange(is_readable(found), found.contains(PollFlags::OUT))
    }

    /// Moves bytes between the socket and TLS without waiting.
    fn exchange(&mut self, may_read: bool, may_write: bool) -> Result<(), LinkError> {
        if may_read && self.tls.wants_read() {
            match self.tls.read_tls(&mut self.tcp) {
                Ok(0) => self.has_ended = true,
                Ok(_) => {
                    if let Err(error) = self.tls.process_new_packets() {
                        // The alert says to the other end why.
                        let _ = self.tls.write_tls(&mut self.tcp);
                        return Err(error.into());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        while (may_read || may_write) && self.tls.wants_write() {
            match self.tls.write_tls(&mut self.tcp) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Relays a session between the other end and `local`, until both directions have ended.
    ///
    /// # Errors
    /// If the connection fails. Then `local` ends too.
    pub fn relay(mut self, local: UnixStream) -> Result<(), LinkError> {
        local.set_nonblocking(true)?;
        let mut relay = Relay { local, from_peer: Flow::Open, from_local: Flow::Open };
        let mut linger = None;
        loop {
            relay.move_to_local(&mut self)?;
            relay.move_to_peer(&mut self)?;
            self.exchange(false, true)?;
            match (relay.from_peer, relay.from_local) {
                (Flow::Ended, Flow::Ended) if !self.tls.wants_write() => return Ok(()),
                (Flow::Open, Flow::Open) => {}
                _ => {
                    let end = *linger.get_or_insert_with(|| Deadline::after(LINGER));
                    if end.passed() {
                        return Err(LinkError::Late);
                    }
                }
            }
            relay.wait(&mut self, linger)?;
        }
    }
}

/// One direction of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flow {
    Open,
    Ended,
}

struct Relay {
    local: UnixStream,
    from_peer: Flow,
    from_local: Flow,
}

impl Relay {
    fn move_to_local(&mut self, link: &mut Link) -> Result<(), LinkError> {
        while self.from_peer == Flow::Open {
            let closed = match link.receive(BUFFER_BYTES) {
                Ok(()) => false,
                Err(LinkError::Closed) => true,
                Err(error) => return Err(error),
            };
            if link.received.is_empty() {
                if closed || link.has_ended {
                    self.from_peer = Flow::Ended;
                    let _ = self.local.shutdown(Shutdown::Write);
                }
                return Ok(());
            }
            match self.local.write(&link.received) {
                Ok(count) => drop(link.received.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // Nobody reads there any more.
                Err(_) => {
                    link.received.clear();
                    self.from_peer = Flow::Ended;
                }
            }
        }
        Ok(())
    }

    fn move_to_peer(&mut self, link: &mut Link) -> Result<(), LinkError> {
        let mut bytes = [0; 8192];
        while self.from_local == Flow::Open && !link.tls.wants_write() {
            match self.local.read(&mut bytes) {
                Ok(count) if count > 0 => link.tls.writer().write_all(&bytes[..count])?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                _ => {
                    self.from_local = Flow::Ended;
                    link.tls.send_close_notify();
                }
            }
        }
        Ok(())
    }

    fn wait(&self, link: &mut Link, deadline: Option<Deadline>) -> Result<(), LinkError> {
        let waits_for_local = !link.received.is_empty();
        let mut of_tcp = PollFlags::empty();
        of_tcp.set(PollFlags::IN, self.from_peer == Flow::Open && !waits_for_local);
        of_tcp.set(PollFlags::OUT, link.tls.wants_write());
        let mut of_local = PollFlags::empty();
        let may_take = self.from_local == Flow::Open && !link.tls.wants_write();
        of_local.set(PollFlags::IN, may_take);
        of_local.set(PollFlags::OUT, waits_for_local);
        let mut all = [PollFd::new(&link.tcp, of_tcp), PollFd::new(&self.local, of_local)];
        // A descriptor of which nothing is wanted would report its end again and again.
        let all = match (of_tcp.is_empty(), of_local.is_empty()) {
            (true, false) => &mut all[1..],
            (false, true) => &mut all[..1],
            _ => &mut all[..],
        };
        wait(all, deadline.map(Deadline::remaining))?;
        let of_tcp_found = match of_tcp.is_empty() {
            true => PollFlags::empty(),
            false => all[0].revents(),
        };
        let (may_read, may_write) =
            (is_readable(of_tcp_found), of_tcp_found.contains(PollFlags::OUT));
        link.exchange(may_read && of_tcp.contains(PollFlags::IN), may_write)
    }
}

fn is_readable(found: PollFlags) -> bool {
    found.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR)
}

/// Whether something is ready within `limit`. A signal ends the wait.
fn wait(all: &mut [PollFd<'_>], limit: Option<Duration>) -> io::Result<bool> {
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    match poll(all, limit.as_ref()) {
        Ok(count) => Ok(count > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
