//! Which pairs are tried, as rounds in which no host is in two trials.

use std::fmt;
use std::str::FromStr;

use nm_stats::random::Random;

/// Most trials of a fleet: all pairs of 256 hosts, in both directions.
pub const TRIALS_MAX: usize = 65_536;

/// A trial's ends, as places in the list of hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pair {
    /// The end that sends first.
    pub client: usize,
    /// The end that answers.
    pub server: usize,
}

impl Pair {
    /// Both ends.
    pub fn ends(self) -> [usize; 2] {
        [self.client, self.server]
    }

    /// The same in the other direction.
    pub fn reversed(self) -> Pair {
        Pair { client: self.server, server: self.client }
    }
}

/// Which pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pairs {
    /// Each host with each other one.
    All,
    /// Each host with the next of the list, the last with the first.
    Ring,
    /// The first host with each other one.
    Star,
    /// This many rounds of those of `all`, drawn by a seed: each host meets about as many others.
    Sample(usize),
}

/// Why pairs cannot be meant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PairsError {
    /// A word.
    #[error("`{0}` is no choice of pairs; write all, ring, star, or sample:K such as sample:8")]
    Word(String),
    /// Too many.
    #[error("{0} trials are more than {TRIALS_MAX}; take a part of them, such as --pairs sample:8")]
    TooMany(usize),
}

impl FromStr for Pairs {
    type Err = PairsError;

    fn from_str(text: &str) -> Result<Pairs, PairsError> {
        match text {
            "all" => Ok(Pairs::All),
            "ring" => Ok(Pairs::Ring),
            "star" => Ok(Pairs::Star),
            _ => {
                let number = text.strip_prefix("sample:").and_then(|k| k.parse().ok());
                let number = number.filter(|k| (1..=TRIALS_MAX).contains(k));
                number.map(Pairs::Sample).ok_or_else(|| PairsError::Word(text.to_string()))
            }
        }
    }
}

impl fmt::Display for Pairs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pairs::All => f.write_str("all"),
            Pairs::Ring => f.write_str("ring"),
            Pairs::Star => f.write_str("star"),
            Pairs::Sample(k) => write!(f, "sample:{k}"),
        }
    }
}

/// The rounds for `n` hosts; no host is in two pairs of one round. With `both_ways` each round is
/// followed by the same pairs in the other direction.
///
/// # Errors
/// If there are too many trials.
pub fn rounds(
    n: usize,
    pairs: Pairs,
    both_ways: bool,
    seed: u64,
) -> Result<Vec<Vec<Pair>>, PairsError> {
    assert!(n >= 2, "a fleet has two hosts or more");
    let n_all = n * (n - 1) / 2;
    let ways = 1 + usize::from(both_ways);
    let n_pairs = match pairs {
        Pairs::All => n_all,
        Pairs::Ring | Pairs::Star => n,
        Pairs::Sample(k) => n_all.min(k.saturating_mul(n / 2)),
    };
    if n_pairs * ways > TRIALS_MAX {
        return Err(PairsError::TooMany(n_pairs * ways));
    }
    let rounds = match pairs {
        Pairs::All => tournament(n),
        Pairs::Ring => ring(n),
        Pairs::Star => (1..n).map(|server| vec![Pair { client: 0, server }]).collect(),
        Pairs::Sample(k) => sample(n, k, seed),
    };
    if !both_ways {
        return Ok(rounds);
    }
    let reversed = |round: &Vec<Pair>| round.iter().map(|pair| pair.reversed()).collect();
    Ok(rounds.iter().flat_map(|round| [round.clone(), reversed(round)]).collect())
}

/// The round-robin tournament by the circle method: `n - 1` rounds for even `n`, `n` for odd. Each
/// host is about as often client as server.
fn tournament(n: usize) -> Vec<Vec<Pair>> {
    let places = n + n % 2;
    let of_round = |round: usize| {
        let place = |at: usize| (round + at) % (places - 1);
        let fixed = std::iter::once((places - 1, place(0)));
        let others = (1..places / 2).map(|at| (place(at), place(places - 1 - at)));
        let present = fixed.chain(others).filter(|(a, b)| *a < n && *b < n);
        present.map(|(a, b)| directed(a, b)).collect()
    };
    (0..places - 1).map(of_round).collect()
}

/// The direction of a pair: by whether the sum of its places is even.
fn directed(a: usize, b: usize) -> Pair {
    let (low, high) = (a.min(b), a.max(b));
    match (low + high) % 2 {
        0 => Pair { client: low, server: high },
        _ => Pair { client: high, server: low },
    }
}

