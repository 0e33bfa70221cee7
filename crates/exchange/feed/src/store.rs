//! The messages that a feed has sent, for those who missed some.

use crate::itch::{MESSAGE_BYTES_MAX, Message};
use crate::mold::{Draft, END_OF_SESSION, Header, Session};

/// A message, and how many bytes it has.
type Slot = ([u8; MESSAGE_BYTES_MAX], u8);

/// The latest messages of a session.
#[derive(Debug)]
pub struct Store {
    session: Session,
    /// Number of the next message.
    next: u64,
    slots: Vec<Slot>,
    most: usize,
}

impl Store {
    /// A session without messages, that keeps so many bytes.
    pub fn new(session: Session, bytes: u64) -> Store {
        let most = usize::try_from(bytes).unwrap_or(usize::MAX) / size_of::<Slot>();
        Store { session, next: 1, slots: vec![], most: most.max(1) }
    }

    /// The session.
    pub fn session(&self) -> Session {
        self.session
    }

    /// Number of the next message.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Number of the first message that is kept.
    pub fn first(&self) -> u64 {
        self.next - self.slots.len() as u64
    }

    /// Adds a message; its bytes.
    pub fn push(&mut self, message: &Message) -> &[u8] {
        let at = ((self.next - 1) % self.most as u64) as usize;
        if at == self.slots.len() {
            self.slots.push(([0; MESSAGE_BYTES_MAX], 0));
        }
        self.next += 1;
        let (bytes, length) = &mut self.slots[at];
        *length = message.write(bytes) as u8;
        &bytes[..usize::from(*length)]
    }

    /// A message that is kept.
    pub fn get(&self, number: u64) -> Option<&[u8]> {
        if !(self.first()..self.next).contains(&number) {
            return None;
        }
        let (bytes, length) = &self.slots[((number - 1) % self.most as u64) as usize];
        Some(&bytes[..usize::from(*length)])
    }

    /// The answer to a request: as many of the messages as fit a packet. None if it is another
    /// session's, or nothing of it is kept.
    pub fn answer(&self, request: &Header) -> Option<Draft> {
        if request.session != self.session || request.count == END_OF_SESSION {
            return None;
        }
        let mut draft = Draft::new(self.session, request.sequence);
        for at in 0..u64::from(request.count) {
            let Some(message) = self.get(request.sequence.saturating_add(at)) else { break };
            if !draft.push(message) {
                break;
            }
        }
        (!draft.is_empty()).then_some(draft)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::itch::Body;
    use crate::mold::Packet;

    const SESSION: Session = *b"0000000007";

    fn store(messages: u64) -> Store {
        let mut store = Store::new(SESSION, 100 * size_of::<Slot>() as u64);
        for reference in 1..=messages {
            let body = Body::Delete { reference };
            store.push(&Message { locate: 1, tracking: 0, time_ns: 0, body });
        }
        store
    }

    fn answered(store: &Store, sequence: u64, count: u16) -> Vec<u64> {
        let request = Header { session: SESSION, sequence, count };
        let Some(mut draft) = store.answer(&request) else { return vec![] };
        let packet = Packet::read(draft.bytes()).unwrap();
        let references = packet.messages().map(|(number, message)| {
            let Body::Delete { reference } = Message::read(message).unwrap().body else { panic!() };
            assert_eq!(reference, number);
            number
        });
        references.collect()
    }

    #[test]
    fn what_is_kept_is_sent_again_as_far_as_it_fits_a_packet() {
        let store = store(250);
        assert_eq!((store.first(), store.next()), (151, 251));
        assert_eq!(answered(&store, 151, 3), [151, 152, 153]);
        assert_eq!(answered(&store, 249, 10), [249, 250]);
        assert_eq!(answered(&store, 160, 1_000), (160..=224).collect::<Vec<u64>>());
        for (sequence, count) in [(150, 5), (251, 1), (160, 0), (160, END_OF_SESSION), (0, 1)] {
            assert!(answered(&store, sequence, count).is_empty(), "{sequence} {count}");
        }
        let other = Header { session: *b"0000000008", sequence: 160, count: 1 };
        assert!(store.answer(&other).is_none());
    }
}
