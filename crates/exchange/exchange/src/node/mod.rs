//! A node of the ring: one thread that sleeps until something is ready, handles all of it, and
//! writes once to each link.

mod acceptor;
mod authenticator;
mod behaviour;
mod cell_log;
mod cell_moves;
mod clients;
mod control;
mod event;
mod event_loop;
mod event_queue;
mod gateway;
pub mod groups;
mod hand_over;
mod limits;
mod links;
mod mediator;
#[cfg(test)]
mod moves_simulation;
mod peer;
mod pending;
mod processor;
mod replica;
mod reply_path;
mod resend_requests;
mod responses;
mod router;
mod warnings;
mod workload;

pub use event::{NodeEvent, NodeSummary};
pub use event_loop::{run, run_with_limits};
pub use event_queue::EventQueue;
pub use limits::Limits;
