//! The controller's side of one agent: requests with time-outs, and a clear sentence when the agent
//! has gone.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nm_model::agent::{PROTOCOL_VERSION, Stage, Task, TaskReport};
use nm_model::result::Statistic;
use nm_model::{Answer, Facts, Failure, FailureKind, Request, Side};
use nm_sys::process::ChildProcess;

use super::lines::{Line, Lines};
use super::listen::notice_death;
use super::{VERSION, spawn};

/// How long an agent may take for what should be at once.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long getting ready may take: connecting has a time-out of its own at the other end.
const PATIENCE_PREPARE: Duration = Duration::from_secs(20);

/// How long a cancelled task may take to end.
const PATIENCE_CANCEL: Duration = Duration::from_secs(5);

/// Lines of an agent's standard error that are kept to be quoted.
const SAID_LINES_MAX: usize = 20;

/// What a running task tells.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A current estimate.
    Progress(Statistic, f64),
    /// Some more raw samples, ns.
    Samples(Statistic, Vec<u32>),
    /// It has ended.
    Done(Box<TaskReport>),
}

enum Incoming {
    Answer(Answer),
    NoAnswer(String),
    End,
}

/// Which answer is still to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Busy {
    Idle,
    Preparing,
    Running,
}

/// A running agent.
pub struct Handle {
    name: String,
    output: Box<dyn Write + Send>,
    answers: Receiver<Incoming>,
    process: Option<ChildProcess>,
    stream: Option<TcpStream>,
    pid: u32,
    version: String,
    busy: Busy,
    gone: bool,
    said: Arc<Mutex<Vec<String>>>,
    /// Closes when the agent's standard error has ended.
    said_all: Option<Receiver<()>>,
}

impl Handle {
    /// Starts an agent as a child process and waits for its greeting. `name` is what sentences call
    /// it, such as ``agent `client` of netns``. What it writes on its standard error goes to the
    /// end of `log`, if given, and is quoted if the agent dies.
    ///
    /// # Errors
    /// If it does not start, is of another version, or is no agent.
    pub fn start(name: &str, command: Command, log: Option<&Path>) -> Result<Handle, Failure> {
        Handle::wait(Handle::launch(name, command, log)?)
    }

