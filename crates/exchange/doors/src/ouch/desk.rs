//! The orders of one session: requests become commands to the exchange, and events of the exchange
//! become messages.
//!
//! An order keeps its id on the exchange when it is replaced. Of the requests to change an order
//! one is at the exchange at a time; the others wait for it. Whether a request still means a live
//! order is looked at when its turn comes, because OUCH ignores those that come too late.
//!
//! The exchange replaces the *open* quantity of an order, and OUCH the total. What trades while a
//! replacement is on its way comes on top. So the desk compares when it arrives, and reduces the
//! order again before it reports.

mod changes;
mod events;
mod orders;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nm_book::order::Command;
use nm_wire::Message as Frame;

use super::appendage::Appendage;
use super::message::{
    AccountQueryResponse, ClientId, DisableEntry, DisableResponse, EnableEntry, EnableResponse,
    Firm, Inbound, MassCancel, MassCancelResponse, Outbound, Rejected,
};
use super::order::Order;
use super::record::Record;
use super::{appendage::tag, code::reject};
use crate::decimal::Decimal;
use crate::symbols::{Symbol, Symbols};
use nm_client::Session;

/// ns of a day.
const DAY_NS: u64 = 86_400_000_000_000;

/// Text with blanks behind it.
pub(super) fn padded<const N: usize>(text: &str) -> [u8; N] {
    let bytes = text.as_bytes();
    std::array::from_fn(|at| bytes.get(at).copied().unwrap_or(b' '))
}

/// What follows from a request or an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Write this before anything is sent.
    Keep(Record),
    /// Send this message.
    Send(Vec<u8>),
    /// Tell whoever runs the door.
    Note(String),
}

/// The orders of a session.
#[derive(Debug)]
pub struct Desk {
    symbols: Arc<Symbols>,
    /// Symbols that are traded no more, for their orders.
    retired: BTreeMap<String, Symbol>,
    firm: Firm,
    /// The session on the exchange.
    pub exchange: Session,
    /// Live orders, by the number of their first request.
    orders: BTreeMap<u32, Order>,
    /// The numbers that live orders have, or get by a replacement on its way; and their first ones.
    numbers: BTreeMap<u32, u32>,
    /// Requests up to this number were processed.
    used: u32,
    is_disabled: bool,
    /// Whether the store takes no new orders.
    pub is_full: bool,
    now_ns: u64,
    effects: Vec<Effect>,
}

impl Desk {
    /// A desk without orders, of a session of the exchange.
    pub fn new(session: u32, firm: Firm, symbols: Arc<Symbols>) -> Desk {
        Desk {
            symbols,
            retired: BTreeMap::new(),
            firm,
            exchange: Session::without_orders(session),
            orders: BTreeMap::new(),
            numbers: BTreeMap::new(),
            used: 0,
            is_disabled: false,
            is_full: false,
            now_ns: 0,
            effects: vec![],
        }
    }

    /// Takes over what was kept of its orders.
    pub fn restore_order(&mut self, order: Order) {
        self.forget(order.first);
        self.numbers.extend(order.numbers().map(|number| (number, order.first)));
        self.orders.insert(order.first, order);
    }

    /// Forgets an order that has ended.
    pub fn forget(&mut self, first: u32) {
        if let Some(order) = self.orders.remove(&first) {
            for number in order.numbers() {
                self.numbers.remove(&number);
            }
        }
    }

    /// Takes over the last number.
    pub fn restore_used(&mut self, used: u32) {
        self.used = used;
    }

    /// Takes over whether new orders are rejected.
    pub fn restore_disabled(&mut self, is_disabled: bool) {
        self.is_disabled = is_disabled;
    }

    /// All that must be kept of its orders.
    pub fn snapshot(&self) -> impl Iterator<Item = Record> {
        let orders = self.orders.values().map(|order| Record::Order(Box::new(order.clone())));
        [Record::Used(self.used), Record::Disabled(self.is_disabled)].into_iter().chain(orders)
    }

