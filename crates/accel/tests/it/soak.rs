//! A soak of clients and servers of every way of waiting, all accelerated. Their connections join
//! under load, go back to the kernel, join again, and lose their processes. Every byte is checked,
//! and no connection may stand still. `cargo xtask soak-accel` makes it long.

mod client;
mod plan;
mod server;
mod task;

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use nm_ring::ledger::LedgerView;
use nm_sys::clock::Deadline;

use crate::harness::{Body, Side, another, describe_hanging_processes, end_group};
use plan::{End, Numbers, Plan, WAYS, Waiting};
use task::{CLIENT, FOREIGN_CLIENT, PORT, SEED, SERVER, WAITING, number, waiting_of};

/// Programs of a soak.
pub(crate) const PEERS: &[Body] = &[
    (SERVER, || {
        task::end_with_soak();
        server::serve()
    }),
    (CLIENT, || {
        task::end_with_soak();
        client::run()
    }),
    (FOREIGN_CLIENT, || client::run_foreign()),
];

/// What the soak is to be: connections at least, and seconds at least.
const CONNECTIONS: &str = "NEARMETAL_SOAK_CONNECTIONS";
const SECONDS: &str = "NEARMETAL_SOAK_SECONDS";
/// The only clients and servers, by their way of waiting; all if it is not given.
const ONLY_CLIENT: &str = "NEARMETAL_SOAK_CLIENT";
const ONLY_SERVER: &str = "NEARMETAL_SOAK_SERVER";
/// The folder of a cgroup by which programs are frozen now and then, instead of stopped.
const FREEZER: &str = "NEARMETAL_SOAK_FREEZER";

/// A client that takes longer hangs: many times what one takes on a machine under load.
const CLIENT_LIMIT: Duration = Duration::from_secs(180);
/// Clients at a time.
const CLIENTS: usize = 4;
/// Longest time for which a program is stopped, ms: long enough that its peers wait, and sleep.
const STOP_MS_MAX: u64 = 60;
/// Connections of the short soak that runs with the tests.
const SHORT: u64 = 60;

/// A process of the soak with what it writes.
struct Program {
    child: Child,
    errors: std::fs::File,
}

impl Program {
    fn start(name: &str, variables: &[(&str, String)], report: Option<&Reports>) -> Program {
        let errors = tempfile::tempfile().unwrap();
        let mut command: Command = another(name, Side::Accelerated);
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        if let Some(reports) = report {
            command.env("NEARMETAL_ACCEL_REPORT", &reports.path);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).env("RUST_BACKTRACE", "0");
        command.stderr(errors.try_clone().unwrap()).process_group(0);
        Program { child: command.spawn().unwrap(), errors }
    }

    fn errors(&mut self) -> String {
        let mut text = vec![];
        self.errors.rewind().unwrap();
        self.errors.read_to_end(&mut text).unwrap();
        String::from_utf8_lossy(&text).into_owned()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        end_group(&mut self.child);
    }
}

struct Server {
    waiting: Waiting,
    port: u16,
    program: Program,
}

impl Server {
    fn start(waiting: Waiting) -> Server {
        let mut program = Program::start(SERVER, &[(WAITING, format!("{waiting:?}"))], None);
        let mut line = String::new();
        let mut output = BufReader::new(program.child.stdout.take().expect("piped"));
        output.read_line(&mut line).unwrap();
        let port = line.trim().parse();
        let port = port.unwrap_or_else(|_| panic!("{waiting:?} server: {}", program.errors()));
        Server { waiting, port, program }
    }
}

/// One client that runs.
struct Run {
    plan: Plan,
    server: usize,
    program: Program,
    deadline: Deadline,
}

/// Ledgers of the clients, each of which is shared memory that a client sends when it starts.
struct Reports {
    socket: UnixDatagram,
    path: std::path::PathBuf,
    _folder: tempfile::TempDir,
    open: Vec<LedgerView>,
}

impl Reports {
    fn new() -> Reports {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_nonblocking(true).unwrap();
        Reports { socket, path, _folder: folder, open: vec![] }
    }

    /// Adds what the clients that have ended have counted.
    fn collect(&mut self, totals: &mut Totals) {
        let mut text = [0; 64];
        while let Ok((_, Some(ledger))) =
            nm_sys::unix::receive_descriptor(self.socket.as_fd(), &mut text)
        {
            self.open.extend(LedgerView::open(ledger));
        }
        let lives = |view: &LedgerView| {
            std::path::Path::new(&format!("/proc/{}/stat", view.pid())).exists()
        };
        let (open, ended): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.open).into_iter().partition(lives);
        self.open = open;
        ended.iter().for_each(|view| totals.add(view));
    }
}

