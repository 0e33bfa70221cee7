//! Gateway: keeps the clients' connections, and their requests until they are answered.
//!
//! Replies leave in the order of a session's requests on an instrument: one that arrives before
//! that of an earlier request, whose reply was lost on a link, waits for it.
//!
//! Requests without a reply are resent, in order for each session and instrument: when the router's
//! link is made again, when a cell has a new leader or a new processor, when a mediator sends a
//! nak, when the map moves the instrument to another cell, and after a time without reply, which
//! doubles and is longer than recent replies took.
//!
//! The other events of sessions are numbered, and sessions keep count of them: where some may be
//! lost on a link, the gateway asks its clients to send [resend
//! requests](FrameKind::ResendRequest).

use std::collections::{HashMap, VecDeque};

use nm_book::order::{InstrumentId, UserId};

use crate::cell::Request;
use crate::control::{InstrumentMap, MembershipReport, RoutingTable};
use crate::link::ReceivedFrame;
use crate::network::{Durability, Network, Role};
use crate::wire::{self, FrameKind, Header};

use super::behaviour::Behaviour;
use super::links::{LinkId, Links};
use super::peer::{Peer, PeerError};

/// First time without a reply after which a session's requests on an instrument are resent, ns.
const TIMEOUT_NS: u64 = 200_000_000;

/// Longest such time, ns.
const TIMEOUT_NS_MAX: u64 = 3_200_000_000;

/// Requests that were resent are not resent for so long after a nak, ns.
const RESEND_PAUSE_NS: u64 = 2_000_000;

/// How often requests without reply are checked for time-outs, ns.
const CHECK_NS: u64 = 50_000_000;

/// Bytes of requests without reply beyond which a gateway accepts no more.
const PENDING_BYTES_MAX: usize = 1 << 30;

/// Buffers that are kept for reuse.
const SPARE_MAX: usize = 16 << 10;

