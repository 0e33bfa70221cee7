//! Lists and masks of CPUs in the kernel's forms.

/// `0-3,8`.
pub fn ranges(cpus: &[u32]) -> String {
    let mut sorted = cpus.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let mut parts: Vec<(u32, u32)> = vec![];
    for cpu in sorted {
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

/// The CPUs of a mask such as `ffffffff,00000003`; absent if it is none, or longer than 65536 bits.
pub fn of_mask(mask: &str) -> Option<Vec<u32>> {
    const DIGITS_MAX: usize = 1 << 14;
    let digits: Vec<u32> = mask
        .trim()
        .chars()
        .rev()
        .filter(|c| *c != ',')
        .map(|c| c.to_digit(16))
        .collect::<Option<_>>()?;
    if digits.is_empty() || digits.len() > DIGITS_MAX {
        return None;
    }
    let bits = |(at, digit): (usize, &u32)| {
        let digit = *digit;
        (0..4).filter(move |bit| digit & (1 << bit) != 0).map(move |bit| at as u32 * 4 + bit)
    };
    Some(digits.iter().enumerate().flat_map(bits).collect())
}

/// The mask of CPUs, for commands.
pub fn mask(cpus: &[u32]) -> String {
    let words = cpus.iter().max().map_or(1, |max| *max as usize / 32 + 1);
    let mut mask = vec![0u32; words];
    cpus.iter().for_each(|cpu| mask[*cpu as usize / 32] |= 1 << (cpu % 32));
    let texts: Vec<String> = mask.iter().rev().map(|word| format!("{word:08x}")).collect();
    let text = texts.join(",");
    if words == 1 { format!("{:x}", mask[0]) } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_and_ranges_are_the_kernels() {
        assert_eq!(ranges(&[8, 1, 0, 2, 3]), "0-3,8");
        assert_eq!(ranges(&[]), "");
        assert_eq!(of_mask("00000000,00000005"), Some(vec![0, 2]));
        assert_eq!(of_mask("00000001,00000000"), Some(vec![32]));
        assert_eq!(of_mask("xyz"), None);
        assert_eq!(of_mask(""), None);
        assert_eq!(mask(&[0, 2]), "5");
        assert_eq!(of_mask(&mask(&[0, 33, 64])), Some(vec![0, 33, 64]));
    }
}
