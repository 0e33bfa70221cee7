//! The replicas of cells that a node has: what their logs commit is applied, what was received is
//! proposed, and snapshots are copied.

pub mod absence;
pub mod cell_log;
pub mod cell_moves;
pub mod directions;
pub mod followers;
pub mod logs;
pub mod responses;
pub mod workload;

use std::collections::{BTreeSet, VecDeque};
use std::path::PathBuf;

use nm_book::book::Book;
use nm_book::order::InstrumentId;
use nm_codec::DecodeError;
use nm_model::agent::{Failure, FailureKind};
use nm_replica::journal::{self, Recorder};
use nm_replica::{Log, LogEvent, Refused};
use nm_wire::{
    AdminResponse, Direction, Firms as FirmsEntry, Frame, Holdings, Leader, Presence, Retire,
    Retired, Standing, Stop, StopOrder,
};

use crate::background;
use crate::batch;
use crate::cell::{self, Admitted, Cell, DESK, Handled, Request};
use crate::control::{CellReplicas, InstrumentMap, Work};
use crate::firms::Firms;
use crate::hashes::StateHashes;
use crate::leader_clock::LeaderClock;
use crate::limits::DIRECTIONS_WAITING_MAX;
use crate::moves::{MoveEnded, MoveOrder, MoveProgress};
use crate::network::{CONTROL, Durability, Network, NodeId, Role};
use crate::time::Time;

use crate::node::control::Control;
use crate::node::runtime::links::{LinkId, Links};
use absence::Absence;
use cell_log::{CellLog, SingleLog};
use cell_moves::CellMoves;
use directions::{Directions, tell_gateways};
use followers::Followers;
use logs::{LogSource, Logs};
use responses::report_loss;
use workload::Workload;

/// Most bytes of requests that wait to be proposed; more are dropped, and resent by gateways.
const BACKLOG_BYTES_MAX: usize = 64 << 20;

/// How a record without durability is kept: in small files, because a node that restarts fills the
/// rest of one with zeros before it does anything else.
const RECORD: journal::Settings = journal::Settings { file_bytes: 8 << 20 };

/// Applies a request; the last argument is when its batch was committed, ns on the machine's clock.
pub type Apply<'a> = dyn FnMut(&mut Cell<Book>, &Request, Frame<'_>, u64) -> Handled + 'a;

/// One replica of a cell.
#[derive(Debug)]
pub struct Replica<L> {
    /// Number of the cell.
    pub number: u16,
    /// Its state.
    pub cell: Cell<Book>,
    log: CellLog<L>,
    /// A batch that ends the transfer of an instrument, until the instrument's book is loaded. The
    /// leader waits longer than its own replica takes, but another one may take longer still.
    held: Option<LogEvent>,
    /// Batches that wait to be proposed; the last one still grows.
    backlog: VecDeque<Vec<u8>>,
    backlog_bytes: usize,
    /// Number of the snapshot that is being copied.
    copying: Option<u64>,
    recorder: Option<Recorder>,
    /// Where its state hashes are recorded, if anything is.
    hashes: Option<StateHashes>,
    pub(super) moves: CellMoves,
    directions: Directions,
    /// Decisions on owners of which their sessions are to be told.
    decided: Vec<StopOrder>,
    workload: Workload,
    absence: Absence,
    /// Version of the firms that it has proposed last.
    proposed_firms: u64,
    /// Index of the state with which it began.
    begun_at: u64,
    /// The time of the batches that it proposes.
    clock: LeaderClock,
    /// The nodes that may have a replica of the cell, and which of them this one is.
    places: Vec<NodeId>,
    own: usize,
    /// Those that have one, by their positions in `places`.
    voters: Vec<usize>,
    /// Why a replica was not replaced by another one, since the last request to do so.
    replace_failed: Option<String>,
    /// Whether another one has replaced it.
    is_removed: bool,
}

impl<L: Log> Replica<L> {
    fn new(
        cell: Cell<Book>,
        log: CellLog<L>,
        (places, own, voters): (Vec<NodeId>, usize, usize),
        (recorder, hashes): (Option<Recorder>, Option<StateHashes>),
    ) -> Replica<L> {
        let names = places.iter().map(NodeId::to_string).collect();
        Replica {
            clock: LeaderClock::new(names, own),
            places,
            own,
            voters: (0..voters).collect(),
            replace_failed: None,
            is_removed: false,
            number: cell.number(),
            begun_at: cell.index(),
            cell,
            log,
            held: None,
            backlog: VecDeque::new(),
            backlog_bytes: 0,
            copying: None,
            recorder,
            hashes,
            moves: CellMoves::default(),
            directions: Directions::default(),
            decided: vec![],
            workload: Workload::default(),
            absence: Absence::default(),
            proposed_firms: 0,
        }
    }

