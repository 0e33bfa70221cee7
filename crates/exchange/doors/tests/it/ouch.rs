//! OUCH clients before a door and an exchange that a test plays. Bytes are made and read from the
//! published layouts alone.

use nm_book::codec;
use nm_book::order::{CancelReason, Command, Event, Peg, RejectReason};
use nm_doors::door::{Act, Door};
use nm_doors::limits::{CLIENT_SILENCE_NS, LIVE_ORDERS_MAX, WAITING_CHANGES_MAX};
use nm_doors::ouch::line::Line;
use nm_doors::ouch::record::Record;
use nm_doors::ouch::settings;
use nm_wire::{DayEnded, Message as Frame, Owner, Private, Public, Reply, Request, Resent, Series};

const NOW_NS: u64 = 1_796_000_000_000_000_000;
const SECOND_NS: u64 = 1_000_000_000;
const SESSION: u32 = 7;

fn door() -> Door<Line> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sessions.toml");
    let text = "[[symbol]]\nname = \"ACME\"\ninstrument = 1\ntick = \"0.25\"\nlot = \"10\"\n\
                [[session]]\nusername = \"alice\"\nsession = 7\nfirm = \"FIRM\"\n\
                cancel_on_disconnect = 5\n";
    std::fs::write(&file, text).unwrap();
    Door::new(&settings::read(&file, None).unwrap())
}

fn packet(kind: u8, payload: &[u8]) -> Vec<u8> {
    [&(payload.len() as u16 + 1).to_be_bytes()[..], &[kind], payload].concat()
}

fn login(session: &str, next: &str) -> Vec<u8> {
    packet(b'L', format!("{:<6}{:<10}{session:<10}{next:>20}", "ALICE", "").as_bytes())
}

/// A new order of ACME: side, shares, price, time in force, and options.
fn enter(number: u32, side: u8, shares: u32, price: u64, time: u8, options: &[u8]) -> Vec<u8> {
    [
        b"O",
        &number.to_be_bytes()[..],
        &[side],
        &shares.to_be_bytes(),
        b"ACME    ",
        &price.to_be_bytes(),
        &[time],
        b"YANN",
        format!("{:<14}", format!("o{number}")).as_bytes(),
        &(options.len() as u16).to_be_bytes(),
        options,
    ]
    .concat()
}

fn buy(number: u32, shares: u32) -> Vec<u8> {
    enter(number, b'B', shares, 15_000, b'0', &[])
}

fn replace(of: u32, number: u32, shares: u32, price: u64) -> Vec<u8> {
    [
        b"U",
        &of.to_be_bytes()[..],
        &number.to_be_bytes(),
        &shares.to_be_bytes(),
        &price.to_be_bytes(),
        b"0YN",
        format!("{:<14}", format!("o{number}")).as_bytes(),
        &[0, 0],
    ]
    .concat()
}

