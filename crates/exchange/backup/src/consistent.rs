//! Positions of all groups that fit each other: every instrument has one owner.
//!
//! Each group is cut on its own, so a move may lie on both sides of the cut. Then a group goes back
//! until the move is whole, or has not begun:
//!
//! - A cell that has adopted an instrument, which its source has not released, goes back to before
//!   the adoption. Else both would own it.
//! - A source that has dropped a state, which its destination does not have, goes back to before
//!   that. Else nobody would have it. So does control, which would not order the move again.

use std::collections::BTreeMap;

use nm_book::order::InstrumentId;
use nm_exchange::network::group_name;

use crate::error::BackupError;
use crate::group_copy::Timeline;
use crate::group_state::Step;

/// Lowers the positions, each of the timeline at its place, until they fit each other.
///
/// # Errors
/// If one would have to go back further than its copy does.
pub fn fit(timelines: &[Timeline], positions: &mut [u64]) -> Result<(), BackupError> {
    while let Some((at, position)) = misfit(timelines, positions) {
        let Timeline { group, span: (first, _), .. } = timelines[at];
        if position <= first {
            return Err(BackupError::BeforeCopy { group: group_name(group), first });
        }
        positions[at] = position - 1;
    }
    Ok(())
}

/// A step that must not be in the cut: which timeline, and its position.
fn misfit(timelines: &[Timeline], positions: &[u64]) -> Option<(usize, u64)> {
    let all = || {
        let kept = timelines.iter().zip(positions).enumerate();
        kept.flat_map(|(at, (timeline, upto))| {
            let steps = timeline.steps.iter().filter(move |(index, _)| index <= upto);
            steps.map(move |(index, step)| (at, *index, *step))
        })
    };
    // The newest epoch in which each instrument was released, and adopted, anywhere.
    let (mut released, mut adopted) = (BTreeMap::new(), BTreeMap::new());
    let note = |of: &mut BTreeMap<InstrumentId, u32>, instrument, epoch: u32| {
        let newest = of.entry(instrument).or_default();
        *newest = epoch.max(*newest);
    };
    for (_, _, step) in all() {
        match step {
            Step::Released(id) => note(&mut released, id.instrument, id.epoch),
            Step::Adopted(id) => note(&mut adopted, id.instrument, id.epoch),
            Step::Ended(_) => {}
        }
    }
    let has = |of: &BTreeMap<InstrumentId, u32>, instrument: InstrumentId, epoch: u32| {
        of.get(&instrument).is_some_and(|newest| *newest >= epoch)
    };
    let wrong = all().find(|(_, _, step)| match step {
        Step::Adopted(id) => !has(&released, id.instrument, id.epoch),
        Step::Ended(id) => !has(&adopted, id.instrument, id.epoch),
        Step::Released(_) => false,
    });
    wrong.map(|(at, index, _)| (at, index))
}

#[cfg(test)]
mod tests {
    use nm_exchange::moves::MoveId;
    use nm_exchange::network::CONTROL;

    use super::*;

    fn timeline(group: u16, steps: &[(u64, Step)]) -> Timeline {
        Timeline { group, span: (2, 100), times_ns: vec![], steps: steps.to_vec() }
    }

    /// Instrument 7 moves from cell 0 to cell 1, then control knows it, then cell 0 drops it.
    fn moved() -> [Timeline; 3] {
        let id = MoveId { instrument: 7, epoch: 3 };
        [
            timeline(0, &[(10, Step::Released(id)), (40, Step::Ended(id))]),
            timeline(1, &[(20, Step::Adopted(id))]),
            timeline(CONTROL, &[(30, Step::Ended(id))]),
        ]
    }

    #[test]
    fn a_move_is_whole_or_has_not_begun_wherever_groups_are_cut() {
        for (cut, fitting) in [
            ([100, 100, 100], [100, 100, 100]),
            // On its way.
            ([10, 19, 29], [10, 19, 29]),
            // Adopted by the one, and not released by the other.
            ([9, 100, 29], [9, 19, 29]),
            ([9, 100, 100], [9, 19, 29]),
            // Dropped, and adopted by nobody.
            ([100, 19, 100], [39, 19, 29]),
        ] {
            let mut positions = cut;
            fit(&moved(), &mut positions).unwrap();
            assert_eq!(positions, fitting, "{cut:?}");
        }
    }

    #[test]
    fn a_copy_that_begins_behind_a_move_is_refused_if_it_had_to_go_back() {
        let mut all = moved();
        all[1].span.0 = 20;
        let refused = fit(&all, &mut [9, 100, 29]).unwrap_err().to_string();
        assert!(refused.contains("cell-1 begins at position 20"), "{refused}");
    }
}
