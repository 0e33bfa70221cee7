//! One end: both directions, and how it waits.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

use nm_sys::clock::Clock;
use nm_sys::{cpu, poll};

use crate::lane::{Consumer, Producer};
use crate::layout::{FINISHED, GONE, INLINE_BYTES_MAX, RECORD_BYTES_MAX};
use crate::memory::{Memory, Which};
use crate::wake::{self, Manner};

/// How long a waiting end spins before it sleeps: longer than a round trip with an answer that is
/// worked out meanwhile, shorter than a time slice that somebody else could use.
pub const SPIN: Duration = Duration::from_micros(50);

/// Turns of a waiting loop before it looks at the clock, the CPUs and the other end's state.
const TURNS: u32 = 128;

/// How often a waiting end looks whether the other process has died.
const LIFE_LOOK: Duration = Duration::from_millis(10);

/// Longest sleep at once; who dies cannot wake anybody.
const SLEEP_MAX: Duration = Duration::from_millis(20);

/// Receives in vain, without waiting, between two looks at the clock.
const MISSES: u32 = 16;

/// Why nothing moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Nothing came, or there was no room, for as long as the caller wanted to wait.
    TimedOut,
    /// The other end has finished and all it sent is taken, or it has left or died.
    Closed,
}

/// An end before it is known how it waits.
#[derive(Debug)]
pub struct Joint {
    /// The shared memory.
    pub memory: Memory,
    /// Socket to the other process that carries nothing any more; readable once it has gone.
    pub lifeline: OwnedFd,
    /// Which end this is.
    pub which: Which,
}

/// What an end waits for.
#[derive(Debug, Clone, Copy)]
enum Want {
    /// Something to receive.
    Record,
    /// Room to send a record of this length.
    Room(usize),
}

/// One end, used by one thread at a time. `SLEEPS`: whether it sleeps after [`SPIN`]; else it spins
/// on. Where both ends share a CPU, it sleeps, or yields the CPU, at once in either way.
#[derive(Debug)]
pub struct End<const SLEEPS: bool> {
    joint: Joint,
    producer: Producer,
    consumer: Consumer,
    clock: Clock,
    /// The CPU that the other end knows this one to wait on, plus one.
    shown_cpu: u32,
    /// Whether both ends waited on one CPU last time.
    together: bool,
    misses: u32,
    /// When it was last looked whether the other process lives.
    life_looked: u64,
    /// Whether it has died, or broken the rules so that it counts as dead.
    dead: bool,
}

impl<const SLEEPS: bool> End<SLEEPS> {
    /// Takes over an end.
    pub fn new(joint: Joint) -> End<SLEEPS> {
        let clock = Clock::system();
        let manner = if SLEEPS { Manner::Sleeps } else { Manner::Spins };
        joint.memory.sides(joint.which).0.manner.store(manner as u32, Release);
        End {
            joint,
            producer: Producer::default(),
            consumer: Consumer::default(),
            clock,
            shown_cpu: 0,
            together: false,
            misses: 0,
            life_looked: clock.now(),
            dead: false,
        }
    }

    /// Sends as many of `bytes` as there is room for, at least one, waiting for that room for
    /// `limit` at most. Answers how many.
    ///
    /// # Errors
    /// See [`Stop`].
    #[inline(always)]
    pub fn send(&mut self, bytes: &[u8], limit: Duration) -> Result<usize, Stop> {
        loop {
            let sent = self.try_send(bytes);
            if sent > 0 || bytes.is_empty() {
                return Ok(sent);
            }
            self.wait(Want::Room(bytes.len().min(RECORD_BYTES_MAX)), limit)?;
        }
    }

    /// Sends as many of `bytes` as there is room for now.
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

    /// Sends a record of at most [`RECORD_BYTES_MAX`] bytes that keeps its borders; false if there
    /// is no room now, or never because it is longer.
    pub fn try_send_record(&mut self, record: &[u8]) -> bool {
        record.len() <= RECORD_BYTES_MAX && self.push(record)
    }

