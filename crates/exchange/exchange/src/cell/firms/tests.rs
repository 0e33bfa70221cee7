//! Limits of firms, compared with a naive model.

use std::collections::BTreeMap;
use std::task::Poll;

use nm_book::book::Book;
use nm_book::order::{
    Command, Event, NewOrder, OpenOrder, OrderId, OrderType, Price, Quantity, RejectReason,
    SelfTrade, Side, TimeInForce, TradingPhase, UserId,
};
use nm_book::reference::ReferenceBook;
use nm_wire::{Block, FirmLimits, FirmRecord, Part, Request, Retired, SessionRange, Value};
use proptest::prelude::*;

use super::super::testing::order;
use super::super::{CopyPiece, Handled, OPERATOR};
use super::*;
use crate::moves::{Attempt, MoveId, Release};

/// Two cells, each with one of the instruments at first.
type Cells<M> = [Cell<M>; 2];

fn cells<M: Matching>() -> Cells<M> {
    [Cell::new(0, 2), Cell::new(1, 2)]
}

/// The cell that has an instrument.
fn at<M: Matching>(cells: &Cells<M>, instrument: InstrumentId) -> usize {
    usize::from(!cells[0].owns(instrument))
}

/// Moves an instrument to the other cell.
fn transfer<M: Matching>(cells: &mut Cells<M>, id: MoveId) {
    let instrument = id.instrument;
    let (from, mut body) = (at(cells, instrument), vec![]);
    let [one, two] = cells;
    let (source, target) = if from == 0 { (one, two) } else { (two, one) };
    Part::Start { start: source.begin_copy(instrument) }.put(&mut body);
    while let Poll::Ready(Some(piece)) = source.next_piece(instrument, 1 << 20) {
        match piece {
            CopyPiece::Sessions(bytes) => Part::Sessions { saved: Block(&bytes) }.put(&mut body),
            CopyPiece::Book(bytes) => Part::Book { saved: Block(&bytes) }.put(&mut body),
        }
    }
    Part::BookEnd.put(&mut body);
    let (from, to) = (from as u16, 1 - from as u16);
    source.release(Release { id, cell: from, to });
    source.put_end(instrument, &mut body);
    let released = source.instrument_hash(instrument);
    let is_used = source.history(instrument).0 > 0;
    target.stage(id, Attempt(1), 0, &body).unwrap();
    assert!(target.owns(instrument));
    assert!(!is_used || target.instrument_hash(instrument) == released);
    source.forget(id);
}

#[derive(Debug, Clone)]
enum Step {
    Request(UserId, InstrumentId, Wish),
    Firms(Vec<FirmRecord>),
    Retire(UserId),
    Move(InstrumentId),
    Save,
}

/// What a session wants; orders are named by the number of their request.
#[derive(Debug, Clone, Copy)]
enum Wish {
    New(NewOrder),
    Replace(u64, Price, Quantity),
    Cancel(u64),
    Market(Command),
}

fn new_order() -> impl Strategy<Value = Wish> {
    let types = [OrderType::Limit, OrderType::Market, OrderType::Stop, OrderType::StopLimit];
    let times = [TimeInForce::Day, TimeInForce::GoodTillCancelled, TimeInForce::ImmediateOrCancel];
    let trades = [SelfTrade::Allow, SelfTrade::CancelOldest, SelfTrade::Decrement];
    let weighted = prop_oneof![4 => Just(types[0]), 1 => prop::sample::select(types.to_vec())];
    let kinds =
        (weighted, prop::sample::select(times.to_vec()), prop::sample::select(trades.to_vec()));
    let numbers = (any::<bool>(), -3..6i64, 0..8u64, 0..3u64);
    (kinds, numbers).prop_map(|((order_type, time_in_force, self_trade), numbers)| {
        let (is_buy, price, quantity, display) = numbers;
        let Command::New(new) = order(1, 0, 1, 0).command else { unreachable!() };
        Wish::New(NewOrder {
            side: if is_buy { Side::Buy } else { Side::Sell },
            order_type,
            time_in_force,
            self_trade,
            price,
            stop_price: price,
            quantity,
            display: display.min(quantity),
            ..new
        })
    })
}

fn limit(most: u64) -> impl Strategy<Value = Option<u64>> {
    prop_oneof![2 => Just(None), 3 => (0..most).prop_map(Some)]
}

