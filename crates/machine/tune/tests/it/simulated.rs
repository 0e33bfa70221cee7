//! A machine of files and links in a temporary folder. It can stop at any operation, it rounds, and
//! it resets settings as drivers do.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use nm_settings::SettingId;
use nm_settings::target::{LinkName, LinkSetting, Place, Target};
use nm_settings::value::Value;
use nm_sys::hostfiles::HostFiles;
use nm_tune::apply::{Applied, ApplyError};
use nm_tune::journal::{FileLog, Folder, JournalError, Lock, Log};
use nm_tune::machine::{AccessError, Device, HostMachine, Machine, Origin, Writer};
use nm_tune::plan::{StepChange, Wanted, WantedChange};
use nm_tune::record::{Begin, FORMAT, Record, RunId};
use nm_tune::run::Run;
use nm_tune::undo::{Choices, UndoError, Undone};

/// Largest number of packets that the simulated driver takes; it rounds down to it.
pub const FRAMES_MAX: u32 = 64;

/// What the simulated driver sets when its queues restart.
const COALESCING_DEFAULT: [u32; 4] = [8, 16, 8, 16];

/// How a process ends at an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Before it.
    Before,
    /// In the middle: a line of the journal is torn. A write to the machine is one step.
    Torn,
    /// After it.
    After,
}

/// Counts operations, and ends the process at one of them.
#[derive(Debug, Clone, Default)]
pub struct Fuse {
    left: Rc<Cell<Option<u64>>>,
    end: Rc<Cell<Option<End>>>,
    pub count: Rc<Cell<u64>>,
}

impl Fuse {
    pub fn at(operation: u64, end: End) -> Fuse {
        let fuse = Fuse::default();
        fuse.left.set(Some(operation));
        fuse.end.set(Some(end));
        fuse
    }

    /// Whether this operation is the last one, and how it ends; an error if the process is dead.
    fn burn(&self) -> Result<Option<End>, io::Error> {
        self.count.set(self.count.get() + 1);
        match self.left.get() {
            None => Ok(None),
            Some(0) => {
                let end = self.end.take().ok_or_else(dead)?;
                Ok(Some(end))
            }
            Some(left) => {
                self.left.set(Some(left - 1));
                Ok(None)
            }
        }
    }
}

fn dead() -> io::Error {
    io::Error::other("the process has ended")
}

/// All files, and all settings of links.
pub type State = (BTreeMap<PathBuf, Vec<u8>>, BTreeMap<(LinkName, LinkSetting), Vec<u32>>);

/// The machine.
pub struct Simulated {
    pub files: HostMachine,
    pub links: BTreeMap<(LinkName, LinkSetting), Vec<u32>>,
    pub origin: Origin,
    pub devices: BTreeMap<LinkName, Device>,
    pub fuse: Fuse,
    /// Folder of the files.
    pub root: PathBuf,
    /// A setting whose next write the kernel does not finish, and the value once it is asked for.
    pub slow: Option<(Target, Option<Value>)>,
}

pub fn link(name: &str) -> LinkName {
    name.parse().unwrap()
}

impl Simulated {
    /// A machine with files below `root`, and one link.
    pub fn new(root: &Path) -> Simulated {
        for (path, text) in [
            ("/proc/sys/kernel/numa_balancing", "1\n"),
            ("/proc/sys/net/ipv4/tcp_autocorking", "1\n"),
            ("/proc/sys/vm/stat_interval", "1"),
            ("/proc/sys/vm/dirty_background_bytes", "0\n"),
            ("/proc/sys/vm/dirty_background_ratio", "10\n"),
            ("/sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n"),
            ("/sys/kernel/mm/ksm/run", "1\n"),
            ("/sys/devices/virtual/workqueue/cpumask", "f\n"),
            ("/sys/devices/system/cpu/online", "0-3\n"),
            ("/sys/devices/system/cpu/cpu2/power/pm_qos_resume_latency_us", "0\n"),
            ("/sys/devices/system/cpu/cpu3/power/pm_qos_resume_latency_us", "n/a\n"),
            ("/proc/irq/7/smp_affinity_list", "0-3\n"),
            ("/proc/irq/8/smp_affinity_list", "2\n"),
        ] {
            put(root, path, text);
        }
        let nic = link("nic0");
        let values: [(LinkSetting, Vec<u32>); 4] = [
            (LinkSetting::Coalescing, vec![125, 32, 125, 32]),
            (LinkSetting::Rings, vec![256, 0, 0, 256]),
            (LinkSetting::Channels, vec![0, 0, 1, 4]),
            (LinkSetting::Gro, vec![1]),
        ];
        let device = Device {
            driver: "simulated".into(),
            bus: "0000:01:00.0".into(),
            mac: "02:00:00:00:00:01".into(),
        };
        Simulated {
            files: HostMachine::recorded(root),
            links: values.into_iter().map(|(key, value)| ((nic.clone(), key), value)).collect(),
            origin: Origin {
                boot_id: "boot-1".into(),
                mount_namespace: "mnt:[1]".into(),
                network_namespace: "net:[1]".into(),
            },
            devices: [(nic, device)].into(),
            fuse: Fuse::default(),
            root: root.to_path_buf(),
            slow: None,
        }
    }

