//! The state that the control group agrees on: a function of the commands in its log.

use std::collections::BTreeMap;

use nm_book::order::InstrumentId;
use nm_codec::fnv1a;
use nm_codec::{Fields, Meaningless};

use crate::network::Role;

use super::map::{CellLeader, MAP_EXCEPTIONS_MAX, Map, RoutingTable};
use super::view::{NodeName, read_node, write_node};

/// First bytes of a saved state, with the version.
const MARK: &[u8; 8] = b"nmctrl01";

/// Most bytes of a node's address.
const ADDRESS_BYTES_MAX: usize = 256;

/// What is known of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Where it listens.
    pub address: String,
    /// How often it has started; rises with each start.
    pub starts: u32,
    /// Number by which it names its last start.
    pub start: u64,
    /// Whether it is up, as far as its links tell.
    pub is_up: bool,
    /// Since when, ms since 1970.
    pub since_ms: u64,
}

/// What is written down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// A node is up.
    Joined {
        /// Which.
        node: NodeName,
        /// Number by which it names its start.
        start: u64,
        /// Where it listens.
        address: String,
    },
    /// A node is seen by nobody any more.
    Left {
        /// Which.
        node: NodeName,
        /// The start that ended.
        start: u64,
    },
    /// A mediator leads a cell.
    Leads {
        /// Which cell, or control itself.
        cell: u16,
        /// Who.
        leading: CellLeader,
    },
    /// An instrument shall belong to another cell: its present one is asked for it from now on.
    Assign {
        /// Which.
        instrument: InstrumentId,
        /// Its new cell.
        cell: u16,
    },
    /// The present cell has answered.
    Released {
        /// Which instrument.
        instrument: InstrumentId,
        /// Epoch that the map then has.
        epoch: u32,
        /// Whether it gave the instrument away; it did not if it has traded it.
        is_given: bool,
    },
    /// A newer map than the state has: all replicas of control have lost their memory.
    Restore(Map),
}

/// An instrument on its way to another cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// Which.
    pub instrument: InstrumentId,
    /// Where to.
    pub cell: u16,
}

/// The state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    index: u64,
    nodes: BTreeMap<NodeName, Member>,
    routes: RoutingTable,
    change: Option<Change>,
}

impl State {
    /// The state of a group that begins, in a network of so many cells.
    pub fn new(cells: usize) -> State {
        State { index: 0, nodes: BTreeMap::new(), routes: RoutingTable::new(cells), change: None }
    }

    /// Index of the last batch of commands that was applied.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// Takes note that the batch of this index begins.
    pub fn begin(&mut self, index: u64) {
        self.index = index;
    }

    /// All nodes that ever were up.
    pub fn nodes(&self) -> &BTreeMap<NodeName, Member> {
        &self.nodes
    }

    /// The map, and who leads.
    pub fn routes(&self) -> &RoutingTable {
        &self.routes
    }

    /// An instrument that is on its way to another cell, in the map's next epoch.
    pub fn change(&self) -> Option<Change> {
        self.change
    }

    /// Whether a mediator that once said that it leads is still up since then.
    pub fn is_there(&self, leading: &CellLeader) -> bool {
        let node = self.nodes.get(&(Role::Mediator, leading.mediator));
        node.is_some_and(|node| node.is_up && node.start == leading.start)
    }

    /// Whether it is news that somebody leads a cell, and to be believed.
    pub fn believes(&self, cell: u16, leading: &CellLeader) -> bool {
        let known = self.routes.leaders.get(&cell);
        known.is_none_or(|known| known.yields_to(leading, |known| self.is_there(known)))
    }

    /// Whether a map is newer than the state's.
    pub fn lacks(&self, map: &Map) -> bool {
        self.routes.map.clone().take(map)
    }

    /// Whether an instrument could be given to a cell; none if it belongs to it already.
    ///
    /// # Errors
    /// A sentence.
    pub fn check(&self, instrument: InstrumentId, cell: u16) -> Result<Option<Change>, String> {
        let map = &self.routes.map;
        if cell >= map.cells() {
            return Err(format!("there is no cell {cell}: the network has {}", map.cells()));
        }
        let is_known = map.exceptions().contains_key(&instrument);
        if map.exceptions().len() >= MAP_EXCEPTIONS_MAX && !is_known {
            return Err(format!(
                "{MAP_EXCEPTIONS_MAX} instruments are in other cells than the rule says, which is all \
                 that the map takes"
            ));
        }
        Ok((map.cell_of(instrument) != cell).then_some(Change { instrument, cell }))
    }

