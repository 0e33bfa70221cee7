//! Commands that measure nothing: compare, import, reference, plans, schema, help.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::{BINARY, command, finish, json, root, run, run_in};

#[test]
fn the_published_guest_against_bare_metal() {
    let run =
        run(&["compare", "reference:deftech-e5-bm-ull", "reference:deftech-e5-vm-pf", "--all"]);
    assert_ne!(run.code, 0, "not like for like is no pass");
    let text = &run.stdout;
    assert!(text.contains("not like for like") && text.contains("firmware"), "{text}");
    assert!(text.contains("close"), "medians are close: {text}");
    assert!(text.contains("clearly worse"), "p99 and stddev are not: {text}");
    assert!(text.contains("1.04") && text.contains("2.47"), "{text}");
}

#[test]
fn comparing_a_result_with_itself_claims_nothing() {
    let run = run(&[
        "compare",
        "reference:deftech-hft-vm-pf",
        "reference:deftech-hft-vm-pf",
        "--format",
        "json",
    ]);
    let comparison: Value = serde_json::from_str(&run.stdout).unwrap();
    for row in comparison["rows"].as_array().unwrap() {
        assert!(
            !["worse", "better", "differs"].contains(&row["relation"].as_str().unwrap()),
            "{row}"
        );
    }
}

#[test]
fn unknown_names_are_reported() {
    let reference = run(&["compare", "reference:deftech-hft-vm", "reference:deftech-hft-vm-pf"]);
    assert_eq!(reference.code, 2);
    assert!(reference.stderr.contains("did you mean `deftech-hft-vm-pf`?"), "{}", reference.stderr);
    let folder = run(&["compare", "no/such/folder", "reference:deftech-hft-vm-pf"]);
    assert_eq!((folder.code, folder.stderr.lines().count()), (2, 1), "{}", folder.stderr);
    let metric = run(&["compare", "a", "b", "--fail-on", "p99,medain"]);
    assert_eq!(metric.code, 2);
    assert!(metric.stderr.contains("did you mean `median`?"), "{}", metric.stderr);
}

#[test]
fn every_reference_can_be_listed_and_shown() {
    let list = run(&["reference", "list", "--format", "json"]);
    let list: Value = serde_json::from_str(&list.stdout).unwrap();
    let names = list["references"].as_array().unwrap();
    assert_eq!(names.len(), 13);
    for entry in names {
        let name = entry["name"].as_str().unwrap();
        let show = run(&["reference", "show", name]);
        assert_eq!(show.code, 0, "{name}: {}", show.stderr);
        assert!(show.stdout.len() > 100, "{name}: {}", show.stdout);
    }
}

#[test]
fn another_tools_output_becomes_a_result() {
    let text = "#\tsize\tmean\tmin\tmedian\tmax\t%ile\tstddev\titer\n\
                \t64\t1497\t1466\t1492\t17158\t1603\t41\t996000\n";
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let mut child = command(&["import", "-", "--out", out.to_str().unwrap()])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let result = json(&out.join("result.json"));
    assert_eq!(result["series"][0]["rounds"][0]["data"]["mean_ns"], 1497.0);
    let compare = run(&["compare", out.to_str().unwrap(), "reference:deftech-hft-vm-pf"]);
    assert!(matches!(compare.code, 1 | 3), "{}{}", compare.stdout, compare.stderr);
}

#[test]
fn foreign_text_is_refused_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("letter.txt");
    fs::write(&path, "Dear Sir,\n").unwrap();
    let run = run(&["import", path.to_str().unwrap()]);
    assert_eq!((run.code, run.stderr.lines().count()), (2, 1), "{}", run.stderr);
    assert!(run.stderr.contains("letter.txt"), "{}", run.stderr);
}

#[test]
fn plans_and_schemas_are_printed() {
    let plans = run(&["plans"]);
    assert!(plans.stdout.contains("quick") && plans.stdout.contains("monterey-network"));
    let text = run(&["plans", "quick"]).stdout;
    assert_eq!(text, fs::read_to_string(root().join("plans/quick.toml")).unwrap());
    for (of, file) in [
        ("result", "schema/result.json"),
        ("plan", "schema/plan.json"),
        ("accel-explanation", "schema/accel-explanation.json"),
    ] {
        let printed = run(&["schema", of]).stdout;
        let committed = fs::read_to_string(root().join(file)).unwrap();
        assert!(printed == committed, "{file} is not what `nearmetal schema {of}` prints");
    }
}

#[test]
fn a_result_of_a_newer_version_or_a_damaged_one_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("result.json");
    for text in ["{\"schema\": 99}", "{\"schema\": 1, \"na", ""] {
        fs::write(&path, text).unwrap();
        let run = run(&["report", folder.path().to_str().unwrap()]);
        assert_eq!((run.code, run.stderr.lines().count()), (2, 1), "{text}: {}", run.stderr);
    }
}

