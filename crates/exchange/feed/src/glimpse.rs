//! A snapshot over SoupBinTCP, as GLIMPSE 5.0 has it. It has the messages of ITCH that lead to the
//! books of a moment. Last comes the number of the message with which the feed goes on.

use nm_doors::line::{Cut as _, Next};
use nm_doors::soup::packet::{self, Framer, LOGIN_ACCEPTED, LOGIN_REQUEST, SEQUENCED};
use thiserror::Error;

use crate::itch::{Fault, Message};
use crate::mold::Session;

/// Type of the last message.
const END: u8 = b'G';

/// Bytes of a number as text.
const NUMBER: usize = 20;

/// The packet by which a client logs in: without a name, to whichever session there is, from the
/// first message on.
pub fn login() -> Vec<u8> {
    let fields = format!("{:6}{:10}{:10}{:>NUMBER$}", "", "", "", 1);
    packet::packet(LOGIN_REQUEST, fields.as_bytes())
}

/// The packet by which a server lets a client in.
pub fn accepted(session: &Session) -> Vec<u8> {
    let mut fields = session.to_vec();
    fields.extend_from_slice(format!("{:>NUMBER$}", 1).as_bytes());
    packet::packet(LOGIN_ACCEPTED, &fields)
}

/// Appends a message.
pub fn push(message: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(message.len() as u16 + 1).to_be_bytes());
    out.push(SEQUENCED);
    out.extend_from_slice(message);
}

/// Appends the last message: with which one the feed goes on.
pub fn push_end(next: u64, out: &mut Vec<u8>) {
    push(format!("{}{next:>NUMBER$}", char::from(END)).as_bytes(), out);
}

/// Why a snapshot cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refusal {
    /// The server does not let the client in.
    #[error("the snapshot server refuses with reason {0}")]
    Login(char),
    /// Bytes are no packets.
    #[error("{0}")]
    Packet(String),
    /// A packet is another one than is due.
    #[error("a packet of type {0} is not due")]
    Unexpected(char),
    /// A message is none.
    #[error(transparent)]
    Message(#[from] Fault),
    /// The last message has no number.
    #[error("the last message has no number")]
    Number,
}

/// A snapshot that a client reads.
#[derive(Debug, Default)]
pub struct Snapshot {
    framer: Framer,
    /// The session, once the client is let in.
    pub session: Option<Session>,
    /// The messages so far.
    pub messages: Vec<Message>,
}

impl Snapshot {
    /// Bytes came. The number of the message with which the feed goes on, once all is there.
    ///
    /// # Errors
    /// If they are no snapshot.
    pub fn on_bytes(&mut self, bytes: &[u8]) -> Result<Option<u64>, Refusal> {
        self.framer.push(bytes);
        while let Some(next) = self.framer.next() {
            let packet = match next {
                Next::Message(packet) => packet,
                Next::Ignored => continue,
                Next::Fault(why) => return Err(Refusal::Packet(why)),
            };
            let payload = &packet.payload[..];
            match (packet.kind, self.session) {
                (packet::DEBUG | packet::SERVER_HEARTBEAT, _) => {}
                (LOGIN_ACCEPTED, None) => {
                    let session = payload.first_chunk().ok_or(Refusal::Unexpected('A'))?;
                    self.session = Some(*session);
                }
                (packet::LOGIN_REJECTED, None) => {
                    let reason = payload.first().copied().unwrap_or(b'?');
                    return Err(Refusal::Login(char::from(reason)));
                }
                (SEQUENCED, Some(_)) if payload.first() == Some(&END) => {
                    let text = std::str::from_utf8(&payload[1..]).map_err(|_| Refusal::Number)?;
                    return text.trim().parse().map(Some).map_err(|_| Refusal::Number);
                }
                (SEQUENCED, Some(_)) => self.messages.push(Message::read(payload)?),
                (other, _) => return Err(Refusal::Unexpected(char::from(other))),
            }
        }
        Ok(None)
    }
}
