//! One registration in an epoll set: what the program requested, whether it relies on the kernel,
//! and what was reported.
//!
//! A member that is interested in input is either *counted* or *active*. If it is counted, its
//! socket relies on the kernel, so the peer sends through the kernel and the kernel's readiness is
//! true. If it is active, `epoll_wait` polls its memory. A counted member is *watched* as well
//! while bytes are in memory that arrived before it was counted. All other events come from the
//! kernel.

use libc::c_int;

use super::bits::{ALWAYS, EDGE, EXCLUSIVE, INPUT_EVENTS, ONE_SHOT, WRITABLE};
use super::wait_socket::WaitSocket;

/// What the kernel has of a one-shot registration that was reported from memory.
pub const DISARMED: u32 = ONE_SHOT | EDGE;

/// One registration.
pub struct Member<S> {
    /// The descriptor by which it was registered.
    pub fd: c_int,
    /// The program's events, including its flags.
    pub events: u32,
    /// The program's data.
    pub data: u64,
    /// The events that the kernel's registration has now.
    pub registered: u32,
    /// The socket; none while the descriptor is not connected, or if it can never share memory.
    pub socket: Option<S>,
    /// Whether its socket relies on the kernel for it.
    pub is_counted: bool,
    /// Whether it is polled in memory.
    pub is_watched: bool,
    /// A one-shot registration that was reported and waits for a new `EPOLL_CTL_MOD`.
    pub is_disabled: bool,
    /// The kernel's registration includes [`WRITABLE`] to wake a thread that sleeps.
    pub is_waking: bool,
    /// Whether this member is reported once more, whatever was reported before.
    pub must_report: bool,
    /// The call of the set that reported it last.
    pub reported_at: u64,
    /// The call of the set that reported it last or made it active.
    pub used_at: u64,
    /// Its descriptor is closed while another one keeps the socket open: the kernel still reports
    /// it, but its registration cannot be changed any more.
    pub is_orphan: bool,
    reported_arrivals: u64,
}

/// What is to be reported of a member now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// The events.
    pub events: u32,
    arrivals: u64,
}

impl<S: WaitSocket> Member<S> {
    /// A new registration of `fd`, which the kernel has accepted.
    pub fn new(fd: c_int, events: u32, data: u64, socket: Option<S>) -> Member<S> {
        Member {
            fd,
            events,
            data,
            registered: events,
            socket,
            is_counted: false,
            is_watched: false,
            is_disabled: false,
            is_waking: false,
            must_report: true,
            reported_at: 0,
            used_at: 0,
            is_orphan: false,
            reported_arrivals: 0,
        }
    }

    /// The kernel has accepted new events and data.
    pub fn modify(&mut self, events: u32, data: u64) {
        (self.events, self.data, self.registered) = (events, data, events);
        (self.is_disabled, self.is_waking, self.must_report) = (false, false, true);
    }

    /// Whether arrivals in memory concern it.
    #[inline]
    pub fn wants_input(&self) -> bool {
        self.events & INPUT_EVENTS != 0 && self.socket.is_some()
    }

    /// Whether it may be polled in memory instead of being counted.
    pub fn may_be_active(&self) -> bool {
        self.wants_input()
            && !self.is_orphan
            && self.events & (ONE_SHOT | EXCLUSIVE) == 0
            && self.socket.is_some_and(|socket| socket.is_joined())
    }

    /// Whether it is polled in memory instead of being counted.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.is_watched && !self.is_counted
    }

    /// Whether each call must ask the kernel too when memory reports it: the kernel's answer
    /// belongs into the same event.
    pub fn needs_kernel(&self) -> bool {
        self.must_report || self.events & EDGE == 0 && self.events & WRITABLE != 0
    }

    /// Counts it, if it is not counted yet. Returns whether bytes are in memory.
    pub fn count(&mut self) -> bool {
        let Some(socket) = self.socket else { return false };
        if !self.is_counted {
            socket.rely_on_kernel();
            self.is_counted = true;
        }
        socket.has_memory_bytes()
    }

    /// Ends the count.
    pub fn uncount(&mut self) {
        if let Some(socket) = self.socket.filter(|_| self.is_counted) {
            socket.end_reliance();
        }
        self.is_counted = false;
    }

    /// What memory has to report now.
    #[inline]
    pub fn pending(&self) -> Option<Report> {
        let socket = self.socket?;
        if self.is_disabled || self.events & INPUT_EVENTS == 0 {
            return None;
        }
        // Read before the bytes: what arrives in between was not reported.
        let arrivals = if self.events & EDGE == 0 { 0 } else { socket.memory_arrivals() };
        if !socket.has_memory_bytes() {
            return None;
        }
        let is_new =
            self.events & EDGE == 0 || self.must_report || arrivals != self.reported_arrivals;
        // The kernel reports an arrival with all that is true then; it is asked for levels.
        let is_edge_for_space = self.events & EDGE != 0 && self.events & WRITABLE != 0;
        let space =
            if is_new && is_edge_for_space && socket.is_writable(self.fd) { WRITABLE } else { 0 };
        is_new.then_some(Report { events: self.events & INPUT_EVENTS | space, arrivals })
    }

    /// Notes that `report` is returned to the program by the call `call` of the set.
    #[inline]
    pub fn reported(&mut self, report: Report, call: u64) {
        self.must_report = false;
        self.is_waking = false;
        self.reported_arrivals = report.arrivals;
        (self.reported_at, self.used_at) = (call, call);
        self.is_disabled = self.events & ONE_SHOT != 0;
    }

    /// Whether bytes are in memory that were reported already, and more could arrive unnoticed: the
    /// peer may have begun to send before the member was counted.
    pub fn has_reported_bytes(&self) -> bool {
        self.events & EDGE != 0 && self.socket.is_some_and(|socket| socket.has_memory_bytes())
    }

    /// The kernel has reported `events` for it. Returns what the program gets: not what was
    /// registered only to wake a thread. It may concern a registration that was replaced since.
    pub fn kernel_reported(&mut self, events: u32, call: u64) -> u32 {
        let wanted = events & (self.events | ALWAYS);
        if self.is_disabled && wanted & !ALWAYS == 0 {
            return 0;
        }
        if self.events & ONE_SHOT != 0 {
            self.registered = DISARMED;
        }
        self.is_waking = false;
        if wanted != 0 {
            (self.reported_at, self.used_at) = (call, call);
            self.is_disabled = self.events & ONE_SHOT != 0;
        }
        wanted
    }

    /// The events that the kernel's registration must have.
    pub fn wanted_registration(&self) -> u32 {
        match (self.is_disabled, self.is_waking) {
            (true, _) => DISARMED,
            (false, true) => self.events | WRITABLE,
            (false, false) => self.events,
        }
    }
}
