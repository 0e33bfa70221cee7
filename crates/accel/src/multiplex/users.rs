//! How many processes use an epoll set of the kernel: counted in memory that forks share.
//!
//! A child of fork that never touches an inherited set does not count. While two processes use one,
//! the members of both stay counted, because a process cannot know whether the other one sleeps.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// Sets that can be counted at a time; the others are treated as shared once a fork has happened.
const WORDS: usize = 1024;

/// What the processes share about one set.
struct Word {
    users: AtomicU32,
    /// Count of changes of its registrations since a fork.
    changes: AtomicU32,
}

type Page = [Word; WORDS];

/// Mapped at the first use, and inherited by forks.
static PAGE: AtomicPtr<Page> = AtomicPtr::new(ptr::null_mut());

fn page() -> Option<&'static Page> {
    // SAFETY: null, or a page of zeros that stays mapped.
    if let Some(page) = unsafe { PAGE.load(Ordering::Acquire).as_ref() } {
        return Some(page);
    }
    map_page()
}

#[cold]
fn map_page() -> Option<&'static Page> {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
    let (access, bytes) = (ProtFlags::READ | ProtFlags::WRITE, size_of::<Page>());
    // SAFETY: a new mapping at an address of the kernel's choice overlaps no memory in use.
    let fresh = unsafe { mmap_anonymous(ptr::null_mut(), bytes, access, MapFlags::SHARED) }.ok()?;
    let order = (Ordering::AcqRel, Ordering::Acquire);
    if PAGE.compare_exchange(ptr::null_mut(), fresh.cast(), order.0, order.1).is_err() {
        // SAFETY: the mapping that was just made, and that nobody knows.
        let _ = unsafe { munmap(fresh, bytes) };
    }
    // SAFETY: a page of zeros that stays mapped.
    unsafe { PAGE.load(Ordering::Acquire).as_ref() }
}

/// The count of one set.
#[derive(Default)]
pub struct Users {
    /// Index of its word plus one; zero if it has none.
    word: AtomicU32,
}

impl Users {
    fn word(&self) -> Option<&'static Word> {
        let index = self.word.load(Ordering::Relaxed).checked_sub(1)?;
        page()?.get(index as usize)
    }

    /// Counts the process that has created the set.
    pub fn begin(&self) {
        let free = |word: &Word| {
            word.users.compare_exchange(0, 1, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        };
        let index = page().and_then(|page| page.iter().position(free));
        let index = index.and_then(|index| u32::try_from(index + 1).ok());
        self.word.store(index.unwrap_or(0), Ordering::Relaxed);
    }

    /// Counts one more process.
    pub fn join(&self) {
        if let Some(word) = self.word() {
            word.users.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Counts one process less.
    pub fn leave(&self) {
        if let Some(word) = self.word() {
            let order = Ordering::SeqCst;
            let _ = word.users.fetch_update(order, order, |count| count.checked_sub(1));
        }
    }

    /// Whether only one process uses the set; none if it is not counted.
    #[inline]
    pub fn is_sole(&self) -> Option<bool> {
        Some(self.word()?.users.load(Ordering::SeqCst) <= 1)
    }

    /// Count of changes of the registrations.
    #[inline]
    pub fn changes(&self) -> u32 {
        self.word().map_or(0, |word| word.changes.load(Ordering::SeqCst))
    }

    /// Counts a change; returns the count before it.
    pub fn note_change(&self) -> u32 {
        self.word().map_or(0, |word| word.changes.fetch_add(1, Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_set_has_a_count_of_its_own() {
        let [first, second] = [Users::default(), Users::default()];
        assert_eq!(first.is_sole(), None);
        first.begin();
        second.begin();
        first.join();
        assert_eq!((first.is_sole(), second.is_sole()), (Some(false), Some(true)));
        first.leave();
        assert_eq!(first.is_sole(), Some(true));
        let before = first.changes();
        assert_eq!((first.note_change(), first.changes()), (before, before + 1));
        first.leave();
        first.leave();
        second.leave();
        assert_eq!(first.is_sole(), Some(true));
    }
}
