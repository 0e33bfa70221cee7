//! Transaction processor: sends replies and broadcasts out, and asks mediators for what sessions
//! miss of it.

use crate::link::{LinkError, ReceivedFrame};
use crate::network::{Network, Role};
use crate::wire::{self, FrameKind};

use super::Behaviour;
use super::links::{LinkId, Links, Peer};

/// A processor that passes on what its mediators found.
#[derive(Debug)]
pub struct Processor {
    gateways: usize,
    replies: u64,
}

impl Processor {
    /// A processor.
    pub fn new(network: &Network) -> Processor {
        Processor { gateways: network.gateway.len(), replies: 0 }
    }
}

impl Behaviour for Processor {
    fn frame(
        &mut self,
        links: &mut Links,
        from: (LinkId, Peer),
        frame: &mut ReceivedFrame<'_>,
    ) -> Result<(), LinkError> {
        match (from.1, frame.header.kind) {
            (Peer::Node(Role::Mediator, _), _) => {}
            (Peer::Node(Role::Gateway, _), FrameKind::ResendRequest) => {
                let mediator = usize::from(frame.header.cell);
                if let Some(link) = links.to(Role::Mediator, mediator) {
                    links.forward(link, frame.bytes);
                }
                return Ok(());
            }
            (peer, kind) => {
                return Err(LinkError(format!("{peer} sent a {kind:?} to a processor")));
            }
        }
        wire::stamp(frame.bytes, 3, links.now_ns);
        match frame.header.kind {
            FrameKind::Reply | FrameKind::Private | FrameKind::Nak => {
                self.replies += u64::from(frame.header.kind == FrameKind::Reply);
                let gateway = usize::from(frame.header.gateway);
                if let Some(link) = links.to(Role::Gateway, gateway) {
                    links.forward(link, frame.bytes);
                }
                Ok(())
            }
            FrameKind::Public => {
                for gateway in 0..self.gateways {
                    if let Some(link) = links.to(Role::Gateway, gateway) {
                        links.forward(link, frame.bytes);
                    }
                }
                Ok(())
            }
            kind => Err(LinkError(format!("a mediator sent a {kind:?} to a processor"))),
        }
    }

    fn counts(&self) -> (u64, u64) {
        (self.replies, 0)
    }
}
