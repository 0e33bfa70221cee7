//! One end of a task: listen, connect, run. Here the errors of the probes become failures, which
//! the agent reports.

use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use nm_model::agent::{Task, TaskReport, Work};
use nm_model::capability::end_case_obstacle;
use nm_model::probe::{Pattern, Side, StreamSpec, StreamWork};
use nm_model::setting::{SettingKind, SettingValue};
use nm_model::{Failure, FailureKind};
use nm_transport::{Connection, Listener, Options, Transport, Visitor, connect};

use crate::compute;
use crate::control::Control;
use crate::error::ProbeError;
use crate::jitter;
use crate::latency::{self, LatencyPlan};
use crate::pinned_thread::PinnedThread;
use crate::stream::{self, ConnectedFlow};

/// How long one end waits for the other to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// One end of a task. Listens and connects as its side and work require, then runs once.
#[derive(Debug)]
pub struct Endpoint {
    side: Side,
    task: Task,
    /// This end's own IP address.
    local: String,
    addresses: Vec<String>,
    listeners: Vec<Listener>,
    connections: Vec<Connection>,
}

/// The connections of one end, each list in the order of the flows.
struct Connections {
    /// Of the flows that this end sends.
    sending: Vec<Connection>,
    /// Of the flows that this end receives.
    receiving: Vec<Connection>,
}

/// A latency probe has one connection, which is made like that of one flow to the server.
const ONE_FLOW: Pattern = Pattern { flows: 1, bidirectional: false };

/// A probe of the processor has no connection.
const NO_FLOW: Pattern = Pattern { flows: 0, bidirectional: false };

impl Endpoint {
    /// Opens what the peer connects to: one address for each flow that this end receives, and for a
    /// latency probe one at the server. `address` is this end's IP address, with the first port if
    /// it matters.
    ///
    /// # Errors
    /// [`FailureKind::BadRequest`] for a task that is impossible over its stack,
    /// [`FailureKind::AddressInUse`] and others of the system.
    pub fn listen(side: Side, task: &Task, address: &str) -> Result<Endpoint, Failure> {
        check(task)?;
        let options = options(task);
        let pattern = pattern(&task.work);
        let mut listeners: Vec<Listener> = vec![];
        for _ in flows_of(pattern, side.other()) {
            let address = nth_address(address, listeners.len())?;
            let listener =
                Listener::bind(task.stack, &address, &options).map_err(ProbeError::from)?;
            listeners.push(listener);
        }
        Ok(Endpoint {
            side,
            task: task.clone(),
            local: address.to_string(),
            addresses: listeners.iter().map(Listener::address).collect(),
            listeners,
            connections: vec![],
        })
    }

    /// Accepts connections from `peer` only, where peers have an address.
    pub fn only_from(&mut self, peer: IpAddr) {
        for listener in &mut self.listeners {
            listener.only_from(peer);
        }
    }

    /// The addresses that the peer connects to, in the order of the flows.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// Connects to the peer's addresses, one for each flow that this end sends.
    ///
    /// # Errors
    /// [`FailureKind::Peer`] if the peer cannot be reached, [`FailureKind::BadRequest`] for a wrong
    /// number of addresses.
    pub fn connect(&mut self, addresses: &[String]) -> Result<(), Failure> {
        let flows = flows_of(pattern(&self.task.work), self.side).count();
        if addresses.len() != flows {
            let what = format!(
                "the peer sent {} addresses, but this end makes {flows} connections",
                addresses.len()
            );
            return Err(Failure::new(FailureKind::BadRequest, what)
                .hint("both ends must be given the same task"));
        }
        let (stack, options) = (self.task.stack, options(&self.task));
        self.connections = addresses
            .iter()
            .map(|address| connect(stack, address, &self.local, &options, CONNECT_TIMEOUT))
            .collect::<Result<_, _>>()
            .map_err(ProbeError::from)?;
        Ok(())
    }

    /// Completes the connections and does the work. A server ends when its peer has gone or when it
    /// is cancelled, neither of which is a failure of its own.
    ///
    /// # Errors
    /// [`FailureKind::Peer`] if the peer does not connect or goes too early,
    /// [`FailureKind::Cancelled`] if the work was cancelled.
    pub fn run(self, control: &Control) -> Result<TaskReport, Failure> {
        let plan = match &self.task.work {
            Work::Stream(work) => {
                let work = work.clone();
                return Ok(self.run_stream(&work, control)?);
            }
            Work::Jitter(_) | Work::Compute(_) => return self.run_alone(control),
            Work::Pingpong(work) => LatencyPlan::pingpong(work, self.task.stack.mode),
            Work::Rr(work) => LatencyPlan::request_response(work),
        };
        Ok(self.run_latency(&plan, control)?)
    }

    /// The work of a probe without a peer: the server has none.
    fn run_alone(self, control: &Control) -> Result<TaskReport, Failure> {
        if self.side == Side::Server {
            return Ok(TaskReport::default());
        }
        match &self.task.work {
            Work::Jitter(spec) => Ok(jitter::run(spec, self.task.raw_samples, control)?),
            Work::Compute(work) => Ok(compute::round::run(work, self.task.seed, control)?),
            _ => Err(ProbeError::NotConnected.into()),
        }
    }

    fn run_latency(
        mut self,
        plan: &LatencyPlan,
        control: &Control,
    ) -> Result<TaskReport, ProbeError> {
        let Connections { sending, receiving } =
            self.complete_connections(&plan.message_lengths(), control)?;
        let connection =
            sending.into_iter().chain(receiving).next().ok_or(ProbeError::NotConnected)?;
        let (side, raw_samples) = (self.side, self.task.raw_samples);
        let name = if side == Side::Client { "pinger" } else { "ponger" };
        let thread = PinnedThread::of(&self.task, side, name, 0);
        thread.run(|| {
            connection.with(LatencyEnd { side, plan, thread: &thread, raw_samples, control })?
        })
    }

