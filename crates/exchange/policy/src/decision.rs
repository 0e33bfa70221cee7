//! What a policy decides, and why, as one sentence with the numbers.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::reports::{CellId, InstrumentId, SiteId};

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Action {
    /// A spare cell becomes active.
    Activate {
        /// Which.
        cell: CellId,
    },
    /// An active cell without instruments becomes a spare.
    Retire {
        /// Which.
        cell: CellId,
    },
    /// An active cell is to be emptied, and then retired. Nothing has to be done for it yet: its
    /// moves and its retirement are decisions of their own.
    Empty {
        /// Which.
        cell: CellId,
    },
    /// An active cell that was to be emptied is kept active. Nothing has to be done for it.
    Keep {
        /// Which.
        cell: CellId,
    },
    /// An instrument is moved to another active cell.
    Move {
        /// Which.
        instrument: InstrumentId,
        /// Its new cell.
        to: CellId,
    },
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Action::Activate { cell } => write!(f, "activate cell {cell}"),
            Action::Retire { cell } => write!(f, "retire cell {cell}"),
            Action::Empty { cell } => write!(f, "empty cell {cell}"),
            Action::Keep { cell } => write!(f, "keep cell {cell}"),
            Action::Move { instrument, to } => {
                write!(f, "move instrument {instrument} to cell {to}")
            }
        }
    }
}

/// A decision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Decision {
    /// What is to be done.
    pub action: Action,
    /// Why.
    pub reason: DecisionReason,
}

/// Why something was decided. Rates and loads are per second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum DecisionReason {
    /// Resizer: more requests than the active cells may have.
    RateAboveUpper {
        /// All requests.
        total_per_s: f64,
        /// Active cells.
        active: usize,
        /// Most requests of a cell.
        upper_per_s: f64,
        /// Active cells that are needed.
        needed: usize,
    },
    /// Resizer: the predicted ES10 is above its limit.
    Es10AboveLimit {
        /// The prediction.
        predicted_us: f64,
        /// The limit.
        limit_us: f64,
        /// Mean utilisation of the active cells, from 0 to 1, as it was extrapolated.
        utilisation: f64,
        /// Active cells.
        active: usize,
        /// Active cells that are needed.
        needed: usize,
    },
    /// Resizer: fewer active cells than the settings allow.
    TooFewActive {
        /// Active cells.
        active: usize,
        /// Fewest.
        min: usize,
    },
    /// Resizer: fewer requests than the active cells are worth.
    RateBelowLower {
        /// All requests.
        total_per_s: f64,
        /// Active cells.
        active: usize,
        /// Fewest requests of a cell.
        lower_per_s: f64,
        /// Active cells that are needed.
        needed: usize,
    },
    /// Resizer: more active cells than the settings allow.
    TooManyActive {
        /// Active cells.
        active: usize,
        /// Most.
        max: usize,
    },
    /// Resizer: the instrument's cell is being emptied.
    CellEmptied {
        /// Its cell.
        from: CellId,
        /// The new cell.
        to: CellId,
        /// Requests that the new cell then has.
        to_per_s: f64,
        /// Most requests of a cell.
        upper_per_s: f64,
    },
    /// Placement: most requests for the instrument come from another site.
    CloserToFlow {
        /// The site of its cell.
        from_site: SiteId,
        /// The site that sends most.
        to_site: SiteId,
        /// Requests from there.
        to_site_per_s: f64,
        /// All requests for it.
        total_per_s: f64,
        /// Mean latency between origin and cell now, in µs.
        before_us: f64,
        /// The same after the move.
        after_us: f64,
    },
    /// Balancer: the instrument's cell has more load than its share.
    CellHot {
        /// The hot cell.
        hot: CellId,
        /// Its load.
        hot_per_s: f64,
        /// The high watermark.
        high_per_s: f64,
        /// The cell with less load.
        cold: CellId,
        /// Its load.
        cold_per_s: f64,
        /// Load of the instrument.
        load_per_s: f64,
        /// Whether the cold cell has so little load that the balancer did not wait.
        is_emergency: bool,
    },
    /// Balancer: no single move helps, but several together do.
    Exchange {
        /// The hot cell.
        hot: CellId,
        /// Its load.
        hot_per_s: f64,
        /// The high watermark.
        high_per_s: f64,
        /// Cells that exchange instruments.
        cells: usize,
        /// Moves of the exchange.
        moves: usize,
        /// Largest load of these cells after it.
        after_per_s: f64,
    },
}

