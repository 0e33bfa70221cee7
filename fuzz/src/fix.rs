//! The FIX acceptor: bytes of a client before and after its logon.

use std::sync::Arc;

use nm_doors::decimal::Decimal;
use nm_doors::door::{Act, Door};
use nm_doors::fix::line::Line;
use nm_doors::fix::market::FirmUse;
use nm_doors::fix::message::{Message, seal};
use nm_doors::fix::session::{Profile, Version};
use nm_doors::market::View;
use nm_doors::settings::{SessionSettings, Settings};
use nm_doors::symbols::{Symbol, Symbols};

const NOW_NS: u64 = 1_796_000_000_000_000_000;

/// Begin of each message whose frame is made right.
const HEADER: &str = "49=C\x0152=20261130-00:26:40\x0156=V\x01";

fn door() -> Door<Line> {
    let name = "S".to_string();
    let (tick, lot) = (Decimal::ONE, Decimal::ONE);
    let symbol = Symbol { name: name.clone(), instrument: 1, tick, lot };
    let profile = Profile {
        version: Version::Fix44,
        own: "V".to_string(),
        peer: "C".to_string(),
        username: None,
        password: None,
        firm: Some("F".to_string()),
        firm_use: FirmUse::default(),
        is_drop_copy: false,
    };
    let symbols = Arc::new(Symbols([(name, symbol)].into()));
    let sessions = vec![SessionSettings { profile, session: 7, cancel_after_ns: Some(0) }];
    Door::new(&Settings { symbols, sessions, store_bytes: u64::MAX })
}

/// Lines go to a door as they are, or as the fields of a message whose length and sum are right.
/// What it answers is a message, and what it keeps is as good as the door itself.
pub fn fix(bytes: &[u8]) {
    let (mut door, mut kept) = (door(), self::door());
    assert!(door.connected(1, nm_wire::Owner::NOBODY, NOW_NS));
    for (at, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        match line.split_first() {
            Some((b'#', fields)) => {
                let fields = String::from_utf8_lossy(fields).replace('|', "\x01");
                let (kind, rest) = fields.split_once('\x01').unwrap_or((&fields, ""));
                let text = format!("35={kind}\x01{HEADER}{rest}");
                door.received(1, &seal("FIX.4.4", &text), NOW_NS + at as u64);
            }
            _ => door.received(1, line, NOW_NS + at as u64),
        }
        door.tick(NOW_NS + at as u64);
        let view = View { volume: at as u64, ..View::empty() };
        door.market_changed([(1, Arc::new(view))].into(), NOW_NS + at as u64);
        for act in door.take_acts() {
            match act {
                Act::Send(_, sent) => assert!(Message::parse(&sent).is_ok()),
                Act::Keep(line, record) => kept.restore(line, record),
                Act::SendFrames(_) | Act::Close(_) | Act::Note(_) => {}
            }
        }
    }
    let snapshot = |door: &Door<Line>| door.snapshot(0).collect::<Vec<_>>();
    assert_eq!(snapshot(&door), snapshot(&kept));
}

pub fn seeds() -> Vec<Vec<u8>> {
    let orders = "#A|34=1|98=0|108=30|\n\
                  #D|34=2|11=a|55=S|54=1|38=10|40=2|44=5|60=20261130-00:26:40|\n\
                  #G|34=3|41=a|11=b|55=S|54=1|38=20|40=2|44=5|60=20261130-00:26:40|\n\
                  #F|34=4|41=b|11=c|55=S|54=1|60=20261130-00:26:40|\n\
                  #H|34=5|11=a|55=S|54=1|\n#q|34=6|11=m|530=7|60=20261130-00:26:40|\n\
                  #x|34=7|320=s|559=4|\n#2|34=8|7=1|16=0|\n#5|34=9|";
    let numbers = "#A|34=1|98=0|108=30|789=1|141=Y|\n#1|34=5|112=x|\n#4|34=2|36=4|123=Y|43=Y|\n\
                   #4|34=9|36=30|\n#3|34=30|45=1|\n#0|34=31|43=Y|122=20261130-00:26:40|\n#0|34=1|";
    let logon = seal("FIX.4.4", &format!("35=A\x01{HEADER}34=1\x0198=0\x01108=30\x01"));
    let market = "#A|34=1|98=0|108=30|\n\
                  #V|34=2|262=a|263=1|264=0|265=1|267=3|269=0|269=1|269=B|146=1|55=S|\n\
                  #V|34=3|262=b|263=0|264=1|267=1|269=2|146=1|55=S|\n\
                  #e|34=4|324=c|263=1|55=S|\n#g|34=5|335=d|263=0|\n\
                  #V|34=6|262=a|263=2|264=0|267=1|269=0|146=1|55=S|\n#0|34=7|";
    vec![orders.into(), numbers.into(), market.into(), logon]
}
