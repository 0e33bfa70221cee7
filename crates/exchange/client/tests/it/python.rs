//! The Python package and the C header speak the same format, and say the same words.

use std::fmt::{Debug, Write as _};
use std::fs;
use std::path::{Path, PathBuf};

use nm_client::order::{CancelReason, RejectReason};
use nm_wire::{Format, RefusalReason};

fn package() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../clients/python/nearmetal_client")
}

fn is_update() -> bool {
    std::env::var_os("UPDATE").is_some()
}

#[test]
fn the_python_package_has_the_version_and_digest_of_the_format() {
    let path = package().join("wire.py");
    let mut text = fs::read_to_string(&path).unwrap();
    let line_of = |text: &str, name: &str| {
        text.lines().find(|line| line.starts_with(name)).unwrap().to_string()
    };
    let digest = format!("DIGEST = 0x{:X}", nm_wire::digest());
    if is_update() {
        text = text.replace(&line_of(&text, "DIGEST = "), &digest);
        fs::write(&path, &text).unwrap();
    }
    assert_eq!(line_of(&text, "VERSION = "), format!("VERSION = {}", nm_wire::VERSION));
    assert_eq!(line_of(&text, "DIGEST = "), digest);
}

#[test]
fn the_c_header_has_the_version_and_digest_of_the_format() {
    let path = package().join("../../c/nearmetal.h");
    let mut text = fs::read_to_string(&path).unwrap();
    let of = |text: &str, name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("#define {name} ")));
        line.unwrap().split(' ').next().unwrap().to_string()
    };
    let digest = format!("0x{:016X}ULL", nm_wire::digest());
    if is_update() {
        text = text.replace(&of(&text, "NM_DIGEST"), &digest);
        fs::write(&path, &text).unwrap();
    }
    assert_eq!(of(&text, "NM_VERSION"), nm_wire::VERSION.to_string());
    assert_eq!(of(&text, "NM_DIGEST"), digest);
}

/// The words of reasons by their codes; `names` in session.py has the same order.
fn words<T: Debug + Copy>(name: &str, all: &[T], words: impl Fn(T) -> &'static str) -> String {
    let session = fs::read_to_string(package().join("session.py")).unwrap();
    let list = format!("{} = [", name.replace("WORDS", "REASONS"));
    let list = session.split_once(&list).unwrap().1.split_once(']').unwrap().0;
    let listed: Vec<&str> = list.split('"').skip(1).step_by(2).collect();
    let names: Vec<String> = all.iter().map(|it| format!("{it:?}")).collect();
    assert_eq!(listed, names, "{name}");
    let mut text = format!("\n{name} = [\n");
    all.iter().for_each(|it| writeln!(text, "    \"{}\",", words(*it)).unwrap());
    text + "]\n"
}

#[test]
fn the_python_package_has_the_messages_and_the_words_of_this_version() {
    let mut text = "\"\"\"Made by a test of nm-client: change the Rust source.\"\"\"\n".to_string();
    text.push_str("\nMESSAGES = {\n");
    for known in &Format::own().messages {
        writeln!(text, "    {}: 0x{:016X},", known.code, known.digest).unwrap();
    }
    text.push_str("}\n\"\"\"Digests of the messages by their codes.\"\"\"\n");
    text.push_str(&words("REJECT_WORDS", RejectReason::ALL, RejectReason::words));
    text.push_str(&words("CANCEL_WORDS", CancelReason::ALL, CancelReason::words));
    text.push_str(&words("REFUSAL_WORDS", RefusalReason::ALL, RefusalReason::words));
    let path = package().join("generated.py");
    if is_update() {
        fs::write(&path, &text).unwrap();
    }
    let known = fs::read_to_string(&path).unwrap_or_default();
    assert!(text == known, "UPDATE=1 cargo test -p nm-client python writes generated.py anew");
}
