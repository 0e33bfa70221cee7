//! What must hold for any bytes, for seeded streams, property tests and fuzzers alike; no part of
//! the book itself.
//!
//! [`differ`]: the bytes are commands. The fast book must do what the plain one does, and what must
//! hold for any book is checked from the events alone: quantities are conserved, trades stay within
//! the bands and get worse for whoever takes, one after another.

use std::collections::BTreeMap;

use crate::book::Book;
use crate::naive;
use crate::order::{
    Command, Event, Kind, Life, Matching, NewOrder, OrderId, PostOnly, Price, Quantity, SelfTrade,
    Side,
};
use crate::saved::Saved;

/// Commands out of bytes: a small world, in which everything meets everything.
#[derive(Debug)]
pub struct Stream<B> {
    bytes: B,
    /// Time of the last command, ns.
    pub now_ns: u64,
    names: u64,
}

impl<B: Iterator<Item = u8>> Stream<B> {
    /// Commands about orders of so many names.
    pub fn new(bytes: B, names: u64) -> Stream<B> {
        Stream { bytes, now_ns: 0, names }
    }

    fn byte(&mut self) -> Option<u8> {
        self.bytes.next()
    }

    /// One of so many, at most 256.
    fn pick(&mut self, count: u16) -> Option<u16> {
        Some(u16::from(self.byte()?) % count)
    }

    fn price(&mut self) -> Option<Price> {
        Some(match self.byte()? {
            0 => Price::MIN,
            1 => Price::MAX,
            2 => Price::MIN + 1,
            3 => Price::MAX - 1,
            near @ 4..=11 => (i64::from(near) - 8) * 3_000 + i64::from(self.byte()?),
            near => 100 + i64::from(near % 16),
        })
    }

    fn quantity(&mut self) -> Option<Quantity> {
        Some(match self.byte()? {
            0 => 0,
            1 if self.pick(8)? == 0 => Quantity::MAX / u64::from(self.pick(4)? + 1),
            small => u64::from(small % 20) + 1,
        })
    }

    /// A name and its user, seldom somebody else.
    fn name(&mut self) -> Option<(OrderId, u32)> {
        let id = u64::from_le_bytes([self.byte()?, self.byte()?, 0, 0, 0, 0, 0, 0]) % self.names;
        let stranger = u64::from(self.pick(16)? == 0);
        Some((id, ((id + stranger) % 5) as u32))
    }

    fn part_of(&mut self, quantity: Quantity) -> Option<Quantity> {
        let byte = self.byte()?;
        Some(if byte < 190 { 0 } else { quantity / 64 + u64::from(byte % 8) })
    }

    fn order(&mut self) -> Option<NewOrder> {
        let quantity = self.quantity()?;
        let kinds = [Kind::Limit, Kind::Market, Kind::Stop, Kind::StopLimit];
        let kind = kinds[usize::from(self.pick(12)?).saturating_sub(8)];
        let life = match self.pick(12)? {
            0 => Life::Day,
            1 => Life::GoodTill(self.now_ns + u64::from(self.pick(64)?)),
            2 => Life::GoodTill(u64::MAX),
            3 => Life::ImmediateOrCancel,
            4 => Life::FillOrKill,
            _ => Life::GoodTillCancelled,
        };
        let self_trades = [
            SelfTrade::Allow,
            SelfTrade::CancelNewest,
            SelfTrade::CancelOldest,
            SelfTrade::CancelBoth,
            SelfTrade::Decrement,
        ];
        let (id, user) = self.name()?;
        Some(NewOrder {
            id,
            user,
            side: if self.pick(2)? == 0 { Side::Buy } else { Side::Sell },
            kind,
            life,
            price: self.price()?,
            stop_price: self.price()?,
            quantity,
            display: self.part_of(quantity)?,
            minimum: self.part_of(quantity)?,
            post_only: match self.pick(10)? {
                0 => PostOnly::Reject,
                1 => PostOnly::Slide,
                _ => PostOnly::No,
            },
            self_trade: self_trades[usize::from(self.pick(5)?)],
        })
    }

