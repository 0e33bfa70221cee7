//! The culprits of each CPU, from the trace or from counters.

use std::collections::BTreeMap;

use nm_model::jitter::{Culprit, CulpritKind, Naming};
use nm_sys::clock::Clock;
use nm_sys::cpu_counters::CpuCounters;

use super::blame::{GapTime, blame};
use super::contexts::{Context, Contexts};
use super::counted::{self, Evidence};
use super::names::Functions;
use super::outside;
use super::trace::Traced;
use crate::gap_lengths::GapLengths;
use crate::jitter_threads::{AllWatched, Watched};

/// Culprits that a CPU keeps, and one of many: the largest.
pub const CULPRITS_MAX: usize = 16;
pub const CULPRITS_MAX_OF_MANY: usize = 4;

/// CPUs from which on they are many.
const MANY_CPUS: usize = 64;

/// Longest name, bytes.
pub const NAME_BYTES_MAX: usize = 48;

/// How the culprits of `all` are found.
pub fn naming(all: &AllWatched) -> Naming {
    if all.traced.is_ok() { Naming::Traced } else { Naming::Counted }
}

/// The culprits of each CPU, in order. `interruptible_ns` is how much of the time of a CPU's gaps
/// interrupts can explain.
pub fn culprits(
    all: &AllWatched,
    clock: Clock,
    interruptible_ns: impl Fn(&Watched, &CpuCounters) -> u64,
) -> Vec<Vec<Culprit>> {
    let cut = |found| largest(found, all.threads.len());
    match &all.traced {
        Ok(traced) => {
            let kinds = traced.contexts.iter().flat_map(Contexts::kinds);
            let functions = Functions::read(kinds);
            let of = |(one, contexts)| of_trace(all, one, (traced, contexts), &functions);
            all.threads.iter().zip(&traced.contexts).map(of).map(cut).collect()
        }
        Err(_) => {
            let of = |(one, counters): (&Watched, _)| {
                let ns = interruptible_ns(one, counters);
                counted::culprits(&evidence(all, one, counters, clock, ns))
            };
            all.threads.iter().zip(&all.counters).map(of).map(cut).collect()
        }
    }
}

/// The largest, with names that are not too long.
fn largest(mut found: Vec<Culprit>, n_cpus: usize) -> Vec<Culprit> {
    for one in &mut found {
        one.name.truncate(one.name.floor_char_boundary(NAME_BYTES_MAX));
    }
    found.sort_by_key(|one| std::cmp::Reverse((one.lost_ns, one.gaps)));
    found.truncate(if n_cpus < MANY_CPUS { CULPRITS_MAX } else { CULPRITS_MAX_OF_MANY });
    found
}

fn of_trace(
    all: &AllWatched,
    one: &Watched,
    (traced, contexts): (&Traced, &Contexts),
    functions: &Functions,
) -> Vec<Culprit> {
    let time = |ticks: u64| traced.ns(one.begin + ticks);
    let gap = |gap: &crate::gap_loop::Gap| GapTime {
        begin: time(gap.start),
        end: time(gap.start + gap.length),
        may_be_preempted: gap.preempted || one.blind.is_some(),
    };
    let gaps: Vec<GapTime> = one.record.gaps().iter().map(gap).collect();
    let kinds = contexts.kinds();
    let own = outside::watcher(&gaps, contexts.segments(), kinds);
    // Contexts of one name are one culprit.
    let mut names: BTreeMap<(CulpritKind, String), usize> = BTreeMap::new();
    let mut number = vec![];
    for context in kinds {
        let next = names.len();
        number.push(*names.entry(functions.name(context)).or_insert(next));
    }
    let is_own = |context: usize| Some(context) == own || is_idle(&kinds[context]);
    // The kernel does not record each switch away from a thread: after one that is missing, the
    // thread seems to run on. So what the measuring thread saw has the last word.
    let can_have = |gap: &GapTime, context: usize| {
        !is_own(context) && (gap.may_be_preempted || !is_thread(&kinds[context]))
    };
    let name = |gap: &GapTime, context: usize| can_have(gap, context).then(|| number[context]);
    let taken = blame(&gaps, contexts.segments(), name);
    let found = names.into_iter().filter_map(|((kind, name), at)| {
        let taken = taken.get(&at)?;
        let of = |(context, _): (&Context, _)| faults(all, context);
        let faults: u64 = kinds.iter().zip(&number).filter(|(_, own)| **own == at).map(of).sum();
        Some(Culprit {
            kind,
            name,
            gaps: taken.gaps,
            lost_ns: taken.lost_ns,
            longest_ns: (taken.gaps > 0).then_some(taken.longest_ns),
            page_faults: (faults > 0).then_some(faults),
        })
    });
    found.collect()
}

