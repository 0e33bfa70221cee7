//! Which hosts and pairs stand out: a slow host is distinguished from a slow pair.
//!
//! The logarithm of a figure between hosts i and j is `m + h_i + h_j + e_ij`, and a constant for
//! pairs across groups is added. All parts are fitted by medians (Tukey's median polish), so that
//! fewer than half of a host's pairs cannot move its effect. A host stands out by its `h`, a pair
//! by its `e`. Each is divided by the scale that the median absolute deviation of all gives.
//! Simulated normal fleets of the same pairs say what the largest quotient of a fleet without
//! outliers is. So the limits hold for few hosts and few pairs too.

use nm_stats::random::Random;

/// Converts the median absolute deviation of normal values to their standard deviation.
const NORMAL_SCALE: f64 = 1.482_602_218_505_602;

/// Standard error of a median against that of a mean, for normal values.
const MEDIAN_LOSS: f64 = 1.253_314_137;

/// Probability of any false claim about hosts, and about pairs, for each figure. Two figures are
/// judged: 4 % together.
pub const ALPHA: f64 = 0.01;

/// A ratio below this is no claim, however certain it is.
pub const RATIO_MIN: f64 = 1.05;

/// Fewest pairs that tell a slow host from a slow pair.
pub const DEGREE_MIN: usize = 3;

/// Fewest hosts with so many pairs for any claim.
pub const HOSTS_MIN: usize = 5;

/// Most passes of the polish, and the change at which it ends.
const PASSES_MAX: usize = 30;
const CHANGE_MIN: f64 = 1e-7;

/// A measured pair.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Observation {
    /// Its ends, as places in the list of hosts.
    pub ends: [usize; 2],
    /// Whether the ends are of different groups.
    pub is_across: bool,
    /// Natural logarithm of the figure.
    pub log: f64,
}

/// The parts of the model.
#[derive(Debug, Clone)]
pub struct Fit {
    /// Natural logarithm of the median pair, within groups and across.
    pub centre: [f64; 2],
    /// Effect of each host; none without pairs.
    pub hosts: Vec<Option<f64>>,
    /// Pairs of each host.
    pub degrees: Vec<usize>,
    /// What remains of each pair, in the order of the observations.
    pub residuals: Vec<f64>,
    /// Standard deviation of what remains, corrected for what the fit took.
    pub scale: f64,
}

/// The largest quotients of a fleet without outliers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Of hosts.
    pub host: f64,
    /// Of pairs.
    pub pair: f64,
    /// Half of a host's 95 % interval, in standard errors as `Fit::error` has them.
    pub half_interval: f64,
}

/// A host or a pair that stands out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outlier {
    /// Place in the list of hosts, or of the observations.
    pub at: usize,
    /// How many times as long as without its effect.
    pub ratio: f64,
    /// 95 % interval of the ratio.
    pub interval: [f64; 2],
}

/// All that stands out.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outliers {
    /// Hosts, the slowest first.
    pub hosts: Vec<Outlier>,
    /// Pairs, the slowest first.
    pub pairs: Vec<Outlier>,
}

fn median(values: &mut [f64]) -> Option<f64> {
    let n = values.len();
    if n == 0 {
        return None;
    }
    let (low, middle, _) = values.select_nth_unstable_by(n / 2, f64::total_cmp);
    let middle = *middle;
    match n % 2 {
        1 => Some(middle),
        _ => Some((low.iter().copied().fold(f64::NEG_INFINITY, f64::max) + middle) / 2.0),
    }
}

/// Scale of values about their median, as the standard deviation of normal ones.
fn scale_of(values: &[f64]) -> Option<f64> {
    let centre = median(&mut values.to_vec())?;
    let mut distances: Vec<f64> = values.iter().map(|value| (value - centre).abs()).collect();
    median(&mut distances).map(|mad| mad * NORMAL_SCALE)
}

