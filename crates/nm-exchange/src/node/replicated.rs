//! Mediators and processors whose cells are replicated: the leader of a cell puts requests in
//! order and proposes them in batches; every replica applies what is committed, and the processor
//! answers. A request whose cell was chosen by an older map than the mediator has, and is another
//! one by it, is not put in order: the mediator sends its map back, and the gateway sends it again.

use std::collections::VecDeque;

use nm_book::book::Book;
use nm_model::agent::{Failure, FailureKind};
use nm_replica::journal::{self, Recorder};
use nm_replica::{Log, LogEvent, RaftLog, Refused, Replicas};
use nm_sys::clock;
use nm_sys::poll::Waker;

use crate::batch;
use crate::cell::{self, Admitted, Cell, Request};
use crate::control::{Map, MembershipReport, RoutingTable};
use crate::hashes::StateHashes;
use crate::link::{LinkError, ReceivedFrame};
use crate::network::{CONTROL, Durability, Network, Role};
use crate::wire::{self, Frame, FrameKind, Header};

use super::Behaviour;
use super::answer::Answers;
use super::control::{Control, tell_routes};
use super::groups;
use super::links::{LinkId, Links, Peer};

/// Bytes of requests that may wait for room in the log; more are lost, and sent again.
const WAITING_BYTES_MAX: usize = 64 << 20;

/// How a record that promises nothing is kept: in small files, because a node that starts again
/// fills the rest of one with zeros before it does anything else.
const RECORD: journal::Settings = journal::Settings { file_bytes: 8 << 20 };

/// Applies a request; the last is when its batch was told, ns on the machine's clock.
type Apply<'a> = dyn FnMut(&mut Cell<Book>, &Request, &Frame<'_>, u64) + 'a;

/// One replica of a cell.
#[derive(Debug)]
struct Replica<L> {
    number: u16,
    cell: Cell<Book>,
    log: L,
    /// Batches that wait for room in the log; the last one still grows.
    waiting: VecDeque<Vec<u8>>,
    waiting_bytes: usize,
    /// Number of the snapshot that is being copied.
    copying: Option<u64>,
    recorder: Option<Recorder>,
    /// Where its states are written down, if anything is recorded.
    hashes: Option<StateHashes>,
    /// Answers to control of this turn.
    released: Vec<Header>,
}

impl<L: Log> Replica<L> {
    fn new(
        number: u16,
        log: L,
        recorder: Option<Recorder>,
        hashes: Option<StateHashes>,
    ) -> Replica<L> {
        Replica {
            number,
            cell: Cell::default(),
            log,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            copying: None,
            recorder,
            hashes,
            released: vec![],
        }
    }

