//! The state that the control group agrees on: a function of the commands in its log.

use std::collections::BTreeMap;

use nm_book::order::InstrumentId;
use nm_codec::{DecodeError, Put, Reader, fnv1a};
use thiserror::Error;

use crate::network::Role;

use super::command::{Command, read_address, write_address};
use super::membership::{NodeId, read_node, write_node};
use super::routing::{CellLeader, InstrumentMap, MAP_EXCEPTIONS_MAX, RoutingTable};

/// First bytes of a saved state, with the version.
const MAGIC: &[u8; 8] = b"nmctrl01";

/// What is known of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Where it listens.
    pub address: String,
    /// How often it has started; rises with each start.
    pub starts: u32,
    /// Number that identifies the latest start of its process.
    pub start: u64,
    /// Whether it is up, as far as its links show.
    pub is_up: bool,
    /// Since when, ms since 1970.
    pub since_ms: u64,
}

/// An instrument that is being moved to another cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InstrumentMove {
    /// Which.
    pub instrument: InstrumentId,
    /// Its new cell.
    pub cell: u16,
}

/// Why an instrument cannot be moved to a cell.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum MoveError {
    /// There is no such cell.
    #[error("there is no cell {cell}: the network has {cells}")]
    NoSuchCell {
        /// The cell that was asked for.
        cell: u16,
        /// How many there are.
        cells: u16,
    },
    /// The map is full.
    #[error(
        "{MAP_EXCEPTIONS_MAX} instruments are in other cells than the rule gives, the most \
         that the map can have"
    )]
    MapFull,
}

/// The state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    index: u64,
    nodes: BTreeMap<NodeId, Member>,
    routes: RoutingTable,
    pending_move: Option<InstrumentMove>,
}

impl State {
    /// The first state of the group, in a network of so many cells.
    pub fn new(cells: usize) -> State {
        let routes = RoutingTable::new(cells);
        State { index: 0, nodes: BTreeMap::new(), routes, pending_move: None }
    }

    /// Index of the last batch of commands that was applied.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// Begins the batch of this index.
    pub fn begin(&mut self, index: u64) {
        self.index = index;
    }

    /// All nodes that ever were up.
    pub fn nodes(&self) -> &BTreeMap<NodeId, Member> {
        &self.nodes
    }

    /// The map, and who leads.
    pub fn routes(&self) -> &RoutingTable {
        &self.routes
    }

    /// An instrument that is being moved to another cell, in the map's next version.
    pub fn pending_move(&self) -> Option<InstrumentMove> {
        self.pending_move
    }

    /// Whether the process of a leader is still running.
    pub fn is_running(&self, leader: &CellLeader) -> bool {
        let node = self.nodes.get(&(Role::Mediator, leader.mediator));
        node.is_some_and(|node| node.is_up && node.start == leader.start)
    }

    /// Whether a mediator that claims to lead a cell is its leader from now on, and is not known as
    /// such yet.
    pub fn accepts_leader(&self, cell: u16, leader: &CellLeader) -> bool {
        let known = self.routes.leaders.get(&cell);
        known.is_none_or(|known| known.is_superseded_by(leader, |known| self.is_running(known)))
    }

    /// The move of an instrument to a cell; none if it belongs to it already.
    ///
    /// # Errors
    /// If the map cannot have it there.
    pub fn plan_move(
        &self,
        instrument: InstrumentId,
        cell: u16,
    ) -> Result<Option<InstrumentMove>, MoveError> {
        let map = &self.routes.map;
        if cell >= map.cells() {
            return Err(MoveError::NoSuchCell { cell, cells: map.cells() });
        }
        let is_known = map.exceptions().contains_key(&instrument);
        if map.exceptions().len() >= MAP_EXCEPTIONS_MAX && !is_known {
            return Err(MoveError::MapFull);
        }
        Ok((map.cell_of(instrument) != cell).then_some(InstrumentMove { instrument, cell }))
    }

    /// Applies a command at a time, ms since 1970; the move that ended by it, and whether it
    /// succeeded. A command that does not fit the state has no effect.
    pub fn apply(&mut self, command: &Command, now_ms: u64) -> Option<(InstrumentMove, bool)> {
        match command {
            Command::Joined { node, start, address } => self.join(*node, *start, address, now_ms),
            Command::Left { node, start } => {
                let member = self.nodes.get_mut(node);
                if let Some(member) = member.filter(|node| node.is_up && node.start == *start) {
                    (member.is_up, member.since_ms) = (false, now_ms);
                }
            }
            Command::Leader { cell, leader } => {
                if self.accepts_leader(*cell, leader) {
                    self.routes.leaders.insert(*cell, *leader);
                }
            }
            Command::Move { instrument, cell } => {
                if self.pending_move.is_none() {
                    self.pending_move = self.plan_move(*instrument, *cell).ok().flatten();
                }
            }
            Command::Released { instrument, map_version, is_granted } => {
                let is_awaited = |pending: &mut InstrumentMove| {
                    pending.instrument == *instrument
                        && *map_version == self.routes.map.version() + 1
                };
                let pending = self.pending_move.take_if(is_awaited)?;
                if *is_granted {
                    self.routes.map.assign(pending.instrument, pending.cell);
                }
                return Some((pending, *is_granted));
            }
            Command::RestoreMap(map) => {
                if self.routes.map.update(map) {
                    return self.pending_move.take().map(|pending| (pending, false));
                }
            }
        }
        None
    }