    /// The next command; none once the bytes are used up.
    pub fn command(&mut self) -> Option<Command> {
        self.now_ns += u64::from(self.pick(4)?);
        Some(match self.byte()? {
            0..=149 => Command::New(self.order()?),
            150..=194 => {
                let (id, user) = self.name()?;
                Command::Replace { id, user, price: self.price()?, quantity: self.quantity()? }
            }
            195..=224 => {
                let (id, user) = self.name()?;
                Command::Cancel { id, user }
            }
            225..=226 => Command::MassCancel { user: u32::from(self.pick(5)?) },
            227 => Command::Bands { low: self.price()?, high: self.price()? },
            228..=229 => Command::Bands { low: Price::MIN, high: Price::MAX },
            230 => Command::Halt,
            231..=236 => Command::Resume,
            237..=238 => Command::BeginAuction,
            239..=245 => Command::Uncross,
            246 => Command::EndOfDay,
            _ => Command::Tick,
        })
    }
}

/// The kind of an event, with the number of its reason or outcome.
pub type What = (&'static str, u8);

/// What must hold for any book, told by the events alone.
#[derive(Default)]
struct Ledger {
    /// What happened how often.
    seen: BTreeMap<What, u64>,
    open: BTreeMap<OrderId, Quantity>,
    side: BTreeMap<OrderId, Side>,
    bands: Option<(Price, Price)>,
}

impl Ledger {
    fn note(&mut self, command: &Command, events: &[Event]) {
        let mut takes: Option<(OrderId, Price)> = None;
        let is_auction = events.iter().any(|event| matches!(event, Event::Uncrossed { .. }));
        for event in events {
            *self.seen.entry(kind(event)).or_default() += 1;
            match *event {
                Event::Accepted { id, .. } => {
                    let Command::New(order) = command else { panic!("{event:?} of {command:?}") };
                    assert_eq!(self.open.insert(id, order.quantity), None);
                    self.side.insert(id, order.side);
                }
                Event::Traded { maker, taker, price, quantity, maker_left, taker_left, .. } => {
                    assert!(quantity > 0);
                    self.trade(maker, quantity, maker_left);
                    self.trade(taker, quantity, taker_left);
                    assert!(self.bands.is_none_or(|(low, high)| low <= price && price <= high));
                    if let Some((_, before)) = takes.filter(|last| last.0 == taker && !is_auction) {
                        let is_worse = match self.side[&taker] {
                            Side::Buy => before <= price,
                            Side::Sell => before >= price,
                        };
                        assert!(is_worse, "{taker} got {price} after {before}");
                    }
                    takes = Some((taker, price));
                }
                Event::Cancelled { id, left, .. } => assert_eq!(self.open.remove(&id), Some(left)),
                Event::Reduced { id, left, .. } => {
                    let open = self.open.insert(id, left).unwrap();
                    assert!(0 < left && left < open, "{event:?}");
                }
                Event::Replaced { id, quantity, .. } => {
                    assert!(self.open.insert(id, quantity).is_some());
                }
                Event::BandsSet { low, high } => self.bands = Some((low, high)),
                _ => {}
            }
        }
    }

    fn trade(&mut self, id: OrderId, quantity: Quantity, left: Quantity) {
        let open = self.open.remove(&id).expect("who trades is known");
        assert_eq!(open - quantity, left);
        if left > 0 {
            self.open.insert(id, left);
        }
    }

    fn agrees(&self, saved: &Saved) {
        let known: BTreeMap<_, _> = saved.orders.iter().map(|o| (o.order.id, o.left)).collect();
        assert_eq!(known, self.open);
    }
}

/// What an event is, with the number of its reason or outcome if it has one.
fn kind(event: &Event) -> What {
    match *event {
        Event::Accepted { .. } => ("accepted", 0),
        Event::Rejected { reason, .. } => ("rejected", reason as u8),
        Event::Traded { .. } => ("traded", 0),
        Event::Cancelled { ending, .. } => ("cancelled", ending as u8),
        Event::Replaced { kept_place, .. } => ("replaced", u8::from(kept_place)),
        Event::Reduced { .. } => ("reduced", 0),
        Event::Slid { .. } => ("slid", 0),
        Event::Triggered { .. } => ("triggered", 0),
        Event::Refreshed { .. } => ("refreshed", 0),
        Event::BandsSet { .. } => ("bands", 0),
        Event::Halted => ("halted", 0),
        Event::Resumed => ("resumed", 0),
        Event::AuctionBegun => ("auction", 0),
        Event::Uncrossed { price, .. } => ("uncrossed", u8::from(price.is_some())),
    }
}

/// Commands out of bytes, at most so many, go to both books. Answers how many there were, and what
/// happened how often.
///
/// # Panics
/// If the books differ in anything, or one of them breaks what must hold for any book.
pub fn differ(
    bytes: impl Iterator<Item = u8>,
    names: u64,
    most: usize,
) -> (usize, BTreeMap<What, u64>) {
    let mut stream = Stream::new(bytes, names);
    // A large book is looked at as a whole less often.
    let pause = names.div_ceil(100) as usize;
    let (mut plain, mut fast) = (naive::Book::new(), Book::new());
    let mut ledger = Ledger::default();
    let (mut expected, mut events) = (vec![], vec![]);
    for step in 0..most {
        let Some(command) = stream.command() else {
            exchange(&mut fast, &mut plain, &ledger);
            return (step, ledger.seen);
        };
        expected.clear();
        events.clear();
        plain.apply(&command, stream.now_ns, &mut |event| expected.push(event));
        fast.apply(&command, stream.now_ns, &mut |event| events.push(event));
        assert_eq!(events, expected, "step {step}: {command:?}");
        if step % pause == 0 {
            assert_eq!(fast.hash(), plain.hash(), "step {step}: {command:?}");
        }
        ledger.note(&command, &events);
        assert_eq!(fast.len(), ledger.open.len());
        if step % (16 * pause) == 0 {
            for side in [Side::Buy, Side::Sell] {
                assert_eq!(fast.best(side), plain.best(side));
            }
            assert_eq!(fast.market(), plain.market());
            fast.audit().unwrap();
        }
        if step % 1000 == 999 {
            exchange(&mut fast, &mut plain, &ledger);
        }
    }
    exchange(&mut fast, &mut plain, &ledger);
    (most, ledger.seen)
}

/// Each book goes on from what the other saved.
fn exchange(fast: &mut Book, plain: &mut naive::Book, ledger: &Ledger) {
    let (mut from_fast, mut from_plain) = (vec![], vec![]);
    fast.save(&mut from_fast);
    plain.save(&mut from_plain);
    assert_eq!(from_fast, from_plain);
    let loads = "a book reads what the other one saved";
    ledger.agrees(&Saved::read(&from_fast).expect(loads));
    *fast = Book::load(&from_plain).expect(loads);
    *plain = naive::Book::load(&from_fast).expect(loads);
    holds(fast);
}

/// A book that breaks what must hold for any book ends the test.
///
/// # Panics
/// If it does.
pub fn holds(book: &Book) {
    if let Err(fault) = book.audit() {
        panic!("the book is not sound: {fault}");
    }
}

/// Bytes of a seed (splitmix64).
pub fn seeded(mut seed: u64) -> impl Iterator<Item = u8> {
    std::iter::repeat_with(move || {
        seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = seed;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)).to_le_bytes()
    })
    .flatten()
}

/// An order with only what every order has.
pub fn limit(id: OrderId, user: u32, side: Side, price: Price, quantity: Quantity) -> NewOrder {
    NewOrder {
        id,
        user,
        side,
        kind: Kind::Limit,
        life: Life::GoodTillCancelled,
        price,
        stop_price: 0,
        quantity,
        display: 0,
        minimum: 0,
        post_only: PostOnly::No,
        self_trade: SelfTrade::Allow,
    }
}
