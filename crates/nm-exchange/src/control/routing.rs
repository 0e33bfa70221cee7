//! Which cell an instrument belongs to, and which mediator leads each cell.

use std::collections::BTreeMap;

use nm_book::order::InstrumentId;
use nm_codec::{DecodeError, Put, Reader};

/// Instruments that may belong to another cell than the rule gives.
pub const MAP_EXCEPTIONS_MAX: usize = 10_000;

/// Which cell each instrument belongs to: by the rule `instrument % cells`, but for exceptions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstrumentMap {
    version: u32,
    cells: u16,
    exceptions: BTreeMap<InstrumentId, u16>,
}

impl InstrumentMap {
    /// The map that a network begins with: no exceptions, version 0.
    pub fn new(cells: usize) -> InstrumentMap {
        let cells = cells.clamp(1, 1 << 15) as u16;
        InstrumentMap { version: 0, cells, exceptions: BTreeMap::new() }
    }

    /// Rises with each change.
    pub fn version(&self) -> u32 {
        self.version
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

    /// Assigns an instrument to a cell, in the next version.
    pub fn assign(&mut self, instrument: InstrumentId, cell: u16) {
        assert!(cell < self.cells, "there is no cell {cell}");
        self.version += 1;
        if cell == self.rule(instrument) {
            self.exceptions.remove(&instrument);
        } else {
            self.exceptions.insert(instrument, cell);
        }
    }

    /// Whether another map of the same network is newer.
    pub fn is_older_than(&self, other: &InstrumentMap) -> bool {
        other.version > self.version && other.cells == self.cells
    }

    /// Takes over a newer map of the same network; whether it was newer.
    pub fn update(&mut self, other: &InstrumentMap) -> bool {
        let is_older = self.is_older_than(other);
        if is_older {
            self.clone_from(other);
        }
        is_older
    }

    /// Appends its bytes.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.put_u32(self.version);
        out.put_u16(self.cells);
        out.put_u32(self.exceptions.len() as u32);
        for (instrument, cell) in &self.exceptions {
            out.put_u32(*instrument);
            out.put_u16(*cell);
        }
    }

    /// Reads what [`InstrumentMap::write`] appended.
    ///
    /// # Errors
    /// If the bytes are not a map.
    pub fn read(reader: &mut Reader<'_>) -> Result<InstrumentMap, DecodeError> {
        let (version, cells) = (reader.u32("map_version")?, reader.u16("cells")?);
        if cells == 0 {
            return Err(DecodeError::invalid("cells", "is zero"));
        }
        let mut map = InstrumentMap { version, cells, exceptions: BTreeMap::new() };
        let count = reader.u32("exceptions")? as usize;
        if count > MAP_EXCEPTIONS_MAX {
            return Err(DecodeError::invalid("exceptions", "are more than a map may have"));
        }
        for _ in 0..count {
            let (instrument, cell) = (reader.u32("instrument")?, reader.u16("cell")?);
            if cell >= cells || cell == map.rule(instrument) {
                return Err(DecodeError::invalid("cell", "is no exception to the rule"));
            }
            map.exceptions.insert(instrument, cell);
        }
        Ok(map)
    }
}

/// The leader of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CellLeader {
    /// Which mediator.
    pub mediator: u16,
    /// In which term.
    pub term: u32,
    /// Number that identifies the start of its process.
    pub start: u64,
}

impl CellLeader {
    /// Whether another one that claims to lead is the leader from now on. Terms rise, except where
    /// all replicas lost their memory at once: then this leader is no longer running.
    pub fn is_superseded_by(
        &self,
        other: &CellLeader,
        is_running: impl FnOnce(&CellLeader) -> bool,
    ) -> bool {
        other.term > self.term || (other != self && !is_running(self))
    }

    /// Appends its bytes.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.put_u16(self.mediator);
        out.put_u32(self.term);
        out.put_u64(self.start);
    }

    /// Reads what [`CellLeader::write`] appended.
    ///
    /// # Errors
    /// If the bytes end.
    pub fn read(reader: &mut Reader<'_>) -> Result<CellLeader, DecodeError> {
        let (mediator, term) = (reader.u16("mediator")?, reader.u32("term")?);
        Ok(CellLeader { mediator, term, start: reader.u64("start")? })
    }
}

