//! The OUCH door: packets of a client after its login.

use std::sync::Arc;

use nm_doors::decimal::Decimal;
use nm_doors::door::{Act, Door};
use nm_doors::line::{Cut, Next};
use nm_doors::ouch::line::Line;
use nm_doors::ouch::message::Outbound;
use nm_doors::ouch::settings::Profile;
use nm_doors::settings::{SessionSettings, Settings};
use nm_doors::soup::packet::{Framer, packet};
use nm_doors::soup::session::Login;
use nm_doors::symbols::{Symbol, Symbols};

const NOW_NS: u64 = 1_796_000_000_000_000_000;

fn door() -> Door<Line> {
    let name = "S".to_string();
    let (tick, lot) = (Decimal::ONE, Decimal::ONE);
    let symbol = Symbol { name: name.clone(), instrument: 1, tick, lot };
    let login = Login { username: "c".to_string(), password: None };
    let profile = Profile { login, firm: *b"FIRM" };
    let symbols = Arc::new(Symbols([(name, symbol)].into()));
    let sessions = vec![SessionSettings { profile, session: 7, cancel_after_ns: Some(0) }];
    Door::new(&Settings { symbols, sessions, store_bytes: u64::MAX })
}

/// What the door sends is whole packets, and messages of the protocol in them.
fn check_sent(framer: &mut Framer, bytes: &[u8]) {
    framer.push(bytes);
    while let Some(next) = framer.next() {
        let Next::Message(packet) = next else { panic!("no packet: {bytes:?}") };
        if packet.kind == b'S' {
            Outbound::read(&packet.payload).expect("a message of OUCH");
        }
    }
}

/// Chunks, each behind its length, go to a door as they are or as the payload of a packet. What it
/// keeps is as good as the door itself.
pub fn ouch(bytes: &[u8]) {
    let (mut door, mut kept, mut sent) = (door(), self::door(), Framer::default());
    assert!(door.connected(1, nm_wire::Owner::NOBODY, NOW_NS));
    door.link_up(NOW_NS);
    let login = packet(b'L', format!("{:<6}{:<10}{:<10}{:>20}", "c", "", "", 1).as_bytes());
    door.received(1, &login, NOW_NS);
    let mut rest = bytes;
    loop {
        for act in door.take_acts() {
            match act {
                Act::Send(_, bytes) => check_sent(&mut sent, &bytes),
                Act::Keep(line, record) => kept.restore(line, record),
                Act::SendFrames(_) | Act::Close(_) | Act::Note(_) => {}
            }
        }
        let Some((head, behind)) = rest.split_first() else { break };
        let chunk;
        (chunk, rest) = behind.split_at(behind.len().min(usize::from(head & 0x7f)));
        match head >> 7 {
            0 => door.received(1, &packet(b'U', chunk), NOW_NS),
            _ => door.received(1, chunk, NOW_NS),
        }
        door.tick(NOW_NS);
    }
    let snapshot = |door: &Door<Line>| door.snapshot(0).collect::<Vec<_>>();
    assert_eq!(snapshot(&door), snapshot(&kept));
}

pub fn seeds() -> Vec<Vec<u8>> {
    let enter = |number: u8| {
        [b"O\0\0\0", &[number, b'B'][..], &[0, 0, 0, 100], b"S       ", &[0; 6], &[0x27, 0x10]]
            .concat()
    };
    let order = |number| [enter(number), b"0YANNclient        \0\0".to_vec()].concat();
    let replace = b"U\0\0\0\x01\0\0\0\x02\0\0\0\xc8\0\0\0\0\0\0\x27\x100YNclient        \0\0";
    let cancel = b"X\0\0\0\x02\0\0\0\x0a";
    let modify = b"M\0\0\0\x02B\0\0\0\x0a\0\0";
    let mass = b"C\0\0\0\x05FIRMS       \0\0";
    let chunk = |head: u8, payload: &[u8]| [&[head | payload.len() as u8], payload].concat();
    let session = [
        chunk(0, &order(1)),
        chunk(0, replace),
        chunk(0, cancel),
        chunk(0, modify),
        chunk(0, mass),
        chunk(0, b"Q\0\0"),
    ];
    vec![session.concat(), chunk(0x80, &packet(b'O', b"")), chunk(0x80, &packet(b'R', b""))]
}
