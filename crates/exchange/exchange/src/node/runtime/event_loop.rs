//! The event loop of a node.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use nm_model::agent::{Failure, FailureKind};
use nm_sys::clock;
use nm_sys::poll::Readiness;
use nm_wire::{FrameMut, Kind};

use crate::control::{self, InstrumentMap};
use crate::link::{LinkError, Listener};
use crate::network::{Network, NetworkError, NodeId, PerClass, Role};

use super::acceptor::Acceptor;
use super::behaviour::Behaviour;
use super::event::{NodeEvent, NodeSummary};
use super::limits::Limits;
use super::links::{LinkId, Links, REMOVED_NS};
use super::peer::{Peer, PeerError};
use crate::node::replica::groups::Logs;
use crate::node::{gateway, mediator, processor, router};

/// How long a node that the network file lacks asks where it listens.
const FIND_LIMIT: Duration = Duration::from_secs(10);

/// How long control may take to answer whether an added node was removed. The node stands still
/// meanwhile, which does little harm where others refuse it.
const DOUBT_LIMIT: Duration = Duration::from_millis(500);

/// Time between two such questions, ns.
const DOUBT_NS: u64 = 2_000_000_000;

const STOP: u64 = u64::MAX;
const LISTENER: u64 = u64::MAX - 1;
const CONNECTOR: u64 = u64::MAX - 2;
const WAKER: u64 = u64::MAX - 3;

/// Runs a node until `stop` can be read or has ended, with the standard limits as far as the
/// process may have files open.
///
/// # Errors
/// If it cannot listen, or cannot continue.
pub fn run(
    network: &Network,
    node: NodeId,
    stop: BorrowedFd<'_>,
    report: &mut dyn FnMut(&NodeEvent),
) -> Result<NodeSummary, Failure> {
    let files = nm_sys::process::file_limit();
    let (limits, message) = Limits::STANDARD.within_descriptors(files);
    for message in network.exposure().into_iter().chain(message) {
        report(&NodeEvent::Warning { node, message });
    }
    run_with_limits(network, node, stop, &limits, report)
}

/// As [`run`], with other limits than the standard ones.
///
/// # Errors
/// As [`run`].
pub fn run_with_limits(
    network: &Network,
    node: NodeId,
    stop: BorrowedFd<'_>,
    limits: &Limits,
    report: &mut dyn FnMut(&NodeEvent),
) -> Result<NodeSummary, Failure> {
    let is_added = network.node(node).is_none();
    let asked = match is_added && network.has_control() {
        true => {
            let stopped =
                || nm_sys::poll::readable(stop.as_raw_fd(), Duration::ZERO).unwrap_or_default();
            Some(control::find_node(network, node, FIND_LIMIT, stopped)?)
        }
        false => None,
    };
    let network = asked.as_ref().unwrap_or(network);
    let Some(own) = network.node(node).filter(|_| !network.is_removed(node)) else {
        let (class, count) = (node.class, network.nodes(node.class).len());
        let message = format!("there is no {node}: the network has {count} {class} nodes");
        return Err(Failure::new(FailureKind::BadRequest, message));
    };
    let unusable = |error: NetworkError| Failure::new(FailureKind::BadRequest, error.to_string());
    let secret = network.secret_of_nodes().map_err(unusable)?;
    let system = |error: std::io::Error| Failure::new(FailureKind::System, error.to_string());
    let listener = Listener::bind(&own.address).map_err(|error| {
        let message = format!("{node} cannot listen at {}: {error}", own.address);
        Failure::new(FailureKind::AddressInUse, message)
    })?;
    let start = clock::monotonic_ns() ^ u64::from(std::process::id()) << 40;
    let links = Links::new(network, node, start, (*limits, secret)).map_err(system)?;
    match links.poller.add(stop, STOP) {
        // Files and the null device cannot be polled: then only a signal stops the node.
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {}
        added => added.map_err(system)?,
    }
    let acceptor = Acceptor::new(listener, LISTENER, &links).map_err(system)?;
    links.poller.add(links.connector(), CONNECTOR).map_err(system)?;
    let behaviour = behaviour(network, node)?;
    if let Some(waker) = behaviour.waker() {
        links.poller.add(waker, WAKER).map_err(system)?;
    }
    report(&NodeEvent::Listening { node, address: own.address.to_string() });
    let (frames_in, turns) = (0, 0);
    let membership = MembershipDoubt::default();
    let ends_by_ns = None;
    EventLoop {
        own: node,
        acceptor,
        links,
        behaviour,
        membership,
        ends_by_ns,
        frames_in,
        turns,
        report,
    }
    .run()
}

