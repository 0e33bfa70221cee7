//! Whose links are read next, and how much of them: no owner keeps the others waiting.
//!
//! An owner alone is read as fast as it sends. While others are served as well, it may take a part
//! of an iteration, and half of the time in the long run. Its other links wait for their turns,
//! which the owners take one after the other. What counts is the time that the node needs for what
//! an owner sends, so every deed counts as what it costs.

use std::collections::{BTreeMap, VecDeque};

use nm_wire::Owner;

use super::links::LinkId;

/// Time that an owner may take in one iteration while others are served, ns.
pub const TURN_NS: u64 = 100_000;

/// An owner may take one part in so many of the time while others are served.
pub const TIME_SHARE: u64 = 2;

/// Time that the only owner may take in one iteration, until what it was sent is written, ns.
pub const ALONE_NS: u64 = 1_000_000;

/// Time that an owner may take at once after it has taken less than its share, ns.
pub const BURST_NS: u64 = 1_000_000;

/// How long an owner counts as served after it was, ns.
pub const SERVED_NS: u64 = 1_000_000_000;

/// Bytes that are read of a link at once while other owners are served, or as many as wait for the
/// rest of their frame.
pub const TURN_BYTES: usize = 8 << 10;

/// An owner beside others.
#[derive(Debug)]
struct Turn {
    /// Time that it may take, less what it has taken beyond that, ns.
    credit_ns: i64,
    /// When the credit was true, ns.
    at_ns: u64,
    /// The iteration of its last turn, and the time that it has taken in that, ns.
    iteration: u64,
    taken_ns: u64,
    /// Its links that wait.
    waiting: VecDeque<LinkId>,
}

impl Turn {
    fn new(now_ns: u64) -> Turn {
        let waiting = VecDeque::new();
        Turn { credit_ns: BURST_NS as i64, at_ns: now_ns, iteration: 0, taken_ns: 0, waiting }
    }

    fn credit_ns(&self, now_ns: u64) -> i64 {
        let more_ns = now_ns.saturating_sub(self.at_ns) / TIME_SHARE;
        self.credit_ns.saturating_add_unsigned(more_ns).min(BURST_NS as i64)
    }

    fn is_idle(&self, now_ns: u64) -> bool {
        self.waiting.is_empty() && self.credit_ns(now_ns) == BURST_NS as i64
    }
}

/// The turns of owners.
#[derive(Debug, Default)]
pub struct Turns {
    iteration: u64,
    /// The two owners that were served last, and when, ns.
    latest: [(Owner, u64); 2],
    /// Time that the latest one has taken in this iteration, ns.
    latest_taken_ns: u64,
    owners: BTreeMap<Owner, Turn>,
    /// Owners with links that wait, in the order of their turns.
    order: VecDeque<Owner>,
    next_check_ns: u64,
}

impl Turns {
    /// A new iteration begins.
    pub fn begin(&mut self, now_ns: u64) {
        self.iteration += 1;
        self.latest_taken_ns = 0;
        if now_ns >= self.next_check_ns {
            self.next_check_ns = now_ns + SERVED_NS;
            self.owners.retain(|_, turn| !turn.is_idle(now_ns));
        }
    }

    /// Whether others than this owner were served lately.
    pub fn has_others(&self, owner: Owner, now_ns: u64) -> bool {
        let is_other = |(other, at_ns): &(Owner, u64)| {
            other.is_somebody() && *other != owner && now_ns.saturating_sub(*at_ns) < SERVED_NS
        };
        self.latest.iter().any(is_other)
    }

    /// Time that the owner that was served last has taken in this iteration, ns.
    pub fn taken_ns(&self, owner: Owner) -> u64 {
        if self.latest[0].0 == owner { self.latest_taken_ns } else { 0 }
    }

    /// Whether it is an owner's turn.
    pub fn is_turn_of(&self, owner: Owner, now_ns: u64) -> bool {
        if !owner.is_somebody() || !self.has_others(owner, now_ns) {
            return true;
        }
        self.owners.get(&owner).is_none_or(|turn| {
            let taken_ns = if turn.iteration == self.iteration { turn.taken_ns } else { 0 };
            taken_ns < TURN_NS && turn.credit_ns(now_ns) > 0
        })
    }

