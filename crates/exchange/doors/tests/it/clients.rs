//! Clients before a door and an exchange that a test plays. The tests cover what trades while a
//! request is on its way, what is refused, what is kept, and limits.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;

use nm_book::codec;
use nm_book::order::{CancelReason, Command, Event, Peg, RejectReason};
use nm_doors::door::{Act, Door};
use nm_doors::fix::line::Line;
use nm_doors::fix::message::{Message, seal};
use nm_doors::fix::record::Record;
use nm_doors::fix::session::Profile;
use nm_doors::fix::settings::read;
use nm_doors::fix::time;
use nm_doors::limits::{
    CLIENT_ID_BYTES_MAX, EARLY_MESSAGES_MAX, ENDED_ORDERS_MAX, UNKNOWN_CONNECTIONS_MAX,
};
use nm_doors::settings::Settings;
use nm_exchange::refusals::REFUSALS_MAX;
use nm_wire::{Message as Frame, Owner, RefusalReason, Refused, Reply, Request, Resent, Series};

const NOW_NS: u64 = 1_796_000_000_000_000_000;

/// Requests are numbered by the clock, which stands still here; so the first one is number 1 behind
/// this.
const BEFORE_FIRST: u64 = NOW_NS - 1;
const SECOND_NS: u64 = 1_000_000_000;
const SESSION: u32 = 7;
const INSTRUMENT: u32 = 1;

fn settings() -> Settings<Profile> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sessions.toml");
    let text = "venue = \"VENUE\"\n[[symbol]]\nname = \"ACME\"\ninstrument = 1\ntick = \"0.25\"\n\
                lot = \"10\"\n[[session]]\nclient = \"CLIENT\"\nversion = \"FIX.4.4\"\n\
                session = 7\ncancel_on_disconnect = 5\n";
    std::fs::write(&file, text).unwrap();
    read(&file, None).unwrap()
}

/// A door with one client that has logged on, and the exchange behind it.
struct Desk {
    door: Door<Line>,
    next: u64,
    /// What was kept, in order.
    records: Vec<Record>,
    /// Reports that came since they were asked for last.
    reports: Vec<Message>,
    /// Requests that the exchange was sent.
    requests: Vec<Request>,
    events: u64,
    is_closed: bool,
}

impl Desk {
    fn new() -> Desk {
        let mut desk = Desk {
            door: Door::new(&settings()),
            next: 1,
            records: vec![],
            reports: vec![],
            requests: vec![],
            events: 0,
            is_closed: false,
        };
        assert!(desk.door.connected(1, Owner::NOBODY, NOW_NS));
        desk.door.link_up(NOW_NS);
        desk.send("A", "98=0|108=0");
        assert_eq!(desk.take().len(), 1);
        desk
    }

    /// The door after kill -9: nothing but what was kept, and the same client.
    fn restarted(self) -> Desk {
        let mut door = Door::new(&settings());
        let Desk { records, next, requests, events, .. } = self;
        records.iter().cloned().for_each(|record| door.restore(0, record));
        let (reports, is_closed) = (vec![], false);
        let mut desk = Desk { door, next, records, reports, requests, events, is_closed };
        assert!(desk.door.connected(2, Owner::NOBODY, NOW_NS));
        desk.door.link_up(NOW_NS);
        desk.collect();
        desk
    }

    fn collect(&mut self) {
        for act in self.door.take_acts() {
            match act {
                Act::Keep(_, record) => self.records.push(record),
                Act::Send(_, bytes) => self.reports.push(Message::parse(&bytes).unwrap()),
                Act::SendFrames(mut frames) => {
                    let mut at = 0;
                    while let Some(frame) = nm_wire::read_mut(&mut frames[at..]).unwrap() {
                        if let Ok(mut request) = frame.read::<Request>() {
                            request.client_seq -= BEFORE_FIRST;
                            request.previous_seq =
                                request.previous_seq.saturating_sub(BEFORE_FIRST);
                            self.requests.push(request);
                        }
                        at += frame.bytes.len();
                    }
                }
                Act::Close(_) => self.is_closed = true,
                Act::Note(_) => {}
            }
        }
    }

