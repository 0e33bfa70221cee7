//! What a record says by numbers: phase, role, and why a socket is with the kernel.

/// Declares an enum whose numbers come from memory that others write.
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
            /// All of them; each stands at its number.
            pub const ALL: &[$name] = &[$($name::$variant,)*];

            /// The one with this number.
            pub fn from_number(number: u32) -> Option<$name> {
                $name::ALL.get(number as usize).copied()
            }

            /// In words.
            pub fn text(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }
        }
    };
}

numbered! {
    /// How far a socket is.
    SocketPhase {
        /// Not in use, or being made.
        Free = "free",
        /// With the kernel, for good.
        Kernel = "kernel",
        /// With the kernel, and may yet be joined.
        Candidate = "candidate",
        /// In shared memory, in one direction at least.
        SharedMemory = "shared memory",
        /// Closed; the counts are the last ones.
        Closed = "closed",
    }
}

numbered! {
    /// On which side of its connection a socket is.
    SocketRole {
        /// Neither is known.
        Unknown = "unknown",
        /// It was accepted.
        Server = "server",
        /// It has connected.
        Client = "client",
        /// It listens.
        Listener = "listener",
    }
}

numbered! {
    /// Why a socket is with the kernel.
    KernelReason {
        /// No reason: it is not, or not for good.
        None = "none",
        /// The peer is on another host, or in another network namespace without a shared folder.
        NotSameHost = "the peer is not on this host",
        /// Nobody came to the meeting.
        PeerNotAccelerated = "the peer is not accelerated",
        /// The peer belongs to another user.
        PeerOfAnotherUser = "the peer belongs to another user",
        /// The policy says so.
        Policy = "the policy keeps it on the kernel",
        /// Acceleration is switched off.
        Disabled = "acceleration is switched off",
        /// Another process held it too before it could be joined.
        SharedByFork = "shared with another process before it was joined",
        /// The program was replaced.
        Exec = "handed on through exec",
        /// It came through exec.
        InheritedThroughExec = "inherited through exec",
        /// It was passed to another process.
        Passed = "passed to another process",
        /// It is used through io_uring.
        IoUring = "used through io_uring",
        /// The C library reads or writes it itself.
        Stdio = "used as a standard stream",
        /// An option that only the kernel can keep; the detail is its number.
        SocketOption = "a socket option that only the kernel can keep",
        /// Urgent data.
        UrgentData = "urgent data",
        /// Spliced.
        Splice = "spliced",
        /// Signals tell of its data.
        SignalDriven = "signal-driven i/o",
        /// No memory or no descriptor was left.
        OutOfResources = "out of memory or descriptors",
        /// The peer died or did not answer.
        PeerDied = "the peer died",
        /// It was neither accepted nor connected under our eyes.
        ConnectionNotSeen = "how it was connected is not known",
        /// A lock could not be had, or the memory holds what cannot be.
        Inconsistent = "the shared memory is not in order",
        /// Another version of the library at the peer.
        OtherVersion = "the peer has another version",
        /// A call that is not carried over to memory.
        UnsupportedCall = "used by a call that only the kernel can keep",
    }
}
