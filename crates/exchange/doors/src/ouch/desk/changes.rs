//! Requests to change orders.

use nm_book::order::Command;

use super::orders::{lots, ticks};
use super::{Desk, Effect};
use crate::decimal::Decimal;
use crate::limits::WAITING_CHANGES_MAX;
use crate::ouch::appendage::Appendage;
use crate::ouch::code::reject;
use crate::ouch::message::{CancelOrder, ModifyOrder, ReplaceOrder};
use crate::ouch::order::{Change, Order, Wish};

impl Desk {
    /// The live order with a number, or the one that gets it by a replacement on its way.
    fn order_with(&self, user_ref: u32) -> Option<Order> {
        self.numbers.get(&user_ref).and_then(|first| self.orders.get(first)).cloned()
    }

    pub(super) fn cancel(&mut self, cancel: &CancelOrder) {
        let Some(order) = self.order_with(cancel.user_ref) else { return };
        // A quantity between two lots is the next one above.
        let lot = self.symbol(&order).lot.in_units(Decimal::ONE).unwrap_or(1);
        let quantity = u64::from(cancel.quantity).div_ceil(lot.unsigned_abs().max(1));
        self.wait(order, cancel.user_ref, Wish::Reduce(quantity));
    }

    pub(super) fn modify(&mut self, modify: &ModifyOrder) {
        let Some(order) = self.order_with(modify.user_ref) else { return };
        let is_possible =
            matches!((order.side, modify.side), (b'S', b'E') | (b'S', b'T') | (b'E', b'T'));
        let quantity = lots(modify.quantity, &self.symbol(&order));
        if let (true, Ok(quantity)) = (is_possible, quantity) {
            self.wait(order, modify.user_ref, Wish::Modify(modify.side, quantity));
        }
    }

    pub(super) fn replace(&mut self, replace: &ReplaceOrder, options: &Appendage) {
        let ReplaceOrder { original, user_ref, client_id, .. } = *replace;
        let Some(order) = self.order_with(original) else { return };
        if !self.is_new(user_ref) {
            return;
        }
        let symbol = self.symbol(&order);
        let details = lots(replace.quantity, &symbol)
            .and_then(|quantity| Ok((quantity, ticks(replace.price, &symbol)?)));
        match (self.check_replace(replace, &order, options), details) {
            (Err(reason), _) => {
                self.consume(user_ref);
                self.reject(user_ref, reason, client_id);
            }
            // The order ends, and the number stays free.
            (Ok(()), Err(_)) => self.wait(order, original, Wish::Reduce(0)),
            (Ok(()), Ok((quantity, price))) => {
                let wish = Wish::Replace(user_ref, quantity, price, client_id);
                self.wait(order, original, wish);
            }
        }
    }

    /// Why a replacement cannot be made although order and details are good.
    fn check_replace(
        &self,
        replace: &ReplaceOrder,
        order: &Order,
        options: &Appendage,
    ) -> Result<(), u16> {
        let wanted = self.options(options)?;
        let is_same = (replace.time_in_force, replace.sweep) == (order.time_in_force, order.sweep)
            && (wanted.floor, wanted.is_post_only, wanted.expires_s)
                == (order.options.floor, order.options.is_post_only, order.options.expires_s)
            && replace.display == order.options.display()
            && wanted.peg == order.options.peg
            && [0, order.options.peg_offset].contains(&wanted.peg_offset);
        match (replace.display, replace.sweep) {
            _ if self.is_disabled => Err(reject::FIRM),
            _ if self.is_full => Err(reject::PROCESSING),
            _ if order.changes.len() >= WAITING_CHANGES_MAX => Err(reject::PROCESSING),
            (b'Y' | b'N', b'N' | b'Y') if is_same && order.price.is_some() => Ok(()),
            (b'Y' | b'N', b'N' | b'Y') => Err(reject::REPLACE),
            (b'Y' | b'N', _) => Err(reject::SWEEP),
            _ => Err(reject::DISPLAY),
        }
    }

    /// Puts a request behind those that wait for an order.
    fn wait(&mut self, mut order: Order, of: u32, wish: Wish) {
        if order.changes.len() > WAITING_CHANGES_MAX {
            let text = format!("order {of} has too many requests that wait: one is ignored");
            return self.effects.push(Effect::Note(text));
        }
        order.changes.push_back(Change { of, wish, seq: 0 });
        self.go_on(order);
    }

    /// Sends the first request of an order that waits, and keeps the order.
    pub(super) fn go_on(&mut self, mut order: Order) {
        while let Some(change) = order.changes.front().copied().filter(|it| it.seq == 0) {
            match self.command(&mut order, &change) {
                Some(command) => order.changes[0].seq = self.submit(order.instrument, command),
                None => {
                    order.changes.pop_front();
                }
            }
        }
        self.keep(order);
    }

    /// The command of a request; none if it is superfluous, or needs none.
    fn command(&mut self, order: &mut Order, change: &Change) -> Option<Command> {
        if change.of != order.user_ref {
            return None;
        }
        let (id, user) = (self.id(order), self.exchange.number());
        let smaller = |quantity: u64| match quantity.checked_sub(order.traded) {
            None | Some(0) => Some(Command::Cancel { id, user }),
            Some(open) if quantity < order.quantity => {
                let price = order.price.unwrap_or(0);
                Some(Command::Replace { id, user, price, quantity: open })
            }
            Some(_) => None,
        };
        match change.wish {
            Wish::Replace(_, quantity, price, _) => {
                Some(match quantity.checked_sub(order.traded) {
                    None | Some(0) => Command::Cancel { id, user },
                    Some(open) => Command::Replace { id, user, price, quantity: open },
                })
            }
            Wish::Reduce(quantity) => smaller(quantity),
            Wish::Modify(side, quantity) => {
                let command = smaller(quantity);
                if command.is_none() {
                    order.side = side;
                    self.tell_modified(order);
                }
                command
            }
        }
    }
}
