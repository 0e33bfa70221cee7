//! Links of a node in a simulation: what is written to them is taken from their backlogs, and
//! nothing is ever read from or written to a stream.

use std::io;
use std::os::unix::net::UnixStream;

use super::*;

impl LinkId {
    /// One that no link has.
    pub fn none() -> LinkId {
        LinkId(u64::MAX)
    }
}

impl Links {
    /// The links of a simulated node, none of which is up. It connects to no node by itself.
    pub fn simulated(network: &Network, own: NodeId, start: u64) -> io::Result<Links> {
        let (requests, _) = mpsc::channel();
        let (_, connected) = mpsc::channel();
        let parts = (requests, connected, Waker::new()?);
        Links::of_parts(network, own, start, (Limits::STANDARD, None), parts)
    }

    /// A link to a node downstream; hello is in its backlog.
    pub fn begin_link(&mut self, node: NodeId) -> io::Result<LinkId> {
        let (stream, _) = UnixStream::pair()?;
        let id =
            self.insert(Link::new(Stream::Unix(stream))?, (Peer::Node(node), Owner::NOBODY), true)?;
        let (hello, meant) = (self.own_hello(), Meant::of(&self.network, node));
        if let Some(output) = self.output(id) {
            say_hello_to(meant, hello, None, output);
        }
        Ok(id)
    }

    /// A link to a node downstream that has answered, and whose backlog is empty.
    pub fn link_to(&mut self, node: NodeId) -> io::Result<LinkId> {
        let id = self.begin_link(node)?;
        self.establish(id, Peer::Node(node), None).map_err(io::Error::other)?;
        self.record_start(id, Peer::Node(node), 1);
        self.take_output();
        Ok(id)
    }

    /// A link that somebody has begun.
    pub fn accept_link(&mut self) -> io::Result<LinkId> {
        let (stream, _) = UnixStream::pair()?;
        let owner = Owner::NOBODY;
        let id = self.insert(Link::new(Stream::Unix(stream))?, (Peer::Unknown, owner), false)?;
        self.accepted.count_link(owner, Peer::Unknown, true);
        Ok(id)
    }

    /// The backlogs of this iteration, in the order of the links.
    pub fn take_output(&mut self) -> Vec<(LinkId, Vec<u8>)> {
        self.gathered_bytes = 0;
        let mut ids = std::mem::take(&mut self.to_be_flushed);
        ids.sort_unstable_by_key(|id| id.0);
        let mut taken = vec![];
        for id in ids {
            if let Some(entry) = self.entry(id) {
                entry.is_to_be_flushed = false;
                taken.push((id, std::mem::take(&mut entry.link.output)));
            }
        }
        taken.retain(|(_, bytes)| !bytes.is_empty());
        taken
    }
}
