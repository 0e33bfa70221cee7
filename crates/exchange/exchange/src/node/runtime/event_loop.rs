//! The event loop of a node.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use nm_model::agent::{Failure, FailureKind};
use nm_sys::poll::{Readiness, Waker};
use nm_sys::{bind, clock};
use nm_wire::{FrameMut, Kind, Owner};

use crate::control::{self, InstrumentMap};
use crate::link::{Address, LinkError, Listener, READ_BYTES};
use crate::network::{Network, NetworkError, NodeId, PerClass, Role};

use super::acceptor::Acceptor;
use super::behaviour::Behaviour;
use super::clocks::{Clocks, METERS};
use super::event::{NodeEvent, NodeSummary};
use super::event_queue::EventQueue;
use super::groups;
use super::limits::Limits;
use super::links::{LinkId, Links, REMOVED_NS};
use super::membership::MembershipDoubt;
use super::peer::{Peer, PeerError};
use super::sockets::Sockets;
use super::turns::{ALONE_NS, TURN_BYTES, Turns};
use crate::node::{gateway, mediator, processor, router};

/// How long a node waits for its address: a large process that was killed has it for a while.
const BIND_LIMIT: Duration = Duration::from_secs(3);

/// How long a node that the network file lacks asks where it listens.
const FIND_LIMIT: Duration = Duration::from_secs(10);

const STOP: u64 = u64::MAX;
const LISTENER: u64 = u64::MAX - 1;
const CONNECTOR: u64 = u64::MAX - 2;
const WAKER: u64 = u64::MAX - 3;
const MEMBERSHIP: u64 = u64::MAX - 4;

/// Runs a node until `stop` can be read or has ended, with the standard limits as far as the
/// process may have files open. It never waits for a reader of its events.
///
/// # Errors
/// If it cannot listen, or cannot continue.
pub fn run(
    network: &Network,
    node: NodeId,
    stop: BorrowedFd<'_>,
    events: &EventQueue,
) -> Result<NodeSummary, Failure> {
    let files = nm_sys::process::file_limit();
    let (limits, message) = Limits::STANDARD.within_descriptors(files);
    for message in network.exposure().into_iter().chain(message) {
        events.push(NodeEvent::Warning { node, message });
    }
    run_with_limits(network, node, stop, &limits, events)
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
    events: &EventQueue,
) -> Result<NodeSummary, Failure> {
    let is_added = network.node(node).is_none();
    #[expect(clippy::disallowed_methods, reason = "before it has links")]
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
    let listener = listen(node, &own.address)?;
    // Else it stands still for 15 ms each time that twice as many clients have come. Where it has
    // no effect, the node does that.
    let _ = nm_sys::process::reserve_files(limits.files() as u64);
    let start = clock::monotonic_ns() ^ u64::from(std::process::id()) << 40;
    let mut links = Links::new(network, node, start, (*limits, secret), METERS);
    let mut clocks = Clocks::default();
    links.set_time(clocks.read());
    let sockets = Sockets::new().map_err(system)?;
    match sockets.poller.add(stop, STOP) {
        // Files and the null device cannot be polled: then only a signal stops the node.
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {}
        added => added.map_err(system)?,
    }
    let acceptor = Acceptor::new(listener, LISTENER, &sockets).map_err(system)?;
    sockets.poller.add(sockets.connector.waker(), CONNECTOR).map_err(system)?;
    let waker = Waker::new().map_err(system)?;
    sockets.poller.add(&waker, WAKER).map_err(system)?;
    let behaviour = behaviour(network, node, links.now_ns, &waker)?;
    events.push(NodeEvent::Listening { node, address: own.address.to_string() });
    let (frames_in, turns) = (0, 0);
    let membership = MembershipDoubt::new().map_err(system)?;
    sockets.poller.add(&membership, MEMBERSHIP).map_err(system)?;
    let ends_by_ns = None;
    EventLoop {
        own: node,
        acceptor,
        links,
        sockets,
        clocks,
        waker,
        behaviour,
        membership,
        ends_by_ns,
        owners: Turns::default(),
        frames_in,
        turns,
        events,
    }
    .run()
}

/// Listens at the address of a node.
fn listen(node: NodeId, address: &Address) -> Result<Listener, Failure> {
    bind::patiently(BIND_LIMIT, || Listener::bind(address)).map_err(|error| {
        let message = format!("{node} cannot listen at {address}: {error}");
        Failure::new(FailureKind::AddressInUse, message)
    })
}

/// What a node of this class does in this network; its logs wake it.
fn behaviour(
    network: &Network,
    node: NodeId,
    now_ns: u64,
    waker: &Waker,
) -> Result<Box<dyn Behaviour>, Failure> {
    let (index, logs) = (node.index, || groups::start_logs(network, node, waker.clone()));
    Ok(match node.class {
        Role::Gateway => Box::new(gateway::Gateway::new(network, index)),
        Role::Router => Box::new(router::Router::new(network)),
        Role::Mediator => Box::new(mediator::Mediator::new(network, index, logs()?, now_ns)?),
        Role::Processor => Box::new(processor::Processor::new(network, index, logs()?)?),
    })
}

