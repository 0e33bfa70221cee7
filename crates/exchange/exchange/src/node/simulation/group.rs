//! A replicated log: what is committed is delivered to every member, in order; what is proposed may
//! be lost with its leader, or not. A leader that was replaced learns of that late.
//!
//! A batch is committed when a majority has it: in memory, or synced to its disk. Disks differ in
//! speed, and a member that crashes has forgotten what was not synced. How real replicas agree, and
//! what they do about disks that lie, is simulated in their own crate.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use nm_book::testing::Random;
use nm_model::agent::Failure;
use nm_replica::{Log, LogEvent, Refused, Shared};

use crate::network::{Network, NodeId, Role};
use crate::node::replica::logs::LogSource;

/// A committed batch.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Rises, not always by one.
    pub index: u64,
    /// Term of the leader that proposed it.
    pub term: u32,
    /// The batch.
    pub batch: Shared,
}

/// A replica as its group sees it.
#[derive(Debug, Default)]
struct Member {
    is_up: bool,
    /// What its node has not taken yet.
    events: VecDeque<LogEvent>,
    /// The term in which it leads, as far as its node knows.
    leading_term: Option<u32>,
    /// The same with the events that its node has not taken.
    believes: Option<u32>,
    /// What it has proposed and is not committed, and whether its group has taken note.
    proposal: Option<Shared>,
    is_noted: bool,
    /// Whether its disk is slow.
    is_slow: bool,
    /// Whether its node wants another one to lead.
    wants_hand_over: bool,
    /// How many entries were delivered.
    delivered: usize,
}

/// A batch that a leader has proposed, and that is not committed.
#[derive(Debug)]
struct InFlight {
    number: u64,
    term: u32,
    batch: Shared,
    /// Which members have it.
    has: BTreeSet<usize>,
    /// Which members have it on their disks.
    synced: BTreeSet<usize>,
}

/// A group of replicas.
#[derive(Debug)]
pub struct Group {
    /// Where its members are.
    pub nodes: Vec<NodeId>,
    /// What is committed.
    pub entries: Vec<Entry>,
    /// The latest term.
    pub term: u32,
    /// The member that leads.
    pub leader: Option<usize>,
    members: Vec<Member>,
    /// Whether members have disks, which keep what was synced.
    is_on_disk: bool,
    in_flight: Option<InFlight>,
    proposed: u64,
    /// Whether the leader wants another one to lead.
    hands_over: bool,
    snapshot: Option<(u64, Shared)>,
    /// By the number of a wanted snapshot: the index that it is to have.
    wanted: BTreeMap<u64, u64>,
}

impl Group {
    /// A group whose members are all down.
    pub fn new(nodes: Vec<NodeId>, is_on_disk: bool, random: &mut Random) -> Group {
        let slow = if random.chance(300) { random.below(nodes.len() as u64) } else { u64::MAX };
        let member = |at: usize| Member { is_slow: at as u64 == slow, ..Member::default() };
        let members = (0..nodes.len()).map(member).collect();
        Group {
            nodes,
            entries: vec![],
            term: 0,
            leader: None,
            members,
            is_on_disk,
            in_flight: None,
            proposed: 0,
            hands_over: false,
            snapshot: None,
            wanted: BTreeMap::new(),
        }
    }

    /// The position of a node in it.
    pub fn member_at(&self, node: NodeId) -> Option<usize> {
        self.nodes.iter().position(|known| *known == node)
    }

    /// The node of its leader.
    pub fn leader_node(&self) -> Option<NodeId> {
        self.leader.map(|member| self.nodes[member])
    }

    /// Whether a majority of its members is up.
    pub fn has_majority(&self) -> bool {
        self.members.iter().filter(|member| member.is_up).count() * 2 > self.members.len()
    }

    /// The members that can lead.
    pub fn candidates(&self) -> Vec<usize> {
        let may_lead =
            |at: &usize| self.members[*at].is_up && self.nodes[*at].class == Role::Mediator;
        let mut candidates: Vec<usize> = (0..self.members.len()).filter(may_lead).collect();
        if self.hands_over && candidates.len() > 1 {
            candidates.retain(|at| self.leader != Some(*at));
        }
        candidates
    }

    /// Whether the leader has begun to hand over.
    pub fn take_hand_over(&mut self, member: usize) -> bool {
        self.leader == Some(member)
            && std::mem::take(&mut self.members[member].wants_hand_over)
            && !std::mem::replace(&mut self.hands_over, true)
    }

    /// Whether a member has something for its node.
    pub fn has_events(&self, member: usize) -> bool {
        !self.members[member].events.is_empty()
    }

    /// Whether a member that is up has been given all that is committed.
    pub fn is_caught_up(&self, member: usize) -> bool {
        let known = &self.members[member];
        let has_all = !known.is_up || known.delivered == self.entries.len();
        has_all && !self.has_events(member)
    }

