//! Which links are written next: a message for all links of an owner is as many writes, and they
//! keep nobody else's answer waiting.

use std::collections::{BTreeMap, VecDeque};

use nm_wire::Owner;

use super::links::LinkId;

/// Links, besides those to nodes, that are written in one iteration. A write takes about 2.5 µs,
/// so a message for 2 000 links would take 5 ms at once.
pub const WRITES_PER_TURN: usize = 32;

/// Links that wait until they are written; the owners take turns.
#[derive(Debug, Default)]
pub struct Writes {
    of: BTreeMap<Owner, VecDeque<LinkId>>,
    /// Owners with links that wait, in the order of their turns.
    order: VecDeque<Owner>,
}

impl Writes {
    /// Whether no link waits.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// A link waits.
    pub fn push(&mut self, owner: Owner, link: LinkId) {
        let links = self.of.entry(owner).or_default();
        if links.is_empty() {
            self.order.push_back(owner);
        }
        links.push_back(link);
    }

    /// The link that is written next.
    pub fn pop(&mut self) -> Option<LinkId> {
        let owner = self.order.pop_front()?;
        let links = self.of.get_mut(&owner)?;
        let link = links.pop_front();
        if links.is_empty() {
            self.of.remove(&owner);
        } else {
            self.order.push_back(owner);
        }
        link
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_take_turns_and_the_links_of_one_keep_their_order() {
        let (one, other) = (Owner::of_user(1), Owner::of_user(2));
        let link = |slot| LinkId::new(slot, 1);
        let mut writes = Writes::default();
        (0..3).for_each(|slot| writes.push(one, link(slot)));
        (3..5).for_each(|slot| writes.push(other, link(slot)));
        let slots: Vec<usize> = std::iter::from_fn(|| writes.pop()).map(|it| it.slot()).collect();
        assert_eq!(slots, [0, 3, 1, 4, 2]);
        assert!(writes.is_empty() && writes.of.is_empty());
        writes.push(one, link(7));
        assert_eq!(writes.pop(), Some(link(7)));
    }
}
