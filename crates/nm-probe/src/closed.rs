//! The closed loop: the next request leaves when the answer to the last one is in.
//!
//! Method of sfnt-pingpong: a time stamp, send, receive, a time stamp; a warm-up, then samples
//! until a number or a time is reached, but at least a smaller number; every sample kept.

use nm_model::result::Statistic;
use nm_model::{Failure, FailureKind};
use nm_sys::clock::Clock;
use nm_sys::memory::LockedBuffer;
use nm_transport::greeting::BYTES_MAX as GREETING_BYTES_MAX;
use nm_transport::{Fault, Transport, failure};

use crate::control::Control;
use crate::tag;

/// Samples a ms that no transport of the kernel exceeds; bounds the memory of a run that ends by
/// time. A faster transport ends the run early, with that many samples.
const SAMPLES_PER_MS_MAX: u64 = 1_000;

/// Most samples of one round: 3.2 GB of memory.
const SAMPLES_MAX: u64 = 200_000_000;

/// Shortest silence after which a datagram peer counts as gone, ms.
const SILENCE_MS_MAX: u64 = 5_000;

/// Samples between two estimates shown.
const SHOW_EVERY: u64 = 1_024;

/// What a closed loop is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Bytes of a request; 0 only over datagrams.
    pub request_bytes: usize,
    /// Bytes of a response; 0 only over datagrams.
    pub response_bytes: usize,
    /// Time before the first sample, ms. One exchange at least is made.
    pub warmup_ms: u64,
    /// Fewest samples, if the time is up before. Losses waive it.
    pub samples_min: u64,
    /// Most samples.
    pub samples_max: u64,
    /// Measuring time, ms.
    pub time_ms: u64,
    /// An answer that has not come after this long is lost (datagrams) or a failure (streams), ms.
    pub timeout_ms: u64,
    /// What the estimates on the way are shown as: full or half round trips.
    pub shown: Statistic,
}

/// One sample in ticks of the clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Taken {
    /// Before the send.
    pub start: u64,
    /// From before the send to after the matching receive.
    pub round_trip: u64,
}

/// What a closed loop came to.
#[derive(Debug)]
pub struct Course {
    /// Samples in order of time.
    pub taken: LockedBuffer<Taken>,
    /// Requests without an answer.
    pub lost: u64,
    /// Length of the measurement, ticks.
    pub length: u64,
}

impl Course {
    /// Memory for what `plan` can take.
    ///
    /// # Errors
    /// [`FailureKind::BadRequest`] if that is more than a machine has.
    pub fn new(plan: &Plan) -> Result<Course, Failure> {
        let by_time = plan.time_ms.saturating_mul(SAMPLES_PER_MS_MAX).max(plan.samples_min);
        let capacity = plan.samples_max.min(by_time).max(1);
        if capacity > SAMPLES_MAX {
            let what = format!("{capacity} samples are more than the {SAMPLES_MAX} of one round");
            return Err(Failure::new(FailureKind::BadRequest, what)
                .hint("lower max_iterations or max_ms, and run more rounds"));
        }
        Ok(Course { taken: LockedBuffer::new(capacity as usize), lost: 0, length: 0 })
    }
}

/// A client with one request on its way.
pub struct Client<'a, T> {
    transport: &'a mut T,
    clock: Clock,
    plan: Plan,
    control: &'a Control,
    request: Vec<u8>,
    response: Vec<u8>,
    /// Part of `response` that a receive may fill.
    window_bytes: usize,
    tag_bytes: usize,
    /// Requests sent, which is also the next one's number.
    sequence: u64,
    timeout: u64,
    silence_max: u64,
    last_answer: u64,
}

