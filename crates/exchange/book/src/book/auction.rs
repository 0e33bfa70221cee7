//! The uncross: the single price of an auction and its trades.

use std::cmp::{Ordering, Reverse};

use super::auction_step::{AuctionStep, Indicative};
use super::ladder::key;
use super::slab::{NONE, Order, Place};
use super::{
    Book, CancelReason, Closing, Event, Price, Quantity, Side, Slot, TimeInForce, TradingPhase,
};

/// An auction price that was found.
#[derive(Debug, Clone, Copy)]
struct Found {
    price: Price,
    volume: u128,
    /// What buyers and sellers would trade at it.
    buy: u128,
    sell: u128,
}

/// Which orders an auction is tried with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    All,
    /// Those that leave with the auction: without a limit, or for the closing auction.
    Leaving,
}

impl Book {
    /// What an uncross would do now; the book stays as it is.
    pub fn indicative(&mut self) -> Indicative {
        let narrow = |wide: u128| Quantity::try_from(wide).unwrap_or(Quantity::MAX);
        let far = self.auction_price(Of::Leaving).map(|found| found.price);
        let Some(Found { price, volume, buy, sell }) = self.auction_price(Of::All) else {
            return Indicative { price: None, volume: 0, surplus: 0, surplus_side: None, far };
        };
        Indicative {
            price: Some(price),
            volume: narrow(volume),
            surplus: narrow(buy.abs_diff(sell)),
            surplus_side: match buy.cmp(&sell) {
                Ordering::Greater => Some(Side::Buy),
                Ordering::Less => Some(Side::Sell),
                Ordering::Equal => None,
            },
            far,
        }
    }

    /// The price from which that of an auction is as near as it can be.
    fn reference(&self) -> Option<Price> {
        self.last.map(|last| match self.bands {
            Some((low, high)) => last.clamp(low, high),
            None => last,
        })
    }

    pub(super) fn uncross(&mut self, emit: &mut impl FnMut(Event)) {
        self.phase = TradingPhase::Continuous;
        let found = self.auction_price(Of::All);
        let price = found.map(|found| found.price);
        let volume = found.map_or(0, |found| found.volume);
        let volume_shown = Quantity::try_from(volume).unwrap_or(Quantity::MAX);
        emit(Event::Uncrossed { price, volume: volume_shown });
        if let Some(price) = price {
            self.trade_at(price, volume, emit);
        }
        if self.closing == Closing::Begun {
            let is_on_close = |order: &Order| order.time_in_force == TimeInForce::AtClose;
            self.cancel_all(is_on_close, CancelReason::Closed, emit);
            self.closing = Closing::No;
        }
        if self.markets.iter().any(|queue| !queue.is_empty()) {
            let matches = |order: &Order| order.place == Place::Market;
            self.cancel_all(matches, CancelReason::Unfilled, emit);
        }
    }

    /// Begins an auction, whatever the phase is.
    pub(super) fn begin_auction(&mut self, emit: &mut impl FnMut(Event)) {
        self.phase_before_halt = TradingPhase::Continuous;
        self.phase = TradingPhase::Auction;
        emit(Event::AuctionBegun);
    }

    /// The auction is the closing one: the orders that wait for it join, behind all others.
    pub(super) fn join_closing(&mut self) {
        self.closing = Closing::Begun;
        while self.waiting.head != NONE {
            let slot = self.waiting.head;
            self.dequeue(slot);
            let priority = self.next_priority();
            let order = &mut self.orders[slot];
            (order.priority, order.place) = (priority, order.place_at_rest());
            self.enqueue(slot);
        }
    }

    /// The auction price and its volume, if anything trades.
    fn auction_price(&mut self, of: Of) -> Option<Found> {
        let reference = self.reference();
        let mut steps = std::mem::take(&mut self.steps);
        steps.clear();
        for side in [Side::Buy, Side::Sell] {
            for (level, queue) in self.fronts(side) {
                let orders = queue.slots(&self.orders).map(|slot| &self.orders[slot]);
                let counted = orders
                    .filter(|order| of == Of::All || order.time_in_force == TimeInForce::AtClose);
                let left: u128 = counted.map(|order| u128::from(order.left)).sum();
                let price = key(side, level);
                if left == 0 {
                    continue;
                }
                steps.push(match side {
                    Side::Buy => AuctionStep { price, buy: left, sell: 0 },
                    Side::Sell => AuctionStep { price, buy: 0, sell: left },
                });
            }
        }
        steps.extend(reference.map(|price| AuctionStep { price, buy: 0, sell: 0 }));
        steps.sort_unstable_by_key(|step| step.price);
        let [mut buy, mut sell] = self.markets.map(|queue| {
            queue.slots(&self.orders).map(|slot| u128::from(self.orders[slot].left)).sum::<u128>()
        });
        buy += steps.iter().map(|step| step.buy).sum::<u128>();
        // From the lowest price up: sellers join at their limit, buyers leave above theirs.
        let ranked = steps.chunk_by(|one, next| one.price == next.price).map(|same| {
            sell += same.iter().map(|step| step.sell).sum::<u128>();
            let (price, volume) = (same[0].price, buy.min(sell));
            let distance = reference.map_or(0, |reference| price.abs_diff(reference));
            let rank = (Reverse(volume), buy.abs_diff(sell), distance);
            let found = Found { price, volume, buy, sell };
            buy -= same.iter().map(|step| step.buy).sum::<u128>();
            (rank, found)
        });
        // Among equals the first, which is the lowest price.
        let best = ranked.min_by_key(|(rank, ..)| *rank);
        self.steps = steps;
        best.map(|(_, found)| found).filter(|found| found.volume > 0)
    }

    /// The order that trades first in an auction.
    fn first_in_auction(&self, side: Side) -> Option<Slot> {
        let queue = self.markets[side as usize];
        if queue.is_empty() { self.front(side).map(|(_, slot)| slot) } else { Some(queue.head) }
    }

    fn trade_at(&mut self, price: Price, mut volume: u128, emit: &mut impl FnMut(Event)) {
        while volume > 0 {
            let (Some(buy), Some(sell)) =
                (self.first_in_auction(Side::Buy), self.first_in_auction(Side::Sell))
            else {
                break;
            };
            let (buyer, seller) = (&self.orders[buy], &self.orders[sell]);
            let most = buyer.left.min(seller.left);
            let quantity = Quantity::try_from(volume).map_or(most, |volume| volume.min(most));
            volume -= u128::from(quantity);
            emit(Event::Traded {
                maker: buyer.id,
                taker: seller.id,
                maker_user: buyer.user,
                taker_user: seller.user,
                price,
                quantity,
                maker_left: buyer.left - quantity,
                taker_left: seller.left - quantity,
            });
            for slot in [buy, sell] {
                if self.orders[slot].left == quantity {
                    self.dequeue(slot);
                    self.remove(slot);
                } else {
                    let order = &mut self.orders[slot];
                    order.left -= quantity;
                    order.shown = order.display_at_rest();
                }
            }
        }
        self.record_trade(price);
    }
}
