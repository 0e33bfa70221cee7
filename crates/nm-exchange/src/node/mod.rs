//! A node of the ring: one thread that sleeps until something comes, handles all that is there,
//! and writes once to each link.

mod answer;
mod control;
mod gateway;
pub mod groups;
mod links;
mod mediator;
mod processor;
mod replicated;
mod router;

use std::os::fd::BorrowedFd;
use std::time::Duration;

use links::{LinkId, Links, Peer};
use nm_model::agent::{Failure, FailureKind};
use nm_sys::clock;
use nm_sys::poll::{Readiness, Waker};
use serde::Serialize;

use crate::link::{LinkError, Listener, ReceivedFrame};
use crate::network::{Durability, Network, Role};
use crate::wire::FrameKind;

/// What a node tells whoever started it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum NodeEvent {
    /// Its address can be connected to.
    Listening {
        /// Class.
        role: Role,
        /// Index.
        index: usize,
        /// Where.
        address: String,
    },
    /// All of its links are up; once more after each loss.
    Ready {
        /// Class.
        role: Role,
        /// Index.
        index: usize,
    },
    /// A link is gone, or something was refused.
    #[serde(rename = "trouble")]
    Warning {
        /// Class.
        role: Role,
        /// Index.
        index: usize,
        /// What, in one sentence.
        message: String,
    },
    /// It ended as it was asked to.
    #[serde(rename = "end")]
    Stopped(NodeSummary),
}

/// What a node did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeSummary {
    /// Class.
    pub role: Role,
    /// Index.
    pub index: usize,
    /// Requests that it handled; for a processor, replies.
    pub requests: u64,
    /// Requests that it sent again.
    pub resent: u64,
    /// Frames that came.
    pub frames_in: u64,
    /// Frames that left.
    pub frames_out: u64,
    /// Times that it woke up.
    pub turns: u64,
    /// CPU time of the process, µs.
    pub cpu_us: u64,
}

/// What a class of nodes does with what comes.
trait Behaviour {
    /// A peer is up.
    fn up(&mut self, _links: &mut Links, _peer: Peer) {}

    /// A link that was up is gone.
    fn down(&mut self, _links: &mut Links, _peer: Peer, _id: LinkId) {}

    /// A frame came.
    ///
    /// # Errors
    /// If it means nothing from that peer; the link is ended then.
    fn frame(
        &mut self,
        links: &mut Links,
        from: (LinkId, Peer),
        frame: &mut ReceivedFrame<'_>,
    ) -> Result<(), LinkError>;

    /// All that was there is handled; links are written after this.
    fn turn(&mut self, _links: &mut Links) -> Result<(), Failure> {
        Ok(())
    }

    /// What wakes it beside its links.
    fn waker(&self) -> Option<&Waker> {
        None
    }

    /// Its waker woke it.
    ///
    /// # Errors
    /// If it cannot go on.
    fn woken(&mut self, _links: &mut Links) -> Result<(), Failure> {
        Ok(())
    }

    /// When the next turn must be at the latest, ns on the machine's clock.
    fn due_ns(&self) -> Option<u64> {
        None
    }

    /// Whether it could do its work if all links were up.
    fn is_ready(&self) -> bool {
        true
    }

    /// It ends as it was asked to.
    ///
    /// # Errors
    /// If what it writes down is not taken.
    fn end(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    /// Requests handled and sent again.
    fn counts(&self) -> (u64, u64);
}

const STOP: u64 = u64::MAX;
const LISTENER: u64 = u64::MAX - 1;
const DIALER: u64 = u64::MAX - 2;
const WAKER: u64 = u64::MAX - 3;

/// Runs a node until `stop` can be read or has ended.
///
/// # Errors
/// A sentence, if it cannot listen, or cannot go on.
pub fn run(
    network: &Network,
    role: Role,
    index: usize,
    stop: BorrowedFd<'_>,
    say: &mut dyn FnMut(&NodeEvent),
) -> Result<NodeSummary, Failure> {
    let Some(own) = network.nodes(role).get(index) else {
        let count = network.nodes(role).len();
        let message = format!("there is no {role} {index}: the network has {count} {role} nodes");
        return Err(Failure::new(FailureKind::BadRequest, message));
    };
    let system = |error: std::io::Error| Failure::new(FailureKind::System, error.to_string());
    let listener = Listener::bind(&own.address).map_err(|error| {
        let message = format!("{role} {index} cannot listen at {}: {error}", own.address);
        Failure::new(FailureKind::AddressInUse, message)
    })?;
    let start = clock::monotonic_ns() ^ u64::from(std::process::id()) << 40;
    let links = Links::new(network, role, index, start).map_err(system)?;
    match links.poller.add(stop, STOP) {
        // Files and the null device cannot be watched: then nothing stops it but a signal.
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {}
        added => added.map_err(system)?,
    }
    links.poller.add(&listener, LISTENER).map_err(system)?;
    links.poller.add(links.dialer(), DIALER).map_err(system)?;
    let behaviour = behaviour(network, role, index)?;
    if let Some(waker) = behaviour.waker() {
        links.poller.add(waker, WAKER).map_err(system)?;
    }
    say(&NodeEvent::Listening { role, index, address: own.address.to_string() });
    let (frames_in, turns) = (0, 0);
    Turning { own: (role, index), listener, links, behaviour, frames_in, turns, say }.run()
}

/// What a node of this class does in this network.
fn behaviour(network: &Network, role: Role, index: usize) -> Result<Box<dyn Behaviour>, Failure> {
    let is_replicated = network.durability != Durability::None;
    Ok(match role {
        Role::Gateway => Box::new(gateway::Gateway::new(network, index)),
        Role::Router => Box::new(router::Router::new(network)),
        Role::Mediator if is_replicated => Box::new(replicated::Mediator::new(network, index)?),
        Role::Mediator => Box::new(mediator::Mediator::new(network, index)?),
        Role::Processor if is_replicated => Box::new(replicated::Processor::new(network, index)?),
        Role::Processor => Box::new(processor::Processor::new(network)),
    })
}

struct Turning<'a> {
    own: (Role, usize),
    listener: Listener,
    links: Links,
    behaviour: Box<dyn Behaviour>,
    frames_in: u64,
    turns: u64,
    say: &'a mut dyn FnMut(&NodeEvent),
}

