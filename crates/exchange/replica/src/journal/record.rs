//! A record of a journal, and how a journal is kept.

/// How a journal is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Size of each file, bytes. A record must fit one.
    pub file_bytes: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { file_bytes: 64 << 20 }
    }
}

/// What a record contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordKind {
    /// A batch.
    Batch,
    /// Nothing: a leader's first entry, or an index without a batch.
    Blank,
    /// The group's members.
    Members,
    /// Nothing: a recording lacks the batch of this index.
    Missed,
}

nm_codec::codes!(RecordKind { Batch = 0, Blank = 1, Members = 2, Missed = 3 });

/// A record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its index; each is one more than that of the record before.
    pub index: u64,
    /// Term in which it was written: rises with each change of leader.
    pub term: u64,
    /// What it contains.
    pub kind: RecordKind,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// What was found when a journal was opened.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Found {
    /// The records, oldest first.
    pub records: Vec<Record>,
    /// Bytes of a half-written end, which is cut off.
    pub torn_bytes: u64,
}
