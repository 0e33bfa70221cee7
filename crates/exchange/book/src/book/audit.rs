//! Consistency check of the fast book: the invariants between its data structures.

use std::collections::BTreeSet;

use super::ladder::key;
use super::{Book, Closing, Order, OrderType, Place, Queue, Side, Slot, TimeInForce, TradingPhase};

impl Book {
    /// Checks every invariant; for tests, because it visits every order.
    ///
    /// # Errors
    /// A sentence about the first invariant that does not hold.
    pub fn audit(&self) -> Result<(), String> {
        let mut visited = BTreeSet::new();
        for side in [Side::Buy, Side::Sell] {
            for place in [Place::Displayed, Place::Hidden] {
                let ladder = &self.resting[side as usize | (place as usize) << 1];
                for (level, queue) in ladder.levels() {
                    self.audit_queue(queue, &mut visited, |order| {
                        order.place == place
                            && order.place_at_rest() == place
                            && order.order_type == OrderType::Limit
                            && key(side, order.price) == level
                    })?;
                }
            }
            for (level, queue) in self.stops[side as usize].levels() {
                self.audit_queue(queue, &mut visited, |order| {
                    order.place == Place::Stop && key(side.opposite(), order.stop_price) == level
                })?;
            }
            self.audit_queue(self.markets[side as usize], &mut visited, |order| {
                order.place == Place::Market
                    && order.order_type == OrderType::Market
                    && self.phase != TradingPhase::Continuous
            })?;
        }
        self.audit_queue(self.waiting, &mut visited, |order| {
            order.place == Place::OnClose
                && order.time_in_force == TimeInForce::AtClose
                && self.closing == Closing::Expected
        })?;
        self.audit_pegs()?;
        let unpriced = self.pegs.iter().filter(|slot| self.orders[**slot].place == Place::Unpriced);
        visited.extend(unpriced.copied());
        let is_unseen = |order: &Order| matches!(order.place, Place::Hidden | Place::Unpriced);
        let unseen = self.orders.live().filter(|(_, order)| is_unseen(order)).count();
        if unseen != self.unseen as usize {
            return Err(format!("{unseen} orders are hidden, and {} are counted", self.unseen));
        }
        let timed = |order: &Order| match order.time_in_force {
            TimeInForce::GoodTill(until_ns) => until_ns < u64::MAX,
            _ => false,
        };
        let timers = self.orders.live().filter(|(_, order)| timed(order)).count();
        if timers != self.timers.len() {
            return Err(format!("{timers} orders expire and {} have timers", self.timers.len()));
        }
        if visited.len() != self.orders.len() || visited.len() != self.orders.live().count() {
            return Err(format!("{} of {} orders are in queues", visited.len(), self.orders.len()));
        }
        if self.is_crossed() {
            return Err("the book is crossed in continuous trading".to_string());
        }
        Ok(())
    }

    fn audit_queue(
        &self,
        queue: Queue,
        visited: &mut BTreeSet<Slot>,
        belongs: impl Fn(&Order) -> bool,
    ) -> Result<(), String> {
        let mut place = 0;
        let mut previous = super::NONE;
        for slot in queue.slots(&self.orders) {
            let order = &self.orders[slot];
            let fault = if !visited.insert(slot) {
                "is in two queues"
            } else if !belongs(order) {
                "is in the wrong queue"
            } else if order.priority <= place {
                "is ahead of an earlier one"
            } else if order.previous != previous {
                "has a wrong link to the previous order"
            } else if self.index.get(order.key(), &self.orders) != Some(slot) {
                "is not found by its user and id"
            } else if order.shown == 0 || order.shown > order.left {
                "shows nothing, or more than its open quantity"
            } else if order.display == 0 && order.shown != order.left {
                "hides a part although it is no iceberg"
            } else {
                (place, previous) = (order.priority, slot);
                continue;
            };
            return Err(format!("order {} {fault}", order.id));
        }
        if queue.tail == previous {
            Ok(())
        } else {
            Err("the tail of a queue is wrong".to_string())
        }
    }
}
