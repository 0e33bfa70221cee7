//! Connections of accelerated programs as a table, a summary and JSON: what status and exit report
//! have in common.

use nm_lab::ledger::{Connection, Place};
use nm_report::table::{Table, Tone};
use nm_report::terminal::{Style, clean};
use nm_report::units;
use nm_ring::ledger::DirectionCounts;
use serde::Serialize;

use super::collector::Collected;

/// Columns that a table of connections takes at least.
const WIDTH_MIN: usize = 160;

/// One connection of one program.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// File name of the program.
    pub program: String,
    /// Process that used it last.
    pub pid: u32,
    /// Own address.
    pub local: String,
    /// Address of the other end.
    pub peer: String,
    /// Where its bytes go, or went last.
    pub place: &'static str,
    /// Why it is not, or not any more, in shared memory.
    pub why: Option<String>,
    /// Whether it is open.
    pub open: bool,
    /// What was sent.
    pub sent: Way,
    /// What was received.
    pub received: Way,
    /// Waits that slept in the kernel.
    pub sleeps: u64,
    /// Wake-ups of the other end.
    pub bells_rung: u64,
    /// Wake-ups by the other end.
    pub bells_heard: u64,
    /// Returns from shared memory to the kernel.
    pub fallbacks: u64,
}

/// One direction of a connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Way {
    pub memory_bytes: u64,
    pub memory_calls: u64,
    pub kernel_bytes: u64,
    pub kernel_calls: u64,
}

impl Way {
    fn new(flow: &DirectionCounts) -> Way {
        Way {
            memory_bytes: flow.memory_bytes,
            memory_calls: flow.memory_calls,
            kernel_bytes: flow.kernel_bytes,
            kernel_calls: flow.kernel_calls,
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
    /// A connection of `program`. Addresses and counts are claims of that program, so sums do not
    /// overflow and text is cleaned where it is shown.
    pub fn new(program: &str, connection: &Connection) -> Row {
        let address = |address: &Option<std::net::SocketAddr>| {
            address.map_or_else(|| "unknown".to_string(), |address| address.to_string())
        };
        let record = &connection.record;
        Row {
            program: clean(program),
            pid: record.pid,
            local: address(&record.local),
            peer: address(&record.peer),
            place: connection.place().words(),
            why: connection.why(),
            open: connection.is_open(),
            sent: Way::new(&record.outgoing),
            received: Way::new(&record.incoming),
            sleeps: record.outgoing.sleeps.saturating_add(record.incoming.sleeps),
            bells_rung: record.outgoing.doorbells,
            bells_heard: record.incoming.doorbells,
            fallbacks: connection.fallbacks(),
        }
    }
}

/// A table of connections: bytes and calls as sent and received together.
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
        "#bells",
        "#fall-backs",
    ];
    let mut table = Table::new("connections", &titles);
    for row in rows {
        let sum = |a: u64, b: u64| units::count(a.saturating_add(b));
        let is_moved = row.place == Place::Memory.words();
        table.push(
            if is_moved { Tone::Good } else { Tone::Plain },
            vec![
                row.program.clone(),
                row.pid.to_string(),
                row.local.clone(),
                row.peer.clone(),
                row.place.to_string(),
                row.why.clone().unwrap_or_default(),
                units::count(row.sent.bytes()),
                units::count(row.received.bytes()),
                sum(row.sent.calls(), row.received.calls()),
                sum(row.sent.kernel_calls, row.received.kernel_calls),
                units::count(row.sleeps),
                sum(row.bells_rung, row.bells_heard),
                units::count(row.fallbacks),
            ],
        );
    }
    table.drop_empty(&["why", "sleeps", "bells", "fall-backs"]);
    // Rows that are cut up help nobody: better too wide than that.
    table.to_text(&Style { width: style.width.max(WIDTH_MIN), ..*style })
}

/// The exit report.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Every TCP socket, in the order of the programs.
    pub sockets: Vec<Row>,
    /// How many moved to shared memory.
    pub moved: usize,
    /// Share of all bytes that went through shared memory; absent without bytes.
    pub share_in_memory: Option<f64>,
    /// Programs whose sockets are not listed, because there were too many.
    pub programs_left_out: usize,
    /// Whether the library was put in front of the program.
    pub preloaded: bool,
}

impl Report {
    /// What the ledgers of a program and its children tell.
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
        let ways = || sockets.iter().flat_map(|row| [row.sent, row.received]);
        let all: u64 = ways().map(|way| way.bytes()).fold(0, u64::saturating_add);
        let memory: u64 = ways().map(|way| way.memory_bytes).fold(0, u64::saturating_add);
        let has_moved = |row: &&Row| row.sent.memory_calls > 0 || row.received.memory_calls > 0;
        Report {
            moved: sockets.iter().filter(has_moved).count(),
            share_in_memory: (all > 0).then(|| memory as f64 / all as f64),
            programs_left_out: collected.left_out,
            sockets,
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
                "the program was not accelerated, so nothing is known of its sockets".to_string()
            }
            0 => "no TCP socket was connected by way of the accelerator".to_string(),
            n => {
                let share = self.share_in_memory.map_or_else(
                    || "no bytes were moved".to_string(),
                    |share| format!("{} of the bytes", units::percent(share)),
                );
                let sockets = units::plural(n, "TCP socket", "TCP sockets");
                format!("{sockets}, {} in shared memory ({share})", self.moved)
            }
        };
        if self.programs_left_out > 0 {
            let programs = units::plural(self.programs_left_out, "program is", "programs are");
            text += &format!("; {programs} not listed");
        }
        text.push('\n');
        text
    }
}
