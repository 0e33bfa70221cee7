//! Records a load by seconds of its schedule. A second is passed on as soon as all of its requests
//! have a reply. So memory does not grow with the length of the load.

use std::collections::VecDeque;
use std::sync::mpsc::Sender;

use nm_stats::summary::Sample;
use nm_wire::{RefusalReason, STAMPS};

use crate::recorder::LoadRecorder;

const SECOND_NS: u64 = 1_000_000_000;

/// The requests that were intended for one second, and their replies.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RecordedSecond {
    /// Its number since the start of the load, from 0 on.
    pub second: u32,
    /// Requests that were sent.
    pub sent: u64,
    /// Replies that arrived in this second, whenever their requests were sent.
    pub replies: u64,
    /// Requests that the network refused to execute.
    pub refused: u64,
    /// Why it refused the first one.
    pub first_refusal: Option<RefusalReason>,
    /// Round trips from the intended send to the reply, in the order of the replies; times since
    /// the start of the load.
    pub samples: Vec<Sample>,
    /// How late each request was sent, ns.
    pub lateness_ns: Vec<u64>,
}

impl RecordedSecond {
    /// Requests without a reply, or that were refused.
    pub fn lost(&self) -> u64 {
        self.sent - self.samples.len() as u64
    }

    /// Requests that may still have a reply.
    fn unanswered(&self) -> u64 {
        self.lost() - self.refused
    }
}

/// Records by seconds, and passes on each second in order.
#[derive(Debug)]
pub struct SecondsRecorder {
    start_ns: u64,
    /// Number of seconds of the schedule.
    seconds: u32,
    /// Number of the first request.
    first: u64,
    /// How long a second waits for its last replies, ns.
    patience_ns: u64,
    /// The seconds that were not passed on yet.
    open: VecDeque<RecordedSecond>,
    /// How many were passed on.
    passed: u32,
    /// Memory that is reserved for the samples of a second.
    about: usize,
    unanswered: u64,
    sink: Sender<RecordedSecond>,
}

impl SecondsRecorder {
    /// A load of `seconds` that starts at `start_ns`; `first` is the number of its first request.
    /// Requests without a reply `patience_ns` after the end of their second are lost.
    pub fn new(
        start_ns: u64,
        seconds: u32,
        first: u64,
        patience_ns: u64,
        sink: Sender<RecordedSecond>,
    ) -> SecondsRecorder {
        SecondsRecorder {
            start_ns,
            seconds,
            first,
            patience_ns,
            open: VecDeque::new(),
            passed: 0,
            about: 0,
            unanswered: 0,
            sink,
        }
    }

    /// The second of a time, if it is one of the load and was not passed on.
    fn open_second(&mut self, at_ns: u64) -> Option<&mut RecordedSecond> {
        let second = at_ns.checked_sub(self.start_ns)? / SECOND_NS;
        let second = u32::try_from(second).ok().filter(|second| *second < self.seconds)?;
        let at = second.checked_sub(self.passed)? as usize;
        while self.open.len() <= at {
            self.open.push_back(RecordedSecond {
                second: self.passed + self.open.len() as u32,
                samples: Vec::with_capacity(self.about),
                lateness_ns: Vec::with_capacity(self.about),
                ..RecordedSecond::default()
            });
        }
        self.open.get_mut(at)
    }

    fn pass_on(&mut self) {
        let Some(second) = self.open.pop_front() else { return };
        self.passed += 1;
        self.unanswered -= second.unanswered();
        // Rates change slowly from one second to the next.
        self.about = second.lateness_ns.len() + second.lateness_ns.len() / 8;
        // Without a receiver the run has failed already, and says so where it did.
        let _ = self.sink.send(second);
    }

    /// Passes on all seconds that are left.
    pub fn finish(mut self) {
        if self.seconds > self.passed {
            let last_ns = self.start_ns + (u64::from(self.seconds) * SECOND_NS) - 1;
            self.open_second(last_ns);
        }
        while !self.open.is_empty() {
            self.pass_on();
        }
    }

    /// Passes on the seconds that ended before `now_ns`, as far as the load went.
    pub fn stop(mut self, now_ns: u64) {
        while self.ends_before(now_ns) {
            self.pass_on();
        }
    }

    /// Whether the first second that is open, if there is one, has ended at a time.
    fn ends_before(&self, at_ns: u64) -> bool {
        !self.open.is_empty() && at_ns >= self.end_of_first_ns()
    }

    fn end_of_first_ns(&self) -> u64 {
        self.start_ns + (u64::from(self.passed) + 1) * SECOND_NS
    }
}

impl LoadRecorder for SecondsRecorder {
    fn sent(&mut self, intended_ns: u64, sent_ns: u64) {
        if let Some(second) = self.open_second(intended_ns) {
            second.sent += 1;
            second.lateness_ns.push(sent_ns.saturating_sub(intended_ns));
            self.unanswered += 1;
        }
    }

    fn answered(&mut self, number: u64, intended_ns: u64, at_ns: u64) {
        if number < self.first {
            return;
        }
        if let Some(second) = self.open_second(at_ns) {
            second.replies += 1;
        }
        let start_ns = intended_ns.saturating_sub(self.start_ns);
        if let Some(second) = self.open_second(intended_ns) {
            let latency_ns = at_ns.saturating_sub(intended_ns);
            second.samples.push(Sample { start_ns, latency_ns });
            self.unanswered -= 1;
        }
    }

