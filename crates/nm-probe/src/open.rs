//! The open loop: requests leave on an absolute schedule, whether or not answers come.
//!
//! Request `i` is due at `start + i / rate`. Latency counts from that moment, so whatever delays a
//! request, a stalled server or a stalled client, is in the latency of every request that was due
//! meanwhile (no coordinated omission). The service time, from the actual send, is kept beside it.
//!
//! One thread does both directions and never blocks in a send or a receive: it sends what is due,
//! takes what has come, and then waits in the way of its mode for an answer or the next due time.
//! In a sleeping mode it wakes 300 µs early and spins the rest, because sleeps end late: in
//! a
//! guest whose idle CPU is taken away, by 190 µs where we measured it.

use std::time::Duration;

use nm_model::doubt::{Doubt, DoubtKind};
use nm_model::result::Statistic;
use nm_model::{Failure, FailureKind};
use nm_sys::clock::Clock;
use nm_sys::memory::LockedBuffer;
use nm_transport::{Fault, SLICE, Transport, failure, greeting};

use crate::closed::Median;
use crate::control::Control;
use crate::tag;

/// Time before a due send that is spun instead of slept, ns. Lateness of the schedule is the
/// measuring program's own and must not pass for latency of the path.
const SPIN_NS: u64 = 300_000;

/// Longest sleep while a send waits for room, ns.
const ROOM_NS: u64 = 100_000;

/// Most requests of one round: 4.8 GB of memory.
const REQUESTS_MAX: f64 = 200e6;

/// Bytes of one receive call on a stream; many small answers may come at once.
const READ_BYTES: usize = 64 * 1024;

/// Time from the call to the first request, ns.
const LEAD_NS: u64 = 1_000_000;

/// Lateness of a send above which a request counts as late: half an interval, within these, ns.
const LATE_NS: (u64, u64) = (50_000, 1_000_000);

/// Share of late requests above which the schedule counts as missed.
const LATE_SHARE_MAX: f64 = 0.001;

/// Answers between two estimates shown.
const SHOW_EVERY: usize = 64;

/// Shortest silence after which a datagram peer counts as gone, ns.
const SILENCE_NS_MAX: u64 = 5_000_000_000;

/// What an open loop is to do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plan {
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
    /// An answer later than this after the request was due counts as lost, ms.
    pub deadline_ms: u64,
}

/// One request, in ticks of the clock; zero where it has not happened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Request {
    /// When its send began.
    pub sent: u64,
    /// When its answer was there.
    pub answered: u64,
}

/// What an open loop came to.
#[derive(Debug)]
pub struct Course {
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
    /// Numbers up to 2^53 are exact in the product, which is months of ticks.
    #[inline(always)]
    fn due(&self, idx: usize) -> u64 {
        self.begin + (idx as f64 * self.interval_ticks) as u64
    }
}

/// A request that was answered in time, ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answered {
    /// When it was due, since the first one of the measurement.
    pub due_ns: u64,
    /// From when it was due to its answer.
    pub from_due_ns: u64,
    /// From its send to its answer.
    pub service_ns: u64,
}

impl Course {
    /// Requests of the measurement that were answered in time, in the order in which they were due.
    pub fn answered(&self) -> impl Iterator<Item = Answered> {
        let first_due = self.schedule.due(self.warmup_requests);
        self.measured().filter(|(due, request)| self.in_time(*due, request)).map(
            move |(due, request)| Answered {
                due_ns: self.clock.ns(due - first_due),
                from_due_ns: self.clock.ns(request.answered - due),
                service_ns: self.clock.ns(request.answered.saturating_sub(request.sent)),
            },
        )
    }

    /// Requests of the measurement without an answer in time.
    pub fn lost(&self) -> u64 {
        self.measured().filter(|(due, request)| !self.in_time(*due, request)).count() as u64
    }

    /// Length of the measurement: to the last answer, but at least the scheduled time, s.
    pub fn seconds(&self) -> f64 {
        let first_due = self.schedule.due(self.warmup_requests);
        let last_answer = self.measured().map(|(_, request)| request.answered).max().unwrap_or(0);
        let end = self.schedule.due(self.requests.len()).max(last_answer);
        self.clock.ns(end - first_due) as f64 / 1e9
    }

