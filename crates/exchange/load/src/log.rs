//! The client log: requests sent, replies and events received, as the clients saw them. `exchange
//! verify` compares it with the journals of the network.
//!
//! ```text
//! "nmclnt02", then records: kind u8, then
//!  1 sent       session u32, instrument u32, client_seq u64, intended_ns u64, command_hash u64
//!  2 answered   session u32, instrument u32, client_seq u64, at_ns u64, output_seq u64,
//!               events_hash u64, flags u8 (1: repeated, 2: the outcome has expired, 4: surplus)
//!  3 delivered  session u32, instrument u32, events u64, events_hash u64, flags u8 (1: with a gap
//!               that no replica could fill)
//!  4 refused    session u32, instrument u32, client_seq u64
//!  5 unanswered session u32, instrument u32, client_seq u64
//!  6 end        sent u64, answered u64, delivered u64, refused u64, unanswered u64,
//!               broadcasts u64
//!  7 broadcast  gateway u32, instrument u32, number u64, output_seq u64, content_hash u64,
//!               flags u8 (1: others before it may have been lost)
//! ```
//!
//! Records are in the order in which one thread did what they say. A client that ends writes what
//! each session was delivered and which requests have no answer. Last it writes how many records of
//! each kind there are. Without that record, the log may be missing something.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use nm_book::codec;
use nm_book::order::{Command, InstrumentId, Price, UserId};
use nm_codec::{DecodeError, Put, Reader, fnv1a};
use nm_model::agent::{Failure, FailureKind};
use thiserror::Error;

/// First bytes of a file, with the version.
const FORMAT: &[u8; 8] = b"nmclnt02";

/// Bytes per write.
const WRITE_BYTES: usize = 1 << 20;

/// Identifies a request: instrument, session and sequence number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    /// Instrument.
    pub instrument: InstrumentId,
    /// Session.
    pub session: UserId,
    /// Sequence number within the session.
    pub client_seq: u64,
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RequestId { instrument, session, client_seq } = self;
        write!(f, "request {client_seq} of session {session} on instrument {instrument}")
    }
}

/// A request that a client sent; retransmissions are not logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    /// Which request.
    pub name: RequestId,
    /// Intended send time, ns on the client's clock.
    pub intended_ns: u64,
    /// Hash of the command, see [`command_hash`].
    pub command_hash: u64,
}

/// A reply that a client received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answered {
    /// To which request.
    pub name: RequestId,
    /// Time of receipt, ns on the client's clock.
    pub at_ns: u64,
    /// Number of the request among all that were executed on the instrument.
    pub output_seq: u64,
    /// Hash of the events that it caused.
    pub events_hash: u64,
    /// Whether it is marked as a repetition.
    pub is_repeated: bool,
    /// Whether the network knows only that it was executed, and no longer the outcome.
    pub is_expired: bool,
    /// Whether the client did not wait for it, because it had a reply already.
    pub is_surplus: bool,
}

/// All events delivered to a session on an instrument until its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivered {
    /// Session.
    pub session: UserId,
    /// Instrument.
    pub instrument: InstrumentId,
    /// Number of the last event.
    pub events: u64,
    /// Hash of all of them, in order.
    pub events_hash: u64,
    /// Whether the network reported a gap that it could not fill.
    pub has_gap: bool,
}

/// The end of a log: how many records of each kind it has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct End {
    /// Requests sent.
    pub sent: u64,
    /// Replies, surplus ones included.
    pub answered: u64,
    /// Sessions and instruments with their events.
    pub delivered: u64,
    /// Requests refused.
    pub refused: u64,
    /// Requests that have neither a reply nor a refusal.
    pub unanswered: u64,
    /// Broadcasts.
    pub broadcasts: u64,
}

impl End {
    /// Counts a record.
    pub fn count(&mut self, record: &Record) {
        match record {
            Record::Sent(_) => self.sent += 1,
            Record::Answered(_) => self.answered += 1,
            Record::Delivered(_) => self.delivered += 1,
            Record::Refused(_) => self.refused += 1,
            Record::Unanswered(_) => self.unanswered += 1,
            Record::Broadcast(_) => self.broadcasts += 1,
            Record::End(_) => {}
        }
    }
}

