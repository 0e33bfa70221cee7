//! How often a comparison claims a difference: where there is none (false alarms) and where there
//! is one (power). On recorded rounds in two modes, and on simulated rounds of several
//! distributions. All are seeded, so a failure is reproducible.

use nm_stats::compare::{Claim, compare};
use nm_stats::random::Random;

/// Margin as users set it.
const MARGIN: f64 = 0.05;

/// Comparisons for each distribution and number of rounds.
const TIMES: u64 = 60;

/// Medians of 200 identical runs, ns.
fn recorded() -> Vec<f64> {
    include_str!("../data/bimodal.csv")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .skip(1)
        .map(|line| line.split(',').nth(1).unwrap().parse().unwrap())
        .collect()
}

/// `n` values of `pool`, none twice, in random order.
fn draw(pool: &[f64], n: usize, random: &mut Random) -> Vec<f64> {
    let mut pool = pool.to_vec();
    for i in 0..n {
        let j = i + random.below(pool.len() - i);
        pool.swap(i, j);
    }
    pool.truncate(n);
    pool
}

/// How many of `times` comparisons of `a_and_b` claim a difference.
fn claims(
    times: u64,
    margin: f64,
    mut a_and_b: impl FnMut(&mut Random) -> (Vec<f64>, Vec<f64>),
) -> u64 {
    let claimed = |seed: &u64| {
        let (a, b) = a_and_b(&mut Random::new(0x9d0b_3b1e ^ (seed << 8)));
        compare(&a, &b, margin, *seed).claim == Claim::Difference
    };
    (0..times).filter(claimed).count() as u64
}

/// Standard normal, by Box and Muller.
fn normal(random: &mut Random) -> f64 {
    let radius = (-2.0 * (1.0 - random.unit()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random.unit()).cos()
}

/// A distribution of a round's median latency, ns.
type Distribution = fn(&mut Random) -> f64;

const DISTRIBUTIONS: [(&str, Distribution); 4] = [
    ("log-normal", |random| 4000.0 * (0.1 * normal(random)).exp()),
    // Student's t with two degrees of freedom.
    ("heavy-tailed", |random| {
        let t = normal(random) / (-(1.0 - random.unit()).ln()).sqrt();
        4000.0 * (0.05 * t).exp()
    }),
    // The two modes of another session: 3.9 to 4.05 us and 5.9 to 6.08 us at 60 to 40.
    ("bimodal", |random| {
        let centre = if random.unit() < 0.6 { 3980.0 } else { 5990.0 };
        centre * (0.014 * normal(random)).exp()
    }),
    ("in steps", |random| 4000.0 + 10.0 * random.below(6) as f64),
];

fn rounds(n: usize, distribution: Distribution, random: &mut Random) -> Vec<f64> {
    (0..n).map(|_| distribution(random)).collect()
}

#[test]
fn recorded_rounds_have_two_modes() {
    let recorded = recorded();
    let boundaries = nm_stats::modes::boundaries(&recorded);
    let modes = nm_stats::modes::split(&recorded, &boundaries);
    assert_eq!(modes.iter().map(Vec::len).collect::<Vec<_>>(), [107, 93]);
    assert!(nm_stats::describe::cv_percent(&recorded).unwrap() > 15.0);
}

#[test]
fn false_alarms_on_recorded_rounds_are_at_most_5_percent() {
    let recorded = recorded();
    for n in [5, 10] {
        let claimed = claims(200, MARGIN, |random| {
            let both = draw(&recorded, 2 * n, random);
            (both[..n].to_vec(), both[n..].to_vec())
        });
        println!("{n} v {n}: {claimed} of 200 false alarms");
        assert!(claimed <= 10, "{n} v {n}: {claimed} of 200");
    }
}

#[test]
fn power_for_5_percent_with_ten_rounds_a_side_is_at_least_95_percent() {
    let recorded = recorded();
    let claimed = claims(200, MARGIN, |random| {
        let both = draw(&recorded, 20, random);
        (both[..10].to_vec(), both[10..].iter().map(|value| value * 1.05).collect())
    });
    println!("{claimed} of 200 found");
    assert!(claimed >= 190, "{claimed} of 200");
}

/// Without a margin, so that no false alarm is reported as equivalence instead. One configuration
/// alone may exceed 5 % by chance (the test allows three standard deviations), all together may
/// not.
#[test]
fn false_alarms_of_every_distribution_are_at_most_5_percent() {
    let mut total = 0;
    let mut all = 0;
    for (name, distribution) in DISTRIBUTIONS {
        for n in [5, 7, 10, 20] {
            let claimed = claims(TIMES, 0.0, |random| {
                (rounds(n, distribution, random), rounds(n, distribution, random))
            });
            println!("{name}, {n} v {n}: {claimed} of {TIMES}");
            let most = 0.05 * TIMES as f64 + 3.0 * (0.05 * 0.95 * TIMES as f64).sqrt();
            assert!(claimed as f64 <= most, "{name}, {n} v {n}: {claimed} of {TIMES}");
            total += claimed;
            all += TIMES;
        }
    }
    assert!(20 * total <= all, "{total} of {all}");
    assert!(total > 0, "a test that never claims a difference proves nothing");
}
