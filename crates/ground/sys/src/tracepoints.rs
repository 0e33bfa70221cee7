//! The kernel's tracepoints: their numbers, and where the fields of their records are.
//!
//! They are read from a tracefs that is mounted nowhere: its mount ends with its descriptor, so
//! nothing is left behind whatever ends this process. Linux 5.2; needs `CAP_SYS_ADMIN`.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

/// Longest description of a tracepoint, bytes.
const FORMAT_BYTES_MAX: u64 = 64 * 1024;

/// The descriptions of the tracepoints.
#[derive(Debug)]
pub struct Tracepoints {
    root: OwnedFd,
}

impl Tracepoints {
    /// `fsopen("tracefs")`, `fsmount`—Opens them.
    ///
    /// # Errors
    /// If the kernel has no tracefs or does not allow it.
    pub fn open() -> io::Result<Tracepoints> {
        let context = rustix::mount::fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        rustix::mount::fsconfig_create(&context)?;
        let flags = FsMountFlags::FSMOUNT_CLOEXEC;
        let root = rustix::mount::fsmount(&context, flags, MountAttrFlags::empty())?;
        Ok(Tracepoints { root })
    }

    /// How many traces of their own programs have made; each stays until it is removed.
    ///
    /// # Errors
    /// The kernel's.
    pub fn instances(&self) -> io::Result<usize> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::openat(&self.root, "instances", flags, Mode::empty())?;
        let names = rustix::fs::Dir::new(folder)?.collect::<Result<Vec<_>, _>>()?;
        Ok(names.iter().filter(|entry| !entry.file_name().to_bytes().starts_with(b".")).count())
    }

    /// The tracepoint `name`, as `sched/sched_switch`.
    ///
    /// # Errors
    /// If the kernel does not have it.
    pub fn format(&self, name: &str) -> io::Result<Format> {
        let path = format!("events/{name}/format");
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat(&self.root, path, flags, Mode::empty())?);
        let mut text = String::new();
        file.take(FORMAT_BYTES_MAX).read_to_string(&mut text)?;
        Format::parse(&text).ok_or(io::ErrorKind::InvalidData.into())
    }
}

/// What a tracepoint's records look like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Format {
    /// Its number, the first field of each record.
    pub id: u16,
    fields: Vec<(String, Field)>,
}

/// Where a field is in a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    offset: usize,
    size: usize,
    /// The field has the place of a text that follows the record.
    is_place: bool,
}

impl Format {
    fn parse(text: &str) -> Option<Format> {
        let id = text.lines().find_map(|line| line.strip_prefix("ID:"))?.trim().parse().ok()?;
        let fields = text.lines().filter_map(field).collect();
        Some(Format { id, fields })
    }

    /// The field `name`.
    pub fn field(&self, name: &str) -> Option<Field> {
        self.fields.iter().find(|(own, _)| own == name).map(|(_, field)| *field)
    }
}

/// `field:pid_t next_pid; offset:56; size:4; signed:1;`
fn field(line: &str) -> Option<(String, Field)> {
    let mut parts = line.trim().strip_prefix("field:")?.split(';');
    let declaration = parts.next()?;
    let mut number = |name: &str| -> Option<usize> {
        parts.next()?.trim().strip_prefix(name)?.trim().parse().ok()
    };
    let (offset, size) = (number("offset:")?, number("size:")?);
    let name = declaration.split_ascii_whitespace().next_back()?;
    let name = name.split('[').next()?.trim_start_matches('*').to_string();
    Some((name, Field { offset, size, is_place: declaration.starts_with("__data_loc") }))
}

impl Field {
    /// The field's number in `record`, of at most eight bytes; none if the record is too short.
    pub fn number(self, record: &[u8]) -> Option<u64> {
        let bytes = record.get(self.offset..self.offset.checked_add(self.size)?)?;
        let mut number = [0; 8];
        number.get_mut(..bytes.len())?.copy_from_slice(bytes);
        // All machines that this program knows have the low byte first.
        Some(u64::from_le_bytes(number))
    }

    /// The field's text in `record`, up to its first zero.
    pub fn text(self, record: &[u8]) -> Option<&[u8]> {
        let (begin, length) = match self.is_place {
            true => {
                let place = self.number(record)?;
                ((place & 0xffff) as usize, (place >> 16 & 0xffff) as usize)
            }
            false => (self.offset, self.size),
        };
        let bytes = record.get(begin..begin.checked_add(length)?)?;
        bytes.split(|byte| *byte == 0).next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const IRQ: &str = "name: irq_handler_entry\nID: 225\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\n\
        \tfield:int irq;\toffset:8;\tsize:4;\tsigned:1;\n\
        \tfield:__data_loc char[] name;\toffset:12;\tsize:4;\tsigned:0;\n\
        \tfield:char comm[4];\toffset:16;\tsize:4;\tsigned:0;\n\
        \tfield:void * function;\toffset:0;\tsize:8;\tsigned:0;\n\nprint fmt: \"x\"\n";

    #[test]
    fn fields_are_read_where_the_description_says() {
        let format = Format::parse(IRQ).unwrap();
        assert_eq!(format.id, 225);
        let mut record = vec![0; 20];
        record[8] = 7;
        record[12..16].copy_from_slice(&(5 << 16 | 20_u32).to_le_bytes());
        record[16..18].copy_from_slice(b"ab");
        record.extend(b"eth0\0");
        let field = |name| format.field(name).unwrap();
        assert_eq!(field("irq").number(&record), Some(7));
        assert_eq!(field("name").text(&record), Some(&b"eth0"[..]));
        assert_eq!(field("comm").text(&record), Some(&b"ab"[..]));
        assert_eq!(field("irq").number(&record[..10]), None);
        assert!(format.field("function").is_some() && format.field("other").is_none());
    }

    proptest! {
        #[test]
        fn any_description_and_record_is_read_without_a_panic(
            text in "ID: [0-9]{1,3}\\n\
                (field:[a-z_ ]{0,20}(\\[9\\])?;( ?(offset|size):[0-9]{0,22};){0,3}\\n){0,4}",
            record in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            if let Some(format) = Format::parse(&text) {
                for (_, field) in &format.fields {
                    let _ = (field.number(&record), field.text(&record));
                }
            }
        }
    }
}
