//! Sessions that get a copy of each report of their firm.

use nm_book::codec;
use nm_book::order::Event;
use nm_doors::door::{Act, Door};
use nm_doors::fix::line::Line;
use nm_doors::fix::message::{Message, seal};
use nm_doors::fix::record::Record;
use nm_doors::fix::session::Change;
use nm_doors::fix::settings::read;
use nm_doors::fix::time;
use nm_wire::{Message as Frame, Owner, Reply, Resent, Series};

const NOW_NS: u64 = 1_796_000_000_000_000_000;

/// ALICE and DROP are of one firm, BOB of another, CAROL of none.
fn door() -> Door<Line> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sessions.toml");
    let mut text = "venue = \"VENUE\"\n[[symbol]]\nname = \"ACME\"\ninstrument = 1\n\
                    tick = \"0.25\"\nlot = \"10\"\n"
        .to_string();
    let sessions = [
        ("ALICE", 1, "firm = \"F\""),
        ("BOB", 2, "firm = \"G\""),
        ("CAROL", 3, ""),
        ("DROP", 4, "firm = \"F\"\ndrop_copy = true"),
    ];
    for (client, session, more) in sessions {
        text += &format!(
            "[[session]]\nclient = \"{client}\"\nversion = \"FIX.4.4\"\nsession = {session}\n\
             {more}\n"
        );
    }
    std::fs::write(&file, text).unwrap();
    Door::new(&read(&file, None).unwrap())
}

struct Desk {
    door: Door<Line>,
    sent: Vec<(u64, Message)>,
    kept: Vec<(usize, Record)>,
}

impl Desk {
    fn new() -> Desk {
        let mut desk = Desk { door: door(), sent: vec![], kept: vec![] };
        desk.door.link_up(NOW_NS);
        desk
    }

    fn log_on(&mut self, id: u64, client: &str, seq: u64) {
        assert!(self.door.connected(id, Owner::NOBODY, NOW_NS));
        self.send((id, client, seq), "A", "98=0|108=0");
    }

    fn send(&mut self, (id, client, seq): (u64, &str, u64), kind: &str, body: &str) {
        let now = time::format(NOW_NS);
        let text = format!("35={kind}|34={seq}|49={client}|52={now}|56=VENUE|{body}|");
        self.door.received(id, &seal("FIX.4.4", &text.replace('|', "\u{1}")), NOW_NS);
        self.collect();
    }

    /// An order that is rejected at the door, with a ClOrdID.
    fn rejected(&mut self, from: (u64, &str, u64), id: &str) {
        let now = time::format(NOW_NS);
        let body = format!("115=X|11={id}|55=ACME|54=1|38=3|40=2|44=1|60={now}");
        self.send(from, "D", &body);
    }

    fn collect(&mut self) {
        for act in self.door.take_acts() {
            match act {
                Act::Send(to, bytes) => self.sent.push((to, Message::parse(&bytes).unwrap())),
                Act::Keep(line, record) => self.kept.push((line, record)),
                _ => {}
            }
        }
    }

    /// What was sent over a connection since the last call: type, PossDupFlag, ClOrdID, sender.
    fn took(&mut self, id: u64) -> Vec<[String; 4]> {
        let own = self.sent.iter().filter(|(to, _)| *to == id);
        let of = |message: &Message| {
            [35, 43, 11, 115].map(|tag| message.get(tag).unwrap_or_default().to_string())
        };
        let all = own.map(|(_, message)| of(message)).collect();
        self.sent.retain(|(to, _)| *to != id);
        all
    }
}

fn row(kind: &str, again: &str, id: &str, sender: &str) -> [String; 4] {
    [kind, again, id, sender].map(str::to_string)
}

