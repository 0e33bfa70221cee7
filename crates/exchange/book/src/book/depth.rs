//! What a side shows, by price.

use crate::order::{Quantity, Side};

use super::Book;
use super::ladder::key;
use super::level::Level;
use super::slab::Queue;

impl Book {
    /// The best prices of a side, at most so many.
    pub fn levels(&self, side: Side, most: usize) -> Vec<Level> {
        let all = self.resting[side as usize].levels().take(most);
        let level = |(at, queue): (i64, Queue)| {
            let (mut quantity, mut orders): (Quantity, u32) = (0, 0);
            for slot in queue.slots(&self.orders) {
                quantity = quantity.saturating_add(self.orders[slot].shown);
                orders = orders.saturating_add(1);
            }
            Level { price: key(side, at), quantity, orders }
        };
        all.map(level).collect()
    }
}
