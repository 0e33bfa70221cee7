//! The frames that follow from a handled request: its reply, the private events of other sessions,
//! and broadcasts; and resent events.

use nm_book::order::{Event, Matching, UserId};
use nm_wire::{
    BestPrices, EventsLost, Frame, Message, Misdirected, Nak, Private, Public, Refused,
    RepliesLost, Reply, Request, ResendRequest, Resent, STAMPS, Series, Shape, Value,
};

use crate::cell::{self, Cell, Handled, Outcome};
use crate::limits::{FRAME_EVENTS_MAX, PADDING_BYTES_MAX};
use crate::network::Role;

use crate::node::runtime::links::Links;

/// A frame to be written.
#[derive(Debug)]
pub struct Outgoing<'a> {
    /// Its message; a public one is for all gateways.
    pub message: Message<'a>,
    shape: Shape,
    stamps: Option<[u64; STAMPS]>,
}

impl Outgoing<'_> {
    /// Appends the frame.
    pub fn write(&self, out: &mut Vec<u8>) {
        let start = out.len();
        self.message.write(self.shape, out);
        for (hop, at_ns) in self.stamps.iter().flatten().enumerate() {
            nm_wire::stamp(&mut out[start..], hop, *at_ns);
        }
    }
}

/// Reports to a gateway that replies and events of a cell may be lost on their way to it: a link to
/// it has just been made, or they were never sent.
pub fn report_loss(links: &mut Links, gateway: u16, cell: u16) {
    if let Some(link) = links.to(Role::Gateway.node(gateway)) {
        links.send(link, &RepliesLost { cell, gateway });
    }
}

/// The link to a gateway has ended: events may be lost that were on their way to sessions which
/// have gone to other gateways, but have sent no request there yet. These gateways are notified.
pub fn report_event_loss(links: &mut Links, cells: impl IntoIterator<Item = u16>) {
    for cell in cells {
        for gateway in 0..links.network().nodes(Role::Gateway).len() as u16 {
            if let Some(link) = links.to(Role::Gateway.node(gateway)) {
                links.send(link, &EventsLost { cell, gateway });
            }
        }
    }
}

/// Hands requests to a cell and makes the frames that follow; reuses its buffers.
#[derive(Debug, Default)]
pub struct Responses {
    public: Vec<Event>,
    /// The events of one frame.
    bytes: Vec<u8>,
}

/// Replaces bytes by those of events.
fn encode<'e>(events: impl IntoIterator<Item = &'e Event>, bytes: &mut Vec<u8>) {
    bytes.clear();
    events.into_iter().for_each(|event| event.put(bytes));
}

/// The reply to a request, without events.
fn reply(request: &Request) -> Reply<'static> {
    Reply {
        instrument: request.instrument,
        session: request.session,
        client_seq: request.client_seq,
        output_seq: 0,
        previous_event: 0,
        events_hash: 0,
        intended_ns: request.intended_ns,
        map_version: request.map_version,
        gateway: request.gateway,
        cell: request.cell,
        is_repeated: false,
        is_expired: false,
        events: Series::of(&[]),
    }
}