    fn join(&mut self, node: NodeId, start: u64, address: &str, now_ms: u64) {
        let member = self.nodes.entry(node).or_insert_with(|| Member {
            address: String::new(),
            starts: 0,
            start: 0,
            is_up: false,
            since_ms: 0,
        });
        if !member.is_up || member.start != start {
            member.starts += u32::from(member.starts == 0 || member.start != start);
            (member.start, member.is_up, member.since_ms) = (start, true, now_ms);
            address.clone_into(&mut member.address);
        }
    }

    /// The complete state as bytes.
    pub fn save(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.put_u64(self.index);
        self.routes.write(&mut out);
        out.put_u32(self.nodes.len() as u32);
        for (node, member) in &self.nodes {
            write_node(*node, &mut out);
            out.put_u32(member.starts);
            out.put_u64(member.start);
            out.put_bool(member.is_up);
            out.put_u64(member.since_ms);
            write_address(&member.address, &mut out);
        }
        out.put_bool(self.pending_move.is_some());
        if let Some(pending) = self.pending_move {
            out.put_u32(pending.instrument);
            out.put_u16(pending.cell);
        }
        let checksum = nm_codec::crc32c(&out);
        out.put_u32(checksum);
        out
    }

    /// Hash of the complete state, equal on every replica.
    pub fn hash(&self) -> u64 {
        fnv1a(&self.save())
    }

    /// A state from what [`State::save`] wrote.
    ///
    /// # Errors
    /// If the bytes are not a saved state of this version.
    pub fn load(bytes: &[u8]) -> Result<State, DecodeError> {
        let checksum = DecodeError::checksum("checksum");
        let (content, sum) = bytes.split_last_chunk().ok_or(checksum)?;
        if nm_codec::crc32c(content) != u32::from_le_bytes(*sum) {
            return Err(checksum);
        }
        let mut reader = Reader::new(content);
        if reader.bytes("magic", MAGIC.len())? != MAGIC {
            return Err(DecodeError::invalid("magic", "is not that of a state of control"));
        }
        let (index, routes) = (reader.u64("index")?, RoutingTable::read(&mut reader)?);
        let mut nodes = BTreeMap::new();
        for _ in 0..reader.u32("nodes")? {
            let node = read_node(&mut reader)?;
            let member = Member {
                starts: reader.u32("starts")?,
                start: reader.u64("start")?,
                is_up: reader.bool("is_up")?,
                since_ms: reader.u64("since_ms")?,
                address: read_address(&mut reader)?,
            };
            nodes.insert(node, member);
        }
        let pending_move = read_move(&mut reader, &routes.map)?;
        reader.finish("pending_move")?;
        Ok(State { index, nodes, routes, pending_move })
    }
}

