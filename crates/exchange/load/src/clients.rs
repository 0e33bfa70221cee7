//! The client sessions: sequence numbers, pending requests, retransmission, and delivered events.
//! It uses neither sockets nor clocks, so that a test can play the network and the time.
//!
//! Sessions are spread over links, at first one to each gateway. When the gateway of a link
//! [leaves](nm_wire::GoAway), its sessions move to a new link. Each stays behind until what it has
//! sent over the link before is answered, and sends nothing new meanwhile. If that takes too long,
//! or the link before breaks, it goes on as after a broken link.
//!
//! After a new connection requests are sent again a little at first, and then as replies make room
//! ([`ResendQueue`]). New ones of the same session and instrument wait behind them.
//!
//! A session's events on an instrument are numbered. The session accepts each event once and in
//! order, however often it arrives. It sends a resend request for missing ones at a gap in the
//! numbers, after a new connection, and when its gateway asks for it. Missing broadcasts are
//! counted.

use std::collections::VecDeque;
use std::ops::Range;

use nm_book::codec;
use nm_book::order::UserId;
use nm_codec::{FNV1A, Reader, fnv1a_on};
use nm_exchange::resend::ResendQueue;
use nm_wire::{
    BestPrices, EventsLost, Message, Private, Public, RefusalReason, Refused, Request,
    ResendRequest, Resent, Shape, Who,
};

use crate::log::{self, Answered, Broadcast, Delivered, Record, RequestId, Sent, command_hash};
use crate::settings::OrderRequest;

/// Most requests of one session on one instrument in flight: the network keeps this many outcomes
/// to repeat them. Further requests wait here; their latency already counts.
pub const IN_FLIGHT_MAX: usize = 64;

/// A request without a reply.
#[derive(Debug, Clone, Copy)]
struct Pending {
    number: u64,
    client_seq: u64,
    previous_seq: u64,
    intended_ns: u64,
    request: OrderRequest,
}

/// State between one session and one instrument.
#[derive(Debug, Clone)]
struct PairState {
    last_seq: u64,
    pending: VecDeque<Pending>,
    /// How many of them, from the front on, were sent on the link that the session uses.
    sent: usize,
    /// Whether it waits to send requests again.
    is_queued: bool,
    /// Number of the last event received, and the hash of all of them.
    seen: u64,
    hash: u64,
    /// Cell of the instrument, as last reported.
    cell: u16,
    /// Whether a resend request is unanswered.
    is_awaiting_resend: bool,
    /// Whether the last resend came from a replica that has fewer events than this session.
    is_resend_incomplete: bool,
    /// Whether events are missing that no replica keeps any more.
    has_gap: bool,
}

const NEW: PairState = PairState {
    last_seq: 0,
    pending: VecDeque::new(),
    sent: 0,
    is_queued: false,
    seen: 0,
    hash: FNV1A,
    cell: 0,
    is_awaiting_resend: false,
    is_resend_incomplete: false,
    has_gap: false,
};

/// Value before the first broadcast.
const NO_BROADCAST_YET: u64 = u64::MAX;

/// The first reply to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply {
    /// Number of the request among all submitted ones, from 0.
    pub number: u64,
    /// Intended send time, ns.
    pub intended_ns: u64,
    /// Why the network refused it; then it is not executed.
    pub refused: Option<RefusalReason>,
}

/// Events of a session on an instrument.
#[derive(Debug, Clone, Copy)]
struct Events<'a> {
    session: UserId,
    instrument: u32,
    cell: u16,
    /// Number of the event before the first one.
    previous_event: u64,
    bytes: &'a [u8],
}

macro_rules! events_of {
    ($($name:ident $message:ty),+) => {
        impl<'a> Events<'a> {
            $(
                fn $name(message: &$message) -> Events<'a> {
                    Events {
                        session: message.session,
                        instrument: message.instrument,
                        cell: message.cell,
                        previous_event: message.previous_event,
                        bytes: message.events.bytes,
                    }
                }
            )+
        }
    };
}

events_of!(of_reply nm_wire::Reply<'a>, of_private Private<'a>, of_resent Resent<'a>);

/// Received messages by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Repeated replies.
    pub repeats: u64,
    /// Retransmitted requests.
    pub resent: u64,
    /// Messages about a session's order that another session caused.
    pub private: u64,
    /// Gaps in a session's events that no replica can fill any more.
    pub unknown: u64,
    /// Broadcasts.
    pub public: u64,
    /// Gaps in the numbers of broadcasts, at each gateway.
    pub public_gaps: u64,
}

/// All sessions.
#[derive(Debug)]
pub struct Clients {
    /// How many links there are, and gateways at first.
    links: usize,
    instruments: usize,
    is_stamped: bool,
    /// Last sequence number of each session; session 0 is unused.
    last_seqs: Vec<u64>,
    /// By session: whether it still waits for replies on the link before.
    is_behind: Vec<bool>,
    /// By session, then by instrument.
    pairs: Vec<PairState>,
    /// By link: indices of pairs that wait to send requests again.
    resends: Vec<ResendQueue<usize>>,
    /// Number of the last event that was broadcast, by gateway, then by instrument; and how often
    /// broadcasts may have been lost before it.
    broadcast: Vec<(u64, u64)>,
    /// How often broadcasts may have been lost: with a link, or as the network has reported.
    losses: u64,
    submitted: u64,
    pending: u64,
    /// Received messages.
    pub counts: Counts,
}

