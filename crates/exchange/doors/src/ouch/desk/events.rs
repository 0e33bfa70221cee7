//! What the exchange tells.

use nm_book::order::{CancelReason, Command, Event, RejectReason};

use super::{Desk, Effect, padded};
use crate::decimal::Decimal;
use crate::ouch::appendage::Appendage;
use crate::ouch::code::{cancel, reject};
use crate::ouch::message::{Accepted, Canceled, Executed, Modified, Replaced};
use crate::ouch::order::{Order, Wish};
use nm_client::Happened;

/// Liquidity of a fill in the closing cross.
const CLOSING_CROSS: u8 = b'C';

impl Desk {
    pub(super) fn happened(&mut self, happened: Happened) {
        match happened {
            Happened::Event { event, .. } => self.event(event),
            Happened::Refused { seq, reason, .. } => self.refused(seq, &reason.to_string()),
            Happened::EventsLost { instrument, .. } => self.effects.push(Effect::Note(format!(
                "events of instrument {instrument} are lost: reports of its orders are missing"
            ))),
            Happened::UsedBefore { instrument, .. } => self.used_by_others(instrument),
        }
    }

    /// New orders were not taken; of those that are live nothing is known any more.
    fn used_by_others(&mut self, instrument: u32) {
        self.effects.push(Effect::Note(format!(
            "another client has used this session of the exchange on instrument {instrument}: give \
             this one another number"
        )));
        let orders = self.orders.values().filter(|it| it.instrument == instrument);
        for mut order in orders.cloned().collect::<Vec<_>>() {
            if order.is_live {
                order.changes.iter_mut().for_each(|change| change.seq = 0);
                self.go_on(order);
            } else {
                self.reject_order(&order, reject::PROCESSING);
            }
        }
    }

    fn reject_order(&mut self, order: &Order, reason: u16) {
        self.end(order);
        self.reject(order.user_ref, reason, order.client_id);
    }