fn firms() -> impl Strategy<Value = Step> {
    let limits = || (limit(9), limit(40), limit(6), limit(90), limit(15));
    let limits = || {
        limits().prop_map(|(order_quantity, order_value, orders, value, position)| FirmLimits {
            order_quantity,
            order_value,
            orders,
            value,
            position,
        })
    };
    let firm = |number, first: u32, last| FirmRecord {
        number,
        name: number.to_string(),
        sessions: vec![SessionRange { first, last }],
        limits: FirmLimits::default(),
    };
    let all = (1..4u32, limits(), limits(), 0..3u8);
    all.prop_map(move |(last, one, other, count)| {
        let (one, other) = (
            FirmRecord { limits: one, ..firm(7, 1, last) },
            FirmRecord { limits: other, ..firm(8, 4, 4) },
        );
        Step::Firms([one, other].into_iter().take(count.into()).collect())
    })
}

fn step() -> impl Strategy<Value = Step> {
    let market = [
        Command::Halt,
        Command::Resume,
        Command::BeginAuction,
        Command::Uncross,
        Command::EndOfDay,
        Command::Bands { low: -2, high: 4 },
        Command::Bands { low: -9, high: 9 },
    ];
    let wish = prop_oneof![
        20 => new_order(),
        6 => (1..30u64, -3..6i64, 0..8u64)
            .prop_map(|(id, price, quantity)| Wish::Replace(id, price, quantity)),
        4 => (1..30u64).prop_map(Wish::Cancel),
        1 => Just(Wish::Market(Command::MassCancel { user: 0 })),
        2 => prop::sample::select(market.to_vec()).prop_map(Wish::Market),
    ];
    prop_oneof![
        40 => (1..6u32, 0..2u32, wish).prop_map(|(user, on, wish)| Step::Request(user, on, wish)),
        3 => firms(),
        1 => (1..6u32).prop_map(Step::Retire),
        2 => (0..2u32).prop_map(Step::Move),
        2 => Just(Step::Save),
    ]
}

/// The request of a wish.
fn request_of<M: Matching>(
    cell: &Cell<M>,
    (session, instrument, wish): (UserId, InstrumentId, Wish),
) -> Request {
    let is_market =
        matches!(wish, Wish::Market(command) if !matches!(command, Command::MassCancel { .. }));
    let session = if is_market { OPERATOR } else { session };
    let last = cell.last_request_seq(instrument, session);
    let (request, user) = (order(session, instrument, last + 1, last), session);
    let id = |number: u64| u64::from(session) << 32 | number;
    let command = match wish {
        Wish::New(new) => Command::New(NewOrder { id: id(last + 1), user, ..new }),
        Wish::Replace(number, price, quantity) => {
            Command::Replace { id: id(number), user, price, quantity }
        }
        Wish::Cancel(number) => Command::Cancel { id: id(number), user },
        Wish::Market(command) => command,
    };
    Request { command, ..request }
}

/// Carries out a request; its events.
fn carry_out<M: Matching>(cells: &mut Cells<M>, request: &Request) -> Vec<Event> {
    let mut events = vec![];
    let cell = at(cells, request.instrument);
    let handled = cells[cell].handle(request, |event| events.push(*event));
    // A session that was removed is refused for a minute.
    assert!(matches!(handled, Handled::Executed(_) | Handled::Refused(_)), "{handled:?}");
    events
}

/// What firms may have, by looking at all orders again each time.
#[derive(Debug, Default)]
struct Naive {
    firms: Vec<FirmRecord>,
    bought: BTreeMap<(u32, InstrumentId), i128>,
    sides: BTreeMap<(UserId, InstrumentId, OrderId), Side>,
}

impl Naive {
    fn firm_of(&self, session: UserId) -> Option<&FirmRecord> {
        let has = |firm: &&FirmRecord| {
            firm.sessions.iter().any(|it| (it.first..=it.last).contains(&session))
                && firm.limits != FirmLimits::default()
        };
        self.firms.iter().find(has)
    }

    /// The live orders of a firm in a cell.
    fn open(
        &self,
        cell: &Cell<ReferenceBook>,
        firm: &FirmRecord,
    ) -> Vec<(InstrumentId, OpenOrder)> {
        let mut all = vec![];
        for instrument in (0..2).filter(|it| cell.owns(*it)) {
            let Some(book) = cell.book(instrument) else { continue };
            book.visit_open(&mut |order| {
                if self.firm_of(order.user) == Some(firm) {
                    all.push((instrument, order));
                }
            });
        }
        all
    }

