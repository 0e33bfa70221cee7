//! A disk in memory for tests. Processes see what was written; a power loss takes what was not
//! synced, in any selection of blocks and names. Faults come from a seed.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nm_codec::Random;

use crate::storage;

/// Bytes that a power loss takes or leaves as one.
pub const BLOCK_BYTES: usize = 512;

/// How often faults happen, in a thousand operations of the kind.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// A write fails, after a part of it.
    pub write: u64,
    /// A sync fails: some blocks reached the disk, and the system forgets the others.
    pub sync: u64,
    /// A block of a file cannot be read.
    pub read: u64,
}

/// What a disk does wrong with one whole write, and says that it has done it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lie {
    /// It does not write it.
    Lost,
    /// It writes some sectors of it.
    Torn,
    /// It writes it to another place, of this or another file.
    Misdirected,
}

#[derive(Debug, Clone, Default)]
struct Inode {
    /// What processes see.
    content: Vec<u8>,
    /// What the disk has.
    durable: Vec<u8>,
    /// What it had before the last sync that changed it.
    before: Vec<u8>,
    /// Blocks that were written since the last sync, and the writes: first and behind the last one.
    dirty: BTreeSet<usize>,
    writes: Vec<(usize, usize)>,
    /// The shortest that the file was since the last sync.
    shortest: usize,
}

#[derive(Debug)]
enum NameChange {
    Add(PathBuf, u64),
    Remove(PathBuf),
    Rename(PathBuf, PathBuf, u64),
}

#[derive(Debug)]
struct State {
    random: Random,
    faults: Faults,
    inodes: BTreeMap<u64, Inode>,
    names: BTreeMap<PathBuf, u64>,
    durable_names: BTreeMap<PathBuf, u64>,
    /// Changes of names since their folder was synced.
    pending: Vec<NameChange>,
    inode_count: u64,
    /// Operations until the power fails.
    left: Option<u64>,
    is_off: bool,
    /// Writes until the disk lies.
    lie: Option<(Lie, u64)>,
    injected: BTreeMap<&'static str, u64>,
}

/// A disk.
#[derive(Debug, Clone)]
pub struct Disk(Arc<Mutex<State>>);

/// A file on it.
#[derive(Debug)]
pub struct File {
    disk: Disk,
    inode: u64,
}

fn input_output_error() -> io::Error {
    io::Error::from_raw_os_error(5)
}

impl Lie {
    fn name(self) -> &'static str {
        match self {
            Lie::Lost => "lost write",
            Lie::Torn => "torn write",
            Lie::Misdirected => "misdirected write",
        }
    }
}

impl Inode {
    /// Blocks and length reach the disk, each if `reaches` says so.
    fn write_back(&mut self, mut reaches: impl FnMut() -> bool) {
        if !self.dirty.is_empty() {
            self.before.clone_from(&self.durable);
        }
        self.writes.clear();
        if reaches() {
            self.durable.truncate(self.shortest);
            self.durable.resize(self.content.len(), 0);
        }
        for block in std::mem::take(&mut self.dirty) {
            let start = block * BLOCK_BYTES;
            let end = (start + BLOCK_BYTES).min(self.content.len()).min(self.durable.len());
            if start < end && reaches() {
                self.durable[start..end].copy_from_slice(&self.content[start..end]);
            }
        }
        self.shortest = self.content.len();
    }
}

impl State {
    fn inject(&mut self, kind: &'static str, per_mille: u64) -> bool {
        let is_injected = self.random.chance(per_mille);
        if is_injected {
            *self.injected.entry(kind).or_default() += 1;
        }
        is_injected
    }

    /// Counts an operation that changes something; fails if the power does.
    fn step(&mut self) -> io::Result<()> {
        if self.left.is_some_and(|left| left == 0) {
            self.is_off = true;
        }
        self.left = self.left.map(|left| left.saturating_sub(1));
        if self.is_off { Err(io::Error::other("the power is off")) } else { Ok(()) }
    }

    fn inode(&mut self, number: u64) -> &mut Inode {
        self.inodes.entry(number).or_default()
    }

