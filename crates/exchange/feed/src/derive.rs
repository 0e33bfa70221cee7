//! From the events of one instrument's book to messages of ITCH.
//!
//! The same commands and events always lead to the same messages. An order has a number of its own
//! in the feed, which says nothing of its owner. It gets another one when it loses its priority.
//! Pending stops, hidden and pegged orders, the hidden part of an iceberg and market orders in an
//! auction are not shown.
//!
//! - Trades in continuous trading are `E`, those of an auction `C` which is not to be printed, and
//!   the auction as a whole is `Q`. A trade with an order that ITCH cannot express is `P`.
//! - After its uncross, an iceberg may show more than before and keeps its place. No message says
//!   that, so it and the orders behind it get new numbers, in their order.

use std::collections::HashMap;

use nm_book::book::Indicative;
use nm_book::order::{
    Closing, Command, Event, NewOrder, OrderId, OrderType, Price, Quantity, Side, TradingPhase,
    UserId,
};
use nm_book::snapshot::BookSnapshot;

use crate::itch::{Body, Message};
use crate::stock::Listing;

/// ns of a day.
const DAY_NS: u64 = 86_400_000_000_000;

/// Bits of a number that count within an instrument; the locate is above them.
const COUNT_BITS: u32 = 48;

/// An order's user and id.
type Key = (UserId, OrderId);

/// A live order.
#[derive(Debug, Clone, Copy)]
struct Known {
    side: Side,
    /// Whether it rests at a price once it is no pending stop.
    order_type: OrderType,
    is_pending_stop: bool,
    /// Whether others do not see it while it rests.
    is_hidden: bool,
    price: Price,
    left: Quantity,
    shown: Quantity,
    display: Quantity,
    /// Rises with each order that comes to rest, or rests anew.
    priority: u64,
    /// Its number in the feed, and the shares that it has there.
    sent: Option<(u64, u32)>,
}

impl Known {
    fn shown_at_rest(&self) -> Quantity {
        if self.display == 0 { self.left } else { self.left.min(self.display) }
    }

    fn is_displayed(&self) -> bool {
        !self.is_pending_stop && self.order_type == OrderType::Limit && !self.is_hidden
    }
}

/// An auction whose trades are being sent.
#[derive(Debug, Clone, Copy)]
struct Uncross {
    price: Option<Price>,
    volume: Quantity,
}

/// One instrument's part of the feed.
#[derive(Debug)]
pub struct Derivation {
    locate: u16,
    listing: Listing,
    orders: HashMap<Key, Known>,
    phase: TradingPhase,
    phase_before_halt: TradingPhase,
    /// Whether the auction is the closing one.
    is_closing: bool,
    /// The order that is executed now, and comes to rest afterwards.
    incoming: Option<Key>,
    uncross: Option<Uncross>,
    /// Orders that the present auction has left with a larger shown part.
    grown: Vec<Key>,
    last_priority: u64,
    last_reference: u64,
    last_match: u64,
    time_ns: u64,
}

impl Derivation {
    /// That of an empty book.
    pub fn new(locate: u16, listing: Listing) -> Derivation {
        Derivation {
            locate,
            listing,
            orders: HashMap::new(),
            phase: TradingPhase::Continuous,
            phase_before_halt: TradingPhase::Continuous,
            is_closing: false,
            incoming: None,
            uncross: None,
            grown: vec![],
            last_priority: 0,
            last_reference: 0,
            last_match: 0,
            time_ns: 0,
        }
    }

    /// Its locate.
    pub fn locate(&self) -> u16 {
        self.locate
    }

    /// How it is shown.
    pub fn listing(&self) -> &Listing {
        &self.listing
    }

    /// Phase of trading.
    pub fn phase(&self) -> TradingPhase {
        self.phase
    }

    fn message(&self, body: Body) -> Message {
        Message { locate: self.locate, tracking: 0, time_ns: self.time_ns % DAY_NS, body }
    }

