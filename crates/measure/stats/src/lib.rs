//! Numbers in, numbers with intervals out: summary, intervals, comparison, drift, outliers.
//!
//! Two levels, kept apart. Samples inside one round are many and autocorrelated, and conditions of
//! the round affect all of them: [`summary`] describes them exactly. Rounds are few and
//! independent: every claim of a difference ([`mod@compare`]) and every interval of a figure
//! ([`rounds`]) is based on rounds alone.
//!
//! Everything here is deterministic: the same input and seed give the same output. Nothing reads a
//! clock, nothing prints, and no input causes a panic.

#![forbid(unsafe_code)]

pub mod bootstrap;
pub mod change;
pub mod compare;
pub mod describe;
pub mod experiment;
pub mod fisher;
pub mod histogram;
pub mod hodges_lehmann;
pub mod holm;
pub mod mann_kendall;
pub mod mann_whitney;
pub mod modes;
pub mod normal;
pub mod outliers;
pub mod quantile;
pub mod random;
pub mod rounds;
pub mod run_effect;
pub mod summary;

mod doubts;
mod note;
mod unit;
mod values;

pub use compare::{Claim, RoundsComparison, compare};
pub use holm::holm;
pub use rounds::estimate;
pub use summary::{Sample, summarise};
