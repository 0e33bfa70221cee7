//! The fast book beside the plain one: same commands, same events, same state after each.
//!
//! Commands are read from bytes, so that a seeded stream, a property test and a fuzzer all drive
//! the same entry, [`fuzz`]. Beside the comparison, what must hold for any book is checked from
//! the events alone: quantities are conserved, trades stay within the bands and get worse for
//! whoever takes, one after another.

use std::collections::BTreeMap;

use nm_exchange::book::Book;
use nm_exchange::naive;
use nm_exchange::order::{
    Command, Event, Kind, Life, Market, Matching, NewOrder, OrderId, PostOnly, Price, Quantity,
    SelfTrade, Side,
};
use nm_exchange::saved::Saved;
use proptest::prelude::*;

/// Commands out of bytes: a small world, in which everything meets everything.
struct Stream<B> {
    bytes: B,
    now_ns: u64,
    /// Names that orders may have.
    names: u64,
}

impl<B: Iterator<Item = u8>> Stream<B> {
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

    fn command(&mut self) -> Option<Command> {
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

/// What must hold for any book, told by the events alone.
#[derive(Default)]
struct Ledger {
    /// Everything that happened at least once, by name.
    seen: BTreeMap<String, u64>,
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

/// What an event is, with its reason if it has one.
fn kind(event: &Event) -> String {
    match event {
        Event::Rejected { reason, .. } => format!("Rejected {reason:?}"),
        Event::Cancelled { ending, .. } => format!("Cancelled {ending:?}"),
        Event::Replaced { kept_place, .. } => format!("Replaced {kept_place}"),
        Event::Uncrossed { price, .. } => format!("Uncrossed {}", price.is_some()),
        other => format!("{other:?}").split(' ').next().unwrap_or_default().to_string(),
    }
}

/// Commands out of bytes go to both books. Answers how many there were, and what happened.
fn fuzz(
    bytes: impl Iterator<Item = u8>,
    names: u64,
    most: usize,
) -> (usize, BTreeMap<String, u64>) {
    let mut stream = Stream { bytes, now_ns: 0, names };
    // A large book is looked at as a whole less often.
    let pause = names.div_ceil(100) as usize;
    let (mut plain, mut fast) = (naive::Book::new(), Book::new());
    let mut ledger = Ledger::default();
    let (mut expected, mut events) = (vec![], vec![]);
    for step in 0..most {
        let Some(command) = stream.command() else { return (step, ledger.seen) };
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
            // Each goes on from what the other saved.
            let (mut from_fast, mut from_plain) = (vec![], vec![]);
            fast.save(&mut from_fast);
            plain.save(&mut from_plain);
            assert_eq!(from_fast, from_plain);
            ledger.agrees(&Saved::read(&from_fast).unwrap());
            fast = Book::load(&from_plain).unwrap();
            plain = naive::Book::load(&from_fast).unwrap();
        }
    }
    (most, ledger.seen)
}

/// Bytes of a seed (splitmix64).
fn seeded(mut seed: u64) -> impl Iterator<Item = u8> {
    std::iter::repeat_with(move || {
        seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = seed;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)).to_le_bytes()
    })
    .flatten()
}

/// Steps of the long comparison: a million where the code is fast.
const STEPS: usize = if cfg!(debug_assertions) { 100_000 } else { 1_000_000 };

#[test]
fn both_books_do_the_same_for_a_long_time() {
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    for seed in 0..10 {
        let (count, happened) = fuzz(seeded(seed), 48, STEPS / 10);
        assert_eq!(count, STEPS / 10);
        for (what, times) in happened {
            *seen.entry(what).or_default() += times;
        }
    }
    // Ten events, two with two outcomes each, ten reasons and nine endings, often enough.
    assert_eq!(seen.len(), 10 + 2 + 2 + 10 + 9, "{seen:#?}");
    assert!(seen.values().all(|times| *times >= 20), "{seen:#?}");
}

#[test]
fn both_books_do_the_same_with_thousands_of_orders() {
    assert_eq!(fuzz(seeded(11), 5_000, STEPS / 10).0, STEPS / 10);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn both_books_do_the_same_for_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..4000)) {
        let count = bytes.len();
        prop_assert!(fuzz(bytes.into_iter(), 48, usize::MAX).0 <= count);
    }

    #[test]
    fn a_saved_book_goes_on_as_if_nothing_had_been(seed in any::<u64>(), cut in 0usize..600) {
        let mut stream = Stream { bytes: seeded(seed), now_ns: 0, names: 48 };
        let mut through = Book::new();
        let mut cut_here = Book::new();
        for step in 0..700 {
            let command = stream.command().unwrap();
            let (mut expected, mut events) = (vec![], vec![]);
            through.apply(&command, stream.now_ns, &mut |event| expected.push(event));
            cut_here.apply(&command, stream.now_ns, &mut |event| events.push(event));
            prop_assert_eq!(&events, &expected);
            if step == cut {
                let mut bytes = vec![];
                cut_here.save(&mut bytes);
                cut_here = Book::load(&bytes).unwrap();
            }
        }
        prop_assert_eq!(cut_here.hash(), through.hash());
    }

    #[test]
    fn hostile_bytes_are_no_book_or_a_sound_one(
        seed in any::<u64>(), at in any::<prop::sample::Index>(), value in any::<u8>(),
    ) {
        let mut stream = Stream { bytes: seeded(seed), now_ns: 0, names: 48 };
        let mut book = Book::new();
        let mut apply = |book: &mut Book| {
            let command = stream.command().unwrap();
            book.apply(&command, stream.now_ns, &mut |_| {});
        };
        (0..60).for_each(|_| apply(&mut book));
        let mut bytes = vec![];
        book.save(&mut bytes);
        let at = at.index(bytes.len());
        bytes[at] = value;
        if let Ok(mut loaded) = Book::load(&bytes) {
            loaded.audit().map_err(TestCaseError::fail)?;
            (0..200).for_each(|_| apply(&mut loaded));
            loaded.audit().map_err(TestCaseError::fail)?;
        }
        prop_assert!(Book::load(&bytes[..at]).is_err());
    }
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

#[test]
fn levels_far_from_the_market_and_a_market_that_wanders_keep_their_order() {
    let (mut plain, mut fast) = (naive::Book::new(), Book::new());
    let mut random = seeded(7);
    for step in 0..6_000u64 {
        let byte = i64::from(random.next().unwrap());
        // The market climbs 40 000 ticks and comes back, with levels on both sides of it.
        let middle = if step < 3_000 { step as i64 * 13 } else { (6_000 - step as i64) * 13 };
        let side = if byte % 2 == 0 { Side::Buy } else { Side::Sell };
        let away = byte * if byte % 7 == 0 { 100 } else { 1 } + 1;
        let price = if side == Side::Buy { middle - away } else { middle + away };
        let order = limit(step, 1, side, price, 5);
        let commands =
            [Command::New(order), Command::Cancel { id: step.wrapping_sub(150), user: 1 }];
        for command in commands {
            let (mut expected, mut events) = (vec![], vec![]);
            plain.apply(&command, 0, &mut |event| expected.push(event));
            fast.apply(&command, 0, &mut |event| events.push(event));
            assert_eq!(events, expected);
        }
        if step % 16 == 0 {
            assert_eq!(fast.hash(), plain.hash());
            fast.audit().unwrap();
        }
    }
    assert_eq!(fast.market(), Market::Continuous);
}
