//! The sessions of the clients: numbering, what has no reply yet, and what is sent again. Touches
//! neither a socket nor a clock, so that a test can be the network and the time.

use std::collections::VecDeque;

use super::Ask;
use super::log::{Answered, Name, Record, Sent, command_hash};
use crate::codec::{self, Fields};
use crate::order::UserId;
use crate::wire::{self, FrameKind, Header};

/// Requests of one session on one instrument that may be under way: the network keeps the outcomes
/// of so many, to tell them once more. Others wait here, and their time runs.
pub const UNDER_WAY_MAX: usize = 64;

/// Body of the hello of a client.
const HELLO: &[u8] = b"client";

/// A request without reply.
#[derive(Debug, Clone, Copy)]
struct Pending {
    number: u64,
    client_seq: u64,
    previous_seq: u64,
    intended_ns: u64,
    ask: Ask,
}

/// What is between one session and one instrument.
#[derive(Debug, Clone, Default)]
struct Pair {
    last_seq: u64,
    pending: VecDeque<Pending>,
}

/// A reply to a request that had none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply {
    /// Number of the request among all that were asked, from 0 on.
    pub number: u64,
    /// When it was meant to be sent, ns.
    pub intended_ns: u64,
}

/// What came, by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Replies to requests that had one already.
    pub repeats: u64,
    /// Requests sent again.
    pub resent: u64,
    /// Messages about a session's order that others caused.
    pub private: u64,
    /// Broadcasts.
    pub public: u64,
}

/// All sessions.
#[derive(Debug)]
pub struct Clients {
    gateways: usize,
    segments: usize,
    is_stamped: bool,
    /// Last number of each session; the first is not used.
    last_seqs: Vec<u64>,
    /// By session, then by instrument.
    pairs: Vec<Pair>,
    asked: u64,
    pending: u64,
    body: Vec<u8>,
    /// What came.
    pub counts: Counts,
}

impl Clients {
    /// Sessions 0 to `sessions` on instruments 0 to `segments` - 1, spread over gateways.
    pub fn new(sessions: u32, segments: u32, gateways: usize, is_stamped: bool) -> Clients {
        let (sessions, segments) = (sessions as usize + 1, segments as usize);
        Clients {
            gateways: gateways.max(1),
            segments,
            is_stamped,
            last_seqs: vec![0; sessions],
            pairs: vec![Pair::default(); sessions * segments],
            asked: 0,
            pending: 0,
            body: vec![],
            counts: Counts::default(),
        }
    }

    /// Requests asked so far; the number of the next one.
    pub fn asked(&self) -> u64 {
        self.asked
    }

    /// Requests without reply.
    pub fn pending(&self) -> u64 {
        self.pending
    }

    /// Gateway of a session.
    pub fn gateway_of(&self, session: UserId) -> usize {
        session as usize % self.gateways
    }

    fn pair(&self, session: UserId, segment: u32) -> Option<usize> {
        let (session, segment) = (session as usize, segment as usize);
        (session < self.last_seqs.len() && segment < self.segments)
            .then(|| session * self.segments + segment)
    }

    /// A session asks. The frame goes to the end of `out`, its gateway's output, unless too many
    /// are under way. The record is for the client log; none if there is no such session or
    /// instrument.
    pub fn ask(&mut self, ask: &Ask, intended_ns: u64, out: &mut Vec<u8>) -> Option<Record> {
        let at = self.pair(ask.session, ask.segment)?;
        let last_seq = &mut self.last_seqs[ask.session as usize];
        *last_seq += 1;
        let client_seq = *last_seq;
        let pair = &mut self.pairs[at];
        let previous_seq = std::mem::replace(&mut pair.last_seq, client_seq);
        let number = self.asked;
        let pending = Pending { number, client_seq, previous_seq, intended_ns, ask: *ask };
        pair.pending.push_back(pending);
        self.asked += 1;
        self.pending += 1;
        if self.pairs[at].pending.len() <= UNDER_WAY_MAX {
            self.write(&pending, out);
        }
        let name = Name { segment: ask.segment, session: ask.session, client_seq };
        let command_hash = command_hash(&ask.command);
        Some(Record::Sent(Sent { name, intended_ns, command_hash }))
    }

