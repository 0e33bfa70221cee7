//! The first process of a guest: this program, which the kernel of a virtual machine starts as
//! `/init` of the image that `nm_vm::image` builds. It prepares the machine, serves one controller
//! on the control port, and powers the machine off.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::panic::{UnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nm_model::Failure;
use nm_sys::clock::Deadline;
use nm_sys::ethtool::Links;
use nm_sys::hardware_address;
use nm_sys::hostfiles::HostFiles;
use nm_sys::init;
use nm_transport::guest_memory;
use nm_vm::boot::{BootError, BootSettings, CONTROL_PORT};
use nm_vm::image::MODULES_FOLDER;

use crate::agent::{self, Stream};
use crate::netlink::Routes;

/// Longest time until a device that the guest needs is there. Emulated processors are slow.
const DEVICE_TIMEOUT: Duration = Duration::from_secs(60);

/// Longest time until somebody opens the other end of the control port: guests that were exported
/// are started by hand, before the run that measures them.
const CONTROLLER_TIMEOUT: Duration = Duration::from_secs(600);

/// Time between two looks at what is waited for.
const STEP: Duration = Duration::from_millis(2);

/// File systems of the kernel and where they are mounted. Without the ones that are not needed,
/// a part of the facts is missing.
const FILE_SYSTEMS: [(&str, &str, bool); 6] = [
    ("devtmpfs", "/dev", true),
    ("proc", "/proc", true),
    ("sysfs", "/sys", true),
    ("tmpfs", "/dev/shm", false),
    ("bpf", "/sys/fs/bpf", false),
    ("cgroup2", "/sys/fs/cgroup", false),
];

/// Why a guest cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// A system call failed.
    #[error("cannot {operation}: {source}")]
    System {
        /// What was tried, as an infinitive.
        operation: String,
        /// Why it failed.
        source: io::Error,
    },
    /// The words on the kernel's command line.
    #[error(transparent)]
    Settings(#[from] BootError),
    /// There is no control port.
    #[error("no virtual serial port is called `{CONTROL_PORT}`")]
    NoPort,
    /// The control port is not connected.
    #[error("nobody has opened the other end of the port `{CONTROL_PORT}`")]
    NoController,
    /// The NIC is not there.
    #[error("no network device has the address {wanted}: {}", present_devices(.present))]
    NoDevice {
        /// Its hardware address.
        wanted: String,
        /// Names and addresses of those that are there.
        present: Vec<String>,
    },
    /// There is no NIC, or several.
    #[error("there is not exactly one network device, but {0}: give the address of one (nm.mac=)")]
    Devices(String),
    /// The link does not come up.
    #[error("{0} has no carrier: the other end of its link is not up")]
    NoCarrier(String),
    /// The agent failed.
    #[error(transparent)]
    Agent(#[from] Failure),
}

/// The devices that are there, and what is likely if one of them should have another address.
fn present_devices(devices: &[String]) -> String {
    if devices.is_empty() {
        return "there is none that a driver of this guest's kernel knows".to_string();
    }
    format!(
        "there is {}. A virtual function takes a random address if the driver of its device, \
         which the host has, does not answer it",
        devices.join(", ")
    )
}

impl GuestError {
    fn system(operation: impl Into<String>) -> impl FnOnce(io::Error) -> GuestError {
        let operation = operation.into();
        |source| GuestError::System { operation, source }
    }
}

/// Whether this process is the first one of a guest: process 1, started as `/init`, beside the
/// modules of an image. A container may have the first two.
pub fn is_init() -> bool {
    let is_called_init = || std::env::args_os().next().is_some_and(|name| name == "/init");
    std::process::id() == 1 && is_called_init() && Path::new("/").join(MODULES_FOLDER).is_dir()
}

/// Runs the guest until its controller closes the control port, then powers it off.
pub fn run() -> ! {
    run_first_process(serve)
}

/// Does `work` as the first process of a guest, and powers the guest off. What goes wrong is
/// written to the console.
pub fn run_first_process(work: impl FnOnce() -> Result<(), GuestError> + UnwindSafe) -> ! {
    match catch_unwind(work) {
        Ok(Ok(())) => say("the controller has gone; powering off"),
        Ok(Err(error)) => say(&format!("{error}; powering off")),
        // The message of the panic is on the console already.
        Err(_) => say("this is a defect of nearmetal; powering off"),
    }
    let error = init::power_off();
    say(&format!("cannot power off: {error}"));
    // If the first process ended, the kernel would panic.
    loop {
        thread::sleep(Duration::from_secs(1));
    }
}

/// Writes a line to the console, which is this process's error output.
fn say(line: &str) {
    // There is no other place where a failure could be shown.
    let _ = writeln!(io::stderr(), "nearmetal guest: {line}");
}

fn serve() -> Result<(), GuestError> {
    for (kind, target, is_needed) in FILE_SYSTEMS {
        let mounted = init::mount(kind, Path::new(target));
        if is_needed {
            mounted.map_err(GuestError::system(format!("mount {target}")))?;
        }
    }
    let line = fs::read_to_string("/proc/cmdline");
    let line = line.map_err(GuestError::system("read the kernel's command line"))?;
    let settings: BootSettings = line.parse()?;
    load_modules();
    if let Err(error) = init::raise_limits() {
        say(&format!("cannot raise limits: {error}"));
    }
    init::set_host_name(&format!("nm-{}", settings.side))
        .map_err(GuestError::system("set the host name"))?;
    set_up_links(&settings)?;
    use_shared_memory()?;
    let port = control_port()?;
    // A write to the port would wait for ever after its controller has gone.
    let failed = GuestError::system("use the control port");
    let Stream { input, output, open } = Stream::of(port).map_err(failed)?;
    say(&format!("{} is ready", settings.side));
    let served = agent::serve(input, output);
    drop(open);
    Ok(served?)
}

/// Loads all modules of the image in the order of their names. A guest may have modules for devices
/// that it does not have, so what fails is only said; what is missing shows soon.
fn load_modules() {
    let folder = Path::new("/").join(MODULES_FOLDER);
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        if let Err(error) = File::open(&path).and_then(|file| init::load_module(&file)) {
            say(&format!("cannot load {}: {error}", path.display()));
        }
        // The kernel has its own copy.
        let _ = fs::remove_file(path);
    }
}

