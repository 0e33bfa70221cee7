//! nearmetal: the command line.
fn main() {}
