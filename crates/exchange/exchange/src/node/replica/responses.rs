//! The frames that follow from a handled request: its reply, the private events of other sessions,
//! and broadcasts; and resent events.

use nm_book::order::{Event, Matching, UserId};

use crate::cell::{Cell, Handled, Outcome, Request};
use crate::limits::{FRAME_EVENTS_MAX, PADDING_BYTES_MAX};
use crate::message::{Events, Reply, ResendRequest};
use crate::network::Role;
use crate::refused::RefusalReason;
use crate::wire::{self, Frame, FrameKind, Header, STAMPS};

use crate::node::runtime::links::{LinkId, Links};

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

/// Reports to a gateway that replies and events of a cell may be lost on their way to it: a link to
/// it has just been made, or they were never sent.
pub fn report_loss(links: &mut Links, gateway: LinkId, cell: u16) {
    links.send(gateway, &Header { cell, ..Header::new(FrameKind::ResendRequest) }, &[], 0);
}

/// The link to a gateway has ended: events may be lost that were on their way to sessions which
/// have gone to other gateways, but have sent no request there yet. These gateways are notified.
pub fn report_event_loss(links: &mut Links, cells: impl IntoIterator<Item = u16>) {
    for cell in cells {
        let kind = FrameKind::ResendRequest;
        let header = Header { cell, flags: wire::EVENTS_ONLY, ..Header::new(kind) };
        for gateway in links.all_to(Role::Gateway) {
            links.send(gateway, &header, &[], 0);
        }
    }
}

/// Hands requests to a cell and makes the frames that follow; reuses its buffers.
#[derive(Debug, Default)]
pub struct Responses {
    public: Vec<Event>,
    body: Vec<u8>,
}

impl Responses {
    /// Handles one request of the present batch, and gives `send` the frames that follow, in order.
    /// `hops`: the timestamps to be set, and their values, ns.
    pub fn handle<M: Matching>(
        &mut self,
        cell: &mut Cell<M>,
        request: &Request,
        frame: &Frame<'_>,
        hops: &[(usize, u64)],
        mut send: impl FnMut(&Outgoing<'_>),
    ) -> Handled {
        self.public.clear();
        let public = &mut self.public;
        let handled = cell.handle(request, |event| {
            if request.is_public {
                public.push(*event);
            }
        });
        let stamps = wire::stamps(frame);
        let mut to = Sender { frame, stamps, padding_bytes: PADDING_BYTES_MAX, send: &mut send };
        for (hop, at_ns) in hops {
            if let Some(stamp) = to.stamps.as_mut().and_then(|stamps| stamps.get_mut(*hop)) {
                *stamp = *at_ns;
            }
        }
        match handled {
            Handled::Executed(outcome) => self.send_outcome(cell, &outcome, &mut to),
            Handled::Duplicate(outcome) => {
                let expired = if outcome.is_none() { wire::EXPIRED } else { 0 };
                let mut header = to.header(FrameKind::Reply, wire::RESENT | expired);
                header.output_seq = outcome.map_or(0, |outcome| outcome.output_seq);
                // Without its events: the session sees by the number whether it misses some.
                header.previous_seq = cell.last_event_seq(header.instrument, header.session);
                let events_hash = outcome.map_or(0, |outcome| outcome.events_hash);
                Reply::encode(events_hash, [], &mut self.body);
                to.send(header, &self.body);
            }
            Handled::SequenceGap => {
                let attempt = frame.header.flags & wire::ATTEMPT;
                let mut header = to.header(FrameKind::Nak, attempt);
                header.previous_seq = cell.last_request_seq(header.instrument, header.session);
                to.send(header, &[]);
            }
            Handled::Refused(reason) => {
                reason.encode(&mut self.body);
                to.send(RefusalReason::header(&frame.header), &self.body);
            }
        }
        handled
    }

    /// Sends the outcome of a request to all sessions that it concerns.
    fn send_outcome<M: Matching>(
        &mut self,
        cell: &Cell<M>,
        outcome: &Outcome,
        to: &mut Sender<'_, impl FnMut(&Outgoing<'_>)>,
    ) {
        let Header { instrument, session: requester, .. } = to.frame.header;
        let of = |session| {
            let notifications = cell.notifications();
            let from = notifications.partition_point(|(user, _)| *user < session);
            &notifications
                [from..from + notifications[from..].partition_point(|(user, _)| *user == session)]
        };
        let reply = Header { output_seq: outcome.output_seq, ..to.header(FrameKind::Reply, 0) };
        let private = Header { kind: FrameKind::Private, client_seq: 0, ..reply };
        let own = of(requester);
        let mut event_seq = cell.last_event_seq(instrument, requester) - own.len() as u64;
        let full_frames = own.len().saturating_sub(1) / FRAME_EVENTS_MAX * FRAME_EVENTS_MAX;
        let (before, last) = own.split_at(full_frames);
        for part in before.chunks(FRAME_EVENTS_MAX) {
            Events::encode(part.iter().map(|(_, event)| event), &mut self.body);
            to.send(Header { previous_seq: event_seq, ..private }, &self.body);
            event_seq += part.len() as u64;
        }
        Reply::encode(outcome.events_hash, last.iter().map(|(_, event)| event), &mut self.body);
        to.send(Header { previous_seq: event_seq, ..reply }, &self.body);

        let others = cell.notifications().chunk_by(|(a, _), (b, _)| a == b);
        for events in others.filter(|events| events[0].0 != requester) {
            self.send_private(cell, events, private, to);
        }

        let public = std::mem::take(&mut self.public);
        let header = Header { flags: private.flags | wire::PUBLIC, ..private };
        let header = Header { kind: FrameKind::Public, ..header };
        let mut event_seq = cell.last_public_seq(instrument) - public.len() as u64;
        for part in public.chunks(FRAME_EVENTS_MAX) {
            Events::encode(part, &mut self.body);
            to.send(Header { previous_seq: event_seq, ..header }, &self.body);
            event_seq += part.len() as u64;
        }
        self.public = public;
    }