impl fmt::Display for DecisionReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            DecisionReason::RateAboveUpper { .. }
            | DecisionReason::Es10AboveLimit { .. }
            | DecisionReason::TooFewActive { .. }
            | DecisionReason::RateBelowLower { .. }
            | DecisionReason::TooManyActive { .. } => self.write_size(f),
            DecisionReason::CellEmptied { .. }
            | DecisionReason::CloserToFlow { .. }
            | DecisionReason::CellHot { .. }
            | DecisionReason::Exchange { .. } => self.write_move(f),
        }
    }
}

impl DecisionReason {
    /// Why the number of active cells changes.
    fn write_size(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            DecisionReason::RateAboveUpper { total_per_s, active, upper_per_s, needed } => write!(
                f,
                "{} had {total_per_s:.1} requests/s, more than {upper_per_s:.1} each: {} needed",
                cells(active),
                verb(needed)
            ),
            DecisionReason::Es10AboveLimit {
                predicted_us,
                limit_us,
                utilisation,
                active,
                needed,
            } => write!(
                f,
                "ES10 on {} is predicted to be {:.2} ms at {:.0} % utilisation, above the limit \
                 of {:.2} ms: {} needed",
                cells(active),
                predicted_us / 1e3,
                utilisation * 100.0,
                limit_us / 1e3,
                verb(needed)
            ),
            DecisionReason::TooFewActive { active, min } => {
                let verb = if active == 1 { "is" } else { "are" };
                write!(f, "{} {verb} up, at least {min} must be", cells(active))
            }
            DecisionReason::RateBelowLower { total_per_s, active, lower_per_s, needed } => write!(
                f,
                "{} had {total_per_s:.1} requests/s, fewer than {lower_per_s:.1} each: {} enough",
                cells(active),
                verb(needed)
            ),
            DecisionReason::TooManyActive { active, max } => {
                write!(f, "{active} cells are active, at most {max} may be")
            }
            _ => self.write_move(f),
        }
    }

    /// Why an instrument is moved.
    fn write_move(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            DecisionReason::CellEmptied { from, to, to_per_s, upper_per_s } => write!(
                f,
                "cell {from} is emptied before it is retired; cell {to} then has {to_per_s:.1} \
                 requests/s of at most {upper_per_s:.1}"
            ),
            DecisionReason::CloserToFlow {
                from_site,
                to_site,
                to_site_per_s,
                total_per_s,
                before_us,
                after_us,
            } => write!(
                f,
                "site {to_site} sends {to_site_per_s:.1} of {total_per_s:.1} requests/s; away from \
                 site {from_site} their mean latency to the cell falls from {before_us:.0} to \
                 {after_us:.0} us"
            ),
            DecisionReason::CellHot {
                hot,
                hot_per_s,
                high_per_s,
                cold,
                cold_per_s,
                load_per_s,
                is_emergency,
            } => {
                let urgency = if is_emergency { ", less than two thirds of that" } else { "" };
                write!(
                    f,
                    "cell {hot} has a load of {hot_per_s:.1}/s, above the high watermark of \
                     {high_per_s:.1}/s, and cell {cold} one of {cold_per_s:.1}/s{urgency}; \
                     {load_per_s:.1}/s move"
                )
            }
            DecisionReason::Exchange { hot, hot_per_s, high_per_s, cells, moves, after_per_s } => {
                write!(
                    f,
                    "cell {hot} has a load of {hot_per_s:.1}/s, above the high watermark of \
                     {high_per_s:.1}/s, and no single move helps; {moves} moves among {cells} \
                     cells leave at most {after_per_s:.1}/s"
                )
            }
            _ => self.write_size(f),
        }
    }
}

/// So many active cells, in words.
fn cells(count: usize) -> String {
    if count == 1 { "1 active cell".to_string() } else { format!("{count} active cells") }
}

/// A count with its verb.
fn verb(count: usize) -> String {
    if count == 1 { "1 is".to_string() } else { format!("{count} are") }
}
