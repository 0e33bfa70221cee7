//! What the exchange tells.

use nm_book::order::{CancelReason, Event, RejectReason};
use nm_wire::RefusalReason;

use super::requests::FOREIGN;
use super::{Desk, Effect};
use crate::fix::order::{Order, Status};
use crate::fix::reports::{self, Execution, Refusal};
use nm_client::Happened;

/// OrdRejReason.
const REJECT_OTHER: u32 = 99;

/// ExecRestatementReason: partial decline of the quantity, and other.
const DECLINED: u32 = 5;
const RESTATED_OTHER: u32 = 99;

/// CxlRejReason.
const TOO_LATE: u32 = 0;
const OTHER: u32 = 99;

impl Desk {
    pub(super) fn happened(&mut self, happened: Happened) {
        match happened {
            Happened::Event { instrument, number, event } => self.event(instrument, number, event),
            Happened::Refused { seq, reason, .. } => self.refused(seq, reason),
            Happened::EventsLost { instrument, .. } => self.events_lost(instrument),
            Happened::UsedBefore { instrument, .. } => self.used_by_others(instrument),
        }
    }

    /// New orders were not taken; of those that are live nothing is known any more.
    fn used_by_others(&mut self, instrument: u32) {
        for mut order in self.orders_of(instrument) {
            order.changes.iter_mut().for_each(|change| change.seq = 0);
            if order.status == Status::PendingNew {
                order.status = Status::Rejected;
                self.reject(order.clone(), "F", REJECT_OTHER, FOREIGN);
            } else {
                self.keep(order.clone());
                self.lose_events(order.clone());
            }
            self.next_change(order);
        }
    }

    /// Live orders on an instrument.
    fn orders_of(&self, instrument: u32) -> Vec<Order> {
        let is_live = |order: &&Order| order.instrument == instrument && order.status.is_live();
        self.orders.values().filter(is_live).cloned().collect()
    }

    fn reject(&mut self, order: Order, id: &str, reason: u32, text: &str) {
        let id = format!("{id}{}", order.number);
        let what = Execution {
            kind: '8',
            id,
            reject: Some(reason),
            text: Some(text),
            ..Execution::default()
        };
        self.keep_and_report(order, &what);
    }

    /// The order that an id of the exchange means, if it is one of this session.
    fn order(&self, id: u64, user: u32) -> Option<Order> {
        let session = self.exchange.number();
        let is_own = user == session && id >> 32 == u64::from(session);
        self.orders.get(&(id & u64::from(u32::MAX))).filter(|_| is_own).cloned()
    }

    fn event(&mut self, instrument: u32, number: u64, event: Event) {
        let id = format!("{instrument}-{number}");
        match event {
            Event::Accepted { id: order, user } => {
                let Some(mut order) = self.order(order, user) else { return };
                order.status = Status::New;
                let what = Execution { kind: '0', id, ..Execution::default() };
                self.keep_and_report(order, &what);
            }
            Event::Traded { maker, maker_user, maker_left, price, quantity, .. } => {
                if let Some(order) = self.order(maker, maker_user) {
                    self.traded(order, (quantity, price), maker_left, format!("{id}m"));
                }
                let Event::Traded { taker, taker_user, taker_left, .. } = event else { return };
                if let Some(order) = self.order(taker, taker_user) {
                    self.traded(order, (quantity, price), taker_left, format!("{id}t"));
                }
            }
            Event::Rejected { id: order, user, reason, most, asked } => {
                if let Some(order) = self.order(order, user) {
                    self.rejected(order, &id, (reason, reject_text(reason, most, asked)));
                }
            }
            Event::Cancelled { id: order, user, left, reason } => {
                if let Some(order) = self.order(order, user) {
                    self.cancelled(order, id, left, reason);
                }
            }
            Event::Replaced { id: order, user, price, quantity, .. } => {
                if let Some(order) = self.order(order, user) {
                    self.replaced(order, id, price, quantity);
                }
            }
            Event::Reduced { id: order, user, left } => {
                let Some(mut order) = self.order(order, user) else { return };
                order.quantity = order.traded + left;
                let text = "reduced, because it would have traded with an own order";
                self.restate(order, id, DECLINED, text);
            }
            Event::Slid { id: order, user, price } => {
                let Some(mut order) = self.order(order, user) else { return };
                order.price = Some(price);
                self.restate(order, id, RESTATED_OTHER, "moved, because it would have traded");
            }
            Event::Triggered { id: order, user } => {
                let Some(order) = self.order(order, user) else { return };
                self.restate(order, id, RESTATED_OTHER, "a trade has reached the stop price");
            }
            // The part of an iceberg that is shown is not reported; the others have no order.
            _ => {}
        }
    }

