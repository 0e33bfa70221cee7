//! What the kernel counts of a thread while it measures: context switches, page faults, moves
//! between CPUs, waiting, stolen time.
//!
//! [`ThreadWatch`] reads the counters before and after. Reading them costs some 100 µs and
//! allocates, so it is done outside the measuring loop.

use std::time::Duration;

use crate::clock::Moment;
use crate::cpu;

/// Shortest time over which [`ThreadUsage::foreign_busy`] is given: the kernel counts in steps of
/// 10 ms.
const FOREIGN_BUSY_WINDOW_MIN: Duration = Duration::from_millis(200);

/// `getrusage(RUSAGE_THREAD)`—What the kernel counted of the current thread so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ThreadCounters {
    /// CPU time in user mode, ns.
    pub user_ns: u64,
    /// CPU time in the kernel, ns.
    pub system_ns: u64,
    /// Page faults that needed no reading.
    pub minor_faults: u64,
    /// Context switches because the thread blocked.
    pub voluntary_switches: u64,
    /// Context switches because the kernel ran another thread.
    pub involuntary_switches: u64,
}

impl ThreadCounters {
    /// The counters now.
    pub fn now() -> ThreadCounters {
        let usage = usage(libc::RUSAGE_THREAD);
        ThreadCounters {
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

/// `getrusage(RUSAGE_CHILDREN)`—CPU time that the child processes used which have ended and were
/// waited for, with their children of that kind, ns.
pub fn children_cpu_ns() -> u64 {
    let usage = usage(libc::RUSAGE_CHILDREN);
    timeval_ns(usage.ru_utime) + timeval_ns(usage.ru_stime)
}

/// `CLOCK_THREAD_CPUTIME_ID`: CPU time that this thread used so far, ns, exact at the moment of
/// reading.
pub fn thread_cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid structure to fill; the clock exists since Linux 2.6.12.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    (time.tv_sec as u64) * 1_000_000_000 + time.tv_nsec as u64
}

/// How the scheduler divided the time of the current thread, so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScheduledTime {
    /// Time that it ran, ns, exact at the moment of reading. Interrupts and stolen time are part of
    /// it, unless the kernel accounts for them.
    pub ran_ns: u64,
    /// Time that it was ready but did not run, ns; absent on kernels without `schedstat`.
    pub run_delay_ns: Option<u64>,
}

impl ScheduledTime {
    /// The times now.
    pub fn now() -> ScheduledTime {
        let run_delay_ns = run_delay_ns(OWN_SCHEDSTAT);
        ScheduledTime { ran_ns: thread_cpu_ns(), run_delay_ns }
    }

    /// The differences to an earlier reading.
    #[must_use]
    pub fn since(self, before: ScheduledTime) -> ScheduledTime {
        let delays = self.run_delay_ns.zip(before.run_delay_ns);
        ScheduledTime {
            ran_ns: self.ran_ns.saturating_sub(before.ran_ns),
            run_delay_ns: delays.map(|(now, before)| now.saturating_sub(before)),
        }
    }
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

/// What happened to a thread between [`ThreadWatch::start`] and [`ThreadWatch::finish`].
#[derive(Debug, Clone, PartialEq)]
pub struct ThreadUsage {
    /// Time between the two calls.
    pub elapsed: Duration,
    /// CPU at the start.
    pub first_cpu: u32,
    /// CPU at the end.
    pub last_cpu: u32,
    /// Moves between CPUs; absent on kernels without scheduler debugging.
    pub migrations: Option<u64>,
    /// Context switches because the kernel ran another thread.
    pub involuntary_switches: u64,
    /// Context switches because the thread blocked.
    pub voluntary_switches: u64,
    /// Time that the thread was ready but did not run, ns.
    pub run_delay_ns: Option<u64>,
    /// CPU time in user mode, ns.
    pub user_ns: u64,
    /// CPU time in the kernel, ns.
    pub system_ns: u64,
    /// Page faults that needed no reading.
    pub minor_faults: u64,
    /// Stolen time of the pinned CPU, or of all CPUs, ms.
    pub steal_ms: Option<u64>,
    /// Share of the elapsed time in which other threads ran on the pinned CPU; absent without
    /// pinning, and when too little time elapsed.
    pub foreign_busy: Option<f64>,
}

/// Watches the current thread from [`ThreadWatch::start`] to [`ThreadWatch::finish`], which must be
/// called on the same thread.
#[derive(Debug)]
pub struct ThreadWatch {
    pinned_cpu: Option<u32>,
    first_cpu: u32,
    started: Moment,
    counters: ThreadCounters,
    run_delay_ns: Option<u64>,
    migrations: Option<u64>,
    cpu_ticks: Option<CpuTicks>,
}

impl ThreadWatch {
    /// Begins to watch the current thread, which has been pinned to `pinned_cpu` if given.
    pub fn start(pinned_cpu: Option<u32>) -> ThreadWatch {
        ThreadWatch {
            pinned_cpu,
            first_cpu: cpu::current(),
            started: Moment::now(),
            run_delay_ns: run_delay_ns(OWN_SCHEDSTAT),
            migrations: migrations(),
            cpu_ticks: CpuTicks::now(pinned_cpu),
            counters: ThreadCounters::now(),
        }
    }

