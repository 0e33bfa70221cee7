//! Transaction processor: sends replies and broadcasts out, and forwards resend requests to
//! mediators.

use std::collections::{BTreeMap, BTreeSet};

use nm_model::agent::Failure;

use crate::control::{InstrumentMap, RoutingTable};
use crate::link::ReceivedFrame;
use crate::message::CatchUp;
use crate::network::{Network, NodeId, Role};
use crate::wire::{self, FrameKind, Header};

use super::behaviour::Behaviour;
use super::links::{LinkId, Links};
use super::peer::{Peer, PeerError};
use super::responses::{report_event_loss, report_loss};

/// For how long a processor that has come back waits for links to all gateways before it sends
/// replies again, ns.
pub const GATEWAYS_NS: u64 = 1_000_000_000;

/// What a processor that was removed waits for until it ends: the mediators have other processors
/// when they send it the map, and nothing comes from them after that.
#[derive(Debug, Default)]
pub struct Leaving {
    /// Mediators that have sent a map without this processor.
    maps_from: BTreeSet<u16>,
}

impl Leaving {
    /// A mediator has sent a map.
    pub fn on_map(&mut self, mediator: u16, map: &InstrumentMap, processor: u16) {
        if map.lacks(Role::Processor.node(processor)) {
            self.maps_from.insert(mediator);
        }
    }

    /// Whether all that came from mediators is on its way to gateways, and nothing more comes.
    pub fn is_done(&self, links: &Links) -> bool {
        let linked = links.connected_nodes().map(|(node, _)| node);
        let mut mediators = linked.filter(|node| node.class == Role::Mediator);
        mediators.all(|mediator| self.maps_from.contains(&mediator.index))
            && links.is_flushed_to(Role::Gateway)
    }
}

/// Whether a processor has links to all gateways.
pub fn has_gateways(links: &Links) -> bool {
    let gateways = links.network().downstream(links.own().0);
    gateways.iter().all(|gateway| links.to(*gateway).is_some())
}

/// A processor that forwards what its mediators send.
#[derive(Debug)]
pub struct Processor {
    index: u16,
    /// The map, as of the last change of the nodes.
    map: InstrumentMap,
    cells: Vec<u16>,
    /// By cell and mediator: until when links to all gateways are waited for, ns.
    catch_ups: BTreeMap<(u16, u16), u64>,
    leaving: Leaving,
    replies: u64,
}

impl Processor {
    /// A processor.
    pub fn new(network: &Network, index: u16) -> Processor {
        Processor {
            index,
            map: InstrumentMap::of(network),
            cells: network.cells_through(index),
            catch_ups: BTreeMap::new(),
            leaving: Leaving::default(),
            replies: 0,
        }
    }

    /// Notifies the mediators that wait until replies can be sent to all gateways.
    fn answer_catch_ups(&mut self, links: &mut Links) {
        if self.catch_ups.is_empty() {
            return;
        }
        let (has_gateways, now_ns) = (has_gateways(links), links.now_ns);
        for ((cell, mediator), _) in
            self.catch_ups.extract_if(.., |_, until_ns| has_gateways || now_ns >= *until_ns)
        {
            if let Some(link) = links.to(Role::Mediator.node(mediator))
                && let Some(output) = links.output(link)
            {
                CatchUp { cell, index: 0 }.write(output);
            }
        }
    }
}

impl Behaviour for Processor {
    fn on_connected(&mut self, links: &mut Links, peer: Peer) {
        if let Peer::Node(NodeId { class: Role::Gateway, index }) = peer
            && let Some(gateway) = links.to(Role::Gateway.node(index))
        {
            self.cells.iter().for_each(|cell| report_loss(links, gateway, *cell));
        }
    }

    fn on_disconnected(&mut self, links: &mut Links, peer: Peer, _id: LinkId) {
        if let Peer::Node(NodeId { class: Role::Gateway, .. }) = peer {
            report_event_loss(links, self.cells.iter().copied());
        }
    }

