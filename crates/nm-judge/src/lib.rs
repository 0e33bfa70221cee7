//! Targets, comparability and comparison: results become verdicts with reasons.
