//! What happened on a venue, one thing after the other, becomes requests.
//!
//! A venue's feed tells what became of its orders, and not who sent them. So sessions are made up:
//! an order has one by its number. A trade is a new order that takes the price at once. What trades
//! here is decided by the books here: the load is the venue's, and the fills are not.
//!
//! A window of a day begins with the orders that live then, which are sent before it.

use std::collections::HashMap;

use nm_book::order::{
    Command, InstrumentId, NewOrder, OrderId, OrderType, Peg, PostOnly, Price, Quantity, SelfTrade,
    Side, TimeInForce, UserId,
};
use nm_load::OrderRequest;
use nm_load::flow::Flow;

use crate::limits::{ORDERS_MAX, REQUESTS_MAX};

/// Sessions of a replayed day.
pub const SESSIONS: u32 = 256;

/// Size of a request, bytes.
const REQUEST_BYTES: u32 = 128;

/// Time between requests before the window, ns: as fast as any network takes them.
const PREPARE_GAP_NS: u64 = 100_000;

/// ns of a second.
const SECOND_NS: u64 = 1_000_000_000;

/// Something that happened to an order of the venue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fact {
    /// It rests.
    Add {
        /// Instrument.
        instrument: InstrumentId,
        /// Its number at the venue.
        order: u64,
        /// Side.
        side: Side,
        /// Ticks.
        price: Price,
        /// Quantity.
        quantity: Quantity,
    },
    /// It traded as the resting one.
    Trade {
        /// Its number.
        order: u64,
        /// Quantity.
        quantity: Quantity,
    },
    /// It has less quantity than before.
    Reduce {
        /// Its number.
        order: u64,
        /// By so much.
        quantity: Quantity,
    },
    /// It has gone.
    Cancel {
        /// Its number.
        order: u64,
    },
    /// It has another number, price and quantity.
    Replace {
        /// Its number.
        order: u64,
        /// The new one.
        with: u64,
        /// Ticks.
        price: Price,
        /// Quantity.
        quantity: Quantity,
    },
}

/// A part of a day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Since midnight, ns; of the first thing that happened, if none is given.
    pub from_ns: Option<u64>,
    /// Length, ns.
    pub length_ns: u64,
}

/// What a window of a day is as load.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Day {
    /// The requests: those before the window, then those of it.
    pub flow: Flow,
    /// When the window begins in the flow, ns.
    pub begin_ns: u64,
    /// Requests of the window.
    pub requests: u64,
    /// Requests of the second that has most.
    pub peak_per_s: u64,
    /// What was left out, because no request does the same.
    pub left_out: u64,
}

impl Day {
    /// The window this many times as fast; what is before it stays as it is.
    pub fn at_speed(&self, speed: f64) -> Flow {
        let scaled = |at_ns: u64| match at_ns.checked_sub(self.begin_ns) {
            Some(since_ns) => self.begin_ns + (since_ns as f64 / speed) as u64,
            None => at_ns,
        };
        let requests = self.flow.requests.iter().map(|(at_ns, it)| (scaled(*at_ns), *it));
        Flow { requests: requests.collect() }
    }

    /// Requests a second of the window on average.
    pub fn flow_rate(&self) -> f64 {
        (self.requests as f64 / self.seconds().max(1e-3)).clamp(1.0, 1e7)
    }

    /// Length of the window as far as it has requests, s.
    pub fn seconds(&self) -> f64 {
        let last_ns = self.flow.requests.last().map_or(0, |(at_ns, _)| *at_ns);
        last_ns.saturating_sub(self.begin_ns) as f64 / SECOND_NS as f64
    }
}

/// A live order of the venue.
#[derive(Debug, Clone, Copy)]
struct Live {
    id: OrderId,
    user: UserId,
    instrument: InstrumentId,
    side: Side,
    price: Price,
    left: Quantity,
}

/// A taker that may go on.
#[derive(Debug, Clone, Copy)]
struct Taker {
    at_ns: u64,
    instrument: InstrumentId,
    side: Side,
    price: Price,
    quantity: Quantity,
}

/// Why a day cannot be replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TapeError {
    /// More than can be kept.
    #[error("more than {REQUESTS_MAX} requests: take a shorter part of the day")]
    Requests,
    /// More live orders than can be kept.
    #[error("more than {ORDERS_MAX} orders are live at once")]
    Orders,
}