/// A broadcast that a gateway passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Broadcast {
    /// Which gateway.
    pub gateway: u32,
    /// Instrument.
    pub instrument: InstrumentId,
    /// Number of the last event in it among the broadcast ones of the instrument.
    pub number: u64,
    /// Number of the request that caused it among all that were executed on the instrument.
    pub output_seq: u64,
    /// Hash of what it says: see [`events_hash`] and [`best_hash`].
    pub content_hash: u64,
    /// Whether others before it may have been lost: a link was made again, or the network has
    /// reported that events may be lost.
    pub may_lack: bool,
}

/// Kinds of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RecordKind {
    Sent,
    Answered,
    Delivered,
    Refused,
    Unanswered,
    End,
    Broadcast,
}

nm_codec::codes!(RecordKind {
    Sent = 1,
    Answered = 2,
    Delivered = 3,
    Refused = 4,
    Unanswered = 5,
    End = 6,
    Broadcast = 7,
});

/// Flags of an answered record.
const REPEATED: u8 = 1;
const EXPIRED: u8 = 2;
const SURPLUS: u8 = 4;

/// A record of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record {
    /// Sent.
    Sent(Sent),
    /// Answered.
    Answered(Answered),
    /// Delivered.
    Delivered(Delivered),
    /// The network refused a request: it is not executed, and never will be.
    Refused(RequestId),
    /// The client ended without a reply to a request.
    Unanswered(RequestId),
    /// The client ended.
    End(End),
    /// A broadcast.
    Broadcast(Broadcast),
}

/// Hash of broadcast events, from their bytes.
pub fn events_hash(bytes: &[u8]) -> u64 {
    fnv1a(bytes)
}

/// Hash of a broadcast of the best bid and the best offer.
pub fn best_hash(prices: [Option<Price>; 2]) -> u64 {
    let mut bytes = vec![];
    for price in prices {
        bytes.put_bool(price.is_some());
        bytes.put_i64(price.unwrap_or_default());
    }
    fnv1a(&bytes)
}

/// Hash of an encoded command.
pub fn command_hash(command: &Command) -> u64 {
    let mut bytes = vec![];
    codec::write_command(command, &mut bytes);
    fnv1a(&bytes)
}

impl Record {
    /// Appends it.
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Record::Sent(sent) => {
                begin(RecordKind::Sent, sent.name, out);
                out.put_u64(sent.name.client_seq);
                out.put_u64(sent.intended_ns);
                out.put_u64(sent.command_hash);
            }
            Record::Answered(answered) => {
                begin(RecordKind::Answered, answered.name, out);
                out.put_u64(answered.name.client_seq);
                out.put_u64(answered.at_ns);
                out.put_u64(answered.output_seq);
                out.put_u64(answered.events_hash);
                let repeated = u8::from(answered.is_repeated) * REPEATED;
                let expired = u8::from(answered.is_expired) * EXPIRED;
                let surplus = u8::from(answered.is_surplus) * SURPLUS;
                out.put_u8(repeated | expired | surplus);
            }
            Record::Delivered(delivered) => {
                out.put_u8(RecordKind::Delivered.code());
                out.put_u32(delivered.session);
                out.put_u32(delivered.instrument);
                out.put_u64(delivered.events);
                out.put_u64(delivered.events_hash);
                out.put_bool(delivered.has_gap);
            }
            Record::Refused(name) => {
                begin(RecordKind::Refused, *name, out);
                out.put_u64(name.client_seq);
            }
            Record::Unanswered(name) => {
                begin(RecordKind::Unanswered, *name, out);
                out.put_u64(name.client_seq);
            }
            Record::End(end) => {
                let End { sent, answered, delivered, refused, unanswered, broadcasts } = *end;
                out.put_u8(RecordKind::End.code());
                let counts = [sent, answered, delivered, refused, unanswered, broadcasts];
                counts.into_iter().for_each(|count| out.put_u64(count));
            }
            Record::Broadcast(one) => {
                out.put_u8(RecordKind::Broadcast.code());
                out.put_u32(one.gateway);
                out.put_u32(one.instrument);
                out.put_u64(one.number);
                out.put_u64(one.output_seq);
                out.put_u64(one.content_hash);
                out.put_bool(one.may_lack);
            }
        }
    }

    /// Reads one from the front.
    ///
    /// # Errors
    /// The field that is not that of a record.
    pub fn read(from: &mut Reader<'_>) -> Result<Record, DecodeError> {
        let kind = RecordKind::from_code("kind", from.u8("kind")?)?;
        let is_about_session = kind != RecordKind::End;
        let (session, instrument) = match is_about_session {
            true => (from.u32("session")?, from.u32("instrument")?),
            false => (0, 0),
        };
        let mut name = || -> Result<RequestId, DecodeError> {
            Ok(RequestId { instrument, session, client_seq: from.u64("client_seq")? })
        };
        Ok(match kind {
            RecordKind::Sent => Record::Sent(Sent {
                name: name()?,
                intended_ns: from.u64("intended_ns")?,
                command_hash: from.u64("command_hash")?,
            }),
            RecordKind::Answered => {
                let name = name()?;
                let (at_ns, output_seq) = (from.u64("at_ns")?, from.u64("output_seq")?);
                let (events_hash, flags) = (from.u64("events_hash")?, from.u8("flags")?);
                if flags & !(REPEATED | EXPIRED | SURPLUS) != 0 {
                    return Err(DecodeError::unknown_code("flags", flags.into()));
                }
                Record::Answered(Answered {
                    name,
                    at_ns,
                    output_seq,
                    events_hash,
                    is_repeated: flags & REPEATED != 0,
                    is_expired: flags & EXPIRED != 0,
                    is_surplus: flags & SURPLUS != 0,
                })
            }
            RecordKind::Delivered => Record::Delivered(Delivered {
                session,
                instrument,
                events: from.u64("events")?,
                events_hash: from.u64("events_hash")?,
                has_gap: from.bool("flags")?,
            }),
            RecordKind::Refused => Record::Refused(name()?),
            RecordKind::Unanswered => Record::Unanswered(name()?),
            RecordKind::End => Record::End(End {
                sent: from.u64("sent")?,
                answered: from.u64("answered")?,
                delivered: from.u64("delivered")?,
                refused: from.u64("refused")?,
                unanswered: from.u64("unanswered")?,
                broadcasts: from.u64("broadcasts")?,
            }),
            RecordKind::Broadcast => Record::Broadcast(Broadcast {
                gateway: session,
                instrument,
                number: from.u64("number")?,
                output_seq: from.u64("output_seq")?,
                content_hash: from.u64("content_hash")?,
                may_lack: from.bool("flags")?,
            }),
        })
    }
}

