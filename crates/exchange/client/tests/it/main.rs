//! A session against messages that a test writes.

mod python;
mod session;
mod state;
