//! The highest rate that keeps the promise: doubling until it breaks, then halving the ratio
//! between the two, then repeating both ends of the bracket.

/// How a search goes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plan {
    /// First rate that is tried, requests a second.
    pub start_per_s: f64,
    /// Highest rate that is tried.
    pub most_per_s: f64,
    /// The bracket is narrow enough when its upper end is at most so many times the lower.
    pub ratio: f64,
    /// How often each end of the bracket is tried in all.
    pub repeats: u32,
    /// Rounds after which a search ends with the bracket that it has.
    pub rounds_max: u32,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan { start_per_s: 10_000.0, most_per_s: 1e6, ratio: 1.08, repeats: 5, rounds_max: 60 }
    }
}

/// What is known of one rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tried {
    /// Requests a second.
    pub rate_per_s: f64,
    /// Rounds at this rate.
    pub rounds: u32,
    /// Those that kept the promise.
    pub kept: u32,
}

impl Tried {
    /// Whether most rounds kept it.
    pub fn is_carried(&self) -> bool {
        2 * self.kept > self.rounds
    }

    /// Lower end of the one-sided 95 % interval of the share of rounds that keep it (Clopper and
    /// Pearson, 1934).
    pub fn sure(&self) -> f64 {
        share_at_least(self.kept, self.rounds, 0.05)
    }
}

/// Where the highest rate lies.
#[derive(Debug, Clone, PartialEq)]
pub struct Bracket {
    /// Highest rate that was carried; none if not even the lowest that was tried.
    pub carried: Option<Tried>,
    /// Lowest rate above it that was not; none if the search ended at its highest rate.
    pub broken: Option<Tried>,
    /// Every rate that was tried, rising.
    pub tried: Vec<Tried>,
    /// Whether the bracket is as narrow, and tried as often, as was asked for.
    pub is_done: bool,
}

/// Lowest rate that makes sense, requests a second.
const LEAST_PER_S: f64 = 10.0;

/// Searches. `keeps` runs one round at a rate and answers whether it kept the promise.
///
/// # Errors
/// Those of `keeps`, at once.
pub fn search<E>(plan: &Plan, mut keeps: impl FnMut(f64) -> Result<bool, E>) -> Result<Bracket, E> {
    let mut known: Vec<Tried> = vec![];
    for _ in 0..plan.rounds_max {
        let Some(rate_per_s) = next(plan, &known) else { break };
        let kept = u32::from(keeps(rate_per_s)?);
        match known.iter_mut().find(|tried| tried.rate_per_s == rate_per_s) {
            Some(tried) => {
                tried.rounds += 1;
                tried.kept += kept;
            }
            None => {
                known.push(Tried { rate_per_s, rounds: 1, kept });
                known.sort_by(|a, b| a.rate_per_s.total_cmp(&b.rate_per_s));
            }
        }
    }
    let (carried, broken) = ends(&known);
    let is_done = next(plan, &known).is_none();
    Ok(Bracket { carried, broken, tried: known, is_done })
}

/// The ends of the bracket: the lowest rate that was not carried, and the highest below it that
/// was.
fn ends(known: &[Tried]) -> (Option<Tried>, Option<Tried>) {
    let broken = known.iter().find(|tried| !tried.is_carried()).copied();
    let below = |tried: &&Tried| broken.is_none_or(|b| tried.rate_per_s < b.rate_per_s);
    let carried = known.iter().rev().find(|tried| tried.is_carried() && below(tried)).copied();
    (carried, broken)
}

/// The rate of the next round; none if the search has come to its end.
fn next(plan: &Plan, known: &[Tried]) -> Option<f64> {
    // One round that breaks may be the machine's: a rate is given up when two of three break.
    let is_open =
        |tried: &&Tried| tried.rounds < 3 && tried.kept < 2 && tried.kept + 2 > tried.rounds;
    let (carried, broken) = ends(known);
    if let Some(open) = broken.as_ref().filter(is_open) {
        return Some(open.rate_per_s);
    }
    let tidy = |rate: f64| {
        let step = 10f64.powf(rate.log10().floor() - 2.0);
        (rate / step).round() * step
    };
    match (carried, broken) {
        (None, None) => Some(plan.start_per_s.min(plan.most_per_s)),
        (Some(low), None) if low.rate_per_s < plan.most_per_s => {
            Some((low.rate_per_s * 2.0).min(plan.most_per_s))
        }
        (None, Some(high)) if high.rate_per_s > LEAST_PER_S => {
            Some(tidy(high.rate_per_s / 2.0).max(LEAST_PER_S))
        }
        (Some(low), Some(high)) if high.rate_per_s > low.rate_per_s * plan.ratio => {
            let middle = tidy((low.rate_per_s * high.rate_per_s).sqrt());
            let is_inside = low.rate_per_s < middle && middle < high.rate_per_s;
            is_inside.then_some(middle).or_else(|| repeat(plan, carried, broken))
        }
        _ => repeat(plan, carried, broken),
    }
}

