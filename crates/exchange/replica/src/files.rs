//! Files that a crash leaves either as they were before or as they are after a write.

use std::io;
use std::path::Path;

use nm_codec::crc32c;

use crate::env::Env;
use crate::error::ReplicaError;

/// Bytes of the checksum in front of the content.
const CHECKSUM_BYTES: usize = 4;

/// Writes a file with a checksum: a crash leaves the old file or the new one.
///
/// # Errors
/// If the disk does not accept it.
pub fn write_atomically(env: &Env, path: &Path, content: &[u8]) -> Result<(), ReplicaError> {
    let write = || -> io::Result<()> {
        let temporary = path.with_extension("tmp");
        let file = env.create(&temporary)?;
        file.write_all_at(&crc32c(content).to_le_bytes(), 0)?;
        file.write_all_at(content, CHECKSUM_BYTES as u64)?;
        file.sync_all()?;
        env.rename_durably(&temporary, path)
    };
    write().map_err(|error| ReplicaError::file(path, "cannot be written", error))
}

/// The content of a file that [`write_atomically`] wrote; `None` if there is no file.
///
/// # Errors
/// If it cannot be read or its checksum is wrong.
pub fn read_checked(env: &Env, path: &Path) -> Result<Option<Vec<u8>>, ReplicaError> {
    let mut bytes = match env.read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(ReplicaError::file(path, "cannot be read", error)),
    };
    let checksum = bytes.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
    if checksum.is_none_or(|checksum| checksum != crc32c(&bytes[CHECKSUM_BYTES..])) {
        return Err(ReplicaError::Checksum(path.into()));
    }
    bytes.drain(..CHECKSUM_BYTES);
    Ok(Some(bytes))
}
