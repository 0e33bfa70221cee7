//! Which of many hosts are the best: all are tried in rounds, and those that are surely not among
//! the best are stopped early.
//!
//! A trial gives one figure, of which less is better; what counts is its logarithm. After each
//! round, a candidate stops if it is worse than each of the best `keep` beyond a limit. Noise is
//! taken to be normal on a logarithmic scale. Its deviation is that of all candidates together, or
//! a candidate's own if that is larger. The limit is corrected for all pairs of a candidate that
//! should be kept and one that should not, and for all rounds (Bonferroni). So one of the best is
//! stopped in at most 5 of 100 hunts. A hunt ends when `keep` are left, when those that could
//! change places are equal within an indifference, or after a number of rounds.

use nm_model::Outcome;
use nm_model::result::RunState;
use nm_stats::describe::mean;
use nm_stats::run_effect::student;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::hosts::FleetHost;

/// Chance that one of the best is stopped.
const ALPHA: f64 = 0.05;

/// Degrees of freedom of the deviation below which nothing is decided.
const FREEDOM_MIN: usize = 8;

/// Failures of a candidate after which it is set aside.
const FAILURES_MAX: u32 = 2;

/// Most rounds.
pub const ROUNDS_MAX: u32 = 100;

/// What is hunted for.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HuntRules {
    /// How many are kept.
    pub keep: usize,
    /// Most trials of a candidate.
    pub rounds: u32,
    /// Ratio of figures within which it does not matter which one is kept, %.
    pub indifference_percent: f64,
}

/// Where a candidate stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It is tried on.
    Live,
    /// It is surely none of the best.
    Stopped,
    /// It cannot be measured, and why.
    SetAside(String),
}

#[derive(Debug, Clone)]
struct Candidate {
    logs: Vec<f64>,
    is_running: bool,
    n_failures: u32,
    standing: Standing,
}

/// A hunt and how far it is.
#[derive(Debug, Clone)]
pub struct Hunt {
    rules: HuntRules,
    parallel: usize,
    candidates: Vec<Candidate>,
    round: usize,
    is_done: bool,
}

/// How much the figure of a candidate is known to be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Standard {
    /// Its figure divided by that of the last one that is kept.
    pub ratio: f64,
    /// 95 % interval of the ratio; absent while the deviation is hardly known.
    pub interval: Option<[f64; 2]>,
}

impl Hunt {
    /// Before the first trial of `n` candidates, of which `parallel` are tried at once.
    pub fn new(n: usize, rules: HuntRules, parallel: usize) -> Hunt {
        assert!(rules.keep > 0 && parallel > 0, "something is kept, and something is started");
        let candidate =
            Candidate { logs: vec![], is_running: false, n_failures: 0, standing: Standing::Live };
        Hunt { rules, parallel, candidates: vec![candidate; n], round: 1, is_done: n == 0 }
    }

    /// The candidates to try now; they count as started.
    pub fn start(&mut self) -> Vec<usize> {
        let n_running = self.candidates.iter().filter(|one| one.is_running).count();
        let n_free = self.parallel.saturating_sub(n_running);
        let round = self.round;
        let is_due = |one: &Candidate| {
            one.standing == Standing::Live && !one.is_running && one.logs.len() < round
        };
        let due: Vec<usize> =
            (0..self.candidates.len()).filter(|at| is_due(&self.candidates[*at])).collect();
        let due: Vec<usize> = due.into_iter().take(if self.is_done { 0 } else { n_free }).collect();
        due.iter().for_each(|at| self.candidates[*at].is_running = true);
        due
    }

    /// Takes the figure of a candidate that was started.
    ///
    /// A figure that has no logarithm is a failure.
    pub fn measured(&mut self, at: usize, figure: f64) {
        let log = figure.ln();
        if !log.is_finite() {
            return self.failed(at, "its figure is zero");
        }
        self.candidates[at].is_running = false;
        self.candidates[at].logs.push(log);
        self.close_round();
    }

    /// Takes a failure of a candidate that was started; a second one sets it aside.
    pub fn failed(&mut self, at: usize, reason: &str) {
        let one = &mut self.candidates[at];
        one.is_running = false;
        one.n_failures += 1;
        if one.n_failures >= FAILURES_MAX {
            one.standing = Standing::SetAside(reason.to_string());
        }
        self.close_round();
    }

