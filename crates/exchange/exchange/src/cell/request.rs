//! A session's request.

use nm_book::codec;
use nm_book::order::{Command, Event, InstrumentId, NewOrder, RejectReason, UserId};
use nm_codec::{DecodeError, Reader};

use crate::wire::{self, Frame, FrameKind, Header};

/// The session that may command the exchange itself: halts, auctions, price bands, end of the day.
pub const OPERATOR: UserId = 0;

/// One request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The user's session.
    pub session: UserId,
    /// Gateway that the session is connected to.
    pub gateway: u16,
    /// Instrument.
    pub instrument: InstrumentId,
    /// Version of the instrument map by which its cell was chosen.
    pub map_version: u32,
    /// Sequence number within the session, from 1 on.
    pub client_seq: u64,
    /// Sequence number of the session's request before it on this instrument; zero for the first.
    pub previous_seq: u64,
    /// When it was meant to be sent, ns on the client's clock; carried along.
    pub intended_ns: u64,
    /// Sequence number of the last of the session's events on this instrument that it has.
    pub acknowledged: u64,
    /// Whether its events are broadcast.
    pub is_public: bool,
    /// Whether the request before it was answered.
    pub is_previous_answered: bool,
    /// The command to the book.
    pub command: Command,
}

impl Request {
    /// The request in a frame.
    ///
    /// # Errors
    /// As [`Request::decode`].
    pub fn of(frame: &Frame<'_>) -> Result<Request, DecodeError> {
        Request::decode(&frame.header, frame.body)
    }

    /// The request of a header and a body.
    ///
    /// # Errors
    /// If the header is not that of a request, or the body not a command.
    pub fn decode(header: &Header, body: &[u8]) -> Result<Request, DecodeError> {
        if header.kind != FrameKind::Request {
            return Err(DecodeError::invalid("kind", "is not that of a request"));
        }
        if header.client_seq == 0 {
            return Err(DecodeError::invalid("client_seq", "is zero"));
        }
        let mut reader = Reader::new(body);
        let command = codec::read_command(&mut reader)?;
        reader.finish("command")?;
        Ok(Request {
            session: header.session,
            gateway: header.gateway,
            instrument: header.instrument,
            map_version: header.map_version,
            client_seq: header.client_seq,
            previous_seq: header.previous_seq,
            intended_ns: header.intended_ns,
            acknowledged: header.output_seq,
            is_public: header.flags & wire::PUBLIC != 0,
            is_previous_answered: header.flags & wire::PREVIOUS_ANSWERED != 0,
            command,
        })
    }

    /// Its header; the cell is filled in on the way.
    pub fn header(&self) -> Header {
        let flag = |flag: u16, is_set: bool| if is_set { flag } else { 0 };
        Header {
            flags: flag(wire::PUBLIC, self.is_public)
                | flag(wire::PREVIOUS_ANSWERED, self.is_previous_answered),
            instrument: self.instrument,
            gateway: self.gateway,
            map_version: self.map_version,
            session: self.session,
            client_seq: self.client_seq,
            previous_seq: self.previous_seq,
            intended_ns: self.intended_ns,
            output_seq: self.acknowledged,
            ..Header::new(FrameKind::Request)
        }
    }

    /// The command as its session may give it: an order belongs to the session that sends it,
    /// whatever user it names, and only the operator commands the exchange itself.
    ///
    /// # Errors
    /// The rejection of a command that the session may not give.
    pub(super) fn authorized_command(&self) -> Result<Command, Event> {
        let user = self.session;
        Ok(match self.command {
            Command::New(order) => Command::New(NewOrder { user, ..order }),
            Command::Replace { id, price, quantity, .. } => {
                Command::Replace { id, user, price, quantity }
            }
            Command::Cancel { id, .. } => Command::Cancel { id, user },
            Command::MassCancel { .. } => Command::MassCancel { user },
            Command::Tick => Command::Tick,
            command if user == OPERATOR => command,
            _ => return Err(self.rejection(RejectReason::NotAllowed)),
        })
    }

    /// The event of its rejection.
    pub fn rejection(&self, reason: RejectReason) -> Event {
        let id = match self.command {
            Command::New(NewOrder { id, .. })
            | Command::Replace { id, .. }
            | Command::Cancel { id, .. } => id,
            _ => 0,
        };
        Event::Rejected { id, user: self.session, reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn command() -> impl Strategy<Value = Command> {
        prop_oneof![
            Just(Command::Tick),
            Just(Command::Halt),
            any::<(u64, u32)>().prop_map(|(id, user)| Command::Cancel { id, user }),
            any::<u32>().prop_map(|user| Command::MassCancel { user }),
            any::<(u64, u32, i64, u64)>().prop_map(|(id, user, price, quantity)| {
                Command::Replace { id, user, price, quantity }
            }),
        ]
    }

    proptest! {
        #[test]
        fn a_request_is_read_back(command in command(), gateway: u16, is_public: bool,
                                  is_previous_answered: bool, ids: [u32; 3],
                                  numbers: [u64; 4]) {
            let [session, instrument, map_version] = ids;
            let [client_seq, previous_seq, intended_ns, acknowledged] = numbers;
            let request = Request {
                session,
                gateway,
                instrument,
                map_version,
                client_seq: client_seq.max(1),
                previous_seq,
                intended_ns,
                acknowledged,
                is_public,
                is_previous_answered,
                command,
            };
            let mut body = vec![];
            codec::write_command(&command, &mut body);
            prop_assert_eq!(Request::decode(&request.header(), &body), Ok(request));
            body.push(0);
            prop_assert!(Request::decode(&request.header(), &body).is_err());
        }
    }
}
