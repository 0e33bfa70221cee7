//! Tests of the replicated log, in one binary.

mod journal;
mod replica;
