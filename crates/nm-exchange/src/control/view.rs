//! What nodes see of each other, and what follows from it for control: who is up, who leads, and
//! what is to be written down.
//!
//! A gateway tells its router which processors it is linked to; a router tells all mediators that,
//! which gateways and mediators it is linked to, and who leads as far as it was told.

use std::collections::{BTreeMap, BTreeSet};

use nm_codec::{Fields, Meaningless};

use crate::network::{Network, Role};

use super::map::{CellLeader, Map, RoutingTable};
use super::state::{Command, State};

/// A node by class and index.
pub type NodeName = (Role, u16);

/// A node that nobody has been linked to for so long has left, ns.
pub const LEFT_NS: u64 = 500_000_000;

/// What a node sees of others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MembershipReport {
    /// Nodes that it is linked to, or that others told it of, with the numbers of their starts.
    pub nodes: BTreeMap<NodeName, u64>,
    /// Who leads, and the newest map that it knows.
    pub routes: RoutingTable,
}

impl MembershipReport {
    /// A view of nobody.
    pub fn new(cells: usize) -> MembershipReport {
        MembershipReport { nodes: BTreeMap::new(), routes: RoutingTable::new(cells) }
    }

    /// Its bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = (self.nodes.len() as u16).to_le_bytes().to_vec();
        for (node, start) in &self.nodes {
            write_node(*node, &mut out);
            out.extend_from_slice(&start.to_le_bytes());
        }
        self.routes.write(&mut out);
        out
    }

    /// The view whose bytes are exactly these.
    ///
    /// # Errors
    /// If they mean nothing.
    pub fn whole(bytes: &[u8]) -> Result<MembershipReport, Meaningless> {
        let mut fields = Fields(bytes);
        let mut nodes = BTreeMap::new();
        for _ in 0..fields.u16()? {
            let node = read_node(&mut fields)?;
            nodes.insert(node, fields.u64()?);
        }
        let routes = RoutingTable::read(&mut fields)?;
        if fields.0.is_empty() { Ok(MembershipReport { nodes, routes }) } else { Err(Meaningless) }
    }
}

/// Appends a node's class and index.
pub fn write_node((role, index): NodeName, out: &mut Vec<u8>) {
    out.push(role as u8);
    out.extend_from_slice(&index.to_le_bytes());
}

/// Reads them.
///
/// # Errors
/// If there is no such class.
pub fn read_node(from: &mut Fields<'_>) -> Result<NodeName, Meaningless> {
    let role = Role::ALL.get(usize::from(from.u8()?)).ok_or(Meaningless)?;
    Ok((*role, from.u16()?))
}

/// All that a replica of control sees.
#[derive(Debug)]
pub struct MembershipMonitor {
    network: Network,
    /// What it is itself, and is linked to.
    pub near: MembershipReport,
    /// By router.
    pub views: BTreeMap<usize, MembershipReport>,
    /// Nodes that are not seen though control has them as up, and since when, ns.
    missing: BTreeMap<NodeName, u64>,
}

impl MembershipMonitor {
    /// Sees nobody yet.
    pub fn new(network: &Network) -> MembershipMonitor {
        let (views, missing) = Default::default();
        MembershipMonitor {
            network: network.clone(),
            near: MembershipReport::new(network.mediator.len()),
            views,
            missing,
        }
    }

    fn all(&self) -> impl Iterator<Item = &MembershipReport> {
        std::iter::once(&self.near).chain(self.views.values())
    }

    /// What is to be written down, if anything, so that the state is what is seen at a time.
    pub fn wishes(&mut self, state: &State, now_ns: u64) -> Vec<Command> {
        let mut seen: BTreeMap<NodeName, BTreeSet<u64>> = BTreeMap::new();
        for (node, start) in self.all().flat_map(|view| &view.nodes) {
            seen.entry(*node).or_default().insert(*start);
        }
        let mut wishes = vec![];
        for (role, index, placed) in self.network.all() {
            let node = (role, index as u16);
            let known = state.nodes().get(&node);
            match (seen.get(&node), known) {
                // Two starts at once: one of those who look has not noticed the end of the other.
                (Some(starts), _) if starts.len() > 1 => {}
                (Some(starts), _) => {
                    self.missing.remove(&node);
                    let start = starts.first().copied().unwrap_or_default();
                    if known.is_none_or(|known| !known.is_up || known.start != start) {
                        let address = placed.address.to_string();
                        wishes.push(Command::Joined { node, start, address });
                    }
                }
                (None, Some(known)) if known.is_up => {
                    let since_ns = *self.missing.entry(node).or_insert(now_ns);
                    if now_ns.saturating_sub(since_ns) > LEFT_NS {
                        wishes.push(Command::Left { node, start: known.start });
                    }
                }
                (None, _) => {}
            }
        }
        wishes.extend(self.leaders(state));
        let maps = self.all().map(|view| &view.routes.map);
        if let Some(newest) = maps.max_by_key(|map| map.epoch())
            && state.lacks(newest)
        {
            wishes.push(Command::Restore(newest.clone()));
        }
        wishes
    }

