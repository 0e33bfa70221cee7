//! Gateway: keeps the clients' connections, and their requests until they are answered.
//!
//! Replies leave in the order of a session's requests on an instrument: one that comes before that
//! of an earlier request, whose reply was lost on a link, waits for it.
//!
//! What has no reply is sent again, in order for each session and instrument: when the router's
//! link was made anew, when a cell has a new leader or a new processor, when a mediator misses a
//! predecessor, when the map gives the instrument to another cell, and after a while without reply,
//! ever longer, and longer than replies take lately.
//!
//! What sessions are told besides is numbered, and theirs to keep count of: where some of it may be
//! lost on a link, the gateway bids them [recall](FrameKind::ResendRequest) it.

use std::collections::{HashMap, VecDeque};

use nm_book::order::{InstrumentId, UserId};

use crate::cell::Request;
use crate::control::{Map, MembershipReport, RoutingTable};
use crate::link::{LinkError, ReceivedFrame};
use crate::network::{Durability, Network, Role};
use crate::wire::{self, FrameKind, Header};

use super::Behaviour;
use super::links::{LinkId, Links, Peer};

/// Without a reply for so long, a session's requests on an instrument are sent again, ns.
const PATIENCE_NS: u64 = 200_000_000;

/// Longest patience, ns.
const PATIENCE_NS_MAX: u64 = 3_200_000_000;

/// What was sent again is not sent again for so long when a mediator misses something, ns.
const AGAIN_NS: u64 = 2_000_000;

/// How often requests without reply are looked through, ns.
const SWEEP_NS: u64 = 50_000_000;

/// Bytes of requests without reply beyond which a gateway takes no more.
const PENDING_BYTES_MAX: usize = 1 << 30;

/// Buffers that are kept to be used again.
const SPARE_MAX: usize = 16 << 10;

/// Requests of one session on one instrument that have no reply, in order.
#[derive(Debug)]
struct Flow {
    cell: u16,
    pending: VecDeque<Pending>,
    /// Number of the last request whose reply was passed on.
    answered: u64,
    sent_again_ns: u64,
    patience_ns: u64,
    is_watched: bool,
}

#[derive(Debug)]
struct Pending {
    client_seq: u64,
    previous_seq: u64,
    sent_ns: u64,
    bytes: Vec<u8>,
    /// Its reply, which waits for an earlier one; empty if there is none.
    reply: Vec<u8>,
}

impl Flow {
    /// Sends all of it again; how much that was. Those whose reply waits are among them: they are
    /// the predecessors of others. A mediator that has lost its books must know of the first that
    /// it need not wait for the one before.
    fn again(&mut self, links: &mut Links, router: LinkId) -> u64 {
        self.sent_again_ns = links.now_ns;
        if let Some(first) = self.pending.front_mut().filter(|it| it.previous_seq == self.answered)
        {
            wire::mark_previous_answered(&mut first.bytes);
        }
        for pending in &mut self.pending {
            pending.sent_ns = links.now_ns;
            links.forward(router, &pending.bytes);
        }
        self.pending.len() as u64
    }

    /// The same, unless that was done just now.
    fn again_soon(&mut self, links: &mut Links, router: Option<LinkId>) -> u64 {
        let is_due = links.now_ns.saturating_sub(self.sent_again_ns) > AGAIN_NS;
        router.filter(|_| is_due).map_or(0, |router| self.again(links, router))
    }
}

/// A gateway.
#[derive(Debug)]
pub struct Gateway {
    network: Network,
    /// Which cell an instrument belongs to.
    map: Map,
    index: usize,
    sessions: HashMap<UserId, LinkId>,
    clients: Vec<LinkId>,
    flows: HashMap<(InstrumentId, UserId), Flow>,
    /// Flows that may have something pending.
    watched: Vec<(InstrumentId, UserId)>,
    sweep_ns: u64,
    /// Longest wait for a reply lately, ns: a network that is slow is not asked twice.
    slowest_ns: u64,
    pending_bytes: usize,
    spare: Vec<Vec<u8>>,
    /// By instrument: the highest number of what was passed on, and that below which it is
    /// repeated.
    told: HashMap<InstrumentId, (u64, u64)>,
    requests: u64,
    resent: u64,
}

