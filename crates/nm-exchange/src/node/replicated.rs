//! Mediators and processors whose cells are replicated: the leader of a cell puts requests in
//! order and proposes them in batches; every replica applies what is committed, and the processor
//! sends the replies. A request on an instrument that is in another cell is not put in order: where
//! the mediator has a newer map it sends that back, and the gateway resends the request.

use nm_codec::DecodeError;
use nm_model::agent::Failure;
use nm_replica::Log;
use nm_sys::poll::Waker;

use crate::cell::Request;
use crate::control::{InstrumentMap, MembershipReport, RoutingTable, Work};
use crate::link::ReceivedFrame;
use crate::moves::{MoveEnded, MoveOrder, MoveProgress};
use crate::network::{Network, Role};
use crate::wire::{self, FrameKind, Header};

use super::behaviour::Behaviour;
use super::cell_moves;
use super::control::{answer, send_routes};
use super::groups::Logs;
use super::links::{LinkId, Links};
use super::peer::{Peer, PeerError};
use super::replica::{Replica, ReplicaSet};
use super::responses::{Responses, report_loss};

/// A mediator with replicas of its own cell and of its neighbour's.
#[derive(Debug)]
pub struct Mediator<L> {
    pub(super) cells: ReplicaSet<L>,
    /// The newest map that it knows.
    map: InstrumentMap,
    requests: u64,
}

impl<L: Log> Mediator<L> {
    /// A mediator whose replicas have these logs.
    ///
    /// # Errors
    /// If a record cannot be opened.
    pub fn new(network: &Network, index: usize, logs: Logs<L>) -> Result<Mediator<L>, Failure> {
        let cells = ReplicaSet::new(network, (Role::Mediator, index), logs)?;
        Ok(Mediator { cells, map: InstrumentMap::of(network), requests: 0 })
    }

    /// Whether a request's instrument is in the cell that it was routed to: by the cell's log, or,
    /// if the instrument has never moved there, by this map or by the newer one that routed it.
    fn is_owned(&mut self, header: &Header) -> bool {
        let Some(replica) = self.cells.replica(header.cell) else { return false };
        if let Some(known) = replica.cell.ownership(header.instrument) {
            return known.is_owner;
        }
        if let Some(claim) = cell_moves::claim(&replica.cell, &self.map, header.instrument) {
            replica.enqueue(&claim);
        }
        header.map_version > self.map.version()
            || self.map.cell_of(header.instrument) == header.cell
    }

    fn request(
        &mut self,
        links: &mut Links,
        (from, peer): (LinkId, Peer),
        frame: &mut ReceivedFrame<'_>,
    ) -> Result<(), PeerError> {
        // A request that cannot be applied must not get into the log.
        Request::decode(&frame.header, frame.body())
            .map_err(PeerError::decode(peer, FrameKind::Request))?;
        if !self.is_owned(&frame.header) {
            if self.map.cell_of(frame.header.instrument) != frame.header.cell {
                send_routes(links, from, &RoutingTable::new(self.map.clone()));
            }
            return Ok(());
        }
        wire::stamp(frame.bytes, 2, links.now_ns);
        self.requests += u64::from(self.enqueue(frame));
        Ok(())
    }

    /// Adds a frame to the backlog of its cell.
    fn enqueue(&mut self, frame: &ReceivedFrame<'_>) -> bool {
        let replica = self.cells.replica(frame.header.cell);
        replica.is_some_and(|replica| replica.enqueue(frame.bytes))
    }

    /// A frame of a move.
    fn move_frame(
        &mut self,
        links: &mut Links,
        frame: &ReceivedFrame<'_>,
    ) -> Result<(), DecodeError> {
        let (header, body) = (&frame.header, frame.body());
        match header.kind {
            FrameKind::MoveOrder => {
                let order = MoveOrder::decode(header, body)?;
                if let Some(replica) = self.cells.replica(order.from) {
                    replica.on_move_order(order, links);
                }
            }
            FrameKind::MoveProgress => {
                let progress = MoveProgress::decode(header, body)?;
                if let Some(replica) = self.cells.replica(progress.from) {
                    replica.on_move_progress(&progress, links);
                }
            }
            FrameKind::MoveParts => {
                self.enqueue(frame);
            }
            _ => {
                let ended = MoveEnded::decode(header, body)?;
                self.cells.replicas.iter_mut().for_each(|replica| replica.on_move_ended(&ended));
                if let Some(control) = &mut self.cells.control {
                    control.on_move_ended(&ended);
                }
            }
        }
        Ok(())
    }
}

