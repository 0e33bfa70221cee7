//! What records the requests and replies of a load.

use nm_wire::{RefusalReason, STAMPS};

/// Records the requests and replies of a load, while it runs on the generator's thread.
pub trait LoadRecorder {
    /// Records that a request was sent; called in the order of their numbers.
    fn sent(&mut self, intended_ns: u64, sent_ns: u64);

    /// Records the reply to a request.
    fn answered(&mut self, number: u64, intended_ns: u64, at_ns: u64);

    /// Records that a request is not executed.
    fn refused(&mut self, number: u64, intended_ns: u64, reason: RefusalReason);

    /// Records the timestamps of a reply.
    fn stamped(&mut self, intended_ns: u64, stamps: [u64; STAMPS], at_ns: u64);

    /// Requests that may still have a reply.
    fn unanswered(&self) -> u64;

    /// Called often: it is `now_ns`, and all requests intended before `sent_until_ns` were sent.
    fn advance(&mut self, now_ns: u64, sent_until_ns: u64);
}
