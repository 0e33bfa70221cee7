//! From an order's user and id to its slot: a hash table with open addressing and linear probing,
//! at most a quarter full.
//!
//! An entry has 32 bits of the hash in place of both: the order itself shows whether it is the
//! right one. The hash function is fixed, so that equal commands cost the same on every machine and
//! in every run. Removal shifts later entries back, so there are no tombstones.

use crate::limits::ORDERS_MAX;
#[cfg(test)]
use crate::order::UserId;

use super::slab::{NONE, OrderKey, Slab, Slot};

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

/// Slots of the live orders by user and id.
#[derive(Debug, Clone)]
pub struct OrderIndex {
    /// Their number is a power of two.
    entries: Vec<Entry>,
    len: usize,
}

/// The two halves of a wide product combined. The user changes the factor, which stays odd, so that
/// equal ids of several users are spread like different ids of one.
#[inline]
fn hash((user, id): OrderKey) -> u32 {
    let factor = 0xd1b5_4a32_d192_ed03 ^ (u64::from(user) << 1);
    let wide = u128::from(id ^ 0x9e37_79b9_7f4a_7c15) * u128::from(factor);
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

    /// The slot of a user's order with this id.
    #[inline]
    pub fn get(&self, key: OrderKey, orders: &Slab) -> Option<Slot> {
        let mask = self.entries.len() - 1;
        let hash = hash(key);
        let mut at = hash as usize;
        loop {
            let entry = self.entries[at & mask];
            if entry.hash == hash && entry.slot != NONE && orders[entry.slot].key() == key {
                return Some(entry.slot);
            }
            if entry.slot == NONE {
                return None;
            }
            at += 1;
        }
    }

    /// Adds a key that is not in the table.
    pub fn insert(&mut self, key: OrderKey, slot: Slot) {
        if (self.len + 1) * SPARSITY > self.entries.len() {
            self.grow();
        }
        self.len += 1;
        self.put(Entry { hash: hash(key), slot });
    }

    fn put(&mut self, entry: Entry) {
        let mask = self.entries.len() - 1;
        let mut at = entry.hash as usize;
        while self.entries[at & mask].slot != NONE {
            at += 1;
        }
        self.entries[at & mask] = entry;
    }

    /// Removes the key of an order that is in this slot, if it is in the table.
    pub fn remove(&mut self, key: OrderKey, slot: Slot) {
        let mask = self.entries.len() - 1;
        let mut gap = hash(key) as usize & mask;
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
    fn orders_are_found_by_user_and_id_as_in_a_map() {
        let (mut index, mut orders) = (OrderIndex::new(), Slab::new());
        let mut known = std::collections::BTreeMap::new();
        let mut seed = 1u64;
        for step in 0..20_000u32 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let id = (seed >> 33) % 200 * if step % 2 == 0 { 1 } else { 1 << 50 };
            let user = (seed >> 50) as UserId % 3;
            let key = (user, id);
            if let Some(slot) = known.remove(&key) {
                index.remove(key, slot);
                orders.remove(slot);
            } else {
                let slot = orders.insert(&Order { id, user, ..Order::SAMPLE });
                index.insert(key, slot);
                known.insert(key, slot);
            }
            let other = ((seed >> 45) as UserId % 3, (seed >> 20) % 200);
            assert_eq!(index.get(other, &orders), known.get(&other).copied());
            assert_eq!(index.len, known.len());
        }
        assert!(known.iter().all(|(key, slot)| index.get(*key, &orders) == Some(*slot)));
    }

    #[test]
    fn orders_of_equal_hash_are_distinguished() {
        let mut by_hash = std::collections::HashMap::new();
        let keys = (0u64..).flat_map(|id| [1, 2].map(|user| (user, id)));
        let pair =
            { keys }.find_map(|key| by_hash.insert(hash(key), key).map(|other| [other, key]));
        let (mut index, mut orders) = (OrderIndex::new(), Slab::new());
        let keys = pair.unwrap();
        let slots = keys.map(|(user, id)| orders.insert(&Order { id, user, ..Order::SAMPLE }));
        index.insert(keys[0], slots[0]);
        assert_eq!(index.get(keys[1], &orders), None);
        index.insert(keys[1], slots[1]);
        assert_eq!(keys.map(|key| index.get(key, &orders)), slots.map(Some));
        index.remove(keys[0], slots[0]);
        assert_eq!(keys.map(|key| index.get(key, &orders)), [None, Some(slots[1])]);
    }
}
