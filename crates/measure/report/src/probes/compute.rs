//! The table of the compute probe. It has jobs of each layout beside one thread alone, with the
//! published figures below, and what is expected of a layout.

pub(crate) mod page;

use nm_model::compute::{ComputeRound, Count, Layout, ThreadWork};
use nm_model::probe::{Case, ProbeKind};
use nm_model::result::Series;
use nm_model::{Metric, RunResult};
use nm_stats::describe::median;

use crate::probes::case_words;
use crate::probes::section::Section;
use crate::reference;
use crate::style::Tone;
use crate::table::{Column, Table};
use crate::units::{NOT_AVAILABLE, column, or_not_available, percent};
use crate::view;

/// The published run of this work.
pub const PUBLISHED: &str = "monterey-compute-bc-pi";

/// How to read the table.
pub const READING: &str = "A layout AxB is A threads on each of B cores, N the number of cores. \
    Work per core is the jobs a second divided by the cores and by the jobs a second of one \
    thread alone: 1 if no core slows another, and above 1 only if a core's hardware threads gain \
    something. Speed is the CPU time of a job alone divided by that of a job in the layout: in the \
    published study one hyperthread was 66 to 69 % of a core. Fairness is the real time of the \
    fastest thread divided by that of the slowest.";

/// Work per core that the published study reached with several threads on each core: its two
/// hardware threads gained 21 to 31 %.
const PUBLISHED_GAIN: f64 = 1.31;

/// Work per core of one thread on each core, with some room for measurement error.
const ALONE: (f64, f64) = (0.95, 1.05);

/// One workload in one layout.
#[derive(Debug, Clone, Copy)]
pub struct Line<'a> {
    /// Its series.
    pub series: &'a Series,
    /// The layout.
    pub layout: Layout,
    /// One thread alone in the same run.
    solo: Option<&'a Series>,
}

/// The lines of a result, in its order.
pub fn lines(result: &RunResult) -> Vec<Line<'_>> {
    let of = |series: &Series| match series.key.case {
        Case::Layout { workload, layout } if series.key.probe == ProbeKind::Compute => {
            Some((workload, layout))
        }
        _ => None,
    };
    let line = |series| {
        let (workload, layout) = of(series)?;
        let is_solo = |other: &&Series| {
            other.key.environment == series.key.environment
                && of(other) == Some((workload, Layout::SOLO))
        };
        let solo = result.series.iter().find(is_solo);
        // Work and speed beside one thread alone are ratios, of which emulated guests have none.
        let is_real = |solo: &&Series| !solo.is_emulated() && !series.is_emulated();
        Some(Line { series, layout, solo: solo.filter(is_real) })
    };
    result.series.iter().filter_map(line).collect()
}