    /// The kernel finishes the write that it had not finished, or gives it up.
    pub fn finish(&mut self, is_done: bool) {
        let (target, value) = self.slow.take().unwrap();
        if is_done {
            self.overwrite(&target, value.unwrap());
        }
    }

    /// Everything that can be changed.
    pub fn state(&self) -> State {
        let mut files = BTreeMap::new();
        collect(&self.root, &mut files);
        (files, self.links.clone())
    }

    /// Somebody else writes a setting.
    pub fn overwrite(&mut self, target: &Target, value: Value) {
        match target {
            Target::Link { link, setting } => {
                let Value::Numbers(numbers) = value else { panic!("numbers are wanted") };
                self.links.insert((link.clone(), *setting), numbers);
            }
            _ => self.files.write(target, &value).unwrap(),
        }
    }
}

pub fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path.trim_start_matches('/'));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn collect(folder: &Path, into: &mut BTreeMap<PathBuf, Vec<u8>>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => collect(&path, into),
            false => drop(into.insert(path.clone(), fs::read(&path).unwrap())),
        }
    }
}

fn unfinished() -> AccessError {
    let writer = Writer { pid: 77, started_ticks: 1 };
    AccessError::Unfinished { path: "/sys/slow".into(), writer }
}

fn no_device(target: &Target) -> AccessError {
    AccessError::Driver {
        action: "read",
        target: target.to_string(),
        source: io::Error::from_raw_os_error(95),
    }
}

impl Machine for Simulated {
    fn read(&self, target: &Target) -> Result<Value, AccessError> {
        match target.place() {
            Place::Driver(link, setting) => {
                let numbers = self.links.get(&(link, setting));
                numbers.cloned().map(Value::Numbers).ok_or_else(|| no_device(target))
            }
            _ => self.files.read(target),
        }
    }

    fn write(&mut self, target: &Target, value: &Value) -> Result<(), AccessError> {
        let failed =
            |source| AccessError::Driver { action: "write", target: target.to_string(), source };
        let end = self.fuse.burn().map_err(failed)?;
        if self.slow.as_ref().is_some_and(|(slow, _)| slow == target) {
            self.slow = Some((target.clone(), Some(value.clone())));
            return Err(unfinished());
        }
        if matches!(end, Some(End::Before | End::Torn)) {
            return Err(failed(dead()));
        }
        match (target.place(), value) {
            (Place::Driver(link, setting), Value::Numbers(numbers)) => {
                let mut numbers = numbers.clone();
                if setting == LinkSetting::Coalescing {
                    numbers[1] = numbers[1].min(FRAMES_MAX);
                }
                let key = (link.clone(), LinkSetting::Coalescing);
                if setting.resets_others() && self.links.contains_key(&key) {
                    self.links.insert(key, COALESCING_DEFAULT.to_vec());
                }
                self.links.insert((link, setting), numbers);
            }
            _ => self.files.write(target, value)?,
        }
        if end.is_some() { Err(failed(dead())) } else { Ok(()) }
    }

    fn is_writing(&self, _writer: &Writer) -> bool {
        self.slow.is_some()
    }

    fn origin(&self) -> Result<Origin, AccessError> {
        Ok(self.origin.clone())
    }

    fn links(&self) -> Vec<LinkName> {
        self.devices.keys().cloned().collect()
    }

    fn device(&self, link: &LinkName) -> Option<Device> {
        self.devices.get(link).cloned()
    }

    fn limits(&self, _target: &Target) -> Option<Vec<u32>> {
        Some(vec![4096, 0, 0, 4096])
    }

    fn files(&self) -> &HostFiles {
        self.files.files()
    }
}

