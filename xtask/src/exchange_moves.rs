//! The page of the exchange, continued. It has what moves of instruments cost the requests of
//! others, and a day on which the load rises and policies add mediators.

use std::fs;
use std::ops::Range;
use std::path::Path;

use anyhow::Result;
use serde_json::Value;

use crate::bench::{failure, median, median_interval, range};
use crate::exchange_round::p99_ms;
use crate::shell;

/// What all runs with moves have in common, beside the number of rounds.
const MOVES: &str = "--nodes 2-2-2-2 --moves-per-minute 1000 --moves-compare --seconds 6";

/// Rate and durability of a run with moves, and the goal of the p99 of the pauses, ms.
const RUNS: [(&str, f64); 5] = [
    ("--rate 5000", 0.5),
    ("--rate 10000", 0.5),
    ("--rate 20000", 0.5),
    ("--rate 5000 --durability disk-quorum", 3.0),
    ("--rate 20000 --durability disk-quorum", 3.0),
];

/// The goal of the p99 round trip with moves, as a ratio to that without.
const RATIO_MAX: f64 = 1.2;

/// The day, and how often it is repeated.
const DAY: &str = "--step 5000:25000 --phase-seconds 15 --nodes 1-1-5-1 --spares 4 --policies -";
const DAYS: u32 = 5;

/// The goals of the day, s: all mediators added after the step, and the first back after it.
const ADDED_MAX_S: f64 = 3.0;
const BACK_MAX_S: f64 = 30.0;

/// The goal of the time outside the limit in the phase of the step, s.
const OUTSIDE_MAX_S: u64 = 1;

/// Both tables.
pub fn tables(binary: &Path, folder: &Path, rounds: u32) -> Result<String> {
    let mut moves = String::new();
    for (what, pause_max_ms) in RUNS {
        let words = format!("exchange run {MOVES} {what} --rounds {rounds}");
        let row = measure(binary, folder, &words, |folder| moves_row(folder, pause_max_ms))?;
        moves += &format!("| `{what}` | {} |\n", row.unwrap_or_else(|text| failure(&text, 6)));
    }
    let mut days = String::new();
    for number in 1..=DAYS {
        let row = measure(binary, folder, &format!("exchange ramp {DAY}"), day_row)?;
        days += &format!("| {number} | {} |\n", row.unwrap_or_else(|text| failure(&text, 6)));
    }
    Ok(format!(
        "\n## While instruments move\n\n\
         `nearmetal exchange run {MOVES} --rounds {rounds}` with these words: in each round 100 \
         instruments move to another cell while they are traded; rounds with and without moves \
         alternate. Of the rounds: the median, and their range. A goal is met, or missed, where \
         the median of all rounds is on that side of it with 95 % confidence. How the figures came \
         about: [exchange-moves](exchange-moves.md).\n\n\
         | run | pause, p99, ms | goal | p99 round trip, ms, with moves; without | ratio | \
         goal {RATIO_MAX} | moves made, refused; requests lost |\n\
         | --- | --- | --- | --- | --- | --- | --- |\n\
         {moves}\n\
         ## While the load rises\n\n\
         `nearmetal exchange ramp {DAY}`, {DAYS} times. Goals:\n\n\
         - Mediators are added within {ADDED_MAX_S} s.\n\
         - The first is back within {BACK_MAX_S} s of the end of the high rate.\n\
         - At most {OUTSIDE_MAX_S} s of the step is outside the limit of 10 ms for ES10 and \
         p99.\n\n\
         Seconds after a `+` are those in which the load generator was late.\n\n\
         | day | mediators added, s after the step | back, s after the high rate | s outside: \
         before, step, after | p99 of the step, ms | requests lost | goals |\n\
         | ---: | --- | --- | --- | ---: | ---: | --- |\n\
         {days}"
    ))
}

/// The row of one command, or what it wrote if it failed.
fn measure(
    binary: &Path,
    folder: &Path,
    words: &str,
    row: impl Fn(&Path) -> Option<String>,
) -> Result<Result<String, String>> {
    eprintln!("$ nearmetal {words}");
    let (text, _) =
        shell::output(&format!("{} {words} --out {}", binary.display(), folder.display()))?;
    let row = row(folder);
    let _ = fs::remove_dir_all(folder);
    Ok(row.ok_or(text))
}

fn read(folder: &Path, name: &str) -> Option<Value> {
    serde_json::from_str(&fs::read_to_string(folder.join(name)).ok()?).ok()
}

fn moves_row(folder: &Path, pause_max_ms: f64) -> Option<String> {
    let result = read(folder, "result.json")?;
    let series = result["series"].as_array()?;
    let data = series.iter().filter_map(|of| of["rounds"].as_array()).flatten();
    let data = data.map(|round| &round["data"]);
    let lost: u64 = data.clone().filter_map(|data| data["lost"].as_u64()).sum();
    let moves = |data: &'_ Value| data["exchange"]["moves"].clone();
    let (with, without): (Vec<&Value>, Vec<&Value>) =
        data.partition(|data| moves(data)["done"].is_u64());
    let p99 =
        |rounds: &[&Value]| -> Vec<f64> { rounds.iter().filter_map(|data| p99_ms(data)).collect() };
    let count =
        |name: &str| -> u64 { with.iter().filter_map(|data| moves(data)[name].as_u64()).sum() };
    let pause = |data: &&Value| Some(moves(data)["pauses"]["p99_ns"].as_f64()? / 1e6);
    let pauses: Vec<f64> = with.iter().filter_map(pause).collect();
    let (with_ms, without_ms) = (p99(&with), p99(&without));
    let ratios: Vec<f64> = with_ms.iter().zip(&without_ms).map(|(a, b)| a / b).collect();
    Some(format!(
        "{} | {pause_max_ms}: {} | {}; {} | {} | {} | {}, {}; {lost}",
        spread(&pauses),
        verdict(&pauses, pause_max_ms),
        spread(&with_ms),
        spread(&without_ms),
        spread(&ratios),
        verdict(&ratios, RATIO_MAX),
        count("done"),
        count("refused"),
    ))
}

