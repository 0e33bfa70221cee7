//! Which cell an instrument belongs to, and which mediator leads each cell.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nm_book::order::InstrumentId;
use nm_codec::{DecodeError, Reader};
pub use nm_wire::CellLeader;
use nm_wire::routing_table::map_version;
use nm_wire::{ClassNodes, LedCell, Listing, MapContent, Moved, Value};

use crate::firms::{Firm, Firms};
use crate::limits::MOVED_INSTRUMENTS_MAX;
use crate::master::Master;
use crate::network::{AddedNode, NODES_MAX, Network, Node, NodeId, PerClass, Role};

use super::added::{addresses_of, node_of};

/// Where an instrument that has moved is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// Its cell.
    pub cell: u16,
    /// The move that brought it there.
    pub epoch: u32,
}

/// Which cell each instrument belongs to: by the rule `instrument % active cells`, but for those
/// that have moved; which mediators and gateways are to carry nothing; and which nodes were added
/// to those that the network began with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstrumentMap {
    version: u32,
    /// Over how many cells the rule spreads instruments.
    active: u16,
    classes: PerClass<NodeClass>,
    moved: BTreeMap<InstrumentId, Placement>,
    drained: BTreeSet<NodeId>,
    /// What may be traded; anything if there is none.
    master: Option<Arc<Master>>,
    /// Whose sessions may connect; any session if there are no firms.
    firms: Option<Arc<Firms>>,
}

/// The nodes of a class, as the map has them.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NodeClass {
    /// How many the network began with.
    founded: u16,
    /// Those that were added.
    added: Vec<AddedNode>,
}

impl InstrumentMap {
    /// The map that a network begins with: nothing has moved, version 0.
    pub fn new(cells: usize) -> InstrumentMap {
        InstrumentMap::with_spares(cells, 0)
    }

    /// The map that a network of this file begins with.
    pub fn of(network: &Network) -> InstrumentMap {
        let founders = network.founders();
        let mut map = InstrumentMap::with_spares(founders, network.spare_mediators);
        map.classes = PerClass::new(|class| {
            let (of, founded) = (&network.classes[class], network.founders_of(class));
            let added = of.nodes.iter().zip(0..).skip(founded).map(|(node, index)| AddedNode {
                node: node.clone(),
                is_removed: of.removed.contains(&index),
            });
            NodeClass { founded: founded as u16, added: added.collect() }
        });
        map.with_master(network.master.clone()).with_firms(network.firms.clone())
    }

    /// The same as [`InstrumentMap::new`], where the last `spares` cells have no instruments at
    /// first; with one node of each other class.
    pub fn with_spares(cells: usize, spares: usize) -> InstrumentMap {
        let count = |cells: usize| cells.clamp(1, 1 << 15) as u16;
        let mut map = InstrumentMap {
            version: 0,
            active: count(cells.saturating_sub(spares)),
            classes: PerClass::new(|_| NodeClass { founded: 1, added: vec![] }),
            moved: BTreeMap::new(),
            drained: BTreeSet::new(),
            master: None,
            firms: None,
        };
        map.classes[Role::Mediator].founded = count(cells);
        map
    }

    /// Rises with each change.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// How many cells there ever were: their numbers are below it.
    pub fn cells(&self) -> u16 {
        self.founded(Role::Mediator) + self.added(Role::Mediator).len() as u16
    }

    /// Whether there is a cell of this number, and its mediator was not removed.
    pub fn has_cell(&self, cell: u16) -> bool {
        !self.lacks(Role::Mediator.node(cell))
    }

    /// How many cells there are.
    pub fn cell_count(&self) -> usize {
        (0..self.cells()).filter(|cell| self.has_cell(*cell)).count()
    }

    /// How many nodes of a class the network began with: the first ones.
    pub fn founded(&self, role: Role) -> u16 {
        self.classes[role].founded
    }

    /// The nodes of a class that were added, in the order of their numbers.
    pub fn added(&self, role: Role) -> &[AddedNode] {
        &self.classes[role].added
    }

    /// Whether any node was ever added.
    pub fn has_added(&self) -> bool {
        self.classes.iter().any(|(_, class)| !class.added.is_empty())
    }

