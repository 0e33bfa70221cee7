//! Rings in shared memory: of two processes, or of two guests.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nm_model::capability::Obstacle;
use nm_model::environment::Distance;
use nm_model::protocol::Reach;
use nm_model::stack::{Mode, Stack};
use nm_ring::EndpointParts;
use nm_ring::window::WindowListener;
use nm_sys::clock::Deadline;
use nm_sys::{poll, socket};

use crate::address::Address;
use crate::carrier::interface::{Destination, End, Listen, Patience};
use crate::connection_error::ConnectionError;
use crate::error::SystemError;
use crate::handshake::Admission;
use crate::shm::{SharedMemoryError, SharedMemoryTransport};
use crate::sockets::Options;
use crate::transport::{CALL_TIMEOUT, Visitor};
use crate::{guest_memory, shm};

/// A listener at its address.
#[derive(Debug)]
pub(crate) struct Listener {
    address: Address,
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// A socket that hands the memory over, and the descriptor that [`Address::Descriptor`] names:
    /// the peer opens it, we keep it open.
    Processes { socket: OwnedFd, _descriptor: OwnedFd },
    /// A part of the memory that two guests share.
    Guests(WindowListener),
}

/// An end's part of the memory.
#[derive(Debug)]
pub(crate) struct MemoryEnd(EndpointParts);

impl End for MemoryEnd {
    fn with<V: Visitor>(self, stack: Stack, visitor: V) -> Result<V::Output, ConnectionError> {
        Ok(match stack.mode {
            Mode::Spin => visitor.visit(SharedMemoryTransport::<false>::new(self.0)),
            _ => visitor.visit(SharedMemoryTransport::<true>::new(self.0)),
        })
    }
}

/// Refuses a way of waiting that the memory of guests does not have.
fn check_mode(stack: Stack) -> Result<(), Obstacle> {
    let (protocol, mode) = (stack.protocol, stack.mode);
    match protocol.row().reach(Distance::Guests) {
        Reach::Only(waits) if guest_memory::is_in_use() && !waits.modes.contains(&mode) => {
            Err(Obstacle::Mode { protocol, waits })
        }
        _ => Ok(()),
    }
}

impl Listen for Listener {
    type End = MemoryEnd;

    fn bind(stack: Stack, _address: &str, _options: &Options) -> Result<Listener, ConnectionError> {
        check_mode(stack)?;
        if guest_memory::is_in_use() {
            let (address, listener) = guest_memory::listen().map_err(SharedMemoryError::from)?;
            return Ok(Listener { address, place: Place::Guests(listener) });
        }
        let listening = shm::listen().map_err(SystemError::during("listening by shm"))?;
        let (socket, descriptor) = listening;
        let number = descriptor.as_raw_fd().unsigned_abs();
        let address = Address::Descriptor(std::process::id(), number);
        Ok(Listener { address, place: Place::Processes { socket, _descriptor: descriptor } })
    }

    fn address(&self) -> String {
        self.address.to_string()
    }

    fn accept(
        &self,
        _stack: Stack,
        _admission: &Admission,
        patience: &Patience<'_>,
    ) -> Result<(MemoryEnd, String), ConnectionError> {
        let Patience { limit, cancelled, .. } = *patience;
        let parts = match &self.place {
            Place::Processes { socket, .. } => self.accept_process(socket, patience)?,
            Place::Guests(listener) => {
                guest_memory::accept(listener, limit, cancelled).map_err(SharedMemoryError::from)?
            }
        };
        match parts {
            Some(parts) => Ok((MemoryEnd(parts), format!("the peer of {}", self.address))),
            None if cancelled() => Err(ConnectionError::Cancelled),
            None => Err(ConnectionError::NoPeer { address: self.address(), limit, strangers: 0 }),
        }
    }

