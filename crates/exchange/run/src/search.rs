//! Searches the highest rate within the limit. It doubles the rate until a round is above the
//! limit, then bisects the bracket (on a logarithmic scale), then repeats both its ends.
//!
//! A round beyond the limit in which the load generator itself was late says nothing of the
//! network. It does not count, and is run again. Where most rounds are late, the search ends: the
//! generator cannot tell whether the network carries that rate.

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

/// What one round shows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RoundResult {
    /// It was within the limit.
    Within,
    /// The network was beyond the limit.
    Beyond,
    /// It was beyond the limit, and the load generator was so late that it may be the cause.
    Late {
        /// How late it was, ns.
        by_ns: f64,
    },
}

/// Fewest late rounds at a rate, and how many for each round on time, from which on the load
/// generator does not manage the rate.
const LATE_MIN: u32 = 6;
const LATE_PER_ROUND: u32 = 3;

/// Results of all rounds at one rate.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Tried {
    /// Requests per second.
    pub rate_per_s: f64,
    /// Rounds at this rate that count.
    pub rounds: u32,
    /// Rounds within the limit.
    pub within_limit: u32,
    /// Rounds that do not count, because the load generator was late.
    pub late: u32,
    /// How late it was in these, at most, ns.
    pub late_ns: f64,
}

impl Tried {
    fn add(&mut self, result: RoundResult) {
        match result {
            RoundResult::Late { by_ns } => {
                self.late += 1;
                self.late_ns = self.late_ns.max(by_ns);
            }
            RoundResult::Within | RoundResult::Beyond => {
                self.rounds += 1;
                self.within_limit += u32::from(result == RoundResult::Within);
            }
        }
    }

    /// Whether the load generator does not manage this rate.
    pub fn is_too_late(&self) -> bool {
        self.late >= LATE_MIN && self.late > LATE_PER_ROUND * self.rounds
    }

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
    /// The rate at which it ended, because the load generator was late in most rounds.
    pub too_late: Option<Tried>,
    /// Whether the bracket is as narrow, and its ends were repeated as often, as the plan asks for.
    pub is_done: bool,
    /// Whether it was ended before.
    pub is_interrupted: bool,
}

impl Bracket {
    /// The rates between which the highest one within the limit lies, by all rounds: below the
    /// first, each round was within the limit; above the second, none was. None: as far as was
    /// tried.
    pub fn interval(&self) -> (Option<f64>, Option<f64>) {
        let counted = || self.tried.iter().filter(|tried| tried.rounds > 0);
        let first_beyond = counted().find(|tried| tried.within_limit < tried.rounds);
        let last_within = counted().rfind(|tried| tried.within_limit > 0);
        let is_below =
            |tried: &&Tried| first_beyond.is_none_or(|it| tried.rate_per_s < it.rate_per_s);
        let is_above =
            |tried: &&Tried| last_within.is_none_or(|it| tried.rate_per_s > it.rate_per_s);
        let (low, high) = (counted().rfind(is_below), counted().find(is_above));
        (low.map(|tried| tried.rate_per_s), high.map(|tried| tried.rate_per_s))
    }
}

/// Searches. `run_round` runs one round at a rate and returns what it shows; none if the search is
/// to end there.
///
/// # Errors
/// The first error of `run_round`.
pub fn search<E>(
    plan: &Plan,
    mut run_round: impl FnMut(f64) -> Result<Option<RoundResult>, E>,
) -> Result<Bracket, E> {
    let (mut known, mut is_interrupted): (Vec<Tried>, bool) = (vec![], false);
    let mut too_late = None;
    // Late rounds are as many as those that count allow at each rate, so this ends.
    while known.iter().map(|tried| tried.rounds).sum::<u32>() < plan.rounds_max {
        let Some(rate_per_s) = next(plan, &known) else { break };
        let Some(result) = run_round(rate_per_s)? else {
            is_interrupted = true;
            break;
        };
        let place = known.binary_search_by(|tried| tried.rate_per_s.total_cmp(&rate_per_s));
        let at = place.unwrap_or_else(|at| {
            known.insert(at, Tried { rate_per_s, ..Tried::default() });
            at
        });
        known[at].add(result);
        if known[at].is_too_late() {
            too_late = Some(known[at]);
            break;
        }
    }
    let (carried, not_carried) = ends(&known);
    let is_done = too_late.is_none() && next(plan, &known).is_none();
    Ok(Bracket { carried, not_carried, tried: known, too_late, is_done, is_interrupted })
}