    fn send(&mut self, kind: &str, body: &str) {
        let seq = self.next;
        self.next += 1;
        let now = time::format(NOW_NS);
        let text = format!("35={kind}|34={seq}|49=CLIENT|52={now}|56=VENUE|{body}|");
        let bytes = seal("FIX.4.4", &text.replace('|', "\u{1}"));
        self.door.received(1, &bytes, NOW_NS);
        self.collect();
    }

    fn order(&mut self, id: &str, quantity: u64) {
        let now = time::format(NOW_NS);
        self.send("D", &format!("11={id}|55=ACME|54=1|38={quantity}|40=2|44=1.5|60={now}"));
    }

    fn replace(&mut self, of: &str, id: &str, quantity: u64) {
        let now = time::format(NOW_NS);
        let body = format!("41={of}|11={id}|55=ACME|54=1|38={quantity}|40=2|44=1.5|60={now}");
        self.send("G", &body);
    }

    fn cancel(&mut self, of: &str, id: &str) {
        let now = time::format(NOW_NS);
        self.send("F", &format!("41={of}|11={id}|55=ACME|54=1|60={now}"));
    }

    fn hear(&mut self, frame: &Frame<'_>) {
        self.door.received_frame(frame, NOW_NS);
        self.collect();
    }

    /// The exchange says that it knows no events of the session.
    fn prove(&mut self) {
        self.resent(0, &[], false);
    }

    fn resent(&mut self, previous_event: u64, events: &[Event], has_gap: bool) {
        self.resent_behind(0, previous_event, events, has_gap);
    }

    /// As before, where the exchange has executed requests up to this one.
    fn resent_behind(
        &mut self,
        executed_seq: u64,
        previous_event: u64,
        events: &[Event],
        has_gap: bool,
    ) {
        let mut bytes = vec![];
        events.iter().for_each(|event| codec::write_event(event, &mut bytes));
        let (instrument, session, events) = (INSTRUMENT, SESSION, Series::of(&bytes));
        let (gateway, cell) = (0, 0);
        let executed_seq = if executed_seq > 0 { executed_seq + BEFORE_FIRST } else { 0 };
        self.hear(&Frame::Resent(Resent {
            executed_seq,
            live_orders: 0,
            instrument,
            session,
            previous_event,
            gateway,
            cell,
            has_gap,
            events,
        }));
    }

    /// The exchange answers a request with these events.
    fn answer(&mut self, client_seq: u64, events: &[Event]) {
        let mut bytes = vec![];
        events.iter().for_each(|event| codec::write_event(event, &mut bytes));
        let previous_event = self.events;
        self.events += events.len() as u64;
        self.hear(&Frame::Reply(Reply {
            instrument: INSTRUMENT,
            session: SESSION,
            client_seq: client_seq + BEFORE_FIRST,
            output_seq: 1,
            previous_event,
            events_hash: 0,
            intended_ns: 0,
            map_version: 0,
            gateway: 0,
            cell: 0,
            is_repeated: false,
            is_expired: false,
            events: Series::of(&bytes),
        }));
    }

    fn refuse(&mut self, client_seq: u64) {
        self.hear(&Frame::Refused(Refused {
            instrument: INSTRUMENT,
            session: SESSION,
            client_seq: client_seq + BEFORE_FIRST,
            intended_ns: 0,
            expected_previous: 0,
            gateway: 0,
            cell: 0,
            reason: RefusalReason::TooManyPendingRequests,
        }));
    }

    fn take(&mut self) -> Vec<Message> {
        std::mem::take(&mut self.reports)
    }

    /// The values of some fields of each report since the last call.
    fn reported(&mut self, tags: &[u32]) -> Vec<String> {
        let of = |message: Message| {
            let values = tags.iter().map(|tag| message.get(*tag).unwrap_or("-").to_string());
            values.collect::<Vec<_>>().join(" ")
        };
        self.take().into_iter().map(of).collect()
    }

    /// Requests that were sent since the last call.
    fn asked(&mut self) -> Vec<Request> {
        std::mem::take(&mut self.requests)
    }
}

