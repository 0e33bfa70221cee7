//! Moves that were ordered, or seen under way, so that no instrument moves again too soon.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::reports::{CellId, InstrumentId, InstrumentReport};
use crate::settings::{MoveSettings, ms};

/// The latest move of an instrument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MoveOrder {
    to: CellId,
    /// Since it was ordered, or last seen under way.
    age: Duration,
}

/// The latest moves of all instruments, whoever ordered them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Orders {
    moves: BTreeMap<InstrumentId, MoveOrder>,
}

impl Orders {
    /// Lets time pass, and takes note of the moves that are under way.
    pub(crate) fn advance(
        &mut self,
        instruments: &[InstrumentReport],
        settings: &MoveSettings,
        dt: Duration,
    ) {
        for order in self.moves.values_mut() {
            order.age = order.age.saturating_add(dt);
        }
        for report in instruments {
            if let Some(to) = report.moving_to {
                self.moves.insert(report.instrument, MoveOrder { to, age: Duration::ZERO });
            }
        }
        let kept = ms(settings.cooldown_ms.max(settings.order_timeout_ms));
        self.moves.retain(|_, order| order.age < kept);
    }

    /// Takes note of a move that was ordered now.
    pub(crate) fn insert(&mut self, instrument: InstrumentId, to: CellId) {
        self.moves.insert(instrument, MoveOrder { to, age: Duration::ZERO });
    }

    /// The cell that an instrument will be in: where it is on its way to, or was ordered to a short
    /// time ago, if it is not there yet.
    pub(crate) fn destination(
        &self,
        report: &InstrumentReport,
        settings: &MoveSettings,
    ) -> Option<CellId> {
        let is_recent = |order: &&MoveOrder| order.age < ms(settings.order_timeout_ms);
        let ordered = || self.moves.get(&report.instrument).filter(is_recent).map(|order| order.to);
        report.moving_to.or_else(ordered).filter(|to| *to != report.cell)
    }

    /// Whether an instrument was moved too short a time ago to be moved again.
    pub(crate) fn is_cooling(&self, instrument: InstrumentId, settings: &MoveSettings) -> bool {
        let order = self.moves.get(&instrument);
        order.is_some_and(|order| order.age < ms(settings.cooldown_ms))
    }
}
