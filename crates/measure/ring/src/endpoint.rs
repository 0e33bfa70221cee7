//! One endpoint: both directions of a region, and how it waits.

use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

use nm_sys::clock::Clock;
use nm_sys::{cpu, poll};

use crate::layout::{CLOSED, INLINE_BYTES_MAX, RECORD_BYTES_MAX, WRITE_SHUT};
use crate::memory::RegionMapping;
use crate::record_queue::{Consumer, Producer};
use crate::role::EndpointRole;
use crate::wake::{self, WaitStrategy};
use crate::window::{JoinedWindow, WindowLease};

/// How long a waiting end spins before it sleeps: longer than a round trip including the
/// computation of the answer, shorter than a scheduler time slice.
pub const SPIN: Duration = Duration::from_micros(50);

/// Iterations of a spin before it checks the clock, the CPUs and the peer's state.
const SPINS_PER_CHECK: u32 = 128;

/// How often a waiting end checks whether the other process has died.
const LIVENESS_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// Longest single sleep: a process that died cannot wake its peer.
const SLEEP_MAX: Duration = Duration::from_millis(20);

/// Non-blocking receives without a result before the clock is read to check the peer's liveness.
const EMPTY_POLLS_PER_CHECK: u32 = 16;

/// Why nothing was transferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransferError {
    /// No data arrived, or no space became free, within the caller's time limit.
    TimedOut,
    /// The other end has shut its direction and all it sent was received, or it was closed or
    /// died.
    Closed,
}

impl fmt::Display for TransferError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TransferError::TimedOut => "the transfer through shared memory timed out",
            TransferError::Closed => "the other end of the shared memory is closed",
        })
    }
}

impl std::error::Error for TransferError {}

/// What tells an end that the other one is gone.
#[derive(Debug)]
pub enum Lifeline {
    /// Socket to the other process. It carries no data; it becomes readable when the peer is gone.
    Socket(OwnedFd),
    /// The window of a device's memory that holds the region: the other end runs under another
    /// kernel. It shows that the other end has left, but not that it has died.
    Window(WindowLease),
}

impl From<OwnedFd> for Lifeline {
    fn from(socket: OwnedFd) -> Lifeline {
        Lifeline::Socket(socket)
    }
}

/// What an endpoint is made of, before its wait strategy is chosen.
#[derive(Debug)]
pub struct EndpointParts {
    /// The shared memory.
    pub memory: RegionMapping,
    /// Shows that the peer is gone. The memory is given back with it.
    pub lifeline: Lifeline,
    /// Which end this is.
    pub role: EndpointRole,
}

impl From<JoinedWindow> for EndpointParts {
    fn from(joined: JoinedWindow) -> EndpointParts {
        let JoinedWindow { memory, lease, role } = joined;
        EndpointParts { memory, lifeline: Lifeline::Window(lease), role }
    }
}

/// The condition that an endpoint waits for.
#[derive(Debug, Clone, Copy)]
enum WaitFor {
    /// Data to receive.
    Record,
    /// Space to send a record of this length.
    Space(usize),
}

/// One endpoint, used by one thread at a time. With `SLEEPS` it sleeps after [`SPIN`], otherwise it
/// keeps spinning. When both ends share a CPU, it sleeps, or yields the CPU, at once.
#[derive(Debug)]
pub struct Endpoint<const SLEEPS: bool> {
    parts: EndpointParts,
    producer: Producer,
    consumer: Consumer,
    clock: Clock,
    /// The CPU on which this end waits, plus one, as last published to the peer.
    published_cpu: u32,
    /// Whether both ends waited on one CPU when last checked.
    shares_cpu: bool,
    empty_polls: u32,
    /// Time of the last check whether the other process lives.
    liveness_checked_at: u64,
    /// Whether the peer has died, or violated the protocol so that it counts as dead.
    peer_is_dead: bool,
}

impl<const SLEEPS: bool> Endpoint<SLEEPS> {
    /// Makes an endpoint of its parts.
    pub fn new(parts: EndpointParts) -> Endpoint<SLEEPS> {
        let clock = Clock::system();
        let strategy = if SLEEPS { WaitStrategy::Sleeps } else { WaitStrategy::Spins };
        let (own, _) = parts.memory.endpoints(parts.role);
        own.wait_strategy.store(strategy as u32, Release);
        Endpoint {
            parts,
            producer: Producer::default(),
            consumer: Consumer::default(),
            clock,
            published_cpu: 0,
            shares_cpu: false,
            empty_polls: 0,
            liveness_checked_at: clock.now(),
            peer_is_dead: false,
        }
    }

    /// Sends as many of `bytes` as there is space for, at least one, waiting for space for `limit`
    /// at most. Returns how many.
    ///
    /// # Errors
    /// See [`TransferError`].
    #[inline(always)]
    pub fn send(&mut self, bytes: &[u8], limit: Duration) -> Result<usize, TransferError> {
        loop {
            let sent = self.try_send(bytes);
            if sent > 0 || bytes.is_empty() {
                return Ok(sent);
            }
            self.wait(WaitFor::Space(bytes.len().min(RECORD_BYTES_MAX)), limit)?;
        }
    }

