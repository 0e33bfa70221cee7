//! Mediator: the leader of a cell puts requests in order and proposes them in batches to the cell's
//! log. Every replica applies what is committed, and the processor that has a replica sends the
//! replies. With durability `none` the log has this replica alone and commits at once
//! ([`CellLog`](crate::node::replica::cell_log::CellLog)), and the mediator sends the replies
//! itself, through a processor.
//!
//! A request on an instrument that is in another cell is not put in order. Where the mediator has a
//! newer map it sends that back, and the gateway resends the request.

mod hand_over;
mod reply_path;

use std::collections::{BTreeMap, BTreeSet};

use nm_model::agent::Failure;
use nm_replica::Log;
use nm_wire::{
    AdminRequest, AdminResponse, CatchUp, DecodeError, FrameMut, Kind, MoveEnded, MoveOrder,
    MoveProgress, OrdersRequest, Presence, ResendRequest, move_parts, request,
};

use crate::control::{InstrumentMap, MembershipReport, RoutingTable};
use crate::network::{Network, NodeId, Role};
use crate::time::Time;

use crate::node::control::{answer, send_nodes, send_routes};
use crate::node::replica::cell_moves;
use crate::node::replica::logs::Logs;
use crate::node::replica::responses::Responses;
use crate::node::replica::{Replica, ReplicaSet};
use crate::node::runtime::behaviour::Behaviour;
use crate::node::runtime::links::{LinkId, Links};
use crate::node::runtime::peer::{Peer, PeerError};
use hand_over::HandOverTimer;
use reply_path::ReplyPath;

/// A mediator: with replicas of its own cell and of its neighbour's, or with the only one of its
/// own cell.
#[derive(Debug)]
pub struct Mediator<L> {
    pub(super) cells: ReplicaSet<L>,
    index: u16,
    /// The newest map that it knows.
    map: InstrumentMap,
    hand_over: HandOverTimer,
    network: Network,
    /// By cell.
    replies: BTreeMap<u16, ReplyPath>,
    /// Cells that it leads and whose replies no processor makes, because none has a replica, or
    /// there is no link to it: it sends them itself, through another processor.
    replying: BTreeSet<u16>,
    responses: Responses,
    /// Frames of this iteration for a processor, and how many they are, by cell. They are gathered,
    /// because the replicas borrow the links meanwhile.
    gathered: BTreeMap<u16, (u64, Vec<u8>)>,
    requests: u64,
}

impl<L: Log> Mediator<L> {
    /// A mediator whose replicas have these logs, and that starts now.
    ///
    /// # Errors
    /// If a record cannot be opened.
    pub fn new(
        network: &Network,
        index: u16,
        logs: Logs<L>,
        now_ns: u64,
    ) -> Result<Mediator<L>, Failure> {
        let cells = ReplicaSet::new(network, Role::Mediator.node(index), logs)?;
        let numbers = cells.replicas.iter().map(|replica| replica.number);
        let path = |cell| (cell, ReplyPath::new(network, cell, now_ns));
        Ok(Mediator {
            network: network.clone(),
            replies: numbers.map(path).collect(),
            replying: BTreeSet::new(),
            responses: Responses::default(),
            gathered: BTreeMap::new(),
            cells,
            index,
            map: InstrumentMap::of(network),
            hand_over: HandOverTimer::default(),
            requests: 0,
        })
    }

    /// Whether a request's instrument is in the cell that it was routed to: by the cell's log, or,
    /// if the instrument has never moved there, by this map or by the newer one that routed it.
    fn is_owned(&mut self, request: &request::View<'_>, time: Time) -> bool {
        let (instrument, cell) = (request.instrument(), request.cell());
        let Some(replica) = self.cells.replica(cell) else { return false };
        if let Some(known) = replica.cell.ownership(instrument) {
            return known.is_owner;
        }
        if let Some(claim) = cell_moves::claim(&replica.cell, &self.map, instrument) {
            replica.enqueue(&claim, time);
        }
        request.map_version() > self.map.version() || self.map.cell_of(instrument) == cell
    }

