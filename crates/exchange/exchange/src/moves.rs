//! Live moves of instruments: how the state of an instrument goes to another cell while it is
//! traded, and the messages for that.
//!
//! ```text
//! control ─order→ source                      a move is logged: instrument, new cell, epoch
//!                 source ─parts→ destination  a copy of the instrument, then the requests that
//!                                             were executed since; both in the destination's log
//! source's log: release                       the source has caught up; it executes none any more
//!                 source ─last part→          what was executed until then, and the end
//! destination's log: end                      history equal: the destination owns the instrument
//!                 destination ─ended→ a router → gateways, which send it what waits
//!                                     → control, which logs the new map
//! source's log: forget                        by the new map; the last state is dropped
//! ```
//!
//! **Nothing is lost, doubled or reordered.** Which cell executes requests on an instrument is
//! decided in the logs of the cells alone ([`crate::cell`]): the source executes none behind the
//! release, the destination none before the end, and the end has the sequence numbers and outcomes
//! of every session. A gateway keeps each request until it is answered, so one that reaches a cell
//! at the wrong time is dropped there and sent again. Maps and announcements only decide how soon.
//!
//! **Pause.** Requests wait from the release until the gateways have the announcement: a commit in
//! the new cell and a few hops. The copy and all but the last requests are sent before.
//!
//! **Pacing.** Each step takes CPU time that requests on other instruments wait for. So a copy is
//! sent in small frames with pauses, and the release and the last entry of control's log come a
//! millisecond after what precedes them.
//!
//! **Refusals.** A destination decides once for each move, by its log, whether it has room. The
//! source releases only what was accepted and has arrived, so a refused instrument is never without
//! owner.
//!
//! **Crashes.** Control orders the move again every 200 ms until it has ended. An attempt without
//! progress is given up for another one, after a time that doubles. A new leader of the
//! source begins another [`Attempt`], from the released state if there is one; the first part of an
//! attempt discards what came of another. Who has adopted the instrument says so again. Each step
//! names the epoch of the move, which rises with each move of an instrument, and has no effect if
//! a later one was seen.

use std::fmt;

use nm_book::order::InstrumentId;
use nm_codec::{DecodeError, Put, Reader, codes};

use crate::wire::{self, FrameKind, Header};

/// One change of the owner of an instrument.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MoveId {
    /// Which instrument.
    pub instrument: InstrumentId,
    /// Number of the change; rises with each one.
    pub epoch: u32,
}

impl MoveId {
    /// A header of this kind, for a cell.
    fn header(self, kind: FrameKind, cell: u16) -> Header {
        let MoveId { instrument, epoch } = self;
        Header { instrument, cell, map_version: epoch, ..Header::new(kind) }
    }

    fn of(header: &Header) -> MoveId {
        MoveId { instrument: header.instrument, epoch: header.map_version }
    }
}

/// Identifies one transfer of an instrument's state: two leaders of the source never have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attempt(pub u64);

/// Why a cell does not take an instrument.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MoveRefusal {
    /// The cell has as many instruments as it may have.
    TooManyCellInstruments,
    /// The cell has as many pairs of instrument and session as it may have.
    TooManyCellSessions,
    /// What came is not what the source has; it is sent again.
    Damaged,
}

codes!(MoveRefusal { TooManyCellInstruments = 0, TooManyCellSessions = 1, Damaged = 2 });

impl fmt::Display for MoveRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MoveRefusal::TooManyCellInstruments => {
                "the new cell has as many instruments as it may have (TooManyCellInstruments)"
            }
            MoveRefusal::TooManyCellSessions => {
                "the new cell has as many sessions as it may have (TooManyCellSessions)"
            }
            MoveRefusal::Damaged => "what came to the new cell is not what the old one has",
        })
    }
}

impl MoveRefusal {
    /// Whether the same move would be refused again.
    pub fn is_lasting(self) -> bool {
        self != MoveRefusal::Damaged
    }
}