/// A journal whose writer can end at any append.
pub struct FusedLog {
    pub log: FileLog,
    pub path: PathBuf,
    pub fuse: Fuse,
}

impl Log for FusedLog {
    fn append(&mut self, record: &Record) -> Result<(), JournalError> {
        let failed =
            |source| JournalError::System { action: "write", path: self.path.clone(), source };
        let end = self.fuse.burn().map_err(failed)?;
        match end {
            None => self.log.append(record),
            Some(End::Before) => Err(failed(dead())),
            Some(End::After) => {
                self.log.append(record)?;
                Err(failed(dead()))
            }
            Some(End::Torn) => {
                let line = serde_json::to_string(record).unwrap();
                let torn = &line.as_bytes()[..line.len() / 2];
                let mut bytes = fs::read(&self.path).unwrap();
                bytes.extend_from_slice(torn);
                fs::write(&self.path, bytes).unwrap();
                Err(failed(dead()))
            }
        }
    }
}

/// A temporary folder in memory, where syncing costs nothing.
pub fn folder() -> tempfile::TempDir {
    match Path::new("/dev/shm").is_dir() {
        true => tempfile::tempdir_in("/dev/shm").unwrap(),
        false => tempfile::tempdir().unwrap(),
    }
}

/// A machine and its journals.
pub struct Bench {
    pub machine: Simulated,
    pub folder: Folder,
    pub id: RunId,
    _temporary: tempfile::TempDir,
}

impl Bench {
    pub fn new() -> Bench {
        let temporary = folder();
        Bench {
            machine: Simulated::new(&temporary.path().join("root")),
            folder: Folder::open(&temporary.path().join("journal")).unwrap(),
            id: "run-1".parse().unwrap(),
            _temporary: temporary,
        }
    }

    pub fn begin(&self) -> Begin {
        Begin {
            format: FORMAT,
            run: self.id.clone(),
            started: "2026-01-01T00:00:00Z".into(),
            version: "0".into(),
            root: "/".into(),
            origin: self.machine.origin.clone(),
            confirm_within_s: None,
            name: None,
        }
    }

    fn fused(&self, log: FileLog) -> FusedLog {
        let path = self.folder.path().join(format!("{}.jsonl", self.id));
        FusedLog { log, path, fuse: self.machine.fuse.clone() }
    }

    /// The lock, when it is free: a child that another test's thread has forked keeps the one
    /// before until it executes its program.
    pub fn lock(&self) -> Lock {
        for _ in 0..1_000 {
            match self.folder.lock() {
                Err(JournalError::Busy(_)) => std::thread::sleep(Duration::from_millis(10)),
                locked => return locked.unwrap(),
            }
        }
        panic!("the lock stays busy")
    }

    pub fn apply(&mut self, changes: &[StepChange]) -> Result<Applied, ApplyError> {
        let (lock, begin) = (self.lock(), self.begin());
        let log = self.folder.begin(&begin, &lock).unwrap();
        let mut log = self.fused(log);
        let mut run = Run::begun(begin);
        let never = AtomicBool::new(false);
        nm_tune::apply(&mut self.machine, &mut log, &mut run, changes, &never)
    }

    pub fn run(&self) -> Run {
        self.folder.run(&self.id).unwrap().expect("the run has begun")
    }

    pub fn undo(&mut self, choices: &Choices) -> Result<Undone, UndoError> {
        let lock = self.lock();
        let log = self.folder.resume(&self.id, &lock).unwrap();
        let mut log = self.fused(log);
        let mut run = self.run();
        let never = AtomicBool::new(false);
        nm_tune::undo(&mut self.machine, &mut log, &mut run, choices, &never)
    }
}

pub fn step_change(target: Target, wanted: Wanted) -> StepChange {
    // Which step it is does not matter to the engine, only that choices can name it.
    StepChange { step: step_of(&target), change: WantedChange { target, wanted } }
}

pub fn step_of(target: &Target) -> SettingId {
    match target {
        Target::Link { setting: LinkSetting::Coalescing, .. } => SettingId::NicCoalesce,
        Target::Link { setting: LinkSetting::Rings, .. } => SettingId::NicRings,
        Target::Link { setting: LinkSetting::Channels, .. } => SettingId::NicChannels,
        Target::Link { .. } => SettingId::NicGro,
        Target::Irq { .. } => SettingId::IrqNic,
        _ => SettingId::MemThp,
    }
}
