//! Searches the highest rate within the limit: the rate is doubled until a round is above the
//! limit, then the bracket is bisected (on a logarithmic scale), then both its ends are repeated.

/// Parameters of a search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plan {
    /// First rate, requests per second.
    pub start_per_s: f64,
    /// Lowest rate.
    pub least_per_s: f64,
    /// Highest rate.
    pub most_per_s: f64,
    /// The bracket is narrow enough when its upper end is at most this multiple of its lower end.
    pub ratio: f64,
    /// Rounds at each end of the bracket.
    pub repeats: u32,
    /// Rounds after which a search ends with the bracket found so far.
    pub rounds_max: u32,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            start_per_s: 10_000.0,
            least_per_s: 10.0,
            most_per_s: 1e6,
            ratio: 1.08,
            repeats: 5,
            rounds_max: 60,
        }
    }
}

/// Results of all rounds at one rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tried {
    /// Requests per second.
    pub rate_per_s: f64,
    /// Rounds at this rate.
    pub rounds: u32,
    /// Rounds within the limit.
    pub within_limit: u32,
}

impl Tried {
    /// Whether most rounds were within the limit.
    pub fn is_carried(&self) -> bool {
        2 * self.within_limit > self.rounds
    }

    /// Lower end of the one-sided 95 % confidence interval of the share of rounds within the limit
    /// (Clopper and Pearson, 1934).
    pub fn share_lower_bound(&self) -> f64 {
        share_at_least(self.within_limit, self.rounds, 0.05)
    }
}

/// The bracket around the highest rate within the limit.
#[derive(Debug, Clone, PartialEq)]
pub struct Bracket {
    /// Highest rate that was carried; none if even the lowest was not.
    pub carried: Option<Tried>,
    /// Lowest rate above it that was not carried; none if the search ended at its highest rate.
    pub not_carried: Option<Tried>,
    /// All rates with rounds, rising.
    pub tried: Vec<Tried>,
    /// Whether the bracket is as narrow, and its ends were repeated as often, as the plan asks for.
    pub is_done: bool,
    /// Whether it was ended before.
    pub is_interrupted: bool,
}

/// Searches. `run_round` runs one round at a rate and returns whether it was within the limit; none
/// if the search is to end there.
///
/// # Errors
/// The first error of `run_round`.
pub fn search<E>(
    plan: &Plan,
    mut run_round: impl FnMut(f64) -> Result<Option<bool>, E>,
) -> Result<Bracket, E> {
    let (mut known, mut is_interrupted): (Vec<Tried>, bool) = (vec![], false);
    for _ in 0..plan.rounds_max {
        let Some(rate_per_s) = next(plan, &known) else { break };
        let Some(is_within_limit) = run_round(rate_per_s)? else {
            is_interrupted = true;
            break;
        };
        let within_limit = u32::from(is_within_limit);
        match known.iter_mut().find(|tried| tried.rate_per_s == rate_per_s) {
            Some(tried) => {
                tried.rounds += 1;
                tried.within_limit += within_limit;
            }
            None => {
                known.push(Tried { rate_per_s, rounds: 1, within_limit });
                known.sort_by(|a, b| a.rate_per_s.total_cmp(&b.rate_per_s));
            }
        }
    }
    let (carried, not_carried) = ends(&known);
    let is_done = next(plan, &known).is_none();
    Ok(Bracket { carried, not_carried, tried: known, is_done, is_interrupted })
}

/// The ends of the bracket: the highest rate that was carried below the lowest that was not, and
/// that one.
fn ends(known: &[Tried]) -> (Option<Tried>, Option<Tried>) {
    let not_carried = known.iter().find(|tried| !tried.is_carried()).copied();
    let below = |tried: &&Tried| not_carried.is_none_or(|n| tried.rate_per_s < n.rate_per_s);
    let carried = known.iter().rev().find(|tried| tried.is_carried() && below(tried)).copied();
    (carried, not_carried)
}

/// The rate of the next round; none if the search is done.
fn next(plan: &Plan, known: &[Tried]) -> Option<f64> {
    // A single slow round may be noise of the machine: a rate is given up after two of three.
    let is_open = |tried: &&Tried| {
        tried.rounds < 3 && tried.within_limit < 2 && tried.within_limit + 2 > tried.rounds
    };
    let (carried, not_carried) = ends(known);
    if let Some(open) = not_carried.as_ref().filter(is_open) {
        return Some(open.rate_per_s);
    }
    let round_to_3_digits = |rate: f64| {
        let step = 10f64.powf(rate.log10().floor() - 2.0);
        (rate / step).round() * step
    };
    match (carried, not_carried) {
        (None, None) => Some(plan.start_per_s.min(plan.most_per_s)),
        (Some(low), None) if low.rate_per_s < plan.most_per_s => {
            Some((low.rate_per_s * 2.0).min(plan.most_per_s))
        }
        (None, Some(high)) if high.rate_per_s > plan.least_per_s => {
            Some(round_to_3_digits(high.rate_per_s / 2.0).max(plan.least_per_s))
        }
        (Some(low), Some(high)) if high.rate_per_s > low.rate_per_s * plan.ratio => {
            let middle = round_to_3_digits((low.rate_per_s * high.rate_per_s).sqrt());
            let is_inside = low.rate_per_s < middle && middle < high.rate_per_s;
            is_inside.then_some(middle).or_else(|| repeat(plan, carried, not_carried))
        }
        _ => repeat(plan, carried, not_carried),
    }
}

