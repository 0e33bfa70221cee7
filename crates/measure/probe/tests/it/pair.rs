//! Runs both ends of a task in this process.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use nm_model::agent::{Task, TaskReport, Token, Work};
use nm_model::probe::{PingpongSpec, RrSize, RrWork};
use nm_model::result::{LatencyRound, Statistic};
use nm_model::{Failure, Side, Stack};
use nm_probe::{Control, Endpoint};
use nm_sys::clock::Moment;
use nm_sys::cpu;

/// How long a server may take to notice that its client has gone.
pub const NOTICE_MAX: Duration = Duration::from_secs(8);

/// Spinning threads of several tests at once would only compete for the CPUs.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn task(stack: &str, side: Side, work: &Work) -> Task {
    let mut cpus = cpu::default_pair();
    if side == Side::Server {
        cpus.reverse();
    }
    Task {
        stack: stack.parse::<Stack>().unwrap(),
        cpus,
        work: work.clone(),
        seed: 1,
        raw_samples: true,
        token: Token([7; 16]),
    }
}

pub fn pingpong(size_bytes: u32, samples: u64) -> Work {
    let spec = PingpongSpec {
        max_iterations: samples,
        min_iterations: samples.min(20),
        max_ms: 5_000,
        warmup_ms: 2,
        ..PingpongSpec::default()
    };
    Work::Pingpong(spec.of_size(size_bytes))
}

pub fn request_response(size: &str, rate_per_s: Option<f64>, seconds: f64) -> Work {
    let size: RrSize = size.parse().unwrap();
    Work::Rr(RrWork { size, rate_per_s, seconds, warmup_ms: 20, deadline_ms: 1_000 })
}

/// Both ends, connected and ready to run.
pub fn connected(stack: &str, work: &Work, address: &str) -> Result<(Endpoint, Endpoint), Failure> {
    let mut server = Endpoint::listen(Side::Server, &task(stack, Side::Server, work), address)?;
    let mut client = Endpoint::listen(Side::Client, &task(stack, Side::Client, work), address)?;
    client.connect(server.addresses())?;
    server.connect(client.addresses())?;
    Ok((client, server))
}

pub struct FinishedPair {
    pub client: TaskReport,
    pub server: TaskReport,
    pub samples: Vec<(Statistic, Vec<u32>)>,
}

/// Runs both ends to their end; the server must notice by itself that the client has gone.
pub fn run(stack: &str, work: &Work, address: &str) -> Result<FinishedPair, Failure> {
    let _alone = alone();
    let (client, server) = connected(stack, work, address)?;
    let (control, server_control) = (Control::new(), Control::new());
    thread::scope(|scope| {
        let serving = scope.spawn(|| server.run(&server_control));
        let client = client.run(&control);
        let gone = Moment::now();
        while !serving.is_finished() {
            assert!(gone.elapsed() < NOTICE_MAX, "{stack}: the server runs on without its client");
            thread::sleep(Duration::from_millis(1));
        }
        let server = serving.join().unwrap();
        Ok(FinishedPair { client: client?, server: server?, samples: control.take_samples() })
    })
}

pub fn latency(report: &TaskReport, statistic: Statistic) -> &LatencyRound {
    &report.latencies.iter().find(|(found, _)| *found == statistic).unwrap().1
}