    fn restate(&mut self, order: Order, id: String, why: u32, text: &str) {
        let what = Execution {
            kind: 'D',
            id,
            restated: Some(why),
            text: Some(text),
            ..Execution::default()
        };
        self.keep_and_report(order, &what);
    }

    fn traded(&mut self, mut order: Order, trade: (u64, i64), left: u64, id: String) {
        let (quantity, price) = trade;
        order.traded += quantity;
        order.value += i128::from(price) * i128::from(quantity);
        order.status = if left == 0 { Status::Filled } else { Status::Partial };
        let what = Execution { kind: 'F', id, trade: Some(trade), ..Execution::default() };
        self.keep_and_report(order, &what);
    }

    fn rejected(&mut self, mut order: Order, id: &str, (reason, text): (RejectReason, String)) {
        if order.status == Status::PendingNew {
            order.status = Status::Rejected;
            let what = Execution {
                kind: '8',
                id: id.to_string(),
                reject: Some(reject_code(reason)),
                text: Some(&text),
                ..Execution::default()
            };
            self.keep_and_report(order, &what);
        } else if !order.changes.is_empty() {
            let (reason, text) = match reason {
                RejectReason::UnknownOrder => (TOO_LATE, "the order has ended".to_string()),
                _ => (OTHER, text),
            };
            self.refuse_change(order, Refusal { reason, text });
        }
    }

    /// Refuses the first request to change an order, and goes on with the next one.
    fn refuse_change(&mut self, mut order: Order, refusal: Refusal) {
        let session = self.exchange.number();
        if let Some(change) = order.changes.pop_front() {
            let before = order.client_id().to_string();
            let of = Some((&order, session));
            let body = reports::cancel_reject(of, &change, &before, &refusal, self.now_ns);
            self.effects.push(Effect::Report("9", body));
        }
        self.next_change(order);
    }

    /// Keeps an order whose first request is done, and sends the next one. Of an order that has
    /// ended those that wait are refused.
    fn next_change(&mut self, mut order: Order) {
        if order.changes.is_empty() || order.changes[0].seq > 0 {
            return self.keep(order);
        }
        if order.status.is_live() {
            self.send_change(&mut order);
            return self.keep(order);
        }
        let text = "the order has ended".to_string();
        self.refuse_change(order, Refusal { reason: TOO_LATE, text });
    }

    fn cancelled(&mut self, mut order: Order, id: String, left: u64, reason: CancelReason) {
        let is_requested = reason == CancelReason::User && !order.changes.is_empty();
        let before = order.client_id().to_string();
        let change = if is_requested { order.changes.pop_front() } else { None };
        // If events were lost, what is left tells what was traded.
        order.traded = order.traded.max(order.quantity.saturating_sub(left).min(order.quantity));
        let is_replaced = change.as_ref().is_some_and(|change| change.replace.is_some());
        order.status = match reason {
            _ if is_replaced => Status::Filled,
            CancelReason::Day | CancelReason::Expired | CancelReason::Closed => Status::Expired,
            _ => Status::Cancelled,
        };
        let kind = match order.status {
            _ if is_replaced => '5',
            Status::Expired => 'C',
            _ => '4',
        };
        if is_replaced {
            order.quantity = order.traded;
        }
        if let Some(change) = &change {
            order.client_ids.push(change.client_id.clone());
        }
        let what = Execution {
            kind,
            id,
            before: change.is_some().then_some(before.as_str()),
            text: cancel_text(reason),
            ..Execution::default()
        };
        self.keep_and_report(order.clone(), &what);
        self.next_change(order);
    }

    /// The open quantity was replaced. If something has traded meanwhile, it is too much.
    fn replaced(&mut self, mut order: Order, id: String, price: i64, open: u64) {
        let before = order.client_id().to_string();
        let Some(change) = order.changes.front_mut() else { return };
        let Some((quantity, _)) = change.replace else { return };
        if open > quantity.saturating_sub(order.traded) {
            order.price = Some(price);
            order.changes[0].seq = 0;
            self.send_change(&mut order);
            return self.keep(order);
        }
        order.client_ids.push(change.client_id.clone());
        order.changes.pop_front();
        (order.price, order.quantity) = (Some(price), order.traded + open);
        order.status = order.live_status();
        let what = Execution { kind: '5', id, before: Some(&before), ..Execution::default() };
        self.keep_and_report(order.clone(), &what);
        self.next_change(order);
    }

