//! Plays `scenarios.txt` against the door, in memory, with FIX 4.4 and FIXT 1.1. Its first lines
//! say how a scenario is written.

use std::collections::BTreeMap;

use nm_doors::door::{Act, ConnectionId, Door};
use nm_doors::fix::line::Line;
use nm_doors::fix::message::{Message, seal};
use nm_doors::fix::session::Profile;
use nm_doors::fix::settings::read;
use nm_doors::fix::time;
use nm_doors::settings::Settings;
use nm_wire::Owner;

const SCENARIOS: &str = include_str!("scenarios.txt");

const BEGIN_NS: u64 = 1_796_000_000_000_000_000;

/// Fields that are the same in all messages, or depend on the time.
const UNCOMPARED: [u32; 10] = [8, 9, 10, 34, 35, 49, 52, 56, 58, 122];

/// Types of which only the given fields are compared.
const OF_APPLICATION: [&str; 5] = ["8", "9", "j", "r", "y"];

fn settings(version: &str) -> Settings<Profile> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sessions.toml");
    let text = format!(
        "venue = \"VENUE\"\n[[symbol]]\nname = \"ACME\"\ninstrument = 1\ntick = \"0.01\"\n\
         lot = \"1\"\n[[session]]\nclient = \"CLIENT\"\nversion = \"{version}\"\nsession = 7\n"
    );
    std::fs::write(&file, text).unwrap();
    read(&file, None).unwrap()
}

struct Play<'a> {
    version: &'a str,
    door: Door<Line>,
    now_ns: u64,
    connection: ConnectionId,
    last_connection: ConnectionId,
    received: BTreeMap<ConnectionId, Vec<Message>>,
    gone: Vec<ConnectionId>,
}

impl Play<'_> {
    fn new(version: &str) -> Play<'_> {
        let mut door = Door::new(&settings(version));
        assert!(door.connected(1, Owner::NOBODY, BEGIN_NS));
        Play {
            version,
            door,
            now_ns: BEGIN_NS,
            connection: 1,
            last_connection: 1,
            received: BTreeMap::new(),
            gone: vec![],
        }
    }

    fn collect(&mut self) {
        for act in self.door.take_acts() {
            match act {
                Act::Send(to, bytes) => {
                    let message = Message::parse(&bytes).expect("the door sends good messages");
                    self.received.entry(to).or_default().push(message);
                }
                Act::Close(id) => self.gone.push(id),
                Act::Keep(..) | Act::Note(_) | Act::SendFrames(_) => {}
            }
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.door.received(self.connection, bytes, self.now_ns);
        self.collect();
    }

    /// The time now, moved by seconds such as `+121`.
    fn time(&self, offset: &str) -> String {
        let seconds: i64 = offset.parse().unwrap();
        time::format(self.now_ns.checked_add_signed(seconds * 1_000_000_000).unwrap())
    }

    /// The bytes of a message as it is written in a scenario.
    fn message(&self, words: &[&str]) -> Vec<u8> {
        if words == ["logon"] {
            return self.message(&["A", "1", "98=0", "108=30"]);
        }
        let (kind, seq, fields) = (words[0], words[1], &words[2..]);
        let mut header = vec![
            (34, seq.to_string()),
            (49, "CLIENT".to_string()),
            (52, time::format(self.now_ns)),
            (56, "VENUE".to_string()),
        ];
        let (mut begin, mut length, mut is_bad, mut body) = (self.version, 0_i64, false, vec![]);
        for field in fields {
            if let Some(omitted) = field.strip_prefix('!') {
                let omitted: u32 = omitted.parse().unwrap();
                header.retain(|(tag, _)| *tag != omitted);
                continue;
            }
            if let Some(more) = field.strip_prefix("tail:") {
                let (tag, value) = more.split_once('=').unwrap();
                header.push((tag.parse().unwrap(), value.to_string()));
                continue;
            }
            let (tag, value) = field.split_once('=').unwrap();
            let is_offset = value.starts_with(['+', '-']);
            match tag {
                "8" => begin = value,
                "9" => length = value.parse().unwrap(),
                "10" => is_bad = true,
                "49" | "56" => {
                    let own = header.iter_mut().find(|(known, _)| known.to_string() == tag);
                    own.unwrap().1 = value.to_string();
                }
                "52" => header[2].1 = self.time(value),
                "43" | "122" if body.is_empty() || value != "N" => {
                    let value = if tag == "122" { self.time(value) } else { value.to_string() };
                    header.push((tag.parse().unwrap(), value));
                }
                "60" if is_offset => body.push(format!("60={}", self.time(value))),
                _ => body.push((*field).to_string()),
            }
        }
        let is_fixt_logon = self.version == "FIXT.1.1" && kind == "A";
        if is_fixt_logon && !fields.contains(&"!1137") {
            body.push("1137=9".to_string());
        }
        let header = header.into_iter().map(|(tag, value)| format!("{tag}={value}"));
        let all: Vec<String> =
            [format!("35={kind}")].into_iter().chain(header).chain(body).collect();
        let text = all.iter().map(|field| format!("{field}\u{1}")).collect::<String>();
        let sealed = String::from_utf8(seal(begin, &text)).unwrap();
        let right = format!("\u{1}9={}\u{1}", text.len());
        let wrong = format!("\u{1}9={}\u{1}", text.len() as i64 + length);
        let mut bytes = sealed.replace(&right, &wrong).into_bytes();
        if is_bad {
            let end = bytes.len();
            bytes[end - 4..end - 1].copy_from_slice(b"256");
        }
        bytes
    }

    /// The next message that was received is this one.
    fn expect(&mut self, words: &[&str]) {
        if words == ["logon"] {
            return self.expect(&["A", "1", "98=0", "108=30"]);
        }
        let waiting = self.received.entry(self.connection).or_default();
        assert!(!waiting.is_empty(), "nothing came");
        let message = waiting.remove(0);
        let text = String::from_utf8_lossy(message.bytes()).replace('\u{1}', "|");
        assert_eq!(
            (message.kind(), message.seq().to_string()),
            (words[0], words[1].into()),
            "{text}"
        );
        let mut expected = BTreeMap::new();
        for word in &words[2..] {
            match (word.split_once('~'), word.split_once('=')) {
                _ if *word == "again" => {
                    assert!(message.get(122).is_some(), "{text}");
                    expected.insert(43, "Y".to_string());
                }
                (Some((_, part)), _) => {
                    let text = message.get(58).unwrap_or_default();
                    assert!(text.contains(&part.replace('_', " ")), "{text}");
                }
                (None, Some((tag, value))) => {
                    expected.insert(tag.parse().unwrap(), value.to_string());
                }
                (None, None) => panic!("{word} is no field"),
            }
        }
        if self.version == "FIXT.1.1" && message.kind() == "A" {
            expected.insert(1137, "9".to_string());
        }
        let is_partial = OF_APPLICATION.contains(&message.kind());
        let fields = message.fields().filter(|(tag, _)| !UNCOMPARED.contains(tag));
        let found: BTreeMap<u32, String> = fields
            .map(|(tag, value)| (tag, String::from_utf8(value.to_vec()).unwrap()))
            .filter(|(tag, _)| !is_partial || expected.contains_key(tag))
            .collect();
        assert_eq!(found, expected, "{text}");
    }

    fn line(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match (words[0], &words[1..]) {
            (">", words) => {
                let bytes = self.message(words);
                self.send(&bytes);
            }
            ("<", words) => self.expect(words),
            ("raw", [text]) => self.send(text.replace('|', "\u{1}").as_bytes()),
            ("raw-sealed", [text]) => {
                let text = text.replace('|', "\u{1}").replace("{now}", &time::format(self.now_ns));
                self.send(&seal(self.version, &text));
            }
            ("nothing", []) => {
                let waiting = self.received.get(&self.connection).map_or(&[][..], Vec::as_slice);
                assert!(waiting.is_empty(), "something came: {waiting:?}");
            }
            ("wait", [seconds]) => {
                let ticks = (seconds.parse::<f64>().unwrap() * 2.0) as u64;
                for _ in 0..ticks {
                    self.now_ns += 500_000_000;
                    self.door.tick(self.now_ns);
                    self.collect();
                }
            }
            ("gone", []) => assert!(self.gone.contains(&self.connection), "it is still there"),
            ("first", []) => self.connection = 1,
            ("second", []) => {
                self.last_connection += 1;
                self.connection = self.last_connection;
                assert!(self.door.connected(self.connection, Owner::NOBODY, self.now_ns));
            }
            ("leave", []) => {
                self.door.disconnected(self.connection, self.now_ns);
                self.collect();
            }
            _ => panic!("`{line}` is no line of a scenario"),
        }
    }
}