    /// A symbol of a live order that the sessions file lacks.
    pub fn lost_symbol(&self) -> Option<&str> {
        let mut orders = self.orders.values();
        let is_lost = |order: &&Order| {
            let symbol = self.symbols.0.get(&order.symbol);
            symbol.is_none_or(|symbol| symbol.instrument != order.instrument)
        };
        orders.find(is_lost).map(|order| order.symbol.as_str())
    }

    /// What is traded.
    pub fn symbols(&self) -> &Symbols {
        &self.symbols
    }

    /// Handles a request of the client.
    pub fn receive(&mut self, request: Inbound, options: &Appendage, now_ns: u64) -> Vec<Effect> {
        self.now_ns = now_ns;
        match request {
            Inbound::EnterOrder(order) => self.enter(&order, options),
            Inbound::ReplaceOrder(replace) => self.replace(&replace, options),
            Inbound::CancelOrder(cancel) => self.cancel(&cancel),
            Inbound::ModifyOrder(modify) => self.modify(&modify),
            Inbound::MassCancel(cancel) => self.cancel_all(&cancel, options),
            Inbound::DisableEntry(DisableEntry { user_ref, firm }) => {
                let answer = DisableResponse { at: self.midnight_ns(), user_ref, firm };
                self.switch(true, user_ref, firm, answer.into());
            }
            Inbound::EnableEntry(EnableEntry { user_ref, firm }) => {
                let answer = EnableResponse { at: self.midnight_ns(), user_ref, firm };
                self.switch(false, user_ref, firm, answer.into());
            }
            Inbound::AccountQuery(_) => {
                let next = self.last_used().saturating_add(1);
                self.send(AccountQueryResponse { at: self.midnight_ns(), next });
            }
        }
        self.take_effects()
    }

    /// Handles a message of the gateway.
    pub fn hear(&mut self, frame: &Frame<'_>, now_ns: u64) -> Vec<Effect> {
        self.now_ns = now_ns;
        self.exchange.receive(frame, now_ns);
        self.take_effects()
    }

    /// What follows, also from requests that the session itself refuses.
    fn take_effects(&mut self) -> Vec<Effect> {
        while let Some(happened) = self.exchange.next_happened() {
            self.happened(happened);
        }
        std::mem::take(&mut self.effects)
    }

    /// Whether any order may trade.
    pub fn has_live_orders(&self) -> bool {
        !self.orders.is_empty()
    }

    /// Cancels all live orders.
    pub fn cancel_live(&mut self, now_ns: u64) -> Vec<Effect> {
        self.now_ns = now_ns;
        self.cancel_those(|_| true);
        self.take_effects()
    }

    /// Cancels all orders on the instruments of some.
    fn cancel_those(&mut self, are_meant: impl Fn(&Order) -> bool) {
        let meant = self.orders.values().filter(|order| are_meant(order));
        let instruments: BTreeSet<u32> = meant.map(|order| order.instrument).collect();
        let user = self.exchange.number();
        for instrument in instruments {
            self.submit(instrument, Command::MassCancel { user });
        }
    }

    /// ns since midnight.
    fn midnight_ns(&self) -> u64 {
        self.now_ns % DAY_NS
    }

    fn send(&mut self, message: impl Into<Outbound>) {
        self.send_with(message, &Appendage::default());
    }

    fn send_with(&mut self, message: impl Into<Outbound>, options: &Appendage) {
        self.effects.push(Effect::Send(message.into().write(options)));
    }

    fn reject(&mut self, user_ref: u32, reason: u16, client_id: ClientId) {
        self.send(Rejected { at: self.midnight_ns(), user_ref, reason, client_id });
    }

    /// The last number that is used or that a replacement on its way will use.
    fn last_used(&self) -> u32 {
        let last = self.numbers.last_key_value().map_or(0, |(number, _)| *number);
        self.used.max(last)
    }

    /// Whether a number is new; those that are not are ignored, as requests that came before.
    fn is_new(&self, user_ref: u32) -> bool {
        user_ref > self.last_used()
    }