    fn refused(&mut self, seq: u64, reason: RefusalReason) {
        let is_it = |order: &&Order| {
            order.seq == seq || order.changes.front().is_some_and(|change| change.seq == seq)
        };
        let Some(mut order) = self.orders.values().find(is_it).cloned() else { return };
        let text = format!("the exchange does not take the request: {reason}");
        if order.seq == seq && order.status == Status::PendingNew {
            order.status = Status::Rejected;
            self.reject(order.clone(), "N", REJECT_OTHER, &text);
            return self.next_change(order);
        }
        self.refuse_change(order, Refusal { reason: OTHER, text });
    }

    fn events_lost(&mut self, instrument: u32) {
        self.orders_of(instrument).into_iter().for_each(|order| self.lose_events(order));
    }

    fn lose_events(&mut self, order: Order) {
        let id = self.own_report_id();
        let text = "events of this order are lost: cancel it to learn what is left of it";
        self.restate(order, id, RESTATED_OTHER, text);
    }
}

fn reject_code(reason: RejectReason) -> u32 {
    match reason {
        RejectReason::Halted => 2,
        RejectReason::BadQuantity | RejectReason::TooLarge => 13,
        RejectReason::NotListed => 1,
        RejectReason::Expired => 4,
        RejectReason::BadCombination | RejectReason::InAuction => 11,
        RejectReason::TooManyOrders
        | RejectReason::TooManyOwnOrders
        | RejectReason::TooManyOwnerOrders
        | RejectReason::TooManyOwnerCellOrders
        | RejectReason::TooManyCellOrders
        | RejectReason::FirmQuantity
        | RejectReason::FirmOrderValue
        | RejectReason::FirmOrders
        | RejectReason::FirmValue
        | RejectReason::FirmPosition => 3,
        _ => REJECT_OTHER,
    }
}

fn reject_text(reason: RejectReason, most: u64, asked: u64) -> String {
    let text = match reason {
        RejectReason::DuplicateId => "an order with this id is live",
        RejectReason::UnknownOrder => "the order is not live",
        RejectReason::BadQuantity => "the quantity is zero, or MaxFloor or MinQty are above it",
        RejectReason::BadCombination => "instructions contradict each other",
        RejectReason::WouldTake => "the order would trade at once, and must not",
        RejectReason::OutsideBands => "the price lies outside the price bands",
        RejectReason::Halted => "trading is halted",
        RejectReason::InAuction => "an auction does not take this kind of order",
        RejectReason::WrongState => "the phase of trading does not allow it",
        RejectReason::Expired => "ExpireTime has passed",
        RejectReason::NotAllowed => "this session may not do that",
        RejectReason::TooManyParts => "MaxFloor is too small for the quantity",
        RejectReason::TooManyOrders => "the instrument has as many live orders as it may have",
        RejectReason::TooManyOwnOrders => "this session has as many live orders as it may have",
        RejectReason::TooManyOwnerOrders => "your quota of live orders on the instrument is full",
        RejectReason::TooManyOwnerCellOrders => "your quota of live orders in the cell is full",
        RejectReason::TooManyCellOrders => "the cell has as many live orders as it may have",
        RejectReason::NotListed => "the symbol is not listed any more",
        RejectReason::OutsideCollar => "the price lies outside the prices of the symbol's listing",
        RejectReason::OwnerStopped => {
            "the exchange has stopped your firm: orders are cancelled only"
        }
        RejectReason::TooLarge => "the quantity is above the largest one of the symbol's listing",
        RejectReason::BadPeg | RejectReason::TooManyPegs | RejectReason::TooManyOwnerPegs => {
            reason.words()
        }
        RejectReason::NoClosing => "the symbol has no closing auction today, or it has ended",
        RejectReason::FirmQuantity
        | RejectReason::FirmOrderValue
        | RejectReason::FirmOrders
        | RejectReason::FirmValue
        | RejectReason::FirmPosition
        | RejectReason::FirmNeedsPrice => return reason.sentence(most, asked),
    };
    text.to_string()
}

fn cancel_text(reason: CancelReason) -> Option<&'static str> {
    match reason {
        CancelReason::User => None,
        CancelReason::Mass => Some("all orders were cancelled"),
        CancelReason::Unfilled => Some("nobody is left to trade with at once"),
        CancelReason::Killed => Some("it cannot be filled at once"),
        CancelReason::BelowMinimum => Some("less than MinQty could trade"),
        CancelReason::SelfTrade => Some("it would have traded with an own order"),
        CancelReason::Bands => Some("its price lies outside the price bands"),
        CancelReason::Day => Some("the day has ended"),
        CancelReason::Expired => Some("ExpireTime has passed"),
        CancelReason::TooManyTrades => Some("it has made as many trades as it may make"),
        CancelReason::Disconnected => Some("its session was away for too long"),
        CancelReason::Operator => Some("the exchange has cancelled all orders of your firm"),
        CancelReason::Closed => Some("the closing auction has ended"),
    }
}