    /// The nodes that have a replica of the cell.
    pub fn voters(&self) -> impl Iterator<Item = NodeId> {
        self.voters.iter().filter_map(|at| self.places.get(*at)).copied()
    }

    /// Whether no other node has a replica of the cell.
    pub fn is_single(&self) -> bool {
        self.log.is_single()
    }

    /// Whether this replica is one of them, and not one that is still brought up to date.
    pub fn is_voter(&self) -> bool {
        self.voters.contains(&self.own)
    }

    /// Has another node's replica replace that of a node, if this one leads.
    pub fn replace(&mut self, from: NodeId, to: NodeId) {
        let at = |node: NodeId| self.places.iter().position(|place| *place == node);
        self.replace_failed = None;
        if let (Some(from), Some(to)) = (at(from), at(to)) {
            self.log.replace(from, to);
        }
    }

    /// What a session or an owner has in the cell. A part of it is removed, if this one leads.
    pub fn retire(&mut self, retired: Retired, now: Time) -> Holdings {
        let holdings = self.cell.holdings_of(retired);
        if holdings != Holdings::default() {
            let mut entry = vec![];
            nm_wire::write(&Retire { cell: self.number, retired }, &mut entry);
            self.enqueue(&entry, now);
        }
        holdings
    }

    /// What holds on whether an owner may send orders. A later decision is proposed.
    pub fn stop(&mut self, order: StopOrder, now: Time) -> AdminResponse {
        let (stops, owner) = (self.cell.stops(), order.owner);
        let known = stops.of(owner);
        let is_later = (order.version, order.is_stopped) > (known.version, known.is_stopped);
        let instrument = 0;
        if is_later && !stops.has_room(owner) {
            let reason = format!("cell {} knows as many stopped owners as it may", self.number);
            return AdminResponse::Refused { instrument, reason };
        }
        if is_later {
            let mut entry = vec![];
            nm_wire::write(&Stop { cell: self.number, order }, &mut entry);
            self.enqueue(&entry, now);
        }
        let holdings = self.cell.holdings_of(Retired::Owner { owner });
        AdminResponse::Stopped { order: known, holdings }
    }

    /// Proposes firms that are newer than those of the cell, if this replica leads.
    fn advance_firms(&mut self, firms: Option<&Firms>, now: Time) {
        let known = self.cell.firms_version().max(self.proposed_firms);
        let Some(firms) = firms.filter(|firms| firms.version() > known) else { return };
        let mut entry = vec![];
        nm_wire::write(&FirmsEntry { cell: self.number, table: firms.table() }, &mut entry);
        if self.enqueue(&entry, now) {
            self.proposed_firms = firms.version();
        }
    }

    /// What firms with limits have in the cell.
    pub fn firm_uses(&self) -> AdminResponse {
        let (version, uses) = (self.cell.firms_version(), self.cell.firm_uses());
        AdminResponse::FirmUses { version, uses }
    }

    /// Begins what an operator directs on an instrument, or on all that are here or are listed; the
    /// answer, if it cannot begin.
    pub fn direct(
        &mut self,
        operator: LinkId,
        (instrument, direction): (Option<InstrumentId>, Direction),
        map: &InstrumentMap,
    ) -> Option<AdminResponse> {
        let cell = &self.cell;
        if !self.is_leading() || instrument.is_some_and(|it| !cell.owns(it)) {
            return Some(AdminResponse::NotLeading);
        }
        let instruments = match instrument {
            Some(instrument) => vec![instrument],
            None => {
                let listed = map.master().into_iter().flat_map(|it| it.listings());
                let listed = listed.map(|it| it.instrument).filter(|it| cell.owns(*it));
                let all = cell.executed().map(|(it, _)| it).chain(listed);
                all.collect::<BTreeSet<InstrumentId>>().into_iter().collect()
            }
        };
        if self.directions.begin(cell, operator, direction, instruments) {
            return None;
        }
        let (instrument, cell) = (instrument.unwrap_or_default(), self.number);
        let reason = format!("cell {cell} has {DIRECTIONS_WAITING_MAX} directions to carry out");
        Some(AdminResponse::Refused { instrument, reason })
    }

