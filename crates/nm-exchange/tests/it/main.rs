//! Tests of the exchange, in one binary.

mod book;
mod nodes;
mod quiet;
mod scenarios;