    fn bought(&self, firm: u32, instrument: InstrumentId) -> i128 {
        self.bought.get(&(firm, instrument)).copied().unwrap_or_default()
    }

    /// What the firm could have bought of an instrument, or sold, if all orders of a side traded.
    fn worst(
        &self,
        (firm, instrument, side): (u32, InstrumentId, Side),
        open: &[(InstrumentId, OpenOrder)],
    ) -> i128 {
        let own = open.iter().filter(|(on, order)| *on == instrument && order.side == side);
        let left: i128 = own.map(|(_, order)| i128::from(order.left)).sum();
        let bought = self.bought(firm, instrument);
        left + if side == Side::Buy { bought } else { -bought }
    }

    /// Why a request is to be rejected, if so.
    fn expected(
        &self,
        cell: &Cell<ReferenceBook>,
        request: &Request,
    ) -> Option<(RejectReason, i128, i128)> {
        let firm = self.firm_of(request.session)?;
        let (open, on) = (self.open(cell, firm), request.instrument);
        let phase = cell.book(on).map_or(TradingPhase::Continuous, |book| book.phase());
        let (before, after, rests) = match request.command {
            Command::New(new) => {
                let limit = new.order_type.has_limit().then_some(new.price);
                let (id, user, side, left) = (new.id, new.user, new.side, new.quantity);
                (None, OpenOrder { id, user, side, limit, left }, new.may_rest(phase))
            }
            Command::Replace { id, price, quantity, .. } => {
                let is_it = |(at, it): &&(InstrumentId, OpenOrder)| {
                    *at == on && (it.user, it.id) == (request.session, id)
                };
                let before = open.iter().find(is_it)?.1;
                let limit = before.limit.map(|_| price);
                (Some(before), OpenOrder { limit, left: quantity, ..before }, false)
            }
            _ => return None,
        };
        let worth =
            |order: &OpenOrder| i128::from(order.limit.unwrap_or(0)).abs() * i128::from(order.left);
        let old = before.map_or((0, 0), |it| (i128::from(it.left), worth(&it)));
        let (left, value) = (i128::from(after.left), worth(&after));
        let sum: i128 = open.iter().map(|(_, order)| worth(order)).sum();
        let worst = self.worst((firm.number, on, after.side), &open);
        let FirmLimits { order_quantity, order_value, orders, value: all, position } = firm.limits;
        let has_value_limit = order_value.is_some() || all.is_some();
        if before.is_none() && after.limit.is_none() && has_value_limit {
            return Some((RejectReason::FirmNeedsPrice, 0, 0));
        }
        let mut found = None;
        let mut check = |reason, limit: Option<u64>, asked: i128, is_more: bool| {
            if let Some(limit) = limit
                && found.is_none()
                && is_more
                && asked > i128::from(limit)
            {
                found = Some((reason, i128::from(limit), asked));
            }
        };
        check(RejectReason::FirmQuantity, order_quantity, left, left > old.0);
        check(RejectReason::FirmOrderValue, order_value, value, value > old.1);
        let count = open.len() as i128 + 1;
        check(RejectReason::FirmOrders, orders, count, before.is_none() && rests);
        check(RejectReason::FirmValue, all, sum - old.1 + value, value > old.1);
        check(RejectReason::FirmPosition, position, worst - old.0 + left, left > old.0);
        found
    }

    /// A request was carried out with these events.
    fn follow(&mut self, request: &Request, events: &[Event]) {
        let on = request.instrument;
        for event in events {
            if let (Event::Accepted { id, user }, Command::New(new)) = (*event, request.command) {
                self.sides.insert((user, on, id), new.side);
            }
            let Event::Traded { maker, taker, maker_user, taker_user, quantity, .. } = *event
            else {
                continue;
            };
            for (user, id) in [(maker_user, maker), (taker_user, taker)] {
                let Some(firm) = self.firm_of(user).map(|firm| firm.number) else { continue };
                let is_buy = self.sides[&(user, on, id)] == Side::Buy;
                let bought = i128::from(quantity) * if is_buy { 1 } else { -1 };
                *self.bought.entry((firm, on)).or_default() += bought;
            }
        }
    }

    fn set(&mut self, firms: Vec<FirmRecord>) {
        self.firms = firms;
        let counted = |number| {
            self.firms.iter().any(|it| it.number == number && it.limits != FirmLimits::default())
        };
        self.bought.retain(|(firm, _), _| counted(*firm));
    }

