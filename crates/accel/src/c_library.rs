//! Puts this library's functions in the place of the C library's for parts that look them up there.
//! These are plug-ins that are bound deeply (`RTLD_DEEPBIND`), `dlsym` on the C library's handle,
//! Python's ctypes. Their calls would pass this library by, and their bytes would be out of order
//! beside those of the program's other parts.
//!
//! The C library's table of symbols names an address for each function, relative to its own. It is
//! data, private to the process: the entries of this library's functions get its addresses.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use libc::{Elf64_Phdr, Elf64_Sym, dl_phdr_info};

/// Files that define the functions; before glibc 2.34 threads had one of their own.
const FILES: [&[u8]; 2] = [b"libc.so.6", b"libpthread.so.0"];

/// Own symbols that no C library has.
const OWN_PREFIX: &[u8] = b"nearmetal_";

const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_VERSYM: u64 = 0x6fff_fff0;
const DT_GNU_HASH: u64 = 0x6fff_fef5;

/// Bit of a symbol's version: not the default one of its name.
const HIDDEN_VERSION: u16 = 0x8000;

/// Type of a symbol that is a function, in the low bits of its information.
const FUNCTION: u8 = 2;

/// The symbols of a loaded file. Its memory stays mapped: neither the C library nor this one is
/// ever unloaded.
#[derive(Clone, Copy)]
struct Symbols {
    base: usize,
    table: *const Elf64_Sym,
    names: *const c_char,
    /// Null if symbols have no versions.
    versions: *const u16,
    hash: *const u32,
    /// Whether the table may be made writable: it is in a segment without code.
    is_data: bool,
}

/// What the walk over the loaded files looks for.
struct Found {
    own: Option<Symbols>,
    c_libraries: [Option<Symbols>; FILES.len()],
}

/// Replaces the entries. Called once, by the constructor, after the functions behind this library's
/// own were looked up.
pub fn take_place() {
    let mut found = Found { own: None, c_libraries: [None; FILES.len()] };
    // SAFETY: the function gets the pointer that is passed here, to a value that is live meanwhile.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut found).cast()) };
    let Some(own) = found.own else { return };
    let libraries = found.c_libraries;
    // All are looked up before the first one is replaced.
    let entries = libraries.map(|it| {
        let library = it.filter(|it| it.is_data)?;
        // SAFETY: the symbols of files that stay loaded.
        Some(unsafe { entries_of(&library, &own, &libraries) })
    });
    for entries in entries.iter().flatten() {
        // SAFETY: the entries of one table, in a segment that is data.
        unsafe { write(entries) };
    }
}

/// Keeps the symbols of the files that are looked for.
unsafe extern "C" fn visit(info: *mut dl_phdr_info, _: usize, found: *mut c_void) -> c_int {
    // SAFETY: the loader passes a live description; the pointer is that of `take_place`.
    let (info, found) = unsafe { (&*info, &mut *found.cast::<Found>()) };
    let start = info.dlpi_addr as usize;
    // SAFETY: the loader's own array of headers.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let holds = |address: usize| {
        let offset = address.wrapping_sub(start) as u64;
        let is_in = |it: &&Elf64_Phdr| {
            it.p_type == libc::PT_LOAD && offset.wrapping_sub(it.p_vaddr) < it.p_memsz
        };
        headers.iter().find(is_in).copied()
    };
    let mut place = None;
    if holds(take_place as *const () as usize).is_some() {
        place = Some(&mut found.own);
    } else if !info.dlpi_name.is_null() {
        // SAFETY: the loader's own string.
        let name = unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes();
        let file = name.rsplit(|&byte| byte == b'/').next().unwrap_or(name);
        let index = FILES.iter().position(|wanted| *wanted == file);
        place = index.map(|index| &mut found.c_libraries[index]);
    }
    if let Some(place) = place
        && place.is_none()
    {
        // SAFETY: a loaded file's own headers.
        *place = unsafe { symbols(start, headers) }.map(|symbols| {
            let segment = holds(symbols.table.addr());
            let is_data = segment.is_some_and(|it| it.p_flags & (libc::PF_X | libc::PF_W) == 0);
            Symbols { is_data, ..symbols }
        });
    }
    0
}

/// Where a loaded file has its symbols, as its dynamic section tells.
///
/// # Safety
/// The headers are those of a file that is loaded at `base`.
unsafe fn symbols(base: usize, headers: &[Elf64_Phdr]) -> Option<Symbols> {
    let dynamic = headers.iter().find(|it| it.p_type == libc::PT_DYNAMIC)?;
    let mut at = ptr::with_exposed_provenance::<[u64; 2]>(base + dynamic.p_vaddr as usize);
    let mut places = [0_usize; 4];
    loop {
        // SAFETY: the section ends with an entry of tag zero.
        let [tag, value] = unsafe { at.read() };
        let idx = match tag {
            0 => break,
            DT_SYMTAB => Some(0),
            DT_STRTAB => Some(1),
            DT_VERSYM => Some(2),
            DT_GNU_HASH => Some(3),
            _ => None,
        };
        if let Some(idx) = idx {
            // Some loaders leave the offset, others store the address.
            let value = value as usize;
            places[idx] = if value < base { base + value } else { value };
        }
        at = at.wrapping_add(1);
    }
    let [table, names, versions, hash] = places;
    (table != 0 && names != 0 && hash != 0).then(|| Symbols {
        base,
        table: ptr::with_exposed_provenance(table),
        names: ptr::with_exposed_provenance(names),
        versions: ptr::with_exposed_provenance(versions),
        hash: ptr::with_exposed_provenance(hash),
        is_data: false,
    })
}

