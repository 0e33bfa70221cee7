//! Other runs of nearmetal that measure on this machine at the same time.
//!
//! Each run listens on an abstract Unix socket, `nearmetal-measurement-N` with the first free N,
//! and connects once to the sockets of all others. The kernel states which process is at the other
//! end, whoever its user is, so both runs know of each other. An abstract name has no file and no
//! permissions, and the kernel removes it when the process ends, in whichever way. Such names are
//! local to a network namespace: a run in a container with a network of its own is not seen.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use jiff::Timestamp;
use nm_report::style::clean;
use nm_sys::unix::peer_process;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// Most runs at the same time that have a name each.
const NUMBERS: u32 = 32;

/// Most runs that are reported at once.
const REPORTED_MAX: usize = 64;

/// Longest part of a command that is shown, characters.
const COMMAND_MAX: usize = 120;

/// The socket of this run, and which other runs were reported.
pub struct ConcurrentRuns {
    /// Absent if no name is free, or the system has no such sockets.
    listener: Option<UnixListener>,
    known: BTreeSet<Option<u32>>,
    /// Found at the start and not reported yet.
    found: Vec<OtherRun>,
}

/// Another run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherRun {
    /// Its process; absent if it is in a process namespace that cannot be seen from here.
    pid: Option<u32>,
    /// Its command line.
    command: Option<String>,
    /// When its process began.
    started: Option<Timestamp>,
}

impl ConcurrentRuns {
    /// Listens for other runs, and finds those that listen already.
    pub fn announce() -> ConcurrentRuns {
        let mut own = None;
        for number in 0..NUMBERS {
            if let Ok(listener) = listen(number) {
                own = Some((number, listener));
                break;
            }
        }
        let own_number = own.as_ref().map(|(number, _)| *number);
        let mut runs = ConcurrentRuns {
            listener: own.map(|(_, listener)| listener),
            known: BTreeSet::from([Some(std::process::id())]),
            found: vec![],
        };
        for number in (0..NUMBERS).filter(|number| Some(*number) != own_number) {
            if let Some(pid) = holder(number) {
                runs.add(pid);
            }
        }
        runs
    }

    /// The runs that were not reported before.
    pub fn new_runs(&mut self) -> Vec<OtherRun> {
        for _ in 0..REPORTED_MAX {
            let Some(listener) = &self.listener else { break };
            let Ok((peer, _)) = listener.accept() else { break };
            let pid = peer_process(peer.as_fd()).unwrap_or(None);
            self.add(pid);
        }
        std::mem::take(&mut self.found)
    }

    fn add(&mut self, pid: Option<u32>) {
        if self.known.len() <= REPORTED_MAX && self.known.insert(pid) {
            self.found.push(OtherRun::of_process(pid));
        }
    }
}

fn name(number: u32) -> String {
    format!("nearmetal-measurement-{number}")
}

fn listen(number: u32) -> std::io::Result<UnixListener> {
    let address = SocketAddr::from_abstract_name(name(number))?;
    let listener = UnixListener::bind_addr(&address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The process that listens under this number, if there is one. It never waits: a listener that
/// accepts nothing must not delay a run.
fn holder(number: u32) -> Option<Option<u32>> {
    let address = SocketAddrUnix::new_abstract_name(name(number).as_bytes()).ok()?;
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
    match connect(&socket, &address) {
        Ok(()) => Some(peer_process(socket.as_fd()).unwrap_or(None)),
        // It listens, but has not accepted others that came before.
        Err(rustix::io::Errno::AGAIN) => Some(None),
        Err(_) => None,
    }
}

impl OtherRun {
    fn of_process(pid: Option<u32>) -> OtherRun {
        let command = pid.and_then(command);
        let started = pid.and_then(started);
        OtherRun { pid, command, started }
    }
}

fn command(pid: u32) -> Option<String> {
    let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let text = String::from_utf8_lossy(&words).replace('\0', " ");
    let text: String = clean(text.trim()).chars().take(COMMAND_MAX).collect();
    (!text.is_empty()).then_some(text)
}

/// When a process began, by the kernel's ticks since boot.
fn started(pid: u32) -> Option<Timestamp> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in brackets may hold anything, so fields count from the last bracket: the start is
    // field 22 of the line, and the state, behind the bracket, is field 3.
    let ticks: u64 = stat.rsplit(')').next()?.split_whitespace().nth(22 - 3)?.parse().ok()?;
    let system = fs::read_to_string("/proc/stat").ok()?;
    let boot_s: i64 = system.lines().find_map(|line| line.strip_prefix("btime "))?.parse().ok()?;
    let since_boot_s = ticks / rustix::param::clock_ticks_per_second().max(1);
    Timestamp::from_second(boot_s.checked_add(i64::try_from(since_boot_s).ok()?)?).ok()
}

/// `process 4711 (nearmetal qualify --plan full), since 2026-11-22 07:12:03 UTC`.
impl fmt::Display for OtherRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(pid) = self.pid else { return f.write_str("a process of another container") };
        write!(f, "process {pid}")?;
        match &self.command {
            Some(command) => write!(f, " ({command})")?,
            None => f.write_str(" (its command cannot be read)")?,
        }
        match self.started {
            Some(started) => write!(f, ", since {}", started.strftime("%Y-%m-%d %H:%M:%S UTC")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_is_shown_with_command_and_start() {
        let own = OtherRun::of_process(Some(std::process::id()));
        let text = own.to_string();
        assert!(text.starts_with(&format!("process {} (", std::process::id())), "{text}");
        assert!(text.contains("since 20") && text.ends_with(" UTC"), "{text}");
        let started = own.started.unwrap();
        assert!(started <= Timestamp::now(), "{started}");
        let unknown = OtherRun::of_process(None).to_string();
        assert_eq!(unknown, "a process of another container");
    }

    #[test]
    fn a_run_is_no_other_run_of_itself() {
        let mut runs = ConcurrentRuns::announce();
        runs.add(Some(std::process::id()));
        let own = std::process::id();
        assert!(runs.new_runs().iter().all(|other| other.pid != Some(own)));
        runs.add(Some(1));
        runs.add(Some(1));
        assert_eq!(runs.new_runs().iter().filter(|other| other.pid == Some(1)).count(), 1);
    }
}
