//! A node's replica of the control group. It applies the log, and proposes changes of the
//! membership if it leads. It sends routers the routing table, and answers observers.

use std::collections::{BTreeMap, BTreeSet};

use nm_model::agent::Failure;
use nm_replica::{Log, LogEvent};
use nm_wire::{FirmRecord, Frame, Kind, Listing};

use nm_book::order::InstrumentId;

use crate::control::{
    self, AdminRequest, AdminResponse, CellLeader, Command, EndedMove, InstrumentMap,
    MembershipMonitor, MembershipReport, RoutingTable, State, Work,
};
use crate::firms::Firm;
use crate::limits::{MOVES_ORDERED_MAX, SCHEDULE_GROUPS_MAX};
use crate::moves::{MoveEnded, MoveId, MoveOrder};
use crate::network::{CONTROL, Durability, NODES_MAX, Network, Node, NodeId, Role};
use crate::time::Time;

use crate::node::runtime::links::{LinkId, Links};
use crate::node::runtime::peer::{Peer, PeerError};

/// How often the membership is compared with the state, ns.
const COMPARE_NS: u64 = 100_000_000;

/// Pause before the same is proposed, or a move ordered, again, ns.
const RETRY_NS: u64 = 200_000_000;

/// Time from the end of a move until it is proposed, ns. Cells and gateways know of it already, and
/// what had to wait for a CPU while the instrument changed its cell has passed then.
const END_PAUSE_NS: u64 = 1_000_000;

/// Changes that could not be logged for so long show that there is no majority, ns.
const STALLED_NS: u64 = 3_000_000_000;

/// Requests of operators for moves that may wait.
const WAITING_MAX: usize = 1_024;

/// Listings that may wait to be logged; operators ask again for the others.
const LISTINGS_WAITING_MAX: usize = 256;

/// Firms that may wait to be logged; operators ask again for the others.
const FIRMS_WAITING_MAX: usize = 64;

/// An operator that waits for a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Waiting {
    operator: LinkId,
    instrument: InstrumentId,
    cell: u16,
}

/// Changes that are not logged yet.
#[derive(Debug, Clone, Copy)]
struct Unlogged {
    since_ns: u64,
    is_reported: bool,
    /// Index of the state then.
    index: u64,
}

/// A replica of control.
#[derive(Debug)]
pub struct Control<L> {
    log: L,
    state: State,
    monitor: MembershipMonitor,
    /// Whether cells have several replicas.
    has_replicas: bool,
    /// What routers were sent last: the version of the map, and the leaders.
    sent_routes: Option<(u32, BTreeMap<u16, CellLeader>)>,
    /// Operators that wait for moves.
    waiting: Vec<Waiting>,
    /// Nodes that operators want to be drained, or to work again; not logged yet.
    drains: BTreeMap<NodeId, bool>,
    /// Nodes that operators want to add, and to remove; not logged yet.
    adds: Vec<(Role, Node)>,
    removals: BTreeSet<NodeId>,
    /// How operators want instruments to be listed, none for no more; not logged yet.
    listings: BTreeMap<InstrumentId, Option<Listing>>,
    /// Firms as operators want them to be, none for no more, until that is logged.
    firms: BTreeMap<u32, Option<FirmRecord>>,
    /// Phases of the schedule that have begun; not logged yet.
    begun: BTreeMap<String, u64>,
    /// Moves that have ended, as the cells say; not logged yet.
    ended: BTreeMap<InstrumentId, Command>,
    /// When they are to be proposed, ns; none if that was done, or there are none.
    ends_ns: Option<u64>,
    /// Moves that are under way: when they were last ordered, ns.
    ordered: BTreeMap<InstrumentId, u64>,
    /// How many orders were sent.
    orders: usize,
    /// Whether there may be something to propose, order or send.
    is_changed: bool,
    /// Whether the membership has changed since it was last compared with the state, and when the
    /// next comparison is due, ns.
    is_membership_changed: bool,
    compare_ns: u64,
    /// What the last comparison found; not logged yet.
    membership: Vec<Command>,
    /// When it last proposed, ns.
    proposed_ns: u64,
    /// Changes that are not logged yet.
    unlogged: Option<Unlogged>,
    /// Whether its log has stopped.
    is_stopped: bool,
}

