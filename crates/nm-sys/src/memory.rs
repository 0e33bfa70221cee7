//! Memory for samples, allocated, touched and locked before the first sample is taken.

/// A list with a fixed capacity. Its memory is touched, and locked where the limit allows, when it
/// is created. Pushing never allocates and never causes a page fault.
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
        let locked =
            bytes == 0 || unsafe { rustix::mm::mlock(items.as_mut_ptr().cast(), bytes) }.is_ok();
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

impl<T: Copy + Default> Drop for LockedBuffer<T> {
    fn drop(&mut self) {
        let bytes = std::mem::size_of_val(self.items.as_slice());
        if self.locked && bytes > 0 {
            // SAFETY: the same range that was locked when the buffer was made.
            let _ = unsafe { rustix::mm::munlock(self.items.as_mut_ptr().cast(), bytes) };
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

    #[test]
    fn filling_causes_no_page_fault() {
        let mut buffer = LockedBuffer::<u64>::new(1 << 18);
        let before = crate::counters::ThreadCounters::now().minor_faults;
        for item in 0..buffer.capacity() as u64 {
            buffer.push(item);
        }
        let faults = crate::counters::ThreadCounters::now().minor_faults - before;
        // 512 pages were written; the few faults allowed are those of the test's own code.
        assert!(faults < 16, "{faults} faults");
        assert!(LockedBuffer::<u64>::new(0).is_locked());
    }
}
