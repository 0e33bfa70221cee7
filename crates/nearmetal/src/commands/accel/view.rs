//! Connections of accelerated programs as a table, a summary and JSON, for `status` and the exit
//! report.

use nm_lab::ledger::{Connection, DataPath};
use nm_report::style::{Style, Tone, clean};
use nm_report::table::Table;
use nm_report::units;
use nm_ring::ledger::DirectionCounts;
use schemars::JsonSchema;
use serde::Serialize;

use crate::document::Document;

use super::collector::Collected;

/// Least width of a table of connections, columns.
const WIDTH_MIN: usize = 160;

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
    /// Whether it is open.
    pub open: bool,
    pub sent: Traffic,
    pub received: Traffic,
    /// Waits that slept in the kernel.
    pub sleeps: u64,
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
    fn new(flow: &DirectionCounts) -> Traffic {
        Traffic {
            memory_bytes: flow.memory_bytes,
            memory_calls: flow.memory_calls,
            kernel_bytes: flow.kernel_bytes,
            kernel_calls: flow.kernel_calls,
        }
    }

    fn add(&mut self, other: &Traffic) {
        for (sum, more) in [
            (&mut self.memory_bytes, other.memory_bytes),
            (&mut self.memory_calls, other.memory_calls),
            (&mut self.kernel_bytes, other.kernel_bytes),
            (&mut self.kernel_calls, other.kernel_calls),
        ] {
            *sum = sum.saturating_add(more);
        }
    }

    fn bytes(&self) -> u64 {
        self.memory_bytes.saturating_add(self.kernel_bytes)
    }

    fn calls(&self) -> u64 {
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
        Row {
            program: clean(program),
            pid: record.pid,
            local: address(&record.local),
            peer: address(&record.peer),
            path: connection.path().name(),
            reason: connection.kernel_reason(),
            open: connection.is_open(),
            sent: Traffic::new(&record.outgoing),
            received: Traffic::new(&record.incoming),
            sleeps: record.outgoing.sleeps.saturating_add(record.incoming.sleeps),
            wakeups_sent: record.outgoing.wakeups,
            wakeups_received: record.incoming.wakeups,
            fallbacks: connection.fallbacks(),
            rejoins: connection.rejoins(),
        }
    }
}

/// A table of connections; calls are those of both directions together.
pub fn table(rows: &[Row], style: &Style) -> String {
    let titles = [
        "program",
        "#pid",
        "#local",
        "#peer",
        "where",
        "why",
        "#bytes sent",
        "#received",
        "#calls",
        "#by kernel",
        "#sleeps",
        "#wake-ups",
        "#fallbacks",
        "#rejoins",
    ];
    let mut table = Table::new("connections", &titles);
    for row in rows {
        let sum = |a: u64, b: u64| units::count(a.saturating_add(b));
        let is_in_memory = row.path == DataPath::SharedMemory.name();
        table.push(
            if is_in_memory { Tone::Good } else { Tone::Plain },
            vec![
                row.program.clone(),
                row.pid.to_string(),
                row.local.clone(),
                row.peer.clone(),
                row.path.to_string(),
                row.reason.clone().unwrap_or_default(),
                units::count(row.sent.bytes()),
                units::count(row.received.bytes()),
                sum(row.sent.calls(), row.received.calls()),
                sum(row.sent.kernel_calls, row.received.kernel_calls),
                units::count(row.sleeps),
                sum(row.wakeups_sent, row.wakeups_received),
                units::count(row.fallbacks),
                units::count(row.rejoins),
            ],
        );
    }
    table.drop_empty(&["why", "sleeps", "wake-ups", "fallbacks", "rejoins"]);
    // Wrapped rows are unreadable: a line wider than the terminal is better.
    table.to_text(&Style { width: style.width.max(WIDTH_MIN), ..*style })
}

/// Short connections whose bytes all went through the kernel, and of which sums were kept only.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct NotListed {
    pub connections: u64,
    pub sent: Traffic,
    pub received: Traffic,
}

impl NotListed {
    fn of(collected: &Collected) -> NotListed {
        let mut sums = NotListed::default();
        for ledger in &collected.ledgers {
            let reclaimed = ledger.reclaimed();
            sums.connections = sums.connections.saturating_add(reclaimed.connections);
            sums.sent.add(&Traffic::new(&reclaimed.outgoing));
            sums.received.add(&Traffic::new(&reclaimed.incoming));
        }
        sums
    }
}

/// The exit report.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Report {
    /// Every TCP socket but those of `not_listed`, in the order of the programs.
    pub sockets: Vec<Row>,
    /// Short connections that are not listed.
    pub not_listed: NotListed,
    /// How many used shared memory.
    pub moved: usize,
    /// Fraction of all bytes that went through shared memory; absent if there were none.
    pub share_in_memory: Option<f64>,
    /// Programs whose sockets are not listed, because there were too many.
    pub programs_left_out: usize,
    /// Whether the library was preloaded into the program.
    pub preloaded: bool,
}

impl Document for Report {
    const NAME: &'static str = "accel-report";
}

impl Report {
    /// The report of the ledgers of a program and its child processes.
    pub fn new(collected: &Collected, preloaded: bool) -> Report {
        let sockets: Vec<Row> = collected
            .ledgers
            .iter()
            .flat_map(|ledger| {
                let program = ledger.program();
                let rows = ledger.connections();
                rows.iter().map(|connection| Row::new(&program, connection)).collect::<Vec<_>>()
            })
            .collect();
        let not_listed = NotListed::of(collected);
        let directions = || {
            let listed = sockets.iter().flat_map(|row| [row.sent, row.received]);
            listed.chain([not_listed.sent, not_listed.received])
        };
        let all: u64 = directions().map(|traffic| traffic.bytes()).fold(0, u64::saturating_add);
        let memory: u64 =
            directions().map(|traffic| traffic.memory_bytes).fold(0, u64::saturating_add);
        let has_moved = |row: &&Row| row.sent.memory_calls > 0 || row.received.memory_calls > 0;
        Report {
            moved: sockets.iter().filter(has_moved).count(),
            share_in_memory: (all > 0).then(|| memory as f64 / all as f64),
            programs_left_out: collected.dropped,
            sockets,
            not_listed,
            preloaded,
        }
    }

    /// Table and summary line.
    pub fn to_text(&self, style: &Style) -> String {
        let mut text = String::new();
        if !self.sockets.is_empty() {
            text += &table(&self.sockets, style);
        }
        text += "nearmetal: ";
        text += &match self.sockets.len() {
            _ if !self.preloaded => {
                "the program was not accelerated, so its sockets were not recorded".to_string()
            }
            0 => "no TCP socket was connected through the accelerator".to_string(),
            n => {
                let share = self.share_in_memory.map_or_else(
                    || "no bytes were transferred".to_string(),
                    |share| format!("{} of the bytes", units::percent(share)),
                );
                let sockets = units::plural(n, "TCP socket", "TCP sockets");
                format!("{sockets}, {} in shared memory ({share})", self.moved)
            }
        };
        if self.not_listed.connections > 0 {
            let count = usize::try_from(self.not_listed.connections).unwrap_or(usize::MAX);
            let more = units::plural(count, "more short connection", "more short connections");
            let bytes =
                self.not_listed.sent.bytes().saturating_add(self.not_listed.received.bytes());
            text += &format!("; {more} of {} bytes on the kernel, not listed", units::count(bytes));
        }
        if self.programs_left_out > 0 {
            let programs = units::plural(self.programs_left_out, "program is", "programs are");
            text += &format!("; {programs} not listed");
        }
        text.push('\n');
        text
    }
}