impl<L: Log> Control<L> {
    /// A replica that has applied nothing.
    pub fn new(network: &Network, log: L) -> Control<L> {
        Control {
            log,
            state: State::new(InstrumentMap::of(network)),
            monitor: MembershipMonitor::new(network),
            has_replicas: network.durability != Durability::None,
            sent_routes: None,
            waiting: vec![],
            drains: BTreeMap::new(),
            adds: vec![],
            removals: BTreeSet::new(),
            listings: BTreeMap::new(),
            firms: BTreeMap::new(),
            begun: BTreeMap::new(),
            ended: BTreeMap::new(),
            ends_ns: None,
            ordered: BTreeMap::new(),
            orders: 0,
            is_changed: false,
            is_membership_changed: false,
            compare_ns: 0,
            membership: vec![],
            proposed_ns: 0,
            unlogged: None,
            is_stopped: false,
        }
    }

    /// Whether it could stand in for another replica of control.
    pub fn is_caught_up(&self) -> bool {
        self.is_stopped || self.log.is_caught_up()
    }

    /// Lets another replica lead, if this one does.
    pub fn hand_over(&mut self) {
        self.log.hand_over();
    }

    /// Whether this replica leads.
    pub fn is_leading(&self) -> bool {
        self.log.leading_term().is_some()
    }

    /// The map, and who leads, as this replica has it.
    pub fn routes(&self) -> &RoutingTable {
        self.state.routes()
    }

    /// Handles the events of its log. An error here does not stop the cells.
    pub fn handle_events(&mut self, links: &mut Links) {
        while let Some(event) = self.log.next_event() {
            self.is_changed = true;
            self.is_membership_changed |= !matches!(event, LogEvent::Committed { .. });
            match event {
                LogEvent::Committed { index, batch, .. } => self.commit(links, index, &batch),
                LogEvent::TakeSnapshot { number } => {
                    self.log.finish_snapshot(number, self.state.save())
                }
                LogEvent::LoadSnapshot { state, .. } => match State::load(&state) {
                    Ok(state) => self.state = state,
                    Err(error) => self.stop(links, &error.to_string()),
                },
                LogEvent::LeadershipGained { .. } => self.begin_term(links),
                LogEvent::LeadershipLost => self.end_term(links),
                LogEvent::CaughtUp | LogEvent::Voters(_) | LogEvent::ReplaceFailed(_) => {}
                LogEvent::Removed => self.stop(links, "another replica has replaced it"),
                LogEvent::Degraded(reason) => {
                    links.warnings.push(format!("control waits: {reason}"));
                }
                LogEvent::HandOverFailed(why) => {
                    links.warnings.push(format!("control is not handed over: {why}"));
                }
                LogEvent::Warning(message) => links.warnings.push(message),
                LogEvent::Stopped(error) => self.stop(links, &Failure::from(error).message),
            }
        }
    }

    fn stop(&mut self, links: &mut Links, reason: &str) {
        self.is_stopped = true;
        self.end_term(links);
        links.warnings.push(format!(
            "this node's replica of the control group has stopped; the network continues: \
             {reason}"
        ));
    }

    fn begin_term(&mut self, links: &mut Links) {
        self.end_term(links);
        self.proposed_ns = 0;
    }

    /// What this replica began as the leader is continued by the next one.
    fn end_term(&mut self, links: &mut Links) {
        self.sent_routes = None;
        self.drains.clear();
        self.adds.clear();
        self.removals.clear();
        self.listings.clear();
        self.firms.clear();
        self.begun.clear();
        (self.ended, self.ends_ns) = (BTreeMap::new(), None);
        self.ordered.clear();
        for Waiting { operator, .. } in std::mem::take(&mut self.waiting) {
            links.send(operator, &AdminResponse::NotLeading);
        }
    }

