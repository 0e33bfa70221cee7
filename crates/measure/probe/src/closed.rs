//! The closed loop: the next request is sent when the response to the last one has arrived.
//!
//! Method of sfnt-pingpong: timestamp, send, receive, timestamp. After a warm-up come samples until
//! a number or a time is reached, but at least a smaller number. Every sample is kept.

use std::time::Duration;

use nm_model::limits::SAMPLES_MAX;
use nm_model::result::Statistic;
use nm_sys::clock::Clock;
use nm_sys::memory::LockedBuffer;
use nm_transport::{Transport, TransportError, handshake};

use crate::control::Control;
use crate::error::ProbeError;
use crate::median::RunningMedian;
use crate::sequence;

/// Samples per ms that no kernel transport exceeds; limits the memory of a run that ends by time. A
/// faster transport ends the run early, with that many samples.
const SAMPLES_PER_MS_MAX: u64 = 1_000;

/// Shortest silence after which a datagram peer counts as gone, ms.
const SILENCE_MS_MAX: u64 = 5_000;

/// Samples between two updates of the progress.
const SAMPLES_PER_UPDATE: u64 = 1_024;

/// What the client does between a response and the next request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Pause {
    /// It sends at once.
    #[default]
    None,
    /// It sleeps for so long, µs.
    Sleep(u64),
    /// It spins for so long, µs.
    Spin(u64),
}

/// Parameters of a closed loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClosedLoopPlan {
    /// Bytes of a request; 0 only over datagrams.
    pub request_bytes: usize,
    /// Bytes of a response; 0 only over datagrams.
    pub response_bytes: usize,
    /// Time before the first sample, ms. At least one exchange is made.
    pub warmup_ms: u64,
    /// Fewest samples, even if the time is up. Ignored once a response was lost.
    pub samples_min: u64,
    /// Most samples.
    pub samples_max: u64,
    /// Measuring time, ms.
    pub time_ms: u64,
    /// A response later than this counts as lost (datagrams) or as a failure (streams), ms.
    pub timeout_ms: u64,
    /// Before each request.
    pub pause: Pause,
    /// What the samples are reported as: full or half round trips.
    pub statistic: Statistic,
}

/// One sample, in ticks of the clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RoundTrip {
    /// Before the send.
    pub start: u64,
    /// From before the send to after the matching receive.
    pub duration: u64,
}

/// The samples of a closed loop.
#[derive(Debug)]
pub struct ClosedLoopSamples {
    /// Samples in order of time.
    pub round_trips: LockedBuffer<RoundTrip>,
    /// Requests without a response.
    pub lost: u64,
    /// Duration of the measurement, ticks.
    pub duration: u64,
}

impl ClosedLoopSamples {
    /// Memory for the samples that `plan` can take.
    ///
    /// # Errors
    /// [`ProbeError::TooManySamples`] if that is more than a machine has.
    pub fn new(plan: &ClosedLoopPlan) -> Result<ClosedLoopSamples, ProbeError> {
        let by_time = plan.time_ms.saturating_mul(SAMPLES_PER_MS_MAX).max(plan.samples_min);
        let capacity = plan.samples_max.min(by_time).max(1);
        if capacity > SAMPLES_MAX {
            return Err(ProbeError::TooManySamples { samples: capacity, samples_max: SAMPLES_MAX });
        }
        let round_trips = LockedBuffer::new(capacity as usize);
        Ok(ClosedLoopSamples { round_trips, lost: 0, duration: 0 })
    }
}

/// A client with one request in flight.
pub struct ClosedLoopClient<'a, T> {
    transport: &'a mut T,
    clock: Clock,
    plan: ClosedLoopPlan,
    control: &'a Control,
    request: Vec<u8>,
    response: Vec<u8>,
    /// Bytes of `response` that a receive may fill.
    receive_bytes: usize,
    tag_bytes: usize,
    /// Requests sent, which is also the next one's number.
    sequence: u64,
    timeout: u64,
    silence_max: u64,
    last_response: u64,
}

