//! Router: sends each request to the mediator that leads its instrument's cell.
//!
//! Where there is control, it forwards the gateways' membership reports, and control's routing
//! table. So a router that has just started knows of a leader whose term is too old. Gateways and
//! mediators know the end of a move before its map comes, so they get no map for each move.

use std::collections::BTreeMap;

use nm_model::agent::Failure;
use nm_wire::{FrameMut, Kind, Leader, move_order, move_parts, move_progress, presence, request};

use crate::control::{CellLeader, InstrumentMap, MembershipReport, RoutingTable, is_superseded};
use crate::network::{CONTROL, Network, NodeId, Role};

use crate::node::control::{answer_links, send_routes};
use crate::node::runtime::behaviour::Behaviour;
use crate::node::runtime::links::{LinkId, Links};
use crate::node::runtime::peer::{Peer, PeerError};

/// Least time between two routing tables to all nodes, ns: where many instruments move, each of
/// them would be a table to each node.
const ROUTES_PAUSE_NS: u64 = 200_000_000;

/// A router.
#[derive(Debug)]
pub struct Router {
    /// The map, and the leader of each cell as far as it is known.
    routes: RoutingTable,
    /// By gateway, the nodes that it reported and the numbers of their starts.
    reports: BTreeMap<u16, BTreeMap<NodeId, u64>>,
    /// The nodes that have a replica of control; none if there is no control.
    voters: Vec<NodeId>,
    /// Whether a report to them is due.
    is_report_due: bool,
    /// Where a map came from that other nodes are to get, and before which time they do not, ns.
    unsent_from: Option<LinkId>,
    next_routes_ns: u64,
    requests: u64,
}

impl Router {
    /// A router that knows no leader yet.
    pub fn new(network: &Network) -> Router {
        let has_control = network.has_control();
        Router {
            routes: RoutingTable::new(InstrumentMap::of(network)),
            reports: BTreeMap::new(),
            voters: if has_control { network.replicas(CONTROL) } else { vec![] },
            is_report_due: false,
            unsent_from: None,
            next_routes_ns: 0,
            requests: 0,
        }
    }

    /// A mediator leads a cell, as it announces itself or control does. Requests on their way to
    /// the leader before are lost, so the gateways are notified.
    fn update_leader(
        &mut self,
        links: &mut Links,
        cell: u16,
        leader: CellLeader,
        is_by_control: bool,
    ) {
        if !may_have(&self.routes.map, cell) {
            return;
        }
        let is_running = |leader: &CellLeader| {
            let start = links.start_of(Role::Mediator.node(leader.mediator));
            start == Some(leader.start)
        };
        let is_accepted = match self.routes.leaders.get(&cell) {
            // It announces itself again: requests on their way to it may be lost.
            Some(known) if !is_by_control && known.mediator == leader.mediator => true,
            Some(known) if is_by_control => leader.term > known.term,
            Some(known) => leader.term == known.term || is_superseded(known, &leader, is_running),
            None => true,
        };
        if is_accepted {
            self.is_report_due = true;
            self.routes.leaders.insert(cell, leader);
            for gateway in links.all_to(Role::Gateway) {
                links.send(gateway, &Leader { cell, term: leader.term });
            }
        }
    }

    fn forward_to_leader(&mut self, links: &mut Links, cell: u16, bytes: &[u8]) {
        // Without a leader it is dropped, and resent by its gateway when there is one.
        let leader = self.routes.leaders.get(&cell);
        let link = leader.and_then(|l| links.to(Role::Mediator.node(l.mediator)));
        if let Some(link) = link {
            links.forward(link, bytes);
        }
    }

    /// Takes over the routing table of control, of a mediator with a newer map than a request, or
    /// of a gateway; whether its map was newer. A newer one is sent to all nodes but where it came
    /// from: that is how control learns of one that its log has lost, so none of these needs a
    /// report.
    fn update(&mut self, links: &mut Links, from: LinkId, routes: RoutingTable) -> bool {
        let is_newer = self.routes.map.is_older_than(&routes.map);
        if is_newer {
            self.routes.map = routes.map;
            let map = &self.routes.map;
            self.routes.leaders.retain(|cell, _| may_have(map, *cell));
            self.unsent_from = Some(from);
            self.send_due_routes(links);
            links.update_nodes(&self.routes.map);
        }
        for (cell, leader) in routes.leaders {
            self.update_leader(links, cell, leader, true);
        }
        is_newer
    }

