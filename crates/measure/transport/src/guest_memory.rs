//! Shared memory of two virtual machines of one host: that of an ivshmem device, which both have. A
//! program that runs as a guest's agent chooses it once, for all its connections by shared memory.
//! Other programs never touch such a device, which may be there for something else.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use nm_ring::EndpointParts;
use nm_ring::window::{Caching, DeviceMemory, WindowListener};
use nm_sys::clock::Deadline;
use nm_sys::hostfiles::HostFiles;

use crate::address::Address;

/// Why the memory of two guests cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum GuestMemoryError {
    /// The address is one in the memory of a device that was not chosen.
    #[error("this program does not use the memory of an ivshmem device")]
    NoDevice,
    /// The memory cannot be mapped.
    #[error("the memory of the ivshmem device cannot be mapped")]
    Map(#[source] io::Error),
    /// All parts of it are in use.
    #[error("all {0} connections that the ivshmem device's memory has space for are in use")]
    Full(usize),
    /// Nobody listens at the address.
    #[error("nobody listens at {0} in the memory of the ivshmem device")]
    NoListener(String),
}

/// PCI ids of the ivshmem device.
const VENDOR: &str = "0x1af4";
const DEVICE: &str = "0x1110";

/// The device's memory is the third of its regions.
const RESOURCE: &str = "resource2";

/// Time between two looks at whether somebody has connected.
const STEP: Duration = Duration::from_millis(1);

/// The memory in use, and how it is cached.
static MEMORY: OnceLock<(Arc<DeviceMemory>, Caching)> = OnceLock::new();

/// The file of the memory of this machine's ivshmem device; none without one.
pub fn find(files: &HostFiles) -> Option<PathBuf> {
    const DEVICES: &str = "/sys/bus/pci/devices";
    let is_it = |device: &&String| {
        let id = |name| files.text(&format!("{DEVICES}/{device}/{name}"));
        id("vendor").as_deref() == Some(VENDOR) && id("device").as_deref() == Some(DEVICE)
    };
    let names = files.names(DEVICES);
    let device = names.iter().find(is_it)?;
    Some(files.path(&format!("{DEVICES}/{device}/{RESOURCE}")))
}

/// Makes all further connections of this process by shared memory use that of a device. Only the
/// first call has an effect.
///
/// # Errors
/// If it cannot be mapped.
pub fn use_device(path: &Path) -> io::Result<Caching> {
    let memory = DeviceMemory::open(path)?;
    let caching = memory.caching();
    Ok(MEMORY.get_or_init(|| (memory, caching)).1)
}

/// Whether [`use_device`] was called.
pub(crate) fn is_in_use() -> bool {
    MEMORY.get().is_some()
}

/// Where connections have their memory, and how it is cached, for results; none if they do not use
/// a device.
pub(crate) fn description() -> Option<&'static str> {
    MEMORY.get().map(|(_, caching)| match caching {
        Caching::WriteBack => "ivshmem, cached (write-back)",
        Caching::Uncached => "ivshmem, uncached",
    })
}

fn memory() -> Result<&'static Arc<DeviceMemory>, GuestMemoryError> {
    MEMORY.get().map(|(memory, _)| memory).ok_or(GuestMemoryError::NoDevice)
}

/// Claims a part of the memory and listens there.
pub(crate) fn listen() -> Result<(Address, WindowListener), GuestMemoryError> {
    let failed = GuestMemoryError::Map;
    let memory = memory()?;
    let token = u32::from_le_bytes(nm_sys::random::bytes().map_err(failed)?);
    let listener = memory.listen(token).map_err(failed)?;
    let listener = listener.ok_or(GuestMemoryError::Full(memory.windows()))?;
    let (window, token) = listener.address();
    Ok((Address::Window(window, token), listener))
}

/// Connects to a listener of the other guest.
pub(crate) fn connect(
    window: u32,
    token: u32,
    address: &str,
) -> Result<EndpointParts, GuestMemoryError> {
    let joined = memory()?.connect(window, token).map_err(GuestMemoryError::Map)?;
    joined.map(EndpointParts::from).ok_or_else(|| GuestMemoryError::NoListener(address.to_string()))
}

/// Waits for the end that connects; none if nobody does within `limit`.
pub(crate) fn accept(
    listener: &WindowListener,
    limit: Duration,
    cancelled: &dyn Fn() -> bool,
) -> Result<Option<EndpointParts>, GuestMemoryError> {
    let deadline = Deadline::after(limit);
    loop {
        if let Some(joined) = listener.accept().map_err(GuestMemoryError::Map)? {
            return Ok(Some(joined.into()));
        }
        if deadline.passed() || cancelled() {
            return Ok(None);
        }
        thread::sleep(STEP);
    }
}
