//! `nearmetal doctor`: what works on this machine, what is missing and how to get it.

use anyhow::Result;
use nm_lab::doctor::{self, Check};
use nm_report::{style, units};
use schemars::JsonSchema;
use serde::Serialize;

use crate::cli::format::Format;
use crate::document::Document;
use crate::exit::Exit;
use crate::output;

/// Columns before the explanations.
const INDENT: usize = 30;

/// Columns where there is no terminal and `COLUMNS` is not set.
const COLUMNS_DEFAULT: usize = 80;

/// What works here.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Checks {
    checks: Vec<CheckDocument>,
}

/// One thing that nearmetal uses.
#[derive(Debug, Serialize, JsonSchema)]
struct CheckDocument {
    name: String,
    /// Whether it works here.
    ok: bool,
    /// What was found.
    found: String,
    /// What it is for.
    meaning: String,
    /// How to get it, if it is missing.
    remedy: Option<String>,
    /// Whether `qualify` cannot run without it.
    needed: bool,
}

impl Document for Checks {
    const NAME: &'static str = "doctor";
}

pub fn run(format: Format) -> Result<Exit> {
    let checks = doctor::checks();
    match format {
        Format::Json => {
            let as_json = |check: &Check| CheckDocument {
                name: check.name.to_string(),
                ok: check.ok,
                found: check.found.to_string(),
                meaning: check.meaning.to_string(),
                remedy: check.remedy.as_ref().map(ToString::to_string),
                needed: check.needed,
            };
            output::json(&Checks { checks: checks.iter().map(as_json).collect() })?;
        }
        Format::Text => {
            let width = output::width_or(COLUMNS_DEFAULT);
            let text: String = checks.iter().map(|check| text(check, width)).collect();
            output::text(&(text + &end(&checks, width)))?;
        }
    }
    let is_ready = checks.iter().all(|check| check.ok || !check.needed);
    Ok(if is_ready { Exit::Pass } else { Exit::Environment })
}

fn text(check: &Check, width: usize) -> String {
    let mark = if check.ok { "ok" } else { "missing" };
    let remedy = check.remedy.as_ref().map(|remedy| format!("to get it: {remedy}"));
    let parts = [Some(check.found.clone()), Some(check.meaning.to_string()), remedy];
    let mut text = String::new();
    for part in parts.into_iter().flatten() {
        for line in style::wrap(&part, width.saturating_sub(INDENT).max(20)) {
            text += &match text.is_empty() {
                true => format!("{mark:<8} {:<20} {line}\n", check.name),
                false => format!("{:INDENT$}{line}\n", ""),
            };
        }
    }
    text
}

/// The last lines: what may be missing, and whether `qualify` has what it needs.
fn end(checks: &[Check], width: usize) -> String {
    let missing = || checks.iter().filter(|check| !check.ok);
    let mut text = String::new();
    let optional = missing().filter(|check| !check.needed).count();
    if optional > 0 {
        let what = units::plural(optional, "missing part is", "missing parts are");
        let line = format!("{what} optional: `nearmetal qualify` runs without, and says so.");
        text += &format!("\n{}\n", style::wrap(&line, width).join("\n"));
    }
    let needed: Vec<String> = missing()
        .filter(|check| check.needed)
        .map(|check| format!("{} for {} are missing", check.name, check.meaning))
        .collect();
    text + &match needed.is_empty() {
        true => "ready\n".to_string(),
        false => format!("not ready: {}\n", needed.join("; ")),
    }
}