    /// Tells gateways whose sessions were stopped, or may trade again.
    fn tell_decided(&mut self, links: &mut Links) {
        for StopOrder { owner, is_stopped, .. } in self.decided.drain(..) {
            let cell = self.number;
            tell_gateways(links, &Standing { session: 0, owner, cell, is_stopped });
        }
    }

    /// Proposes what is missing for the directions of operators, if this replica leads.
    fn advance_directions(&mut self, links: &mut Links) {
        if !self.is_leading() {
            return self.directions.clear(links);
        }
        let requests = self.directions.advance(&self.cell, links);
        for group in requests.chunk_by(|one, next| one.instrument == next.instrument) {
            let mut bytes = vec![];
            group.iter().for_each(|request| nm_wire::write(request, &mut bytes));
            if !self.enqueue(&bytes, links.time()) {
                self.directions.put_back(group[0].instrument);
            }
        }
    }

    /// What operators may know of the cell's replicas.
    pub fn describe(&self) -> CellReplicas {
        CellReplicas {
            is_leader: self.is_leading(),
            voters: self.voters().collect(),
            replace_failed: self.replace_failed.clone(),
        }
    }

    /// Handles the events of its log; a new leadership is announced.
    fn handle_events(
        &mut self,
        links: &mut Links,
        apply: &mut Apply<'_>,
        followers: &mut Followers,
    ) -> Result<(), Failure> {
        while let Some(event) = self.held.take().or_else(|| self.log.next_event()) {
            if awaits_book(&mut self.cell, &event) {
                self.held = Some(event);
                break;
            }
            match event {
                LogEvent::Committed { index, term, batch } => {
                    self.apply(links, (index, &batch), apply, followers)?;
                    let is_leader = self.log.leading_term().is_some();
                    self.moves.tell(&mut self.cell, is_leader, links);
                    if let Some(recorder) = &mut self.recorder {
                        recorder.batch(index, term, &batch)?;
                    }
                    self.log.recycle(batch);
                }
                LogEvent::TakeSnapshot { number } => {
                    self.cell.begin_snapshot();
                    self.copying = Some(number);
                }
                LogEvent::LoadSnapshot { index, state } => {
                    self.load_snapshot(links, index, &state)?;
                }
                LogEvent::LeadershipGained { .. } => {
                    self.drop_backlog();
                    self.clock.begin_term();
                    self.absence.clear();
                    // Before any request, so that limits hold for the first one.
                    self.proposed_firms = 0;
                    let firms = links.network().firms.clone();
                    self.advance_firms(firms.as_deref(), links.time());
                    for role in [Role::Router, Role::Processor] {
                        let peers = links.all_to(role);
                        self.announce(links, &peers);
                    }
                }
                LogEvent::LeadershipLost => {
                    self.drop_backlog();
                    self.directions.clear(links);
                    self.moves.clear(&mut self.cell);
                }
                LogEvent::CaughtUp => {}
                LogEvent::Degraded(message) => {
                    links.warnings.push(format!("cell {} waits: {message}", self.number));
                }
                LogEvent::HandOverFailed(why) => {
                    links.warnings.push(format!("cell {} is not handed over: {why}", self.number));
                }
                LogEvent::Voters(voters) => self.voters = voters,
                LogEvent::ReplaceFailed(why) => self.replace_failed = Some(why),
                LogEvent::Removed => {
                    self.is_removed = true;
                    return Ok(());
                }
                LogEvent::Warning(message) => links.warnings.push(message),
                LogEvent::Stopped(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Goes on from a snapshot of another replica.
    fn load_snapshot(
        &mut self,
        links: &mut Links,
        index: u64,
        state: &[u8],
    ) -> Result<(), Failure> {
        let damaged = |error: cell::CellLoadError| system_failure(error.to_string());
        let Cell { accepts_unknown_sessions, limits, .. } = self.cell;
        self.cell = Cell::load(state).map_err(damaged)?;
        self.cell.accepts_unknown_sessions = accepts_unknown_sessions;
        self.cell.limits = limits;
        self.moves.clear(&mut self.cell);
        self.copying = None;
        // Events of batches that it did not apply itself were not sent to their
        // sessions.
        for gateway in 0..links.network().nodes(Role::Gateway).len() as u16 {
            report_loss(links, gateway, self.number);
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.missed(index)?;
        }
        Ok(())
    }

    /// Whether its next event has waited for a book, and waits no longer.
    fn can_continue(&mut self) -> bool {
        self.held.as_ref().is_some_and(|held| !awaits_book(&mut self.cell, held))
    }

    fn apply(
        &mut self,
        links: &Links,
        (index, batch): (u64, &[u8]),
        apply: &mut Apply<'_>,
        followers: &mut Followers,
    ) -> Result<(), Failure> {
        let number = self.number;
        let undecodable = |error: DecodeError| {
            system_failure(format!("batch {index} of cell {number} cannot be decoded: {error}"))
        };
        let (time_ns, frames) = batch::decode(batch).map_err(undecodable)?;
        self.cell.begin(index, time_ns);
        let (now_ns, is_leader) = (links.now_ns, self.is_leading());
        let clock_ns = links.meters.monotonic_ns;
        // More batches may be committed while this node applies the first ones.
        let applied_ns = clock_ns();
        self.clock.record_applied(time_ns, now_ns);
        for frame in frames {
            let frame = frame.map_err(undecodable)?;
            match self.cell.admit(frame).map_err(undecodable)? {
                Admitted::Request(request) => {
                    let before = if is_leader { self.workload.before(clock_ns) } else { None };
                    let followed = followers.before(&self.cell, &request);
                    // Whose replica is replaced sends replies until the log says otherwise.
                    let handled = match self.is_voter() {
                        true => apply(&mut self.cell, &request, frame, applied_ns),
                        false => self.cell.handle(&request, |_| {}),
                    };
                    let received_ns = frame.stamps().map_or(0, |stamps| stamps[0]);
                    followers.after(&self.cell, (&request, received_ns), followed, handled);
                    if is_leader && request.session == DESK {
                        self.directions.on_request(&self.cell, &request, handled);
                    }
                    if is_leader {
                        self.workload.count(&request, &handled, (before, clock_ns));
                    }
                    if self.moves.has_leaving() {
                        self.moves.on_request(&mut self.cell, &request, handled);
                    }
                }
                Admitted::NotOwned
                | Admitted::Undecodable
                | Admitted::Watched
                | Admitted::Firms(_) => {}
                Admitted::Stopped(order) => {
                    let holds = self.cell.stops().of(order.owner) == order;
                    self.decided.extend((is_leader && holds).then_some(order));
                }
                Admitted::Retired(_) => followers.retired(&self.cell),
                Admitted::Move(step) => self.moves.on_step(frame, step, now_ns),
            }
        }
        Ok(())
    }

    /// Announces that this replica leads: to routers, for which requests before may be lost, and to
    /// processors.
    pub fn announce(&self, links: &mut Links, peers: &[LinkId]) {
        let Some(term) = self.log.leading_term() else { return };
        for peer in peers {
            links.send(*peer, &Leader { cell: self.number, term });
        }
    }

    /// Control orders a move of an instrument to another cell.
    pub fn on_move_order(&mut self, order: MoveOrder, links: &Links) {
        if self.log.leading_term().is_some() {
            self.moves.on_order(&mut self.cell, order, links);
        }
    }

    /// The new cell of an instrument answers.
    pub fn on_move_progress(&mut self, progress: &MoveProgress, links: &mut Links) {
        self.moves.on_progress(&mut self.cell, progress, links);
    }

    /// A move has ended.
    pub fn on_move_ended(&mut self, ended: &MoveEnded, now_ns: u64) {
        self.moves.on_ended(&mut self.cell, ended, now_ns);
    }

    /// Carries on the moves of instruments, if this replica leads.
    fn advance_moves(&mut self, map: &InstrumentMap, links: &mut Links) {
        if self.log.leading_term().is_none() {
            return;
        }
        let mut entries: Vec<Vec<u8>> = vec![];
        self.moves.advance(&mut self.cell, map, links, |entry| entries.push(entry.to_vec()));
        for entry in entries {
            self.enqueue(&entry, links.time());
        }
    }

    /// A gateway names the sessions that are linked to it.
    pub fn on_presence(&mut self, presence: &Presence, now: Time) {
        if self.is_leading() {
            let mut entries: Vec<Vec<u8>> = vec![];
            let keep = |entry: &[u8]| entries.push(entry.to_vec());
            self.absence.on_presence(&self.cell, presence, keep);
            for entry in entries {
                self.enqueue(&entry, now);
            }
        }
    }

    /// Cancels the orders of sessions that are away, if this replica leads.
    fn advance_absence(&mut self, now: Time) {
        if self.cell.watched().is_empty() || !self.is_leading() {
            return;
        }
        let mut entries: Vec<Vec<u8>> = vec![];
        let keep = |entry: &[u8]| entries.push(entry.to_vec());
        self.absence.advance(&self.cell, now.monotonic_ns, keep);
        for entry in entries {
            self.enqueue(&entry, now);
        }
    }

    /// Adds what it has done as the leader.
    pub fn add_work(&self, work: &mut Work) {
        let (moved, pauses_ns) = self.moves.pauses_ns();
        work.moved += moved;
        work.pauses_ns.extend(pauses_ns);
        if self.is_leading() {
            work.instruments.extend(self.workload.of(&self.cell));
        }
    }

    /// Whether this replica leads.
    pub fn is_leading(&self) -> bool {
        self.log.leading_term().is_some()
    }

    /// Drops what waits: the gateways resend it to the next leader.
    fn drop_backlog(&mut self) {
        self.backlog.clear();
        self.backlog_bytes = 0;
    }

    /// Adds a frame to the backlog, if this replica leads.
    pub fn enqueue(&mut self, bytes: &[u8], time: Time) -> bool {
        if self.log.leading_term().is_none() || self.backlog_bytes > BACKLOG_BYTES_MAX {
            return false;
        }
        let fits = |last: &Vec<u8>| last.len() + bytes.len() <= nm_replica::BATCH_BYTES_MAX;
        if !self.backlog.back().is_some_and(fits) {
            let mut batch = self.log.take_buffer();
            batch.reserve(bytes.len() * 4);
            let log = &self.log;
            batch::begin(self.clock.now_ns(time, |now_ns| log.other_clocks(now_ns)), &mut batch);
            self.backlog.push_back(batch);
        }
        if let Some(last) = self.backlog.back_mut() {
            last.extend_from_slice(bytes);
        }
        self.backlog_bytes += bytes.len();
        true
    }

    /// Proposes the backlog, copies one instrument of a snapshot, writes the record.
    #[expect(
        clippy::disallowed_methods,
        reason = "a reply leaves after its batch is in the record, which recorded runs alone have"
    )]
    fn propose(&mut self) -> Result<(), Failure> {
        while self.log.can_propose()
            && let Some(batch) = self.backlog.pop_front()
        {
            self.backlog_bytes =
                self.backlog_bytes.saturating_sub(batch.len() - batch::HEADER_BYTES);
            if let Err(Refused(batch)) = self.log.propose(batch) {
                self.backlog_bytes += batch.len() - batch::HEADER_BYTES;
                self.backlog.push_front(batch);
                break;
            }
        }
        if let Some(number) = self.copying
            && let Some(state) = self.cell.copy_next()
        {
            self.copying = None;
            if let (Some(hashes), Some(index)) = (&mut self.hashes, cell::saved_index(&state)) {
                hashes.record_snapshot(index, &state)?;
            }
            self.log.finish_snapshot(number, state);
        }
        Ok(self.recorder.as_mut().map_or(Ok(()), Recorder::flush)?)
    }

    /// Writes the record, and the hash of the state.
    #[expect(clippy::disallowed_methods, reason = "the node ends")]
    fn on_stop(&mut self) -> Result<(), Failure> {
        self.recorder.as_mut().map_or(Ok(()), Recorder::flush)?;
        let Some(hashes) = &mut self.hashes else { return Ok(()) };
        hashes.finish()?;
        match self.cell.index() {
            index if index == self.begun_at => Ok(()),
            index => hashes.record(index, self.cell.hash()),
        }
    }
}

/// Whether to apply this event now would wait for a book that another thread loads.
fn awaits_book(cell: &mut Cell<Book>, event: &LogEvent) -> bool {
    let LogEvent::Committed { batch, .. } = event else { return false };
    cell.has_arriving()
        && batch::decode(batch).is_ok_and(|(_, mut frames)| {
            frames.any(|frame| frame.is_ok_and(|frame| cell.awaits_book(frame)))
        })
}

/// The replicas that a node has.
#[derive(Debug)]
pub struct ReplicaSet<L> {
    network: Network,
    node: NodeId,
    /// Of cells.
    pub replicas: Vec<Replica<L>>,
    /// Of the control group, if the node has one.
    pub control: Option<Control<L>>,
    /// Who is sent what books execute.
    followers: Followers,
    /// What gives it more logs.
    source: Option<Box<dyn LogSource<L>>>,
}

impl<L: Log> ReplicaSet<L> {
    /// The replicas that have these logs.
    ///
    /// # Errors
    /// If a record cannot be opened.
    pub fn new(network: &Network, node: NodeId, logs: Logs<L>) -> Result<ReplicaSet<L>, Failure> {
        let Logs { of_groups, source } = logs;
        let mut set = ReplicaSet {
            network: network.clone(),
            node,
            replicas: vec![],
            control: None,
            followers: Followers::default(),
            source,
        };
        for (number, log) in of_groups {
            match number {
                CONTROL => set.control = Some(Control::new(&set.network, log)),
                _ => set.add(number, Some(log))?,
            }
        }
        if network.durability == Durability::None && node.class == Role::Mediator {
            set.add(node.index, None)?;
        }
        Ok(set)
    }

    /// Adds the replicas that were opened since.
    fn add_joined(&mut self) -> Result<(), Failure> {
        while let Some(joined) = self.source.as_mut().and_then(|it| it.next_joined()) {
            let (number, log) = joined?;
            self.add(number, Some(log))?;
        }
        Ok(())
    }

    /// Adds the replica of a cell that has this log, or that is the only one.
    #[expect(
        clippy::disallowed_methods,
        reason = "a record is kept in runs that are recorded only"
    )]
    fn add(&mut self, number: u16, log: Option<L>) -> Result<(), Failure> {
        let network = &self.network;
        // With a disk quorum, the log's own journal is the record.
        let records = network.record && network.durability != Durability::DiskQuorum;
        let folder = network.folder(self.node).filter(|_| network.record);
        let folder = folder.map(|folder| folder.join(format!("cell-{number}")));
        let hashes = folder.as_deref().map(StateHashes::open).transpose()?;
        let settings = if log.is_some() { RECORD } else { journal::Settings::default() };
        let open = |folder: PathBuf| Recorder::open(&folder, settings);
        let recorder = folder.filter(|_| records).map(open).transpose()?;
        let mut cell = Cell::new(number, network.active_cells());
        // Replicas that all lose their memory at once begin with empty books.
        cell.accepts_unknown_sessions = network.durability != Durability::DiskQuorum;
        let (log, places, voters) = match log {
            Some(log) => {
                let voters = network.replicas(number).len();
                (CellLog::Replicated(log), network.replica_places(number), voters)
            }
            None => {
                // It continues after the last recorded batch, in another term.
                let next = recorder.as_ref().map_or(1, Recorder::next);
                cell.begin(next - 1, 0);
                (CellLog::Single(SingleLog::new(next)), vec![self.node], 1)
            }
        };
        let own = places.iter().position(|place| *place == self.node).unwrap_or_default();
        let replica = Replica::new(cell, log, (places, own, voters), (recorder, hashes));
        self.replicas.push(replica);
        Ok(())
    }

