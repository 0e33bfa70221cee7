//! The links of a node by peer: connected, and connected again when they fail; written once in each
//! iteration of the event loop.

#[cfg(test)]
mod simulated;

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use nm_auth::{Nonces, Secret};
use nm_book::order::UserId;
use nm_sys::clock;
use nm_sys::poll::Waker;
use nm_wire::{
    Challenge, Close, Evidence, FrameMut, Hello, Kind, Listed, Owner, Value, Welcome, Who, hello,
    welcome,
};

use crate::client::{Meant, say_hello_to};
use crate::control::{InstrumentMap, LinkLatency};
use crate::link::{Address, Link, LinkError, LinkPoller, ReceiveBuffer, Stream};
use crate::network::{Network, NodeId, Role};

use super::accepted::Accepted;
use super::authenticator::Authenticator;
use super::limits::Limits;
use super::peer::{Peer, PeerError, QUOTA_BYTES, check_format};
use super::warnings::Warnings;

/// How long an attempt to connect may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);

/// Pauses between attempts to connect: the first one, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(20)];

/// A link for as long as it lasts; a later one never has the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LinkId(u64);

impl LinkId {
    fn new(slot: usize, generation: u64) -> LinkId {
        LinkId(generation << 16 | slot as u64)
    }

    fn slot(self) -> usize {
        (self.0 & 0xffff) as usize
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

/// Bytes that may be gathered for links in one iteration; then they are written at once. A frame
/// for all clients is as many frames.
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
    link: Link,
    peer: Peer,
    /// Who it belongs to; nobody if this node has made it.
    owner: Owner,
    is_outgoing: bool,
    is_to_be_flushed: bool,
    wants_write: bool,
    made_ns: u64,
    /// Whether the handshake is complete.
    is_established: bool,
    /// What the peer was asked, if the network has a secret and this end accepted the link.
    challenge: Option<Challenge>,
    /// The nonces of the link, if the peer's challenge was answered.
    nonces: Option<Nonces>,
    stall: Option<Stall>,
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
        !self.is_established || (self.stall.is_some() && !self.is_node())
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
        stall.filter(|_| !self.is_node()).map(|_| PeerError::Slow(limits.slow_timeout))
    }
}

/// The links of a node.
#[derive(Debug)]
pub struct Links {
    /// What wakes the node.
    pub poller: LinkPoller,
    /// When the present input was read, ns on the machine's clock.
    pub now_ns: u64,
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
    accepted: Accepted,
    generation: u64,
    to_be_flushed: Vec<LinkId>,
    /// Bytes that were forwarded since the links were written last.
    gathered_bytes: usize,
    /// Links that failed when they were written within an iteration.
    failed_early: Vec<(LinkId, PeerError)>,
    /// Owners that may have more bytes than their quotas allow.
    over_quota: Vec<Owner>,
    /// Space to read into, for one link after the other.
    spare_input: Vec<u8>,
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
    requests: Sender<ConnectorOrder>,
    connected: Receiver<(NodeId, Stream)>,
    connector: Waker,
}

/// Takes what is to be connected, gives what was, and is woken then.
type Connector = (Sender<ConnectorOrder>, Receiver<(NodeId, Stream)>, Waker);

/// What the connector is to do.
#[derive(Debug)]
enum ConnectorOrder {
    Connect(ConnectRequest),
    /// A node is no part of the network any more.
    Forget(NodeId),
}

/// A node to connect to.
#[derive(Debug)]
struct ConnectRequest {
    node: NodeId,
    address: Address,
    /// Not before this time, ns.
    at_ns: u64,
}

impl Links {
    /// A node's links, none of which is up; those downstream are connected from now on.
    pub fn new(
        network: &Network,
        own: NodeId,
        start: u64,
        (limits, secret): (Limits, Option<Secret>),
    ) -> io::Result<Links> {
        let (requests, requested) = mpsc::channel();
        let (done, connected) = mpsc::channel();
        let connector = Waker::new()?;
        let waker = connector.clone();
        std::thread::Builder::new()
            .name("connector".to_string())
            .spawn(move || connect(&requested, &done, &waker))?;
        let parts = (requests, connected, connector);
        let links = Links::of_parts(network, own, start, (limits, secret), parts)?;
        for node in network.downstream(own) {
            links.request_link(node, 0);
        }
        Ok(links)
    }

