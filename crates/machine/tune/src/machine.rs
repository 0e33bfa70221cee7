//! Reading and writing settings: of this machine, or of a tree of files recorded elsewhere.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nm_sys::bounded_write::{self, WriteError};
use nm_sys::ethtool::Links;
use nm_sys::hardware_address;
use nm_sys::hostfiles::HostFiles;
use serde::{Deserialize, Serialize};

use nm_settings::target::{LinkName, Place, Target};
use nm_settings::value::{Value, chosen};

/// Longest value that is read, bytes.
const VALUE_BYTES_MAX: u64 = 64 << 10;

/// Longest time that the kernel may take for a write to a PCI device's file: a card that creates
/// many virtual functions takes seconds, and taking away a device that is in use waits for ever.
pub const PCI_WRITE_LIMIT: Duration = Duration::from_secs(20);

/// `IFF_UP`.
const LINK_UP: u32 = 1;

/// What stands in `driver_override` if nothing does.
const NO_OVERRIDE: &str = "(null)";

/// Why a setting cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// A file.
    #[error("cannot {action} {}: {source}", .path.display())]
    File {
        /// `read` or `write`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The kernel has not finished a write, and may still do it.
    #[error(
        "cannot write {}: the kernel did not finish it within {} s, and may still do it",
        .path.display(), PCI_WRITE_LIMIT.as_secs()
    )]
    Unfinished {
        /// The file.
        path: PathBuf,
        /// The process that writes.
        writer: Writer,
    },
    /// A setting of a driver.
    #[error("cannot {action} {target}: {source}")]
    Driver {
        /// `read` or `write`.
        action: &'static str,
        /// The setting.
        target: String,
        /// Why.
        source: io::Error,
    },
    /// The file has other content than it should.
    #[error("{} does not have the form of this setting: {found:?}", .path.display())]
    Form {
        /// The file.
        path: PathBuf,
        /// What it has.
        found: String,
    },
    /// Drivers are not part of a recorded tree.
    #[error("a recorded tree has no drivers of links")]
    NoDrivers,
    /// `/sys/class/net` shows another namespace than the one that the process is in.
    #[error("/sys shows the links of another network namespace; mount a sysfs in this one")]
    OtherSysfs,
}

impl AccessError {
    /// Whether the setting does not exist here.
    pub fn is_absent(&self) -> bool {
        match self {
            AccessError::File { source, .. } => source.kind() == io::ErrorKind::NotFound,
            AccessError::Driver { source, .. } => matches!(
                rustix::io::Errno::from_io_error(source),
                Some(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NODEV)
            ),
            AccessError::NoDrivers | AccessError::OtherSysfs => true,
            AccessError::Form { .. } | AccessError::Unfinished { .. } => false,
        }
    }

    /// The process that may still write the setting.
    pub fn writer(&self) -> Option<Writer> {
        match self {
            AccessError::Unfinished { writer, .. } => Some(*writer),
            _ => None,
        }
    }
}

/// A process that the kernel may still be writing for, see [`bounded_write::Writer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Writer {
    /// Its number.
    pub pid: u32,
    /// When it was started, clock ticks since boot.
    pub started_ticks: u64,
}

/// When and where a setting was changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Which boot of the machine.
    pub boot_id: String,
    /// Mount namespace.
    pub mount_namespace: String,
    /// Network namespace.
    pub network_namespace: String,
}

/// What identifies a link, whatever its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Driver.
    pub driver: String,
    /// Bus address; empty for virtual links.
    pub bus: String,
    /// Hardware address; empty if there is none.
    pub mac: String,
}

/// Something that has settings.
pub trait Machine {
    /// A setting, exactly as it is.
    ///
    /// # Errors
    /// If it does not exist or cannot be read.
    fn read(&self, target: &Target) -> Result<Value, AccessError>;

    /// Writes a setting. The kernel may round the value: read it back.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn write(&mut self, target: &Target, value: &Value) -> Result<(), AccessError>;

    /// Whether a write that was not finished may still be done.
    fn is_writing(&self, writer: &Writer) -> bool;

    /// Boot and namespaces.
    ///
    /// # Errors
    /// If they cannot be read.
    fn origin(&self) -> Result<Origin, AccessError>;

    /// The links of this network namespace.
    fn links(&self) -> Vec<LinkName>;

    /// What identifies a link.
    fn device(&self, link: &LinkName) -> Option<Device>;

