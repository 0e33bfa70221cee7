//! Archives that the kernel unpacks at its start: cpio in the format `newc`, as in the kernel's
//! documentation of initramfs. Numbers of files count up from one and all times are zero, so that
//! the same content has the same bytes.

/// Why something cannot be added.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CpioError {
    /// The format has 32 bits for lengths.
    #[error("{name} has {bytes} bytes, more than an archive can hold")]
    TooLarge {
        /// The file.
        name: String,
        /// Its length.
        bytes: usize,
    },
    /// Absolute, empty or with a zero byte.
    #[error("`{0}` is not a name within an archive")]
    Name(String),
}

const DIRECTORY: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const CHARACTER_DEVICE: u32 = 0o020_000;

/// Name of the entry that ends an archive.
const TRAILER: &str = "TRAILER!!!";

/// Archives end at a multiple of this, as cpio(1) writes them.
const BLOCK_BYTES: usize = 512;

/// An archive that is being written.
#[derive(Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    /// An archive without entries.
    pub fn new() -> Archive {
        Archive::default()
    }

    /// Adds a folder. Those above it must have been added before.
    ///
    /// # Errors
    /// [`CpioError::Name`].
    pub fn folder(&mut self, name: &str) -> Result<(), CpioError> {
        self.entry(name, DIRECTORY | 0o755, (0, 0), &[])
    }

    /// Adds a file with these permissions.
    ///
    /// # Errors
    /// [`CpioError::Name`] and [`CpioError::TooLarge`].
    pub fn file(&mut self, name: &str, permissions: u32, content: &[u8]) -> Result<(), CpioError> {
        self.entry(name, FILE | (permissions & 0o777), (0, 0), content)
    }

    /// Adds a character device, for its owner only.
    ///
    /// # Errors
    /// [`CpioError::Name`].
    pub fn device(&mut self, name: &str, major: u32, minor: u32) -> Result<(), CpioError> {
        self.entry(name, CHARACTER_DEVICE | 0o600, (major, minor), &[])
    }

    /// The finished archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.header(TRAILER, 0, (0, 0), 0);
        self.pad(BLOCK_BYTES);
        self.bytes
    }

    fn entry(
        &mut self,
        name: &str,
        mode: u32,
        device: (u32, u32),
        content: &[u8],
    ) -> Result<(), CpioError> {
        let is_name = !name.is_empty() && !name.starts_with('/') && !name.contains('\0');
        if !is_name || name == TRAILER {
            return Err(CpioError::Name(name.to_string()));
        }
        let Ok(bytes) = u32::try_from(content.len()) else {
            return Err(CpioError::TooLarge { name: name.to_string(), bytes: content.len() });
        };
        self.header(name, mode, device, bytes);
        self.bytes.extend_from_slice(content);
        self.pad(4);
        Ok(())
    }

    /// Thirteen numbers of eight hexadecimal digits, then the name with a zero byte.
    fn header(&mut self, name: &str, mode: u32, (major, minor): (u32, u32), bytes: u32) {
        self.entries += 1;
        let (owner, group, links, time) = (0, 0, 1, 0);
        let (disk_major, disk_minor, checksum) = (0, 0, 0);
        let name_bytes = name.len() as u32 + 1;
        self.bytes.extend_from_slice(b"070701");
        for number in [
            self.entries,
            mode,
            owner,
            group,
            links,
            time,
            bytes,
            disk_major,
            disk_minor,
            major,
            minor,
            name_bytes,
            checksum,
        ] {
            self.bytes.extend_from_slice(format!("{number:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad(4);
    }

    fn pad(&mut self, multiple: usize) {
        self.bytes.resize(self.bytes.len().next_multiple_of(multiple), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_an_archive_made_by_hand() {
        let mut archive = Archive::new();
        archive.folder("d").unwrap();
        archive.file("d/a", 0o644, b"hello").unwrap();
        archive.device("c", 5, 1).unwrap();
        let expected = [
            // number, mode, owner, group, links, time, bytes, disk, device, name bytes, checksum
            "070701\
             00000001000041ed00000000000000000000000100000000\
             00000000000000000000000000000000000000000000000200000000d\0",
            "070701\
             00000002000081a400000000000000000000000100000000\
             00000005000000000000000000000000000000000000000400000000d/a\0\0\0hello\0\0\0",
            "070701\
             000000030000218000000000000000000000000100000000\
             00000000000000000000000000000005000000010000000200000000c\0",
            "070701\
             000000040000000000000000000000000000000100000000\
             00000000000000000000000000000000000000000000000b00000000TRAILER!!!\0\0\0\0",
        ];
        let mut expected = expected.concat().into_bytes();
        expected.resize(512, 0);
        let bytes = archive.finish();
        assert_eq!(String::from_utf8(bytes).unwrap(), String::from_utf8(expected).unwrap());
    }

    #[test]
    fn names_outside_the_archive_are_refused() {
        let mut archive = Archive::new();
        for name in ["", "/etc", "a\0b", TRAILER] {
            assert_eq!(archive.folder(name), Err(CpioError::Name(name.to_string())));
        }
        assert_eq!(archive.finish().len(), 512);
    }
}
