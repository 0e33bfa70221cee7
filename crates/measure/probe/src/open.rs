//! The open loop: requests are sent on an absolute schedule, whether or not responses arrive.
//!
//! Request `i` is due at `start + i / rate`. Latency counts from that moment. So whatever delays a
//! request, a stalled server or a stalled client, is in the latency of every request that was due
//! meanwhile. There is no coordinated omission. The service time, from the actual send, is kept
//! beside it.
//!
//! One thread does both directions and never blocks in a send or a receive. It sends what is due
//! and receives what has arrived. Then it waits in the way of its mode for a response or the next
//! due time. In a sleeping mode it wakes 300 µs early and spins for the rest, because sleeps end
//! late. They ended 190 µs late, as measured in a guest whose idle CPU was given to others.

use std::time::Duration;

use nm_model::doubt::{Doubt, DoubtKind};
use nm_model::limits::SAMPLES_MAX;
use nm_model::result::Statistic;
use nm_sys::clock::Clock;
use nm_sys::memory::LockedBuffer;
use nm_transport::{CALL_TIMEOUT, Transport, TransportError, handshake};

use crate::control::Control;
use crate::error::ProbeError;
use crate::median::RunningMedian;
use crate::sequence;

/// Time before a due send that is spun instead of slept, ns: a late send is the fault of the
/// measuring program and must not be counted as latency of the path.
const SPIN_NS: u64 = 300_000;

/// Longest sleep while a send waits for room, ns.
const ROOM_NS: u64 = 100_000;

/// Bytes of one receive call on a stream; many small responses may arrive at once.
const READ_BYTES: usize = 64 * 1024;

/// Time from the call to the first request, ns.
const LEAD_NS: u64 = 1_000_000;

/// Lateness of a send above which a request counts as late: half an interval, within these, ns.
const LATE_NS: (u64, u64) = (50_000, 1_000_000);

/// Share of late requests above which the schedule counts as missed.
const LATE_SHARE_MAX: f64 = 0.001;

/// Responses between two updates of the progress.
const RESPONSES_PER_UPDATE: usize = 64;

/// Shortest silence after which a datagram peer counts as gone, ns.
const SILENCE_NS_MAX: u64 = 5_000_000_000;

/// Parameters of an open loop.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OpenLoopPlan {
    /// Bytes of a request.
    pub request_bytes: usize,
    /// Bytes of a response.
    pub response_bytes: usize,
    /// Requests a second, above zero.
    pub rate_per_s: f64,
    /// Measuring time, s.
    pub seconds: f64,
    /// Time on the same schedule before it, ms.
    pub warmup_ms: u64,
    /// A response later than this after the request was due counts as lost, ms.
    pub deadline_ms: u64,
}

/// One request, in ticks of the clock; zero where it has not happened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Request {
    /// When its send began.
    pub sent: u64,
    /// When its response had been received.
    pub responded: u64,
}

/// The samples of an open loop.
#[derive(Debug)]
pub struct OpenLoopSamples {
    /// All requests in order, those of the warm-up first.
    pub requests: LockedBuffer<Request>,
    /// Requests of the warm-up.
    pub warmup_requests: usize,
    schedule: Schedule,
    clock: Clock,
    deadline: u64,
}

/// When each request is due.
#[derive(Debug, Clone, Copy)]
struct Schedule {
    begin: u64,
    interval_ticks: f64,
}

impl Schedule {
    /// Products up to 2^53 are exact, which is months of ticks.
    #[inline(always)]
    fn due(&self, idx: usize) -> u64 {
        self.begin + (idx as f64 * self.interval_ticks) as u64
    }
}

/// The latency of a request whose response arrived in time, ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestLatency {
    /// When it was due, since the first one of the measurement.
    pub due_ns: u64,
    /// From when it was due to its response.
    pub from_due_ns: u64,
    /// From its send to its response.
    pub service_ns: u64,
}

