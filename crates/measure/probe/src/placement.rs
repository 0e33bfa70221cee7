//! Where a measuring thread ran, with its doubts: the kernel's counters of a thread
//! ([`nm_sys::counters`]) become a [`Placement`].

use std::time::Duration;

use nm_model::doubt::{Doubt, DoubtKind};
use nm_model::probe::Side;
use nm_model::result::Placement;
use nm_sys::counters::ThreadWatch;

/// Involuntary context switches a second above which a thread counts as preempted. On a quiet
/// machine the kernel's own threads run on the CPU of a pinned thread a few times a second.
const PREEMPTIONS_PER_S_MAX: f64 = 10.0;

/// Share of its CPU that other threads may use before the machine counts as busy.
const FOREIGN_BUSY_MAX: f64 = 0.05;

/// Watches a measuring thread from [`PlacementWatch::start`] to [`PlacementWatch::finish`], which
/// must be called on the same thread.
#[derive(Debug)]
pub struct PlacementWatch {
    side: Side,
    thread: String,
    pinned_cpu: Option<u32>,
    watch: ThreadWatch,
}

impl PlacementWatch {
    /// Begins to watch the current thread, which has been pinned to `pinned_cpu` if given.
    pub fn start(side: Side, thread: impl Into<String>, pinned_cpu: Option<u32>) -> PlacementWatch {
        let thread = thread.into();
        PlacementWatch { side, thread, pinned_cpu, watch: ThreadWatch::start(pinned_cpu) }
    }

    /// Where the thread ran since the start, and the doubts that follow.
    pub fn finish(self) -> (Placement, Vec<Doubt>) {
        let usage = self.watch.finish();
        let placement = Placement {
            side: self.side,
            thread: self.thread,
            pinned_cpu: self.pinned_cpu,
            first_cpu: Some(usage.first_cpu),
            last_cpu: Some(usage.last_cpu),
            migrations: usage.migrations,
            involuntary_switches: usage.involuntary_switches,
            voluntary_switches: usage.voluntary_switches,
            run_delay_ns: usage.run_delay_ns,
            user_ns: usage.user_ns,
            system_ns: usage.system_ns,
            minor_faults: usage.minor_faults,
            steal_ms: usage.steal_ms,
            foreign_busy: usage.foreign_busy,
        };
        let doubts = doubts(&placement, usage.elapsed);
        (placement, doubts)
    }
}

/// Doubts that follow from the placement of one thread over `elapsed`.
fn doubts(placement: &Placement, elapsed: Duration) -> Vec<Doubt> {
    let thread = format!("the {}'s {}", placement.side, placement.thread);
    let mut doubts = vec![];
    let mut doubt = |kind, detail| doubts.push(Doubt::new(kind, detail));
    if placement.pinned_cpu.is_none() {
        doubt(DoubtKind::NotPinned, format!("{thread} was free to move"));
    }
    let moved = placement.first_cpu != placement.last_cpu;
    if placement.migrations.unwrap_or(u64::from(moved)) > 0 {
        let moves = placement.migrations.unwrap_or(1);
        doubt(DoubtKind::Migrated, format!("{thread} moved between CPUs {moves} times"));
    }
    let switches = placement.involuntary_switches;
    if switches as f64 > (PREEMPTIONS_PER_S_MAX * elapsed.as_secs_f64()).max(3.0) {
        let mut detail = format!("{switches} involuntary switches of {thread}");
        if let Some(delay_ns) = placement.run_delay_ns {
            detail += &format!(", {:.1} ms ready but not running", delay_ns as f64 / 1e6);
        }
        doubt(DoubtKind::Preempted, detail);
    }
    if let Some(steal_ms) = placement.steal_ms.filter(|&steal_ms| steal_ms > 0) {
        let cpus = match placement.pinned_cpu {
            Some(cpu) => format!("CPU {cpu}"),
            None => "all CPUs together".to_string(),
        };
        doubt(DoubtKind::Steal, format!("{steal_ms} ms stolen from {cpus} of {thread}"));
    }
    if let (Some(share), Some(cpu)) = (placement.foreign_busy, placement.pinned_cpu)
        && share > FOREIGN_BUSY_MAX
    {
        let percent = share * 100.0;
        doubt(
            DoubtKind::BusyHost,
            format!("other threads used {percent:.0} % of CPU {cpu}, where {thread} ran"),
        );
    }
    doubts
}