    /// An owner was served, which took so long.
    pub fn served(&mut self, owner: Owner, now_ns: u64, taken_ns: u64) {
        if !owner.is_somebody() {
            return;
        }
        if self.latest[0].0 != owner {
            self.latest.swap(0, 1);
            (self.latest[0].0, self.latest_taken_ns) = (owner, 0);
        }
        self.latest[0].1 = now_ns;
        self.latest_taken_ns += taken_ns;
        if !self.has_others(owner, now_ns) {
            return;
        }
        let turn = self.owners.entry(owner).or_insert_with(|| Turn::new(now_ns));
        (turn.credit_ns, turn.at_ns) = (turn.credit_ns(now_ns), now_ns);
        turn.credit_ns = turn.credit_ns.saturating_sub_unsigned(taken_ns);
        let before_ns = if turn.iteration == self.iteration { turn.taken_ns } else { 0 };
        (turn.iteration, turn.taken_ns) = (self.iteration, before_ns.saturating_add(taken_ns));
    }

    /// A link waits for its owner's turn.
    pub fn wait(&mut self, owner: Owner, link: LinkId, now_ns: u64) {
        let turn = self.owners.entry(owner).or_insert_with(|| Turn::new(now_ns));
        if turn.waiting.is_empty() {
            self.order.push_back(owner);
        }
        turn.waiting.push_back(link);
    }

    /// Whether any link of an owner waits.
    pub fn has_waiting(&self, owner: Owner) -> bool {
        self.owners.get(&owner).is_some_and(|turn| !turn.waiting.is_empty())
    }

    /// The link whose turn is next; the owners that `is_held` leave theirs out.
    pub fn next(
        &mut self,
        now_ns: u64,
        is_held: impl Fn(Owner) -> bool,
    ) -> Option<(Owner, LinkId)> {
        for _ in 0..self.order.len() {
            let owner = self.order.pop_front()?;
            let is_next = self.is_turn_of(owner, now_ns) && !is_held(owner);
            let Some(turn) = self.owners.get_mut(&owner) else { continue };
            let link = if is_next { turn.waiting.pop_front() } else { None };
            if !turn.waiting.is_empty() {
                self.order.push_back(owner);
            }
            if let Some(link) = link {
                return Some((owner, link));
            }
        }
        None
    }