    /// As [`Handle::start`], without waiting for the greeting: see [`Handle::wait`].
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
        let said = handle.said.clone();
        let (open, closed) = channel();
        handle.said_all = Some(closed);
        spawn("agent's log", move || {
            keep(error, log, &said);
            drop(open);
        })?;
        Ok(handle)
    }

    /// Connects to an agent that listens at `address`.
    ///
    /// # Errors
    /// If nothing listens there, it is busy, of another version, or no agent.
    pub fn connect(name: &str, address: SocketAddr) -> Result<Handle, Failure> {
        let refused = |error: io::Error| {
            let failure = Failure::new(
                FailureKind::Peer,
                format!("cannot reach {name} at {address}: {error}"),
            );
            failure
                .hint("start it there first, with the subcommand `server`, and look at firewalls")
        };
        let stream = TcpStream::connect_timeout(&address, PATIENCE).map_err(refused)?;
        notice_death(&stream).map_err(refused)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(refused)?;
        let input = stream.try_clone().map_err(refused)?;
        let output = stream.try_clone().map_err(refused)?;
        let mut handle = Handle::over(name, input, output)?;
        handle.stream = Some(stream);
        Handle::wait(handle)
    }

    /// An agent in a thread of this process, so that a launcher in front of this process holds for
    /// it too.
    ///
    /// # Errors
    /// If the process has no descriptors or threads left.
    pub fn local(name: &str) -> Result<Handle, Failure> {
        let pipe = || {
            io::pipe().map_err(|error| {
                Failure::new(FailureKind::System, format!("cannot make a pipe: {error}"))
            })
        };
        let (requests, output) = pipe()?;
        let (input, answers) = pipe()?;
        spawn("agent", move || {
            // Its end is seen at the other end of the pipe.
            let _ = super::serve(requests, answers);
        })?;
        Handle::wait(Handle::over(name, input, output)?)
    }

    fn over(
        name: &str,
        input: impl Read + Send + 'static,
        output: impl Write + Send + 'static,
    ) -> Result<Handle, Failure> {
        let (sender, answers) = channel();
        spawn("answers", move || {
            let mut lines = Lines::new(input);
            loop {
                let incoming = match lines.next() {
                    Line::Text(text) => match serde_json::from_str(&text) {
                        Ok(answer) => Incoming::Answer(answer),
                        Err(_) => Incoming::NoAnswer(text),
                    },
                    Line::TooLong => Incoming::NoAnswer("a line without end".to_string()),
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
            output: Box::new(output),
            answers,
            process: None,
            stream: None,
            pid: 0,
            version: String::new(),
            busy: Busy::Idle,
            gone: false,
            said: Arc::default(),
            said_all: None,
        })
    }

    /// Waits for the greeting and checks the version.
    pub(crate) fn wait(mut self) -> Result<Handle, Failure> {
        match self.receive(PATIENCE)? {
            Answer::Hello { protocol: PROTOCOL_VERSION, version, pid } => {
                self.version = version;
                if self.process.is_none() {
                    self.pid = pid;
                }
                Ok(self)
            }
            Answer::Hello { protocol, version, .. } => Err(Failure::new(
                FailureKind::Peer,
                format!(
                    "{} is nearmetal {version} with protocol {protocol}, this is nearmetal \
                     {VERSION} with protocol {PROTOCOL_VERSION}",
                    self.name
                ),
            )
            .hint("install one version at both ends")),
            Answer::Failed(failure) => Err(failure),
            other => Err(self.confused(&other)),
        }
    }

    /// What sentences call the agent.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Process id: of the process that was started, or as the agent tells it.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Version of nearmetal at the agent's end.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Both ends' addresses of the connection to an agent over TCP: ours and the agent's.
    pub fn connection(&self) -> Option<(SocketAddr, SocketAddr)> {
        let stream = self.stream.as_ref()?;
        Some((stream.local_addr().ok()?, stream.peer_addr().ok()?))
    }

    /// Asks for the facts of the agent's machine.
    ///
    /// # Errors
    /// If the agent has gone or does not answer in time.
    pub fn describe(&mut self) -> Result<Facts, Failure> {
        self.settle()?;
        self.send(&Request::Describe)?;
        match self.receive(PATIENCE)? {
            Answer::Facts(facts) => Ok(*facts),
            Answer::Failed(failure) => Err(failure),
            other => Err(self.confused(&other)),
        }
    }

    /// Has the agent listen on `address` for `task`; gives the addresses that the peer connects to.
    ///
    /// # Errors
    /// The agent's own, or if it has gone or does not answer in time.
    pub fn listen(
        &mut self,
        side: Side,
        task: &Task,
        address: &str,
    ) -> Result<Vec<String>, Failure> {
        self.settle()?;
        let stage = Stage::Listen { address: address.to_string() };
        self.prepare(side, task, stage)?;
        self.prepared()
    }

    /// Asks the agent to connect to the peer's addresses, without waiting: see
    /// [`Handle::connected`]. Both ends may have to wait for each other.
    ///
    /// # Errors
    /// If the agent has gone.
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
        self.busy = Busy::Preparing;
        Ok(())
    }

    /// Waits until the agent has connected.
    ///
    /// # Errors
    /// The agent's own, or if it has gone or does not answer in time.
    pub fn connected(&mut self) -> Result<(), Failure> {
        self.prepared().map(|_| ())
    }

    fn prepared(&mut self) -> Result<Vec<String>, Failure> {
        let answer = self.receive(PATIENCE_PREPARE)?;
        self.busy = Busy::Idle;
        match answer {
            Answer::Prepared { addresses } => Ok(addresses),
            Answer::Failed(failure) => Err(failure),
            other => Err(self.confused(&other)),
        }
    }

    /// Starts the prepared task: see [`Handle::event`].
    ///
    /// # Errors
    /// If the agent has gone.
    pub fn run(&mut self) -> Result<(), Failure> {
        self.send(&Request::Run)?;
        self.busy = Busy::Running;
        Ok(())
    }

    /// The next event of the running task, or none within `timeout`.
    ///
    /// # Errors
    /// The task's own failure, or if the agent has gone.
    pub fn event(&mut self, timeout: Duration) -> Result<Option<Event>, Failure> {
        let answer = match self.answers.recv_timeout(timeout) {
            Err(RecvTimeoutError::Timeout) => return Ok(None),
            other => self.understand(other)?,
        };
        match answer {
            Answer::Progress { statistic, value } => Ok(Some(Event::Progress(statistic, value))),
            Answer::Samples { statistic, block } => match super::decode(&block) {
                Some(samples) => Ok(Some(Event::Samples(statistic, samples))),
                None => Err(self.confused(&Answer::Samples { statistic, block })),
            },
            Answer::Done(report) => {
                self.busy = Busy::Idle;
                Ok(Some(Event::Done(report)))
            }
            Answer::Failed(failure) => {
                self.busy = Busy::Idle;
                Err(failure)
            }
            other => Err(self.confused(&other)),
        }
    }

    /// Tells the agent to end its task; the end comes as an event. What is only prepared is let go.
    ///
    /// # Errors
    /// If the agent has gone.
    pub fn cancel(&mut self) -> Result<(), Failure> {
        self.send(&Request::Cancel)
    }

    /// Whether the agent was found to be gone.
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    /// Cancels what is under way and waits for its end, so that the next request is understood.
    ///
    /// # Errors
    /// If the agent has gone or does not come to an end.
    pub fn settle(&mut self) -> Result<(), Failure> {
        const ANSWERS_MAX: usize = 1 << 16;
        if self.busy == Busy::Idle {
            return Ok(());
        }
        self.cancel()?;
        for _ in 0..ANSWERS_MAX {
            // Samples and estimates may come before the end.
            if let Answer::Prepared { .. } | Answer::Failed(_) | Answer::Done(_) =
                self.receive(PATIENCE_CANCEL)?
            {
                self.busy = Busy::Idle;
                return Ok(());
            }
        }
        Err(self.silent(PATIENCE_CANCEL))
    }

    /// Says farewell and waits for the end of an agent of our own; what does not end is killed.
    /// May be called again.
    pub fn close(&mut self) {
        let _ = self.send(&Request::Bye);
        // The end of its input ends an agent too, whatever it is busy with.
        self.output = Box::new(io::sink());
        if let Some(mut process) = self.process.take() {
            process.wait_timeout(Duration::from_secs(2));
            process.kill();
        }
        if let Some(stream) = self.stream.take() {
            let _ = stream.shutdown(Shutdown::Write);
            // The agent's own end of the connection follows.
            while !matches!(self.answers.recv_timeout(PATIENCE_CANCEL), Ok(Incoming::End) | Err(_))
            {
            }
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn send(&mut self, request: &Request) -> Result<(), Failure> {
        let mut line = serde_json::to_vec(request)
            .map_err(|error| Failure::new(FailureKind::System, error.to_string()))?;
        line.push(b'\n');
        match self.output.write_all(&line).and_then(|()| self.output.flush()) {
            Ok(()) => Ok(()),
            Err(_) => Err(self.gone()),
        }
    }

    fn receive(&mut self, timeout: Duration) -> Result<Answer, Failure> {
        match self.answers.recv_timeout(timeout) {
            Err(RecvTimeoutError::Timeout) => Err(self.silent(timeout)),
            other => self.understand(other),
        }
    }

    fn understand(
        &mut self,
        incoming: Result<Incoming, RecvTimeoutError>,
    ) -> Result<Answer, Failure> {
        match incoming {
            Ok(Incoming::Answer(answer)) => Ok(answer),
            Ok(Incoming::NoAnswer(text)) => {
                let start: String = text.chars().take(80).collect();
                let message = format!("{} does not speak as an agent: `{start}`", self.name);
                Err(Failure::new(FailureKind::Peer, message)
                    .hint("it must be nearmetal, and nothing else may write on its output"))
            }
            Ok(Incoming::End) | Err(_) => Err(self.gone()),
        }
    }

    /// The agent has gone: how, and what it said last.
    fn gone(&mut self) -> Failure {
        self.gone = true;
        let name = &self.name;
        let how = match &mut self.process {
            None => format!("{name} has closed the connection"),
            Some(process) => match process.wait_timeout(Duration::from_secs(2)) {
                Some(status) => format!("{name} ended {}", ending(status)),
                None => format!("{name} has closed its output"),
            },
        };
        if let Some(all) = &self.said_all {
            // Not for ever: a child of the agent's may hold its standard error open.
            let _: Result<(), _> = all.recv_timeout(Duration::from_millis(500));
        }
        let failure = Failure::new(FailureKind::Peer, how);
        match self.said.lock().ok().and_then(|said| said.last().cloned()) {
            Some(last) => failure.hint(format!("its last words: {last}")),
            None => failure,
        }
    }

    fn silent(&self, timeout: Duration) -> Failure {
        let message = format!("{} did not answer for {} s", self.name, timeout.as_secs());
        Failure::new(FailureKind::Peer, message)
    }

    fn confused(&self, answer: &Answer) -> Failure {
        let line = serde_json::to_string(answer).unwrap_or_default();
        let start: String = line.chars().take(80).collect();
        let message = format!("{} answered what was not asked: `{start}`", self.name);
        Failure::new(FailureKind::Peer, message)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.close();
    }
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
fn keep(input: impl Read, mut log: Option<File>, said: &Mutex<Vec<String>>) {
    let mut input = BufReader::new(input);
    loop {
        let mut bytes = vec![];
        let line = input.by_ref().take(4096).read_until(b'\n', &mut bytes);
        if !matches!(line, Ok(1..)) {
            return;
        }
        if let Some(file) = &mut log {
            // A full disk must not end the agent.
            let _ = file.write_all(&bytes);
        }
        let text = String::from_utf8_lossy(&bytes).trim().to_string();
        if let (false, Ok(mut said)) = (text.is_empty(), said.lock()) {
            if said.len() == SAID_LINES_MAX {
                said.remove(0);
            }
            said.push(text);
        }
    }
}