/// The parts of a file's hash table of names.
struct HashTable<'a> {
    first: usize,
    buckets: &'a [u32],
    chains: *const u32,
}

impl Symbols {
    /// # Safety
    /// The symbols of a file that is loaded.
    unsafe fn hash_table(&self) -> HashTable<'_> {
        // SAFETY: the format of DT_GNU_HASH: four words, a filter of as many 64-bit words as the
        // third one says, the buckets, whose number is the first word, and the chains.
        unsafe {
            let [buckets, first, filter] = [0, 1, 2].map(|idx| *self.hash.add(idx) as usize);
            let start = self.hash.add(4 + 2 * filter);
            HashTable {
                first,
                buckets: std::slice::from_raw_parts(start, buckets),
                chains: start.add(buckets),
            }
        }
    }

    /// Calls `visit` with each symbol of the bucket's chain, and its hash without the lowest bit.
    ///
    /// # Safety
    /// As [`Symbols::hash_table`].
    unsafe fn each_in(&self, bucket: usize, mut visit: impl FnMut(usize, u32)) {
        // SAFETY: the caller guarantees the file; a chain ends with an odd entry.
        unsafe {
            let hashes = self.hash_table();
            let mut idx = hashes.buckets[bucket] as usize;
            while idx >= hashes.first {
                let hash = *hashes.chains.add(idx - hashes.first);
                visit(idx, hash & !1);
                if hash & 1 != 0 {
                    return;
                }
                idx += 1;
            }
        }
    }

    /// # Safety
    /// As [`Symbols::hash_table`]; the file has a symbol of this index.
    unsafe fn name(&self, idx: usize) -> &CStr {
        // SAFETY: the caller guarantees the symbol; names are strings.
        unsafe { CStr::from_ptr(self.names.add((*self.table.add(idx)).st_name as usize)) }
    }

    /// Index of the function `name` in its default version.
    ///
    /// # Safety
    /// As [`Symbols::hash_table`].
    unsafe fn find(&self, name: &CStr) -> Option<usize> {
        let wanted = hash_of(name);
        let mut found = None;
        // SAFETY: the caller guarantees the file; a table with symbols has buckets.
        unsafe {
            let buckets = self.hash_table().buckets.len();
            self.each_in(wanted as usize % buckets.max(1), |idx, hash| {
                let is_default =
                    self.versions.is_null() || *self.versions.add(idx) & HIDDEN_VERSION == 0;
                let is_function = (*self.table.add(idx)).st_info & 15 == FUNCTION;
                if hash == wanted & !1 && is_default && is_function && self.name(idx) == name {
                    found = Some(idx);
                }
            });
        }
        found
    }

    /// # Safety
    /// As [`Symbols::name`].
    unsafe fn address(&self, idx: usize) -> usize {
        // SAFETY: the caller guarantees the symbol.
        self.base.wrapping_add(unsafe { (*self.table.add(idx)).st_value } as usize)
    }
}

fn hash_of(name: &CStr) -> u32 {
    let step = |hash: u32, &byte: &u8| hash.wrapping_mul(33).wrapping_add(u32::from(byte));
    name.to_bytes().iter().fold(5381, step)
}

/// An entry of a table of symbols, and its new value.
type Entry = (*const Elf64_Sym, u64);

/// The entries of one C library that get other values.
///
/// # Safety
/// The symbols of files that stay loaded.
unsafe fn entries_of(library: &Symbols, own: &Symbols, all: &[Option<Symbols>]) -> Vec<Entry> {
    let mut entries = vec![];
    // SAFETY: the caller guarantees the files.
    unsafe {
        for bucket in 0..own.hash_table().buckets.len() {
            own.each_in(bucket, |idx, _| {
                let name = own.name(idx);
                if !name.to_bytes().starts_with(OWN_PREFIX)
                    && is_next(name, all)
                    && let Some(theirs) = library.find(name)
                {
                    let value = own.address(idx).wrapping_sub(library.base) as u64;
                    entries.push((library.table.add(theirs), value));
                }
            });
        }
    }
    entries
}

/// Whether this library's next definition of `name` is a C library's own. Another library between
/// the two would call this one for ever.
///
/// # Safety
/// As [`entries_of`].
unsafe fn is_next(name: &CStr, all: &[Option<Symbols>]) -> bool {
    // SAFETY: the caller guarantees the files; the name is a string.
    unsafe {
        let next = libc::dlsym(libc::RTLD_NEXT, name.as_ptr()).addr();
        let is_there = |it: &Symbols| it.find(name).is_some_and(|idx| it.address(idx) == next);
        all.iter().flatten().any(is_there)
    }
}

/// Writes the values of entries that lie in memory without write access.
///
/// # Safety
/// The entries are those of one table of symbols, in a segment that is data.
unsafe fn write(entries: &[Entry]) {
    let addresses = || entries.iter().map(|(entry, _)| entry.addr());
    let (Some(first), Some(last)) = (addresses().min(), addresses().max()) else { return };
    let page = rustix::param::page_size();
    let begin = first / page * page;
    let bytes = (last + size_of::<Elf64_Sym>()).next_multiple_of(page) - begin;
    let start = ptr::with_exposed_provenance_mut::<c_void>(begin);
    // SAFETY: the pages hold data of a loaded file that the loader alone reads; others may read it
    // meanwhile, so each value is written at once.
    unsafe {
        if libc::mprotect(start, bytes, libc::PROT_READ | libc::PROT_WRITE) != 0 {
            return;
        }
        for (entry, value) in entries {
            let place = (&raw const (**entry).st_value).cast_mut();
            AtomicU64::from_ptr(place).store(*value, Ordering::Relaxed);
        }
        libc::mprotect(start, bytes, libc::PROT_READ);
    }
}