impl<'a, T: Transport> ClosedLoopClient<'a, T> {
    /// A client with its messages prepared.
    pub fn new(
        transport: &'a mut T,
        clock: Clock,
        plan: ClosedLoopPlan,
        control: &'a Control,
    ) -> ClosedLoopClient<'a, T> {
        let ClosedLoopPlan { request_bytes, response_bytes, timeout_ms, .. } = plan;
        // A datagram is received with spare room, so that one of a wrong length is detected.
        let spare = if T::DATAGRAM { response_bytes.max(handshake::BYTES_MAX) } else { 0 };
        let receive_bytes = response_bytes + spare;
        let silence_ms = timeout_ms.saturating_mul(5).max(SILENCE_MS_MAX);
        ClosedLoopClient {
            transport,
            clock,
            plan,
            control,
            request: (0..request_bytes).map(|idx| idx as u8).collect(),
            response: vec![0; receive_bytes],
            receive_bytes,
            tag_bytes: match T::DATAGRAM {
                true => sequence::tag_bytes(request_bytes, response_bytes),
                false => 0,
            },
            sequence: 0,
            timeout: clock.ticks(timeout_ms.saturating_mul(1_000_000)),
            silence_max: clock.ticks(silence_ms.saturating_mul(1_000_000)),
            last_response: clock.now(),
        }
    }

    /// Exchanges messages for the warm-up time, and at least once.
    ///
    /// # Errors
    /// As [`ClosedLoopClient::measure`].
    pub fn warm_up(&mut self) -> Result<(), ProbeError> {
        let begin = self.clock.now();
        let duration = self.clock.ticks(self.plan.warmup_ms.saturating_mul(1_000_000));
        loop {
            self.check_cancel()?;
            self.pause();
            let responded = self.exchange()?.is_some();
            if responded && self.clock.now().wrapping_sub(begin) >= duration {
                return Ok(());
            }
        }
    }

    /// Takes the samples.
    ///
    /// # Errors
    /// If the peer has gone or does not respond, and [`ProbeError::Cancelled`].
    pub fn measure(&mut self, samples: &mut ClosedLoopSamples) -> Result<(), ProbeError> {
        let limit = self.clock.ticks(self.plan.time_ms.saturating_mul(1_000_000));
        let samples_min = self.plan.samples_min;
        let samples_max = self.plan.samples_max.min(samples.round_trips.capacity() as u64);
        let mut median = RunningMedian::default();
        let mut count = 0;
        let begin = self.clock.now();
        while count < samples_max
            && (samples.duration < limit || (count < samples_min && samples.lost == 0))
        {
            self.check_cancel()?;
            self.pause();
            match self.exchange()? {
                Some(sample) => {
                    samples.round_trips.push(sample);
                    samples.duration = (sample.start + sample.duration).wrapping_sub(begin);
                    count += 1;
                    median.add(sample.duration);
                    if count.is_multiple_of(SAMPLES_PER_UPDATE) {
                        self.set_progress(&median);
                    }
                }
                None => {
                    samples.lost += 1;
                    samples.duration = self.clock.now().wrapping_sub(begin);
                }
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn pause(&self) {
        match self.plan.pause {
            Pause::None => {}
            Pause::Sleep(us) => std::thread::sleep(Duration::from_micros(us)),
            Pause::Spin(us) => {
                let begin = self.clock.now();
                let ticks = self.clock.ticks(us.saturating_mul(1_000));
                while self.clock.now().saturating_sub(begin) < ticks {
                    std::hint::spin_loop();
                }
            }
        }
    }

    #[inline(always)]
    fn check_cancel(&self) -> Result<(), ProbeError> {
        if self.control.cancelled() { Err(ProbeError::Cancelled) } else { Ok(()) }
    }

    /// Sends a request and waits for its response; none if it was lost.
    #[inline(always)]
    fn exchange(&mut self) -> Result<Option<RoundTrip>, ProbeError> {
        if T::DATAGRAM {
            sequence::write_tag(&mut self.request, self.tag_bytes, self.sequence);
        }
        self.sequence += 1;
        let start = self.clock.now();
        while let Err(error) = self.transport.send(&self.request) {
            if self.is_lost(error, start)? {
                return Ok(None);
            }
        }
        loop {
            match self.transport.receive(&mut self.response[..self.receive_bytes]) {
                Ok(length) => {
                    let end = self.clock.now();
                    if !T::DATAGRAM || self.is_last_response(length) {
                        self.last_response = end;
                        // Saturating, because the clock of another CPU may be behind.
                        return Ok(Some(RoundTrip { start, duration: end.saturating_sub(start) }));
                    }
                    if self.is_lost(TransportError::TimedOut, start)? {
                        return Ok(None);
                    }
                }
                Err(error) => {
                    if self.is_lost(error, start)? {
                        return Ok(None);
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn is_last_response(&self, length: usize) -> bool {
        length == self.plan.response_bytes
            && sequence::read_tag(&self.response, self.tag_bytes, self.sequence)
                == Some(self.sequence - 1)
    }

    /// What to do after an error: continue to wait (false), count the request as lost (true), or
    /// fail.
    #[cold]
    fn is_lost(&mut self, error: TransportError, start: u64) -> Result<bool, ProbeError> {
        if self.control.cancelled() {
            return Err(ProbeError::Cancelled);
        }
        if error != TransportError::TimedOut {
            return Err(ProbeError::transport("waiting for a response")(error));
        }
        let now = self.clock.now();
        if now.saturating_sub(start) < self.timeout {
            return Ok(false);
        }
        if !T::DATAGRAM {
            return Err(ProbeError::ResponseTimeout { timeout_ms: self.plan.timeout_ms });
        }
        if now.saturating_sub(self.last_response) > self.silence_max {
            let silence_s = self.clock.ns(self.silence_max) as f64 / 1e9;
            return Err(ProbeError::Silence { silence_s });
        }
        if self.tag_bytes == 0 {
            self.discard_late_responses()?;
        }
        Ok(true)
    }

    /// Without a tag a late response looks like the next one, so everything that arrives during
    /// another timeout is discarded.
    #[cold]
    fn discard_late_responses(&mut self) -> Result<(), ProbeError> {
        let begin = self.clock.now();
        while self.clock.now().saturating_sub(begin) < self.timeout && !self.control.cancelled() {
            match self.transport.receive(&mut self.response[..self.receive_bytes]) {
                Ok(_) | Err(TransportError::TimedOut) => {}
                Err(error) => {
                    return Err(ProbeError::transport("waiting for late responses")(error));
                }
            }
        }
        Ok(())
    }

    #[cold]
    fn set_progress(&self, median: &RunningMedian) {
        let ns = self.clock.ns(median.value()) as f64;
        let statistic = self.plan.statistic;
        let value = if statistic == Statistic::HalfRoundTrip { ns / 2.0 } else { ns };
        self.control.set_progress(statistic, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nm_model::{Failure, FailureKind};

    #[test]
    fn memory_follows_the_plan_and_has_a_limit() {
        let plan = ClosedLoopPlan {
            request_bytes: 1,
            response_bytes: 1,
            warmup_ms: 0,
            samples_min: 100,
            samples_max: 1_000_000,
            time_ms: 5,
            timeout_ms: 100,
            pause: Pause::None,
            statistic: Statistic::RoundTrip,
        };
        assert_eq!(ClosedLoopSamples::new(&plan).unwrap().round_trips.capacity(), 5_000);
        let huge = ClosedLoopPlan { samples_max: u64::MAX, time_ms: u64::MAX, ..plan };
        let failure = Failure::from(ClosedLoopSamples::new(&huge).unwrap_err());
        assert_eq!(failure.kind, FailureKind::BadRequest);
    }
}
