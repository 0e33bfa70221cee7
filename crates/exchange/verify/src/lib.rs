//! Verification after a run: the network executed exactly what its clients' logs say.
//!
//! Client logs contain requests and replies, the replicas' journals the ordered requests.
//! `replay` applies the journals with the reference book and the fast one; `judge` compares the
//! results with the clients' logs. The checks do not rely on the code that ran: the order is that
//! in which clients sent, not the one that requests claim. A request that was sent after another
//! one had its reply must come after it. Each client's log must be one that a client can have
//! written (`history`). State hashes that replicas recorded
//! ([`nm_exchange::hashes`]) must equal those of the replay, and so must a replay from snapshots
//! (`cuts`). An instrument that moves between cells has one of them as its owner at any time, and
//! arrives as it left (`ownership`). Clients got the broadcasts that follow (`broadcasts`). Before
//! anything is replayed, each file is compared with the manifest that was made when the run ended
//! ([`recording`]).
#![forbid(unsafe_code)]

mod broadcasts;
mod client_logs;
mod cuts;
mod findings;
mod folder;
mod history;
mod judge;
mod ownership;
pub mod recording;
mod replay;
mod rules;

pub use client_logs::CLIENT_LOG_BYTES_MAX;
pub use cuts::Cuts;
pub use findings::{Findings, Verdict, Violation};
pub use folder::{folder, folder_cut};
pub use history::write_history;