/// Tries until `attempt` gives something; none if it does not in time.
fn wait_for<T>(attempt: impl FnMut() -> Option<T>) -> Option<T> {
    wait_within(DEVICE_TIMEOUT, attempt)
}

fn wait_within<T>(limit: Duration, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    let limit = Deadline::after(limit);
    loop {
        if let Some(found) = attempt() {
            return Some(found);
        }
        if limit.passed() {
            return None;
        }
        thread::sleep(STEP);
    }
}

/// Opens the control port and waits until the controller has opened the other end: until then the
/// port would seem to be at its end.
fn control_port() -> Result<File, GuestError> {
    let path = wait_for(find_control_port).ok_or(GuestError::NoPort)?;
    let port = OpenOptions::new().read(true).write(true).open(&path);
    let port = port.map_err(GuestError::system(format!("open {}", path.display())))?;
    let is_open = || (!agent::is_hung_up(&port)).then_some(());
    wait_within(CONTROLLER_TIMEOUT, is_open).ok_or(GuestError::NoController)?;
    Ok(port)
}

fn find_control_port() -> Option<PathBuf> {
    let ports = fs::read_dir("/sys/class/virtio-ports").ok()?;
    ports.flatten().find_map(|port| {
        let name = fs::read_to_string(port.path().join("name")).ok()?;
        let device = Path::new("/dev").join(port.file_name());
        (name.trim() == CONTROL_PORT && device.exists()).then_some(device)
    })
}

/// Has connections by shared memory use the memory of the ivshmem device, where the guest has one:
/// the other guest has the same memory, and nothing else is shared.
fn use_shared_memory() -> Result<(), GuestError> {
    let Some(path) = guest_memory::find(&HostFiles::default()) else { return Ok(()) };
    // No driver has switched it on. If this fails, the firmware may have done it.
    let _ = fs::write(path.with_file_name("enable"), "1");
    let caching = guest_memory::use_device(&path)
        .map_err(GuestError::system(format!("map {}", path.display())))?;
    say(&format!("shared memory of the guests: {caching:?}"));
    Ok(())
}

/// Brings up loopback and, if the guest has addresses, its link to the other guest, and waits until
/// that one can transport frames.
fn set_up_links(settings: &BootSettings) -> Result<(), GuestError> {
    let mut routes = Routes::open().map_err(GuestError::system("open a netlink socket"))?;
    routes.set_up("lo").map_err(GuestError::system("bring up loopback"))?;
    if settings.addresses.is_empty() {
        return Ok(());
    }
    let links = Links::new().map_err(GuestError::system("open a socket"))?;
    let link = find_link(&links, settings.mac)?;
    if let Some(mtu) = settings.mtu {
        let failed = GuestError::system(format!("set the MTU of {link} to {mtu}"));
        routes.set_mtu(&link, mtu).map_err(failed)?;
    }
    for cidr in &settings.addresses {
        let failed = GuestError::system(format!("assign {cidr} to {link}"));
        match routes.add_address(&link, cidr.address, cidr.prefix_bits) {
            // A kernel without IPv6; the environment then has IPv4 addresses only.
            Err(error) if cidr.address.is_ipv6() => {
                say(&format!("cannot assign {cidr} to {link}: {error}"));
            }
            result => result.map_err(failed)?,
        }
    }
    routes.set_up(&link).map_err(GuestError::system(format!("bring up {link}")))?;
    wait_for(|| links.is_up(&link).then_some(())).ok_or(GuestError::NoCarrier(link))
}

/// The device with the hardware address `mac`, or the only one.
fn find_link(links: &Links, mac: Option<[u8; 6]>) -> Result<String, GuestError> {
    let devices = || {
        let mut names = links.names();
        names.retain(|name| {
            name != "lo" && Path::new("/sys/class/net").join(name).join("device").exists()
        });
        names
    };
    match mac {
        Some(mac) => {
            let has_it = |name: &String| links.hardware_address(name) == Some(mac);
            let with_address = |name: String| match links.hardware_address(&name) {
                Some(address) => format!("{name} with {}", hardware_address::text(address)),
                None => name,
            };
            wait_for(|| devices().into_iter().find(has_it)).ok_or_else(|| GuestError::NoDevice {
                wanted: hardware_address::text(mac),
                present: devices().into_iter().map(with_address).collect(),
            })
        }
        None => wait_for(|| <[String; 1]>::try_from(devices()).ok())
            .map(|[name]| name)
            .ok_or_else(|| GuestError::Devices(format!("{:?}", devices()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_of_a_missing_device_names_those_that_are_there() {
        let text = |present: &[&str]| {
            let present = present.iter().map(ToString::to_string).collect();
            GuestError::NoDevice { wanted: "52:54:00:6e:6d:01".to_string(), present }.to_string()
        };
        let none = text(&[]);
        assert!(
            none.starts_with("no network device has the address 52:54:00:6e:6d:01: "),
            "{none}"
        );
        assert!(
            none.ends_with("there is none that a driver of this guest's kernel knows"),
            "{none}"
        );
        let other = text(&["eth0 with ca:38:f2:f0:02:de"]);
        assert!(other.contains("there is eth0 with ca:38:f2:f0:02:de. A virtual"), "{other}");
    }
}
