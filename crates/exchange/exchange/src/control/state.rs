//! The state that the control group agrees on: a function of the commands in its log.

use std::collections::BTreeMap;

use nm_book::order::InstrumentId;
use nm_codec::{DecodeError, Put, Reader, fnv1a};
use thiserror::Error;

use nm_wire::Value;

use crate::firms::Firm;
use crate::limits::{
    MOVED_INSTRUMENTS_MAX, MOVES_PENDING_MAX, SCHEDULE_GROUPS_MAX, SCHEDULE_NAME_BYTES_MAX,
};
use crate::moves::{MoveId, MoveRefusal};
use crate::network::{CONTROL, NODES_MAX, Node, NodeId, Role};

use super::added::{
    AddError, RemoveError, long_address, read_address, share_an_address, write_address,
};
use super::command::Command;
use super::routing::{CellLeader, InstrumentMap, Placement, RoutingTable, is_superseded};

/// Numbers of moves that are left out when a map is restored: moves of the lost state may have had
/// them.
const LOST_EPOCHS: u32 = 1 << 16;

/// First bytes of a saved state, with the version.
const MAGIC: &[u8; 8] = b"nmctrl11";

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

/// A move that is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PendingMove {
    /// The new cell of the instrument.
    pub cell: u16,
    /// Number of the move.
    pub epoch: u32,
}

/// A move that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndedMove {
    /// Which instrument.
    pub instrument: InstrumentId,
    /// The cell that it should move to.
    pub cell: u16,
    /// Why it did not, if so.
    pub refusal: Option<MoveRefusal>,
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
        cells: usize,
    },
    /// The map is full.
    #[error("{MOVED_INSTRUMENTS_MAX} instruments have moved, the most that the map can have")]
    MapFull,
    /// Too many moves are under way.
    #[error("{MOVES_PENDING_MAX} moves are under way, the most that there can be")]
    TooManyMoves,
    /// It is being moved to yet another cell.
    #[error("instrument {instrument} is on its way to cell {cell}: wait until it is there")]
    AlreadyMoving {
        /// Which.
        instrument: InstrumentId,
        /// Where it moves to.
        cell: u16,
    },
}

/// The state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    index: u64,
    nodes: BTreeMap<NodeId, Member>,
    routes: RoutingTable,
    pending: BTreeMap<InstrumentId, PendingMove>,
    /// Number of the last move.
    last_epoch: u32,
    /// By group of the schedule: when its latest phase was due that has begun, s since 1970.
    schedule: BTreeMap<String, u64>,
}

