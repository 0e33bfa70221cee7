//! The replicated exchange beside Aeron Cluster and Redis Streams. All replay the same recorded
//! flow in turn, request by request at the same times and with the same sizes. Each has processes
//! of its own. Aeron comes from Maven Central; its driver is `xtask/peers/aeron-cluster`.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::exchange_round::Measured;
use crate::peer::{self, Peer};
use crate::schedule::{self, Request};
use crate::{bench, exchange_round, redis_load, shell};

/// Its folder in `xtask/peers`.
const AERON: &str = "aeron-cluster";

/// Requests a second.
const RATES_PER_S: [u32; 2] = [5_000, 10_000];

/// The smallest network whose cells have three replicas.
const NODES: &str = "1-1-2-1";

/// Requests of this time are not counted, as in `exchange run`.
const UNCOUNTED_NS: u64 = 500_000_000;

/// Port of the Redis server.
const REDIS_PORT: u16 = 24_090;

/// Nodes of Aeron Cluster.
const AERON_NODES: u32 = 3;

const JAVA: &str = "java --add-opens java.base/jdk.internal.misc=ALL-UNNAMED \
     --add-opens java.base/sun.nio.ch=ALL-UNNAMED -XX:+UseSerialGC -Xms256m -Xmx256m";

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum System {
    /// This exchange, a majority has a request in memory.
    InMemory,
    /// Aeron Cluster without file sync.
    Aeron,
    /// This exchange, a majority has a request on its disk.
    OnDisk,
    /// Aeron Cluster with file sync.
    AeronSynced,
    /// One Redis server that syncs before it answers.
    Redis,
}

impl System {
    const ALL: [System; 5] =
        [System::InMemory, System::Aeron, System::OnDisk, System::AeronSynced, System::Redis];

    fn name(self) -> &'static str {
        match self {
            System::InMemory => "memory-quorum",
            System::Aeron => "Aeron Cluster, no file sync",
            System::OnDisk => "disk-quorum",
            System::AeronSynced => "Aeron Cluster, file sync",
            System::Redis => "Redis Streams, appendfsync always",
        }
    }
}

/// Ours and a peer that promises as much, or less.
const PAIRS: [(System, System); 3] = [
    (System::InMemory, System::Aeron),
    (System::OnDisk, System::AeronSynced),
    (System::OnDisk, System::Redis),
];