/// What the soak has counted.
#[derive(Debug, Default)]
struct Totals {
    clients: u64,
    killed: u64,
    stops: u64,
    /// Stops by a freezer.
    frozen: u64,
    connections: u64,
    in_memory: u64,
    memory_bytes: u64,
    kernel_bytes: u64,
    fallbacks: u64,
    rejoins: u64,
    /// Connections by their last phase and the reason why they used the kernel.
    reasons: BTreeMap<String, u64>,
}

impl Totals {
    fn add(&mut self, view: &LedgerView) {
        for record in view.records() {
            let directions = [record.outgoing, record.incoming];
            let memory: u64 = directions.iter().map(|flow| flow.memory_bytes).sum();
            self.in_memory += u64::from(memory > 0);
            *self
                .reasons
                .entry(format!(
                    "{:?} {:?}{}",
                    record.phase,
                    record.reason,
                    if memory > 0 { "" } else { ", never in memory" }
                ))
                .or_default() += 1;
            self.memory_bytes += memory;
            self.kernel_bytes += directions.iter().map(|flow| flow.kernel_bytes).sum::<u64>();
            self.fallbacks += record.outgoing.fallbacks;
            self.rejoins += u64::from(record.rejoins);
        }
    }
}

impl std::fmt::Display for Totals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} connections of {} clients ({} killed, {} stops, {} frozen), {} used memory; {} \
             bytes through memory, {} through the kernel; {} times back to the kernel, {} times \
             in memory again; {:?}",
            self.connections,
            self.clients,
            self.killed,
            self.stops,
            self.frozen,
            self.in_memory,
            self.memory_bytes,
            self.kernel_bytes,
            self.fallbacks,
            self.rejoins,
            self.reasons
        )
    }
}

/// A program of the soak, with all its processes, that is stopped for a moment.
struct Stop {
    group: i32,
    /// The cgroup by which it is frozen; none if a signal has stopped it.
    freezer: Option<Freezer>,
    end: Deadline,
}

impl Stop {
    fn begin(group: i32, freezer: Option<Freezer>, length: Duration) -> Stop {
        if let Some(freezer) = &freezer {
            freezer.freeze(group);
        } else {
            // SAFETY: the group is that of a program of this soak, which was not waited for.
            unsafe { libc::kill(-group, libc::SIGSTOP) };
        }
        Stop { group, freezer, end: Deadline::after(length) }
    }
}

impl Drop for Stop {
    fn drop(&mut self) {
        if let Some(freezer) = &self.freezer {
            freezer.set(false);
        } else {
            // SAFETY: as above; a group that has ended meanwhile has no process.
            unsafe { libc::kill(-self.group, libc::SIGCONT) };
        }
    }
}

/// The folder of a cgroup, of version 1 or 2, that nobody else uses.
#[derive(Clone)]
struct Freezer(PathBuf);

impl Freezer {
    /// Freezes all processes of a group.
    fn freeze(&self, group: i32) {
        for process in std::fs::read_dir("/proc").unwrap().flatten() {
            let stat = std::fs::read_to_string(process.path().join("stat")).unwrap_or_default();
            let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
            if fields.nth(2) == Some(&group.to_string()) {
                // It may end meanwhile.
                let pid = process.file_name().into_encoded_bytes();
                let _ = std::fs::write(self.0.join("cgroup.procs"), pid);
            }
        }
        self.set(true);
    }

    fn set(&self, is_frozen: bool) {
        let [new, old] = ["cgroup.freeze", "freezer.state"].map(|name| self.0.join(name));
        let (file, text) = match (new.exists(), is_frozen) {
            (true, true) => (new, "1"),
            (true, false) => (new, "0"),
            (false, true) => (old, "FROZEN"),
            (false, false) => (old, "THAWED"),
        };
        std::fs::write(&file, text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }
}

struct Soak {
    stop: Option<Stop>,
    freezer: Option<Freezer>,
    only_client: Option<Waiting>,
    servers: Vec<Server>,
    runs: Vec<Run>,
    reports: Reports,
    totals: Totals,
    seeds: Numbers,
}

impl Soak {
    fn start_client(&mut self) {
        let mut plan = Plan::of(self.seeds.next());
        while self.only_client.is_some_and(|only| only != plan.waiting) {
            plan = Plan::of(self.seeds.next());
        }
        let server = self.seeds.below(self.servers.len() as u64) as usize;
        let port = self.servers[server].port.to_string();
        let variables = [(SEED, plan.seed.to_string()), (PORT, port)];
        let program = Program::start(CLIENT, &variables, Some(&self.reports));
        self.totals.clients += 1;
        self.totals.connections += plan.connections as u64;
        self.totals.killed += u64::from(plan.end == End::Killed);
        let deadline = Deadline::after(CLIENT_LIMIT);
        self.runs.push(Run { plan, server, program, deadline });
    }