struct EventLoop<'a> {
    own: NodeId,
    acceptor: Acceptor,
    links: Links,
    sockets: Sockets,
    clocks: Clocks,
    /// Woken by each event of the behaviour's logs.
    waker: Waker,
    behaviour: Box<dyn Behaviour>,
    membership: MembershipDoubt,
    /// When it ends at the latest, if it was removed from the network, ns.
    ends_by_ns: Option<u64>,
    /// Whose links are read next.
    owners: Turns,
    frames_in: u64,
    turns: u64,
    events: &'a EventQueue,
}

impl EventLoop<'_> {
    fn run(mut self) -> Result<NodeSummary, Failure> {
        let (mut ready, mut failed, mut was_ready) = (vec![], vec![], false);
        loop {
            self.sockets.connect(&mut self.links);
            let is_woken = self.links.take_wake();
            let limit = self.deadline_ns().map(|deadline_ns| {
                Duration::from_nanos(deadline_ns.saturating_sub(clock::monotonic_ns()))
            });
            let is_busy = is_woken || self.sockets.has_unwritten();
            let limit = if is_busy { Some(Duration::ZERO) } else { limit };
            let system =
                |error: std::io::Error| Failure::new(FailureKind::System, error.to_string());
            self.sockets.poller.wait(&mut ready, limit).map_err(system)?;
            self.links.set_time(self.clocks.read());
            self.turns += 1;
            self.owners.begin(self.links.now_ns);
            for ready in &ready {
                match ready.token {
                    STOP => {
                        self.behaviour.on_stop()?;
                        return Ok(self.end());
                    }
                    LISTENER => self.acceptor.accept(&mut self.links, &mut self.sockets),
                    CONNECTOR => self.sockets.take_connected(&mut self.links),
                    WAKER => self.on_wake()?,
                    MEMBERSHIP => {
                        if let Some(map) = self.membership.take_answer() {
                            self.links.update_nodes(&map);
                        }
                    }
                    _ => self.serve_in_turn(*ready, &mut failed),
                }
            }
            self.serve_waiting(&mut failed);
            if is_woken {
                self.on_wake()?;
            }
            self.acceptor.resume_if_due(&mut self.links, &mut self.sockets);
            self.behaviour.on_iteration(&mut self.links)?;
            self.write(&mut failed);
            for message in self.links.warnings.take(self.links.now_ns) {
                self.warn(message);
            }
            self.membership.ask_if_due(self.links.now_ns, self.links.network());
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
                self.events.push(NodeEvent::Ready { node: self.own });
            }
            was_ready = is_ready;
        }
    }

    fn on_wake(&mut self) -> Result<(), Failure> {
        self.waker.drain();
        // What was committed may be younger than the iteration.
        self.links.set_time(self.clocks.read());
        self.behaviour.on_wake(&mut self.links)
    }

    /// Writes what is to be sent, closes the links that failed, and makes those that are wanted.
    fn write(&mut self, failed: &mut Vec<(LinkId, PeerError)>) {
        self.links.check(failed);
        failed.retain(|(id, reason)| {
            // Its owner's turn has not come: the heartbeats are there, and nobody has read them.
            let is_unread = matches!(reason, PeerError::Silent(..)) && self.sockets.is_held(*id);
            if is_unread {
                self.links.contacted(*id);
            }
            !is_unread
        });
        // What is written because a link failed goes out in this iteration, too.
        self.sockets.flush(&mut self.links, failed);
        while !failed.is_empty() {
            for (id, reason) in failed.drain(..) {
                self.close(id, &reason);
            }
            self.sockets.flush(&mut self.links, failed);
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
            self.behaviour.deadline_ns(self.links.now_ns),
            self.links.deadline_ns(),
            self.acceptor.deadline_ns(),
            warnings.deadline_ns(),
            self.membership.deadline_ns(),
            self.ends_by_ns,
            self.owners.deadline_ns(self.links.now_ns, |owner| self.behaviour.is_full(owner)),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Serves a link, if it is its owner's turn; other nodes have no turns.
    fn serve_in_turn(&mut self, ready: Readiness, failed: &mut Vec<(LinkId, PeerError)>) {
        let id = LinkId::of_token(ready.token);
        if ready.writable
            && let Err(reason) = self.sockets.flush_one(&mut self.links, id)
        {
            return self.close(id, &reason);
        }
        if !ready.readable {
            return;
        }
        let owner = self.links.owner(id);
        if self.links.is_to_node(id) || !owner.is_somebody() {
            self.serve(id, READ_BYTES, failed);
            return;
        }
        let now_ns = self.links.now_ns;
        if !self.owners.has_others(owner, now_ns) && !self.owners.has_waiting(owner) {
            // What is not read now is reported again.
            if self.owners.taken_ns(owner) < ALONE_NS {
                self.serve_owner(owner, id, READ_BYTES, failed);
            }
            return;
        }
        // A held link is reported only because it has ended or failed.
        let is_first = !self.owners.has_waiting(owner) && !self.behaviour.is_full(owner);
        if is_first && self.owners.is_turn_of(owner, now_ns) || self.sockets.is_held(id) {
            self.serve_owner(owner, id, TURN_BYTES, failed);
        } else if self.sockets.hold(id, true).is_ok() {
            self.owners.wait(owner, id, now_ns);
        }
    }

    /// Serves the links that wait and whose owners have their turns now.
    fn serve_waiting(&mut self, failed: &mut Vec<(LinkId, PeerError)>) {
        while let Some((owner, id)) =
            self.owners.next(self.links.now_ns, |owner| self.behaviour.is_full(owner))
        {
            // What is left of it is reported again.
            if let Err(error) = self.sockets.hold(id, false) {
                self.close(id, &error.into());
            } else {
                self.serve_owner(owner, id, TURN_BYTES, failed);
            }
        }
    }

    /// Serves a link, and counts what that takes for its owner.
    fn serve_owner(
        &mut self,
        owner: Owner,
        id: LinkId,
        most: usize,
        failed: &mut Vec<(LinkId, PeerError)>,
    ) {
        let begin_ns = clock::monotonic_ns();
        self.serve(id, most, failed);
        let end_ns = clock::monotonic_ns();
        self.owners.served(owner, end_ns, end_ns.saturating_sub(begin_ns));
    }

    /// Reads a link once and handles the complete frames.
    fn serve(&mut self, id: LinkId, most: usize, failed: &mut Vec<(LinkId, PeerError)>) {
        let read = self.sockets.begin_read(&self.links, id, most);
        let Some((mut input, received)) = read else { return };
        // What was received may be younger than the iteration: no timestamp may lie before
        // the time at which the frame was sent.
        self.links.set_time(self.clocks.read());
        let mut outcome = Ok(());
        while outcome.is_ok() {
            outcome = match input.next_frame() {
                Ok(None) => break,
                Ok(Some(mut frame)) => self.handle(id, &mut frame),
                Err(error) => Err(LinkError::from(error).into()),
            };
            if outcome.is_ok() && self.links.has_long_answers(id) {
                outcome = self.sockets.flush_one(&mut self.links, id);
            }
            if self.links.has_gathered_much() {
                self.sockets.flush_all(&mut self.links, failed);
            }
        }
        self.sockets.end_read(&mut self.links, id, input);
        if let Err(reason) = outcome.and(received.map(drop).map_err(PeerError::from)) {
            self.close(id, &reason);
        }
    }

    fn handle(&mut self, id: LinkId, frame: &mut FrameMut<'_>) -> Result<(), PeerError> {
        self.frames_in += 1;
        use Kind::{AdminRequest, Challenge, Close, Format, Hello, Welcome};
        if matches!(frame.kind(), AdminRequest) {
            self.sockets.measure_latencies(&mut self.links);
        }
        if matches!(frame.kind(), Challenge | Format | Hello | Welcome | Close) {
            let Some(handshake) = self.links.handshake(id, frame)? else { return Ok(()) };
            if let Some(older) = handshake.older {
                self.close(older, &PeerError::Replaced);
            }
            self.behaviour.on_connected(&mut self.links, handshake.peer);
            #[cfg(feature = "next-format")]
            super::greeting::send(&mut self.links, id, handshake.peer);
            if handshake.peer != Peer::Client {
                return Ok(());
            }
        }
        let peer = self.links.peer(id);
        #[cfg(feature = "next-format")]
        if super::greeting::is_greeting(&mut self.links, peer, frame) {
            return Ok(());
        }
        self.behaviour.on_frame(&mut self.links, (id, peer), frame)
    }

    fn close(&mut self, id: LinkId, reason: &PeerError) {
        if reason.is_for_peer() {
            self.sockets.refuse(&mut self.links, id, reason);
        }
        let refused_pause = self.links.limits.refused_pause;
        let pause = if reason.is_lasting() { refused_pause } else { Duration::ZERO };
        let owner = self.links.owner(id);
        let Some((peer, was_up)) = self.sockets.close(&mut self.links, id, pause) else {
            return;
        };
        if self.links.network().was_added(self.own) {
            self.membership.on_closed(peer, reason);
        }
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

    fn report_added(&mut self) {
        let map = InstrumentMap::of(self.links.network());
        let added = PerClass::new(|class| map.added(class).to_vec());
        self.events.push(NodeEvent::AddedNodes { node: self.own, added });
    }

    fn warn(&mut self, message: String) {
        self.events.push(NodeEvent::Warning { node: self.own, message });
    }

    fn end(mut self) -> NodeSummary {
        // Whatever fails now has no more consequence.
        self.sockets.flush_all(&mut self.links, &mut vec![]);
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
