//! A node's replica of the control group: hears the log, proposes what it sees if it leads, tells
//! routers what is new, and answers observers.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nm_model::agent::Failure;
use nm_replica::{Log, LogEvent};

use crate::control::{
    self, AdminRequest, AdminResponse, CellLeader, Change, Command, MembershipMonitor,
    MembershipReport, RoutingTable, State,
};
use crate::link::LinkError;
use crate::network::{CONTROL, Network, Role};
use crate::wire::{self, FrameKind, Header};

use super::links::{LinkId, Links};

/// How often is looked whether what is seen is written down, ns.
const LOOK_NS: u64 = 100_000_000;

/// Pause before the same is proposed, or a cell asked, again, ns.
const AGAIN_NS: u64 = 200_000_000;

/// What could not be written down for so long tells that there is no majority, ns.
const STALLED_NS: u64 = 3_000_000_000;

/// Observers that may wait for a change of the map.
const ASKERS_MAX: usize = 1_024;

/// A replica of control.
#[derive(Debug)]
pub struct Control<L> {
    log: L,
    state: State,
    watch: MembershipMonitor,
    /// What routers were told last.
    told: Option<RoutingTable>,
    /// Observers that wait for a change.
    askers: Vec<(LinkId, Change)>,
    /// What a cell answered on the change that is on its way.
    released: Option<Command>,
    /// Whether something has come since it was looked last, and when it is looked again.
    is_news: bool,
    look_ns: u64,
    /// When was proposed or asked last.
    proposed_ns: u64,
    asked_ns: u64,
    asked_count: usize,
    /// Since when something is to be written down, whether that was spoken of, and the index of
    /// the state then.
    waits: Option<(u64, bool, u64)>,
    /// Whether its log has ended.
    is_over: bool,
}

impl<L: Log> Control<L> {
    /// A replica that has heard nothing.
    pub fn new(network: &Network, log: L) -> Control<L> {
        Control {
            log,
            state: State::new(network.mediator.len()),
            watch: MembershipMonitor::new(network),
            told: None,
            askers: vec![],
            released: None,
            is_news: false,
            look_ns: 0,
            proposed_ns: 0,
            asked_ns: 0,
            asked_count: 0,
            waits: None,
            is_over: false,
        }
    }

    /// Whether it could stand in for another replica of control.
    pub fn is_whole(&self) -> bool {
        self.is_over || self.log.is_caught_up()
    }

    /// The map, and who leads, as this replica has it.
    pub fn routes(&self) -> &RoutingTable {
        self.state.routes()
    }

    /// Takes all that is told. Whatever goes wrong here stops nobody who trades.
    pub fn hear(&mut self, links: &mut Links) {
        while let Some(told) = self.log.next_event() {
            self.is_news = true;
            match told {
                LogEvent::Committed { index, batch, .. } => self.commit(links, index, &batch),
                LogEvent::TakeSnapshot { number } => {
                    self.log.finish_snapshot(number, self.state.save())
                }
                LogEvent::LoadSnapshot { state, .. } => match State::load(&state) {
                    Ok(state) => self.state = state,
                    Err(why) => self.end(links, &why),
                },
                LogEvent::LeadershipGained { .. } => self.begin(links),
                LogEvent::LeadershipLost => self.follow(links),
                LogEvent::CaughtUp => {}
                LogEvent::Degraded(why) => links.troubles.push(format!("control waits: {why}")),
                LogEvent::Stopped(error) => self.end(links, &Failure::from(error).message),
            }
        }
    }

    fn end(&mut self, links: &mut Links, why: &str) {
        self.is_over = true;
        self.follow(links);
        links.troubles.push(format!(
            "this node's replica of the control group has ended, the network goes on without: {why}"
        ));
    }

    fn begin(&mut self, links: &mut Links) {
        self.follow(links);
        (self.proposed_ns, self.asked_ns) = (0, 0);
    }

    /// What was begun by this replica as the leader is up to another one.
    fn follow(&mut self, links: &mut Links) {
        (self.told, self.released) = (None, None);
        for (asker, _) in std::mem::take(&mut self.askers) {
            answer(links, asker, &AdminResponse::NotLeading);
        }
    }

