//! Numbers in, numbers with intervals out: summary, intervals, comparison, drift, outliers.
//!
//! Two levels, kept apart. Samples inside one round are many, autocorrelated and share the round's
//! luck: [`summary`] describes them exactly. Rounds are few and independent: every claim that one
//! thing is faster than another ([`mod@compare`]) or that a figure is so-and-so sure ([`rounds`])
//! rests on rounds alone.
//!
//! Everything here is deterministic: the same input and seed give the same output. Nothing reads a
//! clock, nothing prints, and no input makes anything panic.

#![forbid(unsafe_code)]

pub mod bootstrap;
pub mod compare;
pub mod describe;
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
pub mod summary;

mod doubts;

pub use compare::{Found, Ratio, compare, holm};
pub use rounds::estimate;
pub use summary::{Sample, summarise};
