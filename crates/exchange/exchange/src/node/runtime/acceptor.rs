//! Accepts a node's connections, and pauses when the system has nothing left for one.

use std::io::{self, ErrorKind};

use nm_wire::Owner;

use crate::link::Listener;

use super::links::Links;
use super::sockets::Sockets;

/// Connections accepted in one iteration, so that many at once do not hold up the links.
const ACCEPTS_PER_TURN: usize = 8;

/// Connections in one iteration of which those that are closed at once are some. These cost less,
/// and whoever causes them must not keep others in the queue.
const CLOSED_PER_TURN: usize = 32;

/// A listening socket in a poller.
#[derive(Debug)]
pub struct Acceptor {
    listener: Listener,
    token: u64,
    /// When it is added to the poller again, ns.
    paused_until_ns: Option<u64>,
    /// Whether the present lack of descriptors or memory has been reported.
    is_reported: bool,
}

impl Acceptor {
    /// Adds a listening socket to the poller of these sockets.
    ///
    /// # Errors
    /// The system's error.
    pub fn new(listener: Listener, token: u64, sockets: &Sockets) -> io::Result<Acceptor> {
        sockets.poller.add(&listener, token)?;
        Ok(Acceptor { listener, token, paused_until_ns: None, is_reported: false })
    }

    /// Accepts the connections that wait.
    pub fn accept(&mut self, links: &mut Links, sockets: &mut Sockets) {
        let mut accepted = 0;
        for _ in 0..CLOSED_PER_TURN {
            if accepted == ACCEPTS_PER_TURN {
                return;
            }
            let taken = match self.listener.accept() {
                Ok(None) => return self.report_end(links),
                Ok(Some(stream)) => sockets.take_accepted(links, stream),
                Err(error) => Err(error),
            };
            match taken {
                Ok(is_taken) => {
                    accepted += usize::from(is_taken);
                    self.report_end(links);
                }
                Err(error) if concerns_one_connection(&error) => {
                    let message = format!("a connection was not accepted: {error}");
                    links.warnings.push_limited(
                        ("one connection", Owner::NOBODY),
                        links.now_ns,
                        message,
                    );
                }
                Err(error) => return self.pause(links, sockets, &error),
            }
        }
    }

    /// Leaves the poller for a while: it would report the waiting connection again and again. Links
    /// go on.
    fn pause(&mut self, links: &mut Links, sockets: &Sockets, error: &io::Error) {
        let pause = links.limits.accept_pause;
        sockets.poller.remove_other(&self.listener);
        self.paused_until_ns = Some(links.now_ns + pause.as_nanos() as u64);
        if !std::mem::replace(&mut self.is_reported, true) {
            let message = format!(
                "no connection can be accepted ({error}); the links continue, and it is tried \
                 again every {} ms",
                pause.as_millis()
            );
            links.warnings.push_limited(("no accept", Owner::NOBODY), links.now_ns, message);
        }
    }

    fn report_end(&mut self, links: &mut Links) {
        if std::mem::take(&mut self.is_reported) {
            let message = "connections are accepted again".to_string();
            links.warnings.push_limited(("accept", Owner::NOBODY), links.now_ns, message);
        }
    }

    /// When [`Acceptor::resume_if_due`] has something to do.
    pub fn deadline_ns(&self) -> Option<u64> {
        self.paused_until_ns
    }

    /// Accepts connections again after a pause.
    pub fn resume_if_due(&mut self, links: &mut Links, sockets: &mut Sockets) {
        if self.paused_until_ns.is_none_or(|until_ns| links.now_ns < until_ns) {
            return;
        }
        self.paused_until_ns = None;
        match sockets.poller.add(&self.listener, self.token) {
            Ok(()) => self.accept(links, sockets),
            Err(error) => self.pause(links, sockets, &error),
        }
    }
}

/// Whether an error is about the connection that waited. Any other is about all of them, such as
/// that no descriptor is left.
fn concerns_one_connection(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionReset, InvalidData, InvalidInput, PermissionDenied};
    let kind = error.kind();
    matches!(kind, BrokenPipe | ConnectionReset | InvalidData | InvalidInput | PermissionDenied)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_descriptors_or_memory_concerns_all_connections() {
        let concerns_one = |code| concerns_one_connection(&io::Error::from_raw_os_error(code));
        // EMFILE, ENFILE, ENOBUFS, ENOMEM.
        for code in [24, 23, 105, 12] {
            assert!(!concerns_one(code), "{code}");
        }
        // EPERM by a packet filter; EINVAL by a connection that was reset while it waited.
        assert!(concerns_one(1) && concerns_one(22));
    }
}