/// Takes the median of the chosen residuals out of them, and returns it.
fn take_out(residuals: &mut [f64], chosen: &[usize], scratch: &mut Vec<f64>) -> f64 {
    scratch.clear();
    scratch.extend(chosen.iter().map(|at| residuals[*at]));
    let Some(middle) = median(scratch) else { return 0.0 };
    chosen.iter().for_each(|at| residuals[*at] -= middle);
    middle
}

/// Fits the model to the pairs of `n_hosts`.
pub fn fit(n_hosts: usize, observations: &[Observation]) -> Fit {
    assert!(observations.iter().all(|one| one.log.is_finite() && one.ends[0] != one.ends[1]));
    let mut of_host = vec![vec![]; n_hosts];
    let mut of_class = [vec![], vec![]];
    for (at, one) in observations.iter().enumerate() {
        one.ends.iter().for_each(|end| of_host[*end].push(at));
        of_class[usize::from(one.is_across)].push(at);
    }
    let mut residuals: Vec<f64> = observations.iter().map(|one| one.log).collect();
    let (mut hosts, mut centre, mut scratch) = (vec![0.0; n_hosts], [0.0; 2], vec![]);
    for _ in 0..PASSES_MAX {
        let mut largest = 0.0_f64;
        for (part, chosen) in centre.iter_mut().zip(&of_class) {
            let change = take_out(&mut residuals, chosen, &mut scratch);
            *part += change;
            largest = largest.max(change.abs());
        }
        for (part, chosen) in hosts.iter_mut().zip(&of_host) {
            let change = take_out(&mut residuals, chosen, &mut scratch);
            *part += change;
            largest = largest.max(change.abs());
        }
        if largest < CHANGE_MIN {
            break;
        }
    }
    let degrees: Vec<usize> = of_host.iter().map(Vec::len).collect();
    let mut present: Vec<f64> =
        hosts.iter().zip(&degrees).filter(|(_, n)| **n > 0).map(|(h, _)| *h).collect();
    let n_parts = present.len() + of_class.iter().filter(|class| !class.is_empty()).count();
    let middle = median(&mut present).unwrap_or(0.0);
    let hosts = hosts.iter().zip(&degrees).map(|(h, n)| (*n > 0).then_some(h - middle)).collect();
    let left = (observations.len() + 1).saturating_sub(n_parts).max(1);
    let lost = observations.len() as f64 / left as f64;
    let scale = scale_of(&residuals).unwrap_or(0.0) * lost.sqrt();
    Fit { centre: centre.map(|part| part + 2.0 * middle), hosts, degrees, residuals, scale }
}

impl Fit {
    /// Whether a slow host and a slow pair differ there.
    fn is_judged(&self, host: usize) -> bool {
        self.degrees[host] >= DEGREE_MIN
    }

    fn judged_hosts(&self) -> Vec<(usize, f64)> {
        let all = self.hosts.iter().enumerate();
        all.filter_map(|(at, h)| Some((at, (*h)?))).filter(|(at, _)| self.is_judged(*at)).collect()
    }

    /// The ratio of a host to the median one, with its 95 % interval; none without pairs, and none
    /// where so few hosts were measured that the interval has no end.
    pub fn ratio(&self, host: usize, limits: Limits) -> Option<(f64, [f64; 2])> {
        let log = self.hosts[host]?;
        let half_width = self.error(host) * limits.half_interval;
        half_width.is_finite().then(|| with_interval(log, half_width))
    }

    /// Standard error of a host's effect, if residuals were normal and their scale known.
    fn error(&self, host: usize) -> f64 {
        self.scale * MEDIAN_LOSS / (self.degrees[host] as f64).sqrt()
    }

    /// The effect of a pair, with its 95 % interval: its own noise, and the errors of its hosts.
    fn pair_ratio(&self, at: usize, ends: [usize; 2]) -> (f64, [f64; 2]) {
        let of_hosts: f64 = ends.iter().map(|end| self.error(*end).powi(2)).sum();
        let error = (self.scale.powi(2) + of_hosts).sqrt();
        with_interval(self.residuals[at], error * 1.96)
    }
}

/// `exp(log)` and its interval.
fn with_interval(log: f64, half_width: f64) -> (f64, [f64; 2]) {
    (log.exp(), [(log - half_width).exp(), (log + half_width).exp()])
}