/// Makes requests of what happens.
#[derive(Debug)]
pub struct Tape {
    window: Window,
    live: HashMap<u64, Live>,
    taker: Option<Taker>,
    last_id: OrderId,
    /// Requests of the window, with the times of the venue.
    requests: Vec<(u64, OrderRequest)>,
    /// Orders that live when the window begins.
    prepared: Vec<OrderRequest>,
    has_begun: bool,
    left_out: u64,
    /// Most requests, and most live orders.
    most: (usize, usize),
}

impl Tape {
    /// A tape of a part of a day.
    pub fn new(window: Window) -> Tape {
        Tape::with_limits(window, (REQUESTS_MAX, ORDERS_MAX))
    }

    fn with_limits(window: Window, most: (usize, usize)) -> Tape {
        Tape {
            window,
            live: HashMap::new(),
            taker: None,
            last_id: 0,
            requests: vec![],
            prepared: vec![],
            has_begun: false,
            left_out: 0,
            most,
        }
    }

    /// Whether the window is over at a time.
    pub fn is_over(&self, at_ns: u64) -> bool {
        let from_ns = self.window.from_ns.filter(|_| self.has_begun);
        from_ns.is_some_and(|from_ns| at_ns >= from_ns.saturating_add(self.window.length_ns))
    }

    /// Something was left out.
    pub fn leave_out(&mut self) {
        self.left_out += u64::from(self.has_begun);
    }

    /// Something happened at a time, ns since midnight. Times do not fall.
    ///
    /// # Errors
    /// If it is more than can be kept.
    pub fn add(&mut self, at_ns: u64, fact: Fact) -> Result<(), TapeError> {
        if !self.has_begun && at_ns >= *self.window.from_ns.get_or_insert(at_ns) {
            self.has_begun = true;
            self.prepare();
        }
        match fact {
            Fact::Trade { order, quantity } => self.trade(at_ns, order, quantity),
            other => {
                self.end_taker();
                self.change(at_ns, other);
            }
        }
        if self.requests.len() + self.prepared.len() > self.most.0 {
            return Err(TapeError::Requests);
        }
        if self.live.len() > self.most.1 { Err(TapeError::Orders) } else { Ok(()) }
    }

    /// The orders that live now, in the order in which they came.
    fn prepare(&mut self) {
        let mut live: Vec<Live> = self.live.values().copied().collect();
        live.sort_unstable_by_key(|order| order.id);
        let orders = live.into_iter().map(|order| {
            let command = Command::New(new_order(&order, TimeInForce::Day));
            request(&order, command)
        });
        self.prepared = orders.collect();
    }

    fn send(&mut self, at_ns: u64, request: OrderRequest) {
        if self.has_begun {
            self.requests.push((at_ns, request));
        }
    }

    fn next_id(&mut self) -> OrderId {
        self.last_id += 1;
        self.last_id
    }

    fn change(&mut self, at_ns: u64, fact: Fact) {
        match fact {
            Fact::Add { instrument, order, side, price, quantity } => {
                let (id, user) = (self.next_id(), session_of(order));
                let live = Live { id, user, instrument, side, price, left: quantity };
                self.live.insert(order, live);
                let command = Command::New(new_order(&live, TimeInForce::Day));
                self.send(at_ns, request(&live, command));
            }
            Fact::Cancel { order } => {
                let Some(live) = self.live.remove(&order) else { return self.leave_out() };
                let Live { id, user, .. } = live;
                self.send(at_ns, request(&live, Command::Cancel { id, user }));
            }
            Fact::Reduce { order, quantity } => {
                let Some(live) = self.live.get(&order).copied() else { return self.leave_out() };
                match live.left.saturating_sub(quantity) {
                    0 => self.change(at_ns, Fact::Cancel { order }),
                    left => self.replace(at_ns, (order, order), live.price, left),
                }
            }
            Fact::Replace { order, with, price, quantity } => {
                if !self.live.contains_key(&order) {
                    return self.leave_out();
                }
                self.replace(at_ns, (order, with), price, quantity);
            }
            Fact::Trade { .. } => unreachable!("trades are gathered"),
        }
    }

    fn replace(&mut self, at_ns: u64, (from, to): (u64, u64), price: Price, left: Quantity) {
        let Some(live) = self.live.remove(&from) else { return };
        let live = Live { price, left, ..live };
        self.live.insert(to, live);
        let Live { id, user, .. } = live;
        self.send(at_ns, request(&live, Command::Replace { id, user, price, quantity: left }));
    }

