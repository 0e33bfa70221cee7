//! One registration in an epoll set that the accelerator tracks.

use std::sync::atomic::Ordering;

use libc::c_int;

use super::epoll_set::EpollSet;
use super::{ALWAYS, EDGE, READ_EVENTS, WRITE_EVENTS, with_tcp_names};
use crate::socket::{IN_PIPE, Socket};

/// A socket, and the generation that it had when it was registered.
#[derive(Clone, Copy)]
pub struct SocketRef {
    /// The socket; its memory is reused, never freed.
    pub socket: &'static Socket,
    /// Detects that the object was reused for another socket.
    generation: u32,
}

impl SocketRef {
    /// The socket as it is now.
    pub fn new(socket: &'static Socket) -> SocketRef {
        SocketRef { socket, generation: socket.generation() }
    }

    /// Whether it is still the same socket.
    #[inline]
    pub fn is_current(&self) -> bool {
        self.socket.generation() == self.generation
    }
}

/// What was registered.
#[derive(Clone, Copy)]
pub enum MemberKind {
    /// A descriptor of the kernel, tracked because the program's data happen to look like a tag.
    KernelOnly,
    /// A TCP connection that may join: the kernel reports it with a tag.
    Candidate(SocketRef),
    /// A joined connection: the kernel reports its doorbell and its socket, edge-triggered.
    Joined(SocketRef),
    /// A TCP socket that is not connected yet.
    Unconnected,
    /// Another epoll set.
    NestedSet(&'static EpollSet),
}

/// One registration: what the program requested and what was reported to it.
pub struct Member {
    /// The descriptor by which it was registered.
    pub fd: c_int,
    /// What it refers to.
    pub kind: MemberKind,
    /// The program's events, including its flags.
    pub events: u32,
    /// The program's data.
    pub data: u64,
    /// A one-shot registration that was reported and waits for a new `EPOLL_CTL_MOD`.
    pub disabled: bool,
    /// Edge-triggered: must be reported if it is ready, whatever was reported before.
    pub must_report: bool,
    /// It is scanned; otherwise it stays armed and waits for its doorbell.
    pub is_active: bool,
    /// Scans since it was last ready.
    pub idle_scans: u32,
    /// The call that reported it last: a call reports it only once.
    pub reported_in_call: u64,
    reported_edges: (u64, u64),
    armed: Option<(bool, bool)>,
}

/// Result of checking a member: the events to report, and the edge counters that they cover.
#[derive(Clone, Copy)]
pub struct PendingReport {
    /// The events.
    pub events: u32,
    edges: (u64, u64),
}

impl Member {
    /// A new registration of `fd`.
    pub fn new(fd: c_int, kind: MemberKind, events: u32, data: u64) -> Member {
        Member {
            fd,
            kind,
            events,
            data,
            disabled: false,
            must_report: true,
            is_active: false,
            idle_scans: 0,
            reported_in_call: 0,
            reported_edges: (0, 0),
            armed: None,
        }
    }

    /// The socket, if the member is one.
    pub fn socket_ref(&self) -> Option<SocketRef> {
        match self.kind {
            MemberKind::Candidate(socket_ref) | MemberKind::Joined(socket_ref) => Some(socket_ref),
            MemberKind::KernelOnly | MemberKind::Unconnected | MemberKind::NestedSet(_) => None,
        }
    }

    /// The joined socket.
    #[inline]
    pub fn joined_socket(&self) -> Option<&'static Socket> {
        match self.kind {
            MemberKind::Joined(socket_ref) => Some(socket_ref.socket),
            _ => None,
        }
    }

    /// The events to report of a joined socket now, if any.
    #[inline]
    pub fn pending_report(&self) -> Option<PendingReport> {
        let MemberKind::Joined(socket_ref) = self.kind else { return None };
        if self.disabled || !socket_ref.is_current() {
            return None;
        }
        let socket = socket_ref.socket;
        let wanted = self.events | ALWAYS;
        // Read before the readiness: what arrives in between is an edge that was not reported.
        let edges = if self.events & EDGE == 0 { (0, 0) } else { socket.edge_counters() };
        let mut events = with_tcp_names(socket.readiness()) & wanted;
        if events == 0 || !self.has_new_edge(edges) {
            return None;
        }
        if !socket.is_fully_in_memory() {
            // One direction is in the kernel, and its stored events may be outdated.
            socket.refresh_kernel_events();
            events = with_tcp_names(socket.readiness()) & wanted;
        }
        (events != 0).then_some(PendingReport { events, edges })
    }

    /// Whether something happened that an edge-triggered member reports.
    fn has_new_edge(&self, edges: (u64, u64)) -> bool {
        self.events & EDGE == 0
            || self.must_report
            || edges.0 != self.reported_edges.0 && self.events & (READ_EVENTS | ALWAYS) != 0
            || edges.1 != self.reported_edges.1 && self.events & WRITE_EVENTS != 0
    }

    /// Notes that `report` is returned to the program.
    #[inline]
    pub fn reported(&mut self, report: PendingReport) {
        self.must_report = false;
        self.idle_scans = 0;
        self.reported_edges = report.edges;
        self.disabled = self.events & super::ONE_SHOT != 0;
    }

    /// Announces a wait for the doorbell. Check [`Member::pending_report`] afterwards.
    pub fn arm(&mut self) {
        let Some(socket) = self.joined_socket() else { return };
        if self.armed.is_none() && !self.disabled {
            let writable =
                self.events & WRITE_EVENTS != 0 && socket.readiness() & WRITE_EVENTS == 0;
            socket.arm(true, writable);
            self.armed = Some((true, writable));
        }
    }

    /// Announces it again: the doorbell may have rung since.
    pub fn rearm(&mut self) {
        self.disarm();
        self.arm();
    }

    /// Withdraws the announcement.
    pub fn disarm(&mut self) {
        if let (Some((readable, writable)), MemberKind::Joined(socket_ref)) =
            (self.armed.take(), self.kind)
            && socket_ref.is_current()
        {
            socket_ref.socket.disarm(readable, writable);
        }
    }

    /// Whether it waits for space in the kernel's own buffer, because the outgoing direction is not
    /// in memory.
    pub fn waits_for_kernel_space(&self) -> bool {
        let Some(socket) = self.joined_socket() else { return false };
        self.events & WRITE_EVENTS != 0
            && !self.disabled
            && socket.outgoing_stage.load(Ordering::Relaxed) != IN_PIPE
            && socket.readiness() & WRITE_EVENTS == 0
    }

    /// In the child of a fork, where no socket is armed.
    pub fn reset_after_fork(&mut self) {
        self.armed = None;
    }
}
