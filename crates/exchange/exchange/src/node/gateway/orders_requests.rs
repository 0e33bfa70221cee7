//! Questions of sessions for their open orders, of which few are under way: each may let a cell
//! look at a whole book.

use std::collections::{BTreeMap, VecDeque};

use nm_book::order::UserId;
use nm_wire::OrdersRequest;

use crate::limits::ORDERS_REQUESTS_MAX;

/// After how long a question without an answer makes room for another one, ns.
const ANSWER_NS: u64 = 1_000_000_000;

/// Questions for open orders.
#[derive(Debug, Default)]
pub struct OrdersRequests {
    /// When each of them was sent on, ns.
    under_way: BTreeMap<UserId, u64>,
    waiting: VecDeque<OrdersRequest>,
}

impl OrdersRequests {
    /// A session asks; a question of it that waits still is forgotten.
    pub fn push(&mut self, request: &OrdersRequest) {
        match self.waiting.iter_mut().find(|it| it.session == request.session) {
            Some(known) => *known = *request,
            None => self.waiting.push_back(*request),
        }
    }

    /// The next question that may be sent on, and counts as under way.
    pub fn pop(&mut self, now_ns: u64) -> Option<OrdersRequest> {
        if self.waiting.is_empty() {
            return None;
        }
        self.under_way.retain(|_, sent_ns| now_ns - *sent_ns < ANSWER_NS);
        if self.under_way.len() >= ORDERS_REQUESTS_MAX {
            return None;
        }
        let free = |it: &OrdersRequest| !self.under_way.contains_key(&it.session);
        let at = self.waiting.iter().position(free)?;
        let request = self.waiting.remove(at)?;
        self.under_way.insert(request.session, now_ns);
        Some(request)
    }

    /// A question of a session was answered, or its link has ended.
    pub fn answered(&mut self, session: UserId) {
        self.under_way.remove(&session);
    }

    /// A session has no link here any more.
    pub fn remove(&mut self, session: UserId) {
        self.answered(session);
        self.waiting.retain(|it| it.session != session);
    }

    /// When a question that waits may be sent on at the latest, ns.
    pub fn deadline_ns(&self) -> Option<u64> {
        let first = self.under_way.values().min().filter(|_| !self.waiting.is_empty())?;
        Some(first + ANSWER_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(session: UserId, id: u64) -> OrdersRequest {
        OrdersRequest { session, cell: 0, gateway: 0, instrument: 0, id }
    }

    #[test]
    fn few_questions_are_under_way_and_one_of_a_session() {
        let mut all = OrdersRequests::default();
        (0..200).for_each(|session| all.push(&question(session, 0)));
        all.push(&question(3, 7));
        let sent = |all: &mut OrdersRequests, now_ns| {
            let next = || all.pop(now_ns).map(|it| (it.session, it.id));
            std::iter::from_fn(next).collect::<Vec<_>>()
        };
        let first = sent(&mut all, 5);
        assert_eq!((first.len(), first[3]), (ORDERS_REQUESTS_MAX, (3, 7)));
        all.push(&question(3, 8));
        all.answered(9);
        assert_eq!(sent(&mut all, 6), [(64, 0)], "session 3 has one under way");
        all.remove(70);
        let later = sent(&mut all, 5 + ANSWER_NS);
        assert!(later.contains(&(71, 0)) && !later.contains(&(70, 0)), "{later:?}");
    }
}