    fn consume(&mut self, user_ref: u32) {
        if user_ref > self.used {
            self.used = user_ref;
            self.effects.push(Effect::Keep(Record::Used(user_ref)));
        }
    }

    fn keep(&mut self, order: Order) {
        self.effects.push(Effect::Keep(Record::Order(Box::new(order.clone()))));
        self.restore_order(order);
    }

    /// An order has ended: what waits for it is ignored.
    fn end(&mut self, order: &Order) {
        self.effects.push(Effect::Keep(Record::Ended(order.first)));
        self.forget(order.first);
    }

    fn id(&self, order: &Order) -> u64 {
        u64::from(self.exchange.number()) << 32 | u64::from(order.first)
    }

    /// Number of an order on the exchange, as clients see it: a replacement has one of its own.
    fn order_ref(&self, order: &Order) -> u64 {
        u64::from(self.exchange.number()) << 32 | u64::from(order.user_ref)
    }

    /// Other symbols are traded from now on. Those that are not any more are remembered, because
    /// their orders may live.
    pub fn set_symbols(&mut self, symbols: Arc<Symbols>) {
        for (name, old) in &self.symbols.0 {
            if !symbols.0.contains_key(name) {
                self.retired.insert(name.clone(), old.clone());
            }
        }
        self.symbols = symbols;
    }

    fn submit(&mut self, instrument: u32, command: Command) -> u64 {
        let seq = self.exchange.next_seq(self.now_ns);
        self.exchange.submit(instrument, seq, command, self.now_ns);
        seq
    }

    fn symbol(&self, order: &Order) -> Symbol {
        let known = self.symbols.0.get(&order.symbol);
        match known.or_else(|| self.retired.get(&order.symbol)) {
            Some(symbol) => symbol.clone(),
            None => unreachable!("a door does not start with an order of no symbol"),
        }
    }

    /// Shares of a number of lots.
    fn shares(&self, order: &Order, lots: u64) -> u32 {
        let shares = self.symbol(order).lot.times(i128::from(lots)).in_units(Decimal::ONE);
        shares.and_then(|shares| u32::try_from(shares).ok()).unwrap_or(u32::MAX)
    }

    /// Whether a firm that a request names is that of the session.
    fn is_own(&self, firm: Firm) -> bool {
        firm == *b"    " || firm == self.firm
    }

    fn cancel_all(&mut self, cancel: &MassCancel, options: &Appendage) {
        let MassCancel { user_ref, firm, symbol } = *cancel;
        if !self.is_new(user_ref) {
            return;
        }
        self.consume(user_ref);
        let name = text(&symbol);
        let is_limited = options.iter().any(|(tag, value)| {
            let is_narrow = [tag::GROUP_ID, tag::SIDE].contains(&tag);
            is_narrow || tag == tag::USER_REF_INDEX && value != [0]
        });
        let refused = match self.symbols.0.get(name) {
            _ if is_limited => Some(reject::OTHER),
            _ if !self.is_own(firm) => Some(reject::FIRM),
            None if !name.is_empty() => Some(reject::SYMBOL),
            _ => None,
        };
        if let Some(reason) = refused {
            return self.reject(user_ref, reason, [b' '; 14]);
        }
        self.send(MassCancelResponse { at: self.midnight_ns(), user_ref, firm, symbol });
        self.cancel_those(|order| name.is_empty() || order.symbol == name);
    }

    /// Takes no new orders, or takes them again.
    fn switch(&mut self, is_disabled: bool, user_ref: u32, firm: Firm, answer: Outbound) {
        if !self.is_new(user_ref) {
            return;
        }
        self.consume(user_ref);
        if !self.is_own(firm) {
            return self.reject(user_ref, reject::FIRM, [b' '; 14]);
        }
        self.is_disabled = is_disabled;
        self.effects.push(Effect::Keep(Record::Disabled(is_disabled)));
        self.send(answer);
    }
}

/// A text without the blanks behind it; nothing if it is none.
fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).map_or("\0", |text| text.trim_end_matches(' '))
}
