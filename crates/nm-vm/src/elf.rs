//! The few parts of 64-bit little-endian ELF files (elf(5)) that an image needs: what is loaded,
//! the interpreter, the name of a library, and the sections of a kernel module. The bytes may be
//! anything: what lies outside them is an error or absent.

/// Why bytes are not a usable ELF file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ElfError {
    /// No ELF header, or one of another width or byte order.
    #[error("it is not a 64-bit little-endian ELF file")]
    NotElf,
    /// A table or segment lies outside the file.
    #[error("its {0} lie outside the file")]
    Truncated(&'static str),
    /// It has no segment to load.
    #[error("it has no segment to load")]
    NothingToLoad,
}

/// Offsets within the header.
mod header {
    pub const PROGRAM_HEADERS: usize = 0x20;
    pub const SECTION_HEADERS: usize = 0x28;
    pub const PROGRAM_HEADER_BYTES: usize = 0x36;
    pub const PROGRAM_HEADER_COUNT: usize = 0x38;
    pub const SECTION_HEADER_BYTES: usize = 0x3a;
    pub const SECTION_HEADER_COUNT: usize = 0x3c;
    pub const SECTION_NAMES: usize = 0x3e;
    pub const BYTES: usize = 0x40;
}

const MAGIC_64_LE: [u8; 6] = [0x7f, b'E', b'L', b'F', 2, 1];

/// Least bytes of an entry of either table.
const PROGRAM_HEADER_BYTES: usize = 56;
const SECTION_HEADER_BYTES: usize = 64;

/// Types of segments.
const LOAD: u32 = 1;
const DYNAMIC: u32 = 2;
const INTERPRETER: u32 = 3;

/// Tags of the dynamic segment.
const STRING_TABLE: u64 = 5;
const LIBRARY_NAME: u64 = 14;

/// A view of an ELF file.
#[derive(Debug, Clone, Copy)]
pub struct Elf<'a> {
    bytes: &'a [u8],
}

#[derive(Debug, Clone, Copy)]
struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    file_bytes: u64,
}

impl<'a> Elf<'a> {
    /// A view of `bytes`.
    ///
    /// # Errors
    /// [`ElfError::NotElf`].
    pub fn new(bytes: &'a [u8]) -> Result<Elf<'a>, ElfError> {
        let is_elf = bytes.len() >= header::BYTES && bytes.starts_with(&MAGIC_64_LE);
        if is_elf { Ok(Elf { bytes }) } else { Err(ElfError::NotElf) }
    }

    /// Offset of the end of the last part of the file that is loaded into memory.
    ///
    /// # Errors
    /// If nothing is loaded, or a segment lies outside the file.
    pub fn loaded_end(&self) -> Result<usize, ElfError> {
        let mut end = 0;
        for segment in self.segments()? {
            if segment.kind == LOAD {
                self.part(segment.offset, segment.file_bytes).ok_or(SEGMENTS_OUTSIDE)?;
                end = end.max(segment.offset + segment.file_bytes);
            }
        }
        if end == 0 { Err(ElfError::NothingToLoad) } else { Ok(end as usize) }
    }

    /// Path of the program's interpreter, the dynamic linker; none in a static program.
    ///
    /// # Errors
    /// If the table of segments lies outside the file.
    pub fn interpreter(&self) -> Result<Option<String>, ElfError> {
        let segment = self.segments()?.into_iter().find(|segment| segment.kind == INTERPRETER);
        let path = segment.and_then(|segment| self.part(segment.offset, segment.file_bytes));
        Ok(path.and_then(text_at))
    }

    /// The name by which programs ask for this library (`DT_SONAME`); none if it has none.
    ///
    /// # Errors
    /// If the table of segments lies outside the file.
    pub fn library_name(&self) -> Result<Option<String>, ElfError> {
        let segments = self.segments()?;
        let find = || {
            let dynamic = segments.iter().find(|segment| segment.kind == DYNAMIC)?;
            let entries = self.part(dynamic.offset, dynamic.file_bytes)?;
            let value_of = |wanted: u64| {
                let entries = entries.as_chunks::<16>().0.iter();
                let mut pairs = entries.map(|entry| (u64_at(entry, 0), u64_at(entry, 8)));
                pairs.find(|(tag, _)| *tag == Some(wanted)).and_then(|(_, value)| value)
            };
            let (table, name) = (value_of(STRING_TABLE)?, value_of(LIBRARY_NAME)?);
            let home = segments.iter().find(|segment| {
                segment.kind == LOAD
                    && table
                        .checked_sub(segment.address)
                        .is_some_and(|within| within < segment.file_bytes)
            })?;
            let start = (table - home.address).checked_add(home.offset)?.checked_add(name)?;
            text_at(self.bytes.get(usize::try_from(start).ok()?..)?)
        };
        Ok(find())
    }

    /// The bytes of the section called `name`; none if there is no such section in the file.
    ///
    /// # Errors
    /// If the table of sections lies outside the file.
    pub fn section(&self, name: &str) -> Result<Option<&'a [u8]>, ElfError> {
        let sections = self.table(
            header::SECTION_HEADERS,
            (header::SECTION_HEADER_BYTES, SECTION_HEADER_BYTES),
            header::SECTION_HEADER_COUNT,
        );
        let sections = sections.ok_or(ElfError::Truncated("section headers"))?;
        let content = |section: &[u8]| self.part(u64_at(section, 24)?, u64_at(section, 32)?);
        let names = u16_at(self.bytes, header::SECTION_NAMES)
            .and_then(|index| content(sections.get(usize::from(index))?));
        let Some(names) = names else { return Ok(None) };
        let is_wanted = |section: &&&[u8]| {
            let at = u32_at(section, 0).unwrap_or(u32::MAX) as usize;
            names.get(at..).and_then(text_at).as_deref() == Some(name)
        };
        Ok(sections.iter().find(is_wanted).and_then(|section| content(section)))
    }

