//! `nearmetal doctor`: what works on this machine, what is missing and how to get it.

use anyhow::Result;
use nm_lab::doctor::{self, Check};
use serde_json::json;

use crate::cli::format::Format;
use crate::exit::Exit;
use crate::output;

pub fn run(format: Format) -> Result<Exit> {
    let checks = doctor::checks();
    match format {
        Format::Json => {
            let as_json = |check: &Check| {
                json!({
                    "name": check.name, "ok": check.ok, "found": check.found,
                    "meaning": check.meaning, "remedy": check.remedy,
                })
            };
            output::json(&checks.iter().map(as_json).collect::<Vec<_>>())?;
        }
        Format::Text => output::data(&checks.iter().map(text).collect::<String>())?,
    }
    Ok(Exit::Pass)
}

fn text(check: &Check) -> String {
    let mark = if check.ok { "ok      " } else { "missing " };
    let mut text = format!("{mark} {:<20} {}\n", check.name, check.found);
    text += &format!("{:30}{}\n", "", check.meaning);
    if let Some(remedy) = &check.remedy {
        text += &format!("{:30}to get it: {remedy}\n", "");
    }
    text
}