/// Control asks the leader of a cell to move an instrument to another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoveOrder {
    /// The move.
    pub id: MoveId,
    /// The cell that has the instrument.
    pub from: u16,
    /// The cell that gets it.
    pub to: u16,
}

impl MoveOrder {
    /// Appends its frame.
    pub fn write(&self, out: &mut Vec<u8>) {
        let header = self.id.header(FrameKind::MoveOrder, self.from);
        wire::write(&header, &self.to.to_le_bytes(), 0, out);
    }

    /// The message of a header and a body.
    ///
    /// # Errors
    /// If the body is not a cell.
    pub fn decode(header: &Header, body: &[u8]) -> Result<MoveOrder, DecodeError> {
        Ok(MoveOrder { id: MoveId::of(header), from: header.cell, to: read_cell(body)? })
    }
}

fn read_cell(body: &[u8]) -> Result<u16, DecodeError> {
    let mut reader = Reader::new(body);
    let cell = reader.u16("cell")?;
    reader.finish("cell")?;
    Ok(cell)
}

/// Entry of the source's log: it does not execute requests on the instrument any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Release {
    /// The move.
    pub id: MoveId,
    /// The cell that gets the instrument.
    pub to: u16,
}

impl Release {
    /// Appends its frame, for the log of a cell.
    pub fn write(&self, cell: u16, out: &mut Vec<u8>) {
        let header = self.id.header(FrameKind::Release, cell);
        wire::write(&header, &self.to.to_le_bytes(), 0, out);
    }

    /// The entry of a header and a body.
    ///
    /// # Errors
    /// If the body is not a cell.
    pub fn decode(header: &Header, body: &[u8]) -> Result<Release, DecodeError> {
        Ok(Release { id: MoveId::of(header), to: read_cell(body)? })
    }
}

/// Entry of the source's log: the new cell has the instrument, its last state is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forget(pub MoveId);

impl Forget {
    /// Appends its frame, for the log of a cell.
    pub fn write(&self, cell: u16, out: &mut Vec<u8>) {
        wire::write(&self.0.header(FrameKind::Forget, cell), &[], 0, out);
    }

    /// The entry of a header.
    pub fn decode(header: &Header) -> Forget {
        Forget(MoveId::of(header))
    }
}

/// Entry of a cell's log: the map gives it an instrument of which it knows nothing, because its
/// replicas lost their memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim(pub MoveId);

impl Claim {
    /// Appends its frame, for the log of a cell.
    pub fn write(&self, cell: u16, out: &mut Vec<u8>) {
        wire::write(&self.0.header(FrameKind::Claim, cell), &[], 0, out);
    }

    /// The entry of a header.
    pub fn decode(header: &Header) -> Claim {
        Claim(MoveId::of(header))
    }
}

/// Header of a frame with parts of an instrument; an entry of the destination's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoveParts {
    /// The move.
    pub id: MoveId,
    /// The cell that sends them.
    pub from: u16,
    /// The cell that gets them.
    pub to: u16,
    /// The transfer that they belong to.
    pub attempt: Attempt,
    /// Number of the frame in it, from 0 on.
    pub number: u64,
}

impl MoveParts {
    /// Appends a frame with parts.
    pub fn write(&self, parts: &[u8], out: &mut Vec<u8>) {
        let header = Header {
            gateway: self.from,
            client_seq: self.attempt.0,
            previous_seq: self.number,
            ..self.id.header(FrameKind::MoveParts, self.to)
        };
        wire::write(&header, parts, 0, out);
    }

    /// The message of a header; the parts are in the body.
    pub fn decode(header: &Header) -> MoveParts {
        MoveParts {
            id: MoveId::of(header),
            from: header.gateway,
            to: header.cell,
            attempt: Attempt(header.client_seq),
            number: header.previous_seq,
        }
    }
}

