//! From the events of a CPU to what ran on it when: a row of segments, each with the innermost
//! thing that ran.

use std::collections::HashMap;

use super::event::{Event, ThreadName, Vector};

/// Most segments of one CPU: 24 MB.
pub const SEGMENTS_MAX: usize = 1_000_000;

/// Most things that run inside each other: a thread's softirq, an interrupt, its timer, and so on.
const DEPTH_MAX: usize = 16;

/// What can run on a CPU.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Context {
    /// A thread of any process or of the kernel.
    Thread { tid: u32, name: ThreadName },
    /// A piece of work that a thread of the kernel does.
    Work { function: u64 },
    /// An interrupt line.
    Line { number: u32, name: String },
    /// An interrupt without a line.
    Vector(Vector),
    /// A softirq.
    Softirq(u8),
    /// The function of a timer.
    Timer { function: u64 },
    /// A function that another CPU asked for.
    Call { function: u64 },
}

/// A time in which one thing ran, ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    pub begin: u64,
    pub end: u64,
    /// Which of [`Contexts::kinds`].
    pub context: usize,
}

/// What ran on one CPU, made from its events in order of time.
#[derive(Debug, Default)]
pub struct Contexts {
    segments: Vec<Segment>,
    kinds: Vec<Context>,
    numbers: HashMap<Context, usize>,
    /// The work that a thread has begun, also while it sleeps.
    works: HashMap<u32, u64>,
    thread: Option<usize>,
    inner: Vec<usize>,
    since: u64,
    is_incomplete: bool,
}

impl Contexts {
    /// Nothing is known yet.
    pub fn new() -> Contexts {
        Contexts { segments: Vec::with_capacity(1 << 12), ..Contexts::default() }
    }

    /// The segments in order of time; none overlaps another.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The different things that ran.
    pub fn kinds(&self) -> &[Context] {
        &self.kinds
    }

    /// Whether something is missing: events were lost, or there were too many.
    pub fn is_incomplete(&self) -> bool {
        self.is_incomplete
    }

    /// The next event, at `at_ns`.
    pub fn add(&mut self, at_ns: u64, event: Event) {
        self.close(at_ns);
        match event {
            Event::Switch { tid, name } => {
                self.inner.clear();
                let thread = match self.works.get(&tid) {
                    Some(&function) => Context::Work { function },
                    None => Context::Thread { tid, name },
                };
                self.thread = Some(self.number(thread));
            }
            Event::Line { number, name } => self.push(Context::Line { number, name }),
            Event::Vector(vector) => self.push(Context::Vector(vector)),
            Event::Softirq(softirq) => self.push(Context::Softirq(softirq)),
            Event::Timer { function } => self.push_cause(Context::Timer { function }),
            Event::Call { function } => self.push_cause(Context::Call { function }),
            Event::End => {
                self.inner.pop();
            }
            Event::Work { tid, function } => {
                self.works.insert(tid, function);
                self.thread = Some(self.number(Context::Work { function }));
            }
            // What the thread does until the next work, or until it sleeps, is little.
            Event::WorkEnd { tid } => {
                self.works.remove(&tid);
            }
            Event::Lost => {
                self.is_incomplete = true;
                self.inner.clear();
                self.thread = None;
                self.works.clear();
            }
        }
    }

    /// Ends the segment that runs.
    fn close(&mut self, at_ns: u64) {
        let begin = self.since;
        self.since = self.since.max(at_ns);
        let Some(context) = self.inner.last().copied().or(self.thread) else { return };
        if begin >= at_ns || begin == 0 {
            return;
        }
        let is_full = self.segments.len() == SEGMENTS_MAX;
        match self.segments.last_mut() {
            Some(last) if last.context == context && last.end == begin => last.end = at_ns,
            _ if is_full => self.is_incomplete = true,
            _ => self.segments.push(Segment { begin, end: at_ns, context }),
        }
    }

    fn number(&mut self, context: Context) -> usize {
        let next = self.kinds.len();
        let number = *self.numbers.entry(context.clone()).or_insert(next);
        if number == next {
            self.kinds.push(context);
        }
        number
    }

    fn push(&mut self, context: Context) {
        let number = self.number(context);
        if self.inner.len() < DEPTH_MAX {
            self.inner.push(number);
        }
    }

