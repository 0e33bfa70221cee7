//! Rules on the text of a source file. They are a head that says what lives there, line width,
//! trailing white space, and `#![forbid(unsafe_code)]` where no `unsafe` may be.

use std::path::Path;

use crate::tidy::fault::{Check, Fault};
use crate::tidy::house;
use crate::tidy::workspace::{Files, is_rust};

/// Crates that may hold `unsafe`.
const UNSAFE: [&str; 4] = ["nm-sys", "nm-ring", "nm-accel", "nm-test-support"];

const LINE_WIDTH_MAX: usize = 100;

pub fn check(files: &Files) -> Vec<Fault> {
    files
        .iter()
        .filter(|(path, _)| is_rust(path))
        .flat_map(|(path, text)| file_faults(path, text))
        .chain(UNSAFE.iter().filter_map(|owner| needless_exception(files, owner)))
        .collect()
}

/// A crate of [`UNSAFE`] that holds none.
fn needless_exception(files: &Files, owner: &str) -> Option<Fault> {
    let folder = house::folder(owner);
    let holds_unsafe = |text: &str| {
        ["unsafe {", "unsafe fn ", "unsafe impl "].iter().any(|code| text.contains(code))
    };
    let mut own = files.iter().filter(|(path, _)| path.starts_with(&folder) && is_rust(path));
    let is_needed = own.any(|(_, text)| holds_unsafe(text));
    let message = "the crate holds no `unsafe`; add #![forbid(unsafe_code)] and take it off the \
                   list of exceptions in xtask/src/tidy/text.rs";
    (!is_needed)
        .then(|| Fault::new(Check::Text, &folder.join("src/lib.rs"), 1, message.to_string()))
}

fn file_faults(path: &Path, text: &str) -> Vec<Fault> {
    let mut faults = vec![];
    let mut add = |line, text: String| faults.push(Fault::new(Check::Text, path, line, text));
    if !text.starts_with("//!") {
        add(1, "the file has no head; open it with `//!` and say what lives there".to_string());
    }
    for (index, line) in text.lines().enumerate() {
        let width = line.chars().count();
        if width > LINE_WIDTH_MAX {
            add(index + 1, format!("line has {width} columns; break it at {LINE_WIDTH_MAX}"));
        }
        if line.ends_with([' ', '\t']) {
            add(index + 1, "trailing white space; remove it".to_string());
        }
    }
    if must_forbid_unsafe(path) && !text.contains("#![forbid(unsafe_code)]") {
        add(1, "the crate may hold no `unsafe`; add #![forbid(unsafe_code)]".to_string());
    }
    faults
}

/// Whether the file is the root of a crate that may hold no `unsafe`.
fn must_forbid_unsafe(path: &Path) -> bool {
    let is_root = path.ends_with("src/lib.rs") || path.ends_with("src/main.rs");
    let owner = house::owner(path).filter(|owner| owner != "xtask");
    is_root && owner.is_some_and(|owner| !UNSAFE.contains(&&*owner))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_violation_is_a_fault() {
        let long = "x".repeat(LINE_WIDTH_MAX + 1);
        let path = Path::new("crates/measure/judge/src/lib.rs");
        let faults = file_faults(path, &format!("use x; \n{long}\n"));
        let shown: Vec<String> = faults.iter().map(Fault::to_string).collect();
        assert_eq!(
            shown,
            [
                "crates/measure/judge/src/lib.rs:1: the file has no head; open it with `//!` and \
                 say what lives there [text]",
                "crates/measure/judge/src/lib.rs:1: trailing white space; remove it [text]",
                "crates/measure/judge/src/lib.rs:2: line has 101 columns; break it at 100 [text]",
                "crates/measure/judge/src/lib.rs:1: the crate may hold no `unsafe`; add \
                 #![forbid(unsafe_code)] [text]",
            ]
        );
    }

    #[test]
    fn exception_without_unsafe_is_a_fault() {
        let mut files: Files = UNSAFE
            .iter()
            .map(|owner| house::folder(owner).join("src/lib.rs"))
            .map(|path| (path, "//! Head.\nunsafe fn f() {}\n".to_string()))
            .collect();
        assert_eq!(check(&files), []);
        let ring = "crates/measure/ring/src/lib.rs";
        files.insert(ring.into(), "//! Head, without unsafe.\n".to_string());
        let faults = check(&files);
        assert_eq!(faults.len(), 1);
        assert!(faults[0].to_string().starts_with(&format!("{ring}:1: the crate holds no")));
    }

    #[test]
    fn clean_file_passes() {
        let text = "//! Head.\n#![forbid(unsafe_code)]\n";
        assert_eq!(file_faults(Path::new("crates/measure/judge/src/lib.rs"), text), []);
        assert_eq!(file_faults(Path::new("crates/ground/sys/src/lib.rs"), "//! Head.\n"), []);
    }
}
