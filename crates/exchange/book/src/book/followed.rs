//! What pegged orders follow, and the price that it gives them.

use super::slab::{Order, Place};
use crate::order::{Peg, Price, Side};

/// What the prices of pegged orders follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Followed {
    /// The best displayed prices of buyers and of sellers; none but in continuous trading.
    pub best: [Option<Price>; 2],
    /// The price bands.
    pub bands: Option<(Price, Price)>,
}

impl Followed {
    pub const NOTHING: Followed = Followed { best: [None; 2], bands: None };

    /// The price of a pegged order, if it has one now.
    fn price(&self, order: &Order) -> Option<Price> {
        let [bid, ask] = self.best;
        let price = match (order.peg, order.side) {
            (Peg::No, _) => None,
            (Peg::Primary { offset }, Side::Buy) => bid?.checked_sub(offset.into()),
            (Peg::Primary { offset }, Side::Sell) => ask?.checked_add(offset.into()),
            (Peg::Mid, side) => {
                let twice = i128::from(bid?) + i128::from(ask?);
                let up = i128::from(side == Side::Sell);
                Price::try_from((twice + up).div_euclid(2)).ok()
            }
        }?;
        let price = match (order.limit(), order.side) {
            (None, _) => price,
            (Some(limit), Side::Buy) => price.min(limit),
            (Some(limit), Side::Sell) => price.max(limit),
        };
        let is_inside = |(low, high)| low <= price && price <= high;
        self.bands.is_none_or(is_inside).then_some(price)
    }

    /// Gives a pegged order its price and its place; whether it has a price.
    pub fn put(&self, order: &mut Order) -> bool {
        let price = self.price(order);
        (order.price, order.place) = match price {
            Some(price) => (price, Place::Hidden),
            None => (order.price, Place::Unpriced),
        };
        price.is_some()
    }
}
