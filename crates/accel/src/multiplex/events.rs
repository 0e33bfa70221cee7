//! The program's array of events while it is filled from two sources: the kernel and memory.

use libc::{c_int, epoll_event};

/// Space for events in the program's memory.
pub struct Events {
    first: *mut epoll_event,
    limit: usize,
    len: usize,
    /// Entries before this index are from an earlier pass over another source.
    pass: usize,
}

/// What becomes of an event that the kernel has reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// The bits to report; none: the event is not reported.
    pub events: u32,
    /// What becomes of it if memory has reported the same member in the same call, and if not.
    pub merge: Merge,
}

/// Whether an event of the kernel is added to the entry that memory has made for the same member: a
/// call reports no member twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Merge {
    /// It has an entry of its own.
    Never,
    /// It is added to the entry of memory; without one it has its own.
    IfReported,
    /// It is added to the entry of memory, or not reported.
    Only,
}

impl Events {
    /// The program's array.
    ///
    /// # Safety
    /// `first` must be valid for `limit` events as long as this exists.
    pub unsafe fn new(first: *mut epoll_event, limit: usize) -> Events {
        Events { first, limit, len: 0, pass: 0 }
    }

    /// Count of events in it.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it is full.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.len >= self.limit
    }

    /// Where the next event is written, and how many more fit.
    pub fn rest(&self) -> (*mut epoll_event, c_int) {
        let left = c_int::try_from(self.limit - self.len).unwrap_or(c_int::MAX);
        (self.first.wrapping_add(self.len), left)
    }

    fn read(&self, index: usize) -> (u32, u64) {
        // SAFETY: the index is below the limit, and the caller of `new` guarantees the array; the
        // type may be packed, and programs may pass any address.
        let event = unsafe { self.first.add(index).read_unaligned() };
        (event.events, event.u64)
    }

    fn write(&mut self, index: usize, events: u32, data: u64) {
        // SAFETY: the index is below the limit, and the caller of `new` guarantees the array; the
        // type may be packed, and programs may pass any address.
        unsafe { self.first.add(index).write_unaligned(epoll_event { events, u64: data }) };
    }

    /// Adds `events` to an entry with these data before `end`.
    fn merge(&mut self, end: usize, events: u32, data: u64) -> bool {
        for index in 0..end {
            let (known, other) = self.read(index);
            if other == data {
                self.write(index, known | events, data);
                return true;
            }
        }
        false
    }

    /// Begins a pass over the members in memory: what it reports is merged with earlier entries.
    pub fn begin_pass(&mut self) {
        self.pass = self.len;
    }

    /// Appends an event of memory, or adds it to the entry that an earlier pass has made for the
    /// same data. False if there is no space.
    pub fn push(&mut self, events: u32, data: u64) -> bool {
        if self.pass > 0 && self.merge(self.pass, events, data) {
            return true;
        }
        if self.is_full() {
            return false;
        }
        self.write(self.len, events, data);
        self.len += 1;
        true
    }

    /// Accepts the `count` events that the kernel has written to [`Events::rest`], as `judge`
    /// decides from their bits and data.
    pub fn accept(&mut self, count: usize, mut judge: impl FnMut(u32, u64) -> Verdict) {
        let before = self.len;
        for index in before..(before + count).min(self.limit) {
            let (events, data) = self.read(index);
            let verdict = judge(events, data);
            let is_merged = verdict.events != 0
                && verdict.merge != Merge::Never
                && self.merge(before, verdict.events, data);
            if is_merged || verdict.events == 0 || verdict.merge == Merge::Only {
                continue;
            }
            // Never beyond `index`: entries are only left out.
            self.write(self.len, verdict.events, data);
            self.len += 1;
        }
    }
}

impl Events {
    /// Accepts all `count` events that the kernel has written.
    pub fn accept_all(&mut self, count: usize) {
        self.accept(count, |events, _| Verdict { events, merge: Merge::Never });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array() -> [epoll_event; 4] {
        [epoll_event { events: 0, u64: 0 }; 4]
    }

    fn content(events: &Events) -> Vec<(u32, u64)> {
        (0..events.len()).map(|index| events.read(index)).collect()
    }

    fn kernel(events: &mut Events, reported: &[(u32, u64)]) {
        for (step, &(bits, data)) in reported.iter().enumerate() {
            events.write(events.len() + step, bits, data);
        }
        events.accept(reported.len(), |events, _| Verdict { events, merge: Merge::IfReported });
    }

    #[test]
    fn kernel_event_of_a_member_that_memory_reported_is_merged() {
        let mut space = array();
        // SAFETY: the array outlives the events.
        let mut events = unsafe { Events::new(space.as_mut_ptr(), 4) };
        events.begin_pass();
        assert!(events.push(1, 10) && events.push(1, 20));
        kernel(&mut events, &[(4, 20), (1, 30)]);
        assert_eq!(content(&events), [(1, 10), (5, 20), (1, 30)]);
    }

    #[test]
    fn memory_event_of_a_member_that_the_kernel_reported_is_merged_even_if_there_is_no_space() {
        let mut space = array();
        // SAFETY: the array outlives the events.
        let mut events = unsafe { Events::new(space.as_mut_ptr(), 2) };
        kernel(&mut events, &[(4, 20), (1, 30)]);
        events.begin_pass();
        assert!(events.push(1, 20));
        assert!(!events.push(1, 40) && events.is_full());
        assert_eq!(content(&events), [(5, 20), (1, 30)]);
    }

    #[test]
    fn members_with_the_same_data_stay_apart_within_one_source() {
        let mut space = array();
        // SAFETY: the array outlives the events.
        let mut events = unsafe { Events::new(space.as_mut_ptr(), 4) };
        kernel(&mut events, &[(1, 0), (1, 0)]);
        assert_eq!(content(&events), [(1, 0), (1, 0)]);
    }

    #[test]
    fn rejected_events_are_left_out() {
        let mut space = array();
        // SAFETY: the array outlives the events.
        let mut events = unsafe { Events::new(space.as_mut_ptr(), 4) };
        for (index, data) in [5, 6, 7].into_iter().enumerate() {
            events.write(index, 4, data);
        }
        events.accept(3, |bits, data| Verdict {
            events: if data == 6 { 0 } else { bits },
            merge: Merge::Never,
        });
        assert_eq!(content(&events), [(4, 5), (4, 7)]);
        assert_eq!(events.rest().1, 2);
    }
}
