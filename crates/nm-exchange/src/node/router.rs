//! Router: each request goes to the mediator that leads its instrument's cell.

use crate::link::{Arrived, Broken};
use crate::network::{Network, Role};
use crate::wire::{self, FrameKind};

use super::Behaviour;
use super::links::{LinkId, Links, Peer};

/// A router.
#[derive(Debug)]
pub struct Router {
    /// By cell: who leads it, and since which epoch.
    leaders: Vec<(usize, u32)>,
    requests: u64,
}

impl Router {
    /// A router that takes each mediator for the leader of its own cell.
    pub fn new(network: &Network) -> Router {
        let leaders = (0..network.mediator.len()).map(|mediator| (mediator, 0)).collect();
        Router { leaders, requests: 0 }
    }

    /// A mediator says that it leads a cell. What was on its way to the one before is lost, so the
    /// gateways are told.
    fn leads(&mut self, links: &mut Links, mediator: usize, frame: &Arrived<'_>) {
        let Some(known) = self.leaders.get_mut(usize::from(frame.header.cell)) else { return };
        let epoch = frame.header.epoch;
        // Epochs rise but for replicas that all lost their memory: then the old leader is gone, or
        // is the same mediator.
        let is_newer = epoch >= known.1 || known.0 == mediator;
        if is_newer || links.to(Role::Mediator, known.0).is_none() {
            *known = (mediator, epoch);
            for gateway in links.all_to(Role::Gateway) {
                links.forward(gateway, frame.bytes);
            }
        }
    }
}

impl Behaviour for Router {
    fn frame(
        &mut self,
        links: &mut Links,
        from: (LinkId, Peer),
        frame: &mut Arrived<'_>,
    ) -> Result<(), Broken> {
        match (from.1, frame.header.kind) {
            (Peer::Node(Role::Gateway, _), FrameKind::Request) => {
                self.requests += 1;
                wire::stamp(frame.bytes, 1, links.now_ns);
                let leader = self.leaders.get(usize::from(frame.header.cell));
                let link = leader.and_then(|leader| links.to(Role::Mediator, leader.0));
                // Without a leader it is lost, and sent again when there is one.
                if let Some(link) = link {
                    links.forward(link, frame.bytes);
                }
                Ok(())
            }
            (Peer::Node(Role::Mediator, mediator), FrameKind::Lead) => {
                self.leads(links, mediator, frame);
                Ok(())
            }
            (peer, kind) => Err(Broken(format!("{peer} sent a {kind:?} to a router"))),
        }
    }

    fn counts(&self) -> (u64, u64) {
        (self.requests, 0)
    }
}