    /// Now and then stops a client or a server as a whole, and continues it after a while.
    fn stop_and_continue(&mut self) {
        if self.stop.as_ref().is_some_and(|stop| stop.end.passed()) {
            self.stop = None;
        }
        if self.stop.is_some() || self.seeds.below(10) != 0 {
            return;
        }
        let programs: Vec<&Program> = self
            .runs
            .iter()
            .map(|run| &run.program)
            .chain(self.servers.iter().map(|server| &server.program))
            .collect();
        let group = programs[self.seeds.below(programs.len() as u64) as usize].child.id();
        let length = Duration::from_millis(1 + self.seeds.below(STOP_MS_MAX));
        let freezer = self.freezer.clone().filter(|_| self.seeds.below(2) == 0);
        self.totals.stops += 1;
        self.totals.frozen += u64::from(freezer.is_some());
        self.stop = Some(Stop::begin(group.cast_signed(), freezer, length));
    }

    /// Checks the clients that have ended, and those that do not end.
    fn check(&mut self) {
        let mut idx = 0;
        while idx < self.runs.len() {
            let status = self.runs[idx].program.child.try_wait().unwrap();
            if let Some(status) = status {
                let run = self.runs.swap_remove(idx);
                self.check_end(run, status);
                continue;
            }
            if self.runs[idx].deadline.passed() {
                let run = self.runs.swap_remove(idx);
                let client = describe_hanging_processes(&run.program.child);
                let server = &self.servers[run.server].program.child;
                let server = describe_hanging_processes(server);
                self.fail(run, &format!("stands still\n{client}server:\n{server}"));
            }
            idx += 1;
        }
        self.reports.collect(&mut self.totals);
    }

    fn check_end(&mut self, run: Run, status: ExitStatus) {
        let killed = status.signal() == Some(libc::SIGKILL) && run.plan.end == End::Killed;
        let regular = status.success() && run.plan.end == End::Regular;
        if !killed && !regular {
            self.fail(run, &format!("ended with {status}"));
        }
        for server in 0..self.servers.len() {
            if let Some(status) = self.servers[server].program.child.try_wait().unwrap() {
                let (waiting, errors) =
                    (self.servers[server].waiting, self.servers[server].program.errors());
                panic!("{waiting:?} server ended with {status}\n{errors}\n{}", self.totals);
            }
        }
    }

    fn fail(&mut self, mut run: Run, what: &str) -> ! {
        let server = &mut self.servers[run.server];
        panic!(
            "client {:?} of a {:?} server {what}\nclient: {}\nserver: {}\n{}",
            run.plan,
            server.waiting,
            run.program.errors(),
            server.program.errors(),
            self.totals
        );
    }
}

#[test]
fn mixed_programs_exchange_every_byte_and_none_stands_still() {
    let seed = match number(SEED) {
        0 => 1,
        seed => seed,
    };
    let connections = match number(CONNECTIONS) {
        0 => SHORT,
        connections => connections,
    };
    let deadline = Deadline::after(Duration::from_secs(number(SECONDS)));
    let [only_client, only_server] = [ONLY_CLIENT, ONLY_SERVER].map(|name| {
        let way = std::env::var(name).unwrap_or_default();
        (!way.is_empty()).then(|| waiting_of(&way))
    });
    let ways = WAYS.into_iter().filter(|way| only_server.is_none_or(|only| only == *way));
    let servers = ways.map(Server::start).collect();
    let (reports, seeds) = (Reports::new(), Numbers(seed));
    let totals = Totals::default();
    let freezer = std::env::var_os(FREEZER).filter(|path| !path.is_empty());
    let freezer = freezer.map(|path| Freezer(path.into()));
    let (stop, runs) = (None, vec![]);
    let mut soak = Soak { stop, freezer, only_client, servers, runs, reports, totals, seeds };
    let mut shown = 0;
    loop {
        let is_complete = soak.totals.connections >= connections && deadline.passed();
        while !is_complete && soak.runs.len() < CLIENTS {
            soak.start_client();
        }
        if soak.runs.is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(2));
        soak.check();
        soak.stop_and_continue();
        if soak.totals.connections >= shown + 500 {
            shown = soak.totals.connections;
            crate::harness::note(&format!("soak with seed {seed}: {}", soak.totals));
        }
    }
    soak.reports.collect(&mut soak.totals);
    crate::harness::note(&format!("soak with seed {seed}: {}, 0 faults", soak.totals));
    assert!(soak.totals.in_memory > 0, "no connection used memory: {}", soak.totals);
}