    fn on_frame(
        &mut self,
        links: &mut Links,
        from: (LinkId, Peer),
        frame: &mut ReceivedFrame<'_>,
    ) -> Result<(), PeerError> {
        let (peer, kind) = (from.1, frame.header.kind);
        match (peer, kind) {
            (Peer::Node(NodeId { class: Role::Gateway, .. }), FrameKind::ResendRequest) => {
                let mediator = frame.header.cell;
                if let Some(link) = links.to(Role::Mediator.node(mediator)) {
                    links.forward(link, frame.bytes);
                }
            }
            (Peer::Node(NodeId { class: Role::Gateway, index }), FrameKind::Private) => {
                forward_elsewhere(links, frame.bytes, index);
            }
            (
                Peer::Node(NodeId { class: Role::Mediator, index: mediator }),
                FrameKind::RoutingTable,
            ) => {
                let routes =
                    RoutingTable::decode(frame.body()).map_err(PeerError::decode(peer, kind))?;
                self.leaving.on_map(mediator, &routes.map, self.index);
                if self.map.update(&routes.map) && links.update_nodes(&self.map) {
                    self.cells = links.network().cells_through(self.index);
                }
            }
            (Peer::Node(NodeId { class: Role::Mediator, index: mediator }), FrameKind::CatchUp) => {
                let CatchUp { cell, .. } = CatchUp::decode(&frame.header, frame.body())
                    .map_err(PeerError::decode(peer, kind))?;
                self.catch_ups.insert((cell, mediator), links.now_ns + GATEWAYS_NS);
            }
            (Peer::Node(NodeId { class: Role::Mediator, .. }), _) => match forward(links, frame) {
                true => self.replies += u64::from(kind == FrameKind::Reply),
                false => return Err(unexpected(peer, kind)),
            },
            _ => return Err(unexpected(peer, kind)),
        }
        Ok(())
    }

    fn on_iteration(&mut self, links: &mut Links) -> Result<(), Failure> {
        self.answer_catch_ups(links);
        Ok(())
    }

    fn deadline_ns(&self) -> Option<u64> {
        self.catch_ups.values().copied().min()
    }

    fn has_left(&self, links: &Links) -> bool {
        self.leaving.is_done(links)
    }

    fn counts(&self) -> (u64, u64) {
        (self.replies, 0)
    }
}

/// Forwards a frame of a mediator to the gateways that it is for; whether it is one for gateways.
pub fn forward(links: &mut Links, frame: &mut ReceivedFrame<'_>) -> bool {
    wire::stamp(frame.bytes, 3, links.now_ns);
    let to = match frame.header.kind {
        FrameKind::Private if is_elsewhere(links, &frame.header) => {
            wire::set_flags(frame.bytes, wire::REFUSED, wire::REFUSED);
            forward_elsewhere(links, frame.bytes, frame.header.gateway);
            return true;
        }
        FrameKind::Reply | FrameKind::Private | FrameKind::Nak | FrameKind::ResendRequest => {
            let gateway = frame.header.gateway;
            gateway..gateway.saturating_add(1)
        }
        FrameKind::Public => 0..links.network().nodes(Role::Gateway).len() as u16,
        _ => return false,
    };
    for gateway in to {
        if let Some(link) = links.to(Role::Gateway.node(gateway)) {
            links.forward(link, frame.bytes);
        }
    }
    true
}

/// Whether events are for a session whose gateway is away: it may be at another one. Those that are
/// resent were asked for by that gateway, and are asked for again.
pub fn is_elsewhere(links: &Links, events: &Header) -> bool {
    let gateway = events.gateway;
    events.flags & wire::RESENT == 0 && links.to(Role::Gateway.node(gateway)).is_none()
}

/// Sends events of a session that is not at a gateway, and that are marked so, to all other ones.
pub fn forward_elsewhere(links: &mut Links, bytes: &[u8], gateway: u16) {
    let not_there = links.to(Role::Gateway.node(gateway));
    for other in links.all_to(Role::Gateway) {
        if Some(other) != not_there {
            links.forward(other, bytes);
        }
    }
}

fn unexpected(peer: Peer, kind: FrameKind) -> PeerError {
    PeerError::UnexpectedFrame { peer, kind, role: Role::Processor }
}
