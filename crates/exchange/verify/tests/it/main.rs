//! Tests of verification, in one binary.

mod folders;
mod moved;