    fn commit(&mut self, links: &mut Links, index: u64, batch: &[u8]) {
        self.state.begin(index);
        let (now_ms, commands) = match control::decode_batch(batch) {
            Ok(decoded) => decoded,
            Err(error) => {
                let message = format!("entry {index} of control's log cannot be read: {error}");
                return links.warnings.push(message);
            }
        };
        // The next proposal is another one.
        self.proposed_ns = 0;
        let is_move =
            |command: &Command| matches!(command, Command::Move { .. } | Command::MoveEnded { .. });
        self.is_membership_changed |= !commands.iter().all(is_move);
        for command in &commands {
            if let Some(ended) = self.state.apply(command, now_ms) {
                self.on_logged_end(links, &ended);
            }
        }
    }

    /// The end of a move is logged.
    fn on_logged_end(&mut self, links: &mut Links, ended: &EndedMove) {
        let EndedMove { instrument, cell, refusal } = *ended;
        self.ended.remove(&instrument);
        self.ordered.remove(&instrument);
        let response = match refusal {
            None => {
                let map_version = self.state.routes().map.version();
                AdminResponse::Moved { instrument, map_version }
            }
            Some(refusal) => AdminResponse::Refused { instrument, reason: refusal.to_string() },
        };
        let is_for_it =
            |waiting: &mut Waiting| (waiting.instrument, waiting.cell) == (instrument, cell);
        for waiting in self.waiting.extract_if(.., is_for_it) {
            links.send(waiting.operator, &response);
        }
    }

    /// A router reports; or it is disconnected.
    pub fn set_report(&mut self, router: u16, report: Option<MembershipReport>) {
        match report {
            Some(report) => drop(self.monitor.reports.insert(router, report)),
            None => drop(self.monitor.reports.remove(&router)),
        }
        (self.is_changed, self.is_membership_changed) = (true, true);
    }

    /// This node has a map from elsewhere: should control's log have lost it, it is restored with
    /// the next comparison. Else the log of this replica is only behind.
    pub fn on_map(&mut self, map: &InstrumentMap) {
        if self.state.routes().map.is_older_than(map) {
            self.monitor.own.routes.map.update(map);
            self.is_membership_changed = true;
        }
    }

    /// A cell's leader says that a move has ended.
    pub fn on_move_ended(&mut self, ended: &MoveEnded, now_ns: u64) {
        let MoveEnded { id, refusal, .. } = *ended;
        let pending = self.state.pending_moves().get(&id.instrument);
        let is_awaited = pending.is_some_and(|pending| pending.epoch == id.epoch);
        if is_awaited && self.log.leading_term().is_some() {
            self.ended.insert(id.instrument, Command::MoveEnded { id, refusal });
            self.ends_ns.get_or_insert(now_ns + END_PAUSE_NS);
        }
    }