    /// The messages by which the instrument is listed: what it is, and whether it is traded.
    pub fn describe(&self, out: &mut Vec<Message>) {
        out.push(self.message(Body::StockDirectory {
            stock: self.listing.stock,
            market: b' ',
            financial_status: b' ',
            round_lot: self.listing.lot,
            round_lots_only: b'N',
            class: b' ',
            sub_type: *b"  ",
            authenticity: b'P',
            short_sale: b' ',
            ipo: b' ',
            luld_tier: b' ',
            etp: b' ',
            etp_leverage: 0,
            inverse: b'N',
        }));
        self.tell_phase(out);
    }

    /// State of trading: `T` continuous, `Q` auction, `H` halted.
    pub fn state(&self) -> u8 {
        match self.phase {
            TradingPhase::Continuous => b'T',
            TradingPhase::Auction => b'Q',
            TradingPhase::Halted => b'H',
        }
    }

    fn tell_phase(&self, out: &mut Vec<Message>) {
        let state = self.state();
        let (stock, reason) = (self.listing.stock, *b"    ");
        out.push(self.message(Body::TradingAction { stock, state, reserved: b' ', reason }));
    }

    /// The displayed orders as they stand, in order of priority.
    pub fn orders(&self, out: &mut Vec<Message>) {
        let mut sent: Vec<(&Known, u64, u32)> = self
            .orders
            .values()
            .filter_map(|order| order.sent.map(|(reference, shares)| (order, reference, shares)))
            .collect();
        sent.sort_unstable_by_key(|(order, ..)| order.priority);
        for (order, reference, shares) in sent {
            out.extend(self.add(order, reference, shares));
        }
    }

    fn add(&self, order: &Known, reference: u64, shares: u32) -> Option<Message> {
        let (stock, price) = (self.listing.stock, self.listing.price(order.price)?);
        let side = if order.side == Side::Buy { b'B' } else { b'S' };
        Some(self.message(Body::AddOrder { reference, side, shares, stock, price }))
    }

    /// The messages of one command that was executed at a time, ns since 1970. The time does not go
    /// back.
    pub fn derive(
        &mut self,
        command: &Command,
        events: &[Event],
        time_ns: u64,
        out: &mut Vec<Message>,
    ) {
        self.time_ns = self.time_ns.max(time_ns);
        for event in events {
            if self.uncross.is_some() && !matches!(event, Event::Traded { .. }) {
                self.end_uncross(out);
            }
            self.on_event(command, event, out);
        }
        if self.uncross.is_some() {
            self.end_uncross(out);
        }
        self.is_closing &= *command != Command::EndOfDay;
        self.settle(out);
    }

    fn on_event(&mut self, command: &Command, event: &Event, out: &mut Vec<Message>) {
        match *event {
            Event::Accepted { id, user } => self.accept(command, (user, id)),
            Event::Triggered { id, user } => {
                self.settle(out);
                self.trigger((user, id));
            }
            Event::Traded { maker, taker, maker_user, taker_user, price, quantity, .. } => {
                let (maker, taker) = ((maker_user, maker), (taker_user, taker));
                self.trade([maker, taker], price, quantity, out);
            }
            Event::Refreshed { id, user, shown } => {
                if let Some(known) = self.orders.get_mut(&(user, id)) {
                    known.shown = shown;
                    self.rest((user, id), out);
                }
            }
            Event::Cancelled { id, user, .. } => self.remove((user, id), out),
            Event::Replaced { id, user, price, quantity, kept_priority } => {
                self.replace((user, id), (price, quantity), kept_priority, out);
            }
            Event::Reduced { id, user, left } => self.reduce((user, id), left, out),
            Event::Slid { id, user, price } => {
                if let Some(known) = self.orders.get_mut(&(user, id)) {
                    known.price = price;
                }
            }
            Event::Halted => {
                self.phase_before_halt = self.phase;
                self.enter(TradingPhase::Halted, out);
            }
            Event::Resumed => self.enter(self.phase_before_halt, out),
            Event::AuctionBegun => {
                self.is_closing |= *command == Command::BeginClosing;
                self.enter(TradingPhase::Auction, out);
            }
            Event::Uncrossed { price, volume } => self.uncross = Some(Uncross { price, volume }),
            Event::Rejected { .. } | Event::BandsSet { .. } => {}
        }
    }

