//! Synthetic days, in the layout of an ITCH file.
//!
//! Nothing of them happened anywhere. They have this in common with days of stock exchanges:
//!
//! - Most orders are cancelled and few trade.
//! - Arrivals come in bursts (one causes others, a Hawkes process).
//! - A few stocks have most of them (Zipf).
//! - The opening and the close have more than the middle of the day.

use std::io::{self, Write};

use nm_book::book::Book;
use nm_book::order::{Event, Matching as _};
use nm_feed::derive::Derivation;
use nm_feed::itch::{Body, MESSAGE_BYTES_MAX, Message};
use nm_feed::stock::Listing;
use nm_load::mix::OrderGenerator;
use nm_load::profile::{Profile, Segment};
use nm_load::schedule::{Arrivals, Bursts};
use nm_load::{Settings, demand::Demand};
use nm_model::exchange::OrderMix;
use nm_stats::random::Random;
use std::sync::Arc;

/// ns of a second.
const SECOND_NS: u64 = 1_000_000_000;

/// When the day begins, ns since midnight: 09:30.
pub const OPEN_NS: u64 = 34_200 * SECOND_NS;

/// Parts of the day, with the rate of each as a multiple of the mean: a shape like a U.
const SHAPE: [f64; 7] = [2.2, 1.1, 0.8, 0.6, 0.6, 0.7, 1.0];

/// What a day is to be like.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DaySettings {
    /// Seed of all random numbers.
    pub seed: u64,
    /// Length, s: a multiple of seven.
    pub seconds: u32,
    /// Requests a second on average.
    pub rate_per_s: f64,
    /// Stocks, at most 65 535.
    pub stocks: u32,
    /// Mean number of requests that one causes directly, below 1.
    pub caused: f64,
}

/// What a day has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages, those that list stocks included.
    pub messages: u64,
    /// Orders that came to rest and were shown.
    pub adds: u64,
    /// Trades.
    pub trades: u64,
    /// Orders that were cancelled.
    pub deletes: u64,
}

/// Writes a day.
///
/// # Errors
/// If it cannot be written.
pub fn write(settings: &DaySettings, to: &mut impl Write) -> io::Result<Counts> {
    let mut day = Writer { to, counts: Counts::default() };
    let load = Settings {
        seed: settings.seed,
        instruments: settings.stocks,
        // Mostly limit orders, their cancels and replacements.
        mix: OrderMix::ExchangeCore,
        ..Settings::default()
    };
    let (mut orders, mut books) = (OrderGenerator::new(&load), vec![]);
    day.system_event(b'O')?;
    let mut out = vec![];
    for stock in 0..settings.stocks {
        let derivation = Derivation::new(stock as u16 + 1, Listing::unnamed(stock));
        derivation.describe(&mut out);
        books.push((Book::new(), derivation));
    }
    day.messages(&mut out)?;
    let mut profile = profile(settings, &load);
    let mut events: Vec<Event> = vec![];
    while let Some((at_ns, request)) = profile.next(&mut orders) {
        let (book, derivation) = &mut books[request.instrument as usize];
        events.clear();
        let now_ns = OPEN_NS + at_ns;
        book.apply(&request.command, now_ns, &mut |event| events.push(event));
        derivation.derive(&request.command, &events, now_ns, &mut out);
        day.messages(&mut out)?;
    }
    day.system_event(b'C')?;
    Ok(day.counts)
}

fn profile(settings: &DaySettings, load: &Settings) -> Profile {
    let demand = Arc::new(Demand::new(load.instruments, load.zipf, &[], None));
    let mean = SHAPE.iter().sum::<f64>() / SHAPE.len() as f64;
    let segment = |(at, share): (usize, &f64)| {
        let rate = |share: f64| settings.rate_per_s * share / mean;
        Segment {
            seconds: settings.seconds / SHAPE.len() as u32,
            from_per_s: rate(*share),
            to_per_s: rate(*SHAPE.get(at + 1).unwrap_or(&2.0)),
            arrivals: Arrivals::Bursts,
            bursts: Bursts { triggered: settings.caused, ..Bursts::default() },
            demand: Arc::clone(&demand),
            auction_s: None,
        }
    };
    let segments = SHAPE.iter().enumerate().map(segment).collect();
    Profile::new(segments, load.instruments, Random::new(settings.seed ^ 0x64_61_79))
}

struct Writer<'a, W: Write> {
    to: &'a mut W,
    counts: Counts,
}

impl<W: Write> Writer<'_, W> {
    fn system_event(&mut self, event: u8) -> io::Result<()> {
        let body = Body::SystemEvent { event };
        self.message(&Message { locate: 0, tracking: 0, time_ns: OPEN_NS, body })
    }

    fn messages(&mut self, all: &mut Vec<Message>) -> io::Result<()> {
        all.drain(..).try_for_each(|message| self.message(&message))
    }

    fn message(&mut self, message: &Message) -> io::Result<()> {
        let mut place = [0; MESSAGE_BYTES_MAX];
        let length = message.write(&mut place);
        self.to.write_all(&(length as u16).to_be_bytes())?;
        self.to.write_all(&place[..length])?;
        self.counts.messages += 1;
        match message.body {
            Body::AddOrder { .. } => self.counts.adds += 1,
            Body::Executed { .. } => self.counts.trades += 1,
            Body::Delete { .. } => self.counts.deletes += 1,
            _ => {}
        }
        Ok(())
    }
}
