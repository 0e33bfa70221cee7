//! Tables that only the jitter probe has. They say what each CPU lost and to what, what the kernel
//! counted, and how long a message would have waited.

pub mod culprits;
#[cfg(test)]
pub(crate) mod fixture;
mod heat_map;
pub(crate) mod page;
mod totals;

use nm_model::RunResult;
use nm_model::probe::ProbeKind;
use nm_model::result::Series;

use crate::probes::section::Section;
use crate::style::Tone;
use crate::table::{Column, Table};
use crate::units::{self, LatencyUnit, NOT_AVAILABLE};
use crate::view;

pub use totals::CpuTotal;

/// CPUs that a table shows: those that lost most.
pub const CPUS_SHOWN_MAX: usize = 64;

/// Rows of interrupts that are named for a CPU.
const ROWS_NAMED: usize = 4;

/// How to read the tables.
pub const READING: &str = "A thread on each CPU only read the clock; a gap is a time in which it \
    could not. Preempted is time that other threads ran, by the scheduler's run delay. Interrupts \
    have a time only where the kernel accounts for it; else what is below the OS lies between two \
    figures: gaps for which there were no interrupts, and all that is not explained. A gap counts \
    for the culprit that took the largest part of it; a gap of which most has no name is \
    unexplained.";

/// The series of the jitter probe.
pub fn series(result: &RunResult) -> impl Iterator<Item = &Series> {
    result.series.iter().filter(|series| series.key.probe == ProbeKind::Jitter)
}

/// The section of a report.
pub(crate) fn section(result: &RunResult) -> Option<Section> {
    let tables: Vec<Table> = series(result).flat_map(tables).collect();
    let brief = summaries(result);
    let (anchor, title, reading) = ("jitter", "Jitter", Some(READING));
    (!tables.is_empty()).then_some(Section { anchor, title, reading, brief, tables })
}

/// The first tables of each series: what a terminal shows.
fn summaries(result: &RunResult) -> Vec<Table> {
    let of = |series| std::iter::once(summary(series)).chain(culprits::table(series));
    series(result).flat_map(of).filter(|table| !table.rows.is_empty()).collect()
}

/// All tables of a series.
pub fn tables(series: &Series) -> Vec<Table> {
    let more = [balance(series), counted(series), delays(series)];
    let first = std::iter::once(summary(series)).chain(culprits::table(series));
    first.chain(more).filter(|table| !table.rows.is_empty()).collect()
}

/// The CPUs to show in the order of their numbers, and how many there are.
fn shown(series: &Series) -> (Vec<CpuTotal<'_>>, usize) {
    let mut all = CpuTotal::of_series(series);
    let n_cpus = all.len();
    all.sort_by(|a, b| b.share(b.lost_ns()).total_cmp(&a.share(a.lost_ns())));
    all.truncate(CPUS_SHOWN_MAX);
    all.sort_by_key(|total| total.cpu);
    (all, n_cpus)
}

fn caption(series: &Series, what: &str, n_shown: usize, n_cpus: usize) -> String {
    let part = match n_shown < n_cpus {
        true => format!(", the {n_shown} of {n_cpus} CPUs that lost most"),
        false => String::new(),
    };
    let rounds = match series.rounds.len() {
        0 | 1 => String::new(),
        n => format!(", all {n} rounds together"),
    };
    let environment = view::marked(series, series.key.environment.as_str());
    format!("Jitter of {environment}: {what}{part}{rounds}")
}

fn text(total: &CpuTotal<'_>) -> String {
    total.cpu.to_string()
}