impl State {
    /// The first state of the group, in a network that begins with this map.
    pub fn new(map: InstrumentMap) -> State {
        State {
            index: 0,
            nodes: BTreeMap::new(),
            routes: RoutingTable::new(map),
            pending: BTreeMap::new(),
            last_epoch: 0,
            schedule: BTreeMap::new(),
        }
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

    /// Moves that are under way.
    pub fn pending_moves(&self) -> &BTreeMap<InstrumentId, PendingMove> {
        &self.pending
    }

    /// When the latest phase of a group of the schedule was due that has begun, s since 1970.
    pub fn begun_s(&self, group: &str) -> Option<u64> {
        self.schedule.get(group).copied()
    }

    /// Whether it is new that a phase of the schedule has begun, and there is room for it.
    pub fn is_later(&self, group: &str, at_s: u64) -> bool {
        match self.schedule.get(group) {
            Some(known) => *known < at_s,
            None => {
                self.schedule.len() < SCHEDULE_GROUPS_MAX && group.len() <= SCHEDULE_NAME_BYTES_MAX
            }
        }
    }

    /// Whether the process of a leader is still running.
    pub fn is_running(&self, leader: &CellLeader) -> bool {
        let node = self.nodes.get(&Role::Mediator.node(leader.mediator));
        node.is_some_and(|node| node.is_up && node.start == leader.start)
    }

    /// Whether a mediator that claims to lead a cell is its leader from now on, and is not known as
    /// such yet.
    pub fn accepts_leader(&self, cell: u16, leader: &CellLeader) -> bool {
        if cell != CONTROL && !self.routes.map.has_cell(cell) {
            return false;
        }
        let known = self.routes.leaders.get(&cell);
        known.is_none_or(|known| is_superseded(known, leader, |known| self.is_running(known)))
    }

    /// Whether an instrument is to be moved to a cell, or belongs to it already.
    ///
    /// # Errors
    /// If it cannot be moved there.
    pub fn plan_move(&self, instrument: InstrumentId, cell: u16) -> Result<bool, MoveError> {
        let map = &self.routes.map;
        if !map.has_cell(cell) {
            return Err(MoveError::NoSuchCell { cell, cells: map.cell_count() });
        }
        if let Some(pending) = self.pending.get(&instrument) {
            let cell = (pending.cell != cell).then_some(pending.cell);
            return cell
                .map_or(Ok(true), |cell| Err(MoveError::AlreadyMoving { instrument, cell }));
        }
        if map.cell_of(instrument) == cell {
            return Ok(false);
        }
        if self.pending.len() >= MOVES_PENDING_MAX {
            return Err(MoveError::TooManyMoves);
        }
        let is_new = |instrument: &&InstrumentId| !map.moved().contains_key(*instrument);
        let new = self.pending.keys().filter(is_new).count() + usize::from(is_new(&&instrument));
        if map.moved().len() + new > MOVED_INSTRUMENTS_MAX {
            return Err(MoveError::MapFull);
        }
        Ok(true)
    }

    /// The number of the node of this class that listens at these addresses, if it is part of the
    /// network already, or none if it can be added.
    ///
    /// # Errors
    /// If it cannot.
    pub fn plan_add(&self, role: Role, node: &Node) -> Result<Option<u16>, AddError> {
        let map = &self.routes.map;
        for known_role in Role::ALL.iter().copied() {
            let known = map.added(known_role).iter().zip(map.founded(known_role)..);
            let mut known = known.filter(|(it, _)| !it.is_removed);
            if let Some((added, index)) = known.find(|(it, _)| share_an_address(&it.node, node)) {
                return match (known_role, &added.node) == (role, node) {
                    true => Ok(Some(index)),
                    false => Err(AddError::AddressTaken(known_role.node(index))),
                };
            }
        }
        let count = usize::from(map.founded(role)) + map.added(role).len();
        match long_address(node) {
            Some(address) => Err(AddError::LongAddress(address)),
            None if count >= NODES_MAX => Err(AddError::TooMany(role)),
            None => Ok(None),
        }
    }

    /// Whether a node can be removed.
    ///
    /// # Errors
    /// If it was not added, is a mediator whose cell has instruments, or a gateway that takes
    /// clients.
    pub fn plan_remove(&self, node: NodeId) -> Result<(), RemoveError> {
        let map = &self.routes.map;
        if node.index < map.founded(node.class) {
            return Err(RemoveError::Founder(node));
        }
        if map.lacks(node) {
            return Err(RemoveError::NoSuchNode(node));
        }
        match node.class {
            Role::Router | Role::Processor => Ok(()),
            Role::Gateway => {
                let is_up = self.nodes.get(&node).is_some_and(|known| known.is_up);
                let takes_clients = is_up && !map.drained().contains(&node);
                if takes_clients { Err(RemoveError::NotDrained(node.index)) } else { Ok(()) }
            }
            Role::Mediator => match self.instruments_at(node.index) {
                0 => Ok(()),
                instruments => Err(RemoveError::HasInstruments { cell: node.index, instruments }),
            },
        }
    }

    /// How many instruments are in a cell that was added, or on their way to it: none is there by
    /// the rule.
    fn instruments_at(&self, cell: u16) -> usize {
        let there = self.routes.map.moved().values().filter(|at| at.cell == cell).count();
        there + self.pending.values().filter(|to| to.cell == cell).count()
    }

    /// Applies a command at a time, ms since 1970; the moves that ended by it. A command that does
    /// not fit the state has no effect.
    pub fn apply(&mut self, command: &Command, now_ms: u64) -> Option<EndedMove> {
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
            Command::Move { instrument, cell } => self.begin_move(*instrument, *cell),
            Command::MoveEnded { id, refusal } => return self.end_move(*id, *refusal),
            Command::Drain { node, is_drained } => {
                if self.routes.map.can_be_drained(*node) {
                    self.routes.map.set_drained(*node, *is_drained);
                }
            }
            Command::Add { role, node } => {
                if self.plan_add(*role, node) == Ok(None) {
                    self.routes.map.add(*role, node.clone());
                }
            }
            Command::Remove(node) => {
                if self.plan_remove(*node).is_ok() {
                    self.routes.map.remove(*node);
                    self.nodes.remove(node);
                    if node.class == Role::Mediator {
                        self.routes.leaders.remove(&node.index);
                    }
                }
            }
            Command::List(listing) => self.routes.map.list(listing),
            Command::Delist(instrument) => self.routes.map.delist(*instrument),
            Command::SetFirm(firm) => self.routes.map.set_firm(&Firm::of(firm), now_ms),
            Command::RemoveFirm(number) => self.routes.map.remove_firm(*number, now_ms),
            Command::Begun { group, at_s } => {
                if self.is_later(group, *at_s) {
                    self.schedule.insert(group.clone(), *at_s);
                }
            }
            Command::RestoreMap(map) => {
                if self.routes.map.update(map) {
                    // One that the map has, or a later one of the same instrument, has ended: no
                    // cell would ever carry it out.
                    self.pending.retain(|instrument, pending| {
                        map.has_cell(pending.cell) && map.epoch_of(*instrument) < pending.epoch
                    });
                    let newest = map.moved().values().map(|at| at.epoch).max().unwrap_or(0);
                    self.last_epoch = self.last_epoch.max(newest).saturating_add(LOST_EPOCHS);
                }
            }
        }
        None
    }