    /// Largest numbers of a link's setting.
    fn limits(&self, target: &Target) -> Option<Vec<u32>>;

    /// Files that a plan is made from.
    fn files(&self) -> &HostFiles;
}

/// This machine, or a tree of files in its place.
#[derive(Debug)]
pub struct HostMachine {
    files: HostFiles,
    /// Absent for a recorded tree.
    drivers: Option<Links>,
}

impl HostMachine {
    /// This machine.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn live() -> io::Result<HostMachine> {
        Ok(HostMachine { files: HostFiles::default(), drivers: Some(Links::new()?) })
    }

    /// Files below `root`; what the kernel does when a file is written is done by this program.
    pub fn recorded(root: &Path) -> HostMachine {
        HostMachine { files: HostFiles::new(root), drivers: None }
    }

    fn is_live(&self) -> bool {
        self.drivers.is_some()
    }

    fn read_file(&self, path: &str) -> Result<String, AccessError> {
        let name = path;
        let path = self.files.path(name);
        let error = |source| AccessError::File { action: "read", path: path.clone(), source };
        let mut bytes = vec![];
        let file = self.files.inside(name).and_then(File::open).map_err(error)?;
        file.take(VALUE_BYTES_MAX).read_to_end(&mut bytes).map_err(error)?;
        String::from_utf8(bytes).map_err(|wrong| AccessError::Form {
            path: path.clone(),
            found: String::from_utf8_lossy(wrong.as_bytes()).into_owned(),
        })
    }

    /// Writes a file of the kernel in one call, or replaces one of a recorded tree.
    fn write_file(&self, path: &str, text: &str) -> Result<(), AccessError> {
        let name = path;
        let path = self.files.path(name);
        let error = |source| AccessError::File { action: "write", path: path.clone(), source };
        if self.is_live() {
            let mut file = OpenOptions::new().write(true).open(&path).map_err(error)?;
            return file.write_all(text.as_bytes()).map_err(error);
        }
        // The kernel changes a value in one step, so the file is replaced in one step too. The tree
        // may be somebody else's.
        self.files.inside(name).map_err(error)?;
        let (root, beneath) = self.files.beneath(name).map_err(error)?;
        root.replace(&beneath, text.as_bytes()).map_err(error)
    }

    fn write_twins(&self, [bytes, ratio]: &[String; 2], text: &str) -> Result<(), AccessError> {
        let end = text.find('\n').map_or(text.len(), |at| at + 1);
        let (bytes_text, ratio_text) = text.split_at(end);
        if !self.is_live() {
            self.write_file(bytes, bytes_text)?;
            return self.write_file(ratio, ratio_text);
        }
        // The kernel sets the other one to zero, and refuses a zero in the bytes.
        match bytes_text.trim() {
            "0" => self.write_file(ratio, ratio_text),
            _ => self.write_file(bytes, bytes_text),
        }
    }

    /// Writes a file whose write may block.
    fn write_slow(&self, path: &str, text: &str) -> Result<(), AccessError> {
        if !self.is_live() {
            return self.write_file(path, text);
        }
        let path = self.files.path(path);
        match bounded_write::write(&path, text.as_bytes(), PCI_WRITE_LIMIT) {
            Ok(()) => Ok(()),
            Err(WriteError::Refused(source)) => {
                Err(AccessError::File { action: "write", path, source })
            }
            Err(WriteError::Unfinished { writer, .. }) => {
                let bounded_write::Writer { pid, started_ticks } = writer;
                Err(AccessError::Unfinished { path, writer: Writer { pid, started_ticks } })
            }
        }
    }

    /// The driver of a device; empty if none has it.
    fn bound(&self, folder: &str) -> Result<String, AccessError> {
        let path = self.files.path(folder);
        let error = |source| AccessError::File { action: "read", path: path.clone(), source };
        std::fs::metadata(&path).map_err(error)?;
        Ok(self.files.link_name(&format!("{folder}/driver")).unwrap_or_default())
    }

    /// Gives a device to a driver, or takes it away from the one that has it.
    fn bind(&self, folder: &str, driver: &str) -> Result<(), AccessError> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
        if !driver.chars().all(is_name) {
            let path = self.files.path(&format!("{folder}/driver"));
            return Err(AccessError::Form { path, found: driver.to_string() });
        }
        let address = folder.rsplit('/').next().unwrap_or_default();
        match (self.is_live(), driver) {
            (true, "") => self.write_slow(&format!("{folder}/driver/unbind"), address),
            (true, name) => self.write_slow(&format!("/sys/bus/pci/drivers/{name}/bind"), address),
            (false, name) => self.set_driver_link(folder, name),
        }
    }

    /// What the kernel does to a device's folder when its driver changes.
    fn set_driver_link(&self, folder: &str, driver: &str) -> Result<(), AccessError> {
        let name = format!("{folder}/driver");
        let path = self.files.path(&name);
        let error = |source| AccessError::File { action: "write", path: path.clone(), source };
        let (root, beneath) = self.files.beneath(&name).map_err(error)?;
        let done = match driver {
            "" => root.remove_link(&beneath),
            driver => {
                let target = format!("../../../../bus/pci/drivers/{driver}");
                root.replace_link(&beneath, Path::new(&target))
            }
        };
        done.map_err(error)
    }

    /// The link of a device and the flags of its file; absent if no driver of links has it.
    fn link_of(&self, folder: &str) -> Option<(String, u32)> {
        let name = self.files.names(&format!("{folder}/net")).into_iter().next()?;
        let text = self.files.text(&format!("/sys/class/net/{name}/flags"))?;
        let flags = u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()?;
        Some((name, flags))
    }

    fn link_state(&self, folder: &str) -> String {
        let state = match self.link_of(folder) {
            None => "none",
            Some((_, flags)) if flags & LINK_UP != 0 => "up",
            Some(_) => "down",
        };
        state.to_string()
    }

    fn set_link_state(&self, folder: &str, state: &str) -> Result<(), AccessError> {
        let path = self.files.path(&format!("{folder}/net"));
        let failed = |source| AccessError::File { action: "write", path: path.clone(), source };
        let no_link = || failed(io::ErrorKind::NotFound.into());
        let (name, flags) = self.link_of(folder).ok_or_else(no_link)?;
        let is_up = match state {
            "up" => true,
            "down" => false,
            other => return Err(AccessError::Form { path, found: other.to_string() }),
        };
        match &self.drivers {
            Some(drivers) => drivers.set_up(&name, is_up).map_err(failed),
            None => {
                let flags = if is_up { flags | LINK_UP } else { flags & !LINK_UP };
                let file = format!("/sys/class/net/{name}/flags");
                self.write_file(&file, &format!("{flags:#x}\n"))
            }
        }
    }

    /// Refuses a file of `/sys/class/net` that belongs to another namespace's link.
    fn check_sysfs(&self, target: &Target) -> Result<(), AccessError> {
        let (Some(drivers), Some(link)) = (&self.drivers, target.link()) else { return Ok(()) };
        if !target.is_in_class_net() {
            return Ok(());
        }
        let shown = self.files.value::<u32>(&format!("/sys/class/net/{link}/ifindex"));
        let mac = self.files.text(&format!("/sys/class/net/{link}/address"));
        let own = drivers.hardware_address(link.as_str()).map(hardware_address::text);
        match shown == drivers.index(link.as_str()) && (own.is_none() || own == mac) {
            true => Ok(()),
            false => Err(AccessError::OtherSysfs),
        }
    }
}