impl Line<'_> {
    fn rounds(&self) -> impl Iterator<Item = &ComputeRound> {
        view::latency_rounds(self.series).filter_map(|round| round.compute.as_deref())
    }

    /// The median over rounds of a figure of the threads.
    fn of_threads(&self, figure: impl Fn(&[ThreadWork]) -> Option<f64>) -> Option<f64> {
        median(&self.rounds().filter_map(|round| figure(&round.threads)).collect::<Vec<_>>())
    }

    /// Threads of the layout, on the machine that was measured.
    pub fn threads(&self) -> Option<u32> {
        let counted = self.rounds().map(|round| round.threads.len()).max()?;
        if counted > 0 {
            return u32::try_from(counted).ok();
        }
        // A published run has no threads, but one job of each.
        let jobs = view::value(self.series, Metric::Rate)? * self.rounds().next()?.window_s;
        Some(jobs.round() as u32)
    }

    /// Cores of the layout, on the machine that was measured.
    fn cores(&self) -> Option<u32> {
        match (self.layout.threads_per_core, self.layout.cores) {
            (_, Count::Exactly(cores)) => Some(cores),
            (Count::Exactly(threads), Count::AllCores) => Some(self.threads()? / threads),
            (Count::AllCores, Count::AllCores) => Some(self.threads()?.isqrt()),
        }
    }

    /// Jobs a second on each core, as a multiple of one thread alone, by these jobs a second.
    fn per_core(&self, rate: f64) -> Option<f64> {
        let solo = view::value(self.solo?, Metric::Rate).filter(|rate| *rate > 0.0)?;
        Some(rate / solo / f64::from(self.cores()?))
    }

    /// The median of [`Line::per_core`].
    pub fn work_per_core(&self) -> Option<f64> {
        self.per_core(view::value(self.series, Metric::Rate)?)
    }

    /// The same of each round.
    pub fn rounds_per_core(&self) -> Vec<f64> {
        let rates = view::round_values(self.series, Metric::Rate);
        rates.into_iter().filter_map(|rate| self.per_core(rate)).collect()
    }

    /// CPU time of a job alone divided by that of a job here, 0 to 1.
    fn speed(&self) -> Option<f64> {
        let time =
            |series| view::value(series, Metric::Median).or(view::value(series, Metric::Mean));
        Some(time(self.solo?)? / time(self.series).filter(|ns| *ns > 0.0)?)
    }

    /// The range that is expected of the work per core.
    pub fn expected(&self) -> (f64, f64) {
        match self.layout.threads_per_core {
            Count::Exactly(1) => ALONE,
            _ => (ALONE.0, PUBLISHED_GAIN),
        }
    }

    /// Real time of the fastest thread divided by that of the slowest, 0 to 1.
    fn fairness(&self) -> Option<f64> {
        self.of_threads(|threads| {
            let all = threads.iter().map(|thread| thread.real_ns as f64);
            let (fastest, slowest) = (all.clone().reduce(f64::min)?, all.reduce(f64::max)?);
            (slowest > 0.0).then(|| fastest / slowest)
        })
    }

    /// Real time of a job of the slowest thread, s.
    fn real_s(&self) -> Option<f64> {
        let slowest = self.of_threads(|threads| {
            let of_job =
                |thread: &ThreadWork| thread.real_ns as f64 / f64::from(thread.jobs.max(1));
            threads.iter().map(of_job).reduce(f64::max)
        });
        // A published run has no threads, but the time of all.
        let window = || median(&self.rounds().map(|round| round.window_s).collect::<Vec<_>>());
        slowest.map(|ns| ns / 1e9).or_else(window)
    }

    /// Share of its real time that a thread waited for a CPU, 0 to 1.
    fn waited(&self) -> Option<f64> {
        self.of_threads(|threads| {
            let real: u64 = threads.iter().map(|thread| thread.real_ns).sum();
            let waited: Option<u64> = threads.iter().map(|thread| thread.run_delay_ns).sum();
            Some(waited? as f64 / real.max(1) as f64)
        })
    }

    fn steal_ms(&self) -> Option<f64> {
        self.of_threads(|threads| {
            let all: Option<u64> = threads.iter().map(|thread| thread.steal_ms).sum();
            Some(all? as f64)
        })
    }

    fn implementation(&self) -> String {
        self.rounds().next().map(|round| round.implementation.clone()).unwrap_or_default()
    }

    /// `pi 2xN`, with the environment where it is not this host.
    pub fn label(&self) -> String {
        let environment = &self.series.key.environment;
        let case = case_words::text(&self.series.key.case);
        let name = if environment == "host" { case } else { format!("{environment} {case}") };
        view::marked(self.series, name)
    }
}

/// The section of a report.
pub(crate) fn section(result: &RunResult) -> Option<Section> {
    let table = table(result)?;
    let (anchor, title, reading) = ("compute", "Compute", Some(READING));
    Some(Section { anchor, title, reading, brief: vec![table.clone()], tables: vec![table] })
}

