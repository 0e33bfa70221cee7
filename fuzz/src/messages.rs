//! The messages of the exchange, all of them by their table.

use nm_wire::{Message, ROWS};

/// The bytes as a frame, and as each message: it is refused, or read back as what was written.
pub fn messages(bytes: &[u8]) {
    if let Ok(Some(frame)) = nm_wire::read(bytes) {
        let _ = Message::read(frame);
    }
    ROWS.iter().for_each(|row| row.check(bytes));
}

pub fn seeds() -> Vec<Vec<u8>> {
    let examples = |row: &nm_wire::Row| (0..3).map(|seed| row.example_of(seed)).collect::<Vec<_>>();
    ROWS.iter().flat_map(examples).collect()
}