    /// Takes all that is told; a leadership that is new is announced.
    fn hear(&mut self, links: &mut Links, apply: &mut Apply<'_>) -> Result<(), Failure> {
        while let Some(told) = self.log.next_event() {
            match told {
                LogEvent::Committed { index, term, batch } => {
                    self.apply(index, &batch, apply)?;
                    self.tell_released(links);
                    if let Some(recorder) = &mut self.recorder {
                        recorder.batch(index, term, &batch)?;
                    }
                }
                LogEvent::TakeSnapshot { number } => {
                    self.cell.begin_snapshot();
                    self.copying = Some(number);
                }
                LogEvent::LoadSnapshot { index, state } => {
                    let broken = |message| Failure::new(FailureKind::System, message);
                    let accepts_unknown_sessions = self.cell.accepts_unknown_sessions;
                    self.cell = Cell::load(&state).map_err(broken)?;
                    self.cell.accepts_unknown_sessions = accepts_unknown_sessions;
                    self.copying = None;
                    // What it did not apply itself it has not told.
                    let header =
                        Header { cell: self.number, ..Header::new(FrameKind::ResendRequest) };
                    for gateway in links.all_to(Role::Gateway) {
                        links.send(gateway, &header, &[], 0);
                    }
                    if let Some(recorder) = &mut self.recorder {
                        recorder.missed(index)?;
                    }
                }
                LogEvent::LeadershipGained { .. } => {
                    self.forget();
                    let routers = links.all_to(Role::Router);
                    self.announce(links, &routers);
                }
                LogEvent::LeadershipLost => self.forget(),
                LogEvent::CaughtUp => {}
                LogEvent::Degraded(message) => {
                    links.troubles.push(format!("cell {} waits: {message}", self.number));
                }
                LogEvent::Stopped(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn apply(&mut self, index: u64, batch: &[u8], apply: &mut Apply<'_>) -> Result<(), Failure> {
        let wrong = |_| {
            let message = format!("batch {index} of cell {} is damaged", self.number);
            Failure::new(FailureKind::System, message)
        };
        let (time_ns, frames) = batch::decode(batch).map_err(wrong)?;
        self.cell.begin(index, time_ns);
        let now_ns = clock::monotonic_ns();
        for frame in frames {
            let frame = frame.map_err(wrong)?;
            match self.cell.admit(&frame).map_err(wrong)? {
                Admitted::Request(request) => apply(&mut self.cell, &request, &frame, now_ns),
                Admitted::NotOwned => {}
                Admitted::Released(is_given) => {
                    let flags = if is_given { wire::GRANTED } else { 0 };
                    let kind = FrameKind::Released;
                    self.released.push(Header { kind, flags, ..frame.header });
                }
            }
        }
        Ok(())
    }

    /// Tells routers that this replica leads, and that requests before may be lost.
    fn announce(&self, links: &mut Links, routers: &[LinkId]) {
        let Some(epoch) = self.log.leading_term() else { return };
        let header =
            Header { cell: self.number, map_version: epoch, ..Header::new(FrameKind::Leader) };
        for router in routers {
            links.send(*router, &header, &[], 0);
        }
    }

    /// Tells control, by any router, what became of instruments that it asked for.
    fn tell_released(&mut self, links: &mut Links) {
        let router = links.all_to(Role::Router).first().copied();
        let is_leader = self.log.leading_term().is_some();
        for header in self.released.drain(..) {
            if let Some(router) = router.filter(|_| is_leader) {
                links.send(router, &header, &[], 0);
            }
        }
    }

    /// Drops what waits: who leads then is told again by the gateways.
    fn forget(&mut self) {
        self.waiting.clear();
        self.waiting_bytes = 0;
    }

    /// Queues a request, if this replica leads.
    fn queue(&mut self, bytes: &[u8]) -> bool {
        if self.log.leading_term().is_none() || self.waiting_bytes > WAITING_BYTES_MAX {
            return false;
        }
        let fits = |last: &Vec<u8>| last.len() + bytes.len() <= nm_replica::BATCH_BYTES_MAX;
        if !self.waiting.back().is_some_and(fits) {
            let mut batch = Vec::with_capacity(bytes.len() * 4);
            batch::begin(batch::now_ns(), &mut batch);
            self.waiting.push_back(batch);
        }
        if let Some(last) = self.waiting.back_mut() {
            last.extend_from_slice(bytes);
        }
        self.waiting_bytes += bytes.len();
        true
    }

    /// Proposes what waits, copies a little, writes what is recorded.
    fn turn(&mut self) -> Result<(), Failure> {
        while self.log.can_propose()
            && let Some(batch) = self.waiting.pop_front()
        {
            self.waiting_bytes =
                self.waiting_bytes.saturating_sub(batch.len() - batch::HEADER_BYTES);
            if let Err(Refused(batch)) = self.log.propose(batch) {
                self.waiting_bytes += batch.len() - batch::HEADER_BYTES;
                self.waiting.push_front(batch);
                break;
            }
        }
        if let Some(number) = self.copying
            && let Some(state) = self.cell.copy_next()
        {
            self.copying = None;
            if let (Some(hashes), Some(index)) = (&mut self.hashes, cell::index_of(&state)) {
                hashes.record_snapshot(index, &state)?;
            }
            self.log.finish_snapshot(number, state);
        }
        Ok(self.recorder.as_mut().map_or(Ok(()), Recorder::flush)?)
    }

    /// Writes down what is recorded, and the state.
    fn end(&mut self) -> Result<(), Failure> {
        self.recorder.as_mut().map_or(Ok(()), Recorder::flush)?;
        let Some(hashes) = &mut self.hashes else { return Ok(()) };
        hashes.settle()?;
        match self.cell.index() {
            0 => Ok(()),
            index => hashes.record(index, self.cell.hash()),
        }
    }
}

/// The replicas that a node has.
#[derive(Debug)]
struct Cells {
    waker: Waker,
    replicas: Vec<Replica<RaftLog>>,
    /// Of the control group, if the node has one.
    control: Option<Control<RaftLog>>,
    /// The thread of the logs, which ends with this.
    _thread: Replicas,
}

impl Cells {
    fn new(network: &Network, role: Role, index: usize) -> Result<Cells, Failure> {
        let system = |error: std::io::Error| Failure::new(FailureKind::System, error.to_string());
        let waker = Waker::new().map_err(system)?;
        let settings = nm_replica::Settings { keep_all: network.record, ..Default::default() };
        let (thread, logs) = groups::start(network, role, index, settings, waker.clone())?;
        // With a disk quorum, the log's own journal is the record.
        let records = network.record && network.durability != Durability::DiskQuorum;
        let (mut replicas, mut control) = (vec![], None);
        for log in logs {
            let number = log.group_id();
            if number == CONTROL {
                control = Some(Control::new(network, log));
                continue;
            }
            let folder = network.folder(role, index).filter(|_| network.record);
            let folder = folder.map(|folder| folder.join(format!("cell-{number}")));
            let hashes = folder.as_deref().map(StateHashes::open).transpose()?;
            let recorder = folder
                .filter(|_| records)
                .map(|folder| Recorder::open(&folder, RECORD))
                .transpose()?;
            let mut replica = Replica::new(number, log, recorder, hashes);
            // Replicas that all lose their memory at once begin anew.
            replica.cell.accepts_unknown_sessions = network.durability == Durability::MemoryQuorum;
            replicas.push(replica);
        }
        Ok(Cells { waker, replicas, control, _thread: thread })
    }

    fn hear(&mut self, links: &mut Links, apply: &mut Apply<'_>) -> Result<(), Failure> {
        self.waker.drain();
        if let Some(control) = &mut self.control {
            control.hear(links);
        }
        self.replicas.iter_mut().try_for_each(|replica| replica.hear(links, apply))
    }

    fn turn(&mut self, links: &mut Links) -> Result<(), Failure> {
        if let Some(control) = &mut self.control {
            let leads =
                |replica: &Replica<RaftLog>| Some((replica.number, replica.log.leading_term()?));
            control.turn(links, self.replicas.iter().filter_map(leads));
        }
        self.replicas.iter_mut().try_for_each(Replica::turn)
    }

    fn end(&mut self) -> Result<(), Failure> {
        self.replicas.iter_mut().try_for_each(Replica::end)
    }

    /// Whether all of its replicas could stand in for others.
    fn is_ready(&self) -> bool {
        self.replicas.iter().all(|replica| replica.log.is_caught_up())
            && self.control.as_ref().is_none_or(Control::is_whole)
    }

    /// At once while a snapshot is copied.
    fn due_ns(&self) -> Option<u64> {
        let is_copying = self.replicas.iter().any(|replica| replica.copying.is_some());
        is_copying.then_some(0).or_else(|| self.control.as_ref()?.due_ns())
    }
}

/// A mediator with replicas of its own cell and of its neighbour's.
#[derive(Debug)]
pub struct Mediator {
    cells: Cells,
    /// The newest map that it knows.
    map: Map,
    requests: u64,
}

impl Mediator {
    /// A mediator whose replicas join their groups from now on.
    pub fn new(network: &Network, index: usize) -> Result<Mediator, Failure> {
        let map = Map::new(network.mediator.len());
        Ok(Mediator { cells: Cells::new(network, Role::Mediator, index)?, map, requests: 0 })
    }

    /// Whether the map gives a request's instrument to the cell that it came to. Where the request
    /// was routed by a newer map, that one says so.
    fn is_here(&self, header: &Header) -> bool {
        header.map_version > self.map.epoch() || self.map.cell_of(header.instrument) == header.cell
    }

    fn request(
        &mut self,
        links: &mut Links,
        from: LinkId,
        frame: &mut ReceivedFrame<'_>,
    ) -> Result<(), LinkError> {
        // What cannot be applied must not come into the log.
        if Request::from_parts(&frame.header, frame.body()).is_err() {
            return Err(LinkError("a router sent a request that means nothing".to_string()));
        }
        if !self.is_here(&frame.header) {
            let leaders = Default::default();
            tell_routes(links, from, &RoutingTable { map: self.map.clone(), leaders });
            return Ok(());
        }
        wire::stamp(frame.bytes, 2, links.now_ns);
        self.requests += u64::from(self.queue(frame));
        Ok(())
    }

    /// Queues a frame for the log of its cell.
    fn queue(&mut self, frame: &ReceivedFrame<'_>) -> bool {
        let mut replicas = self.cells.replicas.iter_mut();
        let replica = replicas.find(|replica| replica.number == frame.header.cell);
        replica.is_some_and(|replica| replica.queue(frame.bytes))
    }
}

impl Behaviour for Mediator {
    fn up(&mut self, links: &mut Links, peer: Peer) {
        if let Peer::Node(Role::Router, index) = peer
            && let Some(router) = links.to(Role::Router, index)
        {
            self.cells.replicas.iter().for_each(|replica| replica.announce(links, &[router]));
            if let Some(control) = &self.cells.control {
                control.greet(links, router);
            }
        }
    }

    fn down(&mut self, _links: &mut Links, peer: Peer, _id: LinkId) {
        if let (Peer::Node(Role::Router, index), Some(control)) = (peer, &mut self.cells.control) {
            control.view(index, None);
        }
    }

    fn frame(
        &mut self,
        links: &mut Links,
        from: (LinkId, Peer),
        frame: &mut ReceivedFrame<'_>,
    ) -> Result<(), LinkError> {
        let bad =
            |_| LinkError(format!("{} sent a {:?} without meaning", from.1, frame.header.kind));
        match (from.1, frame.header.kind, &mut self.cells.control) {
            (Peer::Node(Role::Router, _), FrameKind::Request, _) => {
                return self.request(links, from.0, frame);
            }
            (Peer::Node(Role::Router, _), FrameKind::RoutingTable, _) => {
                self.map.take(&RoutingTable::whole(frame.body()).map_err(bad)?.map);
            }
            (Peer::Node(Role::Router, _), FrameKind::Release, _) => {
                self.queue(frame);
            }
            (Peer::Node(Role::Router, index), FrameKind::MembershipReport, Some(control)) => {
                control.view(index, Some(MembershipReport::whole(frame.body()).map_err(bad)?));
            }
            (Peer::Node(Role::Router, _), FrameKind::Released, Some(control)) => {
                control.released(&frame.header);
            }
            (Peer::Observer, FrameKind::AdminRequest, Some(control)) => {
                return control.ask(links, from.0, frame.body());
            }
            // What is for control concerns no other mediator.
            (
                Peer::Node(Role::Router, _),
                FrameKind::MembershipReport | FrameKind::Released,
                None,
            ) => {}
            (peer, kind, _) => {
                return Err(LinkError(format!("{peer} sent a {kind:?} to a mediator")));
            }
        }
        Ok(())
    }

    fn waker(&self) -> Option<&Waker> {
        Some(&self.cells.waker)
    }

    fn woken(&mut self, links: &mut Links) -> Result<(), Failure> {
        self.cells.hear(links, &mut |cell, request, _, _| {
            cell.handle(request, |_| {});
        })?;
        if let Some(control) = &self.cells.control {
            self.map.take(&control.routes().map);
        }
        Ok(())
    }

    fn turn(&mut self, links: &mut Links) -> Result<(), Failure> {
        self.cells.turn(links)
    }

    fn due_ns(&self) -> Option<u64> {
        self.cells.due_ns()
    }

    fn is_ready(&self) -> bool {
        self.cells.is_ready()
    }

    fn end(&mut self) -> Result<(), Failure> {
        self.cells.end()
    }

    fn counts(&self) -> (u64, u64) {
        (self.requests, 0)
    }
}

/// A processor with replicas of its mediators' cells.
#[derive(Debug)]
pub struct Processor {
    cells: Cells,
    answers: Answers,
    /// By gateway: whether it is up, and its frames of this turn. They are gathered, because the
    /// links are lent to the replicas meanwhile.
    gathered: Vec<(bool, Vec<u8>)>,
    replies: u64,
}

impl Processor {
    /// A processor whose replicas join their groups from now on.
    pub fn new(network: &Network, index: usize) -> Result<Processor, Failure> {
        Ok(Processor {
            cells: Cells::new(network, Role::Processor, index)?,
            answers: Answers::default(),
            gathered: vec![(false, vec![]); network.gateway.len()],
            replies: 0,
        })
    }
}

impl Behaviour for Processor {
    fn frame(
        &mut self,
        links: &mut Links,
        from: (LinkId, Peer),
        frame: &mut ReceivedFrame<'_>,
    ) -> Result<(), LinkError> {
        let (Peer::Node(Role::Gateway, _), FrameKind::ResendRequest) = (from.1, frame.header.kind)
        else {
            return Err(LinkError(format!(
                "{} sent a {:?} to a processor",
                from.1, frame.header.kind
            )));
        };
        let mut replicas = self.cells.replicas.iter();
        if let Some(replica) = replicas.find(|replica| replica.number == frame.header.cell)
            && let Some(output) = links.output(from.0)
        {
            self.answers.recall(&replica.cell, &frame.header, output);
        }
        Ok(())
    }

    fn waker(&self) -> Option<&Waker> {
        Some(&self.cells.waker)
    }

    fn woken(&mut self, links: &mut Links) -> Result<(), Failure> {
        let (answers, gathered) = (&mut self.answers, &mut self.gathered);
        let (mut frames, mut replies) = (0, 0);
        for (index, (is_up, _)) in gathered.iter_mut().enumerate() {
            *is_up = links.to(Role::Gateway, index).is_some();
        }
        self.cells.hear(links, &mut |cell, request, frame, now_ns| {
            answers.handle(cell, request, frame, &[(3, now_ns)], |out| {
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
            });
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

    fn turn(&mut self, links: &mut Links) -> Result<(), Failure> {
        self.cells.turn(links)
    }

    fn due_ns(&self) -> Option<u64> {
        self.cells.due_ns()
    }

    fn is_ready(&self) -> bool {
        self.cells.is_ready()
    }

    fn end(&mut self) -> Result<(), Failure> {
        self.cells.end()
    }

    fn counts(&self) -> (u64, u64) {
        (self.replies, 0)
    }
}