/// Quotients of values by their scale; none if there is no scale.
fn quotients(values: &[f64]) -> Option<Vec<f64>> {
    let centre = median(&mut values.to_vec())?;
    let scale = scale_of(values).filter(|scale| *scale > 0.0)?;
    Some(values.iter().map(|value| (value - centre) / scale).collect())
}

fn largest(values: &[f64]) -> f64 {
    quotients(values).map_or(0.0, |all| all.into_iter().fold(0.0, f64::max))
}

/// The limits for the pairs of `observations`, whose figures do not matter.
pub fn limits(n_hosts: usize, observations: &[Observation], seed: u64) -> Limits {
    let mut random = Random::new(seed);
    let n_judged = fit(n_hosts, observations).judged_hosts().len();
    let n_fleets = (4_000_000 / n_judged.max(1)).clamp(2_000, 20_000);
    let of_hosts = (0..n_fleets).map(|_| {
        let values: Vec<f64> = (0..n_judged).map(|_| gauss(&mut random)).collect();
        largest(&values)
    });
    let host = upper(of_hosts.collect());
    let n_fleets = (800_000 / observations.len().max(1)).clamp(24, 1_000);
    let (mut of_pairs, mut of_effects) = (vec![], vec![]);
    for _ in 0..n_fleets {
        let noise = |one: &Observation| Observation { log: gauss(&mut random), ..*one };
        let simulated: Vec<Observation> = observations.iter().map(noise).collect();
        let fit = fit(n_hosts, &simulated);
        of_pairs.push(largest(&fit.residuals));
        let effects: Vec<(usize, f64)> =
            fit.hosts.iter().enumerate().filter_map(|(at, h)| Some((at, (*h)?))).collect();
        // Where hosts differ, the median one is one of them, or two, whose own errors count.
        let mut one = || effects[random.below(effects.len())].1;
        let middle = if effects.len() % 2 == 1 { one() } else { (one() + one()) / 2.0 };
        of_effects.extend(effects.iter().map(|(at, h)| (h - middle).abs() / fit.error(*at)));
    }
    of_effects.retain(|quotient| quotient.is_finite());
    of_effects.sort_by(f64::total_cmp);
    let rank = (0.95 * of_effects.len() as f64) as usize;
    let half_interval = of_effects.get(rank).copied().unwrap_or(f64::INFINITY);
    Limits { host, pair: upper(of_pairs), half_interval }
}

/// A standard normal value (Box and Muller).
fn gauss(random: &mut Random) -> f64 {
    let (radius, angle) = (1.0 - random.unit(), std::f64::consts::TAU * random.unit());
    (-2.0 * radius.ln()).sqrt() * angle.cos()
}

/// What maxima exceed with probability [`ALPHA`]: as they are if there are many, else by Gumbel's
/// distribution of their mean and deviation.
fn upper(mut maxima: Vec<f64>) -> f64 {
    const MANY: usize = 1_000;
    if maxima.len() >= MANY {
        maxima.sort_by(f64::total_cmp);
        let rank = ((1.0 - ALPHA) * maxima.len() as f64).ceil() as usize;
        return maxima[rank.min(maxima.len() - 1)];
    }
    let mean = nm_stats::describe::mean(&maxima).unwrap_or(0.0);
    let deviation = nm_stats::describe::stddev(&maxima).unwrap_or(0.0);
    const EULER: f64 = 0.577_215_664_9;
    let reduced = -(-(1.0 - ALPHA).ln()).ln() - EULER;
    mean + deviation * reduced * 6.0_f64.sqrt() / std::f64::consts::PI
}

