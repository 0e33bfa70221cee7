//! Wrappers that lose, delay or trace what passes through any transport.

use std::time::Duration;

use nm_model::Doubt;
use nm_model::setting::Settings;
use nm_sys::clock::Deadline;

use crate::sim::Rng;
use crate::transport::{Transport, TransportError};

/// Loses datagrams on sending, by seed. Does nothing on a stream.
#[derive(Debug)]
pub struct Lossy<T> {
    inner: T,
    probability: f64,
    rng: Rng,
}

impl<T> Lossy<T> {
    /// Loses each datagram with this probability, 0 to 1.
    pub fn new(inner: T, probability: f64, seed: u64) -> Lossy<T> {
        assert!((0.0..=1.0).contains(&probability), "{probability} is not a probability");
        Lossy { inner, probability, rng: Rng::new(seed) }
    }
}

/// Delays the thread for a fixed time before each message that it sends.
#[derive(Debug)]
pub struct Delayed<T> {
    inner: T,
    delay: Duration,
}

impl<T> Delayed<T> {
    /// Delays each message by `delay`.
    pub fn new(inner: T, delay: Duration) -> Delayed<T> {
        Delayed { inner, delay }
    }

    fn spin(&self) {
        let deadline = Deadline::after(self.delay);
        while !deadline.passed() {
            std::hint::spin_loop();
        }
    }
}

/// What passed through a [`Traced`] transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A send is about to begin.
    Sending,
    /// A send has ended.
    Sent,
    /// A receive is about to begin.
    Receiving,
    /// A receive has ended.
    Received,
}

/// Calls `observer` before and after each call.
#[derive(Debug)]
pub struct Traced<T, F> {
    inner: T,
    observer: F,
}

impl<T, F: FnMut(Event)> Traced<T, F> {
    /// Observes `inner`.
    pub fn new(inner: T, observer: F) -> Traced<T, F> {
        Traced { inner, observer }
    }

    #[inline(always)]
    fn observe_send<R>(&mut self, call: impl FnOnce(&mut T) -> R) -> R {
        (self.observer)(Event::Sending);
        let result = call(&mut self.inner);
        (self.observer)(Event::Sent);
        result
    }

    #[inline(always)]
    fn observe_receive<R>(&mut self, call: impl FnOnce(&mut T) -> R) -> R {
        (self.observer)(Event::Receiving);
        let result = call(&mut self.inner);
        (self.observer)(Event::Received);
        result
    }
}

impl<T: Transport> Transport for Lossy<T> {
    const DATAGRAM: bool = T::DATAGRAM;