/// The destination tells the source how far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoveProgress {
    /// The move.
    pub id: MoveId,
    /// The cell that sends the instrument.
    pub from: u16,
    /// The transfer.
    pub attempt: Attempt,
    /// Number of the next frame with parts that it expects.
    pub next: u64,
    /// Why it takes no more.
    pub refusal: Option<MoveRefusal>,
}

impl MoveProgress {
    /// Appends its frame.
    pub fn write(&self, out: &mut Vec<u8>) {
        let header = Header {
            client_seq: self.attempt.0,
            previous_seq: self.next,
            ..self.id.header(FrameKind::MoveProgress, self.from)
        };
        let refusal = self.refusal.map(|refusal| [refusal.code()]);
        wire::write(&header, refusal.as_ref().map_or(&[], |code| &code[..]), 0, out);
    }

    /// The message of a header and a body.
    ///
    /// # Errors
    /// If the body is neither empty nor a refusal.
    pub fn decode(header: &Header, body: &[u8]) -> Result<MoveProgress, DecodeError> {
        Ok(MoveProgress {
            id: MoveId::of(header),
            from: header.cell,
            attempt: Attempt(header.client_seq),
            next: header.previous_seq,
            refusal: read_refusal(body)?,
        })
    }
}

fn read_refusal(body: &[u8]) -> Result<Option<MoveRefusal>, DecodeError> {
    if body.is_empty() {
        return Ok(None);
    }
    let mut reader = Reader::new(body);
    let refusal = MoveRefusal::from_code("refusal", reader.u8("refusal")?)?;
    reader.finish("refusal")?;
    Ok(Some(refusal))
}

/// A cell has adopted an instrument, or a move was refused: for gateways and control.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoveEnded {
    /// The move.
    pub id: MoveId,
    /// The cell that has the instrument now; where the move was refused, the one that should have
    /// got it.
    pub cell: u16,
    /// Why it was refused, if it was.
    pub refusal: Option<MoveRefusal>,
}

impl MoveEnded {
    /// Appends its frame.
    pub fn write(&self, out: &mut Vec<u8>) {
        let refusal = self.refusal.map(|refusal| [refusal.code()]);
        let body = refusal.as_ref().map_or(&[][..], |code| &code[..]);
        wire::write(&self.id.header(FrameKind::MoveEnded, self.cell), body, 0, out);
    }

    /// The message of a header and a body.
    ///
    /// # Errors
    /// If the body is neither empty nor a refusal.
    pub fn decode(header: &Header, body: &[u8]) -> Result<MoveEnded, DecodeError> {
        let (id, cell) = (MoveId::of(header), header.cell);
        Ok(MoveEnded { id, cell, refusal: read_refusal(body)? })
    }
}

/// What an instrument was when a copy of it was begun, beside sessions and book.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyStart {
    /// Sequence number of the last request that was executed.
    pub output_seq: u64,
    /// Sequence number of the last broadcast event.
    pub public_seq: u64,
    /// Hash of the history.
    pub history: u64,
    /// How many sessions there were.
    pub sessions: u32,
}

/// A part of an instrument that is sent to another cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part<'a> {
    /// First of all: what the instrument was when the copy was begun.
    Start(CopyStart),
    /// Saved sessions.
    Sessions(&'a [u8]),
    /// The next bytes of the saved book.
    Book(&'a [u8]),
    /// The saved book is complete.
    BookEnd,
    /// A request that was executed after the start.
    Request {
        /// The time of its batch, ns since 1970.
        now_ns: u64,
        /// Header of its frame.
        header: Header,
        /// Body of its frame.
        body: &'a [u8],
    },
    /// Last of all: what the instrument was when it was released.
    End {
        /// Time of the source cell, ns since 1970.
        now_ns: u64,
        /// Sequence number of the last request that was executed.
        output_seq: u64,
        /// Sequence number of the last broadcast event.
        public_seq: u64,
        /// Hash of the history.
        history: u64,
    },
}

/// The codes of parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PartCode {
    Start,
    Sessions,
    Book,
    BookEnd,
    Request,
    End,
}

