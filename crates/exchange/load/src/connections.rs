//! The links of the load's sessions to gateways. A link that breaks is made again, to the next
//! gateway if its own does not answer; the sessions go back when that answers again. When a gateway
//! [leaves](nm_wire::GoAway), a link to another one is made first. Sessions that have
//! a link move to the new one ([`Clients::begin_move`]), and the link before is closed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nm_auth::Credentials;
use nm_exchange::client::ClientError;
use nm_exchange::link::{Address, Link, LinkPoller};
use nm_exchange::network::{Network, Role};
use nm_model::agent::{Failure, FailureKind};
use nm_sys::clock::{Deadline, monotonic_ns};
use nm_wire::Close;

use crate::clients::Clients;
use crate::dial::{DialOutcome, DialTask, Dialer};

/// Token of the dialer.
const DIALER: u64 = u64::MAX;

/// How long sessions wait for replies over the link before, and how long that one may take to be
/// closed, ns.
const MOVE_LIMIT_NS: u64 = 1_000_000_000;

/// Pause between attempts to connect at the beginning.
const PAUSE: Duration = Duration::from_millis(5);

/// Pause between attempts to go back to a gateway that has ended.
const RETURN_PAUSE: Duration = Duration::from_millis(100);

/// The gateways of a running network by number, and whether each was removed: whoever runs the
/// network keeps it up to date, and links that are made later may lead to those that were added.
#[derive(Debug, Default)]
pub struct KnownGateways(Mutex<Vec<(Address, bool)>>);

impl KnownGateways {
    /// Takes over the gateways that were added to a network, or removed from it.
    pub fn update(&self, network: &Network) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let gateways = &network.classes[Role::Gateway];
        if known.len() != gateways.nodes.len() || !gateways.removed.is_empty() {
            let all = gateways.nodes.iter().enumerate();
            let is_removed = |gateway: usize| gateways.removed.contains(&(gateway as u16));
            *known = all.map(|(at, node)| (node.address.clone(), is_removed(at))).collect();
        }
    }

    fn all(&self) -> Vec<(Address, bool)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The gateways of a network.
#[derive(Debug)]
pub struct Gateways<'a> {
    /// Number of the network; 0 for any.
    pub network: u64,
    /// Where they listen.
    pub addresses: &'a [Address],
    /// What sessions prove themselves with, if the network has a secret.
    pub credentials: Option<Credentials>,
    /// The gateways as they are later.
    pub known: Arc<KnownGateways>,
}

/// A link to a gateway.
#[derive(Debug)]
struct Connection {
    link: Link,
    token: u64,
    /// Whether the socket buffer is full.
    is_full: bool,
    /// Whether the gateway leaves.
    is_leaving: bool,
}

impl Connection {
    /// Whether it can be used any longer.
    fn flush(&mut self, poller: &mut LinkPoller) -> bool {
        let flushed = self.link.flush();
        let is_full = matches!(flushed, Ok(false));
        let is_changed = std::mem::replace(&mut self.is_full, is_full) != is_full;
        let changed = !is_changed || poller.want_write(&self.link, self.token, is_full).is_ok();
        flushed.is_ok() && changed
    }
}

/// The link before, while sessions move.
#[derive(Debug)]
struct Before {
    connection: Connection,
    /// Until when sessions wait for replies; then, until when it may take to be closed, ns.
    until_ns: u64,
    /// Whether all sessions have moved.
    is_closing: bool,
}

/// The link of some sessions.
#[derive(Debug)]
struct SessionsLink {
    /// The gateway that its sessions have while that is up and not drained.
    home: usize,
    /// The gateway of the link, or of the last one.
    gateway: usize,
    connection: Option<Connection>,
    before: Option<Before>,
    /// Output while there is no connection: discarded, because a new connection retransmits.
    discarded: Vec<u8>,
    /// How often it was dialed; only the last time counts.
    dials: u64,
    is_cancelled: Arc<AtomicBool>,
}

/// What a token stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Links were made.
    Dialer,
    /// A link of this number.
    Current(usize),
    /// The link before, whose sessions move.
    Before(usize),
}