/// The ends of the bracket: the highest rate that was carried below the lowest that was not, and
/// that one.
fn ends(known: &[Tried]) -> (Option<Tried>, Option<Tried>) {
    let known = || known.iter().filter(|tried| tried.rounds > 0);
    let not_carried = known().find(|tried| !tried.is_carried()).copied();
    let below = |tried: &&Tried| not_carried.is_none_or(|n| tried.rate_per_s < n.rate_per_s);
    let carried = known().rfind(|tried| tried.is_carried() && below(tried)).copied();
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
        search(plan, |rate| Ok::<_, ()>(Some(result(run_round(rate))))).unwrap()
    }

    fn result(is_within: bool) -> RoundResult {
        if is_within { RoundResult::Within } else { RoundResult::Beyond }
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
            Ok::<_, ()>((rounds < 4).then_some(result(rate < 30_000.0)))
        });
        let found = found.unwrap();
        assert!(found.is_interrupted && !found.is_done);
        assert_eq!(found.tried.iter().map(|tried| tried.rounds).sum::<u32>(), 3);
        assert!(found.carried.is_some());
    }

    /// A machine whose network carries so many a second, more or less, and whose load generator is
    /// late in a share of rounds, and in all above a rate.
    #[derive(Clone, Copy)]
    struct Machine {
        limit_per_s: f64,
        /// Standard deviation of its limit from round to round, as a share of it.
        noise: f64,
        late_share: f64,
        generator_per_s: f64,
    }

    impl Machine {
        fn round(&self, rate_per_s: f64, random: &mut Random) -> RoundResult {
            // The sum of twelve is close to normal, with a deviation of one.
            let normal: f64 = (0..12).map(|_| random.unit()).sum::<f64>() - 6.0;
            let limit_per_s = self.limit_per_s * (1.0 + self.noise * normal);
            let is_late = rate_per_s > self.generator_per_s || random.unit() < self.late_share;
            match (is_late, rate_per_s <= limit_per_s) {
                // What it sends late is beyond the limit, whatever the network does.
                (true, _) => RoundResult::Late { by_ns: 1e7 * (1.0 + random.unit()) },
                (false, true) => RoundResult::Within,
                (false, false) => RoundResult::Beyond,
            }
        }

        fn search(self, seed: u64) -> Bracket {
            let mut random = Random::new(seed);
            let round = |rate| Ok::<_, ()>(Some(self.round(rate, &mut random)));
            search(&Plan::default(), round).unwrap()
        }
    }

    /// Of two searches with different luck, both that end with a bracket state intervals that
    /// overlap. Others say that the load generator is the reason.
    #[test]
    fn two_searches_on_one_machine_agree_or_say_why_not() {
        let overlap = |one: &Bracket, other: &Bracket| {
            let below = |low: Option<f64>, high: Option<f64>| {
                low.unwrap_or(0.0) <= high.unwrap_or(f64::INFINITY)
            };
            let (a, b) = (one.interval(), other.interval());
            below(a.0, b.1) && below(b.0, a.1)
        };
        for noise in [0.0, 0.03, 0.1, 0.2] {
            for late_share in [0.0, 0.3, 0.6, 0.9] {
                let machine =
                    Machine { limit_per_s: 43_210.0, noise, late_share, generator_per_s: 1e9 };
                let (mut agree, mut contradict, mut undecided) = (0, 0, 0);
                for pair in 0..100 {
                    let (one, other) = (machine.search(2 * pair), machine.search(2 * pair + 1));
                    match one.too_late.is_some() || other.too_late.is_some() {
                        true => undecided += 1,
                        false if overlap(&one, &other) => agree += 1,
                        false => contradict += 1,
                    }
                }
                let all = (agree, contradict, undecided);
                assert!(agree >= 9 * contradict, "{noise} {late_share}: {all:?}");
                // It says so because it is so, not in order not to be wrong.
                assert!(late_share > 0.3 || undecided <= 10, "{noise} {late_share}: {all:?}");
                assert!(late_share < 0.9 || undecided >= 90, "{noise} {late_share}: {all:?}");
            }
        }
    }

    #[test]
    fn a_late_generator_is_not_taken_for_a_network_at_its_limit() {
        let machine = Machine {
            limit_per_s: 100_000.0,
            noise: 0.03,
            late_share: 0.2,
            generator_per_s: 30_000.0,
        };
        for seed in 0..50 {
            let found = machine.search(seed);
            let late = found.too_late.unwrap_or_else(|| panic!("{seed}: {found:?}"));
            assert!(late.rate_per_s > 30_000.0 && late.late >= LATE_MIN, "{seed}: {found:?}");
            assert!(found.not_carried.is_none() && !found.is_done, "{seed}: {found:?}");
            assert!(found.carried.unwrap().rate_per_s <= 30_000.0, "{seed}: {found:?}");
        }
        // Not even the first rate.
        let found = Machine { generator_per_s: 1.0, ..machine }.search(1);
        assert!(found.carried.is_none() && found.too_late.is_some(), "{found:?}");
    }

    #[test]
    fn the_interval_has_every_rate_at_which_rounds_disagree() {
        let tried = |rate_per_s, within_limit| Tried {
            rate_per_s,
            rounds: 5,
            within_limit,
            ..Tried::default()
        };
        let late = Tried { rate_per_s: 25.0, late: 3, ..Tried::default() };
        let bracket = |tried| Bracket {
            carried: None,
            not_carried: None,
            tried,
            too_late: None,
            is_done: true,
            is_interrupted: false,
        };
        let all = vec![tried(10.0, 5), tried(20.0, 4), late, tried(30.0, 5), tried(40.0, 1)];
        assert_eq!(bracket(all.clone()).interval(), (Some(10.0), None));
        let more = [&all[..], &[tried(50.0, 0)]].concat();
        assert_eq!(bracket(more).interval(), (Some(10.0), Some(50.0)));
        assert_eq!(bracket(vec![tried(10.0, 0)]).interval(), (None, Some(10.0)));
    }

    #[test]
    fn an_error_ends_the_search() {
        assert_eq!(
            search(&Plan::default(), |_| Err::<Option<RoundResult>, _>("broken")),
            Err("broken")
        );
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
