//! `audit`, as a user runs it.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::support::{BINARY, run, run_in};

#[test]
fn snapshot_gives_the_same_findings_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["audit", "--interval", "0.1", "--save", "host.json", "--format", "json"];
    let here = run_in(folder.path(), &args);
    assert_eq!(here.code, 0, "{}", here.stderr);
    let elsewhere =
        run_in(folder.path(), &["audit", "--snapshot", "host.json", "--format", "json"]);
    assert_eq!(here.stdout, elsewhere.stdout);
    let audit: Value = serde_json::from_str(&here.stdout).unwrap();
    let findings = audit["findings"].as_array().unwrap();
    assert!(findings.len() >= 80, "{} findings", findings.len());
    assert!(
        findings.iter().all(|finding| finding["sources"].as_array().is_some_and(|s| !s.is_empty()))
    );
}

#[test]
fn what_is_no_snapshot_and_no_root_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for other in ["{}", r#"{"schema": 2, "series": []}"#] {
        fs::write(folder.path().join("other.json"), other).unwrap();
        let refused = ["audit", "--snapshot", "other.json", "--fail-at", "info"];
        let refused = run_in(folder.path(), &refused);
        assert_eq!(refused.code, 2, "{}", refused.stdout);
        assert!(refused.stderr.contains("is no snapshot of `audit --save`"), "{}", refused.stderr);
    }
    // A file of zeros that takes no room.
    let long = fs::File::create(folder.path().join("long.json")).unwrap();
    long.set_len((256 << 20) + 1).unwrap();
    let refused = run_in(folder.path(), &["audit", "--snapshot", "long.json"]);
    assert_eq!(refused.code, 2, "{}", refused.stdout);
    assert!(refused.stderr.contains("it has more than 268435456 bytes"), "{}", refused.stderr);
    fs::create_dir(folder.path().join("empty")).unwrap();
    let refused = run_in(folder.path(), &["audit", "--root", "empty"]);
    assert_eq!(refused.code, 2, "{}", refused.stdout);
    assert!(refused.stderr.contains("it has no files of /proc"), "{}", refused.stderr);
}

#[test]
fn nothing_is_opened_for_writing() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    let calls = "trace=open,openat,openat2,creat,truncate,ftruncate,rename,renameat,renameat2,\
                 unlink,unlinkat,mkdir,mkdirat,link,linkat,symlink,symlinkat,mknod,mknodat,chmod,\
                 fchmod,fchmodat,chown,fchown,fchownat,utimensat,setxattr";
    let status = Command::new("strace")
        .args(["-f", "-qq", "-e", calls, "-o"])
        .arg(&trace)
        .args([BINARY, "audit", "--active", "--pid"])
        .arg(std::process::id().to_string())
        .output()
        .expect("strace is installed by `cargo xtask setup`");
    assert!(status.status.success(), "{}", String::from_utf8_lossy(&status.stderr));
    let text = fs::read_to_string(&trace).unwrap();
    let opened = text.lines().filter(|line| line.contains("open")).count();
    assert!(opened > 100, "only {opened} files were opened: the trace is not of the audit");
    let is_harmless = |line: &str| {
        line.contains("open")
            && !["O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "O_APPEND"]
                .iter()
                .any(|flag| line.contains(flag))
    };
    // Threads that end leave a line of their own.
    let is_call = |line: &&str| line.contains('(') && !line.contains("resumed>");
    let writes: Vec<&str> = text.lines().filter(is_call).filter(|l| !is_harmless(l)).collect();
    assert_eq!(writes, Vec::<&str>::new());
    assert!(
        !text.contains("/dev/cpu_dma_latency") && !text.contains("/msr\""),
        "devices are opened"
    );
}