    /// What each firm with limits has in a cell.
    fn uses(&self, cell: &Cell<ReferenceBook>) -> Vec<(u32, i128, i128, i128)> {
        let counted = self.firms.iter().filter(|firm| firm.limits != FirmLimits::default());
        let one = |firm: &FirmRecord| {
            let open = self.open(cell, firm);
            let value = |order: &OpenOrder| {
                i128::from(order.limit.unwrap_or(0)).abs() * i128::from(order.left)
            };
            let all = (0..2).filter(|it| cell.owns(*it));
            let all = all.flat_map(|it| [(it, Side::Buy), (it, Side::Sell)]);
            let worst = all.map(|(on, side)| self.worst((firm.number, on, side), &open)).max();
            let sum = open.iter().map(|(_, order)| value(order)).sum();
            (firm.number, open.len() as i128, sum, worst.unwrap_or(0).max(0))
        };
        counted.map(one).collect()
    }
}

/// The rejection by a limit of a firm, if there is one.
fn rejection_by_firm(events: &[Event]) -> Option<(RejectReason, i128, i128)> {
    use RejectReason::{
        FirmNeedsPrice, FirmOrderValue, FirmOrders, FirmPosition, FirmQuantity, FirmValue,
    };
    events.iter().find_map(|event| match *event {
        Event::Rejected { reason, most, asked, .. }
            if matches!(
                reason,
                FirmQuantity
                    | FirmOrderValue
                    | FirmOrders
                    | FirmValue
                    | FirmPosition
                    | FirmNeedsPrice
            ) =>
        {
            Some((reason, most.into(), asked.into()))
        }
        _ => None,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// Whatever sessions send, firms become and instruments do: an order is rejected if and only if
    /// the naive model says so, with its numbers; both books agree; and what firms have is what
    /// their orders and trades say, also after snapshots and moves.
    #[test]
    fn limits_of_firms_are_those_of_a_naive_model(
        steps in prop::collection::vec(step(), 1..150),
    ) {
        let (mut fast, mut plain) = (cells::<Book>(), cells::<ReferenceBook>());
        let mut naive = Naive::default();
        let mut epoch = 0;
        for (number, step) in (1..).zip(steps) {
            match step {
                Step::Request(session, instrument, wish) => {
                    let on = at(&plain, instrument);
                    let request = request_of(&plain[on], (session, instrument, wish));
                    let expected = naive.expected(&plain[on], &request);
                    let events = carry_out(&mut plain, &request);
                    prop_assert_eq!(&events, &carry_out(&mut fast, &request));
                    if !events.is_empty() {
                        prop_assert_eq!(rejection_by_firm(&events), expected, "{:?}", request);
                    }
                    naive.follow(&request, &events);
                }
                Step::Firms(firms) => {
                    let table = FirmTable { version: number, firms: firms.clone() };
                    for cell in &mut fast {
                        cell.set_firms(table.clone());
                    }
                    for cell in &mut plain {
                        cell.set_firms(table.clone());
                    }
                    naive.set(firms);
                }
                Step::Retire(session) => {
                    let retired = Retired::Session { session };
                    for cell in 0..2 {
                        let removed = (fast[cell].retire(retired), plain[cell].retire(retired));
                        prop_assert_eq!(removed.0, removed.1);
                    }
                    // An instrument without sessions is removed, with its positions.
                    let is_there = |on| plain[at(&plain, on)].executed().any(|(it, _)| it == on);
                    naive.bought.retain(|(_, on), _| is_there(*on));
                }
                Step::Move(instrument) => {
                    epoch += 1;
                    transfer(&mut fast, MoveId { instrument, epoch });
                    transfer(&mut plain, MoveId { instrument, epoch });
                }
                Step::Save => {
                    fast = fast.map(|cell| Cell::load(&cell.save()).unwrap());
                }
            }
            for cell in 0..2 {
                prop_assert_eq!(fast[cell].hash(), plain[cell].hash());
                let uses = fast[cell].firm_uses();
                prop_assert_eq!(&uses, &plain[cell].firm_uses());
                let uses: Vec<_> = uses
                    .iter()
                    .map(|it| (it.number, it.orders.into(), it.value.into(), it.position.into()))
                    .collect();
                prop_assert_eq!(uses, naive.uses(&plain[cell]));
            }
        }
    }
}