impl Responses {
    /// Handles one request of the present batch, and gives `send` the frames that follow, in order.
    /// `hops`: the timestamps to be set, and their values, ns.
    pub fn handle<M: Matching>(
        &mut self,
        cell: &mut Cell<M>,
        request: &Request,
        frame: Frame<'_>,
        hops: &[(usize, u64)],
        mut send: impl FnMut(&Outgoing<'_>),
    ) -> Handled {
        self.public.clear();
        let public = &mut self.public;
        let handled = cell.handle(request, |event| {
            if cell::is_broadcast(event) {
                public.push(*event);
            }
        });
        let mut to = Sender {
            size_bytes: frame.bytes.len(),
            stamps: frame.stamps(),
            padding_bytes: PADDING_BYTES_MAX,
            send: &mut send,
        };
        for (hop, at_ns) in hops {
            if let Some(stamp) = to.stamps.as_mut().and_then(|stamps| stamps.get_mut(*hop)) {
                *stamp = *at_ns;
            }
        }
        let Request { instrument, session, client_seq, gateway, attempt, .. } = *request;
        match handled {
            // The exchange itself has sent it.
            _ if client_seq == 0 && !matches!(handled, Handled::Executed(_)) => {}
            Handled::Executed(outcome) => self.send_outcome(cell, request, &outcome, &mut to),
            Handled::Duplicate(outcome) => to.send(Message::Reply(Reply {
                output_seq: outcome.map_or(0, |outcome| outcome.output_seq),
                // Without its events: the session sees by the number whether it misses some.
                previous_event: cell.last_event_seq(instrument, session),
                events_hash: outcome.map_or(0, |outcome| outcome.events_hash),
                is_repeated: true,
                is_expired: outcome.is_none(),
                ..reply(request)
            })),
            Handled::SequenceGap => to.send(Message::Nak(Nak {
                instrument,
                session,
                client_seq,
                executed_seq: cell.last_request_seq(instrument, session),
                gateway,
                cell: request.cell,
                attempt,
            })),
            Handled::Refused(reason) => to.send(Message::Refused(Refused::of(request, reason))),
        }
        handled
    }

    /// Sends the outcome of a request to all sessions that it concerns.
    fn send_outcome<M: Matching>(
        &mut self,
        cell: &Cell<M>,
        request: &Request,
        outcome: &Outcome,
        to: &mut Sender<'_, impl FnMut(&Outgoing<'_>)>,
    ) {
        let Request { instrument, session: requester, .. } = *request;
        let of = |session| {
            let notifications = cell.notifications();
            let from = notifications.partition_point(|(user, _)| *user < session);
            &notifications
                [from..from + notifications[from..].partition_point(|(user, _)| *user == session)]
        };
        let own = of(requester);
        // A session that is away gets events alone.
        let is_asked = request.client_seq > 0;
        let own = if is_asked { own } else { &[] };
        let mut previous_event = cell.last_event_seq(instrument, requester) - own.len() as u64;
        let full_frames = own.len().saturating_sub(1) / FRAME_EVENTS_MAX * FRAME_EVENTS_MAX;
        let (before, last) = own.split_at(full_frames);
        let at = Origin { request, output_seq: outcome.output_seq };
        for part in before.chunks(FRAME_EVENTS_MAX) {
            self.send_private(at, (requester, request.gateway), previous_event, part, to);
            previous_event += part.len() as u64;
        }
        encode(last.iter().map(|(_, event)| event), &mut self.bytes);
        if is_asked {
            to.send(Message::Reply(Reply {
                output_seq: outcome.output_seq,
                previous_event,
                events_hash: outcome.events_hash,
                events: Series::of(&self.bytes),
                ..reply(request)
            }));
        }

        let others = cell.notifications().chunk_by(|(a, _), (b, _)| a == b);
        for events in others.filter(|events| !is_asked || events[0].0 != requester) {
            let session = events[0].0;
            let Some(gateway) = cell.gateway_of(instrument, session) else { continue };
            let mut previous_event = cell.last_event_seq(instrument, session) - events.len() as u64;
            for part in events.chunks(FRAME_EVENTS_MAX) {
                self.send_private(at, (session, gateway), previous_event, part, to);
                previous_event += part.len() as u64;
            }
        }
        let (last_event, best) = (cell.last_public_seq(instrument), cell.new_best());
        self.send_public(at, last_event - u64::from(best.is_some()), to);
        if let Some([bid, offer]) = best {
            to.send(Message::BestPrices(BestPrices {
                instrument,
                output_seq: at.output_seq,
                previous_event: last_event - 1,
                gateway: request.gateway,
                cell: request.cell,
                bid,
                offer,
            }));
        }
    }

    /// Sends a session at a gateway events of its orders.
    fn send_private(
        &mut self,
        at: Origin<'_>,
        (session, gateway): (UserId, u16),
        previous_event: u64,
        events: &[(UserId, Event)],
        to: &mut Sender<'_, impl FnMut(&Outgoing<'_>)>,
    ) {
        encode(events.iter().map(|(_, event)| event), &mut self.bytes);
        to.send(Message::Private(Private {
            instrument: at.request.instrument,
            session,
            output_seq: at.output_seq,
            previous_event,
            gateway,
            cell: at.request.cell,
            is_astray: false,
            events: Series::of(&self.bytes),
        }));
    }

    /// Sends the broadcast events, of which the last one has a number.
    fn send_public(
        &mut self,
        at: Origin<'_>,
        last_event: u64,
        to: &mut Sender<'_, impl FnMut(&Outgoing<'_>)>,
    ) {
        let mut previous_event = last_event - self.public.len() as u64;
        for part in self.public.chunks(FRAME_EVENTS_MAX) {
            encode(part, &mut self.bytes);
            to.send(Message::Public(Public {
                instrument: at.request.instrument,
                output_seq: at.output_seq,
                previous_event,
                gateway: at.request.gateway,
                cell: at.request.cell,
                events: Series::of(&self.bytes),
            }));
            previous_event += part.len() as u64;
        }
    }

    /// Answers a [`ResendRequest`] with all events that the session does not have, in one frame. If
    /// the instrument is in another cell, the request goes back, and its gateway sends it to that
    /// one.
    pub fn resend<M: Matching>(
        &mut self,
        cell: &Cell<M>,
        request: &ResendRequest,
        out: &mut Vec<u8>,
    ) {
        let ResendRequest { instrument, session, acknowledged, gateway, cell: number } = *request;
        let Some((start, events)) = cell.events_after(instrument, session, acknowledged) else {
            let cell = number;
            return nm_wire::write(
                &Misdirected { instrument, session, acknowledged, gateway, cell },
                out,
            );
        };
        encode(events, &mut self.bytes);
        let (executed_seq, live_orders) = cell.standing(instrument, session);
        let resent = Resent {
            instrument,
            session,
            previous_event: start,
            executed_seq,
            live_orders,
            gateway,
            cell: number,
            has_gap: start > acknowledged,
            events: Series::of(&self.bytes),
        };
        nm_wire::write(&resent, out);
    }
}