/// Runs a scenario; what failed, if something did.
fn play(version: &str, lines: &[&str]) -> Result<(), String> {
    let mut play = Play::new(version);
    for (at, line) in lines.iter().enumerate() {
        let run = std::panic::AssertUnwindSafe(|| play.line(line));
        if let Err(panic) = std::panic::catch_unwind(run) {
            let why = panic.downcast_ref::<String>().cloned();
            let why = why.or(panic.downcast_ref::<&str>().map(ToString::to_string));
            return Err(format!("line {} `{line}`: {}", at + 1, why.unwrap_or_default()));
        }
    }
    let left: Vec<_> = play.received.values().flatten().map(Message::bytes).collect();
    match left.first() {
        None => Ok(()),
        Some(first) => Err(format!("not expected: {}", String::from_utf8_lossy(first))),
    }
}

#[test]
fn a_door_behaves_as_each_scenario_describes() {
    let (mut failed, mut count) = (vec![], 0);
    for scenario in SCENARIOS.split("\n== ").skip(1) {
        let (title, lines) = scenario.split_once('\n').unwrap();
        let lines: Vec<&str> = lines.lines().filter(|line| !line.is_empty()).collect();
        for version in ["FIX.4.4", "FIXT.1.1"] {
            if title.split_once('@').is_some_and(|(_, only)| only != version) {
                continue;
            }
            count += 1;
            if let Err(why) = play(version, &lines) {
                failed.push(format!("{version}, {title}: {why}"));
            }
        }
    }
    assert!(failed.is_empty(), "{} of {count}:\n{}", failed.len(), failed.join("\n"));
    assert!(count > 2 * 59, "{count} scenarios");
}

#[test]
fn a_scenario_that_expects_something_else_fails() {
    let good = ["> logon", "< logon", "> 1 2 112=x", "< 0 2 112=x", "nothing"];
    assert_eq!(play("FIX.4.4", &good), Ok(()));
    for (at, wrong) in [
        (1, "nothing"),
        (1, "< A 1 98=0 108=31"),
        (1, "gone"),
        (3, "< 0 3 112=x"),
        (3, "< 0 2"),
        (3, "< 1 2 112=x"),
        (3, "< 0 2 112=x 7=1"),
        (3, "< 0 2 112=x again"),
        (3, "nothing"),
    ] {
        let mut lines = good;
        lines[at] = wrong;
        assert!(play("FIX.4.4", &lines).is_err(), "{wrong}");
    }
    assert!(play("FIX.4.4", &good[..3]).is_err(), "what came and was not expected");
}
