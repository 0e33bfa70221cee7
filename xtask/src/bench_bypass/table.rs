//! The report of all figures and goals as Markdown.

use std::fmt::Write as _;

use crate::bench::{self, CLIENT_CPU, SERVER_CPU, median, range};
use crate::bench_bypass::figures::{Case, Figure, Figures};
use crate::bench_bypass::goals::{Bound, GOALS};

pub fn report(figures: &Figures, rounds: usize) -> String {
    let mut text = String::from("# Bypass beside the kernel\n\n");
    let _ = writeln!(
        text,
        "Made by `cargo xtask bench-bypass --rounds {}`. Client on CPU {CLIENT_CPU}, server on \
         CPU {SERVER_CPU}, {} round(s), every second one backwards. A ratio is that of two \
         figures of one round; shown are the median over the rounds and the range. The limit \
         is half a round trip of one cache line between the two CPUs, measured right after \
         the figure. A program under `accel` counts only if its exit report says that its \
         connection was in shared memory.\n",
        rounds, rounds
    );
    text += &bench::environment_lines(&["sockperf", "iperf3", "nuttcp"]);
    goals_text(figures, &mut text);
    latencies_text(figures, &mut text);
    rates_text(figures, &mut text);
    failures_text(figures, &mut text);
    text
}

fn goals_text(figures: &Figures, text: &mut String) {
    text.push_str(
        "\n## Goals\n\n| what | goal | ratio | range | rounds | verdict |\n\
         |---|---|---|---|---|---|\n",
    );
    for goal in GOALS {
        let (sign, bound) = match goal.bound {
            Bound::AtMost(bound) => ("≤", bound),
            Bound::AtLeast(bound) => ("≥", bound),
        };
        let bound_text = ratio_text(bound);
        let ratios = goal.ratios(figures);
        let row = if ratios.is_empty() {
            format!("- | - | 0 | not available: {}", goal.missing_reason(figures))
        } else {
            let middle = median(&ratios);
            let is_met = match goal.bound {
                Bound::AtMost(bound) => middle <= bound,
                Bound::AtLeast(bound) => middle >= bound,
            };
            let (low, high) = range(&ratios);
            format!(
                "{} | {} to {} | {} | {}",
                ratio_text(middle),
                ratio_text(low),
                ratio_text(high),
                ratios.len(),
                if is_met { "met" } else { "**missed**" }
            )
        };
        let _ = writeln!(text, "| {} | {sign} {bound_text} | {row} |", goal.what);
    }
}

/// The rates, or all other cases, that have figures.
fn measured(figures: &Figures, is_rate: bool) -> impl Iterator<Item = (&Case, Vec<Figure>)> {
    let cases = figures.order.iter().filter(move |case| case.is_rate() == is_rate);
    let of = |case: &Case| figures.of(case).iter().flatten().copied().collect::<Vec<_>>();
    cases.map(move |case| (case, of(case))).filter(|(_, values)| !values.is_empty())
}

fn latencies_text(figures: &Figures, text: &mut String) {
    text.push_str(
        "\n## Half round trip, ns\n\nMedians over the rounds of each round's median and p99. \
         (`connect + accept` is the whole time of one connection.)\n\n\
         | case | size, B | rounds | median | range | p99 | samples a round | limit |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    for (case, measured) in measured(figures, false) {
        let values: Vec<f64> = measured.iter().map(|f| f.value).collect();
        let (low, high) = range(&values);
        let of = |get: fn(&Figure) -> Option<f64>| {
            let found: Vec<f64> = measured.iter().filter_map(get).collect();
            if found.is_empty() { "-".to_string() } else { format!("{:.0}", median(&found)) }
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {:.0} | {low:.0} to {high:.0} | {} | {} | {} |",
            case.name,
            case.size(),
            measured.len(),
            median(&values),
            of(|f| f.p99),
            of(|f| f.samples.map(|count| count as f64)),
            of(|f| f.limit_ns)
        );
    }
}

fn rates_text(figures: &Figures, text: &mut String) {
    text.push_str(
        "\n## Rates\n\n| case | size, B | rounds | median | range |\n|---|---|---|---|---|\n",
    );
    for (case, measured) in measured(figures, true) {
        let values: Vec<f64> = measured.iter().map(|f| f.value).collect();
        let (low, high) = range(&values);
        let digits = if high < 1000.0 { 2 } else { 0 };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {:.digits$} | {low:.digits$} to {high:.digits$} |",
            case.name,
            case.size(),
            measured.len(),
            median(&values)
        );
    }
}

fn failures_text(figures: &Figures, text: &mut String) {
    if figures.failures.is_empty() {
        return;
    }
    text.push_str(
        "\n## Not available\n\n| case | size, B | rounds without | why |\n|---|---|---|---|\n",
    );
    for case in figures.order.iter().filter(|case| figures.failures.contains_key(case)) {
        let without = figures.of(case).iter().filter(|figure| figure.is_none()).count();
        let why = &figures.failures[case];
        let _ = writeln!(text, "| {} | {} | {without} | {why} |", case.name, case.size());
    }
}

/// Small ratios as fractions, as the goals are written.
fn ratio_text(ratio: f64) -> String {
    if ratio < 0.25 { format!("1/{:.1}", 1.0 / ratio) } else { format!("{ratio:.2}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Build;
    use crate::bench_bypass::cases;
    use crate::bench_bypass::goals::{ACCEL, BLOCKING};

    #[test]
    fn ratio_is_of_two_figures_of_one_round() {
        let cases = [Case::new(ACCEL, 64), Case::new(BLOCKING, 64)];
        let mut figures = Figures::default();
        figures.set_order(cases.iter());
        for (own, base) in [(100.0, Some(8000.0)), (300.0, None), (200.0, Some(6000.0))] {
            figures.add(&cases[..1], Ok(vec![Figure::of(own)]));
            let base = base.map(|base| vec![Figure::of(base)]);
            figures.add(&cases[1..], base.ok_or_else(|| anyhow::anyhow!("a | reason")));
        }
        let goal = GOALS.iter().find(|goal| goal.what.contains("blocking, 64")).unwrap();
        assert_eq!(goal.ratios(&figures), [100.0 / 8000.0, 200.0 / 6000.0]);
        let text = report(&figures, 3);
        let row = "| `accel` ÷ kernel TCP blocking, 64 B | ≤ 1/40.0 | 1/43.6 | 1/80.0 to 1/30.0 \
                   | 2 | met |";
        assert!(text.contains(row), "{text}");
        assert!(text.contains("| sockperf blocking | 64 | 1 | a / reason |"), "{text}");
        assert!(text.contains("not available: not measured in this run"), "{text}");
    }

    #[test]
    fn every_goal_names_measured_cases() {
        let folder = cases::Folder::make().unwrap();
        let measured: Vec<Case> =
            cases::all(&folder, Build::current()).into_iter().flat_map(|one| one.cases).collect();
        for goal in GOALS {
            for case in [Some(goal.own_case()), goal.base_case()].into_iter().flatten() {
                assert!(measured.contains(&case), "{}: {case:?}", goal.what);
            }
        }
    }
}
