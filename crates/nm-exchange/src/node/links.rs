//! The links of a node by peer: connected, and connected again when they fail; written once in each
//! iteration of the event loop.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use nm_sys::poll::Waker;

use crate::link::{Address, Link, LinkPoller, ReceivedFrame, Stream};
use crate::message::{Hello, Welcome};
use crate::network::{Network, Role};
use crate::wire::{self, FrameKind, Header};

use super::peer::{Peer, PeerError};

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

#[derive(Debug)]
struct Entry {
    id: LinkId,
    link: Link,
    peer: Peer,
    is_outgoing: bool,
    is_to_be_flushed: bool,
    wants_write: bool,
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
    pub warnings: Vec<String>,
    network: Network,
    own: (Role, usize),
    start: u64,
    entries: Vec<Option<Entry>>,
    generation: u64,
    to_be_flushed: Vec<LinkId>,
    nodes: BTreeMap<(Role, usize), LinkId>,
    /// Number of the last start of each node that was ever linked.
    starts: BTreeMap<(Role, usize), u64>,
    /// Nodes that it is linked to when all links are up.
    peers_count: usize,
    requests: Sender<(Role, usize, Address)>,
    connected: Receiver<(Role, usize, Stream)>,
    connector: Waker,
}

impl Links {
    /// A node's links, none of which is up; those downstream are connected from now on.
    pub fn new(network: &Network, role: Role, index: usize, start: u64) -> io::Result<Links> {
        let (requests, requested) = mpsc::channel();
        let (done, connected) = mpsc::channel();
        let connector = Waker::new()?;
        let waker = connector.clone();
        std::thread::Builder::new()
            .name("connector".to_string())
            .spawn(move || connect(&requested, &done, &waker))?;
        let links = Links {
            poller: LinkPoller::new()?,
            now_ns: 0,
            frames_out: 0,
            warnings: vec![],
            network: network.clone(),
            own: (role, index),
            start,
            entries: vec![],
            generation: 0,
            to_be_flushed: vec![],
            nodes: BTreeMap::new(),
            starts: BTreeMap::new(),
            peers_count: network.downstream(role, index).len()
                + network.upstream_count(role, index),
            requests,
            connected,
            connector,
        };
        for (role, index) in network.downstream(role, index) {
            links.request_link(role, index);
        }
        Ok(links)
    }

    /// What wakes the node when a link is connected.
    pub fn connector(&self) -> &Waker {
        &self.connector
    }

    fn request_link(&self, role: Role, index: usize) {
        let address = self.network.nodes(role)[index].address.clone();
        // The thread lives as long as this does.
        let _ = self.requests.send((role, index, address));
    }

    /// Takes the links that were connected since, and sends hello on them.
    pub fn take_connected(&mut self) -> io::Result<()> {
        self.connector.drain();
        while let Ok((role, index, stream)) = self.connected.try_recv() {
            let made =
                Link::new(stream).and_then(|link| self.insert(link, Peer::Node(role, index), true));
            let Ok(id) = made else {
                self.request_link(role, index);
                continue;
            };
            let (role, index) = self.own;
            let hello = Hello::Node { role, index, start: self.start };
            if let Some(output) = self.output(id) {
                hello.write(output);
            }
        }
        Ok(())
    }

    /// Takes an accepted connection.
    pub fn take_accepted(&mut self, stream: Stream) -> io::Result<LinkId> {
        self.insert(Link::new(stream)?, Peer::Unknown, false)
    }

    fn insert(&mut self, link: Link, peer: Peer, is_outgoing: bool) -> io::Result<LinkId> {
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
        let (is_to_be_flushed, wants_write) = (false, false);
        self.entries[slot] =
            Some(Entry { id, link, peer, is_outgoing, is_to_be_flushed, wants_write });
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

    /// The nodes that are connected and the numbers of their starts.
    pub fn connected_nodes(&self) -> impl Iterator<Item = ((Role, u16), u64)> {
        let start = |node: &(Role, usize)| self.starts.get(node).copied();
        let connected = self.nodes.keys().filter_map(move |node| Some((*node, start(node)?)));
        connected.map(|((role, index), start)| ((role, index as u16), start))
    }

    /// The number of the start of a node, if it is connected.
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

    /// The backlog of a link, which is flushed at the end of the iteration.
    pub fn output(&mut self, id: LinkId) -> Option<&mut Vec<u8>> {
        self.frames_out += 1;
        let entry = self.entries.get_mut(id.slot())?.as_mut().filter(|entry| entry.id == id)?;
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
        }
    }