    /// Whether nothing is left to try.
    pub fn is_done(&self) -> bool {
        self.is_done
    }

    /// Trials with a figure so far.
    pub fn n_trials(&self) -> usize {
        self.candidates.iter().map(|one| one.logs.len()).sum()
    }

    /// Candidates that are still tried, and the round that they are in.
    pub fn live(&self) -> (usize, usize) {
        (self.of(&Standing::Live).len(), self.round)
    }

    /// Where a candidate stands, and its number of trials.
    pub fn standing(&self, at: usize) -> (&Standing, usize) {
        (&self.candidates[at].standing, self.candidates[at].logs.len())
    }

    /// Geometric mean of the figures of a candidate.
    pub fn figure(&self, at: usize) -> Option<f64> {
        mean(&self.candidates[at].logs).map(f64::exp)
    }

    /// The candidates that are kept so far, the best first.
    pub fn kept(&self) -> Vec<usize> {
        let mut ranked = self.ranked();
        ranked.truncate(self.rules.keep);
        ranked
    }

    /// The figure of a candidate against that of the last one that is kept.
    pub fn standard(&self, at: usize) -> Option<Standard> {
        let last = *self.kept().last()?;
        let log = mean(&self.candidates[at].logs)? - mean(&self.candidates[last].logs)?;
        let interval = self.deviation().map(|(variance, freedom)| {
            let limit = student(ALPHA / 2.0, freedom) * self.sd(at, last, variance);
            [(log - limit).exp(), (log + limit).exp()]
        });
        Some(Standard { ratio: log.exp(), interval: interval.filter(|_| at != last) })
    }

    fn of(&self, standing: &Standing) -> Vec<usize> {
        let all = 0..self.candidates.len();
        all.filter(|at| self.candidates[*at].standing == *standing).collect()
    }

    /// Live candidates with a figure, the best first.
    fn ranked(&self) -> Vec<usize> {
        let level = |at: &usize| mean(&self.candidates[*at].logs).unwrap_or(f64::INFINITY);
        let mut live = self.of(&Standing::Live);
        live.retain(|at| !self.candidates[*at].logs.is_empty());
        live.sort_by(|a, b| level(a).total_cmp(&level(b)));
        live
    }

    /// Variance of a trial over all candidates, and its degrees of freedom.
    fn deviation(&self) -> Option<(f64, f64)> {
        let (mut squares, mut freedom) = (0.0, 0);
        for one in &self.candidates {
            let Some(mean) = mean(&one.logs) else { continue };
            squares += one.logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>();
            freedom += one.logs.len() - 1;
        }
        (freedom >= FREEDOM_MIN).then(|| (squares / freedom as f64, freedom as f64))
    }

    /// Deviation of the difference of two candidates, if a trial has this variance.
    fn sd(&self, a: usize, b: usize, variance: f64) -> f64 {
        let of = |at: usize| {
            let logs = &self.candidates[at].logs;
            let own = nm_stats::describe::stddev(logs).map_or(0.0, |sd| sd * sd);
            variance.max(own) / logs.len() as f64
        };
        (of(a) + of(b)).sqrt()
    }

    /// Decides when all live candidates have been tried in this round.
    fn close_round(&mut self) {
        let round = self.round;
        let is_open = |one: &Candidate| {
            one.is_running || (one.standing == Standing::Live && one.logs.len() < round)
        };
        if self.candidates.iter().any(is_open) {
            return;
        }
        let is_equal = self.stop_worse();
        let n_live = self.of(&Standing::Live).len();
        self.is_done = n_live <= self.rules.keep || is_equal || round >= self.rules.rounds as usize;
        self.round += usize::from(!self.is_done);
    }

    /// Stops those that are surely none of the best. Whether the rest is equal within the
    /// indifference.
    fn stop_worse(&mut self) -> bool {
        let ranked = self.ranked();
        let Some((variance, freedom)) = self.deviation() else { return false };
        let (best, others) = ranked.split_at(self.rules.keep.min(ranked.len()));
        let n_pairs = self.rules.keep * self.candidates.len().saturating_sub(self.rules.keep);
        let n_looks = self.rules.rounds.max(2) as usize - 1;
        let quantile = student(ALPHA / (n_pairs.max(1) * n_looks) as f64, freedom);
        let level = |at: usize| mean(&self.candidates[at].logs).unwrap_or(f64::INFINITY);
        let limit = |a: usize, b: usize| quantile * self.sd(a, b, variance);
        let is_worse = |other: &usize| {
            best.iter().all(|one| level(*other) - level(*one) > limit(*other, *one))
        };
        let worse: Vec<usize> = others.iter().copied().filter(is_worse).collect();
        let margin = (1.0 + self.rules.indifference_percent / 100.0).ln();
        let left = others.iter().filter(|other| !worse.contains(other));
        let is_equal = left.clone().all(|other| {
            best.iter().all(|one| limit(*other, *one) - (level(*other) - level(*one)) <= margin)
        });
        worse.into_iter().for_each(|at| self.candidates[at].standing = Standing::Stopped);
        is_equal
    }
}

