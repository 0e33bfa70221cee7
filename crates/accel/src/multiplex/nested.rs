//! Epoll sets that are registered in another epoll set.

use libc::c_int;

use super::bits::{EDGE, INPUT_EVENTS, ONE_SHOT};

/// The registration of a set, known as `S`, in another one.
#[derive(Clone, Copy)]
pub struct NestedSet<S> {
    /// Its descriptor.
    pub fd: c_int,
    /// The set.
    pub set: S,
    /// The program's events.
    pub events: u32,
    /// The program's data.
    pub data: u64,
    /// Not reported since the last change of the registration.
    pub must_report: bool,
}

impl<S> NestedSet<S> {
    /// Whether it is reported when memory has something to report for its set.
    fn is_due(&self) -> bool {
        let is_level = self.events & (EDGE | ONE_SHOT) == 0;
        self.events & INPUT_EVENTS != 0 && (is_level || self.must_report)
    }
}

/// The sets that are registered in one set.
pub struct NestedSets<S>(Vec<NestedSet<S>>);

impl<S> Default for NestedSets<S> {
    fn default() -> NestedSets<S> {
        NestedSets(vec![])
    }
}

impl<S: Copy> NestedSets<S> {
    /// Adds a registration.
    pub fn insert(&mut self, registration: NestedSet<S>) {
        self.remove(registration.fd);
        self.0.push(registration);
    }

    /// The kernel has accepted new events and data for `fd`.
    pub fn modify(&mut self, fd: c_int, events: u32, data: u64) {
        if let Some(known) = self.0.iter_mut().find(|known| known.fd == fd) {
            (known.events, known.data, known.must_report) = (events, data, true);
        }
    }

    /// Removes a registration; false if there is none.
    pub fn remove(&mut self, fd: c_int) -> bool {
        let before = self.0.len();
        self.0.retain(|known| known.fd != fd);
        self.0.len() != before
    }

    /// Count of registrations.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Those that are reported as soon as memory has something to report for their sets.
    pub fn due(&self) -> Vec<NestedSet<S>> {
        self.0.iter().filter(|known| known.is_due()).copied().collect()
    }

    /// All of them.
    pub fn all(&self) -> Vec<NestedSet<S>> {
        self.0.clone()
    }

    /// Notes that the registration of `fd` was reported.
    pub fn reported(&mut self, fd: c_int) {
        if let Some(known) = self.0.iter_mut().find(|known| known.fd == fd) {
            known.must_report = false;
        }
    }
}
