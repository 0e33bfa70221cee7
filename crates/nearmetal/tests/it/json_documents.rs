//! Checks what commands print as JSON by the schemas in `schema/`.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};

use jsonschema::Validator;
use serde_json::Value;

/// The schemas of each command, by `nearmetal schema`.
fn schemas() -> &'static HashMap<String, Vec<String>> {
    static SCHEMAS: OnceLock<HashMap<String, Vec<String>>> = OnceLock::new();
    SCHEMAS.get_or_init(|| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_nearmetal"));
        let output = program.arg("schema").output().expect("the program starts");
        let mut all: HashMap<String, Vec<String>> = HashMap::new();
        for line in String::from_utf8_lossy(&output.stdout).lines() {
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
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../schema");
        let text = fs::read_to_string(folder.join(format!("{name}.json"))).unwrap();
        let schema: Value = serde_json::from_str(&text).unwrap();
        Arc::new(jsonschema::validator_for(&schema).unwrap())
    };
    Arc::clone(known.entry(name.to_string()).or_insert_with(make))
}

/// The name of the schema by which a document is valid.
pub fn schema_of(command: &str, document: &Value) -> Result<String, String> {
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

/// The command that the words begin with: three words, two, or one.
pub fn command_of(args: &[&str]) -> String {
    let first = |count| args.iter().take(count).copied().collect::<Vec<_>>().join(" ");
    let known = [3, 2].map(first).into_iter().find(|words| schemas().contains_key(words));
    known.unwrap_or_else(|| args[0].to_string())
}

/// Fails if a command was asked for JSON and has printed something that its schema refuses.
pub fn check(args: &[&str], stdout: &str) {
    let is_json = args.windows(2).any(|pair| pair == ["--format", "json"]);
    if !is_json || stdout.is_empty() || args[0] == "accel" && args.contains(&"--stats") {
        return;
    }
    let command = command_of(args);
    let documents = match serde_json::from_str(stdout) {
        Ok(document) => vec![document],
        Err(_) => stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect(),
    };
    for document in documents {
        schema_of(&command, &document).unwrap_or_else(|fault| panic!("{args:?}: {fault}"));
    }
}
