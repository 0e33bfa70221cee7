//! How long a run takes: expected before it begins, and corrected by what its trials take.

use std::collections::BTreeMap;

use nm_model::plan::EnvironmentKind;
use nm_model::{Campaign, ProbeSpec, Trial};

/// What a trial takes beside its measuring, s: facts, connections, clocks and a written result. 200
/// trials of the plan `quick` took 13 s more than their measuring (tests/data/quick-idle.json).
const SET_UP_S: f64 = 0.06;

/// What a run takes at its start and its end, s: the audit, the verdicts and the reports. Its first
/// trial began after 1.1 s.
const ENDS_S: f64 = 1.2;

/// How many seconds of ended trials count as much as what was expected of them.
const WEIGHT_OF_EXPECTED_S: f64 = 5.0;

/// Time to start an environment, s, and its usual round trip, s. Emulated guests were ready after
/// 4.5 to 6.0 s on an idle machine (docs/results/lab.md); those of hosts are a guess.
fn usual(environment: EnvironmentKind) -> (f64, f64) {
    match environment {
        EnvironmentKind::Loopback => (0.1, 50e-6),
        EnvironmentKind::Ssh | EnvironmentKind::VmAttached => (2.0, 200e-6),
        _ if environment.has_guests() => (5.0, 150e-6),
        _ => (0.3, 50e-6),
    }
}

/// What is expected of a trial, s.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Expected {
    /// Measuring and set-up.
    trial_s: f64,
    /// The start of its environment, if it is the first one there.
    start_s: f64,
}

impl Expected {
    /// A trial in an environment that runs.
    pub fn of(probe: &ProbeSpec, environment: EnvironmentKind) -> Expected {
        let (_, round_trip_s) = usual(environment);
        let fewest_s = match probe {
            // The fewest samples are taken even if the time is up.
            ProbeSpec::Pingpong(spec) => {
                spec.min_iterations as f64 * round_trip_s * spec.sizes.len() as f64
            }
            _ => 0.0,
        };
        Expected { trial_s: probe.duration_s().max(fewest_s) + SET_UP_S, start_s: 0.0 }
    }

    fn with_start_of(self, environment: EnvironmentKind) -> Expected {
        Expected { start_s: usual(environment).0, ..self }
    }

    fn total_s(self) -> f64 {
        self.trial_s + self.start_s
    }
}

/// What one trial of a plan takes, s.
pub fn trial_s(trial: &Trial) -> f64 {
    Expected::of(&trial.probe, trial.environment).total_s()
}

/// The trials of a run in order, and what those that have ended took.
#[derive(Debug, Clone, Default)]
pub struct Schedule {
    /// Each trial with the number of its row.
    trials: Vec<(usize, Expected)>,
    rows: Vec<Row>,
    ended: usize,
    took_s: f64,
}

/// What the trials of one row took.
#[derive(Debug, Clone, Default)]
struct Row {
    n: u32,
    total_s: f64,
}

impl Schedule {
    /// The schedule of trials in order, each with what tells its row from others: trials of a row
    /// take about as long as each other.
    pub fn new<R: Ord>(trials: impl IntoIterator<Item = (R, Expected)>) -> Schedule {
        let mut numbers = BTreeMap::new();
        let trials = trials.into_iter().map(|(row, expected)| {
            let next = numbers.len();
            (*numbers.entry(row).or_insert(next), expected)
        });
        let trials: Vec<_> = trials.collect();
        Schedule { trials, rows: vec![Row::default(); numbers.len()], ..Schedule::default() }
    }

    /// The schedule of `rounds` of one probe between agents that run.
    pub fn of_rounds(probe: &ProbeSpec, environment: EnvironmentKind, rounds: u32) -> Schedule {
        Schedule::new((0..rounds).map(|_| ((), Expected::of(probe, environment))))
    }

    /// The schedule of a plan.
    pub fn of_campaign(campaign: &Campaign) -> Schedule {
        let mut started = vec![];
        Schedule::new(campaign.trials.iter().map(|trial| {
            let Trial { environment, stack, probe, factor, .. } = trial;
            let mut expected = Expected::of(probe, *environment);
            // Programs under a launcher have agents of their own.
            let agents = (*environment, stack.client.launcher, stack.server.launcher);
            if !started.contains(&agents) {
                started.push(agents);
                expected = expected.with_start_of(*environment);
            }
            let factor = factor.as_ref().map(|factor| factor.name.as_str());
            let cases: Vec<String> = probe.cases().iter().map(ToString::to_string).collect();
            let row = (environment.name(), probe.stack_name(stack), probe.kind(), factor, cases);
            (row, expected)
        }))
    }