    fn send(&mut self, message: &[u8]) -> Result<(), TransportError> {
        if T::DATAGRAM && self.rng.event(self.probability) {
            return Ok(());
        }
        self.inner.send(message)
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Result<usize, TransportError> {
        self.inner.receive(buffer)
    }

    fn receive_some(&mut self, buffer: &mut [u8]) -> Result<usize, TransportError> {
        self.inner.receive_some(buffer)
    }

    fn try_send(&mut self, bytes: &[u8]) -> Result<Option<usize>, TransportError> {
        if T::DATAGRAM && self.rng.event(self.probability) {
            return Ok(Some(bytes.len()));
        }
        self.inner.try_send(bytes)
    }

    fn try_receive(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, TransportError> {
        self.inner.try_receive(buffer)
    }

    fn wait(&mut self, limit: Duration) -> Result<bool, TransportError> {
        self.inner.wait(limit)
    }

    fn end_sending(&mut self, message_lengths: &[usize]) {
        self.inner.end_sending(message_lengths);
    }

    fn send_keepalive(&mut self, message_lengths: &[usize]) -> Result<(), TransportError> {
        self.inner.send_keepalive(message_lengths)
    }

    fn retransmits(&self) -> Option<u64> {
        self.inner.retransmits()
    }

    fn peer_cpu(&self) -> Option<u32> {
        self.inner.peer_cpu()
    }

    fn doubts(&self) -> Vec<Doubt> {
        self.inner.doubts()
    }

    fn settings(&self) -> Settings {
        self.inner.settings()
    }
}

impl<T: Transport> Transport for Delayed<T> {
    const DATAGRAM: bool = T::DATAGRAM;

    fn send(&mut self, message: &[u8]) -> Result<(), TransportError> {
        self.spin();
        self.inner.send(message)
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Result<usize, TransportError> {
        self.inner.receive(buffer)
    }

    fn receive_some(&mut self, buffer: &mut [u8]) -> Result<usize, TransportError> {
        self.inner.receive_some(buffer)
    }

    fn try_send(&mut self, bytes: &[u8]) -> Result<Option<usize>, TransportError> {
        self.spin();
        self.inner.try_send(bytes)
    }

    fn try_receive(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, TransportError> {
        self.inner.try_receive(buffer)
    }

    fn wait(&mut self, limit: Duration) -> Result<bool, TransportError> {
        self.inner.wait(limit)
    }

    fn end_sending(&mut self, message_lengths: &[usize]) {
        self.inner.end_sending(message_lengths);
    }

    fn send_keepalive(&mut self, message_lengths: &[usize]) -> Result<(), TransportError> {
        self.inner.send_keepalive(message_lengths)
    }

    fn retransmits(&self) -> Option<u64> {
        self.inner.retransmits()
    }

    fn peer_cpu(&self) -> Option<u32> {
        self.inner.peer_cpu()
    }

    fn doubts(&self) -> Vec<Doubt> {
        self.inner.doubts()
    }

    fn settings(&self) -> Settings {
        self.inner.settings()
    }
}

impl<T: Transport, F: FnMut(Event) + Send> Transport for Traced<T, F> {
    const DATAGRAM: bool = T::DATAGRAM;

    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> Result<(), TransportError> {
        self.observe_send(|inner| inner.send(message))
    }

    #[inline(always)]
    fn receive(&mut self, buffer: &mut [u8]) -> Result<usize, TransportError> {
        self.observe_receive(|inner| inner.receive(buffer))
    }

    #[inline(always)]
    fn receive_some(&mut self, buffer: &mut [u8]) -> Result<usize, TransportError> {
        self.observe_receive(|inner| inner.receive_some(buffer))
    }

    #[inline(always)]
    fn try_send(&mut self, bytes: &[u8]) -> Result<Option<usize>, TransportError> {
        self.observe_send(|inner| inner.try_send(bytes))
    }

    #[inline(always)]
    fn try_receive(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, TransportError> {
        self.observe_receive(|inner| inner.try_receive(buffer))
    }

    fn wait(&mut self, limit: Duration) -> Result<bool, TransportError> {
        self.inner.wait(limit)
    }

    fn end_sending(&mut self, message_lengths: &[usize]) {
        self.inner.end_sending(message_lengths);
    }

    fn send_keepalive(&mut self, message_lengths: &[usize]) -> Result<(), TransportError> {
        self.inner.send_keepalive(message_lengths)
    }

    fn retransmits(&self) -> Option<u64> {
        self.inner.retransmits()
    }

    fn peer_cpu(&self) -> Option<u32> {
        self.inner.peer_cpu()
    }

    fn doubts(&self) -> Vec<Doubt> {
        self.inner.doubts()
    }

    fn settings(&self) -> Settings {
        self.inner.settings()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{FaultConfig, pair};

    #[test]
    fn loss_delay_and_trace_wrap_any_transport() {
        let (a, mut b) = pair(FaultConfig::default(), 0);
        let mut events = vec![];
        let mut sender =
            Traced::new(Delayed::new(a, Duration::from_micros(10)), |event| events.push(event));
        sender.send(b"one").unwrap();
        assert_eq!(b.receive(&mut [0; 8]), Ok(3));
        drop(sender);
        assert_eq!(events, [Event::Sending, Event::Sent]);

        let (a, mut b) = pair(FaultConfig::default(), 0);
        Lossy::new(a, 1.0, 0).send(b"gone").unwrap();
        assert_eq!(b.receive(&mut [0; 8]), Err(TransportError::Closed));
    }
}