/// The end of the bracket with fewer rounds, unless both have enough.
fn repeat(plan: &Plan, carried: Option<Tried>, not_carried: Option<Tried>) -> Option<f64> {
    let least = carried.into_iter().chain(not_carried).min_by_key(|tried| tried.rounds)?;
    (least.rounds < plan.repeats).then_some(least.rate_per_s)
}

/// The smallest share p for which `successes` or more of `rounds` have at least probability
/// `alpha`.
fn share_at_least(successes: u32, rounds: u32, alpha: f64) -> f64 {
    if successes == 0 {
        return 0.0;
    }
    // P(X >= successes) rises with p: bisection.
    let at_least = |p: f64| -> f64 {
        let mut term = (1.0 - p).powi(rounds as i32);
        let mut below = 0.0;
        for i in 0..successes {
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

    fn find(plan: &Plan, mut run_round: impl FnMut(f64) -> bool) -> Bracket {
        search(plan, |rate| Ok::<_, ()>(Some(run_round(rate)))).unwrap()
    }

    #[test]
    fn the_bracket_contains_the_highest_rate_within_the_limit() {
        let plan = Plan::default();
        for limit in [37.0, 9_999.0, 10_000.0, 54_321.0, 400_000.0] {
            let found = find(&plan, |rate| rate <= limit);
            let (low, high) = (found.carried.unwrap(), found.not_carried.unwrap());
            assert!(low.rate_per_s <= limit && limit < high.rate_per_s, "{limit}: {found:?}");
            assert!(high.rate_per_s <= low.rate_per_s * plan.ratio, "{limit}: {found:?}");
            assert!(found.is_done && low.rounds >= plan.repeats && high.rounds >= plan.repeats);
        }
    }

    #[test]
    fn a_limit_outside_the_range_leaves_one_end_of_the_bracket_empty() {
        let plan = Plan::default();
        let all = find(&plan, |_| true);
        assert_eq!(all.carried.unwrap().rate_per_s, plan.most_per_s);
        assert!(all.not_carried.is_none() && all.is_done);
        let none = find(&plan, |_| false);
        assert_eq!(none.not_carried.unwrap().rate_per_s, plan.least_per_s);
        assert!(none.carried.is_none());
        let plan = Plan { least_per_s: 2_200.0, ..plan };
        assert_eq!(find(&plan, |_| false).not_carried.unwrap().rate_per_s, 2_200.0);
    }

    #[test]
    fn noise_shifts_the_result_little() {
        let mut near = 0;
        for seed in 0..50 {
            let mut random = Random::new(seed);
            // One round in ten is above the limit because of noise.
            let found = find(&Plan::default(), |rate| rate <= 50_000.0 && random.unit() > 0.1);
            let low = found.carried.unwrap().rate_per_s;
            assert!(low <= 50_000.0, "seed {seed}: {found:?}");
            near += u32::from(low >= 15_000.0);
        }
        // Several noisy rounds at one rate cannot be distinguished from the limit.
        assert!(near >= 45, "only {near} of 50 searches come near the limit");
    }

    #[test]
    fn a_search_that_runs_out_of_rounds_is_not_done() {
        let plan = Plan { rounds_max: 4, ..Plan::default() };
        let found = find(&plan, |rate| rate <= 54_321.0);
        assert!(!found.is_done);
        assert_eq!(found.carried.unwrap().rate_per_s, 40_000.0);
    }

    #[test]
    fn a_search_that_is_ended_keeps_what_was_tried() {
        let mut rounds = 0;
        let found = search(&Plan::default(), |rate| {
            rounds += 1;
            Ok::<_, ()>((rounds < 4).then_some(rate < 30_000.0))
        });
        let found = found.unwrap();
        assert!(found.is_interrupted && !found.is_done);
        assert_eq!(found.tried.iter().map(|tried| tried.rounds).sum::<u32>(), 3);
        assert!(found.carried.is_some());
    }

    #[test]
    fn an_error_ends_the_search() {
        assert_eq!(search(&Plan::default(), |_| Err::<Option<bool>, _>("broken")), Err("broken"));
    }

    #[test]
    fn the_lower_bound_of_a_share_is_that_of_clopper_and_pearson() {
        // Five of five: 0.05 to the power of 1/5.
        assert!((share_at_least(5, 5, 0.05) - 0.05f64.powf(0.2)).abs() < 1e-9);
        assert_eq!(share_at_least(0, 5, 0.05), 0.0);
        // Three of five, from tables.
        assert!((share_at_least(3, 5, 0.05) - 0.18926).abs() < 1e-4);
    }
}
