//! A replicated log that survives all crashes: what is committed is delivered to every member, in
//! order; what is proposed may be lost with its leader, or not. A leader that was replaced learns
//! of that late.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use nm_book::testing::Random;
use nm_replica::{Log, LogEvent, Refused, Shared};

use crate::network::{NodeId, Role};

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
    /// How many entries were delivered.
    delivered: usize,
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
    /// What the last leader had proposed when it ended.
    orphan: Option<Shared>,
    snapshot: Option<(u64, Shared)>,
    /// By the number of a wanted snapshot: the index that it is to have.
    wanted: BTreeMap<u64, u64>,
}

impl Group {
    /// A group whose members are all down.
    pub fn new(nodes: Vec<NodeId>) -> Group {
        let members = nodes.iter().map(|_| Member::default()).collect();
        Group {
            nodes,
            entries: vec![],
            term: 0,
            leader: None,
            members,
            orphan: None,
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
        (0..self.members.len()).filter(may_lead).collect()
    }

    /// Whether a member has something for its node.
    pub fn has_events(&self, member: usize) -> bool {
        !self.members[member].events.is_empty()
    }

    /// Whether a member that is up has been given all that is committed.
    pub fn is_caught_up(&self, member: usize) -> bool {
        self.members[member].delivered == self.entries.len() && !self.has_events(member)
    }

    /// A new proposal of a member, and the term in which it leads.
    pub fn new_proposal(&mut self, member: usize) -> Option<(u32, Shared)> {
        let known = &mut self.members[member];
        let proposal = known.proposal.clone().filter(|_| !known.is_noted)?;
        known.is_noted = true;
        Some((known.leading_term?, proposal))
    }

    /// A quorum has what a member proposed in a term: whether it is committed, because that member
    /// still leads.
    pub fn commit(&mut self, member: usize, term: u32, random: &mut Random) -> bool {
        let known = &mut self.members[member];
        let leads = self.leader == Some(member) && self.term == term;
        if !leads || known.leading_term != Some(term) {
            return false;
        }
        let Some(batch) = known.proposal.take() else { return false };
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
        let in_flight = match self.leader {
            Some(before) => self.members[before].proposal.clone(),
            None => self.orphan.take(),
        };
        if let Some(batch) = in_flight.filter(|_| random.chance(500)) {
            self.append(self.term, batch, random);
        }
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
        let before = std::mem::take(&mut self.members[member]);
        if self.leader == Some(member) {
            self.leader = None;
            self.orphan = before.proposal.filter(|_| before.leading_term == Some(self.term));
        }
    }

    /// A member's node has started: it is given everything again, from the snapshot if there is
    /// one and it is wanted.
    pub fn start(&mut self, member: usize, with_snapshot: bool) {
        let mut known = Member { is_up: true, ..Member::default() };
        if let Some((index, state)) = self.snapshot.as_ref().filter(|_| with_snapshot) {
            known.events.push_back(LogEvent::LoadSnapshot { index: *index, state: state.clone() });
            known.delivered = self.entries.partition_point(|entry| entry.index <= *index);
        }
        self.members[member] = known;
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
        unreachable!("nobody drains a simulated node");
    }

    fn replace(&mut self, _: usize, _: usize) {
        unreachable!("nobody replaces a simulated replica");
    }
}
