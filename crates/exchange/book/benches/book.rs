//! Time per command in the fast book and in the reference book, for two mixes of orders.
//!
//! The commands are generated beforehand, by a seeded generator that follows a book, so that
//! cancels and moves name live orders. Each round applies the same commands to new books, fast and
//! reference in turn; the first fifth is warm-up. Time per command is the time of all commands
//! divided by their number. The percentiles come from further rounds that read the clock before and
//! after each command; the cost of reading it is subtracted. Events are consumed by a running sum,
//! which must be equal for both books. Run by `cargo xtask bench-book`.
//!
//! With `--serve MIX --file FILE` it writes the commands of a mix to a file for another book. It
//! plays them once for each line on standard input: see `cargo xtask bench-book --peers`.
#![allow(clippy::print_stdout)]

use std::collections::BTreeMap;
use std::hint::black_box;

use nm_book::book::Book;
use nm_book::order::{
    Command, Event, Matching, NewOrder, OrderId, Price, Quantity, Side, TimeInForce, UserId,
};
use nm_book::reference;
use nm_book::testing::{Random, limit};
use nm_sys::clock::Clock;
use nm_test_support::{CountingAllocator, allocations, releases};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Live orders at the start; about as many stay live.
const LIVING: usize = 1000;

/// Commands per round for the reference book, which is slow.
const PLAIN_COMMANDS: usize = 20_000;

/// Shares of a mix, in per cent; the rest of 100 are moves.
struct Mix {
    name: &'static str,
    add: u64,
    take: u64,
    cancel: u64,
    /// How many resting orders of mean size one aggressive order trades with.
    depth: u64,
}

const MIXES: [Mix; 2] = [
    Mix { name: "9 % add, 3 % IOC, 6 % cancel, 82 % move", add: 9, take: 3, cancel: 6, depth: 1 },
    Mix {
        name: "60 % add, 30 % cancel or move (25, 5), 10 % IOC",
        add: 60,
        take: 10,
        cancel: 25,
        depth: 3,
    },
];

/// Follows a book and generates commands for its live orders.
struct Maker {
    random: Random,
    book: Book,
    live: Vec<OrderId>,
    known: BTreeMap<OrderId, (usize, NewOrder, Quantity)>,
    last: Price,
    trades: u64,
    commands: Vec<Command>,
}

impl Maker {
    fn new() -> Maker {
        Maker {
            random: Random::new(4),
            book: Book::new(),
            live: vec![],
            known: BTreeMap::new(),
            last: 100_000,
            trades: 0,
            commands: vec![],
        }
    }

    /// A resting order, at most a thousand ticks from the last price and mostly near it.
    fn order(&mut self) -> NewOrder {
        let side = if self.random.below(2) == 0 { Side::Buy } else { Side::Sell };
        let away = 1 + (self.random.unit().powi(2) * 1000.0) as i64;
        let price = self.last + if side == Side::Buy { -away } else { away };
        let quantity = 1 + self.random.below(6) * self.random.below(6) * self.random.below(6);
        let id = self.random.number();
        limit(id, self.random.below(1000) as UserId, side, price, quantity)
    }

    fn living(&mut self) -> (NewOrder, Quantity) {
        let at = self.random.below(self.live.len() as u64) as usize;
        let (_, order, left) = self.known[&self.live[at]];
        (order, left)
    }

    fn command(&mut self, mix: &Mix) -> Command {
        let share = self.random.below(100);
        if share < mix.add || self.live.len() < LIVING / 2 {
            return Command::New(self.order());
        }
        if share < mix.add + mix.take {
            let order = self.order();
            let price = if order.side == Side::Buy { self.last + 100 } else { self.last - 100 };
            // The fuller the book, the more trades, so that its size stays about constant.
            let depth = mix.depth * (self.live.len() / LIVING).max(1) as u64;
            let quantity = order.quantity * depth + depth / 2;
            return Command::New(NewOrder {
                time_in_force: TimeInForce::ImmediateOrCancel,
                price,
                quantity,
                ..order
            });
        }
        let (order, left) = self.living();
        let NewOrder { id, user, price, .. } = order;
        if share < mix.add + mix.take + mix.cancel {
            return Command::Cancel { id, user };
        }
        // A hundredth of the way to the last price, a tick at least.
        let step = (self.last - price) / 100;
        let tick = if self.random.below(2) == 0 { 1 } else { -1 };
        let toward = if step == 0 { tick } else { step };
        Command::Replace { id, user, price: price + toward, quantity: left }
    }

    fn step(&mut self, command: Command) {
        self.commands.push(command);
        let mut events = vec![];
        self.book.apply(&command, 0, &mut |event| events.push(event));
        if let Command::New(order) = command {
            self.known.insert(order.id, (self.live.len(), order, order.quantity));
            self.live.push(order.id);
        }
        for event in events {
            match event {
                Event::Traded { maker, taker, price, maker_left, taker_left, .. } => {
                    self.trades += 1;
                    self.last = price;
                    self.note(maker, maker_left);
                    self.note(taker, taker_left);
                }
                Event::Cancelled { id, .. } => self.note(id, 0),
                Event::Replaced { id, price, .. } => {
                    if let Some(known) = self.known.get_mut(&id) {
                        known.1.price = price;
                    }
                }
                _ => {}
            }
        }
    }