    #[inline(always)]
    fn push(&mut self, record: &[u8]) -> bool {
        let (lane, _) = self.joint.memory.lanes(self.joint.which);
        let pushed = self.producer.push(lane, record, self.consumer.taken());
        if pushed {
            wake::nudge(self.joint.memory.sides(self.joint.which).1);
        }
        pushed
    }

    /// Receives what of the stream is there, at least a byte, waiting for `limit` at most.
    /// Answers the number of bytes: none only for an empty `buffer`.
    ///
    /// # Errors
    /// See [`Stop`].
    #[inline(always)]
    pub fn receive(&mut self, buffer: &mut [u8], limit: Duration) -> Result<usize, Stop> {
        loop {
            let received = self.take(buffer);
            if received > 0 || buffer.is_empty() {
                return Ok(received);
            }
            if self.dead {
                return Err(Stop::Closed);
            }
            self.wait(Want::Record, limit)?;
        }
    }

    /// Receives what is there now, if anything.
    ///
    /// # Errors
    /// Never [`Stop::TimedOut`].
    #[inline(always)]
    pub fn try_receive(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, Stop> {
        let received = self.take(buffer);
        if received > 0 {
            return Ok(Some(received));
        }
        self.missed().map(|()| None)
    }

    /// Receives one whole record, cut to `buffer`, if one is there now.
    ///
    /// # Errors
    /// Never [`Stop::TimedOut`].
    pub fn try_receive_record(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, Stop> {
        let before = self.consumer.quarter();
        let (_, lane) = self.joint.memory.lanes(self.joint.which);
        let Some((length, taken)) = self.consumer.take_record(lane, buffer) else {
            return self.missed().map(|()| None);
        };
        self.producer.learn(taken);
        self.tell_of_room(before);
        Ok(Some(length))
    }

    #[inline(always)]
    fn take(&mut self, buffer: &mut [u8]) -> usize {
        let before = self.consumer.quarter();
        let (_, lane) = self.joint.memory.lanes(self.joint.which);
        let mut filled = 0;
        while filled < buffer.len()
            && let Some((count, taken)) = self.consumer.take(lane, &mut buffer[filled..])
        {
            self.producer.learn(taken);
            filled += count;
            if count == 0 {
                // No end of a stream sends nothing: one that does could keep us here for ever.
                self.dead = true;
                break;
            }
        }
        self.tell_of_room(before);
        filled
    }

    #[inline(always)]
    fn tell_of_room(&self, before: (usize, usize)) {
        if self.consumer.quarter() != before {
            wake::nudge(self.joint.memory.sides(self.joint.which).1);
        }
    }

    /// Waits in this end's way until something can be received, for `limit` at most. A spinning end
    /// looks once and comes back. Answers whether a receive is worth trying.
    pub fn wait_readable(&mut self, limit: Duration) -> bool {
        if !SLEEPS {
            return true;
        }
        self.wait(Want::Record, limit) != Err(Stop::TimedOut)
    }

    /// Tells the other end that nothing more will come.
    pub fn finish(&mut self) {
        let (own, peer) = self.joint.memory.sides(self.joint.which);
        own.state.fetch_or(FINISHED, Release);
        wake::nudge(peer);
    }

    /// The CPU on which the other end waited last, if it has waited; its own claim.
    pub fn peer_cpu(&self) -> Option<u32> {
        self.joint.memory.sides(self.joint.which).1.cpu.load(Relaxed).checked_sub(1)
    }

    #[inline(always)]
    fn is_there(&mut self, want: Want) -> bool {
        let (out, back) = self.joint.memory.lanes(self.joint.which);
        match want {
            Want::Record => self.consumer.is_ready(back),
            Want::Room(length) => self.producer.has_room(out, length),
        }
    }

    /// Whether the other end says that what is wanted will never come.
    fn is_over(&self, want: Want) -> bool {
        let over = match want {
            Want::Record => FINISHED | GONE,
            Want::Room(_) => GONE,
        };
        self.joint.memory.sides(self.joint.which).1.state.load(Acquire) & over != 0
    }

    /// After a receive in vain that does not wait: whether there is still anybody to wait for.
    #[inline(always)]
    fn missed(&mut self) -> Result<(), Stop> {
        self.misses += 1;
        if self.misses < MISSES && !self.dead && !self.is_over(Want::Record) {
            return Ok(());
        }
        self.look_for_life(Want::Record)
    }

    /// # Errors
    /// [`Stop::Closed`] if the other end has finished, left or died, and nothing of it is there.
    #[cold]
    fn look_for_life(&mut self, want: Want) -> Result<(), Stop> {
        self.misses = 0;
        let now = self.clock.now();
        let since = Duration::from_nanos(self.clock.ns(now.saturating_sub(self.life_looked)));
        if !self.dead && since >= LIFE_LOOK {
            self.life_looked = now;
            // An error counts as death: the descriptor is ours, so it can be nothing passing.
            self.dead =
                poll::readable(self.joint.lifeline.as_raw_fd(), Duration::ZERO).unwrap_or(true);
        }
        // What was sent before the end is still there to be taken.
        if (self.dead || self.is_over(want)) && !self.is_there(want) {
            Err(Stop::Closed)
        } else {
            Ok(())
        }
    }

    #[inline(always)]
    fn wait(&mut self, want: Want, limit: Duration) -> Result<(), Stop> {
        if !self.together && self.spin(want) {
            return Ok(());
        }
        self.wait_on(want, limit)
    }

    #[inline(always)]
    fn spin(&mut self, want: Want) -> bool {
        (0..TURNS).any(|_| {
            let there = self.is_there(want);
            if !there {
                std::hint::spin_loop();
            }
            there
        })
    }

    #[cold]
    fn wait_on(&mut self, want: Want, limit: Duration) -> Result<(), Stop> {
        let begin = self.clock.now();
        loop {
            self.compare_cpus();
            let waited = self.clock.now().saturating_sub(begin);
            let waited = Duration::from_nanos(self.clock.ns(waited));
            if self.is_there(want) {
                return Ok(());
            }
            self.look_for_life(want)?;
            if waited >= limit {
                return Err(Stop::TimedOut);
            }
            if SLEEPS && (self.together || waited >= SPIN) {
                self.sleep(want, (limit - waited).min(SLEEP_MAX));
            } else if self.together {
                std::thread::yield_now();
            } else if self.spin(want) {
                return Ok(());
            }
        }
    }

    fn sleep(&mut self, want: Want, limit: Duration) {
        let End { joint, producer, consumer, .. } = self;
        let (own, peer) = joint.memory.sides(joint.which);
        let (out, back) = joint.memory.lanes(joint.which);
        wake::sleep(own, limit, || {
            let there = match want {
                Want::Record => consumer.is_ready(back),
                Want::Room(length) => producer.has_room(out, length),
            };
            there || peer.state.load(Acquire) != 0
        });
    }

    /// Shows on which CPU this end waits, and looks whether the other end waits there as well: then
    /// to spin is to keep it from running.
    fn compare_cpus(&mut self) {
        let (own, peer) = self.joint.memory.sides(self.joint.which);
        let cpu = cpu::current().wrapping_add(1);
        if cpu != self.shown_cpu {
            own.cpu.store(cpu, Relaxed);
            self.shown_cpu = cpu;
        }
        self.together = peer.cpu.load(Relaxed) == cpu;
    }
}

impl<const SLEEPS: bool> Drop for End<SLEEPS> {
    fn drop(&mut self) {
        let (own, peer) = self.joint.memory.sides(self.joint.which);
        own.state.fetch_or(FINISHED | GONE, Release);
        wake::nudge(peer);
    }
}