    /// The live order that an id of the exchange means, if it is one of this session.
    fn order(&self, id: u64, user: u32) -> Option<Order> {
        let session = self.exchange.number();
        let is_own = user == session && id >> 32 == u64::from(session);
        self.orders.get(&(id as u32)).filter(|_| is_own).cloned()
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Accepted { id, user } => {
                if let Some(order) = self.order(id, user) {
                    self.accepted(order);
                }
            }
            Event::Traded { maker, maker_user, maker_left, taker, taker_user, .. } => {
                let number = match_number(&event);
                if let Some(order) = self.order(maker, maker_user) {
                    let liquidity = if order.options.is_hidden { b'J' } else { b'A' };
                    self.traded(order, &event, maker_left == 0, liquidity, number);
                }
                let Event::Traded { taker_left, .. } = event else { return };
                if let Some(order) = self.order(taker, taker_user) {
                    self.traded(order, &event, taker_left == 0, b'R', number);
                }
            }
            Event::Rejected { id, user, reason, .. } => {
                if let Some(order) = self.order(id, user) {
                    self.rejected(order, reason);
                }
            }
            Event::Cancelled { id, user, left, reason } => {
                if let Some(order) = self.order(id, user) {
                    self.end(&order);
                    self.tell_canceled(&order, left, cancel_code(reason));
                }
            }
            Event::Replaced { id, user, price, quantity, .. } => {
                if let Some(order) = self.order(id, user) {
                    self.replaced(order, price, quantity);
                }
            }
            Event::Reduced { id, user, left } => {
                let Some(mut order) = self.order(id, user) else { return };
                let lost = order.open().saturating_sub(left);
                order.quantity -= lost;
                self.tell_canceled(&order, lost, cancel::SELF_MATCH);
                self.keep(order);
            }
            // No order of OUCH slides or is a stop; what an iceberg shows is not sent.
            _ => {}
        }
    }

    fn appendage(order: &Order) -> Appendage {
        let bytes = nm_codec::hex::read(&order.appendage).unwrap_or_default();
        Appendage::read(&bytes).unwrap_or_default()
    }

    /// A price as messages have it. OUCH has none below zero.
    fn price(&self, order: &Order, ticks: i64) -> u64 {
        let price = self.symbol(order).tick.times(i128::from(ticks));
        price.in_units(Decimal::PRICE_UNIT).and_then(|it| u64::try_from(it).ok()).unwrap_or(0)
    }

    fn limit(&self, order: &Order) -> u64 {
        order.price.map_or(0x7fff_ffff, |ticks| self.price(order, ticks))
    }

    fn accepted(&mut self, mut order: Order) {
        order.is_live = true;
        let message = Accepted {
            at: self.midnight_ns(),
            user_ref: order.user_ref,
            side: order.side,
            quantity: self.shares(&order, order.quantity),
            symbol: padded(&order.symbol),
            price: self.limit(&order),
            time_in_force: order.time_in_force,
            display: order.options.display(),
            order_ref: self.order_ref(&order),
            capacity: order.capacity,
            sweep: order.sweep,
            cross: order.cross,
            state: b'L',
            client_id: order.client_id,
        };
        self.send_with(message, &Desk::appendage(&order));
        self.keep(order);
    }

    fn traded(
        &mut self,
        mut order: Order,
        event: &Event,
        is_done: bool,
        liquidity: u8,
        match_number: u64,
    ) {
        let Event::Traded { price, quantity, .. } = *event else { return };
        order.traded += quantity;
        let message = Executed {
            at: self.midnight_ns(),
            user_ref: order.user_ref,
            quantity: self.shares(&order, quantity),
            price: self.price(&order, price),
            liquidity: if order.is_on_close() { CLOSING_CROSS } else { liquidity },
            match_number,
        };
        self.send(message);
        match is_done {
            true => self.end(&order),
            false => self.keep(order),
        }
    }

    fn tell_canceled(&mut self, order: &Order, lots: u64, reason: u8) {
        let quantity = self.shares(order, lots);
        let at = self.midnight_ns();
        self.send(Canceled { at, user_ref: order.user_ref, quantity, reason });
    }

    pub(super) fn tell_modified(&mut self, order: &Order) {
        let quantity = self.shares(order, order.open());
        let (at, user_ref, side) = (self.midnight_ns(), order.user_ref, order.side);
        self.send(Modified { at, user_ref, side, quantity });
    }

    fn rejected(&mut self, order: Order, reason: RejectReason) {
        if order.is_live {
            return self.change_rejected(order, reason);
        }
        if reason == RejectReason::WouldTake {
            // OUCH has no reason to reject it: it is accepted, and cancelled at once.
            self.accepted(order.clone());
            self.end(&order);
            return self.tell_canceled(&order, order.quantity, cancel::POST_ONLY);
        }
        self.reject_order(&order, reject_code(reason));
    }

    /// The exchange does not carry out the first request to change an order. If it is a
    /// replacement whose details are wrong, the order ends; otherwise it stays as it was.
    fn change_rejected(&mut self, mut order: Order, reason: RejectReason) {
        let Some(change) = order.changes.pop_front() else { return };
        let Wish::Replace(user_ref, _, _, client_id) = change.wish else {
            return self.go_on(order);
        };
        match reason {
            // Another event brings its end.
            RejectReason::UnknownOrder => {}
            RejectReason::Halted | RejectReason::InAuction | RejectReason::WrongState => {
                self.consume(user_ref);
                self.reject(user_ref, reject_code(reason), client_id);
            }
            _ => {
                let (id, user) = (self.id(&order), self.exchange.number());
                let seq = self.submit(order.instrument, Command::Cancel { id, user });
                let wish = Wish::Reduce(0);
                order.changes.push_front(crate::ouch::order::Change { of: change.of, wish, seq });
            }
        }
        self.go_on(order);
    }

    /// The open quantity was replaced. If something has traded meanwhile, it is too much.
    fn replaced(&mut self, mut order: Order, price: i64, open: u64) {
        let Some(change) = order.changes.front_mut() else { return };
        let (Wish::Replace(_, quantity, ..) | Wish::Reduce(quantity) | Wish::Modify(_, quantity)) =
            change.wish;
        if open > quantity.saturating_sub(order.traded) {
            change.seq = 0;
            return self.go_on(order);
        }
        let wish = change.wish;
        order.changes.pop_front();
        let lost = order.open().saturating_sub(open);
        order.price = order.price.map(|_| price);
        order.quantity = order.traded + open;
        match wish {
            Wish::Replace(user_ref, _, _, client_id) => {
                let original = std::mem::replace(&mut order.user_ref, user_ref);
                order.client_id = client_id;
                self.consume(user_ref);
                self.tell_replaced(&order, original);
            }
            Wish::Reduce(_) => self.tell_canceled(&order, lost, cancel::USER),
            Wish::Modify(side, _) => {
                order.side = side;
                self.tell_modified(&order);
            }
        }
        self.go_on(order);
    }

    fn tell_replaced(&mut self, order: &Order, original: u32) {
        let message = Replaced {
            at: self.midnight_ns(),
            original,
            user_ref: order.user_ref,
            side: order.side,
            quantity: self.shares(order, order.open()),
            symbol: padded(&order.symbol),
            price: self.limit(order),
            time_in_force: order.time_in_force,
            display: order.options.display(),
            order_ref: self.order_ref(order),
            capacity: order.capacity,
            sweep: order.sweep,
            cross: order.cross,
            state: b'L',
            client_id: order.client_id,
        };
        self.send_with(message, &Desk::appendage(order));
    }

    fn refused(&mut self, seq: u64, why: &str) {
        let is_it = |order: &&Order| {
            order.seq == seq || order.changes.front().is_some_and(|change| change.seq == seq)
        };
        let Some(mut order) = self.orders.values().find(is_it).cloned() else { return };
        let text = format!("the exchange does not take a request of order {}", order.user_ref);
        self.effects.push(Effect::Note(format!("{text}: {why}")));
        if order.seq == seq && !order.is_live {
            return self.reject_order(&order, reject::PROCESSING);
        }
        let change = order.changes.pop_front();
        if let Some(Wish::Replace(user_ref, _, _, client_id)) = change.map(|it| it.wish) {
            self.consume(user_ref);
            self.reject(user_ref, reject::PROCESSING, client_id);
        }
        self.go_on(order);
    }
}

