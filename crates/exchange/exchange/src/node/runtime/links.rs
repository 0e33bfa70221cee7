//! What a node knows of its links. It says who is at the other ends, what is to be sent to them,
//! and which are to be made. It is a plain value that a role changes; the sockets are elsewhere
//! ([`Sockets`](super::sockets::Sockets)), and so are the clocks. A simulation has no other one.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use nm_auth::{Nonces, Secret};
use nm_book::order::UserId;
use nm_wire::{
    Challenge, Close, Evidence, Format, FrameMut, Heartbeat, Hello, Kind, Listed, Owner, Value,
    Welcome, Who, hello, welcome,
};

use crate::client::{Meant, introduce, say_hello_to};
use crate::control::{self, InstrumentMap, LinkLatency, Work};
use crate::link::{Address, LinkError};
use crate::network::{Network, NodeId, Role};
use crate::refusals::Refusals;
use crate::time::{Meters, Time};

use super::accepted::Accepted;
use super::authenticator::Authenticator;
use super::heartbeat::Heartbeats;
use super::limits::Limits;
use super::peer::{Peer, PeerError, QUOTA_BYTES};
use super::peer_format::PeerFormat;
use super::warnings::Warnings;

/// A link for as long as it lasts; a later one never has the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LinkId(u64);

impl LinkId {
    pub(super) fn new(slot: usize, generation: u64) -> LinkId {
        LinkId(generation << 16 | slot as u64)
    }

    /// Its place among the links of the node.
    pub fn slot(self) -> usize {
        (self.0 & 0xffff) as usize
    }

    /// What a poller knows it by.
    pub fn token(self) -> u64 {
        self.0
    }

    /// The link of a poller's token.
    pub fn of_token(token: u64) -> LinkId {
        LinkId(token)
    }
}

/// Links that a node can have at once.
const LINKS_MAX: usize = 1 << 16;

/// How often links are checked that have not completed their handshake, or whose peer does not
/// read, ns.
const CHECK_NS: u64 = 100_000_000;

/// Bytes that may be gathered for links; then all of them are written at once. A frame for all
/// clients is as many frames.
const GATHERED_BYTES_MAX: usize = 32 << 20;

/// Answers to the frames of one read that may be gathered before they are written, bytes.
const ANSWERS_BYTES_MAX: usize = 1 << 20;

/// How long a node that was removed may take to learn that and to end, until its links are
/// closed, ns. One that is cut off at once could fail to write before it reads the news.
pub const REMOVED_NS: u64 = 5_000_000_000;

/// A link with a node that was removed.
#[derive(Debug, Clone, Copy)]
struct Outdated {
    link: LinkId,
    node: NodeId,
    /// When it is closed, ns.
    due_ns: u64,
}

/// What the node is to do about its connections to others.
#[derive(Debug)]
pub enum ConnectOrder {
    /// It makes a link.
    Connect(ConnectRequest),
    /// A node is no part of the network any more.
    Forget(NodeId),
}

/// A node to connect to.
#[derive(Debug)]
pub struct ConnectRequest {
    /// Which one.
    pub node: NodeId,
    /// Where it listens.
    pub address: Address,
    /// Not before this time, ns.
    pub at_ns: u64,
}

/// A peer takes nothing of its backlog.
#[derive(Debug, Clone, Copy)]
struct Stall {
    since_ns: u64,
    /// Bytes that the stream had taken then.
    written_total: u64,
}

#[derive(Debug)]
struct Entry {
    id: LinkId,
    peer: Peer,
    /// Who it belongs to; nobody if this node has made it.
    owner: Owner,
    is_outgoing: bool,
    /// What is to be written, in order.
    backlog: Vec<u8>,
    /// Largest backlog, bytes.
    backlog_bytes_max: usize,
    is_to_be_flushed: bool,
    /// Whether the socket has not taken all of what was written.
    wants_write: bool,
    /// Latency of one way, ns, if it is known.
    latency_ns: Option<u64>,
    made_ns: u64,
    /// The format at the other end.
    format: PeerFormat,
    /// Whether the handshake is complete.
    is_established: bool,
    /// What the peer was asked, if the network has a secret and this end accepted the link.
    challenge: Option<Challenge>,
    /// The nonces of the link, if the peer's challenge was answered.
    nonces: Option<Nonces>,
    stall: Option<Stall>,
    /// Heartbeats, if a session of it has asked for them.
    heartbeats: Option<Heartbeats>,
    /// Whether it is among the links that are checked.
    is_watched: bool,
    /// What it counts for among the bytes of its owner.
    held_bytes: usize,
    /// Whether it is about to be closed. Nothing more is written to it.
    has_failed: bool,
}

impl Entry {
    fn is_node(&self) -> bool {
        matches!(self.peer, Peer::Node(..))
    }

    /// Whether it has to be checked for the limits on time.
    fn needs_watching(&self) -> bool {
        !self.is_established
            || (self.stall.is_some() && !self.is_node())
            || self.heartbeats.is_some()
    }

