//! Whether the host has a core for each thread of the guests that would keep one busy, and where
//! the threads run.

use nm_model::guest::GuestPlacement;
use nm_model::{GuestId, GuestSpec};
use nm_place::{Topology, Wish};

/// Virtual CPUs of a guest where the host has cores for them: one that measures, one for the rest.
const CPUS_WANTED: u32 = 2;

/// Threads and cores of an environment of guests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budget {
    /// Guests, two of each pair.
    pub guests: u32,
    /// Virtual CPUs of each guest.
    pub cpus: u32,
    /// Cores that threads keep busy while all guests spin, and one for all others.
    pub needed_cores: u32,
    /// Cores that this process may use.
    pub cores: u32,
    /// Where the threads run. Empty lists where there are too few cores to pin them.
    pub placement: Vec<GuestPlacement>,
}

impl Budget {
    /// For `pairs` pairs of guests with a measuring thread each, `packet_threads` threads of the
    /// host that move packets, `wanted` virtual CPUs, and the cores that this process may use.
    pub fn new(
        pairs: u32,
        wanted: Option<u32>,
        packet_threads: u32,
        topology: &Topology,
    ) -> Budget {
        let cores = topology.cores.len() as u32;
        let guests = 2 * pairs;
        let others = packet_threads + 1;
        let cpus = wanted.unwrap_or_else(|| {
            if cores >= guests * CPUS_WANTED + others { CPUS_WANTED } else { 1 }
        });
        let cpus = cpus.clamp(1, GuestSpec::CPUS_MAX);
        let placement = placement(pairs, cpus, topology);
        Budget { guests, cpus, needed_cores: guests + others, cores, placement }
    }

    /// Whether both ends may wait by spinning.
    pub fn may_spin(&self) -> bool {
        self.cores >= self.needed_cores
    }

    /// The shortage in words; none if there is none.
    pub fn shortage(&self) -> Option<String> {
        (!self.may_spin()).then(|| {
            format!(
                "{} of the host may be used, and {} spinning guests need {}",
                if self.cores == 1 {
                    "1 core".to_string()
                } else {
                    format!("{} cores", self.cores)
                },
                self.guests,
                self.needed_cores
            )
        })
    }
}

