//! The firms of a cell: they come by its log, and with them what is counted.

use nm_book::order::{InstrumentId, Matching};
use nm_wire::{FirmTable, FirmUse};

use super::Cell;
use super::exposure::Exposures;
use super::instrument::InstrumentState;

/// Counts what firms have on an instrument.
fn count<M: Matching>(exposures: &mut Exposures, state: &mut InstrumentState<M>) {
    if exposures.is_active() {
        let InstrumentState { book, sessions, exposure, .. } = state;
        let has_orders = sessions.iter().filter(|(_, session)| session.live_orders > 0);
        exposures.count(book, has_orders.map(|(user, _)| *user), exposure);
    }
}

impl<M: Matching> Cell<M> {
    /// Version of the firms that the cell knows; 0 if there never were any.
    pub fn firms_version(&self) -> u64 {
        self.firms().version
    }

    /// The firms.
    pub fn firms(&self) -> &FirmTable {
        self.exposures.table()
    }

    /// There are other firms from now on, unless later ones are known.
    pub(super) fn set_firms(&mut self, table: FirmTable) {
        let is_later = table.version > self.firms_version();
        if is_later && self.exposures.set(table) {
            let others = self.instruments.iter();
            let others = others.filter(|(_, it)| it.exposure.has_other_positions(&self.exposures));
            let others: Vec<InstrumentId> = others.map(|(instrument, _)| *instrument).collect();
            others.into_iter().for_each(|instrument| self.copy_before_change(instrument));
            let Cell { exposures, instruments, .. } = self;
            exposures.clear();
            for state in instruments.values_mut() {
                state.exposure.forget(exposures);
                count(exposures, state);
            }
        }
    }

    /// An instrument is here from now on, with these positions of firms.
    pub(super) fn enter(
        &mut self,
        state: &mut InstrumentState<M>,
        positions: impl Iterator<Item = (u32, i128)>,
    ) {
        positions.for_each(|(firm, net)| state.exposure.set_position(firm, net));
        count(&mut self.exposures, state);
    }

    /// What firms with limits have.
    pub fn firm_uses(&self) -> Vec<FirmUse> {
        let all = self.instruments.iter();
        self.exposures.uses(all.map(|(instrument, state)| (*instrument, &state.exposure)))
    }
}

#[cfg(test)]
mod tests;
