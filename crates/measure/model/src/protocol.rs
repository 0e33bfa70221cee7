//! The table of protocols: what each carries, how its ends can wait, and which ends it connects.
//! [`crate::capability`] decides by it, and nothing else in the workspace says the same again.
//!
//! A protocol is one row here, and one file of `nm-transport` with a line that registers it.

use crate::class::{Bypass, StackClass};
use crate::environment::Distance;
use crate::mode::Mode;
use crate::named_enum::named_enum;

/// What a protocol can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProtocolRow {
    /// What it is, in a few words.
    pub title: &'static str,
    /// The protocol on the wire. Two ends with the same wire protocol can communicate, whether the
    /// kernel or this program implements it.
    pub wire: Protocol,
    /// What carries the bytes, as targets name it.
    pub class: StackClass,
    /// What it uses instead of the kernel's network sockets.
    pub bypass: Bypass,
    /// What launchers would have to replace.
    pub sockets: Sockets,
    /// What it carries.
    pub payload: Payload,
    /// Whether it carries the flows of a stream.
    pub streams: Streams,
    /// How an end can wait.
    pub waits: Waits,
    /// Between two processes that share a network namespace.
    pub loopback: Reach,
    /// Between two network namespaces of one host.
    pub namespaces: Reach,
    /// Between two virtual machines of one host.
    pub guests: Reach,
    /// Between two hosts.
    pub hosts: Reach,
}

/// What launchers would have to replace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sockets {
    /// IP sockets, which they do.
    Ip,
    /// Something else, by its name.
    Other(&'static str),
}

/// What a protocol carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payload {
    /// Nothing: the probe uses the processor alone.
    Nothing,
    /// A stream of bytes.
    Bytes,
    /// Datagrams.
    Datagrams {
        /// Largest one, bytes.
        bytes_max: u32,
        /// Whether one may be empty.
        may_be_empty: bool,
    },
}

/// Whether a protocol carries the flows of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Streams {
    /// As many as a pattern has.
    Any,
    /// One alone, and why.
    OneFlow(&'static str),
    /// None, and why, with what to do.
    No(&'static str),
}

/// How an end can wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waits {
    /// The ways that work.
    pub modes: &'static [Mode],
    /// Why the others do not.
    pub why_not: &'static str,
    /// What to use instead of the others.
    pub instead: &'static [Mode],
}

/// Whether a protocol connects two ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// It does.
    Yes,
    /// It does, but its ends can wait in fewer ways.
    Only(Waits),
    /// It does not.
    No(NoPath),
}

/// Why a protocol has no path between two ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoPath {
    /// AF_XDP takes frames from a device, and loopback has none.
    NoDevice,
    /// AF_XDP would take the frames of the host's own traffic.
    DeviceInUse,
    /// The address of a Unix socket is local to a network namespace.
    LocalAddress,
    /// Memory is local to a host.
    LocalMemory,
}

/// Largest message over UDP, bytes.
pub const UDP_SIZE_BYTES_MAX: u32 = 32768;

/// Largest message over AF_XDP, bytes: what fits into one frame of an MTU of 1500 over IPv4.
pub const XDP_SIZE_BYTES_MAX: u32 = 1472;

const ANY_WAIT: Waits = Waits { modes: Mode::ALL, why_not: "", instead: &[] };

const WITHOUT_DEVICE: Waits = Waits {
    modes: &[
        Mode::Blocking,
        Mode::Spin,
        Mode::Select,
        Mode::SelectSpin,
        Mode::Poll,
        Mode::PollSpin,
        Mode::Epoll,
        Mode::EpollSpin,
    ],
    why_not: "a Unix socket has no device to busy-poll",
    instead: &[Mode::Spin, Mode::Blocking],
};

const BY_MEMORY: Waits = Waits {
    modes: &[Mode::Spin, Mode::Blocking],
    why_not: "shared memory has no descriptor to wait for",
    instead: &[Mode::Spin, Mode::Blocking],
};

const BY_MEMORY_OF_GUESTS: Waits = Waits {
    modes: &[Mode::Spin],
    why_not: "the memory that two guests share has no wake-ups",
    instead: &[Mode::Spin],
};

const BY_RING: Waits = Waits {
    modes: &[Mode::Spin, Mode::Blocking, Mode::BusyPoll],
    why_not: "AF_XDP polls a ring or sleeps",
    instead: &[Mode::Spin, Mode::Blocking, Mode::BusyPoll],
};

const NEVER_WAITS: Waits = Waits {
    modes: &[Mode::Spin],
    why_not: "the processor alone waits for nothing",
    instead: &[Mode::Spin],
};

/// Sockets of the kernel's network, which reach everywhere.
const KERNEL: ProtocolRow = ProtocolRow {
    title: "",
    wire: Protocol::Tcp,
    class: StackClass::Kernel,
    bypass: Bypass::None,
    sockets: Sockets::Ip,
    payload: Payload::Bytes,
    streams: Streams::Any,
    waits: ANY_WAIT,
    loopback: Reach::Yes,
    namespaces: Reach::Yes,
    guests: Reach::Yes,
    hosts: Reach::Yes,
};

const DATAGRAMS: Payload = Payload::Datagrams { bytes_max: UDP_SIZE_BYTES_MAX, may_be_empty: true };

