//! The choice.

use std::collections::{BTreeMap, BTreeSet};

use nm_sys::cpu_list;

use crate::topology::{Core, Topology};

/// What a workload asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wish {
    /// Cores, one for each hot thread or virtual CPU.
    pub cores: usize,
    /// NUMA node of its network device, where known.
    pub node: Option<u32>,
    /// Cores to keep beside those, for more of the same kind; they count as hot as well.
    pub reserve: usize,
}

/// Where a workload runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chosen {
    /// The first thread of each core of the workload, the lowest first.
    pub hot: Vec<u32>,
    /// The first thread of each core that is kept beside them.
    pub reserved: Vec<u32>,
    /// The other threads of all those cores: nothing may run there.
    pub idle_siblings: Vec<u32>,
    /// Cores beside them on a last-level cache that the system does not use: nothing should run
    /// there that the workload would notice.
    pub spare: Vec<u32>,
    /// The node's other CPUs: for interrupts, the kernel, emulators.
    pub housekeeping: Vec<u32>,
    /// The node.
    pub node: u32,
    /// Whether one of their last-level caches is one of the system's as well.
    pub shares_cache: bool,
    /// One sentence for each decision.
    pub reasons: Vec<String>,
}

/// Why there is no place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No core is known.
    #[error("no core of the machine is known")]
    NoCores,
    /// The node has no core.
    #[error("node {0} has no core")]
    NoSuchNode(u32),
    /// Too few cores.
    #[error(
        "node {node} has {cores} cores, of which one stays with the system: too few for {wanted}"
    )]
    TooFewCores {
        /// The node.
        node: u32,
        /// Its cores.
        cores: usize,
        /// Cores that were asked for.
        wanted: usize,
    },
}

/// Chooses the cores of a workload: all on one node, as few last-level caches as possible, none of
/// them shared with the system where the node allows that, the fastest cores, isolated ones first.
///
/// # Errors
/// Why the machine has no place for it.
pub fn choose(topology: &Topology, wish: &Wish) -> Result<Chosen, Refusal> {
    if topology.cores.is_empty() {
        return Err(Refusal::NoCores);
    }
    let mut reasons = vec![];
    let node = node_of(topology, wish, &mut reasons)?;
    let mut cores: Vec<&Core> = topology.cores.iter().filter(|core| core.node == node).collect();
    cores.sort_by_key(|core| core.first());
    let wanted = wish.cores + wish.reserve;
    if wanted + 1 > cores.len() {
        return Err(Refusal::TooFewCores { node, cores: cores.len(), wanted });
    }
    let system = system_core(topology, &cores, wanted);
    let rest: Vec<&Core> = cores.iter().copied().filter(|core| *core != system).collect();
    let allowed = allowed(topology, rest, wanted, &mut reasons);
    let kept = in_caches(allowed, system, wanted, End::Last, &mut reasons);
    // The workload's own cores are together within those that are kept.
    let own = match wish.reserve {
        0 => kept.clone(),
        _ => in_caches(kept.clone(), system, wish.cores, End::First, &mut vec![]),
    };
    let mut chosen = Chosen { node, ..Chosen::default() };
    let caches: BTreeSet<u32> = kept.iter().filter_map(|core| core.cache).collect();
    chosen.shares_cache = system.cache.is_some_and(|cache| caches.contains(&cache));
    for core in &cores {
        let (first, others) = core.cpus.split_first().unwrap_or((&0, &[]));
        let is_beside = core.cache.is_some_and(|cache| caches.contains(&cache));
        match (own.contains(core), kept.contains(core)) {
            (true, _) => chosen.hot.push(*first),
            (false, true) => chosen.reserved.push(*first),
            (false, false) if is_beside && core.cache != system.cache => {
                chosen.spare.extend(&core.cpus);
            }
            (false, false) => chosen.housekeeping.extend(&core.cpus),
        }
        if kept.contains(core) {
            chosen.idle_siblings.extend(others);
        }
    }
    chosen.spare.sort_unstable();
    chosen.idle_siblings.sort_unstable();
    chosen.housekeeping.sort_unstable();
    if !chosen.idle_siblings.is_empty() {
        let text = cpu_list::list(&chosen.idle_siblings);
        reasons.push(format!("CPUs {text} stay idle: each shares a core with a chosen CPU"));
    }
    if !chosen.spare.is_empty() {
        let text = cpu_list::list(&chosen.spare);
        reasons.push(format!("CPUs {text} stay free: they use a last-level cache of the chosen"));
    }
    let text = cpu_list::list(&chosen.housekeeping);
    reasons.push(format!("CPUs {text} of the node are for interrupts and the system"));
    chosen.reasons = reasons;
    Ok(chosen)
}

