//! A machine's cores as a placement sees them.

use std::collections::{BTreeMap, BTreeSet};

/// The cores of a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Topology {
    /// Physical cores, by their first CPU.
    pub cores: Vec<Core>,
    /// CPUs that the scheduler leaves alone.
    pub isolated: BTreeSet<u32>,
}

/// A physical core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Core {
    /// Its online CPUs, the lowest first; never empty.
    pub cpus: Vec<u32>,
    /// Its NUMA node.
    pub node: u32,
    /// The first CPU of those that share its last-level cache; absent where nothing tells.
    pub cache: Option<u32>,
    /// Its type: 0 is the fastest of the machine; absent where nothing tells.
    pub class: Option<u32>,
}

impl Core {
    /// Its first thread.
    pub fn first(&self) -> u32 {
        self.cpus.first().copied().unwrap_or_default()
    }
}

impl Topology {
    /// Cores of which only the threads are known, and nodes where they are.
    pub fn of_threads(cpus: &[u32], siblings: &[Vec<u32>], nodes: &BTreeMap<u32, u32>) -> Topology {
        let mut cores: Vec<Core> = vec![];
        for &cpu in cpus {
            let group = siblings.iter().find(|group| group.contains(&cpu));
            let is_of_it = |core: &&mut Core| group.is_some_and(|g| g.contains(&core.first()));
            let node = nodes.get(&cpu).copied().unwrap_or(0);
            match cores.iter_mut().find(is_of_it) {
                Some(core) => core.cpus.push(cpu),
                None => cores.push(Core { cpus: vec![cpu], node, cache: None, class: None }),
            }
        }
        cores.iter_mut().for_each(|core| core.cpus.sort_unstable());
        Topology { cores, isolated: BTreeSet::new() }
    }

    /// The part of it that these CPUs are.
    pub fn within(&self, cpus: &[u32]) -> Topology {
        let mut part = self.clone();
        part.cores.iter_mut().for_each(|core| core.cpus.retain(|cpu| cpus.contains(cpu)));
        part.cores.retain(|core| !core.cpus.is_empty());
        part
    }

    /// The same with all cores on one node, for a workload that no node can carry.
    pub fn as_one_node(&self) -> Topology {
        let mut one = self.clone();
        let node = self.nodes().first().copied().unwrap_or(0);
        one.cores.iter_mut().for_each(|core| core.node = node);
        one
    }

    /// The NUMA nodes that have cores.
    pub fn nodes(&self) -> BTreeSet<u32> {
        self.cores.iter().map(|core| core.node).collect()
    }

    /// Whether some cores are faster than others.
    pub fn has_types(&self) -> bool {
        self.cores.iter().any(|core| core.class.is_some_and(|class| class > 0))
    }

    /// Whether the types of the cores are known.
    pub fn knows_types(&self) -> bool {
        !self.cores.is_empty() && self.cores.iter().all(|core| core.class.is_some())
    }

    /// The CPUs of each last-level cache that is known.
    pub fn caches(&self) -> BTreeMap<u32, Vec<u32>> {
        let mut caches: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for core in &self.cores {
            if let Some(cache) = core.cache {
                caches.entry(cache).or_default().extend(&core.cpus);
            }
        }
        caches.values_mut().for_each(|cpus| cpus.sort_unstable());
        caches
    }

    /// The core of a CPU.
    pub fn core_of(&self, cpu: u32) -> Option<&Core> {
        self.cores.iter().find(|core| core.cpus.contains(&cpu))
    }

    /// The CPUs of the fastest type; all where the types are not known.
    pub fn fastest(&self) -> Vec<u32> {
        let is_fast = |core: &&Core| !self.knows_types() || core.class == Some(0);
        let mut cpus: Vec<u32> =
            self.cores.iter().filter(is_fast).flat_map(|core| core.cpus.clone()).collect();
        cpus.sort_unstable();
        cpus
    }
}