    fn refused(&mut self, number: u64, intended_ns: u64, reason: RefusalReason) {
        if number < self.first {
            return;
        }
        if let Some(second) = self.open_second(intended_ns) {
            second.refused += 1;
            second.first_refusal.get_or_insert(reason);
            self.unanswered -= 1;
        }
    }

    fn stamped(&mut self, _: u64, _: [u64; STAMPS], _: u64) {}

    fn unanswered(&self) -> u64 {
        self.unanswered
    }

    fn advance(&mut self, now_ns: u64, sent_until_ns: u64) {
        // A second without requests has no entry yet.
        let complete_ns =
            now_ns.min(sent_until_ns).min(self.start_ns + u64::from(self.seconds) * SECOND_NS);
        if complete_ns > self.start_ns {
            self.open_second(complete_ns - 1);
        }
        while self.ends_before(complete_ns) {
            let is_settled = self.open.front().is_some_and(|first| first.unanswered() == 0);
            if !is_settled && now_ns < self.end_of_first_ns() + self.patience_ns {
                return;
            }
            self.pass_on();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    const START_NS: u64 = 5_000_000_000;
    const MS: u64 = 1_000_000;

    fn recorder(seconds: u32) -> (SecondsRecorder, Receiver<RecordedSecond>) {
        let (sink, passed) = channel();
        (SecondsRecorder::new(START_NS, seconds, 10, 2_000 * MS, sink), passed)
    }

    fn at(ms: u64) -> u64 {
        START_NS + ms * MS
    }

    fn numbers(passed: &Receiver<RecordedSecond>) -> Vec<u32> {
        passed.try_iter().map(|second| second.second).collect()
    }

    #[test]
    fn a_second_is_passed_on_when_all_of_its_requests_are_answered() {
        let (mut recorder, passed) = recorder(4);
        recorder.sent(at(100), at(101));
        recorder.sent(at(999), at(1_000));
        recorder.answered(9, at(100), at(101)); // of the warm-up
        recorder.answered(10, at(100), at(103));
        recorder.advance(at(1_200), at(1_500));
        assert_eq!((numbers(&passed), recorder.unanswered()), (vec![], 1));
        // A reply counts in the second in which it arrives, its latency in that of its request.
        recorder.answered(11, at(999), at(1_300));
        recorder.advance(at(1_300), at(1_500));
        let first = passed.try_recv().unwrap();
        let starts: Vec<u64> = first.samples.iter().map(|s| s.start_ns / MS).collect();
        assert_eq!((first.sent, first.replies, first.lost(), starts), (2, 1, 0, vec![100, 999]));
        assert_eq!(first.samples[1].latency_ns, 301 * MS);
        assert_eq!(first.lateness_ns, [MS, MS]);
        recorder.finish();
        let rest: Vec<_> =
            passed.try_iter().map(|second| (second.second, second.replies)).collect();
        assert_eq!(rest, [(1, 1), (2, 0), (3, 0)]);
    }

    #[test]
    fn lost_and_refused_requests_do_not_hold_up_later_seconds_for_ever() {
        let (mut recorder, passed) = recorder(10);
        for ms in [10, 20, 1_010] {
            recorder.sent(at(ms), at(ms));
        }
        recorder.refused(9, at(10), RefusalReason::UnknownPredecessor); // of the warm-up
        recorder.refused(10, at(10), RefusalReason::TooManyPendingBytes);
        recorder.answered(12, at(1_010), at(1_020));
        recorder.advance(at(2_999), at(3_500));
        assert!(numbers(&passed).is_empty());
        recorder.advance(at(3_000), at(3_500));
        let all: Vec<RecordedSecond> = passed.try_iter().collect();
        assert_eq!(all.iter().map(|second| second.second).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!((all[0].lost(), all[0].refused, all[1].lost()), (2, 1, 0));
        assert_eq!(all[0].first_refusal, Some(RefusalReason::TooManyPendingBytes));
        assert_eq!(recorder.unanswered(), 0);
        // The reply that comes after all changes nothing but the number of replies.
        recorder.answered(11, at(20), at(3_100));
        assert_eq!(recorder.unanswered(), 0);
        recorder.stop(at(3_900));
        assert!(numbers(&passed).is_empty());
    }

    #[test]
    fn a_second_whose_requests_were_not_all_sent_is_not_complete() {
        let (mut recorder, passed) = recorder(3);
        recorder.sent(at(100), at(100));
        recorder.answered(10, at(100), at(101));
        // The generator is late: requests of the first second are still to be sent.
        recorder.advance(at(2_500), at(800));
        assert!(numbers(&passed).is_empty());
        recorder.sent(at(800), at(2_600));
        recorder.answered(11, at(800), at(2_601));
        recorder.advance(at(2_700), u64::MAX);
        assert_eq!(numbers(&passed), [0, 1]);
        recorder.stop(at(2_800));
        assert!(numbers(&passed).is_empty());
    }
}
