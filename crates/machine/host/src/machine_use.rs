//! What the machine did during a run: stolen time, stops by a control group, other programs.

use std::collections::{BTreeMap, BTreeSet};

use nm_model::machine::{MachineUse, ProgramUse};
use nm_sys::clock::{Clock, CounterError, Moment};
use nm_sys::counters;
use nm_sys::hostfiles::HostFiles;

use crate::{cgroup, cpu};

/// Programs that are listed.
const PROGRAMS_MAX: usize = 5;

/// Watches this machine from [`MachineWatch::start`].
#[derive(Debug)]
pub struct MachineWatch {
    files: HostFiles,
    started: Moment,
    before: Sample,
}

impl MachineWatch {
    /// Begins to watch.
    pub fn start() -> MachineWatch {
        let files = HostFiles::default();
        MachineWatch { before: Sample::read(&files), started: Moment::now(), files }
    }

    /// What happened since the start. Processes that descend from this one belong to the run.
    pub fn so_far(&self) -> MachineUse {
        let facts = cpu::read(&self.files);
        let after = Sample::read(&self.files);
        let slow_clock = Clock::info().counter_error.as_ref();
        MachineUse {
            window_s: self.started.elapsed().as_secs_f64(),
            cpus: facts.online,
            cpus_allowed: facts.allowed.len() as u32,
            quota: facts.quota,
            slow_clock: slow_clock.map(ToString::to_string),
            is_clock_unknown: slow_clock == Some(&CounterError::UnknownKernelSource),
            ..self.before.until(&after, std::process::id())
        }
    }
}

/// Counters at one time. Times are in ticks unless their names have another unit.
#[derive(Debug, Default)]
struct Sample {
    /// User, nice and system time of all CPUs.
    busy: Option<u64>,
    steal: Option<u64>,
    throttled_us: Option<u64>,
    processes: BTreeMap<u32, Process>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Process {
    command: String,
    parent: u32,
    /// Start after boot, which tells apart two processes that had one id.
    started: u64,
    /// CPU time of the process.
    own: u64,
    /// CPU time of its children that have ended and were waited for.
    children: u64,
}

/// The kernel's first thread, the parent of all its others.
const KTHREADD: u32 = 2;

impl Sample {
    fn read(files: &HostFiles) -> Sample {
        let stat = files.text("/proc/stat").unwrap_or_default();
        let all_cpus: Vec<u64> = stat
            .lines()
            .find_map(|line| line.strip_prefix("cpu "))
            .map(|rest| rest.split_whitespace().map_while(|word| word.parse().ok()).collect())
            .unwrap_or_default();
        let busy = match all_cpus[..] {
            [user, nice, system, ..] => Some(user.saturating_add(nice).saturating_add(system)),
            _ => None,
        };
        let process = |name: String| {
            let pid: u32 = name.parse().ok()?;
            Some((pid, Process::parse(&files.text(&format!("/proc/{pid}/stat"))?)?))
        };
        Sample {
            busy,
            steal: all_cpus.get(7).copied(),
            throttled_us: cgroup::throttled_us(files),
            processes: files.names("/proc").into_iter().filter_map(process).collect(),
        }
    }

    /// What happened until `after`; `root` is the process whose descendants belong to the run.
    fn until(&self, after: &Sample, root: u32) -> MachineUse {
        let ticks_per_s = counters::ticks_per_s() as f64;
        let seconds = |ticks: u64| ticks as f64 / ticks_per_s;
        let since = |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before?));
        let own = after.descendants(root);
        let (mut own_ticks, mut programs) = (0, vec![]);
        for (&pid, process) in &after.processes {
            let before = self.processes.get(&pid).filter(|one| one.started == process.started);
            let spent = process.own.saturating_sub(before.map_or(0, |one| one.own));
            let of_children = process.children.saturating_sub(before.map_or(0, |b| b.children));
            if own.contains(&pid) {
                own_ticks += spent + of_children;
            } else if spent > 0 && pid != KTHREADD && process.parent != KTHREADD {
                let command = process.command.clone();
                programs.push(ProgramUse { command, pid, cpu_s: seconds(spent) });
            }
        }
        programs.sort_by(|a, b| b.cpu_s.total_cmp(&a.cpu_s));
        let seen_s: f64 = programs.iter().map(|program| program.cpu_s).sum();
        programs.truncate(PROGRAMS_MAX);
        // The rest of the machine's busy time is that of programs which ended before they were
        // seen. Each process's time is rounded down to a tick, so the rest is too large by some.
        let rest = since(after.busy, self.busy)
            .map(|busy| seconds(busy.saturating_sub(own_ticks + own.len() as u64)));
        MachineUse {
            steal_s: since(after.steal, self.steal).map(seconds),
            throttled_s: since(after.throttled_us, self.throttled_us).map(|us| us as f64 / 1e6),
            other_work_s: rest.map(|rest| rest.max(seen_s)),
            programs,
            ..MachineUse::default()
        }
    }

    fn descendants(&self, root: u32) -> BTreeSet<u32> {
        let is_own = |mut pid: u32| {
            // A chain of parents is shorter than the number of processes.
            for _ in 0..self.processes.len() {
                if pid == root {
                    return true;
                }
                let Some(process) = self.processes.get(&pid) else { return false };
                pid = process.parent;
            }
            false
        };
        self.processes.keys().copied().filter(|&pid| is_own(pid)).collect()
    }
}

