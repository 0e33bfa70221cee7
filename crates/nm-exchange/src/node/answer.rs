//! What a handled request leads to: its reply, what other sessions are told, what everybody is.

use crate::cell::{Cell, Handled, Outcome, Request};
use crate::codec;
use crate::order::{Event, Matching, OrderId, UserId};
use crate::wire::{self, Frame, FrameKind, Header, STAMPS};

/// Bytes of events that one frame carries; what is more goes into frames of its own before it.
const EVENTS_BYTES_MAX: usize = 256 << 10;

/// Most bytes of one event.
const EVENT_BYTES_MAX: usize = 64;

/// A frame to be written.
#[derive(Debug)]
pub struct Outgoing<'a> {
    /// Its header; a public one is for all gateways.
    pub header: Header,
    body: &'a [u8],
    size_bytes: usize,
    stamps: Option<[u64; STAMPS]>,
}

impl Outgoing<'_> {
    /// Appends the frame.
    pub fn write(&self, out: &mut Vec<u8>) {
        let start = out.len();
        wire::write(&self.header, self.body, self.size_bytes, out);
        for (hop, at_ns) in self.stamps.iter().flatten().enumerate() {
            wire::stamp(&mut out[start..], hop, *at_ns);
        }
    }
}

/// Hands requests to a cell and makes the frames that follow; keeps its buffers.
#[derive(Debug, Default)]
pub struct Answers {
    asker: Vec<u8>,
    public: Vec<u8>,
    others: Vec<(UserId, Event)>,
    body: Vec<u8>,
}

impl Answers {
    /// Handles one request of the batch at hand, and gives `send` the frames that follow, in order.
    /// `hops`: what is to be stamped, and when, ns.
    pub fn handle<M: Matching>(
        &mut self,
        cell: &mut Cell<M>,
        request: &Request,
        frame: &Frame<'_>,
        hops: &[(usize, u64)],
        mut send: impl FnMut(&Outgoing<'_>),
    ) -> Handled {
        self.others.clear();
        self.asker.clear();
        self.public.clear();
        let (asker, public, others) = (&mut self.asker, &mut self.public, &mut self.others);
        let mut last_trade = LastTrade::default();
        let handled = cell.handle(request, |event| {
            if request.is_public {
                codec::write_event(event, public);
            }
            let users = last_trade.users(event);
            if users.contains(&Some(request.session)) || users == [None, None] {
                codec::write_event(event, asker);
            }
            for user in users.into_iter().flatten().filter(|user| *user != request.session) {
                others.push((user, *event));
            }
        });
        let mut to = Sending { frame, stamps: wire::stamps(frame), send: &mut send };
        for (hop, at_ns) in hops {
            if let Some(stamp) = to.stamps.as_mut().and_then(|stamps| stamps.get_mut(*hop)) {
                *stamp = *at_ns;
            }
        }
        match handled {
            Handled::Done(outcome) => self.tell(cell, &outcome, &mut to),
            Handled::Before(outcome) => {
                let forgotten = if outcome.is_none() { wire::FORGOTTEN } else { 0 };
                let mut header = to.header(FrameKind::Reply, wire::REPEATED | forgotten);
                header.output_seq = outcome.map_or(0, |outcome| outcome.output_seq);
                let events_hash = outcome.map_or(0, |outcome| outcome.events_hash);
                to.send(header, &events_hash.to_le_bytes());
            }
            Handled::Gap => {
                let header = to.header(FrameKind::Again, 0);
                to.send(header, &[]);
            }
        }
        handled
    }

    /// Tells what a request did.
    fn tell<M: Matching>(
        &mut self,
        cell: &Cell<M>,
        outcome: &Outcome,
        to: &mut Sending<'_, impl FnMut(&Outgoing<'_>)>,
    ) {
        let output_seq = outcome.output_seq;
        let told = |header: Header| Header { client_seq: 0, output_seq, ..header };
        let own_private = told(to.header(FrameKind::Private, 0));
        let mut events = &self.asker[..];
        while events.len() > EVENTS_BYTES_MAX {
            let (part, rest) = events.split_at(whole_events(events));
            to.send(own_private, part);
            events = rest;
        }
        self.body.clear();
        self.body.extend_from_slice(&outcome.events_hash.to_le_bytes());
        self.body.extend_from_slice(events);
        let header = Header { output_seq, ..to.header(FrameKind::Reply, 0) };
        to.send(header, &self.body);

        self.others.sort_by_key(|(user, _)| *user);
        for told_to in self.others.chunk_by(|(a, _), (b, _)| a == b) {
            let session = told_to[0].0;
            let Some(gateway) = cell.gateway_of(own_private.segment, session) else { continue };
            let header = Header { gateway, session, ..own_private };
            for part in told_to.chunks(EVENTS_BYTES_MAX / EVENT_BYTES_MAX) {
                self.body.clear();
                part.iter().for_each(|(_, event)| codec::write_event(event, &mut self.body));
                to.send(header, &self.body);
            }
        }

        let header = told(to.header(FrameKind::Public, wire::PUBLIC));
        let mut events = &self.public[..];
        while !events.is_empty() {
            let (part, rest) = events.split_at(whole_events(events));
            to.send(header, part);
            events = rest;
        }
    }
}