    /// Sends another session the events of its orders.
    fn send_private<M: Matching>(
        &mut self,
        cell: &Cell<M>,
        events: &[(UserId, Event)],
        private: Header,
        to: &mut Sender<'_, impl FnMut(&Outgoing<'_>)>,
    ) {
        let (instrument, session) = (private.instrument, events[0].0);
        let Some(gateway) = cell.gateway_of(instrument, session) else { return };
        let mut event_seq = cell.last_event_seq(instrument, session) - events.len() as u64;
        for part in events.chunks(FRAME_EVENTS_MAX) {
            Events::encode(part.iter().map(|(_, event)| event), &mut self.body);
            to.send(Header { gateway, session, previous_seq: event_seq, ..private }, &self.body);
            event_seq += part.len() as u64;
        }
    }

    /// Answers a [`FrameKind::ResendRequest`] with all events that the session does not have, in
    /// one frame. If the instrument is in another cell, the request goes back, and its gateway
    /// sends it to that one.
    pub fn resend<M: Matching>(&mut self, cell: &Cell<M>, request: &Header, out: &mut Vec<u8>) {
        let ResendRequest { session, instrument, acknowledged } = ResendRequest::decode(request);
        let Some((start, events)) = cell.events_after(instrument, session, acknowledged) else {
            return wire::write(&Header { flags: wire::REFUSED, ..*request }, &[], 0, out);
        };
        let expired = if start > acknowledged { wire::EXPIRED } else { 0 };
        let header = Header {
            kind: FrameKind::Private,
            flags: wire::RESENT | expired,
            previous_seq: start,
            output_seq: 0,
            ..*request
        };
        Events::encode(events, &mut self.body);
        wire::write(&header, &self.body, 0, out);
    }
}

/// Sends the frames that follow from one request.
struct Sender<'a, S> {
    frame: &'a Frame<'a>,
    stamps: Option<[u64; STAMPS]>,
    /// Padding that these frames may still have.
    padding_bytes: usize,
    send: &'a mut S,
}