#[test]
fn every_format_is_well_formed_and_severity_decides_the_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root/proc/sys/net/core");
    fs::create_dir_all(&root).unwrap();
    fs::write(root.join("busy_read"), "0\n").unwrap();
    fs::write(root.join("busy_poll"), "0\n").unwrap();
    let audit =
        |more: &[&str]| run_in(folder.path(), &[&["audit", "--root", "root"], more].concat());
    let text = audit(&[]);
    assert_eq!(text.code, 0);
    assert!(text.stdout.contains("✗ nic.busy_poll"), "{}", text.stdout);
    assert_eq!(audit(&["--fail-at", "high"]).code, 1);
    assert_eq!(audit(&["--fail-on", "high"]).code, 1, "the name that it had");
    // Nothing critical is found, but next to nothing was looked at: that is no pass.
    let judged = audit(&["--fail-at", "critical"]);
    assert_eq!(judged.code, 3, "{}", judged.stderr);
    assert!(judged.stderr.contains("because the evidence of "), "{}", judged.stderr);

    let sarif: Value = serde_json::from_str(&audit(&["--format", "sarif"]).stdout).unwrap();
    check_sarif(&sarif);
    let run_of_sarif = &sarif["runs"][0];
    let rules = run_of_sarif["tool"]["driver"]["rules"].as_array().unwrap();
    let results = run_of_sarif["results"].as_array().unwrap();
    assert_eq!(results.len(), 1, "{results:?}");
    let index = results[0]["ruleIndex"].as_u64().unwrap() as usize;
    assert_eq!(rules[index]["id"], results[0]["ruleId"]);
    assert_eq!(results[0]["level"], "error");
    let place = &results[0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"];
    assert_eq!(place, "proc/sys/net/core/busy_read");
    let logical = &results[0]["locations"][0]["logicalLocations"][0]["fullyQualifiedName"];
    assert_eq!(logical, "/proc/sys/net/core/busy_read");
    let subject = &results[0]["partialFingerprints"]["nearmetalSubject/v1"];
    assert_eq!(subject, "nic.busy_poll /proc/sys/net/core/busy_read");
    assert!(rules.iter().all(|rule| rule["helpUri"].as_str().unwrap().starts_with("https://")));

    let junit = audit(&["--format", "junit", "--fail-at", "high"]).stdout;
    fs::write(folder.path().join("junit.xml"), &junit).unwrap();
    let lint = Command::new("xmllint")
        .args(["--nonet", "--noout", "--schema", &schema("surefire-test-report.xsd")])
        .arg(folder.path().join("junit.xml"))
        .output()
        .expect("xmllint is missing: `cargo xtask setup` installs libxml2-utils");
    assert!(lint.status.success(), "{}", String::from_utf8_lossy(&lint.stderr));
    assert_eq!(junit.matches("<failure ").count(), 1);
    assert!(junit.contains("<skipped message=\"unknown: "), "{junit}");
    assert_eq!(junit.matches("<testsuite ").count(), junit.matches("</testsuite>").count());
    let markdown = audit(&["--format", "markdown"]).stdout;
    assert!(
        markdown.starts_with("# Audit") && markdown.contains("| nic.busy\\_poll |"),
        "{markdown}"
    );
    let html = audit(&["--format", "html"]).stdout;
    assert!(html.starts_with("<!DOCTYPE html>") && html.contains("id=\"finding-nic.busy_poll\""));
    assert!(!html.contains("<script") && !html.contains("src="));
}