    /// Whether a node was removed, or was never added.
    pub fn lacks(&self, node: NodeId) -> bool {
        let at = node.index.checked_sub(self.founded(node.class));
        let added = |at: u16| self.added(node.class).get(usize::from(at));
        at.is_some_and(|at| added(at).is_none_or(|it| it.is_removed))
    }

    /// Adds a node, a mediator with its cell, in the next version.
    pub fn add(&mut self, role: Role, node: Node) {
        self.classes[role].added.push(AddedNode { node, is_removed: false });
        self.version += 1;
    }

    /// Removes a node that was added, a mediator with its cell, in the next version.
    pub fn remove(&mut self, node: NodeId) {
        let at = node.index.checked_sub(self.founded(node.class)).map(usize::from);
        let class = &mut self.classes[node.class];
        let added = at.and_then(|at| class.added.get_mut(at));
        let is_new = added.is_some_and(|it| !std::mem::replace(&mut it.is_removed, true));
        if is_new {
            self.version += 1;
            self.drained.remove(&node);
        }
    }

    /// Whether the same nodes were added to a network, and removed from it, as this map has.
    pub fn has_nodes_of(&self, network: &Network) -> bool {
        Role::ALL.iter().copied().all(|role| {
            let removed = self.added(role).iter().filter(|it| it.is_removed).count();
            network.added_counts(role) == (self.added(role).len(), removed)
        })
    }