/// Frames that a device hands over, past the kernel's network.
const AF_XDP: ProtocolRow = ProtocolRow {
    class: StackClass::Bypass,
    bypass: Bypass::AfXdp,
    sockets: Sockets::Other("AF_XDP"),
    waits: BY_RING,
    loopback: Reach::No(NoPath::NoDevice),
    hosts: Reach::No(NoPath::DeviceInUse),
    ..KERNEL
};

/// Defines the protocols with their rows.
macro_rules! protocols {
    ($($(#[$doc:meta])* $variant:ident = $text:literal $(if $feature:tt)? => $row:expr;)+) => {
        named_enum!(
            /// What carries the bytes.
            Protocol, "protocol", { $($(#[$doc])* $variant = $text $(if $feature)?),+ }
        );

        impl Protocol {
            /// What it can do.
            pub fn row(self) -> &'static ProtocolRow {
                match self {
                    $($(#[cfg(feature = $feature)])? Protocol::$variant => {
                        static ROW: ProtocolRow = $row;
                        &ROW
                    })+
                }
            }
        }
    };
}

protocols! {
    /// Kernel TCP with `TCP_NODELAY`.
    Tcp = "tcp" => ProtocolRow { title: "TCP of the kernel", ..KERNEL };

    /// Kernel UDP, one connected socket at each end.
    Udp = "udp" => ProtocolRow {
        title: "UDP of the kernel",
        wire: Protocol::Udp,
        payload: DATAGRAMS,
        ..KERNEL
    };

    /// Kernel UDP to a multicast group, one group port for each direction.
    Multicast = "mcast" => ProtocolRow {
        title: "UDP multicast of the kernel",
        wire: Protocol::Multicast,
        payload: DATAGRAMS,
        ..KERNEL
    };

    /// Unix stream socket.
    Unix = "unix" => ProtocolRow {
        title: "Unix stream socket",
        wire: Protocol::Unix,
        class: StackClass::SameHost,
        sockets: Sockets::Other("Unix sockets"),
        waits: WITHOUT_DEVICE,
        namespaces: Reach::No(NoPath::LocalAddress),
        guests: Reach::No(NoPath::LocalAddress),
        hosts: Reach::No(NoPath::LocalAddress),
        ..KERNEL
    };

    /// Rings in shared memory.
    Shm = "shm" => ProtocolRow {
        title: "rings in shared memory",
        wire: Protocol::Shm,
        class: StackClass::SameHost,
        bypass: Bypass::SharedMemory,
        sockets: Sockets::Other("shared memory"),
        waits: BY_MEMORY,
        // Agents of different network namespaces still share the memory of their host.
        guests: Reach::Only(BY_MEMORY_OF_GUESTS),
        hosts: Reach::No(NoPath::LocalMemory),
        ..KERNEL
    };

    /// AF_XDP with our own UDP endpoint.
    Xdp = "xdp" => ProtocolRow {
        title: "UDP over AF_XDP",
        wire: Protocol::Udp,
        payload: Payload::Datagrams { bytes_max: XDP_SIZE_BYTES_MAX, may_be_empty: false },
        streams: Streams::No(
            "AF_XDP carries datagrams of one flow here, no streams; use xdp-tcp, or pingpong or rr",
        ),
        ..AF_XDP
    };

    /// AF_XDP with a TCP of our own.
    XdpTcp = "xdp-tcp" => ProtocolRow {
        title: "TCP over AF_XDP",
        streams: Streams::OneFlow("a link's queue has one endpoint"),
        ..AF_XDP
    };

    /// None: the probe uses the processor alone.
    Cpu = "cpu" => ProtocolRow {
        title: "the processor alone",
        wire: Protocol::Cpu,
        class: StackClass::NoNetwork,
        sockets: Sockets::Other("the work of the processor alone"),
        payload: Payload::Nothing,
        waits: NEVER_WAITS,
        ..KERNEL
    };

    /// The stack of a test: it shows what another stack takes.
    Sample = "sample" if "test-stack" => ProtocolRow {
        title: "messages through a Unix socket pair of a test",
        wire: Protocol::Sample,
        class: StackClass::SameHost,
        sockets: Sockets::Other("a test's sockets"),
        waits: NEVER_WAITS,
        hosts: Reach::No(NoPath::LocalMemory),
        ..KERNEL
    };
}

impl Protocol {
    /// The protocol on the wire.
    pub fn wire_protocol(self) -> Protocol {
        self.row().wire
    }

    /// Largest message, bytes, where it is a datagram.
    pub fn datagram_bytes_max(self) -> Option<u32> {
        match self.row().payload {
            Payload::Datagrams { bytes_max, .. } => Some(bytes_max),
            Payload::Bytes | Payload::Nothing => None,
        }
    }

    /// Smallest message, bytes: only a datagram may be empty.
    pub fn message_bytes_min(self) -> u32 {
        match self.row().payload {
            Payload::Datagrams { may_be_empty: true, .. } => 0,
            _ => 1,
        }
    }

    /// The ways in which an end of it can wait; none if it does not connect these ends.
    pub fn modes(self, distance: Distance) -> &'static [Mode] {
        let row = self.row();
        match row.reach(distance) {
            Reach::Yes => row.waits.modes,
            Reach::Only(waits) => waits.modes,
            Reach::No(_) => &[],
        }
    }
}

impl ProtocolRow {
    /// Whether it connects two ends.
    pub fn reach(&self, distance: Distance) -> Reach {
        match distance {
            Distance::Loopback => self.loopback,
            Distance::Namespaces => self.namespaces,
            Distance::Guests => self.guests,
            Distance::Hosts => self.hosts,
        }
    }
}
