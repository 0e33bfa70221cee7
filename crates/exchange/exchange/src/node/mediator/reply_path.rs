//! Which processor sends the replies of a cell: its own, which has a replica, or another one while
//! the link to that is broken.

use nm_wire::RepliesLost;

use crate::network::{Durability, Network, NodeId, Role};

use crate::node::runtime::links::{LinkId, Links};

/// How long a node that starts waits for the link to a cell's own processor, ns.
const START_NS: u64 = 1_000_000_000;

/// The way of a cell's replies.
#[derive(Debug)]
pub struct ReplyPath {
    /// The cell.
    pub cell: u16,
    /// The processor that has a replica of the cell, or where cells have no replicas, that whose
    /// turn it is.
    own: Option<u16>,
    /// The processors that gateways ask for replies and events of the cell.
    others: Vec<u16>,
    /// The processor that is used; none if no link is up.
    current: Option<u16>,
    /// Whether any was used before.
    was_used: bool,
    /// When others are used although the own one never was, ns.
    others_from_ns: u64,
    /// Whether another one is up, and waits for that time.
    is_waiting: bool,
    /// Whether the own one has come back, and lacks entries of the log.
    own_is_behind: bool,
}

impl ReplyPath {
    /// The path of a cell; no link is up yet.
    pub fn new(network: &Network, cell: u16, now_ns: u64) -> ReplyPath {
        let others = network.processors_of(cell);
        ReplyPath {
            cell,
            own: others.first().copied(),
            others,
            current: None,
            was_used: false,
            others_from_ns: now_ns + START_NS,
            is_waiting: false,
            own_is_behind: false,
        }
    }

    /// The link to a processor was made: whether it is the cell's own one, whose replies another
    /// one sends at the moment. It goes on until [`ReplyPath::own_caught_up`].
    pub fn is_own_back(&mut self, processor: u16) -> bool {
        self.own_is_behind = self.is_own(processor) && self.is_alternate();
        self.own_is_behind
    }

    /// A processor has the entries that it lacked when it came back.
    pub fn own_caught_up(&mut self, processor: u16) {
        self.own_is_behind &= !self.is_own(processor);
    }

    /// Processors were added to the network or removed from it: a cell without replicas takes its
    /// turn at them. The next [`ReplyPath::update`] leaves a removed one.
    pub fn set_network(&mut self, network: &Network) {
        self.others = network.processors_of(self.cell);
        if network.durability == Durability::None {
            let own = self.others.first().copied();
            self.own_is_behind &= self.own == own;
            self.own = own;
        }
    }

    /// These nodes have the replicas of the cell from now on.
    pub fn set_voters(&mut self, mut voters: impl Iterator<Item = NodeId>) {
        let processor = voters.find(|node| node.class == Role::Processor);
        self.own = processor.map(|node| node.index);
    }

    /// Chooses again, after a link was made or has broken, or it is time; whether it is another
    /// processor now.
    pub fn update(&mut self, links: &Links) -> bool {
        self.choose(links.now_ns, |processor| links.to(Role::Processor.node(*processor)).is_some())
    }

    fn choose(&mut self, now_ns: u64, is_up: impl Fn(&u16) -> bool) -> bool {
        self.own_is_behind &= self.own.as_ref().is_some_and(&is_up);
        let own = self.own.filter(|_| !self.own_is_behind);
        let others = self.others.iter().copied().filter(|other| Some(*other) != self.own);
        let up = own.into_iter().chain(others).chain(self.own).find(&is_up);
        self.was_used |= self.current.is_some();
        let may_be_other = self.was_used || now_ns >= self.others_from_ns;
        let chosen = up.filter(|up| may_be_other || self.is_own(*up));
        self.is_waiting = up.is_some() && chosen.is_none();
        std::mem::replace(&mut self.current, chosen) != chosen
    }

    fn is_own(&self, processor: u16) -> bool {
        self.own == Some(processor)
    }

    /// When [`ReplyPath::update`] is to be called, ns.
    pub fn deadline_ns(&self) -> Option<u64> {
        self.is_waiting.then_some(self.others_from_ns)
    }

    /// The link to the processor, if there is one.
    pub fn link(&self, links: &Links) -> Option<LinkId> {
        links.to(Role::Processor.node(self.current?))
    }

    /// Whether another processor than that of the cell is used.
    pub fn is_alternate(&self) -> bool {
        self.current.is_some_and(|current| !self.is_own(current))
    }

