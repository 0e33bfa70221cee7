//! An explicit-state model checker: breadth-first over all states, so that the first violation is a
//! shortest one.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fmt::Debug;
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// What happened in one step, for traces and for the record of what a run covered.
pub(crate) type Label = (usize, &'static str);

pub(crate) trait Model {
    type State: Clone + Eq + Hash + Debug;

    fn initial(&self) -> Self::State;

    /// Adds each state that one step of one thread can lead to. Returns whether a thread is
    /// inside a call and can go on; the others are free to do nothing for ever.
    fn steps(&self, state: &Self::State, next: &mut Vec<(Label, Self::State)>) -> bool;

    /// Why this state must not be reached; `at_rest` means that no call goes on by itself.
    fn violation(&self, state: &Self::State, at_rest: bool) -> Option<&'static str>;
}

#[derive(Debug)]
pub(crate) struct Violation {
    pub(crate) what: &'static str,
    pub(crate) trace: Vec<Label>,
    pub(crate) last: String,
}

#[derive(Debug)]
pub(crate) struct Explored {
    pub(crate) states: usize,
    /// How often each kind of step was made.
    pub(crate) steps: BTreeMap<&'static str, usize>,
    pub(crate) violation: Option<Violation>,
}

/// Hashes a state into 64 bits: a multiplication for each field. A state is known by this hash
/// alone; among a million states, two have the same one with a probability of 1 in 30 million.
#[derive(Default)]
struct Fingerprint(u64);

impl Hasher for Fingerprint {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u8(byte);
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(u64::from(value));
    }

    fn write_isize(&mut self, value: isize) {
        self.write_u64(value.cast_unsigned() as u64);
    }

    fn write_u64(&mut self, value: u64) {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        self.0 = (self.0.rotate_left(23) ^ value).wrapping_mul(ODD);
        self.0 ^= self.0 >> 29;
    }
}

/// Takes a fingerprint as it is.
#[derive(Default)]
struct Unchanged(u64);

impl Hasher for Unchanged {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("fingerprints only");
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

fn fingerprint(state: &impl Hash) -> u64 {
    let mut hasher = Fingerprint::default();
    state.hash(&mut hasher);
    hasher.finish()
}

/// Visits every reachable state. More than `states_max` is a mistake in the size of the model,
/// not a result.
pub(crate) fn explore<M: Model>(model: &M, states_max: usize) -> Explored {
    let initial = model.initial();
    let mut known: HashSet<u64, BuildHasherDefault<Unchanged>> = HashSet::default();
    known.insert(fingerprint(&initial));
    let mut parents: Vec<(u32, Label)> = vec![(0, (0, "start"))];
    let mut queue = VecDeque::from([(0, initial)]);
    let mut steps = BTreeMap::new();
    let mut next = Vec::new();
    while let Some((idx, state)) = queue.pop_front() {
        next.clear();
        let goes_on = model.steps(&state, &mut next);
        if let Some(what) = model.violation(&state, !goes_on) {
            let trace = trace_to(&parents, idx);
            let last = format!("{state:?}");
            let violation = Some(Violation { what, trace, last });
            return Explored { states: known.len(), steps, violation };
        }
        for (label, reached) in next.drain(..) {
            *steps.entry(label.1).or_default() += 1;
            if !known.insert(fingerprint(&reached)) {
                continue;
            }
            let reached_idx = u32::try_from(parents.len()).expect("fewer states than 2^32");
            parents.push((idx, label));
            queue.push_back((reached_idx, reached));
        }
        assert!(known.len() <= states_max, "more than {states_max} states");
    }
    Explored { states: known.len(), steps, violation: None }
}

fn trace_to(parents: &[(u32, Label)], mut idx: u32) -> Vec<Label> {
    let mut trace = Vec::new();
    while idx != 0 {
        let (parent, label) = parents[idx as usize];
        trace.push(label);
        idx = parent;
    }
    trace.reverse();
    trace
}
