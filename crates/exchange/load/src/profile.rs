//! The requests of a load that changes as a script says, with their times. One segment follows the
//! other, and orders and random numbers continue from each to the next.

use std::collections::VecDeque;
use std::sync::Arc;

use nm_book::order::{Command, InstrumentId};
use nm_stats::random::Random;

use crate::demand::Demand;
use crate::mix::OrderGenerator;
use crate::schedule::{ArrivalProcess, Arrivals, Bursts, Rate};
use crate::settings::OrderRequest;

/// A part of the load with one arrival process and one demand.
#[derive(Debug, Clone)]
pub struct Segment {
    /// Length, s.
    pub seconds: u32,
    /// Requests a second at its start.
    pub from_per_s: f64,
    /// Requests a second at its end; in between the rate changes linearly.
    pub to_per_s: f64,
    /// The arrival process.
    pub arrivals: Arrivals,
    /// Its parameters, if it is one of bursts.
    pub bursts: Bursts,
    /// Instruments and gateways of the requests.
    pub demand: Arc<Demand>,
    /// An auction at the start of the segment: the operator begins it in all instruments, and ends
    /// it after this time, s.
    pub auction_s: Option<u32>,
}

impl Segment {
    fn rate_at(&self, at_s: f64) -> Rate {
        let slope_per_s2 = (self.to_per_s - self.from_per_s) / f64::from(self.seconds);
        Rate { now_per_s: self.from_per_s + slope_per_s2 * at_s, slope_per_s2 }
    }
}

/// A profile of segments. Its requests depend on the segments, the orders before, and the random
/// numbers alone.
#[derive(Debug)]
pub struct Profile {
    segments: VecDeque<Segment>,
    process: ArrivalProcess,
    instruments: u32,
    /// Start of the present segment, s.
    start_s: f64,
    /// Time in the present segment, s.
    now_s: f64,
    /// Commands of the operator with their times, rising, ns.
    commands: VecDeque<(u64, InstrumentId, Command)>,
    /// Time of the next order, drawn but not passed on yet, ns.
    drawn_ns: Option<u64>,
    /// Whether the demand of the first segment was set.
    has_begun: bool,
}

impl Profile {
    /// The profile of these segments, on instruments numbered from 0 on.
    pub fn new(segments: Vec<Segment>, instruments: u32, random: Random) -> Profile {
        let first = segments.first();
        let (arrivals, bursts) = first.map_or_else(Default::default, |s| (s.arrivals, s.bursts));
        Profile {
            segments: segments.into(),
            process: ArrivalProcess::new(arrivals, bursts, random),
            instruments,
            start_s: 0.0,
            now_s: 0.0,
            commands: VecDeque::new(),
            drawn_ns: None,
            has_begun: false,
        }
    }

    /// Length of what is left, s.
    pub fn seconds(&self) -> f64 {
        self.segments.iter().map(|segment| f64::from(segment.seconds)).sum::<f64>()
    }

    /// Highest rate of the present segment, requests a second.
    pub fn rate_max_per_s(&self) -> f64 {
        self.segments.front().map_or(0.0, |segment| segment.from_per_s.max(segment.to_per_s))
    }

    /// Returns the random generator, to continue with it.
    pub fn into_random(self) -> Random {
        self.process.into_random()
    }

    /// The next request and its time since the start of the profile, ns; none at its end.
    pub fn next(&mut self, orders: &mut OrderGenerator) -> Option<(u64, OrderRequest)> {
        if !self.has_begun {
            self.has_begun = true;
            self.enter(orders);
        }
        loop {
            if self.drawn_ns.is_none() {
                self.drawn_ns = self.draw_time();
            }
            let is_before = |at_ns: u64| self.drawn_ns.is_none_or(|drawn_ns| at_ns <= drawn_ns);
            if let Some((at_ns, ..)) = self.commands.front()
                && is_before(*at_ns)
            {
                let (at_ns, instrument, command) = self.commands.pop_front()?;
                return Some((at_ns, orders.request(instrument, command)));
            }
            if let Some(at_ns) = self.drawn_ns.take() {
                return Some((at_ns, orders.next_request()));
            }
            let ended = self.segments.pop_front()?;
            self.start_s += f64::from(ended.seconds);
            self.now_s = 0.0;
            self.enter(orders);
        }
    }

    /// The time of the next order in the present segment, ns.
    fn draw_time(&mut self) -> Option<u64> {
        let segment = self.segments.front()?;
        let left_s = f64::from(segment.seconds) - self.now_s;
        self.now_s += self.process.next_gap(segment.rate_at(self.now_s), left_s)?;
        Some(((self.start_s + self.now_s) * 1e9) as u64)
    }

