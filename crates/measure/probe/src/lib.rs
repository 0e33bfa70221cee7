//! The probes: ping-pong, stream and request-response, where a transport and a clock become
//! samples; [`jitter`] and [`compute`] measure the processor alone.
//!
//! An [`Endpoint`] does one end of a [`Task`](nm_model::agent::Task): listen, connect, run. It uses
//! the loops, each of which runs over any transport:
//!
//! - [`closed`] sends the next request after the response (ping-pong and closed-loop
//!   request-response);
//! - [`open`] sends requests on a schedule;
//! - [`serve`] is the end that responds to both;
//! - [`stream`] has the flows.
//!
//! The loops allocate nothing and make no system call but the transport's own; a test counts both.

#![forbid(unsafe_code)]

pub mod closed;
pub mod compute;
pub mod control;
mod culprit;
pub mod endpoint;
pub mod error;
pub mod gap_lengths;
pub mod gap_loop;
pub mod jitter;
mod jitter_threads;
pub mod latency;
mod median;
pub mod open;
pub mod pinned_thread;
pub mod placement;
pub mod sequence;
pub mod serve;
pub mod start_gate;
pub mod stream;

pub use control::Control;
pub use endpoint::Endpoint;
pub use error::ProbeError;
