//! Tests across the files of the crate: known vectors, false alarms and power, complete series.

mod claims;
mod rounds;
mod vectors;
