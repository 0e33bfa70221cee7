//! The load generator: one thread that sends requests on schedule to all gateways, receives
//! replies, and re-establishes lost connections.
//!
//! It sleeps until the next request is due or a reply arrives. It polls the clock only in the last
//! microseconds before a request, because it shares the CPUs with the network that it measures.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use nm_exchange::link::{Address, LinkError};
use nm_model::agent::{Failure, FailureKind};
use nm_stats::random::Random;
use nm_sys::clock::{Deadline, monotonic_ns};
use nm_sys::cpu;
use nm_sys::poll::Readiness;
use nm_wire::Message;

use crate::clients::{Clients, Counts, Reply};
use crate::connections::{Connections, Gateways, Source as FrameSource};
use crate::flow::{Flow, Recorder, StreamHash};
use crate::log::{Log, Record};
use crate::mix::OrderGenerator;
use crate::profile::{Profile, Segment};
use crate::recorder::LoadRecorder;
use crate::round::{Round, RoundRecorder};
use crate::schedule::Schedule;
use crate::seconds::{RecordedSecond, SecondsRecorder};
use crate::settings::{OrderRequest, Pace, Settings, Stall};

/// Time before a request during which it polls the clock, ns.
const SPIN_NS: u64 = 3_000;

/// Above this rate requests are sent in groups, with pauses between them.
const GROUPED_PER_S: f64 = 30_000.0;

/// Pause between groups, ns.
const REST_NS: u64 = 40_000;

/// Requests sent before replies are received again.
const REQUESTS_AT_ONCE: usize = 256;

/// Time from the start of a round to its first request, ns.
const LEAD_NS: u64 = 1_000_000;

/// Longest sleep, so that a cancellation is noticed, ns.
const SLEEP_MAX_NS: u64 = 100_000_000;

/// How long sessions wait at the end for missing events.
const RESEND_LIMIT: Duration = Duration::from_secs(3);

/// Most samples for which memory is reserved before a round.
const SAMPLES_ROOM: f64 = 4e6;

/// Where requests come from.
enum Source {
    Generated(Box<OrderGenerator>),
    Recorded { flow: Flow, at: usize },
}

/// The times of requests.
enum Times {
    /// One rate.
    Constant(Schedule),
    /// Rate and demand change.
    Profile(Box<Profile>),
    /// Those of a recorded flow, in which this round begins at `base_ns`.
    Recorded { base_ns: u64 },
}

/// The schedule of one round, or of a profile.
struct Due {
    times: Times,
    /// Requests a second, unless the profile says it.
    rate_per_s: f64,
    start_ns: u64,
    end_ns: u64,
    next: Option<(u64, OrderRequest)>,
}

impl Due {
    /// Whether requests are sent in groups now.
    fn is_grouped(&self) -> bool {
        let rate_per_s = match &self.times {
            Times::Profile(profile) => profile.rate_max_per_s(),
            Times::Constant(_) | Times::Recorded { .. } => self.rate_per_s,
        };
        rate_per_s > GROUPED_PER_S
    }

    /// When the next request is due, ns; never if there is none.
    fn next_ns(&self) -> u64 {
        self.next.map_or(u64::MAX, |(at_ns, _)| at_ns)
    }
}

/// How one round, or a profile, is driven.
struct Drive<'a> {
    stall: Option<Stall>,
    /// Until when replies are waited for, ns.
    drained_ns: u64,
    cancel: &'a AtomicBool,
}

/// What a profile of load reports at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProfileEnd {
    /// Hash of all requests since the generator was created.
    pub stream_hash: u64,
    /// Requests retransmitted after a connection was lost.
    pub resent: u64,
    /// Connections that were re-established.
    pub reconnects: u64,
}

/// The load generator. Sessions, sequence numbers and generated orders continue from round to
/// round.
pub struct Generator {
    settings: Settings,
    source: Source,
    times: Random,
    clients: Clients,
    connections: Connections,
    ready: Vec<Readiness>,
    log: Option<Log>,
    recorder: Option<(Recorder, u64)>,
    hash: StreamHash,
    scratch: Vec<u8>,
    round_start_ns: Arc<AtomicU64>,
}

impl Generator {
    /// Connects to all gateways within `limit`. `flow`: requests and times that replace those of
    /// the settings. `log`: file for the client log.
    ///
    /// # Errors
    /// A gateway that cannot be reached, invalid settings, a file that cannot be created.
    pub fn connect(
        settings: &Settings,
        flow: Option<Flow>,
        gateways: &[Address],
        log: Option<&Path>,
        limit: Duration,
    ) -> Result<Generator, Failure> {
        let known = Arc::default();
        let network = Gateways { network: 0, addresses: gateways, credentials: None, known };
        Generator::connect_to(settings, flow, &network, log, limit)
    }