impl<'a, T: Transport> Client<'a, T> {
    /// A client with its messages made.
    pub fn new(
        transport: &'a mut T,
        clock: Clock,
        plan: Plan,
        control: &'a Control,
    ) -> Client<'a, T> {
        let Plan { request_bytes, response_bytes, timeout_ms, .. } = plan;
        // A datagram is received with room to spare, so that one of a wrong length is seen as such.
        let spare = if T::DATAGRAM { response_bytes.max(GREETING_BYTES_MAX) } else { 0 };
        let window_bytes = response_bytes + spare;
        let silence_ms = timeout_ms.saturating_mul(5).max(SILENCE_MS_MAX);
        Client {
            transport,
            clock,
            plan,
            control,
            request: (0..request_bytes).map(|idx| idx as u8).collect(),
            response: vec![0; window_bytes],
            window_bytes,
            tag_bytes: if T::DATAGRAM { tag::bytes(request_bytes, response_bytes) } else { 0 },
            sequence: 0,
            timeout: clock.ticks(timeout_ms.saturating_mul(1_000_000)),
            silence_max: clock.ticks(silence_ms.saturating_mul(1_000_000)),
            last_answer: clock.now(),
        }
    }

    /// Exchanges messages for the warm-up time, and at least once.
    ///
    /// # Errors
    /// As [`Client::measure`].
    pub fn warm_up(&mut self) -> Result<(), Failure> {
        let begin = self.clock.now();
        let length = self.clock.ticks(self.plan.warmup_ms.saturating_mul(1_000_000));
        loop {
            self.check_cancel()?;
            let answered = self.exchange()?.is_some();
            if answered && self.clock.now().wrapping_sub(begin) >= length {
                return Ok(());
            }
        }
    }

    /// Takes the samples.
    ///
    /// # Errors
    /// [`FailureKind::Peer`] if the peer has gone or answers no more, [`FailureKind::Cancelled`].
    pub fn measure(&mut self, course: &mut Course) -> Result<(), Failure> {
        let limit = self.clock.ticks(self.plan.time_ms.saturating_mul(1_000_000));
        let samples_min = self.plan.samples_min;
        let samples_max = self.plan.samples_max.min(course.taken.capacity() as u64);
        let mut median = Median::default();
        let mut count = 0;
        let begin = self.clock.now();
        while count < samples_max
            && (course.length < limit || (count < samples_min && course.lost == 0))
        {
            self.check_cancel()?;
            match self.exchange()? {
                Some(taken) => {
                    course.taken.push(taken);
                    course.length = (taken.start + taken.round_trip).wrapping_sub(begin);
                    count += 1;
                    median.add(taken.round_trip);
                    if count.is_multiple_of(SHOW_EVERY) {
                        self.show(&median);
                    }
                }
                None => {
                    course.lost += 1;
                    course.length = self.clock.now().wrapping_sub(begin);
                }
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn check_cancel(&self) -> Result<(), Failure> {
        if self.control.cancelled() { Err(failure::cancelled()) } else { Ok(()) }
    }

    /// Sends a request and waits for its answer; none if it was lost.
    #[inline(always)]
    fn exchange(&mut self) -> Result<Option<Taken>, Failure> {
        if T::DATAGRAM {
            tag::write(&mut self.request, self.tag_bytes, self.sequence);
        }
        self.sequence += 1;
        let start = self.clock.now();
        while let Err(fault) = self.transport.send(&self.request) {
            if self.given_up(fault, start)? {
                return Ok(None);
            }
        }
        loop {
            match self.transport.receive(&mut self.response[..self.window_bytes]) {
                Ok(length) => {
                    let end = self.clock.now();
                    if !T::DATAGRAM || self.answers_the_last_request(length) {
                        self.last_answer = end;
                        // Kept from wrapping by a clock that never runs backwards.
                        return Ok(Some(Taken { start, round_trip: end.saturating_sub(start) }));
                    }
                    if self.given_up(Fault::TimedOut, start)? {
                        return Ok(None);
                    }
                }
                Err(fault) => {
                    if self.given_up(fault, start)? {
                        return Ok(None);
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn answers_the_last_request(&self, length: usize) -> bool {
        length == self.plan.response_bytes
            && tag::read(&self.response, self.tag_bytes, self.sequence) == Some(self.sequence - 1)
    }

    /// What to do when nothing came: wait on (false), count the request as lost (true), or fail.
    #[cold]
    fn given_up(&mut self, fault: Fault, start: u64) -> Result<bool, Failure> {
        if self.control.cancelled() {
            return Err(failure::cancelled());
        }
        if fault != Fault::TimedOut {
            return Err(failure::of_fault(fault, "waiting for an answer"));
        }
        let now = self.clock.now();
        if now.saturating_sub(start) < self.timeout {
            return Ok(false);
        }
        let ms = self.plan.timeout_ms;
        if !T::DATAGRAM {
            let what = format!("no answer in {ms} ms over a connection that is still open");
            return Err(Failure::new(FailureKind::Peer, what)
                .hint("check that the peer's machine is alive, or raise timeout_ms"));
        }
        if now.saturating_sub(self.last_answer) > self.silence_max {
            let silence_s = self.clock.ns(self.silence_max) as f64 / 1e9;
            let what = format!("no answer at all for {silence_s:.0} s");
            return Err(Failure::new(FailureKind::Peer, what)
                .hint("check that the peer runs and that datagrams of this size get through"));
        }
        if self.tag_bytes == 0 {
            self.let_stragglers_pass()?;
        }
        Ok(true)
    }

    /// Without a tag a late answer looks like the next one's, so all that comes for another
    /// time-out is thrown away.
    #[cold]
    fn let_stragglers_pass(&mut self) -> Result<(), Failure> {
        let begin = self.clock.now();
        while self.clock.now().saturating_sub(begin) < self.timeout && !self.control.cancelled() {
            match self.transport.receive(&mut self.response[..self.window_bytes]) {
                Ok(_) | Err(Fault::TimedOut) => {}
                Err(fault) => return Err(failure::of_fault(fault, "waiting for late answers")),
            }
        }
        Ok(())
    }

    #[cold]
    fn show(&self, median: &Median) {
        let ns = self.clock.ns(median.0) as f64;
        let value = if self.plan.shown == Statistic::HalfRoundTrip { ns / 2.0 } else { ns };
        self.control.show(self.plan.shown, value);
    }
}

/// A running estimate of the median that costs a comparison a sample: it moves towards each one by
/// a 256th of itself (the "frugal" method of Ma, Muthukrishnan and Sandler, 2013). For showing
/// only.
#[derive(Debug, Default)]
pub(crate) struct Median(pub(crate) u64);

impl Median {
    #[inline(always)]
    pub(crate) fn add(&mut self, value: u64) {
        let step = self.0 / 256 + 1;
        if self.0 == 0 {
            self.0 = value;
        } else if value > self.0 {
            self.0 += step;
        } else {
            self.0 -= step.min(self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shown_median_comes_near() {
        let mut median = Median::default();
        for round in 0..20_000u64 {
            median.add(if round % 10 == 0 { 1_000_000 } else { 9_000 + round % 7 * 300 });
        }
        assert!((8_500..11_500).contains(&median.0), "{}", median.0);
    }

    #[test]
    fn memory_follows_the_plan_and_has_a_limit() {
        let plan = Plan {
            request_bytes: 1,
            response_bytes: 1,
            warmup_ms: 0,
            samples_min: 100,
            samples_max: 1_000_000,
            time_ms: 5,
            timeout_ms: 100,
            shown: Statistic::RoundTrip,
        };
        assert_eq!(Course::new(&plan).unwrap().taken.capacity(), 5_000);
        let huge = Plan { samples_max: u64::MAX, time_ms: u64::MAX, ..plan };
        assert_eq!(Course::new(&huge).unwrap_err().kind, FailureKind::BadRequest);
    }
}