    /// A new proposal of a member that leads, and its number.
    pub fn new_proposal(&mut self, member: usize) -> Option<(u64, Shared)> {
        let known = &mut self.members[member];
        let batch = known.proposal.clone().filter(|_| !known.is_noted)?;
        known.is_noted = true;
        let term = known.leading_term?;
        // Others take nothing from a leader that was replaced.
        if self.leader != Some(member) || self.term != term {
            return None;
        }
        self.proposed += 1;
        let (number, has, synced) = (self.proposed, BTreeSet::new(), BTreeSet::new());
        self.in_flight = Some(InFlight { number, term, batch: batch.clone(), has, synced });
        Some((number, batch))
    }

    /// The number of the proposal that is not committed.
    pub fn in_flight(&self) -> Option<u64> {
        self.in_flight.as_ref().map(|it| it.number)
    }

    /// When a member gets a proposal, and when its disk has it, ns from now.
    pub fn delays_ns(&self, member: usize, random: &mut Random) -> [u64; 2] {
        let mut delay_ns = || match random.below(100) {
            0..90 => random.between(20_000, 300_000),
            90..99 => random.between(300_000, 6_000_000),
            _ => random.between(6_000_000, 60_000_000),
        };
        let to_ns = if self.leader == Some(member) { 0 } else { delay_ns() };
        let slow_ns = if self.members[member].is_slow { random.below(80_000_000) } else { 0 };
        let disk_ns = random.between(30_000, 300_000) + slow_ns;
        [to_ns, to_ns + disk_ns]
    }

    /// A member has a proposal, or its disk has it; whether it is committed by that, because a
    /// majority has it and its leader still leads.
    pub fn store(
        &mut self,
        (member, number): (usize, u64),
        is_synced: bool,
        random: &mut Random,
    ) -> bool {
        let Some(it) = self.in_flight.as_mut().filter(|it| it.number == number) else {
            return false;
        };
        if !self.members[member].is_up {
            return false;
        }
        it.has.insert(member);
        if is_synced {
            it.synced.insert(member);
        }
        let acks = if self.is_on_disk { it.synced.len() } else { it.has.len() };
        let leader = self.leader.filter(|_| self.term == it.term);
        let leads = |at: &usize| self.members[*at].leading_term == Some(it.term);
        let Some(leader) = leader.filter(leads).filter(|_| acks * 2 > self.members.len()) else {
            return false;
        };
        self.members[leader].proposal = None;
        let InFlight { term, batch, .. } = self.in_flight.take().expect("a proposal");
        self.append(term, batch, random);
        true
    }

    fn append(&mut self, term: u32, batch: Shared, random: &mut Random) {
        let last = self.entries.last().map_or(0, |entry| entry.index);
        let index = last + 1 + u64::from(random.chance(100));
        self.entries.push(Entry { index, term, batch });
    }

    /// Gives a member what is committed, or the first of it.
    pub fn feed(&mut self, member: usize, random: &mut Random) {
        let known = &mut self.members[member];
        if !known.is_up {
            return;
        }
        if let Some((index, state)) = &self.snapshot
            && random.chance(100)
            && self.entries.get(known.delivered).is_some_and(|next| next.index < *index)
        {
            known.step_down(self.term);
            known.events.push_back(LogEvent::LoadSnapshot { index: *index, state: state.clone() });
            known.delivered = self.entries.partition_point(|entry| entry.index <= *index);
        }
        let missing = self.entries.len() - known.delivered;
        let count =
            if random.chance(700) { missing } else { random.below(missing as u64 + 1) as usize };
        known.deliver(&self.entries, known.delivered + count);
    }

    /// A member begins to lead, in a later term. What the leader before had proposed is committed
    /// before, or lost.
    pub fn elect(&mut self, winner: usize, random: &mut Random) {
        if let Some(it) = self.in_flight.take()
            && it.has.contains(&winner)
        {
            self.append(it.term, it.batch, random);
        }
        self.hands_over = false;
        self.term += 1 + random.below(2) as u32;
        self.leader = Some(winner);
        let known = &mut self.members[winner];
        known.step_down(self.term);
        known.deliver(&self.entries, self.entries.len());
        known.believes = Some(self.term);
        known.events.push_back(LogEvent::LeadershipGained { term: self.term });
    }

    /// A member that led learns that it does not any more.
    pub fn depose(&mut self, member: usize) {
        let term = self.term;
        self.members[member].step_down(term);
    }

    /// A member's node has died.
    pub fn crash(&mut self, member: usize) {
        let is_slow = self.members[member].is_slow;
        self.members[member] = Member { is_slow, ..Member::default() };
        if self.leader == Some(member) {
            self.leader = None;
        }
        if let Some(it) = &mut self.in_flight
            && !(self.is_on_disk && it.synced.contains(&member))
        {
            it.has.remove(&member);
            it.synced.remove(&member);
        }
    }

    /// A member's node has started: it is given everything again, from the snapshot if there is
    /// one and it is wanted.
    pub fn start(&mut self, member: usize, with_snapshot: bool) {
        let is_slow = self.members[member].is_slow;
        let mut known = Member { is_up: true, is_slow, ..Member::default() };
        if let Some((index, state)) = self.snapshot.as_ref().filter(|_| with_snapshot) {
            known.events.push_back(LogEvent::LoadSnapshot { index: *index, state: state.clone() });
            known.delivered = self.entries.partition_point(|entry| entry.index <= *index);
        }
        self.members[member] = known;
    }