#[test]
fn a_copy_of_each_report_of_the_firm_comes_also_after_a_reconnect() {
    let mut desk = Desk::new();
    desk.log_on(1, "ALICE", 1);
    desk.log_on(2, "BOB", 1);
    desk.log_on(3, "CAROL", 1);
    desk.log_on(4, "DROP", 1);
    desk.took(4);
    desk.rejected((1, "ALICE", 2), "a");
    desk.rejected((2, "BOB", 2), "b");
    desk.rejected((3, "CAROL", 2), "c");
    assert_eq!(desk.took(4), [row("8", "", "a", "ALICE")], "of its own firm alone");
    desk.send((1, "ALICE", 3), "H", "11=a|55=ACME|54=1");
    assert!(desk.took(4).is_empty(), "an answer to a question is no event");
    desk.door.disconnected(4, NOW_NS);
    desk.rejected((1, "ALICE", 4), "d");
    desk.log_on(5, "DROP", 2);
    desk.took(5);
    desk.send((5, "DROP", 3), "2", "7=2|16=0");
    let again = desk.took(5);
    assert_eq!(again[0], row("8", "Y", "a", "ALICE"));
    assert_eq!(again[1], row("8", "Y", "d", "ALICE"));
    assert_eq!(again.len(), 3, "a gap fill goes over the Logon");
}

#[test]
fn a_copy_has_the_ids_and_the_quantities_of_the_report() {
    let mut desk = Desk::new();
    desk.log_on(1, "ALICE", 1);
    desk.log_on(4, "DROP", 1);
    let now = time::format(NOW_NS);
    let body = format!("11=a|55=ACME|54=1|38=30|40=2|44=1.5|60={now}");
    desk.send((1, "ALICE", 2), "D", &body);
    desk.sent.clear();
    let known = Resent {
        executed_seq: 0,
        live_orders: 0,
        instrument: 1,
        session: 1,
        previous_event: 0,
        gateway: 0,
        cell: 0,
        has_gap: false,
        events: Series::of(&[]),
    };
    desk.door.received_frame(&Frame::Resent(known), NOW_NS);
    let mut bytes = vec![];
    codec::write_event(&Event::Accepted { id: 1 << 32 | 1, user: 1 }, &mut bytes);
    let reply = Reply {
        instrument: 1,
        session: 1,
        client_seq: NOW_NS,
        output_seq: 1,
        previous_event: 0,
        events_hash: 0,
        intended_ns: 0,
        map_version: 0,
        gateway: 0,
        cell: 0,
        is_repeated: false,
        is_expired: false,
        events: Series::of(&bytes),
    };
    desk.door.received_frame(&Frame::Reply(reply), NOW_NS);
    desk.collect();
    let of = |id| desk.sent.iter().find(|(to, _)| *to == id).map(|(_, it)| it.clone());
    let (original, copy) = (of(1).unwrap(), of(4).unwrap());
    for tag in [11, 17, 37, 38, 39, 44, 54, 55, 150, 151] {
        assert_eq!(copy.get(tag), original.get(tag), "{tag}");
    }
    assert_eq!((copy.get(797), copy.get(115)), (Some("Y"), Some("ALICE")));
    assert_eq!((original.get(797), original.get(150)), (None, Some("0")));
}

/// What a door that is killed has written is the copy at least.
#[test]
fn a_copy_is_kept_before_its_original() {
    let mut desk = Desk::new();
    desk.log_on(1, "ALICE", 1);
    desk.kept.clear();
    desk.rejected((1, "ALICE", 2), "a");
    let sent = |(line, record): &(usize, Record)| match record {
        Record::Session(Change::Outgoing(_, Some(sent))) if sent.kind == "8" => Some(*line),
        _ => None,
    };
    assert_eq!(desk.kept.iter().filter_map(sent).collect::<Vec<usize>>(), [3, 0]);
    assert!(desk.door.gets_copies(3) && !desk.door.gets_copies(0));
}

#[test]
fn a_session_that_gets_copies_cannot_trade_and_makes_room_for_them() {
    let mut desk = Desk::new();
    desk.log_on(1, "ALICE", 1);
    desk.log_on(4, "DROP", 1);
    desk.took(4);
    desk.rejected((4, "DROP", 2), "x");
    let refused = desk.sent.iter().find(|(to, _)| *to == 4).unwrap().1.clone();
    assert_eq!((refused.kind(), refused.get(380)), ("j", Some("6")));
    for at in 0..100 {
        desk.rejected((1, "ALICE", 2 + at), &format!("a{at}"));
    }
    let before = desk.door.snapshot(3).count();
    desk.door.make_room(3);
    let after = desk.door.snapshot(3).count();
    assert!(after < before / 2 + 10, "{before} {after}");
    let others = desk.door.snapshot(0).count();
    desk.door.make_room(0);
    assert_eq!(desk.door.snapshot(0).count(), others, "others get what they missed");
}
