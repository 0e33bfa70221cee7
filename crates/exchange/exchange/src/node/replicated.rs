//! Mediators and processors whose cells are replicated: the leader of a cell puts requests in
//! order and proposes them in batches; every replica applies what is committed, and the processor
//! sends the replies. A request on an instrument that is in another cell is not put in order: where
//! the mediator has a newer map it sends that back, and the gateway resends the request.

use std::collections::{BTreeMap, BTreeSet};

use nm_model::agent::Failure;
use nm_replica::Log;
use nm_sys::poll::Waker;
use nm_wire::{
    AdminRequest, AdminResponse, CatchUp, DecodeError, FrameMut, Kind, Leader, Message, MoveEnded,
    MoveOrder, MoveProgress, Nak, Private, Refused, Reply, ResendRequest, move_parts, private,
    request,
};

use crate::control::{self, InstrumentMap, MembershipReport, RoutingTable};
use crate::network::{Network, NodeId, Role};

use super::behaviour::Behaviour;
use super::cell_moves;
use super::control::{answer, send_nodes, send_routes};
use super::groups::Logs;
use super::hand_over::HandOverTimer;
use super::links::{LinkId, Links};
use super::peer::{Peer, PeerError};
use super::processor::{self, GATEWAYS_NS, Leaving, is_answer};
use super::replica::{Replica, ReplicaSet};
use super::reply_path::ReplyPath;
use super::responses::{Outgoing, Responses, report_event_loss, report_loss};

/// A mediator with replicas of its own cell and of its neighbour's.
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
    /// Cells that it leads and whose processor it has no link to: it sends their replies itself,
    /// through another processor.
    replying: BTreeSet<u16>,
    responses: Responses,
    /// Frames of this iteration for a processor, by cell. They are gathered, because the replicas
    /// borrow the links meanwhile.
    gathered: BTreeMap<u16, Vec<u8>>,
    requests: u64,
}

