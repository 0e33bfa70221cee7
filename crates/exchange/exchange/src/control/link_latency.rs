//! The latencies of a node's links, as it reports them to an observer.

use nm_codec::{DecodeError, Put, Reader};

use crate::network::{NODES_MAX, NodeId};

/// Links of one answer: a node is linked to those of two classes at most.
pub const WORK_LINKS_MAX: usize = 2 * NODES_MAX;

/// The latency of the link from the node that reports it to another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkLatency {
    /// The other node.
    pub peer: NodeId,
    /// Latency of one way, ns, as [`Link::latency_ns`](crate::link::Link::latency_ns) has it: half
    /// of the smallest round trip of a TCP connection, so an estimate, which is wrong by half of
    /// the difference where the two ways differ; 0 if both nodes are on one host.
    pub latency_ns: u64,
}

/// Appends latencies, at most [`WORK_LINKS_MAX`].
pub fn write_all(links: &[LinkLatency], out: &mut Vec<u8>) {
    let links = &links[..links.len().min(WORK_LINKS_MAX)];
    out.put_u16(links.len() as u16);
    for LinkLatency { peer, latency_ns } in links {
        peer.write(out);
        out.put_u64(*latency_ns);
    }
}

/// Reads what [`write_all`] appended.
///
/// # Errors
/// If it is not that.
pub fn read_all(reader: &mut Reader<'_>) -> Result<Vec<LinkLatency>, DecodeError> {
    let count = reader.u16("links")?;
    if usize::from(count) > WORK_LINKS_MAX {
        return Err(DecodeError::invalid("links", "are more than an answer has"));
    }
    let one = |_| {
        let peer = NodeId::read(reader)?;
        Ok(LinkLatency { peer, latency_ns: reader.u64("latency_ns")? })
    };
    (0..count).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Role;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn latencies_are_read_back_and_cut_ones_refused(
            links in prop::collection::vec(
                (prop::sample::select(Role::ALL), any::<u16>(), any::<u64>()),
                0..9,
            ),
            noise in prop::collection::vec(any::<u8>(), 0..60),
        ) {
            let links = links.into_iter();
            let one = |(class, index, latency_ns): (Role, _, _)| LinkLatency {
                peer: class.node(index),
                latency_ns,
            };
            let links: Vec<LinkLatency> = links.map(one).collect();
            let mut bytes = vec![];
            write_all(&links, &mut bytes);
            let mut reader = Reader::new(&bytes);
            prop_assert_eq!(read_all(&mut reader), Ok(links));
            prop_assert!(reader.is_empty());
            prop_assert!(read_all(&mut Reader::new(&bytes[..bytes.len() - 1])).is_err());
            let _ = read_all(&mut Reader::new(&noise));
        }
    }

    #[test]
    fn an_answer_has_a_limited_number_of_links() {
        let one = LinkLatency { peer: Role::Router.node(1), latency_ns: 2 };
        let mut bytes = vec![];
        write_all(&[one; WORK_LINKS_MAX + 1], &mut bytes);
        assert_eq!(read_all(&mut Reader::new(&bytes)).map(|it| it.len()), Ok(WORK_LINKS_MAX));
        bytes[..2].copy_from_slice(&(WORK_LINKS_MAX as u16 + 1).to_le_bytes());
        bytes.extend_from_slice(&[0; 11]);
        assert!(read_all(&mut Reader::new(&bytes)).is_err());
        let page = include_str!("../../../../../docs/limits.md");
        assert!(page.contains(&format!("| links | {WORK_LINKS_MAX} |")));
    }
}