fn read_move(
    reader: &mut Reader<'_>,
    map: &InstrumentMap,
) -> Result<Option<InstrumentMove>, DecodeError> {
    if !reader.bool("has_pending_move")? {
        return Ok(None);
    }
    let (instrument, cell) = (reader.u32("instrument")?, reader.u16("cell")?);
    if cell >= map.cells() {
        return Err(DecodeError::invalid("cell", "does not exist"));
    }
    Ok(Some(InstrumentMove { instrument, cell }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{decode_batch, encode_batch};
    use proptest::prelude::*;

    fn node() -> impl Strategy<Value = NodeId> {
        (prop::sample::select(Role::ALL), 0..3u16)
    }

    fn leader() -> impl Strategy<Value = CellLeader> {
        let made = |(mediator, term, start)| CellLeader { mediator, term, start };
        (0..3u16, 1..5u32, 0..3u64).prop_map(made)
    }

    fn command() -> impl Strategy<Value = Command> {
        prop_oneof![
            4 => (node(), 0..3u64, "[a-z0-9:.é]{0,20}")
                .prop_map(|(node, start, address)| Command::Joined { node, start, address }),
            2 => (node(), 0..3u64).prop_map(|(node, start)| Command::Left { node, start }),
            2 => (0..4u16, leader())
                .prop_map(|(cell, leader)| Command::Leader { cell, leader }),
            3 => (0..4u32, 0..5u16)
                .prop_map(|(instrument, cell)| Command::Move { instrument, cell }),
            4 => (0..4u32, 1..6u32, any::<bool>()).prop_map(|(instrument, version, granted)| {
                Command::Released { instrument, map_version: version, is_granted: granted }
            }),
            1 => prop::collection::vec((0..4u32, 0..3u16), 0..4).prop_map(|assigned| {
                let mut map = InstrumentMap::new(3);
                assigned.into_iter().for_each(|(instrument, cell)| map.assign(instrument, cell));
                Command::RestoreMap(map)
            }),
        ]
    }

    proptest! {
        /// Batches are read back; replicas that begin at any saved state come to the same one;
        /// starts and the map's version never go back, and the map changes only when a cell has
        /// released an instrument, or it is restored.
        #[test]
        fn a_state_follows_from_its_commands(
            batches in prop::collection::vec(prop::collection::vec(command(), 0..4), 1..60),
            cuts in prop::collection::btree_set(0usize..60, 0..4),
        ) {
            let (mut state, mut reloaded) = (State::new(3), State::new(3));
            for (at, commands) in batches.iter().enumerate() {
                if cuts.contains(&at) {
                    reloaded = State::load(&reloaded.save()).unwrap();
                }
                let (now_ms, read) = decode_batch(&encode_batch(at as u64, commands)).unwrap();
                prop_assert_eq!((now_ms, &read), (at as u64, commands));
                state.begin(at as u64 + 1);
                reloaded.begin(at as u64 + 1);
                for command in commands {
                    let before = state.clone();
                    let ended = state.apply(command, now_ms);
                    prop_assert_eq!(reloaded.apply(command, now_ms), ended);
                    let (old, new) = (&before.routes.map, &state.routes.map);
                    prop_assert!(new.version() >= old.version());
                    let is_granted = matches!(ended, Some((_, true)));
                    let is_restored = matches!(command, Command::RestoreMap(_));
                    prop_assert!(new == old || is_granted || is_restored);
                    if is_granted {
                        let pending = before.pending_move.unwrap();
                        prop_assert_eq!(new.version(), old.version() + 1);
                        prop_assert_eq!(new.cell_of(pending.instrument), pending.cell);
                    }
                    for (node, member) in &state.nodes {
                        let starts = before.nodes.get(node).map_or(0, |member| member.starts);
                        prop_assert!(member.starts == starts || member.starts == starts + 1);
                    }
                }
            }
            prop_assert_eq!(&reloaded, &state);
            prop_assert_eq!(reloaded.hash(), state.hash());
        }

        #[test]
        fn any_bytes_are_a_state_or_refused(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            commands in prop::collection::vec(command(), 0..20),
            change in any::<prop::sample::Index>(),
            to in any::<u8>(),
        ) {
            let _ = State::load(&bytes);
            let _ = decode_batch(&bytes);
            let mut state = State::new(3);
            for command in &commands {
                state.apply(command, 1);
            }
            let mut saved = state.save();
            let at = change.index(saved.len());
            let is_same = std::mem::replace(&mut saved[at], to) == to;
            prop_assert_eq!(State::load(&saved).is_ok(), is_same);
            // What is sealed again after the change is read or refused.
            saved.truncate(saved.len() - 4);
            let checksum = nm_codec::crc32c(&saved);
            saved.extend_from_slice(&checksum.to_le_bytes());
            let _ = State::load(&saved);
        }
    }

    #[test]
    fn one_instrument_moves_at_a_time_and_only_when_it_is_released() {
        let mut state = State::new(2);
        let move_to = |instrument, cell| Command::Move { instrument, cell };
        let released = |instrument, map_version, is_granted| Command::Released {
            instrument,
            map_version,
            is_granted,
        };
        assert!(state.plan_move(0, 2).unwrap_err().to_string().contains("no cell 2"));
        assert_eq!(state.plan_move(0, 0), Ok(None));
        state.apply(&move_to(0, 1), 1);
        state.apply(&move_to(2, 1), 1);
        let change = InstrumentMove { instrument: 0, cell: 1 };
        assert_eq!(state.pending_move(), Some(change));
        for late in [released(0, 2, true), released(2, 1, true)] {
            assert_eq!(state.apply(&late, 1), None);
        }
        assert_eq!(state.apply(&released(0, 1, false), 1), Some((change, false)));
        assert_eq!((state.routes.map.version(), state.pending_move()), (0, None));
        state.apply(&move_to(2, 1), 1);
        assert!(state.apply(&released(2, 1, true), 1).is_some());
        assert_eq!((state.routes.map.cell_of(2), state.routes.map.version()), (1, 1));
    }
}
