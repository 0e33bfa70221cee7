//! Memory for samples, allocated, touched and locked before the first sample is taken.

use std::ffi::c_void;

use rustix::mm::{self, Advice};

/// A list with a fixed capacity. Its memory is touched, and locked where the limit allows, when it
/// is created. Pushing never allocates and causes no page fault, even if another thread of the
/// process forks, which makes other private memory copy-on-write: a forked process does not have
/// the buffer, and must not read it.
#[derive(Debug)]
pub struct LockedBuffer<T: Copy + Default> {
    /// Always `capacity` long, so that its memory is in use from the start.
    items: Vec<T>,
    length: usize,
    locked: bool,
}

impl<T: Copy + Default> LockedBuffer<T> {
    /// A buffer for `capacity` items.
    pub fn new(capacity: usize) -> LockedBuffer<T> {
        let mut items = Vec::with_capacity(capacity);
        // Each item is written, so that each page is resident even if locking fails.
        items.extend((0..capacity).map(|_| std::hint::black_box(T::default())));
        let bytes = std::mem::size_of_val(items.as_slice());
        // SAFETY: the range belongs to `items`, which never grows and is unlocked before it is
        // freed; locking changes no content.
        let locked = bytes == 0 || unsafe { mm::mlock(items.as_mut_ptr().cast(), bytes) }.is_ok();
        advise(&mut items, Advice::LinuxDontFork);
        LockedBuffer { items, length: 0, locked }
    }

    /// Whether the memory is locked. If not, the kernel may swap pages out.
    pub fn is_locked(&self) -> bool {
        self.locked
    }

    /// Number of items that fit.
    pub fn capacity(&self) -> usize {
        self.items.len()
    }

    /// Number of items in it.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it has no items.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Adds an item. Returns false, and drops the item, if the buffer is full.
    #[inline]
    pub fn push(&mut self, item: T) -> bool {
        let Some(slot) = self.items.get_mut(self.length) else { return false };
        *slot = item;
        self.length += 1;
        true
    }

    /// Removes all items; the memory stays allocated.
    pub fn clear(&mut self) {
        self.length = 0;
    }

    /// The items.
    pub fn as_slice(&self) -> &[T] {
        &self.items[..self.length]
    }

    /// The items, mutable.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        &mut self.items[..self.length]
    }
}

/// Gives the kernel advice about the pages that lie in `items` as a whole; the others may hold
/// something else as well.
fn advise<T>(items: &mut [T], advice: Advice) {
    let page_bytes = rustix::param::page_size();
    let start = items.as_mut_ptr();
    let before = start.addr().next_multiple_of(page_bytes) - start.addr();
    let bytes = size_of_val(items).saturating_sub(before) / page_bytes * page_bytes;
    if bytes > 0 {
        let first: *mut c_void = start.cast::<u8>().wrapping_add(before).cast();
        // SAFETY: the range is a part of `items`; the advice that is given here changes nothing for
        // this process. Where it fails, a fork makes the pages copy-on-write as all others.
        let _ = unsafe { mm::madvise(first, bytes, advice) };
    }
}

impl<T: Copy + Default> Drop for LockedBuffer<T> {
    fn drop(&mut self) {
        // What is allocated there next must be in forked processes again.
        advise(&mut self.items, Advice::LinuxDoFork);
        let bytes = std::mem::size_of_val(self.items.as_slice());
        if self.locked && bytes > 0 {
            // SAFETY: the same range that was locked when the buffer was made.
            let _ = unsafe { mm::munlock(self.items.as_mut_ptr().cast(), bytes) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_buffer_rejects_items_and_never_moves() {
        let mut buffer = LockedBuffer::<u64>::new(3);
        let start = buffer.items.as_ptr();
        assert!((1..=3).all(|item| buffer.push(item)));
        assert!(!buffer.push(4));
        assert_eq!(buffer.as_slice(), [1, 2, 3]);
        assert_eq!((buffer.items.as_ptr(), buffer.capacity()), (start, 3));
        buffer.clear();
        assert!(buffer.is_empty() && buffer.push(5));
    }

    /// Page faults of this thread while it fills a buffer of 512 pages.
    fn faults_of_filling(buffer: &mut LockedBuffer<u64>) -> u64 {
        let before = crate::counters::ThreadCounters::now().minor_faults;
        for item in 0..buffer.capacity() as u64 {
            buffer.push(item);
        }
        crate::counters::ThreadCounters::now().minor_faults - before
    }

    /// The few faults allowed are those of the test's own code, and of the first and the last page.
    const FAULTS_MAX: u64 = 16;

    #[test]
    fn filling_causes_no_page_fault() {
        // The kernel may move pages at any time, so one attempt without faults is enough. Memory of
        // an earlier attempt is not used again: it would be resident without anything being done.
        let mut kept = vec![];
        let attempts = (0..5).map(|_| {
            kept.push(LockedBuffer::<u64>::new(1 << 18));
            faults_of_filling(kept.last_mut().expect("it was pushed"))
        });
        let faults: Vec<u64> = attempts.collect();
        assert!(faults.iter().any(|faults| *faults < FAULTS_MAX), "{faults:?}");
        assert!(LockedBuffer::<u64>::new(0).is_locked());
    }

    #[test]
    fn filling_causes_no_page_fault_although_another_thread_forked() {
        let fork = || {
            let mut command = std::process::Command::new("/bin/true");
            // It has the child made by fork(2) instead of vfork(2).
            crate::process::own_session(&mut command);
            assert!(command.status().unwrap().success());
        };
        let mut kept = vec![];
        let attempts = (0..5).map(|_| {
            kept.push(LockedBuffer::<u64>::new(1 << 18));
            std::thread::scope(|scope| scope.spawn(fork).join().unwrap());
            faults_of_filling(kept.last_mut().expect("it was pushed"))
        });
        let faults: Vec<u64> = attempts.collect();
        assert!(faults.iter().any(|faults| *faults < FAULTS_MAX), "{faults:?}");
    }

    #[test]
    fn forked_processes_lack_the_buffer_until_it_is_dropped() {
        let is_kept_from_children = |address: usize| {
            let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
            let mut is_inside = false;
            maps.lines().any(|line| {
                let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
                let number = |text| usize::from_str_radix(text, 16).ok();
                if let Some((Some(start), Some(end))) = range.map(|(a, b)| (number(a), number(b))) {
                    is_inside = (start..end).contains(&address);
                }
                // "Do not copy area on fork".
                is_inside && line.starts_with("VmFlags:") && line.contains(" dc")
            })
        };
        // So small that the allocator keeps its memory.
        let buffer = LockedBuffer::<u64>::new(1 << 13);
        let behind_it = std::hint::black_box(vec![1u8; 64]);
        let middle = buffer.items[1 << 12..].as_ptr().addr();
        assert!(is_kept_from_children(middle));
        drop(buffer);
        assert!(!is_kept_from_children(middle));
        drop(behind_it);
    }
}
