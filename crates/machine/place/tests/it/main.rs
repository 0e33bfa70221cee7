//! The choice holds for every machine that can be made up.

use std::collections::BTreeSet;

use nm_place::{Chosen, Core, Refusal, Topology, Wish, choose, cores_apart};
use proptest::prelude::*;

/// Nodes of caches of cores: sizes of the caches, threads of a core, types and isolation.
#[derive(Debug, Clone)]
struct Shape {
    /// Cores of each cache, of each node.
    nodes: Vec<Vec<u32>>,
    threads: u32,
    /// Whether every second core is of the slower type.
    has_types: bool,
    /// Whether the caches are known.
    knows_caches: bool,
}

fn shapes() -> impl Strategy<Value = Shape> {
    let caches = prop::collection::vec(1u32..9, 1..6);
    let nodes = prop::collection::vec(caches, 1..4);
    (nodes, 1u32..5, any::<bool>(), prop::bool::weighted(0.9)).prop_map(
        |(nodes, threads, has_types, knows_caches)| Shape {
            nodes,
            threads,
            has_types,
            knows_caches,
        },
    )
}

/// All first threads have the lower numbers, as on most servers.
fn topology(shape: &Shape) -> Topology {
    let n_cores: u32 = shape.nodes.iter().flatten().sum();
    let mut cores: Vec<Core> = vec![];
    for (node, caches) in (0..).zip(&shape.nodes) {
        for size in caches {
            let first = cores.len() as u32;
            cores.extend((0..*size).map(|number| Core {
                cpus: (0..shape.threads).map(|t| first + number + t * n_cores).collect(),
                node,
                cache: shape.knows_caches.then_some(first),
                class: Some(if shape.has_types { number % 2 } else { 0 }),
            }));
        }
    }
    Topology { cores, isolated: BTreeSet::new() }
}

fn of_node(topology: &Topology, node: u32) -> Vec<&Core> {
    topology.cores.iter().filter(|core| core.node == node).collect()
}

fn core_of(topology: &Topology, cpu: u32) -> &Core {
    topology.core_of(cpu).expect("the CPU is the machine's")
}

/// Whether some choice of a system's core leaves enough cores without its cache: tried one by one.
/// The work of CPU 0 cannot be moved.
fn is_avoidable(topology: &Topology, node: u32, wanted: usize) -> bool {
    let cores = of_node(topology, node);
    let may_be_system = |core: &&&Core| {
        core.cpus.contains(&0) || cores.iter().all(|other| !other.cpus.contains(&0))
    };
    cores
        .iter()
        .filter(may_be_system)
        .any(|system| cores.iter().filter(|core| core.cache != system.cache).count() >= wanted)
}

