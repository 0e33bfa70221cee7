//! Middleware: wrappers that lose, delay or trace what passes through any transport.

use std::collections::BTreeMap;
use std::time::Duration;

use nm_model::Doubt;
use nm_sys::clock::Deadline;

use crate::sim::Dice;
use crate::{Fault, Transport};

/// Loses datagrams on sending, by seed. On a stream it does nothing: streams lose nothing.
#[derive(Debug)]
pub struct Lossy<T> {
    inner: T,
    chance: f64,
    dice: Dice,
}

impl<T> Lossy<T> {
    /// Loses each datagram with this chance, 0 to 1.
    pub fn new(inner: T, chance: f64, seed: u64) -> Lossy<T> {
        Lossy { inner, chance, dice: Dice::new(seed) }
    }
}

/// Holds the thread up for a fixed time before each message that it sends.
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

    fn hold(&self) {
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

/// Tells `watcher` of each call before and after it.
#[derive(Debug)]
pub struct Traced<T, F> {
    inner: T,
    watcher: F,
}

impl<T, F: FnMut(Event)> Traced<T, F> {
    /// Watches `inner`.
    pub fn new(inner: T, watcher: F) -> Traced<T, F> {
        Traced { inner, watcher }
    }

    #[inline(always)]
    fn sending<R>(&mut self, call: impl FnOnce(&mut T) -> R) -> R {
        (self.watcher)(Event::Sending);
        let result = call(&mut self.inner);
        (self.watcher)(Event::Sent);
        result
    }

    #[inline(always)]
    fn receiving<R>(&mut self, call: impl FnOnce(&mut T) -> R) -> R {
        (self.watcher)(Event::Receiving);
        let result = call(&mut self.inner);
        (self.watcher)(Event::Received);
        result
    }
}

impl<T: Transport> Transport for Lossy<T> {
    const DATAGRAM: bool = T::DATAGRAM;

    fn send(&mut self, message: &[u8]) -> Result<(), Fault> {
        if T::DATAGRAM && self.dice.happens(self.chance) {
            return Ok(());
        }
        self.inner.send(message)
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Result<usize, Fault> {
        self.inner.receive(buffer)
    }

    fn receive_some(&mut self, buffer: &mut [u8]) -> Result<usize, Fault> {
        self.inner.receive_some(buffer)
    }

    fn try_send(&mut self, bytes: &[u8]) -> Result<Option<usize>, Fault> {
        if T::DATAGRAM && self.dice.happens(self.chance) {
            return Ok(Some(bytes.len()));
        }
        self.inner.try_send(bytes)
    }

    fn try_receive(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, Fault> {
        self.inner.try_receive(buffer)
    }

    fn wait(&mut self, limit: Duration) -> Result<bool, Fault> {
        self.inner.wait(limit)
    }

    fn end_sending(&mut self, lengths: &[usize]) {
        self.inner.end_sending(lengths);
    }

    fn poke(&mut self, lengths: &[usize]) -> Result<(), Fault> {
        self.inner.poke(lengths)
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

    fn settings(&self) -> BTreeMap<String, String> {
        self.inner.settings()
    }
}

impl<T: Transport> Transport for Delayed<T> {
    const DATAGRAM: bool = T::DATAGRAM;

    fn send(&mut self, message: &[u8]) -> Result<(), Fault> {
        self.hold();
        self.inner.send(message)
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Result<usize, Fault> {
        self.inner.receive(buffer)
    }

    fn receive_some(&mut self, buffer: &mut [u8]) -> Result<usize, Fault> {
        self.inner.receive_some(buffer)
    }

    fn try_send(&mut self, bytes: &[u8]) -> Result<Option<usize>, Fault> {
        self.hold();
        self.inner.try_send(bytes)
    }

    fn try_receive(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, Fault> {
        self.inner.try_receive(buffer)
    }

    fn wait(&mut self, limit: Duration) -> Result<bool, Fault> {
        self.inner.wait(limit)
    }

    fn end_sending(&mut self, lengths: &[usize]) {
        self.inner.end_sending(lengths);
    }

    fn poke(&mut self, lengths: &[usize]) -> Result<(), Fault> {
        self.inner.poke(lengths)
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

    fn settings(&self) -> BTreeMap<String, String> {
        self.inner.settings()
    }
}

impl<T: Transport, F: FnMut(Event) + Send> Transport for Traced<T, F> {
    const DATAGRAM: bool = T::DATAGRAM;

    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> Result<(), Fault> {
        self.sending(|inner| inner.send(message))
    }

    #[inline(always)]
    fn receive(&mut self, buffer: &mut [u8]) -> Result<usize, Fault> {
        self.receiving(|inner| inner.receive(buffer))
    }

    #[inline(always)]
    fn receive_some(&mut self, buffer: &mut [u8]) -> Result<usize, Fault> {
        self.receiving(|inner| inner.receive_some(buffer))
    }

    #[inline(always)]
    fn try_send(&mut self, bytes: &[u8]) -> Result<Option<usize>, Fault> {
        self.sending(|inner| inner.try_send(bytes))
    }

    #[inline(always)]
    fn try_receive(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, Fault> {
        self.receiving(|inner| inner.try_receive(buffer))
    }

    fn wait(&mut self, limit: Duration) -> Result<bool, Fault> {
        self.inner.wait(limit)
    }

    fn end_sending(&mut self, lengths: &[usize]) {
        self.inner.end_sending(lengths);
    }

    fn poke(&mut self, lengths: &[usize]) -> Result<(), Fault> {
        self.inner.poke(lengths)
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

    fn settings(&self) -> BTreeMap<String, String> {
        self.inner.settings()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{Mishaps, pair};

    #[test]
    fn loss_delay_and_trace_wrap_any_transport() {
        let (a, mut b) = pair(Mishaps::default(), 0);
        let mut events = vec![];
        let mut sender =
            Traced::new(Delayed::new(a, Duration::from_micros(10)), |event| events.push(event));
        sender.send(b"one").unwrap();
        assert_eq!(b.receive(&mut [0; 8]), Ok(3));
        drop(sender);
        assert_eq!(events, [Event::Sending, Event::Sent]);

        let (a, mut b) = pair(Mishaps::default(), 0);
        Lossy::new(a, 1.0, 0).send(b"gone").unwrap();
        assert_eq!(b.receive(&mut [0; 8]), Err(Fault::Closed));
    }
}
