//! Sweeps as comma-separated tables: `sfnt/*.csv` of a result folder, and the published runs in the
//! same columns. The table names neither environment nor stack; the file's name does
//! (`netns-tcp-spin.csv`).

use nm_model::doubt::DoubtKind;
use nm_model::probe::ProbeKind;
use nm_model::result::{RoundData, Statistic};
use nm_model::stack::StackPair;

use super::builder::{ImportedRun, ResultBuilder};
use super::fault::{ImportFault, fault};
use super::records::records;
use super::sweep_row;
use crate::csv::SWEEP_HEADING;

/// Stack of a table whose name does not tell it.
const UNKNOWN_STACK: &str = "sfnt";

/// Whether `text` begins with the heading of a sweep.
pub(super) fn is_sweep(text: &str) -> bool {
    text.trim_start().lines().next().is_some_and(|line| line.trim_end() == SWEEP_HEADING)
}

pub(super) fn read(text: &str, import: &mut ResultBuilder) -> Result<(), ImportFault> {
    import.tool("a sweep as CSV");
    let name = import.name().to_string();
    let pair = match place(&name) {
        Some((environment, pair)) => {
            import.environment(Some(environment));
            import.doubt(
                DoubtKind::Inferred,
                "environment and stack are read from the name of the file",
            );
            Some(pair)
        }
        None => None,
    };
    let stack = pair.map_or_else(|| UNKNOWN_STACK.to_string(), |pair| pair.to_string());
    for record in records(text)?.into_iter().skip(1) {
        let line = record.line;
        let cells: Vec<&str> = record.cells.iter().map(|cell| cell.trim()).collect();
        let Ok(cells) = <[&str; 8]>::try_from(&cells[..]) else {
            return fault(line, format!("{} cells instead of 8: {SWEEP_HEADING}", cells.len()));
        };
        let (case, round) = sweep_row::read(line, cells, 99.0, str::is_empty)?;
        import.push(ImportedRun {
            stack: stack.clone(),
            probe: ProbeKind::Pingpong,
            case,
            statistic: Statistic::HalfRoundTrip,
            comparability: pair.map(|pair| pair.comparability()).unwrap_or_default(),
            settings: vec![],
            data: RoundData::Latency(round),
            doubts: vec![],
        })?;
    }
    Ok(())
}

/// Environment and stack of a file that a result folder holds: `ENVIRONMENT-STACK.csv`, in which
/// `_` stands for the colon of a pair, and a number may follow. The stack is the longest end of
/// the name that is one.
fn place(name: &str) -> Option<(&str, StackPair)> {
    let stem = name.rsplit('/').next()?.strip_suffix(".csv")?;
    let without_number = stem
        .rsplit_once('-')
        .filter(|(_, number)| number.parse::<u32>().is_ok())
        .map(|(stem, _)| stem);
    [Some(stem), without_number].into_iter().flatten().find_map(|stem| {
        stem.match_indices('-').find_map(|(at, _)| {
            let pair = stem[at + 1..].replace('_', ":").parse().ok()?;
            (at > 0).then_some((&stem[..at], pair))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_file_tells_environment_and_stack() {
        let found = |name| place(name).map(|(environment, pair)| (environment, pair.to_string()));
        for (name, environment, stack) in [
            ("netns-tcp-spin.csv", "netns", "tcp-spin"),
            ("out/sfnt/netns-accel+tcp-blocking.csv", "netns", "accel+tcp-blocking"),
            ("my-lab-xdp-tcp-spin.csv", "my-lab", "xdp-tcp-spin"),
            ("bridge-tcp-spin_tcp-blocking.csv", "bridge", "tcp-spin:tcp-blocking"),
            ("192.0.2.1-udp-epoll-spin-2.csv", "192.0.2.1", "udp-epoll-spin"),
        ] {
            assert_eq!(found(name), Some((environment, stack.to_string())), "{name}");
        }
        for name in ["-", "tcp-spin.csv", "deftech-hft-vm-pf.csv", "netns-tcp-spin.txt", ""] {
            assert_eq!(found(name), None, "{name}");
        }
    }
}