fn id(number: u64) -> u64 {
    u64::from(SESSION) << 32 | number
}

fn accepted(number: u64) -> Event {
    Event::Accepted { id: id(number), user: SESSION }
}

/// Order `number` rests, and another session takes some lots.
fn traded(number: u64, quantity: u64, left: u64) -> Event {
    Event::Traded {
        maker: id(number),
        taker: 1,
        taker_user: 1,
        maker_user: SESSION,
        price: 6,
        quantity,
        maker_left: left,
        taker_left: 0,
    }
}

fn replaced(number: u64, quantity: u64) -> Event {
    Event::Replaced { id: id(number), user: SESSION, price: 6, quantity, kept_priority: false }
}

fn cancelled(number: u64, left: u64) -> Event {
    Event::Cancelled { id: id(number), user: SESSION, left, reason: CancelReason::User }
}

const STATE: [u32; 7] = [11, 150, 39, 38, 151, 14, 41];

/// An order of 100, which the exchange has accepted: number 1, request 1.
fn resting() -> Desk {
    let mut desk = Desk::new();
    desk.order("x", 1000);
    assert!(desk.asked().is_empty(), "nothing is sent before the session is proven");
    desk.prove();
    let [request] = desk.asked()[..] else { panic!("one request") };
    let Command::New(order) = request.command else { panic!("{request:?}") };
    assert_eq!((order.id, order.price, order.quantity, request.client_seq), (id(1), 6, 100, 1));
    desk.answer(1, &[accepted(1)]);
    assert_eq!(desk.reported(&STATE), ["x 0 0 1000 1000 0 -"]);
    desk
}

#[test]
fn an_order_that_shows_nothing_is_hidden() {
    let mut desk = Desk::new();
    desk.prove();
    let now = time::format(NOW_NS);
    let order = format!("55=ACME|54=1|38=1000|40=2|44=1.5|60={now}");
    for (id, shows, is_hidden) in
        [("a", "111=0", true), ("b", "1084=4", true), ("c", "1084=4|111=0", true), ("d", "", false)]
    {
        let body = format!("11={id}|{order}|{shows}");
        desk.send("D", body.trim_end_matches('|'));
        let Command::New(new) = desk.asked()[0].command else { panic!("{id}") };
        assert_eq!((new.is_hidden, new.display), (is_hidden, 0), "{id}");
    }
    for shows in ["1084=1", "1084=4|111=100"] {
        desk.send("D", &format!("11={shows}|{order}|{shows}").replace("11=1084=4|111=100", "11=e"));
        assert!(desk.asked().is_empty(), "{shows}");
    }
    let reported = desk.reported(&[150, 103]);
    assert_eq!(reported, ["8 11", "8 11"]);
    desk.answer(1, &[accepted(1)]);
    desk.take();
    // What is shown of an order cannot be replaced; to say it again is possible.
    desk.send("G", &format!("41=a|11=f|{order}|111=200"));
    assert_eq!(desk.reported(&[35, 58]), ["9 whether an order is displayed cannot be replaced"]);
    desk.send("G", &format!("41=a|11=g|{order}|111=0"));
    assert!(matches!(desk.asked()[0].command, Command::Replace { .. }));
}