    /// Whether the replies of a cell can be sent. Without other replicas they would be lost while
    /// there is no processor: then requests are left to be resent.
    fn can_reply(&self, links: &Links, replica: &Replica<L>) -> bool {
        let path = self.replies.get(&replica.number);
        !replica.is_single() || path.is_some_and(|path| path.link(links).is_some())
    }

    fn request(
        &mut self,
        links: &mut Links,
        (from, peer): (LinkId, Peer),
        frame: &mut FrameMut<'_>,
    ) -> Result<(), PeerError> {
        // It is decoded when it is committed. One that cannot be has no effect then, on any
        // replica; the gateway refuses it before.
        let request = request::View::of(frame.shared());
        let request = request.map_err(PeerError::decode(peer, Kind::Request))?;
        let cell = request.cell();
        let replica = self.cells.replicas.iter().find(|replica| replica.number == cell);
        if replica.is_some_and(|replica| !self.can_reply(links, replica)) {
            return Ok(());
        }
        if !self.is_owned(&request, links.time()) {
            if self.map.cell_of(request.instrument()) != cell {
                send_routes(links, &[from], &RoutingTable::new(self.map.clone()));
            }
            return Ok(());
        }
        nm_wire::stamp(frame.bytes, 2, links.now_ns);
        self.requests += u64::from(self.enqueue(cell, frame.bytes, links.time()));
        Ok(())
    }

    /// A link to a processor was made or has broken, or another replica leads or has replaced one.
    /// Replies that nobody sent before are asked for by the gateways.
    fn update_reply_paths(&mut self, links: &mut Links) {
        for replica in &self.cells.replicas {
            let cell = replica.number;
            let path = self.replies.entry(cell);
            let path = path.or_insert_with(|| ReplyPath::new(&self.network, cell, links.now_ns));
            let is_single = replica.is_single();
            if !is_single {
                path.set_voters(replica.voters());
            }
            let is_changed = path.update(links);
            if !replica.is_leading() || !(is_single || path.is_alternate()) {
                self.replying.remove(&cell);
                continue;
            }
            let is_new = self.replying.insert(cell);
            let is_to_announce = match is_single {
                true => is_changed && path.link(links).is_some(),
                false => is_new || is_changed,
            };
            if is_to_announce {
                let routers = links.all_to(Role::Router);
                replica.announce(links, &routers);
                if !is_single || path.may_have_lost() {
                    path.report_loss(links);
                }
            }
        }
    }

    /// Announces to a router which cells this mediator leads.
    fn announce(&self, links: &mut Links, router: LinkId) {
        for replica in &self.cells.replicas {
            if self.can_reply(links, replica) {
                replica.announce(links, &[router]);
            }
        }
    }

    /// A processor is back that others stand in for: it is to say when it can send replies again.
    fn ask_to_catch_up(&mut self, links: &mut Links, processor: u16) {
        let Some(link) = links.to(Role::Processor.node(processor)) else { return };
        for replica in self.cells.replicas.iter().filter(|replica| replica.is_leading()) {
            let (cell, index) = (replica.number, replica.cell.index());
            let path = self.replies.get_mut(&cell);
            if path.is_some_and(|path| path.is_own_back(processor)) {
                links.send(link, &CatchUp { cell, index });
            }
        }
    }

    fn on_caught_up(&mut self, links: &mut Links, processor: u16, caught_up: CatchUp) {
        if let Some(path) = self.replies.get_mut(&caught_up.cell) {
            path.own_caught_up(processor);
        }
        self.update_reply_paths(links);
    }

