//! Hosts as trees of files: what is handed to guests, what is refused, what can run.

mod functions;
mod join;
mod kills;
mod plan;
mod refusals;
mod tree;
