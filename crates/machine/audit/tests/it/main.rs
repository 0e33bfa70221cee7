//! Tests of the checks: their declarations, and what they say of recorded trees.

mod fixes;
mod foreign;
mod lint;
mod tree;
mod trees;