    fn begin_move(&mut self, instrument: InstrumentId, cell: u16) {
        let is_new = !self.pending.contains_key(&instrument);
        if is_new && self.plan_move(instrument, cell) == Ok(true) {
            self.last_epoch += 1;
            self.pending.insert(instrument, PendingMove { cell, epoch: self.last_epoch });
        }
    }

    fn end_move(&mut self, id: MoveId, refusal: Option<MoveRefusal>) -> Option<EndedMove> {
        let MoveId { instrument, epoch } = id;
        let PendingMove { cell, .. } =
            self.pending.get(&instrument).copied().filter(|pending| pending.epoch == epoch)?;
        self.pending.remove(&instrument);
        if refusal.is_none() && self.routes.map.has_cell(cell) {
            self.routes.map.assign(instrument, Placement { cell, epoch });
        }
        Some(EndedMove { instrument, cell, refusal })
    }

    fn join(&mut self, node: NodeId, start: u64, address: &str, now_ms: u64) {
        if self.routes.map.lacks(node) {
            return;
        }
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
            node.write(&mut out);
            out.put_u32(member.starts);
            out.put_u64(member.start);
            out.put_bool(member.is_up);
            out.put_u64(member.since_ms);
            write_address(&member.address, &mut out);
        }
        out.put_u32(self.last_epoch);
        out.put_u32(self.pending.len() as u32);
        for (instrument, pending) in &self.pending {
            out.put_u32(*instrument);
            out.put_u16(pending.cell);
            out.put_u32(pending.epoch);
        }
        out.put_u32(self.schedule.len() as u32);
        for (group, at_s) in &self.schedule {
            group.put(&mut out);
            out.put_u64(*at_s);
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
            let node = NodeId::read(&mut reader)?;
            let member = Member {
                starts: reader.u32("starts")?,
                start: reader.u64("start")?,
                is_up: reader.bool("is_up")?,
                since_ms: reader.u64("since_ms")?,
                address: read_address(&mut reader)?,
            };
            nodes.insert(node, member);
        }
        let (last_epoch, mut pending) = (reader.u32("last_epoch")?, BTreeMap::new());
        for _ in 0..reader.u32("pending_moves")? {
            let (instrument, cell) = (reader.u32("instrument")?, reader.u16("cell")?);
            if !routes.map.has_cell(cell) {
                return Err(DecodeError::invalid("cell", "does not exist"));
            }
            pending.insert(instrument, PendingMove { cell, epoch: reader.u32("epoch")? });
        }
        let mut schedule = BTreeMap::new();
        for _ in 0..reader.u32("schedule")? {
            let group = String::take("group", &mut reader)?;
            schedule.insert(group, reader.u64("at_s")?);
        }
        reader.finish("schedule")?;
        Ok(State { index, nodes, routes, pending, last_epoch, schedule })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{decode_batch, encode_batch};
    use crate::limits::ADDRESS_BYTES_MAX;
    use crate::network::Network;
    use nm_wire::Listing;
    use proptest::prelude::*;

