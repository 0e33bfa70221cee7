//! Router: each request goes to the mediator that leads its instrument's cell.
//!
//! Where there is control, it passes on what gateways see, and what control says of the map and of
//! leaders; so one that has just started knows of a leader that is too old.

use std::collections::BTreeMap;

use nm_model::agent::Failure;

use crate::control::{CellLeader, MembershipReport, RoutingTable};
use crate::link::{LinkError, ReceivedFrame};
use crate::network::{CONTROL, Durability, Network, Role};
use crate::wire::{self, FrameKind, Header};

use super::Behaviour;
use super::links::{LinkId, Links, Peer};

/// A router.
#[derive(Debug)]
pub struct Router {
    /// The map, and by cell who leads it; nobody as long as nobody has said so.
    routes: RoutingTable,
    /// What gateways see.
    views: BTreeMap<usize, MembershipReport>,
    /// Where control is: nodes that want to know what is seen here; nobody if there is none.
    voters: Vec<(Role, usize)>,
    /// Whether they are to be told.
    is_news: bool,
    requests: u64,
}

impl Router {
    /// A router that knows no leader yet.
    pub fn new(network: &Network) -> Router {
        let has_control = network.durability != Durability::None;
        Router {
            routes: RoutingTable::new(network.mediator.len()),
            views: BTreeMap::new(),
            voters: if has_control { network.replicas(CONTROL) } else { vec![] },
            is_news: false,
            requests: 0,
        }
    }

    /// Somebody leads a cell, as it says itself or control does. What was on its way to the one
    /// before is lost, so the gateways are told.
    fn leads(&mut self, links: &mut Links, cell: u16, leading: CellLeader, by_control: bool) {
        if cell >= self.routes.map.cells() {
            return;
        }
        let is_there = |leading: &CellLeader| {
            let start = links.start_of(Role::Mediator, usize::from(leading.mediator));
            start == Some(leading.start)
        };
        let is_news = match self.routes.leaders.get(&cell) {
            // What it says again itself: something on the way may be lost.
            Some(known) if !by_control && known.mediator == leading.mediator => true,
            Some(known) if by_control => leading.epoch > known.epoch,
            Some(known) => leading.epoch == known.epoch || known.yields_to(&leading, is_there),
            None => true,
        };
        if is_news {
            self.is_news = true;
            self.routes.leaders.insert(cell, leading);
            let header =
                Header { cell, map_version: leading.epoch, ..Header::new(FrameKind::Leader) };
            for gateway in links.all_to(Role::Gateway) {
                links.send(gateway, &header, &[], 0);
            }
        }
    }

    fn request(&mut self, links: &mut Links, frame: &mut ReceivedFrame<'_>) {
        // Without a leader it is lost, and sent again when there is one.
        let leading = self.routes.leaders.get(&frame.header.cell);
        let link = leading.and_then(|l| links.to(Role::Mediator, usize::from(l.mediator)));
        if let Some(link) = link {
            links.forward(link, frame.bytes);
        }
    }

    /// Takes what control says, or a mediator that has a newer map than a request.
    fn take(&mut self, links: &mut Links, said: &RoutingTable) {
        if self.routes.map.take(&said.map) {
            self.is_news = true;
            let all = [links.all_to(Role::Gateway), links.all_to(Role::Mediator)].concat();
            all.into_iter().for_each(|to| self.tell_map(links, to));
        }
        for (cell, leading) in &said.leaders {
            self.leads(links, *cell, *leading, true);
        }
    }

    fn tell_map(&self, links: &mut Links, to: LinkId) {
        if self.routes.map.epoch() > 0 {
            links.send(to, &Header::new(FrameKind::RoutingTable), &self.routes.bytes(), 0);
        }
    }

    /// Tells control what is seen here.
    fn tell_view(&self, links: &mut Links) {
        let near = links.seen();
        let told = self.views.values().flat_map(|view| &view.nodes).map(|(n, start)| (*n, *start));
        let mut view =
            MembershipReport { nodes: near.chain(told).collect(), routes: self.routes.clone() };
        // Of a leader that has gone nobody needs to hear.
        view.routes.leaders.retain(|_, leading| {
            view.nodes.get(&(Role::Mediator, leading.mediator)) == Some(&leading.start)
        });
        let bytes = view.bytes();
        for (role, index) in &self.voters {
            if let Some(voter) = links.to(*role, *index) {
                links.send(voter, &Header::new(FrameKind::MembershipReport), &bytes, 0);
            }
        }
    }
}

impl Behaviour for Router {
    fn up(&mut self, links: &mut Links, peer: Peer) {
        if let Peer::Node(role, index) = peer
            && let Some(to) = links.to(role, index)
        {
            self.tell_map(links, to);
            self.is_news = true;
        }
    }

    fn down(&mut self, _links: &mut Links, peer: Peer, _id: LinkId) {
        if let Peer::Node(Role::Gateway, index) = peer {
            self.views.remove(&index);
        }
        self.is_news = true;
    }

    fn frame(
        &mut self,
        links: &mut Links,
        from: (LinkId, Peer),
        frame: &mut ReceivedFrame<'_>,
    ) -> Result<(), LinkError> {
        let bad =
            |_| LinkError(format!("{} sent a {:?} without meaning", from.1, frame.header.kind));
        match (from.1, frame.header.kind) {
            (Peer::Node(Role::Gateway, _), FrameKind::Request) => {
                self.requests += 1;
                wire::stamp(frame.bytes, 1, links.now_ns);
                self.request(links, frame);
            }
            (Peer::Node(Role::Mediator, mediator), FrameKind::Leader) => {
                let start = links.start_of(Role::Mediator, mediator).unwrap_or_default();
                let Header { cell, map_version: epoch, .. } = frame.header;
                let leading = CellLeader { mediator: mediator as u16, epoch, start };
                self.leads(links, cell, leading, false);
            }
            (Peer::Node(Role::Gateway, gateway), FrameKind::MembershipReport) => {
                let view = MembershipReport::whole(frame.body()).map_err(bad)?;
                self.take(links, &view.routes);
                self.views.insert(gateway, view);
                self.is_news = true;
            }
            (Peer::Node(Role::Mediator, _), FrameKind::RoutingTable) => {
                let routes = RoutingTable::whole(frame.body()).map_err(bad)?;
                self.take(links, &routes);
            }
            // From the leader of control to that of a cell, and back.
            (Peer::Node(Role::Mediator, _), FrameKind::Release) => self.request(links, frame),
            (Peer::Node(Role::Mediator, _), FrameKind::Released) => {
                for mediator in links.all_to(Role::Mediator) {
                    links.forward(mediator, frame.bytes);
                }
            }
            (peer, kind) => return Err(LinkError(format!("{peer} sent a {kind:?} to a router"))),
        }
        Ok(())
    }

    fn turn(&mut self, links: &mut Links) -> Result<(), Failure> {
        if std::mem::take(&mut self.is_news) && !self.voters.is_empty() {
            self.tell_view(links);
        }
        Ok(())
    }

    /// At once if a link broke after the turn.
    fn due_ns(&self) -> Option<u64> {
        self.is_news.then_some(0)
    }

    fn is_ready(&self) -> bool {
        self.routes.leaders.len() == usize::from(self.routes.map.cells())
    }

    fn counts(&self) -> (u64, u64) {
        (self.requests, 0)
    }
}