    /// Why it is to be closed, if its peer takes too long.
    fn overdue(&self, limits: &Limits, now_ns: u64) -> Option<PeerError> {
        let exceeds = |since_ns: u64, limit: Duration| {
            u128::from(now_ns.saturating_sub(since_ns)) > limit.as_nanos()
        };
        if !self.is_established && exceeds(self.made_ns, limits.hello_timeout) {
            return Some(PeerError::HandshakeTimeout(limits.hello_timeout));
        }
        let stall = self.stall.filter(|stall| exceeds(stall.since_ns, limits.slow_timeout));
        let slow = stall.filter(|_| !self.is_node()).map(|_| PeerError::Slow(limits.slow_timeout));
        slow.or_else(|| self.heartbeats.as_ref()?.overdue())
    }
}

/// What a role is given of its machine: who is linked, and what time it is; and what it sends.
#[derive(Debug)]
pub struct Links {
    /// When the present input was read, ns on the monotonic clock.
    pub now_ns: u64,
    /// What the wall clock shows, ns since 1970; as old as its last reading.
    wall_ns: u64,
    /// What measures work.
    pub meters: Meters,
    /// Frames written to links so far.
    pub frames_out: u64,
    /// Warnings to be reported at the end of the iteration.
    pub warnings: Warnings,
    /// What peers are granted.
    pub limits: Limits,
    network: Network,
    authenticator: Authenticator,
    own: NodeId,
    start: u64,
    entries: Vec<Option<Entry>>,
    /// Places of links that are closed.
    free: Vec<usize>,
    accepted: Accepted,
    refusals: Refusals,
    generation: u64,
    /// Links with new bytes in their backlogs.
    to_be_flushed: Vec<LinkId>,
    /// Bytes that were added to backlogs since they were written last.
    gathered_bytes: usize,
    /// Owners that may have more bytes than their quotas allow.
    over_quota: Vec<Owner>,
    /// Links that are checked for the limits on time, and when they are the next time.
    watched: Vec<LinkId>,
    next_check_ns: u64,
    nodes: BTreeMap<NodeId, LinkId>,
    /// Number of the last start of each node that was ever linked.
    starts: BTreeMap<NodeId, u64>,
    /// Nodes that it is linked to when all links are up.
    peers_count: usize,
    /// Links with nodes that were removed.
    outdated: Vec<Outdated>,
    /// Whether the network has changed since that was last asked.
    is_network_changed: bool,
    /// What is to be connected.
    orders: Vec<ConnectOrder>,
    /// Whether the role is to be woken once more.
    is_wake_wanted: bool,
}

impl Links {
    /// A node's links, none of which is up; those downstream are to be connected.
    pub fn new(
        network: &Network,
        own: NodeId,
        start: u64,
        (limits, secret): (Limits, Option<Secret>),
        meters: Meters,
    ) -> Links {
        let mut links = Links {
            now_ns: 0,
            wall_ns: 0,
            meters,
            frames_out: 0,
            warnings: Warnings::default(),
            limits,
            network: network.clone(),
            authenticator: Authenticator::new(secret),
            own,
            start,
            entries: vec![],
            free: vec![],
            accepted: Accepted::default(),
            refusals: Refusals::default(),
            generation: 0,
            to_be_flushed: vec![],
            gathered_bytes: 0,
            over_quota: vec![],
            watched: vec![],
            next_check_ns: 0,
            nodes: BTreeMap::new(),
            starts: BTreeMap::new(),
            peers_count: network.downstream(own).len() + network.upstream_count(own),
            outdated: vec![],
            is_network_changed: false,
            orders: vec![],
            is_wake_wanted: false,
        };
        for node in network.downstream(own) {
            links.request_link(node, 0);
        }
        links
    }

    /// The clocks show this now.
    pub fn set_time(&mut self, time: Time) {
        (self.now_ns, self.wall_ns) = (time.monotonic_ns, time.wall_ns);
    }

    /// The time when the present input was read.
    pub fn time(&self) -> Time {
        Time { monotonic_ns: self.now_ns, wall_ns: self.wall_ns }
    }

    /// What is known of any node's work.
    pub fn work_until_now(&self) -> Work {
        control::work_until(self.now_ns, (self.meters.cpu_ns)())
    }

    /// Has the role woken once more in the next iteration.
    pub fn wake(&mut self) {
        self.is_wake_wanted = true;
    }

    /// Whether the role is to be woken, which was wanted in the iteration before.
    pub fn take_wake(&mut self) -> bool {
        std::mem::take(&mut self.is_wake_wanted)
    }

    /// Has a link made, unless the node was removed.
    pub fn request_link(&mut self, node: NodeId, at_ns: u64) {
        let known = self.network.node(node).filter(|_| !self.network.is_removed(node));
        let Some(known) = known else { return };
        let request = ConnectRequest { node, address: known.address.clone(), at_ns };
        self.orders.push(ConnectOrder::Connect(request));
    }

