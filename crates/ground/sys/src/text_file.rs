//! Files that a user names, read up to a length.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Take};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Reads a text file or a pipe. A device is refused, for `/dev/zero` has no end.
///
/// # Errors
/// If it cannot be read, is a device, has more than `bytes_max` bytes, or is no UTF-8.
pub fn read(path: &Path, bytes_max: u64) -> io::Result<String> {
    let mut text = String::new();
    read_with(path, bytes_max, |file| file.read_to_string(&mut text))?;
    Ok(text)
}

/// Reads a file of any bytes, or a pipe.
///
/// # Errors
/// As [`read`], but for UTF-8.
pub fn read_bytes(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![];
    read_with(path, bytes_max, |file| file.read_to_end(&mut bytes))?;
    Ok(bytes)
}

/// Lets `read` read a file; it returns how many bytes it has read.
fn read_with(
    path: &Path,
    bytes_max: u64,
    read: impl FnOnce(&mut Take<File>) -> io::Result<usize>,
) -> io::Result<()> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    let kind = metadata.file_type();
    if kind.is_char_device() || kind.is_block_device() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is a device, not a file"));
    }
    let too_long = || {
        let message = format!("it has more than {bytes_max} bytes");
        io::Error::new(ErrorKind::InvalidInput, message)
    };
    if metadata.len() > bytes_max {
        return Err(too_long());
    }
    let length = read(&mut file.take(bytes_max.saturating_add(1)))?;
    if length as u64 > bytes_max { Err(too_long()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_up_to_its_limit_and_a_device_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        std::fs::write(&path, "12345").unwrap();
        assert_eq!(read(&path, 5).unwrap(), "12345");
        assert_eq!(read(&path, 4).unwrap_err().to_string(), "it has more than 4 bytes");
        assert_eq!(read_bytes(&path, 5).unwrap(), b"12345");
        assert_eq!(read_bytes(&path, 4).unwrap_err().to_string(), "it has more than 4 bytes");
        let refused = read(Path::new("/dev/zero"), 4).unwrap_err();
        assert_eq!(refused.to_string(), "it is a device, not a file");
        assert_eq!(read(&folder.path().join("none"), 4).unwrap_err().kind(), ErrorKind::NotFound);
    }

    /// What is written to a pipe has no length before it is read.
    #[test]
    fn a_pipe_is_read_up_to_its_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
        for (bytes_max, expected) in [(5, Ok("12345")), (4, Err("it has more than 4 bytes"))] {
            let writer = std::thread::spawn({
                let path = path.clone();
                move || std::fs::write(path, "12345").unwrap()
            });
            let found = read(&path, bytes_max).map_err(|error| error.to_string());
            writer.join().unwrap();
            assert_eq!(found.as_deref().map_err(String::as_str), expected);
        }
    }
}