    fn of(&self, path: &Path) -> io::Result<u64> {
        self.names.get(path).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn apply(names: &mut BTreeMap<PathBuf, u64>, change: NameChange) {
        match change {
            NameChange::Add(path, inode) => drop(names.insert(path, inode)),
            NameChange::Remove(path) => drop(names.remove(&path)),
            NameChange::Rename(from, to, inode) => {
                names.remove(&from);
                names.insert(to, inode);
            }
        }
    }

    fn sync(&mut self, number: u64) -> io::Result<()> {
        let is_on = self.step();
        let fails = is_on.is_err() || self.inject("failed sync", self.faults.sync);
        let (mut random, mut inode) =
            (self.random.clone(), self.inodes.remove(&number).unwrap_or_default());
        if fails {
            let seen = inode.content.clone();
            inode.write_back(|| random.chance(500));
            // The length is metadata, which file systems keep in a journal: it is not forgotten.
            inode.content = if random.chance(800) {
                seen
            } else {
                let mut evicted = inode.durable.clone();
                evicted.resize(seen.len(), 0);
                evicted
            };
        } else {
            let lie = self.lie_due(inode.writes.len()).zip(inode.writes.last().copied());
            let true_content = inode.content.clone();
            inode.write_back(|| true);
            if let Some((lie, write)) = lie {
                self.inodes.insert(number, inode.clone());
                self.lie(lie, (number, write), &true_content, &mut random);
                inode = self.inodes.remove(&number).unwrap_or_default();
            }
        }
        self.random = random;
        self.inodes.insert(number, inode);
        is_on?;
        if fails { Err(input_output_error()) } else { Ok(()) }
    }

    /// Counts writes; whether the disk lies about the last of them.
    fn lie_due(&mut self, writes: usize) -> Option<Lie> {
        let (lie, left) = self.lie?;
        if writes as u64 <= left {
            self.lie = Some((lie, left - writes as u64));
            return None;
        }
        self.lie = None;
        Some(lie)
    }

    /// Takes a write back that reached the disk, and perhaps writes it to another place.
    fn lie(
        &mut self,
        lie: Lie,
        (number, (start, end)): (u64, (usize, usize)),
        written: &[u8],
        random: &mut Random,
    ) {
        *self.injected.entry(lie.name()).or_default() += 1;
        let is_evicted = random.chance(500);
        let inode = self.inode(number);
        for block in start / BLOCK_BYTES..=(end - 1) / BLOCK_BYTES {
            let is_written = lie == Lie::Torn && random.chance(500);
            if is_written || block * BLOCK_BYTES >= inode.durable.len() {
                continue;
            }
            let of = block * BLOCK_BYTES..((block + 1) * BLOCK_BYTES).min(inode.durable.len());
            let mut before = inode.before.get(of.start..).unwrap_or_default().to_vec();
            before.resize(of.len(), 0);
            inode.durable[of.clone()].copy_from_slice(&before);
            // The system may know the true content until the power fails.
            if is_evicted {
                inode.content[of].copy_from_slice(&before);
            }
        }
        if lie != Lie::Misdirected {
            return;
        }
        let numbers: Vec<u64> = self.inodes.keys().copied().collect();
        let target = numbers[random.below(numbers.len() as u64) as usize];
        let target = self.inode(target);
        let unit = if random.chance(500) { 8 * BLOCK_BYTES } else { BLOCK_BYTES };
        let at = random.below((target.durable.len() / unit) as u64 + 1) as usize * unit;
        let first = start / unit * unit;
        let bytes = written.get(first..end).unwrap_or_default();
        let count = bytes.len().min(target.durable.len().saturating_sub(at));
        if count > 0 {
            target.durable[at..at + count].copy_from_slice(&bytes[..count]);
        }
    }

    fn lose_power(&mut self) {
        let kept = [0, 500, 500, 900, 1000][self.random.below(5) as usize];
        for change in std::mem::take(&mut self.pending) {
            if self.random.chance(kept) {
                State::apply(&mut self.durable_names, change);
            }
        }
        self.names.clone_from(&self.durable_names);
        let names = &self.names;
        self.inodes.retain(|number, _| names.values().any(|named| named == number));
        for inode in self.inodes.values_mut() {
            let random = &mut self.random;
            inode.write_back(|| random.chance(kept));
            inode.content.clone_from(&inode.durable);
            inode.shortest = inode.content.len();
        }
        (self.is_off, self.left) = (false, None);
    }
}

impl Disk {
    /// An empty disk.
    pub fn new(seed: u64, faults: Faults) -> Disk {
        Disk(Arc::new(Mutex::new(State {
            random: Random::new(seed),
            faults,
            inodes: BTreeMap::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            pending: vec![],
            inode_count: 0,
            left: None,
            is_off: false,
            lie: None,
            injected: BTreeMap::new(),
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often faults happen from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// The power fails after so many more operations.
    pub fn fail_after(&self, operations: u64) {
        self.state().left = Some(operations);
    }

    /// Whether it has failed.
    pub fn is_off(&self) -> bool {
        self.state().is_off
    }

    /// Takes what was not synced, and switches the power on again.
    pub fn lose_power(&self) {
        self.state().lose_power();
    }

    /// The power does not fail any more as [`Disk::fail_after`] said.
    pub fn cancel_failure(&self) {
        self.state().left = None;
    }

    /// While the disk is switched off, nothing changes it.
    pub fn switch(&self, is_on: bool) {
        self.state().is_off = !is_on;
    }

    /// The disk lies once, after so many more writes.
    pub fn lie_after(&self, lie: Lie, writes: u64) {
        self.state().lie = Some((lie, writes));
    }

    /// A file, or some blocks of it, are as they were before the last sync that changed them, while
    /// no process runs.
    pub fn grow_stale(&self) {
        let mut state = self.state();
        let numbers: Vec<u64> = state.inodes.keys().copied().collect();
        let Some(last) = numbers.len().checked_sub(1) else { return };
        let number = numbers[state.random.below(last as u64 + 1) as usize];
        let (is_all, mut random) = (state.random.chance(500), state.random.clone());
        let inode = state.inode(number);
        let mut before = inode.before.clone();
        before.resize(inode.durable.len(), 0);
        for (old, new) in before.chunks(BLOCK_BYTES).zip(inode.durable.chunks_mut(BLOCK_BYTES)) {
            if is_all || random.chance(500) {
                new.copy_from_slice(old);
            }
        }
        inode.content.clone_from(&inode.durable);
        state.random = random;
        *state.injected.entry("stale").or_default() += 1;
    }

    /// The same blocks of these files cannot be read or are full of ones, while no process runs.
    pub fn damage_all(&self, may_damage: impl Fn(&Path) -> bool) {
        let mut state = self.state();
        let names = state.names.iter().filter(|(path, _)| may_damage(path));
        let numbers: Vec<u64> = names.map(|(_, number)| *number).collect();
        let blocks = numbers.first().map_or(1, |it| state.inodes[it].durable.len() / BLOCK_BYTES);
        let first = state.random.below(blocks as u64) as usize * BLOCK_BYTES;
        let bytes = (1 + state.random.below(16) as usize) * BLOCK_BYTES;
        let with = if state.random.chance(500) { 0 } else { 0xff };
        for number in numbers {
            let inode = state.inode(number);
            let end = inode.durable.len().min(first + bytes);
            inode.durable[first.min(end)..end].fill(with);
            inode.content.clone_from(&inode.durable);
        }
        *state.injected.entry("damaged copies").or_default() += 1;
    }

    /// Changes a bit of one of these files, where it is not zero, while no process runs.
    pub fn rot(&self, may_rot: impl Fn(&Path) -> bool) -> Option<PathBuf> {
        let mut state = self.state();
        let names = state.names.iter().map(|(path, of)| (path.clone(), *of));
        let mut names: Vec<(PathBuf, u64)> = names.filter(|(path, _)| may_rot(path)).collect();
        let one = state.random.below(names.len().max(1) as u64) as usize;
        let (path, number) = (one < names.len()).then(|| names.swap_remove(one))?;
        let random = state.random.number();
        let inode = state.inode(number);
        let used: Vec<usize> = inode
            .durable
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte != 0)
            .map(|(at, _)| at)
            .collect();
        let at = *used.get(random as usize % used.len().max(1))?;
        inode.durable[at] ^= 1 << (random >> 40 & 7);
        inode.content.clone_from(&inode.durable);
        *state.injected.entry("bit rot").or_default() += 1;
        Some(path)
    }

    /// Faults that were injected, by kind.
    pub fn injected(&self) -> BTreeMap<&'static str, u64> {
        self.state().injected.clone()
    }

    pub fn open(&self, path: &Path, is_new: bool) -> io::Result<File> {
        let mut state = self.state();
        if is_new {
            state.step()?;
        }
        let inode = match state.of(path) {
            Ok(inode) if is_new => {
                let inode_state = state.inode(inode);
                inode_state.content.clear();
                inode_state.dirty.clear();
                inode_state.writes.clear();
                inode_state.shortest = 0;
                inode
            }
            Err(_) if is_new => {
                state.inode_count += 1;
                let inode = state.inode_count;
                state.names.insert(path.into(), inode);
                state.pending.push(NameChange::Add(path.into(), inode));
                inode
            }
            found => found?,
        };
        Ok(File { disk: self.clone(), inode })
    }

    pub fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let mut state = self.state();
        let number = state.of(path)?;
        if state.is_off {
            return Err(io::Error::other("the power is off"));
        }
        let mut content = state.inode(number).content.clone();
        let per_mille = state.faults.read;
        if !content.is_empty() && state.inject("failed read", per_mille) {
            let bad = state.random.below(content.len() as u64) as usize / BLOCK_BYTES;
            let end = content.len().min((bad + 1) * BLOCK_BYTES);
            content[bad * BLOCK_BYTES..end].fill(0);
        }
        Ok(content)
    }

    pub fn size(&self, path: &Path) -> io::Result<u64> {
        let mut state = self.state();
        let number = state.of(path)?;
        Ok(state.inode(number).content.len() as u64)
    }

    pub fn list(&self, folder: &Path) -> Vec<PathBuf> {
        let state = self.state();
        state.names.keys().filter(|path| path.parent() == Some(folder)).cloned().collect()
    }

    pub fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.step()?;
        state.of(path)?;
        state.names.remove(path);
        state.pending.push(NameChange::Remove(path.into()));
        Ok(())
    }

    pub fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.step()?;
        let inode = state.of(from)?;
        State::apply(&mut state.names, NameChange::Rename(from.into(), to.into(), inode));
        state.pending.push(NameChange::Rename(from.into(), to.into(), inode));
        Ok(())
    }

