//! Resend requests of a gateway's clients. The answer to one of 36 bytes may be a thousand times as
//! long. So a client link has a number of them under way, and all links together have another.
//! Those behind wait for answers; links take turns. Of one instrument and session one is under way,
//! and the newest other one follows it.

use std::collections::{BTreeMap, HashMap, VecDeque};

use nm_book::order::{InstrumentId, UserId};
use nm_wire::ResendRequest;

use crate::limits::{LINK_RESEND_REQUESTS_MAX, RESEND_REQUESTS_MAX};

use crate::node::runtime::links::LinkId;

/// Bytes that a gateway counts for a resend request that waits.
pub const WAITING_BYTES: usize = 192;

/// Time after which one counts as answered: the answer is lost, and the session is asked to send it
/// again.
const ANSWER_NS: u64 = 1_000_000_000;

/// An instrument of a session.
pub type Key = (InstrumentId, UserId);

fn key(request: &ResendRequest) -> Key {
    (request.instrument, request.session)
}

#[derive(Debug, Default)]
struct OfLink {
    under_way: usize,
    waiting: HashMap<Key, ResendRequest>,
    /// The keys of those that wait, in order.
    order: VecDeque<Key>,
}

#[derive(Debug)]
struct UnderWay {
    link: LinkId,
    until_ns: u64,
    /// The newest one that came meanwhile, and by which link.
    again: Option<(LinkId, ResendRequest)>,
}

/// The resend requests of all client links.
#[derive(Debug, Default)]
pub struct ResendRequests {
    links: HashMap<LinkId, OfLink>,
    /// Links with requests that wait, in turn. One that may send none is left out until it may.
    turns: VecDeque<LinkId>,
    /// In order, so that those that are late are asked again in the same order in any process.
    under_way: BTreeMap<Key, UnderWay>,
}

impl ResendRequests {
    /// Whether one more would wait if this one were added.
    pub fn adds_waiting(&self, link: LinkId, request: &ResendRequest) -> bool {
        let key = key(request);
        let waits = |of_link: &OfLink| of_link.waiting.contains_key(&key);
        !self.under_way.contains_key(&key) && !self.links.get(&link).is_some_and(waits)
    }

    /// Adds one that came by a link.
    pub fn push(&mut self, link: LinkId, request: &ResendRequest) {
        let key = key(request);
        if let Some(under_way) = self.under_way.get_mut(&key) {
            under_way.again = Some((link, *request));
            return;
        }
        let of_link = self.links.entry(link).or_default();
        if of_link.waiting.insert(key, *request).is_some() {
            return;
        }
        of_link.order.push_back(key);
        if of_link.order.len() == 1 && of_link.under_way < LINK_RESEND_REQUESTS_MAX {
            self.turns.push_back(link);
        }
    }

    /// The next one that may be sent, and its link; [`ResendRequests::sent`] says that it was.
    pub fn pop(&mut self) -> Option<(LinkId, ResendRequest)> {
        if self.under_way.len() >= RESEND_REQUESTS_MAX {
            return None;
        }
        while let Some(link) = self.turns.pop_front() {
            let Some(of_link) = self.links.get_mut(&link) else { continue };
            if of_link.under_way >= LINK_RESEND_REQUESTS_MAX {
                continue;
            }
            let Some(key) = of_link.order.pop_front() else { continue };
            let request = of_link.waiting.remove(&key);
            if !of_link.order.is_empty() {
                self.turns.push_back(link);
            } else if of_link.under_way == 0 {
                self.links.remove(&link);
            }
            return request.map(|request| (link, request));
        }
        None
    }

    /// One was sent, and has no answer yet.
    pub fn sent(&mut self, link: LinkId, request: &ResendRequest, now_ns: u64) {
        let new = UnderWay { link, until_ns: now_ns + ANSWER_NS, again: None };
        if let Some(before) = self.under_way.insert(key(request), new) {
            self.ended(before.link);
        }
        self.links.entry(link).or_default().under_way += 1;
    }

    /// One came back, and is sent once more: it is waited for from now on.
    pub fn came_back(&mut self, request: &ResendRequest, now_ns: u64) {
        if let Some(under_way) = self.under_way.get_mut(&key(request)) {
            under_way.until_ns = now_ns + ANSWER_NS;
        }
    }

    /// The answer to one has come; the newest that came after it, to be added again.
    pub fn answered(&mut self, key: Key) -> Option<(LinkId, ResendRequest)> {
        let UnderWay { link, again, .. } = self.under_way.remove(&key)?;
        self.ended(link);
        again
    }

    /// Gives up waiting for answers that are late; those to be added again.
    pub fn expire(&mut self, now_ns: u64) -> Vec<(LinkId, ResendRequest)> {
        let late = self.under_way.extract_if(.., |_, under_way| now_ns >= under_way.until_ns);
        let late: Vec<UnderWay> = late.map(|(_, under_way)| under_way).collect();
        late.iter().for_each(|under_way| self.ended(under_way.link));
        late.into_iter().filter_map(|under_way| under_way.again).collect()
    }

