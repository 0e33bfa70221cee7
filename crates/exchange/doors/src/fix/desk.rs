//! The orders of one session: messages of its client become commands to the exchange, and events of
//! the exchange become reports.
//!
//! A ClOrdID belongs to the session. An order has one number in the session and one id on the
//! exchange, both of which it keeps when it is replaced. Of the requests to change an order one is
//! at the exchange at a time; the others wait for it.
//!
//! The exchange replaces the *open* quantity of an order, and FIX the total. What trades while a
//! replacement is on its way comes on top. So the door compares when it arrives, and reduces the
//! order again before it reports.

mod events;
mod requests;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use nm_book::order::Command;
use nm_wire::Message as Frame;

use super::message::{Body, Message};
use super::order::Order;
use super::record::Record;
use super::reports::{self, Execution};
use super::tag;
use crate::limits::ENDED_ORDERS_MAX;
use crate::symbols::{Symbol, Symbols};
use nm_client::Session;

/// BusinessRejectReason: not authorised.
const NOT_AUTHORISED: u32 = 6;

/// What follows from a message or an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Write this before anything is sent.
    Keep(Record),
    /// Send a message of this type to the client.
    Report(&'static str, Body),
}

/// The orders of a session.
#[derive(Debug)]
pub struct Desk {
    symbols: Arc<Symbols>,
    /// Symbols that are traded no more, for reports of their orders.
    retired: BTreeMap<u32, Symbol>,
    /// The session on the exchange.
    pub exchange: Session,
    orders: BTreeMap<u64, Order>,
    by_client_id: HashMap<String, u64>,
    /// Numbers of orders that have ended, the oldest first.
    ended: VecDeque<u64>,
    last_number: u64,
    /// Whether the store takes no new orders.
    pub is_full: bool,
    now_ns: u64,
    effects: Vec<Effect>,
}

impl Desk {
    /// A desk without orders, of a session of the exchange.
    pub fn new(session: u32, symbols: Arc<Symbols>) -> Desk {
        Desk {
            symbols,
            retired: BTreeMap::new(),
            exchange: Session::without_orders(session),
            orders: BTreeMap::new(),
            by_client_id: HashMap::new(),
            ended: VecDeque::new(),
            last_number: 0,
            is_full: false,
            now_ns: 0,
            effects: vec![],
        }
    }

    /// Takes over what was kept of its orders.
    pub fn restore_order(&mut self, order: Order) {
        self.last_number = self.last_number.max(order.number);
        self.index(&order);
        self.orders.insert(order.number, order);
    }

    /// Takes over the last number.
    pub fn restore_number(&mut self, number: u64) {
        self.last_number = self.last_number.max(number);
    }

    /// All that must be kept of its orders.
    pub fn snapshot(&self) -> impl Iterator<Item = Record> {
        let orders = self.orders.values().map(|order| Record::Order(Box::new(order.clone())));
        std::iter::once(Record::Numbered(self.last_number)).chain(orders)
    }

    /// Symbols of live orders that the sessions file lacks.
    pub fn lost_symbol(&self) -> Option<&str> {
        let mut live = self.orders.values().filter(|order| order.status.is_live());
        live.find(|order| self.symbols.of(order.instrument).is_none())
            .map(|order| order.symbol.as_str())
    }

    /// Handles a message of the client.
    pub fn receive(&mut self, message: &Message, now_ns: u64) -> Vec<Effect> {
        self.now_ns = now_ns;
        match message.kind() {
            "D" => self.new_order(message),
            "F" => self.change(message, false),
            "G" => self.change(message, true),
            "H" => self.tell_status(message),
            "q" => self.cancel_all(message),
            "x" => self.list_symbols(message),
            kind => unreachable!("{kind} is no type of the application"),
        }
        self.take_effects()
    }

    /// Refuses a message of a session that cannot trade.
    pub fn forbid(&mut self, message: &Message) -> Vec<Effect> {
        self.refuse(message, NOT_AUTHORISED, "this session gets copies, and cannot trade");
        self.take_effects()
    }

