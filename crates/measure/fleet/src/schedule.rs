//! What is tried next, and what becomes of hosts that fail.
//!
//! [`Schedule::next`] says which trials to start, [`Schedule::ended`] takes what came of each. A
//! host that fails is set aside with its reason, and its pairs wait. When all others are done, each
//! such host is tried once more; if it fails again its remaining pairs are given up.

use std::collections::BTreeSet;

use crate::pairs::Pair;

/// Failures in a row, each with nobody to blame, after which a host is set aside.
const FAILURES_IN_A_ROW_MAX: u32 = 3;

/// How a trial ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// With a result.
    Measured,
    /// Without one.
    Failed {
        /// Why, as one sentence.
        reason: String,
        /// The host that is named as its cause.
        host: Option<usize>,
    },
}

/// What became of a pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// It is still to be tried.
    Waiting,
    /// It is being tried.
    Running,
    /// It has a result.
    Measured,
    /// It was tried, and has none.
    Failed(String),
    /// It was not tried, as this host was set aside.
    NotTried(usize),
}

/// A host's state.
#[derive(Debug, Clone, Default)]
struct Host {
    is_busy: bool,
    /// Why it is set aside, if it is.
    aside: Option<String>,
    failures_in_a_row: u32,
}

/// A trial to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trial {
    /// Which one, for [`Schedule::ended`].
    pub id: usize,
    /// Its ends.
    pub pair: Pair,
}

/// The trials of a fleet and how far they are.
#[derive(Debug)]
pub struct Schedule {
    pairs: Vec<Pair>,
    fates: Vec<Fate>,
    started_s: Vec<Option<f64>>,
    hosts: Vec<Host>,
    parallel: usize,
    is_second_try: bool,
    /// How long each measured trial took, s.
    took_s: Vec<f64>,
}

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// Trials with a result, or without one for good.
    pub n_ended: usize,
    /// All trials.
    pub n_all: usize,
    /// Hosts that are set aside.
    pub n_aside: usize,
    /// Time that is left, s.
    pub left_s: f64,
}

impl Schedule {
    /// The trials of `rounds` among `n_hosts`, at most `parallel` at once. `is_measured` tells
    /// which have a result of an earlier run.
    pub fn new(
        n_hosts: usize,
        rounds: &[Vec<Pair>],
        parallel: usize,
        is_measured: impl Fn(Pair) -> bool,
    ) -> Schedule {
        assert!(parallel > 0, "something must be started");
        let pairs: Vec<Pair> = rounds.iter().flatten().copied().collect();
        let fate = |pair: &Pair| match is_measured(*pair) {
            true => Fate::Measured,
            false => Fate::Waiting,
        };
        Schedule {
            fates: pairs.iter().map(fate).collect(),
            started_s: vec![None; pairs.len()],
            hosts: vec![Host::default(); n_hosts],
            pairs,
            parallel,
            is_second_try: false,
            took_s: vec![],
        }
    }

    /// The trials to start now, at `now_s`; they count as started.
    pub fn next(&mut self, now_s: f64) -> Vec<Trial> {
        if self.n_running() == 0 && !self.has_startable() && !self.is_second_try {
            self.begin_second_try();
        }
        let mut trials = vec![];
        let n_free = self.parallel.saturating_sub(self.n_running());
        for id in 0..self.pairs.len() {
            if trials.len() == n_free {
                break;
            }
            let pair = self.pairs[id];
            let is_idle = pair.ends().iter().all(|end| !self.hosts[*end].is_busy);
            if self.is_startable(id) && is_idle {
                self.fates[id] = Fate::Running;
                self.started_s[id] = Some(now_s);
                pair.ends().into_iter().for_each(|end| self.hosts[end].is_busy = true);
                trials.push(Trial { id, pair });
            }
        }
        trials
    }

    /// Takes what came of a trial that was started.
    pub fn ended(&mut self, id: usize, ended: Ended, now_s: f64) {
        assert_eq!(self.fates[id], Fate::Running, "only a started trial ends, and once");
        let ends = self.pairs[id].ends();
        ends.into_iter().for_each(|end| self.hosts[end].is_busy = false);
        match ended {
            Ended::Measured => {
                self.fates[id] = Fate::Measured;
                self.took_s.extend(self.started_s[id].map(|started_s| now_s - started_s));
                ends.into_iter().for_each(|end| self.hosts[end].failures_in_a_row = 0);
            }
            Ended::Failed { reason, host } => {
                self.fates[id] = Fate::Failed(reason.clone());
                match host.filter(|host| ends.contains(host)) {
                    Some(host) => self.set_aside(host, reason),
                    None => ends.into_iter().for_each(|end| self.count_failure(end, &reason)),
                }
            }
        }
    }

