//! Sessions whose orders are cancelled when they are away, and what a session has here.
//!
//! The log says which sessions are *watched*, so whoever leads the cell knows them. The leader
//! alone finds out which of them are away ([`Absence`](crate::node::replica::absence::Absence)). It
//! cancels their orders by requests in their names, with number 0. These take a place among all
//! requests on the instrument and none among those of the session, which goes on where it was.
//! There is one for each instrument, so replicas, copies and replays treat it as any other.

use std::collections::BTreeSet;
use std::ops::Bound;

use nm_book::order::{Command, InstrumentId, LiveOrder, Matching, OrderId, UserId};
use nm_wire::{NextPart, OpenOrders, OrdersRequest, Owner, Request, SessionPosition};

use crate::limits::{OPEN_ORDERS_INSTRUMENTS_MAX, OPEN_ORDERS_MAX};

use super::Cell;
use super::watched::{EXCHANGE_SEQ, WatchedSessions};

impl<M: Matching> Cell<M> {
    /// Sessions whose orders are cancelled when they are away.
    pub fn watched(&self) -> &WatchedSessions {
        &self.watched
    }

    /// Looks for live orders of sessions from an instrument on, until it has done so much work: the
    /// requests that cancel them, and the instrument to go on with, if there is one.
    pub fn cancellations(
        &self,
        sessions: &BTreeSet<UserId>,
        from: InstrumentId,
        most: usize,
    ) -> (Vec<Request>, Option<InstrumentId>) {
        let (mut found, mut work) = (vec![], 0);
        for (instrument, state) in self.instruments.range(from..) {
            if work >= most {
                return (found, Some(*instrument));
            }
            work += sessions.len().min(state.sessions.len());
            let is_live = |session: &UserId| {
                state.sessions.get(session).is_some_and(|known| known.live_orders > 0)
            };
            let live: Vec<UserId> = match sessions.len() < state.sessions.len() {
                true => sessions.iter().copied().filter(is_live).collect(),
                false => {
                    let all = state.sessions.keys().copied();
                    all.filter(|it| sessions.contains(it) && is_live(it)).collect()
                }
            };
            for session in live.into_iter().filter(|_| self.owns(*instrument)) {
                // The book looks at all of its orders.
                work += state.book.len();
                found.push(cancellation(self.number, *instrument, session));
            }
        }
        (found, None)
    }

    /// A part of what a session has here.
    pub fn open_orders(&self, request: &OrdersRequest) -> OpenOrders {
        let OrdersRequest { session, cell, gateway, instrument, id } = *request;
        let mut part = OpenOrders { session, cell, gateway, positions: vec![], next: None };
        let (mut room, mut first_id) = (OPEN_ORDERS_MAX, id);
        for (at, state) in self.instruments.range((Bound::Included(instrument), Bound::Unbounded)) {
            let from_id = if *at == instrument { std::mem::take(&mut first_id) } else { 0 };
            let known = state.sessions.get(&session).filter(|_| self.owns(*at));
            let Some(known) = known else { continue };
            if room == 0 || part.positions.len() == OPEN_ORDERS_INSTRUMENTS_MAX {
                part.next = Some(NextPart { instrument: *at, id: from_id });
                return part;
            }
            let mut orders = vec![];
            if known.live_orders > 0 {
                state.book.visit_orders_of(session, &mut |it| orders.push(it));
            }
            let next = cut(&mut orders, from_id, room);
            room -= orders.len();
            part.positions.push(SessionPosition {
                instrument: *at,
                executed_seq: known.last_request_seq,
                last_event: known.last_event_seq,
                live_orders: known.live_orders,
                orders: orders.into_iter().map(to_wire).collect(),
            });
            if let Some(id) = next {
                part.next = Some(NextPart { instrument: *at, id });
                return part;
            }
        }
        part
    }
}

/// Leaves so many orders from an id on, by their ids; the next id, if there are more.
fn cut(orders: &mut Vec<LiveOrder>, from_id: OrderId, room: usize) -> Option<OrderId> {
    orders.retain(|order| order.id >= from_id);
    orders.sort_unstable();
    let next = orders.get(room).map(|order| order.id);
    orders.truncate(room);
    next
}