/// A figure of the tables: its name, how to get it, and what to divide it by.
type Figure = (&'static str, fn(&Measured) -> f64, f64);

const FIGURES: [Figure; 4] = [
    ("p50, ms", |one| one.p50_ns, 1e6),
    ("p99, ms", |one| one.p99_ns, 1e6),
    ("ES10, ms", |one| one.es10_ns, 1e6),
    ("CPU of a request, µs", |one| one.cpu_ns, 1e3),
];

/// The rounds of one system at one rate; of those that failed, the reason.
type Rounds = Vec<Result<Measured, String>>;

/// Measures all systems at all rates, in turn; the tables.
pub fn compare(rounds: u32, seconds: f64) -> Result<String> {
    let bench = PeerBench::new(seconds)?;
    let mut rows = String::new();
    let mut notes = String::new();
    for rate_per_s in RATES_PER_S {
        let requests = bench.record(rate_per_s)?;
        let mut found: [Rounds; 5] = Default::default();
        for round in 0..rounds {
            let mut order = [0, 1, 2, 3, 4];
            if round % 2 == 1 {
                order.reverse();
            }
            for at in order {
                eprintln!("{rate_per_s}/s, round {}: {}", round + 1, System::ALL[at].name());
                let measured = bench.measure(System::ALL[at], &requests);
                found[at].push(measured.map_err(|error| format!("{error:#}")));
            }
        }
        let of =
            |system: System| &found[System::ALL.iter().position(|one| *one == system).unwrap()];
        for (own, other) in PAIRS {
            rows += &pair_rows(rate_per_s, (own, of(own)), (other, of(other)));
        }
        for system in System::ALL {
            notes += &note(rate_per_s, system, of(system));
        }
    }
    Ok(page(&rows, &notes, rounds, seconds))
}

/// A row for each figure.
fn pair_rows(rate_per_s: u32, own: (System, &Rounds), other: (System, &Rounds)) -> String {
    let rounds: Vec<(Measured, Measured)> = own
        .1
        .iter()
        .zip(other.1)
        .filter_map(|(own, other)| Some((*own.as_ref().ok()?, *other.as_ref().ok()?)))
        .collect();
    let mut rows = String::new();
    if rounds.is_empty() {
        let (own, other) = (own.0.name(), other.0.name());
        return format!("| {rate_per_s} | {own} | {other} | n/a | n/a | n/a | n/a | n/a | 0 |\n");
    }
    for (name, value, unit) in FIGURES {
        let own_values: Vec<f64> = rounds.iter().map(|(own, _)| value(own) / unit).collect();
        let other_values: Vec<f64> = rounds.iter().map(|(_, other)| value(other) / unit).collect();
        let ratios: Vec<f64> = own_values.iter().zip(&other_values).map(|(a, b)| a / b).collect();
        let (low, high) = bench::range(&ratios);
        let _ = writeln!(
            rows,
            "| {rate_per_s} | {} | {} | {name} | {:.2} | {:.2} | {:.2} | {low:.2} to {high:.2} \
             | {} |",
            own.0.name(),
            other.0.name(),
            bench::median(&own_values),
            bench::median(&other_values),
            bench::median(&ratios),
            rounds.len(),
        );
    }
    rows
}

/// What a system could not do at a rate: collapses and failures.
fn note(rate_per_s: u32, system: System, rounds: &Rounds) -> String {
    let name = system.name();
    let mut text = String::new();
    let measured: Vec<&Measured> = rounds.iter().flatten().collect();
    let collapsed: Vec<f64> =
        measured.iter().filter(|one| one.is_collapsed()).map(|one| one.answered * 100.0).collect();
    if !collapsed.is_empty() {
        let _ = writeln!(
            text,
            "- {name} collapses at {rate_per_s}/s in {} of {} rounds: {:.0} % of the requests are \
             answered within 10 s of the last one (median of these rounds).",
            collapsed.len(),
            measured.len(),
            bench::median(&collapsed)
        );
    }
    for reason in rounds.iter().filter_map(|one| one.as_ref().err()) {
        let _ = writeln!(text, "- {name} failed at {rate_per_s}/s: {reason}");
    }
    text
}

fn page(rows: &str, notes: &str, rounds: u32, seconds: f64) -> String {
    format!(
        "# The replicated exchange beside its peers\n\n\
         Made by `cargo xtask bench-exchange --peers --rounds {rounds} --seconds {seconds}`. A \
         recorded flow (Poisson arrivals, sizes of 200 B to 80 kB, 800 B on average) is replayed \
         on each system in turn. Every second round has the reverse order. All processes and the \
         load are on this machine, each round with processes of its own. Times are from the \
         intended send to the answer; the first 500 ms are not counted. Ours is `exchange run \
         --nodes {NODES}`: an order passes gateway, router, a mediator with three replicas, and \
         processor. Aeron Cluster 1.47.4 has three nodes whose service returns the message, and \
         shared threads that sleep 50 µs between polls. It has a file sync level of 0 or 1, and \
         one replay as warm-up of the JIT. Redis is one server, and the request an `XADD`: a \
         lower bound for a durable broker. A ratio is ours ÷ the peer's in one round.\n\n{}\n\
         | rate /s | ours | peer | figure | ours | peer | ratio, median | range | rounds |\n\
         | ---: | --- | --- | --- | ---: | ---: | ---: | --- | ---: |\n{rows}\n{notes}",
        bench::environment_lines(&["redis-server"]),
    )
}

/// The programs, and a folder for what they write.
struct PeerBench {
    seconds: f64,
    binary: PathBuf,
    aeron: PathBuf,
    /// Removed at the end.
    folder: PathBuf,
}

impl Drop for PeerBench {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl PeerBench {
    fn new(seconds: f64) -> Result<PeerBench> {
        bench::require_tool("redis-server", "redis-server")?;
        let aeron = peer::prepare(AERON, "ClusterPeer")?;
        let folder = aeron.join(format!("run-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        Ok(PeerBench { seconds, binary: bench::Build::current().binary.into(), aeron, folder })
    }

    fn flow(&self) -> PathBuf {
        self.folder.join("flow")
    }

    fn schedule(&self) -> PathBuf {
        self.folder.join("schedule")
    }

    /// Records a flow of this rate, and its schedule.
    fn record(&self, rate_per_s: u32) -> Result<Vec<Request>> {
        let (seconds, flow) = (self.seconds, self.flow());
        let flow = flow.display();
        self.exchange(&format!("--rate {rate_per_s} --seconds {seconds} --record-flow {flow}"))?;
        let requests = schedule::of_flow(&self.flow())?;
        fs::write(self.schedule(), schedule::bytes(&requests))?;
        Ok(requests)
    }

    fn measure(&self, system: System, requests: &[Request]) -> Result<Measured> {
        let replay = |durability: &str| {
            let flow = self.flow();
            self.exchange(&format!("--durability {durability} --replay-flow {}", flow.display()))
        };
        match system {
            System::InMemory | System::OnDisk => replay(system.name()),
            System::Aeron => self.aeron(requests.len(), 0),
            System::AeronSynced => self.aeron(requests.len(), 1),
            System::Redis => self.redis(requests),
        }
    }

    /// One round of `exchange run`.
    fn exchange(&self, words: &str) -> Result<Measured> {
        let out = self.folder.join("exchange");
        let _ = fs::remove_dir_all(&out);
        let (text, _) = shell::output(&format!(
            "{} exchange run --nodes {NODES} --rounds 1 --quiet {words} --out {}",
            self.binary.display(),
            out.display()
        ))?;
        exchange_round::measured(&out).with_context(|| text.trim().to_string())
    }

    /// One round of Aeron Cluster with this file sync level.
    fn aeron(&self, n_requests: usize, sync_level: u32) -> Result<Measured> {
        let (jars, classes) = (self.aeron.join("jars"), self.aeron.join("classes"));
        let java = format!("{JAVA} -cp {}/*:{} ClusterPeer", jars.display(), classes.display());
        let driver = |name: &str| format!("/dev/shm/nearmetal-peer-{}-{name}", std::process::id());
        let mut servers = Servers::default();
        for id in 0..AERON_NODES {
            let folder = self.folder.join(format!("node-{id}"));
            let (data, driver) = (folder.display(), driver(&id.to_string()));
            servers.start(&format!("{java} node {id} {data} {driver} {sync_level}"))?;
            servers.folders.extend([folder, driver.into()]);
        }
        let load_driver = driver("load");
        servers.folders.push(load_driver.clone().into());
        let mut load =
            Peer::start(&format!("{java} load {} {load_driver}", self.schedule().display()))?;
        let before_ns = servers.cpu_ns()?;
        let answer = load.ask()?;
        let cpu_ns = servers.cpu_ns()? - before_ns;
        drop(load);
        let words: Vec<f64> =
            answer.split(' ').map(str::parse).collect::<Result<_, _>>().context(answer.clone())?;
        let [sent, answered, p50_ns, p99_ns, es10_ns] = words[..] else {
            bail!("`{answer}` is no answer");
        };
        let (cpu_ns, answered) = (cpu_ns / n_requests as f64, answered / sent);
        Ok(Measured { p50_ns, p99_ns, es10_ns, cpu_ns, answered })
    }

    /// One round of Redis.
    fn redis(&self, requests: &[Request]) -> Result<Measured> {
        let folder = self.folder.join("redis");
        fs::create_dir_all(&folder)?;
        let mut servers = Servers::default();
        servers.start(&format!(
            "redis-server --bind 127.0.0.1 --port {REDIS_PORT} --dir {} --appendonly yes \
             --appendfsync always --save",
            folder.display()
        ))?;
        servers.folders.push(folder);
        sleep(Duration::from_millis(500));
        let before_ns = servers.cpu_ns()?;
        let latencies_ns = redis_load::replay(REDIS_PORT, requests)?;
        let cpu_ns = (servers.cpu_ns()? - before_ns) / requests.len() as f64;
        let counted = requests.iter().filter(|one| one.at_ns >= UNCOUNTED_NS).count();
        let answered = requests.iter().zip(&latencies_ns);
        let counts = answered.filter(|(one, _)| one.at_ns >= UNCOUNTED_NS);
        let mut sorted: Vec<u64> = counts.map(|(_, ns)| *ns).collect();
        sorted.sort_unstable();
        of_sorted(&sorted, counted, cpu_ns).context("Redis answered nothing")
    }
}

/// The figures of `sorted` latencies of `n_sent` requests; none without an answer.
fn of_sorted(sorted: &[u64], n_sent: usize, cpu_ns: f64) -> Option<Measured> {
    let n = sorted.len();
    let slowest = &sorted[n - n.div_ceil(10)..];
    let percentile =
        |share: f64| sorted.get(((n as f64 * share).ceil() as usize).saturating_sub(1));
    Some(Measured {
        p50_ns: *percentile(0.5)? as f64,
        p99_ns: *percentile(0.99)? as f64,
        es10_ns: slowest.iter().sum::<u64>() as f64 / slowest.len() as f64,
        cpu_ns,
        answered: n as f64 / n_sent as f64,
    })
}

/// Server processes and the folders that they leave; ended and removed on drop.
#[derive(Default)]
struct Servers {
    children: Vec<Child>,
    folders: Vec<PathBuf>,
}

impl Servers {
    fn start(&mut self, line: &str) -> Result<()> {
        let mut command = shell::command(line);
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let started = quiet.spawn().with_context(|| format!("cannot start `{line}`"))?;
        self.children.push(started);
        Ok(())
    }

    /// CPU time of all processes so far.
    fn cpu_ns(&self) -> Result<f64> {
        self.children.iter().map(|child| cpu_ns(child.id())).sum()
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        for folder in &self.folders {
            let _ = fs::remove_dir_all(folder);
        }
    }
}

/// CPU time of all threads of a process, user and system.
fn cpu_ns(pid: u32) -> Result<f64> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).context("a server has ended")?;
    tasks.map(|task| thread_cpu_ns(&task?.path())).sum()
}

/// The first number of `schedstat` is the time on a CPU, ns.
fn thread_cpu_ns(task: &Path) -> Result<f64> {
    // A thread that has ended since it was listed has no file.
    let text = fs::read_to_string(task.join("schedstat")).unwrap_or_default();
    Ok(text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_sorted_latencies_and_of_none() {
        let sorted: Vec<u64> = (1..=100).collect();
        let found = of_sorted(&sorted, 200, 7.0).unwrap();
        assert_eq!((found.p50_ns, found.p99_ns, found.es10_ns), (50.0, 99.0, 95.5));
        assert_eq!((found.cpu_ns, found.answered), (7.0, 0.5));
        assert!(found.is_collapsed());
        assert_eq!(of_sorted(&[], 5, 0.0), None);
    }

    #[test]
    fn rounds_that_failed_are_in_no_ratio_and_named() {
        let of = |p50_ns| Measured {
            p50_ns,
            p99_ns: 2.0 * p50_ns,
            es10_ns: p50_ns,
            cpu_ns: 1e3,
            answered: 1.0,
        };
        let own = vec![Ok(of(1e6)), Ok(of(3e6)), Ok(of(2e6))];
        let other = vec![Ok(of(2e6)), Err("no leader".to_string()), Ok(of(2e9))];
        let rows = pair_rows(5000, (System::OnDisk, &own), (System::AeronSynced, &other));
        let first = rows.lines().next().unwrap();
        assert!(
            first.contains("| p50, ms | 1.50 | 1001.00 | 0.25 | 0.00 to 0.50 | 2 |"),
            "{first}"
        );
        let text = note(5000, System::AeronSynced, &other);
        assert!(text.contains("collapses at 5000/s in 1 of 2 rounds: 100 %"), "{text}");
        assert!(text.contains("failed at 5000/s: no leader"), "{text}");
    }

    #[test]
    fn this_process_has_used_cpu_time() {
        assert!(cpu_ns(std::process::id()).unwrap() > 0.0);
    }
}
