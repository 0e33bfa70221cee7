//! Tests of the exchange, in one binary.

mod book;
mod quiet;
mod scenarios;
