//! Which cell owned each instrument when, as the logs of all cells say it, and whether that was
//! always one.
//!
//! A cell owns an instrument by the rule of the network, or because it adopted it from another one.
//! Each such move has an epoch ([`nm_exchange::moves`]). For every move the replay records the
//! instrument's state at the release in one log and at the adoption in another. Both must be equal.

use std::collections::{BTreeMap, HashMap, HashSet};

use nm_book::order::{InstrumentId, UserId};
use nm_exchange::moves::MoveId;
use nm_exchange::network::Network;

use crate::findings::{Findings, Violation};

/// A state of an instrument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InstrumentState {
    /// Number of the last request that was executed; zero for none.
    pub output_seq: u64,
    /// Hash of everything; none without requests.
    pub hash: Option<u64>,
}

/// Where in the logs something was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Number of the cell.
    pub cell: u16,
    /// Which of its lives: rises when a mediator without durability restarts with empty books.
    pub incarnation: u64,
}

/// A cell released an instrument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Release {
    /// Which cell.
    pub place: Place,
    /// Index of the batch.
    pub index: u64,
    /// The cell that gets it.
    pub to: u16,
    /// What it was then.
    pub state: InstrumentState,
}

/// How a cell began to own an instrument other than by the rule from the beginning on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// It came from this cell.
    Moved(u16),
    /// The map gave it to the cell, whose books were lost.
    Claimed,
    /// The replay begins with a snapshot, which has it.
    Snapshot,
}

/// A cell began to own an instrument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begin {
    /// Which cell.
    pub place: Place,
    /// Index of the batch.
    pub index: u64,
    /// Where it came from.
    pub origin: Origin,
    /// What it was then.
    pub state: InstrumentState,
    /// Number of the last request of each session, where requests before it may not be replayed.
    pub last_requests: HashMap<UserId, u64>,
}

/// The owners of all instruments.
#[derive(Debug, Default)]
pub struct Owners {
    active_cells: u16,
    releases: BTreeMap<MoveId, Vec<Release>>,
    begins: BTreeMap<MoveId, Vec<Begin>>,
    /// Moves after which the old cell dropped the state.
    forgotten: HashSet<MoveId>,
    /// By cell whose replay begins with a snapshot: the last moves that the snapshot includes.
    snapshots: HashMap<u16, HashMap<InstrumentId, u32>>,
    /// Cells that lost their books, which the durability allows.
    lost_books: HashSet<u16>,
}

impl Owners {
    /// Nothing but the rule of a network.
    pub fn new(network: &Network) -> Owners {
        Owners::of_cells(network.active_cells())
    }

    /// Nothing but the rule that spreads instruments over so many cells.
    pub fn of_cells(active_cells: u16) -> Owners {
        Owners { active_cells, ..Owners::default() }
    }

    /// A log has a release.
    pub fn released(&mut self, id: MoveId, release: Release) {
        self.releases.entry(id).or_default().push(release);
    }

    /// A cell began to own an instrument. Epoch zero is that of the rule.
    pub fn begun(&mut self, id: MoveId, begin: Begin) {
        self.begins.entry(id).or_default().push(begin);
    }

    /// A cell dropped the state of an instrument that it had released.
    pub fn forgotten(&mut self, id: MoveId) {
        self.forgotten.insert(id);
    }

    /// The replay of a cell begins with a snapshot that includes these moves, by instrument.
    pub fn restored(&mut self, cell: u16, epochs: HashMap<InstrumentId, u32>) {
        self.snapshots.insert(cell, epochs);
    }

    /// A cell lost its books, and its durability allows that.
    pub fn lost_books(&mut self, cell: u16) {
        self.lost_books.insert(cell);
    }

    /// Cells to which an instrument was released.
    pub fn destinations(&self) -> HashSet<u16> {
        self.releases.values().flatten().map(|release| release.to).collect()
    }

    fn cell_by_rule(&self, instrument: InstrumentId) -> u16 {
        (instrument % u32::from(self.active_cells.max(1))) as u16
    }

    /// Moves and claims of one instrument, oldest first.
    fn begins_of(
        &self,
        instrument: InstrumentId,
    ) -> impl DoubleEndedIterator<Item = (u32, &Vec<Begin>)> {
        let at = |epoch| MoveId { instrument, epoch };
        self.begins.range(at(0)..=at(u32::MAX)).map(|(id, begins)| (id.epoch, begins))
    }

