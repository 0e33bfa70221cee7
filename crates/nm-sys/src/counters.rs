//! What happened to a thread while it measured: switches, faults, moves, waiting, stolen time.
//!
//! [`Watch`] reads the kernel's counters before and after and turns the differences into a
//! [`Placement`] and its doubts. Reading them costs some 100 µs and allocates, so it is done
//! outside the measuring loop.

use std::time::Duration;

use nm_model::doubt::{Doubt, DoubtKind};
use nm_model::probe::Side;
use nm_model::result::Placement;

use crate::clock::Moment;
use crate::cpu;

/// Involuntary switches a second above which a thread counts as preempted. A pinned thread on a
/// quiet machine gives way to the kernel's own threads a few times a second.
const PREEMPTIONS_PER_S_MAX: f64 = 10.0;

/// Share of its CPU that others may take before the machine counts as busy.
const FOREIGN_BUSY_MAX: f64 = 0.05;

/// Shortest time over which [`Placement::foreign_busy`] is told: the kernel counts in steps of 10
/// ms.
const FOREIGN_BUSY_WINDOW_MIN: Duration = Duration::from_millis(200);

/// `getrusage(RUSAGE_THREAD)`—What the kernel counted of the current thread so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ThreadTimes {
    /// CPU time in user mode, ns.
    pub user_ns: u64,
    /// CPU time in the kernel, ns.
    pub system_ns: u64,
    /// Page faults that needed no reading.
    pub minor_faults: u64,
    /// Times that the thread gave the CPU up.
    pub voluntary_switches: u64,
    /// Times that the kernel took the CPU away.
    pub involuntary_switches: u64,
}

impl ThreadTimes {
    /// The counters now.
    pub fn now() -> ThreadTimes {
        let usage = usage(libc::RUSAGE_THREAD);
        ThreadTimes {
            user_ns: timeval_ns(usage.ru_utime),
            system_ns: timeval_ns(usage.ru_stime),
            minor_faults: usage.ru_minflt as u64,
            voluntary_switches: usage.ru_nvcsw as u64,
            involuntary_switches: usage.ru_nivcsw as u64,
        }
    }
}

/// `getrusage(RUSAGE_SELF)`—CPU time that all threads of this process used so far, ns.
pub fn process_cpu_ns() -> u64 {
    let usage = usage(libc::RUSAGE_SELF);
    timeval_ns(usage.ru_utime) + timeval_ns(usage.ru_stime)
}

/// `getrusage(RUSAGE_THREAD)`—CPU time that this thread used so far, ns.
pub fn thread_cpu_ns() -> u64 {
    let usage = usage(libc::RUSAGE_THREAD);
    timeval_ns(usage.ru_utime) + timeval_ns(usage.ru_stime)
}

fn usage(who: libc::c_int) -> libc::rusage {
    // SAFETY: an all-zero rusage is a valid value of that plain structure.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a valid structure to fill; both values of `who` exist since Linux 2.6.26.
    unsafe { libc::getrusage(who, &mut usage) };
    usage
}

fn timeval_ns(time: libc::timeval) -> u64 {
    (time.tv_sec as u64) * 1_000_000_000 + (time.tv_usec as u64) * 1_000
}

/// Watches the current thread from [`Watch::start`] to [`Watch::finish`], which must be called on
/// the same thread.
#[derive(Debug)]
pub struct Watch {
    side: Side,
    thread: String,
    pinned_cpu: Option<u32>,
    first_cpu: u32,
    started: Moment,
    times: ThreadTimes,
    run_delay_ns: Option<u64>,
    migrations: Option<u64>,
    cpu_ticks: Option<CpuTicks>,
}

impl Watch {
    /// Begins to watch the current thread, which has been pinned to `pinned_cpu` if given.
    pub fn start(side: Side, thread: impl Into<String>, pinned_cpu: Option<u32>) -> Watch {
        Watch {
            side,
            thread: thread.into(),
            pinned_cpu,
            first_cpu: cpu::current(),
            started: Moment::now(),
            run_delay_ns: run_delay_ns(),
            migrations: migrations(),
            cpu_ticks: CpuTicks::now(pinned_cpu),
            times: ThreadTimes::now(),
        }
    }

