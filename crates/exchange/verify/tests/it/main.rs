//! Tests of verification, in one binary.

mod moved;
mod verify;