    /// Whether an instrument was ever in a cell that lost its books: its history is not guaranteed.
    pub fn is_tainted(&self, instrument: InstrumentId) -> bool {
        let is_lost = |cell: &u16| self.lost_books.contains(cell);
        !self.lost_books.is_empty()
            && (is_lost(&self.cell_by_rule(instrument))
                || self
                    .begins_of(instrument)
                    .any(|(_, all)| all.iter().any(|begin| is_lost(&begin.place.cell))))
    }

    /// Whether a cell owned an instrument from a move on.
    pub fn owned(&self, id: MoveId, place: Place) -> bool {
        let begins = self.begins.get(&id);
        let is_by_rule = id.epoch == 0 && self.cell_by_rule(id.instrument) == place.cell;
        is_by_rule || begins.is_some_and(|all| all.iter().any(|begin| begin.place == place))
    }

    /// Number of the last request on an instrument before a cell owned it.
    pub fn begins_after(&self, id: MoveId, place: Place) -> u64 {
        let begin = self.begins.get(&id).and_then(|all| all.iter().find(|it| it.place == place));
        begin.map_or(0, |begin| begin.state.output_seq)
    }

    /// The times at which cells began to own instruments whose requests before are not replayed:
    /// the instrument, the epoch, and the last requests of its sessions.
    pub fn holes(&self) -> impl Iterator<Item = (MoveId, &HashMap<UserId, u64>)> {
        let is_hole = |id: MoveId, begin: &Begin| match begin.origin {
            Origin::Snapshot => true,
            Origin::Moved(from) => {
                !self.releases.contains_key(&id) && self.is_before_snapshot(from, id)
            }
            Origin::Claimed => false,
        };
        self.begins.iter().flat_map(move |(id, all)| {
            let holes = all.iter().filter(move |begin| is_hole(*id, begin));
            holes.map(move |begin| (*id, &begin.last_requests))
        })
    }

    /// Whether the replay of a cell begins with a snapshot that includes a move.
    fn is_before_snapshot(&self, cell: u16, id: MoveId) -> bool {
        let epochs = self.snapshots.get(&cell);
        epochs.and_then(|epochs| epochs.get(&id.instrument)).is_some_and(|last| *last >= id.epoch)
    }

    /// Checks that each instrument had one owner at any time, and was the same before and after
    /// each move.
    pub fn check(&self, findings: &mut Findings) {
        for (id, begins) in &self.begins {
            self.check_begins(*id, begins, findings);
        }
        for (id, releases) in &self.releases {
            self.check_releases(*id, releases, findings);
        }
    }

    fn check_begins(&self, id: MoveId, begins: &[Begin], findings: &mut Findings) {
        let MoveId { instrument, epoch } = id;
        let is_guaranteed = !self.is_tainted(instrument);
        findings.moves +=
            begins.iter().filter(|begin| matches!(begin.origin, Origin::Moved(_))).count() as u64;
        if let [first, others @ ..] = begins
            && let Some(other) = others.iter().find(|other| other.place != first.place)
        {
            findings.add_if(is_guaranteed, Violation::WrongOwner, || {
                format!(
                    "instrument {instrument} was adopted by cell {} in batch {} and by cell {} in \
                     batch {}, both as move {epoch}",
                    first.place.cell, first.index, other.place.cell, other.index
                )
            });
        }
        for begin in begins {
            let (cell, index) = (begin.place.cell, begin.index);
            match begin.origin {
                Origin::Moved(from) => self.check_arrival(id, begin, from, findings),
                Origin::Claimed => findings.add_if(is_guaranteed, Violation::WrongOwner, || {
                    format!(
                        "cell {cell} took instrument {instrument} in batch {index} as if its books \
                         were lost, and they were not"
                    )
                }),
                Origin::Snapshot => {}
            }
        }
    }

    /// Compares an arrival with the release in the log of the old cell.
    fn check_arrival(&self, id: MoveId, begin: &Begin, from: u16, findings: &mut Findings) {
        let MoveId { instrument, epoch } = id;
        let Begin { place: Place { cell, .. }, index, state, .. } = begin;
        let is_guaranteed = !self.is_tainted(instrument);
        let releases = self.releases.get(&id).map_or(&[][..], Vec::as_slice);
        let release = releases.iter().find(|release| release.place.cell == from);
        let Some(release) = release else {
            if !self.is_before_snapshot(from, id) {
                findings.add_if(is_guaranteed, Violation::WrongOwner, || {
                    format!(
                        "cell {cell} adopted instrument {instrument} in batch {index} as move \
                         {epoch}, and cell {from} never released it"
                    )
                });
            }
            return;
        };
        findings.moved_states += 1;
        if release.to != *cell {
            findings.add_if(is_guaranteed, Violation::WrongOwner, || {
                format!(
                    "cell {from} released instrument {instrument} to cell {} as move {epoch}, and \
                     cell {cell} adopted it in batch {index}",
                    release.to
                )
            });
        }
        let has_requests = state.output_seq > 0 || release.state.output_seq > 0;
        if has_requests && *state != release.state {
            let named = |state: &InstrumentState| {
                let hash = state.hash.map_or("none".to_string(), |hash| format!("{hash:016x}"));
                format!("{hash} after request {}", state.output_seq)
            };
            findings.add_if(is_guaranteed, Violation::HashDiffers, || {
                format!(
                    "instrument {instrument} in move {epoch}: {} when cell {from} released it in \
                     batch {}, {} when cell {cell} adopted it in batch {index}",
                    named(&release.state),
                    release.index,
                    named(state)
                )
            });
        }
    }