impl OpenLoopSamples {
    /// Latencies of the measurement's requests whose response arrived in time, in the order in
    /// which they were due.
    pub fn latencies(&self) -> impl Iterator<Item = RequestLatency> {
        let first_due = self.schedule.due(self.warmup_requests);
        self.measured().filter(|(due, request)| self.in_time(*due, request)).map(
            move |(due, request)| RequestLatency {
                due_ns: self.clock.ns(due - first_due),
                from_due_ns: self.clock.ns(request.responded - due),
                service_ns: self.clock.ns(request.responded.saturating_sub(request.sent)),
            },
        )
    }

    /// Requests of the measurement without a response in time.
    pub fn lost(&self) -> u64 {
        self.measured().filter(|(due, request)| !self.in_time(*due, request)).count() as u64
    }

    /// Duration of the measurement: to the last response, but at least the scheduled time, s.
    pub fn seconds(&self) -> f64 {
        let first_due = self.schedule.due(self.warmup_requests);
        let last_response =
            self.measured().map(|(_, request)| request.responded).max().unwrap_or(0);
        let end = self.schedule.due(self.requests.len()).max(last_response);
        self.clock.ns(end - first_due) as f64 / 1e9
    }

    /// The doubt that too many requests were sent late.
    pub fn lateness_doubt(&self) -> Option<Doubt> {
        let half_interval_ns = self.clock.ns(self.schedule.interval_ticks as u64) / 2;
        let limit_ns = half_interval_ns.clamp(LATE_NS.0, LATE_NS.1);
        let (mut late, mut worst_ns, mut unsent, mut all) = (0u64, 0, 0u64, 0u64);
        for (due, request) in self.measured() {
            all += 1;
            if request.sent == 0 {
                unsent += 1;
                continue;
            }
            let late_ns = self.clock.ns(request.sent.saturating_sub(due));
            worst_ns = worst_ns.max(late_ns);
            late += u64::from(late_ns > limit_ns);
        }
        if (late + unsent) as f64 <= LATE_SHARE_MAX * all as f64 {
            return None;
        }
        let mut detail = format!(
            "{late} of {all} requests were sent more than {} late, the latest by {:.1} ms",
            if limit_ns < 1_000_000 { format!("{} µs", limit_ns / 1_000) } else { "1 ms".into() },
            worst_ns as f64 / 1e6
        );
        if unsent > 0 {
            detail += &format!("; {unsent} were not sent at all");
        }
        Some(Doubt::new(DoubtKind::Behind, detail))
    }

    fn measured(&self) -> impl Iterator<Item = (u64, &Request)> {
        let requests = self.requests.as_slice().iter().enumerate();
        requests.skip(self.warmup_requests).map(|(idx, request)| (self.schedule.due(idx), request))
    }

    fn in_time(&self, due: u64, request: &Request) -> bool {
        request.responded != 0 && request.responded.saturating_sub(due) <= self.deadline
    }
}

/// Sends requests by the plan's schedule and receives the responses.
///
/// # Errors
/// If the peer has gone, [`ProbeError::Cancelled`], and [`ProbeError::RequestCount`] for a plan of
/// more requests than memory holds.
pub fn run<T: Transport>(
    transport: &mut T,
    clock: Clock,
    plan: &OpenLoopPlan,
    control: &Control,
) -> Result<OpenLoopSamples, ProbeError> {
    let mut client = OpenLoopClient::new(transport, clock, plan, control)?;
    client.samples.schedule.begin = clock.now() + clock.ticks(LEAD_NS);
    client.last_response = client.samples.schedule.begin;
    client.run()?;
    Ok(client.samples)
}

struct OpenLoopClient<'a, T> {
    transport: &'a mut T,
    clock: Clock,
    control: &'a Control,
    samples: OpenLoopSamples,
    request: Vec<u8>,
    buffer: Vec<u8>,
    response_bytes: usize,
    tag_bytes: usize,
    /// Requests that may be in flight at once.
    window: u64,
    /// The next request to send.
    next: usize,
    /// Bytes of it that were sent, on a stream.
    sent_bytes: usize,
    /// The first request that has no response yet and, over datagrams, is not lost.
    oldest: usize,
    /// Bytes of its response that were received, on a stream.
    received_bytes: usize,
    last_response: u64,
    silence_max: u64,
    median: RunningMedian,
}

