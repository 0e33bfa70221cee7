//! Recordings: the files of a snapshot as a folder that `audit --root` reads, without what names
//! the machine or its owner.
//!
//! Replaced are host name, addresses and identifiers, names of programs, control groups and virtual
//! machines, and values of kernel parameters that are paths or addresses. Equal ones stay equal, so
//! that the checks find the same. Names of network links, versions and models are kept.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use nm_model::snapshot::{Calls, SecondSample};
use nm_model::{Snapshot, limits};
use serde::{Deserialize, Serialize};

use crate::identity::{Identities, without_address};

/// What files cannot hold, in the recording's folder.
const ANSWERS: &str = "answers.json";

/// Where symbolic links lead to, in the recording's folder.
const TARGETS: &str = "targets";

/// Programs that checks look for. The names of others are replaced.
const PROGRAMS_KEPT: [&str; 10] = [
    "auditd",
    "chronyd",
    "firecracker",
    "irqbalance",
    "ntpd",
    "phc2sys",
    "ptp4l",
    "stalld",
    "systemd-timesyn",
    "tuned",
];

/// Parts of the paths of control groups that are the same on all machines.
const GROUPS_KEPT: [&str; 8] = [
    "docker",
    "init.scope",
    "kubepods",
    "kubepods.slice",
    "lxc",
    "machine.slice",
    "system.slice",
    "user.slice",
];

/// Answers of calls, the second sample, and what could not be read.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Answers {
    calls: Calls,
    second: Option<SecondSample>,
    unreadable: BTreeMap<String, String>,
}

/// Why a recording cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// There is something already.
    #[error("{} is not empty; name a new folder", .0.display())]
    NotEmpty(PathBuf),
    /// A folder or file cannot be written.
    #[error("{} cannot be written: {source}", .path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// The snapshot without what names the machine or its owner.
pub fn anonymous(snapshot: &Snapshot) -> Snapshot {
    let mut scrub = Scrub::of(snapshot);
    let mut copy = snapshot.clone();
    copy.files = scrub.files(&snapshot.files);
    copy.folders = snapshot
        .folders
        .iter()
        .map(|(path, names)| {
            let mut names: Vec<String> = names.iter().map(|name| scrub.name(path, name)).collect();
            names.sort();
            (scrub.path(path), names)
        })
        .collect();
    copy.symlinks =
        snapshot.symlinks.iter().map(|(path, to)| (scrub.path(path), to.clone())).collect();
    copy.present = snapshot.present.iter().map(|path| scrub.path(path)).collect();
    copy.unreadable =
        snapshot.unreadable.iter().map(|(path, why)| (scrub.path(path), why.clone())).collect();
    for link in copy.calls.links.iter_mut().flat_map(BTreeMap::values_mut) {
        link.mac = link.mac.as_deref().map(|mac| scrub.identities.replace(mac));
    }
    if let (Some(second), Some(before)) = (&mut copy.second, &snapshot.second) {
        second.files = scrub.files(&before.files);
    }
    copy.left_out = snapshot.left_out.iter().map(|one| scrub.identities.replace(one)).collect();
    copy
}

/// Writes the recording of a snapshot into a new or empty folder.
pub fn write(snapshot: &Snapshot, folder: &Path) -> Result<(), RecordError> {
    let failed = |path: &Path| {
        let path = path.to_path_buf();
        move |source| RecordError::Write { path, source }
    };
    fs::create_dir_all(folder).map_err(failed(folder))?;
    if fs::read_dir(folder).map_err(failed(folder))?.next().is_some() {
        return Err(RecordError::NotEmpty(folder.to_path_buf()));
    }
    let written = write_into(&anonymous(snapshot), folder);
    if written.is_err() {
        // The folder was empty; without this a repetition would be refused.
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()) {
            let _ = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        }
    }
    written
}