impl Turning<'_> {
    fn run(mut self) -> Result<NodeSummary, Failure> {
        let (mut ready, mut broken, mut was_ready) = (vec![], vec![], false);
        loop {
            let limit = self
                .behaviour
                .due_ns()
                .map(|due_ns| Duration::from_nanos(due_ns.saturating_sub(clock::monotonic_ns())));
            let system =
                |error: std::io::Error| Failure::new(FailureKind::System, error.to_string());
            self.links.poller.wait(&mut ready, limit).map_err(system)?;
            self.links.now_ns = clock::monotonic_ns();
            self.turns += 1;
            for ready in &ready {
                match ready.token {
                    STOP => {
                        self.behaviour.end()?;
                        return Ok(self.end());
                    }
                    LISTENER => self.accept(),
                    DIALER => self.links.take_dialed().map_err(system)?,
                    WAKER => self.behaviour.woken(&mut self.links)?,
                    _ => self.serve(*ready),
                }
            }
            self.behaviour.turn(&mut self.links)?;
            // What is written because a link broke goes out in this turn, too.
            self.links.flush(&mut broken);
            while !broken.is_empty() {
                for (id, why) in broken.drain(..) {
                    self.close(id, &why);
                }
                self.links.flush(&mut broken);
            }
            for message in std::mem::take(&mut self.links.troubles) {
                self.trouble(message);
            }
            let is_ready = self.links.all_up() && self.behaviour.is_ready();
            if is_ready && !was_ready {
                let (role, index) = self.own;
                (self.say)(&NodeEvent::Ready { role, index });
            }
            was_ready = is_ready;
        }
    }

    fn accept(&mut self) {
        loop {
            let taken = match self.listener.accept() {
                Ok(None) => return,
                Ok(Some(stream)) => self.links.take_accepted(stream).map(drop),
                Err(error) => Err(error),
            };
            if let Err(error) = taken {
                return self.trouble(format!("a connection cannot be taken: {error}"));
            }
        }
    }

    /// Reads a link once and handles the frames that are whole.
    fn serve(&mut self, ready: Readiness) {
        let id = LinkId::of_token(ready.token);
        if ready.writable
            && let Err(why) = self.links.flush_one(id)
        {
            return self.close(id, &why);
        }
        if !ready.readable {
            return;
        }
        let Some(link) = self.links.link(id) else { return };
        let received = link.receive();
        let mut input = std::mem::take(&mut link.input);
        // What came may be younger than the turn: no stamp lies before what it was sent.
        self.links.now_ns = clock::monotonic_ns();
        let mut outcome = Ok(());
        while outcome.is_ok() {
            outcome = match input.next_frame() {
                Ok(None) => break,
                Ok(Some(mut frame)) => self.handle(id, &mut frame),
                Err(why) => Err(why),
            };
        }
        if let Some(link) = self.links.link(id) {
            link.input = input;
        }
        if let Err(why) = outcome.and(received) {
            self.close(id, &why);
        }
    }

    fn handle(&mut self, id: LinkId, frame: &mut ReceivedFrame<'_>) -> Result<(), LinkError> {
        self.frames_in += 1;
        if matches!(frame.header.kind, FrameKind::Hello | FrameKind::Welcome) {
            let greeted = self.links.greet(id, frame)?;
            if let Some(older) = greeted.older {
                self.close(older, &LinkError("the peer has made a new link".to_string()));
            }
            self.behaviour.up(&mut self.links, greeted.peer);
            if greeted.peer != Peer::Client {
                return Ok(());
            }
        }
        let peer = self.links.peer(id);
        self.behaviour.frame(&mut self.links, (id, peer), frame)
    }

    fn close(&mut self, id: LinkId, why: &LinkError) {
        let Some((peer, was_up)) = self.links.close(id) else { return };
        if was_up {
            self.behaviour.down(&mut self.links, peer, id);
            if peer != Peer::Client {
                self.trouble(format!("the link with {peer} is gone: {why}"));
            }
        } else if matches!(peer, Peer::Unknown) {
            self.trouble(format!("a link was refused: {why}"));
        }
    }

    fn trouble(&mut self, message: String) {
        let (role, index) = self.own;
        (self.say)(&NodeEvent::Warning { role, index, message });
    }

    fn end(self) -> NodeSummary {
        let (requests, resent) = self.behaviour.counts();
        NodeSummary {
            role: self.own.0,
            index: self.own.1,
            requests,
            resent,
            frames_in: self.frames_in,
            frames_out: self.links.frames_out,
            turns: self.turns,
            cpu_us: nm_sys::counters::process_cpu_ns() / 1_000,
        }
    }
}
