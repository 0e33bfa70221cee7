//! Gateway: keeps the clients' connections, and their requests until they are answered.
//!
//! Replies leave in the order of a session's requests on an instrument. One that arrives before
//! that of an earlier request, whose reply was lost on a link, waits for it. Only those to [refused
//! requests](nm_wire::refused) leave at once.
//!
//! Requests without a reply are resent, in order for each session and instrument:
//!
//! - when the router's link is made again;
//! - when a cell has a new leader;
//! - when its processor reports that replies may be lost;
//! - when a cell sends a nak (`pending`);
//! - when the map moves the instrument to another cell;
//! - after a time without reply, which doubles and is longer than recent replies took.
//!
//! What a client may ask of a gateway has limits ([`crate::limits`]); what exceeds one is refused.
//! All that is known of a session is dropped when the link of its client ends, or it comes by
//! another one.
//!
//! The other events of sessions are numbered, and sessions keep count of them. Where some may be
//! lost on a link, the gateway asks its clients to send [resend requests](ResendRequest).
//!
//! A gateway that is drained takes no more sessions, and tells its clients to go to another one. A
//! cell sends the events of a session to the gateway of its last request, where it may no longer
//! be. The gateway gives them back, and the processor sends them to all others.
//!
//! A gateway has a link to two routers, and to those that were added. It uses the first one that
//! knows the leaders of all cells, and goes around one that lets requests wait ([`silence`]).

mod clients;
mod orders_requests;
mod pending;
mod presence;
mod resend_requests;
mod silence;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use nm_book::order::{InstrumentId, UserId};
use nm_codec::DecodeError;
use nm_wire::{
    Breach, EventsLost, Frame, FrameMut, GoAway, Hello, Kind, Leader, LoggedOn, Logon, Misdirected,
    Nak, OrdersRequest, Owner, Presence, RefusalReason, Refused, RepliesLost, Request,
    ResendRequest, Shape, Standing, Who, best_prices, open_orders, private, public, refused, reply,
    request, resent,
};

use crate::cell::DESK;
use crate::control::{InstrumentMap, MembershipReport, Placement, RoutingTable, Work};
use crate::limits::{OWNER_REQUESTS_BYTES_MAX, OWNER_REQUESTS_MAX};
use crate::moves::{MoveEnded, MoveId};
use crate::network::{Durability, Network, NodeId, Role};
use crate::resend::ResendQueue;

use crate::node::control::answer_links;
use crate::node::runtime::behaviour::Behaviour;
use crate::node::runtime::links::{LinkId, Links};
use crate::node::runtime::peer::{Peer, PeerError};
use clients::ClientLinks;
use orders_requests::OrdersRequests;
use pending::{AfterNak, Numbers, PendingRequests, Place, Route};
use presence::Named;
use resend_requests::ResendRequests;
use silence::Silence;

/// How often requests without reply are checked for time-outs, ns.
const CHECK_NS: u64 = 50_000_000;

/// Buffers that are kept for reuse: how many, and how large they may be.
const SPARE_MAX: usize = 16 << 10;
const SPARE_BYTES_MAX: usize = 4 << 10;

/// A session on an instrument.
type StreamKey = (InstrumentId, UserId);

/// The numbers of an instrument's events, which are those of the requests that caused them.
#[derive(Debug, Default)]
struct Forwarded {
    /// The highest one that was forwarded.
    last: u64,
    /// The one up to which they are duplicates.
    duplicates_to: u64,
    /// The highest one when the latest session came, and how many had come then: it may lack these.
    missed_to: u64,
    arrivals: u64,
}

/// A gateway.
#[derive(Debug)]
pub struct Gateway {
    network: Network,
    /// Which cell an instrument belongs to.
    map: InstrumentMap,
    /// Instruments that have moved, as their new cells announced: the map may not have it yet.
    announced: BTreeMap<InstrumentId, Placement>,
    resend_requests: ResendRequests,
    /// Resend requests that came back, because the instrument is in another cell.
    returned: BTreeMap<StreamKey, ResendRequest>,
    index: u16,
    /// The router that gets the requests.
    router: u16,
    /// Of each router that is connected: the cells of which it has announced a leader.
    led_cells: BTreeMap<u16, BTreeSet<u16>>,
    /// Routers that let requests wait.
    silence: Silence,
    clients: ClientLinks,
    streams: HashMap<StreamKey, PendingRequests>,
    /// Those that may have pending requests.
    checked: Vec<StreamKey>,
    /// Those that wait to send requests again.
    resends: ResendQueue<StreamKey>,
    next_check_ns: u64,
    /// Longest wait for a reply lately, ns: a slow network gets no duplicates.
    slowest_ns: u64,
    spare: Vec<Vec<u8>>,
    /// By instrument, as many as the cells have.
    forwarded: HashMap<InstrumentId, Forwarded>,
    /// How often a session came.
    arrivals: u64,
    requests: u64,
    resent: u64,
    named: Named,
    orders_requests: OrdersRequests,
    /// Owners that were stopped, as it has heard.
    stopped: BTreeSet<Owner>,
}

impl Gateway {
    /// A gateway without clients.
    pub fn new(network: &Network, index: u16) -> Gateway {
        Gateway {
            network: network.clone(),
            map: InstrumentMap::of(network),
            announced: BTreeMap::new(),
            resend_requests: ResendRequests::default(),
            returned: BTreeMap::new(),
            index,
            router: network.routers_of(index)[0],
            led_cells: BTreeMap::new(),
            silence: Silence::default(),
            clients: ClientLinks::default(),
            streams: HashMap::new(),
            checked: vec![],
            resends: ResendQueue::default(),
            next_check_ns: 0,
            slowest_ns: 0,
            spare: vec![],
            forwarded: HashMap::new(),
            arrivals: 0,
            requests: 0,
            resent: 0,
            named: Named::default(),
            orders_requests: OrdersRequests::default(),
            stopped: BTreeSet::new(),
        }
    }

    /// The cell of an instrument, by the map or by a later announcement.
    fn cell_of(&self, instrument: InstrumentId) -> u16 {
        let announced = self.announced.get(&instrument);
        announced.map_or_else(|| self.map.cell_of(instrument), |at| at.cell)
    }

    /// Whether it is drained, as far as it knows.
    fn is_leaving(&self) -> bool {
        self.map.drained().contains(&Role::Gateway.node(self.index))
    }

    /// Asks a client to go to another gateway.
    fn send_away(&self, links: &mut Links, client: LinkId) {
        links.send(client, &GoAway { gateway: self.index });
    }

    /// A client says hello for a session.
    fn hello(&mut self, links: &mut Links, session: UserId, from: LinkId) -> Result<(), PeerError> {
        if self.is_leaving() && self.clients.link_of(session) != Some(from) {
            self.send_away(links, from);
            return Err(PeerError::Drained(self.index));
        }
        if !self.admits(session) {
            return Err(PeerError::NoFirm(session));
        }
        if session == DESK {
            return Err(PeerError::OwnSession);
        }
        self.clients.add(from, links.owner(from));
        self.claim(session, from).map_err(|reason| PeerError::SessionNotAdded { session, reason })
    }