impl Clients {
    /// Sessions 0 to `sessions` on instruments 0 to `instruments` - 1, spread over the links to so
    /// many gateways.
    pub fn new(sessions: u32, instruments: u32, gateways: usize, is_stamped: bool) -> Clients {
        let links = gateways.max(1);
        let (sessions, instruments) = (sessions as usize + 1, instruments as usize);
        Clients {
            links,
            instruments,
            is_stamped,
            last_seqs: vec![0; sessions],
            is_behind: vec![false; sessions],
            pairs: vec![NEW; sessions * instruments],
            resends: (0..links).map(|_| ResendQueue::default()).collect(),
            broadcast: vec![(NO_BROADCAST_YET, 0); links * instruments],
            losses: 0,
            submitted: 0,
            pending: 0,
            counts: Counts::default(),
        }
    }

    /// There are so many gateways now. Sessions stay spread over as many links as before.
    pub fn set_gateways(&mut self, gateways: usize) {
        let count = gateways.max(self.links) * self.instruments;
        self.broadcast.resize(count, (NO_BROADCAST_YET, 0));
    }

    /// Requests submitted so far; the number of the next one.
    pub fn submitted(&self) -> u64 {
        self.submitted
    }

    /// Requests without a reply.
    pub fn pending(&self) -> u64 {
        self.pending
    }

    /// Link of a session.
    pub fn link_of(&self, session: UserId) -> usize {
        session as usize % self.links
    }

    fn pair(&self, session: UserId, instrument: u32) -> Option<usize> {
        let (session, instrument) = (session as usize, instrument as usize);
        (session < self.last_seqs.len() && instrument < self.instruments)
            .then(|| session * self.instruments + instrument)
    }

    /// Submits a request of a session. The frame is appended to `out`, its link's output, unless
    /// too many are in flight. Returns the record for the client log; none if there is no such
    /// session or instrument.
    pub fn submit(
        &mut self,
        request: &OrderRequest,
        intended_ns: u64,
        out: &mut Vec<u8>,
    ) -> Option<Record> {
        let at = self.pair(request.session, request.instrument)?;
        let last_seq = &mut self.last_seqs[request.session as usize];
        *last_seq += 1;
        let client_seq = *last_seq;
        let pair = &mut self.pairs[at];
        let previous_seq = std::mem::replace(&mut pair.last_seq, client_seq);
        let number = self.submitted;
        let pending = Pending { number, client_seq, previous_seq, intended_ns, request: *request };
        pair.pending.push_back(pending);
        self.submitted += 1;
        self.pending += 1;
        if !self.pairs[at].is_queued {
            self.send_waiting(at, out);
        }
        let name =
            RequestId { instrument: request.instrument, session: request.session, client_seq };
        let command_hash = command_hash(&request.command);
        Some(Record::Sent(Sent { name, intended_ns, command_hash }))
    }

    /// Sends the next request of a pair, if one waits and not too many are in flight.
    fn send_next(&mut self, at: usize, out: &mut Vec<u8>) -> bool {
        if self.is_behind[at / self.instruments] {
            return false;
        }
        let pair = &mut self.pairs[at];
        let next = pair.pending.get(pair.sent).filter(|_| pair.sent < IN_FLIGHT_MAX);
        let Some(next) = next.copied() else { return false };
        pair.sent += 1;
        let (is_settled, seen) = (pair.sent == 1, pair.seen);
        self.write(&next, is_settled, seen, out);
        true
    }

    fn send_waiting(&mut self, at: usize, out: &mut Vec<u8>) {
        while self.send_next(at, out) {}
    }

    /// Sends what waits to be sent again over a link, as far as replies have made room.
    fn send_again(&mut self, link: usize, out: &mut Vec<u8>) {
        while let Some(at) = self.resends[link].pop() {
            let mut is_done = false;
            while !is_done && self.resends[link].may_send() {
                let before = out.len();
                is_done = !self.send_next(at, out);
                self.resends[link].sent(out.len() - before);
                self.counts.resent += u64::from(!is_done);
            }
            self.pairs[at].is_queued = !is_done;
            if !is_done {
                self.resends[link].push_front(at);
            }
        }
    }

    fn write(&mut self, pending: &Pending, is_settled: bool, seen: u64, out: &mut Vec<u8>) {
        let Pending { client_seq, previous_seq, intended_ns, request, .. } = *pending;
        let message = Request {
            instrument: request.instrument,
            session: request.session,
            client_seq,
            previous_seq,
            acknowledged: seen,
            intended_ns,
            owner: nm_wire::Owner::NOBODY,
            map_version: 0,
            gateway: 0,
            cell: 0,
            attempt: 0,
            is_previous_answered: is_settled,
            breach: 0,
            command: request.command,
        };
        let size_bytes = request.size_bytes as usize;
        nm_wire::write_shaped(&message, Shape { is_stamped: self.is_stamped, size_bytes }, out);
    }

