//! Mediator without replicas: puts requests in order and matches them. It may have a replica of
//! control, whose log is in memory.

use std::path::PathBuf;

use nm_book::book::Book;
use nm_book::order::InstrumentId;
use nm_model::agent::Failure;
use nm_replica::Log;
use nm_replica::journal::{self, Recorder};
use nm_sys::poll::Waker;
use nm_wire::{
    AdminRequest, CatchUp, DecodeError, FrameMut, Kind, Leader, MoveEnded, Request, Work, request,
};

use crate::batch;
use crate::cell::{Admitted, Cell};
use crate::control::{self, InstrumentMap, MembershipReport, RoutingTable};
use crate::hashes::StateHashes;
use crate::leader_clock::LeaderClock;
use crate::network::{Network, NodeId, Role};

use super::behaviour::Behaviour;
use super::cell_moves::{self, CellMoves};
use super::control::{answer, send_nodes, send_routes};
use super::groups::Logs;
use super::hand_over::HandOverTimer;
use super::links::{LinkId, Links};
use super::peer::{Peer, PeerError};
use super::replica::ControlReplica;
use super::reply_path::ReplyPath;
use super::responses::Responses;
use super::workload::Workload;

/// A mediator without replicas: it executes requests as they arrive and sends the outcomes to its
/// processor.
#[derive(Debug)]
pub struct Mediator<L> {
    index: u16,
    replies: ReplyPath,
    cell: Cell<Book>,
    /// Index of its first batch: rises with each start, if there is a record.
    term: u64,
    /// Index of the batch of this iteration, if it has begun.
    batch: Option<u64>,
    /// Where batches are recorded, if they are, and the present batch.
    recorder: Option<Recorder>,
    recorded: Vec<u8>,
    clock: LeaderClock,
    hashes: Option<StateHashes>,
    responses: Responses,
    moves: CellMoves,
    workload: Workload,
    /// The newest map that it knows.
    map: InstrumentMap,
    /// Its replica of control, if it has one.
    control: Option<ControlReplica<L>>,
    hand_over: HandOverTimer,
    requests: u64,
}

impl<L: Log> Mediator<L> {
    /// A mediator with empty books; its replica of control, if it has one, has this log.
    ///
    /// # Errors
    /// If a record cannot be opened.
    pub fn new(network: &Network, index: u16, logs: Logs<L>) -> Result<Mediator<L>, Failure> {
        let folder = network.folder(Role::Mediator.node(index)).filter(|_| network.record);
        let folder = folder.map(|folder| folder.join(format!("cell-{index}")));
        let open = |folder: PathBuf| Recorder::open(&folder, journal::Settings::default());
        let hashes = folder.as_deref().map(StateHashes::open).transpose()?;
        let recorder = folder.map(open).transpose()?;
        // A mediator that restarts continues after the last recorded batch, in another term.
        let first = recorder.as_ref().map_or(1, Recorder::next);
        let mut cell = Cell::new(index, network.active_cells());
        cell.accepts_unknown_sessions = true;
        cell.begin(first - 1, 0);
        Ok(Mediator {
            index,
            replies: ReplyPath::new(network, index),
            cell,
            term: first,
            batch: None,
            recorder,
            recorded: vec![],
            clock: LeaderClock::new(vec![Role::Mediator.node(index).to_string()], 0),
            hashes,
            responses: Responses::default(),
            moves: CellMoves::default(),
            workload: Workload::default(),
            map: InstrumentMap::of(network),
            control: ControlReplica::new(network, logs),
            hand_over: HandOverTimer::default(),
            requests: 0,
        })
    }

    /// Announces to routers that requests reach this mediator from now on, and that those before
    /// may be lost.
    fn announce(&self, links: &mut Links, routers: &[LinkId]) {
        for router in routers {
            links.send(*router, &Leader { cell: self.index, term: 0 });
        }
    }

    /// Records the batch of this iteration.
    fn flush(&mut self) -> Result<(), Failure> {
        if let (Some(index), Some(recorder)) = (self.batch.take(), &mut self.recorder) {
            recorder.batch(index, self.term, &self.recorded)?;
            recorder.flush()?;
        }
        Ok(())
    }

    /// Begins the batch of this iteration, if it has not begun.
    fn begin_batch(&mut self, links: &mut Links) {
        if self.batch.is_none() {
            let index = self.cell.index() + 1;
            self.batch = Some(index);
            let time_ns = self.clock.now_ns(|_| vec![]);
            self.clock.warnings.drain(..).for_each(|warning| links.warnings.push(warning));
            self.cell.begin(index, time_ns);
            batch::begin(time_ns, &mut self.recorded);
        }
    }

    /// Whether an instrument is here: by what the cell has executed; by the map if that knows
    /// nothing of the instrument, because a restarted cell has forgotten what it released.
    fn is_owned(&self, instrument: InstrumentId) -> bool {
        let is_known = self.cell.ownership(instrument).is_some();
        let is_here = is_known || self.map.cell_of(instrument) == self.index;
        is_here && self.cell.owns(instrument)
    }

