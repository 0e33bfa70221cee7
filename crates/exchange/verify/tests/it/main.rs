//! Tests of verification, in one binary.

mod folders;
mod lies;
mod moved;
