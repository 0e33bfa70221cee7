//! One connection of an accelerated program, with its counts and what shared memory does for it.

use std::collections::BTreeMap;

use nm_lab::ledger::{AT_THE_PEER, Benefit, Connection};
use nm_report::style::clean;
use nm_ring::ledger::DirectionCounts;
use schemars::JsonSchema;
use serde::Serialize;

/// What is shown for an address that is not known.
pub const UNKNOWN: &str = "unknown";

/// One connection of one program.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Row {
    /// File name of the program.
    pub program: String,
    /// Process that used it last.
    pub pid: u32,
    /// Own address.
    pub local: String,
    /// Address of the other end.
    pub peer: String,
    /// The data path of its bytes, now or last.
    #[serde(rename = "place")]
    pub path: &'static str,
    /// Why it does not, or no longer, use shared memory.
    #[serde(rename = "why")]
    pub reason: Option<String>,
    /// What shared memory does for it, in words.
    pub verdict: String,
    /// The same.
    #[serde(skip)]
    pub benefit: Benefit,
    /// Whether the reason is that its other end has an address of another host or namespace.
    #[serde(skip)]
    pub peer_is_elsewhere: bool,
    /// Whether it is open.
    pub open: bool,
    pub sent: Traffic,
    pub received: Traffic,
    /// Waits that slept in the kernel.
    pub sleeps: u64,
    /// Spins that ended without success.
    pub failed_spins: u64,
    /// Wake-ups sent to the peer.
    #[serde(rename = "bells_rung")]
    pub wakeups_sent: u64,
    /// Wake-ups received from the peer.
    #[serde(rename = "bells_heard")]
    pub wakeups_received: u64,
    /// Fallbacks from shared memory to the kernel.
    pub fallbacks: u64,
    /// Returns from the kernel to shared memory.
    pub rejoins: u64,
}

/// One direction of a connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Traffic {
    pub memory_bytes: u64,
    pub memory_calls: u64,
    pub kernel_bytes: u64,
    pub kernel_calls: u64,
}

impl Traffic {
    /// The counts of a direction.
    pub fn new(flow: &DirectionCounts) -> Traffic {
        Traffic {
            memory_bytes: flow.memory_bytes,
            memory_calls: flow.memory_calls,
            kernel_bytes: flow.kernel_bytes,
            kernel_calls: flow.kernel_calls,
        }
    }

    /// Adds another direction.
    pub fn add(&mut self, other: &Traffic) {
        for (sum, more) in [
            (&mut self.memory_bytes, other.memory_bytes),
            (&mut self.memory_calls, other.memory_calls),
            (&mut self.kernel_bytes, other.kernel_bytes),
            (&mut self.kernel_calls, other.kernel_calls),
        ] {
            *sum = sum.saturating_add(more);
        }
    }

    /// Bytes by either way.
    pub fn bytes(&self) -> u64 {
        self.memory_bytes.saturating_add(self.kernel_bytes)
    }

    /// Calls by either way.
    pub fn calls(&self) -> u64 {
        self.memory_calls.saturating_add(self.kernel_calls)
    }
}

impl Row {
    /// A connection of `program`. Addresses and counts come from that program and are not trusted:
    /// sums saturate, and text is cleaned where it is shown.
    pub fn new(program: &str, connection: &Connection) -> Row {
        let address = |address: &Option<std::net::SocketAddr>| {
            address.map_or_else(|| UNKNOWN.to_string(), |address| address.to_string())
        };
        let record = &connection.record;
        let (reason, benefit) = (connection.kernel_reason(), connection.benefit());
        Row {
            program: clean(program),
            pid: record.pid,
            local: address(&record.local),
            peer: address(&record.peer),
            path: connection.path().name(),
            verdict: verdict(benefit, reason.as_deref()),
            benefit,
            peer_is_elsewhere: connection.peer_is_elsewhere(),
            reason,
            open: connection.is_open(),
            sent: Traffic::new(&record.outgoing),
            received: Traffic::new(&record.incoming),
            sleeps: record.outgoing.sleeps.saturating_add(record.incoming.sleeps),
            failed_spins: record.outgoing.failed_spins.saturating_add(record.incoming.failed_spins),
            wakeups_sent: record.outgoing.wakeups,
            wakeups_received: record.incoming.wakeups,
            fallbacks: connection.fallbacks(),
            rejoins: connection.rejoins(),
        }
    }

    /// Gives a better reason.
    pub fn set_reason(&mut self, reason: String) {
        self.verdict = verdict(self.benefit, Some(&reason));
        self.reason = Some(reason);
    }

    /// Whether any byte was in shared memory.
    pub fn was_in_memory(&self) -> bool {
        self.sent.memory_calls > 0 || self.received.memory_calls > 0
    }
}

/// A reason of the other end is what that end says, if it is among `rows`: it knows more, such as
/// which option was set.
pub fn name_reasons_of_peers(rows: &mut [Row]) {
    let reasons: BTreeMap<(String, String), String> = rows
        .iter()
        .filter_map(|row| {
            let reason = row.reason.as_ref().filter(|reason| !reason.starts_with(AT_THE_PEER))?;
            Some(((row.local.clone(), row.peer.clone()), reason.clone()))
        })
        .collect();
    for row in rows {
        let is_of_peer = row.reason.as_ref().is_some_and(|it| it.starts_with(AT_THE_PEER));
        let ends = (row.peer.clone(), row.local.clone());
        if let Some(reason) = reasons.get(&ends).filter(|_| is_of_peer) {
            row.set_reason(format!("{AT_THE_PEER}{reason}"));
        }
    }
}

/// What shared memory does for a connection, in words.
fn verdict(benefit: Benefit, reason: Option<&str>) -> String {
    let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
    match benefit {
        Benefit::Gains => "gains".to_string(),
        Benefit::SavesLittle => {
            "saves little: most of its calls went through the kernel".to_string()
        }
        Benefit::CostsMore => "costs more than it saves: left on the kernel".to_string(),
        Benefit::NotYet => format!("on the kernel so far{reason}"),
        Benefit::None => format!("on the kernel{reason}"),
    }
}
