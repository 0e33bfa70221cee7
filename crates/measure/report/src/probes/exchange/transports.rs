//! The fastest transport on this host: networks that differ only in the transport of their links,
//! with the comparison of their rounds.

use std::collections::BTreeSet;

use nm_model::link_transport::LinkTransport;
use nm_model::result::Series;
use nm_model::{Metric, ProbeKind, RunResult};
use nm_stats::compare::{Claim, LEVEL, ROUNDS_MIN, compare};
use nm_stats::holm;

use super::figures::{cpu_us, per_s, rate};
use crate::style::Tone;
use crate::table::{Column, Table};
use crate::units::{NOT_AVAILABLE, column, significant};
use crate::view;

/// The transport that the others are compared with.
const TCP: LinkTransport = LinkTransport::Tcp;

/// Ratio that counts as equal.
const MARGIN: f64 = 0.05;

/// The figures that are compared: the typical round trip, and the one that the limit is for.
const FIGURES: [(Metric, &str); 2] =
    [(Metric::Median, "median"), (Metric::Percentile(99.0), "p99")];

/// `2-2-2-2 unix disk-quorum` as `2-2-2-2 disk-quorum` and `unix`. A name without a transport
/// means TCP.
fn split_transport(stack: &str) -> (String, LinkTransport) {
    let mut transports = stack.split(' ').filter_map(|word| word.parse().ok());
    let transport = transports.next().unwrap_or(TCP);
    let rest: Vec<&str> = stack.split(' ').filter(|word| *word != transport.name()).collect();
    (rest.join(" "), transport)
}

/// Series of one network at one rate over several transports.
fn groups<'a>(own: &[&'a Series]) -> Vec<Vec<&'a Series>> {
    let mut groups: Vec<Vec<&'a Series>> = vec![];
    for &series in own {
        let is_alike = |group: &Vec<&Series>| {
            let (a, b) = (&group[0].key, &series.key);
            a.environment == b.environment
                && a.case == b.case
                && split_transport(&a.stack).0 == split_transport(&b.stack).0
        };
        match groups.iter_mut().find(|group| is_alike(group)) {
            Some(group) => group.push(series),
            None => groups.push(vec![series]),
        }
    }
    groups.retain(|group| group.len() > 1);
    groups
}

/// One network over one transport.
struct Line<'a> {
    series: &'a Series,
    /// The same network over TCP, unless this is it.
    tcp: Option<&'a Series>,
    conclusion: String,
}

