//! Owners that an operator has stopped: their new orders and replacements are rejected.
//!
//! Each decision has a number, and the one with the highest number holds, however often and in
//! whichever order a cell learns of decisions. A cell learns by its own log, or by that of an
//! instrument that comes from another cell. So a cell that was added later knows of a stop before
//! it executes the first request on an instrument that was traded before.

use std::collections::BTreeMap;

use nm_codec::{DecodeError, Put, Reader};
use nm_wire::{Owner, StopOrder, Value};

use crate::limits::STOP_ORDERS_MAX;

/// What was decided on owners.
#[derive(Debug, Default)]
pub struct Stops {
    by_owner: BTreeMap<Owner, StopOrder>,
    /// How many of them are stopped.
    stopped: usize,
}

impl Stops {
    /// Whether an owner may send no new orders.
    #[inline]
    pub fn is_stopped(&self, owner: Owner) -> bool {
        self.stopped > 0 && self.of(owner).is_stopped
    }

    /// The decision that holds on an owner.
    pub fn of(&self, owner: Owner) -> StopOrder {
        let none = StopOrder { owner, ..StopOrder::default() };
        self.by_owner.get(&owner).copied().unwrap_or(none)
    }

    /// All decisions.
    pub fn all(&self) -> impl Iterator<Item = StopOrder> {
        self.by_owner.values().copied()
    }

    /// Whether a decision on an owner finds room.
    pub fn has_room(&self, owner: Owner) -> bool {
        self.by_owner.contains_key(&owner) || self.by_owner.len() < STOP_ORDERS_MAX
    }

    /// Takes a decision, unless a later one is known. Of two with one number, the one that stops
    /// the owner holds.
    pub fn take(&mut self, order: StopOrder) {
        let known = self.of(order.owner);
        let is_later = (order.version, order.is_stopped) > (known.version, known.is_stopped);
        if order.owner.is_somebody() && is_later && self.has_room(order.owner) {
            self.by_owner.insert(order.owner, order);
            self.stopped += usize::from(order.is_stopped);
            self.stopped -= usize::from(known.is_stopped);
        }
    }

    /// Appends all of it.
    pub fn save(&self, bytes: &mut Vec<u8>) {
        bytes.put_u64(self.by_owner.len() as u64);
        self.all().for_each(|order| order.put(bytes));
    }

    /// Reads what [`Stops::save`] appended.
    ///
    /// # Errors
    /// If the bytes are none.
    pub fn load(reader: &mut Reader<'_>) -> Result<Stops, DecodeError> {
        let mut stops = Stops::default();
        let count = reader.u64("stops")?;
        for _ in 0..count {
            stops.take(StopOrder::take("stop", reader)?);
        }
        match stops.by_owner.len() as u64 == count {
            true => Ok(stops),
            false => Err(DecodeError::invalid("stops", "are too many, or of nobody")),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn order() -> impl Strategy<Value = StopOrder> {
        let made = |(firm, version, is_stopped)| StopOrder {
            owner: Owner::of_firm(firm),
            version,
            is_stopped,
        };
        (0..4u32, 1..6u64, any::<bool>()).prop_map(made)
    }

    proptest! {
        /// Cells that learn of the same decisions agree, whatever the order, and after a snapshot.
        #[test]
        fn the_latest_decision_holds_whatever_the_order(
            orders in prop::collection::vec(order(), 0..30),
            shuffled in Just(()).prop_perturb(|(), mut random| random.next_u64()),
        ) {
            let mut others = orders.clone();
            others.sort_by_key(|it| (it.version ^ shuffled) % 5);
            let (mut one, mut other) = (Stops::default(), Stops::default());
            orders.iter().for_each(|it| one.take(*it));
            others.iter().for_each(|it| other.take(*it));
            let mut bytes = vec![];
            other.save(&mut bytes);
            let loaded = Stops::load(&mut Reader::new(&bytes)).unwrap();
            for owner in (0..4).map(Owner::of_firm) {
                let latest = orders.iter().filter(|it| it.owner == owner);
                let latest = latest.max_by_key(|it| (it.version, it.is_stopped));
                let is_stopped = latest.is_some_and(|it| it.is_stopped);
                for stops in [&one, &other, &loaded] {
                    prop_assert_eq!(stops.is_stopped(owner), is_stopped);
                    prop_assert_eq!(stops.of(owner).version, latest.map_or(0, |it| it.version));
                }
            }
        }
    }

    #[test]
    fn decisions_are_limited_and_nobody_is_stopped() {
        let mut stops = Stops::default();
        let stop = |owner| StopOrder { owner, version: 1, is_stopped: true };
        stops.take(stop(Owner::NOBODY));
        assert!(!stops.is_stopped(Owner::NOBODY));
        (0..=STOP_ORDERS_MAX as u32).for_each(|firm| stops.take(stop(Owner::of_firm(firm))));
        assert!(stops.is_stopped(Owner::of_firm(0)));
        assert!(!stops.is_stopped(Owner::of_firm(STOP_ORDERS_MAX as u32)));
        let mut bytes = vec![];
        bytes.put_u64(1);
        stop(Owner::NOBODY).put(&mut bytes);
        assert!(Stops::load(&mut Reader::new(&bytes)).is_err());
    }
}
