//! Flows: bulk data in one or both directions, counted where it arrives.
//!
//! Every flow has a thread of its own at each end. When an end has all the flows that it receives,
//! it sends a start signal on each of them, so that all start together. A receiver counts from the
//! last read before its window opens to the first read after it closes. So its rate is complete
//! reads over the time that they took. A sender continues until every window is over, then ends its
//! direction.
//!
//! The start signal is one byte on a stream, and a handshake message over datagrams, repeated until
//! the first data arrive.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use nm_model::agent::TaskReport;
use nm_model::doubt::{Doubt, DoubtKind};
use nm_model::probe::{Side, StreamWork};
use nm_model::result::{Flow, Placement, Statistic};
use nm_model::setting::{Setting, SettingKind, SettingValue, Settings};
use nm_sys::clock::{Clock, Moment};
use nm_sys::counters::process_cpu_ns;
use nm_transport::handshake::{self, HandshakeMessage};
use nm_transport::{CALL_TIMEOUT, Connection, Transport, TransportError, Visitor};

use crate::control::Control;
use crate::error::ProbeError;
use crate::pinned_thread::PinnedThread;
use crate::sequence;

/// Bytes of one read of a stream: large enough that the calls do not matter, small enough for a
/// core's own cache.
const READ_BYTES: usize = 256 * 1024;

/// Bytes that hold any datagram.
const DATAGRAM_BYTES_MAX: usize = 64 * 1024;

/// How much longer than the window a sender sends, so that no receiver runs out of data at its end.
const TAIL: Duration = Duration::from_millis(50);

/// How long a receiver waits after its window for the sender to end.
const DRAIN_MAX: Duration = Duration::from_secs(5);

/// Silence in a window after which the sender of datagrams counts as gone.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// How long each end waits for the other to start.
const START_MAX: Duration = Duration::from_secs(15);

/// Pause between two start signals over datagrams, which may be lost.
const START_PAUSE: Duration = Duration::from_millis(20);

/// Pause between two checks of whether all threads are ready, or data have arrived.
const READY_PAUSE: Duration = Duration::from_micros(50);

/// The start signal on a stream.
const START_BYTE: u8 = 1;

/// A flow that this end takes part in, connected.
#[derive(Debug)]
pub struct ConnectedFlow {
    /// Number of the flow.
    pub index: u32,
    /// The end that sends.
    pub sender: Side,
    /// The connection.
    pub connection: Connection,
    /// The thread that runs it.
    pub thread: PinnedThread,
}

/// Bytes of one write over `connection`: those that were asked for, but a datagram that no link
/// carries is reduced to what the route's MTU carries without fragmentation.
pub fn write_bytes(work: &StreamWork, connection: &Connection) -> usize {
    let requested = work.write_bytes.max(1);
    match connection.stack().protocol.datagram_bytes_max() {
        Some(bytes_max) if requested > bytes_max => {
            connection.datagram_bytes_max().unwrap_or(1_200) as usize
        }
        _ => requested as usize,
    }
}

/// What all threads of this end share.
struct Shared<'a> {
    clock: Clock,
    control: &'a Control,
    /// Set when one flow has failed, so that the others end.
    failed: AtomicBool,
    /// Threads that are on their CPU; once all are, `started` is set and they begin together.
    ready: AtomicUsize,
    started: AtomicBool,
    omit: Duration,
    window: Duration,
}

impl Shared<'_> {
    #[inline(always)]
    fn stopped(&self) -> bool {
        self.control.cancelled() || self.failed.load(Ordering::Relaxed)
    }

    fn ticks(&self, time: Duration) -> u64 {
        self.clock.ticks(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }
}

/// Bytes that a flow has received in its window so far, alone on its cache lines.
#[repr(align(128))]
#[derive(Debug, Default)]
struct ByteCounter(AtomicU64);