    /// Sends as many of `bytes` as there is space for now.
    #[inline(always)]
    pub fn try_send(&mut self, bytes: &[u8]) -> usize {
        if !bytes.is_empty() && bytes.len() <= INLINE_BYTES_MAX {
            return if self.push(bytes) { bytes.len() } else { 0 };
        }
        let mut sent = 0;
        for record in bytes.chunks(RECORD_BYTES_MAX) {
            if !self.push(record) {
                break;
            }
            sent += record.len();
        }
        sent
    }

    /// Sends a record of at most [`RECORD_BYTES_MAX`] bytes that keeps its boundaries; false if
    /// there is no space now, or if it is longer.
    pub fn try_send_record(&mut self, record: &[u8]) -> bool {
        record.len() <= RECORD_BYTES_MAX && self.push(record)
    }

    #[inline(always)]
    fn push(&mut self, record: &[u8]) -> bool {
        let (outgoing, _) = self.parts.memory.queues(self.parts.role);
        let pushed = self.producer.push(outgoing, record, self.consumer.consumed());
        if pushed {
            wake::wake_if_asleep(self.parts.memory.endpoints(self.parts.role).1);
        }
        pushed
    }

    /// Receives bytes of the stream, at least one, waiting for `limit` at most. Returns the number
    /// of bytes, zero only for an empty `buffer`.
    ///
    /// # Errors
    /// See [`TransferError`].
    #[inline(always)]
    pub fn receive(&mut self, buffer: &mut [u8], limit: Duration) -> Result<usize, TransferError> {
        loop {
            let received = self.read_available(buffer);
            if received > 0 || buffer.is_empty() {
                return Ok(received);
            }
            if self.peer_is_dead {
                return Err(TransferError::Closed);
            }
            self.wait(WaitFor::Record, limit)?;
        }
    }

