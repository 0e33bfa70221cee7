//! A node of the ring: one thread that sleeps until something is ready, handles all of it, and
//! writes once to each link.
//!
//! Each class of nodes has its folder. `control` and `replica` are what mediators and processors
//! have of the groups of replicas. `runtime` is the event loop around all of them, with links,
//! handshakes and reports.

mod control;
mod gateway;
mod mediator;
mod processor;
mod replica;
mod router;
mod runtime;
#[cfg(test)]
mod simulation;

pub use runtime::event::{NodeEvent, NodeSummary};
pub use runtime::event_loop::{run, run_with_limits};
pub use runtime::event_queue::EventQueue;
pub use runtime::groups;
pub use runtime::limits::Limits;
pub use runtime::warnings::Warnings;
