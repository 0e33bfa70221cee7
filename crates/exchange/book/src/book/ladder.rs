//! Price levels, best first. They are a window of ticks around the best one with a bitmap over it,
//! and a sorted list of the levels outside it.
//!
//! Levels are found by *key*, of which the highest is the best. The key is the price for buyers and
//! its bitwise complement for sellers, which reverses the order without an overflow. The window
//! follows the market: it moves once levels outside it have been used more often than moving costs.

use crate::order::{Price, Side};

use super::slab::{Queue, Slab, Slot};

/// Levels of the window: what a bitmap of one word over 64 words covers.
const WINDOW: usize = 64 * 64;

/// Uses of levels outside the window before it may move.
const MISSES_MIN: usize = 256;

/// A price, mapped so that the highest is the best.
pub type Key = i64;

/// Maps a price to its key, and a key back to its price.
pub fn key(side: Side, price: Price) -> Key {
    const { assert!(Side::Buy as i64 == 0 && Side::Sell as i64 == 1) };
    price ^ -(side as i64)
}

/// Price levels of one side.
#[derive(Debug, Clone)]
pub struct Ladder {
    /// Levels from `base` on; empty until the first order.
    window: Vec<Queue>,
    base: Key,
    /// One bit for each level of the window that has orders.
    filled: [u64; 64],
    /// One bit for each word of `filled` that is not zero.
    words: u64,
    /// Levels outside the window, the best at the end.
    far: Vec<(Key, Queue)>,
    misses: usize,
}

impl Ladder {
    pub const fn new() -> Ladder {
        Ladder { window: vec![], base: 0, filled: [0; 64], words: 0, far: vec![], misses: 0 }
    }

    /// Offset of a key in the window, if it lies in it.
    fn offset(&self, key: Key) -> Option<usize> {
        let offset = key.wrapping_sub(self.base) as u64;
        (offset < WINDOW as u64).then_some(offset as usize)
    }

    fn key_at(&self, offset: usize) -> Key {
        self.base + offset as i64
    }

    fn top(&self) -> Option<usize> {
        let word = 63usize.checked_sub(self.words.leading_zeros() as usize)?;
        Some(word * 64 + 63 - self.filled[word].leading_zeros() as usize)
    }

    /// The best level and the order at its front.
    #[inline(always)]
    pub fn best(&self) -> Option<(Key, Slot)> {
        let near = self.top().map(|offset| (self.key_at(offset), self.window[offset].head));
        match (near, self.far.last()) {
            (near, None) => near,
            (Some(near), Some((key, _))) if near.0 > *key => Some(near),
            (_, Some((key, queue))) => Some((*key, queue.head)),
        }
    }

    /// The best level and its queue below a key, or at all.
    pub fn next(&self, below: Option<Key>) -> Option<(Key, Queue)> {
        let near = match below {
            None => self.top(),
            Some(key) if key <= self.base => None,
            Some(key) => match self.offset(key) {
                None => self.top(),
                Some(offset) => self.top_below(offset),
            },
        };
        let end = below.map_or(self.far.len(), |key| self.far.partition_point(|far| far.0 < key));
        let far = end.checked_sub(1).map(|at| self.far[at]);
        let near = near.map(|offset| (self.key_at(offset), self.window[offset]));
        near.into_iter().chain(far).max_by_key(|level| level.0)
    }

    fn top_below(&self, offset: usize) -> Option<usize> {
        let (word, bit) = (offset / 64, offset % 64);
        let here = self.filled[word] & ((1 << bit) - 1);
        if here != 0 {
            return Some(word * 64 + 63 - here.leading_zeros() as usize);
        }
        let words = self.words & ((1 << word) - 1);
        let word = 63usize.checked_sub(words.leading_zeros() as usize)?;
        Some(word * 64 + 63 - self.filled[word].leading_zeros() as usize)
    }

    /// Levels with their queues, best first.
    pub fn levels(&self) -> impl Iterator<Item = (Key, Queue)> {
        std::iter::successors(self.next(None), |(key, _)| self.next(Some(*key)))
    }

    /// Puts an order at the end of the queue of a level.
    #[inline(always)]
    pub fn push(&mut self, orders: &mut Slab, key: Key, slot: Slot) {
        if let Some(offset) = self.offset(key)
            && let Some(queue) = self.window.get_mut(offset)
        {
            queue.push(orders, slot);
            self.filled[offset / 64] |= 1 << (offset % 64);
            self.words |= 1 << (offset / 64);
        } else {
            self.push_far(orders, key, slot);
        }
    }

    /// Takes an order out of the queue of a level.
    #[inline(always)]
    pub fn unlink(&mut self, orders: &mut Slab, key: Key, slot: Slot) {
        if let Some(offset) = self.offset(key)
            && let Some(queue) = self.window.get_mut(offset)
        {
            queue.unlink(orders, slot);
            // Without branches: whether a level is empty now cannot be predicted.
            let word = &mut self.filled[offset / 64];
            *word &= !(u64::from(queue.is_empty()) << (offset % 64));
            self.words &= !(u64::from(*word == 0) << (offset / 64));
        } else {
            self.unlink_far(orders, key, slot);
        }
    }