#[test]
fn a_pegged_order_follows_what_its_fields_say_and_its_reports_repeat_them() {
    let mut desk = Desk::new();
    desk.prove();
    let now = time::format(NOW_NS);
    let primary = |offset| Peg::Primary { offset };
    let cases = [
        ("a", "54=1|18=R|211=-0.5", primary(2), false),
        ("b", "54=2|18=R|211=0.25|836=0", primary(1), false),
        ("c", "54=1|18=M|44=1.5", Peg::Mid, true),
        ("d", "54=1|1094=5", primary(0), false),
        ("e", "54=2|1094=2|18=M|44=1.5", Peg::Mid, true),
    ];
    for (id, fields, peg, is_limit) in cases {
        desk.send("D", &format!("11={id}|55=ACME|{fields}|38=1000|40=P|60={now}"));
        let Command::New(new) = desk.asked()[0].command else { panic!("{id}") };
        assert_eq!((new.peg, new.order_type.has_limit()), (peg, is_limit), "{id}");
    }
    desk.answer(1, &[accepted(1)]);
    desk.answer(3, &[accepted(3)]);
    desk.answer(2, &[Event::rejected(id(2), SESSION, RejectReason::TooManyPegs)]);
    let full = "the instrument has as many pegged orders as it may have";
    let reported = desk.reported(&[11, 39, 40, 18, 211, 44, 58]);
    let expected = ["a 0 P R -0.5 - -", "c 0 P M 0 1.5 -", &format!("b 8 P R 0.25 - {full}")];
    assert_eq!(reported, expected);
    for wrong in [
        "40=P",
        "40=P|18=P",
        "40=P|18=R|211=0.5",
        "40=P|18=R|211=-0.1",
        "40=P|18=R|211=-20000",
        "40=P|18=M|211=-0.25",
        "40=P|18=R|836=2",
        "40=P|18=R|1094=2",
        "40=P|18=R|99=1",
        "40=2|44=1.5|211=-0.25",
        "40=2|44=1.5|18=R",
    ] {
        desk.send(
            "D",
            &format!("11={wrong}|55=ACME|54=1|38=1000|{wrong}|60={now}").replace(
                &format!("11={wrong}"),
                &format!("11=w{}", wrong.replace('|', " ").replace('=', "-")),
            ),
        );
        assert!(desk.asked().is_empty(), "{wrong}");
        assert_eq!(desk.reported(&[150]), ["8"], "{wrong}");
    }
    // The limit can be replaced, and nothing else that is followed.
    let replace = |of: &str, id: &str, fields: &str| {
        format!("41={of}|11={id}|55=ACME|54=1|38=500|40=P|{fields}|60={now}")
    };
    desk.send("G", &replace("c", "f", "44=2|18=R"));
    let fixed = "9 what a pegged order follows cannot be replaced";
    assert_eq!(desk.reported(&[35, 58]), [fixed]);
    desk.send("G", &replace("a", "g", "44=2"));
    assert_eq!(desk.reported(&[35, 58]), ["9 this OrdType has no Price"]);
    desk.send("G", &replace("c", "h", "44=2|18=M"));
    assert!(matches!(desk.asked()[0].command, Command::Replace { price: 8, quantity: 50, .. }));
}

#[test]
fn an_order_for_the_closing_auction_expires_with_it() {
    let mut desk = Desk::new();
    desk.prove();
    let now = time::format(NOW_NS);
    for (id, kind, is_limit) in [("a", "40=2|44=1.5", true), ("b", "40=1", false)] {
        desk.send("D", &format!("11={id}|55=ACME|54=1|38=1000|{kind}|59=7|60={now}"));
        let Command::New(new) = desk.asked()[0].command else { panic!("{id}") };
        assert_eq!(new.time_in_force, nm_book::order::TimeInForce::AtClose);
        assert_eq!(new.order_type.has_limit(), is_limit);
    }
    let reason = CancelReason::Closed;
    let closed = Event::Cancelled { id: id(1), user: SESSION, left: 100, reason };
    desk.answer(1, &[accepted(1), closed]);
    desk.answer(2, &[Event::rejected(id(2), SESSION, RejectReason::NoClosing)]);
    let text = "the symbol has no closing auction today, or it has ended";
    let expired = "C C 7 the closing auction has ended";
    let reported = desk.reported(&[150, 39, 59, 58]);
    assert_eq!(reported, ["0 0 7 -", expired, &format!("8 8 7 {text}")]);
}