    /// Handles a message that came over a link. Returns the reply, if it is the first to its
    /// request, and the record for the client log. Frames to send in response are appended to
    /// `out`, the link's output.
    pub fn receive(
        &mut self,
        link: usize,
        message: &Message<'_>,
        at_ns: u64,
        out: &mut Vec<u8>,
    ) -> (Option<Reply>, Option<Record>) {
        match message {
            Message::Private(private) => {
                self.counts.private += 1;
                self.deliver(Events::of_private(private), out);
            }
            Message::Resent(resent) => self.deliver_resent(resent, out),
            Message::Public(public) => {
                let count = public.events.take_while(Result::is_ok).count() as u64;
                let Public { gateway, instrument, output_seq, previous_event, .. } = *public;
                let numbers = (previous_event, previous_event + count);
                let content_hash = log::events_hash(public.events.bytes);
                let one = (gateway, instrument, output_seq, content_hash);
                return (None, self.broadcast(one, numbers));
            }
            Message::BestPrices(best) => {
                let BestPrices { gateway, instrument, output_seq, previous_event, .. } = *best;
                let numbers = (previous_event, previous_event + 1);
                let one = (gateway, instrument, output_seq, log::best_hash([best.bid, best.offer]));
                return (None, self.broadcast(one, numbers));
            }
            Message::Refused(refused) => return self.refused(refused, out),
            Message::Reply(reply) => {
                self.deliver(Events::of_reply(reply), out);
                return self.reply(reply, at_ns, out);
            }
            Message::EventsLost(EventsLost { cell, .. }) => {
                self.losses += 1;
                self.request_resends(link, Some(*cell), out);
            }
            _ => {}
        }
        (None, None)
    }

    /// Handles a message that came over the link before; `out` is the output of the new one. Of a
    /// session that has moved, the gateway before cannot refuse anything any more: the new one may
    /// have executed it. Nor does a reply count that is not the next one: the new gateway repeats
    /// it, in order.
    pub fn receive_late(
        &mut self,
        link: usize,
        message: &Message<'_>,
        at_ns: u64,
        out: &mut Vec<u8>,
    ) -> (Option<Reply>, Option<Record>) {
        let events = match message {
            // When a session moves, it asks for the events that it lacks.
            Message::EventsLost(_) => {
                self.losses += 1;
                return (None, None);
            }
            Message::Refused(refused)
                if self.moved(refused.session, refused.instrument).is_some() =>
            {
                return (None, None);
            }
            Message::Reply(reply) => {
                if let Some(at) = self.moved(reply.session, reply.instrument) {
                    let next = self.pairs[at].pending.front();
                    if next.is_none_or(|next| next.client_seq != reply.client_seq) {
                        return (None, None);
                    }
                }
                Some(Events::of_reply(reply))
            }
            Message::Private(private) => Some(Events::of_private(private)),
            Message::Resent(resent) => Some(Events::of_resent(resent)),
            _ => None,
        };
        // An answer that is on its way over the new link may be older than these events.
        if let Some(events) = events
            && let Some(at) = self.moved(events.session, events.instrument)
            && events.previous_event > self.pairs[at].seen
        {
            self.request_resend(at, out);
        }
        self.receive(link, message, at_ns, out)
    }

    /// The pair of a session and an instrument, if the session uses the new link.
    fn moved(&self, session: UserId, instrument: u32) -> Option<usize> {
        self.pair(session, instrument).filter(|_| !self.is_behind[session as usize])
    }

    /// Accepts the answer to a resend request.
    fn deliver_resent(&mut self, resent: &Resent<'_>, out: &mut Vec<u8>) {
        let Some(at) = self.pair(resent.session, resent.instrument) else { return };
        let pair = &mut self.pairs[at];
        if resent.has_gap && resent.previous_event > pair.seen {
            (pair.seen, pair.has_gap) = (resent.previous_event, true);
            self.counts.unknown += 1;
        }
        if let Some(last) = self.deliver(Events::of_resent(resent), out) {
            let pair = &mut self.pairs[at];
            (pair.is_awaiting_resend, pair.is_resend_incomplete) = (false, last < pair.seen);
        }
    }

    /// Accepts the new ones of some events, unless earlier ones are missing; the number of the last
    /// of them then.
    fn deliver(&mut self, events: Events<'_>, out: &mut Vec<u8>) -> Option<u64> {
        let at = self.pair(events.session, events.instrument)?;
        let pair = &mut self.pairs[at];
        pair.cell = events.cell;
        let mut number = events.previous_event;
        if number > pair.seen {
            if !pair.is_awaiting_resend {
                self.request_resend(at, out);
            }
            return None;
        }
        let mut fields = Reader::new(events.bytes);
        while !fields.is_empty() {
            let from = fields.rest();
            if codec::read_event(&mut fields).is_err() {
                break;
            }
            number += 1;
            if number > pair.seen {
                pair.seen = number;
                pair.hash = fnv1a_on(pair.hash, &from[..from.len() - fields.rest().len()]);
            }
        }
        Some(number)
    }