    fn write(&mut self, pending: &Pending, out: &mut Vec<u8>) {
        let Pending { client_seq, previous_seq, intended_ns, ask, .. } = *pending;
        let flags = if ask.is_public { wire::PUBLIC } else { 0 };
        let header = Header {
            flags: flags | if self.is_stamped { wire::STAMPED } else { 0 },
            segment: ask.segment,
            session: ask.session,
            client_seq,
            previous_seq,
            intended_ns,
            ..Header::new(FrameKind::Request)
        };
        self.body.clear();
        codec::write_command(&ask.command, &mut self.body);
        wire::write(&header, &self.body, ask.size_bytes as usize, out);
    }

    /// A frame came, at a time. A reply, if it is the first to its request, and the record for the
    /// client log; what follows from it goes to the end of `out`, the output of the gateway that it
    /// came from.
    pub fn receive(
        &mut self,
        header: &Header,
        body: &[u8],
        at_ns: u64,
        out: &mut Vec<u8>,
    ) -> (Option<Reply>, Option<Record>) {
        match header.kind {
            FrameKind::Private => self.counts.private += 1,
            FrameKind::Public => self.counts.public += 1,
            FrameKind::Reply => return self.reply(header, body, at_ns, out),
            _ => {}
        }
        (None, None)
    }

    fn reply(
        &mut self,
        header: &Header,
        body: &[u8],
        at_ns: u64,
        out: &mut Vec<u8>,
    ) -> (Option<Reply>, Option<Record>) {
        let Header { session, segment, client_seq, output_seq, flags, .. } = *header;
        let record = Record::Answered(Answered {
            name: Name { segment, session, client_seq },
            at_ns,
            output_seq,
            events_hash: Fields(body).u64().unwrap_or_default(),
            is_repeated: flags & wire::REPEATED != 0,
            is_forgotten: flags & wire::FORGOTTEN != 0,
        });
        let Some(at) = self.pair(session, segment) else { return (None, Some(record)) };
        let pending = &mut self.pairs[at].pending;
        let mut under_way = pending.iter().take(UNDER_WAY_MAX);
        let Some(place) = under_way.position(|known| known.client_seq == client_seq) else {
            self.counts.repeats += 1;
            return (None, Some(record));
        };
        let answered = pending.remove(place);
        let next = pending.get(UNDER_WAY_MAX - 1).copied();
        self.pending -= 1;
        if let Some(next) = next {
            self.write(&next, out);
        }
        let reply = |known: Pending| Reply { number: known.number, intended_ns: known.intended_ns };
        (answered.map(reply), Some(record))
    }