    /// Receives the bytes that have arrived, if any.
    ///
    /// # Errors
    /// Never [`TransferError::TimedOut`].
    #[inline(always)]
    pub fn try_receive(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, TransferError> {
        let received = self.read_available(buffer);
        if received > 0 {
            return Ok(Some(received));
        }
        self.after_empty_poll().map(|()| None)
    }

    /// Receives one record, truncated to `buffer`, if one has arrived.
    ///
    /// # Errors
    /// Never [`TransferError::TimedOut`].
    pub fn try_receive_record(
        &mut self,
        buffer: &mut [u8],
    ) -> Result<Option<usize>, TransferError> {
        let before = self.consumer.quarter();
        let (_, incoming) = self.parts.memory.queues(self.parts.role);
        let Some((length, consumed)) = self.consumer.read_record(incoming, buffer) else {
            return self.after_empty_poll().map(|()| None);
        };
        self.producer.update_consumed(consumed);
        self.wake_producer_after(before);
        Ok(Some(length))
    }

    #[inline(always)]
    fn read_available(&mut self, buffer: &mut [u8]) -> usize {
        let before = self.consumer.quarter();
        let (_, incoming) = self.parts.memory.queues(self.parts.role);
        let mut filled = 0;
        while filled < buffer.len()
            && let Some((count, consumed)) = self.consumer.read(incoming, &mut buffer[filled..])
        {
            self.producer.update_consumed(consumed);
            filled += count;
            if count == 0 {
                // A stream never carries empty records: a hostile peer could keep us in this loop.
                self.peer_is_dead = true;
                break;
            }
        }
        self.wake_producer_after(before);
        filled
    }

    /// Wakes a producer that waits for space, if enough was consumed since `before`.
    #[inline(always)]
    fn wake_producer_after(&self, before: (usize, usize)) {
        if self.consumer.quarter() != before {
            wake::wake_if_asleep(self.parts.memory.endpoints(self.parts.role).1);
        }
    }

    /// Waits by this end's strategy until something can be received, for `limit` at most. A
    /// spinning end returns at once. Returns whether a receive is worth trying.
    pub fn wait_readable(&mut self, limit: Duration) -> bool {
        if !SLEEPS {
            return true;
        }
        self.wait(WaitFor::Record, limit) != Err(TransferError::TimedOut)
    }

    /// Shuts the outgoing direction: the other end learns that nothing more will come.
    pub fn shut_write(&mut self) {
        let (own, peer) = self.parts.memory.endpoints(self.parts.role);
        own.state.fetch_or(WRITE_SHUT, Release);
        wake::wake_if_asleep(peer);
    }

    /// The CPU on which the other end waited last, if it has waited; not to be trusted.
    pub fn peer_cpu(&self) -> Option<u32> {
        self.parts.memory.endpoints(self.parts.role).1.cpu.load(Relaxed).checked_sub(1)
    }

    #[inline(always)]
    fn is_ready(&mut self, wait_for: WaitFor) -> bool {
        let (outgoing, incoming) = self.parts.memory.queues(self.parts.role);
        match wait_for {
            WaitFor::Record => self.consumer.is_ready(incoming),
            WaitFor::Space(length) => self.producer.has_space(outgoing, length),
        }
    }

    /// Whether the other end has shut the direction, so that the condition cannot become true.
    fn is_shut(&self, wait_for: WaitFor) -> bool {
        let bits = match wait_for {
            WaitFor::Record => WRITE_SHUT | CLOSED,
            WaitFor::Space(_) => CLOSED,
        };
        self.parts.memory.endpoints(self.parts.role).1.state.load(Acquire) & bits != 0
    }

    /// After a non-blocking receive without a result: whether the peer is still connected.
    #[inline(always)]
    fn after_empty_poll(&mut self) -> Result<(), TransferError> {
        self.empty_polls += 1;
        if self.empty_polls < EMPTY_POLLS_PER_CHECK
            && !self.peer_is_dead
            && !self.is_shut(WaitFor::Record)
        {
            return Ok(());
        }
        self.check_liveness(WaitFor::Record)
    }

    /// # Errors
    /// [`TransferError::Closed`] if the other end is shut, closed or dead, and nothing of it is
    /// left to receive.
    #[cold]
    fn check_liveness(&mut self, wait_for: WaitFor) -> Result<(), TransferError> {
        self.empty_polls = 0;
        let now = self.clock.now();
        let ticks = now.saturating_sub(self.liveness_checked_at);
        let elapsed = Duration::from_nanos(self.clock.ns(ticks));
        if !self.peer_is_dead && elapsed >= LIVENESS_CHECK_INTERVAL {
            self.liveness_checked_at = now;
            // An error counts as death: the descriptor is ours, so no error is temporary.
            self.peer_is_dead = match &self.parts.lifeline {
                Lifeline::Socket(socket) => {
                    poll::readable(socket.as_raw_fd(), Duration::ZERO).unwrap_or(true)
                }
                Lifeline::Window(_) => self.peer_is_dead,
            };
        }
        // Bytes that were sent before the end can still be received.
        if (self.peer_is_dead || self.is_shut(wait_for)) && !self.is_ready(wait_for) {
            Err(TransferError::Closed)
        } else {
            Ok(())
        }
    }

    #[inline(always)]
    fn wait(&mut self, wait_for: WaitFor, limit: Duration) -> Result<(), TransferError> {
        if !self.shares_cpu && self.spin(wait_for) {
            return Ok(());
        }
        self.wait_slow(wait_for, limit)
    }

    #[inline(always)]
    fn spin(&mut self, wait_for: WaitFor) -> bool {
        (0..SPINS_PER_CHECK).any(|_| {
            let is_ready = self.is_ready(wait_for);
            if !is_ready {
                std::hint::spin_loop();
            }
            is_ready
        })
    }

    #[cold]
    fn wait_slow(&mut self, wait_for: WaitFor, limit: Duration) -> Result<(), TransferError> {
        let begin = self.clock.now();
        loop {
            self.update_cpu();
            let waited = self.clock.now().saturating_sub(begin);
            let waited = Duration::from_nanos(self.clock.ns(waited));
            if self.is_ready(wait_for) {
                return Ok(());
            }
            self.check_liveness(wait_for)?;
            if waited >= limit {
                return Err(TransferError::TimedOut);
            }
            if SLEEPS && (self.shares_cpu || waited >= SPIN) {
                self.sleep(wait_for, (limit - waited).min(SLEEP_MAX));
            } else if self.shares_cpu {
                std::thread::yield_now();
            } else if self.spin(wait_for) {
                return Ok(());
            }
        }
    }

    fn sleep(&mut self, wait_for: WaitFor, limit: Duration) {
        let Endpoint { parts, producer, consumer, .. } = self;
        let (own, peer) = parts.memory.endpoints(parts.role);
        let (outgoing, incoming) = parts.memory.queues(parts.role);
        wake::sleep(own, limit, || {
            let is_ready = match wait_for {
                WaitFor::Record => consumer.is_ready(incoming),
                WaitFor::Space(length) => producer.has_space(outgoing, length),
            };
            is_ready || peer.state.load(Acquire) != 0
        });
    }

    /// Publishes the CPU on which this end waits, and checks whether the other end waits on the
    /// same one: then spinning would only keep it from running.
    fn update_cpu(&mut self) {
        if let Lifeline::Window(_) = self.parts.lifeline {
            // CPUs of different virtual machines have nothing to do with each other.
            return;
        }
        let (own, peer) = self.parts.memory.endpoints(self.parts.role);
        let cpu = cpu::current().wrapping_add(1);
        if cpu != self.published_cpu {
            own.cpu.store(cpu, Relaxed);
            self.published_cpu = cpu;
        }
        self.shares_cpu = peer.cpu.load(Relaxed) == cpu;
    }
}

impl<const SLEEPS: bool> Drop for Endpoint<SLEEPS> {
    fn drop(&mut self) {
        let (own, peer) = self.parts.memory.endpoints(self.parts.role);
        own.state.fetch_or(WRITE_SHUT | CLOSED, Release);
        wake::wake_if_asleep(peer);
    }
}
