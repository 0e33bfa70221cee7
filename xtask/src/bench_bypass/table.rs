//! Figures of all rounds, the goals as ratios within a round, and both as Markdown.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Result;

use super::Options;
use crate::bench::{self, CLIENT_CPU, SERVER_CPU, median};

/// What a figure is of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Case {
    pub name: String,
    /// Message or block size; 0 where there is none.
    size_bytes: u32,
}

impl Case {
    pub fn new(name: impl Into<String>, size_bytes: u32) -> Case {
        Case { name: name.into(), size_bytes }
    }

    pub fn size(&self) -> String {
        if self.size_bytes == 0 { String::new() } else { self.size_bytes.to_string() }
    }

    /// Whether the figure is a rate, which is better the larger it is.
    fn is_rate(&self) -> bool {
        self.name.contains("/s")
    }
}

/// One measurement of a case.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Median latency, ns, or what the case's name says.
    pub value: f64,
    pub p99: Option<f64>,
    pub samples: Option<u64>,
    /// The cache-line limit right after it, ns.
    pub limit_ns: Option<f64>,
}

impl Figure {
    pub fn of(value: f64) -> Figure {
        Figure { value, p99: None, samples: None, limit_ns: None }
    }
}

/// What the figures of one round are put in relation to.
enum Over {
    Case(&'static str, u32),
    Limit,
    /// The own p99 over the own median.
    Median,
}

enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

struct Goal {
    what: &'static str,
    bound: Bound,
    case: (&'static str, u32),
    over: Over,
}

const fn goal(what: &'static str, bound: Bound, case: (&'static str, u32), over: Over) -> Goal {
    Goal { what, bound, case, over }
}

const ACCEL: &str = "sockperf blocking under accel";
const SPIN: &str = "sockperf spinning";
const BLOCKING: &str = "sockperf blocking";

/// What bypass has to reach, as ratios within a round.
fn goals() -> Vec<Goal> {
    use Bound::{AtLeast, AtMost};
    vec![
        goal("`shm` spinning, 1 B ÷ limit", AtMost(1.6), ("nearmetal shm-spin", 1), Over::Limit),
        goal("`shm` blocking, 1 B ÷ limit", AtMost(1.6), ("nearmetal shm", 1), Over::Limit),
        goal("`accel`, blocking recv, 14 B ÷ limit", AtMost(2.5), (ACCEL, 14), Over::Limit),
        goal(
            "`accel` ÷ kernel TCP spinning, 64 B",
            AtMost(1.0 / 12.0),
            (ACCEL, 64),
            Over::Case(SPIN, 64),
        ),
        goal(
            "`accel` ÷ kernel TCP spinning, 1 KiB",
            AtMost(1.0 / 5.0),
            (ACCEL, 1024),
            Over::Case(SPIN, 1024),
        ),
        goal(
            "`accel` ÷ kernel TCP blocking, 64 B",
            AtMost(1.0 / 40.0),
            (ACCEL, 64),
            Over::Case(BLOCKING, 64),
        ),
        goal(
            "epoll program under `accel` ÷ kernel",
            AtMost(1.0 / 20.0),
            ("sockperf epoll of 4 sockets under accel", 64),
            Over::Case("sockperf epoll of 4 sockets", 64),
        ),
        goal(
            "poll program under `accel` ÷ kernel",
            AtMost(1.0 / 20.0),
            ("sockperf poll of 4 sockets under accel", 64),
            Over::Case("sockperf poll of 4 sockets", 64),
        ),
        goal(
            "select program under `accel` ÷ kernel",
            AtMost(1.0 / 20.0),
            ("sockperf select of 4 sockets under accel", 64),
            Over::Case("sockperf select of 4 sockets", 64),
        ),
        goal("`accel` p99 ÷ median, 14 B", AtMost(2.0), (ACCEL, 14), Over::Median),
        goal(
            "both ends on one CPU under `accel` ÷ kernel",
            AtMost(1.1),
            ("sockperf blocking, both ends on one CPU under accel", 64),
            Over::Case("sockperf blocking, both ends on one CPU", 64),
        ),
        goal(
            "sleeping mode ÷ kernel blocking, 64 B",
            AtMost(0.75),
            ("sockperf blocking under accel --spin-us 0", 64),
            Over::Case(BLOCKING, 64),
        ),
        goal(
            "small messages a second under `accel` ÷ kernel",
            AtLeast(5.0),
            ("sockperf throughput, messages/s under accel", 64),
            Over::Case("sockperf throughput, messages/s", 64),
        ),
        goal(
            "iperf3 under `accel` ÷ kernel",
            AtLeast(1.5),
            ("iperf3, Gb/s under accel", 128 << 10),
            Over::Case("iperf3, Gb/s", 128 << 10),
        ),
        goal(
            "nuttcp under `accel` ÷ kernel",
            AtLeast(1.5),
            ("nuttcp, Gb/s under accel", 64 << 10),
            Over::Case("nuttcp, Gb/s", 64 << 10),
        ),
        goal(
            "connect + accept under `accel` ÷ kernel",
            AtMost(1.3),
            ("connect + accept, ns under accel", 0),
            Over::Case("connect + accept, ns", 0),
        ),
        goal(
            "TCP not accelerated, under the preload ÷ kernel",
            AtMost(1.02),
            ("sockperf spinning TCP, plain server, client preloaded", 64),
            Over::Case("sockperf spinning TCP, plain server", 64),
        ),
        goal(
            "UDP not accelerated, under the preload ÷ kernel",
            AtMost(1.02),
            ("sockperf spinning UDP, plain server, client preloaded", 64),
            Over::Case("sockperf spinning UDP, plain server", 64),
        ),
        goal(
            "`xdp` UDP ÷ kernel UDP spinning, veth, 64 B",
            AtMost(0.6),
            ("nearmetal xdp-spin, veth", 64),
            Over::Case("nearmetal udp-spin, veth", 64),
        ),
        goal(
            "`xdp` TCP, both ends ÷ kernel TCP spinning, veth, 64 B",
            AtMost(0.5),
            ("nearmetal xdp-tcp-spin, veth", 64),
            Over::Case("nearmetal tcp-spin, veth", 64),
        ),
        goal(
            "`xdp` TCP, one end ÷ kernel TCP spinning, veth, 64 B",
            AtMost(0.8),
            ("nearmetal xdp-tcp-spin:tcp-spin, veth", 64),
            Over::Case("nearmetal tcp-spin, veth", 64),
        ),
    ]
}

/// All that was measured: for each case one figure or none a round, and why one is missing.
#[derive(Default)]
pub struct Figures {
    order: Vec<Case>,
    rounds: BTreeMap<Case, Vec<Option<Figure>>>,
    refusals: BTreeMap<Case, String>,
}

impl Figures {
    /// Fixes the order of the cases in the table.
    pub fn announce<'a>(&mut self, cases: impl Iterator<Item = &'a Case>) {
        self.order = cases.cloned().collect();
    }