/// What a hunt found, `hunt.json`.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct HuntResult {
    /// Version of nearmetal.
    pub nearmetal_version: String,
    /// The plan of each trial.
    pub plan: String,
    /// The figure that decides: `median` or `p99`.
    pub figure: String,
    /// The series that the figure is of, if there was a trial.
    pub series: Option<String>,
    /// What was hunted for.
    pub rules: HuntRules,
    /// Whether it came to its end.
    pub state: RunState,
    /// Pass if as many are kept as were wanted, else inconclusive.
    pub outcome: Outcome,
    /// Trials with a figure.
    pub n_trials: usize,
    /// Trials that it would have taken to try all alike.
    pub n_trials_alike: usize,
    /// The candidates, the best first.
    pub candidates: Vec<HuntCandidate>,
}

/// What became of a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum HuntFate {
    /// One of the best.
    Kept,
    /// Not told apart from the last one that is kept, and not better.
    NotKept,
    /// Surely none of the best.
    Stopped,
    /// It could not be measured.
    SetAside,
}

/// A candidate of a hunt.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct HuntCandidate {
    /// The host.
    pub host: FleetHost,
    /// What became of it.
    pub fate: HuntFate,
    /// Its trials with a figure.
    pub n_trials: usize,
    /// Geometric mean of its figures, ns.
    pub figure_ns: Option<f64>,
    /// Its figure divided by that of the last one that is kept.
    pub ratio: Option<f64>,
    /// 95 % interval of the ratio, by itself.
    pub interval: Option<[f64; 2]>,
    /// The same in a sentence.
    pub sentence: String,
}

impl Hunt {
    /// The candidates with what became of them, the best first. `figure` is its name.
    pub fn found(&self, hosts: &[FleetHost], figure: &str) -> Vec<HuntCandidate> {
        let kept = self.kept();
        let last = kept.last().map(|at| hosts[*at].name.as_str());
        let one = |at: usize| {
            let fate = match &self.candidates[at].standing {
                Standing::SetAside(_) => HuntFate::SetAside,
                Standing::Stopped => HuntFate::Stopped,
                Standing::Live if kept.contains(&at) => HuntFate::Kept,
                Standing::Live => HuntFate::NotKept,
            };
            let standard = self.standard(at);
            HuntCandidate {
                host: hosts[at].clone(),
                fate,
                n_trials: self.candidates[at].logs.len(),
                figure_ns: self.figure(at),
                ratio: standard.map(|it| it.ratio),
                interval: standard.and_then(|it| it.interval),
                sentence: self.sentence(at, fate, &hosts[at].name, figure, last),
            }
        };
        let mut all: Vec<HuntCandidate> = (0..hosts.len()).map(one).collect();
        let level = |one: &HuntCandidate| one.figure_ns.unwrap_or(f64::INFINITY);
        all.sort_by(|a, b| a.fate.cmp(&b.fate).then(level(a).total_cmp(&level(b))));
        all
    }