    /// An observer or operator sends a request that control answers.
    pub fn on_request(
        &mut self,
        links: &mut Links,
        (from, peer): (LinkId, Peer),
        request: AdminRequest,
    ) -> Result<(), PeerError> {
        let response = match request {
            AdminRequest::Status | AdminRequest::Work => self.status(links.now_ns),
            // A node without replicas of cells has none to replace, and nothing in them.
            AdminRequest::Replicas { .. }
            | AdminRequest::Replace { .. }
            | AdminRequest::Retire { .. }
            | AdminRequest::Direct { .. }
            | AdminRequest::Stop { .. }
            | AdminRequest::FirmUses { .. }
            | AdminRequest::Follow
            | AdminRequest::Image { .. } => AdminResponse::NotLeading,
            AdminRequest::Drain { .. }
            | AdminRequest::Add { .. }
            | AdminRequest::Remove { .. }
            | AdminRequest::List { .. }
            | AdminRequest::Delist { .. }
            | AdminRequest::Begun { .. }
            | AdminRequest::SetFirm { .. }
            | AdminRequest::RemoveFirm { .. }
                if self.log.leading_term().is_none() =>
            {
                AdminResponse::NotLeading
            }
            AdminRequest::Add { class: role, addresses } => {
                let node = control::node_of(&addresses);
                let node = node.map_err(PeerError::decode(peer, Kind::AdminRequest))?;
                let lacks_replication = node.replication.is_none() && self.has_replicas;
                if role != Role::Mediator || !lacks_replication {
                    self.add(role, node);
                }
                self.status(links.now_ns)
            }
            AdminRequest::Remove { node } => {
                if self.state.plan_remove(node).is_ok() && self.removals.insert(node) {
                    (self.is_changed, self.proposed_ns) = (true, 0);
                }
                self.status(links.now_ns)
            }
            request @ (AdminRequest::List { .. }
            | AdminRequest::Delist { .. }
            | AdminRequest::SetFirm { .. }
            | AdminRequest::RemoveFirm { .. }
            | AdminRequest::Begun { .. }) => {
                self.want(request);
                self.status(links.now_ns)
            }
            AdminRequest::Drain { node, is_drained } => {
                if self.state.routes().map.can_be_drained(node) {
                    self.drains.insert(node, is_drained);
                    (self.is_changed, self.proposed_ns) = (true, 0);
                }
                self.status(links.now_ns)
            }
            AdminRequest::Move { instrument, cell } => {
                match self.plan_move((from, peer), instrument, cell) {
                    Some(response) => response,
                    None => return Ok(()),
                }
            }
        };
        links.send(from, &response);
        Ok(())
    }

    /// An operator wants something to be traded, to trade, or to have begun.
    fn want(&mut self, request: AdminRequest) {
        match request {
            AdminRequest::List { listing } => self.set_listing(listing.instrument, Some(listing)),
            AdminRequest::Delist { instrument } => self.set_listing(instrument, None),
            AdminRequest::SetFirm { firm } => self.want_firm(firm.number, Some(firm)),
            AdminRequest::RemoveFirm { number } => self.want_firm(number, None),
            AdminRequest::Begun { group, at_s } => self.note_begun(group, at_s),
            _ => {}
        }
    }

    /// An operator wants to add a node that has all addresses that it needs.
    fn add(&mut self, role: Role, node: Node) {
        let is_possible = self.state.plan_add(role, &node) == Ok(None)
            && !self.monitor.is_taken(&node)
            && self.adds.len() < NODES_MAX;
        let add = (role, node);
        if is_possible && !self.adds.contains(&add) {
            self.adds.push(add);
            (self.is_changed, self.proposed_ns) = (true, 0);
        }
    }

    /// A phase of the schedule has begun.
    fn note_begun(&mut self, group: String, at_s: u64) {
        if self.state.is_later(&group, at_s) && self.begun.len() < SCHEDULE_GROUPS_MAX {
            self.begun.insert(group, at_s);
            (self.is_changed, self.proposed_ns) = (true, 0);
        }
    }

    /// An operator wants an instrument to be listed like this, or no more. What is not possible is
    /// dropped: the operator sees that in the state.
    fn set_listing(&mut self, instrument: InstrumentId, listing: Option<Listing>) {
        let is_known = self.listings.contains_key(&instrument);
        if is_known || self.listings.len() < LISTINGS_WAITING_MAX {
            self.listings.insert(instrument, listing);
            (self.is_changed, self.proposed_ns) = (true, 0);
        }
    }

    /// The listings that are not logged yet, and would change something.
    fn new_listings(&mut self) -> Vec<Command> {
        let map = &self.state.routes().map;
        if self.listings.is_empty() || self.monitor.has_newer_map(map) {
            return vec![];
        }
        self.listings.retain(|instrument, listing| {
            map.master().is_some_and(|master| match listing {
                Some(listing) => master.plan_list(listing).unwrap_or(false),
                None => master.plan_delist(*instrument).unwrap_or(false),
            })
        });
        let command = |(instrument, listing): (&InstrumentId, &Option<Listing>)| match listing {
            Some(listing) => Command::List(listing.clone()),
            None => Command::Delist(*instrument),
        };
        self.listings.iter().map(command).collect()
    }