    fn request_resend(&mut self, at: usize, out: &mut Vec<u8>) {
        let pair = &mut self.pairs[at];
        pair.is_awaiting_resend = true;
        let request = ResendRequest {
            session: (at / self.instruments) as u32,
            instrument: (at % self.instruments) as u32,
            acknowledged: pair.seen,
            gateway: 0,
            cell: 0,
        };
        nm_wire::write(&request, out);
    }

    /// Sends resend requests of all sessions of a link, for all of their instruments or for those
    /// of one cell.
    pub fn request_resends(&mut self, link: usize, cell: Option<u16>, out: &mut Vec<u8>) {
        for at in 0..self.pairs.len() {
            let (session, pair) = (at / self.instruments, &self.pairs[at]);
            let is_own = session % self.links == link && pair.last_seq > 0;
            if is_own && cell.is_none_or(|cell| cell == pair.cell) {
                self.request_resend(at, out);
            }
        }
    }

    /// Repeats the resend requests that were not answered completely.
    pub fn repeat_resend_requests(&mut self, link: usize, out: &mut Vec<u8>) {
        for at in 0..self.pairs.len() {
            let PairState { is_awaiting_resend, is_resend_incomplete, .. } = self.pairs[at];
            let is_own = at / self.instruments % self.links == link;
            if is_own && (is_awaiting_resend || is_resend_incomplete) {
                self.request_resend(at, out);
            }
        }
    }

    /// Number of sessions and instruments whose resend request was not answered completely.
    pub fn awaiting_resend(&self) -> usize {
        self.pairs
            .iter()
            .filter(|pair| pair.is_awaiting_resend || pair.is_resend_incomplete)
            .count()
    }

    /// All events delivered to each session, for the client log.
    pub fn all_delivered(&self) -> impl Iterator<Item = Record> {
        let asked = self.pairs.iter().enumerate().filter(|(_, pair)| pair.last_seq > 0);
        asked.map(|(at, pair)| {
            let (session, instrument) =
                ((at / self.instruments) as u32, (at % self.instruments) as u32);
            let (events, events_hash, has_gap) = (pair.seen, pair.hash, pair.has_gap);
            Record::Delivered(Delivered { session, instrument, events, events_hash, has_gap })
        })
    }

    /// All requests without a reply, for the client log.
    pub fn all_unanswered(&self) -> impl Iterator<Item = Record> {
        self.pairs.iter().enumerate().flat_map(|(at, pair)| {
            let (session, instrument) =
                ((at / self.instruments) as u32, (at % self.instruments) as u32);
            let name = move |client_seq| RequestId { instrument, session, client_seq };
            pair.pending.iter().map(move |one| Record::Unanswered(name(one.client_seq)))
        })
    }

    /// A gateway has passed on a broadcast: its record, if it is none that came before.
    fn broadcast(
        &mut self,
        (gateway, instrument, output_seq, content_hash): (u16, u32, u64, u64),
        (previous, number): (u64, u64),
    ) -> Option<Record> {
        let at = usize::from(gateway) * self.instruments + instrument as usize;
        let last = self.broadcast.get_mut(at);
        let (last, losses) = last.filter(|_| (instrument as usize) < self.instruments)?;
        if *last != NO_BROADCAST_YET && number <= *last {
            return None;
        }
        self.counts.public += 1;
        self.counts.public_gaps += u64::from(previous > *last);
        let may_lack = std::mem::replace(losses, self.losses) != self.losses;
        *last = number;
        let gateway = gateway.into();
        Some(Record::Broadcast(Broadcast {
            gateway,
            instrument,
            number,
            output_seq,
            content_hash,
            may_lack,
        }))
    }

    fn reply(
        &mut self,
        reply: &nm_wire::Reply<'_>,
        at_ns: u64,
        out: &mut Vec<u8>,
    ) -> (Option<Reply>, Option<Record>) {
        let nm_wire::Reply { session, instrument, client_seq, .. } = *reply;
        let record = |is_surplus| {
            let reply = Answered {
                name: RequestId { instrument, session, client_seq },
                at_ns,
                output_seq: reply.output_seq,
                events_hash: reply.events_hash,
                is_repeated: reply.is_repeated,
                is_expired: reply.is_expired,
                is_surplus,
            };
            Some(Record::Answered(reply))
        };
        let Some(at) = self.pair(session, instrument) else { return (None, record(true)) };
        let answered = self.take_pending(at, client_seq, out);
        let record = record(answered.is_none());
        let reply = |known: Pending| Reply {
            number: known.number,
            intended_ns: known.intended_ns,
            refused: None,
        };
        self.counts.repeats += u64::from(answered.is_none());
        (answered.map(reply), record)
    }

