//! A list of CPUs as an argument.

use std::str::FromStr;

use nm_model::limits::CPUS_MAX;
use nm_sys::hostfiles::parse_list;

/// CPUs in the order in which they were given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuList(pub Vec<u32>);

/// Why a text is not a [`CpuList`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a list of CPUs such as 0-3,8, with at most {CPUS_MAX} numbers")]
pub struct CpuListError(String);

/// Reads `0-3,8`.
impl FromStr for CpuList {
    type Err = CpuListError;

    fn from_str(text: &str) -> Result<CpuList, CpuListError> {
        // The kernel reads `0,,1`; from a person it is a slip.
        let has_no_gap = text.split(',').all(|part| !part.trim().is_empty());
        match parse_list(text).filter(|_| has_no_gap) {
            Some(cpus) if !cpus.is_empty() && cpus.len() <= CPUS_MAX => Ok(CpuList(cpus)),
            _ => Err(CpuListError(text.chars().take(80).collect())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_read_or_refused() {
        assert_eq!("0-2,5".parse(), Ok(CpuList(vec![0, 1, 2, 5])));
        for text in ["", "x", "3-", "1;2", "0-1024", "0,,1", "0,", ","] {
            let error = text.parse::<CpuList>().unwrap_err().to_string();
            assert!(error.contains("0-3,8"), "{error}");
        }
    }
}