    /// When the next turn of a link that waits begins, ns, unless its owner `is_held`.
    pub fn deadline_ns(&self, now_ns: u64, is_held: impl Fn(Owner) -> bool) -> Option<u64> {
        let of_owner = |owner: &Owner| {
            let turn = self.owners.get(owner).filter(|_| !is_held(*owner))?;
            let lacking_ns = (1 - turn.credit_ns(now_ns)).max(0).unsigned_abs();
            let is_alone = !self.has_others(*owner, now_ns);
            Some(if is_alone { now_ns } else { now_ns + lacking_ns * TIME_SHARE })
        };
        self.order.iter().filter_map(of_owner).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Owner = Owner::of_user(1);
    const OTHER: Owner = Owner::of_user(2);
    const THIRD: Owner = Owner::of_user(3);

    /// What it costs to serve a link once, ns.
    const COST_NS: u64 = 30_000;

    /// A node in simulated time: each of its iterations offers links of owners, again and again.
    struct Node {
        turns: Turns,
        now_ns: u64,
        served: BTreeMap<Owner, u64>,
    }

    impl Node {
        fn new() -> Node {
            Node { turns: Turns::default(), now_ns: 1 << 40, served: BTreeMap::new() }
        }

        fn serve(&mut self, owner: Owner) {
            self.now_ns += COST_NS;
            self.turns.served(owner, self.now_ns, COST_NS);
            *self.served.entry(owner).or_default() += 1;
        }

        /// An iteration in which so many links of each owner are ready; the longest time that it
        /// has taken.
        fn iterate(&mut self, ready: &[(Owner, u64)], held: Option<Owner>) -> u64 {
            let begin_ns = self.now_ns;
            self.turns.begin(begin_ns);
            for (owner, links) in ready {
                for _ in 0..*links {
                    if self.turns.is_turn_of(*owner, self.now_ns)
                        && held != Some(*owner)
                        && !self.turns.has_waiting(*owner)
                    {
                        self.serve(*owner);
                    } else {
                        self.turns.wait(*owner, LinkId::of_token(1), self.now_ns);
                    }
                }
            }
            while let Some((owner, _)) = self.turns.next(self.now_ns, |it| held == Some(it)) {
                self.serve(owner);
            }
            self.now_ns - begin_ns
        }

        fn take(&mut self, owner: Owner) -> u64 {
            self.served.remove(&owner).unwrap_or_default()
        }
    }

    #[test]
    fn an_owner_alone_is_served_as_fast_as_it_sends() {
        let mut node = Node::new();
        assert_eq!(node.iterate(&[(ONE, 1_000)], None), 1_000 * COST_NS);
        assert_eq!(node.take(ONE), 1_000);
        // Also again, once the others have been away for a while.
        node.iterate(&[(OTHER, 1)], None);
        node.iterate(&[(ONE, 1_000)], None);
        let beside = node.take(ONE);
        assert!(beside < 10, "{beside}");
        node.now_ns += SERVED_NS;
        node.iterate(&[], None);
        assert_eq!(node.take(ONE), 1_000 - beside, "those that waited");
    }

    #[test]
    fn an_owner_takes_no_more_than_its_turn_of_an_iteration_beside_others() {
        let mut node = Node::new();
        node.iterate(&[(OTHER, 1), (ONE, 1)], None);
        for _ in 0..100 {
            let taken_ns = node.iterate(&[(ONE, 50), (OTHER, 1)], None);
            assert!(taken_ns <= TURN_NS + 2 * COST_NS, "{taken_ns}");
        }
        assert_eq!(node.take(OTHER), 101, "each at once");
    }

    #[test]
    fn an_owner_takes_half_of_the_time_beside_others_and_a_burst_at_once() {
        let mut node = Node::new();
        node.iterate(&[(OTHER, 1), (ONE, 1)], None);
        let (begin_ns, mut iterations) = (node.now_ns, 0);
        node.take(ONE);
        while node.now_ns - begin_ns < 100_000_000 {
            // Nothing else takes time, so it waits for its credit.
            node.iterate(&[(ONE, 5), (OTHER, u64::from(iterations % 100 == 0))], None);
            node.now_ns += 1_000;
            iterations += 1;
        }
        let of_one_ns = node.take(ONE) * COST_NS;
        let most_ns = (node.now_ns - begin_ns) / TIME_SHARE + BURST_NS;
        assert!(of_one_ns <= most_ns + COST_NS && of_one_ns > most_ns * 9 / 10, "{of_one_ns}");
    }

    #[test]
    fn links_that_wait_have_their_turns_in_order_and_owners_alternate() {
        let mut turns = Turns::default();
        turns.begin(0);
        for owner in [ONE, OTHER] {
            turns.served(owner, 1, 0);
        }
        let [a, b, c] = [1, 2, 3].map(LinkId::of_token);
        turns.wait(ONE, a, 1);
        turns.wait(ONE, b, 1);
        turns.wait(OTHER, c, 1);
        let nobody = |_: Owner| false;
        let order = [0; 4].map(|_| turns.next(2, nobody).map(|(_, link)| link));
        assert_eq!(order, [Some(a), Some(c), Some(b), None]);
        assert_eq!(turns.deadline_ns(2, nobody), None);
    }

    #[test]
    fn an_owner_that_is_held_waits_and_is_no_reason_to_wake() {
        let mut turns = Turns::default();
        turns.begin(0);
        let link = LinkId::of_token(1);
        turns.wait(ONE, link, 1);
        assert_eq!(turns.next(2, |owner| owner == ONE), None);
        assert_eq!(turns.deadline_ns(2, |owner| owner == ONE), None);
        assert_eq!(turns.deadline_ns(2, |_| false), Some(2));
        assert_eq!(turns.next(2, |_| false), Some((ONE, link)));
    }

    #[test]
    fn an_owner_without_credit_goes_on_when_it_has_some() {
        let mut turns = Turns::default();
        turns.begin(0);
        turns.served(OTHER, 0, 0);
        // One deed that took long: it pays for all of it.
        turns.served(ONE, 0, BURST_NS + 100_000_000);
        turns.wait(ONE, LinkId::of_token(1), 0);
        turns.begin(1);
        assert_eq!(turns.next(1, |_| false), None);
        let due_ns = turns.deadline_ns(0, |_| false).unwrap();
        assert!((200_000_000..200_000_010).contains(&due_ns), "{due_ns}");
        turns.begin(due_ns - 10);
        assert_eq!(turns.next(due_ns - 10, |_| false), None);
        turns.begin(due_ns);
        assert!(turns.next(due_ns, |_| false).is_some());
    }

    #[test]
    fn nothing_is_kept_of_owners_that_have_gone() {
        let mut turns = Turns::default();
        for user in 0..1_000 {
            turns.served(Owner::of_user(user), u64::from(user), 1_000);
        }
        assert!(turns.owners.len() > 900);
        turns.begin(10 * SERVED_NS);
        assert_eq!(turns.owners.len(), 0);
        assert!(!turns.has_others(THIRD, 10 * SERVED_NS));
    }
}
