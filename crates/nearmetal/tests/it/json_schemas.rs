//! What commands print as JSON is valid by the schemas in `schema/`. Here are the commands that end
//! soon; those of a running exchange and of experiments are checked where their tests run them.

use std::collections::HashMap;
use std::fs;
use std::sync::{Arc, Mutex, OnceLock};

use jsonschema::Validator;
use serde_json::Value;

use crate::support::{Run, accelerator, command, finish, free_port, root, run, server};

/// The schemas of each command, by `nearmetal schema`.
fn schemas() -> &'static HashMap<String, Vec<String>> {
    static SCHEMAS: OnceLock<HashMap<String, Vec<String>>> = OnceLock::new();
    SCHEMAS.get_or_init(|| {
        let mut all: HashMap<String, Vec<String>> = HashMap::new();
        for line in finish(&mut command(&["schema"])).stdout.lines() {
            let (name, commands) = line.split_once(' ').expect("a name and commands");
            for command in commands.trim().split(", ") {
                all.entry(command.to_string()).or_default().push(name.to_string());
            }
        }
        all
    })
}

/// The validator of a committed schema.
fn validator(name: &str) -> Arc<Validator> {
    static VALIDATORS: Mutex<Option<HashMap<String, Arc<Validator>>>> = Mutex::new(None);
    let mut known = VALIDATORS.lock().unwrap();
    let known = known.get_or_insert_default();
    let make = || {
        let text = fs::read_to_string(root().join(format!("schema/{name}.json"))).unwrap();
        let schema: Value = serde_json::from_str(&text).unwrap();
        Arc::new(jsonschema::validator_for(&schema).unwrap())
    };
    Arc::clone(known.entry(name.to_string()).or_insert_with(make))
}

/// The name of the schema by which a document is valid.
fn schema_of(command: &str, document: &Value) -> Result<String, String> {
    let names = schemas().get(command).ok_or_else(|| format!("{command} has no schema"))?;
    let mut faults = vec![];
    for name in names {
        match validator(name).iter_errors(document).next() {
            None => return Ok(name.clone()),
            Some(fault) => {
                faults.push(format!("{name}: {}: {fault}", fault.instance_path()));
            }
        }
    }
    Err(faults.join("\n"))
}

/// The command that the words begin with: two words, or one.
fn command_of(args: &[&str]) -> String {
    let two = args.iter().take(2).copied().collect::<Vec<_>>().join(" ");
    if schemas().contains_key(&two) { two } else { args[0].to_string() }
}

/// Checks what a command has printed, if it was asked for JSON and has printed something.
pub fn check(args: &[&str], run: &Run) {
    let is_json = args.windows(2).any(|pair| pair == ["--format", "json"]);
    if !is_json || run.stdout.is_empty() || args[0] == "accel" && args.contains(&"--stats") {
        return;
    }
    let command = command_of(args);
    let documents = match serde_json::from_str(&run.stdout) {
        Ok(document) => vec![document],
        Err(_) => run.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect(),
    };
    for document in documents {
        schema_of(&command, &document).unwrap_or_else(|fault| panic!("{args:?}: {fault}"));
    }
}

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