    /// One of a link is no longer under way, so that another one may be.
    fn ended(&mut self, link: LinkId) {
        let Some(of_link) = self.links.get_mut(&link) else { return };
        let was_full = of_link.under_way >= LINK_RESEND_REQUESTS_MAX;
        of_link.under_way = of_link.under_way.saturating_sub(1);
        if of_link.order.is_empty() {
            if of_link.under_way == 0 {
                self.links.remove(&link);
            }
        } else if was_full {
            self.turns.push_back(link);
        }
    }

    /// Forgets a link; how many of its requests waited.
    pub fn remove_link(&mut self, link: LinkId) -> usize {
        self.links.remove(&link).map_or(0, |of_link| of_link.order.len())
    }

    /// Whether none waits or is under way.
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty() && self.under_way.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(instrument: u32, session: u32) -> ResendRequest {
        ResendRequest { instrument, session, acknowledged: 0, gateway: 0, cell: 0 }
    }

    /// Sends all that may be sent; the links in order.
    fn send(requests: &mut ResendRequests, now_ns: u64) -> Vec<(LinkId, ResendRequest)> {
        let mut sent = vec![];
        while let Some((link, header)) = requests.pop() {
            requests.sent(link, &header, now_ns);
            sent.push((link, header));
        }
        sent
    }

    #[test]
    fn a_link_has_a_number_under_way_and_the_others_wait_for_answers() {
        let mut requests = ResendRequests::default();
        let [one, other] = [1, 2].map(LinkId::of_token);
        for instrument in 0..1_000 {
            requests.push(one, &request(instrument, 7));
        }
        let sent = send(&mut requests, 5);
        assert_eq!(sent.len(), LINK_RESEND_REQUESTS_MAX);
        requests.push(other, &request(3, 8));
        assert_eq!(send(&mut requests, 6).len(), 1, "the other one does not wait");
        for (answers, (_, header)) in sent.iter().enumerate() {
            requests.answered(key(header));
            requests.answered(key(header));
            let next = requests.pop().expect("one more");
            requests.sent(next.0, &next.1, 7);
            assert_eq!(next.1.instrument as usize, LINK_RESEND_REQUESTS_MAX + answers);
        }
        assert_eq!(requests.pop(), None);
        // Answers that never come count as such after a time.
        requests.expire(ANSWER_NS + 6);
        assert_eq!(requests.pop(), None, "one of the other link only is late");
        requests.expire(ANSWER_NS + 7);
        assert_eq!(send(&mut requests, 8).len(), LINK_RESEND_REQUESTS_MAX);
        assert_eq!(requests.remove_link(one), 1_000 - 3 * LINK_RESEND_REQUESTS_MAX);
        requests.expire(2 * ANSWER_NS);
        assert!(requests.is_empty() && requests.links.is_empty());
    }

    #[test]
    fn all_links_together_have_a_number_under_way_and_take_turns() {
        let mut requests = ResendRequests::default();
        let links: Vec<LinkId> = (0..100).map(LinkId::of_token).collect();
        for (session, link) in links.iter().enumerate() {
            for instrument in 0..50 {
                requests.push(*link, &request(instrument, session as u32));
            }
        }
        let mut open: VecDeque<_> = send(&mut requests, 1).into();
        assert_eq!(open.len(), RESEND_REQUESTS_MAX);
        let mut by_link = HashMap::new();
        while let Some((link, header)) = open.pop_front() {
            *by_link.entry(link).or_insert(0) += 1;
            requests.answered(key(&header));
            open.extend(send(&mut requests, 1));
            assert!(open.len() <= RESEND_REQUESTS_MAX);
        }
        assert!(links.iter().all(|link| by_link[link] == 50), "{by_link:?}");
        assert!(requests.is_empty() && requests.links.is_empty());
    }

    #[test]
    fn of_the_same_events_one_is_under_way_and_the_newest_other_one_follows() {
        let mut requests = ResendRequests::default();
        let link = LinkId::of_token(1);
        let at = |acknowledged| ResendRequest { acknowledged, ..request(1, 2) };
        for seq in 0..1_000 {
            assert_eq!(requests.adds_waiting(link, &at(seq)), seq == 0);
            requests.push(link, &at(seq));
        }
        assert_eq!(send(&mut requests, 1), [(link, at(999))]);
        for seq in 1_000..2_000 {
            assert!(!requests.adds_waiting(link, &at(seq)));
            requests.push(link, &at(seq));
        }
        assert_eq!(requests.pop(), None);
        assert_eq!(requests.answered(key(&at(0))), Some((link, at(1_999))));
        assert!(requests.is_empty() && requests.links.is_empty());
        requests.push(link, &at(5));
        send(&mut requests, 1);
        requests.push(link, &at(6));
        requests.came_back(&at(5), 10);
        assert_eq!(requests.expire(ANSWER_NS + 9), []);
        assert_eq!(requests.expire(ANSWER_NS + 10), [(link, at(6))]);
        assert!(requests.is_empty() && requests.links.is_empty());
    }
}
