//! `certify` and `verify-certificate`, as a user runs them, beside minisign.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use jiff::{SignedDuration, Timestamp};
use nm_sign::SecretKey;
use serde_json::{Value, json};

use crate::baseline;
use crate::support::{Run, json as load, root, run_in};

/// A run that passed and began so many days ago, on a host of this name.
fn result(folder: &Path, name: &str, days: i64, factor: f64, host: &str) {
    let path = baseline::result(folder, name, 1, factor);
    change(&path, |run| {
        let started = Timestamp::now() - SignedDuration::from_hours(24 * days);
        run["started"] = json!(started.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
        run["source"] = json!({"kind": "measured", "version": env!("CARGO_PKG_VERSION")});
        run["outcome"] = json!("pass");
        for one in run["facts"].as_array_mut().unwrap() {
            one["facts"]["host"]["name"] = json!(host);
        }
    });
}

fn change(path: &Path, how: impl FnOnce(&mut Value)) {
    let mut value = load(path);
    how(&mut value);
    fs::write(path, value.to_string()).unwrap();
}

fn nearmetal(folder: &Path, line: &str) -> Run {
    run_in(folder, &line.split(' ').collect::<Vec<_>>())
}

fn minisign(folder: &Path, line: &str) {
    let mut command = Command::new("minisign");
    command.current_dir(folder).args(line.split(' ')).stdin(std::process::Stdio::null());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{line}: {output:?}");
}

/// A folder with the keys `signer`, and `host.json`, the certificate of the run `one.json`.
fn certified() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    result(folder.path(), "one", 2, 1.0, "rack-7");
    for line in ["certify --new-key signer", "certify one.json --key signer --out host.json"] {
        let run = nearmetal(folder.path(), line);
        assert_eq!(run.code, 0, "{line}: {}", run.stderr);
    }
    folder
}

#[test]
fn minisign_verifies_certificates_and_its_own_keys_sign_them() {
    let is_there = Command::new("minisign").arg("-v").output().is_ok();
    if !nm_test_support::skip::can_run(is_there, "minisign is not installed") {
        return;
    }
    let folder = certified();
    let folder = folder.path();
    minisign(folder, "-V -q -p signer.pub -m host.json");
    minisign(folder, "-G -W -p other.pub -s other");
    let signed = nearmetal(folder, "certify one.json --key other --out other.json");
    assert_eq!(signed.code, 0, "{}", signed.stderr);
    minisign(folder, "-V -q -p other.pub -m other.json");
    minisign(folder, "-S -s signer -m other.json");
    let verified = nearmetal(folder, "verify-certificate other.json --public-key signer.pub");
    assert_eq!(verified.code, 0, "{}{}", verified.stdout, verified.stderr);
}

