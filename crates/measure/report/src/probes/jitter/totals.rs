//! One CPU over all rounds of a series: times and counts are sums, percentiles medians of rounds.

use std::collections::BTreeMap;

use nm_model::jitter::{Balance, CpuJitter, JitterRound};
use nm_model::result::{PercentileValue, Series};
use nm_stats::describe;

use crate::view;

/// One CPU over all rounds.
pub struct CpuTotal<'a> {
    /// Which CPU.
    pub cpu: u32,
    rounds: Vec<(&'a JitterRound, &'a CpuJitter)>,
}

/// The rounds of a series.
pub fn rounds(series: &Series) -> impl Iterator<Item = &JitterRound> {
    view::latency_rounds(series).filter_map(|round| round.jitter.as_deref())
}

impl<'a> CpuTotal<'a> {
    /// Each CPU of a series.
    pub fn of_series(series: &'a Series) -> Vec<CpuTotal<'a>> {
        let mut by_cpu: BTreeMap<u32, Vec<(&JitterRound, &CpuJitter)>> = BTreeMap::new();
        for round in rounds(series) {
            for cpu in &round.cpus {
                by_cpu.entry(cpu.cpu).or_default().push((round, cpu));
            }
        }
        by_cpu.into_iter().map(|(cpu, rounds)| CpuTotal { cpu, rounds }).collect()
    }
}

impl CpuTotal<'_> {
    fn sum(&self, of: impl Fn(&CpuJitter) -> u64) -> u64 {
        self.rounds.iter().fold(0, |sum, (_, cpu)| sum.saturating_add(of(cpu)))
    }

    /// The sum, if each round has it.
    fn sum_of_known(&self, of: impl Fn(&CpuJitter) -> Option<u64>) -> Option<u64> {
        view::sum(self.rounds.iter().map(|(_, cpu)| of(cpu)))
    }

    fn elapsed_ns(&self) -> u64 {
        self.sum(|cpu| cpu.elapsed_ns).max(1)
    }

    /// `ns` as a share of all time.
    pub fn share(&self, ns: u64) -> f64 {
        ns as f64 / self.elapsed_ns() as f64
    }

    /// `number` a second.
    pub fn per_s(&self, number: u64) -> f64 {
        number as f64 / (self.elapsed_ns() as f64 / 1e9)
    }

    /// Number of gaps.
    pub fn gaps(&self) -> u64 {
        self.sum(|cpu| cpu.gaps)
    }

    /// Length of all gaps, ns.
    pub fn lost_ns(&self) -> u64 {
        self.sum(|cpu| cpu.lost_ns)
    }

    /// The longest gap, ns.
    pub fn longest_ns(&self) -> u64 {
        self.rounds.iter().map(|(_, cpu)| cpu.longest_ns).max().unwrap_or(0)
    }

    /// Time that other threads ran, by the scheduler, or else by the flags of gaps, ns.
    pub fn preempted_ns(&self) -> Option<u64> {
        self.run_delay_ns().or_else(|| self.sum_of_known(|cpu| cpu.preempted_ns))
    }

    /// Run delay, ns.
    pub fn run_delay_ns(&self) -> Option<u64> {
        self.sum_of_known(|cpu| cpu.balance.run_delay_ns)
    }

    /// Time in interrupts, ns.
    pub fn interrupts_ns(&self) -> Option<u64> {
        self.sum_of_known(|cpu| cpu.balance.interrupts_ns)
    }

    /// Stolen time, ns.
    pub fn steal_ns(&self) -> Option<u64> {
        self.sum_of_known(|cpu| cpu.balance.steal_ns)
    }

    /// What is left of the lost time, ns.
    pub fn unexplained_ns(&self) -> i64 {
        let parts = Balance {
            run_delay_ns: Some(self.sum(|cpu| cpu.balance.explained_ns())),
            ..Balance::default()
        };
        parts.of(self.lost_ns()).unexplained_ns
    }

    /// What is left of the lost time, if it is time at all, ns.
    pub fn unexplained_time_ns(&self) -> u64 {
        u64::try_from(self.unexplained_ns()).unwrap_or(0)
    }

    /// What was certainly lost below the system, ns.
    pub fn below_system_ns(&self) -> u64 {
        self.sum(|cpu| cpu.balance.below_system_ns()).min(self.unexplained_time_ns())
    }

    /// What to call what is below.
    pub fn below_name(&self) -> &'static str {
        // A round in which firmware interrupts were counted says most.
        let names = self.rounds.iter().map(|(round, cpu)| round.below_system_name(cpu));
        names.max_by_key(|name| name.len()).unwrap_or("")
    }

    /// Gaps in which the kernel ran another thread.
    pub fn preempted_gaps(&self) -> Option<u64> {
        self.sum_of_known(|cpu| cpu.preempted_gaps)
    }

    /// Involuntary switches.
    pub fn switches(&self) -> u64 {
        self.sum(|cpu| cpu.counted.involuntary_switches)
    }

    /// Page faults.
    pub fn minor_faults(&self) -> u64 {
        self.sum(|cpu| cpu.counted.minor_faults)
    }

    /// Interrupts of the CPU.
    pub fn interrupt_count(&self) -> Option<u64> {
        self.sum_of_known(|cpu| cpu.counted.interrupt_count())
    }

    /// Interrupts by the firmware.
    pub fn firmware_interrupts(&self) -> Option<u64> {
        self.sum_of_known(|cpu| cpu.counted.firmware_interrupts)
    }

    /// Interrupts by row, the largest first.
    pub fn interrupt_rows(&self) -> Vec<(&str, u64)> {
        let mut rows: BTreeMap<&str, u64> = BTreeMap::new();
        let all = self.rounds.iter().filter_map(|(_, cpu)| cpu.counted.interrupts.as_ref());
        for (name, count) in all.flatten() {
            let sum = rows.entry(name).or_default();
            *sum = sum.saturating_add(*count);
        }
        let mut rows: Vec<(&str, u64)> = rows.into_iter().collect();
        rows.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        rows
    }

    /// Median over rounds of a percentile of the lengths of gaps, ns.
    pub fn percentile(&self, percentile: f64) -> Option<f64> {
        self.median(percentile, |cpu| &cpu.percentiles)
    }

    /// Median over rounds of a percentile of the delay of a random message, ns.
    pub fn delay(&self, percentile: f64) -> Option<f64> {
        self.median(percentile, |cpu| &cpu.delays)
    }

    /// None unless each round has the value.
    fn median(&self, percentile: f64, of: fn(&CpuJitter) -> &Vec<PercentileValue>) -> Option<f64> {
        let value =
            |cpu: &CpuJitter| of(cpu).iter().find(|value| value.percentile == percentile)?.value_ns;
        let values: Option<Vec<f64>> = self.rounds.iter().map(|(_, cpu)| value(cpu)).collect();
        describe::median(&values?)
    }
}