    /// Adds a round's figures of `cases`, or why there are none.
    pub fn add(&mut self, cases: &[Case], measured: Result<Vec<Figure>>) {
        if let Err(error) = &measured {
            let text = format!("{error:#}");
            let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
            let short: String = line.replace('|', "/").chars().take(200).collect();
            eprintln!("    not available: {short}");
            for case in cases {
                self.refusals.insert(case.clone(), short.clone());
            }
        }
        let mut figures = measured.unwrap_or_default().into_iter();
        for case in cases {
            self.rounds.entry(case.clone()).or_default().push(figures.next());
        }
    }

    fn of(&self, case: &Case) -> &[Option<Figure>] {
        self.rounds.get(case).map_or(&[], Vec::as_slice)
    }

    /// The goal's ratio in each round that has both of its figures.
    fn ratios(&self, goal: &Goal) -> Vec<f64> {
        let own = self.of(&Case::new(goal.case.0, goal.case.1)).iter();
        match goal.over {
            Over::Limit => {
                own.filter_map(|f| f.and_then(|f| Some(f.value / f.limit_ns?))).collect()
            }
            Over::Median => own.filter_map(|f| f.and_then(|f| Some(f.p99? / f.value))).collect(),
            Over::Case(name, size_bytes) => {
                let base = self.of(&Case::new(name, size_bytes));
                own.zip(base)
                    .filter_map(|(own, base)| Some((*own)?.value / (*base)?.value))
                    .collect()
            }
        }
    }

