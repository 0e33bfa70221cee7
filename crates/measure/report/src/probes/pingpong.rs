//! What the reports say of ping-pong alone: the matrix of stacks and environments, and the text
//! form of another tool.

pub mod matrix;
pub mod sfnt;

use nm_model::result::Statistic;

/// Round trips, the one that names a stack first.
pub(crate) const ROUND_TRIPS: &[Statistic] = &[Statistic::HalfRoundTrip, Statistic::RoundTrip];