/// Doubts that follow from the placement of the threads of two ends on one machine, `a` and `b`.
/// `siblings` are the groups of CPUs that share a core ([`nm_sys::cpu::siblings`]).
pub fn doubts_between(a: &Placement, b: &Placement, siblings: &[Vec<u32>]) -> Vec<Doubt> {
    let (Some(cpu_a), Some(cpu_b)) = (a.pinned_cpu, b.pinned_cpu) else { return vec![] };
    let threads = format!("the {}'s {} and the {}'s {}", a.side, a.thread, b.side, b.thread);
    if cpu_a == cpu_b {
        return vec![Doubt::new(DoubtKind::SharedCpu, format!("{threads} shared CPU {cpu_a}"))];
    }
    if siblings.iter().any(|group| group.contains(&cpu_a) && group.contains(&cpu_b)) {
        let detail = format!("{threads} ran on CPUs {cpu_a} and {cpu_b} of one core");
        return vec![Doubt::new(DoubtKind::SmtSiblings, detail)];
    }
    vec![]
}

#[cfg(test)]
mod tests {
    use super::*;
    use nm_sys::cpu;

    fn placement(side: Side, pinned_cpu: Option<u32>) -> Placement {
        Placement {
            pinned_cpu,
            first_cpu: Some(1),
            last_cpu: Some(1),
            migrations: Some(0),
            ..PlacementWatch::start(side, "pinger", None).finish().0
        }
    }

    fn kinds(doubts: &[Doubt]) -> Vec<DoubtKind> {
        doubts.iter().map(|doubt| doubt.kind).collect()
    }

    #[test]
    fn pinned_thread_is_placed_and_not_called_free() {
        std::thread::spawn(|| {
            let cpu = *cpu::allowed().last().unwrap();
            cpu::pin_current_thread(cpu).unwrap();
            let watch = PlacementWatch::start(Side::Client, "pinger", Some(cpu));
            let (placement, doubts) = watch.finish();
            assert_eq!((placement.first_cpu, placement.last_cpu), (Some(cpu), Some(cpu)));
            assert!(!kinds(&doubts).contains(&DoubtKind::NotPinned), "{doubts:?}");
        })
        .join()
        .unwrap();
        let (_, doubts) = PlacementWatch::start(Side::Client, "pinger", None).finish();
        assert!(kinds(&doubts).contains(&DoubtKind::NotPinned), "{doubts:?}");
    }

    #[test]
    fn each_disturbance_is_one_doubt() {
        let quiet = Placement {
            involuntary_switches: 3,
            steal_ms: Some(0),
            foreign_busy: Some(0.05),
            ..placement(Side::Server, Some(1))
        };
        assert_eq!(doubts(&quiet, Duration::from_millis(100)), []);
        let disturbed = Placement {
            last_cpu: Some(2),
            migrations: None,
            involuntary_switches: 11,
            steal_ms: Some(10),
            foreign_busy: Some(0.06),
            ..quiet
        };
        assert_eq!(
            kinds(&doubts(&disturbed, Duration::from_secs(1))),
            [DoubtKind::Migrated, DoubtKind::Preempted, DoubtKind::Steal, DoubtKind::BusyHost]
        );
    }

    #[test]
    fn two_ends_on_one_cpu_or_core_are_doubted() {
        let kind = |a, b| {
            let (a, b) = (placement(Side::Client, a), placement(Side::Server, b));
            doubts_between(&a, &b, &[vec![0, 1]]).first().map(|doubt| doubt.kind)
        };
        assert_eq!(kind(Some(3), Some(3)), Some(DoubtKind::SharedCpu));
        assert_eq!(kind(Some(0), Some(1)), Some(DoubtKind::SmtSiblings));
        assert_eq!(kind(Some(1), Some(2)), None);
        assert_eq!(kind(None, Some(2)), None);
    }
}
