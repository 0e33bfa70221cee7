//! Tests across the files of the crate: known vectors, false alarms and power, complete series.

mod calibration;
mod change_calibration;
mod claims;
mod gate_calibration;
mod rounds;
mod vectors;