/// All links.
#[derive(Debug)]
pub struct Connections {
    addresses: Vec<Address>,
    known: Arc<KnownGateways>,
    /// By gateway: whether it was removed.
    removed: Vec<bool>,
    /// By gateway: whether it has asked clients to go since they last came to it.
    leaving: Vec<bool>,
    links: Vec<SessionsLink>,
    /// What is waited for.
    pub poller: LinkPoller,
    dialer: Dialer,
    tokens: u64,
    /// How often a link was made again.
    pub reconnects: u64,
}

impl Connections {
    /// No link yet, one to be made to each gateway.
    ///
    /// # Errors
    /// I/O errors.
    pub fn new(gateways: &Gateways<'_>) -> std::io::Result<Connections> {
        let (poller, dialer) =
            (LinkPoller::new()?, Dialer::new(gateways.credentials.clone(), gateways.network)?);
        poller.add(dialer.waker(), DIALER)?;
        let link = |gateway| SessionsLink {
            home: gateway,
            gateway,
            connection: None,
            before: None,
            discarded: vec![],
            dials: 0,
            is_cancelled: Arc::default(),
        };
        let count = gateways.addresses.len();
        Ok(Connections {
            addresses: gateways.addresses.to_vec(),
            known: Arc::clone(&gateways.known),
            removed: vec![false; count],
            leaving: vec![false; count],
            links: (0..count).map(link).collect(),
            poller,
            dialer,
            tokens: 0,
            reconnects: 0,
        })
    }

    /// How many links there are.
    pub fn count(&self) -> usize {
        self.links.len()
    }

    /// Makes all links.
    ///
    /// # Errors
    /// A gateway that cannot be reached within `limit`, or refuses.
    pub fn connect_all(&mut self, clients: &mut Clients, limit: Duration) -> Result<(), Failure> {
        let deadline = Deadline::after(limit);
        for index in 0..self.links.len() {
            let hellos = clients.hellos(index);
            loop {
                let left = deadline.remaining().max(Duration::from_millis(1));
                let gateway = self.links[index].gateway;
                let address = &self.addresses[gateway];
                match self.dialer.connect(address, &hellos, left) {
                    Ok(link) => {
                        self.adopt(index, gateway, link, clients);
                        break;
                    }
                    Err(error) if error.is_lasting() => return Err(self.refused(index, &error)),
                    Err(error) if deadline.passed() => {
                        let message =
                            format!("gateway {gateway} at {address} cannot be reached: {error}");
                        let hint = "start the nodes of the network first";
                        return Err(Failure::new(FailureKind::Peer, message).hint(hint));
                    }
                    Err(ClientError::GoingAway) => {
                        self.links[index].gateway = (gateway + 1) % self.addresses.len();
                        std::thread::sleep(PAUSE);
                    }
                    Err(_) => std::thread::sleep(PAUSE),
                }
            }
        }
        Ok(())
    }

    /// A failure that names the gateway of a link.
    pub fn refused(&self, index: usize, why: &dyn std::fmt::Display) -> Failure {
        let gateway = self.links[index].gateway;
        let address = &self.addresses[gateway];
        let message = format!("gateway {gateway} at {address} cannot be used: {why}");
        Failure::new(FailureKind::Peer, message)
    }

    /// What has become ready.
    pub fn source(&self, token: u64) -> Option<Source> {
        if token == DIALER {
            return Some(Source::Dialer);
        }
        let index = (token % self.links.len() as u64) as usize;
        let SessionsLink { connection, before, .. } = &self.links[index];
        let is_it = |connection: &Connection| connection.token == token;
        if connection.as_ref().is_some_and(is_it) {
            return Some(Source::Current(index));
        }
        let before = before.as_ref().map(|before| &before.connection);
        before.is_some_and(is_it).then_some(Source::Before(index))
    }

    /// The output of a link.
    pub fn output(&mut self, index: usize) -> &mut Vec<u8> {
        let SessionsLink { connection, discarded, .. } = &mut self.links[index];
        discarded.clear();
        connection.as_mut().map_or(discarded, |connection| &mut connection.link.output)
    }

    /// A link, and whether its gateway leaves. Of the link before, the output of the present one
    /// as well, which is to be used in its place.
    pub fn receiving(&mut self, source: Source) -> Option<(&mut Link, bool, Option<&mut Vec<u8>>)> {
        match source {
            Source::Dialer => None,
            Source::Current(index) => {
                let Connection { link, is_leaving, .. } = self.links[index].connection.as_mut()?;
                Some((link, *is_leaving, None))
            }
            Source::Before(index) => {
                let SessionsLink { connection, before, .. } = &mut self.links[index];
                let output = &mut connection.as_mut()?.link.output;
                Some((&mut before.as_mut()?.connection.link, true, Some(output)))
            }
        }
    }

