//! Collects the seconds of a day as they become complete.

use std::io;

use nm_load::seconds::RecordedSecond;
use nm_stats::summary::Sample;
use nm_wire::RefusalReason;

use super::phase_totals::PhaseTotals;
use super::result::PhaseFigures;
use super::script::Script;
use super::second::SecondFigures;
use super::seconds_file::SecondsFile;
use crate::sla::Sla;

/// Most round trips above the limit that are kept, to find when the service was within it again.
pub const SLOW_MAX: usize = 1 << 20;

/// The seconds of a day, and what was added up from them.
#[derive(Debug, Default)]
pub struct Collected {
    /// The seconds, in order, from the first on.
    pub seconds: Vec<SecondFigures>,
    /// The phases as far as they were run.
    pub phases: Vec<PhaseFigures>,
    /// Round trips above the limit by intended send, since the start of the day.
    pub slow: Vec<Sample>,
    /// Round trips above the limit that were not kept.
    pub slow_left_out: u64,
    /// Why the network refused a request, if it did.
    pub first_refusal: Option<RefusalReason>,
}

/// Collects the seconds of a day.
#[derive(Debug)]
pub struct Collector<'a> {
    script: &'a Script,
    sla: Sla,
    file: Option<SecondsFile>,
    /// Index of the present phase.
    index: usize,
    /// Start of the present phase, s.
    start_s: u32,
    /// Sums of the present phase, from its first second on.
    totals: Option<PhaseTotals>,
    collected: Collected,
}

impl<'a> Collector<'a> {
    /// Collects the seconds of a script, in a file as well if there is one.
    pub fn new(script: &'a Script, sla: Sla, file: Option<SecondsFile>) -> Collector<'a> {
        let (index, start_s, totals, collected) = (0, 0, None, Collected::default());
        Collector { script, sla, file, index, start_s, totals, collected }
    }

    /// Adds a second; they come in order. Returns its figures, and those of the phase that it is
    /// the last one of.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn add(
        &mut self,
        recorded: &RecordedSecond,
    ) -> io::Result<(SecondFigures, Option<PhaseFigures>)> {
        let Some(phase) = self.script.phases.get(self.index) else {
            let message = "a second after the end of the day";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        };
        let offered = phase.offered_in(recorded.second.saturating_sub(self.start_s));
        let second = SecondFigures::of(recorded, self.index as u32, offered, self.sla);
        let start_s = self.start_s;
        let totals = self.totals.get_or_insert_with(|| PhaseTotals::new(phase, start_s));
        totals.add(recorded, &second);
        self.keep_slow(recorded);
        let first_refusal = &mut self.collected.first_refusal;
        *first_refusal = first_refusal.or(recorded.first_refusal);
        if let Some(file) = &mut self.file {
            file.add(&second, &phase.name)?;
        }
        self.collected.seconds.push(second.clone());
        let end_s = self.start_s + phase.seconds;
        let mut ended = None;
        if recorded.second + 1 >= end_s {
            ended = self.end_phase();
            (self.index, self.start_s) = (self.index + 1, end_s);
        }
        Ok((second, ended))
    }

    fn keep_slow(&mut self, recorded: &RecordedSecond) {
        let Collected { slow, slow_left_out, .. } = &mut self.collected;
        for sample in &recorded.samples {
            if sample.latency_ns >= self.sla.limit_ns {
                if slow.len() < SLOW_MAX {
                    slow.push(*sample);
                } else {
                    *slow_left_out += 1;
                }
            }
        }
    }

    fn end_phase(&mut self) -> Option<PhaseFigures> {
        let figures = self.totals.take()?.finish();
        self.collected.phases.push(figures.clone());
        Some(figures)
    }

    /// What was collected. A phase that was begun is among the phases.
    pub fn finish(mut self) -> Collected {
        self.end_phase();
        // Seconds have their round trips in the order of the replies.
        self.collected.slow.sort_by_key(|sample| sample.start_ns);
        self.collected
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::day::second::SecondState;

    const MS: u64 = 1_000_000;

    /// A second whose requests have these round trips, ms; each is sent a ms after the one before.
    fn recorded(second: u32, latencies_ms: &[u64]) -> RecordedSecond {
        let start_ns = u64::from(second) * 1_000 * MS;
        let sample = |(at, ms): (usize, &u64)| Sample {
            start_ns: start_ns + at as u64 * MS,
            latency_ns: ms * MS,
        };
        RecordedSecond {
            second,
            sent: latencies_ms.len() as u64,
            replies: latencies_ms.len() as u64,
            samples: latencies_ms.iter().enumerate().map(sample).rev().collect(),
            ..RecordedSecond::default()
        }
    }

    #[test]
    fn seconds_belong_to_their_phases_and_slow_round_trips_are_kept() {
        let mut script = Script::step(10.0, 20.0, 2);
        script.phases[2].to_rate_per_s = Some(30.0);
        let mut collector = Collector::new(&script, Sla::default(), None);
        let mut ended = vec![];
        for (second, latencies_ms) in
            [[1, 2], [1, 1], [11, 12], [1, 30], [1, 1], [1, 1]].iter().enumerate()
        {
            let (figures, phase) = collector.add(&recorded(second as u32, latencies_ms)).unwrap();
            assert_eq!(figures.phase, second as u32 / 2);
            ended.extend(phase.map(|phase| (second, phase.name)));
        }
        let names: Vec<_> = ended.iter().map(|(at, name)| (*at, name.as_str())).collect();
        assert_eq!(names, [(1, "before"), (3, "step"), (5, "after")]);
        assert!(collector.add(&recorded(6, &[1])).is_err());
        let found = collector.finish();
        let offered: Vec<f64> = found.seconds.iter().map(|second| second.offered).collect();
        assert_eq!(offered, [10.0, 10.0, 20.0, 20.0, 15.0, 25.0]);
        let outside: Vec<u32> = found.phases.iter().map(|phase| phase.outside_s).collect();
        assert_eq!(outside, [0, 2, 0]);
        assert_eq!(found.seconds[3].state, SecondState::Outside);
        let starts: Vec<u64> = found.slow.iter().map(|sample| sample.start_ns / MS).collect();
        assert_eq!(starts, [2_000, 2_001, 3_001]);
    }

    #[test]
    fn round_trips_above_the_limit_are_kept_up_to_a_number() {
        let script = Script::step(10.0, 20.0, 2);
        let mut collector = Collector::new(&script, Sla::default(), None);
        let slow = Sample { start_ns: 1, latency_ns: 10 * MS };
        let mut second = recorded(0, &[]);
        (second.sent, second.samples) = (SLOW_MAX as u64, vec![slow; SLOW_MAX]);
        collector.add(&second).unwrap();
        collector.add(&recorded(1, &[9, 10, 11])).unwrap();
        let found = collector.finish();
        assert_eq!((found.slow.len(), found.slow_left_out), (SLOW_MAX, 2));
    }

    #[test]
    fn a_day_that_ends_early_has_the_phase_that_it_ended_in() {
        let script = Script::step(10.0, 20.0, 2);
        let seconds = |count: u32| {
            let mut collector = Collector::new(&script, Sla::default(), None);
            (0..count).for_each(|second| drop(collector.add(&recorded(second, &[1]))));
            let judged = collector.finish().phases.into_iter().map(|phase| phase.judged_s);
            judged.collect::<Vec<u32>>()
        };
        assert_eq!((seconds(0), seconds(1), seconds(2)), (vec![], vec![1], vec![2]));
        assert_eq!((seconds(3), seconds(6)), (vec![2, 1], vec![2, 2, 2]));
    }
}
