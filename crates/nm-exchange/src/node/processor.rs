//! Transaction processor: sends replies and broadcasts out, and forwards resend requests to
//! mediators.

use crate::link::ReceivedFrame;
use crate::network::{Network, Role};
use crate::wire::{self, FrameKind};

use super::behaviour::Behaviour;
use super::links::{LinkId, Links};
use super::peer::{Peer, PeerError};
use super::responses::report_loss;

/// A processor that forwards what its mediators send.
#[derive(Debug)]
pub struct Processor {
    gateways: usize,
    cells: Vec<u16>,
    replies: u64,
}

impl Processor {
    /// A processor.
    pub fn new(network: &Network, index: usize) -> Processor {
        let cells = network.cells_at(Role::Processor, index);
        Processor { gateways: network.gateway.len(), cells, replies: 0 }
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
            (Peer::Node(Role::Mediator, _), kind) => {
                wire::stamp(frame.bytes, 3, links.now_ns);
                let gateways = match kind {
                    FrameKind::Reply
                    | FrameKind::Private
                    | FrameKind::Nak
                    | FrameKind::ResendRequest => {
                        self.replies += u64::from(kind == FrameKind::Reply);
                        let gateway = usize::from(frame.header.gateway);
                        gateway..gateway.saturating_add(1)
                    }
                    FrameKind::Public => 0..self.gateways,
                    _ => return Err(unexpected(peer, kind)),
                };
                for gateway in gateways {
                    if let Some(link) = links.to(Role::Gateway, gateway) {
                        links.forward(link, frame.bytes);
                    }
                }
            }
            _ => return Err(unexpected(peer, kind)),
        }
        Ok(())
    }

    fn counts(&self) -> (u64, u64) {
        (self.replies, 0)
    }
}

fn unexpected(peer: Peer, kind: FrameKind) -> PeerError {
    PeerError::UnexpectedFrame { peer, kind, role: Role::Processor }
}
