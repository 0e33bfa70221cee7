//! Tests of the exchange, in one binary.

mod book;
mod control;
mod journal;
mod load;
mod nodes;
mod quiet;
mod replica;
mod scenarios;
mod verify;
