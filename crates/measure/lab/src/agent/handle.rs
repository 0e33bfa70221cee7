//! The controller's end of one agent: sends requests, waits for answers with time-outs, and reports
//! how an agent ended.

use std::fs::File;
use std::io::{self, BufRead, BufReader, PipeWriter, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nm_model::agent::{PROTOCOL_VERSION, Stage, Task, TaskReport, Token};
use nm_model::result::Statistic;
use nm_model::{Answer, Facts, Failure, FailureKind, Request, Side};
use nm_sys::clock::Deadline;
use nm_sys::process::{ChildProcess, Signal};

use crate::agent::lines::{Line, Lines};
use crate::agent::samples;
use crate::agent::serve::{VERSION, serve};
use crate::agent::stream::Stream;
use crate::agent::thread::spawn;

/// Time-out of requests that should be answered immediately.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Time-out of preparing a task; connecting has a shorter time-out of its own in the agent.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(20);

/// Longest time from the cancellation of a task to its end.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);

/// How long an agent on a port may take to say goodbye.
const BYE_TIMEOUT: Duration = Duration::from_secs(2);

/// How much longer an agent in a guest may take.
const GUEST_SLOWNESS: u32 = 6;

/// Answers that wait to be read; an agent that sends more has to wait.
const ANSWERS_MAX: usize = 64;

/// Lines of an agent's standard error that are kept for error messages.
const STDERR_LINES_MAX: usize = 20;

/// Lines that the shell of another host may write before the one that is awaited.
const SHELL_LINES_MAX: usize = 10_000;

/// The input of an agent.
type Output = Arc<Mutex<Box<dyn Write + Send>>>;

/// Why the process that reaches an agent on another host has ended: from its exit code, if it has
/// one, and the last lines of its error output.
pub(crate) type EndOnHost = Box<dyn Fn(Option<i32>, &[String]) -> Failure + Send>;

/// Events of a running task.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A current estimate.
    Progress(Statistic, f64),
    /// Further raw samples, ns.
    Samples(Statistic, Vec<u32>),
    /// It has ended.
    Done(Box<TaskReport>),
}

enum Incoming {
    Answer(Answer),
    /// A line that is not an answer.
    Invalid(String),
    End,
}

/// The connection to an agent that is no child.
enum Connection {
    Tcp(TcpStream),
    /// Of a session at a controller.
    Unix(UnixStream),
}

impl Connection {
    /// Ends it; one that has ended already stays so.
    fn shutdown(&self, how: Shutdown) {
        let _ = match self {
            Connection::Tcp(stream) => stream.shutdown(how),
            Connection::Unix(stream) => stream.shutdown(how),
        };
    }
}

/// Which answer is outstanding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pending {
    Nothing,
    Prepare,
    Run,
}

/// Interval at which an agent elsewhere is told that this end is there.
const ALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// How often a start looks whether it is interrupted.
const INTERRUPT_STEP: Duration = Duration::from_millis(100);

/// How long the first question to an agent on a line waits for its answer; each next one waits
/// twice as long.
const ATTACH_WAIT_FIRST: Duration = Duration::from_secs(1);

/// What is on a line before an agent answers.
#[derive(Default)]
struct Noise {
    lines: usize,
    last: String,
}

impl Noise {
    fn add(&mut self, name: &str, line: String) -> Result<(), Failure> {
        (self.lines, self.last) = (self.lines + 1, line);
        if self.lines <= SHELL_LINES_MAX {
            return Ok(());
        }
        let message = format!("{name}: another program writes there without end");
        Err(Failure::new(FailureKind::Peer, message).hint("give the agent a port of its own"))
    }

    fn no_agent(&self, name: &str, limit: Duration) -> Failure {
        let mut message = format!("{name} did not answer for {} s", limit.as_secs());
        if self.lines > 0 {
            let start: String = self.last.chars().take(80).collect();
            message += &format!("; the last line there was `{}`", start.escape_debug());
        }
        Failure::new(FailureKind::Peer, message)
            .hint("start `nearmetal agent --serve-on DEVICE` in the guest, for one run at a time")
    }
}

/// Why an agent that was started has said nothing.
enum FirstWords {
    TimedOut,
    Interrupted,
}

