//! Which figures of a comparison decide: those of the plan's primary rows, else of the main stacks.
//!
//! Without `primary = true` in the plan, the main stacks count, in the environment that has the
//! most rows. They are the spinning TCP and UDP sockets of the kernel. A run without them has the
//! blocking ones, then those that wait with epoll; a run of other stacks has the first two. Of each
//! stack the ping-pong decides, else the first probe that uses a network, and its streams. The
//! family is small on purpose: each figure more makes all limits wider.

use std::collections::BTreeSet;

use nm_model::plan::Plan;
use nm_model::probe::ProbeKind;
use nm_model::result::{RunResult, Series};

/// Main stacks, best first; of a pair, those that a run has.
const MAIN_STACKS: [[&str; 2]; 4] = [
    ["tcp-spin", "udp-spin"],
    ["tcp-blocking", "udp-blocking"],
    ["tcp-epoll", "udp-epoll"],
    ["tcp", "udp"],
];

/// Most stacks that decide by default.
const STACKS_MAX: usize = 2;

/// Environment, stack and probe, as in the keys of series.
type Row = (String, String, ProbeKind);

/// The rows whose figures decide.
pub(crate) struct Primary {
    rows: BTreeSet<Row>,
}

fn row(series: &Series) -> Row {
    (series.key.environment.clone(), series.key.stack.clone(), series.key.probe)
}

impl Primary {
    /// Of the series of A that are compared. The plan is that of A, else that of B.
    pub fn of(a: &RunResult, b: &RunResult, of_a: &[&Series]) -> Primary {
        let series: Vec<&Series> = of_a.iter().copied().filter(|one| !one.is_emulated()).collect();
        let plan = a.plan.as_ref().or(b.plan.as_ref());
        let stated = plan.map(stated).unwrap_or_default();
        let rows: BTreeSet<Row> =
            series.iter().map(|one| row(one)).filter(|row| stated.contains(row)).collect();
        Primary { rows: if rows.is_empty() { main(&series) } else { rows } }
    }

    /// Whether the figures of a series of A decide.
    pub fn has(&self, series: &Series) -> bool {
        self.rows.contains(&row(series))
    }
}

/// The rows that a plan calls primary.
fn stated(plan: &Plan) -> BTreeSet<Row> {
    let rows = plan.rows().into_iter().filter(|row| row.block.primary);
    rows.map(|row| (row.environment.to_string(), row.stack_name(), row.probe().kind())).collect()
}

/// The rows of the main stacks.
fn main(series: &[&Series]) -> BTreeSet<Row> {
    let mut rows: Vec<Row> = vec![];
    for one in series.iter().map(|one| row(one)) {
        if !rows.contains(&one) {
            rows.push(one);
        }
    }
    if rows.iter().any(|(.., probe)| probe.uses_network()) {
        rows.retain(|(.., probe)| probe.uses_network());
    }
    let n_rows = |name: &str| rows.iter().filter(|(environment, ..)| environment == name).count();
    // Of equal numbers the first one.
    let largest = rows.iter().rev().map(|(name, ..)| name).max_by_key(|name| n_rows(name));
    let Some(environment) = largest.cloned() else { return BTreeSet::new() };
    rows.retain(|(name, ..)| *name == environment);
    let has = |stack: &str| rows.iter().any(|(_, name, _)| name == stack);
    let known = MAIN_STACKS
        .iter()
        .map(|pair| pair.iter().copied().filter(|stack| has(stack)).collect::<Vec<_>>())
        .find(|found| !found.is_empty());
    let mut stacks: Vec<String> = known.unwrap_or_default().into_iter().map(String::from).collect();
    if stacks.is_empty() {
        for (_, stack, _) in &rows {
            if stacks.len() < STACKS_MAX && !stacks.contains(stack) {
                stacks.push(stack.clone());
            }
        }
    }
    let of_stack = |stack: &String| -> Vec<Row> {
        let own: Vec<&Row> = rows.iter().filter(|(_, name, _)| name == stack).collect();
        let is_latency = |row: &&&Row| row.2 != ProbeKind::Stream;
        let pingpong = own.iter().find(|row| row.2 == ProbeKind::Pingpong);
        let first = pingpong.or_else(|| own.iter().find(is_latency)).copied();
        let streams = own.iter().copied().filter(|row| row.2 == ProbeKind::Stream);
        first.into_iter().chain(streams).cloned().collect()
    };
    stacks.iter().flat_map(of_stack).collect()
}

