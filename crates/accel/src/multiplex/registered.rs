//! In which sets a descriptor is registered, so that a close finds them without a search.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::c_int;

use super::epoll_set::EpollSet;
use super::registry;
use crate::table::DESCRIPTORS;

static SETS: [AtomicPtr<EpollSet>; DESCRIPTORS] =
    [const { AtomicPtr::new(ptr::null_mut()) }; DESCRIPTORS];

/// Stands for several sets.
const SEVERAL: *mut EpollSet = ptr::without_provenance_mut(1);

fn entry(fd: c_int) -> Option<&'static AtomicPtr<EpollSet>> {
    SETS.get(usize::try_from(fd).ok()?)
}

fn pointer(set: &'static EpollSet) -> *mut EpollSet {
    ptr::from_ref(set).cast_mut()
}

/// Notes that `fd` may be registered in `set`. Before the descriptor is looked up: a thread that
/// closes it removes it from the table first and then looks here.
pub fn add(fd: c_int, set: &'static EpollSet) {
    let Some(entry) = entry(fd) else { return };
    let (order, set) = (Ordering::SeqCst, pointer(set));
    if let Err(other) = entry.compare_exchange(ptr::null_mut(), set, order, order)
        && other != set
    {
        entry.store(SEVERAL, order);
    }
}

/// Notes that `fd` is not registered in `set` any more.
pub fn remove(fd: c_int, set: &'static EpollSet) {
    if let Some(entry) = entry(fd) {
        let order = (Ordering::SeqCst, Ordering::Relaxed);
        let _ = entry.compare_exchange(pointer(set), ptr::null_mut(), order.0, order.1);
    }
}

/// Notes that `fd` is registered nowhere any more.
pub fn clear(fd: c_int) {
    if let Some(entry) = entry(fd) {
        entry.store(ptr::null_mut(), Ordering::SeqCst);
    }
}

/// Whether `fd` may be registered in a set.
#[inline]
pub fn is_anywhere(fd: c_int) -> bool {
    entry(fd).is_some_and(|entry| !entry.load(Ordering::SeqCst).is_null())
}

/// Calls `visit` with each set in which `fd` may be registered.
#[inline]
pub fn for_each_set(fd: c_int, mut visit: impl FnMut(&'static EpollSet)) {
    let found = entry(fd).map_or(ptr::null_mut(), |entry| entry.load(Ordering::SeqCst));
    if found == SEVERAL {
        registry::for_each(visit);
        return;
    }
    // SAFETY: null, or a set; sets are leaked and reused, never freed.
    if let Some(set) = unsafe { found.as_ref() } {
        visit(set);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_a_descriptor_are_found() {
        let new = || -> &'static EpollSet { Box::leak(Box::new(EpollSet::default())) };
        let (sets, fd) = ([new(), new()], 700_321);
        let found = || {
            let mut found = Vec::new();
            for_each_set(fd, |set| found.push(ptr::from_ref(set)));
            found
        };
        assert!(found().is_empty());
        add(fd, sets[0]);
        add(fd, sets[0]);
        assert_eq!(found(), [ptr::from_ref(sets[0])]);
        remove(fd, sets[1]);
        assert_eq!(found().len(), 1);
        remove(fd, sets[0]);
        assert!(found().is_empty());
        add(fd, sets[0]);
        add(fd, sets[1]);
        for (number, set) in sets.into_iter().enumerate() {
            registry::replace(700_400 + number as c_int, Some(set));
        }
        assert!(sets.iter().all(|set| found().contains(&ptr::from_ref(*set))));
        clear(fd);
        assert!(found().is_empty());
        (700_400..700_402).for_each(|fd| assert!(registry::replace(fd, None).is_some()));
    }
}