/// A running agent.
pub struct Handle {
    name: String,
    output: Output,
    answers: Receiver<Incoming>,
    process: Option<ChildProcess>,
    stream: Option<Connection>,
    /// Of an agent on a stream that others made: dropping it ends the reading thread.
    attached: Option<PipeWriter>,
    pid: u32,
    version: String,
    pending: Pending,
    is_disconnected: bool,
    /// Factor of the time limits.
    slowness: u32,
    stderr_lines: Arc<Mutex<Vec<String>>>,
    /// Closes when the agent's standard error has ended.
    stderr_end: Option<Receiver<()>>,
    /// Of an agent on another host.
    end_on_host: Option<EndOnHost>,
    /// Ends the thread that tells an agent on another host that this end is there.
    alive: Option<Sender<()>>,
    /// Ends the wait for its first words once it is set.
    interrupted: Option<Arc<AtomicBool>>,
}

impl Handle {
    /// Starts an agent as a child process and completes the handshake. `name` is its name in error
    /// messages, such as ``agent `client` of netns``. Its standard error is appended to `log`, if
    /// given, and the last line of it is quoted if the agent ends unexpectedly.
    ///
    /// # Errors
    /// If it does not start, has another version, or is not an agent.
    pub fn start(name: &str, command: Command, log: Option<&Path>) -> Result<Handle, Failure> {
        Handle::handshake(Handle::launch(name, command, log)?)
    }