    fn enter(&mut self, phase: TradingPhase, out: &mut Vec<Message>) {
        self.phase = phase;
        self.tell_phase(out);
    }

    fn accept(&mut self, command: &Command, key: Key) {
        let Command::New(order) = *command else {
            return debug_assert!(false, "an order is accepted by {command:?}");
        };
        let NewOrder { side, order_type, price, quantity, display, .. } = order;
        let known = Known {
            side,
            order_type,
            is_hidden: !order.is_displayed(),
            is_pending_stop: matches!(order_type, OrderType::Stop | OrderType::StopLimit),
            price,
            left: quantity,
            shown: 0,
            display,
            priority: 0,
            sent: None,
        };
        self.orders.insert(key, known);
        self.incoming = Some(key);
    }

    fn trigger(&mut self, key: Key) {
        if let Some(known) = self.orders.get_mut(&key) {
            known.is_pending_stop = false;
            let becomes_market = known.order_type == OrderType::Stop;
            known.order_type = if becomes_market { OrderType::Market } else { OrderType::Limit };
            self.incoming = Some(key);
        }
    }

    /// The order that was executed rests, if anything of it is left.
    fn settle(&mut self, out: &mut Vec<Message>) {
        let Some(key) = self.incoming.take() else { return };
        if let Some(known) = self.orders.get_mut(&key) {
            known.shown = known.shown_at_rest();
            self.rest(key, out);
        }
    }

    /// An order rests behind all others, with what it shows now.
    fn rest(&mut self, key: Key, out: &mut Vec<Message>) {
        self.last_priority += 1;
        let priority = self.last_priority;
        let Some(known) = self.orders.get_mut(&key) else { return };
        known.priority = priority;
        self.tell(key, out);
    }

    /// Shows an order under a new number.
    fn tell(&mut self, key: Key, out: &mut Vec<Message>) {
        let Some(known) = self.orders.get(&key).copied() else { return };
        let expressed = self.listing.price(known.price).zip(self.listing.shares(known.shown));
        let shown = expressed.filter(|_| known.is_displayed() && known.shown > 0);
        let sent = shown.map(|(_, shares)| (self.next_reference(), shares));
        match (known.sent, shown, sent) {
            (Some((original, _)), Some((price, _)), Some((reference, shares))) => {
                out.push(self.message(Body::Replace { original, reference, shares, price }));
            }
            (Some((reference, _)), _, _) => {
                out.push(self.message(Body::Delete { reference }));
            }
            (None, _, Some((reference, shares))) => {
                out.extend(self.add(&known, reference, shares));
            }
            (None, _, None) => {}
        }
        if let Some(known) = self.orders.get_mut(&key) {
            known.sent = sent;
        }
    }

    /// What the auction would trade now.
    pub fn imbalance(&self, indicative: Indicative) -> Message {
        let Indicative { price, volume, surplus, surplus_side, far } = indicative;
        let in_itch = |price: Option<Price>| price.and_then(|price| self.listing.price(price));
        let near = in_itch(price).unwrap_or_default();
        self.message(Body::Imbalance {
            paired: self.listing.all_shares(volume),
            imbalance: self.listing.all_shares(surplus),
            direction: match (volume, surplus_side) {
                (0, _) => b'O',
                (_, Some(Side::Buy)) => b'B',
                (_, Some(Side::Sell)) => b'S',
                (_, None) => b'N',
            },
            stock: self.listing.stock,
            far: in_itch(far).unwrap_or_default(),
            near,
            reference: near,
            cross: self.cross(),
            variation: b' ',
        })
    }

