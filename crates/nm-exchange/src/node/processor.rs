//! Transaction processor: sends replies and broadcasts out, and forwards resend requests to
//! mediators.

use crate::control::{InstrumentMap, RoutingTable};
use crate::link::ReceivedFrame;
use crate::network::{Network, Role};
use crate::wire::{self, FrameKind, Header};

use super::behaviour::Behaviour;
use super::links::{LinkId, Links};
use super::peer::{Peer, PeerError};
use super::responses::{report_event_loss, report_loss};

/// A processor that forwards what its mediators send.
#[derive(Debug)]
pub struct Processor {
    index: usize,
    gateways: usize,
    /// The map, as of the last change of the mediators.
    map: InstrumentMap,
    cells: Vec<u16>,
    replies: u64,
}

impl Processor {
    /// A processor.
    pub fn new(network: &Network, index: usize) -> Processor {
        let cells = network.cells_through(index);
        let (map, gateways) = (InstrumentMap::of(network), network.gateway.len());
        Processor { index, gateways, map, cells, replies: 0 }
    }
}

impl Behaviour for Processor {
    fn on_connected(&mut self, links: &mut Links, peer: Peer) {
        if let Peer::Node(Role::Gateway, index) = peer
            && let Some(gateway) = links.to(Role::Gateway, index)
        {
            self.cells.iter().for_each(|cell| report_loss(links, gateway, *cell));
        }
    }

    fn on_disconnected(&mut self, links: &mut Links, peer: Peer, _id: LinkId) {
        if let Peer::Node(Role::Gateway, _) = peer {
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
            (Peer::Node(Role::Gateway, _), FrameKind::ResendRequest) => {
                let mediator = usize::from(frame.header.cell);
                if let Some(link) = links.to(Role::Mediator, mediator) {
                    links.forward(link, frame.bytes);
                }
            }
            (Peer::Node(Role::Gateway, index), FrameKind::Private) => {
                forward_elsewhere(links, frame.bytes, index);
            }
            (Peer::Node(Role::Mediator, _), FrameKind::RoutingTable) => {
                let routes =
                    RoutingTable::decode(frame.body()).map_err(PeerError::decode(peer, kind))?;
                if self.map.update(&routes.map) && links.update_nodes(&self.map) {
                    self.cells = links.network().cells_through(self.index);
                }
            }
            (Peer::Node(Role::Mediator, _), _) => match forward(links, frame, self.gateways) {
                true => self.replies += u64::from(kind == FrameKind::Reply),
                false => return Err(unexpected(peer, kind)),
            },
            _ => return Err(unexpected(peer, kind)),
        }
        Ok(())
    }

    fn counts(&self) -> (u64, u64) {
        (self.replies, 0)
    }
}

/// Forwards a frame of a mediator to the gateways that it is for; whether it is one for gateways.
pub fn forward(links: &mut Links, frame: &mut ReceivedFrame<'_>, gateways: usize) -> bool {
    wire::stamp(frame.bytes, 3, links.now_ns);
    let to = match frame.header.kind {
        FrameKind::Private if is_elsewhere(links, &frame.header) => {
            wire::set_flags(frame.bytes, wire::REFUSED, wire::REFUSED);
            forward_elsewhere(links, frame.bytes, usize::from(frame.header.gateway));
            return true;
        }
        FrameKind::Reply | FrameKind::Private | FrameKind::Nak | FrameKind::ResendRequest => {
            let gateway = usize::from(frame.header.gateway);
            gateway..gateway.saturating_add(1)
        }
        FrameKind::Public => 0..gateways,
        _ => return false,
    };
    for gateway in to {
        if let Some(link) = links.to(Role::Gateway, gateway) {
            links.forward(link, frame.bytes);
        }
    }
    true
}

/// Whether events are for a session whose gateway is away: it may be at another one. Those that are
/// resent were asked for by that gateway, and are asked for again.
pub fn is_elsewhere(links: &Links, events: &Header) -> bool {
    let gateway = usize::from(events.gateway);
    events.flags & wire::RESENT == 0 && links.to(Role::Gateway, gateway).is_none()
}

/// Sends events of a session that is not at a gateway, and that are marked so, to all other ones.
pub fn forward_elsewhere(links: &mut Links, bytes: &[u8], gateway: usize) {
    let not_there = links.to(Role::Gateway, gateway);
    for other in links.all_to(Role::Gateway) {
        if Some(other) != not_there {
            links.forward(other, bytes);
        }
    }
}

fn unexpected(peer: Peer, kind: FrameKind) -> PeerError {
    PeerError::UnexpectedFrame { peer, kind, role: Role::Processor }
}
