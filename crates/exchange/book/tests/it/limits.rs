//! The limits of a book: at each of them, both books do the same, and soon.

use nm_book::book::Book;
use nm_book::limits::{
    COMMAND_TRADES_MAX, ICEBERG_PARTS_MAX, ORDER_TRADES_MAX, ORDERS_MAX, PEGS_MAX,
};
use nm_book::order::{
    CancelReason, Closing, Command, Event, Matching, NewOrder, OrderType, Peg, RejectReason,
    SelfTrade, Side, TimeInForce, TradingPhase,
};
use nm_book::reference::ReferenceBook;
use nm_book::snapshot::{BookSnapshot, SnapshotOrder};
use nm_book::testing::limit;

/// Both books, side by side.
struct Both {
    fast: Book,
    reference: ReferenceBook,
}

impl Both {
    fn new() -> Both {
        Both { fast: Book::new(), reference: ReferenceBook::new() }
    }

    /// Both books with these orders, as from a snapshot.
    fn with(orders: Vec<SnapshotOrder>) -> Both {
        let phase = TradingPhase::Continuous;
        let saved = BookSnapshot {
            phase,
            phase_before_halt: phase,
            closing: Closing::No,
            bands: None,
            last: None,
            now_ns: 0,
            followed: [None; 2],
            orders,
        };
        let mut bytes = vec![];
        saved.write(&mut bytes);
        let reference = ReferenceBook::load(&bytes).unwrap();
        Both { fast: Book::load(&bytes).unwrap(), reference }
    }

    /// The events of a command, which are the same in both.
    fn apply(&mut self, command: Command) -> Vec<Event> {
        let (mut expected, mut events) = (vec![], vec![]);
        self.reference.apply(&command, 0, &mut |event| expected.push(event));
        self.fast.apply(&command, 0, &mut |event| events.push(event));
        assert_eq!(events, expected, "{command:?}");
        assert_eq!(self.fast.hash(), self.reference.hash(), "{command:?}");
        self.fast.audit().unwrap();
        events
    }

    fn new_order(&mut self, order: NewOrder) -> Vec<Event> {
        self.apply(Command::New(order))
    }

    /// Adds so many sell icebergs at 100, each of as many parts of 1 as are allowed.
    fn add_icebergs(&mut self, first_id: u64, count: u64) {
        for id in first_id..first_id + count {
            let order = limit(id, 1, Side::Sell, 100, ICEBERG_PARTS_MAX);
            self.new_order(NewOrder { display: 1, ..order });
        }
    }
}

fn trades(events: &[Event]) -> usize {
    events.iter().filter(|event| matches!(event, Event::Traded { .. })).count()
}

fn rejected(events: &[Event]) -> Option<RejectReason> {
    match events {
        [Event::Rejected { reason, .. }] => Some(*reason),
        _ => None,
    }
}

/// Two orders of 10^12 that show 1 would trade 10^12 times.
#[test]
fn icebergs_of_too_many_parts_are_rejected() {
    let mut both = Both::new();
    let huge = 1_000_000_000_000;
    for (id, side) in [(1, Side::Buy), (2, Side::Sell)] {
        let order = NewOrder { display: 1, ..limit(id, 1, side, 100, huge) };
        assert_eq!(rejected(&both.new_order(order)), Some(RejectReason::TooManyParts));
    }
    let order = NewOrder { display: 7, ..limit(1, 1, Side::Buy, 100, 7 * ICEBERG_PARTS_MAX) };
    assert_eq!(both.new_order(order), [Event::Accepted { id: 1, user: 1 }]);
    let replace = |quantity| Command::Replace { id: 1, user: 1, price: 100, quantity };
    let events = both.apply(replace(7 * ICEBERG_PARTS_MAX + 1));
    assert_eq!(rejected(&events), Some(RejectReason::TooManyParts));
    assert_eq!(rejected(&both.apply(replace(7 * ICEBERG_PARTS_MAX - 1))), None);
}

