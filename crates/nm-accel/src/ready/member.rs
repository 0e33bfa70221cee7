//! One registration in an epoll set that the accelerator follows.

use std::sync::atomic::Ordering;

use libc::c_int;

use super::set::Set;
use super::{ALWAYS, EDGE, READ_SIDE, WRITE_SIDE, wide};
use crate::socket::{PIPE, Socket};

/// A socket as it was when it was registered.
#[derive(Clone, Copy)]
pub struct Held {
    /// The socket; its memory is reused, never freed.
    pub socket: &'static Socket,
    /// Tells a reuse.
    generation: u32,
}

impl Held {
    /// The socket as it is now.
    pub fn new(socket: &'static Socket) -> Held {
        Held { socket, generation: socket.generation() }
    }

    /// Whether it is still that socket.
    #[inline]
    pub fn alive(&self) -> bool {
        self.socket.generation() == self.generation
    }
}

/// What a registration is about.
#[derive(Clone, Copy)]
pub enum Kind {
    /// A descriptor of the kernel: the program's data happen to look like a tag.
    Plain,
    /// A TCP connection that may join: the kernel reports it under a tag.
    Candidate(Held),
    /// A connection in shared memory: the kernel reports its bell and its socket, edge-triggered.
    Joined(Held),
    /// A TCP socket that is not connected yet.
    Early,
    /// Another epoll set.
    Nested(&'static Set),
}

/// One registration: what the program asked for and what it has been told.
pub struct Member {
    /// The descriptor by which it was registered.
    pub fd: c_int,
    /// What is behind it.
    pub kind: Kind,
    /// The program's events, with its flags.
    pub events: u32,
    /// The program's data.
    pub data: u64,
    /// A one-shot that has been reported and waits for a new `EPOLL_CTL_MOD`.
    pub disabled: bool,
    /// Edge-triggered: to be reported if it is ready, whatever was reported before.
    pub fresh: bool,
    /// It is walked; otherwise it is armed for good, and its bell is waited for.
    pub hot: bool,
    /// Walks since it was last ready.
    pub vain: u32,
    /// The call in which it was last reported: once a call is enough.
    pub told_in: u64,
    seen: (u64, u64),
    armed: Option<(bool, bool)>,
}

/// What a look at a member found: the events to report, and the edges up to which they reach.
#[derive(Clone, Copy)]
pub struct Due {
    /// The events.
    pub events: u32,
    edges: (u64, u64),
}

impl Member {
    /// A registration of `fd` that nothing has been reported of.
    pub fn new(fd: c_int, kind: Kind, events: u32, data: u64) -> Member {
        Member {
            fd,
            kind,
            events,
            data,
            disabled: false,
            fresh: true,
            hot: false,
            vain: 0,
            told_in: 0,
            seen: (0, 0),
            armed: None,
        }
    }

    /// The socket, if the member is one.
    pub fn held(&self) -> Option<Held> {
        match self.kind {
            Kind::Candidate(held) | Kind::Joined(held) => Some(held),
            Kind::Plain | Kind::Early | Kind::Nested(_) => None,
        }
    }

    /// The joined socket.
    #[inline]
    pub fn joined(&self) -> Option<&'static Socket> {
        match self.kind {
            Kind::Joined(held) => Some(held.socket),
            _ => None,
        }
    }

    /// What is to be reported of a joined socket now, if anything.
    #[inline]
    pub fn due(&self) -> Option<Due> {
        let Kind::Joined(held) = self.kind else { return None };
        if self.disabled || !held.alive() {
            return None;
        }
        let socket = held.socket;
        let wanted = self.events | ALWAYS;
        // Before the readiness: what comes in between is an edge that has not been reported.
        let edges = if self.events & EDGE == 0 { (0, 0) } else { socket.edge() };
        let mut events = wide(socket.readiness()) & wanted;
        if events == 0 || !self.moved(edges) {
            return None;
        }
        if !socket.whole() {
            // A part comes from the kernel, and what is remembered of it may be old.
            socket.refresh();
            events = wide(socket.readiness()) & wanted;
        }
        (events != 0).then_some(Due { events, edges })
    }

    /// Whether something has happened that an edge-triggered member is told of.
    fn moved(&self, edges: (u64, u64)) -> bool {
        self.events & EDGE == 0
            || self.fresh
            || edges.0 != self.seen.0 && self.events & (READ_SIDE | ALWAYS) != 0
            || edges.1 != self.seen.1 && self.events & WRITE_SIDE != 0
    }

    /// `due` is being reported.
    #[inline]
    pub fn reported(&mut self, due: Due) {
        self.fresh = false;
        self.vain = 0;
        self.seen = due.edges;
        self.disabled = self.events & super::ONE_SHOT != 0;
    }

    /// Asks for the bell. Look at [`Member::due`] afterwards.
    pub fn arm(&mut self) {
        let Some(socket) = self.joined() else { return };
        if self.armed.is_none() && !self.disabled {
            let writable = self.events & WRITE_SIDE != 0 && socket.readiness() & WRITE_SIDE == 0;
            socket.arm(true, writable);
            self.armed = Some((true, writable));
        }
    }

    /// Asks for it again: the bell that was asked for may have rung.
    pub fn arm_again(&mut self) {
        self.disarm();
        self.arm();
    }

    /// Asks for it no longer.
    pub fn disarm(&mut self) {
        if let (Some((readable, writable)), Kind::Joined(held)) = (self.armed.take(), self.kind)
            && held.alive()
        {
            held.socket.disarm(readable, writable);
        }
    }

    /// Whether room in the kernel's own buffer is what it waits for: the direction away from us is
    /// not, or not any more, in memory.
    pub fn needs_kernel_room(&self) -> bool {
        let Some(socket) = self.joined() else { return false };
        self.events & WRITE_SIDE != 0
            && !self.disabled
            && socket.stage_out.load(Ordering::Relaxed) != PIPE
            && socket.readiness() & WRITE_SIDE == 0
    }

    /// In a forked child, whose sockets have forgotten who was armed.
    pub fn forked(&mut self) {
        self.armed = None;
    }
}
