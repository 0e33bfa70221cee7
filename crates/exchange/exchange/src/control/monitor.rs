//! What control's leader logs: the difference between the reported membership and the state.

use std::collections::{BTreeMap, BTreeSet};

use crate::network::{Network, Node, NodeId};

use super::added::share_an_address;
use super::command::Command;
use super::membership::MembershipReport;
use super::routing::{CellLeader, InstrumentMap};
use super::state::State;

/// A node that no node has been connected to for so long has left, ns.
pub const LEFT_NS: u64 = 500_000_000;

/// All that a replica of control knows of the membership.
#[derive(Debug)]
pub struct MembershipMonitor {
    network: Network,
    /// Its own node, and the nodes that it is connected to.
    pub own: MembershipReport,
    /// By router.
    pub reports: BTreeMap<u16, MembershipReport>,
    /// Nodes that are not reported though they are up in the state, and since when, ns.
    missing: BTreeMap<NodeId, u64>,
}

impl MembershipMonitor {
    /// Has no reports yet.
    pub fn new(network: &Network) -> MembershipMonitor {
        MembershipMonitor {
            network: network.clone(),
            own: MembershipReport::new(InstrumentMap::of(network)),
            reports: BTreeMap::new(),
            missing: BTreeMap::new(),
        }
    }

    fn all(&self) -> impl Iterator<Item = &MembershipReport> {
        std::iter::once(&self.own).chain(self.reports.values())
    }

    /// The commands that bring the state up to date with what is reported at a time.
    pub fn pending_commands(&mut self, state: &State, now_ns: u64) -> Vec<Command> {
        let mut commands = self.joined_and_left(state, now_ns);
        commands.extend(self.leaders(state));
        let maps = self.all().map(|report| &report.routes.map);
        if let Some(newest) = maps.max_by_key(|map| map.version())
            && state.routes().map.is_older_than(newest)
        {
            commands.push(Command::RestoreMap(newest.clone()));
        }
        commands
    }

    fn joined_and_left(&mut self, state: &State, now_ns: u64) -> Vec<Command> {
        let mut reported: BTreeMap<NodeId, BTreeSet<u64>> = BTreeMap::new();
        for (node, start) in self.all().flat_map(|report| &report.nodes) {
            reported.entry(*node).or_default().insert(*start);
        }
        let mut commands = vec![];
        for (node, configured) in state.routes().map.extended(&self.network).all() {
            let known = state.nodes().get(&node);
            match (reported.get(&node), known) {
                // Two starts at once: one reporter has not noticed the end of the older one yet.
                (Some(starts), _) if starts.len() > 1 => {}
                (Some(starts), _) => {
                    self.missing.remove(&node);
                    let start = starts.first().copied().unwrap_or_default();
                    if known.is_none_or(|known| !known.is_up || known.start != start) {
                        let address = configured.address.to_string();
                        commands.push(Command::Joined { node, start, address });
                    }
                }
                (None, Some(known)) if known.is_up => {
                    let since_ns = *self.missing.entry(node).or_insert(now_ns);
                    if now_ns.saturating_sub(since_ns) > LEFT_NS {
                        commands.push(Command::Left { node, start: known.start });
                    }
                }
                (None, _) => {}
            }
        }
        commands
    }

    /// Leaders that are to be logged: of those that are reported for a cell, the one with the
    /// highest term, unless the state has a later one.
    fn leaders(&self, state: &State) -> Vec<Command> {
        let mut latest: BTreeMap<u16, CellLeader> = BTreeMap::new();
        for (cell, leader) in self.all().flat_map(|report| &report.routes.leaders) {
            let known = latest.entry(*cell).or_insert(*leader);
            if leader.term > known.term {
                *known = *leader;
            }
        }
        latest.retain(|cell, leader| state.accepts_leader(*cell, leader));
        latest.into_iter().map(|(cell, leader)| Command::Leader { cell, leader }).collect()
    }