/// What stands out by `limits`: only what is slower, by [`RATIO_MIN`] at least.
pub fn outliers(observations: &[Observation], fit: &Fit, limits: Limits) -> Outliers {
    let judged = fit.judged_hosts();
    if judged.len() < HOSTS_MIN {
        return Outliers::default();
    }
    let effects: Vec<f64> = judged.iter().map(|(_, h)| *h).collect();
    let mut hosts: Vec<Outlier> = beyond(&effects, limits.host)
        .into_iter()
        .filter_map(|at| {
            let (ratio, interval) = fit.ratio(judged[at].0, limits)?;
            Some(Outlier { at: judged[at].0, ratio, interval })
        })
        .collect();
    let is_judged = |at: &usize| observations[*at].ends.iter().all(|end| fit.is_judged(*end));
    let of_pair = |at: usize| {
        let (ratio, interval) = fit.pair_ratio(at, observations[at].ends);
        Outlier { at, ratio, interval }
    };
    let beyond = beyond(&fit.residuals, limits.pair).into_iter();
    let mut pairs: Vec<Outlier> = beyond.filter(is_judged).map(of_pair).collect();
    for all in [&mut hosts, &mut pairs] {
        all.retain(|one| one.ratio >= RATIO_MIN);
        all.sort_by(|a, b| b.ratio.total_cmp(&a.ratio));
    }
    Outliers { hosts, pairs }
}