    fn commit(&mut self, links: &mut Links, index: u64, batch: &[u8]) {
        self.state.begin(index);
        let Ok((now_ms, commands)) = control::open(batch) else {
            return links.troubles.push(format!("entry {index} of control means nothing"));
        };
        // What is wished next is something else, and so is what a cell is asked.
        self.proposed_ns = 0;
        for command in &commands {
            if let Command::Assign { .. } = command {
                self.asked_ns = 0;
            }
            let Some((change, is_given)) = self.state.apply(command, now_ms) else { continue };
            self.released = None;
            let Change { instrument, .. } = change;
            let told = if is_given {
                AdminResponse::Assigned(self.state.routes().map.epoch())
            } else {
                AdminResponse::Refused(format!(
                    "instrument {instrument} has had requests in its cell, and stays there: an \
                     instrument moves only as long as it never has"
                ))
            };
            let is_of = |asker: &mut (LinkId, Change)| asker.1 == change;
            for (asker, _) in self.askers.extract_if(.., is_of) {
                answer(links, asker, &told);
            }
        }
    }

    /// A router tells what it sees; or it is gone.
    pub fn view(&mut self, router: usize, view: Option<MembershipReport>) {
        match view {
            Some(view) => drop(self.watch.views.insert(router, view)),
            None => drop(self.watch.views.remove(&router)),
        }
        self.is_news = true;
    }

    /// A cell's leader has answered.
    pub fn released(&mut self, header: &Header) {
        let Header { instrument, map_version: epoch, flags, .. } = *header;
        let is_awaited = self.state.change().is_some_and(|change| change.instrument == instrument);
        if is_awaited && epoch == self.state.routes().map.epoch() + 1 {
            let is_given = flags & wire::GRANTED != 0;
            self.released = Some(Command::Released { instrument, epoch, is_given });
            (self.is_news, self.proposed_ns) = (true, 0);
        }
    }

    /// An observer asks.
    ///
    /// # Errors
    /// If what it asks means nothing.
    pub fn ask(&mut self, links: &mut Links, from: LinkId, body: &[u8]) -> Result<(), LinkError> {
        let ask = AdminRequest::whole(body).map_err(|error| LinkError(error.to_string()))?;
        let told = match ask {
            AdminRequest::Status => AdminResponse::Status {
                lead: self.log.leading_term(),
                stalled_ms: self.stalled_ns(links.now_ns) / 1_000_000,
                state: Box::new(self.state.clone()),
            },
            AdminRequest::Assign { .. } if self.log.leading_term().is_none() => {
                AdminResponse::NotLeading
            }
            AdminRequest::Assign { instrument, cell } => match self.state.check(instrument, cell) {
                Err(why) => AdminResponse::Refused(why),
                Ok(None) => AdminResponse::Assigned(self.state.routes().map.epoch()),
                Ok(Some(_)) if self.askers.len() == ASKERS_MAX => AdminResponse::Refused(format!(
                    "{ASKERS_MAX} others wait for a change of the map"
                )),
                Ok(Some(change)) => {
                    self.askers.push((from, change));
                    (self.is_news, self.proposed_ns) = (true, 0);
                    return Ok(());
                }
            },
        };
        answer(links, from, &told);
        Ok(())
    }

    fn stalled_ns(&self, now_ns: u64) -> u64 {
        let since_ns = self.waits.map_or(now_ns, |(since_ns, ..)| since_ns);
        Some(now_ns.saturating_sub(since_ns)).filter(|ns| *ns > STALLED_NS).unwrap_or_default()
    }

    /// When [`Control::turn`] is wanted at the latest.
    pub fn due_ns(&self) -> Option<u64> {
        (!self.is_over).then_some(self.look_ns)
    }