    /// An operator wants a firm to be like this, or no more. What is not possible is dropped: the
    /// operator sees that in the state.
    fn want_firm(&mut self, number: u32, firm: Option<FirmRecord>) {
        if self.firms.contains_key(&number) || self.firms.len() < FIRMS_WAITING_MAX {
            self.firms.insert(number, firm);
            (self.is_changed, self.proposed_ns) = (true, 0);
        }
    }

    /// The firms that are not logged yet, and would change something.
    fn new_firms(&mut self) -> Vec<Command> {
        let map = &self.state.routes().map;
        if self.firms.is_empty() || self.monitor.has_newer_map(map) {
            return vec![];
        }
        self.firms.retain(|number, firm| {
            map.firms().is_some_and(|firms| match firm {
                Some(firm) => firms.plan_set(&Firm::of(firm)).unwrap_or(false),
                None => firms.plan_remove(*number).unwrap_or(false),
            })
        });
        let command = |(number, firm): (&u32, &Option<FirmRecord>)| match firm {
            Some(firm) => Command::SetFirm(firm.clone()),
            None => Command::RemoveFirm(*number),
        };
        self.firms.iter().map(command).collect()
    }

    /// The phases of the schedule that are not logged yet.
    fn new_phases(&mut self) -> Vec<Command> {
        let state = &self.state;
        self.begun.retain(|group, at_s| state.is_later(group, *at_s));
        let begun = self.begun.iter();
        begun.map(|(group, at_s)| Command::Begun { group: group.clone(), at_s: *at_s }).collect()
    }

    fn status(&self, now_ns: u64) -> AdminResponse {
        AdminResponse::Status {
            leading_term: self.log.leading_term(),
            stalled_ms: self.stalled_ns(now_ns) / 1_000_000,
            state: self.state.save().into(),
        }
    }

    /// An operator wants to move an instrument: the answer, unless it has to wait for the move.
    fn plan_move(
        &mut self,
        (operator, peer): (LinkId, Peer),
        instrument: InstrumentId,
        cell: u16,
    ) -> Option<AdminResponse> {
        let refused = |reason: String| Some(AdminResponse::Refused { instrument, reason });
        if peer != Peer::Operator {
            let reason = "only an operator may change the network, and this link is an observer's";
            return refused(reason.to_string());
        }
        if self.log.leading_term().is_none() {
            return Some(AdminResponse::NotLeading);
        }
        match self.state.plan_move(instrument, cell) {
            Err(error) => refused(error.to_string()),
            Ok(true) if self.is_carried_by_drained(cell) => refused(format!(
                "mediator {cell} is drained: `nearmetal exchange resume mediator:{cell}` first"
            )),
            Ok(false) => {
                let map_version = self.state.routes().map.version();
                Some(AdminResponse::Moved { instrument, map_version })
            }
            Ok(true) if self.waiting.len() == WAITING_MAX => {
                refused(format!("{WAITING_MAX} other moves are waited for"))
            }
            Ok(true) => {
                self.waiting.push(Waiting { operator, instrument, cell });
                (self.is_changed, self.proposed_ns) = (true, 0);
                None
            }
        }
    }

    /// Whether a cell has no other replica than that of a mediator that is drained.
    fn is_carried_by_drained(&self, cell: u16) -> bool {
        !self.has_replicas && self.state.routes().map.drained().contains(&Role::Mediator.node(cell))
    }

    fn stalled_ns(&self, now_ns: u64) -> u64 {
        let since_ns = self.unlogged.map_or(now_ns, |unlogged| unlogged.since_ns);
        Some(now_ns.saturating_sub(since_ns)).filter(|ns| *ns > STALLED_NS).unwrap_or_default()
    }

