//! The controller's socket: runs of the same user on its machine list agents and open sessions.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nm_sys::clock::Deadline;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::registry::Known;

/// Longest request of a run, bytes.
pub(crate) const REQUEST_BYTES_MAX: u64 = 4096;

/// Longest answer, bytes: the list of all agents.
const ANSWER_BYTES_MAX: u64 = 32 << 20;

/// How long a session waits for an agent that is not there or in another session, and for a
/// controller that is being started again. Agents come back within
/// [`crate::backoff::LONGEST`].
pub const OPEN_LIMIT: Duration = Duration::from_secs(20);

/// Time between two looks.
pub(crate) const NAP: Duration = Duration::from_millis(50);

/// What a run asks for.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    List,
    Open { agent: String },
}

/// The answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    Agents(Vec<Known>),
    /// All that follows is the agent protocol.
    Opened(Box<Known>),
    Failed(String),
}

/// Why a controller gives nothing.
#[derive(Debug, Error)]
pub enum LocalError {
    /// Nobody is at its socket.
    #[error(
        "no controller is at {}: {source}; start one there by `nearmetal controller --socket`",
        path.display()
    )]
    NoController {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It has ended, or is something else.
    #[error("the controller at {} gave no answer: {why}", path.display())]
    NoAnswer {
        /// The socket.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// It says so.
    #[error("{0}")]
    Refused(String),
}

/// A session with an agent.
pub struct Session {
    /// Both directions of the agent protocol.
    pub stream: UnixStream,
    /// The agent.
    pub agent: Known,
}

impl Session {
    /// The agent's address on the path that is measured.
    pub fn address(&self) -> IpAddr {
        self.agent.card.address
    }
}

/// The agents of the controller at `socket`.
///
/// # Errors
/// If there is no controller.
pub fn list(socket: &Path) -> Result<Vec<Known>, LocalError> {
    let (_, answer) = ask(connect(socket)?, socket, &Request::List)?;
    match answer {
        Answer::Agents(agents) => Ok(agents),
        other => Err(unexpected(socket, &other)),
    }
}

/// Begins a session with an agent, for which it waits up to [`OPEN_LIMIT`], unless `interrupted`.
///
/// # Errors
/// If there is no controller, or no such agent.
pub fn open(
    socket: &Path,
    agent: &str,
    interrupted: &dyn Fn() -> bool,
) -> Result<Session, LocalError> {
    let deadline = Deadline::after(OPEN_LIMIT);
    loop {
        let opened = connect(socket).and_then(|stream| {
            let request = Request::Open { agent: agent.to_string() };
            let (stream, answer) = ask(stream, socket, &request)?;
            match answer {
                Answer::Opened(agent) => Ok(Session { stream, agent: *agent }),
                Answer::Failed(why) => Err(LocalError::Refused(why)),
                other => Err(unexpected(socket, &other)),
            }
        });
        match opened {
            Err(_) if !deadline.passed() && !interrupted() => thread::sleep(NAP),
            opened => return opened,
        }
    }
}

/// Whether a controller is at `socket`.
pub(crate) fn is_alive(socket: &Path) -> bool {
    UnixStream::connect(socket).is_ok()
}

fn connect(socket: &Path) -> Result<UnixStream, LocalError> {
    UnixStream::connect(socket)
        .map_err(|source| LocalError::NoController { path: socket.to_path_buf(), source })
}

fn unexpected(socket: &Path, answer: &Answer) -> LocalError {
    let why = match answer {
        Answer::Failed(why) => why.clone(),
        _ => "it answers something else".to_string(),
    };
    LocalError::NoAnswer { path: socket.to_path_buf(), why }
}

/// Sends a request and reads the line of its answer, and nothing of what follows it.
fn ask(
    stream: UnixStream,
    socket: &Path,
    request: &Request,
) -> Result<(UnixStream, Answer), LocalError> {
    let asked = || -> io::Result<Answer> {
        stream.set_read_timeout(Some(OPEN_LIMIT))?;
        let mut line = serde_json::to_string(request)?;
        line.push('\n');
        (&stream).write_all(line.as_bytes())?;
        // What follows the line of a session is the session's, so it is read byte by byte.
        let capacity = match request {
            Request::List => 64 << 10,
            Request::Open { .. } => 1,
        };
        let mut answer = vec![];
        let input = BufReader::with_capacity(capacity, &stream);
        input.take(ANSWER_BYTES_MAX).read_until(b'\n', &mut answer)?;
        stream.set_read_timeout(None)?;
        Ok(serde_json::from_slice(&answer)?)
    };
    match asked() {
        Ok(answer) => Ok((stream, answer)),
        Err(error) => {
            Err(LocalError::NoAnswer { path: socket.to_path_buf(), why: error.to_string() })
        }
    }
}
