//! The journal: records in order on disk, in files of one size. The files are filled with zeros
//! before they are used, or were used before, so that a sync writes data and no metadata.
//!
//! Records are appended to a buffer; [`Journal::sync`] writes all of them at once and waits for the
//! disk once. What a crash left half written at the end is cut off when the journal is opened.
//! Damage before the end is an error, because acknowledged records would be missing (see
//! [`mod@format`] and `watermark` for how the two are distinguished).
//!
//! After a failed write or sync, the journal accepts nothing any more. The content of the disk is
//! then unknown. It stays so for the next process, to which the system shows what the disk may
//! lack. So whoever opens a journal writes again, and syncs, what the disk is not known to have.

mod error;
pub mod format;
mod reader;
mod record;
mod recorder;
mod spare;
#[cfg(test)]
pub(crate) mod testing;
mod watermark;
mod writer;

pub(crate) use error::disk_full_hint;
pub use error::{Damage, JournalError};
pub use reader::Reader;
pub(crate) use reader::last_record;
pub use record::{Found, Record, RecordKind, Settings};
pub use recorder::Recorder;
pub use writer::Journal;
