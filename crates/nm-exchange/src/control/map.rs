//! Which cell an instrument belongs to, and who leads each cell.

use std::collections::BTreeMap;

use nm_book::order::InstrumentId;
use nm_codec::{Fields, Meaningless};

/// Instruments that may belong to another cell than the rule says.
pub const MAP_EXCEPTIONS_MAX: usize = 10_000;

/// Which cell each instrument belongs to: by the rule `instrument % cells`, but for exceptions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Map {
    epoch: u32,
    cells: u16,
    exceptions: BTreeMap<InstrumentId, u16>,
}

impl Map {
    /// The map that a network begins with: no exceptions, in epoch 0.
    pub fn new(cells: usize) -> Map {
        Map { epoch: 0, cells: cells.clamp(1, 1 << 15) as u16, exceptions: BTreeMap::new() }
    }

    /// Rises with each change.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// How many cells there are.
    pub fn cells(&self) -> u16 {
        self.cells
    }

    /// Instruments that do not follow the rule, with their cells.
    pub fn exceptions(&self) -> &BTreeMap<InstrumentId, u16> {
        &self.exceptions
    }

    /// The cell of an instrument.
    pub fn cell_of(&self, instrument: InstrumentId) -> u16 {
        self.exceptions.get(&instrument).copied().unwrap_or_else(|| self.rule(instrument))
    }

    fn rule(&self, instrument: InstrumentId) -> u16 {
        (instrument % u32::from(self.cells)) as u16
    }

    /// Gives an instrument to a cell, in the next epoch.
    pub fn assign(&mut self, instrument: InstrumentId, cell: u16) {
        self.epoch += 1;
        if cell == self.rule(instrument) {
            self.exceptions.remove(&instrument);
        } else {
            self.exceptions.insert(instrument, cell);
        }
    }

    /// Takes another map over if it is a newer one of the same network; whether it was.
    pub fn take(&mut self, other: &Map) -> bool {
        let is_newer = other.epoch > self.epoch && other.cells == self.cells;
        if is_newer {
            self.clone_from(other);
        }
        is_newer
    }

    /// Appends its bytes.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.epoch.to_le_bytes());
        out.extend_from_slice(&self.cells.to_le_bytes());
        out.extend_from_slice(&(self.exceptions.len() as u32).to_le_bytes());
        for (instrument, cell) in &self.exceptions {
            out.extend_from_slice(&instrument.to_le_bytes());
            out.extend_from_slice(&cell.to_le_bytes());
        }
    }

    /// Reads them.
    ///
    /// # Errors
    /// If they mean nothing.
    pub fn read(from: &mut Fields<'_>) -> Result<Map, Meaningless> {
        let (epoch, cells) = (from.u32()?, from.u16()?);
        let mut map = Map { epoch, cells, exceptions: BTreeMap::new() };
        let count = from.u32()? as usize;
        if cells == 0 || count > MAP_EXCEPTIONS_MAX {
            return Err(Meaningless);
        }
        for _ in 0..count {
            let (instrument, cell) = (from.u32()?, from.u16()?);
            if cell >= cells || cell == map.rule(instrument) {
                return Err(Meaningless);
            }
            map.exceptions.insert(instrument, cell);
        }
        Ok(map)
    }
}

/// Who leads a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CellLeader {
    /// Which mediator.
    pub mediator: u16,
    /// In which epoch.
    pub epoch: u32,
    /// Number of the start of its process.
    pub start: u64,
}

impl CellLeader {
    /// Whether somebody who says that he leads is believed. Epochs rise, but for replicas that all
    /// lost their memory at once: then the one who led has ended.
    pub fn yields_to(
        &self,
        other: &CellLeader,
        is_there: impl FnOnce(&CellLeader) -> bool,
    ) -> bool {
        other.epoch > self.epoch || (other != self && !is_there(self))
    }
}

/// What control tells everybody: the map, and who leads each cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoutingTable {
    /// The map.
    pub map: Map,
    /// By cell, and by [`crate::network::CONTROL`] for control itself.
    pub leaders: BTreeMap<u16, CellLeader>,
}

impl RoutingTable {
    /// What a network begins with.
    pub fn new(cells: usize) -> RoutingTable {
        RoutingTable { map: Map::new(cells), leaders: BTreeMap::new() }
    }

    /// Appends its bytes.
    pub fn write(&self, out: &mut Vec<u8>) {
        self.map.write(out);
        out.extend_from_slice(&(self.leaders.len() as u16).to_le_bytes());
        for (cell, leading) in &self.leaders {
            out.extend_from_slice(&cell.to_le_bytes());
            out.extend_from_slice(&leading.mediator.to_le_bytes());
            out.extend_from_slice(&leading.epoch.to_le_bytes());
            out.extend_from_slice(&leading.start.to_le_bytes());
        }
    }

    /// Reads them.
    ///
    /// # Errors
    /// If they mean nothing.
    pub fn read(from: &mut Fields<'_>) -> Result<RoutingTable, Meaningless> {
        let map = Map::read(from)?;
        let mut leaders = BTreeMap::new();
        for _ in 0..from.u16()? {
            let cell = from.u16()?;
            let (mediator, epoch, start) = (from.u16()?, from.u32()?, from.u64()?);
            leaders.insert(cell, CellLeader { mediator, epoch, start });
        }
        Ok(RoutingTable { map, leaders })
    }

    /// The routes whose bytes are exactly these.
    ///
    /// # Errors
    /// If they mean nothing.
    pub fn whole(bytes: &[u8]) -> Result<RoutingTable, Meaningless> {
        let mut fields = Fields(bytes);
        let routes = RoutingTable::read(&mut fields)?;
        if fields.0.is_empty() { Ok(routes) } else { Err(Meaningless) }
    }

    /// Its bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = vec![];
        self.write(&mut out);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exceptions_are_only_what_the_rule_does_not_say() {
        let mut map = Map::new(4);
        assert_eq!((map.cell_of(1_000_003), map.exceptions().len()), (3, 0));
        map.assign(1_000_003, 1);
        assert_eq!((map.cell_of(1_000_003), map.cell_of(7), map.epoch()), (1, 3, 1));
        map.assign(1_000_003, 3);
        assert_eq!((map.cell_of(1_000_003), map.exceptions().len(), map.epoch()), (3, 0, 2));
        let old = Map::new(4);
        assert!(!map.take(&old) && map.clone().epoch() == 2);
        assert!(Map::new(4).take(&map) && !Map::new(5).take(&map));
    }

    #[test]
    fn a_leader_gives_way_to_a_later_one_or_when_it_has_ended() {
        let leading = |mediator, epoch| CellLeader { mediator, epoch, start: 9 };
        let known = leading(1, 7);
        assert!(!known.yields_to(&leading(0, 5), |_| true), "an announcement that is too old");
        assert!(known.yields_to(&leading(0, 8), |_| true));
        assert!(known.yields_to(&leading(0, 1), |_| false), "all replicas lost their memory");
        assert!(!known.yields_to(&known, |_| false), "no news");
    }
}