    #[cold]
    fn push_far(&mut self, orders: &mut Slab, key: Key, slot: Slot) {
        if self.window.is_empty() {
            self.window = vec![Queue::EMPTY; WINDOW];
            self.base = base_for(key);
            return self.push(orders, key, slot);
        }
        match self.far.binary_search_by_key(&key, |far| far.0) {
            Ok(at) => self.far[at].1.push(orders, slot),
            Err(at) => {
                let mut queue = Queue::EMPTY;
                queue.push(orders, slot);
                self.far.insert(at, (key, queue));
            }
        }
        self.note_miss();
    }

    #[cold]
    fn unlink_far(&mut self, orders: &mut Slab, key: Key, slot: Slot) {
        if let Ok(at) = self.far.binary_search_by_key(&key, |far| far.0) {
            self.far[at].1.unlink(orders, slot);
            if self.far[at].1.is_empty() {
                self.far.remove(at);
            }
        }
        self.note_miss();
    }

    /// Counts a use of a level outside the window, and moves the window if that pays.
    fn note_miss(&mut self) {
        self.misses += 1;
        if self.misses < MISSES_MIN + self.far.len() {
            return;
        }
        self.misses = 0;
        let Some((best, _)) = self.best() else { return };
        let is_well_placed = self.offset(best).is_some_and(|offset| offset >= WINDOW / 2);
        if !is_well_placed {
            self.move_to(base_for(best));
        }
    }

    fn move_to(&mut self, base: Key) {
        while let Some(offset) = self.top() {
            let queue = std::mem::replace(&mut self.window[offset], Queue::EMPTY);
            self.far.push((self.key_at(offset), queue));
            self.filled[offset / 64] &= !(1 << (offset % 64));
            if self.filled[offset / 64] == 0 {
                self.words &= !(1 << (offset / 64));
            }
        }
        self.far.sort_unstable_by_key(|far| far.0);
        self.base = base;
        let from = self.far.partition_point(|far| far.0 < base);
        let to = self.far.partition_point(|far| far.0 <= base + (WINDOW as i64 - 1));
        for (key, queue) in self.far.drain(from..to) {
            let offset = (key - base) as usize;
            self.window[offset] = queue;
            self.filled[offset / 64] |= 1 << (offset % 64);
            self.words |= 1 << (offset / 64);
        }
    }
}

/// Base of a window with three quarters of its ticks behind the best level, without overflow.
fn base_for(best: Key) -> Key {
    best.saturating_sub(WINDOW as i64 * 3 / 4).min(Key::MAX - WINDOW as i64 + 1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::slab::Order;
    use super::*;

    #[test]
    fn levels_equal_those_of_a_sorted_map_wherever_the_market_moves() {
        let (mut orders, mut ladder) = (Slab::new(), Ladder::new());
        let mut known: BTreeMap<Key, Vec<Slot>> = BTreeMap::new();
        let mut seed = 5u64;
        let (mut middle, mut bases) = (0i64, std::collections::BTreeSet::new());
        for step in 0..30_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Long stays that fill a window to its edges, with jumps between them.
            if step % 3_000 == 0 {
                let places = [0, 5_000, -3_000, Key::MAX - 9_000, Key::MIN + 9_000, 1_000];
                middle = places[step / 3_000 % places.len()];
            }
            let key = middle + (seed >> 40) as i64 % 9_000;
            if seed >> 62 < 2 || known.len() < 20 {
                let slot = orders.insert(&Order::SAMPLE);
                ladder.push(&mut orders, key, slot);
                known.entry(key).or_default().push(slot);
            } else {
                // Mostly the best order is removed, as in a market; sometimes another.
                let from = if seed >> 61 & 1 == 0 { Key::MAX } else { key };
                let Some((key, slots)) = known.range_mut(..=from).next_back() else { continue };
                let (key, slot) = (*key, slots.remove(0));
                if slots.is_empty() {
                    known.remove(&key);
                }
                ladder.unlink(&mut orders, key, slot);
                orders.remove(slot);
            }
            bases.insert(ladder.base);
            let best = known.last_key_value().map(|(key, slots)| (*key, slots[0]));
            assert_eq!(ladder.best(), best);
            if step % 100 == 0 {
                let levels = ladder.levels().map(|(key, queue)| (key, queue.head));
                assert!(levels.eq(known.iter().rev().map(|(key, slots)| (*key, slots[0]))));
            }
            let below = ladder.next(Some(key)).map(|(key, _)| key);
            assert_eq!(below, known.range(..key).next_back().map(|(key, _)| *key));
        }
        assert!(bases.len() > 5, "the window moved");
    }
}