codes!(PartCode { Start = 0, Sessions = 1, Book = 2, BookEnd = 3, Request = 4, End = 5 });

impl<'a> Part<'a> {
    /// Appends its bytes.
    pub fn write(&self, out: &mut Vec<u8>) {
        let mut put = |code: PartCode, length: usize| {
            out.put_u8(code.code());
            out.put_u32(length as u32);
        };
        match *self {
            Part::Start(CopyStart { output_seq, public_seq, history, sessions }) => {
                put(PartCode::Start, 28);
                out.put_u64s(&[output_seq, public_seq, history]);
                out.put_u32(sessions);
            }
            Part::Sessions(bytes) => {
                put(PartCode::Sessions, bytes.len());
                out.put(bytes);
            }
            Part::Book(bytes) => {
                put(PartCode::Book, bytes.len());
                out.put(bytes);
            }
            Part::BookEnd => put(PartCode::BookEnd, 0),
            Part::Request { now_ns, header, body } => {
                // Padding and timestamps are of no use to a state.
                let header = Header { flags: header.flags & !wire::STAMPED, ..header };
                put(PartCode::Request, 8 + wire::least_bytes(&header, body));
                out.put_u64(now_ns);
                wire::write(&header, body, 0, out);
            }
            Part::End { now_ns, output_seq, public_seq, history } => {
                put(PartCode::End, 32);
                out.put_u64s(&[now_ns, output_seq, public_seq, history]);
            }
        }
    }

    /// The parts of a body, in order; an error is the last item.
    pub fn all(body: &'a [u8]) -> Parts<'a> {
        Parts { reader: Reader::new(body) }
    }

    /// The start, if it is the first part of a body.
    ///
    /// # Errors
    /// If the first part cannot be decoded.
    pub fn start(body: &'a [u8]) -> Result<Option<CopyStart>, DecodeError> {
        match Part::all(body).next().transpose()? {
            Some(Part::Start(start)) => Ok(Some(start)),
            _ => Ok(None),
        }
    }

    /// The first part of a body, and how many bytes it has.
    ///
    /// # Errors
    /// If it cannot be decoded.
    pub fn first(body: &'a [u8]) -> Result<(Part<'a>, usize), DecodeError> {
        let mut reader = Reader::new(body);
        let part = Part::read(&mut reader)?;
        Ok((part, body.len() - reader.rest().len()))
    }

    fn read(reader: &mut Reader<'a>) -> Result<Part<'a>, DecodeError> {
        let code = PartCode::from_code("part", reader.u8("part")?)?;
        let length = reader.u32("length")? as usize;
        let mut of = Reader::new(reader.bytes("part", length)?);
        let part = match code {
            PartCode::Start => Part::Start(CopyStart {
                output_seq: of.u64("output_seq")?,
                public_seq: of.u64("public_seq")?,
                history: of.u64("history")?,
                sessions: of.u32("sessions")?,
            }),
            PartCode::Sessions => return Ok(Part::Sessions(of.rest())),
            PartCode::Book => return Ok(Part::Book(of.rest())),
            PartCode::BookEnd => Part::BookEnd,
            PartCode::Request => {
                let now_ns = of.u64("now_ns")?;
                let frame = wire::read(of.rest())?.ok_or(DecodeError::truncated("request"))?;
                if frame.header.kind != FrameKind::Request {
                    return Err(DecodeError::invalid("kind", "is not that of a request"));
                }
                return Ok(Part::Request { now_ns, header: frame.header, body: frame.body });
            }
            PartCode::End => Part::End {
                now_ns: of.u64("now_ns")?,
                output_seq: of.u64("output_seq")?,
                public_seq: of.u64("public_seq")?,
                history: of.u64("history")?,
            },
        };
        of.finish("part")?;
        Ok(part)
    }
}

/// The parts of a frame.
#[derive(Debug, Clone)]
pub struct Parts<'a> {
    reader: Reader<'a>,
}

impl<'a> Iterator for Parts<'a> {
    type Item = Result<Part<'a>, DecodeError>;