    /// Carries a command out at a time, ms since 1970; the change that ended by it, and whether the
    /// map has it now. What means nothing in this state does nothing.
    pub fn apply(&mut self, command: &Command, now_ms: u64) -> Option<(Change, bool)> {
        match command {
            Command::Joined { node, start, address } => {
                let member = self.nodes.entry(*node).or_insert_with(|| Member {
                    address: String::new(),
                    starts: 0,
                    start: 0,
                    is_up: false,
                    since_ms: 0,
                });
                if !member.is_up || member.start != *start {
                    member.starts += u32::from(member.starts == 0 || member.start != *start);
                    (member.start, member.is_up, member.since_ms) = (*start, true, now_ms);
                    member.address.clone_from(address);
                }
            }
            Command::Left { node, start } => {
                let member = self.nodes.get_mut(node);
                if let Some(member) = member.filter(|node| node.is_up && node.start == *start) {
                    (member.is_up, member.since_ms) = (false, now_ms);
                }
            }
            Command::Leads { cell, leading } => {
                if self.believes(*cell, leading) {
                    self.routes.leaders.insert(*cell, *leading);
                }
            }
            Command::Assign { instrument, cell } => {
                if self.change.is_none() {
                    self.change = self.check(*instrument, *cell).ok().flatten();
                }
            }
            Command::Released { instrument, epoch, is_given } => {
                let is_awaited = |change: &mut Change| {
                    change.instrument == *instrument && *epoch == self.routes.map.epoch() + 1
                };
                let change = self.change.take_if(is_awaited)?;
                if *is_given {
                    self.routes.map.assign(change.instrument, change.cell);
                }
                return Some((change, *is_given));
            }
            Command::Restore(map) => {
                if self.routes.map.take(map) {
                    return self.change.take().map(|change| (change, false));
                }
            }
        }
        None
    }

    /// The whole state as bytes.
    pub fn save(&self) -> Vec<u8> {
        let mut out = MARK.to_vec();
        out.extend_from_slice(&self.index.to_le_bytes());
        self.routes.write(&mut out);
        out.extend_from_slice(&(self.nodes.len() as u32).to_le_bytes());
        for (node, member) in &self.nodes {
            write_node(*node, &mut out);
            out.extend_from_slice(&member.starts.to_le_bytes());
            out.extend_from_slice(&member.start.to_le_bytes());
            out.push(u8::from(member.is_up));
            out.extend_from_slice(&member.since_ms.to_le_bytes());
            write_text(&member.address, &mut out);
        }
        out.push(u8::from(self.change.is_some()));
        if let Some(change) = self.change {
            out.extend_from_slice(&change.instrument.to_le_bytes());
            out.extend_from_slice(&change.cell.to_le_bytes());
        }
        out.extend_from_slice(&nm_codec::crc32c(&out).to_le_bytes());
        out
    }

    /// Hash of the whole state, equal on every replica.
    pub fn hash(&self) -> u64 {
        fnv1a(&self.save())
    }

    /// A state from what [`State::save`] wrote.
    ///
    /// # Errors
    /// A sentence, if the bytes are no saved state.
    pub fn load(bytes: &[u8]) -> Result<State, String> {
        State::read(bytes).map_err(|_| {
            "a saved state of the control group is damaged, or none of this version".to_string()
        })
    }

    fn read(bytes: &[u8]) -> Result<State, Meaningless> {
        let (content, checksum) = bytes.split_last_chunk().ok_or(Meaningless)?;
        let mut from = Fields(content);
        let is_marked = from.bytes(MARK.len())? == MARK;
        if !is_marked || nm_codec::crc32c(content) != u32::from_le_bytes(*checksum) {
            return Err(Meaningless);
        }
        let (index, routes) = (from.u64()?, RoutingTable::read(&mut from)?);
        let mut nodes = BTreeMap::new();
        for _ in 0..from.u32()? {
            let node = read_node(&mut from)?;
            let (starts, start, is_up) = (from.u32()?, from.u64()?, flag(&mut from)?);
            let (since_ms, address) = (from.u64()?, read_text(&mut from)?);
            nodes.insert(node, Member { address, starts, start, is_up, since_ms });
        }
        let mut change = None;
        if flag(&mut from)? {
            change = Some(Change { instrument: from.u32()?, cell: from.u16()? });
        }
        if !from.0.is_empty() {
            return Err(Meaningless);
        }
        Ok(State { index, nodes, routes, change })
    }
}