fn driver_error(action: &'static str, target: &Target) -> impl FnOnce(io::Error) -> AccessError {
    let target = target.to_string();
    move |source| AccessError::Driver { action, target, source }
}

impl Machine for HostMachine {
    fn read(&self, target: &Target) -> Result<Value, AccessError> {
        self.check_sysfs(target)?;
        match target.place() {
            Place::File(path) => Ok(Value::Text(self.read_file(&path)?)),
            Place::Choice(path) => {
                let text = self.read_file(&path)?;
                match chosen(&text) {
                    Some(_) => Ok(Value::Text(text)),
                    None => Err(AccessError::Form { path: self.files.path(&path), found: text }),
                }
            }
            Place::Twins([bytes, ratio]) => {
                Ok(Value::Text(self.read_file(&bytes)? + &self.read_file(&ratio)?))
            }
            Place::Driver(link, setting) => {
                let drivers = self.drivers.as_ref().ok_or(AccessError::NoDrivers)?;
                let numbers = drivers.setting(link.as_str(), setting.for_ethtool());
                numbers.map(Value::Numbers).map_err(driver_error("read", target))
            }
            Place::Slow(path) | Place::Override(path) => Ok(Value::Text(self.read_file(&path)?)),
            Place::Bound(folder) => self.bound(&folder).map(Value::Text),
            Place::Up(folder) => Ok(Value::Text(self.link_state(&folder))),
        }
    }