    /// Whether a node of the network's file listens at one of these addresses.
    pub fn is_taken(&self, node: &Node) -> bool {
        self.network.all().any(|(_, known)| share_an_address(known, node))
    }

    /// Whether a reported map is newer than this one.
    pub fn has_newer_map(&self, map: &InstrumentMap) -> bool {
        self.all().any(|report| report.routes.map.version() > map.version())
    }
}

#[cfg(test)]
mod tests {
    use super::super::routing::Placement;
    use super::*;
    use crate::network::{Node, Role};

    fn monitor() -> MembershipMonitor {
        let mut port = 5000;
        MembershipMonitor::new(&Network::new("1-2-2-1".parse().unwrap(), |_| {
            port += 1;
            let address = format!("127.0.0.1:{port}").parse().unwrap();
            Node { address, replication: None }
        }))
    }

    /// Applies pending commands until there are none; how many there were.
    fn apply_all(monitor: &mut MembershipMonitor, state: &mut State, now_ns: u64) -> usize {
        let mut count = 0;
        for _ in 0..5 {
            let commands = monitor.pending_commands(state, now_ns);
            if commands.is_empty() {
                return count;
            }
            count += commands.len();
            for command in &commands {
                state.apply(command, now_ns / 1_000_000);
            }
        }
        panic!("the same commands again and again");
    }

    #[test]
    fn a_change_of_membership_is_logged_once() {
        let (mut monitor, mut state) = (monitor(), State::new(InstrumentMap::new(2)));
        let (m0, p0, g0) = (Role::Mediator.node(0), Role::Processor.node(0), Role::Gateway.node(0));
        monitor.own.nodes = BTreeMap::from([(m0, 1), (Role::Router.node(0), 2), (p0, 3)]);
        let mut report = MembershipReport::new(InstrumentMap::new(2));
        report.nodes = BTreeMap::from([(m0, 1), (p0, 3), (g0, 4)]);
        report.routes.leaders.insert(0, CellLeader { mediator: 0, term: 17, start: 1 });
        assert_eq!(MembershipReport::of(&report.message()), Ok(report.clone()));
        monitor.reports.insert(0, report.clone());
        assert_eq!(apply_all(&mut monitor, &mut state, 0), 5);
        assert_eq!(state.nodes()[&g0].starts, 1);
        // A router that is behind reports a leader of an older term.
        report.routes.leaders.insert(0, CellLeader { mediator: 0, term: 9, start: 1 });
        monitor.reports.insert(1, report.clone());
        assert_eq!(apply_all(&mut monitor, &mut state, 0), 0);
        // One reporter notices the restart before the other: nothing is logged meanwhile.
        monitor.reports.get_mut(&0).unwrap().nodes.insert(g0, 44);
        assert_eq!(apply_all(&mut monitor, &mut state, 1), 0);
        monitor.reports.get_mut(&1).unwrap().nodes.insert(g0, 44);
        assert_eq!(apply_all(&mut monitor, &mut state, 2), 1);
        assert_eq!((state.nodes()[&g0].starts, state.nodes()[&g0].start), (2, 44));
        // No report has it: after a while it has left.
        for report in monitor.reports.values_mut() {
            report.nodes.remove(&g0);
        }
        assert_eq!(apply_all(&mut monitor, &mut state, 10), 0);
        assert_eq!(apply_all(&mut monitor, &mut state, 11 + LEFT_NS), 1);
        assert!(!state.nodes()[&g0].is_up);
    }

    #[test]
    fn a_control_group_that_lost_its_memory_restores_the_map() {
        let (mut monitor, mut state) = (monitor(), State::new(InstrumentMap::new(2)));
        let mut map = InstrumentMap::new(2);
        map.assign(5, Placement { cell: 0, epoch: 3 });
        let mut report = MembershipReport::new(InstrumentMap::new(2));
        report.routes.map = map.clone();
        monitor.reports.insert(1, report);
        assert!(monitor.has_newer_map(&state.routes().map));
        assert_eq!(apply_all(&mut monitor, &mut state, 0), 1);
        assert_eq!(state.routes().map, map);
    }
}
