//! One end of a task: listen, connect, run.

use std::thread;
use std::time::Duration;

use nm_model::agent::{Task, TaskReport, Work};
use nm_model::probe::{Pattern, SIZE_BYTES_MAX, Side, UDP_SIZE_BYTES_MAX, XDP_SIZE_BYTES_MAX};
use nm_model::stack::Protocol;
use nm_model::{Failure, FailureKind};
use nm_transport::{Connection, Listener, Options, Transport, Visitor, connect};

use crate::control::Control;
use crate::hot::{self, Seat};
use crate::latency::{self, Course};
use crate::stream::{self, Leg};

/// How long the two ends may take to meet.
const MEET_MAX: Duration = Duration::from_secs(10);

/// Longest time of one round, s.
const SECONDS_MAX: f64 = 86_400.0;

/// One end of a task. Listens and connects as its side and work say, then runs once.
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

/// A latency probe has one connection; for the meeting it is one flow to the server.
const ONE_FLOW: Pattern = Pattern { flows: 1, bidirectional: false };

impl Endpoint {
    /// Opens what the peer connects to: one address for each flow that this end receives, and for a
    /// latency probe one at the server. `address` is this end's IP address, with the first port if
    /// it matters.
    ///
    /// # Errors
    /// [`FailureKind::BadRequest`] for a task that makes no sense over its stack,
    /// [`FailureKind::AddressInUse`] and others of the system.
    pub fn listen(side: Side, task: &Task, address: &str) -> Result<Endpoint, Failure> {
        check(task)?;
        let options = options(task);
        let pattern = pattern(&task.work);
        let mut listeners: Vec<Listener> = vec![];
        for _ in flows_of(pattern, side.other()) {
            let address = nth_address(address, listeners.len())?;
            listeners.push(Listener::bind(task.stack, &address, &options)?);
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
                "the peer named {} addresses, but this end makes {flows} connections",
                addresses.len()
            );
            return Err(Failure::new(FailureKind::BadRequest, what)
                .hint("both ends must be given the same task"));
        }
        let options = options(&self.task);
        self.connections = addresses
            .iter()
            .map(|address| connect(self.task.stack, address, &self.local, &options, MEET_MAX))
            .collect::<Result<_, _>>()?;
        Ok(())
    }

    /// Meets the peer and does the work. A server ends when its peer has gone or when it is
    /// cancelled, both of which are no failure of its own.
    ///
    /// # Errors
    /// [`FailureKind::Peer`] if the peer does not come or goes too early,
    /// [`FailureKind::Cancelled`] where the work was cut short.
    pub fn run(self, control: &Control) -> Result<TaskReport, Failure> {
        match &self.task.work {
            Work::Stream { .. } => self.run_stream(control),
            Work::Pingpong { size_bytes, spec } => {
                let course = Course::pingpong(*size_bytes, spec);
                self.run_latency(course, control)
            }
            Work::Rr { size, rate_per_s, seconds, warmup_ms, deadline_ms } => {
                let course = Course::request_response(
                    *size,
                    *rate_per_s,
                    *seconds,
                    *warmup_ms,
                    *deadline_ms,
                );
                self.run_latency(course, control)
            }
        }
    }

    fn run_latency(mut self, course: Course, control: &Control) -> Result<TaskReport, Failure> {
        let (sent, received) = self.meet(&course.lengths(), control)?;
        let connection = sent.into_iter().chain(received).next().ok_or_else(not_connected)?;
        let (side, raw_samples) = (self.side, self.task.raw_samples);
        let name = if side == Side::Client { "pinger" } else { "ponger" };
        let seat = Seat::of(&self.task, side, name, 0);
        hot::run(&seat, || {
            connection.with(End { side, course: &course, seat: &seat, raw_samples, control })?
        })
    }

    fn run_stream(mut self, control: &Control) -> Result<TaskReport, Failure> {
        let Work::Stream { pattern, spec } = self.task.work.clone() else {
            return Err(not_connected());
        };
        // Both ends know the size before they know the route, so greetings avoid both choices.
        let (sent, received) = self.meet(&[spec.write_bytes as usize], control)?;
        let mut legs = vec![];
        for (sender, connections, verb) in
            [(self.side, sent, "sender"), (self.side.other(), received, "receiver")]
        {
            for (index, connection) in flows_of(pattern, sender).zip(connections) {
                let name = format!("{verb} {index}");
                let seat = Seat::of(&self.task, self.side, name, index as usize);
                legs.push(Leg { index, sender, connection, seat });
            }
        }
        legs.sort_by_key(|leg| leg.index);
        let Some(first) = legs.first() else { return Err(not_connected()) };
        let write_bytes = stream::write_bytes(&spec, &first.connection, UDP_SIZE_BYTES_MAX);
        let mut report = stream::run(self.side, legs, &spec, write_bytes, control)?;
        let settings = &mut report.settings;
        if write_bytes != spec.write_bytes as usize {
            let asked = format!("{} B", spec.write_bytes);
            settings.insert("write size asked for".to_string(), asked);
        }
        if let Some(preset) = spec.preset {
            settings.insert("preset".to_string(), preset.to_string());
        }
        Ok(report)
    }

    /// Greets the peer on each connection and waits for it on each listener, all at once: in a
    /// pattern of both directions each end waits for the other. Answers what this end sends on, and
    /// what it receives on, each in the order of the flows.
    fn meet(
        &mut self,
        lengths: &[usize],
        control: &Control,
    ) -> Result<(Vec<Connection>, Vec<Connection>), Failure> {
        let cancelled = || control.cancelled();
        let (connections, listeners) =
            (std::mem::take(&mut self.connections), std::mem::take(&mut self.listeners));
        thread::scope(|scope| {
            let accepting = thread::Builder::new()
                .spawn_scoped(scope, || {
                    let accept =
                        |listener: Listener| listener.accept(lengths, MEET_MAX, &cancelled);
                    listeners.into_iter().map(accept).collect::<Result<Vec<_>, _>>()
                })
                .map_err(|error| hot::no_thread(&error))?;
            let greeted = connections
                .into_iter()
                .map(|mut connection| {
                    connection.greet(lengths, MEET_MAX, &cancelled).map(|()| connection)
                })
                .collect::<Result<Vec<_>, _>>();
            let accepted = accepting.join().unwrap_or_else(|_| Err(hot::panicked("accepting")));
            Ok((greeted?, accepted?))
        })
    }
}