fn check_sets(topology: &Topology, wish: &Wish, chosen: &Chosen) -> Result<(), TestCaseError> {
    prop_assert_eq!(chosen.hot.len(), wish.cores);
    prop_assert_eq!(chosen.reserved.len(), wish.reserve);
    let kept: Vec<&Core> =
        chosen.hot.iter().chain(&chosen.reserved).map(|cpu| core_of(topology, *cpu)).collect();
    let firsts: BTreeSet<u32> = kept.iter().map(|core| core.first()).collect();
    prop_assert_eq!(firsts.len(), kept.len(), "a core of its own for each");
    let siblings: BTreeSet<u32> =
        kept.iter().flat_map(|core| core.cpus[1..].iter().copied()).collect();
    prop_assert_eq!(chosen.idle_siblings.iter().copied().collect::<BTreeSet<_>>(), siblings);
    let sets = [&chosen.hot, &chosen.reserved, &chosen.idle_siblings, &chosen.spare];
    let all: Vec<u32> = sets.into_iter().flatten().chain(&chosen.housekeeping).copied().collect();
    let node: BTreeSet<u32> =
        of_node(topology, chosen.node).iter().flat_map(|core| core.cpus.clone()).collect();
    prop_assert_eq!(all.len(), node.len(), "no CPU is in two sets");
    prop_assert_eq!(all.into_iter().collect::<BTreeSet<_>>(), node, "and none is in no set");
    prop_assert!(!chosen.housekeeping.is_empty() && !chosen.hot.contains(&0));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn siblings_and_sets_are_complete_and_apart(
        shape in shapes(), cores in 1usize..10, reserve in 0usize..6, near: bool,
    ) {
        let topology = topology(&shape);
        let node = near.then_some(shape.nodes.len() as u32 - 1);
        let wish = Wish { cores, node, reserve };
        match choose(&topology, &wish) {
            Ok(chosen) => {
                check_sets(&topology, &wish, &chosen)?;
                prop_assert!(node.is_none_or(|node| chosen.node == node));
            }
            Err(Refusal::TooFewCores { node, cores: has, wanted }) => {
                prop_assert_eq!(of_node(&topology, node).len(), has);
                prop_assert!(has <= wanted && wanted == cores + reserve);
            }
            Err(error) => prop_assert!(false, "{error}"),
        }
    }

    #[test]
    fn no_cache_is_shared_with_the_system_where_that_is_avoidable(
        shape in shapes(), cores in 1usize..10, reserve in 0usize..6,
    ) {
        let shape = Shape { has_types: false, knows_caches: true, ..shape };
        let topology = topology(&shape);
        for node in topology.nodes() {
            let wish = Wish { cores, node: Some(node), reserve };
            let Ok(chosen) = choose(&topology, &wish) else { continue };
            let wanted = cores + reserve;
            prop_assert_eq!(
                chosen.shares_cache, !is_avoidable(&topology, node, wanted), "{:?}", chosen
            );
            let of_system: BTreeSet<_> =
                chosen.housekeeping.iter().map(|cpu| core_of(&topology, *cpu).cache).collect();
            let kept = chosen.hot.iter().chain(&chosen.reserved);
            let is_shared =
                kept.clone().any(|cpu| of_system.contains(&core_of(&topology, *cpu).cache));
            prop_assert_eq!(chosen.shares_cache, is_shared, "{:?}", chosen);
            let caches: BTreeSet<_> =
                chosen.hot.iter().map(|cpu| core_of(&topology, *cpu).cache).collect();
            let sizes = of_node(&topology, node);
            let largest = |cache| sizes.iter().filter(|core| core.cache == cache).count();
            let fits = sizes.iter().any(|core| {
                let is_apart = chosen.housekeeping.iter().all(|cpu| {
                    core_of(&topology, *cpu).cache != core.cache
                });
                is_apart && largest(core.cache) >= wanted
            });
            prop_assert!(!fits || caches.len() == 1, "{:?}", chosen);
        }
    }

    #[test]
    fn slower_cores_are_used_only_where_the_fast_ones_are_too_few(
        shape in shapes(), cores in 1usize..6,
    ) {
        let topology = topology(&Shape { has_types: true, ..shape });
        for node in topology.nodes() {
            let Ok(chosen) = choose(&topology, &Wish { cores, node: Some(node), reserve: 0 }) else {
                continue;
            };
            let n_slow =
                chosen.hot.iter().filter(|cpu| core_of(&topology, **cpu).class != Some(0)).count();
            let all = of_node(&topology, node);
            let n_fast = all.iter().filter(|core| core.class == Some(0)).count();
            prop_assert!(n_slow == 0 || n_fast <= cores, "{chosen:?}");
        }
    }

    #[test]
    fn isolated_cores_are_taken_where_there_are_enough(
        shape in shapes(), cores in 1usize..4, every in 2u32..4,
    ) {
        let mut topology = topology(&Shape { has_types: false, ..shape });
        let firsts: Vec<u32> = topology.cores.iter().map(Core::first).collect();
        topology.isolated = firsts.into_iter().filter(|cpu| cpu % every == 1).collect();
        for node in topology.nodes() {
            let Ok(chosen) = choose(&topology, &Wish { cores, node: Some(node), reserve: 0 }) else {
                continue;
            };
            let all = of_node(&topology, node);
            let n_isolated =
                all.iter().filter(|core| topology.isolated.contains(&core.first())).count();
            let is_all = chosen.hot.iter().all(|cpu| topology.isolated.contains(cpu));
            // One of them may have to stay with the system.
            prop_assert!(is_all || n_isolated <= cores, "{chosen:?}");
        }
    }

    #[test]
    fn every_choice_has_reasons_of_one_sentence(shape in shapes(), cores in 1usize..10) {
        let topology = topology(&shape);
        let wish = Wish { cores, ..Wish::default() };
        let Ok(chosen) = choose(&topology, &wish) else { return Ok(()) };
        prop_assert!(chosen.reasons.len() >= 3, "{:?}", chosen.reasons);
        for reason in &chosen.reasons {
            let n_words = reason.split_whitespace().count();
            prop_assert!((3..=25).contains(&n_words) && !reason.ends_with('.'), "{reason}");
        }
    }
}

/// Two caches of eight cores: eight virtual CPUs are in the one that the system does not use.
#[test]
fn eight_cores_are_in_the_cache_without_the_system() {
    let shape = Shape { nodes: vec![vec![8, 8]], threads: 2, has_types: false, knows_caches: true };
    let topology = topology(&shape);
    let chosen = choose(&topology, &Wish { cores: 8, ..Wish::default() }).unwrap();
    assert_eq!(chosen.hot, [8, 9, 10, 11, 12, 13, 14, 15]);
    assert_eq!(chosen.housekeeping, [0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23]);
    assert!(!chosen.shares_cache);
    assert_eq!(chosen.reasons[1], "one last-level cache, which the system does not use");
    assert_eq!(cores_apart(&topology, 0), 8);
    let more = choose(&topology, &Wish { cores: 9, ..Wish::default() }).unwrap();
    assert!(more.shares_cache, "nine cores are in no cache alone");
}

#[test]
fn a_machine_without_cores_is_refused() {
    let wish = Wish { cores: 1, ..Wish::default() };
    assert_eq!(choose(&Topology::default(), &wish), Err(Refusal::NoCores));
}
