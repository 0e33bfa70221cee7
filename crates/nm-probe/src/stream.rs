//! Flows: bulk data in one or both directions, counted where it arrives.
//!
//! Every flow has a thread of its own at each end. When an end has all the flows that it receives,
//! it says go on each of them, so that all start together. A receiver counts between the last read
//! before its window opens and the first one after it closes: whole reads over the time that they
//! took. A sender goes on until every window is over, then says that nothing more will come.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use nm_model::agent::TaskReport;
use nm_model::doubt::{Doubt, DoubtKind};
use nm_model::probe::{Side, StreamSpec};
use nm_model::result::{Flow, Statistic};
use nm_model::{Failure, FailureKind};
use nm_sys::clock::{Clock, Moment};
use nm_sys::counters::process_cpu_ns;
use nm_transport::greeting::{self, Word};
use nm_transport::{Connection, Fault, SLICE, Transport, Visitor, failure};

use crate::control::Control;
use crate::hot::{self, Account, Seat};

/// Bytes of one read of a stream: large enough that the calls do not count, small enough to stay in
/// a core's own cache.
const READ_BYTES: usize = 256 * 1024;

/// Bytes that hold any datagram.
const DATAGRAM_BYTES_MAX: usize = 64 * 1024;

/// How much longer than the window a sender sends, so that no receiver runs dry at its end.
const TAIL: Duration = Duration::from_millis(50);

/// How long a receiver waits after its window for the sender to end.
const DRAIN_MAX: Duration = Duration::from_secs(5);

/// Silence in a window after which the sender of datagrams counts as gone.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// How long a sender waits for the go.
const GO_MAX: Duration = Duration::from_secs(15);

/// Pause between two goes over datagrams, which may be lost.
const GO_PAUSE: Duration = Duration::from_millis(20);

/// Pause between two looks at whether all threads are there.
const MEETING_PAUSE: Duration = Duration::from_micros(50);

/// Bytes at the start of a datagram that number it.
const NUMBER_BYTES: usize = 8;

/// A flow that this end takes part in, connected.
#[derive(Debug)]
pub struct Leg {
    /// Number of the flow.
    pub index: u32,
    /// The end that sends.
    pub sender: Side,
    /// The connection.
    pub connection: Connection,
    /// Where its thread sits.
    pub seat: Seat,
}