    /// A gateway reports: control is to know of other nodes than before. A map that the gateway
    /// had before this router may be one that control's log has lost.
    fn on_report(
        &mut self,
        links: &mut Links,
        (from, gateway): (LinkId, u16),
        report: MembershipReport,
    ) {
        let MembershipReport { nodes, routes } = report;
        let is_newer = self.update(links, from, routes);
        if is_newer || self.reports.get(&gateway) != Some(&nodes) {
            self.is_report_due = true;
            self.reports.insert(gateway, nodes);
        }
    }

    /// Sends all nodes the map, if there is a new one and the last one was long enough ago.
    fn send_due_routes(&mut self, links: &mut Links) {
        if links.now_ns >= self.next_routes_ns
            && let Some(from) = self.unsent_from.take()
        {
            self.next_routes_ns = links.now_ns + ROUTES_PAUSE_NS;
            let mut all = [links.all_to(Role::Gateway), links.all_to(Role::Mediator)].concat();
            all.retain(|to| *to != from);
            self.send_routes(links, &all);
        }
    }

    fn send_routes(&self, links: &mut Links, receivers: &[LinkId]) {
        if self.routes.map.version() > 0 {
            send_routes(links, receivers, &self.routes);
        }
    }

    /// Sends control what is known here of the membership.
    fn send_report(&self, links: &mut Links) {
        let own = links.connected_nodes();
        let reported = self.reports.values().flatten();
        let reported = reported.map(|(node, start)| (*node, *start));
        let nodes = own.chain(reported).collect();
        let mut report = MembershipReport { nodes, routes: self.routes.clone() };
        // A leader whose process has ended is of no interest.
        report.routes.leaders.retain(|_, leader| {
            report.nodes.get(&Role::Mediator.node(leader.mediator)) == Some(&leader.start)
        });
        let voters: Vec<LinkId> = self.voters.iter().filter_map(|it| links.to(*it)).collect();
        links.send_to_all(voters, &report.message());
    }
}

/// Whether there may be such a cell: the map has it, or it was added and its leader is known before
/// the map that has it. What a map lacks that is older than the cell says nothing.
fn may_have(map: &InstrumentMap, cell: u16) -> bool {
    map.has_cell(cell) || cell >= map.cells() && cell != CONTROL
}

impl Behaviour for Router {
    fn on_connected(&mut self, links: &mut Links, peer: Peer) {
        if let Peer::Node(node) = peer
            && let Some(to) = links.to(node)
        {
            self.send_routes(links, &[to]);
            if node.class == Role::Gateway {
                for (cell, leader) in &self.routes.leaders {
                    links.send(to, &Leader { cell: *cell, term: leader.term });
                }
            }
            self.is_report_due = true;
        }
    }

    fn on_disconnected(&mut self, _links: &mut Links, peer: Peer, _id: LinkId) {
        if let Peer::Node(NodeId { class: Role::Gateway, index }) = peer {
            self.reports.remove(&index);
        }
        self.is_report_due = true;
    }

