//! Which agents are at a controller, and which of them are in a session.

use std::collections::BTreeMap;
use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::gate::owner;
use crate::hello::{Card, Refusal};

/// Most agents of a controller: as many as a fleet has hosts.
pub const AGENTS_MAX: usize = 1024;

/// Most agents from one address: a NAT has many hosts behind it.
pub const AGENTS_PER_ADDRESS_MAX: usize = 256;

/// An agent, as a controller shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Known {
    /// What it said of itself.
    pub card: Card,
    /// The address that its connection comes from. It is not its own one if a NAT is between.
    pub seen: IpAddr,
    /// Whether it is in a session.
    pub is_busy: bool,
}

impl Known {
    /// Whether a NAT, or a relay, is between the agent and the controller.
    pub fn is_translated(&self) -> bool {
        self.card.address.to_canonical() != self.seen.to_canonical()
    }
}

struct Entry<L> {
    card: Card,
    seen: IpAddr,
    /// None while it is in a session.
    link: Option<L>,
    number: u64,
}

/// What [`Registry::take`] finds.
#[derive(Debug)]
pub enum Taken<L> {
    /// The agent, for a session of this number.
    Agent(Known, L, u64),
    /// It is in a session.
    Busy,
    /// It is not there.
    Absent,
}

/// The agents, each with its connection `L` while it waits.
pub struct Registry<L> {
    agents: BTreeMap<String, Entry<L>>,
    last_number: u64,
}

impl<L> Default for Registry<L> {
    fn default() -> Registry<L> {
        Registry { agents: BTreeMap::new(), last_number: 0 }
    }
}

impl<L> Registry<L> {
    /// Whether an agent may enter. One that is there already may: its connection may be lost
    /// without the controller's knowledge.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, card: &Card, seen: IpAddr) -> Result<(), Refusal> {
        if let Some(known) = self.agents.get(&card.name) {
            return match known.card.instance == card.instance {
                true => Ok(()),
                false => Err(Refusal::Name(card.name.clone())),
            };
        }
        if self.agents.len() >= AGENTS_MAX {
            return Err(Refusal::Full(AGENTS_MAX));
        }
        let is_near = |entry: &&Entry<L>| owner(entry.seen) == owner(seen);
        match self.agents.values().filter(is_near).count() < AGENTS_PER_ADDRESS_MAX {
            true => Ok(()),
            false => Err(Refusal::FullAddress(AGENTS_PER_ADDRESS_MAX)),
        }
    }

    /// Takes an agent in; its older connection is dropped.
    ///
    /// # Errors
    /// As [`Registry::check`].
    pub fn enter(&mut self, card: Card, seen: IpAddr, link: L) -> Result<(), Refusal> {
        self.check(&card, seen)?;
        self.last_number += 1;
        let (name, number) = (card.name.clone(), self.last_number);
        self.agents.insert(name, Entry { card, seen, link: Some(link), number });
        Ok(())
    }

    /// Takes an agent for a session, until [`Registry::leave`].
    pub fn take(&mut self, name: &str) -> Taken<L> {
        let Some(entry) = self.agents.get_mut(name) else { return Taken::Absent };
        let Some(link) = entry.link.take() else { return Taken::Busy };
        let known = Known { card: entry.card.clone(), seen: entry.seen, is_busy: true };
        Taken::Agent(known, link, entry.number)
    }

    /// The session of this number has ended, and with it the connection.
    pub fn leave(&mut self, name: &str, number: u64) {
        if self.agents.get(name).is_some_and(|entry| entry.number == number) {
            self.agents.remove(name);
        }
    }

    /// Drops the waiting agents whose connection is `gone`; returns their names.
    pub fn drop_gone(&mut self, mut gone: impl FnMut(&mut L) -> bool) -> Vec<String> {
        let mut names = vec![];
        self.agents.retain(|name, entry| {
            let is_gone = entry.link.as_mut().is_some_and(&mut gone);
            if is_gone {
                names.push(name.clone());
            }
            !is_gone
        });
        names
    }

    /// All agents, by name.
    pub fn known(&self) -> Vec<Known> {
        let known = |entry: &Entry<L>| Known {
            card: entry.card.clone(),
            seen: entry.seen,
            is_busy: entry.link.is_none(),
        };
        self.agents.values().map(known).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(name: &str, instance: u64) -> Card {
        let address = [10, 0, 0, 1].into();
        Card { name: name.into(), labels: BTreeMap::new(), address, instance }
    }

    const SEEN: [u8; 4] = [192, 0, 2, 1];

    #[test]
    fn an_agent_replaces_its_own_connection_and_no_other_one() {
        let mut registry = Registry::default();
        registry.enter(card("a", 1), SEEN.into(), "old").unwrap();
        let Taken::Agent(known, "old", session) = registry.take("a") else { panic!("no agent") };
        assert!(known.is_translated());
        assert!(matches!(registry.take("a"), Taken::Busy));
        let refused = registry.enter(card("a", 2), SEEN.into(), "other").unwrap_err();
        assert_eq!(refused, Refusal::Name("a".into()));
        registry.enter(card("a", 1), SEEN.into(), "new").unwrap();
        // The end of the old session does not concern the new connection.
        registry.leave("a", session);
        let Taken::Agent(_, "new", session) = registry.take("a") else { panic!("no agent") };
        registry.leave("a", session);
        assert!(matches!(registry.take("a"), Taken::Absent));
    }

    #[test]
    fn agents_are_limited_in_all_and_per_address() {
        let mut registry = Registry::default();
        let n_in = (0..300)
            .filter(|n| registry.enter(card(&format!("a{n}"), 1), SEEN.into(), ()).is_ok())
            .count();
        assert_eq!(n_in, AGENTS_PER_ADDRESS_MAX);
        for n in 0..AGENTS_MAX - n_in {
            let seen = std::net::Ipv4Addr::from(u32::try_from(n).unwrap() | 0x0a00_0000);
            registry.enter(card(&format!("b{n}"), 1), seen.into(), ()).unwrap();
        }
        let refused = registry.enter(card("c", 1), [10, 9, 9, 9].into(), ()).unwrap_err();
        assert_eq!(refused, Refusal::Full(AGENTS_MAX));
        assert_eq!(registry.drop_gone(|_| true).len(), AGENTS_MAX);
        assert!(registry.known().is_empty());
    }
}