    /// A node's links, none of which is up; `connector` is woken when one is connected.
    fn of_parts(
        network: &Network,
        own: NodeId,
        start: u64,
        (limits, secret): (Limits, Option<Secret>),
        (requests, connected, connector): Connector,
    ) -> io::Result<Links> {
        Ok(Links {
            poller: LinkPoller::new()?,
            now_ns: 0,
            frames_out: 0,
            warnings: Warnings::default(),
            limits,
            network: network.clone(),
            authenticator: Authenticator::new(secret),
            own,
            start,
            entries: vec![],
            accepted: Accepted::default(),
            generation: 0,
            to_be_flushed: vec![],
            gathered_bytes: 0,
            failed_early: vec![],
            over_quota: vec![],
            spare_input: vec![],
            watched: vec![],
            next_check_ns: 0,
            nodes: BTreeMap::new(),
            starts: BTreeMap::new(),
            peers_count: network.downstream(own).len() + network.upstream_count(own),
            outdated: vec![],
            is_network_changed: false,
            requests,
            connected,
            connector,
        })
    }

    /// What wakes the node when a link is connected.
    pub fn connector(&self) -> &Waker {
        &self.connector
    }

    /// Has the connector make a link, unless the node was removed.
    fn request_link(&self, node: NodeId, at_ns: u64) {
        let known = self.network.node(node).filter(|_| !self.network.is_removed(node));
        let Some(known) = known else { return };
        let request = ConnectRequest { node, address: known.address.clone(), at_ns };
        // The thread lives as long as this does.
        let _ = self.requests.send(ConnectorOrder::Connect(request));
    }