fn write_into(snapshot: &Snapshot, folder: &Path) -> Result<(), RecordError> {
    let failed = |path: &Path| {
        let path = path.to_path_buf();
        move |source| RecordError::Write { path, source }
    };
    let at = |path: &str| folder.join(path.trim_start_matches('/'));
    // A link comes before the files behind it.
    for (number, (path, name)) in snapshot.symlinks.iter().enumerate() {
        link(folder, &at(path), number, name).map_err(failed(&at(path)))?;
    }
    for (path, text) in &snapshot.files {
        write_file(&at(path), text).map_err(failed(&at(path)))?;
    }
    let names = snapshot.folders.iter().flat_map(|(path, names)| {
        let path = path.trim_end_matches('/');
        names.iter().map(move |name| format!("{path}/{name}"))
    });
    for path in snapshot.present.iter().cloned().chain(names) {
        if !at(&path).exists() {
            fs::create_dir_all(at(&path)).map_err(failed(&at(&path)))?;
        }
    }
    let Snapshot { calls, second, unreadable, .. } = snapshot.clone();
    let answers = Answers { calls, second, unreadable };
    let path = folder.join(ANSWERS);
    let json = serde_json::to_string_pretty(&answers).map_err(io::Error::other);
    json.and_then(|json| fs::write(&path, json + "\n")).map_err(failed(&path))
}

/// Adds what the files of a recording cannot hold, if `root` is one.
pub(crate) fn add_answers(root: &Path, snapshot: &mut Snapshot) {
    let read = || -> Option<Answers> {
        let mut text = String::new();
        let file = fs::File::open(root.join(ANSWERS)).ok()?;
        file.take(limits::SNAPSHOT_JSON_BYTES_MAX).read_to_string(&mut text).ok()?;
        serde_json::from_str(&text).ok()
    };
    let Some(Answers { calls, second, unreadable }) = read() else { return };
    (snapshot.calls, snapshot.second) = (calls, second);
    for (path, why) in unreadable {
        if !snapshot.files.contains_key(&path) {
            snapshot.unreadable.insert(path, why);
        }
    }
}

fn write_file(path: &Path, text: &str) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(path, format!("{text}\n"))
}

/// A link to a folder of its own of the given name; relative, so that the recording can be moved.
fn link(folder: &Path, path: &Path, number: usize, name: &str) -> io::Result<()> {
    let target = Path::new(TARGETS).join(number.to_string()).join(name);
    fs::create_dir_all(folder.join(&target))?;
    let parent = path.parent().unwrap_or(folder);
    fs::create_dir_all(parent)?;
    // The parent may itself be behind a link.
    let (parent, root) = (parent.canonicalize()?, folder.canonicalize()?);
    let depth = parent.strip_prefix(&root).map_or(0, |below| below.components().count());
    let up: PathBuf = std::iter::repeat_n("..", depth).collect();
    symlink(up.join(target), path)
}

/// What is replaced by what.
#[derive(Debug, Default)]
struct Scrub {
    identities: Identities,
    /// Names of control groups, and of virtual machines.
    names: BTreeMap<String, String>,
    /// Processes whose names are replaced.
    programs: BTreeSet<String>,
}

impl Scrub {
    fn of(snapshot: &Snapshot) -> Scrub {
        let mut scrub = Scrub::default();
        for line in snapshot.files.get("/proc/self/cgroup").map_or("", String::as_str).lines() {
            let path = line.splitn(3, ':').nth(2).unwrap_or_default();
            path.split('/').for_each(|name| scrub.group(name));
        }
        for path in snapshot.files.keys() {
            if let Some(pid) = process_of(path)
                && !is_kept(snapshot, pid)
            {
                scrub.programs.insert(pid.to_string());
            }
            let group = path.strip_prefix("/sys/fs/resctrl/").and_then(|rest| rest.split_once('/'));
            group.iter().for_each(|(name, _)| scrub.group(name));
            let machine = path.strip_prefix("/run/libvirt/qemu/");
            if let Some(name) = machine.and_then(|name| name.strip_suffix(".xml")) {
                let number = scrub.names.len() + 1;
                scrub.names.insert(name.to_string(), format!("guest-{number}"));
            }
        }
        scrub
    }

    fn group(&mut self, name: &str) {
        if name.is_empty() || GROUPS_KEPT.contains(&name) || self.names.contains_key(name) {
            return;
        }
        let number = self.names.len() + 1;
        let end = [".slice", ".scope", ".service"].into_iter().find(|end| name.ends_with(end));
        let replaced = format!("group-{number}{}", end.unwrap_or_default());
        self.names.insert(name.to_string(), replaced);
    }

    fn files(&mut self, files: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        files.iter().map(|(path, text)| (self.path(path), self.text(path, text))).collect()
    }

    fn path(&mut self, path: &str) -> String {
        let parts: Vec<String> = path.split('/').map(|part| self.name(path, part)).collect();
        parts.join("/")
    }

