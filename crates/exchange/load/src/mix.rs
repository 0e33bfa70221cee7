//! Generator of orders, independent of the answers of the network. It is a seeded stream that
//! follows order books of its own, so that cancels and replacements mostly name live orders.

use std::collections::HashMap;
use std::sync::Arc;

use nm_book::book::Book;
use nm_book::order::{
    Command, Event, InstrumentId, Matching, NewOrder, OrderId, OrderType, Peg, PostOnly, Price,
    Quantity, SelfTrade, Side, TimeInForce, UserId,
};
use nm_model::exchange::OrderMix;
use nm_stats::random::Random;

use crate::demand::{Demand, Site};
use crate::random::Sizes;
use crate::settings::{OrderRequest, Settings};

/// Approximate number of live orders on an instrument in steady state.
const LIVING: usize = 100;

/// Below this number of live orders only new ones are generated.
const LIVING_MIN: usize = 20;

/// Initial price of every instrument, ticks.
const FIRST_PRICE: Price = 100_000;

/// Live orders that are looked at for one of a session of a given gateway.
const PICKS_MAX: usize = 32;

/// Shares of a mix in per cent; the rest of 100 are replacements.
struct Shares {
    add: usize,
    take: usize,
    cancel: usize,
    /// How many resting orders of mean size one aggressive order trades with.
    depth: u64,
    /// Whether orders of all types are generated.
    is_varied: bool,
}

fn shares(mix: OrderMix) -> Shares {
    let (add, take, cancel, depth, is_varied) = match mix {
        OrderMix::Default => (60, 10, 20, 4, true),
        OrderMix::ExchangeCore => (9, 3, 6, 1, false),
        OrderMix::Monterey => (50, 50, 0, 1, false),
    };
    Shares { add, take, cancel, depth, is_varied }
}

/// Generates the orders of a mix.
pub struct OrderGenerator {
    random: Random,
    shares: Shares,
    instruments: Vec<Instrument>,
    demand: Arc<Demand>,
    sizes: Sizes,
    sessions: u32,
    next_id: OrderId,
}

/// The generator's model of an instrument.
struct Instrument {
    book: Book,
    living: Vec<OrderId>,
    known: HashMap<OrderId, Known>,
    last: Price,
}

struct Known {
    /// Index in `living`.
    at: usize,
    order: NewOrder,
    left: Quantity,
}

impl OrderGenerator {
    /// The generator for these settings.
    pub fn new(settings: &Settings) -> OrderGenerator {
        let instrument = || Instrument {
            book: Book::new(),
            living: vec![],
            known: HashMap::new(),
            last: FIRST_PRICE,
        };
        OrderGenerator {
            random: Random::new(settings.seed),
            shares: shares(settings.mix),
            instruments: (0..settings.instruments.max(1)).map(|_| instrument()).collect(),
            demand: Arc::new(Demand::new(settings.instruments, settings.zipf, &[], None)),
            sizes: settings.sizes,
            sessions: settings.sessions.max(1),
            next_id: 0,
        }
    }

    /// Changes the demand from the next request on. It must be for the instruments of the settings.
    pub fn set_demand(&mut self, demand: Arc<Demand>) {
        self.demand = demand;
    }

    /// The next request.
    pub fn next_request(&mut self) -> OrderRequest {
        let instrument = self.demand.draw_instrument(&mut self.random);
        let site = self.demand.draw_gateway(&mut self.random);
        let command = self.command(instrument as usize, site);
        self.request(instrument, command)
    }

    /// A request that the next ones take into account.
    pub fn request(&mut self, instrument: InstrumentId, command: Command) -> OrderRequest {
        self.instruments[instrument as usize].follow(&command);
        OrderRequest {
            session: user_of(&command),
            instrument,
            size_bytes: self.sizes.draw(&mut self.random),
            command,
        }
    }

    fn command(&mut self, instrument: usize, site: Option<Site>) -> Command {
        let share = self.random.below(100);
        let Shares { add, take, cancel, depth, is_varied } = self.shares;
        let living = self.instruments[instrument].living.len();
        if share < add || living < LIVING_MIN {
            let order = self.resting(instrument, site);
            return Command::New(if is_varied { self.varied(order) } else { order });
        }
        if share < add + take {
            // The fuller the book, the more trades, so that its size stays about constant.
            let depth = depth * (living / LIVING).max(1) as u64;
            return Command::New(self.taking(instrument, site, depth, is_varied));
        }
        let Some(picked) = self.pick(instrument, site) else {
            return Command::New(self.resting(instrument, site));
        };
        let instrument = &self.instruments[instrument];
        let Some(known) = instrument.known.get(&picked) else { return Command::Tick };
        let (NewOrder { id, user, price, .. }, left) = (known.order, known.left);
        if share < add + take + cancel {
            return Command::Cancel { id, user };
        }
        // One hundredth of the distance to the last price, at least one tick.
        let step = (instrument.last - price) / 100;
        let tick = if self.random.below(2) == 0 { 1 } else { -1 };
        let price = price + if step == 0 { tick } else { step };
        Command::Replace { id, user, price, quantity: left.max(1) }
    }