/// How many cores of a node share no last-level cache with the one that stays with the system; all
/// others where the caches are not known.
pub fn cores_apart(topology: &Topology, node: u32) -> usize {
    let cores: Vec<&Core> = topology.cores.iter().filter(|core| core.node == node).collect();
    if cores.is_empty() || cores.iter().any(|core| core.cache.is_none()) {
        return cores.len().saturating_sub(1);
    }
    let system = system_core(topology, &cores, 1);
    cores.iter().filter(|core| core.cache != system.cache).count()
}

fn node_of(topology: &Topology, wish: &Wish, reasons: &mut Vec<String>) -> Result<u32, Refusal> {
    let nodes = topology.nodes();
    if let Some(node) = wish.node {
        if !nodes.contains(&node) {
            return Err(Refusal::NoSuchNode(node));
        }
        reasons.push(format!("node {node}: the network device is there"));
        return Ok(node);
    }
    let n_cores = |node: u32| topology.cores.iter().filter(|core| core.node == node).count();
    let wanted = wish.cores + wish.reserve;
    let worth = |node: &u32| {
        (cores_apart(topology, *node) >= wanted, n_cores(*node), std::cmp::Reverse(*node))
    };
    let node = nodes.iter().copied().max_by_key(worth).ok_or(Refusal::NoCores)?;
    reasons.push(match nodes.len() {
        1 => format!("node {node}: the machine has no other"),
        _ => format!("node {node}: no device names one, and no other has more room"),
    });
    Ok(node)
}

/// The core that stays with the system: that of CPU 0, whose work cannot be moved, else one that is
/// not isolated, slow, and in the cache whose loss costs the workload least.
fn system_core<'a>(topology: &Topology, cores: &[&'a Core], wanted: usize) -> &'a Core {
    if let Some(first) = cores.iter().find(|core| core.cpus.contains(&0)) {
        return first;
    }
    let groups = grouped(cores);
    let size = |core: &Core| groups.get(&key(core)).map_or(0, Vec::len);
    let rest = |core: &Core| cores.len() - size(core);
    let is_isolated = |core: &Core| core.cpus.iter().any(|cpu| topology.isolated.contains(cpu));
    let cost = |core: &&&Core| {
        let slow = std::cmp::Reverse(core.class.unwrap_or(0));
        (is_isolated(core), rest(core) < wanted, slow, size(core), core.first())
    };
    // There is one, as the caller has checked.
    cores.iter().min_by_key(cost).copied().unwrap_or(cores[0])
}