/// The end of a latency probe, over any transport.
struct End<'a> {
    side: Side,
    course: &'a Course,
    seat: &'a Seat,
    raw_samples: bool,
    control: &'a Control,
}

impl Visitor for End<'_> {
    type Output = Result<TaskReport, Failure>;

    fn visit<T: Transport>(self, mut transport: T) -> Result<TaskReport, Failure> {
        let End { side, course, seat, raw_samples, control } = self;
        match side {
            Side::Client => latency::client(&mut transport, course, seat, raw_samples, control),
            Side::Server => latency::server(&mut transport, course, seat, control),
        }
    }
}

fn not_connected() -> Failure {
    Failure::new(FailureKind::BadRequest, "the task was run before it was connected")
        .hint("prepare it with `listen` and `connect` first")
}

fn pattern(work: &Work) -> Pattern {
    match work {
        Work::Stream { pattern, .. } => *pattern,
        Work::Pingpong { .. } | Work::Rr { .. } => ONE_FLOW,
    }
}

/// Numbers of the flows that `sender` sends.
fn flows_of(pattern: Pattern, sender: Side) -> impl Iterator<Item = u32> {
    (0..pattern.flows).filter(move |&index| pattern.sender(index) == sender)
}

fn options(task: &Task) -> Options {
    match &task.work {
        Work::Stream { spec, .. } => {
            Options { buffer_bytes: spec.buffer_bytes, congestion: spec.congestion.clone() }
        }
        Work::Pingpong { .. } | Work::Rr { .. } => Options::default(),
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

/// Refuses a task that makes no sense over its stack.
fn check(task: &Task) -> Result<(), Failure> {
    let datagram_bytes_max = match task.stack.protocol {
        Protocol::Udp | Protocol::Multicast => Some(UDP_SIZE_BYTES_MAX),
        Protocol::Xdp => Some(XDP_SIZE_BYTES_MAX),
        Protocol::Tcp | Protocol::XdpTcp | Protocol::Unix | Protocol::Shm => None,
    };
    let bad = |what: String, hint: &str| {
        Err(Failure::new(FailureKind::BadRequest, what).hint(hint.to_string()))
    };
    let (sizes, seconds) = match &task.work {
        Work::Pingpong { size_bytes, spec } => (vec![*size_bytes], spec.max_ms as f64 / 1e3),
        Work::Rr { size, seconds, .. } => (vec![size.request_bytes, size.response_bytes], *seconds),
        Work::Stream { spec, .. } => (vec![], spec.seconds),
    };
    for size in sizes {
        if let Some(largest) = datagram_bytes_max.filter(|largest| size > *largest) {
            let what = format!("{size} B do not fit into one datagram of {}", task.stack.protocol);
            return bad(what, &format!("use sizes up to {largest} B, or a stream"));
        }
        if size > SIZE_BYTES_MAX {
            let what = format!("{size} B are more than the largest message");
            return bad(what, &format!("use sizes up to {SIZE_BYTES_MAX} B"));
        }
        if size == 0 && datagram_bytes_max.is_none() {
            let what = format!("{} cannot carry a message of 0 B", task.stack.protocol);
            return bad(what, "use sizes from 1 B, or udp");
        }
    }
    // Written so that a NaN is refused, too.
    if !(seconds > 0.0 && seconds <= SECONDS_MAX) {
        return bad(
            format!("{seconds} s is no measuring time"),
            &format!("use more than 0 and at most {SECONDS_MAX} s"),
        );
    }
    match &task.work {
        Work::Rr { rate_per_s: Some(rate), .. } if !(*rate > 0.0 && rate.is_finite()) => {
            bad(format!("{rate} requests/s is no rate"), "use a rate above 0")
        }
        Work::Stream { .. } if task.stack.protocol == Protocol::Xdp => {
            bad("a stream over xdp is not possible".to_string(), "use xdp-tcp, or another probe")
        }
        Work::Stream { pattern, .. }
            if task.stack.protocol == Protocol::XdpTcp && pattern.flows > 1 =>
        {
            bad(format!("{} flows over xdp-tcp are not possible", pattern.flows), "use 1-uni-1")
        }
        Work::Stream { pattern, .. } if !(1..=Pattern::MAX_FLOWS).contains(&pattern.flows) => {
            bad(format!("{} flows are not possible", pattern.flows), "use 1 to 256 flows")
        }
        _ => Ok(()),
    }
}
