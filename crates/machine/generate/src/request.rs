//! What is asked of a host.

use nm_model::limits;

/// A guest to be placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Name of the guest, the flavor and the alias of the device.
    pub name: String,
    /// Virtual CPUs, each of which gets a physical core.
    pub vcpus: u32,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// The network device that the guest gets: a link's name or a PCI address.
    pub nic: String,
    /// Size of the pages of its memory.
    pub page_size: PageSize,
    /// Cores of the device's node that are kept for such guests; all but one if absent.
    pub dedicated_cores: Option<u32>,
    /// Whether its vCPUs are scheduled in real time on the host.
    pub realtime: bool,
    /// Image of its disk, for libvirt.
    pub disk: Option<String>,
}

/// Size of a huge page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageSize {
    /// 2 MiB.
    Mib2,
    /// 1 GiB.
    Gib1,
}

impl PageSize {
    /// The size in KiB.
    pub fn kib(self) -> u64 {
        match self {
            PageSize::Mib2 => 2 << 10,
            PageSize::Gib1 => 1 << 20,
        }
    }

    /// The size in words.
    pub fn text(self) -> &'static str {
        match self {
            PageSize::Mib2 => "2 MiB",
            PageSize::Gib1 => "1 GiB",
        }
    }
}

/// A request that no host could satisfy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// Too few or too many vCPUs.
    #[error("{0} vCPUs: a guest has 1 to {max}", max = limits::GUEST_VCPUS_MAX)]
    Vcpus(u32),
    /// Real time with one vCPU.
    #[error(
        "a real-time guest needs 2 vCPUs or more: vCPU 0 stays an ordinary thread for the guest's \
         own kernel"
    )]
    RealtimeVcpus,
    /// Too much memory.
    #[error(
        "{0} bytes of memory: a guest or a pod has 1 byte to {max}",
        max = limits::GUEST_MEMORY_BYTES_MAX
    )]
    Memory(u64),
    /// Memory in parts of pages.
    #[error("the memory of {bytes} bytes is not a whole number of pages of {size}")]
    PartialPage {
        /// Memory asked for.
        bytes: u64,
        /// Size of a page.
        size: &'static str,
    },
    /// A name that a configuration file cannot hold.
    #[error(
        "the name `{0}` must have 1 to {max} letters, digits, `-`, `_` or `.`, the first a letter \
         or digit", max = limits::GUEST_NAME_BYTES_MAX
    )]
    Name(String),
    /// A path that libvirt would not take.
    #[error("the disk `{0}` must be an absolute path of at most {max} bytes without control \
             characters", max = limits::PATH_BYTES_MAX)]
    Disk(String),
    /// Memory that is no number with a unit.
    #[error("`{0}` is no amount of memory: write a number and KiB, MiB, GiB or TiB, as in 32GiB")]
    MemoryText(String),
}

impl Request {
    /// Checks all that does not depend on the host.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), RequestError> {
        let name_ok = self.name.len() <= limits::GUEST_NAME_BYTES_MAX
            && self.name.starts_with(|c: char| c.is_ascii_alphanumeric())
            && self.name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
        if !name_ok {
            return Err(RequestError::Name(self.name.chars().take(80).collect()));
        }
        if !(1..=limits::GUEST_VCPUS_MAX).contains(&self.vcpus) {
            return Err(RequestError::Vcpus(self.vcpus));
        }
        if self.realtime && self.vcpus < 2 {
            return Err(RequestError::RealtimeVcpus);
        }
        check_pages(self.memory_bytes, self.page_size)?;
        let path_ok = |path: &String| {
            path.starts_with('/')
                && path.len() <= limits::PATH_BYTES_MAX
                && !path.chars().any(char::is_control)
        };
        match self.disk.as_ref().filter(|path| !path_ok(path)) {
            Some(path) => Err(RequestError::Disk(path.chars().take(80).collect())),
            None => Ok(()),
        }
    }
}

/// Checks an amount of memory that is whole pages.
pub(crate) fn check_pages(bytes: u64, page_size: PageSize) -> Result<(), RequestError> {
    check_memory(bytes)?;
    match bytes.is_multiple_of(page_size.kib() << 10) {
        true => Ok(()),
        false => Err(RequestError::PartialPage { bytes, size: page_size.text() }),
    }
}

/// Checks an amount of memory.
pub(crate) fn check_memory(bytes: u64) -> Result<(), RequestError> {
    match (1..=limits::GUEST_MEMORY_BYTES_MAX).contains(&bytes) {
        true => Ok(()),
        false => Err(RequestError::Memory(bytes)),
    }
}

/// Reads an amount of memory, `32GiB`, as bytes.
///
/// # Errors
/// It has no such form, or is too large for a number.
pub fn parse_memory(text: &str) -> Result<u64, RequestError> {
    let refused = || RequestError::MemoryText(text.chars().take(80).collect());
    let units = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];
    let (digits, shift) = units
        .into_iter()
        .find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, shift)))
        .ok_or_else(refused)?;
    let digits = digits.trim_end();
    let number: u64 = match digits.chars().all(|c| c.is_ascii_digit()) {
        true => digits.parse().map_err(|_| refused())?,
        false => return Err(refused()),
    };
    number.checked_mul(1 << shift).ok_or_else(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Request {
        Request {
            name: "latency".into(),
            vcpus: 4,
            memory_bytes: 8 << 30,
            nic: "ens1f0".into(),
            page_size: PageSize::Gib1,
            dedicated_cores: None,
            realtime: false,
            disk: None,
        }
    }

    #[test]
    fn memory_needs_a_unit() {
        assert_eq!(parse_memory("32GiB"), Ok(32 << 30));
        assert_eq!(parse_memory("512 MiB"), Ok(512 << 20));
        for text in ["32", "32GB", "GiB", "-1GiB", "1.5GiB", "99999999999TiB", ""] {
            assert!(parse_memory(text).is_err(), "{text}");
        }
    }

    #[test]
    fn every_number_has_limits() {
        type Change = fn(&mut Request);
        let wrong: [(Change, &str); 9] = [
            (|r| r.vcpus = 0, "0 vCPUs: a guest has 1 to 512"),
            (|r| r.vcpus = 513, "513 vCPUs"),
            (|r| r.memory_bytes = 0, "0 bytes of memory"),
            (|r| r.memory_bytes = u64::MAX, "bytes of memory: a guest or a pod has"),
            (|r| r.memory_bytes = 3 << 29, "not a whole number of pages of 1 GiB"),
            (|r| r.name = "a b".into(), "the name `a b` must have"),
            (|r| r.name = "x".repeat(65), "must have 1 to 64 letters"),
            (|r| r.disk = Some("image.raw".into()), "must be an absolute path"),
            (|r| (r.vcpus, r.realtime) = (1, true), "needs 2 vCPUs or more"),
        ];
        assert_eq!(request().check(), Ok(()));
        for (change, text) in wrong {
            let mut one = request();
            change(&mut one);
            let error = one.check().unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }
}