/// The end of the bracket that was tried less often, unless both were often enough.
fn repeat(plan: &Plan, carried: Option<Tried>, broken: Option<Tried>) -> Option<f64> {
    let least = carried.into_iter().chain(broken).min_by_key(|tried| tried.rounds)?;
    (least.rounds < plan.repeats).then_some(least.rate_per_s)
}

/// The smallest share p for which `kept` or more of `rounds` has at least probability `alpha`.
fn share_at_least(kept: u32, rounds: u32, alpha: f64) -> f64 {
    if kept == 0 {
        return 0.0;
    }
    // P(X >= kept) rises with p: halve the interval.
    let at_least = |p: f64| -> f64 {
        let mut term = (1.0 - p).powi(rounds as i32);
        let mut below = 0.0;
        for i in 0..kept {
            below += term;
            term *= f64::from(rounds - i) / f64::from(i + 1) * p / (1.0 - p);
        }
        1.0 - below
    };
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if at_least(middle) < alpha { low = middle } else { high = middle }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;
    use nm_stats::random::Random;

    fn find(plan: &Plan, keeps: impl FnMut(f64) -> bool) -> Bracket {
        let mut keeps = keeps;
        search(plan, |rate| Ok::<bool, ()>(keeps(rate))).unwrap()
    }

    #[test]
    fn the_bracket_holds_the_highest_rate_whatever_it_is() {
        let plan = Plan::default();
        for limit in [37.0, 9_999.0, 10_000.0, 54_321.0, 400_000.0] {
            let found = find(&plan, |rate| rate <= limit);
            let (low, high) = (found.carried.unwrap(), found.broken.unwrap());
            assert!(low.rate_per_s <= limit && limit < high.rate_per_s, "{limit}: {found:?}");
            assert!(high.rate_per_s <= low.rate_per_s * plan.ratio, "{limit}: {found:?}");
            assert!(found.is_done && low.rounds >= plan.repeats && high.rounds >= plan.repeats);
        }
    }

    #[test]
    fn the_ends_of_the_range_are_told_as_such() {
        let plan = Plan::default();
        let all = find(&plan, |_| true);
        assert_eq!(all.carried.unwrap().rate_per_s, plan.most_per_s);
        assert!(all.broken.is_none() && all.is_done);
        let none = find(&plan, |_| false);
        assert_eq!(none.broken.unwrap().rate_per_s, LEAST_PER_S);
        assert!(none.carried.is_none());
    }

    #[test]
    fn a_noisy_machine_does_not_lead_far_astray() {
        let mut near = 0;
        for seed in 0..50 {
            let mut random = Random::new(seed);
            // One round in ten breaks for a reason of its own.
            let found = find(&Plan::default(), |rate| rate <= 50_000.0 && random.unit() > 0.1);
            let low = found.carried.unwrap().rate_per_s;
            assert!(low <= 50_000.0, "seed {seed}: {found:?}");
            near += u32::from(low >= 15_000.0);
        }
        // Bad luck of several rounds at one rate cannot be told from a limit.
        assert!(near >= 45, "only {near} of 50 searches come near the limit");
    }

    #[test]
    fn a_search_that_runs_out_of_rounds_says_so() {
        let plan = Plan { rounds_max: 4, ..Plan::default() };
        let found = find(&plan, |rate| rate <= 54_321.0);
        assert!(!found.is_done);
        assert_eq!(found.carried.unwrap().rate_per_s, 40_000.0);
    }

    #[test]
    fn an_error_ends_it() {
        assert_eq!(search(&Plan::default(), |_| Err::<bool, _>("broken")), Err("broken"));
    }

    #[test]
    fn how_sure_a_share_is() {
        // All of five: 0.05 to the power of a fifth.
        assert!((share_at_least(5, 5, 0.05) - 0.05f64.powf(0.2)).abs() < 1e-9);
        assert_eq!(share_at_least(0, 5, 0.05), 0.0);
        // Three of five, from tables.
        assert!((share_at_least(3, 5, 0.05) - 0.18926).abs() < 1e-4);
    }
}