impl Gateway {
    /// A gateway without clients.
    pub fn new(network: &Network, index: usize) -> Gateway {
        Gateway {
            network: network.clone(),
            map: Map::new(network.mediator.len()),
            index,
            sessions: HashMap::new(),
            clients: vec![],
            flows: HashMap::new(),
            watched: vec![],
            sweep_ns: 0,
            slowest_ns: 0,
            pending_bytes: 0,
            spare: vec![],
            told: HashMap::new(),
            requests: 0,
            resent: 0,
        }
    }

    fn router(&self, links: &Links) -> Option<LinkId> {
        links.to(Role::Router, self.index % self.network.router.len())
    }

    fn request(
        &mut self,
        links: &mut Links,
        from: LinkId,
        frame: &mut ReceivedFrame<'_>,
    ) -> Result<(), LinkError> {
        // What no mediator could read would never have a reply.
        if Request::from_parts(&frame.header, frame.body()).is_err() {
            return Err(LinkError("a client sent a request that means nothing".to_string()));
        }
        if self.pending_bytes > PENDING_BYTES_MAX {
            return Err(LinkError("too many requests have no reply yet".to_string()));
        }
        self.requests += 1;
        let (instrument, session) = (frame.header.instrument, frame.header.session);
        self.sessions.insert(session, from);
        let cell = self.map.cell_of(instrument);
        wire::route(frame.bytes, self.index as u16, cell, self.map.epoch());
        wire::stamp(frame.bytes, 0, links.now_ns);
        self.keep(cell, (instrument, session), frame, links.now_ns);
        if let Some(router) = self.router(links) {
            links.forward(router, frame.bytes);
        }
        Ok(())
    }

    /// Keeps a request until it is answered; one that came again is kept already.
    fn keep(
        &mut self,
        cell: u16,
        key: (InstrumentId, UserId),
        frame: &ReceivedFrame<'_>,
        sent_ns: u64,
    ) {
        let flow = self.flows.entry(key).or_insert_with(|| Flow {
            cell,
            pending: VecDeque::new(),
            answered: 0,
            sent_again_ns: 0,
            patience_ns: PATIENCE_NS,
            is_watched: false,
        });
        let client_seq = frame.header.client_seq;
        let place = match flow.pending.back() {
            Some(last) if last.client_seq >= client_seq => {
                match flow.pending.binary_search_by_key(&client_seq, |known| known.client_seq) {
                    Ok(_) => return,
                    Err(place) => place,
                }
            }
            _ => flow.pending.len(),
        };
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(frame.bytes);
        self.pending_bytes += bytes.len();
        let (previous_seq, reply) = (frame.header.previous_seq, vec![]);
        let pending = Pending { client_seq, previous_seq, sent_ns, bytes, reply };
        flow.pending.insert(place, pending);
        if !flow.is_watched {
            flow.is_watched = true;
            if self.watched.is_empty() {
                self.sweep_ns = sent_ns + SWEEP_NS;
            }
            self.watched.push(key);
        }
    }

    /// A reply goes to its client if it was waited for and none before it still is.
    fn reply(&mut self, links: &mut Links, frame: &ReceivedFrame<'_>) {
        let header = &frame.header;
        let router = self.router(links);
        let Some(flow) = self.flows.get_mut(&(header.instrument, header.session)) else { return };
        let place = flow.pending.binary_search_by_key(&header.client_seq, |known| known.client_seq);
        let Some(done) = place.ok().and_then(|place| flow.pending.get_mut(place)) else { return };
        flow.patience_ns = PATIENCE_NS;
        self.slowest_ns = self.slowest_ns.max(links.now_ns.saturating_sub(done.sent_ns));
        if place != Ok(0) {
            if done.reply.is_empty() {
                done.reply.extend_from_slice(frame.bytes);
                self.resent += flow.again_soon(links, router);
            }
            return;
        }
        let client = self.sessions.get(&header.session).copied();
        let mut reply = Some(&*frame.bytes);
        while let Some(first) = flow.pending.front()
            && (reply.is_some() || !first.reply.is_empty())
        {
            let reply = reply.take().unwrap_or(&first.reply);
            if let Some(client) = client {
                links.forward(client, reply);
            }
            self.pending_bytes -= first.bytes.len();
            flow.answered = first.client_seq;
            let first = flow.pending.pop_front();
            self.spare.extend(first.map(|first| first.bytes));
        }
        self.spare.truncate(SPARE_MAX);
    }

