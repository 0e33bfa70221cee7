//! Trials of fault tolerance: network, durability, and which node is killed when, all drawn from
//! one seed.
//!
//! Each class is killed under each durability that guarantees something about it, in turn. Without
//! durability a mediator's books are lost with it, so that pair is left out. A replicated cell
//! needs two mediators and a processor to tolerate the loss of one of them. In every fourth trial a
//! second node is killed. It is of a stateless class, or a replica of other cells than the first,
//! while that one may still be down.
//!
//! In trials with moves, instruments move to other cells all the time. Kills are aimed at the nodes
//! that carry out a move: the leaders of both cells and of control, and routers.

use std::time::Duration;

use nm_exchange::network::Role;
use nm_model::exchange::{Durability, NodeCounts};
use nm_stats::random::Random;

use crate::mover::{Aim, AimedKill};
use crate::round::Kill;

/// One trial.
#[derive(Debug, Clone, PartialEq)]
pub struct Trial {
    /// Number from 0 on.
    pub number: u32,
    /// Numbers of nodes.
    pub nodes: NodeCounts,
    /// Durability.
    pub durability: Durability,
    /// Class of the first node that is killed.
    pub role: Role,
    /// Nodes that are killed.
    pub kills: Vec<Kill>,
    /// The node that is killed because of its part in a move.
    pub aimed: Option<AimedKill>,
    /// Moves of instruments a minute; zero for none.
    pub moves_per_minute: f64,
    /// Seed of the load.
    pub seed: u64,
}

impl Trial {
    /// What is killed, in words.
    pub fn killed(&self) -> Vec<String> {
        let aimed = self.aimed.map(|kill| kill.aim.name().to_string());
        aimed.into_iter().chain(self.kills.iter().map(|kill| kill.node.class.to_string())).collect()
    }
}

/// Restricts the trials.
#[derive(Debug, Clone, Copy, Default)]
pub struct TrialFilter {
    /// Only this durability.
    pub durability: Option<Durability>,
    /// Only this class.
    pub role: Option<Role>,
}

/// Longest time until a killed node is restarted, ms.
const DEAD_MS_MAX: usize = 300;

/// Longest times from the request of a move until the node at which a kill is aimed dies, µs: while
/// the move is carried out, and also after it.
const AIM_DELAY_US_MAX: [usize; 2] = [2_000, 20_000];

/// Fewest moves a minute in a trial with moves; there are up to three times as many.
const MOVES_PER_MINUTE_MIN: f64 = 600.0;

/// Durabilities with the classes about whose failure they guarantee something.
pub fn guaranteed_pairs(filter: TrialFilter) -> Vec<(Durability, Role)> {
    let pairs = Durability::ALL.iter().flat_map(|d| Role::ALL.iter().map(|role| (*d, *role)));
    pairs
        .filter(|pair| *pair != (Durability::None, Role::Mediator))
        .filter(|(durability, _)| filter.durability.is_none_or(|only| only == *durability))
        .filter(|(_, role)| filter.role.is_none_or(|only| only == *role))
        .collect()
}

/// Draws a trial with `seconds` of load. None if nothing is guaranteed about any pair of the
/// filter.
pub fn draw(seed: u64, number: u32, filter: TrialFilter, seconds: f64) -> Option<Trial> {
    let pairs = guaranteed_pairs(filter);
    let (durability, role) = *pairs.get(number as usize % pairs.len().max(1))?;
    let mut random = Random::new(seed ^ u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let is_replicated = durability != Durability::None;
    let is_replica = is_replicated && matches!(role, Role::Mediator | Role::Processor);
    let (is_double, of_other_cells) =
        (number % 4 == 3, is_replica && (number / 4).is_multiple_of(2));
    let fewest = usize::from(is_replicated) + 1;
    let mut of_class = [1, 1, fewest, 1].map(|least| (least + random.below(2)) as u16);
    // A second replica on the same node would not add fault tolerance.
    of_class[3] = of_class[3].min(of_class[2]);
    if is_double && of_other_cells {
        (of_class[2], of_class[3]) = (3, 3);
    }
    let mut kill = |role: Role, from: f64, to: f64| Kill {
        node: role.node(random.below(usize::from(of_class[role as usize])) as u16),
        at_s: seconds * (from + (to - from) * random.unit()),
        stays_dead: Duration::from_millis(random.below(DEAD_MS_MAX) as u64),
    };
    let first = kill(role, 0.2, 0.4);
    let mut kills = vec![first];
    if is_double && of_other_cells {
        // Of three cells, mediator n has replicas of n and n - 1 (modulo 3), processor n of n.
        let (other, after) =
            if role == Role::Mediator { (Role::Processor, 1) } else { (Role::Mediator, 2) };
        let second = kill(other, 0.0, 0.1);
        let node = other.node((first.node.index + after) % 3);
        kills.push(Kill { node, at_s: first.at_s + second.at_s, ..second });
    } else if is_double {
        let other = if role == Role::Gateway { Role::Router } else { Role::Gateway };
        kills.push(kill(other, 0.45, 0.6));
    }
    Some(Trial {
        number,
        nodes: NodeCounts { of_class },
        durability,
        role,
        kills,
        aimed: None,
        moves_per_minute: 0.0,
        seed: random.next_u64(),
    })
}

/// What is killed first in a trial with moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Victim {
    /// The mediator that has a part in a move.
    OfMove(Aim),
    /// Any node of a class.
    Any(Role),
}

