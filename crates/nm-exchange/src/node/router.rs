//! Router: each request goes to the mediator that leads its instrument's cell.

use crate::link::{Arrived, Broken};
use crate::network::{Network, Role};
use crate::wire::{self, FrameKind};

use super::Behaviour;
use super::links::{LinkId, Links, Peer};

/// A router.
#[derive(Debug)]
pub struct Router {
    /// By cell: who leads it, and since which epoch; none as long as nobody has said so.
    leaders: Vec<Option<(usize, u32)>>,
    requests: u64,
}

impl Router {
    /// A router that knows no leader yet.
    pub fn new(network: &Network) -> Router {
        Router { leaders: vec![None; network.mediator.len()], requests: 0 }
    }

    /// A mediator says that it leads a cell. What was on its way to the one before is lost, so the
    /// gateways are told.
    fn leads(&mut self, links: &mut Links, mediator: usize, frame: &Arrived<'_>) {
        let Some(known) = self.leaders.get_mut(usize::from(frame.header.cell)) else { return };
        let epoch = frame.header.epoch;
        // Epochs rise but for replicas that all lost their memory: then the old leader is gone, or
        // is the same mediator.
        let is_newer = known.is_none_or(|(leader, since)| {
            epoch >= since || leader == mediator || links.to(Role::Mediator, leader).is_none()
        });
        if is_newer {
            *known = Some((mediator, epoch));
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
                let leader = self.leaders.get(usize::from(frame.header.cell)).copied().flatten();
                let link = leader.and_then(|(leader, _)| links.to(Role::Mediator, leader));
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

    fn is_ready(&self) -> bool {
        self.leaders.iter().all(Option::is_some)
    }

    fn counts(&self) -> (u64, u64) {
        (self.requests, 0)
    }
}