/// Memory for the plan's requests; the schedule begins at 0.
fn samples(clock: Clock, plan: &OpenLoopPlan) -> Result<OpenLoopSamples, ProbeError> {
    let warmup_requests = (plan.warmup_ms as f64 / 1e3 * plan.rate_per_s).ceil();
    let requests = (plan.seconds * plan.rate_per_s).ceil().max(1.0) + warmup_requests;
    // Written so that a NaN is refused, too.
    if !(plan.rate_per_s > 0.0 && requests <= SAMPLES_MAX as f64) {
        let OpenLoopPlan { rate_per_s, seconds, .. } = *plan;
        let requests_max = SAMPLES_MAX as f64;
        return Err(ProbeError::RequestCount { rate_per_s, seconds, requests_max });
    }
    let mut samples = OpenLoopSamples {
        requests: LockedBuffer::new(requests as usize),
        warmup_requests: warmup_requests as usize,
        schedule: Schedule {
            begin: 0,
            interval_ticks: clock.ticks(1_000_000_000) as f64 / plan.rate_per_s,
        },
        clock,
        deadline: clock.ticks(plan.deadline_ms.saturating_mul(1_000_000)),
    };
    while samples.requests.push(Request::default()) {}
    Ok(samples)
}

impl<'a, T: Transport> OpenLoopClient<'a, T> {
    fn new(
        transport: &'a mut T,
        clock: Clock,
        plan: &OpenLoopPlan,
        control: &'a Control,
    ) -> Result<OpenLoopClient<'a, T>, ProbeError> {
        let samples = samples(clock, plan)?;
        let OpenLoopPlan { request_bytes, response_bytes, deadline_ms, .. } = *plan;
        let tag_bytes =
            if T::DATAGRAM { sequence::tag_bytes(request_bytes, response_bytes) } else { 0 };
        let buffer_bytes = if T::DATAGRAM {
            response_bytes.max(handshake::BYTES_MAX) * 2
        } else {
            response_bytes.max(READ_BYTES)
        };
        let silence_ns = deadline_ms.saturating_mul(5_000_000).max(SILENCE_NS_MAX);
        Ok(OpenLoopClient {
            transport,
            clock,
            control,
            samples,
            request: (0..request_bytes).map(|idx| idx as u8).collect(),
            buffer: vec![0; buffer_bytes],
            response_bytes,
            tag_bytes,
            window: if T::DATAGRAM { sequence::window(tag_bytes) } else { u64::MAX },
            next: 0,
            sent_bytes: 0,
            oldest: 0,
            received_bytes: 0,
            last_response: 0,
            silence_max: clock.ticks(silence_ns),
            median: RunningMedian::default(),
        })
    }

    fn run(&mut self) -> Result<(), ProbeError> {
        let total = self.samples.requests.len();
        let end = self.samples.schedule.due(total - 1).saturating_add(self.samples.deadline);
        loop {
            let sent = self.send_due()?;
            let received = self.receive_responses()?;
            let now = self.clock.now();
            if T::DATAGRAM {
                self.skip_lost(now);
            }
            debug_assert!(self.oldest <= self.next && self.next <= total);
            if (self.oldest == total && self.next == total) || now > end {
                return Ok(());
            }
            if self.control.cancelled() {
                return Err(ProbeError::Cancelled);
            }
            if !sent && !received {
                self.wait(now, end)?;
            }
        }
    }

    /// Sends each request that is due, as far as there is room; whether one was sent.
    #[inline(always)]
    fn send_due(&mut self) -> Result<bool, ProbeError> {
        let mut progress = false;
        while self.next < self.samples.requests.len()
            && ((self.next - self.oldest) as u64) < self.window
        {
            let now = self.clock.now();
            if self.samples.schedule.due(self.next) > now {
                break;
            }
            if self.sent_bytes == 0 {
                sequence::write_tag(&mut self.request, self.tag_bytes, self.next as u64);
                self.samples.requests.as_mut_slice()[self.next].sent = now;
            }
            match self.transport.try_send(&self.request[self.sent_bytes..]) {
                Ok(Some(length)) => self.sent_bytes += length,
                Ok(None) => {
                    if self.sent_bytes == 0 {
                        self.samples.requests.as_mut_slice()[self.next].sent = 0;
                    }
                    break;
                }
                Err(error) => return Err(ProbeError::transport("sending a request")(error)),
            }
            progress = true;
            if self.sent_bytes == self.request.len() {
                self.sent_bytes = 0;
                self.next += 1;
            }
        }
        Ok(progress)
    }

    /// Receives each response that has arrived; whether one had.
    #[inline(always)]
    fn receive_responses(&mut self) -> Result<bool, ProbeError> {
        let mut progress = false;
        loop {
            match self.transport.try_receive(&mut self.buffer) {
                Ok(Some(length)) => {
                    let now = self.clock.now();
                    progress = true;
                    if T::DATAGRAM {
                        self.take_datagram(length, now);
                    } else {
                        self.take_bytes(length, now);
                    }
                }
                Ok(None) => return Ok(progress),
                Err(error) => return Err(ProbeError::transport("waiting for responses")(error)),
            }
        }
    }

    /// On a stream the responses arrive in the order of the requests.
    #[inline(always)]
    fn take_bytes(&mut self, length: usize, now: u64) {
        self.received_bytes += length;
        while self.received_bytes >= self.response_bytes && self.oldest < self.next {
            self.received_bytes -= self.response_bytes;
            self.take_response(self.oldest, now);
            self.oldest += 1;
        }
    }

    #[inline(always)]
    fn take_datagram(&mut self, length: usize, now: u64) {
        if length != self.response_bytes {
            return; // a late handshake message
        }
        let number = sequence::read_tag(&self.buffer, self.tag_bytes, self.next as u64);
        if let Some(idx) = number.and_then(|number| usize::try_from(number).ok()) {
            self.take_response(idx, now);
        }
    }

    #[inline(always)]
    fn take_response(&mut self, idx: usize, now: u64) {
        let request = &mut self.samples.requests.as_mut_slice()[idx];
        // A duplicate changes nothing.
        if request.responded == 0 {
            request.responded = now;
            self.last_response = now;
            self.median.add(now.saturating_sub(self.samples.schedule.due(idx)));
            if idx.is_multiple_of(RESPONSES_PER_UPDATE) {
                let ns = self.clock.ns(self.median.value()) as f64;
                self.control.set_progress(Statistic::RoundTripFromIntended, ns);
            }
        }
    }

    /// Skips requests that have a response or whose deadline has passed.
    #[inline(always)]
    fn skip_lost(&mut self, now: u64) {
        while self.oldest < self.next
            && (self.samples.requests.as_slice()[self.oldest].responded != 0
                || self.samples.schedule.due(self.oldest) + self.samples.deadline < now)
        {
            self.oldest += 1;
        }
    }

    /// Waits for a response or the next due request, in the way of the transport's mode.
    fn wait(&mut self, now: u64, end: u64) -> Result<(), ProbeError> {
        if now.saturating_sub(self.last_response) > self.silence_max && self.next > self.oldest {
            let silence_s = self.clock.ns(self.silence_max) as f64 / 1e9;
            return Err(ProbeError::Silence { silence_s });
        }
        let all_sent = self.next == self.samples.requests.len();
        let due = if all_sent { end } else { self.samples.schedule.due(self.next) };
        let left_ns = match due.checked_sub(now) {
            // Due, but not sent: there was no room.
            None => ROOM_NS + SPIN_NS,
            Some(left) => self.clock.ns(left),
        };
        if left_ns > SPIN_NS {
            let limit = Duration::from_nanos(left_ns - SPIN_NS).min(CALL_TIMEOUT);
            match self.transport.wait(limit) {
                Ok(_) | Err(TransportError::TimedOut) => {}
                Err(error) => return Err(ProbeError::transport("waiting for responses")(error)),
            }
        }
        Ok(())
    }
}