#[test]
fn a_result_that_is_too_long_or_a_device_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("result.json");
    let sparse = fs::File::create(&path).unwrap();
    sparse.set_len((4 << 30) + 1).unwrap();
    let binary = folder.path().join("binary.json");
    fs::write(&binary, [0xff, 0xfe]).unwrap();
    for (result, why) in [
        (path.to_str().unwrap(), "it has more than 4294967296 bytes"),
        (binary.to_str().unwrap(), "stream did not contain valid UTF-8"),
        ("/dev/zero", "it is a device, not a file"),
    ] {
        let refused = run(&["compare", result, "reference:deftech-hft-vm-pf"]);
        assert_eq!((refused.code, refused.stderr.lines().count()), (2, 1), "{}", refused.stderr);
        assert!(refused.stderr.trim_end().ends_with(why), "{}", refused.stderr);
    }
}

/// A name alone was taken for a folder without a name, and another file for the result beside it.
#[test]
fn a_report_is_made_again_by_the_name_of_its_result() {
    let folder = tempfile::tempdir().unwrap();
    let table = "# cmdline: sfnt-pingpong tcp\n# size mean min median max %ile stddev iter\n\
                 64 5000 4000 4900 90000 7000 300 100000\n";
    fs::write(folder.path().join("table.txt"), table).unwrap();
    let nearmetal = |words: &[&str]| run_in(folder.path(), words);
    assert_eq!(nearmetal(&["import", "table.txt", "--out", "."]).code, 0);
    for name in ["result.json", "report.html", "./result.json", "."] {
        let again = nearmetal(&["report", name]);
        assert_eq!(again.code, 0, "{name}: {}", again.stderr);
        let report = again.stdout.lines().find_map(|line| line.strip_prefix("report: ")).unwrap();
        assert!(folder.path().join(report).is_file(), "{name}: {report}");
    }
    fs::copy(folder.path().join("result.json"), folder.path().join("earlier.json")).unwrap();
    let other = nearmetal(&["report", "earlier.json"]);
    assert_eq!((other.code, other.stderr.lines().count()), (2, 1), "{}", other.stderr);
    assert!(other.stderr.contains("earlier.json is neither result.json nor"), "{}", other.stderr);
}

#[test]
fn usage_errors_and_help_have_their_codes() {
    assert_eq!(run(&["--help"]).code, 0);
    assert_eq!(run(&["--version"]).code, 0);
    assert_eq!(run(&["qualfy"]).code, 2);
    assert_eq!(run(&[]).code, 2);
    for command in ["qualify", "pingpong", "stream", "rr", "compare", "import"] {
        let help = run(&[command, "--help"]);
        assert_eq!(help.code, 0);
        assert!(help.stdout.contains("Examples:"), "{command}");
    }
    for words in [["man"].as_slice(), &["completions", "bash"], &["completions", "zsh"]] {
        let run = run(words);
        assert!(run.code == 0 && run.stdout.contains("nearmetal"), "{words:?}");
    }
}

#[test]
fn closed_pipe_is_not_an_error() {
    let script = format!("'{}' man | head -n 1; exit ${{PIPESTATUS[0]}}", crate::support::BINARY);
    let status = std::process::Command::new("bash")
        .args(["-c", &script])
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(0));
}

#[test]
fn doctor_reports_checks() {
    let text = run(&["doctor"]);
    assert_eq!(text.code, 0, "{}{}", text.stdout, text.stderr);
    for word in ["netns", "bridge", "clock"] {
        assert!(text.stdout.to_lowercase().contains(word), "{word}: {}", text.stdout);
    }
    assert_eq!(text.stdout.lines().last(), Some("ready"));
    let checks: Value = serde_json::from_str(&run(&["doctor", "--format", "json"]).stdout).unwrap();
    let checks = &checks["checks"];
    assert!(checks.as_array().unwrap().len() >= 5);
    assert_eq!(checks[0]["needed"], true, "{checks}");
}

#[test]
fn doctor_in_a_pod_says_what_its_manifest_must_give() {
    let run = finish(command(&["doctor"]).env("KUBERNETES_SERVICE_PORT", "443"));
    assert_eq!(run.code, 0, "{}{}", run.stdout, run.stderr);
    for name in ["CPUs of the pod", "class of the pod", "network of the pod", "capabilities"] {
        assert!(run.stdout.contains(name), "{name}: {}", run.stdout);
    }
    assert!(run.stdout.contains("as request and limit"), "{}", run.stdout);
}

#[test]
fn doctor_keeps_the_width() {
    // A word, such as a path, may be longer than the rest of the line.
    let fits =
        |line: &str, width: usize| line.chars().count() <= width || !line[30..].contains(' ');
    for (columns, width) in [(None, 80), (Some("60"), 60)] {
        let mut doctor = command(&["doctor"]);
        doctor.env_remove("COLUMNS").envs(columns.map(|columns| ("COLUMNS", columns)));
        let run = finish(&mut doctor);
        assert!(run.stdout.lines().all(|line| fits(line, width)), "{width}: {}", run.stdout);
    }
}

#[test]
fn doctor_without_namespaces_is_not_ready() {
    let script = "echo 0 > /proc/sys/user/max_net_namespaces && exec \"$0\" doctor";
    let words = ["--user", "--map-root-user", "sh", "-c", script, BINARY];
    let run = finish(Command::new("unshare").args(words));
    if run.stderr.contains("unshare failed") {
        return; // No user namespaces either.
    }
    assert_eq!(run.code, 4, "{}{}", run.stdout, run.stderr);
    let last = run.stdout.lines().last().unwrap();
    assert!(last.starts_with("not ready: network namespaces for "), "{last}");
}