/// The report of one flow at this end.
#[derive(Debug)]
struct FlowReport {
    index: u32,
    received: Option<Flow>,
    retransmits: Option<u64>,
    settings: Settings,
    placement: Placement,
    doubts: Vec<Doubt>,
}

type FlowResult = Result<FlowReport, ProbeError>;

/// Runs all flows of this end.
///
/// # Errors
/// The error of the first flow that failed; [`ProbeError::Cancelled`].
pub fn run(
    side: Side,
    flows: Vec<ConnectedFlow>,
    work: &StreamWork,
    write_bytes: usize,
    control: &Control,
) -> Result<TaskReport, ProbeError> {
    let shared = Shared {
        clock: Clock::system(),
        control,
        failed: AtomicBool::new(false),
        ready: AtomicUsize::new(0),
        started: AtomicBool::new(false),
        omit: Duration::from_millis(work.omit_ms),
        window: Duration::try_from_secs_f64(work.seconds).unwrap_or_default(),
    };
    let (flows, cpu) = run_threads(side, flows, write_bytes, &shared);
    // A cancel ends the flows one by one, so the last ones may see their peers go.
    if control.cancelled() {
        return Err(ProbeError::Cancelled);
    }
    let flows = first_error(flows?)?;
    let mut report = TaskReport { cpu, ..TaskReport::default() };
    report.settings.set(SettingKind::WriteSize, SettingValue::Bytes(write_bytes as u64));
    for flow in flows {
        report.received.extend(flow.received);
        report.retransmits.extend(flow.retransmits.map(|count| (flow.index, count)));
        report.placements.push(flow.placement);
        report.doubts.extend(flow.doubts);
        for Setting { kind, value, .. } in flow.settings {
            report.settings.set_if_absent(kind, value);
        }
    }
    Ok(report)
}

/// Runs each flow on a thread of its own: their results, and the CPU use of the process.
fn run_threads(
    side: Side,
    flows: Vec<ConnectedFlow>,
    write_bytes: usize,
    shared: &Shared<'_>,
) -> (Result<Vec<FlowResult>, ProbeError>, Option<f64>) {
    let counters: Vec<ByteCounter> = flows.iter().map(|_| ByteCounter::default()).collect();
    thread::scope(|scope| {
        let mut handles = vec![];
        for (flow, counter) in flows.into_iter().zip(&counters) {
            let builder = thread::Builder::new().name(flow.thread.name.clone());
            let spawned = builder.spawn_scoped(scope, move || {
                let result = run_flow(side, flow, write_bytes, shared, counter);
                if result.is_err() {
                    shared.failed.store(true, Ordering::Relaxed);
                }
                result
            });
            match spawned {
                Ok(handle) => handles.push(handle),
                Err(error) => {
                    shared.failed.store(true, Ordering::Relaxed);
                    return (Err(ProbeError::SpawnThread(error)), None);
                }
            }
        }
        while shared.ready.load(Ordering::Acquire) < handles.len() && !shared.stopped() {
            thread::sleep(READY_PAUSE);
        }
        shared.started.store(true, Ordering::Release);
        let cpu = watch(shared, &handles, &counters);
        (Ok(handles.into_iter().map(join).collect()), cpu)
    })
}

fn join(handle: ScopedJoinHandle<'_, FlowResult>) -> FlowResult {
    let name = handle.thread().name().unwrap_or("flow").to_string();
    handle.join().unwrap_or(Err(ProbeError::Panicked(name)))
}

/// All reports, or the first error; flows that only ended because another failed do not count.
fn first_error(flows: Vec<FlowResult>) -> Result<Vec<FlowReport>, ProbeError> {
    let mut errors: Vec<ProbeError> = vec![];
    let mut reports = vec![];
    for flow in flows {
        match flow {
            Ok(report) => reports.push(report),
            Err(error) => errors.push(error),
        }
    }
    errors.sort_by_key(is_cancelled);
    match errors.into_iter().next() {
        Some(error) => Err(error),
        None => Ok(reports),
    }
}