    /// Cells were added to the network or removed: this node opens its replicas of the new ones,
    /// and ends those of the others.
    fn update_network(&mut self, network: &Network) -> Result<(), Failure> {
        let before = std::mem::replace(&mut self.network, network.clone());
        let is_replicated = network.durability != Durability::None;
        let source = self.source.as_mut().filter(|_| is_replicated);
        let Some(source) = source else { return Ok(()) };
        let (old, new): (Vec<u16>, Vec<u16>) =
            (before.cells().collect(), network.cells().collect());
        old.iter().filter(|cell| !new.contains(cell)).for_each(|cell| source.close(*cell));
        for cell in new.into_iter().filter(|cell| !old.contains(cell)) {
            source.open(network, self.node, cell)?;
        }
        self.add_joined()
    }

    /// There is a new map.
    pub fn on_map(&mut self) {
        self.replicas.iter_mut().for_each(|replica| replica.moves.on_map());
    }

    /// The replica of a cell, if the node has one that takes part.
    pub fn voter(&mut self, cell: u16) -> Option<&mut Replica<L>> {
        self.replica(cell).filter(|replica| replica.is_voter())
    }

    /// The replica of a cell, if the node has one.
    pub fn replica(&mut self, cell: u16) -> Option<&mut Replica<L>> {
        self.replicas.iter_mut().find(|replica| replica.number == cell)
    }