    /// When [`Control::on_iteration`] is due at the latest.
    pub fn deadline_ns(&self) -> Option<u64> {
        let due_ns = self.ends_ns.map_or(self.compare_ns, |ns| ns.min(self.compare_ns));
        (!self.is_stopped).then_some(due_ns)
    }

    /// Proposes, orders and sends what has to be, if something has changed or it is time.
    /// `led_cells`: cells that this node leads, and their terms.
    pub fn on_iteration(&mut self, links: &mut Links, led_cells: impl Iterator<Item = (u16, u32)>) {
        let now_ns = links.now_ns;
        let is_due = now_ns >= self.compare_ns;
        if self.ends_ns.is_some_and(|ns| now_ns >= ns) {
            self.ends_ns = None;
            (self.is_changed, self.proposed_ns) = (true, 0);
        }
        if self.is_stopped || !(self.is_changed || is_due) {
            return;
        }
        self.is_changed = false;
        if links.own().0.class != Role::Mediator {
            self.compare_ns = now_ns + COMPARE_NS;
            return;
        }
        let leading_term = self.log.leading_term();
        if is_due || self.is_membership_changed {
            let led_cells = led_cells.chain(leading_term.map(|term| (CONTROL, term)));
            self.compare_membership(links, led_cells);
        }
        let mut commands = self.membership.clone();
        if leading_term.is_some() {
            commands.extend(self.ended.values().cloned());
            commands.extend(self.new_moves());
            commands.extend(self.new_drains());
            commands.extend(self.new_nodes());
            commands.extend(self.new_listings());
            commands.extend(self.new_firms());
            commands.extend(self.new_phases());
        }
        self.track_unlogged(links, !commands.is_empty());
        if leading_term.is_some() {
            self.propose(links.time(), &commands);
            self.order_moves(links);
            self.send_new_routes(links);
        }
    }

    /// Compares the membership with the state.
    fn compare_membership(&mut self, links: &Links, led_cells: impl Iterator<Item = (u16, u32)>) {
        let now_ns = links.now_ns;
        (self.is_membership_changed, self.compare_ns) = (false, now_ns + COMPARE_NS);
        let (own, start) = links.own();
        self.monitor.own.nodes = links.connected_nodes().chain([(own, start)]).collect();
        let leader = |term| CellLeader { mediator: own.index, term, start };
        self.monitor.own.routes.leaders =
            led_cells.map(|(cell, term)| (cell, leader(term))).collect();
        self.membership = self.monitor.pending_commands(&self.state, now_ns);
    }

    /// Moves that operators wait for and that are not logged yet.
    fn new_moves(&self) -> Vec<Command> {
        let map = &self.state.routes().map;
        if self.waiting.is_empty() || self.monitor.has_newer_map(map) {
            return vec![];
        }
        let is_new = |waiting: &&Waiting| {
            !self.state.pending_moves().contains_key(&waiting.instrument)
                && map.cell_of(waiting.instrument) != waiting.cell
        };
        let new = self.waiting.iter().filter(is_new);
        new.map(|it| Command::Move { instrument: it.instrument, cell: it.cell }).collect()
    }

    /// Nodes that operators want to be drained, or to work again, and that are not logged yet.
    fn new_drains(&mut self) -> Vec<Command> {
        let map = &self.state.routes().map;
        if self.drains.is_empty() || self.monitor.has_newer_map(map) {
            return vec![];
        }
        self.drains.retain(|node, is_drained| map.drained().contains(node) != *is_drained);
        let drains = self.drains.iter();
        drains
            .map(|(node, is_drained)| Command::Drain { node: *node, is_drained: *is_drained })
            .collect()
    }

