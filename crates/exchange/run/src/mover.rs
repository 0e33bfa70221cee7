//! Moves instruments of a running network to other cells, at a rate, while it is under load.
//!
//! The schedule is drawn from a seed. Each interval of the rate has one move, at a random time in
//! it, of a random instrument to a random other cell. Moves that are due are requested at once and
//! together, and the next ones when these have ended. So moves wait where the network cannot carry
//! on, and go on together afterwards.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use nm_book::order::InstrumentId;
use nm_exchange::network::{Network, NodeId, Role};
use nm_model::exchange::{Durations, Moves};
use nm_operate::admin::{self, InstrumentMover, MoveOutcome};
use nm_stats::quantile::rank;
use nm_stats::random::Random;
use nm_sys::clock::{Deadline, monotonic_ns};

/// How long moves may take until they are requested again.
const REQUEST_LIMIT: Duration = Duration::from_secs(2);

/// How long a node may take to answer what it has done.
const WORK_LIMIT: Duration = Duration::from_secs(2);

/// How long a node may take to answer who leads.
const STATUS_LIMIT: Duration = Duration::from_secs(1);

/// How long a kill waits for a move.
const AIM_LIMIT: Duration = Duration::from_secs(1);

/// How often it is checked meanwhile whether a move is under way.
const AIM_INTERVAL: Duration = Duration::from_micros(100);

/// Longest sleep until it is checked whether the round is over, or has begun: each takes CPU time
/// from the network that is measured.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Pause before moves that have failed are requested again.
const RETRY_PAUSE: Duration = Duration::from_millis(2);

/// Most moves that are requested together.
const TOGETHER_MAX: usize = 64;

/// Which node to kill, by its part in the moves that are under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Aim {
    /// The mediator that leads the cell that an instrument leaves.
    Source,
    /// The mediator that leads the cell that an instrument goes to.
    Destination,
    /// The mediator that leads control.
    Control,
}

impl Aim {
    /// All of them.
    pub const ALL: [Aim; 3] = [Aim::Source, Aim::Destination, Aim::Control];

    /// What it is aimed at.
    pub fn name(self) -> &'static str {
        match self {
            Aim::Source => "leader of the source",
            Aim::Destination => "leader of the destination",
            Aim::Control => "leader of control",
        }
    }
}

/// A kill of a node that takes part in a move.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AimedKill {
    /// Which node.
    pub aim: Aim,
    /// From when on a move is waited for, s after the start of the measurement.
    pub at_s: f64,
    /// How long after the request of a move.
    pub delay: Duration,
    /// How long it stays dead.
    pub stays_dead: Duration,
}

/// A move that was requested and has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PendingMove {
    instrument: InstrumentId,
    from: u16,
    to: u16,
}

/// When which instrument moves where.
#[derive(Debug)]
struct Schedule {
    random: Random,
    instruments: u32,
    interval_ns: f64,
    /// Moves until the end.
    count: u64,
    /// Number of the next one, and when it is due, ns after the start.
    next: u64,
    due_ns: u64,
    /// Cell of each instrument.
    cells: Vec<u16>,
    cell_count: usize,
}

impl Schedule {
    fn new(
        network: &Network,
        instruments: u32,
        per_minute: f64,
        seconds: f64,
        seed: u64,
    ) -> Schedule {
        let mut schedule = Schedule {
            random: Random::new(seed),
            instruments,
            interval_ns: 60e9 / per_minute,
            count: (per_minute * seconds / 60.0) as u64,
            next: 0,
            due_ns: 0,
            cells: (0..instruments).map(|instrument| network.cell_of(instrument)).collect(),
            cell_count: network.nodes(Role::Mediator).len(),
        };
        schedule.draw_time();
        schedule
    }

    fn draw_time(&mut self) {
        self.due_ns = ((self.next as f64 + self.random.unit()) * self.interval_ns) as u64;
    }

    /// The moves that are due, each of another instrument.
    fn due(&mut self, elapsed_ns: u64) -> Vec<PendingMove> {
        let most = TOGETHER_MAX.min(self.instruments as usize);
        let mut due: Vec<PendingMove> = vec![];
        while self.next < self.count && self.due_ns <= elapsed_ns && due.len() < most {
            let instrument = loop {
                let instrument = self.random.below(self.instruments as usize) as u32;
                if due.iter().all(|other| other.instrument != instrument) {
                    break instrument;
                }
            };
            let from = self.cells[instrument as usize];
            let step = 1 + self.random.below(self.cell_count - 1);
            let to = ((usize::from(from) + step) % self.cell_count) as u16;
            due.push(PendingMove { instrument, from, to });
            self.next += 1;
            self.draw_time();
        }
        due
    }