    /// As [`Generator::connect`], to a network that may have a secret.
    ///
    /// # Errors
    /// As [`Generator::connect`].
    pub fn connect_to(
        settings: &Settings,
        flow: Option<Flow>,
        network: &Gateways<'_>,
        log: Option<&Path>,
        limit: Duration,
    ) -> Result<Generator, Failure> {
        let mut settings = *settings;
        if let Some(flow) = &flow {
            let (session, instrument) = flow.extent();
            (settings.sessions, settings.instruments) = (session, instrument.saturating_add(1));
        }
        settings.check().map_err(|why| Failure::new(FailureKind::BadRequest, why.to_string()))?;
        let source = match flow {
            Some(flow) => Source::Recorded { flow, at: 0 },
            None => Source::Generated(Box::new(OrderGenerator::new(&settings))),
        };
        let Settings { sessions, instruments, is_stamped, .. } = settings;
        let connections = Connections::new(network).map_err(|error| system("waiting", &error))?;
        let log = log.map(Log::create).transpose()?;
        let mut generator = Generator {
            settings,
            source,
            // A stream of its own, so that orders do not depend on times.
            times: Random::new(settings.seed ^ 0x74_69_6d_65_73),
            clients: Clients::new(sessions, instruments, connections.count(), is_stamped),
            connections,
            ready: vec![],
            log,
            recorder: None,
            hash: StreamHash::default(),
            scratch: vec![],
            round_start_ns: Arc::default(),
        };
        generator.connections.connect_all(&mut generator.clients, limit)?;
        Ok(generator)
    }

