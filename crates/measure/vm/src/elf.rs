//! The few parts of 64-bit little-endian ELF files (elf(5)) that an image and the accelerator need.
//! They are what is loaded, the interpreter, names of libraries, and sections. The bytes may be
//! anything: what lies outside them is an error or absent. They are in memory, or in a file of
//! which only these parts are read.

use std::borrow::Cow;
use std::fs::File;
use std::os::unix::fs::FileExt;

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
    pub const MACHINE: usize = 0x12;
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
const NEEDED: u64 = 1;
const STRING_TABLE: u64 = 5;
const STRING_TABLE_BYTES: u64 = 10;
const LIBRARY_NAME: u64 = 14;

/// Longest part of a file that is read at once, bytes: a program's names take less.
const PART_BYTES_MAX: u64 = 1 << 26;

/// Where the bytes of an ELF file are.
pub trait Source {
    /// `bytes` bytes at `offset`; none if they are not all there.
    fn part(&self, offset: u64, bytes: u64) -> Option<Cow<'_, [u8]>>;
}

impl Source for [u8] {
    fn part(&self, offset: u64, bytes: u64) -> Option<Cow<'_, [u8]>> {
        let start = usize::try_from(offset).ok()?;
        self.get(start..start.checked_add(usize::try_from(bytes).ok()?)?).map(Cow::Borrowed)
    }
}

impl Source for File {
    fn part(&self, offset: u64, bytes: u64) -> Option<Cow<'_, [u8]>> {
        let is_there = offset.checked_add(bytes)? <= self.metadata().ok()?.len();
        if !is_there || bytes > PART_BYTES_MAX {
            return None;
        }
        let mut part = vec![0; usize::try_from(bytes).ok()?];
        self.read_exact_at(&mut part, offset).ok()?;
        Some(Cow::Owned(part))
    }
}

/// A view of an ELF file.
#[derive(Debug, Clone, Copy)]
pub struct Elf<'a, S: Source + ?Sized = [u8]> {
    source: &'a S,
    head: [u8; header::BYTES],
}

#[derive(Debug, Clone, Copy)]
struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    file_bytes: u64,
}