    /// Sends what has no reply again, of the flows that are wanted.
    fn again(&mut self, links: &mut Links, wanted: impl Fn(&Flow) -> bool) {
        let Some(router) = self.router(links) else { return };
        for key in &self.watched {
            let Some(flow) = self.flows.get_mut(key).filter(|flow| wanted(flow)) else { continue };
            self.resent += flow.again(links, router);
        }
    }

    /// Bids all sessions recall what they miss of a cell.
    fn bid_recall(&self, links: &mut Links, cell: u16) {
        let gateway = self.index as u16;
        let header = Header { cell, gateway, ..Header::new(FrameKind::ResendRequest) };
        self.clients.iter().for_each(|client| links.send(*client, &header, &[], 0));
    }

    /// A session misses something: who has it is asked. Without a link it is bid ask again when
    /// there is one.
    fn recall(&self, links: &mut Links, frame: &mut ReceivedFrame<'_>) {
        let cell = self.map.cell_of(frame.header.instrument);
        wire::route(frame.bytes, self.index as u16, cell, self.map.epoch());
        let processor = self.network.processor_of(cell);
        if let Some(processor) = links.to(Role::Processor, processor) {
            links.forward(processor, frame.bytes);
        }
    }

    /// Sends what has waited too long again, and forgets flows that wait for nothing.
    fn sweep(&mut self, links: &mut Links) {
        let now_ns = links.now_ns;
        let least_ns = (self.slowest_ns * 3).min(PATIENCE_NS_MAX);
        self.slowest_ns -= self.slowest_ns / 8;
        let late = |flow: &Flow| {
            let patience_ns = flow.patience_ns.max(least_ns);
            let waits = |first: &Pending| now_ns.saturating_sub(first.sent_ns) > patience_ns;
            flow.pending.front().is_some_and(waits)
        };
        self.again(links, late);
        let flows = &mut self.flows;
        self.watched.retain(|key| {
            let Some(flow) = flows.get_mut(key) else { return false };
            if flow.sent_again_ns == now_ns {
                flow.patience_ns = (flow.patience_ns * 2).min(PATIENCE_NS_MAX);
            }
            flow.is_watched = !flow.pending.is_empty();
            flow.is_watched
        });
        self.sweep_ns = now_ns + SWEEP_NS;
    }

    /// Takes a newer map: what has no reply goes by it from now on, and is sent again if its cell
    /// is another one.
    fn remap(&mut self, links: &mut Links, map: &Map) {
        if !self.map.take(map) {
            return;
        }
        let (index, router) = (self.index as u16, self.router(links));
        for ((instrument, _), flow) in &mut self.flows {
            let cell = self.map.cell_of(*instrument);
            let is_moved = std::mem::replace(&mut flow.cell, cell) != cell;
            for pending in &mut flow.pending {
                wire::route(&mut pending.bytes, index, cell, self.map.epoch());
            }
            if let Some(router) = router.filter(|_| is_moved) {
                self.resent += flow.again(links, router);
            }
        }
        self.tell_view(links);
    }

    /// Tells the router, for control, which processors are up, and the newest map.
    fn tell_view(&self, links: &mut Links) {
        if let Some(router) = self.router(links)
            && self.network.durability != Durability::None
        {
            let mut view = MembershipReport::new(self.network.mediator.len());
            view.routes.map.clone_from(&self.map);
            let is_processor = |node: &((Role, u16), u64)| node.0.0 == Role::Processor;
            view.nodes = links.seen().filter(is_processor).collect();
            links.send(router, &Header::new(FrameKind::MembershipReport), &view.bytes(), 0);
        }
    }

    fn tell_session(&mut self, links: &mut Links, session: UserId, bytes: &[u8]) {
        if let Some(client) = self.sessions.get(&session) {
            links.forward(*client, bytes);
        }
    }

    /// Whether an earlier start of the processor has told this: a restarted one applies again what
    /// it had applied since the last snapshot. Without replicas nothing is applied twice, and what
    /// was recalled is wanted.
    fn is_repeated(&mut self, header: &Header) -> bool {
        let is_recalled = header.flags & wire::RESENT != 0;
        if self.network.durability == Durability::None || is_recalled {
            return false;
        }
        let (last, floor) = self.told.entry(header.instrument).or_default();
        *last = header.output_seq.max(*last);
        header.output_seq <= *floor
    }