/// Bytes of one write over `connection`: as the spec says, but a datagram that no link carries is
/// cut to what the route's MTU carries in one piece.
pub fn write_bytes(spec: &StreamSpec, connection: &Connection, datagram_max: u32) -> usize {
    let asked = spec.write_bytes.max(1);
    let datagram = matches!(
        connection.stack().protocol,
        nm_model::Protocol::Udp | nm_model::Protocol::Multicast
    );
    let fits = !datagram || asked <= datagram_max;
    if fits { asked as usize } else { connection.datagram_bytes().unwrap_or(1_200) as usize }
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
struct Counter(AtomicU64);

/// What one flow has to tell.
#[derive(Debug)]
struct FlowReport {
    received: Option<Flow>,
    retransmits: Option<u64>,
    settings: BTreeMap<String, String>,
    account: Account,
    doubts: Vec<Doubt>,
}

/// Runs all flows of this end.
///
/// # Errors
/// The failure of the first flow that failed; [`FailureKind::Cancelled`].
pub fn run(
    side: Side,
    legs: Vec<Leg>,
    spec: &StreamSpec,
    write_bytes: usize,
    control: &Control,
) -> Result<TaskReport, Failure> {
    let shared = Shared {
        clock: Clock::system(),
        control,
        failed: AtomicBool::new(false),
        ready: AtomicUsize::new(0),
        started: AtomicBool::new(false),
        omit: Duration::from_millis(spec.omit_ms),
        window: Duration::try_from_secs_f64(spec.seconds).unwrap_or_default(),
    };
    let counters: Vec<Counter> = legs.iter().map(|_| Counter::default()).collect();
    let (flows, cpu) = thread::scope(|scope| {
        let mut handles = vec![];
        for (leg, counter) in legs.into_iter().zip(&counters) {
            let shared = &shared;
            let builder = thread::Builder::new().name(leg.seat.name.clone());
            let spawned = builder.spawn_scoped(scope, move || {
                let flow = flow(side, leg, write_bytes, shared, counter);
                if flow.is_err() {
                    shared.failed.store(true, Ordering::Relaxed);
                }
                flow
            });
            match spawned {
                Ok(handle) => handles.push(handle),
                Err(error) => {
                    shared.failed.store(true, Ordering::Relaxed);
                    return (Err(hot::no_thread(&error)), None);
                }
            }
        }
        while shared.ready.load(Ordering::Acquire) < handles.len() && !shared.stopped() {
            thread::sleep(MEETING_PAUSE);
        }
        shared.started.store(true, Ordering::Release);
        let cpu = watch(&shared, &handles, &counters);
        (Ok(handles.into_iter().map(join).collect::<Vec<_>>()), cpu)
    });
    // A cancel ends the flows one by one, so the last ones may see their peers go.
    if control.cancelled() {
        return Err(failure::cancelled());
    }
    let flows = first_failure(flows?)?;
    let mut report = TaskReport { cpu, ..TaskReport::default() };
    report.settings.insert("write size".to_string(), format!("{write_bytes} B"));
    for (idx, flow) in flows {
        report.received.extend(flow.received);
        report.retransmits.extend(flow.retransmits.map(|count| (idx, count)));
        report.placements.push(flow.account.0);
        report.doubts.extend(flow.account.1);
        report.doubts.extend(flow.doubts);
        for (name, value) in flow.settings {
            report.settings.entry(name).or_insert(value);
        }
    }
    Ok(report)
}

type FlowResult = Result<(u32, FlowReport), Failure>;

fn join(handle: ScopedJoinHandle<'_, FlowResult>) -> FlowResult {
    let name = handle.thread().name().unwrap_or("flow").to_string();
    handle.join().unwrap_or_else(|_| Err(hot::panicked(&name)))
}

/// All reports, or the first failure; flows that only ended because another failed do not count.
fn first_failure(flows: Vec<FlowResult>) -> Result<Vec<(u32, FlowReport)>, Failure> {
    let mut failures: Vec<Failure> = vec![];
    let mut reports = vec![];
    for flow in flows {
        match flow {
            Ok(report) => reports.push(report),
            Err(failure) => failures.push(failure),
        }
    }
    failures.sort_by_key(|failure| failure.kind == FailureKind::Cancelled);
    match failures.into_iter().next() {
        Some(failure) => Err(failure),
        None => Ok(reports),
    }
}

/// Shows progress, and measures the CPU time of the process in the window.
fn watch<R>(
    shared: &Shared<'_>,
    handles: &[ScopedJoinHandle<'_, R>],
    counters: &[Counter],
) -> Option<f64> {
    let begin = Moment::now();
    let until = |limit: Duration, show: bool| {
        while begin.elapsed() < limit {
            if shared.stopped() || handles.iter().all(ScopedJoinHandle::is_finished) {
                return false;
            }
            thread::sleep(limit.saturating_sub(begin.elapsed()).min(SLICE));
            let seconds = begin.elapsed().saturating_sub(shared.omit).as_secs_f64();
            let bytes: u64 = counters.iter().map(|c| c.0.load(Ordering::Relaxed)).sum();
            if show && bytes > 0 && seconds > 0.0 {
                let gbps = bytes as f64 * 8.0 / seconds / 1e9;
                shared.control.show(Statistic::Throughput, gbps);
            }
        }
        true
    };
    if !until(shared.omit, false) {
        return None;
    }
    let (cpu_ns, opened) = (process_cpu_ns(), Moment::now());
    if !until(shared.omit + shared.window, true) {
        return None;
    }
    let used_s = process_cpu_ns().saturating_sub(cpu_ns) as f64 / 1e9;
    Some(used_s / opened.elapsed().as_secs_f64())
}

/// The thread of one flow at this end.
fn flow(
    side: Side,
    leg: Leg,
    write_bytes: usize,
    shared: &Shared<'_>,
    counter: &Counter,
) -> FlowResult {
    leg.seat.sit()?;
    shared.ready.fetch_add(1, Ordering::AcqRel);
    while !shared.started.load(Ordering::Acquire) {
        if shared.stopped() {
            return Err(failure::cancelled());
        }
        thread::sleep(MEETING_PAUSE);
    }
    let index = leg.index;
    let failed = |failure: Failure| Failure {
        message: format!("flow {index}: {}", failure.message),
        ..failure
    };
    let end = End { side, index, sender: leg.sender, seat: leg.seat, write_bytes, shared, counter };
    let report = leg.connection.with(end).and_then(|result| result).map_err(failed)?;
    Ok((index, report))
}

/// One end of one flow.
struct End<'a> {
    side: Side,
    index: u32,
    sender: Side,
    seat: Seat,
    write_bytes: usize,
    shared: &'a Shared<'a>,
    counter: &'a Counter,
}

impl Visitor for End<'_> {
    type Output = Result<FlowReport, Failure>;

    fn visit<T: Transport>(self, mut transport: T) -> Result<FlowReport, Failure> {
        if self.sender == self.side {
            self.send(&mut transport)
        } else {
            self.receive(&mut transport)
        }
    }
}