    /// Sends somebody what books execute from now on, beginning with where they stand.
    pub fn follow(&mut self, links: &mut Links, to: LinkId) {
        let cells = self.replicas.iter().map(|replica| &replica.cell);
        self.followers.begin(links, to, cells);
    }

    /// Sends somebody the book of an instrument.
    pub fn send_image(&self, links: &mut Links, to: LinkId, instrument: InstrumentId) {
        let mut cells = self.replicas.iter().map(|replica| &replica.cell);
        followers::send_image(links, to, instrument, cells.find(|it| it.owns(instrument)));
    }

    /// Whether any of them leads what another one could lead.
    pub fn is_leading(&self) -> bool {
        let could_follow = |replica: &Replica<L>| replica.is_leading() && !replica.is_single();
        self.replicas.iter().any(could_follow)
            || self.control.as_ref().is_some_and(Control::is_leading)
    }

    /// Lets other replicas lead what these lead.
    pub fn hand_over(&mut self) {
        self.replicas.iter_mut().for_each(|replica| replica.log.hand_over());
        if let Some(control) = &mut self.control {
            control.hand_over();
        }
    }

    /// There are events: takes the logs that it was given, and the events of control.
    /// [`ReplicaSet::apply`] is to follow.
    ///
    /// # Errors
    /// If a record cannot be opened.
    pub fn on_wake(&mut self, links: &mut Links) -> Result<(), Failure> {
        self.add_joined()?;
        if let Some(control) = &mut self.control {
            control.handle_events(links);
        }
        Ok(())
    }