    fn check_releases(&self, id: MoveId, releases: &[Release], findings: &mut Findings) {
        let MoveId { instrument, epoch } = id;
        let is_guaranteed = !self.is_tainted(instrument);
        let first = releases[0];
        let (from, to) = (first.place.cell, first.to);
        if let Some(other) = releases.iter().find(|other| other.place != first.place) {
            findings.add_if(is_guaranteed, Violation::WrongOwner, || {
                format!(
                    "instrument {instrument} was released by cell {from} in batch {} and by cell \
                     {} in batch {}, both as move {epoch}",
                    first.index, other.place.cell, other.index
                )
            });
        }
        if self.begins.contains_key(&id) || self.is_before_snapshot(to, id) {
            return;
        }
        let later = |id: &MoveId| MoveId { epoch: u32::MAX, ..*id };
        let next = MoveId { epoch: epoch.saturating_add(1), ..id };
        let goes_on = self.begins.range(next..=later(&id)).next().is_some()
            || self.releases.range(next..=later(&id)).next().is_some();
        if goes_on || self.forgotten.contains(&id) {
            findings.add_if(is_guaranteed, Violation::NoOwner, || {
                let since = if goes_on { "it moved again later" } else { "its state was dropped" };
                format!(
                    "cell {from} released instrument {instrument} to cell {to} in batch {} as move \
                     {epoch}, no cell adopted it, and {since}",
                    first.index
                )
            });
        } else {
            findings.notes.push(format!(
                "instrument {instrument} was on its way from cell {from} to cell {to} when the \
                 recording ended"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(epoch: u32) -> MoveId {
        MoveId { instrument: 2, epoch }
    }

    fn state(output_seq: u64) -> InstrumentState {
        InstrumentState { output_seq, hash: Some(output_seq * 7) }
    }

    fn place(cell: u16) -> Place {
        Place { cell, incarnation: 1 }
    }

    fn release(cell: u16, to: u16, output_seq: u64) -> Release {
        Release { place: place(cell), index: output_seq, to, state: state(output_seq) }
    }

    fn arrival(cell: u16, from: u16, output_seq: u64) -> Begin {
        Begin {
            place: place(cell),
            index: output_seq,
            origin: Origin::Moved(from),
            state: state(output_seq),
            last_requests: HashMap::new(),
        }
    }

    /// Instrument 2 begins in cell 0 of two, and moves to cell 1, and back.
    fn there_and_back() -> Owners {
        let mut owners = Owners::of_cells(2);
        owners.released(id(3), release(0, 1, 10));
        owners.begun(id(3), arrival(1, 0, 10));
        owners.forgotten(id(3));
        owners.released(id(5), release(1, 0, 20));
        owners.begun(id(5), arrival(0, 1, 20));
        owners
    }

    fn found(owners: &Owners) -> Findings {
        let mut findings = Findings::default();
        owners.check(&mut findings);
        findings
    }

    fn assert_only(owners: &Owners, violation: Violation, sentence: &str) {
        let findings = found(owners);
        assert_eq!(findings.violations, BTreeMap::from([(violation, 1)]), "{findings:?}");
        assert!(findings.sentences[0].contains(sentence), "{findings:?}");
    }

    #[test]
    fn an_instrument_with_one_owner_at_a_time_is_clean() {
        let owners = there_and_back();
        let findings = found(&owners);
        assert!(findings.is_clean() && findings.notes.is_empty(), "{findings:?}");
        assert_eq!((findings.moves, findings.moved_states), (2, 2));
        let owned = [(0, 0), (3, 1), (5, 0)].map(|(epoch, cell)| (id(epoch), place(cell)));
        assert!(owned.iter().all(|(id, place)| owners.owned(*id, *place)));
        assert!(!owners.owned(id(3), place(0)) && !owners.owned(id(0), place(1)));
        let after = owned.map(|(id, place)| owners.begins_after(id, place));
        assert_eq!(after, [0, 10, 20]);
    }

    #[test]
    fn two_owners_are_found() {
        let mut owners = there_and_back();
        owners.begun(id(3), arrival(2, 0, 10));
        let findings = found(&owners);
        // The other cell, and that the release was not to it.
        let found = findings.violations.into_iter().collect::<Vec<_>>();
        assert_eq!(found, [(Violation::WrongOwner, 2)], "{:?}", findings.sentences);
        let mut owners = there_and_back();
        owners.begun(id(6), arrival(1, 0, 30));
        assert_only(&owners, Violation::WrongOwner, "cell 0 never released it");
        let mut owners = there_and_back();
        owners.released(id(5), release(0, 1, 20));
        assert_only(&owners, Violation::WrongOwner, "released by cell 1 in batch 20 and by cell 0");
        let mut owners = there_and_back();
        owners.begun(id(6), Begin { origin: Origin::Claimed, ..arrival(1, 0, 0) });
        assert_only(&owners, Violation::WrongOwner, "as if its books were lost");
    }

    #[test]
    fn a_state_that_changed_in_transit_is_found() {
        let mut owners = there_and_back();
        owners.released(id(6), release(0, 1, 30));
        owners.begun(id(6), Begin { state: state(31), ..arrival(1, 0, 30) });
        assert_only(&owners, Violation::HashDiffers, "after request 30 when cell 0 released it");
        // Without requests there is nothing that could differ.
        let mut owners = Owners::of_cells(2);
        owners.released(id(1), release(0, 1, 0));
        let empty = InstrumentState { output_seq: 0, hash: None };
        owners.begun(id(1), Begin { state: empty, ..arrival(1, 0, 0) });
        assert!(found(&owners).is_clean());
    }

    #[test]
    fn an_instrument_that_no_cell_adopts_is_found_unless_the_recording_ends_there() {
        let mut owners = there_and_back();
        owners.released(id(6), release(0, 1, 30));
        let findings = found(&owners);
        assert!(findings.is_clean(), "{findings:?}");
        assert_eq!(
            findings.notes,
            ["instrument 2 was on its way from cell 0 to cell 1 when the recording ended"]
        );
        owners.forgotten(id(6));
        assert_only(&owners, Violation::NoOwner, "no cell adopted it, and its state was dropped");
        let mut owners = there_and_back();
        owners.released(id(4), release(0, 1, 15));
        assert_only(&owners, Violation::NoOwner, "no cell adopted it, and it moved again later");
    }

    #[test]
    fn what_a_snapshot_replaces_is_no_violation_and_a_hole() {
        let mut owners = there_and_back();
        // Cell 0 is replayed from a snapshot after the first move.
        owners.releases.remove(&id(3));
        owners.forgotten.clear();
        assert_only(&owners, Violation::WrongOwner, "cell 0 never released it");
        owners.restored(0, HashMap::from([(2, 3)]));
        assert!(found(&owners).is_clean());
        assert_eq!(owners.holes().map(|(id, _)| id).collect::<Vec<_>>(), [id(3)]);
        // Cell 1 is, and the snapshot has the instrument.
        let mut owners = there_and_back();
        owners.begins.remove(&id(3));
        owners.restored(1, HashMap::from([(2, 3)]));
        owners.begun(id(3), Begin { origin: Origin::Snapshot, ..arrival(1, 0, 12) });
        assert!(found(&owners).is_clean());
        assert_eq!(owners.holes().count(), 1);
        // Or it has the instrument no more.
        owners.begins.remove(&id(3));
        owners.restored(1, HashMap::from([(2, 5)]));
        assert!(found(&owners).is_clean());
    }

    #[test]
    fn nothing_is_guaranteed_of_instruments_that_were_in_a_cell_that_lost_its_books() {
        let mut owners = there_and_back();
        owners.begun(id(6), arrival(1, 0, 30));
        owners.lost_books(2);
        assert!(!owners.is_tainted(2) && !found(&owners).is_clean());
        owners.lost_books(1);
        let findings = found(&owners);
        assert!(findings.is_clean() && owners.is_tainted(2), "{findings:?}");
        assert_eq!(findings.not_guaranteed, BTreeMap::from([(Violation::WrongOwner, 1)]));
        assert!(owners.is_tainted(3) && !owners.is_tainted(4), "by the rule");
    }
}