    /// Removes a pending request that is in flight, and sends the next one that waits.
    fn take_pending(&mut self, at: usize, client_seq: u64, out: &mut Vec<u8>) -> Option<Pending> {
        let PairState { pending, sent, is_queued, .. } = &mut self.pairs[at];
        let mut in_flight = pending.iter().take(*sent);
        let place = in_flight.position(|known| known.client_seq == client_seq)?;
        let taken = pending.remove(place)?;
        *sent -= 1;
        self.pending -= 1;
        if !*is_queued {
            self.send_waiting(at, out);
        }
        let session = taken.request.session;
        let link = self.link_of(session);
        self.resends[link].answered(taken.request.size_bytes as usize);
        self.send_again(link, out);
        self.move_if_answered(session as usize, out);
        Some(taken)
    }

    /// The network refused a request. What is in flight behind it is refused as well; what is sent
    /// from now on names the request before it as its predecessor.
    fn refused(&mut self, refused: &Refused, out: &mut Vec<u8>) -> (Option<Reply>, Option<Record>) {
        let Refused { session, instrument, client_seq, reason, .. } = *refused;
        let Some(at) = self.pair(session, instrument) else { return (None, None) };
        let PairState { pending, sent, last_seq, .. } = &mut self.pairs[at];
        let mut in_flight = pending.iter().take(*sent);
        let Some(known) = in_flight.find(|known| known.client_seq == client_seq).copied() else {
            return (None, None);
        };
        if *last_seq == client_seq {
            *last_seq = known.previous_seq;
        }
        for next in pending.iter_mut().filter(|next| next.previous_seq == client_seq) {
            next.previous_seq = known.previous_seq;
        }
        self.take_pending(at, client_seq, out);
        let Pending { number, intended_ns, .. } = known;
        let refused = Some(reason);
        let name = RequestId { instrument, session, client_seq };
        (Some(Reply { number, intended_ns, refused }), Some(Record::Refused(name)))
    }

    /// The hellos of the sessions of a link.
    pub fn hellos(&self, link: usize) -> Vec<Who> {
        let sessions = self.sessions_of(link);
        sessions.map(|session| Who::Client { session: session as UserId }).collect()
    }

    fn sessions_of(&self, link: usize) -> impl Iterator<Item = usize> + use<> {
        (link..self.last_seqs.len()).step_by(self.links)
    }

    fn pairs_of(&self, session: usize) -> Range<usize> {
        session * self.instruments..(session + 1) * self.instruments
    }

    /// Handles a link that was made again, after the hellos of its sessions: they begin to
    /// retransmit pending requests in order, and send resend requests.
    pub fn connected(&mut self, link: usize, out: &mut Vec<u8>) {
        self.losses += 1;
        let mut resends = ResendQueue::default();
        resends.restart();
        for session in self.sessions_of(link) {
            self.is_behind[session] = false;
            for at in self.pairs_of(session) {
                let pair = &mut self.pairs[at];
                (pair.sent, pair.is_queued) = (0, !pair.pending.is_empty());
                if pair.is_queued {
                    resends.push(at);
                }
            }
        }
        self.resends[link] = resends;
        self.send_again(link, out);
        self.request_resends(link, None, out);
    }

    /// The sessions of a link begin to move to a new one, over which they have said hello.
    pub fn begin_move(&mut self, link: usize, out: &mut Vec<u8>) {
        self.losses += 1;
        self.resends[link] = ResendQueue::default();
        for session in self.sessions_of(link) {
            self.is_behind[session] = true;
            for at in self.pairs_of(session) {
                self.pairs[at].is_queued = false;
            }
        }
        self.sessions_of(link).for_each(|session| self.move_if_answered(session, out));
    }

    /// Whether sessions still wait for replies on the link before.
    pub fn is_moving(&self, link: usize) -> bool {
        self.sessions_of(link).any(|session| self.is_behind[session])
    }

    /// Sessions that are still behind wait no longer: what has no reply is sent again.
    pub fn end_move(&mut self, link: usize, out: &mut Vec<u8>) {
        self.resends[link].restart();
        for session in self.sessions_of(link) {
            if self.is_behind[session] {
                self.move_session(session, out);
            }
        }
        self.send_again(link, out);
    }

    /// Lets a session that is behind go on over the new link, if nothing is without a reply.
    fn move_if_answered(&mut self, session: usize, out: &mut Vec<u8>) {
        let is_answered = |at: usize| self.pairs[at].sent == 0;
        if self.is_behind[session] && self.pairs_of(session).all(is_answered) {
            self.move_session(session, out);
        }
    }

