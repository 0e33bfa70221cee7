//! Which of the things that ran took the time of the gaps: a comparison of two rows of times.

use std::collections::BTreeMap;

use super::contexts::Segment;

/// A gap, ns, on the clock of the segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GapTime {
    pub begin: u64,
    pub end: u64,
    /// Whether another thread may have run in it.
    pub may_be_preempted: bool,
}

/// What one thing took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Taken {
    /// Gaps of which it took the largest part, and no less than what nothing explains.
    pub gaps: u64,
    /// Its time in all gaps, ns.
    pub lost_ns: u64,
    /// The longest of `gaps`, ns.
    pub longest_ns: u64,
    /// Gaps in which it ran at all.
    pub times: u64,
}

/// What each context took of `gaps`, by its number. `name` gives the number under which a context
/// is counted in a gap, so that several may be one; none for what did not take it. Both rows are in
/// order of time, and their parts do not overlap; so no more is given than was lost.
pub fn blame(
    gaps: &[GapTime],
    segments: &[Segment],
    name: impl Fn(&GapTime, usize) -> Option<usize>,
) -> BTreeMap<usize, Taken> {
    let mut all: BTreeMap<usize, Taken> = BTreeMap::new();
    let mut first = 0;
    let mut parts: Vec<(usize, u64)> = vec![];
    for gap in gaps {
        while segments.get(first).is_some_and(|one| one.end <= gap.begin) {
            first += 1;
        }
        parts.clear();
        for one in segments[first..].iter().take_while(|one| one.begin < gap.end) {
            let Some(number) = name(gap, one.context) else { continue };
            let ns = one.end.min(gap.end).saturating_sub(one.begin.max(gap.begin));
            match parts.iter_mut().find(|part| part.0 == number) {
                Some(part) => part.1 += ns,
                None => parts.push((number, ns)),
            }
        }
        for (number, ns) in parts.iter().filter(|part| part.1 > 0) {
            let taken = all.entry(*number).or_default();
            taken.lost_ns += ns;
            taken.times += 1;
        }
        let known: u64 = parts.iter().map(|part| part.1).sum();
        let length = gap.end - gap.begin;
        if let Some(&(number, ns)) = parts.iter().max_by_key(|part| part.1)
            && ns > 0
            && ns >= length - known
        {
            let taken = all.entry(number).or_default();
            taken.gaps += 1;
            taken.longest_ns = taken.longest_ns.max(length);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_gap_has_the_name_of_its_largest_part() {
        let at = |begin, end, context| Segment { begin, end, context };
        let segments = [at(0, 10, 9), at(10, 14, 1), at(14, 30, 2), at(30, 90, 9), at(90, 92, 1)];
        let gap = |begin, end| GapTime { begin, end, may_be_preempted: true };
        let gaps = [gap(9, 31), gap(80, 95)];
        let seen = blame(&gaps, &segments, |_, context| (context != 9).then_some(context));
        let two = Taken { gaps: 1, lost_ns: 16, longest_ns: 22, times: 1 };
        // Most of the second gap is not explained, so it has no name.
        let one = Taken { gaps: 0, lost_ns: 6, longest_ns: 0, times: 2 };
        assert_eq!(seen, [(1, one), (2, two)].into());
        assert_eq!(blame(&gaps, &[], |_, context| Some(context)), BTreeMap::new());
    }

    fn row() -> impl Strategy<Value = Vec<(u64, u64)>> {
        prop::collection::vec((0..50_u64, 1..50_u64), 0..40).prop_map(|steps| {
            let mut at = 1;
            let of = |(pause, length): (u64, u64)| {
                let begin = at + pause;
                at = begin + length;
                (begin, at)
            };
            steps.into_iter().map(of).collect()
        })
    }

    proptest! {
        #[test]
        fn no_more_is_given_than_was_lost_and_no_name_without_evidence(
            gaps in row(), ran in row(), contexts in prop::collection::vec(0..4_usize, 40),
        ) {
            let gap = |(begin, end)| GapTime { begin, end, may_be_preempted: begin % 2 == 0 };
            let gaps: Vec<GapTime> = gaps.into_iter().map(gap).collect();
            let segments: Vec<Segment> = ran
                .iter()
                .zip(contexts)
                .map(|(&(begin, end), context)| Segment { begin, end, context })
                .collect();
            // Context 2 is a thread, 3 is the one that watches.
            let is_taken = |gap: &GapTime, context| {
                context != 3 && (context != 2 || gap.may_be_preempted)
            };
            let seen = blame(&gaps, &segments, |gap, context| {
                is_taken(gap, context).then_some(context % 2)
            });
            let lost: u64 = gaps.iter().map(|gap| gap.end - gap.begin).sum();
            prop_assert!(seen.values().map(|taken| taken.lost_ns).sum::<u64>() <= lost);
            prop_assert!(seen.values().map(|taken| taken.gaps).sum::<u64>() <= gaps.len() as u64);
            for (number, taken) in &seen {
                let ran = segments.iter().any(|one| {
                    let is_in = |gap: &GapTime| {
                        is_taken(gap, one.context) && one.begin < gap.end && gap.begin < one.end
                    };
                    one.context % 2 == *number && gaps.iter().any(is_in)
                });
                prop_assert!(ran && taken.lost_ns > 0 && taken.gaps <= taken.times);
            }
        }
    }
}
