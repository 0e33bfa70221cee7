//! The links of a node by peer: made, greeted, kept up for ever, written once a turn.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use nm_sys::poll::Waker;

use crate::control::admin;
use crate::link::{Address, Link, LinkError, LinkPoller, ReceivedFrame, Stream};
use crate::network::{Network, Role};
use crate::wire::{self, FrameKind, Header};

/// How long an attempt to connect may take.
const CONNECT: Duration = Duration::from_secs(1);

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

    /// What the poller tells.
    pub fn of_token(token: u64) -> LinkId {
        LinkId(token)
    }
}

/// Links that a node can have at once.
const LINKS_MAX: usize = 1 << 16;

/// Who is at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// It has not said.
    Unknown,
    /// A client.
    Client,
    /// One who only looks.
    Observer,
    /// A node.
    Node(Role, usize),
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Peer::Unknown => f.write_str("somebody"),
            Peer::Client => f.write_str("a client"),
            Peer::Observer => f.write_str("an observer"),
            Peer::Node(role, index) => write!(f, "{role} {index}"),
        }
    }
}

#[derive(Debug)]
struct Entry {
    id: LinkId,
    link: Link,
    peer: Peer,
    is_dialed: bool,
    is_dirty: bool,
    waits_to_write: bool,
}

/// The links of a node.
#[derive(Debug)]
pub struct Links {
    /// What wakes the node.
    pub poller: LinkPoller,
    /// When what is at hand was read, ns on the machine's clock.
    pub now_ns: u64,
    /// Frames written to links so far.
    pub frames_out: u64,
    /// Sentences to be said at the end of the turn.
    pub troubles: Vec<String>,
    network: Network,
    own: (Role, usize),
    start: u64,
    entries: Vec<Option<Entry>>,
    generation: u64,
    dirty: Vec<LinkId>,
    nodes: BTreeMap<(Role, usize), LinkId>,
    /// Number of the last start of each node that was ever linked.
    starts: BTreeMap<(Role, usize), u64>,
    /// Nodes that it is linked with when all is well.
    peers_count: usize,
    wanted: Sender<(Role, usize, Address)>,
    dialed: Receiver<(Role, usize, Stream)>,
    dialer: Waker,
}

impl Links {
    /// A node's links, none of which is up; those downstream are being made from now on.
    pub fn new(network: &Network, role: Role, index: usize, start: u64) -> io::Result<Links> {
        let (wanted, wishes) = mpsc::channel();
        let (made, dialed) = mpsc::channel();
        let dialer = Waker::new()?;
        let waker = dialer.clone();
        std::thread::Builder::new()
            .name("dialer".to_string())
            .spawn(move || dial(&wishes, &made, &waker))?;
        let links = Links {
            poller: LinkPoller::new()?,
            now_ns: 0,
            frames_out: 0,
            troubles: vec![],
            network: network.clone(),
            own: (role, index),
            start,
            entries: vec![],
            generation: 0,
            dirty: vec![],
            nodes: BTreeMap::new(),
            starts: BTreeMap::new(),
            peers_count: network.downstream(role, index).len()
                + network.upstream_count(role, index),
            wanted,
            dialed,
            dialer,
        };
        for (role, index) in network.downstream(role, index) {
            links.want(role, index);
        }
        Ok(links)
    }

    /// What wakes the node when a link was made.
    pub fn dialer(&self) -> &Waker {
        &self.dialer
    }

    fn want(&self, role: Role, index: usize) {
        let address = self.network.nodes(role)[index].address.clone();
        // The thread lives as long as this does.
        let _ = self.wanted.send((role, index, address));
    }

    /// Takes the links that were made since, and says hello on them.
    pub fn take_dialed(&mut self) -> io::Result<()> {
        self.dialer.drain();
        while let Ok((role, index, stream)) = self.dialed.try_recv() {
            let made =
                Link::new(stream).and_then(|link| self.insert(link, Peer::Node(role, index), true));
            let Ok(id) = made else {
                self.want(role, index);
                continue;
            };
            let header = Header { client_seq: self.start, ..Header::new(FrameKind::Hello) };
            let name = format!("{} {}", self.own.0, self.own.1);
            self.send(id, &header, name.as_bytes(), 0);
        }
        Ok(())
    }

