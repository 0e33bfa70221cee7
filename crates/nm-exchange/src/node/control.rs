//! A node's replica of the control group: applies the log, proposes changes of the membership if it
//! leads, sends routers the routing table, and answers observers.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nm_model::agent::Failure;
use nm_replica::{Log, LogEvent};

use crate::control::{
    self, AdminRequest, AdminResponse, CellLeader, Command, InstrumentMove, MembershipMonitor,
    MembershipReport, RoutingTable, State,
};
use crate::message::{Release, Released};
use crate::network::{CONTROL, Network, Role};
use crate::wire::{FrameKind, Header};

use super::links::{LinkId, Links};
use super::peer::{Peer, PeerError};

/// How often the membership is compared with the state, ns.
const COMPARE_NS: u64 = 100_000_000;

/// Pause before the same is proposed, or a cell asked, again, ns.
const RETRY_NS: u64 = 200_000_000;

/// Changes that could not be logged for so long show that there is no majority, ns.
const STALLED_NS: u64 = 3_000_000_000;

/// Observers that may wait for a move.
const WAITING_MAX: usize = 1_024;

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
    /// What routers were sent last.
    sent_routes: Option<RoutingTable>,
    /// Observers that wait for a move.
    waiting: Vec<(LinkId, InstrumentMove)>,
    /// What a cell answered on the pending move.
    released: Option<Command>,
    /// Whether something has changed since the last comparison, and when the next one is due.
    is_changed: bool,
    compare_ns: u64,
    /// When it last proposed, or asked a cell.
    proposed_ns: u64,
    asked_ns: u64,
    asked_count: usize,
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
            state: State::new(network.mediator.len()),
            monitor: MembershipMonitor::new(network),
            sent_routes: None,
            waiting: vec![],
            released: None,
            is_changed: false,
            compare_ns: 0,
            proposed_ns: 0,
            asked_ns: 0,
            asked_count: 0,
            unlogged: None,
            is_stopped: false,
        }
    }

    /// Whether it could stand in for another replica of control.
    pub fn is_caught_up(&self) -> bool {
        self.is_stopped || self.log.is_caught_up()
    }

    /// The map, and who leads, as this replica has it.
    pub fn routes(&self) -> &RoutingTable {
        self.state.routes()
    }

    /// Handles the events of its log. An error here does not stop the cells.
    pub fn handle_events(&mut self, links: &mut Links) {
        while let Some(event) = self.log.next_event() {
            self.is_changed = true;
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
                LogEvent::CaughtUp => {}
                LogEvent::Degraded(reason) => {
                    links.warnings.push(format!("control waits: {reason}"));
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
        (self.proposed_ns, self.asked_ns) = (0, 0);
    }

    /// What this replica began as the leader is continued by the next one.
    fn end_term(&mut self, links: &mut Links) {
        (self.sent_routes, self.released) = (None, None);
        for (observer, _) in std::mem::take(&mut self.waiting) {
            respond(links, observer, &AdminResponse::NotLeading);
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
        // The next proposal is another one, and so is the next request to a cell.
        self.proposed_ns = 0;
        for command in &commands {
            if let Command::Move { .. } = command {
                self.asked_ns = 0;
            }
            let Some((ended, is_granted)) = self.state.apply(command, now_ms) else { continue };
            self.released = None;
            let InstrumentMove { instrument, .. } = ended;
            let response = if is_granted {
                AdminResponse::Assigned(self.state.routes().map.version())
            } else {
                AdminResponse::Refused(format!(
                    "instrument {instrument} has had requests in its cell, and stays: only an \
                     instrument without requests can move"
                ))
            };
            let is_for_it = |waiting: &mut (LinkId, InstrumentMove)| waiting.1 == ended;
            for (observer, _) in self.waiting.extract_if(.., is_for_it) {
                respond(links, observer, &response);
            }
        }
    }

    /// A router reports; or it is disconnected.
    pub fn set_report(&mut self, router: usize, report: Option<MembershipReport>) {
        match report {
            Some(report) => drop(self.monitor.reports.insert(router, report)),
            None => drop(self.monitor.reports.remove(&router)),
        }
        self.is_changed = true;
    }

    /// A cell's leader has answered.
    pub fn on_released(&mut self, released: Released) {
        let Released { release: Release { instrument, map_version, .. }, is_granted } = released;
        let pending = self.state.pending_move();
        let is_awaited = pending.is_some_and(|pending| pending.instrument == instrument);
        if is_awaited && map_version == self.state.routes().map.version() + 1 {
            self.released = Some(Command::Released { instrument, map_version, is_granted });
            (self.is_changed, self.proposed_ns) = (true, 0);
        }
    }

    /// An observer sends a request.
    ///
    /// # Errors
    /// If it cannot be decoded.
    pub fn on_request(
        &mut self,
        links: &mut Links,
        (from, peer): (LinkId, Peer),
        body: &[u8],
    ) -> Result<(), PeerError> {
        let request =
            AdminRequest::decode(body).map_err(PeerError::decode(peer, FrameKind::AdminRequest))?;
        let response = match request {
            request if request.is_change() && peer != Peer::Operator => AdminResponse::Refused(
                "only an operator may change the network, and this link is an observer's".into(),
            ),
            AdminRequest::Status => AdminResponse::Status {
                leading_term: self.log.leading_term(),
                stalled_ms: self.stalled_ns(links.now_ns) / 1_000_000,
                state: Box::new(self.state.clone()),
            },
            AdminRequest::Assign { .. } if self.log.leading_term().is_none() => {
                AdminResponse::NotLeading
            }
            AdminRequest::Assign { instrument, cell } => {
                match self.state.plan_move(instrument, cell) {
                    Err(error) => AdminResponse::Refused(error.to_string()),
                    Ok(None) => AdminResponse::Assigned(self.state.routes().map.version()),
                    Ok(Some(_)) if self.waiting.len() == WAITING_MAX => AdminResponse::Refused(
                        format!("{WAITING_MAX} other observers wait for a move"),
                    ),
                    Ok(Some(planned)) => {
                        self.waiting.push((from, planned));
                        (self.is_changed, self.proposed_ns) = (true, 0);
                        return Ok(());
                    }
                }
            }
        };
        respond(links, from, &response);
        Ok(())
    }

    fn stalled_ns(&self, now_ns: u64) -> u64 {
        let since_ns = self.unlogged.map_or(now_ns, |unlogged| unlogged.since_ns);
        Some(now_ns.saturating_sub(since_ns)).filter(|ns| *ns > STALLED_NS).unwrap_or_default()
    }

    /// When [`Control::on_iteration`] is due at the latest.
    pub fn deadline_ns(&self) -> Option<u64> {
        (!self.is_stopped).then_some(self.compare_ns)
    }

    /// Compares the membership with the state, if something has changed or it is time. `led_cells`:
    /// cells that this node leads, and their terms.
    pub fn on_iteration(&mut self, links: &mut Links, led_cells: impl Iterator<Item = (u16, u32)>) {
        let now_ns = links.now_ns;
        if self.is_stopped || (!self.is_changed && now_ns < self.compare_ns) {
            return;
        }
        (self.is_changed, self.compare_ns) = (false, now_ns + COMPARE_NS);
        let (own, start) = links.own();
        if own.0 != Role::Mediator {
            return;
        }
        self.monitor.own.nodes = links.connected_nodes().chain([(own, start)]).collect();
        let leading_term = self.log.leading_term();
        let led_cells = led_cells.chain(leading_term.map(|term| (CONTROL, term)));
        let leader = |term| CellLeader { mediator: own.1, term, start };
        self.monitor.own.routes.leaders =
            led_cells.map(|(cell, term)| (cell, leader(term))).collect();
        self.monitor.own.routes.map.update(&self.state.routes().map);
        let mut commands = self.monitor.pending_commands(&self.state, now_ns);
        if leading_term.is_some() {
            commands.extend(self.next_move());
        }
        self.track_unlogged(links, !commands.is_empty());
        if leading_term.is_some() {
            self.propose(now_ns, &commands);
            self.request_release(links);
            self.send_new_routes(links);
        }
    }

    /// The command that continues with the moves: one is pending at a time.
    fn next_move(&self) -> Option<Command> {
        if self.state.pending_move().is_some() {
            return self.released.clone();
        }
        let map = &self.state.routes().map;
        let (_, InstrumentMove { instrument, cell }) = *self.waiting.first()?;
        (!self.monitor.has_newer_map(map)).then_some(Command::Move { instrument, cell })
    }

    fn propose(&mut self, now_ns: u64, commands: &[Command]) {
        let is_due = self.proposed_ns == 0 || now_ns - self.proposed_ns > RETRY_NS;
        if commands.is_empty() || !is_due || !self.log.can_propose() {
            return;
        }
        self.proposed_ns = now_ns;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        // One that is refused is proposed again.
        let _ = self.log.propose(control::encode_batch(now.as_millis() as u64, commands));
    }

    /// Asks the present cell to release the instrument of the pending move, through one router
    /// after the other.
    fn request_release(&mut self, links: &mut Links) {
        let pending = self.state.pending_move().filter(|_| self.released.is_none());
        let Some(InstrumentMove { instrument, .. }) = pending else { return };
        let now_ns = links.now_ns;
        let routers = links.all_to(Role::Router);
        if routers.is_empty() || (self.asked_ns > 0 && now_ns - self.asked_ns < RETRY_NS) {
            return;
        }
        (self.asked_ns, self.asked_count) = (now_ns, self.asked_count + 1);
        let map = &self.state.routes().map;
        let (cell, map_version) = (map.cell_of(instrument), map.version() + 1);
        let router = routers[self.asked_count % routers.len()];
        links.send(router, &Release { instrument, cell, map_version }.header(), &[], 0);
    }

    /// Sends routers the routing table if it has changed.
    fn send_new_routes(&mut self, links: &mut Links) {
        let routes = self.state.routes();
        if self.sent_routes.as_ref() != Some(routes) {
            for router in links.all_to(Role::Router) {
                send_routes(links, router, routes);
            }
            self.sent_routes = Some(routes.clone());
        }
    }

    /// A router is connected: a leader sends it the routing table.
    pub fn on_router_connected(&self, links: &mut Links, router: LinkId) {
        if self.log.leading_term().is_some() {
            send_routes(links, router, self.state.routes());
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

fn respond(links: &mut Links, to: LinkId, response: &AdminResponse) {
    links.send(to, &Header::new(FrameKind::AdminResponse), &response.encode(), 0);
}

/// Sends a routing table over a link.
pub fn send_routes(links: &mut Links, to: LinkId, routes: &RoutingTable) {
    links.send(to, &Header::new(FrameKind::RoutingTable), &routes.encode(), 0);
}