    /// As [`Handle::start`], without the handshake: see [`Handle::handshake`].
    pub(crate) fn launch(
        name: &str,
        mut command: Command,
        log: Option<&Path>,
    ) -> Result<Handle, Failure> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let program = command.get_program().to_string_lossy().into_owned();
        let log = match log {
            None => None,
            Some(path) => {
                Some(File::options().append(true).create(true).open(path).map_err(|error| {
                    Failure::new(
                        FailureKind::System,
                        format!("cannot write {}: {error}", path.display()),
                    )
                })?)
            }
        };
        let mut process =
            ChildProcess::spawn(command).map_err(|error| start_failure(name, &program, &error))?;
        let pid = process.pid();
        let (Some(input), Some(output), Some(error)) =
            (process.take_stdout(), process.take_stdin(), process.take_stderr())
        else {
            return Err(Failure::new(FailureKind::System, format!("{name} has no pipes")));
        };
        let mut handle = Handle::over(name, input, output)?;
        handle.pid = pid;
        handle.process = Some(process);
        let lines = handle.stderr_lines.clone();
        let (open, closed) = channel();
        handle.stderr_end = Some(closed);
        spawn("agent's log", move || {
            copy_stderr(error, log, &lines);
            drop(open);
        })?;
        Ok(handle)
    }

    /// Connects to an agent that listens at `address`.
    ///
    /// # Errors
    /// If nothing listens there, or the agent is busy, has another version, or is not an agent.
    pub fn connect(name: &str, address: SocketAddr) -> Result<Handle, Failure> {
        let refused = |error: io::Error| {
            let failure = Failure::new(
                FailureKind::Peer,
                format!("cannot reach {name} at {address}: {error}"),
            );
            failure.hint("start it there first with the subcommand `server`, and check firewalls")
        };
        let stream = TcpStream::connect_timeout(&address, ANSWER_TIMEOUT).map_err(refused)?;
        nm_sys::socket::set_for_agents(stream.as_fd()).map_err(refused)?;
        stream.set_write_timeout(Some(ANSWER_TIMEOUT)).map_err(refused)?;
        let input = stream.try_clone().map_err(refused)?;
        let output = stream.try_clone().map_err(refused)?;
        let mut handle = Handle::over(name, input, output)?;
        handle.stream = Some(Connection::Tcp(stream));
        Handle::handshake(handle)
    }

    /// An agent that has connected to a controller, over the stream of its session, without the
    /// handshake.
    pub(crate) fn over_session(name: &str, stream: UnixStream) -> Result<Handle, Failure> {
        let copy = || {
            stream.try_clone().map_err(|error| {
                Failure::new(FailureKind::System, format!("cannot reach {name}: {error}"))
            })
        };
        let mut handle = Handle::over(name, copy()?, copy()?)?;
        handle.stream = Some(Connection::Unix(stream));
        Ok(handle)
    }

    /// An agent in a thread of this process, so that a launcher of this process applies to it too.
    ///
    /// # Errors
    /// If the process has no descriptors or threads left.
    pub fn local(name: &str) -> Result<Handle, Failure> {
        let pipe = || {
            io::pipe().map_err(|error| {
                Failure::new(FailureKind::System, format!("cannot create a pipe: {error}"))
            })
        };
        let (requests, output) = pipe()?;
        let (input, answers) = pipe()?;
        spawn("agent", move || {
            // The controller notices the end of the pipe.
            let _ = serve(requests, answers);
        })?;
        Handle::handshake(Handle::over(name, input, output)?)
    }

    fn over(
        name: &str,
        input: impl Read + Send + 'static,
        output: impl Write + Send + 'static,
    ) -> Result<Handle, Failure> {
        let (sender, answers) = sync_channel(ANSWERS_MAX);
        spawn("answers", move || {
            let mut lines = Lines::new(input);
            loop {
                let incoming = match lines.next() {
                    Line::Text(text) => match serde_json::from_str(&text) {
                        Ok(answer) => Incoming::Answer(answer),
                        Err(_) => Incoming::Invalid(text),
                    },
                    Line::TooLong => Incoming::Invalid("a line that is too long".to_string()),
                    Line::End => Incoming::End,
                };
                let last = matches!(incoming, Incoming::End);
                if sender.send(incoming).is_err() || last {
                    return;
                }
            }
        })?;
        Ok(Handle {
            name: name.to_string(),
            output: Arc::new(Mutex::new(Box::new(output))),
            answers,
            process: None,
            stream: None,
            attached: None,
            pid: 0,
            version: String::new(),
            pending: Pending::Nothing,
            is_disconnected: false,
            slowness: 1,
            stderr_lines: Arc::default(),
            stderr_end: None,
            end_on_host: None,
            alive: None,
            interrupted: None,
        })
    }

    /// Waits for the agent's `hello` and checks the version.
    pub(crate) fn handshake(self) -> Result<Handle, Failure> {
        self.handshake_within(ANSWER_TIMEOUT)
    }

    /// As [`Handle::handshake`], for an agent in a guest that has just been started: it answers
    /// within `timeout`, and all its time limits are longer, as an emulated processor is slow.
    pub(crate) fn handshake_of_guest(mut self, timeout: Duration) -> Result<Handle, Failure> {
        self.slowness = GUEST_SLOWNESS;
        self.handshake_within(timeout)
    }

    /// Waits for the agent's first words only as long as this is not set.
    pub(crate) fn wait_until_interrupted(&mut self, interrupted: Option<Arc<AtomicBool>>) {
        self.interrupted = interrupted;
    }

    /// The next line while the agent starts.
    fn first_words(&self, limit: Duration) -> Result<Incoming, FirstWords> {
        let deadline = Deadline::after(limit);
        loop {
            if self.interrupted.as_ref().is_some_and(|flag| flag.load(Ordering::Relaxed)) {
                return Err(FirstWords::Interrupted);
            }
            match self.answers.recv_timeout(deadline.remaining().min(INTERRUPT_STEP)) {
                Ok(incoming) => return Ok(incoming),
                Err(RecvTimeoutError::Timeout) if deadline.remaining().is_zero() => {
                    return Err(FirstWords::TimedOut);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(Incoming::End),
            }
        }
    }

    fn without_first_words(&self, reason: &FirstWords, limit: Duration) -> Failure {
        match reason {
            FirstWords::TimedOut => self.timed_out(limit),
            FirstWords::Interrupted => {
                let message = format!("the start of {} was cancelled", self.name);
                Failure::new(FailureKind::Cancelled, message)
            }
        }
    }

    /// Of an agent on another host: how its end is explained.
    pub(crate) fn explain_end(&mut self, end_on_host: EndOnHost) {
        self.end_on_host = Some(end_on_host);
    }

    /// Waits until the shell of another host has written a line that begins with `start`; returns
    /// the rest of it. Shells may write what they like before.
    pub(crate) fn shell_line(&mut self, start: &str, limit: Duration) -> Result<String, Failure> {
        let deadline = Deadline::after(limit);
        for _ in 0..SHELL_LINES_MAX {
            match self.first_words(deadline.remaining()) {
                Ok(Incoming::Invalid(line)) => {
                    if let Some(rest) = line.strip_prefix(start) {
                        return Ok(rest.trim().to_string());
                    }
                }
                Err(reason) => return Err(self.without_first_words(&reason, limit)),
                Ok(other) => {
                    let answer = self.answer_of(Ok(other))?;
                    return Err(self.unexpected(&answer));
                }
            }
        }
        let message = format!("{}: its shell writes without end", self.name);
        Err(Failure::new(FailureKind::Peer, message))
    }

    /// Writes bytes that are no request, such as a program for the shell that starts it.
    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let written = {
            let mut output = lock(&self.output);
            output.write_all(bytes).and_then(|()| output.flush())
        };
        written.map_err(|_| self.disconnected())
    }

    /// Tells the agent at an interval that this end is there, until the session ends.
    pub(crate) fn keep_alive(&mut self) -> Result<(), Failure> {
        let mut line = serde_json::to_vec(&Request::Alive)
            .map_err(|error| Failure::new(FailureKind::System, error.to_string()))?;
        line.push(b'\n');
        let output = self.output.clone();
        let (alive, ended) = channel::<()>();
        spawn("alive", move || {
            while ended.recv_timeout(ALIVE_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                let mut output = lock(&output);
                if output.write_all(&line).and_then(|()| output.flush()).is_err() {
                    return;
                }
            }
        })?;
        self.alive = Some(alive);
        Ok(())
    }

    /// Has the agent accept connections from `peer` only; returns the name of the link that has the
    /// address `own` there, none if none has it.
    ///
    /// # Errors
    /// If the agent cannot read its addresses, has disconnected or does not answer in time.
    pub fn path(&mut self, own: IpAddr, peer: IpAddr) -> Result<Option<String>, Failure> {
        self.cancel_and_wait()?;
        self.send(&Request::Path { own, peer })?;
        match self.receive(self.limit(ANSWER_TIMEOUT))? {
            Answer::Path { link } => Ok(link),
            Answer::Failed(failure) => Err(failure),
            other => Err(self.unexpected(&other)),
        }
    }

    /// As [`Handle::handshake`], for an agent that answers within `timeout`.
    pub(crate) fn handshake_within(mut self, timeout: Duration) -> Result<Handle, Failure> {
        let first = self
            .first_words(timeout)
            .map_err(|reason| self.without_first_words(&reason, timeout))?;
        match self.answer_of(Ok(first))? {
            Answer::Hello { protocol: PROTOCOL_VERSION, version, pid, .. } => {
                self.version = version;
                if self.process.is_none() {
                    self.pid = pid;
                }
                Ok(self)
            }
            Answer::Hello { protocol, version, .. } => Err(self.other_protocol(protocol, &version)),
            Answer::Failed(failure) => Err(failure),
            other => Err(self.unexpected(&other)),
        }
    }

    fn other_protocol(&self, protocol: u32, version: &str) -> Failure {
        let message = format!(
            "{} is nearmetal {version} with protocol {protocol}, this is nearmetal {VERSION} with \
             protocol {PROTOCOL_VERSION}",
            self.name
        );
        Failure::new(FailureKind::Peer, message).hint("install the same version at both ends")
    }

    /// Attaches to an agent that runs already, at the other end of `stream`. Whatever is on the
    /// stream before its greeting is left aside. Such an agent may be in an emulated guest, so its
    /// time limits are longer.
    ///
    /// # Errors
    /// If nothing answers as an agent within `limit`, or one of another version.
    pub(crate) fn attach(
        name: &str,
        stream: Stream,
        mut token: impl FnMut() -> io::Result<Token>,
        limit: Duration,
        interrupted: Option<Arc<AtomicBool>>,
    ) -> Result<Handle, Failure> {
        let Stream { input, output, open } = stream;
        let mut handle = Handle::over(name, input, output)?;
        handle.attached = Some(open);
        handle.slowness = GUEST_SLOWNESS;
        handle.interrupted = interrupted;
        let deadline = Deadline::after(limit);
        let mut wait = ATTACH_WAIT_FIRST;
        let mut noise = Noise::default();
        while !deadline.passed() {
            let token = token().map_err(|error| {
                Failure::new(FailureKind::System, format!("there is no random token: {error}"))
            })?;
            // The line break ends what an earlier controller may have begun.
            handle.send_bytes(b"\n")?;
            handle.send(&Request::Attach { token })?;
            let until = Deadline::after(wait.min(deadline.remaining()));
            if handle.is_greeted(token, until, &mut noise)? {
                return Ok(handle);
            }
            wait *= 2;
        }
        Err(noise.no_agent(name, limit))
    }

    /// Whether the agent greets with this token until then.
    fn is_greeted(
        &mut self,
        wanted: Token,
        until: Deadline,
        noise: &mut Noise,
    ) -> Result<bool, Failure> {
        loop {
            match self.first_words(until.remaining()) {
                Ok(Incoming::Answer(Answer::Hello { protocol, version, .. }))
                    if protocol != PROTOCOL_VERSION =>
                {
                    return Err(self.other_protocol(protocol, &version));
                }
                Ok(Incoming::Answer(Answer::Hello { version, pid, token, .. }))
                    if token == Some(wanted) =>
                {
                    (self.version, self.pid) = (version, pid);
                    return Ok(true);
                }
                // Of an earlier session.
                Ok(Incoming::Answer(_)) => {}
                Ok(Incoming::Invalid(line)) => noise.add(&self.name, line)?,
                Ok(Incoming::End) => return Err(self.disconnected()),
                Err(FirstWords::TimedOut) => return Ok(false),
                Err(reason) => return Err(self.without_first_words(&reason, Duration::ZERO)),
            }
        }
    }

    /// The agent's name in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Process id: of the child process, or the one that the agent reported.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Version of nearmetal at the agent's end.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Both ends' addresses of the connection to an agent over TCP: ours and the agent's.
    pub fn connection(&self) -> Option<(SocketAddr, SocketAddr)> {
        let Connection::Tcp(stream) = self.stream.as_ref()? else { return None };
        Some((stream.local_addr().ok()?, stream.peer_addr().ok()?))
    }

    /// Requests the facts of the agent's machine.
    ///
    /// # Errors
    /// If the agent has disconnected or does not answer in time.
    pub fn describe(&mut self) -> Result<Facts, Failure> {
        self.cancel_and_wait()?;
        self.send(&Request::Describe)?;
        match self.receive(self.limit(ANSWER_TIMEOUT))? {
            Answer::Facts(facts) => Ok(*facts),
            Answer::Failed(failure) => Err(failure),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Makes the agent listen on `address` for `task`; returns the addresses for the peer.
    ///
    /// # Errors
    /// The agent's own failure, or if it has disconnected or does not answer in time.
    pub fn listen(
        &mut self,
        side: Side,
        task: &Task,
        address: &str,
    ) -> Result<Vec<String>, Failure> {
        self.cancel_and_wait()?;
        let stage = Stage::Listen { address: address.to_string() };
        self.prepare(side, task, stage)?;
        self.wait_prepared()
    }

    /// Makes the agent connect to the peer's addresses, without waiting: see
    /// [`Handle::wait_connected`]. Both ends may have to wait for each other.
    ///
    /// # Errors
    /// If the agent has disconnected.
    pub fn start_connecting(
        &mut self,
        side: Side,
        task: &Task,
        addresses: &[String],
    ) -> Result<(), Failure> {
        self.prepare(side, task, Stage::Connect { addresses: addresses.to_vec() })
    }

    fn prepare(&mut self, side: Side, task: &Task, stage: Stage) -> Result<(), Failure> {
        self.send(&Request::Prepare { side, task: Box::new(task.clone()), stage })?;
        self.pending = Pending::Prepare;
        Ok(())
    }

    /// Waits until the agent has connected.
    ///
    /// # Errors
    /// The agent's own failure, or if it has disconnected or does not answer in time.
    pub fn wait_connected(&mut self) -> Result<(), Failure> {
        self.wait_prepared().map(|_| ())
    }

    fn wait_prepared(&mut self) -> Result<Vec<String>, Failure> {
        let answer = self.receive(self.limit(PREPARE_TIMEOUT))?;
        self.pending = Pending::Nothing;
        match answer {
            Answer::Prepared { addresses } => Ok(addresses),
            Answer::Failed(failure) => Err(failure),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Starts the prepared task: see [`Handle::event`].
    ///
    /// # Errors
    /// If the agent has disconnected.
    pub fn run(&mut self) -> Result<(), Failure> {
        self.send(&Request::Run)?;
        self.pending = Pending::Run;
        Ok(())
    }

    /// The next event of the running task, or none within `timeout`.
    ///
    /// # Errors
    /// The task's own failure, or if the agent has disconnected.
    pub fn event(&mut self, timeout: Duration) -> Result<Option<Event>, Failure> {
        let answer = match self.answers.recv_timeout(timeout) {
            Err(RecvTimeoutError::Timeout) => return Ok(None),
            other => self.answer_of(other)?,
        };
        match answer {
            Answer::Progress { statistic, value } => Ok(Some(Event::Progress(statistic, value))),
            Answer::Samples { statistic, block } => match samples::decode(&block) {
                Some(samples) => Ok(Some(Event::Samples(statistic, samples))),
                None => Err(self.unexpected(&Answer::Samples { statistic, block })),
            },
            Answer::Done(report) => {
                self.pending = Pending::Nothing;
                Ok(Some(Event::Done(report)))
            }
            Answer::Failed(failure) => {
                self.pending = Pending::Nothing;
                Err(failure)
            }
            other => Err(self.unexpected(&other)),
        }
    }

    /// Cancels the agent's task. The end of a running task arrives as an event; a task that is only
    /// prepared is dropped without one.
    ///
    /// # Errors
    /// If the agent has disconnected.
    pub fn cancel(&mut self) -> Result<(), Failure> {
        self.send(&Request::Cancel)
    }

    /// The time limit of this agent for what a program on this host does within `limit`.
    pub(crate) fn limit(&self, limit: Duration) -> Duration {
        limit * self.slowness
    }

    /// Sends a signal to the process that this handle has started.
    pub(crate) fn signal(&mut self, signal: Signal) {
        if let Some(process) = &mut self.process {
            process.signal(signal);
        }
    }

    /// Whether the agent has disconnected.
    pub fn is_disconnected(&self) -> bool {
        self.is_disconnected
    }

    /// Cancels the outstanding request and waits for its answer, so that the agent is ready for the
    /// next request.
    ///
    /// # Errors
    /// If the agent has disconnected or the request does not end in time.
    pub fn cancel_and_wait(&mut self) -> Result<(), Failure> {
        const LATE_ANSWERS_MAX: usize = 1 << 16;
        if self.pending == Pending::Nothing {
            return Ok(());
        }
        self.cancel()?;
        let limit = self.limit(CANCEL_TIMEOUT);
        for _ in 0..LATE_ANSWERS_MAX {
            // Samples and progress may arrive before the end.
            if let Answer::Prepared { .. } | Answer::Failed(_) | Answer::Done(_) =
                self.receive(limit)?
            {
                self.pending = Pending::Nothing;
                return Ok(());
            }
        }
        Err(self.timed_out(limit))
    }

    /// Ends the session. Waits for the end of an agent that was started by this handle, and kills
    /// it if it does not end. May be called again.
    pub fn close(&mut self) {
        let _ = self.send(&Request::Bye);
        self.alive = None;
        if self.attached.is_some() && !self.is_disconnected {
            // A guest that is cut off in the middle of its last answer might keep it.
            let limit = Deadline::after(BYE_TIMEOUT);
            let next = || self.answers.recv_timeout(limit.remaining());
            let is_last =
                |it: &Incoming| matches!(it, Incoming::End | Incoming::Answer(Answer::Bye));
            while !limit.passed() && next().is_ok_and(|it| !is_last(&it)) {}
        }
        self.attached = None;
        // The end of its input ends a busy agent too.
        *lock(&self.output) = Box::new(io::sink());
        if let Some(mut process) = self.process.take() {
            // Nobody reads its answers any more, so it does not wait to write them.
            self.answers = channel().1;
            process.wait_timeout(Duration::from_secs(2));
            process.kill();
        }
        if let Some(stream) = self.stream.take() {
            stream.shutdown(Shutdown::Write);
            // Waits until the agent has closed its end as well, but not for one that goes on.
            let limit = Deadline::after(CANCEL_TIMEOUT);
            let next = || self.answers.recv_timeout(limit.remaining());
            while !limit.passed() && !matches!(next(), Ok(Incoming::End) | Err(_)) {}
            stream.shutdown(Shutdown::Both);
        }
    }

    fn send(&mut self, request: &Request) -> Result<(), Failure> {
        let mut line = serde_json::to_vec(request)
            .map_err(|error| Failure::new(FailureKind::System, error.to_string()))?;
        line.push(b'\n');
        let written = {
            let mut output = lock(&self.output);
            output.write_all(&line).and_then(|()| output.flush())
        };
        written.map_err(|_| self.disconnected())
    }

    fn receive(&mut self, timeout: Duration) -> Result<Answer, Failure> {
        match self.answers.recv_timeout(timeout) {
            Err(RecvTimeoutError::Timeout) => Err(self.timed_out(timeout)),
            other => self.answer_of(other),
        }
    }

    fn answer_of(
        &mut self,
        incoming: Result<Incoming, RecvTimeoutError>,
    ) -> Result<Answer, Failure> {
        match incoming {
            Ok(Incoming::Answer(answer)) => Ok(answer),
            Ok(Incoming::Invalid(text)) => {
                let start: String = text.chars().take(80).collect();
                let message = format!("{} does not use the agent protocol: `{start}`", self.name);
                Err(Failure::new(FailureKind::Peer, message)
                    .hint("it must be nearmetal, and nothing else may write to its output"))
            }
            Ok(Incoming::End) | Err(_) => Err(self.disconnected()),
        }
    }

    /// The failure of an agent that has disconnected: how it ended, and the last line of its
    /// standard error.
    fn disconnected(&mut self) -> Failure {
        self.is_disconnected = true;
        if self.end_on_host.is_some() {
            return self.ended_on_host();
        }
        let name = &self.name;
        let how = match &mut self.process {
            None => format!("{name} has closed the connection"),
            Some(process) => match process.wait_timeout(Duration::from_secs(2)) {
                Some(status) => format!("{name} ended {}", ending(status)),
                None => format!("{name} has closed its output"),
            },
        };
        self.wait_for_stderr();
        let failure = Failure::new(FailureKind::Peer, how);
        match self.stderr_lines.lock().ok().and_then(|lines| last_reason(&lines).cloned()) {
            Some(last) => failure.hint(format!("the last line of its error output: {last}")),
            None => failure,
        }
    }

    /// Waits for the end of the agent's standard error, but not for long: a child process of the
    /// agent may hold it open.
    fn wait_for_stderr(&self) {
        if let Some(end) = &self.stderr_end {
            let _: Result<(), _> = end.recv_timeout(Duration::from_millis(500));
        }
    }

    /// The failure of an agent on another host that has disconnected.
    fn ended_on_host(&mut self) -> Failure {
        let process = self.process.as_mut();
        let status = process.and_then(|process| process.wait_timeout(Duration::from_secs(2)));
        self.wait_for_stderr();
        let lines = self.stderr_lines.lock().map(|lines| lines.clone()).unwrap_or_default();
        match &self.end_on_host {
            Some(explain) => explain(status.and_then(|status| status.code()), &lines),
            None => Failure::new(FailureKind::Peer, format!("{} has ended", self.name)),
        }
    }

    fn timed_out(&self, timeout: Duration) -> Failure {
        let message = format!("{} did not answer for {} s", self.name, timeout.as_secs());
        Failure::new(FailureKind::Peer, message)
    }

    fn unexpected(&self, answer: &Answer) -> Failure {
        let line = serde_json::to_string(answer).unwrap_or_default();
        let start: String = line.chars().take(80).collect();
        let message = format!("{} sent an unexpected answer: `{start}`", self.name);
        Failure::new(FailureKind::Peer, message)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.close();
    }
}

fn lock(output: &Output) -> MutexGuard<'_, Box<dyn Write + Send>> {
    // A thread that panicked has left a stream all the same.
    output.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The last line of an error output that may say why its process ended.
fn last_reason(lines: &[String]) -> Option<&String> {
    // The kernel of a guest writes this last of all, after what its agent has to say.
    let is_reason = |line: &&String| !line.ends_with("reboot: Power down");
    lines.iter().rev().find(is_reason).or(lines.last())
}

/// How a process ended, as a clause after `ended`.
fn ending(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("by signal {signal}"),
        (None, Some(code)) => format!("with exit code {code}"),
        (None, None) => "in an unknown way".to_string(),
    }
}

fn start_failure(name: &str, program: &str, error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::NotFound => Failure::new(
            FailureKind::NotAvailable,
            format!("cannot start {name}: `{program}` is not installed"),
        ),
        io::ErrorKind::PermissionDenied => Failure::new(
            FailureKind::Permission,
            format!("no permission to start {name} (`{program}`): {error}"),
        ),
        _ => {
            Failure::new(FailureKind::System, format!("cannot start {name} (`{program}`): {error}"))
        }
    }
}

/// Copies an agent's standard error to its log, and keeps the last lines.
fn copy_stderr(input: impl Read, mut log: Option<File>, last_lines: &Mutex<Vec<String>>) {
    let mut input = BufReader::new(input);
    loop {
        let mut bytes = vec![];
        let line = input.by_ref().take(4096).read_until(b'\n', &mut bytes);
        if !matches!(line, Ok(1..)) {
            return;
        }
        if let Some(file) = &mut log {
            // A full disk must not close the pipe into which the agent writes.
            let _ = file.write_all(&bytes);
        }
        let text = String::from_utf8_lossy(&bytes).trim().to_string();
        if let (false, Ok(mut lines)) = (text.is_empty(), last_lines.lock()) {
            if lines.len() == STDERR_LINES_MAX {
                lines.remove(0);
            }
            lines.push(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use nm_model::jitter::JitterSpec;
    use nm_model::probe::Work;
    use nm_model::{Mode, Protocol, Stack};

    use super::*;
    use crate::agent::serve::serve_lasting;

    #[test]
    fn power_off_of_a_guest_is_not_its_reason() {
        let last = |lines: &[&str]| {
            let lines: Vec<String> = lines.iter().map(ToString::to_string).collect();
            last_reason(&lines).cloned()
        };
        let off = "[   90.468290] reboot: Power down";
        let reason = "nearmetal guest: eth0 has no carrier; powering off";
        assert_eq!(last(&["warning", reason, off]).as_deref(), Some(reason));
        assert_eq!(last(&[reason, "Kernel panic"]).as_deref(), Some("Kernel panic"));
        assert_eq!(last(&[off]).as_deref(), Some(off));
        assert_eq!(last(&[]), None);
    }

    /// Attaches to what is behind `far`.
    fn attached(far: &UnixStream, limit: Duration) -> Result<Handle, Failure> {
        let mut count = 0u8;
        let token = || {
            count += 1;
            Ok(Token([count; 16]))
        };
        let stream = Stream::of(far.try_clone().unwrap()).unwrap();
        Handle::attach("the agent", stream, token, limit, None)
    }

    const PATIENCE: Duration = Duration::from_secs(60);

    /// A task that would take an hour.
    fn begin_an_hour(handle: &mut Handle) {
        let stack = Stack { launcher: None, protocol: Protocol::Cpu, mode: Mode::Spin };
        let work = Work::Jitter(JitterSpec { seconds: 3600.0, ..JitterSpec::default() });
        let token = Token::default();
        let task = Task { stack, cpus: vec![], work, seed: 0, raw_samples: false, token };
        handle.listen(Side::Client, &task, "127.0.0.1").unwrap();
        handle.run().unwrap();
    }

    #[test]
    fn an_agent_on_a_line_is_found_behind_noise_and_forgets_who_left() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let mut console = near.try_clone().unwrap();
        console.write_all(b"[    0.1] Linux\n{\"answer\":\"bye\"}\n\xff\xfelogin: ").unwrap();
        // An earlier controller was killed in the middle of a line.
        far.write_all(b"{\"do\":\"descr").unwrap();
        let Stream { input, output, open } = Stream::of(near).unwrap();
        let serving = std::thread::spawn(move || serve_lasting(input, output, PATIENCE));
        let mut first = attached(&far, PATIENCE).unwrap();
        assert!(first.describe().unwrap().cpu.online >= 1);
        begin_an_hour(&mut first);
        // It is gone without a word, and its task with it.
        first.output = Arc::new(Mutex::new(Box::new(io::sink())));
        first.is_disconnected = true;
        drop(first);
        let mut second = attached(&far, PATIENCE).unwrap();
        assert_eq!(second.version(), VERSION);
        begin_an_hour(&mut second);
        second.cancel_and_wait().unwrap();
        second.close();
        let mut third = attached(&far, PATIENCE).unwrap();
        assert!(third.describe().is_ok());
        drop((third, open));
        assert_eq!(serving.join().unwrap(), Ok(()));
    }

    #[test]
    fn a_task_whose_controller_is_silent_ends() {
        let (near, far) = UnixStream::pair().unwrap();
        let Stream { input, output, open: _open } = Stream::of(near).unwrap();
        std::thread::spawn(move || serve_lasting(input, output, Duration::from_millis(300)));
        let mut handle = attached(&far, PATIENCE).unwrap();
        begin_an_hour(&mut handle);
        // Without `alive`, the hour is cut short.
        let ended = loop {
            match handle.event(PATIENCE) {
                Ok(Some(Event::Progress(..) | Event::Samples(..))) => {}
                other => break other,
            }
        };
        assert!(matches!(ended, Ok(Some(Event::Done(_))) | Err(_)), "{ended:?}");
        assert!(!handle.is_disconnected());
        assert!(handle.describe().is_ok());
    }

    #[test]
    fn what_is_no_agent_on_a_line_is_named_in_one_sentence() {
        let limit = Duration::from_millis(50);
        let said = |text: &str, limit| {
            let (mut near, far) = UnixStream::pair().unwrap();
            near.write_all(text.as_bytes()).unwrap();
            attached(&far, limit).err().unwrap().to_string()
        };
        let login = said("debian login: \n", limit);
        assert!(login.starts_with("the agent did not answer for 0 s; the last line there was"));
        assert!(
            login.contains("`debian login:`; start `nearmetal agent --serve-on DEVICE`"),
            "{login}"
        );
        assert!(said("", limit).starts_with("the agent did not answer for 0 s; start"));
        let old = r#"{"answer":"hello","protocol":4,"version":"0.0.9","pid":1}"#;
        let old = said(&format!("{old}\n"), PATIENCE);
        assert!(old.contains("is nearmetal 0.0.9 with protocol 4, this is"), "{old}");
        let endless = said(&"x\n".repeat(SHELL_LINES_MAX + 1), PATIENCE);
        assert!(endless.contains("another program writes there without end; give"), "{endless}");
        let (near, far) = UnixStream::pair().unwrap();
        drop(near);
        let gone = attached(&far, PATIENCE).err().unwrap().to_string();
        assert_eq!(gone, "the agent has closed the connection");
    }
}
