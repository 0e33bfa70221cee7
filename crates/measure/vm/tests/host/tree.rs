//! A host as a tree of files in a temporary folder. Its kernel makes virtual functions and links
//! appear and vanish, and can end at any write.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use nm_settings::target::{LinkName, PciSetting, Target};
use nm_settings::value::Value;
use nm_sys::hostfiles::HostFiles;
use nm_tune::machine::{AccessError, Device, HostMachine, Machine, Origin, Writer};
use nm_vm::sriov::Host;
use tempfile::TempDir;

/// A server with an IOMMU, and two ports of a card with SR-IOV that nobody uses.
pub struct Tree {
    folder: TempDir,
}

const PORTS: [(&str, &str, &str, u32); 2] =
    [("0000:3b:00.0", "ens1f0", "aa", 20), ("0000:3b:00.1", "ens1f1", "bb", 21)];

impl Tree {
    pub fn new() -> Tree {
        let folder = match Path::new("/dev/shm").is_dir() {
            true => tempfile::tempdir_in("/dev/shm").unwrap(),
            false => tempfile::tempdir().unwrap(),
        };
        let tree = Tree { folder };
        tree.write("proc/sys/kernel/random/boot_id", "boot-1\n");
        tree.write("proc/interrupts", "  24:  0  IR-PCI-MSIX-0000:3b:00.0  0-edge  ens1f0\n");
        tree.write("sys/bus/pci/drivers_probe", "");
        tree.write("sys/bus/pci/drivers/vfio-pci/bind", "");
        tree.write("sys/bus/pci/drivers/ice/bind", "");
        for (address, link, _, group) in PORTS {
            let device = format!("sys/bus/pci/devices/{address}");
            tree.write(&format!("{device}/class"), "0x020000\n");
            tree.write(&format!("{device}/numa_node"), "0\n");
            tree.write(&format!("{device}/driver_override"), "(null)\n");
            tree.write(&format!("{device}/sriov_totalvfs"), "8\n");
            tree.write(&format!("{device}/sriov_numvfs"), "0\n");
            tree.write(&format!("{device}/sriov_drivers_autoprobe"), "1\n");
            tree.link("../../../../bus/pci/drivers/ice", &format!("{device}/driver"));
            tree.group(address, group);
            add_link(tree.path(), address, link, true);
        }
        tree
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn state(&self) -> PathBuf {
        self.path().join("state")
    }

    pub fn write(&self, path: &str, text: &str) {
        put(&self.path().join(path), text);
    }

    pub fn remove(&self, path: &str) {
        let path = self.path().join(path);
        if path.is_dir() {
            fs::remove_dir_all(path).unwrap();
        } else {
            fs::remove_file(path).unwrap();
        }
    }

    pub fn link(&self, target: &str, path: &str) {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let _ = fs::remove_file(&path);
        symlink(target, path).unwrap();
    }

    pub fn group(&self, address: &str, group: u32) {
        group_of(self.path(), address, group);
    }

    /// The tree as a host whose kernel ends as the fuse says.
    pub fn host(&self, fuse: Fuse) -> Host {
        let machine = Kernel {
            files: HostMachine::recorded(self.path()),
            root: self.path().to_path_buf(),
            fuse,
        };
        Host {
            machine: Box::new(machine),
            is_live: false,
            own_connection: None,
            root: self.path().to_string_lossy().into_owned(),
        }
    }

    /// All files and links below `/sys`.
    pub fn contents(&self) -> BTreeMap<PathBuf, String> {
        let mut all = BTreeMap::new();
        collect(&self.path().join("sys"), &mut all);
        all
    }
}

fn put(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn group_of(root: &Path, address: &str, group: u32) {
    let link = root.join(format!("sys/bus/pci/devices/{address}/iommu_group"));
    fs::create_dir_all(link.parent().unwrap()).unwrap();
    let _ = fs::remove_file(&link);
    symlink(format!("../../../../kernel/iommu_groups/{group}"), link).unwrap();
    put(&root.join(format!("sys/kernel/iommu_groups/{group}/devices/{address}")), "");
}

/// What the driver of a link adds when it takes a device.
fn add_link(root: &Path, address: &str, link: &str, is_up: bool) {
    put(&root.join(format!("sys/bus/pci/devices/{address}/net/{link}/ifindex")), "2\n");
    let folder = root.join(format!("sys/class/net/{link}"));
    put(&folder.join("flags"), if is_up { "0x1003\n" } else { "0x1002\n" });
    put(&folder.join("carrier"), "1\n");
    put(&folder.join("address"), "52:54:00:00:00:aa\n");
    symlink(format!("../../../bus/pci/devices/{address}"), folder.join("device")).unwrap();
}

fn collect(folder: &Path, into: &mut BTreeMap<PathBuf, String>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries {
        let path = entry.unwrap().path();
        match (fs::read_link(&path), path.is_dir()) {
            (Ok(target), _) => {
                drop(into.insert(path, format!("-> {}", target.display())));
            }
            (Err(_), true) => {
                into.insert(path.clone(), "folder".to_string());
                collect(&path, into);
            }
            (Err(_), false) => drop(into.insert(path.clone(), fs::read_to_string(&path).unwrap())),
        }
    }
}

/// Ends the program at a write: before or after it takes effect. Nothing works after that.
#[derive(Debug, Clone, Default)]
pub struct Fuse {
    pub writes: Rc<Cell<u32>>,
    end: Option<(u32, bool)>,
    is_dead: Rc<Cell<bool>>,
}

impl Fuse {
    pub fn at(write: u32, is_after: bool) -> Fuse {
        Fuse { end: Some((write, is_after)), ..Fuse::default() }
    }

    fn dead(&self) -> Result<(), AccessError> {
        match self.is_dead.get() {
            false => Ok(()),
            true => Err(AccessError::Driver {
                action: "reach",
                target: "the machine".into(),
                source: io::Error::other("the program was killed"),
            }),
        }
    }
}

struct Kernel {
    files: HostMachine,
    root: PathBuf,
    fuse: Fuse,
}

impl Kernel {
    /// What else a write changes.
    fn react(&self, target: &Target, value: &Value) {
        let Target::Pci { address, setting } = target else { return };
        let text = value.to_string();
        match setting {
            PciSetting::Functions => self.set_functions(&address.to_string(), &text),
            PciSetting::Driver => {
                let port = PORTS.iter().find(|(one, ..)| *one == address.to_string());
                let Some((address, link, ..)) = port else { return };
                let (net, class) =
                    (format!("sys/bus/pci/devices/{address}/net"), format!("sys/class/net/{link}"));
                let _ = fs::remove_dir_all(self.root.join(net));
                let _ = fs::remove_dir_all(self.root.join(class));
                if text == "ice" {
                    // A new link is down.
                    add_link(&self.root, address, link, false);
                }
            }
            _ => {}
        }
    }

    fn set_functions(&self, address: &str, count: &str) {
        for index in 0..2 {
            let function = format!("0000:3b:01.{index}");
            let folder = format!("sys/bus/pci/devices/{function}");
            let link = self.root.join(format!("sys/bus/pci/devices/{address}/virtfn{index}"));
            let group = format!("sys/kernel/iommu_groups/{}", 30 + index);
            if count == "0" {
                let _ = fs::remove_dir_all(self.root.join(&folder));
                let _ = fs::remove_dir_all(self.root.join(group));
                let _ = fs::remove_file(link);
                continue;
            }
            put(&self.root.join(format!("{folder}/class")), "0x020000\n");
            put(&self.root.join(format!("{folder}/driver_override")), "(null)\n");
            group_of(&self.root, &function, 30 + index);
            symlink(format!("../{function}"), link).unwrap();
        }
    }
}

impl Machine for Kernel {
    fn read(&self, target: &Target) -> Result<Value, AccessError> {
        self.fuse.dead()?;
        self.files.read(target)
    }

    fn write(&mut self, target: &Target, value: &Value) -> Result<(), AccessError> {
        self.fuse.dead()?;
        let write = self.fuse.writes.get();
        self.fuse.writes.set(write + 1);
        let end = self.fuse.end.filter(|(at, _)| *at == write);
        if end.is_some() {
            self.fuse.is_dead.set(true);
        }
        if end != Some((write, false)) {
            self.files.write(target, value)?;
            self.react(target, value);
        }
        self.fuse.dead()
    }

    fn is_writing(&self, writer: &Writer) -> bool {
        self.files.is_writing(writer)
    }

    fn origin(&self) -> Result<Origin, AccessError> {
        self.fuse.dead()?;
        self.files.origin()
    }

    fn links(&self) -> Vec<LinkName> {
        self.files.links()
    }

    fn device(&self, link: &LinkName) -> Option<Device> {
        self.files.device(link)
    }

    fn limits(&self, target: &Target) -> Option<Vec<u32>> {
        self.files.limits(target)
    }

    fn files(&self) -> &HostFiles {
        self.files.files()
    }
}
