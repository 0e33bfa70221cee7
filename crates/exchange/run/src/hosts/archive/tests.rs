//! Archives as nodes leave them, and as a hostile host may send them.

use super::*;
use proptest::prelude::*;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use tar::{Builder, Header};

/// An entry that `tar` itself would not write.
fn header(kind: EntryType, name: &[u8], size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.as_old_mut().name[..name.len()].copy_from_slice(name);
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(0o6777);
    header.set_uid(65533);
    header.set_gid(65533);
    header.set_link_name_literal("/etc/passwd").unwrap();
    header.set_cksum();
    header
}

type Item = (EntryType, Vec<u8>, usize);

fn item(kind: EntryType, name: &str, size: usize) -> Item {
    (kind, name.as_bytes().to_vec(), size)
}

fn archive(items: &[Item]) -> Vec<u8> {
    let mut archive = Builder::new(vec![]);
    for (kind, name, size) in items {
        let content = vec![7; *size];
        archive.append(&header(*kind, name, *size as u64), &content[..]).unwrap();
    }
    archive.into_inner().unwrap()
}

const SMALL: Limits = Limits {
    entries_max: 8,
    file_bytes_max: 2_000,
    all_bytes_max: 3_000,
    path_bytes_max: 60,
    depth_max: 4,
};

/// Folder `data`, with a folder of another host's node in it and one beside it.
fn place() -> (tempfile::TempDir, PathBuf) {
    let place = tempfile::tempdir().unwrap();
    let to = place.path().join("data");
    fs::create_dir_all(to.join("mediator-1")).unwrap();
    fs::write(to.join("mediator-1/kept"), "kept").unwrap();
    fs::create_dir(place.path().join("outside")).unwrap();
    (place, to)
}

fn nodes() -> [String; 2] {
    ["mediator-0", "mediator-2"].map(String::from)
}

fn receive(bytes: &[u8], to: &Path) -> Result<(), ArchiveError> {
    unpack(bytes, to, &nodes(), &SMALL)?.keep()
}

/// Every path below a folder.
fn paths(folder: &Path) -> Vec<PathBuf> {
    let mut all = vec![];
    for entry in fs::read_dir(folder).unwrap().flatten() {
        all.push(entry.path());
        if entry.file_type().unwrap().is_dir() {
            all.extend(paths(&entry.path()));
        }
    }
    all.sort();
    all
}

use EntryType::{Block, Char, Directory, Fifo, GNULongName, GNUSparse, Link, Regular, Symlink};

#[test]
fn files_and_folders_arrive_with_access_and_owner_of_our_own() {
    let (_place, to) = place();
    let long = format!("mediator-2/{}", "x".repeat(49));
    let items = [
        item(Directory, "./", 0),
        item(Directory, "./mediator-0/", 0),
        item(Directory, "./mediator-0/cell-0/", 0),
        item(Regular, "./mediator-0/cell-0/1.journal", 1_999),
        item(Directory, "mediator-2", 0),
        item(Regular, &long, 0),
    ];
    receive(&archive(&items), &to).unwrap();
    let file = to.join("mediator-0/cell-0/1.journal");
    assert_eq!(fs::read(&file).unwrap(), vec![7; 1_999]);
    assert!(to.join(long).is_file() && to.join("mediator-1/kept").is_file());
    for path in paths(&to) {
        let found = fs::symlink_metadata(&path).unwrap();
        let mode_max = if found.is_dir() { FOLDER_MODE } else { FILE_MODE };
        assert_eq!(found.mode() & 0o7777 & !mode_max, 0, "{}", path.display());
        assert_ne!(found.uid(), 65533);
    }
    assert_eq!(fs::read_dir(&to).unwrap().count(), 3, "the private folder is gone");
}

#[test]
fn what_is_no_file_or_folder_of_a_node_is_refused_and_nothing_is_left() {
    let top = item(Directory, "mediator-0", 0);
    let long = "y".repeat(61);
    let kinds = [Symlink, Link, Char, Block, Fifo, GNULongName, GNUSparse, EntryType::XHeader];
    let of_kind = kinds.map(|kind| (item(kind, "mediator-0/x", 0), "neither a regular file nor"));
    let named = [
        ("/etc/cron.d/x", "is no plain path below"),
        ("../outside/x", "is no plain path below"),
        ("mediator-0/../../outside/x", "is no plain path below"),
        ("mediator-0//x", "is no plain path below"),
        ("mediator-0/./x", "is no plain path below"),
        ("mediator-0/x/", "is no plain path below"),
        ("mediator-0/\x1b[2Jx", "has control characters"),
        ("mediator-1/kept", "is not of a node that runs there"),
        ("mediator-0", "is not of a node that runs there"),
        ("x", "is not of a node that runs there"),
        ("./", "is that of a folder"),
        ("", "is no plain path below"),
        (&long, "is too long"),
        ("mediator-0/a/b/c/d", "too many folders deep"),
        ("mediator-0/a/b", "without the folder that it is in"),
    ];
    let named = named.map(|(name, why)| (item(Regular, name, 9), why));
    let not_text = ((Regular, b"mediator-0/\xff".to_vec(), 0), "is not UTF-8");
    let folder_of_bytes = (item(Directory, "mediator-0/f", 9), "neither a regular file nor");
    for (bad, why) in of_kind.into_iter().chain(named).chain([not_text, folder_of_bytes]) {
        let (place, to) = place();
        let before = paths(place.path());
        let text = receive(&archive(&[top.clone(), bad]), &to).unwrap_err().to_string();
        assert!(text.starts_with("it sent \"") && text.contains(why), "{text}");
        assert!(!text.contains(char::is_control), "{text:?}");
        assert_eq!(paths(place.path()), before, "{text}");
    }
}