    /// Whether replies and events before the present processor was chosen may be lost.
    pub fn may_have_lost(&self) -> bool {
        self.was_used
    }

    /// Reports to all gateways that replies and events before may be lost.
    pub fn report_loss(&self, links: &mut Links) {
        let Some(processor) = self.link(links) else { return };
        for gateway in 0..links.network().nodes(Role::Gateway).len() as u16 {
            links.send(processor, &RepliesLost { cell: self.cell, gateway });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Node;

    fn network() -> Network {
        let mut port = 5000;
        Network::new("1-1-2-3".parse().unwrap(), |_| {
            port += 1;
            let address = format!("127.0.0.1:{port}").parse().unwrap();
            Node { address, replication: None }
        })
    }

    fn path() -> ReplyPath {
        ReplyPath { others_from_ns: 1_000, ..ReplyPath::new(&network(), 1, 0) }
    }

    /// The processor that is used when these are up.
    fn chosen(path: &mut ReplyPath, now_ns: u64, up: &[u16]) -> Option<u16> {
        path.choose(now_ns, |processor| up.contains(processor));
        path.current
    }

    #[test]
    fn another_processor_is_used_until_the_own_one_has_caught_up() {
        let mut path = path();
        assert_eq!(chosen(&mut path, 1, &[2]), None, "the own one may still come");
        assert_eq!(chosen(&mut path, 2, &[1, 2]), Some(1));
        assert_eq!(chosen(&mut path, 3, &[2]), Some(2));
        // It is back, but lacks entries; then it is gone again, and back.
        assert!(!path.is_own_back(0) && path.is_own_back(1));
        assert_eq!(chosen(&mut path, 4, &[0, 1, 2]), Some(2));
        assert_eq!(chosen(&mut path, 5, &[2]), Some(2));
        assert!(path.is_own_back(1));
        path.own_caught_up(2);
        assert_eq!(chosen(&mut path, 6, &[1, 2]), Some(2));
        path.own_caught_up(1);
        assert_eq!(chosen(&mut path, 7, &[1, 2]), Some(1));
        // One that lacks entries is better than none, and is asked nothing if no other was used.
        assert_eq!(chosen(&mut path, 8, &[]), None);
        assert!(!path.is_own_back(1));
        assert_eq!(chosen(&mut path, 9, &[1]), Some(1));
    }

    /// Where cells have no replicas.
    #[test]
    fn a_processor_that_was_added_has_its_turn_when_it_is_ready_and_is_left_when_it_is_removed() {
        let mut network = network();
        let mut path = ReplyPath { cell: 3, ..path() };
        path.set_network(&network);
        assert_eq!((path.own, chosen(&mut path, 1, &[0, 1, 2])), (Some(0), Some(0)));
        let address = "unix:/more".parse().unwrap();
        network.classes[Role::Processor].nodes.push(Node { address, replication: None });
        network.classes[Role::Processor].added = 1;
        path.set_network(&network);
        assert_eq!(chosen(&mut path, 2, &[0, 1, 2]), Some(0), "nothing waits for it");
        // It is up, and may lack links to gateways.
        assert!(path.is_own_back(3));
        assert_eq!(chosen(&mut path, 3, &[0, 1, 2, 3]), Some(0));
        path.own_caught_up(3);
        assert_eq!(chosen(&mut path, 4, &[0, 1, 2, 3]), Some(3));
        assert_eq!(chosen(&mut path, 5, &[0, 1, 2]), Some(0));
        assert_eq!(chosen(&mut path, 6, &[0, 1, 2, 3]), Some(3));
        network.classes[Role::Processor].removed.insert(3);
        path.set_network(&network);
        assert_eq!(chosen(&mut path, 7, &[0, 1, 2, 3]), Some(0), "its link is still there");
    }

    #[test]
    fn a_processor_that_replaces_the_own_one_is_used() {
        let mut path = path();
        assert_eq!(chosen(&mut path, 1, &[0, 1, 2]), Some(1));
        path.set_voters([Role::Mediator.node(1), Role::Processor.node(0)].into_iter());
        assert_eq!(chosen(&mut path, 2, &[0, 1, 2]), Some(0));
        assert!(!path.is_alternate());
        assert_eq!(chosen(&mut path, 3, &[1, 2]), Some(1));
        assert!(path.is_alternate());
    }
}