    fn next(&mut self) -> Option<Result<Part<'a>, DecodeError>> {
        if self.reader.is_empty() {
            return None;
        }
        let part = Part::read(&mut self.reader);
        if part.is_err() {
            self.reader = Reader::new(&[]);
        }
        Some(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(write: impl Fn(&mut Vec<u8>)) -> (Header, Vec<u8>) {
        let mut bytes = vec![];
        write(&mut bytes);
        let frame = wire::read(&bytes).unwrap().unwrap();
        (frame.header, frame.body.to_vec())
    }

    proptest! {
        #[test]
        fn messages_are_read_back(
            numbers: [u64; 2], ids: [u32; 2], cells: [u16; 2],
            refusal in prop::option::of(prop::sample::select(MoveRefusal::ALL)),
        ) {
            let id = MoveId { instrument: ids[0], epoch: ids[1] };
            let [from, to] = cells;
            let [attempt, next] = [Attempt(numbers[0]), Attempt(numbers[1])];
            let order = MoveOrder { id, from, to };
            let (header, body) = frame(|out| order.write(out));
            prop_assert_eq!(MoveOrder::decode(&header, &body), Ok(order));
            prop_assert!(MoveOrder::decode(&header, &[]).is_err());
            let release = Release { id, to };
            let (header, body) = frame(|out| release.write(from, out));
            prop_assert_eq!(Release::decode(&header, &body), Ok(release));
            let (header, _) = frame(|out| Forget(id).write(from, out));
            prop_assert_eq!(Forget::decode(&header), Forget(id));
            let (header, _) = frame(|out| Claim(id).write(from, out));
            prop_assert_eq!(Claim::decode(&header), Claim(id));
            let progress = MoveProgress { id, from, attempt, next: next.0, refusal };
            let (header, body) = frame(|out| progress.write(out));
            prop_assert_eq!(MoveProgress::decode(&header, &body), Ok(progress));
            prop_assert!(MoveProgress::decode(&header, &[0, 0]).is_err());
            let ended = MoveEnded { id, cell: to, refusal };
            let (header, body) = frame(|out| ended.write(out));
            prop_assert_eq!(MoveEnded::decode(&header, &body), Ok(ended));
            let parts = MoveParts { id, from, to, attempt, number: next.0 };
            let (header, _) = frame(|out| parts.write(b"parts", out));
            prop_assert_eq!(MoveParts::decode(&header), parts);
        }

        #[test]
        fn parts_are_read_back(
            numbers: [u64; 4], sessions: u32,
            bytes in prop::collection::vec(any::<u8>(), 0..90),
            flags: u16,
        ) {
            let [output_seq, public_seq, history, now_ns] = numbers;
            let header = Header { flags, client_seq: now_ns, ..Header::new(FrameKind::Request) };
            let parts = [
                Part::Start(CopyStart { output_seq, public_seq, history, sessions }),
                Part::Sessions(&bytes),
                Part::Book(&bytes),
                Part::BookEnd,
                Part::Request { now_ns, header, body: &bytes },
                Part::End { now_ns, output_seq, public_seq, history },
            ];
            let mut written = vec![];
            parts.iter().for_each(|part| part.write(&mut written));
            let read: Result<Vec<Part<'_>>, DecodeError> = Part::all(&written).collect();
            let mut expected = parts.to_vec();
            let header = Header { flags: flags & !wire::STAMPED, ..header };
            expected[4] = Part::Request { now_ns, header, body: &bytes };
            prop_assert_eq!(read, Ok(expected));
            prop_assert!(Part::all(&written[..written.len() - 1]).any(|part| part.is_err()));
            let _ = Part::all(&bytes).count();
        }
    }
}
