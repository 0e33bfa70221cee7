//! Transaction processor: sends replies and broadcasts out, and forwards resend requests to
//! mediators.

use std::collections::{BTreeMap, BTreeSet};

use nm_codec::DecodeError;
use nm_model::agent::Failure;
use nm_wire::{
    CatchUp, Frame, FrameMut, Kind, misdirected, nak, private, refused, replies_lost, reply,
    resend_request, resent,
};

use crate::control::{InstrumentMap, RoutingTable};
use crate::network::{Network, NodeId, Role};

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
            if let Some(link) = links.to(Role::Mediator.node(mediator)) {
                links.send(link, &CatchUp { cell, index: 0 });
            }
        }
    }
}

impl Behaviour for Processor {
    fn on_connected(&mut self, links: &mut Links, peer: Peer) {
        if let Peer::Node(NodeId { class: Role::Gateway, index }) = peer {
            self.cells.iter().for_each(|cell| report_loss(links, index, *cell));
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
        frame: &mut FrameMut<'_>,
    ) -> Result<(), PeerError> {
        let (peer, kind) = (from.1, frame.kind());
        let undecodable = PeerError::decode(peer, kind);
        match (peer, kind) {
            (Peer::Node(NodeId { class: Role::Gateway, .. }), Kind::ResendRequest) => {
                let request = resend_request::View::of(frame.shared()).map_err(undecodable)?;
                if let Some(link) = links.to(Role::Mediator.node(request.cell())) {
                    links.forward(link, frame.bytes);
                }
            }
            (Peer::Node(NodeId { class: Role::Gateway, index }), Kind::Private) => {
                forward_elsewhere(links, frame.bytes, index);
            }
            (Peer::Node(NodeId { class: Role::Mediator, index: mediator }), Kind::RoutingTable) => {
                let routes = RoutingTable::decode(frame.shared().message).map_err(undecodable)?;
                self.leaving.on_map(mediator, &routes.map, self.index);
                if self.map.update(&routes.map) && links.update_nodes(&self.map) {
                    self.cells = links.network().cells_through(self.index);
                }
            }
            (Peer::Node(NodeId { class: Role::Mediator, index: mediator }), Kind::CatchUp) => {
                let CatchUp { cell, .. } = frame.read().map_err(undecodable)?;
                self.catch_ups.insert((cell, mediator), links.now_ns + GATEWAYS_NS);
            }
            (Peer::Node(NodeId { class: Role::Mediator, .. }), _) => {
                match forward(links, frame).map_err(undecodable)? {
                    true => self.replies += u64::from(is_answer(kind)),
                    false => return Err(unexpected(peer, kind)),
                }
            }
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

/// Whether a message of this kind answers a request.
pub fn is_answer(kind: Kind) -> bool {
    matches!(kind, Kind::Reply | Kind::Refused)
}

/// Forwards a frame of a mediator to the gateways that it is for; whether it is one for gateways.
///
/// # Errors
/// If it is damaged.
pub fn forward(links: &mut Links, frame: &mut FrameMut<'_>) -> Result<bool, DecodeError> {
    nm_wire::stamp(frame.bytes, 3, links.now_ns);
    let is_public = frame.kind() == Kind::Public;
    let Some(gateway) = gateway_of(frame.shared())? else {
        let gateways = links.network().nodes(Role::Gateway).len() as u16;
        for gateway in (0..gateways).filter(|_| is_public) {
            if let Some(link) = links.to(Role::Gateway.node(gateway)) {
                links.forward(link, frame.bytes);
            }
        }
        return Ok(is_public);
    };
    match links.to(Role::Gateway.node(gateway)) {
        Some(link) => links.forward(link, frame.bytes),
        // The session may be at another gateway. What else its gateway has asked for it asks for
        // again.
        None if frame.kind() == Kind::Private => {
            private::Edit::of(frame)?.is_astray(true);
            forward_elsewhere(links, frame.bytes, gateway);
        }
        None => {}
    }
    Ok(true)
}

/// The gateway that a frame of a mediator is for; none if it is not for one gateway.
fn gateway_of(frame: Frame<'_>) -> Result<Option<u16>, DecodeError> {
    Ok(Some(match frame.kind() {
        Kind::Reply => reply::View::of(frame)?.gateway(),
        Kind::Refused => refused::View::of(frame)?.gateway(),
        Kind::Private => private::View::of(frame)?.gateway(),
        Kind::Resent => resent::View::of(frame)?.gateway(),
        Kind::Nak => nak::View::of(frame)?.gateway(),
        Kind::Misdirected => misdirected::View::of(frame)?.gateway(),
        Kind::RepliesLost => replies_lost::View::of(frame)?.gateway(),
        _ => return Ok(None),
    }))
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

fn unexpected(peer: Peer, kind: Kind) -> PeerError {
    PeerError::UnexpectedFrame { peer, kind, role: Role::Processor }
}