    /// A session uses the new link from now on. Events may have been on their way to the gateway
    /// before, so it asks for those that it lacks.
    fn move_session(&mut self, session: usize, out: &mut Vec<u8>) {
        self.is_behind[session] = false;
        for at in self.pairs_of(session) {
            let pair = &mut self.pairs[at];
            if std::mem::take(&mut pair.sent) > 0 {
                pair.is_queued = true;
                self.resends[session % self.links].push(at);
            } else {
                self.send_waiting(at, out);
            }
            if self.pairs[at].last_seq > 0 {
                self.request_resend(at, out);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix::OrderGenerator;
    use crate::settings::Settings;
    use nm_book::order::{Command, Event};
    use nm_exchange::resend::BURST_BYTES;
    use nm_wire::{Leader, Series};

    fn frames(mut bytes: &[u8]) -> Vec<Message<'_>> {
        let mut messages = vec![];
        while let Some(frame) = nm_wire::read(bytes).unwrap() {
            messages.push(Message::read(frame).unwrap());
            bytes = &bytes[frame.bytes.len()..];
        }
        messages
    }

    fn requests(bytes: &[u8]) -> Vec<Request> {
        let request = |message| if let Message::Request(it) = message { Some(it) } else { None };
        frames(bytes).into_iter().filter_map(request).collect()
    }

    /// What is acknowledged by resend requests.
    fn recalls(bytes: &[u8]) -> Vec<u64> {
        let acknowledged = |message| match message {
            Message::ResendRequest(it) => Some(it.acknowledged),
            _ => None,
        };
        frames(bytes).into_iter().filter_map(acknowledged).collect()
    }

    fn tick(session: u32, instrument: u32) -> OrderRequest {
        OrderRequest { session, instrument, command: Command::Tick, size_bytes: 300 }
    }

    fn reply_to(request: &Request) -> Message<'static> {
        Message::Reply(nm_wire::Reply {
            instrument: request.instrument,
            session: request.session,
            client_seq: request.client_seq,
            output_seq: 0,
            previous_event: 0,
            events_hash: 0,
            intended_ns: request.intended_ns,
            map_version: 0,
            gateway: 0,
            cell: 0,
            is_repeated: false,
            is_expired: false,
            events: Series::of(&[]),
        })
    }

    const NONE: [u64; 0] = [];

    /// The bytes of events with numbers `before` + 1 to `last` of session 1.
    fn events(before: u64, last: u64) -> Vec<u8> {
        let event = |id| nm_wire::encode(&Event::Accepted { id, user: 1 });
        (before + 1..=last).flat_map(event).collect()
    }

    fn private(previous_event: u64, bytes: &[u8]) -> Message<'_> {
        let (instrument, session, output_seq, gateway, cell) = (0, 1, 0, 0, 3);
        let (is_astray, events) = (false, Series::of(bytes));
        Message::Private(Private {
            instrument,
            session,
            output_seq,
            previous_event,
            gateway,
            cell,
            is_astray,
            events,
        })
    }

