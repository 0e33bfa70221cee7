//! Values that a record stores as numbers: phase, role, and why a socket uses the kernel.

/// Declares an enum that is stored as a number in memory that other processes can write.
macro_rules! numbered {
    (
        $(#[$doc:meta])*
        $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum $name { $($(#[$variant_doc])* $variant,)* }

        impl $name {
            /// All variants, ordered by number.
            pub const ALL: &[$name] = &[$($name::$variant,)*];

            /// The variant with this number.
            pub fn from_number(number: u32) -> Option<$name> {
                $name::ALL.get(number as usize).copied()
            }

            /// The text that users read.
            pub fn text(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }
        }
    };
}

numbered! {
    /// Which way the bytes of a socket go.
    SocketPhase {
        /// Not in use, or being set up.
        Free = "free",
        /// Through the kernel for the rest of its life.
        Kernel = "kernel",
        /// Through the kernel so far; may move to shared memory.
        Candidate = "candidate",
        /// Through shared memory, in one direction at least.
        SharedMemory = "shared memory",
        /// Closed; the counters are final.
        Closed = "closed",
    }
}

numbered! {
    /// The side of its connection that a socket is on.
    SocketRole {
        /// Not known.
        Unknown = "unknown",
        /// It was accepted.
        Server = "server",
        /// It connected.
        Client = "client",
        /// It listens.
        Listener = "listener",
    }
}

numbered! {
    /// Why a socket uses the kernel.
    KernelReason {
        /// No reason: it does not, or not permanently.
        None = "none",
        /// The peer is on another host, or in another network namespace without a shared folder.
        NotSameHost = "the peer is on another host, or in another network namespace (see --share)",
        /// No peer came to the rendezvous.
        PeerNotAccelerated = "the peer is not accelerated",
        /// The peer belongs to another user.
        PeerOfAnotherUser = "the peer belongs to another user",
        /// The policy excludes this connection.
        Policy = "excluded by the policy",
        /// Acceleration is switched off.
        Disabled = "acceleration is switched off",
        /// Several processes held it before it could be moved to shared memory.
        SharedByFork = "shared with another process before it could move to shared memory",
        /// The program replaced itself by exec and passed the socket on.
        Exec = "passed on through exec",
        /// It was inherited through exec.
        InheritedThroughExec = "inherited through exec",
        /// It was passed to another process.
        Passed = "passed to another process",
        /// It is used through io_uring.
        IoUring = "used through io_uring",
        /// The C library reads or writes it directly.
        Stdio = "used as a standard stream",
        /// An option that only the kernel supports; the detail is its number.
        SocketOption = "a socket option that only the kernel supports",
        /// Urgent data.
        UrgentData = "urgent data",
        /// It was used with splice.
        Splice = "used with splice",
        /// The program asked for a signal when data arrives.
        SignalDriven = "signal-driven i/o",
        /// Memory or descriptors were exhausted.
        OutOfResources = "out of memory or descriptors",
        /// The peer died or did not answer.
        PeerDied = "the peer died",
        /// The library saw neither its accept nor its connect.
        ConnectionNotSeen = "its connection was made outside the accelerator",
        /// A lock timed out, or the shared memory contains impossible values.
        Inconsistent = "the shared memory is inconsistent",
        /// The peer runs another version of the library.
        OtherVersion = "the peer runs another version of the accelerator",
        /// It was used by a call that is not implemented for shared memory.
        UnsupportedCall = "used by a call that only the kernel supports",
        /// It was used by POSIX asynchronous i/o.
        AsynchronousIo = "used by asynchronous i/o (aio)",
        /// The process has as many connections in shared memory as the limit allows.
        TooManyJoined = "as many connections are in shared memory as the limit allows",
        /// The program may wait for it by system calls that the library does not see.
        UnknownEpollSet = "the program has an epoll set that it does not use through libc",
        /// The program has installed a filter of system calls.
        SystemCallFilter = "the program restricts its system calls (seccomp)",
        /// Memory carried little, because the receivers sleep.
        NotWorthIt = "its receivers mostly sleep, so memory saves nothing",
        /// The kernel has sent bytes that no call of the library has sent.
        SentPastLibrary = "a part of the program sends by system calls of its own",
        /// The process has more connections than it may search other ends for.
        Crowded = "the process has more connections than memory pays for",
    }
}

/// Options that only the kernel supports, by their number in a ledger (level × 65536 + name). The
/// numbers are those of x86-64 and AArch64.
const OPTION_NAMES: &[(u32, &str)] = &[
    (1 << 16 | 18, "SO_RCVLOWAT"),
    (1 << 16 | 29, "SO_TIMESTAMP"),
    (1 << 16 | 35, "SO_TIMESTAMPNS"),
    (1 << 16 | 37, "SO_TIMESTAMPING"),
    (1 << 16 | 42, "SO_PEEK_OFF"),
    (1 << 16 | 63, "SO_TIMESTAMP"),
    (1 << 16 | 64, "SO_TIMESTAMPNS"),
    (1 << 16 | 65, "SO_TIMESTAMPING"),
    (6 << 16 | 19, "TCP_REPAIR"),
    (6 << 16 | 31, "TCP_ULP"),
];

/// The name of a socket option by its number in a ledger.
pub fn option_name(number: u32) -> Option<&'static str> {
    OPTION_NAMES.iter().find(|(known, _)| *known == number).map(|(_, name)| *name)
}