/// Begins a record that is about a request.
fn begin(kind: RecordKind, name: RequestId, out: &mut Vec<u8>) {
    out.put_u8(kind.code());
    out.put_u32(name.session);
    out.put_u32(name.instrument);
}

/// Writes a client log, in large blocks.
#[derive(Debug)]
pub struct Log {
    file: File,
    bytes: Vec<u8>,
    count: End,
}

impl Log {
    /// Creates the file.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn create(path: &Path) -> Result<Log, Failure> {
        let file = File::create(path).map_err(|error| {
            let message = format!("the client log {} cannot be created: {error}", path.display());
            Failure::new(FailureKind::System, message)
        })?;
        Ok(Log { file, bytes: FORMAT.to_vec(), count: End::default() })
    }

    /// Adds a record.
    ///
    /// # Errors
    /// I/O errors.
    pub fn add(&mut self, record: &Record) -> io::Result<()> {
        record.write(&mut self.bytes);
        self.count.count(record);
        if self.bytes.len() >= WRITE_BYTES { self.flush() } else { Ok(()) }
    }

    /// Adds how many records there are, and writes all of them.
    ///
    /// # Errors
    /// I/O errors.
    pub fn end(mut self) -> io::Result<()> {
        Record::End(self.count).write(&mut self.bytes);
        self.flush()
    }

    /// Writes buffered records.
    ///
    /// # Errors
    /// I/O errors.
    pub fn flush(&mut self) -> io::Result<()> {
        self.file.write_all(&self.bytes)?;
        self.bytes.clear();
        Ok(())
    }
}

/// Why bytes are not a client log. An incomplete log is refused, because it proves nothing.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LogError {
    /// The format or its version is another one.
    #[error("it is no client log of this version")]
    Format,
    /// A record cannot be decoded.
    #[error("it is cut or damaged at byte {at}: {source}")]
    Record {
        /// Offset of the record.
        at: usize,
        /// The field.
        source: DecodeError,
    },
}