    /// What is to be connected since this was asked.
    pub fn take_orders(&mut self) -> std::vec::Drain<'_, ConnectOrder> {
        self.orders.drain(..)
    }

    /// The network with the nodes that were added to it, and without those that were removed, as
    /// far as this node knows.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Takes over the firms and the added nodes that a map has; whether these are others than
    /// before.
    pub fn update_nodes(&mut self, map: &InstrumentMap) -> bool {
        if let Some(firms) = map.firms() {
            self.network.firms = Some(Arc::clone(firms));
        }
        let is_changed = !map.has_nodes_of(&self.network);
        if is_changed {
            self.update_network(map.extended(&self.network).into_owned());
        }
        is_changed
    }

    /// Nodes were added to the network, or removed: links to the new ones are made, and those
    /// with the removed ones are closed when those have had time to end.
    fn update_network(&mut self, network: Network) {
        let before = std::mem::replace(&mut self.network, network);
        let (known, wanted) = (before.downstream(self.own), self.network.downstream(self.own));
        for peer in wanted.iter().filter(|peer| !known.contains(peer)) {
            self.request_link(*peer, 0);
        }
        for peer in known.iter().filter(|peer| !wanted.contains(peer)) {
            self.orders.push(ConnectOrder::Forget(*peer));
        }
        self.peers_count = wanted.len() + self.network.upstream_count(self.own);
        let linked = self.nodes.iter().filter(|(peer, _)| self.network.is_removed(**peer));
        let due_ns = self.now_ns + REMOVED_NS;
        let linked = linked.map(|(peer, id)| Outdated { link: *id, node: *peer, due_ns });
        let is_new = |it: &Outdated| self.outdated.iter().all(|known| known.link != it.link);
        let new: Vec<Outdated> = linked.filter(is_new).collect();
        self.outdated.extend(new);
        self.is_network_changed = true;
    }

    /// Whether nodes were added or removed since this was asked.
    pub fn take_network_change(&mut self) -> bool {
        std::mem::take(&mut self.is_network_changed)
    }

    /// A link to a node downstream is connected: hello is sent on it.
    ///
    /// # Errors
    /// If there are too many.
    pub fn add_connected(&mut self, node: NodeId) -> io::Result<LinkId> {
        let id = self.insert((Peer::Node(node), Owner::NOBODY), true)?;
        // With a secret, the hello answers the peer's challenge.
        let (who, meant) = (self.own_hello(), Meant::of(&self.network, node));
        if !self.authenticator.is_required()
            && let Some(output) = self.output(id)
        {
            introduce(output);
            say_hello_to(meant, who, None, output);
        }
        Ok(id)
    }

    fn own_hello(&self) -> Who {
        Who::Node { node: self.own, start: self.start }
    }

    /// Takes an accepted connection, unless its owner was refused too often, or too many are there
    /// whose peer has not said hello.
    ///
    /// # Errors
    /// If there are too many of all, or no random numbers.
    pub fn add_accepted(&mut self, owner: Owner) -> io::Result<Option<LinkId>> {
        let most = self.limits.unauthenticated_max;
        let count = self.accepted.all.unauthenticated;
        let is_too_often = self.refusals.is_too_often(owner, self.now_ns);
        let refused = match self.accepted.check(owner, Peer::Unknown, most) {
            _ if is_too_often => {
                format!("{owner} was refused too often; it is not answered for now")
            }
            _ if count >= most => format!("{count} others have not completed their handshake"),
            Err(full) => full.to_string(),
            Ok(()) => String::new(),
        };
        if !refused.is_empty() {
            let message = format!("a connection was closed at once: {refused}");
            self.warnings.push_limited(("unauthenticated", owner), self.now_ns, message);
            return Ok(None);
        }
        let challenge = self.authenticator.challenge()?;
        let id = self.insert((Peer::Unknown, owner), false)?;
        self.accepted.count_link(owner, Peer::Unknown, true);
        self.refusals.count(owner, self.now_ns);
        if let Some(challenge) = challenge
            && let Some(entry) = self.entry(id)
        {
            entry.challenge = Some(challenge);
            if let Some(output) = self.output(id) {
                nm_wire::write(&challenge, output);
            }
        }
        Ok(Some(id))
    }

    fn insert(&mut self, (peer, owner): (Peer, Owner), is_outgoing: bool) -> io::Result<LinkId> {
        let slot = self.free.pop().unwrap_or(self.entries.len());
        if slot == LINKS_MAX {
            return Err(io::Error::other(format!("a node has at most {LINKS_MAX} links")));
        }
        self.generation += 1;
        let id = LinkId::new(slot, self.generation);
        if slot == self.entries.len() {
            self.entries.push(None);
        }
        self.entries[slot] = Some(Entry {
            id,
            peer,
            owner,
            is_outgoing,
            backlog: vec![],
            backlog_bytes_max: self.limits.backlog_bytes_max(peer),
            is_to_be_flushed: false,
            wants_write: false,
            latency_ns: None,
            made_ns: self.now_ns,
            format: PeerFormat::default(),
            is_established: false,
            challenge: None,
            nonces: None,
            stall: None,
            heartbeats: None,
            is_watched: false,
            held_bytes: 0,
            has_failed: false,
        });
        self.watch_if_needed(id);
        Ok(id)
    }

    /// Has a link checked for the limits on time, if they apply to it now.
    fn watch_if_needed(&mut self, id: LinkId) {
        let Some(entry) = self.entry(id) else { return };
        if !entry.needs_watching() || std::mem::replace(&mut entry.is_watched, true) {
            return;
        }
        if self.watched.is_empty() {
            self.next_check_ns = self.now_ns + CHECK_NS;
        }
        self.watched.push(id);
    }

    /// When [`Links::check`] is due.
    pub fn deadline_ns(&self) -> Option<u64> {
        let watched = (!self.watched.is_empty()).then_some(self.next_check_ns);
        let outdated = self.outdated.iter().map(|it| it.due_ns).min();
        [watched, outdated].into_iter().flatten().min()
    }

    /// Appends the links whose peers take too long, if it is time to look for them.
    pub fn check(&mut self, failed: &mut Vec<(LinkId, PeerError)>) {
        let due = self.outdated.iter().filter(|it| it.due_ns <= self.now_ns);
        failed.extend(due.map(|it| (it.link, PeerError::Removed(it.node))));
        if self.watched.is_empty() || self.now_ns < self.next_check_ns {
            return;
        }
        let late_ns = self.now_ns - self.next_check_ns;
        self.next_check_ns = self.now_ns + CHECK_NS;
        let Links { watched, entries, limits, now_ns, .. } = self;
        let mut beats = vec![];
        watched.retain(|id| {
            let entry = entries.get_mut(id.slot()).and_then(Option::as_mut);
            let Some(entry) = entry.filter(|entry| entry.id == *id) else { return false };
            if let Some(heartbeats) = &mut entry.heartbeats {
                let due = heartbeats.advance(CHECK_NS + late_ns.min(CHECK_NS));
                beats.extend(due.map(|number| (*id, Heartbeat { number })));
            }
            failed.extend(entry.overdue(limits, *now_ns).map(|error| (*id, error)));
            entry.is_watched = entry.needs_watching();
            entry.is_watched
        });
        beats.iter().for_each(|(id, heartbeat)| self.send(*id, heartbeat));
    }

    /// Both ends of a link send heartbeats from now on, each after so long, ms; 0 for never.
    pub fn set_heartbeat(&mut self, id: LinkId, interval_ms: u32) {
        if let Some(entry) = self.entry(id) {
            entry.heartbeats = (interval_ms > 0).then(|| Heartbeats::new(interval_ms));
            self.watch_if_needed(id);
        }
    }

    /// A heartbeat has come, or cannot come because the link is not read.
    pub fn contacted(&mut self, id: LinkId) {
        if let Some(heartbeats) = self.entry(id).and_then(|entry| entry.heartbeats.as_mut()) {
            heartbeats.contacted();
        }
    }

    fn entry(&mut self, id: LinkId) -> Option<&mut Entry> {
        self.entries.get_mut(id.slot())?.as_mut().filter(|entry| entry.id == id)
    }

    /// Who is at the other end of a link, once its handshake is complete.
    pub fn peer(&mut self, id: LinkId) -> Peer {
        let entry = self.entry(id).filter(|entry| entry.is_established);
        entry.map_or(Peer::Unknown, |entry| entry.peer)
    }

    /// The link to a node, if it is up.
    pub fn to(&self, node: NodeId) -> Option<LinkId> {
        self.nodes.get(&node).copied()
    }

    /// The links to the nodes of a class that are up.
    pub fn all_to(&self, class: Role) -> Vec<LinkId> {
        let nodes = class.node(0)..=class.node(u16::MAX);
        self.nodes.range(nodes).map(|(_, id)| *id).collect()
    }

    /// The nodes that are connected and the numbers of their starts.
    pub fn connected_nodes(&self) -> impl Iterator<Item = (NodeId, u64)> {
        let start = |node: &NodeId| self.starts.get(node).copied();
        self.nodes.keys().filter_map(move |node| Some((*node, start(node)?)))
    }

    /// Has the latencies of the links measured, which nobody needs often.
    pub fn measure_latencies(&mut self, mut latency_ns: impl FnMut(LinkId) -> Option<u64>) {
        for entry in self.entries.iter_mut().flatten() {
            entry.latency_ns = latency_ns(entry.id);
        }
    }

    /// The latencies of the links to other nodes that are up, as they were measured last.
    pub fn latencies(&self) -> Vec<LinkLatency> {
        let latency = |(peer, id): (&NodeId, &LinkId)| {
            let entry = self.entries.get(id.slot())?.as_ref().filter(|entry| entry.id == *id)?;
            Some(LinkLatency { peer: *peer, latency_ns: entry.latency_ns? })
        };
        self.nodes.iter().filter_map(latency).collect()
    }

    /// The number of the start of a node, if it is connected.
    pub fn start_of(&self, node: NodeId) -> Option<u64> {
        self.to(node)?;
        self.starts.get(&node).copied()
    }

    /// This node, and the number of its start.
    pub fn own(&self) -> (NodeId, u64) {
        (self.own, self.start)
    }

    /// Whether all links to other nodes are up.
    pub fn all_up(&self) -> bool {
        self.nodes.len() == self.peers_count + self.outdated.len()
    }

    /// Whether all that was sent to the nodes of a class is with the system.
    pub fn is_flushed_to(&self, role: Role) -> bool {
        let ids = self.all_to(role).into_iter();
        let entries = ids.filter_map(|id| self.entries.get(id.slot())?.as_ref());
        entries.into_iter().all(|entry| !entry.is_to_be_flushed && !entry.wants_write)
    }

    /// The backlog of a link, for messages of this kind; none if the link is closed, or its peer
    /// does not know them.
    pub fn output_for(&mut self, id: LinkId, kind: Kind) -> Option<&mut Vec<u8>> {
        if self.is_known(id, kind.code()) { self.output(id) } else { None }
    }

    /// Whether the peer of a link knows the message with this code. One that it does not know is
    /// never sent to it.
    fn is_known(&mut self, id: LinkId, code: u8) -> bool {
        let Some(entry) = self.entry(id) else { return false };
        if entry.format.knows(code) {
            return true;
        }
        let (peer, owner) = (entry.peer, entry.owner);
        let name = Kind::from_code("kind", code).map_or("unknown", Kind::name);
        let message = format!(
            "a {name} was not sent to {peer}, which is of another version of nearmetal and does \
             not know it"
        );
        self.warnings.push_limited(("unknown message", owner), self.now_ns, message);
        false
    }

    /// The backlog of a link, which is flushed at the end of the iteration.
    pub(super) fn output(&mut self, id: LinkId) -> Option<&mut Vec<u8>> {
        self.frames_out += 1;
        let entry = self.entries.get_mut(id.slot())?.as_mut();
        let entry = entry.filter(|entry| entry.id == id && !entry.has_failed)?;
        if !entry.is_to_be_flushed {
            entry.is_to_be_flushed = true;
            self.to_be_flushed.push(id);
        }
        Some(&mut entry.backlog)
    }

    /// Sends frames that were written elsewhere, except those that the peer does not know; does
    /// nothing if the link is closed.
    pub fn forward(&mut self, id: LinkId, mut bytes: &[u8]) {
        if !self.entry(id).is_some_and(|entry| entry.format.is_other()) {
            return self.append(id, bytes);
        }
        while let Ok(Some(frame)) = nm_wire::read(bytes) {
            if self.is_known(id, frame.code) {
                self.append(id, frame.bytes);
            }
            bytes = &bytes[frame.bytes.len()..];
        }
    }

    fn append(&mut self, id: LinkId, bytes: &[u8]) {
        if let Some(output) = self.output(id) {
            output.extend_from_slice(bytes);
            self.gathered(bytes.len());
        }
    }

    /// Sends a message; does nothing if the link is closed.
    pub fn send<'m, M: Listed + Value<'m>>(&mut self, id: LinkId, message: &M) {
        if self.is_known(id, M::CODE)
            && let Some(output) = self.output(id)
        {
            let before = output.len();
            nm_wire::write(message, output);
            let bytes = output.len() - before;
            self.gathered(bytes);
        }
    }

    /// Sends a message over several links.
    pub fn send_to_all<'m, M: Listed + Value<'m>>(
        &mut self,
        ids: impl IntoIterator<Item = LinkId>,
        message: &M,
    ) {
        let mut bytes = vec![];
        for id in ids {
            if bytes.is_empty() {
                nm_wire::write(message, &mut bytes);
            }
            self.forward(id, &bytes);
        }
    }

    /// So many bytes were added to backlogs.
    fn gathered(&mut self, bytes: usize) {
        self.gathered_bytes += bytes;
    }

    /// Whether the peer of a link is a node.
    pub fn is_to_node(&self, id: LinkId) -> bool {
        let entry = self.entries.get(id.slot()).and_then(Option::as_ref);
        entry.is_some_and(|entry| entry.id == id && entry.is_node())
    }

    /// Whether so much was gathered that the backlogs are to be written at once.
    #[inline]
    pub fn has_gathered_much(&self) -> bool {
        self.gathered_bytes > GATHERED_BYTES_MAX
    }

    /// The links whose backlogs are to be written now, in exchange for an empty buffer.
    pub fn take_unwritten(&mut self, empty: Vec<LinkId>) -> Vec<LinkId> {
        debug_assert!(empty.is_empty());
        std::mem::replace(&mut self.to_be_flushed, empty)
    }

    /// All backlogs were written.
    pub fn end_writes(&mut self) {
        self.gathered_bytes = 0;
    }

    /// The backlog of a link that is about to be written, and the most bytes that may wait; none
    /// if the link is closed or about to be.
    #[inline]
    pub fn begin_write(&mut self, id: LinkId) -> Option<(&mut Vec<u8>, usize)> {
        let entry = self.entry(id)?;
        entry.is_to_be_flushed = false;
        (!entry.has_failed).then_some((&mut entry.backlog, entry.backlog_bytes_max))
    }

    /// A backlog was written: whether all of it was, and how many bytes of the link in all. Whether
    /// the socket is to be watched for room, or no longer, is the answer if that has changed.
    pub fn end_write(
        &mut self,
        id: LinkId,
        (written, total): (&Result<bool, LinkError>, u64),
    ) -> Option<bool> {
        let now_ns = self.now_ns;
        let entry = self.entry(id)?;
        let Ok(is_all) = written else {
            entry.has_failed = true;
            return None;
        };
        let wants_write = !is_all;
        if wants_write {
            let known = entry.stall.filter(|stall| stall.written_total == total);
            let new = Stall { since_ns: now_ns, written_total: total };
            entry.stall = Some(known.unwrap_or(new));
        }
        if wants_write == entry.wants_write {
            return None;
        }
        entry.wants_write = wants_write;
        entry.stall = entry.stall.filter(|_| wants_write);
        self.watch_if_needed(id);
        Some(wants_write)
    }

    /// Whether the backlog of a link whose peer is no node is to be written at once, because it is
    /// long: a read of small questions may have long answers.
    #[inline]
    pub fn has_long_answers(&mut self, id: LinkId) -> bool {
        let is_long = |entry: &Entry| entry.backlog.len() > ANSWERS_BYTES_MAX;
        self.entry(id).is_some_and(|entry| is_long(entry) && !entry.is_node())
    }

    /// Counts what a link holds, unless its peer is a node; `hold` frees what of a backlog's space
    /// is not needed now, and says how many bytes are allocated.
    #[inline]
    pub fn count_held(&mut self, id: LinkId, hold: impl FnOnce(&mut Vec<u8>) -> usize) {
        let Links { entries, accepted, over_quota, limits, .. } = self;
        let entry = entries.get_mut(id.slot()).and_then(Option::as_mut);
        let Some(entry) = entry.filter(|entry| entry.id == id && !entry.has_failed) else { return };
        let held_bytes = if entry.is_node() { 0 } else { hold(&mut entry.backlog) };
        accepted.count_bytes(entry.owner, entry.held_bytes, held_bytes);
        if held_bytes > entry.held_bytes
            && accepted.exceeds_bytes(entry.owner, limits.foreign_bytes_max)
        {
            over_quota.push(entry.owner);
        }
        entry.held_bytes = held_bytes;
    }

    /// Gives up a link if an owner holds more than its quota allows, or all peers that are no nodes
    /// hold too much: the one that holds the most; which one, and why.
    pub fn fail_largest(&mut self) -> Option<(LinkId, PeerError)> {
        let most = self.limits.foreign_bytes_max;
        while let Some(owner) = self.over_quota.last().copied() {
            let own = self.accepted.of(owner).bytes;
            if self.accepted.exceeds_bytes(owner, most)
                && let Some(id) = self.fail_largest_of(|it| it == owner)
            {
                return Some((id, PeerError::QuotaFull { what: QUOTA_BYTES, owner, own }));
            }
            self.over_quota.pop();
        }
        if self.accepted.all.bytes <= most {
            return None;
        }
        let id = self.fail_largest_of(|_| true)?;
        Some((id, PeerError::TooManyForeignBytes(most)))
    }

    /// Gives up the link that holds the most of those with such an owner whose peers are no nodes;
    /// which one.
    fn fail_largest_of(&mut self, is_it: impl Fn(Owner) -> bool) -> Option<LinkId> {
        let entries = self.entries.iter_mut().flatten().filter(|entry| is_it(entry.owner));
        let largest = entries.max_by_key(|entry| entry.held_bytes)?;
        if largest.held_bytes == 0 {
            return None;
        }
        self.accepted.count_bytes(largest.owner, std::mem::take(&mut largest.held_bytes), 0);
        largest.has_failed = true;
        largest.backlog = vec![];
        Some(largest.id)
    }

    /// Adds the reason for which a link is about to be closed to its backlog; that, to be written
    /// as far as the socket takes it at once.
    pub fn refuse(&mut self, id: LinkId, reason: &PeerError) -> Option<&mut Vec<u8>> {
        let entry = self.entry(id)?;
        nm_wire::write(&Close::because(&reason.to_string()), &mut entry.backlog);
        Some(&mut entry.backlog)
    }

    /// A link is closed; who was connected, and whether the handshake was done. It is to be made
    /// again if it leads downstream, after a pause.
    pub fn close(&mut self, id: LinkId, pause: Duration) -> Option<(Peer, bool)> {
        let slot = self.entries.get_mut(id.slot())?;
        let entry = slot.take_if(|entry| entry.id == id)?;
        self.free.push(id.slot());
        self.accepted.count_bytes(entry.owner, entry.held_bytes, 0);
        self.outdated.retain(|it| it.link != id);
        if !entry.is_outgoing {
            self.accepted.count_link(entry.owner, entry.peer, false);
        }
        let mut was_connected = entry.peer == Peer::Client;
        if let Peer::Node(node) = entry.peer {
            if self.nodes.get(&node) == Some(&id) {
                self.nodes.remove(&node);
                was_connected = true;
            }
            if entry.is_outgoing {
                self.request_link(node, self.now_ns + pause.as_nanos() as u64);
            }
        }
        Some((entry.peer, was_connected))
    }

    /// Handles a frame of the handshake: who is connected, if it is complete. An older link of the
    /// same node is to be closed by the caller.
    pub fn handshake(
        &mut self,
        id: LinkId,
        frame: &FrameMut<'_>,
    ) -> Result<Option<Handshake>, PeerError> {
        let kind = frame.kind();
        let Some(entry) = self.entry(id) else { return Ok(None) };
        let (peer, is_new) = (entry.peer, !entry.is_established);
        let undecodable = PeerError::decode(peer, kind);
        match (kind, peer) {
            (Kind::Challenge, Peer::Node(..)) if is_new && entry.nonces.is_none() => {
                let challenge = frame.read().map_err(undecodable)?;
                self.answer(id, challenge).map(|()| None)
            }
            (Kind::Format, Peer::Unknown | Peer::Node(..)) if is_new => {
                let format: Format = frame.read().map_err(undecodable)?;
                entry.format.announce(&format).map(|()| None)
            }
            (Kind::Welcome, Peer::Node(node)) if is_new => {
                let nonces = entry.nonces;
                let found = welcome::View::of(frame.shared()).map_err(&undecodable)?.digest();
                entry.format.check(found)?;
                if self.network.is_removed(node) {
                    return Err(PeerError::Removed(node));
                }
                let welcome: Welcome = frame.read().map_err(undecodable)?;
                self.authenticator.check_welcome(nonces.as_ref(), &self.own_hello(), &welcome)?;
                self.check_identity(node, &welcome)?;
                self.establish(id, peer, None)?;
                self.nodes.insert(node, id);
                self.starts.insert(node, welcome.start);
                Ok(Some(Handshake { peer, older: None }))
            }
            (Kind::Hello, Peer::Unknown | Peer::Client) => {
                // The rest of it can be read only if both ends know the same hello.
                let found = hello::View::of(frame.shared()).map_err(&undecodable)?.digest();
                let is_other = entry.format.check(found)?;
                let Hello { network, who, to, evidence, .. } = frame.read().map_err(undecodable)?;
                self.check_meant(&who, Meant { network, node: to })?;
                if is_other
                    && let Who::Node { .. } = who
                    && let Some(output) = self.output(id)
                {
                    introduce(output);
                }
                self.on_hello(id, peer, &who, evidence.as_ref()).map(Some)
            }
            // A client ends its link by that when all of its sessions are at another gateway.
            (Kind::Close, Peer::Client) => Err(LinkError::Closed.into()),
            (Kind::Close, _) => {
                let close: Close = frame.read().map_err(undecodable)?;
                Err(PeerError::Refused(close.printable()))
            }
            _ => Err(PeerError::RepeatedHandshake),
        }
    }

    /// Somebody says hello.
    fn on_hello(
        &mut self,
        id: LinkId,
        peer: Peer,
        who: &Who,
        evidence: Option<&Evidence>,
    ) -> Result<Handshake, PeerError> {
        // A client says hello once for each of its sessions, and stays a client.
        if peer == Peer::Client && !matches!(who, Who::Client { .. }) {
            return Err(PeerError::RepeatedHandshake);
        }
        let Some((peer, start)) = self.accepted(who) else {
            return Err(self.not_linked(who));
        };
        let challenge = self.entry(id).and_then(|entry| entry.challenge);
        let welcome = self.welcome(who);
        let welcome = self.authenticator.check_hello(challenge, (who, evidence), welcome)?;
        self.establish(id, peer, self.key_owner(who))?;
        if peer != Peer::Client || welcome.proof.is_some() {
            self.output(id).into_iter().for_each(|out| nm_wire::write(&welcome, out));
        }
        Ok(self.record_start(id, peer, start))
    }

    /// Sends this node's hello as the answer to a challenge.
    fn answer(&mut self, id: LinkId, challenge: Challenge) -> Result<(), PeerError> {
        let hello = self.own_hello();
        let (nonces, evidence) = self.authenticator.answer(challenge, &hello)?;
        let Some(entry) = self.entry(id) else { return Ok(()) };
        entry.nonces = Some(nonces);
        let Peer::Node(node) = entry.peer else { return Ok(()) };
        let meant = Meant::of(&self.network, node);
        if let Some(output) = self.output(id) {
            introduce(output);
            say_hello_to(meant, hello, Some(evidence), output);
        }
        Ok(())
    }

    /// The handshake of a link is complete, or there is no room for one more such peer.
    fn establish(
        &mut self,
        id: LinkId,
        peer: Peer,
        key_owner: Option<Owner>,
    ) -> Result<(), PeerError> {
        let limits = self.limits;
        let Links { entries, accepted, refusals, .. } = self;
        let entry = entries.get_mut(id.slot()).and_then(Option::as_mut);
        let Some(entry) = entry.filter(|entry| entry.id == id) else { return Ok(()) };
        if entry.peer == Peer::Unknown {
            let owner = key_owner.unwrap_or(entry.owner);
            match peer {
                Peer::Client if accepted.all.clients >= limits.clients_max => {
                    return Err(PeerError::TooManyClients(limits.clients_max));
                }
                Peer::Observer | Peer::Operator
                    if accepted.all.observers >= limits.observers_max =>
                {
                    return Err(PeerError::TooManyObservers(limits.observers_max));
                }
                Peer::Client => accepted.check(owner, peer, limits.clients_max)?,
                Peer::Observer | Peer::Operator => {
                    accepted.check(owner, peer, limits.observers_max)?;
                }
                _ => {}
            }
            refusals.forgive(entry.owner);
            accepted.count_link(entry.owner, Peer::Unknown, false);
            accepted.count_link(owner, peer, true);
            accepted.count_bytes(entry.owner, std::mem::take(&mut entry.held_bytes), 0);
            entry.owner = owner;
        }
        (entry.peer, entry.is_established) = (peer, true);
        entry.backlog_bytes_max = limits.backlog_bytes_max(peer);
        Ok(())
    }

    /// Who connects, and the number of its start, if this node may be linked to it.
    fn accepted(&self, hello: &Who) -> Option<(Peer, u64)> {
        match *hello {
            Who::Client { .. } => (self.own.class == Role::Gateway).then_some((Peer::Client, 0)),
            Who::Observer => Some((Peer::Observer, 0)),
            Who::Operator => Some((Peer::Operator, 0)),
            Who::Node { node, start } => {
                let is_linked = self.network.node(node).is_some()
                    && !self.network.is_removed(self.own)
                    && self.network.downstream(node).contains(&self.own);
                is_linked.then_some((Peer::Node(node), start))
            }
        }
    }

    /// The firm of a session, or else who has the key that a peer has proved to have, if it is that
    /// of a session.
    fn key_owner(&self, hello: &Who) -> Option<Owner> {
        if let (Some(firms), Who::Client { session }) = (&self.network.firms, hello)
            && let Some(firm) = firms.of_session(*session)
        {
            return Some(firm.owner());
        }
        match *hello {
            Who::Client { session } if self.authenticator.is_required() => {
                Some(Owner::of_session(session))
            }
            _ => None,
        }
    }

    /// Who a session belongs to that comes by this link.
    pub fn owner_of(&self, id: LinkId, session: UserId) -> Owner {
        self.key_owner(&Who::Client { session }).unwrap_or_else(|| self.owner(id))
    }

    /// Who a link belongs to.
    pub fn owner(&self, id: LinkId) -> Owner {
        let entry = self.entries.get(id.slot()).and_then(Option::as_ref);
        entry.filter(|entry| entry.id == id).map_or(Owner::NOBODY, |entry| entry.owner)
    }

    /// Whether a peer means this node. One that is no node may not know the number of the network.
    fn check_meant(&self, who: &Who, meant: Meant) -> Result<(), PeerError> {
        let found = Meant::of(&self.network, self.own);
        let is_same_network = meant.network == found.network || !matches!(who, Who::Node { .. });
        if is_same_network && meant.is_met_by(found) {
            return Ok(());
        }
        Err(PeerError::Mistaken { meant, found })
    }

    /// Whether the node that was connected to is the one that is meant.
    fn check_identity(&self, node: NodeId, welcome: &Welcome) -> Result<(), PeerError> {
        let meant = Meant::of(&self.network, node);
        let found = Meant { network: welcome.network, node: Some(welcome.node) };
        if meant == found { Ok(()) } else { Err(PeerError::Mistaken { meant, found }) }
    }

    /// Why a peer is not to be linked to this node.
    fn not_linked(&self, hello: &Who) -> PeerError {
        match *hello {
            Who::Node { node, .. } if self.network.is_removed(node) => PeerError::Removed(node),
            _ => PeerError::NotLinked(self.own),
        }
    }

    fn welcome(&self, hello: &Who) -> Welcome {
        let session = if let Who::Client { session } = *hello { session } else { 0 };
        let (digest, network) = (nm_wire::digest(), self.network.cluster);
        Welcome { digest, network, start: self.start, session, node: self.own, proof: None }
    }

    /// A peer is connected by this link, and no longer by an older one.
    fn record_start(&mut self, id: LinkId, peer: Peer, start: u64) -> Handshake {
        let Peer::Node(node) = peer else { return Handshake { peer, older: None } };
        self.starts.insert(node, start);
        let older = self.nodes.insert(node, id);
        Handshake { peer, older }
    }
}