    /// The network with the nodes that were added to it, and without those that were removed, as
    /// far as this node knows.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Takes over the added nodes that a map has; whether they are others than before.
    pub fn update_nodes(&mut self, map: &InstrumentMap) -> bool {
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
            let _ = self.requests.send(ConnectorOrder::Forget(*peer));
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

    /// Takes the links that were connected since, and sends hello on them.
    pub fn take_connected(&mut self) -> io::Result<()> {
        self.connector.drain();
        while let Ok((node, stream)) = self.connected.try_recv() {
            let made = Link::new(stream)
                .and_then(|link| self.insert(link, (Peer::Node(node), Owner::NOBODY), true));
            let Ok(id) = made else {
                self.request_link(node, 0);
                continue;
            };
            // With a secret, the hello answers the peer's challenge.
            let (who, meant) = (self.own_hello(), Meant::of(&self.network, node));
            if !self.authenticator.is_required()
                && let Some(output) = self.output(id)
            {
                say_hello_to(meant, who, None, output);
            }
        }
        Ok(())
    }

    fn own_hello(&self) -> Who {
        Who::Node { node: self.own, start: self.start }
    }

    /// Takes an accepted connection, unless too many are there whose peer has not said hello.
    pub fn take_accepted(&mut self, stream: Stream) -> io::Result<()> {
        let (link, most) = (Link::new(stream)?, self.limits.unauthenticated_max);
        // The peer may have gone meanwhile.
        let Ok(owner) = link.owner() else { return Ok(()) };
        let count = self.accepted.all.unauthenticated;
        let refused = match self.accepted.check(owner, Peer::Unknown, most) {
            _ if count >= most => format!("{count} others have not completed their handshake"),
            Err(full) => full.to_string(),
            Ok(()) => String::new(),
        };
        if !refused.is_empty() {
            let message = format!("a connection was closed at once: {refused}");
            self.warnings.push_limited(("unauthenticated", owner), self.now_ns, message);
            return Ok(());
        }
        let challenge = self.authenticator.challenge()?;
        let id = self.insert(link, (Peer::Unknown, owner), false)?;
        self.accepted.count_link(owner, Peer::Unknown, true);
        if let Some(challenge) = challenge
            && let Some(entry) = self.entry(id)
        {
            entry.challenge = Some(challenge);
            if let Some(output) = self.output(id) {
                nm_wire::write(&challenge, output);
            }
        }
        Ok(())
    }

    fn insert(
        &mut self,
        mut link: Link,
        (peer, owner): (Peer, Owner),
        is_outgoing: bool,
    ) -> io::Result<LinkId> {
        let slot = self.entries.iter().position(Option::is_none).unwrap_or(self.entries.len());
        if slot == LINKS_MAX {
            return Err(io::Error::other(format!("a node has at most {LINKS_MAX} links")));
        }
        self.generation += 1;
        let id = LinkId::new(slot, self.generation);
        self.poller.add_link(&link, id.0)?;
        if slot == self.entries.len() {
            self.entries.push(None);
        }
        link.limit_backlog(self.limits.backlog_bytes_max(peer));
        self.entries[slot] = Some(Entry {
            id,
            link,
            peer,
            owner,
            is_outgoing,
            is_to_be_flushed: false,
            wants_write: false,
            made_ns: self.now_ns,
            is_established: false,
            challenge: None,
            nonces: None,
            stall: None,
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
        self.next_check_ns = self.now_ns + CHECK_NS;
        let Links { watched, entries, limits, now_ns, .. } = self;
        watched.retain(|id| {
            let entry = entries.get_mut(id.slot()).and_then(Option::as_mut);
            let Some(entry) = entry.filter(|entry| entry.id == *id) else { return false };
            failed.extend(entry.overdue(limits, *now_ns).map(|error| (*id, error)));
            entry.is_watched = entry.needs_watching();
            entry.is_watched
        });
    }

    fn entry(&mut self, id: LinkId) -> Option<&mut Entry> {
        self.entries.get_mut(id.slot())?.as_mut().filter(|entry| entry.id == id)
    }

    /// A link, if it is still there.
    #[cfg(test)]
    pub fn link(&mut self, id: LinkId) -> Option<&mut Link> {
        self.entry(id).map(|entry| &mut entry.link)
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

    /// The latencies of the links to other nodes that are up.
    pub fn latencies(&self) -> Vec<LinkLatency> {
        let latency = |(peer, id): (&NodeId, &LinkId)| {
            let entry = self.entries.get(id.slot())?.as_ref().filter(|entry| entry.id == *id)?;
            Some(LinkLatency { peer: *peer, latency_ns: entry.link.latency_ns()? })
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

    /// The backlog of a link, which is flushed at the end of the iteration.
    pub fn output(&mut self, id: LinkId) -> Option<&mut Vec<u8>> {
        self.frames_out += 1;
        let entry = self.entries.get_mut(id.slot())?.as_mut();
        let entry = entry.filter(|entry| entry.id == id && !entry.has_failed)?;
        if !entry.is_to_be_flushed {
            entry.is_to_be_flushed = true;
            self.to_be_flushed.push(id);
        }
        Some(&mut entry.link.output)
    }

    /// Sends a frame that was written elsewhere; does nothing if the link is closed.
    pub fn forward(&mut self, id: LinkId, bytes: &[u8]) {
        if let Some(output) = self.output(id) {
            output.extend_from_slice(bytes);
            self.gathered(bytes.len());
        }
    }

    /// Sends a message; does nothing if the link is closed.
    pub fn send<'m, M: Listed + Value<'m>>(&mut self, id: LinkId, message: &M) {
        if let Some(output) = self.output(id) {
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

    /// So many bytes were added to backlogs: writes them if they are many.
    fn gathered(&mut self, bytes: usize) {
        self.gathered_bytes += bytes;
        if self.gathered_bytes > GATHERED_BYTES_MAX {
            let mut failed = std::mem::take(&mut self.failed_early);
            self.flush(&mut failed);
            self.failed_early = failed;
        }
    }

    /// Writes the backlogs of this iteration; appends the links that failed.
    pub fn flush(&mut self, failed: &mut Vec<(LinkId, PeerError)>) {
        failed.append(&mut self.failed_early);
        self.gathered_bytes = 0;
        let mut ids = std::mem::take(&mut self.to_be_flushed);
        for id in ids.drain(..) {
            if let Err(error) = self.flush_one(id) {
                failed.push((id, error));
            }
        }
        self.to_be_flushed = ids;
        let most = self.limits.foreign_bytes_max;
        while let Some(owner) = self.over_quota.pop() {
            while self.accepted.exceeds_bytes(owner, most) {
                let own = self.accepted.of(owner).bytes;
                let Some(id) = self.fail_largest(|it| it == owner) else { break };
                failed.push((id, PeerError::QuotaFull { what: QUOTA_BYTES, owner, own }));
            }
        }
        while self.accepted.all.bytes > most {
            let Some(id) = self.fail_largest(|_| true) else { return };
            failed.push((id, PeerError::TooManyForeignBytes(most)));
        }
    }

    /// Whether the backlog of a link whose peer is no node is to be written at once, because it is
    /// long: a read of small questions may have long answers.
    #[inline]
    pub fn has_long_answers(&mut self, id: LinkId) -> bool {
        let is_long = |entry: &Entry| entry.link.output.len() > ANSWERS_BYTES_MAX;
        self.entry(id).is_some_and(|entry| is_long(entry) && !entry.is_node())
    }

    /// Counts what a link holds, unless its peer is a node, and frees what it does not need now.
    pub fn count_held(&mut self, id: LinkId) {
        let Links { entries, accepted, over_quota, limits, .. } = self;
        let entry = entries.get_mut(id.slot()).and_then(Option::as_mut);
        let Some(entry) = entry.filter(|entry| entry.id == id && !entry.has_failed) else { return };
        let held_bytes = if entry.is_node() { 0 } else { entry.link.shrink() };
        accepted.count_bytes(entry.owner, entry.held_bytes, held_bytes);
        if held_bytes > entry.held_bytes
            && accepted.exceeds_bytes(entry.owner, limits.foreign_bytes_max)
        {
            over_quota.push(entry.owner);
        }
        entry.held_bytes = held_bytes;
    }

    /// Gives up the link that holds the most of those with such an owner whose peers are no nodes;
    /// which one.
    fn fail_largest(&mut self, is_it: impl Fn(Owner) -> bool) -> Option<LinkId> {
        let entries = self.entries.iter_mut().flatten().filter(|entry| is_it(entry.owner));
        let largest = entries.max_by_key(|entry| entry.held_bytes)?;
        if largest.held_bytes == 0 {
            return None;
        }
        self.accepted.count_bytes(largest.owner, std::mem::take(&mut largest.held_bytes), 0);
        largest.has_failed = true;
        largest.link.output = vec![];
        Some(largest.id)
    }

    /// Writes the backlog of a link.
    pub fn flush_one(&mut self, id: LinkId) -> Result<(), PeerError> {
        let Some(entry) = self.entries.get_mut(id.slot()).and_then(Option::as_mut) else {
            return Ok(());
        };
        if entry.id != id {
            return Ok(());
        }
        entry.is_to_be_flushed = false;
        if entry.has_failed {
            return Ok(());
        }
        let flushed = entry.link.flush();
        entry.has_failed = flushed.is_err();
        let wants_write = !flushed?;
        if wants_write {
            let written_total = entry.link.written_total();
            let known = entry.stall.filter(|stall| stall.written_total == written_total);
            let new = Stall { since_ns: self.now_ns, written_total };
            entry.stall = Some(known.unwrap_or(new));
        }
        if wants_write != entry.wants_write {
            entry.wants_write = wants_write;
            entry.stall = entry.stall.filter(|_| wants_write);
            self.poller.want_write(&entry.link, id.0, wants_write)?;
            self.watch_if_needed(id);
        }
        self.count_held(id);
        Ok(())
    }

    /// Sends a peer the reason for which its link is about to be closed, as far as the link takes
    /// it at once.
    pub fn refuse(&mut self, id: LinkId, reason: &PeerError) {
        let Some(entry) = self.entry(id) else { return };
        nm_wire::write(&Close::because(&reason.to_string()), &mut entry.link.output);
        // The link is closed, whether this succeeds or not.
        let _ = entry.link.flush();
    }

    /// Closes a link; who was connected, and whether the handshake was done. It is connected again
    /// if it leads downstream, after a pause.
    pub fn close(&mut self, id: LinkId, pause: Duration) -> Option<(Peer, bool)> {
        let slot = self.entries.get_mut(id.slot())?;
        let entry = slot.take_if(|entry| entry.id == id)?;
        self.poller.remove(&entry.link);
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
            (Kind::Welcome, Peer::Node(node)) if is_new => {
                let nonces = entry.nonces;
                if self.network.is_removed(node) {
                    return Err(PeerError::Removed(node));
                }
                let found = welcome::View::of(frame.shared()).map_err(&undecodable)?.digest();
                check_format(found)?;
                let welcome: Welcome = frame.read().map_err(undecodable)?;
                self.authenticator.check_welcome(nonces.as_ref(), &self.own_hello(), &welcome)?;
                self.check_identity(node, &welcome)?;
                self.establish(id, peer, None)?;
                self.nodes.insert(node, id);
                self.starts.insert(node, welcome.start);
                Ok(Some(Handshake { peer, older: None }))
            }
            (Kind::Hello, Peer::Unknown | Peer::Client) => {
                // The rest of it can be read only if the formats are the same.
                let found = hello::View::of(frame.shared()).map_err(&undecodable)?.digest();
                check_format(found)?;
                let Hello { network, who, to, evidence, .. } = frame.read().map_err(undecodable)?;
                self.check_meant(&who, Meant { network, node: to })?;
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
        let Links { entries, accepted, .. } = self;
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
            accepted.count_link(entry.owner, Peer::Unknown, false);
            accepted.count_link(owner, peer, true);
            accepted.count_bytes(entry.owner, std::mem::take(&mut entry.held_bytes), 0);
            entry.owner = owner;
        }
        (entry.peer, entry.is_established) = (peer, true);
        entry.link.limit_backlog(limits.backlog_bytes_max(peer));
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

    /// Who has the key that a peer has proved to have, if it is that of a session.
    fn key_owner(&self, hello: &Who) -> Option<Owner> {
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

    /// Reads a link once. The space for that is given back by [`Links::end_read`].
    pub fn begin_read(&mut self, id: LinkId) -> Option<(ReceiveBuffer, Result<(), LinkError>)> {
        let Links { entries, spare_input, .. } = self;
        let entry = entries.get_mut(id.slot()).and_then(Option::as_mut);
        let entry = entry.filter(|entry| entry.id == id)?;
        if !entry.is_node() {
            entry.link.borrow_input(spare_input);
        }
        let received = entry.link.receive();
        Some((std::mem::take(&mut entry.link.input), received))
    }

    /// What was read of a link is handled.
    pub fn end_read(&mut self, id: LinkId, input: ReceiveBuffer) {
        let Links { entries, spare_input, .. } = self;
        let entry = entries.get_mut(id.slot()).and_then(Option::as_mut);
        if let Some(entry) = entry.filter(|entry| entry.id == id) {
            entry.link.input = input;
            if !entry.is_node() {
                entry.link.give_back_input(spare_input);
            }
        }
        self.count_held(id);
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

/// The connector's thread: tries to connect to what is requested until it succeeds; ends with the
/// node.
fn connect(requested: &Receiver<ConnectorOrder>, done: &Sender<(NodeId, Stream)>, waker: &Waker) {
    let mut open: Vec<ConnectRequest> = vec![];
    let mut pause = PAUSES[0];
    loop {
        let limit = if open.is_empty() { Duration::from_secs(3600) } else { pause };
        match requested.recv_timeout(limit) {
            Ok(ConnectorOrder::Connect(request)) => {
                open.push(request);
                pause = PAUSES[0];
            }
            Ok(ConnectorOrder::Forget(node)) => open.retain(|request| request.node != node),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let before = open.len();
        open.retain(|ConnectRequest { node, address, at_ns }| {
            if clock::monotonic_ns() < *at_ns {
                return true;
            }
            match Stream::connect(address, CONNECT_LIMIT) {
                Ok(stream) => done.send((*node, stream)).is_err(),
                Err(_) => true,
            }
        });
        if open.len() < before {
            waker.wake();
        }
        pause = (pause * 2).min(PAUSES[1]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Durability;
    use crate::testing::TestRing;
    use std::os::unix::net::UnixStream;

    /// The links of a gateway, and the streams of clients that read nothing.
    fn with_clients(limits: Limits, count: usize) -> (Links, Vec<(LinkId, UnixStream)>) {
        let ring = TestRing::new("1-1-1-1", Durability::None);
        let mut links = Links::simulated(&ring.network, Role::Gateway.node(0), 1).unwrap();
        links.limits = limits;
        let clients = (0..count).map(|_| {
            let (near, far) = UnixStream::pair().unwrap();
            let link = Link::new(Stream::Unix(near)).unwrap();
            let id = links.insert(link, (Peer::Client, Owner::NOBODY), false).unwrap();
            links.accepted.all.clients += 1;
            (id, far)
        });
        let clients = clients.collect();
        (links, clients)
    }

    #[test]
    fn what_is_gathered_in_one_iteration_is_written_before_it_is_much() {
        let limits = Limits { client_backlog_bytes_max: 1 << 20, ..Limits::STANDARD };
        let (mut links, clients) = with_clients(limits, 2);
        let [(silent, _silent_end), (other, _other_end)] = &clients[..] else { panic!() };
        for _ in 0..200 {
            links.forward(*silent, &[7; 1 << 20]);
        }
        let gathered = links.link(*silent).unwrap().output.len();
        assert!(gathered <= GATHERED_BYTES_MAX + (1 << 20), "{gathered}");
        assert!(links.output(*silent).is_none(), "it is about to be closed");
        links.forward(*other, &[7; 100]);
        let mut failed = vec![];
        links.flush(&mut failed);
        assert_eq!(failed.len(), 1, "{failed:?}");
        assert!(matches!(failed[0].1, PeerError::Link(LinkError::BacklogFull { .. })));
        links.close(*silent, Duration::ZERO);
        let idle = links.link(*other).unwrap().output.capacity();
        assert_eq!((links.accepted.all.bytes, links.accepted.all.clients), (idle, 1));
    }

    #[test]
    fn beyond_the_bytes_of_all_the_link_that_holds_the_most_is_given_up() {
        let limits = Limits { foreign_bytes_max: 32 << 20, ..Limits::STANDARD };
        let (mut links, clients) = with_clients(limits, 9);
        let mut failed = vec![];
        for round in 1..=3 {
            for (number, (id, _end)) in clients.iter().enumerate() {
                links.forward(*id, &vec![7; number << 21]);
            }
            links.flush(&mut failed);
            assert!(links.accepted.all.bytes <= 32 << 20, "{round}: {}", links.accepted.all.bytes);
        }
        let given_up: Vec<LinkId> = failed.iter().map(|(id, _)| *id).collect();
        assert!(!given_up.is_empty() && given_up.len() < 7, "{failed:?}");
        assert!(failed.iter().all(|(_, why)| matches!(why, PeerError::TooManyForeignBytes(_))));
        for (id, _end) in &clients {
            assert_eq!(links.output(*id).is_none(), given_up.contains(id));
            links.close(*id, Duration::ZERO);
        }
        assert!(
            clients[..2].iter().all(|(id, _)| !given_up.contains(id)),
            "those with little stay"
        );
        assert_eq!(links.accepted.all.bytes, 0);
    }

    #[test]
    fn the_space_of_a_burst_is_freed() {
        let (mut links, mut clients) = with_clients(Limits::STANDARD, 1);
        let (id, end) = &mut clients[0];
        links.forward(*id, &vec![7; 24 << 20]);
        let mut failed = vec![];
        links.flush(&mut failed);
        assert!(links.accepted.all.bytes > 1 << 20);
        end.set_nonblocking(true).unwrap();
        while links.accepted.all.bytes > 0 {
            let _ = std::io::Read::read(end, &mut [0; 1 << 16]);
            links.flush_one(*id).unwrap();
        }
        assert!(failed.is_empty());
        assert_eq!(links.link(*id).unwrap().output.capacity(), 0);
    }

    /// What a link has received is read, and all frames of it are taken.
    fn read(links: &mut Links, id: LinkId) {
        let (mut input, received) = links.begin_read(id).unwrap();
        received.unwrap();
        while let Some(_frame) = input.next_frame().unwrap() {}
        links.end_read(id, input);
    }

    /// Before, each link kept 256 KiB, and they counted for nothing.
    #[test]
    fn idle_links_hold_no_space_and_parts_of_frames_count_as_allocated() {
        let (mut links, mut clients) = with_clients(Limits::STANDARD, 40);
        let (mut frame, shape) = (vec![], nm_wire::Shape { is_stamped: false, size_bytes: 9_000 });
        nm_wire::write_shaped(&Close::because("x"), shape, &mut frame);
        for (id, end) in &mut clients {
            std::io::Write::write_all(end, &frame).unwrap();
            read(&mut links, *id);
            assert_eq!(links.link(*id).unwrap().input.allocated_bytes(), 0);
        }
        assert_eq!(links.accepted.all.bytes, 0);
        let (id, end) = &mut clients[0];
        std::io::Write::write_all(end, &frame[..8_000]).unwrap();
        read(&mut links, *id);
        assert_eq!(links.accepted.all.bytes, 8_000);
        std::io::Write::write_all(end, &frame[8_000..]).unwrap();
        read(&mut links, *id);
        assert_eq!(links.accepted.all.bytes, 0);
        assert!(links.spare_input.len() <= 512 << 10, "{}", links.spare_input.len());
    }
}