/// The table; empty where no network was tried over several transports.
pub fn table(result: &RunResult, own: &[&Series]) -> Table {
    let seed = result.plan.as_ref().map_or(1, |plan| plan.seed);
    let mut lines = vec![];
    for group in groups(own) {
        let is_tcp = |series: &&Series| split_transport(&series.key.stack).1 == TCP;
        // Emulated transports are shown, but not compared.
        let is_emulated = group.iter().any(|series| series.is_emulated());
        let tcp = group.iter().copied().find(is_tcp).filter(|_| !is_emulated);
        let conclusions = match is_emulated {
            true => group.iter().map(|series| view::execution_text(series)).collect(),
            false => conclusions(&group, seed),
        };
        for (series, conclusion) in group.iter().copied().zip(conclusions) {
            lines.push(Line { series, tcp: tcp.filter(|_| !is_tcp(&series)), conclusion });
        }
    }
    let texts = |text: &dyn Fn(&Line<'_>) -> String| lines.iter().map(text).collect();
    let ms = |metric| {
        let values = lines.iter().map(|line| Some(view::value(line.series, metric)? / 1e6));
        column(&values.collect::<Vec<_>>(), 3, 3)
    };
    let ratios = |metric| {
        texts(&|line| {
            line.tcp.map_or_else(String::new, |tcp| ratio(tcp, line.series, metric, seed))
        })
    };
    let cpu: Vec<_> = lines.iter().map(|line| cpu_us(line.series)).collect();
    let [(median, _), (p99, _)] = FIGURES;
    let columns = vec![
        (Column::text("network"), texts(&|line| split_transport(&line.series.key.stack).0)),
        (Column::figure("rate /s"), texts(&|line| per_s(rate(line.series)))),
        (
            Column::text("transport"),
            texts(&|line| split_transport(&line.series.key.stack).1.to_string()),
        ),
        (Column::figure("median ms"), ms(median)),
        (Column::text("median ratio"), ratios(median)),
        (Column::figure("p99 ms"), ms(p99)),
        (Column::text("p99 ratio"), ratios(p99)),
        (Column::figure("CPU us"), column(&cpu, 3, 2)),
        (Column::text("result"), texts(&|line| line.conclusion.clone())),
    ];
    let wins = |line: &Line<'_>| line.conclusion.starts_with("wins");
    let mut table = Table::of_columns(
        "Exchange: which transport wins on this host (median of rounds; ratios to TCP with \
         their 95 % intervals over rounds)",
        columns,
    )
    .with_tones(lines.iter().map(|line| if wins(line) { Tone::Good } else { Tone::Plain }));
    if !table.rows.is_empty() {
        missing(result, &mut table);
    }
    table
}

/// Transports of the plan that are not available, with the reason.
fn missing(result: &RunResult, table: &mut Table) {
    let all = result.not_available.iter().filter(|row| row.probe == ProbeKind::Exchange);
    let reasons: BTreeSet<(String, &str)> =
        all.map(|row| (row.stack.client.to_string(), row.reason.as_str())).collect();
    for (stack, reason) in reasons {
        let mut cells = vec![String::new(), String::new(), stack];
        cells.extend([NOT_AVAILABLE, "", NOT_AVAILABLE, "", NOT_AVAILABLE].map(str::to_string));
        cells.push(format!("not available: {reason}"));
        table.push(Tone::Faint, cells);
    }
}

/// `x0.62 (x0.58 to x0.66)`.
fn ratio(tcp: &Series, other: &Series, metric: Metric, seed: u64) -> String {
    let values = |series| view::round_values(series, metric);
    let found = compare(&values(tcp), &values(other), MARGIN, seed);
    let shown = |ratio: f64| format!("x{}", significant(ratio, 3));
    match found.interval {
        _ if !found.ratio.is_finite() => NOT_AVAILABLE.to_string(),
        Some(ends) => {
            format!("{} ({} to {})", shown(found.ratio), shown(ends.low), shown(ends.high))
        }
        None => shown(found.ratio),
    }
}

/// For each figure, the fastest transport, and whether the rounds show that all others are slower.
/// The p-values of one figure are corrected together.
fn conclusions(group: &[&Series], seed: u64) -> Vec<String> {
    let mut words = vec![vec![]; group.len()];
    for (metric, name) in FIGURES {
        let known: Vec<(usize, f64)> =
            (0..group.len()).filter_map(|at| Some((at, view::value(group[at], metric)?))).collect();
        let Some((first, _)) = known.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1)) else {
            continue;
        };
        let values = |at: usize| view::round_values(group[at], metric);
        let others: Vec<usize> =
            known.iter().map(|(at, _)| *at).filter(|at| *at != first).collect();
        let found: Vec<_> = others
            .iter()
            .map(|other| compare(&values(first), &values(*other), MARGIN, seed))
            .collect();
        let p_values: Vec<f64> = found.iter().map(|found| found.p_value.unwrap_or(1.0)).collect();
        let equal: Vec<&str> = others
            .iter()
            .zip(found.iter().zip(holm(&p_values)))
            .filter(|(_, (found, p))| found.claim != Claim::Difference || *p > LEVEL)
            .map(|(other, _)| split_transport(&group[*other].key.stack).1.name())
            .collect();
        let has_few_rounds = known.iter().any(|(at, _)| values(*at).len() < ROUNDS_MIN);
        words[first].push(match equal.as_slice() {
            [] => format!("wins by {name}"),
            _ if has_few_rounds => format!("first by {name}; no claim below {ROUNDS_MIN} rounds"),
            equal => format!("first by {name}, not distinguishable from {}", equal.join(", ")),
        });
    }
    words.into_iter().map(|words| words.join("; ")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probes::exchange::fixture::result;
    use nm_model::NotAvailable;
    use nm_model::plan::EnvironmentKind;
    use nm_model::result::RoundData;

    /// A series over a transport, with a p50 and a p99 in ms for each round.
    fn series(stack: &str, rounds: &[(f64, f64)]) -> Series {
        let mut series = result(1.0, 1).series.remove(0);
        series.key.stack = stack.to_string();
        let template = series.rounds.remove(0);
        for (number, (median, p99)) in rounds.iter().enumerate() {
            let mut round = template.clone();
            round.round = number as u32;
            let RoundData::Latency(data) = &mut round.data else { unreachable!() };
            data.percentiles[0].percentile = 50.0;
            data.percentiles[0].value_ns = Some(median * 1e6);
            data.percentiles[1].value_ns = Some(p99 * 1e6);
            series.rounds.push(round);
        }
        series
    }

    fn around(median: f64, p99: f64) -> Vec<(f64, f64)> {
        (0..5).map(|at| (median + f64::from(at) * 0.001, p99 + f64::from(at) * 0.001)).collect()
    }

    fn run(all: Vec<Series>) -> RunResult {
        let mut run = result(1.0, 1);
        run.series = all;
        run
    }

    fn table_of(run: &RunResult) -> Table {
        table(run, &run.series.iter().collect::<Vec<_>>())
    }

    #[test]
    fn a_transport_faster_in_every_round_wins_and_others_are_not_distinguished() {
        let run = run(vec![
            series("2-2-2-2", &around(0.2, 0.5)),
            series("2-2-2-2 unix", &around(0.15, 0.302)),
            series("2-2-2-2 shm", &around(0.1, 0.3)),
            series("2-2-2-2 shm disk-quorum", &around(0.1, 0.3)),
        ]);
        let table = table_of(&run);
        assert_eq!(table.rows.len(), 3, "another durability is another network");
        let cell = |row: usize, at: usize| table.rows[row].cells[at].as_str();
        assert_eq!((cell(0, 2), cell(0, 4), cell(0, 8)), ("tcp", "", ""));
        assert_eq!((cell(2, 0), cell(2, 2)), ("2-2-2-2", "shm"));
        assert!(cell(2, 4).starts_with("x0.505 (x0."), "{}", cell(2, 4));
        assert_eq!(cell(2, 8), "wins by median; first by p99, not distinguishable from unix");
    }

    #[test]
    fn few_rounds_support_no_claim_and_missing_transports_have_a_reason() {
        let mut run = run(vec![
            series("2-2-2-2", &around(0.2, 0.5)[..2]),
            series("2-2-2-2 unix", &around(0.1, 0.3)[..2]),
        ]);
        run.not_available.push(NotAvailable {
            environment: EnvironmentKind::Loopback,
            stack: "accel+tcp-epoll".parse().unwrap(),
            probe: ProbeKind::Exchange,
            reason: "no library".to_string(),
            has_failed: false,
        });
        let table = table_of(&run);
        let conclusion = "first by median; no claim below 5 rounds; first by p99; no claim below 5 \
                        rounds";
        assert_eq!(table.rows[1].cells[8], conclusion);
        assert_eq!(table.rows[2].cells[2], "accel+tcp-epoll");
        assert_eq!(table.rows[2].cells[8], "not available: no library");
    }

    #[test]
    fn a_single_transport_has_no_table() {
        let run = run(vec![series("2-2-2-2", &around(0.2, 0.5))]);
        assert!(table_of(&run).rows.is_empty());
    }
}
