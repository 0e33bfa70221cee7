//! A Debian package: an `ar` archive of three members, deb(5).

use anyhow::Result;

use super::product::{Processor, SUMMARY, VERSION};
use super::tarball::{Entry, gzip, tar, with_folders};

/// The package of these files.
pub(super) fn package(files: &[Entry], processor: Processor, time_s: u64) -> Result<Vec<u8>> {
    let control = Entry::file("./control", 0o644, control(files, processor).into_bytes());
    let here: Vec<Entry> = with_folders(files)
        .into_iter()
        .map(|entry| Entry { path: format!("./{}", entry.path), ..entry })
        .collect();
    // dpkg of Debian 11 reads gzip and xz, but not zstd.
    Ok(archive(
        &[
            ("debian-binary", b"2.0\n".to_vec()),
            ("control.tar.gz", gzip(&tar(&[control], time_s)?)?),
            ("data.tar.gz", gzip(&tar(&here, time_s)?)?),
        ],
        time_s,
    ))
}

fn control(files: &[Entry], processor: Processor) -> String {
    let bytes: usize = files.iter().filter_map(|file| file.bytes.as_ref()).map(Vec::len).sum();
    let architecture = processor.debian;
    let size_kib = bytes.div_ceil(1024);
    format!(
        "Package: nearmetal\nVersion: {VERSION}\nArchitecture: {architecture}\n\
         Maintainer: The nearmetal developers\nInstalled-Size: {size_kib}\n\
         Depends: libc6 (>= 2.17)\nSection: utils\nPriority: optional\nDescription: {SUMMARY}\n \
         The program is static. Its accelerator is a library for other programs, which needs\n \
         glibc 2.17 or later.\n"
    )
}

/// An `ar` archive: a header of 60 characters before each member, which begins at an even offset.
fn archive(members: &[(&str, Vec<u8>)], time_s: u64) -> Vec<u8> {
    let mut all = b"!<arch>\n".to_vec();
    for (name, bytes) in members {
        let header =
            format!("{name:<16}{time_s:<12}{:<6}{:<6}{:<8}{:<10}`\n", 0, 0, 100_644, bytes.len());
        assert_eq!(header.len(), 60, "each field fits its width");
        all.extend(header.bytes());
        all.extend(bytes);
        if bytes.len() % 2 == 1 {
            all.push(b'\n');
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_begin_at_even_offsets() {
        let all = archive(&[("a", b"x".to_vec()), ("b", b"yz".to_vec())], 7);
        assert_eq!(all.len(), 8 + 60 + 2 + 60 + 2);
        assert!(
            all[8..]
                .starts_with(b"a               7           0     0     100644  1         `\nx\nb")
        );
    }
}