fn ring(n: usize) -> Vec<Vec<Pair>> {
    if n == 2 {
        return vec![vec![Pair { client: 0, server: 1 }]];
    }
    let pair = |at: usize| Pair { client: at, server: (at + 1) % n };
    let last = n - n % 2;
    let mut rounds: Vec<Vec<Pair>> =
        (0..2).map(|first| (first..last).step_by(2).map(pair).collect()).collect();
    if n % 2 == 1 {
        rounds.push(vec![pair(n - 1)]);
    }
    rounds
}

fn sample(n: usize, k: usize, seed: u64) -> Vec<Vec<Pair>> {
    let mut random = Random::new(seed);
    let mut names: Vec<usize> = (0..n).collect();
    shuffle(&mut names, &mut random);
    let mut rounds = tournament(n);
    shuffle(&mut rounds, &mut random);
    rounds.truncate(k);
    for pair in rounds.iter_mut().flatten() {
        *pair = Pair { client: names[pair.client], server: names[pair.server] };
    }
    rounds
}

fn shuffle<T>(values: &mut [T], random: &mut Random) {
    for at in (1..values.len()).rev() {
        values.swap(at, random.below(at + 1));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn unordered(rounds: &[Vec<Pair>]) -> Vec<(usize, usize)> {
        let of = |pair: &Pair| (pair.client.min(pair.server), pair.client.max(pair.server));
        rounds.iter().flatten().map(of).collect()
    }

    proptest! {
        #[test]
        fn no_host_is_twice_in_a_round_and_no_pair_twice_at_all(
            n in 2_usize..40,
            kind in 0..4,
            k in 1_usize..50,
            both in any::<bool>(),
            seed in any::<u64>(),
        ) {
            let pairs = [Pairs::All, Pairs::Ring, Pairs::Star, Pairs::Sample(k)][kind as usize];
            let rounds = rounds(n, pairs, both, seed).unwrap();
            for round in &rounds {
                let ends: Vec<usize> = round.iter().flat_map(|pair| pair.ends()).collect();
                let distinct: BTreeSet<usize> = ends.iter().copied().collect();
                prop_assert_eq!(distinct.len(), ends.len());
                prop_assert!(ends.iter().all(|end| *end < n));
            }
            let all: Vec<Pair> = rounds.iter().flatten().copied().collect();
            let distinct: BTreeSet<Pair> = all.iter().copied().collect();
            prop_assert_eq!(distinct.len(), all.len());
            let unordered = unordered(&rounds);
            let distinct: BTreeSet<_> = unordered.iter().copied().collect();
            prop_assert_eq!(distinct.len() * (1 + usize::from(both)), unordered.len());
            if pairs == Pairs::All {
                prop_assert_eq!(distinct.len(), n * (n - 1) / 2);
            }
        }
    }

    #[test]
    fn all_pairs_take_n_minus_1_rounds_for_even_n_and_n_for_odd() {
        for n in 2..20 {
            assert_eq!(rounds(n, Pairs::All, false, 0).unwrap().len(), n - 1 + n % 2, "{n}");
            let n_ring = rounds(n, Pairs::Ring, false, 0).unwrap().iter().flatten().count();
            assert_eq!(n_ring, if n == 2 { 1 } else { n });
        }
    }

    #[test]
    fn each_host_is_about_as_often_client_as_server() {
        let pairs: Vec<Pair> = rounds(16, Pairs::All, false, 0).unwrap().concat();
        for host in 0..16 {
            let n_client = pairs.iter().filter(|pair| pair.client == host).count();
            assert!((7..=8).contains(&n_client), "{host}: {n_client} of 15");
        }
    }

    #[test]
    fn a_sample_is_that_of_its_seed() {
        let of = |seed| rounds(64, Pairs::Sample(5), false, seed).unwrap();
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
        for host in 0..64 {
            assert_eq!(of(1).iter().flatten().filter(|p| p.ends().contains(&host)).count(), 5);
        }
    }

    #[test]
    fn words_are_read_and_others_refused() {
        for word in ["all", "ring", "star", "sample:8"] {
            assert_eq!(word.parse::<Pairs>().unwrap().to_string(), word);
        }
        for word in ["", "sample", "sample:0", "sample:x", "every"] {
            let error = word.parse::<Pairs>().unwrap_err().to_string();
            assert!(error.contains("write all, ring, star, or sample:K"), "{error}");
        }
        let error = rounds(1024, Pairs::All, false, 0).unwrap_err().to_string();
        assert_eq!(
            error,
            "523776 trials are more than 65536; take a part of them, such as --pairs sample:8"
        );
    }
}