/// What a node of this class does in this network.
fn behaviour(network: &Network, node: NodeId) -> Result<Box<dyn Behaviour>, Failure> {
    let (index, logs) = (node.index, || Logs::start(network, node));
    Ok(match node.class {
        Role::Gateway => Box::new(gateway::Gateway::new(network, index)),
        Role::Router => Box::new(router::Router::new(network)),
        Role::Mediator => Box::new(mediator::Mediator::new(network, index, logs()?)?),
        Role::Processor => Box::new(processor::Processor::new(network, index, logs()?)?),
    })
}

/// Whether an added node has reason to ask if it was removed: another one has refused it. It may
/// have been removed while it had no link by which it could learn that.
#[derive(Debug, Default)]
struct MembershipDoubt {
    is_open: bool,
    /// Before this it does not ask again, ns.
    next_ns: u64,
}

impl MembershipDoubt {
    /// Whether it is time to ask.
    fn take(&mut self, now_ns: u64) -> bool {
        let is_due = self.is_open && now_ns >= self.next_ns;
        if is_due {
            (self.is_open, self.next_ns) = (false, now_ns + DOUBT_NS);
        }
        is_due
    }
}

struct EventLoop<'a> {
    own: NodeId,
    acceptor: Acceptor,
    links: Links,
    behaviour: Box<dyn Behaviour>,
    membership: MembershipDoubt,
    /// When it ends at the latest, if it was removed from the network, ns.
    ends_by_ns: Option<u64>,
    frames_in: u64,
    turns: u64,
    report: &'a mut dyn FnMut(&NodeEvent),
}