    /// Why a goal has no ratio.
    fn missing(&self, goal: &Goal) -> &str {
        let base = match goal.over {
            Over::Case(name, size_bytes) => Some(Case::new(name, size_bytes)),
            Over::Limit | Over::Median => None,
        };
        let own = Case::new(goal.case.0, goal.case.1);
        let refusal = [Some(own), base].into_iter().flatten().find_map(|c| self.refusals.get(&c));
        refusal.map_or("not measured in this run", String::as_str)
    }

    pub fn text(&self, options: &Options) -> String {
        let mut text = String::from("# Bypass beside the kernel\n\n");
        let _ = writeln!(
            text,
            "Made by `cargo xtask bench-bypass --rounds {}`. Client on CPU {CLIENT_CPU}, server on \
             CPU {SERVER_CPU}, {} round(s), every second one backwards. A ratio is that of two \
             figures of one round; shown are the median over the rounds and the range. The limit \
             is half a round trip of one cache line between the two CPUs, measured right after \
             the figure. A program under `accel` counts only if its exit report says that its \
             connection was in shared memory.\n",
            options.rounds, options.rounds
        );
        text += &bench::circumstances(&["sockperf", "iperf3", "nuttcp"]);
        self.goals_text(&mut text);
        self.latencies_text(&mut text);
        self.rates_text(&mut text);
        self.refusals_text(&mut text);
        text
    }

    fn goals_text(&self, text: &mut String) {
        text.push_str(
            "\n## Goals\n\n| what | goal | ratio | range | rounds | verdict |\n\
             |---|---|---|---|---|---|\n",
        );
        for goal in goals() {
            let (sign, bound) = match goal.bound {
                Bound::AtMost(bound) => ("≤", bound),
                Bound::AtLeast(bound) => ("≥", bound),
            };
            let bound_text = ratio_text(bound);
            let ratios = self.ratios(&goal);
            let row = if ratios.is_empty() {
                format!("- | - | 0 | not available: {}", self.missing(&goal))
            } else {
                let middle = median(&ratios);
                let is_met = match goal.bound {
                    Bound::AtMost(bound) => middle <= bound,
                    Bound::AtLeast(bound) => middle >= bound,
                };
                let (low, high) = range(&ratios);
                format!(
                    "{} | {} to {} | {} | {}",
                    ratio_text(middle),
                    ratio_text(low),
                    ratio_text(high),
                    ratios.len(),
                    if is_met { "met" } else { "**missed**" }
                )
            };
            let _ = writeln!(text, "| {} | {sign} {bound_text} | {row} |", goal.what);
        }
    }

    /// The cases of one kind that have figures, with these.
    fn measured(&self, is_rate: bool) -> impl Iterator<Item = (&Case, Vec<Figure>)> {
        let cases = self.order.iter().filter(move |case| case.is_rate() == is_rate);
        let figures = |case: &Case| self.of(case).iter().flatten().copied().collect::<Vec<_>>();
        cases.map(move |case| (case, figures(case))).filter(|(_, figures)| !figures.is_empty())
    }

