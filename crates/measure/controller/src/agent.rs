//! The agent's end: connects out, waits for work, has a child do it, and connects again.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nm_sys::clock::Deadline;
use nm_sys::process::{ChildProcess, own_program};
use nm_sys::{random, socket};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use thiserror::Error;

use crate::backoff::Backoff;
use crate::hello::{self, Card, CardError, EntryToken, Refusal, Word};
use crate::link::{Link, LinkError};
use crate::tls::{self, Trust};

/// How long one address may take to answer.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// How long the handshake and the first lines may take.
const HELLO_LIMIT: Duration = Duration::from_secs(10);

/// How long the child may take to end after its session.
const CHILD_LIMIT: Duration = Duration::from_secs(5);

/// Silence after which the child ends, s: a run says every 5 s that it is there.
const SILENCE_LIMIT_S: &str = "30";

/// An agent that connects out.
pub struct Agent {
    /// Name or address of the controller.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// What lets the agent enter.
    pub token: EntryToken,
    /// How it knows the controller.
    pub trust: Trust,
    /// Its name, which no other agent of the controller has.
    pub name: String,
    /// Its labels by name.
    pub labels: BTreeMap<String, String>,
    /// Its address on the path that is measured; that of its connection if absent.
    pub address: Option<IpAddr>,
    /// A random number, which tells the agent from another one of its name.
    pub instance: u64,
}

/// What an agent tells its user.
#[derive(Debug)]
pub enum Notice {
    /// It waits for work.
    Waiting,
    /// A session has begun.
    Begun,
    /// It has no connection, and tries again.
    Lost(String),
}

/// Why an agent ends.
#[derive(Debug, Error)]
pub enum AgentError {
    /// It would always be refused.
    #[error("{at}: {refusal}")]
    Refused {
        /// The controller.
        at: String,
        /// Why.
        refusal: Refusal,
    },
    /// The controller is another one.
    #[error(
        "{at} is not the controller that this agent trusts ({why}); compare --pin with what the \
         controller prints, or --ca with its --certificate"
    )]
    Distrusted {
        /// The controller.
        at: String,
        /// Why.
        why: rustls::Error,
    },
    /// The card.
    #[error(transparent)]
    Card(#[from] CardError),
    /// TLS.
    #[error(transparent)]
    Tls(#[from] tls::TlsError),
    /// The name of the controller.
    #[error("`{0}` is no name of a host")]
    Host(String),
    /// Of the kernel.
    #[error(transparent)]
    System(#[from] io::Error),
}

impl Agent {
    /// Serves until the controller refuses the agent for good.
    ///
    /// # Errors
    /// Why it ends.
    pub fn run(self, notice: impl Fn(Notice)) -> Result<(), AgentError> {
        self.card(IpAddr::V4(Ipv4Addr::LOCALHOST)).check()?;
        let config = Arc::new(tls::client(&self.trust)?);
        let name = ServerName::try_from(self.host.clone())
            .map_err(|_| AgentError::Host(self.host.clone()))?;
        let mut backoff = Backoff::default();
        let mut last = String::new();
        loop {
            match self.attend(&config, &name, &notice, &mut backoff) {
                Ok(()) => last.clear(),
                Err(Lost::Final(error)) => return Err(error),
                Err(Lost::Later(why)) => {
                    // The same reason is said once.
                    if why != last {
                        notice(Notice::Lost(why.clone()));
                        last = why;
                    }
                    let [random] = random::bytes::<1>()?;
                    thread::sleep(backoff.next(random));
                }
            }
        }
    }

    /// What the agent says of itself over a connection from this address.
    fn card(&self, own: IpAddr) -> Card {
        Card {
            name: self.name.clone(),
            labels: self.labels.clone(),
            address: self.address.unwrap_or(own),
            instance: self.instance,
        }
    }

    /// One connection: from its begin to the end of its session.
    fn attend(
        &self,
        config: &Arc<ClientConfig>,
        name: &ServerName<'static>,
        notice: &impl Fn(Notice),
        backoff: &mut Backoff,
    ) -> Result<(), Lost> {
        let at = format!("{}:{}", self.host, self.port);
        let later = |why: &dyn std::fmt::Display| Lost::Later(format!("{at}: {why}"));
        let lost = |error: LinkError| match error {
            LinkError::Tls(why) if tls::is_distrust(&why) => {
                Lost::Final(AgentError::Distrusted { at: at.clone(), why })
            }
            other => later(&other),
        };
        let tcp = socket::connect_to_any((self.host.as_str(), self.port), CONNECT_LIMIT)
            .map_err(|error| later(&error))?;
        let mut link = Link::client(tcp, config, name.clone()).map_err(lost)?;
        let card = self.card(link.own_address().map_err(|error| later(&error))?);
        let deadline = Deadline::after(HELLO_LIMIT);
        link.send(&hello::first_line(&self.token, &card), deadline).map_err(lost)?;
        match word(&link.line(Some(deadline)).map_err(lost)?) {
            Some(Word::Welcome) => {}
            Some(Word::Refused(refusal)) if refusal.is_final() => {
                return Err(Lost::Final(AgentError::Refused { at: at.clone(), refusal }));
            }
            Some(Word::Refused(refusal)) => return Err(later(&refusal)),
            _ => return Err(later(&LinkError::Protocol)),
        }
        backoff.succeeded();
        notice(Notice::Waiting);
        match word(&link.line(None).map_err(lost)?) {
            Some(Word::Open) => {}
            _ => return Err(later(&LinkError::Protocol)),
        }
        notice(Notice::Begun);
        session(link).map_err(|error| later(&error))
    }
}

/// Why a connection has ended.
enum Lost {
    /// It is tried again.
    Later(String),
    Final(AgentError),
}

fn word(line: &str) -> Option<Word> {
    serde_json::from_str(line).ok()
}

/// Has a child of this program do the work: what it leaves ends with it.
fn session(link: Link) -> Result<(), LinkError> {
    let (own, of_child) = UnixStream::pair()?;
    let mut command = Command::new(own_program()?);
    command.args(["agent", "--silence-limit", SILENCE_LIMIT_S]);
    let output: OwnedFd = of_child.try_clone()?.into();
    command.stdin(Stdio::from(OwnedFd::from(of_child))).stdout(Stdio::from(output));
    let mut child = ChildProcess::spawn(command)?;
    let ended = link.relay(own);
    child.wait_timeout(CHILD_LIMIT);
    child.kill();
    ended
}