#[test]
fn a_certificate_holds_until_its_end_and_says_who_signed_it() {
    let folder = certified();
    let folder = folder.path();
    let mode = fs::metadata(folder.join("signer")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let certificate = load(&folder.join("host.json"));
    let schema = load(&root().join("schema/certificate.json"));
    jsonschema::validator_for(&schema).unwrap().validate(&certificate).unwrap();
    assert_eq!(certificate["program"]["sha256"].as_str().unwrap().len(), 64);

    let verify = "verify-certificate host.json --public-key signer.pub";
    let held = nearmetal(folder, &format!("{verify} --result one.json"));
    assert_eq!(held.code, 0, "{}{}", held.stdout, held.stderr);
    for part in [
        "PASS: the certificate of rack-7, plan quick, measured on 20",
        "has signed it",
        "it is valid until 20",
        "the verdict of its run was pass",
        "it is of the result that --result names",
        "this host is none of its hosts",
    ] {
        assert!(held.stdout.replace('\n', " ").contains(part), "{part}: {}", held.stdout);
    }
    let line = fs::read_to_string(folder.join("signer.pub")).unwrap();
    let key = line.lines().nth(1).unwrap();
    let by_line = nearmetal(folder, &format!("verify-certificate host.json --public-key {key}"));
    assert_eq!(by_line.code, 0, "{}", by_line.stderr);
    let unnamed = nearmetal(folder, "verify-certificate host.json");
    assert_eq!(unnamed.code, 3, "{}", unnamed.stdout);
    assert!(unnamed.stdout.contains("--public-key"), "{}", unnamed.stdout);

    result(folder, "two", 1, 1.01, "rack-7");
    let other = nearmetal(folder, &format!("{verify} --result two.json"));
    assert_eq!(other.code, 1, "{}", other.stdout);
    assert!(other.stdout.contains("of another result"), "{}", other.stdout);

    let key = SecretKey::parse(&fs::read_to_string(folder.join("signer")).unwrap()).unwrap();
    change(&folder.join("host.json"), |it| it["expires"] = json!("2026-01-31T00:00:00Z"));
    let text = fs::read(folder.join("host.json")).unwrap();
    fs::write(folder.join("host.json.minisig"), key.sign(&text, "again")).unwrap();
    let over = nearmetal(folder, verify);
    assert_eq!(over.code, 1, "{}", over.stdout);
    assert!(over.stdout.contains("it expired on 2026-01-31T00:00:00Z"), "{}", over.stdout);
}

#[test]
fn a_new_run_shows_whether_the_figures_of_a_certificate_hold() {
    let folder = certified();
    let folder = folder.path();
    for (name, factor) in [("same", 1.01), ("slow", 2.0), ("near", 1.3)] {
        result(folder, name, 0, factor, "rack-7");
    }
    change(&folder.join("same.json"), |run| {
        for one in run["facts"].as_array_mut().unwrap() {
            one["facts"]["host"]["kernel"] = json!("9.9.9");
        }
    });
    let against = |name: &str, more: &str| {
        let verify = "verify-certificate host.json --public-key signer.pub --format json";
        let run = nearmetal(folder, &format!("{verify} --against {name}.json{more}"));
        let found: Value = serde_json::from_str(&run.stdout).expect(&run.stderr);
        let schema = load(&root().join("schema/certificate-check.json"));
        jsonschema::validator_for(&schema).unwrap().validate(&found).unwrap();
        (run.code, found["reasons"].to_string(), found)
    };
    let (code, reasons, found) = against("same", "");
    assert_eq!(code, 0, "{reasons}");
    assert!(reasons.contains("its figures hold: "), "{reasons}");
    assert!(reasons.contains("kernel is 9.9.9, was "), "{reasons}");
    assert_eq!(found["drift"].as_array().unwrap().len(), 1, "{}", found["drift"]);
    let (code, reasons, _) = against("slow", "");
    assert_eq!(code, 1, "{reasons}");
    assert!(reasons.contains("does not hold: its figures no longer hold: "), "{reasons}");
    assert!(reasons.contains(" is 2.00 times the certified one (90 %: "), "{reasons}");
    for (name, more) in [("near", ""), ("same", " --margin 1%"), ("one", "")] {
        let (code, reasons, _) = against(name, more);
        assert_eq!(code, 3, "{name}: {reasons}");
        assert!(reasons.contains("its figures do not decide: "), "{name}: {reasons}");
    }
}

#[test]
fn facts_that_have_drifted_on_this_host_leave_a_certificate_open() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    result(folder, "here", 0, 1.0, host.trim());
    change(&folder.join("here.json"), |run| {
        for one in run["facts"].as_array_mut().unwrap() {
            one["facts"]["host"]["kernel"] = json!("1.2.3");
        }
    });
    for line in ["certify --new-key signer", "certify here.json --key signer"] {
        assert_eq!(nearmetal(folder, line).code, 0, "{line}");
    }
    change(&folder.join("here.json"), |run| run["name"] = json!("moved"));
    let verify = "verify-certificate certificate.json --public-key signer.pub --result here.json";
    let drifted = nearmetal(folder, &format!("{verify} --format json"));
    let found: Value = serde_json::from_str(&drifted.stdout).unwrap();
    assert_eq!(drifted.code, 3, "{}", drifted.stdout);
    let drift = found["drift"].as_array().unwrap();
    assert!(drift.iter().any(|one| one["fact"] == "kernel"), "{drift:?}");
    assert!(found["reasons"][0].as_str().unwrap().contains("facts have drifted on this host"));
}

