//! Carries batches out again, with the plain book and with the fast one side by side.

use std::collections::HashMap;

use nm_book::book;
use nm_book::codec;
use nm_book::order::{InstrumentId, UserId};
use nm_book::reference::ReferenceBook;
use nm_codec::{FNV1A, fnv1a, fnv1a_on};
use nm_exchange::batch;
use nm_exchange::cell::{Admitted, Cell, Handled, Request, event_recipients};
use nm_exchange::network::Durability;

use crate::load::log::RequestId;

use super::cuts::{Batch, Incarnation};
use super::judge::{Executed, Findings, Violation};

/// A cell that is replayed.
#[derive(Debug)]
pub struct Replay {
    cell: u16,
    /// Whether the state outlives whoever leads; else every term begins with empty books.
    is_kept: bool,
    plain: Cell<ReferenceBook>,
    fast: Cell<book::Book>,
    term: Option<u64>,
    /// Lives so far, the one at hand last; their batches only if they are kept.
    incarnations: Vec<Incarnation>,
    keeps_batches: bool,
    /// What was carried out, in order.
    pub executed: Vec<Executed>,
    /// How many events each session was to be told on each instrument, and their hash.
    pub told: HashMap<(InstrumentId, UserId), (u64, u64)>,
    code: Vec<u8>,
}

impl Replay {
    /// A cell with empty books. `keeps_batches`: what it carries out shall be cut afterwards.
    pub fn new(cell: u16, durability: Durability, keeps_batches: bool) -> Replay {
        let is_kept = durability != Durability::None;
        let accepts_unknown_sessions = durability != Durability::DiskQuorum;
        let (mut plain, mut fast) = (Cell::default(), Cell::default());
        (plain.accepts_unknown_sessions, fast.accepts_unknown_sessions) =
            (accepts_unknown_sessions, accepts_unknown_sessions);
        let incarnations = vec![Incarnation { accepts_unknown_sessions, ..Incarnation::default() }];
        let (term, executed, told, code) = Default::default();
        Replay {
            cell,
            is_kept,
            plain,
            fast,
            term,
            incarnations,
            keeps_batches,
            executed,
            told,
            code,
        }
    }

    /// Begins with a saved cell instead.
    ///
    /// # Errors
    /// A sentence, if it is none.
    pub fn restore(&mut self, saved: Vec<u8>) -> Result<(), String> {
        let accepts_unknown_sessions = self.plain.accepts_unknown_sessions;
        let damaged = |error: nm_exchange::cell::CellLoadError| error.to_string();
        self.plain = Cell::load(&saved).map_err(damaged)?;
        self.fast = Cell::load(&saved).map_err(damaged)?;
        (self.plain.accepts_unknown_sessions, self.fast.accepts_unknown_sessions) =
            (accepts_unknown_sessions, accepts_unknown_sessions);
        self.incarnations = vec![Incarnation {
            start: Some(saved),
            accepts_unknown_sessions,
            ..Incarnation::default()
        }];
        Ok(())
    }

    /// Which cell it is.
    pub fn cell(&self) -> u16 {
        self.cell
    }

    /// Index of the last batch that was carried out.
    pub fn index(&self) -> u64 {
        self.fast.index()
    }

    /// Number of the last request of a session that was handled on an instrument; zero for none.
    pub fn last_request_seq(&self, instrument: InstrumentId, session: UserId) -> u64 {
        self.fast.last_request_seq(instrument, session)
    }

    /// Whether books were lost on the way.
    pub fn lost_state(&self) -> bool {
        self.incarnations.len() > 1
    }

    /// What each life of the cell carried out, if that was to be kept.
    pub fn into_incarnations(self) -> Vec<Incarnation> {
        self.incarnations
    }

    /// Carries a batch out.
    ///
    /// # Errors
    /// A sentence, if its bytes are none.
    pub fn batch(
        &mut self,
        (index, term): (u64, u64),
        bytes: &[u8],
        findings: &mut Findings,
    ) -> Result<(), String> {
        let unreadable = |_| format!("batch {index} of cell {} cannot be read", self.cell);
        if !self.is_kept && self.term.is_some_and(|last| last != term) {
            (self.plain, self.fast) = (Cell::default(), Cell::default());
            (self.plain.accepts_unknown_sessions, self.fast.accepts_unknown_sessions) =
                (true, true);
            self.incarnations
                .push(Incarnation { accepts_unknown_sessions: true, ..Incarnation::default() });
        }
        self.term = Some(term);
        let (time_ns, frames) = batch::decode(bytes).map_err(unreadable)?;
        self.plain.begin(index, time_ns);
        self.fast.begin(index, time_ns);
        findings.batches += 1;
        let mut requests = vec![];
        for frame in frames {
            let frame = frame.map_err(unreadable)?;
            // What carries no command, or is for another cell, is passed over by the network, too.
            let (plain, fast) = (self.plain.admit(&frame), self.fast.admit(&frame));
            debug_assert_eq!(plain, fast);
            let Ok(Admitted::Request(request)) = fast else { continue };
            let (told, code) = (&mut self.told, &mut self.code);
            let handled = self.plain.handle(&request, |event| {
                code.clear();
                codec::write_event(event, code);
                for user in event_recipients(event, request.session) {
                    let (events, hash) =
                        told.entry((request.instrument, user)).or_insert((0, FNV1A));
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
                    format!("{name} in batch {index}: plain book {handled:?}, fast book {fast:?}")
                });
            }
            if let Handled::Executed(outcome) = handled {
                self.executed.push(Executed {
                    name,
                    output_seq: outcome.output_seq,
                    events_hash: outcome.events_hash,
                    command_hash: fnv1a(frame.body),
                    index,
                    life: self.incarnations.len() as u64,
                });
            }
        }
        if let Some(life) = self.incarnations.last_mut().filter(|_| self.keeps_batches) {
            life.batches.push(Batch { index, time_ns, requests });
        }
        Ok(())
    }

    /// Compares the states of both books with each other, and with those that replicas wrote down:
    /// who, and the hash.
    pub fn compare(&self, recorded: &[(String, u64)], findings: &mut Findings) {
        let (plain, fast) = (self.plain.hash(), self.fast.hash());
        let (cell, index) = (self.cell, self.plain.index());
        findings.hashes += 1 + recorded.len() as u64;
        if plain != fast {
            findings.add(Violation::HashDiffers, || {
                format!("cell {cell} after batch {index}: plain {plain:016x}, fast {fast:016x}")
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
