//! The links between nodes, clients and the operator: bytes that arrive in order, after a while.

use std::collections::VecDeque;
use std::fmt;

use nm_book::testing::Random;

use crate::network::NodeId;
use crate::node::runtime::links::LinkId;

/// Who is at an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// A node, and its number of the link.
    Node(NodeId, LinkId),
    /// A client.
    Client(usize),
    /// The operator.
    Operator,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Node(node, _) => node.fmt(f),
            End::Client(at) => write!(f, "client {at}"),
            End::Operator => f.write_str("operator"),
        }
    }
}

/// What is on its way.
#[derive(Debug)]
pub enum Chunk {
    /// Complete frames.
    Frames(Vec<u8>),
    /// The link has ended.
    Closed,
}

/// One direction.
#[derive(Debug, Default)]
struct Direction {
    chunks: VecDeque<Chunk>,
    last_ns: u64,
    /// Whether its receiver has closed it.
    is_closed: bool,
}

/// A link.
#[derive(Debug)]
pub struct Wire {
    /// Who made it, and who accepted it.
    pub ends: [End; 2],
    /// How long frames take at least, ns.
    latency_ns: u64,
    /// To each end.
    to: [Direction; 2],
}

impl Wire {
    /// A link whose speed is drawn.
    pub fn new(ends: [End; 2], random: &mut Random) -> Wire {
        let latency_ns = match random.below(100) {
            0..85 => random.between(10_000, 60_000),
            85..95 => random.between(60_000, 3_000_000),
            _ => random.between(3_000_000, 150_000_000),
        };
        Wire { ends, latency_ns, to: [Direction::default(), Direction::default()] }
    }

    /// Sends frames to an end, in one piece or in several; when each arrives.
    pub fn send(&mut self, end: usize, bytes: &[u8], now_ns: u64, random: &mut Random) -> Vec<u64> {
        let mut rest = bytes;
        let mut arrivals = vec![];
        while !rest.is_empty() {
            let mut length = rest.len();
            if random.chance(150) {
                let frame = nm_wire::read(rest).expect("a frame that a node sends");
                length = frame.expect("a complete frame").bytes.len();
            }
            let chunk = Chunk::Frames(rest[..length].to_vec());
            arrivals.extend(self.push(end, chunk, now_ns, random));
            rest = &rest[length..];
        }
        arrivals
    }

    fn push(&mut self, end: usize, chunk: Chunk, now_ns: u64, random: &mut Random) -> Option<u64> {
        let to = &mut self.to[end];
        if to.is_closed {
            return None;
        }
        let delay_ns = match random.below(1000) {
            0 => random.between(20_000_000, 300_000_000),
            1..20 => random.between(100_000, 3_000_000),
            _ => random.below(30_000),
        };
        to.last_ns = to.last_ns.max(now_ns + self.latency_ns + delay_ns);
        to.chunks.push_back(chunk);
        Some(to.last_ns)
    }

    /// What arrives next at an end, unless it was lost.
    pub fn take(&mut self, end: usize) -> Option<Chunk> {
        self.to[end].chunks.pop_front()
    }

    /// An end takes no more, because its node has died or has seen the end of the link.
    pub fn close(&mut self, end: usize) {
        self.to[end].is_closed = true;
        self.to[end].chunks.clear();
    }

    /// What was sent to an end is lost, but for the end of the link: a client that connects again
    /// does so when the gateway will take nothing of the link before, whose hello would end the
    /// next one.
    pub fn lose(&mut self, end: usize) {
        self.to[end].chunks.retain(|chunk| matches!(chunk, Chunk::Closed));
    }

    /// An end closes the link: the other one, this, sees that after all that was sent to it.
    pub fn end(&mut self, end: usize, now_ns: u64, random: &mut Random) -> Option<u64> {
        let ends_already = matches!(self.to[end].chunks.back(), Some(Chunk::Closed));
        if ends_already { None } else { self.push(end, Chunk::Closed, now_ns, random) }
    }

    /// The link breaks: some of what is on its way to an end is lost, and the end sees that after
    /// the rest, at this time.
    pub fn cut(&mut self, end: usize, now_ns: u64, random: &mut Random) -> Option<u64> {
        let to = &mut self.to[end];
        let ends_already = matches!(to.chunks.back(), Some(Chunk::Closed));
        if to.is_closed || ends_already {
            return None;
        }
        let kept = random.below(to.chunks.len() as u64 + 1) as usize;
        to.chunks.truncate(kept);
        self.push(end, Chunk::Closed, now_ns, random)
    }
}