fn to_wire(order: LiveOrder) -> nm_wire::LiveOrder {
    let LiveOrder { id, is_buy, price, left, is_pending_stop } = order;
    nm_wire::LiveOrder { id, is_buy, price, left, is_pending_stop }
}

/// Cancels all orders of a session on an instrument, in its name.
fn cancellation(cell: u16, instrument: InstrumentId, session: UserId) -> Request {
    Request {
        instrument,
        session,
        client_seq: EXCHANGE_SEQ,
        previous_seq: 0,
        acknowledged: 0,
        intended_ns: 0,
        owner: Owner::NOBODY,
        map_version: 0,
        gateway: 0,
        cell,
        attempt: 0,
        is_previous_answered: false,
        breach: 0,
        command: Command::MassCancel { user: session },
    }
}

#[cfg(test)]
mod tests {
    use nm_book::book::Book;
    use nm_book::order::{CancelReason, Event};
    use nm_book::reference::ReferenceBook;
    use nm_wire::AwayTime;
    use proptest::prelude::*;

    use super::super::testing::order;
    use super::super::{Admitted, Handled};
    use super::*;

    fn all(sessions: &[UserId]) -> BTreeSet<UserId> {
        sessions.iter().copied().collect()
    }

    /// Sessions 2 and 4 buy on instruments 0 to 2.
    fn cell<M: Matching>() -> Cell<M> {
        let mut cell = Cell::default();
        cell.begin(1, 5);
        for instrument in 0..3 {
            for seq in 1..=3 {
                cell.handle(&order(2, instrument, seq, seq - 1), |_| {});
                cell.handle(&order(4, instrument, seq, seq - 1), |_| {});
            }
        }
        cell
    }

    #[test]
    fn an_absent_session_loses_its_orders_and_nothing_else() {
        let mut cell = cell::<Book>();
        let (requests, next) = cell.cancellations(&all(&[2, 9]), 0, usize::MAX);
        assert_eq!((requests.len(), next), (3, None));
        let standing = cell.standing(1, 2);
        for request in &requests {
            let mut events = vec![];
            let Handled::Executed(outcome) = cell.handle(request, |event| events.push(*event))
            else {
                panic!("{request:?}")
            };
            assert_eq!((outcome.client_seq, outcome.output_seq), (0, 7));
            let is_it = |event: &Event| {
                matches!(
                    event,
                    Event::Cancelled { user: 2, reason: CancelReason::Disconnected, .. }
                )
            };
            assert!(events.len() == 3 && events.iter().all(is_it), "{events:?}");
            assert_eq!(cell.handle(request, |_| {}), Handled::Duplicate(None), "there is no more");
        }
        assert_eq!((standing, cell.standing(1, 2)), ((3, 3), (3, 0)));
        assert_eq!((cell.standing(1, 4), cell.last_event_seq(1, 2)), ((3, 3), 6));
        assert_eq!(cell.cancellations(&all(&[2]), 0, usize::MAX), (vec![], None));
        // The session goes on behind its last request, and gets what has happened.
        let (before, kept) = cell.events_after(1, 2, 3).unwrap();
        assert_eq!((before, kept.count()), (3, 3));
        assert!(matches!(cell.handle(&order(2, 1, 4, 3), |_| {}), Handled::Executed(_)));
        assert!(matches!(cell.handle(&order(2, 1, 6, 5), |_| {}), Handled::SequenceGap));
    }

    #[test]
    fn a_session_that_is_not_known_makes_nothing_by_its_absence() {
        let mut cell = cell::<Book>();
        let hash = cell.hash();
        for instrument in [0, 77] {
            let request = cancellation(0, instrument, 9);
            assert_eq!(cell.handle(&request, |_| {}), Handled::Duplicate(None));
        }
        assert_eq!(cell.hash(), hash);
    }

