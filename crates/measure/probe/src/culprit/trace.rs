//! Traces the kernel's events on the measured CPUs while the gaps are seen.
//!
//! All that is opened is held by descriptors: nothing is left behind, whatever ends this process.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nm_sys::clock::{self, Clock};
use nm_sys::cpu;
use nm_sys::cpu_trace::{CpuTrace, Record};
use nm_sys::tracepoints::Tracepoints;

use super::contexts::Contexts;
use super::event::{Event, Shapes};

/// How often the records are taken out of the kernel's memory.
const PAUSE: Duration = Duration::from_millis(200);

/// Memory for records of all CPUs together, and of each at most and at least, bytes.
const MEMORY_MAX: usize = 128 << 20;
const MEMORY_OF_CPU_MAX: usize = 8 << 20;
const MEMORY_OF_CPU_MIN: usize = 128 << 10;

/// A trace that runs, until it is finished or dropped.
#[derive(Debug)]
pub struct Tracing {
    reader: Option<JoinHandle<Vec<Contexts>>>,
    ended: Arc<AtomicBool>,
    begun: BothClocks,
}

/// Why nothing is traced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Untraced {
    /// Nobody has asked for it.
    NotAsked,
    /// It cannot be done.
    Because(String),
}

/// What ran on each CPU, in the order in which they were given.
#[derive(Debug)]
pub struct Traced {
    /// Of each CPU.
    pub contexts: Vec<Contexts>,
    begun: BothClocks,
    ended: BothClocks,
}

/// The same moment on both clocks.
#[derive(Debug, Clone, Copy)]
struct BothClocks {
    ticks: u64,
    ns: u64,
}

impl BothClocks {
    /// The closest pair of several readings.
    fn now(clock: Clock) -> BothClocks {
        let read = |_| {
            let before = clock.now();
            let ns = clock::monotonic_raw_ns();
            let after = clock.now();
            (after - before, BothClocks { ticks: before + (after - before) / 2, ns })
        };
        (0..16)
            .map(read)
            .min_by_key(|(took, _)| *took)
            .map_or(BothClocks { ticks: 0, ns: 0 }, |it| it.1)
    }
}

impl Tracing {
    /// Begins to trace `cpus`.
    ///
    /// # Errors
    /// If the kernel cannot be traced by this process.
    pub fn start(cpus: &[u32], clock: Clock) -> io::Result<Tracing> {
        let shapes = Shapes::read(&Tracepoints::open()?)?;
        let ids = shapes.ids();
        let bytes = (MEMORY_MAX / cpus.len().max(1)).clamp(MEMORY_OF_CPU_MIN, MEMORY_OF_CPU_MAX);
        let open = |cpu: &u32| CpuTrace::open(*cpu, &ids, bytes);
        let mut traces = cpus.iter().map(open).collect::<io::Result<Vec<_>>>()?;
        traces.iter().try_for_each(CpuTrace::start)?;
        let ended = Arc::new(AtomicBool::new(false));
        let (until, measured) = (ended.clone(), cpus.to_vec());
        let read = move || {
            leave(&measured);
            let mut contexts: Vec<Contexts> = traces.iter().map(|_| Contexts::new()).collect();
            let mut last = false;
            while !last {
                thread::park_timeout(PAUSE);
                last = until.load(Ordering::Acquire);
                for (trace, contexts) in traces.iter_mut().zip(&mut contexts) {
                    take(trace, &shapes, contexts);
                }
            }
            contexts
        };
        let reader = thread::Builder::new().name("trace reader".into()).spawn(read)?;
        Ok(Tracing { reader: Some(reader), ended, begun: BothClocks::now(clock) })
    }

    /// Ends the trace. None if its reader has failed.
    pub fn finish(mut self, clock: Clock) -> Option<Traced> {
        let ended = BothClocks::now(clock);
        let contexts = self.end()?;
        Some(Traced { contexts, begun: self.begun, ended })
    }

    /// Has the reader come to its end; what it has read.
    fn end(&mut self) -> Option<Vec<Contexts>> {
        let reader = self.reader.take()?;
        self.ended.store(true, Ordering::Release);
        reader.thread().unpark();
        reader.join().ok()
    }
}

impl Drop for Tracing {
    /// A probe that panics must not leave a trace to its agent.
    fn drop(&mut self) {
        self.end();
    }
}

/// Moves the reader to a CPU that is not measured, if there is one.
fn leave(measured: &[u32]) {
    if let Some(free) = cpu::allowed().into_iter().find(|cpu| !measured.contains(cpu)) {
        // On a measured CPU the reader is seen like any other thread.
        let _ = cpu::pin_current_thread(free);
    }
}

fn take(trace: &mut CpuTrace, shapes: &Shapes, contexts: &mut Contexts) {
    let mut last_ns = 0;
    trace.read(|record| match record {
        Record::Event { at_ns, fields } => {
            last_ns = at_ns;
            if let Some(event) = shapes.event(fields) {
                contexts.add(at_ns, event);
            }
        }
        Record::Lost(_) => contexts.add(last_ns, Event::Lost),
    });
}

impl Traced {
    /// The time of the trace at `ticks` of the clock, ns: a line through its begin and its end, as
    /// the two clocks differ a little in rate.
    pub fn ns(&self, ticks: u64) -> u64 {
        let (from, to) = (self.begun, self.ended);
        let span = to.ticks.saturating_sub(from.ticks).max(1);
        let since = u128::from(ticks.saturating_sub(from.ticks));
        from.ns + (since * u128::from(to.ns.saturating_sub(from.ns)) / u128::from(span)) as u64
    }
}