impl<L: Log> Mediator<L> {
    /// A mediator whose replicas have these logs.
    ///
    /// # Errors
    /// If a record cannot be opened.
    pub fn new(network: &Network, index: u16, logs: Logs<L>) -> Result<Mediator<L>, Failure> {
        let cells = ReplicaSet::new(network, Role::Mediator.node(index), logs)?;
        Ok(Mediator {
            network: network.clone(),
            replies: BTreeMap::new(),
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
    fn is_owned(&mut self, request: &request::View<'_>) -> bool {
        let (instrument, cell) = (request.instrument(), request.cell());
        let Some(replica) = self.cells.replica(cell) else { return false };
        if let Some(known) = replica.cell.ownership(instrument) {
            return known.is_owner;
        }
        if let Some(claim) = cell_moves::claim(&replica.cell, &self.map, instrument) {
            replica.enqueue(&claim);
        }
        request.map_version() > self.map.version() || self.map.cell_of(instrument) == cell
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
        if !self.is_owned(&request) {
            if self.map.cell_of(request.instrument()) != cell {
                send_routes(links, &[from], &RoutingTable::new(self.map.clone()));
            }
            return Ok(());
        }
        nm_wire::stamp(frame.bytes, 2, links.now_ns);
        self.requests += u64::from(self.enqueue(cell, frame.bytes));
        Ok(())
    }

    /// A link to a processor was made or has broken, or another replica leads or has replaced one.
    /// Replies that nobody sent before are asked for by the gateways.
    fn update_reply_paths(&mut self, links: &mut Links) {
        for replica in &self.cells.replicas {
            let cell = replica.number;
            let path = self.replies.entry(cell);
            let path = path.or_insert_with(|| ReplyPath::new(&self.network, cell));
            path.set_voters(replica.voters());
            let is_changed = path.update(links);
            let is_replying = replica.is_leading() && path.is_alternate();
            if !is_replying {
                self.replying.remove(&path.cell);
            } else if self.replying.insert(path.cell) || is_changed {
                let routers = links.all_to(Role::Router);
                replica.announce(links, &routers);
                path.report_loss(links);
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
    fn handle_events(&mut self, links: &mut Links) -> Result<(), Failure> {
        let Mediator { cells, replying, responses, gathered, .. } = self;
        cells.handle_events(links, &mut |cell, request, frame, _| {
            if !replying.contains(&cell.number()) {
                return cell.handle(request, |_| {});
            }
            let bytes = gathered.entry(cell.number()).or_default();
            responses.handle(cell, request, frame, &[], |out| out.write(bytes))
        })?;
        for path in self.replies.values() {
            if let Some(bytes) = self.gathered.remove(&path.cell)
                && let Some(processor) = path.link(links)
            {
                links.forward(processor, &bytes);
            }
        }
        Ok(())
    }

    /// Adds a frame to the backlog of its cell.
    fn enqueue(&mut self, cell: u16, bytes: &[u8]) -> bool {
        self.cells.replica(cell).is_some_and(|replica| replica.enqueue(bytes))
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
                self.enqueue(move_parts::View::of(frame.shared())?.to(), frame.bytes);
            }
            _ => {
                let ended: MoveEnded = frame.read()?;
                self.cells.replicas.iter_mut().for_each(|replica| replica.on_move_ended(&ended));
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
            request => answer(links, from, request, control.as_mut(), || {
                let mut work = control::work_until_now();
                replicas.iter().for_each(|replica| replica.add_work(&mut work));
                work
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
            self.cells.replicas.iter().for_each(|replica| replica.announce(links, &processor));
        }
        if let Peer::Node(NodeId { class: Role::Router, index }) = peer
            && let Some(router) = links.to(Role::Router.node(index))
        {
            self.cells.replicas.iter().for_each(|replica| replica.announce(links, &[router]));
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
                if let Some(replica) = self.cells.voter(request.cell)
                    && let Some(output) = links.output(from.0)
                {
                    self.responses.resend(&replica.cell, &request, output);
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

    fn waker(&self) -> Option<&Waker> {
        Some(&self.cells.waker)
    }

    fn on_wake(&mut self, links: &mut Links) -> Result<(), Failure> {
        self.handle_events(links)?;
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
        self.cells.on_iteration(links, &self.map)
    }

    fn deadline_ns(&self) -> Option<u64> {
        let paths = self.replies.values().filter_map(ReplyPath::deadline_ns).min();
        let deadlines = [self.cells.deadline_ns(), self.hand_over.deadline_ns(), paths];
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
    let Some(replica) = replicas.iter_mut().find(|replica| replica.number == cell) else {
        return links.send(to, &AdminResponse::NotLeading);
    };
    if let Some((from, to)) = change {
        replica.replace(from, to);
    }
    links.send(to, &AdminResponse::Replicas { replicas: replica.describe() });
}

/// A processor with replicas of its mediators' cells.
#[derive(Debug)]
pub struct Processor<L> {
    pub(super) cells: ReplicaSet<L>,
    /// The map, as of the last change of the nodes: a processor leads nothing, and needs no newer
    /// one.
    map: InstrumentMap,
    responses: Responses,
    /// Which one it is, the cells whose replies may take this way, and with how many mediators
    /// the network began.
    index: u16,
    cells_through: Vec<u16>,
    founders: u16,
    /// By cell: the mediator that leads it, and its term.
    leaders: BTreeMap<u16, (u32, u16)>,
    /// By cell and mediator: the entry that it waits for, and until when links to all gateways are
    /// waited for, ns.
    catch_ups: BTreeMap<(u16, u16), (u64, u64)>,
    /// By gateway: whether it is connected, and its frames of this iteration. They are gathered,
    /// because the replicas borrow the links meanwhile.
    gathered: Vec<(bool, Vec<u8>)>,
    leaving: Leaving,
    replies: u64,
}

impl<L: Log> Processor<L> {
    /// A processor whose replicas have these logs.
    ///
    /// # Errors
    /// If a record cannot be opened.
    pub fn new(network: &Network, index: u16, logs: Logs<L>) -> Result<Processor<L>, Failure> {
        Ok(Processor {
            cells: ReplicaSet::new(network, Role::Processor.node(index), logs)?,
            map: InstrumentMap::of(network),
            cells_through: network.cells_through(index),
            founders: network.founders() as u16,
            index,
            leaders: BTreeMap::new(),
            catch_ups: BTreeMap::new(),
            responses: Responses::default(),
            gathered: vec![],
            leaving: Leaving::default(),
            replies: 0,
        })
    }
}

impl<L: Log> Processor<L> {
    /// Cells whose replies and events gateways have from here.
    fn cells_sent(&self) -> BTreeSet<u16> {
        let own = self.cells.replicas.iter().map(|replica| replica.number);
        self.cells_through.iter().copied().chain(own).collect()
    }

    /// A mediator knows that others were added or removed. Whatever was on its way from a cell that
    /// was removed is asked for in the cells that have its instruments now.
    fn update_map(&mut self, links: &mut Links, map: &InstrumentMap) {
        if !self.map.update(map) || !links.update_nodes(&self.map) {
            return;
        }
        let before = self.cells_sent();
        self.cells_through = links.network().cells_through(self.index);
        for cell in before.into_iter().filter(|cell| !self.map.has_cell(*cell)) {
            self.leaders.remove(&cell);
            for gateway in 0..links.network().nodes(Role::Gateway).len() as u16 {
                report_loss(links, gateway, cell);
            }
        }
    }

    /// Notifies the mediators that wait until this processor can send the replies of a cell.
    fn answer_catch_ups(&mut self, links: &mut Links) {
        let Processor { cells, catch_ups, .. } = self;
        if catch_ups.is_empty() {
            return;
        }
        let has_gateways = processor::has_gateways(links);
        catch_ups.retain(|(cell, mediator), (index, until_ns)| {
            let applied = cells.voter(*cell).map(|replica| replica.cell.index());
            let is_due = has_gateways || links.now_ns >= *until_ns;
            let is_done = is_due && applied >= Some(*index);
            if is_done && let Some(link) = links.to(Role::Mediator.node(*mediator)) {
                links.send(link, &CatchUp { cell: *cell, index: *index });
            }
            // It is tried again when the processor has executed more.
            *until_ns = if is_due { 0 } else { *until_ns };
            !is_done
        });
    }

    /// Answers a resend request; if the cell is none of its own, a mediator does that has it.
    fn resend(
        &mut self,
        links: &mut Links,
        gateway: LinkId,
        frame: &FrameMut<'_>,
    ) -> Result<(), DecodeError> {
        let request: ResendRequest = frame.read()?;
        let cell = request.cell;
        if let Some(replica) = self.cells.voter(cell) {
            if let Some(output) = links.output(gateway) {
                self.responses.resend(&replica.cell, &request, output);
            }
            return Ok(());
        }
        let leader = self.leaders.get(&cell).map(|(_, mediator)| *mediator);
        let first = [cell, cell.wrapping_add(1) % self.founders];
        let mut up = leader
            .into_iter()
            .chain(first)
            .filter_map(|mediator| links.to(Role::Mediator.node(mediator)));
        if let Some(mediator) = up.next() {
            links.forward(mediator, frame.bytes);
        }
        Ok(())
    }
}

impl<L: Log> Behaviour for Processor<L> {
    fn on_connected(&mut self, links: &mut Links, peer: Peer) {
        if let Peer::Node(NodeId { class: Role::Gateway, index }) = peer {
            self.cells_sent().into_iter().for_each(|cell| report_loss(links, index, cell));
        }
    }

    fn on_disconnected(&mut self, links: &mut Links, peer: Peer, _id: LinkId) {
        if let Peer::Node(NodeId { class: Role::Gateway, .. }) = peer {
            report_event_loss(links, self.cells_sent());
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
                self.resend(links, from.0, frame).map_err(undecodable)?;
            }
            (Peer::Node(NodeId { class: Role::Gateway, index }), Kind::Private) => {
                processor::forward_elsewhere(links, frame.bytes, index);
            }
            (Peer::Node(NodeId { class: Role::Mediator, index: mediator }), Kind::RoutingTable) => {
                let routes = RoutingTable::decode(frame.shared().message).map_err(undecodable)?;
                self.leaving.on_map(mediator, &routes.map, self.index);
                self.update_map(links, &routes.map);
            }
            (Peer::Node(NodeId { class: Role::Mediator, index }), Kind::Leader) => {
                let Leader { cell, term } = frame.read().map_err(undecodable)?;
                let known = self.leaders.entry(cell).or_default();
                *known = (*known).max((term, index));
            }
            (Peer::Node(NodeId { class: Role::Mediator, index }), Kind::CatchUp) => {
                let CatchUp { cell, index: entry } = frame.read().map_err(undecodable)?;
                if self.cells.replica(cell).is_some() {
                    let until_ns = links.now_ns + GATEWAYS_NS;
                    self.catch_ups.insert((cell, index), (entry, until_ns));
                }
            }
            // The processor of its cell is away.
            (Peer::Node(NodeId { class: Role::Mediator, .. }), _) => {
                if !processor::forward(links, frame).map_err(undecodable)? {
                    return Err(PeerError::UnexpectedFrame { peer, kind, role: Role::Processor });
                }
                self.replies += u64::from(is_answer(kind));
            }
            _ => return Err(PeerError::UnexpectedFrame { peer, kind, role: Role::Processor }),
        }
        Ok(())
    }

    fn waker(&self) -> Option<&Waker> {
        Some(&self.cells.waker)
    }

    fn on_wake(&mut self, links: &mut Links) -> Result<(), Failure> {
        self.gathered.resize(links.network().nodes(Role::Gateway).len(), (false, vec![]));
        let (responses, gathered) = (&mut self.responses, &mut self.gathered);
        let (mut frames, mut replies) = (0, 0);
        for ((is_up, _), index) in gathered.iter_mut().zip(0..) {
            *is_up = links.to(Role::Gateway.node(index)).is_some();
        }
        self.cells.handle_events(links, &mut |cell, request, frame, now_ns| {
            responses.handle(cell, request, frame, &[(3, now_ns)], |out| {
                replies += u64::from(is_answer(out.message.kind()));
                frames += gather(gathered, out);
            })
        })?;
        for ((_, bytes), index) in self.gathered.iter_mut().zip(0..) {
            if let Some(gateway) = links.to(Role::Gateway.node(index)).filter(|_| !bytes.is_empty())
            {
                links.forward(gateway, bytes);
            }
            bytes.clear();
        }
        self.replies += replies;
        links.frames_out += frames;
        Ok(())
    }

    fn on_iteration(&mut self, links: &mut Links) -> Result<(), Failure> {
        self.answer_catch_ups(links);
        self.cells.on_iteration(links, &self.map)
    }

    fn deadline_ns(&self) -> Option<u64> {
        let waited = self.catch_ups.values().map(|(_, until_ns)| *until_ns);
        let catch_up = waited.filter(|until_ns| *until_ns > 0).min();
        [catch_up, self.cells.deadline_ns()].into_iter().flatten().min()
    }

    fn is_ready(&self) -> bool {
        self.cells.is_ready()
    }

    fn has_left(&self, links: &Links) -> bool {
        self.leaving.is_done(links)
    }

    fn on_stop(&mut self) -> Result<(), Failure> {
        self.cells.on_stop()
    }

    fn counts(&self) -> (u64, u64) {
        (self.replies, 0)
    }
}

/// Adds a frame to those of the gateways that it is for; how many these are. Events of a session
/// whose gateway is away are for all others, and are marked so.
fn gather(gathered: &mut [(bool, Vec<u8>)], out: &Outgoing<'_>) -> u64 {
    let gateway = match out.message {
        Message::Reply(Reply { gateway, .. })
        | Message::Refused(Refused { gateway, .. })
        | Message::Private(Private { gateway, .. })
        | Message::Nak(Nak { gateway, .. }) => Some(usize::from(gateway)),
        _ => None,
    };
    let is_private = matches!(out.message, Message::Private(_));
    let is_away = |at: usize| gathered.get(at).is_none_or(|(is_up, _)| !is_up);
    let is_astray = is_private && gateway.is_some_and(is_away);
    let to = match gateway {
        Some(at) if !is_astray => at..at + 1,
        _ => 0..gathered.len(),
    };
    let mut frames = 0;
    for (_, bytes) in gathered.get_mut(to).into_iter().flatten().filter(|(is_up, _)| *is_up) {
        frames += 1;
        let start = bytes.len();
        out.write(bytes);
        if is_astray
            && let Ok(mut frame) = FrameMut::of(&mut bytes[start..])
            && let Ok(mut edit) = private::Edit::of(&mut frame)
        {
            edit.is_astray(true);
        }
    }
    frames
}