    /// Looks whether what is seen is written down, if something is new or it is time. `leads`:
    /// cells that this node leads, and their epochs.
    pub fn turn(&mut self, links: &mut Links, leads: impl Iterator<Item = (u16, u32)>) {
        let now_ns = links.now_ns;
        if self.is_over || (!self.is_news && now_ns < self.look_ns) {
            return;
        }
        (self.is_news, self.look_ns) = (false, now_ns + LOOK_NS);
        let (own, start) = links.own();
        if own.0 != Role::Mediator {
            return;
        }
        self.watch.near.nodes = links.seen().chain([(own, start)]).collect();
        let lead = self.log.leading_term();
        let leads = leads.chain(lead.map(|epoch| (CONTROL, epoch)));
        let leading = |epoch| CellLeader { mediator: own.1, epoch, start };
        self.watch.near.routes.leaders =
            leads.map(|(cell, epoch)| (cell, leading(epoch))).collect();
        self.watch.near.routes.map.take(&self.state.routes().map);
        let mut wishes = self.watch.wishes(&self.state, now_ns);
        if lead.is_some() {
            wishes.extend(self.change());
        }
        self.note_wait(links, !wishes.is_empty());
        if lead.is_some() {
            self.propose(now_ns, &wishes);
            self.release(links);
            self.tell(links);
        }
    }

    /// What goes on with changes of the map: one is on its way at a time.
    fn change(&self) -> Option<Command> {
        if self.state.change().is_some() {
            return self.released.clone();
        }
        let map = &self.state.routes().map;
        let (_, Change { instrument, cell }) = *self.askers.first()?;
        (!self.watch.knows_newer(map)).then_some(Command::Assign { instrument, cell })
    }

    fn propose(&mut self, now_ns: u64, wishes: &[Command]) {
        let is_due = self.proposed_ns == 0 || now_ns - self.proposed_ns > AGAIN_NS;
        if wishes.is_empty() || !is_due || !self.log.can_propose() {
            return;
        }
        self.proposed_ns = now_ns;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        // One that is refused is wished again.
        let _ = self.log.propose(control::batch(now.as_millis() as u64, wishes));
    }

    /// Asks the present cell for the instrument that is on its way, through one router after the
    /// other.
    fn release(&mut self, links: &mut Links) {
        let Some(change) = self.state.change().filter(|_| self.released.is_none()) else { return };
        let now_ns = links.now_ns;
        let routers = links.all_to(Role::Router);
        if routers.is_empty() || (self.asked_ns > 0 && now_ns - self.asked_ns < AGAIN_NS) {
            return;
        }
        (self.asked_ns, self.asked_count) = (now_ns, self.asked_count + 1);
        let map = &self.state.routes().map;
        let (cell, epoch) = (map.cell_of(change.instrument), map.epoch() + 1);
        let kind = Header::new(FrameKind::Release);
        let header = Header { instrument: change.instrument, cell, map_version: epoch, ..kind };
        links.send(routers[self.asked_count % routers.len()], &header, &[], 0);
    }

    /// Tells routers what is new; one that comes up, everything.
    fn tell(&mut self, links: &mut Links) {
        let routes = self.state.routes();
        if self.told.as_ref() != Some(routes) {
            for router in links.all_to(Role::Router) {
                tell_routes(links, router, routes);
            }
            self.told = Some(routes.clone());
        }
    }

    /// A router is up: it is told, if it is for this replica to tell.
    pub fn greet(&self, links: &mut Links, router: LinkId) {
        if self.log.leading_term().is_some() {
            tell_routes(links, router, self.state.routes());
        }
    }

    /// Says once that nothing can be written down, and once that it can be again.
    fn note_wait(&mut self, links: &mut Links, has_wishes: bool) {
        let index = self.state.index();
        let Some((since_ns, is_said, before)) = self.waits.filter(|_| has_wishes) else {
            if let Some((_, true, _)) = self.waits {
                links.troubles.push("the control group goes on".to_string());
            }
            self.waits = has_wishes.then_some((links.now_ns, false, index));
            return;
        };
        if before != index {
            self.waits = Some((links.now_ns, is_said, index));
        } else if !is_said && links.now_ns.saturating_sub(since_ns) > STALLED_NS {
            self.waits = Some((since_ns, true, index));
            let epoch = self.state.routes().map.epoch();
            links.troubles.push(format!(
                "the control group has no majority: trading goes on with the map of epoch {epoch}, \
                 and what changes among the nodes is not written down"
            ));
        }
    }
}

fn answer(links: &mut Links, to: LinkId, answer: &AdminResponse) {
    links.send(to, &Header::new(FrameKind::AdminResponse), &answer.bytes(), 0);
}

/// Sends the map and the leaders over a link.
pub fn tell_routes(links: &mut Links, to: LinkId, routes: &RoutingTable) {
    links.send(to, &Header::new(FrameKind::RoutingTable), &routes.bytes(), 0);
}