#[test]
fn a_replacement_counts_what_trades_meanwhile() {
    let mut desk = resting();
    desk.replace("x", "y", 1500);
    let request = desk.asked()[0];
    let Command::Replace { quantity, .. } = request.command else { panic!("{request:?}") };
    assert_eq!(quantity, 150, "open, because nothing has traded");
    // 60 lots trade before the book replaces: 150 are open then, and 90 are wanted.
    desk.answer(2, &[traded(1, 60, 40), replaced(1, 150)]);
    assert_eq!(desk.reported(&STATE), ["x F 1 1000 400 600 -"], "not replaced yet");
    let request = desk.asked()[0];
    let Command::Replace { quantity, .. } = request.command else { panic!("{request:?}") };
    assert_eq!(quantity, 90);
    desk.answer(3, &[replaced(1, 90)]);
    assert_eq!(desk.reported(&STATE), ["y 5 1 1500 900 600 x"]);
}

#[test]
fn a_replacement_by_what_has_traded_fills_the_order() {
    let mut desk = resting();
    desk.replace("x", "y", 500);
    desk.answer(2, &[traded(1, 70, 30), replaced(1, 50)]);
    desk.asked();
    desk.reported(&STATE);
    // Less is wanted than has traded: the rest is cancelled.
    desk.answer(3, &[cancelled(1, 50)]);
    assert_eq!(desk.reported(&STATE), ["y 5 2 700 0 700 x"]);
}

#[test]
fn requests_that_come_too_late_are_refused_with_the_state() {
    let mut desk = resting();
    desk.replace("x", "y", 1500);
    desk.cancel("y", "z");
    let asked = desk.asked();
    assert_eq!(asked.len(), 1, "the cancel waits for the replacement");
    let rejected = Event::rejected(id(1), SESSION, RejectReason::UnknownOrder);
    desk.answer(2, &[traded(1, 100, 0), rejected]);
    let reported = desk.reported(&[35, 11, 39, 434, 102]);
    assert_eq!(reported, ["8 x 2 - -", "9 y 2 2 0", "9 z 2 1 0"]);
    assert!(desk.asked().is_empty(), "the cancel is not sent any more");
}

#[test]
fn changes_of_an_order_follow_each_other() {
    let mut desk = resting();
    desk.replace("x", "y", 1500);
    desk.replace("y", "z", 2000);
    desk.cancel("z", "c");
    desk.cancel("z", "d");
    assert_eq!(desk.reported(&[35, 11, 102]), ["9 d 3"], "a cancel is pending");
    desk.answer(2, &[replaced(1, 150)]);
    desk.answer(3, &[replaced(1, 200)]);
    desk.answer(4, &[cancelled(1, 200)]);
    let reported = desk.reported(&STATE);
    assert_eq!(reported, ["y 5 0 1500 1500 0 x", "z 5 0 2000 2000 0 y", "c 4 4 2000 0 0 z"]);
}

#[test]
fn a_request_that_the_exchange_refuses_is_reported_and_the_next_one_names_its_predecessor() {
    let mut desk = resting();
    desk.order("b", 10);
    desk.order("c", 10);
    let asked = desk.asked();
    assert_eq!((asked[0].previous_seq, asked[1].previous_seq), (1, 2));
    desk.refuse(2);
    desk.refuse(3);
    let reported = desk.reported(&[11, 150, 103]);
    assert_eq!(reported, ["b 8 99", "c 8 99"]);
    desk.order("d", 10);
    assert_eq!(desk.asked()[0].previous_seq, 1);
    desk.cancel("x", "y");
    desk.refuse(5);
    let refused = &desk.take()[0];
    assert_eq!((refused.kind(), refused.get(102)), ("9", Some("99")));
    assert!(refused.get(58).unwrap().contains("TooManyPendingRequests"));
}