/// Isolated cores where there are enough of them, and the fastest ones where there are.
fn allowed<'a>(
    topology: &Topology,
    rest: Vec<&'a Core>,
    wanted: usize,
    reasons: &mut Vec<String>,
) -> Vec<&'a Core> {
    let is_isolated = |core: &&&Core| topology.isolated.contains(&core.first());
    let isolated: Vec<&Core> = rest.iter().filter(is_isolated).copied().collect();
    let rest = match isolated.len() {
        0 => rest,
        n if n >= wanted => {
            reasons.push("isolated CPUs: the scheduler puts nothing else there".to_string());
            isolated
        }
        n => {
            reasons.push(format!("isolation is not regarded: {n} isolated cores of the node"));
            rest
        }
    };
    let mut classes: Vec<u32> = rest.iter().filter_map(|core| core.class).collect();
    classes.sort_unstable();
    classes.dedup();
    if classes.len() < 2 {
        return rest;
    }
    for class in &classes {
        let fast: Vec<&Core> = rest
            .iter()
            .filter(|core| core.class.is_some_and(|one| one <= *class))
            .copied()
            .collect();
        if fast.len() >= wanted {
            let is_mixed = fast.iter().any(|core| core.class != Some(classes[0]));
            reasons.push(match is_mixed {
                false => "the fastest cores: the machine has slower ones".to_string(),
                true => "cores of several types: those of the fastest are too few".to_string(),
            });
            return fast;
        }
    }
    rest
}

/// Cores that share a cache; one of unknown cache is alone.
fn key(core: &Core) -> (bool, u32) {
    (core.cache.is_some(), core.cache.unwrap_or_else(|| core.first()))
}

fn grouped<'a>(cores: &[&'a Core]) -> BTreeMap<(bool, u32), Vec<&'a Core>> {
    let mut groups: BTreeMap<(bool, u32), Vec<&Core>> = BTreeMap::new();
    cores.iter().for_each(|core| groups.entry(key(core)).or_default().push(core));
    groups
}

/// `wanted` of the cores in as few caches as possible, none of them that of the system if the
/// others have enough. The highest ones: interrupts and old programs begin at the lowest.
fn in_caches<'a>(
    cores: Vec<&'a Core>,
    system: &Core,
    wanted: usize,
    end: End,
    reasons: &mut Vec<String>,
) -> Vec<&'a Core> {
    if cores.iter().any(|core| core.cache.is_none()) {
        reasons.push("caches are not regarded: nothing tells which cores share one".to_string());
        return end.of(cores, wanted);
    }
    let apart: Vec<&Core> =
        cores.iter().filter(|core| core.cache != system.cache).copied().collect();
    let is_apart = apart.len() >= wanted;
    let from = if is_apart { apart } else { cores };
    let mut groups: Vec<Vec<&Core>> = grouped(&from).into_values().collect();
    let fits = groups.iter().filter(|group| group.len() >= wanted);
    // The smallest that fits leaves the larger ones to others; of equals the last.
    let best = fits.rev().min_by_key(|group| group.len()).cloned();
    let n_caches;
    let taken = match best {
        Some(group) => {
            n_caches = 1;
            end.of(group, wanted)
        }
        None => {
            let is_system = |group: &Vec<&Core>| group.iter().any(|c| c.cache == system.cache);
            groups.sort_by_key(|group| (is_system(group), std::cmp::Reverse(group.len())));
            let mut taken: Vec<&Core> = vec![];
            for group in groups {
                let missing = wanted - taken.len();
                taken.extend(end.of(group, missing));
            }
            let caches: BTreeSet<Option<u32>> = taken.iter().map(|core| core.cache).collect();
            n_caches = caches.len();
            taken
        }
    };
    reasons.push(match (n_caches, is_apart) {
        (1, true) => "one last-level cache, which the system does not use".to_string(),
        (1, false) => {
            "one last-level cache, shared with the system: the node's others are too small".into()
        }
        (n, true) => {
            format!("{n} last-level caches, as none has {wanted} cores; the system uses none")
        }
        (n, false) => format!(
            "{n} last-level caches, one shared with the system: the node has too few other cores"
        ),
    });
    taken
}

/// Which of equal cores are taken.
#[derive(Debug, Clone, Copy)]
enum End {
    First,
    Last,
}

impl End {
    fn of(self, mut cores: Vec<&Core>, wanted: usize) -> Vec<&Core> {
        let wanted = wanted.min(cores.len());
        match self {
            End::First => {
                cores.truncate(wanted);
                cores
            }
            End::Last => cores.split_off(cores.len() - wanted),
        }
    }
}