    /// Begins the segment that is now the first.
    fn enter(&mut self, orders: &mut OrderGenerator) {
        let Some(segment) = self.segments.front() else { return };
        self.process.switch_to(segment.arrivals, segment.bursts);
        orders.set_demand(Arc::clone(&segment.demand));
        let Some(auction_s) = segment.auction_s else { return };
        let ends = [(0.0, Command::BeginAuction), (f64::from(auction_s), Command::Uncross)];
        for (after_s, command) in ends {
            let at_ns = ((self.start_s + after_s) * 1e9) as u64;
            self.commands.extend((0..self.instruments).map(|at| (at_ns, at, command)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demand::HotSet;
    use crate::flow::StreamHash;
    use crate::settings::Settings;
    use nm_book::book::Book;
    use nm_book::order::{Event, Matching};

    const INSTRUMENTS: u32 = 8;

    fn segment(seconds: u32, from_per_s: f64, to_per_s: f64) -> Segment {
        Segment {
            seconds,
            from_per_s,
            to_per_s,
            arrivals: Arrivals::Poisson,
            bursts: Bursts::default(),
            demand: Arc::new(Demand::new(INSTRUMENTS, 1.0, &[], None)),
            auction_s: None,
        }
    }

    fn requests(segments: &[Segment], seed: u64) -> Vec<(u64, OrderRequest)> {
        let settings = Settings { instruments: INSTRUMENTS, seed, ..Settings::default() };
        let mut orders = OrderGenerator::new(&settings);
        let mut profile = Profile::new(segments.to_vec(), INSTRUMENTS, Random::new(seed));
        std::iter::from_fn(|| profile.next(&mut orders)).collect()
    }

    fn count(requests: &[(u64, OrderRequest)], from_s: u64, to_s: u64) -> f64 {
        let within = from_s * 1_000_000_000..to_s * 1_000_000_000;
        requests.iter().filter(|(at_ns, _)| within.contains(at_ns)).count() as f64
    }

    #[test]
    fn each_segment_has_the_requests_of_its_rate() {
        let bursts = Segment { arrivals: Arrivals::Bursts, ..segment(10, 2_000.0, 2_000.0) };
        let even = Segment { arrivals: Arrivals::Even, ..segment(3, 500.0, 500.0) };
        let all = [segment(5, 2_000.0, 2_000.0), segment(10, 2_000.0, 500.0), bursts, even];
        let found = requests(&all, 5);
        assert!(found.is_sorted_by_key(|(at_ns, _)| *at_ns));
        // Counts of a Hawkes process with 0.7 have 11 times the variance of a Poisson process.
        for (from_s, to_s, expected, dispersion) in [
            (0, 5, 10_000.0, 1.0),
            (5, 15, 12_500.0, 1.0),
            (5, 6, 1_925.0, 1.0),
            (15, 25, 20_000.0, 11.2),
            (25, 28, 1_500.0, 0.0),
        ] {
            let off = (count(&found, from_s, to_s) - expected).abs();
            assert!(
                off <= 4.0 * f64::sqrt(dispersion * expected) + 1.0,
                "{from_s} s: off by {off}"
            );
        }
        assert_eq!(count(&found, 0, 28), found.len() as f64);
    }

    #[test]
    fn the_stream_follows_from_segments_and_seed() {
        let hash = |segments: &[Segment], seed| {
            let (mut hash, mut scratch) = (StreamHash::default(), vec![]);
            for (_, request) in requests(segments, seed) {
                hash.add(&request, &mut scratch);
            }
            hash.value()
        };
        let hot = [HotSet { instruments: vec![3], share: 0.9 }];
        let hot = Segment {
            demand: Arc::new(Demand::new(INSTRUMENTS, 1.0, &hot, None)),
            ..segment(2, 800.0, 800.0)
        };
        let plain = [segment(2, 500.0, 900.0), segment(2, 800.0, 800.0)];
        let changed = [plain[0].clone(), hot];
        assert_eq!(hash(&plain, 1), hash(&plain, 1));
        assert_ne!(hash(&plain, 1), hash(&plain, 2));
        assert_ne!(hash(&plain, 1), hash(&changed, 1));
        // The part before the change is the same, and the change begins with its segment.
        let (plain, changed) = (requests(&plain, 1), requests(&changed, 1));
        let first = count(&plain, 0, 2) as usize;
        assert_eq!(plain[..first], changed[..first]);
        let on_hot = changed[first..].iter().filter(|(_, request)| request.instrument == 3);
        let share = on_hot.count() as f64 / (changed.len() - first) as f64;
        assert!((share - 0.9).abs() < 0.03, "{share}");
    }

    #[test]
    fn an_auction_begins_and_ends_in_every_instrument() {
        let auction = Segment { auction_s: Some(2), ..segment(3, 1_000.0, 1_000.0) };
        let all = requests(&[segment(1, 1_000.0, 1_000.0), auction], 9);
        let times = |wanted: Command| -> Vec<u64> {
            let of = all.iter().filter(|(_, request)| request.command == wanted);
            of.map(|(at_ns, _)| at_ns / 1_000_000_000).collect()
        };
        assert_eq!(times(Command::BeginAuction), [1; INSTRUMENTS as usize]);
        assert_eq!(times(Command::Uncross), [3; INSTRUMENTS as usize]);
        // Books that execute the stream trade at the end of the auction, and not while it lasts.
        let mut books: Vec<Book> = (0..INSTRUMENTS).map(|_| Book::new()).collect();
        let mut trades = [0; 4];
        for (at_ns, request) in &all {
            books[request.instrument as usize].apply(&request.command, 0, &mut |event| {
                trades[(at_ns / 1_000_000_000) as usize] +=
                    u32::from(matches!(event, Event::Traded { .. }));
            });
        }
        assert!(trades[0] > 0 && trades[1] == 0 && trades[2] == 0 && trades[3] > 0, "{trades:?}");
    }
}