    pub fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.step()?;
        let per_mille = state.faults.sync;
        if state.inject("failed sync", per_mille) {
            return Err(input_output_error());
        }
        let pending = std::mem::take(&mut state.pending);
        for change in pending {
            let (NameChange::Add(path, _)
            | NameChange::Remove(path)
            | NameChange::Rename(_, path, _)) = &change;
            if path.parent() == Some(folder) {
                State::apply(&mut state.durable_names, change);
            } else {
                state.pending.push(change);
            }
        }
        Ok(())
    }
}

impl storage::File for File {
    fn write_all_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let mut state = self.disk.state();
        state.step()?;
        let per_mille = state.faults.write;
        let fails = state.inject("failed write", per_mille);
        let count =
            if fails { state.random.below(bytes.len() as u64 + 1) } else { bytes.len() as u64 };
        let (start, end) = (at as usize, (at + count) as usize);
        let inode = state.inode(self.inode);
        if inode.content.len() < end {
            inode.content.resize(end, 0);
        }
        if start < end {
            inode.content[start..end].copy_from_slice(&bytes[..count as usize]);
            inode.dirty.extend(start / BLOCK_BYTES..=(end - 1) / BLOCK_BYTES);
            inode.writes.push((start, end));
        }
        if fails { Err(input_output_error()) } else { Ok(()) }
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        let mut state = self.disk.state();
        state.step()?;
        let inode = state.inode(self.inode);
        inode.content.resize(bytes as usize, 0);
        inode.shortest = inode.shortest.min(bytes as usize);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.disk.state().sync(self.inode)
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::File as _;