    /// Handles the events of the cells' logs.
    ///
    /// # Errors
    /// If a replica cannot continue.
    pub fn apply(&mut self, links: &mut Links, apply: &mut Apply<'_>) -> Result<(), Failure> {
        let ReplicaSet { replicas, followers, .. } = self;
        let mut replicas = replicas.iter_mut();
        let handled =
            replicas.try_for_each(|replica| replica.handle_events(links, apply, followers));
        followers.send(links);
        handled?;
        for mut removed in self.replicas.extract_if(.., |replica| replica.is_removed) {
            let cell = removed.number;
            let is_left = !self.network.is_removed(Role::Mediator.node(cell));
            links.warnings.push(match is_left {
                true => format!("another replica of cell {cell} has replaced this node's"),
                false => format!("cell {cell} was removed, and so is this node's replica of it"),
            });
            removed.on_stop()?;
        }
        Ok(())
    }

    /// Follows the network and lets control work.
    ///
    /// # Errors
    /// If a record cannot be opened.
    pub fn on_iteration(&mut self, links: &mut Links) -> Result<(), Failure> {
        if !links.network().has_nodes_of(&self.network) {
            let network = links.network().clone();
            self.update_network(&network)?;
        }
        if let Some(control) = &mut self.control {
            let led = |replica: &Replica<L>| Some((replica.number, replica.log.leading_term()?));
            control.on_iteration(links, self.replicas.iter().filter_map(led));
        }
        Ok(())
    }

