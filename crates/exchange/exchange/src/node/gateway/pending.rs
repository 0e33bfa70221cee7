//! The requests of one session on one instrument that have no reply, as its gateway keeps them.
//!
//! **Order.** A link delivers in order, and a client that connects again sends its requests without
//! a reply again, in order, before any new one. So the first request of a session on an instrument
//! that comes over a link is the oldest without a reply. What it names as its predecessor was
//! answered. Each one after it names the one before it. One that does not names a predecessor that
//! cannot come any more, and is refused before anybody else sees it. A repetition of a request that
//! was answered is sent on, to be answered with the same outcome.
//!
//! **Naks.** The cell answers a request whose predecessor is not the last one that it executed by
//! a nak with the number of that last one.
//!
//! - If that number lies between the predecessor and the request, the request can never be
//!   executed: the number does not fall. The request is refused, with all that depend on it.
//! - Otherwise what the cell has not executed is sent again. What it has executed is not. Its
//!   replies are on the way, and where a link loses them, all requests are sent again as soon as
//!   the link is made again. (An outcome is repeated, nothing is executed twice.)
//! - If the request is the oldest one, its predecessor was answered. So a cell that does not know
//!   it has lost it, or the session named one that never was. After
//!   [`UNKNOWN_PREDECESSOR_NAKS_MAX`] naks in a row, each to a copy that was sent after the one
//!   before, the request is refused. It must not go through the log for ever.
//!
//! **Old naks** are not believed. A processor that restarts repeats those of the past, and a burst
//! of requests behind a lost one has a nak for each. Copies carry the number of the attempt
//! (`attempt`), drawn anew each time, and only naks to the present attempt count. (Those of the
//! first kind may be of any age.) These count however soon they come: no other one follows to the
//! same copies, and without them only a time-out would send the requests again.
//!
//! A *refused* request is never executed. One of four things holds. No copy of it left this
//! gateway; or the cell refused it, and would do so again. Or the last number has passed its
//! predecessor. Or its predecessor never was, and numbers rise, so that it never will be. Books
//! that are lost take such a proof with them, as they do with outcomes: where nothing is on a disk,
//! a client cannot know.
//!
//! **Resending** takes its time. Whatever makes it necessary, a stream begins again at some place
//! with another attempt, and waits for its turn; new requests wait behind. The gateway sends as
//! much as replies make room for ([`crate::resend`]). Links that break again and again, and can
//! carry less than all of it until then, would never carry anything else.
//!
//! **A gateway that restarts**, or whose client has gone, forgets all of this. Copies may be
//! executed all the same. The client connects again and sends its requests again; those that were
//! executed are answered with the kept outcome. Where books were lost, a cell accepts the oldest
//! request because it is marked: its predecessor was answered.
//!
//! **A map that moves an instrument** can reorder requests between two cells. The former cell has
//! executed none on it, or it would have kept it, and answers nothing about it any more. The naks
//! of the new one are those above.

use std::collections::VecDeque;

use nm_wire::{FrameMut, Nak, RefusalReason, Request, request};

use crate::limits::{PENDING_REQUESTS_MAX, UNKNOWN_PREDECESSOR_NAKS_MAX};

use crate::node::runtime::links::LinkId;

/// Time without a reply after which requests are resent at first, ns.
const TIMEOUT_NS: u64 = 200_000_000;

/// Longest such time, ns.
pub const TIMEOUT_NS_MAX: u64 = 3_200_000_000;

/// Bytes that a gateway counts for a request beside those of its frame.
const REQUEST_BYTES: usize = 128;

/// One request without a reply.
#[derive(Debug)]
pub struct Pending {
    client_seq: u64,
    previous_seq: u64,
    sent_ns: u64,
    /// Its frame.
    pub bytes: Vec<u8>,
    /// Its reply, which waits for an earlier one; empty if there is none.
    pub reply: Vec<u8>,
}

impl Pending {
    /// Bytes that it counts for.
    pub fn held_bytes(&self) -> usize {
        held_bytes(&self.bytes) + self.reply.capacity()
    }
}

/// Bytes that a request counts for: those that are allocated for its frame, and others.
pub fn held_bytes(frame: &Vec<u8>) -> usize {
    frame.capacity() + REQUEST_BYTES
}

/// The numbers of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numbers {
    /// Its own.
    pub client_seq: u64,
    /// That of its predecessor.
    pub previous_seq: u64,
}