    fn pass_on(&mut self, links: &mut Links, frame: &mut ReceivedFrame<'_>) -> bool {
        let header = &frame.header;
        let key = (header.instrument, header.session);
        match header.kind {
            FrameKind::Reply => self.reply(links, frame),
            FrameKind::Private | FrameKind::Public if self.is_repeated(header) => {}
            FrameKind::Private => self.tell_session(links, header.session, frame.bytes),
            FrameKind::Public => {
                // Through whom it came: a client counts what is missing of each gateway's.
                wire::route(frame.bytes, self.index as u16, header.cell, header.map_version);
                for client in &self.clients {
                    links.forward(*client, frame.bytes);
                }
            }
            FrameKind::Nak => {
                let router = self.router(links);
                if let Some(flow) = self.flows.get_mut(&key) {
                    self.resent += flow.again_soon(links, router);
                }
            }
            FrameKind::ResendRequest => self.bid_recall(links, header.cell),
            _ => return false,
        }
        true
    }
}

impl Behaviour for Gateway {
    fn up(&mut self, links: &mut Links, peer: Peer) {
        match peer {
            Peer::Node(Role::Router, _) => self.again(links, |_| true),
            Peer::Node(Role::Processor, index) => {
                let processors = self.network.processor.len();
                let (network, map) = (&self.network, &self.map);
                let of_it = |instrument: InstrumentId| {
                    network.processor_of(map.cell_of(instrument)) == index
                };
                for (_, (last, floor)) in self.told.iter_mut().filter(|(seg, _)| of_it(**seg)) {
                    *floor = *last;
                }
                self.again(links, |flow| usize::from(flow.cell) % processors == index);
                for cell in 0..self.network.mediator.len() as u16 {
                    if self.network.processor_of(cell) == index {
                        self.bid_recall(links, cell);
                    }
                }
            }
            _ => return,
        }
        self.tell_view(links);
    }

    fn down(&mut self, links: &mut Links, peer: Peer, id: LinkId) {
        if peer == Peer::Client {
            self.clients.retain(|client| *client != id);
            self.sessions.retain(|_, client| *client != id);
        } else {
            self.tell_view(links);
        }
    }

    fn frame(
        &mut self,
        links: &mut Links,
        from: (LinkId, Peer),
        frame: &mut ReceivedFrame<'_>,
    ) -> Result<(), LinkError> {
        match (from.1, frame.header.kind) {
            (Peer::Client, FrameKind::Request) => self.request(links, from.0, frame),
            (Peer::Client, FrameKind::Hello) => {
                self.sessions.insert(frame.header.session, from.0);
                if !self.clients.contains(&from.0) {
                    self.clients.push(from.0);
                }
                Ok(())
            }
            (Peer::Client, FrameKind::ResendRequest) => {
                self.recall(links, frame);
                Ok(())
            }
            (Peer::Node(Role::Router, _), FrameKind::Leader) => {
                let cell = frame.header.cell;
                self.again(links, |flow| flow.cell == cell);
                // Where the processor tells, a leader's end loses nothing of what is told.
                if self.network.durability == Durability::None {
                    self.bid_recall(links, cell);
                }
                Ok(())
            }
            (Peer::Node(Role::Router, _), FrameKind::RoutingTable) => {
                let routes = RoutingTable::whole(frame.body());
                let routes = routes.map_err(|error| LinkError(error.to_string()))?;
                self.remap(links, &routes.map);
                Ok(())
            }
            (Peer::Node(Role::Processor, _), _) if self.pass_on(links, frame) => Ok(()),
            (peer, kind) => Err(LinkError(format!("{peer} sent a {kind:?} to a gateway"))),
        }
    }

    fn turn(&mut self, links: &mut Links) -> Result<(), nm_model::agent::Failure> {
        if !self.watched.is_empty() && links.now_ns >= self.sweep_ns {
            self.sweep(links);
        }
        Ok(())
    }

    fn due_ns(&self) -> Option<u64> {
        (!self.watched.is_empty()).then_some(self.sweep_ns)
    }

    fn counts(&self) -> (u64, u64) {
        (self.requests, self.resent)
    }
}
