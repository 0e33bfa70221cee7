//! Applies the batches of a journal with the reference book and the fast one, side by side.

use std::collections::HashMap;

use nm_book::book;
use nm_book::codec;
use nm_book::order::{InstrumentId, UserId};
use nm_book::reference::ReferenceBook;
use nm_codec::{DecodeError, FNV1A, fnv1a, fnv1a_on};
use nm_exchange::batch;
use nm_exchange::cell::{Admitted, Cell, CellLoadError, Handled, Request, event_recipients};
use nm_exchange::network::Durability;
use thiserror::Error;

use crate::load::log::RequestId;

use super::cuts::{Batch, Incarnation};
use super::judge::{Executed, Findings, Violation};

/// A batch that cannot be decoded.
#[derive(Debug, Error)]
#[error("batch {index} of cell {cell} cannot be decoded: {source}")]
pub struct BatchError {
    /// Number of the cell.
    pub cell: u16,
    /// Index of the batch.
    pub index: u64,
    /// The field.
    pub source: DecodeError,
}

/// The replay of a cell.
#[derive(Debug)]
pub struct Replay {
    cell: u16,
    /// Whether the state survives a change of leader; otherwise every term starts with empty books.
    is_kept: bool,
    reference: Cell<ReferenceBook>,
    fast: Cell<book::Book>,
    term: Option<u64>,
    /// Incarnations so far, the current one last; with their batches only if these are kept.
    incarnations: Vec<Incarnation>,
    keeps_batches: bool,
    /// Executed requests, in order.
    pub executed: Vec<Executed>,
    /// Number of events for each session on each instrument, and their hash.
    pub delivered: HashMap<(InstrumentId, UserId), (u64, u64)>,
    code: Vec<u8>,
}

impl Replay {
    /// A cell with empty books. `keeps_batches`: keep the batches, to replay from snapshots later.
    pub fn new(cell: u16, durability: Durability, keeps_batches: bool) -> Replay {
        let is_kept = durability != Durability::None;
        let accepts_unknown_sessions = durability != Durability::DiskQuorum;
        let (mut reference, mut fast) = (Cell::default(), Cell::default());
        (reference.accepts_unknown_sessions, fast.accepts_unknown_sessions) =
            (accepts_unknown_sessions, accepts_unknown_sessions);
        let incarnations = vec![Incarnation { accepts_unknown_sessions, ..Incarnation::default() }];
        let (term, executed, delivered, code) = Default::default();
        Replay {
            cell,
            is_kept,
            reference,
            fast,
            term,
            incarnations,
            keeps_batches,
            executed,
            delivered,
            code,
        }
    }

    /// Starts from a snapshot instead.
    ///
    /// # Errors
    /// If it is no snapshot of a cell.
    pub fn restore(&mut self, saved: Vec<u8>) -> Result<(), CellLoadError> {
        let accepts_unknown_sessions = self.reference.accepts_unknown_sessions;
        self.reference = Cell::load(&saved)?;
        self.fast = Cell::load(&saved)?;
        (self.reference.accepts_unknown_sessions, self.fast.accepts_unknown_sessions) =
            (accepts_unknown_sessions, accepts_unknown_sessions);
        self.incarnations = vec![Incarnation {
            start: Some(saved),
            accepts_unknown_sessions,
            ..Incarnation::default()
        }];
        Ok(())
    }

    /// Number of the cell.
    pub fn cell(&self) -> u16 {
        self.cell
    }

    /// Index of the last applied batch.
    pub fn index(&self) -> u64 {
        self.fast.index()
    }

    /// Number of the last executed request of a session on an instrument; zero for none.
    pub fn last_request_seq(&self, instrument: InstrumentId, session: UserId) -> u64 {
        self.fast.last_request_seq(instrument, session)
    }

    /// Whether books were lost during the run.
    pub fn lost_state(&self) -> bool {
        self.incarnations.len() > 1
    }

    /// The incarnations of the cell, with their batches if these were kept.
    pub fn into_incarnations(self) -> Vec<Incarnation> {
        self.incarnations
    }

    /// Applies a batch.
    ///
    /// # Errors
    /// If it cannot be decoded.
    pub fn batch(
        &mut self,
        (index, term): (u64, u64),
        bytes: &[u8],
        findings: &mut Findings,
    ) -> Result<(), BatchError> {
        let cell = self.cell;
        let undecodable = |source| BatchError { cell, index, source };
        if !self.is_kept && self.term.is_some_and(|last| last != term) {
            (self.reference, self.fast) = (Cell::default(), Cell::default());
            (self.reference.accepts_unknown_sessions, self.fast.accepts_unknown_sessions) =
                (true, true);
            self.incarnations
                .push(Incarnation { accepts_unknown_sessions: true, ..Incarnation::default() });
        }
        self.term = Some(term);
        let (time_ns, frames) = batch::decode(bytes).map_err(undecodable)?;
        self.reference.begin(index, time_ns);
        self.fast.begin(index, time_ns);
        findings.batches += 1;
        let mut requests = vec![];
        for frame in frames {
            let frame = frame.map_err(undecodable)?;
            // Frames without a command, or for another cell, are skipped by the network as well.
            let (reference, fast) = (self.reference.admit(&frame), self.fast.admit(&frame));
            debug_assert_eq!(reference, fast);
            let Ok(Admitted::Request(request)) = fast else { continue };
            let (delivered, code) = (&mut self.delivered, &mut self.code);
            let handled = self.reference.handle(&request, |event| {
                code.clear();
                codec::write_event(event, code);
                for user in event_recipients(event, request.session) {
                    let (events, hash) =
                        delivered.entry((request.instrument, user)).or_insert((0, FNV1A));
                    (*events, *hash) = (*events + 1, fnv1a_on(*hash, code));
                }
            });
            let fast = self.fast.handle(&request, |_| {});
            if self.keeps_batches {
                requests.push(request);
            }
            let Request { instrument, session, client_seq, .. } = request;
            let name = RequestId { instrument, session, client_seq };
            if handled != fast {
                findings.add(Violation::HashDiffers, || {
                    format!(
                        "{name} in batch {index}: reference book {handled:?}, fast book {fast:?}"
                    )
                });
            }
            if let Handled::Executed(outcome) = handled {
                self.executed.push(Executed {
                    name,
                    output_seq: outcome.output_seq,
                    events_hash: outcome.events_hash,
                    command_hash: fnv1a(frame.body),
                    index,
                    incarnation: self.incarnations.len() as u64,
                });
            }
        }
        if let Some(incarnation) = self.incarnations.last_mut().filter(|_| self.keeps_batches) {
            incarnation.batches.push(Batch { index, time_ns, requests });
        }
        Ok(())
    }

    /// Compares the states of both books with each other, and with the hashes that replicas
    /// recorded.
    pub fn compare(&self, recorded: &[(String, u64)], findings: &mut Findings) {
        let (reference, fast) = (self.reference.hash(), self.fast.hash());
        let (cell, index) = (self.cell, self.reference.index());
        findings.hashes += 1 + recorded.len() as u64;
        if reference != fast {
            findings.add(Violation::HashDiffers, || {
                format!(
                    "cell {cell} after batch {index}: reference {reference:016x}, fast {fast:016x}"
                )
            });
        }
        for (who, recorded) in recorded.iter().filter(|(_, recorded)| *recorded != fast) {
            findings.add(Violation::HashDiffers, || {
                format!(
                    "cell {cell} after batch {index}: {fast:016x}, and {who} had {recorded:016x}"
                )
            });
        }
    }
}
