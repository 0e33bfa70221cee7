//! Tests of days from outside: files, and what the documents say.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use nm_book::order::{Command, TimeInForce};
use nm_feed::itch::Message;
use nm_replay::limits::{LINE_BYTES_MAX, ORDERS_MAX, REQUESTS_MAX};
use nm_replay::make::{self, DaySettings, OPEN_NS};
use nm_replay::{Window, csv_day, itch_day};

const ALL: Window = Window { from_ns: None, length_ns: u64::MAX };

const DAY: DaySettings =
    DaySettings { seed: 1, seconds: 14, rate_per_s: 500.0, stocks: 5, caused: 0.7 };

fn file(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, bytes).unwrap();
    path
}

fn is_take(command: &Command) -> bool {
    let ioc = TimeInForce::ImmediateOrCancel;
    matches!(command, Command::New(new) if new.time_in_force == ioc)
}

fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(vec![], Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn a_synthetic_day_is_a_day_and_has_what_it_counts() {
    let mut bytes = vec![];
    let counts = make::write(&DAY, &mut bytes).unwrap();
    let mut again = vec![];
    assert_eq!(make::write(&DAY, &mut again).unwrap(), counts);
    assert!(bytes == again, "the same seed gives the same day");
    let (mut rest, mut messages, mut last_ns) = (&bytes[..], 0, 0);
    while let Some((length, behind)) = rest.split_first_chunk::<2>() {
        let (message, behind) = behind.split_at(usize::from(u16::from_be_bytes(*length)));
        let message = Message::read(message).unwrap();
        if message.locate > 0 && messages > 20 {
            assert!(message.time_ns >= last_ns && message.time_ns >= OPEN_NS);
            last_ns = message.time_ns;
        }
        (rest, messages) = (behind, messages + 1);
    }
    assert_eq!(messages, counts.messages);
    assert!(counts.trades > 100 && counts.deletes > counts.trades / 2, "{counts:?}");
    let folder = tempfile::tempdir().unwrap();
    let day = itch_day::read(&file(folder.path(), "day", &bytes), ALL).unwrap();
    assert!(day.requests > 5_000 && day.requests < 9_000, "{}", day.requests);
    assert!((12.0..14.1).contains(&day.seconds()), "{}", day.seconds());
    assert_eq!(day.flow.instruments(), (0..5).collect());
    // One that is in bursts has more in its busiest second than one at random.
    let takes = day.flow.requests.iter().filter(|(_, it)| is_take(&it.command));
    assert!(takes.count() as u64 <= counts.trades);
    let same = itch_day::read(&file(folder.path(), "day.gz", &packed(&bytes)), ALL).unwrap();
    assert!(same == day, "compressed or not");
    let cut = file(folder.path(), "cut", &bytes[..bytes.len() - 1]);
    assert!(itch_day::read(&cut, ALL).unwrap_err().to_string().contains("it is cut"));
}

#[test]
fn a_table_is_a_day_or_is_refused_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let read = |text: &str| {
        csv_day::read(&file(folder.path(), "a.csv", text.as_bytes()), ALL)
            .map_err(|error| error.to_string())
    };
    let good = "time,symbol,action,order,side,price,quantity,with\n\
                09:30:00.000000001,ACME,add,1,buy,10.25,100,\n\
                09:30:00.000400000,ACME,trade,1,,,40,\n\
                09:30:00.000500000,ACME,reduce,1,,,10,\n\
                09:30:00.000600000,ACME,replace,1,,10.26,50,2\n\
                09:30:00.000700000,ACME,cancel,2,,,,\n";
    let day = read(good).unwrap();
    let times: Vec<u64> = day.flow.requests.iter().map(|(at_ns, _)| *at_ns).collect();
    assert_eq!(times, [0, 399_999, 499_999, 599_999, 699_999]);
    let Command::New(first) = day.flow.requests[0].1.command else { panic!() };
    assert_eq!((first.price, first.quantity), (1_025, 100));
    let more = |line: &str| format!("{good}{line}\n");
    for (text, why) in [
        ("time\n".to_string(), "line 1: the first line must be"),
        (more("09:30:01,ACME,add"), "line 7: it has 3 fields instead of 8"),
        (more("9h,ACME,cancel,2,,,,"), "line 7: `9h` is no time"),
        (more("09:29:00,ACME,cancel,2,,,,"), "line 7: it is earlier than the line before"),
        (more("09:31:00,ACME,grow,2,,,,"), "`grow` is no action"),
        (more("09:31:00,ACME,add,3,both,1,1,"), "`both` is no side"),
        (more("09:31:00,ACME,add,3,buy,1.001,1,"), "`1.001` is no price"),
        (more("09:31:00,ACME,add,3,buy,1,0,"), "`0` is no quantity"),
        (more("09:31:00,,add,3,buy,1,1,"), "it has no symbol"),
        (more(&"x".repeat(LINE_BYTES_MAX as usize)), "line 7: it is too long"),
    ] {
        let refused = read(&text).unwrap_err();
        assert!(refused.contains(why), "{refused}");
    }
    let missing = csv_day::read(&folder.path().join("none.csv"), ALL).unwrap_err().to_string();
    assert!(missing.contains("cannot be read"), "{missing}");
}

#[test]
fn the_document_of_limits_has_each_number() {
    let page = include_str!("../../../../../docs/limits.md");
    for (name, number) in [
        ("requests of a day", REQUESTS_MAX as u64),
        ("orders of a day", ORDERS_MAX as u64),
        ("line of a table", LINE_BYTES_MAX),
    ] {
        let row = format!("| {name} | {number} |");
        assert!(page.contains(&row), "docs/limits.md lacks `{row}`");
    }
}
