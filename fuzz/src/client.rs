//! The library for trading clients: the lines of its state, and what a gateway sends.

use nm_client::{Change, Session};
use nm_wire::Message;

const SESSION: u32 = 7;

/// Lines up to an empty one are a state; frames follow. A session restored from all that another
/// one has kept is equal to it.
pub fn client(bytes: &[u8]) {
    let end = bytes.windows(2).position(|pair| pair == b"\n\n").unwrap_or(bytes.len());
    let (mut session, mut kept) = (Session::new(SESSION), Session::new(SESSION));
    for line in String::from_utf8_lossy(&bytes[..end]).lines() {
        if let Ok(change) = line.parse::<Change>() {
            assert_eq!(change.to_string().parse(), Ok(change.clone()), "{line}");
            session.restore(change.clone());
            kept.restore(change);
        }
    }
    session.connected(0);
    let mut rest = bytes.get(end + 2..).unwrap_or_default();
    while let Ok(Some(frame)) = nm_wire::read(rest) {
        rest = &rest[frame.bytes.len()..];
        let Ok(message) = Message::read(frame) else { continue };
        session.receive(&message, 1);
        while session.next_happened().is_some() {}
        std::mem::take(&mut session.changes).into_iter().for_each(|change| kept.restore(change));
    }
    assert_eq!(session.snapshot(), kept.snapshot());
}

pub fn seeds() -> Vec<Vec<u8>> {
    let lines = "numbered 9\nbase 1 3\nhandled 1 2\norder 1 5 buy 100 10 1\nanswered 1 3\n\
                 gone 1 4\n";
    let frames = nm_wire::ROWS.iter().flat_map(|row| row.example_of(0)).collect::<Vec<u8>>();
    vec![lines.into(), [lines.as_bytes(), b"\n", &frames].concat()]
}
