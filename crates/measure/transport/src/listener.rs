//! The listening end of a connection.

use std::net::IpAddr;
use std::time::Duration;

use nm_model::capability::stack_obstacle;
use nm_model::stack::Stack;

use crate::carrier::AnyListener;
use crate::carrier::interface::Patience;
use crate::connection::Connection;
use crate::connection_error::ConnectionError;
use crate::handshake::Admission;
use crate::sockets::Options;

/// Waits for one peer.
#[derive(Debug)]
pub struct Listener {
    stack: Stack,
    listener: AnyListener,
    admission: Admission,
}

impl Listener {
    /// Listens on `address`: an IP address with or without port for TCP and UDP, that of the
    /// interface for multicast; for Unix sockets `unix:@NAME` or `unix:/PATH`, and anything else
    /// gives a random name. Shared memory chooses its own address.
    ///
    /// # Errors
    /// See [`ConnectionError`], such as that the port is in use.
    pub fn bind(
        stack: Stack,
        address: &str,
        options: &Options,
    ) -> Result<Listener, ConnectionError> {
        if let Some(obstacle) = stack_obstacle(&stack) {
            return Err(obstacle.into());
        }
        let listener = AnyListener::bind(stack, address, options)?;
        let admission = Admission { token: options.token, peer: None };
        Ok(Listener { stack, listener, admission })
    }

    /// Accepts only a peer with this IP address, where peers have one.
    pub fn only_from(&mut self, peer: IpAddr) {
        self.admission.peer = Some(peer.to_canonical());
    }

    /// Where the peer connects to.
    pub fn address(&self) -> String {
        self.listener.address()
    }

    /// Waits for the peer. `message_lengths` are those of the probe's messages.
    ///
    /// # Errors
    /// If nobody connects within `limit`, if it was cancelled, and those of the system calls.
    pub fn accept(
        &self,
        message_lengths: &[usize],
        limit: Duration,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Connection, ConnectionError> {
        let patience = Patience { message_lengths, limit, cancelled };
        let end = self.listener.accept(self.stack, &self.admission, &patience)?;
        Ok(Connection::new(self.stack, end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::connect;
    use crate::failure;
    use nm_model::FailureKind;
    use nm_model::environment::Distance;
    use nm_model::stack::{Mode, Protocol};

    #[test]
    fn ways_of_waiting_that_a_protocol_does_not_have_are_refused() {
        for protocol in [Protocol::Shm, Protocol::Unix, Protocol::Xdp, Protocol::XdpTcp] {
            let known = protocol.modes(Distance::Namespaces);
            let known = if known.is_empty() { protocol.row().waits.modes } else { known };
            for mode in Mode::ALL.iter().filter(|mode| !known.contains(mode)) {
                let stack = Stack::new(protocol, *mode);
                let options = Options::default();
                let bound = Listener::bind(stack, "127.0.0.1", &options).unwrap_err();
                let limit = Duration::from_secs(1);
                let connected =
                    connect(stack, "127.0.0.1:1", "127.0.0.1", &options, limit).unwrap_err();
                for error in [bound, connected] {
                    let failure = failure::from_connection(error);
                    assert_eq!(failure.kind, FailureKind::NotAvailable, "{stack}: {failure}");
                }
            }
        }
    }
}
