//! What the batches and snapshots of a group are made of. A replica's folder says it, so that a
//! program never takes what a newer one wrote for something else. So does the hello of a
//! connection, since each replica must be able to read what the leader has.
//!
//! It is kept in a [slot file](crate::slot_file):
//!
//! ```text
//! content   version u8   length of the program's name u8   name   then for each kind of part:
//!           code u8   digest u64
//! ```

use std::io;
use std::path::Path;

use nm_codec::{DecodeError, Put, Reader, fnv1a};

use crate::env::Env;
use crate::error::ReplicaError;
use crate::slot_file::{self, Marks, SlotFile};

/// Name of its files in a group's folder.
const CONTENT_FORMAT: &str = "content-format";

const MARKS: Marks = Marks { now: *b"nmcont01", before: &[] };

/// Longest name of a program that is kept, bytes.
const PROGRAM_BYTES_MAX: usize = 40;

/// What batches and snapshots are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ContentFormat {
    /// The program that writes it, for sentences.
    pub program: &'static str,
    /// Version of all of it; another one cannot be read.
    pub version: u8,
    /// What batches may consist of.
    pub kinds: &'static [ContentKind],
}

/// A kind of what batches consist of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContentKind {
    /// Its code.
    pub code: u8,
    /// Its name, for sentences.
    pub name: &'static str,
    /// Digest of its bytes' meaning.
    pub digest: u64,
}

impl ContentFormat {
    fn encode(&self) -> Vec<u8> {
        let program = &self.program[..self.program.floor_char_boundary(PROGRAM_BYTES_MAX)];
        let mut out = vec![self.version, program.len() as u8];
        out.put(program.as_bytes());
        for kind in self.kinds {
            out.put_u8(kind.code);
            out.put_u64(kind.digest);
        }
        out
    }

    /// Digest of it, without the program.
    pub fn digest(&self) -> u64 {
        fnv1a(&ContentFormat { program: "", ..*self }.encode())
    }

    /// Why this program cannot read what was written in another format.
    fn refusal(&self, written: &Written) -> Option<String> {
        if written.version != self.version {
            let Written { version, .. } = written;
            return Some(format!("its format has version {version}, not {}", self.version));
        }
        written.kinds.iter().find_map(|(code, digest)| {
            match self.kinds.iter().find(|own| own.code == *code) {
                Some(own) if own.digest == *digest => None,
                Some(own) => Some(format!("its {} differs", own.name)),
                None => Some(format!("its log may have messages {code}, which are not known")),
            }
        })
    }
}

/// The format in a folder.
#[derive(Debug, PartialEq, Eq)]
struct Written {
    program: String,
    version: u8,
    kinds: Vec<(u8, u64)>,
}

impl Written {
    fn decode(content: &[u8]) -> Result<Written, DecodeError> {
        let mut reader = Reader::new(content);
        let version = reader.u8("version")?;
        let length = reader.u8("program length")?;
        let program = reader.bytes("program", usize::from(length))?;
        let program = String::from_utf8_lossy(program).into_owned();
        let mut kinds = vec![];
        while !reader.rest().is_empty() {
            kinds.push((reader.u8("code")?, reader.u64("digest")?));
        }
        Ok(Written { program, version, kinds })
    }
}

/// Checks that what is in a folder can be read, and notes that from now on it is written in this
/// format. A folder that does not say its format is new, or of a program before there was one.
///
/// # Errors
/// If it is of a newer or of another format, or the disk fails.
pub fn admit(env: &Env, folder: &Path, own: &ContentFormat) -> Result<(), ReplicaError> {
    let path = folder.join(CONTENT_FORMAT);
    let content = own.encode();
    let opened = SlotFile::open(env, &path, &MARKS);
    let Some((mut file, bytes)) = opened.map_err(|error| failed(&path, error))? else {
        let created = SlotFile::create(env, &path, MARKS.now, &content);
        return created.map(|_| ()).map_err(|error| failed(&path, error));
    };
    check_content(folder, &bytes, own)?;
    let written = if bytes == content { Ok(()) } else { file.write(&content) };
    written.map_err(|error| failed(&path, error))
}

