//! The times and sizes of a recorded flow of orders (`exchange run --record-flow`), for programs
//! that know nothing of orders.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

/// First bytes of a recorded flow.
const FORMAT: &[u8] = b"nmflow01";

/// Bytes of a request before its command.
const HEAD_BYTES: usize = 22;

/// A request: when it is sent, and how long it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Since the beginning of the flow, rising.
    pub at_ns: u64,
    pub size_bytes: u32,
}

/// Reads the requests of a recorded flow.
pub fn of_flow(path: &Path) -> Result<Vec<Request>> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let found = requests(&bytes).with_context(|| format!("{}", path.display()))?;
    ensure!(!found.is_empty(), "{} has no request", path.display());
    Ok(found)
}

fn requests(bytes: &[u8]) -> Result<Vec<Request>> {
    let Some(mut rest) = bytes.strip_prefix(FORMAT) else { bail!("no flow of this version") };
    let mut found = vec![];
    while !rest.is_empty() {
        let head = rest.get(..HEAD_BYTES).context("it ends within a request")?;
        let at_ns = u64::from_le_bytes(head[..8].try_into()?);
        let size_bytes = u32::from_le_bytes(head[16..20].try_into()?);
        let command_bytes = usize::from(head[21]);
        rest = rest.get(HEAD_BYTES + command_bytes..).context("it ends within a command")?;
        found.push(Request { at_ns, size_bytes });
    }
    Ok(found)
}

/// The form that a peer reads: of each request the time (64 bits) and the size (32 bits),
/// little-endian.
pub fn bytes(requests: &[Request]) -> Vec<u8> {
    let each =
        |one: &Request| [&one.at_ns.to_le_bytes()[..], &one.size_bytes.to_le_bytes()].concat();
    requests.iter().flat_map(each).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_has_its_times_and_sizes_and_a_cut_one_is_refused() {
        let mut flow = FORMAT.to_vec();
        for (at_ns, size_bytes, command) in [(7u64, 200u32, &b"abc"[..]), (9, 80_000, b"")] {
            flow.extend(at_ns.to_le_bytes());
            flow.extend([0; 8]);
            flow.extend(size_bytes.to_le_bytes());
            flow.extend([0, command.len() as u8]);
            flow.extend(command);
        }
        let found = requests(&flow).unwrap();
        let wanted =
            [(7, 200), (9, 80_000)].map(|(at_ns, size_bytes)| Request { at_ns, size_bytes });
        assert_eq!(found, wanted);
        assert_eq!(bytes(&found)[..12], [7, 0, 0, 0, 0, 0, 0, 0, 200, 0, 0, 0]);
        for cut in [flow.len() - 1, FORMAT.len() + HEAD_BYTES + 1, 3] {
            assert!(requests(&flow[..cut]).is_err());
        }
    }
}