/// The result of a handshake.
#[derive(Debug, Clone, Copy)]
pub struct Handshake {
    /// Who is connected.
    pub peer: Peer,
    /// Its link before, which it has given up.
    pub older: Option<LinkId>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the wall clock shows when the monotonic clock shows zero, ns.
    const EPOCH_NS: u64 = 1_800_000_000_000_000_000;

    impl LinkId {
        /// One that no link has.
        pub fn none() -> LinkId {
            LinkId(u64::MAX)
        }
    }

    impl Links {
        /// The links of a node in a simulation.
        pub fn simulated(network: &Network, own: NodeId, start: u64) -> Links {
            let meters = Meters { monotonic_ns: || 0, cpu_ns: || 0 };
            let mut links = Links::new(network, own, start, (Limits::STANDARD, None), meters);
            links.set_simulated_time(0);
            links
        }

        /// Sets both clocks, ns since the begin of the simulation.
        pub fn set_simulated_time(&mut self, now_ns: u64) {
            self.set_time(Time { monotonic_ns: now_ns, wall_ns: EPOCH_NS + now_ns });
        }

        /// A link to a node downstream that has answered, and whose backlog is empty.
        pub fn link_to(&mut self, node: NodeId) -> LinkId {
            let id = self.add_connected(node).unwrap();
            self.establish(id, Peer::Node(node), None).unwrap();
            self.record_start(id, Peer::Node(node), 1);
            self.take_output();
            id
        }

        /// Bytes of the backlog of a link.
        pub fn backlog_bytes(&mut self, id: LinkId) -> usize {
            self.entry(id).unwrap().backlog.len()
        }

        /// Bytes of all peers that are no nodes, and how many clients there are.
        pub fn held(&self) -> (usize, usize) {
            (self.accepted.all.bytes, self.accepted.all.clients)
        }

        /// A link that somebody has begun.
        pub fn accept_link(&mut self) -> LinkId {
            self.add_accepted(Owner::NOBODY).unwrap().unwrap()
        }

        /// What is to be written, in the order of the links.
        pub fn take_output(&mut self) -> Vec<(LinkId, Vec<u8>)> {
            let mut ids = self.take_unwritten(vec![]);
            self.end_writes();
            ids.sort_unstable_by_key(|id| id.0);
            let taken = ids.into_iter().filter_map(|id| {
                let (backlog, _) = self.begin_write(id)?;
                Some((id, std::mem::take(backlog)))
            });
            taken.filter(|(_, bytes)| !bytes.is_empty()).collect()
        }
    }
}
