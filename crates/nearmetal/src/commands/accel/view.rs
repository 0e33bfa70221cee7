//! Connections of accelerated programs as a table, and the exit report.

use nm_lab::ledger::Benefit;
use nm_report::style::{Style, Tone};
use nm_report::table::{Column, Table};
use nm_report::units;
use nm_sys::hostfiles::HostFiles;
use schemars::JsonSchema;
use serde::Serialize;

use crate::document::Document;

use super::collector::Collected;
use super::namespaces;
use super::row::{Row, Traffic, name_reasons_of_peers};
use super::summary::Summary;

/// Least width of a table of connections, columns.
const WIDTH_MIN: usize = 160;

/// Why there may be no sockets in a report.
const NO_SOCKETS: &str = "the program made none, or the part that makes them ran without the \
    library (`nearmetal accel explain` shows why)";

/// A table of connections; calls are those of both directions together.
pub fn table(rows: &[Row], style: &Style) -> String {
    let titles = [
        Column::text("program"),
        Column::figure("pid"),
        Column::figure("local"),
        Column::figure("peer"),
        Column::text("verdict"),
        Column::figure("bytes sent"),
        Column::figure("received"),
        Column::figure("calls"),
        Column::figure("by kernel"),
        Column::figure("spins in vain").optional(),
        Column::figure("sleeps").optional(),
        Column::figure("wake-ups").optional(),
        Column::figure("fallbacks").optional(),
        Column::figure("rejoins").optional(),
    ];
    let mut table = Table::new("connections", titles);
    for row in rows {
        let sum = |a: u64, b: u64| units::count(a.saturating_add(b));
        table.push(
            if row.benefit == Benefit::Gains { Tone::Good } else { Tone::Plain },
            vec![
                row.program.clone(),
                row.pid.to_string(),
                row.local.clone(),
                row.peer.clone(),
                row.verdict.clone(),
                units::count(row.sent.bytes()),
                units::count(row.received.bytes()),
                sum(row.sent.calls(), row.received.calls()),
                sum(row.sent.kernel_calls, row.received.kernel_calls),
                units::count(row.failed_spins),
                units::count(row.sleeps),
                sum(row.wakeups_sent, row.wakeups_received),
                units::count(row.fallbacks),
                units::count(row.rejoins),
            ],
        );
    }
    table.drop_empty();
    // Wrapped rows are unreadable: a line wider than the terminal is better.
    table.to_text(&Style { width: style.width.max(WIDTH_MIN), ..*style })
}

/// Short connections whose bytes all went through the kernel, and of which sums were kept only.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct NotListed {
    pub connections: u64,
    pub sent: Traffic,
    pub received: Traffic,
    /// Connections that were not counted, or not to their end, because their process had too many.
    pub left_out: u64,
}

impl NotListed {
    fn of(collected: &Collected) -> NotListed {
        let mut sums = NotListed::default();
        for ledger in &collected.ledgers {
            let reclaimed = ledger.reclaimed();
            sums.connections = sums.connections.saturating_add(reclaimed.connections);
            sums.sent.add(&Traffic::new(&reclaimed.outgoing));
            sums.received.add(&Traffic::new(&reclaimed.incoming));
            sums.left_out = sums.left_out.saturating_add(ledger.left_out());
        }
        sums
    }
}

/// Says how many connections were left to the kernel without being counted.
pub fn left_out(connections: u64) -> String {
    let count = usize::try_from(connections).unwrap_or(usize::MAX);
    let more = units::plural(count, "more connection", "more connections");
    format!("{more} left to the kernel and not counted, because the process had too many")
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
    /// Verdicts, waits and shares of the listed sockets.
    pub summary: Summary,
    /// Programs whose sockets are not listed, because there were too many.
    pub programs_left_out: usize,
    /// Whether the library was preloaded into the program.
    pub preloaded: bool,
    /// Why no socket is listed, as far as that is known.
    pub cause: Option<String>,
}

impl Document for Report {
    const NAME: &'static str = "accel-report";
}

impl Report {
    /// The report of the ledgers of a program and its child processes.
    pub fn new(collected: &Collected, preloaded: bool, cause: Option<String>) -> Report {
        let mut sockets: Vec<Row> = collected
            .ledgers
            .iter()
            .flat_map(|ledger| {
                let program = ledger.program();
                let rows = ledger.connections();
                rows.iter().map(|connection| Row::new(&program, connection)).collect::<Vec<_>>()
            })
            .collect();
        name_reasons_of_peers(&mut sockets);
        namespaces::explain(&HostFiles::default(), &mut sockets);
        let not_listed = NotListed::of(collected);
        let directions = || {
            let listed = sockets.iter().flat_map(|row| [row.sent, row.received]);
            listed.chain([not_listed.sent, not_listed.received])
        };
        let all: u64 = directions().map(|traffic| traffic.bytes()).fold(0, u64::saturating_add);
        let memory: u64 =
            directions().map(|traffic| traffic.memory_bytes).fold(0, u64::saturating_add);
        Report {
            moved: sockets.iter().filter(|row| row.was_in_memory()).count(),
            summary: Summary::of(&sockets),
            share_in_memory: (all > 0).then(|| memory as f64 / all as f64),
            programs_left_out: collected.dropped,
            cause: cause.filter(|_| sockets.is_empty()),
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
            0 => {
                let cause = self.cause.as_deref().unwrap_or(NO_SOCKETS);
                format!("no TCP socket was connected through the accelerator: {cause}")
            }
            n => {
                let sockets = units::plural(n, "TCP socket", "TCP sockets");
                self.summary.headline(self.share_in_memory, &sockets)
            }
        };
        if self.not_listed.connections > 0 {
            let count = usize::try_from(self.not_listed.connections).unwrap_or(usize::MAX);
            let more = units::plural(count, "more short connection", "more short connections");
            let bytes =
                self.not_listed.sent.bytes().saturating_add(self.not_listed.received.bytes());
            text += &format!("; {more} of {} bytes on the kernel, not listed", units::count(bytes));
        }
        if self.not_listed.left_out > 0 {
            text += &format!("; {}", left_out(self.not_listed.left_out));
        }
        if self.programs_left_out > 0 {
            let programs = units::plural(self.programs_left_out, "program is", "programs are");
            text += &format!("; {programs} not listed");
        }
        text.push('\n');
        text += &self.summary.details();
        text
    }
}