    /// What it means that requests left late, if they did.
    pub fn behind(&self) -> Option<Doubt> {
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
            "{late} of {all} requests left more than {} late, the latest by {:.1} ms",
            if limit_ns < 1_000_000 { format!("{} µs", limit_ns / 1_000) } else { "1 ms".into() },
            worst_ns as f64 / 1e6
        );
        if unsent > 0 {
            detail += &format!("; {unsent} did not leave at all");
        }
        Some(Doubt::new(DoubtKind::Behind, detail))
    }

    fn measured(&self) -> impl Iterator<Item = (u64, &Request)> {
        let requests = self.requests.as_slice().iter().enumerate();
        requests.skip(self.warmup_requests).map(|(idx, request)| (self.schedule.due(idx), request))
    }

    fn in_time(&self, due: u64, request: &Request) -> bool {
        request.answered != 0 && request.answered.saturating_sub(due) <= self.deadline
    }
}

/// Sends requests by the plan's schedule and takes the answers.
///
/// # Errors
/// [`FailureKind::Peer`] if the peer has gone, [`FailureKind::Cancelled`], and
/// [`FailureKind::BadRequest`] for a plan of more requests than memory holds.
pub fn run<T: Transport>(
    transport: &mut T,
    clock: Clock,
    plan: &Plan,
    control: &Control,
) -> Result<Course, Failure> {
    let mut client = Client::new(transport, clock, plan, control)?;
    client.course.schedule.begin = clock.now() + clock.ticks(LEAD_NS);
    client.last_answer = client.course.schedule.begin;
    client.run()?;
    Ok(client.course)
}

struct Client<'a, T> {
    transport: &'a mut T,
    clock: Clock,
    control: &'a Control,
    course: Course,
    message: Vec<u8>,
    buffer: Vec<u8>,
    response_bytes: usize,
    tag_bytes: usize,
    /// Requests that may be on their way at once.
    window: u64,
    /// The next request to send.
    next: usize,
    /// Bytes of it that have gone, on a stream.
    gone_bytes: usize,
    /// The first request that is neither answered nor, over datagrams, given up.
    oldest: usize,
    /// Bytes of its answer that have come, on a stream.
    come_bytes: usize,
    last_answer: u64,
    silence_max: u64,
    median: Median,
}