impl Process {
    /// Reads `/proc/PID/stat`. The command stands in parentheses and may hold any character.
    fn parse(text: &str) -> Option<Process> {
        let (start, rest) = text.rsplit_once(')')?;
        let command = start.split_once('(')?.1.to_string();
        let fields: Vec<&str> = rest.split_whitespace().collect();
        // Numbers of fields as in proc(5), of which the first two are already taken.
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Process {
            command,
            parent: u32::try_from(field(4)?).ok()?,
            started: field(22)?,
            own: field(14)?.saturating_add(field(15)?),
            children: field(16)?.saturating_add(field(17)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(parent: u32, own: u64, children: u64) -> Process {
        let command = "x".to_string();
        Process { command, parent, started: 7, own, children }
    }

    #[test]
    fn the_line_of_a_process_is_read_whatever_its_name() {
        let line = "9 (a) b (c)) S 4 9 9 0 -1 4 1 0 0 0 11 22 33 44 20 0 1 0 777 1 1 1";
        let read = Process::parse(line).unwrap();
        let expected =
            Process { command: "a) b (c)".into(), parent: 4, started: 777, own: 33, children: 77 };
        assert_eq!(read, expected);
        for text in ["", "9 (a", "9 (a) S", "9 (a) S x"] {
            assert_eq!(Process::parse(text), None, "{text}");
        }
    }

    #[test]
    fn descendants_belong_to_the_run_and_others_are_other_work() {
        let sample = |busy, steal, processes: &[(u32, Process)]| Sample {
            busy: Some(busy),
            steal: Some(steal),
            throttled_us: Some(busy * 10),
            processes: processes.iter().cloned().collect(),
        };
        let before = sample(1_000, 10, &[(50, process(1, 100, 0)), (60, process(1, 500, 0))]);
        let after = sample(
            2_000,
            60,
            &[
                (3, process(KTHREADD, 90, 0)),
                (50, process(1, 200, 100)),
                (51, process(50, 300, 0)),
                (60, process(1, 700, 0)),
            ],
        );
        let found = before.until(&after, 50);
        let per_s = counters::ticks_per_s() as f64;
        assert_eq!(found.steal_s, Some(50.0 / per_s));
        assert_eq!(found.throttled_s, Some(0.01));
        // 1000 ticks were busy, 500 of them by the run, whose two processes may hide a tick each.
        assert_eq!(found.other_work_s, Some(498.0 / per_s));
        let programs: Vec<(u32, f64)> = found.programs.iter().map(|p| (p.pid, p.cpu_s)).collect();
        assert_eq!(programs, [(60, 200.0 / per_s)]);
    }

    #[test]
    fn a_busy_program_outside_the_run_is_named() {
        // It ends by itself if nothing ends it.
        let busy = ["-c", "ulimit -t 100; while :; do :; done"];
        let mut hog = std::process::Command::new("sh").args(busy).spawn().unwrap();
        let before = Sample::read(&HostFiles::default());
        let is_named = |found: &MachineUse| found.programs.iter().any(|one| one.pid == hog.id());
        // On a busy machine others come first until they end.
        let look = |_| {
            std::thread::sleep(std::time::Duration::from_millis(100));
            let after = Sample::read(&HostFiles::default());
            // As a run that does not descend from this process would see it.
            let found = before.until(&after, u32::MAX);
            is_named(&found).then_some((after, found))
        };
        let (after, found) = (0..900).find_map(look).expect("it is named in 90 s");
        hog.kill().unwrap();
        hog.wait().unwrap();
        let own = before.until(&after, std::process::id());
        assert!(!own.programs.iter().any(|one| one.pid == hog.id()), "{own:?}");
        assert!(found.other_work_s >= own.other_work_s && found.steal_s.is_some());
    }
}
