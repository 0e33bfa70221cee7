//! A list of CPUs as an argument.

/// CPUs in the order in which they were given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuList(pub Vec<u32>);

/// Reads `0-3,8`.
pub fn parse(text: &str) -> Result<CpuList, String> {
    let error = || format!("`{text}` is not a list of CPUs such as 0-3,8");
    let list = nm_sys::hostfiles::parse_list(text).filter(|list| !list.is_empty());
    list.map(CpuList).ok_or_else(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_read_or_refused() {
        assert_eq!(parse("0-2,5"), Ok(CpuList(vec![0, 1, 2, 5])));
        for text in ["", "x", "3-", "1;2"] {
            assert!(parse(text).unwrap_err().contains("0-3,8"), "{text}");
        }
    }
}