/// The same number for both sides of a trade. Events have none, so it is a hash of what both know:
/// the two orders, and what is left of them.
fn match_number(event: &Event) -> u64 {
    let Event::Traded { maker, taker, maker_left, taker_left, .. } = *event else { return 0 };
    let known = [maker, taker, maker_left, taker_left].map(u64::to_be_bytes).concat();
    let hash = crate::settings::hash(&known);
    hash.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn reject_code(reason: RejectReason) -> u16 {
    match reason {
        RejectReason::Halted => reject::HALTED,
        RejectReason::BadQuantity | RejectReason::TooLarge => reject::QUANTITY,
        RejectReason::OutsideBands | RejectReason::OutsideCollar => reject::PRICE,
        RejectReason::NotListed => reject::SYMBOL,
        RejectReason::TooManyParts => reject::MAX_FLOOR,
        RejectReason::NotAllowed => reject::FIRM,
        RejectReason::NoClosing => reject::CROSS,
        RejectReason::BadPeg => reject::PEG_TYPE,
        RejectReason::TooManyOrders | RejectReason::TooManyOwnOrders => reject::PROCESSING,
        _ => reject::OTHER,
    }
}

fn cancel_code(reason: CancelReason) -> u8 {
    match reason {
        CancelReason::User | CancelReason::Mass | CancelReason::Disconnected => cancel::USER,
        CancelReason::Unfilled | CancelReason::Killed | CancelReason::BelowMinimum => {
            cancel::IMMEDIATE
        }
        CancelReason::SelfTrade => cancel::SELF_MATCH,
        CancelReason::Bands => cancel::COLLARS,
        CancelReason::Day | CancelReason::Closed => cancel::CLOSED,
        CancelReason::Expired => cancel::TIMEOUT,
        CancelReason::TooManyTrades => cancel::SYSTEM,
        CancelReason::Operator => cancel::SUPERVISORY,
    }
}