    fn is_done(&self) -> bool {
        self.next == self.count
    }
}

/// What became of moves.
#[derive(Debug, Default)]
struct Counts {
    due: u64,
    asked: u64,
    done: u64,
    refused: u64,
    took_ns: Vec<u64>,
}

/// How far a round is, as its threads tell each other.
#[derive(Debug, Default)]
pub struct Progress {
    /// When the measurement started, ns on the monotonic clock; zero before.
    pub started_ns: AtomicU64,
    /// Whether the load has ended.
    pub is_loaded: AtomicBool,
    /// Whether the round is given up.
    pub stop: AtomicBool,
}

/// Moves the instruments of a network.
#[derive(Debug)]
pub struct Mover<'a> {
    network: &'a Network,
    instruments: u32,
    per_minute: f64,
    seconds: f64,
    seed: u64,
    pending: Mutex<Vec<PendingMove>>,
}

impl Mover<'_> {
    /// A mover of so many instruments, numbered from 0 on, for `seconds`.
    pub fn new(
        network: &Network,
        instruments: u32,
        per_minute: f64,
        seconds: f64,
        seed: u64,
    ) -> Mover<'_> {
        let pending = Mutex::default();
        Mover { network, instruments, per_minute, seconds, seed, pending }
    }

    /// Moves instruments from the start of the measurement to the end of the schedule; what became
    /// of them. Moves that fail once the load has ended are not requested again.
    pub fn run(&self, progress: &Progress) -> Moves {
        let Mover { instruments, per_minute, seconds, seed, .. } = *self;
        let mut schedule = Schedule::new(self.network, instruments, per_minute, seconds, seed);
        let mut counts = Counts { due: schedule.count, ..Counts::default() };
        if let Ok(mut mover) = InstrumentMover::new(self.network) {
            self.carry_out(&mut schedule, &mut mover, progress, &mut counts);
        }
        let pauses_ns = admin::work(self.network, WORK_LIMIT).unwrap_or_default();
        let pauses_ns = pauses_ns.into_iter().flat_map(|(_, work)| work.pauses_ns).collect();
        let Counts { due, asked, done, refused, took_ns } = counts;
        Moves { due, asked, done, refused, took: durations(took_ns), pauses: durations(pauses_ns) }
    }

    /// Requests the moves of the schedule when they are due, until its end or that of the round.
    fn carry_out(
        &self,
        schedule: &mut Schedule,
        mover: &mut InstrumentMover<'_>,
        progress: &Progress,
        counts: &mut Counts,
    ) {
        while !progress.stop.load(Ordering::Relaxed) && !schedule.is_done() {
            let start_ns = progress.started_ns.load(Ordering::Acquire);
            let elapsed_ns = monotonic_ns().saturating_sub(start_ns);
            if start_ns == 0 || elapsed_ns < schedule.due_ns {
                let left_ns = if start_ns == 0 { u64::MAX } else { schedule.due_ns - elapsed_ns };
                thread::sleep(POLL_INTERVAL.min(Duration::from_nanos(left_ns)));
                continue;
            }
            let due = schedule.due(elapsed_ns);
            if !self.request(due, mover, progress, &mut schedule.cells, counts) {
                break;
            }
        }
    }

    /// Requests moves until they have ended. False if they have not, and the round is over.
    fn request(
        &self,
        due: Vec<PendingMove>,
        mover: &mut InstrumentMover<'_>,
        progress: &Progress,
        cells: &mut [u16],
        counts: &mut Counts,
    ) -> bool {
        counts.asked += due.len() as u64;
        let begin_ns = monotonic_ns();
        let moves: Vec<(InstrumentId, u16)> = due.iter().map(|it| (it.instrument, it.to)).collect();
        self.set_pending(due);
        let is_over = |is_first: bool| {
            let is_loaded = progress.is_loaded.load(Ordering::Relaxed) && !is_first;
            is_loaded || progress.stop.load(Ordering::Relaxed)
        };
        let (mut is_first, mut has_ended) = (true, false);
        while !has_ended && !is_over(is_first) {
            // What was requested before an error, and has ended, is answered at once.
            if let Ok(outcomes) = mover.move_all(&moves, REQUEST_LIMIT) {
                let all_ns = monotonic_ns() - begin_ns;
                let targets: BTreeMap<InstrumentId, u16> = moves.iter().copied().collect();
                for MoveOutcome { instrument, refused, took_ms, .. } in outcomes {
                    if refused.is_some() {
                        counts.refused += 1;
                        continue;
                    }
                    counts.done += 1;
                    counts.took_ns.push(if is_first { (took_ms * 1e6) as u64 } else { all_ns });
                    cells[instrument as usize] = targets[&instrument];
                }
                has_ended = true;
            } else {
                is_first = false;
                thread::sleep(RETRY_PAUSE);
            }
        }
        self.set_pending(vec![]);
        has_ended
    }

    fn set_pending(&self, moves: Vec<PendingMove>) {
        *self.pending.lock().unwrap_or_else(PoisonError::into_inner) = moves;
    }

    fn pending(&self) -> Option<PendingMove> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).first().copied()
    }

    /// Waits until a move is under way, and gives the node at which a kill is aimed after its
    /// delay; none if no move was requested for a while, or the node is not known.
    pub fn victim(&self, kill: &AimedKill) -> Option<NodeId> {
        let status = admin::status(self.network, STATUS_LIMIT).ok()?;
        let deadline = Deadline::after(AIM_LIMIT);
        let pending = loop {
            if let Some(pending) = self.pending() {
                break pending;
            }
            if deadline.passed() {
                return None;
            }
            thread::sleep(AIM_INTERVAL);
        };
        thread::sleep(kill.delay);
        let leader_of = |cell: u16| status.cells.iter().find(|it| it.cell == cell)?.leader;
        let mediator = match kill.aim {
            Aim::Source => leader_of(pending.from),
            Aim::Destination => leader_of(pending.to),
            Aim::Control => status.control.as_ref()?.leader,
        }?;
        Some(Role::Mediator.node(mediator))
    }
}

