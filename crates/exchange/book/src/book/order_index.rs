//! From order id to slot: a hash table with open addressing and linear probing, at most a quarter
//! full.
//!
//! An entry has 32 bits of the hash in place of the id: the order itself shows whether it is the
//! right one. The hash function is fixed, so that equal commands cost the same on every machine and
//! in every run. Removal shifts later entries back, so there are no tombstones.

use crate::limits::ORDERS_MAX;
use crate::order::OrderId;

use super::slab::{NONE, Slab, Slot};

/// Entries for each order, at least.
const SPARSITY: usize = 4;

/// The bits of the hash name the place of an entry in the largest table.
const _: () = assert!(2 * SPARSITY * ORDERS_MAX <= 1 << 32);

#[derive(Debug, Clone, Copy)]
struct Entry {
    hash: u32,
    slot: Slot,
}

const EMPTY: Entry = Entry { hash: 0, slot: NONE };

/// Slots of the live orders by id.
#[derive(Debug, Clone)]
pub struct OrderIndex {
    /// Their number is a power of two.
    entries: Vec<Entry>,
    len: usize,
}

/// The two halves of a wide product combined.
fn hash(id: OrderId) -> u32 {
    let wide = u128::from(id ^ 0x9e37_79b9_7f4a_7c15) * 0xd1b5_4a32_d192_ed03;
    ((wide >> 64) as u64 ^ wide as u64) as u32
}

impl OrderIndex {
    pub fn new() -> OrderIndex {
        OrderIndex { entries: vec![EMPTY; 16], len: 0 }
    }

    pub fn reserve(&mut self, orders: usize) {
        while self.entries.len() < orders * SPARSITY {
            self.grow();
        }
    }

    /// The slot of the order with this id.
    #[inline]
    pub fn get(&self, id: OrderId, orders: &Slab) -> Option<Slot> {
        let mask = self.entries.len() - 1;
        let hash = hash(id);
        let mut at = hash as usize;
        loop {
            let entry = self.entries[at & mask];
            if entry.hash == hash && entry.slot != NONE && orders[entry.slot].id == id {
                return Some(entry.slot);
            }
            if entry.slot == NONE {
                return None;
            }
            at += 1;
        }
    }

    /// Adds an id that is not in the table.
    pub fn insert(&mut self, id: OrderId, slot: Slot) {
        if (self.len + 1) * SPARSITY > self.entries.len() {
            self.grow();
        }
        self.len += 1;
        self.put(Entry { hash: hash(id), slot });
    }

    fn put(&mut self, entry: Entry) {
        let mask = self.entries.len() - 1;
        let mut at = entry.hash as usize;
        while self.entries[at & mask].slot != NONE {
            at += 1;
        }
        self.entries[at & mask] = entry;
    }

    /// Removes the id of an order that is in this slot, if it is in the table.
    pub fn remove(&mut self, id: OrderId, slot: Slot) {
        let mask = self.entries.len() - 1;
        let mut gap = hash(id) as usize & mask;
        while self.entries[gap].slot != slot {
            if self.entries[gap].slot == NONE {
                return;
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
            let from_home = at.wrapping_sub(entry.hash as usize) & mask;
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
    use super::super::slab::Order;
    use super::*;

    #[test]
    fn ids_are_found_as_in_a_map() {
        let (mut index, mut orders) = (OrderIndex::new(), Slab::new());
        let mut known = std::collections::BTreeMap::new();
        let mut seed = 1u64;
        for step in 0..20_000u32 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let id = (seed >> 33) % 500 * if step % 2 == 0 { 1 } else { 1 << 50 };
            if let Some(slot) = known.remove(&id) {
                index.remove(id, slot);
                orders.remove(slot);
            } else {
                let slot = orders.insert(&Order { id, ..Order::SAMPLE });
                index.insert(id, slot);
                known.insert(id, slot);
            }
            let other = (seed >> 20) % 500;
            assert_eq!(index.get(other, &orders), known.get(&other).copied());
            assert_eq!(index.len, known.len());
        }
        assert!(known.iter().all(|(id, slot)| index.get(*id, &orders) == Some(*slot)));
    }

    #[test]
    fn ids_of_equal_hash_are_distinguished() {
        let mut by_hash = std::collections::HashMap::new();
        let pair = (0u64..).find_map(|id| by_hash.insert(hash(id), id).map(|other| [other, id]));
        let (mut index, mut orders) = (OrderIndex::new(), Slab::new());
        let ids = pair.unwrap();
        let slots = ids.map(|id| orders.insert(&Order { id, ..Order::SAMPLE }));
        index.insert(ids[0], slots[0]);
        assert_eq!(index.get(ids[1], &orders), None);
        index.insert(ids[1], slots[1]);
        assert_eq!(ids.map(|id| index.get(id, &orders)), slots.map(Some));
        index.remove(ids[0], slots[0]);
        assert_eq!(ids.map(|id| index.get(id, &orders)), [None, Some(slots[1])]);
    }
}