    /// The differences since the start.
    pub fn finish(self) -> ThreadUsage {
        let now = ThreadCounters::now();
        let ticks = CpuTicks::now(self.pinned_cpu);
        let elapsed = self.started.elapsed();
        let user_ns = now.user_ns.saturating_sub(self.counters.user_ns);
        let system_ns = now.system_ns.saturating_sub(self.counters.system_ns);
        let spent = ticks.zip(self.cpu_ticks).map(|(now, before)| now.since(before));
        let difference = |now: Option<u64>, before: Option<u64>| {
            now.zip(before).map(|(now, before)| now.saturating_sub(before))
        };
        ThreadUsage {
            elapsed,
            first_cpu: self.first_cpu,
            last_cpu: cpu::current(),
            migrations: difference(migrations(), self.migrations),
            involuntary_switches: now.involuntary_switches - self.counters.involuntary_switches,
            voluntary_switches: now.voluntary_switches - self.counters.voluntary_switches,
            run_delay_ns: difference(run_delay_ns(OWN_SCHEDSTAT), self.run_delay_ns),
            user_ns,
            system_ns,
            minor_faults: now.minor_faults - self.counters.minor_faults,
            steal_ms: spent.map(|spent| spent.steal_ms()),
            foreign_busy: spent
                .filter(|_| self.pinned_cpu.is_some() && elapsed >= FOREIGN_BUSY_WINDOW_MIN)
                .map(|spent| spent.foreign_share(user_ns + system_ns, elapsed)),
        }
    }
}

/// The `schedstat` of the current thread.
const OWN_SCHEDSTAT: &str = "/proc/thread-self/schedstat";

/// Time that a thread was ready but did not run: second field of its `schedstat`.
pub(crate) fn run_delay_ns(path: &str) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
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

    /// Share of `elapsed` in which other threads ran. Interrupts do not count: on this CPU most of
    /// them handle the thread's own packets.
    fn foreign_share(self, own_ns: u64, elapsed: Duration) -> f64 {
        let busy_s = self.busy as f64 / ticks_per_s() as f64;
        // Each counter is rounded down to a tick, so a difference may be off by two of them.
        let slack_s = 2.0 / ticks_per_s() as f64;
        (busy_s - own_ns as f64 / 1e9 - slack_s).max(0.0) / elapsed.as_secs_f64()
    }
}

/// Ticks a second, the unit of times in `/proc/stat` and `/proc/PID/stat`.
pub fn ticks_per_s() -> u64 {
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
    fn pinned_busy_thread_is_counted() {
        std::thread::spawn(|| {
            let cpu = *cpu::allowed().last().unwrap();
            cpu::pin_current_thread(cpu).unwrap();
            let watch = ThreadWatch::start(Some(cpu));
            work(Duration::from_millis(50));
            std::thread::sleep(Duration::from_millis(1));
            let usage = watch.finish();
            assert!(usage.user_ns + usage.system_ns > 0);
            assert_eq!((usage.first_cpu, usage.last_cpu), (cpu, cpu));
            assert_eq!(usage.migrations.unwrap_or(0), 0);
            assert!(usage.voluntary_switches >= 1);
            assert!(usage.elapsed >= Duration::from_millis(50));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn busy_thread_on_the_same_cpu_is_seen() {
        let cpu = *cpu::allowed().last().unwrap();
        let pinned = move || cpu::pin_current_thread(cpu).unwrap();
        let other = std::thread::spawn(move || {
            pinned();
            work(Duration::from_millis(900));
        });
        std::thread::spawn(move || {
            pinned();
            let watch = ThreadWatch::start(Some(cpu));
            work(Duration::from_millis(600));
            let usage = watch.finish();
            assert!(usage.foreign_busy.unwrap() > 0.05, "{usage:?}");
            // For each second that it ran: with many others, it runs seldom.
            let ran_s = (usage.user_ns + usage.system_ns) as f64 / 1e9;
            assert!(usage.involuntary_switches as f64 > 10.0 * ran_s, "{usage:?}");
        })
        .join()
        .unwrap();
        other.join().unwrap();
    }

    #[test]
    fn a_thread_ran_or_waited_while_it_did_not_sleep() {
        std::thread::spawn(|| {
            let (before, begun) = (ScheduledTime::now(), Moment::now());
            work(Duration::from_millis(50));
            let elapsed_ns = begun.elapsed().as_nanos() as u64;
            let time = ScheduledTime::now().since(before);
            assert!(time.ran_ns > 0, "{time:?}");
            if let Some(delay_ns) = time.run_delay_ns {
                // Between the readings of both clocks the thread may be stopped, but never twice
                // as long as all of the work.
                assert!(time.ran_ns + delay_ns < 3 * elapsed_ns, "{time:?} of {elapsed_ns} ns");
            }
        })
        .join()
        .unwrap();
    }

    #[test]
    fn lines_of_proc_stat_are_parsed() {
        let text = "cpu  10 1 5 100 3 2 1 7 0 0\ncpu0 4 0 2 50 1 1 0 3 0 0\nintr 5\n";
        assert_eq!(CpuTicks::parse(text, None), Some(CpuTicks { busy: 16, steal: 7 }));
        assert_eq!(CpuTicks::parse(text, Some(0)), Some(CpuTicks { busy: 6, steal: 3 }));
        assert_eq!(CpuTicks::parse(text, Some(9)), None);
        assert!(process_cpu_ns() > 0 && CpuTicks::now(None).is_some());
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_without_a_panic(text in "(cpu|cpu0)?[ 0-9\\n]{0,60}") {
            let _ = CpuTicks::parse(&text, Some(0));
        }
    }
}