/// What a receiver counted.
#[derive(Debug, Default)]
struct Count {
    bytes: u64,
    /// Ticks between the reads that bound the window.
    length: u64,
    /// Datagrams counted, and how many their numbers say that there were.
    datagrams: u64,
    numbered: u64,
}

impl End<'_> {
    fn send<T: Transport>(self, transport: &mut T) -> Result<FlowReport, Failure> {
        let shared = self.shared;
        self.await_go(transport)?;
        let watch = self.seat.watch();
        let mut message: Vec<u8> = (0..self.write_bytes).map(|idx| idx as u8).collect();
        let numbered = T::DATAGRAM && message.len() >= NUMBER_BYTES;
        let begin = shared.clock.now();
        let stop = shared.ticks(shared.omit + shared.window + TAIL);
        // The receiver began before us, so it may be gone by the end of our tail.
        let needed = shared.ticks((shared.omit + shared.window).saturating_sub(TAIL));
        let mut number = 0u64;
        loop {
            if numbered {
                message[..NUMBER_BYTES].copy_from_slice(&number.to_le_bytes());
            }
            let sent = transport.send(&message);
            number += 1;
            let elapsed = shared.clock.now().saturating_sub(begin);
            match sent {
                Ok(()) | Err(Fault::TimedOut) if shared.stopped() => {
                    return Err(failure::cancelled());
                }
                Ok(()) if elapsed >= stop => break,
                Ok(()) => {}
                // Half a message may be on its way, so the flow ends without a proper goodbye.
                Err(Fault::TimedOut) if elapsed >= stop => break,
                Err(Fault::TimedOut) => number -= 1,
                Err(Fault::Closed) if elapsed >= needed => break,
                Err(fault) => return Err(failure::of_fault(fault, "sending")),
            }
        }
        let account = watch.finish();
        let report = FlowReport {
            received: None,
            retransmits: transport.retransmits(),
            settings: transport.settings(),
            account,
            doubts: transport.doubts(),
        };
        transport.end_sending(&[self.write_bytes]);
        Ok(report)
    }

    fn await_go<T: Transport>(&self, transport: &mut T) -> Result<(), Failure> {
        let begin = Moment::now();
        let mut go = [0; greeting::BYTES_MAX];
        let window_bytes = if T::DATAGRAM { go.len() } else { 1 };
        while begin.elapsed() < GO_MAX {
            if self.shared.stopped() {
                return Err(failure::cancelled());
            }
            match transport.receive(&mut go[..window_bytes]) {
                Ok(_) => return Ok(()),
                Err(Fault::TimedOut) => {}
                Err(fault) => return Err(failure::of_fault(fault, "waiting for the start")),
            }
        }
        let what = format!("the receiver did not say go in {GO_MAX:?}");
        Err(Failure::new(FailureKind::Peer, what).hint("check that the peer runs its half"))
    }

    fn receive<T: Transport>(self, transport: &mut T) -> Result<FlowReport, Failure> {
        let bytes = if T::DATAGRAM { DATAGRAM_BYTES_MAX } else { READ_BYTES };
        let mut buffer = vec![1; bytes];
        let begin = self.shared.clock.now();
        self.say_go(transport, &mut buffer)?;
        let watch = self.seat.watch();
        let count = self.count(transport, &mut buffer, begin)?;
        let account = watch.finish();
        let settings = transport.settings();
        let mut doubts = transport.doubts();
        self.drain(transport, &mut buffer);
        let seconds = self.shared.clock.ns(count.length) as f64 / 1e9;
        let gbps = if seconds > 0.0 { count.bytes as f64 * 8.0 / seconds / 1e9 } else { 0.0 };
        let lost = count.numbered.saturating_sub(count.datagrams);
        doubts.extend((lost > 0).then(|| {
            let (index, numbered) = (self.index, count.numbered);
            let percent = lost as f64 / numbered as f64 * 100.0;
            let detail =
                format!("flow {index}: {lost} of {numbered} datagrams lost ({percent:.2} %)");
            Doubt::new(DoubtKind::Loss, detail)
        }));
        let Count { bytes, .. } = count;
        let (index, sender) = (self.index, self.sender);
        Ok(FlowReport {
            received: Some(Flow { index, sender, bytes, seconds, gbps, retransmits: None }),
            retransmits: None,
            settings,
            account,
            doubts,
        })
    }

    /// Says go: one byte on a stream; over datagrams again and again until the first data come.
    fn say_go<T: Transport>(&self, transport: &mut T, buffer: &mut [u8]) -> Result<(), Failure> {
        let failed = |fault| failure::of_fault(fault, "saying go");
        if !T::DATAGRAM {
            return transport.send(&[1]).map_err(failed);
        }
        let begin = Moment::now();
        while begin.elapsed() < GO_MAX {
            transport.poke(&[self.write_bytes]).map_err(failed)?;
            let pause = Moment::now();
            while pause.elapsed() < GO_PAUSE {
                if self.shared.stopped() {
                    return Err(failure::cancelled());
                }
                match transport.try_receive(buffer).map_err(failed)? {
                    Some(length) if greeting::read(&buffer[..length]).is_none() => return Ok(()),
                    Some(_) => {}
                    None => thread::sleep(Duration::from_micros(50)),
                }
            }
        }
        let what = format!("nothing came in {GO_MAX:?}");
        Err(Failure::new(FailureKind::Peer, what).hint("check that the peer runs its half"))
    }

    /// Counts what comes from `omit` after `begin` for the length of the window.
    fn count<T: Transport>(
        &self,
        transport: &mut T,
        buffer: &mut [u8],
        begin: u64,
    ) -> Result<Count, Failure> {
        let shared = self.shared;
        let opens = begin + shared.ticks(shared.omit);
        let closes = opens + shared.ticks(shared.window);
        let silence_max = shared.ticks(SILENCE_MAX);
        let mut count = Count::default();
        let (mut opened, mut last, mut first_number, mut next_number) = (begin, begin, None, 0);
        loop {
            let received = transport.receive_some(buffer);
            let now = shared.clock.now();
            match received {
                // The sender's route, not ours, decides on the length of a datagram.
                Ok(length) if !T::DATAGRAM || greeting::read(&buffer[..length]).is_none() => {
                    last = now;
                    if now < opens {
                        opened = now;
                        continue;
                    }
                    count.bytes += length as u64;
                    self.counter.0.store(count.bytes, Ordering::Relaxed);
                    if T::DATAGRAM && length >= NUMBER_BYTES {
                        let mut number = [0; NUMBER_BYTES];
                        number.copy_from_slice(&buffer[..NUMBER_BYTES]);
                        let number = u64::from_le_bytes(number);
                        count.datagrams += 1;
                        first_number.get_or_insert(number);
                        next_number = next_number.max(number.saturating_add(1));
                    }
                }
                Ok(_) => {}
                Err(Fault::TimedOut) => {
                    if now.saturating_sub(last) > silence_max {
                        let what = format!("nothing came for {SILENCE_MAX:?}");
                        return Err(Failure::new(FailureKind::Peer, what));
                    }
                }
                Err(Fault::Closed) if now >= closes => {}
                Err(fault) => {
                    let at_s = shared.clock.ns(now - begin) as f64 / 1e9;
                    return Err(failure::of_fault(fault, format!("receiving, {at_s:.1} s in")));
                }
            }
            if shared.stopped() {
                return Err(failure::cancelled());
            }
            if now >= closes {
                count.length = now.saturating_sub(opened.max(begin));
                count.numbered = next_number.saturating_sub(first_number.unwrap_or(next_number));
                return Ok(count);
            }
        }
    }

    /// Takes what still comes until the sender ends, so that it does not end in an error.
    fn drain<T: Transport>(&self, transport: &mut T, buffer: &mut [u8]) {
        let begin = Moment::now();
        while begin.elapsed() < DRAIN_MAX && !self.shared.stopped() {
            match transport.receive_some(buffer) {
                Ok(length)
                    if T::DATAGRAM && greeting::read(&buffer[..length]) == Some(Word::Bye) =>
                {
                    return;
                }
                Ok(_) | Err(Fault::TimedOut) => {}
                Err(_) => return,
            }
        }
    }
}
