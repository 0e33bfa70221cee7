//! The client log: requests sent, replies and events received, as the clients saw them. `exchange
//! verify` compares it with the journals of the network.
//!
//! ```text
//! "nmclnt01", then records: kind u8, then
//!  1 sent      session u32, instrument u32, client_seq u64, intended_ns u64, command_hash u64
//!  2 answered  session u32, instrument u32, client_seq u64, at_ns u64, output_seq u64,
//!              events_hash u64, flags u8 (1: repeated, 2: the outcome has expired)
//!  3 delivered session u32, instrument u32, events u64, events_hash u64, flags u8 (1: with a gap
//!              that no replica could fill)
//! ```

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use nm_book::codec;
use nm_book::order::{Command, InstrumentId, UserId};
use nm_codec::fnv1a;
use nm_codec::{Fields, Meaningless};
use nm_model::agent::{Failure, FailureKind};

/// First bytes of a file, with the version.
const FORMAT: &[u8; 8] = b"nmclnt01";

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
    pub is_forgotten: bool,
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

/// A record of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record {
    /// Sent.
    Sent(Sent),
    /// Answered.
    Answered(Answered),
    /// Delivered.
    Delivered(Delivered),
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
        let (kind, session, instrument) = match self {
            Record::Sent(Sent { name, .. }) => (1, name.session, name.instrument),
            Record::Answered(Answered { name, .. }) => (2, name.session, name.instrument),
            Record::Delivered(told) => (3, told.session, told.instrument),
        };
        out.push(kind);
        out.extend_from_slice(&session.to_le_bytes());
        out.extend_from_slice(&instrument.to_le_bytes());
        match self {
            Record::Sent(sent) => {
                codec::put(out, &[sent.name.client_seq, sent.intended_ns, sent.command_hash]);
            }
            Record::Answered(answered) => {
                let Answered { at_ns, output_seq, events_hash, .. } = *answered;
                codec::put(out, &[answered.name.client_seq, at_ns, output_seq, events_hash]);
                out.push(u8::from(answered.is_repeated) | u8::from(answered.is_forgotten) << 1);
            }
            Record::Delivered(told) => {
                codec::put(out, &[told.events, told.events_hash]);
                out.push(u8::from(told.has_gap));
            }
        }
    }

    /// Reads one from the front.
    ///
    /// # Errors
    /// If the bytes are none.
    pub fn read(fields: &mut Fields<'_>) -> Result<Record, Meaningless> {
        let kind = fields.u8()?;
        let (session, instrument) = (fields.u32()?, fields.u32()?);
        if kind == 3 {
            let (events, events_hash, flags) = (fields.u64()?, fields.u64()?, fields.u8()?);
            if flags > 1 {
                return Err(Meaningless);
            }
            let has_gap = flags == 1;
            return Ok(Record::Delivered(Delivered {
                session,
                instrument,
                events,
                events_hash,
                has_gap,
            }));
        }
        let name = RequestId { instrument, session, client_seq: fields.u64()? };
        match kind {
            1 => Ok(Record::Sent(Sent {
                name,
                intended_ns: fields.u64()?,
                command_hash: fields.u64()?,
            })),
            2 => {
                let (at_ns, output_seq, events_hash) =
                    (fields.u64()?, fields.u64()?, fields.u64()?);
                let flags = fields.u8()?;
                if flags > 3 {
                    return Err(Meaningless);
                }
                let (is_repeated, is_forgotten) = (flags & 1 != 0, flags & 2 != 0);
                Ok(Record::Answered(Answered {
                    name,
                    at_ns,
                    output_seq,
                    events_hash,
                    is_repeated,
                    is_forgotten,
                }))
            }
            _ => Err(Meaningless),
        }
    }
}

/// Writes a client log, in large blocks.
#[derive(Debug)]
pub struct Log {
    file: File,
    bytes: Vec<u8>,
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
        Ok(Log { file, bytes: FORMAT.to_vec() })
    }

    /// Adds a record.
    ///
    /// # Errors
    /// What the system says.
    pub fn add(&mut self, record: &Record) -> io::Result<()> {
        record.write(&mut self.bytes);
        if self.bytes.len() >= WRITE_BYTES { self.flush() } else { Ok(()) }
    }

    /// Writes buffered records.
    ///
    /// # Errors
    /// What the system says.
    pub fn flush(&mut self) -> io::Result<()> {
        self.file.write_all(&self.bytes)?;
        self.bytes.clear();
        Ok(())
    }
}

/// The records of a client log, oldest first.
///
/// # Errors
/// A sentence, if it is none, or is cut or damaged: an incomplete log proves nothing.
pub fn parse(bytes: &[u8]) -> Result<Vec<Record>, String> {
    let rest = bytes.strip_prefix(FORMAT).ok_or("it is no client log of this version")?;
    let (mut fields, mut records) = (Fields(rest), vec![]);
    while !fields.0.is_empty() {
        let at = bytes.len() - fields.0.len();
        let record = Record::read(&mut fields);
        records.push(record.map_err(|_| format!("it is cut or damaged at byte {at}"))?);
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
                    is_forgotten: seq % 3 == 0,
                };
                let (session, instrument, events_hash) = (9, 7, seq << 20);
                let has_gap = seq % 5 == 0;
                let told = Delivered { session, instrument, events: seq, events_hash, has_gap };
                [Record::Sent(sent), Record::Answered(answered), Record::Delivered(told)]
            })
            .collect();
        records.iter().for_each(|record| log.add(record).unwrap());
        log.flush().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(parse(&bytes), Ok(records));
        assert!(parse(&bytes[..bytes.len() - 3]).unwrap_err().contains("at byte"));
        assert!(parse(&bytes[2..]).is_err());
        assert!(Log::create(folder.path()).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_log_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut file = FORMAT.to_vec();
            file.extend_from_slice(&bytes);
            let _ = parse(&file);
        }
    }
}
