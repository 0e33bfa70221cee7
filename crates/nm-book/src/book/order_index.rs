//! From order id to slot: a hash table with open addressing and linear probing, at most half full.
//!
//! The hash function is fixed, so that equal commands cost the same on every machine and in every
//! run. Removal shifts later entries back, so there are no tombstones.

use crate::order::OrderId;

use super::slab::{NONE, Slot};

#[derive(Debug, Clone, Copy)]
struct Entry {
    id: OrderId,
    slot: Slot,
}

const EMPTY: Entry = Entry { id: 0, slot: NONE };

/// Slots of the live orders by id.
#[derive(Debug, Clone)]
pub struct OrderIndex {
    /// Their number is a power of two.
    entries: Vec<Entry>,
    len: usize,
}

impl OrderIndex {
    pub fn new() -> OrderIndex {
        OrderIndex { entries: vec![EMPTY; 16], len: 0 }
    }

    pub fn reserve(&mut self, orders: usize) {
        while self.entries.len() < orders * 2 {
            self.grow();
        }
    }

    /// Where the search for an id begins: the two halves of a wide product combined.
    fn home(&self, id: OrderId) -> usize {
        let wide = u128::from(id ^ 0x9e37_79b9_7f4a_7c15) * 0xd1b5_4a32_d192_ed03;
        ((wide >> 64) as u64 ^ wide as u64) as usize & (self.entries.len() - 1)
    }

    #[inline]
    pub fn get(&self, id: OrderId) -> Option<Slot> {
        let mask = self.entries.len() - 1;
        let mut at = self.home(id);
        loop {
            let entry = self.entries[at & mask];
            if entry.slot == NONE {
                return None;
            }
            if entry.id == id {
                return Some(entry.slot);
            }
            at += 1;
        }
    }

    /// Adds an id that is not in the table.
    pub fn insert(&mut self, id: OrderId, slot: Slot) {
        if (self.len + 1) * 2 > self.entries.len() {
            self.grow();
        }
        self.len += 1;
        self.put(Entry { id, slot });
    }

    fn put(&mut self, entry: Entry) {
        let mask = self.entries.len() - 1;
        let mut at = self.home(entry.id);
        while self.entries[at & mask].slot != NONE {
            at += 1;
        }
        self.entries[at & mask] = entry;
    }

    pub fn remove(&mut self, id: OrderId) {
        let mask = self.entries.len() - 1;
        let mut gap = self.home(id);
        loop {
            let entry = self.entries[gap];
            if entry.slot == NONE {
                return;
            }
            if entry.id == id {
                break;
            }
            gap = (gap + 1) & mask;
        }
        self.len -= 1;
        let mut at = gap;
        loop {
            at = (at + 1) & mask;
            let entry = self.entries[at];
            if entry.slot == NONE {
                break;
            }
            // It may move into the gap unless its home lies between the gap and its position.
            let from_home = at.wrapping_sub(self.home(entry.id)) & mask;
            if from_home >= (at.wrapping_sub(gap) & mask) {
                self.entries[gap] = entry;
                gap = at;
            }
        }
        self.entries[gap] = EMPTY;
    }

    #[cold]
    fn grow(&mut self) {
        let entries = vec![EMPTY; self.entries.len() * 2];
        for entry in std::mem::replace(&mut self.entries, entries) {
            if entry.slot != NONE {
                self.put(entry);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_found_as_in_a_map() {
        let mut index = OrderIndex::new();
        let mut known = std::collections::BTreeMap::new();
        let mut seed = 1u64;
        for step in 0..20_000u32 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let id = (seed >> 33) % 500 * if step % 2 == 0 { 1 } else { 1 << 50 };
            if known.remove(&id).is_some() {
                index.remove(id);
            } else {
                index.insert(id, step);
                known.insert(id, step);
            }
            let other = (seed >> 20) % 500;
            assert_eq!(index.get(other), known.get(&other).copied());
            assert_eq!(index.len, known.len());
        }
        assert!(known.iter().all(|(id, slot)| index.get(*id) == Some(*slot)));
    }
}