    /// The differences since the start, and what they give reason to doubt.
    pub fn finish(self) -> (Placement, Vec<Doubt>) {
        let now = ThreadTimes::now();
        let ticks = CpuTicks::now(self.pinned_cpu);
        let elapsed = self.started.elapsed();
        let user_ns = now.user_ns.saturating_sub(self.times.user_ns);
        let system_ns = now.system_ns.saturating_sub(self.times.system_ns);
        let spent = ticks.zip(self.cpu_ticks).map(|(now, before)| now.since(before));
        let difference = |now: Option<u64>, before: Option<u64>| {
            now.zip(before).map(|(now, before)| now.saturating_sub(before))
        };
        let placement = Placement {
            side: self.side,
            thread: self.thread,
            pinned_cpu: self.pinned_cpu,
            first_cpu: Some(self.first_cpu),
            last_cpu: Some(cpu::current()),
            migrations: difference(migrations(), self.migrations),
            involuntary_switches: now.involuntary_switches - self.times.involuntary_switches,
            voluntary_switches: now.voluntary_switches - self.times.voluntary_switches,
            run_delay_ns: difference(run_delay_ns(), self.run_delay_ns),
            user_ns,
            system_ns,
            minor_faults: now.minor_faults - self.times.minor_faults,
            steal_ms: spent.map(|spent| spent.steal_ms()),
            foreign_busy: spent
                .filter(|_| self.pinned_cpu.is_some() && elapsed >= FOREIGN_BUSY_WINDOW_MIN)
                .map(|spent| spent.foreign_share(user_ns + system_ns, elapsed)),
        };
        let doubts = doubts(&placement, elapsed);
        (placement, doubts)
    }
}

/// What the placement of one thread gives reason to doubt.
pub fn doubts(placement: &Placement, elapsed: Duration) -> Vec<Doubt> {
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
        let place = match placement.pinned_cpu {
            Some(cpu) => format!("CPU {cpu}"),
            None => "all CPUs together".to_string(),
        };
        doubt(DoubtKind::Steal, format!("{steal_ms} ms stolen from {place} of {thread}"));
    }
    if let (Some(share), Some(cpu)) = (placement.foreign_busy, placement.pinned_cpu)
        && share > FOREIGN_BUSY_MAX
    {
        let percent = share * 100.0;
        doubt(
            DoubtKind::BusyHost,
            format!("others used {percent:.0} % of CPU {cpu}, where {thread} ran"),
        );
    }
    doubts
}

/// What it means that these threads of two ends ran where they did, both ends on one machine.
/// `siblings` are the groups of CPUs that share a core ([`cpu::siblings`]).
pub fn doubts_between(a: &Placement, b: &Placement, siblings: &[Vec<u32>]) -> Vec<Doubt> {
    let (Some(cpu_a), Some(cpu_b)) = (a.pinned_cpu, b.pinned_cpu) else { return vec![] };
    let who = format!("the {}'s {} and the {}'s {}", a.side, a.thread, b.side, b.thread);
    if cpu_a == cpu_b {
        return vec![Doubt::new(DoubtKind::SharedCpu, format!("{who} shared CPU {cpu_a}"))];
    }
    if siblings.iter().any(|group| group.contains(&cpu_a) && group.contains(&cpu_b)) {
        let detail = format!("{who} ran on CPUs {cpu_a} and {cpu_b} of one core");
        return vec![Doubt::new(DoubtKind::SmtSiblings, detail)];
    }
    vec![]
}

/// Time that the current thread was ready but did not run: second field of `schedstat`.
fn run_delay_ns() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// `se.nr_migrations` of `/proc/thread-self/sched`, which only kernels with scheduler debugging
/// have.
fn migrations() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/sched").ok()?;
    let line = text.lines().find(|line| line.starts_with("se.nr_migrations"))?;
    line.rsplit(':').next()?.trim().parse().ok()
}

/// A line of `/proc/stat`, in the kernel's ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CpuTicks {
    /// User, nice and system time; guests are part of user time.
    busy: u64,
    /// Stolen time.
    steal: u64,
}

impl CpuTicks {
    /// The line of `cpu`, or that of all CPUs.
    fn now(cpu: Option<u32>) -> Option<CpuTicks> {
        CpuTicks::parse(&std::fs::read_to_string("/proc/stat").ok()?, cpu)
    }

    fn parse(text: &str, cpu: Option<u32>) -> Option<CpuTicks> {
        let name = cpu.map_or("cpu".to_string(), |cpu| format!("cpu{cpu}"));
        let mut fields = text.lines().find_map(|line| {
            let mut fields = line.split_ascii_whitespace();
            (fields.next()? == name).then_some(fields)
        })?;
        let mut next = || fields.next()?.parse::<u64>().ok();
        let (user, nice, system, _idle) = (next()?, next()?, next()?, next()?);
        let (_iowait, _irq, _softirq) = (next()?, next()?, next()?);
        let busy = user.saturating_add(nice).saturating_add(system);
        Some(CpuTicks { busy, steal: next()? })
    }

