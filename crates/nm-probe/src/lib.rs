//! The probes: ping-pong, stream and request-response; a transport and a clock become samples.
//!
//! An [`Endpoint`] does one end of a [`Task`](nm_model::agent::Task): listen, connect, run. Below
//! it lie the loops, each over any transport: [`closed`] (the next request waits for the answer:
//! ping-pong and closed-loop request-response), [`open`] (requests leave on a schedule), [`serve`]
//! (the end that answers both) and [`stream`] (flows). The loops allocate nothing and make no
//! system call but the transport's own; a test counts both.

#![forbid(unsafe_code)]

pub mod closed;
pub mod control;
pub mod endpoint;
pub mod hot;
pub mod latency;
pub mod open;
pub mod placement;
pub mod serve;
pub mod stream;
pub mod tag;

pub use control::Control;
pub use endpoint::Endpoint;
