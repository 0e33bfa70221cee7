//! Orders that expire, earliest first: a binary heap with the index of each entry in its order.

use super::slab::{NO_TIMER, Slab, Slot};

/// Heap of orders with an expiry time.
#[derive(Debug, Clone)]
pub struct Timers {
    heap: Vec<(u64, Slot)>,
}

impl Timers {
    pub fn new() -> Timers {
        Timers { heap: vec![] }
    }

    /// When the first order expires, ns; `u64::MAX` if there is none.
    #[inline]
    pub fn earliest_ns(&self) -> u64 {
        self.heap.first().map_or(u64::MAX, |first| first.0)
    }

    pub fn len(&self) -> usize {
        self.heap.len()
    }

    pub fn insert(&mut self, orders: &mut Slab, until_ns: u64, slot: Slot) {
        self.heap.push((until_ns, slot));
        self.rise(orders, self.heap.len() - 1);
    }

    /// Removes the first order.
    pub fn pop(&mut self, orders: &mut Slab) -> Option<Slot> {
        let (_, slot) = *self.heap.first()?;
        self.remove(orders, slot);
        Some(slot)
    }

    /// Removes an order that is in the heap.
    pub fn remove(&mut self, orders: &mut Slab, slot: Slot) {
        let at = orders[slot].timer as usize;
        orders[slot].timer = NO_TIMER;
        self.heap.swap_remove(at);
        if at < self.heap.len() {
            self.sink(orders, at);
            self.rise(orders, at);
        }
    }

    fn rise(&mut self, orders: &mut Slab, mut at: usize) {
        while at > 0 && self.heap[at].0 < self.heap[(at - 1) / 2].0 {
            self.heap.swap(at, (at - 1) / 2);
            self.note(orders, at);
            at = (at - 1) / 2;
        }
        self.note(orders, at);
    }

    fn sink(&mut self, orders: &mut Slab, mut at: usize) {
        loop {
            let children = [2 * at + 1, 2 * at + 2].into_iter().filter(|at| *at < self.heap.len());
            let Some(child) = children.min_by_key(|at| self.heap[*at].0) else { return };
            if self.heap[at].0 <= self.heap[child].0 {
                return;
            }
            self.heap.swap(at, child);
            self.note(orders, at);
            self.note(orders, child);
            at = child;
        }
    }

    fn note(&self, orders: &mut Slab, at: usize) {
        orders[self.heap[at].1].timer = at as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::book::slab::Order;

    #[test]
    fn the_earliest_is_first_after_any_removals() {
        let (mut orders, mut timers) = (Slab::new(), Timers::new());
        let mut known: Vec<(u64, Slot)> = vec![];
        let mut seed = 3u64;
        for _ in 0..3000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let choice = (seed >> 60) as usize;
            if choice < 9 || known.is_empty() {
                let slot = orders.insert(&Order::SAMPLE);
                timers.insert(&mut orders, seed >> 40, slot);
                known.push((seed >> 40, slot));
            } else if choice < 14 {
                let (_, slot) = known.swap_remove((seed >> 33) as usize % known.len());
                timers.remove(&mut orders, slot);
                orders.remove(slot);
            } else {
                known.sort_unstable_by(|one, other| other.cmp(one));
                let (until_ns, _) = known[known.len() - 1];
                assert_eq!(timers.earliest_ns(), until_ns);
                let slot = timers.pop(&mut orders).unwrap();
                let at = known.iter().position(|one| *one == (until_ns, slot)).unwrap();
                known.remove(at);
                orders.remove(slot);
            }
            assert_eq!(timers.len(), known.len());
            assert_eq!(
                timers.earliest_ns(),
                known.iter().map(|one| one.0).min().unwrap_or(u64::MAX)
            );
        }
    }
}
