//! Links to the nodes of a network that have replicas: each in a thread of its own, which connects
//! again after each end.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel};
use std::time::Duration;

use nm_exchange::client::{self, ClientError, Meant};
use nm_exchange::control::{Access, AdminRequest, AdminResponse};
use nm_exchange::link::{Address, Link, LinkError};
use nm_exchange::network::{Network, NetworkError, NodeId, Role};
use nm_sys::clock::Deadline;
use nm_wire::{BookImage, BookPosition, BookUpdate, Kind, Who};
use thiserror::Error;

use crate::follow::Source;

/// Longest attempt to connect.
const ATTEMPT: Duration = Duration::from_secs(1);

/// Pause between attempts.
const PAUSE: Duration = Duration::from_millis(100);

/// Longest wait for frames before requests for books are looked for.
const WAIT: Duration = Duration::from_millis(10);

/// How often nodes that were added are looked for.
const MEMBERS: Duration = Duration::from_secs(2);

/// Why a network cannot be followed.
#[derive(Debug, Error)]
pub enum FollowError {
    /// Its file.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// A thread cannot be started.
    #[error("a thread cannot be started: {0}")]
    Thread(#[from] std::io::Error),
}

/// What nodes send.
#[derive(Debug)]
pub enum FromNode {
    /// A book has executed something.
    Update(BookUpdate),
    /// Where books stand.
    Positions(Vec<BookPosition>),
    /// A book.
    Image(BookPosition, Vec<u8>),
    /// A line for the operator.
    Note(String),
}

/// Where a network is, and how its nodes are convinced.
#[derive(Debug, Clone)]
pub struct NetworkFile {
    /// Its file.
    pub path: PathBuf,
    /// File of keys, if it is not the one that the network's file names.
    pub credentials: Option<PathBuf>,
}

impl NetworkFile {
    /// The network, as the file has it now.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read(&self) -> Result<Network, NetworkError> {
        let mut network = Network::read(&self.path)?;
        if let Some(file) = &self.credentials {
            network.secret = Some(file.clone());
        }
        Ok(network)
    }

    /// The nodes that may have replicas, those that were added included as far as they are known.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn nodes(&self) -> Result<Vec<(NodeId, Address)>, NetworkError> {
        let network = self.read()?;
        let control = match network.has_control() {
            true => Access::new(&network).ok().and_then(|access| access.control(ATTEMPT).ok()),
            false => None,
        };
        let network = match &control {
            Some(control) => control.state.routes().map.extended(&network),
            None => std::borrow::Cow::Borrowed(&network),
        };
        let all = network.all().filter(|(node, _)| {
            matches!(node.class, Role::Mediator | Role::Processor) && !network.is_removed(*node)
        });
        Ok(all.map(|(node, at)| (node, at.address.clone())).collect())
    }

    /// A link to a node, as an operator: books show whose orders they have.
    ///
    /// # Errors
    /// If the node does not answer, or refuses.
    #[expect(clippy::disallowed_methods, reason = "a link has a thread")]
    pub fn connect(&self, node: NodeId, address: &Address) -> Result<Link, ClientError> {
        let network = self.read().map_err(|error| ClientError::Refused(error.to_string()))?;
        let credentials =
            network.credentials().map_err(|error| ClientError::Refused(error.to_string()))?;
        let to = (address, Meant::of(&network, node));
        let deadline = Deadline::after(ATTEMPT);
        let mut link = client::connect_to(to, &[Who::Operator], credentials.as_ref(), ATTEMPT)?;
        if credentials.is_none() {
            client::receive(&mut link, Kind::Welcome, deadline)?;
        }
        Ok(link)
    }
}

/// What a node sends, with its number.
pub type Input = (Source, FromNode);

/// All links.
#[derive(Debug)]
pub struct NodeLinks {
    file: NetworkFile,
    asks: BTreeMap<NodeId, (Source, Sender<u32>)>,
    to: SyncSender<Input>,
    stop: Arc<AtomicBool>,
    added: Receiver<Vec<(NodeId, Address)>>,
}