    /// Carries on moves, proposes what waits, and writes records. Whether that is to be done once
    /// more after [`ReplicaSet::apply`], because a log of one replica has committed something.
    ///
    /// # Errors
    /// If a record cannot be written.
    pub fn advance(&mut self, links: &mut Links, map: &InstrumentMap) -> Result<bool, Failure> {
        let mut has_committed = false;
        for replica in &mut self.replicas {
            replica.advance_moves(map, links);
            replica.advance_absence(links.time());
            replica.tell_decided(links);
            replica.advance_directions(links);
            replica.advance_firms(map.firms().map(|firms| &**firms), links.time());
            replica.propose()?;
            replica.clock.warnings.drain(..).for_each(|warning| links.warnings.push(warning));
            if replica.can_continue() {
                links.wake();
            }
            has_committed |= replica.held.is_none() && replica.log.has_committed();
        }
        Ok(has_committed)
    }

    /// See [`crate::node::runtime::behaviour::Behaviour::on_stop`].
    ///
    /// # Errors
    /// If a record cannot be written.
    pub fn on_stop(&mut self) -> Result<(), Failure> {
        self.replicas.iter_mut().try_for_each(Replica::on_stop)
    }

    /// Whether all of its replicas have caught up. A network without replicas of cells works
    /// without control.
    pub fn is_ready(&self) -> bool {
        if self.network.durability == Durability::None {
            return true;
        }
        self.replicas.iter().all(|replica| replica.log.is_caught_up())
            && self.control.as_ref().is_none_or(Control::is_caught_up)
    }

