//! Trees of files that stand for machines.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use nm_host::snapshot;
use nm_model::Snapshot;
use nm_model::snapshot::Workload;

pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/trees")
}

/// All trees but those that are only included.
pub fn names() -> Vec<String> {
    let files = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let trees = files.filter(|path| path.extension().is_some_and(|end| end == "tree"));
    let mut names: Vec<String> =
        trees.map(|path| path.file_stem().unwrap().to_str().unwrap().to_string()).collect();
    names.retain(|name| name != "common");
    names.sort();
    names
}

/// A tree's files, symbolic links, paths, and parts of the snapshot as JSON; a later line replaces
/// an earlier one of the same path.
#[derive(Default)]
pub struct Tree {
    pub files: BTreeMap<String, String>,
    links: BTreeMap<String, String>,
    present: Vec<String>,
    parts: BTreeMap<String, String>,
}

impl Tree {
    pub fn read(name: &str) -> Tree {
        let mut tree = Tree::default();
        tree.add(name);
        tree
    }

    fn add(&mut self, name: &str) {
        self.add_text(&std::fs::read_to_string(folder().join(format!("{name}.tree"))).unwrap());
    }

    pub fn add_text(&mut self, text: &str) {
        let mut last: Vec<String> = vec![];
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            if let Some(more) = line.strip_prefix('|') {
                for path in &last {
                    let content = self.files.get_mut(path).unwrap();
                    *content += more.strip_prefix(' ').unwrap_or(more);
                    content.push('\n');
                }
            } else if let Some(other) = line.strip_prefix("include ") {
                self.add(other);
            } else if let Some(link) = line.strip_prefix("@ ") {
                let (path, target) = link.split_once(" -> ").unwrap();
                self.links.insert(path.to_string(), target.to_string());
            } else if let Some(path) = line.strip_prefix("+ ") {
                self.present.push(path.to_string());
            } else if let Some(rest) = line.strip_prefix('/') {
                // Paths of PCI devices have colons, but none that ends or is before a blank.
                let at = rest.find(": ").or(rest.strip_suffix(':').map(str::len)).unwrap();
                let content = rest[at + 1..].trim();
                last = expand(&format!("/{}", &rest[..at]));
                for path in &last {
                    self.files.insert(path.clone(), content.to_string());
                }
            } else if let Some((part, json)) = line.split_once(": ") {
                self.parts.insert(part.to_string(), json.to_string());
            }
        }
    }

    /// Writes the tree below `root`.
    fn write(&self, root: &Path) {
        let at = |path: &str| root.join(path.trim_start_matches('/'));
        for (path, target) in &self.links {
            let device = root.join("devices").join(target);
            std::fs::create_dir_all(&device).unwrap();
            std::fs::create_dir_all(at(path).parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(device, at(path)).unwrap();
        }
        let empty = String::new();
        let present = self.present.iter().map(|path| (path, &empty));
        for (path, text) in self.files.iter().chain(present) {
            if path.ends_with('/') {
                std::fs::create_dir_all(at(path)).unwrap();
                continue;
            }
            std::fs::create_dir_all(at(path).parent().unwrap()).unwrap();
            std::fs::write(at(path), text).unwrap();
        }
    }

    fn part<T: serde::de::DeserializeOwned + Default>(&self, name: &str) -> T {
        let json = self.parts.get(name);
        json.map_or_else(T::default, |json| serde_json::from_str(json).unwrap())
    }

    /// The snapshot of the tree, read from files below `root`.
    pub fn snapshot(&self, root: &Path) -> Snapshot {
        self.write(root);
        let workload: Workload = self.part("workload");
        let mut snapshot = snapshot::of_root(root, &workload);
        snapshot.calls = self.part("calls");
        snapshot.second = self.part("second");
        let unreadable: BTreeMap<String, String> = self.part("unreadable");
        snapshot.unreadable.extend(unreadable);
        snapshot
    }
}

/// The paths that `{0-3}` stands for.
pub fn expand(path: &str) -> Vec<String> {
    let Some((before, rest)) = path.split_once('{') else { return vec![path.to_string()] };
    let (range, after) = rest.split_once('}').unwrap();
    let (first, last) = range.split_once('-').unwrap();
    let numbers = first.parse::<u32>().unwrap()..=last.parse().unwrap();
    numbers.flat_map(|n| expand(&format!("{before}{n}{after}"))).collect()
}

/// The snapshot of a tree, read from files once more.
pub fn read_again(name: &str) -> Snapshot {
    let root = tempfile::tempdir().unwrap();
    Tree::read(name).snapshot(root.path())
}

/// The snapshot of a tree, read once for all tests.
pub fn snapshot_of(name: &str) -> Snapshot {
    static TAKEN: Mutex<BTreeMap<String, Snapshot>> = Mutex::new(BTreeMap::new());
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    taken.entry(name.to_string()).or_insert_with(|| read_again(name)).clone()
}