/// A core for each virtual CPU by the rule of all placements, the highest first, and the others for
/// QEMU's other threads. Nothing is pinned if no core is left for the others.
fn placement(pairs: u32, cpus: u32, topology: &Topology) -> Vec<GuestPlacement> {
    let guests = GuestId::all(pairs);
    let wish = Wish { cores: guests.len() * cpus as usize, ..Wish::default() };
    // Many guests may need more cores than a node has.
    let chosen = nm_place::choose(topology, &wish)
        .or_else(|_| nm_place::choose(&topology.as_one_node(), &wish));
    let Ok(mut chosen) = chosen else { return vec![GuestPlacement::default()] };
    // The virtual CPUs of a guest share a cache before those of different guests do.
    chosen.hot.sort_by_key(|cpu| (topology.core_of(*cpu).and_then(|core| core.cache), *cpu));
    let mut free = chosen.hot.into_iter().rev();
    guests
        .iter()
        .map(|guest| GuestPlacement {
            side: Some(guest.side),
            pair: (pairs > 1).then_some(guest.pair + 1),
            virtual_cpus: free.by_ref().take(cpus as usize).collect(),
            other_threads: chosen.housekeeping.clone(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nm_model::Side;
    use proptest::prelude::*;

    fn cores(cpus: &[u32], siblings: &[Vec<u32>]) -> Topology {
        Topology::of_threads(cpus, siblings, &std::collections::BTreeMap::new())
    }

    fn budget(wanted: Option<u32>, packet_threads: u32, cpus: u32) -> Budget {
        Budget::new(1, wanted, packet_threads, &cores(&(0..cpus).collect::<Vec<_>>(), &[]))
    }

    #[test]
    fn two_cores_are_too_few_to_spin_and_three_are_enough() {
        let two = budget(None, 0, 2);
        assert_eq!((two.cpus, two.needed_cores, two.may_spin()), (1, 3, false));
        assert_eq!(two.placement, [GuestPlacement::default()]);
        let why = two.shortage().unwrap();
        assert_eq!(why, "2 cores of the host may be used, and 2 spinning guests need 3");
        assert!(budget(None, 0, 3).shortage().is_none());
        assert!(budget(None, 2, 4).shortage().is_some(), "threads of vhost spin too");
        assert!(budget(None, 0, 1).shortage().unwrap().starts_with("1 core of"));
    }

    #[test]
    fn guests_get_a_second_cpu_where_all_have_a_core() {
        assert_eq!(budget(None, 2, 6).cpus, 1);
        assert_eq!(budget(None, 2, 7).cpus, 2);
        assert_eq!(budget(Some(4), 0, 2).cpus, 4);
        let placed = budget(None, 0, 5).placement;
        assert_eq!(placed[0].virtual_cpus, [4, 3]);
        assert_eq!(placed[1].virtual_cpus, [2, 1]);
        assert_eq!((&placed[0].other_threads[..], placed[0].side), (&[0][..], Some(Side::Client)));
    }

    #[test]
    fn every_guest_of_every_pair_counts() {
        let of = |cpus: u32| Budget::new(4, None, 8, &cores(&(0..cpus).collect::<Vec<_>>(), &[]));
        let why = of(16).shortage().unwrap();
        assert_eq!(why, "16 cores of the host may be used, and 8 spinning guests need 17");
        assert!(of(17).shortage().is_none());
        let placed = of(17).placement;
        assert_eq!((placed.len(), placed[7].pair), (8, Some(4)));
        assert_eq!((placed[7].side, &placed[7].virtual_cpus[..]), (Some(Side::Server), &[9][..]));
    }

    #[test]
    fn threads_of_one_core_are_one_core() {
        let siblings = [vec![0, 4], vec![1, 5], vec![2, 6], vec![3, 7]];
        let all: Vec<u32> = (0..8).collect();
        let budget = Budget::new(1, None, 0, &cores(&all, &siblings));
        assert_eq!((budget.cores, budget.cpus), (4, 1));
        assert_eq!(budget.placement[0].virtual_cpus, [3]);
        assert_eq!(budget.placement[0].other_threads, [0, 1, 4, 5]);
    }

    proptest! {
        #[test]
        fn pinned_threads_have_cpus_of_their_own(
            cpus in prop::collection::btree_set(0u32..64, 0..40),
            wanted in prop::option::of(1u32..9),
            packet_threads in 0u32..3, width in 1u32..3, pairs in 1u32..5,
        ) {
            let allowed: Vec<u32> = cpus.iter().copied().collect();
            let siblings: Vec<Vec<u32>> =
                (0..64 / width).map(|core| (core * width..(core + 1) * width).collect()).collect();
            let topology = cores(&allowed, &siblings);
            let budget = Budget::new(pairs, wanted, packet_threads, &topology);
            prop_assert!(budget.cpus >= 1 && budget.cpus == wanted.unwrap_or(budget.cpus));
            let mut pinned: Vec<u32> =
                budget.placement.iter().flat_map(|one| one.virtual_cpus.clone()).collect();
            prop_assert!(pinned.is_empty() || pinned.len() as u32 == 2 * pairs * budget.cpus);
            prop_assert!(pinned.iter().all(|cpu| allowed.contains(cpu)));
            pinned.sort_unstable();
            let distinct = pinned.windows(2).all(|pair| pair[0] != pair[1]);
            prop_assert!(distinct);
            for one in &budget.placement {
                prop_assert_eq!(one.virtual_cpus.is_empty(), one.other_threads.is_empty());
                prop_assert!(one.other_threads.iter().all(|cpu| !pinned.contains(cpu)));
            }
        }
    }
}