    fn resent(previous_event: u64, has_gap: bool, bytes: &[u8]) -> Message<'_> {
        let (instrument, session, gateway, cell) = (0, 1, 0, 3);
        let events = Series::of(bytes);
        Message::Resent(Resent {
            instrument,
            session,
            previous_event,
            executed_seq: 0,
            live_orders: 0,
            gateway,
            cell,
            has_gap,
            events,
        })
    }

    fn public(gateway: u16, previous_event: u64, bytes: &[u8]) -> Message<'_> {
        let (instrument, output_seq, cell, events) = (0, 0, 3, Series::of(bytes));
        Message::Public(Public { instrument, output_seq, previous_event, gateway, cell, events })
    }

    /// All events delivered to session 1 on instrument 0.
    fn delivered(clients: &Clients) -> Delivered {
        let mut all = clients.all_delivered();
        let Some(Record::Delivered(delivered)) = all.next() else {
            panic!("it has submitted a request")
        };
        assert!(all.next().is_none(), "no other session has submitted a request");
        delivered
    }

    #[test]
    fn each_event_counts_once_and_in_order_despite_duplicates_and_gaps() {
        let mut clients = Clients::new(1, 1, 1, true);
        let mut out = vec![];
        clients.submit(&tick(1, 0), 5, &mut out);
        assert!(requests(&out)[0].is_previous_answered);
        let receive = |clients: &mut Clients, message: &Message<'_>| {
            let mut out = vec![];
            clients.receive(0, message, 1, &mut out);
            assert_eq!(frames(&out).len(), recalls(&out).len());
            recalls(&out)
        };
        let new = |clients: &mut Clients, before: u64, last: u64| {
            receive(clients, &private(before, &events(before, last)))
        };
        let again = |clients: &mut Clients, before: u64, last: u64, has_gap: bool| {
            receive(clients, &resent(before, has_gap, &events(before, last)))
        };
        assert_eq!(new(&mut clients, 0, 3), NONE);
        // Two are missing: one resend request.
        assert_eq!(new(&mut clients, 5, 6), [3]);
        assert_eq!(new(&mut clients, 6, 7), NONE);
        assert_eq!((delivered(&clients).events, clients.awaiting_resend()), (3, 1));
        // A resend by a replica with fewer events does not count; a complete one does.
        assert_eq!(again(&mut clients, 2, 2, false), NONE);
        assert_eq!(clients.awaiting_resend(), 1);
        assert_eq!(new(&mut clients, 6, 7), [3]);
        assert_eq!(again(&mut clients, 3, 8, false), NONE);
        assert_eq!((delivered(&clients).events, clients.awaiting_resend()), (8, 0));
        // Events that were in flight meanwhile, and duplicates.
        assert_eq!(new(&mut clients, 6, 9), NONE);
        assert_eq!(new(&mut clients, 0, 2), NONE);
        let all_events = events(0, 9);
        let Delivered { events: count, events_hash, has_gap, .. } = delivered(&clients);
        assert_eq!((count, events_hash, has_gap), (9, fnv1a_on(FNV1A, &all_events), false));
        // The gateway asks for resend requests for one cell; a new connection, for all cells.
        let bid = |cell| Message::EventsLost(EventsLost { cell, gateway: 0 });
        assert_eq!(receive(&mut clients, &bid(4)), NONE);
        assert_eq!(receive(&mut clients, &bid(3)), [9]);
        out.clear();
        clients.connected(0, &mut out);
        assert_eq!(recalls(&out), [9]);
        // Events that no replica keeps are reported as a gap.
        assert_eq!(again(&mut clients, 20, 21, true), NONE);
        assert_eq!((delivered(&clients).events, delivered(&clients).has_gap), (21, true));
        assert_eq!((clients.counts.unknown, clients.awaiting_resend()), (1, 0));
        assert!(clients.all_delivered().count() == 1);
    }

    #[test]
    fn broadcasts_count_once_at_each_gateway_and_so_do_gaps() {
        let mut clients = Clients::new(1, 2, 2, true);
        let mut receive = |gateway, before, last| {
            let bytes = events(before, last);
            clients.receive(0, &public(gateway, before, &bytes), 1, &mut vec![]);
            (clients.counts.public, clients.counts.public_gaps)
        };
        // The first broadcast may have any number.
        assert_eq!(receive(0, 70, 72), (1, 0));
        assert_eq!(receive(0, 72, 73), (2, 0));
        assert_eq!(receive(0, 70, 72), (2, 0));
        assert_eq!(receive(1, 72, 73), (3, 0));
        assert_eq!(receive(0, 75, 76), (4, 1));
        assert_eq!(receive(0, 76, 77), (5, 1));
        // A gateway that does not exist yet.
        assert_eq!(receive(7, 76, 77), (5, 1));
    }

    /// What `verify` has to know of a broadcast.
    #[test]
    fn a_broadcast_is_recorded_with_whether_others_may_have_been_lost_before_it() {
        let mut clients = Clients::new(1, 1, 1, true);
        let best = |number: u64, bid: Option<i64>| {
            Message::BestPrices(BestPrices {
                instrument: 0,
                output_seq: 10 * number,
                previous_event: number - 1,
                gateway: 0,
                cell: 3,
                bid,
                offer: None,
            })
        };
        let record = |clients: &mut Clients, message: &Message<'_>| {
            let (_, record) = clients.receive(0, message, 1, &mut vec![]);
            record.map(|record| match record {
                Record::Broadcast(it) => (it.number, it.output_seq, it.content_hash, it.may_lack),
                other => panic!("{other:?}"),
            })
        };
        let hash = |bid| log::best_hash([bid, None]);
        assert_ne!(hash(None), hash(Some(0)));
        assert_eq!(record(&mut clients, &best(4, Some(7))), Some((4, 40, hash(Some(7)), false)));
        assert_eq!(record(&mut clients, &best(4, Some(7))), None, "it came before");
        assert_eq!(record(&mut clients, &best(5, None)), Some((5, 50, hash(None), false)));
        let lost = Message::EventsLost(EventsLost { cell: 3, gateway: 0 });
        clients.receive(0, &lost, 1, &mut vec![]);
        assert_eq!(record(&mut clients, &best(9, None)), Some((9, 90, hash(None), true)));
        assert_eq!(record(&mut clients, &best(10, None)), Some((10, 100, hash(None), false)));
        clients.connected(0, &mut vec![]);
        assert_eq!(record(&mut clients, &best(11, None)), Some((11, 110, hash(None), true)));
        assert_eq!((clients.counts.public, clients.counts.public_gaps), (5, 1));
    }

    #[test]
    fn requests_are_numbered_by_session_and_name_their_predecessor_on_the_instrument() {
        let mut clients = Clients::new(2, 3, 2, false);
        let mut out = vec![];
        for (session, instrument) in [(1, 0), (1, 2), (2, 0), (1, 0), (1, 2)] {
            assert!(clients.submit(&tick(session, instrument), 5, &mut out).is_some());
        }
        let seqs: Vec<(u64, u64)> =
            requests(&out).iter().map(|it| (it.client_seq, it.previous_seq)).collect();
        assert_eq!(seqs, [(1, 0), (2, 0), (1, 0), (3, 1), (4, 2)]);
        assert_eq!((clients.submitted(), clients.pending(), clients.link_of(2)), (5, 5, 0));
        assert!(clients.submit(&tick(3, 0), 5, &mut out).is_none());
        assert!(clients.submit(&tick(1, 3), 5, &mut out).is_none());
    }

    #[test]
    fn requests_beyond_the_limit_in_flight_wait_for_replies() {
        let mut clients = Clients::new(1, 1, 1, true);
        let mut out = vec![];
        for _ in 0..IN_FLIGHT_MAX + 3 {
            clients.submit(&tick(1, 0), 5, &mut out);
        }
        let sent = requests(&out);
        assert_eq!(sent.len(), IN_FLIGHT_MAX);
        for (idx, request) in sent.iter().enumerate() {
            out.clear();
            let (reply, record) = clients.receive(0, &reply_to(request), 9, &mut out);
            assert_eq!(reply, Some(Reply { number: idx as u64, intended_ns: 5, refused: None }));
            assert!(matches!(record, Some(Record::Answered(Answered { at_ns: 9, .. }))));
            assert_eq!(frames(&out).len(), usize::from(idx < 3));
        }
        assert_eq!(clients.pending(), 3);
        // The same reply again.
        let (reply, record) = clients.receive(0, &reply_to(&sent[0]), 9, &mut out);
        assert!(reply.is_none() && record.is_some());
        assert_eq!(clients.counts.repeats, 1);
    }

    /// A refused request is a failure, and what comes after it names the one before it.
    #[test]
    fn a_refused_request_is_taken_out_of_the_order() {
        let mut clients = Clients::new(1, 1, 1, true);
        let mut out = vec![];
        (0..4).for_each(|_| assert!(clients.submit(&tick(1, 0), 5, &mut out).is_some()));
        let sent = requests(&out);
        let reason = RefusalReason::TooManyPendingBytes;
        let refusal = |at: usize| Message::Refused(Refused::of(&sent[at], reason));
        let mut receive = |at: usize, message: Message<'_>| {
            let (reply, record) = clients.receive(0, &message, 9, &mut out);
            let client_seq = sent[at].client_seq;
            let name = RequestId { instrument: 0, session: 1, client_seq };
            let is_refused = matches!(message, Message::Refused(_));
            assert_eq!(record == Some(Record::Refused(name)), is_refused, "{record:?}");
            reply.unwrap().refused
        };
        let expected = Some(reason);
        assert_eq!(receive(1, refusal(1)), expected);
        assert_eq!(receive(2, refusal(2)), expected);
        assert_eq!(receive(3, refusal(3)), expected);
        assert_eq!(receive(0, reply_to(&sent[0])), None);
        assert_eq!(clients.receive(0, &refusal(1), 9, &mut out), (None, None));
        out.clear();
        clients.submit(&tick(1, 0), 5, &mut out);
        let next = requests(&out)[0];
        assert_eq!((next.client_seq, next.previous_seq, clients.pending()), (5, 1, 1));
    }

    #[test]
    fn pending_requests_are_retransmitted_in_order() {
        let settings = Settings { sessions: 6, instruments: 4, ..Settings::default() };
        let (mut clients, mut generator) =
            (Clients::new(6, 4, 2, true), OrderGenerator::new(&settings));
        let mut outs = [vec![], vec![]];
        for _ in 0..200 {
            let request = generator.next_request();
            let gateway = clients.link_of(request.session);
            clients.submit(&request, 1, &mut outs[gateway]);
        }
        let sent = requests(&outs[1]);
        for request in sent.iter().step_by(3) {
            clients.receive(0, &reply_to(request), 2, &mut vec![]);
        }
        let (mut again, mut out) = (vec![], vec![]);
        clients.connected(1, &mut out);
        assert!(out.len() < 2 * BURST_BYTES, "a little at first");
        while !out.is_empty() {
            let sent_now = requests(&std::mem::take(&mut out));
            for request in &sent_now {
                clients.receive(0, &reply_to(request), 3, &mut out);
            }
            again.extend(sent_now);
        }
        assert_eq!(clients.pending() as usize, 200 - sent.len());
        assert_eq!(clients.hellos(1), [1, 3, 5].map(|session| Who::Client { session }));
        let of = |requests: &[Request], session, instrument| -> Vec<u64> {
            let is_it = |it: &&Request| (it.session, it.instrument) == (session, instrument);
            requests.iter().filter(is_it).map(|it| it.client_seq).collect()
        };
        let left: Vec<Request> =
            sent.iter().enumerate().filter(|(at, _)| at % 3 != 0).map(|(_, it)| *it).collect();
        for session in [1, 3, 5] {
            for instrument in 0..4 {
                assert_eq!(of(&again, session, instrument), of(&left, session, instrument));
            }
        }
        assert_eq!(clients.counts.resent, left.len() as u64);
    }

    #[test]
    fn messages_that_are_no_reply_are_counted() {
        let mut clients = Clients::new(1, 1, 1, true);
        let [first, second] = [events(0, 1), events(1, 2)];
        for message in [
            private(0, &first),
            public(0, 0, &first),
            public(0, 1, &second),
            Message::Leader(Leader { cell: 3, term: 0 }),
        ] {
            let (reply, record) = clients.receive(0, &message, 1, &mut vec![]);
            assert!(reply.is_none());
            assert_eq!(record.is_some(), matches!(message, Message::Public(_)));
        }
        assert_eq!((clients.counts.private, clients.counts.public), (1, 2));
        // A reply to an unknown session is recorded, too.
        let mut out = vec![];
        clients.submit(&tick(1, 0), 5, &mut out);
        let stray = reply_to(&Request { session: 99, ..requests(&out)[0] });
        assert!(clients.receive(0, &stray, 1, &mut vec![]).1.is_some());
    }
}
