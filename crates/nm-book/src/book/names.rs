//! From an order's name to its slot: open addressing with linear probing, at most half full.
//!
//! The hash is fixed, so that equal commands cost the same on every machine and every run. Whoever
//! leaves is closed up behind (backward shift), so no marks of the dead pile up.

use crate::order::OrderId;

use super::slab::{NONE, Slot};

#[derive(Debug, Clone, Copy)]
struct Entry {
    id: OrderId,
    slot: Slot,
}

const EMPTY: Entry = Entry { id: 0, slot: NONE };

/// Names of the orders that live.
#[derive(Debug, Clone)]
pub struct Names {
    /// A power of two.
    entries: Vec<Entry>,
    len: usize,
}

impl Names {
    pub fn new() -> Names {
        Names { entries: vec![EMPTY; 16], len: 0 }
    }

    pub fn reserve(&mut self, orders: usize) {
        while self.entries.len() < orders * 2 {
            self.grow();
        }
    }

    /// Where a name is looked for first: the halves of a wide product folded.
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

    /// Adds a name that is not there.
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
            // It may close the gap if its home is not between the gap and where it is.
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
    fn names_come_and_go_as_in_a_map() {
        let mut names = Names::new();
        let mut known = std::collections::BTreeMap::new();
        let mut seed = 1u64;
        for step in 0..20_000u32 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let id = (seed >> 33) % 500 * if step % 2 == 0 { 1 } else { 1 << 50 };
            if known.remove(&id).is_some() {
                names.remove(id);
            } else {
                names.insert(id, step);
                known.insert(id, step);
            }
            let other = (seed >> 20) % 500;
            assert_eq!(names.get(other), known.get(&other).copied());
            assert_eq!(names.len, known.len());
        }
        assert!(known.iter().all(|(id, slot)| names.get(*id) == Some(*slot)));
    }
}