    fn latencies_text(&self, text: &mut String) {
        text.push_str(
            "\n## Half round trip, ns\n\nMedians over the rounds of each round's median and p99. \
             (`connect + accept` is the whole time of one connection.)\n\n\
             | case | size, B | rounds | median | range | p99 | samples a round | limit |\n\
             |---|---|---|---|---|---|---|---|\n",
        );
        for (case, figures) in self.measured(false) {
            let values: Vec<f64> = figures.iter().map(|f| f.value).collect();
            let (low, high) = range(&values);
            let of = |get: fn(&Figure) -> Option<f64>| {
                let found: Vec<f64> = figures.iter().filter_map(get).collect();
                if found.is_empty() { "-".to_string() } else { format!("{:.0}", median(&found)) }
            };
            let _ = writeln!(
                text,
                "| {} | {} | {} | {:.0} | {low:.0} to {high:.0} | {} | {} | {} |",
                case.name,
                case.size(),
                figures.len(),
                median(&values),
                of(|f| f.p99),
                of(|f| f.samples.map(|count| count as f64)),
                of(|f| f.limit_ns)
            );
        }
    }

    fn rates_text(&self, text: &mut String) {
        text.push_str(
            "\n## Rates\n\n| case | size, B | rounds | median | range |\n|---|---|---|---|---|\n",
        );
        for (case, figures) in self.measured(true) {
            let values: Vec<f64> = figures.iter().map(|f| f.value).collect();
            let (low, high) = range(&values);
            let digits = if high < 1000.0 { 2 } else { 0 };
            let _ = writeln!(
                text,
                "| {} | {} | {} | {:.digits$} | {low:.digits$} to {high:.digits$} |",
                case.name,
                case.size(),
                figures.len(),
                median(&values)
            );
        }
    }

    fn refusals_text(&self, text: &mut String) {
        if self.refusals.is_empty() {
            return;
        }
        text.push_str(
            "\n## Not available\n\n| case | size, B | rounds without | why |\n|---|---|---|---|\n",
        );
        for case in self.order.iter().filter(|case| self.refusals.contains_key(case)) {
            let without = self.of(case).iter().filter(|figure| figure.is_none()).count();
            let why = &self.refusals[case];
            let _ = writeln!(text, "| {} | {} | {without} | {why} |", case.name, case.size());
        }
    }
}

fn range(values: &[f64]) -> (f64, f64) {
    values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
        (low.min(*value), high.max(*value))
    })
}

/// Small ratios as fractions, as the goals are written.
fn ratio_text(ratio: f64) -> String {
    if ratio < 0.25 { format!("1/{:.1}", 1.0 / ratio) } else { format!("{ratio:.2}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_of_two_figures_of_one_round() {
        let cases = [Case::new(ACCEL, 64), Case::new(BLOCKING, 64)];
        let mut figures = Figures::default();
        figures.announce(cases.iter());
        for (own, base) in [(100.0, Some(8000.0)), (300.0, None), (200.0, Some(6000.0))] {
            figures.add(&cases[..1], Ok(vec![Figure::of(own)]));
            let base = base.map(|base| vec![Figure::of(base)]);
            figures.add(&cases[1..], base.ok_or_else(|| anyhow::anyhow!("a | reason")));
        }
        let goal = goals().into_iter().find(|goal| goal.what.contains("blocking, 64")).unwrap();
        assert_eq!(figures.ratios(&goal), [100.0 / 8000.0, 200.0 / 6000.0]);
        let text = figures.text(&Options { rounds: 3, out: None, only: String::new() });
        let row = "| `accel` ÷ kernel TCP blocking, 64 B | ≤ 1/40.0 | 1/43.6 | 1/80.0 to 1/30.0 \
                   | 2 | met |";
        assert!(text.contains(row), "{text}");
        assert!(text.contains("| sockperf blocking | 64 | 1 | a / reason |"), "{text}");
        assert!(text.contains("not available: not measured in this run"), "{text}");
    }

    #[test]
    fn every_goal_is_of_cases_that_are_measured() {
        let folder = super::super::cases::Folder::make().unwrap();
        let measured: Vec<Case> =
            super::super::cases::all(&folder).into_iter().flat_map(|one| one.cases).collect();
        for goal in goals() {
            let mut wanted = vec![Case::new(goal.case.0, goal.case.1)];
            if let Over::Case(name, size_bytes) = goal.over {
                wanted.push(Case::new(name, size_bytes));
            }
            for case in wanted {
                assert!(measured.contains(&case), "{}: {case:?}", goal.what);
            }
        }
    }
}