    /// A member's node gives its replica up, because the cell was removed.
    pub fn close(&mut self, member: usize) {
        self.crash(member);
        self.members[member].events.push_back(LogEvent::Removed);
    }

    /// A member is to make a snapshot.
    pub fn want_snapshot(&mut self, member: usize) {
        let known = &mut self.members[member];
        if known.is_up && known.delivered > 0 {
            let number = self.wanted.len() as u64;
            self.wanted.insert(number, self.entries[known.delivered - 1].index);
            known.events.push_back(LogEvent::TakeSnapshot { number });
        }
    }
}

impl Member {
    /// It leads no more, in case it believes that it leads in an earlier term than this.
    fn step_down(&mut self, term: u32) {
        if self.believes.is_some_and(|believed| believed < term) {
            self.believes = None;
            self.events.push_back(LogEvent::LeadershipLost);
        }
    }

    /// Delivers the entries up to a position.
    fn deliver(&mut self, entries: &[Entry], to: usize) {
        for Entry { index, term, batch } in &entries[self.delivered..to] {
            self.step_down(*term);
            let (index, term, batch) = (*index, u64::from(*term), batch.clone());
            self.events.push_back(LogEvent::Committed { index, term, batch });
        }
        self.delivered = to;
    }
}

/// A member's log as its node sees it.
#[derive(Debug)]
pub struct SimulatedLog {
    /// Its group.
    pub group: Rc<RefCell<Group>>,
    /// Its position in it.
    pub member: usize,
}

/// All groups, and the replicas that nodes have opened lately.
#[derive(Debug)]
pub struct Registry {
    /// By number.
    pub groups: BTreeMap<u16, Rc<RefCell<Group>>>,
    /// Group, and position in it.
    pub opened: Vec<(u16, usize)>,
}

/// What gives a node the logs of cells that are added while it runs.
#[derive(Debug)]
pub struct Source {
    /// The groups.
    pub registry: Rc<RefCell<Registry>>,
    /// The node.
    pub node: NodeId,
    /// What it has opened, with the numbers of the groups.
    pub joined: Vec<(u16, SimulatedLog)>,
}

impl LogSource<SimulatedLog> for Source {
    fn next_joined(&mut self) -> Option<Result<(u16, SimulatedLog), Failure>> {
        self.joined.pop().map(Ok)
    }

    fn open(&mut self, network: &Network, node: NodeId, cell: u16) -> Result<(), Failure> {
        if !network.replicas(cell).contains(&node) {
            return Ok(());
        }
        let mut registry = self.registry.borrow_mut();
        let group = Rc::clone(&registry.groups[&cell]);
        let member = group.borrow().member_at(node).expect("a replica of the group");
        group.borrow_mut().start(member, false);
        registry.opened.push((cell, member));
        self.joined.push((cell, SimulatedLog { group, member }));
        Ok(())
    }

    fn close(&mut self, cell: u16) {
        let mut registry = self.registry.borrow_mut();
        let group = Rc::clone(&registry.groups[&cell]);
        let member = group.borrow().member_at(self.node);
        if let Some(member) = member {
            group.borrow_mut().close(member);
            registry.opened.push((cell, member));
        }
    }
}

impl Log for SimulatedLog {
    fn leading_term(&self) -> Option<u32> {
        self.group.borrow().members[self.member].leading_term
    }

    fn can_propose(&self) -> bool {
        let group = self.group.borrow();
        let known = &group.members[self.member];
        known.leading_term.is_some() && known.proposal.is_none()
    }

    fn is_caught_up(&self) -> bool {
        true
    }

    fn other_clocks(&self, _monotonic_ns: u64) -> Vec<(usize, u64)> {
        vec![]
    }

    fn propose(&mut self, batch: Vec<u8>) -> Result<(), Refused> {
        if !self.can_propose() {
            return Err(Refused(batch));
        }
        let known = &mut self.group.borrow_mut().members[self.member];
        (known.proposal, known.is_noted) = (Some(Shared(Arc::new(batch))), false);
        Ok(())
    }

    fn next_event(&mut self) -> Option<LogEvent> {
        let known = &mut self.group.borrow_mut().members[self.member];
        let event = known.events.pop_front()?;
        match &event {
            LogEvent::LeadershipGained { term } => known.leading_term = Some(*term),
            LogEvent::LeadershipLost => (known.leading_term, known.proposal) = (None, None),
            _ => {}
        }
        Some(event)
    }

    fn finish_snapshot(&mut self, number: u64, state: Vec<u8>) {
        let mut group = self.group.borrow_mut();
        let index = group.wanted[&number];
        if group.snapshot.as_ref().is_none_or(|(known, _)| *known < index) {
            group.snapshot = Some((index, Shared(Arc::new(state))));
        }
    }

    fn hand_over(&mut self) {
        self.group.borrow_mut().members[self.member].wants_hand_over = true;
    }

    fn replace(&mut self, _: usize, _: usize) {
        unreachable!("nobody replaces a simulated replica");
    }
}
