//! Transports of the links between the nodes of an exchange, and their mapping to stacks and
//! environments.

use crate::environment::EnvironmentKind;
use crate::named_enum::named_enum;
use crate::stack::{Launcher, Mode, Protocol, Stack};

named_enum!(
    /// Transport of the links between the nodes of an exchange.
    #[derive(Default)]
    LinkTransport, "transport", {
        /// TCP.
        #[default]
        Tcp = "tcp",
        /// Unix sockets.
        Unix = "unix",
        /// Shared memory between nodes of one machine.
        Shm = "shm",
        /// TCP between nodes that run under the accelerator.
        Accel = "accel",
    }
);

impl LinkTransport {
    /// The stack of a series over this transport.
    pub fn stack(self) -> Stack {
        let (protocol, launcher) = match self {
            LinkTransport::Tcp => (Protocol::Tcp, None),
            LinkTransport::Unix => (Protocol::Unix, None),
            LinkTransport::Shm => (Protocol::Shm, None),
            LinkTransport::Accel => (Protocol::Tcp, Some(Launcher::Accel)),
        };
        Stack { launcher, ..Stack::new(protocol, Mode::Epoll) }
    }

    /// The transport of a stack; none if the nodes cannot use that stack.
    pub fn of_stack(stack: Stack) -> Option<LinkTransport> {
        LinkTransport::ALL.iter().copied().find(|transport| transport.stack() == stack)
    }

    /// The environments in which nodes can use it.
    pub fn environments(self) -> &'static [EnvironmentKind] {
        match self {
            LinkTransport::Tcp => &[EnvironmentKind::Loopback, EnvironmentKind::Ssh],
            LinkTransport::Unix | LinkTransport::Shm | LinkTransport::Accel => {
                &[EnvironmentKind::Loopback]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_transport_has_its_own_stack() {
        for &transport in LinkTransport::ALL {
            assert_eq!(LinkTransport::of_stack(transport.stack()), Some(transport));
            assert_eq!(transport.name().parse(), Ok(transport));
        }
        for stack in ["tcp-spin", "shm-spin", "udp-epoll", "accel+unix-epoll", "onload+tcp-epoll"] {
            assert_eq!(LinkTransport::of_stack(stack.parse().unwrap()), None, "{stack}");
        }
    }
}
