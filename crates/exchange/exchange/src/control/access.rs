//! Access to a running network from outside: its nodes are asked for what they know, and for
//! changes. A node that the network file lacks asks in the same way who the others are.

use std::time::Duration;

use nm_auth::{Credentials, Right};
use nm_model::agent::{Failure, FailureKind};
use nm_sys::clock::Deadline;
use nm_wire::{AdminRequest, AdminResponse, Kind, Who};

use crate::client::{self, ClientError, Meant};
use crate::link::{Address, Link};
use crate::network::{CONTROL, Network, NetworkError, NodeId, Role};

use super::state::State;
use super::work::check_response;

/// How long a leader of control is looked for.
const LEADER_LIMIT: Duration = Duration::from_secs(2);

/// A link to one node that asks for its state, or changes it.
#[derive(Debug)]
pub struct Observer(Link);

impl Observer {
    /// Connects to any node, as [`Who::Observer`] or [`Who::Operator`].
    ///
    /// # Errors
    /// If it does not answer within `limit`.
    pub fn connect(
        address: &Address,
        hello: Who,
        credentials: Option<&Credentials>,
        limit: Duration,
    ) -> Result<Observer, ClientError> {
        Observer::connect_to((address, Meant::default()), hello, credentials, limit)
    }

    /// Connects to the node that is meant.
    ///
    /// # Errors
    /// If it does not answer within `limit`, or is another one.
    pub fn connect_to(
        to: (&Address, Meant),
        hello: Who,
        credentials: Option<&Credentials>,
        limit: Duration,
    ) -> Result<Observer, ClientError> {
        let deadline = Deadline::after(limit);
        let mut link = client::connect_to(to, &[hello], credentials, limit)?;
        if credentials.is_none() {
            client::receive(&mut link, Kind::Welcome, deadline)?;
        }
        Ok(Observer(link))
    }

    /// Sends a request, and waits for the response.
    ///
    /// # Errors
    /// If it does not answer within `limit`.
    pub fn request(
        &mut self,
        request: &AdminRequest,
        limit: Duration,
    ) -> Result<AdminResponse, ClientError> {
        self.send(request);
        self.receive(Deadline::after(limit))
    }

    /// Adds a request to what is sent with the next [`Observer::receive`].
    pub fn send(&mut self, request: &AdminRequest) {
        nm_wire::write(request, &mut self.0.output);
    }

    /// Waits for the next response.
    ///
    /// # Errors
    /// If none comes until then.
    pub fn receive(&mut self, deadline: Deadline) -> Result<AdminResponse, ClientError> {
        let message = client::receive(&mut self.0, Kind::AdminResponse, deadline)?;
        let response = nm_wire::decode(&message)?;
        check_response(&response)?;
        Ok(response)
    }
}

/// A running network, and what its nodes are asked with.
pub struct Access<'a> {
    /// The network, as its file or control has it.
    pub network: &'a Network,
    credentials: Option<Credentials>,
}

