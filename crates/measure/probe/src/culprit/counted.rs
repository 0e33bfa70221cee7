//! What took the time as far as counters tell: an estimate for kernels and users that cannot
//! trace. Time of other threads is divided by how long each ran, time of interrupts by how many
//! there were of each.

use nm_model::jitter::{Culprit, CulpritKind};

/// What the kernel counted of one CPU while its gaps were seen.
#[derive(Debug, Clone, Default)]
pub struct Evidence {
    /// Gaps in which the kernel ran another thread, and their time, ns.
    pub preempted_gaps: u64,
    pub preempted_ns: u64,
    /// The other gaps, and the part of their time that interrupts can explain, ns.
    pub other_gaps: u64,
    pub interruptible_ns: u64,
    /// Threads that ran on the CPU last: name and how long each ran, ns.
    pub threads: Vec<(String, u64)>,
    /// Interrupts by row.
    pub interrupts: Vec<(String, u64)>,
}

/// What took how much of the time. No more is given than there is, and nothing to what did not
/// run.
pub fn culprits(evidence: &Evidence) -> Vec<Culprit> {
    let Evidence { preempted_gaps, preempted_ns, other_gaps, interruptible_ns, .. } = *evidence;
    // Threads that ran for less than was lost explain only that.
    let ran_ns: u64 = evidence.threads.iter().map(|thread| thread.1).fold(0, u64::saturating_add);
    let threads =
        divided(&evidence.threads, ran_ns.max(preempted_ns), preempted_gaps, preempted_ns);
    let count = evidence.interrupts.iter().map(|row| row.1).fold(0, u64::saturating_add);
    let interrupts =
        divided(&evidence.interrupts, count.max(other_gaps), other_gaps, interruptible_ns);
    let threads = threads.map(|one| Culprit { kind: CulpritKind::Thread, ..one });
    let interrupts = interrupts.map(|one| Culprit { kind: row_kind(&one.name), ..one });
    threads.chain(interrupts).collect()
}

/// What a row of `/proc/interrupts` is.
fn row_kind(name: &str) -> CulpritKind {
    match name.split(' ').next() {
        Some("LOC") => CulpritKind::Timer,
        Some("RES" | "CAL" | "TLB") => CulpritKind::Call,
        _ => CulpritKind::Interrupt,
    }
}

/// `gaps` and `lost_ns` divided in proportion to the weights, of which there are `all`.
fn divided(
    weights: &[(String, u64)],
    all: u64,
    gaps: u64,
    lost_ns: u64,
) -> impl Iterator<Item = Culprit> {
    let part = move |of: u64, weight: u64| {
        (u128::from(of) * u128::from(weight) / u128::from(all.max(1))) as u64
    };
    weights.iter().filter(|(_, weight)| *weight > 0).filter_map(move |(name, weight)| {
        let (gaps, lost_ns) = (part(gaps, *weight), part(lost_ns, *weight));
        let name = name.clone();
        (lost_ns > 0).then(|| Culprit { name, gaps, lost_ns, ..Culprit::default() })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rows(rows: &[(&str, u64)]) -> Vec<(String, u64)> {
        rows.iter().map(|(name, n)| (name.to_string(), *n)).collect()
    }

    #[test]
    fn time_is_divided_by_what_ran_and_the_rest_stays_unexplained() {
        let evidence = Evidence {
            preempted_gaps: 100,
            preempted_ns: 1_000,
            other_gaps: 50,
            interruptible_ns: 500,
            threads: rows(&[("noise", 600), ("idle", 0)]),
            interrupts: rows(&[("LOC Local timer interrupts", 40), ("36 disk", 10)]),
        };
        let seen: Vec<_> = culprits(&evidence)
            .into_iter()
            .map(|one| (one.name, one.kind, one.gaps, one.lost_ns))
            .collect();
        let timer = ("LOC Local timer interrupts".to_string(), CulpritKind::Timer, 40, 400);
        let disk = ("36 disk".to_string(), CulpritKind::Interrupt, 10, 100);
        assert_eq!(seen, [("noise".to_string(), CulpritKind::Thread, 60, 600), timer, disk]);
    }

    proptest! {
        #[test]
        fn no_more_is_given_than_there_is_and_nothing_to_what_did_not_run(
            numbers in (0..200_u64, any::<u32>(), 0..200_u64, any::<u32>()),
            threads in prop::collection::vec(any::<u32>(), 0..6),
            interrupts in prop::collection::vec(0..1_000_u64, 0..6),
        ) {
            let of = |kind: &str, counts: &[u64]| -> Vec<(String, u64)> {
                let row = |(n, count): (u64, &u64)| (format!("{kind}{n}"), *count);
                (0..).zip(counts).map(row).collect()
            };
            let threads: Vec<u64> = threads.into_iter().map(u64::from).collect();
            let evidence = Evidence {
                preempted_gaps: numbers.0,
                preempted_ns: numbers.1.into(),
                other_gaps: numbers.2,
                interruptible_ns: numbers.3.into(),
                threads: of("t", &threads),
                interrupts: of("i", &interrupts),
            };
            let seen = culprits(&evidence);
            let sum = |is_thread: bool| -> u64 {
                let of_kind = |one: &&Culprit| (one.kind == CulpritKind::Thread) == is_thread;
                seen.iter().filter(of_kind).map(|one| one.lost_ns).sum()
            };
            prop_assert!(sum(true) <= evidence.preempted_ns);
            prop_assert!(sum(false) <= evidence.interruptible_ns);
            for one in &seen {
                let has = |rows: &[(String, u64)]| rows.contains(&(one.name.clone(), 0));
                prop_assert!(!has(&evidence.threads) && !has(&evidence.interrupts));
            }
        }
    }
}