/// Median and range.
fn spread(values: &[f64]) -> String {
    let (low, high) = range(values);
    format!("{:.2} ({low:.2} to {high:.2})", median(values))
}

/// Whether the median of all rounds there could be is at most this, with 95 % confidence.
fn verdict(values: &[f64], most: f64) -> &'static str {
    match median_interval(values) {
        None => "too few rounds",
        Some((_, high)) if high <= most => "met",
        Some((low, _)) if low > most => "**missed**",
        Some(_) => "not shown",
    }
}

fn day_row(folder: &Path) -> Option<String> {
    let day = read(folder, "day.json")?;
    let phases = day["phases"].as_array().filter(|phases| phases.len() == 3)?;
    let sum = |name: &str| -> u64 { phases.iter().filter_map(|phase| phase[name].as_u64()).sum() };
    let of_phases = |name: &str| phases.iter().filter_map(|phase| phase[name].as_u64()).collect();
    let (outside, undecided): (Vec<u64>, Vec<u64>) =
        (of_phases("outside_s"), of_phases("undecided_s"));
    let seconds: Vec<String> = outside
        .iter()
        .zip(&undecided)
        .map(|(outside, undecided)| match undecided {
            0 => outside.to_string(),
            _ => format!("{outside} + {undecided}"),
        })
        .collect();
    let start_s = |phase: usize| phases[phase]["start_s"].as_f64();
    let added = decided(&day, "activate cell", start_s(1)?..start_s(2)?);
    let back = decided(&day, "retire cell", start_s(2)?..f64::INFINITY);
    let goals = [
        ("added", added.last().is_some_and(|last| *last <= ADDED_MAX_S)),
        ("back", back.first().is_some_and(|first| *first <= BACK_MAX_S)),
        ("outside", *outside.get(1)? <= OUTSIDE_MAX_S),
    ];
    let goals =
        goals.map(|(name, is_met)| format!("{name} {}", if is_met { "met" } else { "**missed**" }));
    Some(format!(
        "{} | {} | {} | {:.1} | {} | {}",
        list(&added),
        list(&back),
        seconds.join(", "),
        phases[1]["p99_ns"].as_f64()? / 1e6,
        sum("lost"),
        goals.join(", "),
    ))
}

/// When policies decided this in a part of the day, s after its start.
fn decided(day: &Value, what: &str, part_s: Range<f64>) -> Vec<f64> {
    let events = day["events"].as_array().into_iter().flatten();
    let is_it =
        |event: &&Value| event["detail"].as_str().is_some_and(|detail| detail.starts_with(what));
    let times = events.filter(is_it).filter_map(|event| event["at_s"].as_f64());
    times.filter(|at_s| part_s.contains(at_s)).map(|at_s| at_s - part_s.start).collect()
}

/// Times; how many of them are equal.
fn list(times_s: &[f64]) -> String {
    let mut shown: Vec<(String, u32)> = vec![];
    for time in times_s.iter().map(|time| format!("{time:.1}")) {
        match shown.last_mut() {
            Some((last, count)) if *last == time => *count += 1,
            _ => shown.push((time, 1)),
        }
    }
    let shown: Vec<String> =
        shown.iter().map(|(time, count)| format!("{time} ({count})")).collect();
    if shown.is_empty() { "none".to_string() } else { shown.join(", ") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_goal_is_judged_by_an_interval() {
        let rounds = |values: [f64; 10]| verdict(&values, 1.2);
        assert_eq!(rounds([1.0, 1.1, 0.9, 1.0, 1.0, 1.1, 1.1, 1.0, 0.9, 9.0]), "met");
        assert_eq!(rounds([1.3, 1.4, 1.3, 1.5, 1.3, 1.4, 1.6, 1.3, 1.3, 0.5]), "**missed**");
        assert_eq!(rounds([1.0, 1.3, 1.0, 1.4, 1.1, 1.3, 1.0, 1.3, 1.0, 1.3]), "not shown");
        assert_eq!(verdict(&[1.0; 5], 1.2), "too few rounds");
    }

    #[test]
    fn decisions_count_in_their_part_of_the_day() {
        let event = |at_s: f64, detail: &str| json!({ "at_s": at_s, "detail": detail });
        let day = json!({ "events": [
            event(1.0, "activate cell 1: early"),
            event(5.5, "activate cell 2: load"),
            event(6.0, "move instrument 3 to cell 2: load"),
            event(12.0, "activate cell 3: late"),
        ] });
        assert_eq!(decided(&day, "activate cell", 5.0..10.0), [0.5]);
        assert_eq!(decided(&day, "activate cell", 10.0..f64::INFINITY), [2.0]);
        assert_eq!(decided(&day, "retire cell", 0.0..f64::INFINITY), [0.0; 0]);
    }

    #[test]
    fn equal_times_are_counted() {
        assert_eq!(list(&[0.5, 0.51, 1.0]), "0.5 (2), 1.0 (1)");
        assert_eq!(list(&[]), "none");
    }
}