impl<L: Log> Behaviour for Mediator<L> {
    fn on_connected(&mut self, links: &mut Links, peer: Peer) {
        if let Peer::Node(Role::Router, index) = peer
            && let Some(router) = links.to(Role::Router, index)
        {
            self.cells.replicas.iter().for_each(|replica| replica.announce(links, &[router]));
            if let Some(control) = &self.cells.control {
                control.on_router_connected(links, router);
            }
        }
    }

    fn on_disconnected(&mut self, _links: &mut Links, peer: Peer, _id: LinkId) {
        if let (Peer::Node(Role::Router, index), Some(control)) = (peer, &mut self.cells.control) {
            control.set_report(index, None);
        }
    }

    fn on_frame(
        &mut self,
        links: &mut Links,
        from: (LinkId, Peer),
        frame: &mut ReceivedFrame<'_>,
    ) -> Result<(), PeerError> {
        let undecodable = PeerError::decode(from.1, frame.header.kind);
        match (from.1, frame.header.kind, &mut self.cells.control) {
            (Peer::Node(Role::Router, _), FrameKind::Request, _) => {
                return self.request(links, from, frame);
            }
            (Peer::Node(Role::Router, _), FrameKind::RoutingTable, _) => {
                let routes = RoutingTable::decode(frame.body()).map_err(undecodable)?;
                if self.map.update(&routes.map) {
                    self.cells.on_map();
                }
            }
            (
                Peer::Node(Role::Router, _),
                FrameKind::MoveOrder
                | FrameKind::MoveParts
                | FrameKind::MoveProgress
                | FrameKind::MoveEnded,
                _,
            ) => self.move_frame(links, frame).map_err(undecodable)?,
            (Peer::Node(Role::Router, index), FrameKind::MembershipReport, Some(control)) => {
                let report = MembershipReport::decode(frame.body()).map_err(undecodable)?;
                control.set_report(index, Some(report));
            }
            (Peer::Observer | Peer::Operator, FrameKind::AdminRequest, _) => {
                let ReplicaSet { control, replicas, .. } = &mut self.cells;
                let work = |replicas: &Vec<Replica<L>>| {
                    let mut work = Work::now();
                    replicas.iter().for_each(|replica| replica.add_work(&mut work));
                    work
                };
                let hand_over = |replicas: &mut Vec<Replica<L>>| {
                    replicas.iter_mut().for_each(Replica::hand_over)
                };
                let cells = (replicas, hand_over as fn(&mut _), work);
                return answer(links, from, frame.body(), control.as_mut(), cells);
            }
            // Routers send reports to all mediators; those without control ignore them.
            (Peer::Node(Role::Router, _), FrameKind::MembershipReport, None) => {}
            (peer, kind, _) => {
                return Err(PeerError::UnexpectedFrame { peer, kind, role: Role::Mediator });
            }
        }
        Ok(())
    }

    fn waker(&self) -> Option<&Waker> {
        Some(&self.cells.waker)
    }

    fn on_wake(&mut self, links: &mut Links) -> Result<(), Failure> {
        self.cells.handle_events(links, &mut |cell, request, _, _| cell.handle(request, |_| {}))?;
        if let Some(control) = &self.cells.control
            && self.map.update(&control.routes().map)
        {
            self.cells.on_map();
        }
        Ok(())
    }

    fn on_iteration(&mut self, links: &mut Links) -> Result<(), Failure> {
        self.cells.on_iteration(links, &self.map)
    }

    fn deadline_ns(&self) -> Option<u64> {
        self.cells.deadline_ns()
    }

    fn is_ready(&self) -> bool {
        self.cells.is_ready()
    }

    fn on_stop(&mut self) -> Result<(), Failure> {
        self.cells.on_stop()
    }

    fn counts(&self) -> (u64, u64) {
        (self.requests, 0)
    }
}

