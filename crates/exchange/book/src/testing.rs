//! Test support: properties that must hold for any input, used by seeded streams, property tests
//! and fuzzers.
//!
//! [`differ`] decodes bytes as commands and applies them to both books. Their events and states
//! must be equal. The events alone are checked for what holds for any book. Quantities are
//! conserved, trades stay within the bands, and successive trades of one taker never get a better
//! price.

use std::collections::BTreeMap;

pub use nm_codec::Random;

use crate::book::Book;
use crate::limits;
use crate::order::{
    Command, Event, Matching, NewOrder, OrderId, OrderType, Peg, PostOnly, Price, Quantity,
    SelfTrade, Side, TimeInForce, UserId,
};
use crate::reference;
use crate::snapshot::BookSnapshot;

/// Commands from bytes, with few ids, users and prices, so that orders often interact.
#[derive(Debug)]
pub struct Stream<B> {
    bytes: B,
    /// Time of the last command, ns.
    pub now_ns: u64,
    ids: u64,
}

impl<B: Iterator<Item = u8>> Stream<B> {
    /// Commands about this number of order ids.
    pub fn new(bytes: B, ids: u64) -> Stream<B> {
        Stream { bytes, now_ns: 0, ids }
    }

    fn byte(&mut self) -> Option<u8> {
        self.bytes.next()
    }

    /// A number below `count`, which is at most 256.
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
            // More parts than an iceberg may have, if it shows one.
            2..=6 => limits::ICEBERG_PARTS_MAX + 1,
            small => u64::from(small % 20) + 1,
        })
    }

    /// An order id and its user, rarely another user.
    fn name(&mut self) -> Option<(OrderId, u32)> {
        let id = u64::from_le_bytes([self.byte()?, self.byte()?, 0, 0, 0, 0, 0, 0]) % self.ids;
        let stranger = u64::from(self.pick(16)? == 0);
        Some((id, ((id + stranger) % 5) as u32))
    }

    fn part_of(&mut self, quantity: Quantity) -> Option<Quantity> {
        let byte = self.byte()?;
        Some(match byte {
            0..190 => 0,
            190..206 => 1,
            _ => quantity / 64 + u64::from(byte % 8),
        })
    }

    fn order(&mut self) -> Option<NewOrder> {
        let quantity = self.quantity()?;
        let kinds = [OrderType::Limit, OrderType::Market, OrderType::Stop, OrderType::StopLimit];
        let order_type = kinds[usize::from(self.pick(12)?).saturating_sub(8)];
        let time_in_force = match self.pick(13)? {
            0 => TimeInForce::Day,
            1 => TimeInForce::GoodTill(self.now_ns + u64::from(self.pick(64)?)),
            2 => TimeInForce::GoodTill(u64::MAX),
            3 => TimeInForce::ImmediateOrCancel,
            4 => TimeInForce::FillOrKill,
            5 => TimeInForce::AtClose,
            _ => TimeInForce::GoodTillCancelled,
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
            order_type,
            time_in_force,
            price: self.price()?,
            stop_price: self.price()?,
            quantity,
            display: self.part_of(quantity)?,
            minimum: self.part_of(quantity)?,
            is_hidden: self.pick(10)? == 0,
            peg: match self.pick(16)? {
                0..=1 => Peg::Mid,
                2 => Peg::Primary { offset: 0 },
                3 => Peg::Primary { offset: self.pick(6)? },
                _ => Peg::No,
            },
            post_only: match self.pick(10)? {
                0 => PostOnly::Reject,
                1 => PostOnly::Slide,
                _ => PostOnly::No,
            },
            self_trade: self_trades[usize::from(self.pick(5)?)],
        })
    }

    /// The next command; none at the end of the bytes.
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
            237 => Command::BeginAuction,
            238 => Command::BeginClosing,
            239..=245 => Command::Uncross,
            246 => Command::EndOfDay,
            247..=248 => Command::ExpectClosing,
            _ => Command::Tick,
        })
    }
}