#[test]
fn a_door_that_was_killed_knows_all_that_it_has_reported() {
    let mut desk = resting();
    desk.answer(0, &[traded(1, 30, 70)]);
    desk.replace("x", "y", 1500);
    desk.asked();
    let mut desk = desk.restarted();
    assert!(desk.asked().is_empty(), "the exchange may know more of the session now");
    desk.resent_behind(1, 2, &[], false);
    let again = desk.asked();
    assert_eq!((again.len(), again[0].client_seq, again[0].previous_seq), (1, 2, 1));
    assert!(again[0].is_previous_answered && again[0].acknowledged == 2);
    // The exchange repeats what the door has seen, and goes on.
    desk.resent(0, &[accepted(1), traded(1, 30, 70), replaced(1, 120)], false);
    desk.events = 3;
    let kept = |desk: &Desk| {
        let outgoing = desk.records.iter().filter_map(|record| match record {
            Record::Session(nm_doors::fix::session::Change::Outgoing(seq, Some(sent))) => {
                Some((*seq, sent.fields.clone()))
            }
            _ => None,
        });
        outgoing.collect::<Vec<_>>()
    };
    let reports = kept(&desk);
    assert_eq!(reports.len(), 3, "new, trade, replaced: each once");
    assert!(reports[2].1.contains("\u{1}150=5\u{1}") && reports[2].0 == 4, "{reports:?}");
    let mut again = desk.restarted();
    let snapshot: Vec<Record> = again.door.snapshot(0).collect();
    again.records = snapshot.clone();
    let once_more = again.restarted();
    assert_eq!(once_more.door.snapshot(0).collect::<Vec<_>>(), snapshot, "nothing is lost by it");
}

#[test]
fn lost_events_are_reported_and_a_cancel_shows_what_was_traded() {
    let mut desk = resting();
    desk.resent(5, &[], true);
    let reported = desk.take();
    assert_eq!((reported[0].get(150), reported[0].get(11)), (Some("D"), Some("x")));
    assert!(reported[0].get(58).unwrap().contains("events of this order are lost"));
    desk.events = 5;
    desk.cancel("x", "y");
    desk.answer(2, &[cancelled(1, 40)]);
    assert_eq!(desk.reported(&STATE), ["y 4 4 1000 0 600 x"]);
}

/// Requests that a door sends at a time, which is so many s behind the begin.
fn asked_at(desk: &mut Desk, seconds: u64) -> Vec<Command> {
    desk.door.tick(NOW_NS + seconds * SECOND_NS);
    desk.collect();
    desk.asked().iter().map(|request| request.command).collect()
}

#[test]
fn live_orders_of_a_client_that_is_away_for_too_long_are_cancelled_once() {
    let all = [Command::MassCancel { user: SESSION }];
    let mut desk = resting();
    assert!(asked_at(&mut desk, 100).is_empty(), "it is here");
    desk.door.disconnected(1, NOW_NS);
    assert!(asked_at(&mut desk, 100).is_empty() && asked_at(&mut desk, 104).is_empty());
    // It comes back in time.
    assert!(desk.door.connected(1, Owner::NOBODY, NOW_NS));
    desk.send("A", "98=0|108=0");
    assert!(asked_at(&mut desk, 104).is_empty());
    desk.door.disconnected(1, NOW_NS);
    assert!(asked_at(&mut desk, 106).is_empty() && asked_at(&mut desk, 110).is_empty());
    // Who connects and does not log on is no client.
    assert!(desk.door.connected(1, Owner::NOBODY, NOW_NS + 110 * SECOND_NS));
    assert_eq!(asked_at(&mut desk, 111), all);
    assert!(asked_at(&mut desk, 200).is_empty(), "once");
    // The door was killed, and its client does not come back.
    let mut desk = resting().restarted();
    desk.resent_behind(1, 1, &[], false);
    assert!(asked_at(&mut desk, 0).is_empty());
    assert_eq!(asked_at(&mut desk, 5), all);
}

/// As with an old copy of the store.
#[test]
fn live_orders_of_a_session_that_somebody_else_uses_are_not_reported_as_rejected() {
    let mut desk = resting();
    desk.order("b", 10);
    desk.resent_behind(9, 4, &[], false);
    let reported = desk.reported(&[11, 150, 39]);
    assert_eq!(reported, ["x D 0", "b 8 8"], "{reported:?}");
    desk.cancel("x", "y");
    let refused = desk.take();
    assert_eq!((refused.len(), refused[0].kind(), refused[0].get(102)), (1, "9", Some("99")));
}