/// The table of a result with figures of the compute probe; none otherwise.
pub fn table(result: &RunResult) -> Option<Table> {
    let own = lines(result);
    if own.is_empty() {
        return None;
    }
    let run = reference::load(PUBLISHED).ok().filter(|run| run.name != result.name);
    let published = run.as_ref().map(lines).unwrap_or_default();
    let all: Vec<Line<'_>> = own.iter().chain(&published).copied().collect();
    let texts = |text: &dyn Fn(&Line<'_>) -> String| all.iter().map(text).collect::<Vec<_>>();
    let numbers = |digits, value: &dyn Fn(&Line<'_>) -> Option<f64>| {
        column(&all.iter().map(value).collect::<Vec<_>>(), digits, 3)
    };
    let shares = |value: &dyn Fn(&Line<'_>) -> Option<f64>| {
        texts(&|line| or_not_available(value(line), percent))
    };
    let cpu_s = |line: &Line<'_>| {
        let ns = view::value(line.series, Metric::Median);
        Some(ns.or(view::value(line.series, Metric::Mean))? / 1e9)
    };
    let threads = |line: &Line<'_>| {
        line.threads().map_or_else(|| NOT_AVAILABLE.to_string(), |count| count.to_string())
    };
    let is_own = |at: usize| at < own.len();
    let source = |at: usize| if is_own(at) { "measured" } else { "published, 2010" }.to_string();
    // The source tells where a published line is from.
    let label = |at: usize| match is_own(at) {
        true => all[at].label(),
        false => case_words::text(&all[at].series.key.case),
    };
    let columns = vec![
        (Column::text("layout"), (0..all.len()).map(label).collect()),
        (Column::text("source"), (0..all.len()).map(source).collect()),
        (Column::figure("threads"), texts(&threads)),
        (Column::figure("jobs/s"), numbers(4, &|line| view::value(line.series, Metric::Rate))),
        (Column::figure("work per core"), numbers(3, &|line| line.work_per_core())),
        (Column::figure("CPU s"), numbers(4, &cpu_s)),
        (Column::figure("real s"), numbers(4, &|line| line.real_s())),
        (Column::figure("speed"), shares(&|line| line.speed())),
        (Column::figure("fairness"), shares(&|line| line.fairness())),
        (Column::figure("waited").leaves(3), shares(&|line| line.waited())),
        (Column::figure("stolen ms").leaves(2), numbers(3, &|line| line.steal_ms())),
        (Column::text("implementation").leaves(1), texts(&|line| line.implementation())),
    ];
    let tones = (0..all.len()).map(|at| if is_own(at) { Tone::Plain } else { Tone::Faint });
    let caption =
        "Compute: jobs in layouts of threads, beside one thread alone (medians of rounds)";
    Some(Table::of_columns(caption, columns).with_tones(tones))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_table_gives_the_figures_of_its_recalculation() {
        let run = reference::load(PUBLISHED).unwrap();
        let lines = lines(&run);
        let shown: Vec<String> = lines
            .iter()
            .map(|line| {
                let (per_core, speed) = (line.work_per_core().unwrap(), line.speed().unwrap());
                let (label, threads) = (line.layout, line.threads().unwrap());
                format!("{label} {threads} {per_core:.2} {:.0} %", speed * 100.0)
            })
            .collect();
        let expected = [
            "1x1 1 1.00 100 %",
            "1xN 8 1.00 100 %",
            "Nx1 8 2.06 100 %",
            "2xN 16 1.21 69 %",
            "4xN 32 1.31 66 %",
        ];
        assert_eq!(shown, expected);
        let is_expected = |line: &&Line<'_>| {
            let (low, high) = line.expected();
            // 1.3130 of the table is the 1.31 of the expectation.
            (low..high + 0.005).contains(&line.work_per_core().unwrap())
        };
        let unexpected: Vec<String> =
            lines.iter().filter(|line| !is_expected(line)).map(|l| l.layout.to_string()).collect();
        assert_eq!(unexpected, ["Nx1"], "its two CPUs were not those of one core");
    }

    #[test]
    fn only_a_result_with_such_figures_has_a_table_and_the_published_rows_below() {
        let latency = reference::load("deftech-e5-bm-ull").unwrap();
        assert!(table(&latency).is_none());
        let mut run = reference::load(PUBLISHED).unwrap();
        assert_eq!(table(&run).unwrap().rows.len(), 5, "a published run is not repeated");
        run.name = "mine".to_string();
        run.series.truncate(2);
        let table = table(&run).unwrap();
        let sources: Vec<&str> = table.rows.iter().map(|row| row.cells[1].as_str()).collect();
        assert_eq!(sources[..3], ["measured", "measured", "published, 2010"]);
        run.series.remove(0);
        assert!(lines(&run)[0].work_per_core().is_none(), "without one alone there is no ratio");
    }
}