impl Victim {
    fn role(self) -> Role {
        match self {
            Victim::OfMove(_) => Role::Mediator,
            Victim::Any(role) => role,
        }
    }
}

/// Durabilities with the victims about whose failure they guarantee something while instruments
/// move.
pub fn guaranteed_while_moving(filter: TrialFilter) -> Vec<(Durability, Victim)> {
    let aimed = Aim::ALL.into_iter().map(Victim::OfMove);
    let victims = [Role::Router, Role::Processor, Role::Gateway].map(Victim::Any);
    let all: Vec<Victim> = aimed.chain(victims).collect();
    // Each durability after the other, so that few trials have all of them.
    let pairs = all.iter().flat_map(|victim| Durability::ALL.iter().map(|d| (*d, *victim)));
    pairs
        .filter(|(durability, victim)| {
            (*durability, victim.role()) != (Durability::None, Role::Mediator)
        })
        .filter(|(durability, _)| filter.durability.is_none_or(|only| only == *durability))
        .filter(|(_, victim)| filter.role.is_none_or(|only| only == victim.role()))
        .collect()
}

/// Draws a trial in which instruments move all the time, with `seconds` of load. None if nothing is
/// guaranteed about any pair of the filter.
pub fn draw_with_moves(seed: u64, number: u32, filter: TrialFilter, seconds: f64) -> Option<Trial> {
    let pairs = guaranteed_while_moving(filter);
    let (durability, victim) = *pairs.get(number as usize % pairs.len().max(1))?;
    let mut random = Random::new(!seed ^ u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut of_class = [1, 1, 2, 1].map(|least| (least + random.below(2)) as u16);
    of_class[3] = of_class[3].min(of_class[2]);
    let at_s =
        |random: &mut Random, from: f64, to: f64| seconds * (from + (to - from) * random.unit());
    let dead = |random: &mut Random| Duration::from_millis(random.below(DEAD_MS_MAX) as u64);
    let mut kill = |role: Role, from: f64, to: f64| Kill {
        node: role.node(random.below(usize::from(of_class[role as usize])) as u16),
        at_s: at_s(&mut random, from, to),
        stays_dead: dead(&mut random),
    };
    let mut kills = vec![];
    if let Victim::Any(role) = victim {
        kills.push(kill(role, 0.2, 0.4));
    }
    if number % 4 == 3 {
        // One without replicas, which may die while another node is still down.
        let other = if victim == Victim::Any(Role::Router) { Role::Gateway } else { Role::Router };
        kills.push(kill(other, 0.25, 0.6));
    }
    let longest_us = AIM_DELAY_US_MAX[random.below(2)];
    let aimed = match victim {
        Victim::Any(_) => None,
        Victim::OfMove(aim) => Some(AimedKill {
            aim,
            at_s: at_s(&mut random, 0.2, 0.4),
            delay: Duration::from_micros(random.below(longest_us) as u64),
            stays_dead: dead(&mut random),
        }),
    };
    Some(Trial {
        number,
        nodes: NodeCounts { of_class },
        durability,
        role: victim.role(),
        kills,
        aimed,
        moves_per_minute: (MOVES_PER_MINUTE_MIN * (1.0 + 2.0 * random.unit())).round(),
        seed: random.next_u64(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn trials_depend_on_the_seed_only() {
        let all = |seed| -> Vec<Trial> {
            (0..50).map(|n| draw(seed, n, TrialFilter::default(), 3.0).unwrap()).collect()
        };
        assert_eq!(all(1), all(1));
        assert_ne!(all(1), all(2));
    }

    #[test]
    fn every_guarantee_is_tested_on_existing_nodes() {
        let mut pairs = BTreeSet::new();
        for number in 0..220 {
            let trial = draw(7, number, TrialFilter::default(), 3.0).unwrap();
            pairs.insert((trial.durability, trial.role));
            for kill in &trial.kills {
                let count = usize::from(trial.nodes.of_class[kill.node.class as usize]);
                assert!(
                    kill.node.position() < count && (0.5..2.0).contains(&kill.at_s),
                    "{trial:?}"
                );
            }
            let is_replicated = trial.durability != Durability::None;
            assert!(!is_replicated || trial.nodes.mediators() >= 2, "{trial:?}");
        }
        assert_eq!(pairs.len(), 11);
        assert!(!pairs.contains(&(Durability::None, Role::Mediator)));
    }

    #[test]
    fn no_cell_loses_two_replicas_at_once() {
        let mut doubles = BTreeSet::new();
        for number in 0..176 {
            let trial = draw(9, number, TrialFilter::default(), 3.0).unwrap();
            let [.., mediators, processors] = trial.nodes.of_class.map(usize::from);
            if trial.durability == Durability::None || trial.kills.len() < 2 {
                continue;
            }
            let mut of_cell = vec![0; mediators];
            for Kill { node, .. } in &trial.kills {
                let cells = (0..mediators).filter(|cell| match node.class {
                    Role::Mediator => {
                        *cell == node.position() || (cell + 1) % mediators == node.position()
                    }
                    Role::Processor => cell % processors == node.position(),
                    Role::Gateway | Role::Router => false,
                });
                cells.for_each(|cell| of_cell[cell] += 1);
            }
            assert!(of_cell.iter().all(|lost| *lost <= 1), "{trial:?}");
            let [first, second] = [0, 1].map(|at| trial.kills[at].node.class);
            doubles.insert((trial.durability, first, second));
        }
        for durability in [Durability::MemoryQuorum, Durability::DiskQuorum] {
            for pair in [(Role::Mediator, Role::Processor), (Role::Processor, Role::Mediator)] {
                assert!(doubles.contains(&(durability, pair.0, pair.1)), "{doubles:?}");
            }
        }
    }

    #[test]
    fn trials_with_moves_kill_every_node_of_a_move_on_existing_nodes() {
        let mut pairs = BTreeSet::new();
        for number in 0..160 {
            let trial = draw_with_moves(7, number, TrialFilter::default(), 3.0).unwrap();
            assert_eq!(
                Some(trial.clone()),
                draw_with_moves(7, number, TrialFilter::default(), 3.0)
            );
            assert!(trial.nodes.mediators() >= 2, "{trial:?}");
            assert!((600.0..=1_800.0).contains(&trial.moves_per_minute), "{trial:?}");
            assert!(!trial.killed().is_empty(), "{trial:?}");
            for kill in &trial.kills {
                let count = usize::from(trial.nodes.of_class[kill.node.class as usize]);
                assert!(
                    kill.node.position() < count && (0.5..2.0).contains(&kill.at_s),
                    "{trial:?}"
                );
                assert_ne!(kill.node.class, Role::Mediator, "{trial:?}");
            }
            let is_replicated = trial.durability != Durability::None;
            assert!(is_replicated || trial.aimed.is_none(), "{trial:?}");
            pairs.insert((trial.durability, trial.role, trial.aimed.map(|kill| kill.aim)));
        }
        assert_eq!(pairs.len(), 15, "{pairs:?}");
        let nothing =
            TrialFilter { durability: Some(Durability::None), role: Some(Role::Mediator) };
        assert_eq!(draw_with_moves(1, 0, nothing, 3.0), None);
    }

    #[test]
    fn a_filter_restricts_the_trials() {
        let filter =
            TrialFilter { durability: Some(Durability::DiskQuorum), role: Some(Role::Mediator) };
        let trial = draw(1, 5, filter, 3.0).unwrap();
        assert_eq!((trial.durability, trial.role), (Durability::DiskQuorum, Role::Mediator));
        let nothing = TrialFilter { durability: Some(Durability::None), ..filter };
        assert_eq!(draw(1, 0, nothing, 3.0), None);
    }
}
