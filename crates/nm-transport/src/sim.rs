//! A pair of transports without a kernel: datagrams through memory, with seeded mishaps.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use nm_sys::clock::Deadline;

use crate::greeting::{self, Word};
use crate::{Fault, SLICE, Transport};

/// What happens to datagrams on their way; each chance is 0 to 1.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mishaps {
    /// Chance to vanish.
    pub loss: f64,
    /// Chance to arrive twice.
    pub duplicate: f64,
    /// Chance to overtake the one before.
    pub reorder: f64,
    /// Time on the way.
    pub delay: Duration,
}

/// Random numbers by SplitMix64 (Steele, Lea and Flood, 2014): small, and the same for a seed
/// everywhere.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// Dice that fall by `seed`.
    pub fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    /// Whether something of this chance happens.
    pub fn happens(&mut self, chance: f64) -> bool {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        ((bits >> 11) as f64 / (1u64 << 53) as f64) < chance
    }
}

/// One end of a simulated pair.
#[derive(Debug)]
pub struct Sim {
    to_peer: Arc<Path>,
    from_peer: Arc<Path>,
    mishaps: Mishaps,
    dice: Dice,
}

/// Datagrams on their way in one direction.
#[derive(Debug, Default)]
struct Path {
    state: Mutex<PathState>,
    arrival: Condvar,
}

#[derive(Debug, Default)]
struct PathState {
    queue: VecDeque<(Deadline, Vec<u8>)>,
    closed: bool,
}

/// Datagrams that fit on a path; more are lost, as in a full socket buffer.
const QUEUE_MAX: usize = 4_096;

/// Two ends whose datagrams meet `mishaps`, by `seed`, in both directions.
pub fn pair(mishaps: Mishaps, seed: u64) -> (Sim, Sim) {
    let (a, b) = (Arc::new(Path::default()), Arc::new(Path::default()));
    let end = |to_peer: &Arc<Path>, from_peer: &Arc<Path>, seed| Sim {
        to_peer: Arc::clone(to_peer),
        from_peer: Arc::clone(from_peer),
        mishaps,
        dice: Dice::new(seed),
    };
    (end(&a, &b, seed), end(&b, &a, !seed))
}

