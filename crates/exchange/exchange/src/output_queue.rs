//! Output on its way to a process that may not read it. A thread writes it, so its source never
//! waits; what finds no room is dropped, and the reader learns how much.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

/// Items that wait until a thread has written them.
#[derive(Debug)]
pub struct OutputQueue<T> {
    items: Sender<(T, usize)>,
    /// Weight of the items that wait.
    waiting: Arc<AtomicUsize>,
    waiting_max: usize,
    dropped: Arc<AtomicU64>,
    /// Disconnected when the thread has ended.
    thread: Receiver<()>,
}

impl<T: Send + 'static> OutputQueue<T> {
    /// Starts the thread; `write` may block. Items that wait weigh `waiting_max` at most. When
    /// there is room again, `dropped_item` makes the item that says how many were dropped.
    ///
    /// # Errors
    /// If there is no thread.
    pub fn start(
        waiting_max: usize,
        mut write: impl FnMut(&T) + Send + 'static,
        dropped_item: impl Fn(u64) -> T + Send + 'static,
    ) -> io::Result<OutputQueue<T>> {
        let (items, received) = channel::<(T, usize)>();
        let (ended, thread) = channel::<()>();
        let (waiting, dropped) = (Arc::<AtomicUsize>::default(), Arc::<AtomicU64>::default());
        let (weight_waiting, count) = (waiting.clone(), dropped.clone());
        let run = move || {
            let _ended = ended;
            for (item, weight) in received {
                weight_waiting.fetch_sub(weight, Ordering::Relaxed);
                write(&item);
                let n_dropped = count.swap(0, Ordering::Relaxed);
                if n_dropped > 0 {
                    write(&dropped_item(n_dropped));
                }
            }
        };
        thread::Builder::new().name("output".into()).spawn(run)?;
        Ok(OutputQueue { items, waiting, waiting_max, dropped, thread })
    }

    /// Adds an item, or counts it if there is no room. Does not block.
    pub fn push(&self, item: T, weight: usize) {
        let waiting = self.waiting.load(Ordering::Relaxed);
        if waiting.saturating_add(weight) > self.waiting_max {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        } else {
            self.push_always(item, weight);
        }
    }

    /// Adds an item also if there is no room. Its source must make few of them.
    pub fn push_always(&self, item: T, weight: usize) {
        self.waiting.fetch_add(weight, Ordering::Relaxed);
        // The thread ends after this value only, unless `write` panics.
        let _ = self.items.send((item, weight));
    }

    /// Waits until all items are written, but no longer than `limit`; whether they are.
    #[expect(clippy::disallowed_methods, reason = "with a limit, when its source has ended")]
    pub fn end(self, limit: Duration) -> bool {
        drop(self.items);
        self.thread.recv_timeout(limit) == Err(RecvTimeoutError::Disconnected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::sync_channel;

    #[test]
    fn dropped_items_are_counted_and_others_are_kept_in_order() {
        let (resume, stopped) = sync_channel::<()>(0);
        let (written, read) = channel();
        let write = move |item: &u64| {
            let _ = stopped.recv();
            written.send(*item).unwrap();
        };
        let queue = OutputQueue::start(100, write, |n_dropped| 1_000_000 + n_dropped).unwrap();
        queue.push(0, 1);
        // The thread has taken the first one.
        resume.send(()).unwrap();
        assert_eq!(read.recv(), Ok(0));
        for number in 1..=12 {
            queue.push(number, 10);
        }
        queue.push_always(13, 10);
        queue.push(14, 1);
        drop(resume);
        assert!(queue.end(Duration::from_secs(60)), "the reader reads again");
        let all: Vec<u64> = read.iter().collect();
        // The thread may have taken one more from the queue before the others came.
        let n_kept = all.iter().filter(|item| (1..=12).contains(*item)).count() as u64;
        assert!([10, 11].contains(&n_kept), "{all:?}");
        let expected: Vec<u64> = (1..=n_kept).chain([13]).collect();
        let kept: Vec<u64> = all.iter().copied().filter(|item| *item < 1_000_000).collect();
        assert_eq!(kept, expected);
        let counted: u64 = all.iter().filter_map(|item| item.checked_sub(1_000_000)).sum();
        assert_eq!(counted, 13 - n_kept);
    }
}
