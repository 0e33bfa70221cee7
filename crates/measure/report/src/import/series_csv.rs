//! `series.csv` of a result folder: every figure of every round, one a line. Figures over all
//! rounds are made again from the rounds.

use nm_model::GuestExecution;
use nm_model::metric::Metric;
use nm_model::probe::{Case, ProbeKind};
use nm_model::result::{LatencyRound, PercentileValue, RoundData, Statistic, ThroughputRound};
use nm_model::stack::{Comparability, StackPair};

use super::builder::{ImportedRun, ResultBuilder, in_order, integer, number};
use super::fault::{ImportFault, fault};
use super::records::{Record, records};
use crate::csv::{ALL_ROUNDS, LONG_HEADING, is_detail, text_of};

/// Heading of the tables of earlier versions, which had no guests.
const HEADING_WITHOUT_GUESTS: &str =
    "environment,stack,probe,case,statistic,round,figure,value,unit";

/// Whether `text` begins with the heading of the long table.
pub(super) fn is_series(text: &str) -> bool {
    let heading = heading(text);
    heading == LONG_HEADING || heading == HEADING_WITHOUT_GUESTS
}

fn heading(text: &str) -> &str {
    text.trim_start().lines().next().unwrap_or_default().trim_end()
}

/// A round of a series while its lines are read.
struct OpenRound {
    /// Environment, stack, probe, case, statistic and round, as text.
    id: Vec<String>,
    /// What executed the guests, if there were guests.
    execution: Option<GuestExecution>,
    line: usize,
    data: RoundData,
}

pub(super) fn read(text: &str, import: &mut ResultBuilder) -> Result<(), ImportFault> {
    import.tool("nearmetal (series.csv)");
    let has_guests = heading(text) == LONG_HEADING;
    let mut open: Option<OpenRound> = None;
    for record in records(text)?.into_iter().skip(1) {
        let line = record.line;
        let mut texts: Vec<&str> = record.cells.iter().map(|cell| text_of(cell)).collect();
        if !has_guests {
            texts.push("");
        }
        let [id @ .., figure, _value, _unit, execution] = &texts[..] else {
            return fault(line, format!("too few cells: {}", heading(text)));
        };
        let [_, _, _, _, statistic, round] = id else {
            return fault(
                line,
                format!(
                    "{} cells instead of {}: {}",
                    record.cells.len(),
                    if has_guests { 10 } else { 9 },
                    heading(text)
                ),
            );
        };
        if *round == ALL_ROUNDS {
            continue;
        }
        let is_open = open.as_ref().is_some_and(|round| round.id == id);
        if !is_open {
            let statistic = known(line, statistic.parse::<Statistic>())?;
            let data = match statistic {
                Statistic::Throughput => RoundData::Throughput(ThroughputRound::default()),
                _ => RoundData::Latency(LatencyRound::default()),
            };
            let id = id.iter().map(|text| text.to_string()).collect();
            let execution = execution_of(line, execution)?;
            let new = OpenRound { id, execution, line, data };
            close(open.replace(new), import)?;
        }
        if let Some(round) = &mut open {
            add(&record, figure, &record.cells[7], &mut round.data)?;
        }
    }
    close(open, import)
}

fn known<T>(line: usize, word: Result<T, nm_model::words::UnknownWord>) -> Result<T, ImportFault> {
    word.or_else(|unknown| fault(line, unknown.to_string()))
}

/// Reads `EMULATED by tcg` or `real-kvm`; an empty cell is a series without guests.
fn execution_of(line: usize, cell: &str) -> Result<Option<GuestExecution>, ImportFault> {
    match cell.strip_prefix("EMULATED by ").unwrap_or(cell) {
        "" => Ok(None),
        name => known(line, name.parse()).map(Some),
    }
}

/// Sets the figure of one line.
fn add(record: &Record, figure: &str, value: &str, to: &mut RoundData) -> Result<(), ImportFault> {
    let line = record.line;
    let number = || number(line, figure, value);
    if is_detail(figure) {
        return Ok(());
    }
    match to {
        RoundData::Throughput(data) => match figure {
            "throughput" => data.total_gbps = number()?,
            "client cpu" => data.client_cpu = Some(number()?),
            "server cpu" => data.server_cpu = Some(number()?),
            _ => return fault(line, format!("`{figure}` is no figure of a stream")),
        },
        RoundData::Latency(data) => match figure {
            "count" => data.count = Some(integer(line, figure, value)?),
            "lost" => data.lost = integer(line, figure, value)?,
            // It is made of what each CPU lost, of which not all is in the table.
            "time-lost" => {}
            _ => match known(line, figure.parse::<Metric>())? {
                Metric::Mean => data.mean_ns = Some(number()?),
                Metric::Min => data.min_ns = Some(number()?),
                Metric::Max => data.max_ns = Some(number()?),
                Metric::Stddev => data.stddev_ns = Some(number()?),
                Metric::Es10 => data.es10_ns = Some(number()?),
                Metric::Rate => data.rate_per_s = Some(number()?),
                Metric::Median => data.percentiles.push(percentile(50.0, number()?)),
                Metric::Percentile(p) => data.percentiles.push(percentile(p, number()?)),
                Metric::Loss | Metric::TimeLost | Metric::Throughput => {
                    return fault(line, format!("`{figure}` is no latency"));
                }
            },
        },
    }
    Ok(())
}

/// A percentile of the table, which leaves out those with too few samples.
fn percentile(percentile: f64, value_ns: f64) -> PercentileValue {
    PercentileValue { percentile, value_ns: Some(value_ns), low_ns: None, high_ns: None }
}

/// Adds a round whose lines have all been read.
fn close(round: Option<OpenRound>, import: &mut ResultBuilder) -> Result<(), ImportFault> {
    let Some(OpenRound { id, execution, line, mut data }) = round else { return Ok(()) };
    let [environment, stack, probe, case, statistic, _] = &id[..] else { return Ok(()) };
    if let RoundData::Latency(data) = &mut data {
        data.percentiles = in_order(std::mem::take(&mut data.percentiles));
        if data.min_ns.zip(data.max_ns).is_some_and(|(min, max)| min > max) {
            return fault(line, "min is above max");
        }
    }
    import.environment(Some(environment));
    import.push(ImportedRun {
        stack: stack.clone(),
        probe: known(line, probe.parse::<ProbeKind>())?,
        case: known(line, case.parse::<Case>())?,
        statistic: known(line, statistic.parse::<Statistic>())?,
        // The stack of an exchange is its layout, which tells nothing about protocols.
        comparability: Comparability {
            execution,
            ..stack.parse::<StackPair>().map(|s| s.comparability()).unwrap_or_default()
        },
        settings: vec![],
        data,
        doubts: vec![],
    })
}
