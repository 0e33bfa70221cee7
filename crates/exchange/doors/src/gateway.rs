//! The link to a gateway, over which all sessions of a door trade. If it ends, or its gateway
//! leaves, the door connects to the next one.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use nm_auth::{Credentials, CredentialsError};
use nm_exchange::client::{self, ClientError};
use nm_exchange::link::{Address, Link, LinkPoller};
use nm_exchange::network::{Network, NetworkError, Role};
use nm_sys::poll::Waker;
use nm_wire::{Kind, Message, Who};
use thiserror::Error;

/// Longest attempt to connect.
const ATTEMPT: Duration = Duration::from_millis(500);

/// Pause between attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// Why no gateway can be used.
#[derive(Debug, Error)]
pub enum GatewayError {
    /// The network's file.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The keys.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// A gateway refuses for good.
    #[error("gateway {index} refuses the door: {source}")]
    Refused {
        /// Which one.
        index: usize,
        /// Why.
        source: ClientError,
    },
    /// There is nothing to wait with.
    #[error("cannot wait for gateways: {0}")]
    System(#[from] io::Error),
}

/// Numbers and addresses of gateways.
type Gateways = Vec<(usize, Address)>;

type ConnectResult = Result<(usize, Link), GatewayError>;

/// The link, or the attempts to make one.
#[derive(Debug)]
pub struct Gateway {
    network: PathBuf,
    credentials: Option<PathBuf>,
    hellos: Vec<Who>,
    index: usize,
    link: Option<Link>,
    is_leaving: bool,
    is_dialing: bool,
    is_over: Arc<AtomicBool>,
    waker: Waker,
    sender: Sender<ConnectResult>,
    receiver: Receiver<ConnectResult>,
}

impl Gateway {
    /// No link yet.
    ///
    /// # Errors
    /// If the network's file or its keys cannot be read.
    pub fn new(
        network: PathBuf,
        credentials: Option<PathBuf>,
        sessions: Vec<u32>,
    ) -> Result<Gateway, GatewayError> {
        read(&network, credentials.as_ref())?;
        let (sender, receiver) = channel();
        Ok(Gateway {
            network,
            credentials,
            hellos: sessions.into_iter().map(|session| Who::Client { session }).collect(),
            index: 0,
            link: None,
            is_leaving: false,
            is_dialing: false,
            is_over: Arc::default(),
            waker: Waker::new()?,
            sender,
            receiver,
        })
    }

    /// Becomes readable when a link was made.
    pub fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Number of the gateway.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Connects in a thread of its own, to the gateways in turn.
    #[expect(clippy::disallowed_methods, reason = "in a thread of its own")]
    pub fn dial(&mut self) {
        if std::mem::replace(&mut self.is_dialing, true) {
            return;
        }
        let (network, credentials) = (self.network.clone(), self.credentials.clone());
        let (hellos, first) = (self.hellos.clone(), self.index + usize::from(self.is_leaving));
        let (sender, waker) = (self.sender.clone(), self.waker.clone());
        let is_over = Arc::clone(&self.is_over);
        std::thread::spawn(move || {
            // A gateway that takes links and ends them at once is not asked without a pause.
            std::thread::sleep(PAUSE);
            for step in first.. {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                match attempt(&network, credentials.as_ref(), &hellos, step) {
                    None => std::thread::sleep(PAUSE),
                    Some(dialed) => {
                        // If the door has ended, nobody needs the link.
                        let _ = sender.send(dialed);
                        return waker.wake();
                    }
                }
            }
        });
    }

    /// Takes the link that was made, if there is one; the one before is closed.
    ///
    /// # Errors
    /// If a gateway refuses for good.
    pub fn take_link(&mut self, poller: &mut LinkPoller, token: u64) -> Result<bool, GatewayError> {
        self.waker.drain();
        let Ok(dialed) = self.receiver.try_recv() else { return Ok(false) };
        self.is_dialing = false;
        let (index, link) = dialed?;
        self.disconnect(poller);
        poller.add_link(&link, token)?;
        (self.index, self.link, self.is_leaving) = (index, Some(link), false);
        Ok(true)
    }

    /// Closes the link.
    pub fn disconnect(&mut self, poller: &mut LinkPoller) {
        if let Some(link) = self.link.take() {
            poller.remove(&link);
        }
    }

    /// Hands on what the gateway has sent; whether the link still works.
    pub fn receive(&mut self, mut hear: impl FnMut(&Message<'_>)) -> bool {
        let Some(link) = &mut self.link else { return true };
        // What was sent before an end of the link counts all the same.
        let received = link.receive();
        let mut is_leaving = self.is_leaving;
        let read = loop {
            let frame = match link.input.next_frame() {
                Ok(Some(frame)) => frame,
                Ok(None) => break true,
                Err(_) => break false,
            };
            match frame.kind() {
                Kind::GoAway => is_leaving = true,
                Kind::Close => break false,
                _ => match Message::read(frame.shared()) {
                    Ok(message) => hear(&message),
                    Err(_) => break false,
                },
            }
        };
        if is_leaving && !self.is_leaving {
            self.is_leaving = true;
            self.dial();
        }
        read && received.is_ok()
    }

    /// Sends frames, if there is a link. What is not sent is sent again over the next one.
    pub fn send(&mut self, frames: &[u8]) {
        if let Some(link) = &mut self.link {
            link.output.extend_from_slice(frames);
        }
    }

    /// Writes what waits; whether the link still works.
    pub fn flush(&mut self) -> bool {
        self.link.as_mut().is_none_or(|link| link.flush().is_ok())
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// The gateways of a network that are not removed, and what proves the sessions.
fn read(
    network: &Path,
    credentials: Option<&PathBuf>,
) -> Result<(Gateways, Option<Credentials>), GatewayError> {
    let mut network = Network::read(network)?;
    if let Some(credentials) = credentials {
        network.secret = Some(credentials.clone());
    }
    let removed = &network.classes[Role::Gateway].removed;
    let gateways = network.nodes(Role::Gateway).iter().enumerate();
    let present = gateways.filter(|(at, _)| !removed.contains(&(*at as u16)));
    let present = present.map(|(at, node)| (at, node.address.clone())).collect();
    Ok((present, network.credentials()?))
}

/// One attempt; none if another one may succeed.
#[expect(clippy::disallowed_methods, reason = "in a thread of its own")]
fn attempt(
    network: &Path,
    credentials: Option<&PathBuf>,
    hellos: &[Who],
    step: usize,
) -> Option<ConnectResult> {
    // The file may be written at this moment.
    let Ok((gateways, credentials)) = read(network, credentials) else { return None };
    let (index, address) = &gateways[step % gateways.len()];
    match client::connect(address, hellos, credentials.as_ref(), ATTEMPT) {
        Ok(link) => Some(Ok((*index, link))),
        Err(source) if source.is_lasting() => {
            Some(Err(GatewayError::Refused { index: *index, source }))
        }
        Err(_) => None,
    }
}