    /// Installs a new link to a gateway, over which its sessions have said hello.
    fn adopt(&mut self, index: usize, gateway: usize, link: Link, clients: &mut Clients) {
        self.tokens += 1;
        let token = self.tokens * self.links.len() as u64 + index as u64;
        if self.poller.add_link(&link, token).is_err() {
            return self.dial_any(index, clients);
        }
        self.leaving[gateway] = false;
        let sessions = &mut self.links[index];
        let connection = Connection { link, token, is_full: false, is_leaving: false };
        sessions.gateway = gateway;
        let old = sessions.connection.replace(connection);
        sessions.before = old.map(|connection| Before {
            connection,
            until_ns: monotonic_ns() + MOVE_LIMIT_NS,
            is_closing: false,
        });
        let is_move = sessions.before.is_some();
        self.reconnects += u64::from(sessions.dials > 0 && !is_move);
        match is_move {
            true => clients.begin_move(index, self.output(index)),
            false => clients.connected(index, self.output(index)),
        }
        self.return_home(index, clients);
        self.flush(index, clients);
    }

    /// Dials the gateway that the sessions of a link have usually, if they are at another one
    /// because it has ended. From a gateway that was drained they stay away.
    fn return_home(&mut self, index: usize, clients: &Clients) {
        let SessionsLink { home, gateway, .. } = self.links[index];
        if gateway != home && !self.leaving[home] {
            self.dial(index, &[home], RETURN_PAUSE, clients);
        }
    }

    /// Takes the links that were made since the last call; their numbers.
    ///
    /// # Errors
    /// If a gateway refuses for a reason that lasts.
    pub fn take_dialed(&mut self, clients: &mut Clients) -> Result<Vec<usize>, Failure> {
        let mut made = vec![];
        for DialOutcome { index, dial, gateway, link } in self.dialer.made() {
            if dial != self.links[index].dials {
                continue;
            }
            match link {
                Ok(link) => self.adopt(index, gateway, link, clients),
                // It was to go back, and can stay where it is.
                Err(_) if self.is_settled(index) => continue,
                Err(error) => {
                    self.links[index].gateway = gateway;
                    return Err(self.refused(index, &error));
                }
            }
            made.push(index);
        }
        Ok(made)
    }

    /// Whether a link works, and its gateway does not leave.
    fn is_settled(&self, index: usize) -> bool {
        self.links[index].connection.as_ref().is_some_and(|connection| !connection.is_leaving)
    }

    /// The gateway of a link leaves: a link to another one is made, if there is one.
    pub fn go_away(&mut self, source: Source, clients: &mut Clients) {
        let Source::Current(index) = source else { return };
        self.learn_gateways(clients);
        let sessions = &mut self.links[index];
        let present = self.removed.iter().filter(|is_removed| !**is_removed).count();
        let (gateway, is_only) = (sessions.gateway, present == 1);
        let connection = sessions.connection.as_mut().filter(|it| !it.is_leaving && !is_only);
        let Some(connection) = connection else { return };
        connection.is_leaving = true;
        self.leaving[gateway] = true;
        self.drop_before(index, clients);
        self.dial_any(index, clients);
    }

    /// A link has ended.
    pub fn disconnect(&mut self, source: Source, clients: &mut Clients) {
        match source {
            Source::Dialer => {}
            Source::Before(index) => self.end_before(index, clients),
            Source::Current(index) => {
                self.drop_before(index, clients);
                if let Some(connection) = self.links[index].connection.take() {
                    // Closing it also removes it from the poller.
                    self.poller.remove(&connection.link);
                    self.dial_any(index, clients);
                }
            }
        }
    }

    /// Drops the link before, if there is one: sessions that are still behind wait no longer, and
    /// events that were on their way over it are lost.
    fn drop_before(&mut self, index: usize, clients: &mut Clients) {
        if let Some(before) = self.links[index].before.take() {
            self.poller.remove(&before.connection.link);
            clients.end_move(index, self.output(index));
            clients.request_resends(index, None, self.output(index));
        }
    }