    /// Leaders that are to be written down: of those that are claimed, the one with the highest
    /// epoch, unless control knows better.
    fn leaders(&self, state: &State) -> Vec<Command> {
        let mut claims: BTreeMap<u16, CellLeader> = BTreeMap::new();
        for (cell, leading) in self.all().flat_map(|view| &view.routes.leaders) {
            let claim = claims.entry(*cell).or_insert(*leading);
            if leading.epoch > claim.epoch {
                *claim = *leading;
            }
        }
        claims.retain(|cell, leading| state.believes(*cell, leading));
        claims.into_iter().map(|(cell, leading)| Command::Leads { cell, leading }).collect()
    }

    /// Whether a map that is seen is newer than this one.
    pub fn knows_newer(&self, map: &Map) -> bool {
        self.all().any(|view| view.routes.map.epoch() > map.epoch())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Node;

    fn watch() -> MembershipMonitor {
        let mut port = 5000;
        MembershipMonitor::new(&Network::new("1-2-2-1".parse().unwrap(), |_, _| {
            port += 1;
            let address = format!("127.0.0.1:{port}").parse().unwrap();
            Node { address, replication: None }
        }))
    }

    /// Writes down what is wished until nothing is; how much that was.
    fn settle(watch: &mut MembershipMonitor, state: &mut State, now_ns: u64) -> usize {
        let mut count = 0;
        for _ in 0..5 {
            let wishes = watch.wishes(state, now_ns);
            if wishes.is_empty() {
                return count;
            }
            count += wishes.len();
            for wish in &wishes {
                state.apply(wish, now_ns / 1_000_000);
            }
        }
        panic!("wishes without end");
    }

    #[test]
    fn what_is_seen_is_written_down_once() {
        let (mut watch, mut state) = (watch(), State::new(2));
        let (m0, p0, g0) = ((Role::Mediator, 0), (Role::Processor, 0), (Role::Gateway, 0));
        watch.near.nodes = BTreeMap::from([(m0, 1), ((Role::Router, 0), 2), (p0, 3)]);
        let mut view = MembershipReport::new(2);
        view.nodes = BTreeMap::from([(m0, 1), (p0, 3), (g0, 4)]);
        view.routes.leaders.insert(0, CellLeader { mediator: 0, epoch: 17, start: 1 });
        assert_eq!(MembershipReport::whole(&view.bytes()), Ok(view.clone()));
        watch.views.insert(0, view.clone());
        assert_eq!(settle(&mut watch, &mut state, 0), 5);
        assert_eq!(state.nodes()[&g0].starts, 1);
        // A router that is behind says what control knows better.
        view.routes.leaders.insert(0, CellLeader { mediator: 0, epoch: 9, start: 1 });
        watch.views.insert(1, view.clone());
        assert_eq!(settle(&mut watch, &mut state, 0), 0);
        // Its end is noticed by one before the other: nothing is written down meanwhile.
        watch.views.get_mut(&0).unwrap().nodes.insert(g0, 44);
        assert_eq!(settle(&mut watch, &mut state, 1), 0);
        watch.views.get_mut(&1).unwrap().nodes.insert(g0, 44);
        assert_eq!(settle(&mut watch, &mut state, 2), 1);
        assert_eq!((state.nodes()[&g0].starts, state.nodes()[&g0].start), (2, 44));
        // Nobody sees it: after a while it has left.
        for view in watch.views.values_mut() {
            view.nodes.remove(&g0);
        }
        assert_eq!(settle(&mut watch, &mut state, 10), 0);
        assert_eq!(settle(&mut watch, &mut state, 11 + LEFT_NS), 1);
        assert!(!state.nodes()[&g0].is_up);
    }

    #[test]
    fn a_control_group_that_lost_its_memory_gets_the_map_back() {
        let (mut watch, mut state) = (watch(), State::new(2));
        let mut map = Map::new(2);
        map.assign(5, 0);
        let mut view = MembershipReport::new(2);
        view.routes.map = map.clone();
        watch.views.insert(1, view);
        assert!(watch.knows_newer(&state.routes().map));
        assert_eq!(settle(&mut watch, &mut state, 0), 1);
        assert_eq!(state.routes().map, map);
    }
}