    fn segments(&self) -> Result<Vec<Segment>, ElfError> {
        let segments = self.table(
            header::PROGRAM_HEADERS,
            (header::PROGRAM_HEADER_BYTES, PROGRAM_HEADER_BYTES),
            header::PROGRAM_HEADER_COUNT,
        );
        let segment = |entry: &&[u8]| {
            let (kind, offset) = (u32_at(entry, 0)?, u64_at(entry, 8)?);
            let (address, file_bytes) = (u64_at(entry, 16)?, u64_at(entry, 32)?);
            Some(Segment { kind, offset, address, file_bytes })
        };
        let segments = segments.ok_or(SEGMENTS_OUTSIDE)?;
        segments.iter().map(segment).collect::<Option<Vec<_>>>().ok_or(SEGMENTS_OUTSIDE)
    }

    /// The entries of a table whose offset, length of an entry and count are in the header; none if
    /// it lies outside the file.
    fn table(
        &self,
        offset_at: usize,
        (bytes_at, bytes_min): (usize, usize),
        count_at: usize,
    ) -> Option<Vec<&'a [u8]>> {
        let start = usize::try_from(u64_at(self.bytes, offset_at)?).ok()?;
        let entry_bytes = usize::from(u16_at(self.bytes, bytes_at)?);
        let count = usize::from(u16_at(self.bytes, count_at)?);
        if count == 0 {
            return Some(vec![]);
        }
        if entry_bytes < bytes_min {
            return None;
        }
        let table = self.bytes.get(start..start.checked_add(entry_bytes * count)?)?;
        Some(table.chunks_exact(entry_bytes).collect())
    }

    fn part(&self, offset: u64, bytes: u64) -> Option<&'a [u8]> {
        let start = usize::try_from(offset).ok()?;
        self.bytes.get(start..start.checked_add(usize::try_from(bytes).ok()?)?)
    }
}

const SEGMENTS_OUTSIDE: ElfError = ElfError::Truncated("segments");

/// The part of a program that the kernel and the dynamic linker use: without symbols and debug
/// information, which lie behind it. The result runs like the program.
///
/// # Errors
/// If it is no program.
pub fn loadable_part(program: &[u8]) -> Result<Vec<u8>, ElfError> {
    let elf = Elf::new(program)?;
    let tables_end = u64_at(program, header::PROGRAM_HEADERS)
        .zip(u16_at(program, header::PROGRAM_HEADER_BYTES))
        .zip(u16_at(program, header::PROGRAM_HEADER_COUNT))
        .and_then(|((start, bytes), count)| {
            usize::try_from(start).ok()?.checked_add(usize::from(bytes) * usize::from(count))
        });
    let end = elf.loaded_end()?.max(tables_end.ok_or(SEGMENTS_OUTSIDE)?).max(header::BYTES);
    let mut part = program.get(..end).ok_or(SEGMENTS_OUTSIDE)?.to_vec();
    // The table of sections is no longer there.
    part[header::SECTION_HEADERS..header::SECTION_HEADERS + 8].fill(0);
    part[header::SECTION_HEADER_COUNT..header::SECTION_NAMES + 2].fill(0);
    Ok(part)
}