    /// A network with the nodes that were added: the same one if it has them.
    pub fn extended<'a>(&self, network: &'a Network) -> Cow<'a, Network> {
        if self.has_nodes_of(network) {
            return Cow::Borrowed(network);
        }
        let mut extended = network.clone();
        for role in Role::ALL.iter().copied() {
            extended.set_added(role, self.added(role));
        }
        Cow::Owned(extended)
    }

    /// Instruments that have moved, also those that are back, with their cells.
    pub fn moved(&self) -> &BTreeMap<InstrumentId, Placement> {
        &self.moved
    }

    /// Instruments in other cells than the rule gives.
    pub fn exceptions(&self) -> impl Iterator<Item = (InstrumentId, u16)> {
        let all = self.moved.iter().map(|(instrument, at)| (*instrument, at.cell));
        all.filter(|(instrument, cell)| *cell != self.rule(*instrument))
    }

    /// The cell of an instrument.
    pub fn cell_of(&self, instrument: InstrumentId) -> u16 {
        self.moved.get(&instrument).map_or_else(|| self.rule(instrument), |at| at.cell)
    }

    /// The last move of an instrument; zero for none.
    pub fn epoch_of(&self, instrument: InstrumentId) -> u32 {
        self.moved.get(&instrument).map_or(0, |at| at.epoch)
    }

    fn rule(&self, instrument: InstrumentId) -> u16 {
        (instrument % u32::from(self.active)) as u16
    }

    /// Assigns an instrument to a cell by a move, in the next version.
    pub fn assign(&mut self, instrument: InstrumentId, at: Placement) {
        assert!(self.has_cell(at.cell), "there is no cell {}", at.cell);
        self.version += 1;
        self.moved.insert(instrument, at);
    }

    /// Nodes that are to carry nothing, so that they can be stopped.
    pub fn drained(&self) -> &BTreeSet<NodeId> {
        &self.drained
    }

    /// Whether a node is one that can be drained: a mediator or a gateway.
    pub fn can_be_drained(&self, node: NodeId) -> bool {
        match node.class {
            Role::Mediator | Role::Gateway => !self.lacks(node),
            Role::Router | Role::Processor => false,
        }
    }

    /// Lets a node carry nothing, or work again, in the next version; none if that is so.
    pub fn set_drained(&mut self, node: NodeId, is_drained: bool) {
        assert!(self.can_be_drained(node), "{node} cannot be drained");
        let is_changed = match is_drained {
            true => self.drained.insert(node),
            false => self.drained.remove(&node),
        };
        self.version += u32::from(is_changed);
    }

    /// What may be traded; anything if there is none.
    pub fn master(&self) -> Option<&Master> {
        self.master.as_deref()
    }

    /// The same map with an instrument master, as that of a network which begins with it.
    pub fn with_master(self, master: Option<Arc<Master>>) -> InstrumentMap {
        InstrumentMap { master, ..self }
    }

    /// Lists an instrument, or changes how it is listed, in the next version, if that is possible.
    pub fn list(&mut self, listing: &Listing) {
        let is_changed = self.master.as_mut().is_some_and(|it| Arc::make_mut(it).list(listing));
        self.version += u32::from(is_changed);
    }

    /// Lists an instrument no more, in the next version, if that is possible.
    pub fn delist(&mut self, instrument: InstrumentId) {
        let master = self.master.as_mut();
        let is_changed = master.is_some_and(|it| Arc::make_mut(it).delist(instrument));
        self.version += u32::from(is_changed);
    }

    /// Whose sessions may connect; any session if there are no firms.
    pub fn firms(&self) -> Option<&Arc<Firms>> {
        self.firms.as_ref()
    }

    /// The same map with firms, as that of a network which begins with them.
    pub fn with_firms(self, firms: Option<Arc<Firms>>) -> InstrumentMap {
        InstrumentMap { firms, ..self }
    }

    /// Adds a firm or changes it, in the next version, if that is possible.
    pub fn set_firm(&mut self, firm: &Firm, now_ms: u64) {
        let firms = self.firms.as_mut();
        let is_changed = firms.is_some_and(|it| Arc::make_mut(it).set(firm, now_ms));
        self.version += u32::from(is_changed);
    }

    /// Removes a firm, in the next version, if that is possible.
    pub fn remove_firm(&mut self, number: u32, now_ms: u64) {
        let firms = self.firms.as_mut();
        let is_changed = firms.is_some_and(|it| Arc::make_mut(it).remove(number, now_ms));
        self.version += u32::from(is_changed);
    }

    /// Whether another map of the same network is newer.
    pub fn is_older_than(&self, other: &InstrumentMap) -> bool {
        let role = Role::Mediator;
        let is_same = (other.founded(role), other.active) == (self.founded(role), self.active);
        is_same && other.version > self.version
    }

    /// Takes over a newer map of the same network; whether it was newer.
    pub fn update(&mut self, other: &InstrumentMap) -> bool {
        let is_older = self.is_older_than(other);
        if is_older {
            self.clone_from(other);
        }
        is_older
    }

    /// What messages and the log have of it.
    pub fn content(&self) -> MapContent {
        let added = |AddedNode { node, is_removed }: &AddedNode| nm_wire::AddedNode {
            addresses: addresses_of(node),
            is_removed: *is_removed,
        };
        let class = |(_, class): (Role, &NodeClass)| ClassNodes {
            founded: class.founded,
            added: class.added.iter().map(added).collect(),
        };
        let moved = |(instrument, at): (&InstrumentId, &Placement)| Moved {
            instrument: *instrument,
            cell: at.cell,
            epoch: at.epoch,
        };
        MapContent {
            version: self.version,
            active_cells: self.active,
            classes: self.classes.iter().map(class).collect(),
            moved: self.moved.iter().map(moved).collect(),
            drained: self.drained.iter().copied().collect(),
            listed: self.master().map(|master| master.listings().cloned().collect()),
            firms: self.firms().map(|firms| firms.table()),
        }
    }

    /// The map of a content.
    ///
    /// # Errors
    /// If no map has it.
    pub fn of_content(content: &MapContent) -> Result<InstrumentMap, DecodeError> {
        let MapContent { classes, moved, drained, listed, firms, .. } = content;
        let (version, active) = (content.version, content.active_cells);
        let mut map = InstrumentMap { version, active, ..InstrumentMap::new(1) };
        if classes.len() != Role::ALL.len() {
            return Err(DecodeError::invalid("classes", "are not those of nodes"));
        }
        for ((_, class), known) in map.classes.iter_mut().zip(classes) {
            class.founded = known.founded;
            if class.founded == 0 || class.founded > 1 << 15 {
                return Err(DecodeError::invalid("founders", "is not a number of nodes"));
            }
            class.added = added_of(&known.added)?;
        }
        if active == 0 || active > map.founded(Role::Mediator) {
            return Err(DecodeError::invalid("active_cells", "is not a number of cells"));
        }
        if moved.len() > MOVED_INSTRUMENTS_MAX {
            return Err(DecodeError::invalid("moved", "are more than a map may have"));
        }
        for Moved { instrument, cell, epoch } in moved {
            if *cell >= map.cells() {
                return Err(DecodeError::invalid("cell", "does not exist"));
            }
            map.moved.insert(*instrument, Placement { cell: *cell, epoch: *epoch });
        }
        for node in drained {
            if !map.can_be_drained(*node) {
                return Err(DecodeError::invalid("drained", "is no node that can be drained"));
            }
            map.drained.insert(*node);
        }
        let is_none = |_| DecodeError::invalid("listed", "are no instrument master");
        let master = listed.clone().map(Master::of).transpose().map_err(is_none)?;
        map.master = master.map(Arc::new);
        let is_none = |_| DecodeError::invalid("firms", "are none of a network");
        let firms = firms.as_ref().map(Firms::of_table).transpose().map_err(is_none)?;
        map.firms = firms.map(Arc::new);
        Ok(map)
    }

    /// Appends its bytes.
    pub fn write(&self, out: &mut Vec<u8>) {
        self.content().put(out);
    }

    /// Reads what [`InstrumentMap::write`] appended.
    ///
    /// # Errors
    /// If the bytes are not a map.
    pub fn read(reader: &mut Reader<'_>) -> Result<InstrumentMap, DecodeError> {
        InstrumentMap::of_content(&MapContent::take("map", reader)?)
    }
}

