//! Which watched sessions of a cell are away, as its leader finds out.
//!
//! Gateways name the sessions that are linked to them, again and again. One that none has named for
//! as long as it has asked for is away, and its orders are cancelled. Nothing of this is
//! replicated: a new leader knows from the log who is watched, and gives each of them its whole
//! time. So no gateway, router or mediator has to live on, and none of them decides alone.
//!
//! Time counts as long as the leader runs: after a standstill it must not take sessions for away
//! whose gateways it has not read.

use std::collections::{BTreeMap, BTreeSet};

use nm_book::order::{InstrumentId, Matching, UserId};
use nm_wire::{AwayTime, Presence, Present};

use crate::cell::{Cell, Watch};
use crate::limits::WATCHED_AFTER_S;

/// How often gateways name sessions, ns.
pub const NAMED_EACH_NS: u64 = 500_000_000;

/// How often a leader looks for sessions that are away, ns.
const CHECK_NS: u64 = 100_000_000;

/// What is added to the time that a session has, so that its orders never go too early, ns: it may
/// leave right before it is named again, and time counts in steps.
const MARGIN_NS: u64 = NAMED_EACH_NS + 2 * CHECK_NS;

/// Longest time that counts between two looks, ns.
const STEP_NS_MAX: u64 = 2 * CHECK_NS;

/// Least time between two searches for their orders, ns.
const SEARCH_NS: u64 = 1_000_000_000;

/// What one look may do: sessions and orders that are looked at.
const WORK_MAX: usize = 1 << 16;

/// What a leader knows of the absence of sessions.
#[derive(Debug, Default)]
pub struct Absence {
    /// How long it has run as the leader, ns.
    run_ns: u64,
    /// When it looked last, ns.
    looked_ns: Option<u64>,
    /// When each session was named last, in `run_ns`; not at all: at 0.
    named: BTreeMap<UserId, u64>,
    /// A search under way: the instrument that is next, and the sessions with orders.
    search: Option<(InstrumentId, BTreeSet<UserId>)>,
    searched_ns: u64,
}

impl Absence {
    /// Another term begins, or this node leads no longer.
    pub fn clear(&mut self) {
        *self = Absence::default();
    }

    /// A gateway names sessions; `enqueue` gets entries for those that are not watched so.
    pub fn on_presence<M: Matching>(
        &mut self,
        cell: &Cell<M>,
        presence: &Presence,
        mut enqueue: impl FnMut(&[u8]),
    ) {
        let watched = cell.watched();
        for Present { session, cancel_after_s, owner } in presence.sessions.iter().copied() {
            let known = watched.get(session);
            let known_s = known.map_or(0, |known| known.cancel_after_s);
            let may_change = cancel_after_s == 0 || watched.has_room(session, owner);
            if known_s != cancel_after_s && may_change {
                enqueue(&watch(cell.number(), session, Watch { cancel_after_s, owner }));
            }
            if cancel_after_s > 0 && (known.is_some() || may_change) {
                self.named.insert(session, self.run_ns);
            }
        }
    }

    /// When [`Absence::advance`] is due.
    pub fn deadline_ns<M: Matching>(&self, cell: &Cell<M>) -> Option<u64> {
        let next_ns = self.looked_ns.map_or(0, |looked_ns| looked_ns + CHECK_NS);
        (!cell.watched().is_empty()).then_some(next_ns)
    }

    /// Looks for sessions that are away, if that is due; `enqueue` gets what cancels their orders.
    pub fn advance<M: Matching>(
        &mut self,
        cell: &Cell<M>,
        now_ns: u64,
        mut enqueue: impl FnMut(&[u8]),
    ) {
        if cell.watched().is_empty() || self.deadline_ns(cell) > Some(now_ns) {
            return;
        }
        let looked_ns = self.looked_ns.replace(now_ns).unwrap_or(now_ns);
        self.run_ns += now_ns.saturating_sub(looked_ns).min(STEP_NS_MAX);
        let away = self.away(cell, 0);
        if away.is_empty() {
            self.search = None;
            return;
        }
        if self.search.is_none() && self.run_ns >= self.searched_ns {
            self.search = Some((0, BTreeSet::new()));
            self.searched_ns = self.run_ns + SEARCH_NS;
        }
        let Some((from, mut with_orders)) = self.search.take() else { return };
        let (requests, next) = cell.cancellations(&away, from, WORK_MAX);
        for request in requests {
            with_orders.insert(request.session);
            let mut entry = vec![];
            nm_wire::write(&request, &mut entry);
            enqueue(&entry);
        }
        if let Some(next) = next {
            self.search = Some((next, with_orders));
            return;
        }
        for session in self.away(cell, WATCHED_AFTER_S).difference(&with_orders) {
            enqueue(&watch(cell.number(), *session, Watch::NO_LONGER));
        }
    }

    /// Sessions that are away for `more_s` longer than they may be.
    fn away<M: Matching>(&mut self, cell: &Cell<M>, more_s: u32) -> BTreeSet<UserId> {
        self.named.retain(|session, _| cell.watched().get(*session).is_some());
        let is_away = |session: UserId, after_s: u32| {
            let named_ns = self.named.get(&session).copied().unwrap_or_default();
            let most_ns = (u64::from(after_s) + u64::from(more_s)) * 1_000_000_000;
            self.run_ns - named_ns >= most_ns + MARGIN_NS
        };
        let watched = cell.watched().iter();
        let away = watched.filter(|(session, watch)| is_away(*session, watch.cancel_after_s));
        away.map(|(session, _)| session).collect()
    }
}

