//! The fast book checks itself: everything that must hold between its parts.

use std::collections::BTreeSet;

use super::ladder::key;
use super::{Book, Kind, Life, Market, Order, Queue, Side, Slot};

impl Book {
    /// What is wrong inside the book, if anything: for tests, as it looks at everything.
    ///
    /// # Errors
    /// With a sentence about the first thing that does not hold.
    pub fn audit(&self) -> Result<(), String> {
        let mut met = BTreeSet::new();
        for side in [Side::Buy, Side::Sell] {
            for (level, queue) in self.resting[side as usize].levels() {
                self.audit_queue(queue, &mut met, |order| {
                    !order.waits && order.kind == Kind::Limit && key(side, order.price) == level
                })?;
            }
            for (level, queue) in self.stops[side as usize].levels() {
                self.audit_queue(queue, &mut met, |order| {
                    order.waits && key(side.opposite(), order.stop_price) == level
                })?;
            }
            self.audit_queue(self.markets[side as usize], &mut met, |order| {
                !order.waits && order.kind == Kind::Market && self.market != Market::Continuous
            })?;
        }
        let timed = |order: &Order| matches!(order.life, Life::GoodTill(at) if at < u64::MAX);
        let timers = self.orders.live().filter(|(_, order)| timed(order)).count();
        if timers != self.timers.len() {
            return Err(format!("{timers} orders expire and {} have timers", self.timers.len()));
        }
        if met.len() != self.orders.len() || met.len() != self.orders.live().count() {
            return Err(format!("{} of {} orders are in queues", met.len(), self.orders.len()));
        }
        if self.is_crossed() {
            return Err("the book is crossed in continuous trading".to_string());
        }
        Ok(())
    }

    fn audit_queue(
        &self,
        queue: Queue,
        met: &mut BTreeSet<Slot>,
        belongs: impl Fn(&Order) -> bool,
    ) -> Result<(), String> {
        let mut place = 0;
        let mut previous = super::NONE;
        for slot in queue.slots(&self.orders) {
            let order = &self.orders[slot];
            let fault = if !met.insert(slot) {
                "is in two queues"
            } else if !belongs(order) {
                "is in a queue of others"
            } else if order.place <= place {
                "stands before an earlier one"
            } else if order.previous != previous {
                "does not know who is before it"
            } else if self.names.get(order.id) != Some(slot) {
                "is not found by its name"
            } else if order.shown == 0 || order.shown > order.left {
                "shows nothing or more than it has"
            } else if order.display == 0 && order.shown != order.left {
                "hides a part without being an iceberg"
            } else {
                (place, previous) = (order.place, slot);
                continue;
            };
            return Err(format!("order {} {fault}", order.id));
        }
        if queue.tail == previous {
            Ok(())
        } else {
            Err("the last of a queue is another".to_string())
        }
    }
}
