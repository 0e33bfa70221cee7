//! Lists and masks of CPUs in the kernel's two text forms. Lists are read by
//! [`parse_list`](crate::hostfiles::parse_list).

/// CPUs, in any order, as the list `0-3,8`.
pub fn list(cpus: &[u32]) -> String {
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

/// The CPUs of a mask, such as `ff,00000001`: groups of 32 bits, the highest first. Absent if the
/// text is no mask, or longer than 65536 bits.
pub fn parse_mask(text: &str) -> Option<Vec<u32>> {
    const GROUPS_MAX: usize = 1 << 11;
    let groups: Vec<&str> = text.trim().split(',').collect();
    if groups.len() > GROUPS_MAX {
        return None;
    }
    let mut cpus = vec![];
    for (index, group) in groups.iter().rev().enumerate() {
        if group.is_empty() || group.len() > 8 || group.starts_with('+') {
            return None;
        }
        let bits = u32::from_str_radix(group, 16).ok()?;
        let base = index as u32 * 32;
        cpus.extend((0..32).filter(|bit| bits & (1 << bit) != 0).map(|bit| base + bit));
    }
    Some(cpus)
}

/// CPUs as a mask with as few digits as possible.
pub fn mask(cpus: &[u32]) -> String {
    let mut groups = vec![0u32; cpus.iter().max().map_or(1, |max| *max as usize / 32 + 1)];
    cpus.iter().for_each(|cpu| groups[*cpu as usize / 32] |= 1 << (cpu % 32));
    let (highest, others) = groups.split_last().unwrap_or((&0, &[]));
    let others = others.iter().rev().map(|bits| format!(",{bits:08x}"));
    format!("{highest:x}") + &others.collect::<String>()
}

/// CPUs as a mask in the form of `like`: the same number of groups and digits, as the kernel writes
/// it. Absent if `like` is no mask, or too short for the CPUs.
pub fn mask_like(like: &str, cpus: &[u32]) -> Option<String> {
    parse_mask(like)?;
    let groups: Vec<&str> = like.trim().split(',').collect();
    let mut bits = vec![0u32; groups.len()];
    for cpu in cpus {
        *bits.get_mut((cpu / 32) as usize)? |= 1 << (cpu % 32);
    }
    let texts: Vec<String> = groups
        .iter()
        .zip(bits.iter().rev())
        .map(|(group, bits)| format!("{bits:0digits$x}", digits = group.len()))
        .collect();
    Some(texts.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hostfiles::parse_list;
    use proptest::prelude::*;

    #[test]
    fn lists_and_masks_are_those_of_the_kernel() {
        assert_eq!(list(&[8, 0, 1, 2, 3]), "0-3,8");
        assert_eq!(list(&[]), "");
        assert_eq!(parse_mask("ff,00000001\n"), Some(vec![0, 32, 33, 34, 35, 36, 37, 38, 39]));
        assert_eq!(parse_mask("00000001,00000000"), Some(vec![32]));
        for text in ["x", "", "1,", "123456789", "+1", &"0,".repeat(3_000)] {
            assert_eq!(parse_mask(text), None, "{text}");
        }
        assert_eq!(mask(&[0, 2]), "5");
        assert_eq!(mask(&[]), "0");
        assert_eq!(mask(&[0, 33]), "2,00000001");
        assert_eq!(mask_like("ff,ffffffff", &[0, 33]).as_deref(), Some("02,00000001"));
        assert_eq!(mask_like("3", &[1]).as_deref(), Some("2"));
        assert_eq!(mask_like("3", &[32]), None, "the mask has 32 CPUs");
    }

    proptest! {
        #[test]
        fn any_set_of_cpus_is_read_back(cpus in prop::collection::btree_set(0u32..300, 0..40)) {
            let cpus: Vec<u32> = cpus.into_iter().collect();
            prop_assert_eq!(parse_list(&list(&cpus)), Some(cpus.clone()));
            prop_assert_eq!(parse_mask(&mask(&cpus)), Some(cpus.clone()));
            let wide = mask_like(&["ffffffff"; 10].join(","), &cpus).unwrap();
            prop_assert_eq!(parse_mask(&wide), Some(cpus));
        }
    }
}