    /// What is promised before the first trial, s.
    pub fn promised_s(&self) -> f64 {
        ENDS_S + self.trials.iter().map(|(_, expected)| expected.total_s()).sum::<f64>()
    }

    /// The next trial has ended after this time.
    pub fn ended(&mut self, took_s: f64) {
        let Some((row, expected)) = self.trials.get(self.ended) else { return };
        let row = &mut self.rows[*row];
        row.n += 1;
        // The start of its environment does not come again.
        row.total_s += (took_s - expected.start_s).max(0.0);
        self.took_s += took_s;
        self.ended += 1;
    }

    /// The time left, s, if the next trial has run for `in_trial_s`. A row that has run takes what
    /// it took; another one what is expected, by the pace of the trials so far.
    pub fn left_s(&self, in_trial_s: f64) -> f64 {
        let expected_s: f64 =
            self.trials[..self.ended].iter().map(|(_, expected)| expected.total_s()).sum();
        let pace = (self.took_s + WEIGHT_OF_EXPECTED_S) / (expected_s + WEIGHT_OF_EXPECTED_S);
        let mut to_come =
            self.trials[self.ended..].iter().map(|(row, expected)| match &self.rows[*row] {
                Row { n: 0, .. } => expected.total_s() * pace,
                Row { n, total_s } => total_s / f64::from(*n) + expected.start_s,
            });
        let current_s = to_come.next().map_or(0.0, |s| (s - in_trial_s).max(0.0));
        current_s + to_come.sum::<f64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nm_model::Plan;
    use nm_model::result::RunResult;
    use proptest::prelude::*;

    fn expected(trial_s: f64) -> Expected {
        Expected { trial_s, start_s: 0.0 }
    }

    /// The rows and the time of a run, and its plan.
    #[derive(serde::Deserialize)]
    struct Recorded {
        duration_s: f64,
        rows: Vec<String>,
        plan: Plan,
    }

    #[test]
    fn the_promise_for_a_recorded_run_holds() {
        let text = include_str!("../tests/data/quick-idle.json");
        let Recorded { duration_s, rows, plan } = serde_json::from_str(text).unwrap();
        let is_recorded = |row: &str| rows.iter().any(|recorded| recorded == row);
        let trials: Vec<Trial> = plan
            .rows()
            .iter()
            .filter(|row| is_recorded(&format!("{} {}", row.path(), row.probe().kind())))
            .flat_map(|row| {
                (0..plan.rounds).map(|round| Trial {
                    environment: row.environment,
                    stack: row.stacks,
                    probe: row.probe().clone(),
                    round,
                    factor: None,
                })
            })
            .collect();
        assert_eq!(trials.len(), rows.len() * plan.rounds as usize);
        let campaign = Campaign { plan, part: None, trials, not_available: vec![] };
        let promised_s = Schedule::of_campaign(&campaign).promised_s();
        let ratio = promised_s / duration_s;
        assert!((0.85..1.15).contains(&ratio), "promised {promised_s} s, took {duration_s} s");
    }

    /// A run beside other programs takes longer than promised. Once each row has run, the time left
    /// is right all the same.
    #[test]
    fn time_left_is_right_in_a_recorded_run_that_was_disturbed() {
        let text = include_str!("../../report/tests/data/quick.json");
        let run: RunResult = serde_json::from_str(text).unwrap();
        let starts = run.series.iter().flat_map(|series| {
            let row = format!("{} {}", series.key.path(), series.key.probe);
            series.rounds.iter().map(move |round| (round.started_s, row.clone(), round.round))
        });
        let mut starts: Vec<(f64, String, u32)> = starts.collect();
        starts.sort_by(|a, b| a.0.total_cmp(&b.0));
        // The cases of a trial follow each other.
        starts.dedup_by(|next, first| (&next.1, next.2) == (&first.1, first.2));
        let ends = starts.iter().skip(1).map(|(started_s, ..)| *started_s);
        let ends: Vec<f64> = ends.chain(run.duration_s).collect();
        let expected = starts.iter().map(|(_, row, _)| (row.clone(), expected(0.5)));
        let mut schedule = Schedule::new(expected);
        for ((started_s, _, round), end_s) in starts.iter().zip(&ends) {
            let truth_s = ends[ends.len() - 1] - started_s;
            if *round > 0 && truth_s > 10.0 {
                let ratio = schedule.left_s(0.0) / truth_s;
                assert!((0.75..1.33).contains(&ratio), "{ratio} with {truth_s} s left");
            }
            schedule.ended(end_s - started_s);
        }
        assert!(starts.len() > 150, "{}", starts.len());
    }

    #[test]
    fn the_promise_has_minimum_samples_and_starts() {
        let quick = include_str!("../../../../plans/quick.toml");
        let quick = Plan::parse_with_runs(quick, &nm_report::reference::for_plans()).unwrap();
        let rows = quick.rows();
        let row = rows.iter().find(|row| row.environment == EnvironmentKind::Netns).unwrap();
        let ProbeSpec::Pingpong(mut spec) = row.probe().clone() else { panic!("not a ping-pong") };
        let of = |spec: &nm_model::probe::PingpongSpec, environment| {
            Expected::of(&ProbeSpec::Pingpong(spec.clone()), environment).total_s()
        };
        spec.min_iterations = 100_000;
        spec.sizes = vec![64, 1024];
        let netns_s = of(&spec, EnvironmentKind::Netns);
        assert!((netns_s - (10.0 + SET_UP_S)).abs() < 1e-9, "{netns_s}");
        assert!(of(&spec, EnvironmentKind::VmSwitch) > 3.0 * (netns_s - SET_UP_S) - 1.0);
        let started = expected(1.0).with_start_of(EnvironmentKind::VmSwitch);
        assert_eq!(started.total_s(), 6.0);
    }

    proptest! {
        /// On a simulated clock: rows take what they take, however much else was expected. After
        /// one round the time left is right but for what the rounds differ by.
        #[test]
        fn time_left_is_right_once_each_row_has_run(
            rows in prop::collection::vec((0.01..30.0f64, 0.01..30.0f64), 1..20),
            deviations in prop::collection::vec(0.9..1.1f64, 100),
            n_rounds in 2usize..6,
        ) {
            let trials = (0..n_rounds).flat_map(|round| {
                let mut order: Vec<usize> = (0..rows.len()).collect();
                if round % 2 == 1 {
                    order.reverse();
                }
                order
            });
            let order: Vec<usize> = trials.collect();
            let took: Vec<f64> = order
                .iter()
                .enumerate()
                .map(|(at, row)| rows[*row].0 * deviations[at])
                .collect();
            let mut schedule =
                Schedule::new(order.iter().map(|row| (*row, expected(rows[*row].1))));
            for at in 0..order.len() {
                let truth_s: f64 = took[at..].iter().sum();
                if at >= rows.len() {
                    let left_s = schedule.left_s(0.0);
                    let ratio = left_s / truth_s;
                    prop_assert!((0.8..1.25).contains(&ratio), "{left_s} s for {truth_s} s");
                    let half = schedule.left_s(took[at] / 2.0);
                    prop_assert!(half < left_s && half >= 0.0);
                }
                schedule.ended(took[at]);
            }
            prop_assert_eq!(schedule.left_s(0.0), 0.0);
        }

        /// Also before: if all rows take some factor longer than expected, the time left follows.
        #[test]
        fn time_left_follows_the_pace_of_ended_trials(
            expected_s in prop::collection::vec(0.5..5.0f64, 40),
            factor in 0.2..5.0f64,
        ) {
            let rows = expected_s.iter().enumerate().map(|(row, s)| (row, expected(*s)));
            let mut schedule = Schedule::new(rows);
            for s in &expected_s[..20] {
                schedule.ended(s * factor);
            }
            let truth_s: f64 = expected_s[20..].iter().map(|s| s * factor).sum();
            let ratio = schedule.left_s(0.0) / truth_s;
            prop_assert!((0.6..1.7).contains(&ratio), "{ratio}");
        }
    }

    #[test]
    fn a_trial_that_takes_longer_than_expected_has_nothing_left() {
        let mut schedule = Schedule::new([(1, expected(2.0)), (2, expected(3.0))]);
        assert_eq!(schedule.left_s(100.0), 3.0);
        schedule.ended(2.0);
        schedule.ended(3.0);
        schedule.ended(1.0);
        assert_eq!(schedule.left_s(0.0), 0.0);
    }
}
