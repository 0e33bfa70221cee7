//! The cores of a machine: threads, nodes, last-level caches, types, isolation.

use std::collections::{BTreeMap, BTreeSet};

use nm_model::limits;
use nm_place::{Core, Topology};
use nm_sys::hostfiles::HostFiles;

use crate::cpu;

const CPUS: &str = "/sys/devices/system/cpu";

/// Below this share of the fastest type's figure a core is of another type. Cores of one type
/// differ by a few percent, those of Intel's and ARM's slower types by more than a quarter.
const SAME_TYPE_SHARE: f64 = 0.8;

/// Reads the cores. What nothing tells is absent, never guessed.
pub fn read(files: &HostFiles) -> Topology {
    let online: BTreeSet<u32> = cpu::online(files).into_iter().take(limits::CPUS_MAX).collect();
    let nodes = cpu::numa_nodes(files, &online.iter().copied().collect::<Vec<_>>());
    let classes = classes(files, &online);
    let mut cores = vec![];
    for cpu in &online {
        let siblings = files.list(&format!("{CPUS}/cpu{cpu}/topology/thread_siblings_list"));
        let mut cpus = siblings.unwrap_or_default();
        cpus.retain(|sibling| online.contains(sibling));
        cpus.push(*cpu);
        cpus.sort_unstable();
        cpus.dedup();
        if cpus[0] == *cpu {
            // A kernel without NUMA has one node, which it does not list.
            let node = nodes.get(cpu).copied().unwrap_or(0);
            cores.push(Core {
                cpus,
                node,
                cache: cache(files, *cpu),
                class: class(&classes, *cpu),
            });
        }
    }
    let isolated = files.list(&format!("{CPUS}/isolated")).unwrap_or_default();
    Topology { cores, isolated: isolated.into_iter().collect() }
}

/// The first of the CPUs that share the last-level cache of a CPU.
fn cache(files: &HostFiles, cpu: u32) -> Option<u32> {
    let shared =
        |level: u32| files.list(&format!("{CPUS}/cpu{cpu}/cache/index{level}/shared_cpu_list"));
    shared(3).or_else(|| shared(2))?.into_iter().min()
}

fn class(classes: &BTreeMap<u32, u32>, cpu: u32) -> Option<u32> {
    classes.get(&cpu).copied()
}

/// The type of each CPU, 0 the fastest: by the kernel's lists of hybrid processors, else by the
/// capacity that it calculates with, else by the highest frequency.
fn classes(files: &HostFiles, online: &BTreeSet<u32>) -> BTreeMap<u32, u32> {
    let mut found = BTreeMap::new();
    for (class, name) in (0..).zip(["cpu_core", "cpu_atom", "cpu_lowpower"]) {
        let cpus = files.list(&format!("/sys/devices/{name}/cpus")).unwrap_or_default();
        found.extend(cpus.into_iter().map(|cpu| (cpu, class)));
    }
    if !found.is_empty() {
        return found;
    }
    for file in ["cpu_capacity", "cpufreq/cpuinfo_max_freq"] {
        let figures: Option<BTreeMap<u32, u64>> = online
            .iter()
            .map(|cpu| Some((*cpu, files.value(&format!("{CPUS}/cpu{cpu}/{file}"))?)))
            .collect();
        if let Some(figures) = figures {
            return by_figure(&figures);
        }
    }
    BTreeMap::new()
}

fn by_figure(figures: &BTreeMap<u32, u64>) -> BTreeMap<u32, u32> {
    let mut sorted: Vec<u64> = figures.values().copied().collect();
    sorted.sort_unstable_by(|a, b| b.cmp(a));
    let mut tops: Vec<u64> = vec![];
    for figure in sorted {
        let is_same = tops.last().is_some_and(|top| figure as f64 >= *top as f64 * SAME_TYPE_SHARE);
        if !is_same {
            tops.push(figure);
        }
    }
    let class_of = |figure: u64| tops.iter().filter(|top| **top > figure).count() as u32;
    let of = |figure: u64| match tops.contains(&figure) {
        true => class_of(figure),
        false => class_of(figure) - 1,
    };
    figures.iter().map(|(cpu, figure)| (*cpu, of(*figure))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_of_one_type_differ_by_little() {
        let of = |figures: &[u64]| -> Vec<u32> {
            let figures = (0..).zip(figures.iter().copied()).collect();
            by_figure(&figures).into_values().collect()
        };
        assert_eq!(of(&[5_200_000, 5_100_000, 3_900_000]), [0, 0, 1]);
        assert_eq!(of(&[446, 446, 871, 1024]), [1, 1, 0, 0]);
        assert_eq!(of(&[250, 600, 1024]), [2, 1, 0]);
        assert_eq!(of(&[]), Vec::<u32>::new());
    }
}
