//! Sessions whose orders are cancelled when they are away, as a cell saves them, and the number of
//! the requests that do that.

use std::collections::BTreeMap;

use nm_book::order::UserId;
use nm_codec::{DecodeError, Put, Reader};

/// Number of a request by which the exchange cancels the orders of a session.
pub const EXCHANGE_SEQ: u64 = 0;

/// Appends sessions, and after how long their orders are cancelled, s.
pub fn save(watched: &BTreeMap<UserId, u32>, bytes: &mut Vec<u8>) {
    bytes.put_u32(watched.len() as u32);
    for (session, cancel_after_s) in watched {
        bytes.put_u32(*session);
        bytes.put_u32(*cancel_after_s);
    }
}

/// Reads what [`save`] appended.
///
/// # Errors
/// If the bytes are something else.
pub fn load(reader: &mut Reader<'_>) -> Result<BTreeMap<UserId, u32>, DecodeError> {
    let count = reader.u32("watched")?;
    let mut one = || Ok((reader.u32("session")?, reader.u32("cancel_after_s")?));
    (0..count).map(|_| one()).collect()
}
