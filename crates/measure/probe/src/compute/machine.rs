//! What the workloads need to know of the machine: the size of its last-level cache, and how much
//! memory is free.

use nm_sys::hostfiles::HostFiles;

const CACHES: &str = "/sys/devices/system/cpu/cpu0/cache";

/// Size of the largest cache of the first CPU, bytes; absent where the kernel does not tell.
pub fn cache_bytes(files: &HostFiles) -> Option<u64> {
    let names = files.names(CACHES);
    let indices = names.iter().filter(|name| name.starts_with("index"));
    indices.filter_map(|name| size(&files.text(&format!("{CACHES}/{name}/size"))?)).max()
}

/// `512K` or `32M` as bytes.
fn size(text: &str) -> Option<u64> {
    let (digits, unit) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 1 << 10),
        b'M' => (&text[..text.len() - 1], 1 << 20),
        b'G' => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

/// Memory that may be allocated without swapping, bytes: what the kernel estimates, and what the
/// control groups of this process leave. Zero if the kernel does not tell.
pub fn available_bytes(files: &HostFiles) -> u64 {
    let kib: Option<u64> = files.text("/proc/meminfo").and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        line.split_whitespace().next()?.parse().ok()
    });
    let available = kib.unwrap_or(0).saturating_mul(1024);
    left_by_groups(files).map_or(available, |left| left.min(available))
}

/// The least that a control group of this process, or an ancestor of one, leaves; absent if none
/// is limited.
fn left_by_groups(files: &HostFiles) -> Option<u64> {
    let groups = files.text("/proc/self/cgroup")?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?.trim_end_matches('/');
    let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
    ends.filter_map(|end| {
        let folder = format!("/sys/fs/cgroup{}", &path[..end]);
        let limit: u64 = files.value(&format!("{folder}/memory.max"))?;
        let used: u64 = files.value(&format!("{folder}/memory.current"))?;
        Some(limit.saturating_sub(used))
    })
    .min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn write(root: &std::path::Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn cache_and_memory_are_read_from_files() {
        let root = tempfile::tempdir().unwrap();
        let files = HostFiles::new(root.path());
        assert_eq!((cache_bytes(&files), available_bytes(&files)), (None, 0));
        let caches = CACHES.trim_start_matches('/');
        write(root.path(), &format!("{caches}/index0/size"), "32K\n");
        write(root.path(), &format!("{caches}/index3/size"), "260M\n");
        write(root.path(), "proc/meminfo", "MemTotal: 9 kB\nMemAvailable:    2000 kB\n");
        assert_eq!(cache_bytes(&files), Some(260 << 20));
        assert_eq!(available_bytes(&files), 2_048_000);
        write(root.path(), "proc/self/cgroup", "0::/a/b\n");
        write(root.path(), "sys/fs/cgroup/a/b/memory.max", "max\n");
        write(root.path(), "sys/fs/cgroup/a/memory.max", "1000000\n");
        write(root.path(), "sys/fs/cgroup/a/memory.current", "400000\n");
        assert_eq!(available_bytes(&files), 600_000);
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!((size("32K"), size("1M"), size("64")), (Some(32_768), Some(1 << 20), Some(64)));
        assert_eq!((size(""), size("K"), size("x")), (None, None, None));
    }
}
