//! What an end of a link knows, so that two versions of nearmetal can run in one network.

use std::sync::OnceLock;

use thiserror::Error;

use crate::document::digest_of;
use crate::row::{Party, Row};
use crate::{message, record};

record! {
    /// A message that the sender knows.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct KnownMessage {
        /// Its code.
        code: u8,
        /// Digest of its code, its name and its fields.
        digest: u64,
    }
}

message! {
    /// Before a `Hello`, or before the `Welcome` that answers one with another digest: which
    /// messages the sender knows. So two ends with different formats may be linked, if the messages
    /// that both know are the same. Those that one of them lacks are not sent to it. A client need
    /// not send it; then its digest must be the node's.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Format;
    head {}
    tail {
        /// Which nearmetal the sender is, of at most 40 bytes.
        program: String,
        /// The messages that it knows.
        messages: Vec<KnownMessage>,
    }
}

/// Longest name of a program that is believed, bytes.
const PROGRAM_BYTES_MAX: usize = 40;

/// The messages that both ends of a link know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Common([u64; 4]);

impl Common {
    /// Whether both know the message with this code.
    #[inline]
    pub fn has(&self, code: u8) -> bool {
        self.0[usize::from(code >> 6)] >> (code & 63) & 1 == 1
    }
}

/// Why two formats cannot be used together: the first message, in the order of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Difference {
    /// Both know it, and it has other bytes.
    #[error("{0} differs")]
    Changed(&'static str),
    /// One of them lacks it, although it stands in logs of cells, which all replicas read.
    #[error("{0}, which stands in the logs of cells, is missing")]
    NotInLog(&'static str),
}

impl Format {
    /// That of these messages.
    pub fn of(program: &str, rows: &[Row]) -> Format {
        let known = |row: &Row| KnownMessage { code: row.code, digest: digest_of(&[*row]) };
        Format { program: program.to_string(), messages: rows.iter().map(known).collect() }
    }

    /// That of this program.
    pub fn own() -> &'static Format {
        static OWN: OnceLock<Format> = OnceLock::new();
        OWN.get_or_init(|| Format::of(crate::PROGRAM, super::ROWS))
    }

    /// The sender's program, for sentences: what cannot be printed is replaced.
    pub fn printable_program(&self) -> String {
        let end = self.program.floor_char_boundary(PROGRAM_BYTES_MAX);
        self.program[..end].chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
    }

    /// What an end with this format, which is that of `rows`, and the sender have in common.
    ///
    /// # Errors
    /// If they cannot be linked.
    pub fn common(&self, (own, rows): (&Format, &[Row])) -> Result<Common, Difference> {
        debug_assert_eq!(own.messages.len(), rows.len());
        let mut common = Common([0; 4]);
        for (row, own) in rows.iter().zip(&own.messages) {
            match self.messages.iter().find(|known| known.code == row.code) {
                Some(known) if known == own => {
                    common.0[usize::from(row.code >> 6)] |= 1 << (row.code & 63);
                }
                Some(_) => return Err(Difference::Changed(row.name)),
                None if row.is_in_logs() => return Err(Difference::NotInLog(row.name)),
                None => {}
            }
        }
        Ok(common)
    }
}

impl Row {
    /// Whether it stands in the logs of cells, which every replica must be able to read.
    pub fn is_in_logs(&self) -> bool {
        self.ways.iter().any(|way| way.contains(&Party::Log))
    }
}