    /// Nodes that operators want to add or to remove, and that are not logged yet. What has become
    /// impossible is dropped: the operator sees that in the state.
    fn new_nodes(&mut self) -> Vec<Command> {
        let state = &self.state;
        if self.monitor.has_newer_map(&state.routes().map) {
            return vec![];
        }
        self.adds.retain(|(role, node)| state.plan_add(*role, node) == Ok(None));
        self.removals.retain(|node| state.plan_remove(*node).is_ok());
        let adds = self.adds.iter().cloned().map(|(role, node)| Command::Add { role, node });
        adds.chain(self.removals.iter().copied().map(Command::Remove)).collect()
    }

    /// Refuses the moves that cannot be made any more, because others came before.
    fn refuse_impossible(&mut self, links: &mut Links) {
        let state = &self.state;
        let is_possible = |it: &Waiting| state.plan_move(it.instrument, it.cell);
        for it in self.waiting.extract_if(.., |it| is_possible(it) != Ok(true)) {
            let Waiting { operator, instrument, cell } = it;
            let response = match state.plan_move(instrument, cell) {
                Err(error) => AdminResponse::Refused { instrument, reason: error.to_string() },
                Ok(_) => {
                    let map_version = state.routes().map.version();
                    AdminResponse::Moved { instrument, map_version }
                }
            };
            links.send(operator, &response);
        }
    }

    fn propose(&mut self, time: Time, commands: &[Command]) {
        let now_ns = time.monotonic_ns;
        let is_due = self.proposed_ns == 0 || now_ns - self.proposed_ns > RETRY_NS;
        if commands.is_empty() || !is_due || !self.log.can_propose() {
            return;
        }
        self.proposed_ns = now_ns;
        let now_ms = time.wall_ns / 1_000_000;
        // One that is refused is proposed again.
        let _ = self.log.propose(control::encode_batch(now_ms, commands));
    }

    /// Orders moves from the cells that have the instruments, the oldest first, and again after a
    /// while; through one router after the other.
    fn order_moves(&mut self, links: &mut Links) {
        self.refuse_impossible(links);
        // A restored map ends moves without a word of their cells.
        let pending = self.state.pending_moves();
        self.ordered.retain(|instrument, _| pending.contains_key(instrument));
        self.ended.retain(|instrument, _| pending.contains_key(instrument));
        let routers = links.all_to(Role::Router);
        if routers.is_empty() || self.state.pending_moves().is_empty() {
            return;
        }
        let now_ns = links.now_ns;
        let pending = self.state.pending_moves().iter();
        let mut moves: Vec<_> = pending.filter(|(it, _)| !self.ended.contains_key(it)).collect();
        moves.sort_unstable_by_key(|(_, pending)| pending.epoch);
        for (instrument, pending) in moves.into_iter().take(MOVES_ORDERED_MAX) {
            let last_ns = self.ordered.get(instrument).copied();
            let is_due = last_ns.is_none_or(|ns| now_ns.saturating_sub(ns) > RETRY_NS);
            if !is_due {
                continue;
            }
            self.ordered.insert(*instrument, now_ns);
            self.orders += 1;
            let (instrument, epoch) = (*instrument, pending.epoch);
            let from = self.state.routes().map.cell_of(instrument);
            let order = MoveOrder { id: MoveId { instrument, epoch }, from, to: pending.cell };
            links.send(routers[self.orders % routers.len()], &order);
        }
    }

    /// Sends routers the routing table if it has changed.
    fn send_new_routes(&mut self, links: &mut Links) {
        let routes = self.state.routes();
        let version = routes.map.version();
        let is_sent = |(sent, leaders): &(_, _)| *sent == version && *leaders == routes.leaders;
        if !self.sent_routes.as_ref().is_some_and(is_sent) {
            let routers = links.all_to(Role::Router);
            send_routes(links, &routers, routes);
            self.sent_routes = Some((version, routes.leaders.clone()));
        }
    }

    /// A router is connected: a leader sends it the routing table.
    pub fn on_router_connected(&self, links: &mut Links, router: LinkId) {
        if self.log.leading_term().is_some() {
            send_routes(links, &[router], self.state.routes());
        }
    }

