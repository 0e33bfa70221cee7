//! The figures of a phase, added up from its seconds.

use nm_load::seconds::RecordedSecond;
use nm_stats::histogram::{self, Histogram, VALUE_MAX_NS};

use super::result::{PhaseFigures, WorstSecond};
use super::script::Phase;
use super::second::{SecondFigures, SecondState};

/// Sums over the seconds of a phase. Round trips are kept to three digits.
#[derive(Debug)]
pub struct PhaseTotals {
    histogram: Histogram,
    figures: PhaseFigures,
    worst_ns: f64,
}

impl PhaseTotals {
    /// The sums of a phase that starts at `start_s`, before its first second.
    pub fn new(phase: &Phase, start_s: u32) -> PhaseTotals {
        let figures = PhaseFigures {
            name: phase.name.clone(),
            start_s,
            seconds: phase.seconds,
            outside_max_s: phase.outside_max_s,
            ..PhaseFigures::default()
        };
        PhaseTotals { histogram: histogram::empty(), figures, worst_ns: -1.0 }
    }

    /// Adds a second.
    pub fn add(&mut self, recorded: &RecordedSecond, second: &SecondFigures) {
        for sample in &recorded.samples {
            self.histogram.saturating_record(sample.latency_ns.clamp(1, VALUE_MAX_NS));
        }
        let figures = &mut self.figures;
        figures.judged_s += 1;
        figures.offered += second.offered;
        figures.sent += second.sent;
        figures.replies += second.replies;
        figures.lost += second.lost;
        figures.refused += second.refused;
        figures.outside_s += u32::from(second.state == SecondState::Outside);
        figures.undecided_s += u32::from(second.state == SecondState::Undecided);
        // Lost requests have no round trip, and are worse than any.
        let worst_ns = if second.lost > 0 { f64::MAX } else { second.worst_ns() };
        if worst_ns > self.worst_ns {
            self.worst_ns = worst_ns;
            figures.worst_second = Some(WorstSecond {
                at_s: second.second,
                es10_ns: second.es10_ns,
                p99_ns: second.p99_ns,
                lost: second.lost,
            });
        }
    }

    /// The figures of what was added.
    pub fn finish(self) -> PhaseFigures {
        let (histogram, mut figures) = (self.histogram, self.figures);
        if !histogram.is_empty() {
            figures.mean_ns = Some(histogram.mean());
            figures.p90_ns = Some(histogram.value_at_quantile(0.9) as f64);
            figures.es10_ns = Some(mean_of_slowest_tenth(&histogram));
            figures.p99_ns = Some(histogram.value_at_quantile(0.99) as f64);
            figures.max_ns = Some(histogram.max() as f64);
        }
        figures
    }
}

/// Mean of the slowest 10 % of the values of a histogram that is not empty.
fn mean_of_slowest_tenth(histogram: &Histogram) -> f64 {
    let count = histogram.len().div_ceil(10);
    let mut skipped = histogram.len() - count;
    let mut sum = 0.0;
    for value in histogram.iter_recorded() {
        let here = value.count_at_value();
        let taken = here - here.min(skipped);
        skipped -= here.min(skipped);
        sum += histogram.median_equivalent(value.value_iterated_to()) as f64 * taken as f64;
    }
    sum / count as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sla::Sla;
    use nm_stats::summary::{Sample, summarise};

    const MS: u64 = 1_000_000;

    fn recorded(second: u32, latencies_ns: &[u64], lost: u64) -> RecordedSecond {
        let sample = |ns: &u64| Sample { start_ns: u64::from(second), latency_ns: *ns };
        RecordedSecond {
            second,
            sent: latencies_ns.len() as u64 + lost,
            replies: latencies_ns.len() as u64,
            samples: latencies_ns.iter().map(sample).collect(),
            ..RecordedSecond::default()
        }
    }

    fn totals(seconds: &[RecordedSecond]) -> PhaseFigures {
        let mut totals = PhaseTotals::new(&Phase::steady("x", 9, 100.0), 7);
        for second in seconds {
            totals.add(second, &SecondFigures::of(second, 0, 100.0, Sla::default()));
        }
        totals.finish()
    }

    #[test]
    fn figures_of_a_phase_are_those_of_all_of_its_round_trips() {
        let all: Vec<u64> = (1..=30_000).map(|at| at * 1_009).collect();
        let seconds: Vec<RecordedSecond> =
            (0..3).map(|at| recorded(at, &all[at as usize * 10_000..][..10_000], 0)).collect();
        let found = totals(&seconds);
        let samples: Vec<Sample> = seconds.into_iter().flat_map(|second| second.samples).collect();
        let exact = summarise(&samples, 0, &[]);
        let near = |found: Option<f64>, exact: Option<f64>| {
            (found.unwrap() / exact.unwrap() - 1.0).abs() < 1e-3
        };
        let percentile = |p| exact.value(nm_model::Metric::Percentile(p));
        assert!(near(found.mean_ns, exact.mean_ns) && near(found.es10_ns, exact.es10_ns));
        assert!(near(found.p99_ns, percentile(99.0)) && near(found.p90_ns, percentile(90.0)));
        assert_eq!((found.sent, found.judged_s, found.seconds, found.start_s), (30_000, 3, 9, 7));
        assert_eq!(found.offered, 300.0);
    }

    #[test]
    fn the_worst_second_is_the_slowest_or_one_that_lost_requests() {
        let slow = [recorded(7, &[MS], 0), recorded(8, &[30 * MS], 0), recorded(9, &[2 * MS], 0)];
        let found = totals(&slow);
        let worst = found.worst_second.unwrap();
        assert_eq!((worst.at_s, worst.p99_ns, found.outside_s), (8, Some(30e6), 1));
        let found = totals(&[recorded(7, &[30 * MS], 0), recorded(8, &[MS], 2)]);
        let worst = found.worst_second.unwrap();
        assert_eq!((worst.at_s, worst.lost, found.lost, found.outside_s), (8, 2, 2, 2));
        let nothing = totals(&[]);
        assert_eq!((nothing.p99_ns, nothing.worst_second), (None, None));
        assert_eq!(totals(&[recorded(7, &[], 0)]).worst_second.unwrap().at_s, 7);
    }
}