#[test]
fn a_session_that_somebody_else_has_used_sends_nothing() {
    let mut desk = Desk::new();
    desk.order("x", 100);
    desk.resent_behind(9, 3, &[], true);
    assert_eq!(desk.reported(&[11, 150, 39]), ["x 8 8"]);
    desk.order("y", 100);
    assert_eq!(desk.reported(&[11, 150, 39]), ["y 8 8"]);
    assert!(desk.asked().is_empty());
    // What was executed had no event.
    let mut desk = Desk::new();
    desk.order("x", 100);
    desk.resent_behind(3, 0, &[], false);
    assert_eq!(desk.reported(&[11, 150, 39]), ["x 8 8"]);
}

/// What a door answers to a Logon of FIXT, with these fields.
fn logon_answer(door: &mut Door<Line>, id: u64, seq: u64, fields: &str) -> Message {
    assert!(door.connected(id, Owner::NOBODY, NOW_NS));
    let now = time::format(NOW_NS);
    let text = format!("35=A|34={seq}|49=C|52={now}|56=V|98=0|108=0|1137=9|{fields}");
    door.received(id, &seal("FIXT.1.1", &text.replace('|', "\u{1}")), NOW_NS);
    let sent = door.take_acts().into_iter().find_map(|act| match act {
        Act::Send(to, bytes) if to == id => Some(bytes),
        _ => None,
    });
    Message::parse(&sent.unwrap()).unwrap()
}

#[test]
fn a_client_proves_itself_by_name_and_password() {
    let folder = tempfile::tempdir().unwrap();
    let (file, word) = (folder.path().join("sessions.toml"), folder.path().join("word"));
    std::fs::write(&word, "secret\n").unwrap();
    std::fs::set_permissions(&word, Permissions::from_mode(0o600)).unwrap();
    let text = "venue = \"V\"\n[[symbol]]\nname = \"S\"\ninstrument = 1\ntick = \"1\"\n\
                lot = \"1\"\n[[session]]\nclient = \"C\"\nversion = \"FIXT.1.1\"\nsession = 1\n\
                username = \"name\"\npassword = \"word\"\n";
    std::fs::write(&file, text).unwrap();
    let mut door = Door::<Line>::new(&read(&file, None).unwrap());
    let wrong = [
        "",
        "553=name|",
        "554=secret|",
        "553=other|554=secret|",
        "553=name|554=Secret|",
        "553=name|554=secret\u{20}|",
    ];
    for (at, fields) in wrong.into_iter().enumerate() {
        let answer = logon_answer(&mut door, at as u64, 1, fields);
        assert_eq!((answer.kind(), answer.get(1409)), ("5", Some("5")), "{fields}");
        assert_eq!(answer.get(58), Some("the name or the password is wrong"));
    }
    let answer = logon_answer(&mut door, 9, 1, "553=name|554=secret|");
    assert_eq!((answer.kind(), answer.seq()), ("A", wrong.len() as u64 + 1));
}

#[test]
fn a_client_id_has_a_length() {
    let mut desk = resting();
    desk.order(&"x".repeat(CLIENT_ID_BYTES_MAX), 10);
    assert_eq!(desk.asked().len(), 1);
    desk.order(&"y".repeat(CLIENT_ID_BYTES_MAX + 1), 10);
    assert!(desk.take()[0].get(58).unwrap().contains("at most 64 characters"));
    desk.cancel("x", &"z".repeat(CLIENT_ID_BYTES_MAX + 1));
    assert!(desk.take()[0].get(58).unwrap().contains("at most 64 characters"));
}

#[test]
fn messages_that_wait_for_a_gap_are_limited() {
    let mut desk = Desk::new();
    desk.next += 1;
    for _ in 0..EARLY_MESSAGES_MAX {
        desk.send("0", "112=x");
    }
    assert!(!desk.is_closed);
    desk.send("0", "112=x");
    let last = desk.take().pop().unwrap();
    assert!(desk.is_closed && last.get(58).unwrap().contains("more than 4096 messages wait"));
}