    /// The link before has ended.
    fn end_before(&mut self, index: usize, clients: &mut Clients) {
        let before = self.links[index].before.take_if(|before| before.is_closing);
        match before {
            // All that the gateway has sent over it was received.
            Some(before) => self.poller.remove(&before.connection.link),
            None => self.drop_before(index, clients),
        }
    }

    /// Dials the gateways that may take a link.
    fn dial_any(&mut self, index: usize, clients: &mut Clients) {
        self.learn_gateways(clients);
        self.dial(index, &self.candidates(index), PAUSE, clients);
    }

    /// Takes over the gateways that were added and removed.
    fn learn_gateways(&mut self, clients: &mut Clients) {
        for (at, (address, is_removed)) in self.known.all().into_iter().enumerate() {
            if at == self.addresses.len() {
                self.addresses.push(address);
                self.leaving.push(false);
                self.removed.push(false);
            }
            self.removed[at] = is_removed;
        }
        clients.set_gateways(self.addresses.len());
    }

    /// Dials gateways in another thread; what was dialed before does not count any more.
    fn dial(&mut self, index: usize, gateways: &[usize], pause: Duration, clients: &Clients) {
        let candidates = gateways.iter().map(|&it| (it, self.addresses[it].clone())).collect();
        let sessions = &mut self.links[index];
        sessions.is_cancelled.store(true, Ordering::Relaxed);
        sessions.is_cancelled = Arc::default();
        sessions.dials += 1;
        self.dialer.dial(DialTask {
            index,
            dial: sessions.dials,
            candidates,
            pause,
            hellos: clients.hellos(index),
            is_cancelled: Arc::clone(&sessions.is_cancelled),
        });
    }

    /// The gateways to which a link may be made, in the order in which they are tried: the one that
    /// it had, then those after it. Those that leave come last, because they may have been resumed;
    /// a link that works stays rather than go to its own gateway again.
    fn candidates(&self, index: usize) -> Vec<usize> {
        let SessionsLink { gateway, connection, .. } = &self.links[index];
        let (count, is_connected) = (self.addresses.len(), connection.is_some());
        let first = usize::from(self.leaving[*gateway]);
        let all = (first..first + count).map(|step| (gateway + step) % count);
        let all = all.filter(|it| !self.removed[*it]);
        let (leaving, mut open): (Vec<usize>, Vec<usize>) = all.partition(|it| self.leaving[*it]);
        if open.is_empty() || !is_connected {
            open.extend(leaving.into_iter().filter(|it| !is_connected || it != gateway));
        }
        open
    }

    /// Writes the output of a link.
    pub fn flush(&mut self, index: usize, clients: &mut Clients) {
        let SessionsLink { connection, before, .. } = &mut self.links[index];
        let is_up = |connection: &mut Connection| connection.flush(&mut self.poller);
        let before_is_up = before.as_mut().map(|before| &mut before.connection).is_none_or(is_up);
        let is_up = |connection: &mut Connection| connection.flush(&mut self.poller);
        let current_is_up = connection.as_mut().is_none_or(is_up);
        if !before_is_up {
            self.disconnect(Source::Before(index), clients);
        }
        if !current_is_up {
            self.disconnect(Source::Current(index), clients);
        }
    }

    /// Writes the output of all links.
    pub fn flush_all(&mut self, clients: &mut Clients) {
        (0..self.links.len()).for_each(|index| self.flush(index, clients));
    }

    /// Whether sessions move.
    pub fn is_moving(&self) -> bool {
        self.links.iter().any(|sessions| sessions.before.is_some())
    }

    /// Closes the links before whose sessions have moved, or have waited long enough. The gateway
    /// closes its end, and what it has sent until then is received.
    pub fn advance_moves(&mut self, clients: &mut Clients) {
        for index in 0..self.links.len() {
            let Some(before) = &self.links[index].before else { continue };
            let (is_late, is_closing) = (monotonic_ns() >= before.until_ns, before.is_closing);
            if is_late && is_closing {
                self.drop_before(index, clients);
                continue;
            }
            if is_late {
                clients.end_move(index, self.output(index));
            }
            if is_closing || clients.is_moving(index) {
                continue;
            }
            if let Some(before) = &mut self.links[index].before {
                (before.is_closing, before.until_ns) = (true, monotonic_ns() + MOVE_LIMIT_NS);
                let why = Close::because("its sessions are at another gateway");
                nm_wire::write(&why, &mut before.connection.link.output);
            }
            self.flush(index, clients);
        }
    }
}