    /// A session logs on: it is answered with the cells that it may ask.
    fn logon(&mut self, links: &mut Links, from: LinkId, logon: &Logon) -> Result<(), PeerError> {
        let Logon { session, heartbeat_ms, cancel_after_s } = *logon;
        self.check_owner(session, from)?;
        if let Some(fault) = presence::fault_of(logon) {
            return Err(PeerError::Logon { session, fault });
        }
        if let Some(fault) = self.named.add(logon, links.owner_of(from, session)) {
            return Err(PeerError::Logon { session, fault });
        }
        links.set_heartbeat(from, heartbeat_ms);
        let (gateway, cells) = (self.index, self.cells());
        links.send(from, &LoggedOn { session, heartbeat_ms, cancel_after_s, gateway, cells });
        Ok(())
    }

    /// The cells of the network.
    fn cells(&self) -> Vec<u16> {
        (0..self.map.cells()).filter(|cell| self.map.has_cell(*cell)).collect()
    }

    /// Names the sessions to all cells whose orders are cancelled when they are away.
    fn send_presence(&mut self, links: &mut Links) {
        for message in self.named.take_due(self.index, links.now_ns) {
            let routers = links.all_to(Role::Router);
            for cell in self.cells() {
                links.send_to_all(routers.clone(), &Presence { cell, ..message.clone() });
            }
        }
    }

    /// Sends on what sessions ask for their open orders, as far as it may.
    fn send_orders_requests(&mut self, links: &mut Links) {
        while let Some(request) = self.orders_requests.pop(links.now_ns) {
            let processors = self.network.processors_of(request.cell).into_iter();
            let mut up = processors.filter_map(|it| links.to(Role::Processor.node(it)));
            if let Some(processor) = up.next() {
                links.send(processor, &OrdersRequest { gateway: self.index, ..request });
            }
        }
    }

    fn router(&self, links: &Links) -> Option<LinkId> {
        links.to(Role::Router.node(self.router))
    }

    /// Uses the first router that knows all leaders, or else the first one that is connected, and
    /// those that let requests wait last; whether that is another one than before. Which requests
    /// reached that one is not known, so those without a reply are sent again by the new one.
    fn choose_router(&mut self, links: &Links) -> bool {
        let cells = self.map.cell_count();
        let routers = self.network.routers_of(self.index);
        let is_complete = |router: &&u16| {
            let led_cells = self.led_cells.get(router).into_iter().flatten();
            led_cells.filter(|cell| self.map.has_cell(**cell)).count() == cells
        };
        let is_connected = |router: &&u16| self.led_cells.contains_key(router);
        let answers = |router: &&u16| !self.silence.suspects(**router);
        let answering = routers.iter().filter(answers);
        let best = answering.clone().find(is_complete).or(answering.clone().find(is_connected));
        let any = routers.iter().find(is_complete).or(routers.iter().find(is_connected));
        let best = *best.or(any).unwrap_or(&routers[0]);
        let is_changed = std::mem::replace(&mut self.router, best) != best;
        if is_changed {
            self.resend(links, |_, _| true);
        }
        is_changed
    }

    /// A router announces a leader: what was on the way to the one before is lost.
    fn on_leader(&mut self, links: &mut Links, router: u16, cell: u16) {
        if let Some(led_cells) = self.led_cells.get_mut(&router).filter(|_| self.map.has_cell(cell))
        {
            led_cells.insert(cell);
        }
        self.named.on_leader();
        let is_resent = self.choose_router(links);
        if router == self.router && !is_resent {
            self.resend(links, |gateway, instrument| gateway.cell_of(instrument) == cell);
        }
        // With replicas the processor sends the events, and a leader's end loses none of them.
        if self.network.durability == Durability::None {
            self.notify_event_loss(links, cell);
        }
    }

    /// How a request on an instrument is sent.
    fn route(&self, instrument: InstrumentId) -> Route {
        let (cell, map_version) = (self.cell_of(instrument), self.map.version());
        Route { gateway: self.index, cell, map_version }
    }

    fn request(
        &mut self,
        links: &mut Links,
        from: LinkId,
        frame: &mut FrameMut<'_>,
    ) -> Result<(), PeerError> {
        // A request that no mediator can decode would never have a reply.
        let undecodable = PeerError::decode(Peer::Client, Kind::Request);
        let request: Request = frame.read().map_err(&undecodable)?;
        let (key, numbers) = ((request.instrument, request.session), Numbers::of(&request));
        if numbers.client_seq == 0 {
            return Err(undecodable(DecodeError::invalid("client_seq", "is zero")));
        }
        self.check_owner(key.1, from)?;
        self.requests += 1;
        let route = self.route(key.0);
        let mut kept = self.spare.pop().unwrap_or_default();
        kept.clear();
        kept.reserve(frame.bytes.len());
        let place = match self.admit(from, key, numbers, &kept) {
            Ok(place) => place,
            Err(reason) => {
                self.spare_again(kept);
                let mut refused = Refused::of(&request, reason);
                refused.gateway = route.gateway;
                if reason == RefusalReason::UnknownPredecessor
                    && let Some(stream) = self.streams.get(&key)
                {
                    refused.expected_previous = stream.last_seq();
                }
                refuse(links, from, &refused, frame.shared().is_stamped());
                return Ok(());
            }
        };
        let Some(stream) = self.streams.get_mut(&key) else { return Ok(()) };
        let mut edit = request::Edit::of(frame).map_err(&undecodable)?;
        edit.attempt(stream.attempt()).owner(links.owner_of(from, key.1));
        if let Some(master) = self.map.master() {
            edit.breach(master.breach(&request).map_or(0, Breach::code));
        }
        route.put(&mut edit);
        drop(edit);
        nm_wire::stamp(frame.bytes, 0, links.now_ns);
        let mut is_due = true;
        if let Place::At(place) = place {
            kept.extend_from_slice(frame.bytes);
            is_due = stream.keep(place, numbers, kept, links.now_ns);
            self.check(key, links.now_ns);
        } else {
            self.spare_again(kept);
        }
        if let Some(router) = self.router(links).filter(|_| is_due) {
            links.forward(router, frame.bytes);
        }
        Ok(())
    }

    /// Keeps a buffer for another request, if it is not large and there are few.
    fn spare_again(&mut self, bytes: Vec<u8>) {
        if self.spare.len() < SPARE_MAX && bytes.capacity() <= SPARE_BYTES_MAX {
            self.spare.push(bytes);
        }
    }

    /// Whether a session may connect, as far as firms decide that.
    fn admits(&self, session: UserId) -> bool {
        self.map.firms().is_none_or(|firms| firms.admits(session))
    }

    /// Whether a link has said hello for a session, and no later one has.
    fn check_owner(&self, session: UserId, from: LinkId) -> Result<(), PeerError> {
        match self.clients.link_of(session) {
            Some(owner) if owner == from => Ok(()),
            _ if !self.admits(session) => Err(PeerError::NoFirm(session)),
            _ => Err(PeerError::ForeignSession(session)),
        }
    }