    fn connect(to: &Destination<'_>) -> Result<(MemoryEnd, String), ConnectionError> {
        check_mode(to.stack)?;
        let address = to.address;
        let parts = match address.parse()? {
            Address::Descriptor(process, descriptor) => shm::connect(process, descriptor, address)?,
            Address::Window(window, token) => {
                guest_memory::connect(window, token, address).map_err(SharedMemoryError::from)?
            }
            _ => {
                let (address, protocol) = (address.to_string(), to.stack.protocol);
                return Err(ConnectionError::WrongAddress { address, protocol });
            }
        };
        Ok((MemoryEnd(parts), address.to_string()))
    }
}

impl Listener {
    /// Waits for a process of ours; none if there is none in time.
    fn accept_process(
        &self,
        listening: &OwnedFd,
        patience: &Patience<'_>,
    ) -> Result<Option<EndpointParts>, ConnectionError> {
        let failed = SystemError::during(format!("listening on {}", self.address));
        let deadline = Deadline::after(patience.limit);
        while !(patience.cancelled)() {
            if poll::readable(listening.as_raw_fd(), CALL_TIMEOUT).map_err(&failed)? {
                let accepted = socket::accept(listening.as_fd()).map_err(&failed)?;
                if let Some(parts) = shm::accept(accepted)? {
                    return Ok(Some(parts));
                }
            }
            if deadline.passed() {
                break;
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure;
    use crate::transport::{Transport, TransportError};
    use nm_model::FailureKind;
    use std::time::Duration;

    fn pair(stack: Stack) -> (MemoryEnd, MemoryEnd) {
        let options = Options::default();
        let listener = Listener::bind(stack, "127.0.0.1", &options).unwrap();
        let (address, limit) = (listener.address(), Duration::from_secs(5));
        let local = "127.0.0.1";
        let to = Destination { stack, address: &address, local, options: &options, limit };
        let (client, _) = Listener::connect(&to).unwrap();
        let admission = Admission { token: options.token, peer: None };
        let patience = Patience { message_lengths: &[], limit, cancelled: &|| false };
        let (server, _) = listener.accept(stack, &admission, &patience).unwrap();
        (server, client)
    }

    struct Sender(&'static [u8]);

    impl Visitor for Sender {
        type Output = ();

        fn visit<T: Transport>(self, mut transport: T) {
            transport.send(self.0).unwrap();
            transport.end_sending(&[]);
            // Keeps this end open until the other one has closed.
            while transport.receive(&mut [0]) == Err(TransportError::TimedOut) {}
        }
    }

    struct Receiver(&'static [u8]);

    impl Visitor for Receiver {
        type Output = ();

        fn visit<T: Transport>(self, mut transport: T) {
            let mut buffer = vec![0; self.0.len()];
            while let Err(error) = transport.receive(&mut buffer) {
                assert_eq!(error, TransportError::TimedOut);
            }
            assert_eq!(buffer, self.0);
            assert_eq!(transport.receive(&mut [0]), Err(TransportError::Closed));
            assert_eq!(transport.try_receive(&mut [0]), Err(TransportError::Closed));
        }
    }

    #[test]
    fn shared_memory_listener_is_reached_and_bytes_arrive() {
        for stack in ["shm-blocking", "shm-spin"] {
            let stack = stack.parse().unwrap();
            let (server, client) = pair(stack);
            std::thread::scope(|scope| {
                scope.spawn(|| client.with(stack, Sender(b"over the rings")).unwrap());
                server.with(stack, Receiver(b"over the rings")).unwrap();
            });
        }
    }

    #[test]
    fn shared_memory_without_a_listener_is_a_failure_with_a_hint() {
        let error = shm::connect(u32::MAX, 1, "shm:4294967295/1").unwrap_err();
        assert!(matches!(error, SharedMemoryError::Connect { .. }));
        let failure = failure::from_connection(error.into());
        assert_eq!(failure.kind, FailureKind::Peer);
        assert!(failure.hint.unwrap().contains("one host"));
        // A descriptor that is not a listening socket.
        let file = std::fs::File::open("/dev/null").unwrap();
        let number = file.as_raw_fd() as u32;
        assert!(shm::connect(std::process::id(), number, "shm:X").is_err());
    }
}