impl Numbers {
    /// Those of a request.
    pub fn of(request: &Request) -> Numbers {
        let Request { client_seq, previous_seq, .. } = *request;
        Numbers { client_seq, previous_seq }
    }
}

/// What a gateway fills in of a request that it sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Route {
    /// The gateway.
    pub gateway: u16,
    /// The cell.
    pub cell: u16,
    /// The version of the map that has it there.
    pub map_version: u32,
}

impl Route {
    /// Fills it in.
    pub fn put(self, request: &mut request::Edit<'_>) {
        request.gateway(self.gateway).cell(self.cell).map_version(self.map_version);
    }
}

/// Where a request that came belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// It is kept already.
    Known,
    /// It is to be kept there.
    At(usize),
}

/// What is to be done after a nak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterNak {
    /// Nothing.
    Nothing,
    /// The requests from this place on are to be resent.
    Resend(usize),
    /// The request at this place is to be refused, and those that depend on it.
    Refuse(usize),
}

/// The requests of one session on one instrument that have no reply, in order.
#[derive(Debug)]
pub struct PendingRequests {
    /// The link of its session.
    pub client: LinkId,
    /// Whether it is among those that are checked for time-outs.
    pub is_checked: bool,
    /// Whether it is among those that wait for their turn to send.
    pub is_queued: bool,
    pending: VecDeque<Pending>,
    /// How many of them, from the front on, were sent in the present attempt.
    sent: usize,
    /// Number of the last request whose reply was forwarded; before the first, what the session
    /// names as answered.
    answered: u64,
    /// Which attempt the copies that are on the way belong to.
    attempt: u8,
    /// Naks in a row to the oldest request.
    naks: u32,
    timeout_ns: u64,
}