    fn node() -> impl Strategy<Value = NodeId> {
        (prop::sample::select(Role::ALL), 0..4u16).prop_map(|(class, index)| class.node(index))
    }

    /// The addresses of a mediator that is added.
    fn listening(at: usize) -> Node {
        Node { address: format!("unix:/run/{at}").parse().unwrap(), replication: None }
    }

    fn leader() -> impl Strategy<Value = CellLeader> {
        let made = |(mediator, term, start)| CellLeader { mediator, term, start };
        (0..3u16, 1..5u32, 0..3u64).prop_map(made)
    }

    fn refusal() -> impl Strategy<Value = Option<MoveRefusal>> {
        prop::option::weighted(0.3, prop::sample::select(MoveRefusal::ALL))
    }

    fn listing() -> impl Strategy<Value = Listing> {
        (0..4u32, "[a-c]{0,2}", 0..3i64).prop_map(|(instrument, symbol, low)| Listing {
            instrument,
            symbol,
            tick: "1".to_string(),
            lot: "1".to_string(),
            currency: String::new(),
            low,
            high: 1,
            most: 1,
        })
    }

    /// The map of a network with an instrument master.
    fn map() -> InstrumentMap {
        let text = "[[instrument]]\nnumber = 9\nsymbol = \"a\"\ntick = \"1\"\nlot = \"1\"";
        let node = |class: &str| format!("[[{class}]]\naddress = \"unix:/{class}\"\n");
        let nodes = ["gateway", "router", "mediator", "processor"].map(node).concat();
        let network = Network::parse(&format!("{nodes}{text}")).unwrap();
        InstrumentMap::new(3).with_master(network.master)
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
            4 => (0..4u32, 1..6u32, refusal()).prop_map(|(instrument, epoch, refusal)| {
                Command::MoveEnded { id: MoveId { instrument, epoch }, refusal }
            }),
            1 => (node(), any::<bool>())
                .prop_map(|(node, is_drained)| Command::Drain { node, is_drained }),
            1 => (prop::sample::select(Role::ALL), 0..3usize)
                .prop_map(|(role, at)| Command::Add { role, node: listening(at) }),
            1 => (prop::sample::select(Role::ALL), 0..7u16)
                .prop_map(|(class, index)| Command::Remove(class.node(index))),
            1 => listing().prop_map(Command::List),
            1 => (0..4u32).prop_map(Command::Delist),
            1 => (0..80u64).prop_map(|at| {
                Command::Begun { group: (at % 70).to_string(), at_s: at / 7 }
            }),
            1 => prop::collection::vec((0..4u32, 0..3u16), 0..4).prop_map(|assigned| {
                let mut map = map();
                for (instrument, cell) in assigned {
                    map.assign(instrument, Placement { cell, epoch: 1 });
                }
                Command::RestoreMap(map)
            }),
        ]
    }

    proptest! {
        /// Batches are read back; replicas that begin at any saved state come to the same one;
        /// starts and the map's version never go back, and the map changes only when a move has
        /// ended, a node is drained or works again, one is added or removed, an instrument is
        /// listed or no more, or it is restored; something is listed; no instrument is in a cell
        /// that was removed, or on its way there.
        #[test]
        fn a_state_follows_from_its_commands(
            batches in prop::collection::vec(prop::collection::vec(command(), 0..4), 1..60),
            cuts in prop::collection::btree_set(0usize..60, 0..4),
        ) {
            let mut state = State::new(map());
            let mut reloaded = state.clone();
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
                    let moved = ended.filter(|ended| ended.refusal.is_none());
                    let changes = matches!(
                        command,
                        Command::RestoreMap(_)
                            | Command::Drain { .. }
                            | Command::Add { .. }
                            | Command::Remove(_)
                            | Command::List(_)
                            | Command::Delist(_)
                            | Command::Begun { .. }
                    );
                    prop_assert!(new.master().is_some_and(|it| it.listings().count() > 0));
                    prop_assert!(new == old || moved.is_some() || changes);
                    let has_cell = |at: &Placement| new.has_cell(at.cell);
                    prop_assert!(new.moved().values().all(has_cell));
                    prop_assert!(state.pending.values().all(|to| new.has_cell(to.cell)));
                    if let Some(EndedMove { instrument, cell, .. }) = moved {
                        let pending = before.pending[&instrument];
                        prop_assert_eq!(new.version(), old.version() + 1);
                        prop_assert_eq!(new.cell_of(instrument), cell);
                        prop_assert_eq!(new.epoch_of(instrument), pending.epoch);
                        prop_assert!(pending.epoch > old.epoch_of(instrument) || state.index > 0);
                    }
                    let epochs = state.pending.values().map(|pending| pending.epoch);
                    prop_assert!(epochs.max() <= Some(state.last_epoch));
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
            let mut state = State::new(map());
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
    fn a_move_changes_the_map_when_the_new_cell_has_the_instrument() {
        let mut state = State::new(InstrumentMap::new(2));
        let move_to = |instrument, cell| Command::Move { instrument, cell };
        let ended = |instrument, epoch, refusal| Command::MoveEnded {
            id: MoveId { instrument, epoch },
            refusal,
        };
        assert!(state.plan_move(0, 2).unwrap_err().to_string().contains("no cell 2"));
        assert_eq!(state.plan_move(0, 0), Ok(false));
        state.apply(&move_to(0, 1), 1);
        state.apply(&move_to(2, 1), 1);
        // It is under way already, and goes nowhere else meanwhile.
        assert_eq!(state.plan_move(0, 1), Ok(true));
        assert!(state.plan_move(0, 0).unwrap_err().to_string().contains("on its way to cell 1"));
        state.apply(&move_to(0, 1), 1);
        let pending = |cell, epoch| PendingMove { cell, epoch };
        let both = [(0, pending(1, 1)), (2, pending(1, 2))];
        assert_eq!(state.pending_moves().clone().into_iter().collect::<Vec<_>>(), both);
        for late in [ended(0, 2, None), ended(2, 1, None), ended(7, 1, None)] {
            assert_eq!(state.apply(&late, 1), None);
        }
        // The second one ends first, and the first one is refused.
        assert!(state.apply(&ended(2, 2, None), 1).is_some());
        assert_eq!((state.routes.map.cell_of(2), state.routes.map.version()), (1, 1));
        let refusal = Some(MoveRefusal::TooManyCellSessions);
        let refused = state.apply(&ended(0, 1, refusal), 1);
        assert_eq!(refused, Some(EndedMove { instrument: 0, cell: 1, refusal }));
        assert_eq!((state.routes.map.cell_of(0), state.routes.map.version()), (0, 1));
        assert_eq!(state.pending_moves().len(), 0);
    }

    #[test]
    fn a_mediator_is_added_once_and_removed_when_its_cell_is_empty() {
        let mut state = State::new(InstrumentMap::new(2));
        let role = Role::Mediator;
        let add = |at| Command::Add { role, node: listening(at) };
        let plan_add = |state: &State, node: &Node| state.plan_add(role, node);
        assert_eq!(plan_add(&state, &listening(0)), Ok(None));
        for _ in 0..2 {
            state.apply(&add(0), 1);
        }
        assert_eq!((state.routes.map.cells(), plan_add(&state, &listening(0))), (3, Ok(Some(2))));
        let other = "unix:/run/r".parse::<crate::link::Address>().unwrap().try_into().unwrap();
        let clash = Node { replication: Some(other), ..listening(0) };
        assert_eq!(plan_add(&state, &clash), Err(AddError::AddressTaken(role.node(2))));
        let long = format!("unix:/{}", "a".repeat(ADDRESS_BYTES_MAX));
        let long = Node { address: long.parse().unwrap(), replication: None };
        assert!(matches!(plan_add(&state, &long), Err(AddError::LongAddress(_))));
        // Instruments are there, or come.
        state.apply(&Command::Move { instrument: 0, cell: 2 }, 1);
        let full = RemoveError::HasInstruments { cell: 2, instruments: 1 };
        assert_eq!(state.plan_remove(role.node(2)), Err(full.clone()));
        let ended = |epoch| {
            let id = MoveId { instrument: 0, epoch };
            Command::MoveEnded { id, refusal: None }
        };
        state.apply(&ended(1), 1);
        state.apply(&Command::Remove(role.node(2)), 1);
        assert_eq!(
            (state.plan_remove(role.node(2)), state.routes.map.cell_count()),
            (Err(full), 3)
        );
        state.apply(&Command::Move { instrument: 0, cell: 1 }, 1);
        state.apply(&ended(2), 1);
        // What was known of it goes with it, and nothing late brings it back.
        let leader = CellLeader { mediator: 2, term: 3, start: 4 };
        state.apply(&Command::Leader { cell: 2, leader }, 1);
        let node = Role::Mediator.node(2);
        state.apply(&Command::Joined { node, start: 4, address: "a".to_string() }, 1);
        assert!(state.routes.leaders.contains_key(&2) && state.nodes.contains_key(&node));
        state.apply(&Command::Remove(role.node(2)), 1);
        assert!(state.routes.leaders.is_empty() && state.nodes.is_empty());
        state.apply(&Command::Leader { cell: 2, leader }, 1);
        assert!(state.routes.leaders.is_empty());
        assert_eq!(state.plan_move(0, 2), Err(MoveError::NoSuchCell { cell: 2, cells: 2 }));
        assert_eq!(state.plan_remove(role.node(2)), Err(RemoveError::NoSuchNode(role.node(2))));
        assert_eq!(state.plan_remove(role.node(1)), Err(RemoveError::Founder(role.node(1))));
        // Its addresses are free again, its number is not.
        state.apply(&add(0), 1);
        assert_eq!(plan_add(&state, &listening(0)), Ok(Some(3)));
        for at in 1..NODES_MAX {
            state.apply(&add(at), 1);
        }
        assert_eq!(usize::from(state.routes.map.cells()), NODES_MAX);
        assert_eq!(plan_add(&state, &listening(NODES_MAX)), Err(AddError::TooMany(role)));
        assert_eq!(State::load(&state.save()).unwrap(), state);
    }

    #[test]
    fn a_router_is_added_once_and_removed_and_cells_stay_as_they_are() {
        let mut state = State::new(InstrumentMap::new(2));
        let (role, router) = (Role::Router, Role::Router.node(1));
        let add = |at| Command::Add { role, node: listening(at) };
        for _ in 0..2 {
            state.apply(&add(0), 1);
        }
        let map = &state.routes.map;
        assert_eq!((map.version(), map.cells(), map.added(role).len()), (1, 2, 1));
        assert_eq!(state.plan_add(role, &listening(0)), Ok(Some(1)));
        // No node of another class can listen there.
        for role in [Role::Mediator, Role::Gateway, Role::Processor] {
            let taken = state.plan_add(role, &listening(0));
            assert_eq!(taken, Err(AddError::AddressTaken(router)));
        }
        let joined = Command::Joined { node: router, start: 4, address: "a".to_string() };
        state.apply(&joined, 1);
        assert!(state.nodes[&router].is_up);
        state.apply(&Command::Remove(router), 1);
        state.apply(&joined, 1);
        assert!(state.nodes.is_empty(), "nothing late brings it back");
        assert_eq!(state.plan_remove(role.node(0)), Err(RemoveError::Founder(role.node(0))));
        assert_eq!(state.plan_remove(router), Err(RemoveError::NoSuchNode(router)));
        assert_eq!(State::load(&state.save()).unwrap(), state);
        for at in 1..NODES_MAX {
            state.apply(&add(at), 1);
        }
        assert_eq!(state.routes.map.added(role).len(), NODES_MAX - 1);
        assert_eq!(state.plan_add(role, &listening(0)), Err(AddError::TooMany(role)));
    }

    /// Removed ones count: so many can be added, and no more, and a founder stays.
    #[test]
    fn processors_and_gateways_are_added_up_to_a_number() {
        for role in [Role::Processor, Role::Gateway] {
            let mut state = State::new(InstrumentMap::new(2));
            for at in 0..NODES_MAX - 1 {
                assert_eq!(state.plan_add(role, &listening(at)), Ok(None));
                state.apply(&Command::Add { role, node: listening(at) }, 1);
                assert_eq!(state.plan_add(role, &listening(at)), Ok(Some(1 + at as u16)));
            }
            state.apply(&Command::Remove(role.node(1)), 1);
            assert_eq!(state.plan_add(role, &listening(0)), Err(AddError::TooMany(role)));
            assert_eq!(state.plan_remove(role.node(0)), Err(RemoveError::Founder(role.node(0))));
            assert_eq!(state.plan_remove(role.node(1)), Err(RemoveError::NoSuchNode(role.node(1))));
            assert_eq!((state.routes.map.cells(), state.routes.map.cell_count()), (2, 2));
            assert_eq!(State::load(&state.save()).unwrap(), state);
        }
    }

    #[test]
    fn a_gateway_is_removed_when_it_is_drained_or_down() {
        let node = Role::Gateway.node(1);
        let mut state = State::new(InstrumentMap::new(2));
        state.apply(&Command::Add { role: node.class, node: listening(0) }, 1);
        assert_eq!(state.plan_remove(node), Ok(()), "it was never up");
        state.apply(&Command::Joined { node, start: 4, address: "a".to_string() }, 1);
        state.apply(&Command::Remove(node), 1);
        assert_eq!(state.plan_remove(node), Err(RemoveError::NotDrained(1)));
        let drained = |is_drained| Command::Drain { node, is_drained };
        state.apply(&drained(true), 1);
        assert_eq!(state.plan_remove(node), Ok(()));
        state.apply(&drained(false), 1);
        assert_eq!(state.plan_remove(node), Err(RemoveError::NotDrained(1)));
        state.apply(&Command::Left { node, start: 4 }, 1);
        state.apply(&drained(true), 1);
        state.apply(&Command::Remove(node), 1);
        assert_eq!(state.plan_remove(node), Err(RemoveError::NoSuchNode(node)));
        assert!(state.routes.map.drained().is_empty() && !state.nodes.contains_key(&node));
    }

    #[test]
    fn moves_that_a_restored_map_has_are_not_under_way_any_more() {
        let mut state = State::new(InstrumentMap::new(3));
        for instrument in [1, 2, 4] {
            state.apply(&Command::Move { instrument, cell: 0 }, 1);
        }
        let mut map = InstrumentMap::new(3);
        map.assign(1, Placement { cell: 0, epoch: 1 });
        map.assign(2, Placement { cell: 1, epoch: 9 });
        state.apply(&Command::RestoreMap(map), 1);
        assert_eq!(state.pending_moves().keys().copied().collect::<Vec<_>>(), [4]);
        assert_eq!((state.plan_move(1, 0), state.plan_move(1, 2)), (Ok(false), Ok(true)));
        assert_eq!(state.plan_move(2, 0), Ok(true), "it is asked for again, with a new number");
        state.apply(&Command::Move { instrument: 2, cell: 0 }, 1);
        assert!(state.pending[&2].epoch > 9);
    }

    #[test]
    fn moves_under_way_and_moved_instruments_have_limits() {
        let mut state = State::new(InstrumentMap::new(2));
        for instrument in 0..MOVES_PENDING_MAX as u32 {
            state.apply(&Command::Move { instrument: instrument * 2, cell: 1 }, 1);
        }
        assert_eq!(state.plan_move(1, 0), Err(MoveError::TooManyMoves));
        let mut map = InstrumentMap::new(2);
        for instrument in 0..MOVED_INSTRUMENTS_MAX as u32 {
            map.assign(instrument, Placement { cell: 0, epoch: 1 });
        }
        let mut state = State::new(InstrumentMap::new(2));
        state.apply(&Command::RestoreMap(map), 1);
        assert_eq!(state.plan_move(MOVED_INSTRUMENTS_MAX as u32 + 1, 0), Err(MoveError::MapFull));
        assert_eq!(state.plan_move(3, 1), Ok(true), "one that has moved can move again");
        state.apply(&Command::Move { instrument: 3, cell: 1 }, 1);
        assert!(state.pending[&3].epoch > LOST_EPOCHS, "lost moves may have had lower numbers");
    }
}