impl<S: FnMut(&Outgoing<'_>)> Sender<'_, S> {
    /// The request's header for another kind of frame.
    fn header(&self, kind: FrameKind, flags: u16) -> Header {
        let kept = self.frame.header.flags & wire::STAMPED;
        Header { kind, flags: flags | kept, ..self.frame.header }
    }

    /// Sends a frame, as long as the request if it may have so much padding.
    fn send(&mut self, header: Header, body: &[u8]) {
        let (least_bytes, stamps) = (wire::least_bytes(&header, body), self.stamps);
        let wanted = self.frame.bytes.len().saturating_sub(least_bytes);
        let size_bytes = least_bytes + wanted.min(self.padding_bytes);
        self.padding_bytes -= wanted.min(self.padding_bytes);
        (self.send)(&Outgoing { header, body, size_bytes, stamps });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nm_book::book::Book;
    use nm_book::codec;
    use nm_book::order::{Command, NewOrder, OrderType, PostOnly, SelfTrade, Side, TimeInForce};
    use nm_book::reference::ReferenceBook;

    fn request(session: u32, seq: u64, side: Side, quantity: u64) -> Vec<u8> {
        let command = Command::New(NewOrder {
            id: u64::from(session) << 32 | seq,
            user: session,
            side,
            order_type: OrderType::Limit,
            time_in_force: TimeInForce::Day,
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
            instrument: 1,
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

    fn handle<M: Matching>(cell: &mut Cell<M>, bytes: &[u8]) -> Vec<(Header, Vec<u8>)> {
        let frame = wire::read(bytes).unwrap().unwrap();
        let request = Request::of(&frame).unwrap();
        let mut sent = vec![];
        Responses::default().handle(cell, &request, &frame, &[(2, 77)], |out| {
            let mut bytes = vec![];
            out.write(&mut bytes);
            let frame = wire::read(&bytes).unwrap().unwrap();
            assert_eq!(wire::stamps(&frame).unwrap()[2], 77);
            sent.push((frame.header, frame.body.to_vec()));
        });
        sent
    }

    #[test]
    fn both_sides_of_a_trade_and_all_clients_are_notified() {
        let mut cell = Cell::<ReferenceBook>::default();
        cell.begin(1, 1);
        handle(&mut cell, &request(7, 1, Side::Buy, 5));
        let sent = handle(&mut cell, &request(9, 1, Side::Sell, 3));
        let kinds: Vec<_> = sent.iter().map(|(h, _)| (h.kind, h.session, h.gateway)).collect();
        use FrameKind::{Private, Public, Reply};
        assert_eq!(kinds, [(Reply, 9, 9), (Private, 7, 7), (Public, 9, 9)]);
        assert_eq!((sent[0].0.client_seq, sent[0].0.output_seq, sent[0].0.intended_ns), (1, 2, 5));
        let mut reply = nm_codec::Reader::new(&sent[0].1[8..]);
        assert!(matches!(codec::read_event(&mut reply), Ok(Event::Accepted { user: 9, .. })));
        let mut private = nm_codec::Reader::new(&sent[1].1);
        let traded = codec::read_event(&mut private).unwrap();
        assert!(matches!(traded, Event::Traded { maker_user: 7, quantity: 3, .. }), "{traded:?}");
        assert_eq!(codec::read_event(&mut reply), Ok(traded));
        assert!(reply.is_empty() && private.is_empty());

        let again = handle(&mut cell, &request(9, 1, Side::Sell, 3));
        assert_eq!(again.len(), 1);
        assert_eq!(again[0].0.flags & wire::RESENT, wire::RESENT);
        assert_eq!((&again[0].1[..], again[0].0.output_seq), (&sent[0].1[..8], 2));
        let gap = handle(&mut cell, &request(9, 5, Side::Sell, 3));
        assert_eq!((gap.len(), gap[0].0.kind), (1, FrameKind::Nak));

        // Events are numbered by recipient, and resent from any number on.
        let before: Vec<u64> = sent.iter().map(|(header, _)| header.previous_seq).collect();
        assert_eq!(before, [0, 1, 2]);
        assert_eq!(again[0].0.previous_seq, 2);
        let resend = |session, seen| {
            let header = Header {
                instrument: 1,
                gateway: 4,
                session,
                output_seq: seen,
                ..Header::new(FrameKind::ResendRequest)
            };
            let mut bytes = vec![];
            Responses::default().resend(&cell, &header, &mut bytes);
            let frame = wire::read(&bytes).unwrap().unwrap();
            let Header { kind, flags, gateway, previous_seq, .. } = frame.header;
            assert_eq!((kind, flags, gateway), (Private, wire::RESENT, 4));
            assert_eq!(frame.bytes.len(), bytes.len());
            (previous_seq, frame.body.to_vec())
        };
        assert_eq!(resend(7, 1), (1, sent[1].1.clone()));
        assert_eq!(resend(9, 0), (0, sent[0].1[8..].to_vec()));
        assert_eq!(resend(9, 2), (2, vec![]));
        assert_eq!(resend(5, 0), (0, vec![]));
    }

    /// A stop that another session's trade triggers, and a post-only order that slides: their
    /// owners are notified.
    #[test]
    fn order_owner_is_notified_of_every_event() {
        let mut cell = Cell::<ReferenceBook>::default();
        let mut seqs = [0; 4];
        let mut ask = |session: u32, change: &dyn Fn(&mut NewOrder)| {
            seqs[session as usize] += 1;
            let bytes = request(session, seqs[session as usize], Side::Buy, 1);
            let frame = wire::read(&bytes).unwrap().unwrap();
            let mut request = Request::of(&frame).unwrap();
            if let Command::New(order) = &mut request.command {
                change(order);
            }
            let mut sent = vec![];
            Responses::default().handle(&mut cell, &request, &frame, &[], |out| {
                sent.push((out.header.kind, out.header.session, out.body.to_vec()));
            });
            sent
        };
        ask(1, &|stop| (stop.order_type, stop.stop_price) = (OrderType::StopLimit, 100));
        ask(2, &|sell| (sell.side, sell.quantity, sell.display) = (Side::Sell, 2, 1));
        let slid = ask(1, &|order| (order.post_only, order.price) = (PostOnly::Slide, 105));
        let event = |body: &[u8], at: usize| {
            let mut fields = nm_codec::Reader::new(body);
            (0..at).for_each(|_| assert!(codec::read_event(&mut fields).is_ok()));
            codec::read_event(&mut fields).unwrap()
        };
        let id = 1 << 32 | 2;
        assert_eq!(event(&slid[0].2[8..], 1), Event::Slid { id, user: 1, price: 99 });
        let traded = ask(3, &|_| {});
        let private = |user| {
            let is_it = |(kind, session, _): &&(FrameKind, u32, Vec<u8>)| {
                (*kind, *session) == (FrameKind::Private, user)
            };
            traded.iter().find(is_it).unwrap().2.clone()
        };
        let id = 2 << 32 | 1;
        assert_eq!(event(&private(2), 1), Event::Refreshed { id, user: 2, shown: 1 });
        assert_eq!(event(&private(1), 0), Event::Triggered { id: 1 << 32 | 1, user: 1 });
    }

    /// One order against 4 000 sessions: padded to its length, the frames would take 4 GiB.
    #[test]
    fn the_frames_of_one_request_share_its_padding() {
        let mut cell = Cell::<Book>::default();
        cell.begin(1, 1);
        let sessions = 4_000;
        for session in 1..=sessions {
            handle(&mut cell, &request(session, 1, Side::Sell, 1));
        }
        let bytes = request(sessions + 1, 1, Side::Buy, u64::from(sessions));
        let frame = wire::read(&bytes).unwrap().unwrap();
        let mut padded = vec![];
        wire::write(&frame.header, frame.body, wire::FRAME_BYTES_MAX, &mut padded);
        let frame = wire::read(&padded).unwrap().unwrap();
        let request = Request::of(&frame).unwrap();
        let (mut out, mut lengths) = (vec![], vec![]);
        Responses::default().handle(&mut cell, &request, &frame, &[(2, 77)], |outgoing| {
            let start = out.len();
            outgoing.write(&mut out);
            lengths.push(out.len() - start);
            let frame = wire::read(&out[start..]).unwrap().unwrap();
            assert_eq!(wire::stamps(&frame).unwrap()[2], 77);
        });
        // A reply as long as the request, or longer by its events, and what the others need.
        assert!(lengths.len() > sessions as usize);
        assert_eq!(lengths[0], wire::FRAME_BYTES_MAX);
        assert!(out.len() < 4 * wire::FRAME_BYTES_MAX, "{} bytes", out.len());
    }

    #[test]
    fn more_events_than_fit_a_frame_are_sent_in_several() {
        let mut cell = Cell::<Book>::default();
        cell.begin(1, 1);
        // Two full frames, and one event more.
        let count_of_orders = 2 * FRAME_EVENTS_MAX as u64 + 1;
        for seq in 1..=count_of_orders {
            handle(&mut cell, &request(7, seq, Side::Buy, 1));
        }
        let mut body = vec![];
        codec::write_command(&Command::MassCancel { user: 7 }, &mut body);
        let header = Header {
            instrument: 1,
            session: 7,
            client_seq: count_of_orders + 1,
            previous_seq: count_of_orders,
            flags: wire::STAMPED | wire::PUBLIC,
            ..Header::new(FrameKind::Request)
        };
        let mut bytes = vec![];
        wire::write(&header, &body, 0, &mut bytes);
        let sent = handle(&mut cell, &bytes);
        let numbers: Vec<u64> = sent.iter().map(|(header, _)| header.previous_seq).collect();
        let from = |first: u64| (0..3).map(move |at| first + at * FRAME_EVENTS_MAX as u64);
        let expected = from(count_of_orders).chain(from(count_of_orders + 1));
        assert_eq!(numbers, expected.collect::<Vec<u64>>());
        let count = |kind: FrameKind| -> usize {
            let of_kind = sent.iter().filter(|(header, _)| header.kind == kind);
            let count = |(_, body): &(Header, Vec<u8>)| {
                let skip = if kind == FrameKind::Reply { 8 } else { 0 };
                let mut fields = nm_codec::Reader::new(&body[skip..]);
                let events = std::iter::from_fn(|| codec::read_event(&mut fields).ok()).count();
                assert!(fields.is_empty());
                events
            };
            of_kind.map(count).sum()
        };
        let all = 2 * FRAME_EVENTS_MAX + 1;
        assert_eq!(count(FrameKind::Private) + count(FrameKind::Reply), all);
        assert_eq!(count(FrameKind::Public), all);
        assert_eq!(sent.iter().filter(|(h, _)| h.kind == FrameKind::Reply).count(), 1);
    }
}