fn cancel(number: u32, shares: u32) -> Vec<u8> {
    [b"X", &number.to_be_bytes()[..], &shares.to_be_bytes()].concat()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// A message in a few words.
fn words(bytes: &[u8]) -> String {
    let number = u32_at(bytes, 9.min(bytes.len() - 4));
    match bytes[0] {
        b'S' => format!("S {}", char::from(bytes[9])),
        b'A' => format!("A {number} {} at {}", u32_at(bytes, 14), u64_at(bytes, 26)),
        b'U' => format!(
            "U {number}>{} {} at {}",
            u32_at(bytes, 13),
            u32_at(bytes, 18),
            u64_at(bytes, 30)
        ),
        b'C' => format!("C {number} {} {}", u32_at(bytes, 13), char::from(bytes[17])),
        b'E' => format!(
            "E {number} {} at {} {}",
            u32_at(bytes, 13),
            u64_at(bytes, 17),
            char::from(bytes[25])
        ),
        b'J' => format!("J {number} {:02x}", u16::from_be_bytes([bytes[13], bytes[14]])),
        b'M' => format!("M {number} {} {}", char::from(bytes[13]), u32_at(bytes, 14)),
        kind => format!("{} {number}", char::from(kind)),
    }
}

/// A door with one client that has logged in, and the exchange behind it.
struct Desk {
    door: Door<Line>,
    connection: u64,
    records: Vec<Record>,
    packets: Vec<(u8, Vec<u8>)>,
    requests: Vec<Request>,
    events: u64,
    is_closed: bool,
}

impl Desk {
    fn new() -> Desk {
        let mut desk = Desk {
            door: door(),
            connection: 0,
            records: vec![],
            packets: vec![],
            requests: vec![],
            events: 0,
            is_closed: false,
        };
        desk.door.link_up(NOW_NS);
        desk.log_in("", "1");
        assert_eq!(desk.take(), ["S S"]);
        desk
    }

    /// A desk whose exchange knows no events of the session.
    fn ready() -> Desk {
        let mut desk = Desk::new();
        desk.send(&enter(1, b'B', 10, 2_500, b'3', &[]));
        desk.prove();
        desk.answer(&[
            accepted(1),
            Event::Cancelled { id: id(1), user: SESSION, left: 1, reason: CancelReason::Unfilled },
        ]);
        assert_eq!(desk.take(), ["A 1 10 at 2500", "C 1 10 I"]);
        desk
    }

    fn log_in(&mut self, session: &str, next: &str) {
        self.connection += 1;
        self.is_closed = false;
        assert!(self.door.connected(self.connection, Owner::NOBODY, NOW_NS));
        self.door.received(self.connection, &login(session, next), NOW_NS);
        self.collect();
    }

    /// The door after kill -9: nothing but what was kept. Nobody else has used its session.
    fn restarted(mut self) -> Desk {
        self.door = door();
        self.records.iter().cloned().for_each(|record| self.door.restore(0, record));
        self.door.link_up(NOW_NS);
        self.prove();
        self
    }

    /// The exchange knows no more of the session than it has sent.
    fn prove(&mut self) {
        self.hear(&Frame::Resent(Resent {
            executed_seq: 0,
            live_orders: 0,
            instrument: 1,
            session: SESSION,
            previous_event: self.events,
            gateway: 0,
            cell: 0,
            has_gap: false,
            events: Series::of(&[]),
        }));
    }

    fn collect(&mut self) {
        for act in self.door.take_acts() {
            match act {
                Act::Keep(_, record) => self.records.push(record),
                Act::Send(_, bytes) => {
                    let mut rest = &bytes[..];
                    while !rest.is_empty() {
                        let length = usize::from(u16::from_be_bytes([rest[0], rest[1]]));
                        self.packets.push((rest[2], rest[3..2 + length].to_vec()));
                        rest = &rest[2 + length..];
                    }
                }
                Act::SendFrames(mut frames) => {
                    let mut at = 0;
                    while let Some(frame) = nm_wire::read_mut(&mut frames[at..]).unwrap() {
                        if let Ok(request) = frame.read::<Request>() {
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

    fn send(&mut self, message: &[u8]) {
        self.door.received(self.connection, &packet(b'U', message), NOW_NS);
        self.collect();
    }

    fn hear(&mut self, frame: &Frame<'_>) {
        self.door.received_frame(frame, NOW_NS);
        self.collect();
    }

    /// The exchange answers the first request that has no answer.
    fn answer(&mut self, events: &[Event]) -> Command {
        let request = self.requests.remove(0);
        let mut bytes = vec![];
        events.iter().for_each(|event| codec::write_event(event, &mut bytes));
        let previous_event = self.events;
        self.events += events.len() as u64;
        self.hear(&Frame::Reply(Reply {
            instrument: 1,
            session: SESSION,
            client_seq: request.client_seq,
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
        request.command
    }

    /// Events that others caused.
    fn private(&mut self, events: &[Event]) {
        let mut bytes = vec![];
        events.iter().for_each(|event| codec::write_event(event, &mut bytes));
        let previous_event = self.events;
        self.events += events.len() as u64;
        self.hear(&Frame::Private(Private {
            instrument: 1,
            session: SESSION,
            output_seq: 1,
            previous_event,
            gateway: 0,
            cell: 0,
            is_astray: false,
            events: Series::of(&bytes),
        }));
    }

    /// An order rests.
    fn rest(&mut self, number: u32, shares: u32) {
        self.send(&buy(number, shares));
        self.answer(&[accepted(number)]);
        assert_eq!(self.take(), [format!("A {number} {shares} at 15000")]);
    }

    /// Messages since the last call.
    fn take(&mut self) -> Vec<String> {
        let packets = std::mem::take(&mut self.packets);
        packets.iter().filter(|it| it.0 == b'S').map(|it| words(&it.1)).collect()
    }
}

fn id(number: u32) -> u64 {
    u64::from(SESSION) << 32 | u64::from(number)
}

fn accepted(number: u32) -> Event {
    Event::Accepted { id: id(number), user: SESSION }
}

/// Somebody takes lots of a resting order at 1.50.
fn traded(number: u32, quantity: u64, maker_left: u64) -> Event {
    Event::Traded {
        maker: id(number),
        taker: 99,
        maker_user: SESSION,
        taker_user: 99,
        price: 6,
        quantity,
        maker_left,
        taker_left: 0,
    }
}

fn replaced(number: u32, price: i64, quantity: u64) -> Event {
    let (id, user, kept_priority) = (id(number), SESSION, false);
    Event::Replaced { id, user, price, quantity, kept_priority }
}

fn cancelled(number: u32, left: u64) -> Event {
    Event::Cancelled { id: id(number), user: SESSION, left, reason: CancelReason::User }
}

fn rejected(number: u32, reason: RejectReason) -> Event {
    Event::rejected(id(number), SESSION, reason)
}

#[test]
fn a_number_that_does_not_rise_is_ignored() {
    let mut desk = Desk::ready();
    desk.rest(5, 100);
    for number in [0, 1, 4, 5] {
        desk.send(&buy(number, 100));
    }
    assert!(desk.requests.is_empty() && desk.take().is_empty());
    // A rejected order has used its number.
    desk.send(&buy(8, 15));
    desk.send(&buy(8, 10));
    assert_eq!(desk.take(), ["J 8 13"]);
    desk.send(b"Q");
    assert_eq!(desk.take(), ["Q 9"]);
}

#[test]
fn a_replacement_counts_the_complete_chain_and_what_trades_meanwhile() {
    let mut desk = Desk::ready();
    desk.rest(2, 500);
    desk.send(&replace(2, 3, 500, 17_500));
    // 10 lots trade before the exchange sees the replacement: 50 open lots are 10 too many.
    let sent = desk.answer(&[traded(2, 10, 40), replaced(2, 7, 50)]);
    let asked = Command::Replace { id: id(2), user: SESSION, price: 7, quantity: 50 };
    assert_eq!(sent, asked);
    assert_eq!(desk.take(), ["E 2 100 at 15000 A"], "the replacement is not reported yet");
    desk.answer(&[replaced(2, 7, 40)]);
    assert_eq!(desk.take(), ["U 2>3 400 at 17500"]);
    // The old number means nothing now; the new one does.
    desk.send(&cancel(2, 0));
    assert!(desk.requests.is_empty());
    // A quantity between two lots is the next one above; one that is larger than the order is none.
    desk.send(&cancel(3, u32::MAX));
    assert!(desk.requests.is_empty());
    desk.send(&cancel(3, 291));
    let sent = desk.answer(&[replaced(2, 7, 20)]);
    let asked = Command::Replace { id: id(2), user: SESSION, price: 7, quantity: 20 };
    assert_eq!(sent, asked);
    assert_eq!(desk.take(), ["C 3 200 U"]);
    desk.send(&cancel(3, 0));
    desk.answer(&[cancelled(2, 20)]);
    assert_eq!(desk.take(), ["C 3 200 U"]);
    desk.send(&cancel(3, 0));
    assert!(desk.requests.is_empty() && desk.take().is_empty(), "superfluous ones are ignored");
}

#[test]
fn each_case_of_a_replacement_uses_its_number_or_not() {
    let mut desk = Desk::ready();
    // The original is dead: nothing is sent, and the number stays free.
    desk.rest(2, 100);
    desk.send(&replace(2, 3, 200, 15_000));
    desk.answer(&[traded(2, 10, 0), rejected(2, RejectReason::UnknownOrder)]);
    assert_eq!(desk.take(), ["E 2 100 at 15000 A"]);
    desk.rest(3, 100);
    // Wrong details: the original is cancelled, and the number stays free.
    desk.send(&replace(3, 4, 1_000_000, 15_000));
    assert_eq!(desk.answer(&[cancelled(3, 10)]), Command::Cancel { id: id(3), user: SESSION });
    assert_eq!(desk.take(), ["C 3 100 U"]);
    desk.rest(4, 100);
    // The exchange finds the details wrong: the same.
    desk.send(&replace(4, 5, 100, 1_000_000));
    desk.answer(&[rejected(4, RejectReason::OutsideBands)]);
    desk.answer(&[cancelled(4, 10)]);
    assert_eq!(desk.take(), ["C 4 100 U"]);
    desk.rest(5, 100);
    // It cannot be replaced now: it stays as it was, and the number is used.
    desk.send(&replace(5, 6, 100, 17_500));
    desk.answer(&[rejected(5, RejectReason::Halted)]);
    assert_eq!(desk.take(), ["J 6 07"]);
    desk.send(&buy(6, 100));
    assert!(desk.requests.is_empty());
    // All good: a chain of two that are sent at once.
    desk.send(&replace(5, 7, 100, 17_500));
    desk.send(&replace(7, 8, 200, 17_500));
    desk.answer(&[replaced(5, 7, 10)]);
    desk.answer(&[replaced(5, 7, 20)]);
    assert_eq!(desk.take(), ["U 5>7 100 at 17500", "U 7>8 200 at 17500"]);
}

#[test]
fn a_sale_is_marked_anew_and_reduced() {
    let mut desk = Desk::ready();
    desk.send(&enter(2, b'S', 100, 15_000, b'0', &[]));
    desk.answer(&[accepted(2)]);
    desk.take();
    let modify = |side: u8, shares: u32| {
        [b"M", &2_u32.to_be_bytes()[..], &[side], &shares.to_be_bytes()].concat()
    };
    desk.send(&modify(b'B', 50));
    assert!(desk.requests.is_empty(), "a sale does not become a buy");
    desk.send(&modify(b'T', 50));
    desk.answer(&[replaced(2, 6, 5)]);
    desk.send(&modify(b'S', 50));
    assert_eq!(desk.take(), ["M 2 T 50"]);
}

#[test]
fn live_orders_of_a_client_of_ouch_that_is_away_for_too_long_are_cancelled() {
    let mut desk = Desk::ready();
    desk.rest(2, 100);
    desk.door.disconnected(desk.connection, NOW_NS);
    for seconds in [0, 4, 5] {
        assert!(desk.requests.is_empty(), "{seconds}");
        desk.door.tick(NOW_NS + seconds * SECOND_NS);
        desk.collect();
    }
    let event = Event::Cancelled { id: id(2), user: SESSION, left: 10, reason: CancelReason::Mass };
    assert_eq!(desk.answer(&[event]), Command::MassCancel { user: SESSION });
    desk.packets.clear();
    desk.log_in("", "0");
    assert_eq!(desk.take().last().unwrap(), "C 2 100 U");
}

/// There is one market.
#[test]
fn an_intermarket_sweep_is_an_order_whose_reports_repeat_the_mark() {
    let mut desk = Desk::ready();
    let mut order = buy(2, 100);
    order[29] = b'Y';
    desk.send(&order);
    desk.answer(&[accepted(2)]);
    assert_eq!(desk.packets.remove(0).1[45], b'Y');
    let mut change = replace(2, 3, 200, 15_000);
    desk.send(&change);
    assert_eq!(desk.take(), ["J 3 15"], "the mark stays");
    change[5..9].copy_from_slice(&4_u32.to_be_bytes());
    change[23] = b'Y';
    desk.send(&change);
    desk.answer(&[replaced(2, 6, 20)]);
    let (_, bytes) = desk.packets.remove(0);
    assert_eq!((words(&bytes), bytes[49]), ("U 2>4 200 at 15000".to_string(), b'Y'));
}

#[test]
fn what_the_exchange_cannot_do_is_rejected_with_its_code() {
    let mut desk = Desk::ready();
    let option = |tag: u8, value: &[u8]| [&[value.len() as u8 + 1, tag], value].concat();
    let changed = |at: usize, byte: u8| {
        let mut order = buy(0, 100);
        order[at] = byte;
        order
    };
    let with = |options: &[u8]| enter(0, b'B', 100, 15_000, b'0', options);
    let seconds = |number: u32| option(15, &number.to_be_bytes());
    for (mut order, code) in [
        (changed(5, b'X'), "09"),
        (changed(10, b'Z'), "17"),
        (changed(27, b'A'), "03"),
        (changed(28, b'Z'), "0f"),
        (changed(29, b'Z'), "08"),
        (changed(30, b'O'), "14"),
        (changed(26, b'5'), "0f"),
        (enter(0, b'B', 15, 15_000, b'0', &[]), "13"),
        (enter(0, b'B', 1_000_000, 15_000, b'0', &[]), "13"),
        (enter(0, b'B', 0, 15_000, b'0', &[]), "13"),
        (enter(0, b'B', 100, 15_001, b'0', &[]), "1d"),
        (enter(0, b'B', 100, 0, b'0', &[]), "1d"),
        (enter(0, b'B', 100, 0x7fff_ffff, b'0', &[]), "1d"),
        (enter(0, b'B', 100, 15_000, b'6', &[]), "0f"),
        (enter(0, b'B', 100, 15_000, b'6', &seconds(86_400)), "0f"),
        (with(&option(2, b"ELSE")), "0c"),
        (with(&option(3, &15_u32.to_be_bytes())), "0d"),
        (with(&option(4, b"R")), "1a"),
        (with(&option(5, &15_u32.to_be_bytes())), "04"),
        (with(&option(6, b"P")), "05"),
        (with(&option(6, b"M")), "03"),
        (with(&option(7, &2500_i32.to_be_bytes())), "05"),
        (with(&option(14, b"SCAN")), "16"),
        (with(&option(28, &[5])), "0f"),
        (with(&seconds(60)), "0f"),
    ] {
        let number = desk.records.len() as u32 + 100;
        order[1..5].copy_from_slice(&number.to_be_bytes());
        desk.send(&order);
        assert_eq!(desk.take(), [format!("J {number} {code}")], "{order:?}");
        assert!(desk.requests.is_empty());
    }
    // An option that nobody knows is passed over.
    desk.send(&enter(5_000, b'B', 100, 15_000, b'0', &option(200, b"new")));
    assert_eq!(desk.requests.len(), 1);
}

#[test]
fn a_hidden_order_is_not_displayed_and_its_reports_say_so() {
    let mut desk = Desk::ready();
    let hidden = |number: u32, time: u8, options: &[u8]| {
        let mut order = enter(number, b'B', 100, 15_000, time, options);
        order[27] = b'N';
        order
    };
    let is_hidden = |desk: &Desk| match desk.requests[0].command {
        Command::New(new) => new.is_hidden,
        _ => panic!("no order"),
    };
    desk.send(&hidden(2, b'0', &[]));
    assert!(is_hidden(&desk));
    desk.answer(&[accepted(2)]);
    assert_eq!(desk.packets.remove(0).1[35], b'N');
    desk.private(&[traded(2, 2, 8)]);
    assert_eq!(desk.take(), ["E 2 20 at 15000 J"]);
    // It cannot become a displayed one.
    desk.send(&replace(2, 3, 200, 15_000));
    assert_eq!(desk.take(), ["J 3 15"]);
    let mut change = replace(2, 4, 200, 15_000);
    change[22] = b'N';
    desk.send(&change);
    desk.answer(&[replaced(2, 6, 18)]);
    assert_eq!(desk.packets.remove(0).1[39], b'N');
    // A part cannot be shown of what is hidden; an immediate order is never displayed.
    desk.send(&hidden(5, b'0', &[&[5, 5][..], &20_u32.to_be_bytes()].concat()));
    assert_eq!(desk.take(), ["J 5 04"]);
    desk.send(&hidden(6, b'3', &[]));
    assert!(!is_hidden(&desk));
}

#[test]
fn a_pegged_order_is_never_displayed_and_its_offset_leads_away_from_the_market() {
    let mut desk = Desk::ready();
    let option = |tag: u8, value: &[u8]| [&[value.len() as u8 + 1, tag], value].concat();
    let pegged = |number: u32, side: u8, price: u64, code: &[u8], offset: i32| {
        let offset = option(7, &offset.to_be_bytes());
        let options = [option(6, code), offset].concat();
        let mut order = enter(number, side, 100, price, b'0', &options);
        order[27] = b'N';
        order
    };
    let market = 0x7fff_ffff;
    let mut send = |order: &[u8], event: Event| {
        desk.send(order);
        let Command::New(new) = desk.answer(&[event]) else { panic!("no order") };
        (new.order_type.has_limit(), new.price, new.peg)
    };
    let sent = send(&pegged(2, b'B', market, b"R", -5_000), accepted(2));
    assert_eq!(sent, (false, 0, Peg::Primary { offset: 2 }));
    let full = rejected(3, RejectReason::TooManyPegs);
    let sent = send(&pegged(3, b'S', 15_000, b"R", 2_500), full);
    assert_eq!(sent, (true, 6, Peg::Primary { offset: 1 }));
    let sent = send(&pegged(4, b'B', 15_000, b"M", 0), accepted(4));
    assert_eq!(sent, (true, 6, Peg::Mid));
    assert_eq!(desk.take()[1], "J 3 0f");
    // It takes when it moves; otherwise others take from it.
    desk.private(&[traded(2, 2, 8)]);
    assert_eq!(desk.take(), ["E 2 20 at 15000 J"]);
    // One without a limit may become smaller, and has no limit then either.
    desk.send(&cancel(2, 50));
    let command = desk.answer(&[replaced(2, 0, 3)]);
    assert!(matches!(command, Command::Replace { price: 0, quantity: 3, .. }), "{command:?}");
    assert_eq!(desk.take(), ["C 2 50 U"]);
    for (order, code) in [
        (pegged(5, b'B', market, b"R", 2_500), "05"),
        (pegged(6, b'S', market, b"R", -2_500), "05"),
        (pegged(7, b'B', market, b"R", -1), "05"),
        (pegged(8, b'B', market, b"M", -2_500), "05"),
        (pegged(9, b'B', market, b"Q", 0), "05"),
        (pegged(10, b'B', market, b"L", 0), "1d"),
    ] {
        desk.send(&order);
        let number = u32::from_be_bytes(order[1..5].try_into().unwrap());
        assert_eq!(desk.take(), [format!("J {number} {code}")]);
    }
}

#[test]
fn an_order_for_the_closing_cross_waits_for_it() {
    let mut desk = Desk::ready();
    let closing = |number: u32, price: u64, time: u8| {
        let mut order = enter(number, b'B', 100, price, time, &[]);
        order[30] = b'C';
        order
    };
    let sent = |desk: &Desk| match desk.requests[0].command {
        Command::New(new) => (new.order_type, new.time_in_force, new.is_hidden),
        _ => panic!("no order"),
    };
    desk.send(&closing(2, 15_000, b'0'));
    let at_close = nm_book::order::TimeInForce::AtClose;
    assert_eq!(sent(&desk), (nm_book::order::OrderType::Limit, at_close, false));
    desk.answer(&[accepted(2)]);
    assert_eq!(desk.packets.remove(0).1[46], b'C');
    desk.send(&replace(2, 3, 200, 15_000));
    desk.answer(&[replaced(2, 6, 20)]);
    assert_eq!(desk.packets.remove(0).1[50], b'C');
    desk.private(&[traded(2, 2, 18)]);
    assert_eq!(desk.take(), ["E 3 20 at 15000 C"]);
    let reason = CancelReason::Closed;
    desk.private(&[Event::Cancelled { id: id(2), user: SESSION, left: 18, reason }]);
    assert_eq!(desk.take(), ["C 3 180 E"]);
    // Without a limit, also where its display is N.
    let mut market = closing(4, 0x7fff_ffff, b'0');
    market[27] = b'N';
    desk.send(&market);
    assert_eq!(sent(&desk), (nm_book::order::OrderType::Market, at_close, false));
    desk.answer(&[rejected(4, RejectReason::NoClosing)]);
    assert_eq!(desk.take(), ["J 4 14"]);
    // It is of the day; there is no other cross.
    desk.send(&closing(5, 15_000, b'3'));
    assert_eq!(desk.take(), ["J 5 14"]);
    let mut opening = closing(6, 15_000, b'0');
    opening[30] = b'O';
    desk.send(&opening);
    assert_eq!(desk.take(), ["J 6 14"]);
}

#[test]
fn instructions_reach_the_exchange() {
    let mut desk = Desk::ready();
    let options =
        [&[5, 5][..], &20_u32.to_be_bytes(), &[2, 12, b'P', 5, 15], &3_600_u32.to_be_bytes()]
            .concat();
    desk.send(&enter(2, b'B', 100, 15_000, b'6', &options));
    let Command::New(new) = desk.requests[0].command else { panic!() };
    assert_eq!((new.price, new.quantity, new.display), (6, 10, 2));
    assert_eq!(new.post_only, nm_book::order::PostOnly::Reject);
    let midnight_ns = NOW_NS - NOW_NS % (86_400 * SECOND_NS);
    let until = nm_book::order::TimeInForce::GoodTill(midnight_ns + 3_600 * SECOND_NS);
    assert_eq!(new.time_in_force, until);
    // A post-only order that would trade is accepted and cancelled at once.
    desk.answer(&[rejected(2, RejectReason::WouldTake)]);
    assert_eq!(desk.take(), ["A 2 100 at 15000", "C 2 100 F"]);
    desk.send(&enter(3, b'S', 100, 0x7fff_ffff, b'3', &[]));
    let Command::New(new) = desk.requests[0].command else { panic!() };
    assert_eq!(new.order_type, nm_book::order::OrderType::Market);
}

#[test]
fn all_orders_are_cancelled_and_entry_is_switched_off() {
    let mut desk = Desk::ready();
    desk.rest(2, 100);
    let mass = |number: u32, firm: &[u8], symbol: &[u8]| {
        [b"C", &number.to_be_bytes()[..], firm, symbol, &[0, 0]].concat()
    };
    desk.send(&mass(3, b"ELSE", b"        "));
    desk.send(&mass(4, b"FIRM", b"NONE    "));
    assert_eq!(desk.take(), ["J 3 0c", "J 4 17"]);
    desk.send(&mass(5, b"FIRM", b"ACME    "));
    let event = Event::Cancelled { id: id(2), user: SESSION, left: 10, reason: CancelReason::Mass };
    assert_eq!(desk.answer(&[event]), Command::MassCancel { user: SESSION });
    assert_eq!(desk.take(), ["X 5", "C 2 100 U"]);
    let switch =
        |kind: u8, number: u32| [&[kind], &number.to_be_bytes()[..], b"FIRM", &[0, 0]].concat();
    desk.send(&switch(b'D', 6));
    assert_eq!(desk.take(), ["G 6"]);
    desk = desk.restarted();
    desk.log_in("", "0");
    assert_eq!(desk.take(), ["G 6"]);
    desk.send(&buy(7, 100));
    desk.send(&switch(b'E', 8));
    desk.send(&buy(9, 100));
    assert_eq!(desk.take(), ["J 7 0c", "K 8"]);
    assert_eq!(desk.requests.len(), 1);
}

#[test]
fn a_client_gets_what_it_missed_from_any_number_on() {
    let mut desk = Desk::ready();
    desk.rest(2, 100);
    desk.send(&replace(2, 3, 200, 15_000));
    desk = desk.restarted();
    desk.answer(&[traded(2, 4, 6), replaced(2, 6, 20)]);
    desk.answer(&[replaced(2, 6, 16)]);
    assert!(desk.take().is_empty(), "nobody is there");
    desk = desk.restarted();
    let all = [
        "S S",
        "A 1 10 at 2500",
        "C 1 10 I",
        "A 2 100 at 15000",
        "E 2 40 at 15000 A",
        "U 2>3 160 at 15000",
    ];
    let mut session = String::new();
    for next in 0..=7 {
        desk.log_in(&session, &next.to_string());
        let (kind, accepted) = desk.packets[0].clone();
        let accepted = String::from_utf8(accepted).unwrap();
        let first = if next == 0 { 6 } else { next };
        assert_eq!((kind, accepted.len()), (b'A', 30));
        assert_eq!(accepted[10..], format!("{first:>20}"));
        session = accepted[..10].to_string();
        assert_eq!(desk.take(), all[first - 1..]);
        desk.door.disconnected(desk.connection, NOW_NS);
    }
    for (session, next) in [("OTHER", "1"), (&*session, "8"), ("", "99999999999999999999")] {
        desk.log_in(session, next);
        assert!(desk.is_closed && desk.packets.iter().all(|it| it.0 == b'J'), "{session} {next}");
        desk.packets.clear();
    }
    // One session is of one client at a time, and a name that nobody has is of none.
    desk.log_in("", "7");
    let first = desk.connection;
    desk.packets.clear();
    desk.log_in("", "7");
    assert_eq!((desk.packets.remove(0), desk.is_closed), ((b'J', b"S".to_vec()), true));
    desk.door.disconnected(first, NOW_NS);
    desk.connection += 1;
    assert!(desk.door.connected(desk.connection, Owner::NOBODY, NOW_NS));
    let stranger = packet(b'L', format!("{:<46}", "mallo").as_bytes());
    desk.door.received(desk.connection, &stranger, NOW_NS);
    desk.collect();
    assert_eq!(desk.packets.pop(), Some((b'J', b"A".to_vec())));
}

#[test]
fn both_sides_show_that_they_live() {
    let mut desk = Desk::new();
    desk.packets.clear();
    let mut beats = 0;
    for tenth in 1..=150 {
        desk.door.tick(NOW_NS + tenth * SECOND_NS / 10);
        desk.collect();
        beats += desk.packets.drain(..).filter(|it| *it == (b'H', vec![])).count();
        assert_eq!(desk.is_closed, tenth == CLIENT_SILENCE_NS * 10 / SECOND_NS);
    }
    assert_eq!(beats, 14, "one a second");
    // A heartbeat and a debug packet are life; a logout ends the connection, not the session.
    desk.log_in("", "2");
    for (kind, is_closed) in [(b'R', false), (b'+', false), (b'O', true)] {
        desk.door.received(desk.connection, &packet(kind, b""), NOW_NS);
        desk.collect();
        assert_eq!(desk.is_closed, is_closed);
    }
    for wrong in [packet(b'Z', b""), packet(b'U', b"O"), login("", "2"), vec![0, 0]] {
        desk.log_in("", "2");
        desk.door.received(desk.connection, &wrong, NOW_NS);
        desk.collect();
        assert!(desk.is_closed, "{wrong:?}");
    }
}

#[test]
fn a_session_has_a_number_of_live_orders() {
    let mut desk = Desk::ready();
    desk.rest(2, 100);
    let is_order = |record: &&Record| matches!(record, Record::Order(_));
    let Some(Record::Order(order)) = desk.records.iter().rfind(is_order).cloned() else { panic!() };
    let last = LIVE_ORDERS_MAX as u32;
    for number in 3..=last {
        let mut order = order.clone();
        (order.first, order.user_ref) = (number, number);
        desk.door.restore(0, Record::Order(order));
    }
    desk.rest(last + 1, 100);
    desk.send(&buy(last + 2, 100));
    assert_eq!(desk.take(), [format!("J {} 0a", last + 2)]);
}

#[test]
fn requests_that_wait_for_an_order_are_limited() {
    let mut desk = Desk::ready();
    desk.rest(2, 100);
    let most = WAITING_CHANGES_MAX as u32;
    for number in 3..3 + most {
        desk.send(&replace(number - 1, number, 100, 15_000));
    }
    assert!(desk.take().is_empty());
    desk.send(&replace(2 + most, 3 + most, 100, 15_000));
    assert_eq!(desk.take(), [format!("J {} 0a", 3 + most)]);
}

fn public(event: Event, instrument: u32, bytes: &mut Vec<u8>) -> Frame<'_> {
    codec::write_event(&event, bytes);
    let (output_seq, previous_event, gateway, cell) = (1, 0, 0, 0);
    let events = Series::of(bytes);
    Frame::Public(Public { instrument, output_seq, previous_event, gateway, cell, events })
}

fn day_ended(instruments: &[u32]) -> Frame<'static> {
    Frame::DayEnded(DayEnded { cell: 0, instruments: instruments.to_vec() })
}

#[test]
fn a_day_ends_and_begins_once_also_after_a_restart_of_the_door() {
    let mut desk = Desk::ready();
    desk.rest(2, 500);
    desk.hear(&day_ended(&[4, 5]));
    assert!(desk.take().is_empty(), "nobody trades them here");
    desk.hear(&day_ended(&[1]));
    desk.hear(&day_ended(&[1]));
    assert_eq!(desk.take(), ["S E"]);
    let was_told = desk.records.clone();
    desk.hear(&public(Event::Halted, 1, &mut vec![]));
    desk.hear(&public(Event::AuctionBegun, 4, &mut vec![]));
    assert!(desk.take().is_empty(), "nothing of it begins");
    desk.hear(&public(Event::AuctionBegun, 1, &mut vec![]));
    desk.hear(&public(Event::Uncrossed { price: None, volume: 0 }, 1, &mut vec![]));
    assert_eq!(desk.take(), ["S S"]);
    // A door that was killed between.
    let mut other = door();
    was_told.into_iter().for_each(|record| other.restore(0, record));
    let told = |door: &mut Door<Line>, frame: &Frame<'_>| {
        door.received_frame(frame, NOW_NS);
        door.take_acts()
            .iter()
            .filter(|act| matches!(act, Act::Keep(_, Record::DayOver(_))))
            .count()
    };
    assert_eq!(told(&mut other, &day_ended(&[1])), 0, "the client was told");
    assert_eq!(told(&mut other, &public(Event::Resumed, 1, &mut vec![])), 1);
}

#[test]
fn an_order_that_an_operator_cancels_has_the_supervisory_reason() {
    let mut desk = Desk::ready();
    desk.rest(2, 500);
    desk.rest(3, 500);
    let gone =
        |number, reason| Event::Cancelled { id: id(number), user: SESSION, left: 50, reason };
    desk.private(&[gone(2, CancelReason::Operator), gone(3, CancelReason::Day)]);
    assert_eq!(desk.take(), ["C 2 500 S", "C 3 500 E"]);
}