    /// Picks a live order at random, of a session of a gateway if there is one. None if none of
    /// those that were looked at is.
    fn pick(&mut self, instrument: usize, site: Option<Site>) -> Option<OrderId> {
        let Instrument { living, known, .. } = &self.instruments[instrument];
        let Some(site) = site else { return Some(living[self.random.below(living.len())]) };
        (0..PICKS_MAX)
            .map(|_| living[self.random.below(living.len())])
            .find(|id| known.get(id).is_some_and(|known| site.has(known.order.user)))
    }

    fn session(&mut self, site: Option<Site>) -> UserId {
        match site {
            Some(site) => site.draw_session(self.sessions, &mut self.random),
            None => 1 + self.random.below(self.sessions as usize) as UserId,
        }
    }

    /// A limit order, at most a thousand ticks from the last price and mostly near it.
    fn resting(&mut self, instrument: usize, site: Option<Site>) -> NewOrder {
        self.next_id += 1;
        let side = if self.random.below(2) == 0 { Side::Buy } else { Side::Sell };
        let away = 1 + (self.random.unit().powi(2) * 1000.0) as i64;
        let last = self.instruments[instrument].last;
        NewOrder {
            id: self.next_id,
            user: self.session(site),
            side,
            order_type: OrderType::Limit,
            time_in_force: TimeInForce::GoodTillCancelled,
            price: last + if side == Side::Buy { -away } else { away },
            stop_price: 0,
            quantity: 1 + (self.random.below(6) * self.random.below(6) * 3) as u64,
            display: 0,
            minimum: 0,
            is_hidden: false,
            peg: Peg::No,
            post_only: PostOnly::No,
            self_trade: SelfTrade::CancelNewest,
        }
    }

    /// Converts some orders to other order types.
    fn varied(&mut self, order: NewOrder) -> NewOrder {
        let (price, quantity) = (order.price, order.quantity);
        match self.random.below(100) {
            0..5 => NewOrder { display: 1 + quantity / 4, ..order },
            5..8 => NewOrder { post_only: PostOnly::Slide, ..order },
            8..10 => NewOrder { is_hidden: true, ..order },
            10..13 => NewOrder {
                time_in_force: TimeInForce::Day,
                self_trade: SelfTrade::Decrement,
                ..order
            },
            // Stop prices are on the other side of the market.
            13..16 => {
                let side = order.side.opposite();
                NewOrder { order_type: OrderType::StopLimit, stop_price: price, side, ..order }
            }
            _ => order,
        }
    }

    /// An order that trades immediately.
    fn taking(
        &mut self,
        instrument: usize,
        site: Option<Site>,
        depth: u64,
        is_varied: bool,
    ) -> NewOrder {
        let order = self.resting(instrument, site);
        let last = self.instruments[instrument].last;
        let price = last + if order.side == Side::Buy { 100 } else { -100 };
        let quantity = order.quantity * depth;
        let time_in_force = TimeInForce::ImmediateOrCancel;
        let order = NewOrder { time_in_force, price, quantity, ..order };
        match self.random.below(10) {
            0 | 1 if is_varied => NewOrder { order_type: OrderType::Market, ..order },
            2 if is_varied => NewOrder { time_in_force: TimeInForce::FillOrKill, ..order },
            3 if is_varied => NewOrder { minimum: 1, self_trade: SelfTrade::CancelOldest, ..order },
            _ => order,
        }
    }
}

/// The user of a command; the operator for commands of the exchange.
pub fn user_of(command: &Command) -> UserId {
    match *command {
        Command::New(NewOrder { user, .. })
        | Command::Replace { user, .. }
        | Command::Cancel { user, .. }
        | Command::MassCancel { user } => user,
        _ => nm_exchange::cell::OPERATOR,
    }
}