/// What a book of an earlier version accepted is loaded, and trades as often as anything may.
#[test]
fn an_iceberg_of_an_old_snapshot_ends_at_the_limit_of_trades() {
    let huge = 1_000_000_000_000;
    let order = NewOrder { display: 1, ..limit(1, 1, Side::Sell, 100, huge) };
    let saved = SnapshotOrder { order, left: huge, shown: 1, is_pending_stop: false };
    let mut both = Both::with(vec![saved]);
    let events = both.new_order(limit(2, 2, Side::Buy, 100, huge));
    assert_eq!(trades(&events), ORDER_TRADES_MAX as usize);
    let left = huge - u64::from(ORDER_TRADES_MAX);
    let reason = CancelReason::TooManyTrades;
    assert_eq!(events.last(), Some(&Event::Cancelled { id: 2, user: 2, left, reason }));
}

#[test]
fn an_order_ends_after_its_last_trade() {
    let most = u64::from(ORDER_TRADES_MAX);
    let mut both = Both::new();
    both.add_icebergs(1, 2 + most / ICEBERG_PARTS_MAX);
    let events = both.new_order(limit(100, 2, Side::Buy, 100, most + 5));
    let reason = CancelReason::TooManyTrades;
    assert_eq!(trades(&events), most as usize);
    assert_eq!(events.last(), Some(&Event::Cancelled { id: 100, user: 2, left: 5, reason }));
    // The next command begins anew.
    assert_eq!(trades(&both.new_order(limit(101, 2, Side::Buy, 100, 5))), 5);
}

/// An own order that is cancelled counts as a trade.
#[test]
fn self_trade_prevention_counts() {
    let most = u64::from(ORDER_TRADES_MAX);
    for self_trade in [SelfTrade::CancelOldest, SelfTrade::Decrement] {
        let mut both = Both::with(
            (0..most + 3)
                .map(|id| {
                    let order = limit(id, 1, Side::Sell, 100, 1);
                    SnapshotOrder { order, left: 1, shown: 1, is_pending_stop: false }
                })
                .collect(),
        );
        let order = limit(1 << 40, 1, Side::Buy, 100, most + 1);
        let events = both.new_order(NewOrder { self_trade, ..order });
        let reason = CancelReason::TooManyTrades;
        assert!(matches!(events.last(), Some(Event::Cancelled { reason: r, .. }) if *r == reason));
        assert_eq!(both.fast.len(), 3);
    }
}

#[test]
fn an_order_that_must_trade_more_often_than_it_may_trades_nothing() {
    let most = u64::from(ORDER_TRADES_MAX);
    let mut both = Both::new();
    both.add_icebergs(1, 2 + most / ICEBERG_PARTS_MAX);
    let fill_or_kill = |id, quantity| NewOrder {
        time_in_force: TimeInForce::FillOrKill,
        ..limit(id, 2, Side::Buy, 100, quantity)
    };
    let minimum = |id, minimum| NewOrder { minimum, ..limit(id, 2, Side::Buy, 100, most + 9) };
    let orders = [
        (fill_or_kill(100, most + 1), CancelReason::Killed),
        (minimum(101, most + 1), CancelReason::BelowMinimum),
    ];
    for (order, expected) in orders {
        let events = both.new_order(order);
        assert!(
            matches!(events[..], [_, Event::Cancelled { reason, .. }] if reason == expected),
            "{events:?}"
        );
    }
    assert_eq!(trades(&both.new_order(fill_or_kill(102, most))), most as usize);
    both.add_icebergs(200, 1 + most / ICEBERG_PARTS_MAX);
    assert_eq!(trades(&both.new_order(minimum(103, most))), most as usize);
}

/// Stops that are elected by one trade share the trades of the command; none is lost.
#[test]
fn elected_stops_beyond_the_trades_of_a_command_are_cancelled_or_rest() {
    let most = u64::from(ORDER_TRADES_MAX);
    let mut both = Both::new();
    both.add_icebergs(1, 1 + u64::from(COMMAND_TRADES_MAX) / ICEBERG_PARTS_MAX);
    let stop = |id, price| NewOrder {
        order_type: OrderType::StopLimit,
        stop_price: 100,
        ..limit(id, 2, Side::Buy, price, most)
    };
    for id in 100..105 {
        both.new_order(stop(id, 100));
    }
    // One that finds no seller, and one that must be filled: it finds so in vain.
    both.new_order(stop(105, 99));
    both.new_order(NewOrder { time_in_force: TimeInForce::FillOrKill, ..stop(106, 100) });
    let events = both.new_order(limit(107, 3, Side::Buy, 100, 1));
    assert_eq!(trades(&events), COMMAND_TRADES_MAX as usize);
    let triggered = events.iter().filter(|event| matches!(event, Event::Triggered { .. }));
    assert_eq!(triggered.count(), 7);
    let ended: Vec<(u64, u64, CancelReason)> = events
        .iter()
        .filter_map(|event| match *event {
            Event::Cancelled { id, left, reason, .. } => Some((id, left, reason)),
            _ => None,
        })
        .collect();
    let expected = [
        (103, 1, CancelReason::TooManyTrades),
        (104, most, CancelReason::TooManyTrades),
        (106, most, CancelReason::Killed),
    ];
    assert_eq!(ended, expected);
    assert_eq!(both.fast.best(Side::Buy), Some((99, most)));
}