impl EventLoop<'_> {
    fn run(mut self) -> Result<NodeSummary, Failure> {
        let (mut ready, mut failed, mut was_ready) = (vec![], vec![], false);
        loop {
            let limit = self.deadline_ns().map(|deadline_ns| {
                Duration::from_nanos(deadline_ns.saturating_sub(clock::monotonic_ns()))
            });
            let system =
                |error: std::io::Error| Failure::new(FailureKind::System, error.to_string());
            self.links.poller.wait(&mut ready, limit).map_err(system)?;
            self.links.now_ns = clock::monotonic_ns();
            self.turns += 1;
            for ready in &ready {
                match ready.token {
                    STOP => {
                        self.behaviour.on_stop()?;
                        return Ok(self.end());
                    }
                    LISTENER => self.acceptor.accept(&mut self.links),
                    CONNECTOR => self.links.take_connected().map_err(system)?,
                    WAKER => self.behaviour.on_wake(&mut self.links)?,
                    _ => self.serve(*ready),
                }
            }
            self.acceptor.resume_if_due(&mut self.links);
            self.behaviour.on_iteration(&mut self.links)?;
            self.links.check(&mut failed);
            // What is written because a link failed goes out in this iteration, too.
            self.links.flush(&mut failed);
            while !failed.is_empty() {
                for (id, reason) in failed.drain(..) {
                    self.close(id, &reason);
                }
                self.links.flush(&mut failed);
            }
            for message in self.links.warnings.take(self.links.now_ns) {
                self.warn(message);
            }
            if self.membership.take(self.links.now_ns) {
                self.ask_for_nodes();
            }
            if self.links.take_network_change() {
                self.report_added();
            }
            if self.has_left() {
                self.warn("it was removed from the network, and ends".to_string());
                self.behaviour.on_stop()?;
                return Ok(self.end());
            }
            let is_ready = self.links.all_up() && self.behaviour.is_ready();
            if is_ready && !was_ready {
                (self.report)(&NodeEvent::Ready { node: self.own });
            }
            was_ready = is_ready;
        }
    }

    /// Whether it was removed from the network, and ends now. It may have to wait for others first,
    /// but no longer than these keep their links to it.
    fn has_left(&mut self) -> bool {
        if !self.links.network().is_removed(self.own) {
            return false;
        }
        let now_ns = self.links.now_ns;
        let by_ns = *self.ends_by_ns.get_or_insert(now_ns + REMOVED_NS);
        now_ns >= by_ns || self.behaviour.has_left(&self.links)
    }

    /// When the next iteration must be at the latest, ns.
    fn deadline_ns(&self) -> Option<u64> {
        let Links { warnings, .. } = &self.links;
        let deadlines = [
            self.behaviour.deadline_ns(),
            self.links.deadline_ns(),
            self.acceptor.deadline_ns(),
            warnings.deadline_ns(),
            self.ends_by_ns,
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Reads a link once and handles the complete frames.
    fn serve(&mut self, ready: Readiness) {
        let id = LinkId::of_token(ready.token);
        if ready.writable
            && let Err(reason) = self.links.flush_one(id)
        {
            return self.close(id, &reason);
        }
        if !ready.readable {
            return;
        }
        let Some((mut input, received)) = self.links.begin_read(id) else { return };
        // What was received may be younger than the iteration: no timestamp may lie before
        // the time at which the frame was sent.
        self.links.now_ns = clock::monotonic_ns();
        let mut outcome = Ok(());
        while outcome.is_ok() {
            outcome = match input.next_frame() {
                Ok(None) => break,
                Ok(Some(mut frame)) => self.handle(id, &mut frame),
                Err(error) => Err(LinkError::from(error).into()),
            };
            if outcome.is_ok() && self.links.has_long_answers(id) {
                outcome = self.links.flush_one(id);
            }
        }
        self.links.end_read(id, input);
        if let Err(reason) = outcome.and(received.map_err(PeerError::from)) {
            self.close(id, &reason);
        }
    }

    fn handle(&mut self, id: LinkId, frame: &mut FrameMut<'_>) -> Result<(), PeerError> {
        self.frames_in += 1;
        use Kind::{Challenge, Close, Hello, Welcome};
        if matches!(frame.kind(), Challenge | Hello | Welcome | Close) {
            let Some(handshake) = self.links.handshake(id, frame)? else { return Ok(()) };
            if let Some(older) = handshake.older {
                self.close(older, &PeerError::Replaced);
            }
            self.behaviour.on_connected(&mut self.links, handshake.peer);
            if handshake.peer != Peer::Client {
                return Ok(());
            }
        }
        let peer = self.links.peer(id);
        self.behaviour.on_frame(&mut self.links, (id, peer), frame)
    }

    fn close(&mut self, id: LinkId, reason: &PeerError) {
        if reason.is_for_peer() {
            self.links.refuse(id, reason);
        }
        let is_added = self.links.network().was_added(self.own);
        self.membership.is_open |= is_added && matches!(reason, PeerError::Refused(_));
        let refused_pause = self.links.limits.refused_pause;
        let pause = if reason.is_lasting() { refused_pause } else { Duration::ZERO };
        let owner = self.links.owner(id);
        let Some((peer, was_up)) = self.links.close(id, pause) else { return };
        if was_up {
            self.behaviour.on_disconnected(&mut self.links, peer, id);
        }
        let message = match peer {
            Peer::Node(..) if was_up => format!("the link with {peer} is closed: {reason}"),
            // A node that has not come up yet, or a link that a cut ended.
            Peer::Node(..) if reason.is_ordinary() => return,
            Peer::Node(..) => format!("there is no link with {peer}: {reason}"),
            Peer::Unknown => format!("a link was refused: {reason}"),
            _ if reason.is_ordinary() => return,
            _ => format!("the link with {peer} is closed: {reason}"),
        };
        match peer {
            Peer::Node(..) if was_up => self.links.warnings.push(message),
            _ => {
                let of = (reason.reason(), owner);
                self.links.warnings.push_limited(of, self.links.now_ns, message);
            }
        }
    }

    /// Asks control which nodes there are. Without an answer it goes on as it is.
    fn ask_for_nodes(&mut self) {
        let current = control::current(self.links.network(), DOUBT_LIMIT);
        if let Ok(network) = current {
            self.links.update_nodes(&InstrumentMap::of(&network));
        }
    }

    fn report_added(&mut self) {
        let map = InstrumentMap::of(self.links.network());
        let added = PerClass::new(|class| map.added(class).to_vec());
        (self.report)(&NodeEvent::AddedNodes { node: self.own, added });
    }

    fn warn(&mut self, message: String) {
        (self.report)(&NodeEvent::Warning { node: self.own, message });
    }

    fn end(self) -> NodeSummary {
        let (requests, resent) = self.behaviour.counts();
        NodeSummary {
            node: self.own,
            requests,
            resent,
            frames_in: self.frames_in,
            frames_out: self.links.frames_out,
            turns: self.turns,
            cpu_us: nm_sys::counters::process_cpu_ns() / 1_000,
        }
    }
}