/// The text up to the first zero byte; none without one, or if it is not UTF-8.
fn text_at(bytes: &[u8]) -> Option<String> {
    let end = bytes.iter().position(|byte| *byte == 0)?;
    String::from_utf8(bytes[..end].to_vec()).ok()
}

fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    bytes.get(offset..)?.first_chunk().map(|bytes| u16::from_le_bytes(*bytes))
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    bytes.get(offset..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    bytes.get(offset..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    fn own_program() -> Vec<u8> {
        fs::read("/proc/self/exe").unwrap()
    }

    #[test]
    fn cut_program_is_smaller_and_runs() {
        let program = own_program();
        let cut = loadable_part(&program).unwrap();
        assert!(cut.len() < program.len(), "{} of {} bytes", cut.len(), program.len());
        assert_eq!(loadable_part(&cut).unwrap(), cut, "cutting again changes nothing");
        let path = std::env::temp_dir().join(format!("nm-vm-cut-{}", std::process::id()));
        fs::write(&path, &cut).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let output = Command::new(&path).arg("--list").output();
        fs::remove_file(&path).unwrap();
        let output = output.unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && text.contains("cut_program_is_smaller"), "{text}");
    }

    #[test]
    fn interpreter_of_the_own_program_is_mapped() {
        let program = own_program();
        let interpreter = Elf::new(&program).unwrap().interpreter().unwrap();
        let Some(interpreter) = interpreter else { return };
        let path = fs::canonicalize(interpreter).unwrap();
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        assert!(maps.contains(&*path.to_string_lossy()), "{path:?}");
    }

    #[test]
    fn text_that_is_no_program_is_refused() {
        assert_eq!(Elf::new(b"#!/bin/sh\n").unwrap_err(), ElfError::NotElf);
        let mut object = own_program();
        object[header::PROGRAM_HEADER_COUNT..header::PROGRAM_HEADER_COUNT + 2].fill(0);
        assert_eq!(loadable_part(&object), Err(ElfError::NothingToLoad));
        object[header::SECTION_HEADERS + 6] = 0xff;
        assert!(Elf::new(&object).unwrap().section(".text").is_err());
    }

    proptest! {
        /// A header of the right kind, with anything in it and after it.
        #[test]
        fn arbitrary_bytes_never_panic(
            mut bytes in prop::collection::vec(any::<u8>(), 0..2_000),
            has_magic in any::<bool>(),
            small in any::<bool>(),
        ) {
            if has_magic && bytes.len() >= header::BYTES {
                bytes[..6].copy_from_slice(&MAGIC_64_LE);
                if small {
                    // Offsets that lie within the bytes.
                    for at in [header::PROGRAM_HEADERS, header::SECTION_HEADERS] {
                        bytes[at + 1] %= 8;
                        bytes[at + 2..at + 8].fill(0);
                    }
                    for at in [header::PROGRAM_HEADER_BYTES, header::SECTION_HEADER_BYTES] {
                        bytes[at] = 64;
                        bytes[at + 1..at + 4].fill(0);
                        bytes[at + 2] = 3;
                    }
                    bytes[header::SECTION_NAMES + 1] = 0;
                }
            }
            let _ = loadable_part(&bytes);
            if let Ok(elf) = Elf::new(&bytes) {
                let _ = (elf.interpreter(), elf.library_name(), elf.section(".modinfo"));
            }
        }

        #[test]
        fn damaged_programs_never_panic(at in 0usize..4096, byte in any::<u8>()) {
            let mut program = own_program();
            program.truncate(1 << 20);
            program[at] = byte;
            let _ = loadable_part(&program);
            if let Ok(elf) = Elf::new(&program) {
                let _ = (elf.interpreter(), elf.library_name(), elf.section(".modinfo"));
            }
        }
    }
}
