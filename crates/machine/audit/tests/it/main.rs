//! Tests of the checks: their declarations, and what they say of recorded trees.

mod lint;
mod trees;