/// What a fill-or-kill order finds in vain counts: many such stops cost no more than trades.
#[test]
fn checks_in_vain_count_as_trades_of_the_command() {
    let most = u64::from(ORDER_TRADES_MAX);
    let mut both = Both::new();
    both.add_icebergs(1, 6);
    let checks = COMMAND_TRADES_MAX / ORDER_TRADES_MAX;
    for id in 100..100 + u64::from(checks) {
        both.new_order(NewOrder {
            order_type: OrderType::StopLimit,
            stop_price: 100,
            time_in_force: TimeInForce::FillOrKill,
            ..limit(id, 2, Side::Buy, 100, most + 1)
        });
    }
    let stop = NewOrder {
        order_type: OrderType::StopLimit,
        stop_price: 100,
        ..limit(200, 2, Side::Buy, 100, 1)
    };
    both.new_order(stop);
    let events = both.new_order(limit(300, 3, Side::Buy, 100, 1));
    assert_eq!(trades(&events), 1);
    let reason = CancelReason::TooManyTrades;
    assert_eq!(events.last(), Some(&Event::Cancelled { id: 200, user: 2, left: 1, reason }));
}

#[test]
fn an_instrument_has_a_number_of_live_orders() {
    let resting = |id| {
        let order = limit(id, 1, Side::Sell, 100 + id as i64 % 50, 1);
        SnapshotOrder { order, left: 1, shown: 1, is_pending_stop: false }
    };
    let mut both = Both::with((0..ORDERS_MAX as u64).map(resting).collect());
    let order = limit(1 << 40, 2, Side::Buy, 90, 1);
    let stop = NewOrder { order_type: OrderType::Stop, stop_price: 200, ..order };
    for order in [order, stop] {
        assert_eq!(rejected(&both.new_order(order)), Some(RejectReason::TooManyOrders));
    }
    // Whoever takes is welcome, and makes room.
    let taker = NewOrder { price: 100, time_in_force: TimeInForce::ImmediateOrCancel, ..order };
    assert_eq!(trades(&both.new_order(taker)), 1);
    assert_eq!(both.new_order(order), [Event::Accepted { id: 1 << 40, user: 2 }]);
    assert_eq!(both.fast.len(), ORDERS_MAX);
    assert_eq!(
        rejected(&both.new_order(limit(7 << 40, 2, Side::Buy, 90, 1))),
        Some(RejectReason::TooManyOrders)
    );
    both.apply(Command::BeginAuction);
    let market = NewOrder { order_type: OrderType::Market, ..limit(8 << 40, 2, Side::Buy, 0, 1) };
    assert_eq!(rejected(&both.new_order(market)), Some(RejectReason::TooManyOrders));
}

fn mid(id: u64, user: u32, side: Side) -> NewOrder {
    NewOrder { peg: Peg::Mid, order_type: OrderType::Market, ..limit(id, user, side, 0, 1) }
}

