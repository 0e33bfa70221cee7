//! The machine of a run against the limits of its plan.
//!
//! What belongs to the machine (CPUs, quota, clock, time stolen by its hypervisor) fails a limit.
//! What the user can end (other programs) leaves it open, because a repetition may be undisturbed.
//! What cannot be read is unknown, so its limit is open too.

use nm_model::machine::{MachineLimits, MachineUse};
use nm_model::verdict::{Evidence, Outcome, Verdict};

/// One verdict for each limit.
pub(crate) fn judge_machine(limits: &MachineLimits, machine: Option<&MachineUse>) -> Vec<Verdict> {
    let Some(machine) = machine else {
        let reason = "what the machine did during the run was not recorded".to_string();
        return vec![verdict(
            "limits of the machine".to_string(),
            Outcome::Inconclusive,
            reason,
            "",
        )];
    };
    vec![
        cpus(limits, machine),
        quota(limits, machine),
        clock(limits, machine),
        steal(limits, machine),
        other_work(limits, machine),
    ]
}

fn verdict(limit: String, outcome: Outcome, reason: String, why: &str) -> Verdict {
    let evidence = Evidence {
        series: "machine".to_string(),
        outcome,
        value: None,
        interval: None,
        reason: reason.clone(),
    };
    Verdict {
        target: format!("machine: {limit}"),
        require: None,
        outcome,
        reason,
        is_same_host_only: false,
        is_of_machine: true,
        why: why.to_string(),
        decisive: None,
        evidence: vec![evidence],
    }
}

fn cpus(limits: &MachineLimits, machine: &MachineUse) -> Verdict {
    let MachineUse { cpus_allowed, cpus, .. } = machine;
    let (outcome, reason) = match *cpus_allowed {
        0 => (Outcome::Inconclusive, "how many CPUs there are cannot be read here".to_string()),
        allowed => {
            let is_met = allowed >= limits.cpus_min;
            let reason = format!("the run may use {allowed} of {cpus} CPUs");
            (if is_met { Outcome::Pass } else { Outcome::Fail }, reason)
        }
    };
    verdict(
        format!("at least {} CPUs for the run", limits.cpus_min),
        outcome,
        reason,
        "two ends on one CPU take turns, so nothing between CPUs is measured",
    )
}

fn quota(limits: &MachineLimits, machine: &MachineUse) -> Verdict {
    let stopped = match (machine.throttled_s, machine.throttled_percent()) {
        (Some(throttled_s), Some(percent)) => {
            format!("stopped its threads for {throttled_s:.2} s, {percent:.1} % of the run")
        }
        _ => "does not say for how long it stopped threads".to_string(),
    };
    let is_stopped_too_long =
        machine.throttled_percent().is_some_and(|share| share > limits.throttled_percent_max);
    let (outcome, reason) = match &machine.quota {
        None => (Outcome::Pass, "the control group has no limit of CPU time".to_string()),
        Some(quota) => {
            let is_met = limits.quota_allowed && !is_stopped_too_long;
            let reason =
                format!("the control group's limit of CPU time (`{quota}`, µs of µs) {stopped}");
            (if is_met { Outcome::Pass } else { Outcome::Fail }, reason)
        }
    };
    let limit = match limits.quota_allowed {
        false => "no limit of CPU time".to_string(),
        true => format!(
            "stopped by its limit of CPU time in at most {} % of the run",
            limits.throttled_percent_max
        ),
    };
    let why = "at the limit every thread stands still until the next period, up to 100 ms";
    verdict(limit, outcome, reason, why)
}

fn clock(limits: &MachineLimits, machine: &MachineUse) -> Verdict {
    let (outcome, reason) = match &machine.slow_clock {
        None => (Outcome::Pass, "timestamps come from the TSC".to_string()),
        Some(why) => {
            let outcome = match limits.slow_clock_allowed {
                true => Outcome::Pass,
                // Another clock may be there: nobody could look.
                false if machine.is_clock_unknown => Outcome::Inconclusive,
                false => Outcome::Fail,
            };
            (outcome, format!("timestamps are system calls: {why}"))
        }
    };
    let limit = if limits.slow_clock_allowed { "any clock" } else { "a TSC to measure with" };
    let why = "a slow clock limits what the machine's programs and this measurement can see";
    verdict(limit.to_string(), outcome, reason, why)
}

fn steal(limits: &MachineLimits, machine: &MachineUse) -> Verdict {
    let limit = limits.steal_percent_max;
    let (outcome, reason) = match (machine.steal_percent(), machine.steal_s) {
        (Some(percent), Some(steal_s)) => (
            if percent > limit { Outcome::Fail } else { Outcome::Pass },
            format!(
                "the hypervisor gave {percent:.1} % of the CPU time to others, {steal_s:.2} s of \
                 {} CPUs in {:.0} s",
                machine.cpus, machine.window_s
            ),
        ),
        _ => (Outcome::Inconclusive, "the kernel does not say how much was stolen".to_string()),
    };
    let why = "while a virtual CPU does not run nothing on it answers, for milliseconds at a time";
    verdict(format!("at most {limit} % of the CPU time stolen"), outcome, reason, why)
}