fn is_cancelled(error: &ProbeError) -> bool {
    match error {
        ProbeError::Cancelled => true,
        ProbeError::Flow { source, .. } => is_cancelled(source),
        _ => false,
    }
}

/// Publishes the progress, and measures the CPU time of the process in the window.
fn watch<R>(
    shared: &Shared<'_>,
    handles: &[ScopedJoinHandle<'_, R>],
    counters: &[ByteCounter],
) -> Option<f64> {
    let begin = Moment::now();
    let sleep_until = |limit: Duration, publish: bool| {
        while begin.elapsed() < limit {
            if shared.stopped() || handles.iter().all(ScopedJoinHandle::is_finished) {
                return false;
            }
            thread::sleep(limit.saturating_sub(begin.elapsed()).min(CALL_TIMEOUT));
            let seconds = begin.elapsed().saturating_sub(shared.omit).as_secs_f64();
            let bytes: u64 = counters.iter().map(|c| c.0.load(Ordering::Relaxed)).sum();
            if publish && bytes > 0 && seconds > 0.0 {
                let gbps = bytes as f64 * 8.0 / seconds / 1e9;
                shared.control.set_progress(Statistic::Throughput, gbps);
            }
        }
        true
    };
    if !sleep_until(shared.omit, false) {
        return None;
    }
    let (cpu_ns, opened) = (process_cpu_ns(), Moment::now());
    if !sleep_until(shared.omit + shared.window, true) {
        return None;
    }
    let used_s = process_cpu_ns().saturating_sub(cpu_ns) as f64 / 1e9;
    Some(used_s / opened.elapsed().as_secs_f64())
}

/// The thread of one flow at this end.
fn run_flow(
    side: Side,
    flow: ConnectedFlow,
    write_bytes: usize,
    shared: &Shared<'_>,
    counter: &ByteCounter,
) -> FlowResult {
    flow.thread.pin_current()?;
    shared.ready.fetch_add(1, Ordering::AcqRel);
    while !shared.started.load(Ordering::Acquire) {
        if shared.stopped() {
            return Err(ProbeError::Cancelled);
        }
        thread::sleep(READY_PAUSE);
    }
    let ConnectedFlow { index, sender, connection, thread } = flow;
    let end = FlowEnd { side, index, sender, thread, write_bytes, shared, counter };
    let result = connection.with(end).unwrap_or_else(|error| Err(error.into()));
    result.map_err(|error| ProbeError::Flow { index, source: Box::new(error) })
}

/// One end of one flow.
struct FlowEnd<'a> {
    side: Side,
    index: u32,
    sender: Side,
    thread: PinnedThread,
    write_bytes: usize,
    shared: &'a Shared<'a>,
    counter: &'a ByteCounter,
}

impl Visitor for FlowEnd<'_> {
    type Output = FlowResult;

    fn visit<T: Transport>(self, mut transport: T) -> FlowResult {
        if self.sender == self.side {
            self.send(&mut transport)
        } else {
            self.receive(&mut transport)
        }
    }
}

/// What a receiver counted in its window.
#[derive(Debug, Default)]
struct WindowCount {
    bytes: u64,
    /// Ticks between the reads that bound the window.
    duration: u64,
    /// Datagrams counted, and how many were sent by their sequence numbers.
    datagrams: u64,
    datagrams_sent: u64,
}

impl WindowCount {
    /// The doubt that datagrams of flow `index` were lost.
    fn loss_doubt(&self, index: u32) -> Option<Doubt> {
        let sent = self.datagrams_sent;
        let lost = sent.saturating_sub(self.datagrams);
        (lost > 0).then(|| {
            let percent = lost as f64 / sent as f64 * 100.0;
            let detail = format!("flow {index}: {lost} of {sent} datagrams lost ({percent:.2} %)");
            Doubt::new(DoubtKind::Loss, detail)
        })
    }
}