    /// A connection to a gateway was made: its sessions say hello, and what has no reply is sent
    /// again in order.
    pub fn connected(&mut self, gateway: usize, out: &mut Vec<u8>) {
        let sessions =
            (0..self.last_seqs.len()).filter(|session| session % self.gateways == gateway);
        for session in sessions.collect::<Vec<usize>>() {
            let header = Header { session: session as u32, ..Header::new(FrameKind::Hello) };
            wire::write(&header, HELLO, 0, out);
            let pairs = session * self.segments..(session + 1) * self.segments;
            for at in pairs {
                for place in 0..self.pairs[at].pending.len().min(UNDER_WAY_MAX) {
                    let pending = self.pairs[at].pending[place];
                    self.write(&pending, out);
                    self.counts.resent += 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Settings;
    use crate::load::mix::Maker;
    use crate::order::Command;

    fn frames(mut bytes: &[u8]) -> Vec<Header> {
        let mut headers = vec![];
        while let Some(frame) = wire::read(bytes).unwrap() {
            headers.push(frame.header);
            bytes = &bytes[frame.bytes.len()..];
        }
        headers
    }

    fn tick(session: u32, segment: u32) -> Ask {
        Ask { session, segment, command: Command::Tick, size_bytes: 300, is_public: false }
    }

    fn reply_to(header: &Header) -> Header {
        Header { kind: FrameKind::Reply, ..*header }
    }

    #[test]
    fn requests_are_numbered_by_session_and_name_the_one_before_on_the_instrument() {
        let mut clients = Clients::new(2, 3, 2, false);
        let mut out = vec![];
        for (session, segment) in [(1, 0), (1, 2), (2, 0), (1, 0), (1, 2)] {
            assert!(clients.ask(&tick(session, segment), 5, &mut out).is_some());
        }
        let seqs: Vec<(u64, u64)> =
            frames(&out).iter().map(|header| (header.client_seq, header.previous_seq)).collect();
        assert_eq!(seqs, [(1, 0), (2, 0), (1, 0), (3, 1), (4, 2)]);
        assert_eq!((clients.asked(), clients.pending(), clients.gateway_of(2)), (5, 5, 0));
        assert!(clients.ask(&tick(3, 0), 5, &mut out).is_none());
        assert!(clients.ask(&tick(1, 3), 5, &mut out).is_none());
    }

    #[test]
    fn more_than_the_network_remembers_waits_for_replies() {
        let mut clients = Clients::new(1, 1, 1, true);
        let mut out = vec![];
        for _ in 0..UNDER_WAY_MAX + 3 {
            clients.ask(&tick(1, 0), 5, &mut out);
        }
        let sent = frames(&out);
        assert_eq!(sent.len(), UNDER_WAY_MAX);
        for (idx, header) in sent.iter().enumerate() {
            out.clear();
            let (reply, record) = clients.receive(&reply_to(header), &[1; 8], 9, &mut out);
            assert_eq!(reply, Some(Reply { number: idx as u64, intended_ns: 5 }));
            assert!(matches!(record, Some(Record::Answered(Answered { at_ns: 9, .. }))));
            assert_eq!(frames(&out).len(), usize::from(idx < 3));
        }
        assert_eq!(clients.pending(), 3);
        // The same reply once more.
        let (reply, record) = clients.receive(&reply_to(&sent[0]), &[], 9, &mut out);
        assert!(reply.is_none() && record.is_some());
        assert_eq!(clients.counts.repeats, 1);
    }

    #[test]
    fn what_has_no_reply_is_sent_again_in_order_after_the_hellos() {
        let settings = Settings { sessions: 6, segments: 4, ..Settings::default() };
        let (mut clients, mut maker) = (Clients::new(6, 4, 2, true), Maker::new(&settings));
        let mut outs = [vec![], vec![]];
        for _ in 0..200 {
            let ask = maker.ask();
            let gateway = clients.gateway_of(ask.session);
            clients.ask(&ask, 1, &mut outs[gateway]);
        }
        let sent = frames(&outs[1]);
        for header in sent.iter().step_by(3) {
            clients.receive(&reply_to(header), &[0; 8], 2, &mut vec![]);
        }
        let mut again = vec![];
        clients.connected(1, &mut again);
        let again = frames(&again);
        let hellos = again.iter().filter(|header| header.kind == FrameKind::Hello);
        assert_eq!(hellos.map(|header| header.session).collect::<Vec<_>>(), [1, 3, 5]);
        let of = |headers: &[Header], session, segment| -> Vec<u64> {
            let is_asked = |header: &&Header| {
                (header.session, header.segment) == (session, segment)
                    && header.kind == FrameKind::Request
            };
            headers.iter().filter(is_asked).map(|header| header.client_seq).collect()
        };
        let left: Vec<Header> =
            sent.iter().enumerate().filter(|(at, _)| at % 3 != 0).map(|(_, h)| *h).collect();
        for session in [1, 3, 5] {
            for segment in 0..4 {
                assert_eq!(of(&again, session, segment), of(&left, session, segment));
            }
        }
        assert_eq!(clients.counts.resent, left.len() as u64);
    }

    #[test]
    fn messages_that_answer_nothing_are_counted() {
        let mut clients = Clients::new(1, 1, 1, true);
        for kind in [FrameKind::Private, FrameKind::Public, FrameKind::Public, FrameKind::Lead] {
            let (reply, record) = clients.receive(&Header::new(kind), &[], 1, &mut vec![]);
            assert!(reply.is_none() && record.is_none());
        }
        assert_eq!((clients.counts.private, clients.counts.public), (1, 2));
        // A reply to nobody is evidence, too.
        let stray = Header { session: 99, ..Header::new(FrameKind::Reply) };
        assert!(clients.receive(&stray, &[], 1, &mut vec![]).1.is_some());
    }
}