    fn note(&mut self, id: OrderId, left: Quantity) {
        if left > 0 {
            self.known.entry(id).and_modify(|known| known.2 = left);
        } else if let Some((at, ..)) = self.known.remove(&id) {
            self.live.swap_remove(at);
            if let Some(moved) = self.live.get(at) {
                self.known.entry(*moved).and_modify(|known| known.0 = at);
            }
        }
    }
}

/// Commands of a mix, after those that fill the book.
struct Flow {
    commands: Vec<Command>,
    trades: f64,
    live: usize,
}

fn flow(mix: &Mix, count: usize) -> Flow {
    let mut maker = Maker::new();
    for _ in 0..LIVING {
        let order = maker.order();
        maker.step(Command::New(order));
    }
    maker.trades = 0;
    for _ in 0..count {
        let command = maker.command(mix);
        maker.step(command);
    }
    let trades = maker.trades as f64 / count as f64;
    Flow { commands: maker.commands, trades, live: maker.live.len() }
}

/// A sum over the events, so that the compiler cannot omit any.
fn sum_up(sum: &mut u64, event: Event) {
    let part = match event {
        Event::Accepted { id, .. } => id,
        Event::Traded { maker, quantity, price, .. } => maker ^ quantity ^ price as u64,
        Event::Cancelled { id, left, .. } => id ^ left,
        Event::Replaced { id, kept_priority, .. } => id ^ u64::from(kept_priority),
        Event::Rejected { id, reason, .. } => id ^ reason as u64,
        other => {
            black_box(other);
            1
        }
    };
    *sum = sum.rotate_left(5) ^ part;
}

fn play<M: Matching>(book: &mut M, commands: &[Command], sum: &mut u64) {
    for command in commands {
        book.apply(command, 0, &mut |event| sum_up(sum, event));
    }
}

/// Allocations of this thread so far, without releases.
fn allocated() -> u64 {
    allocations() - releases()
}

/// All commands, timed as one: ns and allocations per command, sum of events.
fn stretch<M: Matching>(mut book: M, commands: &[Command]) -> (f64, f64, u64) {
    let clock = Clock::system();
    let (warm, measured) = commands.split_at(commands.len() / 5);
    let mut sum = 0;
    play(&mut book, warm, &mut sum);
    let (before, start) = (allocated(), clock.now());
    play(&mut book, measured, &mut sum);
    let ns = clock.ns(clock.now() - start);
    let count = measured.len() as f64;
    (ns as f64 / count, (allocated() - before) as f64 / count, sum)
}

