//! Which of the threads that ran is the one that watched: outside its gaps no other can run.

use std::collections::BTreeMap;

use super::blame::{GapTime, blame};
use super::contexts::{Context, Segment};

/// The thread that ran longest outside the gaps. Its number is not asked for, because a namespace
/// of process numbers hides it.
pub fn watcher(gaps: &[GapTime], segments: &[Segment], kinds: &[Context]) -> Option<usize> {
    let is_thread = |context: usize| matches!(kinds.get(context), Some(Context::Thread { .. }));
    let mut outside: BTreeMap<usize, u64> = BTreeMap::new();
    for one in segments.iter().filter(|one| is_thread(one.context)) {
        *outside.entry(one.context).or_default() += one.end - one.begin;
    }
    for (context, taken) in blame(gaps, segments, |_, context| Some(context)) {
        if let Some(ns) = outside.get_mut(&context) {
            *ns = ns.saturating_sub(taken.lost_ns);
        }
    }
    outside.into_iter().max_by_key(|(_, ns)| *ns).filter(|(_, ns)| *ns > 0).map(|(it, _)| it)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watcher_is_the_thread_that_runs_between_the_gaps() {
        let thread = |tid| Context::Thread { tid, name: Default::default() };
        let kinds = [thread(1), thread(2), Context::Softirq(3)];
        let at = |begin, end, context| Segment { begin, end, context };
        // The noise runs longer, but only in the gap.
        let segments = [at(0, 10, 1), at(10, 100, 0), at(100, 120, 1), at(120, 400, 2)];
        let gaps = [GapTime { begin: 9, end: 101, may_be_preempted: true }];
        assert_eq!(watcher(&gaps, &segments, &kinds), Some(1));
        assert_eq!(watcher(&gaps, &[], &kinds), None);
    }
}