/// A processor with replicas of its mediators' cells.
#[derive(Debug)]
pub struct Processor<L> {
    pub(super) cells: ReplicaSet<L>,
    /// The map that the network begins with: a processor leads nothing, and needs no other.
    map: InstrumentMap,
    responses: Responses,
    /// By gateway: whether it is connected, and its frames of this iteration. They are gathered,
    /// because the replicas borrow the links meanwhile.
    gathered: Vec<(bool, Vec<u8>)>,
    replies: u64,
}

impl<L: Log> Processor<L> {
    /// A processor whose replicas have these logs.
    ///
    /// # Errors
    /// If a record cannot be opened.
    pub fn new(network: &Network, index: usize, logs: Logs<L>) -> Result<Processor<L>, Failure> {
        Ok(Processor {
            cells: ReplicaSet::new(network, (Role::Processor, index), logs)?,
            map: InstrumentMap::of(network),
            responses: Responses::default(),
            gathered: vec![(false, vec![]); network.gateway.len()],
            replies: 0,
        })
    }
}

impl<L: Log> Behaviour for Processor<L> {
    fn on_connected(&mut self, links: &mut Links, peer: Peer) {
        if let Peer::Node(Role::Gateway, index) = peer
            && let Some(gateway) = links.to(Role::Gateway, index)
        {
            let cells = self.cells.replicas.iter().map(|replica| replica.number);
            cells.for_each(|cell| report_loss(links, gateway, cell));
        }
    }

    fn on_frame(
        &mut self,
        links: &mut Links,
        from: (LinkId, Peer),
        frame: &mut ReceivedFrame<'_>,
    ) -> Result<(), PeerError> {
        let (Peer::Node(Role::Gateway, _), FrameKind::ResendRequest) = (from.1, frame.header.kind)
        else {
            let (peer, kind) = (from.1, frame.header.kind);
            return Err(PeerError::UnexpectedFrame { peer, kind, role: Role::Processor });
        };
        let mut replicas = self.cells.replicas.iter();
        if let Some(replica) = replicas.find(|replica| replica.number == frame.header.cell)
            && let Some(output) = links.output(from.0)
        {
            self.responses.resend(&replica.cell, &frame.header, output);
        }
        Ok(())
    }

    fn waker(&self) -> Option<&Waker> {
        Some(&self.cells.waker)
    }

    fn on_wake(&mut self, links: &mut Links) -> Result<(), Failure> {
        let (responses, gathered) = (&mut self.responses, &mut self.gathered);
        let (mut frames, mut replies) = (0, 0);
        for (index, (is_up, _)) in gathered.iter_mut().enumerate() {
            *is_up = links.to(Role::Gateway, index).is_some();
        }
        self.cells.handle_events(links, &mut |cell, request, frame, now_ns| {
            responses.handle(cell, request, frame, &[(3, now_ns)], |out| {
                replies += u64::from(out.header.kind == FrameKind::Reply);
                let one = usize::from(out.header.gateway);
                let is_public = out.header.kind == FrameKind::Public;
                let to = if is_public { 0..gathered.len() } else { one..one + 1 };
                for (is_up, bytes) in gathered.get_mut(to).into_iter().flatten() {
                    if *is_up {
                        frames += 1;
                        out.write(bytes);
                    }
                }
            })
        })?;
        for (index, (_, bytes)) in self.gathered.iter_mut().enumerate() {
            if let Some(gateway) = links.to(Role::Gateway, index).filter(|_| !bytes.is_empty()) {
                links.forward(gateway, bytes);
            }
            bytes.clear();
        }
        self.replies += replies;
        links.frames_out += frames;
        Ok(())
    }

    fn on_iteration(&mut self, links: &mut Links) -> Result<(), Failure> {
        self.cells.on_iteration(links, &self.map)
    }

    fn deadline_ns(&self) -> Option<u64> {
        self.cells.deadline_ns()
    }

    fn is_ready(&self) -> bool {
        self.cells.is_ready()
    }

    fn on_stop(&mut self) -> Result<(), Failure> {
        self.cells.on_stop()
    }

    fn counts(&self) -> (u64, u64) {
        (self.replies, 0)
    }
}