    /// Takes a connection that came in.
    pub fn take_accepted(&mut self, stream: Stream) -> io::Result<LinkId> {
        self.insert(Link::new(stream)?, Peer::Unknown, false)
    }

    fn insert(&mut self, link: Link, peer: Peer, is_dialed: bool) -> io::Result<LinkId> {
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
        let (is_dirty, waits_to_write) = (false, false);
        self.entries[slot] = Some(Entry { id, link, peer, is_dialed, is_dirty, waits_to_write });
        Ok(id)
    }

    fn entry(&mut self, id: LinkId) -> Option<&mut Entry> {
        self.entries.get_mut(id.slot())?.as_mut().filter(|entry| entry.id == id)
    }

    /// A link, if it is still there.
    pub fn link(&mut self, id: LinkId) -> Option<&mut Link> {
        self.entry(id).map(|entry| &mut entry.link)
    }

    /// Who is at the other end of a link.
    pub fn peer(&mut self, id: LinkId) -> Peer {
        self.entry(id).map_or(Peer::Unknown, |entry| entry.peer)
    }

    /// The link to a node, if it is up.
    pub fn to(&self, role: Role, index: usize) -> Option<LinkId> {
        self.nodes.get(&(role, index)).copied()
    }

    /// The links to the nodes of a class that are up.
    pub fn all_to(&self, role: Role) -> Vec<LinkId> {
        let nodes = (role, 0)..=(role, usize::MAX);
        self.nodes.range(nodes).map(|(_, id)| *id).collect()
    }

    /// The nodes that are linked and the numbers of their starts.
    pub fn seen(&self) -> impl Iterator<Item = ((Role, u16), u64)> {
        let start = |node: &(Role, usize)| self.starts.get(node).copied();
        let seen = self.nodes.keys().filter_map(move |node| Some((*node, start(node)?)));
        seen.map(|((role, index), start)| ((role, index as u16), start))
    }

    /// The number of the start of a node, if it is linked.
    pub fn start_of(&self, role: Role, index: usize) -> Option<u64> {
        self.to(role, index)?;
        self.starts.get(&(role, index)).copied()
    }

    /// This node, and the number of its start.
    pub fn own(&self) -> ((Role, u16), u64) {
        ((self.own.0, self.own.1 as u16), self.start)
    }

    /// Whether all links to other nodes are up.
    pub fn all_up(&self) -> bool {
        self.nodes.len() == self.peers_count
    }

    /// Where to write frames for a link, which goes out at the end of the turn.
    pub fn output(&mut self, id: LinkId) -> Option<&mut Vec<u8>> {
        self.frames_out += 1;
        let entry = self.entries.get_mut(id.slot())?.as_mut().filter(|entry| entry.id == id)?;
        if !entry.is_dirty {
            entry.is_dirty = true;
            self.dirty.push(id);
        }
        Some(&mut entry.link.output)
    }

    /// Sends a frame that was written elsewhere; nothing if the link is gone.
    pub fn forward(&mut self, id: LinkId, bytes: &[u8]) {
        if let Some(output) = self.output(id) {
            output.extend_from_slice(bytes);
        }
    }

    /// Sends a frame; nothing if the link is gone.
    pub fn send(&mut self, id: LinkId, header: &Header, body: &[u8], size_bytes: usize) {
        if let Some(output) = self.output(id) {
            wire::write(header, body, size_bytes, output);
        }
    }