    fn since(self, before: CpuTicks) -> CpuTicks {
        CpuTicks {
            busy: self.busy.saturating_sub(before.busy),
            steal: self.steal.saturating_sub(before.steal),
        }
    }

    fn steal_ms(self) -> u64 {
        self.steal * 1_000 / ticks_per_s()
    }

    /// Share of `elapsed` in which others ran. Interrupts are left out: on this CPU most of them
    /// carry the thread's own packets.
    fn foreign_share(self, own_ns: u64, elapsed: Duration) -> f64 {
        let busy_s = self.busy as f64 / ticks_per_s() as f64;
        // Each of the counters is cut to whole ticks, so two ticks may be nobody's.
        let slack_s = 2.0 / ticks_per_s() as f64;
        (busy_s - own_ns as f64 / 1e9 - slack_s).max(0.0) / elapsed.as_secs_f64()
    }
}

fn ticks_per_s() -> u64 {
    rustix::param::clock_ticks_per_second().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn work(limit: Duration) -> u64 {
        let started = Moment::now();
        let mut sum = 0u64;
        while started.elapsed() < limit {
            sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(1));
        }
        sum
    }

    #[test]
    fn a_pinned_busy_thread_is_accounted_for() {
        std::thread::spawn(|| {
            let cpu = *cpu::allowed().last().unwrap();
            cpu::pin_current_thread(cpu).unwrap();
            let watch = Watch::start(Side::Client, "pinger", Some(cpu));
            work(Duration::from_millis(50));
            std::thread::sleep(Duration::from_millis(1));
            let (placement, doubts) = watch.finish();
            assert!(placement.user_ns + placement.system_ns > 0);
            assert_eq!((placement.first_cpu, placement.last_cpu), (Some(cpu), Some(cpu)));
            assert_eq!(placement.migrations.unwrap_or(0), 0);
            assert!(placement.voluntary_switches >= 1);
            assert!(!doubts.iter().any(|d| d.kind == DoubtKind::NotPinned), "{doubts:?}");
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_hog_on_the_same_cpu_shows() {
        let cpu = *cpu::allowed().last().unwrap();
        let pinned = move || cpu::pin_current_thread(cpu).unwrap();
        let hog = std::thread::spawn(move || {
            pinned();
            work(Duration::from_millis(900));
        });
        std::thread::spawn(move || {
            pinned();
            let watch = Watch::start(Side::Server, "ponger", Some(cpu));
            work(Duration::from_millis(600));
            let (placement, doubts) = watch.finish();
            let kinds: Vec<DoubtKind> = doubts.iter().map(|d| d.kind).collect();
            assert!(placement.foreign_busy.unwrap() > 0.05, "{placement:?}");
            assert!(kinds.contains(&DoubtKind::BusyHost), "{doubts:?}");
            assert!(kinds.contains(&DoubtKind::Preempted), "{doubts:?}");
        })
        .join()
        .unwrap();
        hog.join().unwrap();
    }

    #[test]
    fn two_ends_on_one_cpu_or_core_are_doubted() {
        let at = |side, cpu| {
            let (mut placement, _) = Watch::start(side, "thread", None).finish();
            placement.pinned_cpu = cpu;
            placement
        };
        let kind = |a, b| {
            let (a, b) = (at(Side::Client, a), at(Side::Server, b));
            doubts_between(&a, &b, &[vec![0, 1]]).first().map(|doubt| doubt.kind)
        };
        assert_eq!(kind(Some(3), Some(3)), Some(DoubtKind::SharedCpu));
        assert_eq!(kind(Some(0), Some(1)), Some(DoubtKind::SmtSiblings));
        assert_eq!(kind(Some(1), Some(2)), None);
        assert_eq!(kind(None, Some(2)), None);
    }

    #[test]
    fn the_kernels_lines_are_read() {
        let text = "cpu  10 1 5 100 3 2 1 7 0 0\ncpu0 4 0 2 50 1 1 0 3 0 0\nintr 5\n";
        assert_eq!(CpuTicks::parse(text, None), Some(CpuTicks { busy: 16, steal: 7 }));
        assert_eq!(CpuTicks::parse(text, Some(0)), Some(CpuTicks { busy: 6, steal: 3 }));
        assert_eq!(CpuTicks::parse(text, Some(9)), None);
        assert!(process_cpu_ns() > 0 && CpuTicks::now(None).is_some());
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "(cpu|cpu0)?[ 0-9\\n]{0,60}") {
            let _ = CpuTicks::parse(&text, Some(0));
        }
    }
}