    /// A name in a folder.
    fn name(&mut self, folder: &str, name: &str) -> String {
        let is_named = ["/sys/fs/cgroup", "/sys/fs/resctrl", "/run/libvirt"]
            .iter()
            .any(|at| folder.starts_with(at));
        let (stem, end) = name.strip_suffix(".xml").map_or((name, ""), |stem| (stem, ".xml"));
        match self.names.get(stem).filter(|_| is_named) {
            Some(replaced) => format!("{replaced}{end}"),
            None => self.identities.replace(name),
        }
    }

    fn text(&mut self, path: &str, text: &str) -> String {
        match path {
            "/proc/sys/kernel/hostname" => "recorded".to_string(),
            "/proc/cmdline" => parameters(&self.identities.replace(text)),
            "/proc/self/cgroup" => self.groups(text),
            "/sys/class/dmi/id/chassis_asset_tag"
                if text.contains(|c: char| c.is_ascii_digit()) =>
            {
                "recorded".to_string()
            }
            _ if path.starts_with("/run/libvirt/") => self.domain(text),
            _ if path.ends_with("/numa_maps") => {
                let words = |line: &str| -> String {
                    let words = line.split(' ').map(|word| match word.starts_with("file=") {
                        true => "file=recorded",
                        false => word,
                    });
                    words.collect::<Vec<_>>().join(" ")
                };
                text.lines().map(words).collect::<Vec<_>>().join("\n")
            }
            _ => match process_of(path).filter(|pid| self.programs.contains(*pid)) {
                Some(_) => of_program(path, text),
                None => self.identities.replace(text),
            },
        }
    }

    fn groups(&mut self, text: &str) -> String {
        let line = |line: &str| {
            let Some((head, path)) = line.rsplit_once(':') else { return line.to_string() };
            let part = |part| self.names.get(part).map_or(part, String::as_str);
            let parts: Vec<&str> = path.split('/').map(part).collect();
            format!("{head}:{}", parts.join("/"))
        };
        text.lines().map(line).collect::<Vec<_>>().join("\n")
    }

    fn domain(&mut self, text: &str) -> String {
        let mut text = self.identities.replace(text);
        for (name, replaced) in &self.names {
            let (old, new) = (format!("<name>{name}</name>"), format!("<name>{replaced}</name>"));
            text = text.replace(&old, &new);
        }
        text
    }
}

/// The process of a path below `/proc/PID/`.
fn process_of(path: &str) -> Option<&str> {
    let (pid, _) = path.strip_prefix("/proc/")?.split_once('/')?;
    pid.bytes().all(|digit| digit.is_ascii_digit()).then_some(pid)
}

/// Whether the names of a process and its threads are kept: threads of the kernel, and programs
/// that are the same on all machines.
fn is_kept(snapshot: &Snapshot, pid: &str) -> bool {
    let text = |file: &str| snapshot.files.get(&format!("/proc/{pid}/{file}")).map(String::as_str);
    let name = text("comm").unwrap_or_default();
    let is_of_kernel = text("status")
        .is_some_and(|status| status.lines().any(|l| l.strip_prefix("PPid:") == Some("\t2")));
    let is_known = PROGRAMS_KEPT.contains(&name) || name.starts_with("qemu");
    is_of_kernel || name == "kthreadd" || is_known
}

/// A file of a process whose name is replaced.
fn of_program(path: &str, text: &str) -> String {
    let line = |line: &str| match line.starts_with("Name:") {
        true => "Name:\tprogram".to_string(),
        false => line.to_string(),
    };
    // `PID (NAME) …`, and the name may have parentheses.
    let stat = || Some((text.split_once('(')?.0, text.rsplit_once(')')?.1));
    match path.rsplit('/').next() {
        Some("comm") => "program".to_string(),
        Some("status") => text.lines().map(line).collect::<Vec<_>>().join("\n"),
        Some("stat") => {
            stat().map_or_else(String::new, |(pid, rest)| format!("{pid}(program){rest}"))
        }
        _ => text.to_string(),
    }
}

/// Kernel parameters, those with a path or an address as value without it. What is after `--` is
/// for the first program, not the kernel.
fn parameters(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_,-:+.".contains(c);
    let word = |word: &str| match word.split_once('=') {
        Some((name, value)) if !value.chars().all(is_plain) || without_address(value) != value => {
            format!("{name}=recorded")
        }
        _ => word.to_string(),
    };
    let words = text.split_whitespace().take_while(|word| *word != "--");
    words.map(word).collect::<Vec<_>>().join(" ")
}