fn percent_column(
    totals: &[CpuTotal<'_>],
    of: impl Fn(&CpuTotal<'_>) -> Option<u64>,
) -> Vec<String> {
    let percent = |total: &CpuTotal<'_>| Some(100.0 * total.share(of(total)?));
    units::column(&totals.iter().map(percent).collect::<Vec<_>>(), 2, 4)
}

/// Gaps, lost time and its causes of each CPU.
fn summary(series: &Series) -> Table {
    let (totals, n_cpus) = shown(series);
    let medians = totals.iter().filter_map(|total| total.percentile(50.0));
    let unit = LatencyUnit::fitting(medians);
    let lengths = |of: &dyn Fn(&CpuTotal<'_>) -> Option<f64>| {
        unit.column(&totals.iter().map(of).collect::<Vec<_>>())
    };
    let per_s = |of: &dyn Fn(&CpuTotal<'_>) -> Option<u64>| {
        let rate = |total: &CpuTotal<'_>| Some(total.per_s(of(total)?));
        units::column(&totals.iter().map(rate).collect::<Vec<_>>(), 3, 1)
    };
    let threshold_ns = totals::rounds(series).map(|round| round.threshold_ns).min();
    let what = format!(
        "gaps of at least {} ns, lengths in {}, times in % of all time",
        threshold_ns.unwrap_or(0),
        unit.name()
    );
    let columns = vec![
        (Column::text("CPU"), totals.iter().map(text).collect()),
        (Column::figure("gaps /s"), per_s(&|total| Some(total.gaps()))),
        (Column::figure("p50").leaves(2), lengths(&|total| total.percentile(50.0))),
        (Column::figure("p99"), lengths(&|total| total.percentile(99.0))),
        (Column::figure("max"), lengths(&|total| Some(total.longest_ns() as f64))),
        (Column::figure("lost"), percent_column(&totals, |total| Some(total.lost_ns()))),
        (Column::figure("preempted"), percent_column(&totals, |total| total.preempted_ns())),
        (Column::figure("interrupts"), percent_column(&totals, |total| total.interrupts_ns())),
        (Column::figure("steal").leaves(3), percent_column(&totals, |total| total.steal_ns())),
        (Column::figure("below the OS"), totals.iter().map(below_text).collect()),
        (Column::figure("interrupts /s").leaves(1), per_s(&|total| total.interrupt_count())),
    ];
    Table::of_columns(caption(series, &what, totals.len(), n_cpus), columns)
}

/// What was lost below the system, %: one figure, or from what is certain to all that is not
/// explained.
fn below_text(total: &CpuTotal<'_>) -> String {
    let percent = |ns| units::significant(100.0 * total.share(ns), 2);
    let (certain_ns, most_ns) = (total.below_system_ns(), total.unexplained_time_ns());
    match total.interrupts_ns() {
        Some(_) => percent(most_ns),
        None if certain_ns == most_ns => percent(most_ns),
        None => format!("{} to {}", percent(certain_ns), percent(most_ns)),
    }
}

/// The balance of each CPU, in ns: its parts add up to the lost time.
fn balance(series: &Series) -> Table {
    let (totals, n_cpus) = shown(series);
    let step_ns = totals::rounds(series)
        .flat_map(|round| &round.cpus)
        .map(|cpu| cpu.balance.steal_step_ns)
        .max()
        .unwrap_or(0);
    let what = format!(
        "what explains the lost time, ns (steal is counted in steps of {})",
        units::latency(step_ns as f64)
    );
    let ns = |of: &dyn Fn(&CpuTotal<'_>) -> Option<i64>| -> Vec<String> {
        let cell = |ns: Option<i64>| ns.map_or(NOT_AVAILABLE.to_string(), |ns| ns.to_string());
        totals.iter().map(|total| cell(of(total))).collect()
    };
    let signed = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
    let columns = vec![
        (Column::text("CPU"), totals.iter().map(text).collect()),
        (Column::figure("lost"), ns(&|total| Some(signed(total.lost_ns())))),
        (Column::figure("run delay"), ns(&|total| total.run_delay_ns().map(signed))),
        (Column::figure("interrupts"), ns(&|total| total.interrupts_ns().map(signed))),
        (Column::figure("steal"), ns(&|total| total.steal_ns().map(signed))),
        (Column::figure("unexplained"), ns(&|total| Some(total.unexplained_ns()))),
        (
            Column::figure("certainly below the OS"),
            ns(&|total| Some(signed(total.below_system_ns()))),
        ),
        (
            Column::text("what is below"),
            totals.iter().map(|total| total.below_name().to_string()).collect(),
        ),
    ];
    Table::of_columns(caption(series, &what, totals.len(), n_cpus), columns)
}

/// What the kernel counted of each CPU and its thread.
fn counted(series: &Series) -> Table {
    let (totals, n_cpus) = shown(series);
    let count = |of: &dyn Fn(&CpuTotal<'_>) -> Option<u64>| -> Vec<String> {
        let cell = |n: Option<u64>| n.map_or(NOT_AVAILABLE.to_string(), units::count);
        totals.iter().map(|total| cell(of(total))).collect()
    };
    let rows = |total: &CpuTotal<'_>| {
        let rows = total.interrupt_rows().into_iter().take(ROWS_NAMED);
        let named = rows.map(|(name, n)| format!("{name} {}", units::count(n)));
        named.collect::<Vec<_>>().join(", ")
    };
    let columns = vec![
        (Column::text("CPU"), totals.iter().map(text).collect()),
        (Column::figure("gaps"), count(&|total| Some(total.gaps()))),
        (Column::figure("preempted gaps"), count(&|total| total.preempted_gaps())),
        (Column::figure("involuntary switches"), count(&|total| Some(total.switches()))),
        (Column::figure("page faults"), count(&|total| Some(total.minor_faults()))),
        (Column::figure("interrupts"), count(&|total| total.interrupt_count())),
        (
            Column::figure("firmware interrupts").optional(),
            count(&|total| total.firmware_interrupts()),
        ),
        (Column::text("most interrupts"), totals.iter().map(rows).collect()),
    ];
    let mut table =
        Table::of_columns(caption(series, "what was counted", totals.len(), n_cpus), columns);
    table.drop_empty();
    table
}

/// Delay of a message that arrives at a random time.
fn delays(series: &Series) -> Table {
    let (totals, n_cpus) = shown(series);
    let column = |percentile: f64| {
        let values: Vec<_> = totals.iter().map(|total| total.delay(percentile)).collect();
        let cell = |ns: &Option<f64>| match ns {
            Some(ns) if *ns <= 0.0 => "0".to_string(),
            ns => units::or_not_available(*ns, units::latency),
        };
        values.iter().map(cell).collect::<Vec<_>>()
    };
    let columns = vec![
        (Column::text("CPU"), totals.iter().map(text).collect()),
        (Column::figure("p99"), column(99.0)),
        (Column::figure("p99.9"), column(99.9)),
        (Column::figure("p99.99"), column(99.99)),
        (Column::figure("p99.999"), column(99.999)),
    ];
    let what = "delay of a message that arrives at a random time";
    Table::of_columns(caption(series, what, totals.len(), n_cpus), columns)
        .with_tones(totals.iter().map(|_| Tone::Plain))
}

/// The round that lost most, with its number.
pub fn worst_round(series: &Series) -> Option<(u32, &nm_model::jitter::JitterRound)> {
    let rounds = series.rounds.iter().filter_map(|round| {
        let data = view::latency_of(round)?;
        Some((round.round, data.jitter.as_deref()?))
    });
    let lost = |round: &(u32, &nm_model::jitter::JitterRound)| round.1.time_lost().unwrap_or(0.0);
    rounds.max_by(|a, b| lost(a).total_cmp(&lost(b)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nm_model::jitter::Balance;

    fn cell<'t>(table: &'t Table, row: usize, title: &str) -> &'t str {
        let at = table.columns.iter().position(|column| column.title == title);
        &table.rows[row].cells[at.unwrap_or_else(|| panic!("{title}: {table:?}"))]
    }

    #[test]
    fn parts_of_the_balance_add_up_in_the_table() {
        let result = fixture::result(2);
        let series = series(&result).next().unwrap();
        let table = balance(series);
        let number = |title| cell(&table, 1, title).parse::<i64>().unwrap();
        let parts = number("run delay") + number("steal") + number("unexplained");
        assert_eq!(cell(&table, 1, "interrupts"), NOT_AVAILABLE);
        assert_eq!(parts, number("lost"));
    }

    #[test]
    fn what_is_below_the_system_is_a_range_while_interrupts_have_no_time() {
        let mut result = fixture::result(1);
        let table = summary(series(&result).next().unwrap());
        assert_eq!(cell(&table, 1, "interrupts"), NOT_AVAILABLE);
        assert_eq!(cell(&table, 1, "below the OS"), "0.10 to 0.50");
        for cpu in fixture::cpus(&mut result) {
            let known = Balance { interrupts_ns: Some(4_000_000), ..cpu.balance };
            cpu.balance = known.of(cpu.lost_ns);
        }
        let table = summary(series(&result).next().unwrap());
        assert_eq!(cell(&table, 1, "interrupts"), "0.40");
        assert_eq!(cell(&table, 1, "below the OS"), "0.10");
    }

    #[test]
    fn the_cpus_that_lost_most_are_shown_of_many() {
        let mut result = fixture::result(1);
        let one = fixture::cpus(&mut result).next().unwrap().clone();
        let round = fixture::round(&mut result);
        round.cpus = (0..100)
            .map(|cpu| {
                let lost_ns = 1_000_000 * u64::from(cpu % 50);
                nm_model::jitter::CpuJitter { cpu, lost_ns, ..one.clone() }
            })
            .collect();
        let table = summary(series(&result).next().unwrap());
        assert_eq!(table.rows.len(), CPUS_SHOWN_MAX);
        assert!(table.caption.contains("the 64 of 100 CPUs that lost most"), "{}", table.caption);
        assert!(table.rows.iter().all(|row| row.cells[0].parse::<u32>().unwrap() % 50 >= 18));
    }

    #[test]
    fn several_rounds_are_summed_and_the_worst_is_drawn() {
        let mut result = fixture::result(3);
        let mut rounds = fixture::rounds(&mut result);
        rounds[1].cpus[0].lost_ns *= 100;
        let series = series(&result).next().unwrap();
        assert_eq!(worst_round(series).unwrap().0, 1);
        assert!(summary(series).caption.ends_with("all 3 rounds together"));
    }
}
