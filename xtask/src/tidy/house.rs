//! Where each crate lies: wings of the house, and the crates of each from its top to its ground.

use std::path::{Path, PathBuf};

/// A wing is a folder in `crates/`; its crates are folders in it, named without `nm-`.
const WINGS: [(&str, &[&str]); 4] = [
    (
        "measure",
        &[
            "campaign",
            "report",
            "judge",
            "fleet",
            "lab",
            "controller",
            "probe",
            "vm",
            "transport",
            "ring",
            "stats",
            "model",
        ],
    ),
    ("machine", &["generate", "tune", "audit", "firmware", "host", "place", "settings"]),
    (
        "exchange",
        &[
            "run", "replay", "operate", "backup", "verify", "load", "feed", "doors", "client",
            "exchange", "policy", "replica", "wire", "book", "auth", "codec",
        ],
    ),
    ("ground", &["sign", "ssh", "sys", "test-support"]),
];

/// Crates that are a wing of their own: each lies in `crates/` itself.
const SINGLE: [(&str, &str); 2] = [("nearmetal", "nearmetal"), ("nm-accel", "accel")];

/// Edges between wings, beside those of the program, which may use all, and those to the ground:
/// the wing or the crate that depends, and the crate on which it may. The first three are meant to
/// stay; each of the others waits for a part of the lower crate to move.
const BETWEEN: [(&str, &str); 17] = [
    ("accel", "nm-ring"),
    ("measure", "nm-host"),
    ("measure", "nm-place"),
    ("nm-campaign", "nm-run"),
    ("nm-campaign", "nm-settings"),
    ("nm-campaign", "nm-tune"),
    ("nm-lab", "nm-run"),
    ("nm-lab", "nm-exchange"),
    ("nm-vm", "nm-audit"),
    ("nm-vm", "nm-settings"),
    ("nm-vm", "nm-tune"),
    ("nm-generate", "nm-ring"),
    ("nm-generate", "nm-vm"),
    ("machine", "nm-model"),
    ("exchange", "nm-model"),
    ("exchange", "nm-stats"),
    ("nm-exchange", "nm-ring"),
];

/// Integration tests stand above the crate that they test, and may use what else stands there: the
/// tests of the nodes operate networks.
const BY_TESTS: [(&str, &str); 1] = [("nm-exchange", "nm-operate")];

/// The one edge that leaves the ground.
const UPWARD: (&str, &str) = ("nm-ssh", "nm-model");

/// A crate's wing and its depth in it, 0 at the top.
pub(super) fn place(package: &str) -> Option<(&'static str, usize)> {
    if let Some((_, folder)) = SINGLE.iter().find(|(name, _)| *name == package) {
        return Some((folder, 0));
    }
    let name = package.strip_prefix("nm-")?;
    WINGS.iter().find_map(|(wing, crates)| {
        crates.iter().position(|other| *other == name).map(|depth| (*wing, depth))
    })
}

/// The folder of a crate, from the root.
pub fn folder(package: &str) -> PathBuf {
    match place(package) {
        Some((wing, _)) if SINGLE.iter().all(|(_, folder)| *folder != wing) => {
            Path::new("crates").join(wing).join(package.trim_start_matches("nm-"))
        }
        Some((single, _)) => Path::new("crates").join(single),
        None => PathBuf::from(package),
    }
}

/// The crate whose folder holds the file; `None` for files of no crate.
pub fn owner(file: &Path) -> Option<String> {
    let mut parts = file.components().map(|part| part.as_os_str().to_string_lossy());
    match parts.next()?.as_ref() {
        "xtask" => return Some("xtask".to_string()),
        "crates" => {}
        _ => return None,
    }
    let first = parts.next()?;
    if let Some((name, _)) = SINGLE.iter().find(|(_, folder)| *folder == first) {
        return Some((*name).to_string());
    }
    parts.next().map(|name| format!("nm-{name}"))
}

/// Whether the tests of `package` may depend on `on`, although it is not below the package. A
/// crate's own tests may use it with its feature `test-support`.
pub(super) fn is_for_tests(package: &str, on: &str) -> bool {
    package == on || BY_TESTS.contains(&(package, on))
}

/// Why `package` may not depend on `on`, both of the house.
pub(super) fn forbidden(package: &str, on: &str) -> Option<&'static str> {
    let ((wing, depth), (other_wing, other_depth)) = (place(package)?, place(on)?);
    if wing == other_wing {
        return (other_depth <= depth).then_some("which is not below it");
    }
    let listed = BETWEEN.iter().any(|(from, to)| *to == on && (*from == wing || *from == package));
    let is_allowed = wing == "nearmetal"
        || (other_wing == "ground" && wing != "ground")
        || listed
        || (package, on) == UPWARD;
    (!is_allowed).then_some("which is in another wing")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_belongs_to_the_crate_in_whose_folder_it_lies() {
        for package in ["nearmetal", "nm-accel", "nm-model", "nm-operate", "xtask"] {
            let file = folder(package).join("src/lib.rs");
            assert_eq!(owner(&file).as_deref(), Some(package), "{}", file.display());
        }
        assert_eq!(folder("nm-sys"), Path::new("crates/ground/sys"));
        assert_eq!(owner(Path::new("docs/limits.md")), None);
    }

    #[test]
    fn an_edge_goes_down_in_its_wing_to_the_ground_or_where_it_is_listed() {
        for (package, on) in [
            ("nm-report", "nm-model"),
            ("nm-tune", "nm-sys"),
            ("nearmetal", "nm-book"),
            ("nm-lab", "nm-host"),
        ] {
            assert_eq!(forbidden(package, on), None, "{package} on {on}");
        }
        assert!(is_for_tests("nm-exchange", "nm-operate") && is_for_tests("nm-book", "nm-book"));
        assert!(!is_for_tests("nm-book", "nm-exchange"));
        assert_eq!(forbidden("nm-exchange", "nm-operate"), Some("which is not below it"));
        assert_eq!(forbidden("nm-model", "nm-report"), Some("which is not below it"));
        assert_eq!(forbidden("nm-book", "nm-audit"), Some("which is in another wing"));
        assert_eq!(forbidden("nm-sys", "nm-model"), Some("which is in another wing"));
        assert_eq!(forbidden("nm-accel", "nearmetal"), Some("which is in another wing"));
    }
}
