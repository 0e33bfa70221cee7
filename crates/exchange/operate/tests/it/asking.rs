//! What a client is answered.

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use nm_book::order::{Command, Event};
use nm_exchange::client::{self, ClientError};
use nm_exchange::network::Role;
use nm_exchange::testing::{Client, LIMIT, Message, TestRing};
use nm_sys::clock::Deadline;
use nm_wire::{Close, Kind, Series, Who};

/// The events of a message.
pub fn events(message: &Message) -> Vec<Event> {
    let all: Series<'_, Event> = Series::of(&message.events);
    all.map(|event| event.unwrap()).collect()
}

/// The events of the answer to one request.
pub fn answer(client: &mut Client, session: u32, instrument: u32, command: &Command) -> Vec<Event> {
    let deadline = Deadline::after(LIMIT);
    let before = client.replies().count();
    client.request(session, instrument, command);
    while client.waiting() > 0 {
        client.turn();
        assert!(!deadline.passed(), "no answer");
    }
    client.replies().nth(before).map(events).unwrap()
}

/// The sentence with which a gateway ends the link of a session.
pub fn refusal(ring: &TestRing, session: u32) -> String {
    let deadline = Deadline::after(LIMIT);
    loop {
        if let Some(why) = refusal_of_one(ring, session) {
            return why;
        }
        assert!(!deadline.passed(), "session {session} is not refused");
    }
}

/// The same of one link, if it is ended soon.
fn refusal_of_one(ring: &TestRing, session: u32) -> Option<String> {
    let address = &ring.network.nodes(Role::Gateway)[0].address;
    let connected = client::connect(address, &[Who::Client { session }], None, LIMIT);
    let mut link = match connected {
        Ok(link) => link,
        Err(ClientError::Refused(why)) => return Some(why),
        Err(other) => panic!("{other}"),
    };
    let deadline = Deadline::after(Duration::from_millis(500));
    while !deadline.passed() {
        let _ = link.flush();
        let fd = link.as_fd().as_raw_fd();
        let is_over = nm_sys::poll::readable(fd, Duration::from_millis(5)).unwrap()
            && link.receive().is_err();
        if let Ok(Some(frame)) = link.input.next_frame()
            && frame.kind() == Kind::Close
        {
            return Some(frame.read::<Close>().unwrap().printable());
        }
        assert!(!is_over, "session {session} is not refused");
    }
    None
}