/// Count, median, p99 and maximum.
fn durations(mut all_ns: Vec<u64>) -> Durations {
    all_ns.sort_unstable();
    let at = |percentile| {
        let found = all_ns.get(rank(all_ns.len(), percentile) - 1);
        found.map(|ns| *ns as f64)
    };
    Durations {
        count: all_ns.len() as u64,
        median_ns: at(50.0),
        p99_ns: at(99.0),
        max_ns: at(100.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::Placement;
    use crate::place;
    use nm_model::link_transport::LinkTransport;
    use std::path::Path;

    fn network() -> Network {
        place::network(
            "1-1-3-1".parse().unwrap(),
            LinkTransport::Unix,
            Path::new("/s"),
            &Placement::default(),
        )
        .unwrap()
    }

    /// The same seed gives the same moves, at the rate, each to another cell than before.
    #[test]
    fn a_schedule_has_each_move_once_and_in_its_interval() {
        let network = network();
        let schedule = |seed| Schedule::new(&network, 10, 1200.0, 5.0, seed);
        let moves = |mut schedule: Schedule| {
            let mut all = vec![];
            for ms in 0..5_000 {
                for it in schedule.due(ms * 1_000_000) {
                    assert_eq!(schedule.cells[it.instrument as usize], it.from);
                    assert!(it.from != it.to && it.to < 3, "{it:?}");
                    schedule.cells[it.instrument as usize] = it.to;
                    // One in each 50 ms.
                    assert_eq!(ms.saturating_sub(1) / 50, all.len() as u64, "{it:?}");
                    all.push(it);
                }
            }
            assert!(schedule.is_done());
            all
        };
        let first = moves(schedule(1));
        assert_eq!(first.len(), 100);
        assert_eq!(first, moves(schedule(1)));
        assert_ne!(first, moves(schedule(2)));
    }

    /// After a wait, moves are due together, each of another instrument.
    #[test]
    fn moves_that_are_due_together_are_of_different_instruments() {
        let network = network();
        let mut schedule = Schedule::new(&network, 10, 60_000.0, 1.0, 7);
        let mut total = 0;
        while !schedule.is_done() {
            let due = schedule.due(1_000_000_000);
            let mut instruments: Vec<u32> = due.iter().map(|it| it.instrument).collect();
            instruments.sort_unstable();
            instruments.dedup();
            assert_eq!((instruments.len(), due.len()), (10, 10));
            total += due.len();
        }
        assert_eq!(total, 1_000);
    }

    #[test]
    fn durations_have_the_percentiles_of_all() {
        let of = durations((1..=1_000).rev().collect());
        let expected = (1_000, Some(500.0), Some(990.0), Some(1_000.0));
        assert_eq!((of.count, of.median_ns, of.p99_ns, of.max_ns), expected);
        assert_eq!(durations(vec![]), Durations::default());
    }
}