    /// The interrupt around it came for `context`, if for nothing else before: its remaining time,
    /// and its time so far if that is the last segment, belong to it.
    fn push_cause(&mut self, context: Context) {
        let number = self.number(context.clone());
        if let Some(around) = self.inner.last_mut()
            && matches!(self.kinds[*around], Context::Vector(_))
        {
            if let Some(last) = self.segments.last_mut()
                && (last.context, last.end) == (*around, self.since)
            {
                last.context = number;
            }
            *around = number;
        }
        self.push(context);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn thread(tid: u32) -> Event {
        Event::Switch { tid, name: *b"x\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0" }
    }

    fn ran(events: Vec<(u64, Event)>) -> Vec<(u64, u64, Context)> {
        let mut contexts = Contexts::new();
        for (at, event) in events {
            contexts.add(at, event);
        }
        let of = |one: &Segment| (one.begin, one.end, contexts.kinds[one.context].clone());
        contexts.segments.iter().map(of).collect()
    }

    #[test]
    fn an_interrupt_belongs_to_the_timer_that_it_came_for() {
        let timer = Context::Timer { function: 5 };
        let seen = ran(vec![
            (10, thread(1)),
            (20, Event::Vector(Vector::LocalTimer)),
            (22, Event::Timer { function: 5 }),
            (28, Event::End),
            (30, Event::End),
            (40, thread(2)),
        ]);
        let one = Context::Thread { tid: 1, name: *b"x\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0" };
        assert_eq!(seen, [(10, 20, one.clone()), (20, 30, timer), (30, 40, one)]);
    }

    #[test]
    fn work_goes_on_after_its_thread_slept() {
        let work = Context::Work { function: 9 };
        let seen = ran(vec![
            (10, thread(7)),
            (11, Event::Work { tid: 7, function: 9 }),
            (20, thread(1)),
            (30, thread(7)),
            (40, Event::WorkEnd { tid: 7 }),
            (41, thread(1)),
            (50, thread(7)),
            (60, thread(1)),
        ]);
        assert_eq!((seen[1].clone(), seen[3].clone()), ((11, 20, work.clone()), (30, 41, work)));
        assert!(matches!(seen[5].2, Context::Thread { tid: 7, .. }), "{seen:?}");
    }

    #[test]
    fn nothing_is_known_after_a_loss_until_the_next_thread() {
        let seen = ran(vec![(10, thread(1)), (20, Event::Lost), (30, thread(2)), (40, thread(1))]);
        assert_eq!(seen.iter().map(|one| (one.0, one.1)).collect::<Vec<_>>(), [(10, 20), (30, 40)]);
    }

    #[test]
    fn segments_have_a_limit() {
        let mut contexts = Contexts::new();
        for at in 1..=SEGMENTS_MAX as u64 + 1 {
            contexts.add(at, thread((at % 2) as u32));
        }
        assert_eq!((contexts.segments.len(), contexts.is_incomplete()), (SEGMENTS_MAX, false));
        contexts.add(SEGMENTS_MAX as u64 + 2, thread(7));
        assert_eq!((contexts.segments.len(), contexts.is_incomplete()), (SEGMENTS_MAX, true));
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            (0..4_u32).prop_map(thread),
            Just(Event::Vector(Vector::LocalTimer)),
            (0..3_u8).prop_map(Event::Softirq),
            (1..3_u64).prop_map(|function| Event::Timer { function }),
            Just(Event::Line { number: 1, name: "x".into() }),
            (0..4_u32).prop_map(|tid| Event::Work { tid, function: 1 }),
            (0..4_u32).prop_map(|tid| Event::WorkEnd { tid }),
            Just(Event::End),
            Just(Event::Lost),
        ]
    }

    proptest! {
        /// Whatever the order of events and their times, which may go back between CPUs' clocks.
        #[test]
        fn segments_are_in_order_and_do_not_overlap(
            events in prop::collection::vec((1..1_000_u64, event()), 0..60),
        ) {
            let mut contexts = Contexts::new();
            for (at, event) in events {
                contexts.add(at, event);
            }
            prop_assert!(contexts.segments.iter().all(|one| one.begin < one.end));
            prop_assert!(contexts.segments.windows(2).all(|two| two[0].end <= two[1].begin));
            prop_assert!(contexts.segments.iter().all(|one| one.context < contexts.kinds.len()));
        }
    }
}