#[cfg(test)]
mod tests {
    use nm_model::result::{SeriesKey, Source, Statistic};
    use nm_model::{probe::Case, stack::Comparability};

    use super::*;

    fn run(rows: &[(&str, &str, ProbeKind)]) -> RunResult {
        let mut run = RunResult::new("made", Source::Measured { version: String::new() });
        run.series = rows
            .iter()
            .map(|&(environment, stack, probe)| Series {
                key: SeriesKey {
                    environment: environment.to_string(),
                    stack: stack.to_string(),
                    probe,
                    case: Case::Message { size_bytes: 64 },
                    statistic: Statistic::HalfRoundTrip,
                },
                comparability: Comparability::default(),
                settings: Default::default(),
                rounds: vec![],
                estimates: vec![],
                doubts: vec![],
            })
            .collect();
        run
    }

    fn primary(run: &RunResult) -> Vec<String> {
        let series: Vec<&Series> = run.series.iter().collect();
        let primary = Primary::of(run, run, &series);
        let rows = primary.rows.into_iter();
        rows.map(|(environment, stack, probe)| format!("{environment}/{stack} {probe}")).collect()
    }

    #[test]
    fn the_main_stacks_are_those_of_the_environment_with_the_most_rows() {
        use ProbeKind::{Jitter, Pingpong, Rr, Stream};
        let quick = run(&[
            ("loopback", "tcp-spin", Pingpong),
            ("loopback", "udp-spin", Pingpong),
            ("loopback", "cpu", Jitter),
            ("netns", "shm-spin", Pingpong),
            ("netns", "tcp-spin", Pingpong),
            ("netns", "tcp-spin", Rr),
            ("netns", "udp-spin", Pingpong),
            ("netns", "tcp-blocking", Stream),
        ]);
        assert_eq!(primary(&quick), ["netns/tcp-spin pingpong", "netns/udp-spin pingpong"]);
    }

    #[test]
    fn a_run_without_the_main_stacks_has_the_next_ones() {
        use ProbeKind::{Jitter, Pingpong, Stream};
        let blocking = run(&[("x", "shm-spin", Pingpong), ("x", "tcp-blocking", Stream)]);
        assert_eq!(primary(&blocking), ["x/tcp-blocking stream"]);
        let one = run(&[("x", "onload+tcp-spin", Pingpong), ("x", "onload+tcp-spin", Stream)]);
        assert_eq!(primary(&one), ["x/onload+tcp-spin pingpong", "x/onload+tcp-spin stream"]);
        assert_eq!(primary(&run(&[("x", "cpu", Jitter)])), ["x/cpu jitter"]);
        assert!(primary(&run(&[])).is_empty());
    }

    #[test]
    fn the_plan_names_its_primary_rows() {
        let mut named = run(&[
            ("netns", "tcp-spin", ProbeKind::Pingpong),
            ("netns", "shm-spin", ProbeKind::Pingpong),
        ]);
        let text = "name='p'\n[[trials]]\nenvironments=['netns']\nstacks=['tcp-spin']\n\
                    probe='pingpong'\n[[trials]]\nenvironments=['netns']\nstacks=['shm-spin']\n\
                    probe='pingpong'\nprimary=true";
        named.plan = Some(Plan::parse(text).unwrap());
        assert_eq!(primary(&named), ["netns/shm-spin pingpong"]);
    }
}