impl PendingRequests {
    /// None yet; `answered` is the predecessor of the first one.
    pub fn new(client: LinkId, answered: u64) -> PendingRequests {
        PendingRequests {
            client,
            is_checked: false,
            is_queued: false,
            pending: VecDeque::new(),
            sent: 0,
            answered,
            attempt: 0,
            naks: 0,
            timeout_ns: TIMEOUT_NS,
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// Bytes that its requests count for.
    pub fn held_bytes(&self) -> usize {
        self.pending.iter().map(Pending::held_bytes).sum()
    }

    /// Attempt of the copies that are sent now.
    pub fn attempt(&self) -> u8 {
        self.attempt
    }

    /// The place of a request.
    pub fn find(&self, client_seq: u64) -> Result<usize, usize> {
        // Most are the last or the first one.
        match self.pending.back() {
            Some(last) if client_seq <= last.client_seq => {
                self.pending.binary_search_by_key(&client_seq, |known| known.client_seq)
            }
            _ => Err(self.pending.len()),
        }
    }

    /// Where a request belongs that came from its client.
    ///
    /// # Errors
    /// Why it is to be refused.
    pub fn place(&self, numbers: Numbers) -> Result<Place, RefusalReason> {
        let Numbers { client_seq, previous_seq } = numbers;
        if previous_seq >= client_seq {
            return Err(RefusalReason::UnknownPredecessor);
        }
        let last_seq = self.last_seq();
        let place = match self.find(client_seq) {
            Ok(_) => return Ok(Place::Known),
            Err(place) if client_seq <= self.answered => place,
            Err(place) if previous_seq == last_seq => place,
            Err(_) => return Err(RefusalReason::UnknownPredecessor),
        };
        if self.pending.len() >= PENDING_REQUESTS_MAX {
            return Err(RefusalReason::TooManyPendingRequests);
        }
        Ok(Place::At(place))
    }

    /// The request that the next one names as its predecessor.
    pub fn last_seq(&self) -> u64 {
        self.pending.back().map_or(self.answered, |last| last.client_seq)
    }

    /// Keeps a request; `bytes` is its frame. Whether it is to be sent now: it waits for its turn
    /// if those before it do.
    pub fn keep(&mut self, place: usize, numbers: Numbers, bytes: Vec<u8>, now_ns: u64) -> bool {
        let Numbers { client_seq, previous_seq } = numbers;
        let is_sent = place <= self.sent;
        self.sent += usize::from(is_sent);
        let (sent_ns, reply) = (now_ns, vec![]);
        self.pending.insert(place, Pending { client_seq, previous_seq, sent_ns, bytes, reply });
        is_sent
    }

    /// When the request at a place was last sent, or came if it was not, ns.
    pub fn sent_ns(&self, place: usize) -> u64 {
        self.pending.get(place).map_or(0, |known| known.sent_ns)
    }

    /// Keeps the reply to a request that is not the oldest; the bytes that it counts for.
    pub fn hold_reply(&mut self, place: usize, reply: &[u8]) -> usize {
        let Some(known) = self.pending.get_mut(place).filter(|known| known.reply.is_empty()) else {
            return 0;
        };
        known.reply.extend_from_slice(reply);
        known.reply.capacity()
    }

    /// Removes the oldest request, whose reply is forwarded.
    pub fn pop_answered(&mut self) -> Option<Pending> {
        let first = self.pending.pop_front()?;
        self.sent = self.sent.saturating_sub(1);
        self.answered = self.answered.max(first.client_seq);
        (self.naks, self.timeout_ns) = (0, TIMEOUT_NS);
        Some(first)
    }

    /// Removes the oldest request if its reply waits.
    pub fn pop_waiting(&mut self) -> Option<Pending> {
        let waits = self.pending.front().is_some_and(|first| !first.reply.is_empty());
        if waits { self.pop_answered() } else { None }
    }

    /// Removes the request at a place, which is refused, and those that depend on it.
    pub fn remove_refused(&mut self, place: usize) -> impl Iterator<Item = Pending> {
        let mut end = place + 1;
        while let (Some(before), Some(next)) = (self.pending.get(end - 1), self.pending.get(end))
            && next.previous_seq == before.client_seq
        {
            end += 1;
        }
        self.naks = 0;
        let end = end.min(self.pending.len());
        let place = place.min(end);
        self.sent -= self.sent.clamp(place, end) - place;
        self.pending.drain(place..end)
    }

    /// What is to be done after a nak.
    pub fn on_nak(&mut self, nak: &Nak) -> AfterNak {
        let Nak { client_seq, executed_seq, attempt, .. } = *nak;
        let Ok(place) = self.find(client_seq) else { return AfterNak::Nothing };
        let previous_seq = self.pending[place].previous_seq;
        if previous_seq < executed_seq && executed_seq < client_seq {
            return AfterNak::Refuse(place);
        }
        if attempt != self.attempt {
            return AfterNak::Nothing;
        }
        self.naks += u32::from(place == 0);
        if self.naks > UNKNOWN_PREDECESSOR_NAKS_MAX {
            return AfterNak::Refuse(0);
        }
        AfterNak::Resend(self.pending.partition_point(|known| known.client_seq <= executed_seq))
    }

    /// The requests from a place on are to be sent again, as another attempt.
    pub fn rewind(&mut self, from: usize, now_ns: u64) {
        self.sent = self.sent.min(from);
        self.attempt = another_attempt(self.attempt, now_ns);
    }

    /// Whether all of its requests were sent.
    pub fn is_sent(&self) -> bool {
        self.sent == self.pending.len()
    }

    /// The frame of the next request that waits for its turn, on this route; it counts as sent from
    /// now on. Those whose reply waits are among them, because they are the predecessors of others.
    /// The first one carries that its predecessor was answered: a cell that has lost its books does
    /// not wait for it then.
    pub fn send_next(&mut self, now_ns: u64, route: Route) -> Option<&[u8]> {
        let next = self.pending.get_mut(self.sent)?;
        let is_settled = self.sent == 0 && next.previous_seq == self.answered;
        if let Ok(mut frame) = FrameMut::of(&mut next.bytes)
            && let Ok(mut edit) = request::Edit::of(&mut frame)
        {
            edit.attempt(self.attempt);
            route.put(&mut edit);
            if is_settled {
                edit.is_previous_answered(true);
            }
        }
        next.sent_ns = now_ns;
        self.sent += 1;
        Some(&next.bytes)
    }

    /// Whether the oldest request was sent and is without a reply for too long; `least_ns`: that is
    /// not yet.
    pub fn is_late(&self, now_ns: u64, least_ns: u64) -> bool {
        let limit_ns = self.timeout_ns.max(least_ns);
        let first = self.pending.front().filter(|_| self.sent > 0);
        first.is_some_and(|first| now_ns.saturating_sub(first.sent_ns) > limit_ns)
    }

    /// Whether its requests were sent again because nothing was answered, and nothing was since.
    pub fn is_stuck(&self) -> bool {
        self.timeout_ns > TIMEOUT_NS
    }

    /// Whether nothing is answered any more, however often its requests are sent: for some
    /// seconds at least.
    pub fn is_unanswered(&self) -> bool {
        self.timeout_ns == TIMEOUT_NS_MAX
    }

    /// Waits longer the next time.
    pub fn back_off(&mut self) {
        self.timeout_ns = (self.timeout_ns * 2).min(TIMEOUT_NS_MAX);
    }
}

/// An attempt that cannot be foreseen, and differs from the one before.
fn another_attempt(last: u8, now_ns: u64) -> u8 {
    let mixed = (now_ns ^ now_ns >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let drawn = (mixed >> 56) as u8;
    if drawn == last { !last } else { drawn }
}

#[cfg(test)]
mod tests {
    use nm_book::order::Command;

    use super::*;
    use crate::testing::request;

    /// The time of each resend: naks come at once.
    const NOW_NS: u64 = 1 << 30;

    fn header(client_seq: u64, previous_seq: u64) -> Numbers {
        Numbers { client_seq, previous_seq }
    }

    fn frame(numbers: Numbers) -> Vec<u8> {
        let Numbers { client_seq, previous_seq } = numbers;
        let mut bytes = vec![];
        let one = Request { client_seq, previous_seq, ..request(1, 1, Command::Tick) };
        nm_wire::write(&one, &mut bytes);
        bytes
    }

    /// The requests of these numbers, each behind the one before; those up to `answered` were
    /// answered.
    fn pending(answered: u64, numbers: &[u64]) -> PendingRequests {
        let mut stream = PendingRequests::new(LinkId::of_token(1), answered);
        let mut previous_seq = answered;
        for number in numbers {
            let header = header(*number, previous_seq);
            let Ok(Place::At(place)) = stream.place(header) else { panic!("{number}") };
            stream.keep(place, header, frame(header), 1);
            previous_seq = *number;
        }
        stream
    }

    fn numbers(stream: &PendingRequests) -> Vec<u64> {
        stream.pending.iter().map(|known| known.client_seq).collect()
    }

    /// Resends, and returns the headers of the copies.
    fn resent(stream: &mut PendingRequests, from: usize, now_ns: u64) -> Vec<Request> {
        stream.rewind(from, now_ns);
        let mut sent = vec![];
        while let Some(bytes) = stream.send_next(now_ns, Route::default()) {
            sent.push(nm_wire::read(bytes).unwrap().unwrap().read().unwrap());
        }
        sent
    }

    #[test]
    fn each_request_names_the_one_before_it() {
        let stream = pending(5, &[7, 9]);
        assert_eq!(stream.place(header(10, 9)), Ok(Place::At(2)));
        // The same again, pending or answered.
        assert_eq!(stream.place(header(7, 5)), Ok(Place::Known));
        assert_eq!(stream.place(header(4, 2)), Ok(Place::At(0)));
        let refused = Err(RefusalReason::UnknownPredecessor);
        for (client_seq, previous_seq) in [(10, 8), (10, 7), (8, 7), (6, 5), (10, 10), (10, 11)] {
            assert_eq!(stream.place(header(client_seq, previous_seq)), refused);
        }
    }

    #[test]
    fn a_session_has_a_number_of_requests_without_a_reply() {
        let all: Vec<u64> = (1..=PENDING_REQUESTS_MAX as u64).collect();
        let mut stream = pending(0, &all);
        let last = all.len() as u64;
        let refused = Err(RefusalReason::TooManyPendingRequests);
        assert_eq!(stream.place(header(last + 1, last)), refused);
        assert_eq!(stream.place(header(last, last - 1)), Ok(Place::Known));
        stream.pop_answered();
        assert_eq!(stream.place(header(last + 1, last)), Ok(Place::At(all.len() - 1)));
    }

    fn nak(client_seq: u64, executed_seq: u64, attempt: u8) -> Nak {
        let (instrument, session, gateway, cell) = (1, 1, 0, 0);
        Nak { instrument, session, client_seq, executed_seq, gateway, cell, attempt }
    }

    #[test]
    fn what_was_not_executed_is_sent_again_once_for_each_attempt() {
        let mut stream = pending(5, &[6, 7, 8, 9]);
        // 7 was lost: 8 and 9 have a nak each.
        assert_eq!(stream.on_nak(&nak(8, 6, 0)), AfterNak::Resend(1));
        let copies = resent(&mut stream, 1, NOW_NS);
        assert_eq!(copies.iter().map(|copy| copy.client_seq).collect::<Vec<_>>(), [7, 8, 9]);
        assert!(copies.iter().all(|copy| copy.attempt == stream.attempt && copy.attempt != 0));
        assert_eq!(stream.on_nak(&nak(9, 6, 0)), AfterNak::Nothing);
        let again = nak(9, 6, stream.attempt);
        assert_eq!(stream.on_nak(&again), AfterNak::Resend(1));
        resent(&mut stream, 1, NOW_NS);
        assert_eq!(stream.on_nak(&again), AfterNak::Nothing);
        // One that has a reply by now.
        assert_eq!(stream.on_nak(&nak(3, 1, stream.attempt)), AfterNak::Nothing);
    }

    #[test]
    fn a_request_whose_predecessor_was_passed_is_refused_with_all_that_depend_on_it() {
        let mut stream = pending(5, &[7, 9]);
        // However old the nak is: the last number does not fall.
        assert_eq!(stream.on_nak(&nak(7, 6, 0x42)), AfterNak::Refuse(0));
        let refused: Vec<u64> = stream.remove_refused(0).map(|gone| gone.client_seq).collect();
        assert_eq!((refused, stream.is_empty()), (vec![7, 9], true));
        // The session goes on behind the last one that was answered.
        assert_eq!(stream.place(header(10, 5)), Ok(Place::At(0)));
    }

    /// A repetition of a request that was answered depends on nothing here.
    #[test]
    fn a_refused_repetition_leaves_the_others() {
        let mut stream = pending(5, &[7, 9]);
        let old = header(4, 2);
        stream.keep(0, old, frame(old), 1);
        assert_eq!(stream.remove_refused(0).count(), 1);
        assert_eq!(numbers(&stream), [7, 9]);
    }

    #[test]
    fn a_predecessor_that_never_was_is_believed_a_number_of_times() {
        let mut stream = pending(5, &[7, 9]);
        for attempt in 0..UNKNOWN_PREDECESSOR_NAKS_MAX {
            // Naks to the second request, and old ones, do not count.
            let second = nak(9, 0, stream.attempt);
            let old = nak(7, 0, stream.attempt ^ 1);
            assert_eq!(stream.on_nak(&old), AfterNak::Nothing);
            let first = nak(7, 0, stream.attempt);
            assert_eq!(stream.on_nak(&first), AfterNak::Resend(0), "{attempt}");
            let copies = resent(&mut stream, 0, NOW_NS);
            assert!(copies[0].is_previous_answered && !copies[1].is_previous_answered);
            assert_eq!(stream.on_nak(&second), AfterNak::Nothing);
        }
        let last = nak(7, 0, stream.attempt);
        assert_eq!(stream.on_nak(&last), AfterNak::Refuse(0));
    }

    #[test]
    fn replies_leave_in_order() {
        let mut stream = pending(5, &[6, 7, 8, 9]);
        assert_eq!(stream.hold_reply(2, &[1; 10]), 10);
        assert_eq!(stream.hold_reply(2, &[1; 10]), 0);
        assert!(stream.pop_waiting().is_none());
        assert_eq!(stream.pop_answered().map(|first| first.client_seq), Some(6));
        assert_eq!(stream.pop_answered().map(|first| first.client_seq), Some(7));
        assert_eq!(stream.pop_waiting().map(|first| first.reply), Some(vec![1; 10]));
        assert_eq!(numbers(&stream), [9]);
    }

    #[test]
    fn new_requests_wait_behind_those_that_are_to_be_sent_again() {
        let mut stream = pending(5, &[6, 7, 8]);
        assert!(stream.is_sent());
        stream.rewind(1, 9);
        let next = header(9, 8);
        assert!(!stream.keep(3, next, frame(next), 9) && !stream.is_sent());
        let mut next = || {
            let bytes = stream.send_next(10, Route::default())?;
            Some(nm_wire::read(bytes).unwrap().unwrap().read::<Request>().unwrap().client_seq)
        };
        assert_eq!([next(), next(), next(), next()], [Some(7), Some(8), Some(9), None]);
        assert!(stream.is_sent() && !stream.is_late(10, 0));
        stream.rewind(1, 11);
        assert!(stream.send_next(11, Route::default()).is_some());
        // What is removed in front of the next one moves it.
        stream.pop_answered();
        assert_eq!((numbers(&stream), stream.sent), (vec![7, 8, 9], 1));
        assert_eq!(stream.remove_refused(0).count(), 3);
        assert_eq!(stream.sent, 0);
        // What has not been sent is not late.
        let mut stream = pending(5, &[6]);
        assert!(stream.is_late(1 << 40, 0));
        stream.rewind(0, 1);
        assert!(!stream.is_late(1 << 40, 0));
    }
}