    fn write(&mut self, target: &Target, value: &Value) -> Result<(), AccessError> {
        self.check_sysfs(target)?;
        match (target.place(), value) {
            (Place::File(path), Value::Text(text)) => self.write_file(&path, text),
            (Place::Choice(path), Value::Text(text)) => match (chosen(text), self.is_live()) {
                (Some(word), true) => self.write_file(&path, word),
                (Some(_), false) => self.write_file(&path, text),
                (None, _) => {
                    Err(AccessError::Form { path: self.files.path(&path), found: text.clone() })
                }
            },
            (Place::Twins(paths), Value::Text(text)) => self.write_twins(&paths, text),
            (Place::Driver(link, setting), Value::Numbers(numbers)) => {
                let drivers = self.drivers.as_ref().ok_or(AccessError::NoDrivers)?;
                drivers
                    .set(link.as_str(), setting.for_ethtool(), numbers)
                    .map_err(driver_error("write", target))
            }
            (Place::Slow(path), Value::Text(text)) => self.write_slow(&path, text),
            (Place::Override(path), Value::Text(text)) => match self.is_live() {
                true if text.trim_end() == NO_OVERRIDE => self.write_slow(&path, "\n"),
                _ => self.write_slow(&path, text),
            },
            (Place::Bound(folder), Value::Text(name)) => self.bind(&folder, name),
            (Place::Up(folder), Value::Text(state)) => self.set_link_state(&folder, state),
            (
                Place::File(path)
                | Place::Choice(path)
                | Place::Twins([path, _])
                | Place::Slow(path)
                | Place::Override(path)
                | Place::Bound(path)
                | Place::Up(path),
                _,
            ) => Err(AccessError::Form { path: self.files.path(&path), found: value.to_string() }),
            (Place::Driver(..), Value::Text(text)) => {
                let wrong = io::Error::new(io::ErrorKind::InvalidInput, text.clone());
                Err(driver_error("write", target)(wrong))
            }
        }
    }

    fn is_writing(&self, writer: &Writer) -> bool {
        let Writer { pid, started_ticks } = *writer;
        bounded_write::Writer { pid, started_ticks }.is_there()
    }

    fn origin(&self) -> Result<Origin, AccessError> {
        let boot_id = self.read_file("/proc/sys/kernel/random/boot_id")?.trim().to_string();
        let namespace = |name: &str| {
            let path = self.files.path(&format!("/proc/self/ns/{name}"));
            match std::fs::read_link(&path) {
                Ok(link) => Ok(link.to_string_lossy().into_owned()),
                Err(_) if !self.is_live() => Ok("recorded".to_string()),
                Err(source) => Err(AccessError::File { action: "read", path, source }),
            }
        };
        Ok(Origin {
            boot_id,
            mount_namespace: namespace("mnt")?,
            network_namespace: namespace("net")?,
        })
    }

    fn links(&self) -> Vec<LinkName> {
        let names = match &self.drivers {
            Some(drivers) => drivers.names(),
            None => self.files.names("/sys/class/net"),
        };
        names.into_iter().filter_map(|name| LinkName::try_from(name).ok()).collect()
    }

    fn device(&self, link: &LinkName) -> Option<Device> {
        let Some(drivers) = &self.drivers else {
            let folder = format!("/sys/class/net/{link}");
            return self.files.exists(&folder).then(|| Device {
                driver: self
                    .files
                    .link_name(&format!("{folder}/device/driver"))
                    .unwrap_or_default(),
                bus: self.files.link_name(&format!("{folder}/device")).unwrap_or_default(),
                mac: self.files.text(&format!("{folder}/address")).unwrap_or_default(),
            });
        };
        drivers.index(link.as_str())?;
        let driver = drivers.driver(link.as_str()).unwrap_or_default();
        let mac =
            drivers.hardware_address(link.as_str()).map(hardware_address::text).unwrap_or_default();
        Some(Device { driver: driver.name, bus: driver.bus, mac })
    }

    fn limits(&self, target: &Target) -> Option<Vec<u32>> {
        let Target::Link { link, setting } = target else { return None };
        self.drivers.as_ref()?.setting_max(link.as_str(), setting.for_ethtool())
    }

    fn files(&self) -> &HostFiles {
        &self.files
    }
}