fn flag(from: &mut Fields<'_>) -> Result<bool, Meaningless> {
    match from.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Meaningless),
    }
}

fn write_text(text: &str, out: &mut Vec<u8>) {
    let mut end = text.len().min(ADDRESS_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    out.extend_from_slice(&(end as u16).to_le_bytes());
    out.extend_from_slice(&text.as_bytes()[..end]);
}

fn read_text(from: &mut Fields<'_>) -> Result<String, Meaningless> {
    let length = usize::from(from.u16()?);
    String::from_utf8(from.bytes(length)?.to_vec()).map_err(|_| Meaningless)
}

impl Command {
    /// Appends its bytes.
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Command::Joined { node, start, address } => {
                out.push(1);
                write_node(*node, out);
                out.extend_from_slice(&start.to_le_bytes());
                write_text(address, out);
            }
            Command::Left { node, start } => {
                out.push(2);
                write_node(*node, out);
                out.extend_from_slice(&start.to_le_bytes());
            }
            Command::Leads { cell, leading } => {
                out.push(3);
                out.extend_from_slice(&cell.to_le_bytes());
                out.extend_from_slice(&leading.mediator.to_le_bytes());
                out.extend_from_slice(&leading.epoch.to_le_bytes());
                out.extend_from_slice(&leading.start.to_le_bytes());
            }
            Command::Assign { instrument, cell } => {
                out.push(4);
                out.extend_from_slice(&instrument.to_le_bytes());
                out.extend_from_slice(&cell.to_le_bytes());
            }
            Command::Released { instrument, epoch, is_given } => {
                out.push(5);
                out.extend_from_slice(&instrument.to_le_bytes());
                out.extend_from_slice(&epoch.to_le_bytes());
                out.push(u8::from(*is_given));
            }
            Command::Restore(map) => {
                out.push(6);
                map.write(out);
            }
        }
    }

    /// Reads them.
    ///
    /// # Errors
    /// If they mean nothing.
    pub fn read(from: &mut Fields<'_>) -> Result<Command, Meaningless> {
        Ok(match from.u8()? {
            1 => {
                let (node, start) = (read_node(from)?, from.u64()?);
                Command::Joined { node, start, address: read_text(from)? }
            }
            2 => Command::Left { node: read_node(from)?, start: from.u64()? },
            3 => {
                let cell = from.u16()?;
                let (mediator, epoch, start) = (from.u16()?, from.u32()?, from.u64()?);
                Command::Leads { cell, leading: CellLeader { mediator, epoch, start } }
            }
            4 => Command::Assign { instrument: from.u32()?, cell: from.u16()? },
            5 => {
                let (instrument, epoch) = (from.u32()?, from.u32()?);
                Command::Released { instrument, epoch, is_given: flag(from)? }
            }
            6 => Command::Restore(Map::read(from)?),
            _ => return Err(Meaningless),
        })
    }
}

/// A batch of commands: an entry of the group's log, with the leader's time, ms since 1970.
pub fn batch(now_ms: u64, commands: &[Command]) -> Vec<u8> {
    let mut out = now_ms.to_le_bytes().to_vec();
    commands.iter().for_each(|command| command.write(&mut out));
    out
}

