//! What a program of a soak is to do, and how it is passed on to it.

use super::plan::{WAYS, Waiting};

pub(super) const SERVER: &str = "soak::server";
pub(super) const CLIENT: &str = "soak::client";
pub(super) const FOREIGN_CLIENT: &str = "soak::foreign_client";

/// What a program is to do.
pub(super) const WAITING: &str = "NEARMETAL_SOAK_WAITING";
pub(super) const SEED: &str = "NEARMETAL_SOAK_SEED";
pub(super) const PORT: &str = "NEARMETAL_SOAK_PORT";
pub(super) const ROUND: &str = "NEARMETAL_SOAK_ROUND";
/// A connection on which nothing comes for this long stands still.
pub(super) const LIMIT_MS: i32 = 60_000;

/// A soak that was killed leaves no programs behind.
pub(super) fn end_with_soak() {
    // SAFETY: plain numbers.
    let result = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    assert_eq!(result, 0, "a signal at the end of the parent");
}

pub(super) fn number(name: &str) -> u64 {
    let text = std::env::var(name).unwrap_or_default();
    if text.is_empty() { 0 } else { text.parse().unwrap() }
}

pub(super) fn waiting_of(name: &str) -> Waiting {
    WAYS.into_iter().find(|way| format!("{way:?}") == name).expect("a way of waiting")
}