    /// Applies what is committed, and sends the replies that no processor sends.
    fn apply(&mut self, links: &mut Links) -> Result<(), Failure> {
        let Mediator { cells, replying, responses, gathered, .. } = self;
        cells.apply(links, &mut |cell, request, frame, _| {
            if !replying.contains(&cell.number()) {
                return cell.handle(request, |_| {});
            }
            let (frames, bytes) = gathered.entry(cell.number()).or_default();
            responses.handle(cell, request, frame, &[], |out| {
                *frames += 1;
                out.write(bytes);
            })
        })?;
        for (cell, (frames, bytes)) in &mut self.gathered {
            let path = self.replies.get(cell).filter(|_| *frames > 0);
            if let Some(processor) = path.and_then(|path| path.link(links)) {
                links.forward(processor, bytes);
                links.frames_out += *frames - 1;
            }
            *frames = 0;
            bytes.clear();
        }
        Ok(())
    }

    /// Adds a frame to the backlog of its cell.
    fn enqueue(&mut self, cell: u16, bytes: &[u8], time: Time) -> bool {
        self.cells.replica(cell).is_some_and(|replica| replica.enqueue(bytes, time))
    }

    /// Takes over a newer map; processors learn from here which nodes were added.
    fn update_map(&mut self, links: &mut Links, map: InstrumentMap) {
        self.map = map;
        self.cells.on_map();
        if let Some(control) = &mut self.cells.control {
            control.on_map(&self.map);
        }
        if links.update_nodes(&self.map) {
            self.network = links.network().clone();
            self.replies.retain(|cell, _| self.map.has_cell(*cell));
            self.replying.retain(|cell| self.map.has_cell(*cell));
            // Replies take another way before a processor that was removed learns of that.
            self.replies.values_mut().for_each(|path| path.set_network(&self.network));
            self.update_reply_paths(links);
            let processors = links.all_to(Role::Processor);
            send_nodes(links, &processors, &self.map);
        }
    }

    /// A frame of a move.
    fn move_frame(&mut self, links: &mut Links, frame: &FrameMut<'_>) -> Result<(), DecodeError> {
        match frame.kind() {
            Kind::MoveOrder => {
                let order: MoveOrder = frame.read()?;
                if let Some(replica) = self.cells.replica(order.from) {
                    replica.on_move_order(order, links);
                }
            }
            Kind::MoveProgress => {
                let progress: MoveProgress = frame.read()?;
                if let Some(replica) = self.cells.replica(progress.from) {
                    replica.on_move_progress(&progress, links);
                }
            }
            Kind::MoveParts => {
                let to = move_parts::View::of(frame.shared())?.to();
                self.enqueue(to, frame.bytes, links.time());
            }
            _ => {
                let ended: MoveEnded = frame.read()?;
                let replicas = self.cells.replicas.iter_mut();
                replicas.for_each(|replica| replica.on_move_ended(&ended, links.now_ns));
                if let Some(control) = &mut self.cells.control {
                    control.on_move_ended(&ended, links.now_ns);
                }
            }
        }
        Ok(())
    }