impl Instrument {
    fn follow(&mut self, command: &Command) {
        if let Command::New(order) = *command {
            let known = Known { at: self.living.len(), order, left: order.quantity };
            self.known.insert(order.id, known);
            self.living.push(order.id);
        }
        let is_new = matches!(command, Command::New(_));
        let mut events = vec![];
        self.book.apply(command, 0, &mut |event| events.push(event));
        for event in events {
            match event {
                Event::Traded { maker, taker, price, maker_left, taker_left, .. } => {
                    self.last = price;
                    self.set_open_quantity(maker, maker_left);
                    self.set_open_quantity(taker, taker_left);
                }
                Event::Cancelled { id, .. } => self.set_open_quantity(id, 0),
                Event::Rejected { id, .. } if is_new => self.set_open_quantity(id, 0),
                Event::Reduced { id, left, .. } => self.set_open_quantity(id, left),
                Event::Replaced { id, price, quantity, .. } => {
                    self.set_open_quantity(id, quantity);
                    self.known.entry(id).and_modify(|known| known.order.price = price);
                }
                Event::Slid { id, price, .. } => {
                    self.known.entry(id).and_modify(|known| known.order.price = price);
                }
                _ => {}
            }
        }
    }

    fn set_open_quantity(&mut self, id: OrderId, left: Quantity) {
        if left > 0 {
            self.known.entry(id).and_modify(|known| known.left = left);
        } else if let Some(gone) = self.known.remove(&id) {
            self.living.swap_remove(gone.at);
            if let Some(moved) = self.living.get(gone.at) {
                self.known.entry(*moved).and_modify(|known| known.at = gone.at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(settings: &Settings, count: usize) -> Vec<OrderRequest> {
        let mut maker = OrderGenerator::new(settings);
        (0..count).map(|_| maker.next_request()).collect()
    }

    #[test]
    fn a_mix_has_its_shares_and_a_book_keeps_its_size() {
        for (mix, adds, takes, cancels) in [
            (OrderMix::Default, 60, 10, 20),
            (OrderMix::ExchangeCore, 9, 3, 6),
            (OrderMix::Monterey, 50, 50, 0),
        ] {
            let settings = Settings { mix, instruments: 4, ..Settings::default() };
            let mut maker = OrderGenerator::new(&settings);
            let mut counts = [0usize; 4];
            for _ in 0..40_000 {
                let immediate = [TimeInForce::ImmediateOrCancel, TimeInForce::FillOrKill];
                counts[match maker.next_request().command {
                    Command::New(order) if immediate.contains(&order.time_in_force) => 1,
                    Command::New(_) => 0,
                    Command::Cancel { .. } => 2,
                    _ => 3,
                }] += 1;
            }
            let near = |found: usize, percent: usize| found.abs_diff(percent * 400) < 1600;
            assert!(near(counts[1], takes) && near(counts[2], cancels), "{mix}: {counts:?}");
            assert!(near(counts[0], adds), "{mix}: {counts:?}");
            for instrument in &maker.instruments {
                assert_eq!(instrument.living.len(), instrument.book.len(), "{mix}");
                assert!(
                    (5..1000).contains(&instrument.living.len()),
                    "{mix}: {}",
                    instrument.living.len()
                );
            }
        }
    }

    #[test]
    fn every_kind_of_request_follows_the_shares_of_gateways() {
        for mix in [OrderMix::Default, OrderMix::ExchangeCore] {
            let settings = Settings { mix, instruments: 4, ..Settings::default() };
            let mut maker = OrderGenerator::new(&settings);
            for _ in 0..10_000 {
                maker.next_request();
            }
            // The books are full of orders of all sessions when the flow moves.
            let shares = [0.9, 0.1];
            maker.set_demand(Arc::new(Demand::new(4, 1.0, &[], Some(&shares))));
            let mut first = [0f64; 2];
            for _ in 0..20_000 {
                let request = maker.next_request();
                assert_eq!(request.session, user_of(&request.command));
                let is_new = matches!(request.command, Command::New(_));
                if request.session.is_multiple_of(2) {
                    first[usize::from(is_new)] += 1.0 / 20_000.0;
                }
            }
            let share = first[0] + first[1];
            assert!((share - 0.9).abs() < 0.02, "{mix}: {first:?}");
            assert!(first.iter().all(|share| *share > 0.05), "{mix}: {first:?}");
        }
    }

    #[test]
    fn the_stream_follows_from_the_settings_alone() {
        let settings = Settings::default();
        let once = stream(&settings, 5_000);
        assert_eq!(once, stream(&settings, 5_000));
        assert_ne!(once, stream(&Settings { seed: 2, ..settings }, 5_000));
        assert!(once.iter().all(|ask| ask.session == user_of(&ask.command) && ask.session > 0));
    }
}