fn watch(cell: u16, session: UserId, watch: Watch) -> Vec<u8> {
    let mut entry = vec![];
    let Watch { cancel_after_s, owner } = watch;
    nm_wire::write(&AwayTime { cell, session, cancel_after_s, owner }, &mut entry);
    entry
}

#[cfg(test)]
mod tests {
    use nm_book::book::Book;
    use nm_wire::{Kind, Owner, Request};

    use super::*;
    use crate::cell::Handled;
    use crate::cell::testing::order;

    const SECOND: u64 = 1_000_000_000;

    /// A leader in simulated time whose entries are committed at once.
    struct Leader {
        cell: Cell<Book>,
        absence: Absence,
        now_ns: u64,
        index: u64,
        cancelled: Vec<(UserId, u64)>,
    }

    impl Leader {
        /// Sessions 2 and 4 have orders.
        fn new() -> Leader {
            let mut cell = Cell::default();
            cell.begin(1, 5);
            for instrument in 0..3 {
                cell.handle(&order(2, instrument, 1, 0), |_| {});
                cell.handle(&order(4, instrument, 1, 0), |_| {});
            }
            let (absence, cancelled) = (Absence::default(), vec![]);
            Leader { cell, absence, now_ns: 7 * SECOND, index: 1, cancelled }
        }

        fn commit(&mut self, entries: Vec<Vec<u8>>) {
            for entry in entries {
                self.index += 1;
                self.cell.begin(self.index, self.now_ns);
                let frame = nm_wire::read(&entry).unwrap().unwrap();
                self.cell.admit(frame).unwrap();
                if frame.kind() == Kind::Request {
                    let request: Request = frame.read().unwrap();
                    let handled = self.cell.handle(&request, |_| {});
                    assert!(matches!(handled, Handled::Executed(_)), "{handled:?}");
                    self.cancelled.push((request.session, self.now_ns / SECOND));
                }
            }
        }

        fn name(&mut self, sessions: &[(UserId, u32)]) {
            let present = |(session, cancel_after_s): &(UserId, u32)| Present {
                session: *session,
                cancel_after_s: *cancel_after_s,
                owner: Owner::of_user(1),
            };
            let sessions = sessions.iter().map(present).collect();
            let presence = Presence { cell: 0, gateway: 1, sessions };
            let mut entries = vec![];
            self.absence.on_presence(&self.cell, &presence, |it| entries.push(it.to_vec()));
            self.commit(entries);
        }

        fn advance(&mut self) {
            let mut entries = vec![];
            self.absence.advance(&self.cell, self.now_ns, |it| entries.push(it.to_vec()));
            self.commit(entries);
        }

        /// Time passes, and these sessions are named each half second.
        fn pass(&mut self, seconds: u64, named: &[(UserId, u32)]) {
            for step in 0..seconds * 20 {
                if step % 10 == 0 {
                    self.name(named);
                }
                self.now_ns += SECOND / 20;
                self.advance();
            }
        }
    }

    #[test]
    fn orders_of_a_session_that_nobody_names_are_cancelled_after_its_time() {
        let mut leader = Leader::new();
        leader.pass(10, &[(2, 3), (4, 3)]);
        assert_eq!((leader.cancelled.len(), leader.cell.watched().len()), (0, 2));
        leader.pass(2, &[(4, 3)]);
        assert!(leader.cancelled.is_empty(), "{:?}", leader.cancelled);
        leader.pass(2, &[(4, 3)]);
        assert_eq!(leader.cancelled, [(2, 20), (2, 20), (2, 20)]);
        leader.pass(57, &[(4, 3)]);
        assert!(leader.cell.watched().get(2).is_some(), "an order may be on its way");
        leader.pass(6, &[(4, 3)]);
        let watched = leader.cell.watched().iter().map(|(session, _)| session);
        assert_eq!(watched.collect::<Vec<_>>(), [4]);
    }

    #[test]
    fn a_session_that_comes_back_in_time_keeps_its_orders() {
        let mut leader = Leader::new();
        leader.pass(2, &[(2, 3)]);
        leader.pass(2, &[]);
        leader.pass(5, &[(2, 3)]);
        leader.pass(2, &[]);
        // One that asks for it no longer is not cancelled.
        leader.name(&[(2, 0)]);
        leader.pass(30, &[]);
        assert!(leader.cancelled.is_empty() && leader.cell.watched().is_empty());
    }

    #[test]
    fn an_order_that_comes_when_its_session_is_long_away_is_cancelled_as_well() {
        let mut leader = Leader::new();
        leader.pass(1, &[(2, 3)]);
        leader.pass(10, &[]);
        assert_eq!(leader.cancelled.len(), 3);
        leader.cell.handle(&order(2, 1, 2, 1), |_| {});
        leader.pass(2, &[]);
        assert_eq!(leader.cancelled.len(), 4);
    }

    #[test]
    fn a_new_leader_gives_each_session_its_complete_time() {
        let mut leader = Leader::new();
        leader.pass(1, &[(2, 3)]);
        leader.pass(2, &[]);
        leader.absence.clear();
        leader.pass(2, &[]);
        assert!(leader.cancelled.is_empty());
        leader.pass(2, &[]);
        assert_eq!(leader.cancelled.len(), 3);
    }

    #[test]
    fn a_standstill_of_the_leader_is_no_absence_of_others() {
        let mut leader = Leader::new();
        leader.pass(1, &[(2, 3)]);
        leader.now_ns += 100 * SECOND;
        leader.advance();
        assert!(leader.cancelled.is_empty());
        leader.pass(5, &[(2, 3)]);
        assert!(leader.cancelled.is_empty());
    }
}
