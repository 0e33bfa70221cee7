//! JSON Schemas of what nearmetal writes and reads, made from the types themselves. The committed
//! copies are in `schema/`; a test compares them.

use nm_model::certificate::Certificate;
use nm_model::{Baseline, Plan, RunResult};
use schemars::{Schema, schema_for};

/// Schema of `result.json`.
pub fn result() -> serde_json::Value {
    titled(schema_for!(RunResult), "nearmetal result")
}

/// Schema of a plan, as JSON; a TOML plan has the same shape.
pub fn plan() -> serde_json::Value {
    titled(schema_for!(Plan), "nearmetal plan")
}

/// Schema of a certificate.
pub fn certificate() -> serde_json::Value {
    titled(schema_for!(Certificate), "nearmetal certificate")
}

/// Schema of a baseline.
pub fn baseline() -> serde_json::Value {
    titled(schema_for!(Baseline), "nearmetal baseline")
}

fn titled(mut schema: Schema, title: &str) -> serde_json::Value {
    schema.insert("title".to_string(), title.into());
    schema.to_value()
}

/// A schema as committed in `schema/`.
pub fn text(schema: &serde_json::Value) -> String {
    format!("{schema:#}\n")
}
