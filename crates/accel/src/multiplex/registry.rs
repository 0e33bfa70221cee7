//! Which descriptors are epoll sets of this process.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use libc::c_int;

use super::epoll_set::EpollSet;
use crate::table::DESCRIPTORS;

static REGISTRY: [AtomicPtr<EpollSet>; DESCRIPTORS] =
    [const { AtomicPtr::new(ptr::null_mut()) }; DESCRIPTORS];

/// One more than the highest descriptor that was ever a set: the limit of [`find`].
static LIMIT: AtomicUsize = AtomicUsize::new(0);

fn slot(fd: c_int) -> Option<&'static AtomicPtr<EpollSet>> {
    REGISTRY.get(usize::try_from(fd).ok()?)
}

/// The set of `fd`.
#[inline(always)]
pub fn get(fd: c_int) -> Option<&'static EpollSet> {
    // SAFETY: sets are leaked and reused, never freed.
    unsafe { slot(fd)?.load(Ordering::Acquire).as_ref() }
}

/// Stores `set` or nothing for `fd`, and returns the set that was stored before. A descriptor
/// beyond the table's range is not tracked: its set stays a plain set of the kernel.
pub fn replace(fd: c_int, set: Option<&'static EpollSet>) -> Option<&'static EpollSet> {
    let slot = slot(fd)?;
    if set.is_some() {
        LIMIT.fetch_max(usize::try_from(fd).unwrap_or(0) + 1, Ordering::AcqRel);
    }
    let set = set.map_or(ptr::null_mut(), |set| ptr::from_ref(set).cast_mut());
    // SAFETY: sets are leaked and reused, never freed.
    unsafe { slot.swap(set, Ordering::AcqRel).as_ref() }
}

/// The first descriptor of a set for which `look` returns `true`.
pub fn find(mut look: impl FnMut(&'static EpollSet) -> bool) -> Option<c_int> {
    (0..LIMIT.load(Ordering::Acquire))
        .filter_map(|fd| c_int::try_from(fd).ok())
        .find(|&fd| get(fd).is_some_and(&mut look))
}

/// Calls `visit` with each set, once for each of its descriptors.
pub fn for_each(mut visit: impl FnMut(&'static EpollSet)) {
    find(|set| {
        visit(set);
        false
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_is_found_until_it_is_removed() {
        let set: &'static EpollSet = Box::leak(Box::new(EpollSet::default()));
        let fd = 700_123;
        assert!(get(fd).is_none() && get(-1).is_none() && get(c_int::MAX).is_none());
        assert!(replace(fd, Some(set)).is_none());
        assert!(ptr::eq(get(fd).unwrap(), set));
        assert_eq!(find(|found| ptr::eq(found, set)), Some(fd));
        assert!(ptr::eq(replace(fd, None).unwrap(), set));
        assert!(get(fd).is_none() && get(fd + 1).is_none());
    }
}
