//! Which nodes are connected to which: what gateways and routers report to control.

use std::collections::BTreeMap;

use nm_codec::DecodeError;
use nm_wire::Member;

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

    /// The message that has it.
    pub fn message(&self) -> nm_wire::MembershipReport {
        let member = |(node, start): (&NodeId, &u64)| Member { node: *node, start: *start };
        nm_wire::MembershipReport {
            nodes: self.nodes.iter().map(member).collect(),
            map: self.routes.map.content(),
            leaders: self.routes.led_cells(),
        }
    }

    /// The report of a message.
    ///
    /// # Errors
    /// If its map is none.
    pub fn of(message: &nm_wire::MembershipReport) -> Result<MembershipReport, DecodeError> {
        let nm_wire::MembershipReport { nodes, map, leaders } = message;
        let nodes = nodes.iter().map(|member| (member.node, member.start)).collect();
        Ok(MembershipReport { nodes, routes: RoutingTable::of(map, leaders)? })
    }

    /// The report that these bytes are.
    ///
    /// # Errors
    /// If they are not one.
    pub fn decode(bytes: &[u8]) -> Result<MembershipReport, DecodeError> {
        MembershipReport::of(&nm_wire::decode(bytes)?)
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
            let bytes = nm_wire::encode(&report.message());
            prop_assert_eq!(MembershipReport::decode(&bytes), Ok(report));
            prop_assert!(MembershipReport::decode(&bytes[..bytes.len() - 1]).is_err());
            let _ = MembershipReport::decode(&noise);
        }
    }
}