/// The nodes of a class that were added.
fn added_of(added: &[nm_wire::AddedNode]) -> Result<Vec<AddedNode>, DecodeError> {
    if added.len() > NODES_MAX {
        return Err(DecodeError::invalid("added", "are more than a network has"));
    }
    let one = |it: &nm_wire::AddedNode| {
        Ok(AddedNode { node: node_of(&it.addresses)?, is_removed: it.is_removed })
    };
    added.iter().map(one).collect()
}

/// Whether another one that claims to lead a cell is the leader from now on. Terms rise, except
/// where all replicas lost their memory at once: then the known leader is no longer running.
pub fn is_superseded(
    known: &CellLeader,
    other: &CellLeader,
    is_running: impl FnOnce(&CellLeader) -> bool,
) -> bool {
    other.term > known.term || (other != known && !is_running(known))
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
    pub fn new(map: InstrumentMap) -> RoutingTable {
        RoutingTable { map, leaders: BTreeMap::new() }
    }

    /// The leaders as messages have them.
    pub fn led_cells(&self) -> Vec<LedCell> {
        let led = |(cell, leader): (&u16, &CellLeader)| LedCell { cell: *cell, leader: *leader };
        self.leaders.iter().map(led).collect()
    }

    /// The message that has it.
    pub fn message(&self) -> nm_wire::RoutingTable {
        nm_wire::RoutingTable { map: self.map.content(), leaders: self.led_cells() }
    }

    /// The routing table of a map and leaders.
    ///
    /// # Errors
    /// If it is none.
    pub fn of(map: &MapContent, leaders: &[LedCell]) -> Result<RoutingTable, DecodeError> {
        let leaders = leaders.iter().map(|led| (led.cell, led.leader)).collect();
        Ok(RoutingTable { map: InstrumentMap::of_content(map)?, leaders })
    }

    /// Appends its bytes.
    pub fn write(&self, out: &mut Vec<u8>) {
        self.message().put(out);
    }

    /// Reads what [`RoutingTable::write`] appended.
    ///
    /// # Errors
    /// If the bytes are not a routing table.
    pub fn read(reader: &mut Reader<'_>) -> Result<RoutingTable, DecodeError> {
        let nm_wire::RoutingTable { map, leaders } = Value::take("routes", reader)?;
        RoutingTable::of(&map, &leaders)
    }

    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        nm_wire::encode(&self.message())
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

    /// The map of the routing table that these bytes are, if it is newer than the known one. Each
    /// node has each map from several others, so most are not, and only their versions are read.
    ///
    /// # Errors
    /// If they are not a routing table, as far as they are read.
    pub fn decode_newer_map(
        bytes: &[u8],
        known: &InstrumentMap,
    ) -> Result<Option<InstrumentMap>, DecodeError> {
        if map_version(bytes)? <= known.version {
            return Ok(None);
        }
        let map = RoutingTable::decode(bytes)?.map;
        Ok(known.is_older_than(&map).then_some(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn instruments_that_have_moved_do_not_follow_the_rule() {
        let mut map = InstrumentMap::new(4);
        let exceptions = |map: &InstrumentMap| map.exceptions().collect::<Vec<_>>();
        assert_eq!((map.cell_of(1_000_003), map.epoch_of(1_000_003)), (3, 0));
        map.assign(1_000_003, Placement { cell: 1, epoch: 5 });
        assert_eq!((map.cell_of(1_000_003), map.cell_of(7), map.version()), (1, 3, 1));
        assert_eq!(exceptions(&map), [(1_000_003, 1)]);
        map.assign(1_000_003, Placement { cell: 3, epoch: 6 });
        assert_eq!((map.cell_of(1_000_003), map.epoch_of(1_000_003), map.version()), (3, 6, 2));
        assert_eq!(exceptions(&map), []);
        let old = InstrumentMap::new(4);
        assert!(!map.update(&old) && map.clone().version() == 2);
        assert!(InstrumentMap::new(4).update(&map) && !InstrumentMap::new(5).update(&map));
        assert!(!InstrumentMap::with_spares(4, 1).update(&map));
    }

    #[test]
    fn each_change_of_the_drained_nodes_is_a_version() {
        let mut map = InstrumentMap::new(3);
        let mut change = |node, is_drained| {
            map.set_drained(node, is_drained);
            (map.version(), map.drained().iter().copied().collect::<Vec<_>>())
        };
        let (m1, g0) = (Role::Mediator.node(1), Role::Gateway.node(0));
        assert_eq!(change(m1, false), (0, vec![]));
        assert_eq!(change(m1, true), (1, vec![m1]));
        assert_eq!(change(m1, true), (1, vec![m1]));
        assert_eq!(change(g0, true), (2, vec![g0, m1]));
        assert_eq!(change(m1, false), (3, vec![g0]));
        map.add(Role::Gateway, node("a"));
        let can = [Role::Mediator.node(2), Role::Gateway.node(1)];
        let cannot = [Role::Mediator.node(3), Role::Gateway.node(2), Role::Router.node(0)];
        assert!(can.iter().all(|node| map.can_be_drained(*node)));
        assert!(!cannot.iter().any(|node| map.can_be_drained(*node)));
    }

    fn node(name: &str) -> Node {
        let replica = |text: String| text.parse::<crate::link::Address>().unwrap();
        Node {
            address: format!("unix:/{name}").parse().unwrap(),
            replication: Some(replica(format!("unix:/{name}-r")).try_into().unwrap()),
        }
    }

    #[test]
    fn a_cell_that_is_added_has_the_next_number_and_keeps_it_when_it_is_removed() {
        let mut map = InstrumentMap::with_spares(3, 1);
        let first = map.clone();
        map.add(Role::Mediator, node("a"));
        map.add(Role::Mediator, node("b"));
        assert_eq!((map.version(), map.cells(), map.cell_count()), (2, 5, 5));
        assert_eq!(map.founded(Role::Mediator), 3);
        assert_eq!(map.cell_of(4), 0, "the rule stays as it was");
        map.assign(4, Placement { cell: 3, epoch: 1 });
        map.set_drained(Role::Mediator.node(3), true);
        for index in [3, 3, 0, 9] {
            map.remove(Role::Mediator.node(index));
        }
        assert_eq!((map.version(), map.cells(), map.cell_count()), (5, 5, 4));
        assert!(map.drained().is_empty() && !map.can_be_drained(Role::Mediator.node(3)));
        let has = |cell| map.has_cell(cell);
        assert_eq!([0, 2, 3, 4, 5].map(has), [true, true, false, true, false]);
        // It is a map of the same network, and that has all of the mediators.
        let mut old = first.clone();
        assert!(old.update(&map) && old == map);
        let counts = "1-1-3-1".parse().unwrap();
        let network = Network::new(counts, |id| node(&id.file_name()));
        let network = Network { spare_mediators: 1, ..network };
        let extended = map.extended(&network);
        assert_eq!(extended.nodes(Role::Mediator)[3..], [node("a"), node("b")]);
        assert_eq!((extended.founders(), extended.cells().last()), (3, Some(4)));
        assert!(extended.is_removed(Role::Mediator.node(3)));
        assert!(matches!(first.extended(&network), Cow::Borrowed(same) if *same == network));
        // Who begins with a newer file has the same mediators.
        let of_file = InstrumentMap::of(&extended);
        assert_eq!(
            (of_file.added(Role::Mediator), of_file.version()),
            (map.added(Role::Mediator), 0)
        );
        assert_eq!(map.extended(&extended), Cow::Borrowed(&*extended));
        let mut bytes = vec![];
        map.write(&mut bytes);
        assert_eq!(InstrumentMap::read(&mut Reader::new(&bytes)), Ok(map));
    }

    #[test]
    fn spare_cells_have_no_instruments_at_first() {
        let mut map = InstrumentMap::with_spares(4, 2);
        assert_eq!((map.cells(), map.cell_of(2), map.cell_of(3)), (4, 0, 1));
        map.assign(2, Placement { cell: 3, epoch: 1 });
        assert_eq!(map.cell_of(2), 3);
        assert_eq!(InstrumentMap::with_spares(2, 7).cell_of(9), 0, "one cell is always active");
    }

    #[test]
    fn a_leader_is_superseded_by_a_later_term_or_when_it_has_ended() {
        let leader = |mediator, term| CellLeader { mediator, term, start: 9 };
        let known = leader(1, 7);
        assert!(!is_superseded(&known, &leader(0, 5), |_| true), "an older term");
        assert!(is_superseded(&known, &leader(0, 8), |_| true));
        assert!(is_superseded(&known, &leader(0, 1), |_| false), "all replicas lost their memory");
        assert!(!is_superseded(&known, &known, |_| false), "the same leader");
    }

    fn drained() -> impl Strategy<Value = NodeId> {
        prop_oneof![
            (0..5u16).prop_map(|index| Role::Mediator.node(index)),
            Just(Role::Gateway.node(0)),
        ]
    }

    /// A routing table of a network that began with so many cells.
    fn table(cells: usize) -> impl Strategy<Value = RoutingTable> {
        let leader = (any::<u16>(), any::<u32>(), any::<u64>())
            .prop_map(|(mediator, term, start)| CellLeader { mediator, term, start });
        let assigned = prop::collection::vec((any::<u32>(), 0..cells as u16), 0..20);
        let leaders = prop::collection::btree_map(any::<u16>(), leader, 0..5);
        let drained = prop::collection::vec(drained(), 0..4);
        let added = ("[a-zé]{1,9}", prop::sample::select(Role::ALL));
        let added = prop::collection::vec(added, 0..4);
        let made = move |(assigned, leaders, drained, added)| {
            let mut map = InstrumentMap::new(cells);
            let added: Vec<(String, Role)> = added;
            added.iter().for_each(|(name, role)| map.add(*role, node(name)));
            let assigned: Vec<(InstrumentId, u16)> = assigned;
            for (instrument, cell) in assigned {
                map.assign(instrument, Placement { cell, epoch: instrument / 2 });
            }
            let drained: Vec<NodeId> = drained;
            drained.into_iter().for_each(|node| map.set_drained(node, true));
            RoutingTable { map, leaders }
        };
        (assigned, leaders, drained, added).prop_map(made)
    }

    proptest! {
        #[test]
        fn a_routing_table_is_read_back(
            table in table(5),
            noise in prop::collection::vec(any::<u8>(), 0..60),
        ) {
            let mut bytes = table.encode();
            prop_assert_eq!(RoutingTable::decode(&bytes), Ok(table));
            bytes.push(0);
            prop_assert!(RoutingTable::decode(&bytes).is_err());
            let _ = RoutingTable::decode(&noise);
        }

        /// Where the version is newer, what is refused is the same as well.
        #[test]
        fn a_map_that_is_read_only_if_it_is_newer_is_that_of_the_table(
            known in (5..7usize).prop_flat_map(table),
            table in table(5),
            change in any::<prop::sample::Index>(),
            to in any::<u8>(),
        ) {
            let known = known.map;
            let mut bytes = table.encode();
            let newer = |bytes: &[u8]| RoutingTable::decode_newer_map(bytes, &known);
            let map = table.map;
            prop_assert_eq!(newer(&bytes), Ok(known.is_older_than(&map).then_some(map)));
            let at = change.index(bytes.len());
            bytes[at] = to;
            match (RoutingTable::decode(&bytes), newer(&bytes)) {
                (Ok(table), read) => {
                    let map = table.map;
                    prop_assert_eq!(read, Ok(known.is_older_than(&map).then_some(map)));
                }
                (Err(error), Err(read)) => prop_assert_eq!(error, read),
                (Err(_), Ok(read)) => prop_assert_eq!(read, None),
            }
            prop_assert!(newer(&bytes[..3]).is_err());
        }
    }
}