    fn admin_request(
        &mut self,
        links: &mut Links,
        from: (LinkId, Peer),
        request: AdminRequest,
    ) -> Result<(), PeerError> {
        let ReplicaSet { control, replicas, .. } = &mut self.cells;
        match request {
            AdminRequest::Replicas { cell } => {
                answer_replicas(links, from.0, replicas, cell, None);
                Ok(())
            }
            AdminRequest::Replace { cell, from: old, to } if from.1 == Peer::Operator => {
                answer_replicas(links, from.0, replicas, cell, Some((old, to)));
                Ok(())
            }
            AdminRequest::Retire { cell, retired } if from.1 == Peer::Operator => {
                let leads =
                    |replica: &&mut Replica<L>| replica.number == cell && replica.is_leading();
                let replica = replicas.iter_mut().find(leads);
                let answer = replica.map_or(AdminResponse::NotLeading, |replica| {
                    AdminResponse::Holdings { holdings: replica.retire(retired, links.time()) }
                });
                links.send(from.0, &answer);
                Ok(())
            }
            AdminRequest::Direct { cell, instrument, direction } if from.1 == Peer::Operator => {
                let replica = replicas.iter_mut().find(|replica| replica.number == cell);
                let answer = replica.map_or(Some(AdminResponse::NotLeading), |replica| {
                    replica.direct(from.0, (instrument, direction), &self.map)
                });
                answer.iter().for_each(|answer| links.send(from.0, answer));
                Ok(())
            }
            AdminRequest::Stop { cell, order } if from.1 == Peer::Operator => {
                let leads =
                    |replica: &&mut Replica<L>| replica.number == cell && replica.is_leading();
                let replica = replicas.iter_mut().find(leads);
                let answer = replica
                    .map_or(AdminResponse::NotLeading, |replica| replica.stop(order, links.time()));
                links.send(from.0, &answer);
                Ok(())
            }
            AdminRequest::FirmUses { cell } if from.1 == Peer::Operator => {
                let leads = |replica: &&Replica<L>| replica.number == cell && replica.is_leading();
                let replica = replicas.iter().find(leads);
                let answer = replica.map_or(AdminResponse::NotLeading, Replica::firm_uses);
                links.send(from.0, &answer);
                Ok(())
            }
            AdminRequest::Follow if from.1 == Peer::Operator => {
                self.cells.follow(links, from.0);
                Ok(())
            }
            AdminRequest::Image { instrument } if from.1 == Peer::Operator => {
                self.cells.send_image(links, from.0, instrument);
                Ok(())
            }
            request => answer(links, from, request, control.as_mut(), |work| {
                replicas.iter().for_each(|replica| replica.add_work(work));
            }),
        }
    }
}

impl<L: Log> Behaviour for Mediator<L> {
    fn on_connected(&mut self, links: &mut Links, peer: Peer) {
        if let Peer::Node(NodeId { class: Role::Processor, index }) = peer {
            self.ask_to_catch_up(links, index);
            self.update_reply_paths(links);
            let processor: Vec<LinkId> =
                links.to(Role::Processor.node(index)).into_iter().collect();
            send_nodes(links, &processor, &self.map);
            let replicas = self.cells.replicas.iter().filter(|replica| !replica.is_single());
            replicas.for_each(|replica| replica.announce(links, &processor));
        }
        if let Peer::Node(NodeId { class: Role::Router, index }) = peer
            && let Some(router) = links.to(Role::Router.node(index))
        {
            self.announce(links, router);
            if let Some(control) = &self.cells.control {
                control.on_router_connected(links, router);
            }
        }
    }