impl<'a, S: Source + ?Sized> Elf<'a, S> {
    /// A view of the file in `source`.
    ///
    /// # Errors
    /// [`ElfError::NotElf`].
    pub fn new(source: &'a S) -> Result<Elf<'a, S>, ElfError> {
        let head = source.part(0, header::BYTES as u64);
        let head = head.and_then(|bytes| bytes.first_chunk().copied());
        let head = head.filter(|head| head.starts_with(&MAGIC_64_LE));
        head.map(|head| Elf { source, head }).ok_or(ElfError::NotElf)
    }

    /// Number of the processor's architecture (`e_machine`), such as 62 for x86-64.
    pub fn machine(&self) -> u16 {
        u16_at(&self.head, header::MACHINE).unwrap_or(0)
    }

    /// Offset of the end of the last part of the file that is loaded into memory.
    ///
    /// # Errors
    /// If nothing is loaded, or a segment lies outside the file.
    pub fn loaded_end(&self) -> Result<usize, ElfError> {
        let mut end = 0;
        for segment in self.segments()? {
            if segment.kind == LOAD {
                self.source.part(segment.offset, segment.file_bytes).ok_or(SEGMENTS_OUTSIDE)?;
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
        let path = segment.and_then(|segment| {
            text_at(&self.source.part(segment.offset, segment.file_bytes.min(PATH_BYTES_MAX))?)
        });
        Ok(path)
    }

    /// The name by which programs ask for this library (`DT_SONAME`); none if it has none.
    ///
    /// # Errors
    /// If the table of segments lies outside the file.
    pub fn library_name(&self) -> Result<Option<String>, ElfError> {
        Ok(self.dynamic_texts(LIBRARY_NAME)?.pop())
    }

    /// The names of the libraries that it asks for (`DT_NEEDED`), in the order of loading.
    ///
    /// # Errors
    /// If the table of segments lies outside the file.
    pub fn needed_libraries(&self) -> Result<Vec<String>, ElfError> {
        self.dynamic_texts(NEEDED)
    }

    /// The texts of all entries with this tag in the dynamic segment.
    fn dynamic_texts(&self, wanted: u64) -> Result<Vec<String>, ElfError> {
        let segments = self.segments()?;
        let find = || {
            let dynamic = segments.iter().find(|segment| segment.kind == DYNAMIC)?;
            let entries = self.source.part(dynamic.offset, dynamic.file_bytes)?;
            let pairs = || {
                let entries = entries.as_chunks::<16>().0.iter();
                entries.filter_map(|entry| Some((u64_at(entry, 0)?, u64_at(entry, 8)?)))
            };
            let value_of = |tag: u64| pairs().find(|pair| pair.0 == tag).map(|pair| pair.1);
            let table = value_of(STRING_TABLE)?;
            let within = |segment: &Segment| {
                table
                    .checked_sub(segment.address)
                    .filter(|within| segment.kind == LOAD && *within < segment.file_bytes)
            };
            let (home, within) = segments.iter().find_map(|home| Some((home, within(home)?)))?;
            let bytes = value_of(STRING_TABLE_BYTES)?;
            let texts = self.source.part(home.offset.checked_add(within)?, bytes)?;
            let text = |at: u64| text_at(texts.get(usize::try_from(at).ok()?..)?);
            let named = pairs().filter(|pair| pair.0 == wanted);
            Some(named.filter_map(|pair| text(pair.1)).collect())
        };
        Ok(find().unwrap_or_default())
    }

    /// The bytes of the section called `name`; none if there is no such section in the file.
    ///
    /// # Errors
    /// If the table of sections lies outside the file.
    pub fn section(&self, name: &str) -> Result<Option<Cow<'a, [u8]>>, ElfError> {
        let sections = self.table(
            header::SECTION_HEADERS,
            (header::SECTION_HEADER_BYTES, SECTION_HEADER_BYTES),
            header::SECTION_HEADER_COUNT,
        );
        let sections = sections.ok_or(ElfError::Truncated("section headers"))?;
        let content =
            |section: &Vec<u8>| self.source.part(u64_at(section, 24)?, u64_at(section, 32)?);
        let names = u16_at(&self.head, header::SECTION_NAMES)
            .and_then(|index| content(sections.get(usize::from(index))?));
        let Some(names) = names else { return Ok(None) };
        let is_wanted = |section: &&Vec<u8>| {
            let at = u32_at(section, 0).unwrap_or(u32::MAX) as usize;
            names.get(at..).and_then(text_at).as_deref() == Some(name)
        };
        Ok(sections.iter().find(is_wanted).and_then(content))
    }

    fn segments(&self) -> Result<Vec<Segment>, ElfError> {
        let segments = self.table(
            header::PROGRAM_HEADERS,
            (header::PROGRAM_HEADER_BYTES, PROGRAM_HEADER_BYTES),
            header::PROGRAM_HEADER_COUNT,
        );
        let segment = |entry: &Vec<u8>| {
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
    ) -> Option<Vec<Vec<u8>>> {
        let start = u64_at(&self.head, offset_at)?;
        let entry_bytes = usize::from(u16_at(&self.head, bytes_at)?);
        let count = usize::from(u16_at(&self.head, count_at)?);
        if count == 0 {
            return Some(vec![]);
        }
        if entry_bytes < bytes_min {
            return None;
        }
        let table = self.source.part(start, (entry_bytes * count) as u64)?;
        Some(table.chunks_exact(entry_bytes).map(<[u8]>::to_vec).collect())
    }
}

/// Longest path of an interpreter, bytes: the kernel's own limit.
const PATH_BYTES_MAX: u64 = 4096;

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
        let interpreter = Elf::new(&program[..]).unwrap().interpreter().unwrap();
        let Some(interpreter) = interpreter else { return };
        let path = fs::canonicalize(interpreter).unwrap();
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        assert!(maps.contains(&*path.to_string_lossy()), "{path:?}");
    }

    #[test]
    fn file_and_memory_give_the_same() {
        let (program, file) = (own_program(), File::open("/proc/self/exe").unwrap());
        let (of_memory, of_file) = (Elf::new(&program[..]).unwrap(), Elf::new(&file).unwrap());
        let needed = of_memory.needed_libraries().unwrap();
        assert_eq!(needed, of_file.needed_libraries().unwrap());
        let is_static = of_memory.interpreter().unwrap().is_none();
        assert!(is_static || needed.iter().any(|name| name == "libc.so.6"), "{needed:?}");
        assert_eq!(of_memory.interpreter(), of_file.interpreter());
        assert_eq!(of_memory.section(".text"), of_file.section(".text"));
        assert_eq!(file.part(u64::MAX, 1), None);
        assert_eq!(file.part(program.len() as u64, 1), None);
    }

    #[test]
    fn text_that_is_no_program_is_refused() {
        assert_eq!(Elf::new(&b"#!/bin/sh\n"[..]).unwrap_err(), ElfError::NotElf);
        let mut object = own_program();
        object[header::PROGRAM_HEADER_COUNT..header::PROGRAM_HEADER_COUNT + 2].fill(0);
        assert_eq!(loadable_part(&object), Err(ElfError::NothingToLoad));
        object[header::SECTION_HEADERS + 6] = 0xff;
        assert!(Elf::new(&object[..]).unwrap().section(".text").is_err());
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
            if let Ok(elf) = Elf::new(&bytes[..]) {
                let _ = (elf.interpreter(), elf.needed_libraries(), elf.section(".modinfo"));
            }
        }

        #[test]
        fn damaged_programs_never_panic(at in 0usize..4096, byte in any::<u8>()) {
            let mut program = own_program();
            program.truncate(1 << 20);
            program[at] = byte;
            let _ = loadable_part(&program);
            if let Ok(elf) = Elf::new(&program[..]) {
                let _ = (elf.interpreter(), elf.needed_libraries(), elf.section(".modinfo"));
            }
        }
    }
}