/// A request that was executed, and its number among those on its instrument.
#[derive(Clone, Copy)]
struct Origin<'a> {
    request: &'a Request,
    output_seq: u64,
}

/// Sends the frames that follow from one request.
struct Sender<'a, S> {
    /// Bytes of the request's frame.
    size_bytes: usize,
    stamps: Option<[u64; STAMPS]>,
    /// Padding that these frames may still have.
    padding_bytes: usize,
    send: &'a mut S,
}

impl<S: FnMut(&Outgoing<'_>)> Sender<'_, S> {
    /// Sends a message, in a frame as long as the request's if it may have so much padding.
    fn send(&mut self, message: Message<'_>) {
        let (is_stamped, stamps) = (self.stamps.is_some(), self.stamps);
        let least_bytes = message.bytes() + nm_wire::overhead_bytes(is_stamped);
        let wanted = self.size_bytes.saturating_sub(least_bytes);
        let size_bytes = least_bytes + wanted.min(self.padding_bytes);
        self.padding_bytes -= wanted.min(self.padding_bytes);
        let shape = Shape { is_stamped, size_bytes };
        (self.send)(&Outgoing { message, shape, stamps });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nm_book::book::Book;
    use nm_book::order::{
        Command, NewOrder, OrderType, Peg, PostOnly, SelfTrade, Side, TimeInForce,
    };
    use nm_book::reference::ReferenceBook;
    use nm_wire::{FRAME_BYTES_MAX, FrameMut, Kind};

    use crate::testing;

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
            is_hidden: false,
            peg: Peg::No,
            post_only: PostOnly::No,
            self_trade: SelfTrade::Allow,
        });
        let request = Request {
            gateway: session as u16,
            client_seq: seq,
            previous_seq: seq - 1,
            intended_ns: 5,
            ..testing::request(session, 1, command)
        };
        let mut bytes = vec![];
        let shape = Shape { is_stamped: true, size_bytes: 700 };
        nm_wire::write_shaped(&request, shape, &mut bytes);
        bytes
    }

    fn handle<M: Matching>(cell: &mut Cell<M>, bytes: &[u8]) -> Vec<testing::Message> {
        let frame = nm_wire::read(bytes).unwrap().unwrap();
        let request = frame.read().unwrap();
        let mut sent = vec![];
        Responses::default().handle(cell, &request, frame, &[(2, 77)], |out| {
            let mut bytes = vec![];
            out.write(&mut bytes);
            let frame = FrameMut::of(&mut bytes).unwrap();
            assert_eq!(frame.shared().stamps().unwrap()[2], 77);
            sent.push(testing::Message::of(&frame));
        });
        sent
    }

    fn events(bytes: &[u8]) -> Vec<Event> {
        Series::of(bytes).collect::<Result<_, _>>().unwrap()
    }

    #[test]
    fn both_sides_of_a_trade_are_notified_and_all_clients_learn_of_the_prices() {
        let mut cell = Cell::<ReferenceBook>::default();
        cell.begin(1, 1);
        let kinds = |sent: &[testing::Message]| -> Vec<_> {
            sent.iter().map(|it| (it.kind, it.session, it.gateway)).collect()
        };
        use Kind::{BestPrices, Private, Reply};
        let sent = handle(&mut cell, &request(7, 1, Side::Buy, 5));
        // A broadcast is of no session.
        assert_eq!(kinds(&sent), [(Reply, 7, 7), (BestPrices, 0, 7)]);
        let sent = handle(&mut cell, &request(9, 1, Side::Sell, 3));
        assert_eq!(kinds(&sent), [(Reply, 9, 9), (Private, 7, 7)]);
        assert_eq!((sent[0].client_seq, sent[0].output_seq, sent[0].intended_ns), (1, 2, 5));
        let reply = events(&sent[0].events);
        assert!(matches!(reply[0], Event::Accepted { user: 9, .. }));
        let traded = events(&sent[1].events);
        let is_it = matches!(traded[..], [Event::Traded { maker_user: 7, quantity: 3, .. }]);
        assert!(is_it, "{traded:?}");
        assert_eq!(reply[1..], traded);

        let again = handle(&mut cell, &request(9, 1, Side::Sell, 3));
        assert_eq!(again.len(), 1);
        assert!(again[0].is_repeated && !again[0].is_expired && again[0].events.is_empty());
        assert_eq!((again[0].events_hash, again[0].output_seq), (sent[0].events_hash, 2));
        let gap = handle(&mut cell, &request(9, 5, Side::Sell, 3));
        assert_eq!((gap.len(), gap[0].kind), (1, Kind::Nak));

        // Events are numbered by recipient, and resent from any number on.
        let before: Vec<u64> = sent.iter().map(|it| it.previous_event).collect();
        assert_eq!(before, [0, 1]);
        assert_eq!(again[0].previous_event, 2);
        let resend = |session, acknowledged| {
            let (instrument, gateway, number) = (1, 4, 0);
            let asks = ResendRequest { instrument, session, acknowledged, gateway, cell: number };
            let mut bytes = vec![];
            Responses::default().resend(&cell, &asks, &mut bytes);
            let message = testing::Message::of(&FrameMut::of(&mut bytes).unwrap());
            assert_eq!((message.kind, message.gateway), (Kind::Resent, 4));
            (message.previous_event, message.events)
        };
        assert_eq!(resend(7, 1), (1, sent[1].events.clone()));
        assert_eq!(resend(9, 0), (0, sent[0].events.clone()));
        assert_eq!(resend(9, 2), (2, vec![]));
        assert_eq!(resend(5, 0), (0, vec![]));
    }

    /// Whoever sends it; a change of the quantity is none.
    #[test]
    fn all_clients_are_told_of_each_change_of_the_best_prices_once() {
        let mut cell = Cell::<ReferenceBook>::default();
        cell.begin(1, 1);
        let mut seqs = [0; 10];
        let mut last = None;
        let mut told = |session: u32, command: Command| {
            let seq = &mut seqs[session as usize];
            *seq += 1;
            let numbers = Request {
                client_seq: *seq,
                previous_seq: *seq - 1,
                ..testing::request(session, 1, command)
            };
            let mut bytes = vec![];
            nm_wire::write_shaped(
                &numbers,
                Shape { is_stamped: true, size_bytes: 300 },
                &mut bytes,
            );
            let frame = nm_wire::read(&bytes).unwrap().unwrap();
            let (mut all, mut count) = (vec![], 0);
            Responses::default().handle(&mut cell, &numbers, frame, &[(2, 77)], |out| {
                match out.message {
                    Message::BestPrices(best) => {
                        assert!(last.is_none_or(|last| last == best.previous_event), "no gap");
                        last = Some(best.previous_event + 1);
                        all.push([best.bid, best.offer]);
                    }
                    Message::Public(public) => {
                        count += public.events.count() as u64;
                        last = last.map(|last| last + public.events.count() as u64);
                    }
                    _ => {}
                }
            });
            (all, count)
        };
        let order = |session: u32, id: u64, side: Side, price: i64| {
            let id = u64::from(session) << 32 | id;
            Command::New(nm_book::testing::limit(id, session, side, price, 5))
        };
        let none = (vec![], 0);
        assert_eq!(told(7, order(7, 1, Side::Buy, 100)), (vec![[Some(100), None]], 0));
        assert_eq!(told(8, order(8, 1, Side::Buy, 100)), none, "more at the same price");
        assert_eq!(told(7, order(7, 2, Side::Buy, 99)), none);
        assert_eq!(told(9, order(9, 1, Side::Sell, 110)), (vec![[Some(100), Some(110)]], 0));
        assert_eq!(told(7, Command::Cancel { id: 7 << 32 | 1, user: 7 }), none, "one is left");
        // It takes that one, and nothing of it rests.
        assert_eq!(told(9, order(9, 2, Side::Sell, 100)), (vec![[Some(99), Some(110)]], 0));
        assert_eq!(
            told(9, Command::Cancel { id: 9 << 32 | 1, user: 9 }),
            (vec![[Some(99), None]], 0)
        );
        assert_eq!(told(0, Command::Halt), (vec![], 1), "a change of the phase alone");
        assert_eq!(told(7, Command::MassCancel { user: 7 }), (vec![[None, None]], 0));
        assert_eq!(told(7, Command::Tick), none);
    }

    #[test]
    fn the_answer_to_a_resend_request_has_the_last_request_and_the_live_orders() {
        let mut cell = Cell::<ReferenceBook>::default();
        cell.begin(1, 1);
        handle(&mut cell, &request(7, 1, Side::Buy, 5));
        handle(&mut cell, &request(7, 2, Side::Buy, 5));
        handle(&mut cell, &request(9, 1, Side::Sell, 5));
        let stands = |session| {
            let (instrument, acknowledged, gateway, number) = (1, 0, 4, 0);
            let asks = ResendRequest { instrument, session, acknowledged, gateway, cell: number };
            let mut bytes = vec![];
            Responses::default().resend(&cell, &asks, &mut bytes);
            let resent: Resent<'_> = nm_wire::read(&bytes).unwrap().unwrap().read().unwrap();
            (resent.executed_seq, resent.live_orders)
        };
        assert_eq!([7, 9, 5].map(stands), [(2, 1), (1, 0), (0, 0)]);
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
            let frame = nm_wire::read(&bytes).unwrap().unwrap();
            let mut request: Request = frame.read().unwrap();
            if let Command::New(order) = &mut request.command {
                change(order);
            }
            let mut sent = vec![];
            Responses::default().handle(&mut cell, &request, frame, &[], |out| {
                let mut bytes = vec![];
                out.write(&mut bytes);
                sent.push(testing::Message::of(&FrameMut::of(&mut bytes).unwrap()));
            });
            sent
        };
        ask(1, &|stop| (stop.order_type, stop.stop_price) = (OrderType::StopLimit, 100));
        ask(2, &|sell| (sell.side, sell.quantity, sell.display) = (Side::Sell, 2, 1));
        let slid = ask(1, &|order| (order.post_only, order.price) = (PostOnly::Slide, 105));
        let event = |bytes: &[u8], at: usize| events(bytes)[at];
        let id = 1 << 32 | 2;
        assert_eq!(event(&slid[0].events, 1), Event::Slid { id, user: 1, price: 99 });
        let traded = ask(3, &|_| {});
        let private = |user| {
            let is_it = |it: &&testing::Message| (it.kind, it.session) == (Kind::Private, user);
            traded.iter().find(is_it).unwrap().events.clone()
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
        let frame = nm_wire::read(&bytes).unwrap().unwrap();
        let request: Request = frame.read().unwrap();
        let mut padded = vec![];
        let shape = Shape { is_stamped: true, size_bytes: FRAME_BYTES_MAX };
        nm_wire::write_shaped(&request, shape, &mut padded);
        let frame = nm_wire::read(&padded).unwrap().unwrap();
        let (mut out, mut lengths) = (vec![], vec![]);
        Responses::default().handle(&mut cell, &request, frame, &[(2, 77)], |outgoing| {
            let start = out.len();
            outgoing.write(&mut out);
            lengths.push(out.len() - start);
            let frame = nm_wire::read(&out[start..]).unwrap().unwrap();
            assert_eq!(frame.stamps().unwrap()[2], 77);
        });
        // A reply as long as the request, or longer by its events, and what the others need.
        assert!(lengths.len() > sessions as usize);
        assert_eq!(lengths[0], FRAME_BYTES_MAX);
        assert!(out.len() < 4 * FRAME_BYTES_MAX, "{} bytes", out.len());
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
        let request = Request {
            client_seq: count_of_orders + 1,
            previous_seq: count_of_orders,
            ..testing::request(7, 1, Command::MassCancel { user: 7 })
        };
        let mut bytes = vec![];
        let shape = Shape { is_stamped: true, size_bytes: 0 };
        nm_wire::write_shaped(&request, shape, &mut bytes);
        let sent = handle(&mut cell, &bytes);
        let own = sent.iter().filter(|it| it.kind != Kind::BestPrices);
        let numbers: Vec<u64> = own.map(|it| it.previous_event).collect();
        let from = |first: u64| (0..3).map(move |at| first + at * FRAME_EVENTS_MAX as u64);
        assert_eq!(numbers, from(count_of_orders).collect::<Vec<u64>>());
        let count = |kind: Kind| -> usize {
            let of_kind = sent.iter().filter(|it| it.kind == kind);
            of_kind.map(|it| events(&it.events).len()).sum()
        };
        let all = 2 * FRAME_EVENTS_MAX + 1;
        assert_eq!(count(Kind::Private) + count(Kind::Reply), all);
        assert_eq!(sent.iter().filter(|it| it.kind == Kind::Reply).count(), 1);
    }
}