    fn on_frame(
        &mut self,
        links: &mut Links,
        from: (LinkId, Peer),
        frame: &mut FrameMut<'_>,
    ) -> Result<(), PeerError> {
        let (peer, kind) = (from.1, frame.kind());
        let undecodable = PeerError::decode(peer, kind);
        match (peer, kind) {
            (Peer::Node(NodeId { class: Role::Gateway, .. }), Kind::Request) => {
                self.requests += 1;
                nm_wire::stamp(frame.bytes, 1, links.now_ns);
                let request = request::View::of(frame.shared()).map_err(undecodable)?;
                self.forward_to_leader(links, request.cell(), frame.bytes);
            }
            (Peer::Node(NodeId { class: Role::Gateway, .. }), Kind::Presence) => {
                let presence = presence::View::of(frame.shared()).map_err(undecodable)?;
                self.forward_to_leader(links, presence.cell(), frame.bytes);
            }
            (Peer::Node(NodeId { class: Role::Mediator, index: mediator }), Kind::Leader) => {
                let start = links.start_of(Role::Mediator.node(mediator)).unwrap_or_default();
                let Leader { cell, term } = frame.read().map_err(undecodable)?;
                self.update_leader(links, cell, CellLeader { mediator, term, start }, false);
            }
            (
                Peer::Node(NodeId { class: Role::Gateway, index: gateway }),
                Kind::MembershipReport,
            ) => {
                let report = MembershipReport::decode(frame.shared().message);
                self.on_report(links, (from.0, gateway), report.map_err(undecodable)?);
            }
            (Peer::Node(NodeId { class: Role::Mediator, .. }), Kind::RoutingTable) => {
                let routes = RoutingTable::decode(frame.shared().message).map_err(undecodable)?;
                self.update(links, from.0, routes);
            }
            // From the leader of control, or that of a cell, to that of a cell.
            (Peer::Node(NodeId { class: Role::Mediator, .. }), Kind::MoveOrder) => {
                let order = move_order::View::of(frame.shared()).map_err(undecodable)?;
                self.forward_to_leader(links, order.from(), frame.bytes);
            }
            (Peer::Node(NodeId { class: Role::Mediator, .. }), Kind::MoveParts) => {
                let parts = move_parts::View::of(frame.shared()).map_err(undecodable)?;
                self.forward_to_leader(links, parts.to(), frame.bytes);
            }
            (Peer::Node(NodeId { class: Role::Mediator, .. }), Kind::MoveProgress) => {
                let progress = move_progress::View::of(frame.shared()).map_err(undecodable)?;
                self.forward_to_leader(links, progress.from(), frame.bytes);
            }
            (Peer::Node(NodeId { class: Role::Mediator, .. }), Kind::MoveEnded) => {
                for to in [links.all_to(Role::Gateway), links.all_to(Role::Mediator)].concat() {
                    links.forward(to, frame.bytes);
                }
            }
            (Peer::Observer | Peer::Operator, Kind::AdminRequest) => {
                let work = (Role::Router, links.work_until_now());
                return answer_links(links, from, frame.shared(), work);
            }
            _ => return Err(PeerError::UnexpectedFrame { peer, kind, role: Role::Router }),
        }
        Ok(())
    }

    fn on_iteration(&mut self, links: &mut Links) -> Result<(), Failure> {
        self.send_due_routes(links);
        if std::mem::take(&mut self.is_report_due) && !self.voters.is_empty() {
            self.send_report(links);
        }
        Ok(())
    }

    /// At once if a link failed after the iteration.
    fn deadline_ns(&self, _now_ns: u64) -> Option<u64> {
        let report_ns = self.is_report_due.then_some(0);
        let routes_ns = self.unsent_from.map(|_| self.next_routes_ns);
        report_ns.or(routes_ns)
    }

    fn is_ready(&self) -> bool {
        self.routes.leaders.len() == self.routes.map.cell_count()
    }

    fn counts(&self) -> (u64, u64) {
        (self.requests, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Placement;
    use crate::network::Durability;
    use crate::testing::TestRing;

    /// A router that starts again may learn the leader of an added cell first, then a map that is
    /// older than the cell, and then the present one. Leaders announce themselves once.
    #[test]
    fn the_leader_of_an_added_cell_outlives_a_map_that_is_older_than_the_cell() {
        let ring = TestRing::new("1-1-2-1", Durability::None);
        let mut links = Links::simulated(&ring.network, Role::Router.node(0), 1);
        let mut router = Router::new(&ring.network);
        let leader = CellLeader { mediator: 1, term: 1, start: 7 };
        let mut older = router.routes.clone();
        older.map.assign(5, Placement { cell: 1, epoch: 1 });
        router.update_leader(&mut links, 2, leader, false);
        assert!(router.update(&mut links, LinkId::none(), older), "it is newer than its own");
        assert_eq!(router.routes.leaders.get(&2), Some(&leader));
    }
}