impl Path {
    fn lock(&self) -> std::sync::MutexGuard<'_, PathState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sim {
    /// Takes the first datagram that has arrived; waits for it until `deadline`.
    fn take(&mut self, buffer: &mut [u8], deadline: Deadline) -> Result<usize, Fault> {
        let mut state = self.from_peer.lock();
        loop {
            let due = state.queue.front().map(|(due, _)| due.remaining());
            if due == Some(Duration::ZERO)
                && let Some((_, datagram)) = state.queue.pop_front()
            {
                let length = datagram.len().min(buffer.len());
                buffer[..length].copy_from_slice(&datagram[..length]);
                return Ok(length);
            }
            if due.is_none() && state.closed {
                return Err(Fault::Closed);
            }
            let left = deadline.remaining();
            if left.is_zero() {
                return Err(Fault::TimedOut);
            }
            let pause = due.map_or(left, |due| due.min(left));
            let woken = self.from_peer.arrival.wait_timeout(state, pause);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Transport for Sim {
    const DATAGRAM: bool = true;

    fn send(&mut self, message: &[u8]) -> Result<(), Fault> {
        let Mishaps { loss, duplicate, reorder, delay } = self.mishaps;
        let mut state = self.to_peer.lock();
        if state.closed {
            return Err(Fault::Closed);
        }
        if self.dice.happens(loss) {
            return Ok(());
        }
        let copies = if self.dice.happens(duplicate) { 2 } else { 1 };
        for _ in 0..copies {
            if state.queue.len() < QUEUE_MAX {
                state.queue.push_back((Deadline::after(delay), message.to_vec()));
            }
        }
        let length = state.queue.len();
        if length > 1 && self.dice.happens(reorder) {
            state.queue.swap(length - 1, length - 2);
        }
        self.to_peer.arrival.notify_one();
        Ok(())
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Result<usize, Fault> {
        self.take(buffer, Deadline::after(SLICE))
    }

    fn receive_some(&mut self, buffer: &mut [u8]) -> Result<usize, Fault> {
        self.receive(buffer)
    }

    fn try_send(&mut self, bytes: &[u8]) -> Result<Option<usize>, Fault> {
        self.send(bytes).map(|()| Some(bytes.len()))
    }

    fn try_receive(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, Fault> {
        match self.take(buffer, Deadline::after(Duration::ZERO)) {
            Ok(length) => Ok(Some(length)),
            Err(Fault::TimedOut) => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    fn wait(&mut self, limit: Duration) -> Result<bool, Fault> {
        let deadline = Deadline::after(limit);
        let mut state = self.from_peer.lock();
        loop {
            let due = state.queue.front().map(|(due, _)| due.remaining());
            if due == Some(Duration::ZERO) || state.closed {
                return Ok(true);
            }
            let left = deadline.remaining();
            if left.is_zero() {
                return Ok(false);
            }
            let pause = due.map_or(left, |due| due.min(left));
            let woken = self.from_peer.arrival.wait_timeout(state, pause);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn end_sending(&mut self, lengths: &[usize]) {
        let mut buffer = [0; greeting::BYTES_MAX];
        // The last word must arrive, so it meets no mishap.
        let bye = greeting::write(Word::Bye, lengths, &mut buffer).to_vec();
        self.to_peer.lock().queue.push_back((Deadline::after(self.mishaps.delay), bye));
        self.to_peer.arrival.notify_one();
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        for path in [&self.to_peer, &self.from_peer] {
            path.lock().closed = true;
            path.arrival.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends the numbers below `count` and answers those that arrive.
    fn arrivals(mishaps: Mishaps, seed: u64, count: u8) -> Vec<u8> {
        let (mut a, mut b) = pair(mishaps, seed);
        for number in 0..count {
            a.send(&[number]).unwrap();
        }
        drop(a);
        let mut buffer = [0; 4];
        std::iter::from_fn(|| match b.receive(&mut buffer) {
            Ok(_) => Some(buffer[0]),
            Err(fault) => {
                assert_eq!(fault, Fault::Closed);
                None
            }
        })
        .collect()
    }

    #[test]
    fn without_mishaps_all_arrive_in_order() {
        let mishaps = Mishaps { delay: Duration::from_millis(2), ..Mishaps::default() };
        assert_eq!(arrivals(mishaps, 1, 100), (0..100).collect::<Vec<u8>>());
    }

    #[test]
    fn mishaps_happen_and_repeat_by_seed() {
        let lossy = Mishaps { loss: 0.3, ..Mishaps::default() };
        let count = arrivals(lossy, 7, 200).len();
        assert!((100..180).contains(&count), "{count}");
        assert_eq!(arrivals(lossy, 7, 200), arrivals(lossy, 7, 200));
        assert_ne!(arrivals(lossy, 7, 200), arrivals(lossy, 8, 200));
        let doubling = Mishaps { duplicate: 0.5, ..Mishaps::default() };
        assert!(arrivals(doubling, 7, 100).len() > 120);
        let shuffling = Mishaps { reorder: 0.5, ..Mishaps::default() };
        let mut shuffled = arrivals(shuffling, 7, 100);
        assert!(!shuffled.is_sorted());
        shuffled.sort_unstable();
        assert_eq!(shuffled, (0..100).collect::<Vec<u8>>());
    }

    #[test]
    fn nothing_sent_is_a_time_out_and_a_lost_peer_ends() {
        let (a, mut b) = pair(Mishaps::default(), 0);
        assert_eq!(b.try_receive(&mut [0]), Ok(None));
        assert!(!b.wait(Duration::from_millis(1)).unwrap());
        assert_eq!(b.receive(&mut [0]), Err(Fault::TimedOut));
        drop(a);
        assert_eq!(b.receive(&mut [0]), Err(Fault::Closed));
        assert_eq!(b.send(&[0]), Err(Fault::Closed));
    }
}
