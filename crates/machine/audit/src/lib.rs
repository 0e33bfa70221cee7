//! The audit: what in the settings of a machine costs latency, and how to remove it.
//!
//! [`audit`] is a function of a [`Snapshot`] alone. So a snapshot can be taken on one machine and
//! audited on another, with the same bytes as a result. Each check is a declaration and a function
//! from the [`Machine`] to what was [`Observed`]. The declaration says what it is about, why it
//! matters, who says so, how it is fixed and how that is undone. What cannot be read is unknown,
//! never a pass.

#![forbid(unsafe_code)]

pub mod check;
pub mod checks;
pub mod machine;
pub mod observed;
mod order;
mod pair;

use nm_model::Snapshot;
use nm_model::finding::Audit;

pub use check::Check;
pub use machine::{Layer, Machine};
pub use observed::Observed;
pub use pair::{checks as pair_checks, join};

/// The findings about the machine of a snapshot: failed ones first, the most severe first, then in
/// the order of the checks.
pub fn audit(snapshot: &Snapshot) -> Audit {
    let machine = Machine::new(snapshot);
    order::finish(&machine, checks::findings(&machine))
}
