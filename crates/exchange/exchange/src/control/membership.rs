//! Which nodes are connected to which: what gateways and routers report to control.

use std::collections::BTreeMap;

use nm_codec::{DecodeError, Put, Reader};

use crate::network::NodeId;

use super::routing::{InstrumentMap, RoutingTable};

/// What a gateway or router reports: a gateway the processors that it is connected to; a router, to
/// all mediators, what gateways reported, its own connections, and the leaders that it knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MembershipReport {
    /// Nodes that it is connected to, or that others reported, with the numbers of their starts.
    pub nodes: BTreeMap<NodeId, u64>,
    /// The leaders and the newest map that it knows.
    pub routes: RoutingTable,
}

impl MembershipReport {
    /// A report of no nodes.
    pub fn new(map: InstrumentMap) -> MembershipReport {
        MembershipReport { nodes: BTreeMap::new(), routes: RoutingTable::new(map) }
    }

    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![];
        out.put_u16(self.nodes.len() as u16);
        for (node, start) in &self.nodes {
            node.write(&mut out);
            out.put_u64(*start);
        }
        self.routes.write(&mut out);
        out
    }

    /// The report that these bytes are.
    ///
    /// # Errors
    /// If they are not one.
    pub fn decode(bytes: &[u8]) -> Result<MembershipReport, DecodeError> {
        let mut reader = Reader::new(bytes);
        let mut nodes = BTreeMap::new();
        for _ in 0..reader.u16("nodes")? {
            let node = NodeId::read(&mut reader)?;
            nodes.insert(node, reader.u64("start")?);
        }
        let routes = RoutingTable::read(&mut reader)?;
        reader.finish("routes")?;
        Ok(MembershipReport { nodes, routes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Role;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_report_is_read_back(
            nodes in prop::collection::btree_map(
                (prop::sample::select(Role::ALL), any::<u16>())
                    .prop_map(|(class, index)| class.node(index)),
                any::<u64>(),
                0..9,
            ),
            noise in prop::collection::vec(any::<u8>(), 0..60),
        ) {
            let routes = RoutingTable::new(InstrumentMap::new(3));
            let report = MembershipReport { nodes, routes };
            let bytes = report.encode();
            prop_assert_eq!(MembershipReport::decode(&bytes), Ok(report));
            prop_assert!(MembershipReport::decode(&bytes[..bytes.len() - 1]).is_err());
            let _ = MembershipReport::decode(&noise);
        }
    }
}