    fn on_disconnected(&mut self, links: &mut Links, peer: Peer, _id: LinkId) {
        match (peer, &mut self.cells.control) {
            (Peer::Node(NodeId { class: Role::Router, index }), Some(control)) => {
                control.set_report(index, None)
            }
            (Peer::Node(NodeId { class: Role::Processor, .. }), _) => {
                self.update_reply_paths(links)
            }
            _ => {}
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
        match (peer, kind, &mut self.cells.control) {
            (Peer::Node(NodeId { class: Role::Router, .. }), Kind::Request, _) => {
                return self.request(links, from, frame);
            }
            (Peer::Node(NodeId { class: Role::Router, .. }), Kind::RoutingTable, _) => {
                let map = RoutingTable::decode_newer_map(frame.shared().message, &self.map);
                if let Some(map) = map.map_err(undecodable)? {
                    self.update_map(links, map);
                }
            }
            (
                Peer::Node(NodeId { class: Role::Router, .. }),
                Kind::MoveOrder | Kind::MoveParts | Kind::MoveProgress | Kind::MoveEnded,
                _,
            ) => self.move_frame(links, frame).map_err(undecodable)?,
            (Peer::Node(NodeId { class: Role::Router, .. }), Kind::Presence, _) => {
                let presence: Presence = frame.read().map_err(undecodable)?;
                if let Some(replica) = self.cells.replica(presence.cell) {
                    replica.on_presence(&presence, links.time());
                }
            }
            // Routers send reports to all mediators; those without control ignore them.
            (
                Peer::Node(NodeId { class: Role::Router, index }),
                Kind::MembershipReport,
                control,
            ) => {
                if let Some(control) = control {
                    let report = MembershipReport::decode(frame.shared().message);
                    control.set_report(index, Some(report.map_err(undecodable)?));
                }
            }
            (Peer::Observer | Peer::Operator, Kind::AdminRequest, _) => {
                let request = frame.read().map_err(undecodable)?;
                return self.admin_request(links, from, request);
            }
            // Its processor is away, and any replica of the cell has the events.
            (Peer::Node(NodeId { class: Role::Processor, .. }), Kind::ResendRequest, _) => {
                let request: ResendRequest = frame.read().map_err(undecodable)?;
                if let Some(replica) = self.cells.voter(request.cell) {
                    let mut answer = vec![];
                    self.responses.resend(&replica.cell, &request, &mut answer);
                    links.forward(from.0, &answer);
                }
            }
            (Peer::Node(NodeId { class: Role::Processor, .. }), Kind::OrdersRequest, _) => {
                let request: OrdersRequest = frame.read().map_err(undecodable)?;
                if let Some(replica) = self.cells.voter(request.cell) {
                    links.send(from.0, &replica.cell.open_orders(&request));
                }
            }
            (Peer::Node(NodeId { class: Role::Processor, index }), Kind::CatchUp, _) => {
                let caught_up = frame.read().map_err(undecodable)?;
                self.on_caught_up(links, index, caught_up);
            }
            (peer, kind, _) => {
                return Err(PeerError::UnexpectedFrame { peer, kind, role: Role::Mediator });
            }
        }
        Ok(())
    }

    fn on_wake(&mut self, links: &mut Links) -> Result<(), Failure> {
        self.cells.on_wake(links)?;
        self.apply(links)?;
        self.update_reply_paths(links);
        if let Some(control) = &self.cells.control
            && self.map.is_older_than(&control.routes().map)
        {
            let map = control.routes().map.clone();
            self.update_map(links, map);
        }
        Ok(())
    }

    fn on_iteration(&mut self, links: &mut Links) -> Result<(), Failure> {
        if self.replies.values().any(|path| path.deadline_ns().is_some()) {
            self.update_reply_paths(links);
        }
        let is_drained = self.map.drained().contains(&Role::Mediator.node(self.index));
        if self.hand_over.is_due(links.now_ns, is_drained, self.cells.is_leading()) {
            self.cells.hand_over();
        }
        self.cells.on_iteration(links)?;
        while self.cells.advance(links, &self.map)? {
            self.apply(links)?;
        }
        Ok(())
    }

    fn deadline_ns(&self, now_ns: u64) -> Option<u64> {
        let paths = self.replies.values().filter_map(ReplyPath::deadline_ns).min();
        let deadlines = [self.cells.deadline_ns(now_ns), self.hand_over.deadline_ns(), paths];
        deadlines.into_iter().flatten().min()
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

/// Tells an observer about the replicas of a cell; an operator may have one of them replaced.
fn answer_replicas<L: Log>(
    links: &mut Links,
    to: LinkId,
    replicas: &mut [Replica<L>],
    cell: u16,
    change: Option<(NodeId, NodeId)>,
) {
    let is_it = |replica: &&mut Replica<L>| replica.number == cell && !replica.is_single();
    let Some(replica) = replicas.iter_mut().find(is_it) else {
        return links.send(to, &AdminResponse::NotLeading);
    };
    if let Some((from, to)) = change {
        replica.replace(from, to);
    }
    links.send(to, &AdminResponse::Replicas { replicas: replica.describe() });
}