#[test]
fn a_door_has_a_number_of_strangers() {
    let mut text =
        "venue = \"V\"\n[[symbol]]\nname = \"S\"\ninstrument = 1\ntick = \"1\"\nlot = \"1\"\n"
            .to_string();
    (1..=1024).for_each(|at| {
        text +=
            &format!("[[session]]\nclient = \"C{at}\"\nversion = \"FIX.4.4\"\nsession = {at}\n");
    });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sessions.toml");
    std::fs::write(&file, text).unwrap();
    let mut door = Door::<Line>::new(&read(&file, None).unwrap());
    for at in 1..=1024 {
        assert!(door.connected(at, Owner::NOBODY, NOW_NS));
        let now = time::format(NOW_NS);
        let text = format!("35=A|34=1|49=C{at}|52={now}|56=V|98=0|108=0|").replace('|', "\u{1}");
        door.received(at, &seal("FIX.4.4", &text), NOW_NS);
    }
    for at in 0..UNKNOWN_CONNECTIONS_MAX as u64 {
        assert!(door.connected(2000 + at, Owner::NOBODY, NOW_NS));
    }
    assert!(!door.connected(3000, Owner::NOBODY, NOW_NS), "one more stranger");
}

#[test]
fn strangers_of_one_address_leave_places_for_others() {
    let mut desk = Desk::new();
    let [many, other] = [7, 8].map(|host| Owner::of_address([10, 0, 0, host].into()));
    let mut of_many = 0;
    while desk.door.connected(2000 + of_many, many, NOW_NS) {
        of_many += 1;
    }
    assert_eq!(of_many, UNKNOWN_CONNECTIONS_MAX as u64 / 2);
    assert!(desk.door.connected(3000, other, NOW_NS));
}

/// Before, each of them was a line, and a door took as many as came.
#[test]
fn who_is_refused_again_and_again_is_not_answered_and_makes_few_lines() {
    let mut desk = Desk::new();
    let [many, other] = [7, 8].map(|host| Owner::of_address([10, 0, 0, host].into()));
    let now = time::format(NOW_NS);
    let text = format!("35=A|34=1|49=NOBODY|52={now}|56=VENUE|98=0|108=30|").replace('|', "\u{1}");
    let logon = seal("FIX.4.4", &text);
    desk.door.take_acts();
    let taken = (0..5_000).filter(|at| {
        let is_taken = desk.door.connected(9_000 + at, many, NOW_NS);
        desk.door.received(9_000 + at, &logon, NOW_NS);
        is_taken
    });
    assert_eq!(taken.count(), REFUSALS_MAX as usize);
    assert!(desk.door.connected(8_000, other, NOW_NS));
    desk.door.tick(NOW_NS + 2_000_000_000);
    let notes = desk.door.take_acts().into_iter().filter_map(|act| match act {
        Act::Note(text) => Some(text),
        _ => None,
    });
    let notes: Vec<String> = notes.collect();
    assert_eq!(notes.len(), 4, "{notes:#?}");
    let all = notes.join("\n");
    assert!(all.contains("a connection of address:10.0.0.7 was refused: it is of no free session"));
    assert!(all.contains("(1023 such warnings since the last one)"), "{all}");
    assert!(all.contains("address:10.0.0.7 was refused too often"), "{all}");
    assert!(desk.door.connected(8_001, many, NOW_NS + 2_000_000_000), "it is answered again");
}

#[test]
fn orders_that_have_ended_are_forgotten_in_turn() {
    let mut desk = Desk::new();
    let now = time::format(NOW_NS);
    let mut at_ns = NOW_NS;
    for number in 0..=ENDED_ORDERS_MAX {
        let seq = desk.next;
        desk.next += 1;
        let body = format!("11={number}|55=NONE|54=1|38=1|40=1|60={now}|");
        let text = format!("35=D|34={seq}|49=CLIENT|52={now}|56=VENUE|{body}");
        // As many in a second as it may send.
        at_ns += 200_000;
        desk.door.received(1, &seal("FIX.4.4", &text.replace('|', "\u{1}")), at_ns);
        desk.door.take_acts();
    }
    desk.order("1", 10);
    assert_eq!(desk.take()[0].get(103), Some("6"), "it is known");
    desk.order("0", 10);
    assert!(desk.take().is_empty(), "it was forgotten: the order is new");
}