    /// Warns once that nothing can be logged, and reports once that it can be again.
    fn track_unlogged(&mut self, links: &mut Links, has_commands: bool) {
        let (now_ns, index) = (links.now_ns, self.state.index());
        let Some(mut unlogged) = self.unlogged.filter(|_| has_commands) else {
            if self.unlogged.is_some_and(|unlogged| unlogged.is_reported) {
                links.warnings.push("the control group continues".to_string());
            }
            let first = Unlogged { since_ns: now_ns, is_reported: false, index };
            self.unlogged = has_commands.then_some(first);
            return;
        };
        if unlogged.index != index {
            (unlogged.since_ns, unlogged.index) = (now_ns, index);
        } else if !unlogged.is_reported && now_ns.saturating_sub(unlogged.since_ns) > STALLED_NS {
            unlogged.is_reported = true;
            let version = self.state.routes().map.version();
            links.warnings.push(format!(
                "the control group has no majority: trading continues with version {version} of \
                 the map, and changes of the membership are not logged"
            ));
        }
        self.unlogged = Some(unlogged);
    }
}

/// An observer or operator asks a node: what its cells have done it says itself, the rest its
/// replica of control, if it has one.
pub fn answer<L: Log>(
    links: &mut Links,
    from: (LinkId, Peer),
    request: AdminRequest,
    control: Option<&mut Control<L>>,
    add_work: impl FnOnce(&mut Work),
) -> Result<(), PeerError> {
    let is_allowed = from.1 == Peer::Operator
        || !request.is_change()
        // It is refused in a sentence.
        || matches!(request, AdminRequest::Move { .. });
    match (control, request) {
        (_, AdminRequest::Work) => {
            let mut work = links.work_until_now();
            add_work(&mut work);
            respond_work(links, from.0, work);
        }
        _ if !is_allowed => {
            let (peer, kind) = (from.1, Kind::AdminRequest);
            return Err(PeerError::UnexpectedFrame { peer, kind, role: Role::Mediator });
        }
        (Some(control), request) => return control.on_request(links, from, request),
        (None, _) => links.send(from.0, &AdminResponse::NotLeading),
    }
    Ok(())
}

/// An observer asks a node without replicas for its work.
pub fn answer_links(
    links: &mut Links,
    (from, peer): (LinkId, Peer),
    frame: Frame<'_>,
    (role, work): (Role, Work),
) -> Result<(), PeerError> {
    let kind = Kind::AdminRequest;
    match frame.read().map_err(PeerError::decode(peer, kind))? {
        AdminRequest::Work => respond_work(links, from, work),
        _ => return Err(PeerError::UnexpectedFrame { peer, kind, role }),
    }
    Ok(())
}

fn respond_work(links: &mut Links, to: LinkId, work: Work) {
    let work = Work { links: links.latencies(), ..work };
    links.send(to, &control::work_response(work));
}

/// Tells processors which nodes were added, if there are such: they get no routing tables else.
pub fn send_nodes(links: &mut Links, processors: &[LinkId], map: &InstrumentMap) {
    if map.has_added() {
        send_routes(links, processors, &RoutingTable::new(map.clone()));
    }
}

/// Sends a routing table over links.
pub fn send_routes(links: &mut Links, receivers: &[LinkId], routes: &RoutingTable) {
    links.send_to_all(receivers.iter().copied(), &routes.message());
}

#[cfg(test)]
mod tests {
    use super::*;

    impl<L: Log> Control<L> {
        /// What is not as it should be when nothing is under way: its state has this hash.
        pub fn unsettled(&self, hash: u64) -> Option<String> {
            if self.state.hash() != hash {
                return Some("control's state is another one than its log says".to_string());
            }
            let is_idle =
                self.ended.is_empty() && self.ordered.is_empty() && self.waiting.is_empty();
            (!is_idle).then(|| format!("{:?} {:?} {:?}", self.ended, self.ordered, self.waiting))
        }
    }
}