/// Places of the values whose quotient is beyond `limit`. Values that are equal but for a few have
/// no scale: then what differs is beyond it.
fn beyond(values: &[f64], limit: f64) -> Vec<usize> {
    match quotients(values) {
        Some(all) => (0..all.len()).filter(|at| all[*at] > limit).collect(),
        None => {
            let centre = median(&mut values.to_vec()).unwrap_or(0.0);
            (0..values.len()).filter(|at| values[*at] > centre).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pairs::{Pairs, rounds};

    fn design(n: usize, pairs: Pairs) -> Vec<Observation> {
        let all = rounds(n, pairs, false, 7).unwrap();
        let pair =
            |pair: &crate::Pair| Observation { ends: pair.ends(), is_across: false, log: 0.0 };
        all.iter().flatten().map(pair).collect()
    }

    /// Figures of a fleet whose hosts differ by 3 % and whose pairs by 4 %.
    fn fleet(
        design: &[Observation],
        n: usize,
        seed: u64,
        slow: impl Fn([usize; 2]) -> f64,
    ) -> Vec<Observation> {
        let mut random = Random::new(seed);
        let hosts: Vec<f64> = (0..n).map(|_| 0.03 * gauss(&mut random)).collect();
        let figure = |one: &Observation| {
            let [a, b] = one.ends;
            let log = 9.0 + hosts[a] + hosts[b] + 0.04 * gauss(&mut random) + slow(one.ends);
            Observation { log, ..*one }
        };
        design.iter().map(figure).collect()
    }

    fn found(
        observations: &[Observation],
        n: usize,
        limits: Limits,
    ) -> (Vec<usize>, Vec<[usize; 2]>) {
        let found = outliers(observations, &fit(n, observations), limits);
        let pairs = found.pairs.iter().map(|one| observations[one.at].ends).collect();
        (found.hosts.iter().map(|one| one.at).collect(), pairs)
    }

    /// One host of 256 makes its pairs a quarter slower; in as many fleets nothing is planted.
    #[test]
    fn a_planted_slow_host_is_found_and_none_is_claimed_without() {
        let (n, runs) = (256, 100);
        let design = design(n, Pairs::Sample(12));
        let limits = limits(n, &design, 1);
        let (mut n_found, mut n_claimed) = (0, 0);
        for seed in 0..runs {
            let slow = |ends: [usize; 2]| if ends.contains(&17) { 0.223 } else { 0.0 };
            let with = fleet(&design, n, seed, slow);
            n_found += u32::from(found(&with, n, limits).0 == [17]);
            let without = fleet(&design, n, 1_000 + seed, |_| 0.0);
            n_claimed += u32::from(found(&without, n, limits) != (vec![], vec![]));
        }
        assert!(n_found >= 95 && n_claimed <= 5, "found {n_found}, claimed {n_claimed} of {runs}");
    }

    #[test]
    fn false_claims_are_rare_in_small_fleets_too() {
        for (n, pairs) in [(6, Pairs::All), (12, Pairs::All), (24, Pairs::Sample(6))] {
            let design = design(n, pairs);
            let limits = limits(n, &design, 1);
            let is_claimed = |seed: &u64| {
                found(&fleet(&design, n, *seed, |_| 0.0), n, limits) != (vec![], vec![])
            };
            let n_claimed = (0..400).filter(is_claimed).count();
            assert!(n_claimed <= 20, "{n} hosts: {n_claimed} of 400");
        }
    }

    /// A bad cable makes one pair slow, and neither of its hosts.
    #[test]
    fn a_slow_pair_is_distinguished_from_a_slow_host() {
        let n = 64;
        let design = design(n, Pairs::Sample(12));
        let (limits, bad) = (limits(n, &design, 1), design[100].ends);
        let is_found = |seed: &u64| {
            let slow = |ends: [usize; 2]| if ends == bad { 0.4 } else { 0.0 };
            found(&fleet(&design, n, *seed, slow), n, limits) == (vec![], vec![bad])
        };
        let n_found = (0..100).filter(is_found).count();
        assert!(n_found >= 95, "{n_found} of 100");
    }

    #[test]
    fn pairs_across_groups_may_all_be_slower() {
        let n = 32;
        let across = |ends: [usize; 2]| (ends[0] < 16) != (ends[1] < 16);
        let mut design = design(n, Pairs::All);
        design.iter_mut().for_each(|one| one.is_across = across(one.ends));
        let limits = limits(n, &design, 1);
        let with = fleet(&design, n, 3, |ends| if across(ends) { 0.5 } else { 0.0 });
        let fit = fit(n, &with);
        assert!((fit.centre[1] - fit.centre[0] - 0.5).abs() < 0.03, "{:?}", fit.centre);
        assert_eq!(found(&with, n, limits), (vec![], vec![]));
    }

    #[test]
    fn intervals_hold_the_true_ratio_in_about_95_of_100() {
        for (n, pairs) in [(16, Pairs::All), (48, Pairs::Sample(8))] {
            let design = design(n, pairs);
            let limits = limits(n, &design, 1);
            let (mut n_within, mut n_all) = (0, 0);
            for seed in 0..60 {
                let mut random = Random::new(seed);
                let truth: Vec<f64> = (0..n).map(|_| 0.05 * gauss(&mut random)).collect();
                let figure = |one: &Observation| {
                    let [a, b] = one.ends;
                    Observation { log: truth[a] + truth[b] + 0.03 * gauss(&mut random), ..*one }
                };
                let with: Vec<Observation> = design.iter().map(figure).collect();
                let (fit, middle) = (fit(n, &with), median(&mut truth.clone()).unwrap());
                for (at, truth) in truth.iter().enumerate() {
                    let ([low, high], truth) =
                        (fit.ratio(at, limits).unwrap().1, (truth - middle).exp());
                    n_within += usize::from(low <= truth && truth <= high);
                    n_all += 1;
                }
            }
            let share = n_within as f64 / n_all as f64;
            assert!((0.93..=0.985).contains(&share), "{n} hosts, {pairs}: {share:.3}");
        }
    }

    #[test]
    fn too_few_hosts_or_pairs_give_no_claim() {
        let ring = design(12, Pairs::Ring);
        let slow = |ends: [usize; 2]| if ends.contains(&3) { 3.0 } else { 0.0 };
        let with = fleet(&ring, 12, 1, slow);
        assert_eq!(
            found(&with, 12, Limits { host: 1.0, pair: 1.0, half_interval: 2.0 }),
            (vec![], vec![])
        );
        assert_eq!(fit(3, &[]).hosts, [None, None, None]);
    }

    /// One pair shows nothing of its hosts: an interval would be no number.
    #[test]
    fn two_hosts_have_no_ratio() {
        let pair = design(2, Pairs::All);
        let limits = limits(2, &pair, 1);
        let fit = fit(2, &fleet(&pair, 2, 1, |_| 0.0));
        assert_eq!([0, 1].map(|host| fit.ratio(host, limits)), [None, None]);
    }
}
