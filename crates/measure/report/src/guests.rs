//! What a report shows of virtual machines. It has what each environment of guests was and ran on,
//! and what host and guest together show. It also has the cost of each step of virtualization, and
//! the flows of both directions as pairs.

mod steps;

use nm_model::finding::Finding;
use nm_model::guest::{GuestPlacement, GuestRecord};
use nm_model::{FindingStatus, RunResult};

use crate::facts::cpu_list;
use crate::style::Tone;
use crate::table::{Column, Table};
use crate::units;

pub use crate::probes::stream::pairs::pairs_table;
pub use steps::{Found, SIZE_BYTES, Step, steps, steps_table};

/// How to read the section.
pub const READING: &str = "Guests are pairs of virtual machines that nearmetal starts on this \
    host; the identical program measures in them and beside them. Execution says what ran their \
    code: only real-kvm says what virtualization costs here. Figures of other guests are marked \
    EMULATED: they show that a setup works, and are neither judged nor compared. Both times count \
    from the start of QEMU: until both guests were ready, and until their first figure was there.";

/// Whether a result has anything to show of guests.
pub fn has_any(result: &RunResult) -> bool {
    let is_of_guests = |series: &nm_model::Series| series.comparability.execution.is_some();
    !result.guests.is_empty() || result.series.iter().any(is_of_guests)
}

/// `EMULATED by tcg` or `real-kvm`.
fn execution(record: &GuestRecord) -> String {
    record.execution.mark().unwrap_or_else(|| record.execution.to_string())
}

/// What fits a terminal.
pub fn brief_table(result: &RunResult) -> Table {
    let titles = [
        Column::text("environment"),
        Column::text("execution"),
        Column::figure("guests"),
        Column::text("QEMU").leaves(2),
        Column::figure("CPUs"),
        Column::figure("MiB").leaves(1),
        Column::text("guest kernel").leaves(3),
        Column::figure("ready s"),
        Column::figure("first result s"),
    ];
    let mut table = Table::new("Virtual machines", titles);
    for record in &result.guests {
        table.push(
            tone(record),
            vec![
                record.environment.to_string(),
                execution(record),
                guests(record),
                record.qemu_version.clone(),
                record.cpus.to_string(),
                record.memory_mib.to_string(),
                record.kernel.clone(),
                seconds(Some(record.boot_ms)),
                seconds(record.first_result_ms),
            ],
        );
    }
    table
}

/// Everything that is recorded, a row for each environment.
pub fn full_table(result: &RunResult) -> Table {
    let titles = [
        Column::text("environment"),
        Column::text("execution"),
        Column::text("shown by"),
        Column::figure("guests"),
        Column::text("QEMU"),
        Column::text("machine"),
        Column::text("CPU model"),
        Column::figure("CPUs"),
        Column::text("memory"),
        Column::text("memory locked"),
        Column::text("guest kernel"),
        Column::figure("ready s"),
        Column::figure("first result s"),
        Column::text("placement").optional(),
        Column::text("notes").optional(),
    ];
    let mut table = Table::new("Virtual machines", titles);
    for record in &result.guests {
        let memory = format!("{} MiB of {} KiB pages", record.memory_mib, record.page_kib);
        table.push(
            tone(record),
            vec![
                record.environment.to_string(),
                execution(record),
                record.evidence.clone(),
                guests(record),
                record.qemu_version.clone(),
                record.machine.clone(),
                record.cpu_model.clone(),
                record.cpus.to_string(),
                memory,
                if record.is_memory_locked { "yes" } else { "no" }.to_string(),
                record.kernel.clone(),
                seconds(Some(record.boot_ms)),
                seconds(record.first_result_ms),
                placement(&record.placement),
                record.notes.join("; "),
            ],
        );
    }
    table.drop_empty();
    table
}

fn guests(record: &GuestRecord) -> String {
    (2 * record.pairs).to_string()
}

/// A time since the start of QEMU, s.
fn seconds(ms: Option<u64>) -> String {
    units::or_not_available(ms.map(|ms| ms as f64 / 1e3), |s| format!("{s:.2}"))
}

fn tone(record: &GuestRecord) -> Tone {
    if record.execution.is_emulated() { Tone::Unsure } else { Tone::Plain }
}

/// `client: virtual CPUs on 2-3, other threads on 1; server: …`.
fn placement(all: &[GuestPlacement]) -> String {
    let threads = |what: &str, cpus: &[u32]| match cpus {
        [] => format!("{what} not pinned"),
        cpus => format!("{what} on {}", cpu_list(cpus)),
    };
    let one = |placement: &GuestPlacement| {
        let side = placement.side.map_or("each".to_string(), |side| side.to_string());
        let side = placement.pair.map_or(side.clone(), |pair| format!("{side} {pair}"));
        let virtual_cpus = threads("virtual CPUs", &placement.virtual_cpus);
        format!("{side}: {virtual_cpus}, {}", threads("other threads", &placement.other_threads))
    };
    all.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// What host and guest together show, all but what is as it should be.
pub fn findings_table(result: &RunResult) -> Table {
    let titles = ["environment", "severity", "finding", "summary"].map(Column::text);
    let mut table = Table::new("What host and guest together show", titles);
    for record in &result.guests {
        for finding in record.findings.iter().filter(|finding| is_shown(finding)) {
            let tone = match finding.status {
                FindingStatus::Fail => Tone::Bad,
                _ => Tone::Unsure,
            };
            let severity = match finding.status {
                FindingStatus::Unknown => "unknown".to_string(),
                _ => finding.severity.to_string(),
            };
            table.push(
                tone,
                vec![
                    record.environment.to_string(),
                    severity,
                    finding.title.to_string(),
                    finding.summary.clone(),
                ],
            );
        }
    }
    table
}

fn is_shown(finding: &Finding) -> bool {
    matches!(finding.status, FindingStatus::Fail | FindingStatus::Unknown)
}

/// Number of findings that are as they should be, as a sentence; nothing if there are none.
pub fn passed_text(result: &RunResult) -> Option<String> {
    let all = result.guests.iter().flat_map(|record| &record.findings);
    let n_passed = all.filter(|finding| finding.status == FindingStatus::Pass).count();
    let checks = units::plural(n_passed, "check of host and guest", "checks of host and guest");
    (n_passed > 0).then(|| format!("{checks} found what should be."))
}
