//! Which streams of requests wait to be sent again over a link, and how much they may send: of a
//! gateway, and of clients.
//!
//! As TCP after a loss: a little at first, and for each reply more than it takes away. So a resend
//! of any size adapts to what the way there and back carries. However short a time the links live,
//! some replies come back in it.

use std::collections::VecDeque;

/// What may be sent at once when a link or a leader is new, and after each pause without a reply.
pub const BURST_BYTES: usize = 16 << 10;

/// Most that may be sent at once.
const CREDIT_BYTES_MAX: usize = 1 << 20;

/// Streams that wait, in order, and what they may send.
#[derive(Debug)]
pub struct ResendQueue<K> {
    waiting: VecDeque<K>,
    credit_bytes: usize,
}

impl<K> Default for ResendQueue<K> {
    fn default() -> ResendQueue<K> {
        ResendQueue { waiting: VecDeque::new(), credit_bytes: CREDIT_BYTES_MAX }
    }
}

impl<K> ResendQueue<K> {
    /// Adds a stream at the end.
    pub fn push(&mut self, stream: K) {
        self.waiting.push_back(stream);
    }

    /// The next stream, if it may send.
    pub fn pop(&mut self) -> Option<K> {
        if self.may_send() { self.waiting.pop_front() } else { None }
    }

    /// Puts back the stream that was popped last.
    pub fn push_front(&mut self, stream: K) {
        self.waiting.push_front(stream);
    }

    /// Drops the streams for which a condition does not hold.
    pub fn retain(&mut self, keeps: impl Fn(&K) -> bool) {
        self.waiting.retain(keeps);
    }

    /// Whether more may be sent.
    pub fn may_send(&self) -> bool {
        self.credit_bytes > 0
    }

    /// Bytes were sent; the last frame may exceed what was left.
    pub fn sent(&mut self, bytes: usize) {
        self.credit_bytes = self.credit_bytes.saturating_sub(bytes);
    }

    /// A request of this size was answered.
    pub fn answered(&mut self, bytes: usize) {
        self.credit_bytes = (self.credit_bytes + 2 * bytes).min(CREDIT_BYTES_MAX);
    }

    /// What the way carries is not known any more.
    pub fn restart(&mut self) {
        self.credit_bytes = BURST_BYTES;
    }

    /// Time has passed.
    pub fn tick(&mut self) {
        self.credit_bytes = self.credit_bytes.max(BURST_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reply_makes_room_for_two_requests() {
        let mut queue = ResendQueue::default();
        (0..1000).for_each(|stream| queue.push(stream));
        queue.restart();
        let mut sent_at_once = vec![];
        let (mut due, mut rounds) = (0, 0);
        while due < 1000 {
            let before = due;
            while let Some(stream) = queue.pop() {
                assert_eq!(stream, due);
                due += 1;
                queue.sent(1 << 10);
            }
            sent_at_once.push(due - before);
            (before..due).for_each(|_| queue.answered(1 << 10));
            rounds += 1;
        }
        assert_eq!(sent_at_once[..4], [16, 32, 64, 128]);
        assert_eq!(rounds, 6);
        queue.restart();
        queue.push(7);
        queue.sent(1 << 20);
        assert_eq!((queue.pop(), queue.may_send()), (None, false));
        queue.tick();
        assert_eq!(queue.pop(), Some(7));
        queue.push_front(8);
        queue.retain(|stream| *stream != 8);
        assert_eq!(queue.pop(), None);
    }
}
