//! Whether the kernel accounts for the time of interrupts, so that a thread's CPU time does not
//! contain it.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;
use nm_sys::hostfiles::HostFiles;

/// Longest configuration that is read, bytes; those of distributions have 300 kB.
const CONFIG_BYTES_MAX: u64 = 4 << 20;

/// Whether the running kernel accounts for the time of interrupts; absent if its configuration
/// cannot be read.
pub fn accounts_interrupt_time() -> Option<bool> {
    read(&HostFiles::default())
}

fn read(files: &HostFiles) -> Option<bool> {
    let is_built_in = config(files)?.lines().any(|line| line == "CONFIG_IRQ_TIME_ACCOUNTING=y");
    let line = files.text("/proc/cmdline").unwrap_or_default();
    let is_disabled = line.split_whitespace().any(|word| word == "tsc=noirqtime");
    Some(is_built_in && !is_disabled)
}

/// The configuration of the running kernel, from where kernels and distributions keep it.
fn config(files: &HostFiles) -> Option<String> {
    if let Ok(file) = File::open(files.path("/proc/config.gz")) {
        let mut text = String::new();
        let read = GzDecoder::new(file).take(CONFIG_BYTES_MAX).read_to_string(&mut text);
        return read.is_ok().then_some(text);
    }
    let release = files.text("/proc/sys/kernel/osrelease")?;
    if Path::new(&release).components().count() != 1 {
        return None;
    }
    let paths = [format!("/boot/config-{release}"), format!("/lib/modules/{release}/config")];
    paths.iter().find_map(|path| files.text(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// Path and content.
    type Content<'a> = (&'a str, &'a [u8]);

    fn tree(name: &str, files: &[Content<'_>]) -> HostFiles {
        let root = std::env::temp_dir().join(format!("nm-host-{}-{name}", std::process::id()));
        for (path, bytes) in files {
            let path = root.join(path.trim_start_matches('/'));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
        HostFiles::new(root)
    }

    #[test]
    fn the_configuration_is_found_packed_or_plain() {
        let yes = b"# a comment\nCONFIG_IRQ_TIME_ACCOUNTING=y\n";
        let no = b"# CONFIG_IRQ_TIME_ACCOUNTING is not set\n";
        let mut packed = flate2::write::GzEncoder::new(vec![], flate2::Compression::fast());
        packed.write_all(yes).unwrap();
        let packed = packed.finish().unwrap();
        let release: Content<'_> = ("/proc/sys/kernel/osrelease", b"6.1.0-x\n");
        let cases: [(&str, Vec<Content<'_>>, Option<bool>); 5] = [
            ("packed", vec![("/proc/config.gz", &packed)], Some(true)),
            ("plain", vec![release, ("/boot/config-6.1.0-x", no)], Some(false)),
            ("module", vec![release, ("/lib/modules/6.1.0-x/config", yes)], Some(true)),
            (
                "disabled",
                vec![("/proc/config.gz", &packed), ("/proc/cmdline", b"ro tsc=noirqtime")],
                Some(false),
            ),
            ("none", vec![release], None),
        ];
        for (name, files, expected) in cases {
            let files = tree(name, &files);
            assert_eq!(read(&files), expected, "{name}");
            std::fs::remove_dir_all(files.path("/")).unwrap();
        }
    }

    #[test]
    fn damaged_or_misleading_files_are_no_answer() {
        let files = tree("damaged", &[("/proc/config.gz", b"no gzip")]);
        assert_eq!(read(&files), None);
        std::fs::remove_dir_all(files.path("/")).unwrap();
        let files = tree("release", &[("/proc/sys/kernel/osrelease", b"../../etc")]);
        assert_eq!(read(&files), None);
        std::fs::remove_dir_all(files.path("/")).unwrap();
    }
}
