//! What a plan demands of the machine itself, and what the machine did while a run measured.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::limits::{self, SpecError};

/// Limits of the machine, a table `[machine]` of a plan. A run on a machine beyond one of them does
/// not pass, whatever its figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MachineLimits {
    /// Highest share of the time of all CPUs that the hypervisor may give to others, %.
    pub steal_percent_max: f64,
    /// Highest CPU time of programs that do not belong to the run, % of one CPU.
    pub other_work_percent_max: f64,
    /// Highest share of the time in which the control group may be stopped by its limit, %.
    pub throttled_percent_max: f64,
    /// Whether the control group may have a limit of CPU time at all.
    pub quota_allowed: bool,
    /// Fewest CPUs that the run must be able to use.
    pub cpus_min: u32,
    /// Whether the machine may lack a TSC that the measurement can use.
    pub slow_clock_allowed: bool,
}

impl Default for MachineLimits {
    fn default() -> MachineLimits {
        MachineLimits {
            steal_percent_max: 1.0,
            other_work_percent_max: 10.0,
            throttled_percent_max: 0.0,
            quota_allowed: false,
            cpus_min: 2,
            slow_clock_allowed: false,
        }
    }
}

impl MachineLimits {
    /// Checks the ranges.
    pub(crate) fn check(&self) -> Result<(), SpecError> {
        let percent_max = 100.0;
        limits::check("steal_percent_max", self.steal_percent_max, 0.0..=percent_max)?;
        limits::check("throttled_percent_max", self.throttled_percent_max, 0.0..=percent_max)?;
        let all_cpus = percent_max * limits::CPUS_MAX as f64;
        limits::check("other_work_percent_max", self.other_work_percent_max, 0.0..=all_cpus)?;
        limits::check("cpus_min", self.cpus_min, 1..=limits::CPUS_MAX as u32)
    }
}

/// What the machine did from the start of a run to its end. What could not be read is absent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct MachineUse {
    /// Length of the run, s.
    pub window_s: f64,
    /// CPUs online.
    pub cpus: u32,
    /// CPUs that the run may use.
    pub cpus_allowed: u32,
    /// Time that the hypervisor gave to others, s, the sum of all CPUs.
    pub steal_s: Option<f64>,
    /// Time in which the limit of the control group stopped threads, s.
    pub throttled_s: Option<f64>,
    /// Limit of CPU time of the control group, as in `cpu.max`, if there is one.
    pub quota: Option<String>,
    /// CPU time of all programs outside the run, s.
    pub other_work_s: Option<f64>,
    /// The programs outside the run that used most CPU time, the first one most.
    pub programs: Vec<ProgramUse>,
    /// Why the TSC was not used, if it was not.
    pub slow_clock: Option<String>,
    /// Whether the slow clock was taken because the kernel's own could not be read, which says
    /// nothing about the machine.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_clock_unknown: bool,
}

/// A program outside the run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProgramUse {
    /// Its name, as in `/proc/PID/comm`.
    pub command: String,
    /// Its process id.
    pub pid: u32,
    /// CPU time during the run, s.
    pub cpu_s: f64,
}

impl MachineUse {
    /// Share of the time of all CPUs that was stolen, %.
    pub fn steal_percent(&self) -> Option<f64> {
        self.percent(self.steal_s?, f64::from(self.cpus))
    }

    /// Share of the time in which the control group was stopped, %.
    pub fn throttled_percent(&self) -> Option<f64> {
        self.percent(self.throttled_s?, 1.0)
    }

    /// CPU time of programs outside the run, % of one CPU.
    pub fn other_work_percent(&self) -> Option<f64> {
        self.percent(self.other_work_s?, 1.0)
    }

    fn percent(&self, time_s: f64, cpus: f64) -> Option<f64> {
        let share = time_s / (self.window_s * cpus);
        share.is_finite().then_some(share * 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_beyond_the_range_are_refused_with_their_field() {
        let field = |limits: MachineLimits| limits.check().unwrap_err().field();
        let default = MachineLimits::default();
        assert_eq!(default.check(), Ok(()));
        let steal_percent_max = f64::NAN;
        assert_eq!(
            field(MachineLimits { steal_percent_max, ..default.clone() }),
            "steal_percent_max"
        );
        assert_eq!(field(MachineLimits { cpus_min: 0, ..default }), "cpus_min");
    }

    #[test]
    fn shares_are_of_all_cpus_or_of_one() {
        let machine = MachineUse {
            window_s: 10.0,
            cpus: 2,
            steal_s: Some(5.0),
            other_work_s: Some(3.0),
            ..Default::default()
        };
        assert_eq!(machine.steal_percent(), Some(25.0));
        assert_eq!(machine.other_work_percent(), Some(30.0));
        assert_eq!(machine.throttled_percent(), None);
        assert_eq!(MachineUse { window_s: 0.0, ..machine }.steal_percent(), None);
    }
}
