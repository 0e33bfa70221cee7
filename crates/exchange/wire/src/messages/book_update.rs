//! A book has changed, for those who follow it.

use nm_book::order::{Command, Event, InstrumentId, Matching};

crate::message! {
    /// A request was executed, or a session was retired: what the book of an instrument executed.
    /// Who executes the same has the same book. Each names the one before it by its history, so
    /// those of several replicas make one sequence, whoever leads the cell.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct BookUpdate;
    head {
        /// Instrument.
        instrument: InstrumentId,
        /// Cell that executed it.
        cell: u16,
        /// Sequence number of the request among all that were executed on the instrument; of the
        /// last one, if a session was retired.
        output_seq: u64,
        /// Time of the request's batch, ns since 1970.
        now_ns: u64,
        /// When the gateway received the request, ns on the monotonic clock of its host; 0 if the
        /// frame of the request has no timestamps.
        received_ns: u64,
        /// Hash of all that the instrument had executed before.
        previous_history: u64,
        /// The same with this.
        history: u64,
        /// Whether a session was retired: its orders are cancelled, and nothing else happens. So
        /// no order expires, and pegged ones move with the next command.
        is_retirement: bool,
    }
    tail {
        /// What the book executed; nothing if the request was rejected before it came to the book.
        command: Option<Command>,
    }
}

impl BookUpdate {
    /// Does to a book what it says.
    pub fn execute(&self, book: &mut impl Matching, emit: &mut impl FnMut(Event)) {
        match &self.command {
            Some(Command::MassCancel { user }) if self.is_retirement => {
                book.cancel_all_of(*user, emit);
            }
            Some(command) => book.apply(command, self.now_ns, emit),
            None => {}
        }
    }
}