fn schema(name: &str) -> String {
    format!("{}/../measure/report/tests/schemas/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Fails if `sarif` is not valid by the standard, or if the schema finds nothing.
fn check_sarif(sarif: &Value) {
    let text = fs::read_to_string(schema("sarif-2.1.0.json")).unwrap();
    let mut schema: Value = serde_json::from_str(&text).unwrap();
    // Both patterns have a bracket too many, which only some regular expressions take.
    for part in ["run", "toolComponent"] {
        let language = &mut schema["definitions"][part]["properties"]["language"];
        language.as_object_mut().unwrap().remove("pattern");
    }
    let validator = jsonschema::validator_for(&schema).unwrap();
    let faults: Vec<String> = validator
        .iter_errors(sarif)
        .map(|fault| format!("{}: {fault}", fault.instance_path()))
        .collect();
    assert_eq!(faults, Vec::<String>::new());
    let mut wrong = sarif.clone();
    wrong["runs"][0]["results"][0]["level"] = "fatal".into();
    assert!(!validator.is_valid(&wrong));
    wrong = sarif.clone();
    wrong["runs"][0]["tool"]["driver"]["name"].take();
    assert!(!validator.is_valid(&wrong));
}

/// Status of each check by its id.
fn statuses(json: &str) -> Vec<(String, String, String)> {
    let audit: Value = serde_json::from_str(json).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    let findings = audit["findings"].as_array().unwrap().iter();
    findings.map(|f| (text(&f["id"]), text(&f["status"]), text(&f["severity"]))).collect()
}

#[test]
fn a_recording_is_audited_like_the_machine_and_does_not_name_it() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["audit", "--interval", "0.1", "--format", "json"];
    let here = run_in(folder.path(), &[&args[..], &["--record", "recorded"]].concat());
    assert_eq!(here.code, 0, "{}", here.stderr);
    let there = run_in(folder.path(), &["audit", "--root", "recorded", "--format", "json"]);
    assert_eq!(there.code, 0, "{}", there.stderr);
    assert_eq!(statuses(&there.stdout), statuses(&here.stdout));
    let again = run_in(folder.path(), &[&args[..], &["--record", "recorded"]].concat());
    assert_eq!(again.code, 5, "{}", again.stderr);
    assert!(again.stderr.contains("is not empty; name a new folder"), "{}", again.stderr);

    let links = fs::read_dir("/sys/class/net").unwrap().flatten();
    let addresses = links.filter_map(|link| fs::read_to_string(link.path().join("address")).ok());
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
    let mut secrets: Vec<String> =
        addresses.chain(boot).map(|text| text.trim().to_string()).collect();
    secrets.retain(|secret| secret.chars().any(|c| !matches!(c, '0' | ':')));
    assert!(!secrets.is_empty());
    let found = Command::new("grep")
        .args(["-rilF"])
        .args(secrets.iter().flat_map(|secret| ["-e", secret.as_str()]))
        .arg(folder.path().join("recorded"))
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&found.stdout), "", "{secrets:?}");
}

#[test]
fn bad_input_is_refused_in_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    fs::write(at("text"), "no json").unwrap();
    fs::write(at("newer"), "{\"version\": 99}").unwrap();
    for (args, expected) in [
        (vec!["--snapshot", &at("missing")], "cannot be read"),
        (vec!["--snapshot", &at("text")], "is no snapshot"),
        (vec!["--snapshot", &at("newer")], "has version 99"),
        (vec!["--root", &at("missing")], "there is no such folder"),
        (vec!["--cpus", "3-1"], "is not a list of CPUs"),
        (vec!["--cpus", "0-1024"], "at most 1024 numbers"),
        (vec!["--cpus", ""], "is not a list of CPUs"),
        (vec!["--cpus", "0,,1"], "is not a list of CPUs"),
        (vec!["--link", ""], "there is no network link ``, but "),
        (vec!["--interval", "1e300"], "--interval is 1e300, must be 0 to"),
        (vec!["--cpus", "1000"], "CPU 1000 is not online; the machine has CPUs 0"),
        (vec!["--link", "nosuch0"], "there is no network link `nosuch0`, but "),
        (vec!["--pid", "4294967295"], "there is no process 4294967295"),
        (vec!["--interval", "1e9"], "must be 0 to 60"),
        (vec!["--fail-at", "hig"], "did you mean"),
    ] {
        let refused = run(&[&["audit"], args.as_slice()].concat());
        assert_eq!(refused.code, 2, "{args:?}: {}", refused.stderr);
        assert!(refused.stderr.contains(expected), "{args:?}: {}", refused.stderr);
    }
}