    /// Records requests and times from now on, to a file that [`Flow::read`] reads.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn record(&mut self, path: &Path) -> Result<(), Failure> {
        self.recorder = Some((Recorder::create(path)?, 0));
        Ok(())
    }

    /// Start of the current round, ns on the monotonic clock; zero before the first. For other
    /// threads that act at a time of the round.
    pub fn round_start(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.round_start_ns)
    }

    /// Runs one round: sends on schedule, waits for the last replies, and returns the figures.
    ///
    /// # Errors
    /// An invalid pace, a failure of this machine, or `cancel` was set. A failure of the network is
    /// no error; it shows as lost requests.
    pub fn round(&mut self, pace: &Pace, cancel: &AtomicBool) -> Result<Round, Failure> {
        pace.check().map_err(|why| Failure::new(FailureKind::BadRequest, why.to_string()))?;
        let about = (pace.rate_per_s * pace.seconds * 1.1).min(SAMPLES_ROOM) as usize;
        let (counts, reconnects) = (self.clients.counts, self.connections.reconnects);
        let start_ns = self.start_round();
        let mut recorder = RoundRecorder::new(start_ns, self.clients.submitted(), about);
        let times = match &self.source {
            Source::Generated(_) => {
                let times = std::mem::replace(&mut self.times, Random::new(0));
                Times::Constant(Schedule::new(pace.arrivals, pace.rate_per_s, times))
            }
            Source::Recorded { flow, at } => {
                Times::Recorded { base_ns: flow.requests.get(*at).map_or(0, |(ns, _)| *ns) }
            }
        };
        let end_ns = start_ns + (pace.seconds * 1e9) as u64;
        let mut due = Due { times, rate_per_s: pace.rate_per_s, start_ns, end_ns, next: None };
        let drained_ns = end_ns + (pace.drain_s * 1e9) as u64;
        let drive = Drive { stall: pace.stall, drained_ns, cancel };
        self.drive(&mut due, drive, &mut recorder)?;
        self.finish(due, recorder, pace, (counts, reconnects))
    }

    /// Runs a profile: sends on its schedule, and passes on each second to `sink` when it is
    /// complete. Requests without a reply `drain_s` after their second are lost. `started` gets its
    /// start, ns on the monotonic clock.
    ///
    /// # Errors
    /// As [`Generator::round`], and for a recorded flow; the seconds so far are passed on.
    pub fn profile(
        &mut self,
        segments: Vec<Segment>,
        drain_s: f64,
        sink: Sender<RecordedSecond>,
        started: &AtomicU64,
        cancel: &AtomicBool,
    ) -> Result<ProfileEnd, Failure> {
        if let Source::Recorded { .. } = self.source {
            let message = "a recorded flow has its own times, and cannot follow a profile";
            return Err(Failure::new(FailureKind::BadRequest, message));
        }
        let (counts, reconnects) = (self.clients.counts, self.connections.reconnects);
        let seconds: u32 = segments.iter().map(|segment| segment.seconds).sum();
        let times = std::mem::replace(&mut self.times, Random::new(0));
        let profile = Profile::new(segments, self.settings.instruments, times);
        let start_ns = self.start_round();
        started.store(start_ns, Ordering::Release);
        let drain_ns = (drain_s * 1e9) as u64;
        let first = self.clients.submitted();
        let mut recorder = SecondsRecorder::new(start_ns, seconds, first, drain_ns, sink);
        let end_ns = start_ns + u64::from(seconds) * 1_000_000_000;
        let times = Times::Profile(Box::new(profile));
        let mut due = Due { times, rate_per_s: 0.0, start_ns, end_ns, next: None };
        let drive = Drive { stall: None, drained_ns: end_ns + drain_ns, cancel };
        let driven = self.drive(&mut due, drive, &mut recorder);
        match driven {
            Ok(()) => recorder.finish(),
            Err(_) => recorder.stop(monotonic_ns()),
        }
        driven?;
        self.end_schedule(due)?;
        Ok(ProfileEnd {
            stream_hash: self.hash.value(),
            resent: self.clients.counts.resent - counts.resent,
            reconnects: self.connections.reconnects - reconnects,
        })
    }

    /// Chooses the start of a round, ns.
    fn start_round(&self) -> u64 {
        cpu::minimize_timer_slack();
        let start_ns = monotonic_ns() + LEAD_NS;
        self.round_start_ns.store(start_ns, Ordering::Release);
        start_ns
    }

    /// Sends on schedule and waits for the last replies.
    fn drive(
        &mut self,
        due: &mut Due,
        mut drive: Drive<'_>,
        recorder: &mut dyn LoadRecorder,
    ) -> Result<(), Failure> {
        let start_ns = due.start_ns;
        let mut stall_ns = drive.stall.map(|stall| start_ns + (stall.at_s * 1e9) as u64);
        self.prepare(due);
        loop {
            let now_ns = monotonic_ns();
            if stall_ns.is_some_and(|at_ns| now_ns >= at_ns) {
                let for_ms = drive.stall.take().map_or(0.0, |stall| stall.for_ms.max(0.0));
                std::thread::sleep(Duration::from_secs_f64(for_ms / 1e3));
                stall_ns = None;
                continue;
            }
            self.send(due, recorder, now_ns)?;
            self.connections.flush_all(&mut self.clients);
            if drive.cancel.load(Ordering::Relaxed) {
                return Err(Failure::new(FailureKind::Cancelled, "the load was cancelled"));
            }
            let is_done = due.next.is_none() && recorder.unanswered() == 0;
            if is_done || due.next.is_none() && monotonic_ns() >= drive.drained_ns {
                return Ok(());
            }
            recorder.advance(now_ns, due.next_ns());
            let until_ns = match due.next {
                Some((at_ns, _)) => at_ns.min(stall_ns.unwrap_or(u64::MAX)),
                None => drive.drained_ns,
            };
            let rests = due.is_grouped();
            self.wait(until_ns.min(now_ns + SLEEP_MAX_NS), rests, recorder)?;
        }
    }

    /// Prepares the next request, if the round has one.
    fn prepare(&mut self, due: &mut Due) {
        due.next = match (&mut self.source, &mut due.times) {
            (Source::Generated(generator), Times::Constant(schedule)) => {
                let at_ns = schedule.next().map_or(u64::MAX, |ns| due.start_ns.saturating_add(ns));
                (at_ns < due.end_ns).then(|| (at_ns, generator.next_request()))
            }
            (Source::Generated(generator), Times::Profile(profile)) => {
                profile.next(generator).map(|(ns, request)| (due.start_ns + ns, request))
            }
            (Source::Recorded { flow, at }, Times::Recorded { base_ns }) => {
                let next = flow.requests.get(*at).copied();
                let shifted = next.map(|(ns, request)| (due.start_ns + (ns - *base_ns), request));
                let next = shifted.filter(|(at_ns, _)| *at_ns < due.end_ns);
                *at += usize::from(next.is_some());
                next
            }
            _ => None,
        };
    }

    /// Sends the requests that are due, up to a limit.
    fn send(
        &mut self,
        due: &mut Due,
        recorder: &mut dyn LoadRecorder,
        now_ns: u64,
    ) -> Result<(), Failure> {
        for _ in 0..REQUESTS_AT_ONCE {
            let Some((at_ns, request)) = due.next.filter(|(at_ns, _)| *at_ns <= now_ns) else {
                break;
            };
            let output = self.connections.output(self.clients.link_of(request.session));
            let record = self.clients.submit(&request, at_ns, output);
            if let Some(record) = record {
                recorder.sent(at_ns, now_ns);
                self.log_record(&record)?;
            }
            self.hash.add(&request, &mut self.scratch);
            if let Some((recorder, offset_ns)) = &mut self.recorder {
                let at_ns = *offset_ns + (at_ns - due.start_ns);
                recorder.add(at_ns, &request).map_err(|error| system("recording", &error))?;
            }
            self.prepare(due);
        }
        Ok(())
    }

    fn log_record(&mut self, record: &Record) -> Result<(), Failure> {
        let Some(log) = &mut self.log else { return Ok(()) };
        log.add(record).map_err(|error| system("writing the client log", &error))
    }

    /// Sleeps until a time or until a frame arrives, and handles what arrived.
    fn wait(
        &mut self,
        until_ns: u64,
        rests: bool,
        recorder: &mut dyn LoadRecorder,
    ) -> Result<(), Failure> {
        self.connections.advance_moves(&mut self.clients);
        let most_ns = if self.connections.is_moving() { SLEEP_MAX_NS } else { u64::MAX };
        let left_ns = until_ns.saturating_sub(monotonic_ns()).min(most_ns);
        let sleep_ns = match left_ns {
            0 => 0,
            _ if rests => left_ns.max(REST_NS),
            _ => left_ns.saturating_sub(SPIN_NS),
        };
        let mut ready = std::mem::take(&mut self.ready);
        let waited = self.connections.poller.wait(&mut ready, Some(Duration::from_nanos(sleep_ns)));
        for found in &ready {
            match self.connections.source(found.token) {
                Some(FrameSource::Dialer) => {
                    for index in self.connections.take_dialed(&mut self.clients)? {
                        // Frames may have come with the last one of the handshake.
                        self.receive(FrameSource::Current(index), recorder)?;
                    }
                }
                Some(source) if found.readable => self.receive(source, recorder)?,
                _ => {}
            }
            if found.writable {
                self.connections.flush_all(&mut self.clients);
            }
        }
        self.ready = ready;
        waited.map_err(|error| system("waiting", &error))
    }

    /// Receives over a link, or over the link before, whose sessions move.
    fn receive(
        &mut self,
        source: FrameSource,
        recorder: &mut dyn LoadRecorder,
    ) -> Result<(), Failure> {
        let (FrameSource::Current(index) | FrameSource::Before(index)) = source else {
            return Ok(());
        };
        let receiving = self.connections.receiving(source);
        let Some((link, mut is_leaving, mut output)) = receiving else { return Ok(()) };
        let mut outcome = link.receive();
        let at_ns = monotonic_ns();
        let mut logged = Ok(());
        while outcome.is_ok() {
            let arrived = match link.input.next_frame() {
                Ok(Some(arrived)) => arrived,
                Ok(None) => break,
                Err(broken) => {
                    outcome = Err(broken.into());
                    break;
                }
            };
            let message = match Message::read(arrived.shared()) {
                Ok(message) => message,
                Err(broken) => {
                    outcome = Err(broken.into());
                    break;
                }
            };
            match &message {
                Message::GoAway(_) => is_leaving = true,
                Message::Close(_) if is_leaving => outcome = Err(LinkError::Closed),
                Message::Close(close) => {
                    return Err(self.connections.refused(index, &close.printable()));
                }
                _ => {}
            }
            let clients = &mut self.clients;
            let (reply, record) = match &mut output {
                Some(output) => clients.receive_late(index, &message, at_ns, output),
                None => clients.receive(index, &message, at_ns, &mut link.output),
            };
            if let Some(Reply { number, intended_ns, refused: Some(reason) }) = reply {
                recorder.refused(number, intended_ns, reason);
            } else if let Some(reply) = reply {
                recorder.answered(reply.number, reply.intended_ns, at_ns);
                if let Some(stamps) = arrived.shared().stamps() {
                    recorder.stamped(reply.intended_ns, stamps, at_ns);
                }
            }
            if let (Some(record), Some(log)) = (record, &mut self.log) {
                logged = logged.and(log.add(&record));
            }
        }
        if is_leaving {
            self.connections.go_away(source, &mut self.clients);
        }
        match outcome {
            Ok(()) => {}
            Err(error) if error.is_other_version() => {
                return Err(self.connections.refused(index, &error));
            }
            Err(_) => self.connections.disconnect(source, &mut self.clients),
        }
        logged.map_err(|error| system("writing the client log", &error))
    }

    /// Keeps what the next round continues from.
    fn end_schedule(&mut self, due: Due) -> Result<(), Failure> {
        match due.times {
            Times::Constant(schedule) => self.times = schedule.into_random(),
            Times::Profile(profile) => self.times = profile.into_random(),
            Times::Recorded { .. } => {}
        }
        if let Some((_, offset_ns)) = &mut self.recorder {
            *offset_ns += due.end_ns - due.start_ns;
        }
        if let Some(log) = &mut self.log {
            log.flush().map_err(|error| system("writing the client log", &error))?;
        }
        Ok(())
    }

    fn finish(
        &mut self,
        due: Due,
        recorder: RoundRecorder,
        pace: &Pace,
        before: (Counts, u64),
    ) -> Result<Round, Failure> {
        self.end_schedule(due)?;
        let mut round = recorder.finish(pace.rate_per_s);
        if let Source::Recorded { .. } = self.source {
            round.offered_per_s = round.sent as f64 / pace.seconds;
        }
        let (counts, (old, reconnects)) = (self.clients.counts, before);
        round.resent = counts.resent - old.resent;
        round.repeats = counts.repeats - old.repeats;
        round.private = counts.private - old.private;
        round.unknown = counts.unknown - old.unknown;
        round.public = counts.public - old.public;
        round.public_gaps = counts.public_gaps - old.public_gaps;
        round.reconnects = self.connections.reconnects - reconnects;
        round.stream_hash = self.hash.value();
        Ok(round)
    }

    /// Settings of the load.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Whether a recorded flow is at its end.
    pub fn is_exhausted(&self) -> bool {
        matches!(&self.source, Source::Recorded { flow, at } if *at >= flow.requests.len())
    }

    /// If there is a client log, waits until every session has received all of its events.
    fn complete_deliveries(&mut self, recorder: &mut dyn LoadRecorder) -> Result<(), Failure> {
        if self.log.is_none() {
            return Ok(());
        }
        for index in 0..self.connections.count() {
            self.clients.request_resends(index, None, self.connections.output(index));
        }
        // Empty books after a loss of state never catch up with a session, hence the limit. It
        // begins anew with each session that is served: an overloaded network takes its time.
        let (mut deadline, mut fewest) = (Deadline::after(RESEND_LIMIT), usize::MAX);
        while self.clients.awaiting_resend() > 0 && !deadline.passed() {
            if self.clients.awaiting_resend() < fewest {
                (deadline, fewest) =
                    (Deadline::after(RESEND_LIMIT), self.clients.awaiting_resend());
            }
            let until_ns = monotonic_ns() + SLEEP_MAX_NS;
            while self.clients.awaiting_resend() > 0 && monotonic_ns() < until_ns {
                self.connections.flush_all(&mut self.clients);
                self.wait(until_ns, false, recorder)?;
            }
            for index in 0..self.connections.count() {
                self.clients.repeat_resend_requests(index, self.connections.output(index));
            }
        }
        Ok(())
    }

    /// Waits at most `limit` for pending replies, and returns the number of requests that are lost
    /// for good. Logs all events delivered to each session, and closes connections and files.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn end(mut self, limit: Duration) -> Result<u64, Failure> {
        let deadline = Deadline::after(limit);
        let mut recorder = RoundRecorder::new(monotonic_ns(), self.clients.submitted(), 0);
        while self.clients.pending() > 0 && !deadline.passed() {
            self.connections.flush_all(&mut self.clients);
            let until_ns = monotonic_ns() + deadline.remaining().as_nanos() as u64;
            self.wait(until_ns, false, &mut recorder)?;
        }
        self.complete_deliveries(&mut recorder)?;
        if let Some(mut log) = self.log.take() {
            for record in self.clients.all_delivered().chain(self.clients.all_unanswered()) {
                log.add(&record).map_err(|error| system("writing the client log", &error))?;
            }
            log.end().map_err(|error| system("writing the client log", &error))?;
        }
        if let Some((recorder, _)) = self.recorder.take() {
            recorder.finish().map_err(|error| system("recording", &error))?;
        }
        Ok(self.clients.pending())
    }
}

fn system(what: &str, error: &std::io::Error) -> Failure {
    Failure::new(FailureKind::System, format!("{what} failed in the load generator: {error}"))
}