    #[test]
    fn a_long_search_goes_on_where_it_was() {
        let cell = cell::<Book>();
        let (mut from, mut found, mut rounds) = (Some(0), vec![], 0);
        while let Some(at) = from {
            let (requests, next) = cell.cancellations(&all(&[2, 4]), at, 1);
            found.extend(requests.iter().map(|it| (it.instrument, it.session)));
            (from, rounds) = (next, rounds + 1);
        }
        let expected: Vec<_> = (0..3).flat_map(|it| [(it, 2), (it, 4)]).collect();
        assert_eq!((found, rounds), (expected, 3));
    }

    #[test]
    fn who_is_watched_survives_a_snapshot() {
        let mut cell = cell::<Book>();
        let watch = |cell: &mut Cell<Book>, session, cancel_after_s| {
            let mut entry = vec![];
            let owner = Owner::of_user(1);
            nm_wire::write(&AwayTime { cell: 0, session, cancel_after_s, owner }, &mut entry);
            let admitted = cell.admit(nm_wire::read(&entry).unwrap().unwrap());
            assert_eq!(admitted, Ok(Admitted::Watched));
        };
        watch(&mut cell, 2, 5);
        watch(&mut cell, 3, 7);
        watch(&mut cell, 3, 0);
        let loaded = Cell::<Book>::load(&cell.save()).unwrap();
        assert_eq!(loaded.watched(), cell.watched());
        let watched = cell.watched().iter().map(|(session, it)| (session, it.cancel_after_s));
        assert_eq!(watched.collect::<Vec<_>>(), [(2, 5)]);
        assert_eq!(loaded.hash(), cell.hash());
    }

    #[test]
    fn open_orders_come_in_parts_and_all_of_them_come() {
        let mut cell = cell::<Book>();
        for seq in 4..=2_500 {
            cell.handle(&order(2, 1, seq, seq - 1), |_| {});
        }
        let (mut ids, mut parts, mut positions) = (vec![], 0, vec![]);
        let mut next = Some(NextPart { instrument: 0, id: 0 });
        while let Some(NextPart { instrument, id }) = next {
            let question = OrdersRequest { session: 2, cell: 0, gateway: 1, instrument, id };
            let part = cell.open_orders(&question);
            let orders = part.positions.iter().flat_map(|it| &it.orders);
            assert!(orders.clone().count() <= OPEN_ORDERS_MAX);
            ids.extend(orders.map(|order| order.id & 0xffff_ffff));
            let numbers = |it: &SessionPosition| (it.instrument, it.executed_seq, it.last_event);
            positions.extend(part.positions.iter().map(numbers));
            (next, parts) = (part.next, parts + 1);
        }
        positions.dedup();
        assert_eq!(positions, [(0, 3, 3), (1, 2_500, 2_500), (2, 3, 3)]);
        let expected: Vec<u64> = (1..=3).chain(1..=2_500).chain(1..=3).collect();
        assert_eq!((ids, parts), (expected, 3));
    }

    proptest! {
        /// Whatever happens, both books agree, and only who is away loses orders.
        #[test]
        fn absences_are_the_same_in_both_books(
            steps in prop::collection::vec((0..6u32, 0..3u32, prop::bool::weighted(0.2)), 1..120),
        ) {
            let (mut fast, mut plain) = (Cell::<Book>::default(), Cell::<ReferenceBook>::default());
            for ((session, instrument, leaves), index) in steps.into_iter().zip(1..) {
                fast.begin(index, index);
                plain.begin(index, index);
                let orders = |cell: &Cell<Book>| -> Vec<u32> {
                    (0..6).map(|it| cell.standing(instrument, it).1).collect()
                };
                let before = orders(&fast);
                let request = if leaves {
                    cancellation(0, instrument, session)
                } else {
                    let last = fast.last_request_seq(instrument, session);
                    order(session, instrument, last + 1, last)
                };
                prop_assert_eq!(fast.handle(&request, |_| {}), plain.handle(&request, |_| {}));
                prop_assert_eq!(fast.hash(), plain.hash());
                if leaves {
                    let mut expected = before;
                    expected[session as usize] = 0;
                    prop_assert_eq!(orders(&fast), expected);
                }
                let loaded = Cell::<Book>::load(&fast.save()).unwrap();
                let live = loaded.standing(instrument, session).1;
                prop_assert_eq!(live, orders(&fast)[session as usize]);
            }
        }
    }
}