/// Requests of one session on one instrument that have no reply, in order.
#[derive(Debug)]
struct PendingRequests {
    cell: u16,
    pending: VecDeque<Pending>,
    /// Number of the last request whose reply was forwarded.
    answered: u64,
    resent_ns: u64,
    timeout_ns: u64,
    is_checked: bool,
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

impl PendingRequests {
    /// Resends all of them; how many. Those whose reply waits are among them, because they are the
    /// predecessors of others. The first one carries that its predecessor was answered: a mediator
    /// that has lost its books does not wait for it then.
    fn resend(&mut self, links: &mut Links, router: LinkId) -> u64 {
        self.resent_ns = links.now_ns;
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
    fn resend_after_pause(&mut self, links: &mut Links, router: Option<LinkId>) -> u64 {
        let is_due = links.now_ns.saturating_sub(self.resent_ns) > RESEND_PAUSE_NS;
        router.filter(|_| is_due).map_or(0, |router| self.resend(links, router))
    }
}

/// A gateway.
#[derive(Debug)]
pub struct Gateway {
    network: Network,
    /// Which cell an instrument belongs to.
    map: InstrumentMap,
    index: usize,
    sessions: HashMap<UserId, LinkId>,
    clients: Vec<LinkId>,
    streams: HashMap<(InstrumentId, UserId), PendingRequests>,
    /// Those that may have pending requests.
    checked: Vec<(InstrumentId, UserId)>,
    next_check_ns: u64,
    /// Longest wait for a reply lately, ns: a slow network gets no duplicates.
    slowest_ns: u64,
    pending_bytes: usize,
    spare: Vec<Vec<u8>>,
    /// By instrument: the highest number of the events that were forwarded, and the number up to
    /// which they are duplicates.
    forwarded: HashMap<InstrumentId, (u64, u64)>,
    requests: u64,
    resent: u64,
}

impl Gateway {
    /// A gateway without clients.
    pub fn new(network: &Network, index: usize) -> Gateway {
        Gateway {
            network: network.clone(),
            map: InstrumentMap::new(network.mediator.len()),
            index,
            sessions: HashMap::new(),
            clients: vec![],
            streams: HashMap::new(),
            checked: vec![],
            next_check_ns: 0,
            slowest_ns: 0,
            pending_bytes: 0,
            spare: vec![],
            forwarded: HashMap::new(),
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
    ) -> Result<(), PeerError> {
        // A request that no mediator can decode would never have a reply.
        Request::decode(&frame.header, frame.body())
            .map_err(PeerError::decode(Peer::Client, FrameKind::Request))?;
        if self.pending_bytes > PENDING_BYTES_MAX {
            return Err(PeerError::TooManyPending);
        }
        self.requests += 1;
        let (instrument, session) = (frame.header.instrument, frame.header.session);
        self.sessions.insert(session, from);
        let cell = self.map.cell_of(instrument);
        wire::route(frame.bytes, self.index as u16, cell, self.map.version());
        wire::stamp(frame.bytes, 0, links.now_ns);
        self.keep(cell, (instrument, session), frame, links.now_ns);
        if let Some(router) = self.router(links) {
            links.forward(router, frame.bytes);
        }
        Ok(())
    }

    /// Keeps a request until it is answered; a duplicate is kept already.
    fn keep(
        &mut self,
        cell: u16,
        key: (InstrumentId, UserId),
        frame: &ReceivedFrame<'_>,
        sent_ns: u64,
    ) {
        let stream = self.streams.entry(key).or_insert_with(|| PendingRequests {
            cell,
            pending: VecDeque::new(),
            answered: 0,
            resent_ns: 0,
            timeout_ns: TIMEOUT_NS,
            is_checked: false,
        });
        let client_seq = frame.header.client_seq;
        let place = match stream.pending.back() {
            Some(last) if last.client_seq >= client_seq => {
                match stream.pending.binary_search_by_key(&client_seq, |known| known.client_seq) {
                    Ok(_) => return,
                    Err(place) => place,
                }
            }
            _ => stream.pending.len(),
        };
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(frame.bytes);
        self.pending_bytes += bytes.len();
        let (previous_seq, reply) = (frame.header.previous_seq, vec![]);
        let pending = Pending { client_seq, previous_seq, sent_ns, bytes, reply };
        stream.pending.insert(place, pending);
        if !stream.is_checked {
            stream.is_checked = true;
            if self.checked.is_empty() {
                self.next_check_ns = sent_ns + CHECK_NS;
            }
            self.checked.push(key);
        }
    }

    /// Forwards a reply to its client if its request is pending and none before it is.
    fn reply(&mut self, links: &mut Links, frame: &ReceivedFrame<'_>) {
        let header = &frame.header;
        let router = self.router(links);
        let Some(stream) = self.streams.get_mut(&(header.instrument, header.session)) else {
            return;
        };
        let place =
            stream.pending.binary_search_by_key(&header.client_seq, |known| known.client_seq);
        let Some(done) = place.ok().and_then(|place| stream.pending.get_mut(place)) else { return };
        stream.timeout_ns = TIMEOUT_NS;
        self.slowest_ns = self.slowest_ns.max(links.now_ns.saturating_sub(done.sent_ns));
        if place != Ok(0) {
            if done.reply.is_empty() {
                done.reply.extend_from_slice(frame.bytes);
                self.resent += stream.resend_after_pause(links, router);
            }
            return;
        }
        let client = self.sessions.get(&header.session).copied();
        let mut reply = Some(&*frame.bytes);
        while let Some(first) = stream.pending.front()
            && (reply.is_some() || !first.reply.is_empty())
        {
            let reply = reply.take().unwrap_or(&first.reply);
            if let Some(client) = client {
                links.forward(client, reply);
            }
            self.pending_bytes -= first.bytes.len();
            stream.answered = first.client_seq;
            let first = stream.pending.pop_front();
            self.spare.extend(first.map(|first| first.bytes));
        }
        self.spare.truncate(SPARE_MAX);
    }

    /// Resends pending requests, of the sessions and instruments that are wanted.
    fn resend(&mut self, links: &mut Links, wanted: impl Fn(&PendingRequests) -> bool) {
        let Some(router) = self.router(links) else { return };
        for key in &self.checked {
            let Some(stream) = self.streams.get_mut(key).filter(|stream| wanted(stream)) else {
                continue;
            };
            self.resent += stream.resend(links, router);
        }
    }

    /// Asks all clients to send resend requests for a cell.
    fn notify_event_loss(&self, links: &mut Links, cell: u16) {
        let gateway = self.index as u16;
        let header = Header { cell, gateway, ..Header::new(FrameKind::ResendRequest) };
        self.clients.iter().for_each(|client| links.send(*client, &header, &[], 0));
    }

    /// Forwards a resend request to the processor. Without a link the session is asked to send it
    /// again when there is one.
    fn forward_resend_request(&self, links: &mut Links, frame: &mut ReceivedFrame<'_>) {
        let cell = self.map.cell_of(frame.header.instrument);
        wire::route(frame.bytes, self.index as u16, cell, self.map.version());
        let processor = self.network.processor_of(cell);
        if let Some(processor) = links.to(Role::Processor, processor) {
            links.forward(processor, frame.bytes);
        }
    }

    /// Resends requests that have timed out, and stops checking those that have replies.
    fn check_timeouts(&mut self, links: &mut Links) {
        let now_ns = links.now_ns;
        let least_ns = (self.slowest_ns * 3).min(TIMEOUT_NS_MAX);
        self.slowest_ns -= self.slowest_ns / 8;
        let late = |stream: &PendingRequests| {
            let timeout_ns = stream.timeout_ns.max(least_ns);
            let waits = |first: &Pending| now_ns.saturating_sub(first.sent_ns) > timeout_ns;
            stream.pending.front().is_some_and(waits)
        };
        self.resend(links, late);
        let streams = &mut self.streams;
        self.checked.retain(|key| {
            let Some(stream) = streams.get_mut(key) else { return false };
            if stream.resent_ns == now_ns {
                stream.timeout_ns = (stream.timeout_ns * 2).min(TIMEOUT_NS_MAX);
            }
            stream.is_checked = !stream.pending.is_empty();
            stream.is_checked
        });
        self.next_check_ns = now_ns + CHECK_NS;
    }

    /// Takes over a newer map: pending requests are routed by it from now on, and resent if their
    /// cell is another one.
    fn update_map(&mut self, links: &mut Links, map: &InstrumentMap) {
        if !self.map.update(map) {
            return;
        }
        let (index, router) = (self.index as u16, self.router(links));
        for ((instrument, _), stream) in &mut self.streams {
            let cell = self.map.cell_of(*instrument);
            let is_moved = std::mem::replace(&mut stream.cell, cell) != cell;
            for pending in &mut stream.pending {
                wire::route(&mut pending.bytes, index, cell, self.map.version());
            }
            if let Some(router) = router.filter(|_| is_moved) {
                self.resent += stream.resend(links, router);
            }
        }
        self.send_report(links);
    }

    /// Reports to the router, for control, which processors are up, and the newest map.
    fn send_report(&self, links: &mut Links) {
        if let Some(router) = self.router(links)
            && self.network.durability != Durability::None
        {
            let mut report = MembershipReport::new(self.network.mediator.len());
            report.routes.map.clone_from(&self.map);
            let is_processor = |node: &((Role, u16), u64)| node.0.0 == Role::Processor;
            report.nodes = links.connected_nodes().filter(is_processor).collect();
            links.send(router, &Header::new(FrameKind::MembershipReport), &report.encode(), 0);
        }
    }

    fn forward_to_session(&mut self, links: &mut Links, session: UserId, bytes: &[u8]) {
        if let Some(client) = self.sessions.get(&session) {
            links.forward(*client, bytes);
        }
    }

    /// Whether the processor sent these events before its restart: a restarted one applies again
    /// what it had applied since the last snapshot. Without replicas nothing is applied twice, and
    /// resent events are wanted.
    fn is_duplicate(&mut self, header: &Header) -> bool {
        let is_resent = header.flags & wire::RESENT != 0;
        if self.network.durability == Durability::None || is_resent {
            return false;
        }
        let (last, duplicates_to) = self.forwarded.entry(header.instrument).or_default();
        *last = header.output_seq.max(*last);
        header.output_seq <= *duplicates_to
    }

    fn forward_from_processor(&mut self, links: &mut Links, frame: &mut ReceivedFrame<'_>) -> bool {
        let header = &frame.header;
        let key = (header.instrument, header.session);
        match header.kind {
            FrameKind::Reply => self.reply(links, frame),
            FrameKind::Private | FrameKind::Public if self.is_duplicate(header) => {}
            FrameKind::Private => self.forward_to_session(links, header.session, frame.bytes),
            FrameKind::Public => {
                // A client counts the missing broadcasts of each gateway, so they carry the
                // gateway.
                wire::route(frame.bytes, self.index as u16, header.cell, header.map_version);
                for client in &self.clients {
                    links.forward(*client, frame.bytes);
                }
            }
            FrameKind::Nak => {
                let router = self.router(links);
                if let Some(stream) = self.streams.get_mut(&key) {
                    self.resent += stream.resend_after_pause(links, router);
                }
            }
            FrameKind::ResendRequest => self.notify_event_loss(links, header.cell),
            _ => return false,
        }
        true
    }
}

impl Behaviour for Gateway {
    fn on_connected(&mut self, links: &mut Links, peer: Peer) {
        match peer {
            Peer::Node(Role::Router, _) => self.resend(links, |_| true),
            Peer::Node(Role::Processor, index) => {
                let processors = self.network.processor.len();
                let (network, map) = (&self.network, &self.map);
                let is_its = |instrument: InstrumentId| {
                    network.processor_of(map.cell_of(instrument)) == index
                };
                for (_, (last, duplicates_to)) in
                    self.forwarded.iter_mut().filter(|(seg, _)| is_its(**seg))
                {
                    *duplicates_to = *last;
                }
                self.resend(links, |stream| usize::from(stream.cell) % processors == index);
                for cell in 0..self.network.mediator.len() as u16 {
                    if self.network.processor_of(cell) == index {
                        self.notify_event_loss(links, cell);
                    }
                }
            }
            _ => return,
        }
        self.send_report(links);
    }