impl Access<'_> {
    /// How long one mediator may take to answer the handshake: one that is cut off must not use up
    /// the time in which another one could lead.
    pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(1);

    /// Pause between two attempts.
    pub const RETRY_PAUSE: Duration = Duration::from_millis(50);

    /// Access with the credentials that the network file names.
    ///
    /// # Errors
    /// If the file of the secret cannot be read.
    pub fn new(network: &Network) -> Result<Access<'_>, Failure> {
        let unusable =
            |error: NetworkError| Failure::new(FailureKind::BadRequest, error.to_string());
        let credentials = network.credentials().map_err(unusable)?;
        Ok(Access { network, credentials })
    }

    /// Observes a node. Who has no observer key, but is an operator, may observe as well.
    ///
    /// # Errors
    /// If it does not answer within `limit`.
    pub fn observe(&self, address: &Address, limit: Duration) -> Result<Observer, ClientError> {
        let has = |right| self.credentials.as_ref().is_none_or(|keys| keys.key(right).is_some());
        let hello = match has(Right::Observer) || !has(Right::Operator) {
            true => Who::Observer,
            false => Who::Operator,
        };
        let meant = Meant { network: self.network.cluster, node: None };
        Observer::connect_to((address, meant), hello, self.credentials.as_ref(), limit)
    }

    /// Connects to a mediator as an operator.
    ///
    /// # Errors
    /// If there is no such mediator, or it does not answer within `limit`.
    pub fn operate(&self, mediator: u16, limit: Duration) -> Result<Observer, ClientError> {
        let address = self.address(mediator)?;
        let meant = Meant::of(self.network, Role::Mediator.node(mediator));
        Observer::connect_to((address, meant), Who::Operator, self.credentials.as_ref(), limit)
    }

    /// Asks a mediator.
    ///
    /// # Errors
    /// If there is no such mediator, or it does not answer within `limit`.
    pub fn request(
        &self,
        mediator: u16,
        request: &AdminRequest,
        limit: Duration,
    ) -> Result<AdminResponse, ClientError> {
        let mut observer = match request.is_change() {
            true => self.operate(mediator, limit)?,
            false => self.observe(self.address(mediator)?, limit)?,
        };
        observer.request(request, limit)
    }

    fn address(&self, mediator: u16) -> Result<&Address, ClientError> {
        let node = self.network.node(Role::Mediator.node(mediator));
        node.map(|node| &node.address).ok_or(ClientError::Unexpected)
    }

    /// Mediators that have a replica of control.
    pub fn mediators(&self) -> impl Iterator<Item = u16> + use<> {
        let voters = self.network.replicas(CONTROL).into_iter();
        voters.filter(|node| node.class == Role::Mediator).map(|node| node.index)
    }

    /// Which mediator does not answer, and why.
    pub fn named(&self, mediator: u16, error: &ClientError) -> String {
        let mediator = Role::Mediator.node(mediator);
        match self.network.node(mediator) {
            Some(node) => format!("{mediator} at {}: {error}", node.address),
            None => format!("{mediator}: {error}"),
        }
    }

    /// The best known state of a network's control group: that of its leader, or the latest one if
    /// no leader is found in time.
    ///
    /// # Errors
    /// If no mediator that has a replica of control answers within `limit`.
    pub fn control(&self, limit: Duration) -> Result<ControlReplica, Failure> {
        let deadline = Deadline::after(limit.min(LEADER_LIMIT));
        loop {
            let (mut best, mut refused) = (None::<ControlReplica>, String::new());
            for mediator in self.mediators() {
                match self.replica(mediator, limit) {
                    Ok(replica) if best.as_ref().is_none_or(|it| replica.rank() > it.rank()) => {
                        best = Some(replica);
                    }
                    Ok(_) => {}
                    Err(error) => refused = self.named(mediator, &error),
                }
            }
            let has_leader = best.as_ref().is_some_and(|best| best.leading_term.is_some());
            if has_leader || deadline.passed() {
                return best.ok_or_else(|| {
                    unreachable(format!("no mediator of the control group answers: {refused}"))
                });
            }
            std::thread::sleep(Access::RETRY_PAUSE);
        }
    }

    fn replica(&self, mediator: u16, limit: Duration) -> Result<ControlReplica, ClientError> {
        match self.request(mediator, &AdminRequest::Status, limit)? {
            AdminResponse::Status { leading_term, stalled_ms, state } => {
                let state = State::load(&state)?;
                Ok(ControlReplica { mediator, leading_term, stalled_ms, state })
            }
            _ => Err(ClientError::Unexpected),
        }
    }
}

/// A replica of control, as its mediator answered to [`AdminRequest::Status`].
pub struct ControlReplica {
    /// Which mediator has it.
    pub mediator: u16,
    /// Its term if it leads.
    pub leading_term: Option<u32>,
    /// For how long a pending change could not be logged, ms.
    pub stalled_ms: u64,
    /// Its state.
    pub state: State,
}

impl ControlReplica {
    /// The leader's state is better than that of others, and a later state than an earlier one.
    fn rank(&self) -> (Option<u32>, u64) {
        (self.leading_term, self.state.index())
    }
}

/// That no node of a network answers.
pub fn unreachable(message: String) -> Failure {
    Failure::new(FailureKind::Peer, message)
        .hint("is the network running, and with this version of nearmetal?")
}

/// The network with the nodes that were added to it, as control has them; without control, as its
/// file has them.
///
/// # Errors
/// If no node that could know it answers within `limit`.
pub(crate) fn current(network: &Network, limit: Duration) -> Result<Network, Failure> {
    if !network.has_control() {
        return Ok(network.clone());
    }
    let replica = Access::new(network)?.control(limit)?;
    Ok(replica.state.routes().map.extended(network).into_owned())
}

/// As [`current`], with this node as one of those that were added. Asks until `limit`, or until
/// `is_given_up`.
///
/// # Errors
/// If no node that could know it answers, or this node was never added or is removed.
pub(crate) fn find_node(
    network: &Network,
    node: NodeId,
    limit: Duration,
    is_given_up: impl Fn() -> bool,
) -> Result<Network, Failure> {
    let bad = |message: String| Failure::new(FailureKind::BadRequest, message);
    let deadline = Deadline::after(limit);
    loop {
        let known = current(network, Access::HANDSHAKE_LIMIT);
        let is_known = |known: &Network| known.node(node).is_some();
        match known {
            Ok(known) if known.is_removed(node) => {
                return Err(bad(format!("{node} was removed from the network")));
            }
            Ok(known) if is_known(&known) => return Ok(known),
            Ok(known) if deadline.passed() || is_given_up() => {
                let (class, count) = (node.class, known.nodes(node.class).len());
                return Err(bad(format!(
                    "there is no {node}: the network has had {count} {class} nodes, and \
                     `nearmetal exchange add {class}` adds one"
                )));
            }
            Err(failure) if deadline.passed() || is_given_up() => {
                let message = format!(
                    "{node} is not in the network file, and where it listens could not \
                     be asked: {}",
                    failure.message
                );
                return Err(Failure { message, ..failure });
            }
            _ => std::thread::sleep(Access::RETRY_PAUSE),
        }
    }
}
