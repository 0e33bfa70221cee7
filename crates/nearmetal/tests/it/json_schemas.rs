//! What commands print as JSON is valid by the schemas in `schema/`. Here are the commands that end
//! soon; those of a running exchange and of experiments are checked where their tests run them.

use std::fs;

use crate::json_documents::{command_of, schema_of};
use crate::support::{accelerator, free_port, run, server};

/// The schema of what is printed.
fn printed(args: &[&str]) -> String {
    let args = [args, &["--format", "json"]].concat();
    let run = run(&args);
    let document = serde_json::from_str(&run.stdout).unwrap_or_else(|e| panic!("{e}: {run:?}"));
    schema_of(&command_of(&args), &document).unwrap()
}

#[test]
fn what_is_printed_as_json_is_valid_by_its_schema() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let [a, b] = ["reference:deftech-e5-bm-ull", "reference:deftech-e5-vm-pf"];
    fs::create_dir(at("journals")).unwrap();
    for (args, schema) in [
        (&["qualify", "--dry-run"][..], "dry-run"),
        (&["plans"], "plans"),
        (&["plans", "quick"], "plan"),
        (&["doctor"], "doctor"),
        (&["audit", "--interval", "0"], "audit"),
        (&["compare", a, b], "comparison"),
        (&["trend", a, b], "trend"),
        (&["reference", "list"], "references"),
        (&["reference", "show", "deftech-e5-vm-pf"], "result"),
        (&["lab", "plan"], "lab-plan"),
        (&["tune", "plan"], "tune-plan"),
        (&["tune", "status", "--state", &at("journals")], "tune-runs"),
        (&["accel", "status"], "accel-status"),
        (&["jitter", "--seconds", "0.05", "--out", &at("jitter")], "result"),
        (&["report", &at("jitter")], "result"),
        (&["compute", "--workload", "alu", "--layout", "1x1", "--repeats", "1"], "result"),
    ] {
        assert_eq!(printed(args), schema, "{args:?}");
    }
}

#[test]
fn results_of_stand_alone_clients_are_valid_by_their_schema() {
    let port = free_port();
    let _server = server("pingpong", port);
    let address = format!("127.0.0.1:{port}");
    let pingpong = ["pingpong", "tcp", &address, "--sizes", "1", "--maxms", "5", "--miniter", "9"];
    for args in [
        &pingpong[..],
        &["stream", &address, "--seconds", "0.1"],
        &["rr", &address, "--closed", "--seconds", "0.1", "--deadline", "10000"],
    ] {
        assert_eq!(printed(args), "result", "{args:?}");
    }
}

/// The report goes to stderr, as stdout is the program's.
#[test]
fn the_report_of_the_accelerator_is_valid_by_its_schema() {
    accelerator();
    let run = run(&["accel", "--stats", "--format", "json", "true"]);
    let document = serde_json::from_str(&run.stderr).unwrap_or_else(|e| panic!("{e}: {run:?}"));
    assert_eq!(schema_of("accel", &document), Ok("accel-report".to_string()));
}

#[test]
fn a_document_of_another_form_is_found() {
    let wrong = serde_json::json!({"schema": 1, "checks": [{"name": 1}]});
    assert!(schema_of("doctor", &wrong).unwrap_err().starts_with("doctor: /checks/0"));
    let other = serde_json::json!({"schema": 2, "checks": []});
    assert!(schema_of("doctor", &other).unwrap_err().contains("/schema"));
    assert!(schema_of("man", &wrong).is_err());
}
