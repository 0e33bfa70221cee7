//! A pair of simulated transports: datagrams through memory, with seeded fault injection.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use nm_sys::clock::Deadline;

use crate::handshake::{self, HandshakeMessage};
use crate::transport::{CALL_TIMEOUT, Transport, TransportError};

/// Which faults are injected; each probability is 0 to 1.
#[derive(Debug, Clone, Copy, Default)]
pub struct FaultConfig {
    /// Probability that a datagram is lost.
    pub loss: f64,
    /// Probability that a datagram arrives twice.
    pub duplicate: f64,
    /// Probability that a datagram overtakes the one before.
    pub reorder: f64,
    /// Latency of each datagram.
    pub delay: Duration,
}

/// A random number generator, SplitMix64 (Steele, Lea and Flood, 2014): small, and the same for a
/// seed everywhere.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// A generator with this seed.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// True with this probability.
    pub fn event(&mut self, probability: f64) -> bool {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        ((bits >> 11) as f64 / (1u64 << 53) as f64) < probability
    }
}

/// One end of a simulated pair.
#[derive(Debug)]
pub struct SimulatedTransport {
    to_peer: Arc<SimulatedLink>,
    from_peer: Arc<SimulatedLink>,
    faults: FaultConfig,
    rng: Rng,
}

/// Datagrams in flight in one direction.
#[derive(Debug, Default)]
struct SimulatedLink {
    state: Mutex<LinkState>,
    arrival: Condvar,
}

#[derive(Debug, Default)]
struct LinkState {
    queue: VecDeque<(Deadline, Vec<u8>)>,
    closed: bool,
}

/// Datagrams that may be in flight; more are lost, as in a full socket buffer.
const QUEUE_MAX: usize = 4_096;

/// Two ends with the same faults in both directions, which follow from `seed`.
pub fn pair(faults: FaultConfig, seed: u64) -> (SimulatedTransport, SimulatedTransport) {
    let (a, b) = (Arc::new(SimulatedLink::default()), Arc::new(SimulatedLink::default()));
    let end = |to_peer: &Arc<SimulatedLink>, from_peer: &Arc<SimulatedLink>, seed| {
        let (to_peer, from_peer) = (Arc::clone(to_peer), Arc::clone(from_peer));
        SimulatedTransport { to_peer, from_peer, faults, rng: Rng::new(seed) }
    };
    (end(&a, &b, seed), end(&b, &a, !seed))
}

impl SimulatedLink {
    fn lock(&self) -> std::sync::MutexGuard<'_, LinkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SimulatedTransport {
    /// Receives the first datagram that has arrived; waits for it until `deadline`.
    fn receive_until(
        &mut self,
        buffer: &mut [u8],
        deadline: Deadline,
    ) -> Result<usize, TransportError> {
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
                return Err(TransportError::Closed);
            }
            let left = deadline.remaining();
            if left.is_zero() {
                return Err(TransportError::TimedOut);
            }
            let pause = due.map_or(left, |due| due.min(left));
            let woken = self.from_peer.arrival.wait_timeout(state, pause);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Transport for SimulatedTransport {
    const DATAGRAM: bool = true;

    fn send(&mut self, message: &[u8]) -> Result<(), TransportError> {
        let FaultConfig { loss, duplicate, reorder, delay } = self.faults;
        let mut state = self.to_peer.lock();
        if state.closed {
            return Err(TransportError::Closed);
        }
        if self.rng.event(loss) {
            return Ok(());
        }
        let copies = if self.rng.event(duplicate) { 2 } else { 1 };
        for _ in 0..copies {
            if state.queue.len() < QUEUE_MAX {
                state.queue.push_back((Deadline::after(delay), message.to_vec()));
            }
        }
        let length = state.queue.len();
        if length > 1 && self.rng.event(reorder) {
            state.queue.swap(length - 1, length - 2);
        }
        self.to_peer.arrival.notify_one();
        Ok(())
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Result<usize, TransportError> {
        self.receive_until(buffer, Deadline::after(CALL_TIMEOUT))
    }

    fn receive_some(&mut self, buffer: &mut [u8]) -> Result<usize, TransportError> {
        self.receive(buffer)
    }

    fn try_send(&mut self, bytes: &[u8]) -> Result<Option<usize>, TransportError> {
        self.send(bytes).map(|()| Some(bytes.len()))
    }

    fn try_receive(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, TransportError> {
        match self.receive_until(buffer, Deadline::after(Duration::ZERO)) {
            Ok(length) => Ok(Some(length)),
            Err(TransportError::TimedOut) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn wait(&mut self, limit: Duration) -> Result<bool, TransportError> {
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

    fn end_sending(&mut self, message_lengths: &[usize]) {
        let mut buffer = [0; handshake::BYTES_MAX];
        // The close message must arrive, so no fault is injected.
        let close = handshake::encode(HandshakeMessage::Close, message_lengths, &mut buffer);
        let due = Deadline::after(self.faults.delay);
        self.to_peer.lock().queue.push_back((due, close.to_vec()));
        self.to_peer.arrival.notify_one();
    }
}

impl Drop for SimulatedTransport {
    fn drop(&mut self) {
        for link in [&self.to_peer, &self.from_peer] {
            link.lock().closed = true;
            link.arrival.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends the numbers below `count` and returns those that arrive.
    fn arrivals(faults: FaultConfig, seed: u64, count: u8) -> Vec<u8> {
        let (mut a, mut b) = pair(faults, seed);
        for number in 0..count {
            a.send(&[number]).unwrap();
        }
        drop(a);
        let mut buffer = [0; 4];
        std::iter::from_fn(|| match b.receive(&mut buffer) {
            Ok(_) => Some(buffer[0]),
            Err(error) => {
                assert_eq!(error, TransportError::Closed);
                None
            }
        })
        .collect()
    }

    #[test]
    fn without_faults_all_datagrams_arrive_in_order() {
        let faults = FaultConfig { delay: Duration::from_millis(2), ..FaultConfig::default() };
        assert_eq!(arrivals(faults, 1, 100), (0..100).collect::<Vec<u8>>());
    }

    #[test]
    fn faults_follow_from_the_seed() {
        let lossy = FaultConfig { loss: 0.3, ..FaultConfig::default() };
        let count = arrivals(lossy, 7, 200).len();
        assert!((100..180).contains(&count), "{count}");
        assert_eq!(arrivals(lossy, 7, 200), arrivals(lossy, 7, 200));
        assert_ne!(arrivals(lossy, 7, 200), arrivals(lossy, 8, 200));
        let doubling = FaultConfig { duplicate: 0.5, ..FaultConfig::default() };
        assert!(arrivals(doubling, 7, 100).len() > 120);
        let shuffling = FaultConfig { reorder: 0.5, ..FaultConfig::default() };
        let mut shuffled = arrivals(shuffling, 7, 100);
        assert!(!shuffled.is_sorted());
        shuffled.sort_unstable();
        assert_eq!(shuffled, (0..100).collect::<Vec<u8>>());
    }

    #[test]
    fn idle_peer_is_a_timeout_and_a_dropped_peer_is_closed() {
        let (a, mut b) = pair(FaultConfig::default(), 0);
        assert_eq!(b.try_receive(&mut [0]), Ok(None));
        assert!(!b.wait(Duration::from_millis(1)).unwrap());
        assert_eq!(b.receive(&mut [0]), Err(TransportError::TimedOut));
        drop(a);
        assert_eq!(b.receive(&mut [0]), Err(TransportError::Closed));
        assert_eq!(b.send(&[0]), Err(TransportError::Closed));
    }
}