#[test]
fn numbers_and_sizes_are_limited_by_what_the_headers_say() {
    let top = item(Directory, "mediator-0", 0);
    let files = |sizes: &[usize]| {
        let file =
            |(number, size): (usize, &usize)| item(Regular, &format!("mediator-0/{number}"), *size);
        let files = sizes.iter().enumerate().map(file);
        archive(&[top.clone()].into_iter().chain(files).collect::<Vec<Item>>())
    };
    let mut claimed = Builder::new(vec![]);
    claimed.append(&header(Directory, b"mediator-0", 0), &[][..]).unwrap();
    claimed.append(&header(Regular, b"mediator-0/x", 1 << 50), &[][..]).unwrap();
    for (bytes, why) in [
        (files(&[0; 8]), "it sent more than 8 files and folders"),
        (files(&[2_001]), "it sent more than 2000 bytes in one file"),
        (files(&[2_000, 1_001]), "it sent more than 3000 bytes"),
        (claimed.into_inner().unwrap(), "it sent more than 2000 bytes in one file"),
    ] {
        let (place, to) = place();
        let before = paths(place.path());
        assert_eq!(receive(&bytes, &to).unwrap_err().to_string(), why);
        assert_eq!(paths(place.path()), before);
    }
    let (_place, to) = place();
    receive(&files(&[2_000, 1_000, 0, 0, 0, 0, 0]), &to).unwrap();
}

#[test]
fn a_name_that_comes_twice_or_is_there_already_changes_nothing() {
    let (place, to) = place();
    let file = item(Regular, "mediator-0/x", 1);
    let folder = item(Directory, "mediator-0", 0);
    for twice in [[&folder, &folder, &file], [&folder, &file, &file]] {
        let text = receive(&archive(&twice.map(Clone::clone)), &to).unwrap_err().to_string();
        assert!(text.contains("of which it had sent one already"), "{text}");
    }
    // Something took the second name since: the first one is not kept either.
    symlink("/etc", to.join("mediator-2")).unwrap();
    let before = paths(place.path());
    let both = archive(&[folder, file, item(Directory, "mediator-2", 0)]);
    let text = receive(&both, &to).unwrap_err().to_string();
    assert!(text.contains("data/mediator-2 cannot be written"), "{text}");
    assert_eq!(paths(place.path()), before);
}

#[test]
fn an_archive_that_is_cut_off_is_named_and_leaves_nothing() {
    let complete = archive(&[item(Directory, "mediator-0", 0), item(Regular, "mediator-0/x", 900)]);
    let (place, to) = place();
    let before = paths(place.path());
    for length in [1_024, 1_024 + 899] {
        let error = receive(&complete[..length], &to).unwrap_err();
        assert!(error.is_end(), "{error}");
        assert_eq!(paths(place.path()), before);
    }
    for no_archive in [&complete[..700], &[b'x'; 600]] {
        let error = receive(no_archive, &to).unwrap_err();
        assert!(error.to_string().contains("is no tar archive") && !error.is_end(), "{error}");
    }
}

fn any_item() -> impl Strategy<Value = Item> {
    let kinds = [Regular, Regular, Directory, Directory, Symlink, Link, Char, Fifo, GNULongName];
    let part =
        prop::sample::select(vec!["mediator-0", "mediator-1", "a", "b", "..", ".", "", "\n"]);
    let name = prop::collection::vec(part, 0..5).prop_map(|parts| parts.join("/"));
    (prop::sample::select(kinds.to_vec()), name, 0_usize..700)
        .prop_map(|(kind, name, size)| item(kind, &name, if kind == Directory { 0 } else { size }))
}

proptest! {
    #[test]
    fn whatever_is_sent_only_plain_files_of_the_hosts_nodes_appear(
        mut items in prop::collection::vec(any_item(), 0..7),
        has_top in any::<bool>(),
        noise in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
    ) {
        if has_top {
            items.insert(0, item(Directory, "mediator-0", 0));
        }
        let mut bytes = archive(&items);
        for (at, byte) in noise {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let (place, to) = place();
        let before = paths(place.path());
        let received = receive(&bytes, &to);
        let after = paths(place.path());
        if received.is_err() {
            prop_assert_eq!(&after, &before);
        }
        for path in after.iter().filter(|path| !before.contains(path)) {
            prop_assert!(path.starts_with(to.join("mediator-0")), "{}", path.display());
            let found = fs::symlink_metadata(path).unwrap();
            prop_assert!(found.is_dir() || found.is_file() && found.nlink() == 1);
            prop_assert_eq!(found.mode() & 0o7022, 0);
        }
        prop_assert_eq!(fs::read_to_string(to.join("mediator-1/kept")).unwrap(), "kept");
    }
}
