//! How long the feed takes. The time runs from the receipt of a request at its gateway until the
//! sockets of both lines have the messages that follow from it.

use nm_stats::histogram::{self, Histogram};

/// Longest latency that is believed, ns: what is longer was timed by the clock of another host.
const LONGEST_NS: u64 = 60_000_000_000;

/// The latencies of a publisher.
#[derive(Debug)]
pub struct EntryLatency {
    histogram: Histogram,
    /// When the requests were received whose messages are not sent yet, ns.
    waiting: Vec<u64>,
    /// Requests without a timestamp of this host.
    untimed: u64,
}

impl EntryLatency {
    /// No request yet.
    pub fn new() -> EntryLatency {
        EntryLatency { histogram: histogram::empty(), waiting: vec![], untimed: 0 }
    }

    /// Messages follow from a request that was received at a time; 0 if that is not known.
    pub fn follow(&mut self, received_ns: u64) {
        self.waiting.push(received_ns);
    }

    /// All messages were sent.
    pub fn sent(&mut self, now_ns: u64) {
        for received_ns in self.waiting.drain(..) {
            match now_ns.checked_sub(received_ns).filter(|it| received_ns > 0 && *it < LONGEST_NS) {
                Some(latency_ns) => self.histogram.saturating_record(latency_ns),
                None => self.untimed += 1,
            }
        }
    }

    /// The figures as a line; none if no request was timed.
    pub fn line(&self) -> Option<String> {
        let at = |percentile| self.histogram.value_at_percentile(percentile) as f64 / 1e3;
        let (count, untimed) = (self.histogram.len(), self.untimed);
        (count > 0).then(|| {
            format!(
                "order entry to ITCH out: {count} requests, p50 {:.1} us, p99 {:.1} us, max {:.1} \
                 us; {untimed} without a timestamp of this host",
                at(50.0),
                at(99.0),
                self.histogram.max() as f64 / 1e3
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_lasts_from_the_receipt_until_the_messages_are_sent() {
        let mut latency = EntryLatency::new();
        assert_eq!(latency.line(), None);
        for received_ns in 1..=99 {
            latency.follow(received_ns * 1_000);
        }
        latency.sent(100_000);
        // Those without a time, and of a clock that is ahead, or is another one.
        [0, 300_000, 100].into_iter().for_each(|received_ns| latency.follow(received_ns));
        latency.sent(200_000);
        latency.follow(5);
        latency.sent(LONGEST_NS + 5);
        let expected = "order entry to ITCH out: 100 requests, p50 50.0 us, p99 99.0 us, max 199.9 \
                        us; 3 without a timestamp of this host";
        assert_eq!(latency.line().as_deref(), Some(expected));
    }
}