    /// Trades of one moment and side are of one taker.
    fn trade(&mut self, at_ns: u64, order: u64, quantity: Quantity) {
        let Some(live) = self.live.get_mut(&order) else { return self.leave_out() };
        live.left = live.left.saturating_sub(quantity);
        let Live { instrument, side, price, left, .. } = *live;
        if left == 0 {
            self.live.remove(&order);
        }
        let side = side.opposite();
        match &mut self.taker {
            Some(taker)
                if (taker.at_ns, taker.instrument, taker.side) == (at_ns, instrument, side) =>
            {
                taker.quantity = taker.quantity.saturating_add(quantity);
                // It took better prices first.
                taker.price = match side {
                    Side::Buy => taker.price.max(price),
                    Side::Sell => taker.price.min(price),
                };
            }
            _ => {
                self.end_taker();
                self.taker = Some(Taker { at_ns, instrument, side, price, quantity });
            }
        }
    }

    fn end_taker(&mut self) {
        let Some(Taker { at_ns, instrument, side, price, quantity }) = self.taker.take() else {
            return;
        };
        let id = self.next_id();
        let taker = Live { id, user: session_of(id), instrument, side, price, left: quantity };
        let command = Command::New(new_order(&taker, TimeInForce::ImmediateOrCancel));
        self.send(at_ns, request(&taker, command));
    }

    /// The day as load.
    pub fn finish(mut self) -> Day {
        self.end_taker();
        let begin_ns = self.prepared.len() as u64 * PREPARE_GAP_NS;
        let from_ns = self.window.from_ns.unwrap_or(0);
        let (mut peak_per_s, mut second, mut in_second) = (0, 0, 0);
        for (at_ns, _) in &self.requests {
            let now = (at_ns - from_ns) / SECOND_NS;
            in_second = if now == second { in_second + 1 } else { 1 };
            second = now;
            peak_per_s = peak_per_s.max(in_second);
        }
        let requests = self.requests.len() as u64;
        let before = (0..).map(|at| at * PREPARE_GAP_NS).zip(self.prepared);
        let during = self.requests.into_iter().map(|(at, it)| (begin_ns + at - from_ns, it));
        let flow = Flow { requests: before.chain(during).collect() };
        Day { flow, begin_ns, requests, peak_per_s, left_out: self.left_out }
    }
}