    /// Other symbols are traded from now on. Those that are not any more are remembered, because
    /// their orders may live.
    pub fn set_symbols(&mut self, symbols: Arc<Symbols>) {
        for old in self.symbols.0.values() {
            if symbols.of(old.instrument).is_none() {
                self.retired.insert(old.instrument, old.clone());
            }
        }
        self.symbols = symbols;
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
        self.orders.values().any(|order| order.status.is_live())
    }

    /// Cancels all live orders.
    pub fn cancel_live(&mut self, now_ns: u64) -> Vec<Effect> {
        self.now_ns = now_ns;
        let live = self.orders.values().filter(|order| order.status.is_live());
        let instruments: BTreeSet<u32> = live.map(|order| order.instrument).collect();
        let user = self.exchange.number();
        for instrument in instruments {
            self.submit(instrument, Command::MassCancel { user });
        }
        self.take_effects()
    }

    fn index(&mut self, order: &Order) {
        for id in
            order.client_ids.iter().chain(order.changes.iter().map(|change| &change.client_id))
        {
            self.by_client_id.entry(id.clone()).or_insert(order.number);
        }
        let was_live = self.orders.get(&order.number).is_none_or(|old| old.status.is_live());
        if !order.status.is_live() && was_live {
            self.ended.push_back(order.number);
        }
    }

    /// Keeps an order as it is now, and forgets the one that ended first if there are too many.
    fn keep(&mut self, order: Order) {
        self.index(&order);
        self.effects.push(Effect::Keep(Record::Order(Box::new(order.clone()))));
        self.orders.insert(order.number, order);
        while self.ended.len() > ENDED_ORDERS_MAX {
            let Some(number) = self.ended.pop_front() else { return };
            self.effects.push(Effect::Keep(Record::Forgotten(number)));
            self.forget(number);
        }
    }

    /// Forgets an order.
    pub fn forget(&mut self, number: u64) {
        let Some(order) = self.orders.remove(&number) else { return };
        for id in &order.client_ids {
            self.by_client_id.remove(id);
        }
        if self.ended.front() == Some(&number) {
            self.ended.pop_front();
        }
    }

    /// Forgets all orders that have ended.
    pub fn forget_ended(&mut self) {
        while let Some(number) = self.ended.pop_front() {
            self.forget(number);
        }
    }

    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// ExecID of a report that follows from no event.
    fn own_report_id(&mut self) -> String {
        let number = self.next_number();
        self.effects.push(Effect::Keep(Record::Numbered(number)));
        format!("D{number}")
    }

    fn symbol(&self, order: &Order) -> Symbol {
        // Live orders have one; of those that have ended the quantities are in lots then.
        let known = self.symbols.of(order.instrument).or(self.retired.get(&order.instrument));
        known.cloned().unwrap_or_else(|| Symbol {
            name: order.symbol.clone(),
            instrument: order.instrument,
            tick: crate::decimal::Decimal::ONE,
            lot: crate::decimal::Decimal::ONE,
        })
    }

    fn report(&mut self, order: &Order, what: &Execution<'_>) {
        let symbol = self.symbol(order);
        let session = self.exchange.number();
        let body = reports::execution(order, &symbol, session, what, self.now_ns);
        self.effects.push(Effect::Report("8", body));
    }

    /// Keeps an order, and reports it.
    fn keep_and_report(&mut self, order: Order, what: &Execution<'_>) {
        self.keep(order.clone());
        self.report(&order, what);
    }

    fn submit(&mut self, instrument: u32, command: Command) -> u64 {
        let seq = self.exchange.next_seq(self.now_ns);
        self.exchange.submit(instrument, seq, command, self.now_ns);
        seq
    }

    /// A BusinessMessageReject.
    fn refuse(&mut self, message: &Message, reason: u32, text: &str) {
        let mut body = message.route_back().with(tag::REF_SEQ_NUM, message.seq());
        body.push(tag::REF_MSG_TYPE, message.kind());
        if let Some(id) = message.get(tag::CL_ORD_ID).or(message.get(tag::SECURITY_REQ_ID)) {
            body.push(tag::BUSINESS_REJECT_REF_ID, id);
        }
        body.push(tag::BUSINESS_REJECT_REASON, reason);
        self.effects.push(Effect::Report("j", body.with(tag::TEXT, text)));
    }
}
