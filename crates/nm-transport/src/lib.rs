//! One trait, many ways to move bytes.