    fn sentence(
        &self,
        at: usize,
        fate: HuntFate,
        name: &str,
        figure: &str,
        last: Option<&str>,
    ) -> String {
        let n_trials = match self.candidates[at].logs.len() {
            1 => "1 trial".to_string(),
            n => format!("{n} trials"),
        };
        let against = match (self.standard(at), last) {
            (Some(Standard { ratio, interval }), Some(last)) if last != name => {
                let interval = interval.map_or("interval not known".to_string(), |[low, high]| {
                    format!("95 %: {low:.2} to {high:.2}")
                });
                format!(
                    "its {figure} is {ratio:.2} times that of {last}, the last one kept \
                     ({interval})"
                )
            }
            _ => "it is the last one".to_string(),
        };
        match (fate, &self.candidates[at].standing) {
            (_, Standing::SetAside(reason)) => format!("{name} was set aside: {reason}"),
            (HuntFate::Kept, _) => format!("{name} is kept after {n_trials}: {against}"),
            (HuntFate::Stopped, _) => format!("{name} was stopped after {n_trials}: {against}"),
            _ if self.candidates[at].logs.is_empty() => format!("{name} has no trial"),
            _ => format!("{name} is not kept after {n_trials}, but may be as good: {against}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use nm_stats::random::Random;

    use super::*;

    const RULES: HuntRules = HuntRules { keep: 5, rounds: 12, indifference_percent: 5.0 };

    fn normal(random: &mut Random) -> f64 {
        let [u, v] = [(); 2].map(|()| random.below(1 << 30) as f64 / f64::from(1 << 30));
        (-2.0 * (u + 1e-12).ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }

    /// Hunts among candidates of these levels, with so much noise.
    fn hunted(levels: &[f64], rules: HuntRules, noise: f64, random: &mut Random) -> Hunt {
        let mut hunt = Hunt::new(levels.len(), rules, 8);
        while !hunt.is_done() {
            let started = hunt.start();
            assert!(!started.is_empty(), "a hunt that is not done has something to try");
            for at in started {
                hunt.measured(at, (levels[at] + noise * normal(random)).exp());
            }
        }
        hunt
    }

    #[test]
    fn of_100_candidates_the_best_are_kept_at_less_than_half_of_the_trials() {
        let (mut n_right, mut n_trials) = (0, 0);
        for seed in 1..=100 {
            let mut random = Random::new(seed);
            let levels: Vec<f64> = (0..100).map(|_| 0.15 * normal(&mut random)).collect();
            let hunt = hunted(&levels, RULES, 0.05, &mut random);
            let mut sorted = levels.clone();
            sorted.sort_by(f64::total_cmp);
            let bound = sorted[RULES.keep - 1] + 1.05_f64.ln();
            let kept = hunt.kept();
            assert_eq!(kept.len(), RULES.keep);
            n_right += usize::from(kept.iter().all(|at| levels[*at] <= bound));
            n_trials += hunt.n_trials();
        }
        assert!(n_right >= 95, "{n_right} of 100");
        let of_all_alike = 100 * 100 * RULES.rounds as usize;
        assert!(n_trials * 2 <= of_all_alike, "{n_trials} of {of_all_alike}");
        println!("{n_right} of 100 right, {n_trials} of {of_all_alike} trials");
    }

    #[test]
    fn one_of_the_best_is_stopped_in_at_most_5_of_100_hunts() {
        // The worst case: all are equal but for a hair.
        let levels: Vec<f64> = (0..20).map(|at| f64::from(at) * 1e-6).collect();
        let n_wrong = (1..=200)
            .filter(|seed| {
                let rules = HuntRules { keep: 3, rounds: 8, indifference_percent: 0.0 };
                let hunt = hunted(&levels, rules, 0.05, &mut Random::new(*seed));
                (0..3).any(|at| *hunt.standing(at).0 == Standing::Stopped)
            })
            .count();
        assert!(n_wrong <= 10, "{n_wrong} of 200");
    }

    #[test]
    fn a_candidate_that_fails_twice_is_set_aside_with_its_reason() {
        let rules = HuntRules { keep: 1, rounds: 4, indifference_percent: 5.0 };
        let mut hunt = Hunt::new(3, rules, 1);
        let mut n_tries = [0; 3];
        while !hunt.is_done() {
            for at in hunt.start() {
                n_tries[at] += 1;
                match at {
                    1 => hunt.failed(at, "no route"),
                    _ => hunt.measured(at, 100.0 * (at + 1) as f64 + f64::from(n_tries[at])),
                }
            }
        }
        assert_eq!(hunt.standing(1), (&Standing::SetAside("no route".to_string()), 0));
        assert_eq!((n_tries[1], hunt.kept()), (2, vec![0]));
        assert!(hunt.standard(2).unwrap().ratio > 2.5, "{:?}", hunt.standard(2));
        let mut none = Hunt::new(1, rules, 1);
        while !none.is_done() {
            none.start().into_iter().for_each(|at| none.measured(at, 0.0));
        }
        assert_eq!(none.kept(), Vec::<usize>::new());
    }
}