    fn run_stream(
        mut self,
        work: &StreamWork,
        control: &Control,
    ) -> Result<TaskReport, ProbeError> {
        // Both ends know the size that was asked for, but not yet the size that the route allows.
        let Connections { sending, receiving } =
            self.complete_connections(&[work.write_bytes as usize], control)?;
        let mut flows = vec![];
        for (sender, connections, verb) in
            [(self.side, sending, "sender"), (self.side.other(), receiving, "receiver")]
        {
            for (index, connection) in flows_of(work.pattern, sender).zip(connections) {
                let name = format!("{verb} {index}");
                let thread = PinnedThread::of(&self.task, self.side, name, index as usize);
                flows.push(ConnectedFlow { index, sender, connection, thread });
            }
        }
        flows.sort_by_key(|flow| flow.index);
        let Some(first) = flows.first() else { return Err(ProbeError::NotConnected) };
        let write_bytes = stream::write_bytes(work, &first.connection);
        let mut report = stream::run(self.side, flows, work, write_bytes, control)?;
        let settings = &mut report.settings;
        if write_bytes != work.write_bytes as usize {
            let requested = SettingValue::Bytes(u64::from(work.write_bytes));
            settings.set(SettingKind::RequestedWriteSize, requested);
        }
        if let Some(preset) = work.preset {
            settings.set(SettingKind::Preset, SettingValue::text(preset.name()));
        }
        if work.max_cv_percent != StreamSpec::default().max_cv_percent {
            settings.set(SettingKind::MaxCv, SettingValue::Percent(work.max_cv_percent));
        }
        Ok(report)
    }

    /// Does the handshake of each connection and accepts at each listener, all at once: in a
    /// pattern of both directions each end waits for the other.
    fn complete_connections(
        &mut self,
        message_lengths: &[usize],
        control: &Control,
    ) -> Result<Connections, ProbeError> {
        let cancelled = || control.cancelled();
        let (connections, listeners) =
            (std::mem::take(&mut self.connections), std::mem::take(&mut self.listeners));
        thread::scope(|scope| {
            let accepting = thread::Builder::new()
                .spawn_scoped(scope, || {
                    let accept = |listener: Listener| {
                        listener.accept(message_lengths, CONNECT_TIMEOUT, &cancelled)
                    };
                    let accepted: Result<Vec<_>, _> = listeners.into_iter().map(accept).collect();
                    accepted.map_err(ProbeError::from)
                })
                .map_err(ProbeError::SpawnThread)?;
            let handshake = |connection: Connection| {
                connection.handshake(message_lengths, CONNECT_TIMEOUT, &cancelled)
            };
            let sending: Result<Vec<_>, _> = connections.into_iter().map(handshake).collect();
            let receiving = accepting
                .join()
                .unwrap_or_else(|_| Err(ProbeError::Panicked("accepting".to_string())));
            Ok(Connections { sending: sending?, receiving: receiving? })
        })
    }
}

/// One end of a latency probe, over any transport.
struct LatencyEnd<'a> {
    side: Side,
    plan: &'a LatencyPlan,
    thread: &'a PinnedThread,
    raw_samples: bool,
    control: &'a Control,
}

impl Visitor for LatencyEnd<'_> {
    type Output = Result<TaskReport, ProbeError>;

    fn visit<T: Transport>(self, mut transport: T) -> Result<TaskReport, ProbeError> {
        let LatencyEnd { side, plan, thread, raw_samples, control } = self;
        match side {
            Side::Client => latency::client(&mut transport, plan, thread, raw_samples, control),
            Side::Server => latency::server(&mut transport, plan, thread, control),
        }
    }
}

fn pattern(work: &Work) -> Pattern {
    match work {
        Work::Stream(work) => work.pattern,
        Work::Pingpong(_) | Work::Rr(_) => ONE_FLOW,
        Work::Jitter(_) | Work::Compute(_) => NO_FLOW,
    }
}

/// Numbers of the flows that `sender` sends.
fn flows_of(pattern: Pattern, sender: Side) -> impl Iterator<Item = u32> {
    (0..pattern.flows).filter(move |&index| pattern.sender(index) == sender)
}

fn options(task: &Task) -> Options {
    let token = task.token;
    match &task.work {
        Work::Stream(work) => {
            let congestion = work.congestion.clone();
            Options { buffer_bytes: work.buffer_bytes, congestion, token }
        }
        _ => Options { token, ..Options::default() },
    }
}

/// The address of the listener with this number: a given port is that of the first.
fn nth_address(address: &str, number: usize) -> Result<String, Failure> {
    let Ok(mut local) = nm_transport::address::local(address) else {
        return Ok(address.to_string());
    };
    if local.port() != 0 {
        let port = u16::try_from(usize::from(local.port()) + number).map_err(|_| {
            let what = format!("there are not enough ports above {}", local.port());
            Failure::new(FailureKind::BadRequest, what).hint("choose a lower first port")
        })?;
        local.set_port(port);
    }
    Ok(local.to_string())
}

/// Refuses a task that is beyond the limits, or impossible over its stack.
fn check(task: &Task) -> Result<(), Failure> {
    let bad = |message: String| Failure::new(FailureKind::BadRequest, message);
    task.check().map_err(|error| bad(error.to_string()))?;
    match end_case_obstacle(task.stack.protocol, &task.work.case()) {
        Some(obstacle) => Err(bad(obstacle.to_string())),
        None => Ok(()),
    }
}