fn other_work(limits: &MachineLimits, machine: &MachineUse) -> Verdict {
    let limit = limits.other_work_percent_max;
    let names: Vec<String> = machine
        .programs
        .iter()
        .take(3)
        .map(|program| format!("{} ({}) {:.1} s", program.command, program.pid, program.cpu_s))
        .collect();
    let programs = match names.is_empty() {
        true => String::new(),
        false => format!(": {}", names.join(", ")),
    };
    let (outcome, reason) = match machine.other_work_percent() {
        Some(percent) => (
            if percent > limit { Outcome::Inconclusive } else { Outcome::Pass },
            format!("programs outside the run used {percent:.0} % of a CPU{programs}"),
        ),
        None => (Outcome::Inconclusive, "what other programs used cannot be read here".to_string()),
    };
    let why = "what else runs takes CPU time and caches from both ends";
    verdict(format!("at most {limit} % of a CPU used by other programs"), outcome, reason, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nm_model::machine::ProgramUse;

    fn quiet() -> MachineUse {
        MachineUse {
            window_s: 100.0,
            cpus: 4,
            cpus_allowed: 4,
            steal_s: Some(1.0),
            other_work_s: Some(2.0),
            ..Default::default()
        }
    }

    fn outcome(limits: &MachineLimits, machine: &MachineUse) -> (Outcome, String) {
        let verdicts = judge_machine(limits, Some(machine));
        let broken = verdicts.iter().find(|verdict| verdict.outcome != Outcome::Pass);
        let all = Outcome::all(verdicts.iter().map(|verdict| verdict.outcome));
        (all, broken.map_or(String::new(), |verdict| verdict.reason.clone()))
    }

    #[test]
    fn a_quiet_machine_meets_the_default_limits() {
        let verdicts = judge_machine(&MachineLimits::default(), Some(&quiet()));
        assert!(verdicts.iter().all(|verdict| verdict.outcome == Outcome::Pass), "{verdicts:?}");
    }

    #[test]
    fn each_broken_limit_is_named_and_can_be_relaxed() {
        use Outcome::{Fail, Inconclusive, Pass};
        let strict = MachineLimits::default();
        let hog = ProgramUse { command: "hog".to_string(), pid: 7, cpu_s: 29.0 };
        for (machine, relaxed, expected, words) in [
            (
                MachineUse { steal_s: Some(108.0), ..quiet() },
                MachineLimits { steal_percent_max: 30.0, ..strict.clone() },
                Fail,
                "gave 27.0 % of the CPU time to others",
            ),
            (
                MachineUse { other_work_s: Some(30.0), programs: vec![hog], ..quiet() },
                MachineLimits { other_work_percent_max: 50.0, ..strict.clone() },
                Inconclusive,
                "used 30 % of a CPU: hog (7) 29.0 s",
            ),
            (
                MachineUse { quota: Some("50000 100000".into()), ..quiet() },
                MachineLimits { quota_allowed: true, ..strict.clone() },
                Fail,
                "limit of CPU time (`50000 100000`",
            ),
            (
                MachineUse { slow_clock: Some("not invariant".into()), ..quiet() },
                MachineLimits { slow_clock_allowed: true, ..strict.clone() },
                Fail,
                "not invariant",
            ),
            (
                MachineUse { cpus_allowed: 1, ..quiet() },
                MachineLimits { cpus_min: 1, ..strict.clone() },
                Fail,
                "may use 1 of 4 CPUs",
            ),
        ] {
            let (found, reason) = outcome(&strict, &machine);
            assert_eq!(found, expected, "{machine:?}");
            assert!(reason.contains(words), "{reason}");
            assert_eq!(outcome(&relaxed, &machine).0, Pass, "{machine:?}");
        }
    }

    #[test]
    fn a_quota_that_is_allowed_may_not_stop_threads_for_long() {
        let limits = MachineLimits { quota_allowed: true, ..Default::default() };
        let quota = Some("50000 100000".to_string());
        let machine = MachineUse { quota, throttled_s: Some(5.0), ..quiet() };
        let (found, reason) = outcome(&limits, &machine);
        assert_eq!(found, Outcome::Fail);
        assert!(reason.contains("for 5.00 s, 5.0 % of the run"), "{reason}");
    }

    #[test]
    fn what_is_not_known_is_no_pass() {
        let limits = MachineLimits::default();
        assert_eq!(judge_machine(&limits, None)[0].outcome, Outcome::Inconclusive);
        let slow_clock = Some("the clock source cannot be read".to_string());
        for unknown in [
            MachineUse { steal_s: None, other_work_s: None, ..quiet() },
            MachineUse { cpus: 0, cpus_allowed: 0, ..quiet() },
            MachineUse { slow_clock, is_clock_unknown: true, ..quiet() },
        ] {
            assert_eq!(outcome(&limits, &unknown).0, Outcome::Inconclusive, "{unknown:?}");
        }
    }
}