    /// Which auction it is: `C` for the closing one.
    fn cross(&self) -> u8 {
        if self.is_closing { b'C' } else { b'O' }
    }

    fn next_reference(&mut self) -> u64 {
        self.last_reference += 1;
        u64::from(self.locate) << COUNT_BITS | self.last_reference
    }

    fn next_match(&mut self) -> u64 {
        self.last_match += 1;
        u64::from(self.locate) << COUNT_BITS | self.last_match
    }

    fn remove(&mut self, key: Key, out: &mut Vec<Message>) {
        if let Some(Known { sent: Some((reference, _)), .. }) = self.orders.remove(&key) {
            out.push(self.message(Body::Delete { reference }));
        }
        if self.incoming == Some(key) {
            self.incoming = None;
        }
    }

    fn replace(
        &mut self,
        key: Key,
        (price, quantity): (Price, Quantity),
        kept_priority: bool,
        out: &mut Vec<Message>,
    ) {
        let Some(known) = self.orders.get_mut(&key) else { return };
        if !kept_priority {
            (known.price, known.left) = (price, quantity);
            self.incoming = Some(key);
            return;
        }
        known.price = price;
        if known.is_pending_stop {
            known.left = quantity;
        } else {
            self.reduce(key, quantity, out);
        }
    }

    /// An order has less open quantity than before, at its place.
    fn reduce(&mut self, key: Key, left: Quantity, out: &mut Vec<Message>) {
        let is_incoming = self.incoming == Some(key);
        let Some(known) = self.orders.get_mut(&key) else { return };
        known.left = left;
        if is_incoming {
            return;
        }
        known.shown = known.shown.min(left);
        self.tell_less(key, out, |reference, shares| Body::Cancel { reference, shares });
    }

    /// Tells by how many shares an order shows less than before.
    fn tell_less(&mut self, key: Key, out: &mut Vec<Message>, body: impl FnOnce(u64, u32) -> Body) {
        let Some(known) = self.orders.get_mut(&key).filter(|it| it.is_displayed()) else { return };
        let Some((reference, before)) = known.sent else {
            // It may show no more than ITCH can express from now on.
            return self.show_in_place(key, out);
        };
        let Some(now) = self.listing.shares(known.shown) else { return };
        if now < before {
            known.sent = Some((reference, now));
            out.push(self.message(body(reference, before - now)));
        }
    }

    fn trade(
        &mut self,
        [maker, taker]: [Key; 2],
        price: Price,
        quantity: Quantity,
        out: &mut Vec<Message>,
    ) {
        let match_number = self.next_match();
        if let Some(Uncross { .. }) = self.uncross {
            for side in [maker, taker] {
                self.trade_in_auction(side, (price, quantity, match_number), out);
            }
            return;
        }
        if self.incoming == Some(maker) {
            // It rests already: a pegged order follows it.
            self.settle(out);
        }
        if let Some(known) = self.orders.get_mut(&taker) {
            known.left -= quantity;
            known.shown = known.shown.min(known.left);
            if known.left == 0 {
                self.remove(taker, out);
            }
        }
        let Some(known) = self.orders.get_mut(&maker) else { return };
        known.left -= quantity;
        known.shown -= quantity;
        let Known { sent, left, shown, .. } = *known;
        if sent.is_none() {
            self.tell_hidden_trade(price, quantity, match_number, out);
        }
        // A refreshed iceberg and an order without a rest leave by their last shares.
        let is_gone = shown == 0;
        if sent.is_some() || !is_gone {
            self.tell_less(maker, out, |reference, shares| Body::Executed {
                reference,
                shares,
                match_number,
            });
        }
        if left == 0 {
            self.orders.remove(&maker);
        } else if is_gone && let Some(known) = self.orders.get_mut(&maker) {
            known.sent = None;
        }
    }