/// The time and the commands of a batch.
///
/// # Errors
/// If it is none.
pub fn open(batch: &[u8]) -> Result<(u64, Vec<Command>), Meaningless> {
    let mut from = Fields(batch);
    let (now_ms, mut commands) = (from.u64()?, vec![]);
    while !from.0.is_empty() {
        commands.push(Command::read(&mut from)?);
    }
    Ok((now_ms, commands))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn node() -> impl Strategy<Value = NodeName> {
        (prop::sample::select(&Role::ALL[..]), 0..3u16)
    }

    fn leading() -> impl Strategy<Value = CellLeader> {
        let made = |(mediator, epoch, start)| CellLeader { mediator, epoch, start };
        (0..3u16, 1..5u32, 0..3u64).prop_map(made)
    }

    fn command() -> impl Strategy<Value = Command> {
        prop_oneof![
            4 => (node(), 0..3u64, "[a-z0-9:.é]{0,20}")
                .prop_map(|(node, start, address)| Command::Joined { node, start, address }),
            2 => (node(), 0..3u64).prop_map(|(node, start)| Command::Left { node, start }),
            2 => (0..4u16, leading())
                .prop_map(|(cell, leading)| Command::Leads { cell, leading }),
            3 => (0..4u32, 0..5u16)
                .prop_map(|(instrument, cell)| Command::Assign { instrument, cell }),
            4 => (0..4u32, 1..6u32, any::<bool>()).prop_map(|(instrument, epoch, is_given)| {
                Command::Released { instrument, epoch, is_given }
            }),
            1 => prop::collection::vec((0..4u32, 0..3u16), 0..4).prop_map(|assigned| {
                let mut map = Map::new(3);
                assigned.into_iter().for_each(|(instrument, cell)| map.assign(instrument, cell));
                Command::Restore(map)
            }),
        ]
    }

    proptest! {
        /// Batches come back from their bytes; replicas that begin anywhere from a saved state come
        /// to the same one; starts and the map's epoch never go back, and the map changes only when
        /// a cell has given an instrument away, or as a whole.
        #[test]
        fn a_state_follows_from_its_commands(
            batches in prop::collection::vec(prop::collection::vec(command(), 0..4), 1..60),
            cuts in prop::collection::btree_set(0usize..60, 0..4),
        ) {
            let (mut whole, mut cut) = (State::new(3), State::new(3));
            for (at, commands) in batches.iter().enumerate() {
                if cuts.contains(&at) {
                    cut = State::load(&cut.save()).unwrap();
                }
                let (now_ms, read) = open(&batch(at as u64, commands)).unwrap();
                prop_assert_eq!((now_ms, &read), (at as u64, commands));
                whole.begin(at as u64 + 1);
                cut.begin(at as u64 + 1);
                for command in commands {
                    let before = whole.clone();
                    let ended = whole.apply(command, now_ms);
                    prop_assert_eq!(cut.apply(command, now_ms), ended);
                    let (old, new) = (&before.routes.map, &whole.routes.map);
                    prop_assert!(new.epoch() >= old.epoch());
                    let is_given = matches!(ended, Some((_, true)));
                    let is_whole = matches!(command, Command::Restore(_));
                    prop_assert!(new == old || is_given || is_whole);
                    if is_given {
                        let change = before.change.unwrap();
                        prop_assert_eq!(new.epoch(), old.epoch() + 1);
                        prop_assert_eq!(new.cell_of(change.instrument), change.cell);
                    }
                    for (node, member) in &whole.nodes {
                        let starts = before.nodes.get(node).map_or(0, |member| member.starts);
                        prop_assert!(member.starts == starts || member.starts == starts + 1);
                    }
                }
            }
            prop_assert_eq!(&cut, &whole);
            prop_assert_eq!(cut.hash(), whole.hash());
        }

        #[test]
        fn any_bytes_are_a_state_or_refused(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            commands in prop::collection::vec(command(), 0..20),
            change in any::<prop::sample::Index>(),
            to in any::<u8>(),
        ) {
            let _ = State::load(&bytes);
            let _ = open(&bytes);
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
    fn one_instrument_moves_at_a_time_and_only_when_it_is_given() {
        let mut state = State::new(2);
        let assign = |instrument, cell| Command::Assign { instrument, cell };
        let released =
            |instrument, epoch, is_given| Command::Released { instrument, epoch, is_given };
        assert!(state.check(0, 2).unwrap_err().contains("no cell 2"));
        assert_eq!(state.check(0, 0), Ok(None));
        state.apply(&assign(0, 1), 1);
        state.apply(&assign(2, 1), 1);
        let change = Change { instrument: 0, cell: 1 };
        assert_eq!(state.change(), Some(change));
        for late in [released(0, 2, true), released(2, 1, true)] {
            assert_eq!(state.apply(&late, 1), None);
        }
        assert_eq!(state.apply(&released(0, 1, false), 1), Some((change, false)));
        assert_eq!((state.routes.map.epoch(), state.change()), (0, None));
        state.apply(&assign(2, 1), 1);
        assert!(state.apply(&released(2, 1, true), 1).is_some());
        assert_eq!((state.routes.map.cell_of(2), state.routes.map.epoch()), (1, 1));
    }
}