    fn on_disconnected(&mut self, links: &mut Links, peer: Peer, id: LinkId) {
        if peer == Peer::Client {
            self.clients.retain(|client| *client != id);
            self.sessions.retain(|_, client| *client != id);
        } else {
            self.send_report(links);
        }
    }

    fn on_frame(
        &mut self,
        links: &mut Links,
        from: (LinkId, Peer),
        frame: &mut ReceivedFrame<'_>,
    ) -> Result<(), PeerError> {
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
                self.forward_resend_request(links, frame);
                Ok(())
            }
            (Peer::Node(Role::Router, _), FrameKind::Leader) => {
                let cell = frame.header.cell;
                self.resend(links, |stream| stream.cell == cell);
                // With replicas the processor sends the events, and a leader's end loses none of
                // them.
                if self.network.durability == Durability::None {
                    self.notify_event_loss(links, cell);
                }
                Ok(())
            }
            (Peer::Node(Role::Router, _), FrameKind::RoutingTable) => {
                let routes = RoutingTable::decode(frame.body())
                    .map_err(PeerError::decode(from.1, frame.header.kind))?;
                self.update_map(links, &routes.map);
                Ok(())
            }
            (Peer::Node(Role::Processor, _), _) if self.forward_from_processor(links, frame) => {
                Ok(())
            }
            (peer, kind) => Err(PeerError::UnexpectedFrame { peer, kind, role: Role::Gateway }),
        }
    }

    fn on_iteration(&mut self, links: &mut Links) -> Result<(), nm_model::agent::Failure> {
        if !self.checked.is_empty() && links.now_ns >= self.next_check_ns {
            self.check_timeouts(links);
        }
        Ok(())
    }

    fn deadline_ns(&self) -> Option<u64> {
        (!self.checked.is_empty()).then_some(self.next_check_ns)
    }

    fn counts(&self) -> (u64, u64) {
        (self.requests, self.resent)
    }
}