#[test]
fn each_fault_of_a_certificate_has_one_sentence() {
    let folder = certified();
    let folder = folder.path();
    let path = |name: &str| folder.join(name);
    let (text, signature) =
        (fs::read(path("host.json")).unwrap(), fs::read(path("host.json.minisig")).unwrap());
    assert_eq!(nearmetal(folder, "certify --new-key stranger").code, 0);
    fs::write(path("foreign"), "another text").unwrap();
    let key = SecretKey::parse(&fs::read_to_string(path("signer")).unwrap()).unwrap();
    let signed = |text: &[u8]| key.sign(text, "").into_bytes();
    let mut flipped = text.clone();
    let at = text.iter().position(|byte| *byte == b'3').unwrap();
    flipped[at] = b'4';
    let other_version = text.clone();
    let other_version =
        String::from_utf8(other_version).unwrap().replacen("\"schema\": 1", "\"schema\": 9", 1);
    let cut = &text[..text.len() / 2];
    let by = |key: &str| format!("verify-certificate host.json --public-key {key}");
    let pub_key = by("signer.pub");
    for (bytes, signature, line, code, sentence) in [
        (&flipped[..], signature.clone(), &pub_key, 1, "the bytes are not those that key"),
        (&text, signature.clone(), &by("stranger.pub"), 1, "it was made by key"),
        (&text, signed(b"another text"), &pub_key, 1, "the bytes are not those that key"),
        (cut, signature.clone(), &pub_key, 1, "the bytes are not those that key"),
        (cut, signed(cut), &pub_key, 2, "it is no certificate: EOF while parsing"),
        (b"no", signed(b"no"), &pub_key, 2, "it is no certificate: expected"),
        (
            other_version.as_bytes(),
            signed(other_version.as_bytes()),
            &pub_key,
            2,
            "it has version 9 of the certificate format; this nearmetal reads 1",
        ),
        (&text, signature[..150].to_vec(), &pub_key, 2, "no signature of minisign, or it was cut"),
        (&text, vec![], &pub_key, 2, "no signature of minisign, or it was cut off"),
        (&text, signature.clone(), &by("signer"), 2, "it is a secret key; keep it"),
        (&text, signature.clone(), &by("foreign"), 2, "it is no public key of minisign"),
        (&text, signature.clone(), &by("none"), 2, "the public key none cannot be read"),
    ] {
        fs::write(path("host.json"), bytes).unwrap();
        fs::write(path("host.json.minisig"), &signature).unwrap();
        let run = nearmetal(folder, line);
        let said = format!("{}{}", run.stdout, run.stderr).replace('\n', " ");
        assert_eq!(run.code, code, "{sentence}: {said}");
        assert!(said.contains(sentence), "{sentence}: {said}");
    }
}

#[test]
fn what_is_too_large_or_no_run_or_no_key_is_refused() {
    let folder = certified();
    let folder = folder.path();
    let path = |name: &str| folder.join(name);
    for name in ["large.json", "host.json.minisig", "large"] {
        File::create(path(name)).unwrap().set_len(1 << 30).unwrap();
    }
    result(folder, "open", 0, 1.0, "rack-7");
    change(&path("open.json"), |run| run["state"] = json!("interrupted"));
    result(folder, "old", 0, 1.0, "rack-7");
    change(&path("old.json"), |run| run["source"]["version"] = json!("0.0.1"));
    result(folder, "past", 100, 1.0, "rack-7");
    fs::copy(path("signer"), path("shared")).unwrap();
    fs::set_permissions(path("shared"), fs::Permissions::from_mode(0o644)).unwrap();
    fs::copy(path("signer.pub"), path("public")).unwrap();
    fs::set_permissions(path("public"), fs::Permissions::from_mode(0o600)).unwrap();
    for (line, code, sentence) in [
        ("verify-certificate large.json", 2, "large.json cannot be read: it has more than 1048576"),
        ("verify-certificate /dev/zero", 2, "/dev/zero cannot be read: it is a device"),
        ("verify-certificate host.json", 2, "host.json.minisig cannot be read: it has more than"),
        ("verify-certificate host.json --public-key large", 2, "cannot be read: it has more than"),
        ("certify open.json --key signer --out x", 2, "it did not come to its end"),
        ("certify old.json --key signer --out x", 2, "nearmetal 0.0.1 measured it, and this is"),
        ("certify past.json --key signer --out x", 2, "90 days after its start are over"),
        ("certify one.json --key shared --out x", 2, "others may read or change the key shared"),
        ("certify one.json --key public --out x", 2, "it is a public key, but only the secret"),
        ("certify one.json --key signer --out host.json", 5, "host.json.minisig exists already"),
        ("certify --new-key signer", 5, "signer.pub exists already"),
        ("certify one.json --key signer --valid-days 3651", 2, "--valid-days"),
        ("certify", 2, "required"),
    ] {
        let run = nearmetal(folder, line);
        assert_eq!(run.code, code, "{line}: {}", run.stderr);
        assert!(run.stderr.contains(sentence), "{line}: {}", run.stderr);
    }
    assert!(!path("x").exists() && !path("x.minisig").exists());
}
