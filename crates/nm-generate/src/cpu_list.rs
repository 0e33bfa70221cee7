//! Lists of CPUs in the kernel's form.

/// CPUs, in any order, as `0-3,8`.
pub(crate) fn cpu_list(cpus: &[u32]) -> String {
    let mut sorted = cpus.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let mut parts: Vec<(u32, u32)> = vec![];
    for cpu in sorted {
        match parts.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(cpu) => *last = cpu,
            _ => parts.push((cpu, cpu)),
        }
    }
    let text = |(first, last): (u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    parts.into_iter().map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use nm_sys::hostfiles::parse_list;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_list_is_read_back_as_the_same_cpus(
            cpus in proptest::collection::btree_set(0u32..300, 0..40),
        ) {
            let cpus: Vec<u32> = cpus.into_iter().collect();
            prop_assert_eq!(parse_list(&cpu_list(&cpus)), Some(cpus));
        }
    }

    #[test]
    fn neighbours_are_joined() {
        assert_eq!(cpu_list(&[8, 0, 1, 2, 3]), "0-3,8");
        assert_eq!(cpu_list(&[]), "");
    }
}
