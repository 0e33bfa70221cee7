//! The run's end of its hosts: starts an agent on each by ssh, which starts, kills and ends nodes.
//!
//! A host can be cut off while it is used. Its agent and its nodes go on until the silence has
//! lasted [`crate::hosts::protocol::SILENCE_LIMIT`]; then both ends give up, each by itself.

use std::fs::{self, File};
use std::io::{self, BufReader, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use nm_ssh::{Patience, Started, quoted};
use nm_sys::clock::{Deadline, monotonic_ns};
use nm_sys::process::ChildProcess;
use nm_verify::recording::DATA;
use thiserror::Error;

use crate::bounded_lines::BoundedLines;
use crate::hosts::archive;
use crate::hosts::protocol::{ALIVE_INTERVAL, END_LIMIT, Report, Request, VERSION};
use crate::hosts::{Host, HostFiles};

/// How long all agents may take to be ready.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(30);

/// Why a host cannot be used.
#[derive(Debug, Error)]
pub enum HostError {
    /// Its agent cannot be started, or has gone.
    #[error(transparent)]
    Agent(#[from] nm_ssh::HostError),
    /// Its journals could not be copied.
    #[error("the journals of host {host} were not copied: {why}")]
    Journals {
        /// Destination of ssh.
        host: String,
        /// Why.
        why: String,
    },
}

/// What arrives from a host.
#[derive(Debug)]
pub enum Arrival {
    /// A report of its agent.
    Report(Report),
    /// The connection has ended.
    Ended,
}

/// The input of an agent, absent when it was closed.
type Input = Arc<Mutex<Option<ChildStdin>>>;

/// One host of a run, with its agent.
#[derive(Debug)]
pub struct Remote {
    host: Host,
    ssh: ChildProcess,
    input: Input,
    log: PathBuf,
    /// Folder of the agent.
    folder: PathBuf,
    /// When it reported last, ns on the monotonic clock.
    received_ns: Arc<AtomicU64>,
    is_lost: bool,
}

fn lock(input: &Input) -> MutexGuard<'_, Option<ChildStdin>> {
    // A thread that panicked has left a pipe, or none.
    input.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes a request. If the host has gone, its output ends as well.
fn send(input: &Input, request: &Request) {
    if let (Some(stdin), Ok(line)) = (lock(input).as_mut(), serde_json::to_string(request)) {
        let _ = stdin.write_all((line + "\n").as_bytes()).and_then(|()| stdin.flush());
    }
}

/// Starts an agent on each host, with its folder below `data`, and waits until all of them are
/// there. `arrivals` gets what `message` makes of the number of a host and what arrives from it,
/// `logs` the logs of ssh.
///
/// # Errors
/// The first host that cannot be used.
pub fn connect<M: Send + 'static>(
    hosts: &[Host],
    data: &Path,
    files: &HostFiles,
    logs: &Path,
    arrivals: &Sender<M>,
    message: fn(usize, Arrival) -> Option<M>,
) -> Result<Vec<Remote>, HostError> {
    let mut begun = vec![];
    for (number, host) in hosts.iter().enumerate() {
        begun.push(Remote::begin(host, data, logs, number, arrivals.clone(), message)?);
    }
    let deadline = Deadline::after(HANDSHAKE_LIMIT);
    let mut all = vec![];
    for (mut remote, first_report) in begun {
        remote.await_first_report(&first_report, deadline)?;
        let HostFiles { network, secret } = files;
        let (network, secret) = (network.clone(), secret.clone());
        send(&remote.input, &Request::Files { network, secret });
        all.push(remote);
    }
    Ok(all)
}

/// Asks each host again and again whether it is there, until the returned value is dropped.
pub fn keep_asking(hosts: &[Remote]) -> io::Result<Sender<()>> {
    let inputs: Vec<Input> = hosts.iter().map(|remote| remote.input.clone()).collect();
    let (guard, ended) = channel::<()>();
    let ask = move || {
        while ended.recv_timeout(ALIVE_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            inputs.iter().for_each(|input| send(input, &Request::Alive));
        }
    };
    thread::Builder::new().name("alive".into()).spawn(ask)?;
    Ok(guard)
}

impl Remote {
    fn begin<M: Send + 'static>(
        host: &Host,
        data: &Path,
        logs: &Path,
        number: usize,
        arrivals: Sender<M>,
        message: fn(usize, Arrival) -> Option<M>,
    ) -> Result<(Remote, Receiver<Report>), HostError> {
        let script = format!(
            "exec {} exchange host --data {}",
            quoted(&host.program),
            quoted(&data.display().to_string())
        );
        let no_ssh =
            |source| nm_ssh::HostError::NoSsh { host: host.destination.to_string(), source };
        let log = logs.join(format!("host-{number}.log"));
        let mut command = nm_ssh::command(&host.destination, &script, Patience::Long);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(File::create(&log).map_err(no_ssh)?);
        let mut ssh = ChildProcess::spawn(command).map_err(no_ssh)?;
        let input = Arc::new(Mutex::new(ssh.take_stdin()));
        let stdout = ssh.take_stdout().ok_or_else(|| no_ssh(io::Error::other("no output")))?;
        let received_ns = Arc::new(AtomicU64::new(monotonic_ns()));
        let received = received_ns.clone();
        let (first, first_report) = channel();
        let pass_on = move |arrival| {
            if let Some(message) = message(number, arrival) {
                let _ = arrivals.send(message);
            }
        };
        let read = move || {
            for line in BoundedLines::new(BufReader::new(stdout)) {
                // Shells may write what they like before the agent begins.
                let Ok(report) = serde_json::from_str::<Report>(&line) else { continue };
                received.store(monotonic_ns(), Ordering::Relaxed);
                match report {
                    Report::Ready { .. } => drop(first.send(report)),
                    _ => pass_on(Arrival::Report(report)),
                }
            }
            pass_on(Arrival::Ended);
        };
        let name = format!("host {number}");
        thread::Builder::new().name(name).spawn(read).map_err(no_ssh)?;
        let (host, folder, is_lost) = (host.clone(), PathBuf::new(), false);
        Ok((Remote { host, ssh, input, log, folder, received_ns, is_lost }, first_report))
    }

    /// Waits until the agent reports that it is ready.
    fn await_first_report(
        &mut self,
        first_report: &Receiver<Report>,
        deadline: Deadline,
    ) -> Result<(), HostError> {
        match first_report.recv_timeout(deadline.remaining()) {
            Ok(Report::Ready { version, folder }) if version == VERSION => {
                self.folder = folder;
                Ok(())
            }
            Ok(Report::Ready { version, .. }) => Err(self.started().other_version(&version).into()),
            Ok(_) | Err(RecvTimeoutError::Disconnected) => Err(self.ended()),
            Err(RecvTimeoutError::Timeout) => {
                self.is_lost = true;
                Err(self.silent(HANDSHAKE_LIMIT.as_secs()))
            }
        }
    }

    /// Why its agent has ended.
    pub fn ended(&mut self) -> HostError {
        self.is_lost = true;
        let code = self.ssh.wait_timeout(END_LIMIT).and_then(|status| status.code());
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        self.started().ended(code, text.lines()).into()
    }

    fn started(&self) -> Started {
        let Host { destination, program, .. } = &self.host;
        Started { host: destination.clone(), program: program.clone(), named_in: "the hosts file" }
    }

    fn silent(&self, seconds: u64) -> HostError {
        nm_ssh::HostError::Silent { host: self.host.destination.to_string(), seconds }.into()
    }

    /// Its destination.
    pub fn name(&self) -> &str {
        self.host.destination.as_str()
    }

    /// Address at which its nodes listen.
    pub fn address(&self) -> IpAddr {
        self.host.address
    }

    /// Sends a request.
    pub fn send(&self, request: &Request) {
        send(&self.input, request);
    }

    /// Whether it was given up.
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Gives it up if nothing was received for too long; why, if that is new.
    pub fn give_up_if_silent(&mut self, limit: Duration) -> Option<HostError> {
        let silent_ns = monotonic_ns().saturating_sub(self.received_ns.load(Ordering::Relaxed));
        if self.is_lost || u128::from(silent_ns) < limit.as_nanos() {
            return None;
        }
        self.is_lost = true;
        Some(self.silent(silent_ns / 1_000_000_000))
    }

    /// Copies the journals of its nodes, each in a folder of the node's name, to the folder `to`.
    ///
    /// # Errors
    /// If the host is lost, does not send them completely, or sends anything else. Then nothing of
    /// it is in `to`.
    pub fn copy_journals(&mut self, to: &Path, nodes: &[String]) -> Result<(), HostError> {
        let host = self.host.destination.to_string();
        let failed = |why: String| HostError::Journals { host: host.clone(), why };
        if self.is_lost {
            return Err(failed("it was lost before the end".to_string()));
        }
        fs::create_dir_all(to).map_err(|error| failed(error.to_string()))?;
        let from = self.folder.join(DATA).display().to_string();
        let script = format!("tar -C {} -cf - .", quoted(&from));
        let mut send = nm_ssh::command(&self.host.destination, &script, Patience::Short);
        let log = File::options().append(true).open(&self.log);
        let log = log.map_err(|error| failed(error.to_string()))?;
        send.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let mut send = ChildProcess::spawn(send).map_err(|error| failed(error.to_string()))?;
        let sent = send.take_stdout().ok_or_else(|| failed("ssh has no output".to_string()))?;
        // ssh ends by itself if the host is silent.
        let unpacked = archive::unpack(sent, to, nodes, &archive::LIMITS);
        match unpacked {
            Err(error) if !error.is_end() => {
                send.kill();
                Err(failed(error.to_string()))
            }
            unpacked => match (wait(&mut send), unpacked) {
                (Some(0), Ok(unpacked)) => {
                    unpacked.keep().map_err(|error| failed(error.to_string()))
                }
                (Some(0), Err(error)) => Err(failed(error.to_string())),
                (code, _) => {
                    let code = code.map_or("a signal".to_string(), |code| format!("code {code}"));
                    Err(failed(format!("ssh ended with {code}, see {}", self.log.display())))
                }
            },
        }
    }

    /// Closes the connection; the agent ends its nodes and removes its folder.
    pub fn close(&self) {
        *lock(&self.input) = None;
    }
}

/// Waits for a process that ends by itself; its exit code.
fn wait(process: &mut ChildProcess) -> Option<i32> {
    loop {
        if let Some(status) = process.wait_timeout(Duration::from_secs(1)) {
            return status.code();
        }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.close();
        if !self.is_lost {
            // What the host still has to do: end its nodes, and remove its folder.
            self.ssh.wait_timeout(2 * END_LIMIT);
        }
        self.ssh.kill();
        if fs::metadata(&self.log).is_ok_and(|log| log.len() == 0) {
            let _ = fs::remove_file(&self.log);
        }
    }
}