    /// Whether nothing runs and nothing is left to start.
    pub fn is_done(&self) -> bool {
        let may_try_again = !self.is_second_try && self.has_second_try();
        self.n_running() == 0 && !self.has_startable() && !may_try_again
    }

    /// What became of each trial, in the order of the rounds. To be asked at the end, or when the
    /// run is ended early.
    pub fn fates(&self) -> impl Iterator<Item = (Pair, Fate)> + '_ {
        (0..self.pairs.len()).map(|id| {
            let aside = self.pairs[id].ends().into_iter().find(|end| self.is_aside(*end));
            let fate = match (&self.fates[id], aside) {
                (Fate::Waiting, Some(host)) => Fate::NotTried(host),
                (fate, _) => fate.clone(),
            };
            (self.pairs[id], fate)
        })
    }

    /// The hosts that are set aside, each with its reason.
    pub fn set_aside_hosts(&self) -> impl Iterator<Item = (usize, &str)> {
        let all = self.hosts.iter().enumerate();
        all.filter_map(|(at, host)| Some((at, host.aside.as_deref()?)))
    }

    /// How far it is, if a trial takes `trial_s` as long as none has ended.
    pub fn progress(&self, trial_s: f64) -> Progress {
        let left: Vec<usize> = (0..self.pairs.len())
            .filter(|id| self.fates[*id] == Fate::Running || self.is_startable(*id))
            .collect();
        let mut of_host = vec![0_usize; self.hosts.len()];
        for id in &left {
            self.pairs[*id].ends().into_iter().for_each(|end| of_host[end] += 1);
        }
        let n_busiest = of_host.iter().copied().max().unwrap_or(0);
        let n_usable = of_host.iter().filter(|n| **n > 0).count();
        let at_once = self.parallel.min(n_usable / 2).max(1);
        let steps = left.len().div_ceil(at_once).max(n_busiest);
        let trial_s = nm_stats::describe::mean(&self.took_s).unwrap_or(trial_s);
        Progress {
            n_ended: self.pairs.len() - left.len(),
            n_all: self.pairs.len(),
            n_aside: self.set_aside_hosts().count(),
            left_s: steps as f64 * trial_s,
        }
    }

    fn n_running(&self) -> usize {
        self.hosts.iter().filter(|host| host.is_busy).count() / 2
    }

    fn is_aside(&self, host: usize) -> bool {
        self.hosts[host].aside.is_some()
    }

    fn is_startable(&self, id: usize) -> bool {
        self.fates[id] == Fate::Waiting
            && !self.pairs[id].ends().iter().any(|it| self.is_aside(*it))
    }

    fn has_startable(&self) -> bool {
        (0..self.pairs.len()).any(|id| self.is_startable(id))
    }

    /// Whether a failed pair, or a host that is set aside, can be tried once more.
    fn has_second_try(&self) -> bool {
        self.fates.iter().any(|fate| matches!(fate, Fate::Waiting | Fate::Failed(_)))
    }

    fn begin_second_try(&mut self) {
        self.is_second_try = true;
        self.hosts.iter_mut().for_each(|host| *host = Host::default());
        for fate in &mut self.fates {
            if matches!(fate, Fate::Failed(_)) {
                *fate = Fate::Waiting;
            }
        }
    }

    fn set_aside(&mut self, host: usize, reason: String) {
        self.hosts[host].aside.get_or_insert(reason);
    }

    fn count_failure(&mut self, host: usize, reason: &str) {
        self.hosts[host].failures_in_a_row += 1;
        if self.hosts[host].failures_in_a_row >= FAILURES_IN_A_ROW_MAX {
            self.set_aside(host, reason.to_string());
        }
    }

    /// The hosts that a trial now keeps busy.
    pub fn busy_hosts(&self) -> BTreeSet<usize> {
        (0..self.hosts.len()).filter(|host| self.hosts[*host].is_busy).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pairs::{Pairs, rounds};

    fn schedule(n: usize, parallel: usize) -> Schedule {
        Schedule::new(n, &rounds(n, Pairs::All, false, 0).unwrap(), parallel, |_| false)
    }

    fn failed(host: Option<usize>) -> Ended {
        Ended::Failed { reason: "no route".into(), host }
    }

    /// Runs all, each trial ending as `of` says; returns the tries of each pair.
    fn run(schedule: &mut Schedule, of: impl Fn(Pair, usize) -> Ended) -> Vec<Pair> {
        let mut tried = vec![];
        let mut now_s = 0.0;
        while !schedule.is_done() {
            let trials = schedule.next(now_s);
            assert!(!trials.is_empty() && tried.len() < 10_000, "it goes on");
            now_s += 10.0;
            for trial in trials {
                tried.push(trial.pair);
                schedule.ended(trial.id, of(trial.pair, tried.len()), now_s);
            }
        }
        tried
    }

    #[test]
    fn every_pair_is_measured_once_if_nothing_fails() {
        let mut schedule = schedule(8, 4);
        let mut tried = run(&mut schedule, |_, _| Ended::Measured);
        tried.sort_unstable();
        tried.dedup();
        assert_eq!(tried.len(), 28);
        assert!(schedule.fates().all(|(_, fate)| fate == Fate::Measured));
    }

    #[test]
    fn pairs_of_a_dead_host_are_not_tried_but_once_more_at_the_end() {
        let mut schedule = schedule(8, 4);
        let tried = run(&mut schedule, |pair, _| match pair.ends().contains(&3) {
            true => failed(Some(3)),
            false => Ended::Measured,
        });
        let of_dead: Vec<usize> =
            (0..tried.len()).filter(|at| tried[*at].ends().contains(&3)).collect();
        assert_eq!((of_dead.len(), *of_dead.last().unwrap()), (2, tried.len() - 1), "{of_dead:?}");
        assert_eq!(schedule.set_aside_hosts().collect::<Vec<_>>(), [(3, "no route")]);
        let n =
            |wanted: &dyn Fn(&Fate) -> bool| schedule.fates().filter(|one| wanted(&one.1)).count();
        assert_eq!(n(&|fate| *fate == Fate::Measured), 21);
        assert_eq!(n(&|fate| *fate == Fate::NotTried(3)), 6);
    }

    #[test]
    fn a_host_that_comes_back_is_measured_at_the_end() {
        let mut schedule = schedule(6, 3);
        run(&mut schedule, |pair, n| match pair.ends().contains(&2) && n < 8 {
            true => failed(Some(2)),
            false => Ended::Measured,
        });
        assert!(schedule.fates().all(|(_, fate)| fate == Fate::Measured));
        assert_eq!(schedule.set_aside_hosts().count(), 0);
    }

    #[test]
    fn one_bad_pair_sets_no_host_aside() {
        let mut schedule = schedule(6, 3);
        let bad = |pair: Pair| pair.ends().iter().all(|end| [1, 4].contains(end));
        let tried = run(&mut schedule, |pair, _| match bad(pair) {
            true => failed(None),
            false => Ended::Measured,
        });
        assert_eq!(tried.iter().filter(|pair| bad(**pair)).count(), 2);
        assert_eq!(schedule.set_aside_hosts().count(), 0);
        assert_eq!(schedule.fates().filter(|(_, fate)| matches!(fate, Fate::Failed(_))).count(), 1);
    }

    #[test]
    fn what_an_earlier_run_has_measured_is_not_tried() {
        let all = rounds(6, Pairs::All, false, 0).unwrap();
        let done = |pair: Pair| pair.ends().contains(&0);
        let mut schedule = Schedule::new(6, &all, 3, done);
        let tried = run(&mut schedule, |_, _| Ended::Measured);
        assert!(tried.len() == 10 && !tried.iter().any(|pair| done(*pair)), "{tried:?}");
    }

    #[test]
    fn the_time_left_is_that_of_the_rounds() {
        let mut schedule = schedule(8, 4);
        assert_eq!(schedule.progress(60.0).left_s, 7.0 * 60.0);
        for trial in schedule.next(0.0) {
            schedule.ended(trial.id, Ended::Measured, 30.0);
        }
        let progress = schedule.progress(60.0);
        assert_eq!((progress.n_ended, progress.n_all, progress.left_s), (4, 28, 6.0 * 30.0));
    }

    proptest! {
        #[test]
        fn any_order_of_ends_and_failures_comes_to_an_end(
            n in 2_usize..12,
            parallel in 1_usize..8,
            choices in prop::collection::vec(any::<u8>(), 1..200),
        ) {
            let mut schedule = schedule(n, parallel);
            let mut running: Vec<Trial> = vec![];
            let mut steps = 0;
            while !schedule.is_done() {
                let choice = usize::from(choices[steps % choices.len()]);
                steps += 1;
                prop_assert!(steps < 2 * n * n + 10, "no end after {} steps", steps);
                running.extend(schedule.next(steps as f64));
                prop_assert!(!running.is_empty() && running.len() <= parallel);
                let busy: BTreeSet<usize> = running.iter().flat_map(|it| it.pair.ends()).collect();
                prop_assert_eq!(busy.len(), running.len() * 2);
                prop_assert_eq!(&busy, &schedule.busy_hosts());
                let trial = running.swap_remove(choice % running.len());
                let ended = match choice % 5 {
                    0 => failed(Some(trial.pair.client)),
                    1 => failed(None),
                    2 => failed(Some(trial.pair.server)),
                    _ => Ended::Measured,
                };
                schedule.ended(trial.id, ended, steps as f64);
            }
            let is_open = |fate: &Fate| matches!(fate, Fate::Waiting | Fate::Running);
            prop_assert!(schedule.fates().all(|(_, fate)| !is_open(&fate)));
        }
    }
}