    fn tell_hidden_trade(
        &self,
        price: Price,
        quantity: Quantity,
        match_number: u64,
        out: &mut Vec<Message>,
    ) {
        let expressed = self.listing.price(price).zip(self.listing.shares(quantity));
        if let Some((price, shares)) = expressed {
            let (stock, reference, side) = (self.listing.stock, 0, b'B');
            let trade = Body::Trade { reference, side, shares, stock, price, match_number };
            out.push(self.message(trade));
        }
    }

    fn trade_in_auction(
        &mut self,
        key: Key,
        (price, quantity, match_number): (Price, Quantity, u64),
        out: &mut Vec<Message>,
    ) {
        let Some(known) = self.orders.get_mut(&key) else { return };
        let before = known.shown;
        known.left -= quantity;
        known.shown = known.shown_at_rest();
        let (is_filled, has_grown) = (known.left == 0, known.shown > before);
        let price = self.listing.price(price).unwrap_or_default();
        if has_grown {
            self.grown.push(key);
        } else {
            self.tell_less(key, out, |reference, shares| Body::ExecutedAtPrice {
                reference,
                shares,
                match_number,
                printable: b'N',
                price,
            });
        }
        if is_filled {
            self.orders.remove(&key);
        }
    }

    fn end_uncross(&mut self, out: &mut Vec<Message>) {
        let Some(Uncross { price, volume }) = self.uncross.take() else { return };
        for key in std::mem::take(&mut self.grown) {
            self.show_in_place(key, out);
        }
        let match_number = self.next_match();
        out.push(self.message(Body::Cross {
            shares: self.listing.all_shares(volume),
            stock: self.listing.stock,
            price: price.and_then(|price| self.listing.price(price)).unwrap_or_default(),
            match_number,
            cross: self.cross(),
        }));
        self.is_closing = false;
        self.enter(TradingPhase::Continuous, out);
    }

    /// Shows an order at its place, with all that are behind it at its price.
    fn show_in_place(&mut self, key: Key, out: &mut Vec<Message>) {
        let Some(Known { side, price, priority, .. }) = self.orders.get(&key).copied() else {
            return;
        };
        let is_behind = |other: &Known| {
            (other.side, other.price) == (side, price)
                && other.priority > priority
                && other.sent.is_some()
        };
        let behind = self.orders.iter().filter(|(_, other)| is_behind(other));
        let mut keys: Vec<(u64, Key)> = behind.map(|(key, it)| (it.priority, *key)).collect();
        keys.sort_unstable();
        self.tell(key, out);
        if self.orders.get(&key).is_some_and(|known| known.sent.is_some()) {
            keys.into_iter().for_each(|(_, key)| self.tell(key, out));
        }
    }

    /// Goes on with the state of a book, whatever was known before: all orders leave, and those of
    /// the book come. What traded meanwhile is not sent.
    pub fn resume_from(&mut self, book: &BookSnapshot, out: &mut Vec<Message>) {
        self.time_ns = self.time_ns.max(book.now_ns);
        let mut sent: Vec<u64> =
            self.orders.values().filter_map(|order| Some(order.sent?.0)).collect();
        sent.sort_unstable();
        for reference in sent {
            out.push(self.message(Body::Delete { reference }));
        }
        self.orders.clear();
        (self.incoming, self.uncross) = (None, None);
        self.grown.clear();
        self.phase_before_halt = book.phase_before_halt;
        self.is_closing = book.closing == Closing::Begun;
        if self.phase != book.phase {
            self.enter(book.phase, out);
        }
        for saved in &book.orders {
            let NewOrder { id, user, side, order_type, price, display, .. } = saved.order;
            let known = Known {
                side,
                order_type,
                is_hidden: !saved.order.is_displayed(),
                is_pending_stop: saved.is_pending_stop,
                price,
                left: saved.left,
                shown: saved.shown,
                display,
                priority: 0,
                sent: None,
            };
            self.orders.insert((user, id), known);
            self.rest((user, id), out);
        }
    }
}
