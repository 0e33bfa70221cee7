//! The fuzz targets: plain functions of any bytes, which must neither panic nor violate what they
//! assert, and valid bytes to begin from.
//!
//! `cargo xtask fuzz` builds and runs all of them, or one with `--only`.

mod agent;
mod client;
mod epoll_set;
mod feed;
mod files;
mod fix;
mod frames;
mod memory;
mod messages;
mod ouch;
mod sockets;
mod text;

pub use agent::agent_lines;
pub use client::client;
pub use epoll_set::epoll_set;
pub use feed::feed;
pub use files::journal;
pub use fix::fix;
pub use frames::xdp_frames;
pub use memory::{ledger_view, pipe};
pub use messages::messages;
pub use ouch::ouch;
pub use sockets::rendezvous;
pub use text::{importers, plan, result};

/// A target: what is called with any bytes, and valid bytes for it.
pub struct Target {
    /// Its name, which is also that of the folder with its corpus.
    pub name: &'static str,
    /// Panics if something is wrong.
    pub run: fn(&[u8]),
    /// Inputs to begin from.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "agent_lines", run: agent_lines, seeds: agent::seeds },
    Target { name: "book", run: book, seeds: random },
    Target { name: "client", run: client, seeds: client::seeds },
    Target { name: "codec", run: codec, seeds: codec_seeds },
    Target { name: "epoll_set", run: epoll_set, seeds: random },
    Target { name: "feed", run: feed, seeds: feed::seeds },
    Target { name: "fix", run: fix, seeds: fix::seeds },
    Target { name: "importers", run: importers, seeds: text::importer_seeds },
    Target { name: "journal", run: journal, seeds: files::seeds },
    Target { name: "ledger_view", run: ledger_view, seeds: random },
    Target { name: "messages", run: messages, seeds: messages::seeds },
    Target { name: "ouch", run: ouch, seeds: ouch::seeds },
    Target { name: "pipe", run: pipe, seeds: random },
    Target { name: "plan", run: plan, seeds: text::plan_seeds },
    Target { name: "rendezvous", run: rendezvous, seeds: random },
    Target { name: "replica_connection", run: replica_connection, seeds: connection_seeds },
    Target { name: "result", run: result, seeds: text::result_seeds },
    Target { name: "xdp_frames", run: xdp_frames, seeds: frames::seeds },
];

/// Most random seeds.
const SEEDS: u64 = 8;

/// Bytes that mean something to targets that take them as a sequence of operations.
fn random() -> Vec<Vec<u8>> {
    (0..SEEDS).map(|seed| nm_book::testing::seeded(seed).take(600).collect()).collect()
}

/// Commands: the fast book must behave as the reference book, and both stay consistent.
pub fn book(bytes: &[u8]) {
    nm_book::testing::differ(bytes.iter().copied(), 48, usize::MAX);
}

/// Everything that the exchange decodes: orders, events, frames, batches, books, cells, client
/// logs, flows, network and hosts files.
pub fn codec(bytes: &[u8]) {
    nm_run::testing::codec(bytes);
}

fn codec_seeds() -> Vec<Vec<u8>> {
    (0..SEEDS).flat_map(nm_run::testing::samples).collect()
}

/// The stream of a connection from another replica.
pub fn replica_connection(bytes: &[u8]) {
    nm_replica::testing::connection(bytes);
}

fn connection_seeds() -> Vec<Vec<u8>> {
    nm_replica::testing::connection_samples()
}