/// A session for a number; near numbers have different ones.
fn session_of(number: u64) -> UserId {
    (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32 % SESSIONS + 1
}

fn new_order(order: &Live, time_in_force: TimeInForce) -> NewOrder {
    NewOrder {
        id: order.id,
        user: order.user,
        side: order.side,
        order_type: OrderType::Limit,
        time_in_force,
        price: order.price,
        stop_price: 0,
        quantity: order.left,
        display: 0,
        minimum: 0,
        is_hidden: false,
        peg: Peg::No,
        post_only: PostOnly::No,
        self_trade: SelfTrade::Allow,
    }
}

fn request(order: &Live, command: Command) -> OrderRequest {
    let Live { user, instrument, .. } = *order;
    OrderRequest { session: user, instrument, command, size_bytes: REQUEST_BYTES }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Window = Window { from_ns: None, length_ns: u64::MAX };

    fn add(order: u64, side: Side, price: Price, quantity: Quantity) -> Fact {
        Fact::Add { instrument: 0, order, side, price, quantity }
    }

    fn tape(window: Window, all: &[(u64, Fact)]) -> Tape {
        let mut tape = Tape::new(window);
        for (at_ns, fact) in all.iter().filter(|(at_ns, _)| *at_ns < u64::MAX) {
            if !tape.is_over(*at_ns) {
                tape.add(*at_ns, *fact).unwrap();
            }
        }
        tape
    }

    /// Requests as texts: time, what, price, quantity.
    fn requests(day: &Day) -> Vec<String> {
        let text = |(at_ns, request): &(u64, OrderRequest)| match request.command {
            Command::New(order) => {
                let what = match order.time_in_force {
                    TimeInForce::ImmediateOrCancel => "take",
                    _ => "add",
                };
                let side = if order.side == Side::Buy { "buy" } else { "sell" };
                format!("{at_ns} {what} {} {side} {} at {}", order.id, order.quantity, order.price)
            }
            Command::Cancel { id, .. } => format!("{at_ns} cancel {id}"),
            Command::Replace { id, price, quantity, .. } => {
                format!("{at_ns} replace {id} {quantity} at {price}")
            }
            ref other => panic!("{other:?}"),
        };
        day.flow.requests.iter().map(text).collect()
    }

    #[test]
    fn what_happens_to_an_order_is_a_request_and_a_trade_is_a_taker() {
        use Fact::*;
        let day = tape(
            DAY,
            &[
                (100, add(7, Side::Buy, 10, 50)),
                (100, add(8, Side::Buy, 9, 50)),
                (200, Trade { order: 7, quantity: 20 }),
                (300, Reduce { order: 7, quantity: 10 }),
                (400, Replace { order: 7, with: 9, price: 11, quantity: 40 }),
                (500, Trade { order: 9, quantity: 40 }),
                (500, Trade { order: 8, quantity: 5 }),
                (600, Cancel { order: 9 }),
                (700, Reduce { order: 8, quantity: 45 }),
            ],
        );
        let day = day.finish();
        assert_eq!(
            requests(&day),
            [
                "0 add 1 buy 50 at 10",
                "0 add 2 buy 50 at 9",
                "100 take 3 sell 20 at 10",
                "200 replace 1 20 at 10",
                "300 replace 1 40 at 11",
                "400 take 4 sell 45 at 9",
                "600 cancel 2",
            ]
        );
        assert_eq!((day.requests, day.left_out), (7, 1), "order 9 had gone");
        let users: Vec<u32> = day.flow.requests.iter().map(|(_, it)| it.session).collect();
        assert_eq!((users[0], users[1]), (users[3], users[6]), "an order keeps its session");
        assert!(users.iter().all(|user| (1..=SESSIONS).contains(user)));
    }

    #[test]
    fn a_window_begins_with_the_orders_that_live_then() {
        use Fact::*;
        let window = Window { from_ns: Some(1_000), length_ns: 500 };
        let all = [
            (100, add(7, Side::Buy, 10, 50)),
            (200, add(8, Side::Sell, 12, 50)),
            (300, Trade { order: 7, quantity: 20 }),
            (400, Cancel { order: 8 }),
            (900, add(9, Side::Sell, 13, 5)),
            (1_200, Cancel { order: 9 }),
            (1_499, Cancel { order: 7 }),
            (1_500, add(10, Side::Buy, 1, 1)),
        ];
        let day = tape(window, &all).finish();
        let begin = 2 * PREPARE_GAP_NS;
        assert_eq!((day.begin_ns, day.requests), (begin, 2));
        assert_eq!(
            requests(&day),
            [
                "0 add 1 buy 30 at 10".to_string(),
                format!("{PREPARE_GAP_NS} add 4 sell 5 at 13"),
                format!("{} cancel 4", begin + 200),
                format!("{} cancel 1", begin + 499),
            ]
        );
        let fast = day.at_speed(2.0).requests;
        let times: Vec<u64> = fast.iter().map(|(at_ns, _)| *at_ns).collect();
        assert_eq!(
            times,
            [0, PREPARE_GAP_NS, begin + 100, begin + 249],
            "only the window is faster"
        );
    }

    #[test]
    fn the_busiest_second_is_known() {
        let second = |at: u64| 5 + at * SECOND_NS;
        let times = [second(0), second(2), second(2) + 7, second(2) + 8, second(3)];
        let all: Vec<(u64, Fact)> =
            times.iter().zip(1..).map(|(at, order)| (*at, add(order, Side::Buy, 1, 1))).collect();
        let day = tape(DAY, &all).finish();
        assert_eq!((day.peak_per_s, day.requests), (3, 5));
        assert!((day.seconds() - 3.0).abs() < 1e-9);
    }

    #[test]
    fn more_than_can_be_kept_is_refused() {
        let mut tape = Tape::with_limits(DAY, (3, 10));
        let add = |tape: &mut Tape, order| tape.add(1, add(order, Side::Buy, 1, 1));
        assert!((1..=3).all(|order| add(&mut tape, order).is_ok()));
        assert_eq!(add(&mut tape, 4), Err(TapeError::Requests));
        let mut tape = Tape::with_limits(DAY, (10, 3));
        assert!((1..=3).all(|order| add(&mut tape, order).is_ok()));
        assert_eq!(add(&mut tape, 4), Err(TapeError::Orders));
    }
}
