//! End-to-end tests: each runs the built binary as a user would.

mod exchange;
mod faults;
mod offline;
mod qualify;
mod stall;
mod standalone;
mod support;