    /// When the next iteration is due: at once while a snapshot is copied.
    pub fn deadline_ns(&self, now_ns: u64) -> Option<u64> {
        let copying = self.replicas.iter().filter(|replica| replica.copying.is_some());
        let snapshot = copying.map(|replica| match replica.cell.is_copying() {
            true => 0,
            false => background::next_check_ns(now_ns),
        });
        let leading = self.replicas.iter().filter(|replica| replica.is_leading());
        let absence = leading.clone().filter_map(|it| it.absence.deadline_ns(&it.cell)).min();
        let moves = leading.filter_map(|it| it.moves.deadline_ns(&it.cell, now_ns)).min();
        let control = self.control.as_ref().and_then(Control::deadline_ns);
        let holds = self.replicas.iter().any(|replica| replica.held.is_some());
        let held = holds.then(|| background::next_check_ns(now_ns));
        [snapshot.min(), moves, control, held, absence].into_iter().flatten().min()
    }
}

fn system_failure(message: String) -> Failure {
    Failure::new(FailureKind::System, message)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::sync::Arc;
    use std::time::Duration;

    use nm_book::testing::Random;
    use nm_replica::Shared;
    use nm_sys::clock::Deadline;
    use nm_wire::{Series, Value};

    use super::*;
    use crate::cell::testing::{INSTRUMENT, cell_with_large_book, copied_parts};
    use crate::moves::{Attempt, MoveId, MoveParts};
    use crate::network::Node;
    use crate::node::simulation::group::{Entry, Group, SimulatedLog};

    /// A follower of cell 0, to which the log of the arrival of a large instrument and of one more
    /// batch was delivered; and the index of the end of the transfer.
    fn follower() -> (ReplicaSet<SimulatedLog>, Links, u64) {
        let mut source = cell_with_large_book();
        let mut end = vec![];
        source.end_of_transfer(INSTRUMENT).put(&mut end);
        let mut frames = copied_parts(&mut source);
        frames.push(end);
        let (own, cell) = (Role::Mediator.node(1), 0);
        let mut network = Network::new("1-1-2-1".parse().unwrap(), |_| Node {
            address: "127.0.0.1:1".parse().unwrap(),
            replication: None,
        });
        network.durability = Durability::MemoryQuorum;
        let nodes = network.replicas(cell);
        let mut group = Group::new(nodes, false, &mut Random::new(1));
        let member = group.member_at(own).unwrap();
        let ended_at = frames.len() as u64;
        for number in 0..=ended_at {
            let mut batch = vec![];
            batch::begin(9, &mut batch);
            if let Some(parts) = frames.get(number as usize) {
                let id = MoveId { instrument: INSTRUMENT, epoch: 1 };
                let (from, to, attempt) = (1, 0, Attempt(1));
                let parts = Series::of(parts);
                nm_wire::write(&MoveParts { from, to, attempt, number, id, parts }, &mut batch);
            }
            let batch = Shared(Arc::new(batch));
            group.entries.push(Entry { index: number + 1, term: 1, batch });
        }
        group.start(member, false);
        let mut random = Random::new(1);
        (0..100).for_each(|_| group.feed(member, &mut random));
        let log = SimulatedLog { group: Rc::new(RefCell::new(group)), member };
        let logs = Logs { of_groups: vec![(cell, log)], source: None };
        let links = Links::simulated(&network, own, 1);
        (ReplicaSet::new(&network, own, logs).unwrap(), links, ended_at)
    }

    /// Its node has other cells and links to serve. The book may be loaded before the end comes,
    /// though hardly ever.
    #[test]
    fn a_replica_keeps_the_rest_of_its_log_while_it_loads_a_large_book() {
        let has_waited = |_| {
            let (mut set, mut links, ended_at) = follower();
            let map = InstrumentMap::of(links.network());
            let apply: &mut Apply<'_> = &mut |cell, request, _, _| cell.handle(request, |_| {});
            set.apply(&mut links, apply).unwrap();
            let mut has_waited = false;
            let limit = Deadline::after(Duration::from_secs(60));
            while set.replicas[0].held.is_some() {
                has_waited = true;
                assert!(!limit.passed(), "it is not woken");
                assert_eq!(set.replicas[0].cell.index(), ended_at - 1);
                assert!(!set.replicas[0].cell.owns(INSTRUMENT) && set.deadline_ns(0).is_some());
                set.advance(&mut links, &map).unwrap();
                std::thread::sleep(Duration::from_millis(1));
                if links.take_wake() {
                    set.on_wake(&mut links).unwrap();
                    set.apply(&mut links, apply).unwrap();
                }
            }
            assert_eq!(set.replicas[0].cell.index(), ended_at + 1);
            assert!(set.replicas[0].cell.owns(INSTRUMENT));
            has_waited
        };
        assert!((0..50).any(has_waited));
    }
}