/// Where the frames that follow from one request go.
struct Sending<'a, S> {
    frame: &'a Frame<'a>,
    stamps: Option<[u64; STAMPS]>,
    send: &'a mut S,
}

impl<S: FnMut(&Outgoing<'_>)> Sending<'_, S> {
    /// The request's header for another kind of frame.
    fn header(&self, kind: FrameKind, flags: u16) -> Header {
        let kept = self.frame.header.flags & wire::STAMPED;
        Header { kind, flags: flags | kept, ..self.frame.header }
    }

    fn send(&mut self, header: Header, body: &[u8]) {
        let (size_bytes, stamps) = (self.frame.bytes.len(), self.stamps);
        (self.send)(&Outgoing { header, body, size_bytes, stamps });
    }
}

/// Bytes of the whole events at the front that fit a frame.
fn whole_events(events: &[u8]) -> usize {
    let mut fields = codec::Fields(events);
    let mut whole = events.len();
    while whole - fields.0.len() + EVENT_BYTES_MAX <= EVENTS_BYTES_MAX && !fields.0.is_empty() {
        if codec::read_event(&mut fields).is_err() {
            break;
        }
    }
    whole -= fields.0.len();
    whole.max(1)
}

/// The last trade of a request: it tells whose iceberg shows its next part.
#[derive(Debug, Default)]
struct LastTrade([Option<(OrderId, UserId)>; 2]);

impl LastTrade {
    /// The users that an event is about; none if that is not known, or it is about the market.
    fn users(&mut self, event: &Event) -> [Option<UserId>; 2] {
        match *event {
            Event::Traded { maker, taker, maker_user, taker_user, .. } => {
                self.0 = [Some((maker, maker_user)), Some((taker, taker_user))];
                [Some(maker_user), (taker_user != maker_user).then_some(taker_user)]
            }
            Event::Accepted { user, .. }
            | Event::Rejected { user, .. }
            | Event::Cancelled { user, .. }
            | Event::Replaced { user, .. }
            | Event::Reduced { user, .. } => [Some(user), None],
            Event::Refreshed { id, .. } => {
                let owner = self.0.iter().flatten().find(|(order, _)| *order == id);
                [owner.map(|(_, user)| *user), None]
            }
            _ => [None, None],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::Book;
    use crate::order::{Command, Kind, Life, NewOrder, PostOnly, SelfTrade, Side};

    fn request(session: u32, seq: u64, side: Side, quantity: u64) -> Vec<u8> {
        let command = Command::New(NewOrder {
            id: u64::from(session) << 32 | seq,
            user: session,
            side,
            kind: Kind::Limit,
            life: Life::Day,
            price: 100,
            stop_price: 0,
            quantity,
            display: 0,
            minimum: 0,
            post_only: PostOnly::No,
            self_trade: SelfTrade::Allow,
        });
        let (mut body, mut bytes) = (vec![], vec![]);
        codec::write_command(&command, &mut body);
        let header = Header {
            flags: wire::STAMPED | wire::PUBLIC,
            segment: 1,
            gateway: session as u16,
            session,
            client_seq: seq,
            previous_seq: seq - 1,
            intended_ns: 5,
            ..Header::new(FrameKind::Request)
        };
        wire::write(&header, &body, 700, &mut bytes);
        bytes
    }

    fn handle(cell: &mut Cell<Book>, bytes: &[u8]) -> Vec<(Header, Vec<u8>)> {
        let frame = wire::read(bytes).unwrap().unwrap();
        let request = Request::of(&frame).unwrap();
        let mut sent = vec![];
        Answers::default().handle(cell, &request, &frame, &[(2, 77)], |out| {
            let mut bytes = vec![];
            out.write(&mut bytes);
            let frame = wire::read(&bytes).unwrap().unwrap();
            assert_eq!(wire::stamps(&frame).unwrap()[2], 77);
            sent.push((frame.header, frame.body.to_vec()));
        });
        sent
    }

    #[test]
    fn both_sides_of_a_trade_and_everybody_are_told() {
        let mut cell = Cell::<Book>::default();
        cell.begin(1, 1);
        handle(&mut cell, &request(7, 1, Side::Buy, 5));
        let sent = handle(&mut cell, &request(9, 1, Side::Sell, 3));
        let kinds: Vec<_> = sent.iter().map(|(h, _)| (h.kind, h.session, h.gateway)).collect();
        use FrameKind::{Private, Public, Reply};
        assert_eq!(kinds, [(Reply, 9, 9), (Private, 7, 7), (Public, 9, 9)]);
        assert_eq!((sent[0].0.client_seq, sent[0].0.output_seq, sent[0].0.intended_ns), (1, 2, 5));
        let mut reply = codec::Fields(&sent[0].1[8..]);
        assert!(matches!(codec::read_event(&mut reply), Ok(Event::Accepted { user: 9, .. })));
        let mut private = codec::Fields(&sent[1].1);
        let told = codec::read_event(&mut private).unwrap();
        assert!(matches!(told, Event::Traded { maker_user: 7, quantity: 3, .. }), "{told:?}");
        assert_eq!(codec::read_event(&mut reply), Ok(told));
        assert!(reply.0.is_empty() && private.0.is_empty());

        let again = handle(&mut cell, &request(9, 1, Side::Sell, 3));
        assert_eq!(again.len(), 1);
        assert_eq!(again[0].0.flags & wire::REPEATED, wire::REPEATED);
        assert_eq!((&again[0].1[..], again[0].0.output_seq), (&sent[0].1[..8], 2));
        let gap = handle(&mut cell, &request(9, 5, Side::Sell, 3));
        assert_eq!((gap.len(), gap[0].0.kind), (1, FrameKind::Again));
    }

    #[test]
    fn more_events_than_fit_a_frame_come_in_several() {
        let mut cell = Cell::<Book>::default();
        cell.begin(1, 1);
        for seq in 1..=20_000 {
            handle(&mut cell, &request(7, seq, Side::Buy, 1));
        }
        let mut body = vec![];
        codec::write_command(&Command::MassCancel { user: 7 }, &mut body);
        let header = Header {
            segment: 1,
            session: 7,
            client_seq: 20_001,
            previous_seq: 20_000,
            flags: wire::STAMPED | wire::PUBLIC,
            ..Header::new(FrameKind::Request)
        };
        let mut bytes = vec![];
        wire::write(&header, &body, 0, &mut bytes);
        let sent = handle(&mut cell, &bytes);
        let count = |kind: FrameKind| -> usize {
            let of_kind = sent.iter().filter(|(header, _)| header.kind == kind);
            let count = |(_, body): &(Header, Vec<u8>)| {
                let skip = if kind == FrameKind::Reply { 8 } else { 0 };
                let mut fields = codec::Fields(&body[skip..]);
                let events = std::iter::from_fn(|| codec::read_event(&mut fields).ok()).count();
                assert!(fields.0.is_empty());
                events
            };
            of_kind.map(count).sum()
        };
        assert_eq!(count(FrameKind::Private) + count(FrameKind::Reply), 20_000);
        assert_eq!(count(FrameKind::Public), 20_000);
        assert_eq!(sent.iter().filter(|(h, _)| h.kind == FrameKind::Reply).count(), 1);
    }
}