    fn request(&mut self, links: &mut Links, from: LinkId, frame: &FrameMut<'_>) {
        // Without a processor the reply would be lost: the request is resent when there is one.
        let Some(processor) = self.replies.link(links) else { return };
        let Ok(request) = frame.read::<Request>() else { return };
        if let Some(claim) = cell_moves::claim(&self.cell, &self.map, request.instrument) {
            self.execute_entry(links, &claim);
        }
        if !self.is_owned(request.instrument) {
            if self.map.cell_of(request.instrument) != self.index {
                send_routes(links, &[from], &RoutingTable::new(self.map.clone()));
            }
            return;
        }
        self.requests += 1;
        self.begin_batch(links);
        if self.recorder.is_some() {
            self.recorded.extend_from_slice(frame.bytes);
        }
        let (now_ns, frames_before) = (links.now_ns, links.frames_out);
        let Some(output) = links.output(processor) else { return };
        let (frame, mut frames) = (frame.shared(), 0);
        let before = self.workload.before();
        let handled =
            self.responses.handle(&mut self.cell, &request, frame, &[(2, now_ns)], |out| {
                frames += 1;
                out.write(output);
            });
        links.frames_out = frames_before + frames;
        self.workload.count(&request, &handled, before);
        if self.moves.has_leaving() {
            self.moves.on_request(&mut self.cell, &request, handled);
        }
    }

    /// Executes and records an entry of a move.
    fn execute_entry(&mut self, links: &mut Links, bytes: &[u8]) {
        let Ok(Some(frame)) = nm_wire::read(bytes) else { return };
        self.begin_batch(links);
        // A damaged one has no effect: it is sent again.
        let Ok(Admitted::Move(step)) = self.cell.admit(frame) else { return };
        if self.recorder.is_some() {
            self.recorded.extend_from_slice(bytes);
        }
        self.moves.on_step(frame, step);
    }

    /// Carries on the moves of instruments.
    fn advance_moves(&mut self, links: &mut Links) {
        loop {
            let mut entries: Vec<Vec<u8>> = vec![];
            let log = |entry: &[u8]| entries.push(entry.to_vec());
            self.moves.advance(&mut self.cell, &self.map, links, log);
            if entries.is_empty() {
                break;
            }
            entries.iter().for_each(|entry| self.execute_entry(links, entry));
        }
        self.moves.tell(&mut self.cell, true, links);
    }

    /// A frame of a move.
    fn move_frame(&mut self, links: &mut Links, frame: &FrameMut<'_>) -> Result<(), DecodeError> {
        match frame.kind() {
            Kind::MoveOrder => self.moves.on_order(&mut self.cell, frame.read()?, links),
            Kind::MoveProgress => {
                self.moves.on_progress(&mut self.cell, &frame.read()?, links);
            }
            Kind::MoveParts => self.execute_entry(links, frame.bytes),
            _ => {
                let ended: MoveEnded = frame.read()?;
                self.moves.on_ended(&mut self.cell, &ended);
                if let Some(replica) = &mut self.control {
                    replica.control.on_move_ended(&ended, links.now_ns);
                }
            }
        }
        Ok(())
    }

    /// A link to a processor was made, or has broken. If replies take another way from now on,
    /// those before may be lost.
    fn update_reply_path(&mut self, links: &mut Links) {
        if self.replies.update(links) && self.replies.link(links).is_some() {
            let routers = links.all_to(Role::Router);
            self.announce(links, &routers);
            if self.replies.may_have_lost() {
                self.replies.report_loss(links);
            }
        }
    }

    /// Takes over a newer map.
    fn update_map(&mut self, links: &mut Links, map: InstrumentMap) {
        self.map = map;
        self.moves.on_map();
        if let Some(replica) = &mut self.control {
            replica.control.on_map(&self.map);
        }
        if links.update_nodes(&self.map) {
            // Replies take another way before a processor that was removed learns of that: then
            // nothing more comes to it, and it can end.
            self.replies.set_network(links.network());
            self.update_reply_path(links);
            let processors = links.all_to(Role::Processor);
            send_nodes(links, &processors, &self.map);
        }
    }

    /// The cell's own processor is there while another one stands in for it: it is to say when it
    /// has links to all gateways.
    fn ask_to_catch_up(&mut self, links: &mut Links, processor: u16) {
        if self.replies.is_own_back(processor)
            && let Some(link) = links.to(Role::Processor.node(processor))
        {
            links.send(link, &CatchUp { cell: self.index, index: 0 });
        }
    }
}

impl<L: Log> Behaviour for Mediator<L> {
    fn on_connected(&mut self, links: &mut Links, peer: Peer) {
        match peer {
            Peer::Node(NodeId { class: Role::Processor, index }) => {
                let processor: Vec<LinkId> =
                    links.to(Role::Processor.node(index)).into_iter().collect();
                send_nodes(links, &processor, &self.map);
                self.ask_to_catch_up(links, index);
                self.update_reply_path(links);
            }
            Peer::Node(NodeId { class: Role::Router, index }) => {
                let router = links.to(Role::Router.node(index));
                if let (Some(_), Some(router)) = (self.replies.link(links), router) {
                    self.announce(links, &[router]);
                }
                if let (Some(replica), Some(router)) = (&self.control, router) {
                    replica.control.on_router_connected(links, router);
                }
            }
            _ => {}
        }
    }