    /// Sends a frame; does nothing if the link is closed.
    pub fn send(&mut self, id: LinkId, header: &Header, body: &[u8], size_bytes: usize) {
        if let Some(output) = self.output(id) {
            wire::write(header, body, size_bytes, output);
        }
    }

    /// Writes the backlogs of this iteration; appends the links that failed.
    pub fn flush(&mut self, failed: &mut Vec<(LinkId, PeerError)>) {
        let mut ids = std::mem::take(&mut self.to_be_flushed);
        for id in ids.drain(..) {
            if let Err(error) = self.flush_one(id) {
                failed.push((id, error));
            }
        }
        self.to_be_flushed = ids;
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
        let wants_write = !entry.link.flush()?;
        if wants_write != entry.wants_write {
            entry.wants_write = wants_write;
            self.poller.want_write(&entry.link, id.0, wants_write)?;
        }
        Ok(())
    }

    /// Closes a link; who was connected, and whether the handshake was done. It is connected again
    /// if it leads downstream.
    pub fn close(&mut self, id: LinkId) -> Option<(Peer, bool)> {
        let slot = self.entries.get_mut(id.slot())?;
        let entry = slot.take_if(|entry| entry.id == id)?;
        self.poller.remove(&entry.link);
        let mut was_connected = entry.peer == Peer::Client;
        if let Peer::Node(role, index) = entry.peer {
            if self.nodes.get(&(role, index)) == Some(&id) {
                self.nodes.remove(&(role, index));
                was_connected = true;
            }
            if entry.is_outgoing {
                self.request_link(role, index);
            }
        }
        Some((entry.peer, was_connected))
    }

    /// Handles a hello or its answer: who is connected. An older link of the same node is to be
    /// closed by the caller.
    pub fn handshake(
        &mut self,
        id: LinkId,
        frame: &ReceivedFrame<'_>,
    ) -> Result<Handshake, PeerError> {
        let peer = self.peer(id);
        let own = self.own;
        match (frame.header.kind, peer) {
            (FrameKind::Welcome, Peer::Node(role, index)) => {
                self.nodes.insert((role, index), id);
                self.starts.insert((role, index), Welcome::decode(&frame.header).start);
                Ok(Handshake { peer, older: None })
            }
            (FrameKind::Hello, Peer::Unknown | Peer::Client) => {
                let hello = Hello::decode(&frame.header, frame.body())
                    .map_err(PeerError::decode(peer, FrameKind::Hello))?;
                let Some((peer, start)) = self.accepted(&hello) else {
                    return Err(PeerError::NotLinked { role: own.0, index: own.1 });
                };
                if let Some(entry) = self.entry(id) {
                    entry.peer = peer;
                }
                Ok(self.welcome(id, peer, start))
            }
            _ => Err(PeerError::RepeatedHandshake),
        }
    }

    /// Who connects, and the number of its start, if this node may be linked to it.
    fn accepted(&self, hello: &Hello) -> Option<(Peer, u64)> {
        match *hello {
            Hello::Client(_) => (self.own.0 == Role::Gateway).then_some((Peer::Client, 0)),
            Hello::Observer => Some((Peer::Observer, 0)),
            Hello::Node { role, index, start } => {
                let is_linked = index < self.network.nodes(role).len()
                    && self.network.downstream(role, index).contains(&self.own);
                is_linked.then_some((Peer::Node(role, index), start))
            }
        }
    }

    fn welcome(&mut self, id: LinkId, peer: Peer, start: u64) -> Handshake {
        if peer == Peer::Observer {
            self.send(id, &Welcome { start: 0 }.header(), &[], 0);
        }
        let Peer::Node(role, index) = peer else {
            return Handshake { peer, older: None };
        };
        self.starts.insert((role, index), start);
        self.send(id, &Welcome { start: self.start }.header(), &[], 0);
        let older = self.nodes.insert((role, index), id);
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
fn connect(
    requested: &Receiver<(Role, usize, Address)>,
    done: &Sender<(Role, usize, Stream)>,
    waker: &Waker,
) {
    let mut open: Vec<(Role, usize, Address)> = vec![];
    let mut pause = PAUSES[0];
    loop {
        let limit = if open.is_empty() { Duration::from_secs(3600) } else { pause };
        match requested.recv_timeout(limit) {
            Ok(request) => {
                open.push(request);
                pause = PAUSES[0];
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let before = open.len();
        open.retain(|(role, index, address)| match Stream::connect(address, CONNECT_LIMIT) {
            Ok(stream) => done.send((*role, *index, stream)).is_err(),
            Err(_) => true,
        });
        if open.len() < before {
            waker.wake();
        }
        pause = (pause * 2).min(PAUSES[1]);
    }
}
