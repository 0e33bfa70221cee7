//! What took the CPU: each culprit over all CPUs and rounds of a series, and what has no name.

use std::collections::{BTreeMap, BTreeSet};

use nm_model::jitter::{Culprit, CulpritKind, Naming};
use nm_model::result::Series;

use super::totals;
use crate::style::Tone;
use crate::table::{Column, Table};
use crate::units::{self, NOT_AVAILABLE};
use crate::view;

/// Culprits that are shown: those that took most.
const SHOWN_MAX: usize = 12;

/// CPUs that are listed for a culprit.
const CPUS_LISTED_MAX: usize = 4;

/// One culprit over all CPUs and rounds.
#[derive(Debug, Default)]
struct Total {
    gaps: u64,
    lost_ns: u64,
    longest_ns: Option<u64>,
    page_faults: u64,
    cpus: BTreeSet<u32>,
}

impl Total {
    fn add(&mut self, cpu: u32, one: &Culprit) {
        self.gaps = self.gaps.saturating_add(one.gaps);
        self.lost_ns = self.lost_ns.saturating_add(one.lost_ns);
        self.longest_ns = self.longest_ns.max(one.longest_ns);
        self.page_faults = self.page_faults.saturating_add(one.page_faults.unwrap_or(0));
        self.cpus.insert(cpu);
    }

    fn cells(&self, name: String, kind: &str, lost_ns: u64) -> Vec<String> {
        let share = 100.0 * self.lost_ns as f64 / lost_ns.max(1) as f64;
        let longest = self.longest_ns.map(|ns| units::latency(ns as f64));
        vec![
            name,
            kind.to_string(),
            units::count(self.gaps),
            units::significant(share, 2),
            longest.unwrap_or(NOT_AVAILABLE.to_string()),
            self.cpus_text(),
        ]
    }

    fn cpus_text(&self) -> String {
        if self.cpus.len() > CPUS_LISTED_MAX {
            return format!("{} CPUs", self.cpus.len());
        }
        self.cpus.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
    }
}

fn totals(series: &Series) -> Vec<((CulpritKind, &str), Total)> {
    let mut all: BTreeMap<(CulpritKind, &str), Total> = BTreeMap::new();
    for cpu in totals::rounds(series).flat_map(|round| &round.cpus) {
        for one in &cpu.culprits {
            all.entry((one.kind, &one.name)).or_default().add(cpu.cpu, one);
        }
    }
    let mut all: Vec<_> = all.into_iter().collect();
    all.sort_by_key(|(_, total)| std::cmp::Reverse(total.lost_ns));
    all
}

/// The table; none for results that have no names.
pub fn table(series: &Series) -> Option<Table> {
    let naming = totals::rounds(series).map(|round| round.naming);
    let is_estimate = match naming.collect::<Option<Vec<_>>>()? {
        of if of.is_empty() => return None,
        of => of.contains(&Naming::Counted),
    };
    let cpus = || totals::rounds(series).flat_map(|round| &round.cpus);
    let lost_ns = cpus().fold(0, |sum: u64, cpu| sum.saturating_add(cpu.lost_ns));
    let n_gaps = cpus().fold(0, |sum: u64, cpu| sum.saturating_add(cpu.gaps));
    let all = totals(series);
    let environment = view::marked(series, series.key.environment.as_str());
    let method = if is_estimate { "estimated from counters" } else { "by the kernel's events" };
    let caption =
        format!("What took the CPU of {environment}, {method}: share in % of all lost time");
    let columns = [
        Column::text("culprit"),
        Column::text("kind"),
        Column::figure("gaps"),
        Column::figure("share"),
        Column::figure("largest gap"),
        Column::text("CPUs").leaves(1),
    ];
    let mut table = Table::new(caption, columns);
    let rest = |named: (u64, u64)| Total {
        gaps: n_gaps.saturating_sub(named.0),
        lost_ns: lost_ns.saturating_sub(named.1),
        ..Total::default()
    };
    let named = all.iter().fold((0, 0), |sum: (u64, u64), (_, total)| {
        (sum.0.saturating_add(total.gaps), sum.1.saturating_add(total.lost_ns))
    });
    for ((kind, name), total) in all.iter().take(SHOWN_MAX) {
        let name = match total.page_faults {
            0 => name.to_string(),
            faults => format!("{name} ({} page faults)", units::count(faults)),
        };
        table.push(Tone::Plain, total.cells(name, kind.name(), lost_ns));
    }
    let more = all.iter().skip(SHOWN_MAX).fold(Total::default(), |mut sum, (_, total)| {
        sum.gaps = sum.gaps.saturating_add(total.gaps);
        sum.lost_ns = sum.lost_ns.saturating_add(total.lost_ns);
        sum.longest_ns = sum.longest_ns.max(total.longest_ns);
        sum
    });
    if let Some(n) = all.len().checked_sub(SHOWN_MAX).filter(|n| *n > 0) {
        table.push(Tone::Plain, more.cells(format!("{n} others"), "", lost_ns));
    }
    table.push(Tone::Plain, rest(named).cells("unexplained".to_string(), "", lost_ns));
    Some(table)
}

/// The culprit of the longest gap that has a name, and the length of that gap, ns.
pub fn of_longest(series: &Series) -> Option<(String, u64)> {
    let longest = |((kind, name), total): &((CulpritKind, &str), Total)| {
        Some((format!("{} {name}", kind.name()), total.longest_ns?))
    };
    totals(series).iter().filter_map(longest).max_by_key(|(_, ns)| *ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probes::jitter::{fixture, series};

    #[test]
    fn culprits_are_summed_and_what_has_no_name_stays_unexplained() {
        let mut result = fixture::result(2);
        assert!(table(series(&result).next().unwrap()).is_none(), "an earlier version's result");
        for round in fixture::rounds(&mut result) {
            round.naming = Some(Naming::Traced);
            let noise = Culprit {
                name: "noise".into(),
                gaps: 100,
                lost_ns: 30_000_000,
                longest_ns: Some(4_000_000),
                page_faults: Some(7),
                ..Culprit::default()
            };
            round.cpus[1].culprits = vec![noise];
        }
        let one = series(&result).next().unwrap();
        let table = table(one).unwrap();
        assert!(table.caption.ends_with("by the kernel's events: share in % of all lost time"));
        let cells = |row: usize| table.rows[row].cells.join("|");
        assert_eq!(cells(0), "noise (14 page faults)|thread|200|50|4.000 ms|1");
        assert_eq!(cells(1), "unexplained||800|50|n/a|");
        assert_eq!(of_longest(one), Some(("thread noise".to_string(), 4_000_000)));
    }

    #[test]
    fn many_culprits_are_cut_and_estimates_say_so() {
        let mut result = fixture::result(1);
        let round = fixture::round(&mut result);
        round.naming = Some(Naming::Counted);
        let of = |n: u64| Culprit { name: format!("t{n}"), lost_ns: n, ..Culprit::default() };
        round.cpus[0].culprits = (1..=20).map(of).collect();
        let table = table(series(&result).next().unwrap()).unwrap();
        assert!(table.caption.contains("estimated from counters"));
        assert_eq!(table.rows.len(), SHOWN_MAX + 2);
        assert_eq!(table.rows[SHOWN_MAX].cells[0], "8 others");
        assert_eq!(table.rows[0].cells[0], "t20");
    }
}