impl NodeLinks {
    /// Follows all nodes of a network until `stop`.
    ///
    /// # Errors
    /// If the network's file cannot be read.
    #[expect(clippy::disallowed_methods, reason = "a thread looks for members")]
    pub fn start(
        file: NetworkFile,
        to: SyncSender<Input>,
        stop: Arc<AtomicBool>,
    ) -> Result<NodeLinks, FollowError> {
        let first = file.nodes()?;
        let (found, added) = channel();
        let (own, is_over) = (file.clone(), Arc::clone(&stop));
        let look = move || {
            while !is_over.load(Ordering::Relaxed) {
                std::thread::sleep(MEMBERS);
                if own.nodes().is_ok_and(|nodes| found.send(nodes).is_err()) {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("members".to_string()).spawn(look)?;
        let mut links = NodeLinks { file, asks: BTreeMap::new(), to, stop, added };
        links.follow_all(first)?;
        Ok(links)
    }

    fn follow_all(&mut self, nodes: Vec<(NodeId, Address)>) -> Result<(), FollowError> {
        for (node, address) in nodes {
            if self.asks.contains_key(&node) {
                continue;
            }
            let (ask, asked) = channel();
            let source = self.asks.len();
            let follower = Follower {
                file: self.file.clone(),
                node: (node, address),
                source,
                asked,
                to: self.to.clone(),
                stop: Arc::clone(&self.stop),
            };
            std::thread::Builder::new().name(node.to_string()).spawn(move || follower.run())?;
            self.asks.insert(node, (source, ask));
        }
        Ok(())
    }

    /// Follows nodes that were added.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn update(&mut self) -> Result<(), FollowError> {
        while let Ok(nodes) = self.added.try_recv() {
            self.follow_all(nodes)?;
        }
        Ok(())
    }

    /// Asks a node for the book of an instrument.
    pub fn ask(&self, source: Source, instrument: u32) {
        let mut all = self.asks.values();
        if let Some((_, ask)) = all.find(|(known, _)| *known == source) {
            // Its thread ends with the process.
            let _ = ask.send(instrument);
        }
    }
}

/// The thread of one link. Only it waits for its node.
struct Follower {
    file: NetworkFile,
    node: (NodeId, Address),
    source: Source,
    asked: Receiver<u32>,
    to: SyncSender<Input>,
    stop: Arc<AtomicBool>,
}

#[expect(clippy::disallowed_methods, reason = "in a thread of its own")]
impl Follower {
    fn run(self) {
        let mut last = String::new();
        while !self.stop.load(Ordering::Relaxed) {
            let ended = self.follow();
            let (node, address) = &self.node;
            let why = match ended {
                Ok(()) => return,
                Err(error) => format!("{node} at {address}: {error}"),
            };
            if why != last && self.send(FromNode::Note(why.clone())).is_err() {
                return;
            }
            last = why;
            std::thread::sleep(PAUSE);
        }
    }

    /// `Err` if nobody reads any more.
    fn send(&self, input: FromNode) -> Result<(), ()> {
        self.to.send((self.source, input)).map_err(drop)
    }

    /// Follows the node until the link ends, or `Ok` if nobody reads any more.
    fn follow(&self) -> Result<(), ClientError> {
        let mut link = self.file.connect(self.node.0, &self.node.1)?;
        nm_wire::write(&AdminRequest::Follow, &mut link.output);
        let mut images = Images::default();
        while !self.stop.load(Ordering::Relaxed) {
            while let Ok(instrument) = self.asked.try_recv() {
                nm_wire::write(&AdminRequest::Image { instrument }, &mut link.output);
            }
            let flushed = link.flush();
            while let Some(frame) = link.input.next_frame().map_err(LinkError::from)? {
                let input = match frame.kind() {
                    Kind::BookUpdate => Some(FromNode::Update(frame.read()?)),
                    Kind::AdminResponse => images.on_response(frame.read()?),
                    Kind::Close => {
                        let close: nm_wire::Close = frame.read()?;
                        return Err(ClientError::Refused(close.printable()));
                    }
                    _ => None,
                };
                if input.is_some_and(|input| self.send(input).is_err()) {
                    return Ok(());
                }
            }
            flushed?;
            if nm_sys::poll::readable(link.as_fd().as_raw_fd(), WAIT)? {
                link.receive()?;
            }
        }
        Ok(())
    }
}

/// Books that come in pieces.
#[derive(Debug, Default)]
pub struct Images {
    bytes: Vec<u8>,
}

impl Images {
    /// What an answer says, once it is complete.
    pub fn on_response(&mut self, response: AdminResponse) -> Option<FromNode> {
        match response {
            AdminResponse::Following { books, .. } => Some(FromNode::Positions(books)),
            AdminResponse::Image { image: BookImage { position, offset, total, bytes } } => {
                if offset != self.bytes.len() as u64 {
                    self.bytes.clear();
                }
                self.bytes.extend_from_slice(&bytes);
                (self.bytes.len() as u64 >= total)
                    .then(|| FromNode::Image(position, std::mem::take(&mut self.bytes)))
            }
            _ => None,
        }
    }
}
