//! The CPUs of the threads of a layout, by the topology that the kernel shows.

use nm_model::compute::Layout;

/// Most threads of a layout.
pub const THREADS_MAX: u64 = 1_024;

/// Why a layout is not possible here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// Too few cores.
    #[error("the layout {layout} needs {needed} cores, and {found} may be used")]
    TooFewCores {
        /// The layout.
        layout: Layout,
        /// Cores of the layout.
        needed: u32,
        /// Cores there are.
        found: u32,
    },
    /// More threads than the limit.
    #[error("the layout {layout} has {threads} threads here, and at most {THREADS_MAX} may run")]
    TooManyThreads {
        /// The layout.
        layout: Layout,
        /// Its threads on this machine.
        threads: u64,
    },
    /// A CPU that the process may not use.
    #[error("CPU {cpu} may not be used by this process")]
    CpuNotAllowed {
        /// The CPU.
        cpu: u32,
    },
}

/// The CPUs that may be used, core by core: those of `wanted` in that order, or all of `allowed`,
/// the highest first, because interrupts and housekeeping threads usually run on the lowest.
/// `siblings` are the groups of CPUs that share a core.
///
/// # Errors
/// [`LayoutError::CpuNotAllowed`] for one of `wanted`.
pub fn cores(
    allowed: &[u32],
    siblings: &[Vec<u32>],
    wanted: &[u32],
) -> Result<Vec<Vec<u32>>, LayoutError> {
    if let Some(&cpu) = wanted.iter().find(|cpu| !allowed.contains(cpu)) {
        return Err(LayoutError::CpuNotAllowed { cpu });
    }
    let mut order = match wanted {
        [] => allowed.iter().rev().copied().collect(),
        wanted => wanted.to_vec(),
    };
    let mut cores = vec![];
    while let Some(&first) = order.first() {
        let group = siblings.iter().find(|group| group.contains(&first));
        let is_of_core = |cpu: &u32| *cpu == first || group.is_some_and(|all| all.contains(cpu));
        let mut core: Vec<u32> = vec![];
        for cpu in order.iter().copied().filter(is_of_core) {
            if !core.contains(&cpu) {
                core.push(cpu);
            }
        }
        order.retain(|cpu| !core.contains(cpu));
        cores.push(core);
    }
    Ok(cores)
}

/// The CPU of each thread of `layout` on these cores: the threads of a core are spread over its
/// CPUs in turn.
///
/// # Errors
/// If there are too few cores, or too many threads.
pub fn place(layout: Layout, cores: &[Vec<u32>]) -> Result<Vec<u32>, LayoutError> {
    let found = u32::try_from(cores.len()).unwrap_or(u32::MAX);
    let (per_core, needed) = (layout.threads_per_core.on(found), layout.cores.on(found));
    if needed > found || needed == 0 {
        return Err(LayoutError::TooFewCores { layout, needed: needed.max(1), found });
    }
    let threads = u64::from(per_core) * u64::from(needed);
    if threads > THREADS_MAX {
        return Err(LayoutError::TooManyThreads { layout, threads });
    }
    let used = &cores[..needed as usize];
    Ok(used.iter().flat_map(|core| core.iter().copied().cycle().take(per_core as usize)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn layout(text: &str) -> Layout {
        text.parse().unwrap()
    }

    #[test]
    fn threads_of_a_core_use_all_of_its_cpus_before_they_share_one() {
        // Two cores of two CPUs each, numbered as Linux often does.
        let siblings = [vec![0, 2], vec![1, 3]];
        let cores = cores(&[0, 1, 2, 3], &siblings, &[]).unwrap();
        assert_eq!(cores, [[3, 1], [2, 0]]);
        let place = |text| place(layout(text), &cores).unwrap();
        assert_eq!(place("1x1"), [3]);
        assert_eq!(place("1xN"), [3, 2]);
        assert_eq!(place("Nx1"), [3, 1]);
        assert_eq!(place("2xN"), [3, 1, 2, 0]);
        assert_eq!(place("4xN"), [3, 1, 3, 1, 2, 0, 2, 0]);
    }

    #[test]
    fn wanted_cpus_are_used_in_their_order() {
        let cores = |wanted: &[u32]| cores(&[0, 1, 2, 3], &[vec![0, 1]], wanted);
        assert_eq!(cores(&[2, 0, 2]).unwrap(), [[2], [0]]);
        assert_eq!(cores(&[1, 3, 0]).unwrap(), [vec![1, 0], vec![3]]);
        assert_eq!(cores(&[7]), Err(LayoutError::CpuNotAllowed { cpu: 7 }));
    }

    #[test]
    fn a_layout_beyond_the_machine_or_the_limit_is_refused() {
        let error = place(layout("1x3"), &[vec![0], vec![1]]).unwrap_err();
        assert_eq!(error.to_string(), "the layout 1x3 needs 3 cores, and 2 may be used");
        let cores: Vec<Vec<u32>> = (0..300).map(|cpu| vec![cpu]).collect();
        assert_eq!(place(layout("1xN"), &cores).unwrap().len(), 300);
        let error = place(layout("4xN"), &cores).unwrap_err();
        assert!(matches!(error, LayoutError::TooManyThreads { threads: 1_200, .. }), "{error}");
        assert!(place(layout("1x1"), &[]).is_err());
    }

    proptest! {
        #[test]
        fn every_core_has_its_threads_and_its_cpus_an_equal_share(
            width in 1_u32..5, count in 1_u32..20, per_core in 1_u32..9, used in 1_u32..20,
        ) {
            let allowed: Vec<u32> = (0..count * width).collect();
            let siblings: Vec<Vec<u32>> =
                allowed.chunks(width as usize).map(<[u32]>::to_vec).collect();
            let cores = cores(&allowed, &siblings, &[]).unwrap();
            prop_assert_eq!(cores.len() as u32, count);
            let used = used.min(count);
            let cpus = place(layout(&format!("{per_core}x{used}")), &cores).unwrap();
            prop_assert_eq!(cpus.len() as u32, per_core * used);
            for core in &cores[..used as usize] {
                let of = |cpu: &u32| cpus.iter().filter(|one| *one == cpu).count() as u32;
                let counts: Vec<u32> = core.iter().map(of).collect();
                prop_assert_eq!(counts.iter().sum::<u32>(), per_core);
                prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1);
            }
        }
    }
}
