//! Lists and masks of CPUs in the kernel's two forms.

/// `0-3,8`: a list as the kernel writes it.
pub fn list(cpus: &[u32]) -> String {
    let mut cpus = cpus.to_vec();
    cpus.sort_unstable();
    cpus.dedup();
    let mut parts: Vec<(u32, u32)> = vec![];
    for cpu in cpus {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => parts.push((cpu, cpu)),
        }
    }
    let text = |(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    parts.iter().map(text).collect::<Vec<_>>().join(",")
}

/// The CPUs of a mask, such as `ff,00000001`: groups of 32 bits, the highest first. Absent if the
/// text is no mask.
pub fn parse_mask(text: &str) -> Option<Vec<u32>> {
    let groups: Vec<&str> = text.trim().split(',').collect();
    let mut cpus = vec![];
    for (index, group) in groups.iter().rev().enumerate() {
        if group.is_empty() || group.len() > 8 {
            return None;
        }
        let bits = u32::from_str_radix(group, 16).ok()?;
        let base = u32::try_from(index).ok()?.checked_mul(32)?;
        cpus.extend((0..32).filter(|bit| bits & (1 << bit) != 0).map(|bit| base + bit));
    }
    Some(cpus)
}

/// A mask in the form of `like`: the same number of groups and digits, as the kernel writes it.
/// Absent if `like` is no mask, or too short for the CPUs.
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
    use nm_sys::hostfiles::parse_list;
    use proptest::prelude::*;

    #[test]
    fn lists_and_masks_are_those_of_the_kernel() {
        assert_eq!(list(&[8, 0, 1, 2, 3]), "0-3,8");
        assert_eq!(list(&[]), "");
        assert_eq!(parse_mask("ff,00000001\n"), Some(vec![0, 32, 33, 34, 35, 36, 37, 38, 39]));
        assert_eq!(parse_mask("x"), None);
        assert_eq!(parse_mask(""), None);
        assert_eq!(mask_like("ff,ffffffff", &[0, 33]).as_deref(), Some("02,00000001"));
        assert_eq!(mask_like("3", &[1]).as_deref(), Some("2"));
        assert_eq!(mask_like("3", &[32]), None, "the mask has 32 CPUs");
    }

    proptest! {
        #[test]
        fn any_set_of_cpus_is_read_back(cpus in prop::collection::btree_set(0u32..96, 0..20)) {
            let cpus: Vec<u32> = cpus.into_iter().collect();
            prop_assert_eq!(parse_list(&list(&cpus)), Some(cpus.clone()));
            let mask = mask_like("ffffffff,ffffffff,ffffffff", &cpus).unwrap();
            prop_assert_eq!(parse_mask(&mask), Some(cpus));
        }
    }
}