    /// Where a request is to be kept, for which there is room from now on.
    fn admit(
        &mut self,
        from: LinkId,
        key: StreamKey,
        numbers: Numbers,
        bytes: &Vec<u8>,
    ) -> Result<Place, RefusalReason> {
        let (instrument, session) = key;
        let stream = match self.streams.entry(key) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(free) => {
                self.clients.add_instrument(session, instrument)?;
                free.insert(PendingRequests::new(from, numbers.previous_seq))
            }
        };
        let place = stream.place(numbers)?;
        if let Place::At(_) = place {
            self.clients.hold_request(from, pending::held_bytes(bytes))?;
        }
        Ok(place)
    }

    /// A session comes by a link: what is known of it from another link is dropped.
    fn claim(&mut self, session: UserId, link: LinkId) -> Result<(), RefusalReason> {
        match self.clients.link_of(session) {
            Some(known) if known == link => return Ok(()),
            Some(_) => {
                self.drop_session(session);
                self.forget_dropped();
            }
            None => {}
        }
        self.arrivals += 1;
        self.clients.add_session(session, link)
    }

    fn drop_session(&mut self, session: UserId) {
        self.named.remove(session);
        self.orders_requests.remove(session);
        for instrument in self.clients.remove_session(session) {
            if let Some(stream) = self.streams.remove(&(instrument, session)) {
                let (requests, bytes) = (stream.len(), stream.held_bytes());
                self.clients.release_requests(stream.client, requests, bytes);
            }
        }
    }

    /// Drops the sessions that no firm has any more: their links end with the next request.
    fn drop_unadmitted(&mut self) {
        if self.map.firms().is_none() {
            return;
        }
        let all = self.clients.sessions();
        let dropped: Vec<UserId> = all.filter(|session| !self.admits(*session)).collect();
        if !dropped.is_empty() {
            dropped.into_iter().for_each(|session| self.drop_session(session));
            self.forget_dropped();
        }
    }

    /// Streams that were dropped are not checked any more.
    fn forget_dropped(&mut self) {
        let streams = &self.streams;
        self.checked.retain(|key| streams.contains_key(key));
        self.resends.retain(|key| streams.contains_key(key));
    }

    /// Whether anything is checked for time-outs, or sent again with the next check.
    fn has_checks(&self) -> bool {
        !self.checked.is_empty() || !self.returned.is_empty() || !self.resend_requests.is_empty()
    }

    /// Checks a stream for time-outs from now on.
    fn check(&mut self, key: StreamKey, now_ns: u64) {
        let Some(stream) = self.streams.get_mut(&key).filter(|stream| !stream.is_checked) else {
            return;
        };
        stream.is_checked = true;
        if self.checked.is_empty() {
            self.next_check_ns = now_ns + CHECK_NS;
        }
        self.checked.push(key);
    }

    /// The place of a request to which a reply has come, if it is pending.
    fn place_of(&mut self, key: StreamKey, client_seq: u64, now_ns: u64) -> Option<usize> {
        let stream = self.streams.get(&key)?;
        let place = stream.find(client_seq).ok()?;
        self.silence.end();
        self.slowest_ns = self.slowest_ns.max(now_ns.saturating_sub(stream.sent_ns(place)));
        Some(place)
    }

    /// Forwards a reply to its client if its request is pending and none before it is.
    fn reply(&mut self, links: &mut Links, frame: &FrameMut<'_>, reply: &reply::View<'_>) {
        let key = (reply.instrument(), reply.session());
        let Some(place) = self.place_of(key, reply.client_seq(), links.now_ns) else { return };
        let Some(stream) = self.streams.get_mut(&key) else { return };
        let client = stream.client;
        if place > 0 {
            let held_bytes = stream.hold_reply(place, frame.bytes);
            return self.clients.hold_anyway(client, held_bytes);
        }
        links.forward(client, frame.bytes);
        let mut done = stream.pop_answered();
        while let Some(first) = done {
            self.clients.release_requests(client, 1, first.held_bytes());
            self.resends.answered(first.bytes.len());
            if self.spare.len() < SPARE_MAX && first.bytes.capacity() <= SPARE_BYTES_MAX {
                self.spare.push(first.bytes);
            }
            done = stream.pop_waiting();
            if let Some(next) = &done {
                links.forward(client, &next.reply);
            }
        }
    }

    /// A cell has refused a request.
    fn on_refused(&mut self, links: &mut Links, frame: Frame<'_>, refused: &refused::View<'_>) {
        let key = (refused.instrument(), refused.session());
        if let Some(place) = self.place_of(key, refused.client_seq(), links.now_ns) {
            let expected_previous = refused.expected_previous();
            self.refuse_pending(links, (key, place), Some(frame.bytes), expected_previous);
        }
    }

    /// A cell has no use for a request without its predecessor.
    fn nak(&mut self, links: &mut Links, nak: &Nak) {
        let key = (nak.instrument, nak.session);
        let Some(stream) = self.streams.get_mut(&key) else { return };
        self.silence.end();
        match stream.on_nak(nak) {
            AfterNak::Refuse(place) => {
                self.refuse_pending(links, (key, place), None, nak.executed_seq);
            }
            AfterNak::Resend(from) => queue(&mut self.resends, key, stream, from, links.now_ns),
            AfterNak::Nothing => {}
        }
    }

    /// Refuses a pending request, by the cell's answer if there is one, and those that depend on
    /// it. The next request is to name another predecessor.
    fn refuse_pending(
        &mut self,
        links: &mut Links,
        (key, place): (StreamKey, usize),
        mut answer: Option<&[u8]>,
        expected_previous: u64,
    ) {
        let Some(stream) = self.streams.get_mut(&key) else { return };
        let client = stream.client;
        for gone in stream.remove_refused(place) {
            self.clients.release_requests(client, 1, gone.held_bytes());
            if let Some(answer) = answer.take() {
                links.forward(client, answer);
            } else if let Ok(Some(frame)) = nm_wire::read(&gone.bytes)
                && let Ok(request) = request::View::of(frame)
            {
                let unknown = RefusalReason::UnknownPredecessor;
                let refused = Refused::of_frame(&request, unknown);
                let refused = Refused { expected_previous, ..refused };
                refuse(links, client, &refused, frame.is_stamped());
            }
        }
    }

    /// Pending requests on the instruments that are wanted are to be sent again, because some are
    /// lost.
    fn resend(&mut self, links: &Links, is_wanted: impl Fn(&Gateway, InstrumentId) -> bool) {
        self.resends.restart();
        self.queue_pending(links.now_ns, is_wanted);
    }

    /// Pending requests on the instruments that are wanted are to be sent again, in their turn.
    fn queue_pending(&mut self, now_ns: u64, is_wanted: impl Fn(&Gateway, InstrumentId) -> bool) {
        let is_queued = |key: &StreamKey| is_wanted(self, key.0);
        let keys: Vec<StreamKey> = self.checked.iter().copied().filter(is_queued).collect();
        for key in keys {
            if let Some(stream) = self.streams.get_mut(&key) {
                queue(&mut self.resends, key, stream, 0, now_ns);
            }
        }
    }

    /// Sends what waits for its turn, as far as it may.
    fn send_waiting(&mut self, links: &mut Links) {
        let Some(router) = self.router(links) else { return };
        while let Some(key) = self.resends.pop() {
            let route = self.route(key.0);
            let Some(stream) = self.streams.get_mut(&key) else { continue };
            while self.resends.may_send()
                && let Some(bytes) = stream.send_next(links.now_ns, route)
            {
                self.resends.sent(bytes.len());
                self.resent += 1;
                links.forward(router, bytes);
            }
            stream.is_queued = !stream.is_sent();
            if stream.is_queued {
                self.resends.push_front(key);
            }
        }
    }

    /// Asks all clients to send resend requests for a cell.
    fn notify_event_loss(&self, links: &mut Links, cell: u16) {
        let gateway = self.index;
        links.send_to_all(self.clients.ids(), &EventsLost { cell, gateway });
    }

    /// A client sends a resend request, which is sent on when it may be.
    fn resend_request(
        &mut self,
        from: LinkId,
        request: &ResendRequest,
        now_ns: u64,
    ) -> Result<(), PeerError> {
        self.check_owner(request.session, from)?;
        if self.resend_requests.adds_waiting(from, request) {
            let held = self.clients.hold(from, resend_requests::WAITING_BYTES);
            held.map_err(PeerError::TooManyResendRequests)?;
        }
        self.add_resend_request(from, request, now_ns);
        Ok(())
    }

    /// Adds a resend request whose bytes are counted.
    fn add_resend_request(&mut self, from: LinkId, request: &ResendRequest, now_ns: u64) {
        if !self.has_checks() {
            self.next_check_ns = now_ns + CHECK_NS;
        }
        self.resend_requests.push(from, request);
    }

    /// Adds resend requests that waited for the answer to another one.
    fn repeat_resend_requests(
        &mut self,
        requests: impl IntoIterator<Item = (LinkId, ResendRequest)>,
        now_ns: u64,
    ) {
        for (from, request) in requests {
            if self.clients.link_of(request.session) == Some(from) {
                if self.resend_requests.adds_waiting(from, &request) {
                    self.clients.hold_anyway(from, resend_requests::WAITING_BYTES);
                }
                self.add_resend_request(from, &request, now_ns);
            }
        }
    }

    /// Sends the resend requests that may be under way.
    fn send_resend_requests(&mut self, links: &mut Links) {
        while let Some((from, request)) = self.resend_requests.pop() {
            self.clients.release(from, resend_requests::WAITING_BYTES);
            let is_owned = self.clients.link_of(request.session) == Some(from);
            if is_owned && self.forward_resend_request(links, &request) {
                self.resend_requests.sent(from, &request, links.now_ns);
            }
        }
    }

    /// Forwards a resend request to the cell's processor, or to the other one. Without a link the
    /// session is asked to send it again when there is one.
    fn forward_resend_request(&self, links: &mut Links, request: &ResendRequest) -> bool {
        let cell = self.cell_of(request.instrument);
        let request = ResendRequest { gateway: self.index, cell, ..*request };
        let processors = self.network.processors_of(cell).into_iter();
        let mut up = processors.filter_map(|processor| links.to(Role::Processor.node(processor)));
        let Some(processor) = up.next() else { return false };
        links.send(processor, &request);
        true
    }

    /// Keeps a resend request that came back until the next check: its instrument is between two
    /// cells, or this gateway does not know the new one yet.
    fn keep_resend_request(&mut self, request: &ResendRequest, now_ns: u64) {
        let (instrument, session) = (request.instrument, request.session);
        if self.clients.link_of(session).is_some() {
            if !self.has_checks() {
                self.next_check_ns = now_ns + CHECK_NS;
            }
            self.resend_requests.came_back(request, now_ns);
            self.returned.insert((instrument, session), *request);
        }
    }

    /// Resends requests that have timed out, and stops checking those that have replies.
    fn check_timeouts(&mut self, links: &mut Links) {
        for (_, request) in std::mem::take(&mut self.returned) {
            self.forward_resend_request(links, &request);
        }
        let now_ns = links.now_ns;
        let again = self.resend_requests.expire(now_ns);
        self.repeat_resend_requests(again, now_ns);
        let least_ns = (self.slowest_ns * 3).min(pending::TIMEOUT_NS_MAX);
        self.slowest_ns -= self.slowest_ns / 8;
        let (streams, resends) = (&mut self.streams, &mut self.resends);
        let clients = &mut self.clients;
        clients.forget_stuck();
        resends.tick();
        self.checked.retain(|key| {
            let Some(stream) = streams.get_mut(key) else { return false };
            if stream.is_late(now_ns, least_ns) {
                queue(resends, *key, stream, 0, now_ns);
                stream.back_off();
            }
            if stream.is_stuck() {
                clients.add_stuck(stream.client, stream.len(), stream.held_bytes());
            }
            stream.is_checked = !stream.is_empty();
            stream.is_checked
        });
        self.next_check_ns = now_ns + CHECK_NS;
        self.report_unanswered(links);
        if let Some(silent_ns) = self.silence.check(!self.checked.is_empty(), now_ns, least_ns) {
            self.go_around_router(links, silent_ns);
        }
    }

    /// Names the cells whose requests wait although they were sent again and again. Others may be
    /// answered, so this is no silence of a router.
    fn report_unanswered(&self, links: &mut Links) {
        let is_unanswered =
            |key: &&StreamKey| self.streams.get(*key).is_some_and(|stream| stream.is_unanswered());
        let of_cells = self.checked.iter().filter(is_unanswered);
        let cells: BTreeSet<u16> =
            of_cells.map(|(instrument, _)| self.cell_of(*instrument)).collect();
        if cells.is_empty() {
            return;
        }
        let cells: Vec<String> = cells.iter().map(u16::to_string).collect();
        let message = format!(
            "requests for cell {} have had no answer for seconds, and are sent again: its mediator \
             or processor stands still, or nobody leads it; `exchange status` names those that do \
             not answer",
            cells.join(" and ")
        );
        links.warnings.push_limited(("unanswered", Owner::NOBODY), links.now_ns, message);
    }

    /// Nothing was answered for so long: uses another router, if one is connected.
    fn go_around_router(&mut self, links: &mut Links, silent_ns: u64) {
        let (router, now_ns) = (self.router, links.now_ns);
        let others: Vec<u16> =
            self.led_cells.keys().copied().filter(|other| *other != router).collect();
        self.silence.suspect(router, &others, now_ns);
        self.choose_router(links);
        let instead = match self.router == router {
            true => "there is no other router".to_string(),
            false => format!("router {} takes its place", self.router),
        };
        let silent_ms = silent_ns / 1_000_000;
        let message = format!(
            "router {router} has requests, and none was answered for {silent_ms} ms: {instead}"
        );
        links.warnings.push_limited(("silent", Owner::NOBODY), now_ns, message);
    }

    /// Takes over the newer map of a router: pending requests are sent again if their cell is
    /// another one.
    fn update_map(&mut self, links: &mut Links, from: LinkId, map: InstrumentMap) {
        let was_leaving = self.is_leaving();
        let pending = self.checked.iter().map(|key| (key.0, self.cell_of(key.0)));
        let cells_before: BTreeMap<InstrumentId, u16> = pending.collect();
        self.map = map;
        if self.is_leaving() && !was_leaving {
            self.clients.ids().for_each(|client| self.send_away(links, client));
        }
        self.drop_unadmitted();
        if links.update_nodes(&self.map) {
            self.network = links.network().clone();
            self.choose_router(links);
        }
        let map = &self.map;
        self.announced.retain(|instrument, at| at.epoch > map.epoch_of(*instrument));
        self.queue_pending(links.now_ns, |gateway, instrument| {
            cells_before.get(&instrument) != Some(&gateway.cell_of(instrument))
        });
        self.send_report(links, Some(from));
    }

    /// A cell has an instrument now: pending requests are sent there.
    fn on_move_ended(&mut self, links: &Links, ended: &MoveEnded) {
        let MoveEnded { id: MoveId { instrument, epoch }, cell, refusal } = *ended;
        let known = self.announced.get(&instrument).map_or(0, |at| at.epoch);
        let is_news = epoch > known && epoch > self.map.epoch_of(instrument);
        if refusal.is_some() || !is_news || !self.map.has_cell(cell) {
            return;
        }
        self.announced.insert(instrument, Placement { cell, epoch });
        self.queue_pending(links.now_ns, |_, other| other == instrument);
    }

    /// Reports to the routers, for control, which processors are up, and the newest map: not to
    /// the one that it has come from, for which nothing is new.
    fn send_report(&self, links: &mut Links, map_from: Option<LinkId>) {
        if !self.network.has_control() {
            return;
        }
        let mut routers = links.all_to(Role::Router);
        routers.retain(|router| Some(*router) != map_from);
        if routers.is_empty() {
            return;
        }
        let mut report = MembershipReport::new(self.map.clone());
        let is_processor = |node: &(NodeId, u64)| node.0.class == Role::Processor;
        report.nodes = links.connected_nodes().filter(is_processor).collect();
        links.send_to_all(routers, &report.message());
    }

    /// Forwards events to their session. If it is not here, they go back to the processor, which
    /// sends them to all other gateways.
    fn forward_private(
        &mut self,
        links: &mut Links,
        from: LinkId,
        frame: &mut FrameMut<'_>,
    ) -> Result<(), DecodeError> {
        let events = private::View::of(frame.shared())?;
        let is_astray = events.is_astray();
        if let Some(client) = self.clients.link_of(events.session()) {
            if is_astray {
                private::Edit::of(frame)?.is_astray(false);
            }
            links.forward(client, frame.bytes);
        } else if !is_astray {
            private::Edit::of(frame)?.is_astray(true);
            links.forward(from, frame.bytes);
        }
        Ok(())
    }

    /// Forwards the answer to a resend request. If the session is not here any more, it asks again
    /// where it is.
    fn forward_resent(
        &mut self,
        links: &mut Links,
        frame: &FrameMut<'_>,
    ) -> Result<(), DecodeError> {
        let resent = resent::View::of(frame.shared())?;
        let again = self.resend_requests.answered((resent.instrument(), resent.session()));
        self.repeat_resend_requests(again, links.now_ns);
        if let Some(client) = self.clients.link_of(resent.session()) {
            links.forward(client, frame.bytes);
        }
        Ok(())
    }

    fn forward_to_all(&self, links: &mut Links, frame: &FrameMut<'_>) {
        self.clients.ids().for_each(|client| links.forward(client, frame.bytes));
    }

    /// Tells the sessions of an owner that they were stopped, or may trade again. Each cell says
    /// it, and the first one counts.
    fn tell_standing(&mut self, links: &mut Links, standing: Standing) {
        let Standing { owner, is_stopped, .. } = standing;
        let is_news = match is_stopped {
            true => self.stopped.insert(owner),
            false => self.stopped.remove(&owner),
        };
        for client in self.clients.ids().filter(|_| is_news) {
            let mut sessions = self.clients.sessions_of(client);
            sessions.retain(|session| links.owner_of(client, *session) == owner);
            sessions.sort_unstable();
            for session in sessions {
                links.send(client, &Standing { session, owner: Owner::NOBODY, ..standing });
            }
        }
    }

    /// Whether the processor sent these events before its restart: a restarted one applies again
    /// what it had applied since the last snapshot. Without replicas nothing is applied twice.
    /// Events of a session are none if it may have come after they were forwarded: at the restarted
    /// processor it may have asked for them too early.
    fn is_duplicate(&mut self, instrument: InstrumentId, output_seq: u64, is_public: bool) -> bool {
        if self.network.durability == Durability::None {
            return false;
        }
        let known = self.forwarded.entry(instrument).or_default();
        if known.arrivals != self.arrivals {
            (known.missed_to, known.arrivals) = (known.last, self.arrivals);
        }
        known.last = output_seq.max(known.last);
        output_seq <= known.duplicates_to && (is_public || output_seq > known.missed_to)
    }

    /// Handles what comes from a processor; whether it may come from there.
    fn on_frame_of_processor(
        &mut self,
        links: &mut Links,
        from: LinkId,
        frame: &mut FrameMut<'_>,
    ) -> Result<bool, DecodeError> {
        match frame.kind() {
            Kind::Reply => self.reply(links, frame, &reply::View::of(frame.shared())?),
            Kind::Refused => {
                let refused = refused::View::of(frame.shared())?;
                self.on_refused(links, frame.shared(), &refused);
            }
            Kind::Private => {
                let events = private::View::of(frame.shared())?;
                if !self.is_duplicate(events.instrument(), events.output_seq(), false) {
                    self.forward_private(links, from, frame)?;
                }
            }
            Kind::Resent => self.forward_resent(links, frame)?,
            Kind::OpenOrders => {
                let session = open_orders::View::of(frame.shared())?.session();
                self.orders_requests.answered(session);
                if let Some(client) = self.clients.link_of(session) {
                    links.forward(client, frame.bytes);
                }
            }
            // A client counts the missing broadcasts of each gateway, so they carry the gateway.
            Kind::Public => {
                let events = public::View::of(frame.shared())?;
                if !self.is_duplicate(events.instrument(), events.output_seq(), true) {
                    public::Edit::of(frame)?.gateway(self.index);
                    self.forward_to_all(links, frame);
                }
            }
            Kind::BestPrices => {
                let best = best_prices::View::of(frame.shared())?;
                if !self.is_duplicate(best.instrument(), best.output_seq(), true) {
                    best_prices::Edit::of(frame)?.gateway(self.index);
                    self.forward_to_all(links, frame);
                }
            }
            Kind::DayEnded => self.forward_to_all(links, frame),
            Kind::Standing => self.tell_standing(links, frame.read()?),
            Kind::Nak => self.nak(links, &frame.read()?),
            Kind::Misdirected => {
                let Misdirected { instrument, session, acknowledged, gateway, cell } =
                    frame.read()?;
                let request = ResendRequest { instrument, session, acknowledged, gateway, cell };
                self.keep_resend_request(&request, links.now_ns);
            }
            Kind::EventsLost => {
                let EventsLost { cell, .. } = frame.read()?;
                self.notify_event_loss(links, cell);
            }
            Kind::RepliesLost => {
                let RepliesLost { cell, .. } = frame.read()?;
                self.resend(links, |gateway, instrument| gateway.cell_of(instrument) == cell);
                self.notify_event_loss(links, cell);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl Behaviour for Gateway {
    fn on_connected(&mut self, links: &mut Links, peer: Peer) {
        match peer {
            Peer::Node(NodeId { class: Role::Router, index }) => {
                self.led_cells.insert(index, BTreeSet::new());
                let is_resent = self.choose_router(links);
                if index == self.router && !is_resent {
                    self.resend(links, |_, _| true);
                }
            }
            Peer::Node(NodeId { class: Role::Processor, index }) => {
                let mut forwarded = std::mem::take(&mut self.forwarded);
                for (instrument, known) in &mut forwarded {
                    if self.network.processor_of(self.cell_of(*instrument)) == index {
                        known.duplicates_to = known.last;
                    }
                }
                self.forwarded = forwarded;
                // What was lost comes again when the processor reports it: until it has read the
                // welcome, it takes the link for broken.
            }
            _ => return,
        }
        self.send_report(links, None);
    }

    fn on_disconnected(&mut self, links: &mut Links, peer: Peer, id: LinkId) {
        if peer == Peer::Client {
            for session in self.clients.sessions_of(id) {
                self.drop_session(session);
            }
            let waiting = self.resend_requests.remove_link(id);
            self.clients.release(id, waiting * resend_requests::WAITING_BYTES);
            self.clients.remove(id);
            self.forget_dropped();
            return;
        }
        if let Peer::Node(NodeId { class: Role::Router, index }) = peer {
            self.led_cells.remove(&index);
            self.silence.contacted_by(index);
            self.choose_router(links);
        }
        if let Peer::Node(NodeId { class: Role::Processor, .. }) = peer {
            // Answers may be lost with the link.
            let again = self.resend_requests.expire(u64::MAX);
            self.repeat_resend_requests(again, links.now_ns);
        }
        self.send_report(links, None);
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
            (Peer::Client, Kind::Request) => return self.request(links, from.0, frame),
            (Peer::Client, Kind::Hello) => {
                let Hello { who, .. } = frame.read().map_err(undecodable)?;
                if let Who::Client { session } = who {
                    self.hello(links, session, from.0)?;
                }
            }
            (Peer::Client, Kind::Heartbeat) => links.contacted(from.0),
            (Peer::Client, Kind::Logon) => {
                self.logon(links, from.0, &frame.read().map_err(undecodable)?)?;
            }
            (Peer::Client, Kind::OrdersRequest) => {
                let request: OrdersRequest = frame.read().map_err(undecodable)?;
                self.check_owner(request.session, from.0)?;
                self.orders_requests.push(&request);
            }
            (Peer::Client, Kind::ResendRequest) => {
                let request = frame.read().map_err(undecodable)?;
                self.resend_request(from.0, &request, links.now_ns)?;
            }
            (Peer::Node(NodeId { class: Role::Router, index }), Kind::Leader) => {
                let Leader { cell, .. } = frame.read().map_err(undecodable)?;
                self.silence.contacted_by(index);
                self.on_leader(links, index, cell);
            }
            (Peer::Node(NodeId { class: Role::Router, index }), Kind::RoutingTable) => {
                self.silence.contacted_by(index);
                let map = RoutingTable::decode_newer_map(frame.shared().message, &self.map);
                if let Some(map) = map.map_err(undecodable)? {
                    self.update_map(links, from.0, map);
                }
            }
            (Peer::Node(NodeId { class: Role::Router, .. }), Kind::MoveEnded) => {
                self.on_move_ended(links, &frame.read().map_err(undecodable)?);
            }
            (Peer::Node(NodeId { class: Role::Processor, .. }), _) => {
                if !self.on_frame_of_processor(links, from.0, frame).map_err(undecodable)? {
                    return Err(PeerError::UnexpectedFrame { peer, kind, role: Role::Gateway });
                }
            }
            (Peer::Observer | Peer::Operator, Kind::AdminRequest) => {
                let sessions = self.clients.sessions_count() as u32;
                let is_leaving = self.is_leaving();
                let work = Work { sessions, is_leaving, ..links.work_until_now() };
                answer_links(links, from, frame.shared(), (Role::Gateway, work))?;
            }
            _ => return Err(PeerError::UnexpectedFrame { peer, kind, role: Role::Gateway }),
        }
        Ok(())
    }

    fn on_iteration(&mut self, links: &mut Links) -> Result<(), nm_model::agent::Failure> {
        if self.has_checks() && links.now_ns >= self.next_check_ns {
            self.check_timeouts(links);
        }
        self.send_waiting(links);
        self.send_resend_requests(links);
        self.send_orders_requests(links);
        self.send_presence(links);
        Ok(())
    }

    fn deadline_ns(&self, _now_ns: u64) -> Option<u64> {
        let check = self.has_checks().then_some(self.next_check_ns);
        let named = self.named.deadline_ns();
        [check, named, self.orders_requests.deadline_ns()].into_iter().flatten().min()
    }

    fn is_full(&self, owner: Owner) -> bool {
        let (requests, bytes) = self.clients.requests_of(owner);
        requests >= OWNER_REQUESTS_MAX || bytes >= OWNER_REQUESTS_BYTES_MAX
    }

    fn counts(&self) -> (u64, u64) {
        (self.requests, self.resent)
    }
}

/// Requests of a stream from a place on are to be sent again, in its turn.
fn queue(
    resends: &mut ResendQueue<StreamKey>,
    key: StreamKey,
    stream: &mut PendingRequests,
    from: usize,
    now_ns: u64,
) {
    stream.rewind(from, now_ns);
    if !stream.is_queued && !stream.is_sent() {
        stream.is_queued = true;
        resends.push(key);
    }
}

/// Answers a request that is not executed.
fn refuse(links: &mut Links, client: LinkId, refused: &Refused, is_stamped: bool) {
    let mut bytes = vec![];
    nm_wire::write_shaped(refused, Shape { is_stamped, size_bytes: 0 }, &mut bytes);
    links.forward(client, &bytes);
}

#[cfg(test)]
mod tests {
    use nm_book::order::{Command, Event};
    use nm_wire::{Listed, Private, Series, Value, Welcome};

    use super::*;
    use crate::client::say_hello;
    use crate::limits::UNKNOWN_PREDECESSOR_NAKS_MAX;
    use crate::link::ReceiveBuffer;
    use crate::testing::{self, TestRing};

    impl Gateway {
        /// What is not as it should be when nothing is under way, and this is control's map.
        pub fn unsettled(&self, map: &InstrumentMap) -> Option<String> {
            if self.map != *map {
                return Some(format!("version {} of the map", self.map.version()));
            }
            let is_idle =
                self.announced.is_empty() && self.streams.values().all(|it| it.is_empty());
            (!is_idle)
                .then(|| format!("announced {:?}, or requests without a reply", self.announced))
        }
    }

    /// Time from a request's departure to the router until a nak to it comes, ns.
    const ROUND_TRIP_NS: u64 = 100_000;

    const SESSION: UserId = 1;

    /// A gateway in simulated time, and its links to a client and to the router.
    struct Simulated {
        gateway: Gateway,
        links: Links,
        client: LinkId,
        router: LinkId,
    }

    impl Simulated {
        fn new() -> Simulated {
            Simulated::of("1-1-1-1", Durability::None)
        }

        fn of(nodes: &str, durability: Durability) -> Simulated {
            let network = TestRing::new(nodes, durability).network.clone();
            let mut links = Links::simulated(&network, Role::Gateway.node(0), 1);
            links.now_ns = 1 << 40;
            let client = links.accept_link();
            let router = links.add_connected(Role::Router.node(0)).unwrap();
            let gateway = Gateway::new(&network, 0);
            let mut simulated = Simulated { gateway, links, client, router };
            let (mut hello, mut welcome) = (vec![], vec![]);
            say_hello(Who::Client { session: SESSION }, None, &mut hello);
            let digest = nm_wire::digest();
            let node = Role::Router.node(0);
            let answer = Welcome { digest, network: 0, start: 1, session: 0, node, proof: None };
            nm_wire::write(&answer, &mut welcome);
            simulated.receive((client, Peer::Client), hello);
            simulated.receive((router, Peer::Node(Role::Router.node(0))), welcome);
            simulated.links.take_output();
            simulated
        }

        /// Its client is another one, whose link has this owner.
        fn of_owner(owner: Owner) -> Simulated {
            let mut simulated = Simulated::new();
            simulated.client = simulated.links.add_accepted(owner).unwrap().unwrap();
            let mut hello = vec![];
            say_hello(Who::Client { session: SESSION }, None, &mut hello);
            simulated.receive((simulated.client, Peer::Client), hello);
            simulated
        }

        /// One iteration, in which it receives frames.
        fn receive(&mut self, from: (LinkId, Peer), bytes: Vec<u8>) {
            let mut input = ReceiveBuffer::of(bytes);
            while let Some(mut frame) = input.next_frame().unwrap() {
                if frame.kind() == Kind::Welcome {
                    self.links.handshake(from.0, &frame).unwrap();
                    self.gateway.on_connected(&mut self.links, from.1);
                } else {
                    self.gateway.on_frame(&mut self.links, from, &mut frame).unwrap();
                }
            }
            self.gateway.on_iteration(&mut self.links).unwrap();
        }
    }

    /// The messages of a kind that were sent over a link.
    fn messages_of<M>(output: &[(LinkId, Vec<u8>)], link: LinkId) -> Vec<M>
    where
        M: Listed + for<'f> Value<'f>,
    {
        let of_link = output.iter().filter(|(id, _)| *id == link);
        let mut input = ReceiveBuffer::of(of_link.flat_map(|(_, bytes)| bytes.clone()).collect());
        let mut messages = vec![];
        while let Some(frame) = input.next_frame().unwrap() {
            messages.extend(frame.read::<M>());
        }
        messages
    }

    /// Session and number of the events that were sent over a link, and whether they are astray.
    fn events_of(output: &[(LinkId, Vec<u8>)], link: LinkId) -> Vec<(UserId, u64, bool)> {
        let of_link = output.iter().filter(|(id, _)| *id == link);
        let mut input = ReceiveBuffer::of(of_link.flat_map(|(_, bytes)| bytes.clone()).collect());
        let mut all = vec![];
        while let Some(frame) = input.next_frame().unwrap() {
            if let Ok(events) = private::View::of(frame.shared()) {
                all.push((events.session(), events.output_seq(), events.is_astray()));
            }
        }
        all
    }

    fn events(session: UserId, output_seq: u64) -> Vec<u8> {
        let events = nm_wire::encode(&Event::Halted);
        let mut bytes = vec![];
        let message = Private {
            instrument: 0,
            session,
            output_seq,
            previous_event: 0,
            gateway: 0,
            cell: 0,
            is_astray: false,
            events: Series::of(&events),
        };
        nm_wire::write(&message, &mut bytes);
        bytes
    }

    /// Events that a gateway gave back, because their session was elsewhere, are not among those
    /// that the session has: it may have come and asked before the processor had caught up.
    #[test]
    fn a_session_gets_what_its_gateway_gave_back_before_it_came() {
        const LATE: UserId = 2;
        let mut simulated = Simulated::of("1-1-2-1", Durability::MemoryQuorum);
        let processor = Role::Processor.node(0);
        let link = simulated.links.link_to(processor);
        let from = (link, Peer::Node(processor));
        simulated.receive(from, [events(SESSION, 4), events(LATE, 5)].concat());
        let output = simulated.links.take_output();
        assert_eq!(events_of(&output, simulated.client), [(SESSION, 4, false)]);
        assert_eq!(events_of(&output, link), [(LATE, 5, true)]);
        // The processor has restarted, and repeats what the gateway has had.
        simulated.gateway.on_connected(&mut simulated.links, from.1);
        simulated.receive(from, events(SESSION, 4));
        let output = simulated.links.take_output();
        assert_eq!(events_of(&output, simulated.client), []);
        let mut hello = vec![];
        say_hello(Who::Client { session: LATE }, None, &mut hello);
        simulated.receive((simulated.client, Peer::Client), hello);
        simulated.receive(from, events(LATE, 5));
        let output = simulated.links.take_output();
        assert_eq!(events_of(&output, simulated.client), [(LATE, 5, false)]);
    }

    fn request(client_seq: u64, previous_seq: u64) -> Vec<u8> {
        let mut bytes = vec![];
        let request = testing::request(SESSION, 0, Command::Tick);
        nm_wire::write(&Request { client_seq, previous_seq, ..request }, &mut bytes);
        bytes
    }

    /// Each cell says it.
    #[test]
    fn the_sessions_of_a_stopped_owner_are_told_once() {
        let owner = Owner::of_user(7);
        let mut simulated = Simulated::of_owner(owner);
        let mut told = |owner, cell, is_stopped| {
            let (mut bytes, session) = (vec![], 0);
            nm_wire::write(&Standing { session, owner, cell, is_stopped }, &mut bytes);
            simulated.receive((simulated.router, Peer::Node(Role::Processor.node(0))), bytes);
            let output = simulated.links.take_output();
            let told: Vec<Standing> = messages_of(&output, simulated.client);
            assert!(told.iter().all(|it| it.owner == Owner::NOBODY), "{told:?}");
            told.iter().map(|it| (it.session, it.is_stopped)).collect::<Vec<_>>()
        };
        assert_eq!(told(Owner::of_user(8), 0, true), []);
        assert_eq!(told(owner, 0, false), []);
        assert_eq!(told(owner, 0, true), [(SESSION, true)]);
        assert_eq!(told(owner, 1, true), []);
        assert_eq!(told(owner, 1, false), [(SESSION, false)]);
        assert_eq!(told(owner, 0, false), []);
    }

    /// The link's owner is full at the limit, and no longer once a request is answered.
    #[test]
    fn an_owner_with_many_requests_under_way_is_full() {
        let owner = Owner::of_user(7);
        let mut simulated = Simulated::of_owner(owner);
        let is_full = |it: &Simulated| it.gateway.is_full(owner);
        for client_seq in 1..=OWNER_REQUESTS_MAX as u64 {
            assert!(!is_full(&simulated), "{client_seq}");
            let bytes = request(client_seq, client_seq - 1);
            simulated.receive((simulated.client, Peer::Client), bytes);
        }
        assert!(is_full(&simulated) && !simulated.gateway.is_full(Owner::of_user(8)));
        let refused = testing::request(SESSION, 0, Command::Tick);
        let refused = Request { client_seq: OWNER_REQUESTS_MAX as u64, ..refused };
        let mut answer = vec![];
        nm_wire::write(&Refused::of(&refused, RefusalReason::TooManyOwnerInstruments), &mut answer);
        simulated.receive((simulated.router, Peer::Node(Role::Processor.node(0))), answer);
        assert!(!is_full(&simulated));
        // One long request is as much as many short ones.
        let mut long = vec![];
        let shape = Shape { is_stamped: false, size_bytes: OWNER_REQUESTS_BYTES_MAX };
        let numbers = Request { client_seq: 1, previous_seq: 0, ..refused };
        nm_wire::write_shaped(&Request { instrument: 1, ..numbers }, shape, &mut long);
        simulated.receive((simulated.client, Peer::Client), long);
        assert!(is_full(&simulated));
    }

    /// A cell without a leader answers nothing; the owner trades in the others.
    #[test]
    fn requests_that_wait_in_vain_do_not_make_their_owner_full() {
        let owner = Owner::of_user(7);
        let mut simulated = Simulated::of_owner(owner);
        for client_seq in 1..=OWNER_REQUESTS_MAX as u64 {
            let bytes = request(client_seq, client_seq - 1);
            simulated.receive((simulated.client, Peer::Client), bytes);
        }
        assert!(simulated.gateway.is_full(owner));
        let begin_ns = simulated.links.now_ns;
        while simulated.gateway.is_full(owner) {
            let later_ns = simulated.links.now_ns + CHECK_NS;
            simulated.links.set_simulated_time(later_ns);
            simulated.gateway.on_iteration(&mut simulated.links).unwrap();
            assert!(simulated.links.now_ns - begin_ns < 10 * CHECK_NS, "it waits for ever");
        }
    }

    /// Before, a nak within 2 ms of a resend was ignored. Where a round trip takes less, each
    /// attempt then waited for a time-out of up to 3.2 s, and no nak was counted but the first.
    #[test]
    fn a_predecessor_that_never_was_is_refused_before_any_time_out_where_naks_come_soon() {
        let mut simulated = Simulated::new();
        let begin_ns = simulated.links.now_ns;
        let requests = [request(9, 8), request(10, 9)].concat();
        simulated.receive((simulated.client, Peer::Client), requests);
        let mut rounds = 0;
        let refused = loop {
            let output = simulated.links.take_output();
            let copies: Vec<Request> = messages_of(&output, simulated.router);
            let refused: Vec<Refused> = messages_of(&output, simulated.client);
            if !refused.is_empty() {
                break refused;
            }
            assert_eq!(copies.len(), 2, "round {rounds}");
            rounds += 1;
            simulated.links.now_ns += ROUND_TRIP_NS;
            let mut naks = vec![];
            for copy in copies {
                let Request { instrument, session, client_seq, gateway, cell, attempt, .. } = copy;
                let executed_seq = 2;
                let nak =
                    Nak { instrument, session, client_seq, executed_seq, gateway, cell, attempt };
                nm_wire::write(&nak, &mut naks);
            }
            simulated.receive((simulated.router, Peer::Node(Role::Processor.node(0))), naks);
        };
        let numbers: Vec<u64> = refused.iter().map(|reply| reply.client_seq).collect();
        assert_eq!(numbers, [9, 10]);
        let is_unknown = |it: &Refused| it.reason == RefusalReason::UnknownPredecessor;
        assert!(refused.iter().all(is_unknown));
        assert_eq!(rounds, 1 + UNKNOWN_PREDECESSOR_NAKS_MAX);
        assert_eq!(simulated.gateway.counts(), (2, 2 * u64::from(UNKNOWN_PREDECESSOR_NAKS_MAX)));
        assert!(simulated.links.now_ns - begin_ns < CHECK_NS, "no time-out was looked for");
    }

    /// What is refused at once names the last request that the gateway knows, and what the cell
    /// does not know names the one that the cell has executed last.
    #[test]
    fn a_refused_request_is_sent_the_predecessor_of_the_next_one() {
        let mut simulated = Simulated::new();
        let expected = |simulated: &mut Simulated| -> Vec<(u64, u64)> {
            let output = simulated.links.take_output();
            let refused: Vec<Refused> = messages_of(&output, simulated.client);
            refused.iter().map(|it| (it.client_seq, it.expected_previous)).collect()
        };
        let requests = [request(9, 8), request(20, 15)].concat();
        simulated.receive((simulated.client, Peer::Client), requests);
        assert_eq!(expected(&mut simulated), [(20, 9)]);
        let processor = Peer::Node(Role::Processor.node(0));
        let mut refused = vec![];
        while refused.is_empty() {
            let (client_seq, executed_seq, gateway, cell) = (9, 3, 0, 0);
            let stream = simulated.gateway.streams.get_mut(&(0, SESSION)).unwrap();
            let attempt = stream.attempt();
            let nak = Nak {
                instrument: 0,
                session: SESSION,
                client_seq,
                executed_seq,
                gateway,
                cell,
                attempt,
            };
            let mut bytes = vec![];
            nm_wire::write(&nak, &mut bytes);
            simulated.receive((simulated.router, processor), bytes);
            refused = expected(&mut simulated);
        }
        assert_eq!(refused, [(9, 3)]);
    }

    /// A client cannot send what stands in logs alone.
    #[test]
    fn a_client_that_sends_a_request_with_number_zero_is_sent_away() {
        let mut simulated = Simulated::new();
        let cancels = testing::request(SESSION, 0, Command::MassCancel { user: SESSION });
        let mut bytes = vec![];
        nm_wire::write(&Request { client_seq: 0, previous_seq: 0, ..cancels }, &mut bytes);
        let mut frame = FrameMut::of(&mut bytes).unwrap();
        let from = (simulated.client, Peer::Client);
        let refused = simulated.gateway.on_frame(&mut simulated.links, from, &mut frame);
        assert!(refused.unwrap_err().to_string().contains("is zero"));
    }

    /// Each session is named to each cell over each router; one that has left is not.
    #[test]
    fn a_session_that_logs_on_is_answered_and_named_to_all_cells() {
        let mut simulated = Simulated::of("1-2-2-2", Durability::MemoryQuorum);
        let other = simulated.links.link_to(Role::Router.node(1));
        let logon = Logon { session: SESSION, heartbeat_ms: 500, cancel_after_s: 3 };
        let mut bytes = vec![];
        nm_wire::write(&logon, &mut bytes);
        simulated.receive((simulated.client, Peer::Client), bytes);
        let output = simulated.links.take_output();
        let answers: Vec<LoggedOn> = messages_of(&output, simulated.client);
        assert_eq!((answers[0].cells.clone(), answers[0].cancel_after_s), (vec![0, 1], 3));
        for router in [simulated.router, other] {
            let named: Vec<Presence> = messages_of(&output, router);
            let cells: Vec<u16> = named.iter().map(|it| it.cell).collect();
            assert_eq!(cells, [0, 1]);
            assert!(named.iter().all(|it| it.sessions[0].session == SESSION));
        }
        simulated.gateway.on_disconnected(&mut simulated.links, Peer::Client, simulated.client);
        simulated.links.now_ns += 1 << 32;
        simulated.gateway.on_iteration(&mut simulated.links).unwrap();
        let named: Vec<Presence> = messages_of(&simulated.links.take_output(), other);
        assert!(named.is_empty());
    }
}
