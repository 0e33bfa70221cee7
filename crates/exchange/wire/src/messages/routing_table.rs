//! Instrument map and cell leaders.

use nm_codec::{DecodeError, Reader};

use crate::nodes::{CellLeader, MapContent};
use crate::{message, record};

record! {
    /// Who leads a cell.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct LedCell {
        /// The cell; 65535 for control.
        cell: u16,
        /// Its leader.
        leader: CellLeader,
    }
}

message! {
    /// What control distributes to all nodes: which cell each instrument belongs to, and who leads
    /// each cell.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct RoutingTable;
    head {}
    tail {
        /// The map.
        map: MapContent,
        /// The leaders.
        leaders: Vec<LedCell>,
    }
}

/// The version of the map in the bytes of a [`RoutingTable`], which comes first: each node has each
/// map from several others, so most are not read further.
///
/// # Errors
/// If they end before it does.
pub fn map_version(message: &[u8]) -> Result<u32, DecodeError> {
    Reader::new(message).u32("map_version")
}