/// The kind of an event, with the number of its reason or outcome.
pub type What = (&'static str, u8);

/// An order's user and id.
type Key = (UserId, OrderId);

/// Checks what must hold for any book, from its events alone.
#[derive(Default)]
struct Ledger {
    /// How often each kind of event occurred.
    seen: BTreeMap<What, u64>,
    open: BTreeMap<Key, Quantity>,
    side: BTreeMap<Key, Side>,
    bands: Option<(Price, Price)>,
}

impl Ledger {
    fn note(&mut self, command: &Command, events: &[Event]) {
        let mut takes: Option<(Key, Price)> = None;
        let is_auction = events.iter().any(|event| matches!(event, Event::Uncrossed { .. }));
        for event in events {
            *self.seen.entry(order_type(event)).or_default() += 1;
            match *event {
                Event::Accepted { id, user } => {
                    let Command::New(order) = command else { panic!("{event:?} of {command:?}") };
                    assert_eq!(self.open.insert((user, id), order.quantity), None);
                    self.side.insert((user, id), order.side);
                }
                Event::Traded {
                    maker,
                    taker,
                    maker_user,
                    taker_user,
                    price,
                    quantity,
                    maker_left,
                    taker_left,
                    ..
                } => {
                    assert!(quantity > 0);
                    let (maker, taker) = ((maker_user, maker), (taker_user, taker));
                    self.trade(maker, quantity, maker_left);
                    self.trade(taker, quantity, taker_left);
                    assert!(self.bands.is_none_or(|(low, high)| low <= price && price <= high));
                    if let Some((_, before)) = takes.filter(|last| last.0 == taker && !is_auction) {
                        let is_worse = match self.side[&taker] {
                            Side::Buy => before <= price,
                            Side::Sell => before >= price,
                        };
                        assert!(is_worse, "{taker:?} got {price} after {before}");
                    }
                    takes = Some((taker, price));
                }
                Event::Cancelled { id, user, left, .. } => {
                    assert_eq!(self.open.remove(&(user, id)), Some(left));
                }
                Event::Reduced { id, user, left } => {
                    let open = self.open.insert((user, id), left).unwrap();
                    assert!(0 < left && left < open, "{event:?}");
                }
                Event::Replaced { id, user, quantity, .. } => {
                    assert!(self.open.insert((user, id), quantity).is_some());
                }
                Event::BandsSet { low, high } => self.bands = Some((low, high)),
                _ => {}
            }
        }
    }

    fn trade(&mut self, key: Key, quantity: Quantity, left: Quantity) {
        let open = self.open.remove(&key).expect("the order of a trade is known");
        assert_eq!(open - quantity, left);
        if left > 0 {
            self.open.insert(key, left);
        }
    }

    fn agrees(&self, saved: &BookSnapshot) {
        let known: BTreeMap<_, _> =
            saved.orders.iter().map(|o| ((o.order.user, o.order.id), o.left)).collect();
        assert_eq!(known, self.open);
    }
}

/// The kind of an event, with the number of its reason or outcome if it has one.
fn order_type(event: &Event) -> What {
    match *event {
        Event::Accepted { .. } => ("accepted", 0),
        Event::Rejected { reason, .. } => ("rejected", reason as u8),
        Event::Traded { .. } => ("traded", 0),
        Event::Cancelled { reason, .. } => ("cancelled", reason as u8),
        Event::Replaced { kept_priority, .. } => ("replaced", u8::from(kept_priority)),
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

/// Applies commands decoded from bytes to both books. Returns the number of commands, and how often
/// each kind of event occurred.
///
/// # Panics
/// If the books differ, or an invariant does not hold.
pub fn differ(
    bytes: impl Iterator<Item = u8>,
    ids: u64,
    most: usize,
) -> (usize, BTreeMap<What, u64>) {
    let mut stream = Stream::new(bytes, ids);
    // A large book is compared completely less often.
    let pause = ids.div_ceil(100) as usize;
    let (mut reference, mut fast) = (reference::ReferenceBook::new(), Book::new());
    let mut ledger = Ledger::default();
    let (mut expected, mut events) = (vec![], vec![]);
    for step in 0..most {
        let Some(command) = stream.command() else {
            exchange(&mut fast, &mut reference, &ledger);
            return (step, ledger.seen);
        };
        expected.clear();
        events.clear();
        reference.apply(&command, stream.now_ns, &mut |event| expected.push(event));
        fast.apply(&command, stream.now_ns, &mut |event| events.push(event));
        assert_eq!(events, expected, "step {step}: {command:?}");
        if step % pause == 0 {
            assert_eq!(fast.hash(), reference.hash(), "step {step}: {command:?}");
        }
        ledger.note(&command, &events);
        assert_eq!(fast.len(), ledger.open.len());
        if step % (16 * pause) == 0 {
            for side in [Side::Buy, Side::Sell] {
                assert_eq!(fast.best(side), reference.best(side));
            }
            assert_eq!(fast.phase(), reference.phase());
            fast.audit().unwrap();
        }
        if step % 1000 == 999 {
            exchange(&mut fast, &mut reference, &ledger);
        }
    }
    exchange(&mut fast, &mut reference, &ledger);
    (most, ledger.seen)
}

/// Replaces each book by one restored from the other's snapshot.
fn exchange(fast: &mut Book, reference: &mut reference::ReferenceBook, ledger: &Ledger) {
    let (mut from_fast, mut from_plain) = (vec![], vec![]);
    fast.save(&mut from_fast);
    reference.save(&mut from_plain);
    assert_eq!(from_fast, from_plain);
    let loads = "a book restores the other's snapshot";
    ledger.agrees(&BookSnapshot::read(&from_fast).expect(loads));
    *fast = Book::load(&from_plain).expect(loads);
    *reference = reference::ReferenceBook::load(&from_fast).expect(loads);
    holds(fast);
}

/// Checks the invariants of the fast book.
///
/// # Panics
/// If one does not hold.
pub fn holds(book: &Book) {
    if let Err(fault) = book.audit() {
        panic!("the book is not sound: {fault}");
    }
}

/// Pseudo-random bytes from a seed.
pub fn seeded(seed: u64) -> impl Iterator<Item = u8> {
    let mut random = Random::new(seed);
    std::iter::repeat_with(move || random.number().to_le_bytes()).flatten()
}

/// A limit order, good till cancelled, without further attributes.
pub fn limit(id: OrderId, user: u32, side: Side, price: Price, quantity: Quantity) -> NewOrder {
    NewOrder {
        id,
        user,
        side,
        order_type: OrderType::Limit,
        time_in_force: TimeInForce::GoodTillCancelled,
        price,
        stop_price: 0,
        quantity,
        display: 0,
        minimum: 0,
        is_hidden: false,
        peg: Peg::No,
        post_only: PostOnly::No,
        self_trade: SelfTrade::Allow,
    }
}
