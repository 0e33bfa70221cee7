//! Messages beside a decoder that others wrote: PyPI's `itchfeed`.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use nm_codec::{Random, hex};
use nm_feed::itch::{HEADER_BYTES, LENGTHS, MESSAGE_BYTES_MAX, Message};

/// Reads each line as a message by the class of its type, and writes what that class makes of it.
const READER: &str = "
import sys
import itch.messages as all_messages
base = all_messages.MarketMessage
known = [it for it in vars(all_messages).values() if isinstance(it, type) and issubclass(it, base)]
by_type = {it.message_type: it for it in known if hasattr(it, 'message_size')}
for line in sys.stdin:
    message = bytes.fromhex(line)
    read = by_type[message[:1]](message)
    assert read.message_size == len(message)
    print(read.to_bytes().hex(), read.stock_locate, read.timestamp)
";

/// `NM_ITCHFEED` names the folder of a Python that has the package, version 1.6.4.
#[test]
#[ignore = "needs the package itchfeed"]
fn a_decoder_of_others_reads_every_message_as_it_was_written() {
    let folder = std::env::var_os("NM_ITCHFEED");
    let python = folder.map_or("python3".into(), |folder| Path::new(&folder).join("python3"));
    let mut child = Command::new(python);
    child.args(["-c", READER]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = child.spawn().unwrap();
    let (mut random, mut lines, mut expected) = (Random::new(1), String::new(), vec![]);
    for (kind, bytes) in LENGTHS.iter().filter(|(kind, _)| *kind != b'O') {
        let mut own = vec![*kind];
        own.extend((1..*bytes).map(|at| {
            // Texts are printable.
            if at < HEADER_BYTES { random.below(256) as u8 } else { b'0' + random.below(10) as u8 }
        }));
        let message = Message::read(&own).unwrap();
        let mut place = [0; MESSAGE_BYTES_MAX];
        let length = message.write(&mut place);
        let digits = hex::write(&place[..length]);
        lines.push_str(&format!("{digits}\n"));
        expected.push(format!("{digits} {} {}", message.locate, message.time_ns));
    }
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let found = String::from_utf8(output.stdout).unwrap();
    assert_eq!(found.lines().collect::<Vec<_>>(), expected);
}