impl<'a, T: Transport> Client<'a, T> {
    fn new(
        transport: &'a mut T,
        clock: Clock,
        plan: &Plan,
        control: &'a Control,
    ) -> Result<Client<'a, T>, Failure> {
        let warmup_requests = (plan.warmup_ms as f64 / 1e3 * plan.rate_per_s).ceil();
        let requests = (plan.seconds * plan.rate_per_s).ceil().max(1.0) + warmup_requests;
        // Written so that a NaN is refused, too.
        if !(plan.rate_per_s > 0.0 && requests <= REQUESTS_MAX) {
            let what = format!(
                "{} requests/s for {} s are not between one and {REQUESTS_MAX} requests",
                plan.rate_per_s, plan.seconds
            );
            return Err(Failure::new(FailureKind::BadRequest, what)
                .hint("lower the rate or the time, and run more rounds"));
        }
        let mut course = Course {
            requests: LockedBuffer::new(requests as usize),
            warmup_requests: warmup_requests as usize,
            schedule: Schedule {
                begin: 0,
                interval_ticks: clock.ticks(1_000_000_000) as f64 / plan.rate_per_s,
            },
            clock,
            deadline: clock.ticks(plan.deadline_ms.saturating_mul(1_000_000)),
        };
        while course.requests.push(Request::default()) {}
        let Plan { request_bytes, response_bytes, deadline_ms, .. } = *plan;
        let tag_bytes = if T::DATAGRAM { tag::bytes(request_bytes, response_bytes) } else { 0 };
        let buffer_bytes = if T::DATAGRAM {
            response_bytes.max(greeting::BYTES_MAX) * 2
        } else {
            response_bytes.max(READ_BYTES)
        };
        let silence_ns = deadline_ms.saturating_mul(5_000_000).max(SILENCE_NS_MAX);
        Ok(Client {
            transport,
            clock,
            control,
            course,
            message: (0..request_bytes).map(|idx| idx as u8).collect(),
            buffer: vec![0; buffer_bytes],
            response_bytes,
            tag_bytes,
            window: if T::DATAGRAM { tag::window(tag_bytes) } else { u64::MAX },
            next: 0,
            gone_bytes: 0,
            oldest: 0,
            come_bytes: 0,
            last_answer: 0,
            silence_max: clock.ticks(silence_ns),
            median: Median::default(),
        })
    }

    fn run(&mut self) -> Result<(), Failure> {
        let total = self.course.requests.len();
        let end = self.course.schedule.due(total - 1).saturating_add(self.course.deadline);
        loop {
            let sent = self.send_due()?;
            let came = self.take_answers()?;
            let now = self.clock.now();
            if T::DATAGRAM {
                self.pass_over_the_lost(now);
            }
            if (self.oldest == total && self.next == total) || now > end {
                return Ok(());
            }
            if self.control.cancelled() {
                return Err(failure::cancelled());
            }
            if !sent && !came {
                self.wait(now, end)?;
            }
        }
    }

    /// Sends each request that is due, as far as there is room; whether one went.
    #[inline(always)]
    fn send_due(&mut self) -> Result<bool, Failure> {
        let mut progress = false;
        while self.next < self.course.requests.len()
            && ((self.next - self.oldest) as u64) < self.window
        {
            let now = self.clock.now();
            if self.course.schedule.due(self.next) > now {
                break;
            }
            if self.gone_bytes == 0 {
                tag::write(&mut self.message, self.tag_bytes, self.next as u64);
                self.course.requests.as_mut_slice()[self.next].sent = now;
            }
            match self.transport.try_send(&self.message[self.gone_bytes..]) {
                Ok(Some(length)) => self.gone_bytes += length,
                Ok(None) => {
                    if self.gone_bytes == 0 {
                        self.course.requests.as_mut_slice()[self.next].sent = 0;
                    }
                    break;
                }
                Err(fault) => return Err(failure::of_fault(fault, "sending a request")),
            }
            progress = true;
            if self.gone_bytes == self.message.len() {
                self.gone_bytes = 0;
                self.next += 1;
            }
        }
        Ok(progress)
    }

    /// Takes each answer that has come; whether one had.
    #[inline(always)]
    fn take_answers(&mut self) -> Result<bool, Failure> {
        let mut progress = false;
        loop {
            match self.transport.try_receive(&mut self.buffer) {
                Ok(Some(length)) => {
                    let now = self.clock.now();
                    progress = true;
                    if T::DATAGRAM { self.datagram(length, now) } else { self.bytes(length, now) }
                }
                Ok(None) => return Ok(progress),
                Err(fault) => return Err(failure::of_fault(fault, "waiting for answers")),
            }
        }
    }

    /// On a stream the answers come in the order of the requests.
    #[inline(always)]
    fn bytes(&mut self, length: usize, now: u64) {
        self.come_bytes += length;
        while self.come_bytes >= self.response_bytes && self.oldest < self.next {
            self.come_bytes -= self.response_bytes;
            self.answered(self.oldest, now);
            self.oldest += 1;
        }
    }

    #[inline(always)]
    fn datagram(&mut self, length: usize, now: u64) {
        if length != self.response_bytes {
            return; // a greeting that came late
        }
        let sequence = tag::read(&self.buffer, self.tag_bytes, self.next as u64);
        if let Some(idx) = sequence.and_then(|sequence| usize::try_from(sequence).ok()) {
            self.answered(idx, now);
        }
    }

    #[inline(always)]
    fn answered(&mut self, idx: usize, now: u64) {
        let request = &mut self.course.requests.as_mut_slice()[idx];
        // The second copy of a doubled answer changes nothing.
        if request.answered == 0 {
            request.answered = now;
            self.last_answer = now;
            self.median.add(now.saturating_sub(self.course.schedule.due(idx)));
            if idx.is_multiple_of(SHOW_EVERY) {
                let ns = self.clock.ns(self.median.0) as f64;
                self.control.show(Statistic::RoundTripFromIntended, ns);
            }
        }
    }

    /// Moves on over requests that were answered or whose deadline has passed.
    #[inline(always)]
    fn pass_over_the_lost(&mut self, now: u64) {
        while self.oldest < self.next
            && (self.course.requests.as_slice()[self.oldest].answered != 0
                || self.course.schedule.due(self.oldest) + self.course.deadline < now)
        {
            self.oldest += 1;
        }
    }

    /// Waits for an answer or the next due request, in the way of the transport's mode.
    fn wait(&mut self, now: u64, end: u64) -> Result<(), Failure> {
        if now.saturating_sub(self.last_answer) > self.silence_max && self.next > self.oldest {
            let silence_s = self.clock.ns(self.silence_max) as f64 / 1e9;
            let what = format!("no answer at all for {silence_s:.0} s");
            return Err(Failure::new(FailureKind::Peer, what)
                .hint("check that the peer runs and that messages of this size get through"));
        }
        let all_sent = self.next == self.course.requests.len();
        let due = if all_sent { end } else { self.course.schedule.due(self.next) };
        let left_ns = match due.checked_sub(now) {
            // Due, and yet not gone: there was no room.
            None => ROOM_NS + SPIN_NS,
            Some(left) => self.clock.ns(left),
        };
        if left_ns > SPIN_NS {
            let limit = Duration::from_nanos(left_ns - SPIN_NS).min(SLICE);
            match self.transport.wait(limit) {
                Ok(_) | Err(Fault::TimedOut) => {}
                Err(fault) => return Err(failure::of_fault(fault, "waiting for answers")),
            }
        }
        Ok(())
    }
}
