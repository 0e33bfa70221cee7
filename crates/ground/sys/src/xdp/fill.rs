//! The fill ring: the free frames into which the kernel receives.

use super::ring::Producer;

/// The fill ring, and the frames that wait for room in it.
///
/// It has as many entries as there are frames for receiving. The kernel publishes a received frame
/// before it publishes that it took the entry off this ring, so the ring can look full for a
/// moment. A frame that does not fit waits until then.
#[derive(Debug)]
pub struct FillRing {
    ring: Producer<u64>,
    frames: usize,
    waiting: Vec<u64>,
}

impl FillRing {
    /// Gives all `frames` to the kernel; the ring must be empty and have room for them.
    pub fn new(mut ring: Producer<u64>, frames: impl Iterator<Item = u64>) -> FillRing {
        let mut count = 0;
        for frame in frames {
            assert!(ring.push(frame), "the fill ring has room for all receive frames");
            count += 1;
        }
        FillRing { ring, frames: count, waiting: Vec::with_capacity(count) }
    }

    /// Gives a received frame back to the kernel.
    #[inline(always)]
    pub fn give_back(&mut self, frame: u64) {
        if !self.waiting.is_empty() || !self.ring.push(frame) {
            self.give_back_later(frame);
        }
    }

    #[cold]
    fn give_back_later(&mut self, frame: u64) {
        self.waiting.push(frame);
        debug_assert!(self.waiting.len() <= self.frames, "a frame was given back twice");
        self.offer_waiting();
    }

    /// Gives the kernel the frames that wait, as far as there is room.
    pub fn offer_waiting(&mut self) {
        while let Some(frame) = self.waiting.last() {
            if !self.ring.push(*frame) {
                break;
            }
            self.waiting.pop();
        }
    }

    /// Whether the kernel needs a system call before it reads the ring.
    #[inline(always)]
    pub fn needs_wakeup(&self) -> bool {
        self.ring.needs_wakeup()
    }
}

#[cfg(test)]
mod tests {
    use super::super::ring::MappedMemory;
    use super::super::ring::testing::{ENTRIES, OFFSETS, ring};
    use super::*;
    use proptest::prelude::*;

    /// The kernel's side of the ring. It reads entries like a driver, and publishes how many it
    /// took only when a test asks for it.
    struct Kernel {
        memory: MappedMemory,
        taken: u32,
        start: u32,
    }

    impl Kernel {
        fn word(&self, at: u64) -> u32 {
            u32::from_ne_bytes(self.memory.bytes(at as usize, 4).try_into().unwrap())
        }

        /// Takes a frame to receive into, if there is one.
        fn take(&mut self) -> Option<u64> {
            let position = self.start.wrapping_add(self.taken);
            if position == self.word(OFFSETS.producer) {
                return None;
            }
            let at = OFFSETS.desc as usize + (position % ENTRIES) as usize * size_of::<u64>();
            self.taken += 1;
            Some(u64::from_ne_bytes(self.memory.bytes(at, size_of::<u64>()).try_into().unwrap()))
        }

        fn publish(&mut self) {
            let consumer = self.start.wrapping_add(self.taken).to_ne_bytes();
            self.memory.bytes_mut(OFFSETS.consumer as usize, 4).copy_from_slice(&consumer);
        }
    }

    fn full(start: u32) -> (FillRing, Kernel) {
        let (producer, _, memory) = ring(start);
        let frames = (0..u64::from(ENTRIES)).map(|number| number * 2048);
        (FillRing::new(producer, frames), Kernel { memory, taken: 0, start })
    }

    /// All frames that the kernel can take now, in ascending order.
    fn take_all(kernel: &mut Kernel) -> Vec<u64> {
        let mut frames: Vec<u64> = std::iter::from_fn(|| kernel.take()).collect();
        frames.sort_unstable();
        frames
    }

    #[test]
    fn a_frame_given_back_before_the_kernel_publishes_is_not_lost() {
        let (mut fill, mut kernel) = full(0);
        let first = kernel.take().unwrap();
        let second = kernel.take().unwrap();
        fill.give_back(first);
        assert_eq!(fill.waiting, [first], "the ring looks full");
        kernel.publish();
        fill.give_back(second);
        assert!(fill.waiting.is_empty());
        let all: Vec<u64> = (0..u64::from(ENTRIES)).map(|number| number * 2048).collect();
        assert_eq!(take_all(&mut kernel), all);
    }

    #[test]
    fn a_receiver_that_waits_offers_what_did_not_fit() {
        let (mut fill, mut kernel) = full(0);
        let frames = take_all(&mut kernel);
        frames.iter().for_each(|frame| fill.give_back(*frame));
        assert_eq!(fill.waiting.len(), frames.len(), "the kernel has published nothing");
        assert_eq!(kernel.take(), None);
        kernel.publish();
        fill.offer_waiting();
        assert_eq!(take_all(&mut kernel), frames);
    }

    proptest! {
        /// In any order of steps, each frame is at one place only and can be received into again.
        #[test]
        fn no_frame_is_lost_or_given_twice(
            start in prop_oneof![any::<u32>(), u32::MAX - 20..=u32::MAX],
            steps in proptest::collection::vec(0..3, 0..200),
        ) {
            let (mut fill, mut kernel) = full(start);
            let mut received = std::collections::VecDeque::new();
            for step in steps {
                match step {
                    0 => received.extend(kernel.take()),
                    1 => kernel.publish(),
                    _ => received.pop_front().into_iter().for_each(|frame| fill.give_back(frame)),
                }
            }
            received.into_iter().for_each(|frame| fill.give_back(frame));
            let mut all = take_all(&mut kernel);
            kernel.publish();
            fill.offer_waiting();
            all.extend(take_all(&mut kernel));
            all.sort_unstable();
            let expected: Vec<u64> = (0..u64::from(ENTRIES)).map(|number| number * 2048).collect();
            prop_assert_eq!(all, expected);
        }
    }
}