/// Checks that what is in a folder can be read, and changes nothing. A folder that does not say its
/// format is of a program before there was one.
///
/// # Errors
/// If it is of a newer or of another format, or cannot be read.
pub fn check(env: &Env, folder: &Path, own: &ContentFormat) -> Result<(), ReplicaError> {
    let path = folder.join(CONTENT_FORMAT);
    let found = slot_file::read(env, &path, &MARKS).map_err(|error| failed(&path, error))?;
    found.map_or(Ok(()), |found| check_content(folder, &found.content, own))
}

fn failed(path: &Path, error: io::Error) -> ReplicaError {
    match error.kind() {
        io::ErrorKind::InvalidData => ReplicaError::Checksum(path.to_path_buf()),
        _ => ReplicaError::file(path, "cannot be used", error),
    }
}

fn check_content(folder: &Path, bytes: &[u8], own: &ContentFormat) -> Result<(), ReplicaError> {
    let written = Written::decode(bytes)
        .map_err(|source| ReplicaError::Decode { path: folder.join(CONTENT_FORMAT), source })?;
    match own.refusal(&written) {
        None => Ok(()),
        Some(why) => Err(ReplicaError::OtherContent {
            folder: folder.into(),
            program: written.program,
            own: own.program,
            why,
        }),
    }
}

/// Names of the files in a group's folder.
pub fn file_names() -> [String; 2] {
    [1, 2].map(|copy| format!("{CONTENT_FORMAT}-{copy}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::Machine;
    use proptest::prelude::*;

    const FIRST: ContentKind = ContentKind { code: 2, name: "Request", digest: 5 };
    const SECOND: ContentKind = ContentKind { code: 30, name: "Retire", digest: 6 };
    const OLD: ContentFormat = ContentFormat { program: "1.0", version: 9, kinds: &[FIRST] };
    const NEW: ContentFormat =
        ContentFormat { program: "2.0", version: 9, kinds: &[FIRST, SECOND] };

    #[test]
    fn a_folder_of_an_older_format_is_read_and_of_a_newer_one_refused_in_a_sentence() {
        let folder = tempfile::tempdir().unwrap();
        let admit = |own| admit(&Machine::env(), folder.path(), own);
        admit(&OLD).unwrap();
        admit(&OLD).unwrap();
        admit(&NEW).unwrap();
        let refused = admit(&OLD).unwrap_err().to_string();
        let sentence = "was written by nearmetal 2.0, and this is nearmetal 1.0: its log may have \
                        messages 30, which are not known";
        assert!(refused.contains(sentence), "{refused}");
        // It is as it was.
        admit(&NEW).unwrap();
        let changed: &[ContentKind] = &[FIRST, ContentKind { digest: 7, ..SECOND }];
        let changed = ContentFormat { kinds: Box::leak(changed.into()), ..NEW };
        let refused = admit(&changed).unwrap_err().to_string();
        assert!(refused.ends_with("its Retire differs"), "{refused}");
        let refused = admit(&ContentFormat { version: 8, ..NEW }).unwrap_err().to_string();
        assert!(refused.ends_with("its format has version 9, not 8"), "{refused}");
    }

    #[test]
    fn each_part_of_a_format_counts_in_its_digest() {
        let all = [OLD, NEW, ContentFormat { version: 8, ..OLD }].map(|it| it.digest());
        assert!(all[0] != all[1] && all[0] != all[2]);
        assert_eq!(OLD.digest(), ContentFormat { program: "7", ..OLD }.digest());
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_format_or_refused(
            bytes in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            if let Ok(written) = Written::decode(&bytes) {
                prop_assert!(written.kinds.len() <= bytes.len());
            }
        }
    }

    #[test]
    fn a_format_is_read_back() {
        let written = Written::decode(&NEW.encode()).unwrap();
        let kinds = vec![(2, 5), (30, 6)];
        assert_eq!(written, Written { program: "2.0".to_string(), version: 9, kinds });
    }
}