/// The records of a client log, oldest first.
///
/// # Errors
/// If it is no client log, or is cut or damaged.
pub fn parse(bytes: &[u8]) -> Result<Vec<Record>, LogError> {
    let rest = bytes.strip_prefix(FORMAT).ok_or(LogError::Format)?;
    let (mut fields, mut records) = (Reader::new(rest), vec![]);
    while !fields.is_empty() {
        let at = bytes.len() - fields.rest().len();
        let record = Record::read(&mut fields);
        records.push(record.map_err(|source| LogError::Record { at, source })?);
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_log_survives_a_round_trip_and_a_cut_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("client-0.log");
        let mut log = Log::create(&path).unwrap();
        let name = |client_seq| RequestId { instrument: 7, session: 9, client_seq };
        let records: Vec<Record> = (1..=40_000)
            .flat_map(|seq| {
                let sent = Sent { name: name(seq), intended_ns: seq * 3, command_hash: !seq };
                let answered = Answered {
                    name: name(seq),
                    at_ns: seq * 5,
                    output_seq: seq,
                    events_hash: seq << 40,
                    is_repeated: seq % 2 == 0,
                    is_expired: seq % 3 == 0,
                    is_surplus: seq % 7 == 0,
                };
                let (session, instrument, events_hash) = (9, 7, seq << 20);
                let has_gap = seq % 5 == 0;
                let delivered =
                    Delivered { session, instrument, events: seq, events_hash, has_gap };
                [Record::Sent(sent), Record::Answered(answered), Record::Delivered(delivered)]
            })
            .collect();
        records.iter().for_each(|record| log.add(record).unwrap());
        log.end().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let (sent, answered, delivered) = (40_000, 40_000, 40_000);
        let end = Record::End(End { sent, answered, delivered, ..End::default() });
        assert_eq!(parse(&bytes), Ok([&records[..], &[end]].concat()));
        let error = parse(&bytes[..bytes.len() - 3]).unwrap_err();
        assert!(error.to_string().contains("at byte"), "{error}");
        assert_eq!(parse(&bytes[2..]), Err(LogError::Format));
        assert!(Log::create(folder.path()).is_err());
    }

    fn round_trip(record: Record) {
        let mut bytes = vec![];
        record.write(&mut bytes);
        let mut reader = Reader::new(&bytes);
        assert_eq!(Record::read(&mut reader), Ok(record));
        assert!(reader.is_empty());
        assert!((0..bytes.len()).all(|end| Record::read(&mut Reader::new(&bytes[..end])).is_err()));
    }

    proptest! {
        #[test]
        fn a_sent_record_survives_a_round_trip(
            (instrument, session, client_seq) in any::<(u32, u32, u64)>(),
            (intended_ns, command_hash) in any::<(u64, u64)>(),
        ) {
            let name = RequestId { instrument, session, client_seq };
            round_trip(Record::Sent(Sent { name, intended_ns, command_hash }));
        }

        #[test]
        fn an_answered_record_survives_a_round_trip(
            (instrument, session, client_seq) in any::<(u32, u32, u64)>(),
            (at_ns, output_seq, events_hash) in any::<(u64, u64, u64)>(),
            (is_repeated, is_expired, is_surplus) in any::<(bool, bool, bool)>(),
        ) {
            let name = RequestId { instrument, session, client_seq };
            round_trip(Record::Answered(Answered {
                name,
                at_ns,
                output_seq,
                events_hash,
                is_repeated,
                is_expired,
                is_surplus,
            }));
        }

        #[test]
        fn a_delivered_record_survives_a_round_trip(
            (session, instrument) in any::<(u32, u32)>(),
            (events, events_hash, has_gap) in any::<(u64, u64, bool)>(),
        ) {
            round_trip(Record::Delivered(Delivered {
                session,
                instrument,
                events,
                events_hash,
                has_gap,
            }));
        }

        #[test]
        fn records_of_refusals_and_of_the_end_survive_a_round_trip(
            (instrument, session, client_seq) in any::<(u32, u32, u64)>(),
            (sent, answered, delivered) in any::<(u64, u64, u64)>(),
            (refused, unanswered, broadcasts) in any::<(u64, u64, u64)>(),
        ) {
            round_trip(Record::Refused(RequestId { instrument, session, client_seq }));
            round_trip(Record::Unanswered(RequestId { instrument, session, client_seq }));
            let end = End { sent, answered, delivered, refused, unanswered, broadcasts };
            round_trip(Record::End(end));
        }

        #[test]
        fn any_bytes_are_a_log_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut file = FORMAT.to_vec();
            file.extend_from_slice(&bytes);
            let _ = parse(&file);
        }
    }
}