    fn write(disk: &Disk, path: &str, bytes: &[u8]) -> File {
        let file = disk.open(Path::new(path), true).unwrap();
        file.write_all_at(bytes, 0).unwrap();
        file
    }

    #[test]
    fn a_power_loss_takes_only_what_was_not_synced() {
        for seed in 0..50 {
            let disk = Disk::new(seed, Faults::default());
            let file = write(&disk, "/a/kept", b"synced");
            file.sync_data().unwrap();
            disk.sync_folder(Path::new("/a")).unwrap();
            file.write_all_at(b"S", 0).unwrap();
            write(&disk, "/a/name", b"not synced").sync_data().unwrap();
            disk.lose_power();
            let kept = disk.read(Path::new("/a/kept")).unwrap();
            assert!(kept == b"synced" || kept == b"Synced", "{kept:?}");
        }
    }

    #[test]
    fn after_a_failed_sync_processes_see_what_the_disk_lacks() {
        let lacks = |seed: &u64| {
            let disk = Disk::new(*seed, Faults { sync: 1000, ..Faults::default() });
            let path = Path::new("/a/file");
            let file = write(&disk, "/a/file", b"new");
            assert!(file.sync_data().is_err());
            disk.set_faults(Faults::default());
            disk.sync_folder(Path::new("/a")).unwrap();
            file.sync_data().unwrap();
            let seen = disk.read(path).unwrap();
            disk.lose_power();
            seen == b"new" && disk.read(path).unwrap() != b"new"
        };
        assert!((0..50).filter(lacks).count() > 5);
    }

    #[test]
    fn the_power_fails_after_so_many_operations() {
        let disk = Disk::new(1, Faults::default());
        disk.fail_after(2);
        let file = write(&disk, "/a/file", b"x");
        assert!(!disk.is_off() && file.sync_data().is_err() && disk.is_off());
        assert!(disk.read(Path::new("/a/file")).is_err());
        disk.lose_power();
        assert!(!disk.is_off());
    }
}