fn is_thread(context: &Context) -> bool {
    matches!(context, Context::Thread { .. } | Context::Work { .. })
}

/// The idle thread runs only while the watcher sleeps.
fn is_idle(context: &Context) -> bool {
    matches!(context, Context::Thread { tid: 0, .. })
}

/// Page faults of a thread meanwhile.
fn faults(all: &AllWatched, context: &Context) -> u64 {
    let Context::Thread { tid, name } = context else { return 0 };
    let Some((before, after)) = &all.table else { return 0 };
    // In a namespace of process numbers another thread has this number.
    let name = name.split(|byte| *byte == 0).next().unwrap_or(&[]);
    let row = after.get(tid).filter(|row| row.name.as_bytes().starts_with(name));
    row.map_or(0, |row| {
        let before = before.get(tid).map_or(0, |row| row.minor_faults);
        row.minor_faults.saturating_sub(before)
    })
}

fn evidence(
    all: &AllWatched,
    one: &Watched,
    counters: &CpuCounters,
    clock: Clock,
    interruptible_ns: u64,
) -> Evidence {
    let gaps = one.record.gaps().iter();
    let preempted_ns = clock.ns(one.record.preempted());
    let lost_ns = clock.ns(one.record.lost());
    let rows = counters.interrupts.iter().flatten();
    let preempted_gaps = gaps.clone().filter(|gap| gap.preempted).count() as u64;
    let all_gaps = GapLengths::new(gaps.map(|gap| gap.length), &[one.record.overflow()]).count();
    Evidence {
        preempted_gaps,
        preempted_ns,
        other_gaps: all_gaps.saturating_sub(preempted_gaps),
        interruptible_ns: interruptible_ns.min(lost_ns.saturating_sub(preempted_ns)),
        threads: threads_on(all, one),
        interrupts: rows.map(|(name, count)| (name.clone(), *count)).collect(),
    }
}

/// The other threads that ran on the CPU of `one` before or at the end, and for how long.
fn threads_on(all: &AllWatched, one: &Watched) -> Vec<(String, u64)> {
    let Some((before, after)) = &all.table else { return vec![] };
    let mut ran: BTreeMap<String, u64> = BTreeMap::new();
    for (tid, row) in after {
        let was = before.get(tid);
        let is_here = row.cpu == one.cpu || was.is_some_and(|was| was.cpu == one.cpu);
        if !is_here || all.threads.iter().any(|watched| watched.tid == *tid) {
            continue;
        }
        let was_ns = was.and_then(|was| was.ran_ns).unwrap_or(0);
        let ns = ran.entry(row.name.clone()).or_default();
        *ns += row.ran_ns.unwrap_or(0).saturating_sub(was_ns);
    }
    ran.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_culprits_are_kept() {
        let of = |lost_ns| Culprit { lost_ns, name: "é".repeat(40), ..Culprit::default() };
        let found = || (1..=30).map(of).collect::<Vec<_>>();
        let few = largest(found(), 1);
        assert_eq!((few.len(), few[0].lost_ns, few[0].name.len()), (CULPRITS_MAX, 30, 48));
        assert_eq!(largest(found(), MANY_CPUS).len(), CULPRITS_MAX_OF_MANY);
    }
}