    /// Writes what was given to links in this turn; those that broke.
    pub fn flush(&mut self, broken: &mut Vec<(LinkId, LinkError)>) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for id in dirty.drain(..) {
            if let Err(why) = self.flush_one(id) {
                broken.push((id, why));
            }
        }
        self.dirty = dirty;
    }

    /// Writes what waits for a link.
    pub fn flush_one(&mut self, id: LinkId) -> Result<(), LinkError> {
        let Some(entry) = self.entries.get_mut(id.slot()).and_then(Option::as_mut) else {
            return Ok(());
        };
        if entry.id != id {
            return Ok(());
        }
        entry.is_dirty = false;
        let waits = !entry.link.flush()?;
        if waits != entry.waits_to_write {
            entry.waits_to_write = waits;
            let changed = self.poller.change(&entry.link, id.0, waits);
            changed.map_err(|error| LinkError(error.to_string()))?;
        }
        Ok(())
    }

    /// Ends a link; who was there, and whether it had been up. It is made anew if it leads
    /// downstream.
    pub fn close(&mut self, id: LinkId) -> Option<(Peer, bool)> {
        let slot = self.entries.get_mut(id.slot())?;
        let entry = slot.take_if(|entry| entry.id == id)?;
        self.poller.remove(&entry.link);
        let mut was_up = entry.peer == Peer::Client;
        if let Peer::Node(role, index) = entry.peer {
            if self.nodes.get(&(role, index)) == Some(&id) {
                self.nodes.remove(&(role, index));
                was_up = true;
            }
            if entry.is_dialed {
                self.want(role, index);
            }
        }
        Some((entry.peer, was_up))
    }

    /// Handles a hello or its answer: who is up by it. An older link of the same node is to be
    /// ended by the caller.
    pub fn greet(&mut self, id: LinkId, frame: &ReceivedFrame<'_>) -> Result<Greeted, LinkError> {
        let peer = self.peer(id);
        let own = self.own;
        match (frame.header.kind, peer) {
            (FrameKind::Welcome, Peer::Node(role, index)) => {
                self.nodes.insert((role, index), id);
                self.starts.insert((role, index), frame.header.client_seq);
                Ok(Greeted { peer, older: None })
            }
            (FrameKind::Hello, Peer::Unknown | Peer::Client) => {
                let said = said(frame.body(), &self.network);
                let peer = said.filter(|peer| match peer {
                    Peer::Client => own.0 == Role::Gateway,
                    Peer::Node(role, index) => {
                        self.network.downstream(*role, *index).contains(&own)
                    }
                    Peer::Observer => true,
                    Peer::Unknown => false,
                });
                let Some(peer) = peer else {
                    return Err(LinkError(format!(
                        "it is not to be linked to {} {}",
                        own.0, own.1
                    )));
                };
                if let Some(entry) = self.entry(id) {
                    entry.peer = peer;
                }
                Ok(self.welcome(id, peer, frame.header.client_seq))
            }
            _ => Err(LinkError("it greets out of turn".to_string())),
        }
    }

    fn welcome(&mut self, id: LinkId, peer: Peer, start: u64) -> Greeted {
        if peer == Peer::Observer {
            self.send(id, &Header::new(FrameKind::Welcome), &[], 0);
        }
        let Peer::Node(role, index) = peer else {
            return Greeted { peer, older: None };
        };
        self.starts.insert((role, index), start);
        let header = Header { client_seq: self.start, ..Header::new(FrameKind::Welcome) };
        self.send(id, &header, &[], 0);
        let older = self.nodes.insert((role, index), id);
        Greeted { peer, older }
    }
}

/// What a greeting led to.
#[derive(Debug, Clone, Copy)]
pub struct Greeted {
    /// Who is up.
    pub peer: Peer,
    /// The link that it had before and has forgotten.
    pub older: Option<LinkId>,
}

/// Whom the body of a hello names.
fn said(body: &[u8], network: &Network) -> Option<Peer> {
    let text = std::str::from_utf8(body).ok()?;
    if text == "client" {
        return Some(Peer::Client);
    }
    if text == admin::OBSERVER {
        return Some(Peer::Observer);
    }
    let (role, index) = text.split_once(' ')?;
    let (role, index) = (role.parse::<Role>().ok()?, index.parse::<usize>().ok()?);
    (index < network.nodes(role).len()).then_some(Peer::Node(role, index))
}

/// The dialer's thread: connects to what is wanted until it succeeds; ends with the node.
fn dial(
    wishes: &Receiver<(Role, usize, Address)>,
    made: &Sender<(Role, usize, Stream)>,
    waker: &Waker,
) {
    let mut wanted: Vec<(Role, usize, Address)> = vec![];
    let mut pause = PAUSES[0];
    loop {
        let limit = if wanted.is_empty() { Duration::from_secs(3600) } else { pause };
        match wishes.recv_timeout(limit) {
            Ok(wish) => {
                wanted.push(wish);
                pause = PAUSES[0];
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let before = wanted.len();
        wanted.retain(|(role, index, address)| match Stream::connect(address, CONNECT) {
            Ok(stream) => made.send((*role, *index, stream)).is_err(),
            Err(_) => true,
        });
        if wanted.len() < before {
            waker.wake();
        }
        pause = (pause * 2).min(PAUSES[1]);
    }
}