#[test]
fn an_instrument_has_a_number_of_pegged_orders_which_all_move() {
    let mut both = Both::new();
    both.new_order(limit(1, 1, Side::Buy, 100, 5));
    both.new_order(limit(2, 1, Side::Sell, 110, 5));
    let most = PEGS_MAX as u64;
    for id in 100..100 + most {
        assert_eq!(both.new_order(mid(id, 2, Side::Buy)), [Event::Accepted { id, user: 2 }]);
    }
    let one_more = mid(1000, 3, Side::Buy);
    let full = Some(RejectReason::TooManyPegs);
    assert_eq!(rejected(&both.new_order(one_more)), full);
    let mut bytes = vec![];
    both.fast.save(&mut bytes);
    both.fast = Book::load(&bytes).unwrap();
    assert_eq!(rejected(&both.new_order(one_more)), full);
    // Others are accepted, and all of the pegged ones follow them.
    both.new_order(limit(3, 1, Side::Buy, 104, 5));
    let sell = NewOrder {
        time_in_force: TimeInForce::ImmediateOrCancel,
        ..limit(4, 3, Side::Sell, 107, most + 1)
    };
    assert_eq!(trades(&both.new_order(sell)), PEGS_MAX);
    assert_eq!(rejected(&both.new_order(one_more)), None);
}

/// A book that has too many is none, and neither is one whose pegs follow what they cannot.
#[test]
fn a_snapshot_with_impossible_pegged_orders_is_refused() {
    let order = |id| SnapshotOrder {
        order: mid(id, 1, Side::Buy),
        left: 1,
        shown: 1,
        is_pending_stop: false,
    };
    let load = |count, followed, phase| {
        let saved = BookSnapshot {
            phase,
            phase_before_halt: TradingPhase::Continuous,
            closing: Closing::No,
            bands: None,
            last: None,
            now_ns: 0,
            followed,
            orders: (0..count).map(order).collect(),
        };
        let mut bytes = vec![];
        saved.write(&mut bytes);
        Book::load(&bytes).is_ok()
    };
    let (most, continuous) = (PEGS_MAX as u64, TradingPhase::Continuous);
    assert!(load(most, [Some(1), Some(5)], continuous));
    assert!(!load(most + 1, [Some(1), Some(5)], continuous));
    assert!(!load(0, [Some(1), Some(5)], continuous));
    assert!(!load(1, [Some(1), Some(5)], TradingPhase::Auction));
}

/// Each move counts as a trade of the command. One that may not move is cancelled.
#[test]
fn pegged_orders_that_may_not_move_any_more_are_cancelled() {
    let most = u64::from(ORDER_TRADES_MAX);
    let mut both = Both::new();
    both.add_icebergs(1, 1 + u64::from(COMMAND_TRADES_MAX) / ICEBERG_PARTS_MAX);
    both.new_order(limit(50, 3, Side::Buy, 90, 1));
    both.new_order(NewOrder { peg: Peg::Primary { offset: 0 }, ..limit(51, 4, Side::Buy, 99, 7) });
    // The last one finds no seller, and is the best bid from then on.
    for (id, price) in (100..104).map(|id| (id, 100)).chain([(104, 99)]) {
        both.new_order(NewOrder {
            order_type: OrderType::StopLimit,
            stop_price: 100,
            ..limit(id, 2, Side::Buy, price, most)
        });
    }
    let events = both.new_order(limit(107, 3, Side::Buy, 100, 1));
    assert_eq!(trades(&events), COMMAND_TRADES_MAX as usize);
    let reason = CancelReason::TooManyTrades;
    assert_eq!(events.last(), Some(&Event::Cancelled { id: 51, user: 4, left: 7, reason }));
}

/// Who retires a user tells nobody of trades, so there must be none.
#[test]
fn orders_of_a_retired_user_move_no_pegged_order_before_the_next_command() {
    let mut both = Both::new();
    both.new_order(limit(1, 1, Side::Buy, 100, 5));
    both.new_order(limit(2, 9, Side::Sell, 104, 5));
    both.new_order(limit(3, 1, Side::Sell, 110, 5));
    both.new_order(mid(4, 2, Side::Buy));
    both.new_order(NewOrder { is_hidden: true, ..limit(5, 3, Side::Sell, 103, 1) });
    both.fast.cancel_all_of(9, &mut |_| {});
    both.reference.cancel_all_of(9, &mut |_| {});
    assert_eq!(both.fast.hash(), both.reference.hash());
    both.fast.audit().unwrap();
    assert_eq!(both.fast.len(), 4);
    let mut bytes = vec![];
    both.fast.save(&mut bytes);
    both.fast = Book::load(&bytes).unwrap();
    both.reference = ReferenceBook::load(&bytes).unwrap();
    let events = both.apply(Command::Tick);
    assert!(matches!(events[..], [Event::Traded { maker: 5, taker: 4, price: 103, .. }]));
}
