//! How often a pair of runs is wrong: simulated runs with effects of their own, by a fixed seed.
//! METHODOLOGY.md has the table; `UPDATE=1` writes it anew.

use std::fs;

use nm_stats::random::Random;
use nm_stats::run_effect::{Family, Found, decide, deviation};

const PAIRS: usize = 2000;
const FIGURES: usize = 4;
const SEED: u64 = 40;

/// A standard normal value, by Box and Muller.
pub fn normal(random: &mut Random) -> f64 {
    let radius = (-2.0 * (1.0 - random.unit()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random.unit()).cos()
}

/// A kind of system that is compared with itself.
#[derive(Clone, Copy)]
struct System {
    name: &'static str,
    /// Deviation between runs, as it is and as it is stated.
    of_run: f64,
    of_round: f64,
    n_rounds: usize,
    /// Share of rounds that are 40 % slower.
    slow_share: f64,
}

/// Rounds of one figure in one run.
fn rounds(system: System, random: &mut Random) -> Vec<f64> {
    let effect = system.of_run * normal(random);
    (0..system.n_rounds)
        .map(|_| {
            let slow = if random.unit() < system.slow_share { 1.4f64.ln() } else { 0.0 };
            (effect + slow + system.of_round * normal(random)).exp()
        })
        .collect()
}

pub fn median(values: &[f64]) -> f64 {
    nm_stats::describe::median(values).unwrap()
}

/// Whether any figure of a pair is called worse, where `planted` makes one slower by the size that
/// the pair is said to find; with that size.
fn is_alarm(system: System, planted: bool, random: &mut Random) -> (bool, f64) {
    let margin = 1.05f64.ln();
    let family = Family::of_pair(FIGURES);
    let mut alarm = false;
    let mut found = 0.0;
    for figure in 0..FIGURES {
        let a = rounds(system, random);
        let mut b = rounds(system, random);
        let pair = deviation(system.of_run, &a, &b);
        if planted && figure == 0 {
            found = pair.smallest_found(family, 0.0);
            b.iter_mut().for_each(|value| *value *= found.exp());
        }
        let log_ratio = (median(&b) / median(&a)).ln();
        alarm |= decide(&pair, log_ratio, [&a, &b], family, margin) == Found::Worse;
    }
    (alarm, found)
}

/// Per cent of pairs, and the median size that is planted, %.
fn simulated(system: System, planted: bool) -> (f64, f64) {
    let mut random = Random::new(SEED);
    let pairs: Vec<(bool, f64)> =
        (0..PAIRS).map(|_| is_alarm(system, planted, &mut random)).collect();
    let n_alarms = pairs.iter().filter(|(alarm, _)| *alarm).count();
    let sizes: Vec<f64> = pairs.iter().map(|(_, size)| size.exp_m1() * 100.0).collect();
    (n_alarms as f64 * 100.0 / PAIRS as f64, median(&sizes))
}

const SYSTEMS: [System; 7] = [
    system("quiet", 0.02, 0.02, 5, 0.0),
    system("as assumed", 0.05, 0.05, 5, 0.0),
    system("as assumed, ten rounds", 0.05, 0.05, 10, 0.0),
    system("noisy", 0.075, 0.10, 5, 0.0),
    system("very noisy", 0.10, 0.20, 10, 0.0),
    system("two modes, 40 % apart", 0.05, 0.02, 10, 0.3),
    system("interleaved in one run", 0.0, 0.05, 10, 0.0),
];

const fn system(
    name: &'static str,
    of_run: f64,
    of_round: f64,
    n_rounds: usize,
    slow_share: f64,
) -> System {
    System { name, of_run, of_round, n_rounds, slow_share }
}

#[test]
fn false_alarms_and_planted_slowdowns_are_as_stated() {
    let mut table = "| system | between runs | between rounds | rounds | false alarms | \
                     slowdown stated | found |\n\
                     | --- | --- | --- | --- | --- | --- | --- |\n"
        .to_string();
    let mut faults = vec![];
    for system in SYSTEMS {
        let (alarms, _) = simulated(system, false);
        let (found, size) = simulated(system, true);
        table += &format!(
            "| {} | {:.1} % | {:.0} % | {} | {alarms:.1} % | {size:.0} % | {found:.1} % |\n",
            system.name,
            system.of_run * 100.0,
            system.of_round * 100.0,
            system.n_rounds
        );
        // Rounds in modes are not normal: their medians jump, and so does the estimate.
        let alarms_max = if system.slow_share > 0.0 { 6.0 } else { 5.0 };
        if alarms > alarms_max || found < 95.0 {
            faults.push(system.name);
        }
    }
    assert!(faults.is_empty(), "{faults:?}\n{table}");
    check("calibration", &table);
}

/// The table between its marks in METHODOLOGY.md.
pub fn check(name: &str, table: &str) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../METHODOLOGY.md");
    let text = fs::read_to_string(path).unwrap();
    let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- end of {name} -->"));
    let (before, rest) = text.split_once(&begin).expect("a mark before");
    let (kept, after) = rest.split_once(&end).expect("a mark behind");
    if std::env::var_os("UPDATE").is_some() {
        return fs::write(path, format!("{before}{begin}{table}{end}{after}")).unwrap();
    }
    assert_eq!(kept, table, "if this is meant: UPDATE=1 cargo test -p nm-stats calibration");
}
