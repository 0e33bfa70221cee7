//! Tests across the files of the crate: known vectors, false alarms and power, whole series.

mod claims;
mod rounds;
mod vectors;