impl FlowEnd<'_> {
    fn send<T: Transport>(self, transport: &mut T) -> FlowResult {
        self.receive_start(transport)?;
        let watch = self.thread.watch();
        self.send_data(transport)?;
        let (placement, mut doubts) = watch.finish();
        doubts.extend(transport.doubts());
        let report = FlowReport {
            index: self.index,
            received: None,
            retransmits: transport.retransmits(),
            settings: transport.settings(),
            placement,
            doubts,
        };
        transport.end_sending(&[self.write_bytes]);
        Ok(report)
    }

    /// Waits for the receiver's start signal.
    fn receive_start<T: Transport>(&self, transport: &mut T) -> Result<(), ProbeError> {
        let begin = Moment::now();
        let mut buffer = [0; handshake::BYTES_MAX];
        let receive_bytes = if T::DATAGRAM { buffer.len() } else { 1 };
        while begin.elapsed() < START_MAX {
            if self.shared.stopped() {
                return Err(ProbeError::Cancelled);
            }
            match transport.receive(&mut buffer[..receive_bytes]) {
                Ok(_) => return Ok(()),
                Err(TransportError::TimedOut) => {}
                Err(error) => return Err(ProbeError::transport("waiting for the start")(error)),
            }
        }
        Err(ProbeError::NoStart(START_MAX))
    }

    /// Sends until the receiver's window is over.
    fn send_data<T: Transport>(&self, transport: &mut T) -> Result<(), ProbeError> {
        let shared = self.shared;
        let mut message: Vec<u8> = (0..self.write_bytes).map(|idx| idx as u8).collect();
        let numbered = T::DATAGRAM && message.len() >= sequence::BYTES;
        let begin = shared.clock.now();
        let stop = shared.ticks(shared.omit + shared.window + TAIL);
        // The receiver started before us, so it may have ended before our tail is over.
        let needed = shared.ticks((shared.omit + shared.window).saturating_sub(TAIL));
        let mut number = 0u64;
        loop {
            if numbered {
                sequence::write(&mut message, number);
            }
            let sent = transport.send(&message);
            number += 1;
            let elapsed = shared.clock.now().saturating_sub(begin);
            match sent {
                Ok(()) | Err(TransportError::TimedOut) if shared.stopped() => {
                    return Err(ProbeError::Cancelled);
                }
                Ok(()) if elapsed >= stop => return Ok(()),
                Ok(()) => {}
                // The last message may be incomplete; the receiver's window is over by now.
                Err(TransportError::TimedOut) if elapsed >= stop => return Ok(()),
                Err(TransportError::TimedOut) => number -= 1,
                Err(TransportError::Closed) if elapsed >= needed => return Ok(()),
                Err(error) => return Err(ProbeError::transport("sending")(error)),
            }
        }
    }

    fn receive<T: Transport>(self, transport: &mut T) -> FlowResult {
        let bytes = if T::DATAGRAM { DATAGRAM_BYTES_MAX } else { READ_BYTES };
        let mut buffer = vec![1; bytes];
        let begin = self.shared.clock.now();
        self.send_start(transport, &mut buffer)?;
        let watch = self.thread.watch();
        let count = self.count_window(transport, &mut buffer, begin)?;
        let (placement, mut doubts) = watch.finish();
        let settings = transport.settings();
        doubts.extend(transport.doubts());
        self.drain(transport, &mut buffer);
        doubts.extend(count.loss_doubt(self.index));
        let seconds = self.shared.clock.ns(count.duration) as f64 / 1e9;
        let gbps = if seconds > 0.0 { count.bytes as f64 * 8.0 / seconds / 1e9 } else { 0.0 };
        let (index, sender, bytes) = (self.index, self.sender, count.bytes);
        Ok(FlowReport {
            index,
            received: Some(Flow {
                index,
                pair: None,
                sender,
                bytes,
                seconds,
                gbps,
                retransmits: None,
            }),
            retransmits: None,
            settings,
            placement,
            doubts,
        })
    }

    /// Sends the start signal; over datagrams repeatedly until the first data arrive.
    fn send_start<T: Transport>(
        &self,
        transport: &mut T,
        buffer: &mut [u8],
    ) -> Result<(), ProbeError> {
        let failed = |error| ProbeError::transport("sending the start signal")(error);
        if !T::DATAGRAM {
            return transport.send(&[START_BYTE]).map_err(failed);
        }
        let begin = Moment::now();
        while begin.elapsed() < START_MAX {
            transport.send_keepalive(&[self.write_bytes]).map_err(failed)?;
            let pause = Moment::now();
            while pause.elapsed() < START_PAUSE {
                if self.shared.stopped() {
                    return Err(ProbeError::Cancelled);
                }
                match transport.try_receive(buffer).map_err(failed)? {
                    Some(length) if handshake::decode(&buffer[..length]).is_err() => return Ok(()),
                    Some(_) => {}
                    None => thread::sleep(READY_PAUSE),
                }
            }
        }
        Err(ProbeError::NothingReceived(START_MAX))
    }

    /// Counts what arrives from `omit` after `begin` for the length of the window.
    fn count_window<T: Transport>(
        &self,
        transport: &mut T,
        buffer: &mut [u8],
        begin: u64,
    ) -> Result<WindowCount, ProbeError> {
        let shared = self.shared;
        let opens = begin + shared.ticks(shared.omit);
        let closes = opens + shared.ticks(shared.window);
        let silence_max = shared.ticks(SILENCE_MAX);
        let mut count = WindowCount::default();
        let (mut opened, mut last, mut first_number, mut next_number) = (begin, begin, None, 0);
        loop {
            let received = transport.receive_some(buffer);
            let now = shared.clock.now();
            match received {
                // The sender's route, not ours, decides the length of a datagram.
                Ok(length) if !T::DATAGRAM || handshake::decode(&buffer[..length]).is_err() => {
                    last = now;
                    if now < opens {
                        opened = now;
                        continue;
                    }
                    count.bytes += length as u64;
                    self.counter.0.store(count.bytes, Ordering::Relaxed);
                    if T::DATAGRAM
                        && let Some(number) = sequence::read(&buffer[..length])
                    {
                        count.datagrams += 1;
                        first_number.get_or_insert(number);
                        next_number = next_number.max(number.saturating_add(1));
                    }
                }
                Ok(_) => {}
                Err(TransportError::TimedOut) => {
                    if now.saturating_sub(last) > silence_max {
                        return Err(ProbeError::FlowStopped(SILENCE_MAX));
                    }
                }
                Err(TransportError::Closed) if now >= closes => {}
                Err(error) => {
                    let at_s = shared.clock.ns(now - begin) as f64 / 1e9;
                    let action = format!("receiving, after {at_s:.1} s");
                    return Err(ProbeError::transport(action)(error));
                }
            }
            if shared.stopped() {
                return Err(ProbeError::Cancelled);
            }
            if now >= closes {
                count.duration = now.saturating_sub(opened.max(begin));
                let first_number = first_number.unwrap_or(next_number);
                count.datagrams_sent = next_number.saturating_sub(first_number);
                return Ok(count);
            }
        }
    }

    /// Discards what still arrives until the sender ends, so that the sender sees no error.
    fn drain<T: Transport>(&self, transport: &mut T, buffer: &mut [u8]) {
        let begin = Moment::now();
        while begin.elapsed() < DRAIN_MAX && !self.shared.stopped() {
            match transport.receive_some(buffer) {
                Ok(length)
                    if T::DATAGRAM
                        && handshake::decode(&buffer[..length]) == Ok(HandshakeMessage::Close) =>
                {
                    return;
                }
                Ok(_) | Err(TransportError::TimedOut) => {}
                Err(_) => return,
            }
        }
    }
}