    fn on_disconnected(&mut self, links: &mut Links, peer: Peer, _id: LinkId) {
        match (peer, &mut self.control) {
            (Peer::Node(NodeId { class: Role::Router, index }), Some(replica)) => {
                replica.control.set_report(index, None);
            }
            (Peer::Node(NodeId { class: Role::Processor, .. }), _) => self.update_reply_path(links),
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
        match (peer, kind) {
            (Peer::Node(NodeId { class: Role::Router, .. }), Kind::Request) => {
                let request = request::View::of(frame.shared()).map_err(undecodable)?;
                if request.cell() != self.index {
                    return Err(PeerError::UnexpectedFrame { peer, kind, role: Role::Mediator });
                }
                self.request(links, from.0, frame);
            }
            (Peer::Node(NodeId { class: Role::Router, .. }), Kind::RoutingTable) => {
                let map = RoutingTable::decode_newer_map(frame.shared().message, &self.map);
                if let Some(map) = map.map_err(undecodable)? {
                    self.update_map(links, map);
                }
            }
            (Peer::Node(NodeId { class: Role::Router, index }), Kind::MembershipReport) => {
                let report = MembershipReport::decode(frame.shared().message);
                let report = report.map_err(undecodable)?;
                if let Some(replica) = &mut self.control {
                    replica.control.set_report(index, Some(report));
                }
            }
            (
                Peer::Node(NodeId { class: Role::Router, .. }),
                Kind::MoveOrder | Kind::MoveParts | Kind::MoveProgress | Kind::MoveEnded,
            ) => self.move_frame(links, frame).map_err(undecodable)?,
            (Peer::Observer | Peer::Operator, Kind::AdminRequest) => {
                let control = self.control.as_mut().map(|replica| &mut replica.control);
                let work = || {
                    let (moved, pauses_ns) = self.moves.pauses_ns();
                    let pauses_ns = pauses_ns.collect();
                    let instruments = self.workload.of(&self.cell).collect();
                    Work { moved, pauses_ns, instruments, ..control::work_until_now() }
                };
                let request: AdminRequest = frame.read().map_err(undecodable)?;
                answer(links, from, request, control, work)?;
            }
            (Peer::Node(NodeId { class: Role::Processor, .. }), Kind::ResendRequest) => {
                let request = frame.read().map_err(undecodable)?;
                if let Some(output) = links.output(from.0) {
                    self.responses.resend(&self.cell, &request, output);
                }
            }
            (Peer::Node(NodeId { class: Role::Processor, index }), Kind::CatchUp) => {
                let _: CatchUp = frame.read().map_err(undecodable)?;
                self.replies.own_caught_up(index);
                self.update_reply_path(links);
            }
            _ => return Err(PeerError::UnexpectedFrame { peer, kind, role: Role::Mediator }),
        }
        Ok(())
    }

    fn waker(&self) -> Option<&Waker> {
        self.control.as_ref().map(|replica| &replica.waker)
    }

    fn on_wake(&mut self, links: &mut Links) -> Result<(), Failure> {
        if let Some(replica) = &mut self.control {
            replica.handle_events(links);
            let map = &replica.control.routes().map;
            if self.map.is_older_than(map) {
                let map = map.clone();
                self.update_map(links, map);
            }
        }
        Ok(())
    }

    fn on_iteration(&mut self, links: &mut Links) -> Result<(), Failure> {
        if self.replies.deadline_ns().is_some() {
            self.update_reply_path(links);
        }
        self.advance_moves(links);
        self.flush()?;
        if let Some(ControlReplica { control, .. }) = &mut self.control {
            control.on_iteration(links, std::iter::once((self.index, 0)));
            // Its cell has no other replica.
            let is_drained = self.map.drained().contains(&Role::Mediator.node(self.index));
            if self.hand_over.is_due(links.now_ns, is_drained, control.is_leading()) {
                control.hand_over();
            }
        }
        Ok(())
    }

    fn deadline_ns(&self) -> Option<u64> {
        let control = self.control.as_ref().and_then(|replica| replica.control.deadline_ns());
        let (moves, hand_over) = (self.moves.deadline_ns(&self.cell), self.hand_over.deadline_ns());
        let deadlines = [control, moves, hand_over, self.replies.deadline_ns()];
        deadlines.into_iter().flatten().min()
    }

    fn on_stop(&mut self) -> Result<(), Failure> {
        self.flush()?;
        match &mut self.hashes {
            // Before the first batch of this term the state is that of another term.
            Some(hashes) if self.cell.index() >= self.term => {
                hashes.record(self.cell.index(), self.cell.hash())
            }
            _ => Ok(()),
        }
    }

    fn counts(&self) -> (u64, u64) {
        (self.requests, 0)
    }
}