/// What control distributes to all nodes: the map, and who leads each cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoutingTable {
    /// The map.
    pub map: InstrumentMap,
    /// By cell, and by [`crate::network::CONTROL`] for control itself.
    pub leaders: BTreeMap<u16, CellLeader>,
}

impl RoutingTable {
    /// What a network begins with.
    pub fn new(cells: usize) -> RoutingTable {
        RoutingTable { map: InstrumentMap::new(cells), leaders: BTreeMap::new() }
    }

    /// Appends its bytes.
    pub fn write(&self, out: &mut Vec<u8>) {
        self.map.write(out);
        out.put_u16(self.leaders.len() as u16);
        for (cell, leader) in &self.leaders {
            out.put_u16(*cell);
            leader.write(out);
        }
    }

    /// Reads what [`RoutingTable::write`] appended.
    ///
    /// # Errors
    /// If the bytes are not a routing table.
    pub fn read(reader: &mut Reader<'_>) -> Result<RoutingTable, DecodeError> {
        let map = InstrumentMap::read(reader)?;
        let mut leaders = BTreeMap::new();
        for _ in 0..reader.u16("leaders")? {
            let cell = reader.u16("cell")?;
            leaders.insert(cell, CellLeader::read(reader)?);
        }
        Ok(RoutingTable { map, leaders })
    }

    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![];
        self.write(&mut out);
        out
    }

    /// The routing table that these bytes are.
    ///
    /// # Errors
    /// If they are not one.
    pub fn decode(bytes: &[u8]) -> Result<RoutingTable, DecodeError> {
        let mut reader = Reader::new(bytes);
        let table = RoutingTable::read(&mut reader)?;
        reader.finish("leaders")?;
        Ok(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_instruments_that_do_not_follow_the_rule_are_exceptions() {
        let mut map = InstrumentMap::new(4);
        assert_eq!((map.cell_of(1_000_003), map.exceptions().len()), (3, 0));
        map.assign(1_000_003, 1);
        assert_eq!((map.cell_of(1_000_003), map.cell_of(7), map.version()), (1, 3, 1));
        map.assign(1_000_003, 3);
        assert_eq!((map.cell_of(1_000_003), map.exceptions().len(), map.version()), (3, 0, 2));
        let old = InstrumentMap::new(4);
        assert!(!map.update(&old) && map.clone().version() == 2);
        assert!(InstrumentMap::new(4).update(&map) && !InstrumentMap::new(5).update(&map));
    }

    #[test]
    fn a_leader_is_superseded_by_a_later_term_or_when_it_has_ended() {
        let leader = |mediator, term| CellLeader { mediator, term, start: 9 };
        let known = leader(1, 7);
        assert!(!known.is_superseded_by(&leader(0, 5), |_| true), "an older term");
        assert!(known.is_superseded_by(&leader(0, 8), |_| true));
        assert!(known.is_superseded_by(&leader(0, 1), |_| false), "all replicas lost their memory");
        assert!(!known.is_superseded_by(&known, |_| false), "the same leader");
    }

    proptest! {
        #[test]
        fn a_routing_table_is_read_back(
            assigned in prop::collection::vec((any::<u32>(), 0..5u16), 0..20),
            leaders in prop::collection::btree_map(
                any::<u16>(),
                (any::<u16>(), any::<u32>(), any::<u64>())
                    .prop_map(|(mediator, term, start)| CellLeader { mediator, term, start }),
                0..5,
            ),
            noise in prop::collection::vec(any::<u8>(), 0..60),
        ) {
            let mut map = InstrumentMap::new(5);
            assigned.into_iter().for_each(|(instrument, cell)| map.assign(instrument, cell));
            let table = RoutingTable { map, leaders };
            let mut bytes = table.encode();
            prop_assert_eq!(RoutingTable::decode(&bytes), Ok(table));
            bytes.push(0);
            prop_assert!(RoutingTable::decode(&bytes).is_err());
            let _ = RoutingTable::decode(&noise);
        }
    }
}