/// Each command timed alone: ns at p50, p99 and p99.9, without the cost of reading the clock, and
/// the median number of trades among the commands from p99.9 on.
fn singly<M: Matching>(mut book: M, commands: &[Command]) -> ([f64; 3], f64) {
    let clock = Clock::system();
    let (warm, measured) = commands.split_at(commands.len() / 5);
    let mut sum = 0;
    play(&mut book, warm, &mut sum);
    let mut timed: Vec<(u64, u32)> = Vec::with_capacity(measured.len());
    for command in measured {
        let (start, mut trades) = (clock.now(), 0);
        book.apply(command, 0, &mut |event| {
            trades += u32::from(matches!(event, Event::Traded { .. }));
            sum_up(&mut sum, event);
        });
        timed.push((clock.now() - start, trades));
    }
    black_box(sum);
    let mut idle: Vec<u64> =
        (0..10_001).map(|_| black_box(clock.now().abs_diff(clock.now()))).collect();
    idle.sort_unstable();
    timed.sort_unstable();
    let read = idle[5_000];
    let at = |share: f64| ((timed.len() as f64 * share) as usize).min(timed.len() - 1);
    let mut trades: Vec<f64> =
        timed[at(0.999)..].iter().map(|(_, trades)| f64::from(*trades)).collect();
    let ns = |share: f64| clock.ns(timed[at(share)].0.saturating_sub(read)) as f64;
    ([0.5, 0.99, 0.999].map(ns), median(&mut trades))
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Figures of one book over the rounds.
#[derive(Default)]
struct Figures {
    ns: Vec<f64>,
    allocations: f64,
    singly: [Vec<f64>; 3],
    trades_of_slowest: Vec<f64>,
}

impl Figures {
    fn row(&mut self, name: &str) -> String {
        let [p50, p99, p999] = &mut self.singly;
        let best = self.ns.iter().copied().fold(f64::INFINITY, f64::min);
        format!(
            "| {name} | {:.1} | {best:.1} | {:.3} | {:.0} | {:.0} | {:.0} | {:.0} |",
            median(&mut self.ns),
            self.allocations,
            median(p50),
            median(p99),
            median(p999),
            median(&mut self.trades_of_slowest),
        )
    }

    fn round<M: Matching>(&mut self, fresh: impl Fn() -> M, commands: &[Command]) -> u64 {
        let (ns, allocations, sum) = stretch(fresh(), commands);
        self.ns.push(ns);
        self.allocations = self.allocations.max(allocations);
        let (single, trades) = singly(fresh(), commands);
        self.trades_of_slowest.push(trades);
        self.singly.iter_mut().zip(single).for_each(|(all, one)| all.push(one));
        sum
    }
}

fn fast() -> Book {
    let mut book = Book::new();
    book.reserve(2 * LIVING);
    book
}

/// The commands for another book, little-endian: their number, how many of them are warm-up, and of
/// each its kind (add, take, cancel, move), side, user, order (numbered in the order of arrival),
/// price and quantity.
fn encode(commands: &[Command]) -> Vec<u8> {
    let mut out = vec![];
    out.extend((commands.len() as u32).to_le_bytes());
    out.extend((commands.len() as u32 / 5).to_le_bytes());
    let mut numbers: BTreeMap<OrderId, u32> = BTreeMap::new();
    for command in commands {
        let (kind, side, user, id, price, quantity) = match *command {
            Command::New(NewOrder { id, user, side, price, quantity, time_in_force, .. }) => {
                let is_taker = time_in_force == TimeInForce::ImmediateOrCancel;
                (u8::from(is_taker), side, user, id, price, quantity)
            }
            Command::Cancel { id, user } => (2, Side::Buy, user, id, 0, 0),
            Command::Replace { id, user, price, quantity } => {
                (3, Side::Buy, user, id, price, quantity)
            }
            other => unreachable!("no mix has {other:?}"),
        };
        let next = numbers.len() as u32;
        let number = *numbers.entry(id).or_insert(next);
        out.extend([kind, u8::from(side == Side::Sell)]);
        out.extend(user.to_le_bytes());
        out.extend(number.to_le_bytes());
        out.extend(price.to_le_bytes());
        out.extend(quantity.to_le_bytes());
    }
    out
}

/// Plays the commands of a mix once for each line on standard input. Each answer is a line: ns of
/// the measured commands, their number, trades, traded quantity.
fn serve(mix: &Mix, count: usize, file: &str) {
    let Flow { commands, .. } = flow(mix, count);
    std::fs::write(file, encode(&commands)).expect("the file of the commands can be written");
    let (warm, measured) = commands.split_at(commands.len() / 5);
    let (mut book, mut sum, mut trades, mut traded) = (fast(), 0, 0u64, 0u64);
    play(&mut book, warm, &mut sum);
    for command in measured {
        book.apply(command, 0, &mut |event| {
            if let Event::Traded { quantity, .. } = event {
                (trades, traded) = (trades + 1, traded + quantity);
            }
        });
    }
    println!("{}\nready", mix.name);
    for line in std::io::stdin().lines() {
        line.expect("standard input can be read");
        let (ns_per_command, _, sum) = stretch(fast(), &commands);
        black_box(sum);
        let count = measured.len();
        println!("{:.0} {count} {trades} {traded}", ns_per_command * count as f64);
    }
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let number = |name: &str, default: usize| {
        let at = words.iter().position(|word| word == name);
        at.and_then(|at| words.get(at + 1)?.parse().ok()).unwrap_or(default)
    };
    let (rounds, count) = (number("--rounds", 1), number("--commands", 200_000));
    if let (Some(mix), Some(at)) =
        (MIXES.get(number("--serve", MIXES.len())), words.iter().position(|word| word == "--file"))
    {
        return serve(mix, count, &words[at + 1]);
    }
    for mix in &MIXES {
        let flow = flow(mix, count);
        let few = &flow.commands[..flow.commands.len().min(PLAIN_COMMANDS)];
        let (mut of_fast, mut of_reference) = (Figures::default(), Figures::default());
        for _ in 0..rounds {
            of_fast.round(fast, &flow.commands);
            let reference = of_reference.round(reference::ReferenceBook::new, few);
            let (.., same) = stretch(fast(), few);
            assert_eq!(reference, same, "both books emit the same events");
        }
        let (trades, live) = (flow.trades, flow.live);
        println!("\n## {}\n", mix.name);
        println!(
            "{count} commands, {trades:.3} trades per command, {live} orders at the end; \
             {rounds} rounds; the reference book executes the first {}.\n",
            few.len()
        );
        println!(
            "| book | ns per command, median | best round | allocations per command \
             | p50 | p99 | p99.9 ns | trades of the slowest 0.1 % |\n\
             |---|---|---|---|---|---|---|---|"
        );
        println!("{}\n{}", of_fast.row("fast"), of_reference.row("reference"));
    }
}
